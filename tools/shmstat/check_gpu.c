/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: device memory, against G1, G2, G4, G6 and G7 of gpu/README.md.
 *
 * A region is copied LOOKS times. Values that may only grow are compared between neighbouring copies. A row is wrong
 * only if it is wrong in every copy: it may be filled again while it is copied, which takes calls of the driver.
 *
 * The generations that borrowers hold were read before all regions (device.c). So a held generation that is newer than
 * its row was never made. One that is older, or whose row was freed, may have been let go since, or its borrower may be
 * between the two halves of G2: it is read again LOOKS times, a moment apart. An owner asks only living borrowers,
 * so whether the borrower lives is asked last. Nothing can be concluded about a borrower that is stopped.
 *
 * What cannot be seen: handles that are opened; whether blocks are handed out (G3), and work has been done (G5); of G6
 * all but a worker's own slabs.
 */
#include "check.h"
#include "device.h"
#include "state.h"

#include "shm/file.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOKS 4
#define MOMENT_NS 2000000

typedef unsigned long long ull;

/* What is wrong with the row in this copy; NULL: nothing. */
typedef const char *(*judge_fn)(const struct stat_gpu *gpu, uint32_t index);

/* ---- The head ----------------------------------------------------------------------------------- */

static void check_counts(const struct stat_check *check, const struct bxi_gpu_head *was, const struct bxi_gpu_head *is)
{
    uint32_t devices = stat_word32(&is->device_count);
    uint32_t refused = stat_word32(&is->refused_count);
    uint32_t known = stat_word32(&is->known_count);
    uint32_t old_devices = stat_word32(&was->device_count);

    (void)(stat_expect(check, devices <= BXI_GPU_DEVICES, "G7", -1, "device_count is %u, and there is room for %d",
                       devices, BXI_GPU_DEVICES) &&
           stat_expect(check, refused <= BXI_GPU_REFUSED, "G7", -1, "refused_count is %u, and there is room for %d",
                       refused, BXI_GPU_REFUSED) &&
           stat_expect(check, known <= BXI_GPU_REFUSED, "G7", -1, "known_count is %u, and there is room for %d", known,
                       BXI_GPU_REFUSED) &&
           stat_expect(check, devices >= old_devices, "G7", -1, "device_count went from %u back to %u", old_devices,
                       devices) &&
           stat_expect(check, memcmp(was, is, offsetof(struct bxi_gpu_head, device_count)) == 0 &&
                                  memcmp(was->device, is->device, old_devices * sizeof(was->device[0])) == 0, "G7", -1,
                       "its head of device memory changes"));
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
static bool check_slab(const struct stat_check *check, const struct stat_gpu *copies, uint32_t index)
{
    const struct bxi_gpu_slab_row *first = &copies[0].region.slab[index];
    const struct bxi_gpu_slab_row *last = &copies[LOOKS - 1].region.slab[index];

    for (int look = 1; look < LOOKS; look++) {
        const struct bxi_gpu_slab_row *was = &copies[look - 1].region.slab[index];
        const struct bxi_gpu_slab_row *is = &copies[look].region.slab[index];

        if (!stat_expect(check, age_of(is) >= age_of(was), "G1", -1,
                         "slab %u went from generation %llu, %s, back to %llu, %s", index,
                         (ull)stat_slab_generation(was), stat_slab_state_name(stat_slab_state(was)),
                         (ull)stat_slab_generation(is), stat_slab_state_name(stat_slab_state(is))))
            return false;
    }
    return stat_expect(check, stat_slab_state(first) == BXI_GPU_SLAB_EMPTY ||
                                  stat_slab_state(last) == BXI_GPU_SLAB_EMPTY ||
                                  stat_slab_generation(first) != stat_slab_generation(last) ||
                                  is_same(first, &copies[LOOKS - 2].region.slab[index]), "G1", -1,
                       "slab %u changes while it is in use", index);
}

/* ---- Lanes -------------------------------------------------------------------------------------- */

static const char *judge_lane(const struct stat_gpu *gpu, uint32_t index)
{
    uint32_t order = stat_word32(&gpu->region.lane[index].order);

    if (order > BXI_GPU_EVENTS)
        return "its order is none";
    if (order != 0 && gpu->region.lane[index].device >= stat_gpu_devices(gpu))
        return "it is of a device that the worker has not taken into use";
    return NULL;
}

static bool check_word(const struct stat_check *check, const struct stat_gpu *copies, uint32_t index)
{
    uint64_t last = stat_word(&copies[LOOKS - 1].region.word[index].value);

    for (int look = 1; look < LOOKS; look++) {
        uint64_t was = stat_word(&copies[look - 1].region.word[index].value);
        uint64_t is = stat_word(&copies[look].region.word[index].value);

        if (!stat_expect(check, is >= was, "G4", -1, "the word of lane %u went from %llu back to %llu", index,
                         (ull)was, (ull)is))
            return false;
    }
    return stat_expect(check, last < 2 * BXI_GPU_POISON, "G4", -1,
                       "the word of lane %u is %016llx, which no lane comes to", index, (ull)last) &&
           /* Asked after the word: a survivor poisons it only after it has seen the owner dead. */
           stat_expect(check, (last & BXI_GPU_POISON) == 0 || !bxi_file_is_locked(check->worker->segment.fd, 0, 0),
                       "G4", -1, "the word of lane %u is poisoned at %llu, and its owner lives", index,
                       (ull)(last - BXI_GPU_POISON));
}

/* ---- All of a region ---------------------------------------------------------------------------- */

/* Reports the first row that is wrong in every copy. */
static void check_rows(const struct stat_check *check, const struct stat_gpu *copies, judge_fn judge)
{
    bool is_slab = judge == judge_slab, is_right = true;

    for (uint32_t i = 0; i < (is_slab ? BXI_GPU_SLABS : BXI_GPU_LANES) && is_right; i++) {
        const char *wrong = judge(&copies[0], i);

        for (int look = 1; look < LOOKS && wrong != NULL; look++)
            wrong = judge(&copies[look], i);
        is_right = stat_expect(check, wrong == NULL, is_slab ? "G1" : "G7", -1,
                               "%s %u: %s", is_slab ? "slab" : "lane", i, wrong != NULL ? wrong : "");
    }
}

static void check_region(const struct stat_check *check)
{
    const struct stat_worker *worker = check->worker;
    struct stat_gpu *copies = calloc(LOOKS, sizeof(*copies));
    size_t count = check->findings->count;
    bool is_right = true;

    if (copies == NULL)
        return;
    copies[0].region = worker->gpu->region;
    for (int look = 1; look < LOOKS; look++)
        if (stat_pread(&worker->segment, &copies[look].region, sizeof(copies[look].region), BXI_DEVICE_OFFSET) < 0)
            goto free_copies;       /* truncated meanwhile: the next run reports it */
    for (int look = 0; look < LOOKS && check->findings->count == count; look++)
        check_counts(check, &copies[look > 0 ? look - 1 : 0].region.head, &copies[look].region.head);
    check_rows(check, copies, judge_slab);
    check_rows(check, copies, judge_lane);
    for (uint32_t i = 0; i < BXI_GPU_SLABS && is_right; i++)
        is_right = check_slab(check, copies, i);
    is_right = true;
    for (uint32_t i = 0; i < BXI_GPU_LANES && is_right; i++)
        is_right = check_word(check, copies, i);

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
    if (!stat_worker_alive(worker) || stat_is_stopped(worker))
        return false;
    for (int look = 0; look < LOOKS; look++) {
        if (!is_still_held(worker, borrow))
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = MOMENT_NS }, NULL);
    }
    return is_still_held(worker, borrow) && bxi_file_is_locked(worker->segment.fd, 0, 0);
}

/* True if the peer has no GPU open even now. */
static bool has_none(const struct stat_worker *peer)
{
    uint32_t open = 1;

    return peer->gpu == NULL && stat_pread(&peer->segment, &open, sizeof(open),
                                           offsetof(struct bxi_header, device_open)) == 0 && open == 0;
}

/* False after a violation was reported. */
static bool check_borrow(const struct stat_check *check, const struct stat_borrow *borrow)
{
    const struct stat_worker *peer = stat_reader(check->job, (uint32_t)borrow->peer);
    const struct stat_gpu *owner = stat_gpu_of(check->job, borrow->peer);
    const struct bxi_gpu_slab_row *row = owner != NULL ? &owner->region.slab[borrow->slab] : NULL;
    ull held = borrow->generation, made = row != NULL ? stat_slab_generation(row) : 0;

    return stat_expect(check, borrow->peer != check->worker->rank, "G6", -1, "it has slab %u of its own open",
                       borrow->slab) &&
           stat_expect(check, peer == NULL || !has_none(peer), "G2", borrow->peer,
                       "it holds generation %llu of slab %u, and the peer has no GPU open", held, borrow->slab) &&
           stat_expect(check, row == NULL || held <= made, "G2", borrow->peer,
                       "it holds generation %llu of slab %u, which is at %llu", held, borrow->slab, made) &&
           stat_expect(check, row == NULL || (held == made && stat_slab_state(row) != BXI_GPU_SLAB_EMPTY) ||
                                  !is_kept(check->worker, borrow), "G2", borrow->peer,
                       "it has generation %llu of slab %u open, which was freed", held, borrow->slab);
}

void stat_check_gpu(const struct stat_check *check)
{
    const struct stat_gpu *gpu = check->worker->gpu;

    if (gpu == NULL)
        return;
    if (stat_expect(check, gpu->problem == NULL, "G7", -1, "%s", gpu->problem != NULL ? gpu->problem : ""))
        check_region(check);
    for (size_t i = 0; i < gpu->borrow_count; i++)
        if (!check_borrow(check, &gpu->borrows[i]))
            return;
}
