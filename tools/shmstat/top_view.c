/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: what the user chose, what each key changes of it, and the lines that follow from it. It needs no
 * terminal and no job: the caller passes rows and keys in. In a terminal each picture is printed over the one before.
 */
#include "state.h"
#include "text.h"
#include "top.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLUMNS_MAX 32
#define TEXT_MAX 16             /* a text column is no wider, except the last */
#define HEADER_LINES 3

/* ---- Keys ---------------------------------------------------------------------------------------- */

void top_state_init(struct top_state *state)
{
    *state = (struct top_state){
        .sort = { top_column_named(TOP_WORKERS, "RANK"), top_column_named(TOP_RINGS, "OUT/s"),
                  top_column_named(TOP_CALLS, "AGE") },
        .interval_s = 1, .page = 1,
    };
}

/* Enter keeps the text, Esc forgets it. */
static void type_filter(struct top_state *state, int key)
{
    size_t length = strlen(state->filter);

    state->first = 0;
    if (key == '\r' || key == '\n' || key == '\033') {
        state->typing = false;
        state->filter[key == '\033' ? 0 : length] = '\0';
    } else if ((key == '\b' || key == 0x7f) && length > 0) {
        state->filter[length - 1] = '\0';
    } else if (key < 0x7f && isprint(key) && length + 1 < sizeof(state->filter)) {
        state->filter[length] = (char)key;
        state->filter[length + 1] = '\0';
    }
}

static void sort_by(struct top_state *state, int step)
{
    int count;

    top_columns(state->view, &count);
    state->sort[state->view] = (state->sort[state->view] + step + count) % count;
}

/* Up if rows is negative; top_render bounds it below. */
static void scroll(struct top_state *state, long rows)
{
    long first = (long)state->first;

    state->first = (size_t)(rows < -first ? 0 : rows > LONG_MAX / 2 - first ? LONG_MAX / 2 : first + rows);
}

bool top_key(struct top_state *state, int key)
{
    static const char views[] = { [TOP_WORKERS] = 'w', [TOP_RINGS] = 'r', [TOP_CALLS] = 'c' };

    if (state->typing) {
        type_filter(state, key);
        return true;
    }
    for (int i = 0; i < TOP_VIEWS; i++) {
        if (views[i] == key) {
            state->view = (enum top_view)i;
            state->first = 0;
        }
    }
    switch (key) {
    case 'q': return false;
    case '<': sort_by(state, -1); break;
    case '>': sort_by(state, 1); break;
    case '/': state->typing = true; break;
    case '\033': state->filter[0] = '\0'; break;
    case TOP_KEY_UP: scroll(state, -1); break;
    case TOP_KEY_DOWN: scroll(state, 1); break;
    case TOP_KEY_PAGE_UP: scroll(state, -(long)state->page); break;
    case TOP_KEY_PAGE_DOWN: scroll(state, (long)state->page); break;
    case TOP_KEY_HOME: scroll(state, -LONG_MAX); break;
    case TOP_KEY_END: scroll(state, LONG_MAX); break;
    default: break;
    }
    return true;
}

/* ---- Lines --------------------------------------------------------------------------------------- */

enum style { PLAIN, BOLD, TITLE, SORTED, CAUTION, ALARM };

/* One piece of the line, cut at the page's width. */
static void __attribute__((format(printf, 3, 4)))
put(struct top_page *page, enum style style, const char *format, ...)
{
    static const char *const colours[] = { "", "1", "7", "1;4;7", "33", "1;31" };
    static const char *const plain[] = { "", "1", "7", "1;4;7", "1", "1;7" };
    char text[512], shown[512];
    size_t room = page->column < page->width ? (size_t)(page->width - page->column) : 0;
    va_list args;

    if (page->height > 0 && page->line >= page->height)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    stat_printable(shown, room + 1 < sizeof(shown) ? room + 1 : sizeof(shown), text, sizeof(text));
    if (style != PLAIN && page->is_terminal)
        fprintf(page->out, "\033[%sm%s\033[0m", (page->has_colours ? colours : plain)[style], shown);
    else
        fputs(shown, page->out);
    page->column += (int)strlen(shown);
}

/* The last line of a terminal has no end, which would scroll it. Each line is cleared before it is written. */
static void end_line(struct top_page *page)
{
    page->line++;
    page->column = 0;
    if (page->height == 0 || page->line < page->height)
        fputs(page->is_terminal ? "\n\033[K" : "\n", page->out);
}

/* ---- Which rows, in which order ------------------------------------------------------------------ */

/* The model's order: by job, then rank. */
static int by_place(const struct top_row *one, const struct top_row *other)
{
    return (one > other) - (one < other);
}

/* The largest figures first, and the smallest texts and ranks. Living workers come before dead ones, and what is not
 * known comes last. */
static int compare_rows(const void *a, const void *b, void *context)
{
    const struct top_row *one = *(struct top_row *const *)a, *other = *(struct top_row *const *)b;
    const struct top_column *column = context;
    double left, right;
    int sign;

    if ((one->health == TOP_DEAD) != (other->health == TOP_DEAD))
        return one->health == TOP_DEAD ? 1 : -1;
    if (column->format == TOP_TEXT) {
        sign = strverscmp(one->text[column->source], other->text[column->source]);
        return sign != 0 ? sign : by_place(one, other);
    }
    left = one->number[column->source];
    right = other->number[column->source];
    if (column->source == TOP_RANK || left == right || (isnan(left) && isnan(right)))
        return by_place(one, other);
    sign = isnan(left) || left < right ? 1 : -1;
    if (column->format == TOP_WHOLE && !isnan(left) && !isnan(right))
        sign = -sign;
    return sign;
}

static bool has_text(const struct top_row *row, const char *filter)
{
    for (int i = 0; i < TOP_TEXTS; i++)
        if (strcasestr(row->text[i], filter) != NULL)
            return true;
    return !isnan(row->number[TOP_PID]) && strstr(top_figure(row->number[TOP_PID], TOP_WHOLE), filter) != NULL;
}

static size_t choose_rows(struct top_model *model, const struct top_state *state)
{
    struct top_column column = top_columns(state->view, &(int){ 0 })[state->sort[state->view]];
    size_t shown = 0;

    for (size_t i = 0; i < model->count; i++)
        if (has_text(&model->rows[i], state->filter))
            model->shown[shown++] = &model->rows[i];
    qsort_r(model->shown, shown, sizeof(struct top_row *), compare_rows, &column);
    return shown;
}

/* ---- Which columns ------------------------------------------------------------------------------- */

/* The widths of a view's columns; 0: not shown. */
struct layout {
    const struct top_column *columns;
    int count;
    int width[COLUMNS_MAX];
};

/* A text column is as wide as its longest text, between its own width and TEXT_MAX. */
static int width_of(const struct top_column *column, const struct top_model *model, size_t shown)
{
    size_t longest = (size_t)column->width;

    for (size_t i = 0; column->format == TOP_TEXT && i < shown; i++)
        if (strlen(model->shown[i]->text[column->source]) > longest)
            longest = strlen(model->shown[i]->text[column->source]);
    return column->width > TEXT_MAX || longest < TEXT_MAX ? (int)longest : TEXT_MAX;
}

/* In the order of their importance, as long as they fit. The job's name is left out where there is one job: the first
 * line has it. */
static void choose_columns(struct layout *layout, const struct top_model *model, const struct top_state *state,
                           size_t shown, int room)
{
    bool fits = true;

    layout->columns = top_columns(state->view, &layout->count);
    for (int importance = 0; importance < COLUMNS_MAX; importance++) {
        for (int i = 0; i < layout->count; i++) {
            const struct top_column *column = &layout->columns[i];
            int width = width_of(column, model, shown);
            bool is_forced = importance == 0 && (column->importance == 0 || i == state->sort[state->view]);

            if (layout->width[i] > 0 || (column->importance != importance && !is_forced) ||
                (column->source == TOP_JOB && column->format == TOP_TEXT && model->now.jobs.count < 2))
                continue;
            fits = fits && (is_forced || width <= room);
            if (!fits)
                continue;
            layout->width[i] = width;
            room -= width + 1;
        }
    }
}

/* ---- Drawing ------------------------------------------------------------------------------------- */

static void draw_job(const struct top_model *model, struct top_page *page)
{
    const struct stat_job *job = model->now.jobs.list;

    if (model->now.jobs.count == 0)
        put(page, BOLD, model->select != NULL ? "no job '%s': waiting for it" : "no jobs of this user", model->select);
    else if (model->now.jobs.count > 1)
        put(page, BOLD, "%zu jobs of this user", model->now.jobs.count);
    else
        put(page, BOLD, "%s.%016llx: %s", job->name, (unsigned long long)job->instance, stat_job_state(job));
    if (model->now.jobs.count == 1 && stat_job_started_ns(job) != 0)
        put(page, PLAIN, ", up %s", stat_time_text(stat_since(stat_job_started_ns(job), CLOCK_REALTIME)));
    put(page, PLAIN, ", over %.1f s", top_span(model));
    end_line(page);
}

static void put_count(struct top_page *page, enum style style, int count, const char *what)
{
    if (count > 0)
        put(page, style, ", %d %s", count, what);
}

static void draw_workers(const struct top_model *model, struct top_page *page)
{
    const struct top_totals *totals = &model->totals;
    static const struct {
        enum top_number number;
        enum top_format format;
        const char *what;
    } sums[] = {
        { TOP_CALLS_S, TOP_COUNT, " calls/s" }, { TOP_FRAMES_OUT_S, TOP_COUNT, " frames/s" },
        { TOP_BYTES_OUT_S, TOP_BYTES, "B/s" }, { TOP_FLIGHT, TOP_COUNT, " in flight" },
        { TOP_LOAN, TOP_BYTES, "B lent" },
    };

    put(page, PLAIN, "%d workers: %d alive", totals->workers, totals->alive);
    put_count(page, CAUTION, totals->workers - totals->alive, "dead");
    put_count(page, ALARM, totals->stopped, "stopped");
    put_count(page, ALARM, totals->stuck - totals->stopped, "stuck");
    end_line(page);
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
        put(page, PLAIN, "%s%s%s", i > 0 ? ", " : "", top_figure(totals->number[sums[i].number], sums[i].format),
            sums[i].what);
    end_line(page);
    if (totals->reason == NULL)
        return;
    put(page, ALARM, "%s", totals->reason->text[TOP_WHY]);
    if (totals->stuck > 1)
        put(page, PLAIN, " (and %d more)", totals->stuck - 1);
    end_line(page);
}

/* Blanks up to the cell, which ends or begins at its column. */
static void put_cell(struct top_page *page, const struct layout *layout, int i, enum style style, const char *text,
                     int *start)
{
    bool is_text = layout->columns[i].format == TOP_TEXT;
    int width = layout->width[i], length = (int)strlen(text);
    int left = is_text || length >= width ? 0 : width - length;

    put(page, style, "%*s%.*s", *start + left - page->column, "", width, text);
    *start += width + 1;
}

/* The titles, if row is NULL. */
static void draw_row(const struct layout *layout, const struct top_state *state, const struct top_row *row,
                     struct top_page *page)
{
    int start = 0;

    for (int i = 0; i < layout->count; i++) {
        const struct top_column *column = &layout->columns[i];

        if (layout->width[i] == 0)
            continue;
        if (row == NULL)
            put_cell(page, layout, i, i == state->sort[state->view] ? SORTED : TITLE, column->title, &start);
        else
            put_cell(page, layout, i,
                     row->health == TOP_STUCK                              ? ALARM
                     : row->health == TOP_DEAD || row->health == TOP_WARN ? CAUTION : PLAIN,
                     column->format == TOP_TEXT ? row->text[column->source]
                                                : top_figure(row->number[column->source], column->format), &start);
    }
    end_line(page);
}

static void draw_footer(const struct top_model *model, const struct top_state *state, size_t shown,
                        struct top_page *page)
{
    size_t last = state->first + state->page < shown ? state->first + state->page : shown;

    if (state->typing) {
        put(page, BOLD, "show rows with: %s_   Enter keeps it, Esc ends it", state->filter);
        return;
    }
    put(page, BOLD, "%s %zu-%zu of %zu", top_view_name(state->view), shown > 0 ? state->first + 1 : 0, last, shown);
    if (shown < model->count)
        put(page, PLAIN, " (%zu in all)", model->count);
    put(page, PLAIN, " by %s", top_columns(state->view, &(int){ 0 })[state->sort[state->view]].title);
    if (state->filter[0] != '\0')
        put(page, CAUTION, " with '%s'", state->filter);
    if (page->is_terminal)
        put(page, PLAIN, "   w r c: view  < >: sort  /: filter  q: quit");
}

void top_render(struct top_model *model, struct top_state *state, struct top_page *page)
{
    struct layout layout = { 0 };
    size_t shown = choose_rows(model, state), room = shown;

    page->line = page->column = 0;
    fputs(page->is_terminal ? "\033[H\033[K" : "", page->out);
    /* A terminal of a few lines shows rows, and no more. */
    if (page->height == 0 || page->height > HEADER_LINES + 4) {
        draw_job(model, page);
        draw_workers(model, page);
    }
    if (page->height > 0)
        room = page->height > page->line + 3 ? (size_t)(page->height - page->line - 2) : 1;
    state->page = room;
    if (state->first + room > shown)
        state->first = shown > room ? shown - room : 0;
    choose_columns(&layout, model, state, shown, page->width);
    draw_row(&layout, state, NULL, page);
    for (size_t i = 0; i < room && state->first + i < shown; i++)
        draw_row(&layout, state, model->shown[state->first + i], page);
    while (page->height > 0 && page->line < page->height - 1)
        end_line(page);
    draw_footer(model, state, shown, page);
    fputs(page->is_terminal ? "" : "\n", page->out);
}
