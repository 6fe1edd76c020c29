/* SPDX-License-Identifier: MIT */
/*
 * How a program ends: by a signal that asked it to, and with what it printed written.
 */
#ifndef DEMOS_ENDING_H
#define DEMOS_ENDING_H

/* Ends by that signal, so that a shell sees what happened. Returns, if it can, the exit status `otherwise`. */
int ending_by(int signal_number, int otherwise);

/* Writes out what this process has printed. 0; -1 after a sentence on stderr, if any of it since the start was lost. */
int ending_output(const char *program);

#endif
