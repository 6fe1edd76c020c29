/* SPDX-License-Identifier: MIT */
/*
 * Start and end of a worker, and the sentence about a death. Run on each worker's main thread; the death hook on the
 * thread that makes progress. worker_spawn is run by the program's first process, which is no worker itself.
 *
 * A worker that stops because another died leaves the job by itself, and its peers see BX_E_SHUTDOWN. If it exited,
 * they would see one more death. So every survivor names the worker that died first, in whatever order the news arrive.
 */
#include "worker.h"

#include "ending.h"
#include "program.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void note_death(struct bx_job *job, int rank, void *context)
{
    struct worker *worker = context;

    (void)job;
    if (worker->dead == 0)
        worker->dead = rank + 1;
}

/* 1 + the rank of the worker that died first, or 0. A call to a dead worker fails before the hook is called, and a
 * worker that stopped for that reason may be seen to leave before the death is: the hook is called a moment later. */
static int await_dead(const struct worker *worker, int code)
{
    bool is_end = code == BX_E_PEER_DEAD || code == BX_E_SHUTDOWN;

    for (int ms = 0; ms < 500 && is_end && worker->dead == 0; ms++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return worker->dead;
}

const char *worker_reason(int code)
{
    return bx_error_text()[0] != '\0' ? bx_error_text() : bx_strerror(code);
}

static void print_failure(const struct worker *worker, int code)
{
    int dead = await_dead(worker, code);

    if (ending_is_unread())
        return;
    /* If the launcher is ending all workers, its SIGTERM arrives within this time, and nothing is printed. */
    if (dead != 0)
        nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);     /* over the agent's progress line */
    if (dead != 0)
        fprintf(stderr, "%s: %s: worker %s has died, so the training ends\n", worker->program, worker->name,
                bx_worker_name(worker->job, dead - 1));
    else
        fprintf(stderr, "%s: %s: %s\n", worker->program, worker->name, worker_reason(code));
}

int worker_main(const char *program, const struct bx_options *options,
                int (*body)(struct worker *worker, void *context), void *context)
{
    static struct worker worker;

    program_runs_worker();
    worker.program = program;
    snprintf(worker.name, sizeof(worker.name), "%s", options->name);
    /* ^C at a terminal signals every process of the job; the launcher ends the workers. */
    signal(SIGINT, SIG_IGN);
    int rc = bx_job_create(options, &worker.job);
    if (rc == 0)
        rc = bx_on_death(worker.job, note_death, &worker);
    if (rc == 0)
        rc = body(&worker, context);
    if (rc == 0)
        rc = worker.dead == 0 ? bx_job_shutdown(worker.job, 0) : BX_E_PEER_DEAD;
    if (rc == 0 && worker.dead != 0)
        rc = BX_E_PEER_DEAD;
    if (rc < 0)
        print_failure(&worker, rc);
    bx_job_destroy(worker.job);
    return rc == 0 && ending_output(program) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

void worker_name_all(struct worker_names *names, int world_size, const char *first, const char *others)
{
    for (int rank = 0; rank < world_size; rank++) {
        if (rank == 0)
            snprintf(names->text[rank], sizeof(names->text[rank]), "%s", first);
        else
            snprintf(names->text[rank], sizeof(names->text[rank]), "%s%d", others, rank);
        names->at[rank] = names->text[rank];
    }
}

uint64_t worker_copied_bytes(struct bx_job *job)
{
    static const char *const COUNTERS[] = { "tensor_bytes_copied", "gpu_copied_bytes", "gpu_staged_bytes" };
    uint64_t sum = 0, value;

    for (size_t i = 0; i < sizeof(COUNTERS) / sizeof(COUNTERS[0]); i++) {
        if (bx_counter(job, COUNTERS[i], &value) < 0)
            return UINT64_MAX;
        sum += value;
    }
    return sum;
}

int worker_spawn(const char *program, const struct bx_spawn_options *options, bx_worker_fn fn, void *context)
{
    struct bx_spawn_report report = { .failed_rank = -1 };
    int rc = bx_spawn(options, fn, context, &report);

    return rc == 0 ? 0 : worker_spawn_failed(program, rc, &report);
}

int worker_spawn_failed(const char *program, int code, const struct bx_spawn_report *report)
{
    bool unread = ending_is_unread();

    if (code != BX_E_INTERRUPTED && !unread)
        fprintf(stderr, "%s: %s\n", program, worker_reason(code));
    /* Also after a failure that the others have survived: a shell's loop is to end with the program. */
    if (report->interrupt_signal != 0)
        return ending_by(report->interrupt_signal);
    return unread ? ending_by(SIGPIPE) : -1;
}
