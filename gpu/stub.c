/* SPDX-License-Identifier: MIT */
/*
 * gpu/ in a build without GPU code (CUDA=0). bxi_gpu_open fails, so no object exists that the other functions could be
 * called with; they fail with the same code, so that a mistaken call returns an error instead of crashing.
 */
#include "gpu.h"

#include <errno.h>
#include <string.h>

/* Takes all of the caller's parameters, so that none is unused. */
static int none(const void *first, ...)
{
    (void)first;
    return -ENOTSUP;
}

const char *bxi_gpu_text(void)
{
    return "no GPU: no GPU support was built; build with CUDA=auto";
}

int bxi_gpu_open(const struct bxi_gpu_options *options, struct bxi_gpu **gpu)
{
    return none(options, gpu);
}

int bxi_gpu_close(struct bxi_gpu *gpu)
{
    (void)none(gpu);
    return 0;
}

void bxi_gpu_abandon(struct bxi_gpu *gpu)
{
    (void)none(gpu);
}

bool bxi_gpu_is_fake(const struct bxi_gpu *gpu)
{
    (void)none(gpu);
    return false;
}

int bxi_gpu_device_count(const struct bxi_gpu *gpu)
{
    (void)none(gpu);
    return 0;
}

int bxi_gpu_device_info(const struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_info *info)
{
    return none(gpu, ordinal, info);
}

int bxi_gpu_ordinal(const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES])
{
    return none(gpu, uuid);
}

void bxi_gpu_read(const struct bxi_gpu *gpu, struct bxi_gpu_counters *counters)
{
    (void)none(gpu, counters);
    memset(counters, 0, sizeof(*counters));
}

int bxi_gpu_poll(struct bxi_gpu *gpu)
{
    return none(gpu);
}

int bxi_gpu_device_open(struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_device **device)
{
    return none(gpu, ordinal, device);
}

int bxi_gpu_device_ordinal(const struct bxi_gpu_device *device)
{
    return none(device);
}

int bxi_gpu_alloc(struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **block)
{
    return none(device, bytes, block);
}

int bxi_gpu_wrap(struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block **block)
{
    return none(gpu, foreign, block);
}

int bxi_gpu_ref(const struct bxi_gpu_block *block, uint64_t offset, uint64_t bytes, struct bxi_gpu_ref *ref)
{
    return none(block, offset, bytes, ref);
}

int bxi_gpu_block_until(struct bxi_gpu_block *block, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    return none(block, peer, point);
}

void bxi_gpu_free(struct bxi_gpu_block *block)
{
    (void)none(block);
}

int bxi_gpu_trim(struct bxi_gpu_device *device)
{
    return none(device);
}

int bxi_gpu_lane_open(struct bxi_gpu_device *device, void *stream, struct bxi_gpu_lane **lane)
{
    return none(device, stream, lane);
}

void bxi_gpu_lane_last(const struct bxi_gpu_lane *lane, struct bxi_gpu_point *point)
{
    (void)none(lane);
    *point = (struct bxi_gpu_point){ 0 };
}

void *bxi_gpu_lane_stream(const struct bxi_gpu_lane *lane)
{
    (void)none(lane);
    return NULL;
}

void bxi_gpu_lane_close(struct bxi_gpu_lane *lane)
{
    (void)none(lane);
}

int bxi_gpu_mark(struct bxi_gpu_lane *lane, struct bxi_gpu_point *point)
{
    return none(lane, point);
}

int bxi_gpu_after(struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    return none(lane, peer, point);
}

int bxi_gpu_passed(struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    return none(gpu, peer, point);
}

int bxi_gpu_lane_wait(struct bxi_gpu_lane *lane)
{
    return none(lane);
}

int bxi_gpu_copy(struct bxi_gpu_lane *lane, uint64_t to, uint64_t from, uint64_t bytes)
{
    return none(lane, to, from, bytes);
}

int bxi_gpu_stage_out(struct bxi_gpu_lane *lane, void *to, uint64_t from, uint64_t bytes)
{
    return none(lane, to, from, bytes);
}

int bxi_gpu_stage_in(struct bxi_gpu_lane *lane, uint64_t to, const void *from, uint64_t bytes)
{
    return none(lane, to, from, bytes);
}

bool bxi_gpu_wants_words(const struct bxi_gpu_device *device)
{
    (void)none(device);
    return false;
}

int bxi_gpu_peer_open(struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options, struct bxi_gpu_peer **peer)
{
    return none(gpu, options, peer);
}

int bxi_gpu_peer_died(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words)
{
    return none(peer, words);
}

int bxi_gpu_peer_release(struct bxi_gpu_peer *peer, struct bxi_gpu_word *words)
{
    return none(peer, words);
}

int bxi_gpu_peer_reaches(const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES], bool by_handle)
{
    (void)none(peer, uuid, by_handle);
    return 0;
}

void bxi_gpu_set_trying(struct bxi_gpu *gpu, bool is_trying)
{
    (void)none(gpu, is_trying);
}

int bxi_gpu_peer_try_handles(struct bxi_gpu_peer *peer, uint64_t end_ns)
{
    (void)none(peer, end_ns);
    return 0;
}

void bxi_gpu_peer_try(struct bxi_gpu_peer *peer)
{
    (void)none(peer);
}

int bxi_gpu_map_begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, bxi_gpu_mapped_fn done, void *context)
{
    return none(peer, ref, done, context);
}

int bxi_gpu_map_get(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **map,
                    uint64_t *address)
{
    return none(peer, ref, map, address);
}

void bxi_gpu_map_put(struct bxi_gpu_map *map)
{
    (void)none(map);
}

struct bxi_gpu_device *bxi_gpu_map_device(const struct bxi_gpu_map *map)
{
    (void)none(map);
    return NULL;
}
