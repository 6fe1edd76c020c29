/* SPDX-License-Identifier: MIT */
/*
 * Foreign memory: allocations made by other libraries with cuMemAlloc or cudaMalloc, as blocks that can be lent. The
 * caller's thread. The driver is asked, and the memory exported, without the lock.
 *
 * Such an allocation is a slab that holds only blocks of that allocation. It retires with the last of them, and where
 * another slab would be freed, freed(context) is called for each block.
 */
#include "inside.h"

#include <errno.h>
#include <stdlib.h>

struct foreign {
    unsigned long long base;
    size_t bytes;
    uint64_t buffer_id;
    struct bxi_gpu_device *device;
    bool is_exported;                   /* handle is set */
    struct CUipcMemHandle_st handle;
};

/* An attribute of a pointer; -1: the driver does not know it. Boolean attributes fill one byte of value only. */
static int attribute_of(const struct bxi_cuda *cu, unsigned attribute, uint64_t address)
{
    int value = 0;

    return cu->cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS ? value : -1;
}

static int check_exportable(struct bxi_gpu *gpu, uint64_t address)
{
    const struct bxi_cuda *cu = &gpu->cu;
    void *pool = NULL;

    /* Checked first: managed memory may be in host memory at the moment. */
    if (attribute_of(cu, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == 1)
        return bxi_gpu_fail(-EOPNOTSUPP, "managed memory (cudaMallocManaged) cannot be opened by other processes: copy "
                            "it to a tensor of the job's");
    if (attribute_of(cu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CU_MEMORYTYPE_DEVICE)
        return bxi_gpu_fail(-EINVAL, "%#llx is no device memory that CUDA knows of", (unsigned long long)address);
    if (cu->cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS && pool != NULL)
        return bxi_gpu_fail(-EOPNOTSUPP, "memory of a pool (cudaMallocAsync) cannot be opened by other processes: "
                            "copy it to a tensor of the job's, or allocate it with cudaMalloc");
    if (attribute_of(cu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == 0)
        return bxi_gpu_fail(-EOPNOTSUPP, "memory made with cuMemCreate (VMM; PyTorch's expandable_segments) cannot be "
                            "exported by CUDA IPC: copy it to a tensor of the job's, or allocate it with cudaMalloc");
    return 0;
}

/* Without the lock, the context of some device current. */
static int find_allocation(struct bxi_gpu *gpu, uint64_t address, uint64_t bytes, struct foreign *foreign)
{
    unsigned long long id = 0;
    int rc = check_exportable(gpu, address);
    unsigned result;

    if (rc < 0)
        return rc;
    result = gpu->cu.cuMemGetAddressRange_v2(&foreign->base, &foreign->bytes, address);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "the allocation that %#llx is in", (unsigned long long)address);
    if (address < foreign->base || bytes > foreign->bytes - (address - foreign->base))
        return bxi_gpu_fail(-EINVAL, "%llu bytes from %#llx on leave the allocation, which has %llu from %#llx on",
                            (unsigned long long)bytes, (unsigned long long)address,
                            (unsigned long long)foreign->bytes, foreign->base);
    (void)gpu->cu.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
    foreign->buffer_id = id;

    int ordinal = attribute_of(&gpu->cu, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);

    pthread_mutex_lock(&gpu->lock);
    for (uint32_t i = 0; i < gpu->device_count; i++)
        if (gpu->device[i]->ordinal == ordinal)
            foreign->device = gpu->device[i];
    pthread_mutex_unlock(&gpu->lock);
    if (foreign->device != NULL)
        return 0;
    return bxi_gpu_fail(-ENODEV, "the memory is on device %d, which is not in use here: open it first", ordinal);
}

/* The allocation's own context is made current, in which it is exported. */
static int export(struct foreign *foreign)
{
    int rc = bxi_gpu_enter(foreign->device);

    if (rc < 0)
        return rc;
    rc = bxi_gpu_slab_export(foreign->device, foreign->base, &foreign->handle);
    bxi_gpu_leave(foreign->device);
    foreign->is_exported = rc == 0;
    return rc;
}

/* Under the lock: the slab of the allocation; made if there is none. -EAGAIN: it has to be exported before. A base
 * address may recur after a free: it is the same allocation only with the same buffer id. */
static int foreign_slab(struct bxi_gpu *gpu, const struct foreign *foreign, struct bxi_gpu_slab **out)
{
    struct bxi_gpu_slab *slab;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        slab = &gpu->slab[i];
        if (slab->state != BXI_GPU_SLAB_LIVE || foreign->base != slab->address ||
            (slab->is_foreign && slab->buffer_id != foreign->buffer_id))
            continue;
        if (!slab->is_foreign)
            return bxi_gpu_fail(-EINVAL, "the memory is part of this worker's own pool: lend its block");
        *out = slab;
        return 0;
    }
    slab = bxi_gpu_slab_vacant(gpu);
    if (slab == NULL)
        return -ENOSPC;
    if (!foreign->is_exported)
        return -EAGAIN;
    slab->device = foreign->device;
    slab->address = foreign->base;
    slab->bytes = foreign->bytes;
    slab->buffer_id = foreign->buffer_id;
    slab->is_foreign = true;
    slab->used = 0;
    slab->whole = NULL;
    bxi_gpu_slab_publish(slab, &foreign->handle);
    *out = slab;
    return 0;
}

/* Without the lock: the allocation that the range is in. */
static int find(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *range, struct foreign *foreign)
{
    struct bxi_gpu_device *device;
    bool is_mapped;
    int rc;

    pthread_mutex_lock(&gpu->lock);
    device = gpu->device_count > 0 ? gpu->device[0] : NULL;
    is_mapped = bxi_gpu_is_mapped(gpu, range->address);
    pthread_mutex_unlock(&gpu->lock);
    if (device == NULL)
        return bxi_gpu_fail(-ENODEV, "no device is in use here: open one first");
    if (is_mapped)
        return bxi_gpu_fail(-ESTALE, "the memory is another worker's, mapped here: pass on what named it");
    rc = bxi_gpu_enter(device);
    if (rc < 0)
        return rc;
    rc = find_allocation(gpu, range->address, range->bytes, foreign);
    bxi_gpu_leave(device);
    return rc;
}

/* Under the lock. made and last are consumed only on success. */
static int add(struct bxi_gpu *gpu, const struct foreign *foreign, struct bxi_gpu_block_inside *made,
               struct bxi_gpu_last *last)
{
    struct bxi_gpu_slab *slab = NULL;
    int rc = foreign_slab(gpu, foreign, &slab);

    if (rc < 0)
        return rc;
    slab->used++;
    if (last->freed != NULL) {
        last->next = slab->last;
        slab->last = last;
    }
    made->block.device = slab->device;
    made->block.slab = (uint32_t)(slab - gpu->slab);
    made->block.generation = slab->generation;
    made->block.offset = made->block.address - slab->address;
    bxi_gpu_block_add(gpu, made, made->block.bytes);
    return 0;
}

/* comes: another attempt may succeed. */
static int wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *range, struct bxi_gpu_block_inside *made,
                struct bxi_gpu_last *last, bool *comes)
{
    struct foreign foreign = { .base = 0 };
    int rc = find(gpu, range, &foreign);

    *comes = false;
    if (rc < 0)
        return rc;
    made->block = (struct bxi_gpu_block){ .address = range->address, .bytes = range->bytes };
    pthread_mutex_lock(&gpu->lock);
    rc = add(gpu, &foreign, made, last);
    pthread_mutex_unlock(&gpu->lock);
    if (rc == -EAGAIN)
        rc = export(&foreign);
    else if (rc == 0)
        return 0;
    pthread_mutex_lock(&gpu->lock);
    if (rc == 0)
        rc = add(gpu, &foreign, made, last);
    *comes = bxi_gpu_room_comes(gpu, NULL, rc);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

int bxi_gpu_wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block **block)
{
    struct bxi_gpu_block_inside *made;
    struct bxi_gpu_last *last;
    bool comes;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    made = calloc(1, sizeof(*made));
    last = calloc(1, sizeof(*last));
    rc = made == NULL || last == NULL ? bxi_gpu_fail(-ENOMEM, "no memory for a block's books") : 0;
    if (rc < 0)
        goto free_both;
    last->freed = foreign->freed;
    last->context = foreign->context;
    for (int pauses = 0;; pauses++) {
        rc = wrap(gpu, foreign, made, last, &comes);
        if (!comes || pauses == BXI_GPU_ROOM_PAUSES)
            break;
        bxi_gpu_room_wait(gpu);
    }
    if (rc < 0)
        goto free_both;
    if (foreign->freed == NULL)
        free(last);
    *block = &made->block;
    return 0;

free_both:
    free(made);
    free(last);
    return rc;
}
