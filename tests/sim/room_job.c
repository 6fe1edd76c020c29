/* SPDX-License-Identifier: MIT */
/*
 * Whole jobs of two workers: bootstrap, calls, shutdown, destruction.
 *
 * Truth: each call ends once, with its answer; each handler runs as often as it was called, and never after
 * bx_job_shutdown has returned; what was accepted before the shutdown runs; `rescued` and `timers_late` are 0; nobody
 * waits for a watchdog (a second of simulated time) while a call is under way.
 */
#include "rooms.h"

#include "boxcar.h"

enum { HANDLED_0, HANDLED_1, SENT_TO_0, SENT_TO_1, STOPPED_0, STOPPED_1, UNDER_WAY };   /* of sim_truth */

static void must(const struct bx_job *job, const char *what, int rc)
{
    if (rc < 0)
        sim_fail("%s of '%s' returns %d: %s", what, bx_job_name(job), rc, bx_error_text());
}

static void log_line(int level, const char *text, void *context)
{
    (void)level, (void)context;
    sim_note("log: %s", text);
}

static int twice(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int rank = bx_job_rank(bx_request_job(request));

    (void)context;
    sim_count(HANDLED_0 + rank, 1);
    if (sim_truth(STOPPED_0 + rank))
        sim_fail("a handler runs after the shutdown of rank %d", rank);
    return bx_msg_put_i64(reply, 2 * bx_read_i64(args));
}

static struct bx_job *begin(int rank)
{
    struct bx_job *job = NULL;
    struct bx_options options = { .job = "sim", .rank = rank, .world_size = 2, .arena_bytes = 16 << 20,
                                  .no_spin = sim_choose(4) != 0, .spin_ns = 1, .wait = BX_WAIT_EPOLL };
    int rc;

    bx_set_log(log_line, NULL);
    rc = bx_job_create(&options, &job);
    if (rc < 0)
        sim_fail("bx_job_create returns %d: %s", rc, bx_error_text());
    must(job, "bx_register", bx_register(job, "inline", BX_INLINE, twice, NULL));
    must(job, "bx_register", bx_register(job, "blocking", BX_BLOCKING, twice, NULL));
    must(job, "bx_job_start", bx_job_start(job));
    return job;
}

static void end(struct bx_job *job)
{
    int rank = bx_job_rank(job);
    uint64_t rescued = 1, late = 1;

    sim_count(UNDER_WAY, 1);
    must(job, "bx_job_shutdown", bx_job_shutdown(job, 0));
    sim_count(UNDER_WAY, -1);
    sim_count(STOPPED_0 + rank, 1);
    bx_counter(job, "rescued", &rescued);
    bx_counter(job, "timers_late", &late);
    if (rescued != 0 || late != 0)
        sim_fail("rescued %llu, timers_late %llu at rank %d", (unsigned long long)rescued, (unsigned long long)late,
                 rank);
    bx_job_destroy(job);
}

static void call(struct bx_job *job, int64_t value)
{
    int to = 1 - bx_job_rank(job);
    const char *function = sim_choose(3) == 0 ? "blocking" : "inline";
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;

    bx_msg_put_i64(args, value);
    sim_count(SENT_TO_0 + to, 1);
    sim_count(UNDER_WAY, 1);
    if (sim_choose(4) == 0) {
        must(job, "bx_rpc_oneway", bx_rpc_oneway(job, to == 0 ? "worker0" : "worker1", function, args, NULL));
    } else {
        must(job, "bx_rpc_sync", bx_rpc_sync(job, to == 0 ? "worker0" : "worker1", function, args, NULL, &reply));
        reader = bx_msg_reader(reply);
        if (bx_read_i64(&reader) != 2 * value)
            sim_fail("twice %lld is wrong", (long long)value);
        bx_msg_destroy(reply);
    }
    sim_count(UNDER_WAY, -1);
    bx_msg_destroy(args);
}

static void *call_some(void *argument)
{
    struct bx_job *job = argument;
    uint32_t calls = 1 + sim_choose(3);

    for (uint32_t i = 0; i < calls; i++)
        call(job, i + 1);
    return NULL;
}

void sim_room_calls(int worker)
{
    struct bx_job *job = begin(worker);
    int other = sim_choose(2) == 0 ? sim_spawn(worker == 0 ? "caller0" : "caller1", call_some, job) : -1;

    if (worker == 0 || sim_choose(2) == 0)
        call_some(job);
    if (other >= 0)
        sim_join(other);
    end(job);
}

void sim_room_oneway(int worker)
{
    struct bx_job *job = begin(worker);
    uint32_t calls = worker == 0 ? 1 + sim_choose(4) : 0;

    for (uint32_t i = 0; i < calls; i++) {
        sim_count(SENT_TO_1, 1);
        must(job, "bx_rpc_oneway", bx_rpc_oneway(job, "worker1", "inline", NULL, NULL));
    }
    end(job);
}

void sim_room_job_check(void)
{
    for (int rank = 0; rank < 2; rank++)
        if (sim_truth(HANDLED_0 + rank) != sim_truth(SENT_TO_0 + rank))
            sim_fail("rank %d was called %llu times and has handled %llu", rank,
                     (unsigned long long)sim_truth(SENT_TO_0 + rank), (unsigned long long)sim_truth(HANDLED_0 + rank));
}

void sim_room_job_quiet(uint64_t ns)
{
    if (ns > 900000000 && sim_truth(UNDER_WAY) > 0)
        sim_fail("nobody can run for %.3f s, and something is under way", (double)ns / 1e9);
}
