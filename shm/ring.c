/* SPDX-License-Identifier: MIT */
/*
 * The ring of frames; ring.h has the protocol and what a kill leaves. The producer's functions run under the job's
 * lock, the consumer's with the progress role.
 */
#include "ring.h"

#include <errno.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
char bxi_elsewhere;
#endif

#define PADDING_BIT 0x80000000u

static uint64_t commit_word(uint64_t pos, uint32_t length)
{
    return (uint64_t)(uint32_t)(pos / BXI_LINE + 1) << 32 | length;
}

static bxi_a64 *word_at(const struct bxi_ring_writer *ring, uint64_t pos)
{
    return (bxi_a64 *)(void *)(ring->base + (pos & (ring->capacity - 1)));
}

void bxi_ring_writer_init(struct bxi_ring_writer *ring, void *base, uint64_t capacity, uint64_t pos,
                          const bxi_a64 *credit_word, bxi_a64 *want_credit)
{
    *ring = (struct bxi_ring_writer){
        .base = base,
        .capacity = capacity,
        .write_pos = pos,
        .credit = pos,
        .credit_word = credit_word,
        .want_credit = want_credit,
    };
    /* [ring.first] relaxed: the consumer reads the ring only after its open word, which is released later. */
    bxi_store_relaxed(word_at(ring, pos), 0);
}

void bxi_ring_reader_init(struct bxi_ring_reader *ring, const void *base, uint64_t capacity, uint64_t pos,
                          bxi_a64 *credit_word, const bxi_a64 *want_credit)
{
    *ring = (struct bxi_ring_reader){
        .base = base,
        .capacity = capacity,
        .read_pos = pos,
        .published = pos,
        .credit_word = credit_word,
        .want_credit = want_credit,
    };
}

/* ---- producer ---------------------------------------------------------------------------------- */

/* Bytes that must be free: padding to the wrap if the record does not fit before it, the record, and the
 * line of the commit word behind it. */
static uint64_t bytes_needed(const struct bxi_ring_writer *ring, uint64_t record)
{
    uint64_t to_end = ring->capacity - (ring->write_pos & (ring->capacity - 1));

    return (record > to_end ? to_end : 0) + record + BXI_LINE;
}

static bool has_room(const struct bxi_ring_writer *ring, uint64_t needed)
{
    return ring->capacity - (ring->write_pos - ring->credit) >= needed;
}

int bxi_ring_credit_hint(struct bxi_ring_writer *ring, uint64_t credit)
{
    uint64_t step = credit - ring->credit;

    if (step > ring->write_pos - ring->credit) {
        /* Behind the credit seen: legal by at most a lap, because the credit word may overtake a frame. */
        return ring->credit - credit <= ring->capacity ? 0 : -EPROTO;
    }
    if (credit % BXI_LINE != 0)
        return -EPROTO;
    ring->credit = credit;
    return 0;
}

static int refresh_credit(struct bxi_ring_writer *ring)
{
    /* [ring.credit] acquire, pairs with the release in bxi_ring_publish: without it the producer could overwrite an
     * old record that the consumer still reads. */
    return bxi_ring_credit_hint(ring, bxi_load_acquire(ring->credit_word));
}

/* Stores the commit word of a whole record, or of padding. */
static inline void publish(struct bxi_ring_writer *ring, uint64_t word)
{
    if (!ring->in_group) {
        /* [ring.commit] release, pairs with the acquire in bxi_ring_peek: without it the consumer reads old payload
         * bytes, or an old word behind this record; and at the wrap, instead of the zero at offset 0, a word of the
         * last lap. */
        bxi_store_release(word_at(ring, ring->write_pos), word);
    } else if (ring->group_word == 0) {
        ring->group_word = word;
        ring->group_pos = ring->write_pos;
    } else {
        /* [ring.commit] relaxed: ordered before the group's first word by the release in bxi_ring_group_end. */
        bxi_store_relaxed(word_at(ring, ring->write_pos), word);
    }
}

void bxi_ring_group_begin(struct bxi_ring_writer *ring)
{
    ring->in_group = true;
}

void bxi_ring_group_end(struct bxi_ring_writer *ring)
{
    ring->in_group = false;
    if (ring->group_word == 0)
        return;
    bxi_order_sent();
    /* [ring.commit] release, pairs with the acquire in bxi_ring_peek: the whole group is written before it. */
    bxi_store_release(word_at(ring, ring->group_pos), ring->group_word);
    ring->group_word = 0;
}

/* The writer's next record lies in lines that the consumer's core still has, from the lap before. With the first of
 * them in its own cache the writer's stores need not wait for these, nor its next locked instruction or fence for the
 * stores. Not the very next: that holds the commit word which the consumer polls, so it would be taken away again. Two
 * are the rest of a small record and the word behind it. More, or lines further on, were slower where the rings of
 * both sides are of such records. */
static inline void fetch_ahead(const struct bxi_ring_writer *ring)
{
    bxi_prefetch_for_write(word_at(ring, ring->write_pos + BXI_LINE));
    bxi_prefetch_for_write(word_at(ring, ring->write_pos + 2 * BXI_LINE));
}

static void publish_padding(struct bxi_ring_writer *ring)
{
    uint64_t to_end = ring->capacity - (ring->write_pos & (ring->capacity - 1));

    /* [ring.next] relaxed: ordered before the padding by the release in publish. */
    bxi_store_relaxed(word_at(ring, 0), 0);
    publish(ring, commit_word(ring->write_pos, (uint32_t)to_end | PADDING_BIT));
    ring->write_pos += to_end;
}

bool bxi_ring_has_room(struct bxi_ring_writer *ring, uint64_t payload_bytes)
{
    uint64_t needed = bytes_needed(ring, bxi_record_bytes(payload_bytes));

    return has_room(ring, needed) || (refresh_credit(ring) == 0 && has_room(ring, needed));
}

int bxi_ring_reserve(struct bxi_ring_writer *ring, uint64_t payload_bytes, void **payload)
{
    if (payload_bytes == 0 || payload_bytes > ring->capacity / 8)
        return -EMSGSIZE;

    uint64_t record = bxi_record_bytes(payload_bytes);
    uint64_t needed = bytes_needed(ring, record);

    if (!has_room(ring, needed)) {
        int rc = refresh_credit(ring);

        if (rc < 0)
            return rc;
        if (!has_room(ring, needed))
            return -EAGAIN;
    }
    if (needed != record + BXI_LINE)
        publish_padding(ring);
    *payload = (unsigned char *)word_at(ring, ring->write_pos) + 8;
    return 0;
}

/* The record is written, and the commit word behind it, at next, is 0. */
static inline void publish_record(struct bxi_ring_writer *ring, uint64_t payload_bytes, uint64_t next)
{
    bxi_order_sent();
    publish(ring, commit_word(ring->write_pos, (uint32_t)payload_bytes));
    ring->write_pos = next;
    fetch_ahead(ring);
}

void bxi_ring_commit(struct bxi_ring_writer *ring, uint64_t payload_bytes)
{
    uint64_t next = ring->write_pos + bxi_record_bytes(payload_bytes);

    /* [ring.next] relaxed: ordered before this record by the release in publish. */
    bxi_store_relaxed(word_at(ring, next), 0);
    publish_record(ring, payload_bytes, next);
}

int bxi_ring_put(struct bxi_ring_writer *ring, const void *head, const void *body, uint64_t body_bytes)
{
    const uint64_t beside = BXI_LINE - 8 - BXI_HEAD_BYTES;      /* bytes of body in the first line */
    uint64_t payload_bytes = BXI_HEAD_BYTES + body_bytes;
    void *payload;
    int rc = bxi_ring_reserve(ring, payload_bytes, &payload);

    if (rc < 0)
        return rc;

    unsigned char *to = (unsigned char *)payload + BXI_HEAD_BYTES;
    uint64_t next = ring->write_pos + bxi_record_bytes(payload_bytes);

    /* The consumer's poll may steal the first line between two stores that are far apart, which costs another
     * transfer of the line. So everything behind the first line is written first. */
    /* [ring.next] relaxed: ordered before this record by the release in publish. */
    bxi_store_relaxed(word_at(ring, next), 0);
    if (body_bytes > beside)
        memcpy(to + beside, (const unsigned char *)body + beside, body_bytes - beside);
    memcpy(payload, head, BXI_HEAD_BYTES);
    if (body_bytes >= beside)
        memcpy(to, body, beside);
    else if (body_bytes > 0)
        memcpy(to, body, body_bytes);
    publish_record(ring, payload_bytes, next);
    return 0;
}

bool bxi_ring_want(struct bxi_ring_writer *ring, uint64_t payload_bytes)
{
    /* [ring.want] relaxed, pairs with the load in bxi_ring_wanted across the two full fences: either this
     * side sees the credit, or the consumer sees want_credit. */
    bxi_store_relaxed(ring->want_credit, 1);
    bxi_fence_seq_cst();
    if (refresh_credit(ring) < 0 || !has_room(ring, bytes_needed(ring, bxi_record_bytes(payload_bytes))))
        return false;
    bxi_ring_unwant(ring);
    return true;
}

void bxi_ring_unwant(struct bxi_ring_writer *ring)
{
    /* [ring.want] relaxed: a consumer that still reads 1 rings once without need. */
    bxi_store_relaxed(ring->want_credit, 0);
}

/* ---- consumer ---------------------------------------------------------------------------------- */

static const bxi_a64 *reader_word(const struct bxi_ring_reader *ring)
{
    return (const bxi_a64 *)(const void *)(ring->base + (ring->read_pos & (ring->capacity - 1)));
}

/* A record of two lines is read at the cost of one if both are on their way: whoever finds no record fetches the line
 * behind the commit word too, into which the writer stores before it stores the word. */
static void fetch_second(const struct bxi_ring_reader *ring)
{
    __builtin_prefetch((const unsigned char *)reader_word(ring) + BXI_LINE);
}

/* Checks a commit word against the read position. Its length, or -EPROTO. */
static int64_t checked_length(const struct bxi_ring_reader *ring, uint64_t word)
{
    uint64_t offset = ring->read_pos & (ring->capacity - 1);
    uint64_t length = word & ~(uint64_t)PADDING_BIT & UINT32_MAX;

    if (word >> 32 != (uint32_t)(ring->read_pos / BXI_LINE + 1))
        return -EPROTO;
    if (word & PADDING_BIT)
        return offset + length == ring->capacity && offset != 0 ? (int64_t)length : -EPROTO;
    if (length == 0 || length > ring->capacity / 8 || offset + 8 + length > ring->capacity)
        return -EPROTO;
    return (int64_t)length;
}

int bxi_ring_peek(struct bxi_ring_reader *ring, const void **payload, uint32_t *payload_bytes)
{
    for (int steps = 0; steps < 2; steps++) {
        /* [ring.commit] acquire, pairs with the release in publish and bxi_ring_group_end: the payload and
         * the next commit word are read after it. */
        uint64_t word = bxi_load_acquire(reader_word(ring));

        if (word == 0) {
            fetch_second(ring);
            return 0;
        }
        bxi_order_received();

        int64_t length = checked_length(ring, word);

        if (length < 0)
            return (int)length;
        if ((word & PADDING_BIT) == 0) {
            uint64_t next = ring->read_pos + bxi_record_bytes((uint64_t)length);

            /* The second line of the record, and the next commit word, which the reader polls next. */
            fetch_second(ring);
            __builtin_prefetch(ring->base + (next & (ring->capacity - 1)));
            *payload = (const unsigned char *)reader_word(ring) + 8;
            *payload_bytes = (uint32_t)length;
            return 1;
        }
        ring->read_pos += (uint64_t)length;
    }
    return -EPROTO;         /* padding behind padding */
}

bool bxi_ring_publish(struct bxi_ring_reader *ring)
{
    if (ring->published == ring->read_pos)
        return false;
    ring->published = ring->read_pos;
    /* [ring.credit] release, pairs with the acquire in refresh_credit: the producer overwrites only what has been
     * read. */
    bxi_store_release(ring->credit_word, ring->read_pos);
    return true;
}

bool bxi_ring_advance(struct bxi_ring_reader *ring, uint32_t payload_bytes)
{
    ring->read_pos += bxi_record_bytes(payload_bytes);
    if (ring->read_pos - ring->published < ring->capacity / 4)
        return false;
    return bxi_ring_publish(ring);
}

bool bxi_ring_wanted(const struct bxi_ring_reader *ring)
{
    /* [ring.want] relaxed, pairs with the store in bxi_ring_want across the two full fences. */
    return bxi_load_relaxed(ring->want_credit) != 0;
}

bool bxi_ring_ready(const struct bxi_ring_reader *ring)
{
    fetch_second(ring);
    /* [ring.commit] acquire, as in bxi_ring_peek; only whether the word is 0 matters here. */
    return bxi_load_acquire(reader_word(ring)) != 0;
}
