/* SPDX-License-Identifier: MIT */
/*
 * The text exposition format.
 */
#ifndef TOOLS_STAT_PROMETHEUS_H
#define TOOLS_STAT_PROMETHEUS_H

#include "jobs.h"

/* All metrics of these jobs, whose rings, histograms and device memory have been read. */
void stat_prometheus(const struct stat_jobs *jobs);

#endif
