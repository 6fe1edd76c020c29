/* SPDX-License-Identifier: MIT */
/*
 * What the tests of BX_CHECKED share: messages written by letters, a handler that wants an i64 and answers an f64, and
 * calls of it.
 */
#ifndef TESTS_CHECKED_FIXTURE_H
#define TESTS_CHECKED_FIXTURE_H

#include "tests/rref/rref_fixture.h"

#include "rpc/rpc.h"

static inline void check(void)
{
    bxi_checked = true;
}

/* Puts values by letters: i32 i, i64 l, u64 u, f64 d, f32 f, str s, three f32s 3, else four bytes. */
static inline void put_letters(struct bx_msg *msg, const char *letters)
{
    static const float floats[3] = { 1, 2, 3 };

    for (; *letters != '\0'; letters++)
        switch (*letters) {
        case 'i': bx_msg_put_i32(msg, 1); break;
        case 'l': bx_msg_put_i64(msg, 1); break;
        case 'u': bx_msg_put_u64(msg, 1); break;
        case 'd': bx_msg_put_f64(msg, 1); break;
        case 'f': bx_msg_put_f32(msg, 1); break;
        case 's': bx_msg_put_str(msg, "abc"); break;
        case '3': bx_msg_put_f32s(msg, floats, 3); break;
        default: bx_msg_put_bytes(msg, "\4\0\0\0", 4); break;
        }
}

#define WRONG "value 1 of the message, at byte 0, was written by bx_msg_put_f64 and is read by bx_read_i64"

/* Its caller sends an f64, or an i64. The answer is an f64. */
static inline int wants_i64(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply,
                            void *context)
{
    (void)request, (void)context;
    bx_read_i64(args);
    return bx_msg_put_f64(reply, 2.5);
}

/* The answer has an f64 at pos, and knows it. */
static inline void expect_f64(const struct bx_msg *reply, size_t pos)
{
    struct bx_reader reader = bx_msg_reader(reply), wrong;

    bx_read_bytes(&reader, pos);
    wrong = reader;
    HARNESS_CHECK(bx_read_f64(&reader) == 2.5);
    HARNESS_EQ(bx_reader_left(&reader), 0);
    bx_read_i64(&wrong);
    HARNESS_EQ(wrong.error, BX_E_TYPE);
    HARNESS_HAS(bx_error_text(), "was written by bx_msg_put_f64 and is read by bx_read_i64");
}

/* Sends an i64, and then an f64. */
static inline void call_both(struct bx_job *job, const char *to, const char *function)
{
    char said[200];
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;

    bx_msg_put_i64(args, 1);
    HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, &reply), 0);
    expect_f64(reply, 0);
    bx_msg_destroy(reply);
    bx_msg_clear(args);
    bx_msg_put_f64(args, 1.5);
    HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, NULL), BX_E_TYPE);
    snprintf(said, sizeof(said), "worker '%s', function '%s': " WRONG, to, function);
    HARNESS_HAS(bx_error_text(), said);
    bx_msg_destroy(args);
}

#endif
