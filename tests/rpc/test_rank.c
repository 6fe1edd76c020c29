/* SPDX-License-Identifier: MIT */
/*
 * Calls of every kind to a rank (lib/rpc/call.c, object.c, names.c), ranks outside of the world, and the codes of
 * applications that a handler returns.
 */
#include "tests/harness/harness.h"

#define SUM 0                   /* a value of the harness: what "count" has got */

HARNESS_HANDLER(where)
{
    return bx_msg_put_i64(reply, bx_job_rank(bx_request_job(request)));
}

HARNESS_HANDLER(count)
{
    harness_add(SUM, (uint64_t)bx_read_i64(args) << 8 * bx_job_rank(bx_request_job(request)));
    harness_post(0);
    return 0;
}

static const struct bx_type type = { .name = "object" };

HARNESS_HANDLER(make)
{
    return bx_msg_put_object(bx_request_job(request), reply, &type, NULL);
}

static int setup(struct bx_job *job)
{
    return HARNESS_REGISTER(job, HARNESS_INLINE("where", where), HARNESS_INLINE("count", count),
                            HARNESS_INLINE("make", make));
}

static void call_each_rank(struct bx_job *job)
{
    for (int rank = 0; rank < 3; rank++) {
        OWN(msg) *reply = NULL, *one = harness_msg_i64(1);
        struct bx_future *future = NULL, *futures[70];
        OWN(rref) *rref = NULL;

        HARNESS_EQ(bx_rpc_sync(job, bx_rank(rank), "where", NULL, NULL, &reply), 0);
        HARNESS_EQ(*(const int64_t *)bx_msg_data(reply), rank);
        HARNESS_EQ(bx_rpc_async(job, bx_rank(rank), "where", NULL, NULL, &future), 0);
        HARNESS_EQ(harness_end_i64(future), rank);
        HARNESS_EQ(bx_rpc_many(job, bx_rank(rank), "where", 70, NULL, NULL, futures), 0);
        for (int i = 0; i < 70; i++)
            HARNESS_EQ(harness_end_i64(futures[i]), rank);
        HARNESS_EQ(bx_rpc_oneway(job, bx_rank(rank), "count", one, NULL), 0);
        HARNESS_EQ(bx_remote(job, bx_rank(rank), "make", NULL, NULL, &rref), 0);
        HARNESS_EQ(bx_rref_wait(rref, BX_FOREVER), 0);
        HARNESS_EQ(bx_rref_owner(rref), rank);
    }
    harness_await(0, 3);
    HARNESS_EQ(harness_load(SUM), 0x010101);
}

HARNESS_WORLD(rank, reaches_its_worker_by_every_kind_of_call, 30, .size = 3, .setup = setup,
              .body = { NULL, call_each_rank });

HARNESS_TEST(rank, outside_of_the_world_is_no_worker, 20, .size = 2, .setup = setup)
{
    static const char *const texts[] = { "", "#", "#x", "#1x", "# 1", "#+1", "#-1", "#4294967297", "1" };
    static const int ranks[] = { -1, 2, 128, INT32_MAX, INT32_MIN };

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        struct bx_msg *reply = NULL;
        struct bx_future *future = NULL, *futures[2] = { (struct bx_future *)job, (struct bx_future *)job };
        struct bx_rref *rref = NULL;

        HARNESS_EQ(bx_rpc_sync(job, bx_rank(ranks[i]), "where", NULL, NULL, &reply), BX_E_NO_WORKER);
        HARNESS_EQ(bx_rpc_async(job, bx_rank(ranks[i]), "where", NULL, NULL, &future), BX_E_NO_WORKER);
        HARNESS_EQ(bx_rpc_many(job, bx_rank(ranks[i]), "where", 2, NULL, NULL, futures), BX_E_NO_WORKER);
        HARNESS_EQ(bx_rpc_oneway(job, bx_rank(ranks[i]), "where", NULL, NULL), BX_E_NO_WORKER);
        HARNESS_EQ(bx_remote(job, bx_rank(ranks[i]), "make", NULL, NULL, &rref), BX_E_NO_WORKER);
        HARNESS_CHECK(reply == NULL && future == NULL && rref == NULL);
        HARNESS_CHECK(futures[0] == NULL && futures[1] == NULL);
    }
    HARNESS_EQ(bx_rpc_sync(job, bx_rank(2), "where", NULL, NULL, NULL), BX_E_NO_WORKER);
    HARNESS_HAS(bx_error_text(), "has no worker of rank 2: its ranks are 0 to 1");
    HARNESS_EQ(bx_rpc_sync(job, bx_rank(INT32_MIN), "where", NULL, NULL, NULL), BX_E_NO_WORKER);
    HARNESS_HAS(bx_error_text(), "has no worker of rank -2147483648: its ranks are 0 to 1");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        HARNESS_EQ(bx_rpc_sync(job, texts[i], "where", NULL, NULL, NULL), BX_E_NO_WORKER);
    HARNESS_EQ(bx_worker_rank(job, bx_rank(1)), 1);
    HARNESS_EQ(bx_worker_rank(job, bx_rank(2)), BX_E_NO_WORKER);
    for (int rank = 0; rank < BX_WORKERS_MAX; rank++) {
        char text[16];

        snprintf(text, sizeof text, "#%d", rank);
        HARNESS_CHECK(strcmp(bx_rank(rank), text) == 0);
    }
}

/* ---- Codes of applications --------------------------------------------------------------------- */

enum { NO_STOCK = BX_E_APPLICATION(3), NO_MONEY = BX_E_APPLICATION(4) };

HARNESS_HANDLER(sell)
{
    int code = (int)bx_read_i64(args);

    return code == NO_MONEY ? bx_fail(code, "3 are missing") : code;
}

static int setup_shop(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        HARNESS_EQ(bx_error_register(NO_STOCK, "SHOP_E_STOCK", "nothing is left"), 0);
    return bx_register(job, "sell", BX_INLINE, sell, NULL);
}

static int buy(struct bx_job *job, int to, int code)
{
    OWN(msg) *args = harness_msg_i64(code);

    return bx_rpc_sync(job, bx_rank(to), "sell", args, NULL, NULL);
}

/* Worker 1 has registered the code, worker 2 has not. */
HARNESS_TEST(rank, gets_the_codes_of_applications_as_they_were_returned, 20, .size = 3, .setup = setup_shop)
{
    HARNESS_EQ(buy(job, 1, NO_STOCK), NO_STOCK);
    HARNESS_HAS(bx_error_text(), "worker 'worker1', function 'sell': nothing is left");
    HARNESS_EQ(buy(job, 2, NO_STOCK), NO_STOCK);
    HARNESS_HAS(bx_error_text(), "worker 'worker2', function 'sell': application error 3");
    HARNESS_EQ(buy(job, 2, NO_MONEY), NO_MONEY);
    HARNESS_HAS(bx_error_text(), "3 are missing");
    HARNESS_EQ(buy(job, 2, BX_E_APPLICATION(9999)), BX_E_APPLICATION(9999));
    HARNESS_EQ(buy(job, 1, BX_E_APPLICATION(0)), BX_E_APPLICATION(0));
    HARNESS_HAS(bx_strerror(NO_STOCK), "application error 3");     /* each process registers for itself */
    HARNESS_HAS(bx_error_name(NO_STOCK), "BX_E_APPLICATION(3)");
}
