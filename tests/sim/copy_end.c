/* SPDX-License-Identifier: MIT */
/*
 * The last object of a copy of the library: where its statics end.
 */
#include "sim.h"

_Alignas(64) unsigned char sim_data_end[64] = { 1 }, sim_bss_end[64];
