/* SPDX-License-Identifier: MIT */
/*
 * lib/nn: each operation, forward and backward, against plain loops in double precision (twin.h), then
 * what the building calls refuse and in which order calls may come. Sizes are odd on purpose: channels
 * that fill no vector, images that a stride does not divide.
 */
#include "boxcar_nn.h"
#include "twin.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Operations ----------------------------------------------------------------------------------- */

static const int SHAPE[][4] = { { 1, 3, 7, 7 }, { 2, 5, 9, 7 }, { 2, 17, 7, 9 }, { 3, 16, 8, 8 } };

#define SHAPES (sizeof(SHAPE) / sizeof(SHAPE[0]))

static void begin_shape(struct twin *t, size_t shape)
{
    twin_begin(t, SHAPE[shape][0], SHAPE[shape][1], SHAPE[shape][2], SHAPE[shape][3]);
}

Test(nn, convolution_agrees_for_kernels_strides_paddings_and_biases)
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

Test(nn, batch_norm_agrees_with_and_without_relu)
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

Test(nn, relu_and_sums_agree)
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

Test(nn, a_node_can_be_added_to_itself)
{
    struct twin t;

    begin_shape(&t, 1);
    int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 7, .kernel = 3, .stride = 1, .padding = 1 });
    twin_add(&t, conv, conv, true);
    twin_check(&t);
}

Test(nn, pools_agree)
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

Test(nn, linear_agrees_over_a_matrix_and_over_images)
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

Test(nn, softmax_agrees)
{
    static const int CLASSES[] = { 2, 3, 17, 1000 };

    for (size_t i = 0; i < sizeof(CLASSES) / sizeof(CLASSES[0]); i++) {
        struct twin t;

        twin_begin(&t, 3, CLASSES[i], 1, 1);
        twin_softmax(&t, 0);
        twin_check(&t);
    }
}

/* A small residual network with every operation, where `stem` has three consumers. */
Test(nn, a_network_agrees_whose_nodes_have_several_consumers)
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

Test(nn, a_convolution_that_one_norm_and_one_sum_read)
{
    struct twin t;

    begin_shape(&t, 2);
    int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 8, .kernel = 3, .stride = 1, .padding = 1 });
    twin_add(&t, twin_norm(&t, conv, true), conv, false);
    twin_check(&t);
}

/* ---- Parameters and statistics -------------------------------------------------------------------- */

Test(nn, set_params_copies)
{
    struct twin t;

    begin_shape(&t, 1);
    twin_norm(&t, twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 5, .kernel = 3, .stride = 1 }), false);
    twin_linear(&t, 2, 4, true);
    twin_finish(&t);
    float *theirs[TWIN_PARAMS];
    for (size_t k = 0; k < t.params; k++) {
        size_t bytes = bx_net_param(t.net, k)->elements * sizeof(float);

        theirs[k] = malloc(bytes);
        cr_assert_not_null(theirs[k]);
        memcpy(theirs[k], t.value[k], bytes);
    }
    cr_assert_eq(bx_net_set_params(t.net, (const float *const *)theirs), 0, "%s", bx_error_text());
    for (size_t k = 0; k < t.params; k++) {
        memset(theirs[k], 0xff, bx_net_param(t.net, k)->elements * sizeof(float));     /* not a number */
        free(theirs[k]);
    }
    twin_check_forward(&t);
    twin_check_backward(&t);
    twin_end(&t);
}

Test(nn, parameters_are_listed_as_they_were_named)
{
    struct bx_net *net = NULL;

    twin_create(&net, NULL);
    int node = bx_net_input(net, 2, 3, 9, 7);
    node = bx_net_conv(net, node, &(struct bx_conv){ "conv", 4, 3, 2, 1, true });
    node = bx_net_batch_norm(net, node, "norm", true);
    node = bx_net_linear(net, node, "fc", 6, false);
    cr_assert_eq(bx_net_finish(net, node), 0, "%s", bx_error_text());
    static const struct bx_net_param WANT[] = {
        { "conv.weight", 4, { 4, 3, 3, 3 }, 108 }, { "conv.bias", 1, { 4 }, 4 }, { "norm.weight", 1, { 4 }, 4 },
        { "norm.bias", 1, { 4 }, 4 }, { "fc.weight", 2, { 6, 80 }, 480 },
    };
    cr_assert_eq(bx_net_params(net), 5);
    for (size_t k = 0; k < 5; k++) {
        const struct bx_net_param *got = bx_net_param(net, k);

        cr_assert_str_eq(got->name, WANT[k].name);
        cr_assert_eq(got->ndim, WANT[k].ndim);
        for (int d = 0; d < got->ndim; d++)
            cr_assert_eq(got->shape[d], WANT[k].shape[d]);
        cr_assert_eq(got->elements, WANT[k].elements);
    }
    cr_assert_null(bx_net_param(net, 5));
    cr_assert_eq(bx_net_param_elements(net), 600);
    cr_assert_eq(bx_net_output_elements(net), 12);
    cr_assert_null(bx_net_input_grad(net));
    cr_assert_eq(strncmp(bx_nn_backend(), "2.", 2), 0, "%s", bx_nn_backend());
    bx_net_destroy(net);
}

Test(nn, running_statistics_begin_at_0_and_1_and_can_be_set)
{
    struct twin t;
    float *mean, *var;
    size_t channels = 0;

    begin_shape(&t, 1);
    twin_norm(&t, 0, false);
    twin_finish(&t);
    cr_assert_eq(bx_net_running(t.net, "op1", &mean, &var, &channels), 0, "%s", bx_error_text());
    cr_assert_eq(channels, 5);
    for (size_t c = 0; c < channels; c++) {
        cr_assert_eq(mean[c], 0.0f);
        cr_assert_eq(var[c], 1.0f);
        mean[c] = 0.25f * (float)c;
        var[c] = 2.0f + (float)c;
        t.node[1].mean[channels + c] = (double)mean[c];
        t.node[1].var[channels + c] = (double)var[c];
    }
    twin_check_predict(&t);
    twin_check_forward(&t);
    twin_check_predict(&t);
    cr_assert_eq(bx_net_running(t.net, "op2", &mean, &var, &channels), -ENOENT);
    cr_assert_eq(bx_net_running(t.net, "", &mean, &var, &channels), -ENOENT);
    twin_end(&t);
}

/* Far from zero, and more of them than a float can sum one after the other. */
Test(nn, statistics_of_many_values_far_from_zero_are_precise)
{
    enum { IMAGES = 4, CHANNELS = 8, PIXELS = 96 * 96, COUNT = IMAGES * PIXELS };
    static float in[IMAGES * CHANNELS * PIXELS], out[IMAGES * CHANNELS * PIXELS];
    const float scale[CHANNELS] = { 0 }, *params[2] = { scale, scale };
    struct bx_net *net = NULL;
    float *mean, *var;

    twin_create(&net, NULL);
    int node = bx_net_batch_norm(net, bx_net_input(net, IMAGES, CHANNELS, 96, 96), "norm", false);
    cr_assert_eq(bx_net_finish(net, node), 0, "%s", bx_error_text());
    for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++)
        in[i] = 50.0f + (float)(i * 7919 % 1024) / 1024.0f;
    cr_assert_eq(bx_net_set_params(net, params), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_forward(net, in, out), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_running(net, "norm", &mean, &var, NULL), 0, "%s", bx_error_text());
    for (size_t c = 0; c < CHANNELS; c++) {
        double sum = 0.0, square = 0.0;

        for (size_t i = 0; i < COUNT; i++)
            sum += (double)in[(i / PIXELS * CHANNELS + c) * PIXELS + i % PIXELS];
        for (size_t i = 0; i < COUNT; i++)
            square += pow((double)in[(i / PIXELS * CHANNELS + c) * PIXELS + i % PIXELS] - sum / COUNT, 2.0);
        double want[2] = { 0.1 * sum / COUNT, 0.9 + 0.1 * square / (COUNT - 1) };

        cr_assert_lt(fabs((double)mean[c] - want[0]), 2e-7 * want[0], "%.9g instead of %.9g", mean[c], want[0]);
        cr_assert_lt(fabs((double)var[c] - want[1]), 2e-7 * want[1], "%.9g instead of %.9g", var[c], want[1]);
    }
    bx_net_destroy(net);
}

/* ---- Errors --------------------------------------------------------------------------------------- */

Test(nn, calls_out_of_order_are_refused)
{
    float in[4] = { 1, 2, 3, 4 }, out[2], weight[8] = { 0 }, grad[8];
    const float *params[1] = { weight };
    float *grads[1] = { grad };
    struct bx_net *net = NULL;

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
}

Test(nn, sizes_and_names_that_make_no_sense_are_refused)
{
    static const struct bx_conv BAD[] = {
        { "c", 0, 3, 1, 1, false }, { "c", 4, 0, 1, 1, false }, { "c", 4, 3, 0, 1, false },
        { "c", 4, 3, 1, -1, false }, { "c", 4, 8, 1, 0, false }, { NULL, 4, 3, 1, 1, false },
        { "c", -4, 3, 1, 1, false }, { "taken", 4, 3, 1, 1, false },
    };
    struct bx_net *net = NULL;

    twin_create(&net, NULL);
    for (int zero = 0; zero < 4; zero++)
        cr_assert_eq(bx_net_input(net, zero != 0, zero != 1, zero != 2, zero != 3), -EINVAL);
    cr_assert_eq(bx_net_relu(net, 0), -EINVAL);
    cr_assert_eq(bx_net_finish(net, 0), -EINVAL);
    int input = bx_net_input(net, 1, 3, 7, 7);
    int node = bx_net_batch_norm(net, input, "taken", false);
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++)
        cr_assert_eq(bx_net_conv(net, node, &BAD[i]), -EINVAL, "%zu", i);
    cr_assert_eq(bx_net_linear(net, node, "fc", 0, true), -EINVAL);
    cr_assert_eq(bx_net_max_pool(net, node, 0, 1, 0), -EINVAL);
    cr_assert_eq(bx_net_max_pool(net, node, 2, 0, 0), -EINVAL);
    cr_assert_eq(bx_net_softmax(net, node), -EINVAL);
    cr_assert_eq(bx_net_add(net, node, bx_net_max_pool(net, node, 2, 2, 0), false), -EINVAL);
    bx_net_destroy(net);
    cr_assert_eq(bx_net_create(&(struct bx_net_options){ .threads = -1 }, &net), -EINVAL);
}

Test(nn, a_bad_node_is_refused_and_an_error_is_handed_on)
{
    struct bx_net *net = NULL;

    twin_create(&net, NULL);
    int node = bx_net_input(net, 1, 3, 7, 7);
    cr_assert_eq(bx_net_relu(net, node + 1), -EINVAL);
    cr_assert_eq(bx_net_add(net, node, node + 1, false), -EINVAL);
    cr_assert_eq(bx_net_conv(net, 1000, &(struct bx_conv){ "c", 4, 3, 1, 1, false }), -EINVAL);
    for (int i = 0; i < 2; i++) {
        int error = i == 0 ? -ENOMEM : BX_E_STATE;

        cr_assert_eq(bx_net_relu(net, error), error);
        cr_assert_eq(bx_net_conv(net, error, &(struct bx_conv){ "c", 4, 3, 1, 1, false }), error);
        cr_assert_eq(bx_net_batch_norm(net, error, "n", true), error);
        cr_assert_eq(bx_net_add(net, error, node, true), error);
        cr_assert_eq(bx_net_add(net, node, error, true), error);
        cr_assert_eq(bx_net_max_pool(net, error, 2, 2, 0), error);
        cr_assert_eq(bx_net_global_avg_pool(net, error), error);
        cr_assert_eq(bx_net_linear(net, error, "fc", 2, true), error);
        cr_assert_eq(bx_net_softmax(net, error), error);
        cr_assert_eq(bx_net_finish(net, error), error);
    }
    cr_assert_eq(bx_net_finish(net, bx_net_relu(net, node)), 0, "%s", bx_error_text());
    bx_net_destroy(net);
}
