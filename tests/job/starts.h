/* SPDX-License-Identifier: MIT */
/*
 * Workers that a test forks itself, one process each, for starts that fail: harness.h fails the test if a start fails.
 * Each worker stores its result in memory shared with the test.
 */
#ifndef TESTS_STARTS_H
#define TESTS_STARTS_H

#include "place.h"
#include "tests/harness/crash.h"

#include "job/job.h"

#define STARTS_MAX 40

struct start {
    pid_t pid;
    int rc;                         /* the first error of create, start and shutdown; 0 if none */
    char text[BXI_TEXT_BYTES];
};

static struct start *starts;

static inline void starts_set_up(void)
{
    starts = mmap(NULL, STARTS_MAX * sizeof(*starts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(starts, MAP_FAILED);
    place_set_up();
}

/* In a child: runs a worker from create to destroy and stores its result. */
static inline void start_here(struct start *start, const struct bx_options *options)
{
    struct bx_job *job = NULL;

    start->rc = bx_job_create(options, &job);
    if (start->rc == 0)
        start->rc = bx_job_start(job);
    if (start->rc == 0)
        start->rc = bx_job_shutdown(job, 0);
    if (start->rc < 0)
        snprintf(start->text, sizeof(start->text), "%s", bx_error_text());
    bx_job_destroy(job);
}

/* Forks worker number `index`. Fills in job and start_timeout_ns if the options leave them out. */
static inline void start_worker(int index, struct bx_options options)
{
    struct start *start = &starts[index];

    if (options.job == NULL)
        options.job = job_name;
    if (options.start_timeout_ns == 0)
        options.start_timeout_ns = UINT64_C(20000000000);

    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        start_here(start, &options);
        _exit(0);
    }
    start->pid = pid;
}

/* Waits for the worker's end and checks that it did not crash. */
static inline void start_ends(int index)
{
    int status = 0;

    cr_assert_eq(waitpid(starts[index].pid, &status, 0), starts[index].pid);
    starts[index].pid = 0;
    cr_expect_eq(status, 0, "worker process %d: %s", index, crash_end_text(status));
}

static inline void start_fails(int index, int code, const char *part)
{
    start_ends(index);
    cr_expect_eq(starts[index].rc, code, "process %d: %s, not %s: %s", index, bx_error_name(starts[index].rc),
                 bx_error_name(code), starts[index].text);
    cr_expect_not_null(strstr(starts[index].text, part), "process %d: '%s' does not say '%s'", index,
                       starts[index].text, part);
}

static inline void start_succeeds(int index)
{
    start_ends(index);
    cr_expect_eq(starts[index].rc, 0, "process %d: %s: %s", index, bx_error_name(starts[index].rc),
                 starts[index].text);
}

static inline void start_is_killed(int index)
{
    int status = 0;

    cr_assert_gt(starts[index].pid, 0);
    cr_assert_eq(kill(starts[index].pid, SIGKILL), 0);
    cr_assert_eq(waitpid(starts[index].pid, &status, 0), starts[index].pid);
    starts[index].pid = 0;
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "worker process %d: %s", index,
              crash_end_text(status));
}

/* Waits until a rank has a segment. Its worker has then met rank 0 and waits for the others. */
static inline void start_wait_for_segment(const char *rank)
{
    HARNESS_WAIT_WHILE(segments_of(rank) == 0);
}

#endif
