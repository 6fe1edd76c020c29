/* SPDX-License-Identifier: MIT */
/*
 * The remote workers as rows of this worker's segment (observe/tables.h, struct bxi_remote_row), for shmstat. The
 * engine itself never reads them. A job of one host has none.
 *
 * The round trip is measured without messages of its own: each message carries when it was sent, and the last such time
 * that came from the other side, moved by how long it was held here. So it is the time that the wire and both progress
 * roles take, with their wake-ups, and not what handlers take.
 *
 * A worker that is killed leaves its rows as they were.
 */
#include "net.h"

#define ROUND_TRIP_MAX_NS UINT64_C(3600000000000)       /* a longer one is nonsense */
#define SMOOTHED 8u                     /* a new one counts for so much */

void bxi_net_show(struct bx_job *job)
{
    const uint64_t rows = (uint64_t)job->world_size;
    struct bxi_remote_row *row = bxi_segment_at(&job->segment, BXI_REMOTES_OFFSET);

    if (bxi_segment_allocate(&job->segment, BXI_REMOTES_OFFSET, rows * sizeof *row) < 0) {
        bxi_log(job, 1, "/dev/shm has no room for what shmstat would show of workers on other hosts");
        return;
    }
    for (int rank = 0; rank < job->world_size; rank++) {
        if (job->net->twins[rank] == NULL)
            continue;
        memcpy(row[rank].name, job->net->places[rank].name, sizeof row->name);
        memcpy(row[rank].host, job->net->places[rank].machine, sizeof row->host);
        job->net->twins[rank]->row = &row[rank];
        bxi_net_show_functions(job->net->twins[rank], 0, job->net->places[rank].function_count);
    }
    /* Release, for inspectors in other processes: the rows are written. */
    bxi_store_release(&bxi_tables(job->control)->remote_rows, rows);
}

void bxi_net_show_sent(struct bxi_twin *twin, struct bxi_parcel_head *head, size_t bytes)
{
    const uint64_t now_ns = bxi_now_ns();

    bxi_counter_add(twin->job, BXI_C_net_bytes, bytes);
    head->stamp_ns = now_ns;
    head->echo_ns = twin->stamp_ns == 0 ? 0 : twin->stamp_ns + (now_ns - twin->stamped_ns);
    if (twin->row != NULL)
        bxi_count(&twin->row->bytes_sent, bytes);
}

static void show_round_trip(struct bxi_twin *twin, uint64_t took_ns)
{
    const struct bxi_net *net = twin->job->net;
    uint64_t was_ns = bxi_load_relaxed(&twin->row->round_trip_ns);      /* relaxed: the role alone writes it */

    if (took_ns == 0 || took_ns > ROUND_TRIP_MAX_NS)
        return;
    if (was_ns == 0 && twin->end != NULL)
        net->ops->transport(twin->end, twin->row->transport, sizeof twin->row->transport);
    /* Release, for inspectors in other processes: the transport is written. */
    bxi_store_release(&twin->row->round_trip_ns,
                      was_ns == 0 ? took_ns : (was_ns * (SMOOTHED - 1) + took_ns) / SMOOTHED);
}

void bxi_net_show_received(struct bxi_twin *twin, const struct bxi_parcel_head *head, size_t bytes)
{
    bxi_counter_add(twin->job, BXI_C_net_bytes_received, bytes);
    twin->stamp_ns = head->stamp_ns;
    twin->stamped_ns = bxi_now_ns();
    if (twin->row == NULL)
        return;
    bxi_count(&twin->row->bytes_received, bytes);
    if (head->echo_ns != 0)
        show_round_trip(twin, twin->stamped_ns - head->echo_ns);
}

void bxi_net_show_functions(struct bxi_twin *twin, uint32_t first, uint32_t count)
{
    const struct bxi_function *own = twin->job->control->function, *theirs = twin->control->function;

    for (uint32_t i = first; i < first + count && twin->row != NULL; i++) {
        bxi_a64 *word = &twin->row->same_functions[i / 64];

        if (theirs[i].name[0] != '\0' && strncmp(own[i].name, theirs[i].name, sizeof own->name) == 0)
            bxi_store_relaxed(word, bxi_load_relaxed(word) | UINT64_C(1) << i % 64);    /* relaxed: for inspectors */
    }
}

void bxi_net_show_death(struct bxi_twin *twin)
{
    if (twin->row != NULL)
        bxi_store_relaxed(&twin->row->is_dead, 1);      /* relaxed: for inspectors */
}
