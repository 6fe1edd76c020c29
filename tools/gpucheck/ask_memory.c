/* SPDX-License-Identifier: MIT */
/*
 * What both sides may register of a page in /dev/shm, and what a handle of device memory gives to another process. The
 * other process owns the page and the memory.
 */
#include "gpucheck.h"

#define MARK 0x5aa5c33c0ff00110u
#define FILLED 0x3c

/* ---- register -------------------------------------------------------------------------------- */

/* Whether a stream reads MARK through the address. */
static bool stream_reads(unsigned long long address, struct CUstream_st *stream)
{
    unsigned long long copy_at;
    bxi_a64 *copy = check_pinned(CHECK_PAGE_BYTES, &copy_at);

    return cu.cuMemcpyAsync(copy_at, address, sizeof(uint64_t), stream) == CUDA_SUCCESS &&
        check_idles(stream, CHECK_RELEASE_MS) && check_load_word(copy) == MARK;
}

/* Returns whether it is registered. */
static bool answer_register(const char *key, bxi_a64 *page, unsigned flags)
{
    unsigned long long address = 0;
    unsigned result = check_register_page(page, flags, &address);

    if (result != CUDA_SUCCESS)
        check_answer(key, CHECK_BAD, "The driver refused it: %s.", check_name(result));
    else if (stream_reads(address, check_stream()))
        check_answer(key, CHECK_GOOD, "The driver took it, and a stream reads the page.");
    else
        check_answer(key, CHECK_BAD, "The driver took it, but a stream does not read the page.");
    return result == CUDA_SUCCESS;
}

static void register_own(struct check_parcel *parcel)
{
    bxi_a64 *page = check_page(true);

    (void)parcel;
    check_store_word(page, MARK);
    (void)answer_register("register.owner", page, 0);
}

static void ask_register(void)
{
    static const struct {
        const char *key;
        bool is_writable;
        unsigned flags;
    } ways[] = {
        { "register.read_only", false, CU_MEMHOSTREGISTER_READ_ONLY },
        { "register.writable", true, 0 },
    };
    struct check_parcel parcel = { 0 };

    check_there(register_own, &parcel);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        bxi_a64 *page = check_page(ways[i].is_writable);

        if (answer_register(ways[i].key, page, ways[i].flags))
            (void)cu.cuMemHostUnregister((void *)page);
    }
}

const struct check_question check_register = {
    .name = "register", .ask = ask_register, .has_other = true, .decides = true, .limit_ms = 8000,
    .lines = {
        { "register.owner", "A worker's streams can write its words in /dev/shm (HOST_WORDS).",
          "HOST_WORDS is impossible." },
        { "register.read_only", "Peers wait through read-only mappings (HOST_WORDS).",
          "Peers register a writable mapping of the words' page instead, if the driver takes that." },
        { "register.writable", "What peers use where the read-only flag is refused.",
          "HOST_WORDS needs the read-only flag." },
    },
};

/* ---- handle ---------------------------------------------------------------------------------- */

static void lend(struct check_parcel *parcel)
{
    unsigned result = cu.cuIpcGetMemHandle(&parcel->handle, check_payload(FILLED, check_stream()));

    if (result != CUDA_SUCCESS) {
        check_answer("handle.export", CHECK_BAD, "The driver gives no handle: %s.", check_name(result));
        check_skip("there is no handle");
    }
    check_answer("handle.export", CHECK_GOOD, "The driver gave a handle.");
}

static double ms_since(uint64_t start_ns)
{
    return (double)(check_now_ns() - start_ns) / 1e6;
}

static void answer_close(struct CUipcMemHandle_st handle, unsigned long long address)
{
    uint64_t start_ns = check_now_ns();
    unsigned result = cu.cuIpcCloseMemHandle(address);
    double ms = ms_since(start_ns);

    if (result != CUDA_SUCCESS) {
        check_answer("handle.close", CHECK_BAD, "It could not be closed: %s.", check_name(result));
        return;
    }
    result = check_open_handle(handle, &address);
    check_figure(ms, "ms");
    check_answer("handle.close", result == CUDA_SUCCESS ? CHECK_GOOD : CHECK_BAD,
                 "It was closed in %.2f ms, and opened again: %s.", ms,
                 result == CUDA_SUCCESS ? "yes" : check_name(result));
}

static void ask_handle(void)
{
    struct check_reader reader = check_reader_make();
    struct check_parcel parcel = { 0 };
    unsigned long long address = 0;
    uint64_t start_ns;
    unsigned result;
    double ms;

    check_there(lend, &parcel);
    start_ns = check_now_ns();
    result = check_open_handle(parcel.handle, &address);
    ms = ms_since(start_ns);
    if (result != CUDA_SUCCESS) {
        check_answer("handle.open", CHECK_BAD, "Another process cannot open the handle: %s.", check_name(result));
        check_skip("the handle cannot be opened");
    }
    check_figure(ms, "ms");
    check_answer("handle.open", CHECK_GOOD, "Another process opened the handle in %.2f ms.", ms);
    check_answer_read("handle.contents", "The other process's memory", &reader, address, FILLED);
    answer_close(parcel.handle, address);
}

const struct check_question check_handle = {
    .name = "handle", .ask = ask_handle, .has_other = true, .decides = true, .limit_ms = 10000,
    .lines = {
        { "handle.export", "Boxcar can export this device's memory.",
          "Memory of this device cannot be shared (MIG and some virtual GPUs): Boxcar refuses to open it." },
        { "handle.open", "The first tensor of a slab of 64 MiB or more costs that once.",
          "Tensors go through pinned host memory. Containers must share the IPC and PID namespaces (--ipc=host "
          "--pid=host)." },
        { "handle.contents", "A tensor on loan is read in place.", "Nothing that this driver shares can be trusted." },
        { "handle.close", "A slab that comes back can be mapped anew.", "A slab can be mapped once only." },
    },
};
