/* SPDX-License-Identifier: MIT */
/*
 * What test_null.c and test_null_nets.c share: how a call that is given NULL is judged.
 */
#ifndef TESTS_NULL_H
#define TESTS_NULL_H

#include "functions.h"

#include "boxcar_cuda.h"
#include "tests/harness/harness.h"

#include <math.h>

static inline void is_refused(const char *call, int rc)
{
    bool no_cuda = strncmp(call, "bx_cuda", 7) == 0 || strncmp(call, "bx_kernel", 9) == 0;

    if (no_cuda && rc == -ENOTSUP && bx_cuda_count() == -ENOTSUP)
        return;                         /* built with CUDA=0: every function returns -ENOTSUP */
    if (rc != -EINVAL)
        harness_failed(__FILE__, __LINE__, "%s is %d, not -EINVAL", call, rc);
    if (strcmp(bx_error_text(), "an older sentence") == 0)
        harness_failed(__FILE__, __LINE__, "%s has no sentence", call);
}

static inline void is_null(const char *call, const void *value)
{
    if (value != NULL)
        harness_failed(__FILE__, __LINE__, "%s is not NULL", call);
}

static inline void is_zero(const char *call, double value)
{
    if (value != 0)
        harness_failed(__FILE__, __LINE__, "%s is %g, not 0", call, value);
}

#define REFUSED(call) (bx_fail(-EIO, "an older sentence"), is_refused(#call, call))
#define IS_NULL(call) is_null(#call, call)
#define IS_ZERO(call) is_zero(#call, (double)(call))
#define IS_EMPTY(call) is_zero(#call, (double)strlen(call))

#endif
