/* SPDX-License-Identifier: MIT */
/*
 * shmstat top, in parts, each of which can be tested without the next one:
 *
 *     top_rates.c      two samples of the jobs, and rows with rates made of them
 *     top_columns.c    the columns of each view: title, key in JSON, width, format
 *     top_view.c       what the user chose and what a key changes of it; rows to lines of text
 *     screen.c         the lines to a terminal, keys from it
 *
 * top.c is the subcommand: its flags, the lines without a terminal, and JSON.
 */
#ifndef TOOLS_STAT_TOP_H
#define TOOLS_STAT_TOP_H

#include "flight.h"

#include <stdio.h>

enum top_view {
    TOP_WORKERS,
    TOP_RINGS,
    TOP_CALLS,
    TOP_VIEWS,
};

enum top_health {
    TOP_DEAD,
    TOP_IDLE,
    TOP_BUSY,           /* it was active between the two samples, or has calls or requests open */
    TOP_WARN,           /* a ring is nearly full, a call was given up */
    TOP_STUCK,
};

/* The figures of a row. NAN if it is not known. */
enum top_number {
    /* Rates, per second: of counts that only grow. */
    TOP_CALLS_S,
    TOP_REQUESTS_S,
    TOP_BYTES_OUT_S,    /* of frames, as all bytes but TENSOR_BYTES_S */
    TOP_BYTES_IN_S,
    TOP_FRAMES_OUT_S,
    TOP_FRAMES_IN_S,
    TOP_TENSOR_BYTES_S,
    TOP_FAILED_S,       /* calls that timed out or lost their callee, requests refused or too late */
    TOP_WAKEUPS_S,
    TOP_BELLS_S,
    TOP_SAVED_S,
    TOP_FULL_S,
    TOP_RATES,

    TOP_RANK = TOP_RATES,
    TOP_PEER,           /* of a ring: to; of a call: the callee */
    TOP_PID,
    TOP_GENERATION,
    TOP_FLIGHT,
    TOP_SERVED,         /* requests whose handler has not ended */
    TOP_POOL,           /* threads that run a handler */
    TOP_AGE,            /* of the oldest call in flight, the oldest unread frame of a ring, or the call; seconds */
    TOP_LEFT,           /* until the call's deadline */
    TOP_FILL,           /* of the ring, or of the fullest one to others, in % */
    TOP_HIGH,           /* most that the ring ever held, in % */
    TOP_UNREAD,         /* bytes in the ring that its consumer has not read */
    TOP_ARENA,
    TOP_LOAN,
    TOP_NUMBERS,
};

enum top_text { TOP_JOB, TOP_NAME, TOP_PEER_NAME, TOP_DOING, TOP_STATE, TOP_FUNCTION, TOP_CALL, TOP_WHY, TOP_TEXTS };

struct top_row {
    const struct stat_job *job;
    enum top_health health;
    int cause;                          /* 0: not stuck; larger: nearer to the reason why others are stuck */
    const char *text[TOP_TEXTS];        /* NAME: of the worker, or the caller; WHY: a sentence if it is stuck */
    double number[TOP_NUMBERS];
    char function[BXI_NAME_BYTES], call[64], why[200];      /* to which text points */
};

struct top_totals {
    int workers, alive, stopped, stuck;
    double number[TOP_NUMBERS];         /* sums, of rates and amounts */
    const struct top_row *reason;       /* the stuck worker nearest to the reason; NULL if none is stuck */
};

struct top_sample {
    uint64_t at_ns;                     /* CLOCK_MONOTONIC */
    struct stat_jobs jobs;
};

struct top_model {
    const char *select;
    double stuck_s;
    struct top_sample before, now;
    struct top_row *workers, *rows;     /* of all views; of the view: by job, rank, peer; calls: the oldest first */
    struct top_row **shown;             /* for rendering: those that are shown, in their order */
    size_t count;
    struct top_totals totals;
};

/* Takes a sample, whose time is now_ns (CLOCK_MONOTONIC). Rates are taken between it and the sample before; NAN after
 * the first. The ages of unread frames are read for the view of rings only. 0; -errno, after which the model can only
 * be freed. */
int top_sample(struct top_model *model, enum top_view view, uint64_t now_ns);
/* Makes the rows of the view. 0, -ENOMEM. */
int top_rows(struct top_model *model, enum top_view view);
void top_free(struct top_model *model);
/* Seconds between the two samples; 0 at the first. */
double top_span(const struct top_model *model);

/* ---- Columns ------------------------------------------------------------------------------------ */

struct top_column {
    const char *title;
    const char *key;                    /* in JSON; NULL: not there, or under a key of the worker itself */
    int width;                          /* of a text: the least */
    int importance;                     /* 0: always shown; else 1 is the most, and the least is left out first */
    enum top_format {
        TOP_TEXT,
        TOP_WHOLE,                      /* 1234 */
        TOP_COUNT,                      /* 1.23k; in JSON a rate has a fraction, another figure is whole */
        TOP_BYTES,                      /* 1.23K, by 1024; so too */
        TOP_PERCENT,
        TOP_SECONDS,
    } format;
    int source;                         /* enum top_number, or enum top_text */
};

/* The columns of a view, and how many. state.sort is an index into them. */
const struct top_column *top_columns(enum top_view view, int *count);
/* The index of the column of that title, -1 if there is none. */
int top_column_named(enum top_view view, const char *title);
const char *top_view_name(enum top_view view);
/* A figure in at most five characters, unless it is WHOLE or SECONDS. Valid until the next call. */
const char *top_figure(double value, enum top_format format);

/* ---- View --------------------------------------------------------------------------------------- */

/* Keys other than characters. */
enum top_key { TOP_KEY_UP = 0x1000, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN, TOP_KEY_HOME, TOP_KEY_END };

struct top_state {
    enum top_view view;
    int sort[TOP_VIEWS];                /* a column */
    char filter[32];
    bool typing;                        /* the filter */
    double interval_s;
    size_t first;                       /* the first row shown; top_render bounds it */
    size_t page;                        /* rows that fitted in the last top_render */
};

/* Where lines go. */
struct top_page {
    FILE *out;
    int width, height;                  /* height 0: as many lines as there are */
    bool is_terminal, has_colours;
    int line, column;                   /* where the next character goes */
};

void top_state_init(struct top_state *state);
/* False if the key quits. */
bool top_key(struct top_state *state, int key);
/* Prints all lines of the rows that were made last, each cut at the page's width; bounds state->first. */
void top_render(struct top_model *model, struct top_state *state, struct top_page *page);

/* ---- Screen ------------------------------------------------------------------------------------- */

/* Runs until the user quits or a signal ends it, and restores the terminal. An exit status, or -errno. */
int top_screen_run(struct top_model *model, struct top_state *state);

#endif
