/* SPDX-License-Identifier: MIT */
/*
 * gpu/stub.c, which replaces the rest of gpu/ in a build with CUDA=0. Compiled in here under other names, so that every
 * build runs it: each function fails, and no output is set.
 */
#define bxi_gpu_text stub_gpu_text
#define bxi_gpu_open stub_gpu_open
#define bxi_gpu_close stub_gpu_close
#define bxi_gpu_abandon stub_gpu_abandon
#define bxi_gpu_is_fake stub_gpu_is_fake
#define bxi_gpu_device_count stub_gpu_device_count
#define bxi_gpu_device_info stub_gpu_device_info
#define bxi_gpu_ordinal stub_gpu_ordinal
#define bxi_gpu_read stub_gpu_read
#define bxi_gpu_poll stub_gpu_poll
#define bxi_gpu_device_open stub_gpu_device_open
#define bxi_gpu_device_ordinal stub_gpu_device_ordinal
#define bxi_gpu_alloc stub_gpu_alloc
#define bxi_gpu_wrap stub_gpu_wrap
#define bxi_gpu_ref(block, offset, bytes, out) stub_gpu_ref(block, offset, bytes, out)
#define bxi_gpu_block_until stub_gpu_block_until
#define bxi_gpu_free stub_gpu_free
#define bxi_gpu_trim stub_gpu_trim
#define bxi_gpu_lane_open stub_gpu_lane_open
#define bxi_gpu_lane_last stub_gpu_lane_last
#define bxi_gpu_lane_stream stub_gpu_lane_stream
#define bxi_gpu_lane_close stub_gpu_lane_close
#define bxi_gpu_mark stub_gpu_mark
#define bxi_gpu_after stub_gpu_after
#define bxi_gpu_passed stub_gpu_passed
#define bxi_gpu_lane_wait stub_gpu_lane_wait
#define bxi_gpu_copy stub_gpu_copy
#define bxi_gpu_stage_out stub_gpu_stage_out
#define bxi_gpu_stage_in stub_gpu_stage_in
#define bxi_gpu_wants_words stub_gpu_wants_words
#define bxi_gpu_peer_open stub_gpu_peer_open
#define bxi_gpu_peer_died stub_gpu_peer_died
#define bxi_gpu_peer_release stub_gpu_peer_release
#define bxi_gpu_peer_reaches stub_gpu_peer_reaches
#define bxi_gpu_peer_try stub_gpu_peer_try
#define bxi_gpu_peer_try_handles stub_gpu_peer_try_handles
#define bxi_gpu_set_trying stub_gpu_set_trying
#define bxi_gpu_map_begin stub_gpu_map_begin
#define bxi_gpu_map_get stub_gpu_map_get
#define bxi_gpu_map_put stub_gpu_map_put
#define bxi_gpu_map_device stub_gpu_map_device
#include "tests/harness/test.h"
#include "gpu/stub.c"

TestSuite(gpu_stub, .timeout = 120);

Test(gpu_stub, fails_with_the_reason_that_nothing_was_built)
{
    struct bxi_gpu *gpu = NULL;
    struct bxi_gpu_device *device = NULL;
    struct bxi_gpu_block *block = NULL;
    struct bxi_gpu_counters counters = { .opens = 7 };

    cr_assert_eq(bxi_gpu_open(&(struct bxi_gpu_options){ 0 }, &gpu), -ENOTSUP);
    cr_assert_null(gpu);
    cr_assert_not_null(strstr(bxi_gpu_text(), "build with CUDA=auto"));
    cr_assert_eq(bxi_gpu_device_open(gpu, 0, &device), -ENOTSUP);
    cr_assert_eq(bxi_gpu_alloc(device, 1, &block), -ENOTSUP);
    cr_assert(device == NULL && block == NULL);
    cr_assert_eq(bxi_gpu_device_count(gpu), 0);
    cr_assert_eq(bxi_gpu_poll(gpu), -ENOTSUP);
    bxi_gpu_read(gpu, &counters);
    cr_assert_eq(counters.opens, 0);
    bxi_gpu_free(block);
    bxi_gpu_close(gpu);
}
