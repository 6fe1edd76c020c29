/* SPDX-License-Identifier: MIT */
/*
 * Two devices: whether the next one can map the memory of this one, and whether its streams can wait for words in a
 * page that was registered while another device's context was current, as workers with several devices do.
 */
#include "gpucheck.h"

#define BYTE 0x2d

/* ---- The other process, which has memory of this device and writes the word --------------------------- */

static struct CUstream_st *writer;
static unsigned long long word_at;      /* 0: its page cannot be registered */

static void lend(struct check_parcel *parcel)
{
    writer = check_stream();
    parcel->handle = check_export(check_payload(BYTE, writer));
    (void)check_register_page(check_page(true), 0, &word_at);
}

static void write_word(struct check_parcel *parcel)
{
    (void)parcel;
    if (word_at != 0)
        (void)check_write_word(writer, word_at, 1);
}

/* ---- The asking process, which uses the next device -------------------------------------------------- */

static void answer_word(struct CUstream_st *stream, bxi_a64 *page)
{
    struct check_parcel parcel = { 0 };
    unsigned long long at = 0;
    unsigned result = cu.cuMemHostGetDevicePointer_v2(&at, (void *)page, 0);
    bool has_waited;

    if (result == CUDA_SUCCESS)
        result = check_wait_word(stream, at, 1);
    if (result != CUDA_SUCCESS) {
        check_answer("devices.word", CHECK_BAD, "The other device's streams cannot wait for it: %s.",
                     check_name(result));
        return;
    }
    check_sleep_ms(CHECK_PAUSE_MS);
    has_waited = check_is_waiting(stream);
    check_there(write_word, &parcel);
    check_answer_release("devices.word", stream, has_waited);
}

static void ask_devices(void)
{
    bxi_a64 *page = check_page(true);
    struct check_parcel parcel = { 0 };
    struct CUctx_st *context = NULL;
    struct check_reader reader;
    unsigned long long at = 0, address = 0;
    int count = 0, first = 0, second = 0, can = 0;
    unsigned registered, result;

    check_need(cu.cuDeviceGetCount(&count), "cuDeviceGetCount");
    if (count < 2)
        check_skip("this process sees one device");
    check_there(lend, &parcel);
    registered = check_register_page(page, 0, &at);
    check_need(cu.cuDeviceGet(&first, check_device), "cuDeviceGet");
    check_need(cu.cuDeviceGet(&second, (check_device + 1) % count), "cuDeviceGet");
    check_need(cu.cuDeviceCanAccessPeer(&can, second, first), "cuDeviceCanAccessPeer");
    check_answer("devices.reach", can != 0 ? CHECK_GOOD : CHECK_BAD, "Device %d can%s access the memory of device %d.",
                 (check_device + 1) % count, can != 0 ? "" : "not", check_device);
    check_need(cu.cuDevicePrimaryCtxRetain(&context, second), "opening the other device");
    check_need(cu.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    reader = check_reader_make();
    result = check_open_handle(parcel.handle, &address);
    if (result == CUDA_SUCCESS)
        check_answer_read("devices.handle", "The other process's memory", &reader, address, BYTE);
    else
        check_answer("devices.handle", CHECK_BAD, "The other device cannot open the handle: %s.", check_name(result));
    if (registered == CUDA_SUCCESS)
        answer_word(reader.stream, page);
    else
        check_answer("devices.word", CHECK_ABSENT, "The page cannot be registered: %s.", check_name(registered));
}

#define STAGED "Tensors between the two go through pinned host memory."

const struct check_question check_devices = {
    .name = "devices", .ask = ask_devices, .has_other = true, .opens_handles = true, .limit_ms = 9000,
    .lines = {
        { "devices.reach", "Tensors of one are read in place on the other.", STAGED },
        { "devices.handle", "Tensors of one are read in place on the other.", STAGED },
        { "devices.word", "HOST_WORDS orders the streams of all devices of a worker.",
          "Between devices the host waits, not the stream." },
    },
};
