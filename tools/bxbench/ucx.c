/* SPDX-License-Identifier: MIT */
/*
 * One run of ucx_perftest -t ucp_am_bw with 64-byte messages on the bench's cores. The launcher runs it between two
 * jobs, while it has no workers. The server is started on the callee's core. The client is started on the caller's
 * core, again and again until it finds the server listening. Both are killed if they take too long, and die with the
 * launcher.
 */
#include "ucx.h"

#include "bxbench.h"
#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRIES 50
#define MESSAGES "1000000"

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

    return bench_run_program(cpu, argv, text, sizeof text) == 0 ? parse_rate(text) : 0;
}

double bench_ucx_rate(const struct bench_options *options)
{
    static int runs;
    char port[16];

    snprintf(port, sizeof port, "%d", 20000 + (int)((getpid() * 8 + runs++) % 12000));

    char *argv[] = { "ucx_perftest", "-p", port, "-t", "ucp_am_bw", NULL };
    pid_t server = bench_start_program(options->cpus[1], -1, argv);
    double rate = 0;
    int status = 0;

    setenv("UCX_TLS", "shm,self", 1);
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
