/* SPDX-License-Identifier: MIT */
/*
 * Tensors, their memory, and lending them to other workers. The room's words:
 *
 *     storage   a block of memory that holds tensors
 *     lease     the right of one worker to read what one message lends; a slot and the slot's generation identify it
 *     grant     the owner's side: what one message lends, packed, then entered in the grants to that worker
 *     loan      the borrower's side: the tensors of one message
 *     returns   where the borrower returns the leases of one owner
 *
 * Passing on. A worker B may send on a tensor that it has on loan from A. The record names A; the receiver C reads A's
 * arena, which it has mapped, or A's device memory, which it maps. B's grant to C holds B's loan, so A's lease to B
 * ends after C's to B. When B dies, A takes back its leases to B only when no worker holds a loan of B with tensors
 * that B passed on: A asks all (the rounds of rref/rref.h).
 *
 * Passing back. B may also send the tensor back to A. The record names A and the slot of A's lease to B, in whose holds
 * A finds the storage. A's loan has a reference to it, so a message whose tensors all came back returns its lease at
 * once.
 *
 * A frame that lends begins with struct bxi_lease_head and one struct bxi_tensor_head for each tensor. lend knows a
 * peer only as struct bxi_lend_peer. It reaches rings and bells through struct bxi_lend_ops and GPUs through struct
 * bxi_device_ops.
 */
#ifndef BXI_LEND_H
#define BXI_LEND_H

#include "base/usercall.h"
#include "observe/observe.h"
#include "run/run.h"

#include "gpu/gpu.h"
#include "shm/arena.h"
#include "shm/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bxi_device_block;
struct bxi_device_loan;
struct bxi_grant;
struct bxi_lend_peer;
struct bxi_loan;

/* The head of a frame that lends tensors, or whose message is too large for a frame. tensor_count records and then the
 * message's bytes follow the head, or lie in the sender's arena at packed_offset. */
struct bxi_lease_head {
    uint32_t slot;              /* of the sender's grants to this peer */
    uint32_t tensor_count;
    uint64_t generation;        /* of the slot; written to the borrower's lease word, it returns the lease */
    uint64_t packed_offset;     /* BXI_PACKED_HERE: directly after this head */
    uint64_t packed_bytes;
};
#define BXI_PACKED_HERE UINT64_MAX

/* A tensor's record. After it: a struct bxi_gpu_ref if device is BX_CUDA and BXI_STAGED is not set; ndim int64 of
 * shape; with BXI_STRIDED, ndim int64 of strides (in elements, at least 0). */
struct bxi_tensor_head {
    uint64_t offset;            /* of the first element, in the sender's arena; to oneself: device address */
    uint8_t dtype;              /* enum bx_dtype */
    uint8_t ndim;               /* 0 to BX_DIMS_MAX */
    uint8_t device;             /* enum bx_device_kind */
    uint8_t flags;              /* BXI_STRIDED, BXI_STAGED, BXI_PASSED */
    /* With BXI_PASSED: bxi_owner_word of the worker in whose memory it lies. To that worker itself: its rank, and the
     * slot of its lease to the sender in place of the generation. Else 0. */
    uint32_t owner;
};
#define BXI_STRIDED 1u
#define BXI_STAGED 2u               /* meant for a device, sent through the arena: no path between the devices. With
                                     * BXI_PASSED: through the receiver's own (net/landing.c) */
#define BXI_PASSED 4u               /* the sender has it on loan from the owner, and its grant holds that loan */
#define BXI_TENSOR_HEAD_MAX (sizeof(struct bxi_tensor_head) + 16 * BX_DIMS_MAX)

/* ---- Tensors (storage.c, tensor.c) ----------------------------------------------------------------- */

enum bxi_storage_kind {
    BXI_STORE_ARENA = 1,        /* a block of an arena of this process */
    BXI_STORE_HEAP,
    BXI_STORE_FOREIGN,          /* bx_tensor_wrap, DLPack */
    BXI_STORE_DEVICE,           /* a block of this process's device memory */
    BXI_STORE_LOAN,             /* the first member of a struct bxi_loan: a peer's arena */
};

/* The memory of one or more tensors. Freed with its last reference. */
struct bxi_storage {
    bxi_a32 refs;
    bxi_a32 leases;             /* ARENA, DEVICE: leases that hold it; each also has a reference */
    enum bxi_storage_kind kind;
    unsigned char *base;        /* LOAN: start of the peer's arena */
    size_t bytes;
    struct bxi_arena *arena;    /* ARENA: one reference */
    uint32_t fork_generation;   /* ARENA, DEVICE, LOAN: of the process that made it; a forked child frees nothing */
    bx_free_fn free_fn;         /* FOREIGN: may be NULL; LOAN: ends the loan */
    void *context;
    struct bxi_device_block *device;    /* DEVICE */
};

/* An embedded tensor (a loan's, or one created together with its storage) shares the reference count of its storage.
 * Any other has its own count, and holds one reference to the storage. */
struct bx_tensor {
    bxi_a32 refs;
    bool embedded;
    bool read_only;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t contiguous;
    struct bx_device device;
    unsigned char *data;
    int64_t elements;
    struct bxi_storage *storage;
    struct bxi_passed *passed;  /* of a loan: where in host memory it lies, or was staged; NULL: the lender's arena */
    int64_t shape[BX_DIMS_MAX];
    int64_t strides[BX_DIMS_MAX];
};

/* The one table of dtypes. NULL: it is none. */
struct bxi_dtype {
    char name[9];
    uint8_t bits;
    uint8_t dlpack_code;        /* enum bxi_dl_code */
};
const struct bxi_dtype *bxi_dtype(enum bx_dtype dtype);

/* Fills in dtype, shape, strides (NULL: row-major), elements and contiguous of a tensor. extent_bytes: bytes from the
 * start of its first element to the end of its last. A stride below 0 where it has no meaning is replaced. 0, -EINVAL,
 * -EOVERFLOW with a sentence. */
struct bxi_shape {
    enum bx_dtype dtype;
    int ndim;
    const int64_t *shape;
    const int64_t *strides;
};
int bxi_tensor_shape(struct bx_tensor *tensor, const struct bxi_shape *shape, uint64_t *extent_bytes);
/* Elements from the first of a tensor to its last, included. Cannot overflow: bxi_tensor_shape checked it. */
int64_t bxi_tensor_reach(const struct bx_tensor *tensor);
bool bxi_refs_drop(bxi_a32 *refs);      /* one reference of a storage or a view; true if it was the last */
void bxi_storage_acquire(struct bxi_storage *storage);
void bxi_storage_release(struct bxi_storage *storage);

/* ---- Device memory ------------------------------------------------------------------------------- */

static inline bool bxi_is_device(const struct bx_tensor *tensor)
{
    return tensor->device.kind == BX_CUDA;
}

/* The operations of the room device. bx_gpu_open registers the table, before any tensor in device memory exists. The
 * table is constant and is never removed. */
struct bxi_device_ops {
    void (*block_free)(struct bxi_device_block *block);
    /* A lease on the storage was returned with this point: a block must not be reused, and a loan not end, before. */
    void (*until)(struct bxi_storage *storage, struct bxi_lend_peer *peer, const struct bxi_gpu_point *point);
    int (*copy)(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
    int (*copy_into)(struct bx_tensor *to, const struct bx_tensor *from);
    /* Wraps memory of the program on the open device of that ordinal. */
    int (*wrap)(int ordinal, void *data, const struct bxi_shape *shape, bx_free_fn free_fn, void *context,
                struct bx_tensor **tensor);
    /* The owner: fills in a tensor's record; *hold: the storage to hold, one reference. */
    int (*pack)(struct bx_job *job, struct bxi_grant *grant, struct bx_tensor *tensor, struct bxi_tensor_head *head,
                struct bxi_gpu_ref *ref, struct bxi_storage **hold);
    /* The same of a tensor on loan, to be passed on: bxi_owner_word of its owner; -1: it must be copied. */
    int (*pass)(struct bx_job *job, struct bxi_grant *grant, const struct bx_tensor *tensor, struct bxi_gpu_ref *ref);
    /* The borrower: prepares a loan with device tensors, takes each record, ends the loan. -ENODEV, -ENOMEM. */
    int (*loan_make)(struct bxi_loan *loan);
    int (*loan_part)(struct bxi_loan *loan, uint32_t index, const struct bxi_tensor_head *head,
                     const struct bxi_gpu_ref *ref);
    void (*loan_end)(struct bxi_loan *loan, struct bxi_gpu_point *point);
};
void bxi_device_register(const struct bxi_device_ops *ops);
const struct bxi_device_ops *bxi_device_ops(void);      /* NULL before that */

/* ---- Leases: the owner's side (grant.c, pack.c) ---------------------------------------------------- */

/* Bytes that rpc may add behind a grant's body for so many references of the message. */
#define BXI_TAIL_MAX(count) (8 * ((count) + 3))
#define BXI_BODY_MAX (BXI_FRAME_MAX - BXI_HEAD_BYTES)      /* bytes of a frame after its head */

/* The storages that one lease holds: one reference and one lease each. */
struct bxi_holds {
    struct bxi_holds *next;         /* of a list of leases that have ended */
    struct bxi_lend_peer *from;     /* whose point it is; NULL: returned without a point */
    struct bxi_gpu_point point;
    uint32_t count, last;           /* last: the one that was found last, in the order of the records. Lock */
    struct bxi_storage *storages[];
};

/* What one message lends. pack.c makes it without run->lock; it is entered in the peer's grants under the lock. */
struct bxi_grant {
    unsigned char *body;            /* malloc'ed: the frame's body; begins with the lease head */
    size_t body_bytes;
    struct bxi_holds *holds;        /* NULL: it is entered, and they belong to the peer's grants */
    struct bxi_storage **table;     /* after the holds: hash table of them, to hold each once */
    size_t table_mask;
    uint64_t bytes;                 /* of the blocks held */
    uint64_t tensor_bytes;          /* of the tensors */
    struct bxi_lend_peer *peer;     /* the borrower */
    bool device;                    /* some of it is device memory: the lease is returned with a point */
    bool staged;                    /* some of it has BXI_STAGED */
    bool passes;                    /* some of it has BXI_PASSED */
    struct bxi_gpu_point ready[BXI_GPU_DEVICES];    /* of each device's own stream; order 0: not marked yet */
};

struct bxi_grant_slot {             /* one slot of the grants to a peer */
    uint64_t generation;            /* of the lease on loan, or of the last one */
    uint64_t word;                  /* the borrower's word when last read */
    uint64_t since_ns;              /* CLOCK_MONOTONIC */
    uint64_t bytes;
    uint64_t end_pos;               /* where its frame ends in the ring; BX_FOREVER while the frame is queued */
    struct bxi_holds *holds;
    uint16_t next, prev;            /* in the list of slots on loan, oldest first; or in that of free slots */
    bool out;
    bool device;                    /* is returned with a point */
    bool passes;                    /* holds a loan, which is to be returned as soon as this lease is */
};
#define BXI_NO_LEASE UINT16_MAX

struct bxi_grants {                 /* lock */
    struct bxi_grant_slot *slots;   /* BXI_LEASE_MAX, allocated by the first grant */
    uint16_t oldest, newest;        /* of the slots on loan */
    uint16_t free;
    uint32_t count;                 /* slots on loan */
    uint64_t bytes;
    const bxi_a64 *words;           /* the borrower's lease words; of oneself: loop_words */
    const bxi_a64 *given_back;      /* how many words it has written */
    uint64_t given_back_seen;
};

/* ---- Leases: the borrower's side (loan.c) --------------------------------------------------------- */

/* Where the leases of one owner are returned. Lives as long as any loan of that owner, which may be longer than the
 * job. */
struct bxi_returns {
    bxi_a32 refs;
    struct bxi_lock lock;
    struct bx_job *job;             /* lock; NULL after the job's end: nothing is written any more */
    struct bxi_lend_peer *peer;
    bxi_a64 *words;                 /* this worker's lease words towards the owner; NULL: its rank is taken again */
    bxi_a64 *given_back;            /* how many words were written */
    const bxi_a64 *want;            /* not 0: the owner waits for leases; ring its bell */
};

/* The arena of a third worker, which a loan's tensors lie in; a storage of this worker's own arena; or an older loan of
 * the same memory that this worker has lent on: if that borrower dies, the lease to it is taken back, but the owner
 * must not have the memory back before this loan ends. */
struct bxi_passed {
    struct bxi_passed *next;
    struct bxi_arena_view *view;
    uint32_t owner;                 /* as in the record */
    struct bxi_storage *storage;    /* one reference; NULL: it is a third worker's, and was not lent on */
};

/* One message's tensors on loan. */
struct bxi_loan {
    struct bxi_storage storage;     /* first */
    struct bxi_returns *returns;    /* one reference; NULL: the lease is returned */
    /* One reference: keeps the memory mapped, even if the peer dies. NULL: the lease is returned. */
    struct bxi_arena_view *view;
    uint32_t slot;
    uint64_t generation;
    unsigned char *packed;          /* malloc'ed copy of records and bytes, if they are not in the frame; or NULL */
    const unsigned char *data;      /* the message's bytes, in packed or in its frame */
    size_t bytes;
    struct bxi_device_loan *device; /* of a message with device tensors; or NULL */
    bool passes;                    /* it has tensors that the lender passed on */
    struct bxi_loan *newer, *older; /* lock, if it passes: in the list of the lender's */
    uint64_t opened_ns;             /* if it passes: when, CLOCK_MONOTONIC */
    struct bxi_passed *passed;      /* of those in host memory; each with a reference to its view */
    uint32_t tensor_count;
    uint32_t came_back;             /* of them, to this worker, their owner */
    uint32_t last;                  /* that was found last by its address. Lock */
    struct bx_tensor **pointers;    /* to the tensors; stored after them */
    struct bx_tensor tensors[];
};
/* The arena in which a tensor of the loan lies. */
static inline struct bxi_arena_view *bxi_loan_view(const struct bxi_loan *loan, const struct bx_tensor *tensor)
{
    return tensor->passed != NULL ? tensor->passed->view : loan->view;
}

/* ---- The part of the job --------------------------------------------------------------------------- */

/* The blocks of this worker's arena into which a frame of a worker on another host was received. The frame names them
 * as if they came back to this worker. Role. */
struct bxi_landed {
    struct bxi_landed *next;
    uint32_t name;                              /* 24 bits; in the records, in place of a lease's slot */
    int code;                                   /* below 0: there are no blocks, and that is why */
    uint64_t end_pos;                           /* where the frame ends: when it has been handled, they are let go */
    uint64_t packed_offset, packed_bytes;       /* what the message has in that worker's arena; 0 bytes: nothing */
    uint32_t count, last;                       /* last: the one that was found last, in the order of the records */
    struct bxi_storage *storages[];             /* one reference each */
};

/* What is on loan to one peer and borrowed from it. This worker has one for itself. */
struct bxi_lend_peer {
    int rank;                                   /* start, to loop_words */
    uint32_t generation;                        /* from 0 */
    bool is_remote;                             /* start: on another host, so its device memory cannot be mapped */
    const char *name;
    struct bxi_segment_view *view;              /* of oneself: unused */
    bxi_a64 *loop_words;                        /* of oneself: private lease words, their count, points; else NULL */
    struct bxi_arena_view *arena;               /* role: its arena, read-only; one reference; NULL once closed */
    struct bxi_returns *returns;                /* role: made with the first loan; one reference */
    struct bxi_landed **landed;                 /* start: of another host: of its frames that are not handled yet, in
                                                 * order (net/landing.c) */
    struct bxi_loan *held;                      /* role: loan of the next frame, whose device memory is being mapped */
    int held_code;                              /* role: the error of opening that loan; it is not opened twice */
    bxi_a32 is_gone;                            /* written by the role: nothing is borrowed from its arena any more */
    struct bxi_loan *passed_loans;              /* lock: loans of it with tensors that it passed on, newest first */
    bool is_corrupt;                            /* lock: cut off; its lease words are ignored */
    bool has_left;                              /* role */
    bool waits_for_round;                       /* lock: dead; its leases are taken back at the end of a round */
    struct bxi_grants grants;                   /* lock: what is on loan to it */
    struct bxi_lend_peer *former;               /* lock: the worker that had the rank before, while it is needed */
};

/* True if the peer's segment was truncated: what was just copied from it may be zeroes. */
static inline bool bxi_lend_truncated(const struct bxi_lend_peer *peer)
{
    /* Relaxed: set by the handler of SIGBUS, in the thread that read. */
    return bxi_load_relaxed((bxi_a32 *)&peer->view->truncated) != 0;
}

/* Calls of lend to the room above, which has the peers' rings and bells. */
struct bxi_lend_ops {
    /* The peer wrote invalid data, `what`: the room above will cut it off. */
    void (*suspect)(struct bx_job *job, int rank, const char *what);
    void (*ring)(struct bx_job *job, int rank);     /* wakes the peer if it sleeps; without the lock */
    /* One that joins the rank, and runs, is the peer from now on. Without the lock. */
    void (*look)(struct bx_job *job, int rank);
    /* The newest loan with tensors that some worker had passed on has ended. Any thread. */
    void (*passed_ended)(struct bx_job *job);
    /* Gets ready when the peer's process ends. It may be closed once the peer's death has been handled. */
    int (*process_fd)(struct bx_job *job, int rank);
};

struct bxi_lend {
    const struct bxi_lend_ops *ops;             /* start, all five */
    _Atomic(struct bxi_lend_peer *) *peers;     /* world_size; a member of a struct that rpc allocates */
    struct bxi_arena *arena;                    /* one reference. Before the start: lock */
    /* The room job's: makes the arena before the start, if there is none. Lock. 0, or a code with its sentence. */
    int (*make_arena)(struct bx_job *job);

    _Alignas(BXI_LINE) uint64_t loan_bytes;     /* lock: on loan to all peers */
    bxi_a32 loans_out;                          /* written under the lock: leases on loan to all peers */
    bxi_a32 lease_waiters;                      /* any thread: threads that wait for leases to come back */
};

/* ---- grant.c, pack.c -------------------------------------------------------------------------------------- */
/* Packs what a message lends; copies tensors that are neither in the job's arena nor on its devices. Without run->lock.
 * 0; errors of bx_tensor_create; BX_E_TOO_LARGE; BX_E_ON_LOAN: more than may ever be on loan. With a sentence. */
int bxi_grant_pack(struct bx_job *job, struct bxi_lend_peer *peer, const struct bx_reader *message,
                   struct bxi_grant *grant);
void bxi_grant_drop(struct bxi_grant *grant);   /* without run->lock; what was entered stays */
/* Enters a grant in the peer's grants, which take over its holds. Under run->lock. The slot; -EAGAIN: the limit of
 * loans is reached; -ENOMEM. Call _sent once the frame is in the ring or the queue, else _undo. Under the lock. */
int bxi_grant_enter(struct bx_job *job, struct bxi_lend_peer *peer, struct bxi_grant *grant);
void bxi_grant_sent(struct bx_job *job, struct bxi_lend_peer *peer, const struct bxi_grant *grant);
void bxi_grant_undo(struct bx_job *job, struct bxi_lend_peer *peer, struct bxi_grant *grant);
bool bxi_grant_is_allowed(const struct bx_job *job, const struct bxi_lend_peer *peer, const struct bxi_grant *grant);
/* Collects the returned leases of all peers and wakes the threads that wait for them. Without run->lock. How many. */
uint32_t bxi_grants_reclaim(struct bx_job *job);
/* The rank is taken again: its next worker rings too, if a thread waits for leases. run->lock. */
void bxi_grants_want_from(struct bx_job *job, int rank);
/* The same as bxi_grants_reclaim, if a thread waits for leases; true if any was returned. */
static inline bool bxi_grants_reclaim_wanted(struct bx_job *job)
{
    /* [lease.waiters] sequentially consistent, pairs with the addition in want. */
    return bxi_load_seq_cst(&job->lend->lease_waiters) != 0 && bxi_grants_reclaim(job) > 0;
}
/* Of a storage of the own arena, in that. */
static inline uint64_t bxi_storage_offset(const struct bx_job *job, const struct bxi_storage *storage)
{
    return (uint64_t)(storage->base - bxi_arena_base(job->lend->arena));
}
/* The storage of the own arena in which the offset lies, if that lease to the peer holds it, or a frame of the peer on
 * another host landed in it; with a reference. 0; BX_E_CORRUPT: there is none; or struct bxi_landed's code. Role,
 * without run->lock. */
int bxi_grants_find(struct bx_job *job, struct bxi_lend_peer *peer, uint32_t slot, uint64_t offset,
                    struct bxi_storage **storage);
void bxi_grants_want(struct bx_job *job);       /* before a wait for leases; after it, unwant */
void bxi_grants_unwant(struct bx_job *job);
/* Ends the leases whose frames end at or before through_pos: the peer refused those frames unread. */
void bxi_grants_refused(struct bx_job *job, struct bxi_lend_peer *peer, uint64_t through_pos);
void bxi_grants_unsent(struct bx_job *job, struct bxi_lend_peer *peer);     /* its queued frames were dropped */
void bxi_grants_take_back(struct bx_job *job, struct bxi_lend_peer *peer);  /* its process is dead */
/* When the newest lease was granted that waits for a round: the round is for those of then and later. 0, for all of
 * them, where workers are on several hosts, whose clocks differ. BX_FOREVER: all are back. Lock. */
uint64_t bxi_grants_newest_waiting_ns(const struct bx_job *job);
/* The end of a round: takes back those that wait and were granted then or later. True: others still wait. */
bool bxi_grants_take_back_waiting(struct bx_job *job, uint64_t since_ns);
/* It is dead. If others may hold what it had on loan from this worker and passed on, its leases wait for a round. */
bool bxi_grants_wait_for_round(struct bx_job *job, struct bxi_lend_peer *peer);
void bxi_grants_destroy(struct bxi_lend_peer *peer);

/* ---- loan.c --------------------------------------------------------------------------------------- */
/* Opens the loan of a frame; body is a private copy of the frame's. 0; BX_E_CORRUPT; -ENODEV; -ENOMEM. Role. out->data
 * may point into body. */
int bxi_loan_open(struct bx_job *job, struct bxi_lend_peer *peer, const unsigned char *body, size_t body_bytes,
                  struct bxi_loan **out);
void bxi_loan_release(struct bxi_loan *loan);   /* loan may be NULL; any thread, without run->lock */
void bxi_loan_staged(struct bxi_loan *loan);    /* its staged tensors have been copied. Role */
void bxi_loan_drop_held(struct bxi_lend_peer *peer);      /* of bxi_device_hold, if bxi_loan_open did not take it */
/* Returns the lease of an unread frame; progress has stopped. */
void bxi_loan_return_unread(struct bx_job *job, int rank, uint32_t slot, uint64_t generation);
void bxi_returns_close(struct bxi_lend_peer *peer);   /* the job ends: no more words are written */
/* Its rank is taken again: the words are for the next worker. Role, without the lock. */
void bxi_returns_orphan(struct bxi_lend_peer *peer);
/* No loan of one that is closed is left. Role. */
bool bxi_returns_are_done(const struct bxi_lend_peer *peer);

/* A worker as a record names it: rank | generation << BXI_RANK_BITS. A worker's first generation is 0. */
static inline uint32_t bxi_owner_word(const struct bxi_lend_peer *peer)
{
    return (uint32_t)peer->rank | peer->generation << BXI_RANK_BITS;
}
/* The worker that has the rank now, if it is the one named; NULL: it was another, which is dead. */
static inline struct bxi_lend_peer *bxi_owner_of(const struct bx_job *job, uint32_t word)
{
    struct bxi_lend_peer *peer = job->lend->peers[word & BXI_RANK_MASK];

    return peer->generation == word >> BXI_RANK_BITS ? peer : NULL;
}

/* ---- dlpack.c ------------------------------------------------------------------------------------ */

/* As the functions of boxcar_tensor.h, without a stream. Nothing is NULL. */
int bxi_to_dlpack(struct bx_tensor *tensor, struct DLManagedTensor **managed);
int bxi_to_dlpack_versioned(struct bx_tensor *tensor, struct DLManagedTensorVersioned **managed);
int bxi_from_dlpack(struct DLManagedTensor *managed, struct bx_tensor **tensor);
int bxi_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, struct bx_tensor **tensor);

/* ---- tensor.c -------------------------------------------------------------------------------------- */
/* A block of the arena for a message's bytes, as a tensor; error sentences say "a message". */
int bxi_tensor_for_bytes(struct bx_job *job, size_t bytes, struct bx_tensor **tensor);

#endif
