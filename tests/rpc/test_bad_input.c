/* SPDX-License-Identifier: MIT */
/*
 * Errors of users and machines that show only with several processes or with the system's help. Each has an error code
 * of its own with a sentence; nothing hangs and nothing is left behind.
 *
 * Some tests change mounts, limits, filters or the user of the whole process. Criterion runs each test in its own
 * process, so they do it before they start a worker and never undo it. Tests that need root (a mount, another user)
 * are skipped without it.
 */
#include "tests/harness/harness.h"
#include "tests/job/starts.h"

#include "job/job.h"

#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define NOBODY 65534
#define SHORT_START UINT64_C(200000000)

/* ---- Starts that cannot succeed -------------------------------------------------------------------- */

TestSuite(bad_start, .init = starts_set_up, .fini = place_tear_down, .timeout = 30);

Test(bad_start, with_a_name_used_twice_fails_for_all)
{
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 3 });
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 3, .name = "twin" });
    start_worker(2, (struct bx_options){ .rank = 2, .world_size = 3, .name = "twin" });
    for (int i = 0; i < 3; i++)
        start_fails(i, BX_E_NAME_TAKEN, "'twin'");
}

Test(bad_start, without_a_rank_names_the_rank)
{
    for (int i = 0; i < 3; i++)
        if (i != 2)
            start_worker(i, (struct bx_options){ .rank = i, .world_size = 3, .start_timeout_ns = SHORT_START });
    start_fails(0, BX_E_RANK_MISSING, "rank 2 ");
    start_fails(1, BX_E_RANK_MISSING, "rank 2 ");
}

Test(bad_start, without_rank_0_says_so)
{
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 2, .start_timeout_ns = SHORT_START });
    start_fails(1, BX_E_RANK_MISSING, "rank 0");
}

Test(bad_start, with_a_rank_used_twice_refuses_the_second)
{
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 3 });
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 3, .name = "first" });
    start_wait_for_segment(".1");
    start_worker(2, (struct bx_options){ .rank = 1, .world_size = 3, .name = "second" });
    start_fails(2, BX_E_RANK_TAKEN, "'first'");
    start_worker(3, (struct bx_options){ .rank = 2, .world_size = 3 });
    start_succeeds(0);
    start_succeeds(1);
    start_succeeds(3);
}

Test(bad_start, with_two_world_sizes_fails_for_both)
{
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 3 });
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 2 });
    start_fails(0, BX_E_WORLD_SIZE, "worker1");
    start_fails(1, BX_E_WORLD_SIZE, "2 workers");
}

Test(bad_start, with_a_world_of_500_is_refused)
{
    static const int sizes[] = { 500, -2, 129 };
    struct bx_spawn_report report;
    char part[32];

    for (int i = 0; i < 3; i++) {
        start_worker(i, (struct bx_options){ .rank = 0, .world_size = sizes[i] });
        snprintf(part, sizeof(part), "not %d", sizes[i]);
        start_fails(i, BX_E_WORLD_SIZE, part);
        cr_expect_eq(bx_spawn(&(struct bx_spawn_options){ .world_size = sizes[i] },
                              (bx_worker_fn)(void (*)(void))abort, NULL, &report), BX_E_WORLD_SIZE);
    }
}

Test(bad_start, of_a_running_job_is_refused)
{
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 2 });
    start_wait_for_segment(".0");
    start_worker(1, (struct bx_options){ .rank = 0, .world_size = 2 });
    start_fails(1, BX_E_JOB_RUNNING, job_name);
    start_worker(2, (struct bx_options){ .rank = 1, .world_size = 2 });
    start_succeeds(0);
    start_succeeds(2);
}

/* ---- The environment -------------------------------------------------------------------------------- */

static void expect_create(int code, const char *part)
{
    struct bx_job *job = NULL;

    cr_expect_eq(bx_job_create(&(struct bx_options){ 0 }, &job), code, "%s: %s", part, bx_error_text());
    cr_expect_not_null(strstr(bx_error_text(), part), "'%s' does not say '%s'", bx_error_text(), part);
    cr_expect_null(job);
}

Test(bad_environment, is_an_error_with_the_name_of_the_variable, .timeout = 10)
{
    unsetenv("BX_JOB");
    unsetenv("BX_RANK");
    unsetenv("BX_WORLD_SIZE");
    expect_create(-EINVAL, "BX_WORLD_SIZE");
    setenv("BX_WORLD_SIZE", "two", 1);
    expect_create(-EINVAL, "BX_WORLD_SIZE='two'");
    setenv("BX_WORLD_SIZE", "2", 1);
    expect_create(-EINVAL, "BX_RANK");
    setenv("BX_RANK", "0x1", 1);
    expect_create(-EINVAL, "BX_RANK='0x1'");
    setenv("BX_RANK", "1", 1);
    expect_create(-EINVAL, "BX_JOB");
    setenv("BX_JOB", "a/b", 1);
    expect_create(-EINVAL, "'a/b'");
    setenv("BX_JOB", "ab", 1);
    setenv("BX_RANK", "2", 1);
    expect_create(-EINVAL, "rank 2");
    setenv("BX_RANK", "1", 1);
    setenv("BX_WORLD_SIZE", "500", 1);
    expect_create(BX_E_WORLD_SIZE, "500");
    setenv("BX_WORLD_SIZE", "2", 1);
    setenv("BX_NAME", "no good", 1);
    expect_create(-EINVAL, "'no good'");
    unsetenv("BX_NAME");
    setenv("BX_WAIT", "kqueue", 1);
    expect_create(-EINVAL, "BX_WAIT='kqueue'");
}

/* ---- Descriptors ------------------------------------------------------------------------------------- */

static void limit_descriptors(rlim_t most)
{
    struct rlimit limit = { most, most };

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

Test(bad_start, with_few_descriptors_is_refused_at_once)
{
    limit_descriptors(69);
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 2 });
    start_fails(0, BX_E_DESCRIPTORS, "needs 70 open files, the hard limit is 69");
}

Test(bad_start, raises_the_soft_limit)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 32;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 24; i++)
        start_worker(i, (struct bx_options){ .rank = i, .world_size = 24 });
    for (int i = 0; i < 24; i++)
        start_succeeds(i);
}

/* Rank 0 needs more descriptors than the others while the job starts. Workers that have met it end with its error;
 * workers that come after its end find no rank 0. */
Test(bad_start, that_runs_out_of_descriptors_says_so)
{
    for (int i = 1; i < 32; i++)
        start_worker(i, (struct bx_options){ .rank = i, .world_size = 32, .start_timeout_ns = 50 * SHORT_START });
    limit_descriptors(3 * 32 + 64);
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 32, .start_timeout_ns = 50 * SHORT_START });
    start_fails(0, BX_E_DESCRIPTORS, "open files");
    for (int i = 1; i < 32; i++) {
        start_ends(i);
        cr_expect(starts[i].rc == BX_E_DESCRIPTORS || starts[i].rc == BX_E_RANK_MISSING, "process %d: %s", i,
                  starts[i].text);
    }
}

/* A rank 0 that gives up may leave a worker's message unread. The kernel then reports ECONNRESET before it delivers the
 * packet with the sentence. */
Test(bad_start, that_ends_is_explained_after_a_reset)
{
    static struct bxi_boot_packet packet;
    int fd[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    cr_assert_eq(send(fd[0], "unread", 6, 0), 6);
    bx_fail(BX_E_DESCRIPTORS, "the sentence");
    bxi_boot_send_fail(fd[1], BX_E_DESCRIPTORS);
    close(fd[1]);
    bx_fail(-EIO, "another");
    cr_expect_eq(bxi_boot_receive(fd[0], &packet, 0), 1);
    cr_expect_eq(bxi_boot_packet_failure(&packet), BX_E_DESCRIPTORS);
    cr_expect_str_eq(bx_error_text(), "the sentence");
    cr_expect_eq(bxi_boot_receive(fd[0], &packet, 0), 0);
    close(fd[0]);
}

/* ---- The socket directory ----------------------------------------------------------------------------- */

/* Becomes an ordinary user for the rest of the process. */
static void become_nobody(void)
{
    if (geteuid() != 0)
        return;
    cr_assert_eq(setgroups(0, NULL), 0);
    cr_assert_eq(setgid(NOBODY), 0);
    cr_assert_eq(setuid(NOBODY), 0);
}

Test(bad_directory, that_may_not_be_written_to_is_an_error_with_its_name, .init = place_set_up, .fini = place_tear_down,
     .timeout = 10)
{
    struct bx_job *job = NULL;

    cr_assert_eq(chmod(directory, 0555), 0);

    pid_t child = fork();
    if (child == 0) {
        become_nobody();
        int rc = bx_job_create(&(struct bx_options){ .job = "none", .rank = 0, .world_size = 2 }, &job);
        if (rc == 0)
            rc = bx_job_start(job);
        bool is_named = strstr(bx_error_text(), directory) != NULL;
        bx_job_destroy(job);
        _exit(rc == BX_E_SOCKET_DIR && is_named ? 0 : 1);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0);
}

/* ---- A stopped consumer -------------------------------------------------------------------------------- */

enum gate { OPEN_GATE = 0 };
enum value { ONEWAYS = 8 };

HARNESS_HANDLER(count)
{
    harness_add(ONEWAYS, 1);
    return 0;
}

HARNESS_HANDLER(wait_at_the_gate)
{
    harness_await(OPEN_GATE, 1);
    return count(request, args, reply, context);
}

static int setup(struct bx_job *job)
{
    if (bx_register(job, "echo", BX_INLINE, harness_echo, NULL) < 0 ||
        bx_register(job, "count", BX_INLINE, count, NULL) < 0)
        return -1;
    return bx_register(job, "gate", BX_BLOCKING, wait_at_the_gate, NULL);
}

static struct bx_msg *large(void)
{
    static const char payload[8000];
    struct bx_msg *msg = bx_msg_create(sizeof(payload));

    HARNESS_EQ(bx_msg_put_bytes(msg, payload, sizeof(payload)), 0);
    return msg;
}

/* Fills the ring with calls that are not answered: the last ones wait in private memory. */
HARNESS_TEST(bad_peer, that_is_stopped_misses_deadlines_but_loses_no_request, 30, .size = 3, .setup = setup)
{
    const struct bx_call_options quick = { .timeout_ns = 50 * HARNESS_MS };
    const struct bx_call_options patient = { .timeout_ns = BX_FOREVER };
    struct bx_future *future[64], *late;
    struct bx_msg *args = large();

    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_stop_worker(1);
    for (int i = 0; i < 64; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "count", args, i % 2 ? &quick : &patient, &future[i]), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "count", args, &quick, NULL), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "'worker1' did not answer 'count' within 0.050 s");
    for (int i = 1; i < 64; i += 2)
        HARNESS_EQ(bx_future_wait(future[i], BX_FOREVER), BX_E_TIMEOUT);
    HARNESS_HAS(bx_future_error_text(future[63]), "'worker1'");
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "count", args, &(struct bx_call_options){ .no_wait = true }), -EAGAIN);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "count", args, &quick), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    HARNESS_CHECK(harness_counter(job, "queued_frames") > 0);

    harness_signal(1, SIGCONT);
    for (int i = 0; i < 64; i += 2)
        HARNESS_EQ(bx_future_wait(future[i], BX_FOREVER), 0);
    for (int i = 0; i < 64; i++)
        bx_future_release(future[i]);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "count", args, NULL, &late), 0);
    harness_end(late, 0);
    bx_msg_destroy(args);
    /* The callee did not run the requests whose deadline had passed; each other one ran once. */
    HARNESS_EQ(harness_load(ONEWAYS), 32 + 1);
    HARNESS_EQ(harness_counter(job, "late_replies"), 33);
}

/* The shutdown names the stopped worker, which finds that the others have left when it goes on. */
HARNESS_TEST(bad_peer, that_is_stopped_is_named_by_the_shutdown, 30, .size = 2, .setup = setup)
{
    harness_leaves_by_itself();
    harness_check_rescued(job);
    harness_stop_worker(1);
    HARNESS_EQ(bx_job_shutdown(job, 50 * HARNESS_MS), BX_E_TIMEOUT);
    HARNESS_HAS(bx_error_text(), "'worker1' (rank 1");
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL), BX_E_SHUTDOWN);
    harness_signal(1, SIGCONT);
    bx_job_destroy(job);
}

HARNESS_TEST(bad_peer, that_was_stopped_runs_every_one_way_call_afterwards, 30, .size = 2, .setup = setup)
{
    struct bx_msg *args = large();
    uint64_t sent = 0;
    int rc;

    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_stop_worker(1);
    while ((rc = bx_rpc_oneway(job, "worker1", "count", args, &(struct bx_call_options){ .no_wait = true })) == 0)
        sent++;
    HARNESS_EQ(rc, -EAGAIN);
    HARNESS_HAS(bx_error_text(), "ring is full");
    harness_signal(1, SIGCONT);
    for (int i = 0; i < 100; i++, sent++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "count", args, NULL), 0);
    /* This call is behind all of them. */
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 2), 2);
    HARNESS_EQ(harness_load(ONEWAYS), sent);
    bx_msg_destroy(args);
}

HARNESS_TEST(bad_peer, that_sent_many_one_way_calls_is_not_cut_off, 30, .size = 2, .setup = setup)
{
    struct bx_future *future = NULL;

    for (int i = 0; i < 2 * BXI_CALLS_MAX; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", "gate", NULL, NULL), 0);
    future = harness_async(job, "worker1", "gate");
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_post(OPEN_GATE);
    harness_end(future, 0);
}

/* ---- A full /dev/shm ------------------------------------------------------------------------------------ */

#define CONTROL_KIB ((unsigned)(BXI_CONTROL_BYTES / 1024))
#define RING_KIB (BXI_RING_BYTES / 1024 + 4)        /* rings are staggered, so one may touch a page more */

static void remount_shm(unsigned kib)
{
    char size[32];

    snprintf(size, sizeof(size), "size=%uk", kib);
    HARNESS_EQ(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, size), 0);
}

Test(bad_start, in_a_full_dev_shm_says_so)
{
    harness_mount_shm(CONTROL_KIB + 4);
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 2 });
    start_worker(1, (struct bx_options){ .rank = 1, .world_size = 2 });
    start_fails(0, BX_E_NO_SPACE, "/dev/shm has");
    start_fails(1, BX_E_NO_SPACE, "/dev/shm has");
}

static void finds_no_room(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(5);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", args, NULL, NULL), BX_E_NO_SPACE);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "echo", args, NULL), BX_E_NO_SPACE);
    remount_shm(8192);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
    bx_msg_destroy(args);
}

Test(bad_shm, without_room_for_a_ring_fails_the_call, .timeout = 30)
{
    harness_mount_shm(2 * CONTROL_KIB + RING_KIB / 2);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { finds_no_room } });
}

static void is_refused(struct bx_job *job)
{
    struct bx_future *future[23];
    struct bx_msg *args = harness_msg_i64(5);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", args, NULL, NULL), BX_E_REFUSED);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "echo", args, NULL, &future[i]), 0);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "echo", 20, NULL, NULL, future + 3), 0);
    for (int i = 0; i < 23; i++)
        harness_end(future[i], BX_E_REFUSED);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "count", NULL, NULL), 0);
    remount_shm(8192);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
    HARNESS_EQ(harness_load(ONEWAYS), 1);
    bx_msg_destroy(args);
}

Test(bad_shm, without_room_for_the_reply_is_refused_by_the_callee, .timeout = 30)
{
    harness_mount_shm(2 * CONTROL_KIB + RING_KIB + RING_KIB / 2);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { is_refused } });
}

/* The callee counts the reference though it refuses the call: its maker gives it back. */
static void makes_and_is_refused(struct bx_job *job)
{
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_remote(job, "worker1", "echo", NULL, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_REFUSED);
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    bx_rref_release(rref);
    remount_shm(8192);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
}

Test(bad_shm, without_room_for_the_reply_a_reference_is_not_made, .timeout = 30)
{
    harness_mount_shm(2 * CONTROL_KIB + RING_KIB + RING_KIB / 2);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { makes_and_is_refused } });
}

/* ---- io_uring ------------------------------------------------------------------------------------------- */

static void refuse_io_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = 4, .filter = code };

    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        cr_skip_test("this kernel takes no seccomp filter");
}

static void sleeps_in_epoll(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(1);

    for (int i = 0; i < 20; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "echo", i), i);
    HARNESS_EQ(harness_counter(job, "waits_uring"), 0);
    HARNESS_CHECK(harness_counter(job, "waits_epoll") > 0);
    bx_msg_destroy(args);
}

Test(bad_uring, refused_by_the_kernel_is_replaced_by_epoll, .timeout = 30)
{
    unsetenv("BX_WAIT");
    refuse_io_uring();
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup, .body = { sleeps_in_epoll }, .options = { .no_spin = true } });
}

Test(bad_uring, refused_but_asked_for_is_an_error, .timeout = 30)
{
    struct bx_job *job = NULL;
    struct bx_options options = { .job = "none", .rank = 0, .world_size = 2, .wait = BX_WAIT_URING };

    refuse_io_uring();
    cr_expect_eq(bx_job_create(&options, &job), BX_E_URING);
    cr_expect_not_null(strstr(bx_error_text(), "io_uring"));
    options.wait = BX_WAIT_AUTO;
    setenv("BX_WAIT", "uring", 1);
    cr_expect_eq(bx_job_create(&options, &job), BX_E_URING);
    setenv("BX_WAIT", "epoll", 1);
    cr_expect_eq(bx_job_create(&options, &job), 0);
    bx_job_destroy(job);
}

Test(bad_uring, excluded_by_the_environment_is_not_used, .timeout = 30)
{
    setenv("BX_WAIT", "epoll", 1);
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup, .body = { sleeps_in_epoll }, .options = { .no_spin = true } });
}

/* ---- Many workers, several jobs --------------------------------------------------------------------------- */

static void calls_its_neighbour(struct bx_job *job)
{
    int next = (bx_job_rank(job) + 1) % bx_job_world_size(job);

    for (int i = 0; i < 10; i++)
        HARNESS_EQ(harness_call_i64(job, bx_worker_name(job, next), "echo", i), i);
}

static int neighbour_worker(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;

    (void)context;
    HARNESS_EQ(bx_job_create(options, &job), 0);
    HARNESS_EQ(bx_register(job, "echo", BX_INLINE, harness_echo, NULL), 0);
    HARNESS_EQ(bx_job_start(job), 0);
    calls_its_neighbour(job);
    harness_check_rescued(job);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
    return 0;
}

Test(many, sixty_four_workers_run_as_an_ordinary_user, .init = place_set_up, .fini = place_tear_down, .timeout = 60)
{
    const struct bx_spawn_options options = { .job = harness_job_name(), .world_size = 64 };
    struct bx_spawn_report report;

    if (geteuid() == 0)
        cr_assert_eq(chown(directory, NOBODY, NOBODY), 0);
    become_nobody();
    cr_expect_eq(bx_spawn(&options, neighbour_worker, NULL, &report), 0, "%s", bx_error_text());
    cr_expect_eq(harness_left_behind(), 0);
}

/* Both jobs have the same worker names. */
Test(many, two_jobs_run_at_once, .timeout = 60)
{
    pid_t launcher[2];
    int status = 0;

    for (int i = 0; i < 2; i++) {
        launcher[i] = fork();
        cr_assert_geq(launcher[i], 0);
        if (launcher[i] == 0)
            _exit(bx_spawn(&(struct bx_spawn_options){ .world_size = 4 }, neighbour_worker, NULL, NULL) == 0
                      ? 0 : 1);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(waitpid(launcher[i], &status, 0), launcher[i]);
        cr_expect_eq(status, 0);
    }
}

/* ---- One process in two jobs ------------------------------------------------------------------------------- */

static int serve_two(const struct bx_options *options)
{
    struct bx_job *job = NULL;

    HARNESS_EQ(bx_job_create(options, &job), 0);
    HARNESS_EQ(bx_register(job, "echo", BX_INLINE, harness_echo, NULL), 0);
    HARNESS_EQ(bx_job_start(job), 0);
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(bx_job_shutdown(job, 0), 0);
    bx_job_destroy(job);
    return 0;
}

Test(many, one_process_takes_part_in_two_jobs, .timeout = 30)
{
    char name[2][BX_NAME_MAX + 1];
    struct bx_options options[2] = { { .job = name[0], .rank = 1, .world_size = 2 },
                                     { .job = name[1], .rank = 1, .world_size = 2 } };
    struct bx_job *job[2] = { NULL, NULL };
    pid_t child[2];
    int status = 0;

    starts_set_up();
    for (int i = 0; i < 2; i++) {
        harness_name(name[i], sizeof(name[i]), i == 0 ? "a" : "b");
        child[i] = fork();
        cr_assert_geq(child[i], 0);
        if (child[i] == 0)
            _exit(serve_two(&options[i]));
    }
    for (int i = 0; i < 2; i++) {
        options[i].rank = 0;
        cr_assert_eq(bx_job_create(&options[i], &job[i]), 0);
        cr_assert_eq(bx_job_start(job[i]), 0, "%s", bx_error_text());
    }
    for (int i = 0; i < 200; i++)
        cr_assert_eq(harness_call_i64(job[i % 2], "worker1", "echo", i), i);
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(bx_job_shutdown(job[i], 0), 0);
        bx_job_destroy(job[i]);
        cr_assert_eq(waitpid(child[i], &status, 0), child[i]);
        cr_expect_eq(status, 0);
    }
    place_tear_down();
}

/* ---- Fork after init ----------------------------------------------------------------------------------------- */

HARNESS_TEST(bad_fork, after_the_job_was_created_is_an_error_in_the_child, 30, .size = 2, .setup = setup)
{
    int status = 0;
    struct bx_future *future;
    pid_t child = fork();

    if (child == 0) {
        int rc = bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL);

        if (rc == BX_E_FORKED)
            rc = bx_rpc_async(job, "worker1", "echo", NULL, NULL, &future);
        if (rc == BX_E_FORKED)
            rc = bx_job_serve(job);
        if (rc == BX_E_FORKED)
            rc = bx_job_shutdown(job, 0);
        bx_job_destroy(job);
        _exit(rc == BX_E_FORKED && strstr(bx_error_text(), "fork") != NULL ? 0 : 1);
    }
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
}
