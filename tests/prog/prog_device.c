/* SPDX-License-Identifier: MIT */
/*
 * A worker with a GPU as a program of its own, for tests/e2e/gpu.sh. It takes its job, rank, world size and name from
 * the environment, as prog_worker does.
 *
 *     prog_device own         makes a tensor on device 0 and lends it to each caller of "get"
 *     prog_device hold        gets it from w0, keeps it and prints "holds"
 *
 * Then it serves until another worker leaves. It prints "started" when all workers have met, and "failed: CODE:
 * SENTENCE" after an error. Exit status 0; 1 after an error.
 */
#include "boxcar.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ELEMENTS INT64_C(1000000)

static int failed(int rc)
{
    printf("failed: %s: %s\n", bx_error_name(rc), bx_error_text());
    return 1;
}

static int get(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor **tensor = context;

    (void)request, (void)args;
    return *tensor != NULL ? bx_msg_put_tensor(reply, *tensor) : bx_fail(-EAGAIN, "there is no tensor yet");
}

static int own(struct bx_job *job, struct bx_tensor **tensor)
{
    struct bx_device device;
    int rc = bx_gpu_open(job, 0, &device);

    return rc < 0 ? rc : bx_tensor_create_on(job, device, BX_I32, 1, (int64_t[]){ ELEMENTS }, tensor);
}

static int hold(struct bx_job *job, struct bx_msg **reply)
{
    struct bx_call_options options = { .timeout_ns = BX_FOREVER };
    int rc = bx_gpu_open(job, 0, NULL);

    while (rc == 0 && (rc = bx_rpc_sync(job, "w0", "get", NULL, &options, reply)) == -EAGAIN)
        rc = 0;
    if (rc == 0)
        printf("holds\n");
    return rc;
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    struct bx_tensor *tensor = NULL;
    struct bx_msg *reply = NULL;
    struct bx_job *job = NULL;
    int rc = bx_job_create(NULL, &job);

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (rc == 0)
        rc = bx_register(job, "get", BX_INLINE, get, &tensor);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0) {
        printf("started\n");
        rc = strcmp(mode, "own") == 0 ? own(job, &tensor) : hold(job, &reply);
    }
    while (rc == 0 && (rc = bx_job_serve(job)) == BX_E_PEER_DEAD)
        rc = 0;
    bx_msg_destroy(reply);
    bx_tensor_release(tensor);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    rc = rc < 0 ? failed(rc) : 0;
    bx_job_destroy(job);
    return rc;
}
