/* SPDX-License-Identifier: MIT */
/*
 * Device tensors to and from a worker that came back: staged through host memory in both directions, while the others
 * still map each other's memory.
 */
#include "device_fixture.h"

#include "tests/job/rejoin_fixture.h"

TestSuite(device_rejoin, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

enum { COUNT = 5000, BYTES = 4 * COUNT, LIVES = 3 };
enum { OPENED = 4, DONE = 5 };           /* gates behind those of the fixture */

HARNESS_HANDLER(lend)
{
    struct bx_job *job = bx_request_job(request);
    OWN(tensor) *tensor = device_numbers(job, device_open(job, 0), COUNT, (int32_t)bx_read_i64(args));

    return bx_msg_put_tensor(reply, tensor);
}

/* Answers how many elements are wrong. */
HARNESS_HANDLER(check)
{
    int32_t first = (int32_t)bx_read_i64(args);
    struct bx_tensor *tensor = bx_read_tensor(args);

    return tensor == NULL ? args->error : bx_msg_put_i64(reply, device_wrong(tensor, first));
}

static void register_both(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_BLOCKING("lend", lend), HARNESS_BLOCKING("check", check));
}

static struct bx_tensor *borrow(struct bx_job *job, const char *from, int first)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_call(job, from, "lend", "i>T", first, &tensor), 0);
    HARNESS_EQ(device_wrong(tensor, first), 0);
    return tensor;
}

static void give(struct bx_job *job, const char *to, struct bx_tensor *tensor, int first)
{
    int64_t wrong = -1;

    HARNESS_EQ(bx_call(job, to, "check", "iT>i", first, tensor, &wrong), 0);
    HARNESS_EQ(wrong, 0);
}

/* The bytes that this worker staged for the calls since `before`. */
static uint64_t staged_since(struct bx_job *job, uint64_t before)
{
    return harness_counter(job, "gpu_staged_bytes") - before;
}

static void others_map(struct bx_job *job, struct bx_tensor *own)
{
    uint64_t before = harness_counter(job, "gpu_staged_bytes");

    give(job, "worker2", own, 1);
    bx_tensor_release(borrow(job, "worker2", 5));
    HARNESS_EQ(staged_since(job, before), BYTES);           /* the copy to the host that borrow checks */
}

static void is_staged_with(struct bx_job *job, struct bx_tensor *own, struct bx_tensor *of_the_dead)
{
    uint64_t before = harness_counter(job, "gpu_staged_bytes");
    OWN(tensor) *fresh = NULL;

    give(job, "worker1", own, 1);
    HARNESS_EQ(staged_since(job, before), BYTES);           /* out */
    fresh = borrow(job, "worker1", 9);
    HARNESS_EQ(staged_since(job, before), 3 * BYTES);       /* and in, and the copy to the host */
    give(job, "worker2", fresh, 9);
    give(job, "worker1", fresh, 9);
    give(job, "worker1", of_the_dead, 7);
    give(job, "worker2", of_the_dead, 7);
}

static void survive(struct bx_job *job)
{
    struct bx_tensor *own = device_numbers(job, device_open(job, 0), COUNT, 1), *of_the_dead;

    harness_post(OPENED);
    harness_await(OPENED, 3);
    of_the_dead = borrow(job, "worker1", 7);
    give(job, "worker1", own, 1);
    for (uint32_t lives = 2; lives <= LIVES; lives++) {
        harness_post(GO_ON);
        await_end_of(job, 1, (int)lives - 1);
        harness_await(OPENED, 2 + lives);
        await_alive(job, 1);
        is_staged_with(job, own, of_the_dead);
        others_map(job, own);
    }
    bx_tensor_release(of_the_dead);
    bx_tensor_release(own);
    harness_post(DONE);
}

static void serve(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPENED);
    harness_await(DONE, 1);
}

static void begin_rank(int index, int rank)
{
    begin_life(index, (struct life){ .rank = rank, .body = rank == 0 ? survive : serve, .setup = register_both });
}

Test(device_rejoin, tensors_of_a_worker_that_came_back_are_staged)
{
    device_world(DEVICE_ANY);
    for (int rank = 0; rank < 3; rank++)
        begin_rank(rank, rank);
    for (uint32_t lives = 2; lives <= LIVES; lives++) {
        harness_await(GO_ON, lives - 1);
        start_is_killed(lives == 2 ? 1 : 3);
        starts[lives == 2 ? 1 : 3].pid = 0;
        begin_rank(3, 1);
    }
    harness_await(DONE, 1);
    harness_post(LAST_WORD);
    start_succeeds(0);
    start_succeeds(2);
    start_succeeds(3);
    device_check_machine();
}

/* ---- without a GPU there ------------------------------------------------------------------------- */

static void survive_without(struct bx_job *job)
{
    struct bx_tensor *own = device_numbers(job, device_open(job, 0), COUNT, 1);

    harness_post(GO_ON);
    await_end_of(job, 1, 1);
    harness_await(OPENED, 1);
    await_alive(job, 1);
    HARNESS_EQ(bx_call(job, "worker1", "check", "iT", 1, own), -ENODEV);
    HARNESS_HAS(bx_error_text(), "worker 'worker1' has no GPU open");
    bx_tensor_release(own);
    harness_post(DONE);
}

static void wait_without(struct bx_job *job)
{
    if (bx_worker_generation(job, bx_job_rank(job)) == 2)
        harness_post(OPENED);
    harness_await(DONE, 1);
}

Test(device_rejoin, tensors_to_a_worker_that_came_back_without_a_gpu_are_refused)
{
    device_world(DEVICE_ANY);
    begin_life(0, (struct life){ .rank = 0, .world_size = 2, .body = survive_without, .setup = register_both });
    begin_life(1, (struct life){ .rank = 1, .world_size = 2, .body = wait_without, .setup = register_both });
    harness_await(GO_ON, 1);
    start_is_killed(1);
    begin_life(3, (struct life){ .rank = 1, .world_size = 2, .body = wait_without, .setup = register_both });
    harness_await(DONE, 1);
    harness_post(LAST_WORD);
    start_succeeds(0);
    start_succeeds(3);
    device_check_machine();
}
