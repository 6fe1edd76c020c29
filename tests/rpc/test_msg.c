/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/msg.c: lengths and counts that lie, errors that stay, and messages that grow. No job, no threads. Values of
 * every kind, and reads behind the end: test_checked.c, test_values.c.
 */
#include "tests/harness/memory.h"
#include "tests/harness/test.h"
#include "boxcar.h"

TestSuite(msg, .timeout = 120);

/* The length in front of it is too large, or behind it there is no zero. */
Test(msg, refuses_a_string_with_a_wrong_length_or_without_its_end)
{
    static const struct { uint32_t length; const char *bytes; size_t count; } wrong[] = {
        { 6, "wagon", 5 }, { 1000, "wagon", 5 }, { UINT32_MAX, "wagon", 5 }, { 5, "wagon", 5 },
        { 0, "\0\0\0", 4 },
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        OWN(msg) *msg = bx_msg_create(0);

        bx_msg_put_bytes(msg, &wrong[i].length, sizeof(wrong[i].length));
        bx_msg_put_bytes(msg, wrong[i].bytes, wrong[i].count);

        struct bx_reader reader = bx_msg_reader(msg);

        cr_expect_str_eq(bx_read_str(&reader), "");
        cr_expect_eq(reader.error, BX_E_SHORT_MESSAGE);
    }
}

Test(msg, survives_counts_that_overflow)
{
    OWN(msg) *msg = bx_msg_create(0);
    float value;

    bx_msg_put_i64(msg, 1);

    struct bx_reader reader = bx_msg_reader(msg);

    cr_expect_eq(bx_read_f32s(&reader, &value, SIZE_MAX / 2), BX_E_SHORT_MESSAGE);
    reader = bx_msg_reader(msg);
    cr_expect_null(bx_read_bytes(&reader, SIZE_MAX));
    cr_expect_eq(reader.error, BX_E_SHORT_MESSAGE);
    reader = bx_msg_reader(msg);
    bx_read_bytes(&reader, 4);
    cr_expect_null(bx_read_bytes(&reader, SIZE_MAX - 3));
    cr_expect_eq(reader.error, BX_E_SHORT_MESSAGE);
}

Test(msg, keeps_a_writer_s_error_until_cleared)
{
    OWN(msg) *msg = bx_msg_create(16);
    float value = 1;

    cr_expect_eq(bx_msg_error(msg), 0);
    cr_expect_eq(bx_msg_put_bytes(msg, &value, SIZE_MAX - 64), -ENOMEM);
    cr_expect_eq(bx_msg_error(msg), -ENOMEM);
    cr_expect_eq(bx_msg_put_i64(msg, 1), -ENOMEM);
    cr_expect_eq(bx_msg_put_str(msg, "wagon"), -ENOMEM);
    cr_expect_eq(bx_msg_bytes(msg), 0);
    bx_msg_clear(msg);
    cr_expect_eq(bx_msg_error(msg), 0);
    cr_expect_eq(bx_msg_put_f32s(msg, &value, SIZE_MAX / 4 + 1), -ENOMEM);
    bx_msg_clear(msg);
    cr_expect_eq(bx_msg_put_i64(msg, 1), 0);
    cr_expect_eq(bx_msg_bytes(msg), 8);
}

Test(msg, takes_and_gives_nothing_behind_an_error)
{
    OWN(msg) *msg = bx_msg_create(0);
    OWN(tensor) *tensor = NULL;
    struct bx_reader reader = bx_msg_reader(msg);

    cr_expect_eq(bx_read_f32s(&reader, NULL, 0), 0);
    bx_read_i64(&reader);
    cr_expect_null(bx_read_tensor(&reader));
    cr_expect_null(bx_read_rref(&reader));
    cr_expect_eq(bx_reader_tensors_left(&reader), 0);
    cr_expect_eq(bx_read_f32s(&reader, NULL, 1), BX_E_SHORT_MESSAGE);
    cr_assert_eq(bx_tensor_create(NULL, BX_F32, 0, NULL, &tensor), 0);
    memory_fails_in = 1;
    cr_expect_eq(bx_msg_put_bytes(msg, &(char[10000]){ 0 }, 10000), -ENOMEM);
    cr_expect_eq(memory_fails_in, 0);
    cr_expect_eq(bx_msg_put_str(msg, "x"), -ENOMEM);
    cr_expect_eq(bx_msg_put_tensor(msg, tensor), -ENOMEM);
    cr_expect_eq(bx_msg_put_rref(msg, NULL), -ENOMEM);
    cr_expect_eq(bx_msg_put_object(NULL, msg, NULL, NULL), -ENOMEM);
}

Test(msg, grows_and_keeps_its_contents)
{
    OWN(msg) *msg = bx_msg_create(8);

    for (int64_t i = 0; i < 100000; i++)
        cr_assert_eq(bx_msg_put_i64(msg, i), 0);

    struct bx_reader reader = bx_msg_reader(msg);

    for (int64_t i = 0; i < 100000; i++)
        cr_assert_eq(bx_read_i64(&reader), i);
    cr_expect_eq(bx_reader_left(&reader), 0);
    bx_msg_clear(msg);
    cr_expect_eq(bx_msg_bytes(msg), 0);
    bx_msg_put_i64(msg, 7);
    cr_expect_eq(bx_msg_bytes(msg), 8);
}

Test(msg, is_null_when_there_is_no_memory_for_it)
{
    cr_expect_null(bx_msg_create(SIZE_MAX));
    cr_expect_null(bx_msg_create(SIZE_MAX / 2));
}

/* Fills a message to each initial capacity, and then makes it grow twice. */
Test(msg, loses_no_byte_when_it_grows)
{
    unsigned char bytes[256];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 7 + 1);
    for (size_t room = 1; room < 100; room++) {
        OWN(msg) *msg = bx_msg_create(room);

        cr_assert_eq(bx_msg_put_bytes(msg, bytes, room), 0);
        cr_assert_eq(bx_msg_put_bytes(msg, bytes + room, 1), 0);
        cr_assert_eq(memcmp(bx_msg_data(msg), bytes, room + 1), 0, "room for %zu", room);
        cr_assert_eq(bx_msg_put_bytes(msg, bytes + room + 1, sizeof(bytes) - room - 1), 0);
        cr_assert_eq(memcmp(bx_msg_data(msg), bytes, sizeof(bytes)), 0, "room for %zu", room);
    }
}

Test(msg, refuses_bytes_if_the_sum_overflows_size_t)
{
    OWN(msg) *msg = bx_msg_create(0);

    cr_assert_eq(bx_msg_put_u64(msg, 1), 0);
    cr_expect_eq(bx_msg_put_bytes(msg, "x", SIZE_MAX - 3), -ENOMEM);
    cr_expect_eq(bx_msg_error(msg), -ENOMEM);
    cr_expect_eq(bx_msg_bytes(msg), 8);
}
