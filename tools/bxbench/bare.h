/* SPDX-License-Identifier: MIT */
/*
 * The bare limits: what two processes reach over a cache line, or over two rings, without Boxcar.
 */
#ifndef BENCH_BARE_H
#define BENCH_BARE_H

#include "shm/ring.h"

#include <stdint.h>

enum bare_kind {
    BARE_LINE = 1,      /* round trips of a cache line */
    BARE_ECHO = 2,      /* frames of 64 bytes echoed over rings, as fast as they come */
    BARE_ECHO_PAUSED = 3,   /* the same; both sides make a pause between two polls */
    BARE_STOP = 4,
};

struct bench_bare;

/* An area with `clients` pairs of rings; made before the processes that use it are forked. */
struct bench_bare *bench_bare_create(int clients);
/* Forks the echo process on `cpu`; it sleeps until an order comes. 0, or -errno after a line on stderr. */
int bench_bare_start(struct bench_bare *bare, int cpu);
/* Orders the echo to serve `rounds` round trips (of all clients together). */
void bench_bare_order(struct bench_bare *bare, enum bare_kind kind, uint64_t rounds);
int bench_bare_stop(struct bench_bare *bare);

/* The client's side. Positions continue from slice to slice: init it once. */
struct bench_bare_client {
    const struct bench_bare *bare;
    struct bxi_ring_writer out;
    struct bxi_ring_reader in;
};
void bench_bare_client_init(struct bench_bare_client *client, struct bench_bare *bare, int index);
/* rounds round trips of a cache line; mean ticks of one, or 0 if the echo does not answer. */
double bench_bare_line(struct bench_bare *bare, uint64_t rounds);
/* 0, -ETIMEDOUT, -EPROTO. */
int bench_bare_send(struct bench_bare_client *client, uint64_t number);
int bench_bare_receive(struct bench_bare_client *client, uint64_t number);

#endif
