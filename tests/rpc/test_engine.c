/* SPDX-License-Identifier: MIT */
/*
 * Faults of the engine that do harm only later: a slot, a name or a descriptor that is not freed, a bound that does not
 * hold, an error that is taken for success. Some are visible only in the library's structs.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { READY, OPEN_GATE, SENT, DONE };                  /* gates */
enum { COUNTED };                                       /* values */

TestSuite(engine, .timeout = 60);

/* ---- Handlers ----------------------------------------------------------------------------------- */

HARNESS_HANDLER(count)
{
    harness_add(COUNTED, 1);
    return 0;
}

HARNESS_HANDLER(gate)
{
    harness_await(OPEN_GATE, 1);
    return count(request, args, reply, context);
}

/* Answers that many bytes and a tensor, so that the bytes are not at the beginning of the lent block. */
HARNESS_HANDLER(large)
{
    struct bx_tensor *tensor = NULL;
    char bytes[1000];

    memset(bytes, 'x', sizeof(bytes));
    HARNESS_EQ(bx_tensor_create(bx_request_job(request), BX_U8, 1, &(int64_t){ 16 }, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(reply, tensor), 0);
    bx_tensor_release(tensor);
    for (int64_t left = bx_read_i64(args); left > 0; left -= 1000)
        HARNESS_EQ(bx_msg_put_bytes(reply, bytes, sizeof(bytes)), 0);
    return 0;
}

/* Its reply cannot be written, and it ignores that. */
HARNESS_HANDLER(overflow)
{
    bx_msg_put_bytes(reply, "", SIZE_MAX - 64);
    return 0;
}

HARNESS_ASYNC_HANDLER(promise_nothing)
{
    return 0;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("count", count), HARNESS_BLOCKING("gate", gate),
                            HARNESS_INLINE("large", large), HARNESS_INLINE("overflow", overflow),
                            HARNESS_BLOCKING("overflow_blocking", overflow),
                            HARNESS_ASYNC("promise_nothing", promise_nothing), HARNESS_ASYNC("hold", harness_never));
}

/* ---- Answers ------------------------------------------------------------------------------------ */

HARNESS_TEST(engine, answers_with_an_error_if_a_reply_cannot_be_made, 60, .size = 2, .setup = setup)
{
    struct bx_msg *reply = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "overflow", NULL, NULL, &reply), -ENOMEM);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "overflow_blocking", NULL, NULL, &reply), -ENOMEM);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "promise_nothing", NULL, NULL, &reply), BX_E_HANDLER);
    HARNESS_HAS(bx_error_text(), "'promise_nothing'");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
}

/* The bytes of a large reply are in a block on loan; bytes that are added to it need memory of their own. */
HARNESS_TEST(engine, keeps_the_bytes_of_a_large_reply_that_is_added_to, 60, .size = 2, .setup = setup)
{
    OWN(msg) *args = harness_msg_i64(100000), *reply = NULL;
    const unsigned char *bytes;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "large", args, NULL, &reply), 0);
    HARNESS_EQ(bx_msg_bytes(reply), 100000);
    for (int i = 0; i < 100000; i++)
        HARNESS_EQ(((const unsigned char *)bx_msg_data(reply))[i], 'x');
    HARNESS_EQ(bx_msg_put_bytes(reply, "yz", 2), 0);
    HARNESS_EQ(bx_msg_bytes(reply), 100002);
    bytes = bx_msg_data(reply);
    for (int i = 0; i < 100000; i++)
        HARNESS_EQ(bytes[i], 'x');
    HARNESS_EQ(bytes[100000], 'y');
    HARNESS_EQ(bytes[100001], 'z');
    bx_msg_destroy(reply);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "large", args, NULL, &reply), 0);
    bx_msg_clear(reply);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, 0), 0);            /* worker1 has its block again */
    HARNESS_EQ(bx_msg_put_i64(reply, 5), 0);
    HARNESS_EQ(bx_msg_bytes(reply), 8);
    HARNESS_EQ(*(const int64_t *)bx_msg_data(reply), 5);
}

/* ---- Slots and timers --------------------------------------------------------------------------- */

/* Without generations a late reply would be taken for that of the slot's next call. */
HARNESS_TEST(engine, gives_each_use_of_a_slot_a_new_generation, 60, .size = 2, .setup = setup)
{
    uint64_t before;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
    before = job->rpc->peers[1]->slots[0].generation;
    for (uint64_t i = 1; i <= 10; i++) {
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
        HARNESS_EQ(job->rpc->peers[1]->slots[0].generation, before + i);
    }
}

HARNESS_BODY(wait_to_be_killed)
{
    harness_leaves_by_itself();
    harness_post(READY);
    for (;;)
        pause();
}

/* When the callee dies, two calls have timed out and wait for their late replies, and two are in flight. */
HARNESS_TEST(engine, frees_the_slots_of_calls_to_a_dead_worker, 60, .size = 2, .setup = setup, .dies = 1u << 1,
             .body = { NULL, wait_to_be_killed })
{
    struct bx_future *future[4];

    harness_await(READY, 1);
    for (int i = 0; i < 4; i++)
        future[i] = harness_start(job, "worker1", "hold", NULL, i < 2 ? 20 * HARNESS_MS : BX_FOREVER);
    for (int i = 0; i < 2; i++)
        HARNESS_EQ(bx_future_wait(future[i], BX_FOREVER), BX_E_TIMEOUT);
    harness_signal(1, SIGKILL);
    for (int i = 2; i < 4; i++)
        HARNESS_EQ(bx_future_wait(future[i], BX_FOREVER), BX_E_PEER_DEAD);
    for (int i = 0; i < 4; i++)
        bx_future_release(future[i]);
    HARNESS_EQ(job->rpc->peers[1]->in_flight, 0);
}

/* ---- Bounds ------------------------------------------------------------------------------------- */

static void send_one_ways(struct bx_job *job, int calls)
{
    for (int i = 0; i < calls; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "gate", NULL, NULL), 0);
}

static void serve_no_more_than_1024(struct bx_job *job)
{
    harness_await(SENT, 1);
    /* A request is counted as blocking before it is counted as dropped. */
    while (harness_counter(job, "requests_blocking") + harness_counter(job, "requests_dropped") < 1100 + 1100 - 1024)
        sched_yield();
    HARNESS_EQ(harness_counter(job, "requests_dropped"), 1100 - 1024);
    HARNESS_EQ(harness_load(COUNTED), 0);
    harness_post(OPEN_GATE);
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "requests_dropped"), 1100 - 1024);
}

HARNESS_TEST(engine, serves_1024_one_way_calls_of_a_worker_at_a_time, 60, .size = 2, .setup = setup,
             .body = { NULL, serve_no_more_than_1024 }, .expect = HARNESS_TABLE({ COUNTED, 1124 }))
{
    struct bx_future *future;

    send_one_ways(job, 1100);
    future = harness_async(job, "worker1", "hold");     /* a request has nothing to do with that bound */
    harness_post(SENT);
    harness_await(OPEN_GATE, 1);
    HARNESS_WAIT_WHILE(harness_load(COUNTED) < 1024);
    /* Requests that have run make room. */
    send_one_ways(job, 100);
    HARNESS_WAIT_WHILE(harness_load(COUNTED) < 1124);
    harness_cancel(future);
}

/* Writes requests without the library's send functions, which have only 1024 slots. */
static void put_requests(struct bx_job *job, int requests)
{
    struct bxi_frame frame = { .kind = BXI_REQUEST, .deadline_ns = BX_FOREVER, .function = 1 };

    bxi_lock(&job->run->lock);
    for (int i = 0; i < requests; i++) {
        frame.id = (uint64_t)(i + 1) << 16;
        HARNESS_EQ(bxi_ring_put(&job->rpc->peers[0]->out, &frame, NULL, 0), 0);
    }
    bxi_unlock(&job->run->lock);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
}

static void ask_for_1025_answers(struct bx_job *job)
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "count", NULL, NULL, NULL), 0);
    put_requests(job, 1024);
    harness_post(SENT);
    harness_await(READY, 1);
    put_requests(job, 1);
    for (;;)
        pause();
}

HARNESS_TEST(engine, cuts_off_a_worker_with_more_than_1024_calls_in_flight, 60, .size = 2, .setup = setup,
             .dies = 1u << 1, .body = { NULL, ask_for_1025_answers })
{
    harness_await(SENT, 1);
    HARNESS_WAIT_WHILE(harness_counter(job, "requests_blocking") < 1024);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    harness_post(READY);
    HARNESS_EQ(bx_job_serve(job), BX_E_CORRUPT);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    harness_post(OPEN_GATE);
    harness_signal(1, SIGKILL);
}

/* ---- Threads and signals ------------------------------------------------------------------------ */

static volatile sig_atomic_t signalled_thread;

static void note_thread(int signal_number)
{
    (void)signal_number;
    signalled_thread = (sig_atomic_t)gettid();
}

/* A signal to the process must go to a thread of the program. The only one has blocked it at first. */
HARNESS_TEST(engine, leaves_signals_to_the_threads_of_the_program, 60, .size = 2, .setup = setup)
{
    struct sigaction action = { .sa_handler = note_thread };
    sigset_t set;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", NULL, NULL, NULL), 0);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    HARNESS_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    HARNESS_EQ(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    HARNESS_EQ(kill(getpid(), SIGUSR1), 0);
    for (int i = 0; i < 1000; i++)
        sched_yield();
    HARNESS_EQ(signalled_thread, 0);
    HARNESS_EQ(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
    HARNESS_EQ(signalled_thread, gettid());
}

/* ---- Wake-ups by deaths ------------------------------------------------------------------------- */

static void call_the_third(struct bx_job *job)
{
    harness_await(SENT, 1);
    for (int i = 0; i < 5000; i++)
        HARNESS_EQ(bx_rpc_sync(job, "worker3", "count", NULL, NULL, NULL), 0);
    harness_post(DONE);
}

static void serve_beside_the_dead(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_job_serve(job), 0);
}

/* This worker has nothing to do while the others call each other, so none of its threads may wake. */
HARNESS_TEST(engine, is_woken_by_a_death_once, 60, .size = 4, .setup = setup, .dies = 1u << 1,
             .body = { NULL, wait_to_be_killed, call_the_third, serve_beside_the_dead })
{
    uint64_t before;

    harness_await(READY, 1);
    harness_signal(1, SIGKILL);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    before = harness_counter(job, "wakeups");
    harness_post(SENT);
    harness_await(DONE, 1);
    HARNESS_CHECK(harness_counter(job, "wakeups") - before < 200);
}

static void expect_loop_is_still(struct bx_job *job)
{
    struct pollfd loop = { .fd = bx_job_fd(job), .events = POLLIN };

    while (bx_progress(job) > 0)
        ;
    HARNESS_EQ(poll(&loop, 1, 0), 0);
}

HARNESS_TEST(engine, leaves_nothing_due_in_own_loop_after_a_death, 60, .size = 2, .setup = setup, .dies = 1u << 1,
             .body = { NULL, wait_to_be_killed }, .options = { .own_loop = true })
{
    struct pollfd loop = { .fd = bx_job_fd(job), .events = POLLIN };
    struct bx_future *future;

    while (harness_gate(READY) == 0)
        bx_progress(job);
    future = harness_start(job, "worker1", "hold", NULL, 20 * HARNESS_MS);
    while (!bx_future_is_done(future)) {
        poll(&loop, 1, -1);
        HARNESS_CHECK(bx_progress(job) >= 0);
    }
    HARNESS_EQ(bx_future_error(future), BX_E_TIMEOUT);
    bx_future_release(future);
    harness_signal(1, SIGKILL);
    while (bx_worker_is_alive(job, 1)) {
        poll(&loop, 1, -1);
        HARNESS_CHECK(bx_progress(job) >= 0);
    }
    expect_loop_is_still(job);
}

/* ---- A large world ------------------------------------------------------------------------------ */

/* Ranks are bits in words of 64. The callee sleeps, so each call needs a bell: without it the callee's watchdog would
 * find the request a second later. */
HARNESS_TEST(engine, rings_workers_beyond_rank_63, 100, .size = 66, .setup = setup, .options = { .no_spin = true },
             .expect = HARNESS_TABLE({ COUNTED, 20 }))
{
    bxi_a64 *armed = (bxi_a64 *)(uintptr_t)&job->rpc->peers[65]->view.control->header.armed;

    HARNESS_EQ(bx_rpc_sync(job, "worker65", "count", NULL, NULL, NULL), 0);
    for (int i = 1; i < 20; i++) {
        uint64_t rung = harness_counter(job, "doorbells_rung");

        HARNESS_WAIT_WHILE((bxi_load_seq_cst(armed) & 3) == BXI_AWAKE);
        HARNESS_EQ(bx_rpc_sync(job, "worker65", "count", NULL, NULL, NULL), 0);
        HARNESS_CHECK(harness_counter(job, "doorbells_rung") > rung);
    }
}
