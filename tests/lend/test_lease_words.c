/* SPDX-License-Identifier: MIT */
/*
 * Wrong lease words, and an arena that is truncated while others read it.
 *
 * Worker 0 lends to worker 1, which writes wrong words into its own segment, or truncates its own arena; worker 2 is a
 * bystander. Words are read only when needed, so worker 0 calls bx_job_loans. A wrong word returns no lease: what was
 * lent stays on loan until worker 1 is dead. A correct word that is written too early harms only worker 1.
 */
#include "tests/harness/hostile.h"
#include "tests/harness/loans.h"

#include "rpc/rpc.h"

enum value { WORD = 0, SLOT };

static bxi_a64 *words_of(struct bx_job *job, int lender)
{
    return (bxi_a64 *)(void *)((unsigned char *)job->control + bxi_lease_offset(lender));
}

/* ---- Workers -------------------------------------------------------------------------------------------------- */

static void others_go_on(struct bx_job *job)
{
    HARNESS_EQ(harness_call(job, "worker2", "verify", loans_msg(job, 3, 5, 4000)), 5);
    HARNESS_EQ(loans_of(job, 2).leases, 0);
}

/* ---- Words ------------------------------------------------------------------------------------------------------ */

/* At the end slot 0 is on loan with its third lease, and slot 1 with its first. */
static void lends_to_it(struct bx_job *job)
{
    harness_await(READY, 1);
    for (int64_t i = 0; i < 2; i++)
        HARNESS_EQ(harness_call(job, "worker1", "verify", loans_msg(job, i, 1, 100)), 1);
    for (int64_t i = 0; i < 2; i++) {
        HARNESS_EQ(loans_of(job, 1).leases, (unsigned)i);
        HARNESS_EQ(harness_call(job, "worker1", "keep", loans_msg(job, i, 1, 5000)), 1);
    }
}

static void expect_cut_off(struct bx_job *job)
{
    int rc;

    /* loans_of finds the wrong word; the thread that makes progress then closes the peer. */
    do {
        loans_of(job, 1);
        rc = loans_try(job, "worker1", "echo", harness_msg_i64(1), NULL);
    } while (rc == 0);
    HARNESS_EQ(rc, BX_E_CORRUPT);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    HARNESS_CHECK(loans_of(job, 1).leases >= 1);
    others_go_on(job);
    harness_post(FINISHED);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_CHECK(loans_of(job, 1).taken_back >= 1);
    HARNESS_EQ(loans_of(job, 1).granted, loans_of(job, 1).returned + loans_of(job, 1).taken_back);
    others_go_on(job);
}

static void lends_and_cuts_off(struct bx_job *job)
{
    lends_to_it(job);
    strikes_now();
    expect_cut_off(job);
}

/* Adds WORD to the word of SLOT. The word of slot 0 is 2, the generation of its last lease that was returned. */
static void writes_word(struct bx_job *job)
{
    bxi_a64 *word = &words_of(job, 0)[harness_load(SLOT)];

    bxi_store_release(word, bxi_load_relaxed(word) + harness_load(WORD));
}

/* Words that go back, run ahead, are nonsense. */
Test(lease_words, that_are_wrong_cut_off, .timeout = 60)
{
    static const struct { uint64_t slot, more; } wrong[] = {
        { 0, (uint64_t)-1 }, { 0, (uint64_t)-2 }, { 0, 2 }, { 1, 2 }, { 0, UINT64_MAX / 3 }, { 1, UINT64_MAX },
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        fprintf(stderr, "lease_words: case %zu\n", i);
        harness_reset();
        harness_store(SLOT, wrong[i].slot);
        harness_store(WORD, wrong[i].more);
        run_hostile(loans_setup, writes_word, lends_and_cuts_off);
    }
}

static void writes_the_words_of_what_is_not_out(struct bx_job *job)
{
    for (int slot = 2; slot < BXI_LEASE_MAX; slot++)
        bxi_store_release(&words_of(job, 0)[slot], UINT64_C(0xdeadbeef));
}

/* The words are ignored until a lease uses their slot. */
static void lends_once_more(struct bx_job *job)
{
    int rc;

    lends_to_it(job);
    strikes_now();
    HARNESS_EQ(loans_of(job, 1).leases, 2);
    HARNESS_EQ(harness_call(job, "worker1", "echo", harness_msg_i64(4)), 4);
    others_go_on(job);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    HARNESS_EQ(loans_of(job, 1).leases, 2);
    /* The call is answered, or fails if the wrong word is found first. */
    rc = loans_try(job, "worker1", "keep", loans_msg(job, 5, 1, 100), NULL);
    HARNESS_CHECK(rc == 0 || rc == BX_E_CORRUPT);
    expect_cut_off(job);
}

Test(lease_words, of_unused_slots_cut_off_when_the_slot_is_used, .timeout = 30)
{
    run_hostile(loans_setup, writes_the_words_of_what_is_not_out, lends_once_more);
}

/* Words of worker 1 that are ignored, or that worker 0 need not act on. */
static void writes_what_means_nothing(struct bx_job *job)
{
    bxi_store_relaxed(&job->control->pair[0].want_lease, UINT64_MAX);
    memset(&bxi_tables(job->control)->loans, 0xff, sizeof(bxi_tables(job->control)->loans));
    bxi_store_relaxed(&job->control->header.arena_used, UINT64_MAX);
    bxi_store_relaxed(&job->control->header.arena_committed, UINT64_MAX);
    for (int slot = 0; slot < BXI_LEASE_MAX; slot++)
        bxi_store_release(&words_of(job, 2)[slot], 77);     /* it has borrowed nothing from worker 2 */
}

static void is_not_disturbed(struct bx_job *job)
{
    struct bx_msg *reply;

    lends_to_it(job);
    reply = harness_ask(job, "worker1", "make", harness_msg_i64(2));
    strikes_now();
    bx_msg_destroy(reply);
    HARNESS_EQ(loans_of(job, 1).borrowed, 0);
    HARNESS_EQ(loans_of(job, 1).leases, 2);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(1)), 1);
    HARNESS_EQ(loans_of(job, 1).leases, 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    others_go_on(job);
    harness_post(FINISHED);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    HARNESS_EQ(loans_of(job, 1).taken_back, 1);
}

/* A call to worker 2 makes the pages of the ring to worker 2 and of the lease words behind it. */
static void opens_towards_worker_2(struct bx_job *job)
{
    HARNESS_EQ(harness_call(job, "worker2", "echo", harness_msg_i64(1)), 1);
    writes_what_means_nothing(job);
}

Test(lease_words, without_meaning_are_ignored, .timeout = 30)
{
    run_hostile(loans_setup, opens_towards_worker_2, is_not_disturbed);
}

/* Returns leases that it still reads. Worker 0 then uses the memory again, which affects no other worker. */
static void gives_back_too_early(struct bx_job *job)
{
    bxi_store_release(&words_of(job, 0)[0], 3);
    bxi_store_release(&words_of(job, 0)[1], 1);
}

static void has_it_back_too_early(struct bx_job *job)
{
    lends_to_it(job);
    strikes_now();
    HARNESS_EQ(loans_of(job, 1).leases, 0);
    HARNESS_EQ(loans_of(job, 1).returned, 4);
    HARNESS_EQ(loans_of(job, 1).taken_back, 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    for (int i = 0; i < 50; i++)
        others_go_on(job);
    harness_post(FINISHED);
    while (bx_worker_is_alive(job, 1))
        others_go_on(job);
    HARNESS_EQ(loans_of(job, 1).taken_back, 0);
}

Test(lease_words, that_are_written_too_early_harm_only_their_writer, .timeout = 30)
{
    run_hostile(loans_setup, gives_back_too_early, has_it_back_too_early);
}

/* ---- An arena that shrinks -------------------------------------------------------------------------------------*/

static void truncates_its_arena(struct bx_job *job)
{
    HARNESS_EQ(ftruncate(bxi_arena_fd(job->lend->arena), 0), 0);
}

static void expect_cut_off_by_truncation(struct bx_job *job)
{
    int rc;

    do
        rc = loans_try(job, "worker1", "echo", harness_msg_i64(1), NULL);
    while (rc == 0);
    HARNESS_EQ(rc, BX_E_CORRUPT);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
}

static void reads_what_is_gone(struct bx_job *job)
{
    struct bx_msg *reply;
    uint64_t sum = 0;

    harness_await(READY, 1);
    reply = harness_ask(job, "worker1", "make", harness_msg_i64(200));
    strikes_now();

    struct bx_reader reader = bx_msg_reader(reply);

    while (bx_reader_tensors_left(&reader) > 0) {
        struct bx_tensor *tensor = bx_read_tensor(&reader);
        const unsigned char *bytes = bx_tensor_data(tensor);

        for (size_t i = 0; i < bx_tensor_bytes(tensor); i++)
            sum += bytes[i];
    }
    HARNESS_EQ(sum, 0);
    expect_cut_off_by_truncation(job);
    bx_msg_destroy(reply);
    others_go_on(job);
    harness_post(FINISHED);
}

Test(arena_truncated, while_it_is_borrowed_reads_as_zeroes_and_cuts_off, .timeout = 30)
{
    run_hostile(loans_setup, truncates_its_arena, reads_what_is_gone);
}

/* Sends a message in pages that it then truncates. Worker 0 is stopped meanwhile and reads the message afterwards. */
static void sends_what_it_truncates(struct bx_job *job)
{
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, 100, 1);
    char *bytes = calloc(1, 1 << 20);
    struct bx_msg *args = harness_msg_i64(1);

    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_msg_put_bytes(args, bytes, 1 << 20), 0);
    free(bytes);
    harness_stop_worker(0);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "keep", args, NULL), 0);
    truncates_its_arena(job);
    harness_signal(0, SIGCONT);
    harness_await(FINISHED, 1);
    raise(SIGKILL);
}

HARNESS_TEST(arena_truncated, before_a_message_in_it_is_read_cuts_off, 30, .size = 3, .setup = loans_setup,
             .dies = 1u << 1, .body = { NULL, sends_what_it_truncates, harness_serve })
{
    expect_cut_off_by_truncation(job);
    HARNESS_EQ(harness_call(job, "worker0", "drop", harness_msg_i64(0)), 0);     /* the message was not handled */
    others_go_on(job);
    harness_post(FINISHED);
}
