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
 * "value 3 of "ii>i" is a place for an i32, the format has a place, i64". -ERANGE: the integer does not fit.
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

/* Bytes as a value, and memory as a place, of a call. */
struct bx_view {
    const void *data;
    size_t bytes;
};
struct bx_space {
    void *data;
    size_t bytes;
};

/* Returns bytes as a value of a call. They are packed without their number, so the reader must know it. */
struct bx_view bx_bytes(const void *data, size_t bytes);
/* Returns memory as a place for exactly so many bytes of a message, which are copied to it. */
struct bx_space bx_into(void *data, size_t bytes);

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

/* Do what bx_call and its like do, for formats that are no literals. These are the functions behind the macros, which
 * give them the kinds of what follows the format. kinds ends with BX_VALUE_END; what follows the format has the types
 * of its kinds. Codes as bx_call; -EINVAL: format and kinds do not match. */
int bx_call_typed(struct bx_job *job, const char *to, const char *function, const struct bx_call_options *options,
                  const int *kinds, const char *format, ...);
int bx_call_async_typed(struct bx_job *job, const char *to, const char *function,
                        const struct bx_call_options *options, struct bx_future **future, const int *kinds,
                        const char *format, ...);
int bx_rref_call_typed(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                       const int *kinds, const char *format, ...);
int bx_rref_call_async_typed(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                             struct bx_future **future, const int *kinds, const char *format, ...);
int bx_msg_put_typed(struct bx_msg *msg, const int *kinds, const char *format, ...);
int bx_read_typed(struct bx_reader *reader, const int *kinds, const char *format, ...);

/* The kind of a value is a set of bits: one for each letter that it fits, and where it may stand: before the '>',
 * behind it, in bx_read. Kinds of integers differ by two bits more. */
enum bxi_value_bit {
    BXI_GIVEN = 1 << 1, BXI_PLACE = 1 << 3, BXI_READ = 1 << 5, BXI_LONG = 1 << 7, BXI_UNSIGNED = 1 << 8,
    BXI_AS_I = 1 << ('i' & 31), BXI_AS_U = 1 << ('u' & 31), BXI_AS_W = 1 << ('w' & 31), BXI_AS_D = 1 << ('d' & 31),
    BXI_AS_F = 1 << ('f' & 31), BXI_AS_S = 1 << ('s' & 31), BXI_AS_B = 1 << ('b' & 31), BXI_AS_T = 1 << ('T' & 31),
    BXI_AS_R = 1 << ('R' & 31)
};
enum bx_value_kind {                                                                        /* is passed as */
    BX_VALUE_END = 1,                                                                       /* nothing */
    BX_VALUE_INT = BXI_GIVEN | BXI_AS_I | BXI_AS_U | BXI_AS_W | BXI_AS_D | BXI_AS_F,        /* int */
    BX_VALUE_UINT = BX_VALUE_INT | BXI_UNSIGNED,                                            /* unsigned */
    BX_VALUE_LONG = BX_VALUE_INT | BXI_LONG,                                                /* int64_t */
    BX_VALUE_ULONG = BX_VALUE_INT | BXI_LONG | BXI_UNSIGNED,                                /* uint64_t */
    BX_VALUE_REAL = BXI_GIVEN | BXI_AS_D | BXI_AS_F,                                        /* double */
    BX_VALUE_TEXT = BXI_GIVEN | BXI_AS_S,                                                   /* const char * */
    BX_VALUE_BYTES = BXI_GIVEN | BXI_AS_B,                                                  /* struct bx_view */
    BX_VALUE_TENSOR = BXI_GIVEN | BXI_AS_T,                                                 /* struct bx_tensor * */
    BX_VALUE_RREF = BXI_GIVEN | BXI_AS_R,                                                   /* struct bx_rref * */
    BX_VALUE_TO_I64 = BXI_PLACE | BXI_READ | BXI_AS_I,                                      /* int64_t * */
    BX_VALUE_TO_U64 = BXI_PLACE | BXI_READ | BXI_AS_U,                                      /* uint64_t * */
    BX_VALUE_TO_I32 = BXI_PLACE | BXI_READ | BXI_AS_W,                                      /* int32_t * */
    BX_VALUE_TO_F64 = BXI_PLACE | BXI_READ | BXI_AS_D,                                      /* double * */
    BX_VALUE_TO_F32 = BXI_PLACE | BXI_READ | BXI_AS_F,                                      /* float * */
    BX_VALUE_TO_TEXT = BXI_PLACE | BXI_AS_S,                                                /* char ** */
    BX_VALUE_TO_STR = BXI_READ | BXI_AS_S,                                                  /* const char ** */
    BX_VALUE_TO_BYTES = BXI_PLACE | BXI_READ | BXI_AS_B,                                    /* struct bx_space */
    BX_VALUE_TO_TENSOR = BXI_PLACE | BXI_READ | BXI_AS_T,                                   /* struct bx_tensor ** */
    BX_VALUE_TO_RREF = BXI_PLACE | BXI_READ | BXI_AS_R                                      /* struct bx_rref ** */
};

/* ---- How the macros work ------------------------------------------------------------------------- */

/* Not for programs. BXI_KIND(x) is the kind of x, by its type. BXI_VALUES(m, format, a, b) is m with bxi_none in place
 * of values that are not there, as many as there may be. BXI_CHECK is nothing, or a call of a function that must not be
 * called: the compiler folds it. */

#define bx_call(job, to, function, ...) bx_call_with(job, to, function, BXI_NULL, __VA_ARGS__)
#define bx_call_with(job, to, function, options, ...)                                                   \
    (BXI_CHECK(BXI_GIVEN, BXI_PLACE, __VA_ARGS__)                                                       \
     bx_call_typed(job, to, function, options, BXI_KINDS(__VA_ARGS__), __VA_ARGS__))
#define bx_call_async(job, to, function, options, future, ...)                                          \
    (BXI_CHECK(BXI_GIVEN, 0, __VA_ARGS__)                                                               \
     bx_call_async_typed(job, to, function, options, future, BXI_KINDS(__VA_ARGS__), __VA_ARGS__))
#define bx_rref_call(rref, method, ...) bx_rref_call_with(rref, method, BXI_NULL, __VA_ARGS__)
#define bx_rref_call_with(rref, method, options, ...)                                                   \
    (BXI_CHECK(BXI_GIVEN, BXI_PLACE, __VA_ARGS__)                                                       \
     bx_rref_call_typed(rref, method, options, BXI_KINDS(__VA_ARGS__), __VA_ARGS__))
#define bx_rref_call_async(rref, method, options, future, ...)                                          \
    (BXI_CHECK(BXI_GIVEN, 0, __VA_ARGS__)                                                               \
     bx_rref_call_async_typed(rref, method, options, future, BXI_KINDS(__VA_ARGS__), __VA_ARGS__))
#define bx_msg_put(msg, ...)                                                                            \
    (BXI_CHECK(BXI_GIVEN, 0, __VA_ARGS__) bx_msg_put_typed(msg, BXI_KINDS(__VA_ARGS__), __VA_ARGS__))
#define bx_read(reader, ...)                                                                            \
    (BXI_CHECK(BXI_READ, 0, __VA_ARGS__) bx_read_typed(reader, BXI_KINDS(__VA_ARGS__), __VA_ARGS__))

extern struct bxi_none *const bxi_none;     /* declared for its type alone */
#define BXI_TYPES(X)                                                                                    \
    X(int, INT) X(unsigned, UINT) X(long, LONG) X(unsigned long, ULONG) X(long long, LONG)              \
    X(unsigned long long, ULONG) X(float, REAL) X(double, REAL) X(const char *, TEXT)                   \
    X(struct bx_view, BYTES) X(struct bx_tensor *, TENSOR) X(struct bx_rref *, RREF)                    \
    X(long *, TO_I64) X(long long *, TO_I64) X(unsigned long *, TO_U64) X(unsigned long long *, TO_U64) \
    X(int *, TO_I32) X(double *, TO_F64) X(float *, TO_F32) X(char **, TO_TEXT)                         \
    X(const char **, TO_STR) X(struct bx_space, TO_BYTES) X(struct bx_tensor **, TO_TENSOR)             \
    X(struct bx_rref **, TO_RREF) X(struct bxi_none *, END)

#ifdef __cplusplus
#define BXI_NULL nullptr
extern "C++" {
template <int kind> struct bxi_kind {
    static const int is = kind;
};
#define BXI_TYPE(type, kind) bxi_kind<BX_VALUE_##kind> bxi_kind_of(type value);
BXI_TYPES(BXI_TYPE)
/* The temporary array lives until the end of the whole expression. */
template <size_t count> inline const int *bxi_array(const int (&kinds)[count])
{
    return kinds;
}
}
#define BXI_KIND(x) decltype(bxi_kind_of(x))::is
#define BXI_ARRAY(...) bxi_array({ __VA_ARGS__ })
#else
#define BXI_NULL ((void *)0)
#define BXI_TYPE(type, kind) type: BX_VALUE_##kind,
#define BXI_KIND(x)                                                                                     \
    _Generic((x), BXI_TYPES(BXI_TYPE) _Bool: BX_VALUE_INT, char: BX_VALUE_INT, signed char: BX_VALUE_INT, \
             unsigned char: BX_VALUE_INT, short: BX_VALUE_INT, unsigned short: BX_VALUE_INT,            \
             char *: BX_VALUE_TEXT)
#define BXI_ARRAY(...) (const int[]){ __VA_ARGS__ }
#endif

#define BXI_VALUES(m, ...)                                                                              \
    m(__VA_ARGS__, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, \
      bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, bxi_none, )
#define BXI_KINDS(...) BXI_VALUES(BXI_KINDS_OF, __VA_ARGS__)
#define BXI_KINDS_OF(f, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, ...)                         \
    BXI_ARRAY(BXI_KIND(a), BXI_KIND(b), BXI_KIND(c), BXI_KIND(d), BXI_KIND(e), BXI_KIND(g), BXI_KIND(h), \
              BXI_KIND(i), BXI_KIND(j), BXI_KIND(k), BXI_KIND(l), BXI_KIND(m), BXI_KIND(n), BXI_KIND(o), \
              BXI_KIND(p), BXI_KIND(q), BXI_KIND(r))

#if defined(__has_attribute)
#if __has_attribute(error)
/* True if the n-th value is behind the '>'; its letter, or 0; the bits that its kind must have. GCC folds them if it
 * optimises, the number of letters always. */
#define BXI_ZEROS "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define BXI_IS_BEHIND(f, n) (__builtin_memchr(f BXI_ZEROS, '>', n) != BXI_NULL)
#define BXI_LETTER(f, n) ((f BXI_ZEROS)[n - 1 + BXI_IS_BEHIND(f, n)])
#define BXI_BITS(before, behind, f, n)                                                                  \
    (1 << (BXI_LETTER(f, n) & 31) | (BXI_LETTER(f, n) == 0 ? 0 : BXI_IS_BEHIND(f, n) ? behind : before))
void bxi_value_wrong(void) __attribute__((error("a value does not fit its letter in the format, or is missing")));
#define BXI_MUST(before, behind, f, n, x)                                                               \
    (void)((sizeof(f) > n + 1u && BXI_KIND(x) == BX_VALUE_END) ||                                       \
           (__builtin_constant_p(BXI_BITS(before, behind, f, n)) &&                                     \
            (BXI_BITS(before, behind, f, n) & ~BXI_KIND(x)) != 0) ? bxi_value_wrong() : (void)0),
#define BXI_CHECK(...) BXI_VALUES(BXI_CHECK_OF, __VA_ARGS__)
#define BXI_CHECK_OF(u, v, f, a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, ...)                   \
    BXI_MUST(u, v, f, 1, a) BXI_MUST(u, v, f, 2, b) BXI_MUST(u, v, f, 3, c) BXI_MUST(u, v, f, 4, d)     \
    BXI_MUST(u, v, f, 5, e) BXI_MUST(u, v, f, 6, g) BXI_MUST(u, v, f, 7, h) BXI_MUST(u, v, f, 8, i)     \
    BXI_MUST(u, v, f, 9, j) BXI_MUST(u, v, f, 10, k) BXI_MUST(u, v, f, 11, l) BXI_MUST(u, v, f, 12, m)  \
    BXI_MUST(u, v, f, 13, n) BXI_MUST(u, v, f, 14, o) BXI_MUST(u, v, f, 15, p) BXI_MUST(u, v, f, 16, q) \
    BXI_MUST(u, v, f, 17, r)
#endif
#endif
#ifndef BXI_CHECK
#define BXI_CHECK(...)
#endif

#endif
