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

/* Copies a text behind the others. */
static const char *keep_text(struct stat_row *row, const char *format, va_list args)
{
    char *to = row->text + row->text_bytes;
    size_t room = sizeof(row->text) - row->text_bytes;
    int length = vsnprintf(to, room, format, args);

    assert(length >= 0 && (size_t)length < room);
    row->text_bytes += (size_t)length + 1;
    return to;
}

void stat_put_format(struct stat_row *row, const char *name, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add(row, name, STAT_TEXT)->at = keep_text(row, format, args);
    va_end(args);
}

void stat_put_names(struct stat_row *row, const char *name)
{
    add(row, name, STAT_NAMES)->at = row->text + row->text_bytes;
}

void stat_add_name(struct stat_row *row, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    keep_text(row, format, args);
    va_end(args);
    row->field[row->field_count - 1].count++;
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

static void names_json(const struct stat_field *field)
{
    const char *name = field->at;

    stat_json_open(field->name, '[');
    for (uint64_t i = 0; i < field->count; i++, name += strlen(name) + 1)
        stat_json_text(NULL, name);
    stat_json_close(']');
}

static void field_json(const struct stat_field *field)
{
    if (field->presence != STAT_PRESENT)
        stat_json_null(field->name);
    else if (field->unit == STAT_TEXT)
        stat_json_text(field->name, field->at);
    else if (field->unit == STAT_LIST)
        stat_json_u64s(field->name, field->at, field->count);
    else if (field->unit == STAT_NAMES)
        names_json(field);
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

/* The next row from an index on; false if there is none. */
static bool next_row(stat_row_fn make, const struct stat_job *job, const struct stat_worker *worker, int *index,
                     struct stat_row *row)
{
    int made;

    do {
        stat_row_begin(row);
        made = make(job, worker, (*index)++, row);
    } while (made == STAT_SKIP);
    return made == STAT_ROW;
}

void stat_parts_json(const struct stat_part *parts, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;

    for (const struct stat_part *part = parts; part->make != NULL; part++) {
        bool is_list = part->shape != STAT_ONE;
        int index = 0;

        if (part->key == NULL)
            continue;
        if (is_list)
            stat_json_open(part->key, '[');
        while (next_row(part->make, job, worker, &index, &row)) {
            stat_json_open(is_list ? NULL : part->key, '{');
            stat_row_json(&row);
            if (part->inner != NULL)
                stat_parts_json(part->inner, job, worker);
            stat_json_close('}');
        }
        if (is_list)
            stat_json_close(']');
        else if (index == 1)
            stat_json_null(part->key);
    }
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

static void flow_names(struct stat_flow *flow, const struct stat_field *field)
{
    const char *name = field->at;

    for (uint64_t i = 0; i < field->count; i++, name += strlen(name) + 1)
        stat_flow_add(flow, "%s%s", name, i + 1 < field->count ? "," : "");
}

static void flow_row(struct stat_flow *flow, const char *pattern, const struct stat_row *row)
{
    char piece[256], name[32];

    for (;; pattern++) {
        size_t length = strcspn(pattern, "|");
        bool is_there = expand(pattern, row, piece, sizeof(piece)), is_broken = ends_with(pattern, length, "...}");
        const struct stat_field *field = NULL;

        if (is_there && is_broken) {
            snprintf(name, sizeof(name), "%.*s", (int)length - 5, pattern + 1);
            field = stat_row_field(row, name);
        }
        if (field != NULL && field->unit == STAT_NAMES)
            flow_names(flow, field);
        else if (field != NULL)
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
    flow_row(&flow, pattern, row);
    stat_flow_end(&flow);
}

static void part_text(const struct stat_part *part, const struct stat_job *job, const struct stat_worker *worker)
{
    bool is_joined = part->shape == STAT_JOINED || part->shape == STAT_GROUPED;
    char head[256];
    struct stat_flow flow;
    struct stat_row row;
    int index = 0;

    stat_flow_begin(&flow, part->label);
    while (next_row(part->make, job, worker, &index, &row)) {
        if (part->shape == STAT_GROUPED && expand(part->pattern, &row, head, sizeof(head))) {
            stat_flow_end(&flow);
            stat_flow_begin(&flow, part->label);
        }
        if (is_joined)
            flow_row(&flow, part->pattern, &row);
        else
            stat_row_line(part->label, part->pattern, &row);
    }
    if (part->shape == STAT_JOINED && index == 1)
        stat_flow_add(&flow, "none");
    stat_flow_end(&flow);
}

void stat_parts_text(const struct stat_part *parts, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;
    int index = 0;

    for (const struct stat_part *part = parts; part->make != NULL; part++, index = 0) {
        if (part->label != NULL)
            part_text(part, job, worker);
        if (part->text != NULL)
            part->text(job, worker);
        if (part->inner != NULL && next_row(part->make, job, worker, &index, &row))
            stat_parts_text(part->inner, job, worker);
    }
}

void stat_table_titles(struct stat_table *table, size_t count)
{
    for (size_t i = 0; table->rows == 0 && i < count; i++)
        printf("%*s%c", table->columns[i].width, table->columns[i].title, i + 1 < count ? ' ' : '\n');
}

void stat_table_row(struct stat_table *table, const struct stat_row *row)
{
    const struct stat_column *columns = table->columns;
    char number[24];

    stat_table_titles(table, table->count);
    for (size_t i = 0; i < table->count; i++)
        printf("%*s%c", columns[i].width,
               columns[i].name != NULL ? field_text(stat_row_field(row, columns[i].name), number) : "",
               i + 1 < table->count ? ' ' : '\n');
    table->rows++;
    if (table->label != NULL)
        stat_row_line(table->label, table->pattern, row);
}

void stat_table_rows(struct stat_table *table, stat_row_fn make, const struct stat_job *job,
                     const struct stat_worker *worker)
{
    struct stat_row row;
    int index = 0;

    while (next_row(make, job, worker, &index, &row))
        stat_table_row(table, &row);
}
