/* SPDX-License-Identifier: MIT */
/*
 * lib/rpc/checked.c: the kinds of values as another process sends them. What is cut off or changed, then frames that a
 * hostile worker forges: it is cut off, and the others go on.
 */
#include "checked_fixture.h"
#include "tests/harness/hostile.h"

TestSuite(checked_kinds, .init = check, .timeout = 60);

/* ---- What is sent -------------------------------------------------------------------------------------- */

/* The message as it is sent, in memory of exactly that size. */
static unsigned char *packed(const char *letters, size_t *bytes)
{
    OWN(msg) *msg = bx_msg_create(0);
    unsigned char *body;

    put_letters(msg, letters);
    body = bxi_body_with_tails(msg, NULL, bytes);
    return body;
}

/* Takes the kinds of a private copy, so that the sanitizers see a read past its end, and reads by them. */
static int take(const unsigned char *body, size_t bytes)
{
    unsigned char *copy = malloc(bytes > 0 ? bytes : 1);
    size_t left = bytes;
    uint32_t count = 77;
    int rc;

    memcpy(copy, body, bytes);
    rc = bxi_kinds_take(copy, &left, &count);
    if (rc == 0) {
        struct bxi_kinds kinds = { .records = copy + left, .count = count };

        cr_expect_leq(left + 8 * (size_t)count, bytes);
        for (size_t pos = 0; pos < left; pos++) {
            struct bx_reader reader = { .data = copy, .bytes = left, .pos = pos };

            bxi_kinds_mark(&reader, &kinds);
            bx_read_i64(&reader);
        }
    } else {
        cr_expect_eq(count, 0);
    }
    free(copy);
    return rc;
}

Test(checked_kinds, kinds_are_taken_off_what_came)
{
    size_t bytes, left;
    unsigned char *body = packed("lsd3b", &bytes);
    uint32_t count;

    left = bytes;
    cr_expect_eq(bxi_kinds_take(body, &left, &count), 0);
    cr_expect_eq(count, 5);
    cr_expect_eq(left, 8 + 8 + 8 + 12 + 4);
    cr_expect_eq(bytes, left + 5 * 8 + 8);
    bxi_checked = false;
    left = bytes;
    cr_expect_eq(bxi_kinds_take(body, &left, &count), 0);
    cr_expect_eq(count, 0, "a worker without BX_CHECKED forgets them");
    cr_expect_eq(left, 8 + 8 + 8 + 12 + 4);
    free(body);
}

Test(checked_kinds, kinds_that_are_cut_off_or_changed_are_corrupt_or_harmless)
{
    size_t bytes;
    unsigned char *body = packed("lsd3bi", &bytes);
    size_t data = 8 + 8 + 8 + 12 + 4 + 4;

    cr_assert_eq(take(body, bytes), 0);
    for (size_t short_bytes = 0; short_bytes < bytes; short_bytes++)
        cr_expect_eq(take(body, short_bytes), BX_E_CORRUPT, "%zu bytes", short_bytes);
    for (size_t at = data; at < bytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            body[at] ^= (unsigned char)(1 << bit);
            take(body, bytes);
            body[at] ^= (unsigned char)(1 << bit);
        }
    free(body);
}

/* A record is where << 8 | kind. */
static void expect_corrupt(const char *letters, size_t record, uint64_t value)
{
    size_t bytes, data = 0;
    unsigned char *body = packed(letters, &bytes);
    uint32_t count = 0;

    data = bytes;
    cr_assert_eq(bxi_kinds_take(body, &data, &count), 0);
    memcpy(body + data + 8 * record, &value, 8);
    cr_expect_eq(take(body, bytes), BX_E_CORRUPT, "%s, record %zu: %llx", letters, record, (unsigned long long)value);
    free(body);
}

Test(checked_kinds, kinds_that_make_no_sense_are_corrupt)
{
    expect_corrupt("ll", 0, BXI_VALUE_KINDS);
    expect_corrupt("ll", 0, 1 << 8 | BXI_V_BYTES);              /* the first does not begin at 0 */
    expect_corrupt("ll", 1, 17 << 8 | BXI_V_BYTES);             /* behind the end */
    expect_corrupt("ll", 1, UINT64_MAX << 8 | BXI_V_BYTES);
    expect_corrupt("bbb", 1, 9 << 8 | BXI_V_BYTES);             /* behind the next */
    expect_corrupt("ll", 0, BXI_V_I32);                         /* the sizes do not fit */
    expect_corrupt("ii", 0, BXI_V_I64);
    expect_corrupt("bb", 1, 6 << 8 | BXI_V_F32S);
    expect_corrupt("bb", 1, 4 << 8 | BXI_V_STR);
}

Test(checked_kinds, kinds_of_a_message_that_is_too_large_stay_here)
{
    OWN(msg) *msg = bx_msg_create(0);

    bx_msg_put_i64(msg, 1);
    cr_expect_eq(bxi_kinds_bytes(msg), 16);
    msg->bytes = BX_MSG_MAX - 16;
    cr_expect_eq(bxi_kinds_bytes(msg), 16);
    msg->bytes = BX_MSG_MAX - 15;
    cr_expect_eq(bxi_kinds_bytes(msg), 0);
    msg->bytes = BX_MSG_MAX + 1;
    cr_expect_eq(bxi_kinds_bytes(msg), 0);
    msg->bytes = 8;
}

static int setup_checked(struct bx_job *job)
{
    return bx_register(job, "inline", BX_INLINE, wants_i64, NULL);
}

/* ---- Forged frames ---------------------------------------------------------------------------------------- */

static struct forgery {
    uint8_t kind;
    uint8_t flags;
    size_t bytes;
    uint64_t words[6];
} forgery;

static void forge(struct bx_job *job)
{
    struct bxi_frame head = { .kind = forgery.kind, .flags = forgery.flags, .id = UINT64_C(1) << 16,
                              .deadline_ns = BX_FOREVER };

    HARNESS_CHECK(put_frame(job, &head, forgery.words, forgery.bytes));
}

static bool is_alive(struct bx_job *job)
{
    bx_progress(job);
    return bx_worker_is_alive(job, 1);
}

static void sees_the_forger_cut_off(struct bx_job *job)
{
    harness_await(READY, 1);
    strikes_now();
    while (is_alive(job))
        ;
    call_both(job, "worker2", "inline");
    harness_post(FINISHED);
}

static void run_forgery(const struct forgery *forged)
{
    forgery = *forged;
    harness_reset();
    run_hostile(setup_checked, forge, sees_the_forger_cut_off);
}

#define TAIL(count) (uint64_t)(count)

Test(checked_input, with_nonsense_for_kinds_cuts_the_sender_off, .init = check, .timeout = 120)
{
    static const struct forgery forgeries[] = {
        { BXI_REQUEST, BXI_FLAG_KINDS, 0, { 0 } },                                  /* no tail */
        { BXI_REQUEST, BXI_FLAG_KINDS, 8, { TAIL(0) } },
        { BXI_REQUEST, BXI_FLAG_KINDS, 16, { 0, TAIL(2) } },                        /* more records than bytes */
        { BXI_REQUEST, BXI_FLAG_KINDS, 24, { 7, BXI_V_I64, TAIL(1) | UINT64_C(1) << 32 } },
        { BXI_REQUEST, BXI_FLAG_KINDS, 24, { 7, 8 << 8 | BXI_V_I64, TAIL(1) } },
        { BXI_ONEWAY, BXI_FLAG_KINDS, 24, { 7, BXI_V_I32, TAIL(1) } },
        { BXI_REQUEST, BXI_FLAG_KINDS | BXI_FLAG_LEASE, 40, { 5, 1, UINT64_MAX, 8, TAIL(9) } },
        { BXI_REPLY, BXI_FLAG_KINDS, 24, { 7, BXI_V_I64, TAIL(1) } },               /* nobody waits for it */
    };

    for (size_t i = 0; i < sizeof(forgeries) / sizeof(forgeries[0]); i++)
        run_forgery(&forgeries[i]);
}

/* The same hands make a right frame: it is answered. */
static void sees_it_accepted(struct bx_job *job)
{
    harness_await(READY, 1);
    strikes_now();
    while (harness_counter(job, "requests_inline") == 0)
        bx_progress(job);
    HARNESS_CHECK(bx_worker_is_alive(job, 1));
    harness_post(FINISHED);
    while (is_alive(job))
        ;
}

Test(checked_input, that_is_right_is_accepted, .init = check, .timeout = 60)
{
    forgery = (struct forgery){ BXI_ONEWAY, BXI_FLAG_KINDS, 24, { 7, BXI_V_I64, TAIL(1) } };
    run_hostile(setup_checked, forge, sees_it_accepted);
}

/* Worker 1 answers a call, and writes nonsense behind the value. */
HARNESS_HANDLER(answers_nonsense)
{
    bx_msg_put_i64(reply, 1);
    reply->kinds->records[0] = BXI_VALUE_KINDS;
    return 0;
}

static void gets_nonsense(struct bx_job *job)
{
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "nonsense", NULL, NULL, NULL), BX_E_CORRUPT);
    call_both(job, "worker2", "inline");
    harness_post(FINISHED);
}

HARNESS_BODY(dies_afterwards)
{
    harness_await(FINISHED, 1);
    raise(SIGKILL);
}

Test(checked_input, of_an_answer_cuts_the_callee_off, .init = check, .timeout = 60)
{
    harness_run(&(struct harness_world){
        .size = 3, .handlers = { HARNESS_INLINE("nonsense", answers_nonsense), HARNESS_INLINE("inline", wants_i64) },
        .dies = 1 << 1, .body = { gets_nonsense, dies_afterwards, harness_serve } });
}
