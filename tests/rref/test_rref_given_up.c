/* SPDX-License-Identifier: MIT */
/*
 * bx_remote does not answer in time: what was begun with its reference before fails too, at once, whoever owns the
 * object (lib/rpc/object.c, cancel.c). What the handler makes after that is destroyed.
 */
#include "rref_fixture.h"

TestSuite(rref_given_up, .timeout = 60);

static void expect_given_up(struct bx_job *job, const char *owner)
{
    struct bx_call_options soon = { .timeout_ns = 25 * HARNESS_MS };
    const struct bx_call_options forever = { .timeout_ns = BX_FOREVER };
    OWN(msg) *args = number(1);
    OWN(rref) *rref = NULL;

    do {                                    /* a request whose deadline passes before it is handled makes nothing */
        OWN(future) *value = NULL;

        bx_rref_release(rref);
        soon.timeout_ns *= 2;
        HARNESS_EQ(bx_remote(job, owner, "new_slow", args, &soon, &rref), 0);
        HARNESS_EQ(bx_rref_to_here_async(rref, &forever, &value), 0);
        HARNESS_EQ(bx_future_wait(value, BX_FOREVER), BX_E_TIMEOUT);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_TIMEOUT);
    } while (harness_gate(BEING_MADE) == 0);
    HARNESS_EQ(bx_rref_to_here(rref, &forever, NULL), BX_E_TIMEOUT);
    HARNESS_EQ(harness_load(MADE), 0);
    harness_post(MAY_BE_MADE);
    HARNESS_WAIT_WHILE(harness_load(MADE) < harness_gate(BEING_MADE));
    await_alive(0);
}

HARNESS_TEST(rref_given_up, fails_what_waits_for_an_object_of_this_worker, 60, .size = 2, .setup = setup)
{
    expect_given_up(job, "worker0");
}

HARNESS_TEST(rref_given_up, fails_what_waits_for_an_object_of_another_worker, 60, .size = 2, .setup = setup)
{
    expect_given_up(job, "worker1");
}
