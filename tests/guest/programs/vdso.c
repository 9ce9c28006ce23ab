// The vDSO: what it exports, what its clocks show beside the calls', and that everything else about it is as Linux has it.
#define _GNU_SOURCE
#include "guest.h"
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unwind.h>

typedef int (*gettime_fn)(clockid_t, struct timespec *);

static gettime_fn gettime, getres;
static int (*gettimeofday_fn)(struct timeval *, struct timezone *);
static time_t (*time_fn)(time_t *);
static int (*getcpu_fn)(unsigned *, unsigned *, void *);

static const int CLOCKS[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME, CLOCK_TAI};
#define COUNT ((int)(sizeof CLOCKS / sizeof *CLOCKS))

static long long nanos(struct timespec t) { return t.tv_sec * 1000000000LL + t.tv_nsec; }

static long long by_call(int clock) {
    struct timespec t;
    CHECK(syscall(SYS_clock_gettime, clock, &t));
    return nanos(t);
}

static long long by_vdso(int clock) {
    struct timespec t;
    int result = gettime(clock, &t);
    if (result) printf("clock %d: %d\n", clock, result);
    return nanos(t);
}

// A function by name, from the image itself: hash tables, versions and all that a C library does not look at are checked too.
static void *lookup(const char *name) {
    const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
    const Elf64_Ehdr *elf = (const void *)base;
    const Elf64_Phdr *headers = (const void *)(base + elf->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    long bias = 0;
    for (int i = 0; i < elf->e_phnum; i++) {
        if (headers[i].p_type == PT_LOAD) bias = (long)base + headers[i].p_offset - headers[i].p_vaddr;
        if (headers[i].p_type == PT_DYNAMIC) dynamic = (const void *)(base + headers[i].p_offset);
    }
    const Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    const Elf64_Versym *versions = NULL;
    const Elf64_Verdef *defined = NULL;
    for (; dynamic->d_tag; dynamic++) {
        const void *at = (const void *)(bias + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_SYMTAB) symbols = at;
        if (dynamic->d_tag == DT_STRTAB) strings = at;
        if (dynamic->d_tag == DT_VERSYM) versions = at;
        if (dynamic->d_tag == DT_VERDEF) defined = at;
    }
    for (long i = 1; (const char *)(symbols + i) < strings; i++) {
        if (strcmp(strings + symbols[i].st_name, name) || ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC) continue;
        const Elf64_Verdef *version = defined;
        while (version->vd_ndx != (versions[i] & 0x7fff)) version = (const void *)((const char *)version + version->vd_next);
        const Elf64_Verdaux *named = (const void *)((const char *)version + version->vd_aux);
        if (strcmp(strings + named->vda_name, "LINUX_2.6")) printf("%s has version %s\n", name, strings + named->vda_name);
        return (void *)(bias + symbols[i].st_value);
    }
    return NULL;
}

static void symbols(void) {
    static const char *const NAMES[] = {"clock_gettime", "clock_getres", "gettimeofday", "time", "getcpu"};
    void *library = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "__vdso_%s", NAMES[i]);
        void *found = lookup(name);
        printf("%s: found %d, weak name %d, by the linker %d\n", name, found != NULL, lookup(NAMES[i]) == found, library && dlvsym(library, name, "LINUX_2.6") == found);
    }
    printf("another version: %d\n", library && dlvsym(library, "__vdso_time", "LINUX_9.9") != NULL);
    gettime = (gettime_fn)lookup("__vdso_clock_gettime");
    getres = (gettime_fn)lookup("__vdso_clock_getres");
    gettimeofday_fn = lookup("__vdso_gettimeofday");
    time_fn = lookup("__vdso_time");
    getcpu_fn = lookup("__vdso_getcpu");
}

// Each clock by vDSO lies between two looks by call.
static int agrees(void) {
    for (int i = 0; i < COUNT; i++) {
        for (int round = 0; round < 50; round++) {
            long long before = by_call(CLOCKS[i]), now = by_vdso(CLOCKS[i]), after = by_call(CLOCKS[i]);
            if (now < before || now > after) {
                printf("clock %d: %lld is not within %lld and %lld\n", CLOCKS[i], now, before, after);
                return 0;
            }
        }
    }
    return 1;
}

static void clocks(void) {
    printf("agree %d\n", agrees());
    struct timespec r, s;
    for (int i = 0; i < COUNT; i++) {
        int a = getres(CLOCKS[i], &r), b = syscall(SYS_clock_getres, CLOCKS[i], &s);
        printf("resolution of %d: %d %d\n", CLOCKS[i], a == b, nanos(r) == nanos(s));
    }
    printf("no place for it: %d\n", getres(CLOCK_MONOTONIC, NULL));
    // Clocks of processor time, and some that are none. Whether those of alarms work is the machine's affair.
    for (int clock = -8; clock < 20; clock++) {
        struct timespec t, u;
        if (clock == CLOCK_REALTIME_ALARM || clock == CLOCK_BOOTTIME_ALARM) continue;
        int a = gettime(clock, &t), b = syscall(SYS_clock_gettime, clock, &u);
        printf("clock %d: %s %d\n", clock, a ? strerror(-a) : "works", (a == 0) == (b == 0) && (a || llabs(nanos(t) - nanos(u)) < 1000000000));
    }
    struct timeval v;
    long long before = by_call(CLOCK_REALTIME) / 1000;
    int result = gettimeofday_fn(&v, NULL);
    long long after = by_call(CLOCK_REALTIME) / 1000, now = v.tv_sec * 1000000LL + v.tv_usec;
    printf("gettimeofday: %d %d\n", result, before <= now && now <= after);
    time_t stored, first = by_call(CLOCK_REALTIME_COARSE) / 1000000000, got = time_fn(&stored);
    printf("time: %d %d %d\n", got == stored, first <= got, got <= by_call(CLOCK_REALTIME) / 1000000000);
    unsigned cpu = ~0u, node = ~0u;
    result = getcpu_fn(&cpu, &node, NULL);
    printf("getcpu: %d %d %d\n", result, cpu < 4096, node < 4096);
}

static void *watch(void *unused) {
    long long last[COUNT] = {0};
    for (long n = 0; n < 100000; n++) {
        int i = n % COUNT;
        long long now = by_vdso(CLOCKS[i]);
        // The time of day may be set by somebody.
        if (now < last[i] && CLOCKS[i] != CLOCK_REALTIME && CLOCKS[i] != CLOCK_REALTIME_COARSE && CLOCKS[i] != CLOCK_TAI) return "went back";
        last[i] = now;
    }
    return "forward";
}

static volatile int ticks, ticks_wrong;
static long long in_handler;

static void tick(int signal) {
    long long now = by_vdso(CLOCK_MONOTONIC);
    if (now < in_handler) ticks_wrong = 1;
    in_handler = now;
    ticks++;
}

static void forward(void) {
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, tick);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, watch, NULL);
    CHECK(setitimer(ITIMER_REAL, &often, NULL));
    // Interrupted in the middle of it again and again.
    long long began = by_vdso(CLOCK_MONOTONIC), last = began;
    while (ticks < 50 && last < began + 20000000000LL) {
        long long now = by_vdso(CLOCK_MONOTONIC);
        if (now < last) printf("went back\n");
        last = now;
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL));
    printf("handlers: %d %d\n", ticks >= 50, ticks_wrong);
    for (int i = 0; i < 3; i++) {
        void *said;
        pthread_join(threads[i], &said);
        printf("%s\n", (char *)said);
    }
}

static sigjmp_buf back;
static int frames, reached;
static void *outer;

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *unused) {
    frames++;
    if (_Unwind_GetRegionStart(context) == (unsigned long)outer) reached = 1;
    return frames > 100 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static void faulted(int signal) {
    _Unwind_Backtrace(frame, NULL);
    siglongjmp(back, 1);
}

static __attribute__((noinline)) int with_bad_place(int clock) {
    int result = gettime(clock, (struct timespec *)16);
    __asm__ volatile("" : "+r"(result));
    return result;
}

static void unwinding(void) {
    signal(SIGSEGV, faulted);
    outer = (void *)with_bad_place;
    frames = reached = 0;
    if (!sigsetjmp(back, 1)) with_bad_place(CLOCK_MONOTONIC);
    printf("unwound to the caller %d\n", reached);
    signal(SIGSEGV, SIG_DFL);
}

// Where the image is, by the kernel's word.
static int in_maps(unsigned long *start, unsigned long *end, char *prot) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]")) found += sscanf(line, "%lx-%lx %4s", start, end, prot) == 3;
    fclose(maps);
    return found;
}

static void say_child(const char *what, void (*run)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        run();
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("%s: %#x\n", what, status);
}

static void reads(void) { printf("agree %d\n", agrees()); }

static void writes(void) { *(volatile char *)getauxval(AT_SYSINFO_EHDR) = 1; }

static void unmaps(void) {
    unsigned long start, end;
    char prot[8];
    in_maps(&start, &end, prot);
    SHOW("munmap", munmap((void *)start, end - start));
    printf("left %d, the call works %d\n", in_maps(&start, &end, prot), by_call(CLOCK_MONOTONIC) > 0);
}

static void overwrites(void) {
    unsigned long start, end;
    char prot[8];
    in_maps(&start, &end, prot);
    SHOW("mprotect", mprotect((void *)start, end - start, PROT_READ | PROT_WRITE | PROT_EXEC));
    // `mov $7, %eax; ret` in the function's place.
    memcpy((void *)gettime, "\xb8\7\0\0\0\xc3", 6);
    struct timespec t;
    printf("overwritten: %d\n", gettime(CLOCK_MONOTONIC, &t));
}

static void mapping(void) {
    unsigned long start = 0, end = 0;
    char prot[8] = "";
    printf("mappings %d, ", in_maps(&start, &end, prot));
    printf("%s, told of %d\n", prot, getauxval(AT_SYSINFO_EHDR) == start);
    say_child("a child reads", reads);
    say_child("a child writes", writes);
    say_child("a child unmaps", unmaps);
    say_child("a child overwrites", overwrites);
    printf("agree %d\n", agrees());
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "count")) {
        // For who counts its calls: none of these is one.
        struct timespec t;
        struct timeval v;
        for (int n = 0; n < 10000; n++) {
            for (int i = 0; i < COUNT; i++) clock_gettime(CLOCKS[i], &t);
            gettimeofday(&v, NULL);
            time(NULL);
        }
        printf("counted\n");
        return 0;
    }
    if (argc > 1) {
        // Somewhere else than in the program that came before, or at the same place by chance.
        symbols();
        printf("after exec: agree %d\n", agrees());
        return 0;
    }
    SECTION(symbols);
    SECTION(clocks);
    SECTION(forward);
    SECTION(unwinding);
    SECTION(mapping);
    fflush(stdout);
    execl("/proc/self/exe", argv[0], "again", NULL);
    return 1;
}
