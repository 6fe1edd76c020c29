/* SPDX-License-Identifier: MIT */
/*
 * A worker of a job across hosts that does little. For tests/e2e/net*.sh; the environment, the output and the exit
 * status are those of prog_net.
 *
 *     prog_net_meet meet [MS]     starts within MS, calls each other worker once, and leaves
 *     prog_net_meet jobs COUNT    the same so many times, in one job after the other
 *     prog_net_meet two           is in two jobs at once, BX_JOB and BX_JOB-b, which begin one after the other
 *     prog_net_meet again         rank 0 sends rank 1 many messages that do not fit a frame, in places that are used
 *                                 again and again
 *     prog_net_meet first         nobody has called anybody: rank 0 sends rank 3 a large message, and floods rank 1
 *                                 with one-way calls; rank 3 registers a function, which rank 2 finds
 */
#include "prog_net.h"

#include <fcntl.h>
#include <sys/socket.h>

#define AGAIN 30000         /* messages */
#define FLIGHT 64

static void send_again(void)
{
    static unsigned char data[FLIGHT][20000];
    struct bx_future *answers[FLIGHT];

    for (int round = 0; round < AGAIN / FLIGHT && rank == 0 && failures == 0; round++) {
        for (int i = 0; i < FLIGHT; i++) {
            memset(data[i], 1 + (round + i) % 255, sizeof data[i]);
            answers[i] = send_bytes(1, "mirror", data[i], 16385 + (size_t)(round * 7 + i) % 3000);
        }
        for (int i = 0; i < FLIGHT; i++)
            check_answer(1, answers[i], data[i], 16385 + (size_t)(round * 7 + i) % 3000);
    }
}

static bool start_within(uint64_t timeout_ns)
{
    const struct bx_options options = { .start_timeout_ns = timeout_ns };
    int rc = bx_job_create(&options, &job);

    starts_quietly = true;
    return start(rc, FUNCTIONS(HARNESS_INLINE("mirror", echo)));
}

/* Of this process, by TCP. */
static int connections(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage peer;
        socklen_t bytes = sizeof peer;

        count += getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && peer.ss_family != AF_UNIX;
    }
    return count;
}

/* The job's first call, which is when its way to the other host is made. */
static void send_large(void)
{
    enum { BYTES = 5000000 };
    unsigned char *data = malloc(BYTES);
    const int before = connections();

    EXPECT(counter("net_bytes") == 0, "something was sent at the start");
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)(i * 7 + i / 251);
    check_answer(3, send_bytes(3, "mirror", data, BYTES), data, BYTES);
    EXPECT(connections() > before, "%d connections before the first call", before);
    free(data);
}

static void flood(void)
{
    for (int i = 0; i < AGAIN && rank == 0; i++) {
        struct bx_msg *args = bx_msg_create(0);

        EXPECT(bx_msg_put(args, "ii", (int64_t)i, (int64_t)1) == 0 &&
               bx_rpc_oneway(job, bx_rank(1), "add", args, NULL) == 0, "%s", bx_error_text());
        bx_msg_destroy(args);
    }
    while (rank == 1 && __atomic_load_n(&adds[0], __ATOMIC_RELAXED) < AGAIN)
        nap_ms(1);
}

static void find_late(void)
{
    char path[512];
    uint64_t until_ns;
    int64_t sum = 0;
    int rc = 0;

    snprintf(path, sizeof path, "%s/late", getenv("BX_TEST_DIR"));
    while (rank == 3 && counter("net_bytes_received") < 5000000)
        nap_ms(1);                      /* rank 0 counts its connections before */
    nap_ms(rank < 2 ? 1500 : 200);      /* their calls would wake it */
    if (rank == 3) {
        EXPECT(bx_register(job, "late", BX_INLINE, add, NULL) == 0, "%s", bx_error_text());
        close(open(path, O_CREAT | O_CLOEXEC, 0600));
    }
    while (rank == 2 && access(path, F_OK) < 0)
        nap_ms(1);
    until_ns = now_ns() + 1000 * MS;
    while (rank == 2 && (rc = bx_call(job, bx_rank(3), "late", "ii>i", 1, 2, &sum)) == BX_E_NO_FUNCTION &&
           now_ns() < until_ns)
        nap_ms(1);
    EXPECT(rc == 0, "%s", bx_error_text());
    while (rank == 3 && __atomic_load_n(&adds[2], __ATOMIC_RELAXED) == 0 && now_ns() < until_ns)
        nap_ms(1);
}

/* The first ends while the second goes on. */
static int be_in_two(void)
{
    struct bx_job *first = NULL;
    int64_t sum;
    char name[64];

    for (int i = 0; i < 2; i++) {
        first = job;
        if (!start_within(0))
            return 3;
        barrier();                      /* handlers use the variable job */
        snprintf(name, sizeof name, "%s-b", getenv("BX_JOB"));
        setenv("BX_JOB", name, 1);
    }
    for (int to = 0; to < size; to++) {
        call_add(to, rank, to);
        EXPECT(bx_call(first, bx_rank(to), "add", "ii>i", 1, 2, &sum) == 0, "%s", bx_error_text());
    }
    EXPECT(bx_job_shutdown(first, 0) == 0, "%s", bx_error_text());
    bx_job_destroy(first);
    for (int to = 0; to < size; to++)
        call_add(to, rank, to);
    barrier();
    return end();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const bool meets = strcmp(mode, "meet") == 0 && argc <= 3, jobs = strcmp(mode, "jobs") == 0 && argc == 3;
    const bool again = strcmp(mode, "again") == 0 && argc == 2, two = strcmp(mode, "two") == 0 && argc == 2;
    const bool first = strcmp(mode, "first") == 0 && argc == 2;
    int rc = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!meets && !jobs && !again && !two && !first) {
        fprintf(stderr, "usage: prog_net_meet meet [MS] | jobs COUNT | two | again | first\n");
        return 2;
    }
    if (two)
        return be_in_two();
    for (int i = jobs ? atoi(argv[2]) : 1; i > 0 && rc == 0; i--) {
        if (!start_within(meets && argc == 3 ? (uint64_t)atoi(argv[2]) * MS : 0))
            return 3;
        if (again)
            send_again();
        if (first) {
            if (rank == 0)
                send_large();
            flood();
            find_late();
        }
        for (int to = 0; to < size; to++)
            call_add(to, rank, to);
        barrier();
        rc = end();
    }
    return rc;
}
