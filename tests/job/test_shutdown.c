/* SPDX-License-Identifier: MIT */
/*
 * lib/job/shutdown.c: leaving alone, and naming the worker that does not come. Every harness test also checks an
 * undisturbed shutdown at its end. What is sent and called before and meanwhile, and deaths: tests/sim (calls, oneway,
 * death).
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { ENTERED, RELEASED, READY, DONE };        /* gates */
enum { ANSWERED, PID };                /* values */

HARNESS_HANDLER(stuck)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    return bx_msg_put_i64(reply, 1);
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_BLOCKING("stuck", stuck), HARNESS_INLINE("twice", harness_twice),
                            HARNESS_BLOCKING("blocking twice", harness_twice));
}

/* ---- Together -------------------------------------------------------------------------------- */

static void leave_in_own_loop(struct bx_job *job)
{
    harness_call_i64(job, bx_worker_name(job, 1 - bx_job_rank(job)), "twice", 1);
}

HARNESS_WORLD(shutdown, needs_no_background_thread, 20, .size = 2, .setup = setup,
              .body = { leave_in_own_loop, leave_in_own_loop }, .options = { .own_loop = true });

static void leave_and_look(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(1);
    struct bx_future *future = NULL;

    harness_leaves_by_itself();
    harness_check_rescued(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", args, NULL, NULL), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "twice", args, NULL, &future), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "twice", args, NULL), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_job_serve(job), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_job_shutdown(job, 0), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_register(job, "late", BX_INLINE, harness_twice, NULL), BX_E_SHUTDOWN);
    bx_msg_destroy(args);
    bx_job_destroy(job);
}

HARNESS_WORLD(shutdown, refuses_all_calls_afterwards, 20, .size = 2, .setup = setup,
              .body = { leave_and_look, leave_and_look });

/* ---- Serving meanwhile ----------------------------------------------------------------------- */

static void sleep_while_called(struct bx_job *job)
{
    struct rusage before, after;

    harness_leaves_by_itself();
    getrusage(RUSAGE_THREAD, &before);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    getrusage(RUSAGE_THREAD, &after);
    HARNESS_CHECK(after.ru_nvcsw - before.ru_nvcsw < 200);
    bx_job_destroy(job);
}

HARNESS_TEST(shutdown, is_not_woken_by_each_call, 20, .size = 2, .setup = setup, .body = { NULL, sleep_while_called })
{
    for (int i = 0; i < 1000; i++)
        harness_call_i64(job, "worker1", "blocking twice", i);
}

/* ---- Not together ---------------------------------------------------------------------------- */

static void leave_without_worker1(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(READY, 1);
    HARNESS_EQ(bx_job_shutdown(job, 50 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "0.050");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", NULL, NULL, NULL), BX_E_SHUTDOWN);
    harness_post(DONE);
    bx_job_destroy(job);
}

static void come_late(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_post(READY);
    harness_await(DONE, 1);
    /* The other worker has left, so the shutdown waits for none. */
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
}

HARNESS_WORLD(shutdown, names_the_worker_that_does_not_come, 20, .size = 2, .setup = setup,
              .body = { leave_without_worker1, come_late });

static void be_stopped(struct bx_job *job)
{
    harness_store(PID, (uint64_t)getpid());
    come_late(job);
}

HARNESS_TEST(shutdown, names_the_worker_that_is_stopped, 20, .size = 2, .setup = setup, .body = { [1] = be_stopped })
{
    harness_await(READY, 1);
    HARNESS_EQ(harness_kill((pid_t)harness_load(PID), SIGSTOP), 0);
    leave_without_worker1(job);
    HARNESS_EQ(harness_kill((pid_t)harness_load(PID), SIGCONT), 0);
}

static void serve_to_the_end(struct bx_job *job)
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
}

HARNESS_TEST(shutdown, fails_calls_that_do_not_end_in_time, 20, .size = 2, .setup = setup,
             .body = { [1] = serve_to_the_end })
{
    struct bx_future *future;

    harness_leaves_by_itself();
    future = harness_start(job, "worker1", "stuck", NULL, BX_FOREVER);
    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_job_shutdown(job, 50 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "in flight");
    HARNESS_EQ(bx_future_wait(future, 0), BX_E_SHUTDOWN);
    bx_future_release(future);
    bx_job_destroy(job);
    harness_post(RELEASED);
}

/* ---- Destroy without shutdown ---------------------------------------------------------------- */

static void go_without_a_word(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(ENTERED, 1);
    /* Waits for the handler that still runs. The other workers do not wait for it. */
    bx_job_destroy(job);
}

HARNESS_TEST(shutdown, is_not_needed_for_a_destroy_to_be_seen_as_leaving, 20, .size = 2, .setup = setup,
             .body = { [1] = go_without_a_word })
{
    struct bx_future *future = harness_start(job, "worker1", "stuck", NULL, BX_FOREVER), *none = NULL;

    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_SHUTDOWN);
    HARNESS_HAS(bx_future_error_text(future), "'worker1'");
    bx_future_release(future);
    harness_post(RELEASED);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", NULL, NULL, NULL), BX_E_SHUTDOWN);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(bx_rpc_async(job, "worker1", "twice", NULL, NULL, &none), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "twice", NULL, NULL), BX_E_SHUTDOWN);
    HARNESS_CHECK(!bx_worker_is_alive(job, 1));
    HARNESS_EQ(bx_job_serve(job), 0);           /* leaving does not count as a death */
    HARNESS_EQ(harness_counter(job, "peers_dead"), 0);
    HARNESS_EQ(harness_counter(job, "calls_peer_dead"), 0);
}

/* ---- In handlers, where it would wait for itself ---------------------------------------------- */

static void count_errors(int level, const char *text, void *context)
{
    (void)context;
    if (level == 0 && strstr(text, "bx_job_destroy") != NULL)
        harness_add(ANSWERED, 1);
}

static int end_the_job(struct bx_job *job)
{
    HARNESS_EQ(bx_job_shutdown(job, 0), BX_E_WOULD_DEADLOCK);
    HARNESS_HAS(bx_error_text(), "handler");
    bx_job_destroy(job);            /* logs a line and does nothing else */
    harness_post(DONE);
    return 0;
}

HARNESS_HANDLER(end_in_handler)
{
    return end_the_job(bx_request_job(request));
}

HARNESS_BATCH(end_in_body)
{
    return end_the_job(context);
}

HARNESS_CALLBACK(end_in_callback)
{
    end_the_job(context);
}

static int setup_ends(struct bx_job *job)
{
    static const struct bx_batch_options blocking = { .blocking = true };

    bx_set_log(count_errors, NULL);
    HARNESS_EQ(bx_register_batch(job, "batch", end_in_body, job, NULL), 0);
    HARNESS_EQ(bx_register_batch(job, "blocking_batch", end_in_body, job, &blocking), 0);
    return HARNESS_REGISTER(job, HARNESS_INLINE("inline", end_in_handler), HARNESS_BLOCKING("blocking", end_in_handler),
                            HARNESS_INLINE("twice", harness_twice));
}

HARNESS_TEST(shutdown, in_a_handler_of_any_kind_is_refused_at_once, 20, .size = 2, .setup = setup_ends)
{
    static const char *const functions[] = { "inline", "blocking", "batch", "blocking_batch" };
    struct bx_future *future = bx_future_create(job);

    for (int i = 0; i < 4; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker1", functions[i], NULL, NULL, NULL), 0);
    HARNESS_EQ(bx_future_on_done(future, end_in_callback, job), 0);
    HARNESS_EQ(bx_future_set(future, NULL), 0);
    bx_future_release(future);
    HARNESS_EQ(harness_gate(DONE), 5);
    HARNESS_EQ(harness_load(ANSWERED), 5);
    /* Both jobs still work. */
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 2), 4);
}

/* ---- While another thread drives -------------------------------------------------------------- */

enum { LEFT_HANDLER = 2, HANDLED };             /* values */

/* Holds the progress role until RELEASED is posted. */
HARNESS_HANDLER(stay)
{
    harness_post(ENTERED);
    harness_await(RELEASED, 1);
    harness_add(LEFT_HANDLER, 1);
    return 0;
}

HARNESS_HANDLER(count_handled)
{
    harness_add(HANDLED, 1);
    return 0;
}

static int setup_stay(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "stay", BX_INLINE, stay, NULL), 0);
    return bx_register(job, "count", BX_INLINE, count_handled, NULL);
}

static void end_while_another_drives(struct bx_job *job, int index)
{
    if (index == 0) {                           /* drives, and is in the handler */
        while (harness_gate(ENTERED) == 0)
            HARNESS_CHECK(bx_progress(job) >= 0);
    } else if (index == 1) {
        harness_await(ENTERED, 1);
        HARNESS_EQ(bx_job_shutdown(job, HARNESS_MS), BX_E_TIMEOUT);
        HARNESS_EQ(harness_load(LEFT_HANDLER), 1);
        harness_store(ANSWERED, harness_load(HANDLED));
        harness_post(DONE);
    } else {                                    /* releases the handler once the shutdown waits for it, or is over */
        while (harness_gate(DONE) == 0 &&
               (bxi_load_seq_cst(&job->run->stop) == 0 || bxi_load_seq_cst(&job->observe->wait_rows[0]) == 0))
            sched_yield();
        harness_post(RELEASED);
    }
}

static void keep_it_in_a_handler(struct bx_job *job)
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "stay", NULL, NULL), 0);
    for (int i = 0; i < 100; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker0", "count", NULL, NULL), 0);
    harness_await(READY, 1);
    bx_job_destroy(job);
}

HARNESS_TEST(shutdown, waits_for_the_handler_that_another_thread_is_in, 20, .size = 2, .setup = setup_stay,
             .body = { [1] = keep_it_in_a_handler }, .options = { .own_loop = true })
{
    struct bx_future *future = bx_future_create(job);

    harness_leaves_by_itself();
    harness_threads(job, 3, end_while_another_drives);
    /* No frame is read any more, although the rings have some. */
    HARNESS_EQ(bx_progress(job), BX_E_SHUTDOWN);
    HARNESS_CHECK(!bx_future_is_done(future));
    HARNESS_EQ(bxi_load_seq_cst(&job->run->role), 1);
    HARNESS_EQ(bxi_load_seq_cst(&job->observe->wait_rows[0]), 0);
    HARNESS_EQ(harness_load(HANDLED), harness_load(ANSWERED));
    bx_future_release(future);
    bx_job_destroy(job);
    harness_post(READY);
}
