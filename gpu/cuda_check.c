/* SPDX-License-Identifier: MIT */
/*
 * Compares every prototype and every number of cuda_api.h with cuda.h, where the compiler finds one. No code. A cuda.h
 * before 12.0 lacks some names and is ignored, unless the build requires the comparison (CUDA=1).
 *
 * uint64_t and cuuint64_t are the same type on every platform with CUDA on Linux; enum parameters are compatible
 * with unsigned int, which gcc and clang both give an enum without negative values.
 */
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif
#endif

#if defined(BXI_CUDA_CHECKED) && !defined(CUDA_VERSION)
#error "CUDA=1 compares the prototypes with cuda.h, which is not found: set CUDA_HOME, or build with CUDA=auto"
#endif

#include "cuda_api.h"

#if defined(CUDA_VERSION) && (CUDA_VERSION >= 12000 || defined(BXI_CUDA_CHECKED))
#define CHECK_FUNCTION(name, arguments)                                                         \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&(name)), unsigned (*) arguments),   \
                   #name " is as cuda.h has it");
#define CHECK_NUMBER(name, value) _Static_assert((name) == (value), #name " is as cuda.h has it");
BXI_CU_FUNCTIONS(CHECK_FUNCTION, CHECK_FUNCTION)
BXI_CU_RESULTS(CHECK_NUMBER)
BXI_CU_NUMBERS(CHECK_NUMBER)
#endif
_Static_assert(sizeof(struct CUuuid_st) == 16, "a UUID");
_Static_assert(sizeof(struct CUipcMemHandle_st) == 64, "a memory handle");
_Static_assert(sizeof(struct CUmemAllocationProp_st) == 32, "properties of an allocation");
_Static_assert(sizeof(struct CUmemAccessDesc_st) == 12, "access to an allocation");
