/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/peer.c: bxi_bell_first_look and bxi_bell_second_look, with an armed word and an eventfd of the test in place
 * of the peer's. The callee of tests/shm/test_kill_steps.c falls asleep between the looks of a whole call;
 * tests/model/doorbell.pml checks that two looks lose no wake-up.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#include <criterion/criterion.h>
#include <sys/types.h>

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

/* As if a request had just gone into the ring of worker 1. */
static bool first_look(struct bx_job *job)
{
    struct bxi_peer *peer = job->rpc->peers[1];
    bool again;

    bxi_lock(&job->run->lock);
    peer->replies_only = false;
    bxi_store_relaxed(&job->rpc->bells_due[0], 1 << 1);
    again = bxi_bell_first_look(job, peer);
    HARNESS_EQ(bxi_load_relaxed(&job->rpc->bells_due[0]), 0);
    bxi_unlock(&job->run->lock);
    return again;
}

static void second_look(struct bx_job *job)
{
    bxi_bell_second_look(job, job->rpc->peers[1]);
}

static void look_at_an_armed_one(struct bx_job *job)
{
    static const enum bxi_who who[] = { BXI_WHO_BACKGROUND, BXI_WHO_LEADER, BXI_WHO_LAZY };

    replace_bell(job);
    for (uint32_t i = 0; i < 3; i++) {
        bxi_bell_arm(&sleeper, who[i]);
        HARNESS_CHECK(!first_look(job));
        HARNESS_EQ(rung(), i + 1);
        HARNESS_CHECK(!job->rpc->peers[1]->defer_bell);
        HARNESS_CHECK(first_look(job));                 /* rung for: the next arming would be news */
        second_look(job);
        HARNESS_EQ(rung(), i + 1);
    }
    HARNESS_EQ(bxi_load_relaxed(&rung_leader), 1);
    restore_bell(job);
}

Test(bell_looks, the_first_rings_whoever_sleeps, .timeout = 20)
{
    harness_run(&(struct harness_world){ .size = 2, .body = { look_at_an_armed_one } });
}

static void arm_between_the_looks(struct bx_job *job)
{
    static const enum bxi_who who[] = { BXI_WHO_BACKGROUND, BXI_WHO_LEADER, BXI_WHO_LAZY };
    uint64_t counted;

    replace_bell(job);
    counted = harness_counter(job, "doorbells_rung");
    for (uint32_t i = 0; i < 3; i++) {
        bxi_bell_disarm(&sleeper);
        HARNESS_CHECK(first_look(job));
        HARNESS_EQ(rung(), i);
        HARNESS_CHECK(job->rpc->peers[1]->defer_bell);
        bxi_bell_arm(&sleeper, who[i]);
        second_look(job);
        HARNESS_EQ(rung(), i + 1);
        HARNESS_CHECK(!job->rpc->peers[1]->defer_bell); /* it was found asleep: the next bell is not deferred */
        second_look(job);
        HARNESS_EQ(rung(), i + 1);
    }
    HARNESS_EQ(bxi_load_relaxed(&rung_leader), 1);
    HARNESS_EQ(harness_counter(job, "doorbells_rung") - counted, 3);
    restore_bell(job);
}

Test(bell_looks, the_second_rings_whoever_has_armed_since, .timeout = 20)
{
    harness_run(&(struct harness_world){ .size = 2, .body = { arm_between_the_looks } });
}

/* Another thread's reply is due by the time of the second look: a sleeper that no reply wakes is rung all the same. */
static void look_for_nothing_or_both(struct bx_job *job)
{
    struct bxi_peer *peer = job->rpc->peers[1];

    replace_bell(job);
    bxi_bell_arm(&sleeper, BXI_WHO_LEADER);
    bxi_lock(&job->run->lock);
    bxi_store_relaxed(&job->rpc->bells_due[0], 0);
    HARNESS_CHECK(!bxi_bell_first_look(job, peer));     /* nothing is due */
    bxi_unlock(&job->run->lock);
    HARNESS_EQ(rung(), 0);
    bxi_bell_disarm(&sleeper);
    HARNESS_CHECK(first_look(job));
    bxi_lock(&job->run->lock);
    peer->replies_only = true;
    bxi_unlock(&job->run->lock);
    bxi_bell_arm(&sleeper, BXI_WHO_LAZY);
    second_look(job);
    HARNESS_EQ(rung(), 1);
    restore_bell(job);
}

Test(bell_looks, the_second_is_for_a_request_whatever_is_due, .timeout = 20)
{
    harness_run(&(struct harness_world){ .size = 2, .body = { look_for_nothing_or_both } });
}
