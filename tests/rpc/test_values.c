/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/values.c, boxcar_call.h: calls in one line. What the compiler refuses is tested by tests/consumer/check.sh;
 * here the functions behind the macros are called where it would refuse a call.
 */
#include "tests/harness/harness.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"

#define RUNS 0                  /* a value of the harness: how often "count" ran */

HARNESS_HANDLER(add)
{
    int64_t a = 0, b = 0;
    int rc = bx_read(args, "ii", &a, &b);

    return rc < 0 ? rc : bx_msg_put(reply, "i", a + b);
}

/* Gives back each value that it gets but for a reference, by the functions that the letters stand for. */
HARNESS_HANDLER(echo_all)
{
    bx_msg_put_i64(reply, bx_read_i64(args));
    bx_msg_put_u64(reply, bx_read_u64(args));
    bx_msg_put_i32(reply, bx_read_i32(args));
    bx_msg_put_f64(reply, bx_read_f64(args));
    bx_msg_put_f32(reply, bx_read_f32(args));
    bx_msg_put_str(reply, bx_read_str(args));
    bx_msg_put_bytes(reply, bx_read_bytes(args, 3), 3);
    return bx_msg_put_tensor(reply, bx_read_tensor(args));
}

/* The same by one line each. */
HARNESS_HANDLER(echo_in_lines)
{
    int64_t i = 0;
    uint64_t u = 0;
    int32_t w = 0;
    double d = 0;
    float f = 0;
    const char *text = "";
    char bytes[3];
    struct bx_tensor *tensor = NULL;
    int rc = bx_read(args, "iuwdfsbT", &i, &u, &w, &d, &f, &text, bx_into(bytes, 3), &tensor);

    return rc < 0 ? rc : bx_msg_put(reply, "iuwdfsbT", i, u, w, d, f, text, bx_bytes(bytes, 3), tensor);
}

HARNESS_HANDLER(count)
{
    harness_add(RUNS, 1);
    return 0;
}

/* Two texts and an integer between them, a tensor and a reference. */
HARNESS_HANDLER(give)
{
    static const struct bx_type type = { .name = "given" };
    OWN(tensor) *tensor = NULL;
    int rc = bx_tensor_create(bx_request_job(request), BX_U8, 1, (const int64_t[]){ 3 }, &tensor);

    if (rc == 0)
        rc = bx_msg_put(reply, "sisT", "first", 7, "second", tensor);
    return rc < 0 ? rc : bx_msg_put_object(bx_request_job(request), reply, &type, NULL);
}

HARNESS_HANDLER(add_to)
{
    int64_t *sum = bx_request_object(request);

    return bx_msg_put(reply, "i", *sum += bx_read_i64(args));
}

static const struct bx_type counter = { .name = "counter" };

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("add", add), HARNESS_INLINE("echo", echo_all),
                     HARNESS_BLOCKING("echo_in_lines", echo_in_lines), HARNESS_INLINE("count", count),
                     HARNESS_INLINE("give", give), HARNESS_INLINE("bytes", harness_echo_bytes),
                     HARNESS_ASYNC("never", harness_never));
    return bx_register_method(job, &counter, "add_to", BX_INLINE, add_to, NULL);
}

/* ---- Values there and back ------------------------------------------------------------------------ */

HARNESS_TEST(values, call_in_one_line_by_name_and_by_rank, 20, .size = 2, .setup = setup)
{
    char name[] = "worker1";
    int64_t sum = 0;

    HARNESS_EQ(bx_call(job, "worker1", "add", "ii>i", 40, 2, &sum), 0);
    HARNESS_EQ(sum, 42);
    HARNESS_EQ(bx_call(job, name, "add", "ii>i", -40, -2, &sum), 0);
    HARNESS_EQ(sum, -42);
    for (int rank = 0; rank < 2; rank++) {
        HARNESS_EQ(bx_call(job, bx_rank(rank), "add", "ii>i", (short)1, 2u, &sum), 0);
        HARNESS_EQ(sum, 3);
    }
    HARNESS_EQ(bx_call(job, bx_rank(2), "add", "ii>i", 40, 2, &sum), BX_E_NO_WORKER);
    HARNESS_EQ(bx_call(job, bx_rank(-1), "add", "ii>i", 40, 2, &sum), BX_E_NO_WORKER);
    HARNESS_EQ(bx_call(job, "nobody", "add", "ii>i", 40, 2, &sum), BX_E_NO_WORKER);
    HARNESS_EQ(bx_call(job, bx_rank(1), "add", "i>i", 40, &sum), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(sum, 3);
}

HARNESS_TEST(values, of_every_letter_go_there_and_come_back, 20, .size = 2, .setup = setup)
{
    static const char *const functions[] = { "echo", "echo_in_lines" };
    OWN(tensor) *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_U8, 1, (const int64_t[]){ 5 }, &tensor), 0);
    memcpy(bx_tensor_data_mut(tensor), "12345", 5);
    for (int n = 0; n < 2; n++) {
        int64_t i = 0;
        uint64_t u = 0;
        int32_t w = 0;
        double d = 0;
        float f = 0;
        char *text = NULL, bytes[4] = "...";
        struct bx_tensor *back = NULL;

        HARNESS_EQ(bx_call(job, bx_rank(1), functions[n], "iuwdfsbT>iuwdfsbT", INT64_MIN, UINT64_MAX, INT32_MIN, 0.1,
                           0.1f, "a text", bx_bytes("xyz", 3), tensor, &i, &u, &w, &d, &f, &text, bx_into(bytes, 3),
                           &back),
                   0);
        HARNESS_CHECK(i == INT64_MIN && u == UINT64_MAX && w == INT32_MIN && d == 0.1 && f == 0.1f);
        HARNESS_CHECK(strcmp(text, "a text") == 0 && strcmp(bytes, "xyz") == 0);
        HARNESS_CHECK(memcmp(bx_tensor_data(back), "12345", 5) == 0);
        bx_tensor_release(back);
        free(text);
    }
}

HARNESS_TEST(values, of_a_reply_are_the_callers, 20, .size = 2, .setup = setup)
{
    char *first = NULL, *second = NULL;
    long long number = 0;
    struct bx_tensor *tensor = NULL;
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_call(job, bx_rank(1), "give", ">sisTR", &first, &number, &second, &tensor, &rref), 0);
    HARNESS_CHECK(strcmp(first, "first") == 0 && strcmp(second, "second") == 0);
    HARNESS_EQ(number, 7);
    HARNESS_EQ(bx_tensor_elements(tensor), 3);
    HARNESS_EQ(bx_rref_owner(rref), 1);
    free(first);
    free(second);
    bx_tensor_release(tensor);
    bx_rref_release(rref);
    HARNESS_EQ(bx_call(job, bx_rank(1), "give", ""), 0); /* the reply is not read */
}

HARNESS_BODY(convert)
{
    struct bx_msg *msg = bx_msg_create(0);
    struct bx_reader reader;

    HARNESS_EQ(bx_msg_put(msg, "uwwddf", 5, 7u, -7, 3, UINT64_MAX, 0.5), 0);
    reader = bx_msg_reader(msg);
    HARNESS_EQ(bx_read_u64(&reader), 5);
    HARNESS_EQ(bx_read_i32(&reader), 7);
    HARNESS_EQ(bx_read_i32(&reader), -7);
    HARNESS_CHECK(bx_read_f64(&reader) == 3 && bx_read_f64(&reader) == 18446744073709551616.0);
    HARNESS_CHECK(bx_read_f32(&reader) == 0.5f && reader.bytes == reader.pos);
    bx_msg_destroy(msg);
}

HARNESS_TEST(values, are_integers_that_fit, 20, .size = 2, .setup = setup)
{
    int64_t none = 0;

    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "i", (uint64_t)INT64_MAX + 1), -ERANGE);
    HARNESS_HAS(bx_error_text(), "value 1 of \"i\" does not fit i64");
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "iu", 1, -1), -ERANGE);
    HARNESS_HAS(bx_error_text(), "value 2 of \"iu\" does not fit u64");
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "w", (int64_t)INT32_MAX + 1), -ERANGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "w", (int64_t)INT32_MIN - 1), -ERANGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "w", (uint64_t)INT32_MAX + 1), -ERANGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "w>i", UINT64_MAX, &none), -ERANGE);
    HARNESS_EQ(harness_load(RUNS), 0);
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "iuw", (uint64_t)INT64_MAX, 0, INT32_MIN), 0);
    HARNESS_EQ(harness_load(RUNS), 1);
    convert(job);
}

/* ---- What is refused at run time -------------------------------------------------------------------- */

/* A call with a format and values that the compiler does not check. */
#define REFUSE(why, ...)                                                                                \
    do {                                                                                                \
        HARNESS_EQ(bx_call_typed(job, "worker1", "count", NULL, BXI_KINDS(__VA_ARGS__), __VA_ARGS__), -EINVAL); \
        HARNESS_HAS(bx_error_text(), why);                                                              \
    } while (0)

HARNESS_TEST(values, that_do_not_fit_their_letters_are_refused_before_anything_is_sent, 20, .size = 2, .setup = setup)
{
    int64_t to = 0, *no_place = NULL;
    int32_t to_32 = 0;
    const char *str = NULL;
    struct bx_tensor *none = NULL;
    const int no_kind[] = { BX_VALUE_TO_RREF | BX_VALUE_TO_TENSOR, BX_VALUE_END }, zero[] = { 0, BX_VALUE_END };

    REFUSE("value 2 of \"ii>i\" is a text, the format has i64", "ii>i", 1, "x", &to);
    REFUSE("value 3 of \"ii>i\" is a place for an i32, the format has a place, i64", "ii>i", 1, 1, &to_32);
    REFUSE("value 1 of \">i\" is an integer, the format has a place, i64", ">i", 1);
    REFUSE("value 1 of \"i\" is a place for an i64, the format has i64", "i", &to);
    REFUSE("is a place for a text of a message", ">s", &str);
    REFUSE("is a real number", "i", 1.0);
    HARNESS_EQ(bx_call_typed(job, "worker1", "count", NULL, no_kind, "i", 1), -EINVAL);
    HARNESS_HAS(bx_error_text(), "is of no kind");
    HARNESS_EQ(bx_call_typed(job, "worker1", "count", NULL, zero, "i", 1), -EINVAL);
    HARNESS_HAS(bx_error_text(), "is of no kind");
    REFUSE("has more letters than there are values, 1", "ii", 1);
    REFUSE("has 1 letters, and there are more values", "i", 1, 1);
    REFUSE("has 'x', which is no letter", "ix", 1, 1);
    REFUSE("has 'I', which is no letter", "I", 1);
    REFUSE("has '>', which is no letter", "i>>i", 1, &to);
    REFUSE("value 1 of \"s\" is NULL", "s", (const char *)NULL);
    REFUSE("is NULL", "T", none);
    REFUSE("is NULL", ">i", no_place);
    REFUSE("is NULL", "b", bx_bytes(NULL, 1));
    REFUSE("is NULL", ">b", bx_into(NULL, 1));
    REFUSE("has more than 16 letters", "iiiiiiiiiiiiiiiii", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
    REFUSE("has 16 letters, and there are more", "iiiiiiiiiiiiiiii", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
    HARNESS_EQ(harness_load(RUNS), 0);
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "bs>b", bx_bytes(NULL, 0), "", bx_into(NULL, 0)), 0);
    HARNESS_EQ(harness_load(RUNS), 1);
}

HARNESS_TEST(values, are_put_and_read_all_or_not_at_all, 20, .size = 2, .setup = setup)
{
    OWN(msg) *msg = bx_msg_create(0);
    struct bx_reader reader;
    int64_t a = 1, b = 2;

    HARNESS_EQ(bx_msg_put_typed(msg, BXI_KINDS("i>i", 1, 2), "i>i", 1, 2), -EINVAL);
    HARNESS_EQ(bx_msg_bytes(msg), 0);
    HARNESS_EQ(bx_msg_put_i64(msg, 1), -EINVAL);
    HARNESS_EQ(bx_msg_put(msg, "i", 1), -EINVAL);
    bx_msg_clear(msg);
    HARNESS_EQ(bx_msg_put(msg, "i", 7), 0);
    reader = bx_msg_reader(msg);
    HARNESS_EQ(bx_read(&reader, "ii", &a, &b), BX_E_SHORT_MESSAGE);
    HARNESS_CHECK(a == 1 && b == 2 && reader.error == BX_E_SHORT_MESSAGE);
    reader = bx_msg_reader(msg);
    HARNESS_EQ(bx_read_typed(&reader, BXI_KINDS("is", &a, &b), "is", &a, &b), -EINVAL);
    HARNESS_CHECK(a == 1 && reader.error == -EINVAL && bx_read_i64(&reader) == 0);
    HARNESS_CHECK(bx_read(&reader, "i", &a) == -EINVAL && a == 1);
    reader = bx_msg_reader(msg);
    HARNESS_EQ(bx_msg_put(msg, "i", 8), 0);
    reader = bx_msg_reader(msg);
    HARNESS_EQ(bx_read(&reader, "i", &a), 0);           /* more may follow */
    HARNESS_EQ(bx_read(&reader, "i", &b), 0);
    HARNESS_CHECK(a == 7 && b == 8);
}

/* ---- Replies that do not fit ------------------------------------------------------------------------- */

HARNESS_TEST(values, of_a_reply_that_does_not_fit_are_not_taken, 20, .size = 2, .setup = setup)
{
    char *first = NULL, *second = NULL, bytes[16];
    int64_t a = 1, b = 2;
    struct bx_tensor *tensor = NULL;
    struct bx_rref *rref = NULL;

    HARNESS_EQ(bx_call(job, bx_rank(1), "add", "ii>ii", 1, 2, &a, &b), BX_E_SHORT_MESSAGE);
    HARNESS_HAS(bx_error_text(), "the reply of 'add' has less than \"ii>ii\" reads: 8 bytes were read at byte 8");
    HARNESS_EQ(bx_call(job, bx_rank(1), "add", "ii>iT", 1, 2, &a, &tensor), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "add", "ii>iR", 1, 2, &a, &rref), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "add", "ii>", 1, 2), BX_E_LONG_MESSAGE);
    HARNESS_HAS(bx_error_text(), "has more than \"ii>\" reads: 8 bytes, 0 tensors, 0 references");
    HARNESS_EQ(bx_call(job, bx_rank(1), "give", ">sis", &first, &a, &second), BX_E_LONG_MESSAGE);
    HARNESS_HAS(bx_error_text(), "0 bytes, 1 tensors, 1 references");
    HARNESS_EQ(bx_call(job, bx_rank(1), "give", ">sisT", &first, &a, &second, &tensor), BX_E_LONG_MESSAGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "bytes", "s>b", "x", bx_into(bytes, 5)), BX_E_LONG_MESSAGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "bytes", "s>b", "x", bx_into(bytes, 7)), BX_E_SHORT_MESSAGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "bytes", "s>b", "x", bx_into(bytes, 6)), 0);
    HARNESS_CHECK(memcmp(bytes, "\2\0\0\0x", 6) == 0);
    HARNESS_EQ(bx_call(job, bx_rank(1), "add", "ii>", 1, 2), BX_E_LONG_MESSAGE);
    HARNESS_EQ(bx_call(job, bx_rank(1), "count", "ii>", 1, 2), 0);
    HARNESS_CHECK(a == 1 && b == 2 && first == NULL && second == NULL && tensor == NULL && rref == NULL);
}

/* Each allocation of the call fails once: of the arguments, which are longer than a message on the stack, of the reply
 * and of the copies of its texts; also some that the call does without. */
HARNESS_TEST(values, are_all_released_if_memory_is_out, 30, .size = 2, .setup = setup, .options = { .own_loop = true })
{
    static char large[1000];
    int failed = 0;

    HARNESS_EQ(bx_call(job, bx_rank(1), "give", ""), 0); /* what is made once is there */
    for (int n = 1, left = 0; left == 0; n++) {
        char *first = NULL, *second = NULL;
        int64_t a = 1;
        OWN(tensor) *tensor = NULL;
        OWN(rref) *rref = NULL;
        int rc;

        memory_fails_in = n;
        rc = bx_call(job, bx_rank(1), "give", "b>sisTR", bx_bytes(large, sizeof large), &first, &a, &second, &tensor,
                     &rref);
        left = memory_fails_in;
        memory_fails_in = 0;
        failed += rc != 0;
        if (rc != 0) {
            HARNESS_EQ(rc, -ENOMEM);
            HARNESS_CHECK(first == NULL && second == NULL && a == 1 && tensor == NULL && rref == NULL);
        } else {
            HARNESS_CHECK(strcmp(first, "first") == 0 && strcmp(second, "second") == 0);
        }
        free(first);
        free(second);
    }
    HARNESS_CHECK(failed >= 4);
}

/* ---- Options, methods, futures ----------------------------------------------------------------------- */

HARNESS_TEST(values, calls_with_options_and_futures, 20, .size = 2, .setup = setup)
{
    const struct bx_call_options brief = { .timeout_ns = 20 * HARNESS_MS };
    struct bx_future *future = NULL;
    struct bx_reader reader;
    int64_t sum = 0;

    HARNESS_EQ(bx_call_with(job, "worker1", "never", &brief, ">i", &sum), BX_E_TIMEOUT);
    HARNESS_EQ(bx_call_with(job, bx_rank(1), "never", &brief, ""), BX_E_TIMEOUT);
    HARNESS_EQ(bx_call_async(job, bx_rank(1), "never", &brief, &future, "s", "x"), 0);
    harness_end(future, BX_E_TIMEOUT);
    HARNESS_EQ(bx_call_async(job, "worker1", "add", NULL, &future, "ii", 3, 4), 0);
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), 0);
    HARNESS_EQ(bx_future_index(future), -1);
    reader = bx_msg_reader(bx_future_value(future));
    HARNESS_EQ(bx_read(&reader, "i", &sum), 0);
    HARNESS_EQ(sum, 7);
    bx_future_release(future);
    future = NULL;
    HARNESS_EQ(bx_call_async(job, bx_rank(5), "add", NULL, &future, "ii", 3, 4), BX_E_NO_WORKER);
    HARNESS_CHECK(future == NULL);
}

HARNESS_TEST(values, calls_of_methods_in_one_line, 20, .size = 2, .setup = setup)
{
    const struct bx_call_options brief = { .timeout_ns = 10000 * HARNESS_MS };
    int64_t object = 10, sum = 0;
    OWN(rref) *rref = NULL;
    struct bx_future *future = NULL;

    HARNESS_EQ(bx_rref_create(job, &counter, &object, &rref), 0);
    HARNESS_EQ(bx_rref_call(rref, "add_to", "i>i", 5, &sum), 0);
    HARNESS_EQ(sum, 15);
    HARNESS_EQ(bx_rref_call_with(rref, "add_to", &brief, "i>i", 5, &sum), 0);
    HARNESS_EQ(sum, 20);
    HARNESS_EQ(bx_rref_call_async(rref, "add_to", NULL, &future, "i", 1), 0);
    harness_end(future, 0);
    HARNESS_EQ(object, 21);
    HARNESS_EQ(bx_rref_call(rref, "add", "ii>i", 5, 6, &sum), BX_E_TYPE);
    HARNESS_EQ(bx_rref_call_typed(rref, "add_to", NULL, BXI_KINDS("?"), "?"), -EINVAL);
    HARNESS_EQ(bx_rref_call_async_typed(rref, "add_to", NULL, &future, BXI_KINDS("?"), "?"), -EINVAL);
    HARNESS_EQ(object, 21);
}

/* ---- A thread that leaves inside of a call ------------------------------------------------------------ */

static void count_free(void *context)
{
    (*(_Atomic int *)context)++;
}

HARNESS_HANDLER(leave)
{
    pthread_exit(NULL);
}

static _Atomic int freed;

/* The handler runs on this thread, which makes progress, or on another one; the call fails then. */
static void *call_and_leave(void *context)
{
    static char data[4], large[1000];
    struct bx_job *job = context;
    struct bx_tensor *tensor = NULL;
    struct bx_msg *msg = bx_msg_create(0);

    HARNESS_EQ(bx_tensor_wrap(data, BX_U8, 1, (const int64_t[]){ 4 }, NULL, count_free, &freed, &tensor), 0);
    HARNESS_EQ(bx_msg_put(msg, "T", tensor), 0);
    bx_tensor_release(tensor);
    struct bx_reader reader = bx_msg_reader(msg);

    tensor = bx_tensor_acquire(bx_read_tensor(&reader));
    bx_msg_destroy(msg);
    pthread_cleanup_push((void (*)(void *))bx_tensor_release, tensor);
    bx_call(job, bx_rank(0), "leave", "Tb", tensor, bx_bytes(large, sizeof large));
    pthread_cleanup_pop(1);
    return NULL;
}

HARNESS_TEST(values, are_released_by_a_thread_that_leaves_in_the_call, 60, .size = 2,
             .handlers = { HARNESS_INLINE("leave", leave) })
{
    for (int i = 0; i < 20; i++) {
        pthread_t thread;

        HARNESS_EQ(pthread_create(&thread, NULL, call_and_leave, job), 0);
        HARNESS_EQ(pthread_join(thread, NULL), 0);
    }
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    HARNESS_EQ(freed, 20);
}
