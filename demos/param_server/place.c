/* SPDX-License-Identifier: MIT */
/*
 * The place where a server or trainer computes, the CPU or a GPU, and the arrays that it lends there. Run by the thread
 * that does the arithmetic, one at a time.
 *
 * On a GPU all work goes to one stream of the worker, and all parameters are lent as one tensor: 161 tensors would need
 * 161 marks on that stream, and as many waits by each reader, of some microseconds each. Only ps_place_copy waits for
 * the GPU: it copies to or from CPU memory.
 */
#include "demos/common/flags.h"
#include "ps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ps_place_open(struct ps_place *place, const struct ps_flags *flags, int rank)
{
    int count;

    *place = (struct ps_place){ .ordinal = flags->device };
    if (flags->device == DEVICE_CPU)
        return 0;
    if (flags->device == DEVICE_CUDA) {
        count = bx_cuda_count();
        if (count < 0)
            return count;
        place->ordinal = rank == 0 ? 0 : (rank - 1) % count;
    }
    return bx_cuda_open(place->ordinal, &place->cuda);
}

int ps_place_join(struct ps_place *place, struct bx_job *job)
{
    place->job = job;
    return place->cuda == NULL ? 0 : bx_gpu_open(job, place->ordinal, &place->device);
}

void ps_place_close(struct ps_place *place)
{
    bx_cuda_close(place->cuda);
    place->cuda = NULL;
}

int ps_place_alloc(const struct ps_place *place, size_t count, float **floats)
{
    void *memory = NULL;
    int rc;

    if (place->cuda == NULL) {
        *floats = calloc(count, sizeof(float));
        return *floats != NULL ? 0 : bx_fail(-ENOMEM, "not enough memory for %zu numbers", count);
    }
    rc = bx_cuda_alloc(place->cuda, count * sizeof(float), &memory);
    if (rc < 0)
        return rc;
    *floats = memory;
    return bx_cuda_zero(place->cuda, memory, count * sizeof(float));
}

void ps_place_free(const struct ps_place *place, float *floats)
{
    if (place->cuda == NULL)
        free(floats);
    else
        bx_cuda_free(place->cuda, floats);
}

int ps_place_copy(const struct ps_place *place, float *to, const float *from, size_t count)
{
    int rc;

    if (place->cuda == NULL) {
        memcpy(to, from, count * sizeof(float));
        return 0;
    }
    rc = bx_cuda_copy(place->cuda, to, from, count * sizeof(float));
    return rc < 0 ? rc : bx_cuda_wait(place->cuda);
}

/* ---- Sets of arrays -------------------------------------------------------------------------------- */

static size_t tensors_of(const struct ps_place *place, const struct ps_params *params)
{
    return place->cuda == NULL ? params->count : 1;
}

/* One tensor for all parameters. It is zeroed because the step reads and writes its gaps too, which should be numbers.
 * It is marked as written at once: if it is never written, its memory is not reused before the zeros are there. */
static int create_as_one(struct ps_set *set, const struct ps_place *place, const struct ps_params *params)
{
    const int64_t room = (int64_t)params->room;
    int rc = bx_tensor_create_on(place->job, place->device, BX_F32, 1, &room, &set->tensors[0]);
    float *floats = rc == 0 ? bx_tensor_data_mut(set->tensors[0]) : NULL;

    if (rc == 0)
        rc = bx_cuda_zero(place->cuda, floats, params->room * sizeof(float));
    if (rc == 0)
        rc = ps_set_written(set, place);
    for (size_t i = 0; rc == 0 && i < params->count; i++)
        set->at[i] = floats + params->at[i].offset;
    return rc;
}

static int create_each(struct ps_set *set, const struct ps_place *place, const struct ps_params *params)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < params->count; i++) {
        rc = bx_tensor_create(place->job, BX_F32, params->at[i].ndim, params->at[i].shape, &set->tensors[i]);
        if (rc == 0)
            set->at[i] = bx_tensor_data_mut(set->tensors[i]);
    }
    return rc;
}

int ps_set_create(struct ps_set *set, const struct ps_place *place, const struct ps_params *params)
{
    struct ps_set made = { .tensor_count = tensors_of(place, params) };
    int rc;

    made.tensors = calloc(made.tensor_count, sizeof(struct bx_tensor *));
    made.at = calloc(params->count, sizeof(float *));
    if (made.tensors == NULL || made.at == NULL)
        rc = bx_fail(-ENOMEM, "not enough memory for a list of %zu parameters", params->count);
    else
        rc = place->cuda == NULL ? create_each(&made, place, params) : create_as_one(&made, place, params);
    if (rc < 0) {
        ps_set_destroy(&made);
        return rc;
    }
    *set = made;
    return 0;
}

void ps_set_destroy(struct ps_set *set)
{
    for (size_t i = 0; set->tensors != NULL && i < set->tensor_count; i++)
        bx_tensor_release(set->tensors[i]);
    free(set->tensors);
    free(set->at);
    *set = (struct ps_set){ 0 };
}

bool ps_set_is_on_loan(const struct ps_set *set)
{
    /* A lease is for all tensors of a message, so for a whole set. */
    return set->tensor_count > 0 && bx_tensor_on_loan(set->tensors[0]) > 0;
}

int ps_set_written(const struct ps_set *set, const struct ps_place *place)
{
    return place->cuda == NULL ? 0 : bx_tensor_written_on(set->tensors[0], bx_cuda_stream(place->cuda));
}

int ps_set_read(const struct ps_set *set, const struct ps_place *place)
{
    return place->cuda == NULL ? 0 : bx_tensor_read_on(set->tensors[0], bx_cuda_stream(place->cuda));
}

int ps_put_set(struct bx_msg *msg, const struct ps_set *set)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < set->tensor_count; i++)
        rc = bx_msg_put_tensor(msg, set->tensors[i]);
    return rc;
}

static bool is_floats(const struct bx_tensor *tensor, const struct ps_place *place, size_t elements)
{
    enum bx_device_kind kind = place->cuda == NULL ? BX_CPU : BX_CUDA;

    return tensor != NULL && bx_tensor_device(tensor).kind == kind && bx_tensor_dtype(tensor) == BX_F32 &&
           bx_tensor_is_contiguous(tensor) && (size_t)bx_tensor_elements(tensor) == elements;
}

int ps_read_set(struct bx_reader *reader, const struct ps_place *place, const struct ps_params *params,
                const char *what, const float **at)
{
    struct bx_tensor *tensor;

    for (size_t i = 0; place->cuda == NULL && i < params->count; i++) {
        tensor = bx_read_tensor(reader);
        if (!is_floats(tensor, place, params->at[i].elements))
            return bx_fail(-EPROTO, "%s: number %zu is missing, or not one of its parameter's", what, i);
        at[i] = bx_tensor_data(tensor);
    }
    if (place->cuda == NULL)
        return 0;
    tensor = bx_read_tensor(reader);
    if (!is_floats(tensor, place, params->room))
        return bx_fail(-EPROTO, "%s: missing, or not of this model's parameters on a GPU", what);
    for (size_t i = 0; i < params->count; i++)
        at[i] = (const float *)bx_tensor_data(tensor) + params->at[i].offset;
    return bx_tensor_read_on(tensor, bx_cuda_stream(place->cuda));
}
