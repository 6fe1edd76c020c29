/* SPDX-License-Identifier: MIT */
/*
 * What joins the job to run: the sources that its threads drive, what run asks of the job, and the program's own loop.
 * Whoever drives calls these functions; run.h says when.
 */
#include "job.h"

#include "observe/trace.h"

#include <errno.h>

/* ---- what run asks of the job ------------------------------------------------------------------- */

static uint64_t token_of(const struct bxi_peer *peer)
{
    return (uint64_t)peer->rank | (uint64_t)peer->generation << BXI_RANK_BITS;
}

/* The pidfd of a worker that was there when progress began: it died. With own_loop two threads may be told: the later
 * one is not to take the successor for dead. */
static void see_death(void *context, uint64_t token)
{
    struct bx_job *job = context;
    struct bxi_peer *peer = job->rpc->peers[token & BXI_RANK_MASK];

    if (token_of(peer) != token)
        return;
    /* Over a suspicion too: a worker that was cut off leaves its name behind when it dies. */
    bxi_exchange(&peer->death_seen, BXI_PEER_DEAD);
    bxi_note(job->run, BXI_EVENT_DEATH);
}

static void name_thread(void *context)
{
    (void)context;
    bxi_trace_thread("background");
}

static void call(void *context)
{
    bxi_pool_call(context);
}

/* Are more workers awake, or have just been rung, than there are CPUs? Then the worker that is waited for may
 * be the one that cannot run, and a spin yields between its peeks. */
static bool is_crowded(void *context)
{
    struct bx_job *job = context;
    int awake = 1;

    if (bxi_load_relaxed(&job->run->cpus_are_shared) == 0)
        return false;
    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_peer *peer = job->rpc->peers[rank];
        /* Relaxed: a guess is enough. */
        uint64_t word = rank != job->rank ? bxi_load_relaxed(peer->bell.word) : 0;

        awake += rank != job->rank && !peer->is_remote && bxi_load_relaxed(&peer->state) == BXI_PEER_ALIVE &&
                 ((word & 3) == BXI_AWAKE || word == bxi_load_relaxed((bxi_a64 *)&peer->bell.rang_for));
    }
    return awake > job->run->cpus;
}

static void wait_lasts(void *context, struct bxi_waiter *waiter)
{
    bxi_wait_show(context, &waiter->shown);
}

static void wait_begins(void *context, struct bxi_waiter *waiter)
{
    if (bxi_pool_block())
        bxi_wait_show(context, &waiter->shown);     /* at once: a caller waits for the handler that waits here */
}

static void wait_ends(void *context, struct bxi_waiter *waiter)
{
    bxi_pool_unblock();
    if (waiter->shown.row != 0)
        bxi_wait_hide(context, &waiter->shown);
}

static void before_sleep(void *context)
{
    bxi_trace_sleeps(context);
}

static uint64_t sleeps(void *context, enum bxi_sleeps who)
{
    return bxi_trace_sleep(context, who);
}

static void woke(void *context, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung, uint64_t began_ns)
{
    bxi_trace_woke(context, who, by, rung, began_ns);
}

static const struct bxi_host host = {
    .readable = see_death,
    .thread_begins = name_thread,
    .call = call,
    .is_crowded = is_crowded,
    .wait_begins = wait_begins,
    .wait_lasts = wait_lasts,
    .wait_ends = wait_ends,
    .before_sleep = before_sleep,
    .sleeps = sleeps,
    .woke = woke,
};

/* ---- the trace as a source ---------------------------------------------------------------------- */

static int write_trace(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    (void)role, (void)waiter;
    bxi_trace_passed(context);
    return 0;
}

static const struct bxi_source_ops trace_source = { .pass = write_trace };

/* ---- what rpc asks of the job -------------------------------------------------------------------- */

/* A worker died: its segment and arena; of rank 0 its socket and lock file too. Role. */
static void remove_names(struct bx_job *job, int rank)
{
    if (!bxi_net_is_here(job, rank))
        return;
    bxi_net_tell_death(job, rank);
    bxi_boot_unlink_dead(job, rank);
    if (rank == job->root)
        bxi_bootstrap_sweep(job->job_name);
}

/* ---- life --------------------------------------------------------------------------------------- */

void bxi_drive_init(struct bx_job *job)
{
    const struct bxi_run_setup setup = {
        .host = &host,
        .system = &bxi_real_system,
        .context = job,
        .name = job->name,
        .spin_ns = job->options.no_spin ? 0 : job->options.spin_ns,
        .counters = job->counters,
    };

    job->rpc->remove_names = remove_names;
    job->lend->make_arena = bxi_boot_early_arena;
    job->rrefs->ops = &bxi_rref_ops;
    bxi_run_init(job->run, &setup);
    bxi_lock(&job->run->lock);
    bxi_run_add(job->run, &bxi_rpc_source, job);
    bxi_unlock(&job->run->lock);
}

int bxi_drive_start(struct bx_job *job)
{
    job->rpc->peers[job->rank]->bell = (struct bxi_bell_peer){
        &job->control->header.armed, { job->run->bell_fd[0], job->run->bell_fd[1] }, 0
    };
    bxi_lock(&job->run->lock);
    if (bxi_trace_is_on(job))
        bxi_run_add(job->run, &trace_source, job);
    bxi_unlock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++)
        if (rank != job->rank && job->rpc->peers[rank]->pidfd > 0)       /* else it was dead before this worker came */
            bxi_run_watch(job->run, job->rpc->peers[rank]->pidfd, token_of(job->rpc->peers[rank]));
    bxi_net_start(job);

    int rc = bxi_progress_start(job->run, job->options.own_loop);

    return rc < 0 ? rc : bxi_door_start(job);
}

/* ---- the program's own loop --------------------------------------------------------------------- */

int bx_job_fd(const struct bx_job *job)
{
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    return job->run->loop_fd >= 0 ? job->run->loop_fd
                             : bx_fail(BX_E_STATE, "bx_job_fd is for a started job with own_loop set");
}

int bx_progress(struct bx_job *job)
{
    int rc = bxi_job_check(job);

    return rc < 0 ? rc : bxi_out(bxi_run_once(job->run));
}

/* ---- interrupting waits (also a signal handler) -------------------------------------------------- */

void bx_job_interrupt(struct bx_job *job, bool on)
{
    int error = errno;              /* of the program, which a signal handler must not change */

    if (job == NULL || bxi_job_is_forked(job))
        return;
    bxi_run_interrupt(job->run, on);
    if (on && job->options.own_loop)
        bxi_bell_ring(job->run->bell_fd[0]);
    errno = error;
}
