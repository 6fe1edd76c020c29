/* SPDX-License-Identifier: MIT */
/*
 * Reads a program's flags by its table. Run by the program's first process, before it starts or writes anything.
 * getopt_long finds the flags. Their values are parsed here: strtoull alone would accept "-1", " 7" and "10x".
 */
#include "flags.h"

#include <boxcar.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST 256       /* getopt_long's value for flag 0; those of --help and --version follow the last */

int flags_wrong(const struct flags *flags, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "%s: ", flags->program);
    vfprintf(stderr, format, args);
    fprintf(stderr, "; see %s --help\n", flags->program);
    va_end(args);
    return -1;
}

static int read_number(const struct flags *flags, const struct flag *flag, const char *text)
{
    char *end = NULL;

    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (strspn(text, "0123456789") != strlen(text) || end == text || errno != 0 || number < flag->least ||
        number > flag->most)
        return flags_wrong(flags, "--%s takes a whole number from %llu to %llu, not \"%s\"", flag->name,
                           (unsigned long long)flag->least, (unsigned long long)flag->most, text);
    if (flag->kind == FLAG_INT)
        *(int *)flag->value = (int)number;
    else
        *(uint64_t *)flag->value = number;
    return 0;
}

static int read_real(const struct flags *flags, const struct flag *flag, const char *text)
{
    char *end = NULL;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= flag->real_least && value <= flag->real_most))
        return flags_wrong(flags, "--%s takes a number from %g to %g, not \"%s\"", flag->name,
                           flag->real_least, flag->real_most, text);
    *(double *)flag->value = value;
    return 0;
}

static int read_choice(const struct flags *flags, const struct flag *flag, const char *text)
{
    char list[200] = "";
    size_t length = 0;

    for (int i = 0; flag->choices[i] != NULL; i++) {
        const char *between = i == 0 ? "" : flag->choices[i + 1] != NULL ? ", " : " or ";

        if (strcmp(text, flag->choices[i]) == 0) {
            *(int *)flag->value = i;
            return 0;
        }
        if (length < sizeof(list))
            length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s", between, flag->choices[i]);
    }
    return flags_wrong(flags, "--%s is %s, not \"%s\"", flag->name, list, text);
}

static int read_text(const struct flags *flags, const struct flag *flag, const char *text)
{
    const char *type = strlen(text) > 4 ? text + strlen(text) - 4 : "";

    if (text[0] == '\0')
        return flags_wrong(flags, "--%s takes a file name, not \"\"", flag->name);
    if (flag->kind == FLAG_FIGURE && strcmp(type, ".svg") != 0 && strcmp(type, ".png") != 0)
        return flags_wrong(flags, "--%s takes a file name that ends in .svg or .png, not \"%s\"", flag->name,
                           text);
    *(const char **)flag->value = text;
    return 0;
}

static int read_device(const struct flags *flags, const struct flag *flag, const char *text)
{
    int ordinal = DEVICE_CPU, used = 0;

    if (strcmp(text, "cuda") == 0)
        ordinal = DEVICE_CUDA;
    else if (strcmp(text, "cpu") != 0 &&
             (strncmp(text, "cuda:", 5) != 0 || !isdigit((unsigned char)text[5]) ||
              sscanf(text, "cuda:%3d%n", &ordinal, &used) != 1 || text[used] != '\0'))
        return flags_wrong(flags, "--%s is cpu, cuda or cuda:N, not \"%s\"", flag->name, text);
    *(int *)flag->value = ordinal;
    return 0;
}

const char *flags_device_name(int device, char text[FLAGS_DEVICE_BYTES])
{
    if (device < 0)
        return strcpy(text, device == DEVICE_CUDA ? "cuda" : "cpu");
    snprintf(text, FLAGS_DEVICE_BYTES, "cuda:%d", device);
    return text;
}

static int read_flag(const struct flags *flags, const struct flag *flag, const char *text)
{
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)flag->value = true;
        return 0;
    case FLAG_U64:
    case FLAG_INT:
        return read_number(flags, flag, text);
    case FLAG_REAL:
        return read_real(flags, flag, text);
    case FLAG_CHOICE:
        return read_choice(flags, flag, text);
    case FLAG_DEVICE:
        return read_device(flags, flag, text);
    case FLAG_LIST:
        *(const char **)flag->value = text;
        return 0;
    default:
        return read_text(flags, flag, text);
    }
}

int flags_parse(const struct flags *flags, int argc, char **argv)
{
    struct option options[FLAGS_MAX + 3] = { { NULL, 0, NULL, 0 } };
    int count = flags->count < FLAGS_MAX ? (int)flags->count : FLAGS_MAX;
    int found, at = optind;

    for (int i = 0; i < count; i++)
        options[i] = (struct option){ flags->flags[i].name,
                                      flags->flags[i].kind == FLAG_SWITCH ? no_argument : required_argument,
                                      NULL, FIRST + i };
    options[count] = (struct option){ "help", no_argument, NULL, FIRST + count };
    options[count + 1] = (struct option){ "version", no_argument, NULL, FIRST + count + 1 };
    for (; (found = getopt_long(argc, argv, "+:", options, NULL)) != -1; at = optind) {
        if (found == ':')
            return flags_wrong(flags, "%s needs a value", argv[at]);
        if (found == '?')               /* within -xy getopt_long stays where it is */
            return flags_wrong(flags, "there is no flag %s, or it takes no value", argv[at]);
        if (found == FIRST + count)
            fputs(flags->help, stdout);
        else if (found == FIRST + count + 1)
            printf("%s %s\n", flags->program, bx_version());
        if (found >= FIRST + count)
            return 1;
        if (read_flag(flags, &flags->flags[found - FIRST], optarg) < 0)
            return -1;
    }
    return optind < argc ? flags_wrong(flags, "\"%s\" is not a flag", argv[optind]) : 0;
}
