/* SPDX-License-Identifier: MIT */
/* A table of handlers, as tests and the programs of jobs across hosts register them. */
#ifndef TESTS_HANDLERS_H
#define TESTS_HANDLERS_H

#include "boxcar.h"

struct harness_handler {
    const char *name;                   /* NULL: the end */
    enum bx_kind kind;
    bx_handler_fn fn;
    bx_async_fn async;                  /* instead of fn */
    void *context;
};

/* Rows of a table of handlers without a context. */
#define HARNESS_INLINE(name, fn) { name, BX_INLINE, fn, NULL, NULL }
#define HARNESS_BLOCKING(name, fn) { name, BX_BLOCKING, fn, NULL, NULL }
#define HARNESS_ASYNC(name, fn) { name, BX_INLINE, NULL, fn, NULL }

#endif
