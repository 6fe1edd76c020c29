/* SPDX-License-Identifier: MIT */
/*
 * The order between streams of two processes, as Boxcar makes it: the asking process's stream waits, then copies a
 * payload of 1 MiB from the other process's memory; the other one's stream, later, writes the payload and then what is
 * waited for.
 *
 * Turns with a word: it is written by the owner's stream; by the owner's host; by the owner's stream again, several
 * times, while the waiter's host looks at it and then reads the payload without a wait; and by the waiter's process, as
 * a survivor poisons the word of a dead owner. Before a write there is a pause in which the wait must hold, so that a
 * wait that does not wait is found out; after it the payload must be that of the turn. The words are in a page of
 * /dev/shm that the waiter has registered writable, or read-only.
 *
 * EVENTS has one turn: the driver calls the owner's host, which writes the word, and the waiter's host polls it.
 */
#include "gpucheck.h"

#define LOOKS 20
#define TURNS (3 + LOOKS)

enum words { WRITABLE, READ_ONLY };
enum kind { BY_STREAM, BY_HOST, SEEN, BY_PEER, KINDS };

static const char *const keys[][KINDS] = {
    [WRITABLE] = { "words.host.stream", "words.host.host", "words.host.seen", "words.host.poison" },
    [READ_ONLY] = { "words.read_only.stream", "words.read_only.host", "words.read_only.seen",
                    "words.read_only.poison" },
};

static enum kind kind_of(unsigned turn)
{
    return turn < 2 ? (enum kind)turn : turn < 2 + LOOKS ? SEEN : BY_PEER;
}

static unsigned char byte_of(unsigned turn)
{
    return (unsigned char)(turn + 1);
}

/* ---- The owner, in the other process --------------------------------------------------------------- */

static struct {
    struct CUstream_st *stream;
    unsigned long long payload, word_at;
    bxi_a64 *word;
} writer;

static void make_writer(struct check_parcel *parcel)
{
    unsigned result;

    if (cu.cuStreamWriteValue64_v2 == NULL || cu.cuStreamWaitValue64_v2 == NULL)
        check_skip("the driver has no waits for words");
    writer.stream = check_stream();
    writer.payload = check_payload(0, writer.stream);
    parcel->handle = check_export(writer.payload);
    writer.word = check_page(true);
    result = check_register_page(writer.word, 0, &writer.word_at);
    if (result != CUDA_SUCCESS)
        check_skip("the owner's page cannot be registered: %s", check_name(result));
}

/* The payload, then the word. Turns a turn's number into the time of the write. */
static void write_turn(struct check_parcel *parcel)
{
    unsigned turn = (unsigned)parcel->number;
    enum kind kind = kind_of(turn);
    uint64_t value = turn + 1;

    check_fill(writer.payload, byte_of(turn), CHECK_PAYLOAD_BYTES, writer.stream);
    if (kind == BY_HOST || kind == BY_PEER)
        check_finish(writer.stream, "while the other process waited, filling 1 MiB");
    parcel->number = check_now_ns();
    if (kind == BY_STREAM || kind == SEEN)
        check_need(check_write_word(writer.stream, writer.word_at, value), "cuStreamWriteValue64");
    else if (kind == BY_HOST)
        check_store_word(writer.word, value);
}

/* ---- The waiter -------------------------------------------------------------------------------- */

struct waiter {
    struct check_reader reader;         /* its stream waits */
    unsigned long long payload, word_at;
    bxi_a64 *writable;                  /* a mapping of the word's page */
    size_t differing;                   /* bytes, of all looks so far */
};

static struct waiter make_waiter(struct CUipcMemHandle_st handle)
{
    struct waiter waiter = { .reader = check_reader_make() };
    bool is_read_only = check_question->variant == READ_ONLY;
    bxi_a64 *page;
    unsigned result;

    waiter.payload = check_borrow(handle);
    waiter.writable = check_page(true);
    page = is_read_only ? check_page(false) : waiter.writable;
    result = check_register_page(page, is_read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0, &waiter.word_at);
    if (result != CUDA_SUCCESS)
        check_skip("the peer's mapping cannot be registered: %s", check_name(result));
    return waiter;
}

/* Returns whether the next turn can be asked. */
static bool answer_wait(struct waiter *waiter, const char *key, unsigned char byte, uint64_t written_ns)
{
    bool is_passed = check_idles(waiter->reader.stream, CHECK_RELEASE_MS);
    double us = (double)(check_now_ns() - written_ns) / 1e3;
    size_t differing;

    if (!is_passed) {
        check_answer(key, CHECK_BAD, "The stream went on waiting for %u ms after the write.", CHECK_RELEASE_MS);
        return false;
    }
    differing = check_differing(waiter->reader.copy, CHECK_PAYLOAD_BYTES, byte);
    if (differing > 0) {
        check_answer(key, CHECK_BAD, "The stream went on, but %zu of 1048576 bytes are not those written before the "
                     "word.", differing);
        return true;
    }
    check_figure(us, "us");
    check_answer(key, CHECK_GOOD, "The stream waited, went on %.0f us after the write, and read 1 MiB right.", us);
    return true;
}

static bool wait_turn(struct waiter *waiter, unsigned turn)
{
    const char *key = keys[check_question->variant][kind_of(turn)];
    struct check_parcel parcel = { .number = turn };
    unsigned result = check_wait_word(waiter->reader.stream, waiter->word_at, turn + 1);

    if (result == CUDA_SUCCESS)
        result = cu.cuMemcpyDtoHAsync_v2(waiter->reader.copy, waiter->payload, CHECK_PAYLOAD_BYTES,
                                         waiter->reader.stream);
    if (result != CUDA_SUCCESS) {
        check_answer(key, CHECK_BAD, "The stream cannot wait for the word: %s.", check_name(result));
        return false;
    }
    check_sleep_ms(CHECK_PAUSE_MS);
    if (!check_is_waiting(waiter->reader.stream)) {
        check_answer(key, CHECK_BAD, "The stream did not wait: it went on before the word was written.");
        return false;
    }
    check_there(write_turn, &parcel);
    if (kind_of(turn) == BY_PEER) {
        parcel.number = check_now_ns();
        check_store_word(waiter->writable, CHECK_POISON | 2);       /* as bxi_gpu_peer_died does it */
    }
    return answer_wait(waiter, key, byte_of(turn), parcel.number);
}

/* The host looks until the word has come, and then reads the payload without a wait. The last turn answers. */
static bool look_turn(struct waiter *waiter, unsigned turn)
{
    const char *key = keys[check_question->variant][SEEN];
    uint64_t end_ns = check_now_ns() + CHECK_RELEASE_MS * UINT64_C(1000000);
    struct check_parcel parcel = { .number = turn };
    uint64_t value = 0;
    size_t wrong;

    check_there(write_turn, &parcel);
    while (value < turn + 1 && check_now_ns() < end_ns)
        value = check_load_word(waiter->writable);
    if (value != turn + 1) {
        check_answer(key, CHECK_BAD, "The host does not see the word that a stream of the other process wrote.");
        return false;
    }
    wrong = check_read(&waiter->reader, waiter->payload, byte_of(turn));
    if (wrong == CHECK_UNREAD)
        check_give_up("reading 1 MiB did not end");
    waiter->differing += wrong;
    if (kind_of(turn + 1) != SEEN)
        check_answer(key, waiter->differing == 0 ? CHECK_GOOD : CHECK_BAD, "After the host had seen the word, its "
                     "stream read the payload %d times without a wait; %zu bytes were wrong.", LOOKS,
                     waiter->differing);
    return true;
}

static void ask_words(void)
{
    struct check_parcel parcel = { 0 };
    struct waiter waiter;

    check_there(make_writer, &parcel);
    waiter = make_waiter(parcel.handle);
    for (unsigned turn = 0; turn < TURNS; turn++)
        if (kind_of(turn) == SEEN ? !look_turn(&waiter, turn) : !wait_turn(&waiter, turn))
            check_skip("an answer before it is bad");
}

#define SEEN_GOOD "A point that has passed needs no wait on a stream."
#define SEEN_BAD "Boxcar leaves a wait out where the host has seen the word: that is wrong here."
#define POISON_GOOD "A death releases the streams that wait for the dead."
#define POISON_BAD "A worker's death may leave other workers' streams waiting for ever."

const struct check_question check_words_host = {
    .name = "words.host", .ask = ask_words, .variant = WRITABLE, .has_other = true, .opens_handles = true,
    .decides = true, .limit_ms = 9000,
    .lines = {
        { "words.host.stream", "HOST_WORDS is possible.", "HOST_WORDS by writable mappings is not." },
        { "words.host.host", "A host can release a stream.", "HOST_WORDS is not possible." },
        { "words.host.seen", SEEN_GOOD, SEEN_BAD },
        { "words.host.poison", POISON_GOOD, POISON_BAD },
    },
};

const struct check_question check_words_read_only = {
    .name = "words.read_only", .ask = ask_words, .variant = READ_ONLY, .has_other = true, .opens_handles = true,
    .decides = true, .limit_ms = 9000,
    .lines = {
        { "words.read_only.stream", "HOST_WORDS is possible, and no peer needs a writable mapping.",
          "HOST_WORDS is not chosen: the driver takes the flag, but the wait is wrong." },
        { "words.read_only.host", "A host can release a stream.", "HOST_WORDS is not chosen." },
        { "words.read_only.seen", SEEN_GOOD, SEEN_BAD },
        { "words.read_only.poison", POISON_GOOD, POISON_BAD },
    },
};

/* ---- events ---------------------------------------------------------------------------------- */

static struct check_hold hold;          /* in the other process */

/* On a thread of the driver. */
static void tell(void *word)
{
    check_store_word(word, 1);
}

/* Brings back the results of the call and of holding its stream up: 1, it is held. */
static void call_host(struct check_parcel *parcel)
{
    struct CUstream_st *stream = check_stream();
    unsigned long long payload = check_payload(0, stream);

    parcel->handle = check_export(payload);
    hold = check_hold_make();
    parcel->number = check_hold_try(&hold, stream) == CUDA_SUCCESS;
    check_fill(payload, byte_of(0), CHECK_PAYLOAD_BYTES, stream);
    parcel->result = cu.cuLaunchHostFunc(stream, tell, (void *)check_page(true));
}

static void end_hold(struct check_parcel *parcel)
{
    (void)parcel;
    check_hold_end(&hold);
}

static void ask_events(void)
{
    struct check_reader reader = check_reader_make();
    bxi_a64 *word = check_page(false);
    struct check_parcel parcel = { 0 };
    unsigned long long payload;
    uint64_t end_ns;
    size_t differing;

    check_there(call_host, &parcel);
    if (parcel.result != CUDA_SUCCESS) {
        check_answer("events", CHECK_BAD, "The driver takes no call of the host: %s.", check_name(parcel.result));
        return;
    }
    payload = check_borrow(parcel.handle);
    check_sleep_ms(CHECK_PAUSE_MS);
    if (parcel.number != 0 && check_load_word(word) != 0) {
        check_answer("events", CHECK_BAD, "The driver called the host before the work before it was done.");
        return;
    }
    check_there(end_hold, &parcel);
    end_ns = check_now_ns() + CHECK_RELEASE_MS * UINT64_C(1000000);
    while (check_load_word(word) == 0 && check_now_ns() < end_ns)
        check_sleep_ms(0);
    if (check_load_word(word) == 0) {
        check_answer("events", CHECK_BAD, "The driver has not called the host %u ms after the work.", CHECK_RELEASE_MS);
        return;
    }
    differing = check_read(&reader, payload, byte_of(0));
    if (differing == CHECK_UNREAD)
        check_give_up("reading 1 MiB did not end");
    check_answer("events", differing == 0 ? CHECK_GOOD : CHECK_BAD,
                 "The other process's driver called its host behind the work%s, and the host wrote a word; %zu of "
                 "1048576 bytes that were read after it were wrong.",
                 parcel.number != 0 ? "" : " (which nothing held up)", differing);
}

const struct check_question check_events = {
    .name = "events", .ask = ask_events, .has_other = true, .opens_handles = true, .decides = true, .limit_ms = 8000,
    .lines = {
        { "events", "EVENTS is possible, where words do not work.", "No order is left where words do not work." },
    },
};
