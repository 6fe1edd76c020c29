/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/lstm.c: against finite differences, and against the same cells composed of other operations.
 */
#include "tests/autograd/gradient.h"

TestSuite(autograd_lstm, .timeout = 120);

enum result { OUTPUT, HIDDEN, CELL, ALL };

/* What is called, and which of its results the expression returns. in: input, then h0 and c0 if there are states, then
 * the weights. */
struct call {
    int layers, hidden;
    bool has_states, has_biases;
    double dropout;
    enum result result;
};

static struct bx_lstm_result run(struct bx_tape *tape, struct bx_var *const *in, const struct call *call)
{
    struct bx_var *weights[INPUTS_MAX];
    struct bx_generator generator = { .seed = 5 };
    struct bx_lstm lstm = { .layers = call->layers, .hidden = call->hidden, .weights = weights,
                            .dropout = call->dropout, .training = true, .generator = &generator };
    struct bx_lstm_result result;
    size_t next = 1;

    if (call->has_states) {
        lstm.h0 = in[next++];
        lstm.c0 = in[next++];
    }
    for (int i = 0; i < 4 * call->layers; i++)
        weights[i] = i % 4 < 2 || call->has_biases ? in[next++] : NULL;
    cr_assert_eq(bx_var_lstm(tape, in[0], &lstm, &result), 0, "%s", bx_error_text());
    return result;
}

static struct bx_var *chosen(struct bx_tape *tape, struct bx_var *const *in, void *context)
{
    const struct call *call = context;
    const struct bx_lstm_result result = run(tape, in, call);

    switch (call->result) {
    case OUTPUT: return result.output;
    case HIDDEN: return result.h;
    case CELL: return result.c;
    default: return bx_var_concat(tape, (struct bx_var *const[]){ result.output, result.h, result.c }, 3, 0);
    }
}

/* The shapes of in[]; returns how many there are. */
static size_t shapes_of(const struct call *call, const int64_t sizes[3], struct shape *shapes)
{
    const int64_t hidden = call->hidden;
    size_t count = 0;

    shapes[count++] = (struct shape){ 3, { sizes[0], sizes[1], sizes[2] } };
    for (int i = 0; i < 2 && call->has_states; i++)
        shapes[count++] = (struct shape){ 3, { call->layers, sizes[1], hidden } };
    for (int layer = 0; layer < call->layers; layer++) {
        shapes[count++] = (struct shape){ 2, { 4 * hidden, layer == 0 ? sizes[2] : hidden } };
        shapes[count++] = (struct shape){ 2, { 4 * hidden, hidden } };
        for (int i = 0; i < 2 && call->has_biases; i++)
            shapes[count++] = (struct shape){ 1, { 4 * hidden } };
    }
    return count;
}

static void check(struct call call, int64_t seq, int64_t batch, int64_t in)
{
    struct shape shapes[INPUTS_MAX];
    const size_t count = shapes_of(&call, (const int64_t[]){ seq, batch, in }, shapes);

    for (call.result = OUTPUT; call.result <= ALL; call.result++)
        check_gradients(chosen, &call, shapes, count);
}

Test(autograd_lstm, one_layer_has_its_gradients)
{
    check((struct call){ .layers = 1, .hidden = 2, .has_states = true, .has_biases = true }, 3, 2, 3);
    check((struct call){ .layers = 1, .hidden = 1, .has_biases = true }, 1, 1, 1);
    check((struct call){ .layers = 1, .hidden = 3, .has_states = true }, 2, 1, 2);
}

Test(autograd_lstm, several_layers_have_their_gradients)
{
    check((struct call){ .layers = 3, .hidden = 2, .has_states = true, .has_biases = true }, 2, 2, 1);
    check((struct call){ .layers = 2, .hidden = 3 }, 3, 1, 2);
}

Test(autograd_lstm, dropout_between_layers_has_its_gradients)
{
    check((struct call){ .layers = 3, .hidden = 4, .has_biases = true, .dropout = 0.5 }, 2, 2, 2);
    check((struct call){ .layers = 2, .hidden = 2, .dropout = 1 }, 2, 2, 2);
}

Test(autograd_lstm, an_empty_batch_has_empty_gradients)
{
    check((struct call){ .layers = 2, .hidden = 2, .has_states = true, .has_biases = true }, 2, 0, 3);
}

/* ---- Against cells of other operations ------------------------------------------------------------- */

static struct bx_var *gate(struct bx_tape *tape, struct bx_var *gates, int index, int64_t hidden)
{
    return bx_var_slice(tape, gates, 1, index * hidden, (index + 1) * hidden);
}

/* One step of a layer: torch's formulas. w: its four weights. */
static void cell(struct bx_tape *tape, struct bx_var *x, struct bx_var *const *w, struct bx_var **h, struct bx_var **c)
{
    const int64_t hidden = bx_tensor_dim(bx_var_value(*h), 1);
    struct bx_var *gates = bx_var_add(tape, bx_var_linear(tape, x, w[0], w[2]), bx_var_linear(tape, *h, w[1], w[3]));
    struct bx_var *in = bx_var_sigmoid(tape, gate(tape, gates, 0, hidden));
    struct bx_var *forget = bx_var_sigmoid(tape, gate(tape, gates, 1, hidden));
    struct bx_var *g = bx_var_tanh(tape, gate(tape, gates, 2, hidden));
    struct bx_var *out = bx_var_sigmoid(tape, gate(tape, gates, 3, hidden));

    *c = bx_var_add(tape, bx_var_mul(tape, forget, *c), bx_var_mul(tape, in, g));
    *h = bx_var_mul(tape, out, bx_var_tanh(tape, *c));
}

/* A row of a cube as a matrix. */
static struct bx_var *row(struct bx_tape *tape, struct bx_var *cube, int64_t index)
{
    const int64_t *shape = bx_tensor_shape(bx_var_value(cube));

    return bx_var_reshape(tape, bx_var_slice(tape, cube, 0, index, index + 1), 2, shape + 1);
}

#define SEQ 4

static struct bx_var *composed(struct bx_tape *tape, struct bx_var *const *in, int layers)
{
    struct bx_var *x[SEQ], *ends[2 * INPUTS_MAX];

    for (int t = 0; t < SEQ; t++)
        x[t] = row(tape, in[0], t);
    for (int layer = 0; layer < layers; layer++) {
        struct bx_var *h = row(tape, in[1], layer), *c = row(tape, in[2], layer);

        for (int t = 0; t < SEQ; t++) {
            cell(tape, x[t], in + 3 + 4 * layer, &h, &c);
            x[t] = h;
        }
        ends[layer] = h;
        ends[layers + layer] = c;
    }
    return bx_var_concat(tape, (struct bx_var *const[]){ bx_var_stack(tape, x, SEQ, 0),
                                                         bx_var_stack(tape, ends, 2 * (size_t)layers, 0) }, 2, 0);
}

Test(autograd_lstm, one_node_computes_what_cells_of_other_operations_compute)
{
    struct call call = { .layers = 2, .hidden = 3, .has_states = true, .has_biases = true, .result = ALL };
    OWN(tape) *tape = new_tape();
    struct bx_grads *grads[2] = { new_grads(), new_grads() };
    struct shape shapes[INPUTS_MAX];
    const size_t count = shapes_of(&call, (const int64_t[]){ SEQ, 2, 5 }, shapes);
    struct bx_var *in[INPUTS_MAX], *out[2];
    struct bx_tensor *weight = noise(BX_F64, &(struct shape){ 3, { SEQ + 4, 2, 3 } }, 77, 1, 0);

    for (size_t i = 0; i < count; i++)
        in[i] = parameter(noise(BX_F64, &shapes[i], i, 1, 0));
    out[0] = chosen(tape, in, &call);
    out[1] = composed(tape, in, 2);
    check_close(bx_var_value(out[0]), bx_var_value(out[1]), 1e-13, "value");
    for (int i = 0; i < 2; i++)
        cr_assert_eq(bx_backward(&out[i], &weight, 1, false, grads[i]), 0, "%s", bx_error_text());
    for (size_t i = 0; i < count; i++) {
        check_close(bx_grads_get(grads[0], in[i]), bx_grads_get(grads[1], in[i]), 1e-13, "gradient");
        bx_var_release(in[i]);
    }
    bx_tensor_release(weight);
    bx_grads_destroy(grads[0]);
    bx_grads_destroy(grads[1]);
}

Test(autograd_lstm, dropout_leaves_the_last_layer_alone_and_needs_training)
{
    OWN(tape) *tape = new_tape();
    struct bx_var *in[INPUTS_MAX];
    struct shape shapes[INPUTS_MAX];
    struct call plain = { .layers = 2, .hidden = 8, .has_biases = true }, dropped = plain;
    const size_t count = shapes_of(&plain, (const int64_t[]){ 2, 3, 4 }, shapes);
    struct bx_lstm_result a, b;

    dropped.dropout = 0.5;
    for (size_t i = 0; i < count; i++)
        in[i] = parameter(noise(BX_F64, &shapes[i], i, 1, 0));
    a = run(tape, in, &plain);
    b = run(tape, in, &dropped);
    for (int64_t i = 0; i < 2 * 3 * 8; i++)
        cr_expect_neq(element(bx_var_value(b.output), i), 0);
    for (int64_t i = 0; i < 3 * 8; i++)
        cr_expect_eq(element(bx_var_value(a.h), i), element(bx_var_value(b.h), i), "layer 0 has no dropout before it");
    cr_expect_neq(element(bx_var_value(a.h), 3 * 8), element(bx_var_value(b.h), 3 * 8));

    struct bx_lstm lstm = { .layers = 2, .hidden = 8, .weights = in + 1, .dropout = 0.5 };

    cr_assert_eq(bx_var_lstm(tape, in[0], &lstm, &b), 0);
    cr_expect_eq(element(bx_var_value(a.h), 3 * 8), element(bx_var_value(b.h), 3 * 8));
    for (size_t i = 0; i < count; i++)
        bx_var_release(in[i]);
}

Test(autograd_lstm, says_what_does_not_fit)
{
    OWN(tape) *tape = new_tape();
    struct bx_var *in[INPUTS_MAX];
    struct shape shapes[INPUTS_MAX];
    struct call call = { .layers = 1, .hidden = 2, .has_biases = true };
    const size_t count = shapes_of(&call, (const int64_t[]){ 2, 3, 4 }, shapes);
    struct bx_lstm_result result;
    struct bx_lstm lstm = { .layers = 1, .hidden = 2, .weights = in + 1 }, wrong = lstm;
    struct bx_var *weights[] = { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL };

#define REFUSES(sentence)                                                                           \
    FAILS(bx_var_lstm(tape, in[0], &wrong, &result), -EINVAL, sentence);                            \
    cr_expect_null(result.output);                                                                  \
    cr_expect_eq(bx_tape_error(tape), -EINVAL);                                                     \
    bx_tape_clear(tape);                                                                            \
    wrong = lstm

    for (size_t i = 0; i < count; i++)
        in[i] = parameter(noise(BX_F32, &shapes[i], i, 1, 0));
    wrong.hidden = 3;
    REFUSES("w_ih of 'lstm' is f32 (8, 4); it must be f32 (12, 4)");
    wrong.layers = 0;
    REFUSES("'lstm' needs 1 to 1024 layers of at least one unit, and their weights");
    wrong.dropout = 1.5;
    REFUSES("the probability of 'lstm' is 1.5; it must be 0 to 1");
    wrong.h0 = in[1];
    REFUSES("h0 of 'lstm' is f32 (8, 4); it must be f32 (1, 3, 2)");
    wrong.c0 = in[1];
    REFUSES("c0 of 'lstm' is f32 (8, 4); it must be f32 (1, 3, 2)");
    wrong.weights = weights;
    REFUSES("'lstm' lacks w_ih of layer 0");
    for (int i = 0; i < 3; i++)
        weights[i] = in[1 + i];
    wrong.weights = weights;
    REFUSES("'lstm' lacks b_hh of layer 0");
    for (int i = 0; i < 8; i++)
        weights[i] = i == 4 ? in[2] : in[1 + i % 4];
    wrong = (struct bx_lstm){ .layers = 2, .hidden = 2, .weights = weights, .dropout = 0.5, .training = true };
    REFUSES("'lstm' needs a generator for its dropout");
    FAILS(bx_var_lstm(tape, in[1], &lstm, &result), -EINVAL, "the input of 'lstm' has the shape (8, 4); it must be seq "
          "x batch x features, with at least one step");
    bx_tape_clear(tape);
    FAILS(bx_var_lstm(tape, in[0], NULL, &result), -EINVAL,
          "bx_var_lstm needs a struct bx_lstm and a place for the results");
    for (size_t i = 0; i < count; i++)
        bx_var_release(in[i]);
}
