/* SPDX-License-Identifier: MIT */
/*
 * ending_by: the workers have ended after a SIGINT or SIGTERM to the launcher, and the launcher ends by that signal
 * too. An exit status of 128 plus the number would look the same, but a shell that runs a loop would continue with it.
 *
 * ending_output: a line that was lost earlier leaves only the stream's error flag; the flush at the end still succeeds.
 *
 * ending_is_unread: in `program | head -1` the process that prints next gets SIGPIPE, and its launcher and the other
 * workers see a death. All have the same stdout, so each finds the cause there and is silent.
 */
#include "ending.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int ending_by(int signal_number)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, signal_number);
    signal(signal_number, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(signal_number);
    return -1;
}

bool ending_is_unread(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };

    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

int ending_output(const char *program)
{
    bool is_written = fflush(stdout) == 0;

    /* A thread that blocks SIGPIPE gets an error instead. */
    if ((!is_written || ferror(stdout)) && ending_is_unread())
        return ending_by(SIGPIPE);
    if (!is_written)
        fprintf(stderr, "%s: the output cannot be written: %s\n", program, strerror(errno));
    else if (ferror(stdout))
        fprintf(stderr, "%s: some of the output could not be written\n", program);
    else
        return 0;
    return -1;
}
