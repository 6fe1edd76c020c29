/* SPDX-License-Identifier: MIT */
/*
 * The end of a program: by a signal, and with its output written.
 */
#ifndef DEMOS_ENDING_H
#define DEMOS_ENDING_H

#include <stdbool.h>

/* Ends the process by that signal, so that a shell sees it. -1: it has survived that. */
int ending_by(int signal_number);

/* stdout is a pipe that nobody reads any more. */
bool ending_is_unread(void);

/* Flushes stdout. 0; -1 after a sentence on stderr if any output since the start was lost. If it was lost because
 * nobody reads it, ends the process by SIGPIPE. */
int ending_output(const char *program);

#endif
