/* SPDX-License-Identifier: MIT */
/*
 * Storage: the memory of tensors, its reference count, and how each kind of it is freed. The table through which lend
 * calls the room device. Any thread; no locks.
 */
#include "lend.h"

#include "shm/cancel.h"

#include <stdlib.h>

/* ---- The table of the room device ---------------------------------------------------------------- */

static _Atomic(const struct bxi_device_ops *) device_ops;

void bxi_device_register(const struct bxi_device_ops *ops)
{
    /* [device.ops] release, pairs with the acquire in bxi_device_ops. */
    bxi_store_release(&device_ops, ops);
}

const struct bxi_device_ops *bxi_device_ops(void)
{
    /* [device.ops] acquire, pairs with the release in bxi_device_register. */
    return bxi_load_acquire(&device_ops);
}

/* ---- References ---------------------------------------------------------------------------------- */

void bxi_storage_acquire(struct bxi_storage *storage)
{
    bxi_add(&storage->refs, 1);
}

/* A count of 1 means that the caller holds the only reference: no other thread can take or drop one meanwhile, so no
 * locked instruction is needed. */
bool bxi_refs_drop(bxi_a32 *refs)
{
    /* [tensor.refs] acquire, pairs with the add below: what other holders did to the memory comes before it
     * is freed. */
    if (bxi_load_acquire(refs) == 1)
        return true;
    /* [tensor.refs] acquire and release, pairs with itself and with the load above, in bxi_refs_drop: as there. */
    return bxi_add(refs, (uint32_t)-1) == 1;
}

static void storage_free(struct bxi_storage *storage)
{
    switch (storage->kind) {
    case BXI_STORE_ARENA:
        /* In the child of a fork block and arena are its parent's. */
        if (bxi_load_relaxed(&bxi_forks) == storage->fork_generation) {
            bxi_arena_free(storage->arena, storage->base);
            bxi_arena_release(storage->arena);
        }
        break;
    case BXI_STORE_HEAP:
        free(storage->base);
        break;
    case BXI_STORE_FOREIGN:
        if (storage->free_fn != NULL) {
            BXI_UNCANCELLED;
            storage->free_fn(storage->context);
        }
        break;
    case BXI_STORE_DEVICE:
        if (bxi_load_relaxed(&bxi_forks) == storage->fork_generation)
            bxi_device_ops()->block_free(storage->device);
        break;
    case BXI_STORE_LOAN:
        storage->free_fn(storage->context);
        return;
    }
    free(storage);
}

void bxi_storage_release(struct bxi_storage *storage)
{
    if (bxi_refs_drop(&storage->refs))
        storage_free(storage);
}
