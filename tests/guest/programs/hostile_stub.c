// A guest that knows the stub: where its pages lie, what they mean, and which of its instructions make host calls. Each attack is made by a process of its
// own; meanwhile its parent makes calls, forks and spawns, and says at the end that it could. Runs inside a sandbox alone.
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#define TEXT 0x7ff000000000ul
#define FILTERS 0x7ff010000000ul
#define COMMANDS 0x7ff010100000ul
#define DOORBELL 0x7ff010200000ul
#define BOARD 0x7ff010300000ul
#define CLOCKS 0x7ff010400000ul
#define AREAS 0x7ff100000000ul
#define AREA 0x8000ul
#define RESULTS 0x1000ul

extern char **environ;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

// What its neighbours may expect of the kernel while somebody misbehaves: calls, forks, new programs.
static int lives(void) {
    int ends[2];
    if (pipe(ends)) return 0;
    for (int i = 0; i < 300; i++) {
        char byte = i, back = 0;
        if (write(ends[1], &byte, 1) != 1 || read(ends[0], &back, 1) != 1 || back != byte) return 0;
        if (syscall(SYS_getppid) == -1) return 0;
    }
    close(ends[0]);
    close(ends[1]);
    int status;
    pid_t child = fork();
    if (!child) _exit(42);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 42 << 8) return 0;
    char *arguments[] = {"true", 0};
    if (posix_spawn(&child, "/bin/true", 0, 0, arguments, environ)) return 0;
    return waitpid(child, &status, 0) == child && status == 0;
}

// Waits for a child for that long; its status, or -1 where it lives on.
static int ended_within(pid_t child, double seconds) {
    double until = now() + seconds;
    int status;
    do {
        pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child) return status;
        usleep(1000);
    } while (now() < until);
    return -1;
}

static void attack(const char *name, void (*how)(void), double seconds) {
    pid_t child = fork();
    if (!child) {
        how();
        _exit(0);
    }
    int good = lives();
    int status = ended_within(child, seconds);
    good &= lives();
    if (status == -1) {
        kill(child, SIGKILL);
        good &= ended_within(child, 5) != -1;
    }
    good &= lives();
    printf("%s: %s\n", name, good ? "the others live" : "THE OTHERS ARE HARMED");
}

// Pages that a guest can't write.
static void *target;
static void write_target(void) { *(volatile uint64_t *)target = ~0ul; }

static void read_only_pages(void) {
    static const struct {
        const char *name;
        unsigned long at;
    } pages[] = {{"text", TEXT}, {"filters", FILTERS}, {"orders", COMMANDS}, {"doorbell", DOORBELL}, {"clocks", CLOCKS}};
    for (unsigned i = 0; i < sizeof pages / sizeof *pages; i++) {
        target = (void *)pages[i].at;
        pid_t child = fork();
        if (!child) {
            write_target();
            _exit(0);
        }
        int status = ended_within(child, 10);
        printf("a write to the %s: %s\n", pages[i].name, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "no signal");
    }
}

// The kernel does not do what the processor refuses.
static uint64_t text_sum(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < 4096 / 8; i++) sum = sum * 31 + ((volatile uint64_t *)TEXT)[i];
    return sum;
}

static void by_the_kernel(void) {
    uint64_t before = text_sum();
    static const unsigned long places[] = {TEXT, FILTERS, COMMANDS, DOORBELL, BOARD, AREAS, AREAS + RESULTS, 0x7fe000000000ul, ~0ul - 4095, 0xffff800000000000ul};
    int zero = open("/dev/zero", O_RDONLY);
    int ends[2];
    CHECK(pipe(ends));
    for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
        char *at = (char *)places[i];
        errno = 0;
        int refused = read(zero, at, 8) == -1 && errno == EFAULT;
        refused &= syscall(SYS_getcwd, at, 100) == -1 && errno == EFAULT;
        refused &= write(ends[1], at, 8) == -1 && errno == EFAULT;
        refused &= syscall(SYS_clock_gettime, CLOCK_REALTIME, at) == -1 && errno == EFAULT;
        refused &= mprotect((void *)((unsigned long)at & -4096), 4096, PROT_READ | PROT_WRITE) == -1;
        refused &= munmap((void *)((unsigned long)at & -4096), 4096) == -1;
        refused &= mmap((void *)((unsigned long)at & -4096), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
        refused &= madvise((void *)((unsigned long)at & -4096), 4096, MADV_DONTNEED) == -1;
        refused &= mremap((void *)((unsigned long)at & -4096), 4096, 8192, MREMAP_MAYMOVE) == MAP_FAILED;
        printf("place %u by the kernel: %s\n", i, refused ? "refused" : "NOT REFUSED");
    }
    printf("the text: %s\n", text_sum() == before ? "unchanged" : "CHANGED");
    close(zero);
    close(ends[0]);
    close(ends[1]);
}

// One thread makes calls, the other writes.
static volatile int over;
static unsigned long range_from, range_len;
static uint64_t (*pattern)(void);
static uint64_t ones(void) { return ~0ul; }
static uint64_t zeroes(void) { return 0; }
static uint64_t one(void) { return 1; }
static uint64_t noise(void) {
    static uint64_t x = 88172645463325252ul;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

static void *scribble(void *nothing) {
    while (!over)
        for (unsigned long at = range_from; at < range_from + range_len; at += 8) *(volatile uint64_t *)at = pattern();
    return nothing;
}

static void *call(void *nothing) {
    char buffer[64];
    while (!over) {
        int fd = open("/etc/passwd", O_RDONLY);
        pread(fd, buffer, sizeof buffer, 0);
        close(fd);
        pid_t child = fork();
        if (!child) _exit(0);
        if (child > 0) waitpid(child, 0, 0);
    }
    return nothing;
}

static void scribble_and_call(void) {
    pthread_t other;
    pthread_create(&other, 0, call, 0);
    pthread_create(&other, 0, scribble, 0);
    usleep(400000);
}

// Every field of the contexts, one at a time, with noise, small and pointer-like values.
static void *forge_fields(void *nothing) {
    while (!over) {
        unsigned long area = AREAS + (noise() % 3) * AREA, offset = (noise() % 64) * 8;
        static const unsigned long bases[] = {0, 1, AREAS, AREAS + AREA, AREAS + 0x7f80, TEXT, COMMANDS, 1ul << 63, ~0ul - 64};
        uint64_t value = noise() % 2 ? noise() : bases[noise() % 9] + noise() % 64;
        if (noise() % 2)
            *(volatile uint64_t *)(area + offset) = value;
        else
            *(volatile uint32_t *)(area + offset + 4 * (noise() % 2)) = value;
    }
    return nothing;
}

static void contexts(void) {
    pthread_t other;
    pthread_create(&other, 0, call, 0);
    pthread_create(&other, 0, forge_fields, 0);
    usleep(400000);
}

// Reports in other threads' names: its own context claims other numbers.
static void names(void) {
    for (int i = 0; i < 4096; i++) {
        *(volatile uint32_t *)(AREAS + 0x10) = i;
        syscall(SYS_getppid);
    }
}

static void wipe(void) {
    range_from = BOARD, range_len = 0x240, pattern = zeroes;
    scribble(0);
}
static void fill(void) {
    range_from = BOARD, range_len = 0x240, pattern = ones;
    scribble(0);
}
static void shake(void) {
    range_from = BOARD, range_len = 0x240, pattern = noise;
    scribble(0);
}
static void area_ones(void) {
    range_from = AREAS, range_len = AREA, pattern = ones;
    scribble_and_call();
}
static void area_zeroes(void) {
    range_from = AREAS, range_len = AREA, pattern = zeroes;
    scribble_and_call();
}
static void area_noise(void) {
    range_from = AREAS, range_len = AREA, pattern = noise;
    scribble_and_call();
}
static void results_one(void) {
    // 1 is the sentry's own PID: a child that is the sentry, a batch that is done.
    range_from = AREAS + RESULTS, range_len = 0x400, pattern = one;
    scribble_and_call();
}
static void results_noise(void) {
    range_from = AREAS + RESULTS, range_len = 0x1000, pattern = noise;
    scribble_and_call();
}

// Signal frames of its own making, for the one place where a host sigreturn is allowed.
static ucontext_t frame;
static char state[16384] __attribute__((aligned(64)));
static void keep(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    ucontext_t *from = context;
    memcpy(&frame, from, sizeof frame);
    memcpy(state, from->uc_mcontext.fpregs, 4096);
}

static unsigned char *find(const char *bytes, int len, unsigned char *from) {
    for (unsigned char *at = from; at < (unsigned char *)TEXT + 4096 - len; at++)
        if (!memcmp(at, bytes, len)) return at;
    return 0;
}

static void spin(void) {
    for (;;) __asm__ volatile("pause");
}

static void make_frame(void) {
    struct sigaction action = {.sa_sigaction = keep, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    frame.uc_mcontext.fpregs = (void *)state;
    memset(&frame.uc_sigmask, 0xff, 8);
}

static void use_frame(void) {
    unsigned char *at = find("\xb8\x0f\0\0\0\x0f\x05", 7, (unsigned char *)TEXT);
    __asm__ volatile("mov %0, %%rsp\n jmp *%1" : : "r"(&frame), "r"(at) : "memory");
}

static void deaf(void) {
    make_frame();
    frame.uc_mcontext.gregs[REG_RIP] = (greg_t)spin;
    frame.uc_mcontext.gregs[REG_RSP] &= -16;
    use_frame();
}

static void *deaf_thread(void *nothing) {
    deaf();
    return nothing;
}

static void bad_frame(void) {
    make_frame();
    frame.uc_mcontext.gregs[REG_RIP] = noise();
    frame.uc_mcontext.gregs[REG_CSGSFS] = noise();
    frame.uc_mcontext.gregs[REG_EFL] = noise();
    use_frame();
}

static void bad_state(void) {
    make_frame();
    for (unsigned i = 0; i < sizeof state; i++) state[i] = noise();
    frame.uc_mcontext.gregs[REG_RIP] = (greg_t)spin;
    use_frame();
}

static void wild_frame(void) {
    unsigned char *at = find("\xb8\x0f\0\0\0\x0f\x05", 7, (unsigned char *)TEXT);
    __asm__ volatile("mov %0, %%rsp\n jmp *%1" : : "r"(COMMANDS), "r"(at) : "memory");
}

// A process that does not hear the interrupt: what waits for it must not wait for ever.
static void deafness(void) {
    int status;
    double began = now();
    pid_t child = fork();
    if (!child) deaf();
    usleep(50000);
    kill(child, SIGKILL);
    status = ended_within(child, 5);
    printf("deaf, SIGKILL: %s\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && now() - began < 1 ? "gone in time" : "NOT GONE");

    child = fork();
    if (!child) deaf();
    usleep(50000);
    began = now();
    kill(child, SIGTERM);
    status = ended_within(child, 5);
    printf("deaf, SIGTERM: %s\n", status != -1 && WIFSIGNALED(status) && now() - began < 1 ? "gone in time" : "NOT GONE");

    child = fork();
    if (!child) {
        pthread_t other;
        pthread_create(&other, 0, deaf_thread, 0);
        usleep(50000);
        execl("/bin/true", "true", (char *)0);
        _exit(3);
    }
    began = now();
    status = ended_within(child, 5);
    printf("deaf, exec beside it: %s\n", status != -1 && WIFSIGNALED(status) && now() - began < 1 ? "gone in time" : "NOT GONE");
}

// Every instruction of the stub that makes a host call, with calls that would hurt.
static unsigned char *instruction;
static const long *arguments;
static void jump(void) {
    __asm__ volatile(
        "mov %0, %%r11\n mov 0(%1), %%rax\n mov 8(%1), %%rdi\n mov 16(%1), %%rsi\n mov 24(%1), %%rdx\n mov 32(%1), %%r10\n"
        "mov 40(%1), %%r8\n mov 48(%1), %%r9\n xor %%ebp, %%ebp\n jmp *%%r11"
        :
        : "r"(instruction), "r"(arguments)
        : "memory");
    __builtin_unreachable();
}

static void jumps(void) {
    static struct iovec from = {(void *)AREAS, 8}, to = {(void *)0x400000, 8};
    const long calls[][7] = {
        {SYS_kill, 1, SIGKILL},
        {SYS_kill, 2, SIGKILL},
        {SYS_kill, -1, SIGKILL},
        {SYS_process_vm_writev, 1, (long)&from, 1, (long)&to, 1},
        {SYS_openat, AT_FDCWD, (long)"/", O_RDONLY},
        {SYS_execve, (long)"/bin/true"},
        {SYS_ptrace, 16, 1},
        {SYS_futex, DOORBELL, 1, 1 << 30},
        {SYS_futex, BOARD, 0, 0},
        {SYS_mmap, 0x10000, 4096, 7, 0x32, -1},
        {SYS_munmap, TEXT, 4096},
        {SYS_mprotect, TEXT, 4096, 7},
        {SYS_clone, 0x8400},
        {SYS_recvmsg, 6, AREAS + 0x2000},
        {SYS_close, 3},
        {SYS_seccomp, 1, 0, FILTERS},
        {SYS_rt_sigreturn},
        {SYS_getpid},
    };
    int found = 0, good = 1;
    for (unsigned char *at = (unsigned char *)TEXT; (at = find("\x0f\x05", 2, at)); at += 2) {
        found++;
        instruction = at;
        pid_t children[sizeof calls / sizeof *calls];
        for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
            arguments = calls[i];
            children[i] = fork();
            if (!children[i]) jump();
        }
        good &= lives();
        for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
            if (ended_within(children[i], 0.005) != -1) continue;
            kill(children[i], SIGKILL);
            good &= ended_within(children[i], 5) != -1;
        }
        good &= lives();
    }
    printf("jumps into the stub: %s\n", found < 5 ? "TOO FEW FOUND" : good ? "the others live" : "THE OTHERS ARE HARMED");
}

// Calls with another GS base than the stub gave.
static void other_base(void) {
    for (unsigned i = 0; i < 8; i++) {
        unsigned long bases[] = {0, AREAS, AREAS + AREA, BOARD, TEXT, COMMANDS, (unsigned long)state, 0x7fe000000000ul};
        __asm__ volatile("wrgsbase %0" : : "r"(bases[i]));
        for (int j = 0; j < 20; j++) getppid();
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "wipe")) {
        printf("wiping\n");
        fflush(stdout);
        if (fork()) wipe();
        for (;;) getppid();
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    read_only_pages();
    by_the_kernel();
    attack("ones over the area", area_ones, 2);
    attack("zeroes over the area", area_zeroes, 2);
    attack("noise over the area", area_noise, 2);
    attack("forged results", results_one, 2);
    attack("noise over the results", results_noise, 2);
    attack("forged contexts", contexts, 2);
    attack("reports in others' names", names, 2);
    attack("a wiped board", wipe, 0.5);
    attack("a filled board", fill, 0.5);
    attack("noise on the board", shake, 0.5);
    attack("a deaf thread", deaf, 0.2);
    attack("a forged frame", bad_frame, 2);
    attack("a forged vector state", bad_state, 0.5);
    attack("a frame in the orders' page", wild_frame, 2);
    attack("another GS base", other_base, 2);
    deafness();
    jumps();
    return 0;
}
