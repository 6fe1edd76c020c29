/* SPDX-License-Identifier: MIT */
/*
 * A child that is forked after bx_job_create, before or after the start: every function that takes a job, or that uses
 * a pending future, fails with BX_E_FORKED and a sentence, NULL or false. The last test reads the header and reports
 * functions without a case here.
 */
#include "functions.h"

#include "tests/harness/held.h"

static void is_refused(const char *call, int rc)
{
    if (rc != BX_E_FORKED || strstr(bx_error_text(), "forked after worker") == NULL)
        harness_failed(__FILE__, __LINE__, "%s is %s", call, bx_error_name(rc));
}

#define REFUSED(call) (bx_fail(-EIO, "an older sentence"), is_refused(#call, call))
#define IS_NULL(call) REFUSED((call) == NULL ? BX_E_FORKED : 0)

HARNESS_THEN(then)
{
    harness_failed(__FILE__, __LINE__, "a callback of the parent's runs in the child");
}

static int chain(struct bx_future *in, struct bx_future **next, void *context)
{
    (void)in, (void)next, (void)context;
    harness_failed(__FILE__, __LINE__, "a callback of the parent's runs in the child");
}

HARNESS_CALLBACK(call_back)
{
    harness_failed(__FILE__, __LINE__, "a callback of the parent's runs in the child");
}

static void try_job(struct bx_job *job)
{
    struct bx_arena_info info = { 0 };
    struct bx_loans loans = { 0 };
    uint64_t value = 0;

    REFUSED(bx_job_start(job));
    REFUSED(bx_job_serve(job));
    REFUSED(bx_job_shutdown(job, 0));
    REFUSED(bx_job_rank(job));
    REFUSED(bx_job_world_size(job));
    IS_NULL(bx_job_name(job));
    IS_NULL(bx_worker_name(job, 0));
    REFUSED(bx_worker_rank(job, "worker0"));
    REFUSED(bx_worker_is_alive(job, 0) ? 0 : BX_E_FORKED);
    REFUSED(bx_worker_generation(job, 0));
    IS_NULL(bx_worker_host(job, 0));
    REFUSED(bx_on_death(job, NULL, NULL));
    REFUSED(bx_on_join(job, NULL, NULL));
    REFUSED(bx_job_fd(job));
    REFUSED(bx_progress(job));
    REFUSED(bx_counter(job, "calls_sent", &value));
    REFUSED(bx_job_arena(job, &info));
    REFUSED(bx_arena_trim(job));
    REFUSED(bx_job_loans(job, -1, &loans));
    REFUSED(bx_loans_wait(job, -1, 0, 0));
}

static void try_functions(struct bx_job *job)
{
    const int end[] = { BX_VALUE_END };
    struct bx_future *future = NULL;

    REFUSED(bx_register(job, "f", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_async(job, "f", BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_batch(job, "f", harness_no_rows, NULL, NULL));
    REFUSED(bx_batch_add_member(job, "batch", 0));
    REFUSED(bx_batch_remove_member(job, "batch", 0));
    REFUSED(bx_batch_join(job, "worker1", "batch"));
    REFUSED(bx_batch_leave(job, "worker1", "batch"));
    REFUSED(bx_rpc_sync(job, "worker1", "answer", NULL, NULL, NULL));
    REFUSED(bx_rpc_async(job, "worker1", "answer", NULL, NULL, &future));
    REFUSED(bx_rpc_many(job, "worker1", "answer", 1, NULL, NULL, &future));
    REFUSED(bx_rpc_oneway(job, "worker1", "answer", NULL, NULL));
    REFUSED(bx_call(job, "worker1", "answer", ""));
    REFUSED(bx_call_with(job, bx_rank(1), "answer", NULL, ""));
    REFUSED(bx_call_async(job, "worker1", "answer", NULL, &future, ""));
    REFUSED(bx_call_typed(job, "worker1", "answer", NULL, end, ""));
    REFUSED(bx_call_async_typed(job, "worker1", "answer", NULL, &future, end, ""));
    HARNESS_CHECK(future == NULL);
}

static const struct bx_type type = { .name = "type" };

/* rref: made by the parent; NULL before the start. */
static void try_rrefs(struct bx_job *job, struct bx_rref *rref)
{
    struct bx_rref *made = NULL;
    struct bx_future *future = NULL;
    struct bx_msg *msg = bx_msg_create(0), *value = NULL;
    void *object = NULL;

    REFUSED(bx_register_method(job, &type, "m", BX_INLINE, harness_nothing, NULL));
    REFUSED(bx_register_method_async(job, &type, "m", BX_INLINE, answer_later, NULL));
    REFUSED(bx_register_method_batch(job, &type, "m", harness_no_rows, NULL, NULL));
    REFUSED(bx_rref_create(job, &type, NULL, &made));
    REFUSED(bx_msg_put_object(job, msg, &type, NULL));
    REFUSED(bx_remote(job, "worker1", "answer", NULL, NULL, &made));
    HARNESS_CHECK(made == NULL);
    bx_msg_destroy(msg);
    if (rref == NULL)
        return;
    REFUSED(bx_rref_wait(rref, BX_FOREVER));
    REFUSED(bx_rref_local(rref, &type, &object));
    REFUSED(bx_rref_to_here(rref, NULL, &value));
    REFUSED(bx_rref_to_here_async(rref, NULL, &future));
    REFUSED(bx_rref_sync(rref, "m", NULL, NULL, NULL));
    REFUSED(bx_rref_call(rref, "m", ""));
    REFUSED(bx_rref_call_async(rref, "m", NULL, &future, ""));
    REFUSED(bx_rref_async(rref, "m", NULL, NULL, &future));
    REFUSED(bx_rref_oneway(rref, "m", NULL, NULL));
    REFUSED(bx_rref_remote(rref, "m", NULL, NULL, &made));
    HARNESS_CHECK(made == NULL && future == NULL && value == NULL && object == NULL);
    bx_rref_release(rref);              /* drops nothing: the object is the parent's */
}

static void try_tensors(struct bx_job *job)
{
    int64_t shape = 2;
    struct bx_tensor *tensor = NULL, *made = NULL;
    struct bx_device device = { BX_CUDA, 0 };

    HARNESS_EQ(bx_tensor_create(NULL, BX_F32, 1, &shape, &tensor), 0);      /* on the heap, without a job */
    REFUSED(bx_tensor_create(job, BX_F32, 1, &shape, &made));
    REFUSED(bx_tensor_create_on(job, device, BX_F32, 1, &shape, &made));
    REFUSED(bx_tensor_copy(job, tensor, &made));
    REFUSED(bx_gpu_open(job, 0, &device));
    REFUSED(bx_gpu_count(job));
    REFUSED(bx_gpu_is_fake(job) ? 0 : BX_E_FORKED);
    IS_NULL(bx_gpu_stream(job, device));
    HARNESS_CHECK(made == NULL);
    bx_tensor_release(tensor);
}

/* pending[]: futures of bx_future_create, bx_future_then, bx_future_any, and of a call if the job has started. */
static void try_futures(struct bx_job *job, struct bx_future **pending, int count)
{
    OWN(future) *of_none = bx_future_create(NULL);

    IS_NULL(bx_future_create(job));
    IS_NULL(bx_future_all(job, &of_none, 1));
    IS_NULL(bx_future_any(job, &of_none, 1));
    for (int i = 0; i < count; i++) {
        REFUSED(bx_future_set(pending[i], harness_msg_i64(1)));
        REFUSED(bx_future_fail(pending[i], -EIO, NULL));
        REFUSED(bx_future_cancel(pending[i]));
        REFUSED(bx_future_wait(pending[i], BX_FOREVER));
        REFUSED(bx_future_on_done(pending[i], call_back, NULL));
        IS_NULL(bx_future_then(pending[i], then, NULL, NULL));
        IS_NULL(bx_future_then_any(pending[i], then, NULL, NULL));
        IS_NULL(bx_future_then(pending[i], then, NULL, (bx_free_fn)abort));
        IS_NULL(bx_future_chain(pending[i], chain, NULL, (bx_free_fn)abort));
        HARNESS_CHECK(!bx_future_is_done(pending[i]));
    }
    for (int i = 0; i < count; i++)
        bx_future_release(pending[i]);
}

/* Tries all functions in a child and checks that all were refused. */
static void try_in_child(struct bx_job *job, struct bx_rref *rref, struct bx_future **pending, int count)
{
    pid_t child = fork();
    int status = -1;

    if (child == 0) {
        try_job(job);
        try_functions(job);
        try_rrefs(job, rref);
        try_tensors(job);
        try_futures(job, pending, count);
        bx_job_interrupt(job, true);
        bx_job_destroy(job);
        _exit(0);
    }
    HARNESS_CHECK(child > 0);
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
}

static int setup(struct bx_job *job)
{
    int rc = bx_register_async(job, "hold", BX_INLINE, hold, NULL);

    return rc < 0 ? rc : bx_register_batch(job, "batch", harness_no_rows, NULL, NULL);
}

HARNESS_TEST(forked, child_after_the_start_is_refused_by_every_function_that_takes_a_job, 60, .size = 2, .setup = setup,
             .body = { NULL, answer_when_told })
{
    struct bx_future *pending[4] = { bx_future_create(job) };
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_rref_create(job, &type, NULL, &rref), 0);
    pending[1] = harness_async(job, "worker1", "hold");
    pending[2] = bx_future_then(pending[0], then, NULL, NULL);
    pending[3] = bx_future_any(job, pending, 2);
    HARNESS_CHECK(pending[0] != NULL && pending[2] != NULL && pending[3] != NULL);
    try_in_child(job, rref, pending, 4);
    bx_rref_release(rref);

    /* The parent's job still works. */
    harness_post(1);
    HARNESS_EQ(bx_future_wait(pending[1], BX_FOREVER), 0);
    HARNESS_EQ(bx_future_wait(pending[3], BX_FOREVER), 0);
    HARNESS_EQ(bx_future_fail(pending[0], -EIO, NULL), 0);
    HARNESS_EQ(bx_future_wait(pending[2], BX_FOREVER), -EIO);
    for (int i = 0; i < 4; i++)
        bx_future_release(pending[i]);
}

static int fork_before_start(struct bx_job *job)
{
    OWN(future) *pending = bx_future_create(job);

    setup(job);
    try_in_child(job, NULL, &pending, 1);
    return 0;
}

HARNESS_TEST(forked, child_before_the_start_is_refused_too, 60, .size = 2, .setup = fork_before_start)
{
    HARNESS_EQ(bx_job_world_size(job), 2);
}

/* ---- Functions without a case ---------------------------------------------------------------- */

Test(forked, has_a_case_for_every_function_that_takes_a_job, .timeout = 60)
{
    static const char *const headers[] = { "lib/boxcar.h", "lib/boxcar_tensor.h", "lib/boxcar_rref.h",
                                          "lib/boxcar_call.h" };
    char *cases = text_of("tests/base/test_forked.c");
    struct function function;
    int functions = 0;

    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        char *header = text_of(headers[i]);

        for (const char *at = header; (at = next_function(at, &function)) != NULL;) {
            char call[80];

            if (strstr(function.parameters, "struct bx_job *job") == NULL)
                continue;
            functions++;
            snprintf(call, sizeof call, "%s(job", function.name);
            cr_expect(strstr(cases, call) != NULL, "%s...) has no case here", call);
        }
        free(header);
    }
    free(cases);
    cr_expect_gt(functions, 35, "%d functions were found in the header", functions);
}
