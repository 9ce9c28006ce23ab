// Processes and threads: fork, vfork, exec, waiting in all ways, orphans, sessions, many threads.
#define _GNU_SOURCE
#include "guest.h"
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;
static const char *self;

static void show_status(const char *what, pid_t got, pid_t expected, const int *at) {
    int status = *at;
    printf("%s: %s, ", what, got == expected ? "it" : got == 0 ? "nobody" : got < 0 ? strerror(errno) : "another");
    if (WIFEXITED(status)) printf("exit %d\n", WEXITSTATUS(status));
    else if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
    else printf("status %#x\n", status);
}

static void waits(void) {
    int status = 0;
    SHOW("no child", wait(&status));
    pid_t child = fork();
    if (child == 0) _exit(300 & 0xff);
    show_status("waitpid", waitpid(child, &status, 0), child, &status);
    child = fork();
    if (child == 0) {
        usleep(30000);
        _exit(7);
    }
    status = 0;
    show_status("not yet", waitpid(child, &status, WNOHANG), child, &status);
    siginfo_t info = {0};
    SHOW("waitid", waitid(P_PID, child, &info, WEXITED | WNOWAIT));
    printf("code %d status %d pid %d uid %d signal %d\n", info.si_code, info.si_status, info.si_pid == child, info.si_uid, info.si_signo);
    memset(&info, 0, sizeof info);
    SHOW("again", waitid(P_ALL, 0, &info, WEXITED | WNOHANG));
    printf("pid %d\n", info.si_pid == child);
    SHOW("gone", waitid(P_PID, child, &info, WEXITED));
    SHOW("no options", waitid(P_ALL, 0, &info, 0));
    child = fork();
    if (child == 0) {
        setpgid(0, 0);
        usleep(20000);
        _exit(1);
    }
    setpgid(child, child);
    show_status("by group", waitpid(-child, &status, 0), child, &status);
    struct rusage usage;
    child = fork();
    if (child == 0) {
        for (volatile int i = 0; i < 10000000; i++) {}
        _exit(0);
    }
    show_status("wait4", wait4(-1, &status, 0, &usage), child, &status);
    printf("used time %d\n", usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec > 0);
    pid_t children[3];
    for (int i = 0; i < 3; i++)
        if ((children[i] = fork()) == 0) _exit(i);
    int sum = 0;
    while (wait(&status) > 0) sum += WEXITSTATUS(status) + 10;
    printf("three: %d\n", sum);
    signal(SIGCHLD, SIG_IGN);
    if (fork() == 0) _exit(0);
    SHOW("ignored SIGCHLD", wait(&status));
    signal(SIGCHLD, SIG_DFL);
}

static void orphans(void) {
    int p[2];
    pipe(p);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t me = getpid();
    if (fork() == 0) {
        if (fork() == 0) {
            char c;
            close(p[1]);
            read(p[0], &c, 1);
            _exit(getppid() == me ? 42 : 1);
        }
        _exit(0);
    }
    int status;
    wait(&status);
    printf("parent exit %d\n", WEXITSTATUS(status));
    close(p[1]);
    wait(&status);
    printf("orphan exit %d\n", WEXITSTATUS(status));
    close(p[0]);
    pipe(p);
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            write(p[1], "x", 1);
            for (;;) pause();
        }
        char c;
        read(p[0], &c, 1);
        _exit(0);
    }
    waitpid(child, &status, 0);
    wait(&status);
    printf("death signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

static void sessions(void) {
    pid_t child = fork();
    if (child == 0) {
        printf("setsid %d\n", setsid() == getpid());
        printf("session %d group %d\n", getsid(0) == getpid(), getpgrp() == getpid());
        SHOW("again", setsid());
        SHOW("leader", setpgid(0, 0));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    child = fork();
    if (child == 0) {
        setpgid(0, 0);
        for (int i = 0; i < 3; i++)
            if (fork() == 0)
                for (;;) pause();
        signal(SIGTERM, SIG_IGN);
        usleep(20000);
        kill(0, SIGTERM);
        int status, sum = 0;
        while (wait(&status) > 0) sum += WTERMSIG(status);
        _exit(sum);
    }
    int status;
    waitpid(child, &status, 0);
    printf("group killed %d\n", WEXITSTATUS(status));
    SHOW("nobody's group", kill(-999999, SIGTERM));
}

static void write_file(const char *path, const char *text, int mode) {
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
    write(fd, text, strlen(text));
    fchmod(fd, mode);
    close(fd);
}

static void run(const char *path, char **argv, char **envp) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        execve(path, argv, envp);
        printf("execve: %s\n", strerror(errno));
        fflush(stdout);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %#x\n", status);
}

static void execs(void) {
    char dir[] = "/tmp/guest-XXXXXX";
    mkdtemp(dir);
    chdir(dir);
    run(self, (char *[]){"name", "child", "one", "", "two words", NULL}, (char *[]){"A=1", "B=", NULL});
    write_file("script", "#!/bin/sh\necho \"$0\" \"$@\"; exit 3\n", 0755);
    run("./script", (char *[]){"ignored", "a", "b c", NULL}, environ);
    write_file("nested", "#!./script  an argument \n", 0755);
    run("./nested", (char *[]){"ignored", "x", NULL}, environ);
    write_file("missing", "#!/no/such/interpreter\n", 0755);
    run("./missing", (char *[]){"m", NULL}, environ);
    write_file("noformat", "just text", 0755);
    run("./noformat", (char *[]){"m", NULL}, environ);
    write_file("empty", "", 0755);
    run("./empty", (char *[]){"m", NULL}, environ);
    write_file("noexec", "#!/bin/sh\n", 0644);
    run("./noexec", (char *[]){"m", NULL}, environ);
    run(dir, (char *[]){"m", NULL}, environ);
    run("./nothing", (char *[]){"m", NULL}, environ);
    write_file("loop", "#!./loop\n", 0755);
    run("./loop", (char *[]){"m", NULL}, environ);
    char *big = malloc(200001);
    memset(big, 'x', 200000);
    big[200000] = 0;
    run("/bin/true", (char *[]){"true", big, NULL}, environ);
    big[100000] = 0;
    run("/bin/true", (char *[]){"true", big, NULL}, environ);
    int fd = open(self, O_RDONLY | O_CLOEXEC);
    fflush(stdout);
    if (fork() == 0) {
        fexecve(fd, (char *[]){"by descriptor", "child", NULL}, (char *[]){NULL});
        _exit(1);
    }
    wait(NULL);
    // What of a process survives exec.
    if (fork() == 0) {
        signal(SIGUSR1, SIG_IGN);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR2);
        sigprocmask(SIG_BLOCK, &set, NULL);
        raise(SIGUSR2);
        open("/dev/null", O_RDONLY | O_CLOEXEC);
        umask(027);
        execl(self, "survivor", "survivor", NULL);
    }
    wait(NULL);
    chdir("/");
    char command[64];
    sprintf(command, "rm -r %s", dir);
    system(command);
}

static void spawns(void) {
    int status;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "exit 9", NULL);
        _exit(1);
    }
    show_status("vfork and exec", waitpid(child, &status, 0), child, &status);
    volatile int shared = 1;
    child = vfork();
    if (child == 0) {
        shared = 2;
        _exit(4);
    }
    show_status("vfork and exit", waitpid(child, &status, 0), child, &status);
    printf("shared %d\n", shared);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    char *argv[] = {"sh", "-c", "echo unseen; exit 6", NULL};
    printf("posix_spawn %d\n", posix_spawn(&child, "/bin/sh", &actions, NULL, argv, environ));
    show_status("spawned", waitpid(child, &status, 0), child, &status);
    printf("posix_spawn of nothing: %s\n", strerror(posix_spawn(&child, "/no/such", NULL, NULL, argv, environ)));
    printf("system %#x\n", system("exit 5"));
    FILE *f = popen("echo through popen", "r");
    char line[64];
    fgets(line, sizeof line, f);
    printf("%s%#x\n", line, pclose(f));
}

static int counter;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int local = 5;

static void *bump(void *arg) {
    local += (int)(intptr_t)arg;
    pthread_mutex_lock(&lock);
    counter += local;
    pthread_mutex_unlock(&lock);
    return (void *)(intptr_t)local;
}
static void *exit_all(void *arg) {
    usleep(10000);
    exit(11);
    return NULL;
}
static void *exec_now(void *arg) {
    execl("/bin/sh", "sh", "-c", "exit 12", NULL);
    return NULL;
}
static void *forever(void *arg) {
    for (;;) pause();
    return NULL;
}

static void threads(void) {
    static pthread_t t[500];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 65536);
    for (intptr_t i = 0; i < 500; i++)
        if (pthread_create(&t[i], &attr, bump, (void *)i)) printf("thread %d failed\n", (int)i);
    long sum = 0;
    void *result;
    for (int i = 0; i < 500; i++) pthread_join(t[i], &result), sum += (intptr_t)result;
    printf("500 threads: %d %ld\n", counter, sum);
    int status;
    for (int kind = 0; kind < 3; kind++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 20; i++) pthread_create(&t[i], NULL, forever, NULL);
            if (kind < 2) pthread_create(&t[20], NULL, kind ? exec_now : exit_all, NULL);
            else _exit(13);
            for (;;) pause();
        }
        waitpid(child, &status, 0);
        printf("process of threads ends: %#x\n", status);
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // The first thread ends before the others.
        pthread_create(&t[0], NULL, exit_all, NULL);
        pthread_exit(NULL);
    }
    waitpid(child, &status, 0);
    printf("first thread gone: %#x\n", status);
    for (int i = 0; i < 10; i++) {
        pthread_create(&t[0], NULL, bump, NULL);
        pthread_detach(t[0]);
        if (fork() == 0) _exit(0);
        wait(NULL);
    }
    printf("fork beside threads\n");
}

static int child(int argc, char **argv) {
    printf("argc %d:", argc);
    for (int i = 0; i < argc; i++) printf(" [%s]", argv[i]);
    for (char **e = environ; *e; e++) printf(" {%s}", *e);
    printf("\nauxv: pagesz %lu uid %lu euid %lu secure %lu phent %lu random %d execfn %d clktck %lu\n", getauxval(AT_PAGESZ), getauxval(AT_UID), getauxval(AT_EUID), getauxval(AT_SECURE), getauxval(AT_PHENT), getauxval(AT_RANDOM) != 0, getauxval(AT_EXECFN) != 0, getauxval(AT_CLKTCK));
    return 2;
}

static int survivor(void) {
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    sigset_t blocked, pending;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    sigpending(&pending);
    printf("ignored %d blocked %d pending %d lowest descriptor %d umask %o\n", action.sa_handler == SIG_IGN, sigismember(&blocked, SIGUSR2), sigismember(&pending, SIGUSR2), dup(0) <= 4, umask(0));
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) return child(argc, argv);
    if (argc > 1 && !strcmp(argv[1], "survivor")) return survivor();
    self = argv[0];
    SECTION(waits);
    SECTION(orphans);
    SECTION(sessions);
    SECTION(execs);
    SECTION(spawns);
    SECTION(threads);
    return 0;
}
