/* SPDX-License-Identifier: MIT */
/*
 * tensor: two workers. Worker 0 makes a tensor in its arena, which is shared memory, and sends it. No byte of it is
 * copied: worker 1 reads it in place, and has it on loan until its handler returns.
 */
#include <boxcar.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define ROWS 1024
#define COLUMNS 1024

/* Runs in worker 1. The tensor is mapped read-only here. */
static int sum(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args);
    const float *data = bx_tensor_data(tensor);
    double total = 0;

    (void)request, (void)context;
    if (tensor == NULL || bx_tensor_dtype(tensor) != BX_F32)
        return bx_fail(-EINVAL, "sum wants a tensor of 32-bit floats");
    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        total += data[i];
    return bx_msg_put_f64(reply, total);
}

static int lend(struct bx_job *job)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_tensor *tensor = NULL;
    uint64_t copied = 0;
    int rc = bx_tensor_create(job, BX_F32, 2, (int64_t[]){ ROWS, COLUMNS }, &tensor);

    if (rc == 0) {
        float *data = bx_tensor_data_mut(tensor);

        for (int i = 0; i < ROWS * COLUMNS; i++)
            data[i] = 0.5f;
        bx_msg_put_tensor(args, tensor);
        rc = bx_rpc_sync(job, "worker1", "sum", args, NULL, &reply);
    }
    if (rc == 0) {
        struct bx_reader reader = bx_msg_reader(reply);

        bx_counter(job, "tensors_copied", &copied);
        printf("the sum is %.1f, tensors copied: %" PRIu64 "\n", bx_read_f64(&reader), copied);
        /* Until the loan is back, the owner must not write to the tensor: worker 1 would see it. */
        rc = bx_loans_wait(job, 1, 0, UINT64_C(1000000000));
        printf("leases still on loan: %" PRIu32 "\n", bx_tensor_on_loan(tensor));
    }
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
    bx_tensor_release(tensor);
    return rc;
}

static int work(const struct bx_options *options, void *context)
{
    struct bx_job *job = NULL;
    int rc = bx_job_create(options, &job);

    (void)context;
    if (rc == 0)
        rc = bx_register(job, "sum", BX_INLINE, sum, NULL);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && bx_job_rank(job) == 0)
        rc = lend(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        fprintf(stderr, "worker %d: %s\n", options->rank, bx_error_text());
    bx_job_destroy(job);
    return rc < 0;
}

int main(void)
{
    return bx_spawn(&(struct bx_spawn_options){ .world_size = 2 }, work, NULL, NULL) < 0;
}
