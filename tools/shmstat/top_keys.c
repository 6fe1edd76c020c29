/* SPDX-License-Identifier: MIT */
/*
 * shmstat top: what each key changes. It needs no terminal and no job: the caller passes keys in, and does the action
 * that is returned.
 */
#include "top_keys.h"

#include "top_columns.h"

#include <ctype.h>
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

static enum top_action show_view(struct top_state *state, enum top_view view)
{
    state->view = view;
    state->first = 0;
    return TOP_SAMPLE;
}

static void show_only(struct top_state *state, enum top_only only)
{
    state->only = only;
    state->first = 0;
}

static void sort_by(struct top_state *state, int step)
{
    int count;

    top_columns(state->view, &count);
    state->sort[state->view] = (state->sort[state->view] + step + count) % count;
    state->reverse[state->view] = false;
}

static void scroll_up(struct top_state *state, size_t rows)
{
    state->first = state->first > rows ? state->first - rows : 0;
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

/* Keys that scroll. */
static void scroll(struct top_state *state, int key)
{
    switch (key) {
    case TOP_KEY_UP: case 'k':
        scroll_up(state, 1);
        break;
    case TOP_KEY_DOWN: case 'j':
        state->first++;
        break;
    case TOP_KEY_PAGE_UP:
        scroll_up(state, state->page);
        break;
    case TOP_KEY_PAGE_DOWN:
        state->first += state->page;
        break;
    case TOP_KEY_HOME: case 'g':
        state->first = 0;
        break;
    case TOP_KEY_END: case 'G':
        state->first = SIZE_MAX / 2;
        break;
    default:
        break;
    }
}

enum top_action top_key(struct top_state *state, int key)
{
    if (state->typing)
        return type_filter(state, key);
    if (state->help) {
        state->help = false;
        return key == 'q' ? TOP_QUIT : TOP_DRAW;
    }
    switch (key) {
    case 'q': case 'Q':
        return TOP_QUIT;
    case 'w':
        return show_view(state, TOP_WORKERS);
    case 'r':
        return show_view(state, TOP_RINGS);
    case 'c':
        return show_view(state, TOP_CALLS);
    case '\t':
        return show_view(state, (enum top_view)((state->view + 1) % TOP_VIEWS));
    case '<':
        sort_by(state, -1);
        break;
    case '>':
        sort_by(state, 1);
        break;
    case 'R':
        state->reverse[state->view] = !state->reverse[state->view];
        break;
    case '/':
        state->typing = true;
        break;
    case TOP_KEY_ESCAPE:
        state->filter[0] = '\0';
        break;
    case 'a':
        show_only(state, TOP_ALL);
        break;
    case 'b':
        show_only(state, TOP_ONLY_BUSY);
        break;
    case 's':
        show_only(state, TOP_ONLY_STUCK);
        break;
    case '+': case '=':
        change_interval(state, true);
        break;
    case '-':
        change_interval(state, false);
        break;
    case ' ': case 'p':
        state->paused = !state->paused;
        break;
    case 'h': case '?':
        state->help = true;
        break;
    default:
        scroll(state, key);
        break;
    }
    return TOP_DRAW;
}
