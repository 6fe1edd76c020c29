/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/net.c: a net of boxcar_nn.h as one node, against the same network of single operations; and the order of
 * its passes.
 */
#include "boxcar_nn.h"
#include "tests/autograd/gradient.h"

#include <math.h>

TestSuite(autograd_net, .timeout = 60);

enum { BATCH = 3, IN = 5, HIDDEN = 7, OUT = 2 };

static const struct shape SHAPES[] = { { 2, { HIDDEN, IN } }, { 1, { HIDDEN } }, { 2, { OUT, HIDDEN } },
                                       { 1, { OUT } } };
static const struct shape INPUT = { 2, { BATCH, IN } }, OUTPUT = { 2, { BATCH, OUT } };

struct world {
    struct bx_net *net;
    struct bx_net_op *op;
    struct bx_tape *tape;
    struct bx_grads *grads[2];
    struct bx_var *params[4], *input;
};

static struct world begin(bool input_grad)
{
    struct world w = { .tape = new_tape(), .grads = { new_grads(), new_grads() } };
    int node;

    if (bx_net_create(&(struct bx_net_options){ .threads = 1, .input_grad = input_grad }, &w.net) < 0)
        cr_skip("%s", bx_error_text());
    node = bx_net_input(w.net, BATCH, IN, 1, 1);
    node = bx_net_relu(w.net, bx_net_linear(w.net, node, "fc1", HIDDEN, true));
    cr_assert_eq(bx_net_finish(w.net, bx_net_linear(w.net, node, "fc2", OUT, true)), 0, "%s", bx_error_text());
    for (size_t i = 0; i < 4; i++)
        w.params[i] = parameter(noise(BX_F32, &SHAPES[i], i, 1, 0));
    w.input = parameter(noise(BX_F32, &INPUT, 8, 1, 0));
    cr_assert_eq(bx_net_op_create(w.net, w.params, &w.op), 0, "%s", bx_error_text());
    return w;
}

static void end(struct world *w)
{
    bx_tape_destroy(w->tape);
    bx_net_op_destroy(w->op);
    bx_net_destroy(w->net);
    for (size_t i = 0; i < 4; i++)
        bx_var_release(w->params[i]);
    bx_var_release(w->input);
    bx_grads_destroy(w->grads[0]);
    bx_grads_destroy(w->grads[1]);
}

static struct bx_var *composed(struct world *w)
{
    struct bx_var *h = bx_var_relu(w->tape, bx_var_linear(w->tape, w->input, w->params[0], w->params[1]));

    return bx_var_linear(w->tape, h, w->params[2], w->params[3]);
}

Test(autograd_net, computes_what_single_operations_compute_also_after_a_step)
{
    struct world w = begin(true);
    struct bx_tensor *weight = noise(BX_F32, &OUTPUT, 9, 1, 0);
    struct bx_optim *sgd = NULL;

    cr_assert_eq(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 0.1 }, w.params, 4, &sgd), 0);
    for (int round = 0; round < 3; round++) {
        struct bx_var *out[2] = { bx_var_net(w.tape, w.op, w.input), composed(&w) };

        cr_assert_not_null(out[0], "%s", bx_error_text());
        check_close(bx_var_value(out[0]), bx_var_value(out[1]), 1e-4, "value");
        for (int i = 0; i < 2; i++)
            cr_assert_eq(bx_backward(&out[i], &weight, 1, false, w.grads[i]), 0, "%s", bx_error_text());
        for (size_t i = 0; i < 4; i++)
            check_close(bx_grads_get(w.grads[0], w.params[i]), bx_grads_get(w.grads[1], w.params[i]), 1e-4,
                        "gradient");
        check_close(bx_grads_get(w.grads[0], w.input), bx_grads_get(w.grads[1], w.input), 1e-4,
                    "gradient of the input");
        cr_assert_eq(bx_optim_step(sgd, NULL, w.grads[0]), 0);
        bx_grads_clear(w.grads[0]);
        bx_grads_clear(w.grads[1]);
        bx_tape_clear(w.tape);
    }
    bx_optim_destroy(sgd);
    bx_tensor_release(weight);
    end(&w);
}

Test(autograd_net, refuses_the_backward_pass_of_an_earlier_forward_pass)
{
    struct world w = begin(true);
    struct bx_tensor *weight = noise(BX_F32, &OUTPUT, 9, 1, 0);
    struct bx_var *first = bx_var_net(w.tape, w.op, w.input), *second = bx_var_net(w.tape, w.op, w.input);

    FAILS(bx_backward(&first, &weight, 1, false, w.grads[0]), BX_E_STATE,
          "the net has made another forward pass since the one of this backward pass");
    cr_expect_eq(bx_grads_count(w.grads[0]), 0);
    cr_expect_eq(bx_backward(&second, &weight, 1, false, w.grads[0]), 0, "%s", bx_error_text());
    bx_tensor_release(weight);
    end(&w);
}

Test(autograd_net, says_what_does_not_fit)
{
    struct world w = begin(false);
    struct bx_tensor *weight = noise(BX_F32, &OUTPUT, 9, 1, 0);
    struct bx_var *wrong[4] = { w.params[0], w.params[1], w.params[1], w.params[3] }, *out;
    struct bx_var *f64 = parameter(noise(BX_F64, &INPUT, 8, 1, 0));
    struct bx_net_op *op = NULL;

    FAILS(bx_net_op_create(w.net, wrong, &op), -EINVAL,
          "parameter 2 of the net, 'fc2.weight', needs a leaf of its shape and f32, not f32 (7)");
    wrong[2] = NULL;
    FAILS(bx_net_op_create(w.net, wrong, &op), -EINVAL, "parameter 2 of the net, 'fc2.weight', is NULL");
    FAILS(bx_net_op_create(NULL, wrong, &op), -EINVAL,
          "bx_net_op_create needs a net, its parameters and a place to put the object");
    cr_expect_null(op);
    STOPS(w.tape, bx_var_net(w.tape, w.op, w.params[0]), -EINVAL,
          "the input of the net has 15 elements, the batch first, and the tensor the shape (7, 5)");
    STOPS(w.tape, bx_var_net(w.tape, w.op, f64), -EINVAL,
          "'net' needs an object of bx_net_op_create, and an input of f32");
    STOPS(w.tape, bx_var_net(w.tape, NULL, w.input), -EINVAL,
          "'net' needs an object of bx_net_op_create, and an input of f32");
    out = bx_var_net(w.tape, w.op, w.input);
    FAILS(bx_backward(&out, &weight, 1, false, w.grads[0]), -EINVAL, "the input of a net requires a gradient, and the "
          "net was created without options.input_grad");
    bx_tensor_release(weight);
    bx_var_release(f64);
    end(&w);
}

/* ---- bx_nn_sgemm --------------------------------------------------------------------------------- */

static float at(const float *matrix, bool transposed, int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    return transposed ? matrix[column * rows + row] : matrix[row * columns + column];
}

Test(autograd_net, sgemm_has_all_four_forms_and_beta)
{
    enum { M = 3, N = 4, K = 5 };
    float a[M * K], b[K * N], c[M * N];

    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i % 7);
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i % 5) - 2;
    for (int form = 0; form < 8; form++) {
        const struct bx_sgemm product = { .transpose_a = form % 2, .transpose_b = form / 2 % 2, .m = M, .n = N, .k = K,
                                          .a = a, .b = b, .c = c, .beta = form < 4 ? 0 : 2 };

        for (int i = 0; i < M * N; i++)
            c[i] = 100;
        if (bx_nn_sgemm(&product) == -ENOTSUP)
            cr_skip("%s", bx_error_text());
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                float want = product.beta * 100;

                for (int64_t p = 0; p < K; p++)
                    want += at(a, product.transpose_a, M, K, i, p) * at(b, product.transpose_b, K, N, p, j);
                cr_expect_eq(c[i * N + j], want, "form %d, (%d, %d)", form, (int)i, (int)j);
            }
    }
}

Test(autograd_net, sgemm_of_nothing_is_nothing_or_beta_times_c)
{
    float c[4] = { 1, 2, 3, 4 };

    cr_expect_eq(bx_nn_sgemm(&(struct bx_sgemm){ .m = 0, .n = 4, .k = 3 }), 0);
    cr_expect_eq(bx_nn_sgemm(&(struct bx_sgemm){ .m = 2, .n = 2, .k = 0, .c = c, .beta = 3 }), 0);
    cr_expect_eq(c[3], 12);
    c[3] = NAN;
    cr_expect_eq(bx_nn_sgemm(&(struct bx_sgemm){ .m = 2, .n = 2, .k = 0, .c = c }), 0);
    cr_expect_eq(c[3], 0);
    cr_expect_eq(bx_nn_sgemm(&(struct bx_sgemm){ .m = -1, .n = 2, .k = 1, .c = c }), -EINVAL);
}
