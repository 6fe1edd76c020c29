/* SPDX-License-Identifier: MIT */
/* shm/own.c: blocks that belong to a thread. And lib/base/error.c where there is no memory for one. */
#include "shm/own.h"

#include "tests/harness/memory.h"

#include "boxcar.h"

#include <malloc.h>

#define BYTES 1000
#define THREADS 1000

static void *make_block(void *context)
{
    unsigned char *block, zeroes[BYTES] = { 0 };

    (void)context;
    cr_assert_null(bxi_own_find(BXI_OWN_TEXTS));
    block = bxi_own_make(BXI_OWN_TEXTS, BYTES);
    cr_assert(block != NULL && memcmp(block, zeroes, BYTES) == 0);
    cr_assert_eq(bxi_own_make(BXI_OWN_TEXTS, BYTES), block);
    cr_assert_eq(bxi_own_find(BXI_OWN_TEXTS), block);
    cr_assert_null(bxi_own_find(BXI_OWN_GPU_TEXT));
    return block;
}

static void run_thread(void)
{
    pthread_t thread;
    void *block;

    cr_assert_eq(pthread_create(&thread, NULL, make_block, NULL), 0);
    cr_assert_eq(pthread_join(thread, &block), 0);
    cr_assert_neq(bxi_own_find(BXI_OWN_TEXTS), block);
}

/* A sanitizer has its own allocator: then glibc's figures are 0, and only the blocks are tested. */
Test(own, block_is_a_threads_and_is_freed_at_its_end, .timeout = 60)
{
    cr_assert_not_null(bxi_own_make(BXI_OWN_TEXTS, BYTES));
    run_thread();
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < THREADS; i++)
        run_thread();
    cr_expect_lt(mallinfo2().uordblks, before + THREADS * BYTES / 2);
}

Test(own, sentence_of_a_failure_without_memory_is_that_of_enomem, .timeout = 10)
{
    cr_expect_str_eq(bx_error_text(), "");
    memory_fails_in = 1;
    cr_expect_eq(bx_fail(-EINVAL, "the first"), -EINVAL);
    cr_expect_eq(memory_fails_in, 0);
    cr_expect_str_eq(bx_error_text(), strerror(ENOMEM));
    cr_expect_eq(bx_fail(-EINVAL, "the second"), -EINVAL);
    cr_expect_str_eq(bx_error_text(), "the second");
}
