/* SPDX-License-Identifier: MIT */
/*
 * Workers that are stopped and go on (SIGSTOP, SIGCONT), and those that are started again when they have died.
 *
 * No fiber of a stopped worker runs, as long as simulated time has not come to the end of its stop. All else goes on:
 * its stores become visible, its descriptors take what others send, its pidfd is silent. Time passes only when nobody
 * else can run, so the others see each of their deadlines that lies within the stop.
 */
#include "sim.h"

#define STOPS_MOST 2                    /* that the seed chooses; one more that a program asks for */

static struct stop {
    uint64_t at;                    /* points; SIM_FOREVER: not any more */
    uint64_t ns;
    int worker;
} stops[STOPS_MOST + 1];
static uint64_t until_ns[SIM_COPIES], stopped_ns;

/* ---- stops ------------------------------------------------------------------------------------------ */

/* In a quarter of the schedules, at any point. All of them together are shorter than any limit of the library for a
 * start, a call or a shutdown; some are longer than its watchdogs. */
static void stops_reset(const struct sim_program *program)
{
    static const uint64_t lengths_ns[] = { 2000000, 300000000, 3000000000, 12000000000 };
    bool any = program->workers > 1 && sim_random() % 4 == 0;

    memset(until_ns, 0, sizeof until_ns);
    stopped_ns = 0;
    stops[STOPS_MOST].at = SIM_FOREVER;
    for (int i = 0; i < STOPS_MOST; i++) {
        stops[i].at = any && (i == 0 || sim_random() % 2 == 0) ? sim_random() % program->points : SIM_FOREVER;
        stops[i].ns = lengths_ns[sim_random() % 4];
        stops[i].worker = (int)(sim_random() % (uint64_t)program->workers);
        if (sim_mode() == SIM_MAKES_AGAIN)
            stops[i].at = SIM_FOREVER;
    }
}

void sim_stop_later(int worker, uint32_t points, uint64_t ns)
{
    if (sim_mode() != SIM_MAKES_AGAIN)
        stops[STOPS_MOST] = (struct stop){ .at = sim_schedule.points + points, .ns = ns, .worker = worker };
    sim_next = 1;
}

bool sim_is_stopped(int worker)
{
    return sim_schedule.now_ns < until_ns[worker] && !sim_is_dead(worker);
}

bool sim_any_is_stopped(void)
{
    for (int worker = 0; worker < SIM_COPIES; worker++)
        if (sim_is_stopped(worker))
            return true;
    return false;
}

uint64_t sim_stopped_ns(void)
{
    return stopped_ns;
}

/* One that the worker has before it begins now. False: it has none. */
bool sim_stop_early(int worker)
{
    for (struct stop *stop = stops; stop <= stops + STOPS_MOST; stop++)
        if (stop->at != SIM_FOREVER && stop->worker == worker) {
            stop->at = 0;
            return true;
        }
    return false;
}

void sim_stop_now(int worker, uint64_t ns)
{
    sim_note("worker %d is stopped for %llu ns", worker, (unsigned long long)ns);
    sim_chosen(SIM_STOPPED, 0, (uint32_t)((uint64_t)worker << 20 | ns / 1000000));
    stopped_ns += ns;
    until_ns[worker] = sim_schedule.now_ns + ns;
}

/* Begins the stops whose point has come. The next such point. */
uint64_t sim_stops_begin(uint64_t points)
{
    uint64_t next = SIM_FOREVER;

    for (struct stop *stop = stops; stop <= stops + STOPS_MOST; stop++) {
        if (stop->at <= points) {
            stop->at = SIM_FOREVER;
            sim_stop_now(stop->worker, stop->ns);
        }
        next = stop->at < next ? stop->at : next;
    }
    return next;
}

/* When the first of those that are stopped goes on; SIM_FOREVER: none is. */
uint64_t sim_stops_end_ns(void)
{
    uint64_t next_ns = SIM_FOREVER;

    for (int worker = 0; worker < SIM_COPIES; worker++)
        if (sim_is_stopped(worker) && until_ns[worker] < next_ns)
            next_ns = until_ns[worker];
    return next_ns;
}

/* ---- comebacks -------------------------------------------------------------------------------------- */

static struct {
    uint64_t after, at;             /* points; SIM_FOREVER: none */
} comebacks[SIM_COPIES];

void sim_fate_reset(const struct sim_program *program)
{
    stops_reset(program);
    for (int worker = 0; worker < SIM_COPIES; worker++)
        comebacks[worker].after = comebacks[worker].at = SIM_FOREVER;
}

void sim_start_again_later(int worker, uint32_t points)
{
    comebacks[worker].after = points;
}

/* Who starts processes again knows of the end of the old one before. */
void sim_death_is_heard_of(int worker)
{
    if (comebacks[worker].after != SIM_FOREVER)
        comebacks[worker].at = sim_mode() == SIM_MAKES_AGAIN ? SIM_FOREVER - 1 :
                               sim_schedule.points + comebacks[worker].after;
    comebacks[worker].after = SIM_FOREVER;
}

bool sim_is_gone(int worker)
{
    return sim_is_dead(worker) && comebacks[worker].after == SIM_FOREVER && comebacks[worker].at == SIM_FOREVER;
}

uint64_t sim_comeback_at(int worker)
{
    return comebacks[worker].at;
}

void sim_comeback_now(int worker)
{
    if (comebacks[worker].at == SIM_FOREVER)
        return;
    comebacks[worker].at = 0;
    sim_comebacks_begin(0);
}

static bool another_runs(int worker)
{
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].worker != worker && (sim_fibers[i].state == SIM_RUNS || sim_fibers[i].state == SIM_BLOCKED))
            return true;
    return false;
}

/* Those that are due by so many points. False: there is none. */
bool sim_comebacks_begin(uint64_t points)
{
    bool any = false;

    for (int worker = 0; worker < SIM_COPIES; worker++) {
        if (comebacks[worker].at > points)
            continue;
        if (points < SIM_FOREVER - 1)
            sim_chosen(SIM_STARTED_AGAIN, 0, (uint32_t)worker);
        comebacks[worker].at = SIM_FOREVER;
        if (!another_runs(worker))
            continue;
        until_ns[worker] = 0;
        sim_start_again(worker);
        any = true;
    }
    return any;
}
