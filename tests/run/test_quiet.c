/* SPDX-License-Identifier: MIT */
/*
 * Quiet waits (lib/run/wait.c, take_and_lead): a synchronous call whose reply comes at once leaves the bell armed LAZY.
 * The clock and the sleeps are fake, but for the last test.
 */
#include "fake_system.h"

#include "tests/harness/harness.h"

#include "rpc/rpc.h"

/* What the straight way finds, and does meanwhile. */
static struct {
    bool finds;                         /* its reply */
    int calls;
    uint64_t armed;                     /* the bell's word then */
    uint64_t armed_in_pass;
    int passes;
    void (*meanwhile)(void);
} straight;

struct reply_waiter {
    struct bxi_waiter waiter;           /* first */
    bool is_ready;
};

static bool reply_ready(struct bxi_waiter *waiter)
{
    return ((struct reply_waiter *)(void *)waiter)->is_ready;
}

static struct reply_waiter *leads;      /* the waiter that a pass makes ready */

static int pass(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    (void)context, (void)role, (void)waiter;
    straight.passes++;
    straight.armed_in_pass = bxi_load_relaxed(&armed);
    if (leads != NULL)
        leads->is_ready = true;
    return 1;
}

static const struct bxi_source_ops ops = { .pass = pass };

static bool go_straight(struct bxi_waiter *waiter, const struct bxi_role *role)
{
    cr_assert(bxi_run_of(role) == &run && bxi_is_driving(&run));
    straight.calls++;
    straight.armed = bxi_load_relaxed(&armed);
    if (straight.meanwhile != NULL)
        straight.meanwhile();
    ((struct reply_waiter *)(void *)waiter)->is_ready = straight.finds;
    return straight.finds;
}

static void set_up(void)
{
    begin_run(&run, &fake_system, 10000);
    add_source(&ops, NULL);
    bxi_leave_role(bxi_take_role(&run), true);
    cr_assert_eq(bxi_load_relaxed(&armed) & 3, BXI_WHO_LAZY);
}

TestSuite(quiet, .init = set_up, .fini = end_run, .timeout = 20);

/* What a synchronous call waits with. */
static void wait_for_reply(void)
{
    struct reply_waiter reply = { .waiter = { .ready = reply_ready, .straight = go_straight,
                                              .deadline_ns = BX_FOREVER } };

    leads = &reply;
    straight.calls = straight.passes = 0;
    cr_assert_eq(bxi_wait(&run, &reply.waiter), 0);
    cr_expect_eq(straight.calls, 1);
    cr_expect_eq(bxi_load_relaxed(&run.role), 0);
    cr_expect_not(bxi_is_driving(&run));
    leads = NULL;
}

Test(quiet, wait_leaves_the_bell_as_it_is)
{
    uint64_t before = bxi_load_relaxed(&armed);

    straight.finds = true;
    for (int i = 0; i < 100; i++) {
        wait_for_reply();
        cr_expect_eq(straight.armed, before);
        cr_expect_eq(bxi_load_relaxed(&armed), before);
        cr_expect_eq(straight.passes, 0);
    }
}

Test(quiet, wait_becomes_loud_when_its_reply_does_not_come_and_the_next_does_not)
{
    uint64_t before = bxi_load_relaxed(&armed);

    wait_for_reply();                   /* finds no reply; a pass makes it ready */
    cr_expect_eq(straight.armed, before);
    cr_expect_eq(straight.armed_in_pass & 3, BXI_AWAKE);
    cr_expect_eq(bxi_load_relaxed(&armed) & 3, BXI_WHO_LAZY);
    cr_expect_gt(bxi_load_relaxed(&armed) >> 2, before >> 2);
    straight.finds = true;
    before = bxi_load_relaxed(&armed);
    wait_for_reply();
    cr_expect_eq(straight.armed, before);
}

Test(quiet, waits_are_loud_for_a_while_after_a_bell)
{
    uint64_t before;

    straight.finds = true;
    bxi_be_loud(&run);
    for (unsigned i = 0; i < BXI_LOUD_WAITS; i++) {
        if ((bxi_load_relaxed(&run.pass) + 1) % 256 == 0)
            bxi_store_relaxed(&run.pass, 0);        /* of 256 waits one makes a pass */
        before = bxi_load_relaxed(&armed);
        wait_for_reply();
        cr_expect_eq(straight.armed & 3, BXI_AWAKE);
        cr_expect_gt(bxi_load_relaxed(&armed) >> 2, before >> 2);
    }
    before = bxi_load_relaxed(&armed);
    wait_for_reply();
    cr_expect_eq(straight.armed, before);
}

/* One that is looks asleep, and a worker that shares its CPU would not yield to it. */
Test(quiet, waits_are_not_where_workers_share_cpus)
{
    straight.finds = true;
    bxi_store_relaxed(&run.cpus_are_shared, 1);
    wait_for_reply();
    cr_expect_eq(straight.armed & 3, BXI_AWAKE);
    bxi_store_relaxed(&run.cpus_are_shared, 0);
    wait_for_reply();
    cr_expect_eq(straight.armed & 3, BXI_WHO_LAZY);
}

Test(quiet, wait_is_not_while_somebody_needs_every_reply)
{
    straight.finds = true;
    bxi_more_eager(&run);
    cr_expect_eq(bxi_load_relaxed(&armed) & 3, BXI_WHO_BACKGROUND);
    wait_for_reply();
    cr_expect_eq(straight.armed & 3, BXI_AWAKE);
    cr_expect_eq(bxi_load_relaxed(&armed) & 3, BXI_WHO_BACKGROUND);
    bxi_less_eager(&run);
}

/* ---- With other workers --------------------------------------------------------------------------- */

enum { ASKED, DONE };                   /* gates */

static void asks(struct bx_job *job)
{
    harness_await(ASKED, 1);
    HARNESS_EQ(harness_call_i64(job, "worker0", "twice", 2), 4);
    harness_post(DONE);
}

/* A request that comes while no thread of the program waits rings the background thread. After that, synchronous calls
 * are loud for a while. */
HARNESS_TEST(quiet_job, waits_are_not_after_a_request_has_rung, 20, .size = 2,
             .handlers = { HARNESS_INLINE("twice", harness_twice) }, .body = { NULL, asks })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 1), 2);
    harness_post(ASKED);
    harness_await(DONE, 1);
    HARNESS_EQ(bxi_load_relaxed(&job->run->loud_waits), BXI_LOUD_WAITS);
}
