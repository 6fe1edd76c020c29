/* SPDX-License-Identifier: MIT */
/*
 * Part of test_kill_steps.c: killed or stopped while a process takes the place of a dead worker. Ranks 0 to 2 run; one
 * is killed, and another process joins in its place. No launcher: the workers remove what is left. The simulator kills
 * those that join and those that let them join at any access (death, mix); here is what needs a name, a namespace of
 * pids, or a pause longer than the others wait.
 */
#ifndef TESTS_KILL_REJOIN_H
#define TESTS_KILL_REJOIN_H

#include "tests/job/rejoin_fixture.h"

static void aims_as_rank_2(struct bx_job *job)
{
    if (bx_job_rank(job) == 2)
        take_aim(target, (uint32_t)harness_load(STEP_COUNT), SIGSTOP);
    harness_post(GO_ON);
}

static void calls_and_is_called(struct bx_job *job)
{
    for (int rank = 0; rank < 3; rank++)
        if (bx_worker_is_alive(job, rank))
            for (int i = 0; i < 20; i++)
                HARNESS_EQ(harness_call_i64(job, bx_worker_name(job, rank), "echo", i), i);
    harness_post(BACK);
}

/* The process inherits the aim. */
static void begin_aimed(int index, struct life life, const char *step, uint32_t passages, int signal_number)
{
    take_aim(step, passages, signal_number);
    begin_life(index, life);
    aim.step = NULL;
}

static void was_killed(int index, const char *step)
{
    int status = 0;

    cr_assert_eq(waitpid(starts[index].pid, &status, 0), starts[index].pid);
    starts[index].pid = 0;
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "step %s: status %#x", step, (unsigned)status);
}

/* Nobody comes after it, and nobody had attached it: the workers remove its names when they end. */
static void run_killed_alone(const char *step)
{
    begin_lives_but(3, 1, (struct life){ 0 });
    begin_aimed(3, (struct life){ .rank = 1 }, step, 1, SIGKILL);
    was_killed(3, step);
    cr_expect_eq(segments_of(".1"), 1);
    end_lives();
    cr_expect_eq(segments_of("") + socket_files(), 0, "step %s", step);
}

/* Rank 2 has answered, and stops before it attaches the joiner, which rank 0 has attached by then. The joiner fails;
 * rank 0 sees it leave before it ran, and takes the next one. */
static void run_stopped_welcoming(void)
{
    target = "rejoin.came";
    harness_store(STEP_COUNT, 1);
    begin_lives(3, (struct life){ .body = aims_as_rank_2 });
    harness_await(GO_ON, 3);
    start_is_killed(1);
    begin_life(3, (struct life){ .rank = 1, .timeout_ns = 1000 * HARNESS_MS });
    start_fails(3, BX_E_RANK_MISSING, "worker 'worker2' (rank 2, pid ");
    kill(starts[2].pid, SIGCONT);
    begin_life(4, (struct life){ .rank = 1, .body = calls_and_is_called });
    harness_await(BACK, 1);
    end_lives();
}

static bxi_a32 joins_heard, deaths_heard;
static uint32_t deaths_at_join;

static void hears_join(struct bx_job *job, int rank, void *context)
{
    (void)job, (void)rank, (void)context;
    deaths_at_join = bxi_load_relaxed(&deaths_heard);
    bxi_add(&joins_heard, 1);
}

static void hears_death(struct bx_job *job, int rank, void *context)
{
    (void)job, (void)rank, (void)context;
    bxi_add(&deaths_heard, 1);
}

static void has_hooks(struct bx_job *job)
{
    HARNESS_EQ(bx_on_join(job, hears_join, NULL), 0);
    HARNESS_EQ(bx_on_death(job, hears_death, NULL), 0);
}

static void hears_in_order(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        return;
    HARNESS_WAIT_WHILE(bxi_load_acquire(&joins_heard) < 1 || bxi_load_acquire(&deaths_heard) < 2);
    HARNESS_EQ(deaths_at_join, 1);
    harness_post(BACK);
}

/* It runs, and has rung nobody: the others learn from its pidfd that it came back. */
static void run_killed_before_it_rang(void)
{
    begin_lives_but(3, 1, (struct life){ .body = hears_in_order, .setup = has_hooks });
    begin_aimed(3, (struct life){ .rank = 1 }, "rejoin.gate_open", 1, SIGKILL);
    was_killed(3, "rejoin.gate_open");
    harness_await(BACK, 2);
    end_lives();
}

static void shuts_down_early(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        return;
    harness_await(GO_ON, 1);
    HARNESS_EQ(bx_job_shutdown(job, 200 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_CHECK(strstr(bx_error_text(), "worker 'worker1'") != NULL);
    bx_job_destroy(job);
    harness_post(BACK);
    _exit(0);
}

/* It runs, and is stopped before it rings: a shutdown that begins now waits for it. */
static void run_shutdown_before_it_rang(void)
{
    int status = 0;

    begin_lives_but(2, 1, (struct life){ .body = shuts_down_early });
    begin_aimed(2, (struct life){ .rank = 1, .world_size = 2 }, "rejoin.gate_open", 1, SIGSTOP);
    cr_assert_eq(waitpid(starts[2].pid, &status, WUNTRACED), starts[2].pid);
    cr_assert(WIFSTOPPED(status));
    harness_post(GO_ON);
    start_succeeds(0);
    harness_post(LAST_WORD);
    kill(starts[2].pid, SIGCONT);
    start_succeeds(2);
}

static void sees_all(struct bx_job *job)
{
    HARNESS_CHECK(bx_worker_is_alive(job, 0) && bx_worker_is_alive(job, 2));
    calls_and_is_called(job);
}

static void await_stopped(int index)
{
    int status = 0;

    cr_assert_eq(waitpid(starts[index].pid, &status, WUNTRACED), starts[index].pid);
    cr_assert(WIFSTOPPED(status), "status %#x", (unsigned)status);
}

/* Rank 2 has accepted the connection that brings the joiner's descriptors, and stops for longer than either side waits
 * for the other: it lives, and so it is met. */
static void run_paused_before_it_reads(bool has_own_pids)
{
    target = "rejoin.accepted";
    harness_store(STEP_COUNT, 2);
    begin_lives(3, (struct life){ .body = aims_as_rank_2 });
    harness_await(GO_ON, 3);
    start_is_killed(1);
    begin_life(3, (struct life){ .rank = 1, .body = sees_all, .has_own_pids = has_own_pids });
    await_stopped(2);
    usleep(3300000);
    kill(starts[2].pid, SIGCONT);
    harness_await(BACK, 1);
    end_lives();
}

static void aims_and_publishes(struct bx_job *job)
{
    aims_as_rank_2(job);
    harness_store(STEP_COUNT + 1, job->instance);
}

/* Here the test is the joiner, and does not ask again. */
static void run_paused_before_it_drops(void)
{
    struct bxi_boot_hello hello = { .head = bxi_boot_head(BXI_BOOT_HELLO), .rank = 1, .world_size = 3, .rejoin = 1,
                                        .pid = (uint32_t)getpid(), .generation = 1, .name = "worker1" };
    static struct bxi_boot_packet packet;
    struct bxi_boot_paths paths;
    char path[BXI_BOOT_PATH_BYTES];
    uint32_t pid;

    target = "rejoin.accepted";
    harness_store(STEP_COUNT, 1);
    begin_lives(3, (struct life){ .body = aims_and_publishes });
    harness_await(GO_ON, 3);
    HARNESS_WAIT_WHILE((hello.instance = harness_load(STEP_COUNT + 1)) == 0);
    start_is_killed(1);
    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    cr_assert_eq(bxi_door_path(path, &paths, job_name, &(struct bxi_door_id){ hello.instance, 2, 1 }), 0);
    int fd = bxi_boot_connect(path, &pid);
    await_stopped(2);
    cr_assert_eq(bxi_boot_send(fd, &(struct bxi_boot_out){ &hello, sizeof(hello), NULL, 0 }, BX_FOREVER), 0);
    usleep(3100000);
    kill(starts[2].pid, SIGCONT);
    cr_assert_eq(bxi_poll(fd, POLLIN, BX_FOREVER), 1);
    cr_expect_eq(bxi_boot_receive(fd, &packet, 0), 1);
    cr_expect(bxi_boot_packet_is(&packet, BXI_BOOT_WELCOME, 0));
    close(fd);
    end_lives();
}

/* Then another joiner may have the mutex too. */
static void run_mutex_removed(void)
{
    char path[128];

    begin_lives_but(3, 1, (struct life){ 0 });
    begin_aimed(3, (struct life){ .rank = 1 }, "rejoin.met", 1, SIGSTOP);
    await_stopped(3);
    snprintf(path, sizeof(path), "%s/boxcar/%s.join", directory, job_name);
    cr_assert_eq(unlink(path), 0);
    kill(starts[3].pid, SIGCONT);
    start_fails(3, BX_E_SOCKET_DIR, ".join was removed while worker 'worker1' (rank 1) joined job");
    begin_life(4, (struct life){ .rank = 1, .body = calls_and_is_called });
    harness_await(BACK, 1);
    end_lives();
}

/* The first start: the others remove the name of its door. Rank 2 has met rank 0 by then: one that comes after the
 * failed start waits for another rank 0. */
static void run_killed_at_its_first_door(const char *step)
{
    begin_life(0, (struct life){ .rank = 0 });
    begin_life(2, (struct life){ .rank = 2 });
    start_wait_for_segment(".2");
    begin_aimed(1, (struct life){ .rank = 1 }, step, 1, SIGKILL);
    was_killed(1, step);
    start_fails(0, BX_E_PEER_DEAD, "'worker1' (rank 1");
    start_fails(2, BX_E_PEER_DEAD, "'worker1' (rank 1");
    cr_expect_eq(segments_of("") + socket_files(), 0, "step %s", step);
}

TestSuite(kill_rejoin, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

Test(kill_rejoin, one_that_pauses_before_it_reads)
{
    run_paused_before_it_reads(false);
}

Test(kill_rejoin, one_that_pauses_before_it_drops)
{
    run_paused_before_it_drops();
}

/* Its pid says nothing here: the joiner sees none, and the header has one of another namespace. */
Test(kill_rejoin, one_of_another_pid_namespace_that_pauses)
{
    if (geteuid() != 0)
        cr_skip_test("needs root, for a pid namespace");
    run_paused_before_it_reads(true);
}

Test(kill_rejoin, the_mutex_is_removed)
{
    run_mutex_removed();
}

Test(kill_rejoin, a_worker_at_its_first_door)
{
    run_killed_at_its_first_door("boot.bound");
    run_killed_at_its_first_door("rejoin.door");
}

#endif
