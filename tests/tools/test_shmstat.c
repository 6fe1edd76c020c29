/* SPDX-License-Identifier: MIT */
/*
 * shmstat beside running jobs: it shows exactly the loans that there were; it shows what a worker does; `check` finds
 * nothing while all workers send. test_shmstat_check.c has segments that violate invariants, test_shmstat_rings.c
 * frames and bytes.
 */
#include "tests/harness/loans.h"
#include "stat_run.h"

#include "rpc/rpc.h"

#define CALLS 7
#define CHECKS 40
#define IN_FLIGHT 32

enum gate { DONE = 0, READY };

static struct stat_run show(void)
{
    struct stat_run run = stat_run("show %s --json", harness_job_name());

    HARNESS_EQ(run.status, 0);
    HARNESS_CHECK(run.json != NULL);
    return run;
}

/* As STAT_RUN_IS, in a worker. */
#define EXPECT(...) \
    do { \
        const char *differs = stat_run_differs(__VA_ARGS__); \
\
        if (differs != NULL) \
            harness_failed(__FILE__, __LINE__, "%s", differs); \
    } while (0)

/* ---- Frames and bytes -------------------------------------------------------------------------------- */

static const struct json *ring(const struct stat_run *run, int from, int to)
{
    return stat_run_row(stat_run_worker(run, from), "rings", "to", to);
}

/* A reply may arrive before its sender has counted it. */
static struct stat_run show_when_counted(int from, int to, double frames)
{
    struct stat_run run = show();

    while (ring(&run, from, to) == NULL || json_number(json_get(ring(&run, from, to), "frames")) < frames)
        run = show();
    return run;
}

static void expect_counters(struct bx_job *job, const struct json *worker)
{
    /* Counters that do not change while this thread waits for shmstat. */
    static const char *const names[] = { "calls_sent", "calls_completed", "calls_timed_out", "oneways_sent",
                                         "replies_sent", "requests_inline", "requests_blocking", "requests_async",
                                         "requests_batched", "tensors_sent", "tensor_bytes_sent", "tensors_copied",
                                         "leases_granted", "leases_returned", "rescued", "pool_threads" };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (stat_run_counter(worker, names[i]) != (double)harness_counter(job, names[i]))
            harness_failed(__FILE__, __LINE__, "%s is shown as %.0f", names[i], stat_run_counter(worker, names[i]));
}

HARNESS_TEST(shmstat, shows_handlers_by_kind_and_the_counters_that_the_worker_sees, 30, .size = 2, .setup = loans_setup)
{
    HARNESS_EQ(harness_call(job, "worker0", "verify", loans_msg(job, 1, 1, 10)), 1);
    HARNESS_EQ(harness_call(job, "worker0", "verify_blocking", loans_msg(job, 1, 2, 10)), 2);
    HARNESS_EQ(harness_call(job, "worker0", "verify_async", loans_msg(job, 1, 3, 10)), 3);
    loans_come_back(job, -1);

    struct stat_run run = show();
    const struct json *worker = stat_run_worker(&run, 0), *functions = json_get(worker, "functions");

    expect_counters(job, worker);
    EXPECT(worker, "{'name': 'worker0', 'pid': %d, 'state': 'running',"
           " 'counters': {'requests_inline': 1, 'requests_blocking': 1, 'requests_async': 1}}", (int)getpid());
    EXPECT(json_at(functions, 0), "{'name': 'verify', 'kind': 'inline'}");
    EXPECT(json_at(functions, 1), "{'name': 'verify_blocking', 'kind': 'blocking'}");
    /* A call to itself uses a ring too, in private memory. */
    HARNESS_CHECK(ring(&run, 0, 0) != NULL);
}

/* ---- Loans ------------------------------------------------------------------------------------------- */

HARNESS_TEST(shmstat, shows_what_is_on_loan_and_to_whom, 30, .size = 2, .setup = loans_setup)
{
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, 1, 2, 5000)), 2);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(2)), 4);

    struct bx_loans loans = loans_of(job, 1);
    struct bx_arena_info arena = { 0 };
    struct stat_run run = show();
    const struct json *lent = stat_run_row(stat_run_worker(&run, 0), "loans", "peer", 1);

    HARNESS_EQ(bx_job_arena(job, &arena), 0);
    HARNESS_EQ(loans.leases, 2);
    EXPECT(lent, "{'leases': 2, 'bytes': %llu, 'granted': 3, 'returned': 1, 'taken_back': 0}",
           (unsigned long long)loans.bytes);
    HARNESS_CHECK(json_number(json_get(lent, "oldest_seconds")) >= 0);
    EXPECT(stat_run_row(stat_run_worker(&run, 1), "loans", "peer", 0),
           "{'borrowed': 2, 'borrowed_total': 3, 'leases': 0, 'oldest_seconds': null}");
    EXPECT(stat_run_worker(&run, 0),
           "{'arena': {'bytes': %llu, 'used_bytes': %llu, 'committed_bytes': %llu, 'shm_bytes': %llu}}",
           (unsigned long long)arena.size_bytes, (unsigned long long)arena.used_bytes,
           (unsigned long long)arena.committed_bytes, (unsigned long long)arena.committed_bytes);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(4)), 0);
    loans_come_back(job, -1);
    run = show();
    EXPECT(stat_run_row(stat_run_worker(&run, 0), "loans", "peer", 1), "{'leases': 0, 'bytes': 0, 'returned': 3}");
}

/* ---- States ------------------------------------------------------------------------------------------ */

static void await_activity(int rank, const char *activity)
{
    for (bool is_so = false; !is_so;) {
        struct stat_run run = show();

        is_so = strcmp(json_text(json_get(stat_run_worker(&run, rank), "activity")), activity) == 0;
    }
}

HARNESS_TEST(shmstat, tells_io_uring_from_epoll, 30, .size = 2, .setup = loans_setup,
             .options = { .wait = BX_WAIT_EPOLL })
{
    harness_call_i64(job, "worker1", "echo", 1);
    await_activity(1, "asleep");
    harness_call_i64(job, "worker1", "echo", 2);

    struct stat_run run = show();
    const struct json *worker = stat_run_worker(&run, 1);

    EXPECT(worker, "{'waits_by': 'epoll', 'counters': {'waits_uring': 0}}");
    HARNESS_CHECK(stat_run_counter(worker, "waits_epoll") >= 1);
}

/* ---- Prometheus -------------------------------------------------------------------------------------- */

static bool is_of_histogram(const char *name, const char *announced)
{
    size_t length = strlen("boxcar_call_seconds");

    return strcmp(announced, "boxcar_call_seconds") == 0 && strncmp(name, announced, length) == 0 &&
           (strcmp(name + length, "_bucket") == 0 || strcmp(name + length, "_sum") == 0 ||
            strcmp(name + length, "_count") == 0);
}

/* Each sample follows the # TYPE line of its metric. */
static void expect_exposition(const char *text)
{
    char announced[64] = "", name[64];

    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        HARNESS_CHECK(strchr(line, '\n') != NULL);
        if (sscanf(line, "# TYPE %63s", name) == 1) {
            strcpy(announced, name);
        } else if (line[0] != '#') {
            double value;

            HARNESS_EQ(sscanf(line, "%63[a-z_]{%*[^}]} %lf\n", name, &value), 2);
            HARNESS_CHECK(strcmp(name, announced) == 0 || is_of_histogram(name, announced));
        }
    }
}

HARNESS_TEST(shmstat, prints_the_text_exposition_format, 30, .size = 2, .setup = loans_setup)
{
    char line[160];

    for (int i = 0; i < CALLS; i++)
        harness_call_i64(job, "worker1", "echo", i);
    show_when_counted(1, 0, CALLS);
    struct stat_run run = stat_run("show %s --prometheus", harness_job_name());

    HARNESS_EQ(run.status, 0);
    expect_exposition(run.text);
    snprintf(line, sizeof(line), "\nboxcar_ring_frames_total{job=\"%s\",worker=\"worker0\",rank=\"0\",peer=\"1\"} %d\n",
             harness_job_name(), CALLS);
    HARNESS_HAS(run.text, line);
    snprintf(line, sizeof(line), "\nboxcar_requests_inline_total{job=\"%s\",worker=\"worker1\",rank=\"1\"} %d\n",
             harness_job_name(), CALLS);
    HARNESS_HAS(run.text, line);
    snprintf(line, sizeof(line), "\nboxcar_worker_up{job=\"%s\",worker=\"worker1\",rank=\"1\"} 1\n",
             harness_job_name());
    HARNESS_HAS(run.text, line);
    HARNESS_HAS(run.text, "# HELP boxcar_rescued_total ");
    HARNESS_HAS(run.text, "# TYPE boxcar_rescued_total counter\n");
}

/* ---- check under load -------------------------------------------------------------------------------- */

static struct bx_future *start_one(struct bx_job *job, int to, uint64_t round)
{
    /* Frames of all lengths, so that the padding at the wrap differs; some with a loan. Handlers of all kinds, so that
     * rows of served requests come and go. */
    static const char *const functions[] = { "echo", "verify_blocking", "verify_async" };
    struct bx_msg *args = round % 4 == 0 ? loans_msg(job, (int64_t)round, 1, 1000) : harness_msg_i64((int64_t)round);
    static const unsigned char bytes[8192];

    HARNESS_EQ(bx_msg_put_bytes(args, bytes, round % 4 == 0 ? 0 : round * 56 % sizeof(bytes)), 0);
    return loans_start(job, bx_worker_name(job, to), functions[round % 3], args);
}

static void sends_until_done(struct bx_job *job)
{
    struct bx_future *futures[IN_FLIGHT] = { NULL };
    uint64_t round = 0;

    harness_post(READY);
    for (; harness_gate(DONE) == 0; round++) {
        int to = (bx_job_rank(job) + 1 + (int)(round % 2)) % bx_job_world_size(job);
        struct bx_future **slot = &futures[round % IN_FLIGHT];

        if (*slot != NULL)
            HARNESS_EQ(bx_future_wait(*slot, BX_FOREVER), 0);
        bx_future_release(*slot);
        *slot = start_one(job, to, round);
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        if (futures[i] != NULL)
            HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), 0);
        bx_future_release(futures[i]);
    }
    loans_come_back(job, -1);
}

HARNESS_TEST(shmstat, check_finds_nothing_in_a_job_under_load, 60, .size = 4, .setup = loans_setup,
             .body = { NULL, sends_until_done, sends_until_done, sends_until_done }, .env = { "BX_HIST=all" })
{
    double records = 0;

    (void)job;
    harness_await(READY, 3);
    for (int i = 0; i < CHECKS; i++) {
        struct stat_run run = stat_run("check %s --json", harness_job_name());

        if (run.status != 0)
            harness_failed(__FILE__, __LINE__, "status %d: %s", run.status, run.text);
        EXPECT(stat_run_job(&run), "{'violations_found': 0, 'workers_checked': 4}");
        records += json_number(json_get(stat_run_job(&run), "records_checked"));
    }
    HARNESS_CHECK(records > 0);
    harness_post(DONE);
}
