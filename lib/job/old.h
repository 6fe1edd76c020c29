/* SPDX-License-Identifier: MIT */
/*
 * The symbols of version 0.1 that boxcar.h gives to no function any more. Programs that were compiled with the header
 * of 0.1 have them, and those that find functions by dlsym. To them a struct_bytes of 0 is the size that the struct had
 * in 0.1: what lies behind it is not read. tests/check/abi.sh and exports.sh read this file.
 */
#ifndef BXI_OLD_H
#define BXI_OLD_H

#include "boxcar.h"

/* The symbol of a function. */
#define BXI_SYMBOL(symbol) __asm__(#symbol)

#pragma GCC visibility push(default)
int bxi_old_job_create(const struct bx_options *options, struct bx_job **job) BXI_SYMBOL(bx_job_create);
int bxi_old_spawn(const struct bx_spawn_options *options, bx_worker_fn fn, void *context,
                  struct bx_spawn_report *report) BXI_SYMBOL(bx_spawn);
int bxi_old_rpc_sync(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                     const struct bx_call_options *options, struct bx_msg **reply) BXI_SYMBOL(bx_rpc_sync);
int bxi_old_rpc_async(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                      const struct bx_call_options *options, struct bx_future **future) BXI_SYMBOL(bx_rpc_async);
int bxi_old_rpc_many(struct bx_job *job, const char *to, const char *function, size_t count,
                     const struct bx_msg *const *args, const struct bx_call_options *options,
                     struct bx_future **futures) BXI_SYMBOL(bx_rpc_many);
int bxi_old_rpc_oneway(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                       const struct bx_call_options *options) BXI_SYMBOL(bx_rpc_oneway);
int bxi_old_remote(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                   const struct bx_call_options *options, struct bx_rref **rref) BXI_SYMBOL(bx_remote);
int bxi_old_rref_sync(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                      const struct bx_call_options *options, struct bx_msg **reply) BXI_SYMBOL(bx_rref_sync);
int bxi_old_rref_async(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                       const struct bx_call_options *options, struct bx_future **future) BXI_SYMBOL(bx_rref_async);
int bxi_old_rref_oneway(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                        const struct bx_call_options *options) BXI_SYMBOL(bx_rref_oneway);
int bxi_old_rref_remote(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                        const struct bx_call_options *options, struct bx_rref **made) BXI_SYMBOL(bx_rref_remote);
int bxi_old_rref_to_here(struct bx_rref *rref, const struct bx_call_options *options, struct bx_msg **value)
    BXI_SYMBOL(bx_rref_to_here);
int bxi_old_rref_to_here_async(struct bx_rref *rref, const struct bx_call_options *options,
                               struct bx_future **future) BXI_SYMBOL(bx_rref_to_here_async);
struct bx_future *bxi_old_future_then(struct bx_future *future, bx_then_fn fn, void *context)
    BXI_SYMBOL(bx_future_then);
struct bx_future *bxi_old_future_then_any(struct bx_future *future, bx_then_fn fn, void *context)
    BXI_SYMBOL(bx_future_then_any);
int bxi_old_to_dlpack(struct bx_tensor *tensor, struct DLManagedTensor **managed) BXI_SYMBOL(bx_tensor_to_dlpack);
int bxi_old_to_dlpack_versioned(struct bx_tensor *tensor, struct DLManagedTensorVersioned **managed)
    BXI_SYMBOL(bx_tensor_to_dlpack_versioned);
int bxi_old_from_dlpack(struct DLManagedTensor *managed, struct bx_tensor **tensor) BXI_SYMBOL(bx_tensor_from_dlpack);
int bxi_old_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, struct bx_tensor **tensor)
    BXI_SYMBOL(bx_tensor_from_dlpack_versioned);
int bxi_old_register_async(struct bx_job *job, const char *name, bx_async_fn fn, void *context)
    BXI_SYMBOL(bx_register_async);
int bxi_old_register_method_async(struct bx_job *job, const struct bx_type *type, const char *name, bx_async_fn fn,
                                  void *context) BXI_SYMBOL(bx_register_method_async);
bool bxi_old_worker_alive(const struct bx_job *job, int rank) BXI_SYMBOL(bx_worker_alive);
bool bxi_old_future_done(const struct bx_future *future) BXI_SYMBOL(bx_future_done);
#pragma GCC visibility pop

#endif
