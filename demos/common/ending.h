/* SPDX-License-Identifier: MIT */
/*
 * The end of a program: by a signal, and with its output written.
 */
#ifndef DEMOS_ENDING_H
#define DEMOS_ENDING_H

/* Ends the process by that signal, so that a shell sees it. If the process survives, returns `otherwise`. */
int ending_by(int signal_number, int otherwise);

/* Flushes stdout. 0; -1 after a sentence on stderr if any output since the start was lost. */
int ending_output(const char *program);

#endif
