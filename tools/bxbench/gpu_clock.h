/* SPDX-License-Identifier: MIT */
/*
 * The part of bxbench gpu that the device's own clock measures.
 */
#ifndef BENCH_GPU_CLOCK_H
#define BENCH_GPU_CLOCK_H

#include "boxcar.h"

#define BENCH_GPU_ROUNDS 200

struct bench_gpu_ready {
    double p50_us, p99_us;
};

/* register: by worker 1, before the job starts. end: by both workers, after the job has shut down. */
int bench_gpu_clock_register(struct bx_job *job);
void bench_gpu_clock_end(void);

/* By worker 0, with worker `to`. 0, or an error code with a sentence: -ENOTSUP if there is no NVRTC. */
int bench_gpu_clock_run(struct bx_job *job, struct bx_device device, const char *to, struct bench_gpu_ready *ready);

#endif
