/* SPDX-License-Identifier: MIT */
/*
 * ending_by: the workers have ended after a SIGINT or SIGTERM to the launcher, and the launcher ends by that signal
 * too. An exit status of 128 plus the number would look the same, but a shell that runs a loop would continue with it.
 *
 * ending_output: a line that was lost earlier leaves only the stream's error flag; the flush at the end still succeeds.
 */
#include "ending.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

int ending_by(int signal_number, int otherwise)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, signal_number);
    signal(signal_number, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(signal_number);
    return otherwise;
}

int ending_output(const char *program)
{
    if (fflush(stdout) != 0)
        fprintf(stderr, "%s: the output cannot be written: %s\n", program, strerror(errno));
    else if (ferror(stdout))
        fprintf(stderr, "%s: some of the output could not be written\n", program);
    else
        return 0;
    return -1;
}
