/* SPDX-License-Identifier: MIT */
/*
 * Reach: which device here can map memory of which device of a peer, and what each process publishes about that in
 * its region's head. Any thread, under the lock.
 *
 * Devices are compared by UUID: CUDA_VISIBLE_DEVICES renumbers ordinals in each process. For two devices that this
 * process sees, the driver knows the answer (cuDeviceCanAccessPeer). A device that CUDA_VISIBLE_DEVICES hides can be
 * mapped from but not asked about: the first open decides, and its result is published.
 *
 * A process publishes per device of its peers: refused (no device here can map it), then known (the answer is final).
 * When it opens another device it withdraws both, known first. A reader therefore reads known, refused, known: if
 * both reads of known say yes, the value of refused in between belongs to that answer.
 *
 * Whether handles of CUDA IPC can be opened is another question: an open may fail for a reason that has nothing to do
 * with the device (CUDA_ERROR_MAP_FAILED), and no call but the open tells. Failures are published apart (unopened);
 * they do not affect memory that is exported as descriptors. An owner stages what it would lend by a handle if one of
 * the two processes has failed: what hinders one usually hinders both, and it may not have been asked to open any.
 *
 * Killed at any step: the lists stay as they are; a UUID is listed only once it is whole.
 */
#include "inside.h"

#include <errno.h>
#include <string.h>

/* ---- By UUID, as the driver answers ---------------------------------------------------------- */

int bxi_gpu_find(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    for (int i = 0; i < gpu->ordinals; i++)
        if (memcmp(gpu->info[i].uuid, uuid, BXI_GPU_UUID_BYTES) == 0)
            return i;
    return -1;
}

int bxi_gpu_ordinal(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    int ordinal = bxi_gpu_find(gpu, uuid);

    return ordinal >= 0 ? ordinal : bxi_gpu_fail(-ENODEV, "this process does not see that device: "
                                                 "CUDA_VISIBLE_DEVICES hides it");
}

/* Asked once and cached. If the driver gives no answer: true, and the first open decides. */
static bool can_read(struct bxi_gpu *gpu, int reader, int owner)
{
    uint8_t *known = &gpu->can_read[reader][owner];
    int can = 1;

    if (reader == owner)
        return true;
    if (gpu->info[reader].is_mig || gpu->info[owner].is_mig)
        return false;
    if (*known == 0 && gpu->cu.cuDeviceCanAccessPeer(&can, gpu->handle[reader], gpu->handle[owner]) == CUDA_SUCCESS)
        *known = can != 0 ? 2 : 1;
    return *known != 1;
}

/* ---- What a process publishes ---------------------------------------------------------------- */

/* Appends the UUID unless it is listed; false: the list is full. */
static bool list_uuid(bxi_a32 *listed, uint8_t (*list)[BXI_GPU_UUID_BYTES], const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    /* [gpu.refused] relaxed: only this process writes it, under the lock. */
    uint32_t count = bxi_load_relaxed(listed);

    for (uint32_t i = 0; i < count; i++)
        if (memcmp(list[i], uuid, BXI_GPU_UUID_BYTES) == 0)
            return true;
    if (count == BXI_GPU_REFUSED)
        return false;
    memcpy(list[count], uuid, BXI_GPU_UUID_BYTES);
    /* [gpu.refused] release, pairs with the acquire in is_listed. */
    bxi_store_release(listed, count + 1);
    return true;
}

void bxi_gpu_reach_publish(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool is_mappable)
{
    struct bxi_gpu_head *head = &gpu->region->head;

    if (is_mappable || list_uuid(&head->refused_count, head->refused, uuid))    /* refused first: see can_map */
        list_uuid(&head->known_count, head->known, uuid);
}

void bxi_gpu_reach_opened(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool can_open)
{
    struct bxi_gpu_head *head = &gpu->region->head;

    if (can_open)
        list_uuid(&gpu->opened_count, gpu->opened, uuid);
    else
        list_uuid(&head->unopened_count, head->unopened, uuid);
}

void bxi_gpu_reach_withdraw(struct bxi_gpu *gpu)
{
    struct bxi_gpu_head *head = &gpu->region->head;

    /* [gpu.refused] release, pairs with the acquire in is_listed; known first: see can_map. */
    bxi_store_release(&head->known_count, 0);
    bxi_store_release(&head->refused_count, 0);
    bxi_store_release(&head->unopened_count, 0);
    bxi_store_relaxed(&gpu->opened_count, 0);       /* relaxed: this process's own, under the lock */
    for (struct bxi_gpu_peer *peer = gpu->peers; peer != NULL; peer = peer->next)
        peer->devices_seen = 0;
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

static bool is_known(const struct bxi_gpu_head *head, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_listed(&head->known_count, head->known[0], uuid);
}

/* To open a handle of that device. */
static bool has_failed(const struct bxi_gpu_head *head, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_listed(&head->unopened_count, head->unopened[0], uuid);
}

/* The peer writes refused before known, and withdraws known before refused. So if known is set before and after, the
 * value of refused in between belongs to it. */
static bool can_map(const struct bxi_gpu_head *head, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_known(head, uuid) && !has_refused(head, uuid) && is_known(head, uuid);
}

bool bxi_gpu_reach_is_known(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_known(&gpu->region->head, uuid);
}

void bxi_gpu_set_trying(struct bxi_gpu *gpu, bool is_trying)
{
    /* [gpu.trying] release, pairs with the acquire in bxi_gpu_peer_reaches: what was found is published before. */
    bxi_store_release(&gpu->region->head.is_trying, is_trying);
}

bool bxi_gpu_reach_has_tried(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return is_listed(&gpu->opened_count, gpu->opened[0], uuid) || has_failed(&gpu->region->head, uuid) ||
           has_refused(&gpu->region->head, uuid);
}

/* ---- Which device here maps a peer's --------------------------------------------------------- */

/* The device here on which memory of that hidden device was mapped first; NULL: none yet. */
static struct bxi_gpu_device *found_for(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    for (uint32_t i = 0; i < gpu->found_count; i++)
        if (memcmp(gpu->found[i].uuid, uuid, BXI_GPU_UUID_BYTES) == 0)
            return gpu->found[i].device;
    return NULL;
}

/* The same device if it is open here, else the one that the peer was opened with, else any that can access it. For a
 * device that is hidden here the open decides; but no MIG instance can access another. */
struct bxi_gpu_device *bxi_gpu_device_for(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    struct bxi_gpu *gpu = peer->gpu;
    struct bxi_gpu_device *found = found_for(gpu, uuid);
    int owner = bxi_gpu_find(gpu, uuid);

    if (found != NULL)
        return found;
    if (owner < 0)
        return gpu->info[peer->options.device->ordinal].is_mig ? NULL : peer->options.device;
    for (uint32_t i = 0; i < gpu->device_count; i++)
        if (gpu->device[i]->ordinal == owner)
            return gpu->device[i];
    if (can_read(gpu, peer->options.device->ordinal, owner))
        return peer->options.device;
    for (uint32_t i = 0; i < gpu->device_count; i++)
        if (can_read(gpu, gpu->device[i]->ordinal, owner))
            return gpu->device[i];
    return NULL;
}

uint32_t bxi_gpu_devices_for(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES],
                             struct bxi_gpu_device *device[BXI_GPU_DEVICES])
{
    struct bxi_gpu *gpu = peer->gpu;
    bool is_unknown = bxi_gpu_find(gpu, uuid) < 0 && found_for(gpu, uuid) == NULL;
    uint32_t count = 0;

    device[0] = bxi_gpu_device_for(peer, uuid);
    if (device[0] == NULL)
        return 0;
    for (uint32_t i = 0; is_unknown && i < gpu->device_count; i++)
        if (gpu->device[i] != device[0] && !gpu->info[gpu->device[i]->ordinal].is_mig)
            device[++count] = gpu->device[i];
    return count + 1;
}

void bxi_gpu_reach_found(struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES], struct bxi_gpu_device *device)
{
    if (bxi_gpu_find(gpu, uuid) >= 0 || found_for(gpu, uuid) != NULL || gpu->found_count == BXI_GPU_REFUSED)
        return;
    memcpy(gpu->found[gpu->found_count].uuid, uuid, BXI_GPU_UUID_BYTES);
    gpu->found[gpu->found_count++].device = device;
}

/* Publishes the answers that the driver has, so that the peer knows before anything is lent. */
void bxi_gpu_reach_poll(struct bxi_gpu_peer *peer)
{
    const struct bxi_gpu_head *head = &peer->options.region->head;
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t count = bxi_load_acquire(&head->device_count);
    uint8_t uuid[BXI_GPU_UUID_BYTES];

    for (; peer->devices_seen < count && peer->devices_seen < BXI_GPU_DEVICES; peer->devices_seen++) {
        memcpy(uuid, head->device[peer->devices_seen], sizeof(uuid));
        if (bxi_gpu_device_for(peer, uuid) == NULL)
            bxi_gpu_reach_publish(peer->gpu, uuid, false);
        else if (bxi_gpu_find(peer->gpu, uuid) >= 0)
            bxi_gpu_reach_publish(peer->gpu, uuid, true);
    }
}

/* ---- Whether a peer can map a device --------------------------------------------------------- */

/* Under the lock: whether one of the peer's devices can access memory of the device. The driver answers for devices
 * that this process sees; for a hidden one the peer's head does, once it is known there. */
static bool may_reach(const struct bxi_gpu_peer *peer, const uint8_t lent[BXI_GPU_UUID_BYTES])
{
    struct bxi_gpu *gpu = peer->gpu;
    const struct bxi_gpu_head *head = &peer->options.region->head;
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t count = bxi_load_acquire(&head->device_count);
    int owner = bxi_gpu_find(gpu, lent);
    bool is_mig = owner >= 0 && gpu->info[owner].is_mig;
    uint8_t uuid[BXI_GPU_UUID_BYTES];

    for (uint32_t i = 0; i < count && i < BXI_GPU_DEVICES; i++) {
        int reader;

        memcpy(uuid, head->device[i], sizeof(uuid));
        reader = bxi_gpu_find(gpu, uuid);
        if (memcmp(uuid, lent, sizeof(uuid)) == 0 ||
            (reader < 0 || owner < 0 ? !is_mig && can_map(head, lent) : can_read(gpu, reader, owner)))
            return true;
    }
    return count == 0;
}

int bxi_gpu_peer_reaches(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool by_handle)
{
    const struct bxi_gpu_head *head = &peer->options.region->head;
    bool reaches = !has_refused(head, uuid);

    /* [gpu.trying] acquire, pairs with the release in bxi_gpu_set_trying: what it found is read after that. */
    if (by_handle)
        reaches = reaches && bxi_load_acquire(&head->is_trying) != 1 && !has_failed(head, uuid) &&
                  !has_failed(&peer->gpu->region->head, uuid);
    if (reaches) {
        pthread_mutex_lock(&peer->gpu->lock);
        reaches = may_reach(peer, uuid);
        pthread_mutex_unlock(&peer->gpu->lock);
    }
    return reaches;
}
