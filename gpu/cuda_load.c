/* SPDX-License-Identifier: MIT */
/*
 * The driver (cuda_driver.c), its results and its refusals as a code and this thread's sentence. Any thread.
 */
#include "inside.h"

#include "shm/own.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

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

int bxi_gpu_cuda_fail(const struct bxi_cuda *cu, unsigned result, const char *format, ...)
{
    char what[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return bxi_gpu_fail(bxi_cu_code(result), "%s: %s (%u, %s)", what, bxi_cu_name(cu, result), result,
                        bxi_cu_text(cu, result));
}

bool bxi_gpu_forked(void)
{
    const char *sentence = bxi_cu_fork_text();

    if (sentence != NULL)
        bxi_gpu_fail(-EPERM, "%s", sentence);
    return sentence != NULL;
}

int bxi_gpu_load(struct bxi_cuda *cu, const char *path)
{
    char sentence[BXI_CU_TEXT_BYTES];
    int rc = bxi_cu_load(cu, path, sentence);

    return rc < 0 ? bxi_gpu_fail(rc, "no GPU: %s", sentence) : 0;
}
