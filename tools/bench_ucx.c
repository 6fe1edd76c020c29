/* SPDX-License-Identifier: MIT */
/*
 * One run of ucx_perftest -t ucp_am_bw with 64-byte messages on the bench's cores. Run by the launcher
 * between two jobs, while it has no worker. The server is started on the callee's core and the client on
 * the caller's until one of its tries finds the server listening; both are killed where they take too
 * long, and die with the launcher.
 */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUN_NS UINT64_C(30000000000)
#define TRIES 50
#define MESSAGES "1000000"

/* Forks a pinned ucx_perftest whose output goes to fd, or nowhere where that is -1. */
static pid_t start(int cpu, int fd, char *const *argv)
{
    pid_t pid = bench_fork();

    if (pid != 0)
        return pid;

    int nowhere = open("/dev/null", O_RDWR);

    dup2(fd >= 0 ? fd : nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    setenv("UCX_TLS", "shm,self", 1);
    if (bench_pin(cpu) == 0)
        execvp(argv[0], argv);
    _exit(errno == ENOENT ? 127 : 126);
}

/* Reads all that comes until the end or the time is over; false if it was not the end. */
static bool read_all(int fd, char *text, size_t room)
{
    uint64_t end_ns = bench_now_ns() + RUN_NS;
    size_t bytes = 0;

    for (uint64_t now_ns = bench_now_ns(); now_ns < end_ns; now_ns = bench_now_ns()) {
        struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

        if (poll(&poll_fd, 1, (int)((end_ns - now_ns) / 1000000) + 1) <= 0)
            continue;

        ssize_t got = read(fd, text + bytes, room - 1 - bytes);

        if (got <= 0 || (bytes += (size_t)got) == room - 1) {
            text[bytes] = '\0';
            return true;
        }
    }
    text[bytes] = '\0';
    return false;
}

/* The last number of the line "Final: ...": messages a second over the whole run; 0 if there is none. */
static double parse_rate(const char *text)
{
    const char *line = strstr(text, "Final:");

    if (line == NULL)
        return 0;
    line += strlen("Final:");

    double last = 0;

    for (;;) {
        char *end;

        line += strspn(line, " \t");
        if (*line == '\n' || *line == '\0')
            return last;

        double value = strtod(line, &end);

        if (end == line)
            return last;
        last = value;
        line = end;
    }
}

static double run_client(int cpu, char *port)
{
    char *argv[] = { "ucx_perftest", "127.0.0.1", "-p", port, "-t", "ucp_am_bw", "-n", MESSAGES, "-s", "64",
                     NULL };
    char text[65536];
    int pipe_fd[2];

    if (pipe2(pipe_fd, O_CLOEXEC) != 0)
        return 0;

    pid_t pid = start(cpu, pipe_fd[1], argv);

    close(pipe_fd[1]);
    if (pid > 0)
        read_all(pipe_fd[0], text, sizeof text);
    close(pipe_fd[0]);
    if (pid < 0 || bench_reap(pid, 1000000000) != 0)
        return 0;
    return parse_rate(text);
}

double bench_ucx_rate(const struct bench_options *options)
{
    static int runs;
    char port[16];

    snprintf(port, sizeof port, "%d", 20000 + (int)((getpid() * 8 + runs++) % 12000));

    char *argv[] = { "ucx_perftest", "-p", port, "-t", "ucp_am_bw", NULL };
    pid_t server = start(options->cpus[1], -1, argv);
    double rate = 0;
    int status = 0;

    for (int i = 0; server > 0 && rate == 0 && i < TRIES; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        if (waitpid(server, &status, WNOHANG) == server) {
            server = -1;
            break;
        }
        rate = run_client(options->cpus[0], port);
    }
    if (server > 0)
        bench_reap(server, rate > 0 ? 5000000000 : 0);
    if (rate == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 127)
        bench_say("--ucx: there is no ucx_perftest on the PATH (Debian's package ucx-utils)");
    else if (rate == 0)
        bench_say("--ucx: ucx_perftest gave no message rate");
    return rate;
}
