/* SPDX-License-Identifier: MIT */
/*
 * The bodies of stress.h. Both sides follow a worker's protocol: publish, fence, load the armed word; before sleep arm,
 * fence, recheck. They spin for a short random time before that, so that arming and publishing meet at every distance.
 *
 * The mapping has two pages of words, each written by one side, and the ring, written by the producer. In two processes
 * each side maps the pages that it does not own read-only, so a store that breaks the rule "one writer per page" ends
 * the run.
 */
#include "stress.h"

#include "shm/doorbell.h"
#include "shm/ring.h"
#include "shm/sleeper.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPACITY 4096u
#define PATIENCE_NS UINT64_C(5000000000)
#define PATIENCE_TIMES 6
#define TOKEN 7

/* The page that one side writes. */
struct words {
    _Alignas(BXI_PAGE) bxi_a64 armed;
    _Alignas(BXI_LINE) bxi_a64 want_credit;
    _Alignas(BXI_LINE) bxi_a64 credit;
    _Alignas(BXI_LINE) bxi_a64 turn;
};

struct shared {
    struct words side[2];           /* 0 produces, 1 consumes */
    _Alignas(BXI_PAGE) unsigned char ring[CAPACITY];
};

struct run {
    struct shared *shared;
    int bells[2][2];                /* side, who - 1 */
    uint64_t count;                 /* frames or rounds */
    bxi_a32 failed;                 /* the line where one side gave up; then the other gives up too */
};

/* The private state of one side. */
struct side {
    struct run *run;
    int index;
    enum bxi_sleeper_kind kind;
    uint64_t random;
    int result;
    struct bxi_bell bell;           /* its own */
    struct bxi_bell_peer peer;      /* the other's */
    struct bxi_sleeper *sleeper;
    struct bxi_ring_writer writer;  /* side 0 of the ring */
    uint64_t hint;                  /* a credit seen some frames ago */
    struct bxi_ring_reader reader;  /* side 1 */
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static uint64_t random_below(struct side *side, uint64_t bound)
{
    side->random += UINT64_C(0x9e3779b97f4a7c15);
    return mix(side->random) % bound;
}

/* ---- Sleeping -------------------------------------------------------------------------------- */

static enum bxi_who random_who(struct side *side)
{
    return random_below(side, 2) ? BXI_WHO_LEADER : BXI_WHO_BACKGROUND;
}

/* D1 and D2. */
static void arm(struct side *side)
{
    bxi_bell_arm(&side->bell, random_who(side));
    bxi_fence_seq_cst();
}

static void wake_up(struct side *side)
{
    bxi_bell_disarm(&side->bell);
    for (int who = 0; who < 2; who++)
        bxi_bell_drain(side->run->bells[side->index][who]);
}

/* Sleeps, armed, until rung. 0, or a line. has_work: there is work for this side. One timeout with work may be due to
 * a peer that was stopped between publishing and ringing; two in a row are a lost wake-up. */
static int sleep_until_rung(struct side *side, bool (*has_work)(struct side *side))
{
    int missed = 0;
    uint64_t token = 0;

    /* [stress.failed] relaxed: only an early end depends on it. */
    if (bxi_load_relaxed(&side->run->failed) != 0)
        return __LINE__;
    for (int times = 0; times < PATIENCE_TIMES; times++) {
        int count = bxi_sleeper_wait(side->sleeper, PATIENCE_NS, &token, 1);
        if (count < 0)
            return __LINE__;
        if (count == 1) {
            wake_up(side);
            return token >= TOKEN && token <= TOKEN + 1 ? 0 : __LINE__;
        }
        missed = has_work(side) ? missed + 1 : 0;
        if (missed == 2)
            return __LINE__;
    }
    return __LINE__;
}

static void spin_a_little(struct side *side)
{
    for (uint64_t left = random_below(side, 4) ? random_below(side, 64) : 0; left > 0; left--)
        bxi_pause();
}

/* P2 to P4. */
static void ring_for(struct side *side)
{
    bxi_fence_seq_cst();
    bxi_bell_look(&side->peer, false);
}

/* The end of a side. Keeps the first failure. */
static void close_side(struct side *side, int line)
{
    uint32_t none = 0;

    bxi_sleeper_destroy(side->sleeper);
    side->result = line;
    if (line == 0)
        return;
    bxi_cas(&side->run->failed, &none, (uint32_t)line);
    for (int who = 0; who < 2; who++)
        bxi_bell_ring(side->run->bells[1 - side->index][who]);
}

static int open_side(struct side *side)
{
    struct shared *shared = side->run->shared;
    int other = 1 - side->index;

    side->random = (uint64_t)side->index + 1;
    side->bell = (struct bxi_bell){ .word = &shared->side[side->index].armed };
    side->peer = (struct bxi_bell_peer){
        .word = &shared->side[other].armed,
        .fd = { side->run->bells[other][0], side->run->bells[other][1] },
    };
    if (bxi_sleeper_create(side->kind, &side->sleeper) < 0)
        return __LINE__;
    for (uint64_t who = 0; who < 2; who++)
        if (bxi_sleeper_watch(side->sleeper, side->run->bells[side->index][who], TOKEN + who) < 0)
            return __LINE__;
    return 0;
}

/* ---- The ring -------------------------------------------------------------------------------- */

static uint32_t frame_bytes(uint64_t frame)
{
    uint64_t random = mix(frame);

    return 1 + (uint32_t)((random & 7) == 0 ? (random >> 8) % (CAPACITY / 8) : (random >> 8) % 100);
}

static unsigned char frame_byte(uint64_t frame, uint32_t i)
{
    return (unsigned char)(mix(frame) >> (i % 8 * 8)) ^ (unsigned char)i;
}

static bool has_credit(struct side *side)
{
    /* [ring.credit] relaxed: only for has_work after a timeout. */
    return bxi_load_relaxed(side->writer.credit_word) != side->writer.credit;
}

static bool has_frame(struct side *side)
{
    return bxi_ring_ready(&side->reader);
}

static int wait_for_room(struct side *side, uint64_t bytes)
{
    ring_for(side);                 /* for frames without a ring so far */
    spin_a_little(side);
    arm(side);
    if (bxi_ring_want(&side->writer, bytes)) {
        bxi_bell_disarm(&side->bell);
        return 0;
    }
    return sleep_until_rung(side, has_credit);
}

static void fill(unsigned char *to, uint64_t frame, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = frame_byte(frame, i);
}

/* Sends by bxi_ring_put, as the engine does, or, if the frame is shorter than a head and in random cases, by
 * bxi_ring_reserve and bxi_ring_commit. */
static int send_frame(struct side *side, uint64_t frame, uint32_t bytes)
{
    unsigned char copy[CAPACITY / 8];
    unsigned char *payload = NULL;

    if (bytes >= BXI_HEAD_BYTES && mix(frame + 1) % 4 != 0) {
        const void *body = bytes > BXI_HEAD_BYTES ? copy + BXI_HEAD_BYTES : NULL;

        fill(copy, frame, bytes);
        return bxi_ring_put(&side->writer, copy, body, bytes - BXI_HEAD_BYTES);
    }

    int rc = bxi_ring_reserve(&side->writer, bytes, (void **)&payload);

    if (rc < 0)
        return rc;
    fill(payload, frame, bytes);
    bxi_ring_commit(&side->writer, bytes);
    return 0;
}

/* Keeps a credit and takes it later, like one piggybacked on a frame: newer credits may have overtaken it. */
static int take_hint(struct side *side)
{
    int rc = 0;

    if (random_below(side, 8) != 0)
        return 0;
    if (side->writer.credit - side->hint <= CAPACITY || side->hint - side->writer.credit <= CAPACITY)
        rc = bxi_ring_credit_hint(&side->writer, side->hint);
    /* [ring.credit] acquire, pairs with the release in bxi_ring_publish, as the acquire of the frame would. */
    side->hint = bxi_load_acquire(side->writer.credit_word);
    return rc;
}

static int produce(struct side *side)
{
    uint64_t starved = 0;

    for (uint64_t frame = 0; frame < side->run->count; frame++) {
        uint32_t bytes = frame_bytes(frame);
        int rc;

        while ((rc = send_frame(side, frame, bytes)) == -EAGAIN) {
            starved++;
            int line = wait_for_room(side, bytes);
            if (line != 0)
                return line;
        }
        if (rc < 0 || take_hint(side) < 0)
            return __LINE__;
        if (random_below(side, 4) == 0)
            ring_for(side);
        if (random_below(side, 64) == 0) {
            ring_for(side);
            for (uint64_t left = random_below(side, 4000); left > 0; left--)
                bxi_pause();        /* until the consumer has read everything */
        }
    }
    ring_for(side);
    return starved > 0 || side->run->count < 1000 ? 0 : __LINE__;
}

/* After a publish. */
static void ring_if_wanted(struct side *side)
{
    bxi_fence_seq_cst();
    if (bxi_ring_wanted(&side->reader))
        bxi_bell_look(&side->peer, false);
}

/* Reads all frames that are there. 0 or a line. */
static int drain(struct side *side, uint64_t *frame)
{
    unsigned char copy[CAPACITY / 8];
    const void *payload;
    uint32_t bytes;
    int rc;

    while ((rc = bxi_ring_peek(&side->reader, &payload, &bytes)) == 1) {
        if (bytes != frame_bytes(*frame))
            return __LINE__;
        memcpy(copy, payload, bytes);
        for (uint32_t i = 0; i < bytes; i++)
            if (copy[i] != frame_byte(*frame, i))
                return __LINE__;
        if (bxi_ring_advance(&side->reader, bytes))
            ring_if_wanted(side);
        ++*frame;
    }
    return rc < 0 ? __LINE__ : 0;
}

static int consume(struct side *side)
{
    uint64_t frame = 0;

    while (frame < side->run->count) {
        int line = drain(side, &frame);
        if (line != 0)
            return line;
        if (bxi_ring_publish(&side->reader))
            ring_if_wanted(side);
        if (frame == side->run->count)
            break;
        spin_a_little(side);
        arm(side);
        if (bxi_ring_ready(&side->reader)) {
            bxi_bell_disarm(&side->bell);
            continue;
        }
        line = sleep_until_rung(side, has_frame);
        if (line != 0)
            return line;
    }
    return 0;
}

static void *ring_side(void *context)
{
    struct side *side = context;
    struct shared *shared = side->run->shared;
    struct words *producer = &shared->side[0];
    struct words *consumer = &shared->side[1];

    if (side->index == 0)
        bxi_ring_writer_init(&side->writer, shared->ring, CAPACITY, 0, &consumer->credit,
                             &producer->want_credit);
    else
        bxi_ring_reader_init(&side->reader, shared->ring, CAPACITY, 0, &consumer->credit,
                             &producer->want_credit);
    int line = open_side(side);
    if (line == 0)
        line = side->index == 0 ? produce(side) : consume(side);
    close_side(side, line);
    return NULL;
}

/* ---- Arming and publishing at the same instant ----------------------------------------------- */

/* Waits until the other side is here too. False if it has given up. */
static bool meet(struct side *side, uint64_t step)
{
    bxi_a64 *mine = &side->run->shared->side[side->index].credit;
    const bxi_a64 *theirs = &side->run->shared->side[1 - side->index].credit;

    /* [stress.step] release, pairs with the acquire below: what was done before the meeting is visible after it. */
    bxi_store_release(mine, step);
    /* [stress.step] acquire, pairs with the release above. */
    for (int tries = 0; bxi_load_acquire(theirs) < step; tries++) {
        if (tries < 2000)
            bxi_pause();
        else if (bxi_load_relaxed(&side->run->failed) == 0)
            sched_yield();
        else
            return false;
    }
    return true;
}

/* One side publishes, fences and loads the armed word; the other arms, fences and rechecks. One must see the other. */
static int collide(struct side *side)
{
    bxi_a64 *turn = &side->run->shared->side[0].turn;

    for (uint64_t round = 1; round <= side->run->count; round++) {
        bool has_seen = false;
        uint64_t token;

        if (!meet(side, 2 * round))
            return 0;
        for (uint64_t left = random_below(side, 4); left > 0; left--)
            bxi_pause();
        if (side->index == 0) {
            bxi_store_relaxed(turn, round);
            ring_for(side);
        } else {
            arm(side);
            has_seen = bxi_load_relaxed(turn) == round;
        }
        if (!meet(side, 2 * round + 1))
            return 0;
        if (side->index == 0)
            continue;
        if (!has_seen && bxi_sleeper_wait(side->sleeper, 0, &token, 1) != 1)
            return __LINE__;
        wake_up(side);
    }
    return 0;
}

static void *collision_side(void *context)
{
    struct side *side = context;
    int line = open_side(side);

    close_side(side, line != 0 ? line : collide(side));
    return NULL;
}

/* ---- Front to back --------------------------------------------------------------------------- */

static void close_run(struct run *run)
{
    for (int i = 0; i < 4; i++)
        if (run->bells[i / 2][i % 2] >= 0)
            close(run->bells[i / 2][i % 2]);
    munmap(run->shared, sizeof(*run->shared));
}

static int open_run(struct run *run, uint64_t count)
{
    void *base = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool is_whole = true;

    if (base == MAP_FAILED)
        return __LINE__;
    *run = (struct run){ .shared = base, .count = count };
    for (int i = 0; i < 4; i++) {
        run->bells[i / 2][i % 2] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        is_whole = is_whole && run->bells[i / 2][i % 2] >= 0;
    }
    if (is_whole)
        return 0;
    close_run(run);
    return __LINE__;
}

/* The first side sleeps in io_uring, the second in epoll. */
static int run_threads(uint64_t count, void *(*body)(void *))
{
    struct run run;
    struct side sides[2];
    pthread_t thread;

    int line = open_run(&run, count);
    if (line != 0)
        return line;
    memset(sides, 0, sizeof(sides));
    for (int i = 0; i < 2; i++) {
        sides[i].run = &run;
        sides[i].index = i;
        sides[i].kind = i == 0 ? BXI_SLEEPER_URING : BXI_SLEEPER_EPOLL;
    }
    if (pthread_create(&thread, NULL, body, &sides[1]) != 0) {
        close_run(&run);
        return __LINE__;
    }
    body(&sides[0]);
    pthread_join(thread, NULL);
    close_run(&run);
    return (int)bxi_load_relaxed(&run.failed);
}

int bxi_stress_ring(uint64_t frames)
{
    return run_threads(frames, ring_side);
}

int bxi_stress_collision(uint64_t rounds)
{
    return run_threads(rounds, collision_side);
}

/* Makes the pages that this side does not own read-only. */
static int keep_to_own_pages(struct shared *shared, int index)
{
    if (mprotect(&shared->side[1 - index], sizeof(struct words), PROT_READ) < 0)
        return __LINE__;
    if (index == 1 && mprotect(shared->ring, sizeof(shared->ring), PROT_READ) < 0)
        return __LINE__;
    return 0;
}

static int run_process(struct run *run, int index)
{
    struct side side = { .run = run, .index = index, .kind = BXI_SLEEPER_URING };
    int line = keep_to_own_pages(run->shared, index);

    if (line != 0)
        return line;
    ring_side(&side);
    return side.result;
}

int bxi_stress_ring_processes(uint64_t frames)
{
    struct run run;
    int status = 0;

    int line = open_run(&run, frames);
    if (line != 0)
        return line;
    pid_t child = fork();
    if (child == 0)
        _exit(run_process(&run, 1) == 0 ? 0 : 1);
    line = child < 0 ? __LINE__ : run_process(&run, 0);
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0) && line == 0)
        line = __LINE__;
    close_run(&run);
    return line;
}
