/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: the workers, rings or calls of jobs, live and as rates. This file has the two forms that need no
 * terminal: the same picture as lines of text (--once, --batch), and one sample as JSON. top_rates.h names the
 * other parts.
 */
#include "describe.h"
#include "json.h"
#include "list.h"
#include "screen.h"
#include "shmstat.h"
#include "text.h"
#include "top_columns.h"
#include "top_view.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_WIDTH 80
#define DEFAULT_HEIGHT 24
#define DEFAULT_INTERVAL_S 1.0
#define DEFAULT_STUCK_S 10.0

/* ---- What is shown first ------------------------------------------------------------------------- */

static bool parse_view(const char *name, enum top_view *view)
{
    for (int i = 0; i < TOP_VIEWS; i++) {
        if (strcmp(name, top_view_name((enum top_view)i)) == 0) {
            *view = (enum top_view)i;
            return true;
        }
    }
    return false;
}

static bool parse_sort(const char *title, enum top_view view, int *sort)
{
    int count;
    const struct top_column *columns = top_columns(view, &count);

    for (int i = 0; i < count; i++) {
        if (strcasecmp(columns[i].title, title) == 0) {
            *sort = i;
            return true;
        }
    }
    return false;
}

static bool is_batch(const struct stat_top_options *options)
{
    return options->batch || options->once || options->count > 0;
}

/* Sets what is shown first, from the flags. */
static bool begin_state(const struct stat_top_options *options, struct top_state *state)
{
    top_state_init(state, options->interval_s > 0 ? options->interval_s : DEFAULT_INTERVAL_S);
    state->batch = is_batch(options);
    if (options->view != NULL && !parse_view(options->view, &state->view)) {
        fprintf(stderr, "shmstat: --view is workers, rings or calls\n");
        return false;
    }
    if (options->sort != NULL && !parse_sort(options->sort, state->view, &state->sort[state->view])) {
        fprintf(stderr, "shmstat: --sort is the title of a column of the %s\n", top_view_name(state->view));
        return false;
    }
    if (options->filter != NULL && strlen(options->filter) >= sizeof(state->filter)) {
        fprintf(stderr, "shmstat: --filter is a text of at most %zu characters\n", sizeof(state->filter) - 1);
        return false;
    }
    if (options->filter != NULL)
        strcpy(state->filter, options->filter);
    return true;
}

/* ---- Text ---------------------------------------------------------------------------------------- */

static int grid_for(const struct stat_top_options *options, struct top_grid *grid)
{
    struct winsize size = { 0 };
    int width = DEFAULT_WIDTH, height = DEFAULT_HEIGHT;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        width = size.ws_col;
        height = size.ws_row;
    }
    return top_grid_init(grid, options->width > 0 ? (int)options->width : width,
                         options->height > 0 ? (int)options->height : height);
}

/* Without the blanks at the end of lines, and without empty lines. */
static void print_grid(const struct top_grid *grid)
{
    for (int line = 0; line < grid->height; line++) {
        const char *text = top_grid_line(grid, line);
        int length = grid->width;

        while (length > 0 && text[length - 1] == ' ')
            length--;
        if (length > 0)
            printf("%.*s\n", length, text);
    }
    fflush(stdout);
}

static void pause_for(double seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* The first picture needs two samples, an interval apart. */
static int next_sample(struct top_model *model, const struct top_state *state)
{
    int rc = 0;

    if (model->now.at_ns == 0)
        rc = top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC));
    if (rc < 0)
        return rc;
    pause_for(state->interval_s);
    return top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC));
}

static int run_batch(struct top_model *model, struct top_state *state, const struct stat_top_options *options)
{
    double count = options->once ? 1 : options->count > 0 ? options->count : INFINITY;
    struct top_grid grid = { 0 };
    int rc = grid_for(options, &grid);

    for (double i = 0; rc == 0 && i < count && !ferror(stdout); i++) {
        rc = next_sample(model, state);
        if (rc < 0)
            break;
        top_render(model, state, &grid);
        if (i > 0)
            putchar('\n');
        print_grid(&grid);
    }
    top_grid_free(&grid);
    return rc;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

/* Not a rate, an age or a share. */
static bool is_whole(int source)
{
    return source == TOP_FLIGHT || source == TOP_SERVED || source == TOP_POOL || source == TOP_UNREAD ||
           source == TOP_ARENA || source == TOP_LOAN;
}

/* Sums of garbage words may exceed 64 bits. */
static uint64_t whole(double value)
{
    return value < 0x1p63 ? (uint64_t)value : UINT64_MAX;
}

static void json_columns(const struct top_row *row, enum top_view view)
{
    int count;
    const struct top_column *columns = top_columns(view, &count);

    for (int i = 0; i < count; i++) {
        const struct top_column *column = &columns[i];

        if (column->key == NULL)
            continue;
        if (column->format == TOP_TEXT)
            stat_json_text(column->key, top_text(row, column->source));
        else if (isnan(row->number[column->source]))
            stat_json_null(column->key);
        else if (is_whole(column->source))
            stat_json_u64(column->key, whole(row->number[column->source]));
        else
            stat_json_seconds(column->key, row->number[column->source]);
    }
}

static void json_rows(const struct top_model *model, const struct stat_job *job)
{
    stat_json_open(top_view_name(model->view), '[');
    for (size_t i = 0; i < model->count; i++) {
        const struct top_row *row = &model->rows[i];

        if (row->job != job)
            continue;
        stat_json_open(NULL, '{');
        if (model->view == TOP_WORKERS) {
            stat_json_worker(job->workers[(int)row->number[TOP_RANK]]);
            stat_json_bool("stuck", row->cause > 0);
        } else {
            stat_json_u64("from", (uint64_t)row->number[TOP_RANK]);
            stat_json_u64("to", (uint64_t)row->number[TOP_PEER]);
        }
        json_columns(row, model->view);
        stat_json_close('}');
    }
    stat_json_close(']');
}

/* The workers or, with --view rings, the rings. */
static int run_json(struct top_model *model, const struct top_state *state)
{
    int rc = next_sample(model, state);

    if (rc < 0)
        return rc;
    stat_json_begin("top");
    stat_json_seconds("interval_seconds", top_span(model));
    stat_json_seconds("stuck_after_seconds", model->stuck_s);
    stat_json_open("jobs", '[');
    for (size_t i = 0; i < model->now.jobs.count; i++) {
        stat_json_open(NULL, '{');
        stat_json_job(&model->now.jobs.list[i]);
        json_rows(model, &model->now.jobs.list[i]);
        stat_json_close('}');
    }
    stat_json_close(']');
    stat_json_end();
    return 0;
}

/* ---- The subcommand ------------------------------------------------------------------------------ */

static int run(struct top_model *model, struct top_state *state, const struct stat_options *options)
{
    int rc;

    if (!options->json && !is_batch(&options->top))
        return top_screen_run(model, state);
    rc = options->json ? run_json(model, state) : run_batch(model, state, &options->top);
    if (rc == 0)
        return STAT_FINE;
    fprintf(stderr, "shmstat: the jobs cannot be read: %s\n", strerror(-rc));
    return STAT_NOTHING;
}

int stat_top(const struct stat_options *options)
{
    struct top_model model = {
        .select = options->select,
        .stuck_s = options->top.stuck_s > 0 ? options->top.stuck_s : DEFAULT_STUCK_S,
    };
    struct top_state state;
    struct stat_jobs jobs;
    int status;

    if (options->json && is_batch(&options->top)) {
        fprintf(stderr, "shmstat: choose one of --json and '--batch'; shmstat --help lists what there is\n");
        return STAT_USAGE;
    }
    if (!begin_state(&options->top, &state))
        return STAT_USAGE;
    if (options->json && state.view == TOP_CALLS) {
        fprintf(stderr, "shmstat: shmstat calls --json has the calls; --view is workers or rings here\n");
        return STAT_USAGE;
    }
    if (!options->json && !is_batch(&options->top) && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))) {
        fprintf(stderr, "shmstat: top needs a terminal to show it in and for its keys; --once, --batch and --json "
                        "need none\n");
        return STAT_USAGE;
    }
    status = stat_find(&jobs, options);
    if (status != STAT_FINE)
        return status;
    stat_jobs_free(&jobs);
    status = run(&model, &state, options);
    top_free(&model);
    return status;
}
