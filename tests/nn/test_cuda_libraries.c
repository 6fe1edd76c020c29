/* SPDX-License-Identifier: MIT */
/*
 * The real NVRTC, cuBLAS and cuDNN, if they are installed; none of this needs a GPU. They have every function that
 * lib/nn looks up, and NVRTC compiles every kernel text, with the options of cuda_kernels.c, for devices from Volta to
 * Blackwell. A test whose library is missing says that it is skipped.
 */
#include "tests/harness/test.h"
#include "nn/cuda_api.h"

#include <dlfcn.h>

static void *open_first(const char *const *names)
{
    void *library = NULL;

    for (; library == NULL && *names != NULL; names++)
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        cr_skip_test("not installed");
    return library;
}

static void *open_nvrtc(void)
{
    return open_first((const char *const[]){ "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", NULL });
}

#define EXPECT_FOUND(type, name, arguments) cr_expect_not_null(dlsym(library, #name), "%s", #name);

TestSuite(cuda_libraries, .timeout = 120);

Test(cuda_libraries, nvrtc_has_every_function)
{
    void *library = open_nvrtc();

    BXI_NVRTC_FUNCTIONS(EXPECT_FOUND)
}

Test(cuda_libraries, cublas_has_every_function)
{
    void *library = open_first((const char *const[]){ "libcublas.so.13", "libcublas.so.12", "libcublas.so.11", NULL });

    BXI_CUBLAS_FUNCTIONS(EXPECT_FOUND)
}

Test(cuda_libraries, cudnn_has_every_function)
{
    void *library = open_first((const char *const[]){ "libcudnn.so.9", "libcudnn.so.8", NULL });

    BXI_CUDNN_FUNCTIONS(EXPECT_FOUND)
}

/* ---- Kernels ----------------------------------------------------------------------------------- */

static struct bxi_nvrtc load_nvrtc(void)
{
    void *library = open_nvrtc();
    struct bxi_nvrtc nvrtc;

#define LOAD(type, name, arguments) *(void **)&nvrtc.name = dlsym(library, #name);
    BXI_NVRTC_FUNCTIONS(LOAD)
#undef LOAD
    return nvrtc;
}

/* Two source files, concatenated. */
static char *read_text(const char *const files[2])
{
    const char *source = getenv("BX_SOURCE_DIR");
    char *text = calloc(1, 1 << 20), path[1024];
    size_t bytes = 0;

    cr_assert_not_null(text);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", source != NULL ? source : ".", files[i]);
        FILE *file = fopen(path, "r");

        cr_assert_not_null(file, "%s", path);
        bytes += fread(text + bytes, 1, (1 << 20) - 1 - bytes, file);
        fclose(file);
    }
    return text;
}

static void expect_compiles(const struct bxi_nvrtc *nvrtc, const char *text, const char *name, int architecture)
{
    struct _nvrtcProgram *program = NULL;
    char option[40], log[4096] = "";
    const char *const options[] = { option, "--fmad=false" };
    size_t bytes = 0;

    snprintf(option, sizeof option, "--gpu-architecture=sm_%d", architecture);
    cr_assert_eq(nvrtc->nvrtcCreateProgram(&program, text, name, 0, NULL, NULL), 0);
    int result = nvrtc->nvrtcCompileProgram(program, 2, options);
    if (result != 0 && nvrtc->nvrtcGetProgramLogSize(program, &bytes) == 0 && bytes < sizeof log)
        nvrtc->nvrtcGetProgramLog(program, log);
    cr_expect_eq(result, 0, "%s for sm_%d: %s %s", name, architecture, nvrtc->nvrtcGetErrorString(result), log);
    cr_expect(result != 0 || (nvrtc->nvrtcGetCUBINSize(program, &bytes) == 0 && bytes > 0));
    nvrtc->nvrtcDestroyProgram(&program);
}

static void expect_all_compile(const char *first, const char *second)
{
    struct bxi_nvrtc nvrtc = load_nvrtc();
    char *text = read_text((const char *const[2]){ first, second });
    int major = 0, minor = 0;

    cr_assert_eq(nvrtc.nvrtcVersion(&major, &minor), 0);
    expect_compiles(&nvrtc, text, second, 80);
    expect_compiles(&nvrtc, text, second, 86);
    if (major < 13)
        expect_compiles(&nvrtc, text, second, 70);
    if (major > 11)
        expect_compiles(&nvrtc, text, second, 90);
    if (major > 12)
        expect_compiles(&nvrtc, text, second, 100);
    free(text);
}

Test(cuda_libraries, nvrtc_compiles_the_kernels_of_the_networks)
{
    expect_all_compile("lib/nn/kernels.h", "lib/nn/kernels.cu");
}

Test(cuda_libraries, nvrtc_compiles_the_kernels_of_reinforce)
{
    expect_all_compile("demos/reinforce/policy_kernels.h", "demos/reinforce/policy.cu");
}

Test(cuda_libraries, nvrtc_compiles_the_kernels_of_the_bench)
{
    expect_all_compile("tools/bxbench/gpu_kernels.h", "tools/bxbench/gpu.cu");
}
