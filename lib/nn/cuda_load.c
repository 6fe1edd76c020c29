/* SPDX-License-Identifier: MIT */
/*
 * Finds and loads NVRTC, cuBLAS and cuDNN when a call first needs them, and the driver by gpu/cuda_driver.c. Run by any
 * thread.
 *
 * Each is opened with RTLD_LOCAL, so that the program does not see its symbols, and is never closed: its threads and
 * its handlers would lose their code. NVRTC is loaded before cuBLAS, and cuBLAS before cuDNN: cuDNN opens these two by
 * name and so finds the loaded ones, even where the dynamic linker would find none. NVRTC does the same with its
 * builtins when it compiles, so they are loaded from its folder.
 *
 * A driver does not load the code of a newer CUDA than its own, and refuses its libraries. So names of a newer major
 * version than the driver's are not tried.
 */
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library {
    const char *what;
    const char *variable;           /* environment variable with a path */
    const char *names[4];           /* if it is not set: the first of these that is found */
    const char *advice;
    const char *oldest;
    bool is_of_cuda;                /* its names end with CUDA's version */
    const struct bxi_cu_symbol *symbols;
    size_t symbol_count;
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define OF_NVRTC(type, name, arguments) { #name, offsetof(struct bxi_nvrtc, name), false },
static const struct bxi_cu_symbol nvrtc_symbols[] = { BXI_NVRTC_FUNCTIONS(OF_NVRTC) };

#define OF_CUBLAS(type, name, arguments) { #name, offsetof(struct bxi_cublas, name), false },
static const struct bxi_cu_symbol cublas_symbols[] = { BXI_CUBLAS_FUNCTIONS(OF_CUBLAS) };

#define OF_CUDNN(type, name, arguments) { #name, offsetof(struct bxi_cudnn, name), false },
static const struct bxi_cu_symbol cudnn_symbols[] = { BXI_CUDNN_FUNCTIONS(OF_CUDNN) };

static const struct library nvrtc_library = {
    "NVRTC", "BX_NVRTC", { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2" },
    "install CUDA's runtime compiler (part of the toolkit; pip: nvidia-cuda-nvrtc-cu12), and where it lies apart name "
    "its directory in LD_LIBRARY_PATH, or the file in BX_NVRTC", "11.2", true,
    nvrtc_symbols, COUNT(nvrtc_symbols),
};
static const struct library cublas_library = {
    "cuBLAS", "BX_CUBLAS", { "libcublas.so.13", "libcublas.so.12", "libcublas.so.11" },
    "install it (part of the toolkit; pip: nvidia-cublas-cu12), and where it lies apart name its directory in "
    "LD_LIBRARY_PATH, or the file in BX_CUBLAS", "11", true,
    cublas_symbols, COUNT(cublas_symbols),
};
static const struct library cudnn_library = {
    "cuDNN", "BX_CUDNN", { "libcudnn.so.9", "libcudnn.so.8" },
    "install it (pip: nvidia-cudnn-cu12), and where it lies apart name its directory in LD_LIBRARY_PATH, or the file "
    "in BX_CUDNN", "8", false,
    cudnn_symbols, COUNT(cudnn_symbols),
};

/* ---- Fork ---------------------------------------------------------------------------------------- */

int bxi_cuda_check_fork(void)
{
    const char *sentence = bxi_cu_fork_text();

    return sentence != NULL ? bx_fail(-EPERM, "%s", sentence) : 0;
}

/* ---- Libraries ----------------------------------------------------------------------------------- */

/* The major version of CUDA that the driver is for; INT_MAX: it does not say. */
static int driver_major(const struct bxi_cuda *cu)
{
    int version = 0;

    return cu->cuDriverGetVersion(&version) == CUDA_SUCCESS ? version / 1000 : INT_MAX;
}

static bool is_newer(const struct library *library, const char *name, int newest)
{
    const char *version = strstr(name, ".so.");

    return library->is_of_cuda && version != NULL && atoi(version + 4) > newest;
}

/* Opens the file that the environment names (ignored if the program has more rights than its caller), or the first that
 * the dynamic linker finds of those that are not of a newer CUDA. The error message is the linker's about the first
 * name that was tried. */
static int open_file(const struct library *library, int newest, void **handle, const char **name)
{
    const char *path = secure_getenv(library->variable);
    char reason[256] = "";

    if (path != NULL && path[0] != '\0') {
        *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        *name = path;
        if (*handle != NULL)
            return 0;
        return bx_fail(-ENOTSUP, "no %s, where %s names it: %s", library->what, library->variable, dlerror());
    }
    for (size_t i = 0; i < COUNT(library->names) && library->names[i] != NULL; i++) {
        if (is_newer(library, library->names[i], newest))
            continue;
        *handle = dlopen(library->names[i], RTLD_NOW | RTLD_LOCAL);
        *name = library->names[i];
        if (*handle != NULL)
            return 0;

        const char *text = dlerror();

        if (reason[0] == '\0' && text != NULL)
            strncpy(reason, text, sizeof(reason) - 1);
    }
    return bx_fail(-ENOTSUP, "no %s: %s; %s", library->what, reason, library->advice);
}

static int load(const struct library *library, int newest, void *functions)
{
    void *handle = NULL;
    const char *name = NULL, *missing;
    int rc = open_file(library, newest, &handle, &name);

    if (rc < 0)
        return rc;
    missing = bxi_cu_find(handle, library->symbols, library->symbol_count, functions);
    return missing == NULL ? 0 : bx_fail(-ENOTSUP, "%s has no function %s: it is too old, a %s of %s or later is "
                                         "wanted", name, missing, library->what, library->oldest);
}

/* ---- The driver ---------------------------------------------------------------------------------- */

int bxi_cuda_load_driver(struct bxi_cuda *cu)
{
    char sentence[BXI_CU_TEXT_BYTES];
    int rc = bxi_cuda_check_fork();

    if (rc < 0)
        return rc;
    rc = bxi_cu_load(cu, NULL, sentence);
    return rc < 0 ? bx_fail(rc, "%s", sentence) : 0;
}

/* ---- What computes ------------------------------------------------------------------------------- */

/* Opens the builtins in the folder of the file; true: they are there. */
static bool open_builtins_beside(const char *file, int major, int minor)
{
    const char *slash = file != NULL ? strrchr(file, '/') : NULL;
    char path[PATH_MAX];
    int length;

    if (slash == NULL)
        return false;
    length = snprintf(path, sizeof(path), "%.*s/libnvrtc-builtins.so.%d.%d", (int)(slash - file), file, major, minor);
    return length < (int)sizeof(path) && dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL;
}

/* Without them NVRTC has the dynamic linker look for them, and says in its log what is missing. */
static void open_builtins(const struct bxi_nvrtc *nvrtc, int major, int minor)
{
    void *address;
    Dl_info info;

    memcpy(&address, &nvrtc->nvrtcVersion, sizeof(address));
    if (dladdr(address, &info) == 0 || open_builtins_beside(info.dli_fname, major, minor))
        return;

    char *target = realpath(info.dli_fname, NULL);      /* the file may be a link into another folder */

    (void)open_builtins_beside(target, major, minor);
    free(target);
}

int bxi_cuda_load_nvrtc(struct bx_cuda *cuda)
{
    int newest = driver_major(&cuda->cu), major = 0, minor = 0;
    int rc = load(&nvrtc_library, newest, &cuda->nvrtc);

    if (rc < 0)
        return rc;
    (void)cuda->nvrtc.nvrtcVersion(&major, &minor);
    if (major > newest)
        return bx_fail(-ENOTSUP, "NVRTC %d.%d is too new: the driver is for CUDA %d and does not load its code; "
                       "install NVRTC %d, or name its file in BX_NVRTC", major, minor, newest, newest);
    open_builtins(&cuda->nvrtc, major, minor);
    return 0;
}

int bxi_cuda_load_networks(struct bx_cuda *cuda)
{
    int rc = load(&cublas_library, driver_major(&cuda->cu), &cuda->cublas);

    if (rc == 0)
        rc = load(&cudnn_library, INT_MAX, &cuda->cudnn);
    if (rc == 0 && cuda->cudnn.cudnnGetVersion() < 8000)
        return bx_fail(-ENOTSUP, "cuDNN is too old: it is version %zu, 8000 or later is wanted",
                       cuda->cudnn.cudnnGetVersion());
    return rc;
}
