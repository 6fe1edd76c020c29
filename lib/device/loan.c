/* SPDX-License-Identifier: MIT */
/*
 * Borrowed device memory: maps the slabs that a frame names, gives tensors their addresses, and ends the loan.
 *
 * The first frame that names a slab stays in its ring until the slab is mapped, some milliseconds. Later frames of the
 * same worker wait behind it, because requests of a pair are handled in the order sent. Everything else goes on: gpu/'s
 * thread maps the slab and then sends an event. The slab is not mapped on first use, because those milliseconds would
 * then fall into a handler, which may be one that must not wait.
 *
 * Threads: the progress role; map_done on gpu/'s thread; bxi_device_loan_end on the thread that drops the last
 * reference. Each slab that is being mapped holds a reference to its loan until map_done has run, even if the peer dies
 * or its frame is dropped.
 */
#include "device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- making ------------------------------------------------------------------------------------ */

int bxi_device_loan_make(struct bxi_loan *loan)
{
    struct bxi_devices *devices = bxi_devices_of(loan->returns->job);
    size_t bytes = sizeof *loan->device + loan->tensor_count * sizeof(struct bxi_device_part);

    if (devices == NULL)
        return -ENODEV;
    loan->device = calloc(1, bytes);
    if (loan->device == NULL)
        return -ENOMEM;
    bxi_add(&devices->refs, 1);
    loan->device->devices = devices;
    loan->device->peer = loan->returns->peer;
    return 0;
}

int bxi_device_loan_part(struct bxi_loan *loan, uint32_t index, const struct bxi_tensor_head *head,
                         const struct bxi_gpu_ref *ref)
{
    struct bxi_device_part *part = &loan->device->parts[index];
    bool self = loan->device->peer->rank == loan->device->devices->job->rank;

    part->is = true;
    part->owner = head->flags & BXI_PASSED ? loan->device->devices->job->lend->peers[head->owner & BXI_RANK_MASK]
                                           : loan->device->peer;
    part->staged = ref == NULL;
    if (part->staged)                       /* row-major: stage_in allocates a block of its bytes */
        return head->flags & BXI_STRIDED ? BX_E_CORRUPT : 0;
    part->ref = *ref;
    if (self)
        part->address = head->offset;       /* sent by this process */
    return self || head->offset == 0 ? 0 : BX_E_CORRUPT;
}

/* ---- mapping ----------------------------------------------------------------------------------- */

static void fail_loan(struct bxi_device_loan *device, int code, const char *text)
{
    uint32_t none = 0;

    if (bxi_cas(&device->code, &none, (uint32_t)-code))
        snprintf(device->text, sizeof device->text, "a tensor in device memory of worker '%s' cannot be had: %s",
                 device->peer->name, text[0] != '\0' ? text : bx_strerror(code));
}

/* On gpu/'s thread, which ends before the job. */
static void map_done(void *context, int rc)
{
    struct bxi_loan *loan = context;
    struct bx_job *job = loan->device->devices->job;

    if (rc < 0)
        fail_loan(loan->device, rc, bxi_gpu_text());

    /* [device.pending] release, pairs with the acquire in bxi_device_is_pending: the code is set before. */
    bool last = bxi_add(&loan->device->pending, (uint32_t)-1) == 1;

    bxi_storage_release(&loan->storage);
    if (last)
        bxi_event(job->run, BXI_EVENT_SCAN);
}

/* Under devices->lock. Begins to map the slab of one tensor. 0, or an error, which is the loan's then. */
static int begin_part(struct bxi_loan *loan, const struct bxi_device_part *part, struct bxi_gpu_peer *peer)
{
    int rc;

    bxi_add(&loan->device->pending, 1);
    bxi_storage_acquire(&loan->storage);
    rc = bxi_gpu_map_begin(peer, &part->ref, map_done, loan);
    if (rc < 0)
        fail_loan(loan->device, rc, bxi_gpu_text());
    if (rc != 0) {                  /* map_done will not be called */
        bxi_add(&loan->device->pending, (uint32_t)-1);
        bxi_storage_release(&loan->storage);        /* not the last: the peer holds it */
    }
    return rc < 0 ? rc : 0;
}

static bool in_one_slab(const struct bxi_device_part *a, const struct bxi_device_part *b)
{
    return a->owner == b->owner && a->ref.slab == b->ref.slab && a->ref.generation == b->ref.generation;
}

/* Under devices->lock. gpu/'s peer of the part's owner. NULL: that is this worker, or the part is staged by a worker
 * that came back. */
static int peer_of(struct bxi_devices *devices, const struct bxi_device_part *part, struct bxi_gpu_peer **peer)
{
    *peer = NULL;
    if (part->staged && !bxi_devices_share(devices, part->owner))
        return bxi_devices_are_open(devices, part->owner);
    return bxi_devices_peer(devices, part->owner, peer);
}

/* Under devices->lock. Begins to map the slabs of a loan. */
static void begin(struct bxi_loan *loan)
{
    struct bxi_device_loan *device = loan->device;
    const struct bxi_device_part *before = NULL;
    int rc = 0;

    for (uint32_t i = 0; i < loan->tensor_count && rc == 0; i++) {
        struct bxi_device_part *part = &device->parts[i];
        struct bxi_gpu_peer *peer;

        if (!part->is || (before != NULL && !part->staged && in_one_slab(before, part)))
            continue;
        rc = peer_of(device->devices, part, &peer);
        if (rc < 0)
            fail_loan(device, rc, bx_error_text());
        if (rc < 0 || peer == NULL)
            continue;
        if (part->staged) {
            bxi_gpu_peer_try(peer);
            continue;
        }
        before = part;
        rc = begin_part(loan, part, peer);
    }
}

bool bxi_device_is_pending(const struct bxi_loan *loan)
{
    /* [device.pending] acquire, pairs with the subtraction in map_done. */
    return loan->device != NULL && bxi_load_acquire((bxi_a32 *)&loan->device->pending) != 0;
}

/* ---- addresses --------------------------------------------------------------------------------- */

/* Under devices->lock. Copies a staged tensor into a block of this worker, through pinned memory. Waits. */
static int stage_in(struct bxi_loan *loan, uint32_t index)
{
    struct bxi_devices *devices = loan->device->devices;
    struct bxi_device_part *part = &loan->device->parts[index];
    uint64_t bytes = (uint64_t)bx_tensor_bytes(&loan->tensors[index]);
    int lane = bxi_devices_staging(devices);
    int rc = lane < 0 ? lane : bxi_devices_alloc(devices, 0, bytes, &part->block);

    if (rc == 0)
        rc = bxi_gpu_stage_in(devices->streams[lane].lane, part->block->address, loan->tensors[index].data, bytes);
    if (rc < 0)
        return rc;
    part->address = part->block->address;
    part->ref = (struct bxi_gpu_ref){ .bytes = bytes };
    return 0;
}

/* Under devices->lock. The ordinal here of the slab's device; if that is hidden here, of the device that reads it. */
static int ordinal_of(const struct bxi_devices *devices, const struct bxi_device_part *part)
{
    bool self = part->owner->rank == devices->job->rank;
    const struct bxi_control *control = self ? devices->job->control : part->owner->view->control;
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    int ordinal;

    if (part->staged || part->ref.slab >= BXI_GPU_SLABS)
        return devices->open[0].ordinal;
    memcpy(uuid, bxi_device_region(control)->slab[part->ref.slab].uuid, sizeof uuid);
    ordinal = bxi_gpu_ordinal(devices->gpu, uuid);
    return ordinal >= 0 ? ordinal : devices->open[part->device].ordinal;
}

/* Under devices->lock. Index of the device whose streams read it: where it is mapped; of own memory, its device. */
static int reader_of(const struct bxi_devices *devices, const struct bxi_device_part *part)
{
    if (part->staged)
        return 0;
    return bxi_devices_find(devices, part->map != NULL ? bxi_gpu_device_ordinal(bxi_gpu_map_device(part->map))
                                                       : ordinal_of(devices, part));
}

/* Under devices->lock. */
static int find(struct bxi_loan *loan, uint32_t index)
{
    struct bxi_devices *devices = loan->device->devices;
    struct bxi_device_part *part = &loan->device->parts[index];
    struct bx_tensor *tensor = &loan->tensors[index];
    struct bxi_gpu_peer *peer;
    int rc = peer_of(devices, part, &peer);

    if (rc == 0 && part->staged)
        rc = stage_in(loan, index);
    else if (rc == 0 && peer != NULL)
        rc = bxi_gpu_map_get(peer, &part->ref, &part->map, &part->address);
    if (rc == 0)
        rc = reader_of(devices, part);
    if (rc < 0)
        return rc;
    part->device = (uint32_t)rc;
    tensor->data = (unsigned char *)(uintptr_t)part->address;
    tensor->device.index = ordinal_of(devices, part);
    return 0;
}

/* All slabs are mapped or have failed: sets the tensors' addresses, or the loan's error. */
static void finish(struct bxi_loan *loan)
{
    struct bxi_device_loan *device = loan->device;
    int rc = 0;

    device->ready = true;
    if (bxi_load_relaxed(&device->code) != 0)
        return;
    if (!bxi_devices_enter(device->devices)) {
        fail_loan(device, BX_E_SHUTDOWN, "this worker has shut down");
        return;
    }
    for (uint32_t i = 0; i < loan->tensor_count && rc == 0; i++)
        if (device->parts[i].is)
            rc = find(loan, i);
    if (rc < 0)
        fail_loan(device, rc, bxi_gpu_text());
    bxi_devices_leave(device->devices);
    if (rc >= 0)
        bxi_loan_staged(loan);
}

int bxi_device_loan_error(const struct bxi_loan *loan)
{
    int code;

    if (loan == NULL || loan->device == NULL)
        return 0;
    if (bxi_device_is_pending(loan))
        return bx_fail(BX_E_PEER_DEAD, "worker '%s' died before its device memory was mapped here",
                       loan->device->peer->name);
    if (!loan->device->ready)
        return BX_E_CORRUPT;
    code = -(int)bxi_load_relaxed((bxi_a32 *)&loan->device->code);     /* relaxed: map_done has come before */
    return code < 0 ? bx_fail(code, "%s", loan->device->text) : 0;
}

const struct bxi_device_part *bxi_device_part_of(const struct bxi_loan *loan, const struct bx_tensor *tensor)
{
    const struct bxi_device_part *parts = loan->device->parts;

    if (tensor >= loan->tensors && tensor < loan->tensors + loan->tensor_count)
        return &parts[tensor - loan->tensors];
    for (uint32_t i = 0; i < loan->tensor_count; i++)           /* a view */
        if (parts[i].is && (uint64_t)(uintptr_t)tensor->data - parts[i].address < parts[i].ref.bytes)
            return &parts[i];
    return NULL;
}

/* ---- a frame that waits ------------------------------------------------------------------------ */

/* As bxi_loan_open, but for what it may point to in body. */
static int open_held(struct bx_job *job, struct bxi_lend_peer *peer, const void *body, size_t body_bytes)
{
    struct bxi_loan *loan = NULL;
    int rc = bxi_lend_truncated(peer) ? BX_E_CORRUPT : bxi_loan_open(job, peer, body, body_bytes, &loan);

    if (rc < 0)
        return rc;
    if (loan->packed == NULL && loan->bytes > 0) {
        loan->packed = malloc(loan->bytes);
        if (loan->packed == NULL) {
            bxi_loan_release(loan);
            return -ENOMEM;
        }
        memcpy(loan->packed, loan->data, loan->bytes);
        loan->data = loan->packed;
    }
    peer->held = loan;
    return 0;
}

int bxi_device_hold(struct bx_job *job, struct bxi_lend_peer *peer, const void *body, size_t body_bytes)
{
    struct bxi_device_loan *device;
    int rc;

    if (peer->held == NULL) {
        rc = open_held(job, peer, body, body_bytes);
        peer->held_code = rc == BX_E_CORRUPT ? 0 : rc;
        if (rc < 0)
            return rc == BX_E_CORRUPT ? rc : 0;     /* bxi_loan_open returns it again, where it can be answered */
        device = peer->held->device;
        if (device != NULL && bxi_devices_enter(device->devices)) {
            begin(peer->held);
            bxi_devices_leave(device->devices);
        }
    }
    device = peer->held->device;
    if (device != NULL && bxi_device_is_pending(peer->held))
        return -EAGAIN;
    if (device != NULL && !device->ready)
        finish(peer->held);
    return 0;
}

/* ---- the end ----------------------------------------------------------------------------------- */

/* Releases devices->lock meanwhile: it waits if the stream's device cannot access the words of the point. */
static int put_behind(struct bxi_devices *devices, uint32_t stream, const struct bxi_gpu_point *point)
{
    int rc;

    bxi_devices_pin(devices);
    rc = bxi_gpu_after(devices->streams[stream].lane, NULL, point);
    bxi_devices_reenter(devices);
    return rc;
}

/* Under devices->lock. A stream that is ordered after all streams that read the loan: the only one, or the joining
 * stream, which waits for each. Not one of several program streams: they must not wait for one another because of the
 * loan. BXI_NO_STREAM: no stream read it, or this function has waited for their work. */
static uint32_t last_stream(struct bxi_device_loan *device)
{
    struct bxi_devices *devices = device->devices;
    bool several = (device->streams & (device->streams - 1)) != 0;
    int joining = several ? bxi_devices_joining(devices) : 0;

    for (uint32_t i = 0; i < devices->stream_count; i++) {
        struct bxi_gpu_point point;

        if ((device->streams >> i & 1) == 0)
            continue;
        if (!several)
            return i;
        if (joining < 0 || bxi_devices_mark(devices, i, &point) < 0 ||
            put_behind(devices, (uint32_t)joining, &point) < 0)
            bxi_devices_wait(devices, i);
    }
    return several && joining >= 0 ? (uint32_t)joining : BXI_NO_STREAM;
}

/* Under devices->lock. A point after all work that reads the loan. */
static void join(struct bxi_device_loan *device, struct bxi_gpu_point *point)
{
    uint32_t stream = last_stream(device);

    if (stream != BXI_NO_STREAM && bxi_devices_mark(device->devices, stream, point) < 0)
        bxi_devices_wait(device->devices, stream);
}

void bxi_device_loan_end(struct bxi_loan *loan, struct bxi_gpu_point *point)
{
    struct bxi_device_loan *device = loan->device;

    *point = (struct bxi_gpu_point){ 0 };
    if (bxi_devices_enter(device->devices)) {
        join(device, point);
        if (loan->passes && bxi_devices_died(device->devices, device->peer))
            bxi_devices_settle(device->devices);
        for (uint32_t i = 0; i < loan->tensor_count; i++) {
            struct bxi_device_part *part = &device->parts[i];

            if (part->map != NULL)
                bxi_gpu_map_put(part->map);
            if (part->block != NULL) {
                bxi_gpu_block_until(part->block, NULL, point);
                bxi_gpu_free(part->block);
            }
        }
        bxi_devices_leave(device->devices);
    }
    bxi_devices_release(device->devices);
    free(device);
    loan->device = NULL;
}
