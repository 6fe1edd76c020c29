/* SPDX-License-Identifier: MIT */
/*
 * How shmstat prints: figures for people, lines of 80 columns, and JSON. No library does the JSON, for the
 * tool shall need none; the writer only keeps count of commas and depth.
 */
#include "shmstat.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS 79
#define TEXTS 8
#define DEPTH_MAX 16

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

const char *stat_span_text(double seconds)
{
    char *text = next_text();
    unsigned long whole = seconds < 1e12 ? (unsigned long)seconds : 0;

    if (seconds < 10)
        snprintf(text, 32, "%.1f s", seconds);
    else if (whole < 60)
        snprintf(text, 32, "%lu s", whole);
    else if (whole < 3600)
        snprintf(text, 32, "%lu min %02lu s", whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(text, 32, "%lu h %02lu min", whole / 3600, whole / 60 % 60);
    else
        snprintf(text, 32, "%lu d %02lu h", whole / 86400, whole / 3600 % 24);
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
    flow->indent = flow->column = printf("  %-10s", label);
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
    putchar('\n');
    flow->column = 0;
}

void stat_worker_text(const struct stat_worker *worker)
{
    const char *activity = stat_activity(worker);
    struct stat_flow flow;

    printf("worker %d", worker->rank);
    if (worker->name[0] != '\0')
        printf(" %s", worker->name);
    if (worker->pid != 0)
        printf(", pid %u", worker->pid);
    printf(": %s%s%s", worker->state != 0 ? stat_state_name(worker->state) : "", worker->state != 0 ? ", " : "",
           activity);
    if (worker->control != NULL && strcmp(activity, "asleep") == 0)
        printf(" (%s)", stat_who_name(stat_word(&worker->control->header.armed)));
    printf("\n");
    if (worker->control != NULL)
        return;
    stat_flow_begin(&flow, "problem");
    stat_flow_words(&flow, worker->problem);
    stat_flow_end(&flow);
}

/* ---- JSON --------------------------------------------------------------------------------------- */

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

static void json_memory(const struct stat_job *job)
{
    uint64_t segments = 0, arenas = 0;

    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        if (job->workers[rank] == NULL)
            continue;
        segments += job->workers[rank]->segment.held;
        arenas += job->workers[rank]->arena.held;
    }
    stat_json_u64("segment_bytes", segments);
    stat_json_u64("arena_bytes", arenas);
    stat_json_u64("shm_bytes", segments + arenas);
}

void stat_json_job(const struct stat_job *job)
{
    uint64_t started_ns = stat_job_started_ns(job);
    uint64_t missing[BXI_WORLD_MAX];
    size_t missing_count = stat_job_missing(job, missing);
    char instance[24];
    int found = 0, alive = 0;

    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        found += job->workers[rank] != NULL;
        alive += job->workers[rank] != NULL && stat_worker_alive(job->workers[rank]);
    }
    snprintf(instance, sizeof(instance), "%016llx", (unsigned long long)job->instance);
    stat_json_text("job", job->name);
    stat_json_text("instance", instance);
    stat_json_bool("alive", stat_job_alive(job));
    stat_json_text("state", stat_job_state(job));
    stat_json_u64("world_size", (uint64_t)stat_job_size(job));
    stat_json_u64("workers_found", (uint64_t)found);
    stat_json_u64("workers_alive", (uint64_t)alive);
    stat_json_u64s("missing_ranks", missing, missing_count);
    if (started_ns != 0) {
        stat_json_u64("started_ns", started_ns);
        stat_json_seconds("age_seconds", stat_since(started_ns, CLOCK_REALTIME));
    } else {
        stat_json_null("started_ns");
        stat_json_null("age_seconds");
    }
    json_memory(job);
}

void stat_json_worker(const struct stat_worker *worker)
{
    stat_json_u64("rank", (uint64_t)worker->rank);
    stat_json_text("name", worker->name);
    if (worker->pid != 0)
        stat_json_u64("pid", worker->pid);
    else
        stat_json_null("pid");
    stat_json_bool("alive", stat_worker_alive(worker));
    stat_json_text("state", worker->state != 0 ? stat_state_name(worker->state) : NULL);
    stat_json_text("activity", stat_activity(worker));
    stat_json_text("problem", worker->problem);
}
