/* SPDX-License-Identifier: MIT */
/*
 * How long calls take, for inspectors: one call in 64, at random, or all (BX_HIST=all), or none (BX_HIST=off), divided
 * into queue, handler and reply.
 *
 * The caller records when a measured call begins and marks the request. The callee records when its handler begins and
 * ends, and sends both with the reply. The caller then has all four times, and counts them in the page of its own
 * segment that belongs to this function of this peer. Why there and not at the callee: so one worker writes all of a
 * page, and only the caller knows how long the reply took.
 *
 * At random, because in a program that calls three functions in turn a fixed step would always measure the same one.
 * Each thread has a countdown of its own, so a call that is not measured costs one decrement. A reply has 16 bits for
 * the handler's duration: its 10 leading bits and their shift. The error is less than 1/512; a bucket a fifth.
 */
#include "observe.h"

#include <errno.h>
#include <stdlib.h>

#define ONE_IN 64
#define MANTISSA_BITS 10

static _Thread_local uint32_t countdown = 1;      /* the first call of a thread is measured */

int bxi_hist_every(const char *text, uint32_t *every)
{
    if (text == NULL || text[0] == '\0')
        *every = ONE_IN;
    else if (strcmp(text, "all") == 0)
        *every = 1;
    else if (strcmp(text, "off") == 0)
        *every = 0;
    else
        return bx_fail(-EINVAL, "BX_HIST is '%s'; it is all, off, or not set (one call in %d)", text, ONE_IN);
    return 0;
}

/* The number of calls until the next measured one: 1 to 2 * every - 1, `every` on average. */
BXI_COLD static uint32_t draw(uint32_t every)
{
    static _Thread_local uint64_t state;

    if (every <= 1)
        return 1;
    if (state == 0)
        state = bxi_now_ns() | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return 1 + (uint32_t)((state >> 32) % (2 * every - 1));
}

uint64_t bxi_hist_begin(const struct bx_job *job)
{
    if (job->observe->hist_every == 0 || --countdown > 0)
        return 0;
    countdown = draw(job->observe->hist_every);
    return bxi_now_ns();
}

void bxi_hist_again(const struct bx_job *job, uint64_t began_ns)
{
    if (job->observe->hist_every != 0)
        countdown = began_ns != 0 ? 1 : countdown + 1;
}

uint16_t bxi_span_pack(uint64_t ns)
{
    uint32_t shift = 0;

    if (ns >> MANTISSA_BITS != 0)
        shift = 64 - MANTISSA_BITS - (uint32_t)__builtin_clzll(ns);
    return (uint16_t)(shift << MANTISSA_BITS | (uint32_t)(ns >> shift));
}

uint64_t bxi_span_unpack(uint16_t span)
{
    uint32_t shift = span >> MANTISSA_BITS;
    uint64_t mantissa = span & ((1u << MANTISSA_BITS) - 1);

    return shift > 64 - MANTISSA_BITS ? UINT64_MAX : mantissa << shift;
}

/* Lock. The page of a function of a peer; NULL: no page is left, or no memory. */
static struct bxi_hist *page_of(struct bx_job *job, struct bxi_hist ***pages, const struct bxi_measured *measured)
{
    struct bxi_hist *hist;
    uint32_t count;

    if (*pages == NULL)
        *pages = calloc(BXI_FUNCTION_MAX, sizeof(struct bxi_hist *));
    if (*pages == NULL || (*pages)[measured->function] != NULL || job->observe->hist_full)
        return *pages != NULL ? (*pages)[measured->function] : NULL;
    /* Relaxed: written under the lock only. */
    count = bxi_load_relaxed(&job->control->header.hist_count);
    if (count == BXI_HIST_MAX ||
        bxi_segment_allocate(&job->segment, bxi_hist_offset(count), sizeof(struct bxi_hist)) < 0) {
        job->observe->hist_full = true;
        return NULL;
    }
    hist = bxi_segment_at(&job->segment, bxi_hist_offset(count));
    memcpy(hist->name, measured->name, BXI_NAME_BYTES);
    hist->who = (uint64_t)measured->rank | (uint64_t)measured->function << 16;
    /* [hist] release, for inspectors in other processes: name and who are written. */
    bxi_store_release(&job->control->header.hist_count, count + 1);
    return (*pages)[measured->function] = hist;
}

static void add(struct bxi_hist *hist, enum bxi_leg leg, uint64_t ns)
{
    bxi_count(&hist->bucket[leg][bxi_hist_bucket(ns)], 1);
    bxi_count(&hist->sum_ns[leg], ns);
    /* Relaxed: for inspectors. */
    if (ns > bxi_load_relaxed(&hist->max_ns[leg]))
        bxi_store_relaxed(&hist->max_ns[leg], ns);
}

static uint64_t within(uint64_t least, uint64_t value, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

void bxi_hist_end(struct bx_job *job, struct bxi_hist ***pages, const struct bxi_measured *measured)
{
    uint64_t sent_ns = measured->sent_ns, read_ns = bxi_now_ns(), done_ns, begin_ns, handler_ns;
    struct bxi_hist *hist = page_of(job, pages, measured);

    if (hist == NULL)
        return;
    /* The peer's times are input: they are clamped, so the legs always add up to what was measured here. */
    done_ns = within(sent_ns, measured->done_ns, read_ns);
    handler_ns = within(0, bxi_span_unpack(measured->span), done_ns - sent_ns);
    begin_ns = done_ns - handler_ns;
    add(hist, BXI_LEG_QUEUE, begin_ns - sent_ns);
    add(hist, BXI_LEG_HANDLER, handler_ns);
    add(hist, BXI_LEG_REPLY, read_ns - done_ns);
    add(hist, BXI_LEG_WHOLE, read_ns - sent_ns);
}
