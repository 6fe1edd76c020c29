/* SPDX-License-Identifier: MIT */
/*
 * A job's options: what the program gave, what the environment adds (BX_JOB, BX_RANK, BX_WORLD_SIZE, BX_NAME, BX_WAIT,
 * BX_ARENA_BYTES, BX_POOL_THREADS, BX_REJOIN, BX_HIST, BX_LOG, BX_CHECKED), and the defaults. Called by the thread in
 * bx_job_create.
 */
#include "job.h"

#include "base/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define START_TIMEOUT_NS (UINT64_C(30) * 1000000000)
#define CALL_TIMEOUT_NS (UINT64_C(60) * 1000000000)
#define SPIN_NS 100000
#define ARENA_BYTES (UINT64_C(64) << 30)
#define ARENA_BYTES_MAX (UINT64_C(1) << 40)     /* 128 of them fit an address space of 47 bits */

bool bxi_has_launcher(void)
{
    const char *root = secure_getenv("BX_ROOT");

    return (root != NULL && root[0] != '\0') || bxi_launcher_job() != NULL;
}

/* others: what launchers of several hosts set in its place. */
static int must_have_number(const char *variable, const char *const others[2], int *value)
{
    uint64_t number = 0;
    int rc = bxi_number_from_environment(variable, 0, 1000000, &number);

    for (int i = 0; i < 2 && rc == 0 && bxi_has_launcher(); i++)
        rc = bxi_number_from_environment(others[i], 0, 1000000, &number);
    *value = (int)number;
    return rc != 0 ? rc : bx_fail(-EINVAL, "%s is not set; bx_job_create was given no world_size, so BX_JOB, BX_RANK "
                                           "and BX_WORLD_SIZE must be", variable);
}

/* Of a launcher's job without BX_JOB: PMIx has a name for it, and each BX_ROOT a port of its own. */
static const char *name_of_root(void)
{
    static char name[BXI_NAME_BYTES];
    const char *root = secure_getenv("BX_ROOT"), *port = root == NULL ? NULL : strrchr(root, ':');

    if (bxi_launcher_job() != NULL)
        return bxi_launcher_job();
    snprintf(name, sizeof name, "hosts-%.16s", port == NULL ? "" : port + 1);
    return name;
}

int bxi_options_of_launcher(struct bx_options *options)
{
    static const char *const sizes[] = { "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS" };
    static const char *const ranks[] = { "OMPI_COMM_WORLD_RANK", "SLURM_PROCID" };
    int rc = must_have_number("BX_WORLD_SIZE", sizes, &options->world_size);

    if (rc < 0 || (rc = must_have_number("BX_RANK", ranks, &options->rank)) < 0)
        return rc;
    options->job = getenv("BX_JOB");
    if ((options->job == NULL || options->job[0] == '\0') && bxi_has_launcher())
        options->job = name_of_root();
    if (options->job == NULL || options->job[0] == '\0')
        return bx_fail(-EINVAL, "BX_JOB is not set; give all workers of a job the same name");
    options->name = getenv("BX_NAME");
    return 0;
}

static int arena_from_environment(struct bx_options *options)
{
    int rc = options->arena_bytes != 0 ? 0 : bxi_number_from_environment("BX_ARENA_BYTES", 1, ARENA_BYTES_MAX,
                                                                         &options->arena_bytes);

    if (options->arena_bytes == 0)
        options->arena_bytes = ARENA_BYTES;
    if (rc >= 0 && options->arena_bytes > ARENA_BYTES_MAX)
        return bx_fail(-EINVAL, "arena_bytes is %llu, %llu is the most", (unsigned long long)options->arena_bytes,
                       (unsigned long long)ARENA_BYTES_MAX);
    return rc;
}

static int pool_from_environment(struct bx_options *options)
{
    uint64_t number = BXI_POOL_READY;
    int rc = options->pool_threads != 0 ? 0 : bxi_number_from_environment("BX_POOL_THREADS", 1, BXI_POOL_MAX, &number);

    if (options->pool_threads == 0)
        options->pool_threads = (int)number;
    if (options->pool_threads < 1 || options->pool_threads > BXI_POOL_MAX)
        return bx_fail(-EINVAL, "pool_threads is %d, not one of 1 to %d", options->pool_threads, BXI_POOL_MAX);
    return rc;
}

static int wait_from_environment(struct bx_options *options)
{
    const char *text = getenv("BX_WAIT");

    if (text == NULL || text[0] == '\0' || options->wait != BX_WAIT_AUTO)
        return 0;
    if (strcmp(text, "uring") == 0)
        options->wait = BX_WAIT_URING;
    else if (strcmp(text, "epoll") == 0)
        options->wait = BX_WAIT_EPOLL;
    else
        return bx_fail(-EINVAL, "BX_WAIT='%s' is neither uring nor epoll", text);
    return 0;
}

static int rejoin_from_environment(struct bx_options *options)
{
    const char *text = getenv("BX_REJOIN");

    if (text == NULL || text[0] == '\0' || strcmp(text, "0") == 0)
        return 0;
    if (strcmp(text, "1") != 0)
        return bx_fail(-EINVAL, "BX_REJOIN='%s' is neither 0 nor 1", bxi_brief(text).text);
    options->rejoin = 1;
    return 0;
}

_Static_assert(BX_WORKERS_MAX == BXI_WORKERS_MAX && BX_WORLD_MAX == BXI_WORLD_MAX, "limits of the layout");

static int check_options(struct bx_job *job, struct bx_options *options)
{
    if (options->world_size < 1 || options->world_size > BX_WORKERS_MAX)
        return bx_fail(BX_E_WORLD_SIZE, "a job has 1 to %d workers, not %d", BX_WORKERS_MAX, options->world_size);
    if (options->rank < 0 || options->rank >= options->world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d", options->rank, options->world_size - 1);
    if (options->job == NULL || !bxi_name_is_valid(options->job))
        return bx_fail(-EINVAL, "the job's name '%s' is not 1 to %d characters of A-Z a-z 0-9 _ - .",
                       bxi_brief(options->job).text, BX_NAME_MAX);
    if (options->name != NULL && options->name[0] != '\0' && !bxi_name_is_valid(options->name))
        return bx_fail(-EINVAL, "the worker's name '%s' is not 1 to %d characters of A-Z a-z 0-9 _ - .",
                       bxi_brief(options->name).text, BX_NAME_MAX);
    if (options->wait != BX_WAIT_AUTO && options->wait != BX_WAIT_URING && options->wait != BX_WAIT_EPOLL)
        return bx_fail(-EINVAL, "wait is %d, not one of enum bx_wait", (int)options->wait);
    snprintf(job->job_name, sizeof job->job_name, "%s", options->job);
    if (options->name != NULL && options->name[0] != '\0')
        snprintf(job->name, sizeof job->name, "%s", options->name);
    else
        snprintf(job->name, sizeof job->name, "worker%d", options->rank);
    options->job = job->job_name;
    options->name = job->name;
    if (options->start_timeout_ns == 0)
        options->start_timeout_ns = START_TIMEOUT_NS;
    if (options->call_timeout_ns == 0)
        options->call_timeout_ns = CALL_TIMEOUT_NS;
    if (options->spin_ns == 0)
        options->spin_ns = SPIN_NS;
    return 0;
}

int bxi_job_options(struct bx_job *job, const struct bx_options *given)
{
    int rc;

    rc = bxi_options_copy(&job->options, sizeof job->options, given, "bx_options");
    if (rc < 0)
        return rc;
    if (job->options.world_size == 0 && (rc = bxi_options_of_launcher(&job->options)) < 0)
        return rc;
    if ((rc = bxi_log_from_environment()) < 0 || (rc = bxi_checked_variable()) < 0 ||
        (rc = wait_from_environment(&job->options)) < 0 ||
        (rc = arena_from_environment(&job->options)) < 0 || (rc = pool_from_environment(&job->options)) < 0 ||
        (rc = rejoin_from_environment(&job->options)) < 0 ||
        (rc = bxi_hist_every(getenv("BX_HIST"), &job->observe->hist_every)) < 0)
        return rc;
    return check_options(job, &job->options);
}
