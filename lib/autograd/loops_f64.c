/* SPDX-License-Identifier: MIT */
/*
 * The loops over arrays of double (loops.h). Any thread.
 */
#define real double
#define REAL(name) name
#define TABLE bxi_loops_f64

#include "loops_text.h"
