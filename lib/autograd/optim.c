/* SPDX-License-Identifier: MIT */
/*
 * Optimizers. Any thread; steps of one optimizer are serialised by its mutex.
 *
 * A step writes a new tensor and puts it into the parameter. Memory that a graph saved, that another worker has on
 * loan, or that another thread is multiplying with right now, does not change. The allocator gives a step the memory
 * that the step before it released.
 */
#include "autograd.h"

#include "base/options.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

/* A parameter and its state: of SGD the velocity, of Adam both moments. NULL before its first step, or not needed. */
struct state {
    struct bx_var *param;
    void *first, *second;
    uint64_t steps;
};

struct bx_optim {
    pthread_mutex_t lock;       /* states, and the order of steps */
    bool is_adam;
    struct bx_optim_sgd sgd;
    struct bx_optim_adam adam;
    struct state *states;
    size_t count;
};

/* ---- Creation ------------------------------------------------------------------------------------ */

static int check_params(struct bx_var *const *params, size_t count)
{
    if (params == NULL && count > 0)
        return bx_fail(-EINVAL, "an optimizer needs its parameters");
    for (size_t i = 0; i < count; i++) {
        if (params[i] == NULL || !params[i]->requires_grad || !bxi_is_leaf(params[i]))
            return bx_fail(-EINVAL, "parameter %zu of the optimizer is not a leaf that requires a gradient", i);
        for (size_t j = 0; j < i; j++)
            if (params[j] == params[i])
                return bx_fail(-EINVAL, "parameters %zu and %zu of the optimizer are one", j, i);
    }
    return 0;
}

static bool is_rate(double value)
{
    return isfinite(value) && value >= 0;
}

static int create(struct bx_var *const *params, size_t count, struct bx_optim **optim)
{
    struct bx_optim *made;
    int rc = optim == NULL ? bx_fail(-EINVAL, "there is no place to put the optimizer") : check_params(params, count);

    if (rc < 0)
        return rc;
    made = calloc(1, sizeof *made);
    if (made == NULL || (made->states = calloc(count + 1, sizeof *made->states)) == NULL) {
        free(made);
        return bx_fail(-ENOMEM, "no memory for an optimizer of %zu parameters", count);
    }
    pthread_mutex_init(&made->lock, NULL);
    made->count = count;
    for (size_t i = 0; i < count; i++)
        made->states[i].param = bx_var_acquire(params[i]);
    *optim = made;
    return 0;
}

int bx_optim_sgd_create(const struct bx_optim_sgd *options, struct bx_var *const *params, size_t count,
                        struct bx_optim **optim)
{
    struct bx_optim_sgd chosen = { .struct_bytes = sizeof chosen };
    int rc = bxi_options_copy(&chosen, sizeof chosen, options, "bx_optim_sgd");

    if (rc == 0 && (options == NULL || !is_rate(chosen.lr) || !is_rate(chosen.momentum) ||
                    !is_rate(chosen.weight_decay)))
        rc = bx_fail(-EINVAL, "SGD needs a rate, a momentum and a weight decay of at least 0: %g, %g, %g", chosen.lr,
                     chosen.momentum, chosen.weight_decay);
    if (rc == 0)
        rc = create(params, count, optim);
    if (rc == 0)
        (*optim)->sgd = chosen;
    return rc;
}

int bx_optim_adam_create(const struct bx_optim_adam *options, struct bx_var *const *params, size_t count,
                         struct bx_optim **optim)
{
    struct bx_optim_adam chosen = { .struct_bytes = sizeof chosen };
    int rc = bxi_options_copy(&chosen, sizeof chosen, options, "bx_optim_adam");

    chosen.lr = chosen.lr != 0 ? chosen.lr : 1e-3;
    chosen.beta1 = chosen.beta1 != 0 ? chosen.beta1 : 0.9;
    chosen.beta2 = chosen.beta2 != 0 ? chosen.beta2 : 0.999;
    chosen.eps = chosen.eps != 0 ? chosen.eps : 1e-8;
    if (rc == 0 && (!is_rate(chosen.lr) || !is_rate(chosen.eps) || !is_rate(chosen.weight_decay) ||
                    !is_rate(chosen.beta1) || !is_rate(chosen.beta2) || chosen.beta1 >= 1 || chosen.beta2 >= 1))
        rc = bx_fail(-EINVAL, "Adam needs a rate, eps and a weight decay of at least 0, and betas of 0 to less than 1: "
                     "%g, %g, %g, %g, %g", chosen.lr, chosen.eps, chosen.weight_decay, chosen.beta1, chosen.beta2);
    if (rc == 0)
        rc = create(params, count, optim);
    if (rc < 0)
        return rc;
    (*optim)->adam = chosen;
    (*optim)->is_adam = true;
    return 0;
}

void bx_optim_destroy(struct bx_optim *optim)
{
    if (optim == NULL)
        return;
    for (size_t i = 0; i < optim->count; i++) {
        bx_var_release(optim->states[i].param);
        free(optim->states[i].first);
        free(optim->states[i].second);
    }
    pthread_mutex_destroy(&optim->lock);
    free(optim->states);
    free(optim);
}

/* ---- Steps --------------------------------------------------------------------------------------- */

static int make_state(const struct bx_optim *optim, struct state *state, size_t bytes)
{
    const bool wants_first = optim->is_adam || optim->sgd.momentum != 0;

    if (wants_first && state->first == NULL)
        state->first = calloc(1, bytes + 1);
    if (optim->is_adam && state->second == NULL)
        state->second = calloc(1, bytes + 1);
    if ((wants_first && state->first == NULL) || (optim->is_adam && state->second == NULL))
        return bx_fail(-ENOMEM, "no memory for an optimizer's state of %zu bytes", bytes);
    return 0;
}

static void compute(const struct bx_optim *optim, struct state *state, const struct bx_tensor *from,
                    const struct bx_tensor *grad, struct bx_tensor *to)
{
    const struct bxi_loops *loops = bxi_loops(bx_tensor_dtype(from));
    const struct bx_optim_adam *adam = &optim->adam;

    state->steps++;
    if (optim->is_adam)
        loops->adam(bx_tensor_elements(from), &(struct bxi_adam){
            .lr = adam->lr, .beta1 = adam->beta1, .beta2 = adam->beta2, .eps = adam->eps,
            .weight_decay = adam->weight_decay, .correction1 = 1 - pow(adam->beta1, (double)state->steps),
            .correction2 = 1 - pow(adam->beta2, (double)state->steps), .from = bx_tensor_data(from),
            .grad = bx_tensor_data(grad), .to = bx_tensor_data_mut(to), .m = state->first, .v = state->second });
    else
        loops->sgd(bx_tensor_elements(from), &(struct bxi_sgd){
            .lr = optim->sgd.lr, .momentum = optim->sgd.momentum, .weight_decay = optim->sgd.weight_decay,
            .from = bx_tensor_data(from), .grad = bx_tensor_data(grad), .to = bx_tensor_data_mut(to),
            .velocity = state->first });
}

static int step_one(const struct bx_optim *optim, struct bx_job *job, struct state *state, struct bx_tensor *grad)
{
    struct bx_tensor *from = bxi_var_dense(state->param), *to;
    struct bxi_like like = bxi_like(from);
    int rc = from == NULL ? bx_error_code() : make_state(optim, state, bx_tensor_bytes(from));

    if (rc == 0) {
        rc = bx_tensor_create(job, like.dtype, like.ndim, like.shape, &to);
        if (rc == 0) {
            compute(optim, state, from, grad, to);
            rc = bx_var_set_value(state->param, to);
            bx_tensor_release(to);
        }
    }
    bx_tensor_release(from);
    return rc;
}

int64_t bxi_optim_elements(const struct bx_optim *optim)
{
    int64_t elements = 0;

    for (size_t i = 0; i < optim->count; i++) {
        const struct bxi_like like = bxi_var_like(optim->states[i].param);

        elements += bxi_elements(&like);
    }
    return elements;
}

int bx_optim_step(struct bx_optim *optim, struct bx_job *job, const struct bx_grads *grads)
{
    int rc = 0;

    if (optim == NULL || grads == NULL)
        return bx_fail(-EINVAL, "bx_optim_step needs an optimizer and a gradient table");
    pthread_mutex_lock(&optim->lock);
    for (size_t i = 0; rc == 0 && i < optim->count; i++) {
        struct bx_tensor *grad = bx_grads_get(grads, optim->states[i].param);

        if (grad != NULL)
            rc = step_one(optim, job, &optim->states[i], grad);
    }
    pthread_mutex_unlock(&optim->lock);
    return rc;
}
