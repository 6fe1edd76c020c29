/* SPDX-License-Identifier: MIT */
/*
 * A worker that writes nonsense into its own segment when the test says so, and is killed at the end.
 *
 *     the hostile worker                      the test's worker
 *     READY    it is served                   waits for READY, prepares its calls
 *     STRIKE   runs strike(job)               strikes_now() returns when strike has returned
 *     FINISHED kills itself                   posts FINISHED
 */
#ifndef TESTS_HOSTILE_H
#define TESTS_HOSTILE_H

#include "harness.h"

#include "rpc/rpc.h"

enum hostile_gate { READY = 56, STRIKE, STRUCK, FINISHED };

static void (*strike)(struct bx_job *job);

static inline void is_hostile(struct bx_job *job)
{
    harness_post(READY);
    harness_await(STRIKE, 1);
    strike(job);
    harness_post(STRUCK);
    harness_await(FINISHED, 1);
    raise(SIGKILL);
}

static inline void strikes_now(void)
{
    harness_post(STRIKE);
    harness_await(STRUCK, 1);
}

/* Worker 0 is the test's, worker 1 strikes so, and worker 2 serves. */
static inline void run_hostile(int (*prepare)(struct bx_job *job), harness_fn how, harness_fn body)
{
    strike = how;
    harness_run(&(struct harness_world){ .size = 3, .setup = prepare, .dies = 1u << 1,
                                         .body = { body, is_hostile, harness_serve } });
}

/* Writes a frame into the ring to worker 0 without the library's send functions, and rings no bell. False if the ring
 * is full. */
static inline bool put_unrung(struct bx_job *job, const struct bxi_frame *frame, const void *body, size_t bytes)
{
    struct bxi_ring_writer *out = &job->rpc->peers[0]->out;
    void *payload = NULL;
    int rc;

    bxi_lock(&job->run->lock);
    HARNESS_EQ(bxi_peer_open_out(job, job->rpc->peers[0]), 0);
    rc = bxi_ring_reserve(out, (uint32_t)(sizeof *frame + bytes), &payload);
    if (rc == 0) {
        memcpy(payload, frame, sizeof *frame);
        memcpy((unsigned char *)payload + sizeof *frame, body, bytes);
        bxi_ring_commit(out, (uint32_t)(sizeof *frame + bytes));
    }
    bxi_unlock(&job->run->lock);
    return rc == 0;
}

static inline bool put_frame(struct bx_job *job, const struct bxi_frame *frame, const void *body, size_t bytes)
{
    bool is_put = put_unrung(job, frame, body, bytes);

    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
    return is_put;
}

#endif
