/* SPDX-License-Identifier: MIT */
/*
 * Errors of users and machines that show only with several processes or with the system's help: too few descriptors, a
 * worker that is stopped, a full /dev/shm, one process in two jobs. What options, names, ranks and the place of a job
 * may be: tests/job.
 *
 * Some tests change mounts or limits of the whole process. Criterion runs each test in its own process, so they do it
 * before they start a worker and never undo it. Tests that need a mount are skipped without the right to one.
 */
#include "tests/harness/harness.h"
#include "tests/job/starts.h"

#include "job/job.h"

#include <sys/mount.h>
#include <sys/socket.h>

#define SHORT_START UINT64_C(200000000)

TestSuite(bad_start, .init = starts_set_up, .fini = place_tear_down, .timeout = 30);

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

/* ---- /dev/shm ------------------------------------------------------------------------------------------ */

Test(bad_start, without_an_inode_left_says_so)
{
    harness_mount_shm(65536);
    cr_assert_eq(mount("tmpfs", "/dev/shm", "tmpfs", MS_REMOUNT, "nr_inodes=2"), 0);
    start_worker(0, (struct bx_options){ .rank = 0, .world_size = 2 });
    start_fails(0, BX_E_NO_SPACE, "/dev/shm has no inode left (all 2 are in use)");
}

/* ---- A stopped consumer -------------------------------------------------------------------------------- */

enum value { ONEWAYS = 8 };

HARNESS_HANDLER(count)
{
    harness_add(ONEWAYS, 1);
    return 0;
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo), HARNESS_INLINE("count", count));
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
    HARNESS_CHECK(bx_worker_is_alive(job, 1));

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

/* ---- A full /dev/shm ------------------------------------------------------------------------------------ */

HARNESS_TEST(bad_shm, without_room_for_a_ring_fails_the_call, 30, .size = 2, .setup = setup,
             .shm_kib = HARNESS_HALF_RINGS(1))
{
    OWN(msg) *args = harness_msg_i64(5);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", args, NULL, NULL), BX_E_NO_SPACE);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "echo", args, NULL), BX_E_NO_SPACE);
    harness_resize_shm(8 << 20);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
}

HARNESS_TEST(bad_shm, without_room_for_the_reply_is_refused_by_the_callee, 30, .size = 2, .setup = setup,
             .shm_kib = HARNESS_HALF_RINGS(3))
{
    struct bx_future *future[23];
    OWN(msg) *args = harness_msg_i64(5);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", args, NULL, NULL), BX_E_REFUSED);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_async(job, "worker1", "echo", args, NULL, &future[i]), 0);
    HARNESS_EQ(bx_rpc_many(job, "worker1", "echo", 20, NULL, NULL, future + 3), 0);
    harness_end_all(future, 23, BX_E_REFUSED);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "count", NULL, NULL), 0);
    harness_resize_shm(8 << 20);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
    HARNESS_EQ(harness_load(ONEWAYS), 1);
}

/* The callee counts the reference though it refuses the call: its maker gives it back. */
HARNESS_TEST(bad_shm, without_room_for_the_reply_a_reference_is_not_made, 30, .size = 2, .setup = setup,
             .shm_kib = HARNESS_HALF_RINGS(3))
{
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_remote(job, "worker1", "echo", NULL, NULL, &rref), 0);
    HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), BX_E_REFUSED);
    HARNESS_HAS(bx_error_text(), "/dev/shm");
    bx_rref_release(rref);
    harness_resize_shm(8 << 20);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 5), 5);
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
