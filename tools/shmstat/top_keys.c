/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: what each key changes. It needs no terminal and no job: the caller passes keys in, and does the action
 * that is returned.
 */
#include "top_keys.h"

#include "top_columns.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

static const char *const help[] = {
    "w r c\tworkers, rings, calls; Tab for the next of them",
    "< >\tsort by the column to the left, to the right",
    "R\tthe other way round",
    "/\tshow rows that have a text; Enter keeps it, Esc ends it",
    "a b s\tall rows; those that are busy; those that are stuck",
    "Up Down\tscroll; also k j, PgUp PgDn, Home End",
    "+ -\tlonger, shorter intervals",
    "Space\tpause and go on",
    "h ?\tthis help; any key leaves it",
    "q\tquit",
    NULL,
};

const char *top_help_line(size_t i)
{
    return help[i];
}

/* The index of the column of that title. */
static int column_named(enum top_view view, const char *title)
{
    int count;
    const struct top_column *columns = top_columns(view, &count);

    for (int i = 0; i < count; i++)
        if (strcmp(columns[i].title, title) == 0)
            return i;
    return 0;
}

void top_state_init(struct top_state *state, double interval_s)
{
    *state = (struct top_state){
        .interval_s = interval_s,
        .sort = { column_named(TOP_WORKERS, "RANK"), column_named(TOP_RINGS, "OUT/s"), column_named(TOP_CALLS, "AGE") },
        .page = 1,
    };
}

static enum top_action type_filter(struct top_state *state, int key)
{
    size_t length = strlen(state->filter);

    if (key == TOP_KEY_ENTER) {
        state->typing = false;
    } else if (key == TOP_KEY_ESCAPE) {
        state->typing = false;
        state->filter[0] = '\0';
    } else if (key == TOP_KEY_BACKSPACE) {
        if (length > 0)
            state->filter[length - 1] = '\0';
    } else if (key < 0x7f && isprint(key) && length + 1 < sizeof(state->filter)) {
        state->filter[length] = (char)key;
        state->filter[length + 1] = '\0';
    }
    state->first = 0;
    return TOP_DRAW;
}

static void sort_by(struct top_state *state, int step)
{
    int count;

    top_columns(state->view, &count);
    state->sort[state->view] = (state->sort[state->view] + step + count) % count;
    state->reverse[state->view] = false;
}

/* Up if rows is negative; top_render bounds it below. */
static void scroll(struct top_state *state, long rows)
{
    size_t up = rows < 0 ? (size_t)-rows : 0;

    if (up > 0)
        state->first = state->first > up ? state->first - up : 0;
    else
        state->first = state->first + (size_t)rows < SIZE_MAX / 2 ? state->first + (size_t)rows : SIZE_MAX / 2;
}

/* The next longer or shorter of these steps; the first interval, from a flag, may lie between two. */
static void change_interval(struct top_state *state, bool longer)
{
    static const double steps[] = { TOP_INTERVAL_MIN, 0.2, 0.5, 1, 2, 5, 10, 20, 50, TOP_INTERVAL_MAX };
    int count = sizeof(steps) / sizeof(steps[0]), i = longer ? 0 : count - 1;

    while (longer && i < count - 1 && steps[i] <= state->interval_s)
        i++;
    while (!longer && i > 0 && steps[i] >= state->interval_s)
        i--;
    state->interval_s = steps[i];
}

enum effect { QUIT, VIEW, NEXT_VIEW, ONLY, SORT, REVERSE, TYPE, FORGET, SCROLL, PAGE, PACE, PAUSE, HELP };

static const struct {
    int key;
    enum effect effect;
    long value;
} keys[] = {
    { 'q', QUIT, 0 },                   { 'Q', QUIT, 0 },
    { 'w', VIEW, TOP_WORKERS },         { 'r', VIEW, TOP_RINGS },           { 'c', VIEW, TOP_CALLS },
    { '\t', NEXT_VIEW, 0 },
    { 'a', ONLY, TOP_ALL },             { 'b', ONLY, TOP_ONLY_BUSY },       { 's', ONLY, TOP_ONLY_STUCK },
    { '<', SORT, -1 },                  { '>', SORT, 1 },                   { 'R', REVERSE, 0 },
    { '/', TYPE, 0 },                   { TOP_KEY_ESCAPE, FORGET, 0 },
    { TOP_KEY_UP, SCROLL, -1 },         { 'k', SCROLL, -1 },
    { TOP_KEY_DOWN, SCROLL, 1 },        { 'j', SCROLL, 1 },
    { TOP_KEY_PAGE_UP, PAGE, -1 },      { TOP_KEY_PAGE_DOWN, PAGE, 1 },
    { TOP_KEY_HOME, SCROLL, -LONG_MAX }, { 'g', SCROLL, -LONG_MAX },
    { TOP_KEY_END, SCROLL, LONG_MAX },  { 'G', SCROLL, LONG_MAX },
    { '+', PACE, true },                { '=', PACE, true },                { '-', PACE, false },
    { ' ', PAUSE, 0 },                  { 'p', PAUSE, 0 },
    { 'h', HELP, 0 },                   { '?', HELP, 0 },
};

static enum top_action apply(struct top_state *state, enum effect effect, long value)
{
    switch (effect) {
    case QUIT: return TOP_QUIT;
    case NEXT_VIEW: return apply(state, VIEW, (state->view + 1) % TOP_VIEWS);
    case VIEW:
        state->view = (enum top_view)value;
        state->first = 0;
        return TOP_SAMPLE;
    case ONLY:
        state->only = (enum top_only)value;
        state->first = 0;
        break;
    case SORT: sort_by(state, (int)value); break;
    case REVERSE: state->reverse[state->view] = !state->reverse[state->view]; break;
    case TYPE: state->typing = true; break;
    case FORGET: state->filter[0] = '\0'; break;
    case SCROLL: scroll(state, value); break;
    case PAGE: scroll(state, value * (long)state->page); break;
    case PACE: change_interval(state, value != 0); break;
    case PAUSE: state->paused = !state->paused; break;
    case HELP: state->help = true; break;
    }
    return TOP_DRAW;
}

enum top_action top_key(struct top_state *state, int key)
{
    if (state->typing)
        return type_filter(state, key);
    if (state->help) {
        state->help = false;
        return key == 'q' ? TOP_QUIT : TOP_DRAW;
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].key == key)
            return apply(state, keys[i].effect, keys[i].value);
    return TOP_DRAW;
}
