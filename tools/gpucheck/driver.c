/* SPDX-License-Identifier: MIT */
/*
 * What the questions call of the driver, with the errors that end a question; see gpucheck.h.
 */
#include "gpucheck.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct bxi_cuda cu;
struct CUctx_st *check_context;

void check_open(void)
{
    char text[BXI_CU_TEXT_BYTES];
    int device = 0;

    if (bxi_cu_load(&cu, NULL, text) < 0)
        check_give_up("%s", text);
    check_need(cu.cuDeviceGet(&device, check_device), "cuDeviceGet");
    check_need(cu.cuDevicePrimaryCtxRetain(&check_context, device), "opening the device");
    check_need(cu.cuCtxPushCurrent_v2(check_context), "cuCtxPushCurrent");
}

const char *check_name(unsigned result)
{
    static _Thread_local char buffer[80];

    snprintf(buffer, sizeof(buffer), "%s (%u)", bxi_cu_name(&cu, result), result);
    return buffer;
}

void check_need(unsigned result, const char *what)
{
    if (result != CUDA_SUCCESS)
        check_give_up("%s failed with %s", what, check_name(result));
}

struct CUstream_st *check_stream(void)
{
    struct CUstream_st *stream = NULL;

    check_need(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

unsigned long long check_alloc(size_t bytes)
{
    unsigned long long address = 0;

    check_need(cu.cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    return address;
}

void *check_pinned(size_t bytes, unsigned long long *address)
{
    void *memory = NULL;

    check_need(cu.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    memset(memory, 0, bytes);
    if (address != NULL)
        check_need(cu.cuMemHostGetDevicePointer_v2(address, memory, 0), "cuMemHostGetDevicePointer");
    return memory;
}

unsigned check_register_page(bxi_a64 *page, unsigned flags, unsigned long long *address)
{
    void *memory = (void *)page;
    unsigned result = cu.cuMemHostRegister_v2(memory, CHECK_PAGE_BYTES,
                                              CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | flags);

    return result == CUDA_SUCCESS ? cu.cuMemHostGetDevicePointer_v2(address, memory, 0) : result;
}

unsigned check_wait_word(struct CUstream_st *stream, unsigned long long at, uint64_t value)
{
    return cu.cuStreamWaitValue64_v2 != NULL && cu.cuStreamWriteValue64_v2 != NULL
        ? cu.cuStreamWaitValue64_v2(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ) : CUDA_ERROR_NOT_SUPPORTED;
}

unsigned check_write_word(struct CUstream_st *stream, unsigned long long at, uint64_t value)
{
    return cu.cuStreamWriteValue64_v2 != NULL
        ? cu.cuStreamWriteValue64_v2(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT) : CUDA_ERROR_NOT_SUPPORTED;
}

void check_finish(struct CUstream_st *stream, const char *what)
{
    if (!check_idles(stream, CHECK_RELEASE_MS))
        check_give_up("%s did not end", what);
}

/* Asks every 20 us for the first 20 ms or so, and then less often. */
bool check_idles(struct CUstream_st *stream, unsigned ms)
{
    uint64_t end_ns = check_now_ns() + (uint64_t)ms * 1000000;
    unsigned looks = 0;

    do {
        struct timespec pause = { .tv_nsec = ++looks < 300 ? 20000 : 500000 };

        if (cu.cuStreamQuery(stream) == CUDA_SUCCESS)
            return true;
        nanosleep(&pause, NULL);
    } while (check_now_ns() < end_ns);
    return false;
}

bool check_is_waiting(struct CUstream_st *stream)
{
    return cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
}

void check_fill(unsigned long long address, unsigned char byte, size_t bytes, struct CUstream_st *stream)
{
    check_need(cu.cuMemsetD8Async(address, byte, bytes, stream), "cuMemsetD8Async");
}

unsigned long long check_payload(unsigned char byte, struct CUstream_st *stream)
{
    unsigned long long address = check_alloc(CHECK_PAYLOAD_BYTES);

    check_fill(address, byte, CHECK_PAYLOAD_BYTES, stream);
    check_finish(stream, "filling 1 MiB");
    return address;
}

size_t check_differing(const unsigned char *bytes, size_t count, unsigned char byte)
{
    size_t differing = 0;

    for (size_t i = 0; i < count; i++)
        differing += bytes[i] != byte;
    return differing;
}

struct check_reader check_reader_make(void)
{
    return (struct check_reader){ .stream = check_stream(), .copy = check_pinned(CHECK_PAYLOAD_BYTES, NULL) };
}

size_t check_read(const struct check_reader *reader, unsigned long long address, unsigned char byte)
{
    if (cu.cuMemcpyDtoHAsync_v2(reader->copy, address, CHECK_PAYLOAD_BYTES, reader->stream) != CUDA_SUCCESS ||
        !check_idles(reader->stream, CHECK_RELEASE_MS))
        return CHECK_UNREAD;
    return check_differing(reader->copy, CHECK_PAYLOAD_BYTES, byte);
}

void check_answer_read(const char *key, const char *what, const struct check_reader *reader,
                       unsigned long long address, unsigned char byte)
{
    size_t differing = check_read(reader, address, byte);

    if (differing == CHECK_UNREAD)
        check_answer(key, CHECK_BAD, "%s cannot be read: the copy of 1 MiB did not end.", what);
    else
        check_answer(key, differing == 0 ? CHECK_GOOD : CHECK_BAD,
                     "%s was read: %zu of 1048576 bytes are not as written.", what, differing);
}

void check_answer_release(const char *key, struct CUstream_st *stream, bool has_waited)
{
    if (!has_waited)
        check_answer(key, CHECK_BAD, "The stream did not wait: it went on before its release.");
    else if (check_idles(stream, CHECK_RELEASE_MS))
        check_answer(key, CHECK_GOOD, "The stream waited, and went on after its release.");
    else
        check_answer(key, CHECK_BAD, "The stream waits still, %u ms after its release.", CHECK_RELEASE_MS);
}

struct CUipcMemHandle_st check_export(unsigned long long address)
{
    struct CUipcMemHandle_st handle;
    unsigned result = cu.cuIpcGetMemHandle(&handle, address);

    if (result != CUDA_SUCCESS)
        check_skip("the driver gives no handle: %s", check_name(result));
    return handle;
}

unsigned check_open_handle(struct CUipcMemHandle_st handle, unsigned long long *address)
{
    return cu.cuIpcOpenMemHandle_v2(address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

unsigned long long check_borrow(struct CUipcMemHandle_st handle)
{
    unsigned long long address = 0;
    unsigned result = check_open_handle(handle, &address);

    if (result != CUDA_SUCCESS)
        check_skip("the handle cannot be opened: %s", check_name(result));
    return address;
}

uint64_t check_load_word(bxi_a64 *word)
{
    /* [check.word] acquire, pairs with the write of a stream. */
    return bxi_load_acquire(word);
}

void check_store_word(bxi_a64 *word, uint64_t value)
{
    /* [check.word] release, pairs with the wait of a stream. */
    bxi_store_release(word, value);
}

/* ---- Holding streams up ------------------------------------------------------------------------- */

struct check_hold check_hold_make(void)
{
    struct check_hold hold = { .word = NULL };

    hold.word = check_pinned(CHECK_PAGE_BYTES, &hold.at);
    return hold;
}

unsigned check_hold_try(struct check_hold *hold, struct CUstream_st *stream)
{
    return check_wait_word(stream, hold->at, ++hold->value);
}

void check_hold_begin(struct check_hold *hold, struct CUstream_st *stream)
{
    unsigned result = check_hold_try(hold, stream);

    if (result != CUDA_SUCCESS)
        check_skip("streams cannot wait for words here: %s", check_name(result));
}

void check_hold_end(struct check_hold *hold)
{
    check_store_word(hold->word, hold->value);
}
