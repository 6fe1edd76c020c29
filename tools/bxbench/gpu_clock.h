/* SPDX-License-Identifier: MIT */
/*
 * The part of bxbench gpu that the device's own clock measures.
 */
#ifndef BENCH_GPU_CLOCK_H
#define BENCH_GPU_CLOCK_H

#include "bxbench.h"

/* register: by worker 1, before the job starts. end: by both workers, after the job has shut down. */
int bench_gpu_clock_register(struct bx_job *job);
void bench_gpu_clock_end(void);

/* By worker 0. 0, or an error code with a sentence: -ENOTSUP if there is no NVRTC. */
int bench_gpu_clock_run(struct bench_caller *caller, struct bx_device device, double *p50_us, double *p99_us);

#endif
