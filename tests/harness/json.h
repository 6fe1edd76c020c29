/* SPDX-License-Identifier: MIT */
/*
 * A small JSON reader for tests: the whole file as a tree, freed at once.
 */
#ifndef TESTS_JSON_H
#define TESTS_JSON_H

#include <stddef.h>

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    char *key;              /* in an object */
    char *text;             /* a string's */
    double number;          /* a number's; 1 for true */
    struct json *first;     /* of an array's or object's children */
    struct json *next;
    size_t count;
};

/* NULL if it cannot be read or is not JSON; errno is EINVAL then. */
struct json *json_load(const char *path);
struct json *json_parse(const char *text);
/* A file of reference numbers: in BX_REFERENCE_DIR, else in tests/data. NULL after a line on stderr. */
struct json *json_load_reference(const char *name);
void json_free(struct json *value);

/* NULL where there is none, and for NULL. */
const struct json *json_get(const struct json *object, const char *key);
const struct json *json_at(const struct json *array, size_t index);

/* NAN and "" where it is something else. */
double json_number(const struct json *value);
const char *json_text(const struct json *value);

#endif
