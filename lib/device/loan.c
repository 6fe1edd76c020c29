/* SPDX-License-Identifier: MIT */
/*
 * Device memory on loan: from a frame that names slabs of another worker to addresses here, and back.
 *
 * The first frame that names a slab waits in its ring until the slab is mapped, some milliseconds, and with it
 * what comes behind it from that worker: requests of a pair are handled in the order sent. Meanwhile everything
 * else goes on; the mapping is done by gpu/'s thread, which tells by an event. Why not hand the tensor out and
 * map when it is first used: then the milliseconds fall into a handler, which may be one that must not wait.
 *
 * Who runs it: the progress role, but for map_done (gpu/'s thread) and bxi_device_loan_end (whoever drops the
 * last reference). Each slab that is being mapped for a loan holds a reference to it until map_done has come,
 * whatever becomes of the peer and of its frame.
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
    part->staged = ref == NULL;
    if (part->staged) {                     /* packed: it gets a block of as many bytes as it has elements */
        part->address = head->offset;       /* in the arena, until it is staged in */
        return head->flags & BXI_STRIDED ? BX_E_CORRUPT : 0;
    }
    part->ref = *ref;
    if (self)
        part->address = head->offset;       /* it comes from this very process */
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

/* gpu/'s thread, which ends before the job does. */
static void map_done(void *context, int rc)
{
    struct bxi_loan *loan = context;
    struct bx_job *job = loan->device->devices->job;

    if (rc < 0)
        fail_loan(loan->device, rc, bxi_gpu_text());

    /* [device.pending] release, pairs with the acquire in bxi_device_is_pending: the code is seen. */
    bool last = bxi_add(&loan->device->pending, (uint32_t)-1) == 1;

    bxi_storage_release(&loan->storage);
    if (last)
        bxi_event(job->run, BXI_EVENT_SCAN);
}

/* Devices' lock. */
static void begin(struct bxi_loan *loan)
{
    struct bxi_device_loan *device = loan->device;
    const struct bxi_device_part *before = NULL;
    struct bxi_gpu_peer *peer;
    int rc = bxi_devices_peer(device->devices, device->peer, &peer);

    if (rc < 0)
        fail_loan(device, rc, bx_error_text());
    for (uint32_t i = 0; i < loan->tensor_count && rc >= 0 && peer != NULL; i++) {
        struct bxi_device_part *part = &device->parts[i];

        if (part->is && part->staged)
            bxi_gpu_peer_try(peer);
        if (!part->is || part->staged || (before != NULL && before->ref.slab == part->ref.slab &&
                                          before->ref.generation == part->ref.generation &&
                                          before->ref.ready.lane == part->ref.ready.lane))
            continue;
        before = part;
        bxi_add(&device->pending, 1);
        bxi_storage_acquire(&loan->storage);
        rc = bxi_gpu_map_begin(peer, &part->ref, map_done, loan);
        if (rc < 0)
            fail_loan(device, rc, bxi_gpu_text());
        if (rc != 0) {                  /* map_done will not be called */
            bxi_add(&device->pending, (uint32_t)-1);
            bxi_storage_release(&loan->storage);        /* not the last: the peer holds it */
        }
    }
}

bool bxi_device_is_pending(const struct bxi_loan *loan)
{
    /* [device.pending] acquire, pairs with the subtraction in map_done. */
    return loan->device != NULL && bxi_load_acquire((bxi_a32 *)&loan->device->pending) != 0;
}

/* ---- addresses --------------------------------------------------------------------------------- */

/* Devices' lock. Into a block of one's own, by way of pinned memory: this waits. */
static int stage_in(struct bxi_loan *loan, uint32_t index)
{
    struct bxi_devices *devices = loan->device->devices;
    struct bxi_device_part *part = &loan->device->parts[index];
    uint64_t bytes = (uint64_t)bx_tensor_bytes(&loan->tensors[index]);
    int lane = bxi_devices_staging(devices, 0);
    int rc = lane < 0 ? lane : bxi_devices_alloc(devices, 0, bytes, &part->block);

    if (rc == 0)
        rc = bxi_gpu_stage_in(devices->streams[lane].lane, part->block->address, loan->storage.base + part->address,
                              bytes);
    if (rc < 0)
        return rc;
    part->address = part->block->address;
    part->ref = (struct bxi_gpu_ref){ .bytes = bytes };
    return 0;
}

/* Devices' lock. What the slab's row says of its device, as an ordinal here; that which reads it if it is hidden. */
static int ordinal_of(const struct bxi_device_loan *device, const struct bxi_device_part *part)
{
    const struct bxi_devices *devices = device->devices;
    bool self = device->peer->rank == devices->job->rank;
    const struct bxi_control *control = self ? devices->job->control : device->peer->view->control;
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    int ordinal;

    if (part->staged || part->ref.slab >= BXI_GPU_SLABS)
        return devices->open[0].ordinal;
    memcpy(uuid, bxi_device_region(control)->slab[part->ref.slab].uuid, sizeof uuid);
    ordinal = bxi_gpu_ordinal(devices->gpu, uuid);
    return ordinal >= 0 ? ordinal : devices->open[part->device].ordinal;
}

/* Devices' lock. Whose streams read it: the device that it is mapped on, or, of one's own, that it lies on. */
static int reader_of(const struct bxi_device_loan *device, const struct bxi_device_part *part)
{
    if (part->staged)
        return 0;
    return bxi_devices_find(device->devices, part->map != NULL
                                                 ? bxi_gpu_device_ordinal(bxi_gpu_map_device(part->map))
                                                 : ordinal_of(device, part));
}

/* Devices' lock. */
static int find(struct bxi_loan *loan, struct bxi_gpu_peer *peer, uint32_t index)
{
    struct bxi_device_part *part = &loan->device->parts[index];
    struct bx_tensor *tensor = &loan->tensors[index];
    int rc = 0;

    if (part->staged)
        rc = stage_in(loan, index);
    else if (peer != NULL)
        rc = bxi_gpu_map_get(peer, &part->ref, &part->map, &part->address);
    if (rc == 0)
        rc = reader_of(loan->device, part);
    if (rc < 0)
        return rc;
    part->device = (uint32_t)rc;
    tensor->data = (unsigned char *)(uintptr_t)part->address;
    tensor->device.index = ordinal_of(loan->device, part);
    return 0;
}

/* All slabs are mapped, or it is known why not: what the handler gets. */
static void finish(struct bxi_loan *loan)
{
    struct bxi_device_loan *device = loan->device;
    struct bxi_gpu_peer *peer;
    int rc = 0;

    device->ready = true;
    if (bxi_load_relaxed(&device->code) != 0)
        return;
    if (!bxi_devices_enter(device->devices)) {
        fail_loan(device, BX_E_SHUTDOWN, "this worker has shut down");
        return;
    }
    rc = bxi_devices_peer(device->devices, device->peer, &peer);
    for (uint32_t i = 0; i < loan->tensor_count && rc == 0; i++)
        if (device->parts[i].is)
            rc = find(loan, peer, i);
    if (rc < 0)
        fail_loan(device, rc, bxi_gpu_text());
    bxi_devices_leave(device->devices);
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

/* ---- a frame that waits ------------------------------------------------------------------------ */

static int open_held(struct bx_job *job, struct bxi_lend_peer *peer, const void *body, size_t body_bytes)
{
    unsigned char *copy = malloc(body_bytes);
    struct bxi_loan *loan = NULL;
    int rc;

    if (copy == NULL)
        return -ENOMEM;
    memcpy(copy, body, body_bytes);
    rc = bxi_lend_truncated(peer) ? BX_E_CORRUPT : bxi_loan_open(job, peer, copy, body_bytes, &loan);
    if (rc < 0 || loan->packed != NULL)
        free(copy);
    else
        loan->packed = copy;            /* its descriptors and bytes lie there */
    if (rc == 0)
        peer->held = loan;
    return rc;
}

int bxi_device_hold(struct bx_job *job, struct bxi_lend_peer *peer, const void *body, size_t body_bytes)
{
    struct bxi_device_loan *device;
    int rc;

    if (peer->held == NULL) {
        rc = open_held(job, peer, body, body_bytes);
        peer->held_code = rc == BX_E_CORRUPT ? 0 : rc;
        if (rc < 0)
            return rc == BX_E_CORRUPT ? rc : 0;     /* bxi_loan_open says it again, to who can answer */
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

/* Devices' lock, which is let go of: where the one stream's device cannot see the other's words, this waits. */
static int put_behind(struct bxi_devices *devices, uint32_t stream, const struct bxi_gpu_point *point)
{
    int rc;

    bxi_devices_pin(devices);
    rc = bxi_gpu_after(devices->streams[stream].lane, NULL, point);
    bxi_devices_reenter(devices);
    return rc;
}

/* Devices' lock. The stream that comes behind all that read it: the only one, or one of our own that waits for each.
 * Not one of theirs behind the others, which may never be meant to wait for one another. BXI_NO_STREAM: none, or
 * their work was waited for. */
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

/* Devices' lock. A point behind all that reads it. */
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
