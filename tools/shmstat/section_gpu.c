/* SPDX-License-Identifier: MIT */
/*
 * The device memory of one worker, for gpu and show: devices and how their streams are ordered with others', slabs
 * and who has them open, lanes, what the worker has open of others.
 */
#include "section_gpu.h"

#include "json.h"
#include "state.h"
#include "text.h"

#include <stdio.h>

typedef unsigned long long ull;

/* ---- Text --------------------------------------------------------------------------------------- */

#define COUNT(name) ((ull)stat_word(&bxi_tables(worker->control)->counters[BXI_C_##name]))

static void begin_numbered(struct stat_flow *flow, const char *what, uint32_t number)
{
    char label[24];

    snprintf(label, sizeof(label), "%s %u", what, number);
    stat_flow_begin(flow, label);
}

static void text_devices(const struct stat_worker *worker)
{
    const struct stat_gpu *gpu = worker->gpu;
    char uuid[STAT_UUID_BYTES];

    for (uint32_t i = 0; i < stat_gpu_devices(gpu); i++) {
        uint32_t order = stat_gpu_order(gpu, i);
        struct stat_flow flow;

        stat_uuid_text(uuid, gpu->region.head.device[i]);
        begin_numbered(&flow, "device", i);
        stat_flow_add(&flow, "%s,", uuid);
        if (order == 0)
            stat_flow_add(&flow, "no stream of it is open");
        else
            stat_flow_add(&flow, "ordered by %s", stat_order_name(order));
        if (order > BXI_GPU_HOST_WORDS)
            stat_flow_add(&flow, stat_gpu_is_fallback(worker, order) ? "(a fallback)" : "(asked for)");
        stat_flow_end(&flow);
    }
}

static void text_figures(const struct stat_worker *worker)
{
    struct stat_flow flow;

    stat_flow_begin(&flow, "gpu");
    stat_flow_add(&flow, "%s held,", stat_bytes_text(COUNT(gpu_bytes)));
    stat_flow_add(&flow, "%s in tensors;", stat_bytes_text(COUNT(gpu_bytes_used)));
    stat_flow_add(&flow, "staged %s, copied %s;", stat_bytes_text(COUNT(gpu_staged_bytes)),
                  stat_bytes_text(COUNT(gpu_copied_bytes)));
    stat_flow_add(&flow, "slabs opened %llu, closed %llu", COUNT(gpu_slabs_opened), COUNT(gpu_slabs_closed));
    stat_flow_end(&flow);
    stat_flow_begin(&flow, "streams");
    stat_flow_add(&flow, "marks %llu, waits %llu, saved %llu;", COUNT(gpu_marks), COUNT(gpu_waits),
                  COUNT(gpu_waits_saved));
    stat_flow_add(&flow, "host synchronises %llu, fallbacks %llu", COUNT(gpu_host_synchronises),
                  COUNT(gpu_fallbacks));
    stat_flow_end(&flow);
}

static void add_openers(struct stat_flow *flow, const struct stat_job *job, const struct stat_worker *worker,
                        uint32_t slab)
{
    uint64_t ranks[BXI_WORLD_MAX];
    size_t count = stat_gpu_openers(job, worker, slab, true, ranks), dead;

    if (count > 0)
        stat_flow_add(flow, "open in %zu:", count);
    for (size_t i = 0; i < count; i++)
        stat_flow_add(flow, "%d %s%s", (int)ranks[i], stat_peer_name(job, (int)ranks[i]), i + 1 < count ? "," : "");
    dead = stat_gpu_openers(job, worker, slab, false, ranks);
    if (dead > 0)
        stat_flow_add(flow, "was open in %zu:", dead);
    for (size_t i = 0; i < dead; i++)
        stat_flow_add(flow, "%d %s%s", (int)ranks[i], stat_peer_name(job, (int)ranks[i]), i + 1 < dead ? "," : "");
    if (count + dead == 0)
        stat_flow_add(flow, "open nowhere else");
}

static void text_slabs(const struct stat_job *job, const struct stat_worker *worker)
{
    for (uint32_t i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab_row *row = &worker->gpu->region.slab[i];
        int device = stat_gpu_device_of(worker->gpu, row);
        struct stat_flow flow;

        if (stat_slab_state(row) == BXI_GPU_SLAB_EMPTY)
            continue;
        begin_numbered(&flow, "slab", i);
        stat_flow_add(&flow, "generation %llu, %s,", (ull)stat_slab_generation(row),
                      stat_slab_state_name(stat_slab_state(row)));
        stat_flow_add(&flow, "%s", stat_bytes_text(row->bytes));
        if (device >= 0)
            stat_flow_add(&flow, "on device %d,", device);
        else
            stat_flow_add(&flow, "on a device that is not open yet,");
        add_openers(&flow, job, worker, i);
        stat_flow_end(&flow);
    }
}

static void text_lanes(const struct stat_worker *worker)
{
    const struct stat_gpu *gpu = worker->gpu;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        uint64_t word = stat_word(&gpu->region.word[i].value) & ~BXI_GPU_POISON;
        struct stat_flow flow;

        if (stat_gpu_lane_order(gpu, i) == 0)
            continue;
        begin_numbered(&flow, "lane", (uint32_t)i);
        stat_flow_add(&flow, "of device %u,", gpu->region.lane[i].device);
        stat_flow_add(&flow, "%s,", stat_order_name(stat_gpu_lane_order(gpu, i)));
        if (stat_gpu_lane_order(gpu, i) == BXI_GPU_DEVICE_WORDS)
            stat_flow_add(&flow, "its word is in device memory");
        else
            stat_flow_add(&flow, "has come to %llu", (ull)word);
        if (stat_lane_is_poisoned(gpu, i))
            stat_flow_add(&flow, "and is poisoned");
        stat_flow_end(&flow);
    }
}

static void text_borrows(const struct stat_job *job, const struct stat_worker *worker)
{
    int peer = -1;
    struct stat_flow flow;

    for (size_t i = 0; i < worker->gpu->borrow_count; i++) {
        const struct stat_borrow *borrow = &worker->gpu->borrows[i];
        const struct bxi_gpu_slab_row *row = stat_gpu_row_of(job, borrow);

        if (borrow->peer != peer) {
            if (peer >= 0)
                stat_flow_end(&flow);
            stat_flow_begin(&flow, "borrowed");
            stat_flow_add(&flow, "%d %s:", borrow->peer, stat_peer_name(job, borrow->peer));
        }
        peer = borrow->peer;
        stat_flow_add(&flow, "slab %u", borrow->slab);
        stat_flow_add(&flow, "(generation %llu%s%s%s%s)", (ull)borrow->generation, row != NULL ? ", " : "",
                      row != NULL ? stat_slab_state_name(stat_slab_state(row)) : "", row != NULL ? ", " : "",
                      row != NULL ? stat_bytes_text(row->bytes) : "");
    }
    if (peer >= 0)
        stat_flow_end(&flow);
}

static void text_uuids(const char *name, const char *words, const uint8_t *list, uint32_t count)
{
    char uuid[STAT_UUID_BYTES];
    struct stat_flow flow;

    if (count == 0)
        return;
    stat_flow_begin(&flow, name);
    stat_flow_words(&flow, words);
    for (uint32_t i = 0; i < count; i++) {
        stat_uuid_text(uuid, list + (size_t)i * BXI_GPU_UUID_BYTES);
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
    text_devices(worker);
    text_figures(worker);
    text_slabs(job, worker);
    text_lanes(worker);
    text_borrows(job, worker);
    text_uuids("refused", "memory of these devices cannot be mapped:", worker->gpu->region.head.refused[0],
               stat_gpu_refused(worker->gpu));
}

/* ---- JSON --------------------------------------------------------------------------------------- */

static void json_devices(const struct stat_worker *worker)
{
    const struct stat_gpu *gpu = worker->gpu;
    char uuid[STAT_UUID_BYTES];

    stat_json_open("devices", '[');
    for (uint32_t i = 0; i < stat_gpu_devices(gpu); i++) {
        uint32_t order = stat_gpu_order(gpu, i);

        stat_uuid_text(uuid, gpu->region.head.device[i]);
        stat_json_open(NULL, '{');
        stat_json_u64("device", i);
        stat_json_text("uuid", uuid);
        stat_json_text("order", stat_order_name(order));
        stat_json_bool("is_fallback", stat_gpu_is_fallback(worker, order));
        stat_json_close('}');
    }
    stat_json_close(']');
}

static void json_slabs(const struct stat_job *job, const struct stat_worker *worker)
{
    uint64_t ranks[BXI_WORLD_MAX];

    stat_json_open("slabs", '[');
    for (uint32_t i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab_row *row = &worker->gpu->region.slab[i];
        int device = stat_gpu_device_of(worker->gpu, row);

        if (stat_slab_state(row) == BXI_GPU_SLAB_EMPTY)
            continue;
        stat_json_open(NULL, '{');
        stat_json_u64("slab", i);
        stat_json_u64("generation", stat_slab_generation(row));
        stat_json_text("state", stat_slab_state_name(stat_slab_state(row)));
        stat_json_u64("bytes", row->bytes);
        if (device >= 0)
            stat_json_u64("device", (uint64_t)device);
        else
            stat_json_null("device");
        stat_json_u64s("open_in", ranks, stat_gpu_openers(job, worker, i, true, ranks));
        stat_json_u64s("was_open_in", ranks, stat_gpu_openers(job, worker, i, false, ranks));
        stat_json_close('}');
    }
    stat_json_close(']');
}

static void json_lanes(const struct stat_gpu *gpu)
{
    stat_json_open("lanes", '[');
    for (int i = 0; i < BXI_GPU_LANES; i++) {
        if (stat_gpu_lane_order(gpu, i) == 0)
            continue;
        stat_json_open(NULL, '{');
        stat_json_u64("lane", (uint64_t)i);
        stat_json_u64("device", gpu->region.lane[i].device);
        stat_json_text("order", stat_order_name(stat_gpu_lane_order(gpu, i)));
        if (stat_gpu_lane_order(gpu, i) == BXI_GPU_DEVICE_WORDS)
            stat_json_null("word");
        else
            stat_json_u64("word", stat_word(&gpu->region.word[i].value) & ~BXI_GPU_POISON);
        stat_json_bool("poisoned", stat_lane_is_poisoned(gpu, i));
        stat_json_close('}');
    }
    stat_json_close(']');
}

static void json_borrows(const struct stat_job *job, const struct stat_gpu *gpu)
{
    stat_json_open("borrowed", '[');
    for (size_t i = 0; i < gpu->borrow_count; i++) {
        const struct stat_borrow *borrow = &gpu->borrows[i];
        const struct bxi_gpu_slab_row *row = stat_gpu_row_of(job, borrow);

        stat_json_open(NULL, '{');
        stat_json_u64("peer", (uint64_t)borrow->peer);
        stat_json_text("peer_name", stat_peer_name(job, borrow->peer));
        stat_json_u64("slab", borrow->slab);
        stat_json_u64("generation", borrow->generation);
        stat_json_text("state", row != NULL ? stat_slab_state_name(stat_slab_state(row)) : NULL);
        if (row != NULL)
            stat_json_u64("bytes", row->bytes);
        else
            stat_json_null("bytes");
        stat_json_close('}');
    }
    stat_json_close(']');
}

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
    if (worker->gpu == NULL) {
        stat_json_null("gpu");
        return;
    }
    stat_json_open("gpu", '{');
    stat_json_text("problem", worker->gpu->problem);
    json_devices(worker);
    json_slabs(job, worker);
    json_lanes(worker->gpu);
    json_borrows(job, worker->gpu);
    json_uuids("known", worker->gpu->region.head.known[0], stat_gpu_known(worker->gpu));
    json_uuids("refused", worker->gpu->region.head.refused[0], stat_gpu_refused(worker->gpu));
    stat_json_close('}');
}
