/* SPDX-License-Identifier: MIT */
/*
 * What lib/ puts on gpu/: tensors in device memory. device.c has the job's devices, streams and peers;
 * device_tensor.c tensors of one's own; device_loan.c what is lent and borrowed.
 *
 * A job opens its devices one by one (bx_gpu_open). Until the first of them job->device->devices is NULL, and none of
 * this is called. Whatever may outlive the job, a tensor or a loan, holds a reference to struct bxi_devices, and
 * asks under its lock whether the driver is still open.
 */
#ifndef BXI_DEVICE_H
#define BXI_DEVICE_H

#include "device_calls.h"

struct bxi_stream {                     /* a stream that tensors are ordered with */
    struct bxi_gpu_lane *lane;
    void *stream;
    uint32_t device;                    /* index into devices->open */
};

#define BXI_GPU_SHOWN 13                /* figures of gpu/ that are counters of the job's */

struct bxi_devices {
    bxi_a32 refs;
    uint32_t fork_generation;           /* of the process that made it */
    pthread_mutex_t lock;               /* all below; outside of the locks of gpu/, inside of job->run->lock */
    struct bx_job *job;
    struct bxi_gpu *gpu;                /* NULL once it is closed */
    uint32_t pins;                      /* calls that wait for a GPU, outside of the lock */
    uint32_t count;
    struct {
        struct bxi_gpu_device *device;
        int ordinal;
        uint32_t stream;                /* its own: index into streams */
        uint32_t staging;               /* that, or BXI_NO_STREAM: nothing ever waits on it for another worker */
    } open[BXI_GPU_DEVICES];
    uint32_t joining;                   /* where several streams of a lease come together, or BXI_NO_STREAM */
    uint32_t stream_count;
    struct bxi_stream streams[BXI_GPU_LANES];
    uint64_t shown[BXI_GPU_SHOWN];      /* what the job's counters say */
    uint64_t polled_ns;                 /* progress role */
    struct bxi_gpu_peer *peers[BXI_WORLD_MAX];
    int words_fd[BXI_WORLD_MAX];        /* of those in peers: their segment, writable, for when they have died; or -1 */
    bool died[BXI_WORLD_MAX];
};
#define BXI_NO_STREAM UINT32_MAX

/* What a worker shows of its device memory: its region, behind its control pages. */
static inline const struct bxi_gpu_region *bxi_device_region(const struct bxi_control *control)
{
    return (const struct bxi_gpu_region *)(const void *)((const unsigned char *)control + BXI_DEVICE_OFFSET);
}

void bxi_devices_release(struct bxi_devices *devices);
/* This process's open devices, for tensors that come without a job: a reference; or NULL. */
struct bxi_devices *bxi_devices_current(void);
/* With the driver open and the lock held, or false. */
bool bxi_devices_enter(struct bxi_devices *devices);
void bxi_devices_leave(struct bxi_devices *devices);
int bxi_devices_gone(const struct bxi_devices *devices);        /* why enter said false, with a sentence */
/* Leaves, but keeps the driver open until unpin. What waits for a GPU does so in between and not under the lock: it may
 * be for a worker that dies, and then it is the role that releases it, which takes the lock now and then. */
void bxi_devices_pin(struct bxi_devices *devices);
void bxi_devices_unpin(struct bxi_devices *devices);
/* Pinned: enters again, also where the driver is about to close (gpu is NULL then, and it is open until leave all the
 * same): what follows up to leave takes no new device or peer. */
void bxi_devices_reenter(struct bxi_devices *devices);
int bxi_devices_fail(int code, const char *what);       /* with gpu/'s sentence */
/* Inside enter: */
/* Each of these lets go of the lock for as long as it waits, and then enters again as reenter does. */
/* A point on the stream of that index. Errors of gpu/. */
int bxi_devices_mark(struct bxi_devices *devices, uint32_t stream, struct bxi_gpu_point *point);
/* Until all work on the stream of that index is done. */
void bxi_devices_wait(struct bxi_devices *devices, uint32_t stream);
/* A block of one byte at least. Errors of gpu/; BX_E_SHUTDOWN. */
int bxi_devices_alloc(struct bxi_devices *devices, uint32_t device, uint64_t bytes, struct bxi_gpu_block **block);
/* Index of the open device of that ordinal; -ENODEV with a sentence. */
int bxi_devices_find(const struct bxi_devices *devices, int ordinal);
/* Index of the stream; NULL: the device's own. -ENOSPC, and errors of gpu/, with a sentence. */
int bxi_devices_stream(struct bxi_devices *devices, uint32_t device, void *stream);
/* The same, of its stream for staging; of the one where others come together. */
int bxi_devices_staging(struct bxi_devices *devices, uint32_t device);
int bxi_devices_joining(struct bxi_devices *devices);
/* The peer in gpu/'s sense. NULL of oneself. 0; -ENODEV: it uses no device; BX_E_PEER_DEAD; with a sentence. */
int bxi_devices_peer(struct bxi_devices *devices, struct bxi_lend_peer *peer, struct bxi_gpu_peer **out);
/* A block of one's own device memory, behind a storage of kind BXI_STORE_DEVICE. */
struct bxi_device_block {
    struct bxi_devices *devices;        /* one reference */
    struct bxi_gpu_block *block;
    uint32_t device;                    /* index into devices->open */
    bx_free_fn ended;                   /* of memory of others that is none, for it is empty; or NULL */
    void *context;
    struct bxi_gpu_point written;       /* devices->lock, as the rest: what fills it; order 0 if nobody has said */
    struct bxi_gpu_point sent;          /* of the device's own stream, when it was last lent without that */
    uint32_t streams;                   /* bits of those that read it */
};

/* One tensor of a message that lies in device memory. */
struct bxi_device_part {
    struct bxi_gpu_ref ref;
    struct bxi_gpu_map *map;            /* the owner's slab, mapped here; or NULL */
    struct bxi_gpu_block *block;        /* staged: a block of one's own; or NULL */
    uint64_t address;
    uint32_t device;                    /* index into devices->open: whose streams read it */
    bool is;                            /* false: the tensor lies in host memory */
    bool staged;
};

struct bxi_device_loan {
    struct bxi_devices *devices;        /* one reference */
    struct bxi_lend_peer *peer;              /* while the job is there */
    bxi_a32 pending;                    /* slabs that are being mapped */
    bxi_a32 code;                       /* why one could not be, negated; 0 */
    char text[BXI_TEXT_BYTES];
    bool ready;                         /* role: addresses are there, or code says why not */
    uint32_t streams;                   /* devices->lock: bits of those that read it */
    struct bxi_device_part parts[];
};

/* ---- tensor.c, loan.c: the table that lend calls (struct bxi_device_ops) ------------------------------ */

void bxi_device_block_free(struct bxi_device_block *block);
void bxi_device_block_until(struct bxi_device_block *block, struct bxi_lend_peer *peer,
                            const struct bxi_gpu_point *point);
int bxi_device_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
int bxi_device_copy_into(struct bx_tensor *to, const struct bx_tensor *from);
int bxi_device_wrap(int ordinal, void *data, const struct bxi_shape *shape, bx_free_fn free_fn, void *context,
                    struct bx_tensor **tensor);
int bxi_device_pack(struct bx_job *job, struct bxi_grant *grant, struct bx_tensor *tensor,
                    struct bxi_tensor_head *head, struct bxi_gpu_ref *ref, struct bxi_storage **hold);
int bxi_device_loan_make(struct bxi_loan *loan);
int bxi_device_loan_part(struct bxi_loan *loan, uint32_t index, const struct bxi_tensor_head *head,
                         const struct bxi_gpu_ref *ref);
void bxi_device_loan_end(struct bxi_loan *loan, struct bxi_gpu_point *point);

#endif
