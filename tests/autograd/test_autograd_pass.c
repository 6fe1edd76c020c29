/* SPDX-License-Identifier: MIT */
/*
 * lib/autograd/pass.c, grads.c and the references of var.c: graphs of every form, passes over parts of them, and what
 * is refused. Threads share variables in the simulator (`vars`).
 */
#include "tests/autograd/gradient.h"

#include <math.h>

TestSuite(autograd_pass, .timeout = 60);

#define CHAIN 1000000

static const struct shape ONE = { 0, { 0 } }, TWO = { 1, { 2 } };

static struct bx_var *scalar(double value)
{
    return parameter(values_of(BX_F64, &ONE, &value));
}

static double grad_of(const struct bx_grads *grads, const struct bx_var *var)
{
    const struct bx_tensor *grad = bx_grads_get(grads, var);

    return grad != NULL ? element(grad, 0) : NAN;
}

/* The fixture of most tests: two parameters, 3 and 5. */
struct world {
    struct bx_tape *tape;
    struct bx_grads *grads;
    struct bx_var *a, *b;
};

static struct world begin(void)
{
    return (struct world){ new_tape(), new_grads(), scalar(3), scalar(5) };
}

static void end(struct world *w)
{
    bx_var_release(w->a);
    bx_var_release(w->b);
    bx_grads_destroy(w->grads);
    bx_tape_destroy(w->tape);
}

/* ---- Forms of graphs ----------------------------------------------------------------------------- */

/* Each level doubles: 2^40 paths, which a walk by paths would not finish. */
Test(autograd_pass, forty_diamonds_in_a_row_take_forty_steps)
{
    struct world w = begin();
    struct bx_var *y = w.a;

    for (int i = 0; i < 40; i++)
        y = bx_var_add(w.tape, y, y);
    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0);
    cr_expect_eq(grad_of(w.grads, w.a), 0x1p40);
    end(&w);
}

static int count_calls(void *context, const struct bx_node_grads *grads)
{
    ++*(int *)context;
    for (size_t i = 0; i < grads->input_count; i++)
        grads->inputs[i] = bx_tensor_acquire(grads->outputs[0]);
    return 0;
}

/* A node with a's value and that backward function. */
static struct bx_var *node_of(struct bx_tape *tape, struct bx_var *a, struct bx_custom custom)
{
    struct bx_tensor *value = bx_var_value(a);
    struct bx_var *out = NULL;

    custom.inputs = &a;
    custom.input_count = custom.output_count = 1;
    custom.values = &value;
    cr_assert_eq(bx_var_custom(tape, &custom, &out), 0, "%s", bx_error_text());
    return out;
}

static struct bx_var *counted(struct bx_tape *tape, struct bx_var *a, int *calls)
{
    return node_of(tape, a, (struct bx_custom){ .name = "counted", .backward = count_calls, .context = calls });
}

/* The node is reached by a short way and by long ones, and as a root; it must run once, with the whole gradient. */
Test(autograd_pass, a_node_runs_once_whatever_the_lengths_of_the_ways_to_it)
{
    struct world w = begin();
    int calls = 0;
    struct bx_var *x = counted(w.tape, w.a, &calls), *y = x, *roots[3];

    for (int i = 0; i < 5; i++)
        y = bx_var_add(w.tape, bx_var_neg(w.tape, y), x);
    roots[0] = x;
    roots[1] = bx_var_add(w.tape, x, y);
    roots[2] = roots[1];
    cr_assert_eq(bx_backward(roots, NULL, 3, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(calls, 1);
    cr_expect_eq(grad_of(w.grads, w.a), 1 + 2 * 1);
    end(&w);
}

Test(autograd_pass, a_branch_that_no_root_uses_takes_no_part)
{
    struct world w = begin();
    int calls = 0;
    struct bx_var *x = bx_var_neg(w.tape, w.a), *unused = bx_var_mul(w.tape, counted(w.tape, x, &calls), w.b);
    struct bx_var *y = bx_var_scale(w.tape, x, 2);

    cr_assert_eq(bx_backward(&y, NULL, 1, true, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(calls, 0);
    cr_expect_eq(grad_of(w.grads, w.a), -2);
    cr_expect_null(bx_grads_get(w.grads, w.b));
    cr_expect_eq(bx_grads_count(w.grads), 1);
    cr_assert_eq(bx_backward(&unused, NULL, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(calls, 1);
    cr_expect_eq(grad_of(w.grads, w.a), -7);
    end(&w);
}

Test(autograd_pass, a_root_may_be_a_parameter_and_occur_twice)
{
    struct world w = begin();
    struct bx_var *roots[] = { w.a, w.b, w.a };

    cr_assert_eq(bx_backward(roots, NULL, 3, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(grad_of(w.grads, w.a), 2);
    cr_expect_eq(grad_of(w.grads, w.b), 1);
    end(&w);
}

Test(autograd_pass, constants_and_detached_values_get_no_gradient)
{
    struct world w = begin();
    struct bx_var *x = bx_tape_input(w.tape, bx_var_value(w.b)), *half = bx_var_mul(w.tape, w.a, x);
    struct bx_var *y = bx_var_mul(w.tape, bx_var_detach(w.tape, half), w.a);

    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0);
    cr_expect_eq(bx_grads_count(w.grads), 1);
    cr_expect_eq(grad_of(w.grads, w.a), 15);
    end(&w);
}

Test(autograd_pass, a_tape_without_gradients_records_nothing)
{
    struct world w = begin();
    struct bx_tape *tape = NULL;

    cr_assert_eq(bx_tape_create(&(struct bx_tape_options){ .no_grad = true }, &tape), 0);
    struct bx_var *y = bx_var_mul(tape, w.a, w.b);

    cr_expect_eq(bx_var_item(y), 15);
    cr_expect_not(bx_var_requires_grad(y));
    bx_tape_destroy(tape);
    end(&w);
}

/* ---- A long chain -------------------------------------------------------------------------------- */

/* On a thread with a small stack: a recursion of a few thousand calls would overrun it. */
static void *run_chain(void *context)
{
    struct world w = begin();
    struct bx_var *y = w.a;

    (void)context;
    for (int i = 0; i < CHAIN; i++)
        y = bx_var_neg(w.tape, y);
    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(grad_of(w.grads, w.a), 1);

    /* The last reference frees the whole chain at once. */
    bx_var_acquire(y);
    bx_tape_clear(w.tape);
    cr_expect_eq(bx_var_item(y), 3);
    bx_var_release(y);
    end(&w);
    return NULL;
}

static void on_small_stack(void *(*run)(void *context))
{
    pthread_attr_t small;
    pthread_t thread;

    cr_assert_eq(pthread_attr_init(&small), 0);
    cr_assert_eq(pthread_attr_setstacksize(&small, 128 << 10), 0);
    cr_assert_eq(pthread_create(&thread, &small, run, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&small);
}

Test(autograd_pass, a_million_nodes_in_a_chain_need_no_stack, .timeout = 120)
{
    on_small_stack(run_chain);
}

/* A chain that hangs together by the contexts of custom nodes: their free_fn releases the variable before. */
static void release_var(void *context)
{
    bx_var_release(context);
}

static int no_gradient(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    (void)grads;
    return 0;
}

static void *run_held_chain(void *context)
{
    OWN(tape) *tape = new_tape();
    OWN(var) *a = scalar(3), *y = bx_var_acquire(a);
    struct bx_tensor *value = bx_var_value(a);

    (void)context;
    for (int i = 0; i < CHAIN / 10; i++) {
        struct bx_var *next = NULL;

        cr_assert_eq(bx_var_custom(tape, &(struct bx_custom){ .name = "holds", .values = &value, .output_count = 1,
                                                              .requires_grad = true, .backward = no_gradient,
                                                              .context = y, .free_fn = release_var }, &next), 0);
        y = bx_var_acquire(next);
        bx_tape_clear(tape);
    }
    return NULL;
}

Test(autograd_pass, freeing_does_not_recurse_through_free_functions)
{
    on_small_stack(run_held_chain);
}

/* ---- Retaining ----------------------------------------------------------------------------------- */

Test(autograd_pass, passes_accumulate_in_the_table)
{
    struct world w = begin();
    struct bx_var *y = bx_var_mul(w.tape, w.a, w.b), *var = NULL;

    for (int i = 1; i <= 3; i++) {
        cr_assert_eq(bx_backward(&y, NULL, 1, true, w.grads), 0, "%s", bx_error_text());
        cr_expect_eq(grad_of(w.grads, w.a), 5 * i);
        cr_expect_eq(grad_of(w.grads, w.b), 3 * i);
    }
    cr_expect_eq(bx_grads_count(w.grads), 2);
    cr_expect_eq(bx_grads_at(w.grads, 0, &var), bx_grads_get(w.grads, var));
    cr_expect(var == w.a || var == w.b);
    cr_expect_null(bx_grads_at(w.grads, 2, &var));
    bx_grads_clear(w.grads);
    cr_expect_eq(bx_grads_count(w.grads), 0);
    cr_expect_null(bx_grads_get(w.grads, w.a));
    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0);
    cr_expect_eq(grad_of(w.grads, w.a), 5);
    end(&w);
}

Test(autograd_pass, a_second_pass_without_retain_is_refused_before_it_runs)
{
    struct world w = begin();
    struct bx_var *x = bx_var_exp(w.tape, w.a), *y = bx_var_add(w.tape, x, w.b), *z = bx_var_mul(w.tape, x, w.b);

    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0);
    FAILS(bx_backward(&y, NULL, 1, false, w.grads), BX_E_STATE, "a second backward pass came to a node 'add', which "
          "released what it needs after the first: pass retain to the first");
    FAILS(bx_backward(&z, NULL, 1, false, w.grads), BX_E_STATE, "a second backward pass came to a node 'exp', which "
          "released what it needs after the first: pass retain to the first");
    cr_expect_eq(grad_of(w.grads, w.b), 1, "the pass that was refused delivered nothing");
    end(&w);
}

static int freed;

static void note_free(void *context)
{
    (void)context;
    freed++;
}

static struct bx_var *freed_node(struct bx_tape *tape, struct bx_var *a)
{
    return node_of(tape, a, (struct bx_custom){ .name = "freed", .backward = no_gradient, .free_fn = note_free });
}

Test(autograd_pass, what_a_node_keeps_is_freed_once_after_its_pass)
{
    struct world w = begin();
    struct bx_var *y = freed_node(w.tape, w.a), *constant;

    cr_assert_eq(bx_backward(&y, NULL, 1, true, w.grads), 0);
    cr_expect_eq(freed, 0, "it was retained");
    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0);
    cr_expect_eq(freed, 1);
    cr_expect_eq(bx_grads_count(w.grads), 0, "a node that gives no gradient gives none to its inputs");
    freed_node(w.tape, w.b);
    cr_expect_eq(freed, 1);
    constant = bx_tape_input(w.tape, bx_var_value(w.a));
    cr_expect_not(bx_var_requires_grad(freed_node(w.tape, constant)));
    cr_expect_eq(freed, 2, "no node was recorded");
    bx_tape_clear(w.tape);
    cr_expect_eq(freed, 3);
    end(&w);
    cr_expect_eq(freed, 3);
}

/* ---- Custom nodes -------------------------------------------------------------------------------- */

/* Two inputs, three outputs: notes which gradients it got, and gives the first input a view of the second output's. */
struct seen {
    double output[3];
    bool needed[2];
};

static int note(void *context, const struct bx_node_grads *grads)
{
    struct seen *seen = context;

    cr_assert(grads->output_count == 3 && grads->input_count == 2);
    for (int i = 0; i < 3; i++)
        seen->output[i] = grads->outputs[i] != NULL ? element(grads->outputs[i], 0) : NAN;
    for (int i = 0; i < 2; i++)
        seen->needed[i] = grads->needed[i];
    grads->inputs[0] = bx_tensor_acquire(grads->outputs[1]);
    grads->inputs[1] = bx_tensor_acquire(grads->outputs[1]);
    return 0;
}

Test(autograd_pass, outputs_that_nothing_used_have_no_gradient)
{
    struct world w = begin();
    struct seen seen = { .output = { 0 } };
    struct bx_var *inputs[2] = { w.a, bx_tape_input(w.tape, bx_var_value(w.b)) }, *out[3], *y;
    struct bx_tensor *values[3] = { bx_var_value(w.a), bx_var_value(w.a), bx_var_value(w.a) };

    cr_assert_eq(bx_var_custom(w.tape, &(struct bx_custom){ .name = "three", .inputs = inputs, .input_count = 2,
                                                            .values = values, .output_count = 3, .backward = note,
                                                            .context = &seen }, out), 0, "%s", bx_error_text());
    y = bx_var_add(w.tape, bx_var_scale(w.tape, out[1], 2), bx_var_add(w.tape, out[2], out[1]));
    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect(isnan(seen.output[0]), "no gradient is made up");
    cr_expect_eq(seen.output[1], 3);
    cr_expect_eq(seen.output[2], 1);
    cr_expect(seen.needed[0] && !seen.needed[1]);
    cr_expect_eq(grad_of(w.grads, w.a), 3);
    cr_expect_eq(bx_grads_count(w.grads), 1);
    end(&w);
}

/* Behind a node that gives none, nodes that could run get nothing to run with: they must be passed over. */
Test(autograd_pass, a_node_without_any_gradient_is_passed_over)
{
    struct world w = begin();
    int calls = 0;
    struct bx_var *x = counted(w.tape, w.a, &calls), *y = freed_node(w.tape, bx_var_neg(w.tape, x));
    struct bx_var *roots[] = { y, bx_var_scale(w.tape, w.b, 2) };

    cr_assert_eq(bx_backward(roots, NULL, 2, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(calls, 0);
    cr_expect_eq(grad_of(w.grads, w.b), 2);
    cr_expect_eq(bx_grads_count(w.grads), 1);
    FAILS(bx_backward(&x, NULL, 1, false, w.grads), BX_E_STATE, "a second backward pass came to a node 'counted', "
          "which released what it needs after the first: pass retain to the first");
    end(&w);
}

static int fail_on_purpose(void *context, const struct bx_node_grads *grads)
{
    grads->inputs[0] = bx_tensor_acquire(grads->outputs[0]);
    return bx_fail(*(int *)context, "the node failed on purpose");
}

static int wrong_shape(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    grads->inputs[0] = noise(BX_F64, &TWO, 1, 1, 0);
    return 0;
}

static int wrong_dtype(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    grads->inputs[0] = noise(BX_F32, &ONE, 1, 1, 0);
    return 0;
}

static struct bx_var *failing(struct bx_tape *tape, struct bx_var *a, bx_backward_fn backward, int *code)
{
    return node_of(tape, a, (struct bx_custom){ .name = "failing", .backward = backward, .context = code });
}

Test(autograd_pass, an_error_of_a_backward_function_fails_the_pass_and_frees_its_claims)
{
    struct world w = begin();
    int code = BX_E_TIMEOUT;
    struct bx_var *x = bx_var_neg(w.tape, w.a), *y = failing(w.tape, x, fail_on_purpose, &code);

    FAILS(bx_backward(&y, NULL, 1, false, w.grads), BX_E_TIMEOUT, "the node failed on purpose");
    cr_expect_eq(bx_grads_count(w.grads), 0);
    cr_assert_eq(bx_backward(&x, NULL, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(grad_of(w.grads, w.a), -1, "nothing of the failed pass is left in the nodes");
    y = failing(w.tape, w.a, wrong_shape, NULL);
    FAILS(bx_backward(&y, NULL, 1, false, w.grads), -EINVAL, "the backward function of 'failing' gave input 0 a "
          "gradient of f64 (2); the input is f64 ()");
    y = failing(w.tape, w.a, wrong_dtype, NULL);
    FAILS(bx_backward(&y, NULL, 1, false, w.grads), -EINVAL, "the backward function of 'failing' gave input 0 a "
          "gradient of f32 (); the input is f64 ()");
    end(&w);
}

/* x has the root's gradient and waits for that of the node which fails. */
Test(autograd_pass, a_failed_pass_leaves_no_gradient_in_a_node_that_waited)
{
    struct world w = begin();
    int code = -EIO;
    struct bx_var *x = bx_var_neg(w.tape, w.a), *roots[] = { x, failing(w.tape, x, fail_on_purpose, &code) };

    FAILS(bx_backward(roots, NULL, 2, false, w.grads), -EIO, "the node failed on purpose");
    cr_expect_eq(bx_grads_count(w.grads), 0);
    cr_assert_eq(bx_backward(&x, NULL, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(grad_of(w.grads, w.a), -1);
    end(&w);
}

/* A pass that meets the nodes of a pass that is running, because a backward function begins it. */
static int begin_another(void *context, const struct bx_node_grads *grads)
{
    struct bx_var **roots = context;
    struct bx_grads *own = new_grads();

    FAILS(bx_backward(&roots[0], NULL, 1, false, own), BX_E_STATE,
          "a node 'neg' takes part in another backward pass now");
    cr_expect_eq(bx_backward(&roots[1], NULL, 1, false, own), 0, "%s", bx_error_text());
    cr_expect_eq(grad_of(own, roots[2]), 7);
    bx_grads_destroy(own);
    grads->inputs[0] = bx_tensor_acquire(grads->outputs[0]);
    return 0;
}

Test(autograd_pass, a_node_takes_part_in_one_pass_at_a_time)
{
    struct world w = begin();
    struct bx_var *x = bx_var_neg(w.tape, w.a), *roots[3] = { x, bx_var_scale(w.tape, w.a, 7), w.a };
    struct bx_var *y = node_of(w.tape, x, (struct bx_custom){ .name = "begins", .backward = begin_another,
                                                              .context = roots });

    cr_assert_eq(bx_backward(&y, NULL, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(grad_of(w.grads, w.a), -1);
    end(&w);
}

/* ---- Gradient tables ----------------------------------------------------------------------------- */

Test(autograd_pass, a_table_has_memory_of_its_own_for_each_parameter)
{
    struct world w = begin();
    struct bx_var *y = bx_var_add(w.tape, w.a, w.b);
    struct bx_tensor *given = values_of(BX_F64, &ONE, (double[]){ 4 });

    cr_assert_eq(bx_backward(&y, &given, 1, true, w.grads), 0);
    cr_expect_neq(bx_tensor_data(bx_grads_get(w.grads, w.a)), bx_tensor_data(bx_grads_get(w.grads, w.b)));
    set_element(bx_grads_get(w.grads, w.a), 0, 100);
    cr_expect_eq(grad_of(w.grads, w.b), 4);
    cr_expect_eq(element(given, 0), 4);
    cr_assert_eq(bx_backward(&y, &given, 1, true, w.grads), 0);
    cr_expect_eq(grad_of(w.grads, w.a), 104);
    cr_expect_eq(grad_of(w.grads, w.b), 8);
    cr_expect_eq(element(given, 0), 4, "the program's gradient is not written");
    bx_tensor_release(given);
    end(&w);
}

/* The root's gradient is one tensor for both branches; it must stay whole where they meet again. */
Test(autograd_pass, gradients_that_meet_do_not_write_to_each_other)
{
    struct world w = begin();
    struct bx_var *x = bx_var_neg(w.tape, w.a), *twice = bx_var_add(w.tape, x, x);
    struct bx_var *y = bx_var_add(w.tape, twice, bx_var_sub(w.tape, x, w.b));
    struct bx_tensor *given = values_of(BX_F64, &ONE, (double[]){ 1 });

    cr_assert_eq(bx_backward(&y, &given, 1, false, w.grads), 0);
    cr_expect_eq(grad_of(w.grads, w.a), -3);
    cr_expect_eq(grad_of(w.grads, w.b), -1);
    cr_expect_eq(element(given, 0), 1);
    bx_tensor_release(given);
    end(&w);
}

Test(autograd_pass, bx_grads_add_checks_dtype_and_shape)
{
    struct world w = begin();
    struct bx_tensor *vector = noise(BX_F64, &TWO, 1, 1, 0), *f32 = noise(BX_F32, &ONE, 1, 1, 0);

    FAILS(bx_grads_add(w.grads, w.a, vector), -EINVAL, "a variable of f64 () cannot have a gradient of f64 (2)");
    FAILS(bx_grads_add(w.grads, w.a, f32), -EINVAL, "a variable of f64 () cannot have a gradient of f32 ()");
    cr_expect_eq(bx_grads_count(w.grads), 0);
    bx_tensor_release(vector);
    bx_tensor_release(f32);
    end(&w);
}

/* ---- Roots --------------------------------------------------------------------------------------- */

Test(autograd_pass, says_what_is_wrong_with_a_root)
{
    struct world w = begin();
    struct bx_tensor *two = values_of(BX_F64, &TWO, (double[]){ 1, 2 }), *f32 = noise(BX_F32, &TWO, 1, 1, 0);
    struct bx_var *vector = parameter(bx_tensor_acquire(two)), *constant = bx_tape_input(w.tape, two);
    struct bx_var *y = bx_var_neg(w.tape, vector), *roots[] = { y, NULL };
    struct bx_tensor *scalar_grad = values_of(BX_F64, &ONE, (double[]){ 1 });

    FAILS(bx_backward(NULL, NULL, 1, false, w.grads), -EINVAL, "a backward pass needs a root");
    FAILS(bx_backward(&y, NULL, 0, false, w.grads), -EINVAL, "a backward pass needs a root");
    FAILS(bx_backward(&y, NULL, 1, false, w.grads), -EINVAL, "root 0 of the backward pass has the shape (2): only one "
          "element can do without a gradient");
    FAILS(bx_backward(&constant, &two, 1, false, w.grads), -EINVAL, "root 0 of the backward pass requires no gradient: "
          "no parameter leads to it");
    FAILS(bx_backward(&y, &scalar_grad, 1, false, w.grads), -EINVAL, "root 0 of the backward pass is f64 (2), and its "
          "gradient is f64 ()");
    FAILS(bx_backward(&y, &f32, 1, false, w.grads), -EINVAL, "root 0 of the backward pass is f64 (2), and its gradient "
          "is f32 (2)");
    FAILS(bx_backward(&y, &two, 1, false, NULL), -EINVAL, "a backward pass needs a gradient table");
    bx_fail(-EINVAL, "nothing fits");
    FAILS(bx_backward(roots, (struct bx_tensor *const[]){ two, NULL }, 2, false, w.grads), -EINVAL,
          "root 1 of the backward pass is NULL; the last failure of this thread: nothing fits");
    cr_expect_eq(bx_grads_count(w.grads), 0);
    cr_assert_eq(bx_backward(&y, &two, 1, false, w.grads), 0, "%s", bx_error_text());
    cr_expect_eq(element(bx_grads_get(w.grads, vector), 1), -2);
    bx_tensor_release(two);
    bx_tensor_release(f32);
    bx_tensor_release(scalar_grad);
    bx_var_release(vector);
    end(&w);
}

/* A gradient with strides: a transposed view. */
Test(autograd_pass, a_root_gradient_may_have_strides)
{
    struct world w = begin();
    struct bx_tensor *matrix = values_of(BX_F64, &(struct shape){ 2, { 2, 3 } }, (double[]){ 1, 2, 3, 4, 5, 6 });
    struct bx_tensor *view = NULL;
    struct bx_var *x = parameter(noise(BX_F64, &(struct shape){ 2, { 3, 2 } }, 1, 1, 0)), *y = bx_var_neg(w.tape, x);

    cr_assert_eq(bx_tensor_transpose(matrix, 0, 1, &view), 0);
    cr_assert_eq(bx_backward(&y, &view, 1, false, w.grads), 0);
    cr_expect_eq(element(bx_grads_get(w.grads, x), 1), -4);
    cr_expect_eq(element(bx_grads_get(w.grads, x), 2), -2);
    bx_tensor_release(matrix);
    bx_tensor_release(view);
    bx_var_release(x);
    end(&w);
}
