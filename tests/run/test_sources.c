/* SPDX-License-Identifier: MIT */
/*
 * lib/run: the role, waiting and deadlines with fake sources, a fake clock and a fake sleep. There is no job and no
 * peer, and no time passes.
 */
#include "fake_system.h"

#include "base/usercall.h"

#define SECOND BXI_WATCHDOG_NS
#define LOG_MAX 64

/* ---- The run, and a source ---------------------------------------------------------------------- */

static char called[LOG_MAX];            /* a letter for each call, in order */

static void note(char letter)
{
    size_t length = strlen(called);

    if (length + 1 < sizeof called)
        called[length] = letter;
}

struct source {
    char letter;                        /* pass; in capitals: an event */
    bxi_a32 work;                       /* frames, so to say */
    uint32_t events;                    /* that were handed to it */
    uint64_t watched_ns;                /* how long it lets a thread sleep; 0: for ever */
    int watchdogs, flushes, before_sleeps;
    uint64_t watchdog_ns[LOG_MAX];
    bool work_before_sleep;             /* its next before_sleep finds some */
    bool silent;                        /* its next before_sleep is followed by work that nobody rings for */
    bool leaves;                        /* the thread of its next pass with work ends in a handler of the program */
    bool calls;                         /* its passes with work hand that to other threads */
};

static bool has_work(void *context, const struct bxi_role *role)
{
    (void)role;
    return bxi_load_seq_cst(&((struct source *)context)->work) != 0;
}

static int pass(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    struct source *source = context;

    (void)waiter;
    cr_assert(bxi_run_of(role) == &run && bxi_is_driving(&run));
    note(source->letter);
    if (source->leaves && has_work(source, role)) {
        source->leaves = false;
        bxi_leaving = source;
    }
    run.calls |= source->calls && has_work(source, role);
    return (int)bxi_exchange(&source->work, 0);
}

static void handle(void *context, const struct bxi_role *role, uint32_t event)
{
    struct source *source = context;

    (void)role;
    cr_assert_eq(event & (event - 1), 0);
    source->events |= event;
    note((char)('0' + __builtin_ctz(event)));
}

static bool peek(void *context, int times)
{
    (void)times;
    return has_work(context, NULL);
}

static void flush(void *context)
{
    ((struct source *)context)->flushes++;
}

static bool before_sleep(void *context, const struct bxi_role *role)
{
    struct source *source = context;
    bool work = source->work_before_sleep;

    (void)role;
    source->before_sleeps++;
    source->work_before_sleep = false;
    if (source->silent)
        bxi_store_relaxed(&source->work, 1);
    source->silent = false;
    return work;
}

static uint64_t next_deadline_ns(void *context, uint64_t now_ns)
{
    const struct source *source = context;

    return source->watched_ns != 0 ? now_ns + source->watched_ns : BX_FOREVER;
}

static void watchdog(void *context, const struct bxi_role *role)
{
    struct source *source = context;

    (void)role;
    if (source->watchdogs < LOG_MAX)
        source->watchdog_ns[source->watchdogs] = fake_now_ns();
    source->watchdogs++;
}

static const struct bxi_source_ops whole_ops = {
    .events = BXI_EVENT_SCAN | 8, .handle = handle, .pass = pass, .peek = peek, .ready = has_work, .flush = flush,
    .before_sleep = before_sleep, .next_deadline_ns = next_deadline_ns, .watchdog = watchdog,
};
static const struct bxi_source_ops other_ops = { .events = 2, .handle = handle, .pass = pass };

static struct source whole = { .letter = 'a' }, other = { .letter = 'b' };

static void set_up(void)
{
    fake.alone = true;
    begin_run(&run, &fake_system, 0);
    add_source(&whole_ops, &whole);
    add_source(&other_ops, &other);
}

TestSuite(sources, .init = set_up, .fini = end_run, .timeout = 20);

/* ---- Waiters ------------------------------------------------------------------------------------- */

struct flag_waiter {
    struct bxi_waiter waiter;           /* first */
    bxi_a32 is_ready;
    pthread_t thread;
    int rc;
};

static bool flag_ready(struct bxi_waiter *waiter)
{
    return bxi_load_seq_cst(&((struct flag_waiter *)(void *)waiter)->is_ready) != 0;
}

static void init_waiter(struct flag_waiter *flag, uint64_t deadline_ns)
{
    *flag = (struct flag_waiter){ .waiter = { .ready = flag_ready, .object = flag, .deadline_ns = deadline_ns } };
}

static int wait_until(uint64_t deadline_ns)
{
    struct flag_waiter flag;

    init_waiter(&flag, deadline_ns);
    return bxi_wait(&run, &flag.waiter);
}

static void *wait_in_thread(void *argument)
{
    struct flag_waiter *flag = argument;

    flag->rc = bxi_wait(&run, &flag->waiter);
    return NULL;
}

static void begin_wait(struct flag_waiter *flag, bool passive)
{
    init_waiter(flag, BX_FOREVER);
    flag->waiter.passive = passive;
    cr_assert_eq(pthread_create(&flag->thread, NULL, wait_in_thread, flag), 0);
}

static void make_ready(struct flag_waiter *flag)
{
    bxi_exchange(&flag->is_ready, 1);
    bxi_wake(&run, flag);
}

static int end_wait(struct flag_waiter *flag)
{
    pthread_join(flag->thread, NULL);
    return flag->rc;
}

/* Runs fn in a thread that does not drive. */
static void *call(void *argument)
{
    (*(void (**)(void))argument)();
    return NULL;
}

static void elsewhere(void (*fn)(void))
{
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, call, &fn), 0);
    pthread_join(thread, NULL);
}

/* ---- Passes and events --------------------------------------------------------------------------- */

Test(sources, are_passed_in_the_order_in_which_they_registered)
{
    const struct bxi_role *role = bxi_take_role(&run);

    bxi_store_relaxed(&whole.work, 2);
    bxi_store_relaxed(&other.work, 3);
    cr_expect_eq(bxi_pass(role, NULL), 5);
    cr_expect_eq(bxi_pass(role, NULL), 0);
    cr_expect_str_eq(called, "abab");
    cr_expect(bxi_leave_role(role, false));
}

Test(sources, are_handed_their_own_events_from_the_lowest_up_before_the_pass)
{
    const struct bxi_role *role;

    bxi_event(&run, 8);
    bxi_event(&run, 2);
    bxi_event(&run, BXI_EVENT_SCAN);
    role = bxi_take_role(&run);
    cr_expect_gt(bxi_pass(role, NULL), 0);
    cr_expect_str_eq(called, "013ab");
    cr_expect_eq(whole.events, BXI_EVENT_SCAN | 8);
    cr_expect_eq(other.events, 2);
    cr_expect_eq(bxi_pass(role, NULL), 0);          /* each once */
    cr_expect(bxi_leave_role(role, false));
}

/* ---- The role ------------------------------------------------------------------------------------ */

static void cannot_take_it(void)
{
    cr_expect_null(bxi_take_role(&run));
    cr_expect_not(bxi_is_driving(&run));
}

Test(sources, are_driven_by_one_thread_at_a_time)
{
    const struct bxi_role *role = bxi_take_role(&run);

    cr_expect(bxi_is_driving(&run));
    elsewhere(cannot_take_it);
    cr_expect(bxi_leave_role(role, false));
    cr_expect_not(bxi_is_driving(&run));
    role = bxi_take_role(&run);
    cr_expect_not_null(role);
    bxi_leave_role(role, true);
}

/* In a handler of one job a callback is put on a future of another. */
Test(sources, are_still_driven_after_the_role_of_another_job_was_had_meanwhile)
{
    static struct bxi_run second;
    static bxi_a64 second_armed = BXI_WHO_LAZY;
    const struct bxi_role *role = bxi_take_role(&run);

    begin_run(&second, &fake_system, 0);
    bxi_run_attach(&second, &second_armed, counters, &spins);
    bxi_more_eager(&second);
    cr_expect_eq(bxi_load_relaxed(&second_armed) & 3, BXI_WHO_BACKGROUND);
    cr_expect(bxi_is_driving(&run));
    bxi_leave_role(role, true);
    bxi_run_fini(&second);
}

Test(sources, with_work_keep_the_role_or_ring_the_background_thread)
{
    const struct bxi_role *role = bxi_take_role(&run);
    struct pollfd bell = { .fd = run.bell_fd[0], .events = POLLIN };

    bxi_store_relaxed(&whole.work, 1);
    cr_expect_not(bxi_leave_role(role, false));
    cr_expect_eq(bxi_load_relaxed(&armed) & 3, BXI_AWAKE);
    cr_expect_eq(poll(&bell, 1, 0), 0);
    cr_expect(bxi_leave_role(role, true));
    cr_expect_eq(poll(&bell, 1, 0), 1);
}

/* C: by a thread that holds the role, as yet; c: behind it. */
static void note_call(void *context)
{
    (void)context;
    note(bxi_load_relaxed(&run.role) != 0 ? 'C' : 'c');
}

Test(sources, call_threads_behind_the_role_or_before_what_comes_next)
{
    const struct bxi_role *role = bxi_take_role(&run);

    fake_host.call = note_call;
    whole.calls = true;
    for (int i = 0; i < 2; i++) {
        bxi_store_relaxed(&whole.work, 1);
        bxi_pass(role, NULL);
    }
    bxi_no_wait_enter();        /* the code of the program that comes may take long */
    bxi_no_wait_leave();
    bxi_store_relaxed(&whole.work, 1);
    bxi_pass(role, NULL);
    bxi_leave_role(role, false);
    cr_expect_str_eq(called, "abCabCabc");
}

/* It makes no pass that finds nothing before it calls them. */
Test(sources, make_the_background_thread_leave_the_role_for_the_threads_that_they_call)
{
    fake_host.call = note_call;
    whole.calls = true;
    bxi_store_relaxed(&whole.work, 1);
    fake.alone = false;
    cr_assert_eq(bxi_progress_start(&run, false), 0);
    await_sleepers(1, 0);
    bxi_waits_stop(&run);
    bxi_progress_stop(&run);
    cr_expect_str_eq(called, "0abc");
}

/* ---- Before a sleep ------------------------------------------------------------------------------ */

Test(sources, are_flushed_and_prepared_before_a_leader_sleeps)
{
    cr_expect_eq(wait_until(100), BX_E_TIMEOUT);
    cr_expect_eq(fake.sleeps, 1);
    cr_expect_eq(fake.slept_until_ns[0], 100);
    cr_expect_eq(whole.before_sleeps, 1);
    cr_expect_eq(whole.flushes, 2);                 /* and when it left the role */
}

Test(sources, that_find_work_before_a_sleep_are_passed_instead)
{
    whole.work_before_sleep = true;
    cr_expect_eq(wait_until(100), BX_E_TIMEOUT);
    cr_expect_eq(fake.sleeps, 1);
    cr_expect_eq(whole.before_sleeps, 2);
    cr_expect_str_eq(called, "ababab");             /* before each, and after the sleep */
}

/* ---- Spinning ------------------------------------------------------------------------------------ */

static uint64_t ticking_ns(void)
{
    return fake.now_ns += 1000;
}

Test(sources, are_peeked_at_for_the_budget_and_then_not_for_two_sleeps)
{
    struct bxi_system ticking = fake_system;
    struct bxi_spin spin = { 0 };
    const struct bxi_role *role;
    int rounds = 0;

    ticking.now_ns = ticking_ns;
    run.system = &ticking;
    run.spin_ns = run.spin_most_ns = 10000;
    role = bxi_take_role(&run);
    while (bxi_spin_on(role, &spin, NULL))
        rounds++;
    cr_expect_eq(rounds, 11 * 8 - 1);               /* the clock is read after every eighth */
    cr_expect_eq(bxi_load_relaxed(&counters[BXI_C_spins_missed]), 1);
    for (int i = 0; i < 2; i++) {
        spin = (struct bxi_spin){ 0 };
        cr_expect_not(bxi_spin_on(role, &spin, NULL));
        cr_expect_eq(spin.rounds, 0);
    }
    cr_expect(bxi_spin_on(role, &spin, NULL));
    bxi_spin_hit(role, &spin);
    cr_expect_eq(bxi_load_relaxed(&counters[BXI_C_spins_hit]), 1);
    bxi_leave_role(role, true);
}

static int straights;
static bool goes_straight;

static bool go_straight(struct bxi_waiter *waiter, const struct bxi_role *role)
{
    cr_assert(bxi_run_of(role) == &run && bxi_is_driving(&run));
    straights++;
    bxi_store_relaxed(&((struct flag_waiter *)(void *)waiter)->is_ready, goes_straight);
    return goes_straight;
}

/* Ready after its straight way, or after a pass. */
static bool handled(struct bxi_waiter *waiter)
{
    return flag_ready(waiter) || called[0] != '\0';
}

/* Waits so often; how many of them made a pass. */
static int wait_straight(int times)
{
    int passes = 0;

    straights = 0;
    for (int i = 0; i < times; i++) {
        struct flag_waiter flag = { .waiter = { .ready = handled, .straight = go_straight,
                                                .deadline_ns = BX_FOREVER } };

        called[0] = '\0';
        cr_assert_eq(bxi_wait(&run, &flag.waiter), 0);
        passes += called[0] != '\0';
        memset(called, 0, sizeof called);
    }
    return passes;
}

static bool crowded(void *context)
{
    (void)context;
    return true;
}

Test(sources, are_left_to_a_waiter_that_goes_straight_but_for_one_time_in_256)
{
    goes_straight = true;
    run.spin_ns = run.spin_most_ns = 10000;
    cr_expect_eq(wait_straight(1024), 4);
    cr_expect_eq(straights, 1020);
    goes_straight = false;
    cr_expect_eq(wait_straight(10), 10);
    cr_expect_eq(straights, 10);
    goes_straight = true;
    fake_host.is_crowded = crowded;
    cr_expect_eq(wait_straight(10), 10);
    cr_expect_eq(straights, 0);
    fake_host.is_crowded = host_is_not_crowded;
    run.spin_ns = 0;
    cr_expect_eq(wait_straight(10), 10);
    cr_expect_eq(straights, 0);
    run.spin_ns = 10000;
    run.spin_skips = 1;
    cr_expect_eq(wait_straight(1), 1);
    cr_expect_eq(straights, 0);
}

/* ---- Deadlines ----------------------------------------------------------------------------------- */

static void fire(void *context, struct bxi_timer *timer)
{
    (void)context;
    (void)timer;
}

static struct bxi_timer timer = { .fire = fire };

static void set_timer(void)
{
    bxi_lock(&run.lock);
    cr_assert_eq(bxi_timer_set(&run, &timer, 10), 0);
    bxi_unlock(&run.lock);
}

static void set_timer_without_the_lock(void)
{
    bxi_timer_set(&run, &timer, 10);
}

static bool aborts(void (*fn)(void))
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        fclose(stderr);                 /* what assert writes */
        signal(SIGABRT, SIG_DFL);
        fn();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(sources, cannot_set_a_timer_without_the_lock)
{
    cr_expect(aborts(set_timer_without_the_lock));
}

#ifdef BXI_LOCK_OWNERS
static void set_timer_under_the_lock_of_another(void)
{
    bxi_lock(&run.lock);
    elsewhere(set_timer_without_the_lock);
    bxi_unlock(&run.lock);
}

Test(sources, cannot_set_a_timer_under_the_lock_of_another_thread)
{
    cr_expect(aborts(set_timer_under_the_lock_of_another));
}
#endif

/* ---- Events -------------------------------------------------------------------------------------- */

static uint32_t wanted_events;

static void add_a_source(void)
{
    struct bxi_source_ops ops = { .events = wanted_events, .handle = handle };

    add_source(&ops, NULL);
}

Test(sources, cannot_take_an_event_that_has_an_owner)
{
    const uint32_t owned[] = { BXI_EVENT_TIMER, BXI_EVENT_INTERRUPT, whole_ops.events, other_ops.events };

    for (int i = 0; i < 4; i++) {
        wanted_events = owned[i] | 1u << 30;
        cr_expect(aborts(add_a_source), "%u", owned[i]);
    }
    wanted_events = 1u << 30;
    cr_expect_not(aborts(add_a_source));
}

/* ---- The watchdog -------------------------------------------------------------------------------- */

Test(sources, that_ask_for_a_watchdog_have_it_once_a_second)
{
    whole.watched_ns = BXI_WATCHDOG_NS;
    cr_expect_eq(wait_until(7 * SECOND / 2), BX_E_TIMEOUT);
    cr_expect_eq(whole.watchdogs, 4);               /* and when the wait's own time was over */
    for (uint64_t i = 0; i < 3; i++)
        cr_expect_eq(whole.watchdog_ns[i], 1 + (i + 1) * SECOND);
    cr_expect_eq(fake.sleeps, 4);
}

static struct flag_waiter forgotten;

static void make_ready_without_a_bell(void)
{
    bxi_exchange(&forgotten.is_ready, 1);
}

static uint64_t rescued_of_a_lost_bell(bool bell_is_late)
{
    fake.bell_is_late = bell_is_late;
    fake.in_sleep = make_ready_without_a_bell;
    whole.watched_ns = BXI_WATCHDOG_NS;
    init_waiter(&forgotten, BX_FOREVER);
    cr_assert_eq(bxi_wait(&run, &forgotten.waiter), 0);
    return bxi_load_relaxed(&counters[BXI_C_rescued]);
}

Test(sources, that_were_ready_without_a_bell_are_counted_as_rescued)
{
    cr_expect_eq(rescued_of_a_lost_bell(false), 1);
}

Test(sources, whose_bell_was_held_up_are_not_counted_as_rescued)
{
    cr_expect_eq(rescued_of_a_lost_bell(true), 0);
}

/* A deadline is set behind the back of the thread that sleeps: as if nobody rang. */
static void set_timer_silently(void)
{
    run.background_until_ns = 0;
    set_timer();
}

static uint64_t late_of_a_silent_timer(bool bell_is_late)
{
    fake.bell_is_late = bell_is_late;
    fake.in_sleep = set_timer_silently;
    cr_assert_eq(wait_until(SECOND), BX_E_TIMEOUT);
    return bxi_load_relaxed(&counters[BXI_C_timers_late]);
}

Test(sources, whose_deadline_nobody_announced_count_it_as_late)
{
    cr_expect_eq(late_of_a_silent_timer(false), 1);
}

Test(sources, whose_deadline_is_announced_late_do_not_count_it)
{
    cr_expect_eq(late_of_a_silent_timer(true), 0);
}

/* ---- Several threads that wait -------------------------------------------------------------------- */

Test(sources, are_driven_by_a_follower_when_the_leader_is_ready)
{
    struct flag_waiter waiters[3];

    fake.alone = false;
    begin_wait(&waiters[0], false);
    await_sleepers(1, BX_FOREVER);
    begin_wait(&waiters[1], false);
    await_followers(1);
    begin_wait(&waiters[2], false);
    await_followers(2);
    make_ready(&waiters[0]);
    cr_expect_eq(end_wait(&waiters[0]), 0);
    await_sleepers(1, BX_FOREVER);                  /* one of the two leads, */
    cr_expect_eq(bxi_load_seq_cst(&run.role), 1);
    cr_expect_eq(bxi_load_seq_cst(&run.followers), 1);
    bxi_event(&run, 2);
    await_sleepers(1, BX_FOREVER);
    make_ready(&waiters[1]);
    cr_expect_eq(end_wait(&waiters[1]), 0);
    await_sleepers(1, BX_FOREVER);
    make_ready(&waiters[2]);
    cr_expect_eq(end_wait(&waiters[2]), 0);
    cr_expect_eq(bxi_load_seq_cst(&run.role), 0);
    cr_expect_eq(other.events, 2);
    cr_expect_eq(fake.followed, 2);                 /* the other was not woken, to follow once more */
}

static void leave_in_background(int sleeps)
{
    whole.leaves = true;
    bxi_store_relaxed(&whole.work, 1);
    bxi_event(&run, BXI_EVENT_SCAN);
    pthread_mutex_lock(&fake.lock);
    while (fake.sleeps < sleeps)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

Test(sources, have_no_background_thread_left_at_the_end_though_two_left_in_handlers)
{
    fake.alone = false;
    cr_assert_eq(bxi_progress_start(&run, false), 0);
    await_sleepers(1, BX_FOREVER);
    leave_in_background(2);
    leave_in_background(3);
    bxi_waits_stop(&run);
    bxi_progress_stop(&run);
    cr_expect_eq(fake.sleeper_count, 3);
    cr_expect_eq(bxi_load_relaxed(&fake.destroyed), 3);
}

static int refuse_peers(struct bxi_sleeper *sleeper, int fd, uint64_t token)
{
    return token == BXI_TOKEN_BELL ? fake_watch(sleeper, fd, token) : -ENOSPC;
}

Test(sources, have_no_background_thread_that_cannot_watch_a_worker)
{
    struct bxi_system refusing = fake_system;

    refusing.watch = refuse_peers;
    run.system = &refusing;
    bxi_run_watch(&run, run.bell_fd[1], 1);
    cr_expect_eq(bxi_progress_start(&run, false), -ENOSPC);
    cr_expect_eq(bxi_load_relaxed(&fake.destroyed), 1);
    bxi_progress_stop(&run);
}
