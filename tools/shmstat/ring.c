/* SPDX-License-Identifier: MIT */
/*
 * Rings, read from outside.
 *
 * The oldest unread frame of a ring is the frame at its consumer's read position. Producer and consumer may move
 * meanwhile. So after the head of the frame has been copied, its commit word (which holds the sequence of the position)
 * and the read position are read again. If either differs, the copied head may be another frame's, and the attempt is
 * repeated. A ring that moves in each of LOOKS attempts has no old frame.
 *
 * A frame holds the time at which it was sent. A request does not: it holds the deadline in that place, and the time is
 * in the caller's row of the call.
 */
#include "ring.h"

#include "state.h"
#include "text.h"

#include "rpc/frame.h"

#include <math.h>
#include <time.h>

#define LOOKS 16
#define PADDING_BIT 0x80000000u

/* ---- Words -------------------------------------------------------------------------------------- */

enum stat_record stat_judge(uint64_t word, uint64_t pos, uint64_t *bytes)
{
    uint64_t offset = pos & (BXI_RING_BYTES - 1), length = word & ~(uint64_t)PADDING_BIT & UINT32_MAX;

    *bytes = 0;
    if (word == 0)
        return STAT_NO_RECORD;
    if (word >> 32 != (uint32_t)(pos / BXI_LINE + 1))
        return STAT_BAD_RECORD;
    *bytes = length;
    if (word & PADDING_BIT)
        return offset != 0 && offset + length == BXI_RING_BYTES ? STAT_PADDING : STAT_BAD_PLACE;
    if (length == 0 || length > BXI_FRAME_MAX)
        return STAT_BAD_RECORD;
    *bytes = bxi_record_bytes(length);
    return offset + 8 + length <= BXI_RING_BYTES ? STAT_RECORD : STAT_BAD_PLACE;
}

bool stat_read_word(const struct stat_worker *worker, uint64_t offset, uint64_t *word)
{
    return stat_pread(&worker->segment, word, sizeof(*word), offset) == 0;
}

bool stat_read_ring_word(const struct stat_worker *worker, int to, uint64_t pos, uint64_t *word)
{
    return stat_read_word(worker, bxi_ring_offset(to) + (pos & (BXI_RING_BYTES - 1)), word);
}

bool stat_read_write_pos(const struct stat_worker *worker, int to, uint64_t *pos)
{
    return stat_read_word(worker, STAT_AT(tables, pair_counters, to, write_pos), pos);
}

bool stat_read_read_pos(const struct stat_worker *peer, int from, uint64_t *pos)
{
    return stat_read_word(peer, STAT_AT(tables, pair_counters, from, read_pos), pos);
}

bool stat_read_credit(const struct stat_worker *peer, int from, uint64_t *credit)
{
    return stat_read_word(peer, STAT_AT(control, credit, from, position), credit);
}

/* ---- The oldest unread frame -------------------------------------------------------------------- */

/* The later of the consumer's own count and what it has published: either may lag. */
static bool read_consumed(const struct stat_worker *peer, int from, uint64_t *pos)
{
    uint64_t credit;

    if (!stat_read_read_pos(peer, from, pos) || !stat_read_credit(peer, from, &credit))
        return false;
    if ((int64_t)(credit - *pos) > 0)
        *pos = credit;
    return *pos % BXI_LINE == 0;
}

/* CLOCK_MONOTONIC, when the caller began that call; 0 if the row belongs to another call by now. */
static uint64_t request_since(const struct stat_worker *worker, int to, uint64_t id)
{
    struct bxi_call_row row;
    uint64_t offset = bxi_calls_offset(to) + (id & 0xffff) * sizeof(row), after;

    if ((id & 0xffff) >= BXI_CALLS_MAX || stat_pread(&worker->segment, &row, sizeof(row), offset) < 0 ||
        !stat_read_word(worker, offset, &after))
        return 0;
    return (stat_word(&row.id) & ~BXI_CALL_GIVEN_UP) == id && (after & ~BXI_CALL_GIVEN_UP) == id
               ? stat_word(&row.since) >> 8 : 0;
}

/* 0 if it is not known. */
static uint64_t sent_ns(const struct stat_worker *worker, int to, const struct bxi_frame *frame)
{
    switch (frame->kind) {
    case BXI_REQUEST:
    case BXI_REQUESTS: return request_since(worker, to, frame->id);
    case BXI_ONEWAY: return frame->id;
    case BXI_REPLY:
    case BXI_REPLIES:
    case BXI_CANCEL:
    case BXI_RREF: return frame->sent_ns;
    default: return 0;
    }
}

enum found { NOTHING, FRAME, MOVED, WRONG };

/* Copies the head of the first record at pos, or after padding at pos. */
static enum found read_head(const struct stat_worker *worker, int to, uint64_t pos, struct bxi_frame *frame)
{
    uint64_t word, again, bytes;
    enum stat_record record = STAT_NO_RECORD;

    for (int step = 0; step < 2; step++) {
        if (!stat_read_ring_word(worker, to, pos, &word))
            return WRONG;
        record = stat_judge(word, pos, &bytes);
        if (record != STAT_PADDING)
            break;
        pos += bytes;
    }
    if (record == STAT_NO_RECORD)
        return NOTHING;
    if (record != STAT_RECORD || (word & UINT32_MAX) < sizeof(*frame))
        return WRONG;
    if (stat_pread(&worker->segment, frame, sizeof(*frame),
                   bxi_ring_offset(to) + (pos & (BXI_RING_BYTES - 1)) + sizeof(word)) < 0 ||
        !stat_read_ring_word(worker, to, pos, &again))
        return WRONG;
    return again == word ? FRAME : MOVED;
}

/* Age in seconds of the oldest unread frame of that ring, as worker.unread_s. */
static double oldest_unread(const struct stat_job *job, const struct stat_worker *worker, int to)
{
    const struct stat_worker *peer = stat_reader(job, (uint32_t)to);
    struct bxi_frame frame;
    uint64_t pos, now, since_ns;

    /* The ring of a worker to itself is private memory. */
    if (peer == NULL || to == worker->rank || stat_word(&worker->control->pair[to].open) != 1)
        return NAN;
    for (int look = 0; look < LOOKS; look++) {
        if (!read_consumed(peer, worker->rank, &pos))
            return NAN;
        enum found found = read_head(worker, to, pos, &frame);
        since_ns = found == FRAME ? sent_ns(worker, to, &frame) : 0;
        if (!read_consumed(peer, worker->rank, &now))
            return NAN;
        if (now != pos || found == MOVED)
            continue;
        if (found == NOTHING)
            return -1;
        return since_ns != 0 ? stat_since(since_ns, CLOCK_MONOTONIC) : NAN;
    }
    return NAN;
}

void stat_unread_read(struct stat_job *job)
{
    for (struct stat_worker *worker = NULL; (worker = stat_next_reader(job, worker)) != NULL;)
        for (int to = 0; to < BXI_WORKERS_MAX; to++)
            worker->unread_s[to] = oldest_unread(job, worker, to);
}
