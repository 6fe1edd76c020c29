/* SPDX-License-Identifier: MIT */
/*
 * How shmstat prints for people: figures with units, names, and lines of 80 columns.
 */
#include "text.h"

#include "shm/layout.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define COLUMNS 78              /* and a comma */
#define TEXTS 8

/* ---- Figures ------------------------------------------------------------------------------------ */

static char *next_text(void)
{
    static char texts[TEXTS][32];
    static unsigned at;

    return texts[at++ % TEXTS];
}

const char *stat_bytes_text(uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    char *text = next_text();
    double value = (double)bytes;
    int unit = 0;

    for (; value >= 1023.95 && unit < 6; unit++)
        value /= 1024;
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

const char *stat_time_text(double seconds)
{
    static const struct {
        double seconds;
        const char *name;
    } units[] = { { 1e-9, "ns" }, { 1e-6, "us" }, { 1e-3, "ms" }, { 1, "s" }, { 60, "min" }, { 3600, "h" },
                  { 86400, "d" } };
    char *text = next_text();
    int unit = 0;

    while (unit < 6 && seconds >= 0.9995 * units[unit + 1].seconds)
        unit++;

    double value = seconds / units[unit].seconds;

    snprintf(text, 32, "%.*f %s", unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[unit].name);
    return text;
}

void stat_printable(char *to, size_t bytes, const char *from, size_t from_bytes)
{
    size_t i = 0;

    for (; i + 1 < bytes && i < from_bytes && from[i] != '\0'; i++)
        to[i] = isascii((unsigned char)from[i]) && isprint((unsigned char)from[i]) ? from[i] : '?';
    to[i] = '\0';
}

const char *stat_cut_text(const char *name, size_t most)
{
    char *text = next_text();

    if (strlen(name) <= most)
        snprintf(text, BXI_NAME_BYTES, "%s", name);
    else
        snprintf(text, BXI_NAME_BYTES, "%.*s..", (int)most - 2, name);
    return text;
}

uint64_t stat_now_ns(int clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double stat_since(uint64_t then_ns, int clock)
{
    uint64_t now_ns = stat_now_ns(clock);

    return then_ns < now_ns ? (double)(now_ns - then_ns) / 1e9 : 0;
}

/* ---- Lines -------------------------------------------------------------------------------------- */

void stat_flow_begin(struct stat_flow *flow, const char *label)
{
    *flow = (struct stat_flow){ 0 };
    snprintf(flow->label, sizeof(flow->label), "%s", label);
}

void stat_flow_add(struct stat_flow *flow, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    int length = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (length < 0)
        return;
    if (flow->comma && flow->column > flow->indent)
        flow->column += printf(",");
    flow->comma = false;
    if (flow->column == 0)
        flow->indent = flow->column = printf("  %-10s", flow->label);
    if (flow->column > flow->indent && flow->column + 1 + length > COLUMNS) {
        printf("\n%*s", flow->indent, "");
        flow->column = flow->indent;
    }
    flow->column += printf("%s%s", flow->column > flow->indent ? " " : "", text);
}

void stat_flow_words(struct stat_flow *flow, const char *text)
{
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");

        stat_flow_add(flow, "%.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
}

void stat_flow_end(struct stat_flow *flow)
{
    if (flow->column > 0)
        putchar('\n');
}
