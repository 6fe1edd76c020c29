/* SPDX-License-Identifier: MIT */
/*
 * What an inspector sees of calls in flight and of requests being served: the rows of shm/layout.h.
 *
 * Worker 0 calls and reads the rows: those of calls in its own segment, those of requests in the callee's segment, by
 * the read-only mapping that every worker has of every other. Handlers stop at gates, so that the rows do not change
 * meanwhile. A word that changes only after the answer was sent is polled until it has changed.
 */
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

enum gate { STAYS = 0, PASS, IN_HANDLER, HANDLER_GO, IN_BODY, BODY_GO, CALLED, FINISHED };
enum value { BODY_THREAD, THREADS = 32 };

#define PARKED_MOST 700

/* ---- Handlers ----------------------------------------------------------------------------------------- */

static struct bx_future *parked[PARKED_MOST];
static int parked_count;

/* Blocking: stores its thread's id and waits until gate PASS has reached the first argument. */
HARNESS_HANDLER(stay)
{
    int64_t until = bx_read_i64(args);

    harness_store(THREADS + (int)bx_read_i64(args), (uint64_t)gettid());
    harness_post(STAYS);
    harness_await(PASS, (uint32_t)until);
    return bx_msg_put_i64(reply, until);
}

/* Async: a call of "answer" answers it. */
HARNESS_ASYNC_HANDLER(park)
{
    HARNESS_CHECK(parked_count < PARKED_MOST);
    *reply = bx_future_create(bx_request_job(request));
    parked[parked_count++] = bx_future_acquire(*reply);
    return 0;
}

HARNESS_HANDLER(answer)
{
    while (parked_count > 0) {
        bx_future_set(parked[--parked_count], NULL);
        bx_future_release(parked[parked_count]);
    }
    return 0;
}

HARNESS_HANDLER(free_rows)
{
    struct bx_job *job = bx_request_job(request);
    uint32_t count;

    bxi_lock(&job->run->lock);
    count = job->observe->free_row_count;
    bxi_unlock(&job->run->lock);
    return bx_msg_put_i64(reply, count);
}

/* Waits at a gate. */
HARNESS_HANDLER(look)
{
    harness_post(IN_HANDLER);
    harness_await(HANDLER_GO, harness_gate(IN_HANDLER));
    return 0;
}

HARNESS_BATCH(body)
{
    harness_store(BODY_THREAD, (uint64_t)gettid());
    harness_post(IN_BODY);
    harness_await(BODY_GO, harness_gate(IN_BODY));
    return 0;
}

static int setup(struct bx_job *job)
{
    struct bx_batch_options on_pool = { .max_rows = 2, .blocking = true }, here = { .max_rows = 2 };

    HARNESS_REGISTER(job, HARNESS_BLOCKING("stay", stay), HARNESS_ASYNC("park", park), HARNESS_INLINE("answer", answer),
                     HARNESS_INLINE("free_rows", free_rows), HARNESS_INLINE("look", look));
    HARNESS_EQ(bx_register_batch(job, "gather", body, NULL, &on_pool), 0);
    HARNESS_EQ(bx_register_batch(job, "gather_here", body, NULL, &here), 0);
    return loans_setup(job);
}

/* ---- Reading rows ------------------------------------------------------------------------------------- */

static struct bxi_control *control_of(struct bx_job *job, int rank)
{
    return rank == job->rank ? job->control : (struct bxi_control *)(uintptr_t)job->rpc->peers[rank]->view.control;
}

static uint64_t function_of(struct bx_job *job, int rank, const char *name)
{
    struct bxi_control *control = control_of(job, rank);
    uint32_t count = bxi_load_acquire(&control->header.function_count);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(control->function[i].name, name) == 0)
            return i;
    harness_failed(__FILE__, __LINE__, "worker %d has no function '%s'", rank, name);
}

static uint64_t who_is(struct bx_job *job, int caller, int callee, const char *function)
{
    return (uint64_t)caller | function_of(job, callee, function) << 16;
}

/* The rows in use of this worker's calls to `to`, with those of calls that were given up. Returns how many. */
static int rows_of(struct bx_job *job, int to, struct bxi_call_row **rows)
{
    struct bxi_call_row *all = bxi_segment_at(&job->segment, bxi_calls_offset(to));
    int count = 0;

    for (uint32_t i = 0; i < job->rpc->peers[to]->row_count; i++)
        if (bxi_load_acquire(&all[i].id) != 0)
            rows[count++] = &all[i];
    return count;
}

static int calls_shown(struct bx_job *job, int to)
{
    struct bxi_call_row *rows[BXI_CALLS_MAX];

    return rows_of(job, to, rows);
}

static struct bxi_call_row *only_row(struct bx_job *job, int to)
{
    struct bxi_call_row *rows[BXI_CALLS_MAX];

    HARNESS_EQ(rows_of(job, to, rows), 1);
    return rows[0];
}

/* The callee's row of a request of this worker, or NULL. */
static struct bxi_serving *served(struct bx_job *job, int at, uint64_t id)
{
    struct bxi_control *control = control_of(job, at);

    for (int i = 0; i < BXI_SERVING_MAX; i++) {
        struct bxi_serving *row = &bxi_tables(control)->serving[i];

        if (bxi_load_acquire(&row->where) != BXI_AT_NONE && bxi_load_relaxed(&row->id) == id &&
            (bxi_load_relaxed(&row->who) & 0xffff) == (uint64_t)job->rank)
            return row;
    }
    return NULL;
}

static int count_at(struct bx_job *job, int rank, enum bxi_where where)
{
    struct bxi_control *control = control_of(job, rank);
    int count = 0;

    for (int i = 0; i < BXI_SERVING_MAX; i++)
        count += (bxi_load_acquire(&bxi_tables(control)->serving[i].where) & 0xff) == (uint64_t)where;
    return count;
}

static uint64_t id_of(struct bx_job *job, struct bx_future *future, int to)
{
    uint16_t slot = ((struct bxi_call *)(void *)future)->slot;
    uint64_t generation;

    bxi_lock(&job->run->lock);
    generation = job->rpc->peers[to]->slots[slot].generation;
    bxi_unlock(&job->run->lock);
    return generation << 16 | slot;
}

static void expect_all_free(struct bx_job *job, int at)
{
    const char *name = bx_worker_name(job, at);

    HARNESS_EQ(harness_call(job, name, "free_rows", NULL), BXI_SERVING_MAX);
    HARNESS_EQ(count_at(job, at, BXI_AT_NONE), BXI_SERVING_MAX);
    HARNESS_EQ(calls_shown(job, at), 0);
}

static struct bx_future *start_call(struct bx_job *job, int to, const char *function, uint64_t timeout_ns)
{
    return harness_start(job, bx_worker_name(job, to), function, NULL, timeout_ns);
}

static void finish(struct bx_future *future, int code)
{
    harness_end(future, code);
}

/* ---- Calls -------------------------------------------------------------------------------------------- */

#define TIMEOUT_NS (UINT64_C(100) * 1000 * HARNESS_MS)

static void sees_its_call(struct bx_job *job, int to, uint64_t timeout_ns)
{
    uint64_t before_ns, after_ns, since_ns, deadline_ns;
    struct bx_future *future;
    struct bxi_call_row *all = bxi_segment_at(&job->segment, bxi_calls_offset(to)), *row;

    before_ns = bxi_coarse_ns();
    future = start_call(job, to, "park", timeout_ns);
    after_ns = bxi_now_ns();
    row = only_row(job, to);
    HARNESS_EQ(bxi_load_relaxed(&row->id), id_of(job, future, to));
    HARNESS_CHECK(row == all + (bxi_load_relaxed(&row->id) & 0xffff));
    HARNESS_EQ(bxi_load_relaxed(&row->since) & 0xff, function_of(job, to, "park"));
    since_ns = bxi_load_relaxed(&row->since) >> 8;
    HARNESS_CHECK(since_ns >= before_ns && since_ns <= after_ns);
    deadline_ns = bxi_load_relaxed(&row->deadline_ns);
    HARNESS_EQ(deadline_ns, timeout_ns == BX_FOREVER ? BX_FOREVER : since_ns + timeout_ns);
    HARNESS_EQ(bxi_load_relaxed(&row->end_pos), job->rpc->peers[to]->out.write_pos);
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "answer", NULL, NULL, NULL), 0);
    finish(future, 0);
    HARNESS_EQ(bxi_load_relaxed(&row->id), 0);
    expect_all_free(job, to);
}

HARNESS_TEST(inflight_calls, have_a_row_each_until_they_end, 20, .size = 2, .setup = setup)
{
    for (int to = 0; to < 2; to++)
        for (int round = 0; round < 3; round++) {
            sees_its_call(job, to, BX_FOREVER);
            sees_its_call(job, to, TIMEOUT_NS);
        }
}

/* Worker 1 is in an inline handler. Frames that do not fit into its ring are queued, and their rows say so. */
#define QUEUED_CALLS 200

HARNESS_TEST(inflight_calls, that_are_queued_have_no_position_in_the_ring, 20, .size = 2, .setup = setup)
{
    static char bytes[2000];
    struct bxi_call_row *rows[BXI_CALLS_MAX];
    struct bx_future *first = start_call(job, 1, "look", BX_FOREVER), *futures[QUEUED_CALLS];
    struct bx_msg *args = harness_msg_i64(1);
    uint64_t queued = 0, last = 0;

    HARNESS_EQ(bx_msg_put_bytes(args, bytes, sizeof(bytes)), 0);
    harness_await(IN_HANDLER, 1);
    for (int i = 0; i < QUEUED_CALLS; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "park", args, NULL, &futures[i]), 0);
    bx_msg_destroy(args);
    HARNESS_EQ(rows_of(job, 1, rows), QUEUED_CALLS + 1);
    for (int i = 0; i <= QUEUED_CALLS; i++)
        queued += bxi_load_relaxed(&rows[i]->end_pos) == UINT64_MAX;
    HARNESS_CHECK(queued > 0);
    HARNESS_EQ(queued, harness_counter(job, "queued_frames"));
    harness_post(HANDLER_GO);
    finish(first, 0);
    /* The reply proves that all queued frames are in the ring, because frames keep their order. */
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(2)), 2);
    HARNESS_EQ(rows_of(job, 1, rows), QUEUED_CALLS);
    for (int i = 0; i < QUEUED_CALLS; i++) {
        uint64_t end_pos = bxi_load_relaxed(&rows[i]->end_pos);

        HARNESS_CHECK(end_pos != UINT64_MAX && end_pos <= job->rpc->peers[1]->out.write_pos);
        last = end_pos > last ? end_pos : last;
    }
    HARNESS_CHECK(last > BXI_RING_BYTES);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "answer", NULL, NULL, NULL), 0);
    for (int i = 0; i < QUEUED_CALLS; i++)
        finish(futures[i], 0);
    expect_all_free(job, 1);
}

/* Up to more calls than the rows that are made with the ring, and than the callee has rows for. */
static void has_many_in_flight(struct bx_job *job, int to, int count)
{
    static struct bx_future *futures[PARKED_MOST];
    struct bxi_call_row *rows[BXI_CALLS_MAX], *first = bxi_segment_at(&job->segment, bxi_calls_offset(to));
    int at_callee = count < BXI_SERVING_MAX ? count : BXI_SERVING_MAX;

    for (int i = 0; i < count; i++)
        futures[i] = start_call(job, to, "park", BX_FOREVER);
    HARNESS_EQ(rows_of(job, to, rows), count);
    for (int i = 0; i < count; i++) {
        uint64_t id = bxi_load_relaxed(&rows[i]->id);

        HARNESS_EQ(id & 0xffff, rows[i] - first);
        HARNESS_EQ(id >> 16, job->rpc->peers[to]->slots[id & 0xffff].generation);
        HARNESS_EQ(bxi_load_relaxed(&rows[i]->since) & 0xff, function_of(job, to, "park"));
    }
    HARNESS_EQ(harness_call(job, bx_worker_name(job, to), "free_rows", NULL), BXI_SERVING_MAX - at_callee);
    HARNESS_EQ(count_at(job, to, BXI_AT_FUTURE), at_callee);
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "answer", NULL, NULL, NULL), 0);
    for (int i = 0; i < count; i++)
        finish(futures[i], 0);
    expect_all_free(job, to);
}

HARNESS_TEST(inflight_calls, have_rows_however_many_there_are, 30, .size = 2, .setup = setup)
{
    for (int to = 0; to < 2; to++) {
        has_many_in_flight(job, to, BXI_CALLS_FIRST - 1);
        has_many_in_flight(job, to, 2 * BXI_CALLS_FIRST + 1);
        has_many_in_flight(job, to, BXI_SERVING_MAX + 100);
    }
}

/* ---- Requests ----------------------------------------------------------------------------------------- */

static struct bx_future *start_stay(struct bx_job *job, int64_t until, int64_t index)
{
    struct bx_msg *args = harness_msg_i64(until);

    HARNESS_EQ(bx_msg_put_i64(args, index), 0);
    return loans_start(job, "worker1", "stay", args);
}

static void expect_on_its_thread(struct bx_job *job, struct bx_future *future, int index)
{
    struct bxi_serving *row = served(job, 1, id_of(job, future, 1));

    HARNESS_CHECK(row != NULL);
    HARNESS_EQ(bxi_load_relaxed(&row->where), BXI_AT_THREAD | harness_load(THREADS + index) << 8);
    HARNESS_EQ(bxi_load_relaxed(&row->who), who_is(job, 0, 1, "stay"));
}

/* One more call than threads that run at once: the last waits in the pool, then gets a thread. */
HARNESS_TEST(inflight_requests, of_blocking_handlers_are_in_the_pool_then_on_a_thread, 20, .size = 2, .setup = setup)
{
    struct bx_future *futures[BXI_POOL_READY + 1], *last;
    uint64_t before_ns = bxi_coarse_ns();
    struct bxi_serving *row;

    for (int i = 0; i < BXI_POOL_READY; i++)
        futures[i] = start_stay(job, 1, i);
    harness_await(STAYS, BXI_POOL_READY);
    last = futures[BXI_POOL_READY] = start_stay(job, 2, BXI_POOL_READY);
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);    /* worker 1 has read it by then */
    for (int i = 0; i < BXI_POOL_READY; i++)
        expect_on_its_thread(job, futures[i], i);
    row = served(job, 1, id_of(job, last, 1));
    HARNESS_CHECK(row != NULL);
    HARNESS_EQ(bxi_load_relaxed(&row->where), BXI_AT_POOL);
    HARNESS_EQ(bxi_load_relaxed(&row->who), who_is(job, 0, 1, "stay"));
    HARNESS_CHECK(bxi_load_relaxed(&row->since_ns) >= before_ns && bxi_load_relaxed(&row->since_ns) <= bxi_now_ns());
    harness_post(PASS);
    for (int i = 0; i < BXI_POOL_READY; i++)
        finish(futures[i], 0);
    harness_await(STAYS, BXI_POOL_READY + 1);
    expect_on_its_thread(job, last, BXI_POOL_READY);
    HARNESS_EQ(count_at(job, 1, BXI_AT_NONE), BXI_SERVING_MAX - 1);
    harness_post(PASS);
    finish(last, 0);
    expect_all_free(job, 1);
}

/* ---- Batches ------------------------------------------------------------------------------------------ */

static const char *batch_name;

static struct bxi_batch_words *batch_words(struct bx_job *job)
{
    return &bxi_tables(control_of(job, 1))->batch[function_of(job, 1, batch_name)];
}

static void expect_batch(struct bx_job *job, uint64_t rows, uint64_t present, uint64_t running)
{
    struct bxi_batch_words *words = batch_words(job);

    HARNESS_EQ(bxi_load_relaxed(&words->rows), rows);
    HARNESS_EQ(bxi_load_relaxed(&words->present[0]), present);
    HARNESS_EQ(bxi_load_relaxed(&words->present[1]), 0);
    HARNESS_EQ(bxi_load_relaxed(&words->running), running);
    HARNESS_EQ(bxi_load_relaxed(&words->max_rows), 2);
    HARNESS_EQ(bxi_load_relaxed(&words->flush_after_ns), 0);
}

/* Worker 2's row makes the batch full. */
static void fills_the_batch(struct bx_job *job)
{
    harness_await(CALLED, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", batch_name, NULL, NULL, NULL), 0);
    harness_await(FINISHED, 1);
}

static void sees_its_row(struct bx_job *job)
{
    struct bx_future *future;
    struct bxi_serving *row;
    uint64_t id;

    HARNESS_EQ(bx_batch_join(job, "worker1", batch_name), 0);
    HARNESS_EQ(bxi_load_relaxed(&batch_words(job)->members[0]), 1);
    HARNESS_EQ(bx_batch_leave(job, "worker1", batch_name), 0);
    HARNESS_EQ(bxi_load_relaxed(&batch_words(job)->members[0]), 0);
    expect_batch(job, 0, 0, 0);

    future = start_call(job, 1, batch_name, BX_FOREVER);
    id = id_of(job, future, 1);
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(1)), 1);
    row = served(job, 1, id);
    HARNESS_CHECK(row != NULL);
    HARNESS_EQ(bxi_load_relaxed(&row->where), BXI_AT_BATCH);
    HARNESS_EQ(bxi_load_relaxed(&row->who), who_is(job, 0, 1, batch_name));
    expect_batch(job, 1, 1, 0);

    harness_post(CALLED);
    harness_await(IN_BODY, 1);
    HARNESS_EQ(bxi_load_relaxed(&row->where), BXI_AT_BODY | harness_load(BODY_THREAD) << 8);
    HARNESS_EQ(bxi_load_relaxed(&row->id), id);
    HARNESS_EQ(count_at(job, 1, BXI_AT_BODY), 2);
    expect_batch(job, 0, 0, strcmp(batch_name, "gather") == 0 ? BXI_BATCH_ON_THREAD : BXI_BATCH_BY_ROLE);

    harness_post(BODY_GO);
    finish(future, 0);
    while (bxi_load_relaxed(&batch_words(job)->running) != 0 || count_at(job, 1, BXI_AT_NONE) < BXI_SERVING_MAX)
        sched_yield();
    expect_batch(job, 0, 0, 0);
    expect_all_free(job, 1);
    harness_post(FINISHED);
}

static void run_batch(const char *name)
{
    batch_name = name;
    harness_reset();
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { sees_its_row, NULL, fills_the_batch } });
}

Test(inflight_requests, of_batches_are_in_the_batch_then_in_its_body, .timeout = 30)
{
    run_batch("gather");
    run_batch("gather_here");
}

/* ---- Threads that wait -------------------------------------------------------------------------------- */

/* More threads than there are rows. */
#define MANY_WAIT (BXI_WAITS_MAX + 20)

static struct bx_future *waited;

static void waits_among_many(struct bx_job *job, int index)
{
    if (index > 0) {
        HARNESS_EQ(bx_future_wait(waited, BX_FOREVER), 0);
        return;
    }
    for (int i = 0; i < BXI_WAITS_MAX; i++)
        HARNESS_WAIT_WHILE(bxi_load_relaxed(&bxi_tables(job->control)->wait[i].thread) == 0);
    HARNESS_EQ(bx_future_set(waited, NULL), 0);
}

HARNESS_TEST(inflight_waits, of_more_threads_than_rows_have_no_row, 30, .size = 2, .setup = setup)
{
    for (int round = 0; round < 2; round++) {
        waited = bx_future_create(job);
        harness_threads(job, MANY_WAIT, waits_among_many);
        bx_future_release(waited);
    }
    for (int i = 0; i < BXI_WAIT_WORDS; i++)
        HARNESS_EQ(bxi_load_relaxed(&job->observe->wait_rows[i]), 0);
}
