/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/nested.c: bx_request_on_cancel, the hook of a blocking handler, and bx_request_is_cancelled. Worker 0 calls,
 * the handlers run at worker 1.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#include <semaphore.h>

#define RACES 3000
#define MAGIC 0x5a5a5a5au

enum { ENTERED, CANCELLED, DONE, IN_HOOK };     /* gates */
enum { HOOKS, FREED, ON_TIME };                 /* values */

/* Returns when worker 1 has read all that this worker has sent. */
static void await_read(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "nothing", NULL, NULL, NULL), 0);
}

/* ---- once, and when -------------------------------------------------------------------------------- */

static void wake(void *context)
{
    sem_t *sem = context;

    harness_add(HOOKS, 1);
    sem_post(sem);
}

HARNESS_HANDLER(wait_elsewhere)
{
    sem_t sem;

    sem_init(&sem, 0, 0);
    HARNESS_EQ(bx_request_on_cancel(request, wake, &sem), 0);
    HARNESS_EQ(harness_load(HOOKS), 0);
    harness_post(ENTERED);
    while (sem_wait(&sem) < 0)
        ;
    HARNESS_CHECK(bx_request_is_cancelled(request));
    HARNESS_EQ(bx_request_on_cancel(request, NULL, NULL), 0);
    HARNESS_EQ(harness_load(HOOKS), 1);
    HARNESS_EQ(bx_request_on_cancel(request, wake, &sem), 0);       /* at once */
    HARNESS_EQ(harness_load(HOOKS), 2);
    sem_destroy(&sem);
    harness_post(DONE);
    return 0;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("nothing", harness_nothing), HARNESS_BLOCKING("wait", wait_elsewhere));
}

HARNESS_TEST(on_cancel, hook_ends_a_wait_of_the_program, 20, .size = 2, .setup = setup)
{
    struct bx_future *future = harness_async(job, "worker1", "wait");

    harness_await(ENTERED, 1);
    harness_cancel(future);
    harness_await(DONE, 1);
}

static void dies(struct bx_job *job)
{
    harness_leaves_by_itself();
    bx_future_release(harness_async(job, "worker1", "wait"));
    harness_await(ENTERED, 1);
    raise(SIGKILL);
}

Test(on_cancel, hook_runs_when_the_caller_is_killed, .timeout = 20)
{
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup, .body = { dies, harness_serve }, .dies = 1u << 0 });
    cr_expect_eq(harness_gate(DONE), 1);
}

HARNESS_BODY(stops_the_caller)
{
    harness_await(ENTERED, 1);
    harness_stop_worker(0);
    harness_await(DONE, 1);
    harness_post(CANCELLED);
    harness_signal(0, SIGCONT);
}

/* Nobody sends a cancel: the caller is stopped. The hook runs at the deadline all the same. */
HARNESS_TEST(on_cancel, hook_runs_at_the_deadline_of_a_caller_that_is_stopped, 20, .size = 3, .setup = setup,
             .body = { NULL, NULL, stops_the_caller })
{
    const struct bx_call_options options = { .timeout_ns = 500 * HARNESS_MS };
    OWN(future) *future = NULL;

    HARNESS_EQ(bx_rpc_async(job, "worker1", "wait", NULL, &options, &future), 0);
    harness_await(CANCELLED, 1);
    bx_future_wait(future, BX_FOREVER);         /* its deadline and its answer have come meanwhile */
}

/* ---- removing it ------------------------------------------------------------------------------------ */

static void count(void *context)
{
    harness_add(HOOKS + (int)(intptr_t)context, 1);
}

HARNESS_HANDLER(replace_and_remove)
{
    HARNESS_EQ(bx_request_on_cancel(request, count, (void *)(intptr_t)10), 0);
    HARNESS_EQ(bx_request_on_cancel(request, count, (void *)(intptr_t)11), 0);
    if (context != NULL)
        HARNESS_EQ(bx_request_on_cancel(request, NULL, NULL), 0);
    harness_post(ENTERED);
    harness_await(CANCELLED, 1);
    HARNESS_WAIT_WHILE(!bx_request_is_cancelled(request));
    HARNESS_WAIT_WHILE(context == NULL && harness_load(HOOKS + 11) == 0);
    harness_post(DONE);
    return 0;
}

/* Its hook is removed when it has returned. */
HARNESS_HANDLER(set_and_return)
{
    return bx_request_on_cancel(request, count, (void *)(intptr_t)12);
}

static int setup_removing(struct bx_job *job)
{
    static int removes;

    HARNESS_EQ(bx_register(job, "replace", BX_BLOCKING, replace_and_remove, NULL), 0);
    HARNESS_EQ(bx_register(job, "remove", BX_BLOCKING, replace_and_remove, &removes), 0);
    HARNESS_EQ(bx_register(job, "return", BX_BLOCKING, set_and_return, NULL), 0);
    return setup(job);
}

static void cancels_and_reads(struct bx_job *job, const char *function)
{
    struct bx_future *future = harness_async(job, "worker1", function);

    harness_await(ENTERED, 1);
    harness_cancel(future);
    await_read(job);
    harness_post(CANCELLED);
    harness_await(DONE, 1);
    await_read(job);
}

HARNESS_TEST(on_cancel, new_hook_replaces_the_one_before, 20, .size = 2, .setup = setup_removing)
{
    cancels_and_reads(job, "replace");
    HARNESS_EQ(harness_load(HOOKS + 10), 0);
    HARNESS_EQ(harness_load(HOOKS + 11), 1);
}

HARNESS_TEST(on_cancel, removed_hook_does_not_run, 20, .size = 2, .setup = setup_removing)
{
    cancels_and_reads(job, "remove");
    HARNESS_EQ(harness_load(HOOKS + 10), 0);
    HARNESS_EQ(harness_load(HOOKS + 11), 0);
}

/* Longer than the deadline, for a timer that was not removed. */
static void outlives(struct bx_job *job)
{
    uint64_t until_ns = bxi_now_ns() + 600 * HARNESS_MS;
    struct bx_future *never = bx_future_create(job);

    HARNESS_EQ(bx_future_wait(never, until_ns - bxi_now_ns()), BX_E_TIMEOUT);
    bx_future_release(never);
    HARNESS_EQ(harness_load(HOOKS + 12), 0);
}

HARNESS_TEST(on_cancel, hook_does_not_run_when_the_request_was_answered, 20, .size = 2, .setup = setup_removing,
             .body = { NULL, outlives }, .dies = 1u << 0)
{
    const struct bx_call_options options = { .timeout_ns = 300 * HARNESS_MS };

    harness_leaves_by_itself();
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "return", NULL, &options, NULL), 0);
    raise(SIGKILL);
}

/* ---- while it runs ----------------------------------------------------------------------------------- */

struct local {
    uint32_t magic;
    uint32_t runs;
};

static void run_slowly(void *context)
{
    struct local *local = context;

    harness_add(HOOKS, 1);
    for (int i = 0; i < 200; i++) {
        if (__atomic_load_n(&local->magic, __ATOMIC_RELAXED) != MAGIC)
            harness_failed(__FILE__, __LINE__, "the hook runs when it was removed");
        bxi_pause();
    }
    local->runs++;
}

/* The cancel comes before, in the middle or after. */
HARNESS_HANDLER(race)
{
    struct local local = { .magic = MAGIC };
    int64_t spins = bx_read_i64(args) % 3000;

    HARNESS_EQ(bx_request_on_cancel(request, run_slowly, &local), 0);
    harness_post(ENTERED);
    while (spins-- > 0)
        bxi_pause();
    HARNESS_EQ(bx_request_on_cancel(request, NULL, NULL), 0);
    HARNESS_CHECK(local.runs <= 1);
    __atomic_store_n(&local.magic, 0, __ATOMIC_RELAXED);
    return 0;
}

HARNESS_TEST(on_cancel, hook_and_its_removal_race, 60, .size = 2, .setup = setup,
             .handlers = { HARNESS_BLOCKING("race", race) })
{
    for (int i = 0; i < RACES; i++) {
        OWN(msg) *args = harness_msg_i64(i);
        OWN(future) *future = NULL;
        uint32_t before = harness_gate(ENTERED);

        HARNESS_EQ(bx_rpc_async(job, "worker1", "race", args, NULL, &future), 0);
        if (i % 16 != 0)            /* a handler has set its hook: this one's, or one before */
            harness_await(ENTERED, before + 1);
        bx_future_cancel(future);               /* or it is done */
    }
    await_read(job);
}

/* The hook ends only when the handler has returned, and a little later. The reply is freed when that was waited for. */
static bxi_a32 has_returned, in_hook;

static void outlast(void *context)
{
    (void)context;
    bxi_store_release(&in_hook, 1);             /* [test.in_hook] release, pairs with the acquire in return_early */
    harness_post(IN_HOOK);
    HARNESS_WAIT_WHILE(bxi_load_relaxed(&has_returned) == 0);
    for (int i = 0; i < 1000; i++)
        sched_yield();
    bxi_store_release(&in_hook, 0);             /* [test.in_hook] release, pairs with the acquire in freed */
}

static void freed(void *data)
{
    free(data);
    harness_store(FREED, 1);
    /* [test.in_hook] acquire, pairs with the release in outlast. */
    harness_store(ON_TIME, bxi_load_acquire(&in_hook) == 0);
    harness_post(DONE);
}

HARNESS_HANDLER(return_early)
{
    struct bx_tensor *tensor = NULL;
    void *data = calloc(1, 8);

    HARNESS_EQ(bx_tensor_wrap(data, BX_U8, 1, &(int64_t){ 8 }, NULL, freed, data, &tensor), 0);
    bx_msg_put_tensor(reply, tensor);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_request_on_cancel(request, outlast, NULL), 0);
    harness_post(ENTERED);
    harness_await(IN_HOOK, 1);
    /* [test.in_hook] acquire, pairs with the release in outlast. */
    HARNESS_EQ(bxi_load_acquire(&in_hook), 1);
    bxi_store_relaxed(&has_returned, 1);
    return 0;
}

HARNESS_TEST(on_cancel, answer_waits_for_a_hook_that_runs, 20, .size = 2, .setup = setup,
             .handlers = { HARNESS_BLOCKING("return_early", return_early) })
{
    struct bx_future *future = harness_async(job, "worker1", "return_early");

    harness_await(ENTERED, 1);
    harness_cancel(future);
    harness_await(DONE, 1);
    HARNESS_EQ(harness_load(ON_TIME), 1);
}

/* A hook that ends its thread: the thread is replaced, and the handler goes on. */
static void leave(void *context)
{
    (void)context;
    harness_add(HOOKS, 1);
    pthread_exit(NULL);
}

HARNESS_HANDLER(survive)
{
    HARNESS_EQ(bx_request_on_cancel(request, leave, NULL), 0);
    harness_post(ENTERED);
    HARNESS_WAIT_WHILE(harness_load(HOOKS) == 0);
    HARNESS_EQ(bx_request_on_cancel(request, NULL, NULL), 0);
    harness_post(DONE);
    return 0;
}

HARNESS_TEST(on_cancel, hook_may_end_its_thread, 20, .size = 2, .setup = setup,
             .handlers = { HARNESS_BLOCKING("survive", survive) })
{
    struct bx_future *future = harness_async(job, "worker1", "survive");

    harness_await(ENTERED, 1);
    harness_cancel(future);
    harness_await(DONE, 1);
    await_read(job);
}

/* ---- who has one ------------------------------------------------------------------------------------- */

static int refuse(const struct bx_request *request)
{
    HARNESS_EQ(bx_request_on_cancel(request, count, NULL), -EINVAL);
    HARNESS_HAS(bx_error_text(), bx_request_function(request));
    HARNESS_CHECK(!bx_request_is_cancelled(request));
    return 0;
}

HARNESS_HANDLER(inline_asks)
{
    return refuse(request);
}

HARNESS_ASYNC_HANDLER(async_asks)
{
    *reply = bx_future_create(bx_request_job(request));
    HARNESS_EQ(bx_future_set(*reply, NULL), 0);
    return refuse(request);
}

/* It learns of the deadline, and of nothing else. */
HARNESS_HANDLER(inline_stays)
{
    while (!bx_request_is_cancelled(request))
        bxi_pause();
    HARNESS_CHECK(bx_request_deadline_ns(request) <= bxi_now_ns());
    return 0;
}

HARNESS_TEST(on_cancel, hook_is_for_blocking_handlers, 20, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("inline_asks", inline_asks), HARNESS_ASYNC("async_asks", async_asks),
                           HARNESS_INLINE("stays", inline_stays) })
{
    const struct bx_call_options hasty = { .timeout_ns = 100 * HARNESS_MS };

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "inline_asks", NULL, NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "async_asks", NULL, NULL, NULL), 0);
    bx_rpc_sync(job, "worker1", "stays", NULL, &hasty, NULL);       /* answered, or given up just before */
}
