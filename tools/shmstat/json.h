/* SPDX-License-Identifier: MIT */
/*
 * JSON on stdout. A key is NULL in an array.
 */
#ifndef TOOLS_STAT_JSON_H
#define TOOLS_STAT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The object that holds everything; its first keys are "command" and "layout_version". */
void stat_json_begin(const char *command);
void stat_json_end(void);

void stat_json_open(const char *key, char bracket);         /* '{' or '[' */
void stat_json_close(char bracket);                         /* '}' or ']' */
void stat_json_text(const char *key, const char *text);     /* NULL and "": null */
void stat_json_u64(const char *key, uint64_t value);
void stat_json_u64s(const char *key, const uint64_t *values, size_t count);     /* a list in one line */
void stat_json_seconds(const char *key, double seconds);
void stat_json_bool(const char *key, bool value);
void stat_json_null(const char *key);

#endif
