/* SPDX-License-Identifier: MIT */
/*
 * What the files of the parameter server share: server.c answers calls and makes versions of the model, trainers.c
 * starts trainers, waits for them and knows which of them train.
 */
#ifndef DEMOS_PS_SERVER_H
#define DEMOS_PS_SERVER_H

#include "ps.h"

#include <pthread.h>

struct version {
    struct version *next;       /* the next older one */
    uint64_t number;
    struct ps_set set;
};

struct trainer {
    struct server *server;
    int rank;
    struct bx_future *future;   /* of its training */
    bool is_member;             /* lock */
    bool has_row;               /* in the current batch */
    int64_t pid;                /* 0: no report yet */
    int generation;             /* of the worker that has sent it */
    bool is_given_up;
    bool is_away;               /* lock; it died and may come back */
    uint64_t away_ns;           /* since when */
    int deaths;
    struct ps_spent before;     /* by its processes that died */
};

struct server {
    struct bx_job *job;
    struct bx_rref *self;
    const struct ps_flags *flags;
    struct ps_result *result;
    struct ps_params params;
    struct ps_place place;
    float *velocity;
    pthread_mutex_t lock;
    struct version *versions;   /* lock; the newest first */
    uint64_t start_ns;
    uint64_t update_end_ns;
    _Atomic uint64_t heard_ns;  /* when a trainer last called or ended */
    _Atomic uint64_t left_ns;   /* when a member was last removed */
    _Atomic int running;        /* trainers whose training has not ended */
    struct bx_future *ended;
    struct trainer trainers[PS_TRAINERS_MAX];
    size_t trainer_count;
    size_t next_victim;         /* where the search for the next trainer to kill begins */
};

static inline struct ps_trainer_result *ps_result_of(const struct trainer *trainer)
{
    return &trainer->server->result->trainers[trainer->rank - 1];
}

static inline const char *ps_name_of(const struct trainer *trainer)
{
    return bx_worker_name(trainer->server->job, trainer->rank);
}

/* ---- trainers.c ------------------------------------------------------------------------------------- */

/* Both with the lock. A batch does not wait for a trainer that is no member. */
void ps_set_member(struct trainer *trainer, bool is_member);
/* If no running trainer is a member, makes all of them members: a batch without members would wait for its patience. */
void ps_keep_members(struct server *server);
bool ps_is_running(const struct trainer *trainer);     /* it trains, and is not away */
void ps_note_report(struct trainer *trainer, const struct ps_report *report);

/* Starts the training of all. 0 or a code of bx_rpc_async. */
int ps_start_trainers(struct server *server);
/* Waits until all have ended; on the way kills trainers and starts those again that are back (--kill, --restart). */
int ps_wait_for_trainers(struct server *server);

#endif
