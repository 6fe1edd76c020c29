/* SPDX-License-Identifier: MIT */
/*
 * A shard: half of the network as an object. Its methods are blocking handlers: they run on the pool of the worker,
 * which has one thread here (pipeline.c). So a worker computes one micro-batch at a time, in the order of the calls.
 *
 * The parameters are variables that the nets of all micro-batches use. The first net copies them into the layout of the
 * computations, when a step has changed them: once for each step. The others share that copy.
 */
#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>

static void destroy_shard(void *object)
{
    struct pl_shard *shard = object;

    for (int i = 0; i < shard->splits; i++)
        bx_net_op_destroy(shard->ops[i]);
    for (int i = shard->splits - 1; i >= 0; i--)
        bx_net_destroy(shard->nets[i]);                 /* the first one, which has the parameters, last */
    for (size_t i = 0; shard->params != NULL && i < shard->param_count; i++)
        bx_var_release(shard->params[i]);
    free(shard->params);
    free(shard);
}

const struct bx_type pl_shard_type = { .name = "shard", .destroy = destroy_shard };

/* ---- Making one -------------------------------------------------------------------------------------- */

struct plan {
    enum resnet_part part;
    struct resnet_input input;
    int splits;
    uint64_t seed;
};

/* The front's input is data, which needs no gradient. */
static int make_net(struct pl_shard *shard, const struct plan *plan, int at)
{
    struct bx_net **net = &shard->nets[at];
    int rc = bx_net_create(&(struct bx_net_options){ .threads = 1, .input_grad = plan->part == RESNET_BACK }, net);

    if (rc == 0 && at > 0)
        rc = bx_net_share_params(*net, shard->nets[0]);
    return rc < 0 ? rc : resnet_build(*net, RESNET_50, plan->part, &plan->input);
}

static int make_param(struct bx_job *job, const struct bx_net_param_info *like, struct bx_var **param)
{
    struct bx_tensor *value = NULL;
    int rc = bx_tensor_create(job, BX_F32, like->ndim, like->shape, &value);

    if (rc == 0)
        rc = bx_var_create(value, true, param);
    bx_tensor_release(value);
    return rc;
}

static int make_params(struct pl_shard *shard, struct bx_job *job, const struct plan *plan)
{
    const struct bx_net *net = shard->nets[0];
    size_t count = bx_net_params(net);
    float **at = calloc(count, sizeof(*at));
    int rc = 0;

    shard->params = calloc(count, sizeof(*shard->params));
    if (at == NULL || shard->params == NULL)
        rc = bx_fail(-ENOMEM, "not enough memory for a list of %zu parameters", count);
    for (; rc == 0 && shard->param_count < count; shard->param_count++) {
        struct bx_var **param = &shard->params[shard->param_count];

        rc = make_param(job, bx_net_param(net, shard->param_count), param);
        if (rc < 0)
            break;
        at[shard->param_count] = bx_tensor_data_mut(bx_var_value(*param));
    }
    if (rc == 0)
        resnet_init(net, resnet_first_param(RESNET_50, plan->part), plan->seed, at);
    free(at);
    return rc;
}

static int make_shard(struct bx_job *job, struct bx_dist *dist, const struct plan *plan, struct pl_shard **out)
{
    struct pl_shard *shard = calloc(1, sizeof(*shard));
    int rc = 0;

    if (shard == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a shard");
    shard->dist = dist;
    shard->splits = plan->splits;
    for (int i = 0; rc == 0 && i < plan->splits; i++)
        rc = make_net(shard, plan, i);
    if (rc == 0)
        rc = make_params(shard, job, plan);
    for (int i = 0; rc == 0 && i < plan->splits; i++)
        rc = i == 0 ? bx_net_op_create(shard->nets[i], shard->params, &shard->ops[i])
                    : bx_net_op_share(shard->nets[i], shard->ops[0], &shard->ops[i]);
    if (rc < 0)
        destroy_shard(shard);
    else
        *out = shard;
    return rc;
}

static int new_shard(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_job *job = bx_request_job(request);
    struct pl_shard *shard = NULL;
    struct plan plan = { .part = (enum resnet_part)bx_read_i32(args), .input = { .classes = PL_CLASSES } };

    plan.input.images = bx_read_i32(args);
    plan.input.height = plan.input.width = bx_read_i32(args);
    plan.splits = bx_read_i32(args);
    plan.seed = bx_read_u64(args);
    if (args->error < 0)
        return args->error;
    if ((plan.part != RESNET_FRONT && plan.part != RESNET_BACK) || plan.splits < 1 || plan.splits > PL_IMAGES_MAX)
        return bx_fail(-EINVAL, "a shard is the front or the back of the network, with 1 to %d micro-batches",
                       PL_IMAGES_MAX);
    int rc = make_shard(job, context, &plan, &shard);
    if (rc < 0)
        return rc;
    rc = bx_msg_put_object(job, reply, &pl_shard_type, shard);
    if (rc < 0)
        destroy_shard(shard);
    return rc;
}

/* ---- Methods ------------------------------------------------------------------------------------------- */

/* The tape ends with the call. The context keeps what was sent, and what leads to it, for the backward pass. */
static int forward(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    struct pl_shard *shard = bx_request_object(request);
    struct bx_context *context = NULL;
    struct bx_tape *tape = NULL;
    int rc = bx_read_context(shard->dist, args, &context);
    int at = bx_read_i32(args);

    (void)unused;
    if (rc == 0 && (at < 0 || at >= shard->splits))
        rc = bx_fail(-EINVAL, "the shard has %d micro-batches, and there is no number %d", shard->splits, at);
    if (rc == 0)
        rc = bx_tape_create(&(struct bx_tape_options){ .job = bx_request_job(request) }, &tape);
    if (rc == 0) {
        struct bx_var *y = bx_var_net(tape, shard->ops[at], bx_read_var(context, tape, args));

        rc = y != NULL ? bx_msg_put_var(reply, context, y) : bx_tape_error(tape);
    }
    bx_tape_destroy(tape);
    bx_context_release(context);
    return rc;
}

static int parameters(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    const struct pl_shard *shard = bx_request_object(request);
    int rc = 0;

    (void)args, (void)unused;
    for (size_t i = 0; rc == 0 && i < shard->param_count; i++) {
        struct bx_rref *rref = NULL;

        rc = bx_param_rref(bx_request_job(request), shard->params[i], &rref);
        if (rc == 0)
            rc = bx_msg_put_rref(reply, rref);
        bx_rref_release(rref);
    }
    return rc;
}

int pl_shard_register(struct bx_job *job, struct bx_dist *dist)
{
    int rc = bx_register(job, "new_shard", BX_BLOCKING, new_shard, dist);

    if (rc == 0)
        rc = bx_register_method(job, &pl_shard_type, "forward", BX_BLOCKING, forward, NULL);
    if (rc == 0)
        rc = bx_register_method(job, &pl_shard_type, "parameters", BX_BLOCKING, parameters, NULL);
    return rc;
}
