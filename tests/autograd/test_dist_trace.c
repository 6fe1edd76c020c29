/* SPDX-License-Identifier: MIT */
/*
 * Backward passes across workers in the file of BX_TRACE (lib/autograd/dist.h has what they show). Worker 0 makes the
 * contexts; worker 1 multiplies by its parameter.
 */
#include "tests/autograd/dist_fixture.h"
#include "tests/observe/trace_read.h"

TestSuite(dist_trace, .init = trace_into_file, .fini = trace_remove_file, .timeout = 60);

static int setup(struct bx_job *job)
{
    static const bx_backward_fn failing = dist_fails;

    HARNESS_REGISTER(job, HARNESS_BLOCKING("product", dist_product),
                     { "fails", BX_BLOCKING, dist_custom, NULL, (void *)(uintptr_t)&failing });
    return dist_set_up(job, 1, 3, 0);
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
    struct pass pass = pass_begin();
    struct bx_var *loss = pass_call(job, &pass, "worker1", "product", w, NULL);

    HARNESS_EQ((long long)bx_context_id(pass.context), 1);
    HARNESS_EQ(pass_back(&pass, loss, true), 0);
    HARNESS_EQ(pass_back(&pass, loss, false), 0);
    HARNESS_EQ(pass_back(&pass, loss, false), BX_E_STATE);
    pass_end(&pass);
}

Test(dist_trace, shows_a_pass_at_both_workers_and_arrows_through_it)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { pass_twice } });

    struct json *root = trace_read(trace_path, 2);
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
    struct pass pass = pass_begin();

    HARNESS_EQ(pass_back(&pass, pass_call(job, &pass, "worker1", "fails", w, NULL), false), -EDOM);
    pass_end(&pass);
}

Test(dist_trace, shows_where_a_pass_failed)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { pass_in_vain } });

    struct json *root = trace_read(trace_path, 2);
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
