/* SPDX-License-Identifier: MIT */
/*
 * Peers: other processes whose slabs are borrowed here and that borrow from here. Opening one, whether it is dead, and
 * what the driver holds for it. A peer lives until bxi_gpu_close. The caller's thread.
 *
 * The page of its words is registered by the helper, because cuMemHostRegister may wait for the device, and a peer is
 * opened by threads that must not (the one that learns of deaths). bxi_gpu_after waits for that, or for the point.
 *
 * A peer is both sides at once: its region lists what it lends and has the words of its points, and options.held is
 * what this process has open of its slabs.
 */
#include "inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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

/* The context is current. Registers a mapping of the peer's words' page. */
static bool register_page(struct bxi_gpu_peer *peer, void *page, unsigned flags)
{
    unsigned result;

    if (page == NULL)
        return false;
    result = peer->gpu->cu.cuMemHostRegister_v2(page, sizeof(peer->options.region->word),
                                                CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | flags);
    if (result == CUDA_SUCCESS)
        peer->registered = page;
    return result == CUDA_SUCCESS;
}

/* Makes the peer's words accessible to streams of options.device. If that fails hosts wait instead: no error.
 * The driver takes the read-only mapping only where device attribute 113 is 1 (else CUDA_ERROR_NOT_SUPPORTED), so the
 * writable one is the second choice. No stream here writes through it: mark writes words of this process, and a dead
 * peer's words are poisoned by the host. */
static void register_words(struct bxi_gpu_peer *peer)
{
    const struct bxi_cuda *cu = &peer->gpu->cu;
    void *page = (void *)(uintptr_t)peer->options.region->word;
    unsigned long long address = 0;

    if (cu->cuStreamWaitValue64_v2 == NULL || bxi_gpu_enter(peer->options.device) < 0)
        return;
    if ((register_page(peer, page, CU_MEMHOSTREGISTER_READ_ONLY) || register_page(peer, peer->options.words, 0)) &&
        cu->cuMemHostGetDevicePointer_v2(&address, peer->registered, 0) == CUDA_SUCCESS)
        peer->host_words = address;
    bxi_gpu_leave(peer->options.device);
}

/* On the helper. */
static void run_register(struct bxi_gpu_job *job)
{
    struct bxi_gpu_peer *peer = (struct bxi_gpu_peer *)(void *)job;

    register_words(peer);
    /* [gpu.registered] release, pairs with the acquire in is_registered: host_words is set. */
    bxi_store_release(&peer->is_registered, 1);
}

bool bxi_gpu_wants_words(const struct bxi_gpu_device *device)
{
    return !device->registers_read_only;
}

int bxi_gpu_peer_open(struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options, struct bxi_gpu_peer **out)
{
    struct bxi_gpu_peer *peer;
    int rc;

    if (bxi_gpu_forked())
        return -EPERM;
    if (options->region == NULL || options->held == NULL || options->device == NULL || options->name == NULL ||
        (uintptr_t)options->region % 4096 != 0)
        return bxi_gpu_fail(-EINVAL, "a peer needs a name, its region, held words and a device");
    rc = check_region(gpu, options);
    if (rc < 0)
        return rc;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL)
        return bxi_gpu_fail(-ENOMEM, "no memory for the books of %s", options->name);
    peer->gpu = gpu;
    peer->options = *options;
    snprintf(peer->name, sizeof(peer->name), "%s", options->name);
    peer->options.name = peer->name;
    peer->job.run = run_register;
    pthread_mutex_lock(&gpu->lock);
    peer->next = gpu->peers;
    gpu->peers = peer;
    bxi_gpu_helper_post(&gpu->helper, &peer->job);
    pthread_mutex_unlock(&gpu->lock);
    *out = peer;
    return 0;
}

bool bxi_gpu_peer_is_dead(const struct bxi_gpu_peer *peer)
{
    /* [gpu.dead] acquire, pairs with the release in bxi_gpu_peer_died. */
    return bxi_load_acquire(&peer->is_dead) != 0;
}

void bxi_gpu_peer_forget_driver(struct bxi_gpu_peer *peer)
{
    const struct bxi_cuda *cu = &peer->gpu->cu;

    if (bxi_gpu_enter(peer->options.device) < 0)
        return;
    if (peer->registered != NULL)
        (void)cu->cuMemHostUnregister(peer->registered);
    bxi_gpu_leave(peer->options.device);
}
