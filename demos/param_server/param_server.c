/* SPDX-License-Identifier: MIT */
/*
 * param_server - a batch-updating parameter server and its trainers, over shared memory.
 *
 * This file is the first process: flags, one job (run.c), its results (report.c).
 */
#include "demos/common/program.h"
#include "ps.h"

static struct ps_flags flags = { .trainers = 5, .batch_update_size = 5, .num_batches = 6, .batch_size = 20, .image = 64,
                                 .num_classes = 30, .model = RESNET_50, .lr = 0.001, .momentum = 0.9, .threads = 1,
                                 .device = DEVICE_CPU, .patience_ms = 10000 };

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

static const char *const MODELS[] = { [RESNET_18] = "resnet18", [RESNET_50] = "resnet50", NULL };
static const struct flag TABLE[] = {
    { "trainers", FLAG_INT, &flags.trainers, .least = 1, .most = PS_TRAINERS_MAX },
    { "batch-update-size", FLAG_INT, &flags.batch_update_size, .least = 1, .most = PS_TRAINERS_MAX },
    { "num-batches", FLAG_U64, &flags.num_batches, .least = 1, .most = PS_BATCHES_MAX },
    { "batch-size", FLAG_INT, &flags.batch_size, .least = 1, .most = 1024 },
    { "image", FLAG_INT, &flags.image, .least = 32, .most = 512 },
    { "num-classes", FLAG_INT, &flags.num_classes, .least = 1, .most = 100000 },
    { "model", FLAG_CHOICE, &flags.model, .choices = MODELS },
    { "lr", FLAG_REAL, &flags.lr, .real_least = 0.0, .real_most = 10.0 },
    { "momentum", FLAG_REAL, &flags.momentum, .real_least = 0.0, .real_most = 1.0 },
    { "seed", FLAG_U64, &flags.seed, .most = UINT64_MAX },
    { "threads", FLAG_INT, &flags.threads, .least = 1, .most = 256 },
    { "device", FLAG_DEVICE, .value = &flags.device },
    { "patience-ms", FLAG_U64, &flags.patience_ms, .least = 1, .most = 86400000 },
    { "restart", FLAG_INT, &flags.restart, .least = 0, .most = 31 },
    { "kill", FLAG_U64, &flags.kill, .least = 0, .most = 1000 },
    { "json", FLAG_TEXT, .value = &flags.json },
    { "plot", FLAG_FIGURE, .value = &flags.plot },
};

static int check(const struct flags *of)
{
    if (flags.batch_size == 1 && flags.image <= 32)
        return flags_wrong(of, "one image of 32 x 32 leaves a single pixel, which cannot be normalised: "
                               "--batch-size 2 or --image 33");
    return 0;
}

static size_t result_bytes(void)
{
    return ps_result_bytes(&flags);
}

static int run_job(void *result)
{
    return ps_run(&(struct ps_run){ .flags = &flags, .result = result });
}

static bool is_complete(const void *result)
{
    return ((const struct ps_result *)result)->ended;
}

static void print(const void *result)
{
    ps_print(&flags, result);
}

static void write_json(struct json *json, const void *result)
{
    ps_write_json(&flags, result, json);
}

static double point(const void *result, size_t line, size_t i, int *x)
{
    (void)line;
    *x = (int)i + 1;
    return ((const struct ps_result *)result)->update[i].loss;
}

static struct plot figure(const void *result)
{
    return (struct plot){ "param_server", "Batch-updating parameter server", "update", "loss",
                          { "mean squared error" }, ((const struct ps_result *)result)->updates, point, result };
}

int main(int argc, char **argv)
{
    static const struct program PROGRAM = {
        .flags = { "param_server", HELP, TABLE, sizeof(TABLE) / sizeof(TABLE[0]) },
        .json = &flags.json,
        .plot = &flags.plot,
        .check = check,
        .result_bytes = result_bytes,
        .run = run_job,
        .is_complete = is_complete,
        .print = print,
        .write_json = write_json,
        .figure = figure,
    };

    return program_main(&PROGRAM, argc, argv);
}
