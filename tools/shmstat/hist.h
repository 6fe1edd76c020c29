/* SPDX-License-Identifier: MIT */
/*
 * Histograms of calls: private copies, and figures of them.
 */
#ifndef TOOLS_STAT_HIST_H
#define TOOLS_STAT_HIST_H

#include "jobs.h"

/* Copies the histograms of all workers, whose descriptors must be open. 0, -ENOMEM. */
int stat_hists_read(struct stat_job *job);

/* All of these take a private copy. The rank of the callee: false if it is no rank of the caller's job. */
bool stat_hist_callee(const struct stat_worker *caller, const struct bxi_hist *hist, int *callee);
void stat_hist_name(const struct bxi_hist *hist, char name[BXI_NAME_BYTES]);        /* printable */
const char *stat_leg_name(int leg);
uint64_t stat_hist_samples(const struct bxi_hist *hist, int leg);

/* How long calls took, by function: a table, or the list "latencies" of JSON. 0, -ENOMEM. */
int stat_hists_print(const struct stat_job *job, bool json);

#endif
