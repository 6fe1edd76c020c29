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
#include <stdlib.h>

#define CONSUME "consume"
#define CONSUMED "consumed"
#define DELAY_NS 200000

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
    if (rc < 0 || round >= BENCH_GPU_ROUNDS)
        return rc < 0 ? rc : -1;
    if (side.cuda == NULL) {
        rc = start(bx_tensor_device(tensor).index);
        if (rc == 0)
            rc = bx_cuda_alloc(side.cuda, BENCH_GPU_ROUNDS * sizeof *side.stamps, &stamps);
        side.stamps = stamps;
    }
    if (rc == 0)
        rc = bx_tensor_read_on(tensor, bx_cuda_stream(side.cuda));
    consume_args = (struct bench_gpu_consume){ bx_tensor_data(tensor), side.stamps + round };
    return rc < 0 ? rc : bx_kernel_launch(side.kernels, "bench_gpu_consume", 1, &consume_args);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The middle and the 99th of the latencies of all rounds, us. */
static int consumed(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    static struct bench_gpu_stamp stamps[BENCH_GPU_ROUNDS];
    double us[BENCH_GPU_ROUNDS];
    int rc = side.stamps == NULL ? -1 : bx_cuda_copy(side.cuda, stamps, side.stamps, sizeof stamps);

    (void)request, (void)args, (void)context;
    if (rc == 0)
        rc = bx_cuda_wait(side.cuda);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < BENCH_GPU_ROUNDS; i++)
        us[i] = 1e-3 * (double)(int64_t)(stamps[i].consumed - stamps[i].produced);
    qsort(us, BENCH_GPU_ROUNDS, sizeof *us, compare);
    rc = bx_msg_put_f64(reply, us[BENCH_GPU_ROUNDS / 2]);
    return rc < 0 ? rc : bx_msg_put_f64(reply, us[BENCH_GPU_ROUNDS * 99 / 100]);
}

int bench_gpu_clock_register(struct bx_job *job)
{
    int rc = bx_register(job, CONSUME, BX_INLINE, consume, NULL);

    return rc < 0 ? rc : bx_register(job, CONSUMED, BX_INLINE, consumed, NULL);
}

/* ---- Worker 0 ---------------------------------------------------------------------------------- */

struct producer {
    struct bx_job *job;
    struct bx_device device;
    const char *to;
};

static int produce(const struct producer *producer, uint64_t round)
{
    const int64_t count = 16;
    struct bx_tensor *tensor = NULL;
    struct bx_msg *args = bx_msg_create(16);
    int rc = args == NULL ? -1 : bx_tensor_create_on(producer->job, producer->device, BX_I64, 1, &count, &tensor);

    if (rc == 0) {
        struct bench_gpu_produce produce_args = { bx_tensor_data_mut(tensor), DELAY_NS };

        rc = bx_kernel_launch(side.kernels, "bench_gpu_produce", 1, &produce_args);
    }
    if (rc == 0)
        rc = bx_tensor_written_on(tensor, bx_cuda_stream(side.cuda));
    if (rc == 0)
        rc = bx_msg_put_u64(args, round);
    if (rc == 0)
        rc = bx_msg_put_tensor(args, tensor);
    if (rc == 0)
        rc = bx_rpc_sync(producer->job, producer->to, CONSUME, args, NULL, NULL);
    bx_msg_destroy(args);
    bx_tensor_release(tensor);
    return rc < 0 ? rc : bx_cuda_wait(side.cuda);
}

int bench_gpu_clock_run(struct bx_job *job, struct bx_device device, const char *to, struct bench_gpu_ready *ready)
{
    const struct producer producer = { .job = job, .device = device, .to = to };
    struct bx_msg *reply = NULL;
    int rc = start(device.index);

    for (uint64_t round = 0; rc == 0 && round < BENCH_GPU_ROUNDS; round++)
        rc = produce(&producer, round);
    if (rc == 0)
        rc = bx_rpc_sync(job, to, CONSUMED, NULL, NULL, &reply);
    if (rc == 0) {
        struct bx_reader reader = bx_msg_reader(reply);

        ready->p50_us = bx_read_f64(&reader);
        ready->p99_us = bx_read_f64(&reader);
        rc = reader.error;
    }
    bx_msg_destroy(reply);
    return rc;
}
