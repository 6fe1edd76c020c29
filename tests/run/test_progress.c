/* SPDX-License-Identifier: MIT */
/*
 * lib/run/progress.c: where a thread may not wait, own_loop, and the ways to sleep.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"
#include "tests/harness/refuse.h"

enum { READY, DONE, CHECKED };          /* gates */
enum { DEATHS, DEAD_RANK };        /* values */

/* ---- Where a thread may not wait ------------------------------------------------------------- */

/* Tries every call on this thread: those that may wait are refused, the others succeed. */
static void expect_no_waiting(struct bx_job *job)
{
    struct bx_future *future = bx_future_create(job), *call = NULL;
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", args, NULL, NULL), BX_E_WOULD_DEADLOCK);
    HARNESS_HAS(bx_error_text(), "'twice'");
    HARNESS_EQ(bx_rpc_sync(job, bx_job_name(job), "twice", args, NULL, NULL), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_future_wait(future, 0), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_job_serve(job), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_job_shutdown(job, 0), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_batch_join(job, "worker1", "gather"), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_batch_leave(job, "worker1", "gather"), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "twice", args, NULL, &call), 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "twice", args, NULL), 0);
    bx_future_release(call);
    bx_future_set(future, NULL);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);      /* it is done, so this does not wait */
    bx_future_release(future);
    bx_msg_destroy(args);
    harness_post(CHECKED);
}

HARNESS_HANDLER(wait_inline)
{
    expect_no_waiting(bx_request_job(request));
    return 0;
}

HARNESS_ASYNC_HANDLER(wait_async)
{
    expect_no_waiting(bx_request_job(request));
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, NULL);
}

HARNESS_BATCH(wait_in_body)
{
    expect_no_waiting(context);
    return 0;
}

HARNESS_CALLBACK(wait_in_callback)
{
    expect_no_waiting(context);
}

HARNESS_THEN(wait_in_then)
{
    expect_no_waiting(context);
    return 0;
}

static int setup_waiting(struct bx_job *job)
{
    return bx_register_batch(job, "gather", wait_in_body, job, NULL);
}

HARNESS_TEST(progress, refuses_to_wait_in_handlers_bodies_and_callbacks, 20, .size = 2, .setup = setup_waiting,
             .handlers = { HARNESS_INLINE("twice", harness_twice), HARNESS_INLINE("inline", wait_inline),
                           HARNESS_ASYNC("async", wait_async) })
{
    OWN(msg) *args = harness_msg_i64(1);
    OWN(future) *call = NULL, *then = NULL;

    for (int to = 0; to < 2; to++) {
        HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "inline", NULL, NULL, NULL), 0);
        HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "async", NULL, NULL, NULL), 0);
        HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "gather", NULL, NULL, NULL), 0);
    }
    HARNESS_EQ(harness_gate(CHECKED), 6);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "twice", args, NULL, &call), 0);
    then = bx_future_then(call, wait_in_then, job, NULL);
    HARNESS_EQ(bx_future_on_done(call, wait_in_callback, job), 0);
    HARNESS_EQ(bx_future_wait(then, BX_FOREVER), 0);
    harness_await(CHECKED, 8);
    /* Outside of handlers and callbacks waiting is still allowed. */
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 2), 4);
}

static void count_death(struct bx_job *job, int rank, void *context)
{
    (void)context;
    harness_store(DEAD_RANK, (uint64_t)rank);
    harness_add(DEATHS, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "twice", NULL, NULL, NULL), BX_E_WOULD_DEADLOCK);
    HARNESS_CHECK(!bx_worker_is_alive(job, rank));
    harness_post(DONE);
}

static int setup_death(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("twice", harness_twice));
    return bx_on_death(job, count_death, NULL);
}

static void see_a_death(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "'worker2'");
    harness_await(DONE, 2);
    HARNESS_EQ(harness_load(DEAD_RANK), 2);
    HARNESS_EQ(harness_counter(job, "peers_dead"), 1);
    harness_post(READY);
    harness_await(READY, 2);
    HARNESS_EQ(harness_load(DEATHS), 2);                /* one callback in each of the two workers */
}

HARNESS_WORLD(progress, reports_a_death_once_where_a_thread_may_not_wait, 20, .size = 3, .setup = setup_death,
              .body = { see_a_death, see_a_death, harness_die }, .dies = 1u << 2);

/* ---- own_loop -------------------------------------------------------------------------------- */

static bool asked_to_quit;

HARNESS_HANDLER(quit)
{
    asked_to_quit = true;
    return 0;
}

HARNESS_BATCH(alone)
{
    return bx_batch_reply_i64(batch, 0, (int64_t)bx_batch_rows(batch));
}

static int setup_loop(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("twice", harness_twice), HARNESS_BLOCKING("twice_blocking", harness_twice),
                     HARNESS_INLINE("quit", quit));
    HARNESS_EQ(bx_register_batch(job, "alone", alone, NULL,
                                 &(struct bx_batch_options){ .flush_after_ns = 10 * HARNESS_MS }), 0);
    HARNESS_EQ(bx_batch_add_member(job, "alone", bx_job_rank(job)), 0);     /* a member that never calls */
    return bx_on_death(job, count_death, NULL);
}

static void loop_until_quit(struct bx_job *job)
{
    struct pollfd readable = { .fd = bx_job_fd(job), .events = POLLIN };

    HARNESS_CHECK(readable.fd >= 0);
    while (!asked_to_quit) {
        HARNESS_EQ(poll(&readable, 1, -1), 1);
        HARNESS_CHECK(bx_progress(job) >= 0);
    }
}

static void call_a_loop(struct bx_job *job)
{
    HARNESS_CHECK(bx_job_fd(job) >= 0);
    for (int64_t i = 0; i < 300; i++) {
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice_blocking", i), 2 * i);
    }
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "quit", NULL, NULL, NULL), 0);
}

HARNESS_WORLD(progress, with_own_loop_serves_by_poll_without_a_background_thread, 20, .size = 2, .setup = setup_loop,
              .body = { call_a_loop, loop_until_quit }, .options = { .own_loop = true });

HARNESS_WORLD(progress, with_own_loop_needs_no_io_uring, 20, .size = 2, .setup = setup_loop,
              .body = { call_a_loop, loop_until_quit },
              .options = { .own_loop = true, .wait = BX_WAIT_EPOLL, .no_spin = true });

HARNESS_TEST(progress, with_own_loop_is_due_at_a_deadline, 20, .size = 2, .setup = setup_loop,
             .body = { NULL, loop_until_quit }, .options = { .own_loop = true })
{
    for (int i = 0; i < 5; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "alone", 0), 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "quit", NULL, NULL, NULL), 0);
}

HARNESS_CALLBACK(note_time_out)
{
    HARNESS_EQ(bx_future_error(future), BX_E_TIMEOUT);
    asked_to_quit = true;
}

HARNESS_BODY(do_not_loop)
{
    harness_post(READY);
    harness_await(DONE, 1);
}

HARNESS_TEST(progress, with_own_loop_times_calls_out, 20, .size = 2, .setup = setup_loop, .body = { NULL, do_not_loop },
             .options = { .own_loop = true })
{
    struct bx_call_options hasty = { .timeout_ns = 20 * HARNESS_MS };
    struct bx_future *future = NULL;

    harness_await(READY, 1);            /* the other worker does not run its loop */
    HARNESS_EQ(bx_rpc_async(job, "worker1", "twice_blocking", NULL, &hasty, &future), 0);
    HARNESS_EQ(bx_future_on_done(future, note_time_out, NULL), 0);
    loop_until_quit(job);
    bx_future_release(future);
    harness_post(DONE);
}

HARNESS_TEST(progress, with_own_loop_sees_deaths, 20, .size = 2, .setup = setup_loop, .body = { NULL, harness_die },
             .dies = 1u << 1, .options = { .own_loop = true })
{
    struct pollfd readable = { .fd = bx_job_fd(job), .events = POLLIN };

    while (harness_load(DEATHS) == 0) {
        HARNESS_EQ(poll(&readable, 1, -1), 1);
        HARNESS_CHECK(bx_progress(job) >= 0);
    }
    HARNESS_EQ(harness_load(DEAD_RANK), 1);
    HARNESS_EQ(harness_load(DEATHS), 1);
}

static void loop_until_nothing_is_there(struct bx_job *job)
{
    struct pollfd readable = { .fd = bx_job_fd(job), .events = POLLIN };

    while (harness_gate(READY) == 0) {
        poll(&readable, 1, 1);
        HARNESS_CHECK(bx_progress(job) >= 0);
    }
    while (bx_progress(job) > 0)
        ;
    HARNESS_EQ(poll(&readable, 1, 0), 0);
    HARNESS_EQ(bx_progress(job), 0);
    harness_post(DONE);
}

HARNESS_TEST(progress, with_own_loop_is_not_due_without_frames_or_deadlines, 20, .size = 2, .setup = setup_loop,
             .body = { NULL, loop_until_nothing_is_there }, .options = { .own_loop = true })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    harness_post(READY);
    harness_await(DONE, 1);
}

/* ---- io_uring and epoll ---------------------------------------------------------------------- */

static void call_and_sleep(struct bx_job *job, int index)
{
    (void)index;
    for (int64_t i = 0; i < 200; i++) {
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice_blocking", i), 2 * i);
    }
}

static void expect_waits(struct bx_job *job, const char *some, const char *none)
{
    HARNESS_CHECK(harness_counter(job, some) > 0);
    HARNESS_EQ(harness_counter(job, none), 0);
}

static void sleep_in_epoll(struct bx_job *job)
{
    harness_threads(job, 3, call_and_sleep);
    expect_waits(job, "waits_epoll", "waits_uring");
}

static void sleep_in_uring(struct bx_job *job)
{
    harness_threads(job, 3, call_and_sleep);
    expect_waits(job, "waits_uring", "waits_epoll");
}

static void serve_in_epoll(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), 0);
    expect_waits(job, "waits_epoll", "waits_uring");
}

static void serve_in_uring(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), 0);
    expect_waits(job, "waits_uring", "waits_epoll");
}

static const struct harness_world epoll_world = {
    .size = 2, .setup = setup_loop, .body = { sleep_in_epoll, serve_in_epoll },
    .options = { .no_spin = true },
};

static const struct harness_world uring_world = {
    .size = 2, .setup = setup_loop, .body = { sleep_in_uring, serve_in_uring },
    .options = { .no_spin = true },
};

Test(progress, sleeps_in_epoll_if_the_environment_asks_for_it, .timeout = 20)
{
    setenv("BX_WAIT", "epoll", 1);
    harness_run(&epoll_world);
}

Test(progress, sleeps_in_epoll_if_the_options_ask_for_it, .timeout = 20)
{
    struct harness_world world = epoll_world;

    setenv("BX_WAIT", "uring", 1);
    world.options.wait = BX_WAIT_EPOLL;
    harness_run(&world);
}

Test(progress, sleeps_in_io_uring_if_the_kernel_allows_it, .timeout = 20)
{
    if (bxi_sleeper_probe_uring() < 0)
        cr_skip_test("the kernel refuses io_uring");
    unsetenv("BX_WAIT");
    harness_run(&uring_world);
    setenv("BX_WAIT", "uring", 1);
    harness_run(&uring_world);
}

/* Calls whose replies the background thread takes, as no thread waits for them. */
static uint64_t sleep_in_background(struct bx_job *job, const char *counter)
{
    const uint64_t before = harness_counter(job, counter);

    while (harness_counter(job, counter) - before < 3) {
        OWN(future) *future = harness_async(job, "worker1", "twice");

        usleep(2000);
    }
    return harness_counter(job, counter);
}

static void call_while_uring_is_refused(struct bx_job *job)
{
    uint64_t uring = sleep_in_background(job, "waits_uring");

    HARNESS_EQ(harness_counter(job, "waits_epoll"), 0);
    HARNESS_CHECK(refuse(SYS_io_uring_enter, EPERM));
    call_and_sleep(job, 0);
    harness_threads(job, 3, call_and_sleep);
    HARNESS_CHECK(sleep_in_background(job, "waits_epoll") < 4 * 400 * 20);      /* it does not loop without sleeping */
    HARNESS_CHECK(harness_counter(job, "waits_uring") - uring <= 2);    /* it was asleep at the time of the refusal */
}

Test(progress, sleeps_in_epoll_when_a_ring_can_be_made_but_not_entered, .timeout = 20)
{
    unsetenv("BX_WAIT");
    cr_assert(refuse(SYS_io_uring_enter, EPERM));
    harness_run(&epoll_world);
}

Test(progress, fails_if_io_uring_is_asked_for_and_refused, .timeout = 20)
{
    struct bx_options options = { .job = "refused", .world_size = 2, .wait = BX_WAIT_URING };
    struct bx_job *job = NULL;

    cr_assert(refuse(SYS_io_uring_enter, EPERM));
    for (int i = 0; i < 2; i++) {       /* asked for by the options, then by the environment */
        cr_assert_eq(bx_job_create(&options, &job), BX_E_URING);
        cr_assert(strstr(bx_error_text(), "Operation not permitted") != NULL, "%s", bx_error_text());
        options.wait = BX_WAIT_AUTO;
        setenv("BX_WAIT", "uring", 1);
    }
}

Test(progress, goes_on_in_epoll_when_io_uring_is_refused_later, .timeout = 20)
{
    if (bxi_sleeper_probe_uring() < 0)
        cr_skip_test("the kernel refuses io_uring");
    unsetenv("BX_WAIT");
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup_loop, .body = { call_while_uring_is_refused }, .options = { .no_spin = true } });
}

Test(progress, sleeps_in_poll_when_epoll_is_refused_too, .timeout = 20)
{
    unsetenv("BX_WAIT");
    cr_assert(refuse(SYS_io_uring_setup, EPERM) && refuse(SYS_epoll_create1, EPERM));
    harness_run(&epoll_world);
}
