/* SPDX-License-Identifier: MIT */
/*
 * Kernels: compiled by NVRTC for exactly this device, loaded, launched. Run by the thread that uses the device.
 *
 * They are compiled to the device's machine code and not to PTX: the driver would have to compile PTX again, and
 * refuses PTX of an NVRTC newer than itself. An NVRTC that does not know the device compiles for the first of its
 * generation (sm_80 for an sm_89), whose code runs on all later ones of it; if it does not know that one either, it is
 * too old.
 */
#include "cuda.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128 };               /* threads */

static const char source[] =
#include "kernels.inc"
;

struct entry {
    char name[64];
    struct CUfunc_st *function;
};

struct bx_kernels {
    struct bx_cuda *cuda;
    struct CUmod_st *module;
    char *name;
    struct entry *entries;          /* the kernels found so far */
    size_t entry_count, entry_capacity;
};

/* ---- Compiling ----------------------------------------------------------------------------------- */

/* NVRTC's log, which the caller frees; NULL: it is empty, or there is no memory. */
static char *log_of(const struct bx_cuda *cuda, struct _nvrtcProgram *program)
{
    size_t bytes = 0;
    char *log = NULL;

    if (cuda->nvrtc.nvrtcGetProgramLogSize(program, &bytes) == 0)
        log = calloc(1, bytes + 1);
    if (log != NULL && (cuda->nvrtc.nvrtcGetProgramLog(program, log) != 0 || log[0] == '\0')) {
        free(log);
        return NULL;
    }
    return log;
}

static int compile_failed(const struct bx_cuda *cuda, struct _nvrtcProgram *program, const char *name, int result)
{
    int major = 0, minor = 0, rc;
    char *log;

    if (result == BXI_NVRTC_INVALID_OPTION) {
        (void)cuda->nvrtc.nvrtcVersion(&major, &minor);
        return bx_fail(-ENOTSUP, "NVRTC %d.%d does not know device %d (%s, sm_%d): install a newer one", major, minor,
                       cuda->ordinal, cuda->name, cuda->capability);
    }
    log = log_of(cuda, program);
    if (result == BXI_NVRTC_COMPILATION)
        rc = bx_fail(-EINVAL, "%s does not compile: %s", name, log != NULL ? log : "no memory for the reason");
    else
        rc = bx_fail(-EIO, "NVRTC did not compile %s: %s%s%s", name, cuda->nvrtc.nvrtcGetErrorString(result),
                     log != NULL ? ": " : "", log != NULL ? log : "");
    free(log);
    return rc;
}

/* Gives the machine code in memory that the caller frees. */
static int take_code(const struct bx_cuda *cuda, struct _nvrtcProgram *program, const char *name, char **code)
{
    size_t bytes = 0;
    int result = cuda->nvrtc.nvrtcGetCUBINSize(program, &bytes);

    *code = result == 0 ? malloc(bytes + 1) : NULL;
    if (result == 0 && *code == NULL)
        return bx_fail(-ENOMEM, "no memory for %zu bytes of code of %s", bytes, name);
    if (result == 0)
        result = cuda->nvrtc.nvrtcGetCUBIN(program, *code);
    if (result == 0)
        return 0;
    free(*code);
    *code = NULL;
    return bx_fail(-EIO, "NVRTC gave no code of %s: %s", name, cuda->nvrtc.nvrtcGetErrorString(result));
}

/* Returns 0 or NVRTC's result. The caller destroys *program if it is not NULL. */
static int compile_for(const struct bx_cuda *cuda, const char *name, const char *text, int architecture,
                       struct _nvrtcProgram **program)
{
    char option[40];
    /* No contraction of a * b + c: the same arithmetic as on the CPU. */
    const char *const options[] = { option, "--fmad=false" };
    int result = cuda->nvrtc.nvrtcCreateProgram(program, text, name, 0, NULL, NULL);

    snprintf(option, sizeof(option), "--gpu-architecture=sm_%d", architecture);
    return result != 0 ? result : cuda->nvrtc.nvrtcCompileProgram(*program, 2, options);
}

static int compile(const struct bx_cuda *cuda, const char *name, const char *text, char **code)
{
    struct _nvrtcProgram *program = NULL;
    int oldest = cuda->capability / 10 * 10;
    int result = compile_for(cuda, name, text, cuda->capability, &program), rc;

    if (result == BXI_NVRTC_INVALID_OPTION && oldest != cuda->capability) {
        (void)cuda->nvrtc.nvrtcDestroyProgram(&program);
        program = NULL;
        result = compile_for(cuda, name, text, oldest, &program);
    }
    rc = result == 0 ? take_code(cuda, program, name, code) : compile_failed(cuda, program, name, result);
    if (program != NULL)
        (void)cuda->nvrtc.nvrtcDestroyProgram(&program);
    return rc;
}

/* ---- Making and ending --------------------------------------------------------------------------- */

/* With the context entered. */
static int make(struct bx_cuda *cuda, const char *name, const char *text, struct bx_kernels **kernels)
{
    struct bx_kernels *made = calloc(1, sizeof(*made));
    char *code = NULL;
    int rc;

    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for the kernels of %s", name);
    made->cuda = cuda;
    made->name = strdup(name);
    rc = made->name == NULL ? bx_fail(-ENOMEM, "no memory for the name %s", name) : compile(cuda, name, text, &code);
    if (rc == 0) {
        unsigned result = cuda->cu.cuModuleLoadData(&made->module, code);

        if (result != CUDA_SUCCESS) {
            made->module = NULL;
            rc = bxi_cuda_fail(cuda, result, "loading %s into device %d (%s)", name, cuda->ordinal, cuda->name);
        }
    }
    free(code);
    if (rc < 0) {
        free(made->name);
        free(made);
        return rc;
    }
    *kernels = made;
    return 0;
}

/* NULL is allowed. */
void bxi_kernels_end(void *object)
{
    struct bx_kernels *kernels = object;

    if (kernels == NULL)
        return;
    if (bxi_cuda_enter(kernels->cuda, "bx_kernels_destroy") == 0) {
        (void)bxi_cuda_sync(kernels->cuda);
        (void)kernels->cuda->cu.cuModuleUnload(kernels->module);
        bxi_cuda_leave(kernels->cuda);
    }
    free(kernels->entries);
    free(kernels->name);
    free(kernels);
}

void bx_kernels_destroy(struct bx_kernels *kernels)
{
    if (kernels != NULL)
        (void)bxi_cuda_end(kernels->cuda, bxi_kernels_end, kernels);
}

/* ---- Starting ------------------------------------------------------------------------------------ */

static int find_kernel(struct bx_kernels *kernels, const char *kernel, struct CUfunc_st **function)
{
    struct entry found = { .function = NULL };
    unsigned result;

    for (size_t i = 0; i < kernels->entry_count; i++) {
        if (strcmp(kernels->entries[i].name, kernel) == 0) {
            *function = kernels->entries[i].function;
            return 0;
        }
    }
    if (strlen(kernel) >= sizeof(found.name))
        return bx_fail(-EINVAL, "a kernel's name has at most %zu bytes, %s has %zu", sizeof(found.name) - 1, kernel,
                       strlen(kernel));
    strcpy(found.name, kernel);
    result = kernels->cuda->cu.cuModuleGetFunction(&found.function, kernels->module, kernel);
    if (result == CUDA_ERROR_NOT_FOUND)
        return bx_fail(-EINVAL, "%s has no kernel %s; is it extern \"C\" and __global__?", kernels->name, kernel);
    if (result != CUDA_SUCCESS)
        return bxi_cuda_fail(kernels->cuda, result, "kernel %s of %s", kernel, kernels->name);
    if (kernels->entry_count == kernels->entry_capacity) {
        size_t capacity = kernels->entry_capacity == 0 ? 16 : 2 * kernels->entry_capacity;
        struct entry *entries = realloc(kernels->entries, capacity * sizeof(*entries));

        if (entries == NULL)
            return bx_fail(-ENOMEM, "no memory for the kernels of %s", kernels->name);
        kernels->entries = entries;
        kernels->entry_capacity = capacity;
    }
    kernels->entries[kernels->entry_count++] = found;
    *function = found.function;
    return 0;
}

static bool is_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The name before the parenthesis at `open`: its length, *from its beginning. */
static size_t name_before(const char *text, const char *open, const char **from)
{
    const char *end = open;

    while (end > text && isspace((unsigned char)end[-1]))
        end--;
    *from = end;
    while (*from > text && is_letter((*from)[-1]))
        (*from)--;
    return (size_t)(end - *from);
}

/* Finds the kernels that the text declares, because the first search for one loads its code and may wait for the
 * device. Others, whose names a macro makes, are found when they are launched. */
static void find_all(struct bx_kernels *kernels, const char *text)
{
    static const char keyword[] = "__global__", bounds[] = "__launch_bounds__";
    char name[sizeof(((struct entry *)NULL)->name)];
    struct CUfunc_st *function = NULL;

    for (const char *at = strstr(text, keyword); at != NULL; at = strstr(at, keyword)) {
        const char *open = strchr(at += strlen(keyword), '('), *from = NULL;
        size_t length = open != NULL ? name_before(text, open, &from) : 0;

        if (length == strlen(bounds) && strncmp(from, bounds, length) == 0) {
            open = strchr(open + 1, '(');
            length = open != NULL ? name_before(text, open, &from) : 0;
        }
        if (length == 0 || length >= sizeof(name))
            continue;
        memcpy(name, from, length);
        name[length] = '\0';
        (void)find_kernel(kernels, name, &function);
    }
}

int bx_kernels_create(struct bx_cuda *cuda, const char *name, const char *text, struct bx_kernels **kernels)
{
    int rc;

    if (name == NULL || text == NULL || kernels == NULL)
        return bx_fail(-EINVAL, "bx_kernels_create needs a name, a text and a place for the kernels");
    rc = bxi_cuda_enter(cuda, "bx_kernels_create");
    if (rc < 0)
        return rc;
    rc = make(cuda, name, text, kernels);
    if (rc == 0)
        find_all(*kernels, text);
    bxi_cuda_leave(cuda);
    return rc;
}

int bxi_kernel_put(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args)
{
    const struct bx_cuda *cuda = kernels->cuda;
    size_t blocks = threads / BLOCK + (threads % BLOCK != 0);
    struct CUfunc_st *function = NULL;
    /* The driver knows the size of the struct, and copies it before it returns. */
    void *parameters[1] = { (void *)(uintptr_t)args };
    unsigned result;
    int rc = find_kernel(kernels, kernel, &function);

    if (rc < 0 || threads == 0)
        return rc;
    if (blocks > INT_MAX)
        return bx_fail(-EINVAL, "kernel %s of %s: %zu threads are more than a grid has", kernel, kernels->name,
                       threads);
    result = cuda->cu.cuLaunchKernel(function, (unsigned)blocks, 1, 1, BLOCK, 1, 1, 0, cuda->stream, parameters,
                                         NULL);
    return result == CUDA_SUCCESS ? 0 : bxi_cuda_fail(cuda, result, "starting kernel %s of %s", kernel,
                                                      kernels->name);
}

int bx_kernel_launch(struct bx_kernels *kernels, const char *kernel, size_t threads, const void *args)
{
    int rc;

    if (kernels == NULL || kernel == NULL || args == NULL)
        return bx_fail(-EINVAL, "bx_kernel_launch needs kernels, a name and the arguments");
    rc = bxi_cuda_enter(kernels->cuda, "bx_kernel_launch");
    if (rc < 0)
        return rc;
    rc = bxi_kernel_put(kernels, kernel, threads, args);
    bxi_cuda_leave(kernels->cuda);
    return rc;
}

/* Finds all kernels now, so that a pass over a net allocates nothing. */
int bxi_kernels_own(struct bx_cuda *cuda)
{
    static const char *const names[] = {
        "bxk_sum", "bxk_mask", "bxk_mse", "bxk_sgd",
    };
    struct CUfunc_st *function = NULL;
    int rc = make(cuda, "kernels.cu", source, &cuda->own);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && rc == 0; i++)
        rc = find_kernel(cuda->own, names[i], &function);
    return rc;
}
