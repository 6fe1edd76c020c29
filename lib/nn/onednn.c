/* SPDX-License-Identifier: MIT */
/*
 * The backend that computes with oneDNN 2.x on the CPU (onednn.h): plans a net, binds the caller's arrays,
 * runs the programs. Run by the thread that uses the net, and by the OpenMP threads that oneDNN keeps.
 */
#include "onednn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#if DNNL_VERSION_MAJOR != 2

static const char *version(void)
{
    return "none";
}

static int check(void)
{
    return bx_fail(-ENOTSUP, "libboxcar_nn was built with oneDNN %d, and it is written for 2.x", DNNL_VERSION_MAJOR);
}

const struct bxi_nn_backend bxi_nn_onednn = { .version = version, .check = check };

#else

/* libgomp's, which oneDNN computes with. Not <omp.h>: the compiler may be one that has none, or
 * another OpenMP's, of which a process must not have two. */
void omp_set_num_threads(int threads);

/* ---- Planning ------------------------------------------------------------------------------------ */

/* From and to the caller's row-major arrays. */
static void plan_ends(struct bxi_plan *plan, const struct bxi_node *last, struct bxi_work *work)
{
    const dnnl_memory_desc_t plain = bxi_nn_describe_out(plan, last, dnnl_abcd);
    struct bxi_tensor output = bxi_nn_callers_tensor(plan, &plain), grad = bxi_nn_callers_tensor(plan, &plain);
    struct bxi_tensor first;

    plan->output = output.memory;
    plan->output_grad = grad.memory;
    bxi_nn_add_reorder(plan, &plan->forward, &work->out, &output);
    if (!last->grad)
        return;
    first = bxi_nn_new_tensor(plan, &work->out.md);
    bxi_nn_add_reorder(plan, &plan->backward, &grad, &first);
    bxi_nn_give_grad(plan, plan->node, &first);
}

static void use_threads(const struct bx_net *net)
{
    omp_set_num_threads(net->threads);
}

/* Room for the greediest primitive so far. */
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
    bxi_nn_ok(plan, dnnl_memory_set_data_handle(plan->scratch, data), "scratchpad");
}

static void plan_steps(struct bxi_plan *plan)
{
    const struct bx_net *net = plan->net;
    /* Its handle is replaced when the size is known; primitives look at nothing else of it. */
    const dnnl_memory_desc_t scratch = bxi_nn_describe_vector(plan, 1);
    int last = net->node_count - 1;

    plan->scratch = bxi_nn_make_memory(plan, &scratch, DNNL_MEMORY_NONE);
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
    use_threads(net);
    plan->work = calloc((size_t)net->node_count, sizeof *plan->work);
    plan->params = calloc(net->param_count + 1, sizeof(dnnl_memory_t));
    plan->grads = calloc(net->param_count + 1, sizeof(dnnl_memory_t));
    if (plan->work == NULL || plan->params == NULL || plan->grads == NULL)
        return bx_fail(-ENOMEM, "no memory to plan the net");
    if (bxi_nn_ok(plan, dnnl_engine_create(&plan->engine, dnnl_cpu, 0), "engine") &&
        bxi_nn_ok(plan, dnnl_stream_create(&plan->stream, plan->engine, dnnl_stream_default_flags), "stream") &&
        bxi_nn_ok(plan, dnnl_primitive_attr_create(&plan->attr), "attributes") &&
        bxi_nn_ok(plan, dnnl_primitive_attr_set_scratchpad_mode(plan->attr, dnnl_scratchpad_mode_user),
                  "scratchpad mode"))
        plan_steps(plan);
    return plan->error;
}

static void free_program(struct bxi_program *program)
{
    for (size_t i = 0; i < program->count; i++)
        if (program->steps[i].primitive != NULL && !program->steps[i].borrowed)
            dnnl_primitive_destroy(program->steps[i].primitive);
    free(program->steps);
}

static void unplan_net(struct bx_net *net)
{
    struct bxi_plan *plan = net->plan;

    free_program(&plan->load);
    free_program(&plan->forward);
    free_program(&plan->backward);
    free_program(&plan->predict);
    for (int i = 0; plan->work != NULL && i < net->node_count; i++)
        bxi_nn_destroy_pds(&plan->work[i]);
    for (size_t i = 0; i < plan->memory_count; i++)
        dnnl_memory_destroy(plan->memories[i]);
    while (plan->chunks != NULL) {
        struct bxi_chunk *next = plan->chunks->next;

        free(plan->chunks);
        plan->chunks = next;
    }
    if (plan->attr != NULL)
        dnnl_primitive_attr_destroy(plan->attr);
    if (plan->stream != NULL)
        dnnl_stream_destroy(plan->stream);
    if (plan->engine != NULL)
        dnnl_engine_destroy(plan->engine);
    free(plan->memories);
    free(plan->buffers);
    free(plan->work);
    free(plan->params);
    free(plan->grads);
    free(plan);
}

/* ---- Computing ----------------------------------------------------------------------------------- */

/* Buffers end on whole vectors (ALIGNMENT), so the last one may reach past the tensor. */
static size_t vecs_of(const struct bxi_step *step)
{
    return (step->count + BXI_VEC_FLOATS - 1) / BXI_VEC_FLOATS;
}

/* `keep` where the bits of `drop` are clear, else 0. */
#define WITHOUT(drop, keep) ((bxi_vec)(~(drop) & (bxi_vec_bits)(keep)))

static void sum(const struct bxi_step *step)
{
    const bxi_vec *a = (const bxi_vec *)step->a, *b = (const bxi_vec *)step->b;
    bxi_vec *to = (bxi_vec *)step->to;

    for (size_t i = 0; i < vecs_of(step); i++)
        to[i] = b == NULL ? a[i] : a[i] + b[i];
}

/* Here and below the comparison is false for a NaN, so that it is not hidden. */
static void relu_sum(const struct bxi_step *step)
{
    const bxi_vec *a = (const bxi_vec *)step->a, *b = (const bxi_vec *)step->b;
    bxi_vec *to = (bxi_vec *)step->to;

    for (size_t i = 0; i < vecs_of(step); i++) {
        bxi_vec value = b == NULL ? a[i] : a[i] + b[i];

        to[i] = WITHOUT((bxi_vec_bits)(value < 0), value);
    }
}

static void masked_sum(const struct bxi_step *step)
{
    const bxi_vec *a = (const bxi_vec *)step->a, *b = (const bxi_vec *)step->b, *mask = (const bxi_vec *)step->mask;
    bxi_vec *to = (bxi_vec *)step->to;

    for (size_t i = 0; i < vecs_of(step); i++) {
        bxi_vec value = b == NULL ? a[i] : a[i] + b[i];

        to[i] = WITHOUT((bxi_vec_bits)(mask[i] <= 0), value);
    }
}

static void update_statistics(const struct bxi_node *node, const struct bxi_work *work)
{
    const double count = (double)node->dims[0] * node->dims[2] * node->dims[3];
    const double unbiased = count / (count - 1);

    for (int i = 0; i < node->dims[1]; i++) {
        node->mean[i] = (float)(BXI_BN_MOMENTUM * work->mean.data[i] + (1 - BXI_BN_MOMENTUM) * node->mean[i]);
        node->var[i] = (float)(BXI_BN_MOMENTUM * unbiased * work->var.data[i] + (1 - BXI_BN_MOMENTUM) * node->var[i]);
    }
}

static int run(struct bxi_plan *plan, const struct bxi_program *program)
{
    dnnl_status_t status = dnnl_success;

    for (size_t i = 0; i < program->count && status == dnnl_success; i++) {
        const struct bxi_step *step = &program->steps[i];

        plan->node = step->node;
        switch (step->kind) {
        case BXI_STEP_PRIMITIVE:
            status = dnnl_primitive_execute(step->primitive, plan->stream, step->arg_count, step->args);
            break;
        case BXI_STEP_SUM: sum(step); break;
        case BXI_STEP_RELU_SUM: relu_sum(step); break;
        case BXI_STEP_MASKED_SUM: masked_sum(step); break;
        case BXI_STEP_GATHER: bxi_nn_gather(plan->net, step); break;
        case BXI_STEP_SCATTER: bxi_nn_scatter(plan->net, step); break;
        case BXI_STEP_STATISTICS: update_statistics(&plan->net->nodes[step->node], &plan->work[step->node]); break;
        }
    }
    if (status == dnnl_success)
        status = dnnl_stream_wait(plan->stream);
    bxi_nn_ok(plan, status, "computing");
    return plan->error;
}

static void bind(struct bxi_plan *plan, dnnl_memory_t memory, const void *data)
{
    if (memory != NULL)
        bxi_nn_ok(plan, dnnl_memory_set_data_handle(memory, (void *)data), "array");
}

static int set_params(struct bx_net *net, const float *const *params)
{
    struct bxi_plan *plan = net->plan;

    plan->error = 0;
    use_threads(net);
    for (size_t i = 0; i < net->param_count; i++)
        bind(plan, plan->params[i], params[i]);
    return plan->error != 0 ? plan->error : run(plan, &plan->load);
}

static int compute(struct bx_net *net, const struct bxi_program *program, const float *input, float *output)
{
    struct bxi_plan *plan = net->plan;

    plan->error = 0;
    use_threads(net);
    bind(plan, plan->input, input);
    bind(plan, plan->output, output);
    return plan->error != 0 ? plan->error : run(plan, program);
}

static int forward(struct bx_net *net, const float *input, float *output)
{
    struct bxi_plan *plan = net->plan;

    return compute(net, &plan->forward, input, output);
}

/* Replaces a step of the copied program by one that takes the running statistics. */
static void predict_batch_norm(struct bxi_plan *plan, const struct bxi_node *node, struct bxi_step *step)
{
    const dnnl_memory_desc_t vector = bxi_nn_describe_vector(plan, node->dims[1]);
    const struct bxi_work *work = &plan->work[plan->node];
    struct bxi_tensor mean = { .memory = bxi_nn_make_memory(plan, &vector, node->mean) };
    struct bxi_tensor var = { .memory = bxi_nn_make_memory(plan, &vector, node->var) };
    struct bxi_tensor src = bxi_nn_flat(plan, node, &work->src), out = bxi_nn_flat(plan, node, &work->out);
    struct bxi_program one = { .steps = NULL };
    dnnl_primitive_desc_t pd;
    dnnl_batch_normalization_desc_t op;
    struct bxi_step *made;

    if (!bxi_nn_ok(plan, dnnl_batch_normalization_forward_desc_init(&op, dnnl_forward_inference, &src.md,
                          BXI_BN_EPSILON, bxi_nn_batch_norm_flags(node) | dnnl_use_global_stats),
                   "batch normalisation"))
        return;
    pd = bxi_nn_make_pd(plan, &op, NULL, "batch normalisation");
    made = bxi_nn_add_primitive(plan, &one, pd);
    bxi_nn_add_arg(made, DNNL_ARG_SRC, &src);
    bxi_nn_add_arg(made, DNNL_ARG_SCALE, &work->weight);
    bxi_nn_add_arg(made, DNNL_ARG_SHIFT, &work->bias);
    bxi_nn_add_arg(made, DNNL_ARG_MEAN, &mean);
    bxi_nn_add_arg(made, DNNL_ARG_VARIANCE, &var);
    bxi_nn_add_arg(made, DNNL_ARG_DST, &out);
    bxi_nn_destroy_pd(pd);
    if (made != NULL)
        *step = *made;
    free(one.steps);
}

/* The forward program once more; its primitives are borrowed, but for batch normalisation. */
static void plan_predict(struct bxi_plan *plan)
{
    const struct bxi_program *from = &plan->forward;
    struct bxi_program *to = &plan->predict;

    to->steps = calloc(from->count, sizeof *to->steps);
    if (to->steps == NULL) {
        plan->error = bx_fail(-ENOMEM, "no memory to plan the evaluation");
        return;
    }
    for (size_t i = 0; i < from->count; i++) {
        const struct bxi_node *node = &plan->net->nodes[from->steps[i].node];

        if (from->steps[i].kind == BXI_STEP_STATISTICS)
            continue;
        to->steps[to->count] = from->steps[i];
        to->steps[to->count].borrowed = true;
        plan->node = from->steps[i].node;
        if (node->op == BXI_NN_BATCH_NORM && plan->work[plan->node].forward_step == i)
            predict_batch_norm(plan, node, &to->steps[to->count]);
        to->count++;
    }
    make_scratch(plan);
    if (plan->error != 0) {
        free_program(to);
        *to = (struct bxi_program){ .steps = NULL };
    }
}

static int predict(struct bx_net *net, const float *input, float *output)
{
    struct bxi_plan *plan = net->plan;

    if (plan->predict.steps == NULL) {
        plan->error = 0;
        use_threads(net);
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
    use_threads(net);
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

static const char *version(void)
{
    static char text[32];
    const dnnl_version_t *found = dnnl_version();

    snprintf(text, sizeof text, "%d.%d.%d", found->major, found->minor, found->patch);
    return text;
}

static int check(void)
{
    if (dnnl_version()->major != 2)
        return bx_fail(-ENOTSUP, "oneDNN %s was found, and libboxcar_nn was built for 2.x", version());
    return 0;
}

const struct bxi_nn_backend bxi_nn_onednn = {
    .version = version,
    .check = check,
    .plan = plan_net,
    .unplan = unplan_net,
    .set_params = set_params,
    .forward = forward,
    .predict = predict,
    .backward = backward,
    .input_grad = input_grad,
};
#endif
