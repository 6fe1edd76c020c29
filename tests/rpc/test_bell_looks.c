/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/bell.c: bxi_bell_own and bxi_bell_look_unlocked, with an armed word and an eventfd of the test in place of
 * the peer's. Worker 0 has own_loop: a background thread would flush what a test leaves due. tests/sim
 * checks that the look loses no wake-up.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#define BACKGROUND_FD 100001            /* no descriptor has that number */
#define LEADER_FD 100002

static bxi_a64 word;
static struct bxi_bell sleeper = { .word = &word };
static struct bxi_bell_peer real_bell;
static bxi_a32 rung_background, rung_leader;
static ssize_t (*real_write)(int fd, const void *data, size_t bytes);

static ssize_t counting_write(int fd, const void *data, size_t bytes)
{
    if (fd != BACKGROUND_FD && fd != LEADER_FD)
        return real_write(fd, data, bytes);
    bxi_add(fd == LEADER_FD ? &rung_leader : &rung_background, 1);
    return (ssize_t)bytes;
}

static uint32_t rung(void)
{
    return bxi_load_relaxed(&rung_background) + bxi_load_relaxed(&rung_leader);
}

static void replace_bell(struct bx_job *job)
{
    struct bxi_peer *peer = job->rpc->peers[1];

    bxi_lock(&job->run->lock);
    real_write = bxi_bell_write;
    bxi_bell_write = counting_write;
    real_bell = peer->bell;
    peer->bell = (struct bxi_bell_peer){ .word = &word, .fd = { BACKGROUND_FD, LEADER_FD } };
    bxi_unlock(&job->run->lock);
}

static void restore_bell(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    job->rpc->peers[1]->bell = real_bell;
    bxi_bell_write = real_write;
    bxi_unlock(&job->run->lock);
}

/* As a thread that has just put a request into the ring of worker 1, and that finds nothing due. */
static void own_bell(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    bxi_bell_own(job, job->rpc->peers[1]);
    bxi_unlock(&job->run->lock);
}

static void look(struct bx_job *job)
{
    bxi_bell_look_unlocked(job, job->rpc->peers[1]);
}

/* The word is armed before the request goes into the ring, or after that. */
HARNESS_TEST(bell_looks, ring_whoever_sleeps_by_the_time_of_the_look, 20, .size = 2, .options = { .own_loop = true })
{
    static const enum bxi_who who[] = { BXI_WHO_BACKGROUND, BXI_WHO_LEADER, BXI_WHO_LAZY };
    uint64_t rung_before, saved_before;

    replace_bell(job);
    rung_before = harness_counter(job, "doorbells_rung");
    saved_before = harness_counter(job, "doorbells_saved");
    for (uint32_t i = 0; i < 6; i++) {
        bool early = i < 3;

        bxi_bell_disarm(&sleeper);
        if (early)
            bxi_bell_arm(&sleeper, who[i % 3]);
        own_bell(job);
        HARNESS_CHECK(job->rpc->peers[1]->defer_bell);
        HARNESS_EQ(rung(), i);
        if (!early)
            bxi_bell_arm(&sleeper, who[i % 3]);
        look(job);
        HARNESS_EQ(rung(), i + 1);
        HARNESS_CHECK(!job->rpc->peers[1]->defer_bell); /* it was found asleep: the next bell is not deferred */
        look(job);                                      /* rung for: the next arming would be news */
        HARNESS_EQ(rung(), i + 1);
    }
    HARNESS_EQ(bxi_load_relaxed(&rung_leader), 2);
    HARNESS_EQ(harness_counter(job, "doorbells_rung") - rung_before, 6);
    HARNESS_EQ(harness_counter(job, "doorbells_saved") - saved_before, 0);
    restore_bell(job);
}

HARNESS_TEST(bell_looks, ring_nobody_who_is_awake, 20, .size = 2, .options = { .own_loop = true })
{
    uint64_t saved_before;

    replace_bell(job);
    saved_before = harness_counter(job, "doorbells_saved");
    bxi_bell_disarm(&sleeper);
    own_bell(job);
    look(job);
    HARNESS_EQ(rung(), 0);
    HARNESS_CHECK(job->rpc->peers[1]->defer_bell);
    HARNESS_EQ(harness_counter(job, "doorbells_saved") - saved_before, 1);
    restore_bell(job);
}

/* Another thread's reply is due: it stays due, and a sleeper that no reply wakes is rung all the same. */
HARNESS_TEST(bell_looks, are_for_a_request_whatever_is_due, 20, .size = 2, .options = { .own_loop = true })
{
    struct bxi_peer *peer = job->rpc->peers[1];

    replace_bell(job);
    bxi_lock(&job->run->lock);
    peer->replies_only = true;
    bxi_peers_add(&job->rpc->bells_due, peer);
    bxi_bell_own(job, peer);
    bxi_unlock(&job->run->lock);
    bxi_bell_arm(&sleeper, BXI_WHO_LAZY);
    look(job);
    HARNESS_EQ(rung(), 1);
    HARNESS_EQ(bxi_load_relaxed(&job->rpc->bells_due.word[0]), 1 << 1);
    restore_bell(job);
}
