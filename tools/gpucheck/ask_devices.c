/* SPDX-License-Identifier: MIT */
/*
 * Two devices: whether the next one can map the memory of this one, and whether its streams can wait for words in a
 * page that was registered while another device's context was current, as workers with several devices do.
 */
#include "side.h"

#include <stdio.h>

#define BYTE 0x2d

static void devices_owner(struct check_side *side)
{
    unsigned long long payload, word_at = 0;
    struct CUstream_st *stream;
    int count = 0;

    check_open(side);
    check_need(side, side->cu->cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (count < 2)
        check_skip(side, "this process sees one device");
    stream = check_stream(side);
    payload = check_alloc(side, CHECK_PAYLOAD_BYTES);
    check_fill(side, payload, BYTE, stream);
    check_finish(side, stream, "filling 1 MiB");
    check_lend(side, 0, payload);
    (void)check_register_page(side, check_page(side, 0, true), 0, &word_at);
    check_reach(side, 1);
    check_await(side, 2);
    if (word_at != 0)
        (void)check_write_word(side, stream, word_at, 1);
    check_reach(side, 2);
    check_await(side, 3);
}

static void answer_handle(struct check_side *side, struct CUstream_st *stream)
{
    unsigned char *copy = check_pinned(side, CHECK_PAYLOAD_BYTES, NULL);
    unsigned long long address = 0;
    unsigned result = check_open_handle(side, 0, &address);
    size_t differing;

    if (result != CUDA_SUCCESS) {
        check_answer(side, "devices.handle", CHECK_BAD, "The other device cannot open the handle: %s.",
                     check_name(side, result));
        return;
    }
    differing = check_read(side, address, BYTE, stream, copy);
    if (differing == CHECK_UNREAD)
        check_give_up(side, "reading 1 MiB of the other device did not end");
    check_answer(side, "devices.handle", differing == 0 ? CHECK_GOOD : CHECK_BAD,
                 "The other device opened the handle; %zu of 1048576 bytes were wrong.", differing);
}

static void answer_word(struct check_side *side, struct CUstream_st *stream, bxi_a64 *page)
{
    unsigned long long at = 0;
    unsigned result = side->cu->cuMemHostGetDevicePointer_v2(&at, (void *)page, 0);

    if (result == CUDA_SUCCESS)
        result = check_wait_word(side, stream, at, 1);
    if (result != CUDA_SUCCESS) {
        check_answer(side, "devices.word", CHECK_BAD, "The other device's streams cannot wait for it: %s.",
                     check_name(side, result));
        return;
    }
    check_sleep_ms(CHECK_PAUSE_MS);
    if (!check_is_waiting(side, stream)) {
        check_answer(side, "devices.word", CHECK_BAD, "The other device's stream did not wait.");
        return;
    }
    check_reach(side, 2);
    check_await(side, 2);
    if (check_idles(side, stream, CHECK_RELEASE_MS))
        check_answer(side, "devices.word", CHECK_GOOD, "The other device's stream waited for a word, and went on.");
    else
        check_answer(side, "devices.word", CHECK_BAD, "The other device's stream waits still, after the write.");
}

static void devices_peer(struct check_side *side)
{
    bxi_a64 *page = check_page(side, 0, true);
    struct CUctx_st *context = NULL;
    struct CUstream_st *stream;
    unsigned long long at = 0;
    int count = 0, first = 0, second = 0, can = 0;
    unsigned result;

    check_open(side);                               /* the owner's device */
    check_await(side, 1);
    result = check_register_page(side, page, 0, &at);
    check_need(side, side->cu->cuDeviceGetCount(&count), "cuDeviceGetCount");
    check_need(side, side->cu->cuDeviceGet(&first, side->device), "cuDeviceGet");
    check_need(side, side->cu->cuDeviceGet(&second, (side->device + 1) % count), "cuDeviceGet");
    check_need(side, side->cu->cuDeviceCanAccessPeer(&can, second, first), "cuDeviceCanAccessPeer");
    check_answer(side, "devices.reach", can != 0 ? CHECK_GOOD : CHECK_BAD, "Device %d can%s access the memory of "
                 "device %d.", (side->device + 1) % count, can != 0 ? "" : "not", side->device);
    check_need(side, side->cu->cuDevicePrimaryCtxRetain(&context, second), "opening the other device");
    check_need(side, side->cu->cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    stream = check_stream(side);
    answer_handle(side, stream);
    if (result == CUDA_SUCCESS)
        answer_word(side, stream, page);
    else
        check_answer(side, "devices.word", CHECK_ABSENT, "The page cannot be registered: %s.",
                     check_name(side, result));
    check_reach(side, 3);
}

#define STAGED "Tensors between the two go through pinned host memory."

const struct check_question check_devices = {
    .name = "devices", .opens_handles = true, .limit_ms = 9000, .owner = devices_owner, .peer = devices_peer,
    .lines = {
        { "devices.reach", "Tensors of one are read in place on the other.", STAGED },
        { "devices.handle", "Tensors of one are read in place on the other.", STAGED },
        { "devices.word", "HOST_WORDS orders the streams of all devices of a worker.",
          "Between devices the host waits, not the stream." },
        { NULL, NULL, NULL },
    },
};
