/* SPDX-License-Identifier: MIT */
/*
 * rnn - an RNN whose embedding table and decoder live on one worker and whose LSTM lives on another, trained by
 * distributed autograd and a distributed optimizer.
 *
 * This file is the launcher: it reads the flags, opens the files for the results before any work starts, runs one job
 * (run.c), and prints and writes its results (report.c).
 */
#include "demos/common/ending.h"
#include "demos/common/flags.h"
#include "demos/common/plot.h"
#include "rnn.h"

#include <errno.h>
#include <string.h>

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

/* 0; 1: --help or --version is done; -1 after a sentence on stderr. */
static int parse_flags(int argc, char **argv, struct rnn_flags *to)
{
    static const char *const LOSSES[] = { [RNN_LOSS_TUTORIAL] = "tutorial", [RNN_LOSS_TOKEN] = "token", NULL };
    const struct flag table[] = {
        { "batch", FLAG_INT, &to->batch, .least = 1, .most = 4096 },
        { "ntoken", FLAG_INT, &to->ntoken, .least = 1, .most = 100000 },
        { "ninp", FLAG_INT, &to->ninp, .least = 1, .most = 4096 },
        { "nhid", FLAG_INT, &to->nhid, .least = 1, .most = 4096 },
        { "nindices", FLAG_INT, &to->nindices, .least = 1, .most = 4096 },
        { "nlayers", FLAG_INT, &to->nlayers, .least = 1, .most = 64 },
        { "dropout", FLAG_REAL, &to->dropout, .real_least = 0.0, .real_most = 1.0 },
        { "epochs", FLAG_INT, &to->epochs, .least = 1, .most = 10000000 },
        { "lr", FLAG_REAL, &to->lr, .real_least = 0.0, .real_most = 1000.0 },
        { "seed", FLAG_U64, &to->seed, .most = UINT64_MAX },
        { "loss", FLAG_CHOICE, &to->loss, .choices = LOSSES },
        { "json", FLAG_TEXT, .value = &to->json },
        { "plot", FLAG_FIGURE, .value = &to->plot },
    };
    const struct flags flags = { "rnn", HELP, table, sizeof(table) / sizeof(table[0]) };

    *to = (struct rnn_flags){ .batch = 5, .ntoken = 10, .ninp = 2, .nhid = 3, .nindices = 3, .nlayers = 4,
                              .dropout = 0.5, .epochs = 10, .lr = 0.05, .loss = RNN_LOSS_TUTORIAL };
    return flags_parse(&flags, argc, argv);
}

static int json_failed(const struct rnn_flags *flags)
{
    fprintf(stderr, "rnn: %s cannot be written: %s\n", flags->json, strerror(errno));
    return RNN_FAILED;
}

static int report(const struct rnn_run *run, FILE *json)
{
    rnn_print(run);
    if (json != NULL) {
        rnn_write_json(run, json);
        if (fflush(json) != 0)
            return json_failed(run->flags);
    }
    if (run->flags->plot != NULL && rnn_plot(run) < 0)
        return RNN_FAILED;
    return ending_output("rnn") < 0 ? RNN_FAILED : RNN_OK;
}

/* Runs the job and reports it; the caller opens and closes `json`. */
static int run_and_report(const struct rnn_flags *flags, FILE *json)
{
    struct rnn_run run = { .flags = flags, .result = rnn_result_create(flags) };
    int status;

    if (run.result == NULL)
        return RNN_FAILED;
    status = rnn_run(&run);
    if (status == RNN_OK)
        status = report(&run, json);
    rnn_result_destroy(run.result, flags);
    return status;
}

int main(int argc, char **argv)
{
    struct rnn_flags flags;
    FILE *json = NULL;
    int rc, status;

    /* The workers inherit line buffering: the lines of all processes stay whole and in order. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    rc = parse_flags(argc, argv, &flags);
    if (rc != 0)
        return rc < 0 ? RNN_USAGE : ending_output("rnn") < 0 ? RNN_FAILED : RNN_OK;
    if (flags.plot != NULL && plot_check("rnn", flags.plot) < 0)
        return RNN_FAILED;
    if (flags.json != NULL && (json = fopen(flags.json, "we")) == NULL)
        return json_failed(&flags);
    status = run_and_report(&flags, json);
    if (json != NULL && fclose(json) != 0)
        status = json_failed(&flags);
    return status;
}
