/* SPDX-License-Identifier: MIT */
/*
 * How two processes share the GPU's time. Without MPS it gives each process a slice; the questions are whether a
 * process whose stream only waits takes slices from another, and what a hand-over between two streams costs, while the
 * GPU has nothing else to do and while one of the two keeps it busy.
 */
#include "side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES ((size_t)16 << 20)
#define MEASURE_MS 150u
#define ROUNDS 20
#define BUSY_S 0.005                     /* for so long the copies that are put at a time take */
#define BUSY_COPIES 512                 /* at most */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* ---- The owner ------------------------------------------------------------------------------- */

struct ping {
    struct CUstream_st *stream, *busy_stream;
    unsigned long long word_at, from, to;
    bxi_a64 *answer;                    /* the peer's word */
    unsigned copies;                    /* that keep the GPU busy */
};

/* Keeps the GPU busy with copies, if there are none left. */
static void keep_busy(struct check_side *side, const struct ping *ping)
{
    if (check_is_waiting(side, ping->busy_stream))
        return;
    for (unsigned i = 0; i < ping->copies; i++)
        check_need(side, side->cu->cuMemcpyAsync(ping->to, ping->from, COPY_BYTES, ping->busy_stream),
                   "cuMemcpyAsync");
}

/* From a write on this process's stream until the host sees what the peer's stream, which waited for it, wrote. */
static void answer_handover(struct check_side *side, const struct ping *ping, const char *key, bool is_busy)
{
    static unsigned step = 3;
    static uint64_t value;
    double us[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start_ns, end_ns;

        check_await(side, step);                    /* the peer's stream waits */
        check_sleep_ms(1);
        if (is_busy)
            keep_busy(side, ping);
        start_ns = check_now_ns();
        end_ns = start_ns + CHECK_RELEASE_MS * UINT64_C(1000000);
        check_need(side, check_write_word(side, ping->stream, ping->word_at, ++value), "cuStreamWriteValue64");
        while (check_load_word(ping->answer) != value) {
            if (check_now_ns() > end_ns) {
                check_answer(side, key, CHECK_BAD, "A hand-over did not end within %u ms.", CHECK_RELEASE_MS);
                check_give_up(side, "a hand-over did not end");
            }
            bxi_pause();
        }
        us[i] = (double)(check_now_ns() - start_ns) / 1e3;
        check_reach(side, step++);
    }
    qsort(us, ROUNDS, sizeof(us[0]), compare);
    check_figure(side, key, us[ROUNDS / 2], "us");
    check_answer(side, key, CHECK_NOTE, "From stream to stream and back to the host: %.0f us, the median of %d; at "
                 "most %.0f us.", us[ROUNDS / 2], ROUNDS, us[ROUNDS - 1]);
}

static void share_owner(struct check_side *side)
{
    bxi_a64 *page = check_page(side, 0, true);
    struct ping ping = { .answer = check_page(side, 1, false) };
    struct check_gate gate;
    unsigned result;

    check_open(side);
    ping.stream = check_stream(side);
    ping.busy_stream = check_stream(side);
    gate = check_gate_make(side);
    check_reach(side, 1);
    check_await(side, 1);                           /* the peer has measured */
    check_gate_shut(side, &gate, ping.stream);
    check_reach(side, 2);
    check_await(side, 2);                           /* and again */
    check_gate_open(&gate);
    /* [check.number] acquire, pairs with the release in answer_throughput. */
    ping.copies = (unsigned)bxi_load_acquire(&side->shared->number[1]);
    result = check_register_page(side, page, 0, &ping.word_at);
    if (result != CUDA_SUCCESS)
        check_skip(side, "the owner's page cannot be registered: %s", check_name(side, result));
    ping.from = check_alloc(side, COPY_BYTES);
    ping.to = check_alloc(side, COPY_BYTES);
    answer_handover(side, &ping, "share.handover", false);
    answer_handover(side, &ping, "share.busy", true);
}

/* ---- The peer -------------------------------------------------------------------------------- */

static double gb_per_s(struct check_side *side, unsigned long long from, unsigned long long to,
                       struct CUstream_st *stream)
{
    uint64_t start_ns = check_now_ns(), now_ns = start_ns;
    uint64_t bytes = 0;

    while (now_ns - start_ns < MEASURE_MS * UINT64_C(1000000)) {
        for (int i = 0; i < 4; i++)
            check_need(side, side->cu->cuMemcpyAsync(to, from, COPY_BYTES, stream), "cuMemcpyAsync");
        check_finish(side, stream, "copies on the device");
        bytes += 4 * COPY_BYTES;
        now_ns = check_now_ns();
    }
    return (double)bytes / (double)(now_ns - start_ns);
}

static void answer_throughput(struct check_side *side, struct CUstream_st *stream)
{
    unsigned long long from = check_alloc(side, COPY_BYTES), to = check_alloc(side, COPY_BYTES);
    double alone, beside, copies;

    (void)gb_per_s(side, from, to, stream);         /* the first copies are slower */
    check_await(side, 1);
    alone = gb_per_s(side, from, to, stream);
    copies = BUSY_S * alone * 1e9 / (double)COPY_BYTES;
    /* [check.number] release, pairs with the acquire in share_owner. */
    bxi_store_release(&side->shared->number[1], copies > BUSY_COPIES ? BUSY_COPIES : (uint64_t)copies + 1);
    check_reach(side, 1);
    check_await(side, 2);
    beside = gb_per_s(side, from, to, stream);
    check_reach(side, 2);
    check_figure(side, "share.waiting", beside / alone, "of the throughput alone");
    check_answer(side, "share.waiting", beside > 0.8 * alone ? CHECK_GOOD : CHECK_BAD,
                 "Copies run at %.1f GB/s, and at %.1f GB/s while a stream of another process waits.", alone, beside);
}

static void share_peer(struct check_side *side)
{
    unsigned long long other_at = 0, own_at = 0;
    struct CUstream_st *stream;
    unsigned result;

    check_open(side);
    stream = check_stream(side);
    answer_throughput(side, stream);
    result = check_register_page(side, check_page(side, 1, true), 0, &own_at);
    if (result == CUDA_SUCCESS)
        result = check_register_page(side, check_page(side, 0, true), 0, &other_at);
    if (result != CUDA_SUCCESS)
        check_skip(side, "a page cannot be registered: %s", check_name(side, result));
    for (unsigned i = 0; i < 2 * ROUNDS; i++) {
        check_need(side, check_wait_word(side, stream, other_at, i + 1), "cuStreamWaitValue64");
        check_need(side, check_write_word(side, stream, own_at, i + 1), "cuStreamWriteValue64");
        check_reach(side, 3 + i);
        check_await(side, 3 + i);
    }
}

const struct check_question check_share = {
    .name = "share", .limit_ms = 10000, .owner = share_owner, .peer = share_peer,
    .lines = {
        { "share.waiting", "A worker whose stream waits costs the others nothing.",
          "A worker whose stream waits takes GPU time from the others: run MPS, or use HOST_SYNC "
          "(BX_GPU_ORDER=sync)." },
        { "share.handover", "That is what one hand-over between two workers' streams costs.",
          "HOST_WORDS hangs: use another order (BX_GPU_ORDER)." },
        { "share.busy", "The same while one worker keeps the GPU busy; milliseconds are slices of time, which MPS "
          "avoids.", "HOST_WORDS hangs on a busy GPU: use another order (BX_GPU_ORDER)." },
        { NULL, NULL, NULL },
    },
};
