/* SPDX-License-Identifier: MIT */
/*
 * What the room lend owns: tensors and their memory, and lending them to other workers. Its words:
 *
 *     storage   a block of memory that tensors lie in
 *     lease     the right of one other worker to read what one message lends; named by a slot and its generation
 *     grant     the owner's side: what one message lends, packed and then entered in the grants to that worker
 *     loan      the borrower's side: the tensors that came with one message
 *     returns   where the borrower gives the leases of one worker back
 *
 * A frame that lends begins with struct bxi_lease_head and one struct bxi_tensor_head for each tensor. lend knows peers
 * by struct bxi_lend_peer only; what it asks of rings and bells goes through struct bxi_lend_ops, and what it asks of
 * GPUs through struct bxi_device_ops.
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

/* What a message lends: tensors, and its own bytes where they do not fit a frame. Behind the head, or in the
 * sender's arena at packed_offset, lie tensor_count descriptors and then the message's bytes. */
struct bxi_lease_head {
    uint32_t slot;              /* of the sender's grants to this peer */
    uint32_t tensor_count;
    uint64_t generation;        /* of the slot; the borrower writes it to its lease word to give back */
    uint64_t packed_offset;     /* BXI_PACKED_HERE: behind this head */
    uint64_t packed_bytes;
};
#define BXI_PACKED_HERE UINT64_MAX

/* Followed, where device is BX_CUDA and it is not staged, by a struct bxi_gpu_ref; by ndim int64 of shape and, with
 * BXI_STRIDED, ndim of strides (elements, at least 0). */
struct bxi_tensor_head {
    uint64_t offset;            /* of the first element, in the sender's arena; to oneself: a device address */
    uint8_t dtype;              /* enum bx_dtype */
    uint8_t ndim;               /* 0 to BX_DIMS_MAX */
    uint8_t device;             /* enum bx_device_kind */
    uint8_t flags;              /* BXI_STRIDED */
    uint32_t reserved;          /* 0 */
};
#define BXI_STRIDED 1u
#define BXI_STAGED 2u               /* for a device, but it lies in the arena: no way from device to device */
#define BXI_TENSOR_HEAD_MAX (sizeof(struct bxi_tensor_head) + 16 * BX_DIMS_MAX)

/* ---- Tensors (tensor.c) -------------------------------------------------------------------------- */

enum bxi_storage_kind {
    BXI_STORE_ARENA = 1,        /* a block of an arena of this process */
    BXI_STORE_HEAP,
    BXI_STORE_FOREIGN,          /* bx_tensor_wrap, DLPack */
    BXI_STORE_DEVICE,           /* a block of this process's device memory */
    BXI_STORE_LOAN,             /* the head of a struct bxi_loan: a peer's arena */
};

/* What tensors point into. Its last reference frees it. */
struct bxi_storage {
    bxi_a32 refs;
    bxi_a32 leases;             /* ARENA: that hold it (they also have a reference each) */
    enum bxi_storage_kind kind;
    unsigned char *base;        /* of LOAN: the peer's arena, whole */
    size_t bytes;
    struct bxi_arena *arena;    /* ARENA: one reference */
    uint32_t fork_generation;   /* ARENA, LOAN: of the process that made it; a forked child has nothing to free */
    bx_free_fn free_fn;         /* FOREIGN */
    void *context;
    struct bxi_device_block *device;    /* DEVICE */
};

/* Of an embedded tensor (a loan's, or the first of a storage that was made with it) references are those
 * of the storage; any other has its own, and one reference to the storage. */
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
    int64_t shape[BX_DIMS_MAX];
    int64_t strides[BX_DIMS_MAX];
};

/* Fills in dtype, shape, strides (NULL: row-major), elements, contiguous of a zeroed tensor, and says how many
 * bytes from its first element its last one ends. 0, -EINVAL, -EOVERFLOW with a sentence. */
struct bxi_shape {
    enum bx_dtype dtype;
    int ndim;
    const int64_t *shape;
    const int64_t *strides;
};
int bxi_tensor_shape(struct bx_tensor *tensor, const struct bxi_shape *shape, uint64_t *extent_bytes);
void bxi_storage_acquire(struct bxi_storage *storage);
void bxi_storage_release(struct bxi_storage *storage);

/* ---- Device memory ------------------------------------------------------------------------------- */

static inline bool bxi_is_device(const struct bx_tensor *tensor)
{
    return tensor->device.kind == BX_CUDA;
}

/* What the room device does for tensors in device memory. bx_gpu_open registers the table, before there is such a
 * tensor; the table is constant and stays. */
struct bxi_device_ops {
    void (*block_free)(struct bxi_device_block *block);
    /* A lease on the block came back with this point: the block is used again after the point. */
    void (*block_until)(struct bxi_device_block *block, struct bxi_lend_peer *peer, const struct bxi_gpu_point *point);
    int (*copy)(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
    int (*copy_into)(struct bx_tensor *to, const struct bx_tensor *from);
    /* Memory of the program's on the open device of that ordinal. */
    int (*wrap)(int ordinal, void *data, const struct bxi_shape *shape, bx_free_fn free_fn, void *context,
                struct bx_tensor **tensor);
    /* The owner: what a tensor's record in a frame says. */
    int (*pack)(struct bx_job *job, struct bxi_grant *grant, struct bx_tensor *tensor, struct bxi_tensor_head *head,
                struct bxi_gpu_ref *ref, struct bxi_storage **hold);
    /* The borrower: a loan that has tensors in device memory, each of its records, its end. -ENODEV, -ENOMEM. */
    int (*loan_make)(struct bxi_loan *loan);
    int (*loan_part)(struct bxi_loan *loan, uint32_t index, const struct bxi_tensor_head *head,
                     const struct bxi_gpu_ref *ref);
    void (*loan_end)(struct bxi_loan *loan, struct bxi_gpu_point *point);
};
void bxi_device_register(const struct bxi_device_ops *ops);
const struct bxi_device_ops *bxi_device_ops(void);      /* NULL before that */

/* ---- Leases: the owner's side (grant.c, pack.c) ---------------------------------------------------- */

#define BXI_BODY_MAX (BXI_FRAME_MAX - BXI_HEAD_BYTES)      /* bytes of a frame behind its head */

/* What one message lends: made without the lock (pack), entered in the peer's grants under it. */
struct bxi_grant {
    unsigned char *body;            /* malloc'ed: what goes into the frame; begins with the lease head */
    size_t body_bytes;
    struct bxi_storage **holds;     /* one reference and one lease each */
    uint32_t hold_count;
    struct bxi_storage **table;     /* behind the holds: which they are */
    size_t table_mask;
    bool granted;                   /* the peer's grants have the holds */
    uint64_t bytes;                 /* of the blocks held */
    uint64_t tensor_bytes;          /* of the tensors */
    struct bxi_lend_peer *peer;          /* who is to have it */
    bool device;                    /* some of it is device memory: the lease comes back with a point */
    bool staged;                    /* some of it is for device memory */
    struct bxi_gpu_point ready[BXI_GPU_DEVICES];    /* of each device's own stream, if it was asked */
};

struct bxi_grant_slot {                   /* one slot of the grants to a peer */
    uint64_t generation;            /* of the lease that is out, or the last one */
    uint64_t word;                  /* the borrower's word when last read */
    uint64_t since_ns;              /* CLOCK_MONOTONIC */
    uint64_t bytes;
    uint64_t end_pos;               /* where its frame ends in the ring; BX_FOREVER while it is queued */
    struct bxi_storage **holds;
    uint32_t hold_count;
    uint16_t next, prev;            /* in the list of those that are out, oldest first; or free ones */
    bool out;
    bool device;                    /* comes back with a point */
};
#define BXI_NO_LEASE UINT16_MAX

struct bxi_grants {                 /* lock */
    struct bxi_grant_slot *slots;         /* BXI_LEASE_MAX, made with the first grant */
    uint16_t oldest, newest;        /* those that are out */
    uint16_t free;
    uint32_t count;                 /* out */
    uint64_t bytes;
    const bxi_a64 *words;           /* the borrower's lease words; of oneself private ones */
    const bxi_a64 *given_back;      /* and how many it has written */
    uint64_t given_back_seen;
};

/* ---- Leases: the borrower's side (loan.c) --------------------------------------------------------- */

/* Where leases of one peer are given back. Lives as long as something of that peer is held, which may be longer than
 * the job. */
struct bxi_returns {
    bxi_a32 refs;
    struct bxi_lock lock;
    struct bx_job *job;             /* NULL once the job is gone: nothing is written any more */
    struct bxi_lend_peer *peer;
    bxi_a64 *words;                 /* mine, towards that peer */
    bxi_a64 *given_back;            /* and how many I have written */
    const bxi_a64 *want;            /* not 0: the peer waits for leases and must be rung */
};

/* One message's tensors on loan. */
struct bxi_loan {
    struct bxi_storage storage;     /* first */
    struct bxi_returns *returns;      /* one reference; NULL: the lease has been given back */
    struct bxi_arena_view *view;    /* one reference: the memory stays mapped, whatever becomes of the peer */
    uint32_t slot;
    uint64_t generation;
    unsigned char *packed;          /* malloc'ed copy of descriptors and bytes that came by the arena; or NULL */
    const unsigned char *data;      /* the message's bytes, in packed or in the frame that it came in */
    size_t bytes;
    struct bxi_device_loan *device; /* of a message with device tensors; or NULL */
    uint32_t tensor_count;
    struct bx_tensor **pointers;    /* to the tensors, behind them */
    struct bx_tensor tensors[];
};

/* ---- The part of the job --------------------------------------------------------------------------- */

/* What is lent to one peer and borrowed from it; of oneself too. */
struct bxi_lend_peer {
    int rank;                                   /* start, to loop_words */
    const char *name;
    struct bxi_segment_view *view;              /* of oneself: unused */
    bxi_a64 *loop_words;                        /* of oneself: private lease words, their count, points; else NULL */
    struct bxi_arena_view *arena;               /* role: its arena, read-only; one reference; NULL when it is closed */
    struct bxi_returns *returns;                /* role: made with the first loan; one reference */
    struct bxi_loan *held;                      /* role: of the next frame, until its device memory is mapped */
    int held_code;                              /* or why it has none, though it was opened: it is not opened twice */
    bool is_corrupt;                            /* lock: nothing that it writes is believed any more */
    struct bxi_grants grants;                   /* lock: what is on loan to it */
};

/* Did the peer's segment shrink, so that what was just copied of it may be zeroes? */
static inline bool bxi_lend_truncated(const struct bxi_lend_peer *peer)
{
    /* Relaxed: set by the handler of SIGBUS, in the thread that read. */
    return bxi_load_relaxed((bxi_a32 *)&peer->view->truncated) != 0;
}

/* What lend asks of the room above it, which has the peers' rings and bells. */
struct bxi_lend_ops {
    /* The peer's memory holds nonsense, `what`: it is going to be cut off. */
    void (*suspect)(struct bx_job *job, int rank, const char *what);
    void (*ring)(struct bx_job *job, int rank);     /* wakes the peer if it sleeps; without the lock */
};

struct bxi_lend {
    const struct bxi_lend_ops *ops;             /* start, all three */
    struct bxi_lend_peer *peers;                /* world_size */
    struct bxi_arena *arena;                    /* one reference */

    _Alignas(BXI_LINE) uint64_t loan_bytes;     /* lock: on loan to all peers */
    bxi_a32 loans_out;                          /* written under the lock: leases on loan to all peers */
    bxi_a32 lease_waiters;                      /* any thread: threads that wait for leases to come back */
};

/* ---- grant.c, pack.c -------------------------------------------------------------------------------------- */
/* Packs what a message lends, copying tensors that are not in the job's arena. Without the lock. 0; errors
 * of bx_tensor_create, BX_E_TOO_LARGE, BX_E_ON_LOAN: more than may ever be on loan. With a sentence. */
int bxi_grant_pack(struct bx_job *job, struct bxi_lend_peer *peer, const struct bx_reader *message,
                   struct bxi_grant *grant);
void bxi_grant_drop(struct bxi_grant *grant);   /* without the lock; what was granted stays so */
/* Enters a grant in the peer's grants, which take over its holds. Lock. The slot, or -EAGAIN: as much is on
 * loan as may be; -ENOMEM. Then either sent, when its frame is in the ring or the queue, or ungrant. */
int bxi_grant_enter(struct bx_job *job, struct bxi_lend_peer *peer, struct bxi_grant *grant);
void bxi_grant_sent(struct bx_job *job, struct bxi_lend_peer *peer, const struct bxi_grant *grant);
void bxi_grant_undo(struct bx_job *job, struct bxi_lend_peer *peer, struct bxi_grant *grant);
bool bxi_grant_is_allowed(const struct bx_job *job, const struct bxi_lend_peer *peer, const struct bxi_grant *grant);
/* Takes what has come back, of all peers, and wakes those who wait for it. Without the lock. How many leases. */
uint32_t bxi_grants_reclaim(struct bx_job *job);
/* The same, if a thread waits for leases; true if any came back. */
static inline bool bxi_grants_reclaim_wanted(struct bx_job *job)
{
    /* [lease.waiters] sequentially consistent, pairs with the addition in bxi_grants_want. */
    return bxi_load_seq_cst(&job->lend->lease_waiters) != 0 && bxi_grants_reclaim(job) > 0;
}
void bxi_grants_want(struct bx_job *job);       /* this thread is about to wait for leases; then unwant */
void bxi_grants_unwant(struct bx_job *job);
void bxi_grants_refused(struct bx_job *job, struct bxi_lend_peer *peer, uint64_t through_pos);
void bxi_grants_unsent(struct bx_job *job, struct bxi_lend_peer *peer);     /* its queue of frames was dropped */
void bxi_grants_take_back(struct bx_job *job, struct bxi_lend_peer *peer);  /* its process is dead */
void bxi_grants_destroy(struct bxi_lend_peer *peer);

/* ---- loan.c --------------------------------------------------------------------------------------- */
/* What a private copy of a frame's body lends. 0; BX_E_CORRUPT; -ENOMEM, with the lease given back. Role.
 * out->data may point into body. */
int bxi_loan_open(struct bx_job *job, struct bxi_lend_peer *peer, const unsigned char *body, size_t body_bytes,
                  struct bxi_loan **out);
void bxi_loan_release(struct bxi_loan *loan);   /* NULL is fine; any thread, not under the job's lock */
void bxi_loan_end(struct bxi_loan *loan);       /* its last reference is gone (bxi_storage_release) */
void bxi_loan_drop_held(struct bxi_lend_peer *peer);            /* what bxi_device_hold opened and nobody took */
/* Gives back a lease of a frame that nobody has read; progress has stopped. */
void bxi_loan_return_unread(struct bx_job *job, int rank, uint32_t slot, uint64_t generation);
void bxi_returns_close(struct bxi_lend_peer *peer);   /* the job ends: nothing more is given back */

/* ---- tensor.c -------------------------------------------------------------------------------------- */
/* A block of the arena for the bytes of a message, as a tensor; errors name the message. */
int bxi_tensor_for_bytes(struct bx_job *job, size_t bytes, struct bx_tensor **tensor);

#endif
