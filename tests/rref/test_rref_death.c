/* SPDX-License-Identifier: MIT */
/*
 * Workers that die with references: what they held is dropped, what they passed on is not, and what they owned fails.
 * Who else dies between two frames is the simulator's (rrefs, late). MADE and DESTROYED say when an object is
 * destroyed; a use after that is found by its value. SIGSTOP holds a worker where nothing else can: between a message
 * and its reading.
 */
#include "rref_fixture.h"

TestSuite(rref_death, .timeout = 60);

enum { CALLERS = 20 };                          /* values */
enum { HELD = 8, SENT, REPLIED, KILLED, USED };        /* gates */

static void await_death(struct bx_job *job, int rank)
{
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, rank));
}

/* It stays alive for a while: nothing is on its way that would destroy it. */
static void stays(int64_t count)
{
    for (int i = 0; i < 100; i++) {
        HARNESS_EQ(alive(), count);
        usleep(200);
    }
}

static void nothing_is_left(const struct bx_job *job)
{
    await_alive(0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* ---- A holder dies ---------------------------------------------------------------------------------------- */

static void holder_dies(struct bx_job *job)
{
    struct bx_rref *rref = own_counter(job, 1);

    give(job, "worker1", rref, true);
    HARNESS_EQ(use_of(job, "worker1"), 2);
    HARNESS_EQ(alive(), 1);
    harness_signal(1, SIGKILL);
    nothing_is_left(job);
}

Test(rref_death, of_a_holder_destroys_the_object)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .dies = 1u << 1,
                                         .body = { holder_dies, NULL, harness_serve } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .dies = 1u << 1,
                                         .body = { holder_dies } });
}

HARNESS_HANDLER(reply_kept)
{
    harness_post(REPLIED);          /* the reply is sent before the next request is read */
    return bx_msg_put_rref(reply, kept_rref);
}

HARNESS_HANDLER(die)
{
    raise(SIGKILL);
    return 0;
}

/* worker2 is stopped while worker1 passes it the reference in a reply, and dies: replies of the dead are read. */
static void asks_for_it(struct bx_job *job)
{
    struct bx_future *future = NULL;

    harness_await(HELD, 1);
    future = harness_async(job, "worker1", "reply_kept");
    harness_post(SENT);
    harness_await(KILLED, 1);
    if (bx_future_wait(future, BX_FOREVER) == 0) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(future));
        struct bx_rref *rref = bx_rref_acquire(bx_read_rref(&reader));

        bx_future_release(future);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
        HARNESS_EQ(add_to(rref, 1), 11);
        HARNESS_EQ(alive(), 1);
        bx_rref_release(rref);
        harness_add(CALLERS, 1);
    } else {
        HARNESS_EQ(bx_future_error(future), BX_E_PEER_DEAD);
        bx_future_release(future);
    }
    harness_post(USED);
    harness_serve(job);
}

/* worker1 replies to worker2, which is stopped, with a reference to an object of worker0, and dies. */
static void replies_and_dies(struct bx_job *job)
{
    struct bx_rref *rref = own_counter(job, 10);

    HARNESS_EQ(harness_call(job, "worker2", "new_nothing", NULL), 1);      /* it reads this ring first */
    give(job, "worker1", rref, true);
    harness_stop_worker(1);
    harness_post(HELD);
    harness_await(SENT, 1);
    harness_stop_worker(2);
    harness_signal(1, SIGCONT);
    harness_await(REPLIED, 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "die", NULL, NULL, NULL), BX_E_PEER_DEAD);
    await_death(job, 1);
}

HARNESS_TEST(rref_death, of_the_one_that_replied_with_it_counts_until_the_reply_is_read, 60, .size = 4,
             .setup = setup, .dies = 1u << 1, .body = { NULL, NULL, asks_for_it, harness_serve },
             .handlers = { HARNESS_INLINE("reply_kept", reply_kept), HARNESS_INLINE("die", die) })
{
    replies_and_dies(job);
    stays(1);                       /* worker2 has not answered ASK: what worker1 held still counts */
    harness_post(KILLED);
    harness_signal(2, SIGCONT);
    harness_await(USED, 1);
    nothing_is_left(job);
    HARNESS_EQ(harness_load(CALLERS), 1);
}

/* ---- The owner dies --------------------------------------------------------------------------------------- */

static void each_use_fails(struct bx_rref *rref)
{
    struct bx_msg *args = harness_msg_i64(1), *reply = NULL;
    struct bx_future *future = NULL;
    struct bx_rref *made = NULL;
    void *object = NULL;

    HARNESS_EQ(bx_rref_sync(rref, "add", args, NULL, &reply), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(bx_rref_async(rref, "add", args, NULL, &future), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rref_oneway(rref, "add", args, NULL), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rref_to_here(rref, NULL, &reply), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rref_to_here_async(rref, NULL, &future), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rref_remote(rref, "twin", args, NULL, &made), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rref_local(rref, &counter_type, &object), BX_E_PEER_DEAD);
    HARNESS_CHECK(!bx_rref_is_confirmed(rref) && !bx_rref_is_owner(rref));
    HARNESS_EQ(bx_rref_owner(rref), 1);
    HARNESS_CHECK(reply == NULL && future == NULL && made == NULL && object == NULL);
    bx_msg_destroy(args);
}

static void owner_dies(struct bx_job *job)
{
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 1), *slow = remote(job, "worker1", "new_slow", 2);
    struct bx_future *future = NULL, *value = NULL;
    struct bx_msg *args, *reply = NULL;

    HARNESS_EQ(add_to(rref, 1), 2);
    HARNESS_EQ(bx_rref_async(slow, "add", NULL, NULL, &future), 0);
    HARNESS_EQ(bx_rref_to_here_async(slow, NULL, &value), 0);
    harness_post(HELD);                         /* worker2 kills worker1 while this one waits */
    HARNESS_EQ(bx_rref_wait(slow, BX_FOREVER), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_future_wait(value, BX_FOREVER), BX_E_PEER_DEAD);
    each_use_fails(rref);
    each_use_fails(slow);
    /* It can still be passed on, and fails there too. */
    args = msg_of(rref);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "use", args, NULL, &reply), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "keep", args, NULL, NULL), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "use_kept", NULL, NULL, NULL), BX_E_PEER_DEAD);
    drop_of(job, "worker2");
    bx_msg_destroy(args);
    bx_future_release(future);
    bx_future_release(value);
    bx_rref_release(rref);
    bx_rref_release(slow);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

static void kills_the_owner(struct bx_job *job)
{
    harness_await(HELD, 1);
    usleep(20000);                              /* mostly worker0 sleeps in bx_rref_wait then */
    harness_signal(1, SIGKILL);
    harness_serve(job);
}

static void run_owner_dies(struct bx_options options)
{
    harness_reset();
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .dies = 1u << 1, .options = options,
                                         .body = { owner_dies, NULL, kills_the_owner } });
}

Test(rref_death, of_the_owner_fails_every_use)
{
    run_owner_dies((struct bx_options){ 0 });
    run_owner_dies((struct bx_options){ .no_spin = true });
    run_owner_dies((struct bx_options){ .wait = BX_WAIT_EPOLL, .no_spin = true });
}

/* The owner is stopped when a third worker gets the reference: ENTER is not answered. Then it dies. */
static void enters_in_vain(struct bx_job *job)
{
    harness_await(HELD, 1);
    HARNESS_WAIT_WHILE(__atomic_load_n(&kept_rref, __ATOMIC_ACQUIRE) == NULL);
    HARNESS_CHECK(!bx_rref_is_confirmed(kept_rref));
    HARNESS_EQ(bx_rref_wait(kept_rref, 5 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "'worker1' did not confirm");
    harness_post(SENT);
    HARNESS_EQ(bx_rref_wait(kept_rref, BX_FOREVER), BX_E_PEER_DEAD);
    each_use_fails(kept_rref);
    bx_rref_release(kept_rref);
    harness_serve(job);
}

HARNESS_TEST(rref_death, of_the_owner_ends_the_wait_of_one_that_has_not_been_confirmed, 60, .size = 3,
             .setup = setup, .dies = 1u << 1, .body = { NULL, NULL, enters_in_vain })
{
    struct bx_rref *rref = remote(job, "worker1", "new_counter", 1);

    HARNESS_EQ(add_to(rref, 1), 2);
    harness_stop_worker(1);
    give(job, "worker2", rref, true);
    harness_post(HELD);
    harness_await(SENT, 1);
    harness_signal(1, SIGKILL);
    await_death(job, 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* ---- Stopped workers -------------------------------------------------------------------------------------- */

static void continues_it(struct bx_job *job)
{
    harness_await(SENT, 1);
    usleep(20000);                              /* mostly worker0 waits in the shutdown then */
    harness_signal(1, SIGCONT);
    harness_serve(job);
}

static void finds_none_leaked(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_serve(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(harness_counter(job, "rrefs_leaked"), 0);
    HARNESS_EQ(alive(), 0);
    bx_job_destroy(job);
}

/* More references than the ring to the owner has room for LEAVEs: the rest is queued until it continues. This worker
 * leaves meanwhile: they go out before it is quiet. */
HARNESS_TEST(rref_death, is_not_feared_of_a_stopped_owner_at_the_shutdown, 60, .size = 3, .setup = setup,
             .body = { NULL, finds_none_leaked, continues_it })
{
    enum { MANY = 6000 };
    static struct bx_rref *rref[MANY];

    for (int i = 0; i < MANY; i++)
        rref[i] = remote(job, "worker1", "new_counter", i);
    for (int i = 0; i < MANY; i++)
        HARNESS_EQ(bx_rref_wait(rref[i], BX_FOREVER), 0);
    harness_stop_worker(1);
    for (int i = 0; i < MANY; i++)
        bx_rref_release(rref[i]);
    HARNESS_CHECK(harness_counter(job, "queued_frames") > 0);
    stays(MANY);
    harness_post(SENT);
}
