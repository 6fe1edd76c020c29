/* SPDX-License-Identifier: MIT */
/*
 * demos/param_server: a job of processes gives, bit for bit, the model of one process that does the same arithmetic for
 * one trainer after the other; and the parts of that arithmetic. tests/e2e/param_server.sh tests the program from the
 * outside, with trainers that die and stop.
 */
#include "demos/common/flags.h"
#include "demos/common/program.h"
#include "demos/common/rng.h"
#include "demos/param_server/ps.h"
#include "tests/device/device_fixture.h"

#define LIMIT_S 120

static const struct ps_flags SMALL = {
    .trainers = 2, .batch_update_size = 2, .num_batches = 3, .batch_size = 3, .image = 32, .num_classes = 4,
    .model = RESNET_18, .lr = 0.01, .momentum = 0.9, .seed = 7, .threads = 1, .device = DEVICE_CPU,
    .patience_ms = 600000,
};
static const struct ps_place CPU;

/* An array for each parameter, in one allocation in a place. */
struct set {
    const struct ps_place *place;
    float *floats;
    float **at;
};

static struct set make_set(const struct ps_place *place, const struct ps_params *params)
{
    struct set set = { place, NULL, calloc(params->count, sizeof(float *)) };

    cr_assert_eq(ps_place_alloc(place, params->room, &set.floats), 0, "%s", bx_error_text());
    cr_assert_not_null(set.at);
    for (size_t i = 0; i < params->count; i++)
        set.at[i] = set.floats + params->at[i].offset;
    return set;
}

static void free_set(struct set *set)
{
    ps_place_free(set->place, set->floats);
    free(set->at);
}

static const float *const *read_only(const struct set *set)
{
    return (const float *const *)set->at;
}

/* ---- The loop of one process ----------------------------------------------------------------------- */

struct alone {
    const struct ps_flags *flags;
    struct ps_learner learners[4];
    struct ps_params params;
    struct set model[2];
    struct set grads[4];
    struct set velocity;
    double loss;            /* of the last update */
};

static void start_alone(struct alone *alone, const struct ps_flags *flags)
{
    *alone = (struct alone){ .flags = flags };
    for (int k = 0; k < flags->trainers; k++)
        cr_assert_eq(ps_learner_init(&alone->learners[k], flags, k + 1), 0, "%s", bx_error_text());
    cr_assert_eq(ps_params_init(&alone->params, alone->learners[0].net), 0);

    const struct ps_place *place = &alone->learners[0].place;
    struct set first = make_set(&CPU, &alone->params);

    alone->velocity = make_set(place, &alone->params);
    for (int i = 0; i < 2; i++)
        alone->model[i] = make_set(place, &alone->params);
    for (int k = 0; k < flags->trainers; k++)
        alone->grads[k] = make_set(&alone->learners[k].place, &alone->params);
    resnet_init(alone->learners[0].net, 0, flags->seed, first.at);
    cr_assert_eq(ps_place_copy(place, alone->model[0].floats, first.floats, alone->params.room), 0);
    free_set(&first);
}

/* Each learner has a stream; here only waiting orders them. */
static void wait_for(const struct ps_place *place)
{
    cr_assert(place->cuda == NULL || bx_cuda_wait(place->cuda) == 0, "%s", bx_error_text());
}

static uint64_t checksum_of(const struct alone *alone, const struct set *set)
{
    struct set copy = make_set(&CPU, &alone->params);

    cr_assert_eq(ps_place_copy(set->place, copy.floats, set->floats, alone->params.room), 0);
    uint64_t checksum = ps_checksum(&alone->params, read_only(&copy));
    free_set(&copy);
    return checksum;
}

static void update_alone(struct alone *alone, uint64_t batch)
{
    const float *const *grads[4];
    size_t rows = (size_t)alone->flags->trainers;
    double loss = 0.0;

    alone->loss = 0.0;
    for (size_t k = 0; k < rows; k++) {
        struct ps_learner *learner = &alone->learners[k];

        cr_assert_eq(bx_net_set_params(learner->net, read_only(&alone->model[batch % 2])), 0);
        ps_learner_draw(learner, batch);
        cr_assert_eq(ps_learner_forward(learner, &loss), 0);
        cr_assert_eq(ps_learner_backward(learner, alone->grads[k].at), 0);
        wait_for(&learner->place);
        alone->loss += loss / (double)rows;
        grads[k] = read_only(&alone->grads[k]);
    }
    cr_assert_eq(ps_step(&(struct ps_step){
        .place = &alone->learners[0].place, .params = &alone->params, .lr = (float)alone->flags->lr,
        .momentum = (float)alone->flags->momentum, .velocity = alone->velocity.floats,
        .from = read_only(&alone->model[batch % 2]), .to = alone->model[1 - batch % 2].at,
        .grads = grads, .rows = rows }), 0);
    wait_for(&alone->learners[0].place);
}

static void end_alone(struct alone *alone)
{
    for (int i = 0; i < 2; i++)
        free_set(&alone->model[i]);
    free_set(&alone->velocity);
    for (int k = 0; k < alone->flags->trainers; k++) {
        free_set(&alone->grads[k]);
        ps_learner_fini(&alone->learners[k]);
    }
    ps_params_fini(&alone->params);
}

/* ---- The job ------------------------------------------------------------------------------------------ */

/* The workers' output goes to /dev/null: it is not the test's. */
static int run_quietly(const struct ps_run *run)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC), before = dup(STDOUT_FILENO);

    fflush(stdout);
    dup2(null, STDOUT_FILENO);
    int status = ps_run(run);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    close(null);
    return status;
}

static struct ps_result *run_job(const struct ps_flags *flags)
{
    struct ps_run run = { .flags = flags, .result = program_share("test", ps_result_bytes(flags)) };

    cr_assert_not_null(run.result);
    cr_assert_eq(run_quietly(&run), PROGRAM_OK);
    cr_assert(run.result->ended);
    cr_assert_eq(ps_count(run.flags, run.result, PS_COMPLETED), flags->trainers);
    cr_expect_eq(run.result->leases_at_end, 0);
    cr_expect_eq(run.result->copied_bytes, 0);
    for (int k = 0; k < flags->trainers; k++)
        cr_expect_eq(run.result->trainers[k].spent.copied_bytes, 0);
    return run.result;
}

static void expect_same_as_alone(const struct ps_flags *flags)
{
    struct ps_result *result = run_job(flags);
    struct alone alone;

    cr_assert_eq(result->updates, flags->num_batches);
    start_alone(&alone, flags);
    for (uint64_t batch = 0; batch < flags->num_batches; batch++) {
        cr_expect_eq(result->update[batch].rows, flags->trainers);
        update_alone(&alone, batch);
        cr_expect_eq(alone.loss, result->update[batch].loss, "update %d", (int)batch);
    }
    cr_expect_eq(checksum_of(&alone, &alone.model[flags->num_batches % 2]), result->checksum);
    cr_expect_neq(checksum_of(&alone, &alone.model[1 - flags->num_batches % 2]), result->checksum);
    end_alone(&alone);
    munmap(result, ps_result_bytes(flags));
}

TestSuite(param_server, .timeout = 120);

Test(param_server, trains_the_model_of_a_single_process, .timeout = LIMIT_S)
{
    expect_same_as_alone(&SMALL);
}

#if BXI_CUDA
/* Two devices: the server and trainer1 on the first, trainer2 on the second. */
Test(param_server, trains_the_model_of_a_single_process_on_gpus, .timeout = LIMIT_S)
{
    struct ps_flags flags = SMALL;

    device_world(DEVICE_ANY);
    flags.device = device_is_real() ? 0 : DEVICE_CUDA;
    expect_same_as_alone(&flags);
}
#endif

Test(param_server, makes_an_update_of_each_gradient_if_the_update_size_is_one, .timeout = LIMIT_S)
{
    struct ps_flags flags = SMALL;

    flags.batch_update_size = 1;
    struct ps_result *result = run_job(&flags);
    cr_expect_eq(result->updates, 2 * flags.num_batches);
    for (size_t i = 0; i < result->updates; i++)
        cr_expect_eq(result->update[i].rows, 1);
    /* A gradient may be as many versions old as the other trainer makes updates, and no older. */
    cr_expect_leq(result->late_gradients, result->updates);
    cr_expect_leq(result->late_versions_max, flags.num_batches);
    /* The newest, the next, and for each trainer the one it computes with and the one in flight to it. */
    cr_expect_leq(result->versions_live_max, 2 + 2 * (uint64_t)flags.trainers);
    munmap(result, ps_result_bytes(&flags));
}

/* ---- Memory on a GPU ----------------------------------------------------------------------------------- */

#if BXI_CUDA
/* Not closed before the process ends: its stream must outlive the job. */
static struct ps_place gpu;
static struct ps_param one_param = { .ndim = 1, .shape = { 4096 }, .elements = 4096 };
static const struct ps_params ONE_PARAM = { .at = &one_param, .count = 1, .elements = 4096, .room = 4096 };

static struct ps_set make_lendable(void)
{
    struct ps_set set;

    HARNESS_EQ(ps_set_create(&set, &gpu, &ONE_PARAM), 0);
    return set;
}

static void open_gpu(struct bx_job *job)
{
    struct ps_flags flags = SMALL;

    flags.device = DEVICE_CUDA;
    HARNESS_EQ(ps_place_open(&gpu, &flags, 0), 0);
    HARNESS_EQ(ps_place_join(&gpu, job), 0);
}

/* The next allocations must lie elsewhere until the stream has done its work. */
static void destroy_behind(struct ps_set *set, uint64_t *gate)
{
    const float *at = set->at[0];
    struct ps_set next;

    ps_set_destroy(set);
    next = make_lendable();
    HARNESS_CHECK(next.at[0] != at);
    device_open_gate(gate);
    ps_set_destroy(&next);
}

DEVICE_TEST(param_server_cuda, memory_is_not_reused_before_it_is_zeroed, LIMIT_S, DEVICE_ANY, .size = 2)
{
    struct ps_set set;
    uint64_t *gate;

    open_gpu(job);
    gate = device_gate(job, bx_cuda_stream(gpu.cuda));
    set = make_lendable();
    destroy_behind(&set, gate);
}

DEVICE_TEST(param_server_cuda, memory_is_not_reused_before_it_is_read, LIMIT_S, DEVICE_ANY, .size = 2)
{
    struct ps_set set;
    uint64_t *gate;

    open_gpu(job);
    set = make_lendable();
    HARNESS_EQ(bx_cuda_wait(gpu.cuda), 0);
    gate = device_gate(job, bx_cuda_stream(gpu.cuda));
    HARNESS_EQ(ps_set_read(&set, &gpu), 0);
    destroy_behind(&set, gate);
}
#endif

/* ---- The arithmetic ------------------------------------------------------------------------------------ */

static void fill(const struct ps_params *params, const struct set *set, uint64_t key)
{
    for (size_t i = 0; i < params->room; i++)
        set->floats[i] = rng_unit_f32(rng_at(key, i)) - 0.5f;
}

static struct ps_params odd_params(void)
{
    static const size_t SIZES[] = { 1, 7000, 3, 64, 12345, 17 };
    struct ps_params params = { .at = calloc(6, sizeof(struct ps_param)), .count = 6 };

    cr_assert_not_null(params.at);
    for (size_t i = 0; i < params.count; i++) {
        params.at[i] = (struct ps_param){ .ndim = 1, .shape = { (int64_t)SIZES[i] }, .elements = SIZES[i],
                                          .offset = params.room };
        params.elements += SIZES[i];
        params.room += (SIZES[i] + 15) / 16 * 16;
    }
    return params;
}

/* Expects a step of torch.optim.SGD with the mean of the gradients, summed in the order of the rows. */
static void expect_stepped(const struct ps_params *params, const struct set *from, const struct set *grads,
                           const struct set *to, uint64_t velocity_key)
{
    for (size_t i = 0; i < params->count; i++) {
        for (size_t e = 0; e < params->at[i].elements; e++) {
            float mean = grads[0].at[i][e] + grads[1].at[i][e];

            mean = (mean + grads[2].at[i][e]) / 3.0f;
            float v = 0.9f * (rng_unit_f32(rng_at(velocity_key, params->at[i].offset + e)) - 0.5f) + mean;
            cr_assert_float_eq(to->at[i][e], from->at[i][e] - 0.1f * v, 1e-6, "parameter %zu, element %zu", i, e);
        }
    }
}

Test(param_server, averages_the_gradients_and_steps_every_parameter)
{
    struct ps_params params = odd_params();
    struct set from = make_set(&CPU, &params), to = make_set(&CPU, &params), velocity = make_set(&CPU, &params);
    struct set grads[3];
    const float *const *rows[3];

    fill(&params, &from, 1);
    fill(&params, &velocity, 9);
    for (uint64_t k = 0; k < 3; k++) {
        grads[k] = make_set(&CPU, &params);
        fill(&params, &grads[k], 2 + k);
        rows[k] = read_only(&grads[k]);
    }
    cr_assert_eq(ps_step(&(struct ps_step){ .place = &CPU, .params = &params, .lr = 0.1f, .momentum = 0.9f,
                                            .velocity = velocity.floats, .from = read_only(&from), .to = to.at,
                                            .grads = rows, .rows = 3 }), 0);
    expect_stepped(&params, &from, grads, &to, 9);
    for (int k = 0; k < 3; k++)
        free_set(&grads[k]);
    free_set(&from);
    free_set(&to);
    free_set(&velocity);
    ps_params_fini(&params);
}

/* Of "foob" in its authors' list of test vectors. */
Test(param_server, checksum_is_fnv_1a)
{
    float floats[1];
    struct ps_param param = { .ndim = 1, .shape = { 1 }, .elements = 1 };
    struct ps_params params = { .at = &param, .count = 1, .elements = 1, .room = 16 };

    memcpy(floats, "foob", sizeof(floats));
    cr_expect_eq(ps_checksum(&params, (const float *const[]){ floats }), UINT64_C(0xdd120e790c2512af));
}

Test(param_server, draws_images_that_are_normal_and_fresh_and_labels_that_stay)
{
    struct ps_learner learner, other;
    double sum = 0.0, squares = 0.0;

    cr_assert_eq(ps_learner_init(&learner, &SMALL, 1), 0);
    cr_assert_eq(ps_learner_init(&other, &SMALL, 2), 0);
    ps_learner_draw(&learner, 0);
    ps_learner_draw(&other, 0);
    for (size_t i = 0; i < learner.pixels; i++) {
        sum += (double)learner.images[i];
        squares += (double)learner.images[i] * (double)learner.images[i];
    }
    /* 9216 draws: standard errors of 0.0104 and 0.0147. */
    cr_expect_float_eq(sum / (double)learner.pixels, 0.0, 0.05);
    cr_expect_float_eq(squares / (double)learner.pixels, 1.0, 0.07);
    float first = learner.images[0];
    cr_expect_neq(first, other.images[0]);
    ps_learner_draw(&learner, 1);
    cr_expect_neq(first, learner.images[0]);
    ps_learner_draw(&learner, 0);
    cr_expect_eq(first, learner.images[0]);
    for (int image = 0; image < SMALL.batch_size; image++) {
        float shown = 0.0f;

        for (int c = 0; c < SMALL.num_classes; c++)
            shown += learner.target[image * SMALL.num_classes + c];
        cr_expect_eq(shown, 1.0f);
    }
    ps_learner_fini(&learner);
    ps_learner_fini(&other);
}
