/* SPDX-License-Identifier: MIT */
/*
 * Workers of jobs with options.rejoin, each a process that the test forks: what test_rejoin.c, test_door.c and
 * tests/shm/kill_rejoin.h share.
 */
#ifndef TESTS_REJOIN_FIXTURE_H
#define TESTS_REJOIN_FIXTURE_H

#include "starts.h"

#include "tests/harness/harness.h"

enum rejoin_gate { STARTED = 40, GO_ON, BACK, LAST_WORD };    /* above those of test_kill_steps.c */

struct life {
    int rank;
    int world_size;
    bool no_rejoin;
    bool own_loop;
    bool has_own_pids;          /* it is in a pid namespace of its own. Needs root */
    const char *name;
    uint64_t timeout_ns;
    harness_fn body;            /* after the start; NULL: only waits for LAST_WORD */
    void (*setup)(struct bx_job *job);      /* before the start; may be NULL */
};

static inline void live(struct start *start, const struct life *life)
{
    struct bx_options options = {
        .job = job_name,
        .rank = life->rank,
        .name = life->name,
        .world_size = life->world_size,
        .start_timeout_ns = life->timeout_ns != 0 ? life->timeout_ns : UINT64_C(30000000000),
        .own_loop = life->own_loop,
        .rejoin = !life->no_rejoin,
    };
    struct bx_job *job = NULL;

    HARNESS_EQ(bx_job_create(&options, &job), 0);
    HARNESS_EQ(bx_register(job, "echo", BX_INLINE, harness_echo, NULL), 0);
    if (life->setup != NULL)
        life->setup(job);
    start->rc = bx_job_start(job);
    snprintf(start->text, sizeof(start->text), "%s", start->rc < 0 ? bx_error_text() : "");
    if (start->rc == 0) {
        harness_post(STARTED);
        if (life->body != NULL)
            life->body(job);
        harness_await(LAST_WORD, 1);
        HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    }
    bx_job_destroy(job);
}

/* Becomes a process whose child, in a new pid namespace, returns. */
static inline void enter_own_pids(void)
{
    int status = 0;

    HARNESS_EQ(unshare(CLONE_NEWPID), 0);
    pid_t pid = fork();
    HARNESS_CHECK(pid >= 0);
    if (pid == 0)
        return;
    HARNESS_EQ(waitpid(pid, &status, 0), pid);
    _exit(status != 0);
}

/* Forks process number `index`. */
static inline void begin_life(int index, struct life life)
{
    pid_t pid = fork();

    if (life.world_size == 0)
        life.world_size = 3;
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        if (life.has_own_pids)
            enter_own_pids();
        live(&starts[index], &life);
        _exit(0);
    }
    starts[index].pid = pid;
}

/* Starts ranks 0 to world_size - 1, all with this body, as processes of the same numbers. */
static inline void begin_lives(int world_size, struct life life)
{
    for (life.rank = 0; life.rank < world_size; life.rank++) {
        life.world_size = world_size;
        begin_life(life.rank, life);
    }
    harness_await(STARTED, (uint32_t)world_size);
}

/* The same; then that rank is killed. */
static inline void begin_lives_but(int world_size, int rank, struct life life)
{
    begin_lives(world_size, life);
    start_is_killed(rank);
}

static inline void publishes_its_instance(struct bx_job *job)
{
    harness_store(0, job->instance);
}

/* Begins such a job. Its instance. */
static inline uint64_t begin_job(int world_size)
{
    begin_lives(world_size, (struct life){ .body = publishes_its_instance });
    HARNESS_WAIT_WHILE(harness_load(0) == 0);
    return harness_load(0);
}

/* All that have not ended leave together, and well. */
static inline void end_lives(void)
{
    harness_post(LAST_WORD);
    for (int index = 0; index < STARTS_MAX; index++)
        if (starts[index].pid > 0)
            start_succeeds(index);
}

static inline void await_alive(struct bx_job *job, int rank)
{
    HARNESS_WAIT_WHILE(!bx_worker_is_alive(job, rank));
}

static inline void await_dead(struct bx_job *job, int rank)
{
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, rank));
}

/* To the function "keep" of that worker. */
static inline int give_tensor(struct bx_job *job, const char *to, struct bx_tensor *tensor)
{
    OWN(msg) *args = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    return bx_rpc_sync(job, to, "keep", args, NULL, NULL);
}

/* Where nothing keeps the successor back: it may be there before anybody has looked. */
static inline void await_end_of(struct bx_job *job, int rank, int generation)
{
    HARNESS_WAIT_WHILE(bx_worker_is_alive(job, rank) && bx_worker_generation(job, rank) == generation);
}

/* A joiner is at the door, which waits for the role of this worker. */
static inline void await_joiner_at_door(struct bx_job *job)
{
    for (bool waits = false; !waits; sched_yield()) {
        bxi_lock(&job->run->lock);
        waits = job->rpc->joins.peer != NULL;
        bxi_unlock(&job->run->lock);
    }
}

/* Calls every other worker, and they answer. */
static inline void call_all(struct bx_job *job)
{
    for (int rank = 0; rank < bx_job_world_size(job); rank++)
        if (rank != bx_job_rank(job))
            for (int i = 0; i < 20; i++)
                HARNESS_EQ(harness_call_i64(job, bx_worker_name(job, rank), "echo", i), i);
}

#endif
