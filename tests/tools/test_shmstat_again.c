/* SPDX-License-Identifier: MIT */
/*
 * shmstat beside a job in which a worker takes the place of one that died: a new segment of the same name, with the
 * next generation in its header.
 */
#include "tools/shmstat/top.h"
#include "stat_plant.h"
#include "stat_run.h"

#include <math.h>

#define SECOND UINT64_C(1000000000)
#define START (1000 * SECOND)
#define AGAIN 1                         /* the rank that is replaced */

static struct top_model model;

static void begin(void)
{
    plant_begin();
    model = (struct top_model){ .select = plant.job, .stuck_s = 10 };
}

static void end(void)
{
    plant_remove();
    top_free(&model);
}

TestSuite(shmstat_again, .init = begin, .fini = end, .timeout = 60);

static void count_calls(int rank, uint64_t n)
{
    bxi_count(&bxi_tables(plant_control(rank))->counters[BXI_C_calls_sent], n);
    bxi_count(&bxi_tables(plant_control(rank))->counters[BXI_C_calls_completed], n);
}

static void sample(enum top_view view, uint64_t at_ns)
{
    cr_assert_eq(top_sample(&model, view, at_ns), 0);
    cr_assert_eq(top_rows(&model, view), 0);
}

static double number(enum top_number which)
{
    return model.rows[AGAIN].number[which];
}

Test(shmstat_again, top_follows_the_new_process_and_takes_no_rate_of_two)
{
    count_calls(AGAIN, 1000);
    sample(TOP_WORKERS, START);
    cr_expect_eq(number(TOP_GENERATION), 1);
    plant_comes(AGAIN, 2);
    plant_joins(AGAIN);
    count_calls(AGAIN, 5000);
    sample(TOP_WORKERS, START + SECOND);
    cr_assert_eq(model.count, 2);
    cr_expect_eq(number(TOP_GENERATION), 2);
    cr_expect_eq(model.totals.alive, 2);
    cr_expect(isnan(number(TOP_CALLS_S)), "%f calls a second", number(TOP_CALLS_S));
    count_calls(AGAIN, 7);
    sample(TOP_WORKERS, START + 2 * SECOND);
    cr_expect_float_eq(number(TOP_CALLS_S), 7, 1e-9);
}

Test(shmstat_again, top_shows_the_new_process_after_the_old_one_was_gone)
{
    sample(TOP_RINGS, START);
    plant_kill(AGAIN);
    shm_unlink(plant.segment[AGAIN].shm_name);
    sample(TOP_WORKERS, START + SECOND);
    cr_expect_eq(model.totals.workers, 1);
    plant_comes(AGAIN, 3);
    plant_joins(AGAIN);
    sample(TOP_WORKERS, START + 2 * SECOND);
    cr_expect_eq(model.totals.alive, 2);
    cr_expect_eq(number(TOP_GENERATION), 3);
    sample(TOP_RINGS, START + 3 * SECOND);
    cr_expect_eq(model.count, 2);
    cr_expect_eq(number(TOP_FRAMES_OUT_S), 0);
}

static void expect_generation(int rank, double generation)
{
    struct stat_run run = stat_run("ls %s --json", plant.job);

    cr_expect_eq(json_number(json_get(stat_run_worker(&run, rank), "generation")), generation, "%s", run.text);
}

static void expect_text(const char *command, const char *text, bool is_there)
{
    struct stat_run run = stat_run("%s %s", command, plant.job);

    cr_expect_eq(strstr(run.text, text) != NULL, is_there, "%s", run.text);
}

Test(shmstat_again, ls_and_show_have_the_generation_from_the_second_on)
{
    char pids[80], worker[160];

    expect_generation(0, 1);
    expect_text("ls", "gen", false);
    expect_text("show", "gen", false);
    plant_comes(AGAIN, 2);
    plant_joins(AGAIN);
    expect_generation(0, 1);
    expect_generation(AGAIN, 2);
    snprintf(pids, sizeof(pids), "pids      %d %d(gen 2)\n", (int)getpid(), (int)getpid());
    expect_text("ls", pids, true);
    snprintf(worker, sizeof(worker), "worker 1 callee, pid %d, gen 2: running", (int)getpid());
    expect_text("show", worker, true);
    snprintf(worker, sizeof(worker), "\nboxcar_worker_generation{job=\"%s\",worker=\"callee\",rank=\"1\"} 2\n",
             plant.job);
    expect_text("show --prometheus", worker, true);
    plant_kill(AGAIN);
    snprintf(pids, sizeof(pids), "pids      %d %d(gen 2)(dead)\n", (int)getpid(), (int)getpid());
    expect_text("ls", pids, true);
}

/* A segment that was written before there were generations. */
Test(shmstat_again, generation_0_is_the_first)
{
    plant_control(0)->header.generation = 0;
    expect_generation(0, 1);
}

static void expect_job_state(const char *state)
{
    struct stat_run run = stat_run("ls %s --json", plant.job);

    cr_expect_str_eq(json_text(json_get(stat_run_job(&run), "state")), state);
}

Test(shmstat_again, a_job_runs_while_a_worker_joins_it)
{
    plant_comes(AGAIN, 1);
    expect_job_state("starting");
    plant_comes(AGAIN, 2);
    expect_job_state("running");
    expect_text("ls", "waits", false);
}

static void expect_checked(int status)
{
    struct stat_run run = stat_run("check %s", plant.job);

    cr_expect_eq(run.status, status, "%s", run.text);
}

/* Rank 0 has read much of the one before, and writes to it. */
Test(shmstat_again, check_reports_nothing_about_a_worker_that_is_just_joining)
{
    for (int i = 0; i < 1000; i++) {
        cr_assert(plant_put(AGAIN, 100));
        plant_count(AGAIN);
        cr_assert(plant_take(0));
    }
    cr_assert(plant_put(0, 100));
    plant_count(0);
    expect_checked(0);
    plant_comes(AGAIN, 2);
    expect_checked(0);
    bxi_store_relaxed(&plant_control(AGAIN)->header.state, BXI_RUNNING);
    expect_checked(1);
    plant_joins(AGAIN);
    expect_checked(0);
}
