/* SPDX-License-Identifier: MIT */
/*
 * Prints lines as text or as JSON, when they come, and keeps their verdicts for the end.
 */
#include "gpucheck.h"

#include "boxcar.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define KEPT 160                        /* lines of all questions, at most */


static struct {
    bool json;
    struct {
        const char *key;
        enum check_verdict verdict;
        double value;
    } kept[KEPT];
    unsigned count;
} report;

static const char *const words[CHECK_VERDICTS] = {
    [CHECK_UNKNOWN] = "unknown", [CHECK_GOOD] = "good", [CHECK_BAD] = "bad", [CHECK_NOTE] = "note",
    [CHECK_ABSENT] = "absent",
};

static void print_string(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text >= ' ' ? *text : ' ');
    }
    putchar('"');
}

static void print_member(const char *key, const char *text)
{
    printf("\"%s\": ", key);
    if (text != NULL)
        print_string(text);
    else
        fputs("null", stdout);
}

void check_report_open(bool is_json)
{
    report.json = is_json;
    if (report.json)
        printf("{\"gpucheck\": \"%s\", \"lines\": [", bx_version());
    fflush(stdout);
}

void check_report_fake(void)
{
    if (!report.json)
        puts("FAKE     The driver is the one of Boxcar's tests, and there is no GPU: the answers below tell how it is "
             "configured, and nothing about this machine.");
    fflush(stdout);
}

/* What a line means for Boxcar; NULL: nothing can be said. */
static const char *meaning(const struct check_line *line, enum check_verdict verdict)
{
    return verdict == CHECK_GOOD || verdict == CHECK_NOTE ? line->good : verdict == CHECK_BAD ? line->bad : NULL;
}

static void print_json(const struct check_line *line, const struct check_answer *answer)
{
    fputs(report.count > 0 ? ",\n  {" : "\n  {", stdout);
    print_member("key", line->key);
    fputs(", ", stdout);
    print_member("verdict", words[answer->verdict]);
    fputs(", ", stdout);
    print_member("answer", answer->text);
    fputs(", ", stdout);
    print_member("means", meaning(line, answer->verdict));
    if (answer->unit != NULL) {
        if (isfinite(answer->value))
            printf(", \"value\": %.3f, ", answer->value);
        else
            fputs(", \"value\": null, ", stdout);
        print_member("unit", answer->unit);
    }
    putchar('}');
}

void check_report_line(const struct check_line *line, const struct check_answer *answer)
{
    const char *means = meaning(line, answer->verdict);

    if (report.json)
        print_json(line, answer);
    else
        printf("%-8s %-22s %s%s%s\n", words[answer->verdict], line->key, answer->text, means != NULL ? " " : "",
               means != NULL ? means : "");
    fflush(stdout);
    if (report.count < KEPT) {
        report.kept[report.count].key = line->key;
        report.kept[report.count].verdict = answer->verdict;
        report.kept[report.count].value = answer->unit != NULL ? answer->value : (double)NAN;
        report.count++;
    }
}

enum check_verdict check_reported(const char *key)
{
    for (unsigned i = 0; i < report.count; i++)
        if (strcmp(report.kept[i].key, key) == 0)
            return report.kept[i].verdict;
    return CHECK_UNKNOWN;
}

double check_reported_value(const char *key)
{
    for (unsigned i = 0; i < report.count; i++)
        if (strcmp(report.kept[i].key, key) == 0)
            return report.kept[i].value;
    return (double)NAN;
}

unsigned check_reported_count(enum check_verdict verdict)
{
    unsigned count = 0;

    for (unsigned i = 0; i < report.count; i++)
        count += report.kept[i].verdict == verdict;
    return count;
}

void check_report_close(const struct check_found *found, const struct check_ending *ending)
{
    if (report.json) {
        printf("],\n \"fake\": %s, ", found->is_fake ? "true" : "false");
        print_member("device", found->device[0] != '\0' ? found->device : NULL);
        fputs(", ", stdout);
        print_member("order", ending->order);
        fputs(",\n ", stdout);
        print_member("why", ending->why);
        printf(", \"status\": %d, \"seconds\": %.1f}\n", ending->status, ending->seconds);
    } else {
        printf("%-8s %-22s %s\n", "order", ending->order != NULL ? ending->order : "none", ending->why);
        printf("%u good, %u bad, %u notes, %u absent, %u unknown; %.1f s%s\n", check_reported_count(CHECK_GOOD),
               check_reported_count(CHECK_BAD), check_reported_count(CHECK_NOTE), check_reported_count(CHECK_ABSENT),
               check_reported_count(CHECK_UNKNOWN), ending->seconds, found->is_fake ? "; FAKE driver" : "");
    }
}
