/* SPDX-License-Identifier: MIT */
/*
 * A peer's death, as its survivors handle it: streams that wait for its words are released, its points count as
 * passed, its slabs are closed when nothing here uses them any more. The caller's thread.
 *
 * Words in host memory are poisoned before the lock is taken, without a call of the driver. So whatever another thread
 * does at that moment, streams that wait for them continue, and with them calls of the driver that wait for these
 * streams. The rest is done under the lock.
 *
 * Each survivor does the same and writes the same values, so it does not matter which is first, or whether one of them
 * dies in the midst of it.
 */
#include "inside.h"

#include <errno.h>

#define PATIENCE_NS UINT64_C(1000000000)        /* for all words of a peer: the lock is held */

/* The bits below the poison keep the word's last value, so that passed points can still be recognised. The owner is
 * dead, so only other survivors write the word too, and they write the same value. awaited: only words for which
 * streams wait. */
static int poison_host(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words, bool awaited)
{
    const struct bxi_gpu_region *region = peer->options.region;
    int rc = 0;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        /* [gpu.word] relaxed: only its value is needed. */
        uint64_t word = bxi_load_relaxed(&region->word[i].value);
        /* [gpu.lane] acquire, pairs with the release in publish_lane. */
        bool is_used = bxi_load_acquire(&region->lane[i].order) == BXI_GPU_HOST_WORDS;

        if ((word & BXI_GPU_POISON) != 0 || (awaited && !is_used))
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

/* Whether the side stream of a device that has mapped words of the peer is idle in time. */
static bool have_ended(struct bxi_gpu *gpu, uint64_t end_ns)
{
    bool have = true;

    for (uint32_t i = 0; i < gpu->device_count; i++) {
        if (bxi_gpu_enter(gpu->device[i]) < 0)
            continue;
        have = bxi_gpu_idle_by(gpu->device[i], gpu->device[i]->side, end_ns) && have;
        bxi_gpu_leave(gpu->device[i]);
    }
    return have;
}

/* Keeps the slabs with the peer's words open until the end: a write to them may still come. */
static void keep_words(struct bxi_gpu_peer *peer)
{
    for (int i = 0; i < BXI_GPU_LANES; i++) {
        const struct bxi_gpu_lane_row *row = &peer->options.region->lane[i];
        uint32_t slab = row->slab;

        /* [gpu.lane] acquire, pairs with the release in publish_lane. */
        if (bxi_load_acquire(&row->order) == BXI_GPU_DEVICE_WORDS && bxi_gpu_mapped(peer, row).address != 0)
            peer->map[slab].users++;
    }
}

/* Puts the poison on the side stream, behind the bits that are known. */
static bool poison_word(struct bxi_gpu *gpu, const struct bxi_gpu_place *at, uint64_t word)
{
    bool put;

    if ((word & BXI_GPU_POISON) != 0 || gpu->cu.cuStreamWriteValue64_v2 == NULL || bxi_gpu_enter(at->device) < 0)
        return false;
    put = gpu->cu.cuStreamWriteValue64_v2(at->device->side, at->address, word | BXI_GPU_POISON,
                                          CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
    bxi_gpu_count(&gpu->figures.poisonings, put);
    bxi_gpu_leave(at->device);
    return put;
}

/* Words in mapped slabs of the dead owner: read and poisoned on the side stream, on which nothing waits. Their values
 * go to last_word, because the slab is closed when nothing uses it any more. A word that cannot be read in time (the
 * side stream shares a hardware queue with one that waits) is poisoned all the same: with what the region has. */
static void poison_device(struct bxi_gpu_peer *peer)
{
    struct bxi_gpu *gpu = peer->gpu;
    uint64_t end_ns = bxi_gpu_now_ns() + PATIENCE_NS;
    bool has_put = false;

    for (int i = 0; i < BXI_GPU_LANES; i++) {
        const struct bxi_gpu_lane_row *row = &peer->options.region->lane[i];
        struct bxi_gpu_place at;
        uint64_t word = 0;

        /* [gpu.lane] acquire, pairs with the release in publish_lane. */
        if (bxi_load_acquire(&row->order) != BXI_GPU_DEVICE_WORDS)
            continue;
        at = bxi_gpu_mapped(peer, row);
        if (at.address == 0)
            continue;
        /* No lane writes the highest bit: the driver has dropped the dead owner's memory. */
        if (bxi_gpu_read_word(at.device, at.address, end_ns, &word) < 0 || word >> 63 != 0)
            /* [gpu.word] acquire, pairs with the write of the dead owner's stream. */
            word = bxi_load_acquire(&peer->options.region->word[i].value) & (BXI_GPU_POISON - 1);
        peer->last_word[i] = word;
        has_put = poison_word(gpu, &at, word) || has_put;
    }
    if (has_put && !have_ended(gpu, end_ns))
        keep_words(peer);
}

int bxi_gpu_peer_release(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words)
{
    return bxi_gpu_forked() ? -EPERM : poison_host(peer, words, true);
}

int bxi_gpu_peer_died(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words)
{
    struct bxi_gpu *gpu = peer->gpu;
    int rc = bxi_gpu_peer_release(peer, words);

    if (rc == -EPERM)
        return rc;
    pthread_mutex_lock(&gpu->lock);
    /* [gpu.dead] release, pairs with the acquire in bxi_gpu_peer_is_dead. A thread that loaded 0 just before may still
     * put a wait on a stream: the poisoned word satisfies it. */
    bxi_store_release(&peer->is_dead, 1);
    rc = poison_host(peer, words, false);
    poison_device(peer);
    (void)bxi_gpu_blocks_poll(gpu);
    (void)bxi_gpu_maps_poll(peer);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}
