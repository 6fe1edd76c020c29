/* SPDX-License-Identifier: MIT */
/*
 * Modules and launches. A cubin is a first line with the fake's name and the architecture, then the null-terminated
 * text that was passed to the fake NVRTC. A kernel is found if the text names it and it is compiled into the fake. A
 * text in PTX, which begins with .version, is a module without kernels.
 */
#include "fake.h"
#include "kernel.h"
#include "nvrtc.h"

#include <ctype.h>

#define INVALID_IMAGE 200
#define NO_BINARY_FOR_GPU 209
#define ARGUMENT_BYTES 4096                     /* all of a kernel's, before CUDA 12.1 */
#define SHARED_BYTES 49152

struct CUfunc_st {
    struct CUfunc_st *next;
    const struct CUmod_st *module;
    const struct fake_kernel *kernel;
};

struct CUmod_st {
    struct CUctx_st *context;
    struct CUfunc_st *functions;
    char *text;
};

struct launch {
    const struct fake_kernel *kernel;
    struct fake_index grid, block;
    _Alignas(16) unsigned char argument[ARGUMENT_BYTES];
};

_Thread_local struct fake_index blockIdx, blockDim, threadIdx, gridDim;
static struct fake_kernel *kernels;             /* written before main only */

void fake_kernel_enter(struct fake_kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

unsigned long long fake_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec;
}

/* ---- Modules --------------------------------------------------------------------------------- */

/* The text of an image; PTX has none here. */
static unsigned text_of(const char *image, const char **text)
{
    static const char mark[] = FAKE_CUBIN_MARK FAKE_CUBIN_ARCHITECTURE "\n";
    static const char ptx[] = ".version ";

    *text = "";
    if (image != NULL && strncmp(image, ptx, strlen(ptx)) == 0)
        return CUDA_SUCCESS;
    if (image == NULL || strncmp(image, FAKE_CUBIN_MARK, strlen(FAKE_CUBIN_MARK)) != 0)
        return INVALID_IMAGE;
    if (strncmp(image, mark, strlen(mark)) != 0)
        return NO_BINARY_FOR_GPU;
    *text = image + strlen(mark);
    return CUDA_SUCCESS;
}

unsigned cuModuleLoadData(struct CUmod_st **out, const void *image)
{
    const char *text;
    struct CUctx_st *context;
    struct CUmod_st *module;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    result = text_of(image, &text);
    if (result == CUDA_SUCCESS)
        result = fake_unsafe();
    if (result != CUDA_SUCCESS)
        return result;
    fake_block();
    module = fake_new(sizeof(*module));
    module->text = strdup(text);
    module->context = context;
    *out = module;
    return CUDA_SUCCESS;
}

/* Launches still queued on a stream have their own copies. */
unsigned cuModuleUnload(struct CUmod_st *module)
{
    struct CUctx_st *context;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    fake_block();
    while (module->functions != NULL) {
        struct CUfunc_st *function = module->functions;

        module->functions = function->next;
        free(function);
    }
    free(module->text);
    free(module);
    return CUDA_SUCCESS;
}

static bool names(const char *text, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = strstr(text, name); at != NULL; at = strstr(at + 1, name)) {
        bool begins = at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '_');

        if (begins && !isalnum((unsigned char)at[length]) && at[length] != '_')
            return true;
    }
    return false;
}

unsigned cuModuleGetFunction(struct CUfunc_st **out, struct CUmod_st *module, const char *name)
{
    const struct fake_kernel *kernel = kernels;
    struct CUctx_st *context;
    struct CUfunc_st *function;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || name == NULL || module->context != context)
        return CUDA_ERROR_INVALID_VALUE;
    while (kernel != NULL && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    if (kernel == NULL || !names(module->text, name))
        return CUDA_ERROR_NOT_FOUND;
    fake_block();                       /* modules are loaded lazily: each kernel when it is first asked for */
    function = fake_new(sizeof(*function));
    function->module = module;
    function->kernel = kernel;
    function->next = module->functions;
    module->functions = function;
    *out = function;
    return CUDA_SUCCESS;
}

/* ---- Launches -------------------------------------------------------------------------------- */

static void run_block(const struct launch *launch)
{
    for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
        for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
                launch->kernel->thread(launch->argument);
}

/* The last block first, so that a kernel that relies on the order of blocks fails. */
static void run_launch(const void *argument)
{
    const struct launch *launch = argument;

    gridDim = launch->grid;
    blockDim = launch->block;
    for (blockIdx.z = gridDim.z; blockIdx.z-- > 0;)
        for (blockIdx.y = gridDim.y; blockIdx.y-- > 0;)
            for (blockIdx.x = gridDim.x; blockIdx.x-- > 0;)
                run_block(launch);
}

static bool is_grid(const struct fake_index *grid, const struct fake_index *block)
{
    if (grid->x == 0 || grid->y == 0 || grid->z == 0 || block->x == 0 || block->y == 0 || block->z == 0)
        return false;
    return grid->x <= INT32_MAX && grid->y <= UINT16_MAX && grid->z <= UINT16_MAX && block->x <= 1024 &&
        block->y <= 1024 && block->z <= 64 && (uint64_t)block->x * block->y * block->z <= 1024;
}

unsigned cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        struct CUstream_st *stream, void **parameters, void **extra)
{
    struct launch launch = { .grid = { grid_x, grid_y, grid_z }, .block = { block_x, block_y, block_z } };
    struct CUctx_st *context;
    unsigned result = fake_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (function == NULL || function->module->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_grid(&launch.grid, &launch.block) || shared_bytes > SHARED_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (parameters == NULL || parameters[0] == NULL || extra != NULL || function->kernel->bytes > ARGUMENT_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    launch.kernel = function->kernel;
    memcpy(launch.argument, parameters[0], function->kernel->bytes);
    return fake_stream_call(stream, run_launch, &launch, sizeof(launch));
}
