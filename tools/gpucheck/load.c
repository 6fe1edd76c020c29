/* SPDX-License-Identifier: MIT */
/*
 * Loads the CUDA driver: the file that BX_CUDA_DRIVER names, else libcuda.so.1, as Boxcar does. A function that it does
 * not export stays NULL. Runs in a question's process, never in the program itself: a process that was forked after
 * cuInit cannot use CUDA.
 */
#include "side.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS 32                  /* what Boxcar sets where the variable is not set */

static const char connections_variable[] = "CUDA_DEVICE_MAX_CONNECTIONS";

struct function {
    const char *name;
    size_t offset;
    bool is_required;                   /* by Boxcar */
};

#define REQUIRED(name, arguments) { #name, offsetof(struct check_driver, cu.name), true },
#define OPTIONAL(name, arguments) { #name, offsetof(struct check_driver, cu.name), false },
#define OWN(name, arguments) { #name, offsetof(struct check_driver, name), false },
static const struct function functions[] = {
    BXI_CU_FUNCTIONS(REQUIRED, OPTIONAL)
    BXI_CU_KERNEL_FUNCTIONS(OWN)
    CHECK_FUNCTIONS(OWN)
};
#undef REQUIRED
#undef OPTIONAL
#undef OWN

#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

const char *check_load(struct check_driver *driver)
{
    static char reason[256];
    const char *path = secure_getenv("BX_CUDA_DRIVER");

    memset(driver, 0, sizeof(*driver));
    if (path == NULL || path[0] == '\0')
        path = "libcuda.so.1";
    driver->cu.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (driver->cu.library == NULL) {
        const char *text = dlerror();

        snprintf(reason, sizeof(reason), "there is no driver: %s; install NVIDIA's driver, or start the container with "
                 "--gpus all", text != NULL ? text : path);
        return reason;
    }
    for (size_t i = 0; i < FUNCTIONS; i++) {
        void *symbol = dlsym(driver->cu.library, functions[i].name);

        /* Copied as bytes: ISO C has no conversion from a pointer to an object to a pointer to a function. */
        memcpy((char *)driver + functions[i].offset, &symbol, sizeof(symbol));
    }
    return NULL;
}

bool check_is_fake(const struct check_driver *driver)
{
    return dlsym(driver->cu.library, BXI_CU_FAKE_SYMBOL) != NULL;
}

const char *check_missing_function(const struct check_driver *driver)
{
    for (size_t i = 0; i < FUNCTIONS; i++) {
        void *symbol;

        memcpy(&symbol, (const char *)driver + functions[i].offset, sizeof(symbol));
        if (symbol == NULL && functions[i].is_required)
            return functions[i].name;
    }
    return NULL;
}

void check_set_connections(const struct check_question *question)
{
    char number[16];

    snprintf(number, sizeof(number), "%d", question->connections != 0 ? question->connections : CONNECTIONS);
    setenv(connections_variable, number, question->connections != 0);
}
