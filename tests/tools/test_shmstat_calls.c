/* SPDX-License-Identifier: MIT */
/*
 * shmstat calls and why: jobs that are stuck on purpose are explained from outside; nothing is shown after they are
 * released.
 */
#include "tests/harness/harness.h"
#include "stat_run.h"

enum gate { READY = 0, LOOSE, HELD, MADE };
enum value { PID = 0 };         /* plus the rank */

/* Calls the next worker's "chain", if there is one. */
HARNESS_HANDLER(chain)
{
    struct bx_job *job = bx_request_job(request);
    const char *next = bx_worker_name(job, bx_job_rank(job) + 1);

    return next != NULL ? bx_rpc_sync(job, next, "chain", NULL, NULL, NULL) : 0;
}

/* Calls "hold" of its caller once; that handler waits for the gate. */
HARNESS_HANDLER(hold)
{
    struct bx_job *job = bx_request_job(request);

    if (bx_job_rank(job) != 0)
        return bx_rpc_sync(job, bx_worker_name(job, bx_request_caller(request)), "hold", NULL, NULL, NULL);
    harness_post(HELD);
    harness_await(LOOSE, 1);
    return 0;
}

/* Registered as blocking and as inline: waits at the gate. */
HARNESS_HANDLER(stay)
{
    harness_post(HELD);
    harness_await(LOOSE, 1);
    return 0;
}

/* Calls a function of worker 0. */
HARNESS_HANDLER(call_on)
{
    return bx_rpc_sync(bx_request_job(request), "worker0", context, NULL, NULL, NULL);
}

static int wait_first(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);

HARNESS_BATCH(update)
{
    return 0;
}

static int setup(struct bx_job *job)
{
    int rc = HARNESS_REGISTER(job, HARNESS_BLOCKING("chain", chain), HARNESS_BLOCKING("hold", hold),
                              HARNESS_BLOCKING("stay", stay), HARNESS_INLINE("stay_here", stay),
                              HARNESS_BLOCKING("stay_at_the_gate_1", stay),
                              HARNESS_BLOCKING("wait_first", wait_first),
                              { "close", BX_BLOCKING, call_on, NULL, "wait_first" },
                              { "feed", BX_BLOCKING, call_on, NULL, "update" });

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

/* Repeats `calls` until it shows the call there: the call moves meanwhile. */
static struct stat_run calls_when(int caller, int callee, const char *where)
{
    struct stat_run run = stat_run("calls %s --json", harness_job_name());

    while (!is_at(&run, caller, callee, where))
        run = stat_run("calls %s --json", harness_job_name());
    HARNESS_EQ(run.status, 0);
    return run;
}

static void expect_no_calls(void)
{
    struct stat_run run = stat_run("calls %s --json", harness_job_name());

    HARNESS_EQ(run.status, 0);
    HARNESS_EQ(json_get(stat_run_job(&run), "calls")->count, 0);
}

/* Sentence `index` of why (< 0: counted from the end) contains the part. */
static void expect_because(const char *subject, int index, const char *part)
{
    struct stat_run run = stat_run("why %s %s --json", subject, harness_job_name());
    const struct json *because = json_get(stat_run_job(&run), "because");

    HARNESS_EQ(run.status, 0);
    HARNESS_CHECK(because != NULL && because->count > 0);
    HARNESS_HAS(json_text(json_at(because, index < 0 ? because->count - 1 : (size_t)index)), part);
}

/* ---- A chain that ends at a worker that is stopped ---------------------------------------------------- */

HARNESS_TEST(shmstat_calls, shows_a_chain_of_workers_and_why_it_is_stuck, 60, .size = 4, .setup = setup,
             .body = { [1] = serves, serves, serves })
{
    struct bx_future *future = NULL;
    struct stat_run run;
    pid_t last;

    harness_await(READY, 3);
    last = (pid_t)harness_load(PID + 3);
    harness_stop(last);
    future = harness_async(job, "worker1", "chain");
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
    HARNESS_EQ(harness_kill(last, SIGCONT), 0);
    harness_end(future, 0);
    expect_no_calls();
    expect_because("worker0", 0, "worker0 waits for no call of its own");
}

/* ---- Handlers that sleep are no cycle ------------------------------------------------------------------- */

static bool json_is_null(const struct json *value)
{
    return value != NULL && value->type == JSON_NULL;
}

/* No sentence names a cycle. */
static void expect_no_cycle(const char *subject)
{
    struct stat_run run = stat_run("why %s %s --json", subject, harness_job_name());
    const struct json *because = json_get(stat_run_job(&run), "because");

    HARNESS_EQ(run.status, 0);
    HARNESS_CHECK(json_is_null(json_get(stat_run_job(&run), "cycle")));
    for (size_t i = 0; because != NULL && i < because->count; i++)
        HARNESS_CHECK(strstr(json_text(json_at(because, i)), "cycle") == NULL);
}

/* The handler of worker 1 waits for worker 0, whose handler waits for a gate outside of the library. */
HARNESS_TEST(shmstat_calls, reports_no_cycle_at_a_handler_that_sleeps, 60, .size = 2, .setup = setup)
{
    struct bx_future *future = NULL;
    struct stat_run run;

    future = harness_async(job, "worker1", "hold");
    harness_await(HELD, 1);
    run = calls_when(1, 0, "thread");
    HARNESS_CHECK(is_at(&run, 0, 1, "thread"));
    expect_no_cycle("worker0");
    expect_no_cycle("worker1");
    expect_because("worker0", -1, "That thread waits for nothing of the library's: it sleeps elsewhere");
    harness_post(LOOSE);
    harness_end(future, 0);
    expect_no_calls();
}

static const char *held_function;

static void calls_the_other(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, 1 - bx_job_rank(job)), held_function, NULL, NULL, NULL), 0);
}

HARNESS_BODY(sees_two_that_sleep)
{
    const char *where = strcmp(held_function, "stay") == 0 ? "thread" : "inline";
    struct stat_run run;

    harness_await(HELD, 2);
    run = calls_when(0, 1, where);
    HARNESS_CHECK(is_at(&run, 1, 0, where));
    expect_no_cycle("worker0");
    expect_no_cycle("worker1");
    expect_because("worker1", -1, strcmp(where, "inline") == 0 ? "It must not wait for calls"
                                                               : "waits for nothing of the library's");
    harness_post(LOOSE);
}

static void two_sleep(const char *function)
{
    held_function = function;
    harness_reset();
    harness_run(&(struct harness_world){ .size = 3, .setup = setup,
                                         .body = { calls_the_other, calls_the_other, sees_two_that_sleep } });
}

Test(shmstat_calls, reports_no_cycle_of_two_workers_whose_handlers_sleep, .timeout = 60)
{
    two_sleep("stay");
    two_sleep("stay_here");
}

static void sees_what_is_behind_a_handler(struct bx_job *job)
{
    struct bx_future *future;

    harness_await(HELD, 2);
    calls_when(0, 1, "inline");
    future = harness_async(job, "worker1", "stay");
    calls_when(2, 1, "in_ring");
    expect_because("worker2", 1, "The request lies unread in the ring to worker1.");
    expect_because("worker2", -1, "worker1 has been running its handler 'stay_here' for");
    expect_because("worker2", -1, "for a request of worker0: until that returns it reads neither");
    expect_no_cycle("worker2");
    harness_post(LOOSE);
    harness_end(future, 0);
}

Test(shmstat_calls, names_the_handler_that_keeps_requests_unread, .timeout = 60)
{
    held_function = "stay_here";
    harness_run(&(struct harness_world){ .size = 3, .setup = setup,
                                         .body = { calls_the_other, calls_the_other, sees_what_is_behind_a_handler } });
}

/* ---- A cycle --------------------------------------------------------------------------------------------- */

static struct bx_future *first_call;

/* Blocking: waits for the call that worker 0 made, and that waits for this. */
HARNESS_HANDLER(wait_first)
{
    struct bx_future *first;

    harness_await(MADE, 1);             /* it may run before the function that sent the call returns */
    first = bx_future_acquire(first_call);
    harness_post(HELD);
    harness_end(first, BX_E_CANCELLED);
    return 0;
}

static void leads_into_the_cycle(struct bx_job *job)
{
    harness_await(READY, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "wait_first", NULL, NULL, NULL), 0);
    harness_post(LOOSE);
}

HARNESS_TEST(shmstat_calls, names_a_cycle_where_it_begins, 60, .size = 3, .setup = setup,
             .body = { [2] = leads_into_the_cycle })
{
    struct stat_run run;

    first_call = harness_async(job, "worker1", "close");
    harness_post(MADE);
    harness_await(HELD, 1);
    harness_post(READY);
    harness_await(HELD, 2);
    run = calls_when(1, 0, "thread");
    HARNESS_CHECK(is_at(&run, 0, 1, "thread"));
    HARNESS_CHECK(is_at(&run, 2, 0, "thread"));
    expect_because("worker0", -1, "This is a cycle: worker0 > worker1 > worker0. Nobody in it can go on");
    expect_because("worker1", -1, "This is a cycle: worker1 > worker0 > worker1. Nobody in it can go on");
    /* It leads into the cycle, but is not part of it. */
    expect_because("worker2", 0, "worker2 has waited for");
    expect_because("worker2", -1, "This is a cycle: worker0 > worker1 > worker0. Nobody in it can go on");
    run = stat_run("why worker2 %s --json", harness_job_name());
    HARNESS_CHECK(strcmp(json_text(json_get(stat_run_job(&run), "cycle")), "certain") == 0);
    HARNESS_EQ(bx_future_cancel(first_call), 0);
    harness_await(LOOSE, 1);
    bx_future_release(first_call);
}

/* Worker 1's row waits for worker 2's; worker 2 waits for the handler of worker 1 that sends that row. Another thread
 * of worker 2 sends its row in the end, so the cycle is only a possible one. */
static void sees_a_possible_cycle(struct bx_job *job, int index)
{
    struct stat_run run;

    if (index == 0) {
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "feed", NULL, NULL, NULL), 0);
        return;
    }
    run = calls_when(1, 0, "batch");
    HARNESS_CHECK(is_at(&run, 2, 1, "thread"));
    expect_because("worker1", -1, "This may be a cycle: worker1 > worker2 > worker1.");
    run = stat_run("why worker2 %s --json", harness_job_name());
    HARNESS_CHECK(strcmp(json_text(json_get(stat_run_job(&run), "cycle")), "possible") == 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "update", NULL, NULL, NULL), 0);
}

static void may_be_in_a_cycle(struct bx_job *job)
{
    harness_threads(job, 2, sees_a_possible_cycle);
}

HARNESS_WORLD(shmstat_calls, calls_a_cycle_through_a_batch_a_possible_one, 60, .size = 3, .setup = setup,
              .body = { NULL, NULL, may_be_in_a_cycle });

/* ---- What was given up ------------------------------------------------------------------------------------ */

HARNESS_TEST(shmstat_calls, explains_no_call_that_was_given_up, 60, .size = 2, .setup = setup)
{
    struct bx_future *given_up = NULL, *waited = NULL;
    const struct json *call;
    struct stat_run run;
    char name[64];

    given_up = harness_async(job, "worker1", "stay");
    harness_await(HELD, 1);
    HARNESS_EQ(bx_future_cancel(given_up), 0);
    bx_future_release(given_up);
    expect_because("worker0", 0, "worker0 waits for no call of its own.");
    run = calls_when(0, 1, "thread");
    call = find(&run, 0, 1);
    HARNESS_CHECK(json_get(call, "given_up")->number == 1);
    snprintf(name, sizeof(name), "%s", json_text(json_get(call, "call")));
    expect_because(name, 0, "nobody waits for it");
    expect_because("", 0, "Nobody waits for a call.");

    waited = harness_async(job, "worker1", "stay_here");
    harness_await(HELD, 2);
    expect_because("worker0", 0, "worker0 has waited for");
    expect_because("worker0", 0, "for 'stay_here' of worker1");
    expect_because("", 0, "for 'stay_here' of worker1");
    harness_post(LOOSE);
    harness_end(waited, 0);
}

/* ---- What has waited longest ------------------------------------------------------------------------------ */

/* The job of this test among all jobs. */
static const struct json *own_job(const struct stat_run *run)
{
    const struct json *jobs = json_get(run->json, "jobs");

    for (const struct json *job = jobs != NULL ? jobs->first : NULL; job != NULL; job = job->next)
        if (strcmp(json_text(json_get(job, "job")), harness_job_name()) == 0)
            return job;
    return NULL;
}

HARNESS_TEST(shmstat_calls, explains_the_call_that_has_waited_longest, 60, .size = 3, .setup = setup)
{
    OWN(future) *first = NULL, *second = NULL;
    struct stat_run run;
    char heading[96];

    first = harness_async(job, "worker1", "stay");
    harness_await(HELD, 1);
    run = calls_when(0, 1, "thread");
    while (json_number(json_get(find(&run, 0, 1), "age_seconds")) < 0.1)       /* ages are read from a coarse clock */
        run = calls_when(0, 1, "thread");
    second = harness_async(job, "worker2", "stay");
    harness_await(HELD, 2);
    run = stat_run("why --json");
    HARNESS_EQ(run.status, 0);
    HARNESS_HAS(json_text(json_at(json_get(own_job(&run), "because"), 0)), "for 'stay' of worker1");
    HARNESS_CHECK(json_is_null(json_get(own_job(&run), "subject")));
    run = stat_run("why %s", harness_job_name());
    snprintf(heading, sizeof(heading), "job %s.", harness_job_name());
    HARNESS_EQ(run.status, 0);
    HARNESS_CHECK(strncmp(run.text, heading, strlen(heading)) == 0);
    HARNESS_HAS(run.text, "for 'stay' of worker1");
    harness_post(LOOSE);
    HARNESS_EQ(bx_future_wait(first, BX_FOREVER), 0);
    HARNESS_EQ(bx_future_wait(second, BX_FOREVER), 0);
}

/* ---- A batch that waits for a member ------------------------------------------------------------------ */

static void comes_late(struct bx_job *job)
{
    harness_await(LOOSE, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "update", NULL, NULL, NULL), 0);
}

static void sees_the_first_missing(struct bx_job *job)
{
    struct bx_future *future = NULL;
    const struct json *waits_for;
    struct stat_run run;

    future = harness_async(job, "worker0", "update");
    run = calls_when(1, 0, "batch");
    waits_for = json_get(find(&run, 1, 0), "waits_for");
    HARNESS_CHECK(waits_for != NULL && waits_for->count == 2);
    HARNESS_EQ(json_number(json_at(waits_for, 0)), 2);
    expect_because("worker1", 1, "waits in a batch of worker0 for the rows of: worker2, worker3.");
    expect_because("worker1", -1, "worker2 waits for no call of its own.");
    harness_post(LOOSE);
    harness_end(future, 0);
}

HARNESS_WORLD(shmstat_calls, continues_with_the_first_worker_missing_from_a_batch, 60, .size = 4, .setup = setup,
              .body = { NULL, sees_the_first_missing, comes_late, comes_late });

/* ---- Names -------------------------------------------------------------------------------------------------- */

static const char *const long_names[] = { "a-caller-of-a-very-long-name-1", "short" };

HARNESS_TEST(shmstat_calls, marks_names_that_it_cuts, 60, .size = 2, .setup = setup, .names = long_names)
{
    struct bx_future *future = NULL;
    struct stat_run run;

    HARNESS_EQ(bx_rpc_async(job, "short", "stay_at_the_gate_1", NULL, NULL, &future), 0);
    harness_await(HELD, 1);
    run = stat_run("calls %s", harness_job_name());
    HARNESS_EQ(run.status, 0);
    HARNESS_HAS(run.text, " a-caller-of-a-.. > short stay_at_the_ga.. ");
    harness_post(LOOSE);
    harness_end(future, 0);
}

/* ---- Wrong words ------------------------------------------------------------------------------------------ */

HARNESS_TEST(shmstat_calls, refuses_a_subject_that_does_not_exist, 60, .size = 2, .setup = setup)
{
    static const char *const subjects[] = { "worker9", "9", "0-1-1", "-1", "0-0-18446744073709551615" };

    for (int i = 0; i < 5; i++) {
        struct stat_run run = stat_run("why %s %s", subjects[i], bx_job_rank(job) == 0 ? harness_job_name() : "");

        HARNESS_CHECK(run.status == 3 || run.status == 2);
    }

    struct stat_run run = stat_run("why worker0 one two");

    HARNESS_EQ(run.status, 2);
}
