/* SPDX-License-Identifier: MIT */
/*
 * Virtual memory management of the fake: memory made by cuMemCreate, address ranges, mappings, and export as file
 * descriptors. fake.h has the model.
 *
 * An allocation is a memfd. Its name has the physical device, its serial and its handle types, so that a descriptor
 * tells all that an importer needs, also after the death of the process that made it. A process has an entry for each
 * cuMemCreate and each import; the entry lives while the process has handles of it or mappings. The entry in the
 * machine, by which the device's memory is counted, lives while a process has one here.
 */
#include "vmm.h"

#include "fake.h"

#include <sys/stat.h>

FAKE_EXPORT unsigned bx_fake_vmm_alloc(unsigned long long *address, size_t bytes);
extern FAKE_EXPORT struct fake_vmm bx_fake_vmm;
#define FAILED_CONTEXT 700u             /* CUDA_ERROR_ILLEGAL_ADDRESS */
#define ENTRIES 1024
#define RANGES 1024
#define GRANULE ((uint64_t)2 << 20)
#define NAME "fake-vmm"

struct entry {                          /* an allocation, as this process knows it */
    unsigned long long handle;          /* 0: none */
    int refs, maps;
    int fd, device;                     /* physical */
    unsigned types;                     /* that may be exported */
    uint64_t bytes, serial;
    bool is_imported;                   /* from another process */
};

struct mapping {
    uint64_t base, bytes;               /* bytes 0: none */
    struct entry *entry;
    unsigned access[FAKE_DEVICES];
};

struct reservation {
    uint64_t base, bytes;               /* bytes 0: none */
};

static struct entry entries[ENTRIES];
static struct mapping mappings[RANGES];
static struct reservation reservations[RANGES];
static unsigned long long handles_made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct fake_vmm bx_fake_vmm;

static bool fails(const char *call)
{
    return bx_fake_vmm.fails != NULL && strcmp(bx_fake_vmm.fails, call) == 0 && bx_fake_vmm.left-- == 0;
}

static unsigned refusal(const char *call)
{
    return fake_options.no_vmm ? CUDA_ERROR_NOT_SUPPORTED : fails(call) ? FAILED_CONTEXT : fake_ready();
}

/* Of a call that may synchronise with the device. */
static unsigned begin(const char *call)
{
    unsigned result = refusal(call);

    return result == CUDA_SUCCESS ? fake_begin() : result;
}

/* ---- Entries, under lock --------------------------------------------------------------------- */

static struct entry *entry_of(unsigned long long handle)
{
    for (int i = 0; i < ENTRIES; i++)
        if (handle != 0 && entries[i].handle == handle && entries[i].refs > 0)
            return &entries[i];
    return NULL;
}

static struct entry *vacant_entry(void)
{
    for (int i = 0; i < ENTRIES; i++)
        if (entries[i].handle == 0)
            return &entries[i];
    abort();
}

/* The machine is locked. No handle of CUDA IPC names the slot. */
static unsigned enter_machine(const struct entry *entry)
{
    return fake_allocation_enter(&(struct fake_allocation){ .slot = UINT32_MAX, .fd = -1, .device = entry->device,
                                                            .bytes = entry->bytes, .serial = entry->serial });
}

/* The machine is locked: this process has one entry more of an allocation. */
static unsigned jofake_allocation_of(const struct entry *entry)
{
    struct fake_allocation *allocation = fake_allocation_of(entry->serial);
    struct fake_process self = fake_self();
    struct fake_process *vacant = NULL;

    if (allocation == NULL)             /* nobody had it but the descriptor */
        return enter_machine(entry);
    if (fake_same(&allocation->owner, &self)) {
        allocation->is_freed = false;
        return CUDA_SUCCESS;
    }
    for (int i = FAKE_OPENERS - 1; i >= 0; i--) {
        if (fake_same(&allocation->opener[i], &self))
            return CUDA_SUCCESS;
        if (allocation->opener[i].pid == 0)
            vacant = &allocation->opener[i];
    }
    if (vacant == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *vacant = self;
    return CUDA_SUCCESS;
}

/* The machine is locked: this process has no entry of the allocation any more. */
static void leave_machine(uint64_t serial)
{
    struct fake_allocation *allocation = fake_allocation_of(serial);
    struct fake_process self = fake_self();
    bool is_open = false;

    if (allocation == NULL)
        return;
    for (int i = 0; i < FAKE_OPENERS; i++) {
        if (fake_same(&allocation->opener[i], &self))
            allocation->opener[i].pid = 0;
        is_open = is_open || allocation->opener[i].pid != 0;
    }
    if (fake_same(&allocation->owner, &self))
        allocation->is_freed = true;
    if (!is_open && (allocation->is_freed || !fake_is_alive(&allocation->owner)))
        memset(allocation, 0, sizeof(*allocation));
}

static void drop_unused(struct entry *entry)
{
    bool has_other = false;

    if (entry->refs > 0 || entry->maps > 0)
        return;
    for (int i = 0; i < ENTRIES; i++)
        has_other = has_other || (&entries[i] != entry && entries[i].handle != 0 &&
                                  entries[i].serial == entry->serial);
    fake_lock();
    fake_machine->closes += entry->is_imported;
    if (!has_other)
        leave_machine(entry->serial);
    fake_unlock();
    close(entry->fd);
    memset(entry, 0, sizeof(*entry));
}

/* ---- Handles --------------------------------------------------------------------------------- */

static bool is_sound(const struct CUmemAllocationProp_st *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < fake_options.visible_count &&
           (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0 &&
           prop->win32HandleMetaData == NULL;
}

unsigned cuMemGetAllocationGranularity(size_t *granularity, const struct CUmemAllocationProp_st *prop, unsigned option)
{
    if (fake_options.no_vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!is_sound(prop) || option > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULE;
    return fake_ready();
}

/* Makes the memfd. The machine is locked. */
static unsigned fill_entry(struct entry *entry)
{
    char name[64];
    unsigned result;
    void *memory;

    entry->serial = ++fake_machine->serial;
    snprintf(name, sizeof(name), NAME ".%d.%llu.%u", entry->device, (unsigned long long)entry->serial, entry->types);
    entry->fd = memfd_create(name, MFD_CLOEXEC);
    if (entry->fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = ftruncate(entry->fd, (off_t)entry->bytes) == 0 ? enter_machine(entry) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        close(entry->fd);
        return result;
    }
    memory = fake_options.dirty ? mmap(NULL, entry->bytes, PROT_WRITE, MAP_SHARED, entry->fd, 0) : MAP_FAILED;
    if (memory != MAP_FAILED) {
        memset(memory, 0xFF, entry->bytes);
        munmap(memory, entry->bytes);
    }
    return CUDA_SUCCESS;
}

unsigned cuMemCreate(unsigned long long *handle, size_t bytes, const struct CUmemAllocationProp_st *prop,
                     unsigned long long flags)
{
    struct entry *entry;
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    if (!is_sound(prop) || flags != 0 || bytes == 0 || bytes % GRANULE != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_options.mig && prop->requestedHandleTypes != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    entry = vacant_entry();
    *entry = (struct entry){ .device = fake_options.visible[prop->location.id], .bytes = bytes,
                             .types = prop->requestedHandleTypes };
    fake_lock();
    result = fill_entry(entry);
    fake_unlock();
    if (result == CUDA_SUCCESS) {
        entry->refs = 1;
        *handle = entry->handle = ++handles_made;
        bx_fake_vmm.handles++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuMemRelease(unsigned long long handle)
{
    struct entry *entry;
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    entry = entry_of(handle);
    if (entry != NULL) {
        entry->refs--;
        bx_fake_vmm.handles--;
        drop_unused(entry);
    }
    pthread_mutex_unlock(&lock);
    return entry != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

unsigned cuMemExportToShareableHandle(void *out, unsigned long long handle, unsigned type, unsigned long long flags)
{
    struct entry *entry;
    unsigned result = refusal(__func__);
    int fd = -1;

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    entry = entry_of(handle);
    if (entry != NULL && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && (entry->types & type) != 0)
        fd = fcntl(entry->fd, F_DUPFD, 0);      /* it survives exec: nothing says that the real one does not */
    pthread_mutex_unlock(&lock);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

/* What the descriptor's name says. */
static bool describe(int fd, struct entry *entry)
{
    char path[64], name[128];
    unsigned long long serial;
    struct stat status;
    ssize_t bytes;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    bytes = readlink(path, name, sizeof(name) - 1);
    if (bytes < 0 || fstat(fd, &status) < 0)
        return false;
    name[bytes] = '\0';
    if (sscanf(name, "/memfd:" NAME ".%d.%llu.%u", &entry->device, &serial, &entry->types) != 3)
        return false;
    entry->serial = serial;
    entry->bytes = (uint64_t)status.st_size;
    return entry->device >= 0 && entry->device < FAKE_DEVICES;
}

/* Whether this process made it. */
static bool is_own(uint64_t serial)
{
    struct fake_process self = fake_self();
    struct fake_allocation *allocation;
    bool is;

    fake_lock();
    allocation = fake_allocation_of(serial);
    is = allocation != NULL && fake_same(&allocation->owner, &self);
    fake_unlock();
    return is;
}

unsigned cuMemImportFromShareableHandle(unsigned long long *handle, void *shared, unsigned type)
{
    struct entry made = { .refs = 1 };
    struct entry *entry;
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !describe((int)(intptr_t)shared, &made))
        return CUDA_ERROR_INVALID_VALUE;
    made.is_imported = !is_own(made.serial);
    if (made.is_imported)
        fake_dawdle();
    pthread_mutex_lock(&lock);
    entry = vacant_entry();
    made.fd = fcntl((int)(intptr_t)shared, F_DUPFD_CLOEXEC, 0);
    result = made.fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        fake_lock();
        result = jofake_allocation_of(&made);
        fake_machine->opens += made.is_imported && result == CUDA_SUCCESS;
        fake_unlock();
        if (result != CUDA_SUCCESS)
            close(made.fd);
    }
    if (result == CUDA_SUCCESS) {
        *handle = made.handle = ++handles_made;
        *entry = made;
        bx_fake_vmm.handles++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuMemGetAllocationPropertiesFromHandle(struct CUmemAllocationProp_st *prop, unsigned long long handle)
{
    struct entry *entry;

    if (fails(__func__))
        return FAILED_CONTEXT;
    pthread_mutex_lock(&lock);
    entry = entry_of(handle);
    if (entry != NULL)
        *prop = (struct CUmemAllocationProp_st){
            .type = CU_MEM_ALLOCATION_TYPE_PINNED,
            .requestedHandleTypes = entry->types,
            .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = fake_ordinal_of(entry->device) },
        };
    pthread_mutex_unlock(&lock);
    return entry != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- Address ranges -------------------------------------------------------------------------- */

unsigned cuMemAddressReserve(unsigned long long *address, size_t bytes, size_t alignment, unsigned long long wanted,
                             unsigned long long flags)
{
    unsigned result = begin(__func__);
    struct reservation *made;
    unsigned char *memory;
    uint64_t before;

    (void)wanted;
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 0 || bytes % GRANULE != 0 || alignment > GRANULE || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memory = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    before = (GRANULE - (uint64_t)(uintptr_t)memory % GRANULE) % GRANULE;
    if (before > 0)
        munmap(memory, before);
    if (before < GRANULE)
        munmap(memory + before + bytes, GRANULE - before);
    pthread_mutex_lock(&lock);
    for (made = reservations; made->bytes != 0;)
        if (++made == reservations + RANGES)
            abort();
    *made = (struct reservation){ (uint64_t)(uintptr_t)(memory + before), bytes };
    bx_fake_vmm.reserved++;
    pthread_mutex_unlock(&lock);
    *address = (unsigned long long)(uintptr_t)(memory + before);
    return CUDA_SUCCESS;
}

static struct mapping *mapping_of(uint64_t address)
{
    for (int i = 0; i < RANGES; i++)
        if (mappings[i].bytes != 0 && address >= mappings[i].base && address - mappings[i].base < mappings[i].bytes)
            return &mappings[i];
    return NULL;
}

static bool is_mapped(uint64_t base, uint64_t bytes)
{
    for (uint64_t at = base; at < base + bytes; at += GRANULE)
        if (mapping_of(at) != NULL)
            return true;
    return false;
}

unsigned cuMemAddressFree(unsigned long long address, size_t bytes)
{
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES; i++) {
        if (bytes == 0 || reservations[i].bytes != bytes || reservations[i].base != address ||
            is_mapped(address, bytes))
            continue;
        munmap((void *)(uintptr_t)address, bytes);
        reservations[i].bytes = 0;
        bx_fake_vmm.reserved--;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- Mappings -------------------------------------------------------------------------------- */

static bool is_reserved(uint64_t base, uint64_t bytes)
{
    for (int i = 0; i < RANGES; i++)
        if (reservations[i].bytes != 0 && base >= reservations[i].base &&
            base - reservations[i].base <= reservations[i].bytes &&
            bytes <= reservations[i].bytes - (base - reservations[i].base))
            return true;
    return false;
}

/* Under lock. */
static unsigned map(uint64_t base, uint64_t bytes, struct entry *entry)
{
    for (int i = 0; i < RANGES; i++) {
        if (mappings[i].bytes != 0)
            continue;
        if (mmap((void *)(uintptr_t)base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, entry->fd, 0) == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        fake_mapping_add(base, bytes, entry->serial, entry->device);
        mappings[i] = (struct mapping){ .base = base, .bytes = bytes, .entry = entry };
        entry->maps++;
        bx_fake_vmm.mapped++;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

unsigned cuMemMap(unsigned long long address, size_t bytes, size_t offset, unsigned long long handle,
                  unsigned long long flags)
{
    struct entry *entry;
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    entry = entry_of(handle);
    if (entry == NULL || offset != 0 || flags != 0 || bytes == 0 || bytes % GRANULE != 0 || address % GRANULE != 0 ||
        bytes > entry->bytes || !is_reserved(address, bytes) || is_mapped(address, bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    else
        result = map(address, bytes, entry);
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuMemUnmap(unsigned long long address, size_t bytes)
{
    struct mapping *mapping;
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    /* No wait for work that uses the range: the real one does not always wait. */
    pthread_mutex_lock(&lock);
    mapping = mapping_of(address);
    if (mapping != NULL && mapping->entry->is_imported) {
        pthread_mutex_unlock(&lock);
        fake_dawdle();
        pthread_mutex_lock(&lock);
    }
    if (mapping == NULL || mapping->base != address || mapping->bytes != bytes) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        fake_mapping_remove(address);
        (void)mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        mapping->entry->maps--;
        mapping->bytes = 0;
        bx_fake_vmm.mapped--;
        drop_unused(mapping->entry);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Under lock: changes the rights of one location. */
static unsigned allow(struct mapping *mapping, const struct CUmemAccessDesc_st *access)
{
    unsigned most = 0;
    int device;

    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || access->location.id < 0 ||
        access->location.id >= fake_options.visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    device = fake_options.visible[access->location.id];
    if (access->flags != 0 && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_options.reaches[device][mapping->entry->device])
        return CUDA_ERROR_INVALID_DEVICE;
    mapping->access[device] = access->flags;
    for (int i = 0; i < FAKE_DEVICES; i++)
        most |= mapping->access[i];
    if (mprotect((void *)(uintptr_t)mapping->base, mapping->bytes,
                 most == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                     : most != 0 ? PROT_READ : PROT_NONE) < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fake_mapping_allow(mapping->base, most != 0, most == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return CUDA_SUCCESS;
}

unsigned cuMemSetAccess(unsigned long long address, size_t bytes, const struct CUmemAccessDesc_st *access, size_t count)
{
    unsigned result = begin(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    if (count == 0 || bytes == 0)
        result = CUDA_ERROR_INVALID_VALUE;
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + bytes;) {
        struct mapping *mapping = mapping_of(at);

        if (mapping == NULL || mapping->base != at || mapping->bytes > address + bytes - at) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
            result = allow(mapping, &access[i]);
        at += mapping->bytes;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

unsigned cuMemRetainAllocationHandle(unsigned long long *handle, void *address)
{
    struct mapping *mapping;
    unsigned result = refusal(__func__);

    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    mapping = mapping_of((uint64_t)(uintptr_t)address);
    if (mapping != NULL) {
        mapping->entry->refs++;
        *handle = mapping->entry->handle;
        bx_fake_vmm.handles++;
    }
    pthread_mutex_unlock(&lock);
    return mapping != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- For tests ------------------------------------------------------------------------------- */

/* Memory as a program makes it that does not mean to export it. Also where the functions are switched off. */
unsigned bx_fake_vmm_alloc(unsigned long long *address, size_t bytes)
{
    struct CUmemAllocationProp_st prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
    struct CUmemAccessDesc_st access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    bool no_vmm = fake_options.no_vmm;
    unsigned long long handle = 0;
    unsigned result;

    bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    fake_options.no_vmm = false;
    result = cuMemCreate(&handle, bytes, &prop, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemAddressReserve(address, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemMap(*address, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemSetAccess(*address, bytes, &access, 1);
    if (result == CUDA_SUCCESS)
        result = cuMemRelease(handle);
    fake_options.no_vmm = no_vmm;
    return result;
}
