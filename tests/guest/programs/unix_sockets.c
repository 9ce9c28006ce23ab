// UNIX sockets: streams, datagrams and packets, names, descriptors and credentials that go along, ends and errors.
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

static socklen_t address(struct sockaddr_un *to, const char *name, int abstract) {
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    strcpy(to->sun_path + abstract, name);
    return offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name) + (abstract ? 0 : 1);
}

static void show_address(const char *what, struct sockaddr_un *a, socklen_t len) {
    printf("%s: len %d", what, (int)len);
    for (socklen_t i = offsetof(struct sockaddr_un, sun_path); i < len; i++) {
        char c = a->sun_path[i - offsetof(struct sockaddr_un, sun_path)];
        printf("%s", c ? (char[]){' ', c, 0} : " \\0");
    }
    printf("\n");
}

static int events(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP | POLLRDNORM | POLLWRNORM};
    poll(&p, 1, 0);
    return p.revents;
}

static int send_fds(int to, const int *fds, int count, const char *text, int len) {
    union { char bytes[CMSG_SPACE(sizeof(int) * 253)]; struct cmsghdr align; } control;
    struct iovec iov = {(void *)text, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * count);
    return sendmsg(to, &m, 0);
}

static int recv_fds(int from, int *fds, int room, char *text, int size, int flags) {
    union { char bytes[CMSG_SPACE(sizeof(int) * 253)]; struct cmsghdr align; } control;
    struct iovec iov = {text, size};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int) * room)};
    int got = recvmsg(from, &m, flags);
    int count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); got >= 0 && c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_type == SCM_RIGHTS) {
            count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(fds, CMSG_DATA(c), count * sizeof(int));
        }
    }
    printf("recv_fds: %d bytes, %d fds, flags %#x\n", got, count, m.msg_flags);
    return count;
}

static void streams(void) {
    int s[2];
    char buf[64];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
    printf("fresh %#x %#x\n", events(s[0]), events(s[1]));
    printf("write %d\n", (int)write(s[0], "hello", 5));
    printf("write %d\n", (int)write(s[0], "world", 5));
    printf("events %#x\n", events(s[1]));
    int n = 0;
    CHECK(ioctl(s[1], FIONREAD, &n));
    printf("FIONREAD %d\n", n);
    SHOW("peek", recv(s[1], buf, 7, MSG_PEEK));
    SHOW("read", read(s[1], buf, 7));
    printf("%.7s\n", buf);
    printf("waitall+dontwait %d\n", (int)recv(s[1], buf, 7, MSG_WAITALL | MSG_DONTWAIT));
    SHOW("empty", recv(s[1], buf, 7, MSG_DONTWAIT));
    CHECK(shutdown(s[0], SHUT_WR));
    printf("half %#x %#x\n", events(s[0]), events(s[1]));
    printf("eof %d\n", (int)read(s[1], buf, 7));
    printf("back %d\n", (int)write(s[1], "x", 1));
    printf("got %d\n", (int)read(s[0], buf, 7));
    signal(SIGPIPE, SIG_IGN);
    SHOW("epipe", write(s[0], "x", 1));
    write(s[1], "unread", 6);
    close(s[0]);
    int error = -1;
    socklen_t len = sizeof error;
    printf("closed %#x\n", events(s[1]));
    CHECK(getsockopt(s[1], SOL_SOCKET, SO_ERROR, &error, &len));
    printf("error %s, then %#x\n", strerror(error), events(s[1]));
    SHOW("write", send(s[1], "x", 1, MSG_NOSIGNAL));
    close(s[1]);
}

static void *reader(void *arg) {
    int fd = *(int *)arg;
    unsigned char buf[7001];
    unsigned long sum = 0, total = 0;
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0; total += n)
        for (ssize_t i = 0; i < n; i++) sum = sum * 31 + buf[i];
    printf("total %lu sum %lx\n", total, sum);
    return NULL;
}

static void bulk(void) {
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    pthread_t t;
    pthread_create(&t, NULL, reader, &s[1]);
    static unsigned char data[3 << 20];
    for (size_t i = 0; i < sizeof data; i++) data[i] = i * 7 + (i >> 9);
    printf("bulk write %zd\n", write(s[0], data, sizeof data));
    printf("bulk send %zd\n", send(s[0], data, 1 << 20, 0));
    close(s[0]);
    pthread_join(t, NULL);
    close(s[1]);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    int count = 0;
    while (send(s[0], data, 65536, MSG_DONTWAIT) > 0) count++;
    printf("full: %s, some %d, writable %d\n", strerror(errno), count > 0, !!(events(s[0]) & POLLOUT));
    while (recv(s[1], data, 65536, MSG_DONTWAIT) > 0) {}
    printf("drained: writable %d\n", !!(events(s[0]) & POLLOUT));
    if (fork() == 0) {
        usleep(20000);
        send(s[0], "123", 3, 0);
        usleep(20000);
        send(s[0], "45678", 5, 0);
        _exit(0);
    }
    printf("waitall %zd\n", recv(s[1], data, 8, MSG_WAITALL));
    wait(NULL);
    struct timeval tv = {0, 30000};
    CHECK(setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
    SHOW("timeout", recv(s[1], data, 8, 0));
    close(s[0]);
    close(s[1]);
}

static void names(void) {
    char dir[] = "/tmp/guest-XXXXXX", path[64];
    mkdtemp(dir);
    sprintf(path, "%s/s", dir);
    struct sockaddr_un a, b;
    socklen_t len = address(&a, path, 0), blen = sizeof b;
    int l = CHECK(socket(AF_UNIX, SOCK_STREAM, 0));
    printf("unbound %#x\n", events(l));
    SHOW("listen unbound", listen(l, 1));
    int c = CHECK(socket(AF_UNIX, SOCK_STREAM, 0));
    SHOW("nobody", connect(c, (void *)&a, len));
    CHECK(bind(l, (void *)&a, len));
    struct stat st;
    CHECK(stat(path, &st));
    printf("is socket %d\n", S_ISSOCK(st.st_mode));
    SHOW("twice", bind(l, (void *)&a, len));
    int other = CHECK(socket(AF_UNIX, SOCK_STREAM, 0));
    SHOW("in use", bind(other, (void *)&a, len));
    SHOW("not listening", connect(c, (void *)&a, len));
    CHECK(listen(l, 1));
    printf("listening %#x\n", events(l));
    int on = 0;
    socklen_t olen = sizeof on;
    CHECK(getsockopt(l, SOL_SOCKET, SO_ACCEPTCONN, &on, &olen));
    printf("ACCEPTCONN %d\n", on);
    CHECK(connect(c, (void *)&a, len));
    SHOW("again", connect(c, (void *)&a, len));
    int more[8], queued = 0;
    for (int i = 0; i < 8; i++) {
        more[i] = CHECK(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
        if (connect(more[i], (void *)&a, len) == 0) queued++;
        else if (i == queued) printf("backlog: %s\n", strerror(errno));
    }
    printf("queued %d, pending %#x\n", queued, events(l));
    write(c, "early", 5);
    int s = CHECK(accept4(l, (void *)&b, &blen, SOCK_CLOEXEC));
    printf("cloexec %d\n", fcntl(s, F_GETFD));
    char buf[16];
    printf("early %zd\n", read(s, buf, sizeof buf));
    blen = sizeof b;
    CHECK(getsockname(s, (void *)&b, &blen));
    printf("own name same %d\n", blen == len && !memcmp(&a, &b, len));
    blen = sizeof b;
    CHECK(getpeername(c, (void *)&b, &blen));
    printf("peer name same %d\n", blen == len && !memcmp(&a, &b, len));
    blen = sizeof b;
    CHECK(getpeername(s, (void *)&b, &blen));
    show_address("unnamed peer", &b, blen);
    struct ucred u;
    olen = sizeof u;
    CHECK(getsockopt(c, SOL_SOCKET, SO_PEERCRED, &u, &olen));
    printf("peer %d %d %d\n", u.pid == getpid(), u.uid, u.gid);
    close(l);
    SHOW("waiting one", read(more[0], buf, 1));
    SHOW("gone", connect(other, (void *)&a, len));
    unlink(path);
    len = address(&a, "guest-abstract", 1);
    l = CHECK(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    CHECK(bind(l, (void *)&a, len));
    CHECK(listen(l, 5));
    SHOW("wrong type", connect(other, (void *)&a, len));
    int p = CHECK(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    if (fork() == 0) {
        int q = accept(l, NULL, NULL);
        write(q, "first", 5);
        write(q, "second packet", 13);
        write(q, "", 0);
        _exit(0);
    }
    CHECK(connect(p, (void *)&a, len));
    wait(NULL);
    blen = sizeof b;
    CHECK(getpeername(p, (void *)&b, &blen));
    show_address("peer", &b, blen);
    printf("packet %zd\n", recv(p, buf, 16, 0));
    printf("cut %zd\n", recv(p, buf, 6, MSG_TRUNC));
    printf("empty %zd\n", recv(p, buf, 6, 0));
    printf("end %zd\n", recv(p, buf, 6, 0));
    int any = CHECK(socket(AF_UNIX, SOCK_DGRAM, 0));
    a.sun_family = AF_UNIX;
    CHECK(bind(any, (void *)&a, sizeof a.sun_family));
    blen = sizeof b;
    CHECK(getsockname(any, (void *)&b, &blen));
    printf("autobind len %d\n", blen);
    rmdir(dir);
}

static void datagrams(void) {
    struct sockaddr_un a, b, from;
    socklen_t alen = address(&a, "guest-dgram-a", 1), blen = address(&b, "guest-dgram-b", 1), flen = sizeof from;
    int x = CHECK(socket(AF_UNIX, SOCK_DGRAM, 0)), y = CHECK(socket(AF_UNIX, SOCK_DGRAM, 0));
    CHECK(bind(x, (void *)&a, alen));
    CHECK(bind(y, (void *)&b, blen));
    SHOW("no peer", send(x, "1", 1, 0));
    printf("sent %zd\n", sendto(x, "to b", 4, 0, (void *)&b, blen));
    char buf[32];
    printf("peek %zd\n", recv(y, buf, 2, MSG_PEEK | MSG_TRUNC));
    printf("got %zd\n", recvfrom(y, buf, sizeof buf, 0, (void *)&from, &flen));
    show_address("from", &from, flen);
    CHECK(connect(x, (void *)&b, blen));
    CHECK(connect(y, (void *)&a, alen));
    int z = CHECK(socket(AF_UNIX, SOCK_DGRAM, 0));
    SHOW("not the peer", sendto(z, "x", 1, 0, (void *)&b, blen));
    SHOW("nobody", connect(z, (void *)&a, alen - 1));
    int count = 0;
    while (send(x, "m", 1, MSG_DONTWAIT) == 1) count++;
    printf("queue %d, %s", count > 4, strerror(errno));
    printf(", writable %d\n", !!(events(x) & POLLOUT));
    while (recv(y, buf, 1, MSG_DONTWAIT) == 1) {}
    printf("events %#x\n", events(x));
    struct mmsghdr m[3] = {0};
    struct iovec iov[3] = {{"one", 3}, {"two22", 5}, {"three", 5}};
    for (int i = 0; i < 3; i++) m[i].msg_hdr.msg_iov = &iov[i], m[i].msg_hdr.msg_iovlen = 1;
    SHOW("sendmmsg", sendmmsg(x, m, 3, 0));
    printf("%d %d %d\n", m[0].msg_len, m[1].msg_len, m[2].msg_len);
    char in[4][8] = {0};
    struct mmsghdr r[4] = {0};
    struct iovec riov[4];
    for (int i = 0; i < 4; i++) riov[i] = (struct iovec){in[i], 4}, r[i].msg_hdr.msg_iov = &riov[i], r[i].msg_hdr.msg_iovlen = 1;
    int got = recvmmsg(y, r, 4, MSG_WAITFORONE, NULL);
    printf("recvmmsg %d:", got);
    for (int i = 0; i < got; i++) printf(" %d %#x %.4s", r[i].msg_len, r[i].msg_hdr.msg_flags, in[i]);
    printf("\n");
    static char big[400000];
    SHOW("big", send(x, big, sizeof big, 0));
    close(y);
    SHOW("refused", send(x, "m", 1, 0));
    close(x);
    close(z);
}

static void rights(void) {
    int s[2], p[2], in[8];
    char buf[8];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    CHECK(pipe(p));
    printf("plain %zd\n", send(s[0], "ab", 2, 0));
    printf("send %d\n", send_fds(s[0], (int[]){p[0], p[1]}, 2, "cd", 2));
    printf("plain %zd\n", send(s[0], "ef", 2, 0));
    int n = recv_fds(s[1], in, 4, buf, 8, MSG_CMSG_CLOEXEC);
    printf("cloexec %d\n", fcntl(in[0], F_GETFD));
    write(in[1], "through", 7);
    printf("pipe %zd\n", read(p[0], buf, 8));
    for (int i = 0; i < n; i++) close(in[i]);
    recv_fds(s[1], in, 4, buf, 8, 0);
    send_fds(s[0], (int[]){p[0], p[1], p[0]}, 3, "x", 1);
    n = recv_fds(s[1], in, 1, buf, 8, 0);
    for (int i = 0; i < n; i++) close(in[i]);
    send_fds(s[0], (int[]){p[0]}, 1, "x", 1);
    printf("read drops them %zd\n", read(s[1], buf, 8));
    SHOW("bad fd", send_fds(s[0], (int[]){999}, 1, "x", 1));
    send_fds(s[0], (int[]){p[1]}, 1, "x", 1);
    close(p[1]);
    struct pollfd pp = {p[0], POLLIN, 0};
    poll(&pp, 1, 0);
    printf("in flight keeps it open: %#x\n", pp.revents);
    close(s[0]);
    close(s[1]);
    poll(&pp, 1, 100);
    printf("then gone: %#x\n", pp.revents);
    // A socket in its own inbox, which holds a pipe's end too.
    CHECK(pipe(p));
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    send_fds(s[0], (int[]){s[1], s[0], p[1]}, 3, "x", 1);
    send_fds(s[1], (int[]){s[1], s[0], p[1]}, 3, "x", 1);
    close(p[1]);
    close(s[0]);
    close(s[1]);
    pp = (struct pollfd){p[0], POLLIN, 0};
    int dead = 0;
    for (int i = 0; i < 100 && !dead; i++) {
        // Linux looks for such cycles now and then: when another socket is closed.
        int t[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, t));
        close(t[0]);
        close(t[1]);
        poll(&pp, 1, 20);
        dead = pp.revents & POLLHUP;
    }
    printf("cycle gone: %#x\n", dead);
}

static void credentials(void) {
    int s[2], on = 1;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    CHECK(setsockopt(s[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    pid_t child = fork();
    if (child == 0) {
        send(s[0], "from child", 10, 0);
        _exit(0);
    }
    wait(NULL);
    send(s[0], "from parent", 11, 0);
    for (int i = 0; i < 2; i++) {
        char buf[64];
        union { char bytes[CMSG_SPACE(sizeof(struct ucred))]; struct cmsghdr align; } control;
        struct iovec iov = {buf, sizeof buf};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        int n = recvmsg(s[1], &m, 0);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        struct ucred u = {0};
        if (c) memcpy(&u, CMSG_DATA(c), sizeof u);
        printf("%d bytes, type %d, pid %s, uid %d\n", n, c ? c->cmsg_type : -1, u.pid == child ? "child" : u.pid == getpid() ? "parent" : "?", u.uid);
    }
    int type = 0;
    socklen_t len = sizeof type;
    for (int i = 0; i < 3; i++) {
        int option = (int[]){SO_TYPE, SO_DOMAIN, SO_PROTOCOL}[i];
        CHECK(getsockopt(s[0], SOL_SOCKET, option, &type, &len));
        printf("option %d: %d\n", option, type);
    }
    int size = 10000;
    CHECK(setsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    CHECK(getsockopt(s[0], SOL_SOCKET, SO_SNDBUF, &size, &len));
    printf("SNDBUF %d\n", size);
    SHOW("unknown option", setsockopt(s[0], SOL_SOCKET, 9999, &size, sizeof size));
    SHOW("not a socket", listen(1, 1));
    SHOW("family", socket(100, SOCK_STREAM, 0));
    SHOW("type", socket(AF_UNIX, 9, 0));
    SHOW("protocol", socket(AF_UNIX, SOCK_STREAM, 7));
}

static volatile int pipes;
static void on_pipe(int signal) { pipes++; }

// read and write are recvmsg and sendmsg of the bytes alone: the writer's credentials go along, and time limits hold.
static void plain_calls(void) {
    int s[2], on = 1;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    CHECK(setsockopt(s[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(setgid(1001));
        CHECK(setuid(1000));
        CHECK(write(s[1], "w", 1));
        struct iovec v[2] = {{"x", 1}, {"y", 1}};
        CHECK(writev(s[1], v, 2));
        exit(0);
    }
    waitpid(child, NULL, 0);
    for (int i = 0; i < 2; i++) {
        char bytes[8], control[CMSG_SPACE(sizeof(struct ucred))];
        struct iovec v = {bytes, sizeof bytes};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t got = CHECK(recvmsg(s[0], &m, 0));
        struct ucred *creds = (void *)CMSG_DATA(CMSG_FIRSTHDR(&m));
        printf("%zd bytes from the writer %d, uid %d, gid %d\n", got, creds->pid == child, creds->uid, creds->gid);
    }
    CHECK(write(s[1], "p", 1));
    char byte[4];
    struct iovec none = {byte, 0};
    SHOW("read of nothing", read(s[0], byte, 0));
    SHOW("readv of nothing", readv(s[0], &none, 1));
    SHOW("the packet is there", read(s[0], byte, 4));
    SHOW("pread", pread(s[0], byte, 1, 0));
    SHOW("pwrite", pwrite(s[0], byte, 1, 0));
    close(s[0]), close(s[1]);
    for (int kind = 0; kind < 2; kind++) {
        CHECK(socketpair(AF_UNIX, kind ? SOCK_STREAM : SOCK_DGRAM, 0, s));
        struct timeval tv = {0, 60000};
        CHECK(setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
        CHECK(setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv));
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        SHOW("read in time", read(s[0], byte, 1));
        static char much[4 << 20];
        ssize_t wrote = 0;
        for (int i = 0; i < 100000 && (wrote = write(s[0], much, kind ? sizeof much : 1000)) == 1000; i++);
        printf("write in time: %d %s\n", kind ? wrote > 0 && wrote < (ssize_t)sizeof much : wrote == -1, kind ? "" : strerror(errno));
        if (kind) SHOW("write of more", write(s[0], much, 1));
        clock_gettime(CLOCK_MONOTONIC, &b);
        long ms = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
        printf("took its time: %d\n", ms >= 110 && ms < 5000);
        close(s[0]), close(s[1]);
    }
    pipes = 0;
    signal(SIGPIPE, on_pipe);
    for (int kind = 0; kind < 2; kind++) {
        CHECK(socketpair(AF_UNIX, kind ? SOCK_STREAM : SOCK_DGRAM, 0, s));
        close(s[1]);
        SHOW("write to nobody", write(s[0], "x", 1));
        printf("signals: %d\n", pipes);
        close(s[0]);
    }
    signal(SIGPIPE, SIG_DFL);
}

static void readiness(void) {
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s));
    int e = CHECK(epoll_create1(0)), count;
    struct epoll_event ev = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = s[1]}}, out[4];
    CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s[1], &ev));
    count = epoll_wait(e, out, 4, 0), printf("epoll %d %#x\n", count, out[0].events);
    printf("epoll %d\n", epoll_wait(e, out, 4, 0));
    write(s[0], "x", 1);
    count = epoll_wait(e, out, 4, 0), printf("epoll %d %#x\n", count, out[0].events);
    write(s[0], "x", 1);
    count = epoll_wait(e, out, 4, 0), printf("epoll %d %#x\n", count, out[0].events);
    close(s[0]);
    count = epoll_wait(e, out, 4, 100), printf("epoll %d %#x\n", count, out[0].events);
    signal(SIGPIPE, on_pipe);
    write(s[1], "x", 1);
    send(s[1], "x", 1, 0);
    send(s[1], "x", 1, MSG_NOSIGNAL);
    printf("SIGPIPE %d\n", pipes);
}

int main(void) {
    SECTION(streams);
    SECTION(bulk);
    SECTION(names);
    SECTION(datagrams);
    SECTION(rights);
    SECTION(credentials);
    SECTION(plain_calls);
    SECTION(readiness);
    return 0;
}
