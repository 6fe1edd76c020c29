/* SPDX-License-Identifier: MIT */
/*
 * Finds and loads the CUDA driver when a GPU is first opened; turns its results into a code and a sentence. Any thread.
 *
 * libcuda.so.1 is opened with RTLD_LOCAL, so that the program does not see its symbols, and its functions are found by
 * their exported names. cuGetProcAddress is not needed: it selects a version of a function, and all versions used here
 * are exported under names of their own. The library is never unloaded: after cuInit its threads and handlers need
 * its code.
 */
#include "inside.h"

#include "shm/own.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bxi_a32 is_forked;

const char *bxi_gpu_text(void)
{
    const char *sentence = bxi_own_find(BXI_OWN_GPU_TEXT);

    return sentence != NULL ? sentence : "";
}

int bxi_gpu_fail(int code, const char *format, ...)
{
    char *sentence = bxi_own_make(BXI_OWN_GPU_TEXT, BXI_GPU_TEXT_BYTES);
    va_list arguments;

    if (sentence == NULL)
        return code;
    va_start(arguments, format);
    vsnprintf(sentence, BXI_GPU_TEXT_BYTES, format, arguments);
    va_end(arguments);
    return code;
}

/* 0 or -errno. */
static int code_of(unsigned result)
{
    switch (result) {
    case CUDA_SUCCESS: return 0;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE: return -EINVAL;
    case CUDA_ERROR_OUT_OF_MEMORY: return -ENOMEM;
    case CUDA_ERROR_NOT_INITIALIZED: return -EPERM;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return -ENODEV;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_TOO_MANY_PEERS: return -EXDEV;
    case CUDA_ERROR_NOT_READY: return -EAGAIN;
    case CUDA_ERROR_NOT_PERMITTED: return -EACCES;
    case CUDA_ERROR_NOT_SUPPORTED: return -EOPNOTSUPP;
    default: return -EIO;
    }
}

int bxi_gpu_cuda_fail(const struct bxi_cuda *cu, unsigned result, const char *format, ...)
{
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return bxi_gpu_fail(code_of(result), "%s: %s (%u, %s)", what, bxi_cu_name(cu, result), result,
                        bxi_cu_text(cu, result));
}

/* ---- Fork ------------------------------------------------------------------------------------ */

static void in_child(void)
{
    /* [gpu.forked] relaxed: the child has one thread. */
    bxi_store_relaxed(&is_forked, 1);
}

static void watch_fork(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

bool bxi_gpu_forked(void)
{
    /* [gpu.forked] relaxed: written before this process had a second thread. */
    if (bxi_load_relaxed(&is_forked) == 0)
        return false;
    bxi_gpu_fail(-EPERM, "this process was forked after its parent opened the GPU, which CUDA does not survive: "
                 "fork the workers first, then open it in each");
    return true;
}

/* ---- Loading --------------------------------------------------------------------------------- */

static int find_symbols(struct bxi_cuda *cu, const char *path)
{
    const char *missing = NULL;

    /* A function pointer is copied as bytes, because ISO C has no conversion from what dlsym returns. */
#define FIND(name, is_required)                                                                 \
    do {                                                                                        \
        void *symbol = dlsym(cu->library, #name);                                               \
        memcpy(&cu->name, &symbol, sizeof(symbol));                                             \
        if (symbol == NULL && (is_required))                                                    \
            missing = #name;                                                                    \
    } while (0);
#define FIND_REQUIRED(name, arguments) FIND(name, true)
#define FIND_OPTIONAL(name, arguments) FIND(name, false)
    BXI_CU_FUNCTIONS(FIND_REQUIRED, FIND_OPTIONAL)
#undef FIND_REQUIRED
#undef FIND_OPTIONAL
#undef FIND
    if (missing == NULL)
        return 0;
    return bxi_gpu_fail(-ENODEV, "no GPU: %s has no function %s: the driver is too old, 11.4 (470.42) or later is "
                        "wanted", path, missing);
}

static int init_failed(const struct bxi_cuda *cu, unsigned result)
{
    const char *advice = bxi_cu_start_advice(result);

    if (advice != NULL)
        return bxi_gpu_fail(result == CUDA_ERROR_NOT_INITIALIZED ? -EPERM : -ENODEV, "no GPU: %s", advice);
    (void)bxi_gpu_cuda_fail(cu, result, "no GPU: cuInit");
    return -ENODEV;
}

#define CONNECTIONS "CUDA_DEVICE_MAX_CONNECTIONS"
#define CONNECTIONS_MOST 32
#define CONNECTIONS_DEFAULT 8

/* CUDA reads the variable when it starts. More queues than its 8 keep streams apart: one that waits holds up others of
 * its queue. Where the program has started CUDA before, the default is in force, and this changes nothing. */
static void ask_for_connections(void)
{
    char text[8];

    snprintf(text, sizeof(text), "%d", CONNECTIONS_MOST);
    setenv(CONNECTIONS, text, 0);
}

int bxi_gpu_connections(void)
{
    const char *text = secure_getenv(CONNECTIONS);
    long count = text != NULL ? strtol(text, NULL, 10) : 0;

    return count >= 1 && count <= CONNECTIONS_MOST ? (int)count : CONNECTIONS_DEFAULT;
}

int bxi_gpu_load(struct bxi_cuda *cu, const char *path)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int version = 0;
    int rc;

    pthread_once(&once, watch_fork);
    cu->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (cu->library == NULL)
        return bxi_gpu_fail(-ENODEV, "no GPU: no driver: %s; install NVIDIA's driver, or start the container with "
                            "--gpus all", dlerror());
    rc = find_symbols(cu, path);
    if (rc < 0)
        goto close_library;
    if (cu->cuDriverGetVersion(&version) == CUDA_SUCCESS && version < BXI_CU_OLDEST) {
        rc = bxi_gpu_fail(-ENODEV, "no GPU: the driver is too old: it is for CUDA %d.%d, 11.4 (driver 470.42) or "
                          "later is wanted", version / 1000, version % 1000 / 10);
        goto close_library;
    }

    ask_for_connections();

    unsigned result = cu->cuInit(0);

    if (result == CUDA_SUCCESS)
        return 0;
    rc = init_failed(cu, result);

close_library:
    bxi_gpu_unload(cu);
    return rc;
}

bool bxi_gpu_library_is_fake(const struct bxi_cuda *cu)
{
    return dlsym(cu->library, BXI_CU_FAKE_SYMBOL) != NULL;
}

void bxi_gpu_unload(struct bxi_cuda *cu)
{
    /* Not closed: see the head. A second dlopen returns the same library. */
    memset(cu, 0, sizeof(*cu));
}
