/* SPDX-License-Identifier: MIT */
/*
 * See nn_cases.h. Sizes are odd on purpose: channels that do not fill a vector, images that a stride does not divide.
 */
#include "nn_cases.h"

#include "boxcar_nn.h"
#include "tests/harness/twin.h"

#include <math.h>

/* ---- Operations ----------------------------------------------------------------------------------- */

static const int SHAPE[][4] = { { 1, 3, 7, 7 }, { 2, 5, 9, 7 }, { 2, 17, 7, 9 }, { 3, 16, 8, 8 } };

#define SHAPES (sizeof(SHAPE) / sizeof(SHAPE[0]))

static void begin_shape(struct twin *t, size_t shape)
{
    twin_begin(t, SHAPE[shape][0], SHAPE[shape][1], SHAPE[shape][2], SHAPE[shape][3]);
}

void nn_convolution_agrees_for_kernels_strides_paddings_and_biases(void)
{
    static const struct bx_conv CONV_LIKE[] = {
        { .out_channels = 5, .kernel = 1, .stride = 1 },
        { .out_channels = 17, .kernel = 1, .stride = 2, .bias = true },
        { .out_channels = 8, .kernel = 3, .stride = 1, .padding = 1 },
        { .out_channels = 3, .kernel = 3, .stride = 2, .padding = 1, .bias = true },
        { .out_channels = 32, .kernel = 3, .stride = 1 },
        { .out_channels = 6, .kernel = 7, .stride = 2, .padding = 3 },
        { .out_channels = 1, .kernel = 5, .stride = 3, .padding = 2, .bias = true },
    };

    for (size_t i = 0; i < sizeof(CONV_LIKE) / sizeof(CONV_LIKE[0]); i++) {
        for (size_t shape = 0; shape < SHAPES; shape++) {
            struct twin t;

            begin_shape(&t, shape);
            twin_conv(&t, 0, &CONV_LIKE[i]);
            twin_check(&t);
        }
    }
}

void nn_batch_norm_agrees_with_and_without_relu(void)
{
    for (size_t shape = 0; shape < SHAPES; shape++) {
        for (int relu = 0; relu < 2; relu++) {
            struct twin t;

            begin_shape(&t, shape);
            twin_norm(&t, 0, relu != 0);
            twin_check(&t);
        }
    }
}

void nn_relu_and_sums_agree(void)
{
    for (size_t shape = 0; shape < SHAPES; shape++) {
        struct twin t;

        begin_shape(&t, shape);
        twin_relu(&t, 0);
        twin_check(&t);
        for (int relu = 0; relu < 2; relu++) {
            begin_shape(&t, shape);
            int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = SHAPE[shape][1], .kernel = 1, .stride = 1 });
            twin_add(&t, conv, 0, relu != 0);
            twin_check(&t);
        }
    }
}

/* The output is NaN, and the gradient is that of a positive value. */
void nn_a_nan_passes_relu_both_ways(void)
{
    static const float IN[4] = { NAN, 1.0f, -1.0f, 0.0f }, GRAD[4] = { 2.0f, 3.0f, 4.0f, 5.0f };
    static const float WANT[4] = { 2.0f, 3.0f, 0.0f, 0.0f };
    float *in = twin_alloc(sizeof(IN)), *out = twin_alloc(sizeof(IN)), *grad = twin_alloc(sizeof(IN)), got[4];
    struct bx_net *net = NULL;

    twin_create(&net, &(struct bx_net_options){ .cuda = twin_cuda(), .input_grad = true });
    cr_assert_eq(bx_net_finish(net, bx_net_relu(net, bx_net_input(net, 1, 4, 1, 1))), 0, "%s", bx_error_text());
    twin_put(in, IN, sizeof(IN));
    twin_put(grad, GRAD, sizeof(GRAD));
    cr_assert_eq(bx_net_forward(net, in, out), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_backward(net, grad, NULL), 0, "%s", bx_error_text());
    twin_get(got, out, sizeof(got));
    cr_expect(isnan(got[0]) && got[1] == 1.0f && got[2] == 0.0f);
    twin_get(got, bx_net_input_grad(net), sizeof(got));
    for (size_t i = 0; i < 4; i++)
        cr_expect_eq(got[i], WANT[i], "%zu: %g instead of %g", i, (double)got[i], (double)WANT[i]);
    bx_net_destroy(net);
    twin_free(in);
    twin_free(out);
    twin_free(grad);
}

void nn_a_node_can_be_added_to_itself(void)
{
    struct twin t;

    begin_shape(&t, 1);
    int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 7, .kernel = 3, .stride = 1, .padding = 1 });
    twin_add(&t, conv, conv, true);
    twin_check(&t);
}

void nn_pools_agree(void)
{
    static const int POOL[][3] = { { 2, 2, 0 }, { 3, 2, 1 }, { 3, 1, 1 }, { 5, 3, 2 } };

    for (size_t shape = 0; shape < SHAPES; shape++) {
        struct twin t;

        for (size_t i = 0; i < sizeof(POOL) / sizeof(POOL[0]); i++) {
            begin_shape(&t, shape);
            twin_max_pool(&t, 0, POOL[i][0], POOL[i][1], POOL[i][2]);
            twin_check(&t);
        }
        begin_shape(&t, shape);
        twin_average(&t, 0);
        twin_check(&t);
    }
}

void nn_linear_agrees_over_a_matrix_and_over_images(void)
{
    for (int bias = 0; bias < 2; bias++) {
        struct twin t;

        for (size_t shape = 0; shape < SHAPES; shape++) {
            begin_shape(&t, shape);
            twin_linear(&t, 0, 11, bias != 0);
            twin_check(&t);
        }
        twin_begin(&t, 5, 4, 1, 1);
        twin_linear(&t, twin_relu(&t, twin_linear(&t, 0, 19, true)), 3, bias != 0);
        twin_check(&t);
    }
}

void nn_softmax_agrees(void)
{
    static const int CLASSES[] = { 2, 3, 17, 1000 };

    for (size_t i = 0; i < sizeof(CLASSES) / sizeof(CLASSES[0]); i++) {
        struct twin t;

        twin_begin(&t, 3, CLASSES[i], 1, 1);
        twin_softmax(&t, 0);
        twin_check(&t);
    }
}

/* e to the power of 1000 overflows a float, and that of -1000 underflows. */
void nn_softmax_takes_large_values(void)
{
    static const float IN[6] = { 1000.0f, 1001.0f, 999.0f, -1000.0f, -1001.0f, -999.0f };
    static const double WANT[6] = { 0.24472847, 0.66524096, 0.09003057, 0.24472847, 0.09003057, 0.66524096 };
    float *in = twin_alloc(sizeof(IN)), *out = twin_alloc(sizeof(IN)), got[6];
    struct bx_net *net = NULL;

    twin_create(&net, NULL);
    cr_assert_eq(bx_net_finish(net, bx_net_softmax(net, bx_net_input(net, 2, 3, 1, 1))), 0, "%s", bx_error_text());
    twin_put(in, IN, sizeof(IN));
    cr_assert_eq(bx_net_forward(net, in, out), 0, "%s", bx_error_text());
    twin_get(got, out, sizeof(IN));
    for (size_t i = 0; i < 6; i++)
        cr_assert(fabs((double)got[i] - WANT[i]) < 1e-6, "%zu: %.9g instead of %.9g", i, (double)got[i], WANT[i]);
    bx_net_destroy(net);
    twin_free(in);
    twin_free(out);
}

/* Each kind of operation adds its part to a gradient that another has written. */
void nn_one_node_is_read_by_every_kind_of_operation(void)
{
    struct bx_conv point = { .out_channels = 6, .kernel = 1, .stride = 1 };
    struct twin t;

    twin_begin(&t, 3, 4, 1, 1);
    int from = twin_linear(&t, 0, 6, true);
    int sum = twin_add(&t, twin_softmax(&t, from), twin_average(&t, from), false);
    sum = twin_add(&t, sum, twin_max_pool(&t, from, 1, 1, 0), false);
    sum = twin_add(&t, sum, twin_linear(&t, from, 6, true), false);
    sum = twin_add(&t, sum, twin_conv(&t, from, &point), false);
    sum = twin_add(&t, sum, twin_norm(&t, from, true), false);
    sum = twin_add(&t, sum, twin_relu(&t, from), false);
    twin_add(&t, sum, from, true);
    twin_check(&t);
}

/* A small residual network with every operation, where `stem` has three consumers. */
void nn_a_network_agrees_whose_nodes_have_several_consumers(void)
{
    for (size_t shape = 0; shape < SHAPES; shape++) {
        struct twin t;
        struct bx_conv wide = { .out_channels = 9, .kernel = 3, .stride = 1, .padding = 1 };
        struct bx_conv half = { .out_channels = 13, .kernel = 3, .stride = 2, .padding = 1 };
        struct bx_conv point = { .out_channels = 13, .kernel = 1, .stride = 2 };

        begin_shape(&t, shape);
        int stem = twin_norm(&t, twin_conv(&t, 0, &wide), true);
        int first = twin_add(&t, twin_norm(&t, twin_conv(&t, stem, &wide), false), stem, true);
        int both = twin_add(&t, first, stem, false);
        int second = twin_norm(&t, twin_conv(&t, both, &half), false);
        int shortcut = twin_norm(&t, twin_conv(&t, both, &point), false);
        int sum = twin_add(&t, second, shortcut, true);
        twin_softmax(&t, twin_linear(&t, twin_average(&t, twin_max_pool(&t, sum, 3, 2, 1)), 5, true));
        twin_check(&t);
    }
}

void nn_a_convolution_that_one_norm_and_one_sum_read(void)
{
    struct twin t;

    begin_shape(&t, 2);
    int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 8, .kernel = 3, .stride = 1, .padding = 1 });
    twin_add(&t, twin_norm(&t, conv, true), conv, false);
    twin_check(&t);
}

/* The operations that read the input compute no gradient of it. */
void nn_gradients_agree_where_that_of_the_input_is_not_wanted(void)
{
    static const struct bx_conv CONV = { .out_channels = 5, .kernel = 3, .stride = 1, .padding = 1, .bias = true };
    struct twin t;

    twin_begin_bare(&t, 2, 5, 9, 7);
    twin_conv(&t, twin_norm(&t, 0, true), &CONV);
    twin_check(&t);
    twin_begin_bare(&t, 2, 5, 9, 7);
    int sum = twin_add(&t, twin_conv(&t, 0, &CONV), twin_relu(&t, 0), true);
    twin_linear(&t, twin_max_pool(&t, sum, 2, 2, 0), 3, true);
    twin_check(&t);
    twin_begin_bare(&t, 3, 6, 1, 1);
    twin_softmax(&t, twin_linear(&t, 0, 4, true));
    twin_check(&t);
}

/* ---- Parameters and statistics -------------------------------------------------------------------- */

void nn_set_params_copies(void)
{
    struct twin t;

    begin_shape(&t, 1);
    twin_norm(&t, twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 5, .kernel = 3, .stride = 1 }), false);
    twin_linear(&t, 2, 4, true);
    twin_finish(&t);
    float *theirs[TWIN_PARAMS];
    for (size_t k = 0; k < t.params; k++) {
        size_t bytes = bx_net_param(t.net, k)->elements * sizeof(float);

        theirs[k] = twin_alloc(bytes);
        twin_put(theirs[k], t.value[k], bytes);
    }
    cr_assert_eq(bx_net_set_params(t.net, (const float *const *)theirs), 0, "%s", bx_error_text());
    for (size_t k = 0; k < t.params; k++) {
        size_t bytes = bx_net_param(t.net, k)->elements * sizeof(float);
        float *nonsense = malloc(bytes);

        cr_assert_not_null(nonsense);
        memset(nonsense, 0xff, bytes);      /* not a number */
        twin_put(theirs[k], nonsense, bytes);
        twin_free(theirs[k]);
        free(nonsense);
    }
    twin_check_forward(&t);
    twin_check_backward(&t);
    twin_end(&t);
}

void nn_running_statistics_begin_at_0_and_1_and_can_be_set(void)
{
    struct twin t;
    float *mean, *var, there[2][5];
    size_t channels = 0;

    begin_shape(&t, 1);
    twin_norm(&t, 0, false);
    twin_finish(&t);
    cr_assert_eq(bx_net_running(t.net, "op1", &mean, &var, &channels), 0, "%s", bx_error_text());
    cr_assert_eq(channels, 5);
    twin_get(there[0], mean, sizeof(there[0]));
    twin_get(there[1], var, sizeof(there[1]));
    for (size_t c = 0; c < channels; c++) {
        cr_assert_eq(there[0][c], 0.0f);
        cr_assert_eq(there[1][c], 1.0f);
        there[0][c] = 0.25f * (float)c;
        there[1][c] = 2.0f + (float)c;
        t.node[1].mean[channels + c] = (double)there[0][c];
        t.node[1].var[channels + c] = (double)there[1][c];
    }
    twin_put(mean, there[0], sizeof(there[0]));
    twin_put(var, there[1], sizeof(there[1]));
    twin_check_predict(&t);
    twin_check_forward(&t);
    twin_check_predict(&t);
    cr_assert_eq(bx_net_running(t.net, "op2", &mean, &var, &channels), -ENOENT);
    cr_assert_eq(bx_net_running(t.net, "", &mean, &var, &channels), -ENOENT);
    twin_end(&t);
}

/* ---- Errors --------------------------------------------------------------------------------------- */

void nn_a_norm_of_one_value_a_channel_predicts_but_does_not_train(void)
{
    struct twin t;

    twin_begin(&t, 1, 4, 1, 1);
    twin_norm(&t, 0, true);
    twin_finish(&t);
    cr_assert_eq(bx_net_forward(t.net, t.there.input, t.there.output), -EINVAL);
    cr_assert_not_null(strstr(bx_error_text(), "larger batch"), "%s", bx_error_text());
    twin_check_predict(&t);
    twin_end(&t);
}

void nn_calls_out_of_order_are_refused(void)
{
    static const float NUMBERS[8] = { 1, 2, 3, 4 };
    float *in = twin_alloc(4 * sizeof(*in)), *out = twin_alloc(2 * sizeof(*out));
    float *weight = twin_alloc(sizeof(NUMBERS)), *grad = twin_alloc(sizeof(NUMBERS));
    const float *params[1] = { weight };
    float *grads[1] = { grad };
    struct bx_net *net = NULL;

    twin_put(in, NUMBERS, 4 * sizeof(*in));
    twin_put(weight, NUMBERS, sizeof(NUMBERS));
    twin_create(&net, NULL);
    int input = bx_net_input(net, 1, 4, 1, 1);
    cr_assert_eq(bx_net_input(net, 1, 4, 1, 1), BX_E_STATE);
    int node = bx_net_linear(net, input, "fc", 2, false);
    cr_assert_eq(bx_net_set_params(net, params), BX_E_STATE);
    cr_assert_eq(bx_net_forward(net, in, out), BX_E_STATE);
    cr_assert_eq(bx_net_backward(net, out, grads), BX_E_STATE);
    cr_assert_eq(bx_net_finish(net, node), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_finish(net, node), BX_E_STATE);
    cr_assert_eq(bx_net_relu(net, node), BX_E_STATE);
    cr_assert_eq(bx_net_forward(net, in, out), BX_E_STATE);
    cr_assert_eq(bx_net_predict(net, in, out), BX_E_STATE);
    cr_assert_eq(bx_net_set_params(net, params), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_backward(net, out, grads), BX_E_STATE);
    cr_assert_eq(bx_net_predict(net, in, out), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_backward(net, out, grads), BX_E_STATE);
    cr_assert_eq(bx_net_forward(net, in, out), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_backward(net, out, grads), 0, "%s", bx_error_text());
    bx_net_destroy(net);
    bx_net_destroy(NULL);
    twin_free(in);
    twin_free(out);
    twin_free(weight);
    twin_free(grad);
}
