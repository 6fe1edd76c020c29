/* SPDX-License-Identifier: MIT */
/*
 * Opening and closing the job's GPUs: loading the driver, the region in this worker's segment, each device with its own
 * stream, the table that lend calls, and the source through which the progress role polls gpu/. The program's threads;
 * polls with the progress role.
 *
 * The end. A block that another worker has mapped must not be freed. bxi_gpu_close first unmaps the memory of the other
 * workers, then waits until they have done the same. All workers leave together, so the wait is short, and it has a
 * limit. What a stopped worker still has mapped then is freed by the driver, when both processes have ended. Where work
 * on the GPU waits for a stopped worker, or a thread is still in a call that does, everything is left until the process
 * ends: the memory, the contexts, and the pages where the GPU may still write or wait.
 */
#include "device.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define PAUSE_NS 1000000
#define PINS_NS UINT64_C(2000000000)        /* at the end, for threads in calls that wait */
#define TRY_NS UINT64_C(1000000000)         /* for the first open of a handle, milliseconds as a rule */
#define POLL_NS UINT64_C(10000000)
#define POLL_SOON_NS UINT64_C(1000000)      /* while loans or workers wait for points */

static const struct bxi_device_ops operations = {
    .block_free = bxi_device_block_free, .until = bxi_device_until,
    .copy = bxi_device_copy,             .copy_into = bxi_device_copy_into,
    .wrap = bxi_device_wrap,             .pack = bxi_device_pack,
    .pass = bxi_device_pass,             .loan_make = bxi_device_loan_make,
    .loan_part = bxi_device_loan_part,   .loan_end = bxi_device_loan_end,
};

/* Under run->lock. Allocates the region's pages before device_open publishes them. */
static int show_region(struct bx_job *job)
{
    int rc = bxi_segment_open_device(&job->segment, job->world_size);

    if (rc < 0)
        return bx_fail(BX_E_NO_SPACE, "no room in /dev/shm for the %u KiB by which worker '%s' shares device memory "
                                      "(%s); make it larger (mount -o remount,size=, docker --shm-size)",
                       (BXI_DEVICE_BYTES + BXI_DEVICE_PAIR_BYTES * (unsigned)job->world_size) / 1024, job->name,
                       bx_strerror(rc));
    return 0;
}

void bxi_devices_poll(struct bx_job *job)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    struct bxi_device_kept *done;
    bool settled;

    /* The holder of the lock may block in the driver, and the role must not block. */
    if (devices == NULL || !bxi_devices_try_enter(devices))
        return;
    bxi_gpu_poll(devices->gpu);
    settled = bxi_devices_check_settled(devices);
    done = bxi_devices_passed_poll(devices);
    bxi_devices_leave(devices);
    bxi_devices_passed_drop(done);
    if (settled)
        job->lend->ops->passed_ended(job);
}

/* After a sleep that timed out. */
static void poll_devices(void *context, const struct bxi_role *role)
{
    (void)role;
    bxi_devices_poll(context);
}

static uint64_t poll_ns(const struct bxi_devices *devices)
{
    /* Relaxed: who sets it sends an event or has the role. */
    return bxi_load_relaxed((bxi_a32 *)&devices->pending) != 0 ? POLL_SOON_NS : POLL_NS;
}

/* At most so often while the worker is busy: peers that free slabs must not wait until it is idle. */
static void poll_devices_now_and_then(void *context, const struct bxi_role *role, uint64_t now_ns)
{
    struct bxi_devices *devices = bxi_devices_of(context);

    if (now_ns - devices->polled_ns < poll_ns(devices))
        return;
    devices->polled_ns = now_ns;
    poll_devices(context, role);
}

/* An idle worker polls too: to free its slabs, and to close those that others want to free. */
static uint64_t next_deadline_ns(void *context, uint64_t now_ns)
{
    uint64_t after_ns = poll_ns(bxi_devices_of(context));

    return now_ns + (after_ns == POLL_SOON_NS ? after_ns : BXI_WATCHDOG_NS);
}

/* Registered with the first device: a job without devices does no work for it in its passes. */
static const struct bxi_source_ops device_source = {
    .now_and_then = poll_devices_now_and_then,
    .next_deadline_ns = next_deadline_ns,
    .watchdog = poll_devices,
};

static int make_devices(struct bx_job *job, struct bxi_devices **out)
{
    struct bxi_devices *devices = calloc(1, sizeof *devices);
    struct bxi_gpu_options options = { .region = bxi_segment_at(&job->segment, BXI_DEVICE_OFFSET),
                                       .is_held = bxi_devices_is_held,
                                       .context = devices };
    int rc;

    if (devices == NULL)
        return bx_fail(-ENOMEM, "no memory for the list of devices");
    bxi_store_relaxed(&devices->refs, 1);       /* relaxed: nobody else knows it yet */
    devices->job = job;
    devices->fork_generation = job->fork_generation;
    devices->staging = devices->joining = BXI_NO_STREAM;
    pthread_mutex_init(&devices->lock, NULL);
    bxi_lock(&job->run->lock);
    rc = show_region(job);
    bxi_unlock(&job->run->lock);
    if (rc == 0 && (rc = bxi_gpu_open(&options, &devices->gpu)) < 0)
        rc = bx_fail(rc, "%s", bxi_gpu_text());
    if (rc < 0) {
        bxi_devices_release(devices);
        return rc;
    }
    bxi_lock(&job->run->lock);
    /* [devices] release, pairs with the acquire in bxi_devices_of. */
    bxi_store_release(&job->device->devices, devices);
    bxi_run_add(job->run, &device_source, job);
    bxi_unlock(&job->run->lock);
    bxi_device_register(&operations);
    bxi_devices_set_current(devices);
    *out = devices;
    return 0;
}

/* Loads the driver once. It has its own lock, because loading takes long. */
static int load(struct bx_job *job, struct bxi_devices **out)
{
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    int rc = bxi_job_check(job);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&loading);
    *out = bxi_devices_of(job);
    if (*out == NULL)
        rc = make_devices(job, out);
    pthread_mutex_unlock(&loading);
    return rc;
}

/* Loads the driver and enters the devices. 0, or an error with a sentence. */
static int load_and_enter(struct bx_job *job, struct bxi_devices **out)
{
    int rc = load(job, out);

    if (rc == 0 && !bxi_devices_enter(*out))
        rc = bx_fail(BX_E_SHUTDOWN, "worker '%s' has shut down", job->name);
    return rc;
}

struct lanes {                          /* of a device that is being opened; NULL: none */
    struct bxi_gpu_lane *own, *staging, *joining;
};

/* Without devices->lock: creating a stream may wait for the device. The device's own must be there; the others are
 * created on first use if no lane is left for them now. */
static int open_lanes(struct bxi_gpu_device *device, bool is_first, struct lanes *lanes)
{
    int rc = bxi_gpu_lane_open(device, NULL, &lanes->own);

    if (rc < 0)
        return bxi_devices_fail(rc, "a stream cannot be ordered with");
    if (is_first && bxi_gpu_lane_open(device, NULL, &lanes->staging) < 0)
        lanes->staging = NULL;
    if (is_first && bxi_gpu_lane_open(device, NULL, &lanes->joining) < 0)
        lanes->joining = NULL;
    return 0;
}

static void close_lanes(const struct lanes *lanes)
{
    bxi_gpu_lane_close(lanes->own);
    bxi_gpu_lane_close(lanes->staging);
    bxi_gpu_lane_close(lanes->joining);
}

static uint32_t keep(struct bxi_devices *devices, uint32_t device, struct bxi_gpu_lane **lane)
{
    uint32_t stream = *lane != NULL ? bxi_devices_keep_lane(devices, device, *lane) : BXI_NO_STREAM;

    *lane = NULL;
    return stream;
}

/* Under devices->lock. */
static void add_device(struct bxi_devices *devices, struct bxi_gpu_device *device, struct lanes *lanes)
{
    uint32_t index = devices->count++;

    devices->open[index].device = device;
    devices->open[index].ordinal = bxi_gpu_device_ordinal(device);
    devices->open[index].stream = keep(devices, index, &lanes->own);
    if (index == 0) {
        devices->staging = keep(devices, index, &lanes->staging);
        devices->joining = keep(devices, index, &lanes->joining);
    }
}

/* Called inside enter, leaves. The driver takes long and runs without the lock: another thread may open the same device
 * meanwhile. */
static int open_and_leave(struct bxi_devices *devices, int ordinal)
{
    struct bxi_gpu *gpu = devices->gpu;
    struct bxi_gpu_device *device;
    struct lanes lanes = { NULL, NULL, NULL };
    bool known = bxi_devices_index(devices, ordinal) >= 0, is_first = devices->count == 0;
    int rc = 0;

    bxi_devices_pin(devices);
    if (!known && (rc = bxi_gpu_device_open(gpu, ordinal, &device)) < 0)
        rc = bxi_devices_fail(rc == -EINVAL ? -ENODEV : rc, "the GPU cannot be used");
    if (!known && rc == 0)
        rc = open_lanes(device, is_first, &lanes);
    pthread_mutex_lock(&devices->lock);
    if (rc == 0 && devices->gpu == NULL)
        rc = bx_fail(BX_E_SHUTDOWN, "worker '%s' has shut down", devices->job->name);
    if (rc == 0 && bxi_devices_index(devices, ordinal) < 0)
        add_device(devices, device, &lanes);
    pthread_mutex_unlock(&devices->lock);
    close_lanes(&lanes);                /* another thread was faster, or the worker shuts down */
    bxi_devices_unpin(devices);
    return rc;
}

static bool exports_handles(const struct bxi_lend_peer *peer)
{
    const struct bxi_gpu_region *region = bxi_device_region(peer->view->control);

    for (int i = 0; i < BXI_GPU_SLABS; i++)
        /* [gpu.stamp] acquire, pairs with the release in bxi_gpu_slab_publish. */
        if (bxi_load_acquire((bxi_a64 *)&region->slab[i].stamp) % 4 == BXI_GPU_SLAB_LIVE &&
            (region->slab[i].flags & BXI_GPU_SLAB_FD) == 0)
            return true;
    return false;
}

/* Where memory is exported by handles, the driver may fail to open them, and only an open tells. So a handle is opened
 * before any worker lends one to this one: what cannot be opened is staged from the first loan on. One open is enough,
 * of whichever worker. device_open is set before, because owners look for what this worker holds only then. */
static void try_handles(struct bx_job *job, struct bxi_devices *devices)
{
    uint64_t end_ns = bxi_now_ns() + TRY_NS;
    int tried = 0;

    if (!bxi_devices_enter(devices))
        return;
    for (int rank = 0; rank < job->world_size && tried == 0 && devices->gpu != NULL; rank++) {
        struct bxi_lend_peer *peer = job->lend->peers[rank];
        struct bxi_gpu_peer *other = NULL;

        if (rank == job->rank || !bxi_device_is_open(peer->view->control) || !bxi_devices_share(devices, peer) ||
            !exports_handles(peer) || bxi_devices_peer(devices, peer, &other) < 0 || other == NULL)
            continue;
        bxi_devices_pin(devices);
        tried = bxi_gpu_peer_try_handles(other, end_ns);
        bxi_devices_reenter(devices);
    }
    if (devices->gpu != NULL)
        bxi_gpu_set_trying(devices->gpu, false);
    bxi_devices_leave(devices);
}

/* Others may lend to this worker from now on. */
static void publish(struct bx_job *job, struct bxi_devices *devices)
{
    if (!bxi_devices_enter(devices))
        return;
    bxi_gpu_set_trying(devices->gpu, true);
    /* [device.open] release, pairs with the acquire in open_peer: the pages and gpu/'s head are written before. */
    bxi_store_release(&job->control->header.device_open, 1);
    bxi_devices_leave(devices);
    try_handles(job, devices);
}

int bx_gpu_open(struct bx_job *job, int ordinal, struct bx_device *device)
{
    BXI_UNCANCELLED;
    struct bxi_devices *devices;
    int rc = load_and_enter(job, &devices);

    if (rc < 0)
        return rc;
    rc = open_and_leave(devices, ordinal);
    if (rc < 0)
        return rc;
    publish(job, devices);
    if (device != NULL)
        *device = (struct bx_device){ BX_CUDA, ordinal };
    return 0;
}

int bx_gpu_count(struct bx_job *job)
{
    struct bxi_devices *devices;
    int rc = load_and_enter(job, &devices);

    if (rc < 0)
        return rc;
    rc = bxi_gpu_device_count(devices->gpu);
    bxi_devices_leave(devices);
    return rc;
}

bool bx_gpu_is_fake(struct bx_job *job)
{
    struct bxi_devices *devices;
    bool fake;

    if (load_and_enter(job, &devices) < 0)
        return false;
    fake = bxi_gpu_is_fake(devices->gpu);
    bxi_devices_leave(devices);
    return fake;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Waits until no thread is in a call that waits for a GPU or the driver. False: one still is after PINS_NS. */
static bool have_unpinned(struct bxi_devices *devices)
{
    uint64_t end_ns = bxi_now_ns() + PINS_NS;
    bool have;

    pthread_mutex_lock(&devices->lock);
    while (devices->pins > 0 && bxi_now_ns() < end_ns) {
        pthread_mutex_unlock(&devices->lock);
        nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
        pthread_mutex_lock(&devices->lock);
    }
    have = devices->pins == 0;
    pthread_mutex_unlock(&devices->lock);
    return have;
}

/* The pages that the GPU knows stay mapped, and so do the peers' writable words. A thread that is still in a call may
 * come back after bx_job_destroy: the peers' records stay with their views (job.c), and this one by a reference. */
static void leave_all(struct bx_job *job, struct bxi_devices *devices, const char *why)
{
    bxi_log(job, 1, "the GPU of worker '%s' is not closed: %s", job->name, why);
    job->segment.stays = true;
    for (int rank = 0; rank < job->world_size; rank++)
        if (devices->views[rank] != NULL)
            devices->views[rank]->stays = true;
    bxi_add(&devices->refs, 1);
}

void bxi_devices_close(struct bx_job *job)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    struct bxi_gpu *gpu;
    bool has_left = false;

    if (devices == NULL || !bxi_devices_enter(devices))
        return;
    bxi_devices_set_current(NULL);
    gpu = devices->gpu;
    devices->gpu = NULL;            /* from here on the release of a tensor does not call gpu/ */
    pthread_mutex_unlock(&devices->lock);
    if (!have_unpinned(devices)) {
        bxi_gpu_abandon(gpu);
        has_left = true;
        leave_all(job, devices, "a thread is in a call that waits for it, or for another worker");
    } else if (bxi_gpu_close(gpu) < 0) {
        has_left = true;
        leave_all(job, devices, bxi_gpu_text());
    }
    if (!has_left)
        bxi_devices_close_words(devices);
}

void bxi_devices_destroy(struct bx_job *job)
{
    struct bxi_devices *devices = bxi_devices_of(job);

    if (devices == NULL)
        return;
    bxi_devices_passed_drop(devices->kept);
    devices->kept = NULL;
    bxi_devices_release(devices);
}
