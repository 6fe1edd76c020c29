/* SPDX-License-Identifier: MIT */
/*
 * shmstat rrefs: objects of a planted job (stat_plant.h) as text, JSON and metrics; then of running jobs, where calls
 * that wait for an object, and calls for its value, are shown too.
 */
#include "stat_plant.h"
#include "stat_run.h"

#include "tests/rref/rref_fixture.h"

#include "rpc/rpc.h"

TestSuite(shmstat_rrefs, .init = plant_begin, .fini = plant_remove, .timeout = 20);

static const struct json *object_at(const struct stat_run *run, int rank, size_t index)
{
    return json_at(json_get(stat_run_worker(run, rank), "objects"), index);
}

/* ---- Planted rows ------------------------------------------------------------------------------------- */

/* Of the callee: one that the caller holds, made by it 40 s ago; one to come. Of the caller: one of its own. */
static void plant_objects(void)
{
    struct bxi_object_row *row;

    row = plant_object(1, PLANT_OBJECT(1, 0, 4), plant_ago(5));
    bxi_store_relaxed(&row->state, BXI_OBJECT_TO_COME);
    row = plant_object(1, PLANT_OBJECT(1, 0, 3), plant_ago(40));
    bxi_store_relaxed(&row->holders[0], 1);
    bxi_store_relaxed(&row->entries, 3);
    memcpy((void *)row->name, "a name of 16 by.", BXI_TYPE_BYTES);
    row = plant_object(0, PLANT_OBJECT(0, 0, 1), plant_ago(20));
    bxi_store_relaxed(&row->state, BXI_OBJECT_FAILED);
    bxi_store_relaxed(&bxi_tables(plant_control(0))->objects_unshown, 12);
}

Test(shmstat_rrefs, shows_owner_type_state_holders_and_age)
{
    struct stat_run run;

    plant_objects();
    run = stat_run_fine("rrefs", plant.job);
    /* A type counts once its object is there. */
    STAT_RUN_IS(stat_run_worker(&run, 1), "{'objects': [{'object': '1-0-3', 'owner_name': 'callee',"
                " 'maker_name': 'caller', 'type': 'a name of 16 by.', 'state': 'there', 'holders': [0],"
                " 'holder_names': ['caller'], 'entries': 3}, {'state': 'to_come', 'holders': [], 'type': null}],"
                " 'rrefs': {'held': 1, 'entries': 3, 'to_come': 1}}");
    STAT_RUN_IS(stat_run_worker(&run, 0), "{'objects': [{'state': 'failed'}],"
                " 'rrefs': {'count': 13, 'unshown': 12, 'failed': 1}}");
    cr_expect(json_number(json_get(object_at(&run, 1, 0), "age_seconds")) >= 40);
    cr_expect(json_number(json_get(json_get(stat_run_worker(&run, 1), "rrefs"), "oldest_seconds")) >= 40);
}

Test(shmstat_rrefs, prints_them_within_80_columns)
{
    struct stat_run run;

    plant_objects();
    run = stat_run("rrefs %s", plant.job);
    cr_expect_eq(run.status, 0);
    STAT_RUN_SAYS(run, ": running, 15 objects\n");
    STAT_RUN_SAYS(run, "\nOBJECT         OWNER            TYPE             STATE           AGE HOLDERS\n");
    STAT_RUN_SAYS(run, "\n1-0-3          callee           a name of 16 by. there  ");
    STAT_RUN_SAYS(run, "\n  held by   caller\n");
    STAT_RUN_SAYS(run, "\n1-0-4          callee           ?                to come");
    STAT_RUN_SAYS(run, "\n0-0-1          caller           net              failed ");
    STAT_RUN_SAYS(run, "\ncaller has 12 more, for which its segment has no row\n");
    stat_run_fits(&run);

    plant_kill(0);
    run = stat_run("rrefs %s", plant.job);
    STAT_RUN_SAYS(run, "\n  held by   caller (dead)\n");

    run = stat_run("show %s", plant.job);
    STAT_RUN_SAYS(run, "  rrefs     count 2, held 1, entries 3, to come 1, oldest ");
}

static void expect_metric(const struct stat_run *run, const char *metric, int rank, const char *rest)
{
    char line[256];

    snprintf(line, sizeof(line), "\nboxcar_%s{job=\"%s\",worker=\"%s\",rank=\"%d\"%s\n", metric, plant.job,
             rank == 0 ? "caller" : "callee", rank, rest);
    cr_expect_not_null(strstr(run->text, line), "%s in %s", line, run->text);
}

Test(shmstat_rrefs, counts_them_as_metrics)
{
    struct stat_run run;

    plant_objects();
    run = stat_run("show %s --prometheus", plant.job);
    cr_expect_eq(run.status, 0);
    expect_metric(&run, "objects", 0, "} 13");
    expect_metric(&run, "objects", 1, "} 2");
    expect_metric(&run, "objects_held", 1, "} 1");
    expect_metric(&run, "objects_to_come", 1, "} 1");
    expect_metric(&run, "objects_unshown", 0, "} 12");
    expect_metric(&run, "objects_held_by_peer", 1, ",peer=\"0\"} 1");
}

Test(shmstat_rrefs, says_so_if_there_are_none)
{
    struct stat_run run;

    run = stat_run("rrefs %s", plant.job);
    cr_expect_eq(run.status, 0);
    STAT_RUN_SAYS(run, ": running, 0 objects\n");
    cr_expect_null(strstr(run.text, "OWNER"), "%s", run.text);
    run = stat_run_fine("rrefs", plant.job);
    STAT_RUN_IS(stat_run_worker(&run, 1), "{'objects': [], 'rrefs': {'count': 0}}");
}

/* ---- Running jobs ------------------------------------------------------------------------------------- */

/* Repeats rrefs until the first object of worker 1 is in that state and has that many holders. */
static struct stat_run rrefs_when(const char *state, size_t holders)
{
    struct stat_run run = stat_run_fine("rrefs", harness_job_name());

    while (object_at(&run, 1, 0) == NULL || strcmp(json_text(json_get(object_at(&run, 1, 0), "state")), state) != 0 ||
           json_get(object_at(&run, 1, 0), "holders")->count != holders)
        run = stat_run_fine("rrefs", harness_job_name());
    return run;
}

static const struct json *call_of(const struct stat_run *run, const char *function)
{
    const struct json *calls = json_get(stat_run_job(run), "calls");

    for (const struct json *call = calls->first; call != NULL; call = call->next)
        if (strcmp(json_text(json_get(call, "function")), function) == 0)
            return call;
    return NULL;
}

static void expect_where(const char *function, const char *where)
{
    struct stat_run run = stat_run_fine("calls", harness_job_name());

    while (call_of(&run, function) == NULL ||
           strcmp(json_text(json_get(call_of(&run, function), "where")), where) != 0)
        run = stat_run_fine("calls", harness_job_name());
}

static void expect_check_is_fine(void)
{
    struct stat_run run = stat_run_fine("check", harness_job_name());

    HARNESS_EQ(json_number(json_get(stat_run_job(&run), "violations_found")), 0);
}

/* The call that waits for the object leads to the call that makes it. */
static void expect_because_of_the_maker(void)
{
    struct stat_run run = stat_run_fine("calls", harness_job_name()), why;
    const struct json *because;

    why = stat_run("why %s %s --json", json_text(json_get(call_of(&run, "bx_rref_to_here"), "call")),
                   harness_job_name());
    because = json_get(stat_run_job(&why), "because");
    HARNESS_EQ(why.status, 0);
    HARNESS_CHECK(because != NULL && because->count >= 4);
    HARNESS_HAS(json_text(json_at(because, 0)), "for 'bx_rref_to_here' of worker1");
    HARNESS_HAS(json_text(json_at(because, 1)), "waits at worker1 until the object is made that it is called on");
    HARNESS_HAS(json_text(json_at(because, 2)), "for 'new_slow' of worker1");
    HARNESS_HAS(json_text(json_at(because, 3)), "Its handler runs in worker1");
}

static void expect_holder(const struct stat_run *run, size_t index, const char *name)
{
    HARNESS_HAS(json_text(json_at(json_get(object_at(run, 1, 0), "holder_names"), index)), name);
}

HARNESS_TEST(shmstat_rrefs, shows_the_objects_of_a_job_until_they_are_destroyed, 60, .size = 3, .setup = setup)
{
    uint64_t began_ns = bxi_now_ns();
    struct bx_rref *rref = remote(job, "worker1", "new_slow", 5);
    struct bx_msg *args = bx_msg_create(0), *one = harness_msg_i64(1);
    struct bx_future *value = NULL, *sum = NULL;
    struct stat_run run = rrefs_when("to_come", 1);

    expect_holder(&run, 0, "worker0");
    HARNESS_EQ(bx_rref_async(rref, "add", one, NULL, &sum), 0);
    HARNESS_EQ(bx_rref_to_here_async(rref, NULL, &value), 0);
    expect_where("add", "object");
    expect_where("bx_rref_to_here", "object");
    expect_because_of_the_maker();
    expect_check_is_fine();
    harness_post(MAY_BE_MADE);
    HARNESS_EQ(bx_future_wait(value, BX_FOREVER), 0);
    HARNESS_EQ(bx_msg_put_rref(args, rref), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "keep", args, NULL, NULL), 0);
    run = rrefs_when("there", 2);
    expect_holder(&run, 0, "worker0");
    expect_holder(&run, 1, "worker2");
    HARNESS_HAS(json_text(json_get(object_at(&run, 1, 0), "type")), "counter");
    HARNESS_CHECK(json_number(json_get(object_at(&run, 1, 0), "age_seconds")) <=
                  1e-9 * (double)(bxi_now_ns() - began_ns));
    HARNESS_EQ(json_number(json_get(object_at(&run, 1, 0), "number")), rref->id & BXI_RREF_COUNT_MASK);
    expect_check_is_fine();
    bx_future_release(value);
    bx_future_release(sum);
    bx_msg_destroy(one);
    bx_msg_destroy(args);
    bx_rref_release(rref);
    rrefs_when("there", 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "drop_kept", NULL, NULL, NULL), 0);
    await_alive(0);
    run = stat_run_fine("rrefs", harness_job_name());
    HARNESS_EQ(json_get(stat_run_worker(&run, 1), "objects")->count, 0);
}
