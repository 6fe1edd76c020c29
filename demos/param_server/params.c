/* SPDX-License-Identifier: MIT */
/*
 * The list of a model's parameters, its array in CPU memory, and its checksum. Run by server and trainers, each with a
 * list of its own.
 */
#include "ps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE_FLOATS 16      /* in a cache line */

int ps_params_init(struct ps_params *params, const struct bx_net *net)
{
    size_t count = bx_net_params(net);

    *params = (struct ps_params){ .at = calloc(count, sizeof(*params->at)), .count = count };
    if (params->at == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a list of %zu parameters", count);
    for (size_t i = 0; i < count; i++) {
        const struct bx_net_param_info *param = bx_net_param(net, i);
        struct ps_param *own = &params->at[i];

        own->ndim = param->ndim;
        memcpy(own->shape, param->shape, sizeof(own->shape));
        own->elements = param->elements;
        own->offset = params->room;
        params->elements += param->elements;
        params->room += (param->elements + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
    }
    return 0;
}

void ps_params_fini(struct ps_params *params)
{
    free(params->at);
    *params = (struct ps_params){ 0 };
}

uint64_t ps_params_bytes(const struct ps_params *params)
{
    return params->elements * sizeof(float);
}

float *ps_params_alloc(const struct ps_params *params)
{
    float *floats = aligned_alloc(LINE_FLOATS * sizeof(float), params->room * sizeof(float));

    if (floats != NULL)
        memset(floats, 0, params->room * sizeof(float));
    return floats;
}

uint64_t ps_checksum(const struct ps_params *params, const float *const *at)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < params->count; i++) {
        const unsigned char *bytes = (const unsigned char *)at[i];

        for (size_t k = 0; k < params->at[i].elements * sizeof(float); k++)
            hash = (hash ^ bytes[k]) * UINT64_C(0x100000001b3);
    }
    return hash;
}
