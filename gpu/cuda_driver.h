/* SPDX-License-Identifier: MIT */
/*
 * Loading the CUDA driver, for gpu/, lib/nn and gpucheck: each has its own way to report a sentence, so sentences are
 * written to a text of the caller's. cuda_driver.c is a part of both libraries.
 */
#ifndef BXI_CUDA_DRIVER_H
#define BXI_CUDA_DRIVER_H

#include "cuda_api.h"

#include <stdbool.h>

/* A function of a library that is loaded at run time, and its place in a struct of pointers. */
struct bxi_cu_symbol {
    const char *name;
    size_t offset;
    bool is_optional;
};

/* Finds functions of a loaded library; NULL, or the name of one that is missing and not optional. */
const char *bxi_cu_find(void *library, const struct bxi_cu_symbol *symbols, size_t count, void *functions);

/* Loads the driver and starts it. path NULL: the file that BX_CUDA_DRIVER names (ignored if the program has more rights
 * than its caller), else libcuda.so.1. 0, or -ENODEV or -EPERM with a sentence in text; cu then has what was found. */
#define BXI_CU_TEXT_BYTES 512
int bxi_cu_load(struct bxi_cuda *cu, const char *path, char text[BXI_CU_TEXT_BYTES]);
bool bxi_cu_is_fake(const struct bxi_cuda *cu);

/* In a child of a process that has loaded the driver: what CUDA does not survive, in a sentence. NULL: not so. */
const char *bxi_cu_fork_text(void);
/* 0 or -errno for a CUresult. */
int bxi_cu_code(unsigned result);
/* The hardware queues of each device that the environment asks for: CUDA_DEVICE_MAX_CONNECTIONS, or CUDA's default. */
#define BXI_CU_CONNECTIONS_LEAST 4              /* for waits of streams for words */
int bxi_cu_connections(void);

#endif
