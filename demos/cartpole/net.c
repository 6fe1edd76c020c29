/* SPDX-License-Identifier: MIT */
/*
 * The network on a tape. Run by the agent between two episodes.
 *
 * Decisions do not record anything. A row keeps its state, its key, 128 bits of dropout and its action, 56 bytes. The
 * loss of all rows is recorded in eight operations after the episode. Recording each decision when it is made gives the
 * same gradient (tests/demos/test_cartpole_net.c), but makes the tape's nodes and tensors for each step instead of for
 * each episode: 20 us a step were measured beside 1.4 us.
 */
#include "net.h"

#include <errno.h>
#include <string.h>

/* A parameter's place in policy_params, and its shape. */
static const struct place {
    size_t offset;
    int ndim;
    int64_t shape[2];
} PLACES[CP_PARAMS] = {
    [CP_W1] = { POLICY_W1, 2, { POLICY_INPUTS, POLICY_UNITS } },
    [CP_B1] = { POLICY_B1, 1, { POLICY_UNITS } },
    [CP_W2] = { POLICY_W2, 2, { POLICY_ACTIONS, POLICY_UNITS } },
    [CP_B2] = { POLICY_B2, 1, { POLICY_ACTIONS } },
};

/* ---- Parameters -------------------------------------------------------------------------------------- */

static struct bx_tensor *param_of(const struct policy *policy, const struct place *place)
{
    struct bx_tensor *tensor = NULL;

    if (bx_tensor_create(NULL, BX_F32, place->ndim, place->shape, &tensor) == 0)
        memcpy(bx_tensor_data_mut(tensor), policy->params.v + place->offset, bx_tensor_bytes(tensor));
    return tensor;
}

static int make_params(struct cp_net *net)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < CP_PARAMS; i++) {
        struct bx_tensor *value = param_of(&net->policy, &PLACES[i]);

        rc = value != NULL ? bx_var_create(value, true, &net->params[i]) : -ENOMEM;
        bx_tensor_release(value);
    }
    return rc;
}

static void give_policy(struct cp_net *net)
{
    for (int i = 0; i < CP_PARAMS; i++) {
        const struct bx_tensor *value = bx_var_value(net->params[i]);

        memcpy(net->policy.params.v + PLACES[i].offset, bx_tensor_data(value), bx_tensor_bytes(value));
    }
}

int cp_net_init(struct cp_net *net, uint64_t seed)
{
    struct bx_optim_adam options = { .lr = POLICY_LEARNING_RATE };

    memset(net, 0, sizeof(*net));
    policy_init(&net->policy, seed);
    int rc = make_params(net);
    if (rc == 0)
        rc = bx_tape_create(NULL, &net->tape);
    if (rc == 0)
        rc = bx_grads_create(NULL, &net->grads);
    if (rc == 0)
        rc = bx_optim_adam_create(&options, net->params, CP_PARAMS, &net->adam);
    if (rc < 0)
        cp_net_fini(net);
    return rc;
}

void cp_net_fini(struct cp_net *net)
{
    bx_optim_destroy(net->adam);
    bx_grads_destroy(net->grads);
    bx_tape_destroy(net->tape);
    for (int i = 0; i < CP_PARAMS; i++)
        bx_var_release(net->params[i]);
    memset(net, 0, sizeof(*net));
}

/* ---- The loss ---------------------------------------------------------------------------------------- */

/* What the rows give to the loss, a tensor each. */
struct inputs {
    struct bx_tensor *states;       /* (rows, 4) */
    struct bx_tensor *masks;        /* (rows, 128): dropout.scale of a unit that was kept, else 0 */
    struct bx_tensor *actions;      /* (rows, 1) */
    struct bx_tensor *weights;      /* (rows, 1): negative, because the loss is */
};

static void release_inputs(struct inputs *inputs)
{
    bx_tensor_release(inputs->states);
    bx_tensor_release(inputs->masks);
    bx_tensor_release(inputs->actions);
    bx_tensor_release(inputs->weights);
}

static int create_inputs(size_t rows, struct inputs *inputs)
{
    const int64_t count = (int64_t)rows;
    const int64_t one[] = { count, 1 };
    int rc = bx_tensor_create(NULL, BX_F32, 2, (int64_t[]){ count, POLICY_INPUTS }, &inputs->states);

    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 2, (int64_t[]){ count, POLICY_UNITS }, &inputs->masks);
    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_I64, 2, one, &inputs->actions);
    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 2, one, &inputs->weights);
    return rc;
}

/* The masks of four units, by their four bits. */
struct four_units {
    float mask[16][4];
};

static void fill_four_units(float keep_scale, struct four_units *four)
{
    for (size_t bits = 0; bits < 16; bits++)
        for (size_t unit = 0; unit < 4; unit++)
            four->mask[bits][unit] = (bits >> unit & 1) != 0 ? keep_scale : 0.0f;
}

static void fill_mask(const uint64_t keep[POLICY_UNITS / 64], const struct four_units *four, float *mask)
{
    for (size_t unit = 0; unit < POLICY_UNITS; unit += 4)
        memcpy(mask + unit, four->mask[keep[unit / 64] >> unit % 64 & 15], sizeof(four->mask[0]));
}

static void fill_inputs(const struct cp_rows *rows, float keep_scale, struct inputs *inputs)
{
    float *state = bx_tensor_data_mut(inputs->states), *mask = bx_tensor_data_mut(inputs->masks);
    float *weight = bx_tensor_data_mut(inputs->weights);
    int64_t *action = bx_tensor_data_mut(inputs->actions);
    struct four_units four;

    fill_four_units(keep_scale, &four);
    for (size_t i = 0; i < rows->count; i++) {
        memcpy(state + POLICY_INPUTS * i, rows->rows[i].state, sizeof(rows->rows[i].state));
        fill_mask(rows->rows[i].keep, &four, mask + POLICY_UNITS * i);
        action[i] = rows->rows[i].action;
        weight[i] = -rows->weights[i];
    }
}

struct bx_var *cp_net_loss(struct cp_net *net, const struct cp_rows *rows)
{
    struct inputs inputs = { NULL, NULL, NULL, NULL };
    struct bx_tape *tape = net->tape;
    struct bx_var *loss = NULL;

    if (create_inputs(rows->count, &inputs) == 0) {
        fill_inputs(rows, net->policy.dropout.scale, &inputs);
        struct bx_var *hidden = bx_var_add(tape, bx_var_matmul(tape, bx_tape_input(tape, inputs.states),
                                                               net->params[CP_W1]), net->params[CP_B1]);
        hidden = bx_var_relu(tape, bx_var_mul(tape, hidden, bx_tape_input(tape, inputs.masks)));
        struct bx_var *scores = bx_var_linear(tape, hidden, net->params[CP_W2], net->params[CP_B2]);
        struct bx_var *log_probs = bx_var_gather(tape, bx_var_log_softmax(tape, scores), inputs.actions);
        loss = bx_var_sum(tape, bx_var_mul(tape, log_probs, bx_tape_input(tape, inputs.weights)));
    }
    release_inputs(&inputs);
    return loss;
}

int cp_net_backward(struct cp_net *net, const struct cp_rows *rows)
{
    struct bx_var *loss = cp_net_loss(net, rows);
    int rc = bx_backward(&loss, NULL, 1, false, net->grads);

    bx_tape_clear(net->tape);
    return rc;
}

int cp_net_step(struct cp_net *net)
{
    int rc = bx_optim_step(net->adam, NULL, net->grads);

    bx_grads_clear(net->grads);
    if (rc == 0)
        give_policy(net);
    return rc;
}
