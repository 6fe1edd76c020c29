/* SPDX-License-Identifier: MIT */
/*
 * The LSTM: all layers and steps as one node. Run by the thread that has the tape, or the pass.
 *
 * Composed of the other operations, one step of one layer would be some fifteen nodes of a few multiplications each. As
 * one node the products with W_ih are one product for the whole sequence, and there is one block of memory for
 * everything that the backward pass needs. Per layer it has, in this order (S steps, B rows, H hidden):
 *
 *     gates     S x B x 4H      i f g o after their functions
 *     h, c      (S + 1) x B x H each; index 0 is the initial state
 *     tanh_c    S x B x H
 *     mask, x   S x B x H each, with dropout behind the layer: what the next layer reads is x = mask * h
 *
 * Edges: input, h0, c0, then the four weights of each layer. Saved: the input, then W_ih and W_hh of each layer.
 */
#include "autograd.h"

#include "base/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EDGES_BEFORE 3          /* input, h0, c0 */
#define WEIGHTS 4               /* of a layer: w_ih, w_hh, b_ih, b_hh */
#define LAYERS_MAX 1024

struct lstm {
    enum bx_dtype dtype;
    int64_t seq, batch, in, hidden;
    int layers;
    double dropout;             /* 0 unless training */
    unsigned char *work;
};

/* Where the arrays of a layer begin, in elements. */
struct offsets {
    int64_t gates, h, c, tanh_c, mask, x;
};

static struct offsets offsets_of(const struct lstm *lstm, int layer)
{
    const int64_t state = lstm->batch * lstm->hidden, all = lstm->seq * state;
    const int64_t dropped = lstm->dropout > 0 ? all : 0;
    struct offsets to = { .gates = layer * (4 * all + 2 * (all + state) + all + 2 * dropped) };

    to.h = to.gates + 4 * all;
    to.c = to.h + all + state;
    to.tanh_c = to.c + all + state;
    to.mask = to.tanh_c + all;
    to.x = to.mask + dropped;
    return to;
}

static unsigned char *place(const struct lstm *lstm, unsigned char *base, int64_t offset)
{
    return base + (size_t)offset * bx_dtype_bytes(lstm->dtype);
}

static size_t bytes_of(const struct lstm *lstm, int64_t elements)
{
    return (size_t)elements * bx_dtype_bytes(lstm->dtype);
}

static int64_t width_of(const struct lstm *lstm, int layer)
{
    return layer == 0 ? lstm->in : lstm->hidden;
}

/* What layer `layer` reads: the input, or the layer below. */
static const void *argument_of(const struct lstm *lstm, int layer, const void *input)
{
    struct offsets below;

    if (layer == 0)
        return input;
    below = offsets_of(lstm, layer - 1);
    return lstm->dropout > 0 ? place(lstm, lstm->work, below.x) :
        place(lstm, lstm->work, below.h + lstm->batch * lstm->hidden);
}

/* ---- Forward ------------------------------------------------------------------------------------- */

/* The values of one call: h0, c0 and biases may be NULL. */
struct values {
    struct bx_tensor *input, *h0, *c0;
    struct bx_tensor *weights[];
};

static void begin_state(const struct lstm *lstm, int layer, const struct bx_tensor *from, unsigned char *to)
{
    const size_t bytes = bytes_of(lstm, lstm->batch * lstm->hidden);

    if (bytes == 0)
        return;
    if (from != NULL)
        memcpy(to, (const unsigned char *)bx_tensor_data(from) + (size_t)layer * bytes, bytes);
    else
        memset(to, 0, bytes);
}

static void run_layer(const struct lstm *lstm, int layer, const struct values *values)
{
    const struct offsets at = offsets_of(lstm, layer);
    const int64_t state = lstm->batch * lstm->hidden;
    struct bx_tensor *const *w = &values->weights[WEIGHTS * layer];

    begin_state(lstm, layer, values->h0, place(lstm, lstm->work, at.h));
    begin_state(lstm, layer, values->c0, place(lstm, lstm->work, at.c));
    bxi_gemm(lstm->dtype, &(struct bxi_gemm){ .transpose_b = true, .m = lstm->seq * lstm->batch, .n = 4 * lstm->hidden,
                                              .k = width_of(lstm, layer),
                                              .a = argument_of(lstm, layer, bx_tensor_data(values->input)),
                                              .b = bx_tensor_data(w[0]), .c = place(lstm, lstm->work, at.gates) });
    for (int64_t t = 0; t < lstm->seq; t++) {
        unsigned char *gates = place(lstm, lstm->work, at.gates + 4 * t * state);
        unsigned char *h = place(lstm, lstm->work, at.h + t * state), *c = place(lstm, lstm->work, at.c + t * state);

        bxi_gemm(lstm->dtype, &(struct bxi_gemm){ .transpose_b = true, .add = true, .m = lstm->batch,
                                                  .n = 4 * lstm->hidden, .k = lstm->hidden, .a = h,
                                                  .b = bx_tensor_data(w[1]), .c = gates });
        bxi_loops(lstm->dtype)->cell(&(struct bxi_cell){
            .batch = lstm->batch, .hidden = lstm->hidden, .gates = gates, .b_ih = bx_tensor_data(w[2]),
            .b_hh = bx_tensor_data(w[3]), .c_prev = c, .c = place(lstm, c, state), .h = place(lstm, h, state),
            .tanh_c = place(lstm, lstm->work, at.tanh_c + t * state) });
    }
}

static void multiply(const struct lstm *lstm, const void *a, const void *b, void *to)
{
    const struct bxi_walk walk = { .ndim = 1, .shape = { lstm->seq * lstm->batch * lstm->hidden }, .a = { 1 },
                                   .b = { 1 } };

    bxi_loops(lstm->dtype)->binary(BXI_MUL, &walk, a, b, to);
}

static void drop_some(const struct lstm *lstm, int layer, struct bx_generator *generator)
{
    const struct offsets at = offsets_of(lstm, layer);
    const int64_t state = lstm->batch * lstm->hidden;
    unsigned char *mask = place(lstm, lstm->work, at.mask);

    bxi_loops(lstm->dtype)->mask(lstm->seq * state, lstm->dropout, generator, mask);
    generator->drawn += (uint64_t)(lstm->seq * state);
    multiply(lstm, place(lstm, lstm->work, at.h + state), mask, place(lstm, lstm->work, at.x));
}

/* The results: output, h, c. */
static int copy_results(struct bx_tape *tape, const struct lstm *lstm, struct bx_tensor *to[3])
{
    const int64_t state = lstm->batch * lstm->hidden;
    const size_t bytes = bytes_of(lstm, state);

    for (int i = 0; i < 3; i++) {
        to[i] = bxi_tensor_make(tape->job, &(struct bxi_like){ lstm->dtype, 3, { i == 0 ? lstm->seq : lstm->layers,
                                                                                lstm->batch, lstm->hidden } });
        if (to[i] == NULL)
            return bx_error_code();
    }
    for (int layer = 0; layer < lstm->layers && bytes > 0; layer++) {
        const struct offsets at = offsets_of(lstm, layer);

        memcpy((unsigned char *)bx_tensor_data_mut(to[1]) + (size_t)layer * bytes,
               place(lstm, lstm->work, at.h + lstm->seq * state), bytes);
        memcpy((unsigned char *)bx_tensor_data_mut(to[2]) + (size_t)layer * bytes,
               place(lstm, lstm->work, at.c + lstm->seq * state), bytes);
        if (layer == lstm->layers - 1)
            memcpy(bx_tensor_data_mut(to[0]), place(lstm, lstm->work, at.h + state), (size_t)lstm->seq * bytes);
    }
    return 0;
}

/* ---- Backward ------------------------------------------------------------------------------------ */

/* One layer's share of the backward pass. dy: of what the layer gave to the next one; of the last layer, of the
 * output. */
struct back {
    const struct lstm *lstm;
    int layer;
    unsigned char *dgates, *dy, *dh, *dc;
    struct bx_tensor *h0, *c0;          /* gradients of the initial states, all layers; NULL: not needed */
};

static void add(const struct lstm *lstm, const void *from, int64_t count, void *to)
{
    const struct bxi_walk walk = { .ndim = 1, .shape = { count }, .a = { 1 }, .b = { 1 } };

    bxi_loops(lstm->dtype)->reduce(&walk, from, 1, to);
}

/* The gradients of the gates at all steps, and of the initial states. */
static void back_steps(const struct back *back, const struct bxi_node *node)
{
    const struct lstm *lstm = back->lstm;
    const struct offsets at = offsets_of(lstm, back->layer);
    const int64_t state = lstm->batch * lstm->hidden;
    const void *w_hh = bx_tensor_data(node->saved[2 + 2 * back->layer]);

    begin_state(lstm, back->layer, node->slots[1].grad, back->dh);
    begin_state(lstm, back->layer, node->slots[2].grad, back->dc);
    for (int64_t t = lstm->seq - 1; t >= 0; t--) {
        unsigned char *dgates = place(lstm, back->dgates, 4 * t * state);

        add(lstm, place(lstm, back->dy, t * state), state, back->dh);
        bxi_loops(lstm->dtype)->cell_back(&(struct bxi_cell_back){
            .batch = lstm->batch, .hidden = lstm->hidden, .gates = place(lstm, lstm->work, at.gates + 4 * t * state),
            .c_prev = place(lstm, lstm->work, at.c + t * state), .dh = back->dh, .dc = back->dc,
            .tanh_c = place(lstm, lstm->work, at.tanh_c + t * state), .dgates = dgates });
        bxi_gemm(lstm->dtype, &(struct bxi_gemm){ .m = lstm->batch, .n = lstm->hidden, .k = 4 * lstm->hidden,
                                                  .a = dgates, .b = w_hh, .c = back->dh });
    }
    if (bytes_of(lstm, state) == 0)
        return;
    if (back->h0 != NULL)
        memcpy(place(lstm, bx_tensor_data_mut(back->h0), back->layer * state), back->dh, bytes_of(lstm, state));
    if (back->c0 != NULL)
        memcpy(place(lstm, bx_tensor_data_mut(back->c0), back->layer * state), back->dc, bytes_of(lstm, state));
}

/* Delivers dgates^T times what the weight was multiplied with: which 0: W_ih and the argument; 1: W_hh and h. */
static int back_weight(const struct back *back, struct bxi_node *node, struct bxi_pass *pass, int which)
{
    const struct lstm *lstm = back->lstm;
    const size_t edge = (size_t)(EDGES_BEFORE + WEIGHTS * back->layer + which);
    const int64_t width = which == 0 ? width_of(lstm, back->layer) : lstm->hidden;
    struct bx_tensor *to;

    if (!bxi_needs(node, edge))
        return 0;
    to = bxi_tensor_make(pass->grads->job, &(struct bxi_like){ lstm->dtype, 2, { 4 * lstm->hidden, width } });
    if (to == NULL)
        return bx_error_code();
    bxi_gemm(lstm->dtype, &(struct bxi_gemm){
        .transpose_a = true, .m = 4 * lstm->hidden, .n = width, .k = lstm->seq * lstm->batch, .a = back->dgates,
        .b = which == 0 ? argument_of(lstm, back->layer, bx_tensor_data(node->saved[0])) :
            place(lstm, lstm->work, offsets_of(lstm, back->layer).h),
        .c = bx_tensor_data_mut(to) });
    bxi_deliver(pass, node, edge, to, true);
    return 0;
}

static int back_bias(const struct back *back, struct bxi_node *node, struct bxi_pass *pass, int which)
{
    const struct lstm *lstm = back->lstm;
    const size_t edge = (size_t)(EDGES_BEFORE + WEIGHTS * back->layer + which);
    const int64_t width = 4 * lstm->hidden;
    const struct bxi_walk walk = { .ndim = 2, .shape = { lstm->seq * lstm->batch, width }, .a = { 0, 1 },
                                   .b = { width, 1 } };
    struct bx_tensor *to;

    if (!bxi_needs(node, edge))
        return 0;
    to = bxi_tensor_zeros(pass->grads->job, &(struct bxi_like){ lstm->dtype, 1, { width } });
    if (to == NULL)
        return bx_error_code();
    bxi_loops(lstm->dtype)->reduce(&walk, back->dgates, 1, bx_tensor_data_mut(to));
    bxi_deliver(pass, node, edge, to, true);
    return 0;
}

/* dgates W_ih: of layer 0 it is the gradient of the input, of others dy of the layer below. */
static int back_argument(const struct back *back, struct bxi_node *node, struct bxi_pass *pass)
{
    const struct lstm *lstm = back->lstm;
    struct bx_tensor *to = NULL;

    if (back->layer == 0) {
        if (!bxi_needs(node, 0))
            return 0;
        to = bxi_tensor_make(pass->grads->job, &(struct bxi_like){ lstm->dtype, 3, { lstm->seq, lstm->batch,
                                                                                    lstm->in } });
        if (to == NULL)
            return bx_error_code();
    }
    bxi_gemm(lstm->dtype, &(struct bxi_gemm){
        .m = lstm->seq * lstm->batch, .n = width_of(lstm, back->layer), .k = 4 * lstm->hidden, .a = back->dgates,
        .b = bx_tensor_data(node->saved[1 + 2 * back->layer]), .c = to != NULL ? bx_tensor_data_mut(to) : back->dy });
    if (to != NULL)
        bxi_deliver(pass, node, 0, to, true);
    else if (lstm->dropout > 0)
        multiply(lstm, back->dy, place(lstm, lstm->work, offsets_of(lstm, back->layer - 1).mask), back->dy);
    return 0;
}

static int back_layers(struct back *back, struct bxi_node *node, struct bxi_pass *pass)
{
    int rc = 0;

    for (back->layer = back->lstm->layers - 1; rc == 0 && back->layer >= 0; back->layer--) {
        back_steps(back, node);
        for (int which = 0; rc == 0 && which < WEIGHTS; which++)
            rc = (which < 2 ? back_weight : back_bias)(back, node, pass, which);
        if (rc == 0)
            rc = back_argument(back, node, pass);
    }
    return rc;
}

static int lstm_backward(struct bxi_node *node, struct bxi_pass *pass)
{
    const struct lstm *lstm = node->extra;
    const struct bxi_like states = { lstm->dtype, 3, { lstm->layers, lstm->batch, lstm->hidden } };
    const int64_t state = lstm->batch * lstm->hidden, all = lstm->seq * state;
    unsigned char *block = malloc(bytes_of(lstm, 5 * all + 2 * state) + 1);
    struct back back = { .lstm = lstm };
    int rc = 0;

    if (block == NULL)
        return bx_fail(-ENOMEM, "no memory for the backward pass of an LSTM");
    back.dgates = block;
    back.dy = place(lstm, block, 4 * all);
    back.dh = place(lstm, back.dy, all);
    back.dc = place(lstm, back.dh, state);
    if (node->slots[0].grad != NULL)
        memcpy(back.dy, bx_tensor_data(node->slots[0].grad), bytes_of(lstm, all));
    else
        memset(back.dy, 0, bytes_of(lstm, all));
    if (bxi_needs(node, 1) && (back.h0 = bxi_tensor_make(pass->grads->job, &states)) == NULL)
        rc = bx_error_code();
    if (bxi_needs(node, 2) && (back.c0 = bxi_tensor_make(pass->grads->job, &states)) == NULL)
        rc = bx_error_code();
    if (rc == 0)
        rc = back_layers(&back, node, pass);
    free(block);
    if (rc < 0) {
        bx_tensor_release(back.h0);
        bx_tensor_release(back.c0);
        return rc;
    }
    bxi_deliver(pass, node, 1, back.h0, true);
    bxi_deliver(pass, node, 2, back.c0, true);
    return 0;
}

static void drop_work(struct bxi_node *node)
{
    free(((const struct lstm *)node->extra)->work);
}

/* ---- The call ------------------------------------------------------------------------------------ */

static const struct bxi_op lstm_op = { "lstm", lstm_backward, drop_work };

static int check_one(const char *what, struct bx_var *var, const struct bxi_like *wanted)
{
    char is[BXI_SHAPE_TEXT], text[BXI_SHAPE_TEXT];
    struct bxi_like like;

    if (var == NULL)
        return 0;
    like = bxi_var_like(var);
    if (var->dtype == wanted->dtype && bxi_same_shape(&like, wanted))
        return 0;
    return bx_fail(-EINVAL, "%s of 'lstm' is %s %s; it must be %s %s", what, bx_dtype_name(like.dtype),
                   bxi_shape_text(is, &like), bx_dtype_name(wanted->dtype), bxi_shape_text(text, wanted));
}

static int check_weights(const struct lstm *lstm, struct bx_var *const *weights)
{
    static const char *const names[] = { "w_ih", "w_hh", "b_ih", "b_hh" };
    const int64_t rows = 4 * lstm->hidden;
    int rc = 0;

    for (int i = 0; rc == 0 && i < WEIGHTS * lstm->layers; i++) {
        const int which = i % WEIGHTS;
        const struct bxi_like wanted = { lstm->dtype, which < 2 ? 2 : 1,
                                         { rows, which == 0 ? width_of(lstm, i / WEIGHTS) : lstm->hidden } };

        if (weights[i] == NULL && (which < 2 || weights[i - i % 2] != weights[i - i % 2 + 1]))
            return bx_fail(-EINVAL, "'lstm' lacks %s of layer %d", names[which], i / WEIGHTS);
        rc = check_one(names[which], weights[i], &wanted);
    }
    return rc;
}

static int measure(struct lstm *lstm, struct bx_var *input, const struct bx_lstm *given)
{
    const struct bxi_like like = bxi_var_like(input);
    char is[BXI_SHAPE_TEXT];
    struct bxi_like states;
    int rc;

    if (like.ndim != 3 || like.shape[0] < 1)
        return bx_fail(-EINVAL, "the input of 'lstm' has the shape %s; it must be seq x batch x features, with at "
                       "least one step", bxi_shape_text(is, &like));
    if (given->layers < 1 || given->layers > LAYERS_MAX || given->hidden < 1 || given->weights == NULL)
        return bx_fail(-EINVAL, "'lstm' needs 1 to %d layers of at least one unit, and their weights", LAYERS_MAX);
    if (!(given->dropout >= 0 && given->dropout <= 1))
        return bx_fail(-EINVAL, "the probability of 'lstm' is %g; it must be 0 to 1", given->dropout);
    *lstm = (struct lstm){ .dtype = input->dtype, .seq = like.shape[0], .batch = like.shape[1], .in = like.shape[2],
                           .hidden = given->hidden, .layers = given->layers,
                           .dropout = given->training && given->layers > 1 ? given->dropout : 0 };
    if (lstm->dropout > 0 && given->generator == NULL)
        return bx_fail(-EINVAL, "'lstm' needs a generator for its dropout");
    states = (struct bxi_like){ lstm->dtype, 3, { lstm->layers, lstm->batch, lstm->hidden } };
    rc = check_one("h0", given->h0, &states);
    if (rc == 0)
        rc = check_one("c0", given->c0, &states);
    return rc < 0 ? rc : check_weights(lstm, given->weights);
}

/* Fills in the values of all inputs, one reference each. */
static int open_values(struct bx_var *const *inputs, size_t count, struct bx_tensor **values)
{
    for (size_t i = 0; i < count; i++) {
        if (inputs[i] == NULL)
            continue;
        values[i] = bxi_var_dense(inputs[i]);
        if (values[i] == NULL)
            return bx_error_code();
    }
    return 0;
}

static int compute(struct bx_tape *tape, struct lstm *lstm, const struct values *values, struct bx_generator *generator,
                   struct bx_tensor *results[3])
{
    lstm->work = malloc(bytes_of(lstm, offsets_of(lstm, lstm->layers).gates) + 1);
    if (lstm->work == NULL)
        return bx_fail(-ENOMEM, "no memory for an LSTM of %d layers", lstm->layers);
    for (int layer = 0; layer < lstm->layers; layer++) {
        run_layer(lstm, layer, values);
        if (lstm->dropout > 0 && layer + 1 < lstm->layers)
            drop_some(lstm, layer, generator);
    }
    return copy_results(tape, lstm, results);
}

/* Takes lstm->work and the references of the results. */
static int record(struct bx_tape *tape, struct lstm *lstm, struct bx_var *const *inputs, const struct values *values,
                  struct bx_tensor *const results[3])
{
    struct bxi_node *node = bxi_tape_record(tape, &(struct bxi_record){
        .op = &lstm_op, .inputs = inputs, .input_count = (size_t)(EDGES_BEFORE + WEIGHTS * lstm->layers),
        .values = results, .value_count = 3, .saved_count = (size_t)(1 + 2 * lstm->layers),
        .extra = lstm, .extra_bytes = sizeof *lstm });

    if (node == NULL || node->op == NULL) {
        free(lstm->work);
        return node == NULL ? -ENOMEM : 0;
    }
    node->saved[0] = bx_tensor_acquire(values->input);
    for (int i = 0; i < 2 * lstm->layers; i++)
        node->saved[1 + i] = bx_tensor_acquire(values->weights[i / 2 * WEIGHTS + i % 2]);
    return 0;
}

/* inputs: what the edges lead to; values: room for as many. */
static int call(struct bx_tape *tape, struct lstm *lstm, const struct bx_lstm *given, struct bx_var **inputs,
                struct bx_tensor **opened)
{
    const size_t count = (size_t)(EDGES_BEFORE + WEIGHTS * lstm->layers);
    const struct values *values = (const struct values *)(void *)opened;
    struct bx_tensor *results[3] = { NULL, NULL, NULL };
    int rc;

    inputs[1] = given->h0;
    inputs[2] = given->c0;
    for (size_t i = EDGES_BEFORE; i < count; i++)
        inputs[i] = given->weights[i - EDGES_BEFORE];
    rc = open_values(inputs, count, opened);
    if (rc == 0)
        rc = compute(tape, lstm, values, given->generator, results);
    if (rc == 0) {
        rc = record(tape, lstm, inputs, values, results);
    } else {
        free(lstm->work);
        for (int i = 0; i < 3; i++)
            bx_tensor_release(results[i]);
    }
    for (size_t i = 0; i < count; i++)
        bx_tensor_release(opened[i]);
    return rc;
}

int bx_var_lstm(struct bx_tape *tape, struct bx_var *input, const struct bx_lstm *lstm, struct bx_lstm_result *result)
{
    struct bx_lstm given = { .struct_bytes = sizeof given };
    struct lstm shape = { .layers = 0 };
    void **block;
    size_t count;
    int rc;

    if (result == NULL || lstm == NULL)
        return bx_fail(-EINVAL, "bx_var_lstm needs a struct bx_lstm and a place for the results");
    *result = (struct bx_lstm_result){ NULL, NULL, NULL };
    if (bxi_tape_stops(tape, lstm_op.name, &input, 1))
        return tape == NULL ? -EINVAL : tape->error;
    rc = bxi_options_copy(&given, sizeof given, lstm, "bx_lstm");
    if (rc == 0)
        rc = measure(&shape, input, &given);
    if (rc == 0) {
        count = (size_t)(EDGES_BEFORE + WEIGHTS * shape.layers);
        block = calloc(2 * count, sizeof *block);
        if (block != NULL)
            block[0] = input;
        rc = block == NULL ? bx_fail(-ENOMEM, "no memory for an LSTM of %d layers", shape.layers) :
            call(tape, &shape, &given, (struct bx_var **)(void *)block, (struct bx_tensor **)(void *)(block + count));
        free(block);
    }
    if (rc < 0) {
        bxi_tape_fail(tape, rc);
        return rc;
    }
    /* The tape's list has the newest first. */
    result->c = tape->vars;
    result->h = result->c->tape_next;
    result->output = result->h->tape_next;
    return 0;
}
