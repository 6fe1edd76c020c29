/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/checked.c: with BX_CHECKED values carry their kind. Messages alone, then calls of every sort between workers
 * with and without the variable.
 */
#include "checked_fixture.h"

/* ---- Messages ------------------------------------------------------------------------------------------ */

TestSuite(checked, .init = check, .timeout = 60);

Test(checked, messages_read_back_every_kind)
{
    OWN(msg) *msg = bx_msg_create(0);
    const float floats[3] = { 1.5f, 2.5f, 3.5f };
    float read[3];

    for (int round = 0; round < 2; round++) {
        bx_msg_put_i64(msg, -1);
        bx_msg_put_u64(msg, 2);
        bx_msg_put_i32(msg, -3);
        bx_msg_put_f64(msg, 4.5);
        bx_msg_put_f32(msg, 5.5f);
        bx_msg_put_f32s(msg, floats, 0);
        bx_msg_put_f32s(msg, floats, 3);
        bx_msg_put_str(msg, "wagon");
        cr_expect_eq(bx_msg_put_bytes(msg, "abc", 3), 0);
        cr_expect_eq(bx_msg_bytes(msg), 8 + 8 + 4 + 8 + 4 + 12 + 4 + 6 + 3);

        struct bx_reader reader = bx_msg_reader(msg);

        cr_expect_eq(bx_read_i64(&reader), -1);
        cr_expect_eq(bx_read_u64(&reader), 2);
        cr_expect_eq(bx_read_i32(&reader), -3);
        cr_expect(bx_read_f64(&reader) == 4.5);
        cr_expect(bx_read_f32(&reader) == 5.5f);
        cr_expect_eq(bx_read_f32s(&reader, read, 3), 0);
        cr_expect_str_eq(bx_read_str(&reader), "wagon");
        cr_expect_arr_eq(bx_read_bytes(&reader, 3), "abc", 3);
        cr_expect_eq(reader.error, 0, "%s", bx_error_text());
        cr_expect_eq(bx_reader_left(&reader), 0);
        cr_expect_eq(reader.pos, bx_msg_bytes(msg));
        cr_expect_eq(bx_read_f32s(&reader, NULL, 0), 0);
        bx_read_i32(&reader);
        cr_expect_eq(reader.error, BX_E_SHORT_MESSAGE);
        bx_msg_clear(msg);
    }
}

/* Reads by the same letters. */
static void read_letters(struct bx_reader *reader, const char *letters)
{
    float floats[3];

    for (; *letters != '\0'; letters++)
        switch (*letters) {
        case 'i': bx_read_i32(reader); break;
        case 'l': bx_read_i64(reader); break;
        case 'u': bx_read_u64(reader); break;
        case 'd': bx_read_f64(reader); break;
        case 'f': bx_read_f32(reader); break;
        case 's': bx_read_str(reader); break;
        case '3': bx_read_f32s(reader, floats, 3); break;
        default: bx_read_bytes(reader, 4); break;
        }
}

static const struct misuse {
    const char *put, *read;
    const char *error;          /* NULL: there is none */
} misuses[] = {
    { "d", "l", "value 1 of the message, at byte 0, was written by bx_msg_put_f64 and is read by bx_read_i64" },
    { "l", "d", "value 1 of the message, at byte 0, was written by bx_msg_put_i64 and is read by bx_read_f64" },
    { "lid", "lil", "value 3 of the message, at byte 12, was written by bx_msg_put_f64 and is read by bx_read_i64" },
    { "ii", "l", "value 1 of the message, at byte 0, was written by bx_msg_put_i32 and is read by bx_read_i64" },
    { "il", "l", "value 1 of the message, at byte 0, was written by bx_msg_put_i32 and is read by bx_read_i64" },
    { "l", "i", "value 1 of the message, at byte 0, was written by bx_msg_put_i64 and is read by bx_read_i32" },
    { "u", "l", "value 1 of the message, at byte 0, was written by bx_msg_put_u64 and is read by bx_read_i64" },
    { "i", "f", "value 1 of the message, at byte 0, was written by bx_msg_put_i32 and is read by bx_read_f32" },
    { "s", "i", "value 1 of the message, at byte 0, was written by bx_msg_put_str and is read by bx_read_i32" },
    { "i", "s", "value 1 of the message, at byte 0, was written by bx_msg_put_i32 and is read by bx_read_str" },
    { "sl", "bbl", NULL },
    { "bl", "bl", NULL },
    { "ll", "bil", "value 1 of the message, at byte 0, was written by bx_msg_put_i64 and is read by bx_read_i32 at "
                   "byte 4" },
    { "ll", "bl", "value 1 of the message, at byte 0, was written by bx_msg_put_i64 and is read by bx_read_i64 at "
                  "byte 4" },
    { "3l", "fffl", NULL },
    { "fff", "3", NULL },
    { "3", "d", "value 1 of the message, at byte 0, was written by bx_msg_put_f32s and is read by bx_read_f64" },
    { "ffi", "3", "value 3 of the message, at byte 8, was written by bx_msg_put_i32 and is read by bx_read_f32s at "
                  "byte 0" },
    { "bb", "l", NULL },
    { "bi", "l", "value 2 of the message, at byte 4, was written by bx_msg_put_i32 and is read by bx_read_i64 at "
                 "byte 0" },
    { "bbs", "ss", NULL },
    { "s", "bs", "value 1 of the message, at byte 0, was written by bx_msg_put_str and is read by bx_read_str at "
                 "byte 4" },
};

static void expect_misuse(const struct misuse *misuse, struct bx_reader reader)
{
    read_letters(&reader, misuse->read);
    cr_expect_eq(reader.error, misuse->error != NULL ? BX_E_TYPE : 0, "%s read as %s: %d, %s", misuse->put,
                 misuse->read, reader.error, bx_error_text());
    if (misuse->error != NULL)
        cr_expect_str_eq(bx_error_text(), misuse->error);
}

Test(checked, messages_that_are_read_as_another_kind_say_which_value)
{
    for (size_t i = 0; i < sizeof(misuses) / sizeof(misuses[0]); i++) {
        OWN(msg) *msg = bx_msg_create(0);

        put_letters(msg, misuses[i].put);
        expect_misuse(&misuses[i], bx_msg_reader(msg));
    }
}

Test(checked, messages_are_not_checked_without_the_variable)
{
    bxi_checked = false;
    for (size_t i = 0; i < sizeof(misuses) / sizeof(misuses[0]); i++) {
        OWN(msg) *msg = bx_msg_create(0);
        struct bx_reader reader;

        put_letters(msg, misuses[i].put);
        reader = bx_msg_reader(msg);
        read_letters(&reader, misuses[i].read);
        cr_expect_neq(reader.error, BX_E_TYPE);
    }
}

Test(checked, readers_keep_the_first_error_and_can_be_copied)
{
    OWN(msg) *msg = bx_msg_create(0);
    struct bx_reader reader, copy;

    put_letters(msg, "dld");
    reader = bx_msg_reader(msg);
    bx_read_f64(&reader);
    copy = reader;
    cr_expect_eq(bx_read_f64(&reader), 0);
    cr_expect_eq(reader.error, BX_E_TYPE);
    cr_expect_eq(bx_reader_left(&reader), 0);
    cr_expect_eq(bx_read_i64(&reader), 0);
    cr_expect_eq(reader.error, BX_E_TYPE);
    cr_expect_eq(bx_read_i64(&copy), 1);
    copy.pos = 0;                               /* programs do that */
    bx_read_i64(&copy);
    cr_expect_eq(copy.error, BX_E_TYPE);
}

Test(checked, values_are_appended_to_what_has_no_kinds)
{
    OWN(msg) *msg = bxi_msg_copy("12345678", 8);
    struct bx_reader reader;

    put_letters(msg, "d");
    reader = bx_msg_reader(msg);
    bx_read_i64(&reader);
    cr_expect_eq(reader.error, 0);
    bx_read_i64(&reader);
    cr_expect_str_eq(bx_error_text(), "value 2 of the message, at byte 8, was written by bx_msg_put_f64 and is read "
                                      "by bx_read_i64");
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

HARNESS_ASYNC_HANDLER(wants_i64_later)
{
    struct bx_msg *value = bx_msg_create(0);

    bx_read_i64(args);
    bx_msg_put_f64(value, 2.5);
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(bx_future_acquire(*reply), value);
}

HARNESS_BATCH(wants_i64_rows)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        bx_read_i64(&args);
        bx_msg_put_f64(bx_batch_reply(batch, row), 2.5);
        if (args.error < 0)
            bx_batch_fail_row(batch, row, args.error, bx_error_text());
    }
    return 0;
}

/* Reads nothing. */
HARNESS_HANDLER(answers_f64)
{
    return bx_msg_put_f64(reply, 2.5);
}

/* Answers with the answer of another worker, as it came. */
HARNESS_ASYNC_HANDLER(passes_on)
{
    return bx_rpc_async(bx_request_job(request), "worker2", "inline", NULL, NULL, reply);
}

/* A large value, or one beside a tensor; the i64 says how many bytes are in front. */
HARNESS_HANDLER(answers_large)
{
    size_t bytes = (size_t)bx_read_i64(args);
    void *zeroes = calloc(1, bytes);

    bx_msg_put_bytes(reply, zeroes, bytes);
    free(zeroes);
    return bx_msg_put_f64(reply, 2.5);
}

HARNESS_HANDLER(answers_tensor)
{
    struct bx_tensor *tensor = bx_read_tensor(args);
    struct bx_rref *rref = bx_read_rref(args);

    if (bx_read_i64(args) != 1 || bx_read_rref(args) != NULL || args->error != BX_E_SHORT_MESSAGE)
        return -EDOM;
    args->error = 0;
    bx_msg_put_tensor(reply, tensor);
    bx_msg_put_rref(reply, rref);
    return bx_msg_put_f64(reply, 2.5);
}

static int f64_value(void *object, struct bx_msg *value)
{
    (void)object;
    return bx_msg_put_f64(value, 2.5);
}

static const struct bx_type f64_type = { .name = "f64", .destroy = destroy_counter, .value = f64_value };

HARNESS_HANDLER(new_f64)
{
    harness_await(MAY_BE_MADE, 1);
    return put_counter(request, reply, &f64_type, 1);
}

static int setup_checked(struct bx_job *job)
{
    const struct bx_batch_options at_once = { .max_rows = 1 };

    HARNESS_REGISTER(job, HARNESS_INLINE("inline", wants_i64), HARNESS_BLOCKING("blocking", wants_i64),
                     HARNESS_ASYNC("async", wants_i64_later));
    HARNESS_EQ(bx_register_batch(job, "rows", wants_i64_rows, NULL, &at_once), 0);
    HARNESS_REGISTER(job, HARNESS_ASYNC("passes_on", passes_on), HARNESS_INLINE("answers", answers_f64),
                     HARNESS_INLINE("large", answers_large), HARNESS_INLINE("tensor", answers_tensor),
                     HARNESS_BLOCKING("tensor_blocking", answers_tensor), HARNESS_BLOCKING("new_f64", new_f64));
    HARNESS_EQ(bx_register_method(job, &f64_type, "method", BX_INLINE, wants_i64, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &f64_type, "tensor_method", BX_INLINE, answers_tensor, NULL), 0);
    return 0;
}

static void destroy_both(struct bx_msg *args, struct bx_msg *reply)
{
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
}

TestSuite(checked_calls, .init = check);

HARNESS_TEST(checked_calls, carry_kinds_to_handlers_of_every_kind_and_back, 60, .size = 2, .setup = setup_checked)
{
    static const char *const functions[] = { "inline", "blocking", "async", "rows" };
    struct bx_msg *reply = NULL, *args[3] = { harness_msg_i64(1), harness_msg_i64(2), harness_msg_i64(3) };
    struct bx_future *futures[3];

    for (int i = 0; i < 4; i++) {
        call_both(job, "worker1", functions[i]);
        call_both(job, "worker0", functions[i]);
    }
    HARNESS_EQ(bx_rpc_many(job, "worker1", "inline", 3, (const struct bx_msg *const *)args, NULL, futures), 0);
    for (int i = 0; i < 3; i++) {
        HARNESS_EQ(bx_future_wait(futures[i], BX_FOREVER), 0);
        expect_f64(bx_future_value(futures[i]), 0);
        bx_future_release(futures[i]);
        bx_msg_destroy(args[i]);
    }
    for (int i = 0; i < 100; i++) {             /* without arguments a request has no kinds, its answer has */
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "answers", NULL, NULL, &reply), 0);
        expect_f64(reply, 0);
        bx_msg_destroy(reply);
    }
    /* Nothing is read of what has no bytes: it fails as ever. */
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "inline", NULL, NULL, &reply), BX_E_SHORT_MESSAGE);
}

static void logs_it(int level, const char *text, void *context)
{
    (void)level, (void)context;
    if (strstr(text, WRONG) != NULL)
        harness_post(BEING_MADE);
}

static int setup_with_log(struct bx_job *job)
{
    bx_set_log(logs_it, NULL);
    return setup_checked(job);
}

HARNESS_TEST(checked_calls, that_are_one_way_log_it, 60, .size = 2, .setup = setup_with_log)
{
    OWN(msg) *args = bx_msg_create(0);

    bx_msg_put_f64(args, 1.5);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "inline", args, NULL), 0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "blocking", args, NULL), 0);
    harness_await(BEING_MADE, 2);
}

/* Around the sizes at which frames end and leases begin, in both directions. */
HARNESS_TEST(checked_calls, carry_kinds_of_large_messages, 60, .size = 2, .setup = setup_checked)
{
    for (size_t bytes = BXI_BODY_MAX - 64; bytes <= BXI_BODY_MAX + 64; bytes += 8) {
        struct bx_msg *args = harness_msg_i64((int64_t)bytes), *reply = NULL;
        void *zeroes = calloc(1, bytes);

        HARNESS_EQ(bx_rpc_sync(job, "worker1", "large", args, NULL, &reply), 0);
        expect_f64(reply, bytes);
        destroy_both(NULL, reply);
        bx_msg_put_bytes(args, zeroes, bytes);
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "blocking", args, NULL, &reply), 0);
        destroy_both(args, reply);
        args = bx_msg_create(0);
        bx_msg_put_f64(args, 1.5);
        bx_msg_put_bytes(args, zeroes, bytes);
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "inline", args, NULL, NULL), BX_E_TYPE);
        HARNESS_HAS(bx_error_text(), WRONG);
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "blocking", args, NULL, NULL), BX_E_TYPE);
        free(zeroes);
        bx_msg_destroy(args);
    }
}

/* More values than a frame has bytes for, of few bytes each. */
HARNESS_TEST(checked_calls, carry_more_kinds_than_a_frame_holds, 60, .size = 2, .setup = setup_checked)
{
    struct bx_msg *args = harness_msg_i64(0), *reply = NULL;

    for (int i = 0; i < 5000; i++)
        bx_msg_put_bytes(args, "x", 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "blocking", args, NULL, &reply), 0);
    expect_f64(reply, 0);
    destroy_both(args, reply);
}

/* The answer comes with the tensor and the reference, and its f64. */
static void expect_all(const struct bx_msg *reply)
{
    struct bx_reader reader = bx_msg_reader(reply);

    HARNESS_CHECK(bx_read_tensor(&reader) != NULL);
    HARNESS_CHECK(bx_read_rref(&reader) != NULL);
    HARNESS_CHECK(bx_read_rref(&reader) == NULL);
    HARNESS_EQ(reader.error, BX_E_SHORT_MESSAGE);
    expect_f64(reply, 0);
}

static struct bx_msg *args_with_all(struct bx_job *job, struct bx_rref *rref, bool wrong)
{
    struct bx_msg *args = bx_msg_create(0);
    OWN(tensor) *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F32, 1, (const int64_t[]){ 1000 }, &tensor), 0);
    bx_msg_put_rref(args, rref);
    if (wrong)
        bx_msg_put_f64(args, 1.5);
    else
        bx_msg_put_i64(args, 1);
    bx_msg_put_tensor(args, tensor);
    return args;
}

HARNESS_TEST(checked_calls, carry_kinds_beside_tensors_and_references, 60, .size = 2, .setup = setup_checked)
{
    static const char *const functions[] = { "tensor", "tensor_blocking" };
    OWN(rref) *rref = NULL;

    HARNESS_EQ(bx_rref_create(job, &f64_type, new_counter_of(1), &rref), 0);
    for (int i = 0; i < 4; i++) {
        struct bx_msg *args = args_with_all(job, rref, false), *reply = NULL;
        const char *to = i < 2 ? "worker1" : "worker0";

        HARNESS_EQ(bx_rpc_sync(job, to, functions[i % 2], args, NULL, &reply), 0);
        expect_all(reply);
        destroy_both(args, reply);
        args = args_with_all(job, rref, true);
        HARNESS_EQ(bx_rpc_sync(job, to, functions[i % 2], args, NULL, NULL), -EDOM);
        bx_msg_destroy(args);
    }
}

/* What is read after a request takes its place in the callee's memory for frames. */
static void fill_frame(struct bx_job *job)
{
    unsigned char ones[4096];
    OWN(msg) *args = bx_msg_create(sizeof(ones));

    memset(ones, 0xff, sizeof(ones));
    bx_msg_put_bytes(args, ones, sizeof(ones));
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "inline", args, NULL, NULL), 0);
}

/* Calls on an object that is not made yet wait in the callee. */
HARNESS_TEST(checked_calls, carry_kinds_to_objects_and_from_them, 60, .size = 2, .setup = setup_checked)
{
    OWN(rref) *rref = NULL, *own = NULL;
    struct bx_future *futures[3] = { NULL };
    struct bx_msg *args[3], *reply = NULL;

    HARNESS_EQ(bx_rref_create(job, &f64_type, new_counter_of(1), &own), 0);
    HARNESS_EQ(bx_remote(job, "worker1", "new_f64", NULL, NULL, &rref), 0);
    args[0] = harness_msg_i64(1);
    args[1] = bx_msg_create(0);
    bx_msg_put_f64(args[1], 1.5);
    args[2] = args_with_all(job, own, false);
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rref_async(rref, i < 2 ? "method" : "tensor_method", args[i], NULL, &futures[i]), 0);
    fill_frame(job);
    harness_post(MAY_BE_MADE);
    HARNESS_EQ(bx_future_wait(futures[0], BX_FOREVER), 0);
    expect_f64(bx_future_value(futures[0]), 0);
    HARNESS_EQ(bx_future_wait(futures[1], BX_FOREVER), BX_E_TYPE);
    HARNESS_HAS(bx_future_error_text(futures[1]), WRONG);
    HARNESS_EQ(bx_future_wait(futures[2], BX_FOREVER), 0);
    expect_all(bx_future_value(futures[2]));
    for (int i = 0; i < 3; i++) {
        bx_future_release(futures[i]);
        bx_msg_destroy(args[i]);
    }
    HARNESS_EQ(bx_rref_to_here(rref, NULL, &reply), 0);
    expect_f64(reply, 0);
    bx_msg_destroy(reply);
}

HARNESS_ASYNC_HANDLER(passes_on_more)
{
    OWN(msg) *one = harness_msg_i64(1);

    return bx_rpc_async(bx_request_job(request), "worker2", "inline", one, NULL, reply);
}

/* Worker 1 answers with what worker 2 has answered. */
HARNESS_TEST(checked_calls, carry_kinds_of_answers_that_are_passed_on, 60, .size = 3, .setup = setup_checked,
             .handlers = { HARNESS_ASYNC("passes_on_more", passes_on_more) })
{
    OWN(msg) *reply = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "passes_on", NULL, NULL, &reply), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "passes_on_more", NULL, NULL, &reply), 0);
    expect_f64(reply, 0);
}

/* Worker 1 has not set the variable: it takes the kinds off, checks nothing, and sends none. */
static int setup_mixed(struct bx_job *job)
{
    bxi_checked = bx_job_rank(job) != 1;
    return setup_checked(job);
}

/* It sends no kinds, so worker 0 checks nothing; the answer has some, which are taken off. */
static void call_checked(struct bx_job *job)
{
    for (int i = 0; i < 100; i++) {
        struct bx_msg *args = bx_msg_create(0), *reply = NULL;

        bx_msg_put_f64(args, 1.5);
        HARNESS_EQ(bx_rpc_sync(job, "worker0", "inline", args, NULL, &reply), 0);
        HARNESS_EQ(bx_msg_bytes(reply), 8);
        destroy_both(args, reply);
    }
}

HARNESS_TEST(checked_calls, go_on_with_a_worker_that_does_not_check, 60, .size = 2, .setup = setup_mixed,
             .body = { NULL, call_checked })
{
    static const char *const functions[] = { "inline", "blocking", "async", "rows" };

    for (int i = 0; i < 8; i++) {
        struct bx_msg *args = bx_msg_create(0), *reply = NULL;
        struct bx_reader reader;

        bx_msg_put_f64(args, 1.5);
        HARNESS_EQ(bx_rpc_sync(job, "worker1", functions[i % 4], args, NULL, &reply), 0);
        HARNESS_EQ(bx_msg_bytes(reply), 8);
        reader = bx_msg_reader(reply);
        bx_read_i64(&reader);
        HARNESS_EQ(reader.error, 0);
        HARNESS_EQ(bx_msg_put_f64(reply, 2.5), 0);
        HARNESS_EQ(bx_rpc_sync(job, "worker0", "inline", reply, NULL, NULL), 0);
        destroy_both(args, reply);
    }
}

/* ---- The variable ------------------------------------------------------------------------------------------- */

Test(checked_variable, is_0_or_1, .timeout = 20)
{
    struct bx_job *job = NULL;
    const struct bx_options options = { .job = "checked", .world_size = 2 };

    setenv("BX_CHECKED", "yes", 1);
    cr_expect_eq(bx_job_create(&options, &job), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "BX_CHECKED='yes' is neither 0 nor 1");
    for (int i = 0; i < 3; i++) {
        setenv("BX_CHECKED", (const char *[]){ "", "0", "1" }[i], 1);
        cr_expect_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
        bx_job_destroy(job);
    }
}
