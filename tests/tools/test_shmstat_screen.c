/* SPDX-License-Identifier: MIT */
/*
 * shmstat top in a terminal of its own: the effects of keys and sizes; and the terminal is restored, whatever ended or
 * stopped the program.
 *
 * Each body runs in a process that leads a session, as a shell does. It has the other side of the terminal and reads
 * what is written, with the escape sequences.
 */
#include "tests/harness/harness.h"
#include "stat_plant.h"

#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <termios.h>


/* ---- The terminal ------------------------------------------------------------------------------------ */

/* A terminal whose session this process leads, with shmstat in its foreground, as a shell has it. */
struct terminal {
    int master, slave;
    pid_t pid;
    struct termios before;
    char text[1 << 20];
    size_t bytes;
};

static struct terminal terminal;

static void open_terminal(void)
{
    struct winsize size = { .ws_col = 80, .ws_row = 24 };

    /* A test that times out leaves no process. */
    HARNESS_EQ(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
    HARNESS_CHECK(setsid() >= 0);
    terminal.master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    HARNESS_CHECK(terminal.master >= 0 && grantpt(terminal.master) == 0 && unlockpt(terminal.master) == 0);
    terminal.slave = open(ptsname(terminal.master), O_RDWR);
    HARNESS_CHECK(terminal.slave >= 0);
    HARNESS_EQ(ioctl(terminal.slave, TIOCSWINSZ, &size), 0);
    HARNESS_EQ(tcgetattr(terminal.slave, &terminal.before), 0);
    signal(SIGTTOU, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
}

/* Reads what is there, or arrives within 50 ms. */
static bool read_more(void)
{
    struct pollfd input = { .fd = terminal.master, .events = POLLIN };
    ssize_t got;

    if (poll(&input, 1, 50) <= 0 || (input.revents & POLLIN) == 0)
        return false;
    HARNESS_CHECK(terminal.bytes + 4096 < sizeof(terminal.text));
    got = read(terminal.master, terminal.text + terminal.bytes, 4096);
    HARNESS_CHECK(got > 0);
    terminal.bytes += (size_t)got;
    terminal.text[terminal.bytes] = '\0';
    return true;
}

static void run_in_terminal(void)
{
    const char *build = getenv("BX_BUILD_DIR");
    char path[512];

    snprintf(path, sizeof(path), "%s/bin/shmstat", build != NULL ? build : "build");
    while (read_more())
        ;
    terminal.bytes = 0;
    terminal.text[0] = '\0';
    terminal.pid = fork();
    if (terminal.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpgid(0, 0);
        tcsetpgrp(terminal.slave, getpid());
        signal(SIGTTOU, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        for (int fd = 0; fd < 3; fd++)
            dup2(terminal.slave, fd);
        execl(path, "shmstat", "top", plant.job, "--interval", "0.1", "--stuck", "1", (char *)NULL);
        _exit(127);
    }
    HARNESS_CHECK(terminal.pid > 0);
}

static size_t times(const char *part)
{
    size_t found = 0;

    for (const char *at = terminal.text; (at = strstr(at, part)) != NULL; at += strlen(part))
        found++;
    return found;
}

/* Each picture is written whole. */
static void await(const char *part)
{
    size_t before = times(part);

    while (times(part) <= before) {
        siginfo_t ended = { 0 };

        if (read_more())
            continue;
        HARNESS_EQ(waitid(P_PID, (id_t)terminal.pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
        HARNESS_EQ(ended.si_pid, 0);
    }
}

#define ALTERNATE "\033[?1049h"
#define ORDINARY "\033[?1049l"

static void expect_as_before(void)
{
    struct termios now;

    while (read_more())
        ;
    HARNESS_EQ(tcgetattr(terminal.slave, &now), 0);
    HARNESS_EQ(now.c_iflag, terminal.before.c_iflag);
    HARNESS_EQ(now.c_oflag, terminal.before.c_oflag);
    HARNESS_EQ(now.c_lflag, terminal.before.c_lflag);
    HARNESS_EQ(now.c_cflag, terminal.before.c_cflag);
    HARNESS_EQ(memcmp(now.c_cc, terminal.before.c_cc, sizeof(now.c_cc)), 0);
    HARNESS_CHECK(times(ALTERNATE) > 0);
    HARNESS_EQ(times(ALTERNATE), times(ORDINARY));
    HARNESS_EQ(times("\033[?25l"), times("\033[?25h"));
}

static void expect_taken(void)
{
    struct termios now;

    HARNESS_EQ(tcgetattr(terminal.slave, &now), 0);
    HARNESS_EQ(now.c_lflag & (ECHO | ICANON), 0);
    HARNESS_EQ(times(ALTERNATE), times(ORDINARY) + 1);
}

static int end_of_run(void)
{
    int status;

    HARNESS_EQ(waitpid(terminal.pid, &status, 0), terminal.pid);
    return status;
}

static void type(const char *keys)
{
    HARNESS_EQ(write(terminal.master, keys, strlen(keys)), strlen(keys));
}

/* ---- What it does --------------------------------------------------------------------------------------- */

static void uses_colours_unless_told_not_to(void)
{
    run_in_terminal();
    await("\033[1;31m");
    type("q");
    HARNESS_EQ(end_of_run(), 0);
    setenv("NO_COLOR", "1", 1);
    run_in_terminal();
    await("has run 'add'");
    HARNESS_EQ(times("\033[1;31m"), 0);
    type("q");
    HARNESS_EQ(end_of_run(), 0);
    expect_as_before();
}

/* Runs the body in a process of its own, which leads a session. */
static void in_a_terminal(void (*body)(void))
{
    pid_t child;
    int status;

    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    child = fork();
    if (child == 0) {
        open_terminal();
        body();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0, "%#x", status);
}

#define TERMINAL_TEST(name) \
    static void name(void); \
    Test(shmstat_screen, name, .init = plant_begin, .fini = plant_remove, .timeout = 60) \
    { \
        in_a_terminal(name); \
    } \
    static void name(void)

TERMINAL_TEST(leaves_the_terminal_as_it_was)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

    run_in_terminal();
    await("RANK");
    expect_taken();
    type("q");
    HARNESS_EQ(end_of_run(), 0);
    expect_as_before();
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        run_in_terminal();
        await("RANK");
        expect_taken();
        kill(terminal.pid, signals[i]);
        HARNESS_EQ(WTERMSIG(end_of_run()), signals[i]);
        expect_as_before();
    }
    run_in_terminal();
    await("RANK");
    type("\003");
    HARNESS_EQ(WTERMSIG(end_of_run()), SIGINT);
    expect_as_before();
}

TERMINAL_TEST(gives_the_terminal_back_to_the_shell_while_stopped)
{
    int status;

    run_in_terminal();
    await("RANK");
    for (int i = 0; i < 2; i++) {
        type("\032");
        HARNESS_EQ(waitpid(terminal.pid, &status, WUNTRACED), terminal.pid);
        HARNESS_CHECK(WIFSTOPPED(status));
        expect_as_before();
        kill(terminal.pid, SIGCONT);
        await(ALTERNATE);
        await("RANK");
        expect_taken();
    }
    type("q");
    HARNESS_EQ(end_of_run(), 0);
    expect_as_before();
}

TERMINAL_TEST(obeys_keys_and_fills_the_terminal)
{
    struct winsize size = { .ws_col = 160, .ws_row = 30 };

    run_in_terminal();
    await("RANK");
    type("r");
    await("UNREAD");
    type("c");
    await("FUNCTION");
    type("w");
    await("RANK");
    type(">\033[B");                        /* a column to the right, a row down */
    await("by NAME");
    HARNESS_EQ(times("BELL/s"), 0);
    HARNESS_EQ(ioctl(terminal.master, TIOCSWINSZ, &size), 0);
    while (times("BELL/s") == 0)            /* without a key: a new size is drawn at once */
        read_more();
    type("/caller\n");
    await("with 'caller'");
    type("q");
    HARNESS_EQ(end_of_run(), 0);
    expect_as_before();
}

TERMINAL_TEST(watches_a_job_that_ends)
{
    run_in_terminal();
    await("RANK");
    for (int rank = 0; rank < 2; rank++)
        HARNESS_EQ(shm_unlink(plant.segment[rank].shm_name), 0);
    await(": waiting for it");
    type("q");
    HARNESS_EQ(end_of_run(), 0);
    expect_as_before();
}

Test(shmstat_screen, has_colours_unless_NO_COLOR_is_set, .init = plant_begin, .fini = plant_remove, .timeout = 60)
{
    /* In this process: a child would not have the segments. */
    bxi_store_relaxed(&bxi_tables(plant_control(0))->now.since_ns, 1);
    in_a_terminal(uses_colours_unless_told_not_to);
}

TERMINAL_TEST(refuses_a_terminal_that_cannot_position_the_cursor)
{
    static const char *const names[] = { "dumb", "" };

    for (int i = 0; i < 2; i++) {
        setenv("TERM", names[i], 1);
        run_in_terminal();
        HARNESS_EQ(WEXITSTATUS(end_of_run()), 2);
        while (read_more())
            ;
        HARNESS_HAS(terminal.text, "cannot show top; --batch can");
    }
}

TERMINAL_TEST(ends_with_its_terminal)
{
    run_in_terminal();
    await("RANK");
    signal(SIGHUP, SIG_IGN);
    close(terminal.master);
    HARNESS_EQ(WTERMSIG(end_of_run()), SIGHUP);
}
