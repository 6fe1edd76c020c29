/* SPDX-License-Identifier: MIT */
/*
 * One job from its fork to its end. Run by the program's first process, which is no worker itself.
 *
 * The death of a worker does not end the others: bx_spawn gets an unlimited grace period. Trainers continue without a
 * trainer that died, and end by themselves when the server dies. With --restart, bx_spawn starts dead trainers again; a
 * server that is started again ends at once.
 */
#include "demos/common/ending.h"
#include "demos/common/program.h"
#include "demos/common/worker.h"
#include "ps.h"

#define START_NS UINT64_C(120000000000)     /* long, because many networks may be planned on few cores */

size_t ps_result_bytes(const struct ps_flags *flags)
{
    return sizeof(struct ps_result) + (size_t)flags->trainers * flags->num_batches * sizeof(struct ps_update);
}

static int run_worker(const struct bx_options *options, void *context)
{
    program_runs_worker();
    int status = options->rank == 0 ? ps_server(options, context) : ps_trainer(options, context);

    return ending_output("param_server") < 0 && status == 0 ? PROGRAM_FAILED : status;
}

/* It is no failure if a trainer died and the server's result says that the others reached the end of their training
 * without it. */
static bool is_survived(const struct ps_run *run, int code, const struct bx_spawn_report *report)
{
    return code == BX_E_WORKER_FAILED && report->term_signal != 0 && report->failed_rank > 0 && run->result->ended &&
           ps_count(run->flags, run->result, PS_COMPLETED) > 0 && ps_count(run->flags, run->result, PS_BROKEN) == 0;
}

int ps_run(const struct ps_run *run)
{
    struct worker_names names;
    struct bx_options worker = { .start_timeout_ns = START_NS };
    struct bx_spawn_options options = { .world_size = run->flags->trainers + 1,
                                        .names = names.at, .grace_ns = BX_FOREVER, .options = &worker,
                                        .restart = run->flags->restart };
    struct bx_spawn_report report = { .failed_rank = -1 };

    worker_name_all(&names, options.world_size, PS_SERVER, "trainer");
    int rc = bx_spawn(&options, run_worker, (void *)(uintptr_t)run, &report);
    if (rc == 0 || is_survived(run, rc, &report))
        return PROGRAM_OK;
    worker_spawn_failed("param_server", rc, &report);
    return PROGRAM_WORKER;
}
