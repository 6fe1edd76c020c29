/* SPDX-License-Identifier: MIT */
/*
 * The first object of a copy of the library: where its statics begin.
 */
#include "sim.h"

_Alignas(64) unsigned char sim_data_begin[64] = { 1 }, sim_bss_begin[64];
