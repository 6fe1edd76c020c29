/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: one ring, and the lease words and rows of calls behind it.
 *
 * The write position that inspectors can read (pair_counters.write_pos) is stored after the record's commit word. So
 * the producer may be ahead of it by one record and the padding before that record; a producer that was killed
 * between the two stores leaves it so. The producer's true position is the first commit word that is 0.
 *
 * The producer learns what was consumed in two ways: from the credit word, which the consumer publishes for a quarter
 * of the ring at a time, and from each frame that comes back. So it may be ahead of the credit word by a quarter of
 * the ring, and overwrite as much.
 *
 * One attempt:  1. read the write position s   2. copy the ring   3. read write position, credit, read position again
 * A record less than a ring before the position of step 3, plus what may be in progress beyond it, cannot have been
 * overwritten in the copy. A record before s was complete before step 2. So every record between the two is complete
 * in the copy, whatever producer and consumer do meanwhile. The walk begins where a record is known to begin: at the
 * credit or the read position, whichever is later. The consumer's words lag by one record; if the ring is so full
 * that the first record may have been overwritten, an incomplete first record is no violation. After s the words are
 * read one by one, each after its predecessor, as the consumer does. An apparent violation is read once more; if a
 * position has moved past it, the attempt does not count and is repeated.
 *
 * The ring of a worker to itself is private memory: only its positions can be seen.
 */
#include "check.h"
#include "ring.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>

#define ATTEMPTS 100
/* A record and the padding before it: a position may lag by so much, and as much may be in progress. */
#define BEHIND_MAX (2 * (BXI_FRAME_MAX + 2 * (uint64_t)BXI_LINE))
#define UNPUBLISHED_MAX (BXI_RING_BYTES / 4)

typedef unsigned long long ull;

enum look { SETTLED, MOVED };

struct walk {
    struct stat_check own, others;      /* of the producer, the consumer */
    const struct stat_worker *worker;
    const struct stat_worker *peer;     /* NULL if its segment cannot be read: then there is no credit */
    int to;
    unsigned char *copy;                /* of the ring; NULL for the one to itself */
    uint64_t begin;                     /* where the walk begins */
    uint64_t end;                       /* the write position that was read */
    bool is_sure;                       /* begin cannot have been overwritten */
    uint64_t records;
};

bool stat_write_end(const struct stat_worker *worker, int to, uint64_t *end)
{
    uint64_t pos, word, bytes;

    if (!stat_read_write_pos(worker, to, &pos))
        return false;
    *end = pos;
    if (to == worker->rank) {
        *end = pos + BEHIND_MAX;
        return true;
    }
    /* Padding, a record. */
    for (int step = 0; step < 2; step++) {
        if (!stat_read_ring_word(worker, to, *end, &word))
            return false;
        enum stat_record kind = stat_judge(word, *end, &bytes);
        if (kind != STAT_RECORD && kind != STAT_PADDING)
            return true;
        *end += bytes;
        if (kind == STAT_RECORD)
            return true;
    }
    return true;
}

/* ---- Records ------------------------------------------------------------------------------------ */

static const char *kind_text(enum stat_record kind)
{
    switch (kind) {
    case STAT_NO_RECORD: return "it is 0";
    case STAT_BAD_PLACE: return "what it says does not end within the ring, or padding not at its end";
    default: return "it has not the sequence of its position, or no possible length";
    }
}

/* True if the producer may have overwritten pos by now. */
static bool may_be_overwritten(const struct walk *walk, uint64_t pos)
{
    uint64_t end;

    return !stat_read_write_pos(walk->worker, walk->to, &end) ||
           (int64_t)(end + 2 * BEHIND_MAX - pos) > (int64_t)BXI_RING_BYTES;
}

/* A word of the copy, before the write position, that is no record: read it again, unless it has been freed since. */
static enum look confirm(struct walk *walk, uint64_t pos, enum stat_record kind)
{
    uint64_t word, credit = pos, bytes;

    /* Padding and a record may have been consumed and overwritten; the positions do not show it yet. */
    if (walk->records == 0 && !walk->is_sure)
        return MOVED;
    if (!stat_read_ring_word(walk->worker, walk->to, pos, &word) ||
        (walk->peer != NULL && !stat_read_read_pos(walk->peer, walk->worker->rank, &credit)))
        return SETTLED;             /* truncated meanwhile: reported elsewhere */
    /* Read after the word: if the record is not consumed yet, the word was its own. */
    if (stat_judge(word, pos, &bytes) != kind || ((int64_t)(credit - pos) >= 0 && may_be_overwritten(walk, pos)))
        return MOVED;
    stat_expect(&walk->own, false, kind == STAT_BAD_PLACE ? "I8" : "I7", walk->to,
                "the record at %llu, before the write position %llu, is not whole: commit word %016llx: %s",
                (ull)pos, (ull)walk->end, (ull)word, kind_text(kind));
    return SETTLED;
}

/* Walks the copy from *pos to the write position. *pos ends there, or at the first violation. */
static enum look walk_copy(struct walk *walk, uint64_t *pos)
{
    while ((int64_t)(walk->end - *pos) > 0) {
        uint64_t word, bytes;

        memcpy(&word, walk->copy + (*pos & (BXI_RING_BYTES - 1)), sizeof(word));
        enum stat_record kind = stat_judge(word, *pos, &bytes);
        if (kind != STAT_RECORD && kind != STAT_PADDING)
            return confirm(walk, *pos, kind);
        *pos += bytes;
        walk->records += kind == STAT_RECORD;
    }
    stat_expect(&walk->own, *pos == walk->end, "I7", walk->to,
                "the last record ends at %llu, and the write position is %llu", (ull)*pos, (ull)walk->end);
    return SETTLED;
}

/* True if the producer has moved since the attempt began. */
static bool has_moved(const struct walk *walk)
{
    uint64_t now;

    return !stat_read_write_pos(walk->worker, walk->to, &now) || now != walk->end;
}

/* From the write position on: at most padding and one record that the position does not cover yet, then 0. */
static void walk_tail(struct walk *walk)
{
    uint64_t pos = walk->end, word, bytes;
    bool has_record = false;

    for (int step = 0; step < 3; step++) {
        if (!stat_read_ring_word(walk->worker, walk->to, pos, &word))
            return;
        enum stat_record kind = stat_judge(word, pos, &bytes);
        if (kind == STAT_NO_RECORD)
            return;
        if (has_moved(walk))
            return;         /* the words belong to a later state */
        if (!stat_expect(&walk->own, !has_record, "I7", walk->to,
                         "the write position is %llu, and more than one record lies behind it", (ull)walk->end) ||
            !stat_expect(&walk->own, kind == STAT_RECORD || kind == STAT_PADDING,
                         kind == STAT_BAD_PLACE ? "I8" : "I7", walk->to,
                         "the commit word at %llu, where the next record will be, is %016llx and neither 0 nor a "
                         "record", (ull)pos, (ull)word))
            return;
        has_record = kind == STAT_RECORD;
        pos += bytes;
    }
}

/* ---- Positions ---------------------------------------------------------------------------------- */

/* 1 if the two positions fit; 0, after reporting, if not; -1 if they moved. */
static int check_positions(struct walk *walk)
{
    uint64_t credit, end;

    if (!stat_read_write_pos(walk->worker, walk->to, &walk->end))
        return 0;
    if (!stat_expect(&walk->own, walk->end % BXI_LINE == 0, "I8", walk->to,
                     "the write position is %llu, no multiple of %u", (ull)walk->end, BXI_LINE))
        return 0;
    if (walk->peer == NULL || !stat_read_credit(walk->peer, walk->worker->rank, &credit))
        return 1;
    if (!stat_expect(&walk->others, credit % BXI_LINE == 0, "I6", walk->worker->rank,
                     "credit is %llu, no multiple of %u", (ull)credit, BXI_LINE) ||
        !stat_expect(&walk->others, (int64_t)(walk->end - credit) <= (int64_t)(BXI_RING_BYTES + UNPUBLISHED_MAX), "I6",
                     walk->worker->rank, "credit is %llu, %llu bytes behind the write position %llu of a ring of %u",
                     (ull)credit, (ull)(walk->end - credit), (ull)walk->end, BXI_RING_BYTES))
        return 0;
    if ((int64_t)(credit - walk->end) <= 0)
        return 1;
    if (!stat_write_end(walk->worker, walk->to, &end) || (int64_t)(credit - end) <= 0)
        return 1;
    if (has_moved(walk))
        return -1;
    return stat_expect(&walk->others, false, "I6", walk->worker->rank, "credit is %llu, and the write position %llu",
                       (ull)credit, (ull)end);
}

/* Where the walk begins: the later of credit and read position. */
static bool find_begin(struct walk *walk)
{
    uint64_t begin = walk->end, read_pos, now;

    if (walk->peer != NULL) {
        if (!stat_read_credit(walk->peer, walk->worker->rank, &begin) ||
            !stat_read_read_pos(walk->peer, walk->worker->rank, &read_pos))
            return false;
        if (read_pos % BXI_LINE == 0 && (int64_t)(read_pos - begin) > 0)
            begin = read_pos;
    }
    if ((int64_t)(walk->end - begin) < 0)
        begin = walk->end;
    walk->begin = begin;
    if (!stat_read_write_pos(walk->worker, walk->to, &now))
        return false;
    walk->is_sure = (int64_t)(now + 2 * BEHIND_MAX - begin) <= (int64_t)BXI_RING_BYTES;
    return true;
}

static enum look look_at_ring(struct walk *walk)
{
    int fit = check_positions(walk);
    size_t count = walk->own.findings->count;
    uint64_t pos;

    if (fit <= 0)
        return fit < 0 ? MOVED : SETTLED;
    if (walk->copy == NULL ||
        stat_pread(&walk->worker->segment, walk->copy, BXI_RING_BYTES, bxi_ring_offset(walk->to)) < 0 ||
        !find_begin(walk))
        return SETTLED;
    walk->records = 0;
    if (!stat_expect(&walk->others, walk->end - walk->begin <= BXI_RING_BYTES + BEHIND_MAX, "I6", walk->worker->rank,
                     "neither its credit nor its read position is less than a ring behind the write position %llu",
                     (ull)walk->end))
        return SETTLED;
    if (walk->end - walk->begin > BXI_RING_BYTES)
        return MOVED;
    pos = walk->begin;
    if (walk_copy(walk, &pos) == MOVED)
        return MOVED;
    if (walk->own.findings->count == count)
        walk_tail(walk);
    return SETTLED;
}

void stat_check_ring(const struct stat_check *check, int to)
{
    struct walk walk = { .own = *check, .others = *check, .worker = check->worker, .to = to };
    int attempt = 0;

    walk.others.worker = walk.peer = stat_reader(check->job, (uint32_t)to);
    if (to != check->worker->rank) {
        walk.copy = malloc(BXI_RING_BYTES);
        if (walk.copy == NULL)
            return;
    }
    while (attempt < ATTEMPTS && look_at_ring(&walk) == MOVED)
        attempt++;
    check->findings->unsettled += attempt == ATTEMPTS;
    check->findings->records += walk.records;
    free(walk.copy);
}

/* ---- Behind the ring ---------------------------------------------------------------------------- */

static ull sum_of(const uint64_t *words)
{
    uint64_t sum = 0;

    for (int slot = 0; slot < BXI_LEASE_MAX; slot++)
        sum = sum > UINT64_MAX - words[slot] ? UINT64_MAX : sum + words[slot];
    return sum;
}

/* A slot's generation counts its grants: so the sum of the words is never more than all grants, and never less than all
 * returns. The lender counts a lease after it has sent it: one more may be granted, and returned. */
static void check_generations(const struct stat_check *check, int to, const uint64_t *words)
{
    const struct stat_worker *lender = stat_reader(check->job, (uint32_t)to);
    bool is_right = true;
    uint64_t granted;

    /* Read after the words: it only grows. */
    if (lender == NULL ||
        !stat_read_word(lender, STAT_AT(tables, loans, check->worker->rank, granted), &granted))
        return;
    for (int slot = 0; slot < BXI_LEASE_MAX && is_right; slot++)
        is_right = stat_expect(check, words[slot] <= granted + 1, "I10", to,
                               "the word of lease %d is %llu, and %llu leases were ever granted", slot,
                               (ull)words[slot], (ull)granted);
    if (is_right)
        stat_expect(check, sum_of(words) <= granted + 1, "I10", to,
                    "the words give back %llu leases, and %llu were ever granted", sum_of(words), (ull)granted);
}

void stat_check_leases(const struct stat_check *check, int to)
{
    const struct stat_worker *worker = check->worker;
    uint64_t before[BXI_LEASE_MAX], after[BXI_LEASE_MAX], given_back;
    bool is_right = true;

    /* The words of a worker's leases of itself lie in private memory. The count is read before the words: it lags. */
    if (to == worker->rank ||
        !stat_read_word(worker, STAT_AT(control, pair, to, given_back), &given_back) ||
        stat_pread(&worker->segment, before, sizeof(before), bxi_lease_offset(to)) < 0)
        return;
    stat_expect(check, given_back <= sum_of(before), "I10", to, "%llu leases were given back, and the words say %llu",
                (ull)given_back, sum_of(before));
    check_generations(check, to, before);
    if (stat_pread(&worker->segment, after, sizeof(after), bxi_lease_offset(to)) < 0)
        return;
    for (int slot = 0; slot < BXI_LEASE_MAX && is_right; slot++)
        is_right = stat_expect(check, after[slot] >= before[slot], "I10", to,
                               "the word of lease %d went from %llu back to %llu", slot, (ull)before[slot],
                               (ull)after[slot]);
}

void stat_check_calls(const struct stat_check *check, int to)
{
    struct bxi_call_row rows[BXI_CALLS_MAX];
    bool is_right = true;

    /* Rows that are not allocated read as zero, and stay so: pread allocates nothing. */
    if (to == check->worker->rank ||
        stat_pread(&check->worker->segment, rows, sizeof(rows), bxi_calls_offset(to)) < 0)
        return;
    for (int slot = 0; slot < BXI_CALLS_MAX && is_right; slot++) {
        uint64_t id = stat_word(&rows[slot].id);

        is_right = stat_expect(check, id == 0 || (id & 0xffff) == (uint64_t)slot, "I12", to,
                               "the row of call %d has id %llx, which is one of slot %llu", slot, (ull)id,
                               (ull)(id & 0xffff));
    }
}
