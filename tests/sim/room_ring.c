/* SPDX-License-Identifier: MIT */
/*
 * The rooms of the ring and the doorbell: producers put frames, one at a time or in groups, wait for room and ring; a
 * consumer reads, publishes credit, arms its bell and sleeps. The rings have 16 lines, so they wrap and are full every
 * few frames. Positions begin at 0, or just below 2^38 (where sequences wrap) or 2^64.
 *
 * Truth: each frame arrives once, in order, with its bytes; a producer rings at most once for an arming; when nobody
 * can run, all has been read (a sleeper with something published for it is a finding: "nobody can run").
 */
#include "rooms.h"

#include "shm/doorbell.h"
#include "shm/ring.h"

#include <sys/eventfd.h>

#define CAPACITY 1024u
#define BODY_MOST (CAPACITY / 8 - BXI_HEAD_BYTES)
#define PRODUCERS_MOST 2

struct side {
    struct bxi_ring_writer writer;
    struct bxi_ring_reader reader;
    struct bxi_bell_peer bell;
    bxi_a64 *want, *credit;
    uint32_t put, got;                  /* frames */
    uint32_t rings;
    int room;                           /* an eventfd: the producer sleeps there until there is room */
};
struct head {
    uint32_t number, body_bytes;
    uint8_t filler[BXI_HEAD_BYTES - 8];
};

static struct {
    uint32_t producers, frames;
    struct bxi_bell bell;
    bxi_a64 *armed;
    struct side *sides;
    int fd[2];
} room;

static void sleep_on(int fd)
{
    struct pollfd entry = { .fd = fd, .events = POLLIN };

    poll(&entry, 1, -1);
    bxi_bell_drain(fd);
}

static uint32_t bytes_of(uint32_t number)
{
    /* 13 lines: a lap of 16 lines needs padding. 24 bytes of a body fit into the first line. */
    static const uint8_t sizes[] = { 0, 24, 60, 96, 40, 23, 96 };

    return sizes[number % 7];
}

static void fill(unsigned char *body, uint32_t number)
{
    for (uint32_t i = 0; i < bytes_of(number); i++)
        body[i] = (unsigned char)(number * 37 + i + 1);
}

/* ---- producer -------------------------------------------------------------------------------------- */

static void announce(struct side *side)
{
    bxi_fence_seq_cst();
    side->rings += (uint32_t)bxi_bell_look(&side->bell, false);
}

/* The truth of a side: how many frames may be seen. */
static void may_be_seen(struct side *side, uint32_t frames)
{
    unsigned index = (unsigned)(side - room.sides);

    sim_count(index, frames - (int64_t)sim_truth(index));
}

static void end_group(struct side *side)
{
    may_be_seen(side, side->put);
    bxi_ring_group_end(&side->writer);
}

/* As the engine does, or by bxi_ring_reserve and bxi_ring_commit. */
static int put_frame(struct side *side, const struct head *head, const unsigned char *body)
{
    unsigned char *payload;
    int rc;

    if (head->number % 4 != 1)
        return bxi_ring_put(&side->writer, head, body, head->body_bytes);
    rc = bxi_ring_reserve(&side->writer, sizeof *head + head->body_bytes, (void **)&payload);
    if (rc == 0) {
        memcpy(payload, head, sizeof *head);
        memcpy(payload + sizeof *head, body, head->body_bytes);
        bxi_ring_commit(&side->writer, sizeof *head + head->body_bytes);
    }
    return rc;
}

static void put(struct side *side, bool *in_group)
{
    unsigned char body[BODY_MOST];
    struct head head = { .number = side->put, .body_bytes = bytes_of(side->put) };
    int rc;

    fill(body, side->put);
    if (!*in_group)
        may_be_seen(side, side->put + 1);
    while ((rc = put_frame(side, &head, body)) != 0) {
        if (rc != -EAGAIN)
            sim_fail("put returns %d", rc);
        if (*in_group)
            end_group(side);
        *in_group = false;
        may_be_seen(side, side->put + 1);
        announce(side);
        if (!bxi_ring_want(&side->writer, BXI_HEAD_BYTES + head.body_bytes)) {
            sleep_on(side->room);
            bxi_ring_unwant(&side->writer);
        }
    }
    side->put++;
}

static void *produce(void *argument)
{
    struct side *side = argument;

    while (side->put < room.frames) {
        uint32_t burst = 1 + side->put * 5 % 9;             /* 9 frames do not fit into the ring */
        bool in_group = burst > 1;

        if (in_group)
            bxi_ring_group_begin(&side->writer);
        for (uint32_t i = 0; i < burst && side->put < room.frames; i++)
            put(side, &in_group);
        if (in_group)
            end_group(side);
        announce(side);
    }
    return NULL;
}

/* ---- consumer -------------------------------------------------------------------------------------- */

static void tell_of_credit(struct side *side)
{
    bxi_fence_seq_cst();
    if (bxi_ring_wanted(&side->reader))
        bxi_bell_ring(side->room);
}

/* How many frames. */
static int read_frames(struct side *side)
{
    unsigned char copy[CAPACITY / 8], body[BODY_MOST];
    const struct head *head = (const void *)copy;
    const void *payload;
    uint32_t bytes;
    int count = 0, rc;

    while ((rc = bxi_ring_peek(&side->reader, &payload, &bytes)) == 1) {
        memcpy(copy, payload, bytes);
        if (bytes != BXI_HEAD_BYTES + bytes_of(side->got) || head->number != side->got)
            sim_fail("frame %u of %u bytes arrives, expected was %u", head->number, bytes, side->got);
        if (side->got >= sim_truth((unsigned)(side - room.sides)))
            sim_fail("frame %u arrives before the end of its group", side->got);
        fill(body, side->got);
        if (memcmp(copy + BXI_HEAD_BYTES, body, bytes_of(side->got)) != 0)
            sim_fail("frame %u has wrong bytes", side->got);
        side->got++;
        count++;
        if (bxi_ring_advance(&side->reader, bytes))
            tell_of_credit(side);
    }
    if (rc < 0)
        sim_fail("peek returns %d", rc);
    return count;
}

static int pass(void)
{
    int count = 0;

    for (uint32_t i = 0; i < room.producers; i++)
        count += read_frames(&room.sides[i]);
    return count;
}

static bool is_done(void)
{
    for (uint32_t i = 0; i < room.producers; i++)
        if (room.sides[i].got < room.frames)
            return false;
    return true;
}

static bool is_ready(void)
{
    for (uint32_t i = 0; i < room.producers; i++)
        if (bxi_ring_ready(&room.sides[i].reader))
            return true;
    return false;
}

static void *consume(void *unused)
{
    static const enum bxi_who whos[] = { BXI_WHO_BACKGROUND, BXI_WHO_LEADER, BXI_WHO_LAZY };

    (void)unused;
    while (pass() > 0 || !is_done()) {
        enum bxi_who who = whos[room.bell.count % 3];

        for (uint32_t i = 0; i < room.producers; i++)
            if (bxi_ring_publish(&room.sides[i].reader))
                tell_of_credit(&room.sides[i]);
        bxi_bell_arm(&room.bell, who);
        bxi_fence_seq_cst();
        if (!is_done() && !is_ready())
            sleep_on(room.fd[who == BXI_WHO_LEADER]);
        bxi_bell_disarm(&room.bell);
    }
    return NULL;
}

/* ---- the room -------------------------------------------------------------------------------------- */

static void begin_side(struct side *side, uint64_t pos, int fd)
{
    void *base = sim_memory(CAPACITY);

    memset(base, 0xff, CAPACITY);
    side->want = sim_memory(64);
    side->credit = sim_memory(64);
    bxi_store_relaxed(side->credit, pos);
    side->room = fd;
    side->bell = (struct bxi_bell_peer){ .word = room.armed, .fd = { room.fd[0], room.fd[1] } };
    bxi_ring_writer_init(&side->writer, base, CAPACITY, pos, side->credit, side->want);
    bxi_ring_reader_init(&side->reader, base, CAPACITY, pos, side->credit, side->want);
}

static void run_room(uint32_t producers, uint32_t frames)
{
    static const uint64_t starts[] = { 0, (UINT64_C(1) << 38) - 512, UINT64_MAX - 511 };
    int fibers[PRODUCERS_MOST + 1];

    memset(&room, 0, sizeof room);
    room.producers = producers;
    room.frames = frames;
    room.armed = sim_memory(64);
    room.bell.word = room.armed;
    room.sides = sim_memory(sizeof *room.sides * PRODUCERS_MOST);
    for (int i = 0; i < 2; i++)
        room.fd[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (uint32_t i = 0; i < producers; i++)
        begin_side(&room.sides[i], starts[sim_choose(3)], eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bxi_fence_seq_cst();
    fibers[0] = sim_spawn("consumer", consume, NULL);
    for (uint32_t i = 0; i < producers; i++)
        fibers[1 + i] = sim_spawn(i == 0 ? "producer0" : "producer1", produce, &room.sides[i]);
    for (uint32_t i = 0; i <= producers; i++)
        sim_join(fibers[i]);
    for (uint32_t i = 0; i < producers; i++)
        if (bxi_load_relaxed(room.sides[i].want) != 0)
            sim_fail("a producer that waits for no room asks for credit");
    for (uint32_t i = 0; i < producers; i++)
        if (room.sides[i].rings > room.bell.count)
            sim_fail("a producer has rung %u times for %u armings", room.sides[i].rings, (uint32_t)room.bell.count);
    for (uint32_t i = 0; i < producers; i++)
        close(room.sides[i].room);
    close(room.fd[0]);
    close(room.fd[1]);
}

void sim_room_ring(int worker)
{
    (void)worker;
    run_room(1 + sim_choose(2), 8 + sim_choose(12));
}

void sim_room_bell(int worker)
{
    (void)worker;
    run_room(1, 2);
}
