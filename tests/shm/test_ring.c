/* SPDX-License-Identifier: MIT */
/*
 * shm/ring.c in one thread: both sides of a ring in private memory, with positions set directly. The simulator
 * (tests/sim/, ring) has what goes through a ring: order, bytes, laps, padding, groups.
 */
#include "tests/harness/test.h"
#include "shm/ring.h"

#define PADDING UINT64_C(0x80000000)

struct rig {
    struct bxi_ring_writer writer;
    struct bxi_ring_reader reader;
    bxi_a64 credit;
    bxi_a64 want;
};

static _Alignas(4096) unsigned char memory[BXI_RING_BYTES];
static struct rig rig;

static const uint64_t capacities[] = { 1024, 4096, BXI_RING_BYTES };

/* 0; the ends of 32 and of 64 bits of position; the end of the 32 bits of sequence. */
static const uint64_t starts[] = {
    0,
    (UINT64_C(1) << 32) - 512,
    (UINT64_C(1) << 38) - 512,
    UINT64_MAX - 511,
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void set_up(uint64_t capacity, uint64_t pos)
{
    memset(memory, 0xa5, sizeof(memory));
    bxi_store_relaxed(&rig.credit, pos);
    bxi_store_relaxed(&rig.want, 0);
    bxi_ring_writer_init(&rig.writer, memory, capacity, pos, &rig.credit, &rig.want);
    bxi_ring_reader_init(&rig.reader, memory, capacity, pos, &rig.credit, &rig.want);
}

static uint64_t word_of(uint64_t pos, uint64_t length)
{
    return (uint64_t)(uint32_t)(pos / BXI_LINE + 1) << 32 | length;
}

static bxi_a64 *word_at(uint64_t pos)
{
    return (bxi_a64 *)(void *)(memory + (pos & (rig.writer.capacity - 1)));
}

static void put_word(uint64_t pos, uint64_t word)
{
    bxi_store_relaxed(word_at(pos), word);
}

static uint64_t get_word(uint64_t pos)
{
    return bxi_load_relaxed(word_at(pos));
}

static int send(uint64_t bytes, int fill)
{
    void *payload = NULL;
    int rc = bxi_ring_reserve(&rig.writer, bytes, &payload);

    if (rc < 0)
        return rc;
    memset(payload, fill, bytes);
    bxi_ring_commit(&rig.writer, bytes);
    return 0;
}

static void fill_up(void)
{
    while (send(56, 0) == 0)
        ;
}

/* Reads one frame and checks that it is `bytes` times `fill`. Returns the result of bxi_ring_advance. */
static bool take(uint64_t bytes, int fill)
{
    const void *payload = NULL;
    uint32_t got = 0;

    cr_assert_eq(bxi_ring_peek(&rig.reader, &payload, &got), 1);
    cr_assert_eq(got, bytes);
    cr_assert_eq((uintptr_t)payload % 8, 0);
    for (uint32_t i = 0; i < got; i++)
        cr_assert_eq(((const unsigned char *)payload)[i], fill & 0xff);
    return bxi_ring_advance(&rig.reader, got);
}

static int peek(void)
{
    const void *payload;
    uint32_t bytes;

    return bxi_ring_peek(&rig.reader, &payload, &bytes);
}

/* ---- Frames ---------------------------------------------------------------------------------- */

TestSuite(ring, .timeout = 120);

Test(ring, reserves_the_same_place_again_when_nothing_was_committed)
{
    void *first = NULL;
    void *second = NULL;

    set_up(1024, 960);      /* 64 bytes before the wrap, so the first reserve pads */
    cr_assert_eq(bxi_ring_reserve(&rig.writer, 100, &first), 0);
    cr_assert_eq(bxi_ring_reserve(&rig.writer, 20, &second), 0);
    cr_assert_eq(first, second);
    bxi_ring_commit(&rig.writer, 20);
    cr_assert_eq(rig.writer.write_pos, 1024 + 64);
}

Test(ring, refuses_an_empty_frame_and_one_over_an_eighth)
{
    void *payload = NULL;

    for (size_t c = 0; c < COUNT(capacities); c++) {
        set_up(capacities[c], 0);
        cr_assert_eq(bxi_ring_reserve(&rig.writer, 0, &payload), -EMSGSIZE);
        cr_assert_eq(bxi_ring_reserve(&rig.writer, capacities[c] / 8 + 1, &payload), -EMSGSIZE);
        cr_assert_eq(bxi_ring_reserve(&rig.writer, UINT64_MAX, &payload), -EMSGSIZE);
        cr_assert_null(payload);
        cr_assert_eq(send(capacities[c] / 8, 7), 0);
        take(capacities[c] / 8, 7);
    }
}

/* ---- The room -------------------------------------------------------------------------------- */

Test(ring, is_full_with_one_line_left_for_the_next_commit_word)
{
    for (size_t c = 0; c < COUNT(capacities); c++) {
        for (size_t s = 0; s < COUNT(starts); s++) {
            uint64_t lines = capacities[c] / BXI_LINE;

            set_up(capacities[c], starts[s]);
            for (uint64_t i = 0; i < lines - 1; i++)
                cr_assert_eq(send(56, (int)i), 0);
            cr_assert_eq(send(1, 0), -EAGAIN);
            cr_assert_eq(rig.writer.write_pos - starts[s], capacities[c] - BXI_LINE);
            for (uint64_t i = 0; i < lines - 1; i++)
                take(56, (int)i);
            cr_assert_eq(peek(), 0);
        }
    }
}

Test(ring, fits_padding_record_and_next_line_exactly_or_does_nothing)
{
    /* At 960 a record of 128 needs 64 of padding, itself, and a line: 256 of 1024. */
    for (uint64_t used = 704; used <= 832; used += 64) {
        void *payload = NULL;

        set_up(1024, 960);
        rig.writer.credit = 960 - used;
        bxi_store_relaxed(&rig.credit, 960 - used);
        int rc = bxi_ring_reserve(&rig.writer, 100, &payload);
        if (1024 - used >= 256) {
            cr_assert_eq(rc, 0);
            cr_assert_eq(payload, memory + 8);
        } else {
            cr_assert_eq(rc, -EAGAIN);
            cr_assert_eq(rig.writer.write_pos, 960, "padding without room for the record");
            cr_assert_eq(get_word(960), 0);
        }
    }
}

/* ---- Credit ---------------------------------------------------------------------------------- */

Test(ring, publishes_credit_when_a_quarter_is_unpublished)
{
    set_up(1024, 0);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(send(56, i), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_not(take(56, i));
    cr_assert_eq(bxi_load_relaxed(&rig.credit), 0);
    cr_assert(take(56, 3));
    cr_assert_eq(bxi_load_relaxed(&rig.credit), 256);
    cr_assert_not(take(56, 4));
    cr_assert_eq(bxi_load_relaxed(&rig.credit), 256);
}

Test(ring, refuses_a_credit_beyond_what_was_written_more_than_a_lap_behind_or_no_record_boundary)
{
    for (size_t s = 0; s < COUNT(starts); s++) {
        const uint64_t credits[] = { starts[s] + 1024, starts[s] - 1024 - 64, starts[s] + 65 };

        for (size_t i = 0; i < COUNT(credits); i++) {
            set_up(1024, starts[s]);
            fill_up();
            bxi_store_relaxed(&rig.credit, credits[i]);
            cr_assert_eq(send(56, 0), -EPROTO);
            cr_assert_eq(rig.writer.credit, starts[s]);
        }
    }
}

Test(ring, passes_over_a_hint_that_a_newer_credit_has_overtaken)
{
    set_up(1024, 4096);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(send(56, i), 0);
    cr_assert_eq(bxi_ring_credit_hint(&rig.writer, 4096 + 128), 0);
    cr_assert_eq(bxi_ring_credit_hint(&rig.writer, 4096 + 64), 0);
    cr_assert_eq(rig.writer.credit, 4096 + 128);
}

Test(ring, refuses_a_hint_that_is_impossible)
{
    set_up(1024, 4096);
    cr_assert_eq(send(56, 0), 0);
    cr_assert_eq(bxi_ring_credit_hint(&rig.writer, 4096 + 128), -EPROTO);
    cr_assert_eq(bxi_ring_credit_hint(&rig.writer, 4096 + 32), -EPROTO);
    cr_assert_eq(bxi_ring_credit_hint(&rig.writer, 4096 - 2048), -EPROTO);
    cr_assert_eq(bxi_ring_credit_hint(&rig.writer, UINT64_MAX), -EPROTO);
    cr_assert_eq(rig.writer.credit, 4096);
}

/* ---- Starvation ------------------------------------------------------------------------------ */

Test(ring, keeps_want_credit_when_the_room_that_came_is_too_small)
{
    set_up(1024, 0);
    fill_up();
    take(56, 0);
    cr_assert(bxi_ring_publish(&rig.reader));
    cr_assert_not(bxi_ring_want(&rig.writer, 128));
    cr_assert(bxi_ring_wanted(&rig.reader));
}

Test(ring, counts_the_padding_when_it_wants_room)
{
    /* 960: a record of 128 needs 256; 192 are free. */
    set_up(1024, 960);
    rig.writer.credit = 960 - 832;
    bxi_store_relaxed(&rig.credit, 960 - 832);
    cr_assert_not(bxi_ring_want(&rig.writer, 100));
    bxi_store_relaxed(&rig.credit, 960 - 768);
    cr_assert(bxi_ring_want(&rig.writer, 100));
}

Test(ring, asks_for_room_without_padding)
{
    set_up(1024, 960);
    cr_assert(bxi_ring_has_room(&rig.writer, 100));
    cr_assert_eq(rig.writer.write_pos, 960);
    cr_assert_not(bxi_ring_ready(&rig.reader));
    rig.writer.credit = 960 - 832;
    bxi_store_relaxed(&rig.credit, 960 - 832);
    cr_assert_not(bxi_ring_has_room(&rig.writer, 100));
    bxi_store_relaxed(&rig.credit, 960 - 768);
    cr_assert(bxi_ring_has_room(&rig.writer, 100));
}

/* ---- Nonsense in the producer's memory ------------------------------------------------------- */

static void expect_refused(uint64_t capacity, uint64_t pos, uint64_t word)
{
    set_up(capacity, pos);
    put_word(pos, word);
    cr_assert_eq(peek(), -EPROTO, "capacity %lu position %lx word %lx", (unsigned long)capacity, (unsigned long)pos,
                 (unsigned long)word);
    cr_assert_eq(rig.reader.read_pos, pos);
}

static void expect_accepted(uint64_t capacity, uint64_t pos, uint64_t word)
{
    set_up(capacity, pos);
    put_word(pos, word);
    cr_assert_eq(peek(), 1);
}

Test(ring, refuses_a_length_of_0_one_over_an_eighth_and_one_beyond_capacity)
{
    for (size_t c = 0; c < COUNT(capacities); c++) {
        expect_refused(capacities[c], 0, word_of(0, 0));
        expect_refused(capacities[c], 0, word_of(0, capacities[c] / 8 + 1));
        expect_refused(capacities[c], 0, word_of(0, PADDING - 1));
        expect_accepted(capacities[c], 0, word_of(0, capacities[c] / 8));
    }
    expect_refused(1024, 960, word_of(960, 57));
    expect_accepted(1024, 960, word_of(960, 56));
}

Test(ring, refuses_padding_that_does_not_end_at_capacity_and_over_the_whole_ring)
{
    static const uint64_t lengths[] = { 0, 1, 63, 64, 65, 127, 129, 192, PADDING - 1 };

    for (size_t i = 0; i < COUNT(lengths); i++)
        expect_refused(1024, 896, word_of(896, PADDING | lengths[i]));
    expect_refused(1024, 0, word_of(0, PADDING | 1024));
    set_up(1024, 896);
    put_word(1024, 0);
    put_word(896, word_of(896, PADDING | 128));
    cr_assert_eq(peek(), 0);
    cr_assert_eq(rig.reader.read_pos, 1024);
}

Test(ring, refuses_padding_behind_padding)
{
    set_up(1024, 896);
    put_word(896, word_of(896, PADDING | 128));
    put_word(1024, word_of(1024, PADDING | 1024));
    cr_assert_eq(peek(), -EPROTO);
}
