/* SPDX-License-Identifier: MIT */
/*
 * A byte ring of frames with one producer process and one consumer process.
 *
 * The frames are in the producer's segment, the position consumed (the credit) is in the consumer's: each side
 * writes only its own pages. A record is a multiple of 64 bytes, at a multiple of 64:
 *
 *     +0   commit word: sequence of the position (high 32 bits), payload bytes (low 31), padding (bit 31)
 *     +8   payload
 *
 * Positions are 64-bit and free-running; position & (capacity - 1) is the offset. The sequence is the
 * low 32 bits of position/64 + 1: the consumer never accepts a word that is left from an earlier lap.
 *
 * The producer publishes a record at w:   1. write the payload   2. zero the next commit word (at w + record)
 * 3. store-release the commit word at w.
 * At the wrap:   1. zero the word at offset 0   2. store-release padding that ends exactly at capacity.
 * Killed before 3, the record does not exist: its word is 0 since its predecessor was published. Killed after 3, the
 * record is whole. There is no state in between, so there is nothing to repair.
 *
 * A group of records is published at once: the word of its first record (or padding) is stored last, in
 * bxi_ring_group_end. Killed before that, none of the group exists; killed after it, all of it.
 *
 * One credit check covers the padding, the record and the line of the next commit word. So step 2 never zeroes a
 * word that the consumer has not read yet.
 *
 * The consumer load-acquires the word at r; 0 means that there is no record. It checks sequence, length and end,
 * copies the payload, then advances. It publishes credit lazily: when a quarter of the ring is consumed and not
 * published, before sleep, and on request. A starved producer sets want_credit, fences and rereads the credit; the
 * consumer publishes credit, fences, reads want_credit and rings (Dekker: one of the two sees the other's store).
 *
 * Writers and readers are private handles: this process never reads back state from memory that another process can
 * write. Several threads may use the producer's side under a lock of the caller's; one thread at a time may use the
 * consumer's.
 */
#ifndef BXI_RING_H
#define BXI_RING_H

#include "atomic.h"
#include "layout.h"

#include <stdint.h>

struct bxi_ring_writer {
    unsigned char *base;            /* capacity bytes in my segment */
    uint64_t capacity;
    uint64_t write_pos;
    uint64_t credit;                /* last credit seen: credit <= consumed <= write_pos */
    const bxi_a64 *credit_word;     /* in the consumer's segment */
    bxi_a64 *want_credit;           /* in mine */
    bool in_group;
    uint64_t group_word;            /* the first commit word of the group, kept back; 0: none yet */
    uint64_t group_pos;             /* where it belongs */
};

struct bxi_ring_reader {
    const unsigned char *base;      /* in the producer's segment */
    uint64_t capacity;
    uint64_t read_pos;
    uint64_t published;             /* last credit published */
    bxi_a64 *credit_word;           /* in mine */
    const bxi_a64 *want_credit;     /* in the producer's */
};

/* Bytes of the record of a payload. */
static inline uint64_t bxi_record_bytes(uint64_t payload_bytes)
{
    return (payload_bytes + 8 + BXI_LINE - 1) & ~(uint64_t)(BXI_LINE - 1);
}

/* Both begin at `pos`, a multiple of 64 (0 in a new segment; tests begin near 2^32 and 2^64). capacity is a power of
 * two, at least 1024. The writer's init zeroes the first commit word. */
void bxi_ring_writer_init(struct bxi_ring_writer *ring, void *base, uint64_t capacity, uint64_t pos,
                          const bxi_a64 *credit_word, bxi_a64 *want_credit);
void bxi_ring_reader_init(struct bxi_ring_reader *ring, const void *base, uint64_t capacity, uint64_t pos,
                          bxi_a64 *credit_word, const bxi_a64 *want_credit);

/* Makes room for a record of payload_bytes (1 .. capacity/8) and points *payload at it, 8-byte aligned. Returns 0;
 * -EAGAIN: the ring is full, even after the credit was reread; -EMSGSIZE: payload_bytes is 0 or above capacity/8;
 * -EPROTO: the consumer's credit is impossible. The consumer sees nothing before commit. A second reserve without
 * commit gives the same place. */
int bxi_ring_reserve(struct bxi_ring_writer *ring, uint64_t payload_bytes, void **payload);

/* Whether a reserve would succeed; publishes nothing, no padding either. */
bool bxi_ring_has_room(struct bxi_ring_writer *ring, uint64_t payload_bytes);

/* Publishes the record of the last reserve, with the same payload_bytes; in a group, at its end. */
void bxi_ring_commit(struct bxi_ring_writer *ring, uint64_t payload_bytes);

/* Reserves, writes and publishes a record of a head of BXI_HEAD_BYTES and a body (NULL if body_bytes is 0). Writes the
 * line that the consumer polls last, all at once. Errors as bxi_ring_reserve. */
#define BXI_HEAD_BYTES 32u
int bxi_ring_put(struct bxi_ring_writer *ring, const void *head, const void *body, uint64_t body_bytes);

/* Begins and ends a group: what is put between them becomes visible at the end. The consumer frees no room for the rest
 * of a group meanwhile, so whoever gets -EAGAIN in a group ends it before waiting. Groups do not nest. */
void bxi_ring_group_begin(struct bxi_ring_writer *ring);
void bxi_ring_group_end(struct bxi_ring_writer *ring);
/* The position that the consumer can read up to. */
static inline uint64_t bxi_ring_published(const struct bxi_ring_writer *ring)
{
    return ring->group_word != 0 ? ring->group_pos : ring->write_pos;
}

/* Takes a credit that was piggybacked on a frame. 0; -EPROTO if it is impossible. */
int bxi_ring_credit_hint(struct bxi_ring_writer *ring, uint64_t credit);

/* Starved producer: want sets want_credit, so that the consumer rings after it publishes credit, and rereads the
 * credit. True if there is room for payload_bytes by now (want_credit is cleared), false if the producer may sleep.
 * unwant clears want_credit when nothing waits for room any more: else the consumer pays a fence and a bell for each
 * credit. */
bool bxi_ring_want(struct bxi_ring_writer *ring, uint64_t payload_bytes);
void bxi_ring_unwant(struct bxi_ring_writer *ring);

/* 1 and the payload in place, in the producer's memory: copy it before parsing. 0: there is no record. -EPROTO: the
 * memory there does not hold a valid record. */
int bxi_ring_peek(struct bxi_ring_reader *ring, const void **payload, uint32_t *payload_bytes);

/* Consumes the record that peek returned. True if that published credit (a quarter of the ring was unpublished): the
 * caller should check want_credit (bxi_ring_wanted). */
bool bxi_ring_advance(struct bxi_ring_reader *ring, uint32_t payload_bytes);

/* Publishes the credit; false if it is published already. */
bool bxi_ring_publish(struct bxi_ring_reader *ring);

/* After a publish and a full fence: true if the producer waits for credit. */
bool bxi_ring_wanted(const struct bxi_ring_reader *ring);

/* True if a record or padding is at the read position. For the recheck before sleep; reads one word. */
bool bxi_ring_ready(const struct bxi_ring_reader *ring);

#endif
