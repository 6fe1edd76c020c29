/* SPDX-License-Identifier: MIT */
/*
 * A byte ring of frames with one producer process and one consumer process.
 *
 * The frames lie in the producer's segment, the position consumed lies in the consumer's: each side
 * writes its own pages only. A record is a multiple of 64 bytes at a multiple of 64:
 *
 *     +0   commit word: sequence of the position (high 32 bits), payload bytes (low 31), padding (bit 31)
 *     +8   payload
 *
 * Positions are 64-bit and free-running; position & (capacity - 1) is the offset. The sequence is the
 * low 32 bits of position/64 + 1, so a word left from an earlier lap is never taken for this one.
 *
 * Producer, publishing a record at w:   1. write the payload       2. zero the commit word that will
 * follow (at w + record)                3. store-release the commit word at w.
 * At the wrap:  1. zero the word at offset 0   2. store-release padding that ends exactly at capacity.
 * Killed before 3, the record does not exist: its word is 0, zeroed when its predecessor was published.
 * Killed after 3, it is whole. There is no state in between, so there is nothing to repair.
 *
 * One credit check reserves padding, record and the line of the next commit word together; therefore
 * step 2 never zeroes a word that the consumer has yet to read.
 *
 * Consumer: load-acquire the word at r; 0 means nothing there. Check sequence, length and end, copy the
 * payload out, then advance. Credit is published lazily: when a quarter of the ring is owed, before
 * sleeping, and when asked. A starved producer sets want_credit, fences, reads the credit once more; the
 * consumer publishes, fences, reads want_credit, and rings (Dekker: one of the two sees the other).
 *
 * Writers and readers are private handles: nothing that this process relies on is read back from
 * memory that another process can write. The producer's side may be used by several threads under a
 * lock of the caller; the consumer's by one at a time.
 */
#ifndef BXI_RING_H
#define BXI_RING_H

#include "atomic.h"
#include "layout.h"

#include <stddef.h>
#include <stdint.h>

struct bxi_ring_writer {
    unsigned char *base;            /* capacity bytes in my segment */
    uint64_t capacity;
    uint64_t write_pos;
    uint64_t credit;                /* last credit seen: credit <= consumed <= write_pos */
    const bxi_a64 *credit_word;     /* in the consumer's segment */
    bxi_a64 *want_credit;           /* in mine */
};

struct bxi_ring_reader {
    const unsigned char *base;      /* in the producer's segment */
    uint64_t capacity;
    uint64_t read_pos;
    uint64_t published;             /* last credit published */
    bxi_a64 *credit_word;           /* in mine */
    const bxi_a64 *want_credit;     /* in the producer's */
};

/* Bytes of ring that a payload takes. */
static inline uint64_t bxi_record_bytes(uint64_t payload_bytes)
{
    return (payload_bytes + 8 + BXI_LINE - 1) & ~(uint64_t)(BXI_LINE - 1);
}

/* Both begin at `pos`, a multiple of 64 (0 in a fresh segment; tests begin near 2^32 and 2^64). The
 * writer's init zeroes the first commit word; capacity is a power of two, at least 1024. */
void bxi_ring_writer_init(struct bxi_ring_writer *ring, void *base, uint64_t capacity, uint64_t pos,
                          const bxi_a64 *credit_word, bxi_a64 *want_credit);
void bxi_ring_reader_init(struct bxi_ring_reader *ring, const void *base, uint64_t capacity, uint64_t pos,
                          bxi_a64 *credit_word, const bxi_a64 *want_credit);

/* Makes room for a record of payload_bytes (1 .. capacity/8) and points *payload at it, 8-byte aligned.
 * 0; -EAGAIN: the ring is full (the consumer's credit was read again); -EMSGSIZE: payload_bytes is 0 or
 * over capacity/8; -EPROTO: the consumer's credit is impossible. Nothing is visible before commit;
 * reserving again without commit gives the same place. */
int bxi_ring_reserve(struct bxi_ring_writer *ring, uint64_t payload_bytes, void **payload);

/* Publishes the record that the last reserve made room for. payload_bytes as it was given there. */
void bxi_ring_commit(struct bxi_ring_writer *ring, uint64_t payload_bytes);

/* Reserves, writes and publishes a record of a head of BXI_HEAD_BYTES and a body (NULL if body_bytes is 0),
 * touching the line that the consumer polls in one go. Errors as bxi_ring_reserve. */
#define BXI_HEAD_BYTES 32u
int bxi_ring_put(struct bxi_ring_writer *ring, const void *head, const void *body, uint64_t body_bytes);

/* Takes a credit that came by another way (piggybacked on a frame). 0; -EPROTO if it is impossible. */
int bxi_ring_credit_hint(struct bxi_ring_writer *ring, uint64_t credit);

/* Starvation, producer's side: asks the consumer to ring when it has published credit. True if room for
 * payload_bytes came meanwhile (the wish is taken back), false if the producer may sleep now. unwant takes
 * the wish back when nothing waits for room any more: each credit would cost the consumer a fence and a bell. */
bool bxi_ring_want(struct bxi_ring_writer *ring, uint64_t payload_bytes);
void bxi_ring_unwant(struct bxi_ring_writer *ring);

/* 1 and the payload in place, in the producer's memory: copy it before parsing. 0: nothing there.
 * -EPROTO: what is there is no record. */
int bxi_ring_peek(struct bxi_ring_reader *ring, const void **payload, uint32_t *payload_bytes);

/* Steps over the record that peek showed. True when a quarter of the ring is owed: the credit has been
 * published and the caller should look at the producer's wish (bxi_ring_wanted). */
bool bxi_ring_advance(struct bxi_ring_reader *ring, uint32_t payload_bytes);

/* Publishes what is owed; true if anything was. */
bool bxi_ring_publish(struct bxi_ring_reader *ring);

/* After a publish and a full fence: does the producer wait for credit? */
bool bxi_ring_wanted(const struct bxi_ring_reader *ring);

/* Is a record or padding waiting? For the look before sleeping; reads one word. */
bool bxi_ring_ready(const struct bxi_ring_reader *ring);

#endif
