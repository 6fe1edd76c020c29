/* SPDX-License-Identifier: MIT */
/* Part of test_kill_steps.c: killed while workers lend each other tensors. */
#ifndef TESTS_KILL_LENDING_H
#define TESTS_KILL_LENDING_H

#define FLOATS 3000

static struct bx_msg *tensors_from(struct bx_job *job, float first, int count)
{
    struct bx_msg *msg = bx_msg_create(0);

    for (int i = 0; i < count; i++) {
        struct bx_tensor *tensor = NULL;

        HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, &(int64_t){ FLOATS }, &tensor), 0);
        for (int k = 0; k < FLOATS; k++)
            ((float *)bx_tensor_data_mut(tensor))[k] = first + (float)k;
        HARNESS_EQ(bx_msg_put_tensor(msg, tensor), 0);
        bx_tensor_release(tensor);
    }
    return msg;
}

/* Checks every element, to detect memory that was reused too early. */
static void check_tensors(struct bx_reader reader, int count)
{
    HARNESS_EQ(bx_reader_tensors_left(&reader), count);
    while (bx_reader_tensors_left(&reader) > 0) {
        const float *data = bx_tensor_data(bx_read_tensor(&reader));

        for (int k = 1; k < FLOATS; k++)
            HARNESS_CHECK(data[k] == data[0] + (float)k);
    }
}

static struct bx_msg *kept[8];      /* replies of other workers: leases that are held for a while */

HARNESS_HANDLER(swap_tensors)
{
    struct bx_job *job = bx_request_job(request);
    struct bx_msg *made = tensors_from(job, 7, 1);
    struct bx_reader tensor = bx_msg_reader(made);

    check_tensors(*args, 2);
    HARNESS_EQ(bx_msg_put_tensor(reply, bx_read_tensor(&tensor)), 0);
    bx_msg_destroy(made);
    return 0;
}

static int setup_lending(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "swap", BX_INLINE, swap_tensors, NULL), 0);
    return setup(job);
}

/* Both sides of leases, as caller and as callee. Holds the replies of the last eight rounds. */
static int swap_with(struct bx_job *job, const char *to, int round)
{
    struct bx_msg *args = tensors_from(job, (float)round, 2), *reply = NULL;
    int rc = bx_rpc_sync(job, to, "swap", args, NULL, &reply);

    bx_msg_destroy(args);
    if (rc < 0)
        return rc;
    check_tensors(bx_msg_reader(reply), 1);
    if (kept[round % 8] != NULL)
        check_tensors(bx_msg_reader(kept[round % 8]), 1);
    bx_msg_destroy(kept[round % 8]);
    kept[round % 8] = reply;
    return 0;
}

static void lending_victim(struct bx_job *job)
{
    static const char *const others[] = { "worker0", "worker2", "worker3" };

    take_aim(target, (uint32_t)harness_load(STEP_COUNT), SIGKILL);
    for (int round = 0; round < ROUNDS; round++)
        HARNESS_EQ(swap_with(job, others[round % 3], round), 0);
    harness_failed(__FILE__, __LINE__, "step %s was not reached %d times", aim.step,
                   (int)harness_load(STEP_COUNT));
}

static void lending_survivor(struct bx_job *job)
{
    struct bx_loans loans = { 0 };
    int rc, round = 0;

    do {
        rc = swap_with(job, "worker1", round++);
        HARNESS_EQ(swap_with(job, next_survivor(job), round++), 0);
    } while (rc == 0);
    HARNESS_EQ(rc, BX_E_PEER_DEAD);
    /* The memory held of the dead worker is unchanged, while the others reuse theirs. */
    for (int i = 0; i < 50; i++)
        HARNESS_EQ(swap_with(job, next_survivor(job), 1 + 2 * i), 0);
    for (int i = 0; i < 8; i++) {
        if (kept[i] != NULL)
            check_tensors(bx_msg_reader(kept[i]), 1);
        bx_msg_destroy(kept[i]);
        kept[i] = NULL;
    }
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    HARNESS_EQ(bx_job_loans(job, VICTIM, &loans), 0);
    HARNESS_EQ(loans.granted, loans.returned + loans.taken_back);
    HARNESS_EQ(loans.borrowed, 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

static const struct roles lending = { setup_lending, lending_victim, lending_survivor, NULL };

#endif
