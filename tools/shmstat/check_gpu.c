/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: device memory, against G1 to G4, G6 and G7 of gpu/README.md.
 *
 * A region is copied LOOKS times. Values that may only grow are compared between neighbouring copies. A row is wrong
 * only if it is wrong in every copy: it may be filled again while it is copied, which takes calls of the driver.
 *
 * The generations that borrowers hold were read before all regions (device.c). So a held generation that is newer than
 * its row was never made. One that is older, or whose row was freed, may have been let go since, or its borrower may be
 * between the two halves of G2: it is read again LOOKS times, a moment apart. An owner asks only living borrowers,
 * so whether the borrower lives is asked last. Nothing can be concluded about a borrower that is stopped.
 *
 * What cannot be seen: handles that are opened; whether work has been done (G5); of G6 all but a worker's own slabs.
 */
#include "check.h"
#include "device.h"
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOKS 4
#define MOMENT_NS 2000000

#define G(number, worker, to) STAT_AT('G', number, worker, to)

typedef unsigned long long ull;

/* What is wrong with the row in this copy; NULL: nothing. */
typedef const char *(*judge_fn)(const struct stat_gpu *gpu, uint32_t index);

/* ---- The head ----------------------------------------------------------------------------------- */

static void check_counts(const struct stat_worker *worker, const struct bxi_gpu_head *was,
                         const struct bxi_gpu_head *is, struct stat_findings *findings)
{
    /* Relaxed: private copies. */
    uint32_t devices = bxi_load_relaxed((bxi_a32 *)&is->device_count);
    uint32_t refused = bxi_load_relaxed((bxi_a32 *)&is->refused_count);
    uint32_t known = bxi_load_relaxed((bxi_a32 *)&is->known_count);
    uint32_t old_devices = bxi_load_relaxed((bxi_a32 *)&was->device_count);

    if (devices > BXI_GPU_DEVICES)
        stat_violate(findings, G(7, worker, -1), "device_count is %u, and there is room for %d", devices,
                     BXI_GPU_DEVICES);
    else if (refused > BXI_GPU_REFUSED)
        stat_violate(findings, G(7, worker, -1), "refused_count is %u, and there is room for %d", refused,
                     BXI_GPU_REFUSED);
    else if (known > BXI_GPU_REFUSED)
        stat_violate(findings, G(7, worker, -1), "known_count is %u, and there is room for %d", known,
                     BXI_GPU_REFUSED);
    else if (devices < old_devices)
        stat_violate(findings, G(7, worker, -1), "device_count went from %u back to %u", old_devices, devices);
    else if (memcmp(was, is, offsetof(struct bxi_gpu_head, device_count)) != 0 ||
             memcmp(was->device, is->device, old_devices * sizeof(was->device[0])) != 0)
        stat_violate(findings, G(7, worker, -1), "its head of device memory changes");
}

/* ---- Slabs -------------------------------------------------------------------------------------- */

static const char *judge_slab(const struct stat_gpu *gpu, uint32_t index)
{
    static const uint8_t no_uuid[BXI_GPU_UUID_BYTES];
    const struct bxi_gpu_slab_row *row = &gpu->region.slab[index];

    if (stat_slab_state(row) == BXI_GPU_SLAB_EMPTY)
        return NULL;
    if (stat_slab_state(row) > BXI_GPU_SLAB_RETIRING)
        return "its stamp has a state that is none";
    if (stat_slab_generation(row) == 0)
        return "it is in use in generation 0";
    if (row->bytes == 0)
        return "it is in use and has no bytes";
    /* The device may be unlisted: its first slab is made before the device is listed. */
    return memcmp(row->uuid, no_uuid, sizeof(no_uuid)) == 0 ? "it is in use and lies on no device" : NULL;
}

/* Grows in the order LIVE, RETIRING, EMPTY, and LIVE of the next generation. */
static uint64_t age_of(const struct bxi_gpu_slab_row *row)
{
    unsigned state = stat_slab_state(row);

    return stat_slab_generation(row) * 3 + (state == BXI_GPU_SLAB_EMPTY ? 2 : state - 1);
}

static bool is_same(const struct bxi_gpu_slab_row *one, const struct bxi_gpu_slab_row *other)
{
    return one->bytes == other->bytes && memcmp(one->handle, other->handle, sizeof(one->handle)) == 0 &&
           memcmp(one->uuid, other->uuid, sizeof(one->uuid)) == 0;
}

/* If the first and the last copy show the same generation in use, the first copy and the one before the last were made
 * between two stamps of it: they must be equal. */
static void check_slab(const struct stat_worker *worker, const struct stat_gpu *copies, uint32_t index,
                       struct stat_findings *findings)
{
    const struct bxi_gpu_slab_row *first = &copies[0].region.slab[index];
    const struct bxi_gpu_slab_row *last = &copies[LOOKS - 1].region.slab[index];

    for (int look = 1; look < LOOKS; look++) {
        const struct bxi_gpu_slab_row *was = &copies[look - 1].region.slab[index];
        const struct bxi_gpu_slab_row *is = &copies[look].region.slab[index];

        if (age_of(is) >= age_of(was))
            continue;
        stat_violate(findings, G(1, worker, -1), "slab %u went from generation %llu, %s, back to %llu, %s", index,
                     (ull)stat_slab_generation(was), stat_slab_state_name(stat_slab_state(was)),
                     (ull)stat_slab_generation(is), stat_slab_state_name(stat_slab_state(is)));
        return;
    }
    if (stat_slab_state(first) != BXI_GPU_SLAB_EMPTY && stat_slab_state(last) != BXI_GPU_SLAB_EMPTY &&
        stat_slab_generation(first) == stat_slab_generation(last) &&
        !is_same(first, &copies[LOOKS - 2].region.slab[index]))
        stat_violate(findings, G(1, worker, -1), "slab %u changes while it is in use", index);
}

/* ---- Lanes -------------------------------------------------------------------------------------- */

/* Relaxed: private copies. */
#define ORDER(gpu, index) bxi_load_relaxed((bxi_a32 *)&(gpu)->region.lane[index].order)

static const char *judge_lane(const struct stat_gpu *gpu, uint32_t index)
{
    uint32_t order = ORDER(gpu, index);

    if (order > BXI_GPU_HOST_SYNC)
        return "its order is none";
    if (order != 0 && gpu->region.lane[index].device >= stat_gpu_devices(gpu))
        return "it is of a device that the worker has not taken into use";
    return NULL;
}

/* G3: the words lie in an allocated block. */
static const char *judge_device_word(const struct stat_gpu *gpu, uint32_t index)
{
    const struct bxi_gpu_lane_row *lane = &gpu->region.lane[index];
    const struct bxi_gpu_slab_row *row = &gpu->region.slab[lane->slab % BXI_GPU_SLABS];

    if (ORDER(gpu, index) != BXI_GPU_DEVICE_WORDS)
        return NULL;
    if (lane->slab >= BXI_GPU_SLABS || stat_slab_state(row) != BXI_GPU_SLAB_LIVE ||
        stat_slab_generation(row) != lane->generation)
        return "its word lies in a slab that is not live";
    if (lane->offset % 8 != 0 || lane->offset > row->bytes || row->bytes - lane->offset < 8)
        return "its word does not lie in its slab";
    return NULL;
}

static void check_word(const struct stat_worker *worker, const struct stat_gpu *copies, uint32_t index,
                       struct stat_findings *findings)
{
    uint64_t last = stat_word(&copies[LOOKS - 1].region.word[index].value);

    for (int look = 1; look < LOOKS; look++) {
        uint64_t was = stat_word(&copies[look - 1].region.word[index].value);
        uint64_t is = stat_word(&copies[look].region.word[index].value);

        if (is >= was)
            continue;
        stat_violate(findings, G(4, worker, -1), "the word of lane %u went from %llu back to %llu", index, (ull)was,
                     (ull)is);
        return;
    }
    if (last >= 2 * BXI_GPU_POISON)
        stat_violate(findings, G(4, worker, -1), "the word of lane %u is %016llx, which no lane comes to", index,
                     (ull)last);
    /* Asked after the word: a survivor poisons it only after it has seen the owner dead. */
    else if ((last & BXI_GPU_POISON) != 0 && stat_is_locked(&worker->segment))
        stat_violate(findings, G(4, worker, -1), "the word of lane %u is poisoned at %llu, and its owner lives", index,
                     (ull)(last - BXI_GPU_POISON));
}

/* ---- All of a region ---------------------------------------------------------------------------- */

/* Reports the first row that is wrong in every copy. */
static void check_rows(const struct stat_worker *worker, const struct stat_gpu *copies, judge_fn judge,
                       struct stat_findings *findings)
{
    bool is_slab = judge == judge_slab;

    for (uint32_t i = 0; i < (is_slab ? BXI_GPU_SLABS : BXI_GPU_LANES); i++) {
        const char *wrong = judge(&copies[0], i);

        for (int look = 1; look < LOOKS && wrong != NULL; look++)
            wrong = judge(&copies[look], i);
        if (wrong == NULL)
            continue;
        stat_violate(findings, G(is_slab ? 1 : judge == judge_lane ? 7 : 3, worker, -1), "%s %u: %s",
                     is_slab ? "slab" : "lane", i, wrong);
        return;
    }
}

static void check_region(const struct stat_worker *worker, struct stat_findings *findings)
{
    struct stat_gpu *copies = calloc(LOOKS, sizeof(*copies));
    size_t count = findings->count;

    if (copies == NULL)
        return;
    copies[0].region = worker->gpu->region;
    for (int look = 1; look < LOOKS; look++)
        if (stat_pread(&worker->segment, &copies[look].region, sizeof(copies[look].region), BXI_DEVICE_OFFSET) < 0)
            goto free_copies;       /* truncated meanwhile: the next run reports it */
    for (int look = 0; look < LOOKS && findings->count == count; look++)
        check_counts(worker, &copies[look > 0 ? look - 1 : 0].region.head, &copies[look].region.head, findings);
    check_rows(worker, copies, judge_slab, findings);
    check_rows(worker, copies, judge_lane, findings);
    check_rows(worker, copies, judge_device_word, findings);
    count = findings->count;
    for (uint32_t i = 0; i < BXI_GPU_SLABS && findings->count == count; i++)
        check_slab(worker, copies, i, findings);
    count = findings->count;
    for (uint32_t i = 0; i < BXI_GPU_LANES && findings->count == count; i++)
        check_word(worker, copies, i, findings);

free_copies:
    free(copies);
}

/* ---- What is held ------------------------------------------------------------------------------- */

static bool is_still_held(const struct stat_worker *worker, const struct stat_borrow *borrow)
{
    uint64_t offset = bxi_device_pair_offset(borrow->peer) + borrow->slab * sizeof(uint64_t), word = 0;

    return stat_pread(&worker->segment, &word, sizeof(word), offset) == 0 && word == borrow->generation;
}

/* True if a living borrower holds it, and for longer than a borrower takes to check the stamp. */
static bool is_kept(const struct stat_worker *worker, const struct stat_borrow *borrow)
{
    if (!stat_worker_alive(worker) || worker->process == 'T' || worker->process == 't')
        return false;
    for (int look = 0; look < LOOKS; look++) {
        if (!is_still_held(worker, borrow))
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = MOMENT_NS }, NULL);
    }
    return is_still_held(worker, borrow) && stat_is_locked(&worker->segment);
}

/* True if the peer has no GPU open even now. */
static bool has_none(const struct stat_worker *peer)
{
    uint32_t open = 1;

    return peer->gpu == NULL && stat_pread(&peer->segment, &open, sizeof(open),
                                           offsetof(struct bxi_header, device_open)) == 0 && open == 0;
}

/* False after a violation was reported. */
static bool check_borrow(const struct stat_job *job, const struct stat_worker *worker,
                         const struct stat_borrow *borrow, struct stat_findings *findings)
{
    const struct stat_worker *peer = stat_reader(job, (uint32_t)borrow->peer);
    const struct stat_gpu *owner = stat_gpu_of(job, borrow->peer);
    const struct bxi_gpu_slab_row *row = owner != NULL ? &owner->region.slab[borrow->slab] : NULL;
    size_t count = findings->count;

    if (borrow->peer == worker->rank)
        stat_violate(findings, G(6, worker, -1), "it has slab %u of its own open", borrow->slab);
    else if (peer != NULL && has_none(peer))
        stat_violate(findings, G(2, worker, borrow->peer), "it holds generation %llu of slab %u, and the peer has no "
                     "GPU open", (ull)borrow->generation, borrow->slab);
    else if (row != NULL && borrow->generation > stat_slab_generation(row))
        stat_violate(findings, G(2, worker, borrow->peer), "it holds generation %llu of slab %u, which is at %llu",
                     (ull)borrow->generation, borrow->slab, (ull)stat_slab_generation(row));
    else if (row != NULL && (borrow->generation < stat_slab_generation(row) ||
                             stat_slab_state(row) == BXI_GPU_SLAB_EMPTY) && is_kept(worker, borrow))
        stat_violate(findings, G(2, worker, borrow->peer), "it has generation %llu of slab %u open, which was freed",
                     (ull)borrow->generation, borrow->slab);
    return findings->count == count;
}

void stat_check_gpu(const struct stat_job *job, const struct stat_worker *worker, struct stat_findings *findings)
{
    if (worker->gpu == NULL)
        return;
    if (worker->gpu->problem != NULL)
        stat_violate(findings, G(7, worker, -1), "%s", worker->gpu->problem);
    else
        check_region(worker, findings);
    for (size_t i = 0; i < worker->gpu->borrow_count; i++)
        if (!check_borrow(job, worker, &worker->gpu->borrows[i], findings))
            return;
}
