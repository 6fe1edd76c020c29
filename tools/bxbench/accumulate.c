/* SPDX-License-Identifier: MIT */
/*
 * bxbench accumulate: a parameter server's step over gradients that it has on loan, beside the bare
 * memory traffic of the same step.
 *
 * Worker 1 is the trainer: it answers each call with one set of gradients, made in its arena. Worker 0 is the server:
 * it keeps the answers, so that all sets are on loan to it and mapped read-only. It runs bx_sgd_step over them tensor
 * by tensor, from one version of the model to another. Both versions lie in its own arena; the velocity lies on its
 * heap. The bare pass goes through the same memory in the same order with as many threads, without the arithmetic: it
 * reads every set, `from` and the velocity, and writes the velocity back, and `to` with non-temporal stores. That is
 * sets + 4 times --bytes of traffic.
 *
 * A plain memcpy of --bytes from one tensor to another (2 times --bytes of traffic) checks the bare pass: bare_memcpy
 * must be 0.9 or more, else the bare pass is slow and the ratio too good.
 *
 * One slice is one step, one bare pass and one memcpy. Each thread has a core (round-robin) and a contiguous share of
 * all elements. After each step some elements are computed again, one by one.
 */
#include "bxbench.h"
#include "clock.h"
#include "process.h"
#include "report.h"
#include "statistics.h"
#include "tensors.h"
#include "worker.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "boxcar_nn.h"

#define GRADIENTS "gradients"
#define WARM_SLICES 2
#define LINE_FLOATS ((size_t)16)
#define LEARNING_RATE 0.1f
#define MOMENTUM 0.9f
#define SETS_MAX 64

struct accumulate {
    const struct bench_options *options;
    struct bench_plan plan;
    int64_t slices;
    int sets;
    int threads;
    double *step_ns;            /* for each slice, as the next two */
    double *bare_ns;
    double *copy_ns;
};

enum work { STEP, BARE, COPY, STOP };

/* The server's tensors of one parameter. */
struct parameter {
    size_t elements;
    const float *grads[SETS_MAX];
    struct bx_tensor *from, *to, *velocity;
};

struct server {
    const struct accumulate *bench;
    struct bx_job *job;
    struct bx_msg *answers[SETS_MAX];       /* they hold the leases */
    struct parameter *parameters;
    struct bx_tensor *copy_from, *copy_to;
    pthread_barrier_t gate;                 /* all threads, before and after each piece of work */
    enum work work;                         /* written while the others stand at the gate */
    struct helper {
        struct server *server;
        pthread_t thread;
        int index;
    } helpers[BENCH_CPUS_MAX];
};

/* ---- Worker 1 ---------------------------------------------------------------------------------- */

static void fill(float *values, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525 + 1013904223;
        values[i] = (float)((double)(seed >> 8) / (1 << 24) - 0.5);
    }
}

static int answer_gradients(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                            void *context)
{
    const struct bench_plan *plan = &((const struct accumulate *)context)->plan;
    uint32_t set = (uint32_t)bx_read_i32(args);

    for (size_t i = 0; i < plan->count; i++) {
        struct bx_tensor *tensor;
        int rc = bench_plan_create(plan, i, bx_request_job(request), &tensor);

        if (rc < 0)
            return rc;
        fill(bx_tensor_data_mut(tensor), (size_t)bx_tensor_elements(tensor), set * 1000 + (uint32_t)i);
        rc = bx_msg_put_tensor(reply, tensor);
        bx_tensor_release(tensor);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int add_gradients(struct bx_job *job, void *context)
{
    return bx_register(job, GRADIENTS, BX_BLOCKING, answer_gradients, context);
}

/* ---- Passes over memory ------------------------------------------------------------------------ */

static void step(const struct server *server, const struct parameter *parameter, size_t first, size_t count)
{
    const float *grads[SETS_MAX];

    for (int set = 0; set < server->bench->sets; set++)
        grads[set] = parameter->grads[set] + first;
    bx_sgd_step(&(struct bx_sgd){
        .lr = LEARNING_RATE,
        .momentum = MOMENTUM,
        .from = (const float *)bx_tensor_data(parameter->from) + first,
        .to = (float *)bx_tensor_data_mut(parameter->to) + first,
        .velocity = (float *)bx_tensor_data_mut(parameter->velocity) + first,
        .grads = grads,
        .grad_count = (size_t)server->bench->sets,
        .elements = count,
    });
}

/* The streams of a bare pass: what is read besides the velocity, how many of them. */
struct streams {
    const uint32_t *in[SETS_MAX + 1];
    size_t ins;
    uint32_t *velocity;
    uint32_t *to;
};

/* Always 0, which the compiler does not know: else it would remove the write of a value that was just read. */
static volatile uint32_t nothing;

/* Whole cache lines of all streams, 64 bytes of each at a time: this order was a third faster than page by page
 * and with software prefetch. The words read are or-ed together, so that the reads cannot be removed. */
static size_t stream_lines(const struct streams *streams, size_t count)
{
    size_t lines = count / LINE_FLOATS * LINE_FLOATS;

#if defined(__SSE2__)
    __m128i zero = _mm_set1_epi32((int)nothing);

    for (size_t i = 0; i < lines; i += 4) {
        __m128i velocity = _mm_load_si128((const __m128i *)(const void *)(streams->velocity + i));
        __m128i all = velocity;

        for (size_t in = 0; in < streams->ins; in++)
            all = _mm_or_si128(all, _mm_load_si128((const __m128i *)(const void *)(streams->in[in] + i)));
        _mm_store_si128((__m128i *)(void *)(streams->velocity + i), _mm_or_si128(velocity, zero));
        _mm_stream_si128((__m128i *)(void *)(streams->to + i), all);
    }
    _mm_sfence();
#else
    uint32_t zero = nothing;

    for (size_t i = 0; i < lines; i++) {
        uint32_t all = streams->velocity[i];

        for (size_t in = 0; in < streams->ins; in++)
            all |= streams->in[in][i];
        streams->velocity[i] |= zero;
        streams->to[i] = all;
    }
#endif
    return lines;
}

static void bare(const struct server *server, const struct parameter *parameter, size_t first, size_t count)
{
    struct streams streams = {
        .ins = (size_t)server->bench->sets + 1,
        .velocity = (uint32_t *)bx_tensor_data_mut(parameter->velocity) + first,
        .to = (uint32_t *)bx_tensor_data_mut(parameter->to) + first,
    };

    for (int set = 0; set < server->bench->sets; set++)
        streams.in[set] = (const uint32_t *)(const void *)parameter->grads[set] + first;
    streams.in[server->bench->sets] = (const uint32_t *)bx_tensor_data(parameter->from) + first;
    for (size_t i = stream_lines(&streams, count); i < count; i++) {
        uint32_t all = streams.velocity[i];

        for (size_t in = 0; in < streams.ins; in++)
            all |= streams.in[in][i];
        streams.velocity[i] |= nothing;
        streams.to[i] = all;
    }
}

static void copy_share(const struct server *server, size_t begin, size_t end)
{
    memcpy((float *)bx_tensor_data_mut(server->copy_to) + begin,
           (const float *)bx_tensor_data(server->copy_from) + begin, (end - begin) * sizeof(float));
}

/* Element `at` of all, as an index into a tensor whose elements begin at `before`: whole lines of it. */
static size_t cut(size_t at, size_t before, size_t elements)
{
    if (at <= before)
        return 0;
    return at - before >= elements ? elements : (at - before) / LINE_FLOATS * LINE_FLOATS;
}

static void run_share(const struct server *server, int thread)
{
    const struct accumulate *bench = server->bench;
    size_t all = bench->plan.bytes / sizeof(float), threads = (size_t)bench->threads, before = 0;
    size_t begin = all / threads * (size_t)thread;
    size_t end = (size_t)thread + 1 == threads ? all : begin + all / threads;

    if (server->work == COPY) {
        copy_share(server, begin, end);
        return;
    }
    for (size_t i = 0; i < bench->plan.count; i++) {
        const struct parameter *parameter = &server->parameters[i];
        size_t first = cut(begin, before, parameter->elements);
        size_t last = cut(end, before, parameter->elements);

        if (first < last && server->work == STEP)
            step(server, parameter, first, last - first);
        else if (first < last)
            bare(server, parameter, first, last - first);
        before += parameter->elements;
    }
}

/* ---- Threads ----------------------------------------------------------------------------------- */

static void *help(void *context)
{
    const struct helper *helper = context;
    struct server *server = helper->server;
    const struct bench_options *options = server->bench->options;

    bench_pin(options->cpus[helper->index % options->cpu_count]);
    for (;;) {
        pthread_barrier_wait(&server->gate);
        if (server->work == STOP)
            return NULL;
        run_share(server, helper->index);
        pthread_barrier_wait(&server->gate);
    }
}

/* Nanoseconds until all threads have finished. */
static double run_work(struct server *server, enum work work)
{
    uint64_t before_ns = bench_now_ns();

    server->work = work;
    pthread_barrier_wait(&server->gate);
    run_share(server, 0);
    pthread_barrier_wait(&server->gate);
    return (double)(bench_now_ns() - before_ns);
}

/* 0, or -errno. If one cannot be started, those before it wait at the gate until the process ends. */
static int start_helpers(struct server *server)
{
    int rc = pthread_barrier_init(&server->gate, NULL, (unsigned)server->bench->threads);

    for (int i = 1; rc == 0 && i < server->bench->threads; i++) {
        server->helpers[i].server = server;
        server->helpers[i].index = i;
        rc = pthread_create(&server->helpers[i].thread, NULL, help, &server->helpers[i]);
    }
    return -rc;
}

static void stop_helpers(struct server *server)
{
    server->work = STOP;
    pthread_barrier_wait(&server->gate);
    for (int i = 1; i < server->bench->threads; i++)
        pthread_join(server->helpers[i].thread, NULL);
    pthread_barrier_destroy(&server->gate);
}

/* ---- Worker 0 ---------------------------------------------------------------------------------- */

static int borrow_set(struct server *server, int set)
{
    struct bx_msg *args = bx_msg_create(8);
    int rc = bx_msg_put_i32(args, set);

    if (rc == 0)
        rc = bx_rpc_sync(server->job, bx_worker_name(server->job, 1), GRADIENTS, args, NULL,
                         &server->answers[set]);
    bx_msg_destroy(args);
    if (rc < 0)
        return bench_fail(GRADIENTS, rc);

    struct bx_reader reader = bx_msg_reader(server->answers[set]);

    for (size_t i = 0; i < server->bench->plan.count; i++) {
        const struct bx_tensor *tensor = bx_read_tensor(&reader);

        if (tensor == NULL || !bx_tensor_is_borrowed(tensor) ||
            bx_tensor_bytes(tensor) != server->bench->plan.tensors[i].bytes) {
            bench_say("gradient %zu of set %d is not what was asked for, or not on loan", i, set);
            return 1;
        }
        server->parameters[i].grads[set] = bx_tensor_data(tensor);
    }
    return 0;
}

static int make_parameter(struct server *server, size_t index)
{
    const struct bench_plan *plan = &server->bench->plan;
    struct parameter *parameter = &server->parameters[index];
    int rc = bench_plan_create(plan, index, server->job, &parameter->from);

    if (rc == 0)
        rc = bench_plan_create(plan, index, server->job, &parameter->to);
    if (rc == 0)
        rc = bench_plan_create(plan, index, NULL, &parameter->velocity);
    if (rc < 0)
        return bench_fail("bx_tensor_create", rc);
    parameter->elements = plan->tensors[index].bytes / sizeof(float);
    fill(bx_tensor_data_mut(parameter->from), parameter->elements, (uint32_t)index);
    memset(bx_tensor_data_mut(parameter->to), 0, plan->tensors[index].bytes);
    memset(bx_tensor_data_mut(parameter->velocity), 0, plan->tensors[index].bytes);
    return 0;
}

static int make_copies(struct server *server)
{
    int64_t elements = (int64_t)(server->bench->plan.bytes / sizeof(float));
    int rc = bx_tensor_create(server->job, BX_F32, 1, &elements, &server->copy_from);

    if (rc == 0)
        rc = bx_tensor_create(server->job, BX_F32, 1, &elements, &server->copy_to);
    if (rc < 0)
        return bench_fail("bx_tensor_create", rc);
    fill(bx_tensor_data_mut(server->copy_from), (size_t)elements, 1);
    memset(bx_tensor_data_mut(server->copy_to), 0, server->bench->plan.bytes);
    return 0;
}

static bool is_near(float a, double b)
{
    return fabs((double)a - b) <= 1e-4 + 1e-4 * fabs(b);
}

/* The step once more for the first, the middle and the last element of every tensor. velocity_before: those
 * three of each, before the step. */
static bool step_is_right(const struct server *server, float (*velocity_before)[3])
{
    int sets = server->bench->sets;

    for (size_t i = 0; i < server->bench->plan.count; i++) {
        const struct parameter *parameter = &server->parameters[i];
        const float *from = bx_tensor_data(parameter->from), *to = bx_tensor_data(parameter->to);
        const float *velocity = bx_tensor_data(parameter->velocity);

        for (size_t k = 0; k < 3; k++) {
            size_t at = (parameter->elements - 1) * k / 2;
            double sum = 0;

            for (int set = 0; set < sets; set++)
                sum += (double)parameter->grads[set][at];

            double expected = (double)MOMENTUM * (double)velocity_before[i][k] + sum / sets;

            if (!is_near(velocity[at], expected) ||
                !is_near(to[at], (double)from[at] - (double)LEARNING_RATE * expected)) {
                bench_say("bx_sgd_step is wrong in element %zu of tensor %zu", at, i);
                return false;
            }
        }
    }
    return true;
}

static void keep_velocity(const struct server *server, float (*kept)[3])
{
    for (size_t i = 0; i < server->bench->plan.count; i++)
        for (size_t k = 0; k < 3; k++)
            kept[i][k] = ((const float *)bx_tensor_data(server->parameters[i].velocity))
                         [(server->parameters[i].elements - 1) * k / 2];
}

static int run_slices(struct server *server)
{
    const struct accumulate *bench = server->bench;
    float (*velocity)[3] = calloc(bench->plan.count, sizeof *velocity);
    int status = velocity != NULL ? 0 : 1;

    for (int64_t i = -WARM_SLICES; status == 0 && i < bench->slices; i++) {
        keep_velocity(server, velocity);

        double step_ns = run_work(server, STEP);

        status = step_is_right(server, velocity) ? 0 : 1;

        double bare_ns = run_work(server, BARE);
        double copy_ns = run_work(server, COPY);

        if (i < 0)
            continue;
        bench->step_ns[i] = step_ns;
        bench->bare_ns[i] = bare_ns;
        bench->copy_ns[i] = copy_ns;
    }
    free(velocity);
    return status;
}

static int serve_step(struct server *server)
{
    const struct accumulate *bench = server->bench;

    server->parameters = calloc(bench->plan.count, sizeof *server->parameters);
    if (server->parameters == NULL)
        return bench_fail("the list of parameters", -ENOMEM);
    for (int set = 0; set < bench->sets; set++)
        if (borrow_set(server, set) != 0)
            return 1;
    for (size_t i = 0; i < bench->plan.count; i++)
        if (make_parameter(server, i) != 0)
            return 1;
    if (make_copies(server) != 0)
        return 1;

    int rc = start_helpers(server);

    if (rc < 0)
        return bench_fail("pthread_create", rc);

    int status = run_slices(server);

    stop_helpers(server);
    return status;
}

static void release_all(struct server *server)
{
    for (size_t i = 0; server->parameters != NULL && i < server->bench->plan.count; i++) {
        bx_tensor_release(server->parameters[i].from);
        bx_tensor_release(server->parameters[i].to);
        bx_tensor_release(server->parameters[i].velocity);
    }
    free(server->parameters);
    bx_tensor_release(server->copy_from);
    bx_tensor_release(server->copy_to);
    for (int set = 0; set < server->bench->sets; set++)
        bx_msg_destroy(server->answers[set]);
}

static int worker(const struct bx_options *options, void *context)
{
    const struct accumulate *bench = context;
    const struct bench_options *flags = bench->options;
    struct server server = { .bench = bench };

    if (bench_worker_start(options, flags->cpus[options->rank % flags->cpu_count], add_gradients, context,
                           &server.job) != 0)
        return 1;
    if (options->rank == 1)
        return bench_worker_serve(server.job);

    int status = serve_step(&server);

    release_all(&server);
    return bench_worker_end(server.job, status);
}

/* ---- The launcher ------------------------------------------------------------------------------ */

static void report(const struct accumulate *bench)
{
    size_t slices = (size_t)bench->slices;
    double bytes = (double)bench->plan.bytes, traffic = bytes * (bench->sets + 4);
    double ratio[BENCH_SLICES_MAX], bare_memcpy[BENCH_SLICES_MAX];

    for (size_t i = 0; i < slices; i++) {
        ratio[i] = bench->step_ns[i] / bench->bare_ns[i];
        bare_memcpy[i] = traffic / bench->bare_ns[i] / (2 * bytes / bench->copy_ns[i]);
    }

    double step_ns = bench_median(bench->step_ns, slices), bare_ns = bench_median(bench->bare_ns, slices);

    bench_report_open(bench->options, "a parameter server's step over gradients on loan");
    bench_report_number("sets", bench->sets, 0, "of gradients in a step");
    bench_report_number("bytes", bytes, 0, "of each");
    bench_report_number("threads", bench->threads, 0, "");
    bench_report_number("slices", (double)slices, 0, "of each kind, in turn");
    bench_report_number("memcpy_gb_s", 2 * bytes / bench_median(bench->copy_ns, slices), 2,
                        "read and written, each byte counted once each");
    bench_report_number("bare_gb_s", traffic / bare_ns, 2, "the step's reads and writes without arithmetic");
    bench_report_number("bare_memcpy", bench_median(bare_memcpy, slices), 3,
                        "the one over the other, median over neighbouring slices; 0.9 is asked of it");
    bench_report_number("accumulate_gb_s", traffic / step_ns, 2, "bx_sgd_step");
    bench_report_number("bare_ms", bare_ns * 1e-6, 3, "");
    bench_report_number("accumulate_ms", step_ns * 1e-6, 3, "");
    bench_report_number("ratio", bench_median(ratio, slices), 3,
                        "time of the step over the bare pass, median over neighbouring slices");
    bench_report_close();
}

int bench_accumulate(const struct bench_options *options)
{
    struct accumulate bench = {
        .options = options,
        .slices = options->slices != 0 ? options->slices : 20,
        .sets = options->sets != 0 ? (int)options->sets : 5,
        .threads = options->threads != 0 ? (int)options->threads : 1,
    };
    int64_t bytes = options->bytes != 0 ? options->bytes : BENCH_TENSORS_BYTES;
    int status = bench_plan_make(&bench.plan, BENCH_TENSORS, bytes - bytes % (int64_t)sizeof(float));

    if (status != 0)
        return status;

    uint64_t room = bench_shm_room(), needed = (uint64_t)bytes * (uint64_t)(bench.sets + 4) / 4 * 5;

    if (room < needed) {
        bench_say("/dev/shm has %llu MB free, %d sets and four more tensors of %lld bytes need %llu MB; "
                  "--bytes takes less", (unsigned long long)(room >> 20), bench.sets, (long long)bytes,
                  (unsigned long long)(needed >> 20) + 1);
        return 1;
    }
    bench.step_ns = bench_map((size_t)bench.slices * sizeof(double));
    bench.bare_ns = bench_map((size_t)bench.slices * sizeof(double));
    bench.copy_ns = bench_map((size_t)bench.slices * sizeof(double));
    if (!bench_spawn(2, NULL, worker, &bench))
        return 1;
    report(&bench);
    return 0;
}
