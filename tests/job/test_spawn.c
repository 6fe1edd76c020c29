/* SPDX-License-Identifier: MIT */
/*
 * lib/job/spawn.c: workers that end well, end badly or do not end; a launcher that is interrupted or killed; and what
 * is left afterwards. The workers write what they saw into memory that they share with the test.
 */
#include "spawn_fixture.h"

TestSuite(spawn, .init = set_up, .fini = place_tear_down, .timeout = 60);

/* ---- All workers end well ----------------------------------------------------------------------- */

static int notes(const struct bx_options *options, void *context)
{
    note(options);
    return context == seen ? 0 : 1;
}

Test(spawn, runs_each_worker_once_as_a_direct_child)
{
    cr_expect_eq(spawn(notes, seen), 0);
    expect_report(-1, 0, 0, 0);
    for (int rank = 0; rank < WORLD; rank++) {
        char name[BXI_NAME_BYTES];
        snprintf(name, sizeof(name), "worker%d", rank);
        cr_expect_eq(seen->runs[rank], 1);
        cr_expect_eq(seen->parent[rank], getpid());
        cr_expect_eq(seen->world_size[rank], WORLD);
        cr_expect_str_eq(seen->name[rank], name);
        cr_expect_str_eq(seen->job[rank], job_name);
    }
    expect_no_child();
}

Test(spawn, fills_in_the_options_and_makes_a_name_for_the_job)
{
    static const char *const names[WORLD] = { "agent", "left", "right" };
    struct bx_options base = { .call_timeout_ns = 7, .job = "not-this", .rank = 99, .world_size = 99 };
    struct bx_spawn_options options = { .world_size = WORLD, .names = names, .options = &base };
    char prefix[BXI_NAME_BYTES];

    cr_expect_eq(bx_spawn(&options, notes, seen, NULL), 0);
    snprintf(prefix, sizeof(prefix), "spawn-%ld-", (long)getpid());
    for (int rank = 0; rank < WORLD; rank++) {
        cr_expect_str_eq(seen->name[rank], names[rank]);
        cr_expect_eq(strncmp(seen->job[rank], prefix, strlen(prefix)), 0);
        cr_expect_eq(seen->call_timeout_ns[rank], 7u);
    }
}

static int prints(const struct bx_options *options, void *context)
{
    (void)context;
    printf("%d", options->rank);
    return 0;
}

Test(spawn, loses_no_buffered_output_and_prints_none_twice)
{
    char text[64] = "", byte;
    int count[256] = { 0 }, ends[2];

    cr_assert_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        setvbuf(stdout, text, _IOFBF, sizeof(text));
        printf("x");
        int rc = spawn(prints, NULL);
        printf("y");
        fflush(stdout);
        _exit(rc == 0 ? 0 : 1);
    }
    close(ends[1]);
    while (read(ends[0], &byte, 1) == 1)
        count[(unsigned char)byte]++;
    expect_ended_well(pid);
    cr_expect_eq(count['x'], 1);
    cr_expect_eq(count['y'], 1);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq(count['0' + rank], 1);
}

static void handle_nothing(int signal_number)
{
    (void)signal_number;
}

Test(spawn, leaves_the_programs_signals_and_children_alone)
{
    struct sigaction child = { .sa_handler = handle_nothing }, now;
    sigset_t mask, after;
    int status = 0;

    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    sigaction(SIGCHLD, &child, NULL);
    pid_t own = fork();
    if (own == 0)
        _exit(42);
    cr_expect_eq(spawn(notes, seen), 0);
    sigprocmask(SIG_SETMASK, NULL, &after);
    cr_expect(sigismember(&after, SIGUSR1));
    cr_expect_not(sigismember(&after, SIGCHLD) || sigismember(&after, SIGINT) || sigismember(&after, SIGTERM));
    sigaction(SIGCHLD, NULL, &now);
    cr_expect_eq(now.sa_handler, handle_nothing);
    cr_expect_eq(waitpid(own, &status, 0), own);
    cr_expect_eq(WEXITSTATUS(status), 42);
}

Test(spawn, waits_for_its_workers_where_sigchld_is_ignored)
{
    signal(SIGCHLD, SIG_IGN);
    cr_expect_eq(spawn(notes, NULL), BX_E_WORKER_FAILED);
    cr_expect_eq(seen->report.exit_status, 1);
}

/* ---- One worker ends badly ---------------------------------------------------------------------- */

static int one_exits(const struct bx_options *options, void *context)
{
    note(options);
    if (options->rank == 1)
        return *(int *)context;
    wait_for_ever();
}

Test(spawn, names_the_worker_that_exited_and_ends_the_others)
{
    int status = 3;

    cr_expect_eq(spawn(one_exits, &status), BX_E_WORKER_FAILED);
    expect_text("worker 'worker1' (rank 1, pid %ld) exited with status 3", 1);
    expect_report(1, 3, 0, 0);
    expect_no_child();
}

Test(spawn, reports_status_256_as_a_failure)
{
    int status = 256;

    cr_expect_eq(spawn(one_exits, &status), BX_E_WORKER_FAILED);
    expect_report(1, 1, 0, 0);
}

static int all_but_one_go_on(const struct bx_options *options, void *context)
{
    const int *how = context;
    sigset_t all;

    if (options->rank == 0 && *how == SIGTERM) {
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);     /* of all signals only SIGKILL ends it */
    }
    note(options);
    if (options->rank == 1)
        return 3;
    if (*how == SIGSTOP)
        raise(SIGSTOP);
    wait_for_ever();
}

Test(spawn, ends_workers_that_are_stopped_or_block_sigterm)
{
    int how[] = { SIGSTOP, SIGTERM };

    for (int i = 0; i < 2; i++) {
        memset(seen, 0, sizeof(*seen));
        cr_expect_eq(spawn(all_but_one_go_on, &how[i]), BX_E_WORKER_FAILED);
        expect_report(1, 3, 0, 0);
        expect_no_child();
    }
}

static int ends_late(const struct bx_options *options, void *context)
{
    (void)context;
    note(options);
    if (options->rank == 0)
        return 3;
    /* Ends by itself, within the grace, once rank 0 has been reaped. */
    HARNESS_WAIT_WHILE(kill(seen->pid[0], 0) == 0);
    seen->runs[options->rank]++;
    return 5;
}

Test(spawn, lets_the_others_end_by_themselves_and_names_the_first)
{
    struct bx_spawn_options options = { .job = job_name, .world_size = WORLD, .grace_ns = 50000000000 };

    cr_expect_eq(bx_spawn(&options, ends_late, NULL, &seen->report), BX_E_WORKER_FAILED);
    expect_report(0, 3, 0, 0);
    cr_expect_eq(seen->runs[1], 2);
    cr_expect_eq(seen->runs[2], 2);
}

/* ---- Real segments ------------------------------------------------------------------------------ */

static int holds_a_segment(const struct bx_options *options, void *context)
{
    if (make_names(options) < 0)
        return 9;
    note(options);
    if (options->rank == 1 && context != NULL)
        raise(SIGKILL);
    wait_for_ever();
}

Test(spawn, removes_what_killed_workers_left)
{
    cr_expect_eq(spawn(holds_a_segment, seen), BX_E_WORKER_FAILED);
    expect_report(1, -1, SIGKILL, 0);
    cr_expect_eq(segments_of(""), 0);
}

static pid_t fork_launcher(void)
{
    fflush(NULL);
    pid_t pid = fork();

    if (pid == 0) {
        spawn(holds_a_segment, NULL);
        _exit(segments_of("") == 0 ? 0 : 1);
    }
    HARNESS_WAIT_WHILE(bxi_load_seq_cst(&seen->running) < WORLD);
    return pid;
}

static void interrupt_launcher(int signal_number, bool stops)
{
    pid_t pid = fork_launcher();

    if (stops)
        harness_kill(seen->pid[1], SIGSTOP);
    kill(pid, signal_number);
    expect_ended_well(pid);
    cr_expect_eq(seen->rc, BX_E_INTERRUPTED);
    expect_report(-1, 0, 0, signal_number);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq(kill(seen->pid[rank], 0), -1);
    cr_expect_eq(segments_of(""), 0);
}

Test(spawn, ends_the_job_on_sigterm) { interrupt_launcher(SIGTERM, false); }
Test(spawn, ends_the_job_on_sigint) { interrupt_launcher(SIGINT, false); }

/* No SIGKILL follows. */
Test(spawn, ends_the_job_on_sigint_though_a_worker_is_stopped_and_the_grace_unlimited)
{
    grace_ns = BX_FOREVER;
    interrupt_launcher(SIGINT, true);
}

Test(spawn, ends_the_job_on_sigint_though_it_was_ignored)
{
    signal(SIGINT, SIG_IGN);
    interrupt_launcher(SIGINT, false);
}

Test(spawn, workers_ignore_a_terminals_signals)
{
    int status = 0;
    pid_t pid = fork_launcher();

    for (int rank = 0; rank < WORLD; rank++) {
        harness_kill(seen->pid[rank], SIGINT);
        harness_kill(seen->pid[rank], SIGHUP);
    }
    kill(pid, SIGTERM);
    cr_expect_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(seen->rc, BX_E_INTERRUPTED);
    expect_report(-1, 0, 0, SIGTERM);
}

Test(spawn, leaves_nothing_when_the_launcher_is_killed)
{
    /* The orphans become children of this process, so it can wait for their end. */
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    pid_t pid = fork_launcher();
    int status = 0, signalled = 0;

    cr_expect_eq(segments_of(""), 2 * WORLD);      /* segments and arenas */
    kill(pid, SIGKILL);
    for (int i = 0; i < WORLD + 1; i++) {
        pid_t ended = wait(&status);
        signalled += ended != pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
    }
    cr_expect_eq(signalled, WORLD);
    cr_expect_eq(segments_of(""), 0);
}

/* The first steps of a worker. The launcher may die at any of them. */
static int starts(const struct bx_options *options, void *context)
{
    static struct bxi_whole_job whole;
    struct bx_job *job = &whole.job;

    (void)context;
    bxi_add(&seen->running, 1);
    bxi_job_link(&whole);
    job->rank = options->rank;
    job->world_size = options->world_size;
    snprintf(job->job_name, sizeof(job->job_name), "%s", options->job);
    snprintf(job->name, sizeof(job->name), "%s", options->name);
    whole.boot.lock_fd = whole.boot.pidfd = -1;
    bxi_peers_create(job);
    bxi_bootstrap(job, bxi_now_ns() + 5000000000);
    wait_for_ever();
}

Test(spawn, leaves_no_segment_when_the_launcher_is_killed_early)
{
    int status;

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    for (int i = 0; i < 20; i++) {
        bxi_store_relaxed(&seen->running, 0);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            _exit(spawn(starts, NULL) == 0 ? 0 : 1);
        HARNESS_WAIT_WHILE(bxi_load_seq_cst(&seen->running) < 1 + (uint32_t)i % WORLD);
        kill(pid, SIGKILL);
        while (wait(&status) > 0)
            ;
        cr_expect_eq(segments_of(""), 0);
    }
    bxi_bootstrap_sweep(job_name);      /* removes a lock file that was made but not yet noted */
}

/* ---- Wrong options, and a fork that fails ------------------------------------------------------- */

static int must_not_run(const struct bx_options *options, void *context)
{
    (void)context;
    seen->runs[options->rank % WORLD]++;
    return 0;
}

static void expect_refused(const struct bx_spawn_options *options, int code, const char *text)
{
    cr_expect_eq(bx_spawn(options, must_not_run, NULL, &seen->report), code);
    cr_expect_str_eq(bx_error_text(), text);
    expect_report(-1, 0, 0, 0);
    cr_expect_eq(seen->runs[0] + seen->runs[1] + seen->runs[2], 0);
    expect_no_child();
}

Test(spawn, forks_no_worker_if_the_options_are_wrong)
{
    static const char *const twice[] = { "agent", "left", "agent" };
    static const char *const invalid[] = { "agent", "a/b", "c" };
    static const char *const missing[] = { "agent", NULL, "c" };
    struct bx_spawn_options options = { .world_size = 0 };

    expect_refused(&options, BX_E_WORLD_SIZE, "bx_spawn starts 1 to 128 workers, not 0");
    options.world_size = 129;
    expect_refused(&options, BX_E_WORLD_SIZE, "bx_spawn starts 1 to 128 workers, not 129");
    options = (struct bx_spawn_options){ .world_size = WORLD, .names = twice };
    expect_refused(&options, BX_E_NAME_TAKEN, "the name 'agent' is given twice, to ranks 0 and 2");
    options.names = invalid;
    expect_refused(&options, -EINVAL, "the name 'a/b' of rank 1 is not one: 1 to 31 of A-Z a-z 0-9 _ - .");
    options.names = missing;
    expect_refused(&options, -EINVAL, "the name '' of rank 1 is not one: 1 to 31 of A-Z a-z 0-9 _ - .");
    options = (struct bx_spawn_options){ .world_size = WORLD, .job = "no/job" };
    expect_refused(&options, -EINVAL, "'no/job' is no name for a job: 1 to 31 of A-Z a-z 0-9 _ - .");
    expect_refused(NULL, -EINVAL, "bx_spawn needs options and a function");
    options.job = job_name;
    cr_expect_eq(bx_spawn(&options, NULL, NULL, NULL), -EINVAL);
}

Test(spawn, ends_its_workers_when_it_can_fork_no_more)
{
    struct rlimit limit = { 2, 2 };     /* processes: the launcher and one worker */

    if (geteuid() != 0)
        cr_skip_test("needs a user without any process");
    cr_assert_eq(chown(directory, 12321, 12321), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(12321) < 0 || setuid(12321) < 0 || setrlimit(RLIMIT_NPROC, &limit) < 0)
            _exit(99);
        int rc = spawn(holds_a_segment, NULL);
        bool is_said = strncmp(bx_error_text(), "worker 1 of 3 cannot be forked: ", 32) == 0;
        _exit(rc == -EAGAIN && is_said && waitpid(-1, NULL, WNOHANG) < 0 && segments_of("") == 0 ? 0 : 1);
    }
    expect_ended_well(pid);
}

/* ---- An end while the job starts ---------------------------------------------------------------- */

struct started {
    int rc[WORLD];
    char text[WORLD][BXI_TEXT_BYTES];
};
struct dying {
    int rank;
    int signal_number;                  /* 0: it returns 0 */
    struct started *started;
};

static void start_and_note(const struct bx_options *options, struct started *started)
{
    struct bx_job *job = NULL;
    int rank = options->rank;

    started->rc[rank] = bx_job_create(options, &job);
    if (started->rc[rank] == 0)
        started->rc[rank] = bx_job_start(job);
    if (started->rc[rank] < 0)
        snprintf(started->text[rank], BXI_TEXT_BYTES, "%s", bx_error_text());
    bx_job_destroy(job);
}

static int dies_or_starts(const struct bx_options *options, void *context)
{
    const struct dying *dying = context;

    note(options);
    if (options->rank == dying->rank && dying->signal_number != 0)
        raise(dying->signal_number);
    else if (options->rank != dying->rank)
        start_and_note(options, dying->started);
    return options->rank == dying->rank ? 0 : 7;
}

/* The start timeout is longer than the test's: a worker that is not told of the death runs into the latter. */
static void spawn_dying(bx_worker_fn fn, struct dying *dying)
{
    struct bx_options worker = { .start_timeout_ns = 10 * UINT64_C(60000000000) };
    struct bx_spawn_options options = { .job = job_name, .world_size = WORLD, .grace_ns = BX_FOREVER,
                                        .options = &worker };

    memset(seen, 0, sizeof(*seen));
    memset(dying->started, 0, sizeof(*dying->started));
    seen->rc = bx_spawn(&options, fn, dying, &seen->report);
}

static void expect_told(const struct dying *dying, const char *how)
{
    char part[160];

    snprintf(part, sizeof(part), "worker 'worker%d' (rank %d, pid %ld) %s before job '%s' had started", dying->rank,
             dying->rank, (long)seen->pid[dying->rank], how, job_name);
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == dying->rank)
            continue;
        cr_expect_eq(dying->started->rc[rank], BX_E_WORKER_FAILED, "rank %d: %s: %s", rank,
                     bx_error_name(dying->started->rc[rank]), dying->started->text[rank]);
        cr_expect_str_eq(dying->started->text[rank], part);
    }
    cr_expect_eq(segments_of(""), 0);
}

static void map_started(struct dying *dying)
{
    dying->started = mmap(NULL, sizeof(*dying->started), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(dying->started, MAP_FAILED);
}

Test(spawn, tells_starting_workers_that_one_was_killed_or_has_ended)
{
    struct dying dying = { 0 };

    map_started(&dying);
    for (int i = 0; i < 2 * WORLD; i++) {
        bool is_killed = i < WORLD;

        dying.rank = i % WORLD;
        dying.signal_number = is_killed ? SIGKILL : 0;
        spawn_dying(dies_or_starts, &dying);
        expect_told(&dying, is_killed ? "was killed by signal 9 (Killed)" : "exited with status 0");
        cr_expect_eq(seen->rc, BX_E_WORKER_FAILED);
        if (is_killed)
            expect_report(dying.rank, -1, SIGKILL, 0);
    }
}

/* True once the rank has made its segment and arena: it has met rank 0, or is rank 0. */
static bool has_segment(int rank)
{
    char suffix[16];

    snprintf(suffix, sizeof(suffix), ".%d.arena", rank);
    return segments_of(suffix) > 0;
}

/* Rank 2 kills another worker that waits for it, and then starts. */
static int is_killed_when_it_waits(const struct bx_options *options, void *context)
{
    const struct dying *dying = context;

    note(options);
    if (options->rank == 2) {
        HARNESS_WAIT_WHILE(!has_segment(dying->rank));
        harness_kill(seen->pid[dying->rank], SIGKILL);
    }
    start_and_note(options, dying->started);
    return 7;
}

Test(spawn, tells_starting_workers_that_one_was_killed_while_it_waited)
{
    struct dying dying = { .signal_number = SIGKILL };

    map_started(&dying);
    for (dying.rank = 0; dying.rank < 2; dying.rank++) {
        spawn_dying(is_killed_when_it_waits, &dying);
        expect_told(&dying, "was killed by signal 9 (Killed)");
        expect_report(dying.rank, -1, SIGKILL, 0);
    }
}

/* ---- A launcher of several hosts has started the workers ------------------------------------------ */

static int ends_with(const struct bx_options *options, void *context)
{
    seen->runs[options->rank]++;
    snprintf(seen->job[options->rank], BXI_NAME_BYTES, "%s", options->job);
    return *(const int *)context;
}

Test(spawn, runs_the_one_worker_that_a_launcher_has_started)
{
    static const struct {
        const char *size, *rank;
        int status, restart, rc;
    } cases[] = {
        { "3", "1", 0, 0, 0 },
        { "3", "1", 7, 0, BX_E_WORKER_FAILED },
        { "4", "1", 0, 0, BX_E_WORLD_SIZE },
        { "3", "3", 0, 0, -EINVAL },
        { "3", "x", 0, 0, -EINVAL },
        { "3", "1", 0, 1, -ENOTSUP },
    };

    setenv("BX_ROOT", "somewhere:77", 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bx_spawn_options options = { .job = job_name, .world_size = WORLD, .restart = cases[i].restart };
        int status = cases[i].status;

        setenv("OMPI_COMM_WORLD_SIZE", cases[i].size, 1);
        setenv("SLURM_PROCID", cases[i].rank, 1);
        cr_expect_eq(bx_spawn(&options, ends_with, &status, &seen->report), cases[i].rc, "case %zu: %s", i,
                     bx_error_text());
        expect_report(status == 0 ? -1 : 1, status, 0, 0);
    }
    cr_expect_eq(seen->runs[1], 2);
    cr_expect_str_eq(seen->job[1], "hosts-77");
    expect_no_child();
}

/* The launcher's job is the one that BX_JOB names, else one of the port. */
Test(spawn, takes_the_name_of_the_job_from_the_launcher)
{
    static const char *const cases[][3] = {     /* BX_ROOT, BX_JOB, the name */
        { "somewhere:77", "mine", "mine" }, { "somewhere:77", "", "hosts-77" }, { "somewhere", "", "hosts-" },
    };
    struct bx_spawn_options options = { .world_size = 1 };
    struct bx_options started = { 0 };
    int status = 0;

    setenv("BX_WORLD_SIZE", "1", 1);
    setenv("BX_RANK", "0", 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        setenv("BX_ROOT", cases[i][0], 1);
        setenv("BX_JOB", cases[i][1], 1);
        cr_expect_eq(bx_spawn(&options, ends_with, &status, NULL), 0, "case %zu: %s", i, bx_error_text());
        cr_expect_str_eq(seen->job[0], cases[i][2]);
    }
    setenv("BX_ROOT", "", 1);
    cr_expect_eq(bxi_options_of_launcher(&started), -EINVAL);
    cr_expect_not_null(strstr(bx_error_text(), "BX_JOB is not set"));
}

/* ---- A worker that exits while the job runs ------------------------------------------------------ */

HARNESS_HANDLER(exits)
{
    _exit(0);
}

static int exits_in_a_handler(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int rc;

    (void)context;
    note(options);
    if (bx_job_create(options, &job) < 0 || bx_register(job, "exits", BX_INLINE, exits, NULL) < 0 ||
        bx_job_start(job) < 0)
        return 9;
    rc = options->rank == 0 ? bx_rpc_sync(job, "worker1", "exits", NULL, NULL, NULL) : bx_job_serve(job);
    seen->runs[options->rank] += rc == BX_E_PEER_DEAD;
    rc = bx_job_shutdown(job, 0);
    bx_job_destroy(job);
    return rc < 0 ? 9 : 0;
}

Test(spawn, takes_an_exit_while_the_job_runs_for_a_failure)
{
    struct bx_spawn_options options = { .job = job_name, .world_size = WORLD, .grace_ns = BX_FOREVER };

    cr_expect_eq(bx_spawn(&options, exits_in_a_handler, NULL, &seen->report), BX_E_WORKER_FAILED);
    expect_text("worker 'worker1' (rank 1, pid %ld) exited with status 0, but had not left the job", 1);
    expect_report(1, 0, 0, 0);
    cr_expect_eq(seen->runs[0], 2);     /* its call failed with BX_E_PEER_DEAD */
}
