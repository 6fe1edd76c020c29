/* SPDX-License-Identifier: MIT */
/*
 * Ring and doorbell under load: two sides send, starve, sleep and wake each other as fast as they can, and check every
 * byte. stress_main.c runs them, also under ThreadSanitizer and in qemu.
 *
 * Each returns 0, or the line of stress_ring.c where it failed. A wake-up is lost if a side slept for seconds although
 * there was work, and the other side was not about to ring.
 */
#ifndef BXI_STRESS_H
#define BXI_STRESS_H

#include <stdint.h>

/* Two threads on one mapping: `frames` frames of random length through a small ring, with a producer that often starves
 * and sleeps in io_uring, and a consumer that often idles and sleeps in epoll. */
int bxi_stress_ring(uint64_t frames);

/* The same with two processes, both with io_uring, each of which can write only its own pages. */
int bxi_stress_ring_processes(uint64_t frames);

/* Two threads publish and arm at the same instant, in many rounds. Without the full fences of doorbell.h each misses
 * the other within some thousand rounds, on x86 too. */
int bxi_stress_collision(uint64_t rounds);

#endif
