/* SPDX-License-Identifier: MIT */
/*
 * Backward passes across workers in the file of BX_TRACE (lib/autograd/dist.h has what they show). Worker 0 makes the
 * contexts; worker 1 multiplies by its parameter.
 */
#include "tests/harness/harness.h"
#include "tests/observe/trace_read.h"

#include "boxcar_dist.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[64];

static void trace_into_file(void)
{
    snprintf(path, sizeof path, "/tmp/boxcar-trace-dist-%ld.json", (long)getpid());
    unlink(path);
    setenv("BX_TRACE", path, 1);
    unsetenv("BX_TRACE_EVENTS");
}

static void remove_file(void)
{
    unlink(path);
}

TestSuite(dist_trace, .init = trace_into_file, .fini = remove_file, .timeout = 60);

static struct bx_dist *dist;
static struct bx_var *w;

/* ---- What workers do --------------------------------------------------------------------------------------- */

static int fails(void *context, const struct bx_node_grads *grads)
{
    (void)context, (void)grads;
    return bx_fail(-EDOM, "no derivative today");
}

static struct bx_var *failing(struct bx_tape *tape, struct bx_var *x)
{
    struct bx_tensor *value = bx_var_value(x);
    struct bx_var *y = NULL;

    HARNESS_EQ(bx_var_custom(tape, &(struct bx_custom){ .name = "fails", .inputs = &x, .input_count = 1,
                                                        .values = &value, .output_count = 1, .backward = fails }, &y),
               0);
    return y;
}

/* Answers x * w; with `fails`, its backward function fails. */
static int product(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    struct bx_context *context = NULL;
    struct bx_tape *tape = NULL;
    struct bx_var *y;
    int rc = bx_read_context(dist, args, &context);

    (void)request, (void)unused;
    HARNESS_EQ(rc, 0);
    HARNESS_EQ(bx_tape_create(NULL, &tape), 0);
    y = bx_var_mul(tape, bx_read_var(context, tape, args), w);
    rc = bx_msg_put_var(reply, context, bx_read_i32(args) != 0 ? failing(tape, y) : y);
    bx_tape_destroy(tape);
    bx_context_release(context);
    return rc;
}

static int setup(struct bx_job *job)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_F32, 0, NULL, &tensor), 0);
    *(float *)bx_tensor_data_mut(tensor) = 3;
    HARNESS_EQ(bx_var_create(tensor, true, &w), 0);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_register(job, "product", BX_BLOCKING, product, NULL), 0);
    return bx_dist_create(job, &dist);
}

/* A forward pass: worker 1's product of w. */
static struct bx_var *forward(struct bx_job *job, struct bx_context *context, struct bx_tape *tape, bool fail)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;
    struct bx_var *y;

    HARNESS_EQ(bx_msg_put_context(args, context), 0);
    HARNESS_EQ(bx_msg_put_var(args, context, w), 0);
    HARNESS_EQ(bx_msg_put_i32(args, fail), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "product", args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    y = bx_read_var(context, tape, &reader);
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
    return y;
}

/* ---- What the file has ------------------------------------------------------------------------------------- */

static bool has_id(const struct json *event, const char *id)
{
    return strcmp(json_text(arg(event, "id")), id) == 0;
}

/* The event of that pass; there is one. */
static const struct json *only(const struct json *root, struct wanted wanted, const char *id)
{
    const struct json *event = NULL, *found = NULL;

    while ((event = next_of(root, event, wanted)) != NULL) {
        if (!has_id(event, id))
            continue;
        cr_assert_null(found, "pass %s has two '%s' at worker %d", id, wanted.name, wanted.pid);
        found = event;
    }
    cr_assert_not_null(found, "pass %s has no '%s' at worker %d", id, wanted.name, wanted.pid);
    return found;
}

/* How many arrows of the pass have an end of that phase at a slice of that name in that worker. */
static int ends_at(const struct json *root, char phase, const char *slice, int rank, const char *id)
{
    const struct json *end = NULL;
    int count = 0;

    while ((end = next_of(root, end, (struct wanted){ phase, "autograd", "autograd", rank })) != NULL) {
        const struct json *around = slice_around(root, end);

        if (strcmp(json_text(json_get(end, "id")), id) != 0 ||
            strcmp(json_text(json_get(around, "name")), slice) != 0)
            continue;
        cr_expect(has_id(around, id));
        cr_expect_eq(of(around, "ts"), of(end, "ts"));
        count++;
    }
    return count;
}

static bool within(const struct json *inner, const struct json *outer)
{
    return of(outer, "ts") <= of(inner, "ts") && end_of(inner) <= end_of(outer) + HALF_NS;
}

/* Worker 1 answers the only discover, and computes when the gradient of its product has come. Worker 0 computes the
 * roots' part, and the gradient of its w. */
static void pass_is_shown(const struct json *root, const char *id)
{
    const struct json *pass = only(root, (struct wanted){ 'X', "autograd", "backward", 0 }, id);
    const struct json *part = only(root, (struct wanted){ 'b', "autograd", "backward", 1 }, id);
    const struct json *walk = only(root, (struct wanted){ 'X', "autograd", "discover", 1 }, id);
    const struct json *run = only(root, (struct wanted){ 'X', "autograd", "gradients", 1 }, id);
    const struct json *done = only(root, (struct wanted){ 'X', "autograd", "done", 0 }, id);

    cr_expect(within(walk, pass) && within(run, pass) && within(done, pass));
    cr_expect(same_thread(done, pass));
    cr_expect(of(walk, "ts") <= of(part, "ts") && of(part, "ts") <= of(run, "ts") && of(run, "ts") <= of(done, "ts"));
    cr_expect_null(arg(pass, "code"));
    cr_expect_null(arg(part, "code"));
    cr_expect_eq(ends_at(root, 's', "backward", 0, id), 1);
    cr_expect_eq(ends_at(root, 't', "discover", 1, id), 1);
    cr_expect_eq(ends_at(root, 't', "discover", 0, id), 1, "of the variable that worker 0 has sent");
    cr_expect_eq(ends_at(root, 't', "gradients", 1, id), 1);
    cr_expect_eq(ends_at(root, 't', "gradients", 0, id), 2);
    cr_expect_eq(ends_at(root, 'f', "done", 0, id), 1);
}

/* ---- Tests ------------------------------------------------------------------------------------------------- */

static void pass_twice(struct bx_job *job)
{
    struct bx_context *context = NULL;
    struct bx_tape *tape = NULL;
    struct bx_var *loss;

    HARNESS_EQ(bx_context_create(dist, &context), 0);
    HARNESS_EQ((long long)bx_context_id(context), 1);
    HARNESS_EQ(bx_tape_create(NULL, &tape), 0);
    loss = forward(job, context, tape, false);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, true, 0), 0);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), BX_E_STATE);
    bx_tape_destroy(tape);
    bx_context_end(context);
}

Test(dist_trace, shows_a_pass_at_both_workers_and_arrows_through_it)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { pass_twice } });

    struct json *root = trace_read(path, 2);
    const struct json *refused;

    spans_end(root);
    pass_is_shown(root, "0x0000000000000001");
    pass_is_shown(root, "0x0100000000000001");
    refused = only(root, (struct wanted){ 'X', "autograd", "backward", 0 }, "0x0200000000000001");
    cr_expect_eq(json_number(arg(refused, "code")), BX_E_STATE);
    cr_expect_eq(COUNT(root, 'b', "autograd", NULL, ANY), 2);
    cr_expect_eq(COUNT(root, 's', "autograd", NULL, ANY), 3);
    cr_expect_eq(COUNT(root, 't', NULL, NULL, ANY), 2 * 5);
    json_free(root);
}

static void pass_in_vain(struct bx_job *job)
{
    struct bx_context *context = NULL;
    struct bx_tape *tape = NULL;
    struct bx_var *loss;

    HARNESS_EQ(bx_context_create(dist, &context), 0);
    HARNESS_EQ(bx_tape_create(NULL, &tape), 0);
    loss = forward(job, context, tape, true);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), -EDOM);
    bx_tape_destroy(tape);
    bx_context_end(context);
}

Test(dist_trace, shows_where_a_pass_failed)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { pass_in_vain } });

    struct json *root = trace_read(path, 2);
    const char *const id = "0x0000000000000001";
    const struct json *failed[] = { only(root, (struct wanted){ 'X', "autograd", "gradients", 1 }, id),
                                    only(root, (struct wanted){ 'b', "autograd", "backward", 1 }, id),
                                    only(root, (struct wanted){ 'X', "autograd", "backward", 0 }, id) };

    spans_end(root);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(json_number(arg(failed[i], "code")), -EDOM);
        cr_expect_str_eq(json_text(arg(failed[i], "error")), "-EDOM");
    }
    cr_expect_eq(ends_at(root, 's', "backward", 0, id), 1);
    cr_expect_eq(ends_at(root, 'f', "done", 0, id), 1);
    json_free(root);
}
