/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/names.c and registration: workers and functions that are found by their names, and the errors for the others.
 */
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

#define LONGEST "abcdefghijklmnopqrstuvwxyz-1234"           /* 31 bytes */

HARNESS_HANDLER(answer)
{
    HARNESS_CHECK(bx_request_job(request) != NULL);
    return bx_msg_put_i64(reply, context != NULL ? *(const int *)context : 0);
}

/* ---- Workers --------------------------------------------------------------------------------- */

static const char *const given_names[] = { "agent", LONGEST, "a", "worker3" };

static void look_up_workers(struct bx_job *job)
{
    HARNESS_EQ(bx_job_world_size(job), 4);
    for (int rank = 0; rank < 4; rank++) {
        const char *name = given_names[rank];

        HARNESS_CHECK(strcmp(bx_worker_name(job, rank), name) == 0);
        HARNESS_EQ(bx_worker_rank(job, name), rank);
        HARNESS_CHECK(bx_worker_is_alive(job, rank));
        if (rank == bx_job_rank(job))
            HARNESS_CHECK(strcmp(bx_job_name(job), name) == 0);
    }
    HARNESS_CHECK(bx_worker_name(job, -1) == NULL);
    HARNESS_CHECK(bx_worker_name(job, 4) == NULL);
    HARNESS_CHECK(bx_worker_name(job, 200) == NULL);
    HARNESS_CHECK(!bx_worker_is_alive(job, -1));
    HARNESS_CHECK(!bx_worker_is_alive(job, 4));
    HARNESS_EQ(bx_worker_rank(job, "worker1"), BX_E_NO_WORKER);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_EQ(bx_worker_rank(job, ""), BX_E_NO_WORKER);
}

TestSuite(names, .timeout = 120);

HARNESS_WORLD(names, of_workers_are_found_by_name_and_rank, 20, .size = 4, .names = given_names,
              .body = { look_up_workers, look_up_workers, look_up_workers, look_up_workers });

Test(names, of_128_workers_are_all_found)
{
    static struct bxi_rpc rpc;
    struct bx_job job = { .rpc = &rpc, .world_size = 128 };
    static struct bxi_peer peers[128];
    static _Atomic(struct bxi_peer *) pointers[128];

    rpc.peers = pointers;
    for (int rank = 0; rank < 128; rank++) {
        pointers[rank] = &peers[rank];
        peers[rank].rank = rank;
        snprintf(peers[rank].name, sizeof(peers[rank].name), "worker%d", rank);
    }
    bxi_names_build(&job);
    for (int rank = 0; rank < 128; rank++)
        cr_expect_eq(bxi_peer_find(&job, peers[rank].name), &peers[rank]);
    cr_expect_null(bxi_peer_find(&job, "worker128"));
    cr_expect_null(bxi_peer_find(&job, ""));
}

Test(names, are_checked_before_they_become_part_of_a_path)
{
    cr_expect(bxi_name_is_valid("a"));
    cr_expect(bxi_name_is_valid(LONGEST));
    cr_expect(!bxi_name_is_valid(LONGEST "5"));
    cr_expect(!bxi_name_is_valid(""));
    cr_expect(!bxi_name_is_valid("../x"));
    cr_expect(!bxi_name_is_valid("a/b"));
    cr_expect(!bxi_name_is_valid("a b"));
    cr_expect(!bxi_name_is_valid("."));
    cr_expect(!bxi_name_is_valid(".."));
}

Test(names, of_workers_are_an_error_before_the_start_and_after_one_that_failed, .timeout = 20)
{
    struct bx_options options = { .job = harness_job_name(), .world_size = 2, .start_timeout_ns = HARNESS_MS };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0);
    cr_expect_eq(bx_worker_rank(job, "worker1"), BX_E_STATE);
    cr_expect_eq(bx_worker_rank(job, ""), BX_E_STATE);
    cr_expect_null(bxi_peer_find(job, "worker1"));
    cr_assert_eq(bx_job_start(job), BX_E_RANK_MISSING);
    cr_expect_eq(bx_worker_rank(job, "worker1"), BX_E_NO_WORKER);
    cr_expect_not_null(strstr(bx_error_text(), "'worker1'"));
    cr_expect_eq(bx_worker_rank(job, ""), BX_E_NO_WORKER);
    cr_expect_eq(bx_rpc_sync(job, "worker1", "add", NULL, NULL, NULL), BX_E_SHUTDOWN);
    bx_job_destroy(job);
}

/* ---- Functions ------------------------------------------------------------------------------- */

static int register_two(struct bx_job *job)
{
    int rc = bx_register(job, "add", BX_INLINE, answer, NULL);

    return rc < 0 ? rc : bx_register(job, "sub", BX_BLOCKING, answer, NULL);
}

HARNESS_TEST(names, that_are_unknown_are_answered_with_the_known_ones, 20, .size = 2, .setup = register_two)
{
    struct bx_future *future = NULL;
    struct bx_msg *reply = NULL;

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "mul", NULL, NULL, &reply), BX_E_NO_FUNCTION);
    HARNESS_CHECK(reply == NULL);
    HARNESS_HAS(bx_error_text(), "'worker1'");
    HARNESS_HAS(bx_error_text(), "'mul'");
    HARNESS_HAS(bx_error_text(), "add, sub");
    HARNESS_EQ(bx_rpc_async(job, "worker1", "ad", NULL, NULL, &future), BX_E_NO_FUNCTION);
    HARNESS_CHECK(future == NULL);
    HARNESS_EQ(bx_rpc_oneway(job, "worker1", "addd", NULL, NULL), BX_E_NO_FUNCTION);
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "mul", NULL, NULL, NULL), BX_E_NO_FUNCTION);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "", NULL, NULL, NULL), BX_E_NO_FUNCTION);

    HARNESS_EQ(bx_rpc_sync(job, "worker2", "add", NULL, NULL, NULL), BX_E_NO_WORKER);
    HARNESS_HAS(bx_error_text(), "'worker2'");
    HARNESS_EQ(bx_rpc_async(job, "nobody", "add", NULL, NULL, &future), BX_E_NO_WORKER);
    HARNESS_HAS(bx_error_text(), "'nobody'");
    HARNESS_EQ(bx_rpc_oneway(job, "nobody", "add", NULL, NULL), BX_E_NO_WORKER);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "add", NULL, NULL, NULL), 0);
}

/* The empty name must not match the first, unused entry of an empty table. */
HARNESS_TEST(names, that_are_empty_are_not_found_in_an_empty_table, 20, .size = 2)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "", NULL, NULL, NULL), BX_E_NO_FUNCTION);
    HARNESS_HAS(bx_error_text(), "it has: none");
    HARNESS_CHECK(bx_worker_is_alive(job, 1));
}

enum { REGISTERED, CALLED };

static void register_later(struct bx_job *job)
{
    static const int nine = 9;

    HARNESS_EQ(bx_register(job, "later", BX_INLINE, answer, (void *)&nine), 0);
    HARNESS_EQ(bx_register(job, "later", BX_INLINE, answer, NULL), -EEXIST);
    HARNESS_HAS(bx_error_text(), "'later'");
    harness_post(REGISTERED);
}

HARNESS_TEST(names, registered_after_the_start_are_found_too, 20, .size = 2, .setup = register_two,
             .body = { NULL, register_later })
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "add", NULL, NULL, NULL), 0);
    harness_await(REGISTERED, 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "later", 0), 9);
}

static int made_up_number[BXI_FUNCTION_MAX];

static int register_all(struct bx_job *job)
{
    char name[32];

    for (int i = 0; i < BXI_FUNCTION_MAX; i++) {
        made_up_number[i] = i;
        snprintf(name, sizeof(name), "function-%d", i);
        HARNESS_EQ(bx_register(job, name, BX_INLINE, answer, &made_up_number[i]), 0);
    }
    HARNESS_EQ(bx_register(job, "one-more", BX_INLINE, answer, NULL), -ENOSPC);
    HARNESS_HAS(bx_error_text(), "128");
    return 0;
}

HARNESS_TEST(names, of_128_functions_are_all_found, 20, .size = 2, .setup = register_all)
{
    char name[32];

    for (int i = 0; i < BXI_FUNCTION_MAX; i++) {
        snprintf(name, sizeof(name), "function-%d", i);
        HARNESS_EQ(harness_call_i64(job, "worker1", name, 0), i);
        HARNESS_EQ(harness_call_i64(job, "worker0", name, 0), i);
    }
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "function-128", NULL, NULL, NULL), BX_E_NO_FUNCTION);
}

Test(names, of_functions_are_checked_when_registered)
{
    struct bx_options options = { .job = "names", .world_size = 2 };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0);
    cr_expect_eq(bx_register(job, "", BX_INLINE, answer, NULL), -EINVAL);
    cr_expect_eq(bx_register(job, LONGEST "5", BX_INLINE, answer, NULL), -EINVAL);
    cr_expect_eq(bx_register(job, "add", (enum bx_kind)0, answer, NULL), -EINVAL);
    cr_expect_eq(bx_register(job, "add", (enum bx_kind)4, answer, NULL), -EINVAL);
    cr_expect_eq(bx_register(job, LONGEST, BX_INLINE, answer, NULL), 0);
    cr_expect_eq(bx_register(job, LONGEST, BX_BLOCKING, answer, NULL), -EEXIST);
    bx_job_destroy(job);
}
