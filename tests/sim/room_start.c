/* SPDX-License-Identifier: MIT */
/*
 * Deaths, stops and failing calls in the start of a job. A worker whose start fails starts again, and so does the
 * process that takes the place of one that died, until all have been in one job.
 *
 * Truth: a start fails only if a worker has died, was stopped for long, or a call was refused, and then at once. Those
 * that start for the first time have all started, or none has. At the end all are in one job, and no name is left. The
 * next job of that name begins when the last one is shut down.
 */
#include "room_job.h"

#include "job/job.h"

#define TIMEOUT_NS UINT64_C(6000000000)
#define AT_ONCE_NS UINT64_C(3000000000)        /* a process that dies releases its locks a second late at most */
#define TRIES_MOST 20                  /* 0.6 s each: a worker that leaves waits for one that is stopped */
enum { FAILED = GIVEN_UP, TOGETHER = CLOSED, MET = HEARD_0, ONCE = PENDING };

static bool is_disturbed(void)
{
    return sim_any_is_dead() || sim_refusal() != 0 || sim_stopped_ns() > 1000000000;
}

/* Of a job of some instance all have started, or none has. */
static void judge(uint64_t instance, bool failed)
{
    sim_count(failed ? FAILED : STARTED, (int64_t)(instance - sim_truth(failed ? FAILED : STARTED)));
    if (sim_truth(FAILED) == sim_truth(STARTED) && instance != 0 && sim_stopped_ns() < 1000000000)
        sim_fail("one worker has started, the start of another one has failed");
}

/* How many deaths a worker knows of whose names it removes. */
static void know(int rank, int deaths)
{
    sim_count(AWARE_0 + (unsigned)rank, 1 + deaths - (int64_t)sim_truth(AWARE_0 + (unsigned)rank));
}

static struct bx_job *try_to_start(int rank)
{
    struct bx_options options = { .job = "sim", .rank = rank, .world_size = (int)sim_truth(SIZE), .no_spin = true,
                                  .arena_bytes = 16 << 20, .wait = BX_WAIT_EPOLL, .rejoin = sim_truth(REJOIN) - 1,
                                  .start_timeout_ns = TIMEOUT_NS };
    struct bx_job *job = NULL;
    uint64_t began_ns;
    int rc = bx_job_create(&options, &job);

    if (rc < 0 && sim_refusal() != 0)
        rc = bx_job_create(&options, &job);
    if (rc < 0)
        sim_fail("bx_job_create returns %d: %s", rc, bx_error_text());
    began_ns = sim_now();
    rc = bx_job_start(job);
    sim_note("start: %d, %s", rc, rc < 0 ? bx_error_text() : "");
    if (rc < 0 && !is_disturbed())
        sim_fail("bx_job_start of rank %d returns %d: %s", rank, rc, bx_error_text());
    if (sim_now() > began_ns + AT_ONCE_NS && sim_stopped_ns() == 0 && sim_truth(ONCE) == 0 &&
        (sim_refusal() == 0 || sim_truth(TOGETHER) == 0))      /* else one that has failed does not try again */
        sim_fail("bx_job_start of rank %d returns %d after %.3f s: %s", rank, rc, (double)(sim_now() - began_ns) / 1e9,
                 rc < 0 ? bx_error_text() : "");
    if (sim_deaths(rank) + sim_refusal() == 0)         /* else it may have failed to join, or behind the gate */
        judge(job->instance, rc < 0);
    if (rc == 0)
        return job;
    know(rank, rc == BX_E_PEER_DEAD);
    sim_count(MET, rank == 1 && rc == BX_E_PEER_DEAD && job->instance != 0);
    bx_job_destroy(job);
    return NULL;
}

static bool were_together(void *unused)
{
    (void)unused;
    return sim_truth(TOGETHER) > 0;
}

static bool all_are_in(void)
{
    for (int rank = 0; rank < (int)sim_truth(SIZE); rank++)
        if (sim_truth(IN_0 + (unsigned)rank) == 0)
            return false;
    return true;
}

/* Until all have been in one job, or for so long that one of them must have died. */
static void be_in(int rank, struct bx_job *job)
{
    sim_count(IN_0 + (unsigned)rank, 1);
    sim_count(TOGETHER, all_are_in());
    sim_block("the others", were_together, NULL, sim_now() + 500000000);
    sim_count(IN_0 + (unsigned)rank, -1);
    sim_must(job, "bx_job_shutdown", bx_job_shutdown(job, 0));
}

void sim_room_start(int worker)
{
    struct bx_job *job, *next;

    if (sim_truth(SIZE) == 0) {
        sim_count(SIZE, 2 + sim_choose(2));
        sim_count(REJOIN, 1 + sim_choose(2));
        if (sim_choose(4) == 0)         /* it may give up while others start */
            sim_stop_later((int)sim_choose((uint32_t)sim_truth(SIZE)), sim_choose(UINT32_C(1) << (9 + sim_choose(6))),
                           TIMEOUT_NS + 3000000000);
        else if (sim_choose(3) > 0)
            sim_count(SERIAL, 1 + sim_choose((uint32_t)sim_truth(SIZE)));
        sim_count(ONCE, sim_truth(SERIAL) > 0 && sim_choose(3) == 0);
    }
    if (worker >= (int)sim_truth(SIZE) || sim_truth(TOGETHER) > 0)
        return;
    if (sim_deaths(worker) < 2 && worker + 1 == (int)sim_truth(SERIAL)) {
        sim_kill_later(worker, sim_choose(UINT32_C(1) << (4 + sim_choose(11))));
        if (sim_truth(ONCE) == 0)
            sim_start_again_later(worker, sim_choose(UINT32_C(1) << (2 + sim_choose(12))));
    }
    for (int tries = 0; sim_truth(TOGETHER) == 0; tries++) {
        if (tries == TRIES_MOST)
            sim_fail("rank %d does not start in %d tries: %s", worker, tries, bx_error_text());
        job = try_to_start(worker);
        if (job == NULL && sim_truth(ONCE) > 0)
            break;
        if (job == NULL) {
            nanosleep(&(struct timespec){ .tv_nsec = 600000000 }, NULL);
            continue;
        }
        be_in(worker, job);
        next = sim_truth(SERIAL) == 0 && sim_truth(TOGETHER) > 0 ? try_to_start(worker) : NULL;
        know(worker, sim_deaths_heard_of());
        bx_job_destroy(job);
        if (next != NULL)
            sim_must(next, "bx_job_shutdown", bx_job_shutdown(next, 0));
        bx_job_destroy(next);
        if (sim_truth(ONCE) > 0)
            break;
    }
    /* Nobody removes the names of a rank 0 that died before it was met. */
    sim_count(EXTINCT, (sim_truth(MET) < (uint64_t)sim_deaths(0)) - (int64_t)sim_truth(EXTINCT));
}
