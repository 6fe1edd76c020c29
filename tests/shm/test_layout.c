/* SPDX-License-Identifier: MIT */
/*
 * Compares shm/LAYOUT.md with shm/layout.h and lib/observe/tables.h, in both directions. The table of a struct must
 * have all its fields, in order, with offsets and sizes, without a hole: a new field in a header fails here until it
 * is in the list below and in the document.
 */
#include "observe/tables.h"
#include "shm/layout.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS 8

struct field {
    const char *name;
    size_t offset;
    size_t bytes;
};

#define FIELD(type, member)                                                                        \
    {                                                                                              \
        #member, offsetof(struct type, member), sizeof(((struct type *)0)->member)                 \
    }

static const struct field control_fields[] = {
    FIELD(bxi_control, header),  FIELD(bxi_control, tables0),  FIELD(bxi_control, pair),
    FIELD(bxi_control, credit),  FIELD(bxi_control, tables1),  FIELD(bxi_control, function),
    FIELD(bxi_control, tables2), { NULL, 0, 0 },
};

static const struct field tables_fields[] = {
    FIELD(bxi_tables, core0),    FIELD(bxi_tables, now),   FIELD(bxi_tables, wait),
    FIELD(bxi_tables, object_rows), FIELD(bxi_tables, objects_unshown), FIELD(bxi_tables, remote_rows),
    FIELD(bxi_tables, pad0),     FIELD(bxi_tables, counters), FIELD(bxi_tables, core1),
    FIELD(bxi_tables, pair_counters), FIELD(bxi_tables, core2), FIELD(bxi_tables, loans),
    FIELD(bxi_tables, batch),    FIELD(bxi_tables, serving), { NULL, 0, 0 },
};

static const struct field header_fields[] = {
    FIELD(bxi_header, magic),          FIELD(bxi_header, layout_version),
    FIELD(bxi_header, uid),            FIELD(bxi_header, pid),
    FIELD(bxi_header, rank),           FIELD(bxi_header, world_size),
    FIELD(bxi_header, ring_bytes),     FIELD(bxi_header, instance),
    FIELD(bxi_header, segment_bytes),  FIELD(bxi_header, started_ns),
    FIELD(bxi_header, name),           FIELD(bxi_header, job),
    FIELD(bxi_header, generation),     FIELD(bxi_header, rejoin),
    FIELD(bxi_header, state),          FIELD(bxi_header, function_count),
    FIELD(bxi_header, quota_cgroup),   FIELD(bxi_header, quota_thousandths),
    FIELD(bxi_header, arena_bytes),    FIELD(bxi_header, arena_used),
    FIELD(bxi_header, arena_committed), FIELD(bxi_header, arena_high_water),
    FIELD(bxi_header, hist_count),     FIELD(bxi_header, device_open),
    FIELD(bxi_header, armed),          FIELD(bxi_header, ending),       FIELD(bxi_header, reserved2),
    FIELD(bxi_header, cpu_mask),       { NULL, 0, 0 },
};

static const struct field pair_fields[] = {
    FIELD(bxi_pair, open),          FIELD(bxi_pair, want_credit), FIELD(bxi_pair, refused_through),
    FIELD(bxi_pair, refused_errno), FIELD(bxi_pair, want_lease),  FIELD(bxi_pair, given_back),
    FIELD(bxi_pair, reserved),
    { NULL, 0, 0 },
};

static const struct field credit_fields[] = {
    FIELD(bxi_credit, position),
    FIELD(bxi_credit, reserved),
    { NULL, 0, 0 },
};

static const struct field pair_counters_fields[] = {
    FIELD(bxi_pair_counters, frames_sent),      FIELD(bxi_pair_counters, bytes_sent),
    FIELD(bxi_pair_counters, write_pos),        FIELD(bxi_pair_counters, times_full),
    FIELD(bxi_pair_counters, high_water_bytes), FIELD(bxi_pair_counters, frames_received),
    FIELD(bxi_pair_counters, bytes_received),   FIELD(bxi_pair_counters, read_pos),
    { NULL, 0, 0 },
};

static const struct field loans_fields[] = {
    FIELD(bxi_loans, leases),     FIELD(bxi_loans, bytes),    FIELD(bxi_loans, oldest_ns),
    FIELD(bxi_loans, granted),    FIELD(bxi_loans, returned), FIELD(bxi_loans, taken_back),
    FIELD(bxi_loans, borrowed),   FIELD(bxi_loans, borrowed_total),
    { NULL, 0, 0 },
};

static const struct field function_fields[] = {
    FIELD(bxi_function, name),
    FIELD(bxi_function, kind),
    FIELD(bxi_function, reserved),
    { NULL, 0, 0 },
};

static const struct field now_fields[] = {
    FIELD(bxi_now, since_ns), FIELD(bxi_now, id),       FIELD(bxi_now, who),
    FIELD(bxi_now, spins),    FIELD(bxi_now, pool_stuck_ns), FIELD(bxi_now, pool_busy),
    FIELD(bxi_now, pool_waiting), FIELD(bxi_now, reserved), { NULL, 0, 0 },
};

static const struct field wait_fields[] = {
    FIELD(bxi_wait_row, thread),   FIELD(bxi_wait_row, id), FIELD(bxi_wait_row, to),
    FIELD(bxi_wait_row, since_ns), { NULL, 0, 0 },
};

static const struct field batch_fields[] = {
    FIELD(bxi_batch_words, members), FIELD(bxi_batch_words, present),  FIELD(bxi_batch_words, rows),
    FIELD(bxi_batch_words, running), FIELD(bxi_batch_words, max_rows), FIELD(bxi_batch_words, flush_after_ns),
    { NULL, 0, 0 },
};

static const struct field serving_fields[] = {
    FIELD(bxi_serving, where),    FIELD(bxi_serving, id), FIELD(bxi_serving, who),
    FIELD(bxi_serving, since_ns), { NULL, 0, 0 },
};

static const struct field hist_fields[] = {
    FIELD(bxi_hist, name),   FIELD(bxi_hist, who),      FIELD(bxi_hist, max_ns),
    FIELD(bxi_hist, sum_ns), FIELD(bxi_hist, reserved), FIELD(bxi_hist, bucket),
    { NULL, 0, 0 },
};

static const struct field call_fields[] = {
    FIELD(bxi_call_row, id),          FIELD(bxi_call_row, since), FIELD(bxi_call_row, end_pos),
    FIELD(bxi_call_row, deadline_ns), { NULL, 0, 0 },
};

static const struct field object_fields[] = {
    FIELD(bxi_object_row, id),      FIELD(bxi_object_row, state),   FIELD(bxi_object_row, since_ns),
    FIELD(bxi_object_row, holders), FIELD(bxi_object_row, entries), FIELD(bxi_object_row, name),
    { NULL, 0, 0 },
};

static const struct field remote_fields[] = {
    FIELD(bxi_remote_row, name),          FIELD(bxi_remote_row, host),       FIELD(bxi_remote_row, transport),
    FIELD(bxi_remote_row, bytes_sent),    FIELD(bxi_remote_row, bytes_received),
    FIELD(bxi_remote_row, round_trip_ns), FIELD(bxi_remote_row, is_dead),
    FIELD(bxi_remote_row, same_functions),    FIELD(bxi_remote_row, reserved),
    { NULL, 0, 0 },
};

static char *read_source(const char *path)
{
    static char text[128 * 1024];
    char full[4096];
    const char *root = getenv("BX_SOURCE_DIR");

    snprintf(full, sizeof(full), "%s/%s", root != NULL ? root : ".", path);
    FILE *file = fopen(full, "re");
    cr_assert_not_null(file, "%s cannot be read", full);
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    cr_assert_lt(bytes, sizeof(text) - 1);
    fclose(file);
    text[bytes] = '\0';
    return text;
}

/* Cuts "| a | `b` |" into { "a", "b" }, in place. The number of cells; 0 if the line is no table row. */
static int cut_row(char *line, char *cells[CELLS])
{
    int count = 0;

    if (line[0] != '|')
        return 0;
    for (char *cell = line + 1, *end; (end = strchr(cell, '|')) != NULL && count < CELLS;
         cell = end + 1) {
        char *last = end;
        while (*cell == ' ' || *cell == '`')
            cell++;
        while (last > cell && (last[-1] == ' ' || last[-1] == '`'))
            last--;
        *last = '\0';
        cells[count++] = cell;
    }
    return count;
}

/* The first row of the table under the line that begins with `heading`. An empty line ends the table. */
static char *find_table(char *text, const char *heading)
{
    char *at = strstr(text, heading);

    cr_assert_not_null(at, "LAYOUT.md has no \"%s\"", heading);
    at = strstr(at, "\n|---");
    cr_assert_not_null(at, "no table under \"%s\"", heading);
    return strchr(at + 1, '\n') + 1;
}

/* Cuts the row at *at and advances to the next. False behind the last row. */
static bool next_row(char **at, char *cells[CELLS], int *count)
{
    char *line = *at;

    if (line[0] != '|')
        return false;
    *at = line + strcspn(line, "\n");
    if (**at == '\n')
        *(*at)++ = '\0';
    *count = cut_row(line, cells);
    return true;
}

static void check_struct(const char *name, size_t bytes, const struct field *fields)
{
    char heading[128];
    char *cells[CELLS];
    size_t end = 0;
    int count = 0;

    snprintf(heading, sizeof(heading), "### `struct %s` (%zu bytes)\n", name, bytes);
    char *at = find_table(read_source("shm/LAYOUT.md"), heading);
    for (; fields->name != NULL; fields++) {
        cr_assert(next_row(&at, cells, &count), "%s.%s is not in the table", name, fields->name);
        cr_assert_eq(count, 7, "%s.%s: %d cells", name, fields->name, count);
        cr_assert_str_eq(cells[2], fields->name, "in %s", name);
        cr_assert_eq(strtoull(cells[0], NULL, 10), fields->offset, "offset of %s.%s", name,
                     fields->name);
        cr_assert_eq(strtoull(cells[1], NULL, 10), fields->bytes, "size of %s.%s", name,
                     fields->name);
        cr_assert_eq(fields->offset, end, "a hole before %s.%s", name, fields->name);
        end = fields->offset + fields->bytes;
    }
    cr_assert_eq(end, bytes, "a field is missing at the end of %s", name);
    cr_assert_not(next_row(&at, cells, &count), "the table of %s has a row too many", name);
}

TestSuite(layout, .timeout = 120);

Test(layout, of_every_struct_is_as_documented)
{
    static const struct {
        const char *name;
        size_t bytes;
        const struct field *fields;
    } structs[] = {
#define STRUCT(name, fields) { #name, sizeof(struct name), fields }
        STRUCT(bxi_control, control_fields),        STRUCT(bxi_tables, tables_fields),
        STRUCT(bxi_header, header_fields),          STRUCT(bxi_pair, pair_fields),
        STRUCT(bxi_credit, credit_fields),          STRUCT(bxi_pair_counters, pair_counters_fields),
        STRUCT(bxi_function, function_fields),      STRUCT(bxi_loans, loans_fields),
        STRUCT(bxi_now, now_fields),                STRUCT(bxi_wait_row, wait_fields),
        STRUCT(bxi_batch_words, batch_fields),      STRUCT(bxi_serving, serving_fields),
        STRUCT(bxi_call_row, call_fields),          STRUCT(bxi_hist, hist_fields),
        STRUCT(bxi_object_row, object_fields),      STRUCT(bxi_remote_row, remote_fields),
#undef STRUCT
    };

    for (size_t i = 0; i < sizeof(structs) / sizeof(structs[0]); i++)
        check_struct(structs[i].name, structs[i].bytes, structs[i].fields);
}

Test(layout, has_the_documented_constants)
{
    static const struct {
        const char *name;
        uint64_t value;
    } constants[] = {
#define CONSTANT(name) { #name, (uint64_t)(name) }
        CONSTANT(BXI_MAGIC),        CONSTANT(BXI_LAYOUT_VERSION), CONSTANT(BXI_WORLD_MAX),
        CONSTANT(BXI_NAME_BYTES),   CONSTANT(BXI_LINE),           CONSTANT(BXI_PAGE),
        CONSTANT(BXI_FUNCTION_MAX), CONSTANT(BXI_CPU_WORDS),      CONSTANT(BXI_QUOTAS),
        CONSTANT(BXI_GENERATION_MAX), CONSTANT(BXI_RING_BYTES), CONSTANT(BXI_LEASE_MAX),
        CONSTANT(BXI_LEASE_BYTES),  CONSTANT(BXI_CALLS_MAX),      CONSTANT(BXI_CALLS_FIRST),
        CONSTANT(BXI_CALLS_BYTES),  CONSTANT(BXI_CALLS_OPEN_BYTES), CONSTANT(BXI_HISTS_BYTES),
        CONSTANT(BXI_OBJECTS_BYTES), CONSTANT(BXI_REMOTES_BYTES), CONSTANT(BXI_SERVING_MAX), CONSTANT(BXI_WAITS_MAX),
        CONSTANT(BXI_WAIT_NOBODY),  CONSTANT(BXI_HIST_MAX),
        CONSTANT(BXI_HIST_BUCKETS), CONSTANT(BXI_OBJECTS_MAX),    CONSTANT(BXI_TYPE_BYTES),
        CONSTANT(BXI_HOST_BYTES), CONSTANT(BXI_TRANSPORT_BYTES),
        CONSTANT(BXI_FUNCTION_VALUE), CONSTANT(BXI_DEVICE_BYTES), CONSTANT(BXI_DEVICE_PAIR_BYTES),
        CONSTANT(BXI_DEVICE_POINTS), CONSTANT(BXI_OBJECTS_OFFSET), CONSTANT(BXI_DEVICE_OFFSET),
        CONSTANT(BXI_REMOTES_OFFSET), CONSTANT(BXI_RINGS_OFFSET),
        CONSTANT(BXI_RING_STRIDE),  CONSTANT(BXI_OPEN_BYTES),
        CONSTANT(BXI_FRAME_MAX),    CONSTANT(BXI_CONTROL_BYTES),  CONSTANT(BXI_STARTING),
        CONSTANT(BXI_RUNNING),      CONSTANT(BXI_LEAVING),        CONSTANT(BXI_LEFT),
        CONSTANT(BXI_GAVE_UP),      CONSTANT(BXI_AWAKE),          CONSTANT(BXI_WHO_BACKGROUND),
        CONSTANT(BXI_WHO_LEADER),
        CONSTANT(BXI_WHO_LAZY),     CONSTANT(BXI_AT_NONE),        CONSTANT(BXI_AT_POOL),
        CONSTANT(BXI_AT_THREAD),    CONSTANT(BXI_AT_BATCH),       CONSTANT(BXI_AT_BODY),
        CONSTANT(BXI_AT_FUTURE),    CONSTANT(BXI_AT_OBJECT),      CONSTANT(BXI_OBJECT_TO_COME),
        CONSTANT(BXI_OBJECT_THERE), CONSTANT(BXI_OBJECT_FAILED),  CONSTANT(BXI_BATCH_RESTS),
        CONSTANT(BXI_BATCH_ON_THREAD),
        CONSTANT(BXI_BATCH_BY_ROLE), CONSTANT(BXI_FOR_CALL),      CONSTANT(BXI_FOR_FUTURE),
        CONSTANT(BXI_FOR_ROOM),     CONSTANT(BXI_FOR_LOANS),      CONSTANT(BXI_FOR_JOB),
        CONSTANT(BXI_LEG_QUEUE),      CONSTANT(BXI_LEG_HANDLER),
        CONSTANT(BXI_LEG_REPLY),    CONSTANT(BXI_LEG_WHOLE),      CONSTANT(BXI_LEGS),
#undef CONSTANT
    };
    const size_t wanted = sizeof(constants) / sizeof(constants[0]);
    char *at = find_table(read_source("shm/LAYOUT.md"), "## Constants\n");
    char *cells[CELLS];
    int count = 0;

    for (size_t i = 0; i < wanted; i++) {
        cr_assert(next_row(&at, cells, &count), "%s is not in the table", constants[i].name);
        cr_assert_str_eq(cells[0], constants[i].name);
        cr_assert_eq(strtoull(cells[1], NULL, 0), constants[i].value, "%s", constants[i].name);
    }
    cr_assert_not(next_row(&at, cells, &count), "the table of constants has a row too many");
}

Test(layout, places_rings_as_documented)
{
    char *at = find_table(read_source("shm/LAYOUT.md"), "\n## Rings\n");
    char *cells[CELLS];
    int count = 0;
    int rows = 0;

    for (; next_row(&at, cells, &count); rows++)
        cr_assert_eq(strtoull(cells[1], NULL, 10), bxi_ring_offset(atoi(cells[0])), "ring %s",
                     cells[0]);
    cr_assert_geq(rows, 6);
}

Test(layout, places_lease_words_as_documented)
{
    char *at = find_table(read_source("shm/LAYOUT.md"), "\n## Lease words\n");
    char *cells[CELLS];
    int count = 0;
    int rows = 0;

    for (; next_row(&at, cells, &count); rows++)
        cr_assert_eq(strtoull(cells[1], NULL, 10), bxi_lease_offset(atoi(cells[0])), "peer %s", cells[0]);
    cr_assert_geq(rows, 3);
}

Test(layout, keeps_rings_and_lease_words_apart_and_inside_the_segment)
{
    for (int to = 0; to < BXI_WORLD_MAX; to++) {
        uint64_t stride = BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE;
        cr_assert_eq(bxi_ring_offset(to) % BXI_LINE, 0);
        cr_assert_geq(bxi_ring_offset(to), stride);
        /* No two share a page: opening one must neither allocate nor touch pages of the other. */
        cr_assert_eq(bxi_lease_offset(to) % BXI_PAGE, 0);
        cr_assert_leq(bxi_ring_offset(to) + BXI_RING_BYTES, bxi_lease_offset(to));
        cr_assert_eq(stride % BXI_PAGE, 0);
        cr_assert_eq(bxi_lease_offset(to) + BXI_LEASE_BYTES, bxi_calls_offset(to));
        cr_assert_eq(bxi_calls_offset(to) + BXI_CALLS_BYTES, bxi_device_pair_offset(to));
        cr_assert_eq(bxi_device_pair_offset(to) + BXI_DEVICE_PAIR_BYTES, stride + BXI_RING_STRIDE);
        cr_assert_eq(bxi_device_pair_offset(to) % BXI_PAGE, 0);
        cr_assert_eq(bxi_calls_offset(to) + BXI_CALLS_FIRST * sizeof(struct bxi_call_row), stride + BXI_OPEN_BYTES);
        cr_assert_eq(stride + BXI_RING_STRIDE, bxi_segment_bytes(to + 1));
    }
}

Test(layout, takes_the_documented_memory)
{
    char *at = find_table(read_source("shm/LAYOUT.md"), "\n## Memory\n");
    char *cells[CELLS];
    int count = 0;
    int rows = 0;

    for (; next_row(&at, cells, &count); rows++) {
        int world_size = atoi(cells[0]);
        uint64_t rest = (uint64_t)world_size * BXI_CONTROL_BYTES;
        uint64_t all = rest + (uint64_t)world_size * (uint64_t)(world_size - 1) * BXI_OPEN_BYTES;

        cr_assert_eq(count, 4);
        cr_assert_eq(strtoull(cells[1], NULL, 10), bxi_segment_bytes(world_size));
        cr_assert_eq(strtoull(cells[2], NULL, 10), rest);
        cr_assert_eq(strtoull(cells[3], NULL, 10), all);
    }
    cr_assert_geq(rows, 4);
}

/* Joins C comments or table cells to one line: without stars at line starts and backslashes, with single blanks. */
static void flatten(char *text)
{
    char *to = text;
    bool at_start = false;

    for (char *from = text; *from != '\0'; from++) {
        if (*from == '\\' || (at_start && *from == '*'))
            continue;
        at_start = *from == '\n' || (at_start && *from == ' ');
        if ((*from == ' ' || *from == '\n') && to > text && to[-1] == ' ')
            continue;
        *to++ = *from == '\n' ? ' ' : *from;
    }
    *to = '\0';
}

/* Takes `first`; the caller frees what is returned. */
static char *concatenated(char *first, const char *second)
{
    size_t bytes = strlen(first);
    char *both = realloc(first, bytes + strlen(second) + 1);

    cr_assert_not_null(both);
    strcpy(both + bytes, second);
    return both;
}

Test(layout, has_the_documented_invariants)
{
    static char document[128 * 1024];
    char row[64];
    int number = 1;

    memcpy(document, read_source("shm/LAYOUT.md"), sizeof(document));
    char *header = strdup(read_source("shm/layout.h"));
    header = concatenated(header, read_source("lib/observe/tables.h"));
    flatten(header);
    for (;; number++) {
        snprintf(row, sizeof(row), "\n| I%d | ", number);
        char *at = strstr(document, row);
        if (at == NULL)
            break;
        char *text = at + strlen(row);
        char *end = strstr(text, " |\n");
        cr_assert_not_null(end);
        size_t bytes = (size_t)(end - text);
        char wanted[1024];
        snprintf(wanted, sizeof(wanted), " I%d %.*s", number, (int)bytes, text);
        flatten(wanted);
        cr_assert_not_null(strstr(header, wanted), "the headers do not say \"%s\"", wanted);
    }
    snprintf(row, sizeof(row), " I%d ", number);
    cr_assert_geq(number, 12);
    cr_assert_null(strstr(header, row), "LAYOUT.md lacks I%d", number);
    free(header);
}
