/* SPDX-License-Identifier: MIT */
/*
 * shmstat calls and why: jobs that are stuck on purpose, explained from outside; and that nothing is shown when
 * they have come loose.
 */
#include "harness.h"
#include "stat_run.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum gate { READY = 0, LOOSE, HELD };
enum value { PID = 0 };         /* plus the rank */

/* Calls the next worker's "chain", if there is one. */
static int chain(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_job *job = bx_request_job(request);
    const char *next = bx_worker_name(job, bx_job_rank(job) + 1);

    (void)args, (void)reply, (void)context;
    return next != NULL ? bx_rpc_sync(job, next, "chain", NULL, NULL, NULL) : 0;
}

/* Calls the caller's "hold", once: the caller's waits for the gate. */
static int hold(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_job *job = bx_request_job(request);

    (void)args, (void)reply, (void)context;
    if (bx_job_rank(job) != 0)
        return bx_rpc_sync(job, bx_worker_name(job, bx_request_caller(request)), "hold", NULL, NULL, NULL);
    harness_post(HELD);
    harness_await(LOOSE, 1);
    return 0;
}

static int update(struct bx_batch *batch, void *context)
{
    (void)batch, (void)context;
    return 0;
}

static int setup(struct bx_job *job)
{
    int rc = bx_register(job, "chain", BX_BLOCKING, chain, NULL);

    if (rc == 0)
        rc = bx_register(job, "hold", BX_BLOCKING, hold, NULL);
    if (rc == 0)
        rc = bx_register_batch(job, "update", update, NULL, NULL);
    for (int rank = 1; rc == 0 && rank < bx_job_world_size(job); rank++)
        rc = bx_batch_add_member(job, "update", rank);
    return rc;
}

static void serves(struct bx_job *job)
{
    harness_store(PID + bx_job_rank(job), (uint64_t)getpid());
    harness_post(READY);
    bx_job_serve(job);
}

/* The call from one worker to another in what `calls` shows; NULL if there is none. */
static const struct json *find(const struct stat_run *run, int caller, int callee)
{
    const struct json *calls = json_get(stat_run_job(run), "calls");

    for (const struct json *call = calls != NULL ? calls->first : NULL; call != NULL; call = call->next)
        if (json_number(json_get(call, "caller")) == caller && json_number(json_get(call, "callee")) == callee)
            return call;
    return NULL;
}

static bool is_at(const struct stat_run *run, int caller, int callee, const char *where)
{
    return strcmp(json_text(json_get(find(run, caller, callee), "where")), where) == 0;
}

/* Looks until the call is there; a call takes its way while others look. */
static struct stat_run calls_when(int caller, int callee, const char *where)
{
    struct stat_run run = stat_run("calls %s --json", harness_job_name());

    while (!is_at(&run, caller, callee, where)) {
        stat_run_free(&run);
        run = stat_run("calls %s --json", harness_job_name());
    }
    HARNESS_EQ(run.status, 0);
    return run;
}

static void expect_no_calls(void)
{
    struct stat_run run = stat_run("calls %s --json", harness_job_name());

    HARNESS_EQ(run.status, 0);
    HARNESS_EQ(json_get(stat_run_job(&run), "calls")->count, 0);
    stat_run_free(&run);
}

/* The sentence number `index` of why, from the end if it is below 0, has the part. */
static void expect_because(const char *subject, int index, const char *part)
{
    struct stat_run run = stat_run("why %s %s --json", subject, harness_job_name());
    const struct json *because = json_get(stat_run_job(&run), "because");

    HARNESS_EQ(run.status, 0);
    HARNESS_CHECK(because != NULL && because->count > 0);
    HARNESS_HAS(json_text(json_at(because, index < 0 ? because->count - 1 : (size_t)index)), part);
    stat_run_free(&run);
}

/* ---- A chain that ends at a worker that is stopped ---------------------------------------------------- */

static void explains_the_chain(struct bx_job *job)
{
    struct bx_future *future = NULL;
    struct stat_run run;
    pid_t last;

    harness_await(READY, 3);
    last = (pid_t)harness_load(PID + 3);
    HARNESS_EQ(kill(last, SIGSTOP), 0);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "chain", NULL, NULL, &future), 0);
    run = calls_when(2, 3, "in_ring");
    HARNESS_EQ(json_get(stat_run_job(&run), "calls")->count, 3);
    for (int caller = 0; caller < 2; caller++) {
        const struct json *call = find(&run, caller, caller + 1);

        HARNESS_CHECK(is_at(&run, caller, caller + 1, "thread"));
        HARNESS_CHECK(json_number(json_get(call, "thread")) > 0);
        HARNESS_CHECK(strcmp(json_text(json_get(call, "function")), "chain") == 0);
        HARNESS_CHECK(json_number(json_get(call, "age_seconds")) >= 0);
        HARNESS_CHECK(json_number(json_get(call, "left_seconds")) > 0);
    }
    expect_because("worker0", 0, "worker0 has waited for");
    expect_because("worker0", 0, "for 'chain' of worker1");
    expect_because("worker0", -1, "worker3 (pid ");
    expect_because("worker0", -1, "is stopped");
    expect_because(json_text(json_get(find(&run, 1, 2), "call")), 0, "worker1 has waited for");
    expect_because("3", 0, "is stopped");
    stat_run_free(&run);
    HARNESS_EQ(kill(last, SIGCONT), 0);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    bx_future_release(future);
    expect_no_calls();
    expect_because("worker0", 0, "worker0 waits for no call of its own");
}

Test(shmstat_calls, shows_a_chain_of_workers_and_why_it_is_stuck, .timeout = 60)
{
    harness_run(&(struct harness_world){ .size = 4, .setup = setup,
                                         .body = { explains_the_chain, serves, serves, serves } });
}

/* ---- A cycle --------------------------------------------------------------------------------------------- */

static void explains_the_cycle(struct bx_job *job)
{
    struct bx_future *future = NULL;
    struct stat_run run;

    HARNESS_EQ(bx_rpc_async(job, "worker1", "hold", NULL, NULL, &future), 0);
    harness_await(HELD, 1);
    run = calls_when(1, 0, "thread");
    HARNESS_CHECK(is_at(&run, 0, 1, "thread"));
    stat_run_free(&run);
    expect_because("worker1", -1, "This is a cycle: worker1 > worker0 > worker1.");
    harness_post(LOOSE);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    bx_future_release(future);
    expect_no_calls();
}

Test(shmstat_calls, names_a_cycle, .timeout = 60)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { explains_the_cycle } });
}

/* ---- A batch that waits for a member ------------------------------------------------------------------ */

static void comes_first(struct bx_job *job)
{
    struct bx_future *future = NULL;
    const struct json *waits_for;
    struct stat_run run;

    HARNESS_EQ(bx_rpc_async(job, "worker0", "update", NULL, NULL, &future), 0);
    run = calls_when(1, 0, "batch");
    waits_for = json_get(find(&run, 1, 0), "waits_for");
    HARNESS_CHECK(waits_for != NULL && waits_for->count == 1);
    HARNESS_EQ(json_number(json_at(waits_for, 0)), 2);
    stat_run_free(&run);
    expect_because("worker1", 1, "waits in a batch of worker0 for the rows of: worker2.");
    harness_post(LOOSE);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    bx_future_release(future);
}

static void comes_late(struct bx_job *job)
{
    harness_await(LOOSE, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "update", NULL, NULL, NULL), 0);
}

Test(shmstat_calls, says_whom_a_batch_waits_for, .timeout = 60)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { NULL, comes_first, comes_late } });
}

/* ---- Wrong words ------------------------------------------------------------------------------------------ */

static void is_asked_nonsense(struct bx_job *job)
{
    static const char *const subjects[] = { "worker9", "9", "0-1-1", "-1", "0-0-18446744073709551615" };

    for (int i = 0; i < 5; i++) {
        struct stat_run run = stat_run("why %s %s", subjects[i], bx_job_rank(job) == 0 ? harness_job_name() : "");

        HARNESS_CHECK(run.status == 3 || run.status == 2);
        stat_run_free(&run);
    }

    struct stat_run run = stat_run("why");

    HARNESS_EQ(run.status, 2);
    stat_run_free(&run);
}

Test(shmstat_calls, refuses_to_explain_what_is_not_there, .timeout = 60)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { is_asked_nonsense } });
}
