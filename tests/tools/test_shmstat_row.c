/* SPDX-License-Identifier: MIT */
/*
 * Rows of shmstat: values that are present, missing or not known, in each form that a row is printed in.
 */
#include "tools/shmstat/json.h"
#include "tools/shmstat/row.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *terminal, *memory;
static char *printed;
static size_t printed_bytes;

/* What is printed between begin_output and end_output is in printed. */
static void begin_output(void)
{
    free(printed);
    printed = NULL;
    terminal = stdout;
    memory = open_memstream(&printed, &printed_bytes);
    cr_assert_not_null(memory);
    stdout = memory;
}

static void end_output(void)
{
    stdout = terminal;
    fclose(memory);
}

static int make(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    static const uint64_t ranks[] = { 3, 5 };

    (void)job;
    (void)worker;
    stat_put(row, "index", STAT_ID, (uint64_t)index);
    stat_put(row, "bytes", STAT_BYTES, 1536);
    stat_put(row, "open", STAT_FLAG, 1);
    stat_put_if(row, false, "lost", STAT_COUNT, 7);
    stat_put_real(row, "age", STAT_SECONDS, 12.25);
    stat_put_real(row, "none", STAT_SECONDS, -1);
    stat_put_real(row, "unclear", STAT_SECONDS, NAN);
    stat_put_real(row, "took", STAT_NS, 1234.6);
    stat_put_text(row, "name", "a\"b");
    stat_put_text(row, "nobody", NULL);
    stat_put_list(row, "ranks", ranks, 2);
    stat_put_format(row, ".hidden", "%d of 2", index + 1);
    stat_put_text(row, "why", "because of this");
    return index == 0 ? STAT_ROW : index == 1 ? STAT_SKIP : STAT_END;
}

static void begin_row(struct stat_row *row)
{
    stat_row_begin(row);
    make(NULL, NULL, 0, row);
}

static const struct stat_part parts[] = { { .key = "rows", .shape = STAT_LIST_OF, .make = make }, { 0 } };

Test(shmstat_row, json_has_all_names_without_a_dot_and_null_for_what_is_missing, .timeout = 10)
{
    begin_output();
    stat_json_open(NULL, '{');
    stat_parts_json(parts, NULL, NULL);
    stat_json_close('}');
    end_output();
    cr_expect_str_eq(printed, "{\n \"rows\": [\n  {\n   \"index\": 0,\n   \"bytes\": 1536,\n   \"open\": true,\n"
                              "   \"lost\": null,\n   \"age\": 12.250000,\n   \"none\": null,\n   \"unclear\": null,\n"
                              "   \"took\": 1235,\n   \"name\": \"a\\\"b\",\n   \"nobody\": null,\n"
                              "   \"ranks\": [3, 5],\n   \"why\": \"because of this\"}]}");
}

Test(shmstat_row, a_line_leaves_out_zeroes_and_what_is_missing_and_is_broken_before_column_80, .timeout = 10)
{
    begin_output();
    stat_parts_text(parts, NULL, NULL);
    end_output();
    cr_expect_str_eq(printed, "  rows      index 0, bytes 1.5 KiB, open, age 12.2 s, took 1.23 us, a\"b, ranks\n"
                              "            3 5, because of this\n");
}

static int make_joined(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row)
{
    (void)job;
    (void)worker;
    stat_put(row, "oldest_seconds", STAT_COUNT, (uint64_t)index);
    stat_put_text(row, "name", index == 0 ? "one" : "other");
    return index < 2 ? STAT_ROW : STAT_END;
}

Test(shmstat_row, joined_rows_stand_in_one_line, .timeout = 10)
{
    static const struct stat_part joined[] = { { .key = "rows", .shape = STAT_JOINED, .make = make_joined }, { 0 } };

    begin_output();
    stat_parts_text(joined, NULL, NULL);
    end_output();
    cr_expect_str_eq(printed, "  rows      one, oldest 1 other\n");
}

Test(shmstat_row, a_table_tells_what_does_not_exist_from_what_is_not_known, .timeout = 10)
{
    static const struct stat_column columns[] = {
        { "NAME", "name", -6 }, { "LOST", "lost", 5 }, { "NONE", "none", 5 }, { "", NULL, 0 }, { "AGE", "age", 0 },
    };
    struct stat_table table = { .columns = columns, .count = 5 };
    struct stat_row row;

    begin_row(&row);
    begin_output();
    stat_table_row(&table, &row);
    end_output();
    cr_expect_str_eq(printed, "NAME    LOST  NONE  AGE\na\"b        ?     -  12.2 s\n");
}

Test(shmstat_row, a_metric_is_exact_and_zero_for_what_does_not_exist, .timeout = 10)
{
    struct stat_row row;

    begin_row(&row);
    stat_put(&row, "large", STAT_COUNT, UINT64_MAX);
    cr_expect_str_eq(stat_row_number(&row, "large"), "18446744073709551615");
    cr_expect_str_eq(stat_row_number(&row, "open"), "1");
    cr_expect_str_eq(stat_row_number(&row, "age"), "12.25");
    cr_expect_str_eq(stat_row_number(&row, "none"), "0");
    cr_expect_null(stat_row_number(&row, "lost"));
    cr_expect_null(stat_row_number(&row, "unclear"));
}
