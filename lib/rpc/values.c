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
#include <stdlib.h>

#define ROOM_BYTES 256          /* of a message on the stack; what is longer gets memory of its own */

enum way { CALL, PUT, READ };

#define KIND(kind) (UINT32_C(1) << BX_VALUE_##kind)

/* Kinds that a letter takes as value, as a place of a call, and as a place of bx_read. */
static const struct letter {
    char letter;
    const char *name;
    uint32_t values;
    uint32_t places[3];
} letters[] = {
    { 'i', "i64", KIND(INT) | KIND(UINT), { KIND(TO_I64), 0, KIND(TO_I64) } },
    { 'u', "u64", KIND(INT) | KIND(UINT), { KIND(TO_U64), 0, KIND(TO_U64) } },
    { 'w', "i32", KIND(INT) | KIND(UINT), { KIND(TO_I32), 0, KIND(TO_I32) } },
    { 'd', "f64", KIND(INT) | KIND(UINT) | KIND(REAL), { KIND(TO_F64), 0, KIND(TO_F64) } },
    { 'f', "f32", KIND(INT) | KIND(UINT) | KIND(REAL), { KIND(TO_F32), 0, KIND(TO_F32) } },
    { 's', "text", KIND(TEXT), { KIND(TO_TEXT), 0, KIND(TO_STR) } },
    { 'b', "number of bytes", KIND(BYTES), { KIND(TO_BYTES), 0, KIND(TO_BYTES) } },
    { 'T', "tensor", KIND(TENSOR), { KIND(TO_TENSOR), 0, KIND(TO_TENSOR) } },
    { 'R', "reference", KIND(RREF), { KIND(TO_RREF), 0, KIND(TO_RREF) } },
};

static const char *const kinds[] = {
    [BX_VALUE_INT] = "an integer", [BX_VALUE_UINT] = "an integer", [BX_VALUE_REAL] = "a real number",
    [BX_VALUE_TEXT] = "a text", [BX_VALUE_BYTES] = "bytes", [BX_VALUE_TENSOR] = "a tensor",
    [BX_VALUE_RREF] = "a reference", [BX_VALUE_TO_I64] = "a place for an i64",
    [BX_VALUE_TO_U64] = "a place for a u64", [BX_VALUE_TO_I32] = "a place for an i32",
    [BX_VALUE_TO_F64] = "a place for an f64", [BX_VALUE_TO_F32] = "a place for an f32",
    [BX_VALUE_TO_TEXT] = "a place for a text to free", [BX_VALUE_TO_STR] = "a place for a text of a message",
    [BX_VALUE_TO_BYTES] = "a place for bytes", [BX_VALUE_TO_TENSOR] = "a place for a tensor",
    [BX_VALUE_TO_RREF] = "a place for a reference",
};
#define KINDS (sizeof kinds / sizeof *kinds)

struct bx_value bx_bytes(const void *data, size_t bytes)
{
    return (struct bx_value){ .kind = BX_VALUE_BYTES, .of.in = data, .bytes = bytes };
}

struct bx_value bx_into(void *data, size_t bytes)
{
    return (struct bx_value){ .kind = BX_VALUE_TO_BYTES, .of.out = data, .bytes = bytes };
}

/* ---- checking --------------------------------------------------------------------------------------- */

/* What the check found: the letters without the '>'. The first `given` are of values, the others of places. */
struct checked {
    char letter[BX_VALUES_MAX];
    int given;
    int count;
    bool has_places;            /* there is a '>' */
};

static bool fits_integer(char letter, const struct bx_value *value)
{
    bool is_signed = value->kind == BX_VALUE_INT;

    if (letter == 'i')
        return is_signed || value->of.u64 <= INT64_MAX;
    if (letter == 'u')
        return !is_signed || value->of.i64 >= 0;
    if (letter == 'w')
        return is_signed ? value->of.i64 >= INT32_MIN && value->of.i64 <= INT32_MAX : value->of.u64 <= INT32_MAX;
    return true;
}

static int check_value(const char *format, int number, const struct letter *letter, uint32_t wanted,
                       const struct bx_value *value)
{
    uint32_t kind = (uint32_t)value->kind;
    bool is_place = wanted != letter->values;

    if (kind >= KINDS || (wanted >> kind & 1) == 0)
        return bx_fail(-EINVAL, "value %d of \"%s\" is %s, the format has %s%s", number, format,
                       kind > 0 && kind < KINDS ? kinds[kind] : "of no kind", is_place ? "a place, " : "",
                       letter->name);
    if (kind >= BX_VALUE_TEXT && value->of.in == NULL &&
        (value->bytes > 0 || (kind != BX_VALUE_BYTES && kind != BX_VALUE_TO_BYTES)))
        return bx_fail(-EINVAL, "value %d of \"%s\" is NULL", number, format);
    if (kind < BX_VALUE_REAL && !fits_integer(letter->letter, value))
        return bx_fail(-ERANGE, "value %d of \"%s\" does not fit %s", number, format, letter->name);
    return 0;
}

static const struct letter *find_letter(char letter)
{
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (letters[i].letter == letter)
            return &letters[i];
    return NULL;
}

static int check(const char *format, const struct bx_value *values, enum way way, struct checked *out)
{
    int count = 0, rc;

    *out = (struct checked){ .has_places = way == READ };
    if (format == NULL || values == NULL)
        return bxi_null("the call", format == NULL ? "the format" : "the values");
    for (const char *at = format; *at != '\0'; at++) {
        const struct letter *letter = find_letter(*at);

        if (*at == '>' && way == CALL && !out->has_places) {
            out->has_places = true;
            continue;
        }
        if (letter == NULL)
            return bx_fail(-EINVAL, "the format \"%s\" has '%c', which is no letter of values here", format, *at);
        if (count == BX_VALUES_MAX)
            return bx_fail(-EINVAL, "the format \"%s\" has more than %d letters", format, BX_VALUES_MAX);
        if (values[count].kind == BX_VALUE_END)
            return bx_fail(-EINVAL, "the format \"%s\" has more letters than there are values, %d", format, count);
        rc = check_value(format, count + 1, letter, out->has_places ? letter->places[way] : letter->values,
                         &values[count]);
        if (rc < 0)
            return rc;
        out->letter[count++] = *at;
        out->given += !out->has_places;
    }
    out->count = count;
    if (values[count].kind != BX_VALUE_END)
        return bx_fail(-EINVAL, "the format \"%s\" has %d letters, and there are more values", format, count);
    return 0;
}

/* ---- into a message --------------------------------------------------------------------------------- */

static double number_of(const struct bx_value *value)
{
    return value->kind == BX_VALUE_REAL ? value->of.f64
           : value->kind == BX_VALUE_INT ? (double)value->of.i64 : (double)value->of.u64;
}

static int put_value(struct bx_msg *msg, char letter, const struct bx_value *value)
{
    switch (letter) {
    case 'i':
        return bx_msg_put_i64(msg, value->of.i64);
    case 'u':
        return bx_msg_put_u64(msg, value->of.u64);
    case 'w':
        return bx_msg_put_i32(msg, (int32_t)value->of.i64);
    case 'd':
        return bx_msg_put_f64(msg, number_of(value));
    case 'f':
        return bx_msg_put_f32(msg, (float)number_of(value));
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
static void put_values(struct bx_msg *msg, const struct checked *checked, const struct bx_value *values)
{
    for (int i = 0; i < checked->given; i++)
        put_value(msg, checked->letter[i], &values[i]);
}

int bx_msg_put_values(struct bx_msg *msg, const char *format, const struct bx_value *values)
{
    struct checked checked = { .given = 0 };

    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    msg->error = check(format, values, PUT, &checked);
    if (msg->error == 0)
        put_values(msg, &checked, values);
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

static void read_value(struct bx_reader *reader, char letter, const struct bx_value *place, union got *got)
{
    switch (letter) {
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

static void set_place(char letter, const struct bx_value *place, const union got *got, bool acquire)
{
    void *out = place->of.out;

    switch (letter) {
    case 'i':
        *(int64_t *)out = got->i64;
        break;
    case 'u':
        *(uint64_t *)out = got->u64;
        break;
    case 'w':
        *(int32_t *)out = got->i32;
        break;
    case 'd':
        *(double *)out = got->f64;
        break;
    case 'f':
        *(float *)out = got->f32;
        break;
    case 's':
        *(const char **)out = got->in;
        break;
    case 'b':
        if (place->bytes > 0)
            memcpy(out, got->in, place->bytes);
        break;
    case 'T':
        *(struct bx_tensor **)out = acquire ? bx_tensor_acquire(got->object) : got->object;
        break;
    default:
        *(struct bx_rref **)out = acquire ? bx_rref_acquire(got->object) : got->object;
        break;
    }
}

/* Replaces texts of the message by copies. 0, or -ENOMEM and there are none. */
static int copy_texts(const struct checked *checked, union got *got)
{
    for (int i = checked->given; i < checked->count; i++) {
        if (checked->letter[i] != 's' || (got[i].text = strdup(got[i].in)) != NULL)
            continue;
        while (--i >= checked->given)
            if (checked->letter[i] == 's')
                free(got[i].text);
        return bx_fail(-ENOMEM, "no memory for a text of a reply");
    }
    return 0;
}

static int take_values(struct bx_reader *reader, const struct checked *checked, const struct bx_value *places,
                       union got *got)
{
    for (int i = checked->given; i < checked->count; i++)
        read_value(reader, checked->letter[i], &places[i], &got[i]);
    return reader->error;
}

int bx_read_values(struct bx_reader *reader, const char *format, const struct bx_value *places)
{
    struct checked checked = { .given = 0 };
    union got got[BX_VALUES_MAX];
    int rc;

    if (reader == NULL)
        return bxi_null(__func__, "the reader");
    if (reader->error < 0)
        return reader->error;
    rc = check(format, places, READ, &checked);
    if (rc < 0)
        return reader->error = rc;
    rc = take_values(reader, &checked, places, got);
    for (int i = 0; rc == 0 && i < checked.count; i++)
        set_place(checked.letter[i], &places[i], &got[i], false);
    return rc;
}

/* The values of a reply, which has no others. */
static int take_reply(const struct bx_msg *reply, const char *function, const char *format,
                      const struct checked *checked, const struct bx_value *values)
{
    struct bx_reader reader = bx_msg_reader(reply);
    union got got[BX_VALUES_MAX];
    int rc = take_values(&reader, checked, values, got);

    if (rc < 0)
        return bx_fail(rc, "the reply of '%s' has less than \"%s\" reads: %s", bxi_brief(function).text, format,
                       bx_error_text());
    if (bx_reader_left(&reader) + reader.tensor_count + reader.rref_count > 0)
        return bx_fail(BX_E_LONG_MESSAGE,
                       "the reply of '%s' has more than \"%s\" reads: %zu bytes, %zu tensors, %zu references",
                       bxi_brief(function).text, format, bx_reader_left(&reader), reader.tensor_count,
                       reader.rref_count);
    if ((rc = copy_texts(checked, got)) < 0)
        return rc;
    for (int i = checked->given; i < checked->count; i++)
        set_place(checked->letter[i], &values[i], &got[i], true);
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
                const char *format, const struct bx_value *values)
{
    struct checked checked = { .given = 0 };
    union stack_msg args;
    struct bx_msg *reply = NULL;
    int rc = check(format, values, CALL, &checked);

    if (rc < 0)
        return rc;
    put_values(bxi_msg_init(&args, ROOM_BYTES), &checked, values);
    rc = bxi_rpc_sync(callee->job, callee->to, aim_of(callee), function, &args.msg, options,
                      checked.has_places ? &reply : NULL);
    bxi_msg_fini(&args.msg);
    if (rc == 0 && checked.has_places)
        rc = take_reply(reply, function, format, &checked, values);
    bx_msg_destroy(reply);
    return rc;
}

static int call_async(const struct callee *callee, const char *function, const struct bx_call_options *options,
                      const struct checked *checked, const struct bx_value *values, struct bx_future **future)
{
    union stack_msg args;
    int rc;

    put_values(bxi_msg_init(&args, ROOM_BYTES), checked, values);
    rc = bxi_rpc_async(callee->job, callee->to, aim_of(callee), function, &args.msg, options, future);
    bxi_msg_fini(&args.msg);
    return rc;
}

int bx_call_values(struct bx_job *job, const char *to, const char *function,
                   const struct bx_call_options *options, const char *format, const struct bx_value *values)
{
    struct callee callee = { .job = job, .to = to };

    return bxi_out(call(&callee, function, options, format, values));
}

int bx_rref_call_values(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                        const char *format, const struct bx_value *values)
{
    struct callee callee;
    int rc = find_object(rref, __func__, &callee);

    return bxi_out(rc < 0 ? rc : call(&callee, method, options, format, values));
}

int bx_call_values_async(struct bx_job *job, const char *to, const char *function,
                         const struct bx_call_options *options, const char *format, const struct bx_value *values,
                         struct bx_future **future)
{
    struct callee callee = { .job = job, .to = to };
    struct checked checked = { .given = 0 };
    int rc = check(format, values, PUT, &checked);

    return bxi_out(rc < 0 ? rc : call_async(&callee, function, options, &checked, values, future));
}

int bx_rref_call_values_async(struct bx_rref *rref, const char *method, const struct bx_call_options *options,
                              const char *format, const struct bx_value *values, struct bx_future **future)
{
    struct callee callee;
    struct checked checked = { .given = 0 };
    int rc = find_object(rref, __func__, &callee);

    if (rc == 0)
        rc = check(format, values, PUT, &checked);
    return bxi_out(rc < 0 ? rc : call_async(&callee, method, options, &checked, values, future));
}
