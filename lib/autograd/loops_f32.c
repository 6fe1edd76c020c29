/* SPDX-License-Identifier: MIT */
/*
 * The loops over arrays of float (loops.h). Any thread.
 */

#define real float
#define REAL(name) name ## f
#define TABLE bxi_loops_f32

#include "loops_text.h"
