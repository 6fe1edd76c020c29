/* SPDX-License-Identifier: MIT */
/*
 * lib/nn on the CPU: the tests of every backend (nn_cases.h), those of the CPU backend alone, and the errors of the
 * building calls, which call no backend.
 */
#include "boxcar_cuda.h"
#include "nn_cases.h"
#include "tests/harness/twin.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#define ON_CPU(name)    \
    Test(nn, name)      \
    {                   \
        nn_##name();    \
    }
NN_CASES(ON_CPU)

/* ---- Parameters and statistics -------------------------------------------------------------------- */

TestSuite(nn, .timeout = 120);

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

/* Far from zero, and too many to be summed one after the other in float. */
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

Test(nn, invalid_sizes_and_names_are_refused)
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

Test(nn, a_bad_node_is_refused_and_an_earlier_error_is_returned)
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

#if !BXI_CUDA
/* make CUDA=0 */
Test(nn, without_cuda_there_is_no_device_and_no_net_on_one)
{
    struct bx_cuda *cuda = NULL;
    struct bx_net *net = NULL;
    int nothing = 0;

    cr_assert_eq(bx_cuda_open(0, &cuda), -ENOTSUP);
    cr_assert_not_null(strstr(bx_error_text(), "without CUDA"), "%s", bx_error_text());
    cr_assert_eq(bx_cuda_count(), -ENOTSUP);
    cr_assert_eq(bx_net_create(&(struct bx_net_options){ .cuda = (struct bx_cuda *)&nothing }, &net), -ENOTSUP);
    cr_assert_null(net);
    bx_cuda_close(cuda);
}
#endif
