/* SPDX-License-Identifier: MIT */
/*
 * A job's life in this process: creation, start, destruction. The phases only go forward: CREATED, STARTED, STOPPING,
 * STOPPED. Runs on the program's threads.
 */
#include "job.h"

#include "shm/cancel.h"
#include "shm/step.h"
#include "rpc/mark.h"
#include "rpc/packed.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static bxi_a64 jobs_made;

void bxi_job_link(struct bxi_whole_job *whole)
{
    whole->job.run = &whole->run;
    whole->job.rpc = &whole->rpc;
    whole->job.rrefs = &whole->rrefs;
    whole->job.lend = &whole->lend;
    whole->job.device = &whole->device;
    whole->job.observe = &whole->observe;
    whole->job.boot = &whole->boot;
}

static void init_locks(struct bx_job *job)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&job->rpc->pool.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&job->rpc->pool.cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void free_peer(struct bx_job *job, struct bxi_peer *peer)
{
    bxi_peer_drop_queue(job, peer);
    bxi_grants_destroy(peer->lend);
    if (peer->lend->arena != NULL)
        bxi_arena_view_release(peer->lend->arena);
    if (peer->view.control != NULL)
        bxi_segment_detach(&peer->view);
    for (int i = 0; i < 2 && peer->rank != job->rank && !peer->is_remote; i++)     /* their bells are the own ones */
        if (peer->bell.fd[i] > 0)
            close(peer->bell.fd[i]);
    if (peer->pidfd > 0)
        close(peer->pidfd);
    free(peer->loop);
    free(peer->lend->loop_words);
    free(peer->slots);
    free(peer->functions);
    free(peer->hists);
    if (!peer->view.stays)              /* else a thread in a call on device memory may still read it */
        free(peer);
}

/* With the former ones, or the spare ones, that are linked to it. */
static void free_peers(struct bx_job *job, struct bxi_peer *peer)
{
    while (peer != NULL) {
        struct bxi_peer *former = bxi_peer_former(peer);

        free_peer(job, peer);
        peer = former;
    }
}

/* Before what is on loan to others is dropped: a loan that was passed on ends with this process, for others may still
 * read it. */
static void close_returns(struct bx_job *job)
{
    for (int rank = 0; job->lend->peers != NULL && rank < job->world_size; rank++)
        for (struct bxi_lend_peer *peer = job->lend->peers[rank]; peer != NULL; peer = peer->former)
            bxi_returns_close(peer);
}

static void free_job(struct bx_job *job)
{
    bxi_bootstrap_release(job);
    if (job->instance != 0)
        bxi_boot_clear_dead(job);       /* workers that died after this one had left */
    if (job->instance != 0 && job->options.rejoin)
        bxi_bootstrap_sweep(job->job_name);     /* and the joiners' lock file: one that died in a join held it */
    bxi_spawn_forget(job);
    bxi_trace_destroy(job);

    if (job->boot->pidfd >= 0)
        close(job->boot->pidfd);
    if (job->boot->alive_fd > 0)
        bxi_unshared_close(job->boot->alive_fd);
    if (job->boot->lock_fd >= 0)        /* bxi_bootstrap_release has found no socket directory */
        bxi_unshared_close(job->boot->lock_fd);
    bxi_batchers_destroy(job);
    bxi_rrefs_destroy(job);
    close_returns(job);
    bxi_devices_destroy(job);
    for (int rank = 0; job->lend->peers != NULL && rank < job->world_size; rank++) {
        /* NULL: no memory for it, bx_job_create fails. */
        free_peers(job, job->rpc->peers[rank]);
        free_peers(job, job->rpc->joins.joining[rank]);
        free_peers(job, job->rpc->joins.spare[rank]);
    }
    if (job->lend->arena != NULL) {
        bxi_arena_close(job->lend->arena);
        bxi_arena_release(job->lend->arena);
    }
    if (job->segment.control != NULL)
        bxi_segment_destroy(&job->segment);
    bxi_net_destroy(job);
    pthread_cond_destroy(&job->rpc->pool.cond);
    pthread_mutex_destroy(&job->rpc->pool.lock);
    bx_msg_destroy(job->rpc->reply);
    free(job->rpc->packed);
    free(job->rpc->frame);
    bxi_run_fini(job->run);
    free(job->lend->peers);
    free(job->rpc->peers);
    free(job->rpc->spares);
    free(job);
}

int bx_job_create(const struct bx_options *options, struct bx_job **out)
{
    BXI_UNCANCELLED;
    struct bxi_whole_job *whole;
    struct bx_job *job;
    int rc;

    if (out == NULL)
        return bxi_null(__func__, "the place for the job");
    whole = aligned_alloc(BXI_LINE, sizeof *whole);
    if (whole == NULL)
        return bx_fail(-ENOMEM, "no memory for a job");
    memset(whole, 0, sizeof *whole);
    bxi_job_link(whole);
    job = &whole->job;
    job->boot->pidfd = job->boot->lock_fd = -1;
    job->counters = job->observe->private_counters;
    bxi_names_clear(job);
    init_locks(job);
    if ((rc = bxi_job_options(job, options)) < 0)
        goto fail;
    job->rank = job->options.rank;
    job->world_size = job->options.world_size;
    job->serial = bxi_add(&jobs_made, 1) + 1;
    bxi_drive_init(job);
    job->fork_generation = bxi_load_relaxed(&bxi_forks);
    for (int row = BXI_SERVING_MAX - 1; row >= 0; row--)
        job->observe->free_rows[job->observe->free_row_count++] = (uint16_t)row;
    job->rpc->frame = aligned_alloc(64, BXI_FRAME_MAX);
    job->rpc->reply = bx_msg_create(BXI_FRAME_MAX);
    job->rpc->packed = bxi_packed_create();
    if (job->rpc->frame == NULL || job->rpc->reply == NULL || job->rpc->packed == NULL)
        rc = bx_fail(-ENOMEM, "no memory for a frame");
    else if ((rc = bxi_peers_create(job)) == 0)
        rc = bxi_machine_raise_limit(job);
    if (rc < 0 || (rc = bxi_machine_descriptors(job)) < 0 || (rc = bxi_machine_sleeper(job)) < 0)
        goto fail;
    bxi_store_relaxed(&job->phase, BXI_CREATED);
    *out = job;
    return 0;

fail:
    free_job(job);
    return rc;
}

int bx_job_start(struct bx_job *job)
{
    BXI_UNCANCELLED;
    uint64_t deadline_ns;
    int rc;

    if (job == NULL || bxi_job_is_forked(job))
        return bxi_job_check(job);
    if (bxi_load_relaxed(&job->phase) != BXI_CREATED)
        return bx_fail(BX_E_STATE, "worker '%s' was started before", job->name);
    deadline_ns = bxi_deadline_ns(job->options.start_timeout_ns);
    if ((rc = bxi_bootstrap(job, deadline_ns)) < 0) {
        bxi_store_relaxed(&job->phase, BXI_STOPPED);
        return rc;
    }
    bxi_spawn_in_job(job, true);
    bxi_names_build(job);
    job->run->cpus = bxi_machine_cpus(job);
    bxi_store_relaxed(&job->run->cpus_are_shared, bxi_net_here(job) > job->run->cpus);
    if (job->rank != job->root || job->rpc->peers[job->root]->generation > 1)
        bxi_trace_start(job, &bxi_names_for_trace, !bxi_spawn_is_worker());
    /* Before progress starts: a handler that it runs may call at once. */
    /* [phase] release, pairs with the acquire in arena_memory: a thread that makes tensors meanwhile sees the arena. */
    bxi_store_release(&job->phase, BXI_STARTED);
    if ((rc = bxi_drive_start(job)) < 0) {
        bxi_job_leave(job);             /* the others have passed the gate, and must see it leave */
        return rc;
    }
    /* [state] release, pairs with the acquire in look_state. */
    bxi_store_release(&job->control->header.state, BXI_RUNNING);
    BXI_STEP("state.running");
    return 0;
}

void bx_job_destroy(struct bx_job *job)
{
    if (job == NULL || bxi_job_is_forked(job))
        return;
    if (!bxi_may_wait() || bxi_pool_owns_thread(job)) {
        bxi_log(job, 0, "bx_job_destroy was called from a handler or a callback of worker '%s': it did nothing, for "
                        "the job is in use", job->name);
        return;
    }

    uint32_t phase = bxi_load_relaxed(&job->phase);
    int cancel_before = bxi_cancel_off();

    bxi_error_enter();
    if (phase == BXI_STARTED || phase == BXI_STOPPING)
        bxi_job_leave(job);
    /* Pending futures would name a job that is gone. Answers that wait for futures of other jobs end too. */
    bxi_futures_end(job);
    for (int rank = 0; rank < job->world_size; rank++)
        bxi_waiting_peer_gone(job, job->rpc->peers[rank], BX_E_SHUTDOWN);
    free_job(job);
    bxi_error_leave();
    bxi_cancel_restore(&cancel_before);
    bxi_out(0);
}
