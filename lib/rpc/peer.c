/* SPDX-License-Identifier: MIT */
/*
 * The structs of peers: made at the start, and for a process that joins; and what lend asks of them. out.c has the way
 * of frames to a peer, watch.c what happens to it.
 */
#include "rpc.h"

#include <errno.h>
#include <stdlib.h>

int bxi_peer_suspect(struct bx_job *job, struct bxi_peer *peer, const char *what)
{
    uint32_t none = 0;

    bxi_cas(&peer->death_seen, &none, BXI_PEER_CORRUPT);
    bxi_event(job->run, BXI_EVENT_DEATH);
    return bx_fail(BX_E_CORRUPT, "worker '%s' (rank %d) was cut off: %s", peer->name, peer->rank, what);
}

static void suspect(struct bx_job *job, int rank, const char *what)
{
    bxi_peer_suspect(job, job->rpc->peers[rank], what);
}

/* A peer waits for leases, and what was just given back may be what it waits for. */
static void ring(struct bx_job *job, int rank)
{
    if (rank == job->rank) {
        bxi_event(job->run, BXI_EVENT_SCAN);
        return;
    }
    bxi_lock(&job->run->lock);
    bxi_fence_seq_cst();            /* [bell.armed] as in bxi_bells_flush */
    bxi_bell_ring_sleeper(job, job->rpc->peers[rank]);
    bxi_unlock(&job->run->lock);
}

static void look_for_joiner(struct bx_job *job, int rank)
{
    bxi_lock(&job->run->lock);
    bxi_join_promote(job, rank);
    bxi_unlock(&job->run->lock);
}

static void passed_ended(struct bx_job *job)
{
    bxi_event(job->run, BXI_EVENT_PASSED);
}

static int process_fd(struct bx_job *job, int rank)
{
    return job->rpc->peers[rank]->pidfd;
}

struct whole_peer {
    struct bxi_peer peer;       /* first */
    struct bxi_lend_peer lend;
};

static void init_peer(struct whole_peer *whole, int rank)
{
    memset(whole, 0, sizeof *whole);
    whole->peer.lend = &whole->lend;
    whole->lend = (struct bxi_lend_peer){ .rank = rank, .name = whole->peer.name, .view = &whole->peer.view };
}

void bxi_peer_init(struct bx_job *job, int rank)
{
    init_peer((struct whole_peer *)(void *)job->rpc->peers[rank], rank);
}

/* A thread may have found it when it was the rank's before, and wait for the lock: it reads a state. */
void bxi_peer_renew(struct bxi_peer *peer)
{
    struct whole_peer *whole = (struct whole_peer *)(void *)peer;
    struct bxi_function_cache *functions = peer->functions;
    struct bxi_hist **hists = peer->hists;
    struct bxi_slot *slots = peer->slots;
    const size_t kept = offsetof(struct bxi_peer, lend) + sizeof peer->lend;

    memset((unsigned char *)whole + kept, 0, sizeof *whole - kept);
    whole->lend = (struct bxi_lend_peer){ .rank = peer->rank, .name = peer->name, .view = &peer->view };
    peer->slots = slots;
    peer->hists = hists;
    peer->functions = functions;
    if (hists != NULL)
        memset(hists, 0, BXI_FUNCTION_MAX * sizeof *hists);
    if (functions != NULL)
        bxi_functions_clear(functions);
}

struct bxi_peer *bxi_peer_former(const struct bxi_peer *peer)
{
    struct bxi_lend_peer *former = peer->lend->former;

    return former == NULL ? NULL : &((struct whole_peer *)(void *)((char *)former - offsetof(struct whole_peer,
                                                                                            lend)))->peer;
}

struct bxi_peer *bxi_peer_create(int rank)
{
    struct whole_peer *whole = aligned_alloc(BXI_LINE, (sizeof *whole + BXI_LINE - 1) / BXI_LINE * BXI_LINE);

    if (whole == NULL)
        return NULL;
    init_peer(whole, rank);
    return &whole->peer;
}

static int make_peer(struct bx_job *job, int rank)
{
    struct bxi_peer *peer = bxi_peer_create(rank);

    if (peer == NULL)
        return -ENOMEM;
    job->lend->peers[rank] = peer->lend;
    job->rpc->peers[rank] = peer;
    return 0;
}

int bxi_peers_create(struct bx_job *job)
{
    static const struct bxi_lend_ops operations = { suspect, ring, look_for_joiner, passed_ended, process_fd };

    job->lend->ops = &operations;
    job->rpc->peers = calloc((size_t)job->world_size, sizeof *job->rpc->peers);
    if (job->rpc->peers != NULL)    /* free_job: where these are, those are */
        job->lend->peers = calloc((size_t)job->world_size, sizeof *job->lend->peers);
    for (int rank = 0; rank < job->world_size; rank++)
        if (job->lend->peers == NULL || make_peer(job, rank) < 0)
            return bx_fail(-ENOMEM, "no memory for %d workers", job->world_size);
    job->rrefs->needs = calloc(BXI_ROUND_KINDS, (size_t)job->world_size * (size_t)job->world_size);
    if (job->rrefs->needs == NULL)
        return bx_fail(-ENOMEM, "no memory for %d workers", job->world_size);
    return bxi_spares_create(job);
}
