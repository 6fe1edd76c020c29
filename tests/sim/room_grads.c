/* SPDX-License-Identifier: MIT */
/*
 * Backward passes across workers. Each worker has a parameter of one element, 2 + its rank. A pass is a product: each
 * call multiplies by the parameter of its callee, some callees call another worker on the way.
 *
 * Truth: the gradient of each factor is the product of the others, exactly, at whoever has it; a pass fails only if a
 * worker has died or left; when all have left, no worker has a context.
 */
#include "room_job.h"

#include "boxcar.h"
#include "boxcar_dist.h"

static struct bx_dist *dist;
static struct bx_var *weight;

static double weight_of(int rank)
{
    return 2 + rank;
}

/* A leaf of one element. */
static struct bx_var *leaf(struct bx_job *job, double value)
{
    struct bx_tensor *tensor = NULL;
    struct bx_var *var = NULL;
    int64_t one = 1;

    SIM_AGAIN(job, "bx_tensor_create", bx_tensor_create(NULL, BX_F64, 1, &one, &tensor));
    *(double *)bx_tensor_data_mut(tensor) = value;
    SIM_AGAIN(job, "bx_var_create", bx_var_create(tensor, true, &var));
    bx_tensor_release(tensor);
    return var;
}

/* A context fails with the worker that dies, or a call that is refused, and is then cancelled at the others. */
static int must(const struct bx_job *job, int rc)
{
    if (rc != BX_E_CANCELLED || !(sim_any_is_dead() || sim_one_left() || sim_refusal() != 0))
        sim_must(job, "a pass", rc);
    return rc;
}

/* A call that multiplies x, a variable of the tape, by the parameter of a worker. NULL: it has failed. */
static struct bx_var *multiply_at(struct bx_job *job, struct bx_context *context, struct bx_tape *tape, int to,
                                  const char *function, struct bx_var *x)
{
    struct bx_msg *args = sim_msg(), *reply = NULL;
    struct bx_var *product = NULL;
    struct bx_reader reader;

    bx_msg_put_context(args, context);
    bx_msg_put_var(args, context, x);
    if (must(job, bx_rpc_sync(job, sim_names[to], function, args, NULL, &reply)) == 0) {
        reader = bx_msg_reader(reply);
        product = bx_read_var(context, tape, &reader);
    }
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
    return product;
}

/* Answers with the product of x and this worker's parameter; nested: and that of its caller. */
static int multiply(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *nested)
{
    struct bx_context *context = NULL;
    struct bx_tape *tape = NULL;
    struct bx_var *x;
    int rc = bx_read_context(dist, args, &context);

    if (rc == 0)
        rc = bx_tape_create(NULL, &tape);
    if (rc == 0) {
        x = bx_read_var(context, tape, args);
        if (x != NULL && nested != NULL)
            x = multiply_at(bx_request_job(request), context, tape, bx_request_caller(request), "multiply", x);
        x = x != NULL ? bx_var_mul(tape, x, weight) : NULL;
        rc = x != NULL ? bx_msg_put_var(reply, context, x)
             : bx_tape_error(tape) < 0 ? bx_tape_error(tape)
                                       : BX_E_CANCELLED;
    }
    bx_tape_destroy(tape);
    bx_context_release(context);
    return rc;
}

/* 0: there is none. */
static double item(const struct bx_tensor *gradient)
{
    return gradient == NULL ? 0 : *(const double *)bx_tensor_data(gradient);
}

/* Answers with the gradient of this worker's parameter. */
static int tell_gradient(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    struct bx_context *context = NULL;
    int rc = bx_read_context(dist, args, &context);

    (void)request, (void)unused;
    if (rc == 0)
        rc = bx_msg_put_f64(reply, item(bx_grads_get(bx_context_grads(context), weight)));
    bx_context_release(context);
    return rc;
}

static int give_weight(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    struct bx_rref *rref = NULL;
    int rc = bx_param_rref(bx_request_job(request), weight, &rref);

    (void)args, (void)unused;
    if (rc == 0)
        rc = bx_msg_put_rref(reply, rref);
    bx_rref_release(rref);
    return rc;
}

void sim_grads_register(struct bx_job *job)
{
    weight = leaf(job, weight_of(bx_job_rank(job)));
    SIM_AGAIN(job, "bx_dist_create", bx_dist_create(job, &dist));
    SIM_AGAIN(job, "bx_register", bx_register(job, "multiply", BX_INLINE, multiply, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "multiply_twice", BX_BLOCKING, multiply, &dist));
    SIM_AGAIN(job, "bx_register", bx_register(job, "tell_gradient", BX_INLINE, tell_gradient, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "give_weight", BX_INLINE, give_weight, NULL));
}

/* The job has ended. */
void sim_grads_end(void)
{
    if (dist != NULL && bx_dist_contexts(dist) > 0 && !sim_one_left() && !sim_any_is_dead())
        sim_fail("%zu contexts are left", bx_dist_contexts(dist));
    bx_dist_destroy(dist);
    bx_var_release(weight);
    dist = NULL;
    weight = NULL;
}

/* ---- A pass ---------------------------------------------------------------------------------------------- */

#define X 3.0

struct pass {
    struct bx_job *job;
    struct bx_context *context;
    struct bx_tape *tape;
    int factors[WORKERS_MOST];          /* how often each worker's parameter is one */
};

/* NULL: a call has failed. */
static struct bx_var *forward(struct pass *pass, struct bx_var *x)
{
    uint32_t calls = 1 + sim_choose(3);

    for (uint32_t i = 0; x != NULL && i < calls; i++) {
        int to = sim_another(pass->job);
        bool twice = sim_choose(3) == 0;

        pass->factors[to]++;
        pass->factors[bx_job_rank(pass->job)] += twice;
        x = multiply_at(pass->job, pass->context, pass->tape, to, twice ? "multiply_twice" : "multiply", x);
    }
    return x;
}

static double product_of(const struct pass *pass)
{
    double product = X;

    for (int rank = 0; rank < WORKERS_MOST; rank++)
        for (int i = 0; i < pass->factors[rank]; i++)
            product *= weight_of(rank);
    return product;
}

static void check_parameter(const struct pass *pass, int rank)
{
    double right = product_of(pass) / weight_of(rank) * pass->factors[rank], gradient = right;
    struct bx_msg *args = sim_msg(), *reply = NULL;
    struct bx_reader reader;

    bx_msg_put_context(args, pass->context);
    if (rank == bx_job_rank(pass->job)) {
        gradient = item(bx_grads_get(bx_context_grads(pass->context), weight));
    } else if (!must(pass->job, bx_rpc_sync(pass->job, sim_names[rank], "tell_gradient", args, NULL, &reply))) {
        reader = bx_msg_reader(reply);
        gradient = bx_read_f64(&reader);
    }
    if (gradient != right && must(pass->job, bx_context_error(pass->context)) == 0)
        sim_fail("the gradient at rank %d is %g, not %g", rank, gradient, right);
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
}

/* A step of an optimizer with a rate of 0, of one parameter. */
static void step(const struct pass *pass, int rank)
{
    struct bx_optim_sgd sgd = { .struct_bytes = sizeof sgd };
    struct bx_dist_optim *optim = NULL;
    struct bx_rref *parameter = NULL;
    struct bx_msg *reply = NULL;
    struct bx_reader reader;

    if (must(pass->job, bx_rpc_sync(pass->job, sim_names[rank], "give_weight", NULL, NULL, &reply)) < 0)
        return;
    reader = bx_msg_reader(reply);
    parameter = bx_read_rref(&reader);
    if (must(pass->job, bx_dist_optim_create(dist, &parameter, 1, &sgd, NULL, &optim)) == 0)
        must(pass->job, bx_dist_optim_step(optim, pass->context));
    bx_dist_optim_destroy(optim);
    bx_msg_destroy(reply);
}

void sim_pass(struct bx_job *job)
{
    struct pass pass = { .job = job };
    struct bx_var *x = leaf(job, X), *root;

    SIM_AGAIN(job, "bx_context_create", bx_context_create(dist, &pass.context));
    SIM_AGAIN(job, "bx_tape_create", bx_tape_create(NULL, &pass.tape));
    root = forward(&pass, x);
    /* In some schedules the context ends before its backward pass. */
    if (root != NULL && sim_choose(8) != 0 &&
        must(job, bx_context_backward(pass.context, &root, NULL, 1, false, 0)) == 0) {
        if (bx_var_item(root) != product_of(&pass))
            sim_fail("the product is %g, not %g", bx_var_item(root), product_of(&pass));
        if (item(bx_grads_get(bx_context_grads(pass.context), x)) * X != product_of(&pass))
            sim_fail("the gradient of x is wrong");
        for (int rank = 0; rank < bx_job_world_size(job); rank++)
            check_parameter(&pass, rank);
        if (sim_choose(2) == 0)
            step(&pass, sim_another(job));
    }
    bx_tape_destroy(pass.tape);
    bx_context_end(pass.context);
    bx_var_release(x);
}
