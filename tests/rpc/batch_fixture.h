/* SPDX-License-Identifier: MIT */
/*
 * What test_batch.c and test_batch_rows.c share. Worker 0 owns a batch "sum", the other workers call it. The body adds
 * up the values of its rows and answers each row with the sum. Each run stores a record in the shared memory: the
 * digits of its callers' ranks, in the order of its rows. Tests know from the owner's counter of batched requests, not
 * from time, that a call has arrived.
 */
#ifndef TESTS_BATCH_FIXTURE_H
#define TESTS_BATCH_FIXTURE_H

#include "tests/harness/harness.h"

#include "rpc/rpc.h"

enum { READY, ARRIVED, BODY_ENTERED, BODY_GO, TOUCHED, DONE };      /* gates */
enum { RUNS, FAIL_CODE, BODY_WAITS, RECORD = 16 };                  /* values */

/* The body of "sum". Each run notes its callers and answers each row with the sum of all. */
static inline int add_up(struct bx_batch *batch, void *context)
{
    uint64_t callers = 0;
    int64_t sum = 0;

    (void)context;
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        callers = callers * 10 + (uint64_t)bx_batch_caller(batch, row);
        sum += bx_read_i64(&args);
    }
    harness_store(RECORD + (int)harness_load(RUNS), callers);
    harness_add(RUNS, 1);
    if (harness_load(BODY_WAITS) != 0) {
        harness_post(BODY_ENTERED);
        harness_await(BODY_GO, harness_gate(BODY_ENTERED));
    }
    if (harness_load(FAIL_CODE) != 0)
        return bx_fail(-(int)harness_load(FAIL_CODE), "the tank is empty");
    for (size_t row = 0; row < bx_batch_rows(batch); row++)
        if (bx_batch_reply_i64(batch, row, sum) < 0)
            return -1;
    return 0;
}

/* Answers how many batched requests the owner has counted. */
static inline int arrived(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)context;
    return bx_msg_put_i64(reply, (int64_t)harness_counter(bx_request_job(request), "requests_batched"));
}

/* Waits until the owner has counted that many batched requests. */
static inline void await_arrived(struct bx_job *job, int64_t rows)
{
    HARNESS_WAIT_WHILE(harness_call_i64(job, "worker0", "arrived", 0) < rows);
}

/* In the owner: the batch, with the ranks from 1 to `members` as members. */
static inline int setup_with(struct bx_job *job, const struct bx_batch_options *options, int members)
{
    if (bx_job_rank(job) != 0)
        return 0;
    HARNESS_EQ(bx_register(job, "arrived", BX_INLINE, arrived, NULL), 0);
    HARNESS_EQ(bx_register_batch(job, "sum", add_up, NULL, options), 0);
    for (int rank = 1; rank <= members; rank++)
        HARNESS_EQ(bx_batch_add_member(job, "sum", rank), 0);
    return 0;
}

/* Calls "sum". timeout_ns: 0 for the job's. */
static inline struct bx_future *begin(struct bx_job *job, int64_t value, uint64_t timeout_ns)
{
    return harness_start(job, "worker0", "sum", harness_msg_i64(value), timeout_ns);
}

#endif
