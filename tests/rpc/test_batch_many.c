/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/batch.c: members and rows of ranks beyond 63, whose bits are in a second word. Worker 0 owns the batches and
 * makes the other workers call them, by "send".
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#define WORLD 66

enum function { ALL, MOST, FAR, FUNCTIONS };
enum { RUNS = 0, ROWS = 8 };            /* values, by function */

static const char *const names[FUNCTIONS] = { "all", "most", "far" };
static int functions[FUNCTIONS] = { ALL, MOST, FAR };

static int note(struct bx_batch *batch, void *context)
{
    int function = *(const int *)context;

    harness_add(RUNS + function, 1);
    harness_add(ROWS + function, bx_batch_rows(batch));
    return 0;
}

HARNESS_HANDLER(send)
{
    int64_t function = bx_read_i64(args);

    return bx_rpc_sync(bx_request_job(request), "worker0", names[function], NULL, NULL, NULL);
}

static int setup(struct bx_job *job)
{
    const struct bx_batch_options two_rows = { .max_rows = 2 };

    HARNESS_EQ(bx_register(job, "send", BX_BLOCKING, send, NULL), 0);
    if (bx_job_rank(job) != 0)
        return 0;
    for (int i = 0; i < FUNCTIONS; i++)
        HARNESS_EQ(bx_register_batch(job, names[i], note, &functions[i], i == MOST ? &two_rows : NULL), 0);
    HARNESS_EQ(bx_batch_add_member(job, "all", 1), 0);
    for (int rank = 64; rank < WORLD; rank++) {
        HARNESS_EQ(bx_batch_add_member(job, "all", rank), 0);
        HARNESS_EQ(bx_batch_add_member(job, "far", rank), 0);
    }
    return 0;
}

/* Makes each rank send a row, after the previous rank's row has arrived. */
static void send_from(struct bx_job *job, enum function function, const int *ranks, int count)
{
    uint64_t before = harness_counter(job, "requests_batched");
    OWN(msg) *args = harness_msg_i64(function);
    struct bx_future *futures[3];

    for (int i = 0; i < count; i++) {
        HARNESS_EQ(bx_rpc_async(job, bx_worker_name(job, ranks[i]), "send", args, NULL, &futures[i]), 0);
        HARNESS_WAIT_WHILE(harness_counter(job, "requests_batched") < before + (uint64_t)i + 1);
    }
    harness_end_all(futures, count, 0);
}

static void expect(enum function function, uint64_t runs, uint64_t rows)
{
    HARNESS_EQ(harness_load(RUNS + (int)function), runs);
    HARNESS_EQ(harness_load(ROWS + (int)function), rows);
}

HARNESS_TEST(batch_many, ranks_beyond_63_are_members_with_rows_of_their_own, 120, .size = WORLD, .setup = setup)
{
    /* Rank 65 must not be mistaken for rank 1: neither completes the batch for the other. */
    send_from(job, ALL, (const int[]){ 65, 64, 1 }, 3);
    expect(ALL, 1, 3);
    send_from(job, ALL, (const int[]){ 1, 64, 65 }, 3);
    expect(ALL, 2, 6);
    send_from(job, MOST, (const int[]){ 64, 65 }, 2);
    expect(MOST, 1, 2);
    send_from(job, FAR, (const int[]){ 65, 64 }, 2);
    expect(FAR, 1, 2);
}
