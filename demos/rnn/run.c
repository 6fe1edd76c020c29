/* SPDX-License-Identifier: MIT */
/*
 * One job from its fork to its end. Run by the program's first process, which is no worker itself.
 *
 * The trainer writes its result to memory that is mapped before the fork. stdout is for people, and a pipe would have
 * to be read while waiting.
 */
#include "demos/common/worker.h"
#include "rnn.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static size_t result_bytes(const struct rnn_flags *flags)
{
    return sizeof(struct rnn_result) + rnn_iterations(flags) * sizeof(struct rnn_iteration);
}

struct rnn_result *rnn_result_create(const struct rnn_flags *flags)
{
    int kind = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    void *result = mmap(NULL, result_bytes(flags), PROT_READ | PROT_WRITE, kind, -1, 0);

    if (result != MAP_FAILED)
        return result;
    fprintf(stderr, "rnn: no memory to share with the trainer: %s\n", strerror(errno));
    return NULL;
}

void rnn_result_destroy(struct rnn_result *result, const struct rnn_flags *flags)
{
    if (result != NULL)
        munmap(result, result_bytes(flags));
}

static int run_worker(const struct bx_options *options, void *context)
{
    return rnn_worker(options, context);
}

int rnn_run(const struct rnn_run *run)
{
    static const char *const NAMES[] = { RNN_PS, RNN_TRAINER };
    const struct bx_spawn_options options = { .world_size = 2, .names = NAMES };

    return worker_spawn("rnn", &options, run_worker, (void *)(uintptr_t)run) < 0 ? RNN_WORKER : RNN_OK;
}
