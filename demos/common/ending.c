/* SPDX-License-Identifier: MIT */
/*
 * The end of a demo whose launcher got SIGINT or SIGTERM: its workers have ended, and it ends the same way.
 * Exiting with 128 and the number would look like it, but a shell that runs a loop would go on.
 *
 * And the end of what it printed: a line that was lost long ago leaves its mark in the stream, where a flush of what
 * is left succeeds.
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
