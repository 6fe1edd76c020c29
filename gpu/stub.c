/* SPDX-License-Identifier: MIT */
/*
 * gpu/ in a build without GPU code (CUDA=0). bxi_gpu_open fails, so no object exists that the other functions could be
 * called with; they fail with the same code, so that a mistaken call returns an error instead of crashing.
 */
#include "gpu.h"
#include "stub.h"

#include <errno.h>
#include <string.h>

#define FAILS(name, parameters, ...) BXI_STUB(int, -ENOTSUP, name, parameters, __VA_ARGS__)

FAILS(bxi_gpu_open, (const struct bxi_gpu_options *options, struct bxi_gpu **gpu), options, gpu)
BXI_STUB(int, 0, bxi_gpu_close, (struct bxi_gpu *gpu), gpu)
BXI_STUB(void, , bxi_gpu_abandon, (struct bxi_gpu *gpu), gpu)
BXI_STUB(bool, false, bxi_gpu_is_fake, (const struct bxi_gpu *gpu), gpu)
BXI_STUB(int, 0, bxi_gpu_device_count, (const struct bxi_gpu *gpu), gpu)
FAILS(bxi_gpu_device_info, (const struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_info *info), gpu, ordinal, info)
FAILS(bxi_gpu_ordinal, (const struct bxi_gpu *gpu, const uint8_t uuid[BXI_GPU_UUID_BYTES]), gpu, uuid)
FAILS(bxi_gpu_poll, (struct bxi_gpu *gpu), gpu)
FAILS(bxi_gpu_device_open, (struct bxi_gpu *gpu, int ordinal, struct bxi_gpu_device **device), gpu, ordinal, device)
FAILS(bxi_gpu_device_ordinal, (const struct bxi_gpu_device *device), device)
FAILS(bxi_gpu_alloc, (struct bxi_gpu_device *device, uint64_t bytes, struct bxi_gpu_block **block), device, bytes,
      block)
FAILS(bxi_gpu_wrap, (struct bxi_gpu *gpu, const struct bxi_gpu_foreign *foreign, struct bxi_gpu_block **block), gpu,
      foreign, block)
FAILS(bxi_gpu_ref, (const struct bxi_gpu_block *block, uint64_t offset, uint64_t bytes, struct bxi_gpu_ref *ref),
      block, offset, bytes, ref)
FAILS(bxi_gpu_block_until, (struct bxi_gpu_block *block, struct bxi_gpu_peer *peer,
                            const struct bxi_gpu_point *point), block, peer, point)
BXI_STUB(void, , bxi_gpu_free, (struct bxi_gpu_block *block), block)
FAILS(bxi_gpu_trim, (struct bxi_gpu_device *device), device)
FAILS(bxi_gpu_lane_open, (struct bxi_gpu_device *device, void *stream, struct bxi_gpu_lane **lane), device, stream,
      lane)
BXI_STUB(void *, NULL, bxi_gpu_lane_stream, (const struct bxi_gpu_lane *lane), lane)
BXI_STUB(void, , bxi_gpu_lane_close, (struct bxi_gpu_lane *lane), lane)
FAILS(bxi_gpu_mark, (struct bxi_gpu_lane *lane, struct bxi_gpu_point *point), lane, point)
FAILS(bxi_gpu_after, (struct bxi_gpu_lane *lane, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point), lane,
      peer, point)
FAILS(bxi_gpu_passed, (struct bxi_gpu *gpu, struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point), gpu, peer,
      point)
FAILS(bxi_gpu_lane_wait, (struct bxi_gpu_lane *lane), lane)
FAILS(bxi_gpu_copy, (struct bxi_gpu_lane *lane, uint64_t to, uint64_t from, uint64_t bytes), lane, to, from, bytes)
FAILS(bxi_gpu_stage_out, (struct bxi_gpu_lane *lane, void *to, uint64_t from, uint64_t bytes), lane, to, from, bytes)
FAILS(bxi_gpu_stage_in, (struct bxi_gpu_lane *lane, uint64_t to, const void *from, uint64_t bytes), lane, to, from,
      bytes)
BXI_STUB(bool, false, bxi_gpu_wants_words, (const struct bxi_gpu_device *device), device)
FAILS(bxi_gpu_peer_open, (struct bxi_gpu *gpu, const struct bxi_gpu_peer_options *options,
                          struct bxi_gpu_peer **peer), gpu, options, peer)
FAILS(bxi_gpu_peer_died, (struct bxi_gpu_peer *peer, struct bxi_gpu_word *words), peer, words)
FAILS(bxi_gpu_peer_release, (struct bxi_gpu_peer *peer, struct bxi_gpu_word *words), peer, words)
BXI_STUB(int, 0, bxi_gpu_peer_reaches, (const struct bxi_gpu_peer *peer, const uint8_t uuid[BXI_GPU_UUID_BYTES],
                                        bool by_handle), peer, uuid, by_handle)
BXI_STUB(void, , bxi_gpu_set_trying, (struct bxi_gpu *gpu, bool is_trying), gpu, is_trying)
BXI_STUB(int, 0, bxi_gpu_peer_try_handles, (struct bxi_gpu_peer *peer, uint64_t end_ns), peer, end_ns)
BXI_STUB(void, , bxi_gpu_peer_try, (struct bxi_gpu_peer *peer), peer)
FAILS(bxi_gpu_map_begin, (struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, bxi_gpu_mapped_fn done,
                          void *context), peer, ref, done, context)
FAILS(bxi_gpu_map_get, (struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **map,
                        uint64_t *address), peer, ref, map, address)
BXI_STUB(void, , bxi_gpu_map_put, (struct bxi_gpu_map *map), map)
BXI_STUB(struct bxi_gpu_device *, NULL, bxi_gpu_map_device, (const struct bxi_gpu_map *map), map)

const char *bxi_gpu_text(void)
{
    return "no GPU: no GPU support was built; build with CUDA=auto";
}

void bxi_gpu_read(const struct bxi_gpu *gpu, struct bxi_gpu_counters *counters)
{
    bxi_stub_take(gpu);
    memset(counters, 0, sizeof(*counters));
}

void bxi_gpu_lane_last(const struct bxi_gpu_lane *lane, struct bxi_gpu_point *point)
{
    bxi_stub_take(lane);
    *point = (struct bxi_gpu_point){ 0 };
}
