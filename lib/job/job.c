/* SPDX-License-Identifier: MIT */
/*
 * A job's life in this process: options and environment, creation, start, destruction, and the questions
 * that a program may ask of it. The phases only go forward: CREATED, STARTED, STOPPING, STOPPED.
 */
#include "job.h"

#include "shm/cancel.h"
#include "base/options.h"
#include "shm/step.h"
#include "rpc/mark.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define START_TIMEOUT_NS (UINT64_C(30) * 1000000000)
#define CALL_TIMEOUT_NS (UINT64_C(60) * 1000000000)
#define SPIN_NS 50000
#define ARENA_BYTES (UINT64_C(64) << 30)
#define ARENA_BYTES_MAX (UINT64_C(1) << 40)     /* 128 of them fit an address space of 47 bits */

static bxi_a64 jobs_made;

/* ---- options ----------------------------------------------------------------------------------- */

static int number_from_environment(const char *variable, int *value)
{
    const char *text = getenv(variable);
    char *end = NULL;

    if (text == NULL || text[0] == '\0')
        return bx_fail(-EINVAL, "%s is not set; bx_job_create was given no world_size, so BX_JOB, BX_RANK "
                                "and BX_WORLD_SIZE must be", variable);
    errno = 0;

    long number = strtol(text, &end, 10);

    if (errno != 0 || *end != '\0' || number < 0 || number > 1000000)
        return bx_fail(-EINVAL, "%s='%s' is not a number", variable, text);
    *value = (int)number;
    return 0;
}

static int options_from_environment(struct bx_options *options)
{
    int rc = number_from_environment("BX_WORLD_SIZE", &options->world_size);

    if (rc < 0 || (rc = number_from_environment("BX_RANK", &options->rank)) < 0)
        return rc;
    options->job = getenv("BX_JOB");
    if (options->job == NULL || options->job[0] == '\0')
        return bx_fail(-EINVAL, "BX_JOB is not set; give all workers of a job the same name");
    options->name = getenv("BX_NAME");
    return 0;
}

static int arena_from_environment(struct bx_options *options)
{
    const char *text = getenv("BX_ARENA_BYTES");
    char *end = NULL;

    if (options->arena_bytes == 0 && text != NULL && text[0] != '\0') {
        errno = 0;
        options->arena_bytes = strtoull(text, &end, 10);
        if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0' || options->arena_bytes == 0)
            return bx_fail(-EINVAL, "BX_ARENA_BYTES='%s' is not a number of bytes", text);
    }
    if (options->arena_bytes == 0)
        options->arena_bytes = ARENA_BYTES;
    if (options->arena_bytes > ARENA_BYTES_MAX)
        return bx_fail(-EINVAL, "arena_bytes is %llu, %llu is the most", (unsigned long long)options->arena_bytes,
                       (unsigned long long)ARENA_BYTES_MAX);
    return 0;
}

static int pool_from_environment(struct bx_options *options)
{
    const char *text = getenv("BX_POOL_THREADS");
    char *end = NULL;

    if (options->pool_threads == 0 && text != NULL && text[0] != '\0') {
        long number = strtol(text, &end, 10);

        if (*end != '\0' || number < 1 || number > BXI_POOL_MAX)
            return bx_fail(-EINVAL, "BX_POOL_THREADS='%s' is not a number of 1 to %d", bxi_brief(text).text,
                           BXI_POOL_MAX);
        options->pool_threads = (int)number;
    }
    if (options->pool_threads == 0)
        options->pool_threads = BXI_POOL_READY;
    if (options->pool_threads < 1 || options->pool_threads > BXI_POOL_MAX)
        return bx_fail(-EINVAL, "pool_threads is %d, not one of 1 to %d", options->pool_threads, BXI_POOL_MAX);
    return 0;
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

static int check_options(struct bx_job *job, struct bx_options *options)
{
    if (options->world_size < BX_WORLD_MIN || options->world_size > BX_WORLD_MAX)
        return bx_fail(BX_E_WORLD_SIZE, "a job has %d to %d workers, not %d", BX_WORLD_MIN, BX_WORLD_MAX,
                       options->world_size);
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

static int read_options(struct bx_job *job, const struct bx_options *given)
{
    int rc;

    if ((rc = bxi_options_copy(&job->options, sizeof job->options, given, "bx_options")) < 0)
        return rc;
    if (job->options.world_size == 0 && (rc = options_from_environment(&job->options)) < 0)
        return rc;
    if ((rc = wait_from_environment(&job->options)) < 0 || (rc = arena_from_environment(&job->options)) < 0 ||
        (rc = pool_from_environment(&job->options)) < 0 ||
        (rc = bxi_hist_every(getenv("BX_HIST"), &job->observe->hist_every)) < 0)
        return rc;
    return check_options(job, &job->options);
}

/* ---- what the machine gives -------------------------------------------------------------------- */

static int raise_descriptors(const struct bx_job *job)
{
    struct rlimit limit;
    rlim_t needed = (rlim_t)(3 * job->world_size + 64);

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= needed + 64)
        return 0;
    if (limit.rlim_max < needed)
        return bx_fail(BX_E_DESCRIPTORS, "a job of %d workers needs %llu open files, the hard limit is "
                                         "%llu; raise it (ulimit -Hn)", job->world_size,
                       (unsigned long long)needed, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max < needed + 64 ? limit.rlim_max : needed + 64;
    setrlimit(RLIMIT_NOFILE, &limit);
    return 0;
}

/* The CPUs that this process may use, as bits, number modulo 128. */
static void read_affinity(uint64_t mask[2])
{
    cpu_set_t set;

    mask[0] = mask[1] = 0;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        CPU_ZERO(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            mask[cpu / 64 % 2] |= UINT64_C(1) << (cpu % 64);
}

/* The whole CPUs of the cgroup's quota; INT_MAX if it has none. */
static int cpu_quota(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    unsigned long long quota, period;
    int cpus = INT_MAX;

    if (file == NULL)
        return cpus;
    if (fscanf(file, "%llu %llu", &quota, &period) == 2 && period > 0 && quota / period < INT_MAX)
        cpus = quota < period ? 1 : (int)(quota / period);
    fclose(file);
    return cpus;
}

/* CPUs that the workers of the job may use together: workers pinned to a core each have as many as there
 * are workers. */
static int count_cpus(const struct bx_job *job)
{
    uint64_t mask[2] = { job->control->header.cpu_mask[0], job->control->header.cpu_mask[1] };
    int quota = cpu_quota(), cpus;

    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_control *theirs = job->rpc->peers[rank].view.control;

        for (int i = 0; theirs != NULL && i < 2; i++)
            mask[i] |= theirs->header.cpu_mask[i];
    }
    cpus = __builtin_popcountll(mask[0]) + __builtin_popcountll(mask[1]);
    return cpus == 0 ? 1 : cpus < quota ? cpus : quota;
}

static int choose_sleeper(struct bx_job *job)
{
    struct bxi_sleeper *probe = NULL;

    if (job->options.wait == BX_WAIT_EPOLL) {
        job->run->sleeper_kind = BXI_SLEEPER_EPOLL;
        return 0;
    }

    int rc = bxi_sleeper_create(BXI_SLEEPER_URING, &probe);

    bxi_sleeper_destroy(probe);
    if (rc < 0 && job->options.wait == BX_WAIT_URING)
        return bx_fail(BX_E_URING, "io_uring was asked for and the kernel refuses it (%s); see "
                                   "kernel.io_uring_disabled, seccomp and ulimit -l, or use BX_WAIT=epoll",
                       bx_strerror(rc));
    if (rc < 0)
        bxi_log(2, "io_uring is refused (%s), epoll takes over", bx_strerror(rc));
    job->run->sleeper_kind = rc < 0 ? BXI_SLEEPER_EPOLL : BXI_SLEEPER_URING;
    return 0;
}

/* ---- create, start, destroy -------------------------------------------------------------------- */

static int open_descriptors(struct bx_job *job)
{
    if (bxi_run_open_bells(job->run) == 0 && (job->boot->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0)) >= 0)
        return 0;
    if (errno == EMFILE || errno == ENFILE)
        return bx_fail(BX_E_DESCRIPTORS, "no descriptor is left for the doorbells (%s)", strerror(errno));
    return bx_fail(-errno, "the doorbells or the pidfd cannot be made: %s", strerror(errno));
}

void bxi_job_link(struct bxi_whole_job *whole)
{
    whole->job.run = &whole->run;
    whole->job.rpc = &whole->rpc;
    whole->job.lend = &whole->lend;
    whole->job.device = &whole->device;
    whole->job.observe = &whole->observe;
    whole->job.boot = &whole->boot;
}

static void init_locks(struct bx_job *job)
{
    pthread_condattr_t monotonic;

    pthread_mutex_init(&job->rpc->pool.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&job->rpc->pool.cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void free_job(struct bx_job *job)
{
    bxi_bootstrap_release(job);
    if (job->instance != 0)
        bxi_boot_clear_dead(job);       /* who died after this one had left */
    bxi_spawn_forget(job);
    bxi_trace_destroy(job);

    int fds[] = { job->boot->pidfd, job->boot->lock_fd };

    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    bxi_batchers_destroy(job);
    bxi_devices_destroy(job);
    for (int rank = 0; job->lend->peers != NULL && rank < job->world_size; rank++) {
        struct bxi_peer *peer = &job->rpc->peers[rank];

        bxi_peer_drop_queue(peer);
        bxi_returns_close(peer->lend);
        bxi_grants_destroy(peer->lend);
        if (peer->lend->arena != NULL)
            bxi_arena_view_release(peer->lend->arena);
        if (peer->view.control != NULL)
            bxi_segment_detach(&peer->view);
        for (int i = 0; i < 2 && rank != job->rank; i++)
            if (peer->bell.fd[i] > 0)
                close(peer->bell.fd[i]);
        if (peer->pidfd > 0)
            close(peer->pidfd);
        free(peer->loop);
        free(peer->lend->loop_words);
        free(peer->slots);
        free(peer->functions);
        free(peer->hists);
    }
    if (job->lend->arena != NULL) {
        bxi_arena_close(job->lend->arena);
        bxi_arena_release(job->lend->arena);
    }
    if (job->segment.control != NULL)
        bxi_segment_destroy(&job->segment);
    pthread_cond_destroy(&job->rpc->pool.cond);
    pthread_mutex_destroy(&job->rpc->pool.lock);
    bx_msg_destroy(job->rpc->reply);
    free(job->rpc->frame);
    bxi_run_fini(job->run);
    free(job->lend->peers);
    free(job->rpc->peers);
    free(job);
}

int bx_job_create(const struct bx_options *options, struct bx_job **out)
{
    BXI_UNCANCELLED;
    struct bxi_whole_job *whole;
    struct bx_job *job;
    int rc;

    if (out == NULL)
        return bxi_null(__func__, "the place for the job");
    whole = aligned_alloc(BXI_LINE, sizeof *whole);
    if (whole == NULL)
        return bx_fail(-ENOMEM, "no memory for a job");
    memset(whole, 0, sizeof *whole);
    bxi_job_link(whole);
    job = &whole->job;
    job->boot->pidfd = job->boot->lock_fd = -1;
    job->counters = job->observe->private_counters;
    bxi_names_clear(job);
    init_locks(job);
    if ((rc = read_options(job, options)) < 0)
        goto fail;
    job->rank = job->options.rank;
    job->world_size = job->options.world_size;
    job->serial = bxi_add(&jobs_made, 1) + 1;
    bxi_drive_init(job);
    job->fork_generation = bxi_load_relaxed(&bxi_forks);
    for (int row = BXI_SERVING_MAX - 1; row >= 0; row--)
        job->observe->free_rows[job->observe->free_row_count++] = (uint16_t)row;
    job->rpc->frame = aligned_alloc(64, BXI_FRAME_MAX);
    job->rpc->reply = bx_msg_create(BXI_FRAME_MAX);
    if (job->rpc->frame == NULL || job->rpc->reply == NULL)
        rc = bx_fail(-ENOMEM, "no memory for a frame");
    else if ((rc = bxi_peers_create(job)) == 0)
        rc = raise_descriptors(job);
    if (rc < 0 || (rc = open_descriptors(job)) < 0 || (rc = choose_sleeper(job)) < 0)
        goto fail;
    bxi_store_relaxed(&job->phase, BXI_CREATED);
    *out = job;
    return 0;

fail:
    free_job(job);
    return rc;
}

/* The functions registered so far become visible to the peers. */
static void publish_functions(struct bx_job *job)
{
    uint32_t count = bxi_load_relaxed(&job->rpc->handler_count);

    for (uint32_t i = 0; i < count; i++) {
        memcpy(job->control->function[i].name, job->rpc->handlers[i].name, BXI_NAME_BYTES);
        job->control->function[i].kind = (uint32_t)job->rpc->handlers[i].kind;
    }
    /* [functions] release, pairs with the acquire in refresh (names.c). */
    bxi_store_release(&job->control->header.function_count, count);
}

void bxi_job_adopt_segment(struct bx_job *job)
{
    /* Another thread may register functions meanwhile: each is seen here, or sees the segment. */
    bxi_lock(&job->run->lock);
    job->control = job->segment.control;
    for (int i = 0; i < BXI_COUNTER_COUNT; i++)
        bxi_store_relaxed(&bxi_tables(job->control)->counters[i], bxi_load_relaxed(&job->observe->private_counters[i]));
    job->counters = bxi_tables(job->control)->counters;
    bxi_run_attach(job->run, &job->control->header.armed, job->counters, &bxi_tables(job->control)->now.spins);
    job->control->header.arena_bytes = bxi_arena_bytes(job->lend->arena);
    for (const struct bxi_batcher *batcher = job->rpc->batchers; batcher != NULL; batcher = batcher->next)
        bxi_batch_show(job, batcher);
    read_affinity(job->control->header.cpu_mask);
    publish_functions(job);
    bxi_unlock(&job->run->lock);
}

int bx_job_start(struct bx_job *job)
{
    BXI_UNCANCELLED;
    int rc;

    if (job == NULL || bxi_job_is_forked(job))
        return bxi_job_check(job);
    if (bxi_load_relaxed(&job->phase) != BXI_CREATED)
        return bx_fail(BX_E_STATE, "worker '%s' was started before", job->name);
    if ((rc = bxi_bootstrap(job, bxi_deadline_ns(job->options.start_timeout_ns))) < 0) {
        job->control = NULL;            /* the segment is gone again, and the arena */
        job->counters = job->observe->private_counters;
        bxi_run_attach(job->run, NULL, job->counters, NULL);
        bxi_store_relaxed(&job->phase, BXI_STOPPED);
        return rc;
    }
    bxi_spawn_in_job(job, true);
    bxi_names_build(job);
    job->run->cpus = count_cpus(job);
    if (job->rank != 0)
        bxi_trace_start(job, &bxi_names_for_trace, !bxi_spawn_is_worker());
    /* Before progress starts: a handler that it runs may call at once. */
    bxi_store_relaxed(&job->phase, BXI_STARTED);
    if ((rc = bxi_drive_start(job)) < 0) {
        bxi_job_leave(job);             /* the others came through the gate and must learn of it */
        return rc;
    }
    /* [state] release, pairs with the acquire in look_state. */
    bxi_store_release(&job->control->header.state, BXI_RUNNING);
    BXI_STEP("state.running");
    return 0;
}

void bx_job_destroy(struct bx_job *job)
{
    if (job == NULL || bxi_job_is_forked(job))
        return;
    if (!bxi_may_wait() || bxi_pool_owns_thread(job)) {
        bxi_log(0, "bx_job_destroy was called from a handler or a callback of worker '%s': it did nothing, for the "
                   "job is in use", job->name);
        return;
    }

    uint32_t phase = bxi_load_relaxed(&job->phase);
    int cancel_before = bxi_cancel_off();

    bxi_error_enter();
    if (phase == BXI_STARTED || phase == BXI_STOPPING)
        bxi_job_leave(job);
    /* What is pending would name a job that is gone. Answers that hang on futures of other jobs end too. */
    bxi_futures_end(job);
    for (int rank = 0; rank < job->world_size; rank++)
        bxi_waiting_peer_gone(job, &job->rpc->peers[rank], BX_E_SHUTDOWN);
    free_job(job);
    bxi_error_leave();
    bxi_cancel_restore(&cancel_before);
    bxi_out(0);
}

/* ---- questions --------------------------------------------------------------------------------- */

int bx_job_rank(const struct bx_job *job)
{
    int rc = bxi_job_check_any(job);

    return rc < 0 ? rc : job->rank;
}

int bx_job_world_size(const struct bx_job *job)
{
    int rc = bxi_job_check_any(job);

    return rc < 0 ? rc : job->world_size;
}

const char *bx_job_name(const struct bx_job *job)
{
    return bxi_job_check_any(job) < 0 ? NULL : job->name;
}

bool bx_worker_alive(const struct bx_job *job, int rank)
{
    return bxi_job_check_any(job) == 0 && rank >= 0 && rank < job->world_size &&
           bxi_load_relaxed(&job->rpc->peers[rank].state) == BXI_PEER_ALIVE;
}

int bx_on_death(struct bx_job *job, bx_death_fn fn, void *context)
{
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    if (bxi_load_relaxed(&job->phase) != BXI_CREATED)
        return bx_fail(BX_E_STATE, "the hook for deaths is set before bx_job_start");
    job->rpc->on_death = fn;
    job->rpc->on_death_context = context;
    return 0;
}

int bx_job_arena(struct bx_job *job, struct bx_arena_info *info)
{
    struct bxi_arena_stats stats;
    struct bx_arena_info filled;
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    if (info == NULL)
        return bxi_null(__func__, "the place for the figures");
    bxi_grants_reclaim(job);
    bxi_arena_read(job->lend->arena, &stats);
    filled = (struct bx_arena_info){ sizeof filled, stats.size_bytes, stats.used_bytes, stats.committed_bytes,
                                     stats.high_water_bytes };
    bxi_figures_copy(info, &filled, sizeof filled);
    return 0;
}

int bx_arena_trim(struct bx_job *job)
{
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    bxi_grants_reclaim(job);
    bxi_arena_trim(job->lend->arena);
    return 0;
}

int bx_counter(const struct bx_job *job, const char *name, uint64_t *value)
{
    static const char *const names[] = {
#define BXI_COUNTER_NAME(name, domain, text) #name,
        BXI_COUNTERS(BXI_COUNTER_NAME)
#undef BXI_COUNTER_NAME
    };
    int rc = bxi_job_check_any(job);

    if (rc < 0)
        return rc;
    if (name == NULL || value == NULL)
        return bxi_null(__func__, name == NULL ? "the counter's name" : "the place for its value");

    for (int i = 0; i < BXI_COUNTER_COUNT; i++) {
        if (strcmp(names[i], name) == 0) {
            /* Relaxed: a recent value is all that is asked for. */
            *value = bxi_load_relaxed(&job->counters[i]);
            return 0;
        }
    }
    return bx_fail(-ENOENT, "there is no counter '%s'", bxi_brief(name).text);
}
