/* SPDX-License-Identifier: MIT */
/*
 * The report of a run: a line for people, JSON for programs, a figure. Run by the program's first process.
 * demos/README.md lists the keys of the JSON.
 */
#include "demos/common/plot.h"
#include "rnn.h"

#include <math.h>
#include <stdlib.h>

size_t rnn_iterations(const struct rnn_flags *flags)
{
    return (size_t)flags->epochs * RNN_BATCHES;
}

double rnn_epoch_loss(const struct rnn_result *result, size_t epoch)
{
    double sum = 0.0;

    for (size_t i = 0; i < RNN_BATCHES; i++)
        sum += result->at[epoch * RNN_BATCHES + i].loss;
    return sum / RNN_BATCHES;
}

const char *rnn_loss_name(int loss)
{
    return loss == RNN_LOSS_TOKEN ? "token" : "tutorial";
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_s(const struct rnn_run *run)
{
    size_t count = rnn_iterations(run->flags);
    double *seconds = calloc(count, sizeof(*seconds)), median = (double)NAN;

    for (size_t i = 0; seconds != NULL && i < count; i++)
        seconds[i] = run->result->at[i].seconds;
    if (seconds != NULL) {
        qsort(seconds, count, sizeof(*seconds), compare_doubles);
        median = (seconds[(count - 1) / 2] + seconds[count / 2]) / 2.0;
    }
    free(seconds);
    return median;
}

void rnn_print(const struct rnn_run *run)
{
    printf("%zu iterations in %.3f s, %.4f ms each (median)\n", rnn_iterations(run->flags), run->result->total_s,
           1e3 * median_s(run));
}

/* ---- For programs ------------------------------------------------------------------------------------ */

static void write_number(FILE *file, double number)
{
    if (isfinite(number))
        fprintf(file, "%.9g", number);
    else
        fputs("null", file);        /* JSON has no NaN and no infinity */
}

static void write_pair(FILE *file, const char *key, double number)
{
    fprintf(file, "\"%s\": ", key);
    write_number(file, number);
}

static void write_flags(const struct rnn_flags *flags, FILE *file)
{
    fprintf(file, "  \"batch\": %d, \"ntoken\": %d, \"ninp\": %d, \"nhid\": %d, \"nindices\": %d, \"nlayers\": %d, ",
            flags->batch, flags->ntoken, flags->ninp, flags->nhid, flags->nindices, flags->nlayers);
    write_pair(file, "dropout", flags->dropout);
    fprintf(file, ",\n  \"epochs\": %d, ", flags->epochs);
    write_pair(file, "lr", flags->lr);
    fprintf(file, ", \"seed\": %llu, \"loss\": \"%s\",\n", (unsigned long long)flags->seed,
            rnn_loss_name(flags->loss));
}

void rnn_write_json(const struct rnn_run *run, FILE *file)
{
    const struct rnn_result *result = run->result;
    size_t count = rnn_iterations(run->flags);

    fputs("{\n", file);
    write_flags(run->flags, file);
    fputs("  ", file);
    write_pair(file, "ms_per_iteration", 1e3 * median_s(run));
    fputs(", ", file);
    write_pair(file, "total_s", result->total_s);
    fprintf(file, ", \"iterations\": %zu, ", count);
    write_pair(file, "calls_per_iteration", (double)result->calls / (double)count);
    fputs(",\n  \"losses\": [", file);
    for (size_t i = 0; i < count; i++) {
        fputs(i == 0 ? "" : ", ", file);
        write_number(file, result->at[i].loss);
    }
    fputs("],\n  \"epoch_losses\": [", file);
    for (size_t epoch = 0; epoch < (size_t)run->flags->epochs; epoch++) {
        fputs(epoch == 0 ? "" : ", ", file);
        write_number(file, rnn_epoch_loss(result, epoch));
    }
    fputs("]\n}\n", file);
}

/* ---- The figure -------------------------------------------------------------------------------------- */

int rnn_plot(const struct rnn_run *run)
{
    size_t count = (size_t)run->flags->epochs;
    int *x = calloc(count, sizeof(*x));
    double *y = calloc(count, sizeof(*y));
    struct plot_line line = { "cross entropy", x, y, count };
    struct plot plot = { "rnn", "Embedding and decoder on one worker, LSTM on another", "epoch", "loss", &line, 1 };
    int rc = -1;

    for (size_t epoch = 0; x != NULL && y != NULL && epoch < count; epoch++) {
        x[epoch] = (int)epoch;
        y[epoch] = rnn_epoch_loss(run->result, epoch);
    }
    if (x != NULL && y != NULL)
        rc = plot_draw(&plot, run->flags->plot);
    else
        fputs("rnn: not enough memory for the figure\n", stderr);
    free(x);
    free(y);
    return rc;
}
