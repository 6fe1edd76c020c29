/* SPDX-License-Identifier: MIT */
/*
 * Workers that die: what the others see, and that they go on.
 *
 * Each test is a world of processes (harness.h). Another worker kills one by SIGKILL at a point that a gate marks, so
 * no test waits for the clock. harness_run also checks that the survivors end well, that no wake-up was rescued and
 * that nothing is left behind.
 */
#include "tests/harness/harness.h"
#include "tests/job/starts.h"

#include "job/job.h"

#include <sched.h>
#include <sys/prctl.h>

#define MANY 100

enum gate { HELD = 0, DEATH_SEEN, SERVED, GO, CUT, ENDED, SENT };
enum value { PID = 0, DEATHS = 16, DEAD_RANK };     /* PID + rank */

static void on_death(struct bx_job *job, int rank, void *context)
{
    (void)job, (void)context;
    harness_add(DEATHS, 1);
    harness_store(DEAD_RANK, (uint64_t)rank);
    harness_post(DEATH_SEEN);
}

HARNESS_ASYNC_HANDLER(hold)
{
    harness_post(HELD);
    return harness_never(request, args, reply, context);
}

HARNESS_HANDLER(echo_until_ten)
{
    int64_t value = bx_read_i64(args);

    if (value == 10) {
        harness_await(SENT, 1);
        raise(SIGKILL);
    }
    return bx_msg_put_i64(reply, value);
}

static int setup(struct bx_job *job)
{
    bx_on_death(job, bx_job_rank(job) == 0 ? on_death : NULL, NULL);
    return HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo),
                            HARNESS_INLINE("echo_until_ten", echo_until_ten), HARNESS_ASYNC("hold", hold));
}

static void expect_dead(struct bx_future *future, const char *name)
{
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_future_error_text(future), name);
    bx_future_release(future);
}

/* ---- The callee ----------------------------------------------------------------------------------- */

static void kills_its_callee(struct bx_job *job)
{
    struct bx_future *future[MANY];

    for (int i = 0; i < MANY; i++)
        future[i] = harness_start(job, "worker1", "hold", harness_msg_i64(i), 0);
    harness_await(HELD, MANY);
    harness_signal(1, SIGKILL);
    for (int i = 0; i < MANY; i++)
        expect_dead(future[i], "worker 'worker1' (rank 1");
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "echo", NULL, NULL), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "echo", NULL, NULL, future), BX_E_PEER_DEAD);
    HARNESS_CHECK(!bx_worker_is_alive(job, 1) && bx_worker_is_alive(job, 2));
    HARNESS_EQ(harness_counter(job, "calls_peer_dead"), MANY);
    HARNESS_EQ(harness_counter(job, "peers_dead"), 1);
    harness_await(DEATH_SEEN, 1);
    HARNESS_EQ(harness_load(DEATHS), 1);
    HARNESS_EQ(harness_load(DEAD_RANK), 1);
}

HARNESS_WORLD(death, fails_every_call_in_flight_with_the_name_of_the_worker, 30, .size = 3, .setup = setup,
              .body = { kills_its_callee }, .dies = 1u << 1);

/* The same without a background thread, and with another way to sleep. */
HARNESS_WORLD(death, is_seen_by_a_worker_with_own_loop, 30, .size = 3, .setup = setup, .options = { .own_loop = true },
              .body = { kills_its_callee }, .dies = 1u << 1);

HARNESS_WORLD(death, is_seen_in_epoll, 30, .size = 3, .setup = setup,
              .options = { .wait = BX_WAIT_EPOLL, .no_spin = true }, .body = { kills_its_callee }, .dies = 1u << 1);

static void collects_what_was_published(struct bx_job *job)
{
    struct bx_future *future[20];

    for (int i = 0; i < 20; i++)
        future[i] = harness_start(job, "worker1", "echo_until_ten", harness_msg_i64(i), 0);
    harness_post(SENT);
    for (int i = 0; i < 10; i++) {
        HARNESS_EQ(bx_future_wait(future[i], BX_FOREVER), 0);
        struct bx_reader reader = bx_msg_reader(bx_future_value(future[i]));
        HARNESS_EQ(bx_read_i64(&reader), i);
        bx_future_release(future[i]);
    }
    for (int i = 10; i < 20; i++)
        expect_dead(future[i], "'worker1'");
}

HARNESS_WORLD(death, keeps_the_replies_that_were_published_before_it, 30, .size = 2, .setup = setup,
              .body = { collects_what_was_published }, .dies = 1u << 1);

HARNESS_WORLD(death, keeps_the_replies_that_were_published_before_it_asleep, 30, .size = 2, .setup = setup,
              .options = { .no_spin = true }, .body = { collects_what_was_published }, .dies = 1u << 1);

/* ---- Stopped first -------------------------------------------------------------------------------- */

static void one_call_too_many(struct bx_job *job, int index)
{
    (void)index;
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL), BX_E_PEER_DEAD);
}

static void fills_the_ring_oneway(struct bx_job *job, int index)
{
    static const char payload[8000];
    OWN(msg) *args = bx_msg_create(sizeof(payload));
    int rc;

    (void)index;
    bx_msg_put_bytes(args, payload, sizeof(payload));
    do
        rc = bx_rpc_oneway(job, "worker1", "echo", args, &(struct bx_call_options){ .no_wait = true });
    while (rc == 0);
    HARNESS_EQ(rc, -EAGAIN);
    harness_post(GO);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "echo", args, NULL), BX_E_PEER_DEAD);
}

static void starts_waiting(struct bx_job *job, int index)
{
    if (index == 0)
        one_call_too_many(job, index);
    else if (index == 1)
        fills_the_ring_oneway(job, index);
    else {
        harness_await(GO, 1);
        /* The ring is full and all slots are taken. Whether the threads wait already makes no difference. */
        harness_signal(1, SIGKILL);
    }
}

HARNESS_TEST(death, of_a_stopped_worker_fails_calls_that_wait_for_room, 30, .size = 2, .setup = setup, .dies = 1u << 1)
{
    struct bx_future **future = calloc(BXI_CALLS_MAX, sizeof(struct bx_future *));

    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    harness_stop_worker(1);
    for (int i = 0; i < BXI_CALLS_MAX; i++)
        future[i] = harness_start(job, "worker1", "echo", harness_msg_i64(i), 0);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "echo", NULL, &(struct bx_call_options){ .no_wait = true },
                            &(struct bx_future *){ NULL }), -EAGAIN);
    harness_threads(job, 3, starts_waiting);
    for (int i = 0; i < BXI_CALLS_MAX; i++)
        expect_dead(future[i], "'worker1'");
    free(future);
}

/* ---- Several deaths ------------------------------------------------------------------------------- */

#define SERVERS 3
#define SERVES 20000

/* Waits, without a sleep, until all threads have come as often. */
static void meet(void)
{
    static bxi_a32 came;
    uint32_t all = bxi_add(&came, 1) / SERVERS * SERVERS + SERVERS;

    while (bxi_load_seq_cst(&came) < all)
        sched_yield();
}

/* Of threads that serve at once each death is reported to one. */
static void serves_with_others(struct bx_job *job, int index)
{
    static bxi_a32 deaths;

    for (int i = 0; i < SERVES; i++) {
        if (index == 0)
            job->boot->deaths_reported = 0;
        meet();
        if (bx_job_serve(job) == BX_E_PEER_DEAD)
            bxi_add(&deaths, 1);
        meet();
    }
    HARNESS_EQ(bxi_load_seq_cst(&deaths), 2 * SERVES);
}

HARNESS_TEST(death, of_all_others_leaves_the_last_one_working, 30, .size = 3, .setup = setup, .dies = 1u << 1 | 1u << 2)
{
    struct bx_future *future[2] = { harness_start(job, "worker1", "hold", harness_msg_i64(1), 0),
                                    harness_start(job, "worker2", "hold", harness_msg_i64(2), 0) };
    struct bx_future *all = bx_future_all(job, future, 2);

    harness_await(HELD, 2);
    harness_signal(1, SIGKILL);
    harness_signal(2, SIGKILL);
    harness_end(all, BX_E_PEER_DEAD);
    expect_dead(future[0], "'worker1'");
    expect_dead(future[1], "'worker2'");
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_job_serve(job), 0);       /* no other worker is left */
    harness_threads(job, SERVERS, serves_with_others);
}

/* ---- Truncation ----------------------------------------------------------------------------------- */

/* Opens another worker's segment by its name, writable. No worker does that. */
static int open_segment(struct bx_job *job, int rank)
{
    char name[BXI_OBJECT_NAME_BYTES];

    bxi_object_name(name, (uint32_t)geteuid(), harness_job_name(), job->instance, rank);
    int fd = shm_open(name, O_RDWR, 0);
    HARNESS_CHECK(fd >= 0);
    return fd;
}

static void truncate_segment(struct bx_job *job, int rank, off_t bytes)
{
    int fd = open_segment(job, rank);

    HARNESS_EQ(ftruncate(fd, bytes), 0);
    close(fd);
}

/* Either the call or its future fails, depending on which thread touches the segment first. */
static void expect_corrupt(struct bx_job *job)
{
    struct bx_future *future = NULL;
    int rc = bx_rpc_async(job, "worker1", "echo", NULL, NULL, &future);

    HARNESS_EQ(rc == 0 ? bx_future_wait(future, BX_FOREVER) : rc, BX_E_CORRUPT);
    HARNESS_HAS(rc == 0 ? bx_future_error_text(future) : bx_error_text(), "'worker1'");
    bx_future_release(future);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL), BX_E_CORRUPT);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    harness_await(DEATH_SEEN, 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
}

/* Its pages behind `bytes` are gone, before its first answer or after that. */
static void cuts_it_off(struct bx_job *job, off_t bytes, bool answers)
{
    if (answers)
        HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    truncate_segment(job, 1, bytes);
    expect_corrupt(job);
    harness_signal(1, SIGKILL);
}

#define TRUNCATED(name, bytes, answers) \
    HARNESS_TEST(death, name##_cuts_its_owner_off, 30, .size = 3, .setup = setup, .dies = 1u << 1, \
                 .body = { NULL, NULL, harness_serve }) \
    { \
        cuts_it_off(job, bytes, answers); \
    }
TRUNCATED(a_truncated_segment, 0, true)
TRUNCATED(a_segment_without_rings, BXI_CONTROL_BYTES, true)
TRUNCATED(a_segment_truncated_before_the_first_call, 0, false)

/* The owner's pages are private zeroes now, so no other worker sees its frames. It must neither crash nor hang. */
static void calls_from_nowhere(struct bx_job *job)
{
    const struct bx_call_options quick = { .timeout_ns = 50 * HARNESS_MS };
    struct bx_future *future = NULL;
    int rc;

    harness_await(CUT, 1);
    rc = bx_rpc_sync(job, "worker2", "echo", NULL, &quick, NULL);
    HARNESS_CHECK(rc == BX_E_TIMEOUT || rc == BX_E_CORRUPT);
    rc = bx_rpc_async(job, "worker0", "echo", NULL, &quick, &future);
    if (rc == 0)
        rc = bx_future_wait(future, BX_FOREVER);
    HARNESS_CHECK(rc == BX_E_TIMEOUT || rc == BX_E_CORRUPT);
    bx_future_release(future);
    harness_post(ENDED);
    raise(SIGKILL);
}

HARNESS_TEST(death, the_owner_of_a_truncated_segment_gets_errors, 30, .size = 3, .setup = setup, .dies = 1u << 1,
             .body = { NULL, calls_from_nowhere, harness_serve })
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    truncate_segment(job, 1, 0);
    harness_post(CUT);
    expect_corrupt(job);
    harness_await(ENDED, 1);
}

/* ---- What is left behind -------------------------------------------------------------------------- */

/* Of its segment and of its arena, either or both. */
static bool name_is_there(struct bx_job *job, int rank)
{
    char name[BXI_OBJECT_NAME_BYTES], arena[BXI_OBJECT_NAME_BYTES];

    bxi_object_name(name, (uint32_t)geteuid(), harness_job_name(), job->instance, rank);
    bxi_object_arena_name(arena, (uint32_t)geteuid(), harness_job_name(), job->instance, rank);
    return is_in_shm(name) || is_in_shm(arena);
}

/* A survivor removes the names, before the launcher does. */
HARNESS_TEST(death, is_cleaned_up_by_a_survivor, 30, .size = 2, .setup = setup, .dies = 1u << 1)
{
    HARNESS_CHECK(name_is_there(job, 1));
    harness_signal(1, SIGKILL);
    harness_await(DEATH_SEEN, 1);
    HARNESS_CHECK(!name_is_there(job, 1));
    HARNESS_CHECK(name_is_there(job, 0));
}

/* The hook of bx_on_death has run when the worker was cut off. Its later death only removes its name. */
HARNESS_TEST(death, of_a_worker_that_was_cut_off_is_cleaned_up_too, 30, .size = 3, .setup = setup, .dies = 1u << 1,
             .body = { NULL, NULL, harness_serve })
{
    truncate_segment(job, 1, 0);
    expect_corrupt(job);
    HARNESS_CHECK(name_is_there(job, 1));
    harness_signal(1, SIGKILL);
    while (name_is_there(job, 1))
        HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    HARNESS_EQ(harness_load(DEATHS), 1);
    HARNESS_EQ(harness_counter(job, "peers_dead"), 0);
}

/* This worker's loop sees both at once. */
HARNESS_TEST(death, of_a_suspected_worker_is_cleaned_up_too, 30, .size = 2, .setup = setup, .dies = 1u << 1,
             .options = { .own_loop = true })
{
    struct pollfd process = { job->rpc->peers[1]->pidfd, POLLIN, 0 };

    bxi_peer_suspect(job, job->rpc->peers[1], "of a test");
    harness_signal(1, SIGKILL);
    HARNESS_EQ(poll(&process, 1, -1), 1);
    while (bx_progress(job) > 0)
        ;
    HARNESS_CHECK(!name_is_there(job, 1));
}

/* ---- While starting, and of the launcher ------------------------------------------------------------- */

TestSuite(death_in_start, .init = starts_set_up, .fini = place_tear_down, .timeout = 30);

/* Three of four workers wait for the fourth. */
static void kill_one_of_those_that_wait(int rank)
{
    for (int i = 0; i < 3; i++)
        start_worker(i, (struct bx_options){ .rank = i, .world_size = 4 });
    start_wait_for_segment(".0");
    start_wait_for_segment(".1");
    start_wait_for_segment(".2");
    start_is_killed(rank);
}

Test(death_in_start, of_a_worker_is_reported_to_the_others)
{
    kill_one_of_those_that_wait(2);
    start_fails(0, BX_E_PEER_DEAD, "'worker2' (rank 2");
    start_fails(1, BX_E_PEER_DEAD, "'worker2' (rank 2");
}

Test(death_in_start, of_rank_0_is_reported_to_the_others)
{
    kill_one_of_those_that_wait(0);
    start_fails(1, BX_E_PEER_DEAD, "'worker0' (rank 0");
    start_fails(2, BX_E_PEER_DEAD, "'worker0' (rank 0");
    cr_expect_eq(segments_of(""), 0);
}

static int serves_for_ever(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;

    (void)context;
    harness_store(PID + options->rank, (uint64_t)getpid());
    HARNESS_EQ(bx_job_create(options, &job), 0);
    HARNESS_EQ(setup(job), 0);
    HARNESS_EQ(bx_job_start(job), 0);
    harness_post(SERVED);
    while (bx_job_serve(job) == BX_E_PEER_DEAD)
        ;
    return 1;
}

/* The worker may return from bx_job_serve before the signal arrives, but not because of it. */
Test(death_in_start, of_the_launcher_ends_a_stopped_worker_when_it_continues)
{
    int status = 0;

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);

    pid_t launcher = fork();
    if (launcher == 0)
        _exit(bx_spawn(&(struct bx_spawn_options){ .job = job_name, .world_size = 2 }, serves_for_ever, NULL,
                       NULL) == 0);
    harness_await(SERVED, 2);
    harness_stop((pid_t)harness_load(PID + 1));
    kill(launcher, SIGKILL);
    cr_assert_eq(waitpid(launcher, &status, 0), launcher);
    cr_assert_eq(waitpid((pid_t)harness_load(PID), &status, 0), (pid_t)harness_load(PID));
    HARNESS_EQ(harness_kill((pid_t)harness_load(PID + 1), SIGCONT), 0);
    cr_assert_eq(waitpid((pid_t)harness_load(PID + 1), &status, 0), (pid_t)harness_load(PID + 1));
    cr_expect_eq(segments_of(""), 0);
    bxi_bootstrap_sweep(job_name);
}
