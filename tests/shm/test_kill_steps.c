/* SPDX-License-Identifier: MIT */
/*
 * A worker is killed at each named step of its start, its end and its comeback; the others finish.
 *
 * shm/step.h calls bxi_step at the steps below only in the build with -DBXI_STEPS (build/tests/kill_steps); in
 * other builds this file has no test. The steps lie between system calls that leave names in /dev/shm, locks, sockets
 * and what the launcher knows: what the simulator (tests/sim) does not show, which kills a worker of a running job at
 * any access to memory. Each test checks that the step was reached, that the others hear of the death or go on, and
 * that nothing is left in /dev/shm. The table of deaths:
 *
 *   step                    killed when                      what is left, and what survivors see
 *   spawn.announced         the launcher told, no name yet   nothing: the start of all fails, with its name
 *   segment.named           name made, no lock               an empty file; a worker that waits for it removes it
 *   segment.locked .sized   name made and locked             the lock goes with the process; the same
 *   segment.allocated .written   pages allocated             the same
 *   boot.gate_closed        rank 0, before the gate opens   no worker starts: all fail with its name
 *   boot.gate_open .go_sent  and after it                   all workers run, notified or not, and see its death
 *   spawn.in_job            started, its page says so        as while running: to end in the job is a failure
 *   state.running           it may serve, nobody rung        as while running
 *   state.leaving           state stored, peers not rung     a state; after its death it counts as reached
 *   state.leaving_rung      peers rung                       the same
 *   ending.round .round_rung   a round stored, and peers rung   the same: the dead are not waited for
 *   state.left .stopped     LEFT, its name not yet removed   it has left; a survivor or the launcher unlinks
 *   spawn.not_in_job        LEFT, and its page says so       the same
 *   segment.unlinked        its name removed, its arena's not   a survivor or the launcher removes that
 *   arena.unlinked          all done                         nothing
 *   arena.locked .sized     the arena's name made and locked   removed as the segment's
 *   object.unnamed .linked  an arena of before the start, without and with its name: nothing; removed as the segment's
 *   boot.bound .rejoin.door   the door bound, and listens   a name: the next joiner, or the end, removes it; at the
 *                                                            first start the others do
 *   rejoin.made .met        its door listens; met by others  nobody knows it: the workers remove its names at the end
 *   rejoin.gate_open        its state is RUNNING, no bell    it may count as a worker that came back and died
 *   rejoin.accepted .came   a worker stops before it reads   the joiner waits, or gives up and the next one joins
 *
 * If rank 0 is killed while it makes its segment, no other worker knows the instance: a worker that waited for it
 * removes all that dead workers of that job name left. The last tests have no launcher: nothing is left at any step,
 * neither locks nor sockets.
 */
#include "tests/harness/harness.h"

#include "shm/step.h"

#ifdef BXI_STEPS

#include "tests/job/starts.h"

#include "job/job.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define VICTIM 1

enum gate { HIT = 0, HELLO };
enum value { STEP_COUNT = 8 };

/* ---- Taking aim ------------------------------------------------------------------------------------- */

static struct {
    const char *step;           /* NULL: at nothing */
    bxi_a32 left;               /* passages until the signal */
    int signal;
} aim;

void bxi_step(const char *name)
{
    if (strcmp(name, "boot.hello_sent") == 0)
        harness_post(HELLO);
    if (aim.step == NULL || strcmp(aim.step, name) != 0 || bxi_add(&aim.left, (uint32_t)-1) != 1)
        return;
    harness_post(HIT);
    raise(aim.signal);          /* to this thread, so that it takes no further step */
}

static void take_aim(const char *step, uint32_t passages, int signal_number)
{
    aim.signal = signal_number;
    bxi_store_release(&aim.left, passages);
    aim.step = step;
}

/* ---- Workers ------------------------------------------------------------------------------------------ */

static const char *target;      /* the step of this world */

static int setup(struct bx_job *job)
{
    return bx_register(job, "echo", BX_INLINE, harness_echo, NULL);
}

/* Aims from the start. */
static int setup_aiming(struct bx_job *job)
{
    if (bx_job_rank(job) == VICTIM)
        take_aim(target, 1, SIGKILL);
    return setup(job);
}

static const char *next_survivor(struct bx_job *job)
{
    static const char *const next[] = { "worker2", "", "worker3", "worker0" };

    return next[bx_job_rank(job)];
}

/* 0 while worker 1 answers, else the error; only its death is allowed. */
static int call_the_victim(struct bx_job *job, int64_t value)
{
    struct bx_msg *args = harness_msg_i64(value);
    struct bx_future *future = NULL;
    int rc = bx_rpc_async(job, "worker1", "echo", args, NULL, &future);

    bx_msg_destroy(args);
    if (rc < 0) {
        HARNESS_EQ(rc, BX_E_PEER_DEAD);
        HARNESS_HAS(bx_error_text(), "'worker1' (rank 1");
    }
    HARNESS_EQ(harness_call_i64(job, next_survivor(job), "echo", value), value);
    if (rc < 0)
        return rc;
    rc = bx_future_wait(future, BX_FOREVER);
    if (rc < 0) {
        HARNESS_EQ(rc, BX_E_PEER_DEAD);
        HARNESS_HAS(bx_future_error_text(future), "'worker1' (rank 1");
    } else {
        struct bx_reader reader = bx_msg_reader(bx_future_value(future));

        HARNESS_EQ(bx_read_i64(&reader), value);
    }
    bx_future_release(future);
    return rc;
}

static void survivor(struct bx_job *job)
{
    for (int64_t value = 0; call_the_victim(job, value) == 0; value++)
        ;
    HARNESS_CHECK(!bx_worker_is_alive(job, VICTIM));
    for (int i = 0; i < 50; i++)
        HARNESS_EQ(harness_call_i64(job, next_survivor(job), "echo", i), i);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* Worker 1 is killed when it passes the step. */
static void run_killed(int (*setup_of_all)(struct bx_job *job), harness_fn victim, harness_fn others, const char *step)
{
    harness_reset();
    target = step;
    harness_run(&(struct harness_world){ .size = 4, .setup = setup_of_all, .dies = 1u << VICTIM,
                                         .body = { others, victim, others, others } });
    cr_expect_eq(harness_gate(HIT), 1, "step %s was not reached", step);
}

TestSuite(kill_step, .timeout = 60);

Test(kill_step, of_the_start)
{
    static const char *const steps[] = { "spawn.in_job", "state.running" };

    for (int i = 0; i < 2; i++)
        run_killed(setup_aiming, NULL, survivor, steps[i]);
}

static void leaves(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker0", "echo", 1), 1);
    take_aim(target, 1, SIGKILL);
}

static void calls_and_leaves(struct bx_job *job)
{
    for (int i = 0; i < 20; i++) {
        HARNESS_EQ(harness_call_i64(job, next_survivor(job), "echo", i), i);
        call_the_victim(job, i);
    }
}

Test(kill_step, of_the_end)
{
    static const char *const steps[] = {
        "state.leaving", "state.leaving_rung", "ending.round", "ending.round_rung", "state.left", "spawn.not_in_job",
        "state.stopped", "segment.unlinked", "arena.unlinked",
    };

    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        run_killed(setup, leaves, calls_and_leaves, steps[i]);
}

/* ---- Starting ----------------------------------------------------------------------------------------- */

/* The arena is made like the segment, and after it. */
static const struct start_step {
    const char *step;
    uint32_t passages;
} start_steps[] = {
    { "segment.named", 1 }, { "segment.locked", 1 }, { "segment.sized", 1 }, { "segment.allocated", 1 },
    { "segment.written", 1 }, { "segment.named", 2 }, { "arena.locked", 1 }, { "arena.sized", 1 },
};
#define START_STEPS (int)(sizeof(start_steps) / sizeof(start_steps[0]))

static void start_one(int rank, uint64_t timeout_ns)
{
    start_worker(rank, (struct bx_options){ .rank = rank, .world_size = 3, .start_timeout_ns = timeout_ns });
}

static void start_killed(int rank, const struct start_step *step)
{
    int status = 0;

    take_aim(step->step, step->passages, SIGKILL);      /* the forked worker inherits it */
    start_one(rank, 0);
    aim.step = NULL;
    cr_assert_eq(waitpid(starts[rank].pid, &status, 0), starts[rank].pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "step %s: status %#x", step->step,
              (unsigned)status);
}

TestSuite(kill_start, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

Test(kill_start, a_worker)
{
    for (int i = 0; i < START_STEPS; i++) {
        start_one(0, 0);
        start_one(2, 0);
        start_wait_for_segment(".2");
        start_killed(1, &start_steps[i]);
        start_fails(0, BX_E_PEER_DEAD, "'worker1' (rank 1");
        start_fails(2, BX_E_PEER_DEAD, "'worker1' (rank 1");
        cr_expect_eq(segments_of(""), 0, "step %s", start_steps[i].step);
    }
}

Test(kill_start, rank_0)
{
    for (int i = 0; i < START_STEPS; i++) {
        start_killed(0, &start_steps[i]);
        start_one(1, 100 * HARNESS_MS);
        start_fails(1, BX_E_RANK_MISSING, "rank 0");
        cr_expect_eq(segments_of(""), 0, "step %s", start_steps[i].step);
    }
}

/* It listens already, and dies before it has read a message. */
Test(kill_start, rank_0_before_it_welcomes)
{
    take_aim("segment.named", 1, SIGSTOP);
    start_one(0, 0);
    aim.step = NULL;
    start_one(1, 0);
    harness_await(HELLO, 1);
    start_is_killed(0);
    start_fails(1, BX_E_PEER_DEAD, "rank 0 of job 'test-");
}

/* Rank 0 dies while it starts the others. All of them run, or none. */
static void rank_0_dies_at(const char *step, uint32_t passages, bool all_run)
{
    const struct start_step at = { step, passages };

    start_one(1, 0);
    start_one(2, 0);
    start_killed(0, &at);
    for (int rank = 1; rank < 3; rank++) {
        if (all_run)
            start_succeeds(rank);
        else
            start_fails(rank, BX_E_PEER_DEAD, "'worker0' (rank 0");
    }
}

Test(kill_start, rank_0_at_the_gate)
{
    for (int i = 0; i < 10; i++) {
        rank_0_dies_at("boot.gate_closed", 1, false);
        rank_0_dies_at("boot.gate_open", 1, true);
        rank_0_dies_at("boot.go_sent", 1, true);
        rank_0_dies_at("boot.go_sent", 2, true);
    }
}

/* ---- Starting under a launcher -------------------------------------------------------------------------- */

static int dies_at_its_start(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;

    (void)context;
    if (options->rank == VICTIM)
        take_aim("spawn.announced", 1, SIGKILL);
    HARNESS_EQ(bx_job_create(options, &job), 0);
    HARNESS_CHECK(bx_job_start(job) < 0);
    HARNESS_HAS(bx_error_text(), "'worker1' (rank 1");
    bx_job_destroy(job);
    return 0;
}

Test(kill_start, a_worker_that_the_launcher_knows)
{
    const struct bx_spawn_options options = { .job = job_name, .world_size = 3 };
    struct bx_spawn_report report = { 0 };
    uint32_t hits = harness_gate(HIT);

    cr_expect_eq(bx_spawn(&options, dies_at_its_start, NULL, &report), BX_E_WORKER_FAILED);
    cr_expect_eq(report.failed_rank, VICTIM);
    cr_expect_eq(report.term_signal, SIGKILL);
    cr_expect_eq(harness_gate(HIT), hits + 1);
    cr_expect_eq(segments_of(""), 0);
}

/* ---- What is left without a launcher -------------------------------------------------------------------- */

#define LEFT_WORLD 3
enum { DEAD = HARNESS_GATES - 1 };      /* the victim has ended */

static void make_arena(struct bx_job *job)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, &(int64_t){ 3000 }, &tensor), 0);
    bx_tensor_release(tensor);
}

/* A worker's whole life. It frees its job after the victim has ended, so that a survivor can clean up. */
static void live_without_launcher(int rank, uint64_t timeout_ns, uint32_t deaths)
{
    struct bx_options options = { .job = job_name, .rank = rank, .world_size = LEFT_WORLD,
                                  .start_timeout_ns = timeout_ns };
    struct bx_job *job = NULL;

    HARNESS_EQ(bx_job_create(&options, &job), 0);
    if (aim.step != NULL && strncmp(aim.step, "object.", 7) == 0)
        make_arena(job);                                /* before the start */
    starts[rank].rc = bx_job_start(job);
    if (starts[rank].rc == 0)
        bx_job_shutdown(job, 0);
    harness_await(DEAD, deaths);
    bx_job_destroy(job);
}

static void fork_without_launcher(int rank, uint64_t timeout_ns, uint32_t deaths)
{
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        live_without_launcher(rank, timeout_ns, deaths);
        _exit(0);
    }
    starts[rank].pid = pid;
}

enum when { ALONE, TOGETHER };          /* whether the others start after the victim has died, or before it starts */

/* The number of names left in /dev/shm and among the sockets when all have ended. */
static int left_by(int victim, const char *step, uint32_t passages, enum when when)
{
    uint64_t timeout_ns = (when == ALONE ? 100 : 10000) * HARNESS_MS;
    uint32_t deaths = harness_gate(DEAD) + 1;
    int status = 0;

    for (int rank = 0; when == TOGETHER && rank < LEFT_WORLD; rank++)
        if (rank != victim)
            fork_without_launcher(rank, timeout_ns, deaths);
    take_aim(step, passages, SIGKILL);
    fork_without_launcher(victim, timeout_ns, deaths);
    aim.step = NULL;
    cr_assert_eq(waitpid(starts[victim].pid, &status, 0), starts[victim].pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "rank %d at %s: status %#x", victim, step,
              (unsigned)status);
    harness_post(DEAD);
    for (int rank = 0; when == ALONE && rank < LEFT_WORLD; rank++)
        if (rank != victim)
            fork_without_launcher(rank, timeout_ns, deaths);
    for (int rank = 0; rank < LEFT_WORLD; rank++)
        if (rank != victim)
            start_ends(rank);
    return segments_of("") + socket_files();
}

static const struct left_step {
    const char *step;
    uint32_t passages;
    int ranks;                          /* bits: 1 rank 0, 2 rank 1 */
} left_steps[] = {
    { "boot.locked", 1, 1 }, { "boot.lock_noted", 1, 1 }, { "boot.bound", 1, 1 }, { "boot.listening", 1, 1 },
    { "segment.named", 1, 3 },
    { "segment.locked", 1, 3 }, { "segment.sized", 1, 3 }, { "segment.allocated", 1, 3 }, { "segment.written", 1, 3 },
    { "segment.named", 2, 3 }, { "arena.locked", 1, 3 }, { "arena.sized", 1, 3 }, { "object.unnamed", 1, 1 },
    { "object.linked", 1, 3 }, { "boot.welcome_sent", 1, 1 }, { "boot.welcome_sent", 2, 1 }, { "boot.joined", 1, 1 },
    { "boot.joined", 2, 1 }, { "boot.table_sent", 1, 1 }, { "boot.table_sent", 2, 1 }, { "boot.socket_gone", 1, 1 },
    { "boot.running_noted", 1, 1 }, { "boot.gate_closed", 1, 1 }, { "boot.gate_open", 1, 1 }, { "boot.go_sent", 1, 1 },
    { "boot.go_sent", 2, 1 }, { "boot.hello_sent", 1, 2 }, { "boot.welcomed", 1, 2 }, { "boot.join_sent", 1, 2 },
    { "boot.tabled", 1, 2 }, { "boot.attached_sent", 1, 2 }, { "state.running", 1, 3 }, { "state.leaving", 1, 3 },
    { "state.leaving_rung", 1, 3 }, { "ending.round", 1, 3 }, { "ending.round_rung", 1, 3 }, { "state.left", 1, 3 },
    { "state.stopped", 1, 3 }, { "segment.unlinked", 1, 3 }, { "arena.unlinked", 1, 3 }, { "boot.lock_gone", 1, 1 },
};

static void expect_nothing_left(int victim, const char *step, uint32_t passages, enum when when)
{
    int left = left_by(victim, step, passages, when);

    cr_expect_eq(left, 0, "rank %d killed at %s (%u) left %d names", victim, step, passages, left);
    bxi_object_reap(job_name, 0);
    bxi_bootstrap_sweep(job_name);
}

/* No worker knows of a rank 0 that died before it met one: they wait a while for another. */
static enum when when_of(int victim, const char *step)
{
    static const char *const unknown[] = {
        "boot.locked", "boot.lock_noted", "boot.bound", "boot.listening", "segment.named", "segment.locked",
        "segment.sized",
        "segment.allocated", "segment.written", "arena.locked", "arena.sized", "object.unnamed", "object.linked",
    };

    for (size_t i = 0; victim == 0 && i < sizeof(unknown) / sizeof(*unknown); i++)
        if (strcmp(unknown[i], step) == 0)
            return ALONE;
    return TOGETHER;
}

TestSuite(kill_without_launcher, .init = starts_set_up, .fini = place_tear_down, .timeout = 300);

Test(kill_without_launcher, leaves_nothing_at_any_step)
{
    for (size_t i = 0; i < sizeof(left_steps) / sizeof(*left_steps); i++)
        for (int victim = 0; victim < 2; victim++)
            if ((left_steps[i].ranks >> victim & 1) != 0)
                expect_nothing_left(victim, left_steps[i].step, left_steps[i].passages,
                                    when_of(victim, left_steps[i].step));
}

/* A worker that waits for rank 0 may have made the lock file. */
Test(kill_without_launcher, of_one_that_waits_for_rank_0_leaves_nothing)
{
    expect_nothing_left(1, "boot.waits", 1, ALONE);
}

/* ---- Coming back ---------------------------------------------------------------------------------------- */

#include "kill_rejoin.h"

Test(kill_rejoin, a_joiner_that_nobody_knows, .timeout = 60) { run_killed_alone("rejoin.made"); }
Test(kill_rejoin, a_worker_stopped_while_it_attaches, .timeout = 60) { run_stopped_welcoming(); }
Test(kill_rejoin, a_shutdown_waits_for_it, .timeout = 20) { run_shutdown_before_it_rang(); }
Test(kill_rejoin, its_join_is_heard_before_its_death, .timeout = 60) { run_killed_before_it_rang(); }

#endif
