/* SPDX-License-Identifier: MIT */
/*
 * Memory that is out: each allocation of an operation fails once, at its caller and then at its callee, which may be
 * the same worker. The operation ends with an error, it succeeds when none fails, and no object is left. The simulator
 * does it with whole jobs (`--fail all`), and is slower.
 */
#include "tests/harness/harness.h"
#include "tests/harness/memory.h"

TestSuite(memory, .timeout = 120);

enum { MADE, DESTROYED, FAILS_IN };         /* values; + rank */

static void destroy_cell(void *object)
{
    (void)object;
    harness_add(DESTROYED, 1);
}

static int cell_value(void *object, struct bx_msg *value)
{
    return bx_msg_put_i64(value, *(const int64_t *)object);
}

static const struct bx_type cell_type = { .name = "cell", .destroy = destroy_cell, .value = cell_value };

static int put_cell(struct bx_job *job, struct bx_msg *msg)
{
    static int64_t cell;
    int rc = bx_msg_put_object(job, msg, &cell_type, &cell);

    harness_add(MADE, rc == 0);
    return rc;
}

/* ---- Handlers --------------------------------------------------------------------------------------------- */

HARNESS_HANDLER(new_cell)
{
    return put_cell(bx_request_job(request), reply);
}

HARNESS_HANDLER(get)
{
    return cell_value(bx_request_object(request), reply);
}

static int get_batch(struct bx_batch *batch, void *context)
{
    (void)context;
    HARNESS_CHECK(bx_batch_object(batch, bx_batch_rows(batch)) == NULL);
    for (size_t row = 0; row < bx_batch_rows(batch); row++)
        bx_batch_reply_i64(batch, row, *(const int64_t *)bx_batch_object(batch, row));
    return 0;
}

static int copy(struct bx_future *in, struct bx_msg *out, void *context)
{
    (void)context;
    return bx_future_error(in) < 0 ? bx_future_error(in) : bx_msg_put_i64(out, 1);
}

/* Calls a method of what it got, and answers with that. */
HARNESS_ASYNC_HANDLER(ask)
{
    OWN(future) *future = NULL;
    struct bx_rref *rref = bx_read_rref(args);
    int rc = rref == NULL ? args->error : bx_rref_async(rref, "get", NULL, NULL, &future);

    (void)request;
    if (rc < 0)
        return rc;
    *reply = bx_future_then(future, copy, NULL, NULL);
    return *reply == NULL ? -ENOMEM : 0;
}

/* Sends back what it got. */
HARNESS_HANDLER(return_tensor)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    return tensor == NULL ? args->error : bx_msg_put_tensor(reply, tensor);
}

static int setup_memory(struct bx_job *job)
{
    const struct bx_batch_options at_once = { .max_rows = 1 };

    memory_fails_value = FAILS_IN + bx_job_rank(job);
    HARNESS_EQ(bx_register_method(job, &cell_type, "get", BX_INLINE, get, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &cell_type, "get_blocking", BX_BLOCKING, get, NULL), 0);
    HARNESS_EQ(bx_register_method_batch(job, &cell_type, "get_batch", get_batch, NULL, &at_once), 0);
    return HARNESS_REGISTER(job, HARNESS_INLINE("new", new_cell), HARNESS_BLOCKING("new_blocking", new_cell),
                            HARNESS_ASYNC("ask", ask), HARNESS_INLINE("return", return_tensor));
}

/* ---- Operations ------------------------------------------------------------------------------------------- */

static int make(struct bx_job *job, const char *to, const char *how, struct bx_rref **rref)
{
    return bx_remote(job, to, how, NULL, NULL, rref);
}

static int method_of(struct bx_job *job, const char *to, const char *how, const char *method)
{
    OWN(rref) *rref = NULL;
    OWN(msg) *value = NULL;
    int rc = make(job, to, how, &rref);

    return rc < 0 ? rc : bx_rref_sync(rref, method, NULL, NULL, &value);
}

static int calls_what_is_there(struct bx_job *job, const char *to)
{
    return method_of(job, to, "new", "get");
}

static int calls_what_is_to_come(struct bx_job *job, const char *to)
{
    return method_of(job, to, "new_blocking", "get_blocking");
}

static int calls_a_batch(struct bx_job *job, const char *to)
{
    return method_of(job, to, "new", "get_batch");
}

static int gets_a_value(struct bx_job *job, const char *to)
{
    OWN(rref) *rref = NULL;
    OWN(msg) *value = NULL;
    int rc = make(job, to, "new", &rref);

    return rc < 0 ? rc : bx_rref_to_here(rref, NULL, &value);
}

static int sends_an_object(struct bx_job *job, const char *to)
{
    OWN(msg) *args = bx_msg_create(0), *reply = NULL;
    int rc = args == NULL ? -ENOMEM : put_cell(job, args);

    return rc < 0 ? rc : bx_rpc_sync(job, to, "ask", args, NULL, &reply);
}

static int lends(struct bx_job *job, const char *to)
{
    OWN(tensor) *tensor = NULL;
    OWN(msg) *args = bx_msg_create(0), *reply = NULL;
    int rc = args == NULL ? -ENOMEM : bx_tensor_create(job, BX_F32, 1, (int64_t[]){ 5000 }, &tensor);

    if (rc < 0 || (rc = bx_msg_put_tensor(args, tensor)) < 0)
        return rc;
    rc = bx_rpc_sync(job, to, "return", args, NULL, &reply);
    if (rc < 0)
        return rc;
    bx_msg_clear(reply);
    return bx_msg_put_i64(reply, 1);
}

HARNESS_TEST(memory, of_each_operation_may_be_out, 120, .size = 2, .setup = setup_memory)
{
    static int (*const operations[])(struct bx_job *job, const char *to) = {
        calls_what_is_there, calls_what_is_to_come, calls_a_batch, gets_a_value, sends_an_object, lends,
    };

    for (size_t i = 0; i < 4 * sizeof operations / sizeof *operations; i++) {
        int to = (int)i / 2 % 2, n = 0, left = 0;
        bool is_callee = i % 2 == 1;

        while (left <= 0) {
            int rc;

            n++;
            if (is_callee)
                harness_store(FAILS_IN + to, (uint64_t)n);
            else
                memory_fails_in = n;
            rc = operations[i / 4](job, bx_worker_name(job, to));
            left = is_callee ? (int)harness_load(FAILS_IN + to) : memory_fails_in;
            harness_store(FAILS_IN + to, 0);
            memory_fails_in = 0;
            HARNESS_CHECK(rc == 0 || left <= 0);
        }
        HARNESS_EQ(operations[i / 4](job, bx_worker_name(job, to)), 0);
    }
    HARNESS_WAIT_WHILE(harness_load(MADE) != harness_load(DESTROYED));
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}
