/* SPDX-License-Identifier: MIT */
/*
 * What the room rpc owns: futures, the pool, peers, calls, functions, requests, batches. One section a file; base.h has
 * the marks start, lock and role, which say who may access a field.
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
#define BXI_FRAMES_A_PASS 32        /* of one ring */
/* A bell that is probably not needed is rung so many passes later (about 2 us of spinning): the check reads the peer's
 * armed word, a line that the peer writes twice in each call. Or so many frames later: a pass in which handlers run
 * takes long. */
#define BXI_DEFER_PASSES 16
#define BXI_DEFER_FRAMES 32
#define BXI_WAITING_CHAINS 64       /* in the table of a peer's requests (waiting.c); a power of two */

struct bxi_batcher;
struct bxi_call;
struct bxi_peer;
struct bxi_waiting;

/* ---- msg.c --------------------------------------------------------------------------------------- */

struct bx_msg {
    unsigned char *data;        /* == room until it has grown; or inside the loan */
    size_t bytes;
    size_t capacity;
    int error;
    struct bx_tensor **tensors; /* each with a reference, but for those of the loan, which come first */
    size_t tensor_count;
    size_t tensor_capacity;     /* 0 while tensors is NULL or the loan's */
    struct bxi_loan *loan;      /* of a message that came with tensors: one reference; else NULL */
    struct bx_rref **rrefs;     /* each with a reference, if rref_capacity > 0; else they are the request's */
    uint32_t rref_count;
    uint32_t rref_capacity;
    struct bxi_kinds *kinds;    /* with BX_CHECKED: of its values (checked.c); else NULL */
    _Alignas(8) unsigned char room[];
};
/* Makes an empty message of memory that has `room` bytes behind its head. */
struct bx_msg *bxi_msg_init(void *memory, size_t room);
void bxi_msg_fini(struct bx_msg *msg);          /* destroys it; the memory is the caller's */
struct bx_msg *bxi_msg_copy(const void *data, size_t bytes);       /* NULL when memory is out */
struct bx_msg *bxi_msg_of_loan(struct bxi_loan *loan);     /* a message of its own; NULL when memory is out */

/* Adds what a frame brought to the message that was made of it. 0, -ENOMEM. */
int bxi_msg_take_rrefs(struct bx_msg *msg, struct bxi_rref_in *in);

/* ---- checked.c: the kinds of values ---------------------------------------------------------------- */

enum bxi_value_kind { BXI_V_BYTES, BXI_V_I64, BXI_V_U64, BXI_V_I32, BXI_V_F64, BXI_V_F32, BXI_V_F32S, BXI_V_STR,
                      BXI_VALUE_KINDS };
struct bxi_kinds {
    unsigned char *records;         /* 8 bytes each, at any address */
    size_t count;
    size_t capacity;                /* 0: there are none, or they are not this struct's */
    struct bx_rref *const *rrefs;   /* of the message, for its readers */
    size_t rref_count;
};
extern bool bxi_checked;            /* BX_CHECKED=1; set before main() */

int bxi_checked_variable(void);     /* 0; -EINVAL: the variable has another value */
/* A value of this kind is about to be put. 0, or the message's error. */
int bxi_kinds_add(struct bx_msg *msg, enum bxi_value_kind kind);
void bxi_kinds_rrefs(struct bx_msg *msg);       /* its references have changed */
void bxi_kinds_free(struct bx_msg *msg);
/* What is sent behind the message's bytes, with BXI_FLAG_KINDS; 0: nothing. write returns the end. */
size_t bxi_kinds_bytes(const struct bx_msg *msg);
unsigned char *bxi_kinds_write(const struct bx_msg *msg, unsigned char *to);
/* Takes the records off the end of what came: *bytes are those of the message then, and *count records lie behind
 * them, none without BX_CHECKED. 0, BX_E_CORRUPT. */
int bxi_kinds_take(const unsigned char *data, size_t *bytes, uint32_t *count);
int bxi_kinds_copy(struct bx_msg *msg, const unsigned char *records, uint32_t count);      /* 0, -ENOMEM */
/* The reader checks what it reads by these records; its references must be theirs. */
void bxi_kinds_mark(struct bx_reader *reader, struct bxi_kinds *kinds);
struct bx_rref *bxi_kinds_next_rref(struct bx_reader *reader);     /* there is one */
/* False: the next bytes are of another kind, and the reader's error says so. */
bool bxi_kinds_allow(struct bx_reader *reader, enum bxi_value_kind kind, size_t bytes);

static inline bool bxi_has_kinds(const struct bx_msg *msg)
{
    return __builtin_expect(bxi_checked, 0) && bxi_kinds_bytes(msg) > 0;
}

/* True if the message needs a lease: it has tensors, or more bytes than a frame that ends with tail_bytes. */
static inline bool bxi_needs_lease(const struct bx_msg *msg, size_t tail_bytes)
{
    return msg != NULL && (msg->tensor_count > 0 ||
                           msg->bytes + (bxi_checked ? bxi_kinds_bytes(msg) : 0) > BXI_BODY_MAX - tail_bytes);
}

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

void bxi_future_init(struct bx_future *future, struct bx_job *job);
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
    void (*run)(struct bx_job *job, struct bxi_task *task);     /* by a thread of the pool; may free the task */
    /* In place of run, when a task was queued and no thread is left that could run it. */
    void (*refuse)(struct bx_job *job, struct bxi_task *task, int code);
};

struct bxi_pool {
    pthread_mutex_t lock;       /* all but blocked and timer; no other lock is taken inside */
    pthread_cond_t cond;
    struct bxi_task *head, *tail;
    uint32_t queued;
    uint32_t idle;
    uint32_t threads;
    bxi_a32 blocked;            /* of the threads, in a wait */
    bool stop;
    uint64_t taken;             /* tasks that threads have ever taken from the queue */
    uint64_t taken_seen;        /* of them, at the last check whether the queue moves */
    bool watched;               /* the timer is set, or about to be, or the check is due */
    bool stuck;                 /* the queue has not moved from one check to the next: inspectors are shown that */
    struct bxi_timer timer;     /* job->run->lock */
    pthread_t thread[BXI_POOL_MAX];
};

/* 0, BX_E_BUSY, BX_E_SHUTDOWN, -errno of pthread_create. */
int bxi_pool_submit(struct bx_job *job, struct bxi_task *task);
/* The sentence for what submit or bxi_waiting_begin returned; NULL: the code has its own. */
#define BXI_POOL_WHY_BYTES 160
const char *bxi_pool_why(int rc, char text[BXI_POOL_WHY_BYTES]);
/* Takes the task out of the queue; false if a thread has it. run->lock may be held. */
bool bxi_pool_take(struct bx_job *job, struct bxi_task *task);
bool bxi_pool_block(struct bx_job *job);        /* this thread begins to wait; true if it is the pool's */
void bxi_pool_unblock(struct bx_job *job);
bool bxi_pool_owns_thread(const struct bx_job *job);       /* true if this thread is one of the pool's */
void bxi_pool_stop(struct bx_job *job);
void bxi_pool_look(struct bx_job *job);         /* role: logs and shows a queue that has not moved for a second */

/* ---- names.c ------------------------------------------------------------------------------------- */

struct bxi_function_cache {     /* a peer's functions, copied from its segment */
    uint32_t count;
    uint8_t last;               /* index of the one found last: most calls are to the same function */
    uint8_t bucket[256];        /* open addressing by name; BXI_NO_INDEX if empty */
    char name[BXI_FUNCTION_MAX][BXI_NAME_BYTES];
};

void bxi_names_clear(struct bx_job *job);       /* no worker is found */
void bxi_names_build(struct bx_job *job);
struct bxi_peer *bxi_peer_find(struct bx_job *job, const char *name);      /* NULL */
/* 0, or what bxi_job_check returns, or BX_E_NO_WORKER; all with a sentence. */
int bxi_peer_of_rank(struct bx_job *job, int rank, struct bxi_peer **peer);
/* Index of a function of peer, or BX_E_NO_FUNCTION / BX_E_CORRUPT with a sentence. Lock. */
int bxi_function_find(struct bx_job *job, struct bxi_peer *peer, const char *name);

/* ---- peer.c: frames out (lock), bells ------------------------------------------------------------ */

enum bxi_peer_state {           /* atomic; role, but for the bootstrap */
    BXI_PEER_ALIVE = 1,
    BXI_PEER_DEAD,
    BXI_PEER_LEFT,
    BXI_PEER_CORRUPT,
    BXI_PEER_JOINING,           /* attached, and does not run yet: in no place (join.c) */
};

struct bxi_queued {             /* a frame that waits for room */
    struct bxi_queued *next;
    uint32_t payload_bytes;
    int32_t slot;               /* of a request: the slot where its end in the ring is noted; else -1 */
    int32_t lease;              /* likewise of the lease that it carries; else -1 */
    bool spare;                 /* one of rpc->spares */
    unsigned char payload[];
};

/* When memory is out, so many frames without a body, or of the protocol of references, can still be queued. */
#define BXI_SPARE_FRAMES 64
#define BXI_SPARE_BYTES (sizeof(struct bxi_frame) + BXI_RREF_NEED_BYTES)

struct bxi_peer {
    /* start; the first three stay when the struct is used again */
    int rank;
    char name[BXI_NAME_BYTES];
    struct bxi_lend_peer *lend;             /* what is lent to it and borrowed from it */
    uint32_t pid;
    int pidfd;
    uint32_t generation;
    struct bxi_segment_view view;           /* of oneself: unused */
    unsigned char *loop;                    /* of oneself: the private ring; else NULL */
    bxi_a32 state;                          /* enum bxi_peer_state */
    bxi_a32 death_seen;                     /* enum bxi_peer_state to close it with; the role acts on it */
    uint32_t state_word;                    /* role: its header's state as last read */

    /* lock: the way out */
    bxi_a32 out_open;
    bool defer_bell;                        /* its bell's word said "awake" at the last check */
    bool replies_only;                      /* all frames that a bell is due for are replies */
    struct bxi_ring_writer out;
    struct bxi_bell_peer bell;
    uint64_t bell_pos;                      /* where the last frame ends that a bell is due for */
    struct bxi_queued *queue_head, *queue_tail;
    uint32_t wanted_bytes;                  /* the payload for which a one-way caller waits; 0 */
    uint64_t refused_seen;
    int close_code;                         /* why calls fail when it is not alive */

    /* lock: calls to it, and its calls here */
    struct bxi_slot *slots;
    uint32_t slot_count;
    uint32_t row_count;                     /* of them, shown in the segment: rows */
    struct bxi_call_row *rows;
    uint32_t in_flight;                     /* slots not FREE */
    uint16_t free_slot;                     /* head of the list; slot_count if empty */
    uint32_t serving;                       /* its requests here that are not yet answered */
    uint32_t serving_oneways;
    struct bxi_waiting *waiting[BXI_WAITING_CHAINS + 1];    /* the same requests; waiting.c */
    struct bxi_timer timer;                 /* at or before the earliest deadline of its slots */
    struct bxi_function_cache *functions;
    struct bxi_hist **hists;                /* by function, or NULL */

    /* role: the way in */
    bool in_open;
    bool draining;                          /* it is gone: its replies count, its requests are dropped */
    bool streams;                           /* many frames are under way to it: see peek in source.c */
    struct bxi_ring_reader in;
    bxi_a64 consumed;                       /* in.read_pos, for threads that send */
    uint64_t rescue_pos;                    /* watchdog: where a frame lay unread a second ago, plus 1 */

    bxi_a32 ended;                          /* role: its process has ended and its names are removed: another process
                                             * may take the rank. The door reads it */
};

/* Opens the ring to a peer if it is not open. 0, BX_E_NO_SPACE. */
int bxi_peer_open_out(struct bx_job *job, struct bxi_peer *peer);
/* Zeroes what rpc and lend know of a peer, and links the two. */
void bxi_peer_init(struct bx_job *job, int rank);
struct bxi_peer *bxi_peer_create(int rank);         /* one more, as bxi_peer_init leaves it. NULL: no memory */
/* Allocates the peers, each as bxi_peer_init leaves it. 0, -ENOMEM. */
int bxi_peers_create(struct bx_job *job);
struct bxi_out {
    struct bxi_frame *head;
    const void *body;
    size_t body_bytes;
    int32_t slot;                   /* of a request; else -1 */
    bool may_queue;                 /* false: -EAGAIN when the ring is full */
    struct bxi_grant *grant;        /* not yet granted, its body is then the body; or NULL */
    const struct bxi_rref_out *rrefs;       /* whose tail the body ends with; or NULL */
    int32_t lease;                  /* set by bxi_peer_send */
};
/* Sends head and body, or queues them. 0, -EAGAIN, -ENOMEM, BX_E_CORRUPT. */
int bxi_peer_send(struct bx_job *job, struct bxi_peer *peer, struct bxi_out *out);
/* Sends a frame without loans and references if it can go into the open ring at once. False: nothing was done. Lock. */
bool bxi_peer_send_plain(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out);
/* Notes whether many frames are under way to the peer: it had not read them when it sent its last one. For peek
 * (source.c). Lock and role. */
#define BXI_STREAM_BYTES 1024u
static inline void bxi_peer_note_stream(struct bxi_peer *peer)
{
    peer->streams = peer->out.write_pos - peer->out.credit > BXI_STREAM_BYTES;
}
/* Ends a group of frames that began with bxi_ring_group_begin(&peer->out), its ring being open. Lock, not given back in
 * between. */
void bxi_peer_group_end(struct bx_job *job, struct bxi_peer *peer);
/* Moves queued frames into the ring while there is room; true if any moved. */
bool bxi_peer_flush_queue(struct bx_job *job, struct bxi_peer *peer);
/* Moves on all that waits for room in full rings; takes the lock. before_sleep: first asks the rings' consumers for a
 * bell. True if anything moved. */
bool bxi_queues_move_any(struct bx_job *job, bool before_sleep);
bool bxi_queues_are_empty(const struct bx_job *job);        /* no frame waits for room; lock */
void bxi_bells_pass(struct bx_job *job);        /* role, after a pass: flushes if the bells were deferred long enough */
/* Checks the bells that are due and rings those whose owners sleep: one fence for all. Takes the lock. */
void bxi_bells_flush(struct bx_job *job);
void bxi_bell_now(struct bx_job *job, struct bxi_peer *peer);     /* the same for one peer; lock */
/* The same in two looks, with the unlock between them as the fence: under the lock, and behind the unlock if the first
 * returned true. */
bool bxi_bell_first_look(struct bx_job *job, struct bxi_peer *peer);
void bxi_bell_second_look(struct bx_job *job, struct bxi_peer *peer);
/* A frame of the peer says how far it has read: takes the credit, and drops the bell that is due if all that it is for
 * has been read. 0, BX_E_CORRUPT. Lock. */
int bxi_peer_consumed(struct bx_job *job, struct bxi_peer *peer, uint64_t consumed);
/* Rings every living peer's background eventfd: this worker's state has changed. Without the lock. */
void bxi_ring_all(struct bx_job *job);
/* After credit was published: rings the producers that wait for it. Role. */
void bxi_wanted_look(struct bx_job *job);
void bxi_peer_drop_queue(struct bx_job *job, struct bxi_peer *peer);
/* The peer's memory holds nonsense: the role will cut it off. Returns BX_E_CORRUPT with a sentence. */
BXI_COLD int bxi_peer_suspect(struct bx_job *job, struct bxi_peer *peer, const char *what);

/* ---- call.c (lock) ------------------------------------------------------------------------------- */

enum bxi_slot_state { BXI_SLOT_FREE = 0, BXI_SLOT_LIVE, BXI_SLOT_ZOMBIE };  /* zombie: its reply is still to come */
struct bxi_slot {
    struct bxi_call *call;      /* LIVE only */
    uint64_t generation;
    uint64_t end_pos;           /* of the request in the ring; BX_FOREVER while it is queued */
    uint64_t deadline_ns;       /* of async calls; BX_FOREVER for a sync one, whose caller watches it */
    uint16_t next_free;
    uint8_t state;
};
struct bxi_call {
    struct bx_future future;    /* first */
    struct bxi_peer *peer;
    const char *caller;         /* of a synchronous one, on its caller's stack: bxi_this_thread() there. NULL: it is
                                 * malloc'ed */
    uint64_t timeout_ns;
    uint64_t sent_ns;           /* when the program called; 0: it is not measured */
    uint64_t traced_ns;         /* the same, if it is traced */
    uint64_t id;                /* as in its frame; 0: not sent yet */
    uint16_t slot;
    uint16_t function;          /* of the callee's; or BXI_FUNCTION_VALUE */
    bool wants_value;
    bool inherits;              /* its deadline is that of the request that it is made for */
    struct bxi_call *next;      /* in a list of calls to complete, or of those kept when they are freed */
    struct bx_msg *value;       /* role: for a reply of at most BXI_SMALL_BYTES; in `small`, or made by its synchronous
                                 * caller while that drives; else NULL */
    _Alignas(8) unsigned char small[];  /* of one that is malloc'ed: BXI_SMALL_REPLY bytes for a reply's message */
};
#define BXI_SMALL_BYTES 64          /* a reply that has no more needs no memory of its own */
#define BXI_SMALL_REPLY (sizeof(struct bx_msg) + BXI_SMALL_BYTES)
static inline struct bx_msg *bxi_call_small(struct bxi_call *call)
{
    return (struct bx_msg *)(void *)call->small;
}

/* What stands for a function's name where BXI_FUNCTION_VALUE stands for its index. */
#define BXI_VALUE_NAME "bx_rref_to_here"
static inline const char *bxi_call_function(const struct bxi_call *call)
{
    return call->function == BXI_FUNCTION_VALUE ? BXI_VALUE_NAME : call->peer->functions->name[call->function];
}

/* Of a call's wait: it is a row of a batch that lacks rows of others. False where each worker has a CPU of its own. */
bool bxi_call_needs_others(const struct bxi_waiter *waiter);

/* The end of a sentence about its deadline. */
static inline const char *bxi_call_whose_time(const struct bxi_call *call)
{
    return call->inherits ? ", all that was left to the request for which it was called" : "";
}

/* What a call is for, besides a function: the worker, where it is not named; the object that it is called on, or is to
 * make. */
struct bxi_aim {
    struct bxi_peer *peer;
    struct bx_rref *target;
    struct bx_rref *makes;
    bool value;                 /* bx_rref_to_here */
};
/* bx_rpc_sync, bx_rpc_async, bx_rpc_oneway; at may be NULL. With a peer or a target, `to` is not read. The caller ends
 * with bxi_out after sync and async. */
int bxi_rpc_sync(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                 const struct bx_msg *args, const struct bx_call_options *options, struct bx_msg **reply);
int bxi_rpc_async(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                  const struct bx_msg *args, const struct bx_call_options *options, struct bx_future **future);
int bxi_rpc_oneway(struct bx_job *job, const char *to, const struct bxi_aim *at, const char *function,
                   const struct bx_msg *args, const struct bx_call_options *options);

/* ---- call_memory.c ------------------------------------------------------------------------------- */

struct bxi_call *bxi_call_alloc(void);          /* not initialised, with `small`; NULL: no memory */
void bxi_call_free(struct bxi_call *call);

/* ---- slot.c (lock) ------------------------------------------------------------------------------- */

/* Puts the call into a slot. 0; -EAGAIN: as many as may be are in flight; -ENOMEM. */
int bxi_slot_take(struct bx_job *job, struct bxi_peer *peer, struct bxi_call *call);
/* The call in the slot is to end at the deadline. 0, -ENOMEM with a sentence. */
int bxi_slot_watch(struct bx_job *job, struct bxi_peer *peer, uint16_t index, uint64_t deadline_ns);
/* The peer's timer fires at an async call's deadline, or before. */
static inline bool bxi_deadline_is_watched(const struct bxi_peer *peer, uint64_t deadline_ns)
{
    return deadline_ns == BX_FOREVER || (peer->timer.heap_index != 0 && peer->timer.at_ns <= deadline_ns);
}
void bxi_slot_free(struct bxi_peer *peer, uint16_t index);
/* Takes a live call out of its slot. keep: its reply is still to come, so the slot becomes a zombie. */
struct bxi_call *bxi_call_take(struct bx_job *job, struct bxi_peer *peer, uint16_t index, bool keep);
/* The request with this head is in the ring, or queued: it is counted, and shown to inspectors. Both, or each. */
void bxi_calls_count_sent(struct bx_job *job, size_t count);
void bxi_call_shown(struct bx_job *job, struct bxi_call *call, const struct bxi_frame *head);
void bxi_call_sent(struct bx_job *job, struct bxi_call *call, const struct bxi_frame *head);
/* About when a call began. Where there is a deadline, this reads no clock. */
uint64_t bxi_call_began_ns(uint64_t deadline_ns, uint64_t timeout_ns);

/* ---- reply.c (role) ------------------------------------------------------------------------------ */

/* Handles the replies that lie in the peer's ring and are a few bytes, `most` of them at most, until another frame
 * comes. How many. */
int bxi_replies_read(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, int most);
/* The open call of such a reply, which has got its value; NULL: it needs more. Lock. And calls that were taken out of
 * their slots so: completes them, without the lock. */
struct bxi_call *bxi_reply_value(struct bxi_peer *peer, uint64_t id, const void *body, size_t body_bytes);
void bxi_replies_complete(struct bx_job *job, struct bxi_call *const *calls, int count);
/* Any reply. 0, BX_E_CORRUPT. body lies in the peer's ring. */
int bxi_reply_arrived(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head,
                      const void *body, size_t body_bytes);
/* struct bxi_waiter's `straight`, of a synchronous call: its object is the call's future. */
bool bxi_reply_poll(struct bxi_waiter *waiter, const struct bxi_role *role);

/* ---- call_end.c ---------------------------------------------------------------------------------- */

/* True if no thread has taken the call out of its slot. Lock. */
static inline bool bxi_call_is_open(const struct bxi_call *call)
{
    return call->slot < call->peer->slot_count && call->peer->slots[call->slot].call == call;
}
/* The same for one that ends before its reply, with BX_E_TIMEOUT or BX_E_CANCELLED: tells its callee. Lock. */
struct bxi_call *bxi_call_drop(struct bx_job *job, struct bxi_peer *peer, uint16_t index, int code);
/* Completes a call, by the thread that took it out of its slot; takes text and value. Without the lock. */
void bxi_call_complete(struct bxi_call *call, int code, char *text, struct bx_msg *value);
/* The futures of these calls were completed: wakes who waits for them. They may be gone. */
void bxi_calls_completed(struct bx_job *job, struct bxi_call *const *calls, int count);
/* Fails every call to peer, or only those whose request ends at or before through_pos, if that is not BX_FOREVER. The
 * text is made from code and the peer. Takes the lock. */
void bxi_calls_fail(struct bx_job *job, struct bxi_peer *peer, int code, uint64_t through_pos);
char *bxi_peer_text(const struct bx_job *job, const struct bxi_peer *peer, int code);  /* malloc'ed */
void bxi_calls_expire(struct bx_job *job);      /* completes what timers took out of slots; without the lock */
void bxi_calls_due(void *context, struct bxi_timer *timer);                /* a peer's timer fires; lock */
const char *bxi_this_thread(void);          /* an address that stands for this thread */
/* Ends the call of this future, which is a call's: tells the callee, completes it; takes text (malloc'ed). False if it
 * was done, or another thread is completing it. */
bool bxi_call_abort(struct bx_future *future, int code, char *text);
bool bxi_future_cancel(struct bx_future *future);   /* of any kind; false likewise */
/* A synchronous caller gives up with BX_E_TIMEOUT or BX_E_CANCELLED. True if the call was still in its slot; else
 * another thread is completing it. */
bool bxi_call_give_up(struct bx_job *job, struct bxi_call *call, int code);

/* ---- register.c ---------------------------------------------------------------------------------- */

enum bxi_function_kind { BXI_F_INLINE = 1, BXI_F_BLOCKING = 2, BXI_F_ASYNC = 3, BXI_F_BATCH = 4 };
struct bxi_handler {            /* never changes once handler_count counts it */
    char name[BXI_NAME_BYTES];
    enum bxi_function_kind kind;
    const struct bx_type *type;     /* of a method; else NULL */
    bx_handler_fn fn;
    void *context;
    bx_async_fn async;              /* of an async one; or, of a blocking one, in place of fn */
    struct bxi_batcher *batcher;
};

int bxi_register(struct bx_job *job, const char *name, const struct bxi_handler *handler);     /* as bx_register */
int bxi_check_type(const struct bx_type *type, const char *name);      /* 0, -EINVAL */

/* ---- object.c: calls on objects ------------------------------------------------------------------- */

/* The bytes of msg (or NULL), the kinds of its values and the tail of its references, malloc'ed; NULL: no memory. */
unsigned char *bxi_body_with_tails(const struct bx_msg *msg, const struct bxi_rref_out *out, size_t *bytes);
/* bxi_grant_pack of a message, with the kinds of its values. */
int bxi_grant_message(struct bx_job *job, struct bxi_lend_peer *peer, const struct bx_msg *msg,
                      struct bxi_grant *grant);
int bxi_grant_add_rrefs(struct bxi_grant *grant, const struct bxi_rref_out *out);      /* the tail; 0, -ENOMEM */
/* The object of a request that is called on one. 0: run the handler. 1: the request was kept until the object is made.
 * An error, with *text: answer with it. Role. */
int bxi_object_check(struct bx_request *request, size_t body_bytes, const char **text);
void bxi_object_value(struct bx_request *request);         /* answers bx_rref_to_here. Role */
/* A request that makes an object ends. Returns the code for its maker, *text likewise. */
int bxi_object_made(struct bx_request *request, int code, const char **text, const struct bx_msg *value);
void bxi_objects_unpark(const struct bxi_role *role, struct bx_job *job);      /* role: runs what waited for objects */
void bxi_object_take(struct bx_job *job, struct bxi_waiting *waiting);     /* out of the list that it waits in; lock */
extern const struct bxi_rref_ops bxi_rref_ops;

/* ---- waiting.c: requests ------------------------------------------------------------------------- */

/* What is being answered. Lies on the stack for an inline handler, in a struct bxi_waiting for any other. */
struct bx_request {
    struct bx_job *job;
    struct bxi_peer *peer;
    const struct bxi_handler *handler;
    uint64_t id;
    uint64_t deadline_ns;
    uint64_t consumed;              /* as the request's frame said */
    struct bxi_loan *loan;          /* of its arguments; one reference, dropped when it is answered; or NULL */
    struct bxi_rref_in *in;         /* references that it brought, likewise; or NULL */
    uint64_t begin_ns;              /* of its handler, if it is timed */
    uint64_t traced_id;             /* if it is traced: id, or of a one-way call where its frame ended in the ring */
    uint64_t traced_ns;             /* if it is traced: when its handler began, or its future was first waited for */
    bool oneway;
    bool counted;                   /* in a struct bxi_waiting that bxi_waiting_begin has put into the table */
    bool timed;
    bool unparked;                  /* it has waited for its object */
    bool has_arrow;                 /* if it is traced: its arrow has not come to its end */
    uint16_t row;                   /* shown in the segment; BXI_NO_ROW: there was none free */
    uint32_t kind_count;            /* records of the kinds of its arguments, which lie behind their bytes */
};
#define BXI_NO_ROW UINT16_MAX

enum bxi_waiting_state {
    BXI_WAITS_FOR_THREAD = 1,       /* the pool has its task: queued, or run by a thread */
    BXI_WAITS_FOR_BATCH,            /* in the list of its batcher */
    BXI_WAITS_FOR_FUTURE,           /* the future's callback will answer it */
    BXI_WAITS_FOR_OBJECT,           /* in the list of a reference whose object is to come, or in rpc->unparked */
    BXI_WAITS_NO_MORE,              /* its batch runs, or a cancel has failed its future */
};
struct bxi_hook {                   /* of a blocking handler (nested.c); lock */
    bx_cancel_fn fn;                /* NULL: none */
    void *context;
    const char *runs;               /* bxi_this_thread() of the thread that runs it now, or NULL */
    struct bxi_timer timer;         /* at the request's deadline, while fn is not NULL */
    bool used;                      /* the handler's thread: fn was ever set */
};
#define BXI_ANSWERED 1
struct bxi_waiting {
    struct bx_request request;      /* first */
    struct bx_msg *args;            /* NULL once an async handler has read them */
    struct bxi_waiting *chain_next; /* lock: in its peer's table */
    struct bxi_waiting **chain_link;/* lock: the pointer there that points to it */
    enum bxi_waiting_state state;   /* lock */
    struct bxi_task task;           /* of a handler on the pool */
    struct bx_future *future;       /* of an async handler: the maker's reference, or the callback's, keeps it */
    struct bxi_waiting *next_row;   /* lock: in its batcher's list, or in that of the calls on an object to come */
    uint64_t came_ns, makes_id;     /* of a row; of a request that makes an object, else 0 */
    struct bx_msg *reply;           /* of a blocking handler or a row; as the next two, for the thread that runs it */
    int code;                       /* of a row: bx_batch_fail_row */
    char *text;
    /* Of a blocking or async handler: what it began for the request (nested.c). */
    bxi_a32 refs;                   /* to this memory: the request's, and one of each callback added in its handler */
    bxi_a32 gave_up;                /* 0; BXI_ANSWERED; or why its caller gave up, a code < 0 */
    bxi_a32 room_waits;             /* threads that wait for room for a call of its */
    uint32_t call_count, call_capacity;     /* lock, both */
    struct bxi_nested_call *calls;  /* lock: its calls, also some that have ended */
    struct bxi_hook hook;
};

struct bxi_waiting *bxi_waiting_create(const struct bx_request *request);      /* NULL: no memory */
/* Counts the request as being served, and puts it into its peer's table. Lock. 0; BX_E_CORRUPT: its caller has more
 * in flight than it may; -ENOBUFS: 1024 one-way calls of its caller wait already, this one is to be dropped. */
int bxi_waiting_begin(struct bxi_waiting *waiting, enum bxi_waiting_state state);
void bxi_waiting_end(struct bxi_waiting *waiting);          /* undoes begin; lock */
/* A thread of the pool has run its async handler: from WAITS_FOR_THREAD to WAITS_FOR_FUTURE. Lock. 0; or why its future
 * is to fail at once: a cancel, or the end of its caller, came while the handler ran. */
int bxi_waiting_for_future(struct bxi_waiting *waiting);
struct bxi_waiting *bxi_waiting_find(struct bxi_peer *peer, uint64_t id);      /* NULL; lock */
/* Releases what it holds, and a reference to its memory. It is in no table, or the table is not used any more. */
void bxi_waiting_destroy(struct bxi_waiting *waiting);

/* The handler of a request begins. */
static inline void bxi_request_begins(struct bx_request *request)
{
    if (request->timed)
        request->begin_ns = bxi_now_ns();
}

/* ---- answer.c ------------------------------------------------------------------------------------ */

/* Answers a request: code 0 with a value, or an error with a text. Takes the lock. */
void bxi_answer(struct bx_request *request, int code, const char *text, const struct bx_msg *value);
/* The same for one that waits, by its owner: destroys the arguments first, and then the object. */
void bxi_waiting_answer(struct bxi_waiting *waiting, int code, const char *text, const struct bx_msg *value);
/* Answers with a value of an inline handler that is nothing but bytes. False: it is more than that, and nothing was
 * done. Role. */
bool bxi_answer_plain(const struct bx_request *request, const struct bx_msg *value);

/* ---- batch.c ------------------------------------------------------------------------------------- */

struct bxi_batcher {            /* lock, but for what says otherwise */
    const struct bxi_handler *handler;          /* start */
    bx_batch_fn fn;                             /* start; its context is the handler's */
    size_t max_rows;                            /* start */
    uint64_t flush_after_ns;                    /* start */
    bool blocking;                              /* start */
    bool running;
    bool due;                                   /* the oldest row has waited long enough */
    uint64_t members[BXI_WORLD_MAX / 64];
    uint64_t present[BXI_WORLD_MAX / 64];       /* workers with a row in the list */
    struct bxi_waiting *head, *tail;            /* the rows */
    uint32_t waiting;                           /* how many */
    struct bxi_timer timer;
    struct bxi_task task;                       /* of a blocking body; the pool's while `running` */
    struct bxi_batcher *next;
};

/* Begins the request as a row of its function's batch. 0, and the batch owns it; or as bxi_waiting_begin. Role. */
int bxi_batch_add(struct bxi_waiting *row);
void bxi_batch_take(struct bx_job *job, struct bxi_waiting *row);      /* out of its batcher's list; lock */
int bxi_batch_member(struct bx_job *job, struct bxi_batcher *batcher, int rank, bool joins);   /* 0, BX_E_PEER_DEAD */
void bxi_batches_leave(struct bx_job *job, int rank);      /* the worker is gone, and a member of nothing */
void bxi_batches_look(struct bx_job *job);      /* role: runs what is ready */
void bxi_batch_show(struct bx_job *job, const struct bxi_batcher *batcher);    /* to inspectors; lock, or start */
void bxi_batchers_destroy(struct bx_job *job);

/* ---- cancel.c ------------------------------------------------------------------------------------ */

/* The caller gave up; code: BX_E_CANCELLED or BX_E_TIMEOUT. A queued request is answered with it. The future of an
 * async handler fails with BX_E_CANCELLED. Role. */
void bxi_waiting_cancel(struct bx_job *job, struct bxi_peer *peer, uint64_t id, int code);
/* The caller is gone: the futures of its async requests fail with code. */
void bxi_waiting_peer_gone(struct bx_job *job, struct bxi_peer *peer, int code);
/* Fails the future that an async handler returned. peer: its caller. */
void bxi_waiting_fail_future(struct bx_future *future, const struct bxi_peer *peer, int code);

/* ---- handler.c (role) ---------------------------------------------------------------------------- */

/* Runs the request's handler, or keeps the request until it can run. The body is in job->rpc->frame, or the request has
 * a loan. 0, or BX_E_CORRUPT: the caller must be cut off. */
int bxi_handler_run(struct bx_request *request, size_t body_bytes);

/* ---- dispatch.c (role) --------------------------------------------------------------------------- */

/* Handles one frame of peer, which still lies in its ring. 0; -EAGAIN: not yet, its device memory is being mapped;
 * or BX_E_CORRUPT: it must be cut off. */
int bxi_dispatch(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, const void *payload,
                 uint32_t payload_bytes);

/* A request; its body, which is in job->rpc->frame, has been copied out of the ring. 0, BX_E_CORRUPT. */
int bxi_handle_request(struct bx_job *job, struct bxi_peer *peer, const struct bxi_frame *head, size_t body_bytes);
/* True if the ring to the peer is open: a callee opens it before it accepts the first call. Else its frame, of so many
 * requests, has been refused. */
bool bxi_way_back(struct bx_job *job, struct bxi_peer *peer, uint64_t requests);

/* Frames have been copied out of the ring, which has advanced. */
void bxi_frames_note(struct bx_job *job, struct bxi_peer *peer, uint64_t frames, uint64_t payload_bytes);
/* The frame has been copied out of the ring. Without the lock. */
void bxi_frame_taken(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, uint32_t payload_bytes);

/* ---- watch.c: what happens to peers (role) ------------------------------------------------------- */

struct bxi_worker_hook {        /* of the program: a worker has died, or is back */
    void (*fn)(struct bx_job *job, int rank, void *context);    /* bx_death_fn, bx_join_fn; NULL: none */
    void *context;
};
void bxi_worker_hook_run(struct bx_job *job, const struct bxi_worker_hook *hook, int rank);

void bxi_scan(const struct bxi_role *role, struct bx_job *job);            /* open words, states, refusals of all */
void bxi_deaths_close(const struct bxi_role *role, struct bx_job *job);    /* peers whose death was seen */
/* After a sleep that no bell or timer ended: counts frames that lie unread for the second time and had no bell. */
void bxi_rings_watchdog(const struct bxi_role *role, struct bx_job *job);
void bxi_peer_close(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                    enum bxi_peer_state state);
/* Handles up to `most` frames of a peer, fewer when the waiter is ready. How many. */
int bxi_read_ring(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, struct bxi_waiter *waiter,
                  int most);
/* Gives back what unread frames lend; progress has stopped. */
void bxi_frames_unread(const struct bxi_role *role, struct bx_job *job);

/* True if the peer's segment shrank while it was read: what was just copied may be zeroes. */
static inline bool bxi_truncated(const struct bxi_peer *peer)
{
    return bxi_lend_truncated(peer->lend);
}

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
    struct bxi_worker_hook on_death, on_join;
    uint8_t name_bucket[256];                   /* open addressing by name; BXI_NO_INDEX if empty */

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
    bxi_a64 bells_due[BXI_WORLD_MAX / 64];      /* peers; set under the lock, read without */
    bxi_a64 bells_pass;                         /* run->pass when the first of them became due */
    bxi_a64 bells_frame;                        /* frames then */
    bxi_a64 starved[BXI_WORLD_MAX / 64];        /* peers with frames queued or a one-way caller waiting */

    _Alignas(BXI_LINE) bxi_a64 frames;          /* role, to in_peers: counts frames handled */
    bxi_a32 last_called;                        /* any thread: rank of the peer found last; names.c tries it first */
    bxi_a32 in_count;                           /* written by the role */
    struct bxi_peer *in_peers[BXI_WORLD_MAX];   /* those with in_open, in order of opening */

    _Alignas(BXI_LINE) bxi_a32 deaths;          /* any thread, to lost: peers that died so far */
    bxi_a32 leavers;                            /* peers whose state is LEAVING or later, or that are gone */
    bxi_a32 lost;                               /* of them, those that died or were cut off before */
    struct bxi_ending ending;
    struct bxi_peer *dead[BXI_WORLD_MAX];       /* [n modulo their number]: the nth death's; written before deaths */

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
    return (bxi_load_relaxed(&job->rpc->starved[0]) | bxi_load_relaxed(&job->rpc->starved[1])) != 0 &&
           bxi_queues_move_any(job, before_sleep);
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

    if (!(BXI_STATS & BXI_STATS_TABLES))
        return;
    /* Relaxed, all: for inspectors, which read since_ns before and after. */
    bxi_store_relaxed(&now->id, request->id);
    bxi_store_relaxed(&now->who, bxi_serving_who(request));
    bxi_store_release(&now->since_ns, request->job->run->pass_ns);
}
static inline void bxi_now_hide(const struct bx_request *request)
{
    if (BXI_STATS & BXI_STATS_TABLES)
        bxi_store_relaxed(&bxi_tables(request->job->control)->now.since_ns, 0);     /* relaxed: as in bxi_now_show */
}

#endif
