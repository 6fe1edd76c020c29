/* SPDX-License-Identifier: MIT */
/*
 * Messages of the wire, on their way out. Under the progress role.
 */
#include "net.h"

#include <errno.h>
#include <stdlib.h>

struct bxi_parcel *bxi_parcel_make(struct bxi_twin *twin, enum bxi_parcel_kind kind, size_t room)
{
    struct bxi_parcel *parcel = malloc(sizeof *parcel + room);

    if (parcel == NULL)
        return NULL;
    parcel->head = (struct bxi_parcel_head){ .instance = twin->job->instance, .from = (uint16_t)twin->job->rank,
                                             .kind = (uint16_t)kind };
    parcel->twin = twin;
    parcel->sending = NULL;
    parcel->bytes = 0;
    return parcel;
}

static void parcel_is_sent(void *context, int rc)
{
    struct bxi_parcel *parcel = context;

    if (rc < 0)                         /* what follows would wait for it */
        bxi_twin_lost(parcel->twin->job, parcel->twin);
    if (parcel->sending != NULL)
        bxi_out_part_is_sent(parcel->twin, parcel->sending);
    free(parcel);
}

/* False: there is no way to it. */
static bool connect_to(struct bxi_twin *twin)
{
    struct bxi_net *net = twin->job->net;
    int rc;

    if (twin->end != NULL)
        return true;
    rc = net->ops->connect(net->wire, net->places[twin->rank].address, twin, &twin->end);
    if (rc < 0) {
        bxi_log(twin->job, 0, "there is no way to worker '%s' (rank %d) on host '%s': %s", net->places[twin->rank].name,
                twin->rank, net->places[twin->rank].machine, bx_strerror(rc));
        bxi_twin_dies(net, twin);
    }
    return rc == 0;
}

void bxi_parcel_send_memory(struct bxi_twin *twin, struct bxi_parcel *parcel, const void *memory, size_t bytes)
{
    if (!connect_to(twin)) {
        parcel_is_sent(parcel, -ENOTCONN);
        return;
    }
    bxi_net_show_sent(twin, &parcel->head, sizeof parcel->head + bytes);
    twin->job->net->ops->send(twin->end, &parcel->head, sizeof parcel->head, memory, bytes, parcel_is_sent, parcel);
}

void bxi_parcel_send(struct bxi_twin *twin, struct bxi_parcel *parcel)
{
    bxi_parcel_send_memory(twin, parcel, parcel->data, parcel->bytes);
}
