/* SPDX-License-Identifier: MIT */
/*
 * What inspectors see of references: rows of objects in their owner's segment (lib/rref/show.c), and calls that are for
 * an object's value and so for no function. Worker 0 reads the rows of all through its own mappings.
 */
#include "rref_fixture.h"

#include "rpc/rpc.h"

#define LONG_NAME "a type whose name is longer than its room"

TestSuite(rref_show, .timeout = 60);

static const struct bx_type long_type = { .name = LONG_NAME, .destroy = destroy_counter };

static struct bxi_tables *tables_of(struct bx_job *job, int rank)
{
    return bxi_tables(rank == job->rank ? job->control
                                        : (struct bxi_control *)(uintptr_t)job->rpc->peers[rank]->view.control);
}

/* Row i; that many were taken. */
static struct bxi_object_row *row_of(struct bx_job *job, int rank, uint64_t i)
{
    unsigned char *base = (unsigned char *)tables_of(job, rank);

    HARNESS_CHECK(i < bxi_load_acquire(&tables_of(job, rank)->object_rows));
    return (struct bxi_object_row *)(void *)(base + BXI_OBJECTS_OFFSET) + i;
}

static struct bxi_object_row *find(struct bx_job *job, const struct bx_rref *rref)
{
    int owner = bx_rref_owner(rref);
    uint64_t rows = bxi_load_acquire(&tables_of(job, owner)->object_rows);

    for (uint64_t i = 0; i < rows; i++)
        if (bxi_load_acquire(&row_of(job, owner, i)->id) == rref->id)
            return row_of(job, owner, i);
    return NULL;
}

static uint64_t shown(struct bx_job *job, int rank)
{
    uint64_t rows = bxi_load_acquire(&tables_of(job, rank)->object_rows), count = 0;

    for (uint64_t i = 0; i < rows; i++)
        count += bxi_load_acquire(&row_of(job, rank, i)->id) != 0;
    return count;
}

static void expect_type(const struct bxi_object_row *row, const char *name)
{
    char bytes[BXI_TYPE_BYTES + 1] = "";

    memcpy(bytes, (const void *)row->name, BXI_TYPE_BYTES);
    HARNESS_CHECK(strcmp(bytes, name) == 0);
}

static void expect_holders(const struct bxi_object_row *row, uint64_t ranks, uint64_t entries)
{
    HARNESS_WAIT_WHILE(bxi_load_relaxed((bxi_a64 *)&row->holders[0]) != ranks ||
                       bxi_load_relaxed((bxi_a64 *)&row->entries) != entries);
    HARNESS_EQ(bxi_load_relaxed((bxi_a64 *)&row->holders[1]), 0);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

HARNESS_TEST(rref_show, tells_who_holds_an_object_and_since_when, 60, .size = 3, .setup = setup)
{
    uint64_t began_ns = bxi_now_ns(), since_ns;
    struct bx_rref *rref = NULL;
    struct bxi_object_row *row;

    HARNESS_EQ(shown(job, 0), 0);
    HARNESS_EQ(bx_rref_create(job, &counter_type, new_counter_of(1), &rref), 0);
    row = find(job, rref);
    HARNESS_CHECK(row != NULL);
    HARNESS_EQ(bxi_load_relaxed(&row->state), BXI_OBJECT_THERE);
    since_ns = bxi_load_relaxed(&row->since_ns);
    HARNESS_CHECK(since_ns >= began_ns && since_ns <= bxi_now_ns());
    expect_type(row, "counter");
    expect_holders(row, 0, 0);
    for (int rank = 1; rank < 3; rank++) {
        give(job, bx_worker_name(job, rank), rref, false);
        expect_holders(row, rank == 1 ? 2 : 6, (uint64_t)rank);
    }
    drop_of(job, "worker1");
    expect_holders(row, 4, 1);
    bx_rref_release(rref);
    HARNESS_EQ(shown(job, 0), 1);
    drop_of(job, "worker2");
    await_alive(0);
    HARNESS_EQ(shown(job, 0), 0);
    HARNESS_EQ(bxi_load_relaxed(&tables_of(job, 0)->objects_unshown), 0);
}

HARNESS_TEST(rref_show, tells_an_object_that_is_to_come_from_one_that_is_there_or_failed, 60, .size = 2, .setup = setup)
{
    struct bx_rref *rref = remote(job, "worker1", "new_slow", 1), *never = NULL;
    struct bxi_object_row *row;

    HARNESS_WAIT_WHILE((row = find(job, rref)) == NULL);
    HARNESS_EQ(bxi_load_acquire(&row->state), BXI_OBJECT_TO_COME);
    expect_type(row, "");
    expect_holders(row, 1, 1);
    harness_post(MAY_BE_MADE);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
    HARNESS_EQ(bxi_load_acquire(&row->state), BXI_OBJECT_THERE);
    expect_type(row, "counter");
    never = remote(job, "worker1", "new_failing", 0);
    HARNESS_EQ(bx_rref_wait(never, BX_FOREVER), -EDOM);
    HARNESS_EQ(bxi_load_acquire(&find(job, never)->state), BXI_OBJECT_FAILED);
    bx_rref_release(never);
    bx_rref_release(rref);
    await_alive(0);
    HARNESS_WAIT_WHILE(shown(job, 1) > 0);
}

#define MORE 10

HARNESS_TEST(rref_show, counts_the_objects_that_find_no_row, 60, .size = 2, .setup = setup)
{
    static struct bx_rref *rrefs[BXI_OBJECTS_MAX + MORE];
    const int count = BXI_OBJECTS_MAX + MORE;

    for (int i = 0; i < count; i++) {
        HARNESS_EQ(bx_rref_create(job, &long_type, new_counter_of(i), &rrefs[i]), 0);
        HARNESS_CHECK((find(job, rrefs[i]) != NULL) == (i < BXI_OBJECTS_MAX));
    }
    expect_type(find(job, rrefs[7]), "a type whose nam");
    HARNESS_EQ(bxi_load_relaxed(&tables_of(job, 0)->objects_unshown), MORE);
    /* One without a row does not get one later; a new one does. */
    bx_rref_release(rrefs[7]);
    HARNESS_EQ(shown(job, 0), BXI_OBJECTS_MAX - 1);
    HARNESS_EQ(bx_rref_create(job, &counter_type, new_counter_of(7), &rrefs[7]), 0);
    expect_type(find(job, rrefs[7]), "counter");
    for (int i = 0; i < count; i++)
        bx_rref_release(rrefs[i]);
    HARNESS_EQ(shown(job, 0), 0);
    HARNESS_EQ(bxi_load_relaxed(&tables_of(job, 0)->objects_unshown), 0);
    HARNESS_EQ(bxi_load_relaxed(&tables_of(job, 0)->object_rows), BXI_OBJECTS_MAX);
}

/* ---- Calls for no function ------------------------------------------------------------------------------- */

/* This worker has named no function of the object's owner. */
HARNESS_HANDLER(fetch)
{
    const struct bx_call_options soon = { .timeout_ns = 20 * HARNESS_MS };
    struct bx_rref *rref = bx_read_rref(args);
    struct bx_future *future = NULL;
    struct bx_msg *value = NULL;
    struct bx_job *job = bx_request_job(request);
    int rc;

    HARNESS_CHECK(job->rpc->peers[1]->functions == NULL);
    HARNESS_EQ(bx_rref_to_here_async(rref, &soon, &future), 0);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_TIMEOUT);
    HARNESS_HAS(bx_future_error_text(future), "'bx_rref_to_here'");
    bx_future_release(future);
    harness_post(MAY_BE_MADE);
    rc = bx_rref_to_here(rref, NULL, &value);
    if (rc == 0)
        rc = bx_msg_put_i64(reply, number_in(value));
    bx_msg_destroy(value);
    HARNESS_EQ(bxi_load_acquire(&job->control->header.hist_count), 0);
    return rc;
}

HARNESS_TEST(rref_show, counts_a_call_for_a_value_as_no_functions, 60, .size = 3, .setup = setup,
             .handlers = { HARNESS_BLOCKING("fetch", fetch) }, .env = { "BX_HIST=all" })
{
    struct bx_rref *rref = remote(job, "worker1", "new_slow", 42);

    HARNESS_EQ(harness_call(job, "worker2", "fetch", msg_of(rref)), 42);
    bx_rref_release(rref);
    await_alive(0);
}
