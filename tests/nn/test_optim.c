/* SPDX-License-Identifier: MIT */
/*
 * lib/nn/optim.c against the formulas of boxcar_nn.h written as plain loops: every bit, for sizes around its blocks,
 * for pointers that are aligned to a float only, in place and from block to block.
 */
#include "tests/harness/test.h"
#include "boxcar_nn.h"

#define SETS 5
#define GUARD 16                /* floats on each side that must not change */
#define SHIFTS 3                /* offsets of the arrays, in floats past a cache line */
#define CANARY 12345.0f

struct arrays {
    size_t count;
    float *from, *to, *velocity, *grads[SETS];
    float *want_to, *want_velocity;
};

static float noise(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(*state >> 40) * 0x1p-23 - 1.0);
}

/* `count` floats of noise, `shift` floats past the start of a cache line, between two guards. */
static float *make(size_t count, size_t shift, uint64_t seed)
{
    size_t bytes = (count + 2 * GUARD + shift) * sizeof(float);
    float *base = aligned_alloc(64, (bytes + 63) / 64 * 64);

    cr_assert_not_null(base);
    float *at = base + GUARD + shift;
    for (size_t i = 0; i < GUARD; i++)
        at[(ptrdiff_t)i - GUARD] = at[count + i] = CANARY;
    for (size_t i = 0; i < count; i++)
        at[i] = noise(&seed);
    return at;
}

static void drop(float *at, size_t count, size_t shift)
{
    for (size_t i = 0; i < GUARD; i++)
        cr_assert(at[(ptrdiff_t)i - GUARD] == CANARY && at[count + i] == CANARY, "a guard was written");
    free(at - GUARD - shift);
}

/* Every array at another offset in its cache line, from `shift` on. */
static void make_arrays(struct arrays *a, size_t count, size_t shift)
{
    a->count = count;
    a->from = make(count, shift, 1);
    a->to = make(count, shift * 2, 2);
    a->velocity = make(count, shift * 3, 3);
    for (size_t k = 0; k < SETS; k++)
        a->grads[k] = make(count, shift * (k % 2), 4 + k);
    a->want_to = make(count, 0, 2);
    a->want_velocity = make(count, 0, 3);
}

static void drop_arrays(struct arrays *a, size_t shift)
{
    drop(a->from, a->count, shift);
    drop(a->to, a->count, shift * 2);
    drop(a->velocity, a->count, shift * 3);
    for (size_t k = 0; k < SETS; k++)
        drop(a->grads[k], a->count, shift * (k % 2));
    drop(a->want_to, a->count, 0);
    drop(a->want_velocity, a->count, 0);
}

/* volatile: each operation is rounded to float, whatever the compiler does. */
static void expect(const struct bx_sgd *step, float *want_to, float *want_velocity)
{
    for (size_t i = 0; i < step->elements; i++) {
        volatile float g = step->grads[0][i], moved;

        for (size_t k = 1; k < step->grad_count; k++)
            g = g + step->grads[k][i];
        g = g / (float)step->grad_count;
        moved = step->momentum * want_velocity[i];
        moved = moved + g;
        want_velocity[i] = moved;
        moved = step->lr * moved;
        want_to[i] = step->from[i] - moved;
    }
}

static void check_bits(const float *got, const float *want, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(memcmp(&got[i], &want[i], sizeof(float)), 0, "%s[%zu] of %zu: %.9g instead of %.9g", what,
                     i, count, (double)got[i], (double)want[i]);
}

static void check_step(struct arrays *a, struct bx_sgd *step)
{
    const float *grads[SETS];
    float *from = malloc((a->count + 1) * sizeof(float));

    cr_assert_not_null(from);
    memcpy(grads, a->grads, sizeof(grads));
    memcpy(from, a->from, a->count * sizeof(float));
    step->from = a->from;
    step->velocity = a->velocity;
    step->grads = grads;
    step->elements = a->count;
    memcpy(a->want_velocity, a->velocity, a->count * sizeof(float));
    expect(step, a->want_to, a->want_velocity);
    bx_sgd_step(step);
    check_bits(step->to, a->want_to, a->count, "to");
    check_bits(a->velocity, a->want_velocity, a->count, "velocity");
    if (step->to != step->from)
        check_bits(a->from, from, a->count, "from");
    free(from);
}

/* 1 to 5 sets, from one block to another and then in place, starting with the last velocity. */
static void check_size(size_t count, size_t shift, float momentum)
{
    struct arrays a;

    make_arrays(&a, count, shift);
    for (size_t sets = 1; sets <= SETS; sets++) {
        struct bx_sgd step = { .lr = 0.03f, .momentum = momentum, .to = a.to, .grad_count = sets };

        check_step(&a, &step);
        step.to = a.from;
        check_step(&a, &step);
    }
    drop_arrays(&a, shift);
}

static const size_t SIZE[] = { 0, 1, 7, 15, 16, 64, 511, 512, 513, 1024, 1535, 1536, 4099 };

TestSuite(optim, .timeout = 120);

/* Also for pointers that are aligned to a float only, and without momentum. */
Test(optim, sgd_step_gives_every_bit_of_the_formula)
{
    for (size_t shift = 0; shift <= SHIFTS; shift++)
        for (size_t i = 0; i < sizeof(SIZE) / sizeof(SIZE[0]); i++)
            check_size(SIZE[i], shift, 0.9f);
    check_size(4099, 0, 0.0f);
    check_size(1000003, 0, 0.9f);
    check_size(1000003, 1, 0.5f);
}

Test(optim, sgd_step_adds_the_gradients_in_their_order)
{
    /* 1e8 + 1 is 1e8 in a float, so another order gives another sum. */
    static const float BIG[1] = { 1e8f }, MINUS[1] = { -1e8f }, ONE[1] = { 3.0f };
    const float *last[3] = { BIG, MINUS, ONE }, *first[3] = { ONE, BIG, MINUS };
    float from = 0.0f, to = 0.0f, velocity = 0.0f;
    struct bx_sgd step = {
        .lr = 1.0f, .from = &from, .to = &to, .velocity = &velocity, .grads = last, .grad_count = 3, .elements = 1,
    };

    bx_sgd_step(&step);
    cr_assert_eq(velocity, 1.0f);
    cr_assert_eq(to, -1.0f);
    velocity = 0.0f;
    step.grads = first;
    bx_sgd_step(&step);
    cr_assert_eq(velocity, 0.0f);
}

Test(optim, mse_loss_is_the_mean_square_and_its_gradient)
{
    static const float OUTPUT[4] = { 1.0f, -2.0f, 0.5f, 3.0f }, TARGET[4] = { 0.0f, -2.0f, 1.0f, 1.0f };
    static const float WANT[4] = { 0.5f, 0.0f, -0.25f, 1.0f };
    float grad[4];

    cr_assert_eq(bx_mse_loss(OUTPUT, TARGET, 4, grad), (1.0 + 0.0 + 0.25 + 4.0) / 4.0);
    check_bits(grad, WANT, 4, "gradient");
    cr_assert_eq(bx_mse_loss(OUTPUT, TARGET, 1, grad), 1.0);
    cr_assert_eq(grad[0], 2.0f);
    cr_assert_eq(bx_mse_loss(OUTPUT, TARGET, 0, grad), 0.0);
    cr_assert_eq(grad[0], 2.0f, "nothing is written for no elements");
}

Test(optim, mse_loss_sums_in_double)
{
    enum { COUNT = 1000003 };
    float *output = make(COUNT, 1, 1), *target = make(COUNT, 2, 2), *grad = make(COUNT, 3, 3);
    double sum = 0.0;

    output[0] = 30000.0f;
    for (size_t i = 0; i < COUNT; i++) {
        double difference = (double)output[i] - (double)target[i];

        sum += difference * difference;
    }
    /* In float the first square would absorb most of the others. */
    cr_assert_float_eq(bx_mse_loss(output, target, COUNT, grad), sum / COUNT, 1e-12 * sum / COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        float want = (float)(2.0 * ((double)output[i] - (double)target[i]) / COUNT);

        cr_assert_eq(grad[i], want, "gradient[%zu]: %.9g instead of %.9g", i, (double)grad[i], (double)want);
    }
    drop(output, COUNT, 1);
    drop(target, COUNT, 2);
    drop(grad, COUNT, 3);
}
