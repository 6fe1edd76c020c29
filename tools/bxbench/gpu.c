/* SPDX-License-Identifier: MIT */
/*
 * bxbench gpu: tensors in device memory handed over by CUDA IPC, beside a copy on the device and a copy through pinned
 * host memory.
 *
 * One hand-over: worker 0 sends a tensor on its GPU by one bx_rpc_sync; an inline handler of worker 1 orders its
 * stream after the tensor's ready point, and answers. The lease returns after that stream's work. No host thread
 * waits for the GPU in between, so this measures the host's path; the counters of both workers show that no byte was
 * copied. A copy is measured until the host sees its end, by reading back 4 bytes after it. The cost of mapping a
 * slab is the first hand-over of a tensor that fills a slab of its own, less a later one.
 *
 * How long a consumer's kernel waits after its data is ready is measured by the device's clock. Worker 0 launches a
 * kernel that works for a while and then writes the time into a tensor, and hands the tensor over at once. Worker 1
 * orders its stream after the tensor, then launches a kernel that stores the time. The message arrives long before the
 * tensor is ready, so this measures the device's part alone: the write of the ready word after one kernel, the wait of
 * another process's stream for it, the start of a kernel. No host thread waits.
 *
 * The tests' driver is refused, because its times mean nothing; --dry-run accepts it, and prints no figure.
 */
#include "bxbench.h"
#include "gpu_kernels.h"

#include <boxcar_cuda.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define OPEN "open"
#define TAKE "take"
#define CONSUME "consume"
#define CONSUMED "consumed"
#define WARM_CALLS 1
#define SLABS 5
#define SLAB_BYTES (INT64_C(65) << 20)      /* more than a slab of the pool: gets one of its own */
#define COPIES 20
#define CLOSE_NS UINT64_C(5000000000)       /* waited at most for the receiver to close a slab */

#define DELAY_NS 200000
#define ROUNDS 200

static const char source[] =
#include "bench_gpu.inc"
    ;

static const int64_t sizes[] = { 1 << 10, 1 << 16, 1 << 20, 1 << 26, 1 << 30 };

#define SIZES ((int)(sizeof sizes / sizeof *sizes))

/* Series: hand-overs of each size, and of none. Values: by size; what is measured once, by its place. */
enum { EMPTY = SIZES, SERIES };
enum { COPIED_BYTES, COPY_US, PINNED_US, ONCE };
enum { OPEN_US, CLOSE_US, READY_P50_US, READY_P99_US, MEASURED };

/* The kernels of this process, either worker's. The stream outlives the job. */
static struct {
    struct bx_cuda *cuda;
    struct bx_kernels *kernels;
    struct bench_gpu_stamp *stamps;         /* worker 1's */
} side;

static int start_kernels(int ordinal)
{
    int rc = bx_cuda_open(ordinal, &side.cuda);

    return rc < 0 ? rc : bx_kernels_create(side.cuda, "bench_gpu.cu", source, &side.kernels);
}

static void end_kernels(void)
{
    if (side.stamps != NULL)
        bx_cuda_free(side.cuda, side.stamps);
    bx_kernels_destroy(side.kernels);
    bx_cuda_close(side.cuda);
}

/* ---- Worker 1 -------------------------------------------------------------------------------------- */

static int open_gpu(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)reply, (void)context;
    return bx_gpu_open(bx_request_job(request), (int)bx_read_i64(args), NULL) < 0 ? -1 : 0;
}

static int take(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    (void)request, (void)reply, (void)context;
    return tensor != NULL ? bx_tensor_read_on(tensor, NULL) : args->error;
}

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
        rc = start_kernels(bx_tensor_device(tensor).index);
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

static int setup(struct bx_job *job, void *context)
{
    int rc = bx_register(job, OPEN, BX_BLOCKING, open_gpu, context);

    if (rc == 0)
        rc = bx_register(job, TAKE, BX_INLINE, take, context);
    if (rc == 0)
        rc = bx_register(job, CONSUME, BX_INLINE, consume, context);
    return rc < 0 ? rc : bx_register(job, CONSUMED, BX_INLINE, consumed, context);
}

/* ---- Worker 0 -------------------------------------------------------------------------------------- */

struct sender {
    struct bx_device device;
    struct bx_tensor *tensor;               /* handed over */
    struct bx_tensor *host_word;            /* one element, to wait for the device with */
};

static int make(struct bench_caller *caller, int64_t bytes)
{
    struct sender *sender = caller->own;
    int64_t count = bytes / 4;

    return bx_tensor_create_on(caller->job, sender->device, BX_F32, 1, &count, &sender->tensor);
}

static void drop(struct bench_caller *caller)
{
    struct sender *sender = caller->own;

    bx_msg_clear(caller->args);
    bx_tensor_release(sender->tensor);
    sender->tensor = NULL;
}

static int hand_over(struct bench_caller *caller)
{
    struct sender *sender = caller->own;
    int rc;

    bx_msg_clear(caller->args);
    rc = bx_msg_put_tensor(caller->args, sender->tensor);
    return rc < 0 ? rc : bx_rpc_sync(caller->job, caller->to, TAKE, caller->args, NULL, NULL);
}

/* Waits until the device has finished the tensor's last write. */
static int wait_for(struct sender *sender, struct bx_tensor *tensor)
{
    struct bx_tensor *word = NULL;
    int rc = bx_tensor_slice(tensor, 0, 0, 1, 1, &word);

    if (rc == 0)
        rc = bx_tensor_copy_into(sender->host_word, word);
    bx_tensor_release(word);
    return rc;
}

static double us_since(uint64_t before_ns)
{
    return (double)(bench_now_ns() - before_ns) / 1e3;
}

static int copies(struct bench_caller *caller, double *copy_us, double *pinned_us)
{
    struct sender *sender = caller->own;
    double on_device[COPIES], pinned[COPIES];
    struct bx_tensor *tensor = sender->tensor, *other = NULL, *host = NULL;
    int rc = bx_tensor_copy(caller->job, tensor, &other);

    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 1, bx_tensor_shape(tensor), &host);
    for (int i = 0; rc == 0 && i < COPIES; i++) {
        uint64_t before_ns = bench_now_ns();

        rc = bx_tensor_copy_into(other, tensor);
        if (rc == 0)
            rc = wait_for(sender, other);
        on_device[i] = us_since(before_ns);
        before_ns = bench_now_ns();
        if (rc == 0)
            rc = bx_tensor_copy_into(host, tensor);
        if (rc == 0)
            rc = bx_tensor_copy_into(other, host);
        pinned[i] = us_since(before_ns);
    }
    if (rc == 0) {
        *copy_us = bench_median(on_device, COPIES);
        *pinned_us = bench_median(pinned, COPIES);
    }
    bx_tensor_release(other);
    bx_tensor_release(host);
    return rc;
}

/* The first hand-over of a slab less a later one; all slabs live at once. */
static int slabs(struct bench_caller *caller, double *open_us)
{
    struct sender *sender = caller->own;
    struct bx_tensor *tensors[SLABS] = { NULL };
    double us[SLABS];
    int rc = 0;

    for (int i = 0; rc == 0 && i < SLABS; i++) {
        uint64_t before_ns;
        double first;

        rc = make(caller, SLAB_BYTES);
        tensors[i] = sender->tensor;
        before_ns = bench_now_ns();
        if (rc == 0)
            rc = hand_over(caller);
        first = us_since(before_ns);
        before_ns = bench_now_ns();
        if (rc == 0)
            rc = hand_over(caller);
        us[i] = first - us_since(before_ns);
    }
    if (rc == 0)
        *open_us = bench_median(us, SLABS);
    sender->tensor = NULL;
    for (int i = 0; i < SLABS; i++)
        bx_tensor_release(tensors[i]);
    return rc;
}

/* The mean time of the receiver's closes so far; NAN if it has closed nothing within CLOSE_NS. */
static int closing(struct bench_caller *caller, double *close_us)
{
    uint64_t end_ns = bench_now_ns() + CLOSE_NS;
    double count = 0, ns = 0;
    int rc = 0;

    bx_msg_clear(caller->args);
    while (rc == 0 && count == 0 && bench_now_ns() < end_ns)
        rc = bench_counter(caller, "gpu_slabs_closed", &count);
    if (rc == 0)
        rc = bench_counter(caller, "gpu_close_ns", &ns);
    *close_us = count > 0 ? 1e-3 * ns / count : NAN;
    return rc;
}

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

/* 0, or an error code with a sentence: -ENOTSUP if there is no NVRTC. */
static int kernels(struct bench_caller *caller, struct bx_device device, double *p50_us, double *p99_us)
{
    double us[ROUNDS];
    int rc = start_kernels(device.index);

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

static int measure_size(struct bench_caller *caller, int size)
{
    const struct bench_run *run = caller->run;
    double before = 0, after = 0;
    int rc = bench_copied(caller, &before);

    if (rc == 0)
        rc = make(caller, size == EMPTY ? 0 : sizes[size]);
    if (rc == 0)
        rc = bench_each(caller, WARM_CALLS, bench_place(caller, size, 0), hand_over, NULL) != 0 ? -1 : 0;
    if (rc == 0)
        rc = bench_copied(caller, &after);
    run->values[COPIED_BYTES][size] = after - before;
    if (rc == 0 && size != EMPTY)
        rc = copies(caller, &run->values[COPY_US][size], &run->values[PINNED_US][size]);
    drop(caller);
    return rc;
}

static int measure(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct bench_run *run = caller->run;
    const struct sender *sender = caller->own;
    double *once = run->values[ONCE];
    int rc = measure_size(caller, EMPTY);

    (void)kind, (void)slice;
    for (int i = 0; rc == 0 && i < SIZES && sizes[i] <= run->options->bytes; i++)
        rc = measure_size(caller, i);
    if (rc == 0)
        rc = slabs(caller, &once[OPEN_US]);
    if (rc == 0)
        rc = closing(caller, &once[CLOSE_US]);
    if (rc < 0)
        return bench_fail("gpu", rc);
    /* Only this part needs NVRTC. */
    once[READY_P50_US] = once[READY_P99_US] = NAN;
    if (kernels(caller, sender->device, &once[READY_P50_US], &once[READY_P99_US]) < 0)
        fprintf(stderr, "bxbench: gpu: ready_p50_us and ready_p99_us are not measured: %s\n", bx_error_text());
    once[MEASURED] = !bx_gpu_is_fake(caller->job);
    return 0;
}

static int begin(struct bench_caller *caller)
{
    static struct sender sender;
    const struct bench_options *options = caller->run->options;
    const int64_t one = 1;
    int rc = bx_gpu_open(caller->job, (int)options->device, &sender.device);

    caller->own = &sender;
    if (rc == 0 && bx_gpu_is_fake(caller->job) && !options->dry_run)
        rc = bx_fail(-1, "BX_CUDA_DRIVER names a driver without a GPU, whose times mean nothing (--dry-run)");
    if (rc == 0)
        rc = bx_call(caller->job, caller->to, OPEN, "i", options->device);
    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 1, &one, &sender.host_word);
    return rc < 0 ? bench_fail("gpu", rc) : 0;
}

static int end(struct bench_caller *caller, int status)
{
    bx_tensor_release(((struct sender *)caller->own)->host_word);
    return status;
}

/* ---- The report ------------------------------------------------------------------------------------ */

static void report_row(const void *context, int size)
{
    const struct bench_run *run = context;
    double none = run->values[ONCE][MEASURED] != 0 ? 0 : NAN;      /* added to each figure: NAN in a dry run */

    bench_number("bytes", (double)sizes[size], 0, NULL);
    bench_number("p50_us", bench_percentile_ns(&run->series[size], 50) * 1e-3 + none, 1, NULL);
    bench_number("p99_us", bench_percentile_ns(&run->series[size], 99) * 1e-3 + none, 1, NULL);
    bench_number("copied_bytes", run->values[COPIED_BYTES][size], 0, NULL);
    bench_number("copy_us", run->values[COPY_US][size] + none, 1, NULL);
    bench_number("pinned_us", run->values[PINNED_US][size] + none, 1, NULL);
}

int bench_gpu(struct bench_options *options)
{
    struct bench_run run = {
        .options = options, .slices = 1, .calls = options->calls, .workers = 2, .callers = 1, .kinds = { measure },
        .series_count = SERIES, .setup = setup, .begin = begin, .end = end, .after = end_kernels
    };
    int count = 0;
    double *once, none;

    if (options->bytes == 0)
        options->bytes = sizes[SIZES - 1];
    if (!bench_run_job(&run))
        return 1;
    while (count < SIZES && sizes[count] <= options->bytes)
        count++;
    once = run.values[ONCE];
    none = once[MEASURED] != 0 ? 0 : NAN;
    bench_open(options, "tensors in device memory handed over, one at a time");
    bench_number("calls", (double)run.calls, 0, "hand-overs of each size");
    bench_number("empty_us", bench_percentile_ns(&run.series[EMPTY], 50) * 1e-3 + none, 1,
                 "a tensor without elements, p50");
    bench_number("open_us", once[OPEN_US] + none, 1, "what mapping a slab adds to the first hand-over");
    bench_number("close_us", once[CLOSE_US] + none, 1, "the driver's call that lets one go, mean");
    bench_number("ready_p50_us", once[READY_P50_US] + none, 2,
                 "from the end of the producer's kernel to the consumer's, the device's clock");
    bench_number("ready_p99_us", once[READY_P99_US] + none, 2, "");
    bench_rows("rows", count, report_row, &run);
    bench_close();
    return 0;
}
