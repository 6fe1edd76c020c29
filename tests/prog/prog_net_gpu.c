/* SPDX-License-Identifier: MIT */
/*
 * A worker with a GPU of a job across hosts, for tests/e2e/net.sh. Environment as that of prog_net; BX_CUDA_DRIVER
 * names the tests' driver, or the GPU's is taken.
 *
 *     prog_net_gpu [RANK]     checks tensors in device memory between all pairs; the worker RANK opens no GPU
 *
 * Output and exit status as those of prog_net.
 */
#include "prog_net.h"

#include <dlfcn.h>
#include <errno.h>

#define COUNT 700001        /* elements of a large tensor, of 4 bytes each: three pieces of pinned memory */
#define ROUNDS 4
#define MANY 161

static struct bx_device device;
static int without = -1;                /* the rank that opens no GPU */
static struct bx_tensor *kept;

/* ---- the driver: a stream that is late --------------------------------------------------------------------- */

static void *stream;
static unsigned (*memset_on)(unsigned long long to, unsigned char value, size_t bytes, void *stream);
static unsigned (*call_on)(void *stream, void (*function)(void *context), void *context);

static void open_stream(void)
{
    const char *path = getenv("BX_CUDA_DRIVER");
    void *driver = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW), *context = NULL;
    unsigned (*retain)(void **context, int ordinal), (*push)(void *context), (*create)(void **stream, unsigned flags);

    *(void **)&retain = driver == NULL ? NULL : dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&push = driver == NULL ? NULL : dlsym(driver, "cuCtxPushCurrent_v2");
    *(void **)&create = driver == NULL ? NULL : dlsym(driver, "cuStreamCreate");
    *(void **)&memset_on = driver == NULL ? NULL : dlsym(driver, "cuMemsetD8Async");
    *(void **)&call_on = driver == NULL ? NULL : dlsym(driver, "cuLaunchHostFunc");
    EXPECT(driver != NULL && retain(&context, 0) == 0 && push(context) == 0 && create(&stream, 1) == 0, "no stream");
}

static void be_late(void *context)
{
    (void)context;
    nap_ms(10);
}

/* Put on the stream, which does it later. */
static void fill_late(struct bx_tensor *tensor, int value)
{
    unsigned long long at = (uintptr_t)bx_tensor_data(tensor);

    EXPECT(call_on(stream, be_late, NULL) == 0 &&
           memset_on(at, (unsigned char)value, bx_tensor_bytes(tensor), stream) == 0, "the stream took nothing");
    EXPECT(bx_tensor_written_on(tensor, stream) == 0, "%s", bx_error_text());
}

/* ---- tensors ------------------------------------------------------------------------------------------------- */

static struct bx_tensor *make(struct bx_device where, int ndim, const int64_t *shape)
{
    struct bx_tensor *tensor = NULL;

    EXPECT(bx_tensor_create_on(job, where, BX_I32, ndim, shape, &tensor) == 0, "%s", bx_error_text());
    return tensor;
}

static struct bx_tensor *make_host(int ndim, const int64_t *shape)
{
    return make((struct bx_device){ BX_CPU, 0 }, ndim, shape);
}

/* A large one whose bytes are all that value. */
static struct bx_tensor *expected(int value)
{
    struct bx_tensor *host = make_host(1, (int64_t[]){ COUNT });

    memset(bx_tensor_data_mut(host), value, bx_tensor_bytes(host));
    return host;
}

/* It is on a GPU, if it should be, and has the elements of the other one, which is row-major in host memory. */
static bool is_same(const struct bx_tensor *tensor, const struct bx_tensor *other)
{
    struct bx_tensor *host = NULL;
    bool same = bx_tensor_device(tensor).kind == BX_CUDA && bx_tensor_elements(tensor) == bx_tensor_elements(other) &&
                bx_tensor_create(NULL, BX_I32, bx_tensor_ndim(tensor), bx_tensor_shape(tensor), &host) == 0 &&
                bx_tensor_copy_into(host, tensor) == 0 &&
                memcmp(bx_tensor_data(host), bx_tensor_data(other), bx_tensor_bytes(other)) == 0;

    bx_tensor_release(host);
    return same;
}

static void put(struct bx_msg *message, struct bx_tensor *tensor)
{
    EXPECT(bx_msg_put_tensor(message, tensor) == 0, "%s", bx_error_text());
}

/* Calls it with the message, which is destroyed. The reply, or NULL. */
static struct bx_msg *call(int to, const char *function, struct bx_msg *args)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rpc_sync(job, bx_rank(to), function, args, NULL, &reply);

    EXPECT(rc == 0, "%s of %d: %s", function, to, bx_error_text());
    bx_msg_destroy(args);
    return rc == 0 ? reply : NULL;
}

/* ---- functions -------------------------------------------------------------------------------------------- */

/* Pairs of a tensor on a GPU and its elements in host memory. Replies with how many are wrong, and the first. */
static int compare(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *first = NULL;
    int64_t wrong = 0;

    (void)request, (void)context;
    while (bx_reader_tensors_left(args) > 1) {
        struct bx_tensor *tensor = bx_read_tensor(args);

        wrong += !is_same(tensor, bx_read_tensor(args));
        first = first == NULL ? tensor : first;
    }
    bx_msg_put_i64(reply, wrong);
    return bx_msg_put_tensor(reply, first);
}

/* Sends the pair on to another worker, and replies with its answer. */
static int pass_on(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int to = (int)bx_read_i64(args);
    struct bx_tensor *tensor = bx_read_tensor(args), *host = bx_read_tensor(args), *back = NULL;
    int64_t wrong = -1;
    int rc = bx_call(job, bx_rank(to), "compare", "TT>iT", tensor, host, &wrong, &back);

    (void)request, (void)context;
    bx_tensor_release(back);
    return rc < 0 ? rc : bx_msg_put_i64(reply, wrong);
}

static int keep(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)reply, (void)context;
    kept = bx_read_tensor(args);
    bx_tensor_acquire(kept);
    return 0;
}

/* The one that was kept, against the host tensor that comes; it is let go. */
static int compare_kept(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    bx_msg_put_i64(reply, !is_same(kept, bx_read_tensor(args)));
    bx_tensor_release(kept);
    kept = NULL;
    return bx_msg_error(reply);
}

static int staged(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)context;
    return bx_msg_put_i64(reply, (int64_t)counter("gpu_staged_bytes"));
}

/* ---- checks -------------------------------------------------------------------------------------------------- */

/* What a stream writes later arrives, and what comes back is that. */
static void check_order(int to)
{
    struct bx_tensor *tensor = make(device, 1, (int64_t[]){ COUNT });

    for (int round = 1; round <= ROUNDS; round++) {
        struct bx_msg *args = bx_msg_create(0), *reply;
        struct bx_tensor *host = expected(round + 16 * rank);

        fill_late(tensor, round + 16 * rank);
        put(args, tensor);
        put(args, host);
        reply = call(to, "compare", args);
        if (reply != NULL) {
            struct bx_reader reader = bx_msg_reader(reply);

            EXPECT(bx_read_i64(&reader) == 0, "round %d: other bytes arrived at %d", round, to);
            EXPECT(is_same(bx_read_tensor(&reader), host), "round %d: other bytes came back from %d", round, to);
        }
        bx_msg_destroy(reply);
        bx_tensor_release(host);
        EXPECT(bx_loans_wait(job, to, 0, 5000 * MS) == 0, "%s", bx_error_text());   /* it is written again */
    }
    bx_tensor_release(tensor);
}

/* Many of them, views, and one without elements, beside tensors in host memory. */
static void check_many(int to)
{
    struct bx_tensor *host = make_host(2, (int64_t[]){ 60, 70 }), *tensor = make(device, 2, (int64_t[]){ 60, 70 });
    struct bx_tensor *part = NULL, *view = make_host(2, (int64_t[]){ 30, 20 }), *none = make_host(1, (int64_t[]){ 0 });
    struct bx_tensor *nothing = make(device, 1, (int64_t[]){ 0 });
    struct bx_msg *args = bx_msg_create(0), *reply;

    for (int i = 0; i < 60 * 70; i++)
        ((int32_t *)bx_tensor_data_mut(host))[i] = 1000 * rank + i;
    for (int i = 0; i < 30 * 20; i++)
        ((int32_t *)bx_tensor_data_mut(view))[i] = 1000 * rank + 70 + i / 20 * 140 + i % 20 * 3;
    EXPECT(bx_tensor_copy_into(tensor, host) == 0, "%s", bx_error_text());
    EXPECT(bx_tensor_as_strided(tensor, 70, 2, (int64_t[]){ 30, 20 }, (int64_t[]){ 140, 3 }, &part) == 0, "%s",
           bx_error_text());
    for (int i = 0; i < MANY; i++) {
        put(args, tensor);
        put(args, host);
        put(args, i % 2 != 0 ? part : nothing);
        put(args, i % 2 != 0 ? view : none);
    }
    reply = call(to, "compare", args);
    if (reply != NULL) {
        struct bx_reader reader = bx_msg_reader(reply);
        int64_t wrong = bx_read_i64(&reader);

        EXPECT(wrong == 0, "%d of %d tensors differ at %d", (int)wrong, 2 * MANY, to);
    }
    bx_msg_destroy(reply);
    bx_tensor_release(nothing);
    bx_tensor_release(none);
    bx_tensor_release(view);
    bx_tensor_release(part);
    bx_tensor_release(tensor);
    bx_tensor_release(host);
}

static void check_passed(int to)
{
    struct bx_tensor *tensor = make(device, 1, (int64_t[]){ COUNT }), *host = expected(77);

    for (int third = 0; third < size; third++) {
        int64_t wrong = -1;

        if (third == without || third == rank || third == to)
            continue;
        fill_late(tensor, 77);
        EXPECT(bx_call(job, bx_rank(to), "pass_on", "iTT>i", (int64_t)third, tensor, host, &wrong) == 0 && wrong == 0,
               "to %d by %d: %d differ; %s", third, to, (int)wrong, wrong < 0 ? bx_error_text() : "");
        EXPECT(bx_loans_wait(job, to, 0, 5000 * MS) == 0, "%s", bx_error_text());
    }
    bx_tensor_release(tensor);
    bx_tensor_release(host);
}

/* On the worker's GPU. */
static uint64_t staged_by(int to)
{
    int64_t bytes = 0;

    EXPECT(bx_call(job, bx_rank(to), "staged", ">i", &bytes) == 0, "%s", bx_error_text());
    return (uint64_t)bytes;
}

/* Of rank 0, while the others do nothing: a tensor that another host's worker keeps is counted once on both sides, and
 * its owner's lease has ended. */
static void check_kept(int to)
{
    struct bx_tensor *tensor = make(device, 1, (int64_t[]){ COUNT }), *host = expected(5);
    uint64_t bytes = is_remote(to) ? bx_tensor_bytes(tensor) : 0, here, there, sent = counter("net_bytes");
    int64_t wrong = -1;

    fill_late(tensor, 5);
    here = counter("gpu_staged_bytes");
    there = staged_by(to);
    EXPECT(bx_call(job, bx_rank(to), "keep", "T>", tensor) == 0, "%s", bx_error_text());
    here = counter("gpu_staged_bytes") - here;
    there = staged_by(to) - there;
    EXPECT(here == bytes && there == bytes, "%llu bytes of %llu staged here, %llu by %d", (unsigned long long)here,
           (unsigned long long)bytes, (unsigned long long)there, to);
    EXPECT(counter("net_bytes") - sent >= bytes, "the network carried less");
    if (is_remote(to)) {
        EXPECT(bx_loans_wait(job, to, 0, 5000 * MS) == 0, "kept by %d: %s", to, bx_error_text());
        fill_late(tensor, 6);
    }
    EXPECT(bx_call(job, bx_rank(to), "compare_kept", "T>i", host, &wrong) == 0 && wrong == 0, "kept by %d: %s", to,
           wrong < 0 ? bx_error_text() : "it has changed");
    bx_tensor_release(tensor);
    bx_tensor_release(host);
}

/* As within a host. */
static void check_without(void)
{
    struct bx_tensor *tensor = make(device, 1, (int64_t[]){ 1 });
    int rc = bx_call(job, bx_rank(without), "keep", "T>", tensor);

    EXPECT(rc == -ENODEV && strstr(bx_error_text(), "has no GPU open") != NULL, "%s: %s", bx_error_name(rc),
           bx_error_text());
    call_add(without, 1, rank);
    bx_tensor_release(tensor);
}

static void check(void)
{
    EXPECT(bx_gpu_open(job, 0, &device) == 0, "%s", bx_error_text());
    if (failures == 0)
        open_stream();
    barrier();                          /* all have opened theirs */
    for (int to = 0; to < size && failures == 0; to++) {
        if (to == without || to == rank)
            continue;
        check_order(to);
        check_many(to);
        check_passed(to);
    }
    if (without >= 0)
        check_without();
    barrier();
    for (int to = 0; rank == 0 && to < size && failures == 0; to++)
        if (to != without && to != 0)
            check_kept(to);
    barrier();
    check_loans(5000);
}

int main(int argc, char **argv)
{
    int rc = bx_job_create(NULL, &job);

    setvbuf(stdout, NULL, _IOLBF, 0);
    without = argc == 2 ? atoi(argv[1]) : -1;
    if (!start(rc, FUNCTIONS(HARNESS_BLOCKING("compare", compare), HARNESS_BLOCKING("pass_on", pass_on),
                             HARNESS_INLINE("keep", keep), HARNESS_BLOCKING("compare_kept", compare_kept),
                             HARNESS_INLINE("staged", staged))))
        return 3;
    if (rank != without)
        check();
    else
        for (int i = 0; i < 3; i++)
            barrier();
    return end();
}
