/* SPDX-License-Identifier: MIT */
/*
 * Which calls do not return while one stream of the process waits. For each call: what it needs is prepared, the stream
 * is made to wait, a thread makes the call; if it has not returned after CHECK_PATIENCE_MS it is blocked, the stream is
 * released, and the call must return. The other process owns the memory that is opened and closed here.
 */
#include "gpucheck.h"

#include <pthread.h>

#define SCRATCH_BYTES ((size_t)4 << 20)

/* An empty kernel; the driver compiles it. */
static const char module_text[] =
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry gpucheck()\n{\n    ret;\n}\n";

/* What the calls use. */
static struct {
    struct check_parcel peers;          /* a handle of the other process */
    struct check_hold hold;
    struct CUstream_st *waiting, *other;
    unsigned long long scratch, block, opened, word_at;
    bxi_a64 *word;                      /* pinned */
    bxi_a64 *page;
    struct CUmod_st *module;
    uint64_t value;
} site;

struct call {
    const char *key;
    const char *what;                   /* in a sentence: WHAT returned */
    unsigned (*prepare)(void);     /* NULL: nothing */
    unsigned (*make)(void);
    unsigned (*clean)(void);       /* after it succeeded; NULL: nothing */
};

/* ---- The calls ------------------------------------------------------------------------------- */

static unsigned alloc(void)
{
    return cu.cuMemAlloc_v2(&site.block, SCRATCH_BYTES);
}

static unsigned free_block(void)
{
    return cu.cuMemFree_v2(site.block);
}

static unsigned create_stream(void)
{
    struct CUstream_st *stream;

    return cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
}

static unsigned register_page(void)
{
    return cu.cuMemHostRegister_v2((void *)site.page, CHECK_PAGE_BYTES,
                                                CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

static unsigned unregister_page(void)
{
    return cu.cuMemHostUnregister((void *)site.page);
}

static unsigned open_handle(void)
{
    return check_open_handle(site.peers.handle, &site.opened);
}

static unsigned close_handle(void)
{
    return cu.cuIpcCloseMemHandle(site.opened);
}

static unsigned load_module(void)
{
    return cu.cuModuleLoadData(&site.module, module_text);
}

static unsigned unload_module(void)
{
    return cu.cuModuleUnload(site.module);
}

/* 8 bytes to memory that is not pinned, and back: both end before they return. */
static unsigned copy_small(void)
{
    uint64_t value = 0;
    unsigned result = cu.cuMemcpyHtoDAsync_v2(site.scratch, &value, sizeof(value), site.other);

    if (result == CUDA_SUCCESS)
        result = cu.cuMemcpyDtoHAsync_v2(&value, site.scratch, sizeof(value), site.other);
    return result == CUDA_SUCCESS ? cu.cuStreamSynchronize(site.other) : result;
}

/* Until the host sees it. */
static unsigned write_word(void)
{
    unsigned result = check_write_word(site.other, site.word_at, ++site.value);
    uint64_t end_ns = check_now_ns() + UINT64_C(5000000000);

    while (result == CUDA_SUCCESS && check_load_word(site.word) != site.value) {
        if (check_now_ns() > end_ns)
            return CUDA_ERROR_NOT_READY;
        bxi_pause();
    }
    return result;
}

static const struct call calls[] = {
    { "block.alloc", "cuMemAlloc", NULL, alloc, free_block },
    { "block.free", "cuMemFree", alloc, free_block, NULL },
    { "block.stream", "cuStreamCreate", NULL, create_stream, NULL },
    { "block.register", "cuMemHostRegister", NULL, register_page, unregister_page },
    { "block.unregister", "cuMemHostUnregister", register_page, unregister_page, NULL },
    { "block.open", "cuIpcOpenMemHandle", NULL, open_handle, close_handle },
    { "block.close", "cuIpcCloseMemHandle", open_handle, close_handle, NULL },
    { "block.module", "cuModuleLoadData", NULL, load_module, unload_module },
    { "block.copy", "A copy of 8 bytes on another stream", NULL, copy_small, NULL },
    { "block.write", "A third thread's write of a word on another stream", NULL, write_word, NULL },
};

/* ---- Asking ---------------------------------------------------------------------------------- */

/* One call in a thread of its own. The last one of a process may never end. */
struct attempt {
    const struct call *call;
    unsigned result;
    uint64_t ns;
    bxi_a32 is_done;
};

static void *make_call(void *context)
{
    struct attempt *attempt = context;
    uint64_t start_ns;

    attempt->result = cu.cuCtxPushCurrent_v2(check_context);
    start_ns = check_now_ns();
    if (attempt->result == CUDA_SUCCESS)
        attempt->result = attempt->call->make();
    attempt->ns = check_now_ns() - start_ns;
    /* [check.done] release, pairs with the acquire in is_done_within. */
    bxi_store_release(&attempt->is_done, 1);
    return NULL;
}

static bool is_done_within(struct attempt *attempt, unsigned ms)
{
    uint64_t end_ns = check_now_ns() + (uint64_t)ms * 1000000;

    do {
        /* [check.done] acquire, pairs with the release in make_call. */
        if (bxi_load_acquire(&attempt->is_done) != 0)
            return true;
        check_sleep_ms(1);
    } while (check_now_ns() < end_ns);
    return false;
}

/* Without a stream that waits. It also has the driver do what it does once only. */
static double baseline_ms(const struct call *call, unsigned *result)
{
    uint64_t start_ns;

    *result = call->prepare != NULL ? call->prepare() : CUDA_SUCCESS;
    start_ns = check_now_ns();
    if (*result == CUDA_SUCCESS)
        *result = call->make();
    start_ns = check_now_ns() - start_ns;
    if (*result == CUDA_SUCCESS && call->clean != NULL)
        *result = call->clean();
    return (double)start_ns / 1e6;
}

static void answer_call(const struct call *call, struct attempt *attempt)
{
    unsigned result;
    double usual_ms = baseline_ms(call, &result);
    bool is_blocked;
    pthread_t thread;

    if (result != CUDA_SUCCESS) {
        check_answer(call->key, CHECK_ABSENT, "%s fails here even while no stream waits: %s.", call->what,
                     check_name(result));
        return;
    }
    if (call->prepare != NULL)
        check_need(call->prepare(), call->what);
    check_hold_begin(&site.hold, site.waiting);
    *attempt = (struct attempt){ .call = call };
    if (pthread_create(&thread, NULL, make_call, attempt) != 0)
        check_give_up("a thread cannot be made");
    is_blocked = !is_done_within(attempt, CHECK_PATIENCE_MS + (unsigned)(3 * usual_ms));
    check_hold_end(&site.hold);
    if (!is_done_within(attempt, CHECK_RELEASE_MS)) {
        check_answer(call->key, CHECK_BAD, "%s did not return while a stream waited, nor after its release.",
                     call->what);
        check_give_up("%s hangs", call->what);
    }
    pthread_join(thread, NULL);
    if (attempt->result != CUDA_SUCCESS)
        check_answer(call->key, CHECK_BAD, "%s failed while a stream waited: %s.", call->what,
                     check_name(attempt->result));
    else if (is_blocked)
        check_answer(call->key, CHECK_BAD, "%s returned only when the stream was released (else %.2f ms).",
                     call->what, usual_ms);
    else
        check_answer(call->key, CHECK_GOOD, "%s returned while a stream waited, in %.2f ms (else %.2f ms).",
                     call->what, (double)attempt->ns / 1e6, usual_ms);
    if (!check_idles(site.waiting, CHECK_RELEASE_MS))
        check_give_up("the stream that waited did not go on");
    if (attempt->result == CUDA_SUCCESS && call->clean != NULL)
        check_need(call->clean(), call->what);
}

/* In the other process. Handles that it cannot make are zeros: opening them fails, which is said. */
static void lend(struct check_parcel *parcel)
{
    (void)cu.cuIpcGetMemHandle(&parcel->handle, check_alloc(SCRATCH_BYTES));
}

static void ask_block(void)
{
    static struct attempt attempt;

    check_there(lend, &site.peers);
    site.waiting = check_stream();
    site.other = check_stream();
    site.scratch = check_alloc(CHECK_PAGE_BYTES);
    site.word = check_pinned(CHECK_PAGE_BYTES, &site.word_at);
    site.page = check_page(0, true);
    site.hold = check_hold_make();
    /* Whether streams can wait at all, before the first call. */
    check_hold_begin(&site.hold, site.waiting);
    check_hold_end(&site.hold);
    if (!check_idles(site.waiting, CHECK_RELEASE_MS))
        check_give_up("a stream goes on waiting for a word of pinned memory that the host has stored");
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        answer_call(&calls[i], &attempt);
}

#define HELPER_BAD "The helper makes this call when every lane has been seen idle, so memory comes back later."

const struct check_question check_block = {
    .name = "block", .ask = ask_block, .has_other = true, .opens_handles = true, .limit_ms = 14000,
    .lines = {
        { "block.alloc", "A tensor can be made while a lane waits.",
          "Boxcar allocates without its lock, so a peer's death can still release the lane; the caller waits." },
        { "block.free", "Slabs can be freed at any time.", HELPER_BAD },
        { "block.stream", "Lanes may be opened at any time.",
          "A lane that is opened later may wait for others; Boxcar holds no lock meanwhile." },
        { "block.register", "Peers can be opened at any time.",
          "The helper makes this call; until it returns, the host waits for the peer, not a stream." },
        { "block.unregister", "Peers can be closed at any time.",
          "Closing a job may wait for lanes, some seconds at most." },
        { "block.open", "A peer's slab can be mapped while a lane waits.",
          "The helper makes this call; a tensor of a slab that is not mapped yet waits for the lane." },
        { "block.close", "A peer's slab can be unmapped at any time.", HELPER_BAD },
        { "block.module", "Kernels can be loaded at any time.",
          "Networks load their kernels when they are created, not while they run." },
        { "block.copy", "DEVICE_WORDS can look at words while a lane waits.",
          "DEVICE_WORDS cannot look at a word while a lane waits." },
        { "block.write", "Marks of other lanes go on.",
          "One lane that waits holds up all marks: words are of no use." },
    },
};
