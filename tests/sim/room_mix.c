/* SPDX-License-Identifier: MIT */
/*
 * Random programs. Each thread of each worker runs a script: operations of the other rooms, in an order that the seed
 * chooses. The truth lies beside the operations. `mix` has those of `calls`, `tensors`, `rrefs` and `late`, and two to
 * five workers; these, `death` and `grads` have their own, and two or three. Workers die, come back, and leave alone.
 *
 * Truth: what each operation says. When nobody keeps anything any more, all leases return, those of the dead too, and
 * all objects of the living are destroyed.
 */
#include "room_job.h"

#include "boxcar.h"

struct mix {
    int least, most;                    /* workers */
    uint32_t longest;                   /* operations in a script */
    uint32_t dies_in, points;           /* one dies in one of so many schedules, after at most 2^points points */
    bool lends, refers, late, hosts;    /* hosts: always several */
    sim_operation *const *operations;
    uint32_t count;
    sim_operation *more;                /* before the start */
};

#define OPERATIONS(name, ...) static sim_operation *const name[] = { __VA_ARGS__ }
OPERATIONS(calls, sim_call);
OPERATIONS(lends, sim_lend);
OPERATIONS(refers, sim_refer, sim_refer, sim_refer, sim_refer, sim_refer, sim_refer, sim_refer, sim_flood);
OPERATIONS(lates, sim_combine, sim_call_back, sim_call_object, sim_begin_and_await, sim_begin_and_await,
           sim_fulfil_one);
OPERATIONS(passes, sim_pass);
OPERATIONS(nets, sim_mirror, sim_mirror, sim_mirror, sim_mirror, sim_lend, sim_call);
OPERATIONS(all, sim_call, sim_call, sim_lend, sim_lend, sim_refer, sim_refer, sim_combine, sim_call_back,
           sim_call_object, sim_begin_and_await, sim_fulfil_one);
#define OF(name) name, sizeof name / sizeof name[0]

static const struct mix *mix;           /* of this worker */
/* WAITS: 1: until nothing is out. 2: the shutdown comes while something is. 3: the same, but nobody keeps anything. */

static void *script(void *job)
{
    uint32_t count = 1 + sim_choose(mix->longest);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t which = sim_choose(mix->count);

        sim_note("operation %u", which);
        mix->operations[which](job);
    }
    return NULL;
}

/* When all have started one dies, in some of these schedules another one too. */
static void kill_some(void)
{
    sim_count(STARTED, 1);
    if (sim_truth(STARTED) != sim_truth(SIZE) || sim_choose(mix->dies_in) != mix->dies_in - 1)
        return;
    do
        if (sim_choose(4) == 0 && sim_truth(DIES_AT_END) == 0)
            sim_count(DIES_AT_END, 1 + sim_choose((uint32_t)sim_truth(SIZE)));
        else
            sim_job_kill((int)sim_choose((uint32_t)sim_truth(SIZE)),
                         sim_choose(UINT32_C(1) << (4 + sim_choose(mix->points))));
    while (sim_truth(SIZE) > 2 && sim_choose(3) == 0);
}

static bool all_are_done(void *unused)
{
    (void)unused;
    return sim_all_have(DONE_0);
}

static void leave_at_once(int worker, struct bx_job *job)
{
    static const unsigned of[] = { DONE_0, FREE_0, FREED_0 };

    for (unsigned i = 0; i < 3; i++)
        sim_count(of[i] + (unsigned)worker, 1);
    sim_count(LEAVERS, 1);
    if (job != NULL)
        sim_job_end(job, -1);
    sim_release_kept();
    sim_grads_end();
}

static void end(int worker, struct bx_job *job)
{
    static const unsigned of[] = { FREE_0, FREED_0 };
    bool waits = (mix->lends || mix->refers) && sim_truth(WAITS) == 1;

    sim_count(DONE_0 + (unsigned)worker, 1);
    sim_count(LEAVERS, 1);
    if (!waits && sim_leave_alone(job)) {       /* what it had passed on comes back with the end of its process */
        for (unsigned i = 0; i < 2; i++)
            sim_count(of[i] + (unsigned)worker, 1);
        sim_release_kept();
    } else {
        if (waits) {
            while (!all_are_done(NULL))
                sim_block("the calls of the others", all_are_done, NULL, SIM_FOREVER);
            sim_count(CLOSED, 1);
            if (mix->lends)
                sim_get_all_back(job);
            if (mix->refers)
                sim_await_objects();
        }
        sim_release_kept();
        sim_job_end(job, -1);
        sim_release_kept();             /* what came since */
    }
    if (mix->late)
        sim_late_end();
    sim_grads_end();
}

static void run(int worker, const struct mix *of)
{
    struct bx_job *job;
    int other = -1, completer = -1;

    mix = of;
    if (sim_truth(SIZE) == 0) {
        sim_count(SIZE, of->least + (int)sim_choose((uint32_t)(1 + of->most - of->least)));
        sim_count(WAITS, 1 + sim_choose(3));
        for (int rank = 0; of->hosts && rank < (int)sim_truth(SIZE); rank++)
            sim_put_on_host(rank, rank < 2 ? rank : (int)sim_choose(3));
    }
    if (worker >= (int)sim_truth(SIZE))
        return;
    job = sim_job_begin(worker, (int)sim_truth(SIZE), of->more);
    if (job == NULL || sim_truth(CLOSED) > 0) {         /* it has come back too late */
        leave_at_once(worker, job);
        return;
    }
    if (sim_truth(SIZE) < 4 && sim_choose(2) == 0)
        other = sim_spawn("other", script, job);
    if (of->late && sim_truth(SIZE) < 4)
        completer = sim_spawn("completer", sim_complete, job);
    kill_some();
    script(job);
    if (other >= 0)
        sim_join(other);
    if (of->dies_in < 100 && sim_choose(4) != 0) {
        sim_await_decision(sim_another(job));
        script(job);
    }
    if (completer >= 0)
        sim_join(completer);
    end(worker, job);
}

void sim_room_calls(int worker)
{
    run(worker, &(struct mix){ 2, 2, 3, 1000, 1, false, false, false, false, OF(calls), NULL });
}

void sim_room_death(int worker)
{
    run(worker, &(struct mix){ 2, 2, 6, 1, 10, false, false, false, false, OF(calls), NULL });
}

void sim_room_tensors(int worker)
{
    run(worker, &(struct mix){ 3, 3, 5, 3, 11, true, false, false, false, OF(lends), NULL });
}

void sim_room_rrefs(int worker)
{
    run(worker, &(struct mix){ 3, 3, 4, 3, 11, false, true, false, false, OF(refers), NULL });
}

void sim_room_late(int worker)
{
    run(worker, &(struct mix){ 2, 2, 3, 4, 11, false, false, true, false, OF(lates), sim_late_register });
}

void sim_room_grads(int worker)
{
    run(worker, &(struct mix){ 3, 3, 2, 3, 11, false, false, false, false, OF(passes), sim_grads_register });
}

void sim_room_mix(int worker)
{
    run(worker, &(struct mix){ 2, 5, 6, 4, 12, true, true, true, false, OF(all), sim_late_register });
}

void sim_room_net(int worker)
{
    run(worker, &(struct mix){ 2, 3, 5, 5, 12, true, false, false, true, OF(nets), NULL });
}
