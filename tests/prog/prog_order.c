/* SPDX-License-Identifier: MIT */
/*
 * prog_order: prints the order that Boxcar chooses on device 0, for tests/e2e/gpucheck.sh. Exit status 0; 3 if the
 * device cannot be opened, after a sentence.
 */
#include "gpu/gpu.h"
#include "gpu/shared.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static int failed(void)
{
    fprintf(stderr, "%s\n", bxi_gpu_text());
    return 3;
}

int main(void)
{
    static const char *const names[] = {
        [BXI_GPU_HOST_WORDS] = "HOST_WORDS", [BXI_GPU_EVENTS] = "EVENTS",
    };
    struct bxi_gpu_options options = { .driver = NULL };
    struct bxi_gpu_device *device;
    struct bxi_gpu_lane *lane;
    struct bxi_gpu_point point;
    struct bxi_gpu *gpu;

    options.region = mmap(NULL, sizeof(struct bxi_gpu_region), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                          0);
    if (options.region == MAP_FAILED)
        return 1;
    if (bxi_gpu_open(&options, &gpu) < 0 || bxi_gpu_device_open(gpu, 0, &device) < 0 ||
        bxi_gpu_lane_open(device, NULL, &lane) < 0 || bxi_gpu_mark(lane, &point) < 0)
        return failed();
    puts(names[point.order]);
    fflush(stdout);
    _exit(0);                           /* what is open is no matter here */
}
