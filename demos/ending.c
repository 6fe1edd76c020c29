/* SPDX-License-Identifier: MIT */
/*
 * The end of a demo whose launcher got SIGINT or SIGTERM: its workers have ended, and it ends the same way.
 * Exiting with 128 and the number would look like it, but a shell that runs a loop would go on.
 */
#include "ending.h"

#include <signal.h>
#include <stddef.h>

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
