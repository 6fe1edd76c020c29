/* SPDX-License-Identifier: MIT */
/*
 * Runs of ucx_perftest beside a subcommand: the server on the callee's core, the client on the caller's.
 */
#include "bxbench.h"

#include <stdio.h>
#include <sys/wait.h>

/* The client is started again and again until it finds the server listening. */
double bench_ucx(const struct bench_options *options, const struct bench_ucx *ucx)
{
    static const char script[] =
        "exec 2>/dev/null; command -v ucx_perftest >/dev/null || exit 127\n"
        "%s taskset -c %d timeout 60 ucx_perftest -p %d -t %s >/dev/null & server=$!\n"
        "for try in $(seq 50); do sleep 0.1; kill -0 $server || exit 1\n"
        "  %s taskset -c %d timeout 30 ucx_perftest %s -p %d -t %s %s |\n"
        "    awk '/^Final:/ { print $%s; found = 1 } END { exit !found }' && break\n"
        "done; kill $server; wait $server; exit 0";
    const char *flag = options->ucx ? "--ucx: " : "";
    int port = bench_port(), status;
    char command[1024];
    double figure = 0;
    FILE *pipe;

    snprintf(command, sizeof command, script, ucx->at[0], options->cpus[1], port, ucx->test, ucx->at[1],
             options->cpus[0], ucx->address, port, ucx->test, ucx->flags, ucx->column);
    pipe = popen(command, "r");
    if (pipe == NULL || fscanf(pipe, "%lf", &figure) != 1)
        figure = 0;
    status = pipe != NULL ? pclose(pipe) : -1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        bench_say("%sthere is no ucx_perftest on the PATH (Debian's package ucx-utils)", flag);
    else if (figure <= 0)
        bench_say("%sucx_perftest -t %s gave no figure", flag, ucx->test);
    return figure;
}
