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
    char *key;              /* of a child of an object */
    char *text;             /* of a string */
    double number;          /* of a number; 1 for true, 0 for false */
    struct json *first;     /* child of an array or object */
    struct json *next;      /* child of the same parent */
    size_t count;
};

/* NULL if the file cannot be read or the text is not JSON; errno is EINVAL if it is not JSON. */
struct json *json_load(const char *path);
struct json *json_parse(const char *text);
/* A file of reference numbers: in BX_REFERENCE_DIR, else in tests/data. NULL after a line on stderr. */
struct json *json_load_reference(const char *name);
void json_free(struct json *value);

/* NULL if there is no such child, or if the argument is NULL. */
const struct json *json_get(const struct json *object, const char *key);
const struct json *json_at(const struct json *array, size_t index);

/* NAN and "" if the value has another type. */
double json_number(const struct json *value);
const char *json_text(const struct json *value);

#endif
