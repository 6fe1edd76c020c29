/* SPDX-License-Identifier: MIT */
/*
 * Memory that is exported as file descriptors: made by cuMemCreate, mapped by its owner for reading and writing, and by
 * each borrower for reading only, so that a borrower is kept from writing as it is on the host. The driver's calls;
 * slab.c, map.c and foreign.c decide when. Any thread, without the lock, the device's context current.
 *
 * Memory consists of parts: a slab of the pool has one; foreign memory one for each allocation that its range touches
 * (PyTorch's expandable segments are many allocations behind one another). Each part has a descriptor. A borrower maps
 * the parts behind one another, too.
 *
 * Neither side keeps a handle of what it has mapped: mappings and descriptors keep the memory. It is freed with the
 * last of them, whoever dies first (cuMemRelease). Only foreign parts keep their handles: as long as a process has a
 * handle its value names no other allocation.
 *
 * All devices of this process that can access the memory get access (as NCCL does, ncclMemAlloc): without it a copy
 * on a stream of another device would fail. cuMemSetAccess and cuMemUnmap may wait for the device, so they are called
 * where cuMemAlloc and cuIpcCloseMemHandle were. But cuMemUnmap does not always wait (a comment in PyTorch's allocator
 * says so), and work that still reads the range would fail. Where work may be left (a map of a dead owner) a small
 * allocation is made and freed first, because cuMemFree waits. On a device that is full none can be made: then one is
 * freed that was made before the first map. Else a full device would stay full of what is to be unmapped.
 *
 * Killed at any step: the driver drops the handles, mappings and descriptors of the process.
 */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROBE_BYTES 4096
#define PROBE_VALUE 0xA5
#define PROBE_NS UINT64_C(2000000000)

/* ---- Parts ----------------------------------------------------------------------------------- */

struct bxi_gpu_parts *bxi_gpu_parts_new(void)
{
    struct bxi_gpu_parts *parts = calloc(1, sizeof(*parts));

    if (parts == NULL)
        (void)bxi_gpu_fail(-ENOMEM, "no memory for the books of exported memory");
    return parts;
}

void bxi_gpu_parts_close(struct bxi_gpu_parts *parts)
{
    for (uint32_t i = 0; i < parts->count; i++) {
        if (parts->part[i].fd >= 0)
            close(parts->part[i].fd);
        parts->part[i].fd = -1;
    }
}

void bxi_gpu_parts_free(const struct bxi_gpu *gpu, struct bxi_gpu_parts *parts)
{
    if (parts == NULL)
        return;
    bxi_gpu_parts_close(parts);
    for (uint32_t i = 0; i < parts->count; i++)
        if (parts->part[i].handle != 0)
            (void)gpu->cu.cuMemRelease(parts->part[i].handle);
    free(parts);
}

static struct bxi_gpu_part *add_part(struct bxi_gpu_parts *parts, uint64_t bytes)
{
    struct bxi_gpu_part *part = &parts->part[parts->count++];

    *part = (struct bxi_gpu_part){ .bytes = bytes, .fd = -1 };
    return part;
}

static uint64_t bytes_of(const struct bxi_gpu_parts *parts)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < parts->count; i++)
        bytes += parts->part[i].bytes;
    return bytes;
}

/* ---- Mapping --------------------------------------------------------------------------------- */

struct range {
    uint64_t address, bytes;
};

static unsigned allow(const struct bxi_cuda *cu, const struct range *range, int handle, unsigned flags)
{
    struct CUmemAccessDesc_st access = { { CU_MEM_LOCATION_TYPE_DEVICE, handle }, flags };

    return cu->cuMemSetAccess(range->address, range->bytes, &access, 1);
}

/* Gives access to the device, and to others as far as they can have it. */
static unsigned allow_all(const struct bxi_gpu_device *device, const struct range *range, unsigned flags)
{
    const struct bxi_gpu *gpu = device->gpu;
    unsigned result = allow(&gpu->cu, range, device->handle, flags);

    for (int i = 0; result == CUDA_SUCCESS && i < gpu->ordinals; i++) {
        int can = 0;

        if (gpu->handle[i] != device->handle &&
            gpu->cu.cuDeviceCanAccessPeer(&can, gpu->handle[i], device->handle) == CUDA_SUCCESS && can != 0)
            (void)allow(&gpu->cu, range, gpu->handle[i], flags);
    }
    return result;
}

/* Unmaps the first count parts, and frees the address range. */
static void unmap(const struct bxi_cuda *cu, uint64_t address, const struct bxi_gpu_parts *parts, uint32_t count)
{
    uint64_t at = address;

    for (uint32_t i = 0; i < count; i++) {
        (void)cu->cuMemUnmap(at, parts->part[i].bytes);
        at += parts->part[i].bytes;
    }
    (void)cu->cuMemAddressFree(address, bytes_of(parts));
}

/* Maps the parts, whose handles are there, behind one another. */
static unsigned map(const struct bxi_gpu_device *device, const struct bxi_gpu_parts *parts, unsigned flags,
                    uint64_t *address)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    uint64_t bytes = bytes_of(parts), offset = 0;
    unsigned long long base = 0;
    unsigned result = cu->cuMemAddressReserve(&base, bytes, 0, 0, 0);
    uint32_t mapped = 0;

    if (result != CUDA_SUCCESS)
        return result;
    for (; result == CUDA_SUCCESS && mapped < parts->count; mapped += result == CUDA_SUCCESS) {
        result = cu->cuMemMap(base + offset, parts->part[mapped].bytes, 0, parts->part[mapped].handle, 0);
        offset += parts->part[mapped].bytes;
    }
    if (result == CUDA_SUCCESS)
        result = allow_all(device, &(struct range){ base, bytes }, flags);
    if (result != CUDA_SUCCESS)
        unmap(cu, base, parts, mapped);
    else
        *address = base;
    return result;
}

static void release_handles(const struct bxi_cuda *cu, struct bxi_gpu_parts *parts)
{
    for (uint32_t i = 0; i < parts->count; i++) {
        if (parts->part[i].handle != 0)
            (void)cu->cuMemRelease(parts->part[i].handle);
        parts->part[i].handle = 0;
    }
}

/* ---- The owner ------------------------------------------------------------------------------- */

static unsigned export_part(const struct bxi_cuda *cu, struct bxi_gpu_part *part)
{
    unsigned result = cu->cuMemExportToShareableHandle(&part->fd, part->handle,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);

    if (result != CUDA_SUCCESS)
        part->fd = -1;
    else
        (void)fcntl(part->fd, F_SETFD, FD_CLOEXEC);
    return result;
}

static struct CUmemAllocationProp_st properties(const struct bxi_gpu_device *device)
{
    return (struct CUmemAllocationProp_st){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->handle },
    };
}

unsigned bxi_gpu_vmm_make(const struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_parts *parts,
                          uint64_t *address)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    struct CUmemAllocationProp_st prop = properties(device);
    struct bxi_gpu_part *part;
    unsigned result;

    parts->count = 0;
    part = add_part(parts, bytes);
    result = cu->cuMemCreate(&part->handle, bytes, &prop, 0);
    if (result == CUDA_SUCCESS)
        result = export_part(cu, part);
    if (result == CUDA_SUCCESS)
        result = map(device, parts, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, address);
    release_handles(cu, parts);
    if (result != CUDA_SUCCESS)
        bxi_gpu_parts_close(parts);
    return result;
}

void bxi_gpu_vmm_init(struct bxi_gpu_device *device)
{
    if (device->spare == 0 && device->gpu->cu.cuMemAlloc_v2(&device->spare, BXI_GPU_ALIGN) != CUDA_SUCCESS)
        device->spare = 0;
}

void bxi_gpu_vmm_fini(struct bxi_gpu_device *device)
{
    if (device->spare != 0)
        (void)device->gpu->cu.cuMemFree_v2(device->spare);
    device->spare = 0;
}

/* In a context that has failed no work runs: each call returns the error, the query of an idle stream too. */
bool bxi_gpu_vmm_settle(struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned long long address = 0;
    unsigned result = cu->cuMemAlloc_v2(&address, BXI_GPU_ALIGN);

    if (result != CUDA_SUCCESS) {
        address = device->spare;
        device->spare = 0;
    }
    if (address != 0)
        result = cu->cuMemFree_v2(address);
    bxi_gpu_vmm_init(device);
    if (result == CUDA_SUCCESS)
        return true;
    result = cu->cuStreamQuery(device->side);
    return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

void bxi_gpu_vmm_unmap(const struct bxi_gpu_device *device, uint64_t address, const struct bxi_gpu_parts *parts)
{
    unmap(&device->gpu->cu, address, parts, parts->count);
}

/* One allocation of foreign memory. at: its first byte; bytes: how many it has; where: the device of those before, or
 * -1. -ENOENT: there is none. */
static int take_part(const struct bxi_cuda *cu, uint64_t at, struct bxi_gpu_parts *parts, uint64_t *bytes, int *where)
{
    struct CUmemAllocationProp_st prop = { 0 };
    unsigned long long handle = 0, base = 0;
    size_t size = 0;
    unsigned result = cu->cuMemGetAddressRange_v2(&base, &size, at);

    if (result != CUDA_SUCCESS)
        return -ENOENT;
    if (base == at && parts->count < BXI_GPU_PARTS)
        result = cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at);
    else
        return bxi_gpu_fail(-EOPNOTSUPP, "the memory is spread over more than %d allocations of cuMemCreate (VMM), or "
                            "not mapped from their beginning: copy it to a tensor of the job's", BXI_GPU_PARTS);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(cu, result, "the allocation of cuMemCreate (VMM) at %#llx", (unsigned long long)at);
    add_part(parts, size)->handle = handle;
    *bytes = size;
    result = cu->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (result == CUDA_SUCCESS && *where >= 0 && prop.location.id != *where)
        return bxi_gpu_fail(-EOPNOTSUPP, "the memory is spread over devices %d and %d: copy it to a tensor of the "
                            "job's", *where, prop.location.id);
    *where = prop.location.id;
    if (result == CUDA_SUCCESS && (prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return 0;
    return bxi_gpu_fail(-EOPNOTSUPP, "memory made with cuMemCreate (VMM; PyTorch's expandable_segments) cannot be "
                        "exported unless it was made with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, and this was not: "
                        "copy it to a tensor of the job's, or allocate it with cudaMalloc");
}

int bxi_gpu_vmm_take(const struct bxi_gpu *gpu, uint64_t address, uint64_t bytes, struct bxi_gpu_parts *parts,
                     uint64_t *base)
{
    unsigned long long first = 0;
    size_t size = 0;
    uint64_t at, more = 0;
    unsigned result = gpu->cu.cuMemGetAddressRange_v2(&first, &size, address);
    int rc = 0, where = -1;

    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "the allocation that %#llx is in", (unsigned long long)address);
    *base = at = first;
    for (; rc == 0 && (at <= address || at - address < bytes); at += rc == 0 ? more : 0)
        rc = take_part(&gpu->cu, at, parts, &more, &where);
    return rc != -ENOENT ? rc : bxi_gpu_fail(-EINVAL, "%llu bytes from %#llx on leave the allocations, which end at "
                                             "%#llx", (unsigned long long)bytes, (unsigned long long)address,
                                             (unsigned long long)at);
}

int bxi_gpu_vmm_export(const struct bxi_gpu *gpu, struct bxi_gpu_parts *parts)
{
    for (uint32_t i = 0; i < parts->count; i++) {
        unsigned result = export_part(&gpu->cu, &parts->part[i]);

        if (result != CUDA_SUCCESS)
            return bxi_gpu_cuda_fail(&gpu->cu, result, "the driver does not export memory that was made for that "
                                     "(cuMemExportToShareableHandle)");
    }
    return 0;
}

/* ---- The borrower ---------------------------------------------------------------------------- */

unsigned bxi_gpu_vmm_map(const struct bxi_gpu_device *device, struct bxi_gpu_parts *parts, uint64_t *address)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned result = CUDA_SUCCESS;

    for (uint32_t i = 0; result == CUDA_SUCCESS && i < parts->count; i++)
        result = cu->cuMemImportFromShareableHandle(&parts->part[i].handle, (void *)(intptr_t)parts->part[i].fd,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_SUCCESS)
        result = map(device, parts, CU_MEM_ACCESS_FLAGS_PROT_READ, address);
    release_handles(cu, parts);
    return result;
}

/* ---- The trial ------------------------------------------------------------------------------ */

static bool has_functions(const struct bxi_cuda *cu)
{
    return cu->cuMemGetAllocationGranularity != NULL && cu->cuMemCreate != NULL && cu->cuMemRelease != NULL &&
           cu->cuMemAddressReserve != NULL && cu->cuMemAddressFree != NULL && cu->cuMemMap != NULL &&
           cu->cuMemUnmap != NULL && cu->cuMemSetAccess != NULL && cu->cuMemExportToShareableHandle != NULL &&
           cu->cuMemImportFromShareableHandle != NULL && cu->cuMemRetainAllocationHandle != NULL &&
           cu->cuMemGetAllocationPropertiesFromHandle != NULL;
}

static bool has_attribute(const struct bxi_gpu_device *device, unsigned attribute)
{
    int value = 0;

    return device->gpu->cu.cuDeviceGetAttribute(&value, attribute, device->handle) == CUDA_SUCCESS && value != 0;
}

static bool is_offered(const struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    struct CUmemAllocationProp_st prop = properties(device);
    size_t granularity = 0;

    return has_functions(cu) && has_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
           has_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) &&
           cu->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
           granularity != 0 && BXI_GPU_ROUND % granularity == 0;
}

/* Fills the memory at one address and reads it at the other. */
static bool is_seen(const struct bxi_gpu_device *device, uint64_t written, uint64_t read)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    unsigned char *host = device->bounce[0];

    memset(host, 0, PROBE_BYTES);
    if (cu->cuMemsetD8Async(written, PROBE_VALUE, PROBE_BYTES, device->side) != CUDA_SUCCESS ||
        cu->cuMemcpyDtoHAsync_v2(host, read, PROBE_BYTES, device->side) != CUDA_SUCCESS ||
        !bxi_gpu_idle_by(device, device->side, bxi_gpu_now_ns() + PROBE_NS))
        return false;
    for (int i = 0; i < PROBE_BYTES; i++)
        if (host[i] != PROBE_VALUE)
            return false;
    return true;
}

/* The trial: what is made and exported here is imported here, read-only, and seen. That a write would fail is not
 * tried: it would end the context. gpucheck tries it in a process of its own. */
static bool works(const struct bxi_gpu_device *device)
{
    struct bxi_gpu_parts *parts = calloc(1, sizeof(*parts));
    uint64_t own = 0, imported = 0;
    bool is_right = false, is_used = false;

    if (parts != NULL && bxi_gpu_vmm_make(device, BXI_GPU_ROUND, parts, &own) == CUDA_SUCCESS) {
        if (bxi_gpu_vmm_map(device, parts, &imported) == CUDA_SUCCESS) {
            is_right = is_seen(device, own, imported);
            is_used = !is_right && device->gpu->cu.cuStreamQuery(device->side) == CUDA_ERROR_NOT_READY;
        }
        if (imported != 0 && !is_used)
            bxi_gpu_vmm_unmap(device, imported, parts);
        if (!is_used)                   /* else it stays mapped until this process ends */
            bxi_gpu_vmm_unmap(device, own, parts);
        bxi_gpu_parts_close(parts);
    }
    free(parts);
    return is_right;
}

bool bxi_gpu_vmm_works(const struct bxi_gpu_device *device)
{
    return is_offered(device) && works(device);
}
