// /proc/PID/ns, and the one kind of namespace that a guest can make: UTS.
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define NS_GET_NSTYPE 0xb703
static const char *KINDS[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts"};
#define COUNT (sizeof KINDS / sizeof *KINDS)

static void identity(const char *of, const char *kind, char *to, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/%s", of, kind);
    ssize_t len = CHECK(readlink(path, to, size - 1));
    to[len > 0 ? len : 0] = 0;
}

// Each link is KIND:[INODE], and leads to a file with that inode.
static void links(void) {
    for (unsigned i = 0; i < COUNT; i++) {
        char text[64], again[64], path[64], kind[32] = "";
        unsigned long long number = 0;
        struct stat st = {0}, link = {0};
        identity("self", KINDS[i], text, sizeof text);
        identity("thread-self", KINDS[i], again, sizeof again);
        sscanf(text, "%31[^:]:[%llu]", kind, &number);
        snprintf(path, sizeof path, "/proc/self/ns/%s", KINDS[i]);
        CHECK(stat(path, &st));
        CHECK(lstat(path, &link));
        printf("%s %s: same for the thread %d, inode %d, large %d, mode %o, link %d\n", KINDS[i], kind, !strcmp(text, again), st.st_ino == number,
               number >= 4026531800, st.st_mode, S_ISLNK(link.st_mode));
    }
}

// All differ from each other, and a child has the same.
static void shared(void) {
    char own[COUNT][64];
    int equal = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        identity("self", KINDS[i], own[i], sizeof own[i]);
        for (unsigned j = 0; j < i; j++) equal += !strcmp(own[i], own[j]);
    }
    printf("equal pairs: %d\n", equal);
    fflush(stdout);
    if (fork() == 0) {
        int same = 0;
        for (unsigned i = 0; i < COUNT; i++) {
            char text[64];
            identity("self", KINDS[i], text, sizeof text);
            same += !strcmp(text, own[i]);
        }
        printf("a child has %d of %zu\n", same, COUNT);
        exit(0);
    }
    wait(NULL);
}

static void files(void) {
    char byte;
    int fd = CHECK(open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC));
    SHOW("read", read(fd, &byte, 1));
    SHOW("ioctl type", ioctl(fd, NS_GET_NSTYPE));
    SHOW("ioctl other", ioctl(fd, 0xb77f));
    SHOW("open to write", open("/proc/self/ns/uts", O_WRONLY));
    SHOW("open nothing", open("/proc/self/ns/none", O_RDONLY));
    SHOW("setns of the wrong kind", setns(fd, CLONE_NEWNET));
    SHOW("setns", setns(fd, CLONE_NEWUTS));
    SHOW("setns of any kind", setns(fd, 0));
    close(fd);
    SHOW("setns of a closed file", setns(fd, 0));
    fd = CHECK(open("/dev/null", O_RDONLY));
    SHOW("setns of another file", setns(fd, 0));
    close(fd);
    fd = CHECK(open("/proc/self/ns/net", O_RDONLY));
    SHOW("setns into the own network", setns(fd, CLONE_NEWNET));
    close(fd);
    fd = CHECK(open("/proc/self/ns/user", O_RDONLY));
    SHOW("setns into the own users", setns(fd, CLONE_NEWUSER));
    close(fd);
}

static void name(const char *who) {
    struct utsname names;
    char text[70] = "";
    uname(&names);
    int fd = open("/proc/sys/kernel/hostname", O_RDONLY);
    if (fd >= 0) read(fd, text, sizeof text - 1), close(fd);
    text[strcspn(text, "\n")] = 0;
    printf("%s: %s, domain %s, procfs agrees %d\n", who, names.nodename, names.domainname, !strcmp(text, names.nodename));
    fflush(stdout);
}

static void *thread(void *unused) {
    CHECK(unshare(CLONE_NEWUTS));
    CHECK(sethostname("thread", 6));
    name("a thread");
    return unused;
}

// Names of a UTS namespace are its own; one that is held by a file can be entered again.
static void names(void) {
    char before[64], after[64];
    identity("self", "uts", before, sizeof before);
    int outer = CHECK(open("/proc/self/ns/uts", O_RDONLY));
    CHECK(unshare(CLONE_NEWUTS));
    identity("self", "uts", after, sizeof after);
    printf("another namespace: %d\n", strcmp(before, after) != 0);
    CHECK(sethostname("inner", 5));
    CHECK(setdomainname("domain", 6));
    name("unshared");
    fflush(stdout);
    if (fork() == 0) {
        name("a child");
        char text[64];
        identity("self", "uts", text, sizeof text);
        printf("shared with its parent: %d\n", !strcmp(text, after));
        CHECK(sethostname("child", 5));
        exit(0);
    }
    wait(NULL);
    name("changed by a child");
    fflush(stdout);
    pid_t cloned = CHECK(syscall(SYS_clone, CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0));
    if (cloned == 0) {
        CHECK(sethostname("cloned", 6));
        name("cloned");
        char text[64], parent[16];
        identity("self", "uts", text, sizeof text);
        printf("shared with its parent: %d\n", !strcmp(text, after));
        // Into the parent's, by way of its file.
        snprintf(parent, sizeof parent, "/proc/%d", getppid());
        char path[32];
        snprintf(path, sizeof path, "%s/ns/uts", parent);
        int fd = CHECK(open(path, O_RDONLY));
        CHECK(setns(fd, CLONE_NEWUTS));
        name("cloned, back");
        exit(0);
    }
    waitpid(cloned, NULL, 0);
    name("after it");
    pthread_t t;
    pthread_create(&t, NULL, thread, NULL);
    pthread_join(t, NULL);
    name("after the thread");
    CHECK(setns(outer, CLONE_NEWUTS));
    identity("self", "uts", after, sizeof after);
    printf("back: %d\n", !strcmp(before, after));
    close(outer);
}

static void refused(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int fd = open("/proc/self/ns/uts", O_RDONLY);
        CHECK(setuid(1000));
        SHOW("unshare without the capability", unshare(CLONE_NEWUTS));
        SHOW("clone without the capability", syscall(SYS_clone, CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0));
        SHOW("setns without the capability", setns(fd, CLONE_NEWUTS));
        SHOW("a name without the capability", sethostname("x", 1));
        exit(0);
    }
    waitpid(child, NULL, 0);
    SHOW("unshare of what there is not", unshare(1));
}

int main(void) {
    SECTION(links);
    SECTION(shared);
    SECTION(files);
    SECTION(names);
    SECTION(refused);
    return 0;
}
