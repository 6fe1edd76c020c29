/* SPDX-License-Identifier: MIT */
/*
 * Which calls do not return while one stream of the process waits. For each call: what it needs is prepared, the stream
 * is made to wait, a thread makes the call; if it has not returned after CHECK_PATIENCE_MS it is blocked, the stream is
 * released, and the call must return. The peer owns the memory that is opened and closed here.
 */
#include "side.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define SCRATCH_BYTES ((size_t)4 << 20)

/* An empty kernel; the driver compiles it. */
static const char module_text[] =
    ".version 6.4\n.target sm_50\n.address_size 64\n.visible .entry gpucheck()\n{\n    ret;\n}\n";

struct site {
    struct check_side *side;
    struct check_gate gate;
    struct CUstream_st *waiting, *other;
    unsigned long long scratch, block, opened, word_at;
    bxi_a64 *word;                      /* pinned */
    bxi_a64 *page;
    struct CUmod_st *module;
    uint64_t value;
};

struct call {
    const char *key;
    const char *what;                   /* in a sentence: WHAT returned */
    unsigned (*prepare)(struct site *site);     /* NULL: nothing */
    unsigned (*make)(struct site *site);
    unsigned (*clean)(struct site *site);       /* after it succeeded; NULL: nothing */
};

/* ---- The calls ------------------------------------------------------------------------------- */

static unsigned alloc(struct site *site)
{
    return site->side->cu->cuMemAlloc_v2(&site->block, SCRATCH_BYTES);
}

static unsigned free_block(struct site *site)
{
    return site->side->cu->cuMemFree_v2(site->block);
}

static unsigned create_stream(struct site *site)
{
    struct CUstream_st *stream;

    return site->side->cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
}

static unsigned register_page(struct site *site)
{
    return site->side->cu->cuMemHostRegister_v2((void *)site->page, CHECK_PAGE_BYTES,
                                                CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

static unsigned unregister_page(struct site *site)
{
    return site->side->cu->cuMemHostUnregister((void *)site->page);
}

static unsigned open_handle(struct site *site)
{
    return check_open_handle(site->side, 0, &site->opened);
}

static unsigned close_handle(struct site *site)
{
    return site->side->cu->cuIpcCloseMemHandle(site->opened);
}

static unsigned open_event(struct site *site)
{
    struct CUevent_st *event;

    return site->side->cu->cuIpcOpenEventHandle(&event, site->side->shared->event);
}

static unsigned load_module(struct site *site)
{
    return site->side->cu->cuModuleLoadData != NULL
        ? site->side->cu->cuModuleLoadData(&site->module, module_text) : CUDA_ERROR_NOT_SUPPORTED;
}

static unsigned unload_module(struct site *site)
{
    return site->side->cu->cuModuleUnload(site->module);
}

/* 8 bytes to memory that is not pinned, and back: both end before they return. */
static unsigned copy_small(struct site *site)
{
    const struct bxi_cuda *cu = site->side->cu;
    uint64_t value = 0;
    unsigned result = cu->cuMemcpyHtoDAsync_v2(site->scratch, &value, sizeof(value), site->other);

    if (result == CUDA_SUCCESS)
        result = cu->cuMemcpyDtoHAsync_v2(&value, site->scratch, sizeof(value), site->other);
    return result == CUDA_SUCCESS ? cu->cuStreamSynchronize(site->other) : result;
}

/* Until the host sees it. */
static unsigned write_word(struct site *site)
{
    unsigned result = check_write_word(site->side, site->other, site->word_at, ++site->value);
    uint64_t end_ns = check_now_ns() + UINT64_C(5000000000);

    while (result == CUDA_SUCCESS && check_load_word(site->word) != site->value) {
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
    { "block.event", "cuIpcOpenEventHandle", NULL, open_event, NULL },
    { "block.module", "cuModuleLoadData", NULL, load_module, unload_module },
    { "block.copy", "A copy of 8 bytes on another stream", NULL, copy_small, NULL },
    { "block.write", "A third thread's write of a word on another stream", NULL, write_word, NULL },
};

/* ---- Asking ---------------------------------------------------------------------------------- */

/* One call in a thread of its own. The last one of a process may never end. */
struct attempt {
    struct site *site;
    const struct call *call;
    unsigned result;
    uint64_t ns;
    bxi_a32 is_done;
};

static void *make_call(void *context)
{
    struct attempt *attempt = context;
    struct check_side *side = attempt->site->side;
    uint64_t start_ns;

    attempt->result = side->cu->cuCtxPushCurrent_v2(side->context);
    start_ns = check_now_ns();
    if (attempt->result == CUDA_SUCCESS)
        attempt->result = attempt->call->make(attempt->site);
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
static double baseline_ms(struct site *site, const struct call *call, unsigned *result)
{
    uint64_t start_ns;

    *result = call->prepare != NULL ? call->prepare(site) : CUDA_SUCCESS;
    start_ns = check_now_ns();
    if (*result == CUDA_SUCCESS)
        *result = call->make(site);
    start_ns = check_now_ns() - start_ns;
    if (*result == CUDA_SUCCESS && call->clean != NULL)
        *result = call->clean(site);
    return (double)start_ns / 1e6;
}

static void answer_call(struct site *site, const struct call *call, struct attempt *attempt)
{
    struct check_side *side = site->side;
    unsigned result;
    double usual_ms = baseline_ms(site, call, &result);
    bool is_blocked;
    pthread_t thread;

    if (result != CUDA_SUCCESS) {
        check_answer(side, call->key, CHECK_ABSENT, "%s fails here even while no stream waits: %s.", call->what,
                     check_name(side, result));
        return;
    }
    if (call->prepare != NULL)
        check_need(side, call->prepare(site), call->what);
    check_gate_shut(side, &site->gate, site->waiting);
    *attempt = (struct attempt){ .site = site, .call = call };
    if (pthread_create(&thread, NULL, make_call, attempt) != 0)
        check_give_up(side, "a thread cannot be made");
    is_blocked = !is_done_within(attempt, CHECK_PATIENCE_MS + (unsigned)(3 * usual_ms));
    check_gate_open(&site->gate);
    if (!is_done_within(attempt, CHECK_RELEASE_MS)) {
        check_answer(side, call->key, CHECK_BAD, "%s did not return while a stream waited, nor after its release.",
                     call->what);
        check_give_up(side, "%s hangs", call->what);
    }
    pthread_join(thread, NULL);
    if (attempt->result != CUDA_SUCCESS)
        check_answer(side, call->key, CHECK_BAD, "%s failed while a stream waited: %s.", call->what,
                     check_name(side, attempt->result));
    else if (is_blocked)
        check_answer(side, call->key, CHECK_BAD, "%s returned only when the stream was released (else %.2f ms).",
                     call->what, usual_ms);
    else
        check_answer(side, call->key, CHECK_GOOD, "%s returned while a stream waited, in %.2f ms (else %.2f ms).",
                     call->what, (double)attempt->ns / 1e6, usual_ms);
    if (!check_idles(side, site->waiting, CHECK_RELEASE_MS))
        check_give_up(side, "the stream that waited did not go on");
    if (attempt->result == CUDA_SUCCESS && call->clean != NULL)
        check_need(side, call->clean(site), call->what);
}

static void block_owner(struct check_side *side)
{
    static struct attempt attempt;
    static struct site site;

    check_open(side);
    check_await(side, 1);
    site.side = side;
    site.waiting = check_stream(side);
    site.other = check_stream(side);
    site.scratch = check_alloc(side, CHECK_PAGE_BYTES);
    site.word = check_pinned(side, CHECK_PAGE_BYTES, &site.word_at);
    site.page = check_page(side, 0, true);
    site.gate = check_gate_make(side);
    /* Whether streams can wait at all, before the first call. */
    check_gate_shut(side, &site.gate, site.waiting);
    check_gate_open(&site.gate);
    if (!check_idles(side, site.waiting, CHECK_RELEASE_MS))
        check_give_up(side, "a stream goes on waiting for a word of pinned memory that the host has stored");
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        answer_call(&site, &calls[i], &attempt);
    check_reach(side, 2);
}

/* Owns what the other side opens. Handles that it cannot make are zeros: opening them fails, which is said. */
static void block_peer(struct check_side *side)
{
    struct CUevent_st *event = NULL;

    check_open(side);
    (void)side->cu->cuIpcGetMemHandle(&side->shared->handle[0], check_alloc(side, SCRATCH_BYTES));
    (void)check_lend_event(side, &event);
    check_reach(side, 1);
    check_await(side, 2);
}

#define HELPER_BAD "The helper makes this call when every lane has been seen idle, so memory comes back later."

const struct check_question check_block = {
    .name = "block", .opens_handles = true, .limit_ms = 14000, .owner = block_owner, .peer = block_peer,
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
        { "block.event", "EVENTS can open a peer's event at any time.",
          "With EVENTS, the first wait for a peer may wait for a lane; Boxcar holds no lock meanwhile." },
        { "block.module", "Kernels can be loaded at any time.",
          "Networks load their kernels when they are created, not while they run." },
        { "block.copy", "DEVICE_WORDS can look at words while a lane waits.",
          "DEVICE_WORDS cannot look at a word while a lane waits." },
        { "block.write", "Marks of other lanes go on.",
          "One lane that waits holds up all marks: words are of no use." },
        { NULL, NULL, NULL },
    },
};
