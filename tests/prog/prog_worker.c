/* SPDX-License-Identifier: MIT */
/*
 * A worker as a program of its own, for tests/e2e/sabotage.sh and tests/e2e/shmstat.sh. It takes its job, rank, world
 * size and name from the environment (BX_JOB, BX_RANK, BX_WORLD_SIZE, BX_NAME).
 *
 *     prog_worker serve       serves until another worker leaves
 *     prog_worker call        calls each other worker once, then leaves
 *     prog_worker stay        calls each other worker once, prints "called", then serves
 *
 * It prints "started" when all workers have met, "done" when it has left, "lost: SENTENCE" for each worker that died,
 * and "failed: CODE: SENTENCE" after an error. Exit status 0; 3 after a death; 1 after an error.
 */
#include "boxcar.h"

#include <stdio.h>
#include <string.h>

static int failed(int rc)
{
    printf("failed: %s: %s\n", bx_error_name(rc), bx_error_text());
    fflush(stdout);
    return 1;
}

static int echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    return bx_msg_put_i64(reply, bx_read_i64(args));
}

static int call_each(struct bx_job *job)
{
    int lost = 0;

    for (int rank = 0; rank < bx_job_world_size(job); rank++) {
        struct bx_msg *args = bx_msg_create(8);
        int rc = bx_msg_put_i64(args, rank);

        if (rc == 0 && rank != bx_job_rank(job))
            rc = bx_rpc_sync(job, bx_worker_name(job, rank), "echo", args, NULL, NULL);
        bx_msg_destroy(args);
        if (rc == BX_E_PEER_DEAD) {
            printf("lost: %s\n", bx_error_text());
            lost = 3;
        } else if (rc < 0) {
            return failed(rc);
        }
    }
    return lost;
}

static int serve(struct bx_job *job)
{
    int lost = 0, rc;

    while ((rc = bx_job_serve(job)) == BX_E_PEER_DEAD) {
        printf("lost: %s\n", bx_error_text());
        lost = 3;
    }
    return rc < 0 ? failed(rc) : lost;
}

int main(int argc, char **argv)
{
    struct bx_job *job = NULL;
    bool stays = argc == 2 && strcmp(argv[1], "stay") == 0;
    bool calls = stays || (argc == 2 && strcmp(argv[1], "call") == 0);

    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = bx_job_create(NULL, &job);
    if (rc == 0)
        rc = bx_register(job, "echo", BX_INLINE, echo, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc < 0) {
        failed(rc);
        bx_job_destroy(job);
        return 1;
    }
    printf("started\n");
    int status = calls ? call_each(job) : 0;
    if (stays && status == 0)
        printf("called\n");
    if (status == 0 && (stays || !calls))
        status = serve(job);
    rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        status = failed(rc);
    else
        printf("done\n");
    bx_job_destroy(job);
    return status;
}
