/* SPDX-License-Identifier: MIT */
/*
 * The functions of the room device that the rooms above call. lend, below, calls through struct bxi_device_ops.
 */
#ifndef BXI_DEVICE_CALLS_H
#define BXI_DEVICE_CALLS_H

#include "lend/lend.h"

struct bxi_devices;

/* The part of the job. */
struct bxi_device {
    _Atomic(struct bxi_devices *) devices;      /* one reference; NULL before bx_gpu_open */
};

static inline struct bxi_devices *bxi_devices_of(struct bx_job *job)
{
    /* [devices] acquire, pairs with the release in make_devices. */
    return bxi_load_acquire(&job->device->devices);
}
void bxi_devices_close(struct bx_job *job);     /* progress has stopped */
void bxi_devices_destroy(struct bx_job *job);   /* and no other thread uses the job */
void bxi_devices_poll(struct bx_job *job);      /* role: runs gpu/'s poll, updates the counters; never waits */
/* No work that was on this worker's streams when a worker died may still read what that one passed on. Takes no lock.
 * When it becomes true, passed_ended is called. */
bool bxi_devices_are_settled(struct bx_job *job);
/* First of all when a worker has died: releases streams here that wait for it. Takes no lock and does not call the
 * driver: a thread that blocks in the driver behind such a stream may hold any lock, or the one that this thread wants
 * next. Role. */
void bxi_devices_peer_release(struct bx_job *job, const struct bxi_lend_peer *peer);
void bxi_devices_peer_died(struct bx_job *job, struct bxi_lend_peer *peer);     /* role; after that */
/* A frame with tensors is next in the ring; body is a private copy of the frame. 0: bxi_loan_open will return its loan
 * or its error; -EAGAIN: its device memory is being mapped, an event follows; BX_E_CORRUPT. Role. */
int bxi_device_hold(struct bx_job *job, struct bxi_lend_peer *peer, const void *body, size_t body_bytes);
bool bxi_device_is_pending(const struct bxi_loan *loan);
/* Why the device tensors of an opened loan are unavailable: 0, or a code with a sentence. BX_E_CORRUPT: its frame did
 * not announce device tensors, so bxi_device_hold was not called. loan NULL: 0. */
int bxi_device_loan_error(const struct bxi_loan *loan);

#endif
