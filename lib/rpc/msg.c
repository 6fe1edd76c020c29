/* SPDX-License-Identifier: MIT */
/*
 * Messages and readers. A message is one block of memory, its bytes behind its head; a message that grows beyond the
 * room that it was made with gets a second block. One thread at a time.
 */
#include "rpc.h"

#include <errno.h>
#include <stdlib.h>

#define ROOM_BYTES_DEFAULT 64

struct bx_msg *bx_msg_create(size_t reserve_bytes)
{
    size_t room = reserve_bytes > 0 ? reserve_bytes : ROOM_BYTES_DEFAULT;

    if (room > PTRDIFF_MAX - sizeof(struct bx_msg))
        return NULL;

    void *memory = malloc(sizeof(struct bx_msg) + room);

    return memory != NULL ? bxi_msg_init(memory, room) : NULL;
}

struct bx_msg *bxi_msg_init(void *memory, size_t room)
{
    struct bx_msg *msg = memory;

    msg->data = msg->room;
    msg->bytes = 0;
    msg->capacity = room;
    msg->error = 0;
    msg->tensors = NULL;
    msg->tensor_count = msg->tensor_capacity = 0;
    msg->loan = NULL;
    msg->rrefs = NULL;
    msg->rref_count = msg->rref_capacity = 0;
    msg->kinds = NULL;
    return msg;
}

struct bx_msg *bxi_msg_copy(const void *data, size_t bytes)
{
    struct bx_msg *msg = bx_msg_create(bytes);

    if (msg == NULL)
        return NULL;
    if (bytes > 0)
        memcpy(msg->data, data, bytes);
    msg->bytes = bytes;
    return msg;
}

struct bx_msg *bxi_msg_of_loan(struct bxi_loan *loan)
{
    /* What came by the arena has a private copy already, which lives as long as the loan. */
    struct bx_msg *msg = bxi_msg_copy(loan->data, loan->packed == NULL ? loan->bytes : 0);

    if (msg == NULL)
        return NULL;
    if (loan->packed != NULL) {
        msg->data = loan->packed + (loan->data - loan->packed);
        msg->bytes = msg->capacity = loan->bytes;
    }
    bxi_storage_acquire(&loan->storage);
    msg->loan = loan;
    msg->tensors = loan->pointers;
    msg->tensor_count = loan->tensor_count;
    return msg;
}

/* True if the message's bytes are the copy that the loan has. */
static bool reads_the_loan(const struct bx_msg *msg)
{
    return msg->loan != NULL && msg->loan->packed != NULL && msg->data == msg->loan->data;
}

static void drop_tensors(struct bx_msg *msg)
{
    size_t lent = msg->loan != NULL ? msg->loan->tensor_count : 0;

    for (size_t i = lent; i < msg->tensor_count; i++)
        bx_tensor_release(msg->tensors[i]);
    if (msg->tensor_capacity > 0)
        free(msg->tensors);
    bxi_loan_release(msg->loan);
    msg->tensors = NULL;
    msg->tensor_count = msg->tensor_capacity = 0;
    msg->loan = NULL;
}

static void drop_rrefs(struct bx_msg *msg)
{
    bxi_rref_release_all(msg->rrefs, msg->rref_count);
    free(msg->rrefs);
    msg->rrefs = NULL;
    msg->rref_count = msg->rref_capacity = 0;
    bxi_kinds_rrefs(msg);
}

void bxi_msg_fini(struct bx_msg *msg)
{
    if (msg->data != msg->room && !reads_the_loan(msg))
        free(msg->data);
    if (msg->tensor_count > 0 || msg->loan != NULL)
        drop_tensors(msg);
    if (msg->rref_count > 0)
        drop_rrefs(msg);
    if (msg->kinds != NULL)
        bxi_kinds_free(msg);
}

void bx_msg_destroy(struct bx_msg *msg)
{
    if (msg == NULL)
        return;
    bxi_msg_fini(msg);
    free(msg);
}

void bx_msg_clear(struct bx_msg *msg)
{
    if (msg == NULL)
        return;
    if (reads_the_loan(msg)) {
        msg->data = msg->room;
        msg->capacity = 0;
    }
    msg->bytes = 0;
    msg->error = 0;
    if (msg->kinds != NULL)
        msg->kinds->count = 0;
    if (msg->tensor_count > 0 || msg->loan != NULL)
        drop_tensors(msg);
    if (msg->rref_count > 0)
        drop_rrefs(msg);
}

/* Room for so many bytes more. */
BXI_COLD static int grow(struct bx_msg *msg, size_t bytes)
{
    size_t capacity = msg->capacity > 0 ? msg->capacity : ROOM_BYTES_DEFAULT, needed = msg->bytes + bytes;
    bool inside = msg->data == msg->room || reads_the_loan(msg);
    unsigned char *data;

    if (needed < bytes)
        return msg->error = -ENOMEM;
    while (capacity < needed)
        capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
    data = realloc(inside ? NULL : msg->data, capacity);
    if (data == NULL)
        return msg->error = -ENOMEM;
    if (inside)
        memcpy(data, msg->data, msg->bytes);
    msg->data = data;
    msg->capacity = capacity;
    return 0;
}

/* Bytes that belong to the value before them, or begin the next one. */
static inline int append(struct bx_msg *msg, const void *data, size_t bytes)
{
    if (__builtin_expect(bytes > msg->capacity - msg->bytes, 0) && grow(msg, bytes) < 0)
        return msg->error;
    if (bytes > 0)
        memcpy(msg->data + msg->bytes, data, bytes);
    msg->bytes += bytes;
    return 0;
}

/* A value of this kind may not be put, or is noted first. 0, or an error. */
BXI_COLD static int check_put(struct bx_msg *msg, const void *data, enum bxi_value_kind kind)
{
    if (msg == NULL)
        return bxi_null("bx_msg_put_bytes", "the message");
    if (msg->error < 0)
        return msg->error;
    if (data == NULL)
        return msg->error = bxi_null("bx_msg_put_bytes", "the bytes");
    return bxi_kinds_add(msg, kind);        /* else put had no reason to call this */
}

static inline int put(struct bx_msg *msg, const void *data, size_t bytes, enum bxi_value_kind kind)
{
    int rc = 0;

    if (__builtin_expect(msg == NULL || msg->error < 0 || (data == NULL && bytes > 0) || bxi_checked, 0))
        rc = check_put(msg, bytes > 0 ? data : "", kind);
    return rc < 0 ? rc : append(msg, data, bytes);
}

int bx_msg_put_bytes(struct bx_msg *msg, const void *data, size_t bytes)
{
    return put(msg, data, bytes, BXI_V_BYTES);
}

int bx_msg_put_i64(struct bx_msg *msg, int64_t value)
{
    return put(msg, &value, sizeof value, BXI_V_I64);
}

int bx_msg_put_u64(struct bx_msg *msg, uint64_t value)
{
    return put(msg, &value, sizeof value, BXI_V_U64);
}

int bx_msg_put_i32(struct bx_msg *msg, int32_t value)
{
    return put(msg, &value, sizeof value, BXI_V_I32);
}

int bx_msg_put_f64(struct bx_msg *msg, double value)
{
    return put(msg, &value, sizeof value, BXI_V_F64);
}

int bx_msg_put_f32(struct bx_msg *msg, float value)
{
    return put(msg, &value, sizeof value, BXI_V_F32);
}

int bx_msg_put_f32s(struct bx_msg *msg, const float *values, size_t count)
{
    if (count > SIZE_MAX / sizeof *values && msg != NULL)
        return msg->error = -ENOMEM;
    return put(msg, values, count * sizeof *values, BXI_V_F32S);
}

int bx_msg_put_str(struct bx_msg *msg, const char *text)
{
    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    if (text == NULL)
        return msg->error = bxi_null(__func__, "the text");

    size_t bytes = strlen(text) + 1;
    uint32_t length = (uint32_t)bytes;

    if (bytes > UINT32_MAX)
        return msg->error = BX_E_TOO_LARGE;
    if (put(msg, &length, sizeof length, BXI_V_STR) < 0)
        return msg->error;
    return append(msg, text, bytes);
}

int bx_msg_put_tensor(struct bx_msg *msg, struct bx_tensor *tensor)
{
    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    if (tensor == NULL)
        return msg->error = bx_fail(-EINVAL, "there is no tensor to put into a message");
    if (msg->tensor_capacity == 0 || msg->tensor_count == msg->tensor_capacity) {
        size_t capacity = msg->tensor_count < 8 ? 16 : msg->tensor_count * 2;
        bool lent = msg->tensor_capacity == 0;          /* the array is the loan's, or there is none */
        struct bx_tensor **tensors = realloc(lent ? NULL : msg->tensors, capacity * sizeof *tensors);

        if (tensors == NULL)
            return msg->error = -ENOMEM;
        if (lent && msg->tensor_count > 0)
            memcpy(tensors, msg->tensors, msg->tensor_count * sizeof *tensors);
        msg->tensors = tensors;
        msg->tensor_capacity = capacity;
    }
    msg->tensors[msg->tensor_count++] = bx_tensor_acquire(tensor);
    return 0;
}

/* Room for one more, in an array of the message's own. */
static int grow_rrefs(struct bx_msg *msg)
{
    uint32_t capacity = msg->rref_capacity == 0 ? 4 : msg->rref_capacity * 2;
    struct bx_rref **rrefs = realloc(msg->rrefs, capacity * sizeof(struct bx_rref *));

    if (rrefs == NULL)
        return msg->error = -ENOMEM;
    msg->rrefs = rrefs;
    msg->rref_capacity = capacity;
    return 0;
}

int bx_msg_put_rref(struct bx_msg *msg, struct bx_rref *rref)
{
    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    if (rref == NULL)
        return msg->error = bxi_null(__func__, "the reference");
    if (msg->rref_count == BX_RREFS_MAX)
        return msg->error = bx_fail(BX_E_TOO_LARGE, "a message has at most %d references", BX_RREFS_MAX);
    if (msg->rref_count == msg->rref_capacity && grow_rrefs(msg) < 0)
        return msg->error;
    msg->rrefs[msg->rref_count++] = bx_rref_acquire(rref);
    bxi_kinds_rrefs(msg);
    return 0;
}

int bxi_msg_take_rrefs(struct bx_msg *msg, struct bxi_rref_in *in)
{
    for (size_t i = 0; in != NULL && i < in->count; i++)
        if (bx_msg_put_rref(msg, in->rrefs[i]) < 0)
            return msg->error;
    return 0;
}

size_t bx_msg_rrefs(const struct bx_msg *msg)
{
    return msg == NULL ? 0 : msg->rref_count;
}

size_t bx_msg_tensors(const struct bx_msg *msg)
{
    return msg == NULL ? 0 : msg->tensor_count;
}

size_t bx_msg_bytes(const struct bx_msg *msg)
{
    return msg == NULL ? 0 : msg->bytes;
}

const void *bx_msg_data(const struct bx_msg *msg)
{
    return msg == NULL ? NULL : msg->data;
}

int bx_msg_error(const struct bx_msg *msg)
{
    return msg == NULL ? 0 : msg->error;
}

int bx_msg_fail(struct bx_msg *msg, int code)
{
    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    if (code >= 0)
        return bx_fail(-EINVAL, "a message fails with a negative code, not %d", code);
    return msg->error = code;
}

/* ---- readers ----------------------------------------------------------------------------------- */

struct bx_reader bx_msg_reader(const struct bx_msg *msg)
{
    if (msg == NULL)
        return (struct bx_reader){ 0 };

    struct bx_reader reader = { .data = msg->data, .bytes = msg->bytes, .tensors = msg->tensors,
                                .tensor_count = msg->tensor_count, .rrefs = msg->rrefs,
                                .rref_count = msg->rref_count };

    bxi_kinds_mark(&reader, msg->kinds);
    return reader;
}

size_t bx_reader_left(const struct bx_reader *reader)
{
    return reader == NULL || reader->error < 0 ? 0 : reader->bytes - reader->pos;
}

size_t bx_reader_tensors_left(const struct bx_reader *reader)
{
    return reader == NULL || reader->error < 0 ? 0 : reader->tensor_count;
}

struct bx_tensor *bx_read_tensor(struct bx_reader *reader)
{
    if (reader == NULL || reader->error < 0)
        return NULL;
    if (reader->tensor_count == 0) {
        reader->error = bx_fail(BX_E_SHORT_MESSAGE, "a tensor was read past the last one of a message");
        return NULL;
    }
    reader->tensor_count--;
    return *reader->tensors++;
}

struct bx_rref *bx_read_rref(struct bx_reader *reader)
{
    if (reader == NULL || reader->error < 0)
        return NULL;
    if (reader->rref_count == 0) {
        reader->error = bx_fail(BX_E_SHORT_MESSAGE, "a reference was read past the last one of a message");
        return NULL;
    }

    struct bx_rref *rref = bxi_kinds_next_rref(reader);

    reader->rref_count--;
    return rref;
}

const void *bx_read_bytes(struct bx_reader *reader, size_t bytes)
{
    if (reader == NULL || reader->error < 0)
        return NULL;
    if (bytes > reader->bytes - reader->pos) {
        reader->error = bx_fail(BX_E_SHORT_MESSAGE,
                                "%zu bytes were read at byte %zu of a message of %zu bytes", bytes,
                                reader->pos, reader->bytes);
        return NULL;
    }

    const unsigned char *data = reader->data + reader->pos;

    reader->pos += bytes;
    return data;
}

static void read_value(struct bx_reader *reader, void *value, size_t bytes, enum bxi_value_kind kind)
{
    const void *data;

    if (__builtin_expect(bxi_checked, 0) && !bxi_kinds_allow(reader, kind, bytes))
        return;
    data = bx_read_bytes(reader, bytes);
    if (data != NULL)
        memcpy(value, data, bytes);
}

int64_t bx_read_i64(struct bx_reader *reader)
{
    int64_t value = 0;

    read_value(reader, &value, sizeof value, BXI_V_I64);
    return value;
}

uint64_t bx_read_u64(struct bx_reader *reader)
{
    uint64_t value = 0;

    read_value(reader, &value, sizeof value, BXI_V_U64);
    return value;
}

int32_t bx_read_i32(struct bx_reader *reader)
{
    int32_t value = 0;

    read_value(reader, &value, sizeof value, BXI_V_I32);
    return value;
}

double bx_read_f64(struct bx_reader *reader)
{
    double value = 0;

    read_value(reader, &value, sizeof value, BXI_V_F64);
    return value;
}

float bx_read_f32(struct bx_reader *reader)
{
    float value = 0;

    read_value(reader, &value, sizeof value, BXI_V_F32);
    return value;
}

int bx_read_f32s(struct bx_reader *reader, float *values, size_t count)
{
    if (reader == NULL)
        return bxi_null(__func__, "the reader");
    if (values == NULL && count > 0 && reader->error == 0)
        reader->error = bxi_null(__func__, "the place for the values");
    if (count > bx_reader_left(reader) / sizeof *values) {
        bx_read_bytes(reader, count > SIZE_MAX / sizeof *values ? SIZE_MAX : count * sizeof *values);
        return reader->error;
    }
    if (__builtin_expect(bxi_checked, 0) && !bxi_kinds_allow(reader, BXI_V_F32S, count * sizeof *values))
        return reader->error;
    if (count > 0)
        memcpy(values, bx_read_bytes(reader, count * sizeof *values), count * sizeof *values);
    return reader->error;
}

const char *bx_read_str(struct bx_reader *reader)
{
    const char *text;
    uint32_t length = 0;

    read_value(reader, &length, sizeof length, BXI_V_STR);
    text = bx_read_bytes(reader, length);

    if (text == NULL)
        return "";
    if (length == 0 || text[length - 1] != '\0') {
        reader->error = bx_fail(BX_E_SHORT_MESSAGE, "a string in a message of %zu bytes does not end",
                                reader->bytes);
        return "";
    }
    return text;
}
