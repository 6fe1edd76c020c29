/* SPDX-License-Identifier: MIT */
/*
 * lib/job/job.c: a destroyed job leaves nothing in its process. Rank 0 is this process, rank 1 a child.
 */
#include "starts.h"

#include "tests/harness/clock.h"
#include "tests/harness/refuse.h"

#include <sys/prctl.h>

TestSuite(job_life, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

/* ---- Nothing is left ---------------------------------------------------------------------------- */

HARNESS_HANDLER(add)
{
    return bx_msg_put_i64(reply, bx_read_i64(args) + 1);
}

/* Forks a child that serves until the other worker shuts down. */
static pid_t fork_server(void)
{
    struct bx_options options = { .job = job_name, .rank = 1, .world_size = 2 };
    struct bx_job *job = NULL;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid != 0)
        return pid;
    int rc = bx_job_create(&options, &job);
    if (rc == 0)
        rc = bx_register(job, "add", BX_INLINE, add, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0)
        rc = bx_job_serve(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    bx_job_destroy(job);
    _exit(rc == 0 ? 0 : 1);
}

HARNESS_HANDLER(calls_itself)
{
    OWN(msg) *more = bx_msg_create(0);
    int rc;

    bx_msg_put_i64(more, bx_read_i64(args));
    rc = bx_rpc_sync(bx_request_job(request), bx_rank(0), "add", more, NULL, NULL);
    return rc < 0 ? rc : bx_msg_put_i64(reply, 7);
}

/* A job of one worker from start to end. */
static void live_alone(void)
{
    struct bx_options options = { .job = job_name, .world_size = 1, .call_timeout_ns = 20000000000 };

    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader in;
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_assert_eq(bx_register(job, "add", BX_INLINE, add, NULL), 0);
    cr_assert_eq(bx_register(job, "calls_itself", BX_BLOCKING, calls_itself, NULL), 0);
    cr_assert_eq(bx_job_start(job), 0, "%s", bx_error_text());
    cr_expect_eq(bx_job_serve(job), 0, "no other worker is left");
    bx_msg_put_i64(args, 41);
    cr_assert_eq(bx_rpc_sync(job, "worker0", "add", args, NULL, &reply), 0, "%s", bx_error_text());
    in = bx_msg_reader(reply);
    cr_expect_eq(bx_read_i64(&in), 42);
    bx_msg_destroy(reply);
    cr_assert_eq(bx_rpc_sync(job, "worker0", "calls_itself", args, NULL, NULL), 0, "%s", bx_error_text());
    bx_msg_destroy(args);
    cr_assert_eq(bx_job_shutdown(job, 0), 0, "%s", bx_error_text());
    bx_job_destroy(job);
}

/* A job from start to end, with calls that carry bytes and a tensor, and a wait in which this thread sleeps. */
static void live(bool own_loop)
{
    struct bx_options options = { .job = job_name, .rank = 0, .world_size = 2, .own_loop = own_loop };
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_tensor *tensor = NULL;
    struct bx_future *never;
    struct bx_job *job = NULL;
    pid_t server = fork_server();

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_assert_eq(bx_job_start(job), 0, "%s", bx_error_text());
    cr_expect_gt(mappings_of(job_name, ""), 0);
    cr_expect_leq(job->run->cpus, (int)sysconf(_SC_NPROCESSORS_CONF));
    cr_expect_geq(job->run->cpus, 1);
    bx_msg_put_i64(args, 41);
    cr_assert_eq(bx_tensor_create(job, BX_U8, 1, &(int64_t){ 5000 }, &tensor), 0);
    bx_msg_put_tensor(args, tensor);
    bx_tensor_release(tensor);
    cr_assert_eq(bx_rpc_sync(job, "worker1", "add", args, NULL, &reply), 0, "%s", bx_error_text());
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
    never = bx_future_create(job);
    cr_expect_eq(bx_future_wait(never, 20000000), BX_E_TIMEOUT);
    bx_future_release(never);
    cr_assert_eq(bx_job_shutdown(job, 0), 0, "%s", bx_error_text());
    bx_job_destroy(job);
    expect_ended_well(server);
}

Test(job_life, leaves_no_descriptor_and_no_mapping)
{
    int before = open_descriptors();

    for (int i = 0; i < 4; i++) {
        live(i % 2 != 0);
        cr_expect_eq(open_descriptors(), before, "after life %d", i);
        cr_expect_eq(mappings_of(job_name, ""), 0, "after life %d", i);
    }
}

Test(job_life, a_worker_is_a_job_alone)
{
    int before = open_descriptors();

    live_alone();
    live_alone();
    cr_expect_eq(open_descriptors(), before);
    cr_expect_eq(mappings_of(job_name, ""), 0);
}

/* ---- The program's own system calls ------------------------------------------------------------------------------ */

#define MUCH (1 << 20)          /* more than a pipe holds */

static void *read_late(void *fd)
{
    static char bytes[MUCH];

    usleep(300000);
    for (ssize_t got = 0, more = 1; got < MUCH && more > 0; got += more)
        more = read(*(int *)fd, bytes, MUCH);
    return NULL;
}

static void expect_whole_writes(void)
{
    static const char bytes[MUCH];
    pthread_t reader;
    int ends[2];

    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    cr_assert_eq(pthread_create(&reader, NULL, read_late, &ends[0]), 0);
    cr_expect_eq(write(ends[1], bytes, MUCH), MUCH);
    close(ends[1]);
    pthread_join(reader, NULL);
    close(ends[0]);
}

/* The kernel interrupts a thread that has used a ring of io_uring some 10 ms after the ring was closed. */
Test(job_life, cuts_no_write_of_the_program_short)
{
    struct bx_options options = { .job = job_name, .world_size = 1 };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    expect_whole_writes();
    bx_job_destroy(job);
    live(false);
    expect_whole_writes();
}

/* ---- Clocks -------------------------------------------------------------------------------------- */

static void start_with_a_clock_off_by(int seconds, const char *part)
{
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 2 });
    start_wait_for_segment(".0");
    if (!clock_of_children(seconds)) {
        start_is_killed(0);
        bxi_object_reap(job_name, 0);
        bxi_bootstrap_sweep(job_name);
        cr_skip_test("no time namespace can be made here");
    }
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 2 });
    start_fails(0, -EINVAL, part);
    start_fails(1, -EINVAL, part);
    cr_expect_not_null(strstr(starts[0].text, "worker 'worker1' (rank 1, pid "), "%s", starts[0].text);
}

/* Its deadlines would have passed long ago, or be far away. */
Test(job_life, refuses_a_worker_whose_clock_is_ahead)
{
    start_with_a_clock_off_by(100000, " s behind that of worker 'worker1' (rank 1, pid ");
}

Test(job_life, refuses_a_worker_whose_clock_is_behind)
{
    start_with_a_clock_off_by(-100, "the clock (CLOCK_MONOTONIC) of worker 'worker0' (rank 0) is ");
}

/* Becomes a worker that forks a helper and is killed. The helper lives until gate[1] is closed. */
static _Noreturn void be_killed(int rank, const int gate[2])
{
    struct bx_options options = { .job = job_name, .rank = rank, .world_size = 2 };
    struct bx_job *job = NULL;
    int runs[2];
    char byte;

    close(gate[1]);
    if (pipe(runs) < 0 || bx_job_create(&options, &job) < 0 || bx_job_start(job) < 0)
        _exit(1);
    if (fork() == 0)
        _exit(write(runs[1], "", 1) == 1 && read(gate[0], &byte, 1) == 0 ? 0 : 1);
    if (read(runs[0], &byte, 1) == 1)       /* the helper has returned from fork, and closed what it does not keep */
        raise(SIGKILL);
    _exit(2);
}

/* ---- Without pidfds ------------------------------------------------------------------------------ */

static bxi_a32 lines_about_pidfds;

static void count_lines(int level, const char *line, void *context)
{
    (void)context, (void)level;
    bxi_add(&lines_about_pidfds, strstr(line, "pidfd_open is refused (Operation not permitted)") != NULL);
}

/* The process is rank 0. Rank 1, which has forked a helper, is killed while rank 0 waits. */
static void sees_a_death(bool refused_here, bool refused_there)
{
    struct bx_options options = { .job = job_name, .rank = 0, .world_size = 2 };
    struct bx_job *job = NULL;
    int gate[2], status = 0;
    pid_t pid;

    cr_assert_eq(pipe(gate), 0);
    bxi_store_relaxed(&lines_about_pidfds, 0);
    if ((pid = fork()) == 0 && refused_there && !refuse(SYS_pidfd_open, EPERM))
        _exit(1);
    if (pid == 0)
        be_killed(1, gate);
    cr_assert(!refused_here || refuse(SYS_pidfd_open, EPERM));
    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_assert_eq(bx_job_start(job), 0, "%s", bx_error_text());
    cr_expect_eq(bx_job_serve(job), BX_E_PEER_DEAD);
    cr_expect_not_null(strstr(bx_error_text(), "worker 'worker1' (rank 1"), "%s", bx_error_text());
    bx_job_destroy(job);
    cr_expect_eq(bxi_load_relaxed(&lines_about_pidfds), refused_here);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFSIGNALED(status), "status %#x", (unsigned)status);
    close(gate[1]);
    cr_expect_gt(wait(&status), 0);
    close(gate[0]);
}

Test(job_life, sees_a_death_where_pidfds_are_refused)
{
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    bx_set_log(count_lines, NULL);
    sees_a_death(false, false);
    sees_a_death(false, true);
    sees_a_death(true, false);
    sees_a_death(true, true);
}

/* ---- A forked child ----------------------------------------------------------------------------- */

/* Counts the descriptors that lead to segments, arenas and the lock file of the job. */
static int descriptors(void)
{
    DIR *stream = opendir("/proc/self/fd");
    char path[64], target[256];
    struct dirent *entry;
    int count = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        snprintf(path, sizeof(path), "/proc/self/fd/%.20s", entry->d_name);
        ssize_t bytes = readlink(path, target, sizeof(target) - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        count += strstr(target, job_name) != NULL;
    }
    if (stream != NULL)
        closedir(stream);
    return count;
}

/* So the memory is free when the job has ended, though the child goes on. */
Test(job_life, is_nothing_that_a_forked_child_keeps)
{
    struct bx_options options = { .job = job_name, .rank = 0, .world_size = 2 };
    struct bx_tensor *tensor = NULL;
    struct bx_job *job = NULL;
    pid_t server = fork_server(), child;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_assert_eq(bx_job_start(job), 0, "%s", bx_error_text());
    cr_assert_eq(bx_tensor_create(job, BX_U8, 1, &(int64_t){ 5000 }, &tensor), 0, "%s", bx_error_text());
    if ((child = fork()) == 0)
        _exit(descriptors());
    expect_ended_well(child);
    cr_expect_eq(descriptors(), 3);
    bx_tensor_release(tensor);
    cr_expect_eq(bx_job_shutdown(job, 0), 0, "%s", bx_error_text());
    bx_job_destroy(job);
    expect_ended_well(server);
}

Test(job_life, ends_with_its_workers_though_helpers_of_theirs_go_on)
{
    int gate[2], status = 0;
    pid_t pid[2];

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cr_assert_eq(pipe(gate), 0);
    for (int rank = 0; rank < 2; rank++)
        if ((pid[rank] = fork()) == 0)
            be_killed(rank, gate);
    for (int rank = 0; rank < 2; rank++) {
        cr_assert_eq(waitpid(pid[rank], &status, 0), pid[rank]);
        cr_expect(WIFSIGNALED(status), "status %#x", (unsigned)status);
    }
    for (int rank = 0; rank < 2; rank++)
        start_worker(rank, (struct bx_options){ .rank = rank, .world_size = 2 });
    for (int rank = 0; rank < 2; rank++)
        start_succeeds(rank);
    bxi_object_reap(job_name, 0);
    cr_expect_eq(segments_of(""), 0);
    close(gate[1]);
    for (int helper = 0; helper < 2; helper++)
        cr_expect_gt(wait(&status), 0);
}
