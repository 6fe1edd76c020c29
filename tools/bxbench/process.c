/* SPDX-License-Identifier: MIT */
/*
 * Memory, cores and processes of bxbench.
 *
 * Children die with their parent (PR_SET_PDEATHSIG). So a bench that fails leaves no process behind, and nothing of its
 * own in /dev/shm, because its area has no name.
 */
#include "bxbench.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AREA_BYTES_MAX ((size_t)1 << 30)

/* ---- Memory, cores, messages ------------------------------------------------------------------- */

void *bench_map(size_t bytes)
{
    if (bytes > AREA_BYTES_MAX) {
        bench_say("so many slices and calls take %zu MB for their times, more than %zu MB", bytes >> 20,
                  AREA_BYTES_MAX >> 20);
        exit(2);
    }

    void *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
                      -1, 0);

    if (area == MAP_FAILED) {
        bench_say("no memory for results (%zu bytes): %s", bytes, strerror(errno));
        exit(1);
    }
    return area;
}

int bench_pin(const int *cpus, int count)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < count; i++)
        CPU_SET(cpus[i], &set);
    return sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : -errno;
}

uint64_t bench_shm_room(void)
{
    struct statvfs fs;

    return statvfs("/dev/shm", &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
}

/* One write: several workers may print at once. */
void bench_say(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "bxbench: %s\n", text);
}

int bench_fail(const char *what, int code)
{
    const char *text = bx_error_text();

    bench_say("%s: %s", what, text[0] != '\0' ? text : bx_strerror(code));
    return 1;
}

/* ---- Processes --------------------------------------------------------------------------------- */

pid_t bench_fork(void)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0)
        return -errno;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

int bench_reap(pid_t pid, uint64_t timeout_ns)
{
    uint64_t end_ns = bench_now_ns() + timeout_ns;
    int status;

    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);

        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (got < 0 && errno != EINTR)
            return -1;
        if (bench_now_ns() > end_ns)
            break;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

int bench_port(void)
{
    static int ports;

    return 20000 + (int)((getpid() * 32 + ports++) % 12000);
}
