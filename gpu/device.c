/* SPDX-License-Identifier: MIT */
/*
 * Opening and closing the GPU of a process and its devices; figures. The caller's thread. The highest file: no other
 * file of gpu/ calls it.
 *
 * Ordinals are private to a process, because CUDA_VISIBLE_DEVICES renumbers: other processes get UUIDs only. Each
 * device's primary context is retained once.
 *
 * Killed at any instruction: the driver frees contexts and memory; the region stays as it is for processes that have it
 * mapped.
 */
#include "inside.h"

#include "shm/cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLOSE_NS UINT64_C(2000000000)   /* for the work on this process's lanes, and for the helper */

static bxi_a32 is_open;

/* ---- Open and close -------------------------------------------------------------------------- */

/* The place of what the variable names in names, the first of which is for a variable that is not set. list has them in
 * a sentence. */
static int read_name(const char *variable, const char *const *names, const char *list)
{
    const char *text = getenv(variable);

    if (text == NULL || text[0] == '\0')
        return 0;
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return bxi_gpu_fail(-EINVAL, "%s=%s is none of %s", variable, text, list);
}

static int read_options(const struct bxi_gpu_options *options, enum bxi_gpu_order *order, enum bxi_gpu_export *export)
{
    static const char *const orders[] = { "auto", "host", "events", NULL };
    static const char *const exports[] = { "auto", "fd", "handle", NULL };
    int wanted_order, wanted_export;

    if (options == NULL || options->region == NULL || (uintptr_t)options->region % 4096 != 0)
        return bxi_gpu_fail(-EINVAL, "the region has to begin on a page");
    if (options->order > BXI_GPU_EVENTS)
        return bxi_gpu_fail(-EINVAL, "order %d is none", (int)options->order);
    wanted_order = options->order != BXI_GPU_ORDER_AUTO
        ? (int)options->order : read_name("BX_GPU_ORDER", orders, "auto, host, events");
    if (wanted_order < 0)
        return wanted_order;
    wanted_export = read_name("BX_GPU_EXPORT", exports, "auto, fd, handle");
    if (wanted_export < 0)
        return wanted_export;
    *order = (enum bxi_gpu_order)wanted_order;
    *export = (enum bxi_gpu_export)wanted_export;
    return 0;
}

static int list_device(struct bxi_gpu *gpu, int ordinal)
{
    const struct bxi_cuda *cu = &gpu->cu;
    struct bxi_gpu_info *info = &gpu->info[ordinal];
    int *handle = &gpu->handle[ordinal];
    size_t bytes = 0;
    struct CUuuid_st uuid;
    unsigned result = cu->cuDeviceGet(handle, ordinal);

    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetName(info->name, (int)sizeof(info->name), *handle);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetUuid_v2(&uuid, *handle);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceTotalMem_v2(&bytes, *handle);
    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(cu, result, "asking device %d what it is", ordinal);
    memcpy(info->uuid, uuid.bytes, sizeof(info->uuid));
    info->bytes = bytes;
    info->is_mig = strstr(info->name, " MIG ") != NULL;
    return 0;
}

static int list_devices(struct bxi_gpu *gpu)
{
    int count = 0;
    unsigned result = gpu->cu.cuDeviceGetCount(&count);

    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "counting devices");
    if (count <= 0)
        return bxi_gpu_fail(-ENODEV, "no GPU: the driver sees no device: look at nvidia-smi and at "
                            "CUDA_VISIBLE_DEVICES");
    gpu->ordinals = count < BXI_GPU_ORDINALS ? count : BXI_GPU_ORDINALS;
    for (int i = 0; i < gpu->ordinals; i++) {
        int rc = list_device(gpu, i);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static uint64_t namespace_of(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 ? status.st_ino : 0;
}

static void publish_head(struct bxi_gpu *gpu)
{
    struct bxi_gpu_head *head = &gpu->region->head;

    head->layout = BXI_GPU_LAYOUT;
    head->pid = (uint32_t)getpid();
    head->ipc_namespace = namespace_of("/proc/self/ns/ipc");
    head->pid_namespace = namespace_of("/proc/self/ns/pid");
    head->net_namespace = namespace_of("/proc/self/ns/net");
    /* [gpu.magic] release, pairs with the acquire in check_region: the head is complete. */
    bxi_store_release(&head->magic, BXI_GPU_MAGIC);
}

int bxi_gpu_open(const struct bxi_gpu_options *options, struct bxi_gpu **out)
{
    enum bxi_gpu_order order = BXI_GPU_ORDER_AUTO;
    enum bxi_gpu_export export = BXI_GPU_EXPORT_AUTO;
    struct bxi_gpu *gpu;
    uint32_t closed = 0;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    rc = read_options(options, &order, &export);
    if (rc < 0)
        return rc;
    /* [gpu.open] acquire and release, pairs with the release in bxi_gpu_close: one of several threads wins. */
    if (!bxi_cas(&is_open, &closed, 1))
        return bxi_gpu_fail(-EBUSY, "this process has the GPU open already");
    gpu = calloc(1, sizeof(*gpu));
    rc = gpu == NULL ? bxi_gpu_fail(-ENOMEM, "no memory for the GPU's books") : 0;
    if (rc < 0)
        goto close_admission;

    rc = bxi_gpu_load(&gpu->cu, options->driver);
    if (rc < 0)
        goto free_gpu;
    gpu->is_fake = bxi_cu_is_fake(&gpu->cu);
    gpu->region = options->region;
    gpu->wanted = order;
    gpu->export = export;
    gpu->is_held = options->is_held;
    gpu->context = options->context;
    gpu->slab_bytes = options->slab_bytes == 0 ? (uint64_t)64 << 20
        : (options->slab_bytes + BXI_GPU_ROUND - 1) / BXI_GPU_ROUND * BXI_GPU_ROUND;
    rc = list_devices(gpu);
    if (rc == 0)
        rc = bxi_gpu_helper_start(&gpu->helper);
    if (rc < 0)
        goto free_gpu;
    pthread_mutex_init(&gpu->opening, NULL);
    pthread_mutex_init(&gpu->lock, NULL);
    bxi_gpu_cond_init(&gpu->grown);
    publish_head(gpu);
    *out = gpu;
    return 0;

free_gpu:
    free(gpu);
close_admission:
    /* [gpu.open] release, pairs with the compare-and-swap in bxi_gpu_open. */
    bxi_store_release(&is_open, 0);
    return rc;
}

/* Memory that a peer still has open stays, and so does its context, until this process ends: the end of a process does
 * not harm readers, a free does. */
static void close_device(struct bxi_gpu_device *device)
{
    const struct bxi_cuda *cu = &device->gpu->cu;
    int held = bxi_gpu_device_slabs_free(device);

    if (bxi_gpu_enter(device) == 0) {
        bxi_gpu_stage_fini(device);
        bxi_gpu_vmm_fini(device);
        if (device->side != NULL)
            (void)cu->cuStreamDestroy_v2(device->side);
        bxi_gpu_leave(device);
    }
    if (held == 0)
        (void)cu->cuDevicePrimaryCtxRelease_v2(device->handle);
    bxi_gpu_heap_fini(&device->heap);
    bxi_gpu_admission_fini(&device->admission);
    pthread_mutex_destroy(&device->bounce_lock);
    free(device);
}

void bxi_gpu_abandon(struct bxi_gpu *gpu)
{
    BXI_UNCANCELLED;
    struct timespec end = bxi_gpu_timespec(bxi_gpu_now_ns() + CLOSE_NS);
    int late = 0;

    if (gpu == NULL || bxi_gpu_forked())
        return;
    pthread_mutex_lock(&gpu->lock);
    gpu->is_left = true;
    while (gpu->calling > 0 && late == 0)
        late = pthread_cond_timedwait(&gpu->grown, &gpu->lock, &end);
    pthread_mutex_unlock(&gpu->lock);
    /* [gpu.closing] release, pairs with the acquire in ask_again. */
    bxi_store_release(&gpu->is_closing, 1);
    bxi_gpu_fd_server_close(gpu);
    bxi_gpu_helper_leave(&gpu->helper);
    /* [gpu.open] release, pairs with the compare-and-swap in bxi_gpu_open. */
    bxi_store_release(&is_open, 0);
}

int bxi_gpu_close(struct bxi_gpu *gpu)
{
    uint64_t end_ns = bxi_gpu_now_ns() + CLOSE_NS;

    if (gpu == NULL || bxi_gpu_forked())
        return 0;
    /* [gpu.closing] release, pairs with the acquire in ask_again: the helper asks no owner for descriptors any more. */
    bxi_store_release(&gpu->is_closing, 1);
    /* Closing a map or freeing memory waits for the device, so it is not begun while a lane waits. */
    if (!bxi_gpu_lanes_close(gpu, end_ns) || !bxi_gpu_maps_close(gpu, end_ns)) {
        bxi_gpu_abandon(gpu);
        return bxi_gpu_fail(-ETIMEDOUT, "the work on the GPU did not end within %d s, because it waits for another "
                            "worker or runs long: its context and memory stay until this process ends",
                            (int)(CLOSE_NS / UINT64_C(1000000000)));
    }
    bxi_gpu_slabs_wait(gpu);
    bxi_gpu_fd_server_close(gpu);
    bxi_gpu_helper_stop(&gpu->helper);
    bxi_gpu_blocks_forget(gpu);
    for (struct bxi_gpu_peer *peer = gpu->peers; peer != NULL; peer = peer->next)
        bxi_gpu_peer_forget_driver(peer);
    if (gpu->words_registered && bxi_gpu_enter(gpu->device[0]) == 0) {
        (void)gpu->cu.cuMemHostUnregister(gpu->region->word);
        bxi_gpu_leave(gpu->device[0]);
    }
    for (uint32_t i = gpu->device_count; i-- > 0;)
        close_device(gpu->device[i]);
    while (gpu->peers != NULL) {
        struct bxi_gpu_peer *peer = gpu->peers;

        gpu->peers = peer->next;
        free(peer);
    }
    pthread_cond_destroy(&gpu->grown);
    pthread_mutex_destroy(&gpu->lock);
    pthread_mutex_destroy(&gpu->opening);
    free(gpu);
    /* [gpu.open] release, pairs with the compare-and-swap in bxi_gpu_open. */
    bxi_store_release(&is_open, 0);
    return 0;
}

/* ---- Devices and figures --------------------------------------------------------------------- */

bool bxi_gpu_is_fake(const struct bxi_gpu *gpu)
{
    return gpu->is_fake;
}

int bxi_gpu_device_count(const struct bxi_gpu *gpu)
{
    return gpu->ordinals;
}

int bxi_gpu_device_info(const struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_info *info)
{
    if (ordinal < 0 || ordinal >= gpu->ordinals)
        return bxi_gpu_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal, gpu->ordinals);
    *info = gpu->info[ordinal];
    return 0;
}

void bxi_gpu_read(const struct bxi_gpu *gpu, struct bxi_gpu_counters *counters)
{
#define READ(name) counters->name = bxi_gpu_figure(&gpu->figures.name);
    BXI_GPU_COUNTERS(READ)
#undef READ
}

/* ---- Opening a device ------------------------------------------------------------------------ */

static int retain(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    const char *name = gpu->info[device->ordinal].name;
    int mode = 0;
    unsigned result = gpu->cu.cuDevicePrimaryCtxRetain(&device->context, device->handle);

    if (result == CUDA_SUCCESS)
        return 0;
    (void)gpu->cu.cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device->handle);
    if (bxi_cu_mode_advice(mode) != NULL)
        return bxi_gpu_fail(-ENODEV, "device %d (%s) %s", device->ordinal, name, bxi_cu_mode_advice(mode));
    return bxi_gpu_cuda_fail(&gpu->cu, result, "taking device %d (%s) into use", device->ordinal, name);
}

/* Under the lock. This device may be able to map memory that the others could not, so earlier answers are withdrawn. */
static void publish(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    struct bxi_gpu_head *head = &gpu->region->head;

    memcpy(head->device[device->index], gpu->info[device->ordinal].uuid, BXI_GPU_UUID_BYTES);
    gpu->device[gpu->device_count++] = device;
    /* [gpu.devices] release, pairs with the acquire in bxi_gpu_reach_poll: the uuid is written. */
    bxi_store_release(&head->device_count, gpu->device_count);
    bxi_gpu_reach_withdraw(gpu);
}

/* How the device exports memory: as descriptors, if that works and is not forbidden. -ENOTSUP: not as requested. */
static int choose_export(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;

    device->exports_fds = gpu->export != BXI_GPU_EXPORT_HANDLE && bxi_gpu_vmm_works(device) &&
                          bxi_gpu_fd_server_open(gpu) == 0;
    if (device->exports_fds || gpu->export != BXI_GPU_EXPORT_FD)
        return 0;
    return bxi_gpu_fail(-ENOTSUP, "device %d (%s) does not export memory as file descriptors (BX_GPU_EXPORT=fd): leave "
                        "it at auto", device->ordinal, gpu->info[device->ordinal].name);
}

/* With the context current: makes what later calls must not wait for the device to make (the side stream, the staging
 * buffers), checks that the device can export memory, and probes its order. */
static int prepare(struct bxi_gpu_device *device)
{
    struct bxi_gpu *gpu = device->gpu;
    unsigned result = gpu->cu.cuStreamCreate(&device->side, CU_STREAM_NON_BLOCKING);
    int rc;

    if (result != CUDA_SUCCESS)
        return bxi_gpu_cuda_fail(&gpu->cu, result, "a stream of device %d", device->ordinal);
    rc = bxi_gpu_stage_init(device);
    if (rc == 0)
        rc = choose_export(device);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&gpu->lock);
    rc = bxi_gpu_slab_make(device, gpu->slab_bytes);
    pthread_mutex_unlock(&gpu->lock);
    if (rc == 0)
        rc = bxi_gpu_probe(device);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&gpu->lock);
    publish(device);
    pthread_mutex_unlock(&gpu->lock);
    return 0;
}

/* Under gpu->opening: device_count does not change. */
static int start(struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_device **out)
{
    struct bxi_gpu_device *device;
    int rc;

    if (gpu->device_count == BXI_GPU_DEVICES)
        return bxi_gpu_fail(-ENOSPC, "%d devices are in use, the most that one worker can have", BXI_GPU_DEVICES);
    device = calloc(1, sizeof(*device));
    if (device == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for a device's books");
    device->gpu = gpu;
    device->ordinal = ordinal;
    device->handle = gpu->handle[ordinal];
    device->index = gpu->device_count;
    pthread_mutex_init(&device->bounce_lock, NULL);
    bxi_gpu_admission_init(&device->admission);
    rc = retain(device);
    if (rc < 0)
        goto free_device;
    rc = bxi_gpu_enter(device);
    if (rc == 0) {
        rc = prepare(device);
        bxi_gpu_leave(device);
    }
    if (rc < 0) {
        close_device(device);
        return rc;
    }
    *out = device;
    return 0;

free_device:
    bxi_gpu_admission_fini(&device->admission);
    pthread_mutex_destroy(&device->bounce_lock);
    free(device);
    return rc;
}

int bxi_gpu_device_open(struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_device **device)
{
    int rc = 0;

    if (bxi_gpu_forked())
        return -EPERM;
    if (ordinal < 0 || ordinal >= gpu->ordinals)
        return bxi_gpu_fail(-EINVAL, "there is no device %d: this process sees %d", ordinal, gpu->ordinals);
    pthread_mutex_lock(&gpu->opening);
    for (uint32_t i = 0; i < gpu->device_count; i++) {
        if (gpu->device[i]->ordinal == ordinal) {
            *device = gpu->device[i];
            goto unlock;
        }
    }
    rc = start(gpu, ordinal, device);

unlock:
    pthread_mutex_unlock(&gpu->opening);
    return rc;
}

int bxi_gpu_device_ordinal(const struct bxi_gpu_device *device)
{
    return device->ordinal;
}
