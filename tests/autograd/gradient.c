/* SPDX-License-Identifier: MIT */
/*
 * Gradients against finite differences (gradient.h).
 */
#include "tests/autograd/gradient.h"

#include <math.h>

#define STEP 1e-5

/* ---- Tensors ------------------------------------------------------------------------------------- */

double fill_at(uint64_t k, uint64_t i, double scale)
{
    uint64_t z = (k << 40) + i + UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return scale * (2.0 * ((double)((z ^ z >> 31) >> 11) * 0x1p-53) - 1.0);
}

double element(const struct bx_tensor *tensor, int64_t i)
{
    const void *data = bx_tensor_data(tensor);

    return bx_tensor_dtype(tensor) == BX_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

void set_element(struct bx_tensor *tensor, int64_t i, double value)
{
    void *data = bx_tensor_data_mut(tensor);

    if (bx_tensor_dtype(tensor) == BX_F32)
        ((float *)data)[i] = (float)value;
    else
        ((double *)data)[i] = value;
}

static struct bx_tensor *make(enum bx_dtype dtype, const struct shape *shape)
{
    struct bx_tensor *tensor = NULL;

    cr_assert_eq(bx_tensor_create(NULL, dtype, shape->ndim, shape->extent, &tensor), 0, "%s", bx_error_text());
    return tensor;
}

struct bx_tensor *noise(enum bx_dtype dtype, const struct shape *shape, uint64_t k, double scale, double shift)
{
    struct bx_tensor *tensor = make(dtype, shape);

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        set_element(tensor, i, shift + fill_at(k, (uint64_t)i, scale));
    return tensor;
}

struct bx_tensor *values_of(enum bx_dtype dtype, const struct shape *shape, const double *values)
{
    struct bx_tensor *tensor = make(dtype, shape);

    for (int64_t i = 0; i < bx_tensor_elements(tensor); i++)
        set_element(tensor, i, values[i]);
    return tensor;
}

struct bx_tensor *indices(const struct shape *shape, const int64_t *values)
{
    struct bx_tensor *tensor = make(BX_I64, shape);

    if (bx_tensor_bytes(tensor) > 0)
        memcpy(bx_tensor_data_mut(tensor), values, bx_tensor_bytes(tensor));
    return tensor;
}

struct bx_var *parameter(struct bx_tensor *value)
{
    struct bx_var *var = NULL;

    cr_assert_eq(bx_var_create(value, true, &var), 0, "%s", bx_error_text());
    bx_tensor_release(value);
    return var;
}

struct bx_tape *new_tape(void)
{
    struct bx_tape *tape = NULL;

    cr_assert_eq(bx_tape_create(NULL, &tape), 0);
    return tape;
}

struct bx_grads *new_grads(void)
{
    struct bx_grads *grads = NULL;

    cr_assert_eq(bx_grads_create(NULL, &grads), 0);
    return grads;
}

/* ---- The check ----------------------------------------------------------------------------------- */

struct run {
    expression_fn expression;
    void *context;
    struct bx_tape *tape;
    struct bx_grads *grads;
    struct bx_var *in[INPUTS_MAX];
    size_t count;
    struct bx_tensor *result, *weight;      /* weight: the gradient of the result */
};

static struct bx_tensor *evaluate(struct run *run)
{
    struct bx_var *out = run->expression(run->tape, run->in, run->context);
    struct bx_tensor *dense = NULL;

    cr_assert_not_null(out, "%s", bx_error_text());
    cr_assert_eq(bx_tensor_copy(NULL, bx_var_value(out), &dense), 0);
    return dense;
}

static void begin(struct run *run, enum bx_dtype dtype, double shift, const struct shape *shapes)
{
    struct bx_var *out;
    struct shape result = { 0 };

    run->tape = new_tape();
    run->grads = new_grads();
    for (size_t i = 0; i < run->count; i++)
        run->in[i] = parameter(noise(dtype, &shapes[i], 10 + i, 1, shift));
    out = run->expression(run->tape, run->in, run->context);
    cr_assert_not_null(out, "%s", bx_error_text());
    cr_assert_eq(bx_tensor_dtype(bx_var_value(out)), dtype);
    result.ndim = bx_tensor_ndim(bx_var_value(out));
    for (int i = 0; i < result.ndim; i++)
        result.extent[i] = bx_tensor_dim(bx_var_value(out), i);
    run->weight = noise(dtype, &result, 99, 1, 0);
    cr_assert_eq(bx_backward(&out, &run->weight, 1, false, run->grads), 0, "%s", bx_error_text());
    run->result = evaluate(run);
    bx_tape_clear(run->tape);
}

static void end(struct run *run)
{
    for (size_t i = 0; i < run->count; i++)
        bx_var_release(run->in[i]);
    bx_tensor_release(run->result);
    bx_tensor_release(run->weight);
    bx_grads_destroy(run->grads);
    bx_tape_destroy(run->tape);
}

/* The change of the weighted sum of the result: summed over differences, because the sums would cancel. */
static double difference(struct run *run, struct bx_tensor *value, int64_t i)
{
    const double before = element(value, i);
    struct bx_tensor *up, *down;
    double sum = 0;

    set_element(value, i, before + STEP);
    up = evaluate(run);
    set_element(value, i, before - STEP);
    down = evaluate(run);
    set_element(value, i, before);
    for (int64_t j = 0; j < bx_tensor_elements(up); j++)
        sum += element(run->weight, j) * (element(up, j) - element(down, j));
    bx_tensor_release(up);
    bx_tensor_release(down);
    bx_tape_clear(run->tape);
    return sum / (2 * STEP);
}

static void check_differences(struct run *run)
{
    for (size_t k = 0; k < run->count; k++) {
        struct bx_tensor *value = bx_var_value(run->in[k]);
        const struct bx_tensor *grad = bx_grads_get(run->grads, run->in[k]);
        double largest = 0;

        for (int64_t i = 0; grad != NULL && i < bx_tensor_elements(grad); i++)
            largest = fmax(largest, fabs(element(grad, i)));
        for (int64_t i = 0; i < bx_tensor_elements(value); i++) {
            const double want = difference(run, value, i), got = grad != NULL ? element(grad, i) : 0;

            cr_assert(fabs(got - want) <= 1e-6 * largest + 1e-8,
                      "input %zu, element %lld: the gradient is %.12g, the differences give %.12g", k, (long long)i,
                      got, want);
        }
    }
}

static void check_same(const struct bx_tensor *f32, const struct bx_tensor *f64, const char *what)
{
    double distance = 0, norm = 0;

    cr_assert_eq(f32 == NULL, f64 == NULL, "%s: only one dtype has it", what);
    if (f64 == NULL)
        return;
    cr_assert_eq(bx_tensor_dtype(f32), BX_F32);
    cr_assert_eq(bx_tensor_elements(f32), bx_tensor_elements(f64));
    for (int64_t i = 0; i < bx_tensor_elements(f64); i++) {
        distance += pow(element(f32, i) - element(f64, i), 2);
        norm += pow(element(f64, i), 2);
    }
    cr_assert(sqrt(distance) <= 1e-4 * sqrt(norm) + 1e-6, "%s: f32 is %g from f64, of norm %g", what, sqrt(distance),
              sqrt(norm));
}

void check_gradients_from(double shift, expression_fn expression, void *context, const struct shape *shapes,
                          size_t count)
{
    struct run f64 = { .expression = expression, .context = context, .count = count }, f32 = f64;

    cr_assert_leq(count, INPUTS_MAX);
    begin(&f64, BX_F64, shift, shapes);
    begin(&f32, BX_F32, shift, shapes);
    check_differences(&f64);
    check_same(f32.result, f64.result, "the result");
    for (size_t i = 0; i < count; i++)
        check_same(bx_grads_get(f32.grads, f32.in[i]), bx_grads_get(f64.grads, f64.in[i]), "a gradient");
    end(&f32);
    end(&f64);
}

void check_gradients(expression_fn expression, void *context, const struct shape *shapes, size_t count)
{
    check_gradients_from(0, expression, context, shapes, count);
}

void check_close(const struct bx_tensor *got, const struct bx_tensor *want, double tolerance, const char *what)
{
    cr_assert(got != NULL && want != NULL, "%s", what);
    cr_assert_eq(bx_tensor_elements(got), bx_tensor_elements(want));
    for (int64_t i = 0; i < bx_tensor_elements(want); i++)
        cr_assert_float_eq(element(got, i), element(want, i), tolerance, "%s %lld", what, (long long)i);
}
