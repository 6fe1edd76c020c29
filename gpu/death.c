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
    (void)bxi_gpu_blocks_poll(gpu);
    (void)bxi_gpu_maps_poll(peer);
    pthread_mutex_unlock(&gpu->lock);
    return rc;
}
