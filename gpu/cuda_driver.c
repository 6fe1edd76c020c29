/* SPDX-License-Identifier: MIT */
/*
 * Finds, loads and starts the CUDA driver when a GPU is first used. Any thread.
 *
 * libcuda.so.1 is opened with RTLD_LOCAL, so that the program does not see its symbols, and its functions are found by
 * their exported names. cuGetProcAddress is not needed: it selects a version of a function, and all versions used here
 * are exported under names of their own. The library is never unloaded: after cuInit its threads and handlers need
 * its code. A second dlopen returns the same library.
 */
#include "cuda_driver.h"

#include "shm/atomic.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bxi_cu_code(unsigned result)
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

/* ---- Fork ------------------------------------------------------------------------------------ */

static bxi_a32 is_forked;

static void in_child(void)
{
    /* [gpu.forked] relaxed: the child has one thread. */
    bxi_store_relaxed(&is_forked, 1);
}

static void watch_fork(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

const char *bxi_cu_fork_text(void)
{
    /* [gpu.forked] relaxed: written before this process had a second thread. */
    if (bxi_load_relaxed(&is_forked) == 0)
        return NULL;
    return "this process was forked after its parent opened the GPU, which CUDA does not survive: fork the workers "
           "first, then open it in each";
}

/* ---- Queues ---------------------------------------------------------------------------------- */

#define CONNECTIONS_MOST 32
#define CONNECTIONS_DEFAULT 8

/* CUDA reads the variable when it starts. More queues than its 8 keep streams apart: one that waits holds up others of
 * its queue. Where the program has started CUDA before, the default is in force, and this changes nothing. */
static void ask_for_connections(void)
{
    char text[8];

    snprintf(text, sizeof(text), "%d", CONNECTIONS_MOST);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", text, 0);
}

int bxi_cu_connections(void)
{
    const char *text = secure_getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    long count = text != NULL ? strtol(text, NULL, 10) : 0;

    return count >= 1 && count <= CONNECTIONS_MOST ? (int)count : CONNECTIONS_DEFAULT;
}

/* ---- Loading --------------------------------------------------------------------------------- */

#define REQUIRED(name, arguments) { #name, offsetof(struct bxi_cuda, name), false },
#define OPTIONAL(name, arguments) { #name, offsetof(struct bxi_cuda, name), true },
static const struct bxi_cu_symbol symbols[] = { BXI_CU_FUNCTIONS(REQUIRED, OPTIONAL) };

const char *bxi_cu_find(void *library, const struct bxi_cu_symbol *wanted, size_t count, void *functions)
{
    const char *missing = NULL;

    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(library, wanted[i].name);

        if (address == NULL && !wanted[i].is_optional && missing == NULL)
            missing = wanted[i].name;
        /* Copied as bytes: ISO C has no conversion from a pointer to an object to a pointer to a function. */
        memcpy((char *)functions + wanted[i].offset, &address, sizeof(address));
    }
    return missing;
}

static int start(const struct bxi_cuda *cu, char *text)
{
    unsigned result = cu->cuInit(0);
    const char *advice = bxi_cu_start_advice(result);

    if (result == CUDA_SUCCESS)
        return 0;
    if (advice != NULL)
        snprintf(text, BXI_CU_TEXT_BYTES, "%s", advice);
    else
        snprintf(text, BXI_CU_TEXT_BYTES, "cuInit: %s (%u, %s)", bxi_cu_name(cu, result), result,
                 bxi_cu_text(cu, result));
    return advice != NULL && result == CUDA_ERROR_NOT_INITIALIZED ? -EPERM : -ENODEV;
}

int bxi_cu_load(struct bxi_cuda *cu, const char *path, char text[BXI_CU_TEXT_BYTES])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *variable = path == NULL ? secure_getenv("BX_CUDA_DRIVER") : NULL;
    bool is_named = variable != NULL && variable[0] != '\0';
    int version = 0;
    int rc;

    if (path == NULL)
        path = is_named ? variable : "libcuda.so.1";
    *cu = (struct bxi_cuda){ .library = dlopen(path, RTLD_NOW | RTLD_LOCAL) };
    if (cu->library == NULL) {
        snprintf(text, BXI_CU_TEXT_BYTES, "no CUDA driver%s: %s; install NVIDIA's driver, or start the container with "
                 "--gpus all", is_named ? ", where BX_CUDA_DRIVER names it" : "", dlerror());
        return -ENODEV;
    }
    cu->missing = bxi_cu_find(cu->library, symbols, sizeof(symbols) / sizeof(symbols[0]), cu);
    if (cu->missing != NULL) {
        snprintf(text, BXI_CU_TEXT_BYTES, "%s has no function %s: the driver is too old, 11.4 (470.42) or later is "
                 "wanted", path, cu->missing);
        return -ENODEV;
    }
    if (cu->cuDriverGetVersion(&version) == CUDA_SUCCESS && version < BXI_CU_OLDEST) {
        snprintf(text, BXI_CU_TEXT_BYTES, "the driver is too old: it is for CUDA %d.%d, 11.4 (driver 470.42) or "
                 "later is wanted", version / 1000, version % 1000 / 10);
        return -ENODEV;
    }
    ask_for_connections();
    rc = start(cu, text);
    if (rc == 0)
        pthread_once(&once, watch_fork);
    return rc;
}

bool bxi_cu_is_fake(const struct bxi_cuda *cu)
{
    return dlsym(cu->library, BXI_CU_FAKE_SYMBOL) != NULL;
}
