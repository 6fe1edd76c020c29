/* SPDX-License-Identifier: MIT */
/*
 * shmstat calls: how long calls took. Histograms of a planted job, of which every sample is known. That a worker writes
 * them so: tests/observe/test_hist.c.
 */
#include "stat_plant.h"
#include "stat_run.h"

TestSuite(shmstat_hist, .init = plant_begin, .fini = plant_remove, .timeout = 20);

/* The row of a function of a worker; NULL if it is not shown. */
static const struct json *row_of(const struct stat_run *run, int callee, const char *function)
{
    const struct json *rows = json_get(stat_run_job(run), "latencies");

    for (const struct json *row = rows != NULL ? rows->first : NULL; row != NULL; row = row->next)
        if (json_number(json_get(row, "callee")) == callee &&
            strcmp(json_text(json_get(row, "function")), function) == 0)
            return row;
    return NULL;
}

static double number(const struct json *row, const char *leg, const char *key)
{
    return json_number(json_get(json_get(row, leg), key));
}

/* ---- Planted ------------------------------------------------------------------------------------------- */

/* 90 of 70 ns, nine of 1100 ns, one of 5 ms; handlers take nothing. */
static struct bxi_hist *make_known(void)
{
    struct bxi_hist *hist;

    hist = plant_hist(0, 1, 1);
    for (int i = 0; i < 100; i++)
        plant_sample(hist, i < 90 ? 70 : i < 99 ? 1100 : 5000000, 0, 0);
    return hist;
}

Test(shmstat_hist, places_quantiles_within_their_bucket)
{
    /* Buckets from 64 to 80, 1024 to 1280, 4194304 to 5242880, of which 5000000 is the end. */
    static const char known[] = "{'samples': 100, 'p50_ns': 73, 'p90_ns': 80, 'p99_ns': 1280, 'p999_ns': 5000000,"
                                " 'max_ns': 5000000, 'mean_ns': 50162, 'sum_ns': 5016200,"
                                " 'bucket_from_ns': [64, 1024, 4194304], 'bucket_samples': [90, 9, 1]}";

    make_known();

    struct stat_run run = stat_run_fine("calls", plant.job);

    STAT_RUN_IS(row_of(&run, 1, "pick"), "{'samples': 100, 'queue': %s, 'whole': %s,"
                " 'handler': {'samples': 100, 'p999_ns': 0, 'max_ns': 0}}", known, known);
}

Test(shmstat_hist, merges_the_callers_of_a_function)
{
    make_known();
    plant_sample(plant_hist(1, 1, 1), 10, 20, 30);      /* the callee calls itself */
    plant_hist(1, 0, 2);

    struct stat_run run = stat_run_fine("calls", plant.job);

    cr_expect_eq(json_get(stat_run_job(&run), "latencies")->count, 2);
    STAT_RUN_IS(row_of(&run, 1, "pick"), "{'callee_name': 'callee', 'samples': 101,"
                " 'reply': {'samples': 101, 'sum_ns': 30, 'max_ns': 30},"
                " 'callers': [{'caller': 0, 'queue': {'samples': 100}},"
                " {'caller_name': 'callee', 'samples': 1, 'whole': {'max_ns': 60}}]}");
    /* A page whose owner was killed before it counted a sample. */
    STAT_RUN_IS(row_of(&run, 0, "save"), "{'samples': 0, 'whole': {'p50_ns': null, 'max_ns': null}}");
}

Test(shmstat_hist, survives_workers_that_have_a_function_in_all_pages)
{
    make_known();
    for (int rank = 0; rank < 2; rank++) {
        memset(plant_control(rank)->header.name, 'n', BXI_NAME_BYTES - 1);
        for (int page = rank == 0; page < BXI_HIST_MAX; page++)
            plant_sample(plant_hist(rank, 1, 1), 1, 1, 1);
    }

    struct stat_run run = stat_run_fine("calls", plant.job);

    cr_expect_eq(json_number(json_get(row_of(&run, 1, "pick"), "samples")), 100 + 2 * BXI_HIST_MAX - 1);
    cr_expect_eq(stat_run("calls %s", plant.job).status, 0);
}

Test(shmstat_hist, prints_a_table_within_80_columns)
{
    make_known();
    memset(plant_control(1)->function[2].name, 'n', BXI_NAME_BYTES - 1);
    plant_sample(plant_hist(0, 1, 2), 1000, UINT64_C(4000) * 1000000000, 1);

    struct stat_run run = stat_run("calls %s", plant.job);

    cr_assert_eq(run.status, 0);
    STAT_RUN_SAYS(run, "\npick of callee\n  called by caller 100\n");
    STAT_RUN_SAYS(run, "\n  queue               100    73 ns    80 ns  1.28 us  5.00 ms  5.00 ms  50.2 us\n");
    STAT_RUN_SAYS(run, " 1.11 h\n");
    stat_run_fits(&run);
}

Test(shmstat_hist, reads_histograms_of_a_dead_job)
{
    struct bxi_hist *hist = make_known();

    /* Killed after it counted the bucket of the first leg. */
    bxi_count(&hist->bucket[BXI_LEG_QUEUE][BXI_HIST_BUCKETS - 1], 1);
    for (int rank = 0; rank < 2; rank++)
        plant_kill(rank);

    struct stat_run run = stat_run_fine("calls", plant.job);
    const struct json *row = row_of(&run, 1, "pick");

    STAT_RUN_IS(stat_run_job(&run), "{'state': 'dead'}");
    STAT_RUN_IS(row, "{'whole': {'samples': 100}, 'queue': {'samples': 101, 'max_ns': %llu}}",
                (unsigned long long)bxi_hist_least(BXI_HIST_BUCKETS - 1));
    cr_expect_leq(number(row, "queue", "p999_ns"), number(row, "queue", "max_ns"));
}

/* Pages of a peer that does not exist, and more pages than there can be: they are not shown, the others are. */
Test(shmstat_hist, ignores_pages_of_unknown_peers)
{
    make_known();
    plant_hist(0, 1, 2)->who = 7;
    plant_hist(0, 1, 0)->who = 1 | (uint64_t)BXI_FUNCTION_MAX << 16;
    /* The bytes after the last page belong to something else. */
    bxi_store_relaxed(&plant_control(1)->header.hist_count, BXI_HIST_MAX);
    plant_hist(1, 1, 2);
    cr_assert_eq(bxi_load_relaxed(&plant_control(1)->header.hist_count), BXI_HIST_MAX + 1);

    struct stat_run run = stat_run_fine("calls", plant.job), lines = stat_run("show %s --prometheus", plant.job);

    cr_expect_not_null(row_of(&run, 1, "pick"));
    cr_expect_null(row_of(&run, 1, "save"));
    cr_expect_null(strstr(lines.text, "peer=\"7\",function"));
    cr_expect_eq(lines.status, 0);
}

/* ---- Prometheus --------------------------------------------------------------------------------------------- */

Test(shmstat_hist, are_exposed_as_histograms)
{
    static const struct {
        const char *suffix, *le;
        const char *value;
    } known[] = {
        { "_bucket", ",le=\"6.4e-08\"", "0" },
        { "_bucket", ",le=\"1.28e-07\"", "90" },
        { "_bucket", ",le=\"2.048e-06\"", "99" },
        { "_bucket", ",le=\"0.004194304\"", "99" },
        { "_bucket", ",le=\"0.008388608\"", "100" },
        { "_bucket", ",le=\"17.17986918\"", "100" },
        { "_bucket", ",le=\"+Inf\"", "100" },
        { "_count", "", "100" },
        { "_sum", "", "0.0050162" },
    };
    char line[256];

    make_known();

    struct stat_run run = stat_run("show %s --prometheus", plant.job);

    cr_expect_not_null(strstr(run.text, "\n# TYPE boxcar_call_seconds histogram\n"));
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        snprintf(line, sizeof(line), "\nboxcar_call_seconds%s{job=\"%s\",worker=\"caller\",rank=\"0\",peer=\"1\","
                 "function=\"pick\",leg=\"whole\"%s} %s", known[i].suffix, plant.job, known[i].le, known[i].value);
        cr_expect_not_null(strstr(run.text, line), "%s", line);
    }
}
