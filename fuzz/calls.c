/* Throws random calls at the kernel it runs on, from several threads of short-lived processes. Never run it outside a sandbox.
 *
 * calls SEED SECONDS: prints each child's seed as it begins, and "survived N" at the end. The same seed makes the same calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS 3000
#define THREADS 3

static uint64_t next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static char *memory;

static uint64_t argument(uint64_t *state) {
    static const uint64_t edges[] = {0, 1, 2, 3, 4, 7, 8, 16, 63, 64, 127, 255, 511, 4095, 4096, 4097, 65536, 0x7fffffff, 0x80000000,
                                     0xffffffff, 0x100000000, 1ull << 40, 0x7fe000000000, 0x7ff000000000, 0x7ff010100000, 0x7ff100000000,
                                     0x7fffffffffffffff, 0x8000000000000000, ~0ull, ~0ull - 99, 0xffffffffffffff9c};
    switch (next(state) % 8) {
    case 0: return next(state);
    case 1: return next(state) & 0xffff;
    case 2: return next(state) & 0xff;
    case 3: return edges[next(state) % (sizeof edges / sizeof *edges)];
    case 4: return next(state) % 16;
    case 5: return (uint64_t)memory + next(state) % 65536;
    case 6: return (uint64_t)memory + (next(state) % 16) * 4096;
    default: return 1ull << (next(state) % 64);
    }
}

static int forbidden(uint64_t number) {
    switch (number) {
    case SYS_exit_group: case SYS_exit: case SYS_kill: case SYS_tkill: case SYS_tgkill: case SYS_rt_sigqueueinfo:
    case SYS_rt_tgsigqueueinfo: case SYS_rt_sigreturn: case SYS_pause: case SYS_rt_sigsuspend: case SYS_clone: case SYS_fork:
    case SYS_vfork: case 435:
        return 1;
    }
    return 0;
}

static void *hammer(void *seed) {
    uint64_t state = (uint64_t)seed | 1;
    for (int i = 0; i < CALLS; i++) {
        uint64_t number = next(&state) % 16 == 0 ? next(&state) : next(&state) % 480;
        uint64_t a[6];
        for (int k = 0; k < 6; k++) a[k] = argument(&state);
        if (next(&state) % 4 == 0) strcpy(memory + next(&state) % 4096, "/tmp/fuzz");
        if (!forbidden(number & 0xffffffff)) syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    return 0;
}

static int child(uint64_t seed) {
    memory = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t state = seed | 1;
    for (int i = 0; i < 1 << 13; i++) ((uint64_t *)memory)[i] = argument(&state);
    alarm(1);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, hammer, (void *)(seed * 31 + i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 0;
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], 0, 0) : 1;
    double seconds = argc > 2 ? atof(argv[2]) : 10;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int count = 0;
    do {
        printf("seed %llu\n", (unsigned long long)seed);
        fflush(stdout);
        pid_t pid = fork();
        if (pid < 0) return perror("fork"), 1;
        if (pid == 0) {
            setpgid(0, 0);
            _exit(child(seed));
        }
        int status;
        for (int tries = 0; waitpid(pid, &status, WNOHANG) == 0; tries++) {
            usleep(20000);
            if (tries > 60) kill(pid, SIGKILL);
        }
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        count++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
    printf("survived %d\n", count);
    return 0;
}
