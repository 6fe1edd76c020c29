/* SPDX-License-Identifier: MIT */
/*
 * Recursive descent over a terminated string, at most DEPTH_MAX deep. The tests read a few small files of known shape,
 * so a library, which would have to be installed, is not worth it. Escapes are decoded; \uXXXX above 127 becomes '?'.
 */
#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64
#define FILE_MAX (16u << 20)

struct parser {
    const char *at;
    int depth;
};

static struct json *parse_value(struct parser *in);

static void skip_space(struct parser *in)
{
    while (isspace((unsigned char)*in->at))
        in->at++;
}

static int take(struct parser *in, char c)
{
    skip_space(in);
    if (*in->at != c)
        return 0;
    in->at++;
    return 1;
}

static char unescape(struct parser *in)
{
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    char c = *in->at;

    if (c == '\0')
        return '\0';
    in->at++;
    if (c == 'u') {
        char digits[5] = "";

        for (int i = 0; i < 4 && isxdigit((unsigned char)*in->at); i++)
            digits[i] = *in->at++;
        long code = strtol(digits, NULL, 16);
        return code > 0 && code < 128 ? (char)code : '?';
    }
    const char *known = strchr(FROM, c);
    return known == NULL ? '\0' : TO[known - FROM];
}

static char *parse_string(struct parser *in)
{
    if (!take(in, '"'))
        return NULL;

    char *text = malloc(strcspn(in->at, "\n") + 1);     /* no longer than its line */
    size_t length = 0;

    while (text != NULL && *in->at != '"') {
        char c = *in->at == '\0' || *in->at == '\n' ? '\0' : *in->at++;

        if (c == '\\')
            c = unescape(in);
        if (c == '\0') {
            free(text);
            return NULL;
        }
        text[length++] = c;
    }
    if (text != NULL) {
        text[length] = '\0';
        in->at++;
    }
    return text;
}

/* The children of an array or an object, up to the closing bracket. 0 or -1. */
static int parse_children(struct parser *in, struct json *parent, char close)
{
    struct json **last = &parent->first;

    if (take(in, close))
        return 0;
    do {
        char *key = NULL;

        if (close == '}' && ((key = parse_string(in)) == NULL || !take(in, ':'))) {
            free(key);
            return -1;
        }
        struct json *child = parse_value(in);
        if (child == NULL) {
            free(key);
            return -1;
        }
        child->key = key;
        *last = child;
        last = &child->next;
        parent->count++;
    } while (take(in, ','));
    return take(in, close) ? 0 : -1;
}

static int parse_word(struct parser *in, struct json *value)
{
    static const struct { const char *word; enum json_type type; double number; } WORDS[] = {
        { "true", JSON_BOOL, 1.0 }, { "false", JSON_BOOL, 0.0 }, { "null", JSON_NULL, 0.0 },
    };
    char *end = NULL;

    for (size_t i = 0; i < sizeof(WORDS) / sizeof(WORDS[0]); i++) {
        size_t length = strlen(WORDS[i].word);

        if (strncmp(in->at, WORDS[i].word, length) == 0) {
            value->type = WORDS[i].type;
            value->number = WORDS[i].number;
            in->at += length;
            return 0;
        }
    }
    value->type = JSON_NUMBER;
    value->number = strtod(in->at, &end);
    if (end == in->at)
        return -1;
    in->at = end;
    return 0;
}

static struct json *parse_value(struct parser *in)
{
    struct json *value = calloc(1, sizeof(*value));
    int rc;

    if (value == NULL)
        return NULL;
    skip_space(in);
    if (++in->depth > DEPTH_MAX) {
        rc = -1;
    } else if (*in->at == '"') {
        value->type = JSON_STRING;
        value->text = parse_string(in);
        rc = value->text == NULL ? -1 : 0;
    } else if (take(in, '[')) {
        value->type = JSON_ARRAY;
        rc = parse_children(in, value, ']');
    } else if (take(in, '{')) {
        value->type = JSON_OBJECT;
        rc = parse_children(in, value, '}');
    } else {
        rc = parse_word(in, value);
    }
    in->depth--;
    if (rc == 0)
        return value;
    json_free(value);
    return NULL;
}

struct json *json_parse(const char *text)
{
    struct parser in = { .at = text };
    struct json *value = parse_value(&in);

    skip_space(&in);
    if (value != NULL && *in.at != '\0') {
        json_free(value);
        value = NULL;
    }
    if (value == NULL)
        errno = EINVAL;
    return value;
}

struct json *json_load(const char *path)
{
    struct json *value = NULL;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return NULL;
    char *text = malloc(FILE_MAX + 1);
    if (text != NULL) {
        size_t bytes = fread(text, 1, FILE_MAX, file);

        text[bytes] = '\0';
        value = json_parse(text);
    }
    free(text);
    fclose(file);
    return value;
}

void json_free(struct json *value)
{
    if (value == NULL)
        return;
    while (value->first != NULL) {
        struct json *child = value->first;

        value->first = child->next;
        json_free(child);
    }
    free(value->key);
    free(value->text);
    free(value);
}

const struct json *json_get(const struct json *object, const char *key)
{
    const struct json *child = object != NULL && object->type == JSON_OBJECT ? object->first : NULL;

    while (child != NULL && strcmp(child->key, key) != 0)
        child = child->next;
    return child;
}

const struct json *json_at(const struct json *array, size_t index)
{
    const struct json *child = array != NULL && array->type == JSON_ARRAY ? array->first : NULL;

    while (child != NULL && index-- > 0)
        child = child->next;
    return child;
}

double json_number(const struct json *value)
{
    if (value == NULL || (value->type != JSON_NUMBER && value->type != JSON_BOOL))
        return NAN;
    return value->number;
}

const char *json_text(const struct json *value)
{
    return value != NULL && value->type == JSON_STRING ? value->text : "";
}

struct json *json_load_reference(const char *name)
{
    const char *dir = getenv("BX_REFERENCE_DIR");
    const char *source = getenv("BX_SOURCE_DIR");
    char path[4096];

    if (dir != NULL && dir[0] != '\0')
        snprintf(path, sizeof(path), "%s/%s", dir, name);
    else
        snprintf(path, sizeof(path), "%s/tests/data/%s", source != NULL ? source : ".", name);
    struct json *file = json_load(path);
    if (file == NULL)
        fprintf(stderr, "%s cannot be read as JSON\n", path);
    return file;
}
