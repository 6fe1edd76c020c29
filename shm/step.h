/* SPDX-License-Identifier: MIT */
/*
 * Numbered steps of what is done to shared memory, for the test that kills a worker at each of them
 * (tests/shm/test_kill_steps.c). They compile to nothing unless BXI_STEPS is defined; then bxi_step is the
 * test's, and it may kill or stop the process that comes by.
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
