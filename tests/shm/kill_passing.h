/* SPDX-License-Identifier: MIT */
/*
 * The part of test_kill_steps.c that passes references: each worker makes objects in others, passes them on, and uses
 * what it gets. When worker 1 is dead, no object is left, and none was destroyed early.
 */
#ifndef TESTS_KILL_PASSING_H
#define TESTS_KILL_PASSING_H

static void destroy_object(void *object)
{
    HARNESS_EQ(*(int *)object, 7);
    *(int *)object = 0;
    free(object);
    harness_add(DESTROYED, 1);
}

static const struct bx_type object_type = { .name = "object", .destroy = destroy_object };

/* Only survivors are asked for one. */
HARNESS_HANDLER(make_object)
{
    int *object = malloc(sizeof *object);

    *object = 7;
    harness_add(MADE, 1);
    return bx_msg_put_object(bx_request_job(request), reply, &object_type, object);
}

HARNESS_HANDLER(read_object)
{
    return bx_msg_put_i64(reply, *(const int *)bx_request_object(request));
}

static int read_through(struct bx_rref *rref)
{
    /* Not for the request in which it is called: that one's caller may be the victim. */
    const struct bx_call_options options = { .flags = BX_CALL_DETACHED };
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(rref, "read", NULL, &options, &reply);

    if (rc == 0) {
        struct bx_reader reader = bx_msg_reader(reply);

        HARNESS_EQ(bx_read_i64(&reader), 7);
    }
    bx_msg_destroy(reply);
    return rc;
}

/* What the victim passed on may never be made: its request to the owner is dropped if it is unread at the death. */
HARNESS_HANDLER(use_object)
{
    int rc = read_through(bx_read_rref(args));

    if (bx_request_caller(request) == VICTIM && rc == BX_E_PEER_DEAD)
        HARNESS_HAS(bx_error_text(), "its maker was gone before the object could be made");
    else
        HARNESS_EQ(rc, 0);
    return 0;
}

static int setup_passing(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "make", BX_INLINE, make_object, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &object_type, "read", BX_INLINE, read_object, NULL), 0);
    HARNESS_EQ(bx_register(job, "use", BX_BLOCKING, use_object, NULL), 0);
    return setup(job);
}

/* Makes an object in a survivor, and passes it to two others. The error of the first. */
static int pass_around(struct bx_job *job, const char *owner, const char *to, const char *also_to)
{
    struct bx_msg *args = bx_msg_create(0);
    struct bx_rref *rref = NULL;
    int rc;

    HARNESS_EQ(bx_remote(job, owner, "make", NULL, NULL, &rref), 0);
    HARNESS_EQ(bx_msg_put_rref(args, rref), 0);
    rc = bx_rpc_sync(job, to, "use", args, NULL, NULL);
    HARNESS_EQ(bx_rpc_sync(job, also_to, "use", args, NULL, NULL), 0);
    bx_msg_destroy(args);
    HARNESS_EQ(read_through(rref), 0);
    bx_rref_release(rref);
    return rc;
}

static void passing_victim(struct bx_job *job)
{
    take_aim(target, (uint32_t)harness_load(STEP_COUNT), SIGKILL);
    for (int round = 0; round < ROUNDS; round++)
        HARNESS_EQ(pass_around(job, "worker0", "worker2", "worker3"), 0);
    harness_failed(__FILE__, __LINE__, "step %s was not reached %d times", aim.step,
                   (int)harness_load(STEP_COUNT));
}

static void passing_survivor(struct bx_job *job)
{
    const char *next = next_survivor(job);
    int rc;

    do
        rc = pass_around(job, next, "worker1", next);
    while (rc == 0);
    HARNESS_EQ(rc, BX_E_PEER_DEAD);
    harness_post(PASSED_ALL);
    harness_await(PASSED_ALL, 3);
    while (harness_load(MADE) != harness_load(DESTROYED))
        HARNESS_EQ(harness_call_i64(job, next, "echo", 1), 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

static const struct roles passing = { setup_passing, passing_victim, passing_survivor, NULL };

#endif
