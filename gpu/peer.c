/* SPDX-License-Identifier: MIT */
/*
 * Peers: other processes whose slabs are borrowed here and that borrow from here. Opening, looking at what has
 * become of them, their death, closing. The caller's thread, under the lock; what takes milliseconds is the
 * helper's.
 *
 * One peer is both sides: its region says what it lends, my held what I have open of that, its held what it has
 * open of mine. They must be opened on both sides before anything is lent: an owner that does not know a borrower
 * does not ask what it holds.
 */
#include "inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Opening --------------------------------------------------------------------------------- */

static int check_region(const struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options)
{
    const struct bxi_gpu_head *head = &options->region->head;
    /* [gpu.magic] acquire, pairs with the release in publish_head. */
    uint64_t magic = bxi_load_acquire(&head->magic);

    if (magic == 0)
        return bxi_gpu_fail(-EAGAIN, "%s has not opened a GPU yet", options->name);
    if (magic != BXI_GPU_MAGIC || head->layout != BXI_GPU_LAYOUT)
        return bxi_gpu_fail(-EPROTO, "%s's GPU region is none, or of another version", options->name);
    if (options->region == gpu->region || (head->pid == gpu->region->head.pid &&
                                           head->pid_namespace == gpu->region->head.pid_namespace))
        return bxi_gpu_fail(-ESTALE, "%s is this process: its memory needs no mapping, and CUDA does not open "
                            "handles where they were made", options->name);
    return 0;
}

/* Where a stream here may wait for the peer's words. Where that cannot be, hosts wait instead: no error. */
static void register_words(struct bxi_gpu_peer *peer)
{
    const struct bxi_cuda *cu = &peer->gpu->cu;
    void *page = (void *)(uintptr_t)peer->is.region->word;
    unsigned long long address = 0;

    if (cu->cuStreamWaitValue64_v2 == NULL || bxi_gpu_enter(peer->is.device) < 0)
        return;
    if (cu->cuMemHostRegister_v2(page, sizeof(peer->is.region->word), CU_MEMHOSTREGISTER_PORTABLE |
                                 CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS) {
        peer->words_registered = true;
        if (cu->cuMemHostGetDevicePointer_v2(&address, page, 0) == CUDA_SUCCESS)
            peer->host_words = address;
    }
    bxi_gpu_leave(peer->is.device);
}

int bxi_gpu_peer_open(struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options, struct bxi_gpu_peer **out)
{
    struct bxi_gpu_peer *peer;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    if (options->region == NULL || options->held == NULL || options->held_by_peer == NULL ||
        options->device == NULL || options->name == NULL || (uintptr_t)options->region % 4096 != 0)
        return bxi_gpu_fail(-EINVAL, "a peer needs a name, its region, both sides' held words and a device");
    rc = check_region(gpu, options);
    if (rc < 0)
        return rc;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for the books of %s", options->name);
    peer->gpu = gpu;
    peer->is = *options;
    snprintf(peer->name, sizeof(peer->name), "%s", options->name);
    peer->is.name = peer->name;
    register_words(peer);
    pthread_mutex_lock(&gpu->lock);
    peer->next = gpu->peers;
    gpu->peers = peer;
    pthread_mutex_unlock(&gpu->lock);
    *out = peer;
    return 0;
}

static bool is_listed(const bxi_a32 *listed, const uint8_t *list, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    /* [gpu.refused] acquire, pairs with the release in list_uuid. */
    uint32_t count = bxi_load_acquire(listed);

    for (uint32_t i = 0; i < count && i < BXI_GPU_REFUSED; i++)
        if (memcmp(list + (size_t)i * BXI_GPU_UUID_BYTES, uuid, BXI_GPU_UUID_BYTES) == 0)
            return true;
    return false;
}

static bool has_refused(const struct bxi_gpu_head *head, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_listed(&head->refused_count, head->refused[0], uuid);
}

static bool knows(const struct bxi_gpu_head *head, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_listed(&head->known_count, head->known[0], uuid);
}

/* It refuses before it says that it knows, and when it forgets both, it begins with what it knows: who sees that it
 * knows before and after has seen whether it refuses. */
static bool can_map(const struct bxi_gpu_head *head, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return knows(head, uuid) && !has_refused(head, uuid) && knows(head, uuid);
}

/* Under the lock. Whether one of the peer's devices may read memory of the device: so says the driver of those that
 * this process sees; of one that is hidden, the peer, once it knows. */
static bool may_reach(const struct bxi_gpu_peer *peer, const struct bxi_gpu_device *device)
{
    const struct bxi_gpu_head *head = &peer->is.region->head;
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t count = bxi_load_acquire(&head->device_count);
    const struct bxi_gpu_info *lent = &peer->gpu->info[device->ordinal];
    uint8_t uuid[BXI_GPU_UUID_BYTES];

    for (uint32_t i = 0; i < count && i < BXI_GPU_DEVICES; i++) {
        int ordinal;

        memcpy(uuid, head->device[i], sizeof(uuid));
        ordinal = bxi_gpu_find(peer->gpu, uuid);
        if (ordinal < 0 ? !lent->is_mig && can_map(head, lent->uuid)
                        : bxi_gpu_can_read(peer->gpu, ordinal, device->ordinal))
            return true;
    }
    return count == 0;
}

int bxi_gpu_peer_reaches(const struct bxi_gpu_peer *peer, const struct bxi_gpu_device *device)
{
    bool reaches = !has_refused(&peer->is.region->head, peer->gpu->info[device->ordinal].uuid);

    if (reaches) {
        pthread_mutex_lock(&peer->gpu->lock);
        reaches = may_reach(peer, device);
        pthread_mutex_unlock(&peer->gpu->lock);
    }
    return reaches;
}

void bxi_gpu_peer_try(struct bxi_gpu_peer *peer)
{
    const struct bxi_gpu_head *head = &peer->is.region->head;
    struct bxi_gpu *gpu = peer->gpu;
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t count = bxi_load_acquire(&head->device_count);
    uint8_t uuid[BXI_GPU_UUID_BYTES];

    if (bxi_gpu_forked() || bxi_gpu_peer_is_dead(peer))
        return;
    pthread_mutex_lock(&gpu->lock);
    for (uint32_t i = 0; i < count && i < BXI_GPU_DEVICES; i++) {
        memcpy(uuid, head->device[i], sizeof(uuid));
        if (!knows(&gpu->region->head, uuid) && bxi_gpu_device_for(peer, uuid) != NULL &&
            bxi_gpu_map_some(peer, uuid) == 1)
            bxi_gpu_judge(gpu, uuid, true);
    }
    pthread_mutex_unlock(&gpu->lock);
}

/* ---- Polling --------------------------------------------------------------------------------- */

/* Devices that the peer has taken into use since, and of which the driver says whether they are within reach: the peer
 * is told before anything is lent. */
static void look_at_devices(struct bxi_gpu_peer *peer)
{
    const struct bxi_gpu_head *head = &peer->is.region->head;
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t count = bxi_load_acquire(&head->device_count);
    uint8_t uuid[BXI_GPU_UUID_BYTES];

    for (; peer->devices_seen < count && peer->devices_seen < BXI_GPU_DEVICES; peer->devices_seen++) {
        memcpy(uuid, head->device[peer->devices_seen], sizeof(uuid));
        if (bxi_gpu_device_for(peer, uuid) == NULL)
            bxi_gpu_judge(peer->gpu, uuid, false);
        else if (bxi_gpu_find(peer->gpu, uuid) >= 0)
            bxi_gpu_judge(peer->gpu, uuid, true);
    }
}

/* Maps whose owner wants them closed, or is dead. */
int bxi_gpu_maps_look(struct bxi_gpu_peer *peer)
{
    bool is_dead = bxi_gpu_peer_is_dead(peer);
    int left = 0;

    for (int i = 0; peer->open_maps > 0 && i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_map *map = &peer->map[i];

        if (map->state == BXI_GPU_MAP_NONE)
            continue;
        if (map->state == BXI_GPU_MAP_OPEN) {
            /* [gpu.stamp] relaxed: RETIRING is a wish, and this end closes when it sees it. */
            uint64_t stamp = bxi_load_relaxed(&peer->is.region->slab[i].stamp);

            if (!is_dead && stamp == (map->generation << 2 | BXI_GPU_SLAB_LIVE))
                continue;
            if (map->users == 0)
                bxi_gpu_map_close(map);
        }
        left++;
    }
    return left;
}

int bxi_gpu_peers_poll(struct bxi_gpu *gpu)
{
    int left = 0;

    for (struct bxi_gpu_peer *peer = gpu->peers; peer != NULL; peer = peer->next) {
        look_at_devices(peer);
        left += bxi_gpu_maps_look(peer);
    }
    return left;
}

/* ---- Death and closing ----------------------------------------------------------------------- */

/* Below the poison stays how far the word had come, so that what was ready can still be read. Its owner is dead, so
 * nobody else writes but other survivors, and they write the same. */
static int poison_host(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words)
{
    const struct bxi_gpu_region *region = peer->is.region;
    int rc = 0;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        /* [gpu.word] relaxed: a value to add to. */
        uint64_t word = bxi_load_relaxed(&region->word[i].value);
        /* [gpu.lane] acquire, pairs with the release in publish_lane. */
        bool is_used = bxi_load_acquire(&region->lane[i].order) == BXI_GPU_HOST_WORDS;

        if ((word & BXI_GPU_POISON) != 0)
            continue;
        if (words != NULL) {
            /* [gpu.word] release, pairs with the acquire in host_word. */
            bxi_store_release(&words[i].value, word | BXI_GPU_POISON);
            bxi_gpu_count(&peer->gpu->figures.poisonings, is_used);
        } else if (is_used) {
            rc = bxi_gpu_fail(-EROFS, "streams that wait for %s cannot be released: its words are not writable here",
                              peer->name);
        }
    }
    return rc;
}

/* Words in a slab of the dead owner's that is mapped: by the side stream, on which nothing waits. How far they had
 * come is remembered, for the slab is closed when it is used no more. */
static void poison_device(struct bxi_gpu_peer *peer)
{
    struct bxi_gpu *gpu = peer->gpu;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        const struct bxi_gpu_lane_row *row = &peer->is.region->lane[i];
        struct bxi_gpu_place at;
        uint64_t word = 0;

        /* [gpu.lane] acquire, pairs with the release in publish_lane. */
        if (bxi_load_acquire(&row->order) != BXI_GPU_DEVICE_WORDS)
            continue;
        at = bxi_gpu_mapped(peer, row);
        if (at.address == 0 || bxi_gpu_read_word(at.device, at.address, &word) < 0)
            continue;
        peer->come[i] = word;
        if ((word & BXI_GPU_POISON) != 0 || gpu->cu.cuStreamWriteValue64_v2 == NULL || bxi_gpu_enter(at.device) < 0)
            continue;
        if (gpu->cu.cuStreamWriteValue64_v2(at.device->side, at.address, word | BXI_GPU_POISON,
                                            CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS)
            bxi_gpu_count(&gpu->figures.poisonings, 1);
        (void)gpu->cu.cuStreamSynchronize(at.device->side);     /* the slab may be closed next */
        bxi_gpu_leave(at.device);
    }
}

int bxi_gpu_peer_died(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words)
{
    struct bxi_gpu *gpu = peer->gpu;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    pthread_mutex_lock(&gpu->lock);
    /* [gpu.dead] release, pairs with the acquire in bxi_gpu_peer_is_dead. A wait that is put on a stream after
     * this, by a thread that had looked before, finds the word poisoned. */
    bxi_store_release(&peer->is_dead, 1);
    rc = poison_host(peer, words);
    poison_device(peer);
    (void)bxi_gpu_blocks_poll(gpu);
    (void)bxi_gpu_maps_look(peer);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

void bxi_gpu_peer_forget_driver(struct bxi_gpu_peer *peer)
{
    const struct bxi_cuda *cu = &peer->gpu->cu;

    if (bxi_gpu_enter(peer->is.device) < 0)
        return;
    for (int i = 0; i < BXI_GPU_LANES * BXI_GPU_RING; i++) {
        struct CUevent_st *event = peer->event[i / BXI_GPU_RING][i % BXI_GPU_RING].event;

        if (event != NULL)
            (void)cu->cuEventDestroy_v2(event);
    }
    if (peer->words_registered)
        (void)cu->cuMemHostUnregister((void *)(uintptr_t)peer->is.region->word);
    bxi_gpu_leave(peer->is.device);
}

void bxi_gpu_peer_close_maps(struct bxi_gpu_peer *peer)
{
    struct bxi_gpu *gpu = peer->gpu;

    bxi_gpu_helper_drain(&gpu->helper);         /* what is being opened */
    pthread_mutex_lock(&gpu->lock);
    for (int i = 0; i < BXI_GPU_SLABS; i++)
        if (peer->map[i].state == BXI_GPU_MAP_OPEN)
            bxi_gpu_map_close(&peer->map[i]);
    pthread_mutex_unlock(&gpu->lock);
    bxi_gpu_helper_drain(&gpu->helper);
}
