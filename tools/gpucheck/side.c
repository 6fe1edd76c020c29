/* SPDX-License-Identifier: MIT */
/*
 * What a question's process uses; see side.h. One thread, except where a question starts others.
 */
#include "side.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STATUS_GAVE_UP 3

/* ---- Answers --------------------------------------------------------------------------------- */

static unsigned index_of(struct check_side *side, const char *key)
{
    const struct check_line *lines = side->question->lines;
    unsigned i = 0;

    while (lines[i].key != NULL && strcmp(lines[i].key, key) != 0)
        i++;
    if (lines[i].key == NULL)
        check_give_up(side, "a defect of gpucheck: the question has no line %s", key);
    return i;
}

void check_answer(struct check_side *side, const char *key, enum check_verdict verdict, const char *format, ...)
{
    unsigned i = index_of(side, key);
    va_list arguments;

    side->shared->answer[i].verdict = verdict;
    va_start(arguments, format);
    vsnprintf(side->shared->answer[i].text, CHECK_TEXT_BYTES, format, arguments);
    va_end(arguments);
    /* [check.given] release, pairs with the acquire in report_lines: the answer is complete. */
    bxi_store_release(&side->shared->given[i], 1);
}

void check_done(struct check_side *side, const char *key, unsigned result, const char *what)
{
    check_answer(side, key, result == CUDA_SUCCESS ? CHECK_GOOD : CHECK_BAD, "%s: %s.", what,
                 result == CUDA_SUCCESS ? "done" : check_name(side, result));
}

void check_figure(struct check_side *side, const char *key, double value, const char *unit)
{
    unsigned i = index_of(side, key);

    side->shared->answer[i].value = value;
    side->shared->answer[i].unit = unit;
}

static _Noreturn void leave(struct check_side *side, bool is_skipped)
{
    /* [check.skipped] release, pairs with the acquire in report_lines. */
    bxi_store_release(&side->shared->gave_up[side->role].is_skipped, is_skipped);
    _exit(STATUS_GAVE_UP);
}

#define REASON(side) (side)->shared->gave_up[(side)->role].reason

void check_give_up(struct check_side *side, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(REASON(side), CHECK_TEXT_BYTES, format, arguments);
    va_end(arguments);
    leave(side, false);
}

void check_skip(struct check_side *side, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(REASON(side), CHECK_TEXT_BYTES, format, arguments);
    va_end(arguments);
    leave(side, true);
}

const char *check_name(const struct check_side *side, unsigned result)
{
    static _Thread_local char buffers[4][80];
    static _Thread_local unsigned next;
    char *buffer = buffers[next++ % 4];

    snprintf(buffer, sizeof(buffers[0]), "%s (%u)", bxi_cu_name(side->cu, result), result);
    return buffer;
}

void check_need(struct check_side *side, unsigned result, const char *what)
{
    if (result != CUDA_SUCCESS)
        check_give_up(side, "%s failed with %s", what, check_name(side, result));
}

/* ---- Steps ----------------------------------------------------------------------------------- */

void check_sleep_ms(unsigned ms)
{
    struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

    nanosleep(&time, NULL);
}

/* Between two looks: 20 us for the first 20 ms or so, and then longer. */
static void doze(unsigned *looks)
{
    struct timespec time = { .tv_nsec = ++*looks < 300 ? 20000 : 500000 };

    nanosleep(&time, NULL);
}

void check_signal(const struct check_side *side, enum check_role other, int signal_number)
{
    int pidfd = (int)syscall(SYS_pidfd_open, side->shared->pid[other], 0);

    /* [check.ended] acquire, pairs with the release in note_end: while the word is 0 the process has not been reaped,
     * so the descriptor is that process's and not a later one's of the same pid. */
    if (pidfd >= 0 && bxi_load_acquire(&side->shared->has_ended[other]) == 0)
        (void)syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0);
    if (pidfd >= 0)
        close(pidfd);
}

void check_reach(struct check_side *side, unsigned step)
{
    /* [check.step] release, pairs with the acquire in check_await: what this side wrote before is seen. */
    bxi_store_release(&side->shared->step[side->role], step);
}

/* The program ends this process when the question's time is over, so the loop has a bound. */
void check_await(struct check_side *side, unsigned step)
{
    enum check_role other = side->role == CHECK_OWNER ? CHECK_PEER : CHECK_OWNER;
    unsigned looks = 0;

    for (;;) {
        /* [check.ended] acquire, pairs with the release in note_end; loaded before the step, so that a side's last
         * step is seen. */
        bool has_ended = bxi_load_acquire(&side->shared->has_ended[other]) != 0;

        /* [check.step] acquire, pairs with the release in check_reach. */
        if (bxi_load_acquire(&side->shared->step[other]) >= step)
            return;
        if (has_ended)
            _exit(0);
        doze(&looks);
    }
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

int check_load(struct check_side *side, char text[BXI_CU_TEXT_BYTES])
{
    char number[16];

    snprintf(number, sizeof(number), "%d", side->question->connections);
    if (side->question->connections != 0)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", number, 1);
    side->cu = &side->driver;
    return bxi_cu_load(&side->driver, NULL, text);
}

void check_open(struct check_side *side)
{
    char text[BXI_CU_TEXT_BYTES];
    int device = 0;

    if (check_load(side, text) < 0)
        check_give_up(side, "%s", text);
    check_need(side, side->cu->cuDeviceGet(&device, side->device), "cuDeviceGet");
    check_need(side, side->cu->cuDevicePrimaryCtxRetain(&side->context, device), "opening the device");
    check_need(side, side->cu->cuCtxPushCurrent_v2(side->context), "cuCtxPushCurrent");
}

struct CUstream_st *check_stream(struct check_side *side)
{
    struct CUstream_st *stream = NULL;

    check_need(side, side->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

unsigned long long check_alloc(struct check_side *side, size_t bytes)
{
    unsigned long long address = 0;

    check_need(side, side->cu->cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    return address;
}

void *check_pinned(struct check_side *side, size_t bytes, unsigned long long *address)
{
    void *memory = NULL;

    check_need(side, side->cu->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    memset(memory, 0, bytes);
    if (address != NULL)
        check_need(side, side->cu->cuMemHostGetDevicePointer_v2(address, memory, 0), "cuMemHostGetDevicePointer");
    return memory;
}

bxi_a64 *check_page(struct check_side *side, unsigned page, bool is_writable)
{
    void *memory = mmap(NULL, CHECK_PAGE_BYTES, is_writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                        side->page_fd, (off_t)page * CHECK_PAGE_BYTES);

    if (memory == MAP_FAILED)
        check_give_up(side, "a page of shared memory cannot be mapped");
    return memory;
}

unsigned check_register_page(struct check_side *side, bxi_a64 *page, unsigned flags, unsigned long long *address)
{
    void *memory = (void *)page;
    unsigned result = side->cu->cuMemHostRegister_v2(memory, CHECK_PAGE_BYTES, CU_MEMHOSTREGISTER_PORTABLE |
                                                     CU_MEMHOSTREGISTER_DEVICEMAP | flags);

    return result == CUDA_SUCCESS ? side->cu->cuMemHostGetDevicePointer_v2(address, memory, 0) : result;
}

unsigned check_wait_word(struct check_side *side, struct CUstream_st *stream, unsigned long long at, uint64_t value)
{
    return side->cu->cuStreamWaitValue64_v2 != NULL && side->cu->cuStreamWriteValue64_v2 != NULL
        ? side->cu->cuStreamWaitValue64_v2(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ) : CUDA_ERROR_NOT_SUPPORTED;
}

unsigned check_write_word(struct check_side *side, struct CUstream_st *stream, unsigned long long at, uint64_t value)
{
    return side->cu->cuStreamWriteValue64_v2 != NULL
        ? side->cu->cuStreamWriteValue64_v2(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT)
        : CUDA_ERROR_NOT_SUPPORTED;
}

void check_finish(struct check_side *side, struct CUstream_st *stream, const char *what)
{
    if (!check_idles(side, stream, CHECK_RELEASE_MS))
        check_give_up(side, "%s did not end", what);
}

bool check_idles(struct check_side *side, struct CUstream_st *stream, unsigned ms)
{
    uint64_t end_ns = check_now_ns() + (uint64_t)ms * 1000000;
    unsigned looks = 0;

    do {
        if (side->cu->cuStreamQuery(stream) == CUDA_SUCCESS)
            return true;
        doze(&looks);
    } while (check_now_ns() < end_ns);
    return false;
}

bool check_is_waiting(struct check_side *side, struct CUstream_st *stream)
{
    return side->cu->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
}

void check_fill(struct check_side *side, unsigned long long address, unsigned char byte, struct CUstream_st *stream)
{
    check_need(side, side->cu->cuMemsetD8Async(address, byte, CHECK_PAYLOAD_BYTES, stream), "cuMemsetD8Async");
}

size_t check_differing(const unsigned char *bytes, size_t count, unsigned char byte)
{
    size_t differing = 0;

    for (size_t i = 0; i < count; i++)
        differing += bytes[i] != byte;
    return differing;
}

size_t check_read(struct check_side *side, unsigned long long address, unsigned char byte, struct CUstream_st *stream,
                  unsigned char *copy)
{
    if (side->cu->cuMemcpyDtoHAsync_v2(copy, address, CHECK_PAYLOAD_BYTES, stream) != CUDA_SUCCESS ||
        !check_idles(side, stream, CHECK_RELEASE_MS))
        return CHECK_UNREAD;
    return check_differing(copy, CHECK_PAYLOAD_BYTES, byte);
}

void check_lend(struct check_side *side, unsigned index, unsigned long long address)
{
    unsigned result = side->cu->cuIpcGetMemHandle(&side->shared->handle[index], address);

    if (result != CUDA_SUCCESS)
        check_skip(side, "the driver gives no handle: %s", check_name(side, result));
}

unsigned check_open_handle(struct check_side *side, unsigned index, unsigned long long *address)
{
    return side->cu->cuIpcOpenMemHandle_v2(address, side->shared->handle[index], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

unsigned long long check_borrow(struct check_side *side, unsigned index)
{
    unsigned long long address = 0;
    unsigned result = check_open_handle(side, index, &address);

    if (result != CUDA_SUCCESS)
        check_skip(side, "the handle cannot be opened: %s", check_name(side, result));
    return address;
}

unsigned check_lend_event(struct check_side *side, struct CUevent_st **event)
{
    unsigned result = side->cu->cuEventCreate(event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);

    return result == CUDA_SUCCESS ? side->cu->cuIpcGetEventHandle(&side->shared->event, *event) : result;
}

unsigned check_wait_event(struct check_side *side, struct CUstream_st *stream)
{
    struct CUevent_st *event = NULL;
    unsigned result = side->cu->cuIpcOpenEventHandle(&event, side->shared->event);

    return result == CUDA_SUCCESS ? side->cu->cuStreamWaitEvent(stream, event, 0) : result;
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

/* ---- Gates ----------------------------------------------------------------------------------- */

struct check_gate check_gate_make(struct check_side *side)
{
    struct check_gate gate = { .word = NULL };

    gate.word = check_pinned(side, CHECK_PAGE_BYTES, &gate.at);
    return gate;
}

unsigned check_gate_try(struct check_side *side, struct check_gate *gate, struct CUstream_st *stream)
{
    return check_wait_word(side, stream, gate->at, ++gate->value);
}

void check_gate_shut(struct check_side *side, struct check_gate *gate, struct CUstream_st *stream)
{
    unsigned result = check_gate_try(side, gate, stream);

    if (result != CUDA_SUCCESS)
        check_skip(side, "streams cannot wait for words here: %s", check_name(side, result));
}

void check_gate_open(struct check_gate *gate)
{
    check_store_word(gate->word, gate->value);
}
