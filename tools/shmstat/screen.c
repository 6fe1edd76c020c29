/* SPDX-License-Identifier: MIT */
/*
 * shmstat top in a terminal: the escape sequences of ECMA-48 and xterm's alternate screen, which all terminals of today
 * take.
 *
 * A signal that ends or stops the program restores the terminal in its handler (tcsetattr and write may be called
 * there), then takes its default effect, so that the caller's shell sees the cause. Signals are blocked but in the wait
 * for a key: no handler runs beside other code, whose errno it would change.
 */
#include "shmstat.h"
#include "text.h"
#include "top.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define FIRST_S 0.25            /* the first interval is shorter */

static struct termios before, mine;
static sigset_t unblocked;      /* the signals of the program before this */

/* ---- The terminal -------------------------------------------------------------------------------- */

static void send(const char *sequence)
{
    /* Nothing can be done about a terminal that does not take it. */
    if (write(STDOUT_FILENO, sequence, strlen(sequence)) < 0)
        return;
}

/* The alternate screen, without a cursor. */
static void take_terminal(void)
{
    tcsetattr(STDIN_FILENO, TCSANOW, &mine);
    send("\033[?1049h\033[?25l");
}

static void restore_terminal(void)
{
    send("\033[?25h\033[?1049l");
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void on_signal(int number)
{
    if (number == SIGCONT) {
        take_terminal();
    } else if (number == SIGTSTP) {
        restore_terminal();
        raise(SIGSTOP);
    } else if (number != SIGWINCH) {            /* which only ends the wait for a key */
        restore_terminal();
        signal(number, SIG_DFL);
        raise(number);                          /* takes effect when the handler returns */
    }
}

static bool open_terminal(void)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
    const char *type = getenv("TERM");
    sigset_t blocked;

    if (type == NULL || type[0] == '\0' || strcmp(type, "dumb") == 0 || tcgetattr(STDIN_FILENO, &before) < 0) {
        fprintf(stderr, "shmstat: a terminal of type '%s' (TERM) cannot show top; --batch can\n",
                type != NULL ? type : "");
        return false;
    }
    mine = before;
    mine.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaddset(&blocked, signals[i]);
    sigprocmask(SIG_BLOCK, &blocked, &unblocked);
    take_terminal();
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        /* A signal that the caller ignores (nohup) stays ignored. */
        if (signal(signals[i], on_signal) == SIG_IGN && signals[i] != SIGCONT && signals[i] != SIGWINCH)
            signal(signals[i], SIG_IGN);
    }
    return true;
}

/* ---- Keys ---------------------------------------------------------------------------------------- */

/* The key at the beginning of these bytes; how many they are, into *length. */
static int key_of(const char *bytes, size_t *length)
{
    static const struct {
        const char *sequence;
        int key;
    } keys[] = {
        { "\033[A", TOP_KEY_UP },       { "\033OA", TOP_KEY_UP },        { "\033[B", TOP_KEY_DOWN },
        { "\033OB", TOP_KEY_DOWN },     { "\033[5~", TOP_KEY_PAGE_UP },  { "\033[6~", TOP_KEY_PAGE_DOWN },
        { "\033[H", TOP_KEY_HOME },     { "\033OH", TOP_KEY_HOME },      { "\033[1~", TOP_KEY_HOME },
        { "\033[F", TOP_KEY_END },      { "\033OF", TOP_KEY_END },       { "\033[4~", TOP_KEY_END },
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        *length = strlen(keys[i].sequence);
        if (strncmp(bytes, keys[i].sequence, *length) == 0)
            return keys[i].key;
    }
    *length = 1;
    return (unsigned char)bytes[0];
}

/* Waits for keys up to that time (CLOCK_MONOTONIC), or a signal. False if one quits, or the terminal is gone. */
static bool take_keys(struct top_state *state, uint64_t until_ns)
{
    uint64_t now_ns = stat_now_ns(CLOCK_MONOTONIC);
    uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = { .tv_sec = (time_t)(left_ns / 1000000000), .tv_nsec = (long)(left_ns % 1000000000) };
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    char bytes[64];
    bool goes_on = true;

    if (ppoll(&input, 1, &left, &unblocked) <= 0)
        return true;
    ssize_t got = read(STDIN_FILENO, bytes, sizeof(bytes) - 1);
    if (got <= 0) {
        raise(SIGHUP);
        return false;
    }
    bytes[got] = '\0';
    for (size_t at = 0, length; at < (size_t)got && goes_on; at += length)
        goes_on = top_key(state, key_of(bytes + at, &length));
    return goes_on;
}

/* ---- The loop ------------------------------------------------------------------------------------ */

static void draw(struct top_model *model, struct top_state *state)
{
    const char *no_color = getenv("NO_COLOR");
    struct winsize size = { 0 };
    struct top_page page = { .out = stdout, .width = 80, .height = 24, .is_terminal = true,
                             .has_colours = no_color == NULL || no_color[0] == '\0' };

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        page.width = size.ws_col;
        page.height = size.ws_row;
    }
    top_render(model, state, &page);
    fflush(stdout);
}

int top_screen_run(struct top_model *model, struct top_state *state)
{
    double wait_s = state->interval_s > FIRST_S ? FIRST_S : state->interval_s;
    uint64_t due_ns = 0;
    int rc = 0;

    if (!open_terminal())
        return STAT_USAGE;
    do {
        if (stat_now_ns(CLOCK_MONOTONIC) >= due_ns) {
            rc = top_sample(model, state->view, stat_now_ns(CLOCK_MONOTONIC));
            due_ns = model->now.at_ns + (uint64_t)(1e9 * (model->before.at_ns != 0 ? state->interval_s : wait_s));
        }
        if (rc == 0)
            rc = top_rows(model, state->view);
        if (rc == 0)
            draw(model, state);
    } while (rc == 0 && take_keys(state, due_ns));
    restore_terminal();
    sigprocmask(SIG_SETMASK, &unblocked, NULL);
    return rc;
}
