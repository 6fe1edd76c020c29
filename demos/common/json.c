/* SPDX-License-Identifier: MIT */
/*
 * The writer of JSON. Run by a program's first process.
 */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

struct json json_file(FILE *file)
{
    return (struct json){ file, "{\n  " };
}

void json_finish(struct json *json)
{
    fputs("\n}\n", json->file);
}

static void put_key(struct json *json, const char *key)
{
    fputs(json->between, json->file);
    if (key != NULL)
        fprintf(json->file, "\"%s\": ", key);
    json->between = ", ";
}

void json_put(struct json *json, const char *key, const char *format, ...)
{
    va_list args;

    put_key(json, key);
    va_start(args, format);
    vfprintf(json->file, format, args);
    va_end(args);
}

void json_real(struct json *json, const char *key, double value)
{
    if (isfinite(value))
        json_put(json, key, "%.9g", value);
    else
        json_put(json, key, "null");
}

void json_u64(struct json *json, const char *key, uint64_t value)
{
    json_put(json, key, "%" PRIu64, value);
}

void json_list(struct json *json, const char *key)
{
    json_line(json);
    json_put(json, key, "[");
    json->between = "";
}

void json_list_end(struct json *json)
{
    fputs("]", json->file);
    json->between = ",\n  ";
}

void json_item(struct json *json)
{
    fprintf(json->file, "%s\n    { ", json->between[0] == ',' ? "," : "");
    json->between = "";
}

void json_item_end(struct json *json)
{
    fputs(" }", json->file);
    json->between = ", ";
}

void json_line(struct json *json)
{
    if (json->between[0] == ',')
        json->between = ",\n  ";
}

static void put_flag(struct json *json, const struct flag *flag, const char *key)
{
    char device[FLAGS_DEVICE_BYTES];

    switch (flag->kind) {
    case FLAG_SWITCH:
        json_put(json, key, *(const bool *)flag->value ? "true" : "false");
        break;
    case FLAG_U64:
        json_u64(json, key, *(const uint64_t *)flag->value);
        break;
    case FLAG_INT:
        json_put(json, key, "%d", *(const int *)flag->value);
        break;
    case FLAG_REAL:
        json_real(json, key, *(const double *)flag->value);
        break;
    case FLAG_CHOICE:
        json_put(json, key, "\"%s\"", flag->choices[*(const int *)flag->value]);
        break;
    case FLAG_DEVICE:
        json_put(json, key, "\"%s\"", flags_device_name(*(const int *)flag->value, device));
        break;
    default:
        break;
    }
}

void json_flags(struct json *json, const struct flags *flags)
{
    for (size_t i = 0; i < flags->count; i++) {
        char key[64];

        snprintf(key, sizeof(key), "%s", flags->flags[i].name);
        for (char *at = key; (at = strchr(at, '-')) != NULL;)
            *at = '_';
        put_flag(json, &flags->flags[i], key);
    }
    json_line(json);
}
