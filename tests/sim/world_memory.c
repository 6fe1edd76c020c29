/* SPDX-License-Identifier: MIT */
/*
 * The world's memory: malloc, copies, mappings. malloc never gives memory out twice in a schedule: a use of freed
 * memory is a finding. Each mapping lies in a slot of address space of its own, so an address leads to its object.
 */
#include "world.h"

#define FILLED 256                      /* bytes of what malloc gives out that are no zeroes */
#define HEAP ((unsigned char *)0x100000000000)
#define HEAP_BYTES (UINT64_C(1) << 30)
#define FREED ((unsigned char *)0x180000000000)     /* a byte for each 16 of the heap: 1 */
#define SLOT_BITS 36
#define WINDOW UINT64_C(0x200000000000)
#define MAPPINGS 256
#define BLOCKS 65536

/* Of the library: memory that it has, or has given back. */
struct owned {
    const unsigned char *address;
    uintptr_t pc;                       /* who took it */
    int worker;
};

static uint64_t heap_used;
static struct owned blocks[BLOCKS];
static unsigned block_count;
static struct {
    uint64_t object;                    /* 0: private */
    uint64_t offset;
    struct owned owned;                 /* address NULL: it is unmapped */
} mappings[MAPPINGS];
static unsigned mapping_count;
static struct {
    dev_t device;
    ino_t inode;
} objects[MAPPINGS];                    /* an object's number is its index plus 1 */
static unsigned object_count;

void sim_mappings_reset(bool all)
{
    static bool mapped;

    if (!mapped) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

        if (mmap(HEAP, HEAP_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != HEAP ||
            mmap(FREED, HEAP_BYTES / 16, PROT_READ | PROT_WRITE, flags, -1, 0) != FREED) {
            perror("sim: the heap");
            exit(2);
        }
        mapped = true;
    }
    if (all)
        munmap((void *)(uintptr_t)WINDOW, (size_t)mapping_count << SLOT_BITS);
    memset(HEAP, 0, heap_used);
    memset(FREED, 0, heap_used / 16 + 1);
    heap_used = block_count = 0;
    memset(mappings, 0, sizeof mappings);
    mapping_count = object_count = 0;
}

/* With its process, which has died: nothing of it is left over, in its next one either. */
void sim_mappings_close(int worker)
{
    for (unsigned slot = 0; slot < mapping_count; slot++)
        if (mappings[slot].owned.worker == worker) {
            munmap((void *)(uintptr_t)(WINDOW + ((uint64_t)slot << SLOT_BITS)), UINT64_C(1) << SLOT_BITS);
            mappings[slot].owned.worker = -1;
        }
    for (unsigned i = 0; i < block_count; i++)
        if (blocks[i].worker == worker)
            blocks[i].worker = -1;
}

/* ---- the heap -------------------------------------------------------------------------------------- */

bool sim_shared(uintptr_t address, uint64_t *key)
{
    uint64_t slot;

    if (address - (uintptr_t)HEAP < heap_used) {
        if (FREED[(address - (uintptr_t)HEAP) / 16])
            sim_fail("'%s' uses freed memory", sim_self->name);
        return false;
    }
    slot = (address - WINDOW) >> SLOT_BITS;
    if (slot >= mapping_count || mappings[slot].object == 0)
        return false;
    *key = UINT64_C(1) << 63 | mappings[slot].object << 40 |
           (mappings[slot].offset + (address & ((UINT64_C(1) << SLOT_BITS) - 1)));
    return true;
}

static void *take(size_t align, size_t bytes)
{
    uint64_t at = (heap_used + 16 + align - 1) & ~(uint64_t)(align - 1);

    if (align < 16)
        at = (at + 15) & ~UINT64_C(15);
    if (at + bytes > HEAP_BYTES)
        return NULL;
    memcpy(HEAP + at - 8, &bytes, 8);
    heap_used = (at + bytes + 15) & ~UINT64_C(15);
    return HEAP + at;
}

/* For the library. */
static void *take_owned(size_t align, size_t bytes, uintptr_t pc)
{
    void *block = sim_fails("malloc") ? NULL : take(align, bytes);

    if (block == NULL)
        errno = ENOMEM;
    else if (sim_self != NULL && block_count < BLOCKS)
        blocks[block_count++] = (struct owned){ block, pc, sim_self->worker };
    return block;
}

void sim_memory_left(int worker)
{
    for (unsigned i = 0; i < block_count; i++)
        if (blocks[i].worker == worker && !FREED[(blocks[i].address - HEAP) / 16])
            sim_fail("worker %d ends and leaves memory that was taken at @%#zx", worker, (size_t)blocks[i].pc);
    for (unsigned i = 0; i < mapping_count; i++)
        if (mappings[i].owned.address != NULL && mappings[i].object != 0 && mappings[i].owned.worker == worker)
            sim_fail("worker %d ends and leaves a mapping that was made at @%#zx", worker,
                     (size_t)mappings[i].owned.pc);
}

void *sim_memory(size_t bytes)
{
    return take(64, bytes);
}

static size_t bytes_of(const void *block)
{
    size_t bytes;

    memcpy(&bytes, (const unsigned char *)block - 8, 8);
    return bytes;
}

void *sim_malloc(size_t bytes);
void *sim_calloc(size_t count, size_t bytes);
void *sim_realloc(void *block, size_t bytes);
void *sim_aligned_alloc(size_t align, size_t bytes);
char *sim_strdup(const char *text);
char *sim_strndup(const char *text, size_t most);

void *sim_malloc(size_t bytes)
{
    void *block = take_owned(16, bytes, PC);

    if (block != NULL)
        memset(block, 0xa5, bytes < FILLED ? bytes : FILLED);
    return block;
}

void *sim_calloc(size_t count, size_t bytes)
{
    return take_owned(16, count * bytes, PC);   /* the heap is zero, and given out once */
}

void *sim_aligned_alloc(size_t align, size_t bytes)
{
    void *block = take_owned(align, bytes, PC);

    if (block != NULL)
        memset(block, 0xa5, bytes < FILLED ? bytes : FILLED);
    return block;
}

void sim_free(void *block)
{
    if ((uintptr_t)block - (uintptr_t)HEAP >= HEAP_BYTES) {
        free(block);                            /* of the C library itself */
        return;
    }
    if (FREED[((uintptr_t)block - (uintptr_t)HEAP) / 16])
        sim_fail("'%s' frees memory twice", sim_self->name);
    sim_flush_range(block, bytes_of(block));
    sim_frees(block, bytes_of(block), PC);
    memset(FREED + ((uintptr_t)block - (uintptr_t)HEAP) / 16, 1, (bytes_of(block) + 15) / 16);
}

void *sim_realloc(void *block, size_t bytes)
{
    void *larger = sim_malloc(bytes);

    if (block == NULL || larger == NULL)
        return larger;
    sim_flush_range(block, bytes_of(block));
    memcpy(larger, block, bytes_of(block) < bytes ? bytes_of(block) : bytes);
    sim_free(block);
    return larger;
}

char *sim_strndup(const char *text, size_t most)
{
    size_t bytes = strnlen(text, most);
    char *copy = sim_malloc(bytes + 1);

    if (copy != NULL) {
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

char *sim_strdup(const char *text)
{
    return sim_strndup(text, strlen(text));
}

/* Copies are visible to others line by line. */
static void each_line(const void *address, size_t bytes, bool write, uintptr_t pc)
{
    uint64_t key;

    if (bytes <= 64 || !sim_shared((uintptr_t)address, &key))
        sim_plain(address, bytes, write, pc);
    else
        for (size_t at = 0; at < bytes; at += 64)
            sim_plain((const unsigned char *)address + at, bytes - at < 64 ? bytes - at : 64, write, pc);
}

void *sim_memcpy(void *to, const void *from, size_t bytes);
void *sim_memmove(void *to, const void *from, size_t bytes);
void *sim_memset(void *to, int value, size_t bytes);

void *sim_memmove(void *to, const void *from, size_t bytes)
{
    if (bytes > 0) {
        each_line(from, bytes, false, PC);
        each_line(to, bytes, true, PC);
    }
    return memmove(to, from, bytes);
}

/* The bytes of one line are copied before the next point. */
void *sim_memcpy(void *to, const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        size_t count = bytes - at < 64 ? bytes - at : 64;

        sim_plain((const unsigned char *)from + at, count, false, PC);
        sim_plain((unsigned char *)to + at, count, true, PC);
        memcpy((unsigned char *)to + at, (const unsigned char *)from + at, count);
    }
    return to;
}

void *sim_memset(void *to, int value, size_t bytes)
{
    if (bytes > 0)
        each_line(to, bytes, true, PC);
    return memset(to, value, bytes);
}

/* Of a file; 0: it is none. */
static uint64_t object_of(int fd)
{
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return 0;
    for (unsigned i = 0; i < object_count; i++)
        if (objects[i].device == status.st_dev && objects[i].inode == status.st_ino)
            return i + 1;
    if (object_count == MAPPINGS)
        return 0;
    objects[object_count].device = status.st_dev;
    objects[object_count++].inode = status.st_ino;
    return object_count;
}

void *sim_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int sim_munmap(void *address, size_t bytes);

void *sim_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    uint64_t slot = ((uintptr_t)address - WINDOW) >> SLOT_BITS, object = flags & MAP_SHARED ? object_of(fd) : 0;

    ENTER();
    if (sim_fails("mmap"))
        return MAP_FAILED;
    if (!(flags & MAP_FIXED) && mapping_count < MAPPINGS) {
        slot = mapping_count++;
        mappings[slot].owned.worker = sim_self != NULL ? sim_self->worker : -1;
        address = (void *)(uintptr_t)(WINDOW + (slot << SLOT_BITS));
        flags |= MAP_FIXED;
    }
    if (slot < MAPPINGS && (object != 0 || ((uintptr_t)address & ((UINT64_C(1) << SLOT_BITS) - 1)) == 0)) {
        mappings[slot].object = object;
        mappings[slot].offset = (uint64_t)offset;
    }
    if (slot < MAPPINGS && sim_self != NULL && ((uintptr_t)address & ((UINT64_C(1) << SLOT_BITS) - 1)) == 0)
        mappings[slot].owned = (struct owned){ address, PC, sim_self->worker };
    return mmap(address, bytes, protection, flags, fd, offset);
}

int sim_munmap(void *address, size_t bytes)
{
    ENTER();
    sim_flush_range(address, bytes);
    for (unsigned i = 0; i < mapping_count; i++)
        if (mappings[i].owned.address == address)
            mappings[i].owned.address = NULL;
    return munmap(address, bytes);
}
