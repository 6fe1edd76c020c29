/* SPDX-License-Identifier: MIT */
/*
 * bxi_gpu_abandon beside threads that are still at work: the helper in a callback, and a thread that waits on the host.
 */
#include "gpu_fixture.h"

#define BYTES (64u << 10)
#define CALL_US 400000

enum { MET, LENT, SEEN };

static bxi_a32 is_called, has_returned;

static void lends(void)
{
    struct bxi_gpu_block *block;

    gpu_start_pair(0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    gpu_post(LENT);
    gpu_end_lending(block, SEEN);
}

static void lingers(void *context, int rc)
{
    (void)context;
    (void)rc;
    bxi_store_release(&is_called, 1);
    usleep(CALL_US);
    bxi_store_release(&has_returned, 1);
}

static void leaves_during_a_callback(void)
{
    gpu_start_pair(1);
    gpu_await(LENT, 1);
    GPU_EQ(bxi_gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0], lingers, NULL), 0);
    while (bxi_load_acquire(&is_called) == 0)
        sched_yield();
    bxi_gpu_abandon(gpu);
    GPU_EQ(bxi_load_acquire(&has_returned), 1);         /* what it works on may be freed now */
    gpu_post(SEEN);
}

GPU_PAIR(gpu_abandon, waits_for_a_callback_that_runs, 30, (gpu_order = BXI_GPU_HOST_WORDS, GPU_FAKE), lends,
         leaves_during_a_callback);

static void *waits(void *unused)
{
    struct bxi_gpu_point point = { .order = BXI_GPU_HOST_WORDS, .lane = 0, .value = 1 };

    bxi_store_release(&is_called, 1);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &point), -ECANCELED);
    GPU_SAYS("was closed");
    bxi_store_release(&has_returned, 1);
    return unused;
}

/* No stream of the device can wait for the peer's words: the host does, and the peer never marks. */
static void leaves_a_thread_that_waits(void)
{
    pthread_t thread;
    uint64_t end_ns;

    gpu_start_pair(1);
    GPU_CHECK(bxi_gpu_helper_drain(&gpu->helper, bxi_gpu_now_ns() + UINT64_C(5000000000)));
    gpu_peer[0]->host_words = 0;
    GPU_EQ(pthread_create(&thread, NULL, waits, NULL), 0);
    while (bxi_load_acquire(&is_called) == 0)
        sched_yield();
    usleep(CALL_US / 4);
    bxi_gpu_abandon(gpu);
    end_ns = bxi_gpu_now_ns() + UINT64_C(10000000000);
    while (bxi_load_acquire(&has_returned) == 0)
        GPU_CHECK(bxi_gpu_now_ns() < end_ns);
    GPU_EQ(pthread_join(thread, NULL), 0);
    gpu_post(SEEN);
}

GPU_PAIR(gpu_abandon, ends_a_wait_of_the_host, 30, (gpu_order = BXI_GPU_HOST_WORDS, GPU_FAKE), lends,
         leaves_a_thread_that_waits);
