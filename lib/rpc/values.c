/* SPDX-License-Identifier: MIT */
/*
 * Calls in one line (boxcar_call.h): values with a kind go into a message and come out of one, as the letters of a
 * format say. Runs in the thread that calls.
 *
 * The format and all values are checked first, so a mistake of the program sends nothing. The arguments are written to
 * a message on the stack. Of a reply, all values are read before the first place is set; a text is copied and the
 * message keeps the rest until then, so a failure has nothing to undo but the copies.
 */
#include "rpc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#define ROOM_BYTES 256          /* of a message on the stack; what is longer gets memory of its own */

static const struct {
    char letter;
    const char *type;
    size_t place_bytes;         /* what it sets; 'b': as many as the program says */
} letters[32] = {
    ['i' & 31] = { 'i', "i64", sizeof(int64_t) },
    ['u' & 31] = { 'u', "u64", sizeof(uint64_t) },
    ['w' & 31] = { 'w', "i32", sizeof(int32_t) },
    ['d' & 31] = { 'd', "f64", sizeof(double) },
    ['f' & 31] = { 'f', "f32", sizeof(float) },
    ['s' & 31] = { 's', "text", sizeof(char *) },
    ['b' & 31] = { 'b', "number of bytes", 0 },
    ['T' & 31] = { 'T', "tensor", sizeof(struct bx_tensor *) },
    ['R' & 31] = { 'R', "reference", sizeof(struct bx_rref *) },
};

static const struct {
    int kind;
    const char *name;
} kinds_known[] = {
    { BX_VALUE_INT, "an integer" }, { BX_VALUE_UINT, "an integer" }, { BX_VALUE_LONG, "an integer" },
    { BX_VALUE_ULONG, "an integer" }, { BX_VALUE_REAL, "a real number" }, { BX_VALUE_TEXT, "a text" },
    { BX_VALUE_BYTES, "bytes" }, { BX_VALUE_TENSOR, "a tensor" }, { BX_VALUE_RREF, "a reference" },
    { BX_VALUE_TO_I64, "a place for an i64" }, { BX_VALUE_TO_U64, "a place for a u64" },
    { BX_VALUE_TO_I32, "a place for an i32" }, { BX_VALUE_TO_F64, "a place for an f64" },
    { BX_VALUE_TO_F32, "a place for an f32" }, { BX_VALUE_TO_TEXT, "a place for a text to free" },
    { BX_VALUE_TO_STR, "a place for a text of a message" }, { BX_VALUE_TO_BYTES, "a place for bytes" },
    { BX_VALUE_TO_TENSOR, "a place for a tensor" }, { BX_VALUE_TO_RREF, "a place for a reference" },
};

struct bx_view bx_bytes(const void *data, size_t bytes)
{
    return (struct bx_view){ .data = data, .bytes = bytes };
}

struct bx_space bx_into(void *data, size_t bytes)
{
    return (struct bx_space){ .data = data, .bytes = bytes };
}

/* ---- checking --------------------------------------------------------------------------------------- */

struct value {
    char letter;
    union {
        int64_t i64;
        uint64_t u64;
        double f64;
        const void *in;         /* a text, bytes */
        void *out;              /* a tensor, a reference, a place */
    } of;
    size_t bytes;               /* of a 'b' */
};

/* What stands behind a format: values, then places. */
struct values {
    const char *format;
    int side;                   /* of enum bxi_value_bit: what may stand here */
    int given;                  /* how many are values */
    int count;
    struct value at[BX_VALUES_MAX];
};

static bool has_places(const struct values *values)
{
    return values->side != BXI_GIVEN;
}

/* Why a letter and the kind of its value do not fit. */
static int refuse(const struct values *values, char letter, int kind)
{
    const char *name = "of no kind";

    if (letter != letters[letter & 31].letter)
        return bx_fail(-EINVAL, "the format \"%s\" has '%c', which is no letter of values here", values->format,
                       letter);
    if (values->count == BX_VALUES_MAX)
        return bx_fail(-EINVAL, "the format \"%s\" has more than %d letters", values->format, BX_VALUES_MAX);
    if (kind == BX_VALUE_END)
        return bx_fail(-EINVAL, "the format \"%s\" has more letters than there are values, %d", values->format,
                       values->count);
    for (size_t i = 0; i < sizeof kinds_known / sizeof *kinds_known; i++)
        if (kinds_known[i].kind == kind)
            name = kinds_known[i].name;
    return bx_fail(-EINVAL, "value %d of \"%s\" is %s, the format has %s%s", values->count + 1, values->format, name,
                   has_places(values) ? "a place, " : "", letters[letter & 31].type);
}

/* Takes the next argument. False: it is NULL. */
static bool take_argument(struct value *value, int kind, va_list *arguments)
{
    struct bx_view view;
    struct bx_space space;

    switch (kind) {
    case BX_VALUE_INT:
        value->of.i64 = va_arg(*arguments, int);
        return true;
    case BX_VALUE_UINT:
        value->of.u64 = va_arg(*arguments, unsigned int);
        return true;
    case BX_VALUE_LONG:
        value->of.i64 = va_arg(*arguments, int64_t);
        return true;
    case BX_VALUE_ULONG:
        value->of.u64 = va_arg(*arguments, uint64_t);
        return true;
    case BX_VALUE_REAL:
        value->of.f64 = va_arg(*arguments, double);
        return true;
    case BX_VALUE_BYTES:
        view = va_arg(*arguments, struct bx_view);
        value->of.in = view.data;
        value->bytes = view.bytes;
        return view.data != NULL || view.bytes == 0;
    case BX_VALUE_TO_BYTES:
        space = va_arg(*arguments, struct bx_space);
        value->of.out = space.data;
        value->bytes = space.bytes;
        return space.data != NULL || space.bytes == 0;
    default:
        value->of.out = va_arg(*arguments, void *);
        return value->of.out != NULL;
    }
}

/* Makes an integer what its letter says. False: it does not fit. */
static bool fit_integer(struct value *value, bool is_signed)
{
    switch (value->letter) {
    case 'i':
        return is_signed || value->of.u64 <= INT64_MAX;
    case 'u':
        return !is_signed || value->of.i64 >= 0;
    case 'w':
        return is_signed ? value->of.i64 >= INT32_MIN && value->of.i64 <= INT32_MAX : value->of.u64 <= INT32_MAX;
    default:
        value->of.f64 = is_signed ? (double)value->of.i64 : (double)value->of.u64;
        return true;
    }
}

static int add_value(struct values *values, char letter, int kind, va_list *arguments)
{
    struct value *value = &values->at[values->count];
    int bits = values->side | (int)(1u << (letter & 31));       /* of '?', too, and what else is no letter */

    if (letter != letters[letter & 31].letter || values->count == BX_VALUES_MAX || (kind & bits) != bits)
        return refuse(values, letter, kind);
    value->letter = letter;
    if (!take_argument(value, kind, arguments))
        return bx_fail(-EINVAL, "value %d of \"%s\" is NULL", values->count + 1, values->format);
    if ((kind & BX_VALUE_INT) == BX_VALUE_INT && !fit_integer(value, (kind & BXI_UNSIGNED) == 0))
        return bx_fail(-ERANGE, "value %d of \"%s\" does not fit %s", values->count + 1, values->format,
                       letters[letter & 31].type);
    values->count++;
    return 0;
}

/* Takes the arguments behind a format and checks them. sides: what may stand in it; with BXI_PLACE, behind a '>'. */
static int take_arguments(struct values *values, int sides, const int *kinds, const char *format, va_list *arguments)
{
    values->format = format;
    values->side = sides & ~BXI_PLACE;
    values->given = values->count = 0;
    if (format == NULL || kinds == NULL)
        return bxi_null("the call", format == NULL ? "the format" : "the kinds");
    for (const char *at = format; *at != '\0'; at++) {
        int rc;

        if (*at == '>' && (sides & BXI_PLACE) != 0 && values->side == BXI_GIVEN) {
            values->side = BXI_PLACE;
            values->given = values->count;
            continue;
        }
        rc = add_value(values, *at, kinds[values->count], arguments);
        if (rc < 0)
            return rc;
    }
    if (kinds[values->count] != BX_VALUE_END)
        return bx_fail(-EINVAL, "the format \"%s\" has %d letters, and there are more values", format, values->count);
    if (!has_places(values))
        values->given = values->count;
    return 0;
}

/* ---- into a message --------------------------------------------------------------------------------- */

static int put_value(struct bx_msg *msg, const struct value *value)
{
    switch (value->letter) {
    case 'i':
        return bx_msg_put_i64(msg, value->of.i64);
    case 'u':
        return bx_msg_put_u64(msg, value->of.u64);
    case 'w':
        return bx_msg_put_i32(msg, (int32_t)value->of.i64);
    case 'd':
        return bx_msg_put_f64(msg, value->of.f64);
    case 'f':
        return bx_msg_put_f32(msg, (float)value->of.f64);
    case 's':
        return bx_msg_put_str(msg, value->of.in);
    case 'b':
        return bx_msg_put_bytes(msg, value->of.in, value->bytes);
    case 'T':
        return bx_msg_put_tensor(msg, value->of.out);
    default:
        return bx_msg_put_rref(msg, value->of.out);
    }
}

/* An error is sticky: what is behind it is not written. */
static void put_values(struct bx_msg *msg, const struct values *values)
{
    for (int i = 0; i < values->given; i++)
        put_value(msg, &values->at[i]);
}

int bx_msg_put_typed(struct bx_msg *msg, const int *kinds, const char *format, ...)
{
    struct values values;
    va_list arguments;

    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    va_start(arguments, format);
    msg->error = take_arguments(&values, BXI_GIVEN, kinds, format, &arguments);
    va_end(arguments);
    if (msg->error == 0)
        put_values(msg, &values);
    return msg->error;
}

/* ---- out of a message ------------------------------------------------------------------------------- */

union got {
    int64_t i64;
    uint64_t u64;
    int32_t i32;
    double f64;
    float f32;
    const void *in;             /* a text or bytes of the message */
    char *text;                 /* a copy */
    void *object;
};

static void read_value(struct bx_reader *reader, const struct value *place, union got *got)
{
    switch (place->letter) {
    case 'i':
        got->i64 = bx_read_i64(reader);
        break;
    case 'u':
        got->u64 = bx_read_u64(reader);
        break;
    case 'w':
        got->i32 = bx_read_i32(reader);
        break;
    case 'd':
        got->f64 = bx_read_f64(reader);
        break;
    case 'f':
        got->f32 = bx_read_f32(reader);
        break;
    case 's':
        got->in = bx_read_str(reader);
        break;
    case 'b':
        got->in = bx_read_bytes(reader, place->bytes);
        break;
    case 'T':
        got->object = bx_read_tensor(reader);
        break;
    default:
        got->object = bx_read_rref(reader);
        break;
    }
}

static void set_place(const struct value *place, const union got *got, bool acquire)
{
    if (acquire && place->letter == 'T')
        bx_tensor_acquire(got->object);
    if (acquire && place->letter == 'R')
        bx_rref_acquire(got->object);
    if (place->letter != 'b')
        memcpy(place->of.out, got, letters[place->letter & 31].place_bytes);
    else if (place->bytes > 0)
        memcpy(place->of.out, got->in, place->bytes);
}

/* Replaces texts of the message by copies. 0, or -ENOMEM and there are none. */
static int copy_texts(const struct values *values, union got *got)
{
    for (int i = values->given; i < values->count; i++) {
        if (values->at[i].letter != 's' || (got[i].text = strdup(got[i].in)) != NULL)
            continue;
        while (--i >= values->given)
            if (values->at[i].letter == 's')
                free(got[i].text);
        return bx_fail(-ENOMEM, "no memory for a text of a reply");
    }
    return 0;
}

static int read_places(struct bx_reader *reader, const struct values *values, union got *got)
{
    for (int i = values->given; i < values->count; i++)
        read_value(reader, &values->at[i], &got[i]);
    return reader->error;
}

int bx_read_typed(struct bx_reader *reader, const int *kinds, const char *format, ...)
{
    struct values values;
    union got got[BX_VALUES_MAX];
    va_list arguments;
    int rc;

    if (reader == NULL)
        return bxi_null(__func__, "the reader");
    if (reader->error < 0)
        return reader->error;
    va_start(arguments, format);
    reader->error = take_arguments(&values, BXI_READ, kinds, format, &arguments);
    va_end(arguments);
    if (reader->error < 0)
        return reader->error;
    rc = read_places(reader, &values, got);
    for (int i = 0; rc == 0 && i < values.count; i++)
        set_place(&values.at[i], &got[i], false);
    return rc;
}

/* The values of a reply, which has no others. */
static int take_reply(const struct bx_msg *reply, const char *function, const struct values *values)
{
    struct bx_reader reader = bx_msg_reader(reply);
    union got got[BX_VALUES_MAX];
    int rc = read_places(&reader, values, got);

    if (rc < 0)
        return bx_fail(rc, "the reply of '%s' has less than \"%s\" reads: %s", bxi_brief(function).text,
                       values->format, bx_error_text());
    if (bx_reader_left(&reader) + reader.tensor_count + reader.rref_count > 0)
        return bx_fail(BX_E_LONG_MESSAGE,
                       "the reply of '%s' has more than \"%s\" reads: %zu bytes, %zu tensors, %zu references",
                       bxi_brief(function).text, values->format, bx_reader_left(&reader), reader.tensor_count,
                       reader.rref_count);
    if ((rc = copy_texts(values, got)) < 0)
        return rc;
    for (int i = values->given; i < values->count; i++)
        set_place(&values->at[i], &got[i], true);
    return 0;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* What is called: rref, or a function of `to`. */
struct callee {
    struct bx_job *job;
    const char *to;
    struct bxi_aim at;
};

static int find_object(struct bx_rref *rref, const char *function, struct callee *out)
{
    int rc = bxi_rref_check(rref, function);

    if (rc == 0)
        *out = (struct callee){ .job = bxi_rref_job(rref), .at.target = rref };
    return rc;
}

union stack_msg {
    struct bx_msg msg;
    unsigned char memory[sizeof(struct bx_msg) + ROOM_BYTES];
};

static const struct bxi_aim *aim_of(const struct callee *callee)
{
    return callee->at.target != NULL ? &callee->at : NULL;
}

static int call(const struct callee *callee, const char *function, const struct bx_call_options *options,
                const struct values *values)
{
    union stack_msg args;
    struct bx_msg *reply = NULL;
    int rc;

    put_values(bxi_msg_init(&args, ROOM_BYTES), values);
    rc = bxi_rpc_sync(callee->job, callee->to, aim_of(callee), function, &args.msg, options,
                      has_places(values) ? &reply : NULL);
    bxi_msg_fini(&args.msg);
    if (rc == 0 && has_places(values))
        rc = take_reply(reply, function, values);
    bx_msg_destroy(reply);
    return rc;
}

static int call_async(const struct callee *callee, const char *function, const struct bx_call_options *options,
                      const struct values *values, struct bx_future **future)
{
    union stack_msg args;
    int rc;

    put_values(bxi_msg_init(&args, ROOM_BYTES), values);
    rc = bxi_rpc_async(callee->job, callee->to, aim_of(callee), function, &args.msg, options, future);
    bxi_msg_fini(&args.msg);
    return rc;
}

int bx_call_typed(struct bx_job *job, const char *to, const char *function, const struct bx_call_options *options,
                  const int *kinds, const char *format, ...)
{
    struct callee callee = { .job = job, .to = to };
    struct values values;
    va_list arguments;
    int rc;

    va_start(arguments, format);
    rc = take_arguments(&values, BXI_GIVEN | BXI_PLACE, kinds, format, &arguments);
    va_end(arguments);
    return bxi_out(rc < 0 ? rc : call(&callee, function, options, &values));
}

int bx_rref_call_typed(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                       const int *kinds, const char *format, ...)
{
    struct callee callee;
    struct values values;
    va_list arguments;
    int rc = find_object(rref, __func__, &callee);

    if (rc < 0)
        return bxi_out(rc);
    va_start(arguments, format);
    rc = take_arguments(&values, BXI_GIVEN | BXI_PLACE, kinds, format, &arguments);
    va_end(arguments);
    return bxi_out(rc < 0 ? rc : call(&callee, method, options, &values));
}

int bx_call_async_typed(struct bx_job *job, const char *to, const char *function,
                        const struct bx_call_options *options, struct bx_future **future, const int *kinds,
                        const char *format, ...)
{
    struct callee callee = { .job = job, .to = to };
    struct values values;
    va_list arguments;
    int rc;

    va_start(arguments, format);
    rc = take_arguments(&values, BXI_GIVEN, kinds, format, &arguments);
    va_end(arguments);
    return bxi_out(rc < 0 ? rc : call_async(&callee, function, options, &values, future));
}

int bx_rref_call_async_typed(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                             struct bx_future **future, const int *kinds, const char *format, ...)
{
    struct callee callee;
    struct values values;
    va_list arguments;
    int rc = find_object(rref, __func__, &callee);

    if (rc < 0)
        return bxi_out(rc);
    va_start(arguments, format);
    rc = take_arguments(&values, BXI_GIVEN, kinds, format, &arguments);
    va_end(arguments);
    return bxi_out(rc < 0 ? rc : call_async(&callee, method, options, &values, future));
}
