/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of the parameter server and of its trainers, run by each on a thread of its pool. On a GPU these
 * functions put the work on the place's stream.
 *
 * One thread does the server's step although the trainers wait for it: memory limits the step, and two threads took as
 * long as one (ResNet-50, 1 and 5 gradients, two cores).
 */
#include "demos/common/rng.h"
#include "ps.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* ---- The server's step ----------------------------------------------------------------------------- */

/* Each set is one array, with its gaps. */
static int step_as_one(const struct ps_step *step)
{
    const float *grads[PS_TRAINERS_MAX];

    for (size_t row = 0; row < step->rows; row++)
        grads[row] = step->grads[row][0];
    return bx_cuda_sgd_step(step->place->cuda, &(struct bx_sgd){
        .lr = step->lr,
        .momentum = step->momentum,
        .from = step->from[0],
        .to = step->to[0],
        .velocity = step->velocity,
        .grads = grads,
        .grad_count = step->rows,
        .elements = step->params->room,
    });
}

int ps_step(const struct ps_step *step)
{
    const float *grads[PS_TRAINERS_MAX];

    if (step->place->cuda != NULL)
        return step_as_one(step);
    for (size_t i = 0; i < step->params->count; i++) {
        for (size_t row = 0; row < step->rows; row++)
            grads[row] = step->grads[row][i];
        bx_sgd_step(&(struct bx_sgd){
            .lr = step->lr,
            .momentum = step->momentum,
            .from = step->from[i],
            .to = step->to[i],
            .velocity = step->velocity + step->params->at[i].offset,
            .grads = grads,
            .grad_count = step->rows,
            .elements = step->params->at[i].elements,
        });
    }
    return 0;
}

/* ---- The trainer's batch --------------------------------------------------------------------------- */

int ps_net_create(const struct ps_flags *flags, struct bx_cuda *cuda, int images, int side, struct bx_net **net)
{
    struct bx_net *made = NULL;
    int rc = bx_net_create(&(struct bx_net_options){ .threads = flags->threads, .cuda = cuda }, &made);

    if (rc == 0)
        rc = resnet_build(made, (enum resnet_kind)flags->model, RESNET_WHOLE,
                          &(struct resnet_input){ images, side, side, flags->num_classes });
    if (rc < 0) {
        bx_net_destroy(made);
        return rc;
    }
    *net = made;
    return 0;
}

/* Draws a class for each image; one-hot. */
static void draw_target(float *target, const struct ps_flags *flags, int rank)
{
    uint64_t key = rng_at(rng_at(flags->seed, RNG_LABELS), (uint64_t)rank);
    size_t classes = (size_t)flags->num_classes;

    for (size_t i = 0; i < (size_t)flags->batch_size; i++) {
        size_t shown = (size_t)(rng_unit(rng_at(key, i)) * (double)classes);

        target[i * classes + shown] = 1.0f;
    }
}

/* Allocates the arrays of a batch, and draws the labels. */
static int make_arrays(struct ps_learner *learner, const struct ps_flags *flags, int rank)
{
    const struct ps_place *place = &learner->place;
    float *target = calloc(learner->outputs, sizeof(float));
    void *drawn = NULL;
    int rc = target != NULL ? 0 : bx_fail(-ENOMEM, "not enough memory for %d images", flags->batch_size);

    if (rc == 0)
        rc = ps_place_alloc(place, learner->pixels, &learner->images);
    if (rc == 0)
        rc = ps_place_alloc(place, learner->outputs, &learner->logits);
    if (rc == 0)
        rc = ps_place_alloc(place, learner->outputs, &learner->target);
    if (rc == 0)
        rc = ps_place_alloc(place, learner->outputs, &learner->logits_grad);
    if (rc == 0 && place->cuda != NULL)
        rc = bx_cuda_alloc_host(place->cuda, learner->pixels * sizeof(float), &drawn);
    learner->drawn = place->cuda == NULL ? learner->images : drawn;
    if (rc == 0) {
        draw_target(target, flags, rank);
        rc = ps_place_copy(place, learner->target, target, learner->outputs);
    }
    free(target);
    return rc;
}

int ps_learner_init(struct ps_learner *learner, const struct ps_flags *flags, int rank)
{
    size_t side = (size_t)flags->image, images = (size_t)flags->batch_size;

    *learner = (struct ps_learner){ .images_key = rng_at(rng_at(flags->seed, RNG_IMAGES), (uint64_t)rank) };
    learner->pixels = images * 3 * side * side;
    learner->outputs = images * (size_t)flags->num_classes;
    int rc = ps_place_open(&learner->place, flags, rank);
    if (rc == 0)
        rc = ps_net_create(flags, learner->place.cuda, flags->batch_size, flags->image, &learner->net);
    if (rc == 0)
        rc = make_arrays(learner, flags, rank);
    if (rc < 0)
        ps_learner_fini(learner);
    return rc;
}

void ps_learner_fini(struct ps_learner *learner)
{
    struct ps_place *place = &learner->place;

    bx_net_destroy(learner->net);
    ps_place_free(place, learner->images);
    ps_place_free(place, learner->logits);
    ps_place_free(place, learner->target);
    ps_place_free(place, learner->logits_grad);
    if (place->cuda != NULL)
        bx_cuda_free_host(place->cuda, learner->drawn);
    ps_place_close(place);
    *learner = (struct ps_learner){ .net = NULL };
}

void ps_learner_draw(struct ps_learner *learner, uint64_t batch)
{
    uint64_t key = rng_at(learner->images_key, batch);

    /* Two normal numbers from two uniform ones (Box and Muller 1958). If the number of pixels is odd, the last one uses
     * the draw after the last. */
    for (size_t i = 0; i < learner->pixels; i += 2) {
        float radius = sqrtf(-2.0f * logf(1.0f - rng_unit_f32(rng_at(key, i))));
        float angle = 6.28318530717958648f * rng_unit_f32(rng_at(key, i + 1));

        learner->drawn[i] = radius * cosf(angle);
        if (i + 1 < learner->pixels)
            learner->drawn[i + 1] = radius * sinf(angle);
    }
}

int ps_learner_forward(struct ps_learner *learner, double *loss)
{
    struct bx_cuda *cuda = learner->place.cuda;
    int rc = cuda == NULL ? 0 : bx_cuda_copy(cuda, learner->images, learner->drawn, learner->pixels * sizeof(float));

    if (rc == 0)
        rc = bx_net_forward(learner->net, learner->images, learner->logits);
    if (rc == 0 && cuda != NULL)
        return bx_cuda_mse_loss(cuda, learner->logits, learner->target, learner->outputs, learner->logits_grad, loss);
    if (rc == 0)
        *loss = bx_mse_loss(learner->logits, learner->target, learner->outputs, learner->logits_grad);
    return rc;
}

int ps_learner_backward(struct ps_learner *learner, float *const *grads)
{
    return bx_net_backward(learner->net, learner->logits_grad, grads);
}
