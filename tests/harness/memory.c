/* SPDX-License-Identifier: MIT */
/* memory.h: what stands for malloc and the others in the program of the unit tests. */
#include "memory.h"

#include "harness.h"

_Thread_local int memory_fails_in;
int memory_fails_value = -1;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t bytes);

/* A value that was 0 is as large as there is after it was taken from, so no further allocation fails. */
static bool fails_here(void)
{
    return memory_fails_value >= 0 && harness_load(memory_fails_value) - 1 < INT32_MAX &&
           harness_add(memory_fails_value, UINT64_MAX) == 1;
}

static bool fails(void)
{
    return (memory_fails_in > 0 && --memory_fails_in == 0) || fails_here();
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *block, size_t bytes)
{
    return fails() ? NULL : __real_realloc(block, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t bytes)
{
    return fails() ? NULL : __real_strndup(text, bytes);
}
