/* SPDX-License-Identifier: MIT */
/*
 * Memory of the fake's devices, and host memory that they may access. A device address is the address of this process's
 * mapping, so that streams can use it directly; but only ranges listed here are ever accessed.
 */
#include "fake.h"

#include <poll.h>
#include <sys/syscall.h>

FAKE_EXPORT unsigned cuMemAllocManaged(unsigned long long *address, size_t bytes, unsigned flags);
FAKE_EXPORT unsigned cuMemAllocAsync(unsigned long long *address, size_t bytes, struct CUstream_st *stream);
#define RANGES 4096
#define HANDLE_MAGIC 0x454b4146u

enum range_kind { RANGE_NONE = 0, RANGE_OWN, RANGE_OPENED, RANGE_MAPPED, RANGE_REGISTERED, RANGE_PINNED };

struct range {
    enum range_kind kind;
    enum fake_kind memory;
    uint64_t base, bytes, serial;
    int device;                         /* physical */
    int fd;                             /* OWN: its memfd; OPENED: a pidfd of the owner, or -1 */
    uint32_t slot;                      /* OWN: in the handle; OPENED: index into the machine's allocations */
    int opens;                          /* OPENED */
    bool read_only;
    bool is_closed;                     /* MAPPED: no device was given access */
};

struct handle {                         /* no serial: the bytes recur, as observed of real handles */
    uint32_t magic;
    int32_t pid;
    uint32_t slot;
    uint32_t zero;
    uint64_t bytes;
};

static struct range ranges[RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Ranges, under lock ---------------------------------------------------------------------- */

static struct range *range_of(uint64_t address)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].kind != RANGE_NONE && address >= ranges[i].base && address - ranges[i].base < ranges[i].bytes)
            return &ranges[i];
    return NULL;
}

static struct range *vacant(void)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].kind == RANGE_NONE)
            return &ranges[i];
    abort();
}

bool fake_may_touch(uint64_t address, uint64_t bytes, bool written)
{
    uint64_t end = address + bytes;
    bool may = true;

    pthread_mutex_lock(&lock);
    do {                                /* several mappings may be behind one another */
        const struct range *range = range_of(address);

        may = range != NULL && !(written && range->read_only) && !range->is_closed &&
              (range->kind == RANGE_MAPPED || end - range->base <= range->bytes);
        address = may ? range->base + range->bytes : end;
    } while (may && address < end);
    pthread_mutex_unlock(&lock);
    return may;
}

/* ---- Mappings, for vmm.c --------------------------------------------------------------------- */

void fake_mapping_add(uint64_t base, uint64_t bytes, uint64_t serial, int device)
{
    pthread_mutex_lock(&lock);
    *vacant() = (struct range){ .kind = RANGE_MAPPED, .memory = FAKE_VMM, .base = base, .bytes = bytes,
                                .serial = serial, .device = device, .fd = -1, .is_closed = true };
    pthread_mutex_unlock(&lock);
}

void fake_mapping_allow(uint64_t base, bool readable, bool writable)
{
    struct range *range;

    pthread_mutex_lock(&lock);
    range = range_of(base);
    range->is_closed = !readable;
    range->read_only = !writable;
    pthread_mutex_unlock(&lock);
}

void fake_mapping_remove(uint64_t base)
{
    pthread_mutex_lock(&lock);
    range_of(base)->kind = RANGE_NONE;
    pthread_mutex_unlock(&lock);
}

/* ---- Allocation ------------------------------------------------------------------------------ */

static uint32_t free_slot(void)
{
    uint32_t slot = 0;

    for (int i = 0; i < RANGES; i++) {
        if (ranges[i].kind == RANGE_OWN && ranges[i].slot == slot) {
            slot++;
            i = -1;
        }
    }
    return slot;
}

static unsigned fill_range(struct range *range, size_t bytes)
{
    unsigned result;
    void *memory;

    range->fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (range->fd < 0 || ftruncate(range->fd, (off_t)bytes) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, range->fd, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->base = (uint64_t)(uintptr_t)memory;
    range->bytes = bytes;
    range->slot = free_slot();
    fake_lock();
    range->serial = ++fake_machine->serial;
    result = fake_allocation_enter(&(struct fake_allocation){ .slot = range->slot, .fd = range->fd,
                                                              .device = range->device, .bytes = bytes,
                                                              .serial = range->serial });
    fake_unlock();
    if (result != CUDA_SUCCESS)
        munmap(memory, bytes);
    else if (fake_options.dirty)
        memset(memory, 0xFF, bytes);    /* NaN, as float and as double */
    return result;
}

unsigned fake_begin(void)
{
    unsigned result = fake_unsafe();

    if (result == CUDA_SUCCESS)
        fake_block();
    return result;
}

/* The same, of a call that wants a context. */
static unsigned begin_call(struct CUctx_st **context)
{
    unsigned result = fake_current(context);

    return result == CUDA_SUCCESS ? fake_begin() : result;
}

static unsigned allocate(unsigned long long *address, size_t bytes, enum fake_kind kind)
{
    struct CUctx_st *context;
    struct range *range;
    unsigned result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : begin_call(&context);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    range = vacant();
    *range = (struct range){ .memory = kind, .device = context->device, .fd = -1 };
    result = fill_range(range, bytes);
    if (result == CUDA_SUCCESS) {
        range->kind = RANGE_OWN;
        *address = range->base;
    } else if (range->fd >= 0) {
        close(range->fd);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    return allocate(address, bytes, FAKE_PLAIN);
}

unsigned cuMemAllocManaged(unsigned long long *address, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate(address, bytes, FAKE_MANAGED);
}

unsigned cuMemAllocAsync(unsigned long long *address, size_t bytes, struct CUstream_st *stream)
{
    (void)stream;
    return allocate(address, bytes, FAKE_POOLED);
}

/* Both locks held. Returns whether other processes have it open. */
static bool leave_allocation(const struct range *range)
{
    struct fake_allocation *allocation = fake_allocation_of(range->serial);
    bool is_open = false;

    for (int i = 0; i < FAKE_OPENERS; i++)
        is_open = is_open || allocation->opener[i].pid != 0;
    if (is_open)
        allocation->is_freed = true;
    else
        memset(allocation, 0, sizeof(*allocation));
    fake_machine->freed_while_open += is_open;
    return is_open;
}

unsigned cuMemFree_v2(unsigned long long address)
{
    struct CUctx_st *context;
    struct range *range;
    unsigned result = begin_call(&context);

    if (result != CUDA_SUCCESS)
        return result;
    fake_synchronise_all();
    pthread_mutex_lock(&lock);
    range = range_of(address);
    if (range == NULL || range->kind != RANGE_OWN || range->base != address) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        fake_lock();
        if (leave_allocation(range))
            memset((void *)(uintptr_t)range->base, FAKE_POISON, range->bytes);
        fake_unlock();
        munmap((void *)(uintptr_t)range->base, range->bytes);
        close(range->fd);
        range->kind = RANGE_NONE;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    fake_lock();
    *total_bytes = fake_options.memory_bytes;
    *free_bytes = fake_options.memory_bytes - fake_used_bytes(context->device);
    fake_unlock();
    return CUDA_SUCCESS;
}

/* ---- Queries --------------------------------------------------------------------------------- */

unsigned cuMemGetAddressRange_v2(unsigned long long *base, size_t *bytes, unsigned long long address)
{
    struct range *range;

    pthread_mutex_lock(&lock);
    range = range_of(address);
    if (range != NULL) {
        *base = range->base;
        *bytes = range->bytes;
    }
    pthread_mutex_unlock(&lock);
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int fake_ordinal_of(int device)
{
    for (int i = 0; i < fake_options.visible_count; i++)
        if (fake_options.visible[i] == device)
            return i;
    return -1;
}

static unsigned answer(const struct range *range, void *data, unsigned attribute)
{
    bool is_device = range->kind == RANGE_OWN || range->kind == RANGE_OPENED || range->kind == RANGE_MAPPED;

    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(int *)data = is_device ? CU_MEMORYTYPE_DEVICE : 1; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)data = range->memory == FAKE_MANAGED; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = fake_ordinal_of(range->device); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)data = range->serial; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = range->kind == RANGE_OWN && range->memory == FAKE_PLAIN;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)data = range->memory == FAKE_POOLED ? (void *)&ranges : NULL;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

unsigned cuPointerGetAttribute(void *data, unsigned attribute, unsigned long long address)
{
    struct range *range;
    unsigned result;

    pthread_mutex_lock(&lock);
    range = range_of(address);
    result = range != NULL ? answer(range, data, attribute) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- Between processes ----------------------------------------------------------------------- */

unsigned cuIpcGetMemHandle(struct CUipcMemHandle_st *out, unsigned long long address)
{
    struct handle handle = { .magic = HANDLE_MAGIC, .pid = (int32_t)getpid() };
    struct range *range;
    unsigned result = fake_options.mig ? CUDA_ERROR_NOT_SUPPORTED : fake_ready();

    pthread_mutex_lock(&lock);
    range = range_of(address);
    if (result == CUDA_SUCCESS && (range == NULL || range->kind != RANGE_OWN || range->memory != FAKE_PLAIN))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        handle.slot = range->slot;
        handle.bytes = range->bytes;
        memset(out, 0, sizeof(*out));
        memcpy(out->reserved, &handle, sizeof(handle));
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void fake_dawdle(void)
{
    struct timespec time = { .tv_sec = fake_options.open_ms / 1000,
                             .tv_nsec = fake_options.open_ms % 1000 * 1000000L };

    nanosleep(&time, NULL);
    if (fake_options.open_gate >= 0)
        poll(&(struct pollfd){ .fd = fake_options.open_gate, .events = POLLIN }, 1, -1);
}

static struct fake_allocation *find_allocation(const struct handle *handle)
{
    for (int i = 0; i < FAKE_ALLOCATIONS; i++) {
        struct fake_allocation *allocation = &fake_machine->allocation[i];

        if (allocation->owner.pid == handle->pid && allocation->slot == handle->slot && !allocation->is_freed &&
            allocation->bytes == handle->bytes && fake_is_alive(&allocation->owner))
            return allocation;
    }
    return NULL;
}

/* Both locks held. */
static unsigned map_opened(struct range *range, struct fake_allocation *allocation)
{
    int opener = 0;
    char path[64];
    void *memory;
    int fd;

    while (opener < FAKE_OPENERS && allocation->opener[opener].pid != 0)
        opener++;
    if (opener == FAKE_OPENERS)
        return CUDA_ERROR_MAP_FAILED;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", allocation->owner.pid, allocation->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_MAP_FAILED;
    memory = mmap(NULL, allocation->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    allocation->opener[opener] = fake_self();
    *range = (struct range){
        .kind = RANGE_OPENED,
        .memory = FAKE_PLAIN,
        .base = (uint64_t)(uintptr_t)memory,
        .bytes = allocation->bytes,
        .serial = allocation->serial,
        .device = allocation->device,
        .opens = 1,
        .fd = fake_options.drop_dead ? (int)syscall(SYS_pidfd_open, allocation->owner.pid, 0) : -1,
    };
    fake_machine->opens++;
    return CUDA_SUCCESS;
}

/* Both locks held. */
static unsigned open_again(struct range *range, struct range **out)
{
    if (!fake_options.same_open)
        return 208;                     /* CUDA_ERROR_ALREADY_MAPPED */
    range->opens++;
    fake_machine->opens++;
    *out = range;
    return CUDA_SUCCESS;
}

/* Both locks held. */
static unsigned open_handle(const struct handle *handle, int device, struct range **out)
{
    struct fake_allocation *allocation = find_allocation(handle);

    if (allocation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_options.reaches[device][allocation->device])
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].kind == RANGE_OPENED && ranges[i].serial == allocation->serial)
            return open_again(&ranges[i], out);
    *out = vacant();
    return map_opened(*out, allocation);
}

unsigned cuIpcOpenMemHandle_v2(unsigned long long *address, struct CUipcMemHandle_st bytes, unsigned flags)
{
    struct CUctx_st *context;
    struct handle handle;
    struct range *range;
    unsigned result = fake_current(&context);

    memcpy(&handle, bytes.reserved, sizeof(handle));
    if (result != CUDA_SUCCESS)
        return result;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle.magic != HANDLE_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == getpid() || fake_options.no_ipc)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_options.open_205)
        return CUDA_ERROR_MAP_FAILED;
    result = fake_begin();
    if (result != CUDA_SUCCESS)
        return result;
    fake_dawdle();
    pthread_mutex_lock(&lock);
    fake_lock();
    result = open_handle(&handle, context->device, &range);
    fake_unlock();
    if (result == CUDA_SUCCESS)
        *address = range->base;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Both locks held. */
static void close_range_of(struct range *range)
{
    struct fake_allocation *allocation = fake_allocation_of(range->serial);
    struct fake_process self = fake_self();

    fake_machine->closes++;
    if (--range->opens > 0)
        return;
    munmap((void *)(uintptr_t)range->base, range->bytes);
    for (int i = 0; i < FAKE_OPENERS && allocation != NULL; i++)
        if (fake_same(&allocation->opener[i], &self))
            allocation->opener[i].pid = 0;
    if (range->fd >= 0)
        close(range->fd);
    range->kind = RANGE_NONE;
}

unsigned cuIpcCloseMemHandle(unsigned long long address)
{
    struct CUctx_st *context;
    struct range *range;
    unsigned result = begin_call(&context);

    if (result != CUDA_SUCCESS)
        return result;
    fake_synchronise_all();
    fake_dawdle();
    pthread_mutex_lock(&lock);
    range = range_of(address);
    if (range == NULL || range->kind != RANGE_OPENED || range->base != address) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        fake_lock();
        close_range_of(range);
        fake_unlock();
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- Owners that are gone -------------------------------------------------------------------- */

/* Both locks held. */
static void drop(const struct range *range)
{
    struct fake_allocation *allocation = fake_allocation_of(range->serial);

    if (allocation == NULL || allocation->is_dropped)
        return;
    memset((void *)(uintptr_t)range->base, FAKE_POISON, range->bytes);
    allocation->is_dropped = true;
}

void fake_drop_dead(void)
{
    if (!fake_options.drop_dead)
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES; i++) {
        struct range *range = &ranges[i];

        if (range->kind != RANGE_OPENED || range->fd < 0 ||
            poll(&(struct pollfd){ .fd = range->fd, .events = POLLIN }, 1, 0) != 1)
            continue;
        fake_lock();
        drop(range);
        fake_unlock();
        close(range->fd);
        range->fd = -1;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- Host memory ----------------------------------------------------------------------------- */

static unsigned add_host(void *memory, size_t bytes, enum range_kind kind, bool read_only)
{
    unsigned result = CUDA_SUCCESS;

    pthread_mutex_lock(&lock);
    if (range_of((uint64_t)(uintptr_t)memory) != NULL)
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else
        *vacant() = (struct range){ .kind = kind, .base = (uint64_t)(uintptr_t)memory, .bytes = bytes,
                                    .read_only = read_only };
    pthread_mutex_unlock(&lock);
    return result;
}

static unsigned take_host(void *memory, enum range_kind kind)
{
    struct range *range;
    unsigned result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;

    pthread_mutex_lock(&lock);
    range = range_of((uint64_t)(uintptr_t)memory);
    if (range != NULL && range->kind == kind && range->base == (uint64_t)(uintptr_t)memory) {
        range->kind = RANGE_NONE;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Whether this process may write there, according to /proc/self/maps. */
static bool is_writable(const void *memory)
{
    unsigned long long begin, end, at = (unsigned long long)(uintptr_t)memory;
    char line[512], rights[8];
    bool writable = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        if (sscanf(line, "%llx-%llx %7s", &begin, &end, rights) == 3 && at >= begin && at < end)
            writable = rights[1] == 'w';
    if (maps != NULL)
        fclose(maps);
    return writable;
}

unsigned cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    struct CUctx_st *context;
    unsigned result = begin_call(&context);
    void *made;

    (void)flags;
    if (result != CUDA_SUCCESS)
        return result;
    made = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    result = add_host(made, bytes, RANGE_PINNED, false);
    if (result == CUDA_SUCCESS)
        *memory = made;
    else
        free(made);
    return result;
}

unsigned cuMemFreeHost(void *memory)
{
    unsigned result = fake_begin();

    if (result != CUDA_SUCCESS)
        return result;
    fake_synchronise_all();
    result = take_host(memory, RANGE_PINNED);
    if (result == CUDA_SUCCESS)
        free(memory);
    return result;
}

unsigned cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);
    bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;

    if (result != CUDA_SUCCESS)
        return result;
    if (fake_options.no_host_register || (read_only && fake_options.no_read_only))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!read_only && !is_writable(memory))
        return CUDA_ERROR_INVALID_VALUE;
    result = fake_begin();
    return result == CUDA_SUCCESS ? add_host(memory, bytes, RANGE_REGISTERED, read_only) : result;
}

unsigned cuMemHostUnregister(void *memory)
{
    unsigned result = fake_begin();

    if (result != CUDA_SUCCESS)
        return result;
    fake_synchronise_all();
    return take_host(memory, RANGE_REGISTERED);
}

unsigned cuMemHostGetDevicePointer_v2(unsigned long long *address, void *memory, unsigned flags)
{
    bool is_known = fake_may_touch((uint64_t)(uintptr_t)memory, 1, false);

    if (!is_known || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *address = (unsigned long long)(uintptr_t)memory;
    return CUDA_SUCCESS;
}
