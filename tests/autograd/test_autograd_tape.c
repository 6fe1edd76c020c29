/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/tape.c, var.c and custom.c: how long variables live, how a tape fails, and what each operation refuses,
 * with its sentence.
 */
#include "tests/autograd/gradient.h"

#include <math.h>

TestSuite(autograd_tape, .timeout = 30);

static const struct shape ONE = { 0, { 0 } }, MATRIX = { 2, { 2, 3 } }, CUBE = { 3, { 2, 3, 4 } };

/* ---- Variables ----------------------------------------------------------------------------------- */

Test(autograd_tape, a_variable_holds_its_tensor_and_the_tape_its_variables)
{
    OWN(tape) *tape = new_tape();
    struct bx_var *x = parameter(noise(BX_F32, &MATRIX, 1, 1, 0)), *y = bx_var_exp(tape, x), *z = bx_var_neg(tape, y);
    OWN(tensor) *value = bx_var_acquire_value(y);

    cr_expect(bx_var_requires_grad(x) && bx_var_requires_grad(z));
    cr_expect_eq(bx_var_acquire(z), z);
    bx_tape_clear(tape);
    cr_expect_eq(element(bx_var_value(z), 0), -element(value, 0), "z was acquired, y was not");
    bx_var_release(z);
    bx_var_release(x);
}

Test(autograd_tape, a_leaf_gets_another_value_of_its_dtype_and_shape)
{
    OWN(tape) *tape = new_tape();
    struct bx_var *x = parameter(noise(BX_F32, &MATRIX, 1, 1, 0)), *y = bx_var_neg(tape, x);
    OWN(tensor) *next = noise(BX_F32, &MATRIX, 2, 1, 0), *f64 = noise(BX_F64, &MATRIX, 2, 1, 0);
    OWN(tensor) *cube = noise(BX_F32, &CUBE, 2, 1, 0);

    cr_expect_eq(bx_var_set_value(x, next), 0);
    cr_expect_eq(bx_var_value(x), next);
    FAILS(bx_var_set_value(x, f64), -EINVAL,
          "the value of a variable of f32 (2, 3) cannot become a tensor of f64 (2, 3)");
    FAILS(bx_var_set_value(x, cube), -EINVAL,
          "the value of a variable of f32 (2, 3) cannot become a tensor of f32 (2, 3, 4)");
    FAILS(bx_var_set_value(y, next), -EINVAL,
          "only a leaf can get another value, and this variable is the result of 'neg'");
    cr_expect_eq(bx_var_value(x), next);
    bx_var_release(x);
}

Test(autograd_tape, only_floats_require_a_gradient)
{
    OWN(tensor) *numbers = indices(&(struct shape){ 1, { 2 } }, (const int64_t[]){ 1, 2 });
    OWN(var) *var = NULL;

    FAILS(bx_var_create(numbers, true, &var), -EINVAL,
          "a variable that requires a gradient is f32 or f64, and the tensor is i64");
    cr_expect_null(var);
    cr_assert_eq(bx_var_create(numbers, false, &var), 0);
    cr_expect(isnan(bx_var_item(var)));
}

Test(autograd_tape, item_reads_one_element)
{
    OWN(var) *one = parameter(values_of(BX_F32, &ONE, (double[]){ 2.5 }));
    OWN(var) *many = parameter(noise(BX_F32, &MATRIX, 1, 1, 0));

    cr_expect_eq(bx_var_item(one), 2.5);
    cr_expect(isnan(bx_var_item(many)));
    cr_expect(isnan(bx_var_item(NULL)));
}

/* ---- Failing ------------------------------------------------------------------------------------- */

Test(autograd_tape, keeps_its_first_error_and_its_sentence)
{
    OWN(tape) *tape = new_tape();
    OWN(grads) *grads = new_grads();
    OWN(var) *a = parameter(noise(BX_F32, &MATRIX, 1, 1, 0)), *b = parameter(noise(BX_F32, &CUBE, 1, 1, 0));
    struct bx_var *y = bx_var_matmul(tape, a, a), *z;

    cr_expect_null(y);
    z = bx_var_sum(tape, bx_var_mul(tape, bx_var_matmul(tape, b, b), y));
    cr_expect_null(z);
    cr_expect_null(bx_var_exp(tape, a), "nothing is computed on a tape that has failed");
    cr_expect_eq(bx_tape_error(tape), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "'matmul' cannot multiply the shapes (2, 3) and (2, 3)");
    FAILS(bx_backward(&z, NULL, 1, false, grads), -EINVAL, "root 0 of the backward pass is NULL; the last failure of "
          "this thread: 'matmul' cannot multiply the shapes (2, 3) and (2, 3)");
    bx_tape_clear(tape);
    cr_expect_eq(bx_tape_error(tape), 0);
    cr_expect_not_null(bx_var_exp(tape, a));
}

Test(autograd_tape, newer_options_are_refused)
{
    struct {
        struct bx_tape_options known;
        uint64_t unknown;
    } options = { .known = { .struct_bytes = sizeof options }, .unknown = 1 };
    OWN(tape) *tape = NULL;

    cr_expect_eq(bx_tape_create(&options.known, &tape), BX_E_VERSION);
    options.unknown = 0;
    cr_expect_eq(bx_tape_create(&options.known, &tape), 0);
}

/* ---- What operations refuse ---------------------------------------------------------------------- */

struct operands {
    struct bx_tape *tape;
    struct bx_var *matrix, *cube, *scalar, *f64, *numbers;
    struct bx_tensor *index;
};

static struct operands begin(void)
{
    struct operands o = { .tape = new_tape() };

    o.matrix = parameter(noise(BX_F32, &MATRIX, 1, 1, 0));
    o.cube = parameter(noise(BX_F32, &CUBE, 1, 1, 0));
    o.scalar = parameter(noise(BX_F32, &ONE, 1, 1, 0));
    o.f64 = parameter(noise(BX_F64, &MATRIX, 1, 1, 0));
    o.index = indices(&(struct shape){ 2, { 2, 1 } }, (const int64_t[]){ 0, 2 });
    cr_assert_eq(bx_var_create(o.index, false, &o.numbers), 0);
    return o;
}

static void end(struct operands *o)
{
    bx_var_release(o->matrix);
    bx_var_release(o->cube);
    bx_var_release(o->scalar);
    bx_var_release(o->f64);
    bx_var_release(o->numbers);
    bx_tensor_release(o->index);
    bx_tape_destroy(o->tape);
}

Test(autograd_tape, operations_refuse_null_and_other_dtypes)
{
    struct operands o = begin();

    STOPS(o.tape, bx_var_exp(o.tape, NULL), -EINVAL, "input 0 of 'exp' is NULL");
    STOPS(o.tape, bx_var_add(o.tape, o.matrix, NULL), -EINVAL, "input 1 of 'add' is NULL");
    STOPS(o.tape, bx_var_detach(o.tape, NULL), -EINVAL, "input 0 of 'detach' is NULL");
    STOPS(o.tape, bx_var_mul(o.tape, o.matrix, o.f64), -EINVAL,
          "the inputs of 'mul' are f32 and f64; they must have one dtype");
    STOPS(o.tape, bx_var_linear(o.tape, o.matrix, o.matrix, o.f64), -EINVAL,
          "the inputs of 'linear' are f32 and f64; they must have one dtype");
    STOPS(o.tape, bx_var_tanh(o.tape, o.numbers), -ENOTSUP, "'tanh' computes with f32 and f64, and its input is i64");
    STOPS(o.tape, bx_tape_input(o.tape, NULL), -EINVAL,
          "bx_var_create needs a tensor and a place to put the variable");
    cr_expect_null(bx_var_exp(NULL, o.matrix));
    cr_expect_str_eq(bx_error_text(), "'exp' was given no tape");
    end(&o);
}

Test(autograd_tape, refuses_each_dtype_with_which_it_cannot_compute)
{
    for (enum bx_dtype dtype = BX_F16; dtype <= BX_C128; dtype++) {
        OWN(tape) *tape = new_tape();
        OWN(tensor) *tensor = NULL;
        OWN(var) *var = NULL;
        char said[80];

        cr_assert_eq(bx_tensor_create(NULL, dtype, MATRIX.ndim, MATRIX.extent, &tensor), 0);
        cr_expect_eq(bx_var_create(tensor, true, &var), -EINVAL);
        snprintf(said, sizeof said, "and the tensor is %s", bx_dtype_name(dtype));
        cr_expect_not_null(strstr(bx_error_text(), said), "%s", bx_error_text());
        cr_assert_eq(bx_var_create(tensor, false, &var), 0);
        snprintf(said, sizeof said, "'exp' computes with f32 and f64, and its input is %s", bx_dtype_name(dtype));
        STOPS(tape, bx_var_exp(tape, var), -ENOTSUP, said);
        cr_expect(isnan(bx_var_item(var)));
    }
}

Test(autograd_tape, operations_refuse_shapes_that_do_not_fit)
{
    struct operands o = begin();

    STOPS(o.tape, bx_var_add(o.tape, o.matrix, o.cube), -EINVAL,
          "'add' cannot broadcast the shapes (2, 3) and (2, 3, 4)");
    STOPS(o.tape, bx_var_matmul(o.tape, o.matrix, o.cube), -EINVAL,
          "'matmul' cannot multiply the shapes (2, 3) and (2, 3, 4)");
    STOPS(o.tape, bx_var_matmul(o.tape, o.scalar, o.matrix), -EINVAL,
          "'matmul' cannot multiply the shapes () and (2, 3)");
    STOPS(o.tape, bx_var_linear(o.tape, o.cube, o.matrix, NULL), -EINVAL,
          "'linear' cannot multiply the shapes (2, 3, 4) and (2, 3)");
    STOPS(o.tape, bx_var_linear(o.tape, o.matrix, o.matrix, o.matrix), -EINVAL,
          "the bias of 'linear' has the shape (2, 3), and the result 2 columns");
    STOPS(o.tape, bx_var_mse(o.tape, o.matrix, o.scalar), -EINVAL, "'mse' cannot compare the shapes (2, 3) and ()");
    STOPS(o.tape, bx_var_sum_dim(o.tape, o.matrix, 2), -EINVAL, "'sum' has no dimension 2: there are 2");
    STOPS(o.tape, bx_var_reshape(o.tape, o.matrix, 2, (const int64_t[]){ 4, -1 }), -EINVAL,
          "'reshape' cannot make the shape (4, -1) of (2, 3)");
    STOPS(o.tape, bx_var_reshape(o.tape, o.matrix, 2, (const int64_t[]){ -1, -1 }), -EINVAL,
          "'reshape' cannot make the shape (-1, -1) of (2, 3)");
    STOPS(o.tape, bx_var_reshape(o.tape, o.matrix, 1, (const int64_t[]){ 5 }), -EINVAL,
          "'reshape' cannot make the shape (5) of (2, 3)");
    STOPS(o.tape, bx_var_reshape(o.tape, o.matrix, 9, NULL), -EINVAL,
          "'reshape' needs a shape of 0 to 8 dimensions");
    STOPS(o.tape, bx_var_transpose(o.tape, o.matrix, 0, -3), -EINVAL, "'transpose' has no dimension -3: there are 2");
    STOPS(o.tape, bx_var_slice(o.tape, o.matrix, 1, 1, 4), -EINVAL, "'slice' cannot take 1 to 4 of 3 elements");
    STOPS(o.tape, bx_var_slice(o.tape, o.matrix, 1, 2, 1), -EINVAL, "'slice' cannot take 2 to 1 of 3 elements");
    STOPS(o.tape, bx_var_slice(o.tape, o.matrix, 1, -1, 1), -EINVAL, "'slice' cannot take -1 to 1 of 3 elements");
    end(&o);
}

Test(autograd_tape, joins_refuse_what_does_not_fit)
{
    struct operands o = begin();
    struct bx_var *other[] = { o.matrix, o.cube }, *scalars[] = { o.scalar }, *null[] = { o.matrix, NULL };
    struct bx_var *deep = bx_var_reshape(o.tape, o.matrix, 8, (const int64_t[]){ 1, 1, 1, 1, 1, 1, 2, 3 });

    STOPS(o.tape, bx_var_stack(o.tape, &deep, 1, 0), -EINVAL, "'stack' cannot add a dimension: there are 8");
    STOPS(o.tape, bx_var_concat(o.tape, other, 2, 0), -EINVAL,
          "'concat' cannot join the shapes (2, 3) and (2, 3, 4) along dimension 0");
    STOPS(o.tape, bx_var_stack(o.tape, other, 2, 0), -EINVAL,
          "'stack' cannot join the shapes (2, 3) and (2, 3, 4) along dimension 0");
    STOPS(o.tape, bx_var_concat(o.tape, scalars, 1, 0), -EINVAL, "'concat' has no dimension 0: there are 0");
    STOPS(o.tape, bx_var_concat(o.tape, NULL, 0, 0), -EINVAL, "'concat' needs an input");
    STOPS(o.tape, bx_var_stack(o.tape, null, 2, 0), -EINVAL, "input 1 of 'stack' is NULL");
    end(&o);
}

Test(autograd_tape, choices_refuse_what_does_not_fit)
{
    struct operands o = begin();
    struct bx_tensor *row = indices(&(struct shape){ 1, { 2 } }, (const int64_t[]){ 1, 3 });
    struct bx_tensor *below = indices(&(struct shape){ 1, { 2 } }, (const int64_t[]){ 1, -1 });

    STOPS(o.tape, bx_var_gather(o.tape, o.matrix, row), -EINVAL, "index 1 of 'gather' is 3; it must be 0 to 2");
    STOPS(o.tape, bx_var_gather(o.tape, o.cube, row), -EINVAL,
          "'gather' cannot take indices of the shape (2) from (2, 3, 4)");
    STOPS(o.tape, bx_var_gather(o.tape, o.matrix, NULL), -EINVAL,
          "the indices of 'gather' must be a tensor of i64 in host memory");
    STOPS(o.tape, bx_var_gather(o.tape, o.matrix, bx_var_value(o.matrix)), -EINVAL,
          "the indices of 'gather' must be a tensor of i64 in host memory");
    STOPS(o.tape, bx_var_embedding(o.tape, o.matrix, row), -EINVAL, "index 1 of 'embedding' is 3; it must be 0 to 1");
    STOPS(o.tape, bx_var_embedding(o.tape, o.cube, row), -EINVAL,
          "the weight of 'embedding' has the shape (2, 3, 4); it must be a matrix");
    STOPS(o.tape, bx_var_cross_entropy(o.tape, o.matrix, row), -EINVAL,
          "index 1 of 'cross_entropy' is 3; it must be 0 to 2");
    STOPS(o.tape, bx_var_cross_entropy(o.tape, o.matrix, below), -EINVAL,
          "index 1 of 'cross_entropy' is -1; it must be 0 to 2");
    STOPS(o.tape, bx_var_cross_entropy(o.tape, o.matrix, o.index), -EINVAL,
          "'cross_entropy' cannot choose classes of the shape (2, 1) from logits of the shape (2, 3)");
    STOPS(o.tape, bx_var_cross_entropy(o.tape, o.scalar, row), -EINVAL,
          "'cross_entropy' cannot choose classes of the shape (2) from logits of the shape ()");
    STOPS(o.tape, bx_var_cross_entropy(o.tape, o.matrix, NULL), -EINVAL,
          "the indices of 'cross_entropy' must be a tensor of i64 in host memory");
    bx_tensor_release(row);
    bx_tensor_release(below);
    end(&o);
}

Test(autograd_tape, dropout_refuses_what_is_no_probability)
{
    struct operands o = begin();
    struct bx_generator generator = { .seed = 1 };

    STOPS(o.tape, bx_var_dropout(o.tape, o.matrix, 1.5, true, &generator), -EINVAL,
          "the probability of 'dropout' is 1.5; it must be 0 to 1");
    STOPS(o.tape, bx_var_dropout(o.tape, o.matrix, (double)NAN, true, &generator), -EINVAL,
          "the probability of 'dropout' is nan; it must be 0 to 1");
    STOPS(o.tape, bx_var_dropout(o.tape, o.matrix, 0.5, true, NULL), -EINVAL, "'dropout' needs a generator");
    cr_expect_eq(generator.drawn, 0);
    end(&o);
}

static int backward(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    (void)grads;
    return 0;
}

Test(autograd_tape, custom_nodes_refuse_what_is_missing)
{
    struct operands o = begin();
    struct bx_tensor *value = bx_var_value(o.matrix), *null = NULL;
    struct bx_var *none = NULL, *out[1] = { o.matrix };
    const struct bx_custom good = { .name = "mine", .inputs = &o.matrix, .input_count = 1, .values = &value,
                                    .output_count = 1, .backward = backward };
    struct bx_custom bad = good;

#define REFUSES(sentence)                                                                           \
    FAILS(bx_var_custom(o.tape, &bad, out), -EINVAL, sentence);                                     \
    cr_expect_null(out[0]);                                                                         \
    cr_expect_eq(bx_tape_error(o.tape), -EINVAL);                                                   \
    bx_tape_clear(o.tape);                                                                          \
    bad = good

    bad.name = NULL;
    REFUSES("a custom node needs a name and a backward function");
    bad.backward = NULL;
    REFUSES("a custom node needs a name and a backward function");
    bad.values = NULL;
    REFUSES("the node 'mine' needs at least one output, and its inputs");
    bad.inputs = NULL;
    REFUSES("the node 'mine' needs at least one output, and its inputs");
    bad.inputs = &none;
    REFUSES("input 0 of 'mine' is NULL");
    bad.values = &null;
    REFUSES("output 0 of 'mine' is NULL");
    bad.values = &o.index;
    REFUSES("output 0 of 'mine' must be f32 or f64, in host memory");
    FAILS(bx_var_custom(o.tape, NULL, out), -EINVAL,
          "bx_var_custom needs a struct bx_custom and a place for the results");
    end(&o);
}
