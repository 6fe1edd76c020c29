/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: the columns of each view, for the grid and for JSON; how a figure and a text of a row are printed.
 */
#ifndef TOOLS_STAT_TOP_COLUMNS_H
#define TOOLS_STAT_TOP_COLUMNS_H

#include "top_rates.h"

struct top_column {
    const char *title;
    const char *key;                    /* in JSON; NULL: not there, or under another one */
    int width;
    int importance;                     /* of two that do not both fit the lesser is left out; 0: always shown */
    enum top_format {
        TOP_TEXT,
        TOP_WHOLE,                      /* 1234 */
        TOP_COUNT,                      /* 1.23k */
        TOP_BYTES,                      /* 1.23K, by 1024 */
        TOP_PERCENT,
        TOP_SECONDS,
    } format;
    int source;                         /* enum top_number, or enum top_text */
};

enum top_text { TOP_JOB, TOP_NAME, TOP_PEER_NAME, TOP_DOING, TOP_STATE, TOP_FUNCTION, TOP_CALL, TOP_WHY };

/* The columns of a view, and how many; by index as state.sort has them. */
const struct top_column *top_columns(enum top_view view, int *count);
const char *top_text(const struct top_row *row, int source);
const char *top_view_name(enum top_view view);
/* A figure in five characters at most, but a WHOLE one. Good until the next call. */
const char *top_figure(double value, enum top_format format);

#endif
