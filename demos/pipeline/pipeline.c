/* SPDX-License-Identifier: MIT */
/*
 * pipeline - a ResNet-50 cut in two, the halves on two workers, micro-batches in flight on both at once.
 *
 * This file is the launcher: it reads the flags, opens the file for the results before any work starts, runs the job
 * (worker.c), and writes the results. The master prints the lines, and writes its results to memory that is mapped
 * before the fork.
 */
#include "demos/common/ending.h"
#include "demos/common/flags.h"
#include "pipeline.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char HELP[] =
    "Usage: pipeline [flags]\n"
    "\n"
    "Trains a ResNet-50 that is cut in two: layers 1 and 2 on one worker, layers 3 and 4 on another. Each\n"
    "batch of images is split into micro-batches, which are in flight on both workers at once.\n"
    "\n"
    "  --splits LIST          numbers of micro-batches, a run for each (1,2,4,8). Each divides the batch\n"
    "  --batches N            batches of each run (3). One more comes first, and is not timed\n"
    "  --batch-size N         images in a batch (16)\n"
    "  --image N              their height and width (64; 32 to 512)\n"
    "  --seed N               the same seed gives the same model and images (0)\n"
    "  --json FILE            all figures\n"
    "  --help, --version\n"
    "\n"
    "Prints the seconds for each number of micro-batches.\n"
    "\n"
    "Exit status: 0 all is trained; 1 a file could not be written; 2 a wrong flag; 3 a worker died or\n"
    "failed. SIGINT and SIGTERM end the workers, then the program by that signal.\n";

/* ---- Flags --------------------------------------------------------------------------------------------- */

static int check_splits(const struct flags *flags, const struct pl_flags *of, unsigned long splits)
{
    if (splits < 1 || splits > (unsigned long)of->batch_size || (unsigned long)of->batch_size % splits != 0)
        return flags_wrong(flags, "a batch of %d images does not split into %lu equal parts", of->batch_size, splits);
    if (of->image <= 32 && (unsigned long)of->batch_size == splits)
        return flags_wrong(flags, "a micro-batch of one image of 32 x 32 leaves a single pixel, which cannot be "
                           "normalised: fewer splits or --image 33");
    return 0;
}

/* "1,2,4": whole numbers with commas between them. */
static int read_splits(const struct flags *flags, struct pl_flags *to, const char *text)
{
    to->runs = 0;
    for (const char *at = text;; at++) {
        char *end = NULL;
        unsigned long splits = strtoul(at, &end, 10);

        if (*at < '0' || *at > '9' || (*end != ',' && *end != '\0') || to->runs == PL_RUNS_MAX)
            return flags_wrong(flags, "--splits takes 1 to %d whole numbers with commas between them, not \"%s\"",
                               PL_RUNS_MAX, text);
        if (check_splits(flags, to, splits) < 0)
            return -1;
        to->splits[to->runs++] = (int)splits;
        if (*end == '\0')
            return 0;
        at = end;
    }
}

/* 0; 1: --help or --version is done; -1 after a sentence on stderr. */
static int parse_flags(int argc, char **argv, struct pl_flags *to)
{
    const char *splits = "1,2,4,8";
    const struct flag table[] = {
        { "splits", FLAG_TEXT, .value = &splits },
        { "batches", FLAG_U64, &to->batches, .least = 1, .most = PL_BATCHES_MAX },
        { "batch-size", FLAG_INT, &to->batch_size, .least = 1, .most = 1024 },
        { "image", FLAG_INT, &to->image, .least = 32, .most = 512 },
        { "seed", FLAG_U64, &to->seed, .most = UINT64_MAX },
        { "json", FLAG_TEXT, .value = &to->json },
    };
    const struct flags flags = { "pipeline", HELP, table, sizeof(table) / sizeof(table[0]) };

    *to = (struct pl_flags){ .batches = 3, .batch_size = 16, .image = 64 };
    int rc = flags_parse(&flags, argc, argv);
    return rc != 0 ? rc : read_splits(&flags, to, splits);
}

/* ---- Results ------------------------------------------------------------------------------------------- */

static void write_number(FILE *file, const char *key, double number)
{
    if (isfinite(number))
        fprintf(file, ", \"%s\": %.9g", key, number);
    else
        fprintf(file, ", \"%s\": null", key);       /* JSON has no NaN and no infinity */
}

static void write_json(const struct pl_flags *flags, const struct pl_result *result, FILE *file)
{
    double images = (double)flags->batches * flags->batch_size;

    fprintf(file, "{\n  \"batches\": %llu, \"batch_size\": %d, \"image\": %d, \"seed\": %llu,\n  \"runs\": [",
            (unsigned long long)flags->batches, flags->batch_size, flags->image, (unsigned long long)flags->seed);
    for (size_t i = 0; i < flags->runs; i++) {
        const struct pl_run *run = &result->run[i];

        fprintf(file, "%s\n    { \"splits\": %d", i == 0 ? "" : ",", flags->splits[i]);
        write_number(file, "seconds", run->seconds);
        write_number(file, "images_per_s", images / run->seconds);
        write_number(file, "first_loss", run->first_loss);
        write_number(file, "last_loss", run->last_loss);
        fputs(" }", file);
    }
    fputs("\n  ]\n}\n", file);
}

static int json_failed(const struct pl_flags *flags)
{
    fprintf(stderr, "pipeline: %s cannot be written: %s\n", flags->json, strerror(errno));
    return PL_FAILED;
}

/* Runs the job and writes its results; the caller opens and closes `json`. */
static int run_and_report(const struct pl_flags *flags, FILE *json)
{
    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    struct pl_result *result = mmap(NULL, sizeof(*result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (result == MAP_FAILED) {
        fprintf(stderr, "pipeline: no memory to share with the workers: %s\n", strerror(errno));
        return PL_FAILED;
    }
    int status = pl_run_job(flags, result);
    if (status == PL_OK && json != NULL) {
        write_json(flags, result, json);
        if (fflush(json) != 0)
            status = json_failed(flags);
    }
    munmap(result, sizeof(*result));
    return status;
}

int main(int argc, char **argv)
{
    struct pl_flags flags;
    FILE *json = NULL;

    setvbuf(stdout, NULL, _IOLBF, 0);       /* the workers inherit it: each line comes when it is printed */
    int rc = parse_flags(argc, argv, &flags);
    if (rc != 0)
        return rc < 0 ? PL_USAGE : ending_output("pipeline") < 0 ? PL_FAILED : PL_OK;
    if (flags.json != NULL && (json = fopen(flags.json, "we")) == NULL)
        return json_failed(&flags);
    int status = run_and_report(&flags, json);
    if (json != NULL && fclose(json) != 0)
        status = json_failed(&flags);
    return status;
}
