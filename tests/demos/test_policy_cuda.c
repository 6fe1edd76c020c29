/* SPDX-License-Identifier: MIT */
/*
 * demos/reinforce/policy_cuda.c and policy.cu against policy.c: the same decisions, in episodes with dropout and with
 * the parameters of each update. test_reference.c has policy.c's reference. With the tests' driver the kernel runs on
 * the CPU with its expf, and the bits are equal; a real GPU's differ in the last bit.
 */
#include "demos/common/rng.h"
#include "demos/reinforce/learner.h"
#include "tests/demos/policy_reference.h"
#include "tests/device/device_fixture.h"

#include <boxcar.h>
#include <math.h>

#define OBSERVERS 3
#define STEPS 150           /* 450 rows: two blocks of a gradient, the second not full */

static void make(struct learner *learner, bool on_gpu)
{
    cr_assert_eq(learner_init(learner, 11, OBSERVERS, STEPS), 0);
    if (on_gpu)
        cr_assert_eq(policy_gpu_create(0, &learner->policy, LEARNER_ASKS, &learner->gpu), 0, "%s", bx_error_text());
}

static void fill_state(uint64_t key, float state[POLICY_INPUTS])
{
    for (uint64_t k = 0; k < POLICY_INPUTS; k++)
        state[k] = 2.0f * rng_unit_f32(rng_at(key, k)) - 1.0f;
}

/* Both decide the same states, for all observers at once. Returns how many decisions differ. */
static int differences(struct learner *cpu, struct learner *gpu, uint64_t episode)
{
    int count = 0;

    for (uint64_t step = 0; step < STEPS; step++) {
        struct learner_ask a[OBSERVERS], b[OBSERVERS];

        for (size_t i = 0; i < OBSERVERS; i++) {
            a[i].observer = (i + step) % OBSERVERS;
            fill_state(rng_at(rng_at(episode, step), i), a[i].state);
            b[i] = a[i];
        }
        learner_decide(cpu, a, OBSERVERS);
        learner_decide(gpu, b, OBSERVERS);
        for (size_t i = 0; i < OBSERVERS; i++) {
            cr_assert(a[i].action == 0 || a[i].action == 1);
            cr_assert(b[i].action == 0 || b[i].action == 1);
            count += a[i].action != b[i].action;
        }
    }
    return count;
}

/* What was stored is equal where the action is. */
static void expect_same_rows(const struct learner *cpu, const struct learner *gpu)
{
    for (size_t i = 0; i < OBSERVERS * STEPS; i++) {
        const struct policy_row *want = &cpu->rows[i], *got = &gpu->rows[i];

        cr_assert_arr_eq(got->state, want->state, sizeof(want->state));
        cr_assert_arr_eq(got->keep, want->keep, sizeof(want->keep));
        cr_assert_float_eq(got->prob[0], want->prob[0], 1e-6f);
        cr_assert_float_eq(got->prob[1], want->prob[1], 1e-6f);
        if (got->action == want->action)
            cr_assert_float_eq(got->log_prob, want->log_prob, 1e-5f);
    }
}

static void give_returns(struct learner *learner)
{
    float returns[STEPS];

    for (size_t observer = 0; observer < OBSERVERS; observer++) {
        for (size_t i = 0; i < STEPS; i++)
            returns[i] = rng_unit_f32(rng_at(observer + 77, i)) - 0.5f;
        cr_assert_eq(learner_returns(learner, observer, 0, returns, STEPS), 0);
    }
}

static void expect_near(const struct policy_params *a, const struct policy_params *b, float tolerance)
{
    for (size_t i = 0; i < POLICY_PARAMS; i++)
        cr_assert(fabsf(a->v[i] - b->v[i]) <= tolerance, "parameter %zu: %.9g and %.9g", i, (double)a->v[i],
                  (double)b->v[i]);
}

TestSuite(policy_cuda, .timeout = 600);

Test(policy_cuda, decides_and_stores_as_on_the_cpu_with_the_parameters_of_each_update)
{
    struct learner cpu, gpu;
    float tolerance;

    device_world(DEVICE_ANY);
    tolerance = device_is_real() ? 1e-5f : 0.0f;
    make(&cpu, false);
    make(&gpu, true);
    for (uint64_t episode = 0; episode < 3; episode++) {
        int differ = differences(&cpu, &gpu, episode);

        cr_expect(device_is_real() ? differ <= 2 : differ == 0, "%d of %d", differ, OBSERVERS * STEPS);
        expect_same_rows(&cpu, &gpu);
        give_returns(&cpu);
        give_returns(&gpu);
        cr_assert_eq(learner_update(&cpu), 0);
        cr_assert_eq(learner_update(&gpu), 0, "%s", bx_error_text());
        expect_near(&gpu.policy.params, &cpu.policy.params, tolerance);
        expect_near(&gpu.policy.mean, &cpu.policy.mean, tolerance);
        expect_near(&gpu.policy.square, &cpu.policy.square, tolerance);
        /* Start again from equal parameters: one action that differs would change the whole episode. */
        gpu.policy = cpu.policy;
        cr_assert_eq(policy_gpu_write(gpu.gpu, &gpu.policy), 0);
    }
    learner_fini(&cpu);
    learner_fini(&gpu);
}

Test(policy_cuda, refuses_the_same_asks_as_the_cpu)
{
    struct learner gpu;
    struct learner_ask asks[OBSERVERS + 1] = { { .observer = 0 }, { .observer = OBSERVERS }, { .observer = 1 },
                                              { .observer = 2 } };

    device_world(DEVICE_ANY);
    make(&gpu, true);
    learner_decide(&gpu, asks, OBSERVERS + 1);
    cr_assert_geq(asks[0].action, 0);
    cr_assert_eq(asks[1].action, -ERANGE);
    cr_assert_geq(asks[2].action, 0);
    cr_assert_geq(asks[3].action, 0);
    cr_assert_eq(learner_update(&gpu), -ERANGE);
    for (size_t i = 1; i < STEPS; i++)
        cr_assert_geq(learner_act(&gpu, 0, asks[0].state), 0);
    cr_assert_eq(learner_act(&gpu, 0, asks[0].state), -ERANGE);
    learner_fini(&gpu);
}

Test(policy_cuda, gives_the_reason_if_there_is_no_gpu)
{
    struct learner learner;

    device_world(DEVICE_FAKE);
    cr_assert_eq(learner_init(&learner, 11, OBSERVERS, STEPS), 0);
    cr_assert_eq(policy_gpu_create(7, &learner.policy, LEARNER_ASKS, &learner.gpu), -ENODEV);
    cr_assert_neq(bx_error_text()[0], '\0');
    cr_assert_null(learner.gpu);
    setenv("BX_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
    cr_assert_eq(learner_act(&learner, 0, (float[POLICY_INPUTS]){ 0 }) >> 1, 0, "it still decides on the CPU");
    learner_fini(&learner);
}
