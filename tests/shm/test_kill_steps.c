/* SPDX-License-Identifier: MIT */
/*
 * A worker is killed at each named step of its start, its end and its comeback; the others finish.
 *
 * shm/step.h calls bxi_step at the steps below only in the build with -DBXI_STEPS (build/tests/kill_steps); in
 * other builds this file has no test. The steps lie between system calls that leave names in /dev/shm, locks, sockets
 * and what the launcher knows: here they are the kernel's own, which frees those of a dead process in its own order.
 * The simulator (tests/sim: start, death, serve, end) kills workers at any access to memory, and has the calls that
 * the others make meanwhile. Each test checks that the step was reached, that the others hear of the death or go on,
 * and that nothing is left in /dev/shm. The table of deaths:
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
 * removes all that dead workers of that job name left. Without a launcher, too, nothing is left at any step, neither
 * locks nor sockets.
 */
#include "tests/harness/harness.h"

#include "shm/step.h"

#ifdef BXI_STEPS

#include "tests/job/starts.h"

#include "job/job.h"

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

static const char *target;      /* the step of the tests in kill_rejoin.h */

/* ---- Starting -------------------------------------------------------------------------------------------- */

TestSuite(kill_start, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

/* It listens already, and dies before it has read a message. */
Test(kill_start, rank_0_before_it_welcomes)
{
    take_aim("segment.named", 1, SIGSTOP);
    start_worker(0, (struct bx_options){ .world_size = 3 });
    aim.step = NULL;
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 3 });
    harness_await(HELLO, 1);
    start_is_killed(0);
    start_fails(1, BX_E_PEER_DEAD, "rank 0 of job 'test-");
}

static int dies_under_a_launcher(const struct bx_options *options, void *step)
{
    if (options->rank == VICTIM)
        take_aim(step, 1, SIGKILL);
    start_here(&starts[options->rank], options);
    return 0;
}

/* The others' starts fail, or they run without it. In the launcher's words each of these deaths is a failure. */
Test(kill_start, a_worker_that_the_launcher_knows)
{
    static char announced[] = "spawn.announced", in_job[] = "spawn.in_job", left[] = "spawn.not_in_job";
    char *const steps[] = { announced, in_job, left };
    const struct bx_spawn_options options = { .job = job_name, .world_size = 3 };
    struct bx_spawn_report report = { 0 };

    for (uint32_t i = 0; i < 3; i++) {
        cr_expect_eq(bx_spawn(&options, dies_under_a_launcher, steps[i], &report), BX_E_WORKER_FAILED);
        cr_expect_eq(report.failed_rank, VICTIM, "%s", steps[i]);
        cr_expect_eq(report.term_signal, SIGKILL, "%s", steps[i]);
        cr_expect_eq(harness_gate(HIT), i + 1, "%s", steps[i]);
        cr_expect_eq(starts[0].rc, i == 0 ? BX_E_WORKER_FAILED : 0, "%s: %s", steps[i], starts[0].text);
        cr_expect_eq(starts[2].rc, starts[0].rc, "%s: %s", steps[i], starts[2].text);
        cr_expect_eq(segments_of(""), 0, "%s", steps[i]);
    }
}

/* ---- Without a launcher ---------------------------------------------------------------------------------- */

#define LEFT_WORLD 3
enum { DEAD = HARNESS_GATES - 1 };      /* the victim has ended */

static void make_arena(struct bx_job *job)
{
    OWN(tensor) *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, &(int64_t){ 3000 }, &tensor), 0);
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
    snprintf(starts[rank].text, sizeof(starts[rank].text), "%s", starts[rank].rc < 0 ? bx_error_text() : "");
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

/* Whether a rank passes a step, and what the others' starts do if it dies there. */
enum others {
    NONE = 0,       /* it does not pass there */
    WAIT,           /* nobody has met it: they are started after its death, and wait in vain for its rank */
    FAIL,           /* they are started before it, and hear of its death; one that had not met rank 0 waits in vain */
    RUN,            /* they run, notified or not */
    EITHER,         /* rank 0 hears of it before it opens the gate, or after that */
};

static const struct left_step {
    const char *step;
    uint32_t passages;
    enum others others[2];              /* if rank 0 dies there, if rank 1 does */
} left_steps[] = {
    { "boot.locked", 1, { WAIT } }, { "boot.lock_noted", 1, { WAIT } }, { "boot.bound", 1, { WAIT } },
    { "boot.listening", 1, { WAIT } }, { "segment.named", 1, { WAIT, FAIL } },
    { "segment.locked", 1, { WAIT, FAIL } }, { "segment.sized", 1, { WAIT, FAIL } },
    { "segment.allocated", 1, { WAIT, FAIL } }, { "segment.written", 1, { WAIT, FAIL } },
    { "segment.named", 2, { WAIT, FAIL } }, { "arena.locked", 1, { WAIT, FAIL } },
    { "arena.sized", 1, { WAIT, FAIL } }, { "object.unnamed", 1, { WAIT } },
    { "object.linked", 1, { WAIT, FAIL } }, { "boot.waits", 1, { NONE, WAIT } },
    { "boot.hello_sent", 1, { NONE, FAIL } }, { "boot.welcome_sent", 1, { FAIL } },
    { "boot.welcome_sent", 2, { FAIL } }, { "boot.welcomed", 1, { NONE, FAIL } },
    { "boot.join_sent", 1, { NONE, FAIL } }, { "boot.joined", 1, { FAIL } }, { "boot.joined", 2, { FAIL } },
    { "boot.table_sent", 1, { FAIL } }, { "boot.table_sent", 2, { FAIL } }, { "boot.tabled", 1, { NONE, FAIL } },
    { "boot.attached_sent", 1, { NONE, EITHER } }, { "boot.socket_gone", 1, { FAIL } },
    { "boot.running_noted", 1, { FAIL } }, { "boot.gate_closed", 1, { FAIL } }, { "boot.gate_open", 1, { RUN } },
    { "boot.go_sent", 1, { RUN } }, { "boot.go_sent", 2, { RUN } }, { "state.running", 1, { RUN, RUN } },
    { "state.leaving", 1, { RUN, RUN } }, { "state.leaving_rung", 1, { RUN, RUN } },
    { "ending.round", 1, { RUN, RUN } }, { "ending.round_rung", 1, { RUN, RUN } },
    { "state.left", 1, { RUN, RUN } }, { "state.stopped", 1, { RUN, RUN } },
    { "segment.unlinked", 1, { RUN, RUN } }, { "arena.unlinked", 1, { RUN, RUN } },
    { "boot.lock_gone", 1, { RUN } },
};

static void start_others(int victim, uint32_t deaths, uint64_t timeout_ns)
{
    for (int rank = 0; rank < LEFT_WORLD; rank++)
        if (rank != victim)
            fork_without_launcher(rank, timeout_ns, deaths);
}

/* Whether its start succeeded. */
static bool other_ends(int rank, int victim, const struct left_step *at)
{
    enum others others = at->others[victim];
    const struct start *start = &starts[rank];

    start_ends(rank);
    if (start->rc == 0) {
        cr_expect(others == RUN || others == EITHER, "rank %d killed at %s: %d runs", victim, at->step, rank);
        return true;
    }
    cr_expect(others != RUN && (start->rc == BX_E_RANK_MISSING || (others != WAIT && start->rc == BX_E_PEER_DEAD)) &&
              strstr(start->text, victim == 0 ? "rank 0" : "rank 1") != NULL,
              "rank %d killed at %s: %d: %s", victim, at->step, rank, start->text);
    return false;
}

static void dies_at(int victim, const struct left_step *at)
{
    enum others others = at->others[victim];
    uint32_t deaths = harness_gate(DEAD) + 1;
    int status = 0, runs = 0, left;

    if (others != WAIT)
        start_others(victim, deaths, 10000 * HARNESS_MS);
    if (others == FAIL && victim != 0)
        start_wait_for_segment(".2");
    take_aim(at->step, at->passages, SIGKILL);
    fork_without_launcher(victim, (others == WAIT ? 100 : 10000) * HARNESS_MS, deaths);
    aim.step = NULL;
    cr_assert_eq(waitpid(starts[victim].pid, &status, 0), starts[victim].pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "rank %d at %s: status %#x", victim, at->step,
              (unsigned)status);
    harness_post(DEAD);
    if (others == WAIT)
        start_others(victim, deaths, 100 * HARNESS_MS);
    for (int rank = 0; rank < LEFT_WORLD; rank++)
        if (rank != victim)
            runs += other_ends(rank, victim, at);
    cr_expect(runs == 0 || runs == LEFT_WORLD - 1, "rank %d killed at %s: only one runs", victim, at->step);
    left = segments_of("") + socket_files();
    cr_expect_eq(left, 0, "rank %d killed at %s (%u) left %d names", victim, at->step, at->passages, left);
    bxi_object_reap(job_name, 0);
    bxi_bootstrap_sweep(job_name);
}

TestSuite(kill_without_launcher, .init = starts_set_up, .fini = place_tear_down, .timeout = 300);

Test(kill_without_launcher, leaves_nothing_at_any_step_and_all_others_run_or_none)
{
    for (size_t i = 0; i < sizeof(left_steps) / sizeof(*left_steps); i++)
        for (int victim = 0; victim < 2; victim++)
            if (left_steps[i].others[victim] != NONE)
                dies_at(victim, &left_steps[i]);
}

/* ---- Coming back ---------------------------------------------------------------------------------------- */

#include "kill_rejoin.h"

Test(kill_rejoin, a_joiner_that_nobody_knows, .timeout = 60) { run_killed_alone("rejoin.made"); }
Test(kill_rejoin, a_worker_stopped_while_it_attaches, .timeout = 60) { run_stopped_welcoming(); }
Test(kill_rejoin, a_shutdown_waits_for_it, .timeout = 20) { run_shutdown_before_it_rang(); }
Test(kill_rejoin, its_join_is_heard_before_its_death, .timeout = 60) { run_killed_before_it_rang(); }

#endif
