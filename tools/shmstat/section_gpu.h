/* SPDX-License-Identifier: MIT */
/*
 * The device memory of one worker, as text and as the key "gpu"; for the commands gpu and show.
 */
#ifndef TOOLS_STAT_SECTION_GPU_H
#define TOOLS_STAT_SECTION_GPU_H

#include "device.h"
#include "row.h"

/* Of a device that the worker has open, by its index. */
int stat_device_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);

/* Prints nothing for a worker that has no GPU open. */
void stat_gpu_text(const struct stat_job *job, const struct stat_worker *worker);
void stat_gpu_json(const struct stat_job *job, const struct stat_worker *worker);

#endif
