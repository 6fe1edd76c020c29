/* SPDX-License-Identifier: MIT */
/*
 * NULL where a function of boxcar_nn.h, boxcar_cuda.h, boxcar_autograd.h or boxcar_dist.h needs a pointer: as
 * test_null.c, which also looks for functions without a case in either file.
 */
#include "null.h"

#include "boxcar_dist.h"

Test(null, is_refused_by_every_function_of_boxcar_nn_h, .timeout = 60)
{
    struct bx_net *net = NULL;
    float value = 1;
    const float *const none[1] = { NULL };
    struct bx_sgd step = { .elements = 1, .grad_count = 1 };

    REFUSED(bx_net_create(NULL, NULL));
    bx_net_destroy(NULL);
    REFUSED(bx_net_input(NULL, 1, 1, 1, 1));
    REFUSED(bx_net_conv(NULL, 0, &(struct bx_conv){ "a", 1, 1, 1, 0, false }));
    REFUSED(bx_net_batch_norm(NULL, 0, "a", false));
    REFUSED(bx_net_relu(NULL, 0));
    REFUSED(bx_net_add(NULL, 0, 0, false));
    REFUSED(bx_net_max_pool(NULL, 0, 1, 1, 0));
    REFUSED(bx_net_global_avg_pool(NULL, 0));
    REFUSED(bx_net_linear(NULL, 0, "a", 1, true));
    REFUSED(bx_net_softmax(NULL, 0));
    REFUSED(bx_net_finish(NULL, 0));
    IS_ZERO(bx_net_params(NULL));
    IS_NULL(bx_net_param(NULL, 0));
    IS_ZERO(bx_net_param_elements(NULL));
    REFUSED(bx_net_set_params(NULL, none));
    REFUSED(bx_net_share_params(NULL, NULL));
    IS_ZERO(bx_net_shares_params(NULL, NULL));
    REFUSED(bx_net_running(NULL, "a", NULL, NULL, NULL));
    IS_ZERO(bx_net_output_elements(NULL));
    REFUSED(bx_net_forward(NULL, &value, &value));
    REFUSED(bx_net_predict(NULL, &value, &value));
    REFUSED(bx_net_backward(NULL, &value, NULL));
    IS_NULL(bx_net_input_grad(NULL));
    cr_expect(isnan(bx_mse_loss(NULL, &value, 1, &value)));
    cr_expect(isnan(bx_mse_loss(&value, NULL, 1, &value)));
    cr_expect_eq(bx_mse_loss(&value, &value, 1, NULL), 0);
    bx_sgd_step(NULL);
    bx_sgd_step(&step);
    IS_ZERO(bx_net_input_elements(NULL));
    REFUSED(bx_nn_sgemm(NULL));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .b = &value, .c = &value }));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .a = &value, .c = &value }));
    REFUSED(bx_nn_sgemm(&(struct bx_sgemm){ .m = 1, .n = 1, .k = 1, .a = &value, .b = &value }));

    if (bx_net_create(NULL, &net) < 0)
        cr_skip("%s", bx_error_text());
    bx_net_input(net, 1, 1, 2, 2);
    REFUSED(bx_net_conv(net, 0, NULL));
    REFUSED(bx_net_conv(net, 0, &(struct bx_conv){ NULL, 1, 1, 1, 0, false }));
    REFUSED(bx_net_batch_norm(net, 0, NULL, false));
    REFUSED(bx_net_linear(net, 0, NULL, 1, true));
    REFUSED(bx_net_running(net, NULL, NULL, NULL, NULL));
    cr_assert_eq(bx_net_finish(net, bx_net_linear(net, 0, "a", 1, false)), 0);
    REFUSED(bx_net_set_params(net, NULL));
    REFUSED(bx_net_set_params(net, none));
    REFUSED(bx_net_forward(net, NULL, &value));
    REFUSED(bx_net_forward(net, &value, NULL));
    REFUSED(bx_net_predict(net, NULL, &value));
    REFUSED(bx_net_predict(net, &value, NULL));

    const float weight[4] = { 0 }, input[4] = { 0 };
    float grad[4];

    cr_assert_eq(bx_net_set_params(net, (const float *const[]){ weight }), 0);
    cr_assert_eq(bx_net_forward(net, input, &value), 0);
    REFUSED(bx_net_backward(net, NULL, (float *const[]){ grad }));
    REFUSED(bx_net_backward(net, &value, NULL));
    REFUSED(bx_net_backward(net, &value, (float *const[]){ NULL }));
    bx_net_destroy(net);
}

Test(null, is_refused_by_every_function_of_boxcar_cuda_h, .timeout = 60)
{
    float value = 0;
    double loss = 0;
    void *memory = NULL;
    struct bx_kernels *kernels = NULL;
    /* Never dereferenced, because another pointer is NULL. */
    struct bx_cuda *cuda = (struct bx_cuda *)(void *)&value;

    REFUSED(bx_cuda_open(0, NULL));
    bx_cuda_close(NULL);
    IS_NULL(bx_cuda_name(NULL));
    IS_NULL(bx_cuda_stream(NULL));
    REFUSED(bx_cuda_wait(NULL));
    REFUSED(bx_cuda_alloc(NULL, 1, &memory));
    REFUSED(bx_cuda_alloc(cuda, 1, NULL));
    bx_cuda_free(NULL, &value);
    bx_cuda_free(cuda, NULL);
    REFUSED(bx_cuda_alloc_host(NULL, 1, &memory));
    REFUSED(bx_cuda_alloc_host(cuda, 1, NULL));
    bx_cuda_free_host(NULL, &value);
    bx_cuda_free_host(cuda, NULL);
    REFUSED(bx_cuda_copy(NULL, &value, &value, 1));
    REFUSED(bx_cuda_copy(cuda, NULL, &value, 1));
    REFUSED(bx_cuda_copy(cuda, &value, NULL, 1));
    REFUSED(bx_cuda_zero(NULL, &value, 1));
    REFUSED(bx_cuda_zero(cuda, NULL, 1));
    REFUSED(bx_cuda_mse_loss(NULL, &value, &value, 1, NULL, &loss));
    REFUSED(bx_cuda_mse_loss(cuda, NULL, &value, 1, NULL, &loss));
    REFUSED(bx_cuda_mse_loss(cuda, &value, NULL, 1, NULL, &loss));
    REFUSED(bx_cuda_mse_loss(cuda, &value, &value, 1, NULL, NULL));
    REFUSED(bx_cuda_sgd_step(NULL, &(struct bx_sgd){ .from = &value, .to = &value, .velocity = &value,
                                                     .grads = (const float *const[]){ &value }, .grad_count = 1 }));
    REFUSED(bx_cuda_sgd_step(cuda, NULL));
    REFUSED(bx_cuda_sgd_step(cuda, &(struct bx_sgd){ .grad_count = 1 }));
    REFUSED(bx_kernels_create(NULL, "a", "", &kernels));
    REFUSED(bx_kernels_create(cuda, NULL, "", &kernels));
    REFUSED(bx_kernels_create(cuda, "a", NULL, &kernels));
    REFUSED(bx_kernels_create(cuda, "a", "", NULL));
    bx_kernels_destroy(NULL);
    REFUSED(bx_kernel_launch(NULL, "a", 1, &value));
}

/* An operation that is given a NULL returns one, and its tape keeps -EINVAL. */
#define STOPPED(call)                                                                               \
    do {                                                                                            \
        bx_fail(-EIO, "an older sentence");                                                         \
        IS_NULL(call);                                                                              \
        is_refused(#call, bx_tape_error(tape));                                                     \
        bx_tape_clear(tape);                                                                        \
    } while (0)

static void try_operations(struct bx_tape *tape, struct bx_var *a)
{
    struct bx_generator generator = { .seed = 1 };
    struct bx_var *none = NULL;

    STOPPED(bx_tape_input(tape, NULL));
    STOPPED(bx_var_detach(tape, NULL));
    STOPPED(bx_var_add(tape, NULL, a));
    STOPPED(bx_var_add(tape, a, NULL));
    STOPPED(bx_var_sub(tape, NULL, a));
    STOPPED(bx_var_mul(tape, a, NULL));
    STOPPED(bx_var_scale(tape, NULL, 1));
    STOPPED(bx_var_neg(tape, NULL));
    STOPPED(bx_var_exp(tape, NULL));
    STOPPED(bx_var_log(tape, NULL));
    STOPPED(bx_var_relu(tape, NULL));
    STOPPED(bx_var_tanh(tape, NULL));
    STOPPED(bx_var_sigmoid(tape, NULL));
    STOPPED(bx_var_matmul(tape, NULL, a));
    STOPPED(bx_var_matmul(tape, a, NULL));
    STOPPED(bx_var_linear(tape, NULL, a, NULL));
    STOPPED(bx_var_linear(tape, a, NULL, NULL));
    STOPPED(bx_var_dropout(tape, NULL, 0.5, true, &generator));
    STOPPED(bx_var_dropout(tape, a, 0.5, true, NULL));
    STOPPED(bx_var_softmax(tape, NULL));
    STOPPED(bx_var_log_softmax(tape, NULL));
    STOPPED(bx_var_gather(tape, NULL, bx_var_value(a)));
    STOPPED(bx_var_gather(tape, a, NULL));
    STOPPED(bx_var_embedding(tape, NULL, bx_var_value(a)));
    STOPPED(bx_var_embedding(tape, a, NULL));
    STOPPED(bx_var_cross_entropy(tape, NULL, bx_var_value(a)));
    STOPPED(bx_var_cross_entropy(tape, a, NULL));
    STOPPED(bx_var_mse(tape, NULL, a));
    STOPPED(bx_var_mse(tape, a, NULL));
    STOPPED(bx_var_sum(tape, NULL));
    STOPPED(bx_var_mean(tape, NULL));
    STOPPED(bx_var_sum_dim(tape, NULL, 0));
    STOPPED(bx_var_reshape(tape, NULL, 1, &(int64_t){ 1 }));
    STOPPED(bx_var_reshape(tape, a, 1, NULL));
    STOPPED(bx_var_transpose(tape, NULL, 0, 0));
    STOPPED(bx_var_slice(tape, NULL, 0, 0, 1));
    STOPPED(bx_var_concat(tape, NULL, 1, 0));
    STOPPED(bx_var_concat(tape, &none, 1, 0));
    STOPPED(bx_var_stack(tape, NULL, 1, 0));
    STOPPED(bx_var_stack(tape, &none, 1, 0));
    STOPPED(bx_var_net(tape, NULL, a));
    IS_NULL(bx_var_add(NULL, a, a));
}

static void try_passes(struct bx_tape *tape, struct bx_var *a)
{
    OWN(grads) *grads = NULL;
    struct bx_optim *optim = NULL;
    struct bx_lstm_result result;
    struct bx_net_op *op = NULL;
    struct bx_var *var;

    REFUSED(bx_var_lstm(NULL, a, &(struct bx_lstm){ .layers = 1 }, &result));
    REFUSED(bx_var_lstm(tape, NULL, &(struct bx_lstm){ .layers = 1 }, &result));
    bx_tape_clear(tape);
    REFUSED(bx_var_lstm(tape, a, NULL, &result));
    REFUSED(bx_var_lstm(tape, a, &(struct bx_lstm){ .layers = 1 }, NULL));
    REFUSED(bx_var_custom(NULL, &(struct bx_custom){ .name = "a" }, &var));
    REFUSED(bx_var_custom(tape, NULL, &var));
    REFUSED(bx_var_custom(tape, &(struct bx_custom){ .name = "a" }, NULL));
    REFUSED(bx_net_op_create(NULL, &a, &op));
    REFUSED(bx_net_op_share(NULL, NULL, &op));
    bx_net_op_destroy(NULL);
    REFUSED(bx_grads_create(NULL, NULL));
    cr_assert_eq(bx_grads_create(NULL, &grads), 0);
    IS_ZERO(bx_grads_count(NULL));
    IS_NULL(bx_grads_get(NULL, a));
    IS_NULL(bx_grads_get(grads, NULL));
    IS_NULL(bx_grads_at(NULL, 0, &var));
    REFUSED(bx_grads_add(NULL, a, bx_var_value(a)));
    REFUSED(bx_grads_add(grads, NULL, bx_var_value(a)));
    REFUSED(bx_grads_add(grads, a, NULL));
    REFUSED(bx_backward(NULL, NULL, 1, false, grads));
    REFUSED(bx_backward(&a, NULL, 1, false, NULL));
    REFUSED(bx_optim_sgd_create(NULL, &a, 1, &optim));
    REFUSED(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 1 }, NULL, 1, &optim));
    REFUSED(bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 1 }, &a, 1, NULL));
    REFUSED(bx_optim_adam_create(NULL, NULL, 1, &optim));
    REFUSED(bx_optim_adam_create(NULL, &a, 1, NULL));
    REFUSED(bx_optim_step(NULL, NULL, grads));
    cr_assert_eq(bx_optim_adam_create(NULL, &a, 1, &optim), 0);
    REFUSED(bx_optim_step(optim, NULL, NULL));
    bx_optim_destroy(optim);
    bx_optim_destroy(NULL);
    bx_grads_clear(NULL);
    bx_grads_destroy(NULL);
}

Test(null, is_refused_by_every_function_of_boxcar_autograd_h, .timeout = 60)
{
    OWN(tape) *tape = NULL;
    OWN(tensor) *value = NULL;
    OWN(var) *var = NULL;

    cr_assert_eq(bx_tensor_create(NULL, BX_F32, 2, (const int64_t[]){ 1, 1 }, &value), 0);
    memset(bx_tensor_data_mut(value), 0, sizeof(float));
    REFUSED(bx_var_create(NULL, false, &var));
    REFUSED(bx_var_create(value, false, NULL));
    cr_assert_eq(bx_var_create(value, true, &var), 0);
    IS_NULL(bx_var_acquire(NULL));
    bx_var_release(NULL);
    IS_ZERO(bx_var_requires_grad(NULL));
    IS_NULL(bx_var_value(NULL));
    IS_NULL(bx_var_acquire_value(NULL));
    REFUSED(bx_var_set_value(NULL, value));
    REFUSED(bx_var_set_value(var, NULL));
    cr_expect(isnan(bx_var_item(NULL)));
    REFUSED(bx_tape_create(NULL, NULL));
    REFUSED(bx_tape_error(NULL));
    bx_tape_clear(NULL);
    bx_tape_destroy(NULL);
    cr_assert_eq(bx_tape_create(NULL, &tape), 0);
    try_operations(tape, var);
    try_passes(tape, var);
}

Test(null, is_refused_by_every_function_of_boxcar_dist_h, .timeout = 60)
{
    OWN(tape) *tape = NULL;
    struct bx_context *context = NULL;
    struct bx_dist_optim *optim = NULL;
    struct bx_dist *dist = NULL;
    struct bx_rref *rref = NULL;

    cr_assert_eq(bx_tape_create(NULL, &tape), 0);
    REFUSED(bx_dist_create(NULL, &dist));
    bx_dist_destroy(NULL);
    IS_ZERO(bx_dist_contexts(NULL));
    REFUSED(bx_context_create(NULL, &context));
    IS_ZERO(bx_context_id(NULL));
    bx_context_end(NULL);
    IS_NULL(bx_context_acquire(NULL));
    bx_context_release(NULL);
    REFUSED(bx_context_error(NULL));
    REFUSED(bx_msg_put_context(NULL, NULL));
    REFUSED(bx_read_context(NULL, NULL, &context));
    REFUSED(bx_msg_put_var(NULL, NULL, NULL));
    IS_NULL(bx_read_var(NULL, tape, NULL));
    REFUSED(bx_context_call(NULL, NULL));
    REFUSED(bx_context_backward(NULL, NULL, NULL, 0, false, 0));
    IS_NULL(bx_context_grads(NULL));
    REFUSED(bx_param_rref(NULL, NULL, &rref));
    REFUSED(bx_dist_optim_create(NULL, NULL, 0, NULL, NULL, &optim));
    bx_dist_optim_destroy(NULL);
    REFUSED(bx_dist_optim_step(NULL, NULL));
}
