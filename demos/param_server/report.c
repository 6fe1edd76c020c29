/* SPDX-License-Identifier: MIT */
/*
 * The report of a run: a table for people, JSON for programs. Run by the program's first process.
 * demos/README.md lists the keys of the JSON.
 */
#include "demos/common/program.h"
#include "ps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *ps_state_name(enum ps_state state)
{
    static const char *const NAMES[] = {
        [PS_TRAINING] = "training", [PS_COMPLETED] = "completed", [PS_DIED] = "died",
        [PS_GIVEN_UP] = "given up", [PS_BROKEN] = "failed",
    };

    return NAMES[state];
}

int ps_count(const struct ps_flags *flags, const struct ps_result *result, enum ps_state state)
{
    int count = 0;

    for (int i = 0; i < flags->trainers; i++)
        count += result->trainers[i].state == state;
    return count;
}

static int dead(const struct ps_flags *flags, const struct ps_result *result)
{
    return ps_count(flags, result, PS_DIED) + ps_count(flags, result, PS_GIVEN_UP);
}

static double compute_s(const struct ps_spent *spent)
{
    return spent->repack + spent->forward + spent->backward;
}

static double images_per_s(const struct ps_flags *flags, const struct ps_trainer_result *trainer)
{
    double images = (double)trainer->batches * flags->batch_size;

    return trainer->spent.total > 0.0 ? images / trainer->spent.total : 0.0;
}

/* Sums over all trainers. */
struct sums {
    double images_per_s;
    uint64_t batches;
    uint64_t restarts;
    uint64_t handed_bytes;
    uint64_t copied_bytes;      /* and by the server */
};

static struct sums add_up(const struct ps_flags *flags, const struct ps_result *result)
{
    struct sums sums = { .copied_bytes = result->copied_bytes };

    for (int i = 0; i < flags->trainers; i++) {
        sums.batches += result->trainers[i].batches;
        sums.restarts += result->trainers[i].restarts;
        sums.handed_bytes += result->trainers[i].spent.handed_bytes;
        sums.copied_bytes += result->trainers[i].spent.copied_bytes;
    }
    if (result->total_s > 0.0)
        sums.images_per_s = (double)sums.batches * flags->batch_size / result->total_s;
    return sums;
}

/* 0 if no update has one. */
static double median_beyond_compute(const struct ps_result *result)
{
    double *known = calloc(result->updates + 1, sizeof(*known)), median = 0.0;
    size_t count = 0;

    for (size_t i = 0; known != NULL && i < result->updates; i++) {
        if (!isnan(result->update[i].beyond_compute_s))
            known[count++] = result->update[i].beyond_compute_s;
    }
    if (count > 0)
        median = program_median(known, count);
    free(known);
    return median;
}

/* ---- For people -------------------------------------------------------------------------------------- */

static void print_trainers(const struct ps_flags *flags, const struct ps_result *result)
{
    printf("\n%-10s  %7s  %9s  %8s  %8s  %8s  %8s  %8s  %s\n", "trainer", "batches", "compute s", "repack s",
           "call s", "wait s", "total s", "images/s", "end");
    for (int i = 0; i < flags->trainers; i++) {
        const struct ps_trainer_result *trainer = &result->trainers[i];
        const struct ps_spent *spent = &trainer->spent;
        char name[24];

        snprintf(name, sizeof(name), "trainer%d", i + 1);
        printf("%-10s  %7llu  %9.3f  %8.3f  %8.3f  %8.3f  %8.3f  %8.1f  %s\n", name,
               (unsigned long long)trainer->batches, compute_s(spent), spent->repack, spent->call,
               spent->wait, trainer->spent.total, images_per_s(flags, trainer), ps_state_name(trainer->state));
    }
}

void ps_print(const struct ps_flags *flags, const struct ps_result *result)
{
    struct sums sums = add_up(flags, result);

    print_trainers(flags, result);
    printf("\ntotal %.3f s, %zu updates, %.1f images/s; an update takes %.1f ms beyond its computing (median)\n",
           result->total_s, result->updates, sums.images_per_s, 1e3 * median_beyond_compute(result));
    printf("tensors handed over: %llu bytes; copied: %llu bytes\n", (unsigned long long)sums.handed_bytes,
           (unsigned long long)sums.copied_bytes);
    printf("versions of the model alive at a time: at most %llu; on loan at the end: %llu\n",
           (unsigned long long)result->versions_live_max, (unsigned long long)result->leases_at_end);
    if (result->late_gradients > 0)
        printf("late gradients: %llu, at most %llu version%s old\n", (unsigned long long)result->late_gradients,
               (unsigned long long)result->late_versions_max, result->late_versions_max == 1 ? "" : "s");
    if (flags->restart > 0 || flags->kill > 0)
        printf("killed: %llu; started again: %llu; gradients used: %llu of %llu, %llu were sent twice\n",
               (unsigned long long)result->kills, (unsigned long long)sums.restarts, (unsigned long long)sums.batches,
               (unsigned long long)flags->num_batches * (unsigned long long)flags->trainers,
               (unsigned long long)result->repeats);
    if (dead(flags, result) > 0)
        printf("%d of %d trainers died; %d have done all their batches\n", dead(flags, result), flags->trainers,
               ps_count(flags, result, PS_COMPLETED));
    printf("checksum of the parameters: %016llx\n", (unsigned long long)result->checksum);
}

/* ---- For programs ------------------------------------------------------------------------------------ */

static void write_updates(const struct ps_result *result, struct json *json)
{
    static const struct {
        const char *key;
        size_t offset;
    } COLUMNS[] = {
        { "losses", offsetof(struct ps_update, loss) },
        { "update_s", offsetof(struct ps_update, seconds) },
        { "step_s", offsetof(struct ps_update, step_s) },
        { "beyond_compute", offsetof(struct ps_update, beyond_compute_s) },
        { "gradients", offsetof(struct ps_update, rows) },
        { "late", offsetof(struct ps_update, late) },
    };

    for (size_t column = 0; column < sizeof(COLUMNS) / sizeof(COLUMNS[0]); column++) {
        json_list(json, COLUMNS[column].key);
        for (size_t i = 0; i < result->updates; i++) {
            double value;

            memcpy(&value, (const char *)&result->update[i] + COLUMNS[column].offset, sizeof(value));
            json_real(json, NULL, value);
        }
        json_list_end(json);
    }
}

static void write_trainers(const struct ps_flags *flags, const struct ps_result *result, struct json *json)
{
    json_list(json, "per_trainer");
    for (int i = 0; i < flags->trainers; i++) {
        const struct ps_trainer_result *trainer = &result->trainers[i];
        const struct ps_spent *spent = &trainer->spent;

        json_item(json);
        json_put(json, "name", "\"trainer%d\"", i + 1);
        json_put(json, "end", "\"%s\"", ps_state_name(trainer->state));
        json_u64(json, "batches", trainer->batches);
        json_real(json, "total_s", trainer->spent.total);
        json_real(json, "compute_s", compute_s(spent));
        json_real(json, "repack_s", spent->repack);
        json_real(json, "forward_s", spent->forward);
        json_real(json, "backward_s", spent->backward);
        json_real(json, "call_s", spent->call);
        json_real(json, "wait_s", spent->wait);
        json_real(json, "data_s", spent->data);
        json_real(json, "images_per_s", images_per_s(flags, trainer));
        json_u64(json, "restarts", trainer->restarts);
        json_u64(json, "late_gradients", trainer->late);
        json_u64(json, "handed_bytes", spent->handed_bytes);
        json_u64(json, "copied_bytes", spent->copied_bytes);
        json_item_end(json);
    }
    json_list_end(json);
}

void ps_write_json(const struct ps_flags *flags, const struct ps_result *result, struct json *json)
{
    struct sums sums = add_up(flags, result);

    json_real(json, "total_s", result->total_s);
    json_u64(json, "updates", result->updates);
    json_real(json, "images_per_s", sums.images_per_s);
    json_real(json, "beyond_compute_median", median_beyond_compute(result));
    write_updates(result, json);
    write_trainers(flags, result, json);
    json_u64(json, "handed_bytes", sums.handed_bytes);
    json_u64(json, "copied_bytes", sums.copied_bytes);
    json_u64(json, "arena_bytes", result->arena_bytes);
    json_u64(json, "versions_live_max", result->versions_live_max);
    json_u64(json, "leases_at_end", result->leases_at_end);
    json_u64(json, "late_gradients", result->late_gradients);
    json_u64(json, "late_versions_max", result->late_versions_max);
    json_u64(json, "absences", result->absences);
    json_put(json, "dead_trainers", "%d", dead(flags, result));
    json_u64(json, "kills", result->kills);
    json_u64(json, "restarts_total", sums.restarts);
    json_u64(json, "gradients_used", sums.batches);
    json_u64(json, "gradients_repeated", result->repeats);
    json_put(json, "checksum", "\"%016llx\"", (unsigned long long)result->checksum);
}
