/* SPDX-License-Identifier: MIT */
/*
 * shmstat top in a terminal.
 */
#ifndef TOOLS_STAT_SCREEN_H
#define TOOLS_STAT_SCREEN_H

#include "top_keys.h"

/* Runs until the user quits or a signal ends it, and restores the terminal. An exit status. */
int top_screen_run(struct top_model *model, struct top_state *state);

#endif
