/* SPDX-License-Identifier: MIT */
/*
 * boxcar_trace.h: the slices, spans and arrows that a program puts into the file of BX_TRACE. Worker 0 calls worker 1.
 */
#include "tests/harness/harness.h"

#include "boxcar_trace.h"
#include "trace_read.h"

TestSuite(trace_own, .init = trace_into_file, .fini = trace_remove_file, .timeout = 60);

static const struct bx_slice plain = { .name = "plain", .category = "test" };
static const struct bx_slice first = { .name = "first", .category = "test", .arrow = BX_ARROW_BEGIN };
static const struct bx_slice middle = { .name = "middle", .category = "test", .arrow = BX_ARROW_STEP };
static const struct bx_slice last = { .name = "last", .category = "test", .arrow = BX_ARROW_END };
static const struct bx_slice span = { .name = "span", .category = "test", .is_span = true };

static uint64_t begin(const struct bx_job *job)
{
    uint64_t began_ns = bx_trace_begin(job);

    HARNESS_CHECK(began_ns != 0);
    return began_ns;
}

/* Records a step inside of the handler. */
HARNESS_HANDLER(step)
{
    struct bx_job *job = bx_request_job(request);
    uint64_t began_ns = begin(job);

    bx_trace_end(job, &middle, began_ns, bx_read_u64(args), 0);
    return 0;
}

static int setup(struct bx_job *job)
{
    HARNESS_EQ(bx_trace_begin(job), 0);         /* no trace runs before the start */
    bx_trace_end(job, &plain, 1, 99, 0);
    return bx_register(job, "step", BX_INLINE, step, NULL);
}

static struct json *run(harness_fn body)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { body } });
    return trace_read(trace_path, 2);
}

/* ---- Slices ------------------------------------------------------------------------------------------ */

static void record_slices(struct bx_job *job)
{
    static const struct bx_slice odd = { .name = "a \"name\"\\\n of more than thirty-one bytes",
                                         .category = "\"te\nst\"" };
    uint64_t outer_ns = begin(job), inner_ns = begin(job);

    bx_trace_end(job, &odd, inner_ns, UINT64_MAX, -EDOM);
    bx_trace_end(job, &plain, outer_ns, UINT64_C(0x123456789abcdef), 5);
}

Test(trace_own, shows_a_slice_with_its_id_and_how_it_failed)
{
    struct json *root = run(record_slices);
    const struct json *outer = next_of(root, NULL, (struct wanted){ 'X', "test", "plain", 0 });
    const struct json *inner = next_of(root, NULL, (struct wanted){ 'X', "\"te\nst\"", NULL, 0 });

    cr_assert(outer != NULL && inner != NULL);
    cr_expect_eq(COUNT(root, 'X', "test", NULL, ANY), 1, "none before the start");
    cr_expect_str_eq(json_text(arg(outer, "id")), "0x0123456789abcdef");
    cr_expect_null(arg(outer, "code"));
    cr_expect_str_eq(json_text(json_get(inner, "name")), "a \"name\"\\\n of more than thirty-");
    cr_expect_str_eq(json_text(arg(inner, "id")), "0xffffffffffffffff");
    cr_expect_eq(json_number(arg(inner, "code")), -EDOM);
    cr_expect_str_eq(json_text(arg(inner, "error")), "-EDOM");
    cr_expect(same_thread(outer, inner));
    cr_expect(of(outer, "ts") <= of(inner, "ts") && end_of(inner) <= end_of(outer) + HALF_NS);
    cr_expect_eq(COUNT(root, 't', NULL, NULL, ANY), 0);
    json_free(root);
}

static void record_nothing(struct bx_job *job)
{
    static const struct bx_slice nameless = { .category = "test" }, bare = { .name = "bare" };

    bx_trace_end(job, &plain, 0, 1, 0);
    bx_trace_end(job, NULL, 1, 1, 0);
    bx_trace_end(job, &nameless, 1, 1, 0);
    bx_trace_end(job, &bare, 1, 1, 0);
    bx_trace_end(NULL, &plain, 1, 1, 0);
    HARNESS_EQ(bx_trace_begin(NULL), 0);
}

Test(trace_own, leaves_out_what_is_no_slice)
{
    struct json *root = run(record_nothing);

    cr_expect_eq(COUNT(root, 'X', "test", NULL, ANY), 0);
    cr_expect_eq(COUNT(root, 'X', NULL, "bare", ANY), 0);
    json_free(root);
}

static void record_untraced(struct bx_job *job)
{
    HARNESS_EQ(bx_trace_begin(job), 0);
    bx_trace_end(job, &plain, 1, 1, 0);
}

Test(trace_own, does_nothing_while_no_trace_runs)
{
    unsetenv("BX_TRACE");
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { record_untraced } });
    cr_expect_lt(access(trace_path, F_OK), 0);
}

static void record_in_a_child(struct bx_job *job)
{
    uint64_t began_ns = begin(job);
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        bx_trace_end(job, &plain, began_ns, 1, 0);
        _exit(bx_trace_begin(job) == 0 ? 0 : 1);
    }
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
    bx_trace_end(job, &plain, began_ns, 2, 0);
}

Test(trace_own, does_nothing_in_a_forked_child)
{
    struct json *root = run(record_in_a_child);

    cr_expect_eq(COUNT(root, 'X', "test", NULL, ANY), 1, "the worker's own");
    json_free(root);
}

/* ---- Arrows ------------------------------------------------------------------------------------------ */

static void record_two_chains(struct bx_job *job)
{
    for (uint64_t id = 7; id < 9; id++) {
        uint64_t began_ns = begin(job), end_ns;
        struct bx_msg *args = bx_msg_create(8);

        bx_msg_put_u64(args, id);
        for (int i = 0; i < 3; i++)
            HARNESS_EQ(bx_rpc_sync(job, "worker1", "step", args, NULL, NULL), 0);
        bx_msg_destroy(args);
        end_ns = begin(job);
        bx_trace_end(job, &last, end_ns, id, 0);
        bx_trace_end(job, &first, began_ns, id, 0);
    }
}

/* Each end of an arrow of the chain lies at the first instant of a slice of that name with the chain's id. */
static int ends_of(const struct json *root, char phase, const char *id, const char *slice, int rank)
{
    const struct json *end = NULL;
    int count = 0;

    while ((end = next_of(root, end, (struct wanted){ phase, "test", "test", rank })) != NULL) {
        const struct json *around = slice_around(root, end);

        if (strcmp(json_text(json_get(end, "id")), id) != 0)
            continue;
        cr_assert_not_null(around);
        cr_expect_str_eq(json_text(json_get(around, "name")), slice);
        cr_expect_str_eq(json_text(arg(around, "id")), id);
        cr_expect_eq(of(around, "ts"), of(end, "ts"));
        count++;
    }
    return count;
}

Test(trace_own, joins_slices_of_one_id_across_workers)
{
    struct json *root = run(record_two_chains);
    const char *const ids[] = { "0x0000000000000007", "0x0000000000000008" };

    for (int i = 0; i < 2; i++) {
        cr_expect_eq(ends_of(root, 's', ids[i], "first", 0), 1);
        cr_expect_eq(ends_of(root, 't', ids[i], "middle", 1), 3);
        cr_expect_eq(ends_of(root, 'f', ids[i], "last", 0), 1);
    }
    cr_expect_eq(COUNT(root, 's', "test", NULL, ANY), 2);
    cr_expect_eq(COUNT(root, 't', "test", NULL, ANY), 6);
    cr_expect_eq(COUNT(root, 'f', "test", NULL, ANY), 2);
    cr_expect_str_eq(json_text(json_get(next_of(root, NULL, (struct wanted){ 'f', "test", NULL, 0 }), "bp")), "e");
    json_free(root);
}

/* ---- Spans ------------------------------------------------------------------------------------------- */

static uint64_t began_ns[2];

static void end_span(struct bx_job *job, int index)
{
    bx_trace_end(job, &span, began_ns[index], (uint64_t)index, index == 0 ? 0 : BX_E_TIMEOUT);
}

/* They overlap, and end on threads on which they have not begun. */
static void record_spans(struct bx_job *job)
{
    began_ns[0] = begin(job);
    began_ns[1] = begin(job);
    harness_threads(job, 2, end_span);
}

Test(trace_own, shows_spans_that_overlap_beside_the_threads)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { record_spans, record_spans } });

    struct json *root = trace_read(trace_path, 2);
    const struct json *begun = NULL;

    spans_end(root);
    for (int rank = 0; rank < 2; rank++)
        cr_expect_eq(COUNT(root, 'b', "test", "span", rank), 2, "two with the same ids in each worker");
    while ((begun = next_of(root, begun, (struct wanted){ 'b', "test", "span", ANY })) != NULL) {
        const char *id = json_text(json_get(json_get(begun, "id2"), "local"));

        cr_expect_str_eq(json_text(arg(begun, "id")), id);
        if (strcmp(id, "0x0000000000000001") == 0)
            cr_expect_eq(json_number(arg(begun, "code")), BX_E_TIMEOUT);
        else
            cr_expect_null(arg(begun, "code"));
    }
    cr_expect_eq(COUNT(root, 'X', "test", NULL, ANY), 0);
    json_free(root);
}
