// Who sees what of memory and of mapped files after fork and between mappings (fork(2), mmap(2)).
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PAGES 16

static void show(const char *what, unsigned char *m) {
    printf("%s:", what);
    for (int i = 0; i < PAGES; i++) printf(" %d", m[i * 4096 + 7]);
    printf("\n");
    fflush(stdout);
}

// Parent and child write alternate pages before and after each other; then both tell what they see.
static void share(const char *what, unsigned char *m) {
    int up[2], down[2];
    char c;
    pipe(up);
    pipe(down);
    for (int i = 0; i < PAGES; i += 2) m[i * 4096 + 7] = i + 1;
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < PAGES; i += 4) m[i * 4096 + 7] += 100;
        write(up[1], "x", 1);
        read(down[0], &c, 1);
        printf("%s, ", what);
        show("child", m);
        if (fork() == 0) {
            m[4096 + 7] = 77;
            printf("%s, ", what);
            show("grandchild", m);
            _exit(0);
        }
        wait(NULL);
        printf("%s, ", what);
        show("child again", m);
        _exit(0);
    }
    read(up[0], &c, 1);
    for (int i = 1; i < PAGES; i += 4) m[i * 4096 + 7] += 200;
    write(down[1], "x", 1);
    wait(NULL);
    printf("%s, ", what);
    show("parent", m);
    close(up[0]), close(up[1]), close(down[0]), close(down[1]);
}

static unsigned char *map(int flags, int fd) {
    return CHECK(mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, flags, fd, 0));
}

static void forks(void) {
    share("private anonymous", map(MAP_PRIVATE | MAP_ANONYMOUS, -1));
    share("shared anonymous", map(MAP_SHARED | MAP_ANONYMOUS, -1));
    for (int where = 0; where < 2; where++) {
        char name[2][32] = {"/tmp/guest-XXXXXX", "/dev/shm/guest-XXXXXX"};
        int fd = CHECK(mkstemp(name[where]));
        unlink(name[where]);
        unsigned char page[4096];
        for (int i = 0; i < PAGES; i++) memset(page, i + 50, sizeof page), write(fd, page, sizeof page);
        share(where ? "shared tmpfs file" : "shared file", map(MAP_SHARED, fd));
        share(where ? "private tmpfs file" : "private file", map(MAP_PRIVATE, fd));
        unsigned char *m = map(MAP_SHARED, fd);
        show("file after", m);
        pwrite(fd, "\x09", 1, 7);
        printf("write seen in mapping %d\n", m[7]);
        m[4096 + 7] = 8;
        pread(fd, page, 1, 4096 + 7);
        printf("mapping seen in read %d\n", page[0]);
        unsigned char *p = map(MAP_PRIVATE, fd), before = p[7];
        pwrite(fd, "\x0a", 1, 7);
        printf("private sees writes before its own %d %d", before, p[7]);
        p[8] = 1;
        pwrite(fd, "\x0b", 1, 7);
        printf(" and not after %d\n", p[7]);
        close(fd);
    }
    int fd = CHECK(memfd_create("m", 0));
    ftruncate(fd, PAGES * 4096);
    share("memfd", map(MAP_SHARED, fd));
    fd = CHECK(open("/dev/zero", O_RDWR));
    share("/dev/zero shared", map(MAP_SHARED, fd));
    share("/dev/zero private", map(MAP_PRIVATE, fd));
}

static void untouched(void) {
    unsigned char *m = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (fork() == 0) {
        int sum = 0;
        for (int i = 0; i < PAGES * 4096; i++) sum += m[i];
        m[0] = 1;
        printf("child reads zeroes %d\n", sum);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    printf("parent %d\n", m[0]);
    m[5] = 5;
    mprotect(m, 4096, PROT_READ);
    if (fork() == 0) {
        mprotect(m, 4096, PROT_READ | PROT_WRITE);
        m[5]++;
        printf("child made writable %d\n", m[5]);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    printf("parent %d\n", m[5]);
    // What a system call writes is copied before, too.
    int p[2];
    pipe(p);
    write(p[1], "abcdef", 6);
    if (fork() == 0) {
        read(p[0], m + 4096, 6);
        printf("child got %.6s\n", m + 4096);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    printf("parent has %d\n", m[4096]);
    madvise(m + 8192, 4096, MADV_DONTFORK);
    m[8192] = 3;
    pid_t child = fork();
    if (child == 0) {
        printf("%d\n", m[8192]);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("DONTFORK: died by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    m[12288] = 4;
    madvise(m + 12288, 4096, MADV_WIPEONFORK);
    if (fork() == 0) _exit(m[12288]);
    wait(&status);
    printf("WIPEONFORK: %d\n", WEXITSTATUS(status));
}

static void pressure(void) {
    size_t size = 64 << 20;
    unsigned char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < size; i += 4096) m[i] = i >> 12;
    for (int round = 0; round < 8; round++) {
        if (fork() == 0) {
            unsigned sum = 0;
            for (size_t i = 0; i < size; i += 4096 * 7) m[i] ^= round + 1, sum += m[i];
            _exit(sum & 0x7f);
        }
    }
    for (size_t i = 0; i < size; i += 4096 * 5) m[i]++;
    int status, sum = 0;
    while (wait(&status) > 0) sum += WIFEXITED(status) ? WEXITSTATUS(status) : 10000;
    unsigned total = 0;
    for (size_t i = 0; i < size; i += 4096) total = total * 31 + m[i];
    printf("children %d, parent %x\n", sum, total);
    munmap(m, size);
    for (int i = 0; i < 200; i++) {
        if (fork() == 0) _exit(i & 3);
        wait(&status);
        sum += WEXITSTATUS(status);
    }
    printf("many forks %d\n", sum);
}

int main(void) {
    SECTION(forks);
    SECTION(untouched);
    SECTION(pressure);
    return 0;
}
