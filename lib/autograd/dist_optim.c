/* SPDX-License-Identifier: MIT */
/*
 * Optimizers across workers: one local optimizer, an object, at each owner of parameters; a step is a call to each of
 * them at once. On one owner the steps of one optimizer run one after the other (optim.c).
 *
 * A call costs tens of microseconds more if it is handed to a thread of the pool. So the step of a small optimizer is
 * an inline handler, and the caller makes the step of its own optimizer itself, while the others make theirs.
 */
#include "dist.h"

#include <errno.h>
#include <stdlib.h>

/* ---- parameters as objects ---------------------------------------------------------------------------------- */

static void release_param(void *object)
{
    bx_var_release(object);
}

static int put_param(void *object, struct bx_msg *value)
{
    struct bx_tensor *tensor = bx_var_acquire_value(object);
    int rc = bx_msg_put_tensor(value, tensor);

    bx_tensor_release(tensor);
    return rc;
}

static const struct bx_type param_type = { .name = "parameter", .destroy = release_param, .value = put_param };

const struct bx_type *bx_param_type(void)
{
    return &param_type;
}

int bx_param_rref(struct bx_job *job, struct bx_var *param, struct bx_rref **rref)
{
    int rc;

    if (param == NULL || !bx_var_requires_grad(param) || !bxi_is_leaf(param))
        return bx_fail(-EINVAL, "a parameter is a leaf that requires a gradient");
    rc = bx_rref_create(job, &param_type, bx_var_acquire(param), rref);
    if (rc < 0)
        bx_var_release(param);
    return rc;
}

/* ---- the owner --------------------------------------------------------------------------------------------- */

#define INLINE_ELEMENTS 16384       /* of parameters: a step of as many takes less time than a thread to wake up */

static void destroy_optim(void *object)
{
    bx_optim_destroy(object);
}

static const struct bx_type optim_type = { .name = "optimizer", .destroy = destroy_optim };

enum kind { SGD = 1, ADAM };

static int read_params(struct bx_reader *args, struct bx_var ***out, size_t *count)
{
    struct bx_var **params = calloc(args->rref_count + 1, sizeof(struct bx_var *));
    int rc = params == NULL ? bx_fail(-ENOMEM, "no memory for an optimizer") : 0;

    *count = 0;
    while (rc == 0 && args->rref_count > 0) {
        void *object = NULL;

        rc = bx_rref_local(bx_read_rref(args), &param_type, &object);
        if (rc == 0)
            params[(*count)++] = object;
    }
    *out = params;
    return rc;
}

static int make_optim(struct bx_reader *args, struct bx_var *const *params, size_t count, struct bx_optim **optim)
{
    enum kind kind = (enum kind)bx_read_i32(args);
    double lr = bx_read_f64(args), weight_decay = bx_read_f64(args), a = bx_read_f64(args), b = bx_read_f64(args),
           eps = bx_read_f64(args);

    if (args->error < 0)
        return args->error;
    if (kind == SGD)
        return bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = lr, .weight_decay = weight_decay, .momentum = a },
                                   params, count, optim);
    return bx_optim_adam_create(&(struct bx_optim_adam){ .lr = lr, .weight_decay = weight_decay, .beta1 = a, .beta2 = b,
                                                         .eps = eps }, params, count, optim);
}

static int new_optim(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_optim *optim = NULL;
    struct bx_var **params;
    size_t count;
    int rc = read_params(args, &params, &count);

    (void)context;
    if (rc == 0)
        rc = make_optim(args, params, count, &optim);
    free(params);
    if (rc < 0)
        return rc;
    rc = bx_msg_put_object(bx_request_job(request), reply, &optim_type, optim);
    if (rc < 0)
        bx_optim_destroy(optim);
    return rc;
}

/* Without the context here, no pass came to these parameters, or it has ended, which its maker knows. */
static int step(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *argument)
{
    struct bx_context *context = bxi_context_find(argument, bx_read_u64(args));
    int rc;

    (void)reply;
    if (args->error < 0 || context == NULL)
        return args->error;
    rc = bx_optim_step(bx_request_object(request), bx_request_job(request), context->grads);
    bx_context_release(context);
    return rc;
}

static int is_small(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)context;
    return bx_msg_put_i32(reply, bxi_optim_elements(bx_request_object(request)) <= INLINE_ELEMENTS);
}

int bxi_dist_optim_register(struct bx_dist *dist)
{
    int rc = bx_register(dist->job, "autograd.optim", BX_BLOCKING, new_optim, dist);

    if (rc == 0)
        rc = bx_register_method(dist->job, &optim_type, "autograd.is_small", BX_INLINE, is_small, NULL);
    if (rc == 0)
        rc = bx_register_method(dist->job, &optim_type, "autograd.step_inline", BX_INLINE, step, dist);
    return rc < 0 ? rc : bx_register_method(dist->job, &optim_type, "autograd.step", BX_BLOCKING, step, dist);
}

/* ---- all owners ----------------------------------------------------------------------------------------------- */

struct bx_dist_optim {
    struct bx_dist *dist;
    struct bx_rref *optims[BX_WORKERS_MAX];     /* by owner, or NULL */
    const char *step[BX_WORKERS_MAX];           /* the method */
    struct bx_optim *own;                       /* this worker's, of optims; or NULL */
};

static int check_params(struct bx_rref *const *params, size_t count, bool one_kind)
{
    if (params == NULL || count == 0)
        return bx_fail(-EINVAL, "an optimizer needs a parameter");
    if (!one_kind)
        return bx_fail(-EINVAL, "an optimizer is sgd or adam: give the options of one of them");
    for (size_t i = 0; i < count; i++) {
        if (params[i] == NULL)
            return bx_fail(-EINVAL, "parameter %zu is NULL", i);
        for (size_t j = 0; j < i; j++)
            if (params[i] == params[j])
                return bx_fail(-EINVAL, "parameters %zu and %zu are the same", j, i);
    }
    return 0;
}

static void put_options(struct bx_msg *args, const struct bx_optim_sgd *sgd, const struct bx_optim_adam *adam)
{
    bx_msg_put_i32(args, sgd != NULL ? SGD : ADAM);
    bx_msg_put_f64(args, sgd != NULL ? sgd->lr : adam->lr);
    bx_msg_put_f64(args, sgd != NULL ? sgd->weight_decay : adam->weight_decay);
    bx_msg_put_f64(args, sgd != NULL ? sgd->momentum : adam->beta1);
    bx_msg_put_f64(args, sgd != NULL ? 0 : adam->beta2);
    bx_msg_put_f64(args, sgd != NULL ? 0 : adam->eps);
}

/* The parameters of one owner; none: no optimizer there. */
static int make_remote(struct bx_dist_optim *optim, struct bx_rref *const *params, size_t count,
                       const struct bx_msg *options, int owner)
{
    struct bx_job *job = optim->dist->job;
    struct bx_msg *args = bx_msg_create(64);
    bool any = false;
    int rc = 0;

    if (args == NULL)
        return bx_fail(-ENOMEM, "no memory for a message");
    bx_msg_put_bytes(args, bx_msg_data(options), bx_msg_bytes(options));
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (bx_rref_owner(params[i]) != owner)
            continue;
        rc = bx_msg_put_rref(args, params[i]);
        any = true;
    }
    if (rc == 0 && any)
        rc = bx_remote(job, bx_worker_name(job, owner), "autograd.optim", args, NULL, &optim->optims[owner]);
    bx_msg_destroy(args);
    return rc;
}

/* Waits until the optimizer of an owner is made. */
static int finish_remote(struct bx_dist_optim *optim, int owner)
{
    struct bx_rref *remote = optim->optims[owner];
    struct bx_msg *reply = NULL;
    struct bx_reader reader;
    void *own = NULL;
    int rc;

    if (remote == NULL)
        return 0;
    rc = bx_rref_sync(remote, "autograd.is_small", NULL, NULL, &reply);
    if (rc < 0)
        return rc;
    reader = bx_msg_reader(reply);
    optim->step[owner] = bx_read_i32(&reader) != 0 ? "autograd.step_inline" : "autograd.step";
    bx_msg_destroy(reply);
    if (!bx_rref_is_owner(remote))
        return 0;
    rc = bx_rref_local(remote, &optim_type, &own);
    optim->own = own;
    return rc;
}

int bx_dist_optim_create(struct bx_dist *dist, struct bx_rref *const *params, size_t count,
                         const struct bx_optim_sgd *sgd, const struct bx_optim_adam *adam, struct bx_dist_optim **out)
{
    struct bx_dist_optim *optim;
    struct bx_msg *options;
    int rc;

    if (dist == NULL || out == NULL)
        return bx_fail(-EINVAL, "bx_dist_optim_create needs a bx_dist, and a place for the optimizer");
    rc = check_params(params, count, (sgd == NULL) != (adam == NULL));
    if (rc < 0)
        return rc;
    optim = calloc(1, sizeof *optim);
    options = bx_msg_create(64);
    if (optim == NULL || options == NULL) {
        free(optim);
        bx_msg_destroy(options);
        return bx_fail(-ENOMEM, "no memory for an optimizer");
    }
    optim->dist = dist;
    put_options(options, sgd, adam);
    for (int owner = 0; rc == 0 && owner < bx_job_world_size(dist->job); owner++)
        rc = make_remote(optim, params, count, options, owner);
    for (int owner = 0; rc == 0 && owner < bx_job_world_size(dist->job); owner++)
        rc = finish_remote(optim, owner);
    bx_msg_destroy(options);
    if (rc < 0)
        bx_dist_optim_destroy(optim);
    else
        *out = optim;
    return rc;
}

void bx_dist_optim_destroy(struct bx_dist_optim *optim)
{
    if (optim == NULL)
        return;
    for (int owner = 0; owner < BX_WORKERS_MAX; owner++)
        bx_rref_release(optim->optims[owner]);
    free(optim);
}

int bx_dist_optim_step(struct bx_dist_optim *optim, struct bx_context *context)
{
    struct bx_future *steps[BX_WORKERS_MAX];
    struct bx_msg *args;
    int count = 0, rc;

    if (optim == NULL || context == NULL)
        return bx_fail(-EINVAL, "bx_dist_optim_step needs an optimizer and a context");
    if ((rc = bxi_context_check(context)) < 0)
        return rc;
    args = bx_msg_create(8);
    if (args == NULL)
        return bx_fail(-ENOMEM, "no memory for a message");
    bx_msg_put_u64(args, context->id);
    for (int owner = 0; rc == 0 && owner < bx_job_world_size(optim->dist->job); owner++)
        if (optim->optims[owner] != NULL && !bx_rref_is_owner(optim->optims[owner]) &&
            (rc = bx_rref_async(optim->optims[owner], optim->step[owner], args, NULL, &steps[count])) == 0)
            count++;
    bx_msg_destroy(args);
    if (rc == 0 && optim->own != NULL)
        rc = bx_optim_step(optim->own, optim->dist->job, context->grads);
    for (int i = 0; i < count; i++) {
        int code = bx_future_wait(steps[i], BX_FOREVER);

        if (code < 0 && rc == 0)
            rc = bx_fail(code, "%s", bx_future_error_text(steps[i]));
        bx_future_release(steps[i]);
    }
    return rc < 0 ? rc : bxi_context_check(context);        /* it has ended: an owner may have found it no more */
}
