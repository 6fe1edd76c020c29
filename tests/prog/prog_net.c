/* SPDX-License-Identifier: MIT */
/*
 * A worker of a job across hosts, for tests/e2e/net.sh. Who and where it is stands in the environment (BX_JOB, BX_RANK,
 * BX_WORLD_SIZE, BX_ROOT, BX_SECRET, BX_HOST).
 *
 *     prog_net pairs          checks what the network carries between all pairs: deadlines, sizes, tensors. What calls,
 *                             batches and references are is tests/e2e/net_units.sh; many at once are prog_net_mix
 *                             and prog_net_full
 *
 * All workers run the same mode. It prints "started", "failed: ..." for each check that fails, "cannot start: CODE:
 * SENTENCE", and "done" at the end. Exit status 0; 1: a check failed; 3: it could not start.
 */
#include "prog_net.h"

#include <dlfcn.h>
#include <signal.h>

#define NOTES 20            /* one-way calls to each worker, at the end */
#define LARGE 20000000      /* bytes of the largest message */
#define THIRDS 4            /* workers to which another one passes things on */

static int notes[WORLD_MOST];       /* by rank: its one-way calls that have run */
static int deaths;
static uint64_t sent_bytes;         /* to remote workers, at least */
static struct bx_tensor *kept[WORLD_MOST];      /* by rank: what it sent to be kept */

/* ---- functions -------------------------------------------------------------------------------------------- */

/* Of type, shape and all elements in row-major order. */
static uint64_t hash_of(const struct bx_tensor *tensor)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    int64_t index[BX_DIMS_MAX] = { 0 };
    int ndim = bx_tensor_ndim(tensor);
    size_t bytes = bx_dtype_bytes(bx_tensor_dtype(tensor));
    const unsigned char *data = bx_tensor_data(tensor);

    hash = (hash ^ (uint64_t)bx_tensor_dtype(tensor)) * 1099511628211u + (uint64_t)ndim;
    for (int d = 0; d < ndim; d++)
        hash = (hash ^ (uint64_t)bx_tensor_dim(tensor, d)) * 1099511628211u;
    for (int64_t left = bx_tensor_elements(tensor); left > 0; left--) {
        size_t at = 0;

        for (int d = 0; d < ndim; d++)
            at += (size_t)(index[d] * bx_tensor_strides(tensor)[d]);
        for (size_t b = 0; b < bytes; b++)
            hash = (hash ^ data[at * bytes + b]) * 1099511628211u;
        for (int d = ndim - 1; d >= 0 && ++index[d] == bx_tensor_dim(tensor, d); d--)
            index[d] = 0;
    }
    return hash;
}

static int hash(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    while (bx_reader_tensors_left(args) > 0)
        bx_msg_put_u64(reply, hash_of(bx_read_tensor(args)));
    return bx_msg_error(reply);
}

static int keep(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    (void)reply, (void)context;
    kept[bx_request_caller(request)] = tensor;
    bx_tensor_acquire(tensor);
    return 0;
}

static int hash_kept(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = kept[bx_request_caller(request)];
    uint64_t found = hash_of(tensor);

    (void)args, (void)context;
    bx_tensor_release(tensor);
    return bx_msg_put_u64(reply, found);
}

/* Passes tensors on to another worker's function, and its answer back. */
static int relay(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const char *function;
    int64_t to;
    int rc = bx_read(args, "is", &to, &function);
    struct bx_msg *on = bx_msg_create(0), *answer = NULL;
    struct bx_reader reader;

    (void)request, (void)context;
    while (rc == 0 && bx_reader_tensors_left(args) > 0)
        rc = bx_msg_put_tensor(on, bx_read_tensor(args));
    if (rc == 0)
        rc = bx_rpc_sync(job, bx_rank((int)to), function, on, NULL, &answer);
    if (rc == 0) {
        reader = bx_msg_reader(answer);
        rc = echo(NULL, &reader, reply, NULL);
    }
    bx_msg_destroy(on);
    bx_msg_destroy(answer);
    return rc;
}

/* One-way calls of a worker arrive in the order in which it made them. */
static int note(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int *count = &notes[bx_request_caller(request)];

    (void)reply, (void)context;
    EXPECT(bx_read_i64(args) == *count, "one-way call %d of rank %d", *count, bx_request_caller(request));
    ++*count;
    return 0;
}

/* What is left until the request's deadline. */
static int time_left(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct timespec now;

    (void)args, (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return bx_msg_put_i64(reply, (int64_t)(bx_request_deadline_ns(request) / MS) -
                                 (int64_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000));
}

static int tell_counter(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    return bx_msg_put_u64(reply, counter(bx_read_str(args)));
}

/* ---- the process ------------------------------------------------------------------------------------------ */

/* The plug-in is loaded, and UCX has taken no signal. */
static void check_signals(void)
{
    for (int i = 1; i < 32; i++) {
        struct sigaction action;
        Dl_info info = { .dli_fname = NULL };

        EXPECT(sigaction(i, NULL, &action) == 0, "%d", i);
        if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
            dladdr(*(void **)&action.sa_handler, &info);
        EXPECT(info.dli_fname == NULL || strstr(info.dli_fname, "libuc") == NULL, "signal %d is of %s", i,
               info.dli_fname);
    }
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

/* Of a callee: it has what is left by its own clock. */
static void check_deadlines(int to)
{
    const struct bx_call_options soon = { .timeout_ns = 30 * MS }, ten_s = { .timeout_ns = 10000 * MS };
    int64_t left_ms = 0;
    int rc = bx_call_with(job, bx_rank(to), "hold", &soon, ">");

    EXPECT(rc == BX_E_TIMEOUT, "%s", bx_error_text());
    rc = bx_call_with(job, bx_rank(to), "time_left", &ten_s, ">i", &left_ms);
    EXPECT(rc == 0 && left_ms > 8000 && left_ms < 10200, "%d ms are left to rank %d", (int)left_ms, to);
}

static void check_sizes(int to)
{
    static const size_t sizes[] = { 0, 1, 100, 4000, 8000, 16000, 16300, 16384, 16385, 65536, 1000001, LARGE };
    const bool is_near = to == (rank + 1) % size || rank == (to + 1) % size;
    unsigned char *data = malloc(LARGE);

    for (size_t i = 0; i < LARGE; i++)
        data[i] = (unsigned char)(i * 7 + i / 251 + (size_t)rank);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && (sizes[i] < LARGE || is_near); i++) {
        check_answer(to, send_bytes(to, "echo", data, sizes[i]), data, sizes[i]);
        sent_bytes += is_remote(to) ? sizes[i] : 0;
    }
    free(data);
}

/* Near ones and far ones, on both hosts. */
static int third_of(int worker, int i)
{
    return (worker + (i < 2 ? i : i == 2 ? size / 2 : size - 1)) % size;
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

#define SHAPES 16

static struct bx_tensor *filled(bool on_heap, enum bx_dtype dtype, int ndim, const int64_t *shape)
{
    struct bx_tensor *tensor = NULL;
    int rc = bx_tensor_create(on_heap ? NULL : job, dtype, ndim, shape, &tensor);
    unsigned char *data = rc == 0 ? bx_tensor_data_mut(tensor) : NULL;
    size_t bytes = rc == 0 ? bx_tensor_bytes(tensor) : 0;

    EXPECT(rc == 0, "%s", bx_error_text());
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(dtype == BX_BOOL ? i % 3 == 0 : i * 31 + i / 253 + 7 * (size_t)rank);
    return tensor;
}

/* A view takes the place of its tensor. */
static struct bx_tensor *viewed(int which, struct bx_tensor *of)
{
    struct bx_tensor *view = NULL;
    int rc = which == 0 ? bx_tensor_transpose(of, 0, 1, &view) : which == 1 ? bx_tensor_slice(of, 0, 5, 900, 3, &view)
           : which == 2 ? bx_tensor_select(of, 1, 3, &view) : bx_tensor_as_strided(of, 2, 2, (int64_t[]){ 5, 6 },
                                                                                   (int64_t[]){ 1, 2 }, &view);

    EXPECT(rc == 0, "%s", bx_error_text());
    bx_tensor_release(of);
    return view;
}

/* Tensors of all kinds. The caller's to release. */
static void make_tensors(struct bx_tensor *tensors[SHAPES])
{
    int n = 0;

    tensors[n++] = filled(false, BX_F32, 1, (int64_t[]){ 1000 });
    tensors[n++] = filled(false, BX_F64, 2, (int64_t[]){ 3, 5 });
    tensors[n++] = filled(false, BX_F16, 3, (int64_t[]){ 2, 3, 4 });
    tensors[n++] = filled(false, BX_BF16, 1, (int64_t[]){ 7 });
    tensors[n++] = filled(false, BX_I32, 2, (int64_t[]){ 0, 3 });
    tensors[n++] = filled(false, BX_I64, 0, NULL);
    tensors[n++] = filled(false, BX_U8, 1, (int64_t[]){ 1 });
    tensors[n++] = filled(false, BX_BOOL, 1, (int64_t[]){ 65 });
    tensors[n++] = filled(false, BX_C128, 8, (int64_t[]){ 1, 2, 1, 2, 1, 2, 1, 2 });
    tensors[n++] = viewed(0, filled(false, BX_F32, 2, (int64_t[]){ 40, 50 }));
    tensors[n++] = viewed(1, filled(false, BX_I16, 1, (int64_t[]){ 1000 }));
    tensors[n++] = viewed(2, filled(false, BX_U64, 2, (int64_t[]){ 30, 7 }));
    tensors[n++] = viewed(3, filled(false, BX_F8_E5M2, 1, (int64_t[]){ 100 }));
    tensors[n++] = filled(false, BX_F32, 1, (int64_t[]){ 70000 });
    tensors[n++] = filled(true, BX_F32, 2, (int64_t[]){ 33, 65 });
    tensors[n++] = viewed(0, filled(true, BX_I8, 2, (int64_t[]){ 20, 3 }));
}

/* function answers with the hashes of the tensors, or sends them back. via: -1, or a worker that passes them on. */
static void check_sent(int to, int via, const char *function, struct bx_tensor **tensors, int count)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;
    int rc = via < 0 ? 0 : bx_msg_put(args, "is", to, function);

    for (int i = 0; i < count && rc == 0; i++)
        rc = bx_msg_put_tensor(args, tensors[i]);
    if (rc == 0)
        rc = bx_rpc_sync(job, bx_rank(via < 0 ? to : via), via < 0 ? function : "relay", args, NULL, &reply);
    EXPECT(rc == 0, "%s of %d tensors by %d at %d: %s", function, count, via, to, bx_error_text());
    reader = bx_msg_reader(reply);
    for (int i = 0; i < count && rc == 0; i++) {
        uint64_t wanted = hash_of(tensors[i]);
        const struct bx_tensor *back = function[0] == 'e' ? bx_read_tensor(&reader) : NULL;
        uint64_t found = function[0] != 'e' ? bx_read_u64(&reader) : back != NULL ? hash_of(back) : 0;

        EXPECT(found == wanted, "%s by %d at %d: tensor %d of %d (%s, %lld elements) is another", function, via, to, i,
               count, bx_dtype_name(bx_tensor_dtype(tensors[i])), (long long)bx_tensor_elements(tensors[i]));
        sent_bytes += is_remote(via < 0 ? to : via) ? bx_tensor_bytes(tensors[i]) : 0;
    }
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
}

static void check_tensors(int to)
{
    struct bx_tensor *tensors[SHAPES];

    make_tensors(tensors);
    check_sent(to, -1, "hash", tensors, SHAPES);
    check_sent(to, -1, "echo", tensors, SHAPES);
    for (int i = 0; i < SHAPES; i++) {
        check_sent(to, -1, "hash", &tensors[i], 1);
        check_sent(to, -1, "echo", &tensors[i], 1);
    }
    for (int i = 0; i < THIRDS; i++) {
        check_sent(third_of(to, i), to, "hash", tensors, SHAPES);
        check_sent(third_of(to, i), to, "echo", tensors, SHAPES);
    }
    for (int i = 0; i < SHAPES; i++)
        bx_tensor_release(tensors[i]);
}

/* Its borrower on another host keeps a copy: the lease is over, and the owner may write. */
static void check_kept(int to)
{
    struct bx_tensor *tensor = is_remote(to) ? filled(false, BX_F32, 1, (int64_t[]){ 70000 }) : NULL;
    uint64_t wanted, found = 0;

    if (tensor == NULL)
        return;
    wanted = hash_of(tensor);
    EXPECT(bx_call(job, bx_rank(to), "keep", "T>", tensor) == 0, "%s", bx_error_text());
    EXPECT(bx_loans_wait(job, to, 0, 5000 * MS) == 0, "%d still borrows: %s", to, bx_error_text());
    memset(bx_tensor_data_mut(tensor), 5, bx_tensor_bytes(tensor));
    EXPECT(bx_call(job, bx_rank(to), "hash_kept", ">u", &found) == 0 && found == wanted, "%d has others", to);
    bx_tensor_release(tensor);
}

/* ---- what the network carries -------------------------------------------------------------------------------- */

static uint64_t counter_of(int of, const char *name)
{
    uint64_t value = 0;

    EXPECT(bx_call(job, bx_rank(of), "counter", "s>u", name, &value) == 0, "%s", bx_error_text());
    return value;
}

/* Rank 0 alone, while the others wait: a tensor goes over the network once for each borrower on another host, and not
 * at all within a host. */
static void check_copies(void)
{
    enum { BYTES = 2 << 20, SLACK = 128 << 10 };
    struct bx_tensor *tensor = filled(false, BX_U8, 1, (int64_t[]){ BYTES });

    for (int via = 0; via < size; via++)
        for (int to = 0; to < size; to++) {
            bool goes_on = strcmp(host_of[via], host_of[to]) != 0;
            uint64_t before = counter("net_bytes"), via_before = counter_of(via, "net_bytes"), took, via_took;

            check_sent(to, via, "hash", &tensor, 1);
            took = counter("net_bytes") - before;
            via_took = counter_of(via, "net_bytes") - via_before;
            if (via != 0)
                EXPECT(is_remote(via) ? took >= BYTES && took < BYTES + SLACK : took < SLACK, "%llu bytes to %d",
                       (unsigned long long)took, via);
            if (via != to && to != 0)
                EXPECT(goes_on ? via_took >= BYTES && via_took < BYTES + SLACK : via_took < SLACK,
                       "%llu bytes from %d to %d", (unsigned long long)via_took, via, to);
        }
    bx_tensor_release(tensor);
}

/* ---- the modes ----------------------------------------------------------------------------------------------- */

static void someone_died(struct bx_job *of, int who, void *context)
{
    (void)of, (void)who, (void)context;
    __atomic_add_fetch(&deaths, 1, __ATOMIC_RELAXED);
}

static void check_everything(void)
{
    static void (*const checks[])(int to) = { check_deadlines, check_sizes, check_tensors, check_kept };

    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        for (int step = 0; step < size; step++)
            checks[i]((rank + step) % size);
    barrier();
    if (rank == 0)
        check_copies();
    barrier();
}

/* All have called everything: nothing is on loan once the last words have come. */
static void check_nothing_is_left(void)
{
    bool crosses = false;

    check_loans(5000);
    for (int other = 0; other < size; other++)
        crosses |= is_remote(other);
    EXPECT(!crosses || counter("net_bytes_received") > 0, "nothing came over the network");
    EXPECT(counter("net_bytes") >= sent_bytes, "the network carried %llu bytes of %llu",
           (unsigned long long)counter("net_bytes"), (unsigned long long)sent_bytes);
    EXPECT(deaths == 0, "%d deaths", deaths);
    printf("sent %llu bytes or more to other hosts\n", (unsigned long long)sent_bytes);
}

static int run_pairs(void)
{
    check_signals();
    check_everything();
    check_nothing_is_left();
    barrier();
    for (int to = 0; to < size; to++)
        for (int i = 0; i < NOTES; i++) {
            struct bx_msg *args = bx_msg_create(0);

            bx_msg_put_i64(args, i);
            EXPECT(bx_rpc_oneway(job, bx_rank(to), "note", args, NULL) == 0, "%s", bx_error_text());
            bx_msg_destroy(args);
        }
    leave();
    for (int from = 0; from < size; from++)
        EXPECT(notes[from] == NOTES, "%d of the last one-way calls of %d ran", notes[from], from);
    EXPECT(counter("peers_dead") == 0 && deaths == 0, "workers died");
    return close_job();
}

int main(int argc, char **argv)
{
    int rc;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2 || strcmp(argv[1], "pairs") != 0) {
        fprintf(stderr, "usage: prog_net pairs\n");
        return 2;
    }
    rc = bx_job_create(NULL, &job);
    if (rc == 0)
        rc = bx_on_death(job, someone_died, NULL);
    return !start(rc, FUNCTIONS(HARNESS_INLINE("keep", keep), HARNESS_INLINE("hash_kept", hash_kept),
                                HARNESS_BLOCKING("echo", echo), HARNESS_BLOCKING("hash", hash),
                                HARNESS_BLOCKING("relay", relay), HARNESS_INLINE("note", note),
                                HARNESS_ASYNC("hold", hold), HARNESS_INLINE("time_left", time_left),
                                HARNESS_INLINE("counter", tell_counter)))
           ? 3 : run_pairs();
}
