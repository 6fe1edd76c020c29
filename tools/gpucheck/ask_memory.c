/* SPDX-License-Identifier: MIT */
/*
 * What both sides may register of a page in /dev/shm, and what a handle of device memory gives to another process.
 */
#include "side.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MARK 0x5aa5c33c0ff00110u

/* ---- register -------------------------------------------------------------------------------- */

/* Whether a stream reads MARK through the address. */
static bool stream_reads(struct check_side *side, unsigned long long address, struct CUstream_st *stream)
{
    unsigned long long copy_at;
    bxi_a64 *copy = check_pinned(side, CHECK_PAGE_BYTES, &copy_at);

    return side->cu->cuMemcpyAsync(copy_at, address, sizeof(uint64_t), stream) == CUDA_SUCCESS &&
        check_idles(side, stream, CHECK_RELEASE_MS) && check_load_word(copy) == MARK;
}

/* refused: what it means if the driver refuses it. */
static void answer_registered(struct check_side *side, const char *key, enum check_verdict refused, unsigned result,
                              unsigned long long address)
{
    struct CUstream_st *stream = check_stream(side);

    if (result != CUDA_SUCCESS)
        check_answer(side, key, refused, "The driver refused it: %s.", check_name(side, result));
    else if (stream_reads(side, address, stream))
        check_answer(side, key, CHECK_GOOD, "The driver took it, and a stream reads the page.");
    else
        check_answer(side, key, CHECK_BAD, "The driver took it, but a stream does not read the page.");
}

static void register_owner(struct check_side *side)
{
    bxi_a64 *page = check_page(side, 0, true);
    unsigned long long address = 0;
    unsigned result;

    check_store_word(page, MARK);
    check_open(side);
    result = check_register_page(side, page, 0, &address);
    answer_registered(side, "register.owner", CHECK_BAD, result, address);
    check_reach(side, 1);
    check_await(side, 2);
}

static void register_peer(struct check_side *side)
{
    static const struct {
        const char *key;
        bool is_writable;
        unsigned flags;
        enum check_verdict refused;
    } ways[] = {
        { "register.read_only", false, CU_MEMHOSTREGISTER_READ_ONLY, CHECK_BAD },
        { "register.bare", false, 0, CHECK_NOTE },
        { "register.writable", true, 0, CHECK_BAD },
    };

    check_open(side);
    check_await(side, 1);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        bxi_a64 *page = check_page(side, 0, ways[i].is_writable);
        unsigned long long address = 0;
        unsigned result = check_register_page(side, page, ways[i].flags, &address);

        answer_registered(side, ways[i].key, ways[i].refused, result, address);
        if (result == CUDA_SUCCESS)
            (void)side->cu->cuMemHostUnregister((void *)page);
    }
    check_reach(side, 2);
}

const struct check_question check_register = {
    .name = "register", .decides = true, .limit_ms = 8000, .owner = register_owner, .peer = register_peer,
    .lines = {
        { "register.owner", "A worker's streams can write its words in /dev/shm (HOST_WORDS).",
          "HOST_WORDS is impossible." },
        { "register.read_only", "Peers wait through read-only mappings (HOST_WORDS).",
          "Peers register a writable mapping of the words' page instead, if the driver takes that." },
        { "register.bare", "That is a read-only mapping without the flag, which Boxcar never tries.",
          "Boxcar never tries that." },
        { "register.writable", "What peers use where the read-only flag is refused.",
          "HOST_WORDS needs the read-only flag." },
        { NULL, NULL, NULL },
    },
};

/* ---- handle ---------------------------------------------------------------------------------- */

static void handle_owner(struct check_side *side)
{
    unsigned long long address, again = 0;
    struct CUstream_st *stream;
    unsigned result;

    check_open(side);
    stream = check_stream(side);
    address = check_alloc(side, CHECK_PAYLOAD_BYTES);
    check_fill(side, address, 0x3c, stream);
    check_finish(side, stream, "filling 1 MiB");
    result = side->cu->cuIpcGetMemHandle(&side->shared->handle[0], address);
    if (result != CUDA_SUCCESS) {
        check_answer(side, "handle.export", CHECK_BAD, "The driver gives no handle: %s.", check_name(side, result));
        check_skip(side, "there is no handle");
    }
    check_answer(side, "handle.export", CHECK_GOOD, "The driver gave a handle.");
    result = check_open_handle(side, 0, &again);
    if (result == CUDA_SUCCESS)
        check_answer(side, "handle.own", CHECK_NOTE, "A process can open its own handle, at %s address.",
                     again == address ? "the same" : "another");
    else
        check_answer(side, "handle.own", CHECK_NOTE, "A process cannot open its own handle: %s.",
                     check_name(side, result));
    check_reach(side, 1);
    check_await(side, 2);
}

static double ms_since(uint64_t start_ns)
{
    return (double)(check_now_ns() - start_ns) / 1e6;
}

static void open_twice(struct check_side *side, unsigned long long first)
{
    unsigned long long second = 0;
    unsigned result = check_open_handle(side, 0, &second);

    if (result != CUDA_SUCCESS) {
        check_answer(side, "handle.twice", CHECK_NOTE, "A second open in one process is refused: %s.",
                     check_name(side, result));
        return;
    }
    check_answer(side, "handle.twice", CHECK_NOTE, "A second open in one process succeeds, at %s address.",
                 second == first ? "the same" : "another");
    (void)side->cu->cuIpcCloseMemHandle(second);
}

static void answer_contents(struct check_side *side, unsigned long long address)
{
    size_t differing = check_read(side, address, 0x3c, check_stream(side),
                                  check_pinned(side, CHECK_PAYLOAD_BYTES, NULL));

    if (differing == CHECK_UNREAD)
        check_answer(side, "handle.contents", CHECK_BAD, "Reading 1 MiB of it did not end.");
    else if (differing == 0)
        check_answer(side, "handle.contents", CHECK_GOOD, "The other process reads the 1 MiB that the owner wrote.");
    else
        check_answer(side, "handle.contents", CHECK_BAD, "%zu of 1048576 bytes are not what the owner wrote.",
                     differing);
}

static void handle_peer(struct check_side *side)
{
    unsigned long long address = 0;
    uint64_t start_ns;
    unsigned result;

    check_open(side);
    check_await(side, 1);
    start_ns = check_now_ns();
    result = check_open_handle(side, 0, &address);
    if (result != CUDA_SUCCESS) {
        check_answer(side, "handle.open", CHECK_BAD, "Another process cannot open the handle: %s.",
                     check_name(side, result));
        check_skip(side, "the handle cannot be opened");
    }
    check_figure(side, "handle.open", ms_since(start_ns), "ms");
    check_answer(side, "handle.open", CHECK_GOOD, "Another process opened the handle in %.2f ms.",
                 ms_since(start_ns));
    answer_contents(side, address);
    open_twice(side, address);
    start_ns = check_now_ns();
    result = side->cu->cuIpcCloseMemHandle(address);
    if (result == CUDA_SUCCESS) {
        double ms = ms_since(start_ns);

        result = check_open_handle(side, 0, &address);
        check_figure(side, "handle.close", ms, "ms");
        check_answer(side, "handle.close", result == CUDA_SUCCESS ? CHECK_GOOD : CHECK_BAD,
                     "It was closed in %.2f ms, and opened again: %s.", ms,
                     result == CUDA_SUCCESS ? "yes" : check_name(side, result));
    } else {
        check_answer(side, "handle.close", CHECK_BAD, "It could not be closed: %s.", check_name(side, result));
    }
    check_reach(side, 2);
}

const struct check_question check_handle = {
    .name = "handle", .decides = true, .limit_ms = 10000, .owner = handle_owner, .peer = handle_peer,
    .lines = {
        { "handle.export", "Boxcar can export this device's memory.",
          "Memory of this device cannot be shared (MIG and some virtual GPUs): Boxcar refuses to open it." },
        { "handle.own", "Boxcar never opens its own memory.", NULL },
        { "handle.open", "The first tensor of a slab of 64 MiB or more costs that once.",
          "Tensors go through pinned host memory. Containers must share the IPC and PID namespaces (--ipc=host "
          "--pid=host)." },
        { "handle.contents", "A tensor on loan is read in place.", "Nothing that this driver shares can be trusted." },
        { "handle.twice", "Boxcar opens each slab once, so either will do.", NULL },
        { "handle.close", "A slab that comes back can be mapped anew.", "A slab can be mapped once only." },
        { NULL, NULL, NULL },
    },
};
