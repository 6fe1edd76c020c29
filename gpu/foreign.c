/* SPDX-License-Identifier: MIT */
/*
 * Foreign memory: allocations made by other libraries with cuMemAlloc, cudaMalloc or cuMemCreate, as blocks that can be
 * lent. The caller's thread. The driver is asked, and the memory exported, without the lock.
 *
 * What cuMemCreate made is exported as descriptors (vmm.c), where the device does that and its maker has asked for it.
 * A range may touch several such allocations: PyTorch's expandable segments grow by 2 or 20 MiB. The slab has all of
 * them, and their handles, so they stay even if the program unmaps them.
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
    bool is_exported;                   /* handle is set, or parts have descriptors */
    struct bxi_gpu_parts *parts;        /* made by cuMemCreate; NULL: by cuMemAlloc */
    struct CUipcMemHandle_st handle;
};

/* An attribute of a pointer; -1: the driver does not know it. Boolean attributes fill one byte of value only. */
static int attribute_of(const struct bxi_cuda *cu, unsigned attribute, uint64_t address)
{
    int value = 0;

    return cu->cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS ? value : -1;
}

/* 1: made by cuMemCreate, which only descriptors can export. */
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
    return attribute_of(cu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == 0;
}

/* The allocations of cuMemCreate that the range touches. */
static int find_parts(const struct bxi_gpu *gpu, uint64_t address, uint64_t bytes, struct foreign *foreign)
{
    uint64_t base = 0;
    int rc;

    if (!foreign->device->exports_fds)
        return bxi_gpu_fail(-EOPNOTSUPP, "memory made with cuMemCreate (VMM; PyTorch's expandable_segments) cannot be "
                            "exported by CUDA IPC, and device %d exports no descriptors: copy it to a tensor of the "
                            "job's, or allocate it with cudaMalloc", foreign->device->ordinal);
    foreign->parts = bxi_gpu_parts_new();
    if (foreign->parts == NULL)
        return -ENOMEM;
    rc = bxi_gpu_vmm_take(gpu, address, bytes, foreign->parts, &base);
    foreign->base = base;
    foreign->bytes = 0;
    for (uint32_t i = 0; i < foreign->parts->count; i++)
        foreign->bytes += foreign->parts->part[i].bytes;
    return rc;
}

/* Without the lock, the context of some device current. */
static int find_allocation(struct bxi_gpu *gpu, uint64_t address, uint64_t bytes, struct foreign *foreign)
{
    unsigned long long id = 0;
    int is_vmm = check_exportable(gpu, address);
    unsigned result;

    if (is_vmm < 0)
        return is_vmm;
    result = gpu->cu.cuMemGetAddressRange_v2(&foreign->base, &foreign->bytes, address);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "the allocation that %#llx is in", (unsigned long long)address);
    if (is_vmm == 0 && (address < foreign->base || bytes > foreign->bytes - (address - foreign->base)))
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
        return is_vmm != 0 ? find_parts(gpu, address, bytes, foreign) : 0;
    return bxi_gpu_fail(-ENODEV, "the memory is on device %d, which is not in use here: open it first", ordinal);
}

/* The allocation's own context is made current, in which it is exported. */
static int export(struct foreign *foreign)
{
    int rc = bxi_gpu_enter(foreign->device);

    if (rc < 0)
        return rc;
    rc = foreign->parts != NULL ? bxi_gpu_vmm_export(foreign->device->gpu, foreign->parts)
                                : bxi_gpu_slab_export(foreign->device, foreign->base, &foreign->handle);
    bxi_gpu_leave(foreign->device);
    foreign->is_exported = rc == 0;
    return rc;
}

/* Whether the slab has all parts of the foreign memory, at the same addresses. As long as this process has a handle its
 * value names no other allocation. */
static bool has_parts(const struct bxi_gpu_slab *slab, const struct foreign *foreign)
{
    uint64_t at = slab->address;
    uint32_t i = 0;

    if (slab->parts == NULL)
        return false;
    for (; i < slab->parts->count && at != foreign->base; i++)
        at += slab->parts->part[i].bytes;
    if (foreign->parts->count > slab->parts->count - i)
        return false;
    for (uint32_t j = 0; j < foreign->parts->count; j++)
        if (slab->parts->part[i + j].handle != foreign->parts->part[j].handle)
            return false;
    return true;
}

/* A base address may recur after a free: it is the same allocation only with the same buffer id. */
static bool is_slab_of(const struct bxi_gpu_slab *slab, const struct foreign *foreign)
{
    if (slab->is_foreign && foreign->parts != NULL)
        return has_parts(slab, foreign);
    return foreign->base == slab->address &&
           (!slab->is_foreign || (slab->parts == NULL && slab->buffer_id == foreign->buffer_id));
}

/* Under the lock: the slab of the allocation; made if there is none. -EAGAIN: it has to be exported before. */
static int foreign_slab(struct bxi_gpu *gpu, struct foreign *foreign, struct bxi_gpu_slab **out)
{
    struct bxi_gpu_slab *slab;

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        slab = &gpu->slab[i];
        if (slab->state != BXI_GPU_SLAB_LIVE || !is_slab_of(slab, foreign))
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
    slab->parts = foreign->parts;
    foreign->parts = NULL;
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
static int add(struct bxi_gpu *gpu, struct foreign *foreign, struct bxi_gpu_block_inside *made,
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
static int wrap_found(struct bxi_gpu *gpu, struct foreign *foreign, struct bxi_gpu_block_inside *made,
                      struct bxi_gpu_last *last, bool *comes)
{
    int rc;

    pthread_mutex_lock(&gpu->lock);
    rc = add(gpu, foreign, made, last);
    pthread_mutex_unlock(&gpu->lock);
    if (rc == -EAGAIN)
        rc = export(foreign);
    else if (rc == 0)
        return 0;
    pthread_mutex_lock(&gpu->lock);
    if (rc == 0)
        rc = add(gpu, foreign, made, last);
    *comes = bxi_gpu_room_comes(gpu, NULL, rc);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

static int wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *range, struct bxi_gpu_block_inside *made,
                struct bxi_gpu_last *last, bool *comes)
{
    struct foreign foreign = { .base = 0 };
    int rc = find(gpu, range, &foreign);

    *comes = false;
    made->block = (struct bxi_gpu_block){ .address = range->address, .bytes = range->bytes };
    if (rc == 0)
        rc = wrap_found(gpu, &foreign, made, last, comes);
    bxi_gpu_parts_free(gpu, foreign.parts);     /* unless a slab has them */
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
