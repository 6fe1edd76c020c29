/* SPDX-License-Identifier: MIT */
/*
 * Preloaded into programs that start workers by bx_spawn (net_demos.sh): the workers are by turns on two hosts, which
 * are names on loopback, and meet at an address of their launcher alone: all of 127.0.0.0/8 is loopback.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

pid_t fork(void)
{
    static unsigned forks;
    const unsigned launcher = (unsigned)getpid();       /* at most 22 bits */
    char host[32], root[32];
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "fork");
    snprintf(host, sizeof(host), "%s%c", getenv("BX_TEST_HOST"), "ab"[forks++ % 2]);
    snprintf(root, sizeof(root), "127.%u.%u.%u:10000", 64 + launcher / 65536, launcher / 256 % 256, launcher % 256);
    pid_t pid = next();

    if (pid == 0) {
        setenv("BX_HOST", host, 1);
        setenv("BX_ROOT", root, 1);
        setenv("BX_SECRET", "0123456789abcdef", 1);
    }
    return pid;
}

/* A shell's child is no worker: the program that it runs is a launcher. */
__attribute__((constructor)) static void begin(void)
{
    unsetenv("BX_ROOT");
}
