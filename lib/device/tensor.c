/* SPDX-License-Identifier: MIT */
/*
 * Tensors in this worker's device memory: creating and wrapping, ordering with streams, copying, and the records that
 * lend them.
 *
 * Such a tensor differs from others only in its storage; its data is a device address. A point on a stream marks when
 * it is filled. The program sets the point (bx_tensor_written_on). If it does not, the point is taken of the device's
 * own stream when the tensor is sent, once for all tensors of a message.
 *
 * Any thread; marks and waits of gpu/ are called under devices->lock or pinned.
 */
#include "device.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t address_of(const struct bx_tensor *tensor)
{
    return (uint64_t)(uintptr_t)tensor->data;
}

/* ---- creation ---------------------------------------------------------------------------------- */

struct owned {
    struct bxi_storage storage;         /* first: freed as one */
    struct bx_tensor tensor;
    struct bxi_device_block block;
};

static struct owned *owned_create(struct bxi_devices *devices, uint32_t device)
{
    struct owned *owned = calloc(1, sizeof *owned);

    if (owned == NULL) {
        bx_fail(-ENOMEM, "no memory for a tensor's %zu bytes of description", sizeof *owned);
        return NULL;
    }
    bxi_store_relaxed(&owned->storage.refs, 1);     /* relaxed: nobody else knows it yet */
    owned->storage.kind = BXI_STORE_DEVICE;
    owned->storage.device = &owned->block;
    owned->storage.fork_generation = bxi_load_relaxed(&bxi_forks);  /* relaxed: as in arena_memory */
    owned->tensor.embedded = true;
    owned->tensor.device = (struct bx_device){ BX_CUDA, devices->open[device].ordinal };
    owned->tensor.storage = &owned->storage;
    owned->tensor.passed = NULL;
    owned->block.devices = devices;
    owned->block.device = device;
    return owned;
}

static void owned_complete(struct owned *owned, uint64_t address, uint64_t bytes)
{
    bxi_add(&owned->block.devices->refs, 1);
    owned->storage.base = (unsigned char *)(uintptr_t)address;
    owned->storage.bytes = bytes;
    owned->tensor.data = owned->storage.base;
}

/* Under devices->lock. */
static int create(struct bxi_devices *devices, uint32_t device, const struct bxi_shape *shape,
                  struct bx_tensor **tensor)
{
    struct owned *owned = owned_create(devices, device);
    uint64_t bytes = 0;
    int rc;

    if (owned == NULL)
        return -ENOMEM;
    rc = bxi_tensor_shape(&owned->tensor, shape, &bytes);
    if (rc == 0) {
        rc = bxi_devices_alloc(devices, device, bytes, &owned->block.block);
        if (rc == BX_E_SHUTDOWN)
            rc = bxi_devices_gone(devices);
        else if (rc < 0)
            rc = bxi_devices_fail(rc, "no device memory for a tensor");
    }
    if (rc < 0) {
        free(owned);
        return rc;
    }
    owned_complete(owned, owned->block.block->address, bytes);
    *tensor = &owned->tensor;
    return 0;
}

static int enter_device(struct bx_job *job, int ordinal, struct bxi_devices **out)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    int index;

    if (devices == NULL || !bxi_devices_enter(devices))
        return bx_fail(-ENODEV, "worker '%s' has no GPU open; call bx_gpu_open", job->name);
    index = bxi_devices_find(devices, ordinal);
    if (index < 0)
        bxi_devices_leave(devices);
    else
        *out = devices;
    return index;
}

int bx_tensor_create_on(struct bx_job *job, struct bx_device device, enum bx_dtype dtype, int ndim,
                        const int64_t *shape, struct bx_tensor **tensor)
{
    struct bxi_devices *devices = NULL;
    int index = job != NULL ? bxi_job_check(job) : 0, rc;

    if (index < 0)
        return index;
    if (device.kind == BX_CPU)
        return bx_tensor_create(job, dtype, ndim, shape, tensor);
    if (job == NULL || tensor == NULL || device.kind != BX_CUDA)
        return bx_fail(-EINVAL, "a device tensor needs a job, a device that bx_gpu_open gave, and a place to put it");
    if (bxi_load_relaxed(&job->lend->loans_out) != 0)     /* relaxed: a lease granted now is not returned yet */
        bxi_grants_reclaim(job);
    index = enter_device(job, device.index, &devices);
    if (index < 0)
        return index;
    rc = create(devices, (uint32_t)index, &(struct bxi_shape){ dtype, ndim, shape, NULL }, tensor);
    bxi_devices_leave(devices);
    return rc;
}

/* Under devices->lock. Sets foreign->bytes to the shape's extent. */
static int wrap(struct bxi_devices *devices, uint32_t device, struct bxi_gpu_foreign *foreign,
                const struct bxi_shape *shape, struct bx_tensor **tensor)
{
    struct bxi_gpu *gpu = devices->gpu;
    struct owned *owned = owned_create(devices, device);
    int rc = owned == NULL ? -ENOMEM : bxi_tensor_shape(&owned->tensor, shape, &foreign->bytes);

    if (rc == 0 && foreign->address % bx_dtype_bytes(shape->dtype) != 0)
        rc = bx_fail(-EINVAL, "the device address %#llx is not a multiple of the %zu bytes of an element",
                     (unsigned long long)foreign->address, bx_dtype_bytes(shape->dtype));
    if (rc == 0) {
        bxi_devices_pin(devices);
        rc = bxi_gpu_wrap(gpu, foreign, &owned->block.block);
        bxi_devices_reenter(devices);
        if (rc < 0)
            bxi_devices_fail(rc, "this device memory cannot be handed over");
    }
    if (rc < 0) {
        free(owned);
        return rc;
    }
    owned_complete(owned, foreign->address, foreign->bytes);
    *tensor = &owned->tensor;
    return 0;
}

static bool is_empty(const struct bxi_shape *shape)
{
    for (int i = 0; i < shape->ndim && i < BX_DIMS_MAX && shape->shape != NULL; i++)
        if (shape->shape[i] == 0)
            return true;
    return false;
}

/* Under devices->lock. An empty tensor has no memory to lend and may have no address: it gets a block of the job. */
static int wrap_nothing(struct bxi_devices *devices, uint32_t device, const struct bxi_gpu_foreign *foreign,
                        const struct bxi_shape *shape, struct bx_tensor **tensor)
{
    struct bx_tensor *made;
    int rc = create(devices, device, shape, &made);

    if (rc < 0)
        return rc;
    made->storage->device->ended = foreign->freed;
    made->storage->device->context = foreign->context;
    *tensor = made;
    return 0;
}

int bxi_device_wrap(int ordinal, void *data, const struct bxi_shape *shape, bx_free_fn free_fn, void *context,
                    struct bx_tensor **tensor)
{
    struct bxi_devices *devices = bxi_devices_current();
    struct bxi_gpu_foreign foreign = { .address = (uint64_t)(uintptr_t)data, .freed = free_fn, .context = context };
    int rc;

    if (devices == NULL)
        return bx_fail(-ENODEV, "the tensor lies on device cuda:%d, and no GPU is open; call bx_gpu_open", ordinal);
    if (!bxi_devices_enter(devices)) {
        rc = bxi_devices_gone(devices);
        goto release;
    }
    rc = bxi_devices_find(devices, ordinal);
    if (rc >= 0 && is_empty(shape))
        rc = wrap_nothing(devices, (uint32_t)rc, &foreign, shape, tensor);
    else if (rc >= 0)
        rc = wrap(devices, (uint32_t)rc, &foreign, shape, tensor);
    bxi_devices_leave(devices);

release:
    bxi_devices_release(devices);
    return rc;
}

/* Under devices->lock. Work here that writes or reads the block may not be done yet: reuse waits for it. */
static void until_own_work(struct bxi_device_block *block)
{
    struct bxi_devices *devices = block->devices;

    if (block->written.order != 0)
        bxi_gpu_block_until(block->block, NULL, &block->written);
    if (block->sent.order != 0)
        bxi_gpu_block_until(block->block, NULL, &block->sent);
    for (uint32_t i = 0; i < devices->stream_count; i++) {
        struct bxi_gpu_point point;

        if ((block->streams >> i & 1) == 0)
            continue;
        if (bxi_devices_mark(devices, i, &point) < 0 || bxi_gpu_block_until(block->block, NULL, &point) < 0)
            bxi_devices_wait(devices, i);
    }
}

void bxi_device_block_free(struct bxi_device_block *block)
{
    struct bxi_devices *devices = block->devices;

    if (bxi_devices_enter(devices)) {
        until_own_work(block);
        bxi_gpu_free(block->block);
        bxi_devices_leave(devices);
    }
    if (block->ended != NULL)
        block->ended(block->context);
    bxi_devices_release(devices);
}

/* The block is not reused before the point. */
static void block_until(struct bxi_storage *storage, struct bxi_lend_peer *peer, const struct bxi_gpu_point *point)
{
    struct bxi_devices *devices = storage->device->devices;
    struct bxi_gpu_peer *from;
    struct bx_job *job;
    int rc;

    if (!bxi_devices_enter(devices))
        return;
    job = devices->job;
    rc = bxi_devices_peer(devices, peer, &from);
    if (rc == 0 && point->order != 0)
        rc = bxi_gpu_block_until(storage->device->block, from, point);
    bxi_devices_leave(devices);
    if (rc == -EPROTO)
        job->lend->ops->suspect(job, peer->rank, "it gives a lease back with a point on a GPU that cannot be one");
}

void bxi_device_until(struct bxi_storage *storage, struct bxi_lend_peer *peer, const struct bxi_gpu_point *point)
{
    const struct bxi_loan *loan = (const struct bxi_loan *)(const void *)storage;

    if (storage->kind == BXI_STORE_DEVICE)
        block_until(storage, peer, point);
    else if (loan->device != NULL && point->order != 0)
        bxi_device_keep(loan->device->devices, storage, peer, point);
}

/* ---- streams ----------------------------------------------------------------------------------- */

int bx_tensor_written_on(struct bx_tensor *tensor, void *stream)
{
    struct bxi_device_block *block;
    int rc;

    if (tensor == NULL)
        return bxi_null(__func__, "the tensor");
    if (!bxi_is_device(tensor))
        return bx_fail(-EINVAL, "the tensor does not lie in device memory: no stream writes it");
    if (tensor->storage->kind != BXI_STORE_DEVICE)
        return bx_fail(-EROFS, "the tensor is on loan from another worker and must not be written to");
    block = tensor->storage->device;
    if (!bxi_devices_enter(block->devices))
        return bxi_devices_gone(block->devices);
    rc = bxi_devices_stream(block->devices, block->device, stream);
    if (rc >= 0)
        rc = bxi_devices_mark(block->devices, (uint32_t)rc, &block->written) < 0
                 ? bxi_devices_fail(-EIO, "a stream cannot be marked") : 0;
    bxi_devices_leave(block->devices);
    return rc;
}

struct behind {                         /* the point that work on a stream must wait for */
    struct bxi_gpu_peer *peer;          /* NULL: this process */
    const struct bxi_lend_peer *owner;  /* of the point; NULL: this process */
    struct bxi_gpu_point point;         /* order 0: nothing */
};

/* Under devices->lock. Of a borrowed tensor: the return of its lease must wait for the stream. */
static int reads_borrowed(const struct bx_tensor *tensor, uint32_t stream, struct behind *behind)
{
    struct bxi_loan *loan = (struct bxi_loan *)tensor->storage;
    const struct bxi_device_part *part = bxi_device_part_of(loan, tensor);

    loan->device->streams |= UINT32_C(1) << stream;
    if (part == NULL || part->ref.ready.order == 0)
        return 0;
    behind->owner = part->owner;
    behind->point = part->ref.ready;
    return bxi_devices_peer(loan->device->devices, part->owner, &behind->peer);
}

/* Pinned, or under devices->lock. Blocks if no stream here can wait for the point. */
static int put_behind(struct bxi_gpu_lane *lane, const struct behind *behind)
{
    int rc = behind->point.order == 0 ? 0 : bxi_gpu_after(lane, behind->peer, &behind->point);

    if (rc == -EOWNERDEAD)
        return bx_fail(BX_E_PEER_DEAD, "worker '%s' died before its tensor was written", behind->owner->name);
    return rc < 0 ? bxi_devices_fail(rc, "a stream cannot be made to wait") : 0;
}

static struct bxi_devices *devices_of(const struct bx_tensor *tensor)
{
    return tensor->storage->kind == BXI_STORE_DEVICE ? tensor->storage->device->devices
                                                     : ((struct bxi_loan *)tensor->storage)->device->devices;
}

/* Index of the open device whose streams are used for the tensor: its own, or, if borrowed, the one on which it is
 * mapped. */
static uint32_t device_of(const struct bx_tensor *tensor)
{
    const struct bxi_device_part *part;

    if (tensor->storage->kind == BXI_STORE_DEVICE)
        return tensor->storage->device->device;
    part = bxi_device_part_of((const struct bxi_loan *)tensor->storage, tensor);
    return part != NULL ? part->device : 0;
}

/* Under devices->lock. Work added to the stream from now on reads the tensor. */
static int reads(const struct bx_tensor *tensor, uint32_t stream, struct behind *behind)
{
    *behind = (struct behind){ 0 };
    if (tensor->storage->kind != BXI_STORE_DEVICE)
        return reads_borrowed(tensor, stream, behind);
    tensor->storage->device->streams |= UINT32_C(1) << stream;
    behind->point = tensor->storage->device->written;
    return 0;
}

/* Under devices->lock. If the program set no point, the tensor was filled on the device's own stream. */
static int filled_on_own(struct bxi_devices *devices, const struct bx_tensor *tensor, struct behind *behind)
{
    if (behind->point.order != 0 || tensor->storage->kind != BXI_STORE_DEVICE)
        return 0;
    if (bxi_devices_mark(devices, devices->open[device_of(tensor)].stream, &behind->point) < 0)
        return bxi_devices_fail(-EIO, "a stream cannot be marked");
    return 0;
}

/* Called inside enter, leaves. may_be_own: as in filled_on_own. */
static int read_and_leave(struct bxi_devices *devices, const struct bx_tensor *tensor, void *stream, bool may_be_own)
{
    struct behind behind;
    int index = bxi_devices_stream(devices, device_of(tensor), stream);
    int rc = index < 0 ? index : reads(tensor, (uint32_t)index, &behind);

    if (rc == 0 && may_be_own)
        rc = filled_on_own(devices, tensor, &behind);
    bxi_devices_pin(devices);
    if (rc == 0)
        rc = put_behind(devices->streams[index].lane, &behind);
    bxi_devices_unpin(devices);
    return rc;
}

int bx_tensor_read_on(struct bx_tensor *tensor, void *stream)
{
    struct bxi_devices *devices;

    if (tensor == NULL)
        return bxi_null(__func__, "the tensor");
    if (!bxi_is_device(tensor))
        return bx_fail(-EINVAL, "the tensor does not lie in device memory: no stream has to wait for it");
    devices = devices_of(tensor);
    if (!bxi_devices_enter(devices))
        return bxi_devices_gone(devices);
    return read_and_leave(devices, tensor, stream, false);
}

/* ---- readers of DLPack --------------------------------------------------------------------------- */

/* The copy may have run too early: if the owner of the awaited point died, its waiters were released. */
static int check_owner(const struct bxi_devices *devices, struct bxi_gpu_lane *lane, const struct behind *behind)
{
    return behind->peer != NULL && bxi_devices_released(devices, behind->owner) ? put_behind(lane, behind) : 0;
}

/* Under devices->lock, which is released while the host waits. */
static int read_by_thread(struct bxi_devices *devices, const struct bx_tensor *tensor)
{
    struct bxi_gpu_lane *lane = NULL;
    struct behind behind;
    int rc = reads(tensor, devices->open[device_of(tensor)].stream, &behind);

    if (rc == 0)
        rc = filled_on_own(devices, tensor, &behind);
    if (rc == 0)
        rc = bxi_device_threads_lane(devices, device_of(tensor), &lane);
    if (rc < 0)
        return rc;
    bxi_devices_pin(devices);
    rc = put_behind(lane, &behind);
    if (rc == 0)
        rc = bxi_gpu_lane_wait(lane) < 0 ? bxi_devices_fail(-EIO, "the thread's default stream cannot be waited for")
                                         : check_owner(devices, lane, &behind);
    bxi_gpu_lane_close(lane);
    bxi_devices_reenter(devices);
    return rc;
}

int bxi_device_read_by(struct bx_tensor *tensor, int64_t stream)
{
    struct bxi_devices *devices = devices_of(tensor);
    int rc;

    if (!bxi_devices_enter(devices))
        return bxi_devices_gone(devices);
    if (stream != BXI_THREADS_NUMBER)
        return read_and_leave(devices, tensor, (void *)(intptr_t)stream, true);
    rc = read_by_thread(devices, tensor);
    bxi_devices_leave(devices);
    return rc;
}

/* ---- copies ------------------------------------------------------------------------------------ */

/* Pinned. Both are row-major, at least one is on the lane's device. */
static int move_bytes(struct bxi_gpu_lane *lane, struct bx_tensor *to, const struct bx_tensor *from)
{
    uint64_t bytes = (uint64_t)bx_tensor_bytes(from);

    if (!bxi_is_device(to))
        return bxi_gpu_stage_out(lane, to->data, address_of(from), bytes);
    if (!bxi_is_device(from))
        return bxi_gpu_stage_in(lane, address_of(to), from->data, bytes);
    return bxi_gpu_copy(lane, address_of(to), address_of(from), bytes);
}

/* A strided view in device memory is copied to the host in pieces of its span, one copy each, and made row-major there.
 * A copy for each row would cost a call of the driver and a wait for the few bytes of a row. The gaps between elements
 * are copied too, but no piece begins or ends with a gap. */
#define PIECE_BYTES ((uint64_t)1 << 20)

/* The dimension with the longest span, to be halved; -1: a single element. */
static int widest(const struct bx_tensor *tensor)
{
    int64_t reach, most = 0;
    int found = -1;

    for (int i = 0; i < tensor->ndim; i++) {
        reach = (tensor->shape[i] - 1) * tensor->strides[i];
        if (tensor->shape[i] > 1 && reach >= most) {
            most = reach;
            found = i;
        }
    }
    return found;
}

/* `count` elements of dimension `dim` from `first` on, as a view without a reference. */
static struct bx_tensor part_along(const struct bx_tensor *tensor, int dim, int64_t first, int64_t count)
{
    struct bx_tensor part = *tensor;

    part.shape[dim] = count;
    part.elements = tensor->elements / tensor->shape[dim] * count;
    part.data += first * tensor->strides[dim] * (int64_t)bx_dtype_bytes((enum bx_dtype)tensor->dtype);
    part.contiguous = false;
    return part;
}

/* Pinned. piece: PIECE_BYTES of host memory. */
static int gather(struct bxi_gpu_lane *lane, struct bx_tensor *to, const struct bx_tensor *from, unsigned char *piece)
{
    uint64_t bytes = (uint64_t)bxi_tensor_reach(from) * bx_dtype_bytes((enum bx_dtype)from->dtype);
    int dim = widest(from), rc;

    if (bytes > PIECE_BYTES) {
        int64_t half = from->shape[dim] / 2, rest = from->shape[dim] - half;
        struct bx_tensor to_half = part_along(to, dim, 0, half), to_rest = part_along(to, dim, half, rest);
        struct bx_tensor half_of = part_along(from, dim, 0, half), rest_of = part_along(from, dim, half, rest);

        rc = gather(lane, &to_half, &half_of, piece);
        return rc < 0 ? rc : gather(lane, &to_rest, &rest_of, piece);
    }
    rc = bxi_gpu_stage_out(lane, piece, address_of(from), bytes);
    if (rc == 0) {
        struct bx_tensor read = *from;

        read.device = (struct bx_device){ BX_CPU, 0 };
        read.data = piece;
        rc = bx_tensor_copy_into(to, &read);
    }
    return rc;
}

/* On the own stream of the device that there, one of the two, is on. piece: PIECE_BYTES, for a copy to host memory of
 * any strides; NULL: both are row-major, and at least one is in device memory. */
static int copy_on(const struct bx_tensor *there, struct bx_tensor *to, const struct bx_tensor *from,
                   unsigned char *piece)
{
    struct bxi_devices *devices = devices_of(there);
    struct behind first = { 0 }, second = { 0 };
    struct bxi_gpu_lane *lane;
    uint32_t stream;
    int rc;

    if (!bxi_devices_enter(devices))
        return bxi_devices_gone(devices);
    stream = devices->open[device_of(there)].stream;
    lane = devices->streams[stream].lane;
    rc = bxi_is_device(from) ? reads(from, stream, &first) : 0;
    if (rc == 0 && bxi_is_device(to))
        rc = reads(to, stream, &second);        /* after the work that writes it already */
    bxi_devices_pin(devices);
    if (rc == 0)
        rc = put_behind(lane, &first);
    if (rc == 0)
        rc = put_behind(lane, &second);
    if (rc == 0 && (rc = piece != NULL ? gather(lane, to, from, piece) : move_bytes(lane, to, from)) < 0)
        rc = bxi_devices_fail(rc, "a copy from or to device memory failed");
    pthread_mutex_lock(&devices->lock);
    if (rc == 0)
        rc = check_owner(devices, lane, &first);
    if (rc == 0 && bxi_is_device(to) && bxi_devices_mark(devices, stream, &to->storage->device->written) < 0)
        rc = bxi_devices_fail(-EIO, "a stream cannot be marked");
    pthread_mutex_unlock(&devices->lock);
    bxi_devices_unpin(devices);
    return rc;
}

/* Into host memory, of any strides. */
static int copy_to_host(struct bx_tensor *to, const struct bx_tensor *from)
{
    unsigned char *piece = malloc(PIECE_BYTES);
    int rc;

    if (piece == NULL)
        return bx_fail(-ENOMEM, "no memory for a copy of a view in device memory");
    rc = copy_on(from, to, from, piece);
    free(piece);
    return rc;
}

/* A row-major copy in host memory: in the job's arena, or with NULL on the heap. */
static int copy_to_new(struct bx_job *job, const struct bx_tensor *from, struct bx_tensor **copy)
{
    struct bx_tensor *host = NULL;
    int rc = bx_tensor_create(job, (enum bx_dtype)from->dtype, from->ndim, from->shape, &host);

    if (rc == 0 && from->elements > 0)
        rc = bx_tensor_copy_into(host, from);
    if (rc < 0)
        bx_tensor_release(host);
    else
        *copy = host;
    return rc;
}

int bxi_device_copy_into(struct bx_tensor *to, const struct bx_tensor *from)
{
    struct bx_tensor *packed;
    int rc;

    if (bxi_is_device(to) && to->storage->kind != BXI_STORE_DEVICE)
        return bx_fail(-EROFS, "the tensor is on loan from another worker and must not be written to");
    if (bxi_is_device(to) && !to->contiguous)
        return bx_fail(-ENOTSUP, "a copy into device memory needs a tensor there that is row-major without gaps");
    if (to->contiguous && from->contiguous)
        return copy_on(bxi_is_device(to) ? to : from, to, from, NULL);
    if (!bxi_is_device(to))
        return copy_to_host(to, from);
    rc = copy_to_new(NULL, from, &packed);
    if (rc == 0) {
        rc = copy_on(to, to, packed, NULL);
        bx_tensor_release(packed);
    }
    return rc;
}

int bxi_device_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy)
{
    struct bxi_devices *devices = devices_of(tensor);
    struct bx_tensor *made = NULL;
    int rc;

    if (job == NULL)
        return bx_fail(-EINVAL, "a copy of a device tensor needs the job");
    if (!bxi_devices_enter(devices))
        return bxi_devices_gone(devices);
    rc = create(devices, device_of(tensor),
                &(struct bxi_shape){ (enum bx_dtype)tensor->dtype, tensor->ndim, tensor->shape, NULL }, &made);
    bxi_devices_leave(devices);
    if (rc == 0 && tensor->elements > 0)
        rc = bxi_device_copy_into(made, tensor);
    if (rc < 0) {
        bx_tensor_release(made);
        return rc;
    }
    *copy = made;
    return 0;
}

/* ---- lending ----------------------------------------------------------------------------------- */

/* Under devices->lock. The point at which the tensor is written: set by the program, or of the device's own stream. */
static int ready_of(struct bxi_device_block *block, struct bxi_grant *grant, struct bxi_gpu_point *ready)
{
    struct bxi_devices *devices = block->devices;
    struct bxi_gpu_point *own = &grant->ready[block->device];
    int rc = 0;

    if (block->written.order != 0) {
        *ready = block->written;
        return 0;
    }
    if (own->order == 0)
        rc = bxi_devices_mark(devices, devices->open[block->device].stream, own);
    *ready = block->sent = *own;
    return rc < 0 ? bxi_devices_fail(rc, "a stream cannot be marked") : 0;
}

/* The peer cannot map the device's memory: copies the tensor into the arena; the peer copies it to its device. */
static int stage(struct bx_job *job, const struct bx_tensor *tensor, struct bxi_tensor_head *head,
                 struct bxi_storage **hold)
{
    struct bx_tensor *host = NULL;
    int rc = copy_to_new(job, tensor, &host);

    if (rc < 0)
        return rc;
    if (!tensor->contiguous) {
        head->flags &= (uint8_t)~BXI_STRIDED;
        bxi_add(&job->counters[BXI_C_tensors_copied], 1);
        bxi_add(&job->counters[BXI_C_tensor_bytes_copied], (uint64_t)bx_tensor_bytes(host));
    }
    head->flags |= BXI_STAGED;
    head->offset = (uint64_t)(host->data - bxi_arena_base(job->lend->arena));
    *hold = host->storage;                  /* tensor and storage share one reference; the caller's now */
    return 0;
}

/* Under devices->lock. */
static int refer(struct bxi_grant *grant, const struct bx_tensor *tensor, struct bxi_gpu_ref *ref)
{
    struct bxi_device_block *block = tensor->storage->device;
    uint64_t offset = address_of(tensor) - block->block->address;
    uint64_t before = address_of(tensor) - (uint64_t)(uintptr_t)tensor->storage->base;
    int rc = bxi_gpu_ref(block->block, offset, tensor->storage->bytes - before, ref);

    if (rc < 0)
        return bxi_devices_fail(rc, "a device tensor cannot be named");
    return ready_of(block, grant, &ref->ready);
}

int bxi_device_pack(struct bx_job *job, struct bxi_grant *grant, struct bx_tensor *tensor,
                    struct bxi_tensor_head *head, struct bxi_gpu_ref *ref, struct bxi_storage **hold)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    struct bxi_gpu_peer *peer = NULL;
    bool reaches;
    int rc;

    if (devices == NULL || !bxi_devices_enter(devices))
        return bx_fail(-ENODEV, "worker '%s' has no GPU open; call bx_gpu_open", job->name);
    if (tensor->storage->device->devices != devices) {
        bxi_devices_leave(devices);
        return bx_fail(BX_E_SHUTDOWN, "the job whose device memory a tensor lies in has shut down");
    }
    reaches = bxi_devices_share(devices, grant->peer);
    rc = reaches ? bxi_devices_peer(devices, grant->peer, &peer) : bxi_devices_are_open(devices, grant->peer);
    if (rc == 0 && peer != NULL)
        reaches = bxi_device_reaches(peer, &bxi_device_region(job->control)->slab[
                                               tensor->storage->device->block->slab]);
    if (rc == 0 && reaches)
        rc = refer(grant, tensor, ref);
    bxi_devices_leave(devices);
    if (rc < 0)
        return rc;
    if (!reaches) {
        grant->staged = true;
        return stage(job, tensor, head, hold);
    }
    head->offset = peer == NULL ? address_of(tensor) : 0;
    grant->device = true;
    *hold = tensor->storage;
    bxi_storage_acquire(*hold);
    return 0;
}
