/* SPDX-License-Identifier: MIT */
/*
 * bxbench handover: tensors made, written, sent in one message, checked by the callee, released.
 *
 * One round: worker 0 creates all tensors in its arena, writes a stamp of this round into the first and the last
 * eight bytes of each, and sends them by one bx_rpc_sync. An inline handler of worker 1 checks their number and that
 * each is borrowed and holds both stamps, and answers with their number. Worker 0 releases them and polls until the
 * lease is back. The round ends there. Not all pages are written: filling them is the trainer's work, with or without
 * Boxcar. The first rounds of a slice do not count: the arena's memory is new then, and the other side asleep. Both
 * sides spin for longer than by default: if a wake-up takes longer than a round, a pair that has slept once would
 * sleep in every round, and a round would be two wake-ups.
 *
 * Slices of three messages alternate: the one asked for, one with as many tensors and 1 MB in all, and one with 1 GB.
 * Beside each runs a copy of the bytes, which is the least that a hand-over by copy costs. The cold rounds come last,
 * because each gives the arena's memory back first; every page is written in them, and the figure includes the kernel's
 * time to find, zero and map it.
 *
 * The counters of both workers, read before and after all rounds, show whether anything was copied.
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
#include <stdlib.h>
#include <string.h>

#define CHECK "check"
#define COPIED "copied"
#define WARM_ROUNDS 5
#define SPIN_NS 1000000         /* both stay awake while the other does its part */
#define LOOKS 100000            /* polls for the lease before it sleeps for it */
#define MB ((int64_t)1 << 20)
#define GB ((int64_t)1 << 30)
#define ROOM_FOR_GB (GB + GB / 2)
#define COPY_BYTES_MAX ((size_t)GB)     /* a larger message has no copy beside it, which takes twice the memory */
#define PAGE ((size_t)4096)

enum phase { WHOLE, CREATE, SEND, RELEASE, PHASES };
enum size { PROPER, SMALL, LARGE, SIZES };

struct handover {
    const struct bench_options *options;
    int64_t slices;
    int64_t calls;
    struct measured {
        struct bench_plan plan;             /* count 0: not measured */
        uint32_t *ticks[PHASES];            /* calls for each slice */
    } sizes[SIZES];
    struct results {
        uint64_t copied_bytes;
        uint64_t late;                      /* rounds whose lease was not back at the first poll */
    } *results;
    double *copy_ns;                        /* for each slice, as the next */
    double *cold_ns;
};

/* Worker 0's, for every round. */
struct sender {
    const struct handover *bench;
    struct bx_job *job;
    struct bx_msg *args;
    struct bx_tensor **tensors;
    const char *to;
    uint64_t stamp;
    char *copy_from, *copy_to;
};

/* ---- Worker 1 ---------------------------------------------------------------------------------- */

static bool has_stamps(const struct bx_tensor *tensor, uint64_t stamp)
{
    const char *data = bx_tensor_data(tensor);
    size_t bytes = bx_tensor_bytes(tensor);
    uint64_t first, last;

    if (!bx_tensor_is_borrowed(tensor) || data == NULL || bytes < 2 * sizeof stamp)
        return false;
    memcpy(&first, data, sizeof first);
    memcpy(&last, data + bytes - sizeof last, sizeof last);
    return first == stamp && last == ~stamp;
}

static int check(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                 void *context)
{
    uint64_t stamp = bx_read_u64(args), count = bx_read_u64(args);

    (void)request;
    (void)context;
    if (args->error == 0 && bx_reader_tensors_left(args) != count)
        return bx_fail(-EPROTO, "%zu tensors came, not %llu", bx_reader_tensors_left(args),
                       (unsigned long long)count);
    for (uint64_t i = 0; args->error == 0 && i < count; i++)
        if (!has_stamps(bx_read_tensor(args), stamp + i))
            return bx_fail(-EPROTO, "tensor %llu is not what was sent, or not on loan",
                           (unsigned long long)i);
    return bx_msg_put_u64(reply, count);
}

static int copied(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                  void *context)
{
    uint64_t bytes;
    int rc = bx_counter(bx_request_job(request), "tensor_bytes_copied", &bytes);

    (void)args;
    (void)context;
    return rc < 0 ? rc : bx_msg_put_u64(reply, bytes);
}

static int add_functions(struct bx_job *job, void *context)
{
    int rc = bx_register(job, CHECK, BX_INLINE, check, context);

    return rc < 0 ? rc : bx_register(job, COPIED, BX_INLINE, copied, context);
}

/* ---- Worker 0: one round ----------------------------------------------------------------------- */

/* Creates and stamps; writes every page in a cold round. */
static int make_tensors(struct sender *sender, const struct bench_plan *plan, bool write_all)
{
    bx_msg_put_u64(sender->args, sender->stamp);
    bx_msg_put_u64(sender->args, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        size_t bytes = plan->tensors[i].bytes;
        uint64_t first = sender->stamp + i, last = ~first;
        int rc = bench_plan_create(plan, i, sender->job, &sender->tensors[i]);

        if (rc < 0)
            return rc;

        char *data = bx_tensor_data_mut(sender->tensors[i]);

        for (size_t at = PAGE; write_all && at < bytes; at += PAGE)
            data[at] = 1;
        memcpy(data, &first, sizeof first);
        memcpy(data + bytes - sizeof last, &last, sizeof last);
        rc = bx_msg_put_tensor(sender->args, sender->tensors[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int send_tensors(struct sender *sender, const struct bench_plan *plan)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rpc_sync(sender->job, sender->to, CHECK, sender->args, NULL, &reply);

    if (rc < 0)
        return rc;

    struct bx_reader reader = bx_msg_reader(reply);
    uint64_t count = bx_read_u64(&reader);

    bx_msg_destroy(reply);
    return count == plan->count ? 0 : bx_fail(-EPROTO, "%llu of %zu tensors were checked",
                                              (unsigned long long)count, plan->count);
}

static int release_tensors(struct sender *sender, const struct bench_plan *plan)
{
    struct bx_loans loans = { 0 };

    bx_msg_clear(sender->args);
    for (size_t i = 0; i < plan->count; i++) {
        bx_tensor_release(sender->tensors[i]);
        sender->tensors[i] = NULL;
    }
    for (int look = 0; look < LOOKS; look++) {
        int rc = bx_job_loans(sender->job, 1, &loans);

        if (rc < 0 || loans.leases == 0)
            return rc;
        sender->bench->results->late += look == 0;
    }
    return bx_loans_wait(sender->job, 1, 0, BENCH_WAIT_NS);
}

/* at[PHASES]: the clock before the first phase and after each. 0, or 1 after a line on stderr. */
static int hand_over(struct sender *sender, const struct bench_plan *plan, bool cold, uint64_t at[PHASES])
{
    int rc;

    sender->stamp += plan->count;
    at[0] = bench_ticks();
    rc = make_tensors(sender, plan, cold);
    if (rc < 0)
        return bench_fail("bx_tensor_create", rc);
    at[CREATE] = bench_ticks();
    rc = send_tensors(sender, plan);
    if (rc < 0)
        return bench_fail(CHECK, rc);
    at[SEND] = bench_ticks();
    rc = release_tensors(sender, plan);
    if (rc < 0)
        return bench_fail("the lease did not come back", rc);
    at[RELEASE] = bench_ticks();
    return 0;
}

/* ---- Worker 0: slices -------------------------------------------------------------------------- */

static uint32_t short_ticks(uint64_t ticks)
{
    return ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

static int run_slice(struct sender *sender, const struct measured *measured, int64_t slice)
{
    const struct handover *bench = sender->bench;
    uint64_t at[PHASES];

    for (int64_t i = -WARM_ROUNDS; i < bench->calls; i++) {
        if (hand_over(sender, &measured->plan, false, at) != 0)
            return 1;
        if (i < 0)
            continue;
        for (int phase = CREATE; phase < PHASES; phase++)
            measured->ticks[phase][slice * bench->calls + i] = short_ticks(at[phase] - at[phase - 1]);
        measured->ticks[WHOLE][slice * bench->calls + i] = short_ticks(at[RELEASE] - at[0]);
    }
    return 0;
}

static int run_cold(struct sender *sender, double *ns)
{
    const struct bench_plan *plan = &sender->bench->sizes[PROPER].plan;
    struct bx_arena_info arena = { 0 };
    uint64_t at[PHASES];
    int rc = bx_arena_trim(sender->job);

    if (rc >= 0)
        rc = bx_job_arena(sender->job, &arena);
    if (rc < 0)
        return bench_fail("bx_arena_trim", rc);
    if (arena.committed_bytes > plan->bytes / 2 && plan->bytes > 32 * (size_t)MB) {
        bench_say("the trimmed arena still holds %llu bytes: no round would be cold",
                  (unsigned long long)arena.committed_bytes);
        return 1;
    }

    uint64_t before_ns = bench_now_ns();

    if (hand_over(sender, plan, true, at) != 0)
        return 1;
    *ns = (double)(bench_now_ns() - before_ns);
    return 0;
}

static double copy_once(const struct sender *sender)
{
    if (sender->copy_from == NULL)
        return NAN;

    uint64_t before_ns = bench_now_ns();

    memcpy(sender->copy_to, sender->copy_from, sender->bench->sizes[PROPER].plan.bytes);
    /* The copy is not read: without this the compiler may remove it. */
    __asm__ volatile("" : : "r"(sender->copy_to) : "memory");
    return (double)(bench_now_ns() - before_ns);
}

/* The sum of both workers. */
static int count_copied(struct sender *sender, uint64_t *bytes)
{
    struct bx_msg *reply = NULL;
    int rc = bx_counter(sender->job, "tensor_bytes_copied", bytes);

    if (rc >= 0)
        rc = bx_rpc_sync(sender->job, sender->to, COPIED, NULL, NULL, &reply);
    if (rc < 0)
        return bench_fail(COPIED, rc);

    struct bx_reader reader = bx_msg_reader(reply);

    *bytes += bx_read_u64(&reader);
    bx_msg_destroy(reply);
    return 0;
}

static int run_slices(struct sender *sender)
{
    const struct handover *bench = sender->bench;
    uint64_t before, after;

    if (count_copied(sender, &before) != 0)
        return 1;
    for (int64_t i = 0; i < bench->slices; i++) {
        for (int size = 0; size < SIZES; size++)
            if (bench->sizes[size].plan.count > 0 && run_slice(sender, &bench->sizes[size], i) != 0)
                return 1;
        bench->copy_ns[i] = copy_once(sender);
    }
    for (int64_t i = 0; i < bench->slices; i++)
        if (run_cold(sender, &bench->cold_ns[i]) != 0)
            return 1;
    if (count_copied(sender, &after) != 0)
        return 1;
    bench->results->copied_bytes = after - before;
    return 0;
}

static int send_all(const struct handover *bench, struct bx_job *job)
{
    const struct bench_plan *plan = &bench->sizes[PROPER].plan;
    struct sender sender = {
        .bench = bench,
        .job = job,
        .args = bx_msg_create(64),
        .tensors = calloc(plan->count, sizeof *sender.tensors),
        .to = bx_worker_name(job, 1),
    };
    int status = 1;

    if (plan->bytes <= COPY_BYTES_MAX && (sender.copy_from = malloc(2 * plan->bytes)) != NULL) {
        sender.copy_to = sender.copy_from + plan->bytes;
        memset(sender.copy_from, 1, 2 * plan->bytes);
    }
    if (sender.args != NULL && sender.tensors != NULL)
        status = run_slices(&sender);
    bx_msg_destroy(sender.args);        /* after a failure it still holds tensors, as the array does */
    for (size_t i = 0; sender.tensors != NULL && i < plan->count; i++)
        bx_tensor_release(sender.tensors[i]);
    free(sender.tensors);
    free(sender.copy_from);
    return status;
}

static int worker(const struct bx_options *options, void *context)
{
    const struct handover *bench = context;
    struct bx_job *job;

    if (bench_worker_start(options, bench->options->cpus[options->rank], add_functions, NULL, &job) != 0)
        return 1;
    return options->rank == 1 ? bench_worker_serve(job) : bench_worker_end(job, send_all(bench, job));
}

/* ---- The launcher ------------------------------------------------------------------------------ */

/* The median, over slices, of each slice's median, in us; each[] gets the slices' medians. NAN if not measured. */
static double middle_us(const struct handover *bench, enum size size, enum phase phase, double *each)
{
    size_t calls = (size_t)bench->calls;
    const struct measured *measured = &bench->sizes[size];
    double sorted[BENCH_SLICES_MAX];

    if (measured->plan.count == 0)
        return NAN;
    for (size_t i = 0; i < (size_t)bench->slices; i++) {
        bench_sort(measured->ticks[phase] + i * calls, calls);
        each[i] = sorted[i] = bench_middle(measured->ticks[phase] + i * calls, calls);
    }
    return bench_median(sorted, (size_t)bench->slices) * bench_clock_ns_per_tick() * 1e-3;
}

static void report_sizes(const struct handover *bench)
{
    double small[BENCH_SLICES_MAX], large[BENCH_SLICES_MAX], ratio[BENCH_SLICES_MAX];
    double small_us = middle_us(bench, SMALL, WHOLE, small);
    double large_us = middle_us(bench, LARGE, WHOLE, large);
    bool both = bench->sizes[SMALL].plan.count > 0 && bench->sizes[LARGE].plan.count > 0;

    for (int64_t i = 0; both && i < bench->slices; i++)
        ratio[i] = large[i] / small[i];
    bench_report_number("p50_1mb_us", small_us, 2, "a round of as many tensors with 1 MB in all");
    bench_report_number("p50_1gb_us", large_us, 2, "the same with 1 GB");
    bench_report_number("ratio_1gb_1mb", both ? bench_median(ratio, (size_t)bench->slices) : NAN, 3,
                        "median over neighbouring slices");
}

static void report(const struct handover *bench)
{
    const struct measured *proper = &bench->sizes[PROPER];
    size_t slices = (size_t)bench->slices, all = slices * (size_t)bench->calls;
    double unused[BENCH_SLICES_MAX], us = bench_clock_ns_per_tick() * 1e-3;
    double whole_us = middle_us(bench, PROPER, WHOLE, unused);

    bench_sort(proper->ticks[WHOLE], all);
    bench_report_open(bench->options, "tensors made, sent in one message, checked, released");
    bench_report_number("tensors", (double)proper->plan.count, 0, "in the message");
    bench_report_number("bytes", (double)proper->plan.bytes, 0, "of all of them");
    bench_report_number("slices", (double)slices, 0, "of each size, in turn");
    bench_report_number("calls", (double)bench->calls, 0, "rounds in each");
    bench_report_number("p50_us", whole_us, 2, "a round, from the first create to the lease's return");
    bench_report_number("p99_us", bench_percentile(proper->ticks[WHOLE], all, 99) * us, 2, "");
    bench_report_number("create_p50_us", middle_us(bench, PROPER, CREATE, unused), 2,
                        "of it: create, stamp, put into the message");
    bench_report_number("send_p50_us", middle_us(bench, PROPER, SEND, unused), 2,
                        "of it: bx_rpc_sync, both stamps of each checked");
    bench_report_number("release_p50_us", middle_us(bench, PROPER, RELEASE, unused), 2,
                        "of it: release, until the lease is back");
    bench_report_number("late_returns", (double)bench->results->late, 0,
                        "rounds whose lease was not back at the first look");
    bench_report_number("copied_bytes", (double)bench->results->copied_bytes, 0,
                        "tensor bytes that either worker copied, in all rounds");
    bench_report_number("copy_us", bench_median(bench->copy_ns, slices) * 1e-3, 2,
                        "one memcpy of the bytes, warm");
    bench_report_number("cold_p50_us", bench_median(bench->cold_ns, slices) * 1e-3, 2,
                        "a round in new memory, every page written");
    report_sizes(bench);
    bench_report_close();
}

/* 0, or an exit status. */
static int measure(struct handover *bench, enum size size, int64_t bytes)
{
    struct measured *measured = &bench->sizes[size];
    int64_t count = bench->options->tensors != 0 ? bench->options->tensors : BENCH_TENSORS;
    int status = bench_plan_make(&measured->plan, count, bytes);

    for (int phase = 0; status == 0 && phase < PHASES; phase++)
        measured->ticks[phase] = bench_map((size_t)bench->slices * (size_t)bench->calls * sizeof(uint32_t));
    return status;
}

int bench_handover(const struct bench_options *options)
{
    struct handover bench = {
        .options = options,
        .slices = options->slices != 0 ? options->slices : 10,
        .calls = options->calls != 0 ? options->calls : 500,
    };
    int64_t bytes = options->bytes != 0 ? options->bytes : BENCH_TENSORS_BYTES;
    uint64_t room = bench_shm_room(), needed = (uint64_t)bytes + (uint64_t)bytes / 4;
    int status = measure(&bench, PROPER, bytes);

    if (status == 0 && room < needed) {
        bench_say("/dev/shm has %llu MB free, %lld bytes of tensors need %llu MB; --bytes takes less",
                  (unsigned long long)(room >> 20), (long long)bytes, (unsigned long long)(needed >> 20) + 1);
        return 1;
    }
    if (status == 0 && options->bytes == 0)
        status = measure(&bench, SMALL, MB);
    if (status == 0 && options->bytes == 0 && room >= (uint64_t)ROOM_FOR_GB)
        status = measure(&bench, LARGE, GB);
    else if (status == 0 && options->bytes == 0)
        bench_say("/dev/shm has %llu MB free, fewer than %lld: p50_1gb_us is left out",
                  (unsigned long long)(room >> 20), (long long)(ROOM_FOR_GB >> 20));
    if (status != 0)
        return status;
    bench.results = bench_map(sizeof *bench.results);
    bench.copy_ns = bench_map((size_t)bench.slices * sizeof(double));
    bench.cold_ns = bench_map((size_t)bench.slices * sizeof(double));
    if (!bench_spawn(2, &(struct bx_options){ .spin_ns = SPIN_NS }, worker, &bench))
        return 1;
    report(&bench);
    return 0;
}
