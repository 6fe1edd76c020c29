/* SPDX-License-Identifier: MIT */
/*
 * Writes the figures of a run as one JSON object, value by value; commas and lines are put between them.
 */
#ifndef DEMOS_JSON_H
#define DEMOS_JSON_H

#include "flags.h"

#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *file;
    const char *between;    /* what comes before the next value */
};

/* Begins and ends the object of the file. The caller opens and closes the file, and finds its errors there. */
struct json json_file(FILE *file);
void json_finish(struct json *json);

/* A value; key NULL: in a list. json_put prints it as it is. json_real writes null for what JSON does not have. */
void json_put(struct json *json, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
void json_real(struct json *json, const char *key, double value);
void json_u64(struct json *json, const char *key, uint64_t value);

void json_list(struct json *json, const char *key);
void json_list_end(struct json *json);
/* An object in a list, on a line of its own. */
void json_item(struct json *json);
void json_item_end(struct json *json);
/* The next value begins a line. */
void json_line(struct json *json);

/* A line with all flags that have a number, a choice, a device or no value. The key of --max-episodes is
 * "max_episodes". */
void json_flags(struct json *json, const struct flags *flags);

#endif
