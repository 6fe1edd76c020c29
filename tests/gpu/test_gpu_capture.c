/* SPDX-License-Identifier: MIT */
/*
 * gpu/ beside a program that captures streams into CUDA graphs. The fake driver refuses and invalidates what the
 * documentation says; a real one is not asked, because a capture there needs work that is worth a graph.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

#include <dlfcn.h>

TestSuite(gpu_capture, .timeout = 60);

enum { MODE_GLOBAL, MODE_THREAD_LOCAL };        /* CUstreamCaptureMode */

struct CUgraph_st;
static void find(void *function, const char *name)
{
    void *symbol = dlsym(gpu->cu.library, name);

    GPU_CHECK(symbol != NULL);
    memcpy(function, &symbol, sizeof(symbol));
}

static void begin_capture(struct CUstream_st *stream, unsigned mode)
{
    unsigned (*begin)(struct CUstream_st *stream, unsigned mode);

    find(&begin, "cuStreamBeginCapture_v2");
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(begin(stream, mode), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
}

/* CUDA_SUCCESS: nothing has invalidated the capture. */
static unsigned end_capture(struct CUstream_st *stream)
{
    unsigned (*end)(struct CUstream_st *stream, struct CUgraph_st **graph);
    struct CUgraph_st *graph = NULL;

    find(&end, "cuStreamEndCapture");
    return end(stream, &graph);
}

/* ---- The lane's own stream -------------------------------------------------------------------- */

static void marks_while_captured(void)
{
    struct bxi_gpu_point late = { .order = BXI_GPU_HOST_WORDS, .lane = BXI_GPU_LANES - 1, .value = 5 };
    struct bxi_gpu_point before, point;
    struct bxi_gpu_block *block;
    unsigned char bytes[64];

    gpu_start(0);
    block = gpu_block(2 * sizeof(bytes));
    GPU_EQ(bxi_gpu_mark(gpu_lane, &before), 0);
    begin_capture(gpu_lane->stream, MODE_THREAD_LOCAL);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), -EBUSY);
    GPU_SAYS("a mark on a lane while its stream is captured");
    GPU_EQ(bxi_gpu_after(gpu_lane, NULL, &late), -EBUSY);
    GPU_EQ(bxi_gpu_copy(gpu_lane, block->address, block->address + sizeof(bytes), sizeof(bytes)), -EBUSY);
    GPU_EQ(bxi_gpu_stage_out(gpu_lane, bytes, block->address, sizeof(bytes)), -EBUSY);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), -EBUSY);
    (void)bxi_gpu_poll(gpu);
    GPU_EQ(end_capture(gpu_lane->stream), CUDA_SUCCESS);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    GPU_EQ(point.value, before.value + 1);
    gpu_wait_passed(NULL, &point);
    bxi_gpu_free(block);
    gpu_end();
}

static void run(enum bxi_gpu_order wanted, gpu_fn body)
{
    gpu_world(GPU_FAKE);
    gpu_order = wanted;
    gpu_run(1, (gpu_fn[]){ body });
}

Test(gpu_capture, refuses_marks_and_waits_and_stays_valid) { run(BXI_GPU_HOST_WORDS, marks_while_captured); }

Test(gpu_capture, refuses_marks_of_events_and_stays_valid) { run(BXI_GPU_EVENTS, marks_while_captured); }

/* A lane with marks of events under way closes while its stream is captured, so nobody can wait for it. The marks come
 * later: neither the word nor the next lane of that index sees them. */
static void closes_while_captured(void)
{
    bxi_a64 *word = &gpu_shared->region[0].word[0].value, *gate;
    struct CUstream_st *stream = NULL;
    struct bxi_gpu_point point;

    gpu_start(0);
    bxi_gpu_lane_close(gpu_lane);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, stream, &gpu_lane), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    gpu_wait_passed(NULL, &point);
    gate = gpu_gate(stream);
    for (int i = 0; i < 3; i++)
        GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    begin_capture(stream, MODE_THREAD_LOCAL);
    bxi_gpu_lane_close(gpu_lane);
    GPU_EQ(bxi_load_acquire(word), BXI_GPU_POISON | 1);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &gpu_lane), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    GPU_EQ(point.value, 5);
    gpu_wait_passed(NULL, &point);
    bxi_store_release(gate, 1);
    GPU_EQ(end_capture(stream), CUDA_SUCCESS);
    GPU_EQ(gpu->cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
    GPU_EQ(bxi_load_acquire(word), 5);
    bxi_gpu_leave(gpu_device);
    gpu_end();
}

Test(gpu_capture, of_a_lane_that_closes_with_marks_of_events_under_way)
{
    fake_skip_few_queues("the next lane shares a queue with the stream that is held up");
    fake_skip_under("FAKE_CUDA_BLOCKING", "it makes a stream before it ends a wait of one");
    run(BXI_GPU_EVENTS, closes_while_captured);
}

/* ---- Another stream, captured by the program in the default mode ------------------------------- */

static void use_the_pool(void)
{
    struct bxi_gpu_block *block = gpu_block(8 * GPU_MIB);       /* more than any slab has: allocates */
    struct bxi_gpu_lane *lane;
    struct bxi_gpu_point point;

    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &lane), 0);
    GPU_EQ(bxi_gpu_mark(lane, &point), 0);
    gpu_wait_passed(NULL, &point);
    bxi_gpu_lane_close(lane);
    bxi_gpu_free(block);
    GPU_CHECK(bxi_gpu_trim(gpu_device) > 0);
    gpu_poll_until_nothing_is_left();           /* the helper frees */
}

static void *uses_the_pool(void *context)
{
    use_the_pool();
    return context;
}

static void captures_and_goes_on(void)
{
    struct CUstream_st *stream = NULL;
    unsigned mode = MODE_THREAD_LOCAL;
    pthread_t thread;

    gpu_start(0);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    begin_capture(stream, MODE_GLOBAL);
    GPU_EQ(pthread_create(&thread, NULL, uses_the_pool, NULL), 0);
    GPU_EQ(pthread_join(thread, NULL), 0);
    use_the_pool();                             /* the thread that captures */
    GPU_EQ(end_capture(stream), CUDA_SUCCESS);
    GPU_EQ(gpu->cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    GPU_EQ(mode, MODE_GLOBAL);                  /* as the program has it */
    gpu_end();
}

Test(gpu_capture, of_another_stream_is_not_disturbed) { run(BXI_GPU_HOST_WORDS, captures_and_goes_on); }
Test(gpu_capture, of_another_stream_is_not_disturbed_by_events) { run(BXI_GPU_EVENTS, captures_and_goes_on); }
