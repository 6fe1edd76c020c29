/* SPDX-License-Identifier: MIT */
/*
 * References to objects (lib/rref, lib/rpc/object.c): making, calling, passing on in every direction, dropping.
 *
 * The objects are counters; each counts its destructor in shared memory, so every test knows how many live.
 */
#include "rref_fixture.h"

TestSuite(rref, .timeout = 60);

/* ---- Making and calling ----------------------------------------------------------------------------- */

HARNESS_TEST(rref, to_an_object_of_ones_own_is_used_without_a_peer, 60, .size = 2, .setup = setup)
{
    static const struct bx_type other = { .name = "other" };
    struct bx_rref *rref = NULL;
    struct counter *counter = new_counter_of(5);
    void *object = NULL;

    HARNESS_EQ(bx_rref_create(job, &counter_type, counter, &rref), 0);
    HARNESS_EQ(bx_rref_owner(rref), bx_job_rank(job));
    HARNESS_CHECK(bx_rref_is_owner(rref));
    HARNESS_CHECK(bx_rref_is_confirmed(rref));
    HARNESS_EQ(bx_rref_wait(rref, 0), 0);
    HARNESS_EQ(bx_rref_local(rref, &counter_type, &object), 0);
    HARNESS_CHECK(object == counter);
    HARNESS_EQ(bx_rref_local(rref, &other, &object), BX_E_TYPE);
    HARNESS_HAS(bx_error_text(), "'counter', not 'other'");
    HARNESS_EQ(add_to(rref, 3), 8);
    HARNESS_EQ(value_of(rref), 8);
    HARNESS_CHECK(bx_rref_acquire(rref) == rref);
    bx_rref_release(rref);
    HARNESS_EQ(alive(), 1);
    bx_rref_release(rref);
    HARNESS_EQ(alive(), 0);
}

#define LINKS 200000

struct link {
    struct bx_rref *next;
    int *left;
};

static void drop_link(void *object)
{
    struct link *link = object;

    bx_rref_release(link->next);
    --*link->left;
    free(link);
}

HARNESS_TEST(rref, to_a_list_of_objects_need_no_stack_when_it_ends, 60, .size = 1)
{
    static const struct bx_type link_type = { .name = "link", .destroy = drop_link };
    struct bx_rref *first = NULL;
    int left = LINKS;

    for (int i = 0; i < LINKS; i++) {
        struct link *link = malloc(sizeof *link);

        HARNESS_CHECK(link != NULL);
        *link = (struct link){ first, &left };
        HARNESS_EQ(bx_rref_create(job, &link_type, link, &first), 0);
    }
    bx_rref_release(first);
    HARNESS_EQ(left, 0);
}

/* Its maker has forgotten it by then. */
HARNESS_TEST(rref, that_was_dropped_and_comes_back_can_be_used_at_once, 60, .size = 2, .setup = setup)
{
    OWN(msg) *reply = NULL;
    struct bx_reader reader;
    struct bx_rref *rref;

    give(job, "worker1", remote(job, "worker1", "new_counter", 5), true);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "kept", NULL, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    rref = bx_read_rref(&reader);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
    HARNESS_EQ(add_to(rref, 1), 6);
    drop_of(job, "worker1");
    bx_msg_clear(reply);
    await_alive(0);
}

HARNESS_TEST(rref, by_remote_makes_an_object_in_another_worker, 60, .size = 2, .setup = setup)
{
    void *object = NULL;

    for (int i = 0; i < 100; i++) {
        OWN(rref) *rref = remote(job, "worker1", "new_counter", i);

        HARNESS_EQ(bx_rref_owner(rref), 1);
        HARNESS_CHECK(!bx_rref_is_owner(rref));
        HARNESS_EQ(bx_rref_local(rref, &counter_type, &object), -EREMOTE);
        HARNESS_EQ(add_to(rref, 1), i + 1);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
        HARNESS_CHECK(bx_rref_is_confirmed(rref));
        HARNESS_EQ(value_of(rref), i + 1);
    }
    await_alive(0);
    HARNESS_EQ(harness_load(MADE), 100);
}

HARNESS_TEST(rref, by_remote_may_make_an_object_at_home, 60, .size = 2, .setup = setup)
{
    OWN(msg) *args = harness_msg_i64(3);
    OWN(tensor) *tensor = NULL;
    struct bx_rref *rref = NULL;
    void *object = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_U8, 1, (const int64_t[]){ 4 }, &tensor), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);         /* the arguments of this one are lent */
    HARNESS_EQ(bx_remote(job, "worker0", "new_counter", args, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
    HARNESS_CHECK(bx_rref_is_owner(rref));
    HARNESS_EQ(bx_rref_local(rref, &counter_type, &object), 0);
    HARNESS_EQ(add_to(rref, 1), 4);
    bx_rref_release(rref);
    await_alive(0);
}

static void call_every_kind(struct bx_job *job)
{
    static const char *const methods[] = { "add", "add_blocking", "add_async", "add_batch" };
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 0);

    for (int i = 0; i < 4; i++) {
        OWN(msg) *args = harness_msg_i64(1), *reply = NULL;
        OWN(future) *future = NULL;
        OWN(rref) *made = NULL;

        HARNESS_EQ(bx_rref_sync(rref, methods[i], args, NULL, &reply), 0);
        HARNESS_EQ(number_in(reply), 3 * i + 1);
        HARNESS_EQ(bx_rref_async(rref, methods[i], args, NULL, &future), 0);
        HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
        HARNESS_EQ(number_in(bx_future_value(future)), 3 * i + 2);
        HARNESS_EQ(bx_rref_oneway(rref, methods[i], args, NULL), 0);
        while (value_of(rref) != 3 * i + 3)
            ;
        HARNESS_EQ(bx_rref_remote(rref, "twin", NULL, NULL, &made), 0);
        HARNESS_EQ(value_of(made), 3 * i + 3);
    }
    bx_rref_release(rref);
    await_alive(0);
}

Test(rref, has_methods_of_every_kind)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_every_kind } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_every_kind },
                                         .options = { .no_spin = true, .wait = BX_WAIT_EPOLL } });
}

/* ---- An object that is to come ------------------------------------------------------------------------ */

HARNESS_TEST(rref, is_called_and_fetched_before_the_object_is_made, 60, .size = 2, .setup = setup)
{
    struct bx_rref *rref = remote(job, "worker1", "new_slow", 10);
    struct bx_future *futures[20], *value = NULL;
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_rref_to_here_async(rref, NULL, &value), 0);
    for (int i = 0; i < 20; i++)
        HARNESS_EQ(bx_rref_async(rref, i % 2 == 0 ? "add" : "add_async", args, NULL, &futures[i]), 0);
    HARNESS_CHECK(!bx_rref_is_confirmed(rref));
    HARNESS_EQ(bx_rref_wait(rref, 20 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(!bx_future_is_done(futures[0]));
    harness_post(MAY_BE_MADE);
    for (int i = 0; i < 20; i++) {
        HARNESS_EQ(harness_end_i64(futures[i]), 11 + i);     /* in order */
    }
    HARNESS_EQ(bx_future_wait(value, BX_FOREVER), 0);
    HARNESS_EQ(number_in(bx_future_value(value)), 10);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
    bx_future_release(value);
    bx_msg_destroy(args);
    bx_rref_release(rref);
    await_alive(0);
}

HARNESS_TEST(rref, has_calls_that_give_up_before_the_object_is_made, 60, .size = 2, .setup = setup)
{
    struct bx_rref *rref = remote(job, "worker1", "new_slow", 1);
    struct bx_msg *args = harness_msg_i64(1), *reply = NULL;
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rref_sync(rref, "add", args, &(struct bx_call_options){ .timeout_ns = 20 * HARNESS_MS }, &reply),
               BX_E_TIMEOUT);
    HARNESS_EQ(bx_rref_async(rref, "add", args, NULL, &future), 0);
    harness_cancel(future);
    HARNESS_EQ(harness_call(job, "worker1", "new_nothing", NULL), 1);       /* the cancels are read */
    harness_post(MAY_BE_MADE);
    HARNESS_EQ(value_of(rref), 1);          /* neither ran */
    bx_msg_destroy(args);
    bx_rref_release(rref);
    await_alive(0);
}

/* Of a call of its own, say. */
HARNESS_HANDLER(new_corrupt)
{
    return bx_fail(BX_E_CORRUPT, "another one was cut off");
}

/* BX_E_CORRUPT too: whoever uses the reference is not cut off. */
HARNESS_TEST(rref, whose_object_could_not_be_made_fails_with_the_reason_for_ever, 60, .size = 2, .setup = setup,
             .handlers = { HARNESS_INLINE("new_corrupt", new_corrupt) })
{
    static const struct { const char *function; int code; const char *text; } cases[] = {
        { "new_failing", -EDOM, "no counters today" },
        { "new_corrupt", BX_E_CORRUPT, "another one was cut off" },
        { "new_nothing", BX_E_HANDLER, "no reference" },
        { "add_blocking", BX_E_TYPE, "not called on an object" },
        { "new_async_failing", -EDOM, "failed later" },
    };
    struct bx_rref *rref = NULL;
    struct bx_msg *reply = NULL;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rref = remote(job, "worker1", cases[i].function, 0);
        HARNESS_EQ(bx_rref_sync(rref, "add", NULL, NULL, &reply), cases[i].code);
        HARNESS_HAS(bx_error_text(), cases[i].text);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), cases[i].code);
        HARNESS_EQ(bx_rref_to_here(rref, NULL, &reply), cases[i].code);
        HARNESS_HAS(bx_error_text(), cases[i].text);
        HARNESS_CHECK(!bx_rref_is_confirmed(rref));
        bx_rref_release(rref);
    }
    HARNESS_EQ(bx_remote(job, "worker1", "no_such", NULL, NULL, &rref), BX_E_NO_FUNCTION);
    HARNESS_EQ(bx_remote(job, "nobody", "new_counter", NULL, NULL, &rref), BX_E_NO_WORKER);
    await_alive(0);
}

HARNESS_TEST(rref, whose_object_comes_too_late_fails_and_the_object_is_destroyed, 60, .size = 2, .setup = setup)
{
    struct bx_call_options soon = { .timeout_ns = 10 * HARNESS_MS };
    struct bx_msg *args = harness_msg_i64(1);
    struct bx_rref *rref = NULL;

    do {                                    /* a request whose deadline passes before it is handled makes nothing */
        bx_rref_release(rref);
        soon.timeout_ns *= 2;
        HARNESS_EQ(bx_remote(job, "worker1", "new_slow", args, &soon, &rref), 0);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_TIMEOUT);
    } while (harness_gate(BEING_MADE) == 0);
    HARNESS_EQ(bx_rref_sync(rref, "add", args, NULL, NULL), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "new_slow");
    harness_post(MAY_BE_MADE);              /* it is made after all, and destroyed with the reference */
    bx_msg_destroy(args);
    bx_rref_release(rref);
    HARNESS_WAIT_WHILE(harness_load(MADE) < harness_gate(BEING_MADE));
    await_alive(0);
}

/* ---- Bad input ------------------------------------------------------------------------------------------ */

HARNESS_TEST(rref, of_another_type_or_without_a_method_is_refused_with_its_own_error, 60, .size = 2, .setup = setup)
{
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 0), *valueless = NULL;
    struct bx_msg *reply = NULL, *args = harness_msg_i64(1);
    struct bx_reader reader = bx_msg_reader(args);

    HARNESS_EQ(bx_rref_sync(rref, "no_such", args, NULL, NULL), BX_E_NO_FUNCTION);
    HARNESS_HAS(bx_error_text(), "no_such");
    HARNESS_EQ(bx_rref_sync(rref, "new_counter", args, NULL, NULL), BX_E_TYPE);
    HARNESS_HAS(bx_error_text(), "no method");
    HARNESS_EQ(bx_rref_sync(rref, "other_method", args, NULL, NULL), BX_E_TYPE);
    HARNESS_HAS(bx_error_text(), "another type");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "add", args, NULL, &reply), BX_E_TYPE);
    HARNESS_HAS(bx_error_text(), "not called on an object");
    valueless = remote(job, "worker1", "new_valueless", 0);
    HARNESS_EQ(bx_rref_to_here(valueless, NULL, &reply), BX_E_TYPE);
    HARNESS_HAS(bx_error_text(), "no value");
    HARNESS_CHECK(bx_read_rref(&reader) == NULL);
    HARNESS_EQ(reader.error, BX_E_SHORT_MESSAGE);
    bx_rref_release(valueless);
    bx_rref_release(rref);
    bx_msg_destroy(args);
    await_alive(0);
}

/* ---- Passing -------------------------------------------------------------------------------------------- */

static void pass_in_calls(struct bx_job *job)
{
    static const char *const methods[] = { "use", "use_blocking", "use_async", "use_batch" };
    struct bx_rref *own = NULL, *theirs = remote(job, "worker1", "new_counter", 100),
                   *third = remote(job, "worker2", "new_counter", 200);

    own = own_counter(job, 0);
    for (int i = 0; i < 40; i++) {
        struct bx_rref *const passed[] = { own, theirs, third };
        int64_t before = value_of(passed[i % 3]);
        OWN(msg) *reply = harness_ask(job, i % 2 == 0 ? "worker1" : "worker2", methods[i % 4], msg_of(passed[i % 3]));

        HARNESS_EQ(number_in(reply), before + 1);
        HARNESS_EQ(bx_msg_rrefs(reply), 1);

        struct bx_reader reader = bx_msg_reader(reply);         /* it came back */
        struct bx_rref *back = bx_read_rref(&reader);

        HARNESS_CHECK(back == passed[i % 3]);
        HARNESS_EQ(add_to(back, 1), before + 2);
    }
    bx_rref_release(own);
    bx_rref_release(theirs);
    bx_rref_release(third);
    await_alive(0);
}

Test(rref, goes_in_arguments_and_replies_in_every_direction)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { pass_in_calls } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { pass_in_calls },
                                         .options = { .no_spin = true } });
}

HARNESS_TEST(rref, goes_beside_tensors_and_in_messages_larger_than_a_frame, 60, .size = 3, .setup = setup)
{
    static const int64_t shape[] = { 1000 };
    struct bx_rref *rref = remote(job, "worker2", "new_counter", 7);
    struct bx_tensor *tensor = NULL;
    static unsigned char large[20000];

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, shape, &tensor), 0);
    memset(bx_tensor_data_mut(tensor), 0, bx_tensor_bytes(tensor));
    for (int i = 0; i < 4; i++) {
        struct bx_msg *args = msg_of(rref);

        if (i % 2 == 0)
            bx_msg_put_tensor(args, tensor);
        bx_msg_put_bytes(args, large, i < 2 ? 100 : sizeof large);
        HARNESS_EQ(harness_call(job, "worker1", "use", args), 8 + i);
    }
    bx_tensor_release(tensor);
    bx_rref_release(rref);
    await_alive(0);
}

HARNESS_TEST(rref, comes_a_thousand_times_in_one_message, 60, .size = 3, .setup = setup)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 7);

    for (int i = 0; i < BX_RREFS_MAX; i++)
        HARNESS_EQ(bx_msg_put_rref(args, rref), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "use", args, NULL, &reply), 0);
    HARNESS_EQ(number_in(reply), 8);
    HARNESS_EQ(bx_msg_put_rref(args, rref), BX_E_TOO_LARGE);
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
    bx_rref_release(rref);
    await_alive(0);
}
