/* SPDX-License-Identifier: MIT */
/*
 * Serving until the others are done, and leaving together. Runs on the program's threads.
 *
 * A worker stores LEAVING when its own calls are done and its handlers have answered, and serves on. From then on the
 * role looks whether the job is over: whether anything runs or is under way anywhere (rpc/ending.c). Then it leaves,
 * and stores LEFT. After each store it rings the background eventfd of every peer, except for LEFT when the job is
 * over: the others find that out by themselves. A worker that is killed on the way is counted as gone. A worker that
 * does not come is named when the time is over.
 *
 * From STOPPING on no joiner is attached (rpc/join.c): those that are there when the shutdown begins leave together. A
 * joiner that was attached before and does not run yet is one of them: it runs, and its program has to shut down too,
 * or it gives up, because another worker refused it or it was killed. STOPPING is stored under the lock, and a joiner
 * takes its place under the lock.
 */
#include "job.h"
#include "run/run.h"
#include "observe/trace.h"

#include "shm/cancel.h"
#include "shm/step.h"

#include <sys/mman.h>

#define SHUTDOWN_NS (UINT64_C(30) * 1000000000)

struct job_waiter {
    struct bxi_waiter waiter;   /* first */
    struct bx_job *job;
    bool others_leave;          /* serve_ready has seen that. Lock */
};

static struct bx_job *job_of(struct bxi_waiter *waiter)
{
    return ((struct job_waiter *)(void *)waiter)->job;
}

/* ---- serving ----------------------------------------------------------------------------------- */

/* Lock, as others_leave and next_death: threads that serve at once report each death once, and a worker that comes back
 * takes leavers and lost down (join.c). */
static bool has_death(const struct bx_job *job)
{
    /* [deaths] sequentially consistent, pairs with the additions in watch.c: read after the waiter has been counted. */
    return bxi_load_seq_cst(&job->rpc->deaths) > job->boot->deaths_reported;
}

static bool others_leave(const struct bx_job *job)
{
    /* Leavers are read before lost, and lost is counted first: a loss between the two loads is not taken for leaving.
     * */
    uint32_t leavers = bxi_load_seq_cst(&job->rpc->leavers), lost = bxi_load_seq_cst(&job->rpc->lost);

    return leavers > lost || lost == (uint32_t)job->world_size - 1;
}

static bool serve_ready(struct bxi_waiter *waiter)
{
    struct job_waiter *server = (struct job_waiter *)(void *)waiter;
    struct bx_job *job = server->job;
    bool ready;

    bxi_lock(&job->run->lock);
    server->others_leave = others_leave(job);
    ready = has_death(job) || server->others_leave;
    bxi_unlock(&job->run->lock);
    return ready;
}

static int wait_passive(struct bx_job *job, bool (*ready)(struct bxi_waiter *), const void *object,
                        uint64_t deadline_ns)
{
    struct job_waiter waiter = {
        .waiter = { .ready = ready, .object = object, .deadline_ns = deadline_ns, .passive = true,
                    .lasts = true },
        .job = job,
    };

    return bxi_wait(job->run, &waiter.waiter);
}

/* The next that died. Those that were never reported fall out when BXI_WORKERS_MAX newer ones have come. */
static const struct bxi_dead *next_death(struct bx_job *job)
{
    uint32_t deaths = bxi_load_seq_cst(&job->rpc->deaths), *reported = &job->boot->deaths_reported;

    if (deaths - *reported > BXI_WORKERS_MAX)
        *reported = deaths - BXI_WORKERS_MAX;
    return &job->rpc->dead[(*reported)++ % BXI_WORKERS_MAX];
}

int bx_job_serve(struct bx_job *job)
{
    struct bxi_dead dead;
    bool died, leave;
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    do {
        struct job_waiter server = {
            .waiter = { .ready = serve_ready, .object = &job->rpc->leavers, .deadline_ns = BX_FOREVER,
                        .passive = true },
            .job = job,
        };

        rc = bxi_out(bxi_wait(job->run, &server.waiter));
        if (rc == BX_E_SHUTDOWN)
            return bx_fail(rc, "worker '%s' has shut down", job->name);
        if (rc == BX_E_INTERRUPTED)
            return bx_fail(rc, "bx_job_interrupt ended bx_job_serve of worker '%s'", job->name);
        if (rc < 0)
            return bx_fail(rc, "bx_job_serve waits and cannot be called from a handler or a callback");
        bxi_lock(&job->run->lock);
        died = has_death(job);
        leave = server.others_leave;
        if (died)
            dead = *next_death(job);
        bxi_unlock(&job->run->lock);
    } while (!died && !leave);          /* another thread has reported that death */
    if (!died)
        return 0;
    return bx_fail(dead.code, "worker '%s' (rank %d, pid %u)%s %s", dead.peer->name, dead.peer->rank, dead.pid,
                   dead.peer->on_host, dead.code == BX_E_PEER_DEAD ? "died" : bxi_why_cut_off(dead.peer));
}

/* ---- leaving ----------------------------------------------------------------------------------- */

static bool is_quiet(struct bxi_waiter *waiter)
{
    struct bx_job *job = job_of(waiter);
    bool quiet;

    bxi_lock(&job->run->lock);
    quiet = bxi_is_quiet(job);
    bxi_unlock(&job->run->lock);
    return quiet;
}

static bool is_over(struct bxi_waiter *waiter)
{
    return bxi_load_seq_cst(&job_of(waiter)->rpc->ending.over) != 0;
}

static int name_the_late(struct bx_job *job, uint64_t timeout_ns)
{
    const struct bxi_peer *late = NULL;

    bxi_lock(&job->run->lock);
    for (int rank = 0; late == NULL && rank < job->world_size; rank++)
        late = bxi_ending_late(job, rank);
    bxi_unlock(&job->run->lock);
    if (late != NULL)
        return bx_fail(BX_E_TIMEOUT, "worker '%s' (rank %d, pid %u) did not come to the shutdown within %.3f s",
                       late->name, late->rank, late->pid, (double)timeout_ns / 1e9);
    return bx_fail(BX_E_TIMEOUT, "the shutdown was not done within %.3f s", (double)timeout_ns / 1e9);
}

static int leave_together(struct bx_job *job, uint64_t deadline_ns, uint64_t timeout_ns)
{
    struct bxi_ending *ending = &job->rpc->ending;
    int rc;

    /* [quiet] sequentially consistent, pairs with the load in bxi_quiet_changed. */
    bxi_add_seq_cst(&ending->waited, 1);
    bxi_more_eager(job->run);
    rc = wait_passive(job, is_quiet, ending, deadline_ns);
    if (rc == BX_E_TIMEOUT) {
        bx_fail(rc, "worker '%s' still had calls in flight or handlers at work after %.3f s", job->name,
                (double)timeout_ns / 1e9);
    } else {
        bxi_ending_begin(job);
        rc = wait_passive(job, is_over, ending, deadline_ns);
        if (rc < 0)
            rc = name_the_late(job, timeout_ns);
    }
    bxi_less_eager(job->run);
    bxi_add_seq_cst(&ending->waited, (uint32_t)-1);
    return rc;
}

void bxi_job_leave(struct bx_job *job)
{
    bool together = bxi_load_seq_cst(&job->rpc->ending.over) != 0;
    const struct bxi_role *role;

    bxi_door_stop(job);
    bxi_lock(&job->run->lock);      /* what was sent before is in a ring; nothing is sent behind it */
    bxi_store_relaxed(&job->phase, BXI_STOPPED);    /* relaxed: any recent value will do for bxi_job_check */
    bxi_unlock(&job->run->lock);
    /* [state] release, pairs with the acquire in look_state. */
    bxi_store_release(&job->control->header.state, BXI_LEFT);
    BXI_STEP("state.left");
    bxi_spawn_in_job(job, false);
    if (!together)
        bxi_ring_all(job);
    for (int rank = 0; rank < job->world_size; rank++)
        bxi_calls_fail(job, job->rpc->peers[rank], BX_E_SHUTDOWN, BX_FOREVER);
    if (!together)
        bxi_net_tell_left(job);     /* the pool may have to wait for a handler */
    bxi_waits_stop(job->run);
    bxi_pool_stop(job);
    bxi_progress_stop(job->run);
    role = bxi_role_end(job->run);
    bxi_net_stop(role, job);
    bxi_grants_reclaim(job);        /* what has come back and was passed on goes back */
    bxi_devices_close(job);
    bxi_frames_unread(role, job);
    bxi_rrefs_end(job);
    bxi_trace_close(job);
    bxi_forget_role();
    BXI_STEP("state.stopped");
    shm_unlink(job->segment.shm_name);
    BXI_STEP("segment.unlinked");
    bxi_arena_close(job->lend->arena);
    BXI_STEP("arena.unlinked");
    if (job->net != NULL && job->rank == job->root)
        /* What an earlier job of this name left that died here to the last worker: no bx_spawn is here to remove it.
         * The job's lock is held still, so no other one of this name has begun. */
        bxi_object_reap(job->job_name, 0);
    bxi_bootstrap_release(job);
    bxi_boot_clear_dead(job);
    if (job->options.rejoin) {
        /* What joiners left that died before anybody had attached them; the lock file of a rank 0 that was dead before
         * this worker came. */
        bxi_object_reap(job->job_name, job->instance);
        bxi_bootstrap_sweep(job->job_name);
    }
}

int bx_job_shutdown(struct bx_job *job, uint64_t timeout_ns)
{
    int rc = bxi_job_check(job), cancel_before;
    bool mine;

    if (rc < 0)
        return rc;
    /* A blocking handler may wait, but not for its own answer or its own thread. */
    if (!bxi_may_wait() || bxi_pool_owns_thread(job))
        return bx_fail(BX_E_WOULD_DEADLOCK, "bx_job_shutdown waits for all handlers and cannot be called from a "
                                            "handler or a callback");
    if (timeout_ns == 0)
        timeout_ns = SHUTDOWN_NS;
    bxi_lock(&job->run->lock);
    /* Relaxed, both: a joiner takes its place under the lock (join.c), and so does a second shutdown. */
    mine = bxi_load_relaxed(&job->phase) == BXI_STARTED;
    if (mine)
        bxi_store_relaxed(&job->phase, BXI_STOPPING);
    bxi_unlock(&job->run->lock);
    if (!mine)
        return bx_fail(BX_E_STATE, "another thread shuts worker '%s' down already", job->name);
    cancel_before = bxi_cancel_off();
    rc = leave_together(job, bxi_deadline_ns(timeout_ns), timeout_ns);
    bxi_error_enter();
    bxi_job_leave(job);
    bxi_error_leave();
    bxi_cancel_restore(&cancel_before);
    return bxi_out(rc);
}
