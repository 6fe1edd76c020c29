/* SPDX-License-Identifier: MIT */
/*
 * Device tensors in messages: what arrives, on every path that a message takes, and that nothing is copied for it.
 *
 * Worker 0 owns and calls; worker 1 has handlers that check what they get. With the fake driver, unless
 * BX_TEST_REAL_GPU is set: see device_fixture.h. test_device_order.c has streams and waiting, test_device_map.c
 * mapping, test_device_errors.c refusals, test_device_death.c deaths, test_device_input.c invalid input.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

enum gate { OPEN = 0, DONE };
enum value { COPIED = 0, SYNCHRONISES, WAITS };

#define COUNT 1000

/* ---- Handlers -------------------------------------------------------------------------------- */

/* An i64, and any number of i32 tensors whose elements continue from it. Answers how many are wrong. */
static int64_t look(struct bx_reader *args)
{
    int32_t first = (int32_t)bx_read_i64(args);
    int64_t wrong = 0;

    while (bx_reader_tensors_left(args) > 0) {
        struct bx_tensor *tensor = bx_read_tensor(args);

        HARNESS_CHECK(bx_tensor_is_borrowed(tensor));
        HARNESS_EQ(bx_tensor_device(tensor).kind, BX_CUDA);
        wrong += device_wrong(tensor, first);
        first += (int32_t)bx_tensor_elements(tensor);
    }
    return wrong;
}

HARNESS_HANDLER(look_now)
{
    return bx_msg_put_i64(reply, look(args));
}

HARNESS_ASYNC_HANDLER(look_async)
{
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, harness_msg_i64(look(args)));
}

HARNESS_BATCH(look_batch)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        HARNESS_EQ(bx_batch_reply_i64(batch, row, look(&args)), 0);
    }
    return 0;
}

HARNESS_HANDLER(look_once)
{
    HARNESS_EQ(look(args), 0);
    harness_post(DONE);
    return 0;
}

/* Reads each on a stream; the return from the handler releases them. */
HARNESS_HANDLER(take)
{
    while (bx_reader_tensors_left(args) > 0)
        HARNESS_EQ(bx_tensor_read_on(bx_read_tensor(args), NULL), 0);
    return 0;
}

/* Answers with a new tensor on its own device. */
HARNESS_HANDLER(give)
{
    struct bx_job *job = bx_request_job(request);
    int64_t first = bx_read_i64(args);
    OWN(tensor) *tensor = device_numbers(job, device_open(job, 0), COUNT, (int32_t)first);
    int rc = bx_msg_put_i64(reply, first);

    rc = rc == 0 ? bx_msg_put_tensor(reply, tensor) : rc;
    return rc;
}

/* Answers with its argument: a borrowed tensor that is forwarded is copied on its device. */
HARNESS_HANDLER(forward)
{
    int rc = bx_msg_put_i64(reply, bx_read_i64(args));

    return rc == 0 ? bx_msg_put_tensor(reply, bx_read_tensor(args)) : rc;
}

HARNESS_HANDLER(count_copied)
{
    struct bx_job *job = bx_request_job(request);

    harness_store(COPIED, device_copied(job));
    harness_store(SYNCHRONISES, harness_counter(job, "gpu_host_synchronises"));
    harness_store(WAITS, harness_counter(job, "gpu_waits") + harness_counter(job, "gpu_waits_saved"));
    return bx_msg_put_i64(reply, 0);
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("inline", look_now), HARNESS_BLOCKING("blocking", look_now),
                     HARNESS_ASYNC("async", look_async));
    HARNESS_EQ(bx_register_batch(job, "batch", look_batch, NULL, NULL), 0);
    HARNESS_REGISTER(job, HARNESS_INLINE("once", look_once), HARNESS_INLINE("take", take),
                     HARNESS_BLOCKING("give", give), HARNESS_INLINE("forward", forward),
                     HARNESS_INLINE("counters", count_copied));
    return 0;
}

/* ---- Workers --------------------------------------------------------------------------------- */

DEVICE_TEST(device, arrives_at_each_kind_of_handler_and_at_its_owner, 60, DEVICE_ANY, .size = 2, .setup = setup,
            .body = { [1] = device_serves })
{
    static const char *const kinds[] = { "inline", "blocking", "async", "batch" };
    struct bx_device device = device_begin(job, 1);
    OWN(tensor) *tensor = device_numbers(job, device, COUNT, 5);

    HARNESS_EQ(device.kind, BX_CUDA);
    HARNESS_EQ(bx_tensor_device(tensor).kind, BX_CUDA);
    HARNESS_CHECK(bx_tensor_is_shared(tensor) && !bx_tensor_is_borrowed(tensor));
    for (int to = 0; to < 2; to++)
        for (int i = 0; i < 4; i++)
            HARNESS_EQ(harness_call(job, bx_worker_name(job, to), kinds[i], device_msg(tensor, 5)), 0);
    HARNESS_EQ(harness_call(job, "worker1", "inline", device_msg(tensor, 6)), COUNT);      /* it checks the elements */

    struct bx_msg *msg = device_msg(tensor, 5);

    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "once", msg, NULL), 0);
    bx_msg_destroy(msg);
    harness_await(DONE, 1);
}

DEVICE_TEST(device, comes_back_in_a_reply_and_outlives_it, 60, DEVICE_ANY, .size = 2, .setup = setup,
            .body = { [1] = device_serves })
{
    struct bx_msg *args[3], *reply = NULL;
    struct bx_tensor *kept[3];

    device_begin(job, 1);
    for (int i = 0; i < 3; i++) {
        struct bx_reader in;

        args[i] = harness_msg_i64(100 * i);
        HARNESS_EQ(bx_rpc_sync(job, i < 2 ? "worker1" : "worker0", "give", args[i], NULL, &reply), 0);
        in = bx_msg_reader(reply);
        HARNESS_EQ(bx_read_i64(&in), 100 * i);
        kept[i] = bx_tensor_acquire(bx_read_tensor(&in));
        bx_msg_destroy(args[i]);
        bx_msg_destroy(reply);          /* the tensor outlives its message */
    }
    for (int i = 0; i < 3; i++) {
        HARNESS_CHECK(bx_tensor_is_borrowed(kept[i]) && bx_tensor_data_mut(kept[i]) == NULL);
        HARNESS_EQ(device_wrong(kept[i], 100 * i), 0);
        bx_tensor_release(kept[i]);
    }
}

/* ---- With references --------------------------------------------------------------------------- */

static const struct bx_type spot_type = { .name = "spot" };

HARNESS_HANDLER(make_spot)
{
    static char spot;

    return bx_msg_put_object(bx_request_job(request), reply, &spot_type, &spot);
}

/* Answers how many elements are wrong, with the reference that came and a tensor of its own. */
HARNESS_HANDLER(exchange)
{
    struct bx_job *job = bx_request_job(request);
    OWN(tensor) *tensor = device_numbers(job, device_open(job, 0), COUNT, 7);

    HARNESS_EQ(bx_msg_put_i64(reply, look(args)), 0);
    HARNESS_EQ(bx_msg_put_rref(reply, bx_read_rref(args)), 0);
    HARNESS_EQ(bx_msg_put_tensor(reply, tensor), 0);
    return 0;
}

static int setup_objects(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "make", BX_INLINE, make_spot, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &spot_type, "look", BX_INLINE, look_now, NULL), 0);
    return bx_register_method(job, &spot_type, "exchange", BX_BLOCKING, exchange, NULL);
}

DEVICE_TEST(device, goes_to_objects_and_beside_references_both_ways, 60, DEVICE_ANY, .size = 2, .setup = setup_objects,
            .body = { [1] = device_serves })
{
    OWN(tensor) *tensor = device_numbers(job, device_begin(job, 1), COUNT, 5);

    for (int to = 0; to < 2; to++) {
        OWN(msg) *args = device_msg(tensor, 5), *looked = NULL, *exchanged = NULL;
        OWN(rref) *spot = NULL;
        struct bx_reader in;

        HARNESS_EQ(bx_remote(job, bx_worker_name(job, to), "make", NULL, NULL, &spot), 0);
        HARNESS_EQ(bx_rref_sync(spot, "look", args, NULL, &looked), 0);
        in = bx_msg_reader(looked);
        HARNESS_EQ(bx_read_i64(&in), 0);
        HARNESS_EQ(bx_msg_put_rref(args, spot), 0);
        HARNESS_EQ(bx_rref_sync(spot, "exchange", args, NULL, &exchanged), 0);
        in = bx_msg_reader(exchanged);
        HARNESS_EQ(bx_read_i64(&in), 0);
        HARNESS_EQ(bx_rref_owner(bx_read_rref(&in)), to);
        HARNESS_EQ(device_wrong(bx_read_tensor(&in), 7), 0);
    }
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static int64_t find_dim(const int64_t *values, int ndim, int64_t sum)
{
    for (int i = 0; i < ndim; i++)
        sum = sum * 1000 + values[i];
    return sum;
}

/* Answers {shape, strides, wrong elements} of one tensor; its first element is the i64. */
HARNESS_HANDLER(measure)
{
    int64_t first = bx_read_i64(args);
    struct bx_tensor *tensor = bx_read_tensor(args);

    bx_msg_put_i64(reply, find_dim(bx_tensor_shape(tensor), bx_tensor_ndim(tensor), 0));
    bx_msg_put_i64(reply, find_dim(bx_tensor_strides(tensor), bx_tensor_ndim(tensor), 0));
    return bx_msg_put_i64(reply, device_wrong(tensor, (int32_t)first));
}

static int setup_views(struct bx_job *job)
{
    return bx_register(job, "measure", BX_INLINE, measure, NULL);
}

/* A view of a tensor whose element i is i. */
static void expect_view(struct bx_job *job, struct bx_tensor *view, int64_t first)
{
    for (int to = 0; to < 2; to++) {
        OWN(msg) *args = device_msg(view, first), *reply = NULL;
        struct bx_reader in;

        HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "measure", args, NULL, &reply), 0);
        in = bx_msg_reader(reply);
        HARNESS_EQ(bx_read_i64(&in), find_dim(bx_tensor_shape(view), bx_tensor_ndim(view), 0));
        HARNESS_EQ(bx_read_i64(&in), find_dim(bx_tensor_strides(view), bx_tensor_ndim(view), 0));
        HARNESS_EQ(bx_read_i64(&in), 0);
    }
    bx_tensor_release(view);
}

DEVICE_TEST(device, keeps_shape_strides_and_offset_of_views, 60, DEVICE_ANY, .size = 2, .setup = setup_views,
            .body = { [1] = device_serves })
{
    struct bx_device device = device_begin(job, 1);
    OWN(tensor) *flat = device_numbers(job, device, 60, 0), *cube = NULL;
    struct bx_tensor *view = NULL;

    HARNESS_EQ(bx_tensor_reshape(flat, 3, (int64_t[]){ 3, 4, 5 }, &cube), 0);
    HARNESS_EQ(bx_tensor_slice(cube, 0, 1, 3, 1, &view), 0);
    expect_view(job, view, 20);
    HARNESS_EQ(bx_tensor_slice(cube, 2, 1, 5, 2, &view), 0);
    expect_view(job, view, 1);
    HARNESS_EQ(bx_tensor_select(cube, 1, 2, &view), 0);
    expect_view(job, view, 10);
    HARNESS_EQ(bx_tensor_transpose(cube, 0, 2, &view), 0);
    expect_view(job, view, 0);
    HARNESS_EQ(bx_tensor_as_strided(flat, 7, 2, (int64_t[]){ 4, 3 }, (int64_t[]){ 13, 4 }, &view), 0);
    expect_view(job, view, 7);
    HARNESS_EQ(bx_tensor_as_strided(flat, 9, 2, (int64_t[]){ 4, 3 }, (int64_t[]){ 0, 2 }, &view), 0);
    expect_view(job, view, 9);
    HARNESS_EQ(device_copied(job), harness_counter(job, "gpu_staged_bytes"));   /* only the test's own copies */
}

/* ---- Messages of many ------------------------------------------------------------------------- */

DEVICE_TEST(device, takes_161_tensors_and_thousands_in_one_message, 120, DEVICE_ANY, .size = 2, .setup = setup,
            .body = { NULL, device_serves }, .env = { "FAKE_CUDA_DELAY_US=0" })
{
    enum { ALL = 3000, SOME = 161 };
    struct bx_device device = device_begin(job, 1);
    struct bx_tensor **tensors = calloc(ALL, sizeof *tensors);

    HARNESS_CHECK(tensors != NULL);
    for (int i = 0; i < ALL; i++)
        tensors[i] = device_tensor(job, device, 1 + i % 3);
    for (int i = 0, first = 0; i < SOME; i++) {
        device_put_numbers(tensors[i], first);
        first += 1 + i % 3;
    }
    for (int to = 0; to < 2; to++) {
        struct bx_msg *msg = harness_msg_i64(0);

        for (int i = 0; i < SOME; i++)
            HARNESS_EQ(bx_msg_put_tensor(msg, tensors[i]), 0);
        HARNESS_EQ(harness_call(job, bx_worker_name(job, to), "inline", msg), 0);
    }
    /* The descriptors alone are larger than a frame. */
    for (int to = 0; to < 2; to++) {
        OWN(msg) *msg = harness_msg_i64(0);

        for (int i = 0; i < ALL; i++)
            HARNESS_EQ(bx_msg_put_tensor(msg, tensors[i]), 0);
        HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, to), "take", msg, NULL, NULL), 0);
    }
    for (int i = 0; i < ALL; i++)
        bx_tensor_release(tensors[i]);
    free(tensors);
}

/* Device, host, empty device, host, device, and bytes after them. */
#define MIXED 5

HARNESS_HANDLER(mixed)
{
    struct bx_tensor *tensors[MIXED];

    for (int i = 0; i < MIXED; i++)
        HARNESS_CHECK((tensors[i] = bx_read_tensor(args)) != NULL);
    HARNESS_EQ(bx_read_i64(args), 77);
    HARNESS_EQ(args->bytes - args->pos, 0);
    HARNESS_EQ(bx_tensor_device(tensors[0]).kind, BX_CUDA);
    HARNESS_EQ(bx_tensor_device(tensors[1]).kind, BX_CPU);
    HARNESS_EQ(bx_tensor_device(tensors[2]).kind, BX_CUDA);
    HARNESS_EQ(bx_tensor_device(tensors[3]).kind, BX_CPU);
    HARNESS_EQ(bx_tensor_device(tensors[4]).kind, BX_CUDA);
    HARNESS_EQ(device_wrong(tensors[0], 9), 0);
    HARNESS_EQ(device_wrong(tensors[4], 3), 0);
    HARNESS_EQ(((const int32_t *)bx_tensor_data(tensors[1]))[1], 41);
    HARNESS_EQ(bx_tensor_elements(tensors[2]), 0);
    HARNESS_EQ(bx_tensor_dim(tensors[2], 1), 7);
    HARNESS_EQ(bx_tensor_read_on(tensors[2], NULL), 0);
    HARNESS_EQ(((const int32_t *)bx_tensor_data(tensors[3]))[0], 42);
    HARNESS_EQ(bx_tensor_read_on(tensors[3], NULL), -22);
    return bx_msg_put_i64(reply, 0);
}

static int setup_mixed(struct bx_job *job)
{
    return bx_register(job, "mixed", BX_INLINE, mixed, NULL);
}

static void sends_mixed(struct bx_job *job)
{
    struct bx_device device = device_begin(job, 1);
    struct bx_tensor *tensors[MIXED] = { device_numbers(job, device, 100, 9) };

    HARNESS_EQ(bx_tensor_create(job, BX_I32, 1, (int64_t[]){ 2 }, &tensors[1]), 0);
    HARNESS_EQ(bx_tensor_create_on(job, device, BX_F64, 2, (int64_t[]){ 0, 7 }, &tensors[2]), 0);
    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 1, (int64_t[]){ 1 }, &tensors[3]), 0);
    tensors[4] = device_numbers(job, device, 5000, 3);
    ((int32_t *)bx_tensor_data_mut(tensors[1]))[1] = 41;
    ((int32_t *)bx_tensor_data_mut(tensors[3]))[0] = 42;
    for (int to = 0; to < 2; to++) {
        struct bx_msg *msg = harness_msg_i64(77);

        for (int i = 0; i < MIXED; i++)
            HARNESS_EQ(bx_msg_put_tensor(msg, tensors[i]), 0);
        harness_call(job, bx_worker_name(job, to), "mixed", msg);
    }
    for (int i = 0; i < MIXED; i++)
        bx_tensor_release(tensors[i]);
}

DEVICE_WORLD(device, is_sent_beside_host_tensors_and_empty_ones, 60, DEVICE_ANY, .size = 2, .setup = setup_mixed,
             .body = { sends_mixed, device_serves });

static void has_the_other_device(struct bx_job *job)
{
    device_open(job, 1);
    harness_post(OPEN);
    HARNESS_EQ(bx_job_serve(job), 0);
}

DEVICE_WORLD(device, is_staged_beside_host_tensors_and_empty_ones, 60, DEVICE_FAKE, .size = 2, .setup = setup_mixed,
             .body = { sends_mixed, has_the_other_device }, .env = { "FAKE_CUDA_NO_PEER=all" });

/* ---- Nothing is copied ------------------------------------------------------------------------ */

DEVICE_TEST(device, copies_nothing_and_blocks_no_thread, 60,
            (fake_skip_without_words("with events hosts wait"), DEVICE_ANY), .size = 2, .setup = setup,
            .body = { NULL, device_serves })
{
    struct bx_device device = device_begin(job, 1);
    OWN(tensor) *tensor = device_numbers(job, device, COUNT, 5);
    uint64_t copied, synchronises, theirs[3];

    harness_call(job, "worker1", "inline", device_msg(tensor, 5));
    harness_call(job, "worker1", "counters", harness_msg_i64(0));
    for (int i = 0; i < 3; i++)
        theirs[i] = harness_load(i);
    copied = device_copied(job);
    synchronises = harness_counter(job, "gpu_host_synchronises");
    for (int i = 0; i < 200; i++) {
        OWN(msg) *msg = device_msg(tensor, 5);

        HARNESS_EQ(bx_tensor_written_on(tensor, NULL), 0);
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "take", msg, NULL, NULL), 0);
    }
    HARNESS_EQ(device_copied(job), copied);
    HARNESS_EQ(harness_counter(job, "gpu_host_synchronises"), synchronises);
    harness_call(job, "worker1", "counters", harness_msg_i64(0));
    HARNESS_EQ(harness_load(COPIED), theirs[COPIED]);
    HARNESS_EQ(harness_load(SYNCHRONISES), theirs[SYNCHRONISES]);
    HARNESS_EQ(harness_load(WAITS), theirs[WAITS] + 200);

    /* The counters do count. */
    harness_call(job, "worker1", "inline", device_msg(tensor, 5));
    harness_call(job, "worker1", "counters", harness_msg_i64(0));
    HARNESS_EQ(harness_load(COPIED), theirs[COPIED] + COUNT * sizeof(int32_t));
    HARNESS_CHECK(harness_load(SYNCHRONISES) > theirs[SYNCHRONISES]);
}

/* The counters that inspectors read are written when they have changed, and not with each tensor. */
DEVICE_TEST(device, counts_what_has_changed, 60, DEVICE_ANY, .size = 2, .setup = setup, .body = { [1] = device_serves })
{
    struct bx_device device = device_begin(job, 1);
    OWN(tensor) *tensor = device_numbers(job, device, COUNT, 5);
    uint64_t marks = harness_counter(job, "gpu_marks");

    bxi_store_relaxed(&job->counters[BXI_C_gpu_marks], 7);
    HARNESS_CHECK(bx_gpu_stream(job, device) != NULL);
    HARNESS_EQ(harness_counter(job, "gpu_marks"), 7);
    HARNESS_EQ(bx_tensor_written_on(tensor, NULL), 0);
    HARNESS_EQ(harness_counter(job, "gpu_marks"), marks + 1);
}

DEVICE_TEST(device, copies_a_forwarded_tensor_on_the_device, 60, DEVICE_ANY, .size = 2, .setup = setup,
            .body = { [1] = device_serves })
{
    struct bx_device device = device_begin(job, 1);
    struct bx_tensor *tensor = device_numbers(job, device, COUNT, 5), *copy = NULL;
    struct bx_msg *args = device_msg(tensor, 5), *reply = NULL;
    struct bx_reader in;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "forward", args, NULL, &reply), 0);
    in = bx_msg_reader(reply);
    HARNESS_EQ(bx_read_i64(&in), 5);
    HARNESS_EQ(device_wrong(bx_read_tensor(&in), 5), 0);
    harness_call(job, "worker1", "counters", harness_msg_i64(0));
    HARNESS_EQ(harness_load(COPIED), 2 * COUNT * sizeof(int32_t));      /* tensor_bytes_copied and gpu_copied_bytes */
    bx_msg_destroy(reply);
    bx_msg_destroy(args);

    HARNESS_EQ(bx_tensor_copy(job, tensor, &copy), 0);
    HARNESS_EQ(bx_tensor_device(copy).kind, BX_CUDA);
    bx_tensor_release(tensor);
    HARNESS_EQ(device_wrong(copy, 5), 0);
    bx_tensor_release(copy);
}

/* ---- Copies of views -------------------------------------------------------------------------- */

static struct bx_tensor *host_matrix(int64_t rows, int64_t columns)
{
    struct bx_tensor *host = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 2, (int64_t[]){ rows, columns }, &host), 0);
    memset(bx_tensor_data_mut(host), 0, (size_t)bx_tensor_bytes(host));
    return host;
}

static struct bx_tensor *transposed(struct bx_tensor *matrix)
{
    struct bx_tensor *view = NULL;

    HARNESS_EQ(bx_tensor_transpose(matrix, 0, 1, &view), 0);
    return view;
}

static int64_t host_wrong(const struct bx_tensor *host)
{
    int64_t wrong = 0;

    for (int64_t i = 0; i < bx_tensor_elements(host); i++)
        wrong += ((const int32_t *)bx_tensor_data(host))[i] != (int32_t)i;
    return wrong;
}

/* A numbered matrix on the device; its transpose is copied out and back in by every path that a copy can take. */
static void copy_views(struct bx_job *job, struct bx_device device, int64_t rows, int64_t columns)
{
    OWN(tensor) *numbers = device_numbers(job, device, rows * columns, 0), *copy = NULL;
    struct bx_tensor *matrix = NULL;
    OWN(tensor) *across = host_matrix(columns, rows), *along = host_matrix(rows, columns);
    OWN(tensor) *of_across = transposed(across), *of_along = transposed(along);
    struct bx_tensor *view;

    HARNESS_EQ(bx_tensor_reshape(numbers, 2, (int64_t[]){ rows, columns }, &matrix), 0);
    view = transposed(matrix);
    HARNESS_EQ(bx_tensor_copy_into(of_along, view), 0);         /* gaps on both sides */
    HARNESS_EQ(host_wrong(along), 0);
    HARNESS_EQ(bx_tensor_copy_into(across, view), 0);           /* on the device */
    memset(bx_tensor_data_mut(along), 0, (size_t)bx_tensor_bytes(along));
    HARNESS_EQ(bx_tensor_copy_into(along, of_across), 0);
    HARNESS_EQ(host_wrong(along), 0);
    HARNESS_EQ(bx_tensor_copy(job, view, &copy), 0);            /* from device to device */
    HARNESS_EQ(bx_tensor_device(copy).kind, BX_CUDA);
    memset(bx_tensor_data_mut(along), 0, (size_t)bx_tensor_bytes(along));
    HARNESS_EQ(bx_tensor_copy_into(of_along, copy), 0);         /* on the host */
    HARNESS_EQ(host_wrong(along), 0);
    bx_tensor_release(view);
    bx_tensor_release(matrix);
    device_put_numbers(numbers, 7);
    HARNESS_EQ(bx_tensor_reshape(numbers, 2, (int64_t[]){ rows, columns }, &matrix), 0);
    HARNESS_EQ(bx_tensor_copy_into(matrix, of_across), 0);      /* on the host, into the device */
    HARNESS_EQ(device_wrong(numbers, 0), 0);
    bx_tensor_release(matrix);
}

DEVICE_TEST(device, copies_views_through_the_host, 60, DEVICE_ANY, .size = 2, .setup = setup,
            .body = { [1] = device_serves })
{
    struct bx_device device = device_begin(job, 1);
    uint64_t staged = harness_counter(job, "gpu_staged_bytes");

    copy_views(job, device, 3, 5);
    HARNESS_CHECK(harness_counter(job, "gpu_staged_bytes") > staged);
    copy_views(job, device, 1, 1);
    copy_views(job, device, 2, 300001);         /* more than one piece, and parts of pieces */
    copy_views(job, device, 300001, 2);
}
