/* SPDX-License-Identifier: MIT */
/*
 * The end of what the room has made. The thread that destroys the job, or whose start has failed.
 */
#include "net.h"

#include "shm/fork.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void destroy_twin(struct bxi_twin *twin)
{
    if (twin == NULL)
        return;
    bxi_landing_forget(twin);
    bxi_in_forget(twin);
    if (twin->arena_fd >= 0)
        close(twin->arena_fd);
    if (twin->control != NULL)
        munmap(twin->control, bxi_segment_bytes(twin->job->world_size));
    if (twin->arena != NULL)
        munmap(twin->arena, twin->job->net->places[twin->rank].arena_bytes);
    free(twin->returned);
    free(twin);
}

void bxi_net_destroy(struct bx_job *job)
{
    struct bxi_net *net = job->net;

    if (net == NULL)
        return;
    bxi_links_stop(net);
    if (net->wire != NULL)
        net->ops->close(net->wire, 0);
    for (int rank = 0; rank < BXI_WORKERS_MAX; rank++) {
        destroy_twin(net->twins[rank]);
        free(net->places[rank].address);
        free(net->places[rank].functions);
    }
    for (int i = 0; i < BXI_LINKS_MAX; i++)
        bxi_unshared_close(net->links[i].fd);
    for (int i = 0; i < BXI_KNOCKING; i++)
        if (net->knocking[i] >= 0)
            close(net->knocking[i]);
    bxi_unshared_close(net->listen_fd);
    if (net->epoll_fd >= 0)
        close(net->epoll_fd);
    if (net->stop_fd >= 0)
        close(net->stop_fd);
    free(net->reserve);
    free(net);
    job->net = NULL;
}
