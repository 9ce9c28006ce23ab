// Readiness and time: pipes, FIFOs, eventfd, poll, select, epoll, timerfd, signalfd, clocks and sleeping.
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>

static int events(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI};
    poll(&p, 1, 0);
    return p.revents;
}

static int64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void pipes(void) {
    int p[2];
    char buf[70000];
    CHECK(pipe2(p, O_NONBLOCK | O_CLOEXEC));
    printf("fresh %#x %#x\n", events(p[0]), events(p[1]));
    SHOW("empty", read(p[0], buf, 1));
    memset(buf, 'x', sizeof buf);
    SHOW("more than fits", write(p[1], buf, sizeof buf));
    SHOW("full", write(p[1], buf, 1));
    printf("full %#x %#x\n", events(p[0]), events(p[1]));
    int n;
    ioctl(p[0], FIONREAD, &n);
    printf("FIONREAD %d\n", n);
    SHOW("read", read(p[0], buf, 100));
    SHOW("atomic write", write(p[1], buf, 200));
    SHOW("size", fcntl(p[0], F_GETPIPE_SZ));
    SHOW("set size", fcntl(p[0], F_SETPIPE_SZ, 200000));
    SHOW("too small", fcntl(p[0], F_SETPIPE_SZ, 4096));
    close(p[1]);
    printf("no writer %#x\n", events(p[0]));
    int total = 0, got;
    while ((got = read(p[0], buf, sizeof buf)) > 0) total += got;
    printf("drained %d, then %d\n", total, got);
    close(p[0]);
    pipe(p);
    close(p[0]);
    signal(SIGPIPE, SIG_IGN);
    printf("no reader %#x\n", events(p[1]));
    SHOW("EPIPE", write(p[1], "x", 1));
    SHOW("wrong end", read(p[1], buf, 1));
    close(p[1]);
    char dir[] = "/tmp/guest-XXXXXX", path[40];
    mkdtemp(dir);
    sprintf(path, "%s/fifo", dir);
    CHECK(mkfifo(path, 0644));
    SHOW("no reader", open(path, O_WRONLY | O_NONBLOCK));
    if (fork() == 0) {
        usleep(20000);
        int fd = open(path, O_WRONLY);
        write(fd, "through fifo", 12);
        _exit(0);
    }
    int fd = CHECK(open(path, O_RDONLY));
    SHOW("fifo", read(fd, buf, 100));
    wait(NULL);
    SHOW("end", read(fd, buf, 100));
    close(fd);
    unlink(path);
    rmdir(dir);
}

static void counters(void) {
    int e = CHECK(eventfd(3, EFD_NONBLOCK));
    uint64_t v = 0;
    printf("%#x\n", events(e));
    SHOW("read", read(e, &v, 8));
    printf("value %lu, then %#x\n", v, events(e));
    SHOW("empty", read(e, &v, 8));
    v = UINT64_MAX - 1;
    SHOW("most", write(e, &v, 8));
    printf("%#x\n", events(e));
    v = 1;
    SHOW("too much", write(e, &v, 8));
    SHOW("short", write(e, &v, 4));
    v = UINT64_MAX;
    SHOW("impossible", write(e, &v, 8));
    e = CHECK(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK));
    for (int i = 0; i < 3; i++) SHOW("semaphore", read(e, &v, 8));
}

static void *later(void *arg) {
    usleep(30000);
    write(*(int *)arg, "x", 1);
    return NULL;
}

static void waiting(void) {
    int p[2], q[2];
    pipe(p);
    pipe(q);
    pthread_t t;
    struct pollfd fds[4] = {{p[0], POLLIN, 0}, {q[0], POLLIN, 0}, {-1, POLLIN, 0}, {999, POLLIN, 0}};
    SHOW("invalid", poll(fds, 4, 0));
    printf("%#x %#x\n", fds[2].revents, fds[3].revents);
    int64_t start = now(CLOCK_MONOTONIC);
    SHOW("poll timeout", poll(fds, 2, 30));
    printf("waited %d\n", now(CLOCK_MONOTONIC) - start >= 30000000);
    pthread_create(&t, NULL, later, &q[1]);
    SHOW("poll", poll(fds, 2, -1));
    printf("%#x %#x\n", fds[0].revents, fds[1].revents);
    pthread_join(t, NULL);
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(p[0], &r);
    FD_SET(q[0], &r);
    FD_SET(p[1], &w);
    SHOW("select", select(q[1] + 1, &r, &w, NULL, NULL));
    printf("%d %d %d\n", !!FD_ISSET(p[0], &r), !!FD_ISSET(q[0], &r), !!FD_ISSET(p[1], &w));
    FD_ZERO(&r);
    FD_SET(p[0], &r);
    SHOW("select timeout", select(p[0] + 1, &r, NULL, NULL, &(struct timeval){0, 20000}));
    FD_SET(900, &r);
    SHOW("select bad", select(901, &r, NULL, NULL, &(struct timeval){0, 0}));
    int e = CHECK(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event ev = {EPOLLIN, {.u64 = 1}}, out[8];
    CHECK(epoll_ctl(e, EPOLL_CTL_ADD, q[0], &ev));
    SHOW("again", epoll_ctl(e, EPOLL_CTL_ADD, q[0], &ev));
    SHOW("unknown", epoll_ctl(e, EPOLL_CTL_MOD, p[0], &ev));
    SHOW("itself", epoll_ctl(e, EPOLL_CTL_ADD, e, &ev));
    int file = open("/etc/passwd", O_RDONLY);
    SHOW("regular file", epoll_ctl(e, EPOLL_CTL_ADD, file, &ev));
    for (int i = 0; i < 2; i++) SHOW("level", epoll_wait(e, out, 8, 0));
    ev.events = EPOLLIN | EPOLLET;
    CHECK(epoll_ctl(e, EPOLL_CTL_MOD, q[0], &ev));
    for (int i = 0; i < 2; i++) SHOW("edge", epoll_wait(e, out, 8, 0));
    write(q[1], "y", 1);
    for (int i = 0; i < 2; i++) SHOW("new edge", epoll_wait(e, out, 8, 0));
    ev.events = EPOLLIN | EPOLLONESHOT;
    CHECK(epoll_ctl(e, EPOLL_CTL_MOD, q[0], &ev));
    for (int i = 0; i < 2; i++) SHOW("one shot", epoll_wait(e, out, 8, 0));
    int outer = CHECK(epoll_create1(0));
    ev.events = EPOLLIN;
    CHECK(epoll_ctl(e, EPOLL_CTL_MOD, q[0], &ev));
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, e, &ev));
    SHOW("nested", epoll_wait(outer, out, 8, 0));
    SHOW("circle", epoll_ctl(e, EPOLL_CTL_ADD, outer, &ev));
    close(q[0]);
    SHOW("closed", epoll_wait(e, out, 8, 0));
    CHECK(epoll_ctl(e, EPOLL_CTL_ADD, p[0], &ev));
    pthread_create(&t, NULL, later, &p[1]);
    SHOW("epoll", epoll_wait(e, out, 8, 5000));
    pthread_join(t, NULL);
    SHOW("no room", epoll_wait(e, out, 0, 0));
}

static void timers(void) {
    int t = CHECK(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    uint64_t n = 0;
    struct itimerspec s = {{0, 0}, {0, 20000000}}, old;
    CHECK(timerfd_settime(t, 0, &s, NULL));
    SHOW("early", read(t, &n, 8));
    CHECK(timerfd_gettime(t, &old));
    printf("left %d\n", old.it_value.tv_sec == 0 && old.it_value.tv_nsec > 0);
    struct pollfd p = {t, POLLIN, 0};
    SHOW("poll", poll(&p, 1, 1000));
    SHOW("read", read(t, &n, 8));
    printf("expired %lu\n", n);
    s.it_interval.tv_nsec = 10000000;
    s.it_value.tv_nsec = 10000000;
    CHECK(timerfd_settime(t, 0, &s, NULL));
    usleep(55000);
    SHOW("read", read(t, &n, 8));
    printf("several %d\n", n >= 4);
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    s = (struct itimerspec){{0, 0}, at};
    CHECK(timerfd_settime(t, TFD_TIMER_ABSTIME, &s, NULL));
    SHOW("past", poll(&p, 1, 1000));
    s = (struct itimerspec){{0, 0}, {0, 0}};
    CHECK(timerfd_settime(t, 0, &s, NULL));
    SHOW("disarmed", poll(&p, 1, 10));
    SHOW("bad clock", timerfd_create(99, 0));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int f = CHECK(signalfd(-1, &set, SFD_NONBLOCK));
    struct signalfd_siginfo info[2];
    SHOW("no signal", read(f, info, sizeof info));
    kill(getpid(), SIGUSR1);
    sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42});
    printf("%#x\n", events(f));
    SHOW("signals", read(f, info, sizeof info) / sizeof *info);
    printf("%d %d, %d %d\n", info[0].ssi_signo, info[0].ssi_pid == getpid(), info[1].ssi_signo, info[1].ssi_int);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    timer_t posix;
    signal(SIGALRM, SIG_IGN);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2, .sigev_value.sival_int = 5};
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    SHOW("timer_create", timer_create(CLOCK_MONOTONIC, &event, &posix));
    s = (struct itimerspec){{0, 0}, {0, 10000000}};
    SHOW("timer_settime", timer_settime(posix, 0, &s, NULL));
    siginfo_t got;
    SHOW("sigtimedwait", sigtimedwait(&set, &got, &(struct timespec){1, 0}));
    printf("code %d value %d\n", got.si_code, got.si_value.sival_int);
    SHOW("timer_delete", timer_delete(posix));
}

static void clocks(void) {
    const clockid_t all[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, CLOCK_MONOTONIC_RAW, CLOCK_REALTIME_COARSE, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t a = now(all[i]);
        for (volatile int j = 0; j < 20000000; j++) {}
        printf("clock %d moves %d\n", all[i], now(all[i]) > a);
    }
    SHOW("bad clock", clock_gettime(77, &(struct timespec){0}));
    int64_t a = now(CLOCK_MONOTONIC);
    SHOW("nanosleep", nanosleep(&(struct timespec){0, 20000000}, NULL));
    int64_t b = now(CLOCK_MONOTONIC) - a;
    printf("slept %d\n", b >= 20000000 && b < 2000000000);
    SHOW("bad time", nanosleep(&(struct timespec){0, 1000000000}, NULL));
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec--;
    SHOW("past", clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL));
    printf("vdso and call agree %d\n", llabs(time(NULL) - now(CLOCK_REALTIME) / 1000000000) <= 1);
    int64_t last = 0;
    int back = 0;
    for (int i = 0; i < 100000; i++) {
        int64_t at = now(CLOCK_MONOTONIC);
        back += at < last;
        last = at;
    }
    printf("never back %d\n", back == 0);
}

int main(void) {
    SECTION(pipes);
    SECTION(counters);
    SECTION(waiting);
    SECTION(timers);
    SECTION(clocks);
    return 0;
}
