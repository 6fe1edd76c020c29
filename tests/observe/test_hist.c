/* SPDX-License-Identifier: MIT */
/*
 * The histograms of calls: the encoding of a handler's time in its reply, the bucket of each time, and that exactly the
 * calls that are to be measured are counted, each once in every leg.
 *
 * Worker 0 calls and reads its own segment, where a call is counted before it returns. No test has an upper bound for a
 * time, except one from a clock that was read outside of the call.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum gate { HELD = 0, GO };

#define SLEEP_NS (20 * HARNESS_MS)
/* The lower bound of a time that is kept in 10 significant bits. */
#define AT_LEAST(ns) ((ns) / 512 * 511)

/* ---- Spans and buckets -------------------------------------------------------------------------------- */

static void expect_span(uint64_t ns)
{
    uint64_t said = bxi_span_unpack(bxi_span_pack(ns));

    cr_assert_leq(said, ns, "%llu: %llu", (unsigned long long)ns, (unsigned long long)said);
    cr_assert_leq(ns - said, ns / 512, "%llu: %llu", (unsigned long long)ns, (unsigned long long)said);
}

TestSuite(hist, .timeout = 120);

Test(hist, packs_a_time_into_16_bits_within_one_part_of_512)
{
    uint64_t random = 1;

    for (uint64_t ns = 0; ns < 1 << 20; ns++)
        expect_span(ns);
    for (int bit = 10; bit < 64; bit++) {
        expect_span(UINT64_C(1) << bit);
        expect_span((UINT64_C(1) << bit) - 1);
        for (int i = 0; i < 1000; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            expect_span(random >> (63 - bit));
        }
    }
    expect_span(UINT64_MAX);
}

Test(hist, unpacks_any_16_bits)
{
    uint64_t before = 0;

    for (uint32_t span = 0; span <= UINT16_MAX; span++) {
        uint64_t ns = bxi_span_unpack((uint16_t)span);

        if (span >> 10 > 54)
            cr_assert_eq(ns, UINT64_MAX);
        else if (span < 1024 || (span & 1023) >= 512)       /* values that bxi_span_pack makes */
            cr_assert_eq(bxi_span_pack(ns), span);
        cr_assert(ns >= before || (span & 1023) < 512);
        before = ns;
    }
}

Test(hist, puts_each_time_into_one_bucket)
{
    cr_expect_eq(bxi_hist_least(0), 0);
    for (uint32_t i = 1; i < BXI_HIST_BUCKETS; i++) {
        uint64_t least = bxi_hist_least(i), width = least - bxi_hist_least(i - 1);

        cr_expect_eq(bxi_hist_bucket(least), i);
        cr_expect_eq(bxi_hist_bucket(least - 1), i - 1);
        cr_expect(width == 16 || width * 4 <= bxi_hist_least(i - 1), "bucket %u is %llu wide", i - 1,
                  (unsigned long long)width);
    }
    cr_expect_eq(bxi_hist_bucket(0), 0);
    cr_expect_eq(bxi_hist_least(BXI_HIST_BUCKETS - 1), UINT64_C(7) << 32);
    cr_expect_eq(bxi_hist_bucket(UINT64_MAX), BXI_HIST_BUCKETS - 1);
    for (uint64_t ns = 1; ns < 1 << 20; ns++)
        cr_assert(bxi_hist_bucket(ns) >= bxi_hist_bucket(ns - 1) && bxi_hist_least(bxi_hist_bucket(ns)) <= ns);
}

/* ---- BX_HIST ------------------------------------------------------------------------------------------- */

static int creates_with(const char *value)
{
    struct bx_job *job = NULL;
    int rc;

    if (value != NULL)
        setenv("BX_HIST", value, 1);
    else
        unsetenv("BX_HIST");
    rc = bx_job_create(&(struct bx_options){ .job = harness_job_name(), .name = "one", .world_size = 2 }, &job);
    if (rc == 0) {
        uint32_t expected = value == NULL || value[0] == '\0' ? 64 : strcmp(value, "all") == 0;

        cr_expect_eq(job->observe->hist_every, expected, "%s: %u", value != NULL ? value : "not set",
                     job->observe->hist_every);
        bx_job_destroy(job);
    }
    return rc;
}

Test(hist, is_set_by_the_environment)
{
    static const char *const wrong[] = { "on", "64", "ALL", "all ", "0" };

    cr_expect_eq(creates_with(NULL), 0);
    cr_expect_eq(creates_with(""), 0);
    cr_expect_eq(creates_with("all"), 0);
    cr_expect_eq(creates_with("off"), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        cr_expect_eq(creates_with(wrong[i]), -EINVAL, "BX_HIST=%s", wrong[i]);
        cr_expect_not_null(strstr(bx_error_text(), "BX_HIST"), "%s", bx_error_text());
    }
}

/* ---- Handlers ------------------------------------------------------------------------------------------ */

static void sleep_some(void)
{
    struct timespec rest = { .tv_nsec = (long)SLEEP_NS };

    while (nanosleep(&rest, &rest) < 0 && errno == EINTR)
        ;
}

HARNESS_HANDLER(fails)
{
    return -EDOM;
}

HARNESS_HANDLER(sleeps)
{
    sleep_some();
    return 0;
}

HARNESS_HANDLER(holds)
{
    harness_post(HELD);
    harness_await(GO, 1);
    return 0;
}

HARNESS_ASYNC_HANDLER(at_once)
{
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, NULL);
}

static void *set_later(void *future)
{
    sleep_some();
    bx_future_set(future, NULL);
    bx_future_release(future);
    return NULL;
}

HARNESS_ASYNC_HANDLER(later)
{
    pthread_t thread;

    *reply = bx_future_create(bx_request_job(request));
    HARNESS_EQ(pthread_create(&thread, NULL, set_later, bx_future_acquire(*reply)), 0);
    return -pthread_detach(thread);
}

HARNESS_BATCH(slow_rows)
{
    sleep_some();
    return 0;
}

static int setup(struct bx_job *job)
{
    struct bx_batch_options here = { .max_rows = 1 }, there = { .max_rows = 1, .blocking = true };

    HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo), HARNESS_BLOCKING("echo_blocking", harness_echo),
                     HARNESS_INLINE("fails", fails), HARNESS_INLINE("sleeps", sleeps),
                     HARNESS_BLOCKING("sleeps_blocking", sleeps), HARNESS_BLOCKING("holds", holds),
                     HARNESS_INLINE("holds_all", holds), HARNESS_ASYNC("at_once", at_once),
                     HARNESS_ASYNC("later", later));
    HARNESS_EQ(bx_register_batch(job, "rows", harness_no_rows, NULL, &here), 0);
    HARNESS_EQ(bx_register_batch(job, "rows_blocking", harness_no_rows, NULL, &there), 0);
    HARNESS_EQ(bx_register_batch(job, "slow_rows", slow_rows, NULL, &here), 0);
    return 0;
}

/* ---- Reading histograms -------------------------------------------------------------------------------- */

static uint32_t hist_count(struct bx_job *job)
{
    return bxi_load_acquire(&job->control->header.hist_count);
}

/* The histogram of a worker's function, or NULL if it has none. */
static struct bxi_hist *hist_of(struct bx_job *job, int rank, const char *function)
{
    struct bxi_hist *found = NULL;

    for (uint32_t i = 0; i < hist_count(job); i++) {
        struct bxi_hist *hist = bxi_segment_at(&job->segment, bxi_hist_offset(i));

        if ((hist->who & 0xffff) != (uint64_t)rank || strcmp(hist->name, function) != 0)
            continue;
        HARNESS_CHECK(found == NULL);
        found = hist;
    }
    return found;
}

static uint64_t samples(const struct bxi_hist *hist, int leg)
{
    uint64_t count = 0;

    for (int i = 0; i < BXI_HIST_BUCKETS; i++)
        count += bxi_load_relaxed((bxi_a64 *)&hist->bucket[leg][i]);
    return count;
}

static uint64_t sum(const struct bxi_hist *hist, int leg)
{
    return bxi_load_relaxed((bxi_a64 *)&hist->sum_ns[leg]);
}

/* Checks that each leg has `count` samples, and that the sums of the legs add up to the sum of the whole calls. */
static void expect(struct bx_job *job, int rank, const char *function, uint64_t count)
{
    const struct bxi_hist *hist = hist_of(job, rank, function);

    if (hist == NULL)
        harness_failed(__FILE__, __LINE__, "no histogram of %s of %d", function, rank);
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        uint64_t longest = bxi_load_relaxed((bxi_a64 *)&hist->max_ns[leg]);

        if (samples(hist, leg) != count)
            harness_failed(__FILE__, __LINE__, "%s of %d: %llu samples in leg %d", function, rank,
                           (unsigned long long)samples(hist, leg), leg);
        HARNESS_CHECK(longest <= sum(hist, leg) && sum(hist, leg) <= longest * count);
        HARNESS_CHECK(bxi_load_relaxed((bxi_a64 *)&hist->bucket[leg][bxi_hist_bucket(longest)]) > 0);
    }
    HARNESS_EQ(sum(hist, BXI_LEG_QUEUE) + sum(hist, BXI_LEG_HANDLER) + sum(hist, BXI_LEG_REPLY),
               sum(hist, BXI_LEG_WHOLE));
}

static void call(struct bx_job *job, const char *to, const char *function, int times)
{
    OWN(msg) *args = harness_msg_i64(1);

    for (int i = 0; i < times; i++)
        HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, NULL), 0);
}

static void call_async(struct bx_job *job, const char *to, const char *function, int times)
{
    OWN(msg) *args = harness_msg_i64(1);
    struct bx_future *futures[64] = { NULL };

    HARNESS_CHECK(times <= 64);
    for (int i = 0; i < times; i++)
        HARNESS_EQ(bx_rpc_async(job, to, function, args, NULL, &futures[i]), 0);
    harness_end_all(futures, times, 0);
}

/* ---- All calls ------------------------------------------------------------------------------------------- */

static const char *const quick[] = { "echo", "echo_blocking", "at_once", "rows", "rows_blocking" };
#define QUICK ((int)(sizeof(quick) / sizeof(quick[0])))

HARNESS_TEST(hist, has_every_call_of_every_kind_once_if_all_are_measured, 60, .size = 3, .setup = setup,
             .env = { "BX_HIST=all" })
{
    static const char *const workers[] = { "worker0", "worker1", "worker2" };

    for (int rank = 0; rank < 3; rank++) {
        for (int i = 0; i < QUICK; i++) {
            call(job, workers[rank], quick[i], 3 + i);
            expect(job, rank, quick[i], (uint64_t)(3 + i));
            call_async(job, workers[rank], quick[i], 10 * rank);
        }
    }
    for (int rank = 0; rank < 3; rank++)
        for (int i = 0; i < QUICK; i++)
            expect(job, rank, quick[i], (uint64_t)(3 + i + 10 * rank));
    HARNESS_EQ(hist_count(job), 3 * QUICK);
}

static void calls_by_threads(struct bx_job *job, int index)
{
    call(job, index % 2 == 0 ? "worker0" : "worker1", "echo", 50);
}

HARNESS_TEST(hist, has_every_call_of_every_thread, 60, .size = 2, .setup = setup, .env = { "BX_HIST=all" })
{
    harness_threads(job, 4, calls_by_threads);
    expect(job, 0, "echo", 100);
    expect(job, 1, "echo", 100);
}

/* ---- What is not counted ------------------------------------------------------------------------------------ */

static uint32_t in_flight(struct bx_job *job, int rank)
{
    uint32_t count;

    bxi_lock(&job->run->lock);
    count = job->rpc->peers[rank]->in_flight;
    bxi_unlock(&job->run->lock);
    return count;
}

HARNESS_TEST(hist, leaves_out_calls_without_a_reply, 60, .size = 2, .setup = setup, .env = { "BX_HIST=all" })
{
    struct bx_call_options soon = { .timeout_ns = HARNESS_MS };
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "nobody", NULL, NULL, NULL), BX_E_NO_FUNCTION);
    HARNESS_EQ(bx_rpc_sync(job, "worker9", "echo", NULL, NULL, NULL), BX_E_NO_WORKER);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "at_once", NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "holds", NULL, &soon, NULL), BX_E_TIMEOUT);
    future = harness_async(job, "worker1", "holds");
    harness_cancel(future);
    HARNESS_EQ(hist_count(job), 0);
    harness_post(GO);
    call(job, "worker1", "holds", 2);
    while (in_flight(job, 1) > 0)           /* late replies come with others; the first call may have been in time */
        call(job, "worker1", "echo", 1);
    expect(job, 1, "holds", 2);
    HARNESS_CHECK(hist_of(job, 1, "at_once") == NULL);
    /* A call whose handler fails is measured too. */
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "fails", NULL, NULL, NULL), -EDOM);
    expect(job, 1, "fails", 1);
}

HARNESS_TEST(hist, is_not_made_if_it_is_off, 60, .size = 2, .setup = setup, .env = { "BX_HIST=off" })
{
    for (int i = 0; i < QUICK; i++)
        call(job, i % 2 == 0 ? "worker0" : "worker1", quick[i], 200);
    HARNESS_EQ(hist_count(job), 0);
}

/* ---- Where the time went --------------------------------------------------------------------------------------- */

/* The sum of the legs must not exceed the time that a clock outside of the calls measures. */
static void expect_slow(struct bx_job *job, const char *to, int rank, const char *function)
{
    uint64_t before_ns = bxi_now_ns(), outer_ns;
    const struct bxi_hist *hist;

    call(job, to, function, 3);
    outer_ns = bxi_now_ns() - before_ns;
    expect(job, rank, function, 3);
    hist = hist_of(job, rank, function);
    HARNESS_CHECK(sum(hist, BXI_LEG_WHOLE) <= outer_ns);
    HARNESS_CHECK(sum(hist, BXI_LEG_HANDLER) >= 3 * AT_LEAST(SLEEP_NS));
    HARNESS_CHECK(sum(hist, BXI_LEG_QUEUE) + sum(hist, BXI_LEG_REPLY) <= outer_ns - 3 * AT_LEAST(SLEEP_NS));
    for (uint32_t i = 0; i < bxi_hist_bucket(AT_LEAST(SLEEP_NS)); i++)
        HARNESS_EQ(bxi_load_relaxed((bxi_a64 *)&hist->bucket[BXI_LEG_HANDLER][i]), 0);
}

HARNESS_TEST(hist, counts_the_handlers_time_in_the_handler_leg, 60, .size = 2, .setup = setup, .env = { "BX_HIST=all" })
{
    static const char *const slow[] = { "sleeps", "sleeps_blocking", "later", "slow_rows" };

    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
        expect_slow(job, "worker1", 1, slow[i]);
        expect_slow(job, "worker0", 0, slow[i]);
    }
}

/* The second call is sent while the first handler runs; its own handler can begin only when that ends. */
HARNESS_TEST(hist, counts_the_time_before_a_handler_in_the_queue_leg, 60, .size = 2, .setup = setup,
             .env = { "BX_HIST=all" })
{
    struct bx_future *futures[2] = { NULL };
    const struct bxi_hist *hist;

    futures[0] = harness_async(job, "worker1", "holds_all");
    harness_await(HELD, 1);
    futures[1] = harness_async(job, "worker1", "holds_all");
    sleep_some();
    harness_post(GO);
    harness_end_all(futures, 2, 0);
    expect(job, 1, "holds_all", 2);
    hist = hist_of(job, 1, "holds_all");
    HARNESS_CHECK(bxi_load_relaxed((bxi_a64 *)&hist->max_ns[BXI_LEG_QUEUE]) >= SLEEP_NS);
    HARNESS_CHECK(bxi_load_relaxed((bxi_a64 *)&hist->max_ns[BXI_LEG_HANDLER]) >= AT_LEAST(SLEEP_NS));
}

/* ---- One in 64 --------------------------------------------------------------------------------------------------- */

#define MANY 64000

/* Groups of one call. */
static void call_groups(struct bx_job *job, const char *to, const char *function, int times)
{
    OWN(msg) *args = harness_msg_i64(1);
    struct bx_future *future = NULL;

    for (int i = 0; i < times; i++) {
        HARNESS_EQ(bx_rpc_many(job, to, function, 1, (const struct bx_msg *[]){ args }, NULL, &future), 0);
        harness_end(future, 0);
    }
}

HARNESS_TEST(hist, has_about_one_call_in_64, 60, .size = 2, .setup = setup, .env = { "BX_HIST" })
{
    const struct bxi_hist *hist;

    call(job, "worker0", "echo", 1);
    expect(job, 0, "echo", 1);              /* the first call of a thread */
    call(job, "worker0", "echo", MANY / 2 - 1);
    call_groups(job, "worker0", "echo", MANY / 2);
    hist = hist_of(job, 0, "echo");
    /* 1000 are expected. Distances are uniform in 1 to 127: the standard deviation is 18, so 200 never happens. */
    HARNESS_CHECK(samples(hist, BXI_LEG_WHOLE) > 800 && samples(hist, BXI_LEG_WHOLE) < 1200);
    expect(job, 0, "echo", samples(hist, BXI_LEG_WHOLE));
}

HARNESS_TEST(hist, measures_both_of_two_functions_that_are_called_in_turn, 60, .size = 2, .setup = setup,
             .env = { "BX_HIST=" })
{
    for (int i = 0; i < MANY / 4; i++) {
        call(job, "worker0", "echo", 1);
        call(job, "worker0", "at_once", 1);
    }
    /* Calls are chosen at random. Every 64th call would always be of the same function, because 64 is even. */
    HARNESS_CHECK(hist_of(job, 0, "echo") != NULL && hist_of(job, 0, "at_once") != NULL);
    HARNESS_CHECK(samples(hist_of(job, 0, "echo"), BXI_LEG_WHOLE) > MANY / 4 / 256);
    HARNESS_CHECK(samples(hist_of(job, 0, "at_once"), BXI_LEG_WHOLE) > MANY / 4 / 256);
}

/* A handler calls its own worker, whose ring nobody reads meanwhile: it is full after some hundred calls. */
#define BURST 1000
#define BURSTS 20

static struct bx_future *burst_futures[BURST];

HARNESS_HANDLER(burst)
{
    static const unsigned char filling[1000];
    OWN(msg) *large = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_bytes(large, filling, sizeof filling), 0);
    for (int i = 0; i < BURST; i++)
        HARNESS_EQ(bx_rpc_async(bx_request_job(request), "worker0", "echo", large, NULL, &burst_futures[i]), 0);
    return 0;
}

HARNESS_TEST(hist, has_about_one_in_64_of_the_calls_that_find_a_full_ring, 60, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("burst", burst) }, .env = { "BX_HIST" })
{
    const struct bxi_hist *hist;

    for (int round = 0; round < BURSTS; round++) {
        call(job, "worker0", "burst", 1);
        harness_end_all(burst_futures, BURST, 0);
    }
    HARNESS_CHECK(harness_counter(job, "queued_frames") > BURSTS * BURST / 2);
    hist = hist_of(job, 0, "echo");
    /* 312 are expected, with a standard deviation of 10. They are slow, so measured twice as often they would weigh
     * twice as much. */
    HARNESS_CHECK(samples(hist, BXI_LEG_WHOLE) > 200 && samples(hist, BXI_LEG_WHOLE) < 420);
}

/* ---- A peer that sends wrong times ------------------------------------------------------------------------------- */

/* The times in a reply are input: whatever they are, no leg may be longer than the call. */
HARNESS_TEST(hist, cuts_a_peers_time_to_that_of_the_call, 60, .size = 2, .setup = setup, .env = { "BX_HIST=all" })
{
    static const uint64_t sent_ns[] = { 0, 1, BX_FOREVER };
    const struct bxi_hist *hist;

    call(job, "worker1", "echo", 1);
    hist = hist_of(job, 1, "echo");
    for (size_t i = 0; i < 3; i++) {
        for (uint16_t span = 0; span < 2; span++) {
            struct bxi_measured lied = { .rank = 1, .function = (uint16_t)(hist->who >> 16), .name = hist->name,
                                         .sent_ns = bxi_now_ns(), .done_ns = sent_ns[i],
                                         .span = span == 0 ? 0 : UINT16_MAX };

            bxi_lock(&job->run->lock);
            bxi_hist_end(job, &job->rpc->peers[1]->hists, &lied);
            bxi_unlock(&job->run->lock);
        }
    }
    expect(job, 1, "echo", 7);
    for (int leg = 0; leg < BXI_LEG_WHOLE; leg++)
        HARNESS_CHECK(bxi_load_relaxed((bxi_a64 *)&hist->max_ns[leg]) <=
                      bxi_load_relaxed((bxi_a64 *)&hist->max_ns[BXI_LEG_WHOLE]));
}

/* ---- No room ----------------------------------------------------------------------------------------------------- */

#define FUNCTIONS 100

static int setup_many(struct bx_job *job)
{
    char name[BXI_NAME_BYTES];

    for (int i = 0; i < FUNCTIONS; i++) {
        snprintf(name, sizeof(name), "echo%d", i);
        HARNESS_EQ(bx_register(job, name, BX_INLINE, harness_echo, NULL), 0);
    }
    return 0;
}

HARNESS_TEST(hist, leaves_out_functions_beyond_256, 60, .size = 3, .setup = setup_many, .env = { "BX_HIST=all" })
{
    char name[BXI_NAME_BYTES];
    int with = 0;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3 * FUNCTIONS; i++) {
            snprintf(name, sizeof(name), "echo%d", i % FUNCTIONS);
            HARNESS_EQ(harness_call_i64(job, bx_worker_name(job, i / FUNCTIONS), name, i), i);
        }
    }
    HARNESS_EQ(hist_count(job), BXI_HIST_MAX);
    for (int i = 0; i < 3 * FUNCTIONS; i++) {
        snprintf(name, sizeof(name), "echo%d", i % FUNCTIONS);
        with += hist_of(job, i / FUNCTIONS, name) != NULL;
        if (i < BXI_HIST_MAX)
            expect(job, i / FUNCTIONS, name, 2);
    }
    HARNESS_EQ(with, BXI_HIST_MAX);
}

static void finds_room_for_one(struct bx_job *job)
{
    call(job, "worker1", "echo", 2);
    call(job, "worker1", "at_once", 5);
    call(job, "worker1", "echo", 3);
    expect(job, 1, "echo", 5);
    HARNESS_EQ(hist_count(job), 1);
    HARNESS_CHECK(hist_of(job, 1, "at_once") == NULL);
}

Test(hist, leaves_out_functions_for_which_dev_shm_has_no_room, .timeout = 30)
{
    harness_mount_shm((unsigned)((2 * bxi_control_used(2) + 2 * BXI_OPEN_BYTES + BXI_PAGE) / 1024));
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { finds_room_for_one },
                                         .env = { "BX_HIST=all" } });
}
