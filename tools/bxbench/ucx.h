/* SPDX-License-Identifier: MIT */
/*
 * A bench of UCX, where it is installed.
 */
#ifndef BENCH_UCX_H
#define BENCH_UCX_H

#include "bxbench.h"

/* Messages a second of one run of ucx_perftest; 0 after a line on stderr that says why not. */
double bench_ucx_rate(const struct bench_options *options);

#endif
