/* SPDX-License-Identifier: MIT */
/*
 * What the room rpc owns: its part of the job, futures and the pool here; messages in msg.h, peers in peer.h, calls in
 * call.h, requests in request.h, joins in join.h, the end of the job in ending.h. One section a file; base.h has the
 * marks start, lock and role, which say who may access a field.
 */
#ifndef BXI_RPC_H
#define BXI_RPC_H

#include "base/usercall.h"
#include "device/device_calls.h"
#include "frame.h"
#include "lend/lend.h"
#include "observe/observe.h"
#include "rref/rref.h"
#include "run/run.h"

#include "shm/ring.h"

#define BXI_POOL_READY 16           /* threads of the pool that are not blocked in a wait, by default */
#define BXI_POOL_MAX 256
#define BXI_FRAMES_A_PASS 32        /* of one ring: the others wait for so many inline handlers */
/* A bell that is probably not needed is rung so many passes later (about 2 us of spinning): the check reads the peer's
 * armed word, a line that the peer writes twice in each call. Or so many frames later: a pass in which handlers run
 * takes long. */
#define BXI_DEFER_PASSES 16
#define BXI_DEFER_FRAMES 32
#define BXI_WAITING_CHAINS 64       /* in the table of a peer's requests (waiting.c); a power of two. 512 bytes of a
                                     * peer; of 1024 requests a chain has 16 */

struct bxi_batcher;
struct bxi_call;
struct bxi_out;
struct bxi_peer;
struct bxi_waiting;

#include "msg.h"

/* ---- future.c ------------------------------------------------------------------------------------ */

struct bxi_callback;
#define BXI_DONE ((struct bxi_callback *)1)
#define BXI_UNWANTED ((struct bxi_callback *)2)     /* of a call: the program has released it before its reply */

struct bx_future {
    bxi_a32 refs, heard;                        /* heard: somebody has been told of its error, or will be */
    _Atomic(struct bxi_callback *) callbacks;   /* a stack; BXI_DONE once it is done; BXI_UNWANTED */
    struct bx_job *job;
    struct bx_msg *value;
    char *text;                                 /* of the error; NULL: bx_strerror(code) */
    int code;
    bool is_call;                               /* the head of a struct bxi_call */
};

/* For a public function: 0; -EINVAL (NULL), BX_E_FORKED with a sentence. */
int bxi_future_check(const struct bx_future *future, const char *function);
bool bxi_future_try_acquire(struct bx_future *future);     /* false if its last reference is gone */
/* Completes one that is no call; takes value and text (malloc'ed). False, and both freed, if it was done. */
bool bxi_future_complete(struct bx_future *future, int code, char *text, struct bx_msg *value);
/* The same for a call's, by the thread that took the call out of its slot. own: that thread is its synchronous caller,
 * and nobody waits for it. */
void bxi_future_complete_call(struct bx_future *future, int code, char *text, struct bx_msg *value);
void bxi_future_complete_own(struct bx_future *future, int code, char *text, struct bx_msg *value);
/* The job ends: fails each of its futures that is no call and not done. From then on none can be made. */
void bxi_futures_end(struct bx_job *job);
/* bx_future_release and bx_future_on_done for the engine: a thread that leaves in a callback returns from them. */
void bxi_future_release(struct bx_future *future);
int bxi_future_on_done(struct bx_future *future, bx_done_fn fn, void *context);
void bxi_future_fini(struct bx_future *future);     /* frees value and text of one that is done */

static inline bool bxi_future_is_done(const struct bx_future *future)
{
    /* [future.done] acquire, pairs with the exchange in set_done: value, code and text are
     * read after it. Sequentially consistent, so that a waiter that has counted itself sees it. */
    return bxi_load_seq_cst((_Atomic(struct bxi_callback *) *)&future->callbacks) == BXI_DONE;
}

/* ---- pool.c -------------------------------------------------------------------------------------- */

struct bxi_task {               /* what the pool runs; a member of a struct bxi_waiting, or of a batcher */
    struct bxi_task *next, *prev;   /* pool.lock, with queued */
    bool queued;                    /* in the pool's queue */
    bool locked;                    /* of a BX_LOCKED handler; before it is submitted */
    void (*run)(struct bx_job *job, struct bxi_task *task);     /* by a thread of the pool; may free the task */
    /* In place of run, when a task was queued and no thread is left that could run it. */
    void (*refuse)(struct bx_job *job, struct bxi_task *task, int code);
};

struct bxi_pool {
    pthread_mutex_t lock;       /* all but blocked and timer, ready to write; no other lock is taken inside */
    pthread_cond_t cond;
    struct bxi_task *head, *tail;
    uint32_t queued;
    bxi_a32 ready;              /* a task is queued: written under the lock */
    uint32_t idle;              /* threads without a task */
    bool one_drives;            /* one of these drives the worker, the others are parked */
    uint32_t calls;             /* whoever gives the lock up wakes so many of them */
    uint32_t threads;
    bxi_a32 blocked;            /* of the threads, in a wait */
    bool stop;
    uint64_t taken;             /* tasks that threads have ever taken from the queue */
    /* When a thread was woken last, or took a locked task; 0: it is back, or waits for a call. */
    uint64_t locked_ns;
    uint64_t taken_seen;        /* of them, at the last look whether the queue moves */
    uint64_t seen_ns;           /* when that number was first seen */
    uint64_t look_ns;           /* the next look is so long after the last one: the timer is set, or about to be, or the
                                 * look is due. 0: there is none */
    bool stuck;                 /* the queue has not moved for a second: inspectors are shown that */
    struct bxi_timer timer;     /* job->run->lock */
    pthread_t thread[BXI_POOL_MAX];
};

/* 0, BX_E_BUSY, BX_E_SHUTDOWN, -errno of pthread_create. */
int bxi_pool_submit(struct bx_job *job, struct bxi_task *task);
void bxi_pool_call(struct bx_job *job);         /* wakes the threads for what was submitted in a pass */
/* The sentence for what submit or bxi_waiting_begin returned; NULL: the code has its own. */
#define BXI_POOL_WHY_BYTES 160
const char *bxi_pool_why(int rc, char text[BXI_POOL_WHY_BYTES]);
/* Takes the task out of the queue; false if a thread has it. run->lock may be held. */
bool bxi_pool_take(struct bx_job *job, struct bxi_task *task);
bool bxi_pool_block(void);      /* this thread begins to wait, in any job; true if it is one of a pool, of any job */
void bxi_pool_unblock(void);
/* A blocking handler has returned and is about to be answered: the thread of the pool takes the role. */
void bxi_pool_answers(struct bx_job *job);
bool bxi_pool_owns_thread(const struct bx_job *job);       /* true if this thread is one of the pool's */
void bxi_pool_stop(struct bx_job *job);
void bxi_pool_look(struct bx_job *job);         /* role: logs and shows a queue that has not moved for a second */

#include "peer.h"
#include "call.h"
#include "request.h"
#include "ending.h"
#include "join.h"

/* ---- source.c ------------------------------------------------------------------------------------ */

/* The bits that bxi_rpc_source owns, with BXI_EVENT_SCAN (open words, states, refusals of all peers). A pass handles
 * them from the lowest up: batches after BXI_EVENT_TIMER (4), because a body may take long. */
enum bxi_event {
    BXI_EVENT_DEATH = 2,        /* death_seen of all peers */
    BXI_EVENT_BATCH = 8,        /* members changed, or a batch is due */
    BXI_EVENT_POOL = 16,        /* does the pool's queue move? */
    BXI_EVENT_OBJECT = 32,      /* objects are made: unparked */
    BXI_EVENT_PASSED = 64,      /* loans with tensors that a worker had passed on have ended */
    BXI_EVENT_JOIN = 128,       /* the door hands a joiner over, behind DEATH; or one is promoted */
};
extern const struct bxi_source_ops bxi_rpc_source;         /* rings, full queues, bells, leases; the rest by events */

/* ---- The part of the job ------------------------------------------------------------------------- */

struct bxi_rpc {
    _Atomic(struct bxi_peer *) *peers;          /* start, to on_death_context: world_size of them */
    unsigned char *frame;                       /* role: BXI_FRAME_MAX bytes, the frame being handled; the body of a
                                                 * packed request while that is */
    struct bxi_packed *packed;                  /* packed.h */
    struct bx_msg *reply;                       /* role: of inline handlers, used again and again */
    struct bxi_kinds kinds;                     /* role: of the arguments of the handler that runs */
    void (*remove_names)(struct bx_job *job, int rank);     /* removes the names that a worker left when it died */
    void (*take_arrived)(struct bx_job *job);   /* role: puts what has arrived of remote workers into their rings */
    struct bxi_worker_hook on_death, on_join;
    uint16_t name_bucket[2 * BXI_WORKERS_MAX];  /* as a function cache's */

    _Alignas(BXI_LINE) struct bxi_batcher *batchers;    /* lock, all below */
    struct bxi_call *expired;                   /* taken out by timers, to be completed without the lock */
    struct bxi_waiting *hooks_due;              /* by next_row: a hook's timer has fired, each has a reference */
    struct bxi_waiting *unparked, **unparked_end;       /* calls on objects that are made now, or never */
    struct bxi_queued *spare;                   /* a list: those of spares that are free */
    unsigned char *spares;
    uint32_t calls_open;                        /* LIVE slots of all peers */
    uint32_t serving;                           /* requests of all peers not yet answered */
    bxi_a32 handler_count;                      /* of handlers; written under the lock */
    bxi_a32 bells_urgent;                       /* one of the bells due is of a peer that was asleep */
    struct bxi_peers bells_due;
    bxi_a64 bells_pass;                         /* run->pass when the first of them became due */
    bxi_a64 bells_frame;                        /* frames then */
    struct bxi_peers starved;                   /* those with frames queued or a one-way caller waiting */

    _Alignas(BXI_LINE) bxi_a64 frames;          /* role, to in_peers: counts frames handled */
    bxi_a32 last_called;                        /* any thread: rank of the peer found last; names.c tries it first */
    bxi_a32 in_count;                           /* written by the role */
    bxi_a64 pair_changes;                       /* lock: rings opened from here, and peers closed, so far */
    struct bxi_peer *in_peers[BXI_WORKERS_MAX]; /* those with in_open, in order of opening */

    _Alignas(BXI_LINE) bxi_a32 deaths;          /* any thread, to lost: peers that died so far */
    bxi_a32 leavers;                            /* peers whose state is LEAVING or later, or that are gone */
    bxi_a32 lost;                               /* of them, those that died or were cut off before */
    struct bxi_ending ending;
    /* [n modulo their number]: the nth death; written before deaths. Its peer may be the rank's next but one by now. */
    struct bxi_dead {
        const struct bxi_peer *peer;            /* rank and name stay */
        uint32_t pid;
        int code;
    } dead[BXI_WORKERS_MAX];

    _Alignas(BXI_LINE) struct bxi_joins joins;

    _Alignas(BXI_LINE) struct bxi_lock future_lock;     /* futures and futures_end; no other lock is taken inside */
    struct bxi_made *futures;                   /* those of the program that are not done (future.c) */
    bool futures_end;

    _Alignas(BXI_LINE) struct bxi_pool pool;    /* pool.lock */

    _Alignas(BXI_LINE) struct bxi_handler handlers[BXI_FUNCTION_MAX];   /* [i]: written before handler_count > i */
};

/* A call ended or a request was answered. */
static inline void bxi_quiet_changed(struct bx_job *job)
{
    /* [quiet] sequentially consistent, pairs with the count in leave_together. */
    if (bxi_load_seq_cst(&job->rpc->ending.waited) != 0)
        bxi_ending_changed(job);
}

static inline bool bxi_queues_move(struct bx_job *job, bool before_sleep)
{
    /* Relaxed: set under the lock; a thread that sets one asks for room, or the holder of the role does. */
    return bxi_peers_any(&job->rpc->starved) && bxi_queues_move_any(job, before_sleep);
}

/* Runs the request's handler, an async one if future is not NULL (base/usercall.h). */
static inline int bxi_call_handler(struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                                   struct bx_future **future)
{
    const struct bxi_handler *handler = request->handler;

    if (future != NULL)
        return bxi_call_user_with(request, args, future, handler->context, (bxi_user_fn)handler->async);
    return bxi_call_user_with(request, args, reply, handler->context, (bxi_user_fn)handler->fn);
}

/* ---- serving.c: requests that are being served, for inspectors ----------------------------------- */

/* Takes a row, if one is free. Lock. */
void bxi_serving_show(struct bx_request *request, enum bxi_waiting_state state);
void bxi_serving_hide(const struct bx_request *request);    /* gives it back; lock */
/* By the thread that has it now; or, with BXI_AT_FUTURE, by the one that had it. */
void bxi_serving_at(const struct bx_request *request, enum bxi_where where);
static inline uint64_t bxi_serving_who(const struct bx_request *request)
{
    uint64_t function = request->handler == NULL ? BXI_FUNCTION_VALUE
                                                 : (uint64_t)(request->handler - request->job->rpc->handlers);

    return (uint64_t)request->peer->rank | function << 16;
}
/* A handler runs here and now. Role. */
static inline void bxi_now_show(const struct bx_request *request)
{
    struct bxi_now *now = &bxi_tables(request->job->control)->now;

    /* Relaxed, all: for inspectors, which read since_ns before and after. */
    bxi_store_relaxed(&now->id, request->id);
    bxi_store_relaxed(&now->who, bxi_serving_who(request));
    bxi_store_release(&now->since_ns, request->job->run->pass_ns);
}
static inline void bxi_now_hide(const struct bx_request *request)
{
    bxi_store_relaxed(&bxi_tables(request->job->control)->now.since_ns, 0);     /* relaxed: as in bxi_now_show */
}

#endif
