/* SPDX-License-Identifier: MIT */
/*
 * lib/job/rejoin.c and lib/job/door.c: a worker dies, and another process takes its place in the job that runs; and
 * each case in which it may not. Workers are processes without a launcher.
 */
#include "rejoin_fixture.h"

#include "tests/harness/clock.h"

TestSuite(rejoin, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

/* ---- Coming back ------------------------------------------------------------------------------- */

/* Of ranks 0, 1 and 2. */
static void expect_generations(struct bx_job *job, int first, int second, int third)
{
    HARNESS_EQ(bx_worker_generation(job, 0), first);
    HARNESS_EQ(bx_worker_generation(job, 1), second);
    HARNESS_EQ(bx_worker_generation(job, 2), third);
    HARNESS_EQ(bx_worker_generation(job, 3), -EINVAL);
    HARNESS_CHECK(bx_worker_host(job, 2)[0] == '\0' && bx_worker_host(job, 3) == NULL);
}

static void survivor_of_1(struct bx_job *job)
{
    expect_generations(job, 1, 1, 1);
    if (bx_job_rank(job) == 1)
        return;
    harness_await(BACK, 1);
    await_alive(job, 1);
    expect_generations(job, 1, 2, 1);
    call_all(job);
    harness_post(GO_ON);
}

static void comes_back_as_1(struct bx_job *job)
{
    expect_generations(job, 1, 2, 1);
    HARNESS_EQ(strcmp(bx_worker_name(job, 0), "worker0"), 0);
    HARNESS_CHECK(bx_worker_is_alive(job, 0) && bx_worker_is_alive(job, 2));
    call_all(job);
    harness_post(BACK);
    harness_await(GO_ON, 2);
}

Test(rejoin, a_process_takes_the_place_of_a_dead_worker)
{
    begin_lives_but(3, 1, (struct life){ .body = survivor_of_1 });
    begin_life(3, (struct life){ .rank = 1, .body = comes_back_as_1 });
    harness_await(GO_ON, 2);
    end_lives();
}

static void *interrupt_soon(void *job)
{
    usleep(50000);
    bx_job_interrupt(job, true);
    return NULL;
}

/* If the worker that is back counted as gone, serving would end by itself. */
static void serves_again(struct bx_job *job)
{
    pthread_t thread;

    if (bx_job_rank(job) == 1)
        return;
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    await_alive(job, 1);
    HARNESS_EQ(pthread_create(&thread, NULL, interrupt_soon, job), 0);
    HARNESS_EQ(bx_job_serve(job), BX_E_INTERRUPTED);
    pthread_join(thread, NULL);
    bx_job_interrupt(job, false);
    harness_post(GO_ON);
}

Test(rejoin, a_worker_that_is_back_is_served_like_the_others)
{
    begin_lives_but(3, 1, (struct life){ .body = serves_again });
    begin_life(3, (struct life){ .rank = 1, .body = NULL });
    harness_await(GO_ON, 2);
    end_lives();
}

static void sees_the_others(struct bx_job *job)
{
    call_all(job);
    harness_post(BACK);
}

Test(rejoin, rank_0_comes_back_and_holds_the_lock_again)
{
    begin_lives_but(3, 0, (struct life){ 0 });
    begin_life(3, (struct life){ .rank = 0, .no_rejoin = true });
    start_fails(3, BX_E_JOB_RUNNING, "running without its rank 0");
    begin_life(4, (struct life){ .rank = 0, .body = sees_the_others });
    harness_await(BACK, 1);
    begin_life(5, (struct life){ .rank = 0, .no_rejoin = true });
    start_fails(5, BX_E_JOB_RUNNING, "its rank 0 is process");
    begin_life(6, (struct life){ .rank = 0 });
    start_fails(6, BX_E_RANK_TAKEN, "rank 0 of job");
    end_lives();
}

/* All that live are known to the one that comes; nobody waits for those that are dead. */
static void is_alone_with_0(struct bx_job *job)
{
    expect_generations(job, 1, 2, 1);
    HARNESS_CHECK(!bx_worker_is_alive(job, 2));
    HARNESS_EQ(strcmp(bx_worker_name(job, 2), "worker2"), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker2", "echo", NULL, NULL, NULL), BX_E_PEER_DEAD);
    HARNESS_EQ(harness_call_i64(job, "worker0", "echo", 5), 5);
}

Test(rejoin, one_comes_back_while_another_is_dead)
{
    begin_lives_but(3, 1, (struct life){ 0 });
    start_is_killed(2);
    begin_life(3, (struct life){ .rank = 1, .body = is_alone_with_0 });
    harness_await(STARTED, 4);
    end_lives();
}

/* The name of its door is left, nobody had heard of it, and its generation is above the one that the others know. */
static void leave_a_door(uint64_t instance, int rank, uint32_t generation)
{
    const struct bxi_door_id id = { instance, rank, generation };
    struct bxi_boot_paths paths;
    char path[BXI_BOOT_PATH_BYTES];
    int fd;

    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    cr_assert_eq(bxi_door_path(path, &paths, job_name, &id), 0);
    fd = open(path, O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
}

static void calls_2_by_name(struct bx_job *job)
{
    is_alone_with_0(job);
    harness_post(BACK);
    await_alive(job, 2);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 5), 5);
}

Test(rejoin, knows_the_name_of_a_dead_worker_whose_successor_was_killed_before_it_met_anybody)
{
    uint64_t instance = begin_job(3);

    start_is_killed(1);
    start_is_killed(2);
    leave_a_door(instance, 2, 2);
    begin_life(3, (struct life){ .rank = 1, .body = calls_2_by_name });
    harness_await(BACK, 1);
    begin_life(4, (struct life){ .rank = 2 });
    harness_await(STARTED, 5);
    end_lives();
}

/* One joins, the other is told so: by the segment, or by a worker. */
Test(rejoin, two_processes_want_one_rank)
{
    begin_lives_but(3, 1, (struct life){ 0 });
    begin_life(3, (struct life){ .rank = 1 });
    begin_life(4, (struct life){ .rank = 1 });
    harness_await(STARTED, 4);
    int status = 0, refused = waitpid(starts[3].pid, &status, WNOHANG) == 0 ? 4 : 3;
    while (refused == 4 && waitpid(starts[4].pid, &status, WNOHANG) == 0 &&
           waitpid(starts[3].pid, &status, WNOHANG) == 0)
        sched_yield();
    if (starts[3].rc < 0)
        refused = 3;
    cr_expect_eq(status, 0);
    cr_expect_eq(starts[refused].rc, BX_E_RANK_TAKEN, "%s", starts[refused].text);
    cr_expect_not_null(strstr(starts[refused].text, "rank 1 of job"), "%s", starts[refused].text);
    starts[refused].pid = 0;
    end_lives();
}

/* ---- A program with a loop of its own ---------------------------------------------------------- */

static void loops(struct bx_job *job)
{
    while (harness_gate(LAST_WORD) == 0)
        HARNESS_CHECK(bx_progress(job) >= 0);
}

Test(rejoin, works_with_programs_that_have_a_loop_of_their_own)
{
    begin_lives_but(3, 1, (struct life){ .body = loops, .own_loop = true });
    begin_life(3, (struct life){ .rank = 1, .body = sees_the_others });
    harness_await(BACK, 1);
    start_is_killed(3);
    begin_life(4, (struct life){ .rank = 1, .body = sees_the_others });
    harness_await(BACK, 2);
    end_lives();
}

/* The door waits for the role, which this program gives to nobody any more. */
static void stops_looping(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        return;
    while (bx_worker_is_alive(job, 1))
        HARNESS_CHECK(bx_progress(job) >= 0);
    await_joiner_at_door(job);
    bx_job_destroy(job);
    _exit(0);
}

Test(rejoin, the_end_of_a_job_does_not_wait_for_a_joiner)
{
    begin_lives_but(2, 1, (struct life){ .body = stops_looping, .own_loop = true });
    begin_life(3, (struct life){ .rank = 1, .world_size = 2, .timeout_ns = UINT64_C(60000000000) });
    start_ends(0);
    start_fails(3, BX_E_SHUTDOWN, "worker0");
}

/* ---- Refused ----------------------------------------------------------------------------------- */

Test(rejoin, refuses_a_process_with_another_clock)
{
    begin_lives_but(2, 1, (struct life){ 0 });
    bool other = clock_of_children(100);
    if (other) {
        begin_life(2, (struct life){ .rank = 1, .world_size = 2 });
        start_fails(2, -EINVAL, "the clock (CLOCK_MONOTONIC) of worker 'worker0' (rank 0) is ");
        cr_expect_not_null(strstr(starts[2].text, " s behind that of worker 'worker1' (rank 1"), "%s", starts[2].text);
    }
    end_lives();
    if (!other)
        cr_skip_test("no time namespace can be made here");
}

Test(rejoin, refuses_another_name_and_another_world_size)
{
    begin_lives_but(3, 1, (struct life){ 0 });
    begin_life(3, (struct life){ .rank = 1, .name = "worker7" });
    start_fails(3, -EINVAL, "has the name 'worker1', and a worker that takes it must have it too, not 'worker7'");
    begin_life(4, (struct life){ .rank = 1, .world_size = 4 });
    start_fails(4, BX_E_WORLD_SIZE, "runs with 3 workers, and worker 'worker1' was started for 4");
    end_lives();
}

static void knows_63_generations(struct bx_job *job)
{
    bxi_join_note_generation(job, 1, BXI_GENERATION_MAX);
}

Test(rejoin, refuses_the_33rd_generation)
{
    begin_lives_but(2, 1, (struct life){ .body = knows_63_generations });
    begin_life(3, (struct life){ .rank = 1, .world_size = 2 });
    start_fails(3, -EOVERFLOW, "was taken 32 times");
    end_lives();
}

/* Its door is open, and it does not answer. */
Test(rejoin, names_a_worker_that_is_stopped)
{
    begin_lives_but(3, 1, (struct life){ 0 });
    harness_stop(starts[2].pid);
    begin_life(3, (struct life){ .rank = 1, .timeout_ns = 300 * HARNESS_MS });
    start_fails(3, BX_E_RANK_MISSING, "worker 'worker2' (rank 2, pid ");
    kill(starts[2].pid, SIGCONT);
    begin_life(4, (struct life){ .rank = 1, .body = sees_the_others });
    harness_await(BACK, 1);
    end_lives();
}

HARNESS_HANDLER(leaves_its_thread)
{
    pthread_exit(NULL);
}

static void may_leave_its_thread(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "leave", BX_INLINE, leaves_its_thread, NULL), 0);
}

/* The background thread of rank 0 ends, and the next one watches the pidfds anew, also that of the dead worker 1. */
static void ends_a_background_thread(struct bx_job *job)
{
    const struct bx_call_options options = { .timeout_ns = 5000 * HARNESS_MS };

    OWN(msg) *args = bx_msg_create(8);

    bx_msg_put_i64(args, 5);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "leave", NULL, &options, NULL), BX_E_HANDLER);
    for (int i = 0; i < 20; i++) {
        HARNESS_EQ(bx_rpc_sync(job, "worker0", "echo", args, &options, NULL), 0);
        usleep(5000);
    }
}

Test(rejoin, a_new_background_thread_does_not_take_the_successor_for_dead)
{
    begin_lives_but(3, 1, (struct life){ .setup = may_leave_its_thread });
    begin_life(3, (struct life){ .rank = 1, .body = ends_a_background_thread });
    harness_await(STARTED, 4);
    end_lives();
}

/* Rank 2 leaves without the others, and destroys its job when the successor of worker 1 is there. */
static void leaves_alone(struct bx_job *job)
{
    if (bx_job_rank(job) != 2)
        return;
    HARNESS_EQ(bx_job_shutdown(job, HARNESS_MS), BX_E_TIMEOUT);
    harness_post(GO_ON);
    harness_await(BACK, 1);
    bx_job_destroy(job);
    _exit(0);
}

static void calls_worker_0(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker0", "echo", 5), 5);
    harness_post(BACK);
}

Test(rejoin, one_that_has_left_does_not_remove_the_names_of_a_successor)
{
    begin_lives(3, (struct life){ .body = leaves_alone });
    harness_await(GO_ON, 1);
    start_is_killed(1);
    begin_life(3, (struct life){ .rank = 1, .body = calls_worker_0 });
    start_succeeds(2);
    cr_expect_eq(segments_of(".1"), 1);
    end_lives();
}

/* ---- Beside a shutdown ------------------------------------------------------------------------- */

static void *tells_that_it_leaves(void *argument)
{
    const struct bx_job *job = argument;

    HARNESS_WAIT_WHILE(bxi_load_acquire((bxi_a32 *)&job->control->header.state) < BXI_LEAVING);
    harness_post(BACK);
    return NULL;
}

/* Posts BACK when it has begun. */
static void leaves_together(struct bx_job *job)
{
    pthread_t thread;

    HARNESS_EQ(pthread_create(&thread, NULL, tells_that_it_leaves, job), 0);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    bx_job_destroy(job);
    _exit(0);
}

static void begins_its_shutdown(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        return;
    await_dead(job, 1);
    if (bx_job_rank(job) == 0)
        leaves_together(job);
}

Test(rejoin, refuses_to_join_a_job_that_is_ending)
{
    begin_lives_but(3, 1, (struct life){ .body = begins_its_shutdown });
    harness_await(BACK, 1);
    begin_life(3, (struct life){ .rank = 1 });
    start_fails(3, BX_E_SHUTDOWN, "'worker0' (rank 0, pid ");
    end_lives();
}

/* The door has met the successor of rank 1, which those of lower ranks have attached, and waits for the role. */
static void lets_a_joiner_wait(struct bx_job *job)
{
    while (bx_worker_is_alive(job, 1))
        HARNESS_CHECK(bx_progress(job) >= 0);
    await_joiner_at_door(job);
    harness_post(GO_ON);
}

static void leaves_before_it_attaches(struct bx_job *job)
{
    lets_a_joiner_wait(job);
    leaves_together(job);
}

/* Rank 0 has attached it, and does not wait for it. */
Test(rejoin, a_joiner_that_one_refuses_gives_up_and_all_leave_without_it)
{
    begin_life(0, (struct life){ .rank = 0 });
    begin_life(1, (struct life){ .rank = 1 });
    begin_life(2, (struct life){ .rank = 2, .body = leaves_before_it_attaches, .own_loop = true });
    harness_await(STARTED, 3);
    start_is_killed(1);
    begin_life(3, (struct life){ .rank = 1 });
    start_fails(3, BX_E_SHUTDOWN, "worker2");
    end_lives();
}

static void leaves_once_it_has_attached(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        return;
    harness_await(GO_ON, 1);
    leaves_together(job);
}

static void keeps_a_joiner_waiting(struct bx_job *job)
{
    lets_a_joiner_wait(job);
    harness_await(LAST_WORD, 1);
}

/* Ranks 0 and 2 have attached process 4, which waits for rank 3, and then begin to leave. */
static void begin_a_shutdown_beside_a_joiner(harness_fn joiner)
{
    for (int rank = 0; rank < 3; rank++)
        begin_life(rank, (struct life){ .rank = rank, .world_size = 4, .body = leaves_once_it_has_attached });
    begin_life(3, (struct life){ .rank = 3, .world_size = 4, .body = keeps_a_joiner_waiting, .own_loop = true });
    harness_await(STARTED, 4);
    start_is_killed(1);
    begin_life(4, (struct life){ .rank = 1, .world_size = 4, .body = joiner });
    harness_await(BACK, 2);
}

static void calls_those_that_leave(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker0", "echo", 5), 5);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 5), 5);
}

Test(rejoin, a_joiner_that_all_have_attached_is_in_the_job_that_all_leave)
{
    begin_a_shutdown_beside_a_joiner(calls_those_that_leave);
    start_is_killed(3);
    harness_await(STARTED, 5);
    end_lives();
}

/* Rank 0 has attached it, is stopped, and sees its last state alone. */
Test(rejoin, a_joiner_that_gave_up_has_not_left)
{
    begin_life(0, (struct life){ .rank = 0 });
    begin_life(1, (struct life){ .rank = 1 });
    begin_life(2, (struct life){ .rank = 2, .body = keeps_a_joiner_waiting, .own_loop = true });
    harness_await(STARTED, 3);
    start_is_killed(1);
    begin_life(3, (struct life){ .rank = 1, .timeout_ns = 1000 * HARNESS_MS });
    harness_await(GO_ON, 1);
    harness_stop(starts[0].pid);
    start_is_killed(2);
    start_fails(3, BX_E_RANK_MISSING, "which runs, ");         /* of rank 0, or of rank 2, whose death nobody reports */
    kill(starts[0].pid, SIGCONT);
    begin_life(4, (struct life){ .rank = 1 });
    harness_await(STARTED, 4);
    end_lives();
}

Test(rejoin, those_that_leave_do_not_wait_for_a_joiner_that_dies)
{
    begin_a_shutdown_beside_a_joiner(NULL);
    start_is_killed(4);
    end_lives();
}

/* ---- Options ----------------------------------------------------------------------------------- */

Test(rejoin, all_workers_must_allow_it)
{
    begin_life(0, (struct life){ .rank = 0, .world_size = 2 });
    begin_life(1, (struct life){ .rank = 1, .world_size = 2, .no_rejoin = true });
    start_fails(0, -EINVAL, "was started with options.rejoin (BX_REJOIN) 0, rank 0 with 1");
    start_fails(1, -EINVAL, "was started with options.rejoin (BX_REJOIN) 0, rank 0 with 1");
}

/* ---- Without rejoin ---------------------------------------------------------------------------- */

static void counts_threads_and_doors(struct bx_job *job)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/boxcar", directory);
    harness_store(2 * bx_job_rank(job), (uint64_t)files_in("/proc/self/task", "", ""));
    harness_post(GO_ON);
    harness_await(GO_ON, 2);
    harness_store(2 * bx_job_rank(job) + 1, (uint64_t)files_in(path, job_name, ".door"));
}

/* Threads and doors of both workers. */
static void count_of(bool no_rejoin, bool own_loop, uint64_t threads, uint64_t doors)
{
    harness_reset();
    begin_lives(2, (struct life){ .body = counts_threads_and_doors, .no_rejoin = no_rejoin, .own_loop = own_loop });
    end_lives();
    for (int rank = 0; rank < 2; rank++) {
        cr_expect_eq(harness_load(2 * rank), threads, "%d threads", (int)harness_load(2 * rank));
        cr_expect_eq(harness_load(2 * rank + 1), doors, "%d doors", (int)harness_load(2 * rank + 1));
    }
}

Test(rejoin, costs_no_thread_and_no_socket_without_the_option)
{
    count_of(true, true, 1, 0);
    count_of(false, true, 2, 2);
    count_of(true, false, 2, 0);
    count_of(false, false, 3, 2);
}
