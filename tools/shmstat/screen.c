/* SPDX-License-Identifier: MIT */
/*
 * shmstat top in a terminal, with ncurses. No other file uses ncurses.
 *
 * Signals are blocked except while the program waits for a key (ppoll). So a handler only sets a flag, and no signal is
 * missed between the test of the flag and the wait. A signal that ends the program first restores the terminal, then is
 * raised again with its old action, so that the caller's shell sees the cause. The handlers of ncurses are not used:
 * they call functions that are not async-signal-safe, and exit with a plain status.
 */
#include "screen.h"

#include "shmstat.h"
#include "text.h"
#include "top_view.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <curses.h>
#include <term.h>

#define FIRST_S 0.25            /* the first interval is shorter */
#define DEAF_MAX 3              /* polls in a row that report input while none can be read: the terminal is gone */

static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };

#define SIGNALS (sizeof(signals) / sizeof(signals[0]))

struct screen {
    SCREEN *terminal;
    struct top_grid grid;
    bool has_colours;
    sigset_t before;            /* the mask of the caller */
    sigset_t waiting;           /* the mask while it waits */
    struct sigaction old[SIGNALS];
};

/* Set by the handler. ended_by: the last signal that ends the program. */
static volatile sig_atomic_t ended_by, stops, continued, resized;

/* ---- Signals ------------------------------------------------------------------------------------- */

static void note(int signal)
{
    if (signal == SIGTSTP)
        stops = 1;
    else if (signal == SIGCONT)
        continued = 1;
    else if (signal == SIGWINCH)
        resized = 1;
    else
        ended_by = signal;
}

static void take_signals(struct screen *screen)
{
    struct sigaction action = { .sa_handler = note };
    sigset_t blocked;

    sigemptyset(&blocked);
    for (size_t i = 0; i < SIGNALS; i++)
        sigaddset(&blocked, signals[i]);
    sigprocmask(SIG_BLOCK, &blocked, &screen->before);
    screen->waiting = screen->before;
    for (size_t i = 0; i < SIGNALS; i++) {
        sigdelset(&screen->waiting, signals[i]);
        sigaction(signals[i], NULL, &screen->old[i]);
        /* A signal that the caller ignores (nohup) stays ignored. These two are ignored by default. */
        if (screen->old[i].sa_handler != SIG_IGN || signals[i] == SIGCONT || signals[i] == SIGWINCH)
            sigaction(signals[i], &action, NULL);
    }
}

static void give_signals_back(const struct screen *screen)
{
    for (size_t i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &screen->old[i], NULL);
    sigprocmask(SIG_SETMASK, &screen->before, NULL);
}

/* ---- The terminal -------------------------------------------------------------------------------- */

static const char *terminal_name(void)
{
    const char *name = getenv("TERM");

    return name != NULL && name[0] != '\0' ? name : "unknown";
}

/* True if the terminal can position the cursor; else a line on stderr. Without this, newterm would end the program. */
static bool is_able(void)
{
    int error = 0;
    bool able = setupterm(NULL, STDOUT_FILENO, &error) == OK;

    if (able) {
        const char *cup = tigetstr("cup");

        able = cup != NULL && cup != (const char *)-1;
        del_curterm(cur_term);
    }
    if (!able)
        fprintf(stderr, "shmstat: a terminal of type '%s' (TERM) cannot show top; --batch can\n", terminal_name());
    return able;
}

static void begin_colours(struct screen *screen)
{
    const char *no_color = getenv("NO_COLOR");

    if ((no_color != NULL && no_color[0] != '\0') || !has_colors() || start_color() == ERR)
        return;
    use_default_colors();
    screen->has_colours = init_pair(TOP_GOOD, COLOR_GREEN, -1) == OK &&
                          init_pair(TOP_CAUTION, COLOR_YELLOW, -1) == OK && init_pair(TOP_ALARM, COLOR_RED, -1) == OK;
}

static bool open_screen(struct screen *screen)
{
    if (!is_able())
        return false;
    take_signals(screen);
    screen->terminal = newterm(NULL, stdout, stdin);
    if (screen->terminal == NULL) {
        give_signals_back(screen);
        fprintf(stderr, "shmstat: the terminal '%s' cannot be set up; --batch needs none\n", terminal_name());
        return false;
    }
    set_escdelay(50);
    cbreak();
    noecho();
    nodelay(stdscr, TRUE);
    keypad(stdscr, TRUE);
    curs_set(0);
    begin_colours(screen);
    return true;
}

static void close_screen(struct screen *screen)
{
    endwin();
    delscreen(screen->terminal);
    give_signals_back(screen);
    top_grid_free(&screen->grid);
}

/* ^Z: restores the terminal for the shell and stops. */
static void stop_here(void)
{
    struct sigaction mine;
    sigset_t stop;

    stops = 0;
    endwin();
    sigaction(SIGTSTP, &(struct sigaction){ .sa_handler = SIG_DFL }, &mine);
    raise(SIGTSTP);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    sigaddset(&stop, SIGCONT);
    sigprocmask(SIG_UNBLOCK, &stop, NULL);      /* the process stops and continues here */
    sigprocmask(SIG_BLOCK, &stop, NULL);
    sigaction(SIGTSTP, &mine, NULL);
    continued = 1;
}

/* After a stop by any signal: the shell may have changed the terminal's modes, and the picture is gone. */
static void go_on(void)
{
    continued = 0;
    if (!isendwin())
        endwin();
    clearok(curscr, TRUE);
    resized = 1;
}

static void resize(void)
{
    struct winsize size;

    resized = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
        resizeterm(size.ws_row, size.ws_col);
}

/* ---- Drawing ------------------------------------------------------------------------------------- */

static attr_t attribute_of(const struct screen *screen, unsigned char attribute)
{
    static const attr_t plain[] = {
        [TOP_PLAIN] = A_NORMAL, [TOP_BOLD] = A_BOLD,  [TOP_DIM] = A_DIM,       [TOP_TITLE] = A_REVERSE,
        [TOP_SORT] = A_REVERSE | A_BOLD | A_UNDERLINE, [TOP_GOOD] = A_NORMAL,  [TOP_CAUTION] = A_BOLD,
        [TOP_ALARM] = A_BOLD | A_REVERSE,
    };

    if (screen->has_colours && attribute >= TOP_GOOD)
        return COLOR_PAIR(attribute) | (attribute == TOP_ALARM ? A_BOLD : A_NORMAL);
    return plain[attribute];
}

static void draw_line(const struct screen *screen, int line)
{
    const char *text = top_grid_line(&screen->grid, line);
    const unsigned char *attributes = top_grid_attributes(&screen->grid, line);

    for (int from = 0, to; from < screen->grid.width; from = to) {
        for (to = from + 1; to < screen->grid.width && attributes[to] == attributes[from]; to++)
            ;
        attrset(attribute_of(screen, attributes[from]));
        mvaddnstr(line, from, text + from, to - from);
    }
}

static int draw(struct screen *screen, struct top_model *model, struct top_state *state)
{
    if (screen->grid.width != COLS || screen->grid.height != LINES) {
        top_grid_free(&screen->grid);
        if (top_grid_init(&screen->grid, COLS, LINES) < 0)
            return -ENOMEM;
    }
    top_render(model, state, &screen->grid);
    erase();
    for (int line = 0; line < screen->grid.height; line++)
        draw_line(screen, line);
    attrset(A_NORMAL);
    refresh();
    return 0;
}

/* ---- Keys ---------------------------------------------------------------------------------------- */

static int key_of(int key)
{
    static const int keys[][2] = {
        { KEY_UP, TOP_KEY_UP }, { KEY_DOWN, TOP_KEY_DOWN }, { KEY_PPAGE, TOP_KEY_PAGE_UP },
        { KEY_NPAGE, TOP_KEY_PAGE_DOWN }, { KEY_HOME, TOP_KEY_HOME }, { KEY_END, TOP_KEY_END },
        { KEY_ENTER, TOP_KEY_ENTER }, { '\n', TOP_KEY_ENTER }, { '\r', TOP_KEY_ENTER },
        { KEY_BACKSPACE, TOP_KEY_BACKSPACE }, { 0x7f, TOP_KEY_BACKSPACE }, { '\b', TOP_KEY_BACKSPACE },
        { 0x1b, TOP_KEY_ESCAPE },
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] == key)
            return keys[i][1];
    return key < 0x100 ? key : 0;
}

/* Takes all pressed keys. Returns how many; *action is the strongest action that they ask for. */
static int take_keys(struct top_state *state, enum top_action *action)
{
    int key, count = 0;

    *action = TOP_DRAW;
    for (; *action != TOP_QUIT && (key = getch()) != ERR; count++) {
        enum top_action one = top_key(state, key_of(key));

        *action = one > *action ? one : *action;
    }
    return count;
}

/* ---- The loop ------------------------------------------------------------------------------------ */

/* Waits for a key, a signal or that time (CLOCK_MONOTONIC). True if there is something to read. */
static bool wait_for_key(const struct screen *screen, uint64_t until_ns)
{
    uint64_t now_ns = stat_now_ns(CLOCK_MONOTONIC), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = { .tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000) };
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

    if (ppoll(&input, 1, until_ns == UINT64_MAX ? NULL : &left, &screen->waiting) <= 0)
        return false;
    if ((input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
        ended_by = SIGHUP;
    return true;
}

static uint64_t after(uint64_t then_ns, double seconds)
{
    return then_ns + (uint64_t)(seconds * 1e9);
}

static int show(struct screen *screen, struct top_model *model, struct top_state *state)
{
    enum top_action action = TOP_DRAW;
    bool first = state->interval_s > FIRST_S;
    int rc = top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC)), deaf = 0;

    while (rc == 0 && ended_by == 0 && action != TOP_QUIT && deaf < DEAF_MAX) {
        uint64_t due_ns = state->paused ? UINT64_MAX : after(model->now.at_ns, first ? FIRST_S : state->interval_s);

        if (stops)
            stop_here();
        if (continued)
            go_on();
        if (resized)
            resize();
        if ((rc = draw(screen, model, state)) < 0)
            break;

        bool readable = wait_for_key(screen, due_ns);
        deaf = take_keys(state, &action) == 0 && readable ? deaf + 1 : 0;
        if (action != TOP_SAMPLE && (state->paused || stat_now_ns(CLOCK_MONOTONIC) < due_ns))
            continue;
        rc = top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC));
        first = false;
    }
    return rc;
}

int top_screen_run(struct top_model *model, struct top_state *state)
{
    struct screen screen = { 0 };
    int rc;

    ended_by = stops = continued = resized = 0;
    if (!open_screen(&screen))
        return STAT_USAGE;
    rc = show(&screen, model, state);
    close_screen(&screen);
    if (ended_by != 0)
        raise(ended_by);
    if (rc == 0)
        return STAT_FINE;
    fprintf(stderr, "shmstat: the jobs cannot be read: %s\n", strerror(-rc));
    return STAT_NOTHING;
}
