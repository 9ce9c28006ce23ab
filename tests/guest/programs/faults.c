// Signals of the processor: what a handler is told, and that it can put things right or leave.
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

static sigjmp_buf back;
static char *place;
static volatile int mode;
static char *expected;

static void handler(int signal, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    char *addr = info->si_addr;
    printf("signal %d code %d address %s trap %lld\n", signal, info->si_code, addr == expected ? "as expected" : addr == NULL ? "null" : "other", (long long)u->uc_mcontext.gregs[REG_TRAPNO]);
    switch (mode) {
    case 0: siglongjmp(back, 1);
    case 1: mprotect(place, 4096, PROT_READ | PROT_WRITE); break;
    case 2: u->uc_mcontext.gregs[REG_RIP] += u->uc_mcontext.gregs[REG_ERR] == -1 ? 0 : 2; break;
    case 3: break;
    case 4: mmap(place, 4096, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); break;
    }
}

#define FAULTS(name, address, action)                    \
    do {                                                 \
        printf("%s: ", name);                            \
        expected = (char *)(address);                    \
        if (sigsetjmp(back, 1) == 0) {                   \
            action;                                      \
            printf("went on\n");                         \
        }                                                \
    } while (0)

static void segments(void) {
    place = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mode = 0;
    FAULTS("null read", NULL, *(volatile char *)0);
    FAULTS("null write", 16, *(volatile char *)16 = 1);
    FAULTS("no access", place + 5, *(volatile char *)(place + 5));
    munmap(place + 4096, 4096);
    FAULTS("unmapped", place + 4096 + 7, *(volatile char *)(place + 4096 + 7) = 1);
    mprotect(place, 4096, PROT_READ);
    FAULTS("read-only write", place + 9, *(volatile char *)(place + 9) = 1);
    FAULTS("read-only jump", place, ((void (*)(void))place)());
    FAULTS("unmapped jump", place + 4096, ((void (*)(void))(place + 4096))());
    FAULTS("not canonical", NULL, *(volatile char *)0x8000000000000000UL);
    FAULTS("kernel address", 0xffffffff80000000UL, *(volatile char *)0xffffffff80000000UL);
    FAULTS("string constant", "constant", *(volatile char *)"constant" = 'x');
    mode = 1;
    FAULTS("made writable", place + 3, *(volatile char *)(place + 3) = 42);
    printf("value %d\n", place[3]);
    mode = 4;
    place += 4096;
    FAULTS("mapped", place + 8, *(volatile char *)(place + 8) += 42);
    printf("value %d\n", place[8]);
}

static void bus(void) {
    for (int where = 0; where < 2; where++) {
        char name[2][32] = {"/tmp/guest-XXXXXX", "/dev/shm/guest-XXXXXX"};
        int fd = CHECK(mkstemp(name[where]));
        unlink(name[where]);
        CHECK(ftruncate(fd, 5000));
        char *m = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        mode = 0;
        m[4999] = 'x';
        m[8191] = 'y';
        FAULTS("past the end", m + 8192 + 3, *(volatile char *)(m + 8192 + 3));
        FAULTS("write past the end", m + 12288, *(volatile char *)(m + 12288) = 1);
        CHECK(ftruncate(fd, 3 * 4096));
        FAULTS("grown", m + 8192, *(volatile char *)(m + 8192) = 1);
        CHECK(ftruncate(fd, 100));
        FAULTS("shrunk", m + 4999, *(volatile char *)(m + 4999));
        printf("byte past the end: %d\n", m[101]);
        close(fd);
    }
}

static void instructions(void) {
    mode = 0;
    volatile int zero = 0, one = 1;
    printf("divide: ");
    expected = NULL;
    if (sigsetjmp(back, 1) == 0) printf("%d\n", one / zero);
    printf("undefined: ");
    if (sigsetjmp(back, 1) == 0) __asm__ volatile("ud2");
    printf("privileged: ");
    if (sigsetjmp(back, 1) == 0) __asm__ volatile("hlt");
    mode = 3;
    printf("breakpoint: ");
    __asm__ volatile("int3");
    printf("after breakpoint\n");
    mode = 2;
    printf("skipped: ");
    __asm__ volatile("ud2");
    printf("after ud2\n");
    printf("skipped divide: ");
    int result = 5;
    __asm__ volatile("xor %%ecx, %%ecx; xor %%edx, %%edx; mov $1, %%eax; div %%ecx" : "=a"(result) : : "rcx", "rdx", "cc");
    printf("after divide %d\n", result);
    mode = 0;
    printf("bad stack pointer: ");
    if (sigsetjmp(back, 1) == 0) __asm__ volatile("xor %%esp, %%esp; push %%rax" : : : "memory");
}

static void *deep(volatile char *at) {
    volatile char space[4096];
    space[0] = *at;
    return space[0] ? NULL : deep(space);
}

static void dying(void) {
    const int signals[] = {SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGBUS};
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int s = 1; s < 32; s++) signal(s, SIG_DFL);
            volatile int zero = 0;
            switch (signals[i]) {
            case SIGSEGV: *(volatile char *)0 = 1; break;
            case SIGFPE: zero = 7 / zero; break;
            case SIGILL: __asm__ volatile("ud2"); break;
            case SIGTRAP: __asm__ volatile("int3"); break;
            case SIGABRT: abort();
            case SIGBUS: raise(SIGBUS);
            }
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        printf("died by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    }
    pid_t child = fork();
    if (child == 0) {
        // A handler that can't run, as the stack is full: the process dies.
        signal(SIGSEGV, (void (*)(int))handler);
        char c = 0;
        deep(&c);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("overflow: died by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    child = fork();
    if (child == 0) {
        // A blocked fault kills.
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        *(volatile char *)0 = 1;
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("blocked: died by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_IGN);
        *(volatile char *)0 = 1;
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("ignored: died by %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
}

static void overflow_handler(int signal, siginfo_t *info, void *context) {
    printf("overflow handled, code %d\n", info->si_code);
    siglongjmp(back, 1);
}

static void overflow(void) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    CHECK(sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_sigaction = overflow_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaction(SIGSEGV, &action, NULL));
    char c = 0;
    for (int i = 0; i < 2; i++)
        if (sigsetjmp(back, 1) == 0) deep(&c);
}

int main(void) {
    static char alternate[65536];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    for (int i = 0; i < 5; i++) sigaction((int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}[i], &action, NULL);
    SECTION(segments);
    SECTION(bus);
    SECTION(instructions);
    SECTION(dying);
    SECTION(overflow);
    return 0;
}
