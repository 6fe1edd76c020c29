/* SPDX-License-Identifier: MIT */
/*
 * Who runs next, when stores leave their buffers, when time passes, and how a schedule ends.
 *
 * Places. In half of the schedules some points of the program are places: one of 32 to 1024, which a hash of the return
 * address and the seed tell. A fiber that comes to one, in one of 1 to 64 cases, is held: it does not run, and its
 * stores stay in its buffer, until no other fiber can run, or for HELD_POINTS. 16 times as many loads are places behind
 * which a fiber is held whose store waits: that is how a fence is missed. So a line that runs once in a schedule is as
 * likely to be the one where a thread is held up as a line that runs a thousand times. A worker that is to be stopped
 * may be so there; one that is to die does, sooner or later.
 *
 * SIM_RANDOM: after a random number of points any fiber that can run continues; the seed chooses the mean. This is a
 * random walk. SIM_PRIORITIES (PCT, "probabilistic concurrency testing"): the fiber of the highest priority runs;
 * priorities are random, and at 2 to 5 random points who runs gets the lowest one. A fault that needs d such changes
 * in n points is found with a probability of about 1 / (fibers * n^(d - 1)) a schedule. A fiber that yields, or has run
 * for SPIN_POINTS, gets the lowest priority too: it may wait for another one. SIM_ALL: a depth-first search through all
 * choices with at most so many preemptions, an early exit of a store from its buffer counted as one.
 */
#include "sim.h"

#define SPIN_POINTS 20000
#define HELD_POINTS 20000      /* at most; a fiber may spin for one that is held */
#define CHANGES_MOST 5
#define PATH_MOST 4096
#define FIRST_PRIORITY 1000000u

struct sim_schedule sim_schedule;
int64_t sim_next;
uint64_t sim_points_most = 20000000;

static const struct sim_program *program;
static uint64_t random_state, switch_at, flush_at, switched_at, change_at[CHANGES_MOST];
static uint32_t switch_mean, flush_mean, lowest, changes, held_one_in;

static struct {
    uint32_t preemptions_most, preemptions, depth, length;
    uint16_t choice[PATH_MOST], most[PATH_MOST];
    uint64_t paths;
} all;

uint64_t sim_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

uint32_t sim_draw(uint32_t most)
{
    return most < 2 ? 0 : (uint32_t)(sim_random() % most);
}

bool sim_disturbs(void)
{
    return sim_schedule.disturbed && sim_chooses(SIM_DISTURBED, 16);
}

uint32_t sim_choose(uint32_t most)
{
    if (most < 2)
        return 0;
    if (sim_schedule.way != SIM_ALL)
        return sim_asked(most);
    if (all.depth == PATH_MOST) {
        sim_fail("a schedule of the exhaustive search has more than %d choices", PATH_MOST);
        return 0;
    }
    if (all.depth == all.length) {
        all.choice[all.length] = 0;
        all.most[all.length++] = (uint16_t)most;
    }
    return all.choice[all.depth++];
}

void sim_choose_all(uint32_t preemptions)
{
    all.preemptions_most = preemptions;
    all.length = 0;
    sim_schedule.way = SIM_ALL;
}

bool sim_next_of_all(void)
{
    all.paths++;
    while (all.length > 0 && all.choice[all.length - 1] + 1 == all.most[all.length - 1])
        all.length--;
    if (all.length == 0)
        return false;
    all.choice[all.length - 1]++;
    return true;
}

uint64_t sim_paths(void)
{
    return all.paths;
}

uint64_t sim_now(void)
{
    return sim_schedule.now_ns;
}

static uint64_t truths[SIM_TRUTHS];

uint64_t sim_truth(unsigned index)
{
    return truths[index];
}

void sim_count(unsigned index, int64_t by)
{
    truths[index] += (uint64_t)by;
}

/* ---- findings and the trace ------------------------------------------------------------------------ */

void sim_fail(const char *format, ...)
{
    va_list arguments;

    if (!sim_schedule.found) {
        va_start(arguments, format);
        vsnprintf(sim_schedule.finding, sizeof sim_schedule.finding, format, arguments);
        va_end(arguments);
        if (sim_schedule.trace)
            printf("%6llu finding: %s\n", (unsigned long long)sim_schedule.points, sim_schedule.finding);
    }
    sim_schedule.found = sim_schedule.over = true;
    if (sim_self != NULL)
        sim_fibers_leave();
}

void sim_note(const char *format, ...)
{
    va_list arguments;

    if (!sim_schedule.trace)
        return;
    printf("%6llu %-12s ", (unsigned long long)sim_schedule.points, sim_self != NULL ? sim_self->name : "");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

void sim_trace_point(const char *what, uint64_t key, uintptr_t pc)
{
    if (pc != 0)
        sim_note("%-16s %#llx @%#zx", what, (unsigned long long)key, (size_t)pc);
    else
        sim_note("%s", what);
}

/* ---- who runs ------------------------------------------------------------------------------------- */

static bool can_run(struct sim_fiber *fiber)
{
    if (sim_is_stopped(fiber->worker))
        return false;
    if (fiber->state == SIM_RUNS)
        return true;
    if (fiber->state != SIM_BLOCKED)
        return false;
    fiber->can_now = fiber->can(fiber->can_argument);
    return fiber->can_now || fiber->until_ns <= sim_schedule.now_ns;
}

/* Those that are held only if no other can. */
static int who_can(struct sim_fiber **can, const struct sim_fiber *but)
{
    int count = 0;

    for (int held = 0; held < 2 && count == 0; held++)
        for (int i = 0; i < sim_fiber_count; i++)
            if (&sim_fibers[i] != but && (sim_fibers[i].held_until > sim_schedule.points) == held &&
                can_run(&sim_fibers[i]))
                can[count++] = &sim_fibers[i];
    return count;
}

static void run(struct sim_fiber *fiber, const char *why)
{
    if (fiber != sim_self) {
        switched_at = sim_schedule.points;
        if (sim_schedule.trace)
            sim_note("-> %s (%s)", fiber->name, why);
    }
    fiber->state = SIM_RUNS;
    fiber->held_until = 0;
    if (sim_mode() == SIM_MAKES_AGAIN)
        sim_next = 1;
    sim_switch(fiber);
}

static struct sim_fiber *pick(struct sim_fiber **can, int count)
{
    struct sim_fiber *best = can[0];

    if (sim_schedule.way == SIM_ALL)
        return can[sim_choose((uint32_t)count)];
    if (sim_schedule.way == SIM_RANDOM)
        return can[sim_draw((uint32_t)count)];
    for (int i = 1; i < count; i++)
        if (can[i]->priority > best->priority)
            best = can[i];
    return best;
}

static struct sim_fiber *fiber_of(uint32_t id)
{
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].id == id)
            return &sim_fibers[i];
    return NULL;
}

/* The next one that can run. This one is the last of them. */
static struct sim_fiber *next_one(void)
{
    int i = 1;

    while (!can_run(&sim_fibers[(sim_self->number + i) % sim_fiber_count]))
        i++;
    return &sim_fibers[(sim_self->number + i) % sim_fiber_count];
}

/* As pick, for a fiber that does not go on. */
static struct sim_fiber *pick_next(struct sim_fiber **can, int count)
{
    unsigned nth = sim_nth(SIM_NEXT);
    struct sim_fiber *fiber;
    uint32_t id;

    if (sim_mode() == SIM_MAKES_AGAIN) {
        fiber = sim_chosen_again(SIM_NEXT, nth, &id) ? fiber_of(id) : NULL;
        return fiber != NULL && can_run(fiber) ? fiber : next_one();
    }
    fiber = pick(can, count);
    if (sim_mode() == SIM_WRITES && fiber != next_one())
        sim_chosen(SIM_NEXT, nth, fiber->id);
    return fiber;
}

/* Time passes. False: there is no deadline. */
static bool pass_time(void)
{
    uint64_t next_ns = sim_stops_end_ns(), timer_ns = sim_timerfds_next_ns();

    next_ns = timer_ns < next_ns ? timer_ns : next_ns;
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].state == SIM_BLOCKED && sim_fibers[i].until_ns < next_ns &&
            !sim_is_stopped(sim_fibers[i].worker))
            next_ns = sim_fibers[i].until_ns;
    if (program->quiet != NULL && !sim_any_is_stopped())
        program->quiet(next_ns == SIM_FOREVER ? next_ns : next_ns - sim_schedule.now_ns);
    if (next_ns == SIM_FOREVER)
        return false;
    sim_note("nobody can run: time passes by %llu ns", (unsigned long long)(next_ns - sim_schedule.now_ns));
    sim_schedule.now_ns = next_ns;
    sim_timerfds_fire();
    for (int i = 0; i < sim_fiber_count; i++)
        sim_fibers[i].fenced_at = sim_schedule.points;
    return true;
}

static void nobody_can_run(void)
{
    char text[700] = "";
    size_t used = 0;

    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].state == SIM_BLOCKED && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s '%s' (%s)", used > 0 ? "," : "",
                                     sim_fibers[i].name, sim_fibers[i].why);
    if (used > 0)
        sim_fail("nobody can run:%s", text);
    sim_schedule.over = true;
    sim_fibers_leave();
}

static bool hear_of_deaths(uint64_t points);

/* This fiber cannot go on, or need not. */
static void run_another(const char *why)
{
    struct sim_fiber *can[SIM_FIBERS];
    int count;

    while ((count = who_can(can, NULL)) == 0)
        if (!sim_wires_move() && !hear_of_deaths(SIM_FOREVER - 1) && !sim_comebacks_begin(SIM_FOREVER - 1) &&
            !pass_time())
            nobody_can_run();
    run(pick_next(can, count), why);
}

bool sim_block(const char *why, bool (*can)(void *argument), void *argument, uint64_t until_ns)
{
    sim_flush(sim_self);
    if (can(argument))
        return true;
    sim_self->can = can;
    sim_self->can_argument = argument;
    sim_self->until_ns = until_ns;
    sim_self->why = why;
    sim_self->state = SIM_BLOCKED;
    run_another(why);
    sim_self->fenced_at = sim_schedule.points;
    return sim_self->can_now;
}

static struct death {
    bool dead;
    int count;                      /* how often; a worker may be started again */
    uint64_t at, heard_at;          /* points; SIM_FOREVER: not yet, or done */
} deaths[SIM_COPIES];

/* Others hear that a process has ended. What its threads did is before that, for everybody. */
static void hear_of_end(int worker)
{
    for (int i = 0; i < sim_fiber_count; i++)
        for (int j = 0; j < sim_fiber_count && sim_fibers[i].worker == worker; j++)
            if (sim_fibers[j].worker != worker)
                sim_fibers[j].clock.at[i] = sim_fibers[i].clock.at[i];
    sim_descriptors_close(worker, false);
    sim_pidfd_ready(worker);
}

/* If this was the last fiber of a worker, its process ends. */
static void end_process(int worker)
{
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].worker == worker && sim_fibers[i].state != SIM_ENDED && sim_fibers[i].state != SIM_DEAD)
            return;
    if (program->resets) {
        sim_descriptors_left(worker);
        sim_memory_left(worker);
        sim_wires_left(worker);
        hear_of_end(worker);
    }
}

_Noreturn void sim_fiber_ends(void)
{
    sim_flush(sim_self);
    sim_self->state = SIM_ENDED;
    end_process(sim_self->worker);
    run_another("the end");
    __builtin_unreachable();
}

static bool has_ended(void *argument)
{
    const struct sim_fiber *fiber = argument;

    return fiber->state == SIM_ENDED;
}

void sim_join(int fiber)
{
    sim_point("join", 0, (uintptr_t)__builtin_return_address(0));
    sim_block("joins", has_ended, &sim_fibers[fiber], SIM_FOREVER);
    sim_clock_join(&sim_self->clock, &sim_fibers[fiber].clock);
}

static void set_priority(struct sim_fiber *fiber)
{
    fiber->priority = FIRST_PRIORITY + (uint32_t)(sim_random() % FIRST_PRIORITY);
}

int sim_spawn(const char *name, void *(*work)(void *), void *argument)
{
    struct sim_fiber *fiber;

    sim_flush(sim_self);
    fiber = sim_fiber_make(name, sim_self->worker, work, argument);
    set_priority(fiber);
    sim_self->clock.at[sim_self->number]++;
    sim_next = 1;
    return fiber->number;
}

void sim_yield(void)
{
    struct sim_fiber *can[SIM_FIBERS];
    int count;

    sim_flush(sim_self);
    sim_self->priority = lowest--;
    /* Another one, so that a search of all paths ends. */
    if ((count = who_can(can, sim_self)) > 0)
        run(pick_next(can, count), "yields");
    sim_self->fenced_at = sim_schedule.points;
}

/* ---- points --------------------------------------------------------------------------------------- */

static void die(int worker)
{
    sim_note("worker %d dies", worker);
    sim_chosen(SIM_KILLED, 0, (uint32_t)worker);
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].worker == worker && sim_fibers[i].state != SIM_ENDED) {
            sim_flush(&sim_fibers[i]);
            sim_fibers[i].state = SIM_DEAD;
        }
    deaths[worker].dead = true;
    deaths[worker].count++;
    deaths[worker].at = SIM_FOREVER;
    deaths[worker].heard_at = sim_mode() == SIM_MAKES_AGAIN ? SIM_FOREVER - 1 :
                              sim_schedule.points + (sim_draw(2) == 0 ? 1 : sim_draw(5000));
    sim_wires_die(worker);
    sim_mappings_close(worker);
    sim_descriptors_close(worker, true);
    if (sim_self->worker == worker)
        run_another("dies");
}

/* Of those that are heard of by so many points. False: there is none. */
static bool hear_of_deaths(uint64_t points)
{
    bool any = false;

    for (int worker = 0; worker < SIM_COPIES; worker++) {
        if (deaths[worker].heard_at > points)
            continue;
        sim_note("the death of worker %d is heard of", worker);
        if (points < SIM_FOREVER - 1)
            sim_chosen(SIM_HEARD_OF, 0, (uint32_t)worker);
        deaths[worker].heard_at = SIM_FOREVER;
        hear_of_end(worker);
        sim_death_is_heard_of(worker);
        any = true;
    }
    return any;
}

void sim_kill_later(int worker, uint32_t points)
{
    deaths[worker].at = sim_mode() == SIM_MAKES_AGAIN ? SIM_FOREVER - 1 : sim_schedule.points + points;
    sim_next = 1;
}

bool sim_is_dead(int worker)
{
    return deaths[worker].dead;
}

int sim_deaths(int worker)
{
    int count = 0;

    for (int i = 0; i < SIM_COPIES; i++)
        count += worker < 0 || worker == i ? deaths[i].count : 0;
    return count;
}

int sim_deaths_heard_of(void)
{
    int count = 0;

    for (int worker = 0; worker < SIM_COPIES; worker++)
        count += deaths[worker].count - (deaths[worker].dead && deaths[worker].heard_at != SIM_FOREVER);
    return count;
}

static uint64_t gap(uint32_t mean)
{
    return 1 + sim_random() % (2 * mean);
}

void sim_stored(void)
{
    if (flush_at == SIM_FOREVER) {
        flush_at = sim_schedule.points + gap(flush_mean);
        sim_next = 1;
    }
}

static void flush_some(void)
{
    struct sim_fiber *with[SIM_FIBERS];
    uint32_t count = 0;
    bool any = false;

    for (int i = 0; i < sim_fiber_count; i++) {
        any |= sim_fibers[i].buffered > 0;
        if (sim_fibers[i].buffered > 0 && sim_fibers[i].held_until <= sim_schedule.points)
            with[count++] = &sim_fibers[i];
    }
    if (count > 0)
        sim_flush_one(with[sim_draw(count)]);
    flush_at = any ? sim_schedule.points + gap(flush_mean) : SIM_FOREVER;
}

static void point_of_all(void)
{
    struct sim_fiber *can[SIM_FIBERS];
    uint32_t count, choice, flushes = 0;

    sim_next = 1;
    if (all.preemptions == all.preemptions_most)
        return;
    count = (uint32_t)who_can(can, sim_self);
    for (int i = 0; i < sim_fiber_count; i++)
        flushes += sim_fibers[i].buffered > 0;
    choice = sim_choose(1 + count + flushes);
    if (choice == 0)
        return;
    all.preemptions++;
    if (choice <= count) {
        run(can[choice - 1], "preempted");
        return;
    }
    choice -= count + 1;
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].buffered > 0 && choice-- == 0) {
            sim_flush_one(&sim_fibers[i]);
            break;
        }
    point_of_all();
}

/* This fiber has read while its store waits: what if others do not see that for long? */
void sim_hold(void)
{
    sim_self->to_hold = sim_random() % held_one_in == 0;
    sim_next = sim_self->to_hold ? 1 : sim_next;
}

/* This fiber may go on. */
static void preempt(const char *why)
{
    struct sim_fiber *can[SIM_FIBERS], *fiber = pick(can, who_can(can, NULL));

    sim_next = 1;
    if (fiber != sim_self)
        sim_chosen(SIM_PREEMPTED, 0, fiber->id);
    run(fiber, why);
}

/* What happens to the worker at some time may happen here. */
static void come_to_place(void)
{
    int worker = sim_self->worker;

    sim_self->to_hold = false;
    if (sim_random() % 4 == 0 && sim_stop_early(worker))
        return;
    sim_self->held_until = sim_schedule.points + HELD_POINTS;
    preempt("held");
}

/* The choices that were made here. */
static void choose_again(void)
{
    const struct sim_choice *choice;

    while ((choice = sim_chosen_here()) != NULL) {
        struct sim_fiber *fiber = fiber_of(choice->kind == SIM_VISIBLE ? choice->value >> 8 : choice->value);
        int worker = (int)(choice->value % SIM_COPIES);

        if (choice->kind == SIM_HEARD_OF && deaths[worker].heard_at != SIM_FOREVER) {
            deaths[worker].heard_at = 0;
            hear_of_deaths(0);
        } else if (choice->kind == SIM_KILLED && deaths[worker].at != SIM_FOREVER && !deaths[worker].dead)
            die(worker);
        else if (choice->kind == SIM_STARTED_AGAIN)
            sim_comeback_now(worker);
        else if (choice->kind == SIM_STOPPED)
            sim_stop_now((int)(choice->value >> 20) % SIM_COPIES, (uint64_t)(choice->value & 0xfffff) * 1000000);
        else if (choice->kind == SIM_VISIBLE && fiber != NULL)
            sim_flush_this(fiber, choice->value & 0xff);
        else if (choice->kind == SIM_PREEMPTED && fiber != NULL && can_run(fiber))
            run(fiber, "preempted");
        if (sim_is_stopped(sim_self->worker))
            run_another("stopped");
    }
    if (sim_schedule.points - switched_at > 4 * SPIN_POINTS)
        run_another("has run for long");
    sim_next = sim_points_to_choice();
    sim_next = sim_next < SPIN_POINTS ? sim_next : SPIN_POINTS;
}

void sim_point_slow(uintptr_t pc)
{
    struct sim_schedule *s = &sim_schedule;
    uint64_t next, stop_at;

    if (s->points > sim_points_most)
        sim_fail("the schedule does not end");
    if (s->way == SIM_ALL) {
        point_of_all();
        return;
    }
    if (sim_mode() == SIM_MAKES_AGAIN) {
        choose_again();
        return;
    }
    hear_of_deaths(s->points);
    for (int worker = 0; worker < SIM_COPIES; worker++)
        if (s->points >= deaths[worker].at && !deaths[worker].dead)
            die(worker);
    sim_comebacks_begin(s->points);
    if (deaths[sim_self->worker].at != SIM_FOREVER && sim_is_place(pc, 0) &&
        sim_random() % (2 * held_one_in) == 0)
        die(sim_self->worker);
    if (sim_self->to_hold || (sim_is_place(pc, 0) && sim_random() % held_one_in == 0))
        come_to_place();
    stop_at = sim_stops_begin(s->points);
    if (sim_is_stopped(sim_self->worker))
        run_another("stopped");
    if (s->points >= flush_at)
        flush_some();
    if (s->way == SIM_RANDOM && s->points >= switch_at) {
        switch_at = s->points + gap(switch_mean);
        preempt("preempted");
    } else if (s->way == SIM_PRIORITIES) {
        for (uint32_t i = 0; i < changes; i++)
            if (s->points >= change_at[i]) {
                change_at[i] = SIM_FOREVER;
                sim_self->priority = lowest--;
            }
        if (s->points - switched_at > SPIN_POINTS) {
            sim_self->priority = lowest--;
            switched_at = s->points;
        }
        switch_at = switched_at + SPIN_POINTS + 1;
        for (uint32_t i = 0; i < changes; i++)
            switch_at = change_at[i] < switch_at ? change_at[i] : switch_at;
        preempt("preempted");
    }
    next = switch_at < flush_at ? switch_at : flush_at;
    next = stop_at < next ? stop_at : next;
    for (int worker = 0; worker < SIM_COPIES; worker++) {
        next = deaths[worker].at < next ? deaths[worker].at : next;
        next = deaths[worker].heard_at < next ? deaths[worker].heard_at : next;
        next = sim_comeback_at(worker) < next ? sim_comeback_at(worker) : next;
    }
    sim_next = next > s->points ? (int64_t)(next - s->points) : 1;
}

/* ---- one schedule --------------------------------------------------------------------------------- */

static void *start(void *argument)
{
    const struct sim_program *const *copies = argument;

    copies[sim_self->worker]->start(sim_self->worker);
    return NULL;
}

static const struct sim_program *const *programs;
static const char *const mains[SIM_COPIES] = { "main0", "main1", "main2", "main3", "main4" };

/* A process with the memory of the program's beginning. It is behind all that the dead one did. */
void sim_start_again(int worker)
{
    struct sim_fiber *first;

    sim_note("worker %d is started again", worker);
    sim_statics_reset_one(worker);
    deaths[worker].dead = false;
    deaths[worker].at = SIM_FOREVER;
    if (program->again != NULL)
        program->again(worker);
    first = sim_fiber_make(mains[worker], worker, start, (void *)(uintptr_t)programs);
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].worker == worker && &sim_fibers[i] != first)
            first->clock.at[i] = sim_fibers[i].clock.at[i];
    set_priority(first);
    sim_next = 1;
}

static void draw(uint64_t seed)
{
    struct sim_schedule *s = &sim_schedule;
    static const uint32_t switch_means[] = { 2, 8, 32, 128, 1024 }, flush_means[] = { 1, 8, 64, 1024, 16384 };

    random_state = seed * 0xd1342543de82ef95 + 1;
    if (s->way != SIM_ALL)
        s->way = sim_random() % 2 == 0 ? SIM_RANDOM : SIM_PRIORITIES;
    s->weak = s->way != SIM_ALL && sim_random() % 2 == 0;
    s->tick_ns = sim_random() % 2 == 0 ? 20 : 3000;
    s->disturbed = s->way != SIM_ALL && sim_random() % 4 == 0;
    switch_mean = switch_means[sim_random() % 5];
    flush_mean = flush_means[sim_random() % 5];
    changes = 2 + (uint32_t)(sim_random() % (CHANGES_MOST - 1));
    for (uint32_t i = 0; i < changes; i++)
        change_at[i] = sim_random() % program->points;
    s->places = s->way == SIM_ALL || sim_random() % 2 == 0 ? 0 : UINT32_C(1) << (27 - sim_random() % 6);
    if (sim_mode() == SIM_MAKES_AGAIN)
        s->places = 0;
    s->place_factor = (uint32_t)sim_random() | 1;
    held_one_in = UINT32_C(1) << (sim_random() % 7);
}

void sim_run(const struct sim_program *const *copies, uint64_t seed)
{
    const bool trace = sim_schedule.trace;
    struct sim_fiber *first;

    program = copies[0];
    programs = copies;
    sim_schedule = (struct sim_schedule){ .seed = seed, .trace = trace, .way = sim_schedule.way, .now_ns = 1000000000 };
    draw(seed);
    sim_fate_reset(program);
    lowest = FIRST_PRIORITY - 1;
    switch_at = switched_at = 0;
    flush_at = SIM_FOREVER;
    sim_next = 1;
    all.depth = all.preemptions = 0;
    memset(truths, 0, sizeof truths);
    for (int worker = 0; worker < SIM_COPIES; worker++)
        deaths[worker] = (struct death){ .at = SIM_FOREVER, .heard_at = SIM_FOREVER };
    sim_fibers_reset();
    sim_choices_reset();
    sim_memory_reset();
    sim_world_reset(program->resets);
    if (program->resets)
        sim_statics_reset(program->workers);
    for (int worker = program->workers - 1; worker >= 0; worker--) {
        first = sim_fiber_make(mains[worker], worker, start, (void *)(uintptr_t)copies);
        set_priority(first);
    }
    sim_fibers_run(&sim_fibers[sim_choose((uint32_t)program->workers)]);
    if (!sim_schedule.found && program->check != NULL)
        program->check();
    if (program->resets)
        sim_names_left();
}
