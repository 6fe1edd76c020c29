/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: draws rows into a grid of characters with attributes. It depends on the rows, on what the user chose and
 * on the size alone, not on a terminal or a job.
 *
 * Columns are chosen by importance until the width is used up; then the rest of the width goes to texts that are cut.
 * So a wider terminal shows more columns and longer names. The column by which rows are sorted is always shown.
 */
#include "top_view.h"

#include "state.h"
#include "text.h"
#include "top_columns.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLUMNS_MAX 32
#define HEADER_MAX 4
#define JOB_MAX 16

/* ---- The grid ------------------------------------------------------------------------------------ */

static int bounded(int value, int least, int most)
{
    return value < least ? least : value > most ? most : value;
}

int top_grid_init(struct top_grid *grid, int width, int height)
{
    size_t bytes;

    grid->width = bounded(width, 1, TOP_WIDTH_MAX);
    grid->height = bounded(height, 1, TOP_HEIGHT_MAX);
    bytes = (size_t)(grid->width + 1) * (size_t)grid->height;
    grid->text = malloc(bytes);
    grid->attribute = malloc(bytes);
    if (grid->text != NULL && grid->attribute != NULL)
        return 0;
    top_grid_free(grid);
    return -ENOMEM;
}

void top_grid_free(struct top_grid *grid)
{
    free(grid->text);
    free(grid->attribute);
    *grid = (struct top_grid){ 0 };
}

const char *top_grid_line(const struct top_grid *grid, int line)
{
    return grid->text + (size_t)line * (size_t)(grid->width + 1);
}

const unsigned char *top_grid_attributes(const struct top_grid *grid, int line)
{
    return grid->attribute + (size_t)line * (size_t)(grid->width + 1);
}

static void clear(struct top_grid *grid)
{
    size_t line_bytes = (size_t)(grid->width + 1);

    memset(grid->text, ' ', line_bytes * (size_t)grid->height);
    memset(grid->attribute, TOP_PLAIN, line_bytes * (size_t)grid->height);
    for (int line = 0; line < grid->height; line++)
        grid->text[(size_t)line * line_bytes + (size_t)grid->width] = '\0';
}

/* Cuts the text at the grid's edge. A name from /dev/shm may hold any bytes: unprintable ones become '?'. */
static int put(struct top_grid *grid, int line, int column, enum top_attribute attribute, const char *text)
{
    size_t start = (size_t)line * (size_t)(grid->width + 1);

    if (line < 0 || line >= grid->height)
        return column;
    for (; *text != '\0' && column < grid->width; text++, column++) {
        char shown = *text;

        if (shown < ' ' || shown >= 0x7f)
            shown = '?';
        grid->text[start + (size_t)column] = shown;
        grid->attribute[start + (size_t)column] = (unsigned char)attribute;
    }
    return column;
}

static int __attribute__((format(printf, 5, 6)))
put_format(struct top_grid *grid, int line, int column, enum top_attribute attribute, const char *format, ...)
{
    char text[TOP_WIDTH_MAX + 1];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return put(grid, line, column, attribute, text);
}

static void put_right(struct top_grid *grid, int line, int from, enum top_attribute attribute, const char *text)
{
    int column = grid->width - (int)strlen(text);

    if (column > from)
        put(grid, line, column, attribute, text);
}

/* ---- Which rows, in which order ------------------------------------------------------------------ */

struct order {
    const struct top_column *column;
    bool down;                          /* the largest first */
};

/* The model's order: by job, then rank. */
static int by_place(const struct top_row *one, const struct top_row *other)
{
    return (one > other) - (one < other);
}

static bool is_past(const struct top_row *row)
{
    return row->health == TOP_GONE || row->health == TOP_DEAD;
}

/* Living workers come before dead and gone ones, whatever the order. */
static int compare_rows(const void *a, const void *b, void *context)
{
    const struct top_row *one = *(struct top_row *const *)a, *other = *(struct top_row *const *)b;
    const struct order *order = context;
    const struct top_column *column = order->column;
    int sign;

    if (is_past(one) != is_past(other))
        return is_past(one) - is_past(other);
    if (column->format == TOP_TEXT) {
        sign = strverscmp(top_text(one, column->source), top_text(other, column->source));
    } else if (column->source == TOP_RANK) {
        sign = by_place(one, other);
    } else {
        double left = one->number[column->source], right = other->number[column->source];

        if (isnan(left) || isnan(right))            /* last, whatever the order */
            return isnan(left) != isnan(right) ? isnan(left) - isnan(right) : by_place(one, other);
        sign = (left > right) - (left < right);
    }
    if (sign == 0)
        return by_place(one, other);
    return order->down ? -sign : sign;
}

static bool has_text(const struct top_row *row, const char *filter)
{
    char pid[24];

    for (int source = TOP_JOB; source <= TOP_WHY; source++)
        if (strcasestr(top_text(row, source), filter) != NULL)
            return true;
    snprintf(pid, sizeof(pid), "%.0f", isnan(row->number[TOP_PID]) ? 0 : row->number[TOP_PID]);
    return strstr(pid, filter) != NULL;
}

static bool is_wanted(const struct top_state *state, const struct top_row *row)
{
    if (state->only == TOP_ONLY_STUCK && row->health != TOP_STUCK)
        return false;
    if (state->only == TOP_ONLY_BUSY && row->health < TOP_BUSY)
        return false;
    return state->filter[0] == '\0' || has_text(row, state->filter);
}

static size_t choose_rows(struct top_model *model, const struct top_state *state)
{
    int count;
    const struct top_column *column = top_columns(state->view, &count) + state->sort[state->view];
    bool down = column->format != TOP_TEXT && column->format != TOP_WHOLE;
    struct order order = { .column = column, .down = down != state->reverse[state->view] };
    size_t shown = 0;

    for (size_t i = 0; i < model->count; i++)
        if (is_wanted(state, &model->rows[i]))
            model->shown[shown++] = &model->rows[i];
    if (shown > 1)
        qsort_r(model->shown, shown, sizeof(struct top_row *), compare_rows, &order);
    return shown;
}

/* ---- Which columns ------------------------------------------------------------------------------- */

/* The widths of a view's columns; 0: not shown. */
struct layout {
    const struct top_column *columns;
    int count;
    int width[COLUMNS_MAX];
};

static int used_width(const struct layout *layout)
{
    int used = 0;

    for (int i = 0; i < layout->count; i++)
        used += layout->width[i] > 0 ? layout->width[i] + 1 : 0;
    return used - 1;
}

/* 0 if there is one job: the first line names it. Else room for the longest name, up to JOB_MAX, because names may
 * differ at their end only. */
static int job_width(const struct top_model *model)
{
    size_t longest = 3;

    for (size_t i = 0; i < model->now.jobs.count; i++)
        if (strlen(model->now.jobs.list[i].name) > longest)
            longest = strlen(model->now.jobs.list[i].name);
    return model->totals.jobs < 2 ? 0 : longest < JOB_MAX ? (int)longest : JOB_MAX;
}

static void choose_columns(struct layout *layout, const struct top_model *model, const struct top_state *state,
                           int width)
{
    int importance = 0;
    bool fits = true;

    layout->columns = top_columns(state->view, &layout->count);
    for (int i = 0; i < layout->count; i++) {
        bool always = layout->columns[i].importance == 0 || i == state->sort[state->view];

        layout->width[i] = always ? layout->columns[i].width : 0;
        if (layout->columns[i].format == TOP_TEXT && layout->columns[i].source == TOP_JOB)
            layout->width[i] = job_width(model);
    }
    while (fits && importance++ < COLUMNS_MAX) {
        for (int i = 0; i < layout->count && fits; i++) {
            if (layout->columns[i].importance != importance || layout->width[i] > 0)
                continue;
            layout->width[i] = layout->columns[i].width;
            fits = used_width(layout) <= width;
            if (!fits)
                layout->width[i] = 0;
        }
    }
}

/* Gives the rest of the width to texts that are longer than their columns, one character each in turn. */
static void widen(struct layout *layout, const struct top_model *model, size_t shown, int width)
{
    int need[COLUMNS_MAX] = { 0 }, left = width - used_width(layout);
    bool grew = true;

    for (int i = 0; i < layout->count; i++) {
        for (size_t row = 0; layout->columns[i].format == TOP_TEXT && layout->width[i] > 0 && row < shown; row++) {
            int length = (int)strlen(top_text(model->shown[row], layout->columns[i].source));

            need[i] = length > need[i] ? length : need[i];
        }
    }
    while (grew && left > 0) {
        grew = false;
        for (int i = 0; i < layout->count && left > 0; i++) {
            if (layout->width[i] == 0 || layout->width[i] >= need[i])
                continue;
            layout->width[i]++;
            left--;
            grew = true;
        }
    }
}

/* ---- Drawing ------------------------------------------------------------------------------------- */

/* Returns the column after it. */
static int draw_job(const struct top_model *model, struct top_grid *grid)
{
    const struct stat_job *job = model->now.jobs.count == 1 ? &model->now.jobs.list[0] : NULL;
    const struct top_totals *totals = &model->totals;
    uint64_t started_ns = job != NULL ? stat_job_started_ns(job) : 0;
    int column;

    if (totals->jobs == 0)
        return put(grid, 0, 0, TOP_BOLD, "no jobs of this user: waiting for one");
    if (job == NULL)
        return put_format(grid, 0, 0, TOP_BOLD, "%zu jobs of this user", totals->jobs);
    column = put_format(grid, 0, 0, TOP_BOLD, "%s.%016llx", job->name, (unsigned long long)job->instance);
    if (totals->workers > 0 && totals->alive == 0)
        return put(grid, 0, column, TOP_CAUTION,
                   totals->gone == totals->workers ? ": has ended, left nothing" : ": has ended, nobody lives");
    column = put_format(grid, 0, column, TOP_PLAIN, ": %s", stat_job_state(job));
    if (started_ns != 0)
        column = put_format(grid, 0, column, TOP_PLAIN, ", up %s",
                            stat_span_text(stat_since(started_ns, CLOCK_REALTIME)));
    return column;
}

/* The time over which rates are taken, or the interval. */
static void draw_pace(const struct top_model *model, const struct top_state *state, struct top_grid *grid, int column)
{
    char text[48];

    if (state->paused) {
        put_right(grid, 0, column, TOP_CAUTION, "paused");
        return;
    }
    snprintf(text, sizeof(text), state->batch ? "over %.1f s" : "every %.1f s",
             state->batch ? top_span(model) : state->interval_s);
    put_right(grid, 0, column, TOP_DIM, text);
}

static int put_count(struct top_grid *grid, int column, enum top_attribute attribute, const char *what, int count)
{
    return count > 0 ? put_format(grid, 1, column, attribute, ", %d %s", count, what) : column;
}

static void draw_workers(const struct top_model *model, struct top_grid *grid)
{
    const struct top_totals *totals = &model->totals;
    int column = put_format(grid, 1, 0, TOP_PLAIN, "%d workers: %d alive", totals->workers, totals->alive);

    column = put_count(grid, column, TOP_CAUTION, "dead", totals->dead);
    column = put_count(grid, column, TOP_DIM, "gone", totals->gone);
    column = put_count(grid, column, TOP_PLAIN, "asleep", totals->asleep);
    column = put_count(grid, column, TOP_PLAIN, "spinning", totals->spinning);
    column = put_count(grid, column, TOP_ALARM, "stopped", totals->stopped);
    put_count(grid, column, TOP_ALARM, "stuck", totals->stuck - totals->stopped);
}

/* A sum with its text, unless it does not fit; then no further one is drawn. */
static int put_total(const struct top_model *model, struct top_grid *grid, int column, enum top_number number,
                     const char *text)
{
    double value = model->totals.number[number];
    bool is_bytes = number == TOP_BYTES_OUT_S || number == TOP_ARENA || number == TOP_LOAN;
    bool is_rate = number >= TOP_CALLS_S && number <= TOP_FAILED_S;
    const char *figure = top_figure(is_rate && top_span(model) <= 0 ? NAN : value, is_bytes ? TOP_BYTES : TOP_COUNT);
    const char *between = column > 0 ? ", " : "";

    if (column + (int)(strlen(between) + strlen(figure) + strlen(text)) > grid->width)
        return grid->width;
    column = put(grid, 2, column, TOP_PLAIN, between);
    column = put(grid, 2, column, TOP_BOLD, figure);
    return put(grid, 2, column, TOP_PLAIN, text);
}

static void draw_totals(const struct top_model *model, struct top_grid *grid)
{
    int column = put_total(model, grid, 0, TOP_CALLS_S, " calls/s");

    column = put_total(model, grid, column, TOP_FRAMES_OUT_S, " frames/s");
    column = put_total(model, grid, column, TOP_BYTES_OUT_S, "B/s");
    column = put_total(model, grid, column, TOP_FLIGHT, " in flight");
    column = put_total(model, grid, column, TOP_SERVED, " served");
    column = put_total(model, grid, column, TOP_ARENA, "B in arenas");
    put_total(model, grid, column, TOP_LOAN, "B lent");
}

/* Line 3, if a worker is stuck. Returns the next free line. */
static int draw_reason(const struct top_model *model, struct top_grid *grid)
{
    int column;

    if (model->totals.why[0] == '\0')
        return 3;
    column = put(grid, 3, 0, TOP_ALARM, model->totals.why);
    if (model->totals.stuck > 1)
        put_format(grid, 3, column, TOP_PLAIN, " (and %d more)", model->totals.stuck - 1);
    return 4;
}

static void draw_titles(const struct layout *layout, const struct top_state *state, struct top_grid *grid, int line)
{
    char blanks[TOP_WIDTH_MAX + 1];
    int column = 0;

    memset(blanks, ' ', sizeof(blanks) - 1);
    blanks[sizeof(blanks) - 1] = '\0';
    put(grid, line, 0, TOP_TITLE, blanks);
    for (int i = 0; i < layout->count; i++) {
        const struct top_column *title = &layout->columns[i];

        if (layout->width[i] == 0)
            continue;
        put_format(grid, line, column, i == state->sort[state->view] ? TOP_SORT : TOP_TITLE,
                   title->format == TOP_TEXT ? "%-*s" : "%*s", layout->width[i], title->title);
        column += layout->width[i] + 1;
    }
}

static enum top_attribute attribute_of(const struct top_row *row, const struct top_column *column)
{
    if (row->health == TOP_STUCK)
        return TOP_ALARM;
    if (row->health == TOP_GONE)
        return TOP_DIM;
    if (row->health == TOP_DEAD)
        return TOP_CAUTION;
    if (column->format != TOP_TEXT && column->source == TOP_FILL && row->health == TOP_WARN)
        return TOP_CAUTION;
    if (column->format == TOP_TEXT && column->source == TOP_DOING)
        return row->health == TOP_WARN ? TOP_CAUTION : row->health == TOP_BUSY ? TOP_GOOD : TOP_PLAIN;
    if (column->format != TOP_TEXT && column->format != TOP_WHOLE &&
        (isnan(row->number[column->source]) || row->number[column->source] == 0))
        return TOP_DIM;
    return TOP_PLAIN;
}

static void draw_row(const struct layout *layout, const struct top_row *row, struct top_grid *grid, int line)
{
    int column = 0;

    for (int i = 0; i < layout->count; i++) {
        const struct top_column *one = &layout->columns[i];
        int width = layout->width[i];

        if (width == 0)
            continue;
        if (one->format == TOP_TEXT)
            put_format(grid, line, column, attribute_of(row, one), "%-*.*s", width, width, top_text(row, one->source));
        else
            put_format(grid, line, column, attribute_of(row, one), "%*s", width,
                       top_figure(row->number[one->source], one->format));
        column += width + 1;
    }
}

static void draw_footer(const struct top_model *model, const struct top_state *state, struct top_grid *grid,
                        size_t shown)
{
    static const char *const onlys[] = { "", ", busy only", ", stuck only" };
    int count, line = grid->height - 1;
    const struct top_column *columns = top_columns(state->view, &count);
    size_t last = state->first + state->page < shown ? state->first + state->page : shown;
    int column;

    if (state->typing) {
        put_format(grid, line, 0, TOP_BOLD, "show rows with: %s_", state->filter);
        put_right(grid, line, 50, TOP_DIM, "Enter keeps it, Esc ends it");
        return;
    }
    column = put_format(grid, line, 0, TOP_BOLD, "%s %zu-%zu of %zu", top_view_name(state->view),
                        shown > 0 ? state->first + 1 : 0, last, shown);
    if (shown < model->count)
        column = put_format(grid, line, column, TOP_PLAIN, " (%zu in all%s)", model->count, onlys[state->only]);
    column = put_format(grid, line, column, TOP_PLAIN, " by %s%s", columns[state->sort[state->view]].title,
                        state->reverse[state->view] ? " reversed" : "");
    if (state->filter[0] != '\0')
        column = put_format(grid, line, column, TOP_CAUTION, " with '%s'", state->filter);
    if (!state->batch)
        put_right(grid, line, column, TOP_DIM, "h help  q quit");
}

static void draw_help(struct top_grid *grid)
{
    put(grid, 0, 0, TOP_BOLD, "shmstat top: keys");
    for (size_t i = 0; top_help_line(i) != NULL; i++) {
        const char *text = top_help_line(i);
        int length = (int)strcspn(text, "\t");

        put_format(grid, (int)i + 2, 2, TOP_BOLD, "%.*s", length, text);
        put(grid, (int)i + 2, 11, TOP_PLAIN, text + length + 1);
    }
}

static void bound_scroll(struct top_state *state, size_t shown, int room)
{
    size_t most;

    state->page = room > 0 ? (size_t)room : 1;
    most = shown > state->page ? shown - state->page : 0;
    if (state->first > most)
        state->first = most;
}

void top_render(struct top_model *model, struct top_state *state, struct top_grid *grid)
{
    struct layout layout = { 0 };
    size_t shown = choose_rows(model, state);
    int top = 0, room;

    clear(grid);
    /* A terminal of a few lines shows rows, and no more. */
    if (grid->height > HEADER_MAX + 3) {
        draw_pace(model, state, grid, draw_job(model, grid));
        draw_workers(model, grid);
        draw_totals(model, grid);
        top = draw_reason(model, grid);
    }
    room = grid->height - top - 2;
    bound_scroll(state, shown, room);
    if (state->help) {
        clear(grid);
        draw_help(grid);
        return;
    }
    choose_columns(&layout, model, state, grid->width);
    widen(&layout, model, shown, grid->width);
    draw_titles(&layout, state, grid, top);
    for (size_t i = 0; (int)i < room && state->first + i < shown; i++)
        draw_row(&layout, model->shown[state->first + i], grid, top + 1 + (int)i);
    draw_footer(model, state, grid, shown);
}
