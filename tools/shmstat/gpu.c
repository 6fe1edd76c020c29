/* SPDX-License-Identifier: MIT */
/*
 * shmstat gpu: the devices of each worker and how its streams are ordered with others', its slabs and who has them
 * open, what it has open of others. The same is a section of show.
 *
 * A slab's owner does not know who has it open: each borrower says so in its own segment, by the slab's generation.
 * So these words are read of all workers, and behind them the regions: a generation that is held is then never newer
 * than the row that is read of its slab. Both change while they are read; what is shown of a job at work may be of
 * two moments that lie close together.
 */
#include "gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

/* ---- Reading ------------------------------------------------------------------------------------ */

static int add_borrow(struct stat_gpu *gpu, const struct stat_borrow *borrow)
{
    if ((gpu->borrow_count & (gpu->borrow_count - 1)) == 0) {       /* full: it doubles */
        size_t capacity = gpu->borrow_count == 0 ? 1 : 2 * gpu->borrow_count;
        struct stat_borrow *larger = realloc(gpu->borrows, capacity * sizeof(*larger));

        if (larger == NULL)
            return -ENOMEM;
        gpu->borrows = larger;
    }
    gpu->borrows[gpu->borrow_count++] = *borrow;
    return 0;
}

static int read_held(const struct stat_worker *worker)
{
    struct bxi_gpu_held held;

    for (int peer = 0; peer < (int)worker->control->header.world_size; peer++) {
        if (stat_pread(&worker->segment, &held, sizeof(held), bxi_device_pair_offset(peer)) < 0)
            return 0;
        for (uint32_t slab = 0; slab < BXI_GPU_SLABS; slab++) {
            struct stat_borrow borrow = { peer, slab, stat_word(&held.generation[slab]) };

            if (borrow.generation != 0 && add_borrow(worker->gpu, &borrow) < 0)
                return -ENOMEM;
        }
    }
    return 0;
}

static void read_region(const struct stat_worker *worker)
{
    struct stat_gpu *gpu = worker->gpu;

    if (stat_pread(&worker->segment, &gpu->region, sizeof(gpu->region), BXI_DEVICE_OFFSET) < 0)
        gpu->problem = "it cannot be read: its segment was truncated";
    else if (stat_word(&gpu->region.head.magic) != BXI_GPU_MAGIC)
        gpu->problem = "it says that it has a GPU open, and its region of device memory is none";
    else if (gpu->region.head.layout != BXI_GPU_LAYOUT)
        gpu->problem = "its region of device memory has another layout than this shmstat knows";
    if (gpu->problem != NULL)
        memset(&gpu->region, 0, sizeof(gpu->region));
}

int stat_gpus_read(struct stat_job *job)
{
    for (uint32_t rank = 0; rank < BXI_WORLD_MAX; rank++) {
        struct stat_worker *worker = job->workers[rank];

        /* Relaxed: a private copy. No byte of the region is read before it is 1. */
        if (stat_reader(job, rank) == NULL || bxi_load_relaxed(&worker->control->header.device_open) != 1)
            continue;
        worker->gpu = calloc(1, sizeof(*worker->gpu));
        if (worker->gpu == NULL || read_held(worker) < 0)
            return -ENOMEM;
    }
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++)
        if (job->workers[rank] != NULL && job->workers[rank]->gpu != NULL)
            read_region(job->workers[rank]);
    return 0;
}

void stat_gpu_free(struct stat_gpu *gpu)
{
    if (gpu != NULL)
        free(gpu->borrows);
    free(gpu);
}

/* ---- What is said of it ------------------------------------------------------------------------- */

const struct stat_gpu *stat_gpu_of(const struct stat_job *job, int rank)
{
    const struct stat_worker *worker = stat_reader(job, (uint32_t)rank);

    return worker != NULL && worker->gpu != NULL && worker->gpu->problem == NULL ? worker->gpu : NULL;
}

uint32_t stat_gpu_devices(const struct stat_gpu *gpu)
{
    /* Relaxed: a private copy. */
    uint32_t count = bxi_load_relaxed((bxi_a32 *)&gpu->region.head.device_count);

    return count < BXI_GPU_DEVICES ? count : BXI_GPU_DEVICES;
}

static uint32_t listed(const bxi_a32 *word)
{
    /* Relaxed: a private copy. */
    uint32_t count = bxi_load_relaxed((bxi_a32 *)word);

    return count < BXI_GPU_REFUSED ? count : BXI_GPU_REFUSED;
}

uint32_t stat_gpu_refused(const struct stat_gpu *gpu)
{
    return listed(&gpu->region.head.refused_count);
}

static uint32_t known(const struct stat_gpu *gpu)
{
    return listed(&gpu->region.head.known_count);
}

int stat_gpu_device_of(const struct stat_gpu *gpu, const struct bxi_gpu_slab_row *row)
{
    for (uint32_t i = 0; i < stat_gpu_devices(gpu); i++)
        if (memcmp(gpu->region.head.device[i], row->uuid, BXI_GPU_UUID_BYTES) == 0)
            return (int)i;
    return -1;
}

static uint32_t lane_order(const struct stat_gpu *gpu, int lane)
{
    /* Relaxed: a private copy. */
    return bxi_load_relaxed((bxi_a32 *)&gpu->region.lane[lane].order);
}

/* A device has a lane as long as it is in use, and all of them have its order. */
uint32_t stat_gpu_order(const struct stat_gpu *gpu, uint32_t device)
{
    for (int i = 0; i < BXI_GPU_LANES; i++)
        if (lane_order(gpu, i) != 0 && gpu->region.lane[i].device == device)
            return lane_order(gpu, i);
    return 0;
}

bool stat_gpu_is_fallback(const struct stat_worker *worker, uint32_t order)
{
    return order > BXI_GPU_HOST_WORDS && stat_word(&bxi_tables(worker->control)->counters[BXI_C_gpu_fallbacks]) != 0;
}

bool stat_lane_is_poisoned(const struct stat_gpu *gpu, int lane)
{
    return (stat_word(&gpu->region.word[lane].value) & BXI_GPU_POISON) != 0;
}

const char *stat_order_name(uint32_t order)
{
    static const char *const names[] = { NULL, "host_words", "device_words", "events", "host_sync" };

    return order <= BXI_GPU_HOST_SYNC ? names[order] : "unknown";
}

const char *stat_slab_state_name(unsigned state)
{
    static const char *const names[] = { "freed", "live", "retiring", "unknown" };

    return names[state & 3];
}

void stat_uuid_text(char text[STAT_UUID_BYTES], const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    int at = snprintf(text, STAT_UUID_BYTES, "GPU");

    for (int i = 0; i < BXI_GPU_UUID_BYTES; i++)
        at += snprintf(text + at, (size_t)(STAT_UUID_BYTES - at), "%s%02x",
                       i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* The row of a borrowed slab at its owner; NULL if it is another one by now, or cannot be read. */
static const struct bxi_gpu_slab_row *row_of(const struct stat_job *job, const struct stat_borrow *borrow)
{
    const struct stat_gpu *owner = stat_gpu_of(job, borrow->peer);
    const struct bxi_gpu_slab_row *row = owner != NULL ? &owner->region.slab[borrow->slab] : NULL;

    return row != NULL && stat_slab_generation(row) == borrow->generation ? row : NULL;
}

static int by_slab(const void *one, const void *other)
{
    const struct stat_borrow *a = one, *b = other;

    return a->peer != b->peer ? a->peer - b->peer : (int)a->slab - (int)b->slab;
}

static bool has_open(const struct stat_worker *worker, const struct stat_borrow *borrow)
{
    const struct stat_gpu *gpu = worker->gpu;
    const struct stat_borrow *found = NULL;

    if (gpu != NULL && gpu->borrow_count > 0)
        found = bsearch(borrow, gpu->borrows, gpu->borrow_count, sizeof(*borrow), by_slab);
    return found != NULL && found->generation == borrow->generation;
}

/* The ranks that have the slab open, of those that live or of those that are dead; how many. */
static size_t openers(const struct stat_job *job, const struct stat_worker *owner, uint32_t slab, bool alive,
                      uint64_t ranks[BXI_WORLD_MAX])
{
    struct stat_borrow borrow = { owner->rank, slab, stat_slab_generation(&owner->gpu->region.slab[slab]) };
    size_t count = 0;

    for (uint32_t rank = 0; rank < BXI_WORLD_MAX; rank++) {
        const struct stat_worker *worker = stat_reader(job, rank);

        if (worker != NULL && stat_worker_alive(worker) == alive && has_open(worker, &borrow))
            ranks[count++] = rank;
    }
    return count;
}

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
    size_t count = openers(job, worker, slab, true, ranks), dead;

    if (count > 0)
        stat_flow_add(flow, "open in %zu:", count);
    for (size_t i = 0; i < count; i++)
        stat_flow_add(flow, "%d %s%s", (int)ranks[i], stat_peer_name(job, (int)ranks[i]), i + 1 < count ? "," : "");
    dead = openers(job, worker, slab, false, ranks);
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

        if (lane_order(gpu, i) == 0)
            continue;
        begin_numbered(&flow, "lane", (uint32_t)i);
        stat_flow_add(&flow, "of device %u,", gpu->region.lane[i].device);
        stat_flow_add(&flow, "%s,", stat_order_name(lane_order(gpu, i)));
        if (lane_order(gpu, i) == BXI_GPU_DEVICE_WORDS)
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
        const struct bxi_gpu_slab_row *row = row_of(job, borrow);

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
        stat_json_u64s("open_in", ranks, openers(job, worker, i, true, ranks));
        stat_json_u64s("was_open_in", ranks, openers(job, worker, i, false, ranks));
        stat_json_close('}');
    }
    stat_json_close(']');
}

static void json_lanes(const struct stat_gpu *gpu)
{
    stat_json_open("lanes", '[');
    for (int i = 0; i < BXI_GPU_LANES; i++) {
        if (lane_order(gpu, i) == 0)
            continue;
        stat_json_open(NULL, '{');
        stat_json_u64("lane", (uint64_t)i);
        stat_json_u64("device", gpu->region.lane[i].device);
        stat_json_text("order", stat_order_name(lane_order(gpu, i)));
        if (lane_order(gpu, i) == BXI_GPU_DEVICE_WORDS)
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
        const struct bxi_gpu_slab_row *row = row_of(job, borrow);

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
    json_uuids("known", worker->gpu->region.head.known[0], known(worker->gpu));
    json_uuids("refused", worker->gpu->region.head.refused[0], stat_gpu_refused(worker->gpu));
    stat_json_close('}');
}

/* ---- The subcommand ----------------------------------------------------------------------------- */

static void json_counters(const struct stat_worker *worker)
{
    stat_json_open("counters", '{');
#define JSON_COUNTER(name, domain, text)            \
    if (strncmp(#name, "gpu_", 4) == 0)             \
        stat_json_u64(#name, COUNT(name));
    BXI_COUNTERS(JSON_COUNTER)
#undef JSON_COUNTER
    stat_json_close('}');
}

static void json_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    stat_json_open(NULL, '{');
    stat_json_worker(worker);
    if (worker->control != NULL) {
        json_counters(worker);
        stat_gpu_json(job, worker);
    }
    stat_json_close('}');
}

static void text_worker(const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_flow flow;

    printf("\n");
    stat_worker_text(worker);
    if (worker->control != NULL && worker->gpu == NULL) {
        stat_flow_begin(&flow, "gpu");
        stat_flow_add(&flow, "none is open");
        stat_flow_end(&flow);
    }
    stat_gpu_text(job, worker);
}

static int show_job(struct stat_job *job, bool json)
{
    if (stat_job_read(job, true) < 0 || stat_gpus_read(job) < 0) {
        fprintf(stderr, "shmstat: no memory for job '%s'\n", job->name);
        return STAT_NOTHING;
    }
    stat_job_close(job);
    if (json) {
        stat_json_open(NULL, '{');
        stat_json_job(job);
        stat_json_open("workers", '[');
    } else {
        printf("job %s.%016llx: %s, %d workers\n", job->name, (ull)job->instance, stat_job_state(job),
               stat_job_size(job));
    }
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        if (job->workers[rank] == NULL)
            continue;
        if (json)
            json_worker(job, job->workers[rank]);
        else
            text_worker(job, job->workers[rank]);
    }
    if (json) {
        stat_json_close(']');
        stat_json_close('}');
    }
    return STAT_FINE;
}

int stat_gpu(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_list_begin(&jobs, options, "gpu");

    if (status != STAT_FINE)
        return status;
    for (size_t i = 0; i < jobs.count && status == STAT_FINE; i++) {
        if (i > 0 && !options->json)
            printf("\n");
        status = show_job(&jobs.list[i], options->json);
    }
    if (status == STAT_FINE && !stat_jobs_readable(&jobs))
        status = STAT_NOTHING;
    stat_list_end(&jobs, options);
    return status;
}
