/* SPDX-License-Identifier: MIT */
/*
 * The part of test_kill_steps.c in which worker 3 dies first, and worker 1 within the rounds that follow. Each of the
 * others owns an object to which worker 3 has a reference; workers 0 and 1 have lent it tensors, which it has passed on
 * to worker 2. So workers 0, 1 and 2 ask for entries, and workers 0 and 1 for leases.
 */
#ifndef TESTS_KILL_ASKING_H
#define TESTS_KILL_ASKING_H

#define FIRST_DEAD 3

enum { GIVEN = 16, HELD };      /* gates */

static struct bx_tensor *held[2];
static int held_count;
static struct bx_rref *held_rref[3];
static int held_rref_count;

static const struct bx_type uncounted_type = { .name = "uncounted", .destroy = free };

HARNESS_HANDLER(pass_tensor)
{
    struct bx_msg *out = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_tensor(out, bx_read_tensor(args)), 0);
    HARNESS_EQ(bx_rpc_oneway(bx_request_job(request), "worker2", "hold_tensor", out, NULL), 0);
    bx_msg_destroy(out);
    return 0;
}

HARNESS_HANDLER(hold_tensor)
{
    held[held_count++] = bx_tensor_acquire(bx_read_tensor(args));
    harness_post(HELD);
    return 0;
}

HARNESS_HANDLER(hold_object)
{
    held_rref[held_rref_count++] = bx_rref_acquire(bx_read_rref(args));
    return 0;
}

static int setup_asking(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("pass_tensor", pass_tensor), HARNESS_INLINE("hold_tensor", hold_tensor),
                     HARNESS_INLINE("hold_object", hold_object));
    return setup(job);
}

/* To worker 3. */
static void give_all(struct bx_job *job)
{
    bool counts = bx_job_rank(job) != VICTIM;
    struct bx_msg *args = bx_msg_create(0);
    struct bx_rref *rref = NULL;
    int *object = malloc(sizeof *object);

    *object = 7;
    harness_add(MADE, counts);
    HARNESS_EQ(bx_rref_create(job, counts ? &object_type : &uncounted_type, object, &rref), 0);
    HARNESS_EQ(bx_msg_put_rref(args, rref), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker3", "hold_object", args, NULL, NULL), 0);
    bx_msg_destroy(args);
    bx_rref_release(rref);
    if (bx_job_rank(job) == 2)
        return;
    args = tensors_from(job, (float)bx_job_rank(job), 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker3", "pass_tensor", args, NULL, NULL), 0);
    bx_msg_destroy(args);
}

static void check_held(void)
{
    for (int i = 0; i < held_count; i++) {
        const float *data = bx_tensor_data(held[i]);

        for (int k = 1; k < FLOATS; k++)
            HARNESS_CHECK(data[k] == data[0] + (float)k);
        bx_tensor_release(held[i]);
    }
}

static void asking_survivor(struct bx_job *job)
{
    give_all(job);
    harness_post(GIVEN);
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, FIRST_DEAD) || bx_worker_is_alive(job, VICTIM));
    HARNESS_WAIT_WHILE(harness_load(DESTROYED) != 2);
    check_held();
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

static void asking_victim(struct bx_job *job)
{
    give_all(job);
    take_aim(target, (uint32_t)harness_load(STEP_COUNT), SIGKILL);
    harness_post(GIVEN);
    harness_serve(job);
    harness_failed(__FILE__, __LINE__, "step %s was not reached", target);
}

static void dies_first(struct bx_job *job)
{
    (void)job;
    harness_await(GIVEN, 3);
    harness_await(HELD, 2);
    raise(SIGKILL);
}

static const struct roles asking = { setup_asking, asking_victim, asking_survivor, dies_first };

#define KILLED_ASKING(test, step, passages)                                                         \
    Test(kill_step, test, .timeout = 60)                                                            \
    {                                                                                               \
        for (uint32_t i = 1; i <= (passages); i++) {                                                \
            run_killed(&asking, step, i, false);                                                    \
            cr_expect_eq(harness_load(MADE), 2);                                                    \
        }                                                                                           \
    }

#endif
