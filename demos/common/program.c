/* SPDX-License-Identifier: MIT */
/*
 * The life of a first process, as program.h has it.
 */
#include "program.h"

#include "ending.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *program_share(const char *program, size_t bytes)
{
    int kind = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, -1, 0);

    if (memory != MAP_FAILED)
        return memory;
    fprintf(stderr, "%s: no memory to share with the workers: %s\n", program, strerror(errno));
    return NULL;
}

static bool runs_worker;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double program_median(double *values, size_t count)
{
    if (count == 0)
        return (double)NAN;
    qsort(values, count, sizeof(*values), compare_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2.0;
}

static const char *path_of(const char *const *flag)
{
    return flag != NULL ? *flag : NULL;
}

static int json_failed(const struct program *program)
{
    fprintf(stderr, "%s: %s cannot be written: %s\n", program->flags.program, *program->json, strerror(errno));
    return PROGRAM_FAILED;
}

static int report(const struct program *program, const void *result, FILE *file)
{
    if (program->print != NULL)
        program->print(result);
    if (file != NULL) {
        struct json json = json_file(file);

        json_flags(&json, &program->flags);
        program->write_json(&json, result);
        json_finish(&json);
        if (fflush(file) != 0)
            return json_failed(program);
    }
    if (path_of(program->plot) != NULL) {
        struct plot plot = program->figure(result);

        if (plot_draw(&plot, *program->plot) < 0)
            return PROGRAM_FAILED;
    }
    return ending_output(program->flags.program) < 0 ? PROGRAM_FAILED : PROGRAM_OK;
}

void program_runs_worker(void)
{
    runs_worker = true;
}

bool program_has_none(const void *result, size_t bytes)
{
    size_t i = 0;

    while (i < bytes && ((const unsigned char *)result)[i] == 0)
        i++;
    return runs_worker && i == bytes;
}

/* Runs the job and reports it; the caller opens and closes `file`. */
static int run_and_report(const struct program *program, FILE *file)
{
    size_t bytes = program->result_bytes();
    void *result = program_share(program->flags.program, bytes);

    if (result == NULL)
        return PROGRAM_FAILED;
    int status = program->run(result);
    bool is_complete = status == PROGRAM_OK || (program->is_complete != NULL && program->is_complete(result));
    if (is_complete && !program_has_none(result, bytes) && report(program, result, file) != PROGRAM_OK)
        status = PROGRAM_FAILED;
    munmap(result, bytes);
    return status;
}

int program_main(const struct program *program, int argc, char **argv)
{
    const char *name = program->flags.program;
    FILE *file = NULL;

    /* The workers inherit line buffering: the lines of all processes stay whole and in order. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = flags_parse(&program->flags, argc, argv);
    if (rc == 0 && program->check != NULL)
        rc = program->check(&program->flags);
    if (rc != 0)
        return rc < 0 ? PROGRAM_USAGE : ending_output(name) < 0 ? PROGRAM_FAILED : PROGRAM_OK;
    if (path_of(program->plot) != NULL && plot_check(name, *program->plot) < 0)
        return PROGRAM_FAILED;
    if (path_of(program->json) != NULL && (file = fopen(*program->json, "we")) == NULL)
        return json_failed(program);
    int status = run_and_report(program, file);
    if (file != NULL && fclose(file) != 0)
        status = json_failed(program);
    return status;
}
