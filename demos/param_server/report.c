/* SPDX-License-Identifier: MIT */
/*
 * The report of a run: a table for people, JSON for programs, a figure. Run by the program's first process.
 * demos/README.md lists the keys of the JSON.
 */
#include "demos/common/flags.h"
#include "demos/common/plot.h"
#include "ps.h"

#include <math.h>
#include <stdlib.h>

const char *ps_model_name(int model)
{
    return model == RESNET_18 ? "resnet18" : "resnet50";
}

const char *ps_state_name(enum ps_state state)
{
    static const char *const NAMES[] = {
        [PS_TRAINING] = "training", [PS_COMPLETED] = "completed", [PS_DIED] = "died",
        [PS_GIVEN_UP] = "given up", [PS_BROKEN] = "failed",
    };

    return NAMES[state];
}

int ps_count(const struct ps_run *run, enum ps_state state)
{
    int count = 0;

    for (int i = 0; i < run->flags->trainers; i++)
        count += run->result->trainers[i].state == state;
    return count;
}

static double compute_s(const struct ps_seconds *seconds)
{
    return seconds->repack + seconds->forward + seconds->backward;
}

static double images_per_s(const struct ps_run *run, const struct ps_trainer_result *trainer)
{
    double images = (double)trainer->batches * run->flags->batch_size;

    return trainer->total_s > 0.0 ? images / trainer->total_s : 0.0;
}

/* Sums over all trainers. */
struct sums {
    double images_per_s;
    uint64_t batches;
    uint64_t restarts;
    uint64_t handed_bytes;
    uint64_t copied_bytes;      /* and by the server */
};

static struct sums add_up(const struct ps_run *run)
{
    struct sums sums = { .copied_bytes = run->result->copied_bytes };

    for (int i = 0; i < run->flags->trainers; i++) {
        sums.batches += run->result->trainers[i].batches;
        sums.restarts += run->result->trainers[i].restarts;
        sums.handed_bytes += run->result->trainers[i].handed_bytes;
        sums.copied_bytes += run->result->trainers[i].copied_bytes;
    }
    if (run->result->total_s > 0.0)
        sums.images_per_s = (double)sums.batches * run->flags->batch_size / run->result->total_s;
    return sums;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* 0 if no update has one. */
static double median_beyond_compute(const struct ps_result *result)
{
    double *known = calloc(result->updates + 1, sizeof(*known)), median = 0.0;
    size_t count = 0;

    for (size_t i = 0; known != NULL && i < result->updates; i++) {
        if (result->update[i].beyond_compute_s >= 0.0)
            known[count++] = result->update[i].beyond_compute_s;
    }
    if (count > 0) {
        qsort(known, count, sizeof(*known), compare_doubles);
        median = known[count / 2];
    }
    free(known);
    return median;
}

/* ---- For people -------------------------------------------------------------------------------------- */

static void print_trainers(const struct ps_run *run)
{
    printf("\n%-10s  %7s  %9s  %8s  %8s  %8s  %8s  %8s  %s\n", "trainer", "batches", "compute s", "repack s",
           "call s", "wait s", "total s", "images/s", "end");
    for (int i = 0; i < run->flags->trainers; i++) {
        const struct ps_trainer_result *trainer = &run->result->trainers[i];
        const struct ps_seconds *seconds = &trainer->seconds;
        char name[24];

        snprintf(name, sizeof(name), "trainer%d", i + 1);
        printf("%-10s  %7llu  %9.3f  %8.3f  %8.3f  %8.3f  %8.3f  %8.1f  %s\n", name,
               (unsigned long long)trainer->batches, compute_s(seconds), seconds->repack, seconds->call,
               seconds->wait, trainer->total_s, images_per_s(run, trainer), ps_state_name(trainer->state));
    }
}

void ps_print(const struct ps_run *run)
{
    const struct ps_result *result = run->result;
    struct sums sums = add_up(run);
    int dead = ps_count(run, PS_DIED) + ps_count(run, PS_GIVEN_UP);

    print_trainers(run);
    printf("\ntotal %.3f s, %zu updates, %.1f images/s; an update takes %.1f ms beyond its computing (median)\n",
           result->total_s, result->updates, sums.images_per_s, 1e3 * median_beyond_compute(result));
    printf("tensors handed over: %llu bytes; copied: %llu bytes\n", (unsigned long long)sums.handed_bytes,
           (unsigned long long)sums.copied_bytes);
    printf("versions of the model alive at a time: at most %llu; on loan at the end: %llu\n",
           (unsigned long long)result->versions_live_max, (unsigned long long)result->leases_at_end);
    if (result->late_gradients > 0)
        printf("late gradients: %llu, at most %llu version%s old\n", (unsigned long long)result->late_gradients,
               (unsigned long long)result->late_versions_max, result->late_versions_max == 1 ? "" : "s");
    if (run->flags->restart > 0 || run->flags->kill > 0)
        printf("killed: %llu; started again: %llu; gradients used: %llu of %llu, %llu were sent twice\n",
               (unsigned long long)result->kills, (unsigned long long)sums.restarts, (unsigned long long)sums.batches,
               (unsigned long long)run->flags->num_batches * (unsigned long long)run->flags->trainers,
               (unsigned long long)result->repeats);
    if (dead > 0)
        printf("%d of %d trainers died; %d have done all their batches\n", dead, run->flags->trainers,
               ps_count(run, PS_COMPLETED));
    printf("checksum of the parameters: %016llx\n", (unsigned long long)result->checksum);
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
    fprintf(file, ", \"%s\": ", key);
    write_number(file, number);
}

static void write_flags(const struct ps_flags *flags, FILE *file)
{
    char device[FLAGS_DEVICE_BYTES];

    fprintf(file, "  \"model\": \"%s\", \"trainers\": %d, \"batch_update_size\": %d, \"num_batches\": %llu,\n",
            ps_model_name(flags->model), flags->trainers, flags->batch_update_size,
            (unsigned long long)flags->num_batches);
    fprintf(file, "  \"batch_size\": %d, \"image\": %d, \"num_classes\": %d, \"threads\": %d", flags->batch_size,
            flags->image, flags->num_classes, flags->threads);
    fprintf(file, ", \"device\": \"%s\"", flags_device_name(flags->device, device));
    write_pair(file, "lr", flags->lr);
    write_pair(file, "momentum", flags->momentum);
    fprintf(file, ",\n  \"seed\": %llu, \"patience_ms\": %llu, \"restart\": %d,\n",
            (unsigned long long)flags->seed, (unsigned long long)flags->patience_ms, flags->restart);
}

enum column { LOSSES, UPDATE_S, STEP_S, BEYOND_COMPUTE, GRADIENTS, LATE, COLUMNS };

static double cell(const struct ps_update *update, enum column column)
{
    switch (column) {
    case LOSSES:
        return update->loss;
    case UPDATE_S:
        return update->seconds;
    case STEP_S:
        return update->step_s;
    case BEYOND_COMPUTE:
        return update->beyond_compute_s >= 0.0 ? update->beyond_compute_s : (double)NAN;
    case GRADIENTS:
        return update->rows;
    default:
        return update->late;
    }
}

static void write_updates(const struct ps_result *result, FILE *file)
{
    static const char *const KEYS[COLUMNS] = { "losses", "update_s", "step_s", "beyond_compute", "gradients",
                                               "late" };

    for (int column = 0; column < COLUMNS; column++) {
        fprintf(file, "  \"%s\": [", KEYS[column]);
        for (size_t i = 0; i < result->updates; i++) {
            fputs(i == 0 ? "" : ", ", file);
            write_number(file, cell(&result->update[i], (enum column)column));
        }
        fputs("],\n", file);
    }
}

static void write_trainers(const struct ps_run *run, FILE *file)
{
    fputs("  \"per_trainer\": [", file);
    for (int i = 0; i < run->flags->trainers; i++) {
        const struct ps_trainer_result *trainer = &run->result->trainers[i];
        const struct ps_seconds *seconds = &trainer->seconds;

        fprintf(file, "%s\n    { \"name\": \"trainer%d\", \"end\": \"%s\", \"batches\": %llu", i == 0 ? "" : ",",
                i + 1, ps_state_name(trainer->state), (unsigned long long)trainer->batches);
        write_pair(file, "total_s", trainer->total_s);
        write_pair(file, "compute_s", compute_s(seconds));
        write_pair(file, "repack_s", seconds->repack);
        write_pair(file, "forward_s", seconds->forward);
        write_pair(file, "backward_s", seconds->backward);
        write_pair(file, "call_s", seconds->call);
        write_pair(file, "wait_s", seconds->wait);
        write_pair(file, "data_s", seconds->data);
        write_pair(file, "images_per_s", images_per_s(run, trainer));
        fprintf(file, ", \"restarts\": %llu", (unsigned long long)trainer->restarts);
        fprintf(file, ", \"late_gradients\": %llu, \"handed_bytes\": %llu, \"copied_bytes\": %llu }",
                (unsigned long long)trainer->late, (unsigned long long)trainer->handed_bytes,
                (unsigned long long)trainer->copied_bytes);
    }
    fputs("\n  ],\n", file);
}

void ps_write_json(const struct ps_run *run, FILE *file)
{
    const struct ps_result *result = run->result;
    struct sums sums = add_up(run);

    fputs("{\n", file);
    write_flags(run->flags, file);
    fprintf(file, "  \"total_s\": %.9g, \"updates\": %zu, \"images_per_s\": %.9g, \"beyond_compute_median\": %.9g,\n",
            result->total_s, result->updates, sums.images_per_s, median_beyond_compute(result));
    write_updates(result, file);
    write_trainers(run, file);
    fprintf(file, "  \"handed_bytes\": %llu, \"copied_bytes\": %llu, \"arena_bytes\": %llu,\n",
            (unsigned long long)sums.handed_bytes, (unsigned long long)sums.copied_bytes,
            (unsigned long long)result->arena_bytes);
    fprintf(file, "  \"versions_live_max\": %llu, \"leases_at_end\": %llu, \"late_gradients\": %llu,\n",
            (unsigned long long)result->versions_live_max, (unsigned long long)result->leases_at_end,
            (unsigned long long)result->late_gradients);
    fprintf(file, "  \"late_versions_max\": %llu, \"absences\": %llu, \"dead_trainers\": %d,\n",
            (unsigned long long)result->late_versions_max, (unsigned long long)result->absences,
            ps_count(run, PS_DIED) + ps_count(run, PS_GIVEN_UP));
    fprintf(file, "  \"kills\": %llu, \"restarts_total\": %llu, ", (unsigned long long)result->kills,
            (unsigned long long)sums.restarts);
    fprintf(file, "\"gradients_used\": %llu, \"gradients_repeated\": %llu,\n", (unsigned long long)sums.batches,
            (unsigned long long)result->repeats);
    fprintf(file, "  \"checksum\": \"%016llx\"\n}\n", (unsigned long long)result->checksum);
}

/* ---- The figure -------------------------------------------------------------------------------------- */

int ps_plot(const struct ps_run *run)
{
    size_t count = run->result->updates;
    int *x = calloc(count + 1, sizeof(*x));
    double *y = calloc(count + 1, sizeof(*y));
    struct plot_line line = { "mean squared error", x, y, count };
    struct plot plot = { "param_server", "Batch-updating parameter server", "update", "loss", &line, 1 };
    int rc = -1;

    if (x == NULL || y == NULL || count == 0) {
        fputs("param_server: there is nothing to draw\n", stderr);
        goto free_points;
    }
    for (size_t i = 0; i < count; i++) {
        x[i] = (int)i + 1;
        y[i] = run->result->update[i].loss;
    }
    rc = plot_draw(&plot, run->flags->plot);
free_points:
    free(x);
    free(y);
    return rc;
}
