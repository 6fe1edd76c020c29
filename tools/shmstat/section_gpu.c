/* SPDX-License-Identifier: MIT */
#include "section_gpu.h"

#include "describe.h"
#include "json.h"

#include <stdio.h>

/* ---- Rows --------------------------------------------------------------------------------------- */

/* Of the slabs on that device: how many, and their bytes; LIVE and RETIRING ones, or RETIRING ones only. */
static uint64_t sum_slabs(const struct stat_gpu *gpu, int device, bool is_retiring, uint64_t *bytes)
{
    uint64_t count = 0;

    *bytes = 0;
    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab_row *slab = &gpu->region.slab[i];
        unsigned state = stat_slab_state(slab);

        if ((state == BXI_GPU_SLAB_RETIRING || (state == BXI_GPU_SLAB_LIVE && !is_retiring)) &&
            stat_gpu_device_of(gpu, slab) == device) {
            count++;
            *bytes += slab->bytes;
        }
    }
    return count;
}

int stat_device_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_gpu *gpu = worker->gpu;
    char uuid[STAT_UUID_BYTES];
    uint64_t bytes;

    (void)job;
    if (gpu == NULL || (uint32_t)index >= stat_gpu_devices(gpu))
        return STAT_END;

    uint32_t order = stat_gpu_order(gpu, (uint32_t)index);
    bool is_fallback = stat_gpu_is_fallback(worker, order);

    stat_uuid_text(uuid, gpu->region.head.device[index]);
    stat_put(row, "device", STAT_COUNT, (uint64_t)index);
    stat_put_text(row, "uuid", uuid);
    stat_put_text(row, "order", stat_order_name(order));
    stat_put(row, "is_fallback", STAT_FLAG, is_fallback);
    stat_put(row, ".order", STAT_COUNT, order);
    stat_put_text(row, ".unordered", order == 0 ? "no stream of it is open" : NULL);
    stat_put_text(row, ".why", order <= BXI_GPU_HOST_WORDS ? NULL : is_fallback ? "(a fallback)" : "(asked for)");
    stat_put(row, ".retiring", STAT_COUNT, sum_slabs(gpu, index, true, &bytes));
    stat_put(row, ".slabs", STAT_COUNT, sum_slabs(gpu, index, false, &bytes));
    stat_put(row, ".slab_bytes", STAT_BYTES, bytes);
    return STAT_ROW;
}

static int slab_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct bxi_gpu_slab_row *slab = &worker->gpu->region.slab[index];
    uint64_t ranks[BXI_WORLD_MAX];
    int device;

    if (index >= BXI_GPU_SLABS)
        return STAT_END;
    if (stat_slab_state(slab) == BXI_GPU_SLAB_EMPTY)
        return STAT_SKIP;
    device = stat_gpu_device_of(worker->gpu, slab);
    stat_put(row, "slab", STAT_COUNT, (uint64_t)index);
    stat_put(row, "generation", STAT_COUNT, stat_slab_generation(slab));
    stat_put_text(row, "state", stat_slab_state_name(stat_slab_state(slab)));
    stat_put(row, "bytes", STAT_BYTES, slab->bytes);
    stat_put_text(row, "export", (slab->flags & BXI_GPU_SLAB_FD) != 0 ? "fd" : "handle");
    stat_put_if(row, device >= 0, "device", STAT_COUNT, (uint64_t)device);
    stat_put_list(row, "open_in", ranks, stat_gpu_openers(job, worker, (uint32_t)index, true, ranks));
    stat_put_list(row, "was_open_in", ranks, stat_gpu_openers(job, worker, (uint32_t)index, false, ranks));
    stat_put_text(row, ".unopened", device < 0 ? "on a device that is not open yet," : NULL);
    return STAT_ROW;
}

static int lane_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_gpu *gpu = worker->gpu;

    (void)job;
    if (index >= BXI_GPU_LANES)
        return STAT_END;
    if (stat_gpu_lane_order(gpu, index) == 0)
        return STAT_SKIP;

    bool is_poisoned = stat_lane_is_poisoned(gpu, index);

    stat_put(row, "lane", STAT_COUNT, (uint64_t)index);
    stat_put(row, "device", STAT_COUNT, gpu->region.lane[index].device);
    stat_put_text(row, "order", stat_order_name(stat_gpu_lane_order(gpu, index)));
    stat_put(row, "word", STAT_COUNT, stat_word(&gpu->region.word[index].value) & ~BXI_GPU_POISON);
    stat_put(row, "poisoned", STAT_FLAG, is_poisoned);
    stat_put_text(row, ".poisoned", is_poisoned ? "and is poisoned" : NULL);
    return STAT_ROW;
}

static int borrow_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    const struct stat_borrow *borrow = &worker->gpu->borrows[index];
    const struct bxi_gpu_slab_row *slab;

    if ((size_t)index >= worker->gpu->borrow_count)
        return STAT_END;
    slab = stat_gpu_row_of(job, borrow);
    stat_put(row, "peer", STAT_COUNT, (uint64_t)borrow->peer);
    stat_put_text(row, "peer_name", stat_peer_name(job, borrow->peer));
    stat_put(row, "slab", STAT_COUNT, borrow->slab);
    stat_put(row, "generation", STAT_COUNT, borrow->generation);
    stat_put_text(row, "state", slab != NULL ? stat_slab_state_name(stat_slab_state(slab)) : NULL);
    stat_put_if(row, slab != NULL, "bytes", STAT_BYTES, slab != NULL ? slab->bytes : 0);
    return STAT_ROW;
}

/* ---- Text --------------------------------------------------------------------------------------- */

static void add_openers(struct stat_flow *flow, const char *what, const struct stat_job *job,
                        const struct stat_field *list)
{
    const uint64_t *ranks = list->at;

    if (list->count > 0)
        stat_flow_add(flow, "%s in %zu:", what, (size_t)list->count);
    for (size_t i = 0; i < list->count; i++)
        stat_flow_add(flow, "%d %s%s", (int)ranks[i], stat_peer_name(job, (int)ranks[i]),
                      i + 1 < list->count ? "," : "");
}

static void text_slabs(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;
    struct stat_flow flow;
    char label[24];

    for (int i = 0; i < BXI_GPU_SLABS; i++) {
        stat_row_begin(&row);
        if (slab_row(job, worker, i, &row) != STAT_ROW)
            continue;

        const struct stat_field *alive = stat_row_field(&row, "open_in"), *dead = stat_row_field(&row, "was_open_in");

        snprintf(label, sizeof(label), "slab %d", i);
        stat_flow_begin(&flow, label);
        stat_flow_row(&flow, "generation {generation}, {state},|{bytes}|on device {device},|{.unopened}", &row);
        add_openers(&flow, "open", job, alive);
        add_openers(&flow, "was open", job, dead);
        if (alive->count + dead->count == 0)
            stat_flow_add(&flow, "open nowhere else");
        stat_flow_end(&flow);
    }
}

/* A line for each owner. */
static void text_borrows(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;
    struct stat_flow flow;
    int peer = -1;

    for (size_t i = 0; i < worker->gpu->borrow_count; i++) {
        stat_row_begin(&row);
        borrow_row(job, worker, (int)i, &row);
        if (worker->gpu->borrows[i].peer != peer) {
            if (peer >= 0)
                stat_flow_end(&flow);
            peer = worker->gpu->borrows[i].peer;
            stat_flow_begin(&flow, "borrowed");
            stat_flow_add(&flow, "%d %s:", peer, stat_peer_name(job, peer));
        }
        stat_flow_row(&flow, stat_row_field(&row, "bytes")->presence == STAT_PRESENT
                                 ? "slab {slab}|(generation {generation}, {state}, {bytes})"
                                 : "slab {slab}|(generation {generation})", &row);
    }
    if (peer >= 0)
        stat_flow_end(&flow);
}

static void text_refused(const struct stat_gpu *gpu)
{
    char uuid[STAT_UUID_BYTES];
    struct stat_flow flow;

    if (stat_gpu_refused(gpu) == 0)
        return;
    stat_flow_begin(&flow, "refused");
    stat_flow_words(&flow, "memory of these devices cannot be mapped:");
    for (uint32_t i = 0; i < stat_gpu_refused(gpu); i++) {
        stat_uuid_text(uuid, gpu->region.head.refused[i]);
        stat_flow_add(&flow, "%s", uuid);
    }
    stat_flow_end(&flow);
}

void stat_gpu_text(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_flow flow;

    if (worker->gpu == NULL)
        return;
    if (worker->gpu->problem != NULL) {
        stat_flow_begin(&flow, "gpu");
        stat_flow_words(&flow, worker->gpu->problem);
        stat_flow_end(&flow);
    }
    stat_rows_text("device {device}", "{uuid},|{.unordered}|ordered by {order}|{.why}", stat_device_row, job, worker);
    stat_rows_text("gpu", "{gpu_bytes} held,|{gpu_bytes_used} in tensors;|staged {gpu_staged_bytes}, "
                   "copied {gpu_copied_bytes};|slabs opened {gpu_slabs_opened}, closed {gpu_slabs_closed}",
                   stat_gpu_counter_row, job, worker);
    stat_rows_text("streams", "marks {gpu_marks}, waits {gpu_waits}, saved {gpu_waits_saved};|host synchronises "
                   "{gpu_host_synchronises}, word reads {gpu_word_reads}, fallbacks {gpu_fallbacks}",
                   stat_gpu_counter_row, job, worker);
    text_slabs(job, worker);
    stat_rows_text("lane {lane}", "of device {device},|{order},|has come to {word}|{.poisoned}", lane_row,
                   job, worker);
    text_borrows(job, worker);
    text_refused(worker->gpu);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static void json_uuids(const char *name, const uint8_t *list, uint32_t count)
{
    char uuid[STAT_UUID_BYTES];

    stat_json_open(name, '[');
    for (uint32_t i = 0; i < count; i++) {
        stat_uuid_text(uuid, list + (size_t)i * BXI_GPU_UUID_BYTES);
        stat_json_text(NULL, uuid);
    }
    stat_json_close(']');
}

void stat_gpu_json(const struct stat_job *job, const struct stat_worker *worker)
{
    const struct stat_gpu *gpu = worker->gpu;

    if (gpu == NULL) {
        stat_json_null("gpu");
        return;
    }
    stat_json_open("gpu", '{');
    stat_json_text("problem", gpu->problem);
    stat_rows_json("devices", stat_device_row, job, worker);
    stat_rows_json("slabs", slab_row, job, worker);
    stat_rows_json("lanes", lane_row, job, worker);
    stat_rows_json("borrowed", borrow_row, job, worker);
    json_uuids("known", gpu->region.head.known[0], stat_gpu_known(gpu));
    json_uuids("refused", gpu->region.head.refused[0], stat_gpu_refused(gpu));
    stat_json_close('}');
}
