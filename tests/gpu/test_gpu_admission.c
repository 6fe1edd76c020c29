/* SPDX-License-Identifier: MIT */
/*
 * The admission of waits to a device (gpu/admission.c), asked directly: the tests close it in place of the helper. One
 * process opens the GPU; a second one, where there is one, owns the words that are waited for.
 */
#include "gpu_fixture.h"

enum { MET, POISONED, SEEN };

static void is_owner(void)
{
    gpu_start_pair(0);
    gpu_await(SEEN, 1);
    gpu_end();
}

/* Two threads may put waits on one stream: the job's own stream of a device is used by all. */
static void puts_twice(void)
{
    struct bxi_gpu_point point = { .order = BXI_GPU_HOST_WORDS, .lane = 0, .value = 1 };

    gpu_start_pair(1);
    GPU_EQ(bxi_gpu_admission_enter(gpu_lane, gpu_peer[0], &point), 0);
    GPU_EQ(bxi_gpu_admission_enter(gpu_lane, gpu_peer[0], &point), 0);
    bxi_gpu_admission_leave(gpu_lane);
    GPU_CHECK(!bxi_gpu_admission_close(gpu_device));         /* the other thread has not put its wait yet */
    bxi_gpu_admission_leave(gpu_lane);
    GPU_CHECK(bxi_gpu_admission_close(gpu_device));
    bxi_gpu_admission_open(gpu_device);
    gpu_post(SEEN);
    gpu_end();
}

GPU_PAIR(gpu_admission, stays_open_until_each_of_two_threads_has_put_its_wait, 30,
         (gpu_order = BXI_GPU_HOST_WORDS, GPU_FAKE), is_owner, puts_twice);

/* A stream that waits for something else than the word, as for an event; the word is poisoned, as its owner does when
 * it closes with work that does not end. */
static void sees_poison(void)
{
    struct bxi_gpu_point point = { .order = BXI_GPU_EVENTS, .lane = 0, .value = 1 };
    bxi_a64 *word = &gpu_shared->region[0].word[0].value;
    struct CUstream_st *stream;
    struct bxi_gpu_block *gate;

    gpu_start_pair(1);
    stream = gpu_lane->stream;
    gate = gpu_block(8);
    gpu_fill(gpu_lane, gate->address, 0, 8);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(bxi_gpu_admission_enter(gpu_lane, gpu_peer[0], &point), 0);
    GPU_EQ(gpu->cu.cuStreamWaitValue64_v2(stream, gate->address, 1, 0), CUDA_SUCCESS);
    bxi_gpu_admission_leave(gpu_lane);
    bxi_store_release(word, BXI_GPU_POISON);
    GPU_CHECK(!bxi_gpu_admission_close(gpu_device));
    GPU_EQ(gpu->cu.cuStreamWriteValue64_v2(gpu_device->side, gate->address, 1, 0), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    GPU_CHECK(bxi_gpu_admission_close(gpu_device));
    bxi_gpu_admission_open(gpu_device);
    bxi_store_release(word, 0);
    bxi_gpu_free(gate);
    gpu_post(SEEN);
    gpu_end();
}

GPU_PAIR(gpu_admission, stays_open_while_a_stream_waits_for_an_event_whose_word_is_poisoned, 30,
         (gpu_order = BXI_GPU_EVENTS, GPU_FAKE), is_owner, sees_poison);

/* The progress role joins the streams of a loan in this way: it must not wait for a free. */
static void waits_for_itself(void)
{
    struct bxi_gpu_point first, second;
    struct bxi_gpu_lane *other;
    uint64_t begin_ns;

    gpu_start(0);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &other), 0);
    GPU_CHECK(bxi_gpu_admission_close(gpu_device));
    begin_ns = bxi_gpu_now_ns();
    for (int i = 0; i < 100; i++) {
        GPU_EQ(bxi_gpu_mark(other, &first), 0);
        GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &first), 0);
        GPU_EQ(bxi_gpu_mark(gpu_lane, &second), 0);
        GPU_EQ(bxi_gpu_after(other, NULL, &second), 0);
    }
    GPU_CHECK(bxi_gpu_now_ns() - begin_ns < UINT64_C(900000000));
    bxi_gpu_admission_open(gpu_device);
    gpu_end();
}

Test(gpu_admission, does_not_hold_up_waits_for_points_of_the_same_device, .timeout = 30)
{
    gpu_world(GPU_FAKE);
    gpu_order = BXI_GPU_HOST_WORDS;
    gpu_run(1, (gpu_fn[]){ waits_for_itself });
}

/* ---- Streams that always wait ---------------------------------------------------------------- */

static bxi_a64 put;                     /* the value for which a wait was put last */
static bxi_a32 stops;

static bxi_a64 *awaited_word(void)
{
    return &gpu_shared->region[0].word[0].value;
}

/* Puts the next wait before the last one ends. */
static void *always_waits(void *unused)
{
    struct bxi_gpu_point point = { .order = BXI_GPU_HOST_WORDS, .lane = 0, .value = 1 };

    for (; bxi_load_acquire(&stops) == 0; point.value++) {
        GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &point), 0);
        bxi_store_release(&put, point.value);
        while (bxi_load_acquire(awaited_word()) + 1 < point.value && bxi_load_acquire(&stops) == 0)
            sched_yield();
    }
    return unused;
}

/* In place of the owner: ends all waits but the last, and the last when no more come. */
static void *ends_waits(void *unused)
{
    uint64_t before = 0;
    int same = 0;

    while (bxi_load_acquire(&stops) == 0) {
        uint64_t value = bxi_load_acquire(&put);

        usleep(1000);
        same = value == before ? same + 1 : 0;
        before = value;
        if (value > 0)
            bxi_store_release(awaited_word(), same < 30 ? value - 1 : value);
    }
    return unused;
}

static void frees_beside_waits(void)
{
    struct bxi_gpu_block *block;
    pthread_t threads[2];
    uint64_t end_ns;

    gpu_start_pair(1);
    block = gpu_block(64 * GPU_MIB);
    GPU_EQ(pthread_create(&threads[0], NULL, always_waits, NULL), 0);
    GPU_EQ(pthread_create(&threads[1], NULL, ends_waits, NULL), 0);
    while (bxi_load_acquire(&put) < 3)
        sched_yield();
    bxi_gpu_free(block);
    (void)bxi_gpu_trim(gpu_device);
    end_ns = bxi_gpu_now_ns() + UINT64_C(10000000000);
    while (gpu_counters().slabs_retired == 0) {
        GPU_CHECK(bxi_gpu_now_ns() < end_ns);
        (void)bxi_gpu_poll(gpu);
        usleep(1000);
    }
    bxi_store_release(&stops, 1);
    for (int i = 0; i < 2; i++)
        GPU_EQ(pthread_join(threads[i], NULL), 0);
    bxi_store_release(awaited_word(), bxi_load_acquire(&put) + 1);
    gpu_end();
    bxi_store_release(awaited_word(), 0);
    gpu_post(SEEN);
}

GPU_PAIR(gpu_admission, lets_memory_be_freed_beside_streams_that_always_wait, 40,
         (gpu_order = BXI_GPU_HOST_WORDS, GPU_FAKE), is_owner, frees_beside_waits);
