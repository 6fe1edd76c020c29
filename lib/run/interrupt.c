/* SPDX-License-Identifier: MIT */
/*
 * Ending waits at the program's request. Any thread, and any signal handler, on any thread: it takes no lock that it
 * would have to wait for, and calls nothing but write(2) and futex(2).
 *
 * `interrupted` is written first, and each waiting thread reads it after whatever ended its sleep:
 *
 *     the leader       before each pass. Its eventfd is rung whether a thread sleeps there or not, and stays readable
 *                      until a leader drains it: so a leader that is about to sleep wakes at once. One that spins polls
 *                      the events: BXI_EVENT_INTERRUPT ends that. Only a holder of the role takes events away, and
 *                      handing over the role makes visible what the earlier holder saw.
 *     a follower       after it has linked itself, and after each signal. Its signal needs wait_lock, which the thread
 *                      that the handler interrupts may hold, so the handler only tries to take it. Whoever releases
 *                      the lock reads signal_all then (bxi_unlock_waits):
 *
 *                          interrupter                          holder of wait_lock
 *                          I1  store signal_all                 H1  release the lock
 *                          I2  full fence                       H2  full fence
 *                          I3  try the lock                     H3  load signal_all
 *
 *                      If I3 fails, the lock was held, so its release (H1) comes later and H3 sees I1. A follower that
 *                      links itself after the lists were signalled takes the lock after `interrupted` was written.
 *     the start        polls the leader's eventfd beside its sockets (start.c)
 *
 * tests/sim/room_role.c checks the first two. A stale ring or event costs one empty pass. Nothing here is
 * in shared memory: a killed process takes it along.
 */
#include "drive.h"

void bxi_run_interrupt(struct bxi_run *run, bool on)
{
    /* [interrupted] release, pairs with what ends each thread's sleep: the event, the ring, the signal come later. */
    bxi_store_release(&run->interrupted, on);
    if (!on)
        return;
    bxi_note(run, BXI_EVENT_INTERRUPT);
    /* Whoever leads: the handler may have interrupted the leader itself. */
    bxi_bell_ring(run->bell_fd[1]);
    /* [signal_all] release, pairs with the acquire in bxi_signal_all. */
    bxi_store_release(&run->signal_all, 1);
    bxi_fence_seq_cst();            /* [signal_all] pairs with the fence in bxi_unlock_waits */
    bxi_signal_all(run);
}
