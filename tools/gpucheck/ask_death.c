/* SPDX-License-Identifier: MIT */
/*
 * What is left when one of two processes dies. The survivor does what Boxcar's survivors do: it reads
 * the memory that it has open, and releases its streams by poisoning the words that they wait for.
 */
#include "side.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define BYTE 0x6b
#define FOREIGN 0x77
#define POISON (UINT64_C(1) << 62)
#define DEVICE_BYTES (CHECK_PAYLOAD_BYTES + CHECK_PAGE_BYTES)   /* a payload, then a word */
#define BORROWED_BYTES ((size_t)16 << 20)
#define EVENT_MS 1500u                  /* within which a wait for a dead process's event ends, if it does */

/* ---- Both ------------------------------------------------------------------------------------ */

/* A filled payload and a word that is 0, exported as handle[index]. */
static void export_payload(struct check_side *side, unsigned index, struct CUstream_st *stream)
{
    unsigned long long address = check_alloc(side, DEVICE_BYTES);

    check_need(side, side->cu->cuMemsetD8Async(address, 0, DEVICE_BYTES, stream), "cuMemsetD8Async");
    check_fill(side, address, BYTE, stream);
    check_finish(side, stream, "filling 1 MiB");
    check_lend(side, index, address);
}

/* Kills the other side, and returns when its end has been noticed: its descriptors are closed by then. */
static void kill_other(struct check_side *side)
{
    enum check_role other = side->role == CHECK_OWNER ? CHECK_PEER : CHECK_OWNER;
    uint64_t end_ns = check_now_ns() + CHECK_RELEASE_MS * UINT64_C(1000000);

    check_signal(side, other, SIGKILL);
    /* [check.ended] acquire, pairs with the release in note_end. */
    while (bxi_load_acquire(&side->shared->has_ended[other]) == 0) {
        if (check_now_ns() > end_ns)
            check_give_up(side, "the killed process does not end within %u ms", CHECK_RELEASE_MS);
        check_sleep_ms(1);
    }
}

/* Where a payload is copied to: made before a stream waits, because a driver may wait for all streams where it makes
 * something. */
struct reader {
    struct CUstream_st *stream;
    unsigned char *copy;                /* pinned */
};

static struct reader make_reader(struct check_side *side)
{
    return (struct reader){ .stream = check_stream(side), .copy = check_pinned(side, CHECK_PAYLOAD_BYTES, NULL) };
}

/* ---- The owner is killed ---------------------------------------------------------------------- */

static void kill_owner(struct check_side *side)
{
    check_open(side);
    export_payload(side, 0, check_stream(side));
    check_reach(side, 1);
    for (;;)                            /* until it is killed, or by its alarm */
        check_sleep_ms(1000);
}

/* Makes the stream wait for a word of the owner. Returns it, or NULL if it cannot wait, and the answer is given. */
static struct CUstream_st *wait_for(struct check_side *side, const char *key, struct CUstream_st *stream,
                                    unsigned long long word_at)
{
    unsigned result = check_wait_word(side, stream, word_at, 1);

    if (result == CUDA_SUCCESS)
        return stream;
    check_answer(side, key, CHECK_ABSENT, "Streams cannot wait for such words here: %s.", check_name(side, result));
    return NULL;
}

static void answer_release(struct check_side *side, const char *key, struct CUstream_st *stream, bool has_waited)
{
    if (!has_waited)
        check_answer(side, key, CHECK_BAD, "The stream went on when the owner died, before the word was written.");
    else if (check_idles(side, stream, CHECK_RELEASE_MS))
        check_answer(side, key, CHECK_GOOD, "A stream that waited for a killed process's word was released.");
    else
        check_answer(side, key, CHECK_BAD, "A stream that waits for a killed process's word waits on after the word "
                     "was poisoned.");
}

/* Registers the page of the owner's word in /dev/shm by the mapping that Boxcar would register. Returns its address, or
 * 0 if it cannot, and the answer is given. */
static unsigned long long register_word(struct check_side *side, bxi_a64 *page)
{
    unsigned long long at = 0;
    unsigned result = check_register_page(side, check_page(side, 0, false), CU_MEMHOSTREGISTER_READ_ONLY, &at);

    if (result != CUDA_SUCCESS)
        result = check_register_page(side, page, 0, &at);
    if (result == CUDA_SUCCESS)
        return at;
    check_answer(side, "kill.host_word", CHECK_ABSENT, "The page cannot be registered: %s.",
                 check_name(side, result));
    return 0;
}

static void answer_memory(struct check_side *side, unsigned long long address, const struct reader *reader)
{
    size_t differing = check_read(side, address, BYTE, reader->stream, reader->copy);

    if (differing == CHECK_UNREAD)
        check_answer(side, "kill.memory", CHECK_BAD, "A killed process's memory cannot be read any more.");
    else if (differing > 0)
        check_answer(side, "kill.memory", CHECK_BAD, "%zu of 1048576 bytes of a killed process's memory have changed.",
                     differing);
    else
        check_answer(side, "kill.memory", CHECK_GOOD, "A killed process's memory reads as before.");
}

static void kill_peer(struct check_side *side)
{
    bxi_a64 *page = check_page(side, 0, true);
    struct CUstream_st *host_wait, *device_wait;
    unsigned long long address, word_at;
    bool host_waited, device_waited;
    struct reader reader;

    check_open(side);
    reader = make_reader(side);
    host_wait = check_stream(side);
    device_wait = check_stream(side);
    check_await(side, 1);
    address = check_borrow(side, 0);
    word_at = register_word(side, page);
    host_wait = word_at != 0 ? wait_for(side, "kill.host_word", host_wait, word_at) : NULL;
    device_wait = wait_for(side, "kill.device_word", device_wait, address + CHECK_PAYLOAD_BYTES);
    kill_other(side);
    check_sleep_ms(CHECK_PAUSE_MS);
    host_waited = host_wait != NULL && check_is_waiting(side, host_wait);
    device_waited = device_wait != NULL && check_is_waiting(side, device_wait);
    answer_memory(side, address, &reader);
    if (host_wait != NULL) {
        check_store_word(page, POISON);
        answer_release(side, "kill.host_word", host_wait, host_waited);
    }
    if (device_wait != NULL) {
        (void)check_write_word(side, reader.stream, address + CHECK_PAYLOAD_BYTES, POISON);
        answer_release(side, "kill.device_word", device_wait, device_waited);
    }
    check_done(side, "kill.close", side->cu->cuIpcCloseMemHandle(address), "Closing a killed process's memory");
}

#define LATE_POISON "A worker's death may leave other workers' streams waiting for ever."

const struct check_question check_kill = {
    .name = "kill", .opens_handles = true, .limit_ms = 9000, .owner = kill_owner, .peer = kill_peer, .owner_dies = true,
    .lines = {
        { "kill.memory", "Tensors on loan from a dead worker stay readable until they are released.",
          "A tensor on loan from a dead worker must not be read: use it only after BX_E_PEER_DEAD was ruled out." },
        { "kill.host_word", "HOST_WORDS: a death releases the streams that wait for the dead.", LATE_POISON },
        { "kill.device_word", "DEVICE_WORDS: a death releases the streams that wait for the dead.", LATE_POISON },
        { "kill.close", "The memory of a dead worker goes when the last borrower closes it.",
          "The memory of a dead worker may be lost until its borrowers end." },
        { NULL, NULL, NULL },
    },
};

/* ---- An event of a killed process -------------------------------------------------------------- */

static void kill_event_owner(struct check_side *side)
{
    struct CUevent_st *event = NULL;
    struct CUstream_st *stream;
    struct check_gate gate;
    unsigned result;

    check_open(side);
    stream = check_stream(side);
    result = check_lend_event(side, &event);
    if (result != CUDA_SUCCESS)
        check_skip(side, "the driver exports no event: %s", check_name(side, result));
    gate = check_gate_make(side);
    check_gate_shut(side, &gate, stream);
    check_need(side, side->cu->cuEventRecord(event, stream), "cuEventRecord");
    check_reach(side, 1);
    for (;;)
        check_sleep_ms(1000);
}

static void kill_event_peer(struct check_side *side)
{
    struct CUstream_st *stream;
    unsigned result;

    check_open(side);
    stream = check_stream(side);
    check_await(side, 1);
    result = check_wait_event(side, stream);
    if (result != CUDA_SUCCESS)
        check_skip(side, "another process cannot wait for the event: %s", check_name(side, result));
    check_sleep_ms(CHECK_PAUSE_MS);
    if (!check_is_waiting(side, stream)) {
        check_answer(side, "kill.event", CHECK_BAD, "The stream did not wait for the other process's event.");
        return;
    }
    kill_other(side);
    if (check_idles(side, stream, EVENT_MS))
        check_answer(side, "kill.event", CHECK_GOOD, "A stream that waited for a killed process's event went on.");
    else
        check_answer(side, "kill.event", CHECK_BAD, "A stream that waits for a killed process's event waits still, "
                     "after %u ms.", EVENT_MS);
}

const struct check_question check_kill_event = {
    .name = "kill.event", .limit_ms = 7000, .owner = kill_event_owner, .peer = kill_event_peer, .owner_dies = true,
    .lines = {
        { "kill.event", "EVENTS: a death releases the streams that wait for the dead.",
          "EVENTS: a worker's death may leave other workers' streams waiting for ever." },
        { NULL, NULL, NULL },
    },
};

/* ---- The borrower is killed -------------------------------------------------------------------- */

static void borrower_owner(struct check_side *side)
{
    struct CUstream_st *stream;
    unsigned long long address;
    unsigned char *copy;
    size_t differing;

    check_open(side);
    stream = check_stream(side);
    copy = check_pinned(side, BORROWED_BYTES, NULL);
    address = check_alloc(side, BORROWED_BYTES);
    check_lend(side, 0, address);
    check_reach(side, 1);
    check_await(side, 2);
    check_sleep_ms(CHECK_PAUSE_MS);
    kill_other(side);
    check_need(side, side->cu->cuMemsetD8Async(address, BYTE, BORROWED_BYTES, stream), "cuMemsetD8Async");
    check_finish(side, stream, "filling 16 MiB");
    check_sleep_ms(CHECK_PAUSE_MS);
    check_need(side, side->cu->cuMemcpyDtoHAsync_v2(copy, address, BORROWED_BYTES, stream), "reading the memory");
    check_finish(side, stream, "reading 16 MiB");
    differing = check_differing(copy, BORROWED_BYTES, BYTE);
    check_answer(side, "borrower", differing == 0 ? CHECK_GOOD : CHECK_BAD,
                 "After the end of a killed borrower, its work changed %zu of 16777216 bytes.", differing);
}

static void borrower_peer(struct check_side *side)
{
    struct CUstream_st *stream;
    unsigned long long address;

    check_open(side);
    stream = check_stream(side);
    check_await(side, 1);
    address = check_borrow(side, 0);
    for (;;) {                          /* until it is killed, or by its alarm */
        for (int i = 0; i < 32; i++)
            check_need(side, side->cu->cuMemsetD8Async(address, FOREIGN, BORROWED_BYTES, stream), "cuMemsetD8Async");
        check_reach(side, 2);
        check_need(side, side->cu->cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
}

const struct check_question check_kill_borrower = {
    .name = "borrower", .opens_handles = true, .limit_ms = 8000, .owner = borrower_owner, .peer = borrower_peer,
    .peer_dies = true,
    .lines = {
        { "borrower", "Memory that a dead borrower had can be used again at once.",
          "Memory that a dead borrower had may still be written by its work: do not rely on it." },
        { NULL, NULL, NULL },
    },
};
