// Measures what a program sees of its kernel: nanoseconds an operation, by the program's own clock. `calls DIRECTORY` prints a line for each,
// `calls DIRECTORY NAME...` only those.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *buffer;
static int zero, shm, host, pipes[4], sockets[2];
static char spawned[256];

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// A call whose number no instruction before it tells: it can't be rewritten into a jump.
static long number = SYS_getpid;
static __attribute__((noinline)) long raw(long nr) {
    long result;
    __asm__ volatile("jmp 1f\n\t1: syscall\n\tjmp 2f\n\t2:" : "=a"(result) : "0"(nr) : "rcx", "r11", "memory");
    return result;
}

static void getpid_raw(long n) { while (n--) raw(number); }
static void getpid_libc(long n) { while (n--) getpid(); }
static void getppid_libc(long n) { while (n--) getppid(); }
static void clock_read(long n) { while (n--) now(); }
static void read_1(long n) { while (n--) read(zero, buffer, 1); }
static void pread_shm(long n) { while (n--) pread(shm, buffer, 4096, 0); }
static void pread_host(long n) { while (n--) pread(host, buffer, 4096, 0); }
static void read_1m(long n) { while (n--) pread(host, buffer, 1 << 20, 0); }
static void pipe_pass(long n) { while (n--) write(pipes[1], buffer, 1), read(pipes[0], buffer, 1); }
static void stat_there(long n) { struct stat s; while (n--) stat("/etc/passwd", &s); }
static void stat_missing(long n) { struct stat s; while (n--) stat("/etc/no-such-file", &s); }
static void open_close(long n) { while (n--) close(open("/etc/passwd", O_RDONLY)); }
static void map_unmap(long n) { while (n--) munmap(mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 65536); }

static void page_fault(long n) {
    const long most = 4096;
    while (n > 0) {
        long pages = n < most ? n : most;
        char *m = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(m, pages * 4096, MADV_NOHUGEPAGE);
        for (long i = 0; i < pages; i++) m[i * 4096] = 1;
        munmap(m, pages * 4096);
        n -= pages;
    }
}

static void fork_wait(long n) {
    while (n--) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, NULL, 0);
    }
}

static void spawn_wait(long n) {
    char *argv[] = {spawned, "exit", NULL};
    while (n--) {
        pid_t child;
        if (posix_spawn(&child, spawned, NULL, NULL, argv, environ) == 0) waitpid(child, NULL, 0);
    }
}

static void *nothing(void *arg) { return arg; }
static void thread_join(long n) {
    while (n--) {
        pthread_t t;
        pthread_create(&t, NULL, nothing, NULL);
        pthread_join(t, NULL);
    }
}

// A child that sends back what it gets.
static void ping_pong(long n, int in, int out, int child_in, int child_out) {
    pid_t child = fork();
    if (child == 0) {
        char c;
        for (long i = 0; i < n; i++) read(child_in, &c, 1), write(child_out, &c, 1);
        _exit(0);
    }
    for (long i = 0; i < n; i++) write(out, buffer, 1), read(in, buffer, 1);
    waitpid(child, NULL, 0);
}
static void pipe_ping(long n) { ping_pong(n, pipes[2], pipes[1], pipes[0], pipes[3]); }
static void unix_ping(long n) { ping_pong(n, sockets[0], sockets[0], sockets[1], sockets[1]); }

static uint32_t ball;
static long rounds;
static void pass(uint32_t mine) {
    for (long i = 0; i < rounds; i++) {
        while (__atomic_load_n(&ball, __ATOMIC_ACQUIRE) != mine) syscall(SYS_futex, &ball, FUTEX_WAIT_PRIVATE, !mine, NULL);
        __atomic_store_n(&ball, !mine, __ATOMIC_RELEASE);
        syscall(SYS_futex, &ball, FUTEX_WAKE_PRIVATE, 1);
    }
}
static void *other(void *arg) { return pass(1), NULL; }
static void futex_ping(long n) {
    pthread_t t;
    rounds = n;
    ball = 0;
    pthread_create(&t, NULL, other, NULL);
    pass(0);
    pthread_join(t, NULL);
}

static const struct { const char *name; void (*run)(long); } ALL[] = {
    {"getpid (raw instruction)", getpid_raw}, {"getpid (libc)", getpid_libc}, {"getppid (libc)", getppid_libc}, {"clock_gettime", clock_read},
    {"read 1 byte", read_1}, {"pread 4 KiB, tmpfs", pread_shm}, {"pread 4 KiB, host file", pread_host}, {"read 1 MiB, host file", read_1m},
    {"pipe write + read", pipe_pass}, {"stat", stat_there}, {"stat, missing", stat_missing}, {"open + close", open_close},
    {"mmap + munmap", map_unmap}, {"page fault", page_fault}, {"fork + exit + wait", fork_wait}, {"posix_spawn + wait", spawn_wait},
    {"thread create + join", thread_join}, {"pipe ping-pong", pipe_ping}, {"UNIX socket ping-pong", unix_ping}, {"futex ping-pong", futex_ping},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "exit")) return 0;
    if (argc < 2) return 2;
    snprintf(spawned, sizeof spawned, "%s", argv[0]);
    char path[256];
    buffer = malloc(1 << 20);
    memset(buffer, 1, 1 << 20);
    zero = open("/dev/zero", O_RDONLY);
    shm = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    if (shm < 0) {
        snprintf(path, sizeof path, "/dev/shm/bench-%d", getpid());
        shm = open(path, O_RDWR | O_CREAT, 0600);
        unlink(path);
    }
    write(shm, buffer, 4096);
    snprintf(path, sizeof path, "%s/data", argv[1]);
    host = open(path, O_RDONLY);
    if (zero < 0 || shm < 0 || host < 0 || pipe(pipes) || pipe(pipes + 2) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) return perror("setup"), 1;
    for (unsigned i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        int wanted = argc == 2;
        for (int j = 2; j < argc; j++) wanted |= strstr(ALL[i].name, argv[j]) != NULL;
        if (!wanted) continue;
        ALL[i].run(1);
        // As many as take long enough to be measured.
        const int64_t enough = 40000000;
        long n = 1;
        int64_t took;
        for (;;) {
            int64_t start = now();
            ALL[i].run(n);
            took = now() - start;
            if (took >= enough || n > 1L << 30) break;
            long next = took > 0 ? (long)((double)n * enough / took * 1.2) + 1 : n * 100;
            n = next > n * 100 ? n * 100 : next;
        }
        printf("%.1f %s\n", (double)took / n, ALL[i].name);
        fflush(stdout);
    }
    return 0;
}
