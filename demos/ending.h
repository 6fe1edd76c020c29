/* SPDX-License-Identifier: MIT */
/*
 * How a program ends that a signal asked to end.
 */
#ifndef DEMOS_ENDING_H
#define DEMOS_ENDING_H

/* Ends by that signal, so that a shell sees what happened. Returns, if it can, the exit status `otherwise`. */
int ending_by(int signal_number, int otherwise);

#endif
