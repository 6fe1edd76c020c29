/* SPDX-License-Identifier: MIT */
/*
 * A child that is forked after bx_job_create, before or after the start: every function that takes a job, or that uses
 * a pending future, fails with BX_E_FORKED and a sentence, NULL or false. cases.awk makes a call of each function that
 * takes a job.
 */
#include "tests/harness/held.h"

static void is_refused(const char *call, int rc)
{
    if (rc != BX_E_FORKED || strstr(bx_error_text(), "forked after worker") == NULL)
        harness_failed(__FILE__, __LINE__, "%s is %s", call, bx_error_name(rc));
}

#define REFUSED(call) (bx_fail(-EIO, "an older sentence"), is_refused(#call, call))
#define IS_NULL(call) REFUSED((call) == NULL ? BX_E_FORKED : 0)
#define IS_ZERO(call) REFUSED((call) == 0 ? BX_E_FORKED : 0)

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

static const struct bx_type type = { .name = "type" }, *const a_type = &type;

static void try_jobs(struct bx_job *a_job)
{
    static _Alignas(64) unsigned char page[4096];
    static const unsigned char zeroes[sizeof page];
    const int end[] = { BX_VALUE_END };
    struct bx_future *future = NULL;
    OWN(msg) *a_msg = bx_msg_create(0);
    OWN(future) *a_future = bx_future_create(NULL);
    OWN(tensor) *a_tensor = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_F32, 1, (const int64_t[]){ 2 }, &a_tensor), 0);    /* without a job */
#include "forked_cases.inc"
    HARNESS_CHECK(memcmp(page, zeroes, sizeof page) == 0);      /* where the results were to be */
    REFUSED(bx_call(a_job, "worker1", "answer", ""));
    REFUSED(bx_call_with(a_job, bx_rank(1), "answer", NULL, ""));
    REFUSED(bx_call_async(a_job, "worker1", "answer", NULL, &future, ""));
    REFUSED(bx_call_typed(a_job, "worker1", "answer", NULL, end, ""));
    REFUSED(bx_call_async_typed(a_job, "worker1", "answer", NULL, &future, end, ""));
    HARNESS_CHECK(future == NULL);
}

/* Made by the parent. */
static void try_rref(struct bx_rref *rref)
{
    struct bx_rref *made = NULL;
    struct bx_future *future = NULL;
    struct bx_msg *value = NULL;
    void *object = NULL;

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

/* pending[]: futures of bx_future_create, bx_future_then, bx_future_any, and of a call if the job has started. */
static void try_futures(struct bx_future **pending, int count)
{
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
        try_jobs(job);
        if (rref != NULL)
            try_rref(rref);
        try_futures(pending, count);
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

    return rc < 0 ? rc : bx_register_batch(job, "worker1", harness_no_rows, NULL, NULL);
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
