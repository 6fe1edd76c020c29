/* SPDX-License-Identifier: MIT */
/*
 * References at the end of a job: what was not released is reported and destroyed, and what outlives its job can only
 * be released. That what was released is not reported is the simulator's (rrefs).
 */
#include "rref_fixture.h"

TestSuite(rref_leak, .timeout = 60);

enum { WARNINGS = 8, LEAKED };                  /* values */
enum { PASSED_ON = 8, HAS_LEFT };    /* gates */

static char warned[1000];
static struct bx_rref *spare;                   /* that the log hook releases: no lock is held while it runs */

static void note(int level, const char *text, void *context)
{
    (void)context;
    if (level != 1 || strstr(text, "object of type") == NULL)
        return;
    snprintf(warned, sizeof warned, "%s", text);
    harness_add(WARNINGS, 1);
    bx_rref_release(spare);
    spare = NULL;
}

static int setup_noting(struct bx_job *job)
{
    bx_set_log(note, NULL);
    return setup(job);
}

static void shut_down(struct bx_job *job)
{
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    harness_check_rescued(job);
    harness_add(LEAKED, harness_counter(job, "rrefs_leaked"));
}

/* ---- What is not released --------------------------------------------------------------------------------- */

static void forgets(struct bx_job *job)
{
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 5);

    harness_leaves_by_itself();
    HARNESS_EQ(add_to(rref, 1), 6);
    shut_down(job);
    HARNESS_EQ(bx_rref_sync(rref, "add", NULL, NULL, NULL), BX_E_SHUTDOWN);
    bx_job_destroy(job);
    HARNESS_EQ(bx_rref_sync(rref, "add", NULL, NULL, NULL), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_SHUTDOWN);
    HARNESS_EQ(bx_rref_owner(rref), 1);
    HARNESS_CHECK(!bx_rref_is_owner(rref));
    HARNESS_CHECK(bx_rref_acquire(rref) == rref);
    bx_rref_release(rref);
    bx_rref_release(rref);
}

static void reports(struct bx_job *job)
{
    harness_leaves_by_itself();
    HARNESS_EQ(bx_rref_create(job, &counter_type, new_counter_of(1), &spare), 0);
    shut_down(job);
    HARNESS_EQ(alive(), 0);
    HARNESS_EQ(harness_load(WARNINGS), 1);
    HARNESS_HAS(warned, "worker 'worker0' still refers");
    HARNESS_HAS(warned, "type 'counter' of worker 'worker1'");
    HARNESS_EQ(harness_counter(job, "rrefs_leaked"), 1);
    bx_job_destroy(job);
    HARNESS_EQ(harness_load(DESTROYED), 2);
}

Test(rref_leak, of_another_worker_is_reported_with_type_and_holder_and_destroyed)
{
    for (int i = 0; i < 20; i++) {
        harness_reset();
        harness_run(&(struct harness_world){ .size = 2, .setup = setup_noting, .body = { forgets, reports } });
        cr_assert_eq(harness_load(LEAKED), 1);
    }
}

HARNESS_TEST(rref_leak, of_its_own_is_reported_and_destroyed_with_the_job, 60, .size = 2, .setup = setup_noting)
{
    OWN(rref) *rref = NULL;

    harness_leaves_by_itself();
    HARNESS_EQ(bx_rref_create(job, &counter_type, new_counter_of(1), &rref), 0);
    shut_down(job);
    HARNESS_EQ(alive(), 1);                         /* its own references are good until bx_job_destroy */
    HARNESS_EQ(harness_load(WARNINGS), 0);
    bx_job_destroy(job);
    HARNESS_EQ(alive(), 0);
    HARNESS_EQ(harness_load(WARNINGS), 1);
    HARNESS_HAS(warned, "type 'counter'");
    HARNESS_HAS(warned, "worker 'worker0' itself");
    HARNESS_EQ(bx_rref_local(rref, &counter_type, &(void *){ NULL }), BX_E_SHUTDOWN);
    HARNESS_CHECK(!bx_rref_is_owner(rref));
}

/* ---- Leaving without a shutdown --------------------------------------------------------------------------- */

/* worker1 is gone without a word, with references: its owner gets them back at once. */
static void leaves_without_shutdown(struct bx_job *job)
{
    OWN(rref) *rref = remote(job, "worker0", "new_counter", 1), *other = remote(job, "worker2", "new_counter", 2);

    harness_leaves_by_itself();
    HARNESS_EQ(add_to(rref, 1), 2);
    HARNESS_EQ(add_to(other, 1), 3);
    HARNESS_EQ(alive(), 2);
    bx_job_destroy(job);
    harness_post(HAS_LEFT);
}

static void gets_it_back(struct bx_job *job)
{
    harness_await(HAS_LEFT, 1);
    await_alive(0);
    HARNESS_EQ(harness_counter(job, "peers_dead"), 0);
}

HARNESS_WORLD(rref_leak, of_a_worker_that_destroys_its_job_at_once_is_none, 60, .size = 3, .setup = setup_noting,
              .body = { gets_it_back, leaves_without_shutdown, gets_it_back });

static void count_free(void *context)
{
    (*(int *)context)++;
}

/* With own_loop nothing is read before the job ends: the message brings back its reference and its tensor. */
HARNESS_TEST(rref_leak, is_none_of_a_message_to_oneself_that_is_not_read, 60, .size = 2, .setup = setup_noting,
             .options = { .own_loop = true })
{
    static char data[4];
    int freed = 0;
    struct bx_rref *rref = own_counter(job, 1);
    struct bx_msg *args = msg_of(rref);
    struct bx_tensor *tensor = NULL;

    harness_leaves_by_itself();
    HARNESS_EQ(bx_tensor_wrap(data, BX_U8, 1, (const int64_t[]){ 4 }, NULL, count_free, &freed, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "keep", args, NULL), 0);
    bx_tensor_release(tensor);
    bx_rref_release(rref);
    bx_msg_destroy(args);
    HARNESS_EQ(alive(), 1);
    bx_job_destroy(job);
    HARNESS_EQ(alive(), 0);
    HARNESS_EQ(freed, 1);
    HARNESS_EQ(harness_load(WARNINGS), 0);
}

/* Calls on an object that is to come are still kept when the job is destroyed. */
static void makes_slowly(struct bx_job *job)
{
    struct bx_rref *rref = remote(job, "worker1", "new_slow", 1);
    struct bx_msg *args = harness_msg_i64(1);
    struct bx_future *future = NULL;

    harness_leaves_by_itself();
    for (int i = 0; i < 3; i++) {
        HARNESS_EQ(bx_rref_oneway(rref, "add", args, NULL), 0);
        HARNESS_EQ(bx_rref_async(rref, "add_blocking", args, NULL, &future), 0);
        bx_future_release(future);
    }
    HARNESS_EQ(harness_call(job, "worker1", "new_nothing", NULL), 1);   /* they are parked */
    harness_post(PASSED_ON);
    harness_await(HAS_LEFT, 1);
    bx_msg_destroy(args);
    bx_rref_release(rref);
    bx_job_destroy(job);
}

static void leaves_with_parked_calls(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(PASSED_ON, 1);
    harness_post(MAY_BE_MADE);
    bx_job_destroy(job);
    HARNESS_CHECK(strstr(warned, "itself") == NULL);
    harness_post(HAS_LEFT);
}

Test(rref_leak, is_none_of_calls_that_wait_for_an_object)
{
    for (int i = 0; i < 10; i++) {
        harness_reset();
        harness_run(&(struct harness_world){ .size = 2, .setup = setup_noting,
                                             .body = { makes_slowly, leaves_with_parked_calls } });
        cr_assert_eq(alive(), 0);
    }
}
