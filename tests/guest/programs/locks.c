// File locks: POSIX, open file description, flock (fcntl(2), flock(2)).
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

static char name[] = "/tmp/guest-XXXXXX";

static int lock(int fd, int command, int type, long start, long len) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    return fcntl(fd, command, &l);
}
static void who(const char *what, int fd, int command, int type, long start, long len, pid_t parent) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    if (fcntl(fd, command, &l)) printf("%s: %s\n", what, strerror(errno));
    else printf("%s: type %d at %ld for %ld by %s\n", what, l.l_type, (long)l.l_start, (long)l.l_len, l.l_type == F_UNLCK ? "nobody" : l.l_pid == parent ? "parent" : l.l_pid == -1 ? "-1" : "?");
}

static void in_child(void (*what)(int, pid_t)) {
    pid_t parent = getpid();
    fflush(stdout);
    if (fork() == 0) {
        int fd = open(name, O_RDWR);
        what(fd, parent);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}

static void tries(int fd, pid_t parent) {
    SHOW("child: write 0-10", lock(fd, F_SETLK, F_WRLCK, 0, 10));
    SHOW("child: read 20-30", lock(fd, F_SETLK, F_RDLCK, 20, 10));
    SHOW("child: write 20-30", lock(fd, F_SETLK, F_WRLCK, 20, 10));
    SHOW("child: write 12-15", lock(fd, F_SETLK, F_WRLCK, 12, 3));
    who("child: who", fd, F_GETLK, F_WRLCK, 0, 0, parent);
    who("child: who at 11", fd, F_GETLK, F_WRLCK, 11, 5, parent);
    who("child: who at 15", fd, F_GETLK, F_RDLCK, 15, 10, parent);
}

static void posix(void) {
    int fd = open(name, O_RDWR);
    CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 10));
    CHECK(lock(fd, F_SETLK, F_RDLCK, 20, 10));
    in_child(tries);
    CHECK(lock(fd, F_SETLK, F_UNLCK, 3, 4));
    CHECK(lock(fd, F_SETLK, F_WRLCK, 25, 100));
    in_child(tries);
    close(open(name, O_RDONLY));
    printf("another descriptor was closed\n");
    in_child(tries);
    int ro = open(name, O_RDONLY);
    SHOW("write lock of read-only", lock(ro, F_SETLK, F_WRLCK, 0, 1));
    SHOW("bad type", lock(fd, F_SETLK, 9, 0, 1));
    SHOW("negative", lock(fd, F_SETLK, F_RDLCK, -5, 1));
    // A lock that is waited for.
    CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 1));
    int p[2];
    pipe(p);
    pid_t child = fork();
    if (child == 0) {
        int mine = open(name, O_RDWR);
        write(p[1], "x", 1);
        CHECK(lock(mine, F_SETLKW, F_WRLCK, 0, 1));
        _exit(5);
    }
    char c;
    read(p[0], &c, 1);
    usleep(30000);
    int status = 0;
    printf("waits %d\n", waitpid(child, &status, WNOHANG) == 0);
    CHECK(lock(fd, F_SETLK, F_UNLCK, 0, 1));
    waitpid(child, &status, 0);
    printf("got it %d\n", WEXITSTATUS(status));
    // Two that wait for each other.
    CHECK(lock(fd, F_SETLK, F_WRLCK, 0, 1));
    child = fork();
    if (child == 0) {
        int mine = open(name, O_RDWR);
        CHECK(lock(mine, F_SETLK, F_WRLCK, 1, 1));
        write(p[1], "x", 1);
        _exit(lock(mine, F_SETLKW, F_WRLCK, 0, 1) == 0 ? 6 : errno == EDEADLK ? 7 : 8);
    }
    read(p[0], &c, 1);
    usleep(30000);
    SHOW("deadlock", lock(fd, F_SETLKW, F_WRLCK, 1, 1));
    CHECK(lock(fd, F_SETLK, F_UNLCK, 0, 1));
    waitpid(child, &status, 0);
    printf("other %d\n", WEXITSTATUS(status));
    close(fd);
}

static void description_tries(int fd, pid_t parent) {
    SHOW("child: description", lock(fd, F_OFD_SETLK, F_WRLCK, 0, 10));
    SHOW("child: process", lock(fd, F_SETLK, F_WRLCK, 0, 10));
    who("child: who", fd, F_OFD_GETLK, F_WRLCK, 0, 0, parent);
}

static void descriptions(void) {
    int a = open(name, O_RDWR), b = open(name, O_RDWR), c = dup(a);
    CHECK(lock(a, F_OFD_SETLK, F_WRLCK, 0, 10));
    SHOW("other description", lock(b, F_OFD_SETLK, F_WRLCK, 5, 10));
    SHOW("same description", lock(c, F_OFD_SETLK, F_WRLCK, 5, 10));
    in_child(description_tries);
    close(a);
    SHOW("still held", lock(b, F_OFD_SETLK, F_WRLCK, 5, 10));
    close(c);
    SHOW("let go", lock(b, F_OFD_SETLK, F_WRLCK, 5, 10));
    struct flock l = {.l_type = F_RDLCK, .l_pid = 5};
    SHOW("with a pid", fcntl(b, F_OFD_SETLK, &l));
    close(b);
}

static void whole(void) {
    int a = open(name, O_RDONLY), b = open(name, O_RDONLY), c = dup(a);
    CHECK(flock(a, LOCK_SH));
    SHOW("two share", flock(b, LOCK_SH | LOCK_NB));
    SHOW("upgrade", flock(a, LOCK_EX | LOCK_NB));
    CHECK(flock(b, LOCK_UN));
    SHOW("upgrade", flock(c, LOCK_EX | LOCK_NB));
    SHOW("excluded", flock(b, LOCK_SH | LOCK_NB));
    SHOW("no relation", lock(b, F_SETLK, F_RDLCK, 0, 0));
    pid_t child = fork();
    if (child == 0) {
        int mine = open(name, O_RDONLY);
        _exit(flock(mine, LOCK_EX) == 0 ? 3 : 4);
    }
    usleep(20000);
    close(a);
    close(c);
    int status;
    // The child has the description as well, from the fork.
    usleep(20000);
    printf("child waits for itself %d\n", waitpid(child, &status, WNOHANG) == 0);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    SHOW("all gone", flock(b, LOCK_EX | LOCK_NB));
    SHOW("bad", flock(b, 0));
    close(b);
}

int main(void) {
    close(mkstemp(name));
    SECTION(posix);
    SECTION(descriptions);
    SECTION(whole);
    unlink(name);
    return 0;
}
