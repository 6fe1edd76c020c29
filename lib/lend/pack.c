/* SPDX-License-Identifier: MIT */
/*
 * Packing what a message lends: a lease head, a record for each tensor, and the message's bytes. Records and bytes go
 * into the frame, or into a block of the arena if a frame is too small. The grant holds each storage once, with one
 * reference and one lease. A tensor that is neither in this worker's arena nor on its devices is copied first.
 *
 * Any thread, without run->lock: copies take long, and new memory may take system calls. Killed here: nothing is lent.
 */
#include "lend.h"

#include <errno.h>
#include <stdlib.h>

static bool is_ours(const struct bx_job *job, const struct bx_tensor *tensor)
{
    const struct bxi_storage *storage = tensor->storage;

    return storage->kind == BXI_STORE_DEVICE ||
           (storage->kind == BXI_STORE_ARENA && storage->arena == job->lend->arena);
}

/* How one tensor is packed. */
struct item {
    struct bx_tensor *tensor;
    int64_t owner;                          /* bxi_owner_word: on loan from it, and passed on; else -1 */
    const struct bxi_arena_view *view;      /* on loan, and not copied: the arena it lies in */
    struct bxi_storage *own;                /* it came back: of this worker's arena; else NULL */
    struct bxi_gpu_ref ref;                 /* in device memory */
    struct bxi_storage *storage;            /* to hold; one reference */
};

/* What the record says of the worker in whose arena the tensor lies, if it is on loan and can be passed on or back, and
 * the view of that arena; else -1. One without elements is not passed back: it may lie at the end of its storage. */
static int64_t owner_of(const struct bx_job *job, const struct bxi_lend_peer *peer, const struct bx_tensor *tensor,
                        const struct bxi_arena_view **view)
{
    const struct bxi_loan *loan = (const struct bxi_loan *)(const void *)tensor->storage;
    const struct bxi_passed *passed = tensor->passed;
    uint32_t owner = passed != NULL ? passed->owner : bxi_owner_word(loan->returns->peer);
    const struct bxi_lend_peer *lives = bxi_owner_of(job, owner);

    *view = bxi_loan_view(loan, tensor);
    /* Of an owner that is gone it is copied, and back to an owner that did not lend it to this worker. Relaxed: if it
     * is seen late, the receiver, which has closed the owner too, answers so (take_passed). */
    if (lives == NULL || lives->rank == job->rank || bxi_load_relaxed(&lives->is_gone) != 0)
        return -1;
    if (lives->rank != peer->rank)
        return owner;
    if (*view != loan->view || tensor->elements == 0)
        return -1;
    return (int64_t)((uint32_t)lives->rank | loan->slot << BXI_RANK_BITS);
}

/* Of a tensor that came back to this worker, which lends it again. */
static void take_own(const struct bx_job *job, struct item *item)
{
    const struct bxi_passed *passed = item->tensor->passed;

    if (passed == NULL || bxi_is_device(item->tensor) || passed->storage == NULL ||
        passed->storage->arena != job->lend->arena)
        return;
    item->own = passed->storage;
    item->view = passed->view;
}

static int64_t find_owner(struct bx_job *job, struct bxi_grant *grant, struct item *item)
{
    const struct bxi_loan *loan = (const struct bxi_loan *)(const void *)item->tensor->storage;

    if (item->tensor->storage->kind != BXI_STORE_LOAN || grant->peer->rank == job->rank || loan->returns == NULL ||
        loan->returns->job != job)
        return -1;
    return bxi_is_device(item->tensor) ? bxi_device_ops()->pass(job, grant, item->tensor, &item->ref)
                                       : owner_of(job, grant->peer, item->tensor, &item->view);
}

static size_t head_bytes(const struct bx_tensor *tensor)
{
    return sizeof(struct bxi_tensor_head) + (bxi_is_device(tensor) ? sizeof(struct bxi_gpu_ref) : 0) +
           (tensor->contiguous ? 8u : 16u) * tensor->ndim;
}

/* The table after the holds finds storages that the grant holds already: open addressing, NULL is empty, at least twice
 * as many entries as holds. */
static bool is_held(struct bxi_grant *grant, struct bxi_storage *storage)
{
    size_t at = ((uintptr_t)storage >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20;

    while (grant->table[at & grant->table_mask] != NULL)
        if (grant->table[at++ & grant->table_mask] == storage)
            return true;
    grant->table[at & grant->table_mask] = storage;
    return false;
}

static void hold(struct bxi_grant *grant, struct bxi_storage *storage)
{
    if (is_held(grant, storage))
        return;                 /* several tensors of one message share a storage: hold it once */
    bxi_storage_acquire(storage);
    bxi_add(&storage->leases, 1);
    grant->holds->storages[grant->holds->count++] = storage;
    grant->bytes += storage->kind == BXI_STORE_LOAN ? 0 : storage->bytes;   /* a loan's memory is its owner's */
}

static unsigned char *put_bytes(unsigned char *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return to + bytes;
}

/* Writes a tensor's record, and sets the storage to hold. */
static int describe(struct bx_job *job, struct bxi_grant *grant, struct item *item, unsigned char **to)
{
    struct bx_tensor *tensor = item->tensor;
    struct bxi_tensor_head head = {
        .dtype = tensor->dtype,
        .ndim = tensor->ndim,
        .device = (uint8_t)tensor->device.kind,
        .flags = tensor->contiguous ? 0 : BXI_STRIDED,
    };
    size_t row = sizeof(int64_t) * tensor->ndim;

    if (item->owner < 0 && bxi_is_device(tensor)) {
        int rc = bxi_device_ops()->pack(job, grant, tensor, &head, &item->ref, &item->storage);

        if (rc < 0)
            return rc;
    } else {
        item->storage = item->own != NULL ? item->own : tensor->storage;
        bxi_storage_acquire(item->storage);
    }
    if (item->owner >= 0) {
        head.flags |= BXI_PASSED;
        grant->passes = true;
        head.owner = (uint32_t)item->owner;
        bxi_add(&job->counters[BXI_C_tensors_passed_on], 1);
        bxi_add(&job->counters[BXI_C_passed_on_bytes], bx_tensor_bytes(tensor));
    }
    if (!bxi_is_device(tensor))
        head.offset = (uint64_t)(tensor->data - (item->view != NULL ? item->view->base
                                                                    : bxi_arena_base(job->lend->arena)));
    *to = put_bytes(*to, &head, sizeof head);
    if (bxi_is_device(tensor) && !(head.flags & BXI_STAGED))
        *to = put_bytes(*to, &item->ref, sizeof item->ref);
    *to = put_bytes(*to, tensor->shape, row);
    if (head.flags & BXI_STRIDED)           /* a staged copy is row-major */
        *to = put_bytes(*to, tensor->strides, row);
    return 0;
}

/* Adds one tensor to the grant, or a copy of it in the arena or on its device. */
static int pack_one(struct bx_job *job, struct bxi_grant *grant, struct bx_tensor *tensor, unsigned char **to)
{
    struct item item = { .tensor = tensor };
    struct bx_tensor *copy = NULL;
    int rc;

    item.owner = find_owner(job, grant, &item);
    if (item.owner < 0) {
        item.view = NULL;
        take_own(job, &item);
    }
    if (item.owner < 0 && item.own == NULL && !is_ours(job, tensor)) {
        rc = bx_tensor_copy(job, tensor, &copy);
        if (rc < 0)
            return rc;
        bxi_add(&job->counters[BXI_C_tensors_copied], 1);
        bxi_add(&job->counters[BXI_C_tensor_bytes_copied], bx_tensor_bytes(copy));
        item.tensor = copy;
    }
    rc = describe(job, grant, &item, to);
    if (rc == 0) {
        hold(grant, item.storage);
        grant->tensor_bytes += (uint64_t)bx_tensor_bytes(item.tensor);
        bxi_storage_release(item.storage);
    }
    bx_tensor_release(copy);
    return rc;
}

/* Allocates the body, which tail_bytes may follow in the frame. *to: where records and bytes go: after the head, or in
 * a block of the arena. */
static int make_room(struct bx_job *job, struct bxi_grant *grant, size_t packed_bytes, size_t tail_bytes,
                     unsigned char **to)
{
    bool here = sizeof(struct bxi_lease_head) + packed_bytes + tail_bytes <= BXI_BODY_MAX;
    struct bxi_lease_head *head;

    grant->body_bytes = sizeof *head + (here ? packed_bytes : 0);
    grant->body = malloc(grant->body_bytes);
    if (grant->body == NULL)
        return bx_fail(-ENOMEM, "no memory for a message of %zu bytes", packed_bytes);
    head = (struct bxi_lease_head *)(void *)grant->body;
    *head = (struct bxi_lease_head){ .packed_offset = BXI_PACKED_HERE, .packed_bytes = packed_bytes };
    *to = grant->body + sizeof *head;
    if (here)
        return 0;

    struct bx_tensor *block = NULL;
    int rc = bxi_tensor_for_bytes(job, packed_bytes, &block);

    if (rc < 0)
        return rc;
    hold(grant, block->storage);
    head->packed_offset = (uint64_t)(block->data - bxi_arena_base(job->lend->arena));
    *to = block->data;
    bx_tensor_release(block);           /* the grant holds its memory */
    return 0;
}

static int make_holds(struct bxi_grant *grant, size_t most)
{
    size_t table = 4;

    while (table < 2 * most)
        table *= 2;
    grant->holds = malloc(sizeof *grant->holds + (most + table) * sizeof *grant->table);
    if (grant->holds == NULL)
        return bx_fail(-ENOMEM, "no memory for a message of %zu tensors", most - 1);
    *grant->holds = (struct bxi_holds){ .count = 0 };
    grant->table = grant->holds->storages + most;
    grant->table_mask = table - 1;
    memset(grant->table, 0, table * sizeof *grant->table);
    return 0;
}

int bxi_grant_pack(struct bx_job *job, struct bxi_lend_peer *peer, const struct bx_reader *message,
                   struct bxi_grant *grant)
{
    size_t packed_bytes = message->bytes;
    unsigned char *to = NULL;
    int rc = 0;

    *grant = (struct bxi_grant){ .peer = peer };
    if (message->bytes > BX_MSG_MAX || message->tensor_count > BX_TENSORS_MAX)
        return bx_fail(BX_E_TOO_LARGE, "a message has %zu bytes and %zu tensors, %llu and %d are the most",
                       message->bytes, message->tensor_count, (unsigned long long)BX_MSG_MAX, BX_TENSORS_MAX);
    for (size_t i = 0; i < message->tensor_count; i++)
        packed_bytes += head_bytes(message->tensors[i]) + (is_ours(job, message->tensors[i]) ? 0 : 8u * BX_DIMS_MAX);
    if ((rc = make_holds(grant, message->tensor_count + 1)) < 0)
        return rc;
    rc = make_room(job, grant, packed_bytes, BXI_TAIL_MAX(message->rref_count), &to);

    unsigned char *begin = to;

    for (size_t i = 0; rc == 0 && i < message->tensor_count; i++)
        rc = pack_one(job, grant, message->tensors[i], &to);
    if (rc < 0) {
        bxi_grant_drop(grant);
        return rc;
    }
    if (message->bytes > 0)
        memcpy(to, message->data, message->bytes);

    /* The record of a row-major copy may be shorter than that of its strided original. */
    struct bxi_lease_head *head = (struct bxi_lease_head *)(void *)grant->body;

    head->packed_bytes = (uint64_t)(to - begin) + message->bytes;
    head->tensor_count = (uint32_t)message->tensor_count;
    if (head->packed_offset == BXI_PACKED_HERE)
        grant->body_bytes = sizeof *head + head->packed_bytes;
    if (job->options.loan_bytes_max != 0 && grant->bytes > job->options.loan_bytes_max) {
        rc = bx_fail(BX_E_ON_LOAN, "the message would lend %llu bytes, and worker '%s' may have %llu on loan "
                                   "(options.loan_bytes_max)", (unsigned long long)grant->bytes, job->name,
                     (unsigned long long)job->options.loan_bytes_max);
        bxi_grant_drop(grant);
    }
    return rc;
}
