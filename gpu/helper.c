/* SPDX-License-Identifier: MIT */
/*
 * One thread per process for calls that take milliseconds: opening and closing peers' slabs, and freeing own ones
 * (cuIpcCloseMemHandle and cuMemFree wait for the device), and registering peers' words. A FIFO queue. Each job is
 * embedded in the object that it works on, so posting one cannot fail. The thread starts in bxi_gpu_open, with every
 * signal blocked, and ends in bxi_gpu_close. If it is in the driver then and does not come back in time, it is left
 * behind, and ends when it does.
 */
#include "inside.h"

#include "shm/cancel.h"
#include "shm/guard.h"

#include <errno.h>
#include <string.h>

static void *help(void *context)
{
    struct bxi_gpu_helper *helper = context;

    pthread_mutex_lock(&helper->lock);
    while (!helper->is_left) {
        struct bxi_gpu_job *job = helper->first;

        if (job != NULL) {
            helper->first = job->next;
            helper->is_busy = true;
            pthread_mutex_unlock(&helper->lock);
            job->run(job);
            pthread_mutex_lock(&helper->lock);
            helper->is_busy = false;
            pthread_cond_broadcast(&helper->change);
        } else if (helper->stops) {
            break;
        } else {
            pthread_cond_wait(&helper->change, &helper->lock);
        }
    }
    pthread_mutex_unlock(&helper->lock);
    return NULL;
}

void bxi_gpu_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

int bxi_gpu_helper_start(struct bxi_gpu_helper *helper)
{
    int error;

    pthread_mutex_init(&helper->lock, NULL);
    bxi_gpu_cond_init(&helper->change);
    error = bxi_thread_create(&helper->thread, help, helper);
    if (error == 0)
        return 0;
    pthread_cond_destroy(&helper->change);
    pthread_mutex_destroy(&helper->lock);
    return bxi_gpu_fail(-error, "no thread for opening and closing GPU memory: %s", strerrorname_np(error));
}

void bxi_gpu_helper_post(struct bxi_gpu_helper *helper, struct bxi_gpu_job *job)
{
    pthread_mutex_lock(&helper->lock);
    job->next = NULL;
    if (helper->first == NULL)
        helper->first = job;
    else
        helper->last->next = job;
    helper->last = job;
    pthread_cond_broadcast(&helper->change);
    pthread_mutex_unlock(&helper->lock);
}

bool bxi_gpu_helper_drain(struct bxi_gpu_helper *helper, uint64_t end_ns)
{
    BXI_UNCANCELLED;
    struct timespec end = bxi_gpu_timespec(end_ns);
    bool is_idle;
    int late = 0;

    pthread_mutex_lock(&helper->lock);
    while ((helper->first != NULL || helper->is_busy) && late == 0)
        late = pthread_cond_timedwait(&helper->change, &helper->lock, &end);
    is_idle = helper->first == NULL && !helper->is_busy;
    pthread_mutex_unlock(&helper->lock);
    return is_idle;
}

void bxi_gpu_helper_leave(struct bxi_gpu_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    helper->is_left = true;
    pthread_cond_broadcast(&helper->change);
    pthread_mutex_unlock(&helper->lock);
    pthread_detach(helper->thread);
}

void bxi_gpu_helper_stop(struct bxi_gpu_helper *helper)
{
    pthread_mutex_lock(&helper->lock);
    helper->stops = true;
    pthread_cond_broadcast(&helper->change);
    pthread_mutex_unlock(&helper->lock);
    pthread_join(helper->thread, NULL);
    pthread_cond_destroy(&helper->change);
    pthread_mutex_destroy(&helper->lock);
}
