/* SPDX-License-Identifier: MIT */
/*
 * A worker as a program of its own, for tests/e2e/sabotage.sh, secure.sh and gpu.sh. It takes its job, rank, world size
 * and name from the environment (BX_JOB, BX_RANK, BX_WORLD_SIZE, BX_NAME).
 *
 *     prog_worker serve       serves until another worker leaves
 *     prog_worker call        calls each other worker once, then leaves
 *     prog_worker stay        calls each other worker once, prints "called", then serves
 *     prog_worker own         makes a tensor on device 0, lends it to each caller of "get", and serves
 *     prog_worker hold        gets it from w0, keeps it, prints "holds", and serves
 *
 * It prints "started" when all workers have met, "done" when it has left, "lost: SENTENCE" for each worker that died,
 * and "failed: CODE: SENTENCE" after an error. Exit status 0; 3 after a death; 1 after an error.
 */
#include "boxcar.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct bx_tensor *tensor;        /* own's */
static struct bx_msg *held;             /* hold's */

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

static int get(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)context;
    return tensor != NULL ? bx_msg_put_tensor(reply, tensor) : bx_fail(-EAGAIN, "there is no tensor yet");
}

static int own(struct bx_job *job)
{
    struct bx_device device;
    int rc = bx_gpu_open(job, 0, &device);

    return rc < 0 ? rc : bx_tensor_create_on(job, device, BX_I32, 1, (int64_t[]){ 1000000 }, &tensor);
}

static int hold(struct bx_job *job)
{
    struct bx_call_options options = { .timeout_ns = BX_FOREVER };
    int rc = bx_gpu_open(job, 0, NULL);

    while (rc == 0 && (rc = bx_rpc_sync(job, "w0", "get", NULL, &options, &held)) == -EAGAIN)
        rc = 0;
    if (rc == 0)
        printf("holds\n");
    return rc;
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
    const char *mode = argc == 2 ? argv[1] : "serve";
    struct bx_job *job = NULL;
    int status = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = bx_job_create(NULL, &job);
    if (rc == 0)
        rc = bx_register(job, "echo", BX_INLINE, echo, NULL);
    if (rc == 0)
        rc = bx_register(job, "get", BX_INLINE, get, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0) {
        printf("started\n");
        if (strcmp(mode, "own") == 0)
            rc = own(job);
        else if (strcmp(mode, "hold") == 0)
            rc = hold(job);
        else if (strcmp(mode, "serve") != 0)
            status = call_each(job);
    }
    if (rc < 0) {
        failed(rc);
        bx_job_destroy(job);
        return 1;
    }
    if (strcmp(mode, "stay") == 0 && status == 0)
        printf("called\n");
    if (strcmp(mode, "call") != 0 && status == 0)
        status = serve(job);
    bx_msg_destroy(held);
    bx_tensor_release(tensor);
    rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        status = failed(rc);
    else
        printf("done\n");
    bx_job_destroy(job);
    return status;
}
