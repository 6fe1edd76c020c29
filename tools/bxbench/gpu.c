/* SPDX-License-Identifier: MIT */
/*
 * bxbench gpu: tensors in device memory handed over by CUDA IPC, beside a copy on the device and a copy through pinned
 * host memory.
 *
 * One hand-over: worker 0 sends a tensor on its GPU by one bx_rpc_sync; an inline handler of worker 1 orders its
 * stream after the tensor's ready point, and answers. The lease returns after that stream's work. No host thread
 * waits for the GPU in between, so this measures the host's path; the counters of both workers show that no byte was
 * copied. A copy is measured until the host sees its end, by reading back 4 bytes after it. The cost of mapping a
 * slab is the first hand-over of a tensor that fills a slab of its own, less a later one. gpu_clock.c measures how
 * long a consumer's kernel waits after its data is ready.
 *
 * The tests' driver is refused, because its times mean nothing; --dry-run accepts it, and prints no figure. This has
 * not run on a GPU yet.
 */
#include "bxbench.h"
#include "clock.h"
#include "gpu_clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPEN "open"
#define TAKE "take"
#define COPIED "copied"
#define CLOSED "closed"
#define SLABS 5
#define SLAB_BYTES (INT64_C(65) << 20)      /* more than a slab of the pool: gets one of its own */
#define COPIES 20
#define CLOSE_NS UINT64_C(5000000000)      /* waited at most for the receiver to close a slab */

static const int64_t sizes[] = { 1 << 10, 1 << 16, 1 << 20, 1 << 26, 1 << 30 };

#define SIZES (sizeof sizes / sizeof *sizes)

struct gpu_results {
    bool measured;
    double empty_us;
    double open_us, close_us;
    struct bench_gpu_ready ready;
    struct {
        double p50_us, p99_us, copy_us, pinned_us;
        double copied_bytes;                /* by the hand-overs, of both workers */
    } rows[SIZES];
};

struct gpu_bench {
    const struct bench_options *options;
    int64_t calls;
    struct gpu_results *results;
};

/* ---- Worker 1 ---------------------------------------------------------------------------------- */

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

static uint64_t copied_here(const struct bx_job *job)
{
    static const char *const counters[] = { "tensor_bytes_copied", "gpu_staged_bytes", "gpu_copied_bytes" };
    uint64_t sum = 0, value;

    for (int i = 0; i < 3; i++)
        if (bx_counter(job, counters[i], &value) == 0)
            sum += value;
    return sum;
}

static int copied(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)context;
    return bx_msg_put_u64(reply, copied_here(bx_request_job(request)));
}

/* How many slabs this worker has closed, and the nanoseconds in the driver's calls for it. */
static int closed(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const struct bx_job *job = bx_request_job(request);
    uint64_t count = 0, ns = 0;

    (void)args, (void)context;
    if (bx_counter(job, "gpu_slabs_closed", &count) < 0 || bx_counter(job, "gpu_close_ns", &ns) < 0)
        return -1;
    bx_msg_put_u64(reply, count);
    return bx_msg_put_u64(reply, ns);
}

static int add_functions(struct bx_job *job, void *context)
{
    int rc = bx_register(job, OPEN, BX_BLOCKING, open_gpu, context);

    if (rc == 0)
        rc = bx_register(job, TAKE, BX_INLINE, take, context);
    if (rc == 0)
        rc = bx_register(job, COPIED, BX_INLINE, copied, context);
    if (rc == 0)
        rc = bx_register(job, CLOSED, BX_INLINE, closed, context);
    return rc < 0 ? rc : bench_gpu_clock_register(job);
}

/* ---- Worker 0 ---------------------------------------------------------------------------------- */

struct sender {
    const struct gpu_bench *bench;
    struct bx_job *job;
    struct bx_device device;
    const char *to;
    struct bx_tensor *host_word;            /* one element, to wait for the device with */
};

static uint64_t copied_by_both(struct sender *sender)
{
    struct bx_msg *reply = NULL;
    uint64_t sum = copied_here(sender->job);

    if (bx_rpc_sync(sender->job, sender->to, COPIED, NULL, NULL, &reply) == 0) {
        struct bx_reader reader = bx_msg_reader(reply);

        sum += bx_read_u64(&reader);
    }
    bx_msg_destroy(reply);
    return sum;
}

static int make(struct sender *sender, int64_t bytes, struct bx_tensor **tensor)
{
    int64_t count = bytes / 4;

    return bx_tensor_create_on(sender->job, sender->device, BX_F32, 1, &count, tensor);
}

static int hand_over(struct sender *sender, struct bx_tensor *tensor, double *us)
{
    struct bx_msg *args = bx_msg_create(0);
    uint64_t before = bench_now_ns();
    int rc = args == NULL ? -1 : bx_msg_put_tensor(args, tensor);

    if (rc == 0)
        rc = bx_rpc_sync(sender->job, sender->to, TAKE, args, NULL, NULL);
    *us = (double)(bench_now_ns() - before) / 1e3;
    bx_msg_destroy(args);
    return rc;
}

static int hand_overs(struct sender *sender, struct bx_tensor *tensor, double *p50_us, double *p99_us)
{
    size_t calls = (size_t)sender->bench->calls;
    double *us = calloc(calls, sizeof *us);
    int rc = us == NULL ? -1 : hand_over(sender, tensor, us);

    for (size_t i = 0; rc == 0 && i < calls; i++)
        rc = hand_over(sender, tensor, &us[i]);
    if (rc == 0) {
        *p50_us = bench_median(us, calls);          /* sorts */
        *p99_us = us[calls * 99 / 100];
    }
    free(us);
    return rc;
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

static int copies(struct sender *sender, struct bx_tensor *tensor, double *copy_us, double *pinned_us)
{
    double on_device[COPIES], pinned[COPIES];
    struct bx_tensor *other = NULL, *host = NULL;
    int rc = bx_tensor_copy(sender->job, tensor, &other);

    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 1, bx_tensor_shape(tensor), &host);
    for (int i = 0; rc == 0 && i < COPIES; i++) {
        uint64_t before = bench_now_ns();

        rc = bx_tensor_copy_into(other, tensor);
        if (rc == 0)
            rc = wait_for(sender, other);
        on_device[i] = (double)(bench_now_ns() - before) / 1e3;
        before = bench_now_ns();
        if (rc == 0)
            rc = bx_tensor_copy_into(host, tensor);
        if (rc == 0)
            rc = bx_tensor_copy_into(other, host);
        pinned[i] = (double)(bench_now_ns() - before) / 1e3;
    }
    if (rc == 0) {
        *copy_us = bench_median(on_device, COPIES);
        *pinned_us = bench_median(pinned, COPIES);
    }
    bx_tensor_release(other);
    bx_tensor_release(host);
    return rc;
}

static int slabs(struct sender *sender, double *open_us)
{
    struct bx_tensor *tensors[SLABS] = { NULL };
    double us[SLABS], first = 0, later = 0;
    int rc = 0;

    for (int i = 0; rc == 0 && i < SLABS; i++) {
        rc = make(sender, SLAB_BYTES, &tensors[i]);
        if (rc == 0)
            rc = hand_over(sender, tensors[i], &first);
        if (rc == 0)
            rc = hand_over(sender, tensors[i], &later);
        us[i] = first - later;
    }
    if (rc == 0)
        *open_us = bench_median(us, SLABS);
    for (int i = 0; i < SLABS; i++)
        bx_tensor_release(tensors[i]);
    return rc;
}

/* The mean time of the receiver's closes so far; NAN if it has closed nothing within CLOSE_NS. */
static int closing(struct sender *sender, double *close_us)
{
    uint64_t end_ns = bench_now_ns() + CLOSE_NS, count = 0, ns = 0;
    int rc = 0;

    while (rc == 0 && count == 0 && bench_now_ns() < end_ns) {
        struct bx_msg *reply = NULL;

        rc = bx_rpc_sync(sender->job, sender->to, CLOSED, NULL, NULL, &reply);
        if (rc == 0) {
            struct bx_reader reader = bx_msg_reader(reply);

            count = bx_read_u64(&reader);
            ns = bx_read_u64(&reader);
            rc = reader.error;
        }
        bx_msg_destroy(reply);
    }
    *close_us = count > 0 ? 1e-3 * (double)ns / (double)count : NAN;
    return rc;
}

static int measure(struct sender *sender)
{
    struct gpu_results *results = sender->bench->results;
    struct bx_tensor *tensor = NULL;
    double p99;
    int rc = make(sender, 0, &tensor);

    if (rc == 0)
        rc = hand_overs(sender, tensor, &results->empty_us, &p99);
    bx_tensor_release(tensor);
    for (size_t i = 0; rc == 0 && i < SIZES && sizes[i] <= sender->bench->options->bytes; i++) {
        uint64_t before = copied_by_both(sender);

        tensor = NULL;
        rc = make(sender, sizes[i], &tensor);
        if (rc == 0)
            rc = hand_overs(sender, tensor, &results->rows[i].p50_us, &results->rows[i].p99_us);
        results->rows[i].copied_bytes = (double)(copied_by_both(sender) - before);
        if (rc == 0)
            rc = copies(sender, tensor, &results->rows[i].copy_us, &results->rows[i].pinned_us);
        bx_tensor_release(tensor);
    }
    if (rc == 0)
        rc = slabs(sender, &results->open_us);
    return rc < 0 ? rc : closing(sender, &results->close_us);
}

/* Only this part needs NVRTC. */
static void clock_ready(struct sender *sender)
{
    struct bench_gpu_ready *ready = &sender->bench->results->ready;

    *ready = (struct bench_gpu_ready){ NAN, NAN };
    if (bench_gpu_clock_run(sender->job, sender->device, sender->to, ready) < 0)
        fprintf(stderr, "bxbench: gpu: ready_p50_us and ready_p99_us are not measured: %s\n", bx_error_text());
}

static int start(struct sender *sender)
{
    const struct bench_options *options = sender->bench->options;
    struct bx_msg *args = bx_msg_create(16);
    const int64_t one = 1;
    int rc = bx_gpu_open(sender->job, (int)options->device, &sender->device);

    if (rc == 0 && bx_gpu_is_fake(sender->job) && !options->dry_run)
        rc = bx_fail(-1, "BX_CUDA_DRIVER names a driver without a GPU, whose times mean nothing (--dry-run)");
    if (rc == 0)
        rc = args == NULL ? -1 : bx_msg_put_i64(args, options->device);
    if (rc == 0)
        rc = bx_rpc_sync(sender->job, sender->to, OPEN, args, NULL, NULL);
    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 1, &one, &sender->host_word);
    bx_msg_destroy(args);
    return rc;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct gpu_bench *bench = context;
    struct sender sender = { .bench = bench };
    int cpu = bench->options->cpus[options->rank < bench->options->cpu_count ? options->rank : 0];
    int rc;

    if (bench_worker_start(options, cpu, add_functions, NULL, &sender.job) != 0)
        return 1;
    if (options->rank == 1) {
        rc = bench_worker_serve(sender.job);
        bench_gpu_clock_end();
        return rc;
    }
    sender.to = bx_worker_name(sender.job, 1);
    rc = start(&sender);
    if (rc == 0)
        rc = measure(&sender);
    if (rc == 0)
        clock_ready(&sender);
    bench->results->measured = rc == 0 && !bx_gpu_is_fake(sender.job);
    rc = rc < 0 ? bench_fail("gpu", rc) : 0;
    bx_tensor_release(sender.host_word);
    rc = bench_worker_end(sender.job, rc);
    bench_gpu_clock_end();
    return rc;
}

/* ---- The report -------------------------------------------------------------------------------- */

static void report(const struct gpu_bench *bench)
{
    const struct gpu_results *results = bench->results;
    double none = results->measured ? 0 : NAN;     /* added to each figure: NAN in a dry run */

    bench_report_open(bench->options, "tensors in device memory handed over, one at a time");
    bench_report_number("calls", (double)bench->calls, 0, "hand-overs of each size");
    bench_report_number("empty_us", results->empty_us + none, 1, "a tensor without elements, p50");
    bench_report_number("open_us", results->open_us + none, 1, "what mapping a slab adds to the first hand-over");
    bench_report_number("close_us", results->close_us + none, 1, "the driver's call that lets one go, mean");
    bench_report_number("ready_p50_us", results->ready.p50_us + none, 2,
                        "from the end of the producer's kernel to the consumer's, the device's clock");
    bench_report_number("ready_p99_us", results->ready.p99_us + none, 2, NULL);
    bench_report_rows_open("rows");
    for (size_t i = 0; i < SIZES && sizes[i] <= bench->options->bytes; i++) {
        bench_report_row_open();
        bench_report_number("bytes", (double)sizes[i], 0, NULL);
        bench_report_number("p50_us", results->rows[i].p50_us + none, 1, NULL);
        bench_report_number("p99_us", results->rows[i].p99_us + none, 1, NULL);
        bench_report_number("copied_bytes", results->rows[i].copied_bytes, 0, NULL);
        bench_report_number("copy_us", results->rows[i].copy_us + none, 1, NULL);
        bench_report_number("pinned_us", results->rows[i].pinned_us + none, 1, NULL);
        bench_report_row_close();
    }
    bench_report_rows_close();
    bench_report_close();
}

int bench_gpu(const struct bench_options *options)
{
    struct bench_options given = *options;
    struct gpu_bench bench = { .options = &given, .calls = options->calls != 0 ? options->calls : 1000 };

    if (given.bytes == 0)
        given.bytes = sizes[SIZES - 1];
    bench.results = bench_map(sizeof *bench.results);
    if (!bench_spawn(2, NULL, worker, &bench))
        return 1;
    report(&bench);
    return 0;
}
