/* SPDX-License-Identifier: MIT */
/*
 * The fake's functions for tests that call them directly, without gpu/ and lib/nn.
 */
#ifndef TESTS_FAKE_LIBRARY_H
#define TESTS_FAKE_LIBRARY_H

#include "nn/cuda_api.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* *to becomes the function of this name. */
static inline void fake_take(void *library, const char *name, void *to)
{
    void *symbol = dlsym(library, name);

    cr_assert(symbol != NULL, "the fake has no %s", name);
    memcpy(to, &symbol, sizeof symbol);
}

/* Loads the fake and takes the driver's functions; returns the library. */
static inline void *fake_load(struct bxi_cuda_driver *driver)
{
    const char *build = getenv("BX_BUILD_DIR");
    void *library;
    char path[512];

    snprintf(path, sizeof path, "%s/tests/libfakecuda.so", build != NULL ? build : "build");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert(library != NULL, "%s", dlerror());
#define TAKE_DRIVER(name, arguments) fake_take(library, #name, &driver->cu.name);
#define TAKE_KERNEL(name, arguments) fake_take(library, #name, &driver->name);
    BXI_CU_FUNCTIONS(TAKE_DRIVER, TAKE_DRIVER)
    BXI_CU_KERNEL_FUNCTIONS(TAKE_KERNEL)
#undef TAKE_DRIVER
#undef TAKE_KERNEL
    return library;
}

#endif
