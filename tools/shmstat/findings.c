/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: the list of violations.
 */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define LISTED_MAX 1000

void stat_violate(struct stat_findings *findings, const struct stat_violation *where, const char *format, ...)
{
    va_list args;

    if (findings->count >= LISTED_MAX) {
        findings->dropped++;
        return;
    }
    if (findings->list == NULL)
        findings->list = calloc(LISTED_MAX, sizeof(*findings->list));
    if (findings->list == NULL) {
        findings->dropped++;
        return;
    }
    struct stat_violation *violation = &findings->list[findings->count++];
    *violation = *where;
    va_start(args, format);
    vsnprintf(violation->text, sizeof(violation->text), format, args);
    va_end(args);
}
