/* SPDX-License-Identifier: MIT */
/*
 * shmstat top, in four parts, each of which can be tested without the next one:
 *
 *     stat_top_rates.c    two samples of the jobs, and rows with rates made of them
 *     stat_top_keys.c     what the user chose: view, order, filter, pace; a key changes it
 *     stat_top_view.c     rows and choice to a grid of characters with attributes
 *     stat_screen.c       the grid to a terminal, keys from it; the only part that knows ncurses
 *
 * stat_top.c is the subcommand: its flags, the grid as plain text, and JSON.
 */
#ifndef TOOLS_STAT_TOP_H
#define TOOLS_STAT_TOP_H

#include "calls.h"

enum top_view {
    TOP_WORKERS,
    TOP_RINGS,
    TOP_CALLS,
    TOP_VIEWS,
};

/* ---- Rows (stat_top_rates.c) ---------------------------------------------------------------------- */

enum top_health {
    TOP_GONE,           /* its segment is gone: it left, or its job was cleaned up */
    TOP_DEAD,
    TOP_IDLE,
    TOP_BUSY,           /* it did something between the two samples, or has something to do */
    TOP_WARN,           /* a ring is nearly full, a call was given up */
    TOP_STUCK,
};

/* What a row says in figures; those in _S are per second. NAN where it is not known. */
enum top_number {
    TOP_RANK,
    TOP_PEER,           /* of a ring: to; of a call: the callee */
    TOP_PID,
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
    int cause;                          /* among the stuck: more for who is nearer to the reason; 0: not stuck */
    const char *doing;
    const char *state;
    char name[BXI_NAME_BYTES];          /* of the worker, or the caller */
    char peer[BXI_NAME_BYTES];
    char function[BXI_NAME_BYTES];
    char call[64];
    char why[200];                      /* a sentence if it is stuck or cannot be read, else "" */
    double number[TOP_NUMBERS];
};

struct top_totals {
    size_t jobs;
    int workers, alive, dead, gone;
    int asleep, spinning, stopped, stuck;
    double number[TOP_NUMBERS];         /* sums, of rates and amounts */
    char why[200];                      /* of the stuck worker that is nearest to the reason; "" if there is none */
};

struct top_flight;

struct top_sample {
    uint64_t at_ns;                     /* CLOCK_MONOTONIC */
    struct stat_jobs jobs;
    struct top_flight *flight;          /* a row for each job */
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

/* Takes a sample at that time, CLOCK_MONOTONIC, and makes the rows of the view; rates are those between it and
 * the sample before, NAN at the first. A job or worker that was there and is no more stays, as gone. 0; -errno,
 * and the model can only be freed. */
int top_sample(struct top_model *model, enum top_view view, uint64_t now_ns);
void top_free(struct top_model *model);
/* Seconds between the two samples; 0 at the first. */
double top_span(const struct top_model *model);

/* ---- What the user chose (stat_top_keys.c) ------------------------------------------------------- */

enum top_only { TOP_ALL, TOP_ONLY_BUSY, TOP_ONLY_STUCK };

#define TOP_FILTER_BYTES 32
#define TOP_INTERVAL_MIN 0.1
#define TOP_INTERVAL_MAX 60.0

/* Keys that are no characters. */
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
    bool batch;                         /* nobody presses keys */
    double interval_s;
    size_t first;                       /* row that is shown first; rendering bounds it */
    size_t page;                        /* rows that the last rendering had room for */
};

enum top_action {
    TOP_DRAW,           /* what is there, anew */
    TOP_SAMPLE,         /* another view: it needs a sample */
    TOP_QUIT,
};

void top_state_init(struct top_state *state, double interval_s);
enum top_action top_key(struct top_state *state, int key);
/* The lines of the help, "key\tmeaning"; NULL behind the last. */
const char *top_help_line(size_t i);

/* ---- The grid (stat_top_view.c) ------------------------------------------------------------------ */

enum top_attribute {
    TOP_PLAIN,
    TOP_BOLD,
    TOP_DIM,
    TOP_TITLE,          /* of a column */
    TOP_SORT,           /* of the column by which rows are sorted */
    TOP_GOOD,
    TOP_CAUTION,
    TOP_ALARM,
};

#define TOP_WIDTH_MAX 400
#define TOP_HEIGHT_MAX 20000

/* Lines of exactly `width` characters and a terminator, blanks at the end; an attribute for each. */
struct top_grid {
    int width, height;
    char *text;
    unsigned char *attribute;           /* of width + 1 a line, as text is */
};

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

/* -ENOMEM, or 0; width and height are bounded. */
int top_grid_init(struct top_grid *grid, int width, int height);
void top_grid_free(struct top_grid *grid);
const char *top_grid_line(const struct top_grid *grid, int line);
const unsigned char *top_grid_attributes(const struct top_grid *grid, int line);
/* Draws all of it; bounds state->first. */
void top_render(struct top_model *model, struct top_state *state, struct top_grid *grid);

/* ---- The terminal (stat_screen.c) ---------------------------------------------------------------- */

/* Until the user quits or a signal ends it; the terminal is as it was afterwards. An exit status. */
int top_screen_run(struct top_model *model, struct top_state *state);

#endif
