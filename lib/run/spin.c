/* SPDX-License-Identifier: MIT */
/*
 * Spinning: after an empty pass the thread that drives peeks at the sources for a while before it sleeps, because a
 * wake-up costs more. Under the role. The budget adapts: a sleep that was shorter than twice the largest budget doubles
 * it (the wake-up is part of that time, and takes 50 to 100 us where an idle virtual CPU is to be woken), a longer one
 * halves it, a spin that ended with work adds an eighth. After a spin that ended without work, the next 2, 4, 8, 16
 * sleeps begin at once, unless a sleep was short.
 *
 * Where more workers of the job are awake than there are CPUs, the thread yields its CPU between two rounds of peeks.
 * So it does after a spin that ended without work, until one finds work before it has yielded, or four have found some:
 * what is waited for may need this CPU while another one is idle, and two threads that are ready to run are what makes
 * the kernel move one of them. (Yields for ever kept them on one CPU; after one find, every other spin was in the way.)
 *
 * But first it peeks for about as long as a switch to another process takes: a callee that runs on another CPU has
 * answered by then. If it does not, because what is waited for needs this very CPU, the next 2, 4, 8, 16 spins yield
 * after one round; but not if two peeks had found something since the last yield. (One alone saved a switch, and the
 * miss took as long.)
 *
 * A yield gives the CPU to whoever is ready, for as long as a slice of the kernel's, 3 ms and more; a sleeper gets it
 * back when its bell rings. So a long yield ends the spin, and for as long as it took nothing yields; for 2, 4, 8, 16,
 * 32 times as long if the next ones are long too: another program computes on this CPU. Meanwhile a thread sleeps at
 * once where it would yield for another worker; else it spins without yields, and short sleeps bring no spin back.
 *
 * A callee shows whose rows its batches lack (bxi_call_needs_others). The reply to a row is not peeked for while others
 * are missing: its caller yields at once, whoever looks awake. (To peek for longer while the body runs did not pay.)
 *
 * A switch takes 1.2 us on some machines and 5 to 8 us on others (virtual ones whose system calls take 1 us), so it is
 * measured. The CPU time that a yield costs its thread is that of one switch: the kernel counts a switch half for the
 * thread that leaves and half for the one that comes, and a yield has both halves. Yields that find no other thread to
 * run are cheaper, and count too: a switch is then less likely.
 */
#include "drive.h"

#define SPIN_LEAST_NS 1500u         /* less finds nothing: a reply takes as long where a cache line takes 500 ns */
#define PEEKS 32                    /* between two passes of a spin: how long a timer or a full queue waits */
#define PEEKS_A_CALL 8              /* of them in one call of a source: its cost, 1 ns, is an eighth in each */
#define CLOCK_ROUNDS 8              /* of peeks between two looks at the clock: one in 256 peeks */
#define SWITCH_FIRST_NS 1200u       /* what a switch to another process takes, before it was measured */
#define SWITCH_MOST_NS 20000u       /* a longer yield ran another program in between */
#define SWITCH_ROUNDS 512           /* of peeks in that time, at most: the clock may stand still */
#define TURN_SWITCHES 4             /* how long a crowded thread keeps its CPU, if each of its waits ends with work */
#define PAYS_HITS 2                 /* finds in one turn, for the miss that ends it */
#define YIELDING_SPINS 4            /* that end with work, before one without yields is tried again */
#define LONG_YIELD_NS 1000000u      /* a third of a slice of the kernel's: workers that wait for each other take less */
#define RESTS_MOST 32               /* times as long nothing yields then: long yields take 3 % of the time */
#define SOON_YIELDS 4               /* times as long after a rest the next one is another program's, not a worker's */
#define MEASURED_FIRST 8            /* yields; and from then on one of MEASURED_ONE_IN: it costs three system calls */
#define MEASURED_ONE_IN 64

/* Peeks at the sources, and now and then at events and the waiter. True: there is something. The time between two peeks
 * of one source delays each reply by half of itself, so a source peeks several times in one call. */
static bool peek_for_a_while(struct bxi_run *run, struct bxi_waiter *waiter, bool pause)
{
    int times = pause ? 1 : PEEKS_A_CALL;

    for (int peeks = 0; peeks < PEEKS; peeks += times) {
        if (bxi_peek(run, times) || bxi_load_relaxed(&run->events) != 0 || (waiter != NULL && waiter->ready(waiter)))
            return true;
        if (pause)
            bxi_pause();
    }
    return false;
}

static bool needs_others(const struct bxi_waiter *waiter)
{
    return waiter != NULL && waiter->needs_others != NULL && waiter->needs_others(waiter);
}

/* As peek_for_a_while, for the time of a switch. */
static bool peek_for_a_switch(struct bxi_run *run, struct bxi_waiter *waiter)
{
    uint64_t until_ns;
    bool found = false;

    if (run->yield_skips > 0) {
        run->yield_skips--;
        return false;
    }
    until_ns = run->system->now_ns() + run->switch_ns;
    for (int i = 0; i < SWITCH_ROUNDS && !found && run->system->now_ns() < until_ns; i++) {
        if (needs_others(waiter))
            return false;
        found = peek_for_a_while(run, waiter, false);
    }
    if (found) {
        run->turn_hits++;
        return true;
    }
    run->yield_misses = run->turn_hits >= PAYS_HITS ? 0 : run->yield_misses + (run->yield_misses < 4);
    run->yield_skips = run->yield_misses == 0 ? 0 : 1u << run->yield_misses;
    return false;
}

/* Adds what one more yield cost to the mean of the last few. The clock is a system call, whose cost is taken off. */
static void yield_and_measure(struct bxi_run *run)
{
    const struct bxi_system *system = run->system;
    uint64_t before_ns = system->thread_ns(), began_ns, cost_ns, read_ns;

    began_ns = system->thread_ns();
    read_ns = began_ns - before_ns;
    system->yield();
    cost_ns = system->thread_ns() - began_ns;
    cost_ns = cost_ns > read_ns ? bxi_least(cost_ns - read_ns, SWITCH_MOST_NS) : 0;
    run->switch_ns = (run->switch_ns * 3 + cost_ns) / 4;
}

/* True: another program had the CPU. */
static bool yield(struct bxi_run *run)
{
    uint64_t began_ns = run->system->now_ns(), took_ns;

    if (run->yields++ < MEASURED_FIRST || run->yields % MEASURED_ONE_IN == 0)
        yield_and_measure(run);
    else
        run->system->yield();
    run->yielded_ns = run->system->now_ns();
    run->turn_hits = 0;
    took_ns = run->yielded_ns - began_ns;
    if (took_ns < LONG_YIELD_NS)
        return false;
    run->rest_yields = began_ns < run->rests_until_ns + SOON_YIELDS * took_ns
                           ? bxi_least(2 * run->rest_yields, RESTS_MOST)
                           : 1;
    run->rests_until_ns = run->yielded_ns + run->rest_yields * took_ns;
    return true;
}

/* Gives the CPU away, unless something is there to be handled and this thread has not had the CPU for long. True: it is
 * to sleep instead of the next yields. */
static bool yields_for_long(struct bxi_run *run, struct bxi_spin *spin, struct bxi_waiter *waiter, bool found)
{
    if (!spin->yields && (found || !needs_others(waiter)))
        return false;
    if (!found && spin->rounds == 0)
        found = peek_for_a_switch(run, waiter);
    if (found && run->system->now_ns() - run->yielded_ns < TURN_SWITCHES * run->switch_ns)
        return false;
    bxi_flush(run);                     /* other threads may now run for long */
    spin->has_yielded = true;
    return yield(run);
}

/* Nothing yields. */
static bool rests(const struct bxi_run *run)
{
    return run->rests_until_ns != 0 && run->system->now_ns() < run->rests_until_ns;
}

void bxi_spin_init(struct bxi_run *run, uint64_t spin_ns)
{
    run->spin_ns = run->spin_most_ns = spin_ns;
    run->switch_ns = SWITCH_FIRST_NS;
}

bool bxi_spin_on(const struct bxi_role *role, struct bxi_spin *spin, struct bxi_waiter *waiter)
{
    struct bxi_run *run = bxi_run_of(role);

    if (spin->rounds == 0) {
        if (run->spin_ns == 0 || run->spin_skips > 0) {
            run->spin_skips -= run->spin_skips > 0;
            return false;
        }
        spin->yields = bxi_is_crowded(run);
        if (!rests(run))
            spin->yields |= run->spins_to_yield > 0;
        else if (spin->yields || needs_others(waiter))
            return false;
        bxi_store_relaxed(run->spins, 1);       /* relaxed: for inspectors */
    }
    if (yields_for_long(run, spin, waiter, peek_for_a_while(run, waiter, !spin->yields))) {
        bxi_store_relaxed(run->spins, 0);       /* relaxed: as above */
        return false;
    }
    if (++spin->rounds % CLOCK_ROUNDS != 0)
        return true;

    uint64_t now_ns = run->system->now_ns();

    if (spin->began_ns == 0)
        spin->began_ns = now_ns;
    if (now_ns - spin->began_ns < run->spin_ns)
        return true;
    /* Spins that end in sleep may be what keeps the process that is waited for from running: sleep at once the
     * next 2, 4, 8, 16 times, until a spin ends with work. */
    bxi_run_count(run, BXI_C_spins_missed);
    bxi_store_relaxed(run->spins, 0);           /* relaxed: as above */
    run->spin_misses += run->spin_misses < 4;
    run->spin_skips = 1u << run->spin_misses;
    run->spins_to_yield = YIELDING_SPINS;
    return false;
}

void bxi_spin_paid_off(const struct bxi_role *role, struct bxi_spin *spin)
{
    struct bxi_run *run = bxi_run_of(role);

    bxi_run_count(run, BXI_C_spins_hit);
    bxi_store_relaxed(run->spins, 0);           /* relaxed: as above */
    run->spin_misses = 0;
    run->spins_to_yield = spin->has_yielded && run->spins_to_yield > 0 ? run->spins_to_yield - 1 : 0;
    if (spin->began_ns != 0 && run->spin_ns < run->spin_most_ns)
        run->spin_ns += run->spin_ns / 8;
    *spin = (struct bxi_spin){ 0 };
}

void bxi_adapt_spin(const struct bxi_role *role, uint64_t slept_ns)
{
    struct bxi_run *run = bxi_run_of(role);

    if (run->spin_ns == 0)
        return;
    if (slept_ns < 2 * run->spin_most_ns) {
        run->spin_ns = bxi_least(run->spin_ns * 2, run->spin_most_ns);
        if (!rests(run))
            run->spin_skips = 0;
    } else if (run->spin_ns / 2 >= SPIN_LEAST_NS) {
        run->spin_ns /= 2;
    }
}
