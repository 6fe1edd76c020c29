/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/lstm.c: against finite differences. Its values: tests/demos/test_rnn.c, against numbers that torch made.
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
