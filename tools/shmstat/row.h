/* SPDX-License-Identifier: MIT */
/*
 * Rows, and the three forms that they are printed in.
 *
 * A row is a list of named values about one thing: a worker, a ring, a slab. One function of type stat_row_fn makes it;
 * the value and its unit are written there, once. Each form then takes values out of the row by name:
 *
 *     JSON            all values in the row's order, except those whose name begins with a dot
 *     text            the same as lines of 80 columns: "peer 1 callee, leases 2, bytes 1.5 MiB"; or aligned columns
 *     Prometheus      one value as a number: stat_row_number; prometheus.c has the table of metrics
 *
 * The unit says how text prints a value ("1.5 MiB", "3.12 h"). A value may be missing: STAT_NONE if there is none
 * (no frame lies unread, a call has no deadline), STAT_NOT_KNOWN if it cannot be read. JSON prints null for both, text
 * columns "-" and "?"; a line leaves such a value out, and zeroes too; a metric takes NONE as 0.
 *
 *     static int loan_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row)
 *     {
 *         stat_put(row, "leases", STAT_COUNT, stat_word(&bxi_tables(worker->control)->loans[peer].leases));
 *         stat_put(row, "bytes", STAT_BYTES, stat_word(&bxi_tables(worker->control)->loans[peer].bytes));
 *         return STAT_ROW;
 *     }
 *     { .key = "loans", .shape = STAT_LIST_OF, .make = loan_row },
 *
 * The last line is a part (struct stat_part): what the JSON and the text of a subcommand have of a worker is a table of
 * parts, read by stat_parts_json and stat_parts_text.
 *
 * A name that a row lacks is a mistake of this program, and ends it.
 */
#ifndef TOOLS_STAT_ROW_H
#define TOOLS_STAT_ROW_H

#include "text.h"

#include <stdbool.h>

struct stat_job;
struct stat_worker;

enum stat_unit {
    STAT_COUNT,
    STAT_ID,            /* as COUNT, but lines have it if it is 0 */
    STAT_BYTES,
    STAT_SECONDS,       /* text: "1.23 us", "3.12 h" */
    STAT_NS,            /* in nanoseconds, whole in JSON; text: "1.23 us" */
    STAT_FLAG,
    STAT_TEXT,          /* "" is null in JSON; a line has the text without its name */
    STAT_LIST,          /* whole numbers; in a column: how many */
    STAT_NAMES,         /* a list of texts; text: parted by commas */
};

enum stat_presence { STAT_PRESENT, STAT_NONE, STAT_NOT_KNOWN };

#define STAT_FIELDS_MAX 72

struct stat_field {
    const char *name;
    enum stat_unit unit;
    enum stat_presence presence;
    uint64_t count;             /* of a LIST and of NAMES: how many */
    double real;                /* of SECONDS and NS */
    const void *at;             /* of TEXT and LIST; of NAMES the first, the others behind it */
};

struct stat_row {
    struct stat_field field[STAT_FIELDS_MAX];
    size_t field_count;
    uint64_t list[256];         /* the values of its lists */
    size_t list_count;
    char text[16384];           /* its texts */
    size_t text_bytes;
};

/* ---- Making a row ------------------------------------------------------------------------------- */

void stat_row_begin(struct stat_row *row);
void stat_put(struct stat_row *row, const char *name, enum stat_unit unit, uint64_t value);
/* NOT_KNOWN unless is_known. */
void stat_put_if(struct stat_row *row, bool is_known, const char *name, enum stat_unit unit, uint64_t value);
/* NONE if it is negative, NOT_KNOWN if it is NAN. */
void stat_put_real(struct stat_row *row, const char *name, enum stat_unit unit, double value);
/* Copied. NULL: none. */
void stat_put_text(struct stat_row *row, const char *name, const char *text);
void stat_put_format(struct stat_row *row, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void stat_put_list(struct stat_row *row, const char *name, const uint64_t *values, size_t count);
/* An empty list of texts; and one more text of the list, which is the field that was put last. */
void stat_put_names(struct stat_row *row, const char *name);
void stat_add_name(struct stat_row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { STAT_END = -1, STAT_SKIP = 0, STAT_ROW = 1 };

/* Makes the row of that worker at an index, which begins at 0: STAT_ROW; STAT_SKIP if there is none at this index;
 * STAT_END if there is none from this index on. The row has been begun. */
typedef int (*stat_row_fn)(const struct stat_job *job, const struct stat_worker *worker, int index,
                           struct stat_row *row);

/* ---- Forms -------------------------------------------------------------------------------------- */

/* The keys of a row, without a bracket: of one that was made, or of the first that `make` makes. */
void stat_row_json(const struct stat_row *row);
void stat_first_json(stat_row_fn make, const struct stat_job *job, const struct stat_worker *worker);

/* A line of NAMES, unless there are none. */
void stat_names_line(const char *label, const struct stat_field *names);

struct stat_column {
    const char *title;
    const char *name;           /* NULL: an empty column */
    int width;                  /* < 0: aligned to the left */
};

struct stat_table {
    const struct stat_column *columns;      /* parted by a blank */
    size_t count;
    const char *label, *names;              /* of a line below each row, of these NAMES unless there are none */
    size_t rows;                            /* printed so far: the titles come before the first */
};

/* The titles of so many columns, unless they were printed before. */
void stat_table_titles(struct stat_table *table, size_t count);
void stat_table_row(struct stat_table *table, const struct stat_row *row);
void stat_table_rows(struct stat_table *table, stat_row_fn make, const struct stat_job *job,
                     const struct stat_worker *worker);

/* What JSON and text have of one kind of row. A table of parts ends with an empty one. */
struct stat_part {
    const char *key;            /* in JSON, and at the beginning of lines */
    enum stat_shape {
        STAT_ONE,               /* JSON: an object, of the row at index 0, or null; text: a line */
        STAT_LIST_OF,           /* JSON: a list of objects; text: a line each, or a table */
        STAT_JOINED,            /* the same; text: all rows in one line */
    } shape;
    stat_row_fn make;
    const struct stat_part *inner;          /* of ONE: parts that follow the row, in its object */
    const struct stat_column *columns;      /* of a table */
    size_t column_count;
};

void stat_parts_json(const struct stat_part *parts, const struct stat_job *job, const struct stat_worker *worker);
void stat_parts_text(const struct stat_part *parts, const struct stat_job *job, const struct stat_worker *worker);

/* ---- One value ---------------------------------------------------------------------------------- */

const struct stat_field *stat_row_field(const struct stat_row *row, const char *name);
/* As a number; NULL if it is NOT_KNOWN. Not of a TEXT. Valid until the next call. */
const char *stat_row_number(const struct stat_row *row, const char *name);

#endif
