/* SPDX-License-Identifier: MIT */
/*
 * What the fake NVRTC writes and the fake driver reads: a cubin's first line.
 */
#ifndef TESTS_FAKE_NVRTC_H
#define TESTS_FAKE_NVRTC_H

#define FAKE_CUBIN_MARK "FAKE CUBIN sm_"
#define FAKE_CUBIN_ARCHITECTURE "90"            /* what cuDeviceGetAttribute says */

#endif
