// What the programs share. They print only what is the same in each run.
#pragma once
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The value of a call that is not to fail; else says which did, and where.
#define CHECK(call)                                                                                                       \
    ({                                                                                                                    \
        __typeof__(call) check_value = (call);                                                                            \
        if ((long)check_value == -1) printf("line %d: " #call ": %s\n", __LINE__, strerror(errno));                       \
        check_value;                                                                                                      \
    })

// Runs a part of a program under its name, with what it prints out before the next begins.
#define SECTION(name)                                                                                                     \
    do {                                                                                                                  \
        setvbuf(stdout, NULL, _IOLBF, 0);                                                                                 \
        printf("-- " #name "\n");                                                                                         \
        fflush(stdout);                                                                                                   \
        name();                                                                                                           \
        fflush(stdout);                                                                                                   \
    } while (0)

// Says what a call came to, with its error.
#define SHOW(what, call)                                                                                                  \
    do {                                                                                                                  \
        errno = 0;                                                                                                        \
        long show_value = (long)(call);                                                                                   \
        printf("%s: %ld%s%s\n", what, show_value, show_value == -1 ? " " : "", show_value == -1 ? strerror(errno) : ""); \
    } while (0)
