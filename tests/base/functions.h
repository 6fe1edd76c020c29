/* SPDX-License-Identifier: MIT */
/*
 * What test_null.c and test_forked.c share: handlers to register, and the public functions as the headers declare
 * them. With these a test finds the functions that it has no case for.
 */
#ifndef TESTS_FUNCTIONS_H
#define TESTS_FUNCTIONS_H

#include "tests/harness/test.h"
#include "boxcar.h"

#include <ctype.h>

static inline int answer_later(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply,
                               void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    return -EIO;
}

/* The text of a source file. Ends the test as skipped if the sources are not on this machine. */
static inline char *text_of(const char *name)
{
    const char *source = getenv("BX_SOURCE_DIR");
    char path[512], *text = calloc(1, 1 << 20);
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", source != NULL ? source : ".", name);
    file = fopen(path, "re");
    if (file == NULL)
        cr_skip("%s is not here; BX_SOURCE_DIR says where the sources are", path);
    cr_assert_gt(fread(text, 1, (1 << 20) - 1, file), 0);
    fclose(file);
    return text;
}

struct function {
    char name[64];
    char parameters[512];
};

/* Finds the next declaration of a public function from `line` on. Returns the line behind its first line, or NULL if
 * there is none. A declaration begins in the first column with a type; no parameter has parentheses. */
static inline const char *next_function(const char *line, struct function *function)
{
    while (*line != '\0') {
        const char *first = line, *open = line + strcspn(line, "(\n"), *name = open;

        line += strcspn(line, "\n");
        line += *line == '\n';
        while (name > first && (name[-1] == '_' || isalnum((unsigned char)name[-1])))
            name--;
        if (*open != '(' || strncmp(name, "bx_", 3) != 0 || !islower((unsigned char)*first) ||
            strncmp(first, "typedef", 7) == 0)
            continue;
        snprintf(function->name, sizeof function->name, "%.*s", (int)(open - name), name);
        snprintf(function->parameters, sizeof function->parameters, "%.*s", (int)strcspn(open, ")"), open);
        return line;
    }
    return NULL;
}

#endif
