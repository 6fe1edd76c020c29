/* SPDX-License-Identifier: MIT */
#include "row.h"

#include "json.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Making a row ------------------------------------------------------------------------------- */

void stat_row_begin(struct stat_row *row)
{
    row->field_count = row->list_count = row->text_bytes = 0;
}

static struct stat_field *add(struct stat_row *row, const char *name, enum stat_unit unit)
{
    struct stat_field *field = &row->field[row->field_count++];

    assert(row->field_count <= STAT_FIELDS_MAX);
    *field = (struct stat_field){ .name = name, .unit = unit };
    return field;
}

void stat_put(struct stat_row *row, const char *name, enum stat_unit unit, uint64_t value)
{
    stat_put_if(row, true, name, unit, value);
}

void stat_put_if(struct stat_row *row, bool is_known, const char *name, enum stat_unit unit, uint64_t value)
{
    struct stat_field *field = add(row, name, unit);

    field->presence = is_known ? STAT_PRESENT : STAT_NOT_KNOWN;
    field->count = value;
}

void stat_put_real(struct stat_row *row, const char *name, enum stat_unit unit, double value)
{
    struct stat_field *field = add(row, name, unit);

    field->presence = isnan(value) ? STAT_NOT_KNOWN : value < 0 ? STAT_NONE : STAT_PRESENT;
    field->real = value;
}

void stat_put_text(struct stat_row *row, const char *name, const char *text)
{
    if (text != NULL)
        stat_put_format(row, name, "%s", text);
    else
        add(row, name, STAT_TEXT)->presence = STAT_NONE;
}

void stat_put_format(struct stat_row *row, const char *name, const char *format, ...)
{
    char *to = row->text + row->text_bytes;
    size_t room = sizeof(row->text) - row->text_bytes;
    va_list args;

    va_start(args, format);
    int length = vsnprintf(to, room, format, args);
    va_end(args);
    assert(length >= 0 && (size_t)length < room);
    row->text_bytes += (size_t)length + 1;
    add(row, name, STAT_TEXT)->at = to;
}

void stat_put_list(struct stat_row *row, const char *name, const uint64_t *values, size_t count)
{
    struct stat_field *field = add(row, name, STAT_LIST);
    uint64_t *to = row->list + row->list_count;

    assert(count <= sizeof(row->list) / sizeof(row->list[0]) - row->list_count);
    memcpy(to, values, count * sizeof(*values));
    row->list_count += count;
    field->at = to;
    field->count = count;
}

/* ---- One value ---------------------------------------------------------------------------------- */

const struct stat_field *stat_row_field(const struct stat_row *row, const char *name)
{
    size_t i = 0;

    while (i < row->field_count && strcmp(row->field[i].name, name) != 0)
        i++;
    assert(i < row->field_count);
    return &row->field[i];
}

static bool is_real(const struct stat_field *field)
{
    return field->unit == STAT_SECONDS || field->unit == STAT_INSTANT || field->unit == STAT_NS;
}

const char *stat_row_number(const struct stat_row *row, const char *name)
{
    const struct stat_field *field = stat_row_field(row, name);
    static char text[32];

    if (field->presence == STAT_NONE)
        return "0";
    if (is_real(field))
        snprintf(text, sizeof(text), "%.17g", field->real);
    else
        snprintf(text, sizeof(text), "%llu", (unsigned long long)field->count);
    return field->presence == STAT_PRESENT ? text : NULL;
}

/* ---- JSON --------------------------------------------------------------------------------------- */

/* Noise may be more than fits. */
static uint64_t whole(double value)
{
    return value < 1e19 ? (uint64_t)(value + 0.5) : UINT64_C(10000000000000000000);
}

static void field_json(const struct stat_field *field)
{
    if (field->presence != STAT_PRESENT)
        stat_json_null(field->name);
    else if (field->unit == STAT_TEXT)
        stat_json_text(field->name, field->at);
    else if (field->unit == STAT_LIST)
        stat_json_u64s(field->name, field->at, field->count);
    else if (field->unit == STAT_FLAG)
        stat_json_bool(field->name, field->count != 0);
    else if (is_real(field) && field->unit != STAT_NS)
        stat_json_seconds(field->name, field->real);
    else
        stat_json_u64(field->name, is_real(field) ? whole(field->real) : field->count);
}

void stat_row_json(const struct stat_row *row)
{
    for (size_t i = 0; i < row->field_count; i++)
        if (row->field[i].name[0] != '.')
            field_json(&row->field[i]);
}

void stat_rows_json(const char *key, stat_row_fn make, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;

    stat_json_open(key, '[');
    for (int i = 0, made = STAT_SKIP; made != STAT_END; i++) {
        stat_row_begin(&row);
        made = make(job, worker, i, &row);
        if (made != STAT_ROW)
            continue;
        stat_json_open(NULL, '{');
        stat_row_json(&row);
        stat_json_close('}');
    }
    stat_json_close(']');
}

void stat_object_json(const char *key, stat_row_fn make, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;

    stat_row_begin(&row);
    make(job, worker, 0, &row);
    stat_json_open(key, '{');
    stat_row_json(&row);
    stat_json_close('}');
}

/* ---- Text --------------------------------------------------------------------------------------- */

static const char *field_text(const struct stat_field *field, char number[24])
{
    if (field->presence != STAT_PRESENT)
        return field->presence == STAT_NONE ? "-" : "?";
    switch (field->unit) {
    case STAT_TEXT: return field->at;
    case STAT_BYTES: return stat_bytes_text(field->count);
    case STAT_SECONDS: return stat_span_text(field->real);
    case STAT_INSTANT: return stat_time_text(field->real);
    case STAT_NS: return stat_time_text(1e-9 * field->real);
    default:
        snprintf(number, 24, "%llu", (unsigned long long)field->count);
        return number;
    }
}

static bool ends_with(const char *text, size_t length, const char *end)
{
    return length >= strlen(end) && strncmp(text + length - strlen(end), end, strlen(end)) == 0;
}

/* Expands the pattern up to its end or a '|'; false if a value that it names is missing. */
static bool expand(const char *pattern, const struct stat_row *row, char *to, size_t room)
{
    bool is_whole = true;
    size_t used = 0;

    to[0] = '\0';
    while (*pattern != '\0' && *pattern != '|' && used < room) {
        char name[32], number[24];
        size_t length = strcspn(pattern, *pattern == '{' ? "}" : "{|");

        if (*pattern != '{') {
            used += (size_t)snprintf(to + used, room - used, "%.*s", (int)length, pattern);
            pattern += length;
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)length - (ends_with(pattern, length, "...") ? 4 : 1), pattern + 1);
        const struct stat_field *field = stat_row_field(row, name);
        is_whole &= field->presence == STAT_PRESENT;
        used += (size_t)snprintf(to + used, room - used, "%s", field_text(field, number));
        pattern += length + 1;
    }
    return is_whole;
}

void stat_flow_row(struct stat_flow *flow, const char *pattern, const struct stat_row *row)
{
    char piece[256];

    for (;; pattern++) {
        size_t length = strcspn(pattern, "|");
        bool is_there = expand(pattern, row, piece, sizeof(piece));

        if (is_there && ends_with(pattern, length, "...}"))
            stat_flow_words(flow, piece);
        else if (is_there)
            stat_flow_add(flow, "%s", piece);
        pattern += length;
        if (*pattern == '\0')
            return;
    }
}

void stat_row_line(const char *label, const char *pattern, const struct stat_row *row)
{
    struct stat_flow flow;
    char text[32];

    expand(label, row, text, sizeof(text));
    stat_flow_begin(&flow, text);
    stat_flow_row(&flow, pattern, row);
    stat_flow_end(&flow);
}

void stat_rows_text(const char *label, const char *pattern, stat_row_fn make, const struct stat_job *job,
                    const struct stat_worker *worker)
{
    struct stat_row row;

    for (int i = 0, made = STAT_SKIP; made != STAT_END; i++) {
        stat_row_begin(&row);
        made = make(job, worker, i, &row);
        if (made == STAT_ROW)
            stat_row_line(label, pattern, &row);
    }
}

void stat_table_titles(const struct stat_column *columns, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf("%s%*s", i > 0 ? " " : "", columns[i].width, columns[i].title);
    printf("\n");
}

void stat_table_row(const struct stat_column *columns, size_t count, const struct stat_row *row)
{
    char number[24];

    for (size_t i = 0; i < count; i++)
        printf("%s%*s", i > 0 ? " " : "", columns[i].width,
               columns[i].name != NULL ? field_text(stat_row_field(row, columns[i].name), number) : "");
    printf("\n");
}
