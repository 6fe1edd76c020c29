/* SPDX-License-Identifier: MIT */
/*
 * Workers that are started by hand, one process each, for the tests of starts that fail (harness.h takes a
 * start that fails for a broken test). What each saw lies in memory shared with the test.
 */
#ifndef TESTS_STARTS_H
#define TESTS_STARTS_H

#include "boxcar.h"
#include "rpc/rpc.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define STARTS_MAX 40

struct start {
    pid_t pid;
    int rc;                         /* of bx_job_create, else of bx_job_start, else of the shutdown */
    char text[BXI_TEXT_BYTES];
};

static struct start *starts;
static char starts_directory[64];
static char starts_job[BXI_NAME_BYTES];

static inline void starts_set_up(void)
{
    starts = mmap(NULL, STARTS_MAX * sizeof(*starts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(starts, MAP_FAILED);
    snprintf(starts_directory, sizeof(starts_directory), "/tmp/bxtest-XXXXXX");
    cr_assert_not_null(mkdtemp(starts_directory));
    setenv("XDG_RUNTIME_DIR", starts_directory, 1);
    snprintf(starts_job, sizeof(starts_job), "start-%ld", (long)getpid());
}

static inline int starts_files(const char *path, const char *prefix, const char *suffix)
{
    DIR *stream = opendir(path);
    struct dirent *entry;
    int count = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;
        size_t bytes = strlen(name), tail = strlen(suffix);

        count += name[0] != '.' && strncmp(name, prefix, strlen(prefix)) == 0 && bytes >= tail &&
                 strcmp(name + bytes - tail, suffix) == 0;
    }
    if (stream != NULL)
        closedir(stream);
    return count;
}

/* Segments of the job whose name ends in this rank, ".2"; "" for all. */
static inline int starts_segments(const char *rank)
{
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "boxcar.%u.%s.", (unsigned)geteuid(), starts_job);
    return starts_files("/dev/shm", prefix, rank);
}

/* Criterion counts no assertion that fails here. It warns of an end like this, which run_unit.sh counts. */
static inline void starts_tear_down(void)
{
    char command[128], path[96];
    int segments = starts_segments(""), files;

    snprintf(path, sizeof(path), "%s/boxcar", starts_directory);
    files = starts_files(path, "", "");
    snprintf(command, sizeof(command), "rm -rf '%s'", starts_directory);
    if (system(command) == 0 && segments == 0 && files == 0)
        return;
    dprintf(STDERR_FILENO, "left behind: %d in /dev/shm, %d in %s\n", segments, files, path);
    abort();
}

/* In a child: a worker's whole life, and what came of it. */
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

/* Forks worker number `index`; job and start_timeout_ns are filled in where they are not given. */
static inline void start_worker(int index, struct bx_options options)
{
    struct start *start = &starts[index];

    if (options.job == NULL)
        options.job = starts_job;
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

/* Waits for its end; it must not have crashed. */
static inline void start_ends(int index)
{
    int status = 0;

    cr_assert_eq(waitpid(starts[index].pid, &status, 0), starts[index].pid);
    cr_expect_eq(status, 0, "worker process %d: status %#x", index, (unsigned)status);
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

    kill(starts[index].pid, SIGKILL);
    cr_assert_eq(waitpid(starts[index].pid, &status, 0), starts[index].pid);
}

/* Waits until the segment of a rank is there: its worker has met rank 0 and waits for the others. */
static inline void start_wait_for_segment(const char *rank)
{
    while (starts_segments(rank) == 0)
        sched_yield();
}

#endif
