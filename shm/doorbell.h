/* SPDX-License-Identifier: MIT */
/*
 * The doorbell: a worker that publishes wakes a worker that sleeps.
 *
 * The armed word is in the sleeper's segment: (count << 2) | who. who is 0: awake; 1: the background thread sleeps;
 * 2: the leader sleeps (each of the two has an eventfd); 3: the background thread sleeps, and no thread needs replies.
 * At 3 producers do not ring for replies; a thread that comes to need a reply polls the rings first. It is Dekker's
 * protocol:
 *
 *     sleeper                                 producer
 *     D1  store the armed word [bell.armed]   P1  publish a frame, a credit, a state
 *     D2  full fence                          P2  full fence
 *     D3  recheck everything                  P3  load the armed word
 *     D4  sleep on the eventfd                P4  if armed and not rung for yet: write the eventfd
 *
 * P2 may be the exchange that gives a lock back, where that is a full fence. P3 needs no lock; P4, and P3 again before
 * it, have the producer's: two of its threads do not ring for one arming.
 *
 * Either the sleeper's D3 sees P1, or the producer's P3 sees D1. A producer remembers the word for which it rang, so
 * one arming costs it at most one write(2). Several producers may each ring once; a spurious wake-up is legal. Only
 * the sleeper writes the armed word; for producers it is a hint.
 *
 * Killed after D1: the word stays armed, and producers ring an eventfd that nobody reads: harmless. Killed after P1,
 * before P4: the sleeper sleeps on, but it also waits on the producer's pidfd, wakes on the death and drains the
 * ring. tests/sim/ checks the protocol, and that it fails without the fences.
 */
#ifndef BXI_DOORBELL_H
#define BXI_DOORBELL_H

#include "atomic.h"
#include "layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct bxi_bell {                   /* the sleeper's side; written with the progress role */
    bxi_a64 *word;
    uint64_t count;
};

struct bxi_bell_peer {              /* a producer's side; written under run->lock */
    const bxi_a64 *word;
    int fd[2];                      /* background, leader */
    bxi_a64 rang_for;               /* the armed word for which it rang last */
};

/* write(2); tests replace it. */
extern ssize_t (*bxi_bell_write)(int fd, const void *data, size_t bytes);

void bxi_bell_arm(struct bxi_bell *bell, enum bxi_who who);     /* D1; the caller fences */
void bxi_bell_disarm(struct bxi_bell *bell);

/* P3: the armed word if this producer has to ring for it, else 0. */
static inline uint64_t bxi_bell_armed(const struct bxi_bell_peer *peer, bool replies_only)
{
    /* [bell.armed] relaxed, pairs with the store in bxi_bell_arm across the two full fences. */
    uint64_t word = bxi_load_relaxed(peer->word);
    unsigned who = (unsigned)(word & 3);

    if (who == BXI_AWAKE || word == bxi_load_relaxed((bxi_a64 *)&peer->rang_for) ||
        (who == BXI_WHO_LAZY && replies_only))
        return 0;
    return word;
}

/* P3 and P4, after the caller's fence. 1 if it rang, 0 if there was no need. replies_only: only replies were
 * published, for which a LAZY sleeper is not woken. */
int bxi_bell_look(struct bxi_bell_peer *peer, bool replies_only);

/* Rings in any case. */
void bxi_bell_ring(int fd);

/* Empties an eventfd (non-blocking). */
void bxi_bell_drain(int fd);

#endif
