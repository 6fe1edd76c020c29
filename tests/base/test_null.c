/* SPDX-License-Identifier: MIT */
/*
 * NULL where a public function needs a pointer: it returns -EINVAL with a sentence, NULL, false, 0 or "", or does
 * nothing. Every function of the public headers that takes a pointer is called once for each pointer that it needs,
 * in a job that has started, so that no other check comes first. The last test reads the headers and reports functions
 * without a case here.
 */
#include "functions.h"

#include "boxcar_dist.h"
#include "boxcar_cuda.h"
#include "boxcar_trace.h"
#include "tests/harness/harness.h"

#include <math.h>

/* ---- The cases ------------------------------------------------------------------------------- */

static void is_refused(const char *call, int rc)
{
    bool no_cuda = strncmp(call, "bx_cuda", 7) == 0 || strncmp(call, "bx_kernel", 9) == 0;

    if (no_cuda && rc == -ENOTSUP && bx_cuda_count() == -ENOTSUP)
        return;                         /* built with CUDA=0: every function returns -ENOTSUP */
    if (rc != -EINVAL)
        harness_failed(__FILE__, __LINE__, "%s is %d, not -EINVAL", call, rc);
    if (strcmp(bx_error_text(), "an older sentence") == 0)
        harness_failed(__FILE__, __LINE__, "%s has no sentence", call);
}

static void is_null(const char *call, const void *value)
{
    if (value != NULL)
        harness_failed(__FILE__, __LINE__, "%s is not NULL", call);
}

static void is_zero(const char *call, double value)
{
    if (value != 0)
        harness_failed(__FILE__, __LINE__, "%s is %g, not 0", call, value);
}

#define REFUSED(call) (bx_fail(-EIO, "an older sentence"), is_refused(#call, call))
#define IS_NULL(call) is_null(#call, call)
#define IS_ZERO(call) is_zero(#call, (double)(call))
#define IS_EMPTY(call) is_zero(#call, (double)strlen(call))

static int then(struct bx_future *in, struct bx_msg *out, void *context)
{
    (void)in;
    (void)out;
    (void)context;
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
    REFUSED(bx_job_rank(NULL));
    REFUSED(bx_job_world_size(NULL));
    IS_NULL(bx_job_name(NULL));
    IS_NULL(bx_worker_name(NULL, 0));
    REFUSED(bx_worker_rank(NULL, "worker0"));
    REFUSED(bx_worker_rank(job, NULL));
    IS_ZERO(bx_worker_alive(NULL, 0));
    REFUSED(bx_on_death(NULL, NULL, NULL));
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
}

static void try_functions(struct bx_job *job)
{
    const struct bx_batch_options options = { 0 };

    REFUSED(bx_register(NULL, "f", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register(job, NULL, BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register(job, "f", BX_INLINE, NULL, NULL));
    REFUSED(bx_register_async(NULL, "f", answer_later, NULL));
    REFUSED(bx_register_async(job, NULL, answer_later, NULL));
    REFUSED(bx_register_async(job, "f", NULL, NULL));
    REFUSED(bx_register_batch(NULL, "f", harness_no_rows, NULL, &options));
    REFUSED(bx_register_batch(job, NULL, harness_no_rows, NULL, &options));
    REFUSED(bx_register_batch(job, "f", NULL, NULL, &options));
    IS_NULL(bx_request_job(NULL));
    REFUSED(bx_request_caller(NULL));
    IS_NULL(bx_request_function(NULL));
    IS_ZERO(bx_request_deadline_ns(NULL));
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
    REFUSED(bx_register_method_async(NULL, &type, "m", answer_later, NULL));
    REFUSED(bx_register_method_async(job, NULL, "m", answer_later, NULL));
    REFUSED(bx_register_method_async(job, &nameless, "m", answer_later, NULL));
    REFUSED(bx_register_method_async(job, &type, NULL, answer_later, NULL));
    REFUSED(bx_register_method_async(job, &type, "m", NULL, NULL));
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

static void try_futures(struct bx_job *job)
{
    struct bx_future *future = bx_future_create(job), *some[2] = { future, NULL };

    IS_NULL(bx_future_acquire(NULL));
    bx_future_release(NULL);
    REFUSED(bx_future_set(NULL, harness_msg_i64(1)));
    REFUSED(bx_future_fail(NULL, -EIO, NULL));
    REFUSED(bx_future_cancel(NULL));
    REFUSED(bx_future_wait(NULL, 0));
    IS_ZERO(bx_future_done(NULL));
    REFUSED(bx_future_error(NULL));
    IS_EMPTY(bx_future_error_text(NULL));
    IS_NULL(bx_future_value(NULL));
    REFUSED(bx_future_on_done(NULL, (bx_done_fn)abort, NULL));
    REFUSED(bx_future_on_done(future, NULL, NULL));
    IS_NULL(bx_future_then(NULL, then, NULL));
    IS_NULL(bx_future_then(future, NULL, NULL));
    IS_NULL(bx_future_then_any(NULL, then, NULL));
    IS_NULL(bx_future_then_any(future, NULL, NULL));
    IS_NULL(bx_future_all(job, NULL, 1));
    IS_NULL(bx_future_all(job, some, 2));
    IS_NULL(bx_future_any(job, NULL, 1));
    IS_NULL(bx_future_any(job, some, 2));
    bx_future_release(future);

    /* A future without a job cannot be waited for. */
    future = bx_future_create(NULL);
    REFUSED(bx_future_wait(future, 0));
    bx_future_release(future);
}

static void try_messages(void)
{
    struct bx_msg *msg = bx_msg_create(0);
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
    bx_msg_destroy(msg);
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
    REFUSED(bx_tensor_copy_into(NULL, tensor));
    REFUSED(bx_tensor_copy_into(tensor, NULL));
    REFUSED(bx_tensor_to_dlpack(NULL, &managed));
    REFUSED(bx_tensor_to_dlpack(tensor, NULL));
    REFUSED(bx_tensor_to_dlpack_versioned(NULL, &versioned));
    REFUSED(bx_tensor_to_dlpack_versioned(tensor, NULL));
    REFUSED(bx_tensor_from_dlpack(NULL, &made));
    REFUSED(bx_tensor_from_dlpack((struct DLManagedTensor *)data, NULL));
    REFUSED(bx_tensor_from_dlpack_versioned(NULL, &made));
    REFUSED(bx_tensor_from_dlpack_versioned((struct DLManagedTensorVersioned *)data, NULL));
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

static void caller(struct bx_job *job)
{
    try_jobs(job);
    try_functions(job);
    try_methods(job);
    try_rrefs(job);
    try_calls(job);
    try_futures(job);
    try_messages();
    try_asking_tensors();
    try_tensors(job);
    try_traces(job);
}

Test(null, is_refused_by_every_function_of_boxcar_h, .timeout = 60)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { caller } });
}

Test(null, format_of_a_sentence_gives_the_text_of_the_code, .timeout = 20)
{
    int (*volatile fail)(int, const char *, ...) = bx_fail;     /* a direct call gets a warning */

    cr_expect_eq(fail(BX_E_TIMEOUT, NULL), BX_E_TIMEOUT);
    cr_expect_str_eq(bx_error_text(), bx_strerror(BX_E_TIMEOUT));
}

Test(null, is_refused_by_every_function_of_boxcar_nn_h, .timeout = 60)
{
    struct bx_net *net = NULL;
    float value = 1;
    const float *const none[1] = { NULL };
    struct bx_sgd step = { .elements = 1, .grad_count = 1 };

    REFUSED(bx_net_create(NULL, NULL));
    bx_net_destroy(NULL);
    REFUSED(bx_net_input(NULL, 1, 1, 1, 1));
    REFUSED(bx_net_conv(NULL, 0, &(struct bx_conv){ "a", 1, 1, 1, 0, false }));
    REFUSED(bx_net_batch_norm(NULL, 0, "a", false));
    REFUSED(bx_net_relu(NULL, 0));
    REFUSED(bx_net_add(NULL, 0, 0, false));
    REFUSED(bx_net_max_pool(NULL, 0, 1, 1, 0));
    REFUSED(bx_net_global_avg_pool(NULL, 0));
    REFUSED(bx_net_linear(NULL, 0, "a", 1, true));
    REFUSED(bx_net_softmax(NULL, 0));
    REFUSED(bx_net_finish(NULL, 0));
    IS_ZERO(bx_net_params(NULL));
    IS_NULL(bx_net_param(NULL, 0));
    IS_ZERO(bx_net_param_elements(NULL));
    REFUSED(bx_net_set_params(NULL, none));
    REFUSED(bx_net_share_params(NULL, NULL));
    IS_ZERO(bx_net_shares_params(NULL, NULL));
    REFUSED(bx_net_running(NULL, "a", NULL, NULL, NULL));
    IS_ZERO(bx_net_output_elements(NULL));
    REFUSED(bx_net_forward(NULL, &value, &value));
    REFUSED(bx_net_predict(NULL, &value, &value));
    REFUSED(bx_net_backward(NULL, &value, NULL));
    IS_NULL(bx_net_input_grad(NULL));
    cr_expect(isnan(bx_mse_loss(NULL, &value, 1, &value)));
    cr_expect(isnan(bx_mse_loss(&value, NULL, 1, &value)));
    cr_expect_eq(bx_mse_loss(&value, &value, 1, NULL), 0);
    bx_sgd_step(NULL);
    bx_sgd_step(&step);
    IS_ZERO(bx_net_input_elements(NULL));
    REFUSED(bx_nn_sgemm(NULL));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .b = &value, .c = &value }));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .a = &value, .c = &value }));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .a = &value, .b = &value }));

    if (bx_net_create(NULL, &net) < 0)
        cr_skip("%s", bx_error_text());
    bx_net_input(net, 1, 1, 2, 2);
    REFUSED(bx_net_conv(net, 0, NULL));
    REFUSED(bx_net_conv(net, 0, &(struct bx_conv){ NULL, 1, 1, 1, 0, false }));
    REFUSED(bx_net_batch_norm(net, 0, NULL, false));
    REFUSED(bx_net_linear(net, 0, NULL, 1, true));
    REFUSED(bx_net_running(net, NULL, NULL, NULL, NULL));
    cr_assert_eq(bx_net_finish(net, bx_net_linear(net, 0, "a", 1, false)), 0);
    REFUSED(bx_net_set_params(net, NULL));
    REFUSED(bx_net_set_params(net, none));
    REFUSED(bx_net_forward(net, NULL, &value));
    REFUSED(bx_net_forward(net, &value, NULL));
    REFUSED(bx_net_predict(net, NULL, &value));
    REFUSED(bx_net_predict(net, &value, NULL));

    const float weight[4] = { 0 }, input[4] = { 0 };
    float grad[4];

    cr_assert_eq(bx_net_set_params(net, (const float *const[]){ weight }), 0);
    cr_assert_eq(bx_net_forward(net, input, &value), 0);
    REFUSED(bx_net_backward(net, NULL, (float *const[]){ grad }));
    REFUSED(bx_net_backward(net, &value, NULL));
    REFUSED(bx_net_backward(net, &value, (float *const[]){ NULL }));
    bx_net_destroy(net);
}

Test(null, is_refused_by_every_function_of_boxcar_cuda_h, .timeout = 60)
{
    float value = 0;
    double loss = 0;
    void *memory = NULL;
    struct bx_kernels *kernels = NULL;
    /* Never dereferenced, because another pointer is NULL. */
    struct bx_cuda *cuda = (struct bx_cuda *)(void *)&value;

    REFUSED(bx_cuda_open(0, NULL));
    bx_cuda_close(NULL);
    IS_NULL(bx_cuda_name(NULL));
    IS_NULL(bx_cuda_stream(NULL));
    REFUSED(bx_cuda_wait(NULL));
    REFUSED(bx_cuda_alloc(NULL, 1, &memory));
    REFUSED(bx_cuda_alloc(cuda, 1, NULL));
    bx_cuda_free(NULL, &value);
    bx_cuda_free(cuda, NULL);
    REFUSED(bx_cuda_alloc_host(NULL, 1, &memory));
    REFUSED(bx_cuda_alloc_host(cuda, 1, NULL));
    bx_cuda_free_host(NULL, &value);
    bx_cuda_free_host(cuda, NULL);
    REFUSED(bx_cuda_copy(NULL, &value, &value, 1));
    REFUSED(bx_cuda_copy(cuda, NULL, &value, 1));
    REFUSED(bx_cuda_copy(cuda, &value, NULL, 1));
    REFUSED(bx_cuda_zero(NULL, &value, 1));
    REFUSED(bx_cuda_zero(cuda, NULL, 1));
    REFUSED(bx_cuda_mse_loss(NULL, &value, &value, 1, NULL, &loss));
    REFUSED(bx_cuda_mse_loss(cuda, NULL, &value, 1, NULL, &loss));
    REFUSED(bx_cuda_mse_loss(cuda, &value, NULL, 1, NULL, &loss));
    REFUSED(bx_cuda_mse_loss(cuda, &value, &value, 1, NULL, NULL));
    REFUSED(bx_cuda_sgd_step(NULL, &(struct bx_sgd){ .from = &value, .to = &value, .velocity = &value,
                                                     .grads = (const float *const[]){ &value }, .grad_count = 1 }));
    REFUSED(bx_cuda_sgd_step(cuda, NULL));
    REFUSED(bx_cuda_sgd_step(cuda, &(struct bx_sgd){ .grad_count = 1 }));
    REFUSED(bx_kernels_create(NULL, "a", "", &kernels));
    REFUSED(bx_kernels_create(cuda, NULL, "", &kernels));
    REFUSED(bx_kernels_create(cuda, "a", NULL, &kernels));
    REFUSED(bx_kernels_create(cuda, "a", "", NULL));
    bx_kernels_destroy(NULL);
    REFUSED(bx_kernel_launch(NULL, "a", 1, &value));
}

/* An operation that is given a NULL returns one, and its tape keeps -EINVAL. */
#define STOPPED(call)                                                                               \
    do {                                                                                            \
        bx_fail(-EIO, "an older sentence");                                                         \
        IS_NULL(call);                                                                              \
        is_refused(#call, bx_tape_error(tape));                                                     \
        bx_tape_clear(tape);                                                                        \
    } while (0)

static void try_operations(struct bx_tape *tape, struct bx_var *a)
{
    struct bx_generator generator = { .seed = 1 };
    struct bx_var *none = NULL;

    STOPPED(bx_tape_input(tape, NULL));
    STOPPED(bx_var_detach(tape, NULL));
    STOPPED(bx_var_add(tape, NULL, a));
    STOPPED(bx_var_add(tape, a, NULL));
    STOPPED(bx_var_sub(tape, NULL, a));
    STOPPED(bx_var_mul(tape, a, NULL));
    STOPPED(bx_var_scale(tape, NULL, 1));
    STOPPED(bx_var_neg(tape, NULL));
    STOPPED(bx_var_exp(tape, NULL));
    STOPPED(bx_var_log(tape, NULL));
    STOPPED(bx_var_relu(tape, NULL));
    STOPPED(bx_var_tanh(tape, NULL));
    STOPPED(bx_var_sigmoid(tape, NULL));
    STOPPED(bx_var_matmul(tape, NULL, a));
    STOPPED(bx_var_matmul(tape, a, NULL));
    STOPPED(bx_var_linear(tape, NULL, a, NULL));
    STOPPED(bx_var_linear(tape, a, NULL, NULL));
    STOPPED(bx_var_dropout(tape, NULL, 0.5, true, &generator));
    STOPPED(bx_var_dropout(tape, a, 0.5, true, NULL));
    STOPPED(bx_var_softmax(tape, NULL));
    STOPPED(bx_var_log_softmax(tape, NULL));
    STOPPED(bx_var_gather(tape, NULL, bx_var_value(a)));
    STOPPED(bx_var_gather(tape, a, NULL));
    STOPPED(bx_var_embedding(tape, NULL, bx_var_value(a)));
    STOPPED(bx_var_embedding(tape, a, NULL));
    STOPPED(bx_var_cross_entropy(tape, NULL, bx_var_value(a)));
    STOPPED(bx_var_cross_entropy(tape, a, NULL));
    STOPPED(bx_var_mse(tape, NULL, a));
    STOPPED(bx_var_mse(tape, a, NULL));
    STOPPED(bx_var_sum(tape, NULL));
    STOPPED(bx_var_mean(tape, NULL));
    STOPPED(bx_var_sum_dim(tape, NULL, 0));
    STOPPED(bx_var_reshape(tape, NULL, 1, &(int64_t){ 1 }));
    STOPPED(bx_var_reshape(tape, a, 1, NULL));
    STOPPED(bx_var_transpose(tape, NULL, 0, 0));
    STOPPED(bx_var_slice(tape, NULL, 0, 0, 1));
    STOPPED(bx_var_concat(tape, NULL, 1, 0));
    STOPPED(bx_var_concat(tape, &none, 1, 0));
    STOPPED(bx_var_stack(tape, NULL, 1, 0));
    STOPPED(bx_var_stack(tape, &none, 1, 0));
    STOPPED(bx_var_net(tape, NULL, a));
    IS_NULL(bx_var_add(NULL, a, a));
}

static void try_passes(struct bx_tape *tape, struct bx_var *a)
{
    struct bx_grads *grads = NULL;
    struct bx_optim *optim = NULL;
    struct bx_lstm_result result;
    struct bx_net_op *op = NULL;
    struct bx_var *var;

    REFUSED(bx_var_lstm(NULL, a, &(struct bx_lstm){ .layers = 1 }, &result));
    REFUSED(bx_var_lstm(tape, NULL, &(struct bx_lstm){ .layers = 1 }, &result));
    bx_tape_clear(tape);
    REFUSED(bx_var_lstm(tape, a, NULL, &result));
    REFUSED(bx_var_lstm(tape, a, &(struct bx_lstm){ .layers = 1 }, NULL));
    REFUSED(bx_var_custom(NULL, &(struct bx_custom){ .name = "a" }, &var));
    REFUSED(bx_var_custom(tape, NULL, &var));
    REFUSED(bx_var_custom(tape, &(struct bx_custom){ .name = "a" }, NULL));
    REFUSED(bx_net_op_create(NULL, &a, &op));
    REFUSED(bx_net_op_share(NULL, NULL, &op));
    bx_net_op_destroy(NULL);
    REFUSED(bx_grads_create(NULL, NULL));
    cr_assert_eq(bx_grads_create(NULL, &grads), 0);
    IS_ZERO(bx_grads_count(NULL));
    IS_NULL(bx_grads_get(NULL, a));
    IS_NULL(bx_grads_get(grads, NULL));
    IS_NULL(bx_grads_at(NULL, 0, &var));
    REFUSED(bx_grads_add(NULL, a, bx_var_value(a)));
    REFUSED(bx_grads_add(grads, NULL, bx_var_value(a)));
    REFUSED(bx_grads_add(grads, a, NULL));
    REFUSED(bx_backward(NULL, NULL, 1, false, grads));
    REFUSED(bx_backward(&a, NULL, 1, false, NULL));
    REFUSED(bx_optim_sgd_create(NULL, &a, 1, &optim));
    REFUSED(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 1 }, NULL, 1, &optim));
    REFUSED(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 1 }, &a, 1, NULL));
    REFUSED(bx_optim_adam_create(NULL, NULL, 1, &optim));
    REFUSED(bx_optim_adam_create(NULL, &a, 1, NULL));
    REFUSED(bx_optim_step(NULL, NULL, grads));
    cr_assert_eq(bx_optim_adam_create(NULL, &a, 1, &optim), 0);
    REFUSED(bx_optim_step(optim, NULL, NULL));
    bx_optim_destroy(optim);
    bx_optim_destroy(NULL);
    bx_grads_clear(NULL);
    bx_grads_destroy(grads);
    bx_grads_destroy(NULL);
}

Test(null, is_refused_by_every_function_of_boxcar_autograd_h, .timeout = 60)
{
    struct bx_tape *tape = NULL;
    struct bx_tensor *value = NULL;
    struct bx_var *var = NULL;

    cr_assert_eq(bx_tensor_create(NULL, BX_F32, 2, (const int64_t[]){ 1, 1 }, &value), 0);
    memset(bx_tensor_data_mut(value), 0, sizeof(float));
    REFUSED(bx_var_create(NULL, false, &var));
    REFUSED(bx_var_create(value, false, NULL));
    cr_assert_eq(bx_var_create(value, true, &var), 0);
    IS_NULL(bx_var_acquire(NULL));
    bx_var_release(NULL);
    IS_ZERO(bx_var_requires_grad(NULL));
    IS_NULL(bx_var_value(NULL));
    IS_NULL(bx_var_acquire_value(NULL));
    REFUSED(bx_var_set_value(NULL, value));
    REFUSED(bx_var_set_value(var, NULL));
    cr_expect(isnan(bx_var_item(NULL)));
    REFUSED(bx_tape_create(NULL, NULL));
    REFUSED(bx_tape_error(NULL));
    bx_tape_clear(NULL);
    bx_tape_destroy(NULL);
    cr_assert_eq(bx_tape_create(NULL, &tape), 0);
    try_operations(tape, var);
    try_passes(tape, var);
    bx_tape_destroy(tape);
    bx_var_release(var);
    bx_tensor_release(value);
}

Test(null, is_refused_by_every_function_of_boxcar_dist_h, .timeout = 60)
{
    struct bx_tape *tape = NULL;
    struct bx_context *context = NULL;
    struct bx_dist_optim *optim = NULL;
    struct bx_dist *dist = NULL;
    struct bx_rref *rref = NULL;

    cr_assert_eq(bx_tape_create(NULL, &tape), 0);
    REFUSED(bx_dist_create(NULL, &dist));
    bx_dist_destroy(NULL);
    IS_ZERO(bx_dist_contexts(NULL));
    REFUSED(bx_context_create(NULL, &context));
    IS_ZERO(bx_context_id(NULL));
    bx_context_end(NULL);
    IS_NULL(bx_context_acquire(NULL));
    bx_context_release(NULL);
    REFUSED(bx_context_error(NULL));
    REFUSED(bx_msg_put_context(NULL, NULL));
    REFUSED(bx_read_context(NULL, NULL, &context));
    REFUSED(bx_msg_put_var(NULL, NULL, NULL));
    IS_NULL(bx_read_var(NULL, tape, NULL));
    REFUSED(bx_context_call(NULL, NULL));
    REFUSED(bx_context_backward(NULL, NULL, NULL, 0, false, 0));
    IS_NULL(bx_context_grads(NULL));
    REFUSED(bx_param_rref(NULL, NULL, &rref));
    REFUSED(bx_dist_optim_create(NULL, NULL, 0, NULL, NULL, &optim));
    bx_dist_optim_destroy(NULL);
    REFUSED(bx_dist_optim_step(NULL, NULL));
    bx_tape_destroy(tape);
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
    static const char *const headers[] = { "lib/boxcar.h", "lib/boxcar_trace.h", "lib/boxcar_nn.h",
                                          "lib/boxcar_cuda.h", "lib/boxcar_autograd.h", "lib/boxcar_dist.h" };
    char *cases = text_of("tests/base/test_null.c");
    struct function function;
    int functions = 0;

    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        char *text = text_of(headers[i]);

        for (const char *at = text; (at = next_function(at, &function)) != NULL;) {
            if (strchr(function.parameters, '*') == NULL)
                continue;               /* a function that takes no pointer needs no case */
            functions++;
            cr_expect(is_called_with_null(cases, function.name), "%s of %s has no case here", function.name,
                      headers[i]);
        }
        free(text);
    }
    free(cases);
    cr_expect_gt(functions, 150, "%d functions were found in the headers", functions);
}
