/* SPDX-License-Identifier: MIT */
/*
 * bxbench gpu: from the end of the producer's kernel to the beginning of the consumer's, by the device's clock.
 *
 * Worker 0 launches a kernel that works for a while and then writes the time into a tensor, and hands the tensor over
 * at once. Worker 1 orders its stream after the tensor, then launches a kernel that stores the time. The message
 * arrives long before the tensor is ready, so this measures the device's part alone: the write of the ready word
 * after one kernel, the wait of another process's stream for it, the start of a kernel. No host thread waits.
 *
 * Worker 0 calls bench_gpu_clock_run; worker 1 registers the functions.
 */
#include "gpu_clock.h"
#include "gpu_kernels.h"

#include <boxcar_cuda.h>

#define CONSUME "consume"
#define CONSUMED "consumed"
#define DELAY_NS 200000
#define ROUNDS 200

static const char source[] =
#include "bench_gpu.inc"
    ;

/* Of this process, either worker. The stream outlives the job. */
static struct {
    struct bx_cuda *cuda;
    struct bx_kernels *kernels;
    struct bench_gpu_stamp *stamps;         /* worker 1's */
} side;

static int start(int ordinal)
{
    int rc = bx_cuda_open(ordinal, &side.cuda);

    return rc < 0 ? rc : bx_kernels_create(side.cuda, "bench_gpu.cu", source, &side.kernels);
}

void bench_gpu_clock_end(void)
{
    if (side.stamps != NULL)
        bx_cuda_free(side.cuda, side.stamps);
    bx_kernels_destroy(side.kernels);
    bx_cuda_close(side.cuda);
}

/* ---- Worker 1 ---------------------------------------------------------------------------------- */

/* Arguments: the round and the tensor. Round 0 starts a new series. */
static int consume(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    uint64_t round = bx_read_u64(args);
    struct bx_tensor *tensor = bx_read_tensor(args);
    struct bench_gpu_consume consume_args;
    void *stamps = NULL;
    int rc = args->error;

    (void)request, (void)reply, (void)context;
    if (rc < 0 || round >= ROUNDS)
        return rc < 0 ? rc : -1;
    if (side.cuda == NULL) {
        rc = start(bx_tensor_device(tensor).index);
        if (rc == 0)
            rc = bx_cuda_alloc(side.cuda, ROUNDS * sizeof *side.stamps, &stamps);
        side.stamps = stamps;
    }
    if (rc == 0)
        rc = bx_tensor_read_on(tensor, bx_cuda_stream(side.cuda));
    consume_args = (struct bench_gpu_consume){ bx_tensor_data(tensor), side.stamps + round };
    return rc < 0 ? rc : bx_kernel_launch(side.kernels, "bench_gpu_consume", 1, &consume_args);
}

/* The latencies of all rounds, us. */
static int consumed(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    static struct bench_gpu_stamp stamps[ROUNDS];
    double us[ROUNDS];
    int rc = side.stamps == NULL ? -1 : bx_cuda_copy(side.cuda, stamps, side.stamps, sizeof stamps);

    (void)request, (void)args, (void)context;
    if (rc == 0)
        rc = bx_cuda_wait(side.cuda);
    for (size_t i = 0; i < ROUNDS; i++)
        us[i] = 1e-3 * (double)(int64_t)(stamps[i].consumed - stamps[i].produced);
    return rc < 0 ? rc : bx_msg_put_bytes(reply, us, sizeof us);
}

int bench_gpu_clock_register(struct bx_job *job)
{
    int rc = bx_register(job, CONSUME, BX_INLINE, consume, NULL);

    return rc < 0 ? rc : bx_register(job, CONSUMED, BX_INLINE, consumed, NULL);
}

/* ---- Worker 0 ---------------------------------------------------------------------------------- */

static int produce(const struct bench_caller *caller, struct bx_device device, uint64_t round)
{
    const int64_t count = 16;
    struct bx_tensor *tensor = NULL;
    int rc = bx_tensor_create_on(caller->job, device, BX_I64, 1, &count, &tensor);

    if (rc == 0) {
        struct bench_gpu_produce args = { bx_tensor_data_mut(tensor), DELAY_NS };

        rc = bx_kernel_launch(side.kernels, "bench_gpu_produce", 1, &args);
    }
    if (rc == 0)
        rc = bx_tensor_written_on(tensor, bx_cuda_stream(side.cuda));
    if (rc == 0)
        rc = bx_call(caller->job, caller->to, CONSUME, "uT", round, tensor);
    bx_tensor_release(tensor);
    return rc < 0 ? rc : bx_cuda_wait(side.cuda);
}

int bench_gpu_clock_run(struct bench_caller *caller, struct bx_device device, double *p50_us, double *p99_us)
{
    double us[ROUNDS];
    int rc = start(device.index);

    for (uint64_t round = 0; rc == 0 && round < ROUNDS; round++)
        rc = produce(caller, device, round);
    if (rc == 0)
        rc = bx_call(caller->job, caller->to, CONSUMED, ">b", bx_into(us, sizeof us));
    if (rc == 0) {
        *p50_us = bench_median(us, ROUNDS);     /* sorts */
        *p99_us = us[ROUNDS * 99 / 100];
    }
    return rc;
}
