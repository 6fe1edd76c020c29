/* SPDX-License-Identifier: MIT */
/*
 * Builds a net and calls its backend: shapes, names, parameters, running statistics, and the order of calls. Computes
 * nothing. Run by the thread that uses the net; no locks.
 *
 * A building call checks everything that follows from the numbers alone. So a backend gets a list of valid operations,
 * and fails only for memory or for an operation that it cannot compute.
 */
#include "nn.h"

#include "base/options.h"
#include "dnn.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger arrays would overflow the backends' 32-bit offsets. */
#define ELEMENTS_MAX INT32_MAX

int bx_net_create(const struct bx_net_options *options, struct bx_net **net)
{
    struct bx_net_options given = { .threads = 1 };
    int error;

    if (net == NULL)
        return bx_fail(-EINVAL, "bx_net_create needs a place for the net");
    if ((error = bxi_options_copy(&given, sizeof given, options, "bx_net_options")) < 0)
        return error;
    if (given.threads < 0)
        return bx_fail(-EINVAL, "a net cannot compute with %d threads; 0 means one", given.threads);

    const struct bxi_nn_backend *backend = given.cuda != NULL ? &bxi_nn_cuda : &bxi_nn_cpu;

    error = backend->check(given.cuda);
    if (error != 0)
        return error;

    struct bx_net *made = calloc(1, sizeof *made);

    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a net");
    made->threads = given.threads == 0 ? 1 : given.threads;
    made->input_grad = given.input_grad;
    made->cuda = given.cuda;
    made->backend = backend;
    *net = made;
    return 0;
}

void bx_net_destroy(struct bx_net *net)
{
    if (net == NULL)
        return;
    if (net->plan != NULL)
        net->backend->unplan(net);
    for (int i = 0; i < net->node_count; i++) {
        free(net->nodes[i].name);
        free(net->nodes[i].mean);
    }
    for (size_t i = 0; i < net->param_count; i++)
        free((char *)net->params[i].name);
    free(net->nodes);
    free(net->params);
    free(net);
}

const char *bx_nn_backend(void)
{
    return bxi_onednn.version();
}

/* ---- Building ------------------------------------------------------------------------------------ */

/* 0 if a node may be added that reads node `in`; a negative `in`, an earlier failure, is returned. */
static int may_add(const struct bx_net *net, int in)
{
    if (net == NULL)
        return bx_fail(-EINVAL, "a building call was given no net");
    if (net->plan != NULL)
        return bx_fail(BX_E_STATE, "the net is finished; its operations cannot change any more");
    if (in < 0)
        return in;
    if (in >= net->node_count)
        return bx_fail(-EINVAL, "node %d does not exist; the net has %d", in, net->node_count);
    return 0;
}

/* Appends a copy of `node` to the list, which then owns its name and statistics. Returns its number. */
static int add_node(struct bx_net *net, const struct bxi_node *node)
{
    int64_t elements = 1;

    for (int i = 0; i < 4; i++) {
        if (node->dims[i] < 1 || elements > ELEMENTS_MAX / node->dims[i])
            return bx_fail(-EINVAL, "node %d would be %d x %d x %d x %d, which is not between 1 and %d elements",
                           net->node_count, node->dims[0], node->dims[1], node->dims[2], node->dims[3], ELEMENTS_MAX);
        elements *= node->dims[i];
    }
    if (net->node_count == net->node_capacity) {
        int capacity = net->node_capacity == 0 ? 64 : net->node_capacity * 2;
        struct bxi_node *nodes = realloc(net->nodes, (size_t)capacity * sizeof *nodes);

        if (nodes == NULL)
            return bx_fail(-ENOMEM, "no memory for %d operations", capacity);
        net->nodes = nodes;
        net->node_capacity = capacity;
    }
    for (int i = 0; i < 2; i++)
        if (node->in[i] >= 0)
            net->nodes[node->in[i]].uses++;
    net->nodes[net->node_count] = *node;
    return net->node_count++;
}

/* Begins a node that reads node `in`, with the shape of that. 0, or a negative code. */
static int begin_node(const struct bx_net *net, enum bxi_nn_op op, int in, struct bxi_node *node)
{
    int result = may_add(net, in);

    if (result != 0)
        return result;
    *node = (struct bxi_node){ .op = op, .in = { in, -1 }, .param = -1 };
    memcpy(node->dims, net->nodes[in].dims, sizeof node->dims);
    return 0;
}

int bx_net_input(struct bx_net *net, int n, int c, int h, int w)
{
    struct bxi_node node = { .op = BXI_NN_INPUT, .in = { -1, -1 }, .dims = { n, c, h, w }, .param = -1 };

    if (net == NULL)
        return bx_fail(-EINVAL, "a building call was given no net");
    if (net->plan != NULL || net->node_count != 0)
        return bx_fail(BX_E_STATE, "a net has one input, and it is built first");
    return add_node(net, &node);
}

/* Makes room for two more parameters, and refuses a name that another operation has. */
static int may_name(struct bx_net *net, const char *name)
{
    if (name == NULL || name[0] == '\0')
        return bx_fail(-EINVAL, "an operation with parameters needs a name");
    for (int i = 0; i < net->node_count; i++)
        if (net->nodes[i].name != NULL && strcmp(net->nodes[i].name, name) == 0)
            return bx_fail(-EINVAL, "the name '%s' is taken by node %d", name, i);
    if (net->param_count + 2 > net->param_capacity) {
        size_t capacity = net->param_capacity == 0 ? 64 : net->param_capacity * 2;
        struct bx_net_param_info *params = realloc(net->params, capacity * sizeof *params);

        if (params == NULL)
            return bx_fail(-ENOMEM, "no memory for %zu parameters", capacity);
        net->params = params;
        net->param_capacity = capacity;
    }
    return 0;
}

/* may_name has made the room. `shape` ends at its first 0. */
static int add_param(struct bx_net *net, const char *name, const char *what, const int shape[5])
{
    struct bx_net_param_info param = { .elements = 1 };
    char *text;

    for (; shape[param.ndim] != 0; param.ndim++) {
        if (param.elements > (size_t)(ELEMENTS_MAX / shape[param.ndim]))
            return bx_fail(-EINVAL, "%s.%s would have more than %d elements", name, what, ELEMENTS_MAX);
        param.shape[param.ndim] = shape[param.ndim];
        param.elements *= (size_t)shape[param.ndim];
    }
    if (asprintf(&text, "%s.%s", name, what) < 0)
        return bx_fail(-ENOMEM, "no memory for the name %s.%s", name, what);
    param.name = text;
    net->params[net->param_count++] = param;
    return 0;
}

/* Adds a node with a weight and, if node->bias, a bias of one value a channel; all of it or nothing. */
static int add_with_params(struct bx_net *net, struct bxi_node *node, const char *name, const int weight[5])
{
    size_t before = net->param_count;
    int result = may_name(net, name);

    if (result != 0)
        return result;
    node->param = (int)before;
    node->name = strdup(name);
    result = node->name == NULL ? bx_fail(-ENOMEM, "no memory for the name %s", name) : 0;
    if (result == 0)
        result = add_param(net, name, "weight", weight);
    if (result == 0 && node->bias)
        result = add_param(net, name, "bias", (const int[5]){ node->dims[1] });
    if (result == 0)
        result = add_node(net, node);
    if (result >= 0)
        return result;
    while (net->param_count > before)
        free((char *)net->params[--net->param_count].name);
    free(node->name);
    return result;
}

/* The positions of a window that moves over `size`; -1: it does not fit. */
static int window_count(int size, int kernel, int stride, int padding)
{
    int64_t room = (int64_t)size + 2 * (int64_t)padding - kernel;

    return room < 0 || room / stride >= INT_MAX ? -1 : (int)(room / stride) + 1;
}

/* Sets the height and width of the output of a window that moves over node->in[0]. */
static int set_window(const struct bx_net *net, struct bxi_node *node, const char *what)
{
    const int *dims = net->nodes[node->in[0]].dims;

    if (node->kernel < 1 || node->stride < 1 || node->padding < 0)
        return bx_fail(-EINVAL, "%s: kernel %d and stride %d must be positive and padding %d not negative", what,
                       node->kernel, node->stride, node->padding);
    for (int i = 2; i < 4; i++) {
        node->dims[i] = window_count(dims[i], node->kernel, node->stride, node->padding);
        if (node->dims[i] < 1)
            return bx_fail(-EINVAL, "%s: a kernel of %d does not fit into %d x %d with padding %d", what,
                           node->kernel, dims[2], dims[3], node->padding);
    }
    return 0;
}

int bx_net_conv(struct bx_net *net, int in, const struct bx_conv *conv)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_CONV, in, &node);

    if (result != 0)
        return result;
    if (conv == NULL || conv->name == NULL)
        return bx_fail(-EINVAL, "a convolution needs a name");
    if (conv->out_channels < 1)
        return bx_fail(-EINVAL, "%s: %d is no number of channels", conv->name, conv->out_channels);
    node.kernel = conv->kernel;
    node.stride = conv->stride;
    node.padding = conv->padding;
    node.bias = conv->bias;
    result = set_window(net, &node, conv->name);
    if (result != 0)
        return result;
    node.dims[1] = conv->out_channels;
    return add_with_params(net, &node, conv->name,
                           (const int[5]){ node.dims[1], net->nodes[in].dims[1], node.kernel, node.kernel });
}

int bx_net_batch_norm(struct bx_net *net, int in, const char *name, bool relu)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_BATCH_NORM, in, &node);

    if (result != 0)
        return result;

    size_t channels = (size_t)node.dims[1];

    node.relu = relu;
    node.bias = true;
    node.mean = calloc(2 * channels, sizeof *node.mean);
    if (node.mean == NULL)
        return bx_fail(-ENOMEM, "no memory for the statistics of %zu channels", channels);
    node.var = node.mean + channels;
    for (size_t i = 0; i < channels; i++)
        node.var[i] = 1;
    result = add_with_params(net, &node, name, (const int[5]){ node.dims[1] });
    if (result < 0)
        free(node.mean);
    return result;
}

int bx_net_relu(struct bx_net *net, int in)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_RELU, in, &node);

    if (result != 0)
        return result;
    node.relu = true;
    return add_node(net, &node);
}

int bx_net_add(struct bx_net *net, int a, int b, bool relu)
{
    struct bxi_node node;
    const int *other;
    int result = begin_node(net, BXI_NN_ADD, a, &node);

    if (result == 0)
        result = may_add(net, b);
    if (result != 0)
        return result;
    other = net->nodes[b].dims;
    if (memcmp(node.dims, other, sizeof node.dims) != 0)
        return bx_fail(-EINVAL, "node %d is %d x %d x %d x %d and node %d is %d x %d x %d x %d; they cannot be added",
                       a, node.dims[0], node.dims[1], node.dims[2], node.dims[3],
                       b, other[0], other[1], other[2], other[3]);
    node.in[1] = b;
    node.relu = relu;
    return add_node(net, &node);
}

int bx_net_max_pool(struct bx_net *net, int in, int kernel, int stride, int padding)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_MAX_POOL, in, &node);

    if (result != 0)
        return result;
    node.kernel = kernel;
    node.stride = stride;
    node.padding = padding;
    result = set_window(net, &node, "max_pool");
    if (result != 0)
        return result;
    /* Each window must have an element that is not padding. */
    if (padding > kernel / 2)
        return bx_fail(-EINVAL, "max_pool: padding %d is more than half of kernel %d", padding, kernel);
    return add_node(net, &node);
}

int bx_net_global_avg_pool(struct bx_net *net, int in)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_GLOBAL_AVG_POOL, in, &node);

    if (result != 0)
        return result;
    node.dims[2] = node.dims[3] = 1;
    return add_node(net, &node);
}

int bx_net_linear(struct bx_net *net, int in, const char *name, int out_features, bool bias)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_LINEAR, in, &node);

    if (result != 0)
        return result;
    if (out_features < 1)
        return bx_fail(-EINVAL, "%s: %d is no number of features", name == NULL ? "linear" : name, out_features);

    const int *dims = net->nodes[in].dims;

    node.bias = bias;
    node.dims[1] = out_features;
    node.dims[2] = node.dims[3] = 1;
    return add_with_params(net, &node, name, (const int[5]){ out_features, dims[1] * dims[2] * dims[3] });
}

int bx_net_softmax(struct bx_net *net, int in)
{
    struct bxi_node node;
    int result = begin_node(net, BXI_NN_SOFTMAX, in, &node);

    if (result != 0)
        return result;
    if (node.dims[2] != 1 || node.dims[3] != 1)
        return bx_fail(-EINVAL, "softmax is over the channels of an N x C x 1 x 1, not of %d x %d x %d x %d",
                       node.dims[0], node.dims[1], node.dims[2], node.dims[3]);
    return add_node(net, &node);
}

/* The batch normalisation that has one value a channel; NULL if there is none. */
static const struct bxi_node *find_untrainable(const struct bx_net *net)
{
    for (int i = 0; i < net->node_count; i++) {
        const struct bxi_node *node = &net->nodes[i];

        if (node->op == BXI_NN_BATCH_NORM && node->dims[0] == 1 && node->dims[2] == 1 && node->dims[3] == 1)
            return node;
    }
    return NULL;
}

bool bx_net_shares_params(const struct bx_net *net, const struct bx_net *owner)
{
    return net != NULL && net->owner != NULL && net->owner == owner;
}

/* Whose parameters the net computes with. */
static const struct bx_net *owner_of(const struct bx_net *net)
{
    return net->owner != NULL ? net->owner : net;
}

static int check_owner(const struct bx_net *net)
{
    const struct bx_net *owner = owner_of(net);
    size_t count = net->param_count < owner->param_count ? net->param_count : owner->param_count, i = 0;

    while (i < count && strcmp(net->params[i].name, owner->params[i].name) == 0 &&
           net->params[i].elements == owner->params[i].elements)
        i++;
    if (i == net->param_count && i == owner->param_count)
        return 0;
    return bx_fail(-EINVAL, "the net has another parameter %zu than the net whose parameters it shares", i);
}

int bx_net_finish(struct bx_net *net, int output)
{
    int result = may_add(net, output);

    if (result != 0)
        return result;
    if (net->nodes[output].op == BXI_NN_INPUT)
        return bx_fail(-EINVAL, "the output is the input itself; a net needs an operation");
    for (int i = 0; i < net->node_count; i++) {
        struct bxi_node *node = &net->nodes[i];

        if (i != output && node->uses == 0)
            return bx_fail(-EINVAL, "node %d leads nowhere: it is neither the output nor anybody's input", i);
        node->grad = node->param >= 0 || (node->op == BXI_NN_INPUT && net->input_grad);
        for (int k = 0; k < 2; k++)
            node->grad |= node->in[k] >= 0 && net->nodes[node->in[k]].grad;
    }
    if (output != net->node_count - 1)
        return bx_fail(-EINVAL, "the output, node %d, must be the last of the net's %d nodes", output,
                       net->node_count);
    net->untrainable = find_untrainable(net);
    result = check_owner(net);
    if (result == 0)
        result = net->backend->plan(net);
    if (result != 0 && net->plan != NULL) {
        net->backend->unplan(net);
        net->plan = NULL;
    }
    return result;
}

/* ---- Parameters ---------------------------------------------------------------------------------- */

size_t bx_net_params(const struct bx_net *net)
{
    return net == NULL ? 0 : net->param_count;
}

const struct bx_net_param_info *bx_net_param(const struct bx_net *net, size_t index)
{
    return net == NULL || index >= net->param_count ? NULL : &net->params[index];
}

size_t bx_net_param_elements(const struct bx_net *net)
{
    size_t elements = 0;

    for (size_t i = 0; i < bx_net_params(net); i++)
        elements += net->params[i].elements;
    return elements;
}

size_t bx_net_input_elements(const struct bx_net *net)
{
    return net == NULL || net->node_count == 0 ? 0 : bxi_node_elements(&net->nodes[0]);
}

size_t bx_net_output_elements(const struct bx_net *net)
{
    return net == NULL || net->node_count == 0 ? 0 : bxi_node_elements(&net->nodes[net->node_count - 1]);
}

int bx_net_running(struct bx_net *net, const char *name, float **mean, float **var, size_t *channels)
{
    if (net == NULL || name == NULL)
        return bx_fail(-EINVAL, "bx_net_running needs a net and a name");
    for (int i = 0; i < net->node_count; i++) {
        const struct bxi_node *node = &net->nodes[i];
        float *at[2] = { node->mean, node->var };

        if (node->op != BXI_NN_BATCH_NORM || strcmp(node->name, name) != 0)
            continue;
        if (net->backend->running != NULL && net->plan == NULL)
            return bx_fail(BX_E_STATE, "bx_net_running: on a GPU, call bx_net_finish first");
        if (net->backend->running != NULL)
            net->backend->running(net, i, &at[0], &at[1]);
        if (mean != NULL)
            *mean = at[0];
        if (var != NULL)
            *var = at[1];
        if (channels != NULL)
            *channels = (size_t)node->dims[1];
        return 0;
    }
    return bx_fail(-ENOENT, "the net has no batch normalisation '%s'", name);
}

static int is_finished(const struct bx_net *net, const char *call)
{
    if (net == NULL)
        return bx_fail(-EINVAL, "%s was given no net", call);
    return net->plan != NULL ? 0 : bx_fail(BX_E_STATE, "%s: call bx_net_finish first", call);
}

int bx_net_share_params(struct bx_net *net, const struct bx_net *owner)
{
    int result = is_finished(owner, "bx_net_share_params");

    if (result != 0)
        return result;
    if (net == NULL)
        return bx_fail(-EINVAL, "bx_net_share_params was given no net");
    if (net->node_count != 0)
        return bx_fail(BX_E_STATE, "bx_net_share_params: call it before the net gets its first operation");
    if (net->cuda != NULL || owner->cuda != NULL || owner->owner != NULL)
        return bx_fail(-ENOTSUP, "only a net on the CPU, with parameters of its own, can share them with another one "
                       "there");
    net->owner = owner;
    return 0;
}

int bx_net_set_params(struct bx_net *net, const float *const *params)
{
    int result = is_finished(net, "bx_net_set_params");

    if (result != 0)
        return result;
    if (net->owner != NULL)
        return bx_fail(BX_E_STATE, "bx_net_set_params: the net shares the parameters of another one, which gets them");
    for (size_t i = 0; i < net->param_count; i++)
        if (params == NULL || params[i] == NULL)
            return bx_fail(-EINVAL, "bx_net_set_params was given nothing for '%s'", net->params[i].name);
    /* A backward pass with other parameters than its forward pass would compute no gradient of anything. */
    net->has_forward = false;
    net->version++;
    result = net->backend->set_params(net, params);
    net->has_params = result == 0;
    return result;
}

/* ---- Computing ----------------------------------------------------------------------------------- */

static int may_compute(const struct bx_net *net, const char *call, const float *input, const float *output)
{
    int result = is_finished(net, call);

    if (result != 0)
        return result;
    if (input == NULL || output == NULL)
        return bx_fail(-EINVAL, "%s needs an input and a place for the output", call);
    if (!owner_of(net)->has_params && net->param_count != 0)
        return bx_fail(BX_E_STATE, "%s: call bx_net_set_params first", call);
    return 0;
}

int bx_net_forward(struct bx_net *net, const float *input, float *output)
{
    int result = may_compute(net, "bx_net_forward", input, output);

    if (result != 0)
        return result;
    if (net->untrainable != NULL)
        return bx_fail(-EINVAL, "batch normalisation '%s' has one value a channel, which has no variance; train with a "
                       "larger batch", net->untrainable->name);
    net->has_forward = false;
    result = net->backend->forward(net, input, output);
    net->has_forward = result == 0;
    net->forward_version = owner_of(net)->version;
    return result;
}

int bx_net_predict(struct bx_net *net, const float *input, float *output)
{
    int result = may_compute(net, "bx_net_predict", input, output);

    if (result != 0)
        return result;
    net->has_forward = false;
    return net->backend->predict(net, input, output);
}

int bx_net_backward(struct bx_net *net, const float *output_grad, float *const *grads)
{
    int result = is_finished(net, "bx_net_backward");

    if (result != 0)
        return result;
    if (!net->has_forward || net->forward_version != owner_of(net)->version)
        return bx_fail(BX_E_STATE, "bx_net_backward: call bx_net_forward first, and nothing in between");
    if (output_grad == NULL)
        return bx_fail(-EINVAL, "bx_net_backward needs the gradient of the output");
    for (size_t i = 0; i < net->param_count; i++)
        if (grads == NULL || grads[i] == NULL)
            return bx_fail(-EINVAL, "bx_net_backward has no place for the gradient of '%s'", net->params[i].name);
    return net->backend->backward(net, output_grad, grads);
}

const float *bx_net_input_grad(const struct bx_net *net)
{
    return net == NULL || net->plan == NULL || !net->input_grad ? NULL : net->backend->input_grad(net);
}
