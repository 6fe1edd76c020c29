/* SPDX-License-Identifier: MIT */
/*
 * lib/run/spin.c where more workers are awake than there are CPUs: when a spin yields its CPU. It flushes the sources
 * before each yield, which is what is counted here. The clocks are fake: 100 ns a look, and of the thread's CPU time
 * 500 ns.
 */
#include "fake_system.h"

static const struct bxi_role *role;
static struct bxi_system ticking;
static bool crowded = true;
static int yields, peeks;
static uint64_t thread_ns, switch_ns;   /* what a yield costs the thread */
static uint64_t away_ns;                /* how long others have the CPU in a yield */
static int found_at;                    /* the peek that finds something; 0: none does */
static bool others;                     /* what is waited for needs other workers */
static int others_at;                   /* the same, from that peek on; 0: never */

static bool is_crowded(void *context)
{
    (void)context;
    return crowded;
}

static uint64_t ticking_ns(void)
{
    return fake.now_ns += 100;
}

static uint64_t thread_clock_ns(void)
{
    return thread_ns += 500;
}

static void yield(void)
{
    thread_ns += switch_ns;
    fake.now_ns += away_ns;
}

static bool peek(void *context, int times)
{
    (void)context, (void)times;
    return ++peeks == found_at;
}

static void flush(void *context)
{
    (void)context;
    yields++;
}

static bool never(struct bxi_waiter *waiter)
{
    (void)waiter;
    return false;
}

static bool needs_others(const struct bxi_waiter *waiter)
{
    (void)waiter;
    return others || (others_at > 0 && peeks >= others_at);
}

static struct bxi_waiter waiter = { .ready = never, .needs_others = needs_others };

static const struct bxi_source_ops ops = { .peek = peek, .flush = flush };

static void set_up(void)
{
    ticking = fake_system;
    ticking.now_ns = ticking_ns;
    ticking.thread_ns = thread_clock_ns;
    ticking.yield = yield;
    switch_ns = 1200;
    fake_host.is_crowded = is_crowded;
    begin_run(&run, &ticking, 100000);
    add_source(&ops, NULL);
    role = bxi_take_role(&run);
    cr_assert_not_null(role);
}

static void tear_down(void)
{
    bxi_leave_role(role, true);
    bxi_run_fini(&run);
}

TestSuite(crowded, .init = set_up, .fini = tear_down, .timeout = 20);

/* The first round of a spin. */
static void spin_once(int at)
{
    struct bxi_spin spin = { 0 };

    yields = peeks = 0;
    found_at = at;
    cr_assert(bxi_spin_on(role, &spin, &waiter));
}

Test(crowded, spin_that_finds_work_at_once_keeps_the_cpu)
{
    spin_once(1);
    cr_expect_eq(peeks, 1);
    cr_expect_eq(yields, 0);
}

/* Four peeks are a round; 1200 ns are twelve looks at the clock, with a round behind each but the last. */
Test(crowded, spin_peeks_for_the_time_of_a_switch_before_it_yields)
{
    spin_once(4 + 10 * 4 + 1);
    cr_expect_eq(yields, 0);
    spin_once(0);
    cr_expect_eq(peeks, 4 + 11 * 4);
    cr_expect_eq(yields, 1);
}

Test(crowded, spin_yields_at_once_for_ever_more_spins_where_that_does_not_pay)
{
    static const int skips[] = { 2, 4, 8, 16, 16 };

    for (int i = 0; i < 5; i++) {
        spin_once(0);
        cr_expect_eq(peeks, 4 + 11 * 4);
        for (int k = 0; k < skips[i]; k++) {
            spin_once(0);
            cr_expect_eq(peeks, 4);
            cr_expect_eq(yields, 1);
        }
    }
}

/* Peeks save switches if a turn has two that found something: one, and the miss that ends the turn, took as long as the
 * switch that the one saved. */
Test(crowded, spin_peeks_again_after_a_turn_with_two_finds)
{
    spin_once(0);
    for (int k = 0; k < 2; k++)
        spin_once(0);
    spin_once(5);
    cr_expect_eq(yields, 0);
    spin_once(5);
    cr_expect_eq(yields, 0);
    for (int k = 0; k < 2; k++) {       /* the miss that ends the turn, and the next */
        spin_once(0);
        cr_expect_eq(peeks, 4 + 11 * 4);
        cr_expect_eq(yields, 1);
    }
}

Test(crowded, spin_peeks_no_more_after_turns_with_one_find)
{
    spin_once(5);
    spin_once(0);
    for (int k = 0; k < 2; k++) {
        spin_once(0);
        cr_expect_eq(peeks, 4);
    }
    spin_once(5);
    spin_once(0);
    for (int k = 0; k < 4; k++) {
        spin_once(0);
        cr_expect_eq(peeks, 4);
    }
}

Test(crowded, spin_yields_between_its_further_rounds)
{
    struct bxi_spin spin = { 0 };

    for (int i = 0; i < 5; i++)
        cr_assert(bxi_spin_on(role, &spin, NULL));
    cr_expect_eq(yields, 5);
    cr_expect_eq(peeks, 5 * 4 + 11 * 4);
}

/* Each asks for the time once. */
Test(crowded, spin_peeks_for_as_long_as_switches_were_measured_to_take)
{
    struct bxi_spin spin = { 0 };

    switch_ns = 6000;
    for (int i = 0; i < 12; i++)        /* the first yields are measured, a round each */
        bxi_spin_on(role, &spin, NULL);
    cr_expect_gt(run.switch_ns, 5400);
    cr_expect_leq(run.switch_ns, 6000);
    run.yield_skips = 0;
    spin_once(4 + 50 * 4);
    cr_expect_eq(yields, 0);
}

Test(crowded, yield_is_measured_now_and_then)
{
    struct bxi_spin spin = { 0 };
    uint64_t reads;

    for (int i = 0; i < 8; i++)
        bxi_spin_on(role, &spin, NULL);
    reads = thread_ns;
    for (int i = 8; i < 63; i++)
        bxi_spin_on(role, &spin, NULL);
    cr_expect_eq(thread_ns - reads, 55 * switch_ns);
    switch_ns = UINT64_C(5000000);      /* an interrupt, say: it counts for 20 us */
    bxi_spin_on(role, &spin, NULL);
    cr_expect_eq(run.switch_ns, (3 * 1200 + 20000) / 4);
}

/* 4.8 us; a yield looks at the clock too. */
Test(crowded, spins_that_find_work_yield_after_four_switches)
{
    int sum = 0;

    spin_once(0);                       /* yields */
    for (int i = 0; i < 490; i++) {
        spin_once(1);
        sum += yields;
    }
    cr_expect_eq(sum, 10);
}

Test(crowded, spins_are_not_where_every_worker_has_a_cpu)
{
    crowded = false;
    spin_once(0);
    cr_expect_eq(peeks, 32);            /* one at a time, with a pause behind each */
    cr_expect_eq(yields, 0);
}

/* What is waited for may need this CPU; a sleep of less than 200 us with the wake-up shows that it comes soon. */
Test(crowded, spins_are_after_one_that_ended_without_work_until_one_finds_work_at_once_or_four_have)
{
    static const int finds_at_once[] = { 5, 2 };

    crowded = false;
    for (int i = 0; i < 2; i++) {
        struct bxi_spin spin = { 0 };

        while (bxi_spin_on(role, &spin, &waiter))
            ;
        cr_expect_eq(run.spin_skips, 2);
        bxi_adapt_spin(role, 200000);
        cr_expect_eq(run.spin_skips, 2);
        bxi_adapt_spin(role, 199999);
        for (int k = 1; k <= 6; k++) {
            spin = (struct bxi_spin){ .rounds = k == finds_at_once[i] };
            yields = 0;
            if (spin.rounds == 0)
                bxi_spin_on(role, &spin, &waiter);
            cr_expect_eq(yields, k < finds_at_once[i]);
            bxi_spin_hit(role, &spin);
        }
    }
}

/* Another program has taken it: a bell gets the CPU back, the next yield would not. */
Test(crowded, spin_ends_with_a_yield_of_a_millisecond_and_none_begins_for_as_long_or_more_if_the_next_are_long_too)
{
    static const uint64_t times[] = { 1, 2, 4, 8, 16, 32, 32, 1 };
    struct bxi_spin spin = { 0 };

    fake.now_ns = UINT64_C(1000000000);
    away_ns = 999000;
    cr_expect(bxi_spin_on(role, &spin, NULL));
    away_ns = 2000000;
    for (int i = 0; i < 8; i++) {
        uint64_t until_ns;

        if (i == 7)                     /* after a long time without */
            fake.now_ns += 5 * away_ns;
        spin = (struct bxi_spin){ 0 };
        cr_expect_not(bxi_spin_on(role, &spin, NULL));
        cr_expect_eq(run.spin_misses, 0);
        until_ns = fake.now_ns + times[i] * away_ns;
        fake.now_ns = until_ns - 10000;
        yields = 0;
        spin = (struct bxi_spin){ 0 };
        cr_expect_not(bxi_spin_on(role, &spin, NULL));
        cr_expect_eq(yields, 0);
        fake.now_ns = until_ns + 10000;
    }
    away_ns = 0;
    cr_expect(bxi_spin_on(role, &spin, NULL));
}

/* What is waited for may be on another CPU. */
Test(crowded, spins_do_not_yield_after_a_long_yield_where_every_worker_has_a_cpu)
{
    struct bxi_spin spin = { 0 };

    away_ns = 2000000;
    cr_expect_not(bxi_spin_on(role, &spin, NULL));
    run.rests_until_ns = fake.now_ns + UINT64_C(1000000000);
    run.spins_to_yield = 1;
    crowded = false;
    spin_once(0);
    cr_expect_eq(yields, 0);
    run.spin_skips = 2;
    bxi_adapt_spin(role, 1000);
    cr_expect_eq(run.spin_skips, 2);
    run.spin_skips = 0;
    others = true;
    spin = (struct bxi_spin){ 0 };
    cr_expect_not(bxi_spin_on(role, &spin, &waiter));
    cr_expect_eq(yields, 0);
}

/* ---- What is known of what is waited for ------------------------------------------------------------- */

/* It is not counted as peeks that did not pay: the next spin peeks again. */
Test(crowded, spin_for_what_needs_others_yields_at_once)
{
    others = true;
    for (int i = 0; i < 3; i++) {
        spin_once(0);
        cr_expect_eq(peeks, 4);
        cr_expect_eq(yields, 1);
    }
    others = false;
    spin_once(0);
    cr_expect_eq(peeks, 4 + 11 * 4);
}

Test(crowded, spin_yields_when_it_turns_out_to_need_others)
{
    others_at = 5;
    spin_once(0);
    cr_expect_eq(peeks, 8);
    cr_expect_eq(yields, 1);
    others_at = 0;
    spin_once(0);
    cr_expect_eq(peeks, 4 + 11 * 4);
}

/* The others look asleep while they wait for a CPU. */
Test(crowded, spin_for_what_needs_others_yields_though_they_look_asleep)
{
    crowded = false;
    others = true;
    spin_once(0);
    cr_expect_eq(yields, 1);
    fake.now_ns += 1000000;
    spin_once(1);
    cr_expect_eq(yields, 0);
}
