/* SPDX-License-Identifier: MIT */
/*
 * The tests that every backend must pass: each operation, forward and backward, against plain loops in double precision
 * (twin.h); parameters and statistics; the order of calls. test_nn.c runs each on the CPU, test_nn_cuda.c on a GPU, as
 * a test of the same name.
 */
#ifndef TESTS_NN_CASES_H
#define TESTS_NN_CASES_H

#include "tests/harness/test.h"

#define NN_CASES(X) \
    X(convolution_agrees_for_kernels_strides_paddings_and_biases) \
    X(batch_norm_agrees_with_and_without_relu) \
    X(relu_and_sums_agree) \
    X(a_nan_passes_relu_both_ways) \
    X(a_node_can_be_added_to_itself) \
    X(pools_agree) \
    X(linear_agrees_over_a_matrix_and_over_images) \
    X(softmax_agrees) \
    X(softmax_takes_large_values) \
    X(one_node_is_read_by_every_kind_of_operation) \
    X(a_network_agrees_whose_nodes_have_several_consumers) \
    X(a_convolution_that_one_norm_and_one_sum_read) \
    X(gradients_agree_where_that_of_the_input_is_not_wanted) \
    X(set_params_copies) \
    X(running_statistics_begin_at_0_and_1_and_can_be_set) \
    X(a_norm_of_one_value_a_channel_predicts_but_does_not_train) \
    X(calls_out_of_order_are_refused)

#define NN_DECLARE(name) void nn_##name(void);
NN_CASES(NN_DECLARE)
#undef NN_DECLARE

#endif
