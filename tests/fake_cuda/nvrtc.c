/* SPDX-License-Identifier: MIT */
/*
 * The fake NVRTC: compiles nothing, but refuses unknown options and architectures, and a text with unbalanced braces,
 * with a log. With FAKE_NVRTC_BUILTINS set it opens its builtins by name when it compiles, as the real one does, and
 * fails if the dynamic linker does not find them.
 */
#include "nvrtc.h"
#include "nn/cuda_api.h"
#include "fake.h"

#include <dlfcn.h>

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_NVRTC_FUNCTIONS(DECLARE)
#undef DECLARE

#define RESULTS(X)                                                                              \
    X(NVRTC_SUCCESS, 0)                                                                         \
    X(NVRTC_ERROR_OUT_OF_MEMORY, 1)                                                             \
    X(NVRTC_ERROR_PROGRAM_CREATION_FAILURE, 2)                                                  \
    X(NVRTC_ERROR_INVALID_INPUT, 3)                                                             \
    X(NVRTC_ERROR_INVALID_PROGRAM, 4)                                                           \
    X(NVRTC_ERROR_INVALID_OPTION, 5)                                                            \
    X(NVRTC_ERROR_COMPILATION, 6)                                                               \
    X(NVRTC_ERROR_BUILTIN_OPERATION_FAILURE, 7)
#define ENTER(name, value) name = value,
enum { RESULTS(ENTER) };
#undef ENTER

struct _nvrtcProgram {
    char *source;
    char name[64];
    char log[256];
    char architecture[8];               /* "90"; "": virtual, so no cubin */
    bool is_compiled;
};

int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = 4;
    return NVRTC_SUCCESS;
}

const char *nvrtcGetErrorString(int result)
{
    switch (result) {
#define NAME(name, value) case value: return #name;
    RESULTS(NAME)
#undef NAME
    default: return "NVRTC_ERROR unknown";
    }
}

int nvrtcCreateProgram(struct _nvrtcProgram **out, const char *source, const char *name, int header_count,
                       const char *const *headers, const char *const *include_names)
{
    struct _nvrtcProgram *program = fake_new(sizeof(*program));

    (void)headers, (void)include_names;
    if (header_count != 0)
        return NVRTC_ERROR_INVALID_INPUT;       /* here there are none */
    program->source = strdup(source);
    snprintf(program->name, sizeof(program->name), "%s", name != NULL ? name : "default_program");
    *out = program;
    return NVRTC_SUCCESS;
}

int nvrtcDestroyProgram(struct _nvrtcProgram **program)
{
    free((*program)->source);
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

/* ---- Compiling ------------------------------------------------------------------------------- */

static int take_architecture(struct _nvrtcProgram *program, const char *value)
{
    const char *newest = getenv("FAKE_NVRTC_NEWEST");
    bool is_virtual = strncmp(value, "compute_", 8) == 0;
    const char *digits = value + (is_virtual ? 8 : 3);
    int number = atoi(digits);

    if ((!is_virtual && strncmp(value, "sm_", 3) != 0) || number < 50 ||
        number > atoi(newest != NULL ? newest : FAKE_CUBIN_ARCHITECTURE)) {
        snprintf(program->log, sizeof(program->log),
                 "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
        return NVRTC_ERROR_INVALID_OPTION;
    }
    snprintf(program->architecture, sizeof(program->architecture), "%s", is_virtual ? "" : digits);
    return NVRTC_SUCCESS;
}

static int take_option(struct _nvrtcProgram *program, const char *option)
{
    static const char *const known[] = { "--fmad=false", "-fmad=false", "--fmad=true", "--std=c++11", "--std=c++14",
                                         "--std=c++17", "-default-device" };

    if (strncmp(option, "--gpu-architecture=", 19) == 0)
        return take_architecture(program, option + 19);
    if (strncmp(option, "-arch=", 6) == 0)
        return take_architecture(program, option + 6);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(option, known[i]) == 0)
            return NVRTC_SUCCESS;
    snprintf(program->log, sizeof(program->log), "nvrtc: error: unrecognized option %s found\n", option);
    return NVRTC_ERROR_INVALID_OPTION;
}

/* The line of a closing brace without an opening one, or the last line if some stay open; 0: balanced. */
static int line_of_error(const char *source)
{
    int line = 1, open = 0;

    for (; *source != '\0'; source++) {
        line += *source == '\n';
        open += (*source == '{') - (*source == '}');
        if (open < 0)
            return line;
    }
    return open == 0 ? 0 : line;
}

static bool has_builtins(struct _nvrtcProgram *program)
{
    static const char name[] = "libnvrtc-builtins.so.12.4";

    if (getenv("FAKE_NVRTC_BUILTINS") == NULL || dlopen(name, RTLD_NOW | RTLD_LOCAL) != NULL)
        return true;
    snprintf(program->log, sizeof(program->log), "nvrtc: error: failed to open %s.\n"
             "  Make sure that %s is installed correctly.\n", name, name);
    return false;
}

int nvrtcCompileProgram(struct _nvrtcProgram *program, int option_count, const char *const *options)
{
    int line, result = NVRTC_SUCCESS;

    program->log[0] = program->architecture[0] = '\0';
    program->is_compiled = false;
    for (int i = 0; i < option_count && result == NVRTC_SUCCESS; i++)
        result = take_option(program, options[i]);
    if (result != NVRTC_SUCCESS)
        return result;
    if (!has_builtins(program))
        return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE;
    line = line_of_error(program->source);
    if (line != 0) {
        snprintf(program->log, sizeof(program->log), "%s(%d): error: expected a \"}\"\n\n"
                 "1 error detected in the compilation of \"%s\".\n", program->name, line, program->name);
        return NVRTC_ERROR_COMPILATION;
    }
    program->is_compiled = true;
    return NVRTC_SUCCESS;
}

/* ---- Results --------------------------------------------------------------------------------- */

int nvrtcGetCUBINSize(struct _nvrtcProgram *program, size_t *bytes)
{
    if (!program->is_compiled)
        return NVRTC_ERROR_INVALID_PROGRAM;
    *bytes = 0;
    if (program->architecture[0] != '\0')
        *bytes = strlen(FAKE_CUBIN_MARK) + strlen(program->architecture) + 1 + strlen(program->source) + 1;
    return NVRTC_SUCCESS;
}

int nvrtcGetCUBIN(struct _nvrtcProgram *program, char *cubin)
{
    if (!program->is_compiled || program->architecture[0] == '\0')
        return NVRTC_ERROR_INVALID_PROGRAM;
    sprintf(cubin, FAKE_CUBIN_MARK "%s\n%s", program->architecture, program->source);
    return NVRTC_SUCCESS;
}

int nvrtcGetProgramLogSize(struct _nvrtcProgram *program, size_t *bytes)
{
    *bytes = strlen(program->log) + 1;
    return NVRTC_SUCCESS;
}

int nvrtcGetProgramLog(struct _nvrtcProgram *program, char *log)
{
    memcpy(log, program->log, strlen(program->log) + 1);
    return NVRTC_SUCCESS;
}
