/* SPDX-License-Identifier: MIT */
/*
 * Workers that serve, members of a batch, and the end of a job beside threads that use it.
 *
 * Truth: bx_job_serve returns 0 only if a worker begins its shutdown or no other is left, and reports a death once; a
 * batch waits for no member that is dead; one of two shutdowns is refused; a pending future fails with the job, and
 * may be read and released behind it; a function is found once it is registered.
 */
#include "room_job.h"

#include "boxcar.h"

/* ---- serve: one worker calls, the others serve; one may die -------------------------------------------- */

static int round_body(struct bx_batch *batch, void *context)
{
    (void)context;
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        bx_batch_reply_i64(batch, row, 2 * bx_read_i64(&args));
    }
    return 0;
}

static void heard(struct bx_job *job, int rank, void *context)
{
    (void)context;
    if (sim_words_are_lost())
        return;
    if (sim_deaths(rank) == 0)
        sim_fail("rank %d hears that rank %d has died", bx_job_rank(job), rank);
    sim_count(HEARD_0 + (unsigned)bx_job_rank(job), 1);
    if (sim_truth(HEARD_0 + (unsigned)bx_job_rank(job)) > (uint64_t)sim_deaths(-1))
        sim_fail("rank %d hears twice of a death", bx_job_rank(job));
}

static void add_round(struct bx_job *job)
{
    SIM_AGAIN(job, "bx_on_death", bx_on_death(job, heard, NULL));
    SIM_AGAIN(job, "bx_register_batch", bx_register_batch(job, "round", round_body, NULL, NULL));
    if (bx_job_rank(job) == 0 && sim_deaths(-1) == 0)
        for (int rank = 1; rank < bx_job_world_size(job); rank++)
            SIM_AGAIN(job, "bx_batch_add_member", bx_batch_add_member(job, "round", rank));
}

/* A member makes some calls, then it leaves the batch. */
static void take_part(struct bx_job *job)
{
    uint32_t rounds = sim_choose(3);

    if (sim_deaths((int)bx_job_rank(job)) > 0)
        sim_must(job, "bx_batch_join", bx_batch_join(job, "worker0", "round"));
    for (uint32_t i = 0; i < rounds; i++) {
        struct bx_msg *args = sim_msg(), *reply = NULL;

        bx_msg_put_i64(args, i);
        sim_must(job, "bx_rpc_sync", bx_rpc_sync(job, "worker0", "round", args, NULL, &reply));
        bx_msg_destroy(args);
        if (reply != NULL)
            sim_expect(reply, i);
        bx_msg_destroy(reply);
    }
    SIM_AGAIN(job, "bx_batch_leave", bx_batch_leave(job, "worker0", "round"));
}

static void serve(struct bx_job *job)
{
    uint64_t reported = 0;

    for (;;) {
        uint64_t deaths = 0;
        int rc = bx_job_serve(job);

        if (rc == BX_E_PEER_DEAD) {
            bx_counter(job, "peers_dead", &deaths);
            if (++reported > deaths || (deaths > (uint64_t)sim_deaths(-1) && !sim_words_are_lost()))
                sim_fail("bx_job_serve reports %llu deaths, peers_dead is %llu, there were %d",
                         (unsigned long long)reported, (unsigned long long)deaths, sim_deaths(-1));
            if (sim_is_gone(0))
                return;
            continue;
        }
        sim_must(job, "bx_job_serve", rc);
        if (sim_truth(LEAVERS) + sim_truth(BEGINNING) == 0 &&
            (reported == 0 || sim_deaths(-1) + 1 < bx_job_world_size(job)))
            sim_fail("bx_job_serve returns, and nobody leaves");
        return;
    }
}

void sim_room_serve(int worker)
{
    struct bx_job *job;

    if (sim_truth(SIZE) == 0)
        sim_count(SIZE, 2 + sim_choose(2));
    if (worker >= (int)sim_truth(SIZE))
        return;
    job = sim_job_begin(worker, (int)sim_truth(SIZE), add_round);
    if (job == NULL)
        return;
    sim_count(STARTED, 1);
    if (sim_truth(STARTED) == sim_truth(SIZE) && sim_choose(2) == 0) {
        int rank = (int)sim_choose((uint32_t)sim_truth(SIZE));

        /* The caller does not come back: the others would serve for ever if it failed to. */
        (rank > 0 ? sim_job_kill : sim_kill_later)(rank, sim_choose(UINT32_C(1) << (4 + sim_choose(12))));
    }
    if (worker > 0) {
        take_part(job);
        serve(job);
    } else {
        sim_call_some(job);
        for (int rank = 1; rank < (int)sim_truth(SIZE) && sim_choose(2) == 0; rank++)
            sim_await_decision(rank);           /* one that died may come back */
        sim_call_some(job);
    }
    sim_count(LEAVERS, 1);
    if (!sim_leave_alone(job))
        sim_job_end(job, -1);
}

/* ---- leave: nothing but a start and an end --------------------------------------------------------------- */

void sim_room_leave(int worker)
{
    struct bx_job *job;

    if (sim_truth(SIZE) == 0)
        sim_count(SIZE, 2 + sim_choose(2));
    if (worker >= (int)sim_truth(SIZE))
        return;
    job = sim_job_begin(worker, (int)sim_truth(SIZE), NULL);
    if (job == NULL)
        return;
    sim_count(STARTED, 1);
    if (sim_truth(STARTED) == sim_truth(SIZE) && sim_choose(3) == 0) {
        int rank = (int)sim_choose((uint32_t)sim_truth(SIZE));

        (rank > 0 ? sim_job_kill : sim_kill_later)(rank, sim_choose(UINT32_C(1) << (2 + sim_choose(11))));
    }
    if (worker > 0 && sim_choose(2) == 0)
        serve(job);
    sim_count(LEAVERS, 1);
    if (!sim_leave_alone(job))
        sim_job_end(job, -1);
}

/* ---- end: threads use the job while another one ends it ------------------------------------------------- */

static void *add_fresh(void *job)
{
    SIM_AGAIN(job, "bx_register", bx_register(job, "fresh", BX_INLINE, sim_double, NULL));
    sim_yield();                        /* its stores are visible: the truth orders nothing */
    sim_count(FRESH_0 + (unsigned)bx_job_rank(job), 1);
    return NULL;
}

static void spawn_registrar(struct bx_job *job)
{
    sim_registrar = sim_spawn("registrar", add_fresh, job);
}

static void call_fresh(struct bx_job *job)
{
    int to = 1 - bx_job_rank(job);
    /* Another host hears of it later. */
    bool is_there = sim_truth(FRESH_0 + (unsigned)to) > 0 && sim_host_of(to) == sim_host_of(bx_job_rank(job));
    int rc = bx_rpc_sync(job, sim_names[to], "fresh", NULL, NULL, NULL);

    if (rc != BX_E_SHORT_MESSAGE && rc != BX_E_SHUTDOWN && rc != 0 && !sim_is_allowed(rc) &&
        (is_there || rc != BX_E_NO_FUNCTION))
        sim_fail("a call of a function that is %s returns %d: %s", is_there ? "registered" : "new", rc,
                 bx_error_text());
}

/* Groups of calls until they are refused. What was taken has its answer. */
static void *groups_to_the_end(void *argument)
{
    struct bx_job *job = argument;
    int to = 1 - bx_job_rank(job), rc = 0;

    call_fresh(job);
    for (int groups = 0; rc == 0 && groups < 30; groups++) {       /* the shutdown waits until no call is open */
        struct bx_future *futures[3] = { NULL };

        rc = bx_rpc_many(job, sim_names[to], "fresh", 3, NULL, NULL, futures);
        for (int i = 0; i < 3; i++) {
            int ended = futures[i] != NULL ? bx_future_wait(futures[i], BX_FOREVER) : 0;

            if (ended != 0 && ended != BX_E_SHORT_MESSAGE && ended != BX_E_SHUTDOWN && !sim_is_allowed(ended))
                sim_fail("a call of a group ends with %d", ended);
            bx_future_release(futures[i]);
        }
    }
    if (rc != 0 && rc != BX_E_SHUTDOWN && rc != BX_E_NO_FUNCTION)
        sim_must(job, "bx_rpc_many", rc);
    return NULL;
}

static void *close_too(void *job)
{
    int rc = bx_job_shutdown(job, 0);

    if (rc != 0 && rc != BX_E_STATE && rc != BX_E_SHUTDOWN)
        sim_must(job, "bx_job_shutdown", rc);
    return NULL;
}

/* Both may be the last one that releases it. */
static void *release(void *future)
{
    bx_future_release(future);
    return NULL;
}

static void fails(struct bx_future *future, void *context)
{
    (void)context;
    sim_count(CALLBACKS, -1);
    if (bx_future_error(future) != BX_E_SHUTDOWN)
        sim_fail("a pending future ends with %d", bx_future_error(future));
}

/* Two threads shut the job down, or one: the other one's result is not known here. */
static void shut_down(struct bx_job *job)
{
    int closer = sim_choose(3) == 0 ? sim_spawn("closer", close_too, job) : -1;

    if (closer < 0) {
        sim_must(job, "bx_job_shutdown", bx_job_shutdown(job, 0));
        return;
    }
    close_too(job);
    sim_join(closer);
}

void sim_room_end(int worker)
{
    struct bx_job *job = sim_job_begin(worker, 2, sim_choose(2) == 0 ? spawn_registrar : NULL);
    int others = sim_choose(2) == 0 ? sim_spawn("groups", groups_to_the_end, job) : -1, releaser;
    struct bx_future *pending = sim_future(job), *call = NULL;
    uint64_t rescued = 1;

    if (sim_registrar < 0)
        add_fresh(job);
    if (sim_choose(2) == 0)
        call_fresh(job);
    sim_count(CALLBACKS, 1);
    SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(pending, fails, NULL));
    sim_must(job, "bx_rpc_async", bx_rpc_async(job, sim_names[1 - worker], "inline", NULL, NULL, &call));
    sim_count(SENT_TO_0 + 1 - (unsigned)worker, 1);
    if (sim_registrar >= 0)
        sim_join(sim_registrar);
    releaser = sim_spawn("releaser", release, bx_future_acquire(call));
    shut_down(job);
    sim_count(STOPPED_0 + (unsigned)worker, 1);
    if (others >= 0)
        sim_join(others);
    bx_counter(job, "rescued", &rescued);
    if (rescued != 0)
        sim_fail("rescued %llu at rank %d", (unsigned long long)rescued, worker);
    bx_future_release(call);
    bx_job_destroy(job);
    if (bx_future_error(pending) != BX_E_SHUTDOWN || bx_future_set(pending, NULL) != -EALREADY)
        sim_fail("a future that was pending has not ended with its job: %d", bx_future_error(pending));
    bx_future_release(pending);
    sim_join(releaser);
}
