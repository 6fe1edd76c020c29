/* SPDX-License-Identifier: MIT */
/*
 * How long calls take. A caller keeps one page for each function of each peer whose calls it measures (shm/LAYOUT.md,
 * "Histograms"). Here the pages of all workers are copied, and printed by function: merged over all callers, and for
 * each caller.
 *
 * Only the pages below hist_count are read. A page may be copied while its owner writes the words of one sample: the
 * legs then differ by that sample, as they do after a caller was killed there.
 *
 * A quantile is the value of one sample, of which only the bucket is known; a bucket's width is a quarter of its
 * octave's least value. The samples of a bucket are taken as spread evenly, up to its end or up to the longest that
 * was measured.
 */
#include "hist.h"

#include "json.h"
#include "row.h"
#include "state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One caller's histogram of one function. */
struct row {
    int caller, callee;
    const struct bxi_hist *hist;
};

struct rows {
    struct row *list;           /* by callee, function, caller */
    size_t count;
};

/* ---- Reading ------------------------------------------------------------------------------------ */

static int read_worker(struct stat_worker *worker)
{
    uint32_t count = stat_word32(&worker->control->header.hist_count);

    if (count > BXI_HIST_MAX)
        count = BXI_HIST_MAX;
    worker->hists = count > 0 ? malloc(count * sizeof(*worker->hists)) : NULL;
    if (count > 0 && worker->hists == NULL)
        return -ENOMEM;
    /* hist_count stays 0 if the file is shorter than its header says. */
    if (count > 0 && stat_pread(&worker->segment, worker->hists, count * sizeof(*worker->hists),
                                bxi_hist_offset(0)) == 0)
        worker->hist_count = count;
    return 0;
}

int stat_hists_read(struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        if (read_worker(worker) < 0)
            return -ENOMEM;
    return 0;
}

bool stat_hist_callee(const struct stat_worker *caller, const struct bxi_hist *hist, int *callee)
{
    if ((hist->who & 0xffff) >= caller->control->header.world_size || hist->who >> 16 >= BXI_FUNCTION_MAX ||
        hist->name[0] == '\0')
        return false;
    *callee = (int)(hist->who & 0xffff);
    return true;
}

void stat_hist_name(const struct bxi_hist *hist, char name[BXI_NAME_BYTES])
{
    stat_printable(name, BXI_NAME_BYTES, hist->name, BXI_NAME_BYTES);
}

const char *stat_leg_name(int leg)
{
    static const char *const names[BXI_LEGS] = { "queue", "handler", "reply", "whole" };

    return names[leg];
}

/* ---- Figures ------------------------------------------------------------------------------------ */

uint64_t stat_hist_samples(const struct bxi_hist *hist, int leg)
{
    uint64_t samples = 0;

    for (int i = 0; i < BXI_HIST_BUCKETS; i++)
        samples += stat_word(&hist->bucket[leg][i]);
    return samples;
}

/* The longest is stored after its bucket is counted, so a bucket above it counts as well. */
static uint64_t longest(const struct bxi_hist *hist, int leg)
{
    uint64_t max_ns = stat_word(&hist->max_ns[leg]);
    uint32_t last = BXI_HIST_BUCKETS;

    while (last > 0 && stat_word(&hist->bucket[leg][last - 1]) == 0)
        last--;
    return last > 0 && bxi_hist_least(last - 1) > max_ns ? bxi_hist_least(last - 1) : max_ns;
}

/* The longest of a share q of the samples, in ns; 0 if there are none. */
static double quantile(const struct bxi_hist *hist, int leg, double q)
{
    /* Of 100 samples the 50th, the 99th, and for 99.9 % the last one; 1e-6 is the rounding error of the product. */
    double left = ceil(q * (double)stat_hist_samples(hist, leg) - 1e-6), most = (double)longest(hist, leg);

    for (uint32_t i = 0; i < BXI_HIST_BUCKETS; i++) {
        double count = (double)stat_word(&hist->bucket[leg][i]), least = (double)bxi_hist_least(i), end = most;

        if (count == 0 || left > count) {
            left -= count;
            continue;
        }
        if (i + 1 < BXI_HIST_BUCKETS && (double)bxi_hist_least(i + 1) < most)
            end = (double)bxi_hist_least(i + 1);
        return least + (end - least) * left / count;
    }
    return most;
}

static double mean(const struct bxi_hist *hist, int leg)
{
    return (double)stat_word(&hist->sum_ns[leg]) / (double)stat_hist_samples(hist, leg);
}

static void add(struct bxi_hist *to, const struct bxi_hist *hist)
{
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        for (int i = 0; i < BXI_HIST_BUCKETS; i++)
            bxi_count(&to->bucket[leg][i], stat_word(&hist->bucket[leg][i]));
        bxi_count(&to->sum_ns[leg], stat_word(&hist->sum_ns[leg]));
        if (stat_word(&hist->max_ns[leg]) > stat_word(&to->max_ns[leg]))
            /* Relaxed: a private copy. */
            bxi_store_relaxed(&to->max_ns[leg], stat_word(&hist->max_ns[leg]));
    }
}

/* ---- By function ---------------------------------------------------------------------------------- */

static int by_function(const void *one, const void *other)
{
    const struct row *a = one, *b = other;

    if (a->hist->who != b->hist->who)
        return a->callee != b->callee ? a->callee - b->callee : a->hist->who < b->hist->who ? -1 : 1;
    return a->caller - b->caller;
}

static int collect(const struct stat_job *job, struct rows *rows)
{
    size_t most = 0;

    *rows = (struct rows){ 0 };
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        most += worker->hist_count;
    rows->list = malloc((most + 1) * sizeof(*rows->list));
    if (rows->list == NULL)
        return -ENOMEM;
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;) {
        for (uint32_t i = 0; i < worker->hist_count; i++) {
            struct row row = { .caller = worker->rank, .hist = &worker->hists[i] };

            if (stat_hist_callee(worker, row.hist, &row.callee))
                rows->list[rows->count++] = row;
        }
    }
    qsort(rows->list, rows->count, sizeof(*rows->list), by_function);
    return 0;
}

/* Merges the rows of one function, which begin at `first`. Returns where the next function's rows begin. */
static size_t merge(const struct rows *rows, size_t first, struct bxi_hist *merged)
{
    size_t at = first;

    memset(merged, 0, sizeof(*merged));
    for (; at < rows->count && rows->list[at].hist->who == rows->list[first].hist->who; at++)
        add(merged, rows->list[at].hist);
    return at;
}

/* ---- Rows ----------------------------------------------------------------------------------------- */

static const struct stat_column columns[] = {
    { "CALLS MEASURED", ".leg", -14 }, { "SAMPLES", "samples", 10 }, { "P50", "p50_ns", 8 }, { "P90", "p90_ns", 8 },
    { "P99", "p99_ns", 8 },            { "P99.9", "p999_ns", 8 },    { "MAX", ".max", 8 }, { "MEAN", "mean_ns", 8 },
};

static void make_row(const struct bxi_hist *hist, int leg, struct stat_row *row)
{
    static const struct {
        const char *name;
        double share;
    } quantiles[] = { { "p50_ns", 0.5 }, { "p90_ns", 0.9 }, { "p99_ns", 0.99 }, { "p999_ns", 0.999 } };
    uint64_t samples = stat_hist_samples(hist, leg), from[BXI_HIST_BUCKETS], counts[BXI_HIST_BUCKETS];
    size_t count = 0;

    stat_row_begin(row);
    stat_put_format(row, ".leg", "  %s", stat_leg_name(leg));
    stat_put(row, "samples", STAT_COUNT, samples);
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++)
        stat_put_real(row, quantiles[i].name, STAT_NS,
                      samples > 0 ? quantile(hist, leg, quantiles[i].share) : -1);
    stat_put_if(row, samples > 0, "max_ns", STAT_COUNT, longest(hist, leg));
    stat_put_real(row, ".max", STAT_NS, (double)longest(hist, leg));
    stat_put_real(row, "mean_ns", STAT_NS, samples > 0 ? mean(hist, leg) : -1);
    stat_put(row, "sum_ns", STAT_COUNT, stat_word(&hist->sum_ns[leg]));
    for (uint32_t i = 0; i < BXI_HIST_BUCKETS; i++) {
        if (stat_word(&hist->bucket[leg][i]) == 0)
            continue;
        from[count] = bxi_hist_least(i);
        counts[count++] = stat_word(&hist->bucket[leg][i]);
    }
    stat_put_list(row, "bucket_from_ns", from, count);
    stat_put_list(row, "bucket_samples", counts, count);
}

/* ---- Forms ---------------------------------------------------------------------------------------- */

/* Which function, and who calls it. */
static void function_row(const struct stat_job *job, const struct rows *rows, size_t first, size_t end,
                         struct stat_row *row)
{
    char name[BXI_NAME_BYTES];

    stat_hist_name(rows->list[first].hist, name);
    stat_row_begin(row);
    stat_put(row, "callee", STAT_COUNT, (uint64_t)rows->list[first].callee);
    stat_put_text(row, "callee_name", stat_peer_name(job, rows->list[first].callee));
    stat_put_text(row, "function", name);
    stat_put_names(row, ".callers");
    /* No worker has two pages of one function, and a row has room for the names of all workers. */
    for (size_t i = first; i < end; i++)
        if (i == first || rows->list[i].caller != rows->list[i - 1].caller)
            stat_add_name(row, "%s %llu", stat_peer_name(job, rows->list[i].caller),
                          (unsigned long long)stat_hist_samples(rows->list[i].hist, BXI_LEG_WHOLE));
}

static void text_function(const struct stat_row *function, const struct bxi_hist *merged, struct stat_table *table)
{
    const size_t all = sizeof(columns) / sizeof(columns[0]);
    struct stat_row row;

    stat_table_titles(table, all);
    printf("%s of %s\n", (const char *)stat_row_field(function, "function")->at,
           (const char *)stat_row_field(function, "callee_name")->at);
    stat_names_line("called by", stat_row_field(function, ".callers"));
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        make_row(merged, leg, &row);
        /* A leg without samples has no further columns. */
        table->count = stat_hist_samples(merged, leg) > 0 ? all : 2;
        stat_table_row(table, &row);
    }
}

static void json_legs(const struct bxi_hist *hist)
{
    struct stat_row row;

    stat_json_u64("samples", stat_hist_samples(hist, BXI_LEG_WHOLE));
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        make_row(hist, leg, &row);
        stat_json_open(stat_leg_name(leg), '{');
        stat_row_json(&row);
        stat_json_close('}');
    }
}

static void json_callers(const struct stat_job *job, const struct rows *rows, size_t first, size_t end)
{
    stat_json_open("callers", '[');
    for (size_t i = first; i < end; i++) {
        stat_json_open(NULL, '{');
        stat_json_u64("caller", (uint64_t)rows->list[i].caller);
        stat_json_text("caller_name", stat_peer_name(job, rows->list[i].caller));
        json_legs(rows->list[i].hist);
        stat_json_close('}');
    }
    stat_json_close(']');
}

int stat_hists_print(const struct stat_job *job, bool json)
{
    struct stat_table table = { .columns = columns };
    struct bxi_hist merged;
    struct stat_row row;
    struct rows rows;

    if (collect(job, &rows) < 0)
        return -ENOMEM;
    if (json)
        stat_json_open("latencies", '[');
    else if (rows.count > 0)
        printf("\n");
    for (size_t first = 0, end; first < rows.count; first = end) {
        end = merge(&rows, first, &merged);
        function_row(job, &rows, first, end, &row);
        if (json) {
            stat_json_open(NULL, '{');
            json_legs(&merged);
            stat_row_json(&row);
            json_callers(job, &rows, first, end);
            stat_json_close('}');
        } else {
            text_function(&row, &merged, &table);
        }
    }
    if (json)
        stat_json_close(']');
    free(rows.list);
    return 0;
}
