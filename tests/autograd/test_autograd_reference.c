/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd against reference numbers of torch in double precision (suite `reference`, as tests/demos/
 * test_reference.c, which says where the files are): the policy of CartPole, and the network of embedding, LSTM and
 * linear layer. Both are computed in f32: losses to 1e-5, tensors to 1e-4 of their norm plus 2e-8. In f64 they agree to
 * 1e-9, which tells an error of a formula from one of rounding.
 */
#include "tests/autograd/gradient.h"
#include "tests/harness/json.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PARAMS_MAX = 19, TIMEOUT_S = 60 };

/* A network's parameters, and where they are computed. */
struct model {
    struct json *file;
    enum bx_dtype dtype;
    uint64_t salt;
    struct bx_tape *tape;
    struct bx_grads *grads;
    struct bx_var *params[PARAMS_MAX];
    size_t count;
};

static const enum bx_dtype DTYPES[] = { BX_F32, BX_F64 };

static struct bx_tensor *fill(const struct model *model, uint64_t k, const struct shape *shape, double scale)
{
    return noise(model->dtype, shape, k + model->salt, scale, 0);
}

static struct model begin(const char *name, enum bx_dtype dtype)
{
    struct model model = { .file = json_load_reference(name), .dtype = dtype, .tape = new_tape(),
                           .grads = new_grads() };

    cr_assert_not_null(model.file);
    if (json_get(model.file, "salt") != NULL)
        model.salt = (uint64_t)json_number(json_get(model.file, "salt"));
    return model;
}

static void end(struct model *model)
{
    for (size_t i = 0; i < model->count; i++)
        bx_var_release(model->params[i]);
    bx_tape_destroy(model->tape);
    bx_grads_destroy(model->grads);
    json_free(model->file);
}

static void add_param(struct model *model, const struct shape *shape, double scale)
{
    model->params[model->count] = parameter(fill(model, model->count, shape, scale));
    model->count++;
}

static void check_number(const struct model *model, double got, const struct json *want, double norm, const char *what)
{
    const double tolerance = model->dtype == BX_F64 ? 1e-9 * norm + 1e-15 : 1e-4 * norm + 2e-8;

    cr_assert(fabs(got - json_number(want)) <= tolerance, "%s: %.12g instead of %.12g", what, got, json_number(want));
}

/* Compares norm, first four elements, last one, and the dot product with fill(1000 + k) if the reference has it. */
static void check_tensor(const struct model *model, const struct bx_tensor *tensor, size_t k, const struct json *want,
                         const char *what)
{
    const double norm = json_number(json_get(want, "norm"));
    double square = 0, dot = 0, scale = norm;

    cr_assert_not_null(tensor, "%s", what);
    cr_assert_not_null(want, "%s", what);
    const int64_t count = bx_tensor_elements(tensor);
    for (int64_t i = 0; i < count; i++) {
        square += pow(element(tensor, i), 2);
        dot += element(tensor, i) * fill_at(1000 + k + model->salt, (uint64_t)i, 1);
    }
    check_number(model, sqrt(square), json_get(want, "norm"), norm, what);
    for (size_t i = 0; i < 4 && i < (size_t)count; i++)
        check_number(model, element(tensor, (int64_t)i), json_at(json_get(want, "first"), i), norm, what);
    check_number(model, element(tensor, count - 1), json_get(want, "last"), norm, what);
    if (json_get(want, "dot") == NULL)
        return;
    scale *= sqrt((double)count);       /* the length of the other factor, at most */
    check_number(model, dot, json_get(want, "dot"), scale, what);
}

static void check_params(const struct model *model, const struct json *wants, bool grads)
{
    cr_assert_not_null(wants);
    cr_assert_eq(wants->count, model->count);
    for (size_t k = 0; k < model->count; k++) {
        const struct json *want = json_at(wants, k);
        char what[96];

        snprintf(what, sizeof what, "%s of parameter %zu, %s", grads ? "the gradient" : "the value", k,
                 json_text(json_get(want, "name")));
        check_tensor(model, grads ? bx_grads_get(model->grads, model->params[k]) : bx_var_value(model->params[k]), k,
                     want, what);
    }
}

static void check_loss(const struct model *model, const struct bx_var *loss, const struct json *want)
{
    const double tolerance = model->dtype == BX_F64 ? 1e-12 : 1e-5;

    cr_assert_not_null(loss, "%s", bx_error_text());
    cr_assert(fabs(bx_var_item(loss) - json_number(want)) <= tolerance * fabs(json_number(want)),
              "loss: %.12g instead of %.12g", bx_var_item(loss), json_number(want));
}

/* ---- The policy ---------------------------------------------------------------------------------- */

/* loss = -sum(weight * log prob(action)). */
static struct bx_var *policy_loss(struct model *model, struct bx_var *probs, struct bx_tensor *actions)
{
    const struct json *list = json_get(model->file, "weight");
    struct bx_tensor *weight;
    struct bx_var *chosen, *loss;
    double values[3];

    for (size_t i = 0; i < 3; i++)
        values[i] = json_number(json_at(list, i));
    weight = values_of(model->dtype, &(struct shape){ 2, { 3, 1 } }, values);
    chosen = bx_var_log(model->tape, bx_var_gather(model->tape, probs, actions));
    loss = bx_var_neg(model->tape, bx_var_sum(model->tape, bx_var_mul(model->tape, chosen,
                                                                      bx_tape_input(model->tape, weight))));
    bx_tensor_release(weight);
    return loss;
}

static void check_policy(enum bx_dtype dtype)
{
    static const struct shape shapes[] = { { 2, { 128, 4 } }, { 1, { 128 } }, { 2, { 2, 128 } }, { 1, { 2 } } };
    struct model model = begin("policy.json", dtype);
    struct bx_tensor *states = fill(&model, 9, &(struct shape){ 2, { 3, 4 } }, 0.8), *actions;
    struct bx_optim *adam = NULL;
    struct bx_var *h, *probs, *loss;
    int64_t picks[3];

    for (size_t i = 0; i < 4; i++)
        add_param(&model, &shapes[i], 0.3);
    for (size_t i = 0; i < 3; i++)
        picks[i] = (int64_t)json_number(json_at(json_get(model.file, "actions"), i));
    actions = indices(&(struct shape){ 2, { 3, 1 } }, picks);
    h = bx_var_relu(model.tape, bx_var_linear(model.tape, bx_tape_input(model.tape, states), model.params[0],
                                              model.params[1]));
    probs = bx_var_softmax(model.tape, bx_var_linear(model.tape, h, model.params[2], model.params[3]));
    loss = policy_loss(&model, probs, actions);
    check_loss(&model, loss, json_get(model.file, "loss"));
    for (int i = 0; i < 6; i++)
        check_number(&model, element(bx_var_value(probs), i),
                     json_at(json_at(json_get(model.file, "probs"), (size_t)i / 2), (size_t)i % 2), 1, "probability");
    cr_assert_eq(bx_backward(&loss, NULL, 1, false, model.grads), 0, "%s", bx_error_text());
    check_params(&model, json_get(model.file, "grads"), true);
    cr_assert_eq(bx_optim_adam_create(&(struct bx_optim_adam){ .lr = 1e-2 }, model.params, 4, &adam), 0);
    cr_assert_eq(bx_optim_step(adam, NULL, model.grads), 0, "%s", bx_error_text());
    check_params(&model, json_get(model.file, "after_adam"), false);
    bx_optim_destroy(adam);
    bx_tensor_release(states);
    bx_tensor_release(actions);
    end(&model);
}

Test(reference, autograd_computes_the_policy, .timeout = TIMEOUT_S)
{
    for (int i = 0; i < 2; i++)
        check_policy(DTYPES[i]);
}

/* ---- The network of embedding, LSTM and linear layer ----------------------------------------------- */

enum { BATCH = 5, TOKENS = 10, INPUTS = 2, HIDDEN = 3, STEPS = 3, LAYERS = 4 };

static void add_rnn_params(struct model *model)
{
    add_param(model, &(struct shape){ 2, { TOKENS, INPUTS } }, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        add_param(model, &(struct shape){ 2, { 4 * HIDDEN, layer == 0 ? INPUTS : HIDDEN } }, 1);
        add_param(model, &(struct shape){ 2, { 4 * HIDDEN, HIDDEN } }, 1);
        add_param(model, &(struct shape){ 1, { 4 * HIDDEN } }, 1);
        add_param(model, &(struct shape){ 1, { 4 * HIDDEN } }, 1);
    }
    add_param(model, &(struct shape){ 2, { TOKENS, HIDDEN } }, 1);
    add_param(model, &(struct shape){ 1, { TOKENS } }, 1);
}

static struct bx_tensor *counted(const struct shape *shape, int64_t factor, int64_t shift, int64_t modulus)
{
    struct bx_tensor *tensor = indices(shape, (const int64_t[BATCH * TOKENS]){ 0 });

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        ((int64_t *)bx_tensor_data_mut(tensor))[i] = (i * factor + shift) % modulus;
    return tensor;
}

/* One pass of the network: the logits, 5 x 3 x 10; h and c are read, and set to the new state. */
static struct bx_var *rnn_logits(struct model *model, struct bx_tensor *data, struct bx_tensor **h,
                                 struct bx_tensor **c)
{
    struct bx_lstm lstm = { .layers = LAYERS, .hidden = HIDDEN, .weights = model->params + 1,
                            .h0 = bx_tape_input(model->tape, *h), .c0 = bx_tape_input(model->tape, *c) };
    struct bx_lstm_result result;
    struct bx_var *input = bx_var_embedding(model->tape, model->params[0], data);

    cr_assert_eq(bx_var_lstm(model->tape, input, &lstm, &result), 0, "%s", bx_error_text());
    bx_tensor_release(*h);
    bx_tensor_release(*c);
    *h = bx_var_acquire_value(result.h);
    *c = bx_var_acquire_value(result.c);
    return bx_var_linear(model->tape, result.output, model->params[17], model->params[18]);
}

static struct bx_var *rnn_loss(struct model *model, struct bx_var *logits, const char *kind)
{
    const bool tutorial = strcmp(kind, "tutorial") == 0;
    const struct shape classes = { tutorial ? 2 : 1, { tutorial ? BATCH : BATCH * STEPS, TOKENS } };
    struct bx_tensor *targets = tutorial ? counted(&classes, 5, 0, STEPS) : counted(&classes, 3, 1, TOKENS);
    struct bx_var *rows = tutorial ? logits : bx_var_reshape(model->tape, logits, 2, (const int64_t[]){ -1, TOKENS });
    struct bx_var *loss = bx_var_cross_entropy(model->tape, rows, targets);

    bx_tensor_release(targets);
    return loss;
}

static void check_rnn(const char *kind, enum bx_dtype dtype)
{
    static const struct shape states = { 3, { LAYERS, STEPS, HIDDEN } };
    struct model model = begin("rnn.json", dtype);
    const struct json *want = json_get(model.file, kind);
    struct bx_tensor *h = fill(&model, 100, &states, 0.5), *c = fill(&model, 101, &states, 0.5);
    struct bx_tensor *data = counted(&(struct shape){ 2, { BATCH, STEPS } }, 3, 0, TOKENS);
    struct bx_optim *sgd = NULL;

    cr_assert_not_null(want);
    add_rnn_params(&model);
    cr_assert_eq(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 0.05 }, model.params, model.count, &sgd), 0);
    cr_assert_eq(json_get(want, "losses")->count, 2);
    for (size_t step = 0; step < 2; step++) {
        struct bx_var *logits = rnn_logits(&model, data, &h, &c), *loss = rnn_loss(&model, logits, kind);

        check_loss(&model, loss, json_at(json_get(want, "losses"), step));
        cr_assert_eq(bx_backward(&loss, NULL, 1, false, model.grads), 0, "%s", bx_error_text());
        if (step == 0) {
            check_tensor(&model, bx_var_value(logits), 0, json_get(want, "output"), "output");
            check_params(&model, json_get(want, "grads"), true);
        }
        cr_assert_eq(bx_optim_step(sgd, NULL, model.grads), 0, "%s", bx_error_text());
        bx_grads_clear(model.grads);
        bx_tape_clear(model.tape);
    }
    check_params(&model, json_get(want, "after_steps"), false);
    bx_optim_destroy(sgd);
    bx_tensor_release(h);
    bx_tensor_release(c);
    bx_tensor_release(data);
    end(&model);
}

Test(reference, autograd_computes_the_rnn_with_the_tutorials_loss, .timeout = TIMEOUT_S)
{
    for (int i = 0; i < 2; i++)
        check_rnn("tutorial", DTYPES[i]);
}

Test(reference, autograd_computes_the_rnn_with_a_loss_for_each_token, .timeout = TIMEOUT_S)
{
    for (int i = 0; i < 2; i++)
        check_rnn("token", DTYPES[i]);
}
