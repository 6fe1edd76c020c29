/* SPDX-License-Identifier: MIT */
/*
 * Remote workers, read from outside.
 *
 * The rows are copied twice. A transport counts if the first copy has a round trip, before which it is written.
 */
#include "remote.h"

#include "text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Copies ------------------------------------------------------------------------------------- */

static void make_printable(char *text, size_t bytes)
{
    char raw[BXI_HOST_BYTES];

    memcpy(raw, text, bytes);
    stat_printable(text, bytes, raw, bytes);
}

int stat_remotes_read(struct stat_worker *worker)
{
    const uint64_t rows = stat_word(&bxi_tables(worker->control)->remote_rows);
    struct bxi_remote_row *copies;

    /* The rows are allocated if there are any; pread of rows that are not would read zeroes. */
    if (rows == 0 || rows > worker->control->header.world_size)
        return 0;
    copies = calloc(2 * rows, sizeof(*copies));
    if (copies == NULL)
        return -ENOMEM;
    worker->remotes = copies;
    if (stat_pread(&worker->segment, copies + rows, rows * sizeof(*copies), BXI_REMOTES_OFFSET) < 0 ||
        stat_pread(&worker->segment, copies, rows * sizeof(*copies), BXI_REMOTES_OFFSET) < 0)
        return 0;
    worker->remote_count = (uint32_t)rows;
    for (uint64_t i = 0; i < rows; i++) {
        make_printable(copies[i].name, sizeof(copies[i].name));
        make_printable(copies[i].host, sizeof(copies[i].host));
        make_printable(copies[i].transport, sizeof(copies[i].transport));
        if (stat_word(&copies[rows + i].round_trip_ns) == 0)
            copies[i].transport[0] = '\0';
    }
    return 0;
}

/* ---- Who is elsewhere --------------------------------------------------------------------------- */

/* The worker's row about that rank; NULL: none. */
static const struct bxi_remote_row *row_of(const struct stat_worker *worker, int rank)
{
    if (worker == NULL || rank < 0 || (uint32_t)rank >= worker->remote_count || worker->remotes[rank].name[0] == '\0')
        return NULL;
    return &worker->remotes[rank];
}

const struct bxi_remote_row *stat_remote(const struct stat_job *job, int rank)
{
    if (rank < 0 || rank >= BXI_WORKERS_MAX || job->workers[rank] != NULL)
        return NULL;
    for (int i = 0; i < BXI_WORKERS_MAX; i++)
        if (row_of(job->workers[i], rank) != NULL)
            return row_of(job->workers[i], rank);
    return NULL;
}

const struct stat_worker *stat_remote_like(const struct stat_job *job, int rank, uint32_t function)
{
    for (int i = 0; i < BXI_WORKERS_MAX; i++)
        if (function < BXI_FUNCTION_MAX && row_of(job->workers[i], rank) != NULL &&
            stat_bit(row_of(job->workers[i], rank)->same_functions, (int)function))
            return job->workers[i];
    return NULL;
}

int stat_remote_count(const struct stat_job *job)
{
    int count = 0;

    for (int rank = 0; rank < BXI_WORKERS_MAX; rank++)
        count += stat_remote(job, rank) != NULL;
    return count;
}

bool stat_remote_is_dead(const struct stat_job *job, int rank)
{
    for (int i = 0; i < BXI_WORKERS_MAX; i++)
        if (row_of(job->workers[i], rank) != NULL && stat_word(&row_of(job->workers[i], rank)->is_dead) != 0)
            return true;
    return false;
}

/* ---- Rows --------------------------------------------------------------------------------------- */

int stat_remote_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row)
{
    const struct bxi_remote_row *remote = row_of(worker, peer);
    uint64_t round_trip_ns;

    (void)job;
    if ((uint32_t)peer >= worker->remote_count)
        return STAT_END;
    if (remote == NULL)
        return STAT_SKIP;
    round_trip_ns = stat_word(&remote->round_trip_ns);
    stat_put(row, "peer", STAT_ID, (uint64_t)peer);
    stat_put_text(row, "peer_name", remote->name);
    stat_put_text(row, "host", remote->host);
    stat_put(row, "peer_is_dead", STAT_FLAG, stat_word(&remote->is_dead) != 0);
    stat_put_text(row, "transport", remote->transport);
    stat_put(row, "bytes_sent", STAT_BYTES, stat_word(&remote->bytes_sent));
    stat_put(row, "bytes_received", STAT_BYTES, stat_word(&remote->bytes_received));
    stat_put_real(row, "round_trip_seconds", STAT_SECONDS, round_trip_ns != 0 ? 1e-9 * (double)round_trip_ns : -1);
    stat_put_format(row, ".peer", "    %d %s", peer, stat_cut_text(remote->name, 12));
    stat_put_text(row, ".host", stat_cut_text(remote->host, 14));
    stat_put_text(row, ".transport", remote->transport[0] == '\0' ? NULL : stat_cut_text(remote->transport, 12));
    return STAT_ROW;
}

void stat_elsewhere_text(const struct stat_job *job)
{
    bool told[BXI_WORKERS_MAX] = { false };
    struct stat_flow flow;

    for (int rank = 0; rank < BXI_WORKERS_MAX; rank++) {
        const struct bxi_remote_row *first = stat_remote(job, rank);

        if (first == NULL || told[rank])
            continue;
        stat_flow_begin(&flow, "elsewhere");
        stat_flow_add(&flow, "host %s:", first->host);
        for (int other = rank; other < BXI_WORKERS_MAX; other++) {
            const struct bxi_remote_row *remote = stat_remote(job, other);

            if (remote == NULL || strcmp(remote->host, first->host) != 0)
                continue;
            told[other] = true;
            flow.comma = other > rank;
            stat_flow_add(&flow, "%s%s", remote->name, stat_remote_is_dead(job, other) ? " (dead)" : "");
        }
        flow.comma = false;
        stat_flow_words(&flow, "- their segments cannot be read here: run shmstat there");
        stat_flow_end(&flow);
    }
}
