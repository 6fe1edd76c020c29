/* SPDX-License-Identifier: MIT */
/*
 * The job's GPUs: entering and leaving, their streams, the devices of peers, and counters.
 *
 * gpu/ does the work and keeps the invariants. open.c puts gpu/'s region into the worker's segment (layout.h, I14).
 * This file makes gpu/'s peers from the job's. Tensors may be released after the job's end: each such release calls
 * gpu/ only under devices->lock, and only while the driver is open (bxi_devices_enter).
 *
 * Any thread; bxi_devices_peer_died with the progress role. devices->lock and run->lock are never
 * held together. devices->lock is released while a thread waits for another worker's GPU, and while the driver opens a
 * device (bxi_devices_pin).
 */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static_assert(sizeof(struct bxi_gpu_region) == BXI_DEVICE_BYTES, "the region's place in the segment");
static_assert(sizeof(struct bxi_gpu_held) <= BXI_DEVICE_POINTS, "what is held, before the points");
static_assert(BXI_DEVICE_POINTS + BXI_LEASE_MAX * 16 == BXI_DEVICE_PAIR_BYTES, "a point for each lease word");
static_assert(BXI_DEVICE_OFFSET % BXI_PAGE == 0, "the GPU registers whole pages");

#define WORDS_BYTES (sizeof(struct bxi_gpu_word) * BXI_GPU_LANES)

static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bxi_devices *current;             /* current_lock */

struct bxi_devices *bxi_devices_current(void)
{
    struct bxi_devices *devices;

    pthread_mutex_lock(&current_lock);
    devices = current;
    if (devices != NULL)
        bxi_add(&devices->refs, 1);
    pthread_mutex_unlock(&current_lock);
    return devices;
}

void bxi_devices_set_current(struct bxi_devices *devices)
{
    pthread_mutex_lock(&current_lock);
    current = devices;
    pthread_mutex_unlock(&current_lock);
}

int bxi_devices_fail(int code, const char *what)
{
    return bx_fail(code, "%s: %s", what, bxi_gpu_text()[0] != '\0' ? bxi_gpu_text() : bx_strerror(code));
}

void bxi_devices_release(struct bxi_devices *devices)
{
    if (bxi_add(&devices->refs, (uint32_t)-1) != 1)
        return;
    pthread_mutex_destroy(&devices->lock);
    free(devices);
}

/* Relaxed: the child of a fork has only this thread. */
static bool is_forked(const struct bxi_devices *devices)
{
    return bxi_load_relaxed(&bxi_forks) != devices->fork_generation;
}

bool bxi_devices_enter(struct bxi_devices *devices)
{
    if (is_forked(devices))             /* the lock may have been held when the process forked */
        return false;
    pthread_mutex_lock(&devices->lock);
    if (devices->gpu != NULL)
        return true;
    pthread_mutex_unlock(&devices->lock);
    return false;
}

bool bxi_devices_try_enter(struct bxi_devices *devices)
{
    if (is_forked(devices) || pthread_mutex_trylock(&devices->lock) != 0)
        return false;
    if (devices->gpu != NULL)
        return true;
    pthread_mutex_unlock(&devices->lock);
    return false;
}

int bxi_devices_gone(const struct bxi_devices *devices)
{
    if (is_forked(devices))
        return bx_fail(BX_E_FORKED, "the GPU was opened by the process that this one was forked from, and CUDA does "
                                    "not survive a fork: fork first, and open it here");
    return bx_fail(BX_E_SHUTDOWN, "the job whose GPU this is has shut down");
}

static void show(struct bxi_devices *devices);

void bxi_devices_leave(struct bxi_devices *devices)
{
    show(devices);
    pthread_mutex_unlock(&devices->lock);
}

void bxi_devices_pin(struct bxi_devices *devices)
{
    devices->pins++;
    pthread_mutex_unlock(&devices->lock);
}

void bxi_devices_unpin(struct bxi_devices *devices)
{
    pthread_mutex_lock(&devices->lock);
    devices->pins--;
    bxi_devices_leave(devices);
}

void bxi_devices_reenter(struct bxi_devices *devices)
{
    pthread_mutex_lock(&devices->lock);
    devices->pins--;
}

void bxi_devices_wait(struct bxi_devices *devices, uint32_t stream)
{
    bxi_devices_pin(devices);
    bxi_gpu_lane_wait(devices->streams[stream].lane);
    bxi_devices_reenter(devices);
}

int bxi_devices_alloc(struct bxi_devices *devices, uint32_t device, uint64_t bytes, struct bxi_gpu_block **block)
{
    struct bxi_gpu_block *made = NULL;
    int rc;

    bxi_devices_pin(devices);
    rc = bxi_gpu_alloc(devices->open[device].device, bytes > 0 ? bytes : 1, &made);
    bxi_devices_reenter(devices);
    if (rc < 0)
        return rc;
    if (devices->gpu == NULL) {
        bxi_gpu_free(made);
        return BX_E_SHUTDOWN;
    }
    *block = made;
    return 0;
}

/* ---- streams ----------------------------------------------------------------------------------- */

int bxi_devices_index(const struct bxi_devices *devices, int ordinal)
{
    for (uint32_t i = 0; i < devices->count; i++)
        if (devices->open[i].ordinal == ordinal)
            return (int)i;
    return -1;
}

int bxi_devices_find(const struct bxi_devices *devices, int ordinal)
{
    int index = bxi_devices_index(devices, ordinal);

    if (index >= 0)
        return index;
    return bx_fail(-ENODEV, "device cuda:%d is not open in worker '%s'; call bx_gpu_open", ordinal,
                   devices->job->name);
}

uint32_t bxi_devices_keep_lane(struct bxi_devices *devices, uint32_t device, struct bxi_gpu_lane *lane)
{
    devices->streams[devices->stream_count] = (struct bxi_stream){
        .lane = lane,
        .stream = bxi_gpu_lane_stream(lane),
        .device = device,
    };
    return devices->stream_count++;
}

int bxi_devices_add_stream(struct bxi_devices *devices, uint32_t device, void *stream)
{
    struct bxi_gpu_lane *lane = NULL;
    int rc;

    if (devices->stream_count == BXI_GPU_LANES)
        return bx_fail(-ENOSPC, "tensors are ordered with %d streams already, the most there can be; use fewer",
                       BXI_GPU_LANES);
    rc = bxi_gpu_lane_open(devices->open[device].device, stream, &lane);
    if (rc < 0)
        return bxi_devices_fail(rc, "a stream cannot be ordered with");
    return (int)bxi_devices_keep_lane(devices, device, lane);
}

int bxi_devices_stream(struct bxi_devices *devices, uint32_t device, void *stream)
{
    if (stream == NULL)
        return (int)devices->open[device].stream;
    if (stream == BXI_THREADS_STREAM)
        return bx_fail(-EINVAL, "the per-thread default stream (2) is another one on each thread: name a stream that "
                                "your program made");
    for (uint32_t i = 0; i < devices->stream_count; i++)
        if (devices->streams[i].device == device && devices->streams[i].stream == stream)
            return (int)i;
    return bxi_devices_add_stream(devices, device, stream);
}

int bxi_device_threads_lane(struct bxi_devices *devices, uint32_t device, struct bxi_gpu_lane **lane)
{
    int rc = bxi_gpu_lane_open(devices->open[device].device, BXI_THREADS_STREAM, lane);

    return rc < 0 ? bxi_devices_fail(rc, "the thread's default stream cannot be ordered with") : 0;
}

/* Index of one of the job's own streams; created now if it could not be when the device was opened. */
static int own_stream(struct bxi_devices *devices, uint32_t *index)
{
    int rc;

    if (*index == BXI_NO_STREAM) {
        rc = bxi_devices_add_stream(devices, 0, NULL);
        if (rc < 0)
            return rc;
        *index = (uint32_t)rc;
    }
    return (int)*index;
}

int bxi_devices_staging(struct bxi_devices *devices)
{
    return own_stream(devices, &devices->staging);
}

int bxi_devices_joining(struct bxi_devices *devices)
{
    return own_stream(devices, &devices->joining);
}

void *bx_gpu_stream(struct bx_job *job, struct bx_device device)
{
    struct bxi_devices *devices = bxi_job_check_any(job) < 0 ? NULL : bxi_devices_of(job);
    void *stream = NULL;
    int index;

    if (devices == NULL || !bxi_devices_enter(devices))
        return NULL;
    index = bxi_devices_find(devices, device.index);
    if (device.kind == BX_CUDA && index >= 0)
        stream = devices->streams[devices->open[index].stream].stream;
    bxi_devices_leave(devices);
    return stream;
}

/* ---- settling ---------------------------------------------------------------------------------- */

/* An error of gpu/ is the end of a stream's work. */
static bool have_all_passed(struct bxi_devices *devices)
{
    bool all = true;

    for (uint32_t i = 0; i < devices->stream_count; i++) {
        if (bxi_gpu_passed(devices->gpu, NULL, &devices->settling[i]) == 0)
            all = false;
        else
            devices->settling[i] = (struct bxi_gpu_point){ 0 };
    }
    return all;
}

void bxi_devices_settle(struct bxi_devices *devices)
{
    for (uint32_t i = 0; i < devices->stream_count; i++)
        bxi_gpu_lane_last(devices->streams[i].lane, &devices->settling[i]);
    if (have_all_passed(devices))
        return;                     /* if it was settling before, the next poll finds that it has settled */
    /* Relaxed, both: is_settling is read by the role, which calls this itself, or before a loan leaves
     * passed_loans, under the lock; pending by the role in its next poll. */
    bxi_store_relaxed(&devices->is_settling, 1);
    bxi_store_relaxed(&devices->pending, 1);
}

bool bxi_devices_check_settled(struct bxi_devices *devices)
{
    if (bxi_load_relaxed(&devices->is_settling) == 0 || !have_all_passed(devices))
        return false;
    bxi_store_relaxed(&devices->is_settling, 0);    /* relaxed: the role's own */
    return true;
}

bool bxi_devices_are_settled(struct bx_job *job)
{
    struct bxi_devices *devices = bxi_devices_of(job);

    /* Relaxed: after the load of passed_loans, before which the thread that ended a loan has settled. */
    return devices == NULL || bxi_load_relaxed(&devices->is_settling) == 0;
}

/* ---- peers ------------------------------------------------------------------------------------- */

/* The device on which slabs of the peer's devices that are not open here are mapped: the first device that the peer
 * has open as well, else the first of all. */
static struct bxi_gpu_device *device_for(const struct bxi_devices *devices, const struct bxi_gpu_region *region)
{
    /* [gpu.devices] acquire, pairs with the release in publish. */
    uint32_t theirs = bxi_load_acquire((bxi_a32 *)&region->head.device_count);
    struct bxi_gpu_info mine;

    for (uint32_t i = 0; i < devices->count; i++) {
        if (bxi_gpu_device_info(devices->gpu, devices->open[i].ordinal, &mine) < 0)
            continue;
        for (uint32_t j = 0; j < theirs && j < BXI_GPU_DEVICES; j++)
            if (memcmp(mine.uuid, region->head.device[j], sizeof mine.uuid) == 0)
                return devices->open[i].device;
    }
    return devices->open[0].device;
}

/* Maps the page of words in a worker's region writable. NULL: unavailable. */
static struct bxi_gpu_word *map_words(int fd)
{
    off_t offset = (off_t)(BXI_DEVICE_OFFSET + offsetof(struct bxi_gpu_region, word));
    void *words = MAP_FAILED;

    if (fd >= 0)
        words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (words == MAP_FAILED)
        return NULL;
    /* A forked child must not write another worker's segment, nor keep it. */
    if (madvise(words, WORDS_BYTES, MADV_DONTFORK) == 0)
        return words;
    munmap(words, WORDS_BYTES);
    return NULL;
}

/* Opens the peer's segment by name now: the first worker that sees its death unlinks the name. Its words are mapped
 * writable at its death, to poison them, or now if the driver needs that; the mapping is not written before. */
static void open_words(struct bxi_devices *devices, const struct bxi_lend_peer *peer,
                       const struct bxi_gpu_device *device)
{
    const struct bx_job *job = devices->job;
    char name[BXI_OBJECT_NAME_BYTES];

    bxi_object_name(name, (uint32_t)geteuid(), job->job_name, job->instance, peer->rank);
    devices->words_fd[peer->rank] = BXI_UNSHARED(shm_open(name, O_RDWR | O_CLOEXEC, 0));
    if (bxi_gpu_wants_words(device))
        devices->words[peer->rank] = map_words(devices->words_fd[peer->rank]);
}

/* After bxi_gpu_close, or where no peer was opened. */
static void close_words(struct bxi_devices *devices, int rank)
{
    if (devices->words[rank] != NULL)
        munmap(devices->words[rank], WORDS_BYTES);
    bxi_unshared_close(devices->words_fd[rank]);
    devices->words[rank] = NULL;
    devices->words_fd[rank] = -1;
}

void bxi_devices_close_words(struct bxi_devices *devices)
{
    for (int rank = 0; rank < devices->job->world_size; rank++)
        if (devices->peers[rank] != NULL)
            close_words(devices, rank);
}

/* What is known of devices, maps and words is of the first process of each rank, and may outlive it. */
bool bxi_devices_share(const struct bxi_devices *devices, const struct bxi_lend_peer *peer)
{
    const struct bx_job *job = devices->job;

    return peer->rank == job->rank ||
           (!peer->is_remote && peer->generation == 0 && job->lend->peers[job->rank]->generation == 0);
}

bool bxi_devices_died(const struct bxi_devices *devices, const struct bxi_lend_peer *peer)
{
    /* Relaxed: written under devices->lock. */
    return peer->generation == 0 && bxi_load_relaxed(&devices->died[peer->rank]) != 0;
}

bool bxi_devices_released(const struct bxi_devices *devices, const struct bxi_lend_peer *peer)
{
    /* Relaxed: as where it is stored. */
    return peer->generation == 0 && bxi_load_relaxed(&devices->released[peer->rank]) != 0;
}

int bxi_devices_are_open(const struct bxi_devices *devices, const struct bxi_lend_peer *peer)
{
    if (devices->count == 0)
        return bx_fail(-ENODEV, "worker '%s' has no GPU open; call bx_gpu_open", devices->job->name);
    /* One on another host is not asked: what a third worker has told of its GPU may come here earlier than its own
     * word. If it has none, it answers so (rpc/body.c). */
    if (peer->rank != devices->job->rank && !peer->is_remote && !bxi_device_is_open(peer->view->control))
        return bx_fail(-ENODEV, "worker '%s' has no GPU open, and cannot have a tensor on one; call bx_gpu_open there",
                       peer->name);
    return 0;
}

static int open_peer(struct bxi_devices *devices, const struct bxi_lend_peer *peer)
{
    struct bx_job *job = devices->job;
    struct bxi_gpu_peer_options options = {
        .name = peer->name,
        .region = bxi_device_region(peer->view->control),
        .held = bxi_segment_at(&job->segment, bxi_device_pair_offset(peer->rank)),
        .process_fd = job->lend->ops->process_fd(job, peer->rank),
    };
    int rc;

    if (bxi_devices_died(devices, peer))
        return bx_fail(BX_E_PEER_DEAD, "worker '%s' has died", peer->name);
    rc = bxi_devices_are_open(devices, peer);
    if (rc < 0)
        return rc;
    options.device = device_for(devices, options.region);
    open_words(devices, peer, options.device);
    options.words = devices->words[peer->rank];
    rc = bxi_gpu_peer_open(devices->gpu, &options, &devices->peers[peer->rank]);
    if (rc < 0) {
        close_words(devices, peer->rank);
        return bxi_devices_fail(rc, "the device memory of a worker cannot be used");
    }
    devices->views[peer->rank] = peer->view;
    /* [device.mortal] release, pairs with the acquire in bxi_devices_peer_release: its words are set. */
    bxi_store_release(&devices->mortal[peer->rank], devices->peers[peer->rank]);
    bxi_gpu_poll(devices->gpu);         /* reads the peer's devices and finds those that cannot be reached */
    return 0;
}

bool bxi_devices_is_held(void *context, uint32_t slab, uint64_t generation)
{
    const struct bxi_devices *devices = context;
    const struct bx_job *job = devices->job;

    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_control *control = rank == job->rank ? NULL : job->lend->peers[rank]->view->control;
        const struct bxi_gpu_held *held;

        /* Relaxed: an earlier value keeps the slab longer. */
        if (control == NULL || bxi_load_relaxed(&devices->died[rank]) != 0 || !bxi_device_is_open(control))
            continue;
        held = (const struct bxi_gpu_held *)(const void *)((const unsigned char *)control +
                                                           bxi_device_pair_offset(job->rank));
        /* [gpu.held] acquire, pairs with the release in end_map: its mapping is gone. */
        if (bxi_load_acquire((bxi_a64 *)&held->generation[slab]) == generation)
            return true;
    }
    return false;
}

int bxi_devices_peer(struct bxi_devices *devices, struct bxi_lend_peer *peer, struct bxi_gpu_peer **out)
{
    int rc = 0;

    *out = NULL;
    if (peer->rank == devices->job->rank)
        return 0;
    if (!bxi_devices_share(devices, peer))
        return bx_fail(-EPROTO, "worker '%s' names device memory to worker '%s', which cannot map it: one of them came "
                                "back in the place of one that died", peer->name, devices->job->name);
    if (devices->peers[peer->rank] == NULL)
        rc = open_peer(devices, peer);
    *out = devices->peers[peer->rank];
    return rc;
}

/* Before a peer's words are poisoned. */
static struct bxi_gpu_word *release_words(struct bxi_devices *devices, int rank)
{
    if (devices->words[rank] == NULL)
        devices->words[rank] = map_words(devices->words_fd[rank]);
    /* Relaxed: who was released has seen the poison, which is stored after this with release. */
    bxi_store_relaxed(&devices->released[rank], 1);
    return devices->words[rank];
}

/* A peer that another thread opens at this moment is missed: bxi_devices_peer_died sees it, under the lock. */
void bxi_devices_peer_release(struct bx_job *job, const struct bxi_lend_peer *peer)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    struct bxi_gpu_peer *mortal = NULL;

    /* Of the first process of each rank only, as in bxi_devices_peer_died. */
    if (devices != NULL && !is_forked(devices) && peer->generation == 0)
        /* [device.mortal] acquire, pairs with the release in open_peer. */
        mortal = bxi_load_acquire(&devices->mortal[peer->rank]);
    if (mortal != NULL)
        bxi_gpu_peer_release(mortal, release_words(devices, peer->rank));   /* bxi_devices_peer_died logs what fails */
}

void bxi_devices_peer_died(struct bx_job *job, struct bxi_lend_peer *peer)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    int rc = 0;

    if (devices == NULL || !bxi_devices_enter(devices))
        return;
    bxi_store_relaxed(&devices->died[peer->rank], 1);
    bxi_devices_settle(devices);
    if (peer->generation == 0 && devices->peers[peer->rank] != NULL)
        rc = bxi_gpu_peer_died(devices->peers[peer->rank], release_words(devices, peer->rank));
    bxi_devices_leave(devices);
    if (rc < 0)
        bxi_log(job, 1, "worker '%s' died, and GPU work here that waits for it cannot be released: %s", peer->name,
                bxi_gpu_text());
}

/* ---- counters ---------------------------------------------------------------------------------- */

static const struct {
    enum bxi_counter counter;
    size_t offset;
} shown[] = {
    { BXI_C_gpu_slabs_opened, offsetof(struct bxi_gpu_counters, opens) },
    { BXI_C_gpu_slabs_closed, offsetof(struct bxi_gpu_counters, closes) },
    { BXI_C_gpu_marks, offsetof(struct bxi_gpu_counters, marks) },
    { BXI_C_gpu_waits, offsetof(struct bxi_gpu_counters, waits) },
    { BXI_C_gpu_waits_saved, offsetof(struct bxi_gpu_counters, waits_saved) },
    { BXI_C_gpu_host_synchronises, offsetof(struct bxi_gpu_counters, host_synchronises) },
    { BXI_C_gpu_fallbacks, offsetof(struct bxi_gpu_counters, fallbacks) },
    { BXI_C_gpu_staged_bytes, offsetof(struct bxi_gpu_counters, staged_bytes) },
    { BXI_C_gpu_copied_bytes, offsetof(struct bxi_gpu_counters, d2d_bytes) },
    { BXI_C_gpu_bytes, offsetof(struct bxi_gpu_counters, slab_bytes) },
    { BXI_C_gpu_bytes_used, offsetof(struct bxi_gpu_counters, block_bytes) },
    { BXI_C_gpu_open_ns, offsetof(struct bxi_gpu_counters, open_ns) },
    { BXI_C_gpu_close_ns, offsetof(struct bxi_gpu_counters, close_ns) },
};
static_assert(sizeof shown / sizeof *shown == BXI_GPU_SHOWN, "one last value for each");

/* Under devices->lock. Copies gpu/'s figures to the job's counters, at the end of each call on device memory. Writes
 * only what has changed: a message calls this once for each tensor, and the counters' cache lines are shared. */
static void show(struct bxi_devices *devices)
{
    struct bxi_gpu_counters counters;

    if (devices->gpu == NULL)
        return;
    bxi_gpu_read(devices->gpu, &counters);
    for (size_t i = 0; i < BXI_GPU_SHOWN; i++) {
        uint64_t value;

        memcpy(&value, (const char *)&counters + shown[i].offset, sizeof value);
        if (value == devices->shown[i])
            continue;
        devices->shown[i] = value;
        /* Relaxed: for inspectors. */
        bxi_store_relaxed(&devices->job->counters[shown[i].counter], value);
    }
}
