// Address spaces: mmap, mprotect, mremap, madvise, mincore, brk, limits.
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096UL
static sigjmp_buf back;
static void jump(int signal) { siglongjmp(back, signal); }

static const char *can(volatile char *at, int write) {
    if (sigsetjmp(back, 1)) return "no";
    if (write) *at = *at;
    else (void)*at;
    return "yes";
}
static void access_of(const char *what, char *m, int pages) {
    printf("%s:", what);
    for (int i = 0; i < pages; i++) printf(" %s/%s", can(m + i * PAGE, 0), can(m + i * PAGE, 1));
    printf("\n");
}

static char *map(int pages, int prot) { return CHECK(mmap(NULL, pages * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); }

static void mapping(void) {
    char *m = map(8, PROT_READ | PROT_WRITE);
    for (int i = 0; i < 8; i++) m[i * PAGE] = i + 1;
    CHECK(munmap(m + 2 * PAGE, PAGE));
    access_of("hole", m, 8);
    SHOW("hole again", munmap(m + 2 * PAGE, PAGE));
    printf("hint taken %d\n", mmap(m + 2 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == m + 2 * PAGE);
    printf("hint not taken %d\n", mmap(m + 4 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != m + 4 * PAGE);
    SHOW("NOREPLACE", mmap(m + 4 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    CHECK(mmap(m + 4 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    printf("replaced by zeroes %d\n", m[4 * PAGE]);
    SHOW("length 0", mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    SHOW("no type", mmap(NULL, PAGE, PROT_READ, MAP_ANONYMOUS, -1, 0));
    SHOW("odd offset", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 0, 100));
    SHOW("odd address", mmap(m + 1, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    SHOW("bad descriptor", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, 99, 0));
    SHOW("too long", mmap(NULL, 1UL << 47, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    SHOW("odd munmap", munmap(m + 1, PAGE));
    SHOW("empty munmap", munmap(m, 0));
    int p[2];
    pipe(p);
    SHOW("pipe", mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, p[0], 0));
    char name[] = "/tmp/guest-XXXXXX";
    int fd = mkstemp(name), ro = open(name, O_RDONLY), wo = open(name, O_WRONLY);
    unlink(name);
    SHOW("shared write of read-only", mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0));
    printf("private write of read-only %d\n", mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, ro, 0) != MAP_FAILED);
    SHOW("write-only", mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, wo, 0));
    write(fd, "file contents", 13);
    char *f = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    printf("%s\n", f);
}

static void protection(void) {
    char *m = map(6, PROT_READ | PROT_WRITE);
    CHECK(mprotect(m + PAGE, 2 * PAGE, PROT_READ));
    CHECK(mprotect(m + 2 * PAGE, 2 * PAGE, PROT_NONE));
    access_of("mixed", m, 6);
    CHECK(mprotect(m, 6 * PAGE, PROT_READ | PROT_WRITE));
    access_of("all", m, 6);
    munmap(m + 3 * PAGE, PAGE);
    SHOW("over a hole", mprotect(m, 6 * PAGE, PROT_READ));
    access_of("before the hole", m, 6);
    SHOW("odd", mprotect(m + 1, PAGE, PROT_READ));
    unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
    memcpy(m + 4 * PAGE, code, sizeof code);
    CHECK(mprotect(m + 4 * PAGE, PAGE, PROT_READ | PROT_EXEC));
    printf("code %d\n", ((int (*)(void))(m + 4 * PAGE))());
    CHECK(mprotect(m + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE));
    m[4 * PAGE + 1] = 43;
    CHECK(mprotect(m + 4 * PAGE, PAGE, PROT_READ | PROT_EXEC));
    printf("code %d\n", ((int (*)(void))(m + 4 * PAGE))());
}

static void moving(void) {
    char *m = map(4, PROT_READ | PROT_WRITE);
    for (int i = 0; i < 4; i++) m[i * PAGE] = i + 1;
    char *n = CHECK(mremap(m, 4 * PAGE, 2 * PAGE, 0));
    printf("shrunk in place %d\n", n == m);
    access_of("shrunk", m, 4);
    n = CHECK(mremap(m, 2 * PAGE, 64 * PAGE, MREMAP_MAYMOVE));
    printf("grown %d %d %d\n", n[0], n[PAGE], n[63 * PAGE]);
    char *to = map(80, PROT_NONE);
    m = CHECK(mremap(n, 64 * PAGE, 70 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE));
    printf("moved there %d: %d %d\n", m == to + PAGE, m[0], m[PAGE]);
    printf("old %s\n", can(n, 0));
    SHOW("can't grow in place", mremap(m, 70 * PAGE, 90 * PAGE, 0));
    SHOW("unmapped", mremap(n, PAGE, 2 * PAGE, MREMAP_MAYMOVE));
    SHOW("overlapping", mremap(m, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, m + PAGE));
    SHOW("fixed alone", mremap(m, PAGE, PAGE, MREMAP_FIXED, to));
    n = CHECK(mremap(m, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0));
    printf("not unmapped: %d %d\n", m[0], n[0]);
    char *s = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s[0] = 9;
    n = CHECK(mremap(s, 0, 2 * PAGE, MREMAP_MAYMOVE));
    n[0]++;
    printf("second mapping %d\n", s[0]);
}

static void advice(void) {
    char *m = map(4, PROT_READ | PROT_WRITE);
    memset(m, 7, 4 * PAGE);
    CHECK(madvise(m + PAGE, 2 * PAGE, MADV_DONTNEED));
    printf("DONTNEED %d %d %d %d\n", m[0], m[PAGE], m[2 * PAGE], m[3 * PAGE]);
    SHOW("odd", madvise(m + 1, PAGE, MADV_DONTNEED));
    SHOW("unknown", madvise(m, PAGE, 12345));
    munmap(m + PAGE, PAGE);
    SHOW("over a hole", madvise(m, 4 * PAGE, MADV_DONTNEED));
    printf("done all the same %d %d\n", m[0], m[3 * PAGE]);
    for (int i = 0; i < 4; i++) SHOW("hint", madvise(m, PAGE, (int[]){MADV_NORMAL, MADV_WILLNEED, MADV_SEQUENTIAL, MADV_NOHUGEPAGE}[i]));
    char name[] = "/dev/shm/guest-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    write(fd, "from the file", 13);
    char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    memcpy(p, "overwritten..", 13);
    CHECK(madvise(p, PAGE, MADV_DONTNEED));
    printf("private file: %s\n", p);
    unsigned char core[4];
    m = map(4, PROT_READ | PROT_WRITE);
    m[0] = m[2 * PAGE] = 1;
    CHECK(mincore(m, 4 * PAGE, core));
    printf("mincore %d %d\n", core[0] & 1, core[2] & 1);
    munmap(m + PAGE, PAGE);
    SHOW("mincore over a hole", mincore(m, 4 * PAGE, core));
    SHOW("mlock", mlock(m, PAGE));
    SHOW("munlock", munlock(m, PAGE));
    SHOW("msync", msync(p, PAGE, MS_SYNC));
    SHOW("msync both", msync(p, PAGE, MS_SYNC | MS_ASYNC));
    SHOW("msync over a hole", msync(m, 4 * PAGE, MS_SYNC));
}

static void breaks(void) {
    char *start = sbrk(0);
    char *at = (char *)(((uintptr_t)start + PAGE - 1) & ~(PAGE - 1));
    CHECK(brk(at + 8 * PAGE));
    at[0] = at[7 * PAGE] = 1;
    printf("brk %d\n", (char *)sbrk(0) == at + 8 * PAGE);
    CHECK(brk(at + PAGE));
    printf("shrunk %s %s\n", can(at, 1), can(at + PAGE, 1));
    CHECK(brk(at + 8 * PAGE));
    printf("grown again %d\n", at[7 * PAGE]);
    SHOW("below", syscall(SYS_brk, 0L) == syscall(SYS_brk, 4096L));
    char *p = malloc(1 << 20);
    memset(p, 1, 1 << 20);
    free(p);
}

static void limits(void) {
    if (fork() == 0) {
        struct rlimit limit = {256 << 20, 256 << 20};
        CHECK(setrlimit(RLIMIT_AS, &limit));
        SHOW("past RLIMIT_AS", mmap(NULL, 512 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        printf("below %d\n", mmap(NULL, 16 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
        limit = (struct rlimit){0, 0};
        CHECK(setrlimit(RLIMIT_DATA, &limit));
        SHOW("past RLIMIT_DATA", mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        printf("brk fails %d\n", sbrk(1 << 20) == (void *)-1);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    size_t huge = 1UL << 40;
    char *m = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    printf("a terabyte of nothing %d\n", m != MAP_FAILED);
    if (m != MAP_FAILED) {
        m[huge / 2] = 1;
        m[huge - 1] = 1;
        CHECK(munmap(m, huge));
    }
    // Many small areas, in an order that splits and joins.
    m = map(4096, PROT_READ | PROT_WRITE);
    for (int i = 0; i < 4096; i += 2) mprotect(m + i * PAGE, PAGE, PROT_READ);
    for (int i = 1; i < 4096; i += 2) m[i * PAGE] = 1;
    for (int i = 0; i < 4096; i += 2) mprotect(m + i * PAGE, PAGE, PROT_READ | PROT_WRITE);
    int sum = 0;
    for (int i = 0; i < 4096; i++) sum += m[i * PAGE];
    printf("many areas %d\n", sum);
    munmap(m, 4096 * PAGE);
}

static sigjmp_buf touched;
static void on_touch(int signal) { siglongjmp(touched, signal); }

static int touch(volatile char *at, int write) {
    int signal = sigsetjmp(touched, 1);
    if (signal == 0 && write) *at = 1;
    else if (signal == 0) (void)*at;
    return signal;
}

// A private mapping of a file that is moved and grown: what lies past the file's end is SIGBUS until the file has it.
static void grown(void) {
    signal(SIGBUS, on_touch);
    for (int before = 0; before < 3; before++) {
        char name[64];
        snprintf(name, sizeof name, "/dev/shm/memory-%d", getpid());
        int fd = CHECK(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));
        CHECK(ftruncate(fd, 2 * 4096));
        char *p = CHECK(mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
        if (before == 1) touch(p, 0);
        if (before == 2) p[0] = p[4096] = 5;
        char *at = CHECK(mmap(NULL, 8 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        char *g = CHECK(mremap(p, 2 * 4096, 4 * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, at));
        printf("%d: %d %d, %d %d %d", before, touch(g, 0), touch(g + 4096, 1), touch(g + 2 * 4096, 0), touch(g + 2 * 4096, 1), touch(g + 3 * 4096, 0));
        CHECK(ftruncate(fd, 3 * 4096));
        printf(", grown: %d %d, %d %d %d\n", g[0], g[4096], touch(g + 2 * 4096, 0), touch(g + 2 * 4096, 1), touch(g + 3 * 4096, 0));
        munmap(at, 8 * 4096);
        close(fd);
        unlink(name);
    }
    signal(SIGBUS, SIG_DFL);
}

// MADV_REMOVE: pages of a shared mapping go, for all who have them.
static void removed(void) {
    const size_t len = 64 * 4096;
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/memory-%d", getpid());
    int fd = CHECK(open(name, O_RDWR | O_CREAT, 0600));
    CHECK(ftruncate(fd, len));
    char *a = CHECK(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    char *b = CHECK(mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0));
    char *private = CHECK(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    memset(a, 7, len);
    private[16 * 4096] = 9;
    int sum = 0;
    for (size_t i = 0; i < len; i += 4096) sum += b[i];
    SHOW("remove", madvise(a + 16 * 4096, 8 * 4096, MADV_REMOVE));
    int after = 0;
    for (size_t i = 0; i < len; i += 4096) after += b[i];
    printf("%d, then %d; a private copy keeps %d, the page behind it shows %d\n", sum, after, private[16 * 4096], private[17 * 4096]);
    struct stat st;
    CHECK(fstat(fd, &st));
    printf("size %ld, pages %ld\n", (long)st.st_size, (long)st.st_blocks / 8);
    a[16 * 4096] = 3;
    printf("written again: %d %d\n", b[16 * 4096], b[16 * 4096 + 1]);
    SHOW("private", madvise(private, 4096, MADV_REMOVE));
    SHOW("can't be written but may be", madvise(b, 4096, MADV_REMOVE));
    int ro = CHECK(open(name, O_RDONLY));
    char *c = CHECK(mmap(NULL, len, PROT_READ, MAP_SHARED, ro, 0));
    SHOW("opened for reading", madvise(c, 4096, MADV_REMOVE));
    char *anonymous = CHECK(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    SHOW("anonymous", madvise(anonymous, 4096, MADV_REMOVE));
    CHECK(mlock(a, 4096));
    SHOW("locked", madvise(a, 4096, MADV_REMOVE));
    unlink(name);
}

int main(void) {
    signal(SIGSEGV, jump);
    signal(SIGBUS, jump);
    SECTION(mapping);
    SECTION(protection);
    SECTION(moving);
    SECTION(advice);
    SECTION(breaks);
    SECTION(limits);
    SECTION(grown);
    SECTION(removed);
    return 0;
}
