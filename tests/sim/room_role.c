/* SPDX-License-Identifier: MIT */
/*
 * The room of the progress role: lib/run without a job. One source, whose work comes from a fiber that stands for other
 * workers: it publishes words, fences, and looks at the bell. Threads wait for replies (leading, following, quietly,
 * passively), for what other threads complete, for timers and for deadlines; they set events and send requests that
 * nobody waits for. At the end some wait for ever, until an interrupt or the stop.
 *
 * Truth: OWED counts what needs no time: a published reply until its wait has returned, a request or an event until it
 * was handled, an interrupt or a stop until the waits have ended. When time would pass, it is 0. A timer fires at most
 * LATE_NS too late; `rescued` and `timers_late` are 0.
 */
#include "rooms.h"

#include "run/drive.h"

#include <sys/eventfd.h>

#define THREADS 3
#define LATE_NS 1000000
#define EVENT 8u
/* Of sim_truth. */
enum { OWED, ASKED, DONE = ASKED + THREADS, EVENTS = DONE + THREADS, REQUESTS, ENDED, STOPPED, DUE, OVER,
       BRIEF };                         /* 1: no step before the end; 2: each thread waits for a reply or a thread */

struct thread {
    struct bxi_waiter waiter;           /* first */
    bxi_a32 is_done;
    bxi_a32 asks;                       /* orders what it writes before its request */
    bxi_a32 bell_due;                   /* the peer hears of the request when somebody flushes */
    bxi_a64 reply;                      /* the peer's: how many it has sent */
    uint64_t taken;                     /* role */
    uint32_t asked;
    bool calls_back;                    /* no thread waits for the reply */
    struct bxi_timer timer;
};

static struct bxi_run run;
static bxi_a64 counters[BXI_COUNTER_COUNT], spins, *armed;
static struct thread threads[THREADS];
static struct bxi_bell_peer bell;
static bxi_a64 requests;                /* the peer's */
static uint64_t requests_taken;         /* role, with those below */
static int parked, unparked;            /* requests that wait for the end of a spin; that the next pass handles */

/* ---- the source ------------------------------------------------------------------------------------ */

static void complete(struct thread *thread)
{
    atomic_exchange(&thread->is_done, 1);
    if (!bxi_is_driving(&run) || bxi_load_seq_cst(&run.waiting) != 0)
        bxi_wake(&run, thread);
}

static bool has_reply(struct thread *thread)
{
    return bxi_load_acquire(&thread->reply) != thread->taken;
}

static bool take_reply(struct thread *thread)
{
    if (!has_reply(thread))
        return false;
    thread->taken++;
    if (thread->calls_back) {
        bxi_exchange(&thread->is_done, 1);
        sim_count(OWED, -1);
        sim_count(DONE + (unsigned)(thread - threads), 1);
    } else {
        complete(thread);
    }
    return true;
}

static int pass(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    uint64_t sent = bxi_load_acquire(&requests);
    int handled = (int)(sent - requests_taken);

    (void)context, (void)role, (void)waiter;
    if (sim_truth(OVER) > 0)
        sim_fail("a pass after the end");
    sim_count(OWED, -handled - unparked);
    parked += handled;
    requests_taken = sent;
    handled += unparked;
    unparked = 0;
    for (int i = 0; i < THREADS; i++)
        handled += take_reply(&threads[i]);
    return handled;
}

static bool ready(void *context, const struct bxi_role *role)
{
    (void)context, (void)role;
    for (int i = 0; i < THREADS; i++)
        if (has_reply(&threads[i]))
            return true;
    return unparked > 0 || bxi_load_acquire(&requests) != requests_taken;
}

static bool peek(void *context, int times)
{
    (void)times;
    return ready(context, NULL);
}

static void handle(void *context, const struct bxi_role *role, uint32_t event)
{
    (void)context, (void)role;
    if (event == EVENT) {
        sim_count(OWED, -(int64_t)sim_truth(EVENTS));
        sim_count(EVENTS, -(int64_t)sim_truth(EVENTS));
    }
}

/* From here on what was parked is owed. */
static bool before_sleep(void *context, const struct bxi_role *role)
{
    (void)context, (void)role;
    sim_count(OWED, parked);
    unparked += parked;
    parked = 0;
    return unparked > 0;
}

static void flush(void *context)
{
    (void)context;
    for (unsigned i = 0; i < THREADS; i++)
        if (bxi_exchange(&threads[i].bell_due, 0) != 0) {
            sim_count(DUE, -1);
            sim_count(ASKED + i, 1);
        }
}

static uint64_t next_deadline_ns(void *context, uint64_t now_ns)
{
    (void)context;
    return now_ns + BXI_WATCHDOG_NS;
}

static const struct bxi_source_ops ops = { .events = BXI_EVENT_SCAN | EVENT, .handle = handle, .pass = pass,
                                           .peek = peek, .ready = ready, .flush = flush, .before_sleep = before_sleep,
                                           .next_deadline_ns = next_deadline_ns };

/* ---- the host -------------------------------------------------------------------------------------- */

static void host_nothing(void *context)
{
    (void)context;
}

static void host_readable(void *context, uint64_t token)
{
    (void)context, (void)token;
}

static bool host_is_crowded(void *context)
{
    (void)context;
    return false;
}

static void host_wait(void *context, struct bxi_waiter *waiter)
{
    (void)context, (void)waiter;
}

static uint64_t host_sleeps(void *context, enum bxi_sleeps who)
{
    (void)context, (void)who;
    return 0;
}

static void host_woke(void *context, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung, uint64_t began_ns)
{
    (void)context, (void)who, (void)by, (void)rung, (void)began_ns;
}

static const struct bxi_host host = { .readable = host_readable, .thread_begins = host_nothing, .call = host_nothing,
                                      .is_crowded = host_is_crowded, .wait_lasts = host_wait, .wait_begins = host_wait,
                                      .wait_ends = host_wait, .before_sleep = host_nothing, .sleeps = host_sleeps,
                                      .woke = host_woke };

/* ---- other workers --------------------------------------------------------------------------------- */

static bool is_asked(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < THREADS; i++)
        if (sim_truth(ASKED + i) > 0)
            return true;
    return sim_truth(REQUESTS) > 0 || sim_truth(ENDED) > 0;
}

static void *answer(void *unused)
{
    (void)unused;
    while (sim_block("to be asked", is_asked, NULL, SIM_FOREVER), sim_truth(ENDED) == 0) {
        bool replies_only = true;

        for (unsigned i = 0; i < THREADS; i++)
            if (sim_truth(ASKED + i) > 0) {
                sim_count(ASKED + i, -1);
                sim_count(OWED, 1);
                bxi_add(&threads[i].asks, 0);              /* no load, which may be early: the truth orders nothing */
                bxi_store_release(&threads[i].reply, bxi_load_relaxed(&threads[i].reply) + 1);
            }
        if (sim_truth(REQUESTS) > 0) {
            sim_count(REQUESTS, -1);
            sim_count(OWED, 1);
            bxi_store_release(&requests, bxi_load_relaxed(&requests) + 1);
            replies_only = false;
        }
        bxi_fence_seq_cst();
        bxi_bell_look(&bell, replies_only);
    }
    return NULL;
}

/* ---- threads that wait ------------------------------------------------------------------------------ */

static bool is_done(struct bxi_waiter *waiter)
{
    return bxi_load_seq_cst(&((struct thread *)(void *)waiter)->is_done) != 0;
}

static bool poll_straight(struct bxi_waiter *waiter, const struct bxi_role *role)
{
    struct thread *thread = (struct thread *)(void *)waiter;

    (void)role;
    for (int i = 0; i < 3; i++)
        if (take_reply(thread))
            return true;
    return false;
}

/* One that is passive needs no reply: a lazy bell would not be rung for it. */
static int wait_for(struct thread *thread, uint64_t deadline_ns, bool passive)
{
    thread->waiter = (struct bxi_waiter){ .ready = is_done, .object = thread, .deadline_ns = deadline_ns,
                                          .passive = passive && sim_choose(3) == 0 };
    if (sim_choose(2) == 0 && !thread->waiter.passive)
        thread->waiter.straight = poll_straight;
    return bxi_wait(&run, &thread->waiter);
}

static void expect(struct thread *thread, uint64_t deadline_ns, int code, bool passive)
{
    int rc = wait_for(thread, deadline_ns, passive);

    if (rc != code)
        sim_fail("a wait returns %d instead of %d", rc, code);
    bxi_exchange(&thread->is_done, 0);      /* visible before it asks again */
}

static unsigned index_of(const struct thread *thread)
{
    return (unsigned)(thread - threads);
}

static void ask(struct thread *thread)
{
    bxi_add(&thread->asks, 1);
    sim_count(DUE, 1);
    bxi_exchange(&thread->bell_due, 1);
}

static void await_reply(struct thread *thread)
{
    ask(thread);
    expect(thread, BX_FOREVER, 0, false);
    sim_count(OWED, -1);
}

static bool called_back(void *thread)
{
    return sim_truth(DONE + index_of(thread)) > 0;
}

static void await_callback(struct thread *thread)
{
    thread->calls_back = true;
    bxi_more_eager(&run);
    ask(thread);
    flush(NULL);
    sim_block("its callback", called_back, thread, SIM_FOREVER);
    sim_count(DONE + index_of(thread), -1);
    bxi_exchange(&thread->is_done, 0);
    bxi_less_eager(&run);
    thread->calls_back = false;
}

static void *complete_it(void *thread)
{
    if (sim_choose(2) == 0)
        bxi_wake(&run, thread);         /* an object may change before it is what is waited for */
    sim_count(OWED, 1);
    complete(thread);
    return NULL;
}

static void await_thread(struct thread *thread)
{
    int other = sim_spawn("completer", complete_it, thread);

    expect(thread, BX_FOREVER, 0, true);
    sim_count(OWED, -1);
    sim_join(other);
}

static void fired(void *context, struct bxi_timer *timer)
{
    struct thread *thread = (struct thread *)(void *)((char *)timer - offsetof(struct thread, timer));

    (void)context;
    if (sim_now() > timer->at_ns + LATE_NS)
        sim_fail("a timer is late by %.6f s", (double)(sim_now() - timer->at_ns) / 1e9);
    complete(thread);
}

static void await_timer(struct thread *thread)
{
    thread->timer.fire = fired;
    bxi_lock(&run.lock);
    SIM_MUST(bxi_timer_set(&run, &thread->timer, sim_now() + (1 + sim_choose(4)) * 5000000));
    bxi_unlock(&run.lock);
    expect(thread, BX_FOREVER, 0, true);
}

static void *use(void *argument)
{
    struct thread *thread = argument;
    uint32_t steps = sim_truth(BRIEF) ? (uint32_t)sim_truth(BRIEF) - 1 : 1 + sim_choose(4);

    for (uint32_t i = 0; i < steps; i++)
        switch (sim_truth(BRIEF) ? 1 + 5 * sim_choose(2) : sim_choose(8)) {
        case 0: await_callback(thread); break;
        case 1: await_thread(thread); break;
        case 2: await_timer(thread); break;
        case 3: expect(thread, sim_now() + 3000000, BX_E_TIMEOUT, true); break;
        case 4: sim_count(REQUESTS, 1); break;
        case 5:
            sim_count(EVENTS, 1);
            sim_count(OWED, 1);
            bxi_event(&run, EVENT);
            break;
        default: await_reply(thread); break;
        }
    return NULL;
}

static void *wait_for_ever(void *argument)
{
    int rc = wait_for(argument, BX_FOREVER, true);

    if (rc != (sim_truth(STOPPED) ? BX_E_SHUTDOWN : BX_E_INTERRUPTED))
        sim_fail("a wait that nothing but the end could end returns %d", rc);
    sim_count(OWED, -1);
    return NULL;
}

/* ---- the room -------------------------------------------------------------------------------------- */

static void use_it(void *(*work)(void *), bool joins, int fibers[THREADS])
{
    static const char *const names[] = { "user0", "user1", "user2" };

    for (int i = 0; i < THREADS; i++)
        fibers[i] = sim_spawn(names[i], work, &threads[i]);
    for (int i = 0; i < THREADS && joins; i++)
        sim_join(fibers[i]);
}

static int begin(void)
{
    int rc;

    armed = sim_memory(64);
    bxi_run_init(&run, &(struct bxi_run_setup){ .host = &host, .system = &bxi_real_system, .name = "sim",
                                                .counters = counters, .spin_ns = sim_choose(4) == 0 });
    run.sleeper_kind = BXI_SLEEPER_EPOLL;
    if ((rc = bxi_run_open_bells(&run)) < 0)
        return rc;
    bxi_run_attach(&run, armed, counters, &spins);
    run.cpus = 1 + (int)sim_choose(2);
    bell = (struct bxi_bell_peer){ .word = armed, .fd = { run.bell_fd[0], run.bell_fd[1] } };
    bxi_lock(&run.lock);
    bxi_run_add(&run, &ops, NULL);
    bxi_unlock(&run.lock);
    return bxi_progress_start(&run, sim_choose(4) == 0);
}

/* The program's own loop, instead of the background thread. Until the other descriptor is readable. */
static void *loop(void *end_fd)
{
    struct pollfd fds[] = { { .fd = run.loop_fd, .events = POLLIN }, { .fd = *(int *)end_fd, .events = POLLIN } };

    while (poll(fds, 2, -1) < 0 || fds[1].revents == 0)
        bxi_run_once(&run);
    return NULL;
}

static void *interrupt(void *unused)
{
    (void)unused;
    bxi_run_interrupt(&run, true);
    return NULL;
}

static bool owes_nothing(void *unused)
{
    (void)unused;
    return sim_truth(OWED) == 0 && sim_truth(REQUESTS) == 0;
}

void sim_room_role(int worker)
{
    int fibers[THREADS], peer, other = -1, own_loop = -1, end_fd;

    (void)worker;
    if (sim_choose(2) == 0)
        sim_count(BRIEF, 1 + sim_choose(2));
    SIM_MUST((end_fd = eventfd(0, EFD_CLOEXEC)) < 0 ? -errno : 0);
    while (sim_is_to_repeat("the start", begin())) {
        bxi_progress_stop(&run);
        bxi_run_fini(&run);
        run = (struct bxi_run){ 0 };
    }
    if (run.loop_fd >= 0 && sim_truth(BRIEF) != 1)          /* else it is busy elsewhere */
        own_loop = sim_spawn("loop", loop, &end_fd);
    peer = sim_spawn("peer", answer, NULL);
    use_it(use, true, fibers);
    sim_block("what is owed", owes_nothing, NULL, SIM_FOREVER);
    use_it(wait_for_ever, false, fibers);
    sim_count(OWED, THREADS);
    if (sim_choose(2) == 0) {
        if (sim_choose(2) == 0)
            other = sim_spawn("interrupter", interrupt, NULL);
        bxi_run_interrupt(&run, false);
        bxi_run_interrupt(&run, true);
    } else {
        sim_count(STOPPED, 1);
        bxi_waits_stop(&run);
    }
    for (int i = 0; i < THREADS && sim_truth(STOPPED) == 0; i++)
        sim_join(fibers[i]);
    if (other >= 0)
        sim_join(other);
    if (sim_truth(STOPPED) == 0)
        bxi_waits_stop(&run);
    if (own_loop >= 0) {
        bxi_bell_ring(end_fd);
        sim_join(own_loop);
    }
    close(end_fd);
    bxi_progress_stop(&run);
    bxi_role_end(&run);                 /* beside threads whose waits have been stopped */
    for (int i = 0; i < THREADS && sim_truth(STOPPED) > 0; i++)
        sim_join(fibers[i]);
    sim_count(OVER, 1);
    bxi_run_once(&run);                 /* nobody gets the role any more */
    bxi_forget_role();
    sim_count(ENDED, 1);
    sim_join(peer);
    if (bxi_load_relaxed(&counters[BXI_C_rescued]) + bxi_load_relaxed(&counters[BXI_C_timers_late]) != 0)
        sim_fail("a wake-up was rescued, or a timer is late");
    bxi_run_fini(&run);
}

void sim_room_role_quiet(uint64_t ns)
{
    if (ns > SIM_NAP_NS && sim_truth(OWED) + sim_truth(DUE) > 0)
        sim_fail("nobody can run for %.3f s, and something is %s", (double)ns / 1e9,
                 sim_truth(DUE) > 0 ? "not announced" : "published");
}
