/* SPDX-License-Identifier: MIT */
/*
 * What Boxcar itself chooses on the device, by its own trials (gpu/probe.c, gpu/device.c), which have one process. The
 * other questions try the same across two.
 */
#include "gpucheck.h"

#include "gpu/gpu.h"

#include <sys/mman.h>

static void ask_boxcar(void)
{
    struct bxi_gpu_options options = { .driver = NULL };
    struct bxi_gpu_device *device;
    struct bxi_gpu_block *block;
    struct bxi_gpu_point point;
    struct bxi_gpu_lane *lane;
    struct bxi_gpu *gpu;
    bool is_fd;

    options.region = mmap(NULL, sizeof(*options.region), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (options.region == MAP_FAILED)
        check_give_up("there is no memory");
    if (bxi_gpu_open(&options, &gpu) < 0 || bxi_gpu_device_open(gpu, check_device, &device) < 0 ||
        bxi_gpu_lane_open(device, NULL, &lane) < 0 || bxi_gpu_mark(lane, &point) < 0 ||
        bxi_gpu_alloc(device, CHECK_PAGE_BYTES, &block) < 0) {
        check_answer("boxcar.order", CHECK_BAD, "Boxcar does not open the device: %.300s.", bxi_gpu_text());
        check_skip("the device is not open");
    }
    is_fd = (options.region->slab[block->slab].flags & BXI_GPU_SLAB_FD) != 0;
    check_figure(point.order, "order");
    check_answer("boxcar.order", CHECK_NOTE, "Boxcar's trial in one process chose %s.",
                 check_order_name(point.order));
    check_figure(is_fd, "descriptors");
    check_answer("boxcar.memory", CHECK_NOTE, "Boxcar exports memory %s.",
                 is_fd ? "as file descriptors" : "by handles of CUDA IPC");
}

const struct check_question check_boxcar = {
    .name = "boxcar", .ask = ask_boxcar, .is_bare = true, .decides = true, .limit_ms = 20000,
    .lines = {
        { "boxcar.order", "The lines of words and events tell whether that works across processes.",
          "Boxcar uses no GPU here." },
        { "boxcar.memory", "The lines of descriptor and handle tell whether that works across processes.", NULL },
    },
};
