/* SPDX-License-Identifier: MIT */
/*
 * Calls at the caller: their slots, their way from a reply to a future, and how they end otherwise. A part of rpc.h,
 * which includes it.
 */
#ifndef BXI_CALL_H
#define BXI_CALL_H

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

/* What a call is for, besides a function: the object that it is called on, or is to make. */
struct bxi_aim {
    struct bx_rref *target;
    struct bx_rref *makes;
    bool value;                 /* bx_rref_to_here */
};
/* bx_rpc_sync, bx_rpc_async, bx_rpc_oneway; at may be NULL. With a target, `to` is not read. The caller ends
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
/* Takes the open call of such a reply out of its slot, with its value; NULL: it needs more. Lock. And calls that were
 * taken so: completes them, without the lock. */
struct bxi_call *bxi_reply_take(struct bx_job *job, struct bxi_peer *peer, uint64_t id, const void *body,
                                size_t body_bytes);
/* One that is taken: others are not taken with it, so that its callbacks find them not done. */
static inline bool bxi_call_has_callbacks(const struct bxi_call *call)
{
    /* Relaxed: one that is added meanwhile runs all the same. */
    return bxi_load_relaxed((_Atomic(struct bxi_callback *) *)&call->future.callbacks) != NULL;
}
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
const char *bxi_why_cut_off(const struct bxi_peer *peer);      /* "was cut off: ..." */
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

#endif
