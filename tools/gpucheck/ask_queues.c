/* SPDX-License-Identifier: MIT */
/*
 * How many streams may wait before they hold up another one. Streams share hardware queues, and a stream that waits
 * blocks what comes behind it in its queue: the marks of another lane, or the copies of the side stream.
 *
 * The side stream is made first, as Boxcar makes it, then 40 others; all are used once before the first one waits,
 * because a driver may wait for all streams where it makes something. Then one after the other is made to wait. After
 * each, a write of 8 bytes by the side stream must end.
 */
#include "gpucheck.h"

#define STREAMS 40
#define WRITE_MS 400u

/* Whether a write of 8 bytes on the stream ends. */
static bool writes(struct CUstream_st *stream, unsigned long long scratch)
{
    check_fill(scratch, 1, sizeof(uint64_t), stream);
    return check_idles(stream, WRITE_MS);
}

static void ask_queues(void)
{
    unsigned long long scratch = check_alloc(CHECK_PAGE_BYTES);
    struct check_hold hold = check_hold_make();
    struct CUstream_st *side_stream = check_stream(), *streams[STREAMS];
    unsigned held = 0;

    for (int i = 0; i < STREAMS; i++)
        streams[i] = check_stream();
    for (int i = 0; i < STREAMS; i++)
        if (!writes(streams[i], scratch) || !writes(side_stream, scratch))
            check_give_up("a write of 8 bytes did not end, though no stream waited");
    while (held < STREAMS) {
        check_hold_begin(&hold, streams[held]);
        if (!writes(side_stream, scratch))
            break;
        held++;
    }
    check_hold_end(&hold);
    check_figure(held, "streams");
    if (held == STREAMS)
        check_answer("queues", CHECK_GOOD, "%u streams waited, and the side stream's writes ended.", held);
    else if (!check_idles(side_stream, CHECK_RELEASE_MS))
        check_answer("queues", CHECK_BAD, "With %u streams that wait the side stream is held up, and not even their "
                     "release frees it.", held + 1);
    else
        check_answer("queues", held >= CHECK_LANES_MIN ? CHECK_NOTE : CHECK_BAD,
                     "%u streams may wait; with %u, the side stream is held up.", held, held + 1);
}

#define SETS "Boxcar sets 32 where CUDA_DEVICE_MAX_CONNECTIONS is not set."

const struct check_question check_queues = {
    .name = "queues", .ask = ask_queues, .decides = true, .limit_ms = 6000,
    .lines = { { "queues", "That many lanes may wait at a time. " SETS,
                 "Words are of no use: marks would be held up. " SETS } },
};
