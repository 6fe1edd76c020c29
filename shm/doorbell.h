/* SPDX-License-Identifier: MIT */
/*
 * The doorbell: how a worker that sleeps is woken by one that publishes.
 *
 * The word lies in the sleeper's segment: (count << 2) | who, who being 0 awake, 1 the background
 * thread sleeps, 2 the leader sleeps; each has an eventfd of its own; 3 the background thread sleeps and
 * no thread needs replies: then it is not rung for them, and whoever comes to need one looks first. It is
 * Dekker's protocol:
 *
 *     sleeper                                 producer
 *     D1  store word = armed  [bell.armed]    P1  publish a frame, a credit, a state
 *     D2  full fence                          P2  full fence
 *     D3  look at everything once more        P3  look at the word
 *     D4  sleep on the eventfd                P4  if armed and not yet rung for: write the eventfd
 *
 * Either the sleeper's D3 sees P1, or the producer's P3 sees D1. The producer remembers the word it
 * rang for, so each arming costs a producer at most one write(2); several producers may each ring once,
 * and a wake-up without cause is legal. The word is only a hint for others: nobody else writes it.
 *
 * Killed after D1: the word stays armed and producers ring an eventfd that nobody reads: harmless.
 * Killed after P1, before P4: the sleeper sleeps on; it has the producer's pidfd in its wait, wakes on
 * the death, and drains the ring. tests/model/ checks both protocols, with the fences taken away too.
 */
#ifndef BXI_DOORBELL_H
#define BXI_DOORBELL_H

#include "atomic.h"
#include "layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct bxi_bell {                   /* the sleeper's side, written under the progress role */
    bxi_a64 *word;
    uint64_t count;
};

struct bxi_bell_peer {              /* a producer's view of it, under the job's lock */
    const bxi_a64 *word;
    int fd[2];                      /* background, leader */
    bxi_a64 rang_for;
};

/* write(2), replaced in tests: rings fd. */
extern ssize_t (*bxi_bell_write)(int fd, const void *data, size_t bytes);

void bxi_bell_arm(struct bxi_bell *bell, enum bxi_who who);     /* D1; the caller fences */
void bxi_bell_disarm(struct bxi_bell *bell);

/* P3 and P4, after the caller's fence: 1 if it rang, 0 if there was no need. replies_only: what was
 * published is nothing but replies, for which a LAZY sleeper is not to be woken. */
int bxi_bell_look(struct bxi_bell_peer *peer, bool replies_only);

/* Rings without looking. */
void bxi_bell_ring(int fd);

/* Empties an eventfd (non-blocking). */
void bxi_bell_drain(int fd);

#endif
