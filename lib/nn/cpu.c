/* SPDX-License-Identifier: MIT */
/*
 * The CPU backend (cpu.h): plans a net, binds the caller's arrays, runs the programs. Run by the thread that uses the
 * net.
 */
#include "cpu.h"

#include <errno.h>
#include <stdlib.h>

/* ---- Planning ------------------------------------------------------------------------------------ */

/* Plans the reorders between the last node and the caller's row-major arrays. */
static void plan_ends(struct bxi_plan *plan, const struct bxi_node *last, struct bxi_work *work)
{
    const struct bxi_layout plain = bxi_nn_plain_out(last);
    struct bxi_tensor output = bxi_nn_callers_tensor(plan, &plain), grad = bxi_nn_callers_tensor(plan, &plain);
    struct bxi_tensor first;

    plan->output = output.memory;
    plan->output_grad = grad.memory;
    bxi_nn_add_reorder(plan, &plan->forward, &work->out, &output);
    if (!last->grad)
        return;
    first = bxi_nn_new_tensor(plan, &work->out.layout);
    bxi_nn_add_reorder(plan, &plan->backward, &grad, &first);
    bxi_nn_give_grad(plan, plan->node, &first);
}

/* Allocates the scratch memory: that of the operation planned so far that needs most. */
static void make_scratch(struct bxi_plan *plan)
{
    void *data;

    if (plan->error != 0 || plan->scratch_bytes == 0)
        return;
    data = bxi_nn_aligned_zeros(plan, plan->scratch_bytes);
    if (data == NULL) {
        plan->error = bx_fail(-ENOMEM, "no memory for %zu bytes of scratch", plan->scratch_bytes);
        return;
    }
    bxi_nn_ok(plan, bxi_onednn.bind(plan->scratch, data), "scratchpad");
}

static void plan_steps(struct bxi_plan *plan)
{
    const struct bx_net *net = plan->net;
    /* make_scratch binds the memory when the size is known; oneDNN reads only its address. */
    const struct bxi_layout scratch = bxi_layout_vector(1);
    int last = net->node_count - 1;

    plan->scratch = bxi_nn_make_memory(plan, &scratch, NULL);
    for (plan->node = 0; plan->node <= last && plan->error == 0; plan->node++)
        bxi_nn_plan_forward(plan, &net->nodes[plan->node], &plan->work[plan->node]);
    plan->node = last;
    if (plan->error == 0)
        plan_ends(plan, &net->nodes[last], &plan->work[last]);
    for (; plan->node >= 0 && plan->error == 0; plan->node--)
        if (net->nodes[plan->node].grad)
            bxi_nn_plan_backward(plan, &net->nodes[plan->node], &plan->work[plan->node]);
    plan->node = last;
    make_scratch(plan);
}

static int plan_net(struct bx_net *net)
{
    struct bxi_plan *plan = calloc(1, sizeof *plan);

    if (plan == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    net->plan = plan;
    plan->net = net;
    plan->owner = net->owner != NULL ? net->owner->plan : NULL;
    bxi_onednn.use_threads(net->threads);
    plan->work = calloc((size_t)net->node_count, sizeof *plan->work);
    plan->params = calloc(net->param_count + 1, sizeof(struct bxi_memory *));
    plan->grads = calloc(net->param_count + 1, sizeof(struct bxi_memory *));
    if (plan->work == NULL || plan->params == NULL || plan->grads == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    if (bxi_nn_ok(plan, bxi_onednn.open(&plan->dnn), "engine"))
        plan_steps(plan);
    return plan->error;
}

static void unplan_net(struct bx_net *net)
{
    struct bxi_plan *plan = net->plan;

    if (plan->dnn != NULL)
        bxi_onednn.close(plan->dnn);
    while (plan->chunks != NULL) {
        struct bxi_chunk *next = plan->chunks->next;

        free(plan->chunks);
        plan->chunks = next;
    }
    free(plan->load.steps);
    free(plan->forward.steps);
    free(plan->backward.steps);
    free(plan->predict.steps);
    free(plan->buffers);
    free(plan->loaded);
    free(plan->work);
    free(plan->params);
    free(plan->grads);
    free(plan);
}

/* ---- Computing ----------------------------------------------------------------------------------- */

static int run(struct bxi_plan *plan, const struct bxi_program *program)
{
    int result = 0;

    for (size_t i = 0; i < program->count && result == 0; i++) {
        const struct bxi_step *step = &program->steps[i];

        plan->node = step->node;
        switch (step->kind) {
        case BXI_STEP_OP: result = bxi_onednn.run(plan->dnn, step->op); break;
        case BXI_STEP_SUM:
        case BXI_STEP_RELU_SUM:
        case BXI_STEP_MASKED_SUM: bxi_nn_sum(step); break;
        case BXI_STEP_GATHER:
        case BXI_STEP_SCATTER: bxi_nn_move(plan->net, step); break;
        case BXI_STEP_STATISTICS:
            bxi_nn_batch_statistics(&plan->net->nodes[step->node], &plan->work[step->node]);
            break;
        }
    }
    if (result == 0)
        result = bxi_onednn.wait(plan->dnn);
    bxi_nn_ok(plan, result, "computing");
    return plan->error;
}

static void bind(struct bxi_plan *plan, struct bxi_memory *memory, const void *data)
{
    if (memory != NULL)
        bxi_nn_ok(plan, bxi_onednn.bind(memory, (void *)data), "array");
}

static int set_params(struct bx_net *net, const float *const *params)
{
    struct bxi_plan *plan = net->plan;

    plan->error = 0;
    bxi_onednn.use_threads(net->threads);
    for (size_t i = 0; i < net->param_count; i++)
        bind(plan, plan->params[i], params[i]);
    return plan->error != 0 ? plan->error : run(plan, &plan->load);
}

static int compute(struct bx_net *net, const struct bxi_program *program, const float *input, float *output)
{
    struct bxi_plan *plan = net->plan;

    plan->error = 0;
    bxi_onednn.use_threads(net->threads);
    bind(plan, plan->input, input);
    bind(plan, plan->output, output);
    return plan->error != 0 ? plan->error : run(plan, program);
}

static int forward(struct bx_net *net, const float *input, float *output)
{
    struct bxi_plan *plan = net->plan;

    return compute(net, &plan->forward, input, output);
}

/* The step of a batch normalisation that reads the running statistics. */
static void predict_batch_norm(struct bxi_plan *plan, const struct bxi_node *node)
{
    const struct bxi_layout vector = bxi_layout_vector(node->dims[1]);
    const struct bxi_tensor mean = { .memory = bxi_nn_make_memory(plan, &vector, node->mean) };
    const struct bxi_tensor var = { .memory = bxi_nn_make_memory(plan, &vector, node->var) };

    bxi_nn_add_norm(plan, &plan->predict, BXI_PASS_PREDICT, &mean, &var);
}

/* Copies the forward program, with the same operations except batch normalisation. */
static void plan_predict(struct bxi_plan *plan)
{
    const struct bxi_program *from = &plan->forward;
    struct bxi_program *to = &plan->predict;

    for (size_t i = 0; i < from->count && plan->error == 0; i++) {
        const struct bxi_node *node = &plan->net->nodes[from->steps[i].node];
        struct bxi_step *step;

        if (from->steps[i].kind == BXI_STEP_STATISTICS)
            continue;
        plan->node = from->steps[i].node;
        if (node->op == BXI_NN_BATCH_NORM && plan->work[plan->node].forward_step == i) {
            predict_batch_norm(plan, node);
            continue;
        }
        step = bxi_nn_add_step(plan, to, from->steps[i].kind);
        if (step != NULL)
            *step = from->steps[i];
    }
    make_scratch(plan);
    if (plan->error != 0) {
        free(to->steps);
        *to = (struct bxi_program){ .steps = NULL };
    }
}

static int predict(struct bx_net *net, const float *input, float *output)
{
    struct bxi_plan *plan = net->plan;

    if (plan->predict.steps == NULL) {
        plan->error = 0;
        bxi_onednn.use_threads(net->threads);
        plan_predict(plan);
        if (plan->error != 0)
            return plan->error;
    }
    return compute(net, &plan->predict, input, output);
}

static int backward(struct bx_net *net, const float *output_grad, float *const *grads)
{
    struct bxi_plan *plan = net->plan;

    plan->error = 0;
    bxi_onednn.use_threads(net->threads);
    bind(plan, plan->output_grad, output_grad);
    for (size_t i = 0; i < net->param_count; i++)
        bind(plan, plan->grads[i], grads[i]);
    return plan->error != 0 ? plan->error : run(plan, &plan->backward);
}

static const float *input_grad(const struct bx_net *net)
{
    const struct bxi_plan *plan = net->plan;

    return plan->input_grad.data;
}

static int check(struct bx_cuda *cuda)
{
    (void)cuda;
    return bxi_onednn.check();
}

const struct bxi_nn_backend bxi_nn_cpu = {
    .check = check,
    .plan = plan_net,
    .unplan = unplan_net,
    .set_params = set_params,
    .forward = forward,
    .predict = predict,
    .backward = backward,
    .input_grad = input_grad,
};
