/* SPDX-License-Identifier: MIT */
/*
 * The worker's side of bx_spawn (spawn.c): a worker that starts asks how other workers have ended, and each worker
 * notes the names that it is about to make, for the launcher (its page) and for its own SIGTERM handler (notes). job.h
 * describes the memory shared with the launcher.
 *
 * Who runs it: the threads that start and end jobs, in any process; a process that is no worker of bx_spawn does
 * nothing here. A child that a worker has forked is no worker: self_pid is its parent's, and the page is not mapped in
 * it.
 *
 * Why a board: only the launcher can see how a worker ended that has met no other yet. So a thread in bx_job_start
 * polls the board a few times a second.
 */
#include "job.h"

#include "shm/step.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define HOW_NS UINT64_C(1000000000)         /* a dead worker is reaped long before */

static struct bxi_spawned self;             /* of a worker; elsewhere all zero */
static pid_t self_pid;
static struct bxi_lock self_lock;           /* of the page and the notes, for writers */
static uint32_t jobs_in;                    /* what page.in_job holds */
/* Written under self_lock by the threads that start and end jobs. The signal handler may run in any thread, and takes
 * no lock. */
static struct bxi_note noted[BXI_NOTES_MAX];

void bxi_spawn_become(const struct bxi_spawned *spawned)
{
    self = *spawned;
    self_pid = getpid();
    memset(&self_lock, 0, sizeof(self_lock));   /* of a launcher that is itself a worker */
    jobs_in = 0;
    memset(noted, 0, sizeof(noted));
}

bool bxi_spawn_is_worker(void)
{
    return self.page != NULL && getpid() == self_pid;
}

struct bxi_note *bxi_spawn_note_at(int i)
{
    return &noted[i];
}

/* The job is the one that the launcher waits for. */
static bool is_launched(const struct bx_job *job)
{
    return bxi_spawn_is_worker() && strcmp(job->job_name, self.job_name) == 0 &&
           job->world_size == self.world_size;
}

int bxi_spawn_ended(const struct bx_job *job, int rank)
{
    if (!is_launched(job))
        return 0;
    struct bxi_board *board = self.board;
    if (rank < 0)
        /* [board.first] acquire, pairs with the release in publish_end: is_set is there. */
        rank = (int)bxi_load_acquire(&board->first) - 1;
    /* [board.end] acquire, pairs with the release in publish_end: the text is read after it. */
    if (rank < 0 || bxi_load_acquire(&board->end[rank].is_set) == 0)
        return 0;
    return bx_fail(BX_E_WORKER_FAILED, self.again ? "%s: job '%s' ends" : "%s before job '%s' had started",
                   board->end[rank].text, job->job_name);
}

int bxi_spawn_died(const struct bx_job *job, int rank, const char *who)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    uint64_t deadline_ns = bxi_now_ns() + HOW_NS;
    int rc = 0;

    while (is_launched(job) && (rc = bxi_spawn_ended(job, rank)) == 0 && bxi_now_ns() < deadline_ns)
        nanosleep(&moment, NULL);
    return rc < 0 ? rc : bx_fail(BX_E_PEER_DEAD, "%s died while the job was starting", who);
}

/* NULL: the launcher does not wait for this job. */
static struct bxi_worker_page *page_for(const struct bx_job *job)
{
    return is_launched(job) ? self.page : NULL;
}

void bxi_spawn_in_job(const struct bx_job *job, bool is_in)
{
    struct bxi_worker_page *page = page_for(job);

    if (page == NULL)
        return;
    bxi_lock(&self_lock);
    jobs_in += is_in ? 1 : (uint32_t)-1;
    /* [page.in_job] release, pairs with the acquire in is_in_job. */
    bxi_store_release(&page->in_job, jobs_in);
    /* [page.was_in_job] release, pairs with the acquire in was_in_job. */
    bxi_store_release(&page->was_in_job, 1);
    bxi_unlock(&self_lock);
    BXI_STEP(is_in ? "spawn.in_job" : "spawn.not_in_job");
}

/* Called before the names are made, so a kill leaves no name that is not announced. */
static void announce_names(const struct bx_job *job)
{
    struct bxi_worker_page *page = page_for(job);

    if (page == NULL)
        return;
    bxi_lock(&self_lock);
    /* Relaxed: the store of instance releases it. */
    bxi_store_relaxed(&page->rank, (uint32_t)job->rank);
    /* [page.instance] release, pairs with the acquire in unlink_names: rank is there. */
    bxi_store_release(&page->instance, job->instance);
    bxi_unlock(&self_lock);
    BXI_STEP("spawn.announced");
}

/* The job's note, or a free one. NULL: too many; then the launcher or `shmstat reap` removes what SIGTERM leaves. */
static struct bxi_note *noted_of(const struct bx_job *job)
{
    struct bxi_note *found = NULL;

    for (int i = 0; i < BXI_NOTES_MAX; i++) {
        if (noted[i].job == job)
            return &noted[i];
        if (noted[i].job == NULL && found == NULL)
            found = &noted[i];
    }
    if (found != NULL)
        found->job = job;
    return found;
}

void bxi_spawn_note(const struct bx_job *job, enum bxi_noted what, const char *path)
{
    if (!bxi_spawn_is_worker())
        return;
    bxi_lock(&self_lock);
    struct bxi_note *note = noted_of(job);
    if (note != NULL && path != NULL)
        snprintf(note->path[what], sizeof(note->path[what]), "%s", path);
    if (note != NULL)
        /* [noted] release, pairs with the acquire in on_term: the path is there. */
        bxi_store_release(&note->is_there[what], path != NULL);
    bxi_unlock(&self_lock);
}

void bxi_spawn_note_segment(const struct bx_job *job, const char *shm_name, const char *arena_name)
{
    char path[BXI_BOOT_PATH_BYTES];

    announce_names(job);
    snprintf(path, sizeof(path), "/dev/shm%s", shm_name);
    bxi_spawn_note(job, BXI_NOTED_SEGMENT, path);
    snprintf(path, sizeof(path), "/dev/shm%s", arena_name);
    bxi_spawn_note(job, BXI_NOTED_ARENA, path);
}

void bxi_spawn_forget(const struct bx_job *job)
{
    if (!bxi_spawn_is_worker())
        return;
    bxi_lock(&self_lock);
    struct bxi_note *note = noted_of(job);
    for (int what = 0; note != NULL && what < BXI_NOTED_COUNT; what++)
        /* Relaxed: the names are gone, so it does not matter whether the handler still sees them. */
        bxi_store_relaxed(&note->is_there[what], 0);
    if (note != NULL)
        note->job = NULL;
    bxi_unlock(&self_lock);
}
