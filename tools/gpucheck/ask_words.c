/* SPDX-License-Identifier: MIT */
/*
 * The order between streams of two processes, as Boxcar makes it: the peer's stream waits, then copies a payload of 1
 * MiB from the owner's memory; the owner's stream, later, writes the payload and then what the peer waits for.
 *
 * Turns with a word: it is written by the owner's stream; by the owner outside of that stream (its host, or for a word
 * in device memory its side stream); by the owner's stream again, several times, while the peer's host looks at it and
 * then reads the payload without a wait; and by the peer's process, as a survivor poisons the word of a dead owner.
 * Before a write there is a pause in which the wait must hold, so that a wait that does not wait is found out; after it
 * the payload must be that of the turn. Three kinds of words: in a page of /dev/shm that the peer has registered
 * writable, the same registered read-only, and in the owner's memory as opened by the peer. Events have one turn.
 */
#include "side.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define POISON (UINT64_C(1) << 62)
#define LOOKS 20
#define TURNS (3 + LOOKS)
#define DEVICE_BYTES (CHECK_PAYLOAD_BYTES + CHECK_PAGE_BYTES)   /* the payload, then the word */

enum words { HOST_WORDS = 1, READ_ONLY_WORDS, DEVICE_WORDS };
enum kind { BY_STREAM, BY_SIDE, SEEN, BY_PEER, KINDS };

static const char *const keys[][KINDS] = {
    [HOST_WORDS] = { "words.host.stream", "words.host.host", "words.host.seen", "words.host.poison" },
    [READ_ONLY_WORDS] = { "words.read_only.stream", "words.read_only.host", "words.read_only.seen",
                          "words.read_only.poison" },
    [DEVICE_WORDS] = { "words.device.stream", "words.device.copy", "words.device.seen", "words.device.poison" },
};

static enum kind kind_of(unsigned turn)
{
    return turn < 2 ? (enum kind)turn : turn < 2 + LOOKS ? SEEN : BY_PEER;
}

static unsigned char byte_of(unsigned turn)
{
    return (unsigned char)(turn + 1);
}

/* ---- The owner ------------------------------------------------------------------------------- */

struct writer {
    struct CUstream_st *stream, *side_stream;
    unsigned long long payload, word_at;
    bxi_a64 *word;                      /* in host memory; NULL: on the device */
    bxi_a64 *values;                    /* pinned, for copies to a word on the device */
};

static struct writer make_writer(struct check_side *side)
{
    struct writer writer = { .stream = check_stream(side), .side_stream = check_stream(side) };
    unsigned result;

    writer.payload = check_alloc(side, DEVICE_BYTES);
    check_need(side, side->cu->cuMemsetD8Async(writer.payload, 0, DEVICE_BYTES, writer.stream), "cuMemsetD8Async");
    check_finish(side, writer.stream, "clearing 1 MiB");
    check_lend(side, 0, writer.payload);
    if (side->question->variant == DEVICE_WORDS) {
        writer.word_at = writer.payload + CHECK_PAYLOAD_BYTES;
        writer.values = check_pinned(side, CHECK_PAGE_BYTES, NULL);
        return writer;
    }
    writer.word = check_page(side, 0, true);
    result = check_register_page(side, writer.word, 0, &writer.word_at);
    if (result != CUDA_SUCCESS)
        check_skip(side, "the owner's page cannot be registered: %s", check_name(side, result));
    return writer;
}

/* The payload, then the word. */
static void write_turn(struct check_side *side, struct writer *writer, unsigned turn)
{
    enum kind kind = kind_of(turn);
    uint64_t value = turn + 1;

    check_fill(side, writer->payload, byte_of(turn), writer->stream);
    if (kind == BY_SIDE || kind == BY_PEER)
        check_finish(side, writer->stream, "while the other process waited, filling 1 MiB");
    /* [check.time] release, pairs with the acquire in answer_wait. */
    bxi_store_release(&side->shared->time_ns, check_now_ns());
    if (kind == BY_STREAM || kind == SEEN) {
        check_need(side, check_write_word(side, writer->stream, writer->word_at, value), "cuStreamWriteValue64");
    } else if (kind == BY_SIDE && writer->word != NULL) {
        check_store_word(writer->word, value);
    } else if (kind == BY_SIDE) {
        check_store_word(&writer->values[0], value);
        check_need(side, side->cu->cuMemcpyHtoDAsync_v2(writer->word_at, (void *)writer->values, sizeof(value),
                                                        writer->side_stream), "copying to the word");
    }
}

static void words_owner(struct check_side *side)
{
    struct writer writer;

    check_open(side);
    if (side->cu->cuStreamWriteValue64_v2 == NULL || side->cu->cuStreamWaitValue64_v2 == NULL)
        check_skip(side, "the driver has no waits for words");
    writer = make_writer(side);
    check_reach(side, 1);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        check_await(side, 2 + turn);                /* its stream waits, or its host is ready */
        write_turn(side, &writer, turn);
        check_reach(side, 2 + turn);
    }
    check_await(side, 2 + TURNS);
}

/* ---- The peer -------------------------------------------------------------------------------- */

struct waiter {
    struct CUstream_st *stream, *side_stream;
    unsigned long long payload, word_at;
    bxi_a64 *writable;                  /* a mapping of the word's page; NULL: the word is on the device */
    unsigned char *copy;                /* pinned */
    bxi_a64 *look;                      /* pinned, for copies of a word on the device */
    size_t differing;                   /* bytes, of all looks so far */
};

static struct waiter make_waiter(struct check_side *side)
{
    struct waiter waiter = { .stream = check_stream(side), .side_stream = check_stream(side) };
    bool is_read_only = side->question->variant == READ_ONLY_WORDS;
    bxi_a64 *page;
    unsigned result;

    waiter.copy = check_pinned(side, CHECK_PAYLOAD_BYTES, NULL);
    waiter.look = check_pinned(side, CHECK_PAGE_BYTES, NULL);
    waiter.payload = check_borrow(side, 0);
    if (side->question->variant == DEVICE_WORDS) {
        waiter.word_at = waiter.payload + CHECK_PAYLOAD_BYTES;
        return waiter;
    }
    waiter.writable = check_page(side, 0, true);
    page = is_read_only ? check_page(side, 0, false) : waiter.writable;
    result = check_register_page(side, page, is_read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0, &waiter.word_at);
    if (result != CUDA_SUCCESS)
        check_skip(side, "the peer's mapping cannot be registered: %s", check_name(side, result));
    return waiter;
}

/* As bxi_gpu_peer_died does it. */
static void poison(struct check_side *side, struct waiter *waiter)
{
    /* [check.time] release, pairs with the acquire in answer_wait. */
    bxi_store_release(&side->shared->time_ns, check_now_ns());
    if (waiter->writable != NULL)
        check_store_word(waiter->writable, POISON | 2);
    else
        check_need(side, check_write_word(side, waiter->side_stream, waiter->word_at, POISON | 2),
                   "poisoning the word");
}

/* Returns whether the next turn can be asked. */
static bool answer_wait(struct check_side *side, struct waiter *waiter, const char *key, unsigned char byte)
{
    bool is_passed = check_idles(side, waiter->stream, CHECK_RELEASE_MS);
    uint64_t end_ns = check_now_ns();
    size_t differing;
    double us;

    if (!is_passed) {
        check_answer(side, key, CHECK_BAD, "The stream went on waiting for %u ms after the write.", CHECK_RELEASE_MS);
        return false;
    }
    differing = check_differing(waiter->copy, CHECK_PAYLOAD_BYTES, byte);
    /* [check.time] acquire, pairs with the release of the writer. */
    us = (double)(end_ns - bxi_load_acquire(&side->shared->time_ns)) / 1e3;
    if (differing > 0) {
        check_answer(side, key, CHECK_BAD, "The stream went on, but %zu of 1048576 bytes are not those written before "
                     "the word.", differing);
        return true;
    }
    check_figure(side, key, us, "us");
    check_answer(side, key, CHECK_GOOD, "The stream waited, went on %.0f us after the write, and read 1 MiB right.",
                 us);
    return true;
}

static bool wait_turn(struct check_side *side, struct waiter *waiter, unsigned turn)
{
    const char *key = keys[side->question->variant][kind_of(turn)];
    unsigned result = check_wait_word(side, waiter->stream, waiter->word_at, turn + 1);

    if (result == CUDA_SUCCESS)
        result = side->cu->cuMemcpyDtoHAsync_v2(waiter->copy, waiter->payload, CHECK_PAYLOAD_BYTES, waiter->stream);
    if (result != CUDA_SUCCESS) {
        check_answer(side, key, CHECK_BAD, "The stream cannot wait for the word: %s.", check_name(side, result));
        return false;
    }
    check_sleep_ms(CHECK_PAUSE_MS);
    if (!check_is_waiting(side, waiter->stream)) {
        check_answer(side, key, CHECK_BAD, "The stream did not wait: it went on before the word was written.");
        return false;
    }
    check_reach(side, 2 + turn);
    check_await(side, 2 + turn);
    if (kind_of(turn) == BY_PEER)
        poison(side, waiter);
    return answer_wait(side, waiter, key, byte_of(turn));
}

/* The word as the host sees it; UINT64_MAX: it cannot be read. */
static uint64_t look(struct check_side *side, struct waiter *waiter)
{
    if (waiter->writable != NULL)
        return check_load_word(waiter->writable);
    if (side->cu->cuMemcpyDtoHAsync_v2((void *)waiter->look, waiter->word_at, sizeof(uint64_t),
                                       waiter->side_stream) != CUDA_SUCCESS ||
        !check_idles(side, waiter->side_stream, CHECK_RELEASE_MS))
        return UINT64_MAX;
    return check_load_word(waiter->look);
}

/* The host looks until the word has come, and then reads the payload without a wait. The last turn answers. */
static bool look_turn(struct check_side *side, struct waiter *waiter, unsigned turn)
{
    const char *key = keys[side->question->variant][SEEN];
    uint64_t end_ns = check_now_ns() + CHECK_RELEASE_MS * UINT64_C(1000000);
    uint64_t value = 0;
    size_t wrong;

    check_reach(side, 2 + turn);
    check_await(side, 2 + turn);
    while (value < turn + 1 && check_now_ns() < end_ns)
        value = look(side, waiter);
    if (value != turn + 1) {
        check_answer(side, key, CHECK_BAD, "The host does not see the word that a stream of the other process wrote.");
        return false;
    }
    wrong = check_read(side, waiter->payload, byte_of(turn), waiter->stream, waiter->copy);
    if (wrong == CHECK_UNREAD)
        check_give_up(side, "reading 1 MiB did not end");
    waiter->differing += wrong;
    if (kind_of(turn + 1) != SEEN)
        check_answer(side, key, waiter->differing == 0 ? CHECK_GOOD : CHECK_BAD, "After the host had seen the word, "
                     "its stream read the payload %d times without a wait; %zu bytes were wrong.", LOOKS,
                     waiter->differing);
    return true;
}

static void words_peer(struct check_side *side)
{
    struct waiter waiter;

    check_open(side);
    check_await(side, 1);
    waiter = make_waiter(side);
    for (unsigned turn = 0; turn < TURNS; turn++)
        if (kind_of(turn) == SEEN ? !look_turn(side, &waiter, turn) : !wait_turn(side, &waiter, turn))
            check_skip(side, "an answer before it is bad");
    check_reach(side, 2 + TURNS);
}

#define SEEN_GOOD "A point that has passed needs no wait on a stream."
#define SEEN_BAD "Boxcar leaves a wait out where the host has seen the word: that is wrong here."
#define POISON_GOOD "A death releases the streams that wait for the dead."
#define POISON_BAD "A worker's death may leave other workers' streams waiting for ever."

const struct check_question check_words_host = {
    .name = "words.host", .opens_handles = true, .decides = true, .limit_ms = 9000,
    .owner = words_owner, .peer = words_peer, .variant = HOST_WORDS,
    .lines = {
        { "words.host.stream", "HOST_WORDS is possible.", "HOST_WORDS by writable mappings is not." },
        { "words.host.host", "A host can release a stream.", "HOST_WORDS is not possible." },
        { "words.host.seen", SEEN_GOOD, SEEN_BAD },
        { "words.host.poison", POISON_GOOD, POISON_BAD },
        { NULL, NULL, NULL },
    },
};

const struct check_question check_words_read_only = {
    .name = "words.read_only", .opens_handles = true, .decides = true, .limit_ms = 9000,
    .owner = words_owner, .peer = words_peer, .variant = READ_ONLY_WORDS,
    .lines = {
        { "words.read_only.stream", "HOST_WORDS is possible, and no peer needs a writable mapping.",
          "HOST_WORDS is not chosen: the driver takes the flag, but the wait is wrong." },
        { "words.read_only.host", "A host can release a stream.", "HOST_WORDS is not chosen." },
        { "words.read_only.seen", SEEN_GOOD, SEEN_BAD },
        { "words.read_only.poison", POISON_GOOD, POISON_BAD },
        { NULL, NULL, NULL },
    },
};

const struct check_question check_words_device = {
    .name = "words.device", .opens_handles = true, .decides = true, .limit_ms = 9000,
    .owner = words_owner, .peer = words_peer, .variant = DEVICE_WORDS,
    .lines = {
        { "words.device.stream", "DEVICE_WORDS is possible.", "DEVICE_WORDS is not." },
        { "words.device.copy", "A copy can release a stream.", "DEVICE_WORDS is not possible." },
        { "words.device.seen", SEEN_GOOD, SEEN_BAD },
        { "words.device.poison", POISON_GOOD, POISON_BAD },
        { NULL, NULL, NULL },
    },
};

/* ---- events ---------------------------------------------------------------------------------- */

static void events_owner(struct check_side *side)
{
    struct CUstream_st *stream;
    struct CUevent_st *event = NULL;
    struct check_gate gate;
    unsigned long long payload;
    unsigned result;
    bool is_held;

    check_open(side);
    stream = check_stream(side);
    payload = check_alloc(side, CHECK_PAYLOAD_BYTES);
    check_lend(side, 0, payload);
    check_fill(side, payload, 0, stream);
    result = check_lend_event(side, &event);
    if (result != CUDA_SUCCESS) {
        check_answer(side, "events", CHECK_BAD, "The driver exports no event: %s.", check_name(side, result));
        return;
    }
    gate = check_gate_make(side);
    is_held = check_gate_try(side, &gate, stream) == CUDA_SUCCESS;
    check_fill(side, payload, byte_of(0), stream);
    check_need(side, side->cu->cuEventRecord(event, stream), "cuEventRecord");
    /* [check.number] release, pairs with the acquire in events_peer. */
    bxi_store_release(&side->shared->number[0], is_held);
    check_reach(side, 1);
    check_await(side, 2);
    check_gate_open(&gate);
    check_reach(side, 2);
    check_await(side, 3);
}

static void events_peer(struct check_side *side)
{
    struct waiter waiter = { .stream = NULL };
    bool is_held, has_waited;
    size_t differing;
    unsigned result;

    check_open(side);
    check_await(side, 1);
    /* [check.number] acquire, pairs with the release in events_owner. */
    is_held = bxi_load_acquire(&side->shared->number[0]) != 0;
    waiter.stream = check_stream(side);
    waiter.copy = check_pinned(side, CHECK_PAYLOAD_BYTES, NULL);
    waiter.payload = check_borrow(side, 0);
    result = check_wait_event(side, waiter.stream);
    if (result != CUDA_SUCCESS) {
        check_answer(side, "events", CHECK_BAD, "Another process cannot wait for the event: %s.",
                     check_name(side, result));
        return;
    }
    check_need(side, side->cu->cuMemcpyDtoHAsync_v2(waiter.copy, waiter.payload, CHECK_PAYLOAD_BYTES, waiter.stream),
               "reading the memory");
    check_sleep_ms(CHECK_PAUSE_MS);
    has_waited = !is_held || check_is_waiting(side, waiter.stream);
    check_reach(side, 2);
    check_await(side, 2);
    if (!has_waited) {
        check_answer(side, "events", CHECK_BAD, "The stream did not wait for the other process's event.");
    } else if (!check_idles(side, waiter.stream, CHECK_RELEASE_MS)) {
        check_answer(side, "events", CHECK_BAD, "The stream waits still, %u ms after the event's stream went on.",
                     CHECK_RELEASE_MS);
    } else {
        differing = check_differing(waiter.copy, CHECK_PAYLOAD_BYTES, byte_of(0));
        check_answer(side, "events", differing == 0 ? CHECK_GOOD : CHECK_BAD,
                     "A stream waited for an event of another process%s; %zu of 1048576 bytes were wrong.",
                     is_held ? "" : " (which nothing held up)", differing);
    }
    check_reach(side, 3);
}

const struct check_question check_events = {
    .name = "events", .opens_handles = true, .decides = true, .limit_ms = 8000,
    .owner = events_owner, .peer = events_peer,
    .lines = {
        { "events", "EVENTS is possible, where words do not work.",
          "EVENTS is not possible: without words, HOST_SYNC remains." },
        { NULL, NULL, NULL },
    },
};
