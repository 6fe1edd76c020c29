/* SPDX-License-Identifier: MIT */
/*
 * The GPU backend (cuda.h): plans a net's memory, and puts its passes on the device's stream. Run by the thread that
 * uses the net.
 *
 * Only planning and destroying a net wait for the device, and a planned net allocates nothing. A pass that fails on the
 * device is reported by the next call that waits for the stream.
 */
#include "cuda.h"

#include <errno.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };            /* of arrays, in floats: as cuMemAlloc promises, and more than cuDNN requires */

/* ---- Planning ------------------------------------------------------------------------------------ */

static struct bxi_place reserve(struct bxi_cuda_plan *plan, size_t floats)
{
    struct bxi_place place = { .offset = plan->floats, .count = floats };

    plan->floats += (floats + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

static size_t bytes_of(struct bxi_place place)
{
    return place.count * sizeof(float);
}

/* The buffers of gradients, while the backward pass is simulated. */
struct pool {
    struct bxi_place place;
    bool is_taken;
};

/* The smallest free buffer that is large enough and at most half too large; else a new one. The pool has an entry a
 * node and one to spare. */
static struct bxi_place take(struct bxi_cuda_plan *plan, struct pool *pool, size_t floats)
{
    struct pool *best = NULL;
    size_t i;

    for (i = 0; pool[i].place.count != 0; i++)
        if (!pool[i].is_taken && pool[i].place.count >= floats && pool[i].place.count <= floats + floats / 2 &&
            (best == NULL || pool[i].place.count < best->place.count))
            best = &pool[i];
    if (best == NULL) {
        best = &pool[i];
        best->place = reserve(plan, floats);
    }
    best->is_taken = true;
    return best->place;
}

static void give_back(struct pool *pool, struct bxi_place place)
{
    for (; pool->place.count != 0; pool++)
        if (pool->place.offset == place.offset)
            pool->is_taken = false;
}

/* Takes buffers for what a node's backward step writes, then gives back what only that step read. */
static void plan_node_grads(struct bxi_cuda_plan *plan, struct pool *pool, int index)
{
    const struct bxi_node *nodes = plan->net->nodes, *node = &nodes[index];
    struct bxi_cuda_work *work = &plan->work[index];

    for (int k = 0; k < 2; k++) {
        struct bxi_place *grad = node->in[k] >= 0 ? &plan->work[node->in[k]].grad : NULL;

        if (grad == NULL || !nodes[node->in[k]].grad)
            continue;
        work->adds[k] = grad->count != 0;
        if (!work->adds[k])
            *grad = take(plan, pool, bxi_node_elements(&nodes[node->in[k]]));
    }
    if (node->op == BXI_NN_BATCH_NORM && !nodes[node->in[0]].grad) {
        work->input_grad = take(plan, pool, bxi_node_elements(node));
        give_back(pool, work->input_grad);
    }
    give_back(pool, work->grad);
}

static int plan_grads(struct bxi_cuda_plan *plan)
{
    const struct bx_net *net = plan->net;
    int last = net->node_count - 1;
    struct pool *pool = calloc((size_t)net->node_count + 2, sizeof(*pool));

    if (pool == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    if (net->nodes[last].grad)
        plan->work[last].grad = take(plan, pool, bxi_node_elements(&net->nodes[last]));
    for (int i = last; i > 0; i--)
        if (net->nodes[i].grad)
            plan_node_grads(plan, pool, i);
    free(pool);
    return 0;
}

static int take_memory(const struct bxi_cuda_plan *plan, size_t floats, float **memory)
{
    void *at = NULL;
    int rc = bxi_cuda_take(plan->cuda, floats * sizeof(float), &at);

    *memory = at;
    return rc;
}

static int plan_memory(struct bxi_cuda_plan *plan)
{
    const struct bx_net *net = plan->net;
    size_t workspace_bytes = 0;
    int rc;

    for (size_t i = 0; i < net->param_count; i++)
        plan->params[i] = reserve(plan, net->params[i].elements);
    plan->param_floats = plan->floats;
    for (int i = 0; i < net->node_count; i++) {
        struct bxi_cuda_work *work = &plan->work[i];
        const struct bxi_algorithm *const all[] = { &work->forward, &work->backward_data, &work->backward_weights };

        if (net->nodes[i].op != BXI_NN_INPUT)
            work->out = reserve(plan, bxi_node_elements(&net->nodes[i]));
        for (int k = 0; k < BXI_STATISTICS && net->nodes[i].op == BXI_NN_BATCH_NORM; k++)
            work->statistics[k] = reserve(plan, (size_t)net->nodes[i].dims[1]);
        for (int k = 0; k < 3; k++)
            if (all[k]->workspace_bytes > workspace_bytes)
                workspace_bytes = all[k]->workspace_bytes;
    }
    plan->workspace = reserve(plan, (workspace_bytes + sizeof(float) - 1) / sizeof(float));
    rc = plan_grads(plan);
    return rc < 0 ? rc : take_memory(plan, plan->floats, &plan->memory);
}

static int begin_statistics(const struct bxi_cuda_plan *plan)
{
    const struct bx_net *net = plan->net;
    int rc = 0;

    for (int i = 0; i < net->node_count && rc == 0; i++) {
        const struct bxi_node *node = &net->nodes[i];
        size_t bytes = (size_t)node->dims[1] * sizeof(float);

        if (node->op != BXI_NN_BATCH_NORM)
            continue;
        rc = bxi_cuda_put_copy(plan->cuda, bxi_cuda_statistic(plan, i, BXI_RUNNING_MEAN), node->mean, bytes);
        if (rc == 0)
            rc = bxi_cuda_put_copy(plan->cuda, bxi_cuda_statistic(plan, i, BXI_RUNNING_VAR), node->var, bytes);
    }
    return rc;
}

/* ---- Computing ----------------------------------------------------------------------------------- */

static int set_params(struct bx_net *net, const float *const *params)
{
    const struct bxi_cuda_plan *plan = net->plan;
    int rc = bxi_cuda_enter(plan->cuda, "bx_net_set_params");

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < net->param_count && rc == 0; i++)
        rc = bxi_cuda_put_copy(plan->cuda, bxi_cuda_at(plan, plan->params[i]), params[i], bytes_of(plan->params[i]));
    bxi_cuda_leave(plan->cuda);
    return rc;
}

static int compute(struct bxi_cuda_plan *plan, const char *call, const float *input, float *output)
{
    int last = plan->net->node_count - 1;
    int rc = bxi_cuda_enter(plan->cuda, call);

    if (rc < 0)
        return rc;
    plan->input = input;
    for (int i = 1; i <= last && rc == 0; i++)
        rc = bxi_cuda_forward(plan, i);
    if (rc == 0)
        rc = bxi_cuda_put_copy(plan->cuda, output, bxi_cuda_at(plan, plan->work[last].out),
                               bytes_of(plan->work[last].out));
    bxi_cuda_leave(plan->cuda);
    return rc;
}

static int forward(struct bx_net *net, const float *input, float *output)
{
    struct bxi_cuda_plan *plan = net->plan;

    plan->predicts = false;
    return compute(plan, "bx_net_forward", input, output);
}

static int predict(struct bx_net *net, const float *input, float *output)
{
    struct bxi_cuda_plan *plan = net->plan;

    plan->predicts = true;
    return compute(plan, "bx_net_predict", input, output);
}

static int backward(struct bx_net *net, const float *output_grad, float *const *grads)
{
    struct bxi_cuda_plan *plan = net->plan;
    struct bxi_place grad = plan->work[net->node_count - 1].grad;
    int rc = bxi_cuda_enter(plan->cuda, "bx_net_backward");

    if (rc < 0)
        return rc;
    plan->grads = grads;
    if (grad.count != 0)            /* copied: it is masked in place if the net ends with a ReLU */
        rc = bxi_cuda_put_copy(plan->cuda, bxi_cuda_at(plan, grad), output_grad, bytes_of(grad));
    for (int i = net->node_count - 1; i > 0 && rc == 0; i--)
        if (net->nodes[i].grad)
            rc = bxi_cuda_backward(plan, i);
    bxi_cuda_leave(plan->cuda);
    return rc;
}

/* ---- Making and ending --------------------------------------------------------------------------- */

/* Runs the net once forward and backward, on whatever `memory` contains. */
static int warm_up_on(struct bx_net *net, float *memory, float **grads)
{
    const struct bxi_cuda_plan *plan = net->plan;
    float *input = memory + plan->param_floats, *output = input + bxi_node_elements(&net->nodes[0]);
    int rc = 0;

    for (size_t i = 0; i < net->param_count; i++)
        grads[i] = memory + plan->params[i].offset;
    if (net->untrainable == NULL) {
        rc = forward(net, input, output);
        if (rc == 0)
            rc = backward(net, output, grads);
    }
    return rc < 0 ? rc : predict(net, input, output);
}

/* Runs every pass once. The libraries load a kernel's code, and allocate memory of their own, at its first use, and may
 * wait for the whole device then; an algorithm that they promised may also fail. Neither should happen during training,
 * when the stream may be waiting for another process. */
static int warm_up(struct bx_net *net)
{
    const struct bxi_cuda_plan *plan = net->plan;
    size_t floats = plan->param_floats + bxi_node_elements(&net->nodes[0]) +
        bxi_node_elements(&net->nodes[net->node_count - 1]);
    float **grads = calloc(net->param_count + 1, sizeof(*grads));
    float *memory;
    int rc, waited;

    if (grads == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    rc = take_memory(plan, floats, &memory);
    if (rc == 0) {
        rc = warm_up_on(net, memory, grads);
        waited = bxi_cuda_sync(plan->cuda);
        rc = rc < 0 ? rc : waited;
        (void)plan->cuda->cu.cuMemFree_v2((uintptr_t)memory);
    }
    free(grads);
    return rc;
}

static int plan_net(struct bx_net *net)
{
    struct bxi_cuda_plan *plan = calloc(1, sizeof(*plan));
    int rc;

    if (plan == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    net->plan = plan;
    plan->net = net;
    plan->cuda = net->cuda;
    plan->node_count = net->node_count;
    plan->work = calloc((size_t)net->node_count, sizeof(*plan->work));
    plan->params = calloc(net->param_count + 1, sizeof(*plan->params));
    if (plan->work == NULL || plan->params == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    rc = bxi_cuda_enter(plan->cuda, "bx_net_finish");
    if (rc < 0)
        return rc;
    for (int i = 0; i < net->node_count && rc == 0; i++)
        rc = bxi_cuda_describe(plan, i);
    if (rc == 0)
        rc = plan_memory(plan);
    if (rc == 0)
        rc = warm_up(net);
    if (rc == 0)
        rc = begin_statistics(plan);
    bxi_cuda_leave(plan->cuda);
    return rc;
}

/* The net itself may be gone. */
static void end_plan(void *object)
{
    struct bxi_cuda_plan *plan = object;

    if (bxi_cuda_enter(plan->cuda, "bx_net_destroy") == 0) {
        (void)bxi_cuda_sync(plan->cuda);
        for (int i = 0; i < plan->node_count && plan->work != NULL; i++)
            bxi_cuda_forget(plan, i);
        if (plan->memory != NULL)
            (void)plan->cuda->cu.cuMemFree_v2((uintptr_t)plan->memory);
        bxi_cuda_leave(plan->cuda);
    }
    free(plan->work);
    free(plan->params);
    free(plan);
}

static void unplan_net(struct bx_net *net)
{
    struct bxi_cuda_plan *plan = net->plan;

    (void)bxi_cuda_end(plan->cuda, end_plan, plan);
}

/* ---- What else is asked -------------------------------------------------------------------------- */

static const float *input_grad(const struct bx_net *net)
{
    const struct bxi_cuda_plan *plan = net->plan;

    return bxi_cuda_at(plan, plan->work[0].grad);
}

static void running(const struct bx_net *net, int index, float **mean, float **var)
{
    *mean = bxi_cuda_statistic(net->plan, index, BXI_RUNNING_MEAN);
    *var = bxi_cuda_statistic(net->plan, index, BXI_RUNNING_VAR);
}

const struct bxi_nn_backend bxi_nn_cuda = {
    .check = bxi_cuda_check,
    .plan = plan_net,
    .unplan = unplan_net,
    .set_params = set_params,
    .forward = forward,
    .predict = predict,
    .backward = backward,
    .input_grad = input_grad,
    .running = running,
};
