/* SPDX-License-Identifier: MIT */
/*
 * When the job is over for a worker whose program has asked to leave (ending.c). A part of rpc.h, which includes it.
 */
#ifndef BXI_ENDING_H
#define BXI_ENDING_H

struct bxi_ending {
    bxi_a32 waited;             /* any thread: the shutdown waits for bxi_is_quiet, or for `over` */
    bxi_a32 began;              /* lock; the role reads it without: LEAVING is stored */
    bxi_a32 over;               /* lock; the shutdown reads it without: nothing is under way, nobody sends any more */
    uint32_t round, since;      /* lock: as published */
    uint64_t published;         /* lock: the positions then */
    uint64_t checked;           /* lock: the positions at the last check */
};

/* No call of this worker is open, no handler has yet to answer, no frame waits for room, and none about its references
 * is to come. Lock. */
bool bxi_is_quiet(const struct bx_job *job);
/* Stores LEAVING. From here on a worker in which nothing is open sends no request. */
void bxi_ending_begin(struct bx_job *job);
/* May a request be sent? 0, or a code with its sentence. Lock, not given back before the request is sent: after
 * bxi_calls_fail nobody ends the job's calls any more. */
int bxi_ending_allows(const struct bx_job *job);
static inline int bxi_ending_may_send(const struct bx_job *job)
{
    /* Relaxed: it leaves STARTED under the lock. */
    return __builtin_expect(bxi_load_relaxed(&job->phase) == BXI_STARTED, 1) ? 0 : bxi_ending_allows(job);
}
/* Publishes how far this worker has come, and finds out whether the job is over. Role; no handler runs under it. */
void bxi_ending_check(const struct bxi_role *role, struct bx_job *job);
/* A frame was sent or handled since the last check. Role. */
bool bxi_ending_has_moved(struct bx_job *job);
/* The worker of that rank if it is not gone, and has not come as far as this one, or has joined and does not run yet;
 * else NULL. Lock. */
const struct bxi_peer *bxi_ending_late(const struct bx_job *job, int rank);
/* Wakes the shutdown, and has the role check again. */
BXI_COLD void bxi_ending_changed(struct bx_job *job);

#endif
