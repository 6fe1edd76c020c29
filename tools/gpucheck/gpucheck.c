/* SPDX-License-Identifier: MIT */
/*
 * gpucheck: does CUDA IPC work on this box, in this container, as Boxcar relies on it?
 *
 * Run by a person, or before tests on a new machine. It needs the driver and nothing else: no toolkit, and of Boxcar
 * gpu/ alone, which is linked in. Each question is asked in new processes (process.c), which a hanging or crashing
 * driver takes along, not this one: it never calls the driver itself. A question costs a start of the driver, most of
 * its time; together they end within a minute, whatever happens.
 *
 * gpucheck.c    flags, the list of questions, the minute
 * process.c     a question's processes      driver.c         what these call
 * ask_*.c       the questions               report.c         lines
 * verdict.c     which order Boxcar chooses, and whether that works
 */
#include "gpucheck.h"

#include "boxcar.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET_MS 55000u                /* the last question's processes may take a little longer to end */
#define LEAST_MS 500u                   /* with less left, a question is not asked */

#define STATUS_NOT_SHARED 1
#define STATUS_WRONG_FLAGS 2
#define STATUS_NO_GPU 3


/* In this order: what the verdict needs comes first. The first question says whether there is anything to ask. */
static const struct check_question *const questions[] = {
    &check_register, &check_handle, &check_descriptor, &check_words_host, &check_words_read_only,
    &check_events, &check_queues, &check_boxcar, &check_kill, &check_descriptor_dead, &check_kill_borrower,
    &check_devices, &check_nvrtc, &check_cublas, &check_cudnn,
};

static void help(void)
{
    puts("Usage: gpucheck [--device N] [--only NAME] [--json]\n\n"
         "Tells whether processes can share GPU memory on this machine, in this container,\n"
         "and whether the driver behaves as Boxcar relies on. Needs the driver alone. Takes a minute at\n"
         "most. Two containers must share the network namespace besides, or the IPC and PID namespaces\n"
         "where memory goes by handles: gpucheck stays inside of one.\n\n"
         "Each question is asked in processes of its own, so that a call that hangs or crashes\n"
         "costs one answer. Takes 64 MiB of the GPU's memory and two contexts at a time. Some questions\n"
         "kill processes of its own that have work on the GPU: under MPS that may disturb programs of\n"
         "others.\n\n"
         "A line for each answer: a verdict, the question's name, what was found, and what it means for\n"
         "Boxcar. At the end, the order that Boxcar will use between streams of two processes\n"
         "(HOST_WORDS or EVENTS), and why.\n\n"
         "  good       as Boxcar expects\n"
         "  bad        not so; Boxcar does without, or works more slowly, as the line says\n"
         "  note       a fact or a figure\n"
         "  absent     there is nothing to ask about: a library, a second GPU, a function; or what\n"
         "             the question needs does not work, as another line says\n"
         "  unknown    there was no answer: a call hung, the process crashed, or the time was over\n\n"
         "  --device   which GPU (0)\n"
         "  --only     only the questions whose names begin with NAME: driver, register, handle,\n"
         "             descriptor, words.host, words.read_only, events, queues, boxcar,\n"
         "             kill, borrower, devices, nvrtc, cublas, cudnn;\n"
         "             or order: those that decide which order is used\n"
         "  --json     one JSON object instead of the lines\n"
         "  --help, --version\n\n"
         "Exit status: 0 processes can share GPU memory here, and every question has an answer; 1 they\n"
         "cannot, or a question has none; 2 wrong flags; 3 there is no GPU.");
}

/* 0, or -1 for wrong flags, or 1 after --help and --version. */
static int read_flags(int argc, char **argv, struct check_settings *settings)
{
    enum { DEVICE = 1, ONLY, JSON, HELP, VERSION };
    static const struct option flags[] = {
        { "device", required_argument, NULL, DEVICE }, { "only", required_argument, NULL, ONLY },
        { "json", no_argument, NULL, JSON }, { "help", no_argument, NULL, HELP },
        { "version", no_argument, NULL, VERSION }, { NULL, 0, NULL, 0 },
    };
    char *end = NULL;
    long number;
    int flag;

    while ((flag = getopt_long(argc, argv, "h", flags, NULL)) != -1) {
        switch (flag) {
        case DEVICE:
            number = strtol(optarg, &end, 10);
            settings->device = (int)number;
            if (*optarg == '\0' || *end != '\0' || number < 0 || number > 1023) {
                fprintf(stderr, "gpucheck: --device: %s is no number of a device; see gpucheck --help\n", optarg);
                return -1;
            }
            break;
        case ONLY: settings->only = optarg; break;
        case JSON: settings->json = true; break;
        case 'h':
        case HELP: help(); return 1;
        case VERSION:
            printf("gpucheck %s\n", bx_version());
            return 1;
        default: return -1;             /* getopt_long has said why */
        }
    }
    if (optind < argc) {
        fprintf(stderr, "gpucheck: %s is no flag; see gpucheck --help\n", argv[optind]);
        return -1;
    }
    return 0;
}

static bool is_wanted(const struct check_question *question, const struct check_settings *settings)
{
    if (settings->only != NULL && strcmp(settings->only, "order") == 0)
        return question->decides;
    return settings->only == NULL || strncmp(question->name, settings->only, strlen(settings->only)) == 0;
}

static unsigned left_ms(uint64_t start_ns)
{
    uint64_t spent_ms = (check_now_ns() - start_ns) / 1000000;

    return spent_ms < BUDGET_MS ? BUDGET_MS - (unsigned)spent_ms : 0;
}

/* Why the question is not worth its time; NULL: it is. Where opens of handles hang, they would use up the minute. */
static const char *against(const struct check_question *question, bool handles_hang, unsigned left)
{
    if (left < LEAST_MS)
        return "the minute is over";
    return handles_hang && question->opens_handles ? "opening a handle hangs, see handle.open" : NULL;
}

/* Asks all that are wanted; returns how many. */
static unsigned ask_all(const struct check_settings *settings, uint64_t start_ns)
{
    struct check_found found;
    bool handles_hang = false;
    unsigned asked = 0;

    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
        const struct check_question *question = questions[i];
        unsigned left = left_ms(start_ns);
        const char *reason = against(question, handles_hang, left);

        if (!is_wanted(question, settings))
            continue;
        asked++;
        if (reason == NULL)
            check_ask(question, settings, left < question->limit_ms ? left : question->limit_ms, &found);
        else
            check_decline(question, reason);
        if (question == &check_handle)
            handles_hang = check_reported("handle.export") == CHECK_GOOD &&
                check_reported("handle.open") == CHECK_UNKNOWN;
    }
    return asked;
}

/* What was found as a status, and in words. */
static int conclude(const struct check_settings *settings, const struct check_found *found,
                    struct check_ending *ending)
{
    if (found->device[0] == '\0') {
        snprintf(ending->why, sizeof(ending->why),
                 "There is no GPU: %.280s. Boxcar works without, for memory of the host.", found->reason);
        return STATUS_NO_GPU;
    }
    if (settings->only == NULL || strcmp(settings->only, "order") == 0)
        ending->order = check_order(ending->why);
    else
        snprintf(ending->why, sizeof(ending->why), "Not asked (--only).");
    return check_is_refused() || check_reported_count(CHECK_UNKNOWN) > 0 ? STATUS_NOT_SHARED : 0;
}

/* The status, or 1 if the output could not be written. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return status;
    fprintf(stderr, "gpucheck: the output cannot be written: %s\n", strerror(errno));
    return STATUS_NOT_SHARED;
}

int main(int argc, char **argv)
{
    struct check_settings settings = { .device = 0 };
    struct check_found found;
    struct check_ending ending = { .order = NULL };
    uint64_t start_ns = check_now_ns();
    int rc = read_flags(argc, argv, &settings);

    if (rc != 0)
        return finish(rc < 0 ? STATUS_WRONG_FLAGS : 0);
    check_report_open(settings.json);
    check_ask(&check_driver, &settings, check_driver.limit_ms, &found);
    if (found.is_fake)
        check_report_fake();
    if (found.device[0] != '\0') {
        check_keep_driver();
        if (ask_all(&settings, start_ns) == 0 && !is_wanted(&check_driver, &settings)) {
            fprintf(stderr, "gpucheck: --only: no question's name begins with %s; see gpucheck --help\n",
                    settings.only);
            return STATUS_WRONG_FLAGS;
        }
    }
    ending.status = conclude(&settings, &found, &ending);
    ending.seconds = (double)(check_now_ns() - start_ns) / 1e9;
    check_report_close(&found, &ending);
    return finish(ending.status);
}
