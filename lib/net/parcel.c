/* SPDX-License-Identifier: MIT */
/*
 * Messages of the wire, on their way out. Under the progress role.
 */
#include "net.h"

#include <errno.h>
#include <stdlib.h>

void *bxi_net_memory(struct bxi_net *net, size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory != NULL || net->reserve == NULL)
        return memory;
    free(net->reserve);
    net->reserve = NULL;
    return malloc(bytes);
}

/* ---- parts --------------------------------------------------------------------------------------------- */

void bxi_sending_drop(struct bxi_sending *sending)
{
    if (--sending->parts > 0)
        return;
    for (uint32_t i = 0; i < sending->count; i++)
        bxi_storage_release(sending->storages[i]);
    free(sending);
}

/* Or never will be. */
static void part_is_sent(struct bxi_twin *twin, struct bxi_sending *sending)
{
    bxi_sending_drop(sending);
    if (--twin->parts_under_way > 0)
        return;
    twin->parts_ahead = 0;
    twin->waits_for_parts = false;
}

void bxi_parcel_send_part(struct bxi_twin *twin, struct bxi_parcel *parcel, const void *memory, size_t bytes)
{
    parcel->sending->parts++;
    twin->parts_under_way++;
    twin->parts_ahead++;
    bxi_parcel_send_memory(twin, parcel, memory, bytes);
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static void parcel_is_sent(void *context, int rc)
{
    struct bxi_parcel *parcel = context;

    if (rc < 0)                         /* what follows would wait for it */
        bxi_twin_lost(parcel->twin->job, parcel->twin);
    if (parcel->is_words)
        parcel->twin->words_under_way = false;
    if (parcel->sending != NULL)
        part_is_sent(parcel->twin, parcel->sending);
    free(parcel);
}

struct bxi_parcel *bxi_parcel_make(struct bxi_twin *twin, enum bxi_parcel_kind kind, size_t room)
{
    struct bxi_parcel *parcel = bxi_net_memory(twin->job->net, sizeof *parcel + room);

    if (parcel == NULL)
        return NULL;
    *parcel = (struct bxi_parcel){
        .head = { .instance = twin->job->instance, .from = (uint16_t)twin->job->rank, .kind = (uint16_t)kind },
        .twin = twin,
        .operation = { .done = parcel_is_sent, .context = parcel },
    };
    return parcel;
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
    twin->job->net->ops->send(twin->end, &parcel->head, sizeof parcel->head, memory, bytes, &parcel->operation);
}

void bxi_parcel_send(struct bxi_twin *twin, struct bxi_parcel *parcel)
{
    bxi_parcel_send_memory(twin, parcel, parcel->data, parcel->bytes);
}

void bxi_parcel_send_cut(struct bxi_twin *twin)
{
    struct bxi_parcel *parcel = twin->has_heard ? NULL : bxi_parcel_make(twin, BXI_PARCEL_CUT, 0);

    bxi_twin_activate(twin);            /* without memory it is tried again */
    if (parcel == NULL)
        return;
    twin->has_heard = true;
    parcel->head.number = bxi_load_relaxed(&twin->job->rpc->peers[twin->rank]->state);  /* relaxed: the role's */
    bxi_parcel_send_memory(twin, parcel, &parcel->head, 0);
}
