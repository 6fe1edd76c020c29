/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: the workers, rings or calls of jobs, live and as rates. This file has the two forms that need no
 * terminal: the same lines as text (--once, --batch), and one sample as JSON. top.h names the other parts.
 */
#include "top.h"

#include "describe.h"
#include "json.h"
#include "list.h"
#include "text.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_STUCK_S 10.0

static bool is_batch(const struct stat_top_options *options)
{
    return options->batch || options->once || options->count > 0;
}

static int misused(const char *sentence)
{
    fprintf(stderr, "shmstat: %s; the manual page has more\n", sentence);
    return STAT_USAGE;
}

/* Sets what is shown first, from the flags: STAT_FINE, or STAT_USAGE after a line on stderr. */
static int begin_state(const struct stat_options *options, struct top_state *state)
{
    const struct stat_top_options *top = &options->top;
    int view = 0;

    top_state_init(state);
    while (top->view != NULL && view < TOP_VIEWS && strcmp(top->view, top_view_name((enum top_view)view)) != 0)
        view++;
    if (view == TOP_VIEWS)
        return misused("--view is workers, rings or calls");
    state->view = (enum top_view)view;
    if (top->interval_s > 0)
        state->interval_s = top->interval_s;
    if (top->sort != NULL && (state->sort[view] = top_column_named(state->view, top->sort)) < 0)
        return misused("--sort is the title of a column of the view");
    if (top->filter != NULL && strlen(top->filter) >= sizeof(state->filter))
        return misused("--filter is a text of at most 31 characters");
    strcpy(state->filter, top->filter != NULL ? top->filter : "");
    if (options->json && is_batch(top))
        return misused("choose one of --json and --batch");
    if (options->json && state->view == TOP_CALLS)
        return misused("shmstat calls --json has the calls; --view is workers or rings here");
    if (!options->json && !is_batch(top) && (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)))
        return misused("top needs a terminal to show it in and for its keys; --once, --batch and --json need none");
    return STAT_FINE;
}

/* ---- Text ---------------------------------------------------------------------------------------- */

static void pause_for(double seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* The first picture needs two samples, an interval apart. */
static int next_rows(struct top_model *model, const struct top_state *state)
{
    int rc = 0;

    if (model->now.at_ns == 0)
        rc = top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC));
    if (rc < 0)
        return rc;
    pause_for(state->interval_s);
    rc = top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC));
    return rc < 0 ? rc : top_rows(model, state->view);
}

static int run_batch(struct top_model *model, struct top_state *state, const struct stat_top_options *options)
{
    double count = options->once ? 1 : options->count > 0 ? options->count : INFINITY;
    struct winsize size = { .ws_col = 80 };
    struct top_page page = { .out = stdout };
    int rc = 0;

    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    page.width = options->width > 0 ? (int)options->width : size.ws_col;
    for (double i = 0; i < count && !ferror(stdout); i++) {
        rc = next_rows(model, state);
        if (rc < 0)
            break;
        if (i > 0)
            putchar('\n');
        top_render(model, state, &page);
        fflush(stdout);
    }
    return rc;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static void json_columns(const struct top_row *row, enum top_view view)
{
    int count;
    const struct top_column *columns = top_columns(view, &count);
    struct stat_row keys;

    stat_row_begin(&keys);
    for (int i = 0; i < count; i++) {
        const struct top_column *column = &columns[i];
        /* A real even so: sums of garbage words may exceed 64 bits. */
        bool is_whole = (column->format == TOP_COUNT || column->format == TOP_BYTES) && column->source >= TOP_RATES;

        if (column->key != NULL && column->format == TOP_TEXT)
            stat_put_text(&keys, column->key, row->text[column->source]);
        else if (column->key != NULL)
            stat_put_real(&keys, column->key, is_whole ? STAT_NS : STAT_SECONDS, row->number[column->source]);
    }
    stat_row_json(&keys);
}

static void json_rows(const struct top_model *model, const struct stat_job *job, enum top_view view)
{
    stat_json_open(top_view_name(view), '[');
    for (size_t i = 0; i < model->count; i++) {
        const struct top_row *row = &model->rows[i];

        if (row->job != job)
            continue;
        stat_json_open(NULL, '{');
        if (view == TOP_WORKERS) {
            stat_first_json(stat_worker_row, job, job->workers[(int)row->number[TOP_RANK]]);
            stat_json_bool("stuck", row->cause > 0);
        } else {
            stat_json_u64("from", (uint64_t)row->number[TOP_RANK]);
            stat_json_u64("to", (uint64_t)row->number[TOP_PEER]);
        }
        json_columns(row, view);
        stat_json_close('}');
    }
    stat_json_close(']');
}

/* The workers or, with --view rings, the rings. */
static int run_json(struct top_model *model, const struct top_state *state)
{
    int rc = next_rows(model, state);

    if (rc < 0)
        return rc;
    stat_json_begin("top");
    stat_json_seconds("interval_seconds", top_span(model));
    stat_json_seconds("stuck_after_seconds", model->stuck_s);
    stat_json_open("jobs", '[');
    for (size_t i = 0; i < model->now.jobs.count; i++) {
        stat_json_open(NULL, '{');
        stat_first_json(stat_job_row, &model->now.jobs.list[i], NULL);
        json_rows(model, &model->now.jobs.list[i], state->view);
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

    rc = options->json ? run_json(model, state)
         : is_batch(&options->top) ? run_batch(model, state, &options->top) : top_screen_run(model, state);
    if (rc >= 0)
        return rc;
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
    int status = begin_state(options, &state);

    if (status == STAT_FINE)
        status = stat_find(&jobs, options);
    if (status != STAT_FINE)
        return status;
    stat_jobs_free(&jobs);
    status = run(&model, &state, options);
    top_free(&model);
    return status;
}
