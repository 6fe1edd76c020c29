/* SPDX-License-Identifier: MIT */
/*
 * How two processes share the GPU's time. Without MPS it gives each process a slice; the questions are whether a
 * process whose stream only waits takes slices from another, and what a hand-over between two streams costs, while the
 * GPU has nothing else to do and while one of the two keeps it busy.
 */
#include "gpucheck.h"

#include <stdlib.h>

#define COPY_BYTES ((size_t)16 << 20)
#define MEASURE_MS 150u
#define ROUNDS 20
#define BUSY_S 0.005                    /* for so long the copies that are put at a time take */
#define BUSY_COPIES 512                 /* at most */

/* ---- The other process --------------------------------------------------------------------------- */

static struct {
    struct CUstream_st *stream;
    unsigned long long from, to, asker_at, own_at;
} other;

/* Brings back how many bytes are copied in a second. */
static void measure(struct check_parcel *parcel)
{
    uint64_t start_ns = check_now_ns(), ns = 0;
    uint64_t bytes = 0;

    while (ns < MEASURE_MS * UINT64_C(1000000)) {
        for (int i = 0; i < 4; i++)
            check_need(cu.cuMemcpyAsync(other.to, other.from, COPY_BYTES, other.stream), "cuMemcpyAsync");
        check_finish(other.stream, "copies on the device");
        bytes += 4 * COPY_BYTES;
        ns = check_now_ns() - start_ns;
    }
    parcel->number = (uint64_t)((double)bytes * 1e9 / (double)ns);
}

static void warm_up(struct check_parcel *parcel)
{
    other.stream = check_stream();
    other.from = check_alloc(COPY_BYTES);
    other.to = check_alloc(COPY_BYTES);
    measure(parcel);                    /* the first copies are slower */
}

static void register_words(struct check_parcel *parcel)
{
    unsigned result = check_register_page(check_page(1, true), 0, &other.own_at);

    (void)parcel;
    if (result == CUDA_SUCCESS)
        result = check_register_page(check_page(0, true), 0, &other.asker_at);
    if (result != CUDA_SUCCESS)
        check_skip("a page cannot be registered: %s", check_name(result));
}

static void answer_asker(struct check_parcel *parcel)
{
    check_need(check_wait_word(other.stream, other.asker_at, parcel->number), "cuStreamWaitValue64");
    check_need(check_write_word(other.stream, other.own_at, parcel->number), "cuStreamWriteValue64");
}

/* ---- The asking process -------------------------------------------------------------------------- */

struct ping {
    struct CUstream_st *stream, *busy_stream;
    unsigned long long word_at, from, to;
    bxi_a64 *answer;                    /* the other's word */
    uint64_t value;
    unsigned copies;                    /* that keep the GPU busy */
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Keeps the GPU busy with copies, if there are none left. */
static void keep_busy(const struct ping *ping)
{
    if (check_is_waiting(ping->busy_stream))
        return;
    for (unsigned i = 0; i < ping->copies; i++)
        check_need(cu.cuMemcpyAsync(ping->to, ping->from, COPY_BYTES, ping->busy_stream), "cuMemcpyAsync");
}

/* From a write on this process's stream until the host sees what the other's stream, which waited for it, wrote: in
 * us. */
static double hand_over(struct ping *ping, const char *key, bool is_busy)
{
    struct check_parcel parcel = { .number = ++ping->value };
    uint64_t start_ns, end_ns;

    check_there(answer_asker, &parcel);
    check_sleep_ms(1);
    if (is_busy)
        keep_busy(ping);
    start_ns = check_now_ns();
    end_ns = start_ns + CHECK_RELEASE_MS * UINT64_C(1000000);
    check_need(check_write_word(ping->stream, ping->word_at, ping->value), "cuStreamWriteValue64");
    while (check_load_word(ping->answer) != ping->value) {
        if (check_now_ns() > end_ns) {
            check_answer(key, CHECK_BAD, "A hand-over did not end within %u ms.", CHECK_RELEASE_MS);
            check_give_up("a hand-over did not end");
        }
        bxi_pause();
    }
    return (double)(check_now_ns() - start_ns) / 1e3;
}

static void answer_handover(struct ping *ping, const char *key, bool is_busy)
{
    double us[ROUNDS];

    for (int i = 0; i < ROUNDS; i++)
        us[i] = hand_over(ping, key, is_busy);
    qsort(us, ROUNDS, sizeof(us[0]), compare);
    check_figure(us[ROUNDS / 2], "us");
    check_answer(key, CHECK_NOTE, "From stream to stream and back to the host: %.0f us, the median of %d; at most %.0f "
                 "us.", us[ROUNDS / 2], ROUNDS, us[ROUNDS - 1]);
}

/* Returns the throughput of the other process alone. */
static double answer_throughput(struct CUstream_st *stream)
{
    struct check_hold hold = check_hold_make();
    struct check_parcel alone = { 0 }, beside = { 0 };

    check_there(warm_up, &alone);
    check_there(measure, &alone);
    check_hold_begin(&hold, stream);
    check_there(measure, &beside);
    check_hold_end(&hold);
    check_figure((double)beside.number / (double)alone.number, "of the throughput alone");
    check_answer("share.waiting", (double)beside.number > 0.8 * (double)alone.number ? CHECK_GOOD : CHECK_BAD,
                 "Copies run at %.1f GB/s, and at %.1f GB/s while a stream of another process waits.",
                 (double)alone.number / 1e9, (double)beside.number / 1e9);
    return (double)alone.number;
}

static void ask_share(void)
{
    struct ping ping = { .stream = check_stream(), .busy_stream = check_stream(), .answer = check_page(1, false) };
    struct check_parcel parcel = { 0 };
    double copies = BUSY_S * answer_throughput(ping.stream) / (double)COPY_BYTES;
    unsigned result = check_register_page(check_page(0, true), 0, &ping.word_at);

    ping.copies = copies > BUSY_COPIES ? BUSY_COPIES : (unsigned)copies + 1;
    if (result != CUDA_SUCCESS)
        check_skip("the owner's page cannot be registered: %s", check_name(result));
    ping.from = check_alloc(COPY_BYTES);
    ping.to = check_alloc(COPY_BYTES);
    check_there(register_words, &parcel);
    answer_handover(&ping, "share.handover", false);
    answer_handover(&ping, "share.busy", true);
}

const struct check_question check_share = {
    .name = "share", .ask = ask_share, .has_other = true, .limit_ms = 10000,
    .lines = {
        { "share.waiting", "A worker whose stream waits costs the others nothing.",
          "A worker whose stream waits takes GPU time from the others: run MPS, or use EVENTS "
          "(BX_GPU_ORDER=events)." },
        { "share.handover", "That is what one hand-over between two workers' streams costs.",
          "HOST_WORDS hangs: use another order (BX_GPU_ORDER)." },
        { "share.busy", "The same while one worker keeps the GPU busy; milliseconds are slices of time, which MPS "
          "avoids.", "HOST_WORDS hangs on a busy GPU: use another order (BX_GPU_ORDER)." },
    },
};
