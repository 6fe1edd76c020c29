/* SPDX-License-Identifier: MIT */
/*
 * What test_spawn.c, test_spawn_memory.c and test_spawn_restart.c share: memory in which the workers note what they
 * saw, worker functions, and checks of the launcher's report.
 */
#ifndef TESTS_SPAWN_FIXTURE_H
#define TESTS_SPAWN_FIXTURE_H

#include "place.h"

#include "job/job.h"

#include <sys/prctl.h>

#define WORLD 3
#define SHORT_NS UINT64_C(20000000)

struct seen {
    bxi_a32 running;                    /* workers that have reached meet() */
    int runs[WORLD];
    pid_t pid[WORLD];
    pid_t parent[WORLD];
    int world_size[WORLD];
    uint64_t call_timeout_ns[WORLD];
    char name[WORLD][BXI_NAME_BYTES];
    char job[WORLD][BXI_NAME_BYTES];
    struct bx_spawn_report report;
    int rc;
    char text[BXI_TEXT_BYTES];
};

static struct seen *seen;
static uint64_t grace_ns = SHORT_NS;

static inline void set_up(void)
{
    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(seen, MAP_FAILED);
    place_set_up();
}

static inline int spawn(bx_worker_fn fn, void *context)
{
    struct bx_spawn_options options = { .job = job_name, .world_size = WORLD, .grace_ns = grace_ns };

    seen->rc = bx_spawn(&options, fn, context, &seen->report);
    return seen->rc;
}

static inline void expect_no_child(void)
{
    cr_expect_eq(waitpid(-1, NULL, WNOHANG), -1);
    cr_expect_eq(errno, ECHILD);
}

static inline void expect_report(int failed_rank, int exit_status, int term_signal, int interrupt_signal)
{
    cr_expect_eq(seen->report.failed_rank, failed_rank);
    cr_expect_eq(seen->report.exit_status, exit_status);
    cr_expect_eq(seen->report.term_signal, term_signal);
    cr_expect_eq(seen->report.interrupt_signal, interrupt_signal);
}

static inline void expect_text(const char *format, int rank)
{
    char text[128];

    snprintf(text, sizeof(text), format, (long)seen->pid[rank]);
    cr_expect_str_eq(bx_error_text(), text);
}

/* Waits until all workers are here. Then the test knows the pids of all. */
static inline void meet(void)
{
    bxi_add(&seen->running, 1);
    HARNESS_WAIT_WHILE(bxi_load_seq_cst(&seen->running) < WORLD);
}

static inline void note(const struct bx_options *options)
{
    int rank = options->rank;

    seen->runs[rank]++;
    seen->pid[rank] = getpid();
    seen->parent[rank] = getppid();
    seen->world_size[rank] = options->world_size;
    seen->call_timeout_ns[rank] = options->call_timeout_ns;
    snprintf(seen->name[rank], BXI_NAME_BYTES, "%s", options->name);
    snprintf(seen->job[rank], BXI_NAME_BYTES, "%s", options->job);
    meet();
}

static inline _Noreturn void wait_for_ever(void)
{
    for (;;)
        pause();
}

/* Makes and notes a segment and an arena, as a worker does in its start. Returns 0, or less if it fails. */
static inline int make_names(const struct bx_options *options)
{
    static struct bxi_segment segment;
    static struct bxi_arena *arena;
    static struct bx_job job;
    char name[BXI_OBJECT_NAME_BYTES], arena_name[BXI_OBJECT_NAME_BYTES];

    job.instance = 1;
    job.rank = options->rank;
    job.world_size = options->world_size;
    snprintf(job.job_name, sizeof(job.job_name), "%s", options->job);
    bxi_object_name(name, (uint32_t)geteuid(), options->job, 1, options->rank);
    bxi_object_arena_name(arena_name, (uint32_t)geteuid(), options->job, 1, options->rank);
    bxi_spawn_note_segment(&job, name, arena_name);
    if (bxi_arena_create(arena_name, 4 << 20, NULL, &arena) < 0)
        return -1;
    return bxi_segment_create(&segment, options->job, options->name, 1, options->rank, WORLD);
}

#endif
