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

#include <signal.h>

#define START_NS UINT64_C(120000000000)     /* long, because many networks may be planned on few cores */

size_t ps_result_bytes(const struct ps_flags *flags)
{
    return sizeof(struct ps_result) + (size_t)flags->trainers * flags->num_batches * sizeof(struct ps_update);
}

static int run_worker(const struct bx_options *options, void *context)
{
    int status = options->rank == 0 ? ps_server(options, context) : ps_trainer(options, context);

    return ending_output("param_server") < 0 && status == 0 ? PROGRAM_FAILED : status;
}

/* The exit status of a job in which a worker failed. It is no failure if a trainer died and the server's result says
 * that the others reached the end of their training without it. */
static int exit_status(const struct ps_run *run, int code, const struct bx_spawn_report *report)
{
    bool is_death = report->term_signal != 0 && report->failed_rank > 0;

    if (code == BX_E_INTERRUPTED)
        return ending_by(report->interrupt_signal, PROGRAM_WORKER);
    if (ending_is_unread())
        return ending_by(SIGPIPE, PROGRAM_WORKER);
    if (code == BX_E_WORKER_FAILED && is_death && run->result->ended &&
        ps_count(run->flags, run->result, PS_COMPLETED) > 0 && ps_count(run->flags, run->result, PS_BROKEN) == 0)
        return PROGRAM_OK;
    fprintf(stderr, "param_server: %s\n", bx_error_text()[0] != '\0' ? bx_error_text() : bx_strerror(code));
    return PROGRAM_WORKER;
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
    return rc < 0 ? exit_status(run, rc, &report) : PROGRAM_OK;
}
