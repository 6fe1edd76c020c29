/* SPDX-License-Identifier: MIT */
/*
 * What is lent: how a lease and its tensors lie in a frame, messages, tensors and their memory, the owner's
 * ledger, the borrower's loans.
 */
#ifndef BXI_LEND_H
#define BXI_LEND_H

#include "run/run.h"

#include "gpu/gpu.h"
#include "shm/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bxi_device_block;
struct bxi_device_loan;
struct bxi_loan;
struct bxi_peer;

/* What a message lends: tensors, and its own bytes where they do not fit a frame. Behind the head, or in the
 * sender's arena at packed_offset, lie tensor_count descriptors and then the message's bytes. */
struct bxi_lease_head {
    uint32_t slot;              /* of the sender's ledger for this peer */
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

/* ---- Messages ------------------------------------------------------------------------------------ */

struct bx_msg {
    unsigned char *data;        /* == room until it has grown; or inside the loan */
    size_t bytes;
    size_t capacity;
    int error;
    struct bx_tensor **tensors; /* each with a reference, but for those of the loan, which come first */
    size_t tensor_count;
    size_t tensor_capacity;     /* 0 while tensors is NULL or the loan's */
    struct bxi_loan *loan;      /* of a message that came with tensors: one reference; else NULL */
    _Alignas(8) unsigned char room[];
};
struct bx_msg *bxi_msg_copy(const void *data, size_t bytes);       /* NULL when memory is out */

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

/* ---- Leases (lease.c) ---------------------------------------------------------------------------- */

/* The owner's side. What a message is about to lend, made without the lock, then granted under it. */
struct bxi_cargo {
    unsigned char *body;            /* malloc'ed: what goes into the frame; begins with the lease head */
    size_t body_bytes;
    struct bxi_storage **holds;     /* one reference and one lease each */
    uint32_t hold_count;
    struct bxi_storage **table;     /* behind the holds: which they are */
    size_t table_mask;
    bool granted;                   /* the ledger has the holds */
    uint64_t bytes;                 /* of the blocks held */
    uint64_t tensor_bytes;          /* of the tensors */
    struct bxi_peer *peer;          /* who is to have it */
    bool device;                    /* some of it is device memory: the lease comes back with a point */
    bool staged;                    /* some of it is for device memory */
    struct bxi_gpu_point ready[BXI_GPU_DEVICES];    /* of each device's own stream, if it was asked */
};

struct bxi_lent {                   /* one slot of a ledger */
    uint64_t generation;            /* of the lease that is out, or the last one */
    uint64_t word;                  /* the borrower's word when last looked at */
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

struct bxi_ledger {                 /* lock */
    struct bxi_lent *slots;         /* BXI_LEASE_MAX, made with the first grant */
    uint16_t oldest, newest;        /* those that are out */
    uint16_t free;
    uint32_t count;                 /* out */
    uint64_t bytes;
    const bxi_a64 *words;           /* the borrower's lease words; of oneself private ones */
    const bxi_a64 *given_back;      /* and how many it has written */
    uint64_t given_back_seen;
};

/* The borrower's side: how to give back to one peer, for as long as anything of it is held. */
struct bxi_lender {
    bxi_a32 refs;
    struct bxi_lock lock;
    struct bx_job *job;             /* NULL once the job is gone: nothing is written any more */
    struct bxi_peer *peer;
    bxi_a64 *words;                 /* mine, towards that peer */
    bxi_a64 *given_back;            /* and how many I have written */
    const bxi_a64 *want;            /* the peer's wish to be rung */
};

/* One message's tensors on loan. */
struct bxi_loan {
    struct bxi_storage storage;     /* first */
    struct bxi_lender *lender;      /* one reference; NULL: the lease has been given back */
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

struct bxi_lend {
    struct bxi_arena *arena;                    /* start; one reference */

    _Alignas(BXI_LINE) uint64_t loan_bytes;     /* lock: on loan to all peers */
    bxi_a32 loans_out;                          /* written under the lock: leases on loan to all peers */
    bxi_a32 lease_waiters;                      /* any thread: threads that wait for leases to come back */
};

/* ---- lease.c -------------------------------------------------------------------------------------- */
/* Packs what a message lends, copying tensors that are not in the job's arena. Without the lock. 0; errors
 * of bx_tensor_create, BX_E_TOO_LARGE, BX_E_ON_LOAN: more than may ever be on loan. With a sentence. */
int bxi_cargo_pack(struct bx_job *job, struct bxi_peer *peer, const struct bx_msg *msg, struct bxi_cargo *cargo);
void bxi_cargo_drop(struct bxi_cargo *cargo);   /* without the lock; what was granted stays so */
/* Enters a cargo in the peer's ledger, which takes over its holds. Lock. The slot, or -EAGAIN: as much is on
 * loan as may be; -ENOMEM. Then either sent, when its frame is in the ring or the queue, or ungrant. */
int bxi_lease_grant(struct bx_job *job, struct bxi_peer *peer, struct bxi_cargo *cargo);
void bxi_lease_sent(struct bx_job *job, struct bxi_peer *peer, const struct bxi_cargo *cargo);
void bxi_lease_ungrant(struct bx_job *job, struct bxi_peer *peer, struct bxi_cargo *cargo);
bool bxi_lease_may_grant(const struct bx_job *job, const struct bxi_peer *peer, const struct bxi_cargo *cargo);
/* Takes what has come back, of all peers, and wakes those who wait for it. Without the lock. How many leases. */
uint32_t bxi_leases_reclaim(struct bx_job *job);
void bxi_leases_want(struct bx_job *job);       /* this thread is about to wait for leases; then unwant */
void bxi_leases_unwant(struct bx_job *job);
void bxi_leases_refused(struct bx_job *job, struct bxi_peer *peer, uint64_t through_pos);
void bxi_leases_unsent(struct bx_job *job, struct bxi_peer *peer);     /* its queue of frames was dropped */
void bxi_leases_take_back(struct bx_job *job, struct bxi_peer *peer);  /* its process is dead */
void bxi_ledger_destroy(struct bxi_peer *peer);

/* ---- loan.c --------------------------------------------------------------------------------------- */
/* What a private copy of a frame's body lends. 0; BX_E_CORRUPT; -ENOMEM, with the lease given back. Role.
 * out->data may point into body. */
int bxi_loan_open(struct bx_job *job, struct bxi_peer *peer, const unsigned char *body, size_t body_bytes,
                  struct bxi_loan **out);
void bxi_loan_release(struct bxi_loan *loan);   /* NULL is fine; any thread, not under the job's lock */
void bxi_loan_end(struct bxi_loan *loan);       /* its last reference is gone (bxi_storage_release) */
void bxi_loan_drop_held(struct bxi_peer *peer);            /* what bxi_device_hold opened and nobody took */
struct bx_msg *bxi_msg_of_loan(struct bxi_loan *loan);     /* a message of its own; NULL when memory is out */
void bxi_loans_unread(struct bx_job *job);      /* gives back what unread frames lend; progress has stopped */
void bxi_lender_close(struct bxi_peer *peer);   /* the job ends: nothing more is given back */

/* ---- tensor.c -------------------------------------------------------------------------------------- */
/* A block of the arena for the bytes of a message, as a tensor; errors name the message. */
int bxi_tensor_for_bytes(struct bx_job *job, size_t bytes, struct bx_tensor **tensor);

#endif
