/* SPDX-License-Identifier: MIT */
/*
 * Ring and doorbell under load: two sides that send, starve, sleep and wake each other as fast as
 * they can, with every byte checked. Plain functions, so that two front ends can run them:
 * test_stress.c under Criterion, stress_main.c alone (Criterion does not start under
 * ThreadSanitizer).
 *
 * Each returns 0, or the line of stress_ring.c where it failed. A wake-up is lost when a side slept
 * for seconds although there was something to do and nobody was on the way to ring.
 */
#ifndef BXI_STRESS_H
#define BXI_STRESS_H

#include <stdint.h>

/* Two threads on one mapping: `frames` frames of random length through a small ring, the producer
 * starving and the consumer idle again and again. */
int bxi_stress_ring(uint64_t frames);

/* The same by two processes, each of which can write its own pages only. */
int bxi_stress_ring_processes(uint64_t frames);

/* Two threads that publish one word in turn and ring for it, from io_uring to epoll and back. */
int bxi_stress_doorbell(uint64_t rounds);

/* Two threads that publish and arm at the same instant, again and again: without the full fences of
 * doorbell.h each misses the other within some thousand rounds, on x86 too. */
int bxi_stress_collision(uint64_t rounds);

#endif
