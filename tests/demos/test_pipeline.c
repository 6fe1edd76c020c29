/* SPDX-License-Identifier: MIT */
/*
 * demos/pipeline: the gradients of a network in two shards, with several micro-batches in flight, equal those of the
 * uncut network over the same micro-batches. tests/e2e/pipeline.sh tests the program from the outside.
 *
 * Batch normalisation takes its statistics from a micro-batch. So the uncut network makes a pass for each micro-batch,
 * and its gradients are added up.
 */
#include "demos/pipeline/pipeline.h"
#include "tests/harness/harness.h"

#include <math.h>

enum { FRONT_PARAMS = 72, ALL_PARAMS = 161 };

static const struct pl_flags SMALL = { .batches = 1, .batch_size = 4, .image = 32, .seed = 7 };

static struct bx_dist *dist;

/* ---- The workers --------------------------------------------------------------------------------------- */

/* A method of a shard, for this test: its gradients of a context, in the order of the parameters. */
static int gradients(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    const struct pl_shard *shard = bx_request_object(request);
    OWN(context) *context = NULL;
    int rc = bx_read_context(dist, args, &context);

    (void)unused;
    for (size_t i = 0; rc == 0 && i < shard->param_count; i++)
        rc = bx_msg_put_tensor(reply, bx_grads_get(bx_context_grads(context), shard->params[i]));
    return rc;
}

static int setup(struct bx_job *job)
{
    HARNESS_EQ(bx_dist_create(job, &dist), 0);
    HARNESS_EQ(pl_shard_register(job, dist), 0);
    return bx_register_method(job, &pl_shard_type, "gradients", BX_BLOCKING, gradients, NULL);
}

static void run(harness_fn master)
{
    harness_run(&(struct harness_world){ .size = PL_WORLD, .setup = setup, .body = { master },
                                         .options = { .pool_threads = 1 } });
}

/* ---- The uncut network --------------------------------------------------------------------------------- */

struct whole {
    struct bx_net *net;
    float *params[ALL_PARAMS], *grads[ALL_PARAMS], *sums[ALL_PARAMS];
    float *outputs, *output_grads;
};

static void make_whole(struct whole *whole, int images)
{
    HARNESS_EQ(bx_net_create(&(struct bx_net_options){ .threads = 1 }, &whole->net), 0);
    HARNESS_EQ(resnet_build(whole->net, RESNET_50, RESNET_WHOLE,
                            &(struct resnet_input){ images, SMALL.image, SMALL.image, PL_CLASSES }), 0);
    HARNESS_EQ(bx_net_params(whole->net), ALL_PARAMS);
    for (size_t i = 0; i < ALL_PARAMS; i++) {
        size_t elements = bx_net_param(whole->net, i)->elements;

        whole->params[i] = calloc(elements, sizeof(float));
        whole->grads[i] = calloc(elements, sizeof(float));
        whole->sums[i] = calloc(elements, sizeof(float));
    }
    whole->outputs = calloc((size_t)SMALL.batch_size * PL_CLASSES, sizeof(float));
    whole->output_grads = calloc((size_t)SMALL.batch_size * PL_CLASSES, sizeof(float));
    resnet_init(whole->net, 0, SMALL.seed, whole->params);
}

static void free_whole(struct whole *whole)
{
    for (size_t i = 0; i < ALL_PARAMS; i++) {
        free(whole->params[i]);
        free(whole->grads[i]);
        free(whole->sums[i]);
    }
    free(whole->outputs);
    free(whole->output_grads);
    bx_net_destroy(whole->net);
}

/* The loss is the mean over the whole batch, so all outputs come before the first backward pass; the net keeps one
 * forward pass, and so each is made twice. */
static double train_whole(struct whole *whole, const struct pl_batch *batch, int splits)
{
    const float *images = bx_tensor_data(batch->images);
    size_t pixels = bx_net_input_elements(whole->net), outputs = bx_net_output_elements(whole->net);
    double loss = 0.0;

    HARNESS_EQ(bx_net_set_params(whole->net, (const float *const *)whole->params), 0);
    for (int i = 0; i < splits; i++)
        HARNESS_EQ(bx_net_forward(whole->net, images + (size_t)i * pixels, whole->outputs + (size_t)i * outputs), 0);
    loss = bx_mse_loss(whole->outputs, bx_tensor_data(batch->targets), (size_t)splits * outputs, whole->output_grads);
    for (int i = 0; i < splits; i++) {
        HARNESS_EQ(bx_net_forward(whole->net, images + (size_t)i * pixels, whole->outputs + (size_t)i * outputs), 0);
        HARNESS_EQ(bx_net_backward(whole->net, whole->output_grads + (size_t)i * outputs, whole->grads), 0);
        for (size_t param = 0; param < ALL_PARAMS; param++)
            for (size_t k = 0; k < bx_net_param(whole->net, param)->elements; k++)
                whole->sums[param][k] += whole->grads[param][k];
    }
    return loss;
}

/* ---- Both ---------------------------------------------------------------------------------------------- */

static double norm(const float *v, const float *minus, size_t count)
{
    double square = 0.0;

    for (size_t i = 0; i < count; i++)
        square += pow((double)v[i] - (minus != NULL ? (double)minus[i] : 0.0), 2.0);
    return sqrt(square);
}

/* The layers compute the same numbers in the same order, cut or not; only the sums over micro-batches may differ in
 * their order. So the tolerance is that of some additions of f32. */
static void check_gradient(const struct whole *whole, size_t param, const struct bx_tensor *grad)
{
    const struct bx_net_param_info *like = bx_net_param(whole->net, param);
    double size, error;

    HARNESS_CHECK(grad != NULL);
    HARNESS_EQ(bx_tensor_elements(grad), like->elements);
    size = norm(whole->sums[param], NULL, like->elements);
    error = norm(bx_tensor_data(grad), whole->sums[param], like->elements);
    if (!(size > 0.0 && error <= 1e-4 * size))
        harness_failed(__FILE__, __LINE__, "the gradient of %s is off by %g, and its norm is %g", like->name, error,
                       size);
}

static void check_gradients(const struct pl_pipeline *pipeline, struct bx_context *context, const struct whole *whole)
{
    size_t param = 0;

    for (int shard = 0; shard < PL_SHARDS; shard++) {
        OWN(msg) *args = bx_msg_create(0), *reply = NULL;
        struct bx_reader reader;

        HARNESS_EQ(bx_msg_put_context(args, context), 0);
        HARNESS_EQ(bx_rref_sync(pipeline->shards[shard], "gradients", args, NULL, &reply), 0);
        HARNESS_EQ(bx_msg_tensors(reply), shard == 0 ? FRONT_PARAMS : ALL_PARAMS - FRONT_PARAMS);
        reader = bx_msg_reader(reply);
        while (bx_reader_tensors_left(&reader) > 0)
            check_gradient(whole, param++, bx_read_tensor(&reader));
    }
}

static void compare(struct bx_job *job, int splits)
{
    struct bx_context *context = NULL;
    struct pl_pipeline pipeline;
    struct pl_batch batch;
    struct whole whole;
    double loss = NAN, expected;

    make_whole(&whole, SMALL.batch_size / splits);
    HARNESS_EQ(pl_pipeline_create(&pipeline, job, dist, &SMALL, splits), 0);
    HARNESS_EQ(pl_batch_draw(&batch, job, &SMALL, 0), 0);
    HARNESS_EQ(bx_context_create(dist, &context), 0);
    HARNESS_EQ(pl_pipeline_pass(&pipeline, context, &batch, &loss), 0);
    expected = train_whole(&whole, &batch, splits);
    HARNESS_CHECK(fabs(loss - expected) <= 1e-5 * expected);
    check_gradients(&pipeline, context, &whole);
    HARNESS_EQ(bx_dist_optim_step(pipeline.optim, context), 0);
    bx_context_end(context);
    pl_batch_free(&batch);
    pl_pipeline_destroy(&pipeline);
    free_whole(&whole);
}

static void compare_one(struct bx_job *job)
{
    compare(job, 1);
}

static void compare_two(struct bx_job *job)
{
    compare(job, 2);
}

TestSuite(pipeline, .timeout = 300);

Test(pipeline, of_one_micro_batch_has_the_gradients_of_the_uncut_network)
{
    run(compare_one);
}

Test(pipeline, of_two_micro_batches_has_the_gradients_of_the_uncut_network)
{
    run(compare_two);
}

static void train_twice(struct bx_job *job)
{
    struct pl_flags flags = SMALL;
    struct pl_result first = { 0 }, second = { 0 };

    flags.splits[0] = 2;
    flags.runs = 1;
    HARNESS_EQ(pl_train(job, dist, &flags, &first), 0);
    HARNESS_EQ(pl_train(job, dist, &flags, &second), 0);
    HARNESS_CHECK(first.run[0].seconds > 0.0);
    HARNESS_CHECK(first.run[0].first_loss == second.run[0].first_loss);
    HARNESS_CHECK(fabs(first.run[0].last_loss - second.run[0].last_loss) <= 1e-3 * first.run[0].last_loss);
    HARNESS_CHECK(first.run[0].last_loss != first.run[0].first_loss);
}

Test(pipeline, repeats_a_run_of_the_same_seed)
{
    run(train_twice);
}

static void misuse(struct bx_job *job)
{
    OWN(rref) *shard = NULL;
    OWN(msg) *args = bx_msg_create(0);

    bx_msg_put_i32(args, RESNET_WHOLE);
    bx_msg_put_i32(args, 2);
    bx_msg_put_i32(args, 32);
    bx_msg_put_i32(args, 1);
    bx_msg_put_u64(args, 0);
    HARNESS_EQ(bx_remote(job, "worker1", "new_shard", args, NULL, &shard), 0);
    HARNESS_EQ(bx_rref_wait(shard, BX_FOREVER), -EINVAL);
    HARNESS_HAS(bx_error_text(), "front or the back");
}

Test(pipeline, refuses_a_shard_that_is_no_half)
{
    run(misuse);
}
