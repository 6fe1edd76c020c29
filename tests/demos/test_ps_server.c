/* SPDX-License-Identifier: MIT */
/*
 * demos/param_server/server.c: rows that our trainers would not send. Rank 0 is the server; ranks 1 and 2 are trainers
 * that send what the test wants; rank 3 is a worker that is no trainer, and has the reference to the server from rank
 * 1. The gradients are the tensors of the first model, so a step with one row alone changes each parameter p to p - lr
 * p.
 */
#include "demos/common/clock.h"
#include "demos/common/flags.h"
#include "demos/common/program.h"
#include "demos/param_server/ps.h"
#include "tests/harness/harness.h"

#include <math.h>

#define LR 0.5
#define TENSORS 62              /* of a resnet18 */

enum gate { SECOND = 0 };
enum value { SENT_NS = 0 };     /* when trainer 2 sent its second row */

#define EARLIER_NS UINT64_C(5000000000)

static const struct ps_flags FLAGS = {
    .trainers = 2, .batch_update_size = 3, .num_batches = 2, .batch_size = 3, .image = 32, .num_classes = 4,
    .model = RESNET_18, .lr = LR, .momentum = 0.9, .seed = 7, .threads = 1, .device = DEVICE_CPU,
    .patience_ms = 600000,
};

static struct bx_rref *server;          /* while a trainer trains, and while rank 3's row waits */
static struct bx_msg *first_model;      /* this worker's copy, after fetch_first_model */
static struct bx_future *stray;         /* rank 3's row */
static uint64_t batch = PS_BATCHES_MAX; /* of the next rows: later than all that were used */

/* ---- Rows -------------------------------------------------------------------------------------------- */

static void fetch_first_model(struct bx_reader *args)
{
    server = bx_rref_acquire(bx_read_rref(args));
    HARNESS_EQ(bx_rref_sync(server, "get_model", NULL, NULL, &first_model), 0);
}

static void drop_first_model(void)
{
    bx_msg_destroy(first_model);
    bx_rref_release(server);
}

static struct bx_msg *make_row(uint64_t version, double loss, uint64_t sent_ns)
{
    struct bx_reader model = bx_msg_reader(first_model);
    struct ps_report report = { .pid = getpid(), .batch = batch };
    struct bx_msg *row = bx_msg_create(0);

    HARNESS_EQ(bx_read_u64(&model), 0);
    bx_msg_put_u64(row, version);
    bx_msg_put_u64(row, sent_ns);
    bx_msg_put_f64(row, loss);
    HARNESS_EQ(ps_put_report(row, &report), 0);
    for (int i = 0; i < TENSORS; i++)
        HARNESS_EQ(bx_msg_put_tensor(row, bx_read_tensor(&model)), 0);
    return row;
}

/* Sends a row and expects `code`; the sentence of a failure must contain `part`. */
static struct bx_msg *send_row_of(struct bx_msg *row, int code, const char *part)
{
    struct bx_msg *reply = NULL;

    HARNESS_EQ(bx_rref_sync(server, "update_and_fetch_model", row, NULL, &reply), code);
    if (code < 0)
        HARNESS_HAS(bx_error_text(), part);
    bx_msg_destroy(row);
    return reply;
}

static struct bx_msg *send_row(uint64_t version, double loss, int code, const char *part)
{
    return send_row_of(make_row(version, loss, clock_now_ns()), code, part);
}

/* Expects a reply with that version and that wait for the others. */
static void expect_waited(struct bx_msg *reply, uint64_t version, uint64_t waited_ns)
{
    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_EQ(bx_read_u64(&reader), version);
    HARNESS_EQ(bx_read_u64(&reader), waited_ns);
    bx_msg_destroy(reply);
}

static void expect_version(struct bx_msg *reply, uint64_t version)
{
    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_EQ(bx_read_u64(&reader), version);
    bx_msg_destroy(reply);
}

/* Expects the model after one step with the first model as the only gradient. */
static void expect_one_step(const struct bx_msg *reply)
{
    struct bx_reader now = bx_msg_reader(reply), then = bx_msg_reader(first_model);

    bx_read_u64(&now);
    bx_read_u64(&now);      /* the time that it waited */
    bx_read_u64(&then);
    for (int i = 0; i < TENSORS; i++) {
        struct bx_tensor *is = bx_read_tensor(&now), *was = bx_read_tensor(&then);
        const float *p = bx_tensor_data(is), *q = bx_tensor_data(was);

        for (int64_t e = 0; e < bx_tensor_elements(was); e++)
            HARNESS_CHECK(fabsf(p[e] - (1 - (float)LR) * q[e]) <= 1e-6f * fabsf(q[e]));
    }
}

/* ---- The workers --------------------------------------------------------------------------------------- */

/* Run by rank 3. get_model is sent behind the row in one ring: when it returns, the row is in the batch. */
HARNESS_HANDLER(sends_a_stray_row)
{
    OWN(msg) *row = NULL;

    fetch_first_model(args);
    row = make_row(0, 1000, clock_now_ns());
    HARNESS_EQ(bx_rref_async(server, "update_and_fetch_model", row, NULL, &stray), 0);
    return bx_rref_sync(server, "get_model", NULL, NULL, NULL);
}

HARNESS_HANDLER(is_refused)
{
    HARNESS_EQ(bx_future_wait(stray, BX_FOREVER), -EINVAL);
    HARNESS_HAS(bx_error_text(), "only trainers have gradients");
    bx_future_release(stray);
    drop_first_model();
    return 0;
}

static void first_trainer(struct bx_job *job)
{
    struct bx_msg *reply, *args = bx_msg_create(0);
    uint64_t sent_ns;

    HARNESS_EQ(bx_msg_put_rref(args, server), 0);
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, 3), "send_stray", args, NULL, NULL), 0);
    bx_msg_destroy(args);
    /* The stray row and trainer 2's, which names a version that does not exist, are refused: only this row counts. */
    reply = send_row(0, 6, 0, NULL);
    expect_one_step(reply);
    expect_version(reply, 1);
    HARNESS_EQ(bx_rpc_sync(job, bx_worker_name(job, 3), "is_refused", NULL, NULL, NULL), 0);
    /* This row claims to have been sent long before the other. */
    sent_ns = clock_now_ns() - EARLIER_NS;
    harness_post(SECOND);
    reply = send_row_of(make_row(1, 1, sent_ns), 0, NULL);
    HARNESS_CHECK(harness_load(SENT_NS) >= sent_ns + EARLIER_NS);
    expect_waited(reply, 2, harness_load(SENT_NS) - sent_ns);
    batch = 1;                          /* as a process that was started again, and sends what its predecessor sent */
    send_row(2, 1000, -EALREADY, "the gradient of batch 1 has been used");
    batch = 2;
    expect_version(send_row(3, 1, 0, NULL), 4);
    batch = 3;
    send_row(4, 1, -EINVAL, "4 updates");
}

static void second_trainer(void)
{
    send_row(1, 1000, -EINVAL, "there is no version 1 yet");
    harness_await(SECOND, 1);
    harness_store(SENT_NS, clock_now_ns());
    expect_waited(send_row_of(make_row(0, 2, harness_load(SENT_NS)), 0, NULL), 2, 0);
    expect_version(send_row(2, 3, 0, NULL), 3);
    expect_version(send_row(3, 1, 0, NULL), 4);
    send_row(4, 1, -EINVAL, "4 updates");
}

HARNESS_HANDLER(train)
{
    struct bx_job *job = bx_request_job(request);
    struct ps_report report = { .pid = getpid() };

    fetch_first_model(args);
    if (bx_job_rank(job) == 1)
        first_trainer(job);
    else
        second_trainer();
    drop_first_model();
    return ps_put_report(reply, &report);
}

static int live(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (options->rank == 0) {
        dup2(null, STDOUT_FILENO);      /* the server's lines are not the test's output */
        return ps_server(options, context);
    }
    HARNESS_EQ(bx_job_create(options, &job), 0);
    HARNESS_REGISTER(job, HARNESS_BLOCKING("train", train), HARNESS_BLOCKING("send_stray", sends_a_stray_row),
                     HARNESS_BLOCKING("is_refused", is_refused));
    HARNESS_EQ(bx_job_start(job), 0);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
    close(null);
    return 0;
}

Test(ps_server, takes_rows_of_trainers_and_of_existing_versions_only, .timeout = 60)
{
    struct ps_run run = { .flags = &FLAGS, .result = program_share("test", ps_result_bytes(&FLAGS)) };
    const struct ps_result *result = run.result;

    cr_assert_not_null(result);
    harness_reset();
    cr_assert_eq(bx_spawn(&(struct bx_spawn_options){ .world_size = 4 }, live, &run, NULL), 0, "%s", bx_error_text());
    cr_assert(result->ended);
    cr_assert_eq(result->updates, 4);
    /* The mean is over the valid rows, not over all that arrived or could have. */
    cr_expect_eq(result->update[0].rows, 1);
    cr_expect_eq(result->update[0].loss, 6.0);
    cr_expect_eq(result->update[0].late, 0);
    cr_expect_eq(result->update[1].rows, 2);
    cr_expect_eq(result->update[1].loss, 1.5);
    cr_expect_eq(result->update[1].late, 1);
    cr_expect_eq(result->update[2].rows, 1);    /* what is sent again does not count */
    cr_expect_eq(result->update[2].loss, 3.0);
    cr_expect_eq(result->late_gradients, 1);
    cr_expect_eq(result->late_versions_max, 1);
    cr_expect_eq(result->trainers[0].batches, 3);
    cr_expect_eq(result->trainers[0].late, 0);
    cr_expect_eq(result->trainers[1].batches, 3);
    cr_expect_eq(result->trainers[1].late, 1);
    cr_expect_eq(result->repeats, 1);
    cr_expect_eq(result->leases_at_end, 0);
    munmap(run.result, ps_result_bytes(&FLAGS));
}
