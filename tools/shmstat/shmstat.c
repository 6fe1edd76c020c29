/* SPDX-License-Identifier: MIT */
/*
 * shmstat: shows from outside what the workers of a job do. It reads their segments (shm/LAYOUT.md) and does not
 * disturb them: it sends no message, takes no lock, writes and allocates no page of theirs.
 *
 * A subcommand is a row of `commands`.
 */
#include "shmstat.h"

#include "boxcar.h"
#include "shm/layout.h"
#include "text.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(const struct stat_options *options);
    bool has_subject;           /* its first argument is a subject and not a job */
};

static const struct command commands[] = {
    { "ls", stat_ls, false },       { "show", stat_show, false }, { "top", stat_top, false },
    { "calls", stat_calls, false }, { "why", stat_why, true },    { "rrefs", stat_rrefs, false },
    { "gpu", stat_gpu, false },     { "check", stat_check, false }, { "reap", stat_reap, false },
};

#define OPTION(member) offsetof(struct stat_options, member)

static const struct flag {
    const char *name;
    int (*command)(const struct stat_options *options);     /* that has it; NULL: all */
    size_t offset;              /* in the options */
    enum { SWITCH, WORD, NUMBER, WHOLE } value;             /* bool; const char *; double; double */
    double least, most;
} flags[] = {
    { "--json", NULL, OPTION(json), SWITCH, 0, 0 },
    { "--prometheus", stat_show, OPTION(prometheus), SWITCH, 0, 0 },
    { "--yes", stat_reap, OPTION(yes), SWITCH, 0, 0 },
    { "--once", stat_top, OPTION(top.once), SWITCH, 0, 0 },
    { "--batch", stat_top, OPTION(top.batch), SWITCH, 0, 0 },
    { "-n", stat_top, OPTION(top.count), WHOLE, 1, 1e9 },
    { "--interval", stat_top, OPTION(top.interval_s), NUMBER, 0.1, 60 },
    { "--stuck", stat_top, OPTION(top.stuck_s), NUMBER, 0.001, 1e9 },
    { "--width", stat_top, OPTION(top.width), WHOLE, 1, 1000 },
    { "--view", stat_top, OPTION(top.view), WORD, 0, 0 },
    { "--sort", stat_top, OPTION(top.sort), WORD, 0, 0 },
    { "--filter", stat_top, OPTION(top.filter), WORD, 0, 0 },
};

static const char usage[] =
    "usage: shmstat COMMAND [JOB] [--json]\n"
    "\n"
    "  ls      the jobs of this user on this host\n"
    "  show    what each worker of a job, or of all jobs, does: sleep, wake-ups,\n"
    "          doorbells, handlers, rings, arena, loans, objects; --prometheus prints\n"
    "          the text exposition format\n"
    "  top     the same, live, as rates; --once prints one picture;\n"
    "          --batch [-n COUNT], --interval S, --stuck S, --width N,\n"
    "          --view workers|rings|calls, --sort COLUMN, --filter TEXT\n"
    "  calls   the calls in flight: how old, and where each is now\n"
    "  why     why [WORKER|CALL] [JOB]: what it waits for, in sentences, and what\n"
    "          that waits for; names a cycle if there is one; without a worker or\n"
    "          call, what has waited longest in each job; and the commands that show\n"
    "          the stacks of the threads\n"
    "  rrefs   the objects to which there are references: whose, of which type, since\n"
    "          when, and which workers hold them\n"
    "  gpu     the GPUs of each worker: how their streams are ordered, their memory\n"
    "          and who has it open, what is borrowed\n"
    "  check   holds the segments against the invariants of shm/LAYOUT.md and, for\n"
    "          device memory, gpu/README.md\n"
    "  reap    lists what dead jobs left; --yes removes it\n"
    "\n"
    "JOB is a job's name, or NAME.INSTANCE where several have one name; without it\n"
    "all jobs are meant. --json prints one JSON object; the manual page has its keys.\n"
    "--version prints the version, and that of the segments that it reads.\n"
    "\n"
    "Exit status: 0 fine; 1 check found violations, or reap could not remove\n"
    "something; 2 wrong usage; 3 there is no such job, or nothing of it can be read,\n"
    "or the output cannot be written.\n";

static int misused(const char *what, const char *which)
{
    char shown[64];

    stat_printable(shown, sizeof(shown), which, strlen(which));
    fprintf(stderr, "shmstat: %s '%s'; shmstat --help lists what there is\n", what, shown);
    return STAT_USAGE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* False if it is no number, or none that the flag allows. */
static bool parse_number(const struct flag *flag, const char *text, double *number)
{
    char *end;

    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= flag->least && *number <= flag->most &&
           (flag->value == NUMBER || *number <= floor(*number));
}

/* A flag and its value: how many words they are; 0, after a line on stderr, if they are wrong. */
static int parse_flag(const struct command *command, char **words, struct stat_options *options)
{
    const struct flag *flag = flags, *end = flags + sizeof(flags) / sizeof(flags[0]);
    const char *value = words[1] != NULL ? words[1] : "";
    char shown[64];
    void *to;

    while (flag < end && (strcmp(flag->name, words[0]) != 0 ||
                          (flag->command != NULL && flag->command != command->run)))
        flag++;
    if (flag == end) {
        misused("this command has no flag", words[0]);
        return 0;
    }
    to = (char *)options + flag->offset;
    if (flag->value == SWITCH) {
        *(bool *)to = true;
        return 1;
    }
    if (flag->value == WORD && words[1] != NULL) {
        *(const char **)to = value;
        return 2;
    }
    if (flag->value != WORD && parse_number(flag, value, to))
        return 2;
    stat_printable(shown, sizeof(shown), value, strlen(value));
    fprintf(stderr, "shmstat: %s cannot be '%s'; the manual page has its values\n", words[0], shown);
    return 0;
}

/* The exit status: STAT_NOTHING, after a line on stderr, if the output could not be written. */
static int end(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "shmstat: the output could not be written\n");
    return STAT_NOTHING;
}

int main(int argc, char **argv)
{
    struct stat_options options = { 0 };

    for (int i = 1; i < argc; i++) {
        bool version = strcmp(argv[i], "--version") == 0;

        if (!version && strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0)
            continue;
        if (version)
            printf("shmstat (Boxcar) %s, layout %u\n", bx_version(), BXI_LAYOUT_VERSION);
        else
            fputs(usage, stdout);
        return end(STAT_FINE);
    }
    if (argc < 2) {
        fputs(usage, stderr);
        return STAT_USAGE;
    }
    const struct command *command = find_command(argv[1]);
    if (command == NULL)
        return misused("there is no command", argv[1]);
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] == '-') {
            int words = parse_flag(command, argv + i, &options);

            if (words == 0)
                return STAT_USAGE;
            i += words - 1;
        } else if (command->has_subject && options.subject == NULL) {
            options.subject = argv[i];
        } else if (options.select != NULL) {
            return misused("one job is enough, and there is another:", argv[i]);
        } else {
            options.select = argv[i];
        }
    }
    if (options.json && options.prometheus)
        return misused("choose one of --json and", "--prometheus");
    return end(command->run(&options));
}
