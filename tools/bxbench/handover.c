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
 *
 * The tensors are sized as the parameters of ResNet-50. The cost of a hand-over depends on the number of tensors, and
 * the arena's work on how their sizes differ: a few of 9 MB, many of a kilobyte. So other totals keep that mixture:
 * every tensor has BENCH_TENSOR_BYTES_MIN and its share of the rest.
 */
#include "bxbench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHECK "check"
#define WARM_ROUNDS 5
#define SPIN_NS 1000000         /* both stay awake while the other does its part */
#define LOOKS 100000            /* polls for the lease before it sleeps for it */
#define MB ((int64_t)1 << 20)
#define GB ((int64_t)1 << 30)
#define ROOM_FOR_GB (GB + GB / 2)
#define COPY_BYTES_MAX ((size_t)GB)     /* a larger message has no copy beside it, which takes twice the memory */
#define PAGE ((size_t)4096)
#define RESNET_TENSORS 161              /* parameters of ResNet-50 with 30 classes ... */
#define RESNET_BYTES 94278008           /* ... and what they take */
#define ELEMENTS_MIN (BENCH_TENSOR_BYTES_MIN / sizeof(float))

/* Series: two means of a slice; then, for each size, the phases of its rounds. */
enum { COPY, COLD, ROUNDS };
enum { WHOLE, CREATE, SEND, RELEASE, PHASES };
enum size { PROPER, SMALL, LARGE, SIZES };
enum { COPIED_BYTES, LATE };        /* values; late: rounds whose lease was not back at the first poll */

/* `count` tensors of `bytes` in all. Made before the fork. */
struct plan {
    size_t count;                   /* 0: not measured */
    size_t bytes;
    struct plan_tensor {
        size_t bytes;
        int ndim;                   /* a convolution's has four, the first of them long */
    } *tensors;
};

/* Worker 0's, for every round. */
struct sender {
    const struct plan *plans;
    struct bx_tensor **tensors;
    uint64_t stamp;
    uint64_t late;
    double copied_before;
    char *copy_from, *copy_to;
};

/* ---- Sizes ----------------------------------------------------------------------------------------- */

struct parameter {
    size_t elements;
    int ndim;
};

/* A convolution's weight, then weight and bias of the normalisation that follows it. */
static struct parameter *add_conv(struct parameter *at, size_t out, size_t in, size_t kernel)
{
    *at++ = (struct parameter){ out * in * kernel * kernel, 4 };
    *at++ = (struct parameter){ out, 1 };
    *at++ = (struct parameter){ out, 1 };
    return at;
}

/* In the order of torch's parameters(). */
static void list_resnet50(struct parameter list[RESNET_TENSORS])
{
    static const int blocks[] = { 3, 4, 6, 3 };
    struct parameter *at = add_conv(list, 64, 3, 7);
    size_t in = 64;

    for (int stage = 0; stage < 4; stage++) {
        size_t width = (size_t)64 << stage;

        for (int block = 0; block < blocks[stage]; block++) {
            at = add_conv(at, width, in, 1);
            at = add_conv(at, width, width, 3);
            at = add_conv(at, 4 * width, width, 1);
            if (block == 0)
                at = add_conv(at, 4 * width, in, 1);
            in = 4 * width;
        }
    }
    *at++ = (struct parameter){ 30 * in, 2 };
    *at = (struct parameter){ 30, 1 };
}

/* In the proportions of ResNet-50's parameters: with the two numbers above exactly these; else the list is repeated as
 * often as needed and each size is scaled. 0, or 2 after a line on stderr: too few bytes for so many tensors. */
static int make_plan(struct plan *plan, int64_t count, int64_t bytes)
{
    struct parameter list[RESNET_TENSORS];
    size_t whole = 0, before = 0, given = 0;

    plan->count = (size_t)count;
    plan->bytes = (size_t)bytes;
    if (plan->bytes / BENCH_TENSOR_BYTES_MIN < plan->count) {
        bench_say("%zu tensors take at least %zu bytes, %d each; --bytes says %zu", plan->count,
                  plan->count * BENCH_TENSOR_BYTES_MIN, BENCH_TENSOR_BYTES_MIN, plan->bytes);
        return 2;
    }
    plan->tensors = bench_map(plan->count * sizeof *plan->tensors);
    list_resnet50(list);
    for (size_t i = 0; i < plan->count; i++)
        whole += list[i % RESNET_TENSORS].elements - ELEMENTS_MIN;

    size_t rest = plan->bytes / sizeof(float) - plan->count * ELEMENTS_MIN;

    for (size_t i = 0; i < plan->count; i++) {
        const struct parameter *like = &list[i % RESNET_TENSORS];

        before += like->elements - ELEMENTS_MIN;

        /* Shares are differences of running sums, so that nothing is lost by rounding. The product fits: at most 2^33
         * elements of 4096 tensors, which are 26 lists. */
        size_t end = rest * before / whole;

        plan->tensors[i].bytes = (ELEMENTS_MIN + end - given) * sizeof(float);
        plan->tensors[i].ndim = like->ndim;
        given = end;
    }
    plan->tensors[plan->count - 1].bytes += plan->bytes % sizeof(float);
    return 0;
}

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

static int setup(struct bx_job *job, void *context)
{
    return bx_register(job, CHECK, BX_INLINE, check, context);
}

/* ---- Worker 0: one round ----------------------------------------------------------------------- */

/* f32, or u8 where 4 does not divide its bytes (the last only); in the job's arena. */
static int create(const struct plan_tensor *made, struct bx_job *job, struct bx_tensor **tensor)
{
    bool floats = made->bytes % sizeof(float) == 0;
    int64_t shape[4] = { (int64_t)(floats ? made->bytes / sizeof(float) : made->bytes), 1, 1, 1 };

    return bx_tensor_create(job, floats ? BX_F32 : BX_U8, made->ndim, shape, tensor);
}

/* Creates and stamps; writes every page in a cold round. */
static int make_tensors(struct bench_caller *caller, const struct plan *plan, bool write_all)
{
    struct sender *sender = caller->own;

    bx_msg_put_u64(caller->args, sender->stamp);
    bx_msg_put_u64(caller->args, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        size_t bytes = plan->tensors[i].bytes;
        uint64_t first = sender->stamp + i, last = ~first;
        int rc = create(&plan->tensors[i], caller->job, &sender->tensors[i]);

        if (rc < 0)
            return rc;

        char *data = bx_tensor_data_mut(sender->tensors[i]);

        for (size_t at = PAGE; write_all && at < bytes; at += PAGE)
            data[at] = 1;
        memcpy(data, &first, sizeof first);
        memcpy(data + bytes - sizeof last, &last, sizeof last);
        rc = bx_msg_put_tensor(caller->args, sender->tensors[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int send_tensors(struct bench_caller *caller, const struct plan *plan)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rpc_sync(caller->job, caller->to, CHECK, caller->args, NULL, &reply);

    if (rc < 0)
        return rc;

    struct bx_reader reader = bx_msg_reader(reply);
    uint64_t count = bx_read_u64(&reader);

    bx_msg_destroy(reply);
    return count == plan->count ? 0 : bx_fail(-EPROTO, "%llu of %zu tensors were checked",
                                              (unsigned long long)count, plan->count);
}

static int release_tensors(struct bench_caller *caller, const struct plan *plan)
{
    struct sender *sender = caller->own;
    struct bx_loans loans = { 0 };

    bx_msg_clear(caller->args);
    for (size_t i = 0; i < plan->count; i++) {
        bx_tensor_release(sender->tensors[i]);
        sender->tensors[i] = NULL;
    }
    for (int look = 0; look < LOOKS; look++) {
        int rc = bx_job_loans(caller->job, 1, &loans);

        if (rc < 0 || loans.leases == 0)
            return rc;
        sender->late += look == 0;
    }
    return bx_loans_wait(caller->job, 1, 0, BENCH_WAIT_NS);
}

/* at[PHASES]: the clock before the first phase and after each. 0, or 1 after a line on stderr. */
static int hand_over(struct bench_caller *caller, const struct plan *plan, bool cold, uint64_t at[PHASES])
{
    int rc;

    ((struct sender *)caller->own)->stamp += plan->count;
    at[0] = bench_ticks();
    rc = make_tensors(caller, plan, cold);
    if (rc < 0)
        return bench_fail("bx_tensor_create", rc);
    at[CREATE] = bench_ticks();
    rc = send_tensors(caller, plan);
    if (rc < 0)
        return bench_fail(CHECK, rc);
    at[SEND] = bench_ticks();
    rc = release_tensors(caller, plan);
    if (rc < 0)
        return bench_fail("the lease did not come back", rc);
    at[RELEASE] = bench_ticks();
    return 0;
}

/* ---- Worker 0: slices ------------------------------------------------------------------------------ */

static int slice_rounds(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct sender *sender = caller->own;
    int series = ROUNDS + kind * PHASES;
    uint64_t at[PHASES];

    for (int64_t i = -WARM_ROUNDS; i < caller->run->calls; i++) {
        if (hand_over(caller, &sender->plans[kind], false, at) != 0)
            return 1;
        if (i < 0)
            continue;
        for (int phase = CREATE; phase < PHASES; phase++)
            bench_place(caller, series + phase, slice)[i] = bench_short_ticks(at[phase] - at[phase - 1]);
        bench_place(caller, series + WHOLE, slice)[i] = bench_short_ticks(at[RELEASE] - at[0]);
    }
    return 0;
}

static int slice_copy(struct bench_caller *caller, int kind, int64_t slice)
{
    const struct sender *sender = caller->own;
    uint64_t before = bench_ticks();

    (void)kind;
    if (sender->copy_from != NULL)
        memcpy(sender->copy_to, sender->copy_from, sender->plans[PROPER].bytes);
    /* The copy is not read: without this the compiler may remove it. */
    __asm__ volatile("" : : "r"(sender->copy_to) : "memory");
    caller->run->series[COPY].middle[slice] = sender->copy_from != NULL ? (double)(bench_ticks() - before) : NAN;
    return 0;
}

static int round_in_new_memory(struct bench_caller *caller, double *ticks)
{
    const struct plan *plan = ((struct sender *)caller->own)->plans;
    struct bx_arena_info arena = { 0 };
    uint64_t at[PHASES];
    int rc = bx_arena_trim(caller->job);

    if (rc >= 0)
        rc = bx_job_arena(caller->job, &arena);
    if (rc < 0)
        return bench_fail("bx_arena_trim", rc);
    if (arena.committed_bytes > plan->bytes / 2 && plan->bytes > 32 * (size_t)MB) {
        bench_say("the trimmed arena still holds %llu bytes: no round would be cold",
                  (unsigned long long)arena.committed_bytes);
        return 1;
    }
    if (hand_over(caller, plan, true, at) != 0)
        return 1;
    *ticks = (double)(at[RELEASE] - at[0]);
    return 0;
}

static int begin(struct bench_caller *caller)
{
    static struct sender sender;
    int rc;

    sender.plans = caller->run->context;
    sender.tensors = calloc(sender.plans->count, sizeof *sender.tensors);
    if (sender.tensors == NULL)
        return bench_fail("calloc", -ENOMEM);
    caller->own = &sender;
    if (sender.plans->bytes <= COPY_BYTES_MAX && (sender.copy_from = malloc(2 * sender.plans->bytes)) != NULL) {
        sender.copy_to = sender.copy_from + sender.plans->bytes;
        memset(sender.copy_from, 1, 2 * sender.plans->bytes);
    }
    rc = bench_copied(caller, &sender.copied_before);
    return rc < 0 ? bench_fail("a counter", rc) : 0;
}

static int end(struct bench_caller *caller, int status)
{
    const struct bench_run *run = caller->run;
    struct sender *sender = caller->own;
    double copied = 0;
    int rc;

    if (sender == NULL)
        return status;
    for (int64_t i = 0; status == 0 && i < run->slices; i++)
        status = round_in_new_memory(caller, &run->series[COLD].middle[i]);
    if (status == 0 && (rc = bench_copied(caller, &copied)) < 0)
        status = bench_fail("a counter", rc);
    run->values[COPIED_BYTES][0] = copied - sender->copied_before;
    run->values[LATE][0] = (double)sender->late;
    bx_msg_clear(caller->args);         /* after a failure it still holds tensors, as the array does */
    for (size_t i = 0; i < sender->plans->count; i++)
        bx_tensor_release(sender->tensors[i]);
    free(sender->tensors);
    free(sender->copy_from);
    return status;
}

/* ---- The launcher ---------------------------------------------------------------------------------- */

static double middle_us(const struct bench_run *run, enum size size, int phase)
{
    return bench_middle_ns(&run->series[ROUNDS + (int)size * PHASES + phase]) * 1e-3;
}

static void report(const struct bench_run *run, const struct plan *plan)
{
    const struct bench_series *small = &run->series[ROUNDS + SMALL * PHASES + WHOLE],
                              *large = &run->series[ROUNDS + LARGE * PHASES + WHOLE];

    bench_open(run->options, "tensors made, sent in one message, checked, released");
    bench_number("tensors", (double)plan->count, 0, "in the message");
    bench_number("bytes", (double)plan->bytes, 0, "of all of them");
    bench_counts(run);
    bench_number("p50_us", middle_us(run, PROPER, WHOLE), 2, "a round, from the first create to the lease's return");
    bench_number("p99_us", bench_percentile_ns(&run->series[ROUNDS + WHOLE], 99) * 1e-3, 2, "");
    bench_number("create_p50_us", middle_us(run, PROPER, CREATE), 2, "of it: create, stamp, put into the message");
    bench_number("send_p50_us", middle_us(run, PROPER, SEND), 2, "of it: bx_rpc_sync, both stamps of each checked");
    bench_number("release_p50_us", middle_us(run, PROPER, RELEASE), 2, "of it: release, until the lease is back");
    bench_number("late_returns", run->values[LATE][0], 0, "rounds whose lease was not back at the first look");
    bench_number("copied_bytes", run->values[COPIED_BYTES][0], 0,
                 "tensor bytes that either worker copied, in all rounds");
    bench_number("copy_us", bench_middle_ns(&run->series[COPY]) * 1e-3, 2, "one memcpy of the bytes, warm");
    bench_number("cold_p50_us", bench_middle_ns(&run->series[COLD]) * 1e-3, 2,
                 "a round in new memory, every page written");
    bench_number("p50_1mb_us", middle_us(run, SMALL, WHOLE), 2, "a round of as many tensors with 1 MB in all");
    bench_number("p50_1gb_us", middle_us(run, LARGE, WHOLE), 2, "the same with 1 GB");
    bench_number("ratio_1gb_1mb", bench_ratio(large, small), 3, "median over neighbouring slices");
    bench_close();
}

/* How many sizes are measured: all, if none was asked for and the memory is there; 0 after a line on stderr. */
static int count_sizes(const struct bench_options *options, int64_t bytes)
{
    uint64_t room = bench_shm_room(), needed = (uint64_t)bytes + (uint64_t)bytes / 4;

    if (room < needed) {
        bench_say("/dev/shm has %llu MB free, %lld bytes of tensors need %llu MB; --bytes takes less",
                  (unsigned long long)(room >> 20), (long long)bytes, (unsigned long long)(needed >> 20) + 1);
        return 0;
    }
    if (options->bytes != 0)
        return 1;
    if (room >= (uint64_t)ROOM_FOR_GB)
        return SIZES;
    bench_say("/dev/shm has %llu MB free, fewer than %lld: p50_1gb_us is left out",
              (unsigned long long)(room >> 20), (long long)(ROOM_FOR_GB >> 20));
    return LARGE;
}

int bench_handover(struct bench_options *options)
{
    const int64_t bytes[SIZES] = { options->bytes != 0 ? options->bytes : RESNET_BYTES, MB, GB };
    struct plan plans[SIZES] = { { 0 } };
    struct bench_run run = {
        .options = options, .slices = options->slices, .calls = options->calls, .workers = 2, .callers = 1,
        .means = 1 << COPY | 1 << COLD, .common = { .spin_ns = SPIN_NS },
        .setup = setup, .begin = begin, .end = end, .context = plans
    };
    int status = make_plan(&plans[PROPER], options->tensors, bytes[PROPER]), sizes;

    if (status != 0)
        return status;
    sizes = count_sizes(options, bytes[PROPER]);
    if (sizes == 0)
        return 1;
    for (int size = 0; status == 0 && size < sizes; size++) {
        run.kinds[size] = slice_rounds;
        if (size != PROPER)
            status = make_plan(&plans[size], options->tensors, bytes[size]);
    }
    run.kinds[sizes] = slice_copy;
    run.series_count = ROUNDS + sizes * PHASES;
    if (status != 0 || !bench_run_job(&run))
        return status != 0 ? status : 1;
    report(&run, plans);
    return 0;
}
