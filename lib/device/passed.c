/* SPDX-License-Identifier: MIT */
/*
 * Device memory that is passed on: worker A owns it, worker B has it on loan and sends it on, worker C reads it in
 * place.
 *
 * The record names A, and holds A's ref with A's point. C maps A's slab, and its streams wait for A's point. B's grant
 * to C holds B's loan (lend.h). C returns its lease to B with a point of its own. B keeps its loan until that point has
 * passed, and only then returns its lease to A: A knows no points of C. So at each moment A has a lease out to B, or
 * C's work is done.
 *
 * When B dies, A asks all workers whether they hold what B passed on. C answers no only when its streams are done with
 * it: when a worker dies, and at the end of each loan of a dead worker, C notes the last point of each stream; it
 * answers when all of these have passed (bxi_devices_are_settled).
 *
 * C may be a worker to which A has sent nothing. A sees C's maps of its slabs all the same (is_held in device.c).
 *
 * Killed: A, B and C at any step are covered by the leases and gpu/README.md; nothing here is in shared memory.
 *
 * Threads: any thread packs and returns leases; the progress role polls, every POLL_SOON_NS while something is pending.
 */
#include "device.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Passing on -------------------------------------------------------------------------------------- */

/* Under devices->lock. Whether the peer can map the owner's slab. */
static bool can_pass(struct bxi_devices *devices, const struct bxi_device_part *part, struct bxi_lend_peer *to)
{
    struct bxi_gpu_peer *peer;

    if (part->map == NULL || part->owner == to || bxi_devices_died(devices, part->owner) ||
        bxi_devices_peer(devices, to, &peer) < 0)
        return false;
    return bxi_device_reaches(peer, &bxi_device_region(part->owner->view->control)->slab[part->ref.slab]);
}

int bxi_device_pass(struct bx_job *job, struct bxi_grant *grant, const struct bx_tensor *tensor,
                    struct bxi_gpu_ref *ref)
{
    const struct bxi_loan *loan = (const struct bxi_loan *)(const void *)tensor->storage;
    struct bxi_devices *devices = bxi_devices_of(job);
    const struct bxi_device_part *part;
    int owner = -1;

    if (devices == NULL || loan->device->devices != devices || !bxi_devices_enter(devices))
        return -1;
    part = bxi_device_part_of(loan, tensor);
    if (part != NULL && can_pass(devices, part, grant->peer)) {
        uint64_t before = (uint64_t)(uintptr_t)tensor->data - part->address;

        *ref = part->ref;
        ref->offset += before;
        ref->bytes -= before;
        grant->device = true;
        owner = (int)bxi_owner_word(part->owner);
    }
    bxi_devices_leave(devices);
    return owner;
}

/* ---- A loan is kept until a borrower's point has passed ----------------------------------------------- */

struct bxi_device_kept {
    struct bxi_device_kept *next;
    struct bxi_storage *storage;        /* one reference */
    struct bxi_lend_peer *peer;         /* the borrower */
    struct bxi_gpu_point point;
};

/* Under devices->lock. 1: the storage need not be kept any more; 0: not yet; or an error of gpu/. */
static int check(struct bxi_devices *devices, const struct bxi_device_kept *kept)
{
    struct bxi_gpu_peer *peer;
    int rc = bxi_devices_peer(devices, kept->peer, &peer);

    return rc < 0 ? rc : bxi_gpu_passed(devices->gpu, peer, &kept->point);
}

static void link_kept(struct bxi_devices *devices, struct bxi_device_kept *kept)
{
    kept->next = devices->kept;
    devices->kept = kept;
    bxi_store_relaxed(&devices->pending, 1);        /* relaxed: the event wakes the role */
}

void bxi_device_keep(struct bxi_devices *devices, struct bxi_storage *storage, struct bxi_lend_peer *peer,
                     const struct bxi_gpu_point *point)
{
    struct bxi_device_kept *kept;
    struct bx_job *job;
    int rc;

    if (!bxi_devices_enter(devices))
        return;
    job = devices->job;
    kept = calloc(1, sizeof *kept);
    bxi_storage_acquire(storage);
    if (kept == NULL) {
        bxi_devices_leave(devices);     /* it is kept for good: it is unknown when reads of it end */
        return;
    }
    *kept = (struct bxi_device_kept){ .storage = storage, .peer = peer, .point = *point };
    rc = check(devices, kept);
    if (rc == 0)
        link_kept(devices, kept);
    bxi_devices_leave(devices);
    if (rc == 0) {
        bxi_event(job->run, BXI_EVENT_SCAN);
        return;
    }
    if (rc == -EPROTO)
        job->lend->ops->suspect(job, peer->rank, "it gives a lease back with a point on a GPU that cannot be one");
    bxi_storage_release(storage);       /* not the last: the lease has one */
    free(kept);
}

/* ---- The role's poll, and the end ------------------------------------------------------------------- */

struct bxi_device_kept *bxi_devices_passed_poll(struct bxi_devices *devices)
{
    struct bxi_device_kept **at = &devices->kept, *kept, *done = NULL;

    while ((kept = *at) != NULL) {
        if (check(devices, kept) == 0) {
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        kept->next = done;
        done = kept;
    }
    /* Relaxed: as in link_kept. */
    bxi_store_relaxed(&devices->pending, devices->kept != NULL || bxi_load_relaxed(&devices->is_settling) != 0);
    return done;
}

void bxi_devices_passed_drop(struct bxi_device_kept *kept)
{
    while (kept != NULL) {
        struct bxi_device_kept *next = kept->next;

        bxi_storage_release(kept->storage);
        free(kept);
        kept = next;
    }
}
