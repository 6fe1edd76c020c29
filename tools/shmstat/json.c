/* SPDX-License-Identifier: MIT */
/*
 * The JSON of shmstat. No library writes it: the tool is to need none. This writer counts commas and depth.
 */
#include "json.h"

#include "shm/layout.h"

#include <stdbool.h>
#include <stdio.h>

#define DEPTH_MAX 16

static struct {
    int depth;
    bool has_one[DEPTH_MAX];        /* in the bracket at that depth */
} json;

static void put_string(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void begin_value(const char *key)
{
    if (json.has_one[json.depth])
        putchar(',');
    if (json.depth > 0)
        printf("\n%*s", json.depth, "");
    json.has_one[json.depth] = true;
    if (key != NULL) {
        put_string(key);
        printf(": ");
    }
}

void stat_json_open(const char *key, char bracket)
{
    begin_value(key);
    putchar(bracket);
    if (json.depth + 1 < DEPTH_MAX)
        json.depth++;
    json.has_one[json.depth] = false;
}

void stat_json_close(char bracket)
{
    if (json.depth > 0)
        json.depth--;
    putchar(bracket);
}

void stat_json_begin(const char *command)
{
    stat_json_open(NULL, '{');
    stat_json_text("command", command);
    stat_json_u64("layout_version", BXI_LAYOUT_VERSION);
}

void stat_json_end(void)
{
    stat_json_close('}');
    putchar('\n');
}

void stat_json_text(const char *key, const char *text)
{
    begin_value(key);
    if (text == NULL || text[0] == '\0')
        printf("null");
    else
        put_string(text);
}

void stat_json_u64(const char *key, uint64_t value)
{
    begin_value(key);
    printf("%llu", (unsigned long long)value);
}

void stat_json_u64s(const char *key, const uint64_t *values, size_t count)
{
    begin_value(key);
    putchar('[');
    for (size_t i = 0; i < count; i++)
        printf("%s%llu", i > 0 ? ", " : "", (unsigned long long)values[i]);
    putchar(']');
}

void stat_json_seconds(const char *key, double seconds)
{
    begin_value(key);
    printf("%.6f", seconds);
}

void stat_json_bool(const char *key, bool value)
{
    begin_value(key);
    printf("%s", value ? "true" : "false");
}

void stat_json_null(const char *key)
{
    stat_json_text(key, NULL);
}
