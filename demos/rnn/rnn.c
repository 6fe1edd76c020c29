/* SPDX-License-Identifier: MIT */
/*
 * rnn - an RNN whose embedding table and decoder live on one worker and whose LSTM lives on another, trained by
 * distributed autograd and a distributed optimizer.
 *
 * This file is the first process: flags, the job, and what a run prints and writes. demos/README.md lists the keys of
 * the JSON.
 */
#include "demos/common/program.h"
#include "demos/common/worker.h"
#include "rnn.h"

#include <math.h>
#include <stdlib.h>

static struct rnn_flags flags = { .batch = 5, .ntoken = 10, .ninp = 2, .nhid = 3, .nindices = 3, .nlayers = 4,
                                  .dropout = 0.5, .epochs = 10, .lr = 0.05, .loss = RNN_LOSS_TUTORIAL };

static const char HELP[] =
    "Usage: rnn [flags]\n"
    "\n"
    "Trains an RNN that is spread over two workers, each a process: `ps` has the embedding table and the\n"
    "decoder, `trainer` has the LSTM. Forward by calls on references; backward pass and optimizer go over\n"
    "both workers. An epoch is five batches.\n"
    "\n"
    "  --batch N      steps of the LSTM's sequence (5; 1 to 4096)\n"
    "  --ntoken N     different tokens (10; 1 to 100000)\n"
    "  --ninp N       width of the embedding (2; 1 to 4096)\n"
    "  --nhid N       width of the LSTM (3; 1 to 4096)\n"
    "  --nindices N   sequences side by side (3; 1 to 4096)\n"
    "  --nlayers N    layers of the LSTM (4; 1 to 64)\n"
    "  --dropout P    after the table, between the layers, before the decoder (0.5; 0 to 1)\n"
    "  --epochs N     (10)\n"
    "  --lr X         learning rate (0.05; 0 to 1000)\n"
    "  --seed N       the same seed gives the same losses (0)\n"
    "  --loss LOSS    tutorial: over the sequences, against random targets, as the tutorial has it;\n"
    "                 token: over the tokens, against the next token (tutorial)\n"
    "  --json FILE    all figures of the run\n"
    "  --plot FILE    draws the loss, FILE.svg or FILE.png (needs gnuplot)\n"
    "  --help, --version\n"
    "\n"
    "Prints for each epoch the mean loss of its batches, and the median time of an iteration in the end.\n"
    "\n"
    "Exit status: 0 done; 1 a file or the plot could not be written; 2 a wrong flag; 3 a worker died or\n"
    "failed. SIGINT and SIGTERM end the workers, then the program by that signal.\n";

static const char *const LOSSES[] = { [RNN_LOSS_TUTORIAL] = "tutorial", [RNN_LOSS_TOKEN] = "token", NULL };
static const struct flag TABLE[] = {
    { "batch", FLAG_INT, &flags.batch, .least = 1, .most = 4096 },
    { "ntoken", FLAG_INT, &flags.ntoken, .least = 1, .most = 100000 },
    { "ninp", FLAG_INT, &flags.ninp, .least = 1, .most = 4096 },
    { "nhid", FLAG_INT, &flags.nhid, .least = 1, .most = 4096 },
    { "nindices", FLAG_INT, &flags.nindices, .least = 1, .most = 4096 },
    { "nlayers", FLAG_INT, &flags.nlayers, .least = 1, .most = RNN_LAYERS_MAX },
    { "dropout", FLAG_REAL, &flags.dropout, .real_least = 0.0, .real_most = 1.0 },
    { "epochs", FLAG_INT, &flags.epochs, .least = 1, .most = 10000000 },
    { "lr", FLAG_REAL, &flags.lr, .real_least = 0.0, .real_most = 1000.0 },
    { "seed", FLAG_U64, &flags.seed, .most = UINT64_MAX },
    { "loss", FLAG_CHOICE, &flags.loss, .choices = LOSSES },
    { "json", FLAG_TEXT, .value = &flags.json },
    { "plot", FLAG_FIGURE, .value = &flags.plot },
};

/* ---- The job ----------------------------------------------------------------------------------------- */

static size_t iterations(void)
{
    return (size_t)flags.epochs * RNN_BATCHES;
}

static size_t result_bytes(void)
{
    return sizeof(struct rnn_result) + iterations() * sizeof(struct rnn_iteration);
}

static int run_job(void *result)
{
    static const char *const NAMES[] = { RNN_PS, RNN_TRAINER };
    const struct bx_spawn_options options = { .world_size = 2, .names = NAMES };
    struct rnn_run run = { .flags = &flags, .result = result };

    return worker_spawn("rnn", &options, rnn_worker, &run) < 0 ? PROGRAM_WORKER : PROGRAM_OK;
}

/* ---- Results ----------------------------------------------------------------------------------------- */

static double median_s(const struct rnn_result *result)
{
    double *seconds = calloc(iterations(), sizeof(*seconds)), median = (double)NAN;

    for (size_t i = 0; seconds != NULL && i < iterations(); i++)
        seconds[i] = result->at[i].seconds;
    if (seconds != NULL)
        median = program_median(seconds, iterations());
    free(seconds);
    return median;
}

static void print(const void *context)
{
    const struct rnn_result *result = context;

    printf("%zu iterations in %.3f s, %.4f ms each (median)\n", iterations(), result->total_s,
           1e3 * median_s(result));
}

static void write_json(struct json *json, const void *context)
{
    const struct rnn_result *result = context;

    json_real(json, "ms_per_iteration", 1e3 * median_s(result));
    json_real(json, "total_s", result->total_s);
    json_u64(json, "iterations", iterations());
    json_real(json, "calls_per_iteration", (double)result->calls / (double)iterations());
    json_list(json, "losses");
    for (size_t i = 0; i < iterations(); i++)
        json_real(json, NULL, result->at[i].loss);
    json_list_end(json);
    json_list(json, "epoch_losses");
    for (size_t epoch = 0; epoch < (size_t)flags.epochs; epoch++)
        json_real(json, NULL, rnn_epoch_loss(result, epoch));
    json_list_end(json);
}

static double point(const void *context, size_t line, size_t i, int *x)
{
    (void)line;
    *x = (int)i;
    return rnn_epoch_loss(context, i);
}

static struct plot figure(const void *result)
{
    return (struct plot){ "rnn", "Embedding and decoder on one worker, LSTM on another", "epoch", "loss",
                          { "cross entropy" }, (size_t)flags.epochs, point, result };
}

int main(int argc, char **argv)
{
    static const struct program PROGRAM = {
        .flags = { "rnn", HELP, TABLE, sizeof(TABLE) / sizeof(TABLE[0]) },
        .json = &flags.json,
        .plot = &flags.plot,
        .result_bytes = result_bytes,
        .run = run_job,
        .print = print,
        .write_json = write_json,
        .figure = figure,
    };

    return program_main(&PROGRAM, argc, argv);
}
