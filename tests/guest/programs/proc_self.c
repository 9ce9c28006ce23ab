// What /proc tells a process of itself (proc(5)).
#define _GNU_SOURCE
#include "guest.h"
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char text[1 << 20];

static char *contents(const char *path) {
    int fd = open(path, O_RDONLY), len = 0, got;
    if (fd < 0) return strcpy(text, strerror(errno));
    while ((got = read(fd, text + len, sizeof text - 1 - len)) > 0) len += got;
    close(fd);
    for (int i = 0; i < len; i++)
        if (!text[i]) text[i] = '|';
    text[len] = 0;
    return text;
}

static void show_fields(const char *path, const char **fields) {
    contents(path);
    for (; *fields; fields++) {
        char *at = strstr(text, *fields);
        printf("%s %s\n", path, at ? (at[strcspn(at, "\n")] = 0, at) : "absent");
        contents(path);
    }
}

static int tasks(void) {
    int tasks = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));) tasks += e->d_name[0] != '.';
    if (d) closedir(d);
    return tasks;
}

static void *thread(void *arg) {
    prctl(PR_SET_NAME, "a thread");
    char path[64];
    sprintf(path, "/proc/self/task/%d/comm", gettid());
    printf("%s", contents(path));
    printf("%s", contents("/proc/thread-self/comm"));
    printf("%s", contents("/proc/self/comm"));
    printf("tasks %d\n", tasks());
    return NULL;
}

static void identity(void) {
    char link[PATH_MAX] = "", own[32];
    sprintf(own, "%d", getpid());
    readlink("/proc/self", link, sizeof link);
    printf("self %d\n", !strcmp(link, own));
    memset(link, 0, sizeof link);
    readlink("/proc/self/exe", link, sizeof link);
    printf("exe %s\n", strrchr(link, '/'));
    chdir("/usr");
    memset(link, 0, sizeof link);
    readlink("/proc/self/cwd", link, sizeof link);
    printf("cwd %s\n", link);
    memset(link, 0, sizeof link);
    readlink("/proc/self/root", link, sizeof link);
    printf("root %s\n", link);
    contents("/proc/self/cmdline");
    printf("cmdline %s\n", strrchr(text, '/'));
    prctl(PR_SET_NAME, "renamed");
    printf("comm %s", contents("/proc/self/comm"));
    show_fields("/proc/self/status", (const char *[]){"Name:", "Umask:", "State:", "Threads:", "Uid:", "Gid:", "NoNewPrivs:", NULL});
    contents("/proc/self/stat");
    int pid, ppid;
    char comm[32], state;
    sscanf(text, "%d (%31[^)]) %c %d", &pid, comm, &state, &ppid);
    printf("stat %d %s %c %d\n", pid == getpid(), comm, state, ppid == getppid());
    pthread_t t;
    pthread_create(&t, NULL, thread, NULL);
    pthread_join(t, NULL);
    // A thread that was joined may still be on its way out of the kernel.
    for (int i = 0; i < 1000 && tasks() != 1; i++) usleep(1000);
    printf("tasks %d\n", tasks());
    setenv("not", "there", 1);
    printf("environ %d\n", strstr(contents("/proc/self/environ"), "not=there") == NULL);
    show_fields("/proc/self/limits", (const char *[]){"Max core file size", NULL});
}

static void descriptors(void) {
    char link[PATH_MAX], path[64];
    int p[2], fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    pipe(p);
    sprintf(path, "/proc/self/fd/%d", fd);
    memset(link, 0, sizeof link);
    readlink(path, link, sizeof link);
    printf("fd %s\n", link);
    int again = open(path, O_RDONLY);
    char a[16] = "", b[16] = "";
    read(fd, a, 8);
    read(again, b, 8);
    printf("opened anew %d\n", !strcmp(a, b));
    sprintf(path, "/proc/self/fd/%d", p[0]);
    memset(link, 0, sizeof link);
    readlink(path, link, sizeof link);
    printf("pipe %.6s\n", link);
    struct stat s, l;
    stat(path, &s);
    lstat(path, &l);
    printf("is pipe %d is link %d\n", S_ISFIFO(s.st_mode), S_ISLNK(l.st_mode));
    lseek(fd, 5, SEEK_SET);
    sprintf(path, "/proc/self/fdinfo/%d", fd);
    contents(path);
    printf("%.6s", text);
    printf(" %d\n", strstr(text, "flags:\t02") != NULL);
    char name[] = "/tmp/guest-XXXXXX";
    fd = mkstemp(name);
    unlink(name);
    sprintf(path, "/proc/self/fd/%d", fd);
    memset(link, 0, sizeof link);
    readlink(path, link, sizeof link);
    printf("deleted %d\n", strstr(link, " (deleted)") != NULL);
    write(fd, "still", 5);
    again = open(path, O_RDWR);
    printf("opened deleted %zd\n", read(again, a, 16));
    printf("stdin %d\n", access("/dev/stdin", F_OK));
    SHOW("unknown", access("/proc/self/fd/999", F_OK));
}

static void maps(void) {
    char *m = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), line[64];
    mprotect(m, 4096, PROT_NONE);
    mprotect(m + 8192, 4096, PROT_READ | PROT_EXEC);
    contents("/proc/self/maps");
    sprintf(line, "%lx-%lx ---p 00000000 00:00 0", (long)m, (long)m + 4096);
    printf("none %d\n", strstr(text, line) != NULL);
    sprintf(line, "-%lx r-xp 00000000 00:00 0", (long)m + 12288);
    printf("exec %d\n", strstr(text, line) != NULL);
    printf("stack %d heap %d program %d libc %d\n", strstr(text, "[stack]") != NULL, (malloc(1), strstr(text, "[heap]") != NULL), strstr(text, "proc_self") != NULL, strstr(text, "libc.so") != NULL);
    int fd = open("/proc/self/mem", O_RDWR);
    m[5000] = 7;
    char c = 0;
    pread(fd, &c, 1, (long)m + 5000);
    printf("mem %d", c);
    c = 9;
    pwrite(fd, &c, 1, (long)m + 5000);
    printf(" %d\n", m[5000]);
    SHOW("mem unmapped", pread(fd, &c, 1, 4096));
    SHOW("mem across", pread(fd, line, 8, (long)m + 8188));
    SHOW("mem read-only fd", pwrite(open("/proc/self/mem", O_RDONLY), &c, 1, (long)m + 5000));
    show_fields("/proc/self/statm", (const char *[]){"no such", NULL});
}

static void others(void) {
    pid_t child = fork();
    if (child == 0)
        for (;;) pause();
    char path[64];
    sprintf(path, "/proc/%d/status", child);
    usleep(20000);
    show_fields(path + 0, (const char *[]){NULL});
    contents(path);
    printf("child sleeps %d\n", strstr(text, "State:\tS") != NULL);
    kill(child, SIGKILL);
    siginfo_t info;
    waitid(P_PID, child, &info, WEXITED | WNOWAIT);
    printf("zombie %d\n", strstr(contents(path), "State:\tZ") != NULL);
    waitpid(child, NULL, 0);
    printf("gone %s\n", contents(path));
    printf("uptime %d loadavg %d meminfo %d cpuinfo %d stat %d mounts %d\n", atof(contents("/proc/uptime")) > 0, contents("/proc/loadavg")[0] != 0, strstr(contents("/proc/meminfo"), "MemTotal:") != NULL, strstr(contents("/proc/cpuinfo"), "processor") != NULL, strstr(contents("/proc/stat"), "cpu ") != NULL, strstr(contents("/proc/mounts"), " / ") != NULL);
    printf("ostype %s", contents("/proc/sys/kernel/ostype"));
    printf("pid_max %d\n", atoi(contents("/proc/sys/kernel/pid_max")) >= 32768);
    printf("filesystems %d\n", strstr(contents("/proc/filesystems"), "tmpfs") != NULL);
    printf("self/mountinfo %d\n", strstr(contents("/proc/self/mountinfo"), " / / ") != NULL);
    printf("nosuch %s\n", contents("/proc/nosuch"));
}

int main(void) {
    SECTION(identity);
    SECTION(descriptors);
    SECTION(maps);
    SECTION(others);
    return 0;
}
