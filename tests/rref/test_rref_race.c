/* SPDX-License-Identifier: MIT */
/*
 * References in handlers, callbacks and destructors, and by threads that end.
 */
#include "rref_fixture.h"

#include "rref/rref.h"

TestSuite(rref_race, .timeout = 60);

enum { WRONG = 8 };                             /* values */
enum { DONE = 8 };                     /* gates */

/* ---- Counts ----------------------------------------------------------------------------------------------- */

HARNESS_HANDLER(give_many)
{
    for (int i = 0; i < BX_RREFS_MAX; i++)
        if (bx_msg_put_rref(reply, kept_rref) < 0)
            return bx_msg_error(reply);
    return 0;
}

/* More than BXI_RREF_COUNTED_MAX, while one reference is held. */
HARNESS_TEST(rref_race, count_does_not_grow_with_the_messages, 60, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("give_many", give_many) })
{
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 7);

    give(job, "worker1", rref, false);
    for (uint32_t got = 0; got <= 2 * BXI_RREF_COUNTED_MAX; got += BX_RREFS_MAX) {
        struct bx_msg *reply = harness_ask(job, "worker1", "give_many", NULL);

        HARNESS_EQ(bx_msg_rrefs(reply), BX_RREFS_MAX);
        bx_msg_destroy(reply);
        bxi_lock(&job->run->lock);
        HARNESS_CHECK(rref->counted < BXI_RREF_COUNTED_MAX);
        bxi_unlock(&job->run->lock);
    }
    HARNESS_EQ(value_of(rref), 7);
    bx_rref_release(rref);
    drop_of(job, "worker1");
    await_alive(0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* ---- In handlers, callbacks and destructors --------------------------------------------------------------- */

/* An inline handler makes an object elsewhere, passes it on, waits in vain, and answers with it. */
HARNESS_HANDLER(make_inline)
{
    struct bx_job *job = bx_request_job(request);
    OWN(rref) *rref = remote(job, "worker2", "new_counter", bx_read_i64(args));
    struct bx_msg *value = NULL, *one = harness_msg_i64(1);

    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_rref_sync(rref, "add", one, NULL, &value), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_rref_to_here(rref, NULL, &value), BX_E_WOULD_DEADLOCK);
    HARNESS_EQ(bx_rref_oneway(rref, "add", one, NULL), 0);
    bx_msg_put_rref(reply, rref);
    bx_msg_destroy(one);
    return 0;
}

struct making {
    struct bx_job *job;
    struct bx_rref *rref;
};

static void make_in_callback(struct bx_future *future, void *context)
{
    struct making *making = context;

    HARNESS_EQ(bx_future_error(future), 0);
    making->rref = remote(making->job, "worker2", "new_counter", 50);
    HARNESS_EQ(bx_rref_wait(making->rref, BX_FOREVER), BX_E_WOULD_DEADLOCK);
    harness_post(DONE);
}

HARNESS_TEST(rref_race, is_made_and_passed_where_one_may_not_wait, 60, .size = 3, .setup = setup,
             .handlers = { HARNESS_INLINE("make_inline", make_inline) })
{
    for (int i = 0; i < 50; i++) {
        struct bx_msg *args = harness_msg_i64(i), *reply = NULL;
        struct making making = { .job = job };
        OWN(future) *future = NULL;

        HARNESS_EQ(bx_rpc_sync(job, "worker1", "make_inline", args, NULL, &reply), 0);

        struct bx_reader reader = bx_msg_reader(reply);
        struct bx_rref *rref = bx_read_rref(&reader);

        while (value_of(rref) != i + 1)
            ;
        bx_msg_destroy(reply);
        future = harness_async(job, "worker1", "new_nothing");
        HARNESS_EQ(bx_future_on_done(future, make_in_callback, &making), 0);
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
        harness_await(DONE, (uint32_t)i + 1);
        HARNESS_EQ(value_of(making.rref), 50);
        bx_rref_release(making.rref);
        bx_msg_destroy(args);
    }
    await_alive(0);
}

/* An object that holds references to the next one, at home and elsewhere, and calls in its destructor. */
struct link {
    struct bx_rref *next;
    int64_t number;
};

static struct bx_job *home;

static void destroy_link(void *object)
{
    struct link *link = object;

    HARNESS_EQ(bx_rpc_oneway(home, "worker1", "new_nothing", NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(home, "worker1", "new_nothing", NULL, NULL, NULL), BX_E_WOULD_DEADLOCK);
    bx_rref_release(link->next);
    free(link);
    harness_add(DESTROYED, 1);
}

static const struct bx_type link_type = { .name = "link", .destroy = destroy_link };

HARNESS_TEST(rref_race, destructor_may_release_other_references_and_call, 60, .size = 2, .setup = setup)
{
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 1);

    home = job;
    for (int i = 0; i < 100; i++) {
        struct link *link = malloc(sizeof *link);

        *link = (struct link){ rref, i };
        harness_add(MADE, 1);
        HARNESS_EQ(bx_rref_create(job, &link_type, link, &rref), 0);
    }
    give(job, "worker1", rref, true);
    HARNESS_EQ(alive(), 101);
    drop_of(job, "worker1");
    await_alive(0);
}

/* ---- Threads that end where they should not --------------------------------------------------------------- */

HARNESS_HANDLER(leave_thread)
{
    pthread_exit(NULL);
}

HARNESS_TEST(rref_race, whose_maker_ends_its_thread_fails_with_handler, 60, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("leave_inline", leave_thread),
                           HARNESS_BLOCKING("leave_blocking", leave_thread) })
{
    static const char *const makers[] = { "leave_inline", "leave_blocking" };

    for (int i = 0; i < 6; i++) {
        struct bx_rref *rref = remote(job, "worker1", makers[i % 2], 0), *fine;

        HARNESS_EQ(bx_rref_sync(rref, "add", NULL, NULL, NULL), BX_E_HANDLER);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_HANDLER);
        HARNESS_HAS(bx_error_text(), "its thread ended in it");
        bx_rref_release(rref);
        fine = remote(job, "worker1", "new_counter", i);
        HARNESS_EQ(add_to(fine, 1), i + 1);
        bx_rref_release(fine);
    }
    await_alive(0);
}

/* A destructor must not end its thread. If it does, the engine survives it. */
static void destroy_and_leave(void *object)
{
    destroy_counter(object);
    pthread_exit(NULL);
}

static const struct bx_type leaving_type = { .name = "leaving", .destroy = destroy_and_leave };

HARNESS_HANDLER(new_leaving)
{
    return put_counter(request, reply, &leaving_type, bx_read_i64(args) + (context != NULL));
}

static void *release_in_thread(void *rref)
{
    bx_rref_release(rref);
    harness_add(WRONG, 1);          /* not reached: the thread ends in the release */
    return NULL;
}

HARNESS_TEST(rref_race, whose_destructor_ends_its_thread_harms_no_other, 60, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("new_leaving", new_leaving) })
{
    struct bx_rref *rref = NULL;
    pthread_t thread;

    for (int i = 0; i < 5; i++) {
        HARNESS_EQ(bx_rref_create(job, &leaving_type, new_counter_of(i), &rref), 0);
        pthread_create(&thread, NULL, release_in_thread, rref);
        pthread_join(thread, NULL);
        HARNESS_EQ(alive(), 0);
        HARNESS_EQ(harness_load(WRONG), 0);
        rref = remote(job, "worker1", "new_leaving", i);            /* its destructor: by worker1's role */
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
        bx_rref_release(rref);
        await_alive(0);
        HARNESS_EQ(harness_call(job, "worker1", "new_nothing", NULL), 1);
    }
}
