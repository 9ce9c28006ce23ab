// Futexes: waiting, waking, requeueing, bitsets, wake-op, robust lists, and sharing across fork (futex(2)).
#define _GNU_SOURCE
#include "guest.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static long futex(void *at, int op, uint32_t value, const void *timeout, void *at2, uint32_t value3) {
    return syscall(SYS_futex, at, op, value, timeout, at2, value3);
}

static uint32_t word, word2;

struct waiter {
    pthread_t thread;
    void *at;
    int op;
    uint32_t bits;
    long result;
    int error;
};
static int started;

static void *wait_there(void *arg) {
    struct waiter *w = arg;
    __atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST);
    w->result = futex(w->at, w->op, *(uint32_t *)w->at, NULL, NULL, w->bits);
    w->error = errno;
    return NULL;
}

// Threads that wait; returns once all of them do, which a requeue of nobody to nowhere tells.
static void begin(struct waiter *w, int count, void *at, int op, const uint32_t *bits) {
    started = 0;
    for (int i = 0; i < count; i++) {
        w[i] = (struct waiter){.at = at, .op = op, .bits = bits ? bits[i] : 0};
        pthread_create(&w[i].thread, NULL, wait_there, &w[i]);
    }
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < count) sched_yield();
    usleep(100000);
}

static void end(struct waiter *w, int count) {
    int done = 0;
    for (int i = 0; i < count; i++) pthread_join(w[i].thread, NULL), done += w[i].result == 0;
    printf("%d of %d returned 0\n", done, count);
}

static void waiting(void) {
    struct timespec t = {0, 20000000}, zero = {0, 0}, bad = {0, 2000000000}, past = {1, 0}, negative = {-1, 0};
    word = 5;
    SHOW("wrong value", futex(&word, FUTEX_WAIT_PRIVATE, 6, NULL, NULL, 0));
    SHOW("times out", futex(&word, FUTEX_WAIT_PRIVATE, 5, &t, NULL, 0));
    SHOW("times out shared", futex(&word, FUTEX_WAIT, 5, &t, NULL, 0));
    SHOW("zero timeout", futex(&word, FUTEX_WAIT_PRIVATE, 5, &zero, NULL, 0));
    SHOW("bad timeout", futex(&word, FUTEX_WAIT_PRIVATE, 5, &bad, NULL, 0));
    SHOW("negative timeout", futex(&word, FUTEX_WAIT_PRIVATE, 5, &negative, NULL, 0));
    SHOW("past", futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 5, &past, NULL, -1));
    SHOW("past, realtime", futex(&word, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, 5, &past, NULL, -1));
    SHOW("no bits", futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 5, &past, NULL, 0));
    SHOW("wake no bits", futex(&word, FUTEX_WAKE_BITSET_PRIVATE, 1, NULL, NULL, 0));
    SHOW("odd address", futex((char *)&word + 1, FUTEX_WAIT_PRIVATE, 5, NULL, NULL, 0));
    SHOW("bad address", futex((void *)8, FUTEX_WAIT_PRIVATE, 5, NULL, NULL, 0));
    SHOW("wake nobody", futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    SHOW("unknown operation", futex(&word, 99, 1, NULL, NULL, 0));
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += 20000000;
    if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
    SHOW("absolute", futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 5, &t, NULL, -1));
}

static void waking(void) {
    struct waiter w[6];
    word = 1;
    begin(w, 4, &word, FUTEX_WAIT_PRIVATE, NULL);
    SHOW("wake 1", futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    SHOW("wake all", futex(&word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0));
    end(w, 4);
    const uint32_t bits[] = {1, 2, 3, 4};
    begin(w, 4, &word, FUTEX_WAIT_BITSET_PRIVATE, bits);
    SHOW("bit 2", futex(&word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, 2));
    SHOW("bit 8", futex(&word, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, 8));
    SHOW("any", futex(&word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0));
    end(w, 4);
}

static void requeueing(void) {
    struct waiter w[6];
    word = word2 = 1;
    begin(w, 6, &word, FUTEX_WAIT_PRIVATE, NULL);
    SHOW("wrong value", futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)9L, &word2, 2));
    SHOW("wake 1, move 3", futex(&word, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void *)3L, &word2, 1));
    SHOW("left", futex(&word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0));
    SHOW("moved, one", futex(&word2, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0));
    SHOW("requeue back", futex(&word2, FUTEX_REQUEUE_PRIVATE, 0, (void *)9L, &word, 0));
    SHOW("none there", futex(&word2, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0));
    SHOW("all here", futex(&word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0));
    end(w, 6);
    const struct { const char *name; int op, cmp; uint32_t arg, cmp_arg, before; } ops[] = {
        {"set, equal", FUTEX_OP_SET, FUTEX_OP_CMP_EQ, 7, 1, 1},  {"add, not equal", FUTEX_OP_ADD, FUTEX_OP_CMP_NE, 3, 1, 1},
        {"or, less", FUTEX_OP_OR, FUTEX_OP_CMP_LT, 6, 5, 1},     {"andn, greater", FUTEX_OP_ANDN, FUTEX_OP_CMP_GT, 1, 0, 3},
        {"xor, at most", FUTEX_OP_XOR, FUTEX_OP_CMP_LE, 5, 1, 1}, {"shifted, at least", FUTEX_OP_SET | FUTEX_OP_OPARG_SHIFT, FUTEX_OP_CMP_GE, 4, 1, 1},
    };
    for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
        word = 1;
        word2 = ops[i].before;
        struct waiter v[2];
        begin(w, 1, &word, FUTEX_WAIT_PRIVATE, NULL);
        begin(v, 1, &word2, FUTEX_WAIT_PRIVATE, NULL);
        SHOW(ops[i].name, futex(&word, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1L, &word2, FUTEX_OP(ops[i].op, ops[i].arg, ops[i].cmp, ops[i].cmp_arg)));
        printf("word is %u\n", word2);
        futex(&word2, FUTEX_WAKE_PRIVATE, 9, NULL, NULL, 0);
        end(w, 1);
        end(v, 1);
    }
}

static pthread_mutex_t robust;
static struct { struct robust_list_head head; struct { struct robust_list list; uint32_t word; } lock; } hand;

static void *die_with_lock(void *arg) {
    pthread_mutex_lock(&robust);
    return NULL;
}

static void *die_with_list(void *arg) {
    hand.head.list.next = &hand.lock.list;
    hand.lock.list.next = &hand.head.list;
    hand.head.futex_offset = sizeof(struct robust_list);
    syscall(SYS_set_robust_list, &hand.head, sizeof hand.head);
    hand.lock.word = syscall(SYS_gettid) | FUTEX_WAITERS;
    syscall(SYS_exit, 0);
    return NULL;
}

// Owners die just as others begin to wait: each death is seen once, and nobody waits for ever.
static pthread_mutex_t contended;
static int deaths;
static void *dies(void *start) {
    pthread_mutex_lock(&contended);
    pthread_barrier_wait(start);
    return NULL;
}
static void *wants(void *start) {
    pthread_barrier_wait(start);
    if (pthread_mutex_lock(&contended) == EOWNERDEAD) {
        deaths++;
        pthread_mutex_consistent(&contended);
    }
    pthread_mutex_unlock(&contended);
    return NULL;
}
static void dying_owners(void) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&contended, &attr);
    for (int round = 0; round < 200; round++) {
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, 3);
        pthread_t owner, others[2];
        pthread_create(&owner, NULL, dies, &start);
        for (int i = 0; i < 2; i++) pthread_create(&others[i], NULL, wants, &start);
        pthread_join(owner, NULL);
        for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
        pthread_barrier_destroy(&start);
    }
    printf("deaths seen: %d\n", deaths);
}

static void robustness(void) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attr);
    pthread_t t;
    pthread_create(&t, NULL, die_with_lock, NULL);
    pthread_join(t, NULL);
    printf("lock %s\n", strerror(pthread_mutex_lock(&robust)));
    pthread_mutex_consistent(&robust);
    pthread_mutex_unlock(&robust);
    printf("lock %s\n", strerror(pthread_mutex_lock(&robust)));
    pthread_create(&t, NULL, die_with_list, NULL);
    pthread_join(t, NULL);
    printf("word %#x\n", hand.lock.word);
    SHOW("wrong size", syscall(SYS_set_robust_list, &hand.head, 3));
}

static void sharing(void) {
    uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0) {
        while (shared[1] == 0) usleep(1000);
        usleep(50000);
        long woken = 0;
        shared[0] = 1;
        while (!(woken = futex(shared, FUTEX_WAKE, 1, NULL, NULL, 0))) usleep(1000);
        _exit(woken);
    }
    shared[1] = 1;
    while (shared[0] == 0) futex(shared, FUTEX_WAIT, 0, NULL, NULL, 0);
    int status;
    // The child may have found nobody, where the value changed before the wait.
    futex(shared, FUTEX_WAIT, 1, &(struct timespec){0, 200000000}, NULL, 0);
    wait(&status);
    printf("woken by child %d\n", WEXITSTATUS(status));
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_t *m = (void *)(shared + 16);
    pthread_mutex_init(m, &attr);
    if (fork() == 0) {
        pthread_mutex_lock(m);
        _exit(0);
    }
    wait(NULL);
    printf("owner of shared lock died: %s\n", strerror(pthread_mutex_lock(m)));
    pthread_mutex_consistent(m);
    pthread_mutex_unlock(m);
    for (int i = 0; i < 4; i++)
        if (fork() == 0) {
            for (int j = 0; j < 2000; j++) pthread_mutex_lock(m), shared[2]++, pthread_mutex_unlock(m);
            _exit(0);
        }
    while (wait(NULL) > 0) {}
    printf("count %u\n", shared[2]);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int turn, rounds;

static void *take_turns(void *arg) {
    int me = (int)(intptr_t)arg;
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&lock);
        while (turn != me) pthread_cond_wait(&cond, &lock);
        turn = (turn + 1) % 3;
        rounds++;
        pthread_cond_broadcast(&cond);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void *locker(void *arg) {
    pthread_barrier_wait(arg);
    for (int i = 0; i < 20000; i++) pthread_mutex_lock(&lock), rounds++, pthread_mutex_unlock(&lock);
    return NULL;
}

static void contention(void) {
    pthread_t t[8];
    for (intptr_t i = 0; i < 3; i++) pthread_create(&t[i], NULL, take_turns, (void *)i);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    printf("turns %d\n", rounds);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 8);
    rounds = 0;
    for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, locker, &barrier);
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    printf("locked %d\n", rounds);
}

int main(void) {
    SECTION(waiting);
    SECTION(waking);
    SECTION(requeueing);
    SECTION(robustness);
    SECTION(dying_owners);
    SECTION(sharing);
    SECTION(contention);
    return 0;
}
