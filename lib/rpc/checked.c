/* SPDX-License-Identifier: MIT */
/*
 * BX_CHECKED=1: a message carries the kind of each of its values, and a reader compares what it reads with them. The
 * variable is read when the library is loaded, so bxi_checked never changes while the program runs.
 *
 * A record is 8 bytes: where the value begins << 8 | enum bxi_value_kind. A value ends where the next one begins, the
 * last one at the end of the bytes. Records lie beside a message (struct bxi_kinds). They are sent behind its bytes,
 * with a struct bxi_kinds_tail at the end and BXI_FLAG_KINDS in the frame:
 *
 *     in a frame      bytes, records, tail, tail of the references
 *     with a lease    records of the tensors, bytes, records, tail: in the frame or in the sender's arena
 *
 * Every worker takes them off a frame and checks them (bxi_kinds_take): they are the input of another process. One
 * without BX_CHECKED then forgets them.
 *
 * struct bx_reader is public and has no room for a pointer to the records. A reader of a message with records has the
 * address of its struct bxi_kinds in `rrefs`, plus 1: pointers that are stored there are aligned. The references
 * themselves are found by the struct. Nothing depends on data, bytes and pos, which programs use.
 */
#include "rpc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool bxi_checked;

static const char *const kind_names[BXI_VALUE_KINDS] = {
    [BXI_V_BYTES] = "bytes", [BXI_V_I64] = "i64", [BXI_V_U64] = "u64", [BXI_V_I32] = "i32",
    [BXI_V_F64] = "f64",     [BXI_V_F32] = "f32", [BXI_V_F32S] = "f32s", [BXI_V_STR] = "str",
};

struct bxi_kinds_tail {
    uint32_t count;             /* of the records; at least 1 */
    uint32_t zero;
};

__attribute__((constructor)) static void read_variable(void)
{
    const char *text = getenv("BX_CHECKED");

    bxi_checked = text != NULL && strcmp(text, "1") == 0;
}

int bxi_checked_variable(void)
{
    const char *text = getenv("BX_CHECKED");

    if (text == NULL || text[0] == '\0' || strcmp(text, "0") == 0 || strcmp(text, "1") == 0)
        return 0;
    return bx_fail(-EINVAL, "BX_CHECKED='%s' is neither 0 nor 1", bxi_brief(text).text);
}

/* ---- records ------------------------------------------------------------------------------------- */

struct value {
    size_t begin, end;
    unsigned int kind;
};

/* The record at `index`; the last value ends at `end`. */
static struct value value_at(const struct bxi_kinds *kinds, size_t index, size_t end)
{
    uint64_t record[2] = { 0, (uint64_t)end << 8 };

    memcpy(record, kinds->records + 8 * index, index + 1 < kinds->count ? 16 : 8);
    return (struct value){ (size_t)(record[0] >> 8), (size_t)(record[1] >> 8), (unsigned int)(record[0] & 0xff) };
}

static int grow(struct bxi_kinds *kinds)
{
    size_t capacity = kinds->capacity > 0 ? kinds->capacity * 2 : 8;
    unsigned char *records = realloc(kinds->records, capacity * 8);

    if (records == NULL)
        return -ENOMEM;
    kinds->records = records;
    kinds->capacity = capacity;
    return 0;
}

static int append(struct bxi_kinds *kinds, size_t begin, enum bxi_value_kind kind)
{
    uint64_t record = (uint64_t)begin << 8 | kind;

    if (kinds->count == kinds->capacity && grow(kinds) < 0)
        return -ENOMEM;
    memcpy(kinds->records + 8 * kinds->count++, &record, sizeof record);
    return 0;
}

/* The message's own, made at need. NULL: no memory. */
static struct bxi_kinds *kinds_of(struct bx_msg *msg)
{
    if (msg->kinds == NULL && (msg->kinds = calloc(1, sizeof *msg->kinds)) != NULL)
        bxi_kinds_rrefs(msg);
    return msg->kinds;
}

int bxi_kinds_add(struct bx_msg *msg, enum bxi_value_kind kind)
{
    struct bxi_kinds *kinds = kinds_of(msg);

    if (kinds == NULL)
        return msg->error = -ENOMEM;
    /* It came from a worker that writes no kinds. */
    if (kinds->count == 0 && msg->bytes > 0 && append(kinds, 0, BXI_V_BYTES) < 0)
        return msg->error = -ENOMEM;
    return append(kinds, msg->bytes, kind) < 0 ? (msg->error = -ENOMEM) : 0;
}

void bxi_kinds_rrefs(struct bx_msg *msg)
{
    if (msg->kinds == NULL)
        return;
    msg->kinds->rrefs = msg->rrefs;
    msg->kinds->rref_count = msg->rref_count;
}

void bxi_kinds_free(struct bx_msg *msg)
{
    free(msg->kinds->records);
    free(msg->kinds);
}

/* ---- sending and receiving ----------------------------------------------------------------------- */

size_t bxi_kinds_bytes(const struct bx_msg *msg)
{
    if (msg == NULL || msg->kinds == NULL || msg->kinds->count == 0)
        return 0;

    size_t bytes = msg->kinds->count * 8 + sizeof(struct bxi_kinds_tail);

    return msg->bytes <= BX_MSG_MAX && bytes <= BX_MSG_MAX - msg->bytes ? bytes : 0;
}

unsigned char *bxi_kinds_write(const struct bx_msg *msg, unsigned char *to)
{
    struct bxi_kinds_tail tail = { .count = (uint32_t)msg->kinds->count };

    memcpy(to, msg->kinds->records, msg->kinds->count * 8);
    memcpy(to + msg->kinds->count * 8, &tail, sizeof tail);
    return to + msg->kinds->count * 8 + sizeof tail;
}

static bool is_valid(const struct value *value)
{
    size_t bytes = value->end - value->begin;

    switch (value->kind) {
    case BXI_V_BYTES:
        return true;
    case BXI_V_I64:
    case BXI_V_U64:
    case BXI_V_F64:
        return bytes == 8;
    case BXI_V_I32:
    case BXI_V_F32:
        return bytes == 4;
    case BXI_V_F32S:
        return bytes % 4 == 0;
    case BXI_V_STR:
        return bytes > 4;
    default:
        return false;
    }
}

int bxi_kinds_take(const unsigned char *data, size_t *bytes, uint32_t *count)
{
    struct bxi_kinds kinds = { 0 };
    struct bxi_kinds_tail tail;
    size_t end, at = 0;

    *count = 0;
    if (*bytes < sizeof tail)
        return BX_E_CORRUPT;
    end = *bytes - sizeof tail;
    memcpy(&tail, data + end, sizeof tail);
    if (tail.count == 0 || tail.zero != 0 || tail.count > end / 8)
        return BX_E_CORRUPT;
    end -= (size_t)tail.count * 8;
    kinds.records = (unsigned char *)(uintptr_t)(data + end);
    kinds.count = tail.count;
    for (size_t i = 0; i < kinds.count; i++) {
        struct value value = value_at(&kinds, i, end);

        /* The last one ends at the end, so none goes beyond it. */
        if (value.begin != at || value.end < value.begin || !is_valid(&value))
            return BX_E_CORRUPT;
        at = value.end;
    }
    *bytes = end;
    if (bxi_checked)
        *count = tail.count;
    return 0;
}

int bxi_kinds_copy(struct bx_msg *msg, const unsigned char *records, uint32_t count)
{
    struct bxi_kinds *kinds;

    if (count == 0)
        return 0;
    kinds = kinds_of(msg);
    if (kinds == NULL || (kinds->records = malloc((size_t)count * 8)) == NULL)
        return -ENOMEM;
    memcpy(kinds->records, records, (size_t)count * 8);
    kinds->count = kinds->capacity = count;
    return 0;
}

/* ---- readers ------------------------------------------------------------------------------------- */

void bxi_kinds_mark(struct bx_reader *reader, struct bxi_kinds *kinds)
{
    if (kinds != NULL && kinds->count > 0)
        reader->rrefs = (struct bx_rref *const *)(void *)((char *)kinds + 1);
}

static const struct bxi_kinds *marked(const struct bx_reader *reader)
{
    const char *mark = (const char *)reader->rrefs;

    return ((uintptr_t)mark & 1) != 0 ? (const struct bxi_kinds *)(const void *)(mark - 1) : NULL;
}

struct bx_rref *bxi_kinds_next_rref(struct bx_reader *reader)
{
    const struct bxi_kinds *kinds = marked(reader);

    return kinds != NULL ? kinds->rrefs[kinds->rref_count - reader->rref_count] : *reader->rrefs++;
}

/* The last record that begins at pos or before it. The first begins at 0. */
static size_t find(const struct bxi_kinds *kinds, size_t pos)
{
    size_t low = 0, high = kinds->count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (value_at(kinds, middle, 0).begin <= pos)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool is_floats(unsigned int kind)
{
    return kind == BXI_V_F32 || kind == BXI_V_F32S;
}

/* True if the bytes from..to may be read as a value of this kind, as far as they lie in `value`. */
static bool allows(const struct value *value, enum bxi_value_kind kind, size_t from, size_t to)
{
    if (value->kind == BXI_V_BYTES)
        return true;
    if (is_floats(value->kind) && is_floats(kind))
        return (from > value->begin ? from - value->begin : value->begin - from) % sizeof(float) == 0;
    /* Of a string only the length is read here, and the rest as bytes. */
    return value->kind == kind && value->begin == from && (value->end == to || kind == BXI_V_STR);
}

static bool refuse(struct bx_reader *reader, size_t index, const struct value *value, enum bxi_value_kind kind)
{
    char at[40] = "";

    if (reader->pos != value->begin)
        snprintf(at, sizeof at, " at byte %zu", reader->pos);
    reader->error = bx_fail(BX_E_TYPE, "value %zu of the message, at byte %zu, was written by bx_msg_put_%s and is "
                                       "read by bx_read_%s%s", index + 1, value->begin, kind_names[value->kind],
                            kind_names[kind], at);
    return false;
}

bool bxi_kinds_allow(struct bx_reader *reader, enum bxi_value_kind kind, size_t bytes)
{
    const struct bxi_kinds *kinds = reader != NULL && reader->error == 0 ? marked(reader) : NULL;

    if (kinds == NULL || bytes == 0 || reader->pos > reader->bytes || bytes > reader->bytes - reader->pos)
        return true;
    for (size_t i = find(kinds, reader->pos); i < kinds->count; i++) {
        struct value value = value_at(kinds, i, reader->bytes);

        if (value.begin >= reader->pos + bytes)
            break;
        if (!allows(&value, kind, reader->pos, reader->pos + bytes))
            return refuse(reader, i, &value, kind);
    }
    return true;
}
