/* SPDX-License-Identifier: MIT */
/*
 * What the sentences of errors contain: an unknown code, the space that a message lacked, and the beginning of a name
 * that is far too long.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#define LARGE ((size_t)128 << 20)

Test(sentences, name_an_unknown_code_by_its_number, .timeout = 20)
{
    cr_expect_str_eq(bx_strerror(-77777), "unknown code -77777");
    cr_expect_str_eq(bx_strerror(INT_MIN), "unknown code -2147483648");
    cr_expect_str_eq(bx_error_name(-77777), "unknown");
}

HARNESS_HANDLER(give)
{
    size_t bytes = (size_t)bx_read_i64(args);
    char *memory = calloc(1, bytes);
    int rc;

    HARNESS_CHECK(memory != NULL);
    memory[bytes - 1] = 'x';
    rc = bx_msg_put_bytes(reply, memory, bytes);
    free(memory);
    return rc;
}

static int setup(struct bx_job *job)
{
    return bx_register(job, "give", BX_BLOCKING, give, NULL);
}

HARNESS_TEST(sentences, of_a_reply_of_128_mib_name_the_space_it_lacks, 60, .size = 2, .setup = setup)
{
    OWN(msg) *args = harness_msg_i64(LARGE), *reply = NULL;

    int rc = bx_rpc_sync(job, "worker1", "give", args, NULL, &reply);

    if (rc == BX_E_NO_SPACE) {          /* a container's /dev/shm has 64 MiB */
        HARNESS_HAS(bx_error_text(), "no room in /dev/shm for a message of 134217728 bytes");
    } else {
        HARNESS_EQ(rc, 0);
        HARNESS_EQ(bx_msg_bytes(reply), LARGE);
        HARNESS_EQ(((const char *)bx_msg_data(reply))[LARGE - 1], 'x');
    }
}

static void take_too_much(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(LARGE), *large = bx_msg_create(LARGE);

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "give", args, NULL, NULL), BX_E_ARENA_FULL);
    HARNESS_HAS(bx_error_text(), "for a message of 134217728 bytes");
    HARNESS_HAS(bx_error_text(), "BX_ARENA_BYTES");
    HARNESS_CHECK(strstr(bx_error_text(), "for a tensor") == NULL);
    bx_msg_destroy(args);
    args = bx_msg_create(LARGE);
    for (size_t i = 0; i < LARGE; i += 1 << 20)
        HARNESS_EQ(bx_msg_put_bytes(args, (const char *)bx_msg_data(large), 1 << 20), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "give", args, NULL, NULL), BX_E_ARENA_FULL);
    HARNESS_HAS(bx_error_text(), "for a message of 134217728 bytes");
    bx_msg_destroy(args);
    bx_msg_destroy(large);
}

Test(sentences, of_a_message_without_room_in_the_arena_do_not_call_it_a_tensor, .timeout = 60)
{
    bxi_checked = false;            /* the sentence has the bytes, which are more with the kinds of values */
    harness_run(&(struct harness_world){
        .size = 2, .setup = setup, .body = { take_too_much }, .options = { .arena_bytes = 64 << 20 } });
}

static char overlong[2000];

static void is_brief(const char *after)
{
    HARNESS_HAS(bx_error_text(), "'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn... (1999 bytes)'");
    HARNESS_HAS(bx_error_text(), after);
}

HARNESS_TEST(sentences, are_not_displaced_by_an_overlong_name, 20, .size = 2, .setup = setup)
{
    struct bx_future *future = NULL;
    uint64_t value;

    memset(overlong, 'n', sizeof overlong - 1);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", overlong, NULL, NULL, NULL), BX_E_NO_FUNCTION);
    is_brief("it has: give");
    HARNESS_EQ(bx_rpc_async(job, overlong, "give", NULL, NULL, &future), BX_E_NO_WORKER);
    is_brief("has no worker");
    HARNESS_EQ(bx_register(job, overlong, BX_INLINE, give, NULL), -EINVAL);
    is_brief("has 1999");
    HARNESS_EQ(bx_worker_rank(job, overlong), BX_E_NO_WORKER);
    is_brief("has no worker");
    HARNESS_EQ(bx_batch_add_member(job, overlong, 0), -ENOENT);
    is_brief("has no batch");
    HARNESS_EQ(bx_counter(job, overlong, &value), -ENOENT);
    is_brief("no counter");
}

Test(sentences, shorten_an_overlong_name_of_a_job, .timeout = 20)
{
    struct bx_job *job = NULL;

    memset(overlong, 'n', sizeof overlong - 1);
    cr_expect_eq(bx_job_create(&(struct bx_options){ .job = overlong, .world_size = 2 }, &job), -EINVAL);
    cr_expect_not_null(strstr(bx_error_text(), "(1999 bytes)' is not 1 to"), "%s", bx_error_text());
}
