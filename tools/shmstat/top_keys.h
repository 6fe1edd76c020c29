/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: what the user chose, and what a key does to it.
 */
#ifndef TOOLS_STAT_TOP_KEYS_H
#define TOOLS_STAT_TOP_KEYS_H

#include "top_rates.h"

enum top_only { TOP_ALL, TOP_ONLY_BUSY, TOP_ONLY_STUCK };

#define TOP_FILTER_BYTES 32
#define TOP_INTERVAL_MIN 0.1
#define TOP_INTERVAL_MAX 60.0

/* Keys other than characters. */
enum top_key {
    TOP_KEY_UP = 0x1000,
    TOP_KEY_DOWN,
    TOP_KEY_PAGE_UP,
    TOP_KEY_PAGE_DOWN,
    TOP_KEY_HOME,
    TOP_KEY_END,
    TOP_KEY_ENTER,
    TOP_KEY_ESCAPE,
    TOP_KEY_BACKSPACE,
};

struct top_state {
    enum top_view view;
    int sort[TOP_VIEWS];                /* a column */
    bool reverse[TOP_VIEWS];            /* against the column's own order */
    enum top_only only;
    char filter[TOP_FILTER_BYTES];
    bool typing;                        /* the filter */
    bool help;
    bool paused;
    bool batch;                         /* there are no keys */
    double interval_s;
    size_t first;                       /* the first row shown; top_render bounds it */
    size_t page;                        /* rows that fitted in the last top_render */
};

enum top_action {
    TOP_DRAW,           /* draw the same rows again */
    TOP_SAMPLE,         /* another view: take a sample */
    TOP_QUIT,
};

void top_state_init(struct top_state *state, double interval_s);
enum top_action top_key(struct top_state *state, int key);
/* The lines of the help, "key\tmeaning"; NULL behind the last. */
const char *top_help_line(size_t i);

#endif
