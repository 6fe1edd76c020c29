/* SPDX-License-Identifier: MIT */
/*
 * NULL where a public function needs a pointer: it returns -EINVAL with a sentence, NULL, false, 0 or "", or does
 * nothing. cases.awk makes a call for each pointer that each function of the public headers needs, in a job that has
 * started, so that no other check comes first. Here are functions with a format, and NULL within what is given.
 */
#include "tests/harness/harness.h"

#include "boxcar_cuda.h"
#include "boxcar_trace.h"

#include <math.h>

/* What the calls are given, and zeroes for all else. No call writes to these. */
static struct bx_job *a_job;
static struct bx_msg *a_msg;
static struct bx_reader *a_reader;
static struct bx_future *a_future;
static struct bx_rref *a_rref;
static struct bx_tensor *a_tensor;
static struct bx_var *a_var;
static struct bx_tape *a_tape;
static struct bx_grads *a_grads;
static struct bx_dist *a_dist;
static struct bx_context *a_context;
static struct bx_net *a_net;            /* NULL if this machine's oneDNN cannot be used */
static const struct bx_type type = { .name = "type" }, nameless = { .name = NULL }, *const a_type = &type;
static const struct bx_spawn_options *const a_spawn_options = &(struct bx_spawn_options){ .world_size = 2 };
static _Alignas(64) unsigned char page[4096];

/* ---- How a call is judged -------------------------------------------------------------------- */

/* A message, a reader and a tape keep the error of a call that they refused. */
static void begin(void)
{
    bx_tape_clear(a_tape);
    bx_msg_clear(a_msg);
    *a_reader = bx_msg_reader(NULL);
    bx_fail(-EIO, "an older sentence");
}

static void expect(const char *call, bool is_so, const char *what)
{
    static const unsigned char zeroes[sizeof page];

    if (!is_so)
        harness_failed(__FILE__, __LINE__, "%s %s", call, what);
    if (memcmp(page, zeroes, sizeof page) != 0)
        harness_failed(__FILE__, __LINE__, "%s has written to what it was given", call);
}

static void is_refused(const char *call, int rc)
{
    int kept = strncmp(call, "bx_msg_", 7) == 0 ? bx_msg_error(a_msg) : a_reader->error;

    if ((strncmp(call, "bx_cuda", 7) == 0 || strncmp(call, "bx_kernel", 9) == 0) && rc == -ENOTSUP &&
        bx_cuda_count() == -ENOTSUP)
        return;                         /* built with CUDA=0: every function returns -ENOTSUP */
    expect(call, rc == -EINVAL, "is not -EINVAL");
    expect(call, strcmp(bx_error_text(), "an older sentence") != 0, "has no sentence");
    expect(call, (strstr(call, "(a_msg, ") == NULL && strstr(call, "(a_reader, ") == NULL) || kept == -EINVAL,
           "leaves no error in the message or the reader");
}

#define REFUSED(call) (begin(), is_refused(#call, call))
#define IS_NULL(call) (begin(), expect(#call, (call) == NULL, "is not NULL"))
#define IS_ZERO(call) (begin(), expect(#call, (call) == 0, "is not 0"))
#define IS_EMPTY(call) (begin(), expect(#call, strlen(call) == 0, "is not empty"))
#define NOTHING(call) (begin(), (call), expect(#call, true, ""))
/* An operation that is given a NULL returns one, and its tape keeps -EINVAL. */
#define STOPPED(call) (IS_NULL(call), is_refused(#call, bx_tape_error(a_tape)))

/* ---- Functions with a format, and those that return neither a number nor a pointer ------------- */

static void try_formats(void)
{
    const int end[] = { BX_VALUE_END };
    struct bx_future *future = NULL;

    REFUSED(bx_call(NULL, "worker1", "answer", ""));
    REFUSED(bx_call(a_job, NULL, "answer", ""));
    REFUSED(bx_call_with(a_job, bx_rank(1), NULL, NULL, ""));
    REFUSED(bx_call_typed(NULL, "worker1", "answer", NULL, end, ""));
    REFUSED(bx_call_typed(a_job, "worker1", "answer", NULL, end, NULL));
    REFUSED(bx_call_typed(a_job, "worker1", "answer", NULL, NULL, ""));
    REFUSED(bx_call_async(NULL, bx_rank(1), "answer", NULL, &future, ""));
    REFUSED(bx_call_async_typed(NULL, "worker1", "answer", NULL, &future, end, ""));
    REFUSED(bx_call_async_typed(a_job, "worker1", "answer", NULL, &future, NULL, ""));
    REFUSED(bx_call_async_typed(a_job, "worker1", "answer", NULL, NULL, end, ""));
    REFUSED(bx_rref_call(NULL, "m", ""));
    REFUSED(bx_rref_call_with(a_rref, NULL, NULL, ""));
    REFUSED(bx_rref_call_async(NULL, "m", NULL, &future, ""));
    REFUSED(bx_rref_call_typed(NULL, "m", NULL, end, ""));
    REFUSED(bx_rref_call_async_typed(NULL, "m", NULL, &future, end, ""));
    REFUSED(bx_msg_put(NULL, ""));
    REFUSED(bx_msg_put_typed(NULL, end, ""));
    REFUSED(bx_msg_put_typed(a_msg, end, NULL));
    REFUSED(bx_read(NULL, ""));
    REFUSED(bx_read_typed(NULL, end, ""));
    REFUSED(bx_read_typed(a_reader, NULL, ""));
    REFUSED(bx_call(a_job, bx_rank(1), "answer", "b", bx_bytes(NULL, 4)));
    REFUSED(bx_call(a_job, bx_rank(1), "answer", ">b", bx_into(NULL, 4)));
    HARNESS_CHECK(future == NULL);
}

static void try_other_results(void)
{
    const float value = 1;

    bx_set_log(NULL, NULL);
    HARNESS_EQ(bx_future_index(NULL), -1);
    HARNESS_EQ(bx_tensor_device(NULL).kind, BX_CPU);
    IS_ZERO(bx_msg_reader(NULL).bytes);
    IS_ZERO(bx_batch_args(NULL, 0).bytes);
    HARNESS_CHECK(isnan(bx_var_item(NULL)));
    HARNESS_CHECK(isnan(bx_mse_loss(NULL, &value, 1, NULL)));
    HARNESS_CHECK(isnan(bx_mse_loss(&value, NULL, 1, NULL)));
    HARNESS_CHECK(bx_mse_loss(&value, &value, 1, NULL) == 0);
}

/* ---- NULL within what is given ------------------------------------------------------------------ */

static void try_members(void)
{
    struct bx_future *some[2] = { a_future, NULL }, *of_no_job = bx_future_create(NULL);
    struct bx_rref *rref = NULL;
    void *object = NULL;

    REFUSED(bx_register_method(a_job, &nameless, "m", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_method_async(a_job, &nameless, "m", BX_INLINE, harness_never, NULL));
    REFUSED(bx_register_method_batch(a_job, &nameless, "m", harness_no_rows, NULL, NULL));
    REFUSED(bx_rref_create(a_job, &nameless, NULL, &rref));
    REFUSED(bx_rref_local(a_rref, &nameless, &object));
    IS_NULL(bx_future_all(a_job, some, 2));
    IS_NULL(bx_future_any(a_job, some, 2));
    REFUSED(bx_future_wait(of_no_job, 0));      /* it cannot be waited for */
    bx_future_release(of_no_job);
    REFUSED(bx_msg_put_f32s(NULL, (const float *)page, SIZE_MAX));
    HARNESS_EQ(bx_msg_put_bytes(a_msg, NULL, 0), 0);
    bx_trace_end(a_job, &(struct bx_slice){ .name = NULL }, 1, 0, 0);
    STOPPED(bx_var_concat(a_tape, &(struct bx_var *){ NULL }, 1, 0));
    STOPPED(bx_var_stack(a_tape, &(struct bx_var *){ NULL }, 1, 0));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .b = (float *)page, .c = (float *)page }));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .a = (float *)page, .c = (float *)page }));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .a = (float *)page, .b = (float *)page }));
    bx_sgd_step(&(struct bx_sgd){ .elements = 1, .grad_count = 1 });
    REFUSED(bx_cuda_sgd_step((struct bx_cuda *)page, &(struct bx_sgd){ .grad_count = 1 }));
}

static void try_passes(void)
{
    const float *const none[1] = { NULL };
    float weight[4] = { 0 }, grad[4], output;
    struct bx_optim *optim = NULL;

    HARNESS_EQ(bx_optim_adam_create(NULL, &a_var, 1, &optim), 0);
    REFUSED(bx_optim_step(optim, NULL, NULL));
    bx_optim_destroy(optim);
    if (a_net == NULL)
        return;
    REFUSED(bx_net_conv(a_net, 0, &(struct bx_conv){ NULL, 1, 1, 1, 0, false }));
    HARNESS_EQ(bx_net_finish(a_net, bx_net_linear(a_net, 0, "a", 1, false)), 0);
    REFUSED(bx_net_set_params(a_net, NULL));
    REFUSED(bx_net_set_params(a_net, none));
    HARNESS_EQ(bx_net_set_params(a_net, (const float *const[]){ weight }), 0);
    REFUSED(bx_net_forward(a_net, NULL, &output));
    REFUSED(bx_net_forward(a_net, weight, NULL));
    REFUSED(bx_net_predict(a_net, NULL, &output));
    REFUSED(bx_net_predict(a_net, weight, NULL));
    HARNESS_EQ(bx_net_forward(a_net, weight, &output), 0);
    REFUSED(bx_net_backward(a_net, NULL, (float *const[]){ grad }));
    REFUSED(bx_net_backward(a_net, &output, NULL));
    REFUSED(bx_net_backward(a_net, &output, (float *const[]){ NULL }));
}

/* ---- The test ------------------------------------------------------------------------------------ */

static int setup(struct bx_job *job)
{
    return bx_dist_create(job, &a_dist);
}

static void make_all(struct bx_job *job)
{
    static struct bx_reader reader;

    a_job = job;
    a_msg = bx_msg_create(0);
    a_reader = &reader;
    a_future = bx_future_create(job);
    HARNESS_EQ(bx_rref_create(job, &type, NULL, &a_rref), 0);           /* an object may be NULL */
    HARNESS_EQ(bx_tensor_create(NULL, BX_F32, 2, (const int64_t[]){ 1, 1 }, &a_tensor), 0);
    memset(bx_tensor_data_mut(a_tensor), 0, sizeof(float));
    HARNESS_EQ(bx_var_create(a_tensor, true, &a_var), 0);
    HARNESS_EQ(bx_tape_create(NULL, &a_tape), 0);
    HARNESS_EQ(bx_grads_create(NULL, &a_grads), 0);
    HARNESS_EQ(bx_context_create(a_dist, &a_context), 0);
    if (bx_net_create(NULL, &a_net) == 0)
        bx_net_input(a_net, 1, 1, 2, 2);
}

static void release_all(void)
{
    bx_net_destroy(a_net);
    bx_context_end(a_context);
    bx_grads_destroy(a_grads);
    bx_tape_destroy(a_tape);
    bx_var_release(a_var);
    bx_tensor_release(a_tensor);
    bx_rref_release(a_rref);
    bx_future_release(a_future);
    bx_msg_destroy(a_msg);
}

HARNESS_TEST(null, is_refused_by_every_public_function, 60, .size = 2, .setup = setup)
{
    make_all(job);
#include "null_cases.inc"
    try_formats();
    try_other_results();
    try_members();
    try_passes();
    release_all();
}

Test(null, format_of_a_sentence_gives_the_text_of_the_code, .timeout = 20)
{
    /* bx_fail(code, NULL); written as it stands gets a warning. */
    int (*volatile fail)(int, const char *, ...) = bx_fail;

    cr_expect_eq(fail(BX_E_TIMEOUT, NULL), BX_E_TIMEOUT);
    cr_expect_str_eq(bx_error_text(), bx_strerror(BX_E_TIMEOUT));
}
