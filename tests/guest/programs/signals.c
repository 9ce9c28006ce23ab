// Signals: masks, queues, handlers and their flags, alternate stacks, waiting for signals (signal(7)).
#define _GNU_SOURCE
#include "guest.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

static volatile int count, depth, deepest, last_value, last_code, last_pid;

static void counting(int signal) { count++; }

static void told(int signal, siginfo_t *info, void *context) {
    printf("signal %d code %d value %d from self %d\n", signal, info->si_code, info->si_code == SI_QUEUE ? info->si_value.sival_int : 0, info->si_pid == getpid());
}

static void install(int signal, void *handler, int flags) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, NULL));
}

static sigset_t set_of(int a, int b) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, a);
    if (b) sigaddset(&set, b);
    return set;
}

static void queues(void) {
    sigset_t set = set_of(SIGRTMIN, SIGUSR1), pending;
    sigaddset(&set, SIGRTMIN + 1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < 3; i++) {
        sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 10 + i});
        sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i});
        sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 100 + i});
    }
    sigpending(&pending);
    printf("pending %d %d %d\n", sigismember(&pending, SIGRTMIN), sigismember(&pending, SIGUSR1), sigismember(&pending, SIGUSR2));
    install(SIGRTMIN, told, SA_SIGINFO);
    install(SIGRTMIN + 1, told, SA_SIGINFO);
    install(SIGUSR1, told, SA_SIGINFO);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    printf("all delivered\n");
    sigprocmask(SIG_BLOCK, &set, NULL);
    siginfo_t info;
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 7});
    kill(getpid(), SIGUSR1);
    SHOW("sigwaitinfo", sigwaitinfo(&set, &info));
    printf("code %d\n", info.si_code);
    SHOW("sigwaitinfo", sigwaitinfo(&set, &info));
    printf("value %d\n", info.si_value.sival_int);
    struct timespec t = {0, 10000000};
    SHOW("sigtimedwait", sigtimedwait(&set, &info, &t));
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
    SHOW("sigwaitinfo", sigwaitinfo(&set, &info));
    printf("code %d\n", info.si_code);
    kill(getpid(), SIGUSR1);
    install(SIGUSR1, SIG_IGN, 0);
    sigpending(&pending);
    printf("ignored is dropped %d\n", sigismember(&pending, SIGUSR1));
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    SHOW("bad signal", kill(getpid(), 65));
    SHOW("nobody", kill(999999, 0));
    SHOW("self", kill(getpid(), 0));
    SHOW("handler for SIGKILL", sigaction(SIGKILL, &(struct sigaction){.sa_handler = counting}, NULL));
}

static void nested(int signal) {
    depth++;
    if (depth > deepest) deepest = depth;
    if (deepest < 50 && depth < 50) raise(signal);
    depth--;
}

static volatile sig_atomic_t order[8], ordered;
static void in_order(int signal) {
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    order[ordered++] = signal * 100 + sigismember(&mask, SIGUSR1) * 10 + sigismember(&mask, SIGUSR2);
    if (signal == SIGUSR1 && ordered == 1) {
        raise(SIGUSR1);
        raise(SIGUSR2);
    }
}

static void flags(void) {
    install(SIGUSR1, nested, SA_NODEFER);
    raise(SIGUSR1);
    printf("deepest %d\n", deepest);
    count = 0;
    install(SIGUSR1, counting, SA_RESETHAND);
    raise(SIGUSR1);
    struct sigaction old;
    sigaction(SIGUSR1, NULL, &old);
    printf("once %d, then default %d\n", count, old.sa_handler == SIG_DFL);
    struct sigaction action = {.sa_handler = in_order, .sa_flags = 0};
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR1);
    for (int i = 0; i < ordered; i++) printf("%d ", order[i]);
    printf("\n");
}

static int restart_pipe[2];
static void write_then(int signal) {
    count++;
    if (count == 2) write(restart_pipe[1], "x", 1);
}

static void restarts(void) {
    pipe(restart_pipe);
    char c;
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        count = 0;
        install(SIGALRM, write_then, flags);
        struct itimerval timer = {{0, 20000}, {0, 20000}};
        setitimer(ITIMER_REAL, &timer, NULL);
        SHOW(flags ? "restarted" : "interrupted", read(restart_pipe[0], &c, 1));
        memset(&timer, 0, sizeof timer);
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    count = 0;
    install(SIGALRM, counting, SA_RESTART);
    struct itimerval timer = {{0, 0}, {0, 20000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    SHOW("pause", pause());
    setitimer(ITIMER_REAL, &timer, NULL);
    struct timespec t = {5, 0}, left = {0, 0};
    SHOW("nanosleep", nanosleep(&t, &left));
    printf("left %d\n", left.tv_sec == 4);
    sigset_t none, block = set_of(SIGALRM, 0), now;
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, &block, NULL);
    count = 0;
    raise(SIGALRM);
    printf("blocked %d\n", count);
    SHOW("sigsuspend", sigsuspend(&none));
    sigprocmask(SIG_BLOCK, NULL, &now);
    printf("handled %d, blocked again %d\n", count, sigismember(&now, SIGALRM));
    sigprocmask(SIG_UNBLOCK, &block, NULL);
    pid_t child = fork();
    if (child == 0) {
        usleep(50000);
        _exit(5);
    }
    setitimer(ITIMER_REAL, &timer, NULL);
    int status = 0;
    printf("wait restarted %d", waitpid(child, &status, 0) == child);
    printf(" status %d\n", WEXITSTATUS(status));
}

static char alternate[2][32768];
static volatile int on_alternate;
static void where(int signal) {
    char here;
    on_alternate = &here > alternate[0] && &here < alternate[0] + sizeof alternate[0];
    stack_t now;
    sigaltstack(NULL, &now);
    printf("signal %d on alternate stack %d flags %d\n", signal, on_alternate, now.ss_flags);
    if (signal == SIGUSR1) {
        stack_t other = {.ss_sp = alternate[1], .ss_size = sizeof alternate[1]};
        SHOW("change while on it", sigaltstack(&other, NULL));
        raise(SIGUSR2);
    }
}

static void stacks(void) {
    stack_t stack = {.ss_sp = alternate[0], .ss_size = sizeof alternate[0]}, old;
    CHECK(sigaltstack(&stack, &old));
    printf("before: %d\n", old.ss_flags);
    install(SIGUSR1, where, SA_ONSTACK);
    install(SIGUSR2, where, SA_ONSTACK);
    raise(SIGUSR1);
    install(SIGUSR2, where, 0);
    raise(SIGUSR2);
    stack.ss_size = 100;
    SHOW("too small", sigaltstack(&stack, NULL));
    stack = (stack_t){.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&stack, NULL));
    install(SIGUSR1, where, SA_ONSTACK);
    CHECK(sigaltstack(NULL, &old));
    printf("after: %d\n", old.ss_flags);
}

static void change_context(int signal, siginfo_t *info, void *context) {
    ucontext_t *u = context;
    sigaddset(&u->uc_sigmask, SIGUSR2);
    u->uc_mcontext.gregs[REG_R12] += 5;
}

static void contexts(void) {
    install(SIGUSR1, change_context, SA_SIGINFO);
    register long kept __asm__("r12") = 37;
    pid_t pid = getpid();
    long result;
    __asm__ volatile("syscall" : "=a"(result), "+r"(kept) : "0"(SYS_kill), "D"((long)pid), "S"((long)SIGUSR1) : "rcx", "r11", "memory");
    printf("register %ld, result %ld\n", kept, result);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    printf("mask from context %d\n", sigismember(&mask, SIGUSR2));
    sigset_t unblock = set_of(SIGUSR2, 0);
    sigprocmask(SIG_UNBLOCK, &unblock, NULL);
    // Floating-point registers survive a handler.
    double x = 1.5;
    long double y = 2.25L;
    for (int i = 0; i < 100; i++) {
        x = x * 1.0000001 + 0.5;
        y += x;
        if (i % 10 == 0) kill(getpid(), SIGUSR1);
    }
    printf("%.10f %.10Lf\n", x, y);
}

static pthread_t target;
static volatile int ran_in_target, stop;
static void which(int signal) { ran_in_target = pthread_equal(pthread_self(), target); }

static void *spin(void *arg) {
    while (!stop) {}
    return NULL;
}
static void *sleeper(void *arg) {
    struct timespec t = {10, 0};
    int result = nanosleep(&t, NULL);
    printf("sleeper %s\n", result == -1 ? strerror(errno) : "slept");
    return NULL;
}

static void threads(void) {
    install(SIGUSR1, which, 0);
    pthread_create(&target, NULL, spin, NULL);
    usleep(20000);
    pthread_kill(target, SIGUSR1);
    for (int i = 0; i < 1000 && !ran_in_target; i++) usleep(1000);
    printf("spinning thread %d\n", ran_in_target);
    stop = 1;
    pthread_join(target, NULL);
    ran_in_target = 0;
    pthread_create(&target, NULL, sleeper, NULL);
    usleep(50000);
    pthread_kill(target, SIGUSR1);
    pthread_join(target, NULL);
    printf("sleeping thread %d\n", ran_in_target);
    // A signal to the process goes to a thread that does not block it.
    sigset_t set = set_of(SIGUSR1, 0);
    ran_in_target = 0;
    pthread_create(&target, NULL, sleeper, NULL);
    sigprocmask(SIG_BLOCK, &set, NULL);
    usleep(50000);
    kill(getpid(), SIGUSR1);
    pthread_join(target, NULL);
    printf("unblocked thread %d\n", ran_in_target);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void stopping(void) {
    pid_t child = fork();
    if (child == 0)
        for (;;) pause();
    int status;
    kill(child, SIGSTOP);
    waitpid(child, &status, WUNTRACED);
    printf("stopped %d by %d\n", WIFSTOPPED(status), WSTOPSIG(status));
    kill(child, SIGCONT);
    waitpid(child, &status, WCONTINUED);
    printf("continued %d\n", WIFCONTINUED(status));
    kill(child, SIGSTOP);
    waitpid(child, &status, WUNTRACED);
    kill(child, SIGTERM);
    usleep(10000);
    printf("pending while stopped: %d\n", waitpid(child, &status, WNOHANG));
    kill(child, SIGCONT);
    waitpid(child, &status, 0);
    printf("died by %d\n", WTERMSIG(status));
    child = fork();
    if (child == 0)
        for (;;) {}
    usleep(10000);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("busy loop died by %d\n", WTERMSIG(status));
}

static void storm(void) {
    count = 0;
    install(SIGUSR1, counting, 0);
    pid_t parent = getpid();
    install(SIGRTMIN, counting, 0);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 2000; i++) sigqueue(parent, SIGRTMIN, (union sigval){0});
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) != child) {}
    for (int i = 0; i < 100 && count < 2000; i++) usleep(1000);
    printf("storm %d\n", count);
}

int main(void) {
    SECTION(queues);
    SECTION(flags);
    SECTION(restarts);
    SECTION(stacks);
    SECTION(contexts);
    SECTION(threads);
    SECTION(stopping);
    SECTION(storm);
    return 0;
}
