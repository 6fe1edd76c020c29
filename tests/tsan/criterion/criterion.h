/* SPDX-License-Identifier: MIT */
/*
 * As much of Criterion's interface as the tests use, for ThreadSanitizer, under which Criterion 2.4 does not start, and
 * for machines that have no Criterion (build/gpu/unit). CONFIG=tsan finds this file in place of the real one, as a
 * system header. criterion.c runs the tests.
 */
#ifndef TESTS_TSAN_CRITERION_H
#define TESTS_TSAN_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct tsan_test {
    const char *suite;
    const char *name;           /* NULL: these are the defaults of a suite */
    void (*run)(void);
    void (*init)(void);
    void (*fini)(void);
    double timeout;             /* seconds */
    bool disabled;
    struct tsan_test *next;
};

void tsan_test_register(struct tsan_test *test);
void tsan_test_failed(const char *place, bool fatal, const char *text, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void tsan_test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define TSAN_TEXT_(x) #x
#define TSAN_TEXT(x) TSAN_TEXT_(x)
#define TSAN_PLACE __FILE__ ":" TSAN_TEXT(__LINE__)

#define TSAN_REGISTER(id, ...)                                                                      \
    __attribute__((constructor)) static void id##_register(void)                                    \
    {                                                                                               \
        static struct tsan_test test = { __VA_ARGS__ };                                             \
                                                                                                    \
        tsan_test_register(&test);                                                                  \
    }
#define Test(suite_, name_, ...)                                                                    \
    static void tsan_##suite_##_##name_(void);                                                      \
    TSAN_REGISTER(tsan_##suite_##_##name_, .suite = #suite_, .name = #name_,                        \
                  .run = tsan_##suite_##_##name_, __VA_ARGS__)                                      \
    static void tsan_##suite_##_##name_(void)
/* Stands before a semicolon, as Criterion's. */
#define TestSuite(suite_, ...)                                                                      \
    TSAN_REGISTER(tsan_suite_##suite_, .suite = #suite_, __VA_ARGS__) struct tsan_test

/* Behind what a check compares stands nothing, or a format and its arguments. */
#define TSAN_CHECK(fatal, condition, text, ...)                                                     \
    ((condition) ? (void)0 : tsan_test_failed(TSAN_PLACE, fatal, text, "" __VA_ARGS__))
#define TSAN_COMPARE(fatal, a, op, b, ...) TSAN_CHECK(fatal, (a) op (b), #a " " #op " " #b, __VA_ARGS__)

#define cr_skip_test(...) tsan_test_skip("" __VA_ARGS__)
#define cr_skip(...) cr_skip_test(__VA_ARGS__)
#define cr_assert_fail(...) tsan_test_failed(TSAN_PLACE, true, "reached", "" __VA_ARGS__)
#define cr_assert(a, ...) TSAN_CHECK(true, a, #a, __VA_ARGS__)
#define cr_expect(a, ...) TSAN_CHECK(false, a, #a, __VA_ARGS__)
#define cr_assert_not(a, ...) TSAN_CHECK(true, !(a), "not " #a, __VA_ARGS__)
#define cr_expect_not(a, ...) TSAN_CHECK(false, !(a), "not " #a, __VA_ARGS__)
#define cr_assert_null(a, ...) TSAN_COMPARE(true, a, ==, NULL, __VA_ARGS__)
#define cr_expect_null(a, ...) TSAN_COMPARE(false, a, ==, NULL, __VA_ARGS__)
#define cr_assert_not_null(a, ...) TSAN_COMPARE(true, a, !=, NULL, __VA_ARGS__)
#define cr_expect_not_null(a, ...) TSAN_COMPARE(false, a, !=, NULL, __VA_ARGS__)
#define cr_assert_eq(a, b, ...) TSAN_COMPARE(true, a, ==, b, __VA_ARGS__)
#define cr_expect_eq(a, b, ...) TSAN_COMPARE(false, a, ==, b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...) TSAN_COMPARE(true, a, !=, b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...) TSAN_COMPARE(false, a, !=, b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...) TSAN_COMPARE(true, a, <, b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...) TSAN_COMPARE(false, a, <, b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...) TSAN_COMPARE(true, a, <=, b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...) TSAN_COMPARE(false, a, <=, b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...) TSAN_COMPARE(true, a, >, b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...) TSAN_COMPARE(false, a, >, b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...) TSAN_COMPARE(true, a, >=, b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...) TSAN_COMPARE(false, a, >=, b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) TSAN_CHECK(true, strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...) TSAN_CHECK(false, strcmp(a, b) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) TSAN_CHECK(true, strcmp(a, b) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_expect_str_neq(a, b, ...) TSAN_CHECK(false, strcmp(a, b) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...) TSAN_CHECK(true, memcmp(a, b, bytes) == 0, #a " is " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, bytes, ...) TSAN_CHECK(false, memcmp(a, b, bytes) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, bytes, ...) TSAN_CHECK(true, memcmp(a, b, bytes) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_expect_arr_neq(a, b, bytes, ...) TSAN_CHECK(false, memcmp(a, b, bytes) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, by, ...) TSAN_CHECK(true, fabs((a) - (b)) <= (by), #a " is " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, by, ...) TSAN_CHECK(false, fabs((a) - (b)) <= (by), #a " is " #b, __VA_ARGS__)

#endif
