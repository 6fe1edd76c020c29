/* SPDX-License-Identifier: MIT */
/*
 * Distributed autograd in a worker: its functions are registered, and at the end its contexts are freed.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>

int bx_dist_create(struct bx_job *job, struct bx_dist **out)
{
    struct bx_dist *dist;
    int rc;

    if (job == NULL || out == NULL)
        return bx_fail(-EINVAL, "bx_dist_create needs a job, and a place for the result");
    dist = calloc(1, sizeof *dist);
    if (dist == NULL)
        return bx_fail(-ENOMEM, "no memory for distributed autograd");
    dist->job = job;
    pthread_mutex_init(&dist->lock, NULL);
    rc = bx_register_async(job, "autograd.join", BX_INLINE, bxi_join_answer, dist);
    if (rc == 0)
        rc = bx_register_async(job, "autograd.discover", BX_INLINE, bxi_dist_discover, dist);
    if (rc == 0)
        rc = bx_register_async(job, "autograd.run", BX_INLINE, bxi_dist_run, dist);
    if (rc == 0)
        rc = bx_register(job, "autograd.grads", BX_INLINE, bxi_dist_grads, dist);
    if (rc == 0)
        rc = bx_register(job, "autograd.work", BX_BLOCKING, bxi_dist_work, dist);
    if (rc == 0)
        rc = bxi_dist_optim_register(dist);
    if (rc < 0) {
        pthread_mutex_destroy(&dist->lock);
        free(dist);
        return rc;
    }
    *out = dist;
    return 0;
}

void bx_dist_destroy(struct bx_dist *dist)
{
    if (dist == NULL)
        return;
    dist->job = NULL;                       /* it is destroyed: the ends of passes are not traced any more */
    for (int i = 0; i < BXI_CHAINS; i++)
        for (struct bx_context *context; (context = bx_context_acquire(dist->chains[i])) != NULL;) {
            bxi_context_finish(context, BX_E_SHUTDOWN, NULL);
            bxi_context_take_out(context);
            bx_context_release(context);
        }
    pthread_mutex_destroy(&dist->lock);
    free(dist);
}

size_t bx_dist_contexts(struct bx_dist *dist)
{
    size_t count = 0;

    if (dist == NULL)
        return 0;
    pthread_mutex_lock(&dist->lock);
    for (int i = 0; i < BXI_CHAINS; i++)
        for (struct bx_context *context = dist->chains[i]; context != NULL; context = context->next)
            count += !bxi_dist_has_ended(context);
    pthread_mutex_unlock(&dist->lock);
    return count;
}
