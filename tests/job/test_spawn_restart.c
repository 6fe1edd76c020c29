/* SPDX-License-Identifier: MIT */
/*
 * lib/job/spawn.c, lib/job/spawned.c: workers that are started again (bx_spawn_options.restart). Most workers here only
 * tell the launcher that they are in a job, and when they have left it; they have a segment with a name. The last test
 * joins a real job.
 */
#include "spawn_fixture.h"

#include "job/old.h"

#include <sys/prctl.h>

#define RANK 1                          /* that dies */

/* How the workers of a test behave. */
struct life {
    int restart;
    int deaths;                         /* processes of RANK that die in the job, one after the other */
    int signal_number;                  /* that kills them; 0: they exit */
    int status;                         /* with which they exit */
    uint64_t grace_ns;
};

static struct bx_job in_job;
static char lines[80][256];             /* of the log */
static int line_count;
static pid_t launcher;

/* The launcher's; the workers inherit the hook. */
static void take_line(int level, const char *text, void *context)
{
    (void)context;
    if (getpid() != launcher)
        return;
    cr_expect_eq(level, 1);
    snprintf(lines[line_count++ % 80], sizeof(lines[0]), "%s", text);
}

static void restart_set_up(void)
{
    set_up();
    launcher = getpid();
    bx_set_log(take_line, NULL);
}

TestSuite(spawn_restart, .init = restart_set_up, .fini = place_tear_down, .timeout = 60);

static int spawn_again(bx_worker_fn fn, const struct life *life)
{
    static struct life shared;          /* a copy that outlives the caller's, for the workers */
    struct bx_spawn_options options = { .job = job_name, .world_size = WORLD,
                                        .grace_ns = life->grace_ns != 0 ? life->grace_ns : SHORT_NS,
                                        .restart = life->restart };

    shared = *life;
    seen->rc = bx_spawn(&options, fn, &shared, &seen->report);
    return seen->rc;
}

/* As bx_job_start does: makes names, which must not exist, and says that this worker is in the job. */
static void enter(const struct bx_options *options)
{
    if (make_names(options) < 0)
        _exit(99);
    in_job.world_size = options->world_size;
    snprintf(in_job.job_name, sizeof(in_job.job_name), "%s", options->job);
    bxi_spawn_in_job(&in_job, true);
}

static void leave(void)
{
    bxi_spawn_in_job(&in_job, false);
}

/* Process `number` of the rank has been reaped by the launcher. */
static void wait_for_death(int rank, int number)
{
    while (__atomic_load_n(&seen->runs[rank], __ATOMIC_SEQ_CST) < number || kill(seen->pid[rank], 0) == 0)
        sched_yield();
}

static void wait_for_runs(int rank, int number)
{
    HARNESS_WAIT_WHILE(__atomic_load_n(&seen->runs[rank], __ATOMIC_SEQ_CST) < number);
}

/* RANK dies so often; then all leave. */
static int comes_back(const struct bx_options *options, void *context)
{
    const struct life *life = context;

    enter(options);
    note(options);
    if (options->rank == RANK && seen->runs[RANK] <= life->deaths) {
        if (life->signal_number == 0)
            return life->status;
        raise(life->signal_number);
    }
    wait_for_runs(RANK, life->deaths + 1);
    leave();
    return 0;
}

static void expect_nothing_left(void)
{
    expect_no_child();
    cr_expect_eq(segments_of(""), 0);
}

static void expect_back(const struct life *life, const char *how)
{
    char text[256];

    cr_expect_eq(spawn_again(comes_back, life), 0, "%s", bx_error_text());
    expect_report(-1, 0, 0, 0);
    cr_expect_eq(seen->runs[RANK], life->deaths + 1);
    cr_expect_eq(seen->runs[0] + seen->runs[2], 2);
    cr_expect_str_eq(seen->name[RANK], "worker1");
    cr_expect_str_eq(seen->job[RANK], job_name);
    cr_assert_eq(line_count, life->deaths);
    snprintf(text, sizeof(text), "%s: started again as pid %ld, %d of %d", how, (long)seen->pid[RANK], life->deaths,
             life->restart);
    cr_expect_not_null(strstr(lines[line_count - 1], text), "%s", lines[line_count - 1]);
    cr_expect_eq(strncmp(lines[0], "worker 'worker1' (rank 1, pid ", 30), 0, "%s", lines[0]);
    expect_nothing_left();
}

Test(spawn_restart, starts_a_killed_worker_again)
{
    expect_back(&(struct life){ .restart = 1, .deaths = 1, .signal_number = SIGKILL },
                "was killed by signal 9 (Killed)");
}

Test(spawn_restart, starts_a_worker_again_that_exits_inside_the_job)
{
    expect_back(&(struct life){ .restart = 3, .deaths = 1, .status = 3 }, "exited with status 3");
}

Test(spawn_restart, starts_a_worker_again_that_returns_0_without_having_left)
{
    expect_back(&(struct life){ .restart = 3, .deaths = 1, .status = 0 },
                "exited with status 0, but had not left the job");
}

Test(spawn_restart, waits_longer_from_death_to_death)
{
    uint64_t start_ns = bxi_now_ns();

    expect_back(&(struct life){ .restart = 31, .deaths = 4, .signal_number = SIGUSR1 },
                "was killed by signal 10 (User defined signal 1)");
    cr_expect_geq(bxi_now_ns() - start_ns, 700000000u);     /* 0, 100, 200 and 400 ms */
}

Test(spawn_restart, ends_the_job_when_the_restarts_are_used_up)
{
    struct life life = { .restart = 2, .deaths = 9, .signal_number = SIGKILL };

    cr_expect_eq(spawn_again(comes_back, &life), BX_E_WORKER_FAILED);
    expect_text("worker 'worker1' (rank 1, pid %ld) was killed by signal 9 (Killed)", RANK);
    expect_report(RANK, -1, SIGKILL, 0);
    cr_expect_eq(seen->runs[RANK], 3);
    cr_expect_eq(line_count, 2);
    expect_nothing_left();
}

static int notes_rejoin(const struct bx_options *options, void *context)
{
    (void)context;
    seen->runs[options->rank] = options->rejoin;
    return 0;
}

Test(spawn_restart, sets_rejoin_in_the_options_of_all)
{
    cr_expect_eq(spawn_again(notes_rejoin, &(struct life){ .restart = 1 }), 0);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq(seen->runs[rank], 1);
    cr_expect_eq(spawn_again(notes_rejoin, &(struct life){ .restart = 0 }), 0);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq(seen->runs[rank], 0);
}

/* ---- No restart --------------------------------------------------------------------------------- */

static int dies_before_the_job(const struct bx_options *options, void *context)
{
    (void)context;
    note(options);
    if (options->rank == RANK)
        raise(SIGKILL);
    wait_for_ever();
}

Test(spawn_restart, does_not_restart_a_start_that_failed)
{
    cr_expect_eq(spawn_again(dies_before_the_job, &(struct life){ .restart = 5 }), BX_E_WORKER_FAILED);
    expect_report(RANK, -1, SIGKILL, 0);
    cr_expect_eq(seen->runs[RANK], 1);
    cr_expect_eq(line_count, 0);
}

static int fails_after_it_left(const struct bx_options *options, void *context)
{
    (void)context;
    enter(options);
    note(options);
    if (options->rank != RANK)
        wait_for_ever();
    leave();
    return 4;
}

Test(spawn_restart, does_not_restart_a_worker_that_had_left)
{
    cr_expect_eq(spawn_again(fails_after_it_left, &(struct life){ .restart = 5 }), BX_E_WORKER_FAILED);
    expect_report(RANK, 4, 0, 0);
    cr_expect_eq(seen->runs[RANK], 1);
}

static int dies_when_the_job_is_left(const struct bx_options *options, void *context)
{
    (void)context;
    enter(options);
    note(options);
    if (options->rank == RANK) {
        wait_for_death(0, 1);
        raise(SIGKILL);
    }
    if (options->rank == 2)
        wait_for_ever();                /* in the job */
    leave();
    return 0;
}

Test(spawn_restart, does_not_restart_once_a_worker_has_left_the_job)
{
    cr_expect_eq(spawn_again(dies_when_the_job_is_left, &(struct life){ .restart = 5 }), BX_E_WORKER_FAILED);
    expect_report(RANK, -1, SIGKILL, 0);
    cr_expect_eq(seen->runs[RANK], 1);
    expect_nothing_left();
}

/* ---- The job ends while a worker is to be started again ------------------------------------------ */

#define LOOPS 6                         /* after so many deaths in a row the launcher waits for 1.6 s */

static int dies_on_and_on(const struct bx_options *options, void *context)
{
    const struct life *life = context;

    enter(options);
    note(options);
    if (options->rank == RANK)
        raise(SIGKILL);
    wait_for_death(RANK, LOOPS);
    if (life->signal_number != 0 && options->rank == 0)
        kill(getppid(), life->signal_number);
    if (life->signal_number != 0)
        wait_for_ever();
    leave();
    return 0;
}

Test(spawn_restart, a_worker_that_did_not_come_back_is_the_failure)
{
    cr_expect_eq(spawn_again(dies_on_and_on, &(struct life){ .restart = 31 }), BX_E_WORKER_FAILED);
    expect_text("worker 'worker1' (rank 1, pid %ld) was killed by signal 9 (Killed)", RANK);
    expect_report(RANK, -1, SIGKILL, 0);
    expect_nothing_left();
}

Test(spawn_restart, a_signal_ends_the_job_while_a_worker_is_to_be_started_again)
{
    int signals[] = { SIGINT, SIGTERM };

    for (int i = 0; i < 2; i++) {
        memset(seen, 0, sizeof(*seen));
        cr_expect_eq(spawn_again(dies_on_and_on, &(struct life){ .restart = 31, .signal_number = signals[i] }),
                     BX_E_INTERRUPTED);
        expect_report(-1, 0, 0, signals[i]);
        expect_nothing_left();
    }
}

/* In a real job, with a door. */
static int waits_in_a_job(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;

    (void)context;
    if (bx_job_create(options, &job) < 0 || bx_job_start(job) < 0)
        return 9;
    note(options);
    wait_for_ever();
}

Test(spawn_restart, leaves_no_door_when_the_launcher_is_killed)
{
    /* The orphans become children of this process, so it can wait for their end. */
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    fflush(NULL);
    pid_t pid = fork();

    if (pid == 0)
        _exit(spawn_again(waits_in_a_job, &(struct life){ .restart = 1 }) != 0);
    HARNESS_WAIT_WHILE(bxi_load_seq_cst(&seen->running) < WORLD);
    cr_expect_eq(socket_files(), WORLD + 1, "%d", socket_files());     /* doors, and the lock file */
    kill(pid, SIGKILL);
    for (int i = 0; i < WORLD + 1; i++)
        wait(NULL);
    cr_expect_eq(socket_files(), 0);
    expect_nothing_left();
}

/* Rank 0 is to be started again when the last workers die that were in the job. */
static int all_die(const struct bx_options *options, void *context)
{
    (void)context;
    if (options->rank != 0 && seen->runs[options->rank] > 0)
        wait_for_ever();                /* it is not in the job again */
    enter(options);
    note(options);
    if (options->rank == 0)
        raise(SIGKILL);
    wait_for_death(0, LOOPS);
    if (options->rank == 1) {
        harness_kill(seen->pid[2], SIGKILL);
        raise(SIGKILL);
    }
    wait_for_ever();
}

Test(spawn_restart, restarts_nobody_when_nobody_is_left_in_the_job)
{
    cr_expect_eq(spawn_again(all_die, &(struct life){ .restart = 31 }), BX_E_WORKER_FAILED);
    expect_report(0, -1, SIGKILL, 0);
    cr_expect_eq(seen->runs[1], 1);
    expect_nothing_left();
}

/* ---- A worker that has been started again, before it is in the job ------------------------------- */

static int dies_in_its_start(const struct bx_options *options, void *context)
{
    int number = __atomic_add_fetch(&seen->runs[options->rank], 1, __ATOMIC_SEQ_CST);

    (void)context;
    if (options->rank == RANK && number == 2)
        raise(SIGKILL);
    enter(options);
    meet();
    if (options->rank == RANK && number == 1)
        raise(SIGKILL);
    wait_for_runs(RANK, 3);
    leave();
    return 0;
}

Test(spawn_restart, starts_a_worker_again_that_died_before_it_was_back)
{
    cr_expect_eq(spawn_again(dies_in_its_start, &(struct life){ .restart = 2 }), 0, "%s", bx_error_text());
    cr_expect_eq(seen->runs[RANK], 3);
    expect_nothing_left();
}

static int asks_the_board(const struct bx_options *options)
{
    in_job.world_size = options->world_size;
    snprintf(in_job.job_name, sizeof(in_job.job_name), "%s", options->job);
    return bxi_spawn_ended(&in_job, -1);
}

static int comes_too_late(const struct bx_options *options, void *context)
{
    int number = __atomic_add_fetch(&seen->runs[options->rank], 1, __ATOMIC_SEQ_CST);

    (void)context;
    seen->pid[options->rank] = getpid();
    if (options->rank == RANK && number == 2) {
        if (asks_the_board(options) != 0)
            return 9;                   /* its own death must not end its start */
        __atomic_store_n(&seen->world_size[0], 1, __ATOMIC_SEQ_CST);
        HARNESS_WAIT_WHILE((seen->world_size[1] = asks_the_board(options)) == 0);
        snprintf(seen->text, sizeof(seen->text), "%s", bx_error_text());
        return 7;
    }
    enter(options);
    meet();
    if (options->rank == RANK)
        raise(SIGKILL);
    HARNESS_WAIT_WHILE(__atomic_load_n(&seen->world_size[0], __ATOMIC_SEQ_CST) == 0);
    if (options->rank == 2)
        wait_for_death(0, 1);           /* so that the first end is rank 0's */
    leave();
    return 0;
}

Test(spawn_restart, tells_a_worker_that_comes_too_late_and_reports_why_it_was_started)
{
    char text[160];

    cr_expect_eq(spawn_again(comes_too_late, &(struct life){ .restart = 5, .grace_ns = BX_FOREVER }),
                 BX_E_WORKER_FAILED);
    cr_expect_eq(seen->world_size[1], BX_E_WORKER_FAILED);
    snprintf(text, sizeof(text), "worker 'worker0' (rank 0, pid %ld) exited with status 0: job '%s' ends",
             (long)seen->pid[0], job_name);
    cr_expect_str_eq(seen->text, text);
    expect_report(RANK, -1, SIGKILL, 0);
    cr_expect_eq(seen->runs[RANK], 2);
    expect_nothing_left();
}

/* Rank 2 has no restarts left and grace is unlimited: RANK comes back all the same. */
static int goes_on_without_another(const struct bx_options *options, void *context)
{
    int number = __atomic_add_fetch(&seen->runs[options->rank], 1, __ATOMIC_SEQ_CST);

    (void)context;
    seen->pid[options->rank] = getpid();
    if (options->rank == RANK && number == 2) {
        wait_for_death(2, 2);
        if (asks_the_board(options) != 0)
            return 9;
    }
    enter(options);
    meet();
    if (options->rank == RANK && number == 1)
        raise(SIGKILL);
    if (options->rank == 2) {
        wait_for_runs(RANK, 2);
        raise(SIGKILL);
    }
    wait_for_death(2, 2);
    if (options->rank == RANK)
        __atomic_store_n(&seen->world_size[0], 1, __ATOMIC_SEQ_CST);
    HARNESS_WAIT_WHILE(__atomic_load_n(&seen->world_size[0], __ATOMIC_SEQ_CST) == 0);
    leave();
    return 0;
}

Test(spawn_restart, goes_on_if_another_is_not_restarted_and_the_grace_is_unlimited)
{
    cr_expect_eq(spawn_again(goes_on_without_another, &(struct life){ .restart = 1, .grace_ns = BX_FOREVER }),
                 BX_E_WORKER_FAILED);
    expect_text("worker 'worker2' (rank 2, pid %ld) was killed by signal 9 (Killed)", 2);
    expect_report(2, -1, SIGKILL, 0);
    cr_expect_eq(seen->runs[RANK], 2);
    cr_expect_eq(seen->runs[2], 2);
    expect_nothing_left();
}

/* ---- Wrong options ------------------------------------------------------------------------------- */

static int must_not_run(const struct bx_options *options, void *context)
{
    (void)context;
    seen->runs[options->rank]++;
    return 0;
}

Test(spawn_restart, is_refused_outside_0_to_62)
{
    cr_expect_eq(spawn_again(must_not_run, &(struct life){ .restart = -1 }), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "restart is -1, not one of 0 to 31");
    cr_expect_eq(spawn_again(must_not_run, &(struct life){ .restart = 32 }), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "restart is 32, not one of 0 to 31");
    cr_expect_eq(seen->runs[0] + seen->runs[1] + seen->runs[2], 0);
}

/* A program of 0.1 left struct_bytes 0; what lies behind its struct is not read. */
Test(spawn_restart, is_not_read_of_a_struct_of_the_first_version)
{
    struct bx_spawn_options options = { .job = job_name, .world_size = WORLD, .grace_ns = SHORT_NS, .restart = 99 };
    struct life life = { .deaths = 1, .signal_number = SIGKILL };

    cr_expect_eq(bxi_old_spawn(&options, comes_back, &life, &seen->report), BX_E_WORKER_FAILED);
    cr_expect_eq(seen->runs[RANK], 1);
    cr_expect_eq(bx_spawn(&options, comes_back, &life, &seen->report), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "restart is 99, not one of 0 to 31");
}

/* ---- A real job ---------------------------------------------------------------------------------- */

HARNESS_HANDLER(dies)
{
    raise(SIGKILL);
    return 0;
}

HARNESS_HANDLER(replies)
{
    return bx_msg_put_i64(reply, getpid());
}

/* Rank 0 kills RANK three times, each time it answers; then it ends the job. */
static int kill_and_call(struct bx_job *job)
{
    for (int number = 1; number <= 4; number++) {
        struct bx_msg *reply = NULL;

        HARNESS_WAIT_WHILE(bx_rpc_sync(job, "worker1", "replies", NULL, NULL, &reply) < 0);
        struct bx_reader in = bx_msg_reader(reply);
        if (bx_read_i64(&in) != seen->pid[RANK] || bx_worker_generation(job, RANK) != number)
            return 8;
        bx_msg_destroy(reply);
        if (number < 4 && bx_rpc_sync(job, "worker1", "dies", NULL, NULL, NULL) != BX_E_PEER_DEAD)
            return 7;
    }
    return 0;
}

static int works_in_a_job(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int rc = 0;

    (void)context;
    seen->runs[options->rank]++;
    seen->pid[options->rank] = getpid();
    if (bx_job_create(options, &job) < 0 || bx_register(job, "dies", BX_INLINE, dies, NULL) < 0 ||
        bx_register(job, "replies", BX_INLINE, replies, NULL) < 0 || bx_job_start(job) < 0) {
        fprintf(stderr, "%s: %s\n", options->name, bx_error_text());
        return 9;
    }
    if (options->rank == 0)
        rc = kill_and_call(job);
    else
        while (bx_job_serve(job) == BX_E_PEER_DEAD)
            ;
    if (bx_job_shutdown(job, 0) < 0)
        return 6;
    bx_job_destroy(job);
    return rc;
}

Test(spawn_restart, a_killed_worker_joins_the_job_that_runs)
{
    cr_expect_eq(spawn_again(works_in_a_job, &(struct life){ .restart = 3 }), 0, "%s", bx_error_text());
    cr_expect_eq(seen->runs[RANK], 4);
    cr_expect_eq(seen->runs[0] + seen->runs[2], 2);
    cr_expect_eq(line_count, 3);
    expect_nothing_left();
}
