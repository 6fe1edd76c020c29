/* SPDX-License-Identifier: MIT */
/*
 * The parameter of each worker, and the functions of dist_fixture.h.
 */
#include "tests/autograd/dist_fixture.h"

#include <math.h>

struct bx_dist *dist;
struct bx_var *w;

struct bx_var *dist_param(int64_t elements, double first, double step)
{
    OWN(tensor) *tensor = NULL;
    struct bx_var *var = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_F64, 1, &elements, &tensor), 0);
    for (int64_t i = 0; i < elements; i++)
        ((double *)bx_tensor_data_mut(tensor))[i] = first + step * (double)i;
    HARNESS_EQ(bx_var_create(tensor, true, &var), 0);
    return var;
}

int dist_set_up(struct bx_job *job, int64_t elements, double first, double step)
{
    w = dist_param(elements, first, step);
    return bx_dist_create(job, &dist);
}

double dist_at(const struct bx_tensor *tensor, int64_t i)
{
    return tensor == NULL ? NAN : ((const double *)bx_tensor_data(tensor))[i];
}

double dist_grad_at(struct bx_context *context, int64_t i)
{
    return dist_at(bx_grads_get(bx_context_grads(context), w), i);
}

/* ---- The maker of a context -------------------------------------------------------------------------------- */

struct bx_context *dist_context(void)
{
    struct bx_context *context = NULL;

    HARNESS_EQ(bx_context_create(dist, &context), 0);
    return context;
}

struct pass pass_begin(void)
{
    struct pass pass = { dist_context(), NULL };

    HARNESS_EQ(bx_tape_create(NULL, &pass.tape), 0);
    return pass;
}

void pass_end(struct pass *pass)
{
    bx_tape_destroy(pass->tape);
    bx_context_end(pass->context);
}

struct bx_var *pass_call(struct bx_job *job, const struct pass *pass, const char *to, const char *function,
                         struct bx_var *x, struct bx_var **second)
{
    OWN(msg) *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;
    struct bx_var *y = NULL;

    HARNESS_EQ(bx_msg_put_context(args, pass->context), 0);
    HARNESS_EQ(bx_msg_put_var(args, pass->context, x), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    y = bx_read_var(pass->context, pass->tape, &reader);
    HARNESS_CHECK(y != NULL);
    if (second != NULL)
        *second = bx_read_var(pass->context, pass->tape, &reader);
    return y;
}

int pass_back(const struct pass *pass, struct bx_var *root, bool retain)
{
    return bx_context_backward(pass->context, &root, NULL, 1, retain, 0);
}

struct bx_var *pass_custom(struct bx_tape *tape, struct bx_var *x, bx_backward_fn backward)
{
    struct bx_tensor *value = bx_var_value(x);
    struct bx_var *y = NULL;

    HARNESS_EQ(bx_var_custom(tape, &(struct bx_custom){ .name = "custom", .inputs = &x, .input_count = 1,
                                                        .values = &value, .output_count = 1, .backward = backward },
                             &y), 0);
    return y;
}

/* ---- Handlers ---------------------------------------------------------------------------------------------- */

int pass_open(struct bx_reader *args, struct pass *pass)
{
    int rc;

    *pass = (struct pass){ NULL, NULL };
    rc = bx_read_context(dist, args, &pass->context);
    return rc == 0 ? bx_tape_create(NULL, &pass->tape) : rc;
}

int pass_close(struct pass *pass, int rc)
{
    if (pass->tape != NULL && rc == 0)
        rc = bx_tape_error(pass->tape);
    bx_tape_destroy(pass->tape);
    bx_context_release(pass->context);
    return rc;
}

int dist_product(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct pass pass;
    struct bx_var *x;
    int rc = pass_open(args, &pass);

    (void)request, (void)context;
    if (rc == 0) {
        x = bx_read_var(pass.context, pass.tape, args);
        rc = bx_msg_put_var(reply, pass.context, bx_var_mul(pass.tape, x, w));
        if (rc == 0)
            rc = bx_msg_put_var(reply, pass.context, bx_var_add(pass.tape, x, w));
    }
    return pass_close(&pass, rc);
}

int dist_custom(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    bx_backward_fn backward = *(const bx_backward_fn *)context;
    struct pass pass;
    struct bx_var *x;
    int rc = pass_open(args, &pass);

    (void)request;
    if (rc == 0 && (x = bx_read_var(pass.context, pass.tape, args)) != NULL)
        rc = bx_msg_put_var(reply, pass.context, pass_custom(pass.tape, x, backward));
    return pass_close(&pass, rc);
}

int dist_fails(void *context, const struct bx_node_grads *grads)
{
    (void)context, (void)grads;
    return bx_fail(-EDOM, "no derivative today");
}
