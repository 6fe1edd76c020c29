/* SPDX-License-Identifier: MIT */
/*
 * NULL where a public function needs a pointer: it returns -EINVAL with a sentence, NULL, false, 0 or "", or does
 * nothing. Every function of the public headers that takes a pointer is called once for each pointer that it needs,
 * in a job that has started, so that no other check comes first. The last test reads the headers and reports functions
 * without a case here or in test_null_nets.c.
 */
#include "null.h"

#include "boxcar_trace.h"

/* ---- The cases ------------------------------------------------------------------------------- */

HARNESS_THEN(then)
{
    return 0;
}

static int chain(struct bx_future *in, struct bx_future **next, void *context)
{
    (void)in, (void)next, (void)context;
    return 0;
}

static int setup(struct bx_job *job)
{
    return bx_register(job, "answer", BX_INLINE, harness_nothing, NULL);
}

static void try_jobs(struct bx_job *job)
{
    struct bx_arena_info info = { 0 };
    struct bx_loans loans = { 0 };
    struct bx_options options = { .job = "null", .world_size = 2 };
    uint64_t value = 0;

    REFUSED(bx_job_create(&options, NULL));
    REFUSED(bx_job_start(NULL));
    REFUSED(bx_job_serve(NULL));
    REFUSED(bx_job_shutdown(NULL, 0));
    bx_job_destroy(NULL);
    bx_job_interrupt(NULL, true);
    REFUSED(bx_job_rank(NULL));
    REFUSED(bx_job_world_size(NULL));
    IS_NULL(bx_job_name(NULL));
    IS_NULL(bx_worker_name(NULL, 0));
    REFUSED(bx_worker_rank(NULL, "worker0"));
    REFUSED(bx_worker_rank(job, NULL));
    IS_ZERO(bx_worker_is_alive(NULL, 0));
    REFUSED(bx_worker_generation(NULL, 0));
    IS_NULL(bx_worker_host(NULL, 0));
    REFUSED(bx_on_death(NULL, NULL, NULL));
    REFUSED(bx_on_join(NULL, NULL, NULL));
    REFUSED(bx_job_fd(NULL));
    REFUSED(bx_progress(NULL));
    REFUSED(bx_counter(NULL, "calls_sent", &value));
    REFUSED(bx_counter(job, NULL, &value));
    REFUSED(bx_counter(job, "calls_sent", NULL));
    REFUSED(bx_job_arena(NULL, &info));
    REFUSED(bx_job_arena(job, NULL));
    REFUSED(bx_arena_trim(NULL));
    REFUSED(bx_job_loans(NULL, -1, &loans));
    REFUSED(bx_job_loans(job, -1, NULL));
    REFUSED(bx_loans_wait(NULL, -1, 0, 0));
    REFUSED(bx_spawn(NULL, NULL, NULL, NULL));
    REFUSED(bx_spawn(&(struct bx_spawn_options){ .world_size = 2 }, NULL, NULL, NULL));
    bx_set_log(NULL, NULL);
    REFUSED(bx_error_register(BX_E_APPLICATION(1), NULL, "a text"));
    REFUSED(bx_error_register(BX_E_APPLICATION(1), "NAME", NULL));
}

static void try_functions(struct bx_job *job)
{
    const struct bx_batch_options options = { 0 };

    REFUSED(bx_register(NULL, "f", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register(job, NULL, BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register(job, "f", BX_INLINE, NULL, NULL));
    REFUSED(bx_register_async(NULL, "f", BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_async(job, NULL, BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_async(job, "f", BX_INLINE, NULL, NULL));
    REFUSED(bx_register_batch(NULL, "f", harness_no_rows, NULL, &options));
    REFUSED(bx_register_batch(job, NULL, harness_no_rows, NULL, &options));
    REFUSED(bx_register_batch(job, "f", NULL, NULL, &options));
    IS_NULL(bx_request_job(NULL));
    REFUSED(bx_request_caller(NULL));
    IS_NULL(bx_request_function(NULL));
    IS_ZERO(bx_request_deadline_ns(NULL));
    IS_ZERO(bx_request_is_cancelled(NULL));
    REFUSED(bx_request_on_cancel(NULL, (bx_cancel_fn)abort, NULL));
    REFUSED(bx_batch_add_member(NULL, "f", 0));
    REFUSED(bx_batch_add_member(job, NULL, 0));
    REFUSED(bx_batch_remove_member(NULL, "f", 0));
    REFUSED(bx_batch_remove_member(job, NULL, 0));
    REFUSED(bx_batch_join(NULL, "worker1", "f"));
    REFUSED(bx_batch_join(job, NULL, "f"));
    REFUSED(bx_batch_join(job, "worker1", NULL));
    REFUSED(bx_batch_leave(NULL, "worker1", "f"));
    REFUSED(bx_batch_leave(job, NULL, "f"));
    REFUSED(bx_batch_leave(job, "worker1", NULL));
    IS_ZERO(bx_batch_rows(NULL));
    REFUSED(bx_batch_caller(NULL, 0));
    IS_ZERO(bx_batch_args(NULL, 0).bytes);
    IS_NULL(bx_batch_reply(NULL, 0));
    IS_NULL(bx_batch_object(NULL, 0));
    REFUSED(bx_batch_reply_i64(NULL, 0, 1));
    REFUSED(bx_batch_fail_row(NULL, 0, -EIO, NULL));
}

static const struct bx_type type = { .name = "type" };
static const struct bx_type nameless = { .name = NULL };

static void try_methods(struct bx_job *job)
{
    const struct bx_batch_options options = { 0 };

    REFUSED(bx_register_method(NULL, &type, "m", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_method(job, NULL, "m", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_method(job, &nameless, "m", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_method(job, &type, NULL, BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_method(job, &type, "m", BX_INLINE, NULL, NULL));
    REFUSED(bx_register_method_async(NULL, &type, "m", BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_method_async(job, NULL, "m", BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_method_async(job, &nameless, "m", BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_method_async(job, &type, NULL, BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_method_async(job, &type, "m", BX_INLINE, NULL, NULL));
    REFUSED(bx_register_method_batch(NULL, &type, "m", harness_no_rows, NULL, &options));
    REFUSED(bx_register_method_batch(job, NULL, "m", harness_no_rows, NULL, &options));
    REFUSED(bx_register_method_batch(job, &nameless, "m", harness_no_rows, NULL, &options));
    REFUSED(bx_register_method_batch(job, &type, NULL, harness_no_rows, NULL, &options));
    REFUSED(bx_register_method_batch(job, &type, "m", NULL, NULL, &options));
    IS_NULL(bx_request_object(NULL));
}

static void try_rrefs(struct bx_job *job)
{
    struct bx_rref *rref = NULL, *made = NULL;
    struct bx_future *future = NULL;
    struct bx_msg *msg = bx_msg_create(0), *value = NULL;
    void *object = NULL;

    REFUSED(bx_rref_create(NULL, &type, NULL, &made));
    REFUSED(bx_rref_create(job, NULL, NULL, &made));
    REFUSED(bx_rref_create(job, &nameless, NULL, &made));
    REFUSED(bx_rref_create(job, &type, NULL, NULL));
    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);         /* an object may be NULL */
    REFUSED(bx_msg_put_object(NULL, msg, &type, NULL));
    HARNESS_EQ(bx_msg_error(msg), -EINVAL);
    bx_msg_clear(msg);
    REFUSED(bx_msg_put_object(job, NULL, &type, NULL));
    REFUSED(bx_msg_put_object(job, msg, NULL, NULL));
    HARNESS_EQ(bx_msg_error(msg), -EINVAL);
    bx_msg_clear(msg);
    REFUSED(bx_msg_put_rref(NULL, rref));
    REFUSED(bx_msg_put_rref(msg, NULL));
    HARNESS_EQ(bx_msg_error(msg), -EINVAL);
    IS_ZERO(bx_msg_rrefs(NULL));
    IS_NULL(bx_read_rref(NULL));
    IS_NULL(bx_rref_acquire(NULL));
    bx_rref_release(NULL);
    REFUSED(bx_remote(NULL, "worker1", "answer", NULL, NULL, &made));
    REFUSED(bx_remote(job, NULL, "answer", NULL, NULL, &made));
    REFUSED(bx_remote(job, "worker1", NULL, NULL, NULL, &made));
    REFUSED(bx_remote(job, "worker1", "answer", NULL, NULL, NULL));
    REFUSED(bx_rref_owner(NULL));
    IS_ZERO(bx_rref_is_owner(NULL));
    IS_ZERO(bx_rref_is_confirmed(NULL));
    REFUSED(bx_rref_wait(NULL, 0));
    REFUSED(bx_rref_local(NULL, &type, &object));
    REFUSED(bx_rref_local(rref, NULL, &object));
    REFUSED(bx_rref_local(rref, &nameless, &object));
    REFUSED(bx_rref_local(rref, &type, NULL));
    REFUSED(bx_rref_to_here(NULL, NULL, &value));
    REFUSED(bx_rref_to_here_async(NULL, NULL, &future));
    REFUSED(bx_rref_to_here_async(rref, NULL, NULL));
    REFUSED(bx_rref_sync(NULL, "m", NULL, NULL, NULL));
    REFUSED(bx_rref_sync(rref, NULL, NULL, NULL, NULL));
    REFUSED(bx_rref_async(NULL, "m", NULL, NULL, &future));
    REFUSED(bx_rref_async(rref, NULL, NULL, NULL, &future));
    REFUSED(bx_rref_async(rref, "m", NULL, NULL, NULL));
    REFUSED(bx_rref_oneway(NULL, "m", NULL, NULL));
    REFUSED(bx_rref_oneway(rref, NULL, NULL, NULL));
    REFUSED(bx_rref_remote(NULL, "m", NULL, NULL, &made));
    REFUSED(bx_rref_remote(rref, NULL, NULL, NULL, &made));
    REFUSED(bx_rref_remote(rref, "m", NULL, NULL, NULL));
    HARNESS_CHECK(made == NULL && future == NULL && value == NULL && object == NULL);
    bx_msg_destroy(msg);
    bx_rref_release(rref);
}

static void try_calls(struct bx_job *job)
{
    struct bx_future *future = NULL;

    REFUSED(bx_rpc_sync(NULL, "worker1", "answer", NULL, NULL, NULL));
    REFUSED(bx_rpc_sync(job, NULL, "answer", NULL, NULL, NULL));
    REFUSED(bx_rpc_sync(job, "worker1", NULL, NULL, NULL, NULL));
    REFUSED(bx_rpc_async(NULL, "worker1", "answer", NULL, NULL, &future));
    REFUSED(bx_rpc_async(job, NULL, "answer", NULL, NULL, &future));
    REFUSED(bx_rpc_async(job, "worker1", NULL, NULL, NULL, &future));
    REFUSED(bx_rpc_async(job, "worker1", "answer", NULL, NULL, NULL));
    REFUSED(bx_rpc_many(NULL, "worker1", "answer", 1, NULL, NULL, &future));
    REFUSED(bx_rpc_many(job, NULL, "answer", 1, NULL, NULL, &future));
    REFUSED(bx_rpc_many(job, "worker1", NULL, 1, NULL, NULL, &future));
    REFUSED(bx_rpc_many(job, "worker1", "answer", 1, NULL, NULL, NULL));
    REFUSED(bx_rpc_oneway(NULL, "worker1", "answer", NULL, NULL));
    REFUSED(bx_rpc_oneway(job, NULL, "answer", NULL, NULL));
    REFUSED(bx_rpc_oneway(job, "worker1", NULL, NULL, NULL));
    HARNESS_CHECK(future == NULL);
}

static void try_values(struct bx_job *job)
{
    const int end[] = { BX_VALUE_END };
    struct bx_future *future = NULL;
    OWN(rref) *rref = NULL;
    OWN(msg) *msg = bx_msg_create(0);
    struct bx_reader reader = bx_msg_reader(NULL);

    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);
    REFUSED(bx_call(NULL, "worker1", "answer", ""));
    REFUSED(bx_call(job, NULL, "answer", ""));
    REFUSED(bx_call_with(job, bx_rank(1), NULL, NULL, ""));
    REFUSED(bx_call_typed(NULL, "worker1", "answer", NULL, end, ""));
    REFUSED(bx_call_typed(job, "worker1", "answer", NULL, end, NULL));
    REFUSED(bx_call_typed(job, "worker1", "answer", NULL, NULL, ""));
    REFUSED(bx_call_async(NULL, bx_rank(1), "answer", NULL, &future, ""));
    REFUSED(bx_call_async_typed(NULL, "worker1", "answer", NULL, &future, end, ""));
    REFUSED(bx_call_async_typed(job, "worker1", "answer", NULL, &future, NULL, ""));
    REFUSED(bx_call_async_typed(job, "worker1", "answer", NULL, NULL, end, ""));
    REFUSED(bx_rref_call(NULL, "m", ""));
    REFUSED(bx_rref_call_with(rref, NULL, NULL, ""));
    REFUSED(bx_rref_call_async(NULL, "m", NULL, &future, ""));
    REFUSED(bx_rref_call_typed(NULL, "m", NULL, end, ""));
    REFUSED(bx_rref_call_async_typed(NULL, "m", NULL, &future, end, ""));
    REFUSED(bx_msg_put(NULL, ""));
    REFUSED(bx_msg_put_typed(NULL, end, ""));
    REFUSED(bx_msg_put_typed(msg, end, NULL));
    HARNESS_EQ(bx_msg_error(msg), -EINVAL);
    REFUSED(bx_read(NULL, ""));
    REFUSED(bx_read_typed(NULL, end, ""));
    REFUSED(bx_read_typed(&reader, NULL, ""));
    HARNESS_EQ(reader.error, -EINVAL);
    REFUSED(bx_call(job, bx_rank(1), "answer", "b", bx_bytes(NULL, 4)));
    REFUSED(bx_call(job, bx_rank(1), "answer", ">b", bx_into(NULL, 4)));
    HARNESS_CHECK(future == NULL);
}

static void try_futures(struct bx_job *job)
{
    struct bx_future *future = bx_future_create(job), *some[2] = { future, NULL };

    IS_NULL(bx_future_acquire(NULL));
    bx_future_release(NULL);
    REFUSED(bx_future_set(NULL, harness_msg_i64(1)));
    REFUSED(bx_future_fail(NULL, -EIO, NULL));
    REFUSED(bx_future_cancel(NULL));
    REFUSED(bx_future_wait(NULL, 0));
    IS_ZERO(bx_future_is_done(NULL));
    REFUSED(bx_future_error(NULL));
    IS_EMPTY(bx_future_error_text(NULL));
    IS_NULL(bx_future_value(NULL));
    REFUSED(bx_future_on_done(NULL, (bx_done_fn)abort, NULL));
    REFUSED(bx_future_on_done(future, NULL, NULL));
    IS_NULL(bx_future_then(NULL, then, NULL, NULL));
    IS_NULL(bx_future_then(future, NULL, NULL, NULL));
    IS_NULL(bx_future_then_any(NULL, then, NULL, NULL));
    IS_NULL(bx_future_then_any(future, NULL, NULL, NULL));
    IS_NULL(bx_future_chain(NULL, chain, NULL, NULL));
    IS_NULL(bx_future_chain(future, NULL, NULL, NULL));
    IS_NULL(bx_future_all(job, NULL, 1));
    IS_NULL(bx_future_all(job, some, 2));
    IS_NULL(bx_future_any(job, NULL, 1));
    IS_NULL(bx_future_any(job, some, 2));
    HARNESS_EQ(bx_future_index(NULL), -1);
    IS_NULL(bx_future_all_value(NULL, 0));
    REFUSED(bx_future_all_error(NULL, 0));
    bx_future_release(future);

    /* A future without a job cannot be waited for. */
    future = bx_future_create(NULL);
    REFUSED(bx_future_wait(future, 0));
    bx_future_release(future);
}

static void try_messages(void)
{
    OWN(msg) *msg = bx_msg_create(0);
    struct bx_reader reader = bx_msg_reader(NULL);
    float value = 0;

    bx_msg_destroy(NULL);
    bx_msg_clear(NULL);
    REFUSED(bx_msg_put_i64(NULL, 1));
    REFUSED(bx_msg_put_u64(NULL, 1));
    REFUSED(bx_msg_put_i32(NULL, 1));
    REFUSED(bx_msg_put_f64(NULL, 1));
    REFUSED(bx_msg_put_f32(NULL, 1));
    REFUSED(bx_msg_put_f32s(NULL, &value, 1));
    REFUSED(bx_msg_put_f32s(NULL, &value, SIZE_MAX));
    REFUSED(bx_msg_put_str(NULL, "text"));
    REFUSED(bx_msg_put_bytes(NULL, "text", 4));
    REFUSED(bx_msg_put_tensor(NULL, NULL));
    REFUSED(bx_msg_put_f32s(msg, NULL, 1));
    HARNESS_EQ(bx_msg_error(msg), -EINVAL);     /* sticky */
    bx_msg_clear(msg);
    REFUSED(bx_msg_put_str(msg, NULL));
    bx_msg_clear(msg);
    REFUSED(bx_msg_put_bytes(msg, NULL, 4));
    bx_msg_clear(msg);
    REFUSED(bx_msg_put_tensor(msg, NULL));
    bx_msg_clear(msg);
    HARNESS_EQ(bx_msg_put_bytes(msg, NULL, 0), 0);
    IS_ZERO(bx_msg_tensors(NULL));
    IS_ZERO(bx_msg_bytes(NULL));
    IS_NULL(bx_msg_data(NULL));
    IS_ZERO(bx_msg_error(NULL));
    REFUSED(bx_msg_fail(NULL, -EIO));
    IS_ZERO(bx_msg_reader(NULL).bytes);
    IS_ZERO(bx_read_i64(NULL));
    IS_ZERO(bx_read_u64(NULL));
    IS_ZERO(bx_read_i32(NULL));
    IS_ZERO(bx_read_f64(NULL));
    IS_ZERO(bx_read_f32(NULL));
    REFUSED(bx_read_f32s(NULL, &value, 1));
    REFUSED(bx_read_f32s(&reader, NULL, 1));
    IS_EMPTY(bx_read_str(NULL));
    IS_NULL(bx_read_bytes(NULL, 1));
    IS_NULL(bx_read_tensor(NULL));
    IS_ZERO(bx_reader_left(NULL));
    IS_ZERO(bx_reader_tensors_left(NULL));
}

static void try_asking_tensors(void)
{
    IS_NULL(bx_tensor_acquire(NULL));
    bx_tensor_release(NULL);
    IS_ZERO(bx_tensor_dtype(NULL));
    HARNESS_EQ(bx_tensor_device(NULL).kind, BX_CPU);
    REFUSED(bx_tensor_ndim(NULL));
    IS_ZERO(bx_tensor_dim(NULL, 0));
    IS_NULL(bx_tensor_shape(NULL));
    IS_NULL(bx_tensor_strides(NULL));
    IS_ZERO(bx_tensor_elements(NULL));
    IS_ZERO(bx_tensor_bytes(NULL));
    IS_ZERO(bx_tensor_is_contiguous(NULL));
    IS_ZERO(bx_tensor_is_borrowed(NULL));
    IS_ZERO(bx_tensor_is_shared(NULL));
    IS_ZERO(bx_tensor_on_loan(NULL));
    IS_NULL(bx_tensor_data(NULL));
    IS_NULL(bx_tensor_data_mut(NULL));
    REFUSED(bx_tensor_written_on(NULL, NULL));
    REFUSED(bx_tensor_read_on(NULL, NULL));
}

static void try_tensors(struct bx_job *job)
{
    int64_t shape = 2;
    float data[2] = { 0 };
    struct bx_tensor *tensor = NULL, *made = NULL;
    struct DLManagedTensor *managed = NULL;
    struct DLManagedTensorVersioned *versioned = NULL;
    struct bx_device device = { BX_CUDA, 0 };

    HARNESS_EQ(bx_tensor_create(NULL, BX_F32, 1, &shape, &tensor), 0);      /* on the heap */
    REFUSED(bx_tensor_create(job, BX_F32, 1, NULL, &made));
    REFUSED(bx_tensor_create(job, BX_F32, 1, &shape, NULL));
    REFUSED(bx_tensor_create_on(NULL, device, BX_F32, 1, &shape, &made));
    REFUSED(bx_tensor_create_on(job, device, BX_F32, 1, &shape, NULL));
    REFUSED(bx_tensor_wrap(NULL, BX_F32, 1, &shape, NULL, NULL, NULL, &made));
    REFUSED(bx_tensor_wrap(data, BX_F32, 1, NULL, NULL, NULL, NULL, &made));
    REFUSED(bx_tensor_wrap(data, BX_F32, 1, &shape, NULL, NULL, NULL, NULL));
    REFUSED(bx_tensor_slice(NULL, 0, 0, 1, 1, &made));
    REFUSED(bx_tensor_slice(tensor, 0, 0, 1, 1, NULL));
    REFUSED(bx_tensor_select(NULL, 0, 0, &made));
    REFUSED(bx_tensor_select(tensor, 0, 0, NULL));
    REFUSED(bx_tensor_transpose(NULL, 0, 0, &made));
    REFUSED(bx_tensor_transpose(tensor, 0, 0, NULL));
    REFUSED(bx_tensor_reshape(NULL, 1, &shape, &made));
    REFUSED(bx_tensor_reshape(tensor, 1, NULL, &made));
    REFUSED(bx_tensor_reshape(tensor, 1, &shape, NULL));
    REFUSED(bx_tensor_as_strided(NULL, 0, 1, &shape, NULL, &made));
    REFUSED(bx_tensor_as_strided(tensor, 0, 1, NULL, NULL, &made));
    REFUSED(bx_tensor_as_strided(tensor, 0, 1, &shape, NULL, NULL));
    REFUSED(bx_tensor_copy(job, NULL, &made));
    REFUSED(bx_tensor_copy(job, tensor, NULL));
    REFUSED(bx_tensor_copy_on_write(NULL, &made));
    REFUSED(bx_tensor_copy_on_write(tensor, NULL));
    REFUSED(bx_tensor_copy_into(NULL, tensor));
    REFUSED(bx_tensor_copy_into(tensor, NULL));
    REFUSED(bx_tensor_to_dlpack(NULL, -1, &managed));
    REFUSED(bx_tensor_to_dlpack(tensor, -1, NULL));
    REFUSED(bx_tensor_to_dlpack_versioned(NULL, -1, &versioned));
    REFUSED(bx_tensor_to_dlpack_versioned(tensor, -1, NULL));
    REFUSED(bx_tensor_from_dlpack(NULL, -1, &made));
    REFUSED(bx_tensor_from_dlpack((struct DLManagedTensor *)data, -1, NULL));
    REFUSED(bx_tensor_from_dlpack_versioned(NULL, -1, &made));
    REFUSED(bx_tensor_from_dlpack_versioned((struct DLManagedTensorVersioned *)data, -1, NULL));
    REFUSED(bx_gpu_open(NULL, 0, &device));
    REFUSED(bx_gpu_count(NULL));
    IS_ZERO(bx_gpu_is_fake(NULL));
    IS_NULL(bx_gpu_stream(NULL, device));
    HARNESS_CHECK(made == NULL && managed == NULL && versioned == NULL);
    bx_tensor_release(tensor);
}

static void try_traces(struct bx_job *job)
{
    static const struct bx_slice slice = { .name = "name", .category = "category" }, bare = { .name = NULL };

    IS_ZERO(bx_trace_begin(NULL));
    bx_trace_end(NULL, &slice, 1, 0, 0);
    bx_trace_end(job, NULL, 1, 0, 0);
    bx_trace_end(job, &bare, 1, 0, 0);
}

HARNESS_TEST(null, is_refused_by_every_function_of_boxcar_h, 60, .size = 2, .setup = setup)
{
    try_jobs(job);
    try_functions(job);
    try_methods(job);
    try_rrefs(job);
    try_calls(job);
    try_values(job);
    try_futures(job);
    try_messages();
    try_asking_tensors();
    try_tensors(job);
    try_traces(job);
}

Test(null, format_of_a_sentence_gives_the_text_of_the_code, .timeout = 20)
{
    /* bx_fail(code, NULL); written as it stands gets a warning. */
    int (*volatile fail)(int, const char *, ...) = bx_fail;

    cr_expect_eq(fail(BX_E_TIMEOUT, NULL), BX_E_TIMEOUT);
    cr_expect_str_eq(bx_error_text(), bx_strerror(BX_E_TIMEOUT));
}

/* ---- Functions without a case ---------------------------------------------------------------- */

/* True if the text has a call of this function with a NULL among its arguments. */
static bool is_called_with_null(const char *text, const char *name)
{
    char call[80];

    snprintf(call, sizeof call, "%s(", name);
    for (const char *at = strstr(text, call); at != NULL; at = strstr(at + 1, call)) {
        const char *end = strchr(at, ';'), *null = strstr(at, "NULL");

        if (null != NULL && end != NULL && null < end)
            return true;
    }
    return false;
}

Test(null, has_a_case_for_every_public_function, .timeout = 60)
{
    static const char *const headers[] = { "lib/boxcar.h", "lib/boxcar_tensor.h", "lib/boxcar_rref.h",
                                          "lib/boxcar_call.h", "lib/boxcar_trace.h", "lib/boxcar_nn.h",
                                          "lib/boxcar_cuda.h", "lib/boxcar_autograd.h", "lib/boxcar_dist.h" };
    char *cases = text_of("tests/base/test_null.c"), *nets = text_of("tests/base/test_null_nets.c");
    struct function function;
    int functions = 0;

    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        char *text = text_of(headers[i]);

        for (const char *at = text; (at = next_function(at, &function)) != NULL;) {
            if (strchr(function.parameters, '*') == NULL)
                continue;               /* a function that takes no pointer needs no case */
            functions++;
            cr_expect(is_called_with_null(cases, function.name) || is_called_with_null(nets, function.name),
                      "%s of %s has no case", function.name, headers[i]);
        }
        free(text);
    }
    free(cases);
    free(nets);
    cr_expect_gt(functions, 150, "%d functions were found in the headers", functions);
}
