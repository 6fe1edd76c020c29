/* SPDX-License-Identifier: MIT */
/*
 * lib/nn on the CPU: the tests of every backend (nn_cases.h), those of the CPU backend alone, and the errors of the
 * building calls, which call no backend.
 */
#include "boxcar_cuda.h"
#include "nn_cases.h"
#include "tests/harness/twin.h"

#include <math.h>

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
    static const struct bx_net_param_info WANT[] = {
        { "conv.weight", 4, { 4, 3, 3, 3 }, 108 }, { "conv.bias", 1, { 4 }, 4 }, { "norm.weight", 1, { 4 }, 4 },
        { "norm.bias", 1, { 4 }, 4 }, { "fc.weight", 2, { 6, 80 }, 480 },
    };
    cr_assert_eq(bx_net_params(net), 5);
    for (size_t k = 0; k < 5; k++) {
        const struct bx_net_param_info *got = bx_net_param(net, k);

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

/* ---- Shared parameters ---------------------------------------------------------------------------- */

enum { IMAGES = 3, CHANNELS = 20, SIDE = 9, FEATURES = 5, PARAMS = 6 };

static int build_small(struct bx_net *net, int features)
{
    int node = bx_net_input(net, IMAGES, 3, SIDE, SIDE);

    node = bx_net_conv(net, node, &(struct bx_conv){ "conv", CHANNELS, 3, 2, 1, true });
    node = bx_net_batch_norm(net, node, "norm", true);
    return bx_net_finish(net, bx_net_linear(net, node, "fc", features, true));
}

struct small {
    struct bx_net *net;
    float *params[PARAMS], *grads[PARAMS], *input, *output;
};

static void make_small(struct small *small, const struct small *owner, int salt)
{
    cr_assert_eq(bx_net_create(NULL, &small->net), 0, "%s", bx_error_text());
    if (owner != NULL)
        cr_assert_eq(bx_net_share_params(small->net, owner->net), 0, "%s", bx_error_text());
    cr_assert_eq(build_small(small->net, FEATURES), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_params(small->net), PARAMS);
    for (size_t i = 0; i < PARAMS; i++) {
        size_t elements = bx_net_param(small->net, i)->elements;

        small->params[i] = calloc(elements, sizeof(float));
        small->grads[i] = calloc(elements, sizeof(float));
        for (size_t k = 0; k < elements; k++)
            small->params[i][k] = (float)((k * 7 + i + (size_t)salt) % 11) / 11.0f - 0.4f;
    }
    small->input = calloc(bx_net_input_elements(small->net), sizeof(float));
    small->output = calloc(bx_net_output_elements(small->net), sizeof(float));
    for (size_t k = 0; k < bx_net_input_elements(small->net); k++)
        small->input[k] = (float)((k * 5 + (size_t)salt) % 13) / 13.0f;
}

static void free_small(struct small *small)
{
    for (size_t i = 0; i < PARAMS; i++) {
        free(small->params[i]);
        free(small->grads[i]);
    }
    free(small->input);
    free(small->output);
    bx_net_destroy(small->net);
}

static void forward_small(struct small *small)
{
    cr_assert_eq(bx_net_forward(small->net, small->input, small->output), 0, "%s", bx_error_text());
}

static void backward_small(struct small *small)
{
    cr_assert_eq(bx_net_backward(small->net, small->output, small->grads), 0, "%s", bx_error_text());
}

/* Three forward passes before the first backward pass, with one copy of the parameters. */
Test(nn, nets_that_share_parameters_compute_what_nets_of_their_own_do)
{
    struct small owner, shares[2], alone;

    make_small(&owner, NULL, 0);
    make_small(&alone, NULL, 0);
    cr_assert_eq(bx_net_set_params(alone.net, (const float *const *)owner.params), 0);
    for (int i = 0; i < 2; i++)
        make_small(&shares[i], &owner, i + 1);
    cr_assert_eq(bx_net_forward(shares[0].net, shares[0].input, shares[0].output), BX_E_STATE);
    cr_assert_eq(bx_net_set_params(owner.net, (const float *const *)owner.params), 0);
    forward_small(&owner);
    forward_small(&shares[0]);
    forward_small(&shares[1]);
    for (int i = 1; i >= 0; i--) {
        struct small *share = &shares[i];

        memcpy(alone.input, share->input, bx_net_input_elements(alone.net) * sizeof(float));
        forward_small(&alone);
        cr_assert_eq(memcmp(alone.output, share->output, bx_net_output_elements(alone.net) * sizeof(float)), 0);
        backward_small(&alone);
        backward_small(share);
        for (size_t k = 0; k < PARAMS; k++)
            cr_assert_eq(memcmp(alone.grads[k], share->grads[k], bx_net_param(alone.net, k)->elements * sizeof(float)),
                         0, "%s", bx_net_param(alone.net, k)->name);
    }
    backward_small(&owner);
    free_small(&alone);
    for (int i = 0; i < 2; i++)
        free_small(&shares[i]);
    free_small(&owner);
}

Test(nn, a_backward_pass_with_newer_shared_parameters_is_refused)
{
    struct small owner, share;

    make_small(&owner, NULL, 0);
    make_small(&share, &owner, 0);
    cr_assert(bx_net_shares_params(share.net, owner.net));
    cr_assert_not(bx_net_shares_params(owner.net, share.net));
    cr_assert_eq(bx_net_set_params(share.net, (const float *const *)share.params), BX_E_STATE);
    cr_assert_eq(bx_net_set_params(owner.net, (const float *const *)owner.params), 0);
    forward_small(&share);
    cr_assert_eq(bx_net_set_params(owner.net, (const float *const *)owner.params), 0);
    cr_assert_eq(bx_net_backward(share.net, share.output, share.grads), BX_E_STATE);
    forward_small(&share);
    backward_small(&share);
    free_small(&share);
    free_small(&owner);
}

Test(nn, parameters_are_shared_by_equal_nets_only)
{
    struct bx_net *net = NULL;
    struct small owner, share;

    make_small(&owner, NULL, 0);
    make_small(&share, &owner, 0);
    cr_assert_eq(bx_net_create(NULL, &net), 0);
    cr_assert_eq(bx_net_share_params(net, net), BX_E_STATE);
    cr_assert_eq(bx_net_share_params(net, share.net), -ENOTSUP);
    cr_assert_eq(bx_net_share_params(net, NULL), -EINVAL);
    cr_assert_eq(bx_net_share_params(net, owner.net), 0);
    cr_assert_eq(build_small(net, FEATURES + 1), -EINVAL);
    cr_assert_not_null(strstr(bx_error_text(), "another parameter 4"), "%s", bx_error_text());
    bx_net_destroy(net);
    cr_assert_eq(bx_net_create(NULL, &net), 0);
    bx_net_input(net, 1, 3, 8, 8);
    cr_assert_eq(bx_net_share_params(net, owner.net), BX_E_STATE);
    bx_net_destroy(net);
    free_small(&share);
    free_small(&owner);
}
