/* SPDX-License-Identifier: MIT */
/*
 * The operations of boxcar_nn.h as plain loops in double precision, forward and backward. They are short rather than
 * fast, so that a reader can see an error.
 */
#include "twin.h"

#include "boxcar_cuda.h"

#include <math.h>

#define TOLERANCE 2e-5          /* of the largest magnitude in the tensor compared */

/* ---- Helpers -------------------------------------------------------------------------------------- */

/* Uniform in +-1. Depends only on the use and the index. */
static float noise(uint64_t use, uint64_t i)
{
    uint64_t z = (use << 32) + i + UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (float)((z ^ (z >> 31)) >> 40) * 0x1p-23f - 1.0f;
}

static float *noise_array(size_t count, uint64_t use, float scale)
{
    float *at = malloc((count + 1) * sizeof(*at));

    cr_assert_not_null(at);
    for (size_t i = 0; i < count; i++)
        at[i] = scale * noise(use, i);
    return at;
}

static double *doubles(size_t count)
{
    double *at = calloc(count + 1, sizeof(*at));

    cr_assert_not_null(at);
    return at;
}

static size_t size_of(const struct twin_node *node)
{
    return (size_t)node->n * (size_t)node->c * (size_t)node->h * (size_t)node->w;
}

static size_t place(const struct twin_node *node, int n, int c, int h, int w)
{
    return (((size_t)n * (size_t)node->c + (size_t)c) * (size_t)node->h + (size_t)h) * (size_t)node->w + (size_t)w;
}

static void check_near(const float *got, const double *want, size_t count, const char *what)
{
    double largest = 0.0;

    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < count; i++)
        cr_assert(fabs((double)got[i] - want[i]) <= TOLERANCE * largest, "%s[%zu] of %zu: %.9g instead of %.9g", what,
                  i, count, (double)got[i], want[i]);
}

/* ---- Where nets compute --------------------------------------------------------------------------- */

static struct bx_cuda *device;

void twin_use(struct bx_cuda *cuda)
{
    device = cuda;
}

struct bx_cuda *twin_cuda(void)
{
    return device;
}

void *twin_alloc(size_t bytes)
{
    void *memory = NULL;

    if (device == NULL)
        memory = malloc(bytes);
    else
        cr_assert_eq(bx_cuda_alloc(device, bytes, &memory), 0, "%s", bx_error_text());
    cr_assert_not_null(memory);
    return memory;
}

void twin_free(void *memory)
{
    if (device == NULL)
        free(memory);
    else
        bx_cuda_free(device, memory);
}

void twin_put(void *memory, const void *from, size_t bytes)
{
    if (device == NULL)
        memcpy(memory, from, bytes);
    else
        cr_assert_eq(bx_cuda_copy(device, memory, from, bytes), 0, "%s", bx_error_text());
}

void twin_get(void *to, const void *memory, size_t bytes)
{
    if (device == NULL) {
        memcpy(to, memory, bytes);
        return;
    }
    cr_assert_eq(bx_cuda_copy(device, to, memory, bytes), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_wait(device), 0, "%s", bx_error_text());
}

static float *alloc_like(const float *from, size_t count)
{
    float *memory = twin_alloc(count * sizeof(*memory));

    twin_put(memory, from, count * sizeof(*memory));
    return memory;
}

/* Memory that the net must overwrite. */
static float *alloc_noise(size_t count)
{
    float *from = noise_array(count, 2, 1.0f), *memory = alloc_like(from, count);

    free(from);
    return memory;
}

/* ---- Building both -------------------------------------------------------------------------------- */

void twin_create(struct bx_net **net, const struct bx_net_options *options)
{
    struct bx_net_options given = options != NULL ? *options : (struct bx_net_options){ .threads = 1 };
    int rc;

    given.cuda = device;
    rc = bx_net_create(&given, net);
    if (rc == -ENOTSUP)
        cr_skip_test("%s", bx_error_text());
    cr_assert_eq(rc, 0, "%s", bx_error_text());
}

static struct twin_node *add(struct twin *t, const struct twin_node *node, int id)
{
    cr_assert_geq(id, 0, "%s", bx_error_text());
    cr_assert_lt(t->count, TWIN_NODES);
    struct twin_node *added = &t->node[t->count++];
    *added = *node;
    added->id = id;
    added->param = t->params;
    added->v = doubles(size_of(added));
    added->g = doubles(size_of(added));
    return added;
}

static void begin(struct twin *t, const struct bx_net_options *options, const int dims[4])
{
    int n = dims[0], c = dims[1], h = dims[2], w = dims[3];

    memset(t, 0, sizeof(*t));
    t->input_grad = options->input_grad;
    twin_create(&t->net, options);
    add(t, &(struct twin_node){ .op = TWIN_INPUT, .n = n, .c = c, .h = h, .w = w }, bx_net_input(t->net, n, c, h, w));
}

void twin_begin(struct twin *t, int n, int c, int h, int w)
{
    begin(t, &(struct bx_net_options){ .threads = 2, .input_grad = true }, (const int[4]){ n, c, h, w });
}

void twin_begin_bare(struct twin *t, int n, int c, int h, int w)
{
    begin(t, &(struct bx_net_options){ .threads = 2 }, (const int[4]){ n, c, h, w });
}

static void name_next(const struct twin *t, struct twin_node *node)
{
    snprintf(node->name, sizeof(node->name), "op%d", t->count);
}

int twin_conv(struct twin *t, int in, const struct bx_conv *like)
{
    const struct twin_node *from = &t->node[in];
    struct twin_node node = { .op = TWIN_CONV, .in = { in }, .n = from->n, .c = like->out_channels,
                              .kernel = like->kernel, .stride = like->stride, .padding = like->padding,
                              .bias = like->bias };
    struct bx_conv conv = *like;

    node.h = (from->h + 2 * conv.padding - conv.kernel) / conv.stride + 1;
    node.w = (from->w + 2 * conv.padding - conv.kernel) / conv.stride + 1;
    name_next(t, &node);
    conv.name = node.name;
    add(t, &node, bx_net_conv(t->net, from->id, &conv));
    t->params += conv.bias ? 2 : 1;
    return t->count - 1;
}

int twin_norm(struct twin *t, int in, bool relu)
{
    struct twin_node node = t->node[in];

    node.op = TWIN_NORM;
    node.in[0] = in;
    node.relu = relu;
    name_next(t, &node);
    struct twin_node *added = add(t, &node, bx_net_batch_norm(t->net, t->node[in].id, node.name, relu));
    added->mean = doubles(2 * (size_t)node.c);
    added->var = doubles(2 * (size_t)node.c);
    for (int c = 0; c < node.c; c++)
        added->var[node.c + c] = 1.0;
    t->params += 2;
    return t->count - 1;
}

static int add_like(struct twin *t, enum twin_op op, int in, int id)
{
    struct twin_node node = t->node[in];

    node.op = op;
    node.in[0] = in;
    node.relu = false;
    add(t, &node, id);
    return t->count - 1;
}

int twin_relu(struct twin *t, int in)
{
    return add_like(t, TWIN_RELU, in, bx_net_relu(t->net, t->node[in].id));
}

int twin_softmax(struct twin *t, int in)
{
    return add_like(t, TWIN_SOFTMAX, in, bx_net_softmax(t->net, t->node[in].id));
}

int twin_add(struct twin *t, int a, int b, bool relu)
{
    int node = add_like(t, TWIN_ADD, a, bx_net_add(t->net, t->node[a].id, t->node[b].id, relu));

    t->node[node].in[1] = b;
    t->node[node].relu = relu;
    return node;
}

int twin_max_pool(struct twin *t, int in, int kernel, int stride, int padding)
{
    const struct twin_node *from = &t->node[in];
    struct twin_node node = { .op = TWIN_MAX_POOL, .in = { in }, .n = from->n, .c = from->c, .kernel = kernel,
                              .stride = stride, .padding = padding };

    node.h = (from->h + 2 * padding - kernel) / stride + 1;
    node.w = (from->w + 2 * padding - kernel) / stride + 1;
    add(t, &node, bx_net_max_pool(t->net, from->id, kernel, stride, padding));
    return t->count - 1;
}

int twin_average(struct twin *t, int in)
{
    const struct twin_node *from = &t->node[in];

    add(t, &(struct twin_node){ .op = TWIN_AVERAGE, .in = { in }, .n = from->n, .c = from->c, .h = 1, .w = 1 },
        bx_net_global_avg_pool(t->net, from->id));
    return t->count - 1;
}

int twin_linear(struct twin *t, int in, int features, bool bias)
{
    struct twin_node node = { .op = TWIN_LINEAR, .in = { in }, .n = t->node[in].n, .c = features, .h = 1, .w = 1,
                              .bias = bias };

    name_next(t, &node);
    add(t, &node, bx_net_linear(t->net, t->node[in].id, node.name, features, bias));
    t->params += bias ? 2 : 1;
    return t->count - 1;
}

/* ---- The same in double: forward ------------------------------------------------------------------ */

/* Calls fn for each product of a convolution, with the indices of its output, its input and its weight. */
static void each_product(const struct twin_node *out, const struct twin_node *in, void *context,
                         void (*fn)(void *context, size_t to, size_t from, size_t weight))
{
    size_t outputs = size_of(out), window = (size_t)in->c * (size_t)(out->kernel * out->kernel);

    for (size_t i = 0; i < outputs * window; i++) {
        size_t to = i / window, weight = i % window;
        int x = (int)(to % (size_t)out->w), y = (int)(to / (size_t)out->w % (size_t)out->h);
        int o = (int)(to / (size_t)(out->h * out->w) % (size_t)out->c);
        int n = (int)(to / (size_t)(out->h * out->w * out->c));
        int kx = (int)weight % out->kernel, ky = (int)weight / out->kernel % out->kernel;
        int c = (int)weight / (out->kernel * out->kernel);
        int h = y * out->stride + ky - out->padding, w = x * out->stride + kx - out->padding;

        if (h >= 0 && h < in->h && w >= 0 && w < in->w)
            fn(context, to, place(in, n, c, h, w), (size_t)o * window + weight);
    }
}

struct product {
    const float *weight;
    double *weight_grad;
    struct twin_node *out, *in;
};

static void product_forward(void *context, size_t to, size_t from, size_t weight)
{
    struct product *p = context;

    p->out->v[to] += p->in->v[from] * (double)p->weight[weight];
}

static void product_backward(void *context, size_t to, size_t from, size_t weight)
{
    struct product *p = context;

    p->in->g[from] += p->out->g[to] * (double)p->weight[weight];
    p->weight_grad[weight] += p->out->g[to] * p->in->v[from];
}

/* A linear layer is a convolution whose kernel covers the whole input. The loops are its own: the input need not be
 * square. */
static void linear_products(struct product *p, void (*fn)(void *context, size_t to, size_t from, size_t weight))
{
    size_t features = size_of(p->in) / (size_t)p->in->n, outputs = (size_t)p->out->c;

    for (size_t to = 0; to < size_of(p->out); to++) {
        for (size_t i = 0; i < features; i++)
            fn(p, to, to / outputs * features + i, to % outputs * features + i);
    }
}

static int channel_of(const struct twin_node *node, size_t i)
{
    return (int)(i / (size_t)(node->h * node->w) % (size_t)node->c);
}

static void weighted_forward(const struct twin *t, struct twin_node *node, struct twin_node *in)
{
    struct product p = { .weight = t->value[node->param], .out = node, .in = in };

    for (size_t i = 0; i < size_of(node); i++)
        node->v[i] = node->bias ? (double)t->value[node->param + 1][channel_of(node, i)] : 0.0;
    if (node->op == TWIN_CONV)
        each_product(node, in, &p, product_forward);
    else
        linear_products(&p, product_forward);
}

static void batch_statistics(struct twin_node *node, const struct twin_node *in)
{
    double count = (double)(node->n * node->h * node->w);

    memset(node->mean, 0, (size_t)node->c * sizeof(double));
    memset(node->var, 0, (size_t)node->c * sizeof(double));
    for (size_t i = 0; i < size_of(in); i++)
        node->mean[channel_of(in, i)] += in->v[i] / count;
    for (size_t i = 0; i < size_of(in); i++)
        node->var[channel_of(in, i)] += pow(in->v[i] - node->mean[channel_of(in, i)], 2.0) / count;
    for (int c = 0; c < node->c; c++) {
        node->mean[node->c + c] = 0.9 * node->mean[node->c + c] + 0.1 * node->mean[c];
        node->var[node->c + c] = 0.9 * node->var[node->c + c] + 0.1 * node->var[c] * count / (count - 1.0);
    }
}

static void norm_forward(const struct twin *t, struct twin_node *node, const struct twin_node *in, bool training)
{
    int running = training ? 0 : node->c;

    if (training)
        batch_statistics(node, in);
    for (size_t i = 0; i < size_of(node); i++) {
        int c = channel_of(node, i);
        double x = (in->v[i] - node->mean[running + c]) / sqrt(node->var[running + c] + 1e-5);

        node->v[i] = (double)t->value[node->param][c] * x + (double)t->value[node->param + 1][c];
    }
}

/* The index of the largest input of output i of a pool. */
static size_t pool_place(const struct twin_node *node, const struct twin_node *in, size_t i)
{
    int x = (int)(i % (size_t)node->w) * node->stride - node->padding;
    int y = (int)(i / (size_t)node->w % (size_t)node->h) * node->stride - node->padding;
    int n = (int)(i / (size_t)(node->c * node->h * node->w));
    size_t best = SIZE_MAX;

    for (int h = y < 0 ? 0 : y; h < y + node->kernel && h < in->h; h++) {
        for (int w = x < 0 ? 0 : x; w < x + node->kernel && w < in->w; w++) {
            size_t at = place(in, n, channel_of(node, i), h, w);

            if (best == SIZE_MAX || in->v[at] > in->v[best])
                best = at;
        }
    }
    return best;
}

static void softmax_forward(struct twin_node *node, const struct twin_node *in)
{
    for (int n = 0; n < node->n; n++) {
        double *row = node->v + n * node->c, sum = 0.0;

        for (int c = 0; c < node->c; c++)
            sum += row[c] = exp(in->v[n * node->c + c]);
        for (int c = 0; c < node->c; c++)
            row[c] /= sum;
    }
}

static void average_forward(struct twin_node *node, const struct twin_node *in)
{
    memset(node->v, 0, size_of(node) * sizeof(double));
    for (size_t i = 0; i < size_of(in); i++)
        node->v[i / (size_t)(in->h * in->w)] += in->v[i] / (in->h * in->w);
}

static void twin_forward(struct twin *t, bool training)
{
    for (size_t i = 0; i < size_of(&t->node[0]); i++)
        t->node[0].v[i] = (double)t->input[i];
    for (int k = 1; k < t->count; k++) {
        struct twin_node *node = &t->node[k], *in = &t->node[node->in[0]];

        if (node->op == TWIN_CONV || node->op == TWIN_LINEAR)
            weighted_forward(t, node, in);
        else if (node->op == TWIN_NORM)
            norm_forward(t, node, in, training);
        else if (node->op == TWIN_AVERAGE)
            average_forward(node, in);
        else if (node->op == TWIN_SOFTMAX)
            softmax_forward(node, in);
        for (size_t i = 0; i < size_of(node); i++) {
            if (node->op == TWIN_RELU)
                node->v[i] = fmax(0.0, in->v[i]);
            else if (node->op == TWIN_ADD)
                node->v[i] = in->v[i] + t->node[node->in[1]].v[i];
            else if (node->op == TWIN_MAX_POOL)
                node->v[i] = in->v[pool_place(node, in, i)];
            if (node->relu)
                node->v[i] = fmax(0.0, node->v[i]);
        }
    }
}

/* ---- The same in double: backward ----------------------------------------------------------------- */

static void weighted_backward(struct twin *t, struct twin_node *node, struct twin_node *in)
{
    struct product p = { t->value[node->param], t->want[node->param], node, in };

    if (node->op == TWIN_CONV)
        each_product(node, in, &p, product_backward);
    else
        linear_products(&p, product_backward);
    for (size_t i = 0; node->bias && i < size_of(node); i++)
        t->want[node->param + 1][channel_of(node, i)] += node->g[i];
}

static void norm_backward(struct twin *t, struct twin_node *node, struct twin_node *in)
{
    double *scale_grad = t->want[node->param], *shift_grad = t->want[node->param + 1];
    double count = (double)(node->n * node->h * node->w);

    for (size_t i = 0; i < size_of(node); i++) {
        int c = channel_of(node, i);

        shift_grad[c] += node->g[i];
        scale_grad[c] += node->g[i] * (in->v[i] - node->mean[c]) / sqrt(node->var[c] + 1e-5);
    }
    for (size_t i = 0; i < size_of(node); i++) {
        int c = channel_of(node, i);
        double deviation = sqrt(node->var[c] + 1e-5), x = (in->v[i] - node->mean[c]) / deviation;

        in->g[i] += (double)t->value[node->param][c] / deviation *
                    (node->g[i] - shift_grad[c] / count - x * scale_grad[c] / count);
    }
}

static void softmax_backward(const struct twin_node *node, struct twin_node *in)
{
    for (int n = 0; n < node->n; n++) {
        double sum = 0.0;

        for (int i = n * node->c; i < (n + 1) * node->c; i++)
            sum += node->g[i] * node->v[i];
        for (int i = n * node->c; i < (n + 1) * node->c; i++)
            in->g[i] += node->v[i] * (node->g[i] - sum);
    }
}

static void twin_backward(struct twin *t)
{
    for (int k = 0; k < t->count; k++)
        memset(t->node[k].g, 0, size_of(&t->node[k]) * sizeof(double));
    for (size_t k = 0; k < t->params; k++)
        memset(t->want[k], 0, bx_net_param(t->net, k)->elements * sizeof(double));
    for (size_t i = 0; i < size_of(&t->node[t->count - 1]); i++)
        t->node[t->count - 1].g[i] = (double)t->output_grad[i];
    for (int k = t->count - 1; k > 0; k--) {
        struct twin_node *node = &t->node[k], *in = &t->node[node->in[0]];

        for (size_t i = 0; i < size_of(node) && (node->relu || node->op == TWIN_RELU); i++)
            node->g[i] = node->v[i] > 0.0 ? node->g[i] : 0.0;
        if (node->op == TWIN_CONV || node->op == TWIN_LINEAR)
            weighted_backward(t, node, in);
        else if (node->op == TWIN_NORM)
            norm_backward(t, node, in);
        else if (node->op == TWIN_SOFTMAX)
            softmax_backward(node, in);
        for (size_t i = 0; i < size_of(node); i++) {
            if (node->op == TWIN_RELU || node->op == TWIN_ADD)
                in->g[i] += node->g[i];
            if (node->op == TWIN_ADD)
                t->node[node->in[1]].g[i] += node->g[i];
            else if (node->op == TWIN_MAX_POOL)
                in->g[pool_place(node, in, i)] += node->g[i];
        }
        for (size_t i = 0; node->op == TWIN_AVERAGE && i < size_of(in); i++)
            in->g[i] += node->g[i / (size_t)(in->h * in->w)] / (in->h * in->w);
    }
}

/* ---- Comparing ------------------------------------------------------------------------------------ */

static void set_params(struct twin *t, uint64_t version)
{
    for (size_t k = 0; k < t->params; k++) {
        size_t elements = bx_net_param(t->net, k)->elements;

        free(t->value[k]);
        t->value[k] = noise_array(elements, 100 * version + k, 0.7f);
        twin_put(t->there.value[k], t->value[k], elements * sizeof(float));
    }
    cr_assert_eq(bx_net_set_params(t->net, (const float *const *)t->there.value), 0, "%s", bx_error_text());
}

void twin_finish(struct twin *t)
{
    const struct twin_node *last = &t->node[t->count - 1];

    cr_assert_eq(bx_net_finish(t->net, last->id), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_params(t->net), t->params);
    cr_assert_eq(bx_net_output_elements(t->net), size_of(last));
    t->input = noise_array(size_of(&t->node[0]), 1, 1.0f);
    t->output_grad = noise_array(size_of(last), 3, 1.0f);
    t->there.input = alloc_like(t->input, size_of(&t->node[0]));
    t->there.output = alloc_noise(size_of(last));
    t->there.output_grad = alloc_like(t->output_grad, size_of(last));
    for (size_t k = 0; k < t->params; k++) {
        size_t elements = bx_net_param(t->net, k)->elements;

        t->want[k] = doubles(elements);
        t->there.value[k] = twin_alloc(elements * sizeof(float));
        t->there.grad[k] = alloc_noise(elements);
    }
    set_params(t, 1);
}

/* check_near for an array of the net. */
static void check_near_there(const float *there, const double *want, size_t count, const char *what)
{
    float *got = malloc((count + 1) * sizeof(*got));

    cr_assert_not_null(got);
    twin_get(got, there, count * sizeof(*got));
    check_near(got, want, count, what);
    free(got);
}

static void check_statistics(const struct twin *t)
{
    for (int k = 0; k < t->count; k++) {
        const struct twin_node *node = &t->node[k];
        float *mean, *var;
        size_t channels = 0;

        if (node->op != TWIN_NORM)
            continue;
        cr_assert_eq(bx_net_running(t->net, node->name, &mean, &var, &channels), 0, "%s", bx_error_text());
        cr_assert_eq(channels, (size_t)node->c);
        check_near_there(mean, node->mean + node->c, channels, "running mean");
        check_near_there(var, node->var + node->c, channels, "running variance");
    }
}

void twin_check_forward(struct twin *t)
{
    const struct twin_node *last = &t->node[t->count - 1];

    cr_assert_eq(bx_net_forward(t->net, t->there.input, t->there.output), 0, "%s", bx_error_text());
    twin_forward(t, true);
    check_near_there(t->there.output, last->v, size_of(last), "output");
    check_statistics(t);
}

void twin_check_backward(struct twin *t)
{
    cr_assert_eq(bx_net_backward(t->net, t->there.output_grad, t->there.grad), 0, "%s", bx_error_text());
    twin_backward(t);
    for (size_t k = 0; k < t->params; k++)
        check_near_there(t->there.grad[k], t->want[k], bx_net_param(t->net, k)->elements,
                         bx_net_param(t->net, k)->name);
    if (!t->input_grad) {
        cr_assert_null(bx_net_input_grad(t->net));
        return;
    }
    cr_assert_not_null(bx_net_input_grad(t->net));
    check_near_there(bx_net_input_grad(t->net), t->node[0].g, size_of(&t->node[0]), "gradient of the input");
}

void twin_check_predict(struct twin *t)
{
    const struct twin_node *last = &t->node[t->count - 1];

    cr_assert_eq(bx_net_predict(t->net, t->there.input, t->there.output), 0, "%s", bx_error_text());
    twin_forward(t, false);
    check_near_there(t->there.output, last->v, size_of(last), "prediction");
    check_statistics(t);
}

void twin_end(struct twin *t)
{
    for (int k = 0; k < t->count; k++) {
        free(t->node[k].v);
        free(t->node[k].g);
        if (t->node[k].op == TWIN_NORM) {
            free(t->node[k].mean);
            free(t->node[k].var);
        }
    }
    for (size_t k = 0; k < t->params; k++) {
        free(t->value[k]);
        free(t->want[k]);
        twin_free(t->there.value[k]);
        twin_free(t->there.grad[k]);
    }
    twin_free(t->there.input);
    twin_free(t->there.output);
    twin_free(t->there.output_grad);
    free(t->input);
    free(t->output_grad);
    bx_net_destroy(t->net);
}

/* The second round checks that gradients are overwritten, not added to, and that the new parameters are used. */
void twin_check(struct twin *t)
{
    twin_finish(t);
    for (uint64_t version = 1; version <= 2; version++) {
        twin_check_forward(t);
        twin_check_backward(t);
        twin_check_predict(t);
        if (version == 1)
            set_params(t, 2);
    }
    twin_end(t);
}
