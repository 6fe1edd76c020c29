/* SPDX-License-Identifier: MIT */
/*
 * The life of a worker whose job ends when any of its workers dies. worker.c says why all survivors name the same one.
 */
#ifndef DEMOS_WORKER_H
#define DEMOS_WORKER_H

#include <boxcar.h>
#include <stdint.h>

struct worker {
    const char *program;        /* prefix of sentences on stderr */
    struct bx_job *job;
    char name[BX_NAME_MAX + 1];
    _Atomic int dead;           /* 1 + the rank of the first worker that died; 0: all live */
};

/* Creates the job and runs `body`, which registers its functions, starts the job and returns 0 or a code after
 * bx_fail; then leaves the job, after 0 together with the other workers. If something failed, prints on stderr the
 * worker that died, if one did, else the sentence of the failure; nothing if stdout is a pipe that nobody reads: that
 * is the cause. Returns the exit status: EXIT_FAILURE after a failure, or if output was lost. */
int worker_main(const char *program, const struct bx_options *options,
                int (*body)(struct worker *worker, void *context), void *context);

/* Why the last call of this thread failed: its sentence, or the text of the code. */
const char *worker_reason(int code);

/* Bytes of tensors that this worker copied while sending or receiving them. UINT64_MAX: unknown. */
uint64_t worker_copied_bytes(struct bx_job *job);

/* The names of a job's workers: `first` of rank 0, and `others` with the rank behind it. */
struct worker_names {
    char text[BX_WORLD_MAX][BX_NAME_MAX + 1];
    const char *at[BX_WORLD_MAX];
};
void worker_name_all(struct worker_names *names, int world_size, const char *first, const char *others);

/* Runs all workers of a job. 0, or -1 after a sentence on stderr. A signal that ended the job ends this process too. */
int worker_spawn(const char *program, const struct bx_spawn_options *options, bx_worker_fn fn, void *context);
/* What worker_spawn does after a failure of bx_spawn. Returns -1. */
int worker_spawn_failed(const char *program, int code, const struct bx_spawn_report *report);

#endif
