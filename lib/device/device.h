/* SPDX-License-Identifier: MIT */
/*
 * Tensors in device memory, on gpu/. open.c opens and closes devices; device.c has the job's streams and peers;
 * tensor.c the tensors of this worker; dlpack.c streams of other libraries; loan.c the borrowed ones; passed.c borrowed
 * ones that are passed on.
 *
 * A job opens its devices one by one (bx_gpu_open). Until the first is open job->device->devices is NULL, and nothing
 * here is called. A tensor or a loan may outlive the job: it holds a reference to struct bxi_devices, and checks under
 * devices->lock that the driver is still open (bxi_devices_enter).
 */
#ifndef BXI_DEVICE_H
#define BXI_DEVICE_H

#include "device_calls.h"

struct bxi_stream {                     /* a stream with which tensors are ordered */
    struct bxi_gpu_lane *lane;
    void *stream;
    uint32_t device;                    /* index into devices->open */
};

#define BXI_GPU_SHOWN 13                /* figures of gpu/ that are counters of the job */

struct bxi_devices {
    bxi_a32 refs;
    uint32_t fork_generation;           /* of the process that made it */
    pthread_mutex_t lock;               /* all below; gpu/'s locks are taken inside; never held with run->lock */
    struct bx_job *job;
    struct bxi_gpu *gpu;                /* NULL once closed */
    uint32_t pins;                      /* calls that wait for a GPU or the driver without the lock */
    uint32_t count;
    struct {
        struct bxi_gpu_device *device;
        int ordinal;
        uint32_t stream;                /* the device's own: index into streams */
    } open[BXI_GPU_DEVICES];
    uint32_t staging;                   /* on the first device: never waits for another worker; or BXI_NO_STREAM */
    uint32_t joining;                   /* there too: waits for all streams that read a loan; or BXI_NO_STREAM */
    uint32_t stream_count;
    struct bxi_stream streams[BXI_GPU_LANES];
    uint64_t shown[BXI_GPU_SHOWN];      /* last values written to the job's counters */
    uint64_t polled_ns;                 /* progress role */
    struct bxi_gpu_peer *peers[BXI_WORKERS_MAX];
    _Atomic(struct bxi_gpu_peer *) mortal[BXI_WORKERS_MAX]; /* peers[rank], for the role without the lock */
    struct bxi_segment_view *views[BXI_WORKERS_MAX];    /* of peers[rank], the first process of the rank */
    int words_fd[BXI_WORKERS_MAX];      /* of peers[rank]: its segment, writable, for its death; or -1 */
    struct bxi_gpu_word *words[BXI_WORKERS_MAX];    /* of peers[rank]: its words, mapped writable for gpu/; or
                                                 * NULL; once it is mortal the role's own */
    bxi_a32 died[BXI_WORKERS_MAX];
    bxi_a32 released[BXI_WORKERS_MAX];  /* streams that waited for it go on, though what they read may be unwritten */
    struct bxi_device_kept *kept;       /* passed.c: storages, each until a point has passed */
    struct bxi_gpu_point settling[BXI_GPU_LANES];   /* by stream: its last point when a worker died; order 0: passed */
    bxi_a32 is_settling;                /* written under the lock */
    bxi_a32 pending;                    /* any thread: the role polls soon */
};
#define BXI_NO_STREAM UINT32_MAX
#define BXI_THREADS_NUMBER 2            /* CU_STREAM_PER_THREAD: another stream on each thread */
#define BXI_THREADS_STREAM ((void *)(uintptr_t)BXI_THREADS_NUMBER)

/* Whether the worker shares device memory. */
static inline bool bxi_device_is_open(const struct bxi_control *control)
{
    /* [device.open] acquire, pairs with the release in publish: the pages are there. */
    return bxi_load_acquire((bxi_a32 *)&control->header.device_open) == 1;
}

/* A worker's region: what it publishes of its device memory, after its control pages. */
static inline const struct bxi_gpu_region *bxi_device_region(const struct bxi_control *control)
{
    return (const struct bxi_gpu_region *)(const void *)((const unsigned char *)control + BXI_DEVICE_OFFSET);
}

/* Under devices->lock. Whether the peer can map the slab of that row, of any worker's region. */
static inline bool bxi_device_reaches(const struct bxi_gpu_peer *peer, const struct bxi_gpu_slab_row *row)
{
    uint8_t uuid[BXI_GPU_UUID_BYTES];

    memcpy(uuid, row->uuid, sizeof uuid);
    return bxi_gpu_peer_reaches(peer, uuid, (row->flags & BXI_GPU_SLAB_FD) == 0) == 1;
}

/* ---- device.c --------------------------------------------------------------------------------------- */

void bxi_devices_release(struct bxi_devices *devices);
/* This process's open devices, for calls without a job: a new reference; or NULL. */
struct bxi_devices *bxi_devices_current(void);
void bxi_devices_set_current(struct bxi_devices *devices);
/* Takes the lock and returns true if the driver is open; else false, without the lock. */
bool bxi_devices_enter(struct bxi_devices *devices);
bool bxi_devices_try_enter(struct bxi_devices *devices);       /* the same, and false if another thread has the lock */
void bxi_devices_leave(struct bxi_devices *devices);
int bxi_devices_gone(const struct bxi_devices *devices);        /* why enter returned false, with a sentence */
/* Leaves, but keeps the driver open until unpin. Waits for a GPU belong between the two, without the lock: if the
 * awaited worker dies, the progress role must take the lock to end the wait (bxi_devices_peer_died). */
void bxi_devices_pin(struct bxi_devices *devices);
void bxi_devices_unpin(struct bxi_devices *devices);
/* Unpins and enters again, even if the driver is about to close: gpu is NULL then, but the driver stays open until
 * leave. Code between reenter and leave must not open a device or peer. */
void bxi_devices_reenter(struct bxi_devices *devices);
int bxi_devices_fail(int code, const char *what);       /* with gpu/'s sentence */
/* The rest is called between enter and leave. */
/* A point on the stream of that index. Errors of gpu/. */
static inline int bxi_devices_mark(struct bxi_devices *devices, uint32_t stream, struct bxi_gpu_point *point)
{
    return bxi_gpu_mark(devices->streams[stream].lane, point);
}
/* The next two release the lock while they wait, and then enter again as reenter does. */
/* Waits until all work on the stream of that index is done. */
void bxi_devices_wait(struct bxi_devices *devices, uint32_t stream);
/* A block of at least one byte. Errors of gpu/; BX_E_SHUTDOWN. */
int bxi_devices_alloc(struct bxi_devices *devices, uint32_t device, uint64_t bytes, struct bxi_gpu_block **block);
/* Index of the open device of that ordinal; -ENODEV with a sentence. */
int bxi_devices_index(const struct bxi_devices *devices, int ordinal);      /* -1: it is not open here */
int bxi_devices_find(const struct bxi_devices *devices, int ordinal);
/* Index of the stream; NULL: the device's own. -EINVAL: the per-thread default stream; -ENOSPC, errors of gpu/; with a
 * sentence. */
int bxi_devices_stream(struct bxi_devices *devices, uint32_t device, void *stream);
/* Adds a stream; NULL: creates one, which may wait for the device. Its index, or an error as above. */
int bxi_devices_add_stream(struct bxi_devices *devices, uint32_t device, void *stream);
/* A lane over the calling thread's default stream. Close it on the same thread, in the same call of the program. */
int bxi_device_threads_lane(struct bxi_devices *devices, uint32_t device, struct bxi_gpu_lane **lane);
/* Adds a lane that was opened without the lock. Its index. */
uint32_t bxi_devices_keep_lane(struct bxi_devices *devices, uint32_t device, struct bxi_gpu_lane *lane);
/* Index of the stream for staging; of the joining stream. Created with the first device, because that may wait for the
 * device; on first use only if all lanes were taken then. Errors as above. */
int bxi_devices_staging(struct bxi_devices *devices);
int bxi_devices_joining(struct bxi_devices *devices);
/* is_held of bxi_gpu_options; context: the devices. */
bool bxi_devices_is_held(void *context, uint32_t slab, uint64_t generation);
/* From now on bxi_devices_are_settled is false until all work that is now on the streams is done. check: true when it
 * has become true. */
void bxi_devices_settle(struct bxi_devices *devices);
bool bxi_devices_check_settled(struct bxi_devices *devices);
/* Under devices->lock, all. Whether the peer's memory can be mapped here, and this worker's there: not on another host,
 * and not if one of them came back. Then their tensors are staged. */
bool bxi_devices_share(const struct bxi_devices *devices, const struct bxi_lend_peer *peer);
bool bxi_devices_died(const struct bxi_devices *devices, const struct bxi_lend_peer *peer);    /* its first process */
/* The same, and true earlier: since streams that waited for it have gone on. Without the lock too. */
bool bxi_devices_released(const struct bxi_devices *devices, const struct bxi_lend_peer *peer);
/* 0; -ENODEV: no GPU is open on one side; with a sentence. */
int bxi_devices_are_open(const struct bxi_devices *devices, const struct bxi_lend_peer *peer);
/* gpu/'s peer, opened on first use; NULL of oneself. 0; -ENODEV: no GPU is open on one side; BX_E_PEER_DEAD; -EPROTO:
 * it shares nothing; errors of gpu/; with a sentence. */
int bxi_devices_peer(struct bxi_devices *devices, struct bxi_lend_peer *peer, struct bxi_gpu_peer **out);
/* At the end, after bxi_gpu_close: unmaps and closes what peers' words were mapped with. */
void bxi_devices_close_words(struct bxi_devices *devices);

/* A block of this worker's device memory; the memory of a storage of kind BXI_STORE_DEVICE. */
struct bxi_device_block {
    struct bxi_devices *devices;        /* one reference */
    struct bxi_gpu_block *block;
    uint32_t device;                    /* index into devices->open */
    bx_free_fn ended;                   /* free function of wrapped memory of 0 bytes; or NULL */
    void *context;
    struct bxi_gpu_point written;       /* devices->lock, as the rest: what fills it; order 0: the program set none */
    struct bxi_gpu_point sent;          /* of the device's own stream, when it was last lent without `written` */
    uint32_t streams;                   /* bits: streams that read it */
};

/* One tensor of a loan; is: it is in device memory. */
struct bxi_device_part {
    struct bxi_lend_peer *owner;        /* of the memory; valid while the job exists */
    struct bxi_gpu_ref ref;
    struct bxi_gpu_map *map;            /* the owner's slab, mapped here; or NULL */
    struct bxi_gpu_block *block;        /* staged: a block of this worker; or NULL */
    uint64_t address;
    uint32_t device;                    /* index into devices->open: the device whose streams read it */
    bool is;                            /* false: the tensor is in host memory */
    bool staged;
};

struct bxi_device_loan {
    struct bxi_devices *devices;        /* one reference */
    struct bxi_lend_peer *peer;         /* the lender; valid while the job exists */
    bxi_a32 pending;                    /* slabs being mapped */
    bxi_a32 code;                       /* why one could not be mapped, negated; or 0 */
    char text[BXI_TEXT_BYTES];
    bool ready;                         /* role: addresses are set, or code is */
    uint32_t streams;                   /* devices->lock; bits: streams that read it */
    struct bxi_device_part parts[];
};

/* The part of that loan in which a tensor, or a view of one, lies; NULL: none, it is empty. */
const struct bxi_device_part *bxi_device_part_of(const struct bxi_loan *loan, const struct bx_tensor *tensor);

/* ---- passed.c --------------------------------------------------------------------------------------- */

/* Keeps a storage, which a lease holds, until the peer's point has passed. */
void bxi_device_keep(struct bxi_devices *devices, struct bxi_storage *storage, struct bxi_lend_peer *peer,
                     const struct bxi_gpu_point *point);
/* Under devices->lock, role. The storages that need not be kept any more, to be dropped without the lock. */
struct bxi_device_kept *bxi_devices_passed_poll(struct bxi_devices *devices);
void bxi_devices_passed_drop(struct bxi_device_kept *kept);

/* ---- tensor.c, for dlpack.c ------------------------------------------------------------------------- */

/* As bx_tensor_read_on with a number of DLPack, which is positive, and also for an own tensor that was filled
 * on the device's own stream. */
int bxi_device_read_by(struct bx_tensor *tensor, int64_t stream);

/* ---- tensor.c, loan.c, passed.c: the table that lend calls (struct bxi_device_ops) ------------------------------ */

void bxi_device_block_free(struct bxi_device_block *block);
void bxi_device_until(struct bxi_storage *storage, struct bxi_lend_peer *peer, const struct bxi_gpu_point *point);
int bxi_device_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
int bxi_device_copy_into(struct bx_tensor *to, const struct bx_tensor *from);
int bxi_device_wrap(int ordinal, void *data, const struct bxi_shape *shape, bx_free_fn free_fn, void *context,
                    struct bx_tensor **tensor);
int bxi_device_pack(struct bx_job *job, struct bxi_grant *grant, struct bx_tensor *tensor,
                    struct bxi_tensor_head *head, struct bxi_gpu_ref *ref, struct bxi_storage **hold);
int bxi_device_pass(struct bx_job *job, struct bxi_grant *grant, const struct bx_tensor *tensor,
                    struct bxi_gpu_ref *ref);
int bxi_device_loan_make(struct bxi_loan *loan);
int bxi_device_loan_part(struct bxi_loan *loan, uint32_t index, const struct bxi_tensor_head *head,
                         const struct bxi_gpu_ref *ref);
void bxi_device_loan_end(struct bxi_loan *loan, struct bxi_gpu_point *point);

#endif
