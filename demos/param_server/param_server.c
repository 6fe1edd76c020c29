/* SPDX-License-Identifier: MIT */
/*
 * param_server - a batch-updating parameter server and its trainers, over shared memory.
 *
 * This file is the launcher: it reads the flags, opens the files for the results before any work starts, runs one job
 * (run.c), and prints and writes its results (report.c).
 */
#include "demos/common/ending.h"
#include "demos/common/flags.h"
#include "demos/common/plot.h"
#include "ps.h"

#include <errno.h>
#include <string.h>

static const char HELP[] =
    "Usage: param_server [flags]\n"
    "\n"
    "Trains a ResNet on random images: one server holds the model, N trainers, each a process, compute\n"
    "gradients. The server updates the model when it has enough of them and answers all with the new one.\n"
    "\n"
    "  --trainers N           trainers (5; 1 to 127)\n"
    "  --batch-update-size N  gradients that make an update (5; 1 to 127). Those of all living trainers\n"
    "                         make one, too\n"
    "  --num-batches N        batches of each trainer (6)\n"
    "  --batch-size N         images in a batch (20)\n"
    "  --image N              their height and width (64; 32 to 512)\n"
    "  --num-classes N        (30)\n"
    "  --model MODEL          resnet50 or resnet18 (resnet50)\n"
    "  --lr X                 learning rate (0.001; 0 to 10)\n"
    "  --momentum X           (0.9; 0 to 1)\n"
    "  --seed N               the same seed gives the same model (0)\n"
    "  --threads N            threads of each trainer (1)\n"
    "  --device DEVICE        cpu; cuda: the server on the first GPU, the trainers on all in turn; or\n"
    "                         cuda:N: all on that one (cpu)\n"
    "  --patience-ms N        how long an update waits for a trainer that lives (10000)\n"
    "  --restart N            a trainer that dies is started again, N times at most, and does the rest of\n"
    "                         its batches (0; 0 to 31)\n"
    "  --kill N               kills N trainers, evenly over the run, to try that (0)\n"
    "  --json FILE            all figures of the run\n"
    "  --plot FILE            draws the loss, FILE.svg or FILE.png (needs gnuplot)\n"
    "  --help, --version\n"
    "\n"
    "Prints a line for each update, and a table in the end. A trainer that dies, or stops for longer than\n"
    "the patience, does not end the others.\n"
    "\n"
    "Exit status: 0 all trainers that did not die have done their batches; 1 a file or the plot could\n"
    "not be written; 2 a wrong flag; 3 the server or all trainers died, or a worker failed. SIGINT and\n"
    "SIGTERM end the workers, then the program by that signal.\n";

/* 0; 1: --help or --version is done; -1 after a sentence on stderr. */
static int parse_flags(int argc, char **argv, struct ps_flags *to)
{
    static const char *const MODELS[] = { [RESNET_18] = "resnet18", [RESNET_50] = "resnet50", NULL };
    const struct flag table[] = {
        { "trainers", FLAG_INT, &to->trainers, .least = 1, .most = PS_TRAINERS_MAX },
        { "batch-update-size", FLAG_INT, &to->batch_update_size, .least = 1, .most = PS_TRAINERS_MAX },
        { "num-batches", FLAG_U64, &to->num_batches, .least = 1, .most = PS_BATCHES_MAX },
        { "batch-size", FLAG_INT, &to->batch_size, .least = 1, .most = 1024 },
        { "image", FLAG_INT, &to->image, .least = 32, .most = 512 },
        { "num-classes", FLAG_INT, &to->num_classes, .least = 1, .most = 100000 },
        { "model", FLAG_CHOICE, &to->model, .choices = MODELS },
        { "lr", FLAG_REAL, &to->lr, .real_least = 0.0, .real_most = 10.0 },
        { "momentum", FLAG_REAL, &to->momentum, .real_least = 0.0, .real_most = 1.0 },
        { "seed", FLAG_U64, &to->seed, .most = UINT64_MAX },
        { "threads", FLAG_INT, &to->threads, .least = 1, .most = 256 },
        { "device", FLAG_DEVICE, .value = &to->device },
        { "patience-ms", FLAG_U64, &to->patience_ms, .least = 1, .most = 86400000 },
        { "restart", FLAG_INT, &to->restart, .least = 0, .most = 31 },
        { "kill", FLAG_U64, &to->kill, .least = 0, .most = 1000 },
        { "json", FLAG_TEXT, .value = &to->json },
        { "plot", FLAG_FIGURE, .value = &to->plot },
    };
    const struct flags flags = { "param_server", HELP, table, sizeof(table) / sizeof(table[0]) };

    *to = (struct ps_flags){ .trainers = 5, .batch_update_size = 5, .num_batches = 6, .batch_size = 20,
                             .image = 64, .num_classes = 30, .model = RESNET_50, .lr = 0.001, .momentum = 0.9,
                             .threads = 1, .device = DEVICE_CPU,
                             .patience_ms = 10000 };
    int rc = flags_parse(&flags, argc, argv);
    if (rc == 0 && to->batch_size == 1 && to->image <= 32)
        return flags_wrong(&flags, "one image of 32 x 32 leaves a single pixel, which cannot be normalised: "
                           "--batch-size 2 or --image 33");
    return rc;
}

static int json_failed(const struct ps_flags *flags)
{
    fprintf(stderr, "param_server: %s cannot be written: %s\n", flags->json, strerror(errno));
    return PS_FAILED;
}

static int report(const struct ps_run *run, FILE *json)
{
    ps_print(run);
    if (json != NULL) {
        ps_write_json(run, json);
        if (fflush(json) != 0)
            return json_failed(run->flags);
    }
    if (run->flags->plot != NULL && ps_plot(run) < 0)
        return PS_FAILED;
    return ending_output("param_server") < 0 ? PS_FAILED : PS_OK;
}

/* Runs the job and reports it; the caller opens and closes `json`. */
static int run_and_report(const struct ps_flags *flags, FILE *json)
{
    struct ps_run run = { .flags = flags, .result = ps_result_create(flags) };

    if (run.result == NULL)
        return PS_FAILED;
    int status = ps_run(&run);
    if (status == PS_OK || run.result->ended)
        status = report(&run, json) == PS_OK ? status : PS_FAILED;
    ps_result_destroy(run.result, flags);
    return status;
}

int main(int argc, char **argv)
{
    struct ps_flags flags;
    FILE *json = NULL;

    /* The workers inherit line buffering: the lines of all processes stay whole and in order. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = parse_flags(argc, argv, &flags);
    if (rc != 0)
        return rc < 0 ? PS_USAGE : ending_output("param_server") < 0 ? PS_FAILED : PS_OK;
    if (flags.plot != NULL && plot_check("param_server", flags.plot) < 0)
        return PS_FAILED;
    if (flags.json != NULL && (json = fopen(flags.json, "we")) == NULL)
        return json_failed(&flags);
    int status = run_and_report(&flags, json);
    if (json != NULL && fclose(json) != 0)
        status = json_failed(&flags);
    return status;
}
