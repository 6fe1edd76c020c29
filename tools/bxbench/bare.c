/* SPDX-License-Identifier: MIT */
/*
 * The bare limits: a cache line between two cores, and the rings of shm/ with nothing on top.
 *
 * The area has one page of orders, one page with a line for each side, and two ring sides for each client. One
 * process writes the pages of a side, as in a job. The worker that measures forks the echo process, which runs on the
 * core of the Boxcar callee and sleeps on a semaphore outside of its slices, so that only one pair of processes runs at
 * any time. Whether a pause between two polls makes an echo faster depends on what a line costs: here it took 210
 * instead of 190 ns where a line takes 100, and 625 instead of 650 where a line takes 600. So an echo can be ordered
 * either way, and the faster of the two is the limit to compare with.
 *
 * A spin ends after SPINS_MAX polls: the other side is dead or was never scheduled.
 */
#include "bxbench.h"

#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

#define SPINS_MAX UINT64_C(8000000000)

struct ring_side {                          /* written by one process */
    _Alignas(4096) unsigned char ring[BXI_RING_BYTES];
    _Alignas(128) bxi_a64 credit;           /* of the other side's ring */
    _Alignas(128) bxi_a64 want;
};

struct bench_bare {
    sem_t ordered;                          /* posted for each order */
    uint32_t kind;
    uint64_t rounds;
    int clients;
    pid_t echo_pid;
    _Alignas(4096) bxi_a64 line_there;
    _Alignas(4096) bxi_a64 line_back;       /* the prefetcher fetches pairs of lines: 128 apart, or more */
    struct ring_side side[];                /* 2 x i: client i's; 2 x i + 1: the echo's */
};

static void client_init(struct bench_bare_client *client, struct ring_side *mine,
                        struct ring_side *other)
{
    bxi_ring_writer_init(&client->out, mine->ring, BXI_RING_BYTES, 0, &other->credit, &mine->want);
    bxi_ring_reader_init(&client->in, other->ring, BXI_RING_BYTES, 0, &mine->credit, &other->want);
}

void bench_bare_client_init(struct bench_bare_client *client, struct bench_bare *bare, int index)
{
    client->bare = bare;
    client_init(client, &bare->side[2 * index], &bare->side[2 * index + 1]);
}

/* ---- Frames ------------------------------------------------------------------------------------ */

static int send_bytes(struct bxi_ring_writer *out, const void *message)
{
    const unsigned char *body = (const unsigned char *)message + BXI_HEAD_BYTES;
    uint64_t body_bytes = BENCH_MESSAGE_BYTES - BXI_HEAD_BYTES;
    int rc;

    for (uint64_t spins = 0; (rc = bxi_ring_put(out, message, body, body_bytes)) == -EAGAIN; spins++)
        if (spins > SPINS_MAX)
            return -ETIMEDOUT;
    return rc;
}

/* 1: received; 0: nothing to receive; -EPROTO. The ring's advance publishes credit; no process sleeps on it here. */
static int try_receive(struct bxi_ring_reader *in, void *message)
{
    const void *payload;
    uint32_t bytes;
    int rc = bxi_ring_peek(in, &payload, &bytes);

    if (rc <= 0)
        return rc;
    if (bytes != BENCH_MESSAGE_BYTES)
        return -EPROTO;
    memcpy(message, payload, BENCH_MESSAGE_BYTES);
    bxi_ring_advance(in, bytes);
    return 1;
}

int bench_bare_send(struct bench_bare_client *client, uint64_t number)
{
    uint64_t words[BENCH_MESSAGE_BYTES / 8] = { number, ~number };

    return send_bytes(&client->out, words);
}

int bench_bare_receive(struct bench_bare_client *client, uint64_t number)
{
    uint64_t words[BENCH_MESSAGE_BYTES / 8];
    bool pauses = client->bare->kind == BENCH_BARE_ECHO_PAUSED;
    int rc;

    for (uint64_t spins = 0; (rc = try_receive(&client->in, words)) == 0; spins++) {
        if (spins > SPINS_MAX)
            return -ETIMEDOUT;
        if (pauses)
            bxi_pause();
    }
    if (rc < 0)
        return rc;
    return words[0] == number && words[1] == ~number ? 0 : -EPROTO;
}

/* ---- The echo process -------------------------------------------------------------------------- */

static bool wait_line(const bxi_a64 *line, uint64_t value)
{
    for (uint64_t spins = 0;; spins++) {
        /* [bench.line] acquire, pairs with the release of the other side. */
        if (bxi_load_acquire(line) == value)
            return true;
        if (spins > SPINS_MAX)
            return false;
    }
}

static int echo_lines(struct bench_bare *bare, uint64_t rounds)
{
    for (uint64_t i = 1; i <= rounds; i++) {
        if (!wait_line(&bare->line_there, i))
            return -ETIMEDOUT;
        /* [bench.line] release, pairs with the acquire in wait_line. */
        bxi_store_release(&bare->line_back, i);
    }
    return 0;
}

static int echo_frames(struct bench_bare_client *echo, int clients, uint64_t rounds, bool pauses)
{
    unsigned char message[BENCH_MESSAGE_BYTES];
    uint64_t spins = 0;

    for (int i = 0; rounds > 0; i = i + 1 < clients ? i + 1 : 0) {
        int rc = try_receive(&echo[i].in, message);

        if (rc == 0 && spins++ < SPINS_MAX) {
            if (pauses)
                bxi_pause();
            continue;
        }
        if (rc == 0)
            return -ETIMEDOUT;
        if (rc < 0 || (rc = send_bytes(&echo[i].out, message)) < 0)
            return rc;
        rounds--;
        spins = 0;
    }
    return 0;
}

static int run_echo(struct bench_bare *bare)
{
    struct bench_bare_client echo[BENCH_CPUS_MAX];

    for (int i = 0; i < bare->clients; i++)
        client_init(&echo[i], &bare->side[2 * i + 1], &bare->side[2 * i]);
    for (;;) {
        while (sem_wait(&bare->ordered) != 0)
            ;       /* interrupted by a signal */

        int rc;

        if (bare->kind == BENCH_BARE_LINE)
            rc = echo_lines(bare, bare->rounds);
        else if (bare->kind == BENCH_BARE_ECHO || bare->kind == BENCH_BARE_ECHO_PAUSED)
            rc = echo_frames(echo, bare->clients, bare->rounds, bare->kind == BENCH_BARE_ECHO_PAUSED);
        else
            return 0;
        if (rc < 0)
            return bench_fail("the bare echo", rc);
    }
}

struct bench_bare *bench_bare_start(int clients, int cpu)
{
    struct bench_bare *bare = bench_map(sizeof *bare + 2 * (size_t)clients * sizeof(struct ring_side));

    pid_t pid;

    bare->clients = clients;
    sem_init(&bare->ordered, 1, 0);
    pid = bench_fork();
    if (pid == 0) {
        int rc = bench_pin(&cpu, 1);

        _exit(rc < 0 ? bench_fail("the bare echo", rc) : run_echo(bare));
    }
    if (pid < 0)
        bench_fail("fork", pid);
    bare->echo_pid = pid;
    return pid > 0 ? bare : NULL;
}

void bench_bare_order(struct bench_bare *bare, enum bench_bare_kind kind, uint64_t rounds)
{
    bare->kind = kind;
    bare->rounds = rounds;
    if (kind == BENCH_BARE_LINE) {
        /* [bench.line] relaxed: both sides sleep or wait; the semaphore releases it. */
        bxi_store_relaxed(&bare->line_there, 0);
        bxi_store_relaxed(&bare->line_back, 0);
    }
    sem_post(&bare->ordered);
}

bool bench_bare_stop(struct bench_bare *bare, uint64_t timeout_ns)
{
    bench_bare_order(bare, BENCH_BARE_STOP, 0);
    if (bench_reap(bare->echo_pid, timeout_ns) == 0)
        return true;
    if (timeout_ns > 0)
        bench_say("the bare echo ended badly");
    return false;
}

double bench_bare_line(struct bench_bare *bare, uint64_t rounds)
{
    uint64_t warm = rounds / 10 + 1;
    uint64_t before = 0;

    bench_bare_order(bare, BENCH_BARE_LINE, warm + rounds);
    for (uint64_t i = 1; i <= warm + rounds; i++) {
        if (i == warm + 1)
            before = bench_ticks();
        /* [bench.line] release, pairs with the acquire in wait_line. */
        bxi_store_release(&bare->line_there, i);
        if (!wait_line(&bare->line_back, i))
            return 0;
    }
    return (double)(bench_ticks() - before) / (double)rounds;
}
