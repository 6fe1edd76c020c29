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
    return field->unit == STAT_SECONDS || field->unit == STAT_NS;
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

void stat_first_json(stat_row_fn make, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;

    stat_row_begin(&row);
    make(job, worker, 0, &row);
    stat_row_json(&row);
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
    case STAT_SECONDS: return stat_time_text(field->real);
    case STAT_NS: return stat_time_text(1e-9 * field->real);
    default:
        snprintf(number, 24, "%llu", (unsigned long long)field->count);
        return number;
    }
}

static bool is_shown(const struct stat_field *field)
{
    if (field->name[0] == '.' || field->presence != STAT_PRESENT)
        return false;
    if (field->unit == STAT_TEXT)
        return ((const char *)field->at)[0] != '\0';
    return is_real(field) || field->unit == STAT_ID || field->count != 0;
}

/* "oldest" of "oldest_seconds": the value has its unit. */
static void spoken_name(const char *name, char spoken[32])
{
    const char *unit = strstr(name, "_seconds");

    snprintf(spoken, 32, "%.*s", unit != NULL ? (int)(unit - name) : 31, name);
    for (char *at = spoken; (at = strchr(at, '_')) != NULL;)
        *at = ' ';
}

static void flow_field(struct stat_flow *flow, const struct stat_field *field)
{
    const char *text = field->at;
    char name[32], number[24];

    spoken_name(field->name, name);
    stat_flow_words(flow, field->unit == STAT_TEXT ? text : name);
    if (field->unit == STAT_LIST || field->unit == STAT_NAMES) {
        for (uint64_t i = 0; i < field->count; i++) {
            if (field->unit == STAT_LIST)
                snprintf(number, sizeof(number), "%llu", (unsigned long long)((const uint64_t *)field->at)[i]);
            stat_flow_add(flow, "%s", field->unit == STAT_LIST ? number : text);
            text += field->unit == STAT_NAMES ? strlen(text) + 1 : 0;
        }
    } else if (field->unit != STAT_TEXT && field->unit != STAT_FLAG) {
        stat_flow_add(flow, "%s", field_text(field, number));
    }
}

/* Commas part the values; or the rows, if several stand in a line. */
static void flow_row(struct stat_flow *flow, const struct stat_row *row, bool is_joined)
{
    bool is_first = true;

    for (size_t i = 0; i < row->field_count; i++) {
        if (!is_shown(&row->field[i]))
            continue;
        flow->comma = is_first == is_joined;
        flow_field(flow, &row->field[i]);
        is_first = false;
    }
}

static void part_text(const struct stat_part *part, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_table table = { .columns = part->columns, .count = part->column_count };
    struct stat_flow flow;
    struct stat_row row;
    int index = 0;

    stat_flow_begin(&flow, part->key);
    while (next_row(part->make, job, worker, &index, &row)) {
        if (part->columns != NULL) {
            stat_table_row(&table, &row);
            continue;
        }
        flow_row(&flow, &row, part->shape == STAT_JOINED);
        if (part->shape == STAT_LIST_OF) {
            stat_flow_end(&flow);
            stat_flow_begin(&flow, part->key);
        }
    }
    stat_flow_end(&flow);
}

void stat_parts_text(const struct stat_part *parts, const struct stat_job *job, const struct stat_worker *worker)
{
    struct stat_row row;
    int index = 0;

    for (const struct stat_part *part = parts; part->make != NULL; part++, index = 0) {
        part_text(part, job, worker);
        if (part->inner != NULL && next_row(part->make, job, worker, &index, &row))
            stat_parts_text(part->inner, job, worker);
    }
}

void stat_table_titles(struct stat_table *table, size_t count)
{
    for (size_t i = 0; table->rows == 0 && i < count; i++)
        printf("%*s%c", table->columns[i].width, table->columns[i].title, i + 1 < count ? ' ' : '\n');
}

void stat_names_line(const char *label, const struct stat_field *field)
{
    const char *name = field->at;
    struct stat_flow flow;

    stat_flow_begin(&flow, label);
    for (uint64_t i = 0; i < field->count; i++, name += strlen(name) + 1)
        stat_flow_add(&flow, "%s%s", name, i + 1 < field->count ? "," : "");
    stat_flow_end(&flow);
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
        stat_names_line(table->label, stat_row_field(row, table->names));
}

void stat_table_rows(struct stat_table *table, stat_row_fn make, const struct stat_job *job,
                     const struct stat_worker *worker)
{
    struct stat_row row;
    int index = 0;

    while (next_row(make, job, worker, &index, &row))
        stat_table_row(table, &row);
}
