/* SPDX-License-Identifier: MIT */
/*
 * Threads of one worker that share variables (lib/autograd): a parameter that gets other values, one that an optimizer
 * steps, and a product whose node takes part in the passes of all of them. Each has a tape and a table of gradients.
 *
 * Truth: a value is one that was given; no step is lost; the gradient of a factor is the other one; a pass fails only
 * because the node takes part in another one. Whoever releases a variable or a node last frees it behind what all
 * others did with it.
 */
#include "rooms.h"

#include "boxcar_autograd.h"

#define THREADS 3
#define LEFT 3.0
#define RIGHT 5.0
#define VALUES 6                            /* of the parameter: 1 .. 6 */

static struct bx_var *parameter, *left, *product;       /* each thread has a reference to each of them */
static struct bx_var *stepped;              /* each step of the optimizer takes 1 from it */
static struct bx_optim *optim;
static int steps_of[THREADS];

static struct bx_tensor *number(double value)
{
    struct bx_tensor *tensor = NULL;

    SIM_MUST(bx_tensor_create(NULL, BX_F64, 1, &(int64_t){ 1 }, &tensor));
    *(double *)bx_tensor_data_mut(tensor) = value;
    return tensor;
}

static struct bx_var *leaf(double value)
{
    struct bx_tensor *tensor = number(value);
    struct bx_var *var = NULL;

    SIM_MUST(bx_var_create(tensor, true, &var));
    bx_tensor_release(tensor);
    return var;
}

static double item(const struct bx_tensor *tensor)
{
    return tensor == NULL ? 0 : *(const double *)bx_tensor_data(tensor);
}

static void change_parameter(void)
{
    struct bx_tensor *value = number(1 + sim_choose(VALUES));

    SIM_MUST(bx_var_set_value(parameter, value));
    bx_tensor_release(value);
}

static void read_parameter(void)
{
    struct bx_tensor *value = bx_var_acquire_value(parameter), *view = NULL;
    double is;

    if (sim_choose(2) == 0) {
        SIM_MUST(bx_tensor_slice(value, 0, 0, 1, 1, &view));
        bx_tensor_release(value);
        value = view;
    }
    is = item(value);
    if (is < 1 || is > VALUES || is != (int)is)
        sim_fail("the parameter is %g", is);
    bx_tensor_release(value);
}

/* A pass over a node of this thread's own. */
static int use_parameter(struct bx_tape *tape, struct bx_grads *grads)
{
    struct bx_tensor *x = number(7);
    struct bx_var *mine = bx_var_mul(tape, bx_tape_input(tape, x), parameter);
    int rc = mine == NULL ? bx_tape_error(tape) : bx_backward(&mine, NULL, 1, false, grads);

    if (rc == 0 && item(bx_grads_get(grads, parameter)) != 7)
        sim_fail("the gradient of the parameter is %g", item(bx_grads_get(grads, parameter)));
    bx_tensor_release(x);
    return rc;
}

static int pass_over_product(struct bx_grads *grads)
{
    int rc = bx_backward(&product, NULL, 1, true, grads);

    if (rc == 0 && item(bx_grads_get(grads, left)) != RIGHT)
        sim_fail("the gradient of a factor is %g", item(bx_grads_get(grads, left)));
    return rc == BX_E_STATE ? 0 : rc;
}

static int step(struct bx_tape *tape, struct bx_grads *grads)
{
    struct bx_var *mine = bx_var_scale(tape, stepped, 1);
    int rc = mine == NULL ? bx_tape_error(tape) : bx_backward(&mine, NULL, 1, false, grads);

    return rc < 0 ? rc : bx_optim_step(optim, NULL, grads);
}

static int operate(uint32_t operation, struct bx_tape *tape, struct bx_grads *grads)
{
    bx_grads_clear(grads);
    bx_tape_clear(tape);
    switch (operation) {
    case 0: change_parameter(); return 0;
    case 1: read_parameter(); return 0;
    case 2: return use_parameter(tape, grads);
    case 3: return step(tape, grads);
    default: return pass_over_product(grads);
    }
}

static void *use(void *steps_taken)
{
    uint32_t steps = 1 + sim_choose(5);
    struct bx_tape *tape = NULL;
    struct bx_grads *grads = NULL;

    SIM_MUST(bx_tape_create(NULL, &tape));
    SIM_MUST(bx_grads_create(NULL, &grads));
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t operation = sim_choose(6);

        SIM_MUST(operate(operation, tape, grads));
        *(int *)steps_taken += operation == 3;
    }
    bx_grads_destroy(grads);
    bx_tape_destroy(tape);
    bx_var_release(product);
    bx_var_release(left);
    bx_var_release(parameter);
    return NULL;
}

void sim_room_vars(int worker)
{
    static const char *const names[THREADS] = { "user0", "user1", "user2" };
    int fibers[THREADS], count = 2 + (int)sim_choose(THREADS - 1), taken = 0;
    struct bx_var *right = leaf(RIGHT);
    struct bx_tape *tape = NULL;

    (void)worker;
    parameter = leaf(1);
    left = leaf(LEFT);
    stepped = leaf(0);
    SIM_MUST(bx_optim_sgd_create(&(struct bx_optim_sgd){ .struct_bytes = sizeof(struct bx_optim_sgd), .lr = 1 },
                                 &stepped, 1, &optim));
    SIM_MUST(bx_tape_create(NULL, &tape));
    SIM_MUST((bx_tape_clear(tape), product = bx_var_mul(tape, left, right)) != NULL ? 0 : bx_tape_error(tape));
    for (int i = 0; i < count; i++) {
        bx_var_acquire(parameter);
        bx_var_acquire(left);
        bx_var_acquire(product);
    }
    for (int i = 0; i < count; i++)
        fibers[i] = sim_spawn(names[i], use, &steps_of[i]);
    bx_tape_destroy(tape);
    bx_var_release(right);
    bx_var_release(left);
    bx_var_release(parameter);
    for (int i = 0; i < count; i++) {
        sim_join(fibers[i]);
        taken += steps_of[i];
    }
    if (item(bx_var_value(stepped)) != -taken)
        sim_fail("%d steps lead to %g", taken, item(bx_var_value(stepped)));
    bx_optim_destroy(optim);
    bx_var_release(stepped);
}
