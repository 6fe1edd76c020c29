/* SPDX-License-Identifier: MIT */
/*
 * Structs that begin with struct_bytes: a program may have been compiled with an older header than the library, or a
 * newer one. Every public function that takes or fills one does it here.
 */
#ifndef BXI_OPTIONS_H
#define BXI_OPTIONS_H

#include "boxcar.h"

#include <string.h>

#define BXI_OPTIONS_MAX 1024u       /* bytes that no version of a struct of options has */

/* Copies what the program gave over `to`, which holds the defaults and keeps them if given is NULL. struct_bytes 0
 * stands for to_bytes. What a newer header has behind to_bytes must be zero. 0, or BX_E_VERSION with a sentence that
 * names the struct. */
static inline int bxi_options_copy(void *to, size_t to_bytes, const void *given, const char *name)
{
    size_t bytes;

    if (given == NULL)
        return 0;
    memcpy(&bytes, given, sizeof bytes);
    if (bytes == 0)
        bytes = to_bytes;
    for (size_t i = to_bytes; i < bytes; i++)
        if (bytes > BXI_OPTIONS_MAX || ((const unsigned char *)given)[i] != 0)
            return bx_fail(BX_E_VERSION, "struct %s has %zu bytes, this library knows %zu: it is older than the header",
                           name, bytes, to_bytes);
    memcpy(to, given, bytes < to_bytes ? bytes : to_bytes);
    return 0;
}

/* The other direction: fills the program's struct of figures from the library's, as far as the program has it; its
 * struct_bytes becomes what was filled. No such struct has grown. */
static inline void bxi_figures_copy(void *to, const void *figures, size_t figures_bytes)
{
    size_t bytes;

    memcpy(&bytes, to, sizeof bytes);
    if (bytes == 0 || bytes > figures_bytes)
        bytes = figures_bytes;
    memcpy(to, figures, bytes);
    memcpy(to, &bytes, sizeof bytes);
}

#endif
