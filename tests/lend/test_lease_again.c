/* SPDX-License-Identifier: MIT */
/*
 * More tests of leases, each for a fault that was found and fixed:
 * - A waiting thread is woken, whichever thread finds the returned lease.
 * - A bx_free_fn that tries to wait where a thread may not is refused.
 * - Leases of frames that a leaving worker never read, or that never reached it, are returned.
 * - A block that contains several tensors of one message is lent once.
 * - A large message keeps no memory, neither at its sender nor at its receiver.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

enum gate { READY = 0, BUSY, BUSY_GO, LET_GO, WOKEN, FREED, ANSWERED, STOPPED, LEFT, FINISHED };
enum value { CODE = 0 };

#define MEGABYTE (UINT64_C(1) << 20)

/* ---- A thread that finds a returned lease wakes the others -------------------------------------------- */

static struct bx_tensor *taken;

HARNESS_HANDLER(take)
{
    taken = bx_tensor_acquire(bx_read_tensor(args));
    return 0;
}

/* Holds the progress role of its worker, so that no thread of it reads rings or lease words. */
HARNESS_HANDLER(busy)
{
    harness_post(BUSY);
    harness_await(BUSY_GO, 1);
    return 0;
}

static int setup_taking(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("take", take), HARNESS_INLINE("busy", busy));
    return loans_setup(job);
}

/* Releases the tensor on the program's thread, without a frame, once gate LET_GO has reached its rank. */
static void lets_go(struct bx_job *job)
{
    harness_await(LET_GO, (uint32_t)bx_job_rank(job));
    bx_tensor_release(taken);
    harness_serve(job);
}

static void lends(struct bx_job *job, const char *to)
{
    HARNESS_EQ(loans_try(job, to, "take", loans_msg(job, 1, 1, 5000), NULL), 0);
}

static void await_sleeping_follower(struct bx_job *job)
{
    bool sleeps = false;

    while (!sleeps) {
        sched_yield();
        bxi_lock(&job->run->wait_lock);
        for (struct bxi_waiter *waiter = job->run->waiters; waiter != NULL; waiter = waiter->next)
            sleeps |= bxi_load_relaxed(&waiter->signal) == 1;
        bxi_unlock(&job->run->wait_lock);
    }
}

static struct bx_msg *second_msg;       /* with 5000 bytes, more than loan_bytes_max leaves beside the first 5000 */

static void waits_and_others_look(struct bx_job *job, int index)
{
    if (index == 0) {
        HARNESS_EQ(second_msg == NULL ? bx_loans_wait(job, -1, 0, BX_FOREVER)
                                      : bx_rpc_oneway(job, "worker1", "verify", second_msg, NULL), 0);
        harness_post(WOKEN);
        return;
    }
    await_sleeping_follower(job);
    harness_post(LET_GO);
    while (loans_of(job, 1).returned == 0)      /* this thread reads the lease word, not the waiting one */
        sched_yield();
    harness_await(WOKEN, 1);
    harness_post(BUSY_GO);
}

static void is_looked_at_by_another(struct bx_job *job)
{
    lends(job, "worker1");
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "busy", NULL, NULL), 0);
    harness_await(BUSY, 1);
    harness_threads(job, 2, waits_and_others_look);
}

HARNESS_WORLD(lease_wait_again, is_woken_though_another_thread_found_the_returned_lease, 20, .size = 2,
              .setup = setup_taking, .body = { is_looked_at_by_another, lets_go });

HARNESS_TEST(lease_wait_again, of_a_call_for_room_ends_when_another_thread_finds_the_returned_lease, 20, .size = 2,
             .setup = setup_taking, .options = { .loan_bytes_max = 9000 }, .body = { NULL, lets_go })
{
    second_msg = loans_msg(job, 2, 1, 5000);
    is_looked_at_by_another(job);
    bx_msg_destroy(second_msg);
}

/* ---- Memory that is freed where a thread may not wait ------------------------------------------------- */

static unsigned char foreign[64];

static void calls_when_freed(void *job)
{
    struct bx_call_options soon = { .timeout_ns = 3000 * HARNESS_MS };

    harness_store(CODE, (uint64_t)(int64_t)bx_rpc_sync(job, "worker0", "echo", NULL, &soon, NULL));
    harness_post(FREED);
}

static void put_foreign(struct bx_job *job, struct bx_msg *msg)
{
    OWN(tensor) *tensor = NULL;
    int64_t elements = sizeof(foreign);

    HARNESS_EQ(bx_tensor_wrap(foreign, BX_U8, 1, &elements, NULL, calls_when_freed, job, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(msg, tensor), 0);
}

HARNESS_HANDLER(answers_foreign)
{
    put_foreign(bx_request_job(request), reply);
    return 0;
}

/* The reply is dropped, because the handler fails. */
HARNESS_HANDLER(drops_foreign)
{
    put_foreign(bx_request_job(request), reply);
    return bx_fail(-EDOM, "not this time");
}

HARNESS_ASYNC_HANDLER(answers_foreign_async)
{
    struct bx_msg *value = bx_msg_create(0);

    put_foreign(bx_request_job(request), value);
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, value);
}

static int setup_foreign(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("answer", answers_foreign), HARNESS_INLINE("drop_it", drops_foreign),
                     HARNESS_ASYNC("answer_async", answers_foreign_async));
    return loans_setup(job);
}

static void expect_would_deadlock(struct bx_job *job, uint32_t times)
{
    harness_await(FREED, times);
    HARNESS_EQ((int64_t)harness_load(CODE), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(3)), 3);
}

HARNESS_TEST(lease_free_again, after_an_inline_reply_may_not_wait, 20, .size = 2, .setup = setup_foreign)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "answer", NULL, NULL, NULL), 0);
    expect_would_deadlock(job, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "drop_it", NULL, NULL, NULL), -EDOM);
    expect_would_deadlock(job, 2);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "answer", NULL, NULL), 0);
    expect_would_deadlock(job, 3);
}

HARNESS_TEST(lease_free_again, after_an_async_reply_that_was_done_at_once_may_not_wait, 20, .size = 2,
             .setup = setup_foreign)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "answer_async", NULL, NULL, NULL), 0);
    expect_would_deadlock(job, 1);
}

/* ---- Frames that a leaving worker never read ---------------------------------------------------------- */

#define SENT 400
#define FITS 60             /* frames with PAD_BYTES that fit into a ring */
#define PAD_BYTES 1000

/* Destroys the job without a shutdown; the process lives on. */
static void leaves_and_lives_on(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(READY, 1);
    bx_job_destroy(job);
    harness_post(LEFT);
    harness_await(FINISHED, 1);
}

static struct bx_future *sent[SENT];

static void sends(struct bx_job *job, struct bx_tensor *tensor, int count)
{
    static const char pad[PAD_BYTES];
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_msg_put_bytes(args, pad, sizeof(pad)), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    for (int i = 0; i < count; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "verify", args, NULL, &sent[i]), 0);
    bx_msg_destroy(args);
    HARNESS_EQ(loans_of(job, 1).leases, (uint64_t)count);
    HARNESS_EQ(bx_tensor_on_loan(tensor), count);
}

/* All leases are returned, although the process of the worker that left still lives. */
static void has_all_back(struct bx_job *job, struct bx_tensor *tensor)
{
    struct bx_loans loans = loans_of(job, 1);

    HARNESS_EQ(loans.leases, 0);
    HARNESS_EQ(loans.bytes, 0);
    HARNESS_EQ(loans.returned, loans.granted);
    HARNESS_EQ(loans.taken_back, 0);
    HARNESS_EQ(bx_tensor_on_loan(tensor), 0);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    harness_post(FINISHED);
    bx_tensor_release(tensor);
}

/* Worker 1 is in "busy" until this worker has seen it leave. Frames that do not fit into its ring stay queued here. */
HARNESS_TEST(lease_left_again, returns_the_leases_of_frames_queued_for_a_worker_that_left, 30, .size = 2,
             .setup = setup_taking, .body = { NULL, leaves_and_lives_on })
{
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, 5000, 1);
    struct bx_future *first = NULL;
    uint64_t queued;

    first = harness_async(job, "worker1", "busy");
    harness_await(BUSY, 1);
    sends(job, tensor, SENT);
    queued = harness_counter(job, "queued_frames");
    HARNESS_CHECK(queued > 0 && queued < SENT);
    harness_post(READY);
    harness_end(first, BX_E_SHUTDOWN);
    harness_end_all(sent, SENT, BX_E_SHUTDOWN);
    HARNESS_EQ(loans_of(job, 1).leases, SENT - queued);
    HARNESS_EQ(bx_tensor_on_loan(tensor), SENT - queued);
    harness_post(BUSY_GO);
    harness_await(LEFT, 1);         /* before it left it handled the frames in its ring */
    has_all_back(job, tensor);
}

/* No thread makes progress in worker 1 after its first answer. */
static void reads_once_and_leaves(struct bx_job *job)
{
    while (harness_gate(ANSWERED) == 0)
        bx_progress(job);
    harness_post(STOPPED);
    leaves_and_lives_on(job);
}

HARNESS_TEST(lease_left_again, returns_the_leases_of_frames_that_a_worker_that_left_never_read, 30, .size = 2,
             .setup = setup_taking, .options = { .own_loop = true }, .body = { NULL, reads_once_and_leaves })
{
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, 5000, 1);

    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);
    harness_post(ANSWERED);
    harness_await(STOPPED, 1);
    sends(job, tensor, FITS);
    HARNESS_EQ(harness_counter(job, "queued_frames"), 0);
    harness_post(READY);
    harness_end_all(sent, FITS, BX_E_SHUTDOWN);
    harness_await(LEFT, 1);
    has_all_back(job, tensor);
}

/* ---- A block is lent once ----------------------------------------------------------------------------- */

#define TWO_MEGABYTES ((int64_t)(2 << 20))
#define MANY 100           /* a frame has room for four times as many descriptors */

static struct bx_msg *msg_of(struct bx_tensor *const *tensors, int count, int times)
{
    struct bx_msg *msg = harness_msg_i64(0);

    for (int i = 0; i < count * times; i++)
        HARNESS_EQ(bx_msg_put_tensor(msg, tensors[i % count]), 0);
    return msg;
}

HARNESS_HANDLER(swallow)
{
    if (taken != NULL)
        bx_tensor_release(taken);
    taken = bx_reader_tensors_left(args) > 0 ? bx_tensor_acquire(bx_read_tensor(args)) : NULL;
    return bx_msg_put_i64(reply, (int64_t)bx_reader_tensors_left(args));
}

/* One message with the tensors in turn, several times: each block is on one lease, and its bytes count once. */
static void lends_in_turn(struct bx_job *job, struct bx_tensor *const *tensors, int count, uint64_t bytes)
{
    for (int times = 1; times <= 4; times++) {
        HARNESS_EQ(harness_call(job, "worker1", "swallow", msg_of(tensors, count, times)), count * times - 1);
        HARNESS_EQ(loans_of(job, -1).leases, 1);
        HARNESS_EQ(loans_of(job, -1).bytes, bytes);
        for (int i = 0; i < count; i++)
            HARNESS_EQ(bx_tensor_on_loan(tensors[i]), 1);
        HARNESS_EQ(harness_call(job, "worker1", "swallow", NULL), 0);
        HARNESS_EQ(loans_of(job, -1).bytes, 0);
        for (int i = 0; i < count; i++)
            HARNESS_EQ(bx_tensor_on_loan(tensors[i]), 0);
    }
}

static void lends_two_in_turn(struct bx_job *job)
{
    struct bx_tensor *three[3];
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < 2; i++) {
        three[i] = loans_tensor(job, BX_U8, TWO_MEGABYTES, i);
        bytes += three[i]->storage->bytes;
    }
    HARNESS_CHECK(bytes >= 2 * (uint64_t)TWO_MEGABYTES);
    lends_in_turn(job, three, 2, bytes);
    /* A view of the first tensor is in the same block. */
    HARNESS_EQ(bx_tensor_slice(three[0], 0, 10, 20, 1, &three[2]), 0);
    lends_in_turn(job, three, 3, bytes);
    for (int i = 0; i < 3; i++)
        bx_tensor_release(three[i]);
}

/* The message has two tensors of 2 MiB each up to four times; 5 MiB may be on loan. */
HARNESS_WORLD(lease_bytes_again, of_tensors_in_turn_fit_under_the_bound, 20, .size = 2, .setup = loans_setup,
              .handlers = { HARNESS_INLINE("swallow", swallow) }, .body = { lends_two_in_turn },
              .options = { .loan_bytes_max = 5 * MEGABYTE });

HARNESS_TEST(lease_bytes_again, of_hundreds_in_turn_are_counted_once, 20, .size = 2, .setup = loans_setup,
             .handlers = { HARNESS_INLINE("swallow", swallow) })
{
    struct bx_tensor *tensors[MANY];
    uint64_t bytes = 0;

    for (uint64_t i = 0; i < MANY; i++) {
        tensors[i] = loans_tensor(job, BX_U8, 64 + 16 * (int64_t)i, i);
        bytes += tensors[i]->storage->bytes;
    }
    lends_in_turn(job, tensors, MANY, bytes);
    for (int i = 0; i < MANY; i++)
        bx_tensor_release(tensors[i]);
}

/* ---- Large messages keep no memory -------------------------------------------------------------------- */

#define LARGE (64 << 20)
#define NOT_SMALL (1 << 20)

HARNESS_HANDLER(answers_large)
{
    size_t bytes = (size_t)bx_read_i64(args);
    char *filled = malloc(bytes);

    HARNESS_CHECK(filled != NULL);
    memset(filled, (int)bx_read_i64(args), bytes);
    bx_msg_put_bytes(reply, filled, bytes);
    free(filled);
    return 0;
}

/* Answers the capacity of the message that this worker's inline handlers share. */
HARNESS_HANDLER(answers_capacity)
{
    HARNESS_CHECK(reply == bx_request_job(request)->rpc->reply);
    return bx_msg_put_i64(reply, (int64_t)reply->capacity);
}

HARNESS_HANDLER(answers_leases)
{
    return bx_msg_put_i64(reply, (int64_t)loans_of(bx_request_job(request), bx_request_caller(request)).leases);
}

static int setup_large(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("large", answers_large), HARNESS_BLOCKING("large_blocking", answers_large),
                     HARNESS_INLINE("capacity", answers_capacity), HARNESS_INLINE("leases", answers_leases));
    return loans_setup(job);
}

static struct bx_msg *large_reply(struct bx_job *job, const char *function, int64_t bytes, int64_t filled)
{
    struct bx_msg *args = harness_msg_i64(bytes), *reply = NULL;

    HARNESS_EQ(bx_msg_put_i64(args, filled), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", function, args, NULL, &reply), 0);
    HARNESS_EQ(bx_msg_bytes(reply), bytes);
    bx_msg_destroy(args);
    return reply;
}

static bool is_filled(const struct bx_msg *msg, int filled)
{
    const unsigned char *data = bx_msg_data(msg);

    for (size_t i = 0; i < bx_msg_bytes(msg); i++)
        if (data[i] != filled)
            return false;
    return true;
}

HARNESS_TEST(lease_large_again, inline_reply_does_not_keep_its_memory, 30, .size = 2, .setup = setup_large)
{
    for (int64_t round = 1; round <= 2; round++) {
        OWN(msg) *reply = large_reply(job, "large", LARGE, round);

        for (int64_t i = 0; i < 3; i++) {
            HARNESS_CHECK(harness_call(job, "worker1", "capacity", NULL) <= BXI_FRAME_MAX);
            HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(i)), i);
        }
        HARNESS_CHECK(is_filled(reply, (int)round));
    }
}

/* The reply is kept. Nevertheless its lease is returned, its memory is used again, and its bytes stay. */
HARNESS_TEST(lease_large_again, reply_without_tensors_returns_its_lease_before_it_is_dropped, 20, .size = 2,
             .setup = setup_large)
{
    static const char *const functions[] = { "large", "large_blocking" };
    struct bx_msg *replies[4];

    for (int i = 0; i < 4; i++) {
        replies[i] = large_reply(job, functions[i % 2], NOT_SMALL, i + 1);
        HARNESS_EQ(harness_call(job, "worker1", "leases", NULL), 0);
        HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    }
    for (int i = 0; i < 4; i++) {
        HARNESS_CHECK(is_filled(replies[i], i + 1));
        bx_msg_destroy(replies[i]);
    }
}

static struct bx_msg *large_args(struct bx_job *job, int tensors)
{
    struct bx_msg *args = loans_msg(job, 1, tensors, 100);
    char *zeroes = calloc(1, NOT_SMALL);

    HARNESS_CHECK(zeroes != NULL);
    HARNESS_EQ(bx_msg_put_bytes(args, zeroes, NOT_SMALL), 0);
    free(zeroes);
    return args;
}

/* The handlers have begun and not ended. */
HARNESS_TEST(lease_large_again, request_without_tensors_returns_its_lease_before_it_is_dropped, 20, .size = 2,
             .setup = setup_large)
{
    struct bx_future *futures[2];

    for (int tensors = 0; tensors < 2; tensors++) {
        futures[tensors] = loans_start(job, "worker1", "stuck", large_args(job, tensors));
        harness_await(LOANS_STUCK, (uint32_t)tensors + 1);
        HARNESS_EQ(loans_of(job, 1).leases, (uint64_t)tensors);     /* a message with a tensor keeps its lease */
    }
    harness_post(LOANS_GO);
    harness_end_all(futures, 2, 0);
}
