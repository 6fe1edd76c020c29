/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: samples of the jobs, and rows with rates made of two of them.
 *
 * top has five parts, each of which can be tested without the next one:
 *
 *     top_rates.c      two samples of the jobs, and rows with rates made of them
 *     top_columns.c    the columns of each view: title, key in JSON, width, format
 *     top_keys.c       what the user chose: view, order, filter, pace; a key changes it
 *     top_view.c       rows and choice to a grid of characters with attributes
 *     screen.c         the grid to a terminal, keys from it; the only part that uses ncurses
 *
 * top.c is the subcommand: its flags, the grid as plain text, and JSON.
 */
#ifndef TOOLS_STAT_TOP_RATES_H
#define TOOLS_STAT_TOP_RATES_H

#include "flight.h"

enum top_view {
    TOP_WORKERS,
    TOP_RINGS,
    TOP_CALLS,
    TOP_VIEWS,
};

enum top_health {
    TOP_GONE,           /* its segment is removed: it left, or its job was cleaned up */
    TOP_DEAD,
    TOP_IDLE,
    TOP_BUSY,           /* it was active between the two samples, or has calls or requests open */
    TOP_WARN,           /* a ring is nearly full, a call was given up */
    TOP_STUCK,
};

/* The figures of a row; those in _S are per second. NAN if it is not known. */
enum top_number {
    TOP_RANK,
    TOP_PEER,           /* of a ring: to; of a call: the callee */
    TOP_PID,
    TOP_GENERATION,
    TOP_CALLS_S,
    TOP_REQUESTS_S,
    TOP_BYTES_OUT_S,    /* of frames, as all bytes but TENSOR_BYTES_S */
    TOP_BYTES_IN_S,
    TOP_FRAMES_OUT_S,
    TOP_FRAMES_IN_S,
    TOP_TENSOR_BYTES_S,
    TOP_FAILED_S,       /* calls that timed out or lost their callee, requests refused or too late */
    TOP_FLIGHT,
    TOP_SERVED,         /* requests whose handler has not ended */
    TOP_POOL,           /* threads that run a handler */
    TOP_AGE,            /* of the oldest call in flight, the oldest unread frame of a ring, or the call; seconds */
    TOP_LEFT,           /* until the call's deadline */
    TOP_FILL,           /* of the ring, or of the fullest one to others, in % */
    TOP_HIGH,           /* most that the ring ever held, in % */
    TOP_UNREAD,         /* bytes in the ring that its consumer has not read */
    TOP_WAKEUPS_S,
    TOP_BELLS_S,
    TOP_SAVED_S,
    TOP_FULL_S,
    TOP_ARENA,
    TOP_LOAN,
    TOP_NUMBERS,
};

struct top_row {
    const struct stat_job *job;
    enum top_health health;
    int cause;                          /* 0: not stuck; larger: nearer to the reason why others are stuck */
    const char *doing;
    const char *state;
    char name[BXI_NAME_BYTES];          /* of the worker, or the caller */
    char peer[BXI_NAME_BYTES];
    char function[BXI_NAME_BYTES];
    char call[64];
    char why[200];                      /* a sentence if it is stuck or cannot be read; else "" */
    double number[TOP_NUMBERS];
};

struct top_totals {
    size_t jobs;
    int workers, alive, dead, gone;
    int asleep, spinning, stopped, stuck;
    double number[TOP_NUMBERS];         /* sums, of rates and amounts */
    char why[200];                      /* of the stuck worker nearest to the reason; "" if none is stuck */
};

struct top_sample {
    uint64_t at_ns;                     /* CLOCK_MONOTONIC */
    struct stat_jobs jobs;
};

struct top_model {
    const char *select;
    double stuck_s;
    struct top_sample before, now;
    enum top_view view;
    struct top_row *rows;               /* of that view: by job, rank, peer; calls: the oldest first */
    struct top_row **shown;             /* as many, for rendering: those that are shown, in their order */
    size_t count, capacity;
    struct top_totals totals;
};

/* Takes a sample, whose time is now_ns (CLOCK_MONOTONIC), and makes the rows of the view. Rates are taken between it
 * and the sample before; NAN after the first. A job or worker that has been removed since stays, as gone. 0; -errno,
 * after which the model can only be freed. */
int top_sample(struct top_model *model, enum top_view view, uint64_t now_ns);
void top_free(struct top_model *model);
/* Seconds between the two samples; 0 at the first. */
double top_span(const struct top_model *model);

#endif
