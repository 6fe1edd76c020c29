/* SPDX-License-Identifier: MIT */
/*
 * The loops over arrays of double (loops.h). Any thread.
 */
#include "loops.h"

#include <math.h>
#include <string.h>

#define real double
#define REAL(name) name
#define TABLE bxi_loops_f64

#include "loops_text.h"
