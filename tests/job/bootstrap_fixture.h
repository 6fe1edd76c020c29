/* SPDX-License-Identifier: MIT */
/*
 * What test_bootstrap.c and test_bootstrap_place.c share: a socket directory for each test, jobs made by
 * hand, and workers that are threads.
 */
#ifndef TESTS_BOOTSTRAP_FIXTURE_H
#define TESTS_BOOTSTRAP_FIXTURE_H

#include "job/job.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LONG_NS UINT64_C(60000000000)       /* never reached unless something is broken */
#define SHORT_NS UINT64_C(100000000)        /* where it is to be reached */

static char directory[64];
static char job_name[BXI_NAME_BYTES];

static inline void set_up(void)
{
    snprintf(directory, sizeof(directory), "/tmp/bxtest-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", directory, 1);
    snprintf(job_name, sizeof(job_name), "boot-%ld", (long)getpid());
}

static inline int files_in(const char *path, const char *prefix)
{
    DIR *stream = opendir(path);
    struct dirent *entry;
    int count = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL)
        count += entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (stream != NULL)
        closedir(stream);
    return count;
}

static inline int segments_left(void)
{
    char prefix[64];

    snprintf(prefix, sizeof(prefix), "boxcar.%u.%s.", (unsigned)geteuid(), job_name);
    return files_in("/dev/shm", prefix);
}

static inline int socket_files(void)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/boxcar", directory);
    return files_in(path, "");
}

/* Criterion counts no assertion that fails here. It warns of an end like this, which run_unit.sh counts. */
static inline void tear_down(void)
{
    char command[128];
    int segments = segments_left(), sockets = socket_files();

    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    if (system(command) == 0 && segments == 0 && sockets == 0)
        return;
    dprintf(STDERR_FILENO, "left behind: %d in /dev/shm, %d in the socket directory\n", segments, sockets);
    abort();
}

/* ---- Jobs made by hand, workers that are threads ------------------------------------------------ */

static inline struct bx_job *make_job(const char *name, int rank, int world_size)
{
    struct bxi_whole_job *whole = aligned_alloc(BXI_LINE, sizeof(*whole));
    struct bx_job *job = &whole->job;

    memset(whole, 0, sizeof(*whole));
    bxi_job_link(whole);
    job->rank = rank;
    job->world_size = world_size;
    snprintf(job->job_name, sizeof(job->job_name), "%s", job_name);
    if (name != NULL)
        snprintf(job->name, sizeof(job->name), "%s", name);
    else
        snprintf(job->name, sizeof(job->name), "worker%d", rank);
    job->run->bell_fd[0] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    job->run->bell_fd[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    job->boot->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    job->run->loop_fd = job->run->timer_fd = job->boot->lock_fd = -1;
    job->rpc->peers = calloc((size_t)world_size, sizeof(*job->rpc->peers));
    job->options.arena_bytes = 4 << 20;
    return job;
}

static inline void free_job(struct bx_job *job)
{
    bxi_bootstrap_release(job);
    bxi_boot_undo(job);
    close(job->run->bell_fd[0]);
    close(job->run->bell_fd[1]);
    close(job->boot->pidfd);
    free(job->rpc->peers);
    free(job);
}

struct worker {
    struct bx_job *job;
    uint64_t timeout_ns;
    sem_t *ended;
    pthread_t thread;
    int rc;
    char text[BXI_TEXT_BYTES];
};

static inline void *worker_main(void *context)
{
    struct worker *worker = context;

    worker->rc = bxi_bootstrap(worker->job, bxi_now_ns() + worker->timeout_ns);
    if (worker->rc < 0)
        snprintf(worker->text, sizeof(worker->text), "%s", bx_error_text());
    if (worker->ended != NULL)
        sem_post(worker->ended);
    return NULL;
}

static inline void begin(struct worker *worker, const char *name, int rank, int world_size)
{
    worker->job = make_job(name, rank, world_size);
    if (worker->timeout_ns == 0)
        worker->timeout_ns = LONG_NS;
    cr_assert_eq(pthread_create(&worker->thread, NULL, worker_main, worker), 0);
}

static inline int end(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
    return worker->rc;
}

static inline void expect_failure(struct worker *worker, int code, const char *part)
{
    cr_expect_eq(end(worker), code, "%s: %s", bx_error_name(worker->rc), worker->text);
    cr_expect_not_null(strstr(worker->text, part), "'%s' does not say '%s'", worker->text, part);
    cr_expect_null(worker->job->segment.control);
    cr_expect_eq(worker->job->boot->lock_fd, -1);
    cr_expect_eq(worker->job->instance, 0);
    for (int i = 0; i < worker->job->world_size; i++)
        cr_expect_null(worker->job->rpc->peers[i].view.control);
    free_job(worker->job);
}

static inline void expect_success(struct worker *worker)
{
    cr_expect_eq(end(worker), 0, "%s: %s", bx_error_name(worker->rc), worker->text);
}

static inline int open_fds(void)
{
    return files_in("/proc/self/fd", "");
}

#endif
