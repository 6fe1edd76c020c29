/* SPDX-License-Identifier: MIT */
/*
 * Maps: slabs of peers that are open in this process. The helper opens a slab when a loan of it is first read, it stays
 * open for later loans, and it is closed when its owner retires it or has died.
 *
 * The key is {peer, row, generation}, not the handle: its bytes may recur after a free and an allocation of the same
 * size. A map of an older generation cannot exist when a newer one is requested: while it is held the owner does not
 * free the slab, and before it is open a lease keeps the slab (or, where only the mapping is tried, a hold that is
 * stored before the request).
 *
 * A slab that is exported as descriptors is mapped from these (vmm.c), for reading only, after its owner has sent them
 * (fd_server.c). While they have not come the job goes to the end of the helper's queue again and again.
 *
 * The device on which a slab is mapped depends only on the device that the slab is on (reach.c). So all slabs of one
 * device are opened in one context here, which CUDA requires.
 *
 * States: NONE -> OPENING (helper) -> OPEN <-> in use -> CLOSING (helper) -> NONE, or OPEN again (admission.c). The
 * lock covers what helper and callers share; in OPENING and CLOSING the address belongs to the helper.
 *
 * Killed while OPENING: the word in held stays, in a dead segment that no owner reads any more. Killed with maps open:
 * the driver closes them.
 */
#include "inside.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OPEN_PAUSE_NS 20000000

struct bxi_gpu_request {                /* waits for a map that is being opened */
    struct bxi_gpu_request *next;
    bxi_gpu_mapped_fn done;
    void *context;
};

/* ---- Opening, on the helper ------------------------------------------------------------------ */

/* -EXDEV: what the peer lends is to be staged: the results that mean no peer access. -ENOLINK: what it lends by handles
 * is to be staged: CUDA_ERROR_MAP_FAILED, which the driver documents for opens without a reason. */
static int open_failed(const struct bxi_gpu_peer *peer, unsigned result)
{
    const struct bxi_gpu_head *mine = &peer->gpu->region->head;
    const struct bxi_gpu_head *theirs = &peer->options.region->head;
    int rc = bxi_gpu_cuda_fail(&peer->gpu->cu, result, "opening a slab of %s (cuIpcOpenMemHandle)", peer->name);

    if (rc == -EXDEV)
        return rc;
    if (mine->ipc_namespace != theirs->ipc_namespace || mine->pid_namespace != theirs->pid_namespace)
        return bxi_gpu_fail(-EIO, "%s's GPU memory cannot be opened here (CUresult %u): it runs in another %s "
                            "namespace, and CUDA IPC needs the same: start the containers with --ipc=host "
                            "--pid=host, or with --ipc=container:NAME --pid=container:NAME", peer->name, result,
                            mine->pid_namespace != theirs->pid_namespace ? "PID" : "IPC");
    if (result == CUDA_ERROR_MAP_FAILED)
        return -ENOLINK;
    return rc == -ENOMEM ? rc : -EIO;
}

/* The context is current: checks that the mapping is as large as the row says. */
static int check_range(const struct bxi_gpu_map *map, uint64_t address, uint64_t bytes)
{
    unsigned long long base = 0;
    size_t size = 0;

    if (map->peer->gpu->cu.cuMemGetAddressRange_v2(&base, &size, address) != CUDA_SUCCESS)
        return 0;
    if (address >= base && bytes <= size - (address - base))
        return 0;
    return bxi_gpu_fail(-EPROTO, "%s's slab has %llu bytes, not the %llu that it says", map->peer->name,
                        (unsigned long long)size, (unsigned long long)bytes);
}

/* The borrower's half of the pair (G2): true if the slab is LIVE; then it stays until the hold is cleared. */
static bool hold_slab(const struct bxi_gpu_peer *peer, size_t index, uint64_t generation)
{
    /* [gpu.held] relaxed: the fence orders it. */
    bxi_store_relaxed(&peer->options.held->generation[index], generation);
    bxi_fence_seq_cst();
    /* [gpu.stamp] acquire, pairs with the release in bxi_gpu_slab_publish. */
    return bxi_load_acquire(&peer->options.region->slab[index].stamp) == (generation << 2 | BXI_GPU_SLAB_LIVE);
}

/* Publishes what the result of an open implies for the slab's device. A permanent failure (-EIO) is published as
 * mappable: the next loan must fail too, with its reason, and not be staged forever without one. A failure that the
 * death of the owner may have caused implies nothing. */
static void publish_result(const struct bxi_gpu_map *map, const uint8_t uuid[BXI_GPU_UUID_BYTES], int rc)
{
    struct bxi_gpu *gpu = map->peer->gpu;
    const struct bxi_gpu_slab_row *row = &map->peer->options.region->slab[map - map->peer->map];
    /* [gpu.stamp] relaxed: no order is derived. */
    bool is_there = bxi_load_relaxed(&row->stamp) == (map->generation << 2 | BXI_GPU_SLAB_LIVE) &&
                    !bxi_gpu_peer_is_dead(map->peer);
    bool is_mapped = rc == 0 || rc == -EIO;
    /* Nothing but an open tells of a device that is hidden here, by either way. */
    bool is_hidden = bxi_gpu_find(gpu, uuid) < 0;

    if (rc < 0 && !is_there)
        return;
    pthread_mutex_lock(&gpu->lock);
    if (is_mapped || rc == -EXDEV || (rc == -ENOLINK && is_hidden))
        bxi_gpu_reach_publish(gpu, uuid, is_mapped);
    if (map->parts == NULL && (is_mapped || rc == -ENOLINK))
        bxi_gpu_reach_opened(gpu, uuid, is_mapped);
    if (rc == 0)
        bxi_gpu_reach_found(gpu, uuid, map->device);
    pthread_mutex_unlock(&gpu->lock);
}

/* A second attempt after CUDA_ERROR_MAP_FAILED: the owner may just have died, and this process may not know yet. */
static unsigned open_handle(const struct bxi_cuda *cu, const struct CUipcMemHandle_st *handle,
                            unsigned long long *address)
{
    BXI_UNCANCELLED;
    struct timespec pause = { .tv_nsec = OPEN_PAUSE_NS };
    unsigned result = cu->cuIpcOpenMemHandle_v2(address, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

    if (result != CUDA_ERROR_MAP_FAILED)
        return result;
    nanosleep(&pause, NULL);
    return cu->cuIpcOpenMemHandle_v2(address, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* -EXDEV: as open_failed. The driver says that the device cannot access the memory, or that this process cannot
 * support it. */
static int map_failed(const struct bxi_gpu_peer *peer, unsigned result)
{
    int rc = bxi_gpu_cuda_fail(&peer->gpu->cu, result, "mapping a slab of %s (cuMemImportFromShareableHandle, "
                               "cuMemMap, cuMemSetAccess)", peer->name);

    if (rc == -EXDEV || result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED)
        return -EXDEV;
    return rc == -ENOMEM ? rc : -EIO;
}

/* Opens the slab on the device, from its descriptors or its handle. */
static int open_on(struct bxi_gpu_map *map, struct bxi_gpu_device *device, const struct bxi_gpu_slab_row *row)
{
    struct bxi_gpu *gpu = map->peer->gpu;
    struct CUipcMemHandle_st handle;
    unsigned long long address = 0;
    uint64_t begin_ns;
    unsigned result;
    int rc = bxi_gpu_enter(device);

    if (rc < 0)
        return rc;
    begin_ns = bxi_gpu_now_ns();
    if (map->parts != NULL) {
        bxi_gpu_vmm_init(device);
        result = bxi_gpu_vmm_map(device, map->parts, &map->address);
    } else {
        memcpy(handle.reserved, row->handle, sizeof(handle.reserved));
        result = open_handle(&gpu->cu, &handle, &address);
        map->address = address;
    }
    bxi_gpu_count(&gpu->figures.open_ns, (int64_t)(bxi_gpu_now_ns() - begin_ns));
    if (result != CUDA_SUCCESS)
        rc = map->parts != NULL ? map_failed(map->peer, result) : open_failed(map->peer, result);
    else if (map->parts == NULL)
        rc = check_range(map, address, row->bytes);
    if (rc < 0 && result == CUDA_SUCCESS)
        (void)gpu->cu.cuIpcCloseMemHandle(address);
    bxi_gpu_leave(device);
    if (rc < 0)
        return rc;
    map->device = device;
    map->bytes = row->bytes;
    return 0;
}

/* Asks the owner for the descriptors. -EAGAIN: not here yet. */
static int fetch(struct bxi_gpu_map *map, uint64_t bytes)
{
    struct bxi_gpu_peer *peer = map->peer;
    uint64_t sum = 0;
    int rc;

    if (map->parts == NULL)
        map->parts = bxi_gpu_parts_new();
    if (map->parts == NULL)
        return -ENOMEM;
    rc = bxi_gpu_fd_server_ask(peer, &map->ask, (uint32_t)(map - peer->map), map->generation, map->parts);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < map->parts->count && rc == 0; i++) {
        uint64_t part = map->parts->part[i].bytes;

        if (part == 0 || part > bytes - sum)
            rc = -EPROTO;
        else
            sum += part;
    }
    if (rc == 0 && sum == bytes)
        return 0;
    return bxi_gpu_fail(-EPROTO, "%s's slab has other parts than the %llu bytes that it says", peer->name,
                        (unsigned long long)bytes);
}

/* The pair, then the driver. On failure the caller clears the hold. -EAGAIN: the descriptors are not here yet. */
static int open_slab(struct bxi_gpu_map *map)
{
    struct bxi_gpu_peer *peer = map->peer;
    size_t index = (size_t)(map - peer->map);
    struct bxi_gpu_device *device[BXI_GPU_DEVICES];
    struct bxi_gpu_slab_row row;
    uint32_t count;
    int rc;

    if (!hold_slab(peer, index, map->generation))
        return bxi_gpu_fail(-ESTALE, "slab %zu of %s has gone: nothing of it was on loan", index, peer->name);
    row = peer->options.region->slab[index];    /* a copy: another process writes it */
    if (row.bytes == 0)
        return bxi_gpu_fail(-EPROTO, "slab %zu of %s says that it has no bytes", index, peer->name);
    rc = (row.flags & BXI_GPU_SLAB_FD) != 0 ? fetch(map, row.bytes) : 0;
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&peer->gpu->lock);
    count = bxi_gpu_devices_for(peer, row.uuid, device);
    pthread_mutex_unlock(&peer->gpu->lock);
    rc = -EXDEV;
    for (uint32_t i = 0; (rc == -EXDEV || rc == -ENOLINK) && i < count; i++)
        rc = open_on(map, device[i], &row);
    if (map->parts != NULL)
        bxi_gpu_parts_close(map->parts);        /* the mapping keeps the memory */
    publish_result(map, row.uuid, rc);
    if (rc == -EXDEV || rc == -ENOLINK)
        return bxi_gpu_fail(-EXDEV, "no device in use here can read the memory of %s's device (device %d): no peer "
                            "access, or the driver maps none; what it lends is staged through host memory", peer->name,
                            peer->options.device->ordinal);
    return rc;
}

/* Under the lock: the slab is not open here any more, or its open failed. */
static void end_map(struct bxi_gpu_map *map)
{
    struct bxi_gpu_peer *peer = map->peer;

    bxi_gpu_fd_server_end(&map->ask);        /* the slab was retired before its descriptors came */
    bxi_gpu_parts_free(peer->gpu, map->parts);
    map->parts = NULL;
    map->state = BXI_GPU_MAP_NONE;
    peer->open_maps--;
    /* [gpu.held] release, pairs with the acquire in is_held: the mapping is closed. */
    bxi_store_release(&peer->options.held->generation[map - peer->map], 0);
}

/* On the helper. */
static void open_map(struct bxi_gpu_job *job)
{
    struct bxi_gpu_map *map = (struct bxi_gpu_map *)(void *)job;
    struct bxi_gpu *gpu = map->peer->gpu;
    struct bxi_gpu_request *waiting, *next;
    int rc = open_slab(map);
    bool calls;

    if (rc == -EAGAIN) {                /* other jobs first: the owner may be stopped */
        bxi_gpu_helper_post(&gpu->helper, job);
        return;
    }
    pthread_mutex_lock(&gpu->lock);
    if (rc == 0)
        map->state = BXI_GPU_MAP_OPEN;
    else
        end_map(map);
    waiting = map->waiting;
    map->waiting = NULL;
    calls = waiting != NULL && bxi_gpu_call_begin(gpu);
    bxi_gpu_count(rc == 0 ? &gpu->figures.opens : &gpu->figures.open_failures, 1);
    bxi_gpu_count(&gpu->figures.maps, rc == 0);
    pthread_mutex_unlock(&gpu->lock);
    for (; calls && waiting != NULL; waiting = next) {
        next = waiting->next;
        waiting->done(waiting->context, rc);
        free(waiting);
    }
    if (calls)
        bxi_gpu_call_end(gpu);
}

/* With admission closed: whether no work uses the mapping. Closing a handle waits for work by itself. */
static bool settle(const struct bxi_gpu_map *map)
{
    bool is_settled;

    if (map->parts == NULL || bxi_gpu_enter(map->device) < 0)
        return true;
    is_settled = bxi_gpu_vmm_settle(map->device);
    bxi_gpu_leave(map->device);
    return is_settled;
}

/* With admission closed, and settled. */
static void close_map(struct bxi_gpu_map *map)
{
    struct bxi_gpu *gpu = map->peer->gpu;

    if (bxi_gpu_enter(map->device) == 0) {
        uint64_t begin_ns = bxi_gpu_now_ns();

        if (map->parts != NULL)
            bxi_gpu_vmm_unmap(map->device, map->address, map->parts);
        else
            (void)gpu->cu.cuIpcCloseMemHandle(map->address);
        bxi_gpu_count(&gpu->figures.close_ns, (int64_t)(bxi_gpu_now_ns() - begin_ns));
        bxi_gpu_leave(map->device);
    }
    pthread_mutex_lock(&gpu->lock);
    end_map(map);
    bxi_gpu_count(&gpu->figures.closes, 1);
    bxi_gpu_count(&gpu->figures.maps, -1);
    pthread_mutex_unlock(&gpu->lock);
}

/* On the helper. If a lane waits for another process the map stays open, and a later poll tries again. */
static void try_close(struct bxi_gpu_job *job)
{
    struct bxi_gpu_map *map = (struct bxi_gpu_map *)(void *)job;
    struct bxi_gpu_device *device = map->device;

    if (bxi_gpu_admission_close(device)) {
        bool is_settled = settle(map);

        if (is_settled)
            close_map(map);
        bxi_gpu_admission_open(device);
        if (is_settled)
            return;
    }
    pthread_mutex_lock(&device->gpu->lock);
    map->state = BXI_GPU_MAP_OPEN;
    pthread_mutex_unlock(&device->gpu->lock);
}

/* ---- Closing --------------------------------------------------------------------------------- */

/* Under the lock; the map is OPEN. */
static void begin_close(struct bxi_gpu_map *map)
{
    map->state = BXI_GPU_MAP_CLOSING;
    map->job.run = try_close;
    bxi_gpu_helper_post(&map->peer->gpu->helper, &map->job);
}

/* Closes unused maps whose owner has retired the slab or is dead. */
int bxi_gpu_maps_poll(struct bxi_gpu_peer *peer)
{
    bool is_dead = bxi_gpu_peer_is_dead(peer);
    int left = 0;

    for (int i = 0; peer->open_maps > 0 && i < BXI_GPU_SLABS; i++) {
        struct bxi_gpu_map *map = &peer->map[i];

        if (map->state == BXI_GPU_MAP_NONE)
            continue;
        if (map->state == BXI_GPU_MAP_OPEN) {
            /* [gpu.stamp] relaxed: RETIRING is a request, and a later poll may serve it. */
            uint64_t stamp = bxi_load_relaxed(&peer->options.region->slab[i].stamp);

            if (!is_dead && stamp == (map->generation << 2 | BXI_GPU_SLAB_LIVE))
                continue;
            if (map->users == 0)
                begin_close(map);
        }
        left++;
    }
    return left;
}

/* How many maps there are, after the helper was asked to close those that are open. */
static uint32_t close_all(struct bxi_gpu *gpu)
{
    uint32_t left = 0;

    pthread_mutex_lock(&gpu->lock);
    for (struct bxi_gpu_peer *peer = gpu->peers; peer != NULL; peer = peer->next) {
        for (int i = 0; i < BXI_GPU_SLABS; i++)
            if (peer->map[i].state == BXI_GPU_MAP_OPEN)
                begin_close(&peer->map[i]);
        left += peer->open_maps;
    }
    pthread_mutex_unlock(&gpu->lock);
    return left;
}

bool bxi_gpu_maps_close(struct bxi_gpu *gpu, uint64_t end_ns)
{
    while (bxi_gpu_helper_drain(&gpu->helper, end_ns))
        if (close_all(gpu) == 0)
            return true;
        else if (bxi_gpu_now_ns() >= end_ns)
            return false;
    return false;
}

/* ---- Asking for maps ------------------------------------------------------------------------- */

static int stale(const struct bxi_gpu_peer *peer, uint32_t slab)
{
    return bxi_gpu_fail(-ESTALE, "slab %u of %s has gone, or another has its place: nothing of it was on loan", slab,
                        peer->name);
}

/* Under the lock: 1: it is open; 0: it is being opened. */
static int request_map(struct bxi_gpu_peer *peer, uint32_t slab, uint64_t generation)
{
    struct bxi_gpu_map *map;

    if (slab >= BXI_GPU_SLABS || generation == 0 || generation > UINT64_MAX >> 2)
        return bxi_gpu_fail(-EPROTO, "%s names a slab that cannot be one: %u, generation %llu", peer->name, slab,
                            (unsigned long long)generation);
    map = &peer->map[slab];
    if (map->state == BXI_GPU_MAP_NONE) {
        bxi_gpu_maps_poll(peer);        /* may close an earlier wrapping of the same allocation, still open here */
        map->peer = peer;
        map->generation = generation;
        map->state = BXI_GPU_MAP_OPENING;
        map->users = 0;
        map->waiting = NULL;
        map->job.run = open_map;
        peer->open_maps++;
        bxi_gpu_helper_post(&peer->gpu->helper, &map->job);
        return 0;
    }
    if (map->generation != generation || map->state == BXI_GPU_MAP_CLOSING)
        return stale(peer, slab);
    return map->state == BXI_GPU_MAP_OPEN;
}

/* Under the lock: begins to map any LIVE slab of that device; handles: one that is exported by a handle. 1: one is
 * mapped; 0: one is being opened; -1: there is none. No lease keeps the slab, so it is held before the request:
 * otherwise its row could be in use for another slab when the helper comes to it. */
static int map_some(struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool handles)
{
    for (uint32_t i = 0; i < BXI_GPU_SLABS; i++) {
        const struct bxi_gpu_slab_row *row = &peer->options.region->slab[i];
        /* [gpu.stamp] acquire, pairs with the release in bxi_gpu_slab_publish. */
        uint64_t stamp = bxi_load_acquire(&row->stamp);

        if (stamp % 4 != BXI_GPU_SLAB_LIVE || stamp >> 2 == 0 ||
            (handles && (row->flags & BXI_GPU_SLAB_FD) != 0) || memcmp(row->uuid, uuid, BXI_GPU_UUID_BYTES) != 0)
            continue;
        if (peer->map[i].state == BXI_GPU_MAP_NONE && !hold_slab(peer, i, stamp >> 2)) {
            /* [gpu.held] release, pairs with the acquire in is_held. */
            bxi_store_release(&peer->options.held->generation[i], 0);
            continue;
        }
        return request_map(peer, i, stamp >> 2) == 1;
    }
    return -1;
}

/* Begins to map a slab of each of the peer's devices about which it is unknown whether that works here; handles:
 * whether handles of it can be opened. Returns how many are being opened. */
static int try_devices(struct bxi_gpu_peer *peer, bool handles)
{
    const struct bxi_gpu_head *head = &peer->options.region->head;
    struct bxi_gpu *gpu = peer->gpu;
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t count = bxi_load_acquire(&head->device_count);
    uint8_t uuid[BXI_GPU_UUID_BYTES];
    int opening = 0;

    if (bxi_gpu_forked() || bxi_gpu_peer_is_dead(peer))
        return 0;
    pthread_mutex_lock(&gpu->lock);
    for (uint32_t i = 0; i < count && i < BXI_GPU_DEVICES; i++) {
        int is_mapped = -1;

        memcpy(uuid, head->device[i], sizeof(uuid));
        if (!(handles ? bxi_gpu_reach_has_tried(gpu, uuid) : bxi_gpu_reach_is_known(gpu, uuid)) &&
            bxi_gpu_device_for(peer, uuid) != NULL)
            is_mapped = map_some(peer, uuid, handles);
        if (is_mapped == 1 && !handles)
            bxi_gpu_reach_publish(gpu, uuid, true);
        opening += is_mapped == 0;
    }
    pthread_mutex_unlock(&gpu->lock);
    return opening;
}

void bxi_gpu_peer_try(struct bxi_gpu_peer *peer)
{
    (void)try_devices(peer, false);
}

int bxi_gpu_peer_try_handles(struct bxi_gpu_peer *peer, uint64_t end_ns)
{
    int tried = try_devices(peer, true);

    if (tried > 0)
        (void)bxi_gpu_helper_drain(&peer->gpu->helper, end_ns);
    return tried;
}

/* Under the lock. request is used, and freed later, only if this returns 0. The helper needs the lock to finish a map,
 * so it sees a request that is added after request_map. */
static int begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_request *request)
{
    int rc;

    if (bxi_gpu_peer_is_dead(peer))
        return bxi_gpu_fail(-EOWNERDEAD, "%s is dead: what was not mapped of its memory is gone", peer->name);
    rc = request_map(peer, ref->slab, ref->generation);
    if (rc == 0) {
        struct bxi_gpu_request **last = &peer->map[ref->slab].waiting;

        while (*last != NULL)
            last = &(*last)->next;
        *last = request;
    }
    return rc;
}

int bxi_gpu_map_begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, bxi_gpu_mapped_fn done, void *context)
{
    struct bxi_gpu *gpu = peer->gpu;
    struct bxi_gpu_request *request;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    request = calloc(1, sizeof(*request));
    if (request == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for asking for a slab");
    request->done = done;
    request->context = context;
    pthread_mutex_lock(&gpu->lock);
    rc = begin(peer, ref, request);
    pthread_mutex_unlock(&gpu->lock);
    if (rc == 1)
        bxi_gpu_count(&gpu->figures.map_hits, 1);
    if (rc != 0)
        free(request);
    return rc;
}

int bxi_gpu_map_get(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **out,
                    uint64_t *address)
{
    struct bxi_gpu *gpu = peer->gpu;
    struct bxi_gpu_map *map;
    int rc = 0;

    if (bxi_gpu_forked())
        return -EPERM;
    if (ref->slab >= BXI_GPU_SLABS)
        return bxi_gpu_fail(-EPROTO, "%s names slab %u: there are %d", peer->name, ref->slab, BXI_GPU_SLABS);
    pthread_mutex_lock(&gpu->lock);
    map = &peer->map[ref->slab];
    if (map->state == BXI_GPU_MAP_NONE || map->state == BXI_GPU_MAP_OPENING)
        rc = bxi_gpu_fail(-EAGAIN, "slab %u of %s is not mapped yet", ref->slab, peer->name);
    else if (map->generation != ref->generation || map->state == BXI_GPU_MAP_CLOSING)
        rc = stale(peer, ref->slab);
    else if (ref->offset > map->bytes || ref->bytes > map->bytes - ref->offset)
        rc = bxi_gpu_fail(-EPROTO, "%s lends %llu bytes from %llu on of a slab of %llu", peer->name,
                          (unsigned long long)ref->bytes, (unsigned long long)ref->offset,
                          (unsigned long long)map->bytes);
    if (rc == 0) {
        map->users++;
        *out = map;
        *address = map->address + ref->offset;
    }
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}

void bxi_gpu_map_put(struct bxi_gpu_map *map)
{
    if (bxi_gpu_forked())
        return;

    struct bxi_gpu *gpu = map->peer->gpu;

    pthread_mutex_lock(&gpu->lock);
    map->users--;
    if (map->users == 0 && map->state == BXI_GPU_MAP_OPEN && bxi_gpu_peer_is_dead(map->peer))
        begin_close(map);
    pthread_mutex_unlock(&gpu->lock);
}

struct bxi_gpu_device *bxi_gpu_map_device(const struct bxi_gpu_map *map)
{
    return map->device;
}

bool bxi_gpu_is_mapped(const struct bxi_gpu *gpu, uint64_t address)
{
    for (const struct bxi_gpu_peer *peer = gpu->peers; peer != NULL; peer = peer->next)
        for (int i = 0; peer->open_maps > 0 && i < BXI_GPU_SLABS; i++)
            if (peer->map[i].state == BXI_GPU_MAP_OPEN && address >= peer->map[i].address &&
                address - peer->map[i].address < peer->map[i].bytes)
                return true;
    return false;
}
