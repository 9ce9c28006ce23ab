// ETXTBSY: a program that runs can't be written, one that is open for writing can't be run.
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char place[64], script[80];
extern char **environ;

static void copy(const char *from, int to) {
    static char buffer[1 << 16];
    int fd = CHECK(open(from, O_RDONLY));
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) CHECK(write(to, buffer, got));
    close(fd);
}

// What running a program comes to: its exit code, or the error as 1000 and more.
static int runs(const char *path, const char *argument) {
    fflush(stdout);
    int ends[2], error = 0, status = 0;
    CHECK(pipe2(ends, O_CLOEXEC));
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {(char *)path, (char *)argument, NULL};
        execve(path, argv, environ);
        error = errno;
        write(ends[1], &error, sizeof error);
        _exit(1);
    }
    close(ends[1]);
    read(ends[0], &error, sizeof error);
    close(ends[0]);
    waitpid(child, &status, 0);
    return error ? 1000 + error : WEXITSTATUS(status);
}

// Starts a program that sleeps, and returns once it runs.
static pid_t sleeper(const char *path, const char *zeroth) {
    int ends[2];
    char byte;
    fflush(stdout);
    CHECK(pipe2(ends, O_CLOEXEC));
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {(char *)zeroth, "1000", NULL};
        execve(path, argv, environ);
        _exit(1);
    }
    close(ends[1]);
    read(ends[0], &byte, 1);
    close(ends[0]);
    return child;
}

static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void written(void) {
    int fd = CHECK(open(place, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));
    copy("/bin/true", fd);
    printf("open for writing: %d\n", runs(place, NULL));
    int other = CHECK(open(place, O_RDONLY));
    close(fd);
    printf("open for reading: %d\n", runs(place, NULL));
    fd = CHECK(open(place, O_RDWR | O_CLOEXEC));
    int twin = CHECK(dup(fd));
    close(fd);
    printf("its twin: %d\n", runs(place, NULL));
    // A shared mapping writes as its description does.
    struct stat st;
    CHECK(fstat(twin, &st));
    void *map = CHECK(mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, twin, 0));
    close(twin);
    printf("mapped for writing: %d\n", runs(place, NULL));
    munmap(map, st.st_size);
    printf("unmapped: %d\n", runs(place, NULL));
    close(other);
}

static void running(void) {
    int fd = CHECK(open(place, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));
    copy("/bin/sleep", fd);
    close(fd);
    pid_t child = sleeper(place, "sleep");
    SHOW("open for writing", open(place, O_WRONLY));
    SHOW("open to cut off", open(place, O_WRONLY | O_TRUNC));
    SHOW("truncate", truncate(place, 0));
    fd = CHECK(open(place, O_RDONLY | O_CLOEXEC));
    struct stat st;
    CHECK(fstat(fd, &st));
    printf("still whole: %d\n", st.st_size > 1000);
    close(fd);
    SHOW("chmod", chmod(place, 0711));
    pid_t second = sleeper(place, "sleep");
    end(child);
    SHOW("open while another runs", open(place, O_WRONLY));
    end(second);
    SHOW("open once it has ended", close(CHECK(open(place, O_WRONLY))));
    // A file of the lower tree, which nothing has changed.
    child = sleeper("/bin/sleep", "sleep");
    SHOW("open of a running host file", open("/bin/sleep", O_WRONLY));
    SHOW("open of this program", open("/proc/self/exe", O_WRONLY));
    end(child);
}

static void replaced(void) {
    int fd = CHECK(open(place, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));
    copy("/bin/sleep", fd);
    close(fd);
    pid_t child = sleeper(place, "sleep");
    SHOW("unlink", unlink(place));
    SHOW("a new one in its place", close(CHECK(open(place, O_WRONLY | O_CREAT | O_EXCL, 0755))));
    end(child);
    unlink(place);
}

static void scripts(void) {
    int fd = CHECK(open(script, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));
    static const char text[] = "#!/bin/sh\nexit 7\n";
    CHECK(write(fd, text, sizeof text - 1));
    printf("a script that is written: %d\n", runs(script, NULL));
    close(fd);
    printf("a script: %d\n", runs(script, NULL));
    fd = CHECK(open(script, O_WRONLY | O_TRUNC | O_CLOEXEC));
    static const char self[] = "#!/bin/sh\n: 2>/dev/null >> \"$0\" && exit 5\nexit 6\n";
    CHECK(write(fd, self, sizeof self - 1));
    close(fd);
    printf("one that writes itself: %d\n", runs(script, NULL));
    unlink(script);
}

static void nameless(void) {
    int fd = CHECK(memfd_create("program", 0));
    copy("/bin/true", fd);
    fflush(stdout);
    pid_t child = fork();
    int status = 0;
    if (child == 0) {
        char *argv[] = {"true", NULL};
        syscall(SYS_execveat, fd, "", argv, environ, AT_EMPTY_PATH);
        _exit(100);
    }
    waitpid(child, &status, 0);
    printf("a memfd that is open for writing: %d\n", WEXITSTATUS(status));
    close(fd);
}

int main(void) {
    snprintf(place, sizeof place, "/tmp/text-busy-%d", getpid());
    snprintf(script, sizeof script, "%s.sh", place);
    SECTION(written);
    SECTION(running);
    SECTION(replaced);
    SECTION(scripts);
    SECTION(nameless);
    return 0;
}
