/* SPDX-License-Identifier: MIT */
/*
 * The master, rank 0: it has the images, the loss and the loop. Run by its main thread.
 *
 * A batch: the calls of shard 1's forward for all micro-batches are sent at once. As each of them is answered, its
 * output goes to shard 2 in a call that is not waited for either. So shard 1 computes micro-batch k + 1 while shard 2
 * computes k. The backward pass goes the other way: shard 2 sends the gradient of each micro-batch as soon as it has it
 * (lib/autograd/dist_pass.c).
 */
#include "demos/common/clock.h"
#include "demos/common/rng.h"
#include "pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const SHARD_WORKER[PL_SHARDS] = { "worker1", "worker2" };
static const struct bx_call_options PATIENT = { .timeout_ns = BX_FOREVER };     /* a death ends the calls */

/* ---- The pipeline -------------------------------------------------------------------------------------- */

static int make_shard(struct pl_pipeline *pipeline, const struct pl_flags *flags, int shard)
{
    struct bx_msg *args = bx_msg_create(64);

    bx_msg_put_i32(args, shard == 0 ? RESNET_FRONT : RESNET_BACK);
    bx_msg_put_i32(args, pipeline->images);
    bx_msg_put_i32(args, flags->image);
    bx_msg_put_i32(args, pipeline->splits);
    bx_msg_put_u64(args, flags->seed);
    int rc = bx_remote(pipeline->job, SHARD_WORKER[shard], "new_shard", args, &PATIENT, &pipeline->shards[shard]);
    bx_msg_destroy(args);
    return rc;
}

/* Optimizes the parameters that the replies refer to. */
static int make_optim(struct pl_pipeline *pipeline, struct bx_msg *const replies[PL_SHARDS])
{
    size_t count = bx_msg_rrefs(replies[0]) + bx_msg_rrefs(replies[1]), at = 0;
    struct bx_rref **params = calloc(count + 1, sizeof(*params));

    if (params == NULL)
        return bx_fail(-ENOMEM, "not enough memory for a list of %zu parameters", count);
    for (int i = 0; i < PL_SHARDS; i++) {
        struct bx_reader reader = bx_msg_reader(replies[i]);

        while (reader.rref_count > 0)
            params[at++] = bx_read_rref(&reader);
    }
    int rc = bx_dist_optim_create(pipeline->dist, params, at, &(struct bx_optim_sgd){ .lr = PL_LR }, NULL,
                                  &pipeline->optim);
    free(params);
    return rc;
}

int pl_pipeline_create(struct pl_pipeline *pipeline, struct bx_job *job, struct bx_dist *dist,
                       const struct pl_flags *flags, int splits)
{
    struct bx_msg *replies[PL_SHARDS] = { NULL };
    int rc = 0;

    *pipeline = (struct pl_pipeline){ .job = job, .dist = dist, .splits = splits,
                                      .images = flags->batch_size / splits };
    for (int i = 0; rc == 0 && i < PL_SHARDS; i++)
        rc = make_shard(pipeline, flags, i);
    for (int i = 0; rc == 0 && i < PL_SHARDS; i++)
        rc = bx_rref_sync(pipeline->shards[i], "parameters", NULL, &PATIENT, &replies[i]);
    if (rc == 0)
        rc = make_optim(pipeline, replies);
    for (int i = 0; i < PL_SHARDS; i++)
        bx_msg_destroy(replies[i]);
    if (rc < 0)
        pl_pipeline_destroy(pipeline);
    return rc;
}

void pl_pipeline_destroy(struct pl_pipeline *pipeline)
{
    bx_dist_optim_destroy(pipeline->optim);
    for (int i = 0; i < PL_SHARDS; i++)
        bx_rref_release(pipeline->shards[i]);
    *pipeline = (struct pl_pipeline){ .job = NULL };
}

/* ---- A batch ------------------------------------------------------------------------------------------- */

/* Uniform in -1 to 1: the values do not matter to the time. */
static void draw_images(float *to, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++)
        to[i] = 2.0f * rng_unit_f32(rng_at(key, i)) - 1.0f;
}

static void draw_targets(float *to, size_t images, uint64_t key)
{
    for (size_t i = 0; i < images * PL_CLASSES; i++)
        to[i] = 0.0f;
    for (size_t i = 0; i < images; i++)
        to[i * PL_CLASSES + (size_t)(rng_unit(rng_at(key, i)) * PL_CLASSES)] = 1.0f;
}

int pl_batch_draw(struct pl_batch *batch, struct bx_job *job, const struct pl_flags *flags, uint64_t number)
{
    const int64_t images = flags->batch_size, shape[] = { images, 3, flags->image, flags->image };
    int rc;

    *batch = (struct pl_batch){ NULL, NULL };
    rc = bx_tensor_create(job, BX_F32, 4, shape, &batch->images);
    if (rc == 0)
        rc = bx_tensor_create(job, BX_F32, 2, (const int64_t[]){ images, PL_CLASSES }, &batch->targets);
    if (rc < 0) {
        pl_batch_free(batch);
        return rc;
    }
    draw_images(bx_tensor_data_mut(batch->images), (size_t)bx_tensor_elements(batch->images),
                rng_at(rng_at(flags->seed, RNG_IMAGES), number));
    draw_targets(bx_tensor_data_mut(batch->targets), (size_t)images, rng_at(rng_at(flags->seed, RNG_LABELS), number));
    return 0;
}

void pl_batch_free(struct pl_batch *batch)
{
    bx_tensor_release(batch->images);
    bx_tensor_release(batch->targets);
    *batch = (struct pl_batch){ NULL, NULL };
}

/* ---- A pass -------------------------------------------------------------------------------------------- */

/* What a pass has in flight: for each micro-batch a call of each shard, and the output. */
struct flight {
    struct bx_context *context;
    struct bx_tape *tape;
    struct bx_future *calls[PL_SHARDS][PL_IMAGES_MAX];
    struct bx_var *outputs[PL_IMAGES_MAX];
};

/* Calls a shard's forward. The call ends with the context. */
static int call_forward(const struct pl_pipeline *pipeline, struct flight *flight, int shard, int micro_batch,
                        struct bx_var *input)
{
    struct bx_future **call = &flight->calls[shard][micro_batch];
    struct bx_msg *args = bx_msg_create(64);

    bx_msg_put_context(args, flight->context);
    bx_msg_put_i32(args, micro_batch);
    bx_msg_put_var(args, flight->context, input);
    int rc = bx_rref_async(pipeline->shards[shard], "forward", args, &PATIENT, call);
    bx_msg_destroy(args);
    return rc < 0 ? rc : bx_context_call(flight->context, *call);
}

static int await_output(const struct flight *flight, struct bx_future *call, struct bx_var **output)
{
    struct bx_reader reader;
    int rc = bx_future_wait(call, BX_FOREVER);

    if (rc < 0)
        return bx_fail(rc, "%s", bx_future_error_text(call));
    reader = bx_msg_reader(bx_future_value(call));
    *output = bx_read_var(flight->context, flight->tape, &reader);
    return *output != NULL ? 0 : bx_tape_error(flight->tape);
}

/* Sends a part of the images to shard 1: a view, so nothing is copied. */
static int send_images(const struct pl_pipeline *pipeline, struct flight *flight, struct bx_tensor *images,
                       int micro_batch)
{
    const int64_t first = (int64_t)micro_batch * pipeline->images;
    struct bx_tensor *part = NULL;
    int rc = bx_tensor_slice(images, 0, first, first + pipeline->images, 1, &part);

    if (rc == 0)
        rc = call_forward(pipeline, flight, 0, micro_batch, bx_tape_input(flight->tape, part));
    bx_tensor_release(part);
    return rc;
}

static int send_forward(const struct pl_pipeline *pipeline, struct flight *flight, struct bx_tensor *images)
{
    struct bx_var *cut = NULL;
    int rc = 0;

    for (int i = 0; rc == 0 && i < pipeline->splits; i++)
        rc = send_images(pipeline, flight, images, i);
    for (int i = 0; rc == 0 && i < pipeline->splits; i++) {
        rc = await_output(flight, flight->calls[0][i], &cut);
        if (rc == 0)
            rc = call_forward(pipeline, flight, 1, i, cut);
    }
    for (int i = 0; rc == 0 && i < pipeline->splits; i++)
        rc = await_output(flight, flight->calls[1][i], &flight->outputs[i]);
    return rc;
}

static int run_pass(const struct pl_pipeline *pipeline, struct flight *flight, const struct pl_batch *batch,
                    double *loss)
{
    struct bx_tape *tape = flight->tape;
    int rc = send_forward(pipeline, flight, batch->images);

    if (rc < 0)
        return rc;
    struct bx_var *all = bx_var_concat(tape, flight->outputs, (size_t)pipeline->splits, 0);
    struct bx_var *root = bx_var_mse(tape, all, bx_tape_input(tape, batch->targets));
    rc = bx_context_backward(flight->context, &root, NULL, 1, false, BX_FOREVER);
    *loss = bx_var_item(root);
    return rc;
}

int pl_pipeline_pass(struct pl_pipeline *pipeline, struct bx_context *context, const struct pl_batch *batch,
                     double *loss)
{
    struct flight flight = { .context = context };
    int rc = bx_tape_create(&(struct bx_tape_options){ .job = pipeline->job }, &flight.tape);

    if (rc == 0)
        rc = run_pass(pipeline, &flight, batch, loss);
    for (int shard = 0; shard < PL_SHARDS; shard++)
        for (int i = 0; i < pipeline->splits; i++)
            bx_future_release(flight.calls[shard][i]);
    bx_tape_destroy(flight.tape);
    return rc;
}

/* ---- Training ------------------------------------------------------------------------------------------ */

/* Draws and trains one batch; *seconds does not include the drawing. */
static int train_batch(struct pl_pipeline *pipeline, const struct pl_flags *flags, uint64_t number, double *seconds,
                       double *loss)
{
    struct bx_context *context = NULL;
    struct pl_batch batch;
    int rc = pl_batch_draw(&batch, pipeline->job, flags, number);

    if (rc < 0)
        return rc;
    uint64_t start_ns = clock_now_ns();
    rc = bx_context_create(pipeline->dist, &context);
    if (rc == 0)
        rc = pl_pipeline_pass(pipeline, context, &batch, loss);
    if (rc == 0)
        rc = bx_dist_optim_step(pipeline->optim, context);
    bx_context_end(context);
    *seconds = clock_seconds_since(start_ns);
    pl_batch_free(&batch);
    return rc;
}

/* The first batch is not timed: it touches the memory, of which a later run finds more. */
static int train(struct pl_pipeline *pipeline, const struct pl_flags *flags, struct pl_run *run)
{
    double total = 0.0, seconds = 0.0, loss = 0.0;
    int rc = 0;

    for (uint64_t number = 0; rc == 0 && number <= flags->batches; number++) {
        rc = train_batch(pipeline, flags, number, &seconds, &loss);
        total += number > 0 ? seconds : 0.0;
        if (number == 0)
            run->first_loss = loss;
    }
    run->last_loss = loss;
    run->seconds = rc == 0 ? total : 0.0;
    return rc;
}

int pl_train(struct bx_job *job, struct bx_dist *dist, const struct pl_flags *flags, struct pl_result *result)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < flags->runs; i++) {
        struct pl_pipeline pipeline;

        rc = pl_pipeline_create(&pipeline, job, dist, flags, flags->splits[i]);
        if (rc < 0)
            break;
        rc = train(&pipeline, flags, &result->run[i]);
        pl_pipeline_destroy(&pipeline);
        if (rc == 0)
            printf("splits %d: %.3f s\n", flags->splits[i], result->run[i].seconds);
    }
    return rc;
}
