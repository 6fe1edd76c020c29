/* SPDX-License-Identifier: MIT */
/*
 * Named steps in a worker's start, end and comeback. tests/shm/test_kill_steps.c kills a worker at each of them. They
 * compile to nothing unless BXI_STEPS is defined; then bxi_step is the test's, and may kill or stop the process.
 */
#ifndef BXI_STEP_H
#define BXI_STEP_H

#ifdef BXI_STEPS
void bxi_step(const char *name);
#define BXI_STEP(name) bxi_step(name)
#else
#define BXI_STEP(name) ((void)0)
#endif

#endif
