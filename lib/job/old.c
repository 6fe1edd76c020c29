/* SPDX-License-Identifier: MIT */
/*
 * The symbols of version 0.1; old.h says what they are. Each calls the function of today. Any thread.
 */
#include "old.h"

#include <string.h>

/* Sizes of 0.1. */
#define OPTIONS_BYTES 96u
#define SPAWN_OPTIONS_BYTES 48u
#define CALL_OPTIONS_BYTES 24u

/* ---- options without a size ---------------------------------------------------------------------- */

/* Returns the options with a size: in `sized`, if they have none. */
static const void *sized(const void *given, void *sized, size_t bytes)
{
    size_t has;

    if (given == NULL)
        return NULL;
    memcpy(&has, given, sizeof has);
    if (has != 0)
        return given;
    memcpy(sized, given, bytes);
    memcpy(sized, &bytes, sizeof bytes);
    return sized;
}

/* The copy lives as long as the block in which this stands. */
#define SIZED(options) sized(options, &(struct bx_call_options){ .timeout_ns = 0 }, CALL_OPTIONS_BYTES)

int bxi_old_job_create(const struct bx_options *options, struct bx_job **job)
{
    struct bx_options room;

    return bx_job_create(sized(options, &room, OPTIONS_BYTES), job);
}

int bxi_old_spawn(const struct bx_spawn_options *options, bx_worker_fn fn, void *context,
                  struct bx_spawn_report *report)
{
    struct bx_spawn_options room;
    struct bx_options worker;

    if (options == NULL || options->struct_bytes != 0)
        return bx_spawn(options, fn, context, report);
    options = sized(options, &room, SPAWN_OPTIONS_BYTES);
    room.options = sized(options->options, &worker, OPTIONS_BYTES);
    return bx_spawn(options, fn, context, report);
}

int bxi_old_rpc_sync(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                     const struct bx_call_options *options, struct bx_msg **reply)
{
    return bx_rpc_sync(job, to, function, args, SIZED(options), reply);
}

int bxi_old_rpc_async(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                      const struct bx_call_options *options, struct bx_future **future)
{
    return bx_rpc_async(job, to, function, args, SIZED(options), future);
}

int bxi_old_rpc_many(struct bx_job *job, const char *to, const char *function, size_t count,
                     const struct bx_msg *const *args, const struct bx_call_options *options,
                     struct bx_future **futures)
{
    return bx_rpc_many(job, to, function, count, args, SIZED(options), futures);
}

int bxi_old_rpc_oneway(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                       const struct bx_call_options *options)
{
    return bx_rpc_oneway(job, to, function, args, SIZED(options));
}

int bxi_old_remote(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                   const struct bx_call_options *options, struct bx_rref **rref)
{
    return bx_remote(job, to, function, args, SIZED(options), rref);
}

int bxi_old_rref_sync(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                      const struct bx_call_options *options, struct bx_msg **reply)
{
    return bx_rref_sync(rref, method, args, SIZED(options), reply);
}

int bxi_old_rref_async(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                       const struct bx_call_options *options, struct bx_future **future)
{
    return bx_rref_async(rref, method, args, SIZED(options), future);
}

int bxi_old_rref_oneway(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                        const struct bx_call_options *options)
{
    return bx_rref_oneway(rref, method, args, SIZED(options));
}

int bxi_old_rref_remote(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                        const struct bx_call_options *options, struct bx_rref **made)
{
    return bx_rref_remote(rref, method, args, SIZED(options), made);
}

int bxi_old_rref_to_here(struct bx_rref *rref, const struct bx_call_options *options, struct bx_msg **value)
{
    return bx_rref_to_here(rref, SIZED(options), value);
}

int bxi_old_rref_to_here_async(struct bx_rref *rref, const struct bx_call_options *options,
                               struct bx_future **future)
{
    return bx_rref_to_here_async(rref, SIZED(options), future);
}

/* ---- functions with fewer parameters ------------------------------------------------------------- */

struct bx_future *bxi_old_future_then(struct bx_future *future, bx_then_fn fn, void *context)
{
    return bx_future_then(future, fn, context, NULL);
}

struct bx_future *bxi_old_future_then_any(struct bx_future *future, bx_then_fn fn, void *context)
{
    return bx_future_then_any(future, fn, context, NULL);
}

int bxi_old_to_dlpack(struct bx_tensor *tensor, struct DLManagedTensor **managed)
{
    return bx_tensor_to_dlpack(tensor, -1, managed);
}

int bxi_old_to_dlpack_versioned(struct bx_tensor *tensor, struct DLManagedTensorVersioned **managed)
{
    return bx_tensor_to_dlpack_versioned(tensor, -1, managed);
}

int bxi_old_from_dlpack(struct DLManagedTensor *managed, struct bx_tensor **tensor)
{
    return bx_tensor_from_dlpack(managed, -1, tensor);
}

int bxi_old_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, struct bx_tensor **tensor)
{
    return bx_tensor_from_dlpack_versioned(managed, -1, tensor);
}

int bxi_old_register_async(struct bx_job *job, const char *name, bx_async_fn fn, void *context)
{
    return bx_register_async(job, name, BX_INLINE, fn, context);
}

int bxi_old_register_method_async(struct bx_job *job, const struct bx_type *type, const char *name, bx_async_fn fn,
                                  void *context)
{
    return bx_register_method_async(job, type, name, BX_INLINE, fn, context);
}

/* ---- functions with another name ----------------------------------------------------------------- */

bool bxi_old_worker_alive(const struct bx_job *job, int rank)
{
    return bx_worker_is_alive(job, rank);
}

bool bxi_old_future_done(const struct bx_future *future)
{
    return bx_future_is_done(future);
}
