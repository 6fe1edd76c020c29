/* SPDX-License-Identifier: MIT */
/*
 * What the rest of lib/ calls of device.c, device_tensor.c and device_loan.c.
 */
#ifndef BXI_DEVICE_CALLS_H
#define BXI_DEVICE_CALLS_H

#include "lend/lend.h"

struct bxi_devices;

/* The part of the job. */
struct bxi_device {
    _Atomic(struct bxi_devices *) devices;      /* one reference; NULL before bx_gpu_open */
};

struct bxi_device_block;
struct bxi_device_loan;
static inline struct bxi_devices *bxi_devices_of(struct bx_job *job)
{
    /* [devices] acquire, pairs with the release in make_devices. */
    return bxi_load_acquire(&job->device->devices);
}
void bxi_devices_close(struct bx_job *job);     /* progress has stopped */
void bxi_devices_destroy(struct bx_job *job);   /* and nobody else knows the job */
/* Role, now and then: what time brings, and the counters. The second, for who comes by often, does so but every 10 ms:
 * what others want to free must not wait until this worker has nothing to do. Neither waits. */
void bxi_devices_poll(struct bx_job *job);
void bxi_devices_look(struct bx_job *job, uint64_t now_ns);
void bxi_devices_peer_died(struct bx_job *job, struct bxi_peer *peer);
void bxi_device_block_free(struct bxi_device_block *block);
/* A lease on it came back with this point: it is used again after that. */
void bxi_device_block_until(struct bxi_device_block *block, struct bxi_peer *peer, const struct bxi_gpu_point *point);
static inline bool bxi_is_device(const struct bx_tensor *tensor)
{
    return tensor->device.kind == BX_CUDA;
}
int bxi_device_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
int bxi_device_copy_into(struct bx_tensor *to, const struct bx_tensor *from);
/* Memory of somebody else's on the open device of that ordinal. */
int bxi_device_wrap(int ordinal, void *data, const struct bxi_shape *shape, bx_free_fn free_fn, void *context,
                    struct bx_tensor **tensor);
/* The owner's side: how many bytes a tensor's record takes more than a host tensor's, and that record. */
#define BXI_DEVICE_RECORD_BYTES sizeof(struct bxi_gpu_ref)
int bxi_device_pack(struct bx_job *job, struct bxi_cargo *cargo, struct bx_tensor *tensor,
                    struct bxi_tensor_head *head, struct bxi_gpu_ref *ref, struct bxi_storage **hold);
/* The borrower's: */
int bxi_device_loan_make(struct bxi_loan *loan);    /* -ENODEV, -ENOMEM */
int bxi_device_loan_part(struct bxi_loan *loan, uint32_t index, const struct bxi_tensor_head *head,
                         const struct bxi_gpu_ref *ref);
void bxi_device_loan_end(struct bxi_loan *loan, struct bxi_gpu_point *point);
/* A frame with device tensors is next in the ring. 0: go on, bxi_loan_open gives its loan; -EAGAIN: later, an
 * event will come; BX_E_CORRUPT. Role. */
int bxi_device_hold(struct bx_job *job, struct bxi_peer *peer, const void *body, size_t body_bytes);
bool bxi_device_is_pending(const struct bxi_loan *loan);
/* Why the tensors of an opened loan cannot be had: 0, or a code with a sentence; BX_E_CORRUPT: its frame did not say
 * that there are any. NULL: 0. */
int bxi_device_loan_error(const struct bxi_loan *loan);

#endif
