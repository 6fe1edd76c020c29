/* SPDX-License-Identifier: MIT */
/*
 * The segment's table of requests that are being served: a row for each request, from bxi_serving_show to
 * bxi_serving_hide, both under the lock. When no row is free, a request has none. Inspectors in other processes read
 * the rows without a lock (shm/layout.h, struct bxi_serving).
 */
#include "rpc.h"

void bxi_serving_show(struct bx_request *request, enum bxi_waiting_state state)
{
    static const enum bxi_where first[] = { [BXI_WAITS_FOR_THREAD] = BXI_AT_POOL, [BXI_WAITS_FOR_BATCH] = BXI_AT_BATCH,
                                            [BXI_WAITS_FOR_FUTURE] = BXI_AT_FUTURE,
                                            [BXI_WAITS_FOR_OBJECT] = BXI_AT_OBJECT, [BXI_WAITS_NO_MORE] = BXI_AT_NONE };
    struct bx_job *job = request->job;
    struct bxi_serving *row;

    request->row = BXI_NO_ROW;
    if (job->observe->free_row_count == 0)
        return;
    request->row = job->observe->free_rows[--job->observe->free_row_count];
    row = &bxi_tables(job->control)->serving[request->row];
    /* Relaxed: published by the store of `where`. */
    bxi_store_relaxed(&row->id, request->id);
    bxi_store_relaxed(&row->who, bxi_serving_who(request));
    bxi_store_relaxed(&row->since_ns, job->run->pass_ns != 0 ? job->run->pass_ns : bxi_coarse_ns());
    /* Release, for inspectors in other processes: the words above are of this request. */
    bxi_store_release(&row->where, first[state]);
}

void bxi_serving_hide(const struct bx_request *request)
{
    struct bx_job *job = request->job;

    if (request->row == BXI_NO_ROW)
        return;
    /* Relaxed: for inspectors */
    bxi_store_relaxed(&bxi_tables(job->control)->serving[request->row].where, BXI_AT_NONE);
    job->observe->free_rows[job->observe->free_row_count++] = request->row;
}

void bxi_serving_at(const struct bx_request *request, enum bxi_where where)
{
    uint64_t thread = where == BXI_AT_FUTURE ? 0 : bxi_thread_id();

    if (request->row == BXI_NO_ROW)
        return;
    /* Relaxed: for inspectors. */
    bxi_store_relaxed(&bxi_tables(request->job->control)->serving[request->row].where, (uint64_t)where | thread << 8);
}
