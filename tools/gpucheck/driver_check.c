/* SPDX-License-Identifier: MIT */
/*
 * Compares what driver.h has beside gpu/cuda_api.h with cuda.h, where the compiler finds one that is recent enough. No
 * code; gpu/cuda_check.c does the same for that list.
 */
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif
#endif

#include "driver.h"

#if defined(CUDA_VERSION) && CUDA_VERSION >= 12060
#define SAME_FUNCTION(name, arguments)                                                          \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&(name)), unsigned (*) arguments),   \
                   #name " is as cuda.h has it");
#define SAME_ATTRIBUTE(text, name, number)                                                      \
    _Static_assert(CU_DEVICE_ATTRIBUTE_##name == (number), #name " is as cuda.h has it");
CHECK_FUNCTIONS(SAME_FUNCTION)
CHECK_ATTRIBUTES(SAME_ATTRIBUTE)
_Static_assert((int)CHECK_CAPTURE_GLOBAL == (int)CU_STREAM_CAPTURE_MODE_GLOBAL, "a mode");
_Static_assert((int)CHECK_CAPTURE_RELAXED == (int)CU_STREAM_CAPTURE_MODE_RELAXED, "a mode");
_Static_assert((int)CHECK_MPS_ENABLED == (int)CU_DEVICE_ATTRIBUTE_MPS_ENABLED, "an attribute");
#endif
