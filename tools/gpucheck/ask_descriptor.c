/* SPDX-License-Identifier: MIT */
/*
 * Memory of cuMemCreate that is exported as a file descriptor: whether another process that gets the descriptor by
 * SCM_RIGHTS reads it through a mapping for reading only, is kept from writing, and still reads it when the process
 * that made it was killed. What Boxcar does, in as few calls. The other process makes the memory.
 */
#include "gpucheck.h"

#define BYTES ((size_t)2 << 20)
#define FILLED 0x3c

enum { ALIVE, DEAD };                   /* variants: what becomes of the other process */

static unsigned map(unsigned long long handle, unsigned rights, unsigned long long *address)
{
    struct CUmemAccessDesc_st access = { { CU_MEM_LOCATION_TYPE_DEVICE, check_device }, rights };
    unsigned result = cu.cuMemAddressReserve(address, BYTES, 0, 0, 0);

    if (result == CUDA_SUCCESS)
        result = cu.cuMemMap(*address, BYTES, 0, handle, 0);
    return result == CUDA_SUCCESS ? cu.cuMemSetAccess(*address, BYTES, &access, 1) : result;
}

/* ---- The other process ---------------------------------------------------------------------------- */

static unsigned long long lent;

static bool has_functions(void)
{
    return cu.cuMemCreate != NULL && cu.cuMemExportToShareableHandle != NULL &&
           cu.cuMemImportFromShareableHandle != NULL && cu.cuMemAddressReserve != NULL && cu.cuMemMap != NULL &&
           cu.cuMemSetAccess != NULL;
}

/* Makes memory, fills it, and brings back its descriptor. */
static void lend(struct check_parcel *parcel)
{
    struct CUmemAllocationProp_st prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = { CU_MEM_LOCATION_TYPE_DEVICE, check_device } };
    unsigned long long handle = 0;
    struct CUstream_st *stream;
    unsigned result;

    if (!has_functions())
        check_skip("the driver has no cuMemCreate, or no function that belongs to it");
    result = cu.cuMemCreate(&handle, BYTES, &prop, 0);
    if (result == CUDA_SUCCESS)
        result = map(handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, &lent);
    if (result == CUDA_SUCCESS)
        result = cu.cuMemExportToShareableHandle(&parcel->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS && check_question->variant == ALIVE)
        check_answer("descriptor.export", CHECK_BAD, "The driver makes no memory that can be exported so: %s.",
                     check_name(result));
    if (result != CUDA_SUCCESS)
        check_skip("there is no descriptor");
    if (check_question->variant == ALIVE)
        check_answer("descriptor.export", CHECK_GOOD, "The driver gave a descriptor.");
    stream = check_stream();
    check_fill(lent, FILLED, CHECK_PAYLOAD_BYTES, stream);
    check_finish(stream, "filling 1 MiB");
}

static void count_changed(struct check_parcel *parcel)
{
    struct check_reader reader = check_reader_make();

    parcel->number = check_read(&reader, lent, FILLED);
}

/* ---- The asking process --------------------------------------------------------------------------- */

/* Gets the descriptor and maps the memory for reading. The result of the driver. */
static unsigned borrow(unsigned long long *address)
{
    struct check_parcel parcel = { 0 };
    unsigned long long handle = 0;
    unsigned result;

    check_there(lend, &parcel);
    result = cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)parcel.fd,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return result == CUDA_SUCCESS ? map(handle, CU_MEM_ACCESS_FLAGS_PROT_READ, address) : result;
}

/* Writes where it may only read. On a real device that ends its context. */
static unsigned write_result(unsigned long long address)
{
    struct CUstream_st *stream = check_stream();
    unsigned result = cu.cuMemsetD8Async(address, (unsigned char)~FILLED, CHECK_PAYLOAD_BYTES, stream);

    if (result == CUDA_SUCCESS)
        (void)check_idles(stream, CHECK_RELEASE_MS);
    return result == CUDA_SUCCESS ? cu.cuStreamQuery(stream) : result;
}

static void ask_descriptor(void)
{
    struct check_reader reader = check_reader_make();
    struct check_parcel parcel = { 0 };
    unsigned long long address = 0;
    unsigned result = borrow(&address);

    if (result != CUDA_SUCCESS) {
        check_answer("descriptor.contents", CHECK_BAD, "Another process cannot map it for reading: %s.",
                     check_name(result));
        check_skip("the memory cannot be mapped");
    }
    check_answer_read("descriptor.contents", "The other process's memory", &reader, address, FILLED);
    result = write_result(address);
    check_there(count_changed, &parcel);
    if (parcel.number != 0)
        check_answer("descriptor.read_only", CHECK_BAD, "The other process could write: %zu of 1048576 bytes have "
                     "changed.", (size_t)parcel.number);
    else if (result == CUDA_SUCCESS)
        check_answer("descriptor.read_only", CHECK_NOTE, "The other process's write changed nothing, and the driver "
                     "reported no error.");
    else
        check_answer("descriptor.read_only", CHECK_GOOD, "The other process's write failed (%s), and no byte has "
                     "changed.", check_name(result));
}

const struct check_question check_descriptor = {
    .name = "descriptor", .ask = ask_descriptor, .has_other = true, .decides = true, .limit_ms = 9000,
    .variant = ALIVE,
    .lines = {
        { "descriptor.export", "Boxcar can make memory that needs no common IPC and PID namespaces.",
          "Boxcar uses handles of CUDA IPC." },
        { "descriptor.contents", "Boxcar exports memory as descriptors.", "Boxcar uses handles of CUDA IPC." },
        { "descriptor.read_only", "A borrower is kept from writing what it borrowed.",
          "A borrower that is wrong can write what it borrowed." },
    },
};

static void ask_dead(void)
{
    struct check_reader reader = check_reader_make();
    unsigned long long address = 0;

    if (borrow(&address) != CUDA_SUCCESS)
        check_skip("the memory cannot be mapped");
    check_kill_other();
    check_sleep_ms(CHECK_PATIENCE_MS);
    check_answer_read("descriptor.dead", "A killed process's memory", &reader, address, FILLED);
}

const struct check_question check_descriptor_dead = {
    .name = "descriptor.dead", .ask = ask_dead, .has_other = true, .limit_ms = 9000, .variant = DEAD,
    .lines = {
        { "descriptor.dead", "Tensors on loan from a dead worker stay readable until they are released.",
          "What is borrowed from a dead worker must not be read any more, whatever the documentation says." },
    },
};
