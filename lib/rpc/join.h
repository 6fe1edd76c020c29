/* SPDX-License-Identifier: MIT */
/*
 * A process that takes the place of a dead worker: what join.c offers to the room job and to watch.c. A part of rpc.h,
 * which includes it.
 */
#ifndef BXI_JOIN_H
#define BXI_JOIN_H

/* The descriptors that a worker gives to another: segment and arena (read-only), two bells, pidfd. Of a worker of
 * another host there is no pidfd (-1). */
enum bxi_boot_fd { BXI_BOOT_SEGMENT, BXI_BOOT_ARENA, BXI_BOOT_BELL, BXI_BOOT_BELL_LEADER, BXI_BOOT_PIDFD,
                   BXI_BOOT_FDS };
struct bxi_join {
    int rank;
    uint32_t generation, pid;
    const char *name;
    const int *fds;             /* BXI_BOOT_FDS */
};
/* Makes the peer of what a process gave about itself, and checks it. Bells and pidfd become the peer's, the others stay
 * the caller's. 0; -EPROTO or another -errno if something is wrong with them; no sentence. Start, the door. */
int bxi_peer_attach(struct bx_job *job, struct bxi_peer *peer, const struct bxi_join *join);
/* Hands a joiner to the role, and waits until it is attached. Bells and pidfd become the peer's on success. *joiner
 * stays until its death is seen, or another is attached in its place. 0; BX_E_RANK_TAKEN: that rank lives;
 * BX_E_SHUTDOWN: this worker's shutdown has begun; as bxi_peer_attach; -ENOMEM. No sentence. The door's thread. */
int bxi_join_attach(struct bx_job *job, const struct bxi_join *join, struct bxi_peer **joiner);
/* No joiner is attached any more: bxi_join_attach returns, with BX_E_SHUTDOWN. The end of the job. */
void bxi_joins_stop(struct bx_job *job);
int bxi_join_generation(const struct bx_job *job, int rank);    /* the highest known; 0: none. Any thread */
void bxi_join_note_generation(struct bx_job *job, int rank, uint32_t generation);   /* it was seen. Start, the role */
/* A worker has, or had, that generation (from 1) of the rank. Of this worker, of one that it has attached, and of one
 * that is absent. Start. */
void bxi_join_set_generation(struct bx_job *job, int rank, uint32_t generation);
uint32_t bxi_join_ran(struct bx_job *job, int rank);            /* the generation of the last that ran; 0: none */
/* A joiner: that rank is dead, and was before this worker came. The generation is of the last that ran. Start. */
void bxi_join_absent(struct bx_job *job, int rank, const char *name, uint32_t generation);
/* One that was attached joins the rank, and runs not yet; it has not given up. Any thread. */
bool bxi_join_waits(const struct bx_job *job, int rank);
/* A call with BX_CALL_WAIT_JOIN: if the worker is dead, waits until its rank is taken again; *peer is then the new one.
 * 0, also if nothing may wait; or a code with its sentence. */
int bxi_join_wait(struct bx_job *job, struct bxi_peer **peer, uint64_t deadline_ns, bool no_wait);
/* One that joins the rank takes its place, and is ALIVE, if its process runs. True if it did. Lock. */
bool bxi_join_promote(struct bx_job *job, int rank);
/* The peer to call: the same, or, if that is closed, the one that has its place by now. */
struct bxi_peer *bxi_join_successor(struct bx_job *job, struct bxi_peer *peer);
static inline struct bxi_peer *bxi_join_latest(struct bx_job *job, struct bxi_peer *peer)
{
    /* Relaxed: it is read again under the lock. */
    return __builtin_expect(bxi_load_relaxed(&peer->state) == BXI_PEER_ALIVE, 1) ? peer
                                                                                 : bxi_join_successor(job, peer);
}
void bxi_join_take(const struct bxi_role *role, struct bx_job *job);        /* BXI_EVENT_JOIN */
void bxi_joins_tell(const struct bxi_role *role, struct bx_job *job);       /* of those promoted: log and hook */
void bxi_join_look(const struct bxi_role *role, struct bx_job *job, int rank);      /* runs or gives up who joins? */
void bxi_joins_close(const struct bxi_role *role, struct bx_job *job);      /* who joins, and has died */
/* Lets former peers go that nothing needs any more. Role. */
void bxi_formers_release(const struct bxi_role *role, struct bx_job *job);

struct bxi_joins {
    struct bxi_peer *peer;      /* lock: to be attached; NULL */
    int rc;                     /* lock: of that */
    bool ended;                 /* lock */
    uint64_t back[BXI_WORKERS_MAX / 64];    /* lock: ranks that were promoted, for the log and the hook */
    bxi_a32 waits;              /* 1: the door waits in its futex */
    bxi_a32 generation[BXI_WORKERS_MAX];    /* the highest known */
    /* Written by the role or under the lock, both; read without it. JOINING, or DEAD: it has given up. NULL: nobody */
    _Atomic(struct bxi_peer *) joining[BXI_WORKERS_MAX];
    struct bxi_peer *spare[BXI_WORKERS_MAX];    /* lock: structs for the next ones of that rank, by lend->former */
};

/* ---- names.c, for join.c --------------------------------------------------------------------------- */

void bxi_functions_clear(struct bxi_function_cache *cache);         /* lock */

#endif
