/* SPDX-License-Identifier: MIT */
/*
 * boxcar_call.h - calls in one line, by a format. A part of boxcar.h, which includes it.
 */
#ifndef BOXCAR_H
#include "boxcar.h"
#elif !defined(BOXCAR_CALL_H)
#define BOXCAR_CALL_H

/* ---- Calls in one line --------------------------------------------------------------------------- */

/*
 * A call whose values are written in the call, with a format that has a letter for each:
 *
 *     int64_t sum;
 *     struct bx_tensor *model;
 *     int rc = bx_call(job, "worker1", "add", "ii>i", 40, 2, &sum);
 *     rc = bx_call(job, bx_rank(1), "push", "sT>T", "layer1", gradient, &model);
 *     rc = bx_rref_call(counter, "add", "i>i", 5, &sum);                     a method
 *
 * and a handler that reads and writes its values so:
 *
 *     int rc = bx_read(args, "ii", &a, &b);
 *     return rc < 0 ? rc : bx_msg_put(reply, "i", a + b);
 *
 * Letters before the '>' are the values sent, letters behind it the places for the values of the reply. A letter packs
 * what the function beside it packs, so the other side may use that:
 *
 *     letter  function            value               place
 *     i       bx_msg_put_i64      any integer         int64_t *
 *     u       bx_msg_put_u64      any integer >= 0    uint64_t *
 *     w       bx_msg_put_i32      any integer         int32_t *
 *     d       bx_msg_put_f64      any number          double *
 *     f       bx_msg_put_f32      any number          float *
 *     s       bx_msg_put_str      const char *        char **; const char ** for bx_read
 *     b       bx_msg_put_bytes    bx_bytes(p, n)      bx_into(p, n)
 *     T       bx_msg_put_tensor   struct bx_tensor *  struct bx_tensor **
 *     R       bx_msg_put_rref     struct bx_rref *    struct bx_rref **
 *
 * The format is a string literal; a call has at most BX_VALUES_MAX values. A value of a type that no letter has does
 * not compile. GCC that optimises, and clang from version 14 on, also refuse a value of another type than its letter,
 * too few and too many. What is not found then is found at run time, before anything is sent: -EINVAL with a sentence,
 * "value 3 of "ii>i" is a place for an i32, the format has an i64". -ERANGE: the integer does not fit.
 *
 * Places are set if the call returns 0, all of them. With a '>' the reply must have these values and nothing else: one
 * with fewer is BX_E_SHORT_MESSAGE, one with more BX_E_LONG_MESSAGE; the function has run all the same. Without a '>'
 * the reply is not read. What a call hands out is the caller's: a text is to be freed, a tensor and a reference to be
 * released.
 * bx_read leaves them to the message, as bx_read_str, bx_read_tensor and bx_read_rref do.
 *
 * bx_call and its like are macros, for C11 and C++11.
 */
#define BX_VALUES_MAX 16

/* What a value is. A macro finds it by the type; a program that makes its values at run time, such as a binding for
 * another language, sets it. BX_VALUE_TO_ is a place, TEXT a char **, STR a const char **. */
enum bx_value_kind {
    BX_VALUE_END = 0,       /* behind the last value */
    BX_VALUE_INT, BX_VALUE_UINT, BX_VALUE_REAL, BX_VALUE_TEXT, BX_VALUE_BYTES, BX_VALUE_TENSOR, BX_VALUE_RREF,
    BX_VALUE_TO_I64, BX_VALUE_TO_U64, BX_VALUE_TO_I32, BX_VALUE_TO_F64, BX_VALUE_TO_F32, BX_VALUE_TO_TEXT,
    BX_VALUE_TO_STR, BX_VALUE_TO_BYTES, BX_VALUE_TO_TENSOR, BX_VALUE_TO_RREF,
};
union bx_value_of {
    int64_t i64;            /* INT */
    uint64_t u64;           /* UINT */
    double f64;             /* REAL */
    const void *in;         /* TEXT, BYTES */
    void *out;              /* TENSOR, RREF, and places */
};
struct bx_value {
    enum bx_value_kind kind;
    union bx_value_of of;
    size_t bytes;           /* BYTES, TO_BYTES */
};

/* Returns bytes as a value of a call. They are packed without their number, so the reader must know it. */
struct bx_value bx_bytes(const void *data, size_t bytes);
/* Returns memory as a place for exactly so many bytes of a message, which are copied to it. */
struct bx_value bx_into(void *data, size_t bytes);

#ifdef BXI_MANUAL           /* macros: these are the types that they take */
/* Calls a function of a worker and waits for the reply, as bx_rpc_sync does. "Calls in one line" in
 * boxcar(7) has the letters of a format. bx_call_with takes options. Blocks.
 * Codes of bx_rpc_sync, and of the format: -EINVAL, -ERANGE; BX_E_SHORT_MESSAGE, BX_E_LONG_MESSAGE: the reply has
 * other values; -ENOMEM. */
int bx_call(struct bx_job *job, const char *to, const char *function, const char *format, ...);
int bx_call_with(struct bx_job *job, const char *to, const char *function, const struct bx_call_options *options,
                 const char *format, ...);

/* Begins a call, as bx_rpc_async does: *future is the caller's to release. The format has no places: the value is read
 * from bx_future_value. options may be NULL. Codes of bx_rpc_async, and of the format: -EINVAL, -ERANGE. */
int bx_call_async(struct bx_job *job, const char *to, const char *function, const struct bx_call_options *options,
                  struct bx_future **future, const char *format, ...);

/* Call a method on an object, as bx_rref_sync and bx_rref_async do. Codes of these, and of the format as bx_call. */
int bx_rref_call(struct bx_rref *rref, const char *method, const char *format, ...);
int bx_rref_call_with(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                      const char *format, ...);
int bx_rref_call_async(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                       struct bx_future **future, const char *format, ...);

/* Appends values to a message. Errors are sticky, as those of bx_msg_put_i64. -EINVAL, -ERANGE: the format and the
 * values do not match, and nothing is appended; -ENOMEM. */
int bx_msg_put(struct bx_msg *msg, const char *format, ...);

/* Reads values of a message: a letter for each place, no '>'. More values may follow. 0; BX_E_SHORT_MESSAGE, -EINVAL:
 * no place was set, and the reader has the error. */
int bx_read(struct bx_reader *reader, const char *format, ...);
#endif

/* Call a function with an array of values, as bx_call and bx_call_async do. These are the functions behind the macros:
 * values ends with one of kind BX_VALUE_END, format need not be a literal. */
int bx_call_values(struct bx_job *job, const char *to, const char *function,
                   const struct bx_call_options *options, const char *format, const struct bx_value *values);
int bx_call_values_async(struct bx_job *job, const char *to, const char *function,
                         const struct bx_call_options *options, const char *format, const struct bx_value *values,
                         struct bx_future **future);
/* Call a method with an array of values, as bx_rref_call and bx_rref_call_async do. */
int bx_rref_call_values(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                        const char *format, const struct bx_value *values);
int bx_rref_call_values_async(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                              const char *format, const struct bx_value *values, struct bx_future **future);
/* Appends an array of values to a message, as bx_msg_put does. */
int bx_msg_put_values(struct bx_msg *msg, const char *format, const struct bx_value *values);
/* Reads values of a message to an array of places, as bx_read does. */
int bx_read_values(struct bx_reader *reader, const char *format, const struct bx_value *places);

/* ---- How the macros work ------------------------------------------------------------------------- */

/* Not for programs. BXI_VALUE(x) makes a struct bx_value of x by its type, BXI_FITS(x) is a constant with the letters
 * of that type. BXI_EACH(m, format, a, b) is m(format, 1, a) m(format, 2, b). */

#define bx_call(job, to, function, ...) bx_call_with(job, to, function, BXI_NULL, __VA_ARGS__)
#define bx_call_with(job, to, function, options, ...) \
    (BXI_CHECK(CALL, __VA_ARGS__) \
         bx_call_values(job, to, function, options, BXI_VALUES(__VA_ARGS__)))
#define bx_call_async(job, to, function, options, future, ...) \
    (BXI_CHECK(PUT, __VA_ARGS__) \
         bx_call_values_async(job, to, function, options, BXI_VALUES(__VA_ARGS__), future))
#define bx_rref_call(rref, method, ...) bx_rref_call_with(rref, method, BXI_NULL, __VA_ARGS__)
#define bx_rref_call_with(rref, method, options, ...)                                                   \
    (BXI_CHECK(CALL, __VA_ARGS__) bx_rref_call_values(rref, method, options, BXI_VALUES(__VA_ARGS__)))
#define bx_rref_call_async(rref, method, options, future, ...)                                          \
    (BXI_CHECK(PUT, __VA_ARGS__)                                                                        \
     bx_rref_call_values_async(rref, method, options, BXI_VALUES(__VA_ARGS__), future))
#define bx_msg_put(msg, ...) (BXI_CHECK(PUT, __VA_ARGS__) bx_msg_put_values(msg, BXI_VALUES(__VA_ARGS__)))
#define bx_read(reader, ...) (BXI_CHECK(READ, __VA_ARGS__) bx_read_values(reader, BXI_VALUES(__VA_ARGS__)))

static inline struct bx_value bxi_value_int(int64_t value)
{
    struct bx_value made = { BX_VALUE_INT, { 0 }, 0 };
    made.of.i64 = value;
    return made;
}

static inline struct bx_value bxi_value_uint(uint64_t value)
{
    struct bx_value made = { BX_VALUE_UINT, { 0 }, 0 };
    made.of.u64 = value;
    return made;
}

static inline struct bx_value bxi_value_real(double value)
{
    struct bx_value made = { BX_VALUE_REAL, { 0 }, 0 };
    made.of.f64 = value;
    return made;
}

static inline struct bx_value bxi_value_float(float value)
{
#ifdef __cplusplus
    return bxi_value_real(static_cast<double>(value));
#else
    return bxi_value_real((double)value);
#endif
}

static inline struct bx_value bxi_value_text(const char *text)
{
    struct bx_value made = { BX_VALUE_TEXT, { 0 }, 0 };
    made.of.in = text;
    return made;
}

static inline struct bx_value bxi_value_same(struct bx_value value)
{
    return value;
}

#define BXI_POINTER(name, type, kind_of)                                                                \
    static inline struct bx_value bxi_value_##name(type pointer)                                        \
    {                                                                                                   \
        struct bx_value made = { kind_of, { 0 }, 0 };                                                   \
        made.of.out = pointer;                                                                          \
        return made;                                                                                    \
    }
BXI_POINTER(tensor, struct bx_tensor *, BX_VALUE_TENSOR)
BXI_POINTER(rref, struct bx_rref *, BX_VALUE_RREF)
BXI_POINTER(to_i64, void *, BX_VALUE_TO_I64)
BXI_POINTER(to_u64, void *, BX_VALUE_TO_U64)
BXI_POINTER(to_i32, int32_t *, BX_VALUE_TO_I32)
BXI_POINTER(to_f64, double *, BX_VALUE_TO_F64)
BXI_POINTER(to_f32, float *, BX_VALUE_TO_F32)
BXI_POINTER(to_text, char **, BX_VALUE_TO_TEXT)
BXI_POINTER(to_str, const char **, BX_VALUE_TO_STR)
BXI_POINTER(to_tensor, struct bx_tensor **, BX_VALUE_TO_TENSOR)
BXI_POINTER(to_rref, struct bx_rref **, BX_VALUE_TO_RREF)
#undef BXI_POINTER

/* Bit (letter & 63) for each letter of a type; bit 59 for a place of a call, 60 for a value, 61 for one of bx_read. */
#define BXI_FITS_INTEGER UINT64_C(0x10a0025000000000)       /* i u w d f */
#define BXI_FITS_REAL UINT64_C(0x1000005000000000)          /* d f */
#define BXI_FITS_TEXT UINT64_C(0x1008000000000000)          /* s */
#define BXI_FITS_TENSOR UINT64_C(0x1000000000100000)        /* T */
#define BXI_FITS_RREF UINT64_C(0x1000000000040000)          /* R */
#define BXI_FITS_TO_I64 UINT64_C(0x2800020000000000)        /* i */
#define BXI_FITS_TO_U64 UINT64_C(0x2820000000000000)        /* u */
#define BXI_FITS_TO_I32 UINT64_C(0x2880000000000000)        /* w */
#define BXI_FITS_TO_F64 UINT64_C(0x2800001000000000)        /* d */
#define BXI_FITS_TO_F32 UINT64_C(0x2800004000000000)        /* f */
#define BXI_FITS_TO_TEXT UINT64_C(0x0808000000000000)       /* s */
#define BXI_FITS_TO_STR UINT64_C(0x2008000000000000)        /* s */
#define BXI_FITS_TO_TENSOR UINT64_C(0x2800000000100000)     /* T */
#define BXI_FITS_TO_RREF UINT64_C(0x2800000000040000)       /* R */
#define BXI_FITS_ANY UINT64_C(0x38a8025400140000)           /* a struct bx_value */

#ifdef __cplusplus
#define BXI_NULL nullptr
extern "C++" {
template <uint64_t letters> struct bxi_type {
    static const uint64_t fits = letters;
};
#define BXI_OVERLOAD(type, function, letters) \
    inline struct bx_value bxi_value(type x) \
    { \
        return function(x); \
    } \
    bxi_type<letters> bxi_type_of(type x);
BXI_OVERLOAD(int, bxi_value_int, BXI_FITS_INTEGER)
BXI_OVERLOAD(long, bxi_value_int, BXI_FITS_INTEGER)
BXI_OVERLOAD(long long, bxi_value_int, BXI_FITS_INTEGER)
BXI_OVERLOAD(unsigned, bxi_value_uint, BXI_FITS_INTEGER)
BXI_OVERLOAD(unsigned long, bxi_value_uint, BXI_FITS_INTEGER)
BXI_OVERLOAD(unsigned long long, bxi_value_uint, BXI_FITS_INTEGER)
BXI_OVERLOAD(float, bxi_value_float, BXI_FITS_REAL)
BXI_OVERLOAD(double, bxi_value_real, BXI_FITS_REAL)
BXI_OVERLOAD(const char *, bxi_value_text, BXI_FITS_TEXT)
BXI_OVERLOAD(struct bx_tensor *, bxi_value_tensor, BXI_FITS_TENSOR)
BXI_OVERLOAD(struct bx_rref *, bxi_value_rref, BXI_FITS_RREF)
BXI_OVERLOAD(struct bx_value, bxi_value_same, BXI_FITS_ANY)
BXI_OVERLOAD(long *, bxi_value_to_i64, BXI_FITS_TO_I64)
BXI_OVERLOAD(long long *, bxi_value_to_i64, BXI_FITS_TO_I64)
BXI_OVERLOAD(unsigned long *, bxi_value_to_u64, BXI_FITS_TO_U64)
BXI_OVERLOAD(unsigned long long *, bxi_value_to_u64, BXI_FITS_TO_U64)
BXI_OVERLOAD(int *, bxi_value_to_i32, BXI_FITS_TO_I32)
BXI_OVERLOAD(double *, bxi_value_to_f64, BXI_FITS_TO_F64)
BXI_OVERLOAD(float *, bxi_value_to_f32, BXI_FITS_TO_F32)
BXI_OVERLOAD(char **, bxi_value_to_text, BXI_FITS_TO_TEXT)
BXI_OVERLOAD(const char **, bxi_value_to_str, BXI_FITS_TO_STR)
BXI_OVERLOAD(struct bx_tensor **, bxi_value_to_tensor, BXI_FITS_TO_TENSOR)
BXI_OVERLOAD(struct bx_rref **, bxi_value_to_rref, BXI_FITS_TO_RREF)
#undef BXI_OVERLOAD
/* The temporary array lives until the end of the whole expression. */
template <size_t count> inline const struct bx_value *bxi_array(const struct bx_value (&values)[count])
{
    return values;
}
}
#define BXI_FITS(x) decltype(bxi_type_of(x))::fits
#define BXI_VALUE(x) bxi_value(x)
#define BXI_ARRAY(...) bxi_array({ __VA_ARGS__ bxi_value_end() })
static inline struct bx_value bxi_value_end(void)
{
    struct bx_value made = { BX_VALUE_END, { 0 }, 0 };
    return made;
}
#else
#define BXI_NULL ((void *)0)
#define BXI_SELECT(x, integer, natural, real4, real8, same, text, name)                                 \
    _Generic((x), _Bool: integer, char: integer, signed char: integer, short: integer, int: integer,    \
             long: integer, long long: integer, unsigned char: natural, unsigned short: natural,        \
             unsigned: natural, unsigned long: natural, unsigned long long: natural, float: real4,      \
             double: real8, char *: text, const char *: text, struct bx_value: same,                    \
             struct bx_tensor *: name(tensor, TENSOR), struct bx_rref *: name(rref, RREF),              \
             long *: name(to_i64, TO_I64), long long *: name(to_i64, TO_I64),                           \
             unsigned long *: name(to_u64, TO_U64), unsigned long long *: name(to_u64, TO_U64),         \
             int *: name(to_i32, TO_I32), double *: name(to_f64, TO_F64), float *: name(to_f32, TO_F32), \
             char **: name(to_text, TO_TEXT), const char **: name(to_str, TO_STR),                      \
             struct bx_tensor **: name(to_tensor, TO_TENSOR), struct bx_rref **: name(to_rref, TO_RREF))
#define BXI_FUNCTION_OF(function, letters) bxi_value_##function
#define BXI_LETTERS_OF(function, letters) BXI_FITS_##letters
#define BXI_VALUE(x)                                                                                    \
    BXI_SELECT(x, bxi_value_int, bxi_value_uint, bxi_value_float, bxi_value_real, bxi_value_same,       \
               bxi_value_text, BXI_FUNCTION_OF)(x)
#define BXI_FITS(x) \
    BXI_SELECT(x, BXI_FITS_INTEGER, BXI_FITS_INTEGER, BXI_FITS_REAL, BXI_FITS_REAL, BXI_FITS_ANY, \
               BXI_FITS_TEXT, BXI_LETTERS_OF)
#define BXI_ARRAY(...) (const struct bx_value[]){ __VA_ARGS__ { BX_VALUE_END, { 0 }, 0 } }
#endif

#define BXI_ITEM(format, n, x) BXI_VALUE(x),
#define BXI_VALUES(...) BXI_FORMAT(__VA_ARGS__, ), BXI_ARRAY(BXI_EACH(BXI_ITEM, __VA_ARGS__))
#define BXI_FORMAT(format, ...) format

#define BXI_PICK(f, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, name, ...) name
#define BXI_EACH(m, ...)                                                                                \
    BXI_PICK(__VA_ARGS__, BXI_16, BXI_15, BXI_14, BXI_13, BXI_12, BXI_11, BXI_10, BXI_9, BXI_8, BXI_7,  \
             BXI_6, BXI_5, BXI_4, BXI_3, BXI_2, BXI_1, BXI_0, )(m, __VA_ARGS__)
#define BXI_0(m, f)
#define BXI_1(m, f, a) m(f, 1, a)
#define BXI_2(m, f, a, b) BXI_1(m, f, a) m(f, 2, b)
#define BXI_3(m, f, a, b, c) BXI_2(m, f, a, b) m(f, 3, c)
#define BXI_4(m, f, a, b, c, d) BXI_3(m, f, a, b, c) m(f, 4, d)
#define BXI_5(m, f, a, b, c, d, e) BXI_4(m, f, a, b, c, d) m(f, 5, e)
#define BXI_6(m, f, a, b, c, d, e, g) BXI_5(m, f, a, b, c, d, e) m(f, 6, g)
#define BXI_7(m, f, a, b, c, d, e, g, h) BXI_6(m, f, a, b, c, d, e, g) m(f, 7, h)
#define BXI_8(m, f, a, b, c, d, e, g, h, i) BXI_7(m, f, a, b, c, d, e, g, h) m(f, 8, i)
#define BXI_9(m, f, a, b, c, d, e, g, h, i, j) BXI_8(m, f, a, b, c, d, e, g, h, i) m(f, 9, j)
#define BXI_10(m, f, a, b, c, d, e, g, h, i, j, k) BXI_9(m, f, a, b, c, d, e, g, h, i, j) m(f, 10, k)
#define BXI_11(m, f, a, b, c, d, e, g, h, i, j, k, l) BXI_10(m, f, a, b, c, d, e, g, h, i, j, k) m(f, 11, l)
#define BXI_12(m, f, a, b, c, d, e, g, h, i, j, k, l, n)                                                \
    BXI_11(m, f, a, b, c, d, e, g, h, i, j, k, l) m(f, 12, n)
#define BXI_13(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o)                                             \
    BXI_12(m, f, a, b, c, d, e, g, h, i, j, k, l, n) m(f, 13, o)
#define BXI_14(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o, p)                                          \
    BXI_13(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o) m(f, 14, p)
#define BXI_15(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o, p, q)                                       \
    BXI_14(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o, p) m(f, 15, q)
#define BXI_16(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o, p, q, r)                                    \
    BXI_15(m, f, a, b, c, d, e, g, h, i, j, k, l, n, o, p, q) m(f, 16, r)

/* Whether a value fits its letter, as a constant that the compiler folds: a call of a function that must not be called
 * stays where it does not fit. GCC folds it when it optimises. */
#define BXI_PAD "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define BXI_IS_AT(f, at) ((f BXI_PAD)[at] == '>')
#define BXI_HAS_1(f) BXI_IS_AT(f, 0)
#define BXI_HAS_2(f) (BXI_HAS_1(f) || BXI_IS_AT(f, 1))
#define BXI_HAS_3(f) (BXI_HAS_2(f) || BXI_IS_AT(f, 2))
#define BXI_HAS_4(f) (BXI_HAS_3(f) || BXI_IS_AT(f, 3))
#define BXI_HAS_5(f) (BXI_HAS_4(f) || BXI_IS_AT(f, 4))
#define BXI_HAS_6(f) (BXI_HAS_5(f) || BXI_IS_AT(f, 5))
#define BXI_HAS_7(f) (BXI_HAS_6(f) || BXI_IS_AT(f, 6))
#define BXI_HAS_8(f) (BXI_HAS_7(f) || BXI_IS_AT(f, 7))
#define BXI_HAS_9(f) (BXI_HAS_8(f) || BXI_IS_AT(f, 8))
#define BXI_HAS_10(f) (BXI_HAS_9(f) || BXI_IS_AT(f, 9))
#define BXI_HAS_11(f) (BXI_HAS_10(f) || BXI_IS_AT(f, 10))
#define BXI_HAS_12(f) (BXI_HAS_11(f) || BXI_IS_AT(f, 11))
#define BXI_HAS_13(f) (BXI_HAS_12(f) || BXI_IS_AT(f, 12))
#define BXI_HAS_14(f) (BXI_HAS_13(f) || BXI_IS_AT(f, 13))
#define BXI_HAS_15(f) (BXI_HAS_14(f) || BXI_IS_AT(f, 14))
#define BXI_HAS_16(f) (BXI_HAS_15(f) || BXI_IS_AT(f, 15))
#define BXI_HAS_17(f) (BXI_HAS_16(f) || BXI_IS_AT(f, 16))
#define BXI_HAS_ANY(...)                                                                                \
    BXI_PICK(__VA_ARGS__, BXI_HAS_17, BXI_HAS_16, BXI_HAS_15, BXI_HAS_14, BXI_HAS_13, BXI_HAS_12,       \
             BXI_HAS_11, BXI_HAS_10, BXI_HAS_9, BXI_HAS_8, BXI_HAS_7, BXI_HAS_6, BXI_HAS_5, BXI_HAS_4,  \
             BXI_HAS_3, BXI_HAS_2, BXI_HAS_1, )(BXI_FORMAT(__VA_ARGS__, ))
#define BXI_COUNT(...) BXI_PICK(__VA_ARGS__, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, )
#define BXI_SIZE(...) (sizeof(BXI_FORMAT(__VA_ARGS__, ) "") - 1)
#define BXI_FIT(f, at, side, x) (BXI_FITS(x) >> ((f BXI_PAD)[at] & 63) & BXI_FITS(x) >> (side) & 1)

#if defined(__has_attribute)
#if __has_attribute(error)
#define BXI_WRONG(n)                                                                                    \
    void bxi_value_##n(void) __attribute__((error("value " #n " does not fit its letter in the format")));
BXI_WRONG(1) BXI_WRONG(2) BXI_WRONG(3) BXI_WRONG(4)
BXI_WRONG(5) BXI_WRONG(6) BXI_WRONG(7) BXI_WRONG(8)
BXI_WRONG(9) BXI_WRONG(10) BXI_WRONG(11) BXI_WRONG(12)
BXI_WRONG(13) BXI_WRONG(14) BXI_WRONG(15) BXI_WRONG(16)
#undef BXI_WRONG
void bxi_values(void) __attribute__((error("the format has more letters than there are values")));
#define BXI_MUST(fits, wrong) (void)(__builtin_constant_p(fits) && !(fits) ? wrong() : (void)0),
#endif
#endif
#ifndef BXI_MUST
#define BXI_MUST(fits, wrong)
#endif
#define BXI_TRY_CALL(f, n, x) BXI_MUST(BXI_FIT(f, n - 1 + BXI_HAS_##n(f), 60 - BXI_HAS_##n(f), x), bxi_value_##n)
#define BXI_TRY_PUT(f, n, x) BXI_MUST(BXI_FIT(f, n - 1, 60, x), bxi_value_##n)
#define BXI_TRY_READ(f, n, x) BXI_MUST(BXI_FIT(f, n - 1, 61, x), bxi_value_##n)
#define BXI_MORE_CALL(...) BXI_HAS_ANY(__VA_ARGS__)
#define BXI_MORE_PUT(...) 0
#define BXI_MORE_READ(...) 0
#define BXI_CHECK(way, ...)                                                                             \
    BXI_EACH(BXI_TRY_##way, __VA_ARGS__)                                                                \
    BXI_MUST(BXI_SIZE(__VA_ARGS__) <= BXI_COUNT(__VA_ARGS__) + (BXI_MORE_##way(__VA_ARGS__) ? 1u : 0u), bxi_values)

#endif
