/* SPDX-License-Identifier: MIT */
/*
 * lib/base/error.c and lib/base/options.h: a thread keeps its sentence over calls that succeed, whatever handlers and
 * callbacks run in them; and structs of options or figures from a header that is older or newer than the library.
 *
 * The job has own_loop set, so everything runs on one thread.
 */
#include "tests/harness/harness.h"

#include "boxcar_nn.h"
#include "rpc/rpc.h"

HARNESS_HANDLER(quiet)
{
    HARNESS_CHECK(bx_error_text()[0] == '\0');
    return 0;
}

/* A failure in it is ignored: the handler succeeds. */
HARNESS_HANDLER(loud)
{
    bx_fail(-EPERM, "of the handler");
    return 0;
}

HARNESS_HANDLER(bad)
{
    return bx_fail(-EPERM, "of the handler");
}

HARNESS_THEN(fail_then)
{
    return bx_fail(-EIO, "of the callback");
}

/* Fails. Between the failure and the return it completes a future whose callback fails too. */
HARNESS_HANDLER(bad_with_callback)
{
    OWN(future) *future = bx_future_create(bx_request_job(request));
    OWN(future) *then = bx_future_then(future, fail_then, NULL, NULL);
    int rc = bx_fail(-EPERM, "of the handler");

    HARNESS_EQ(bx_future_set(future, NULL), 0);
    HARNESS_EQ(bx_future_error(then), -EIO);
    HARNESS_HAS(bx_future_error_text(then), "of the callback");
    return rc;
}

static int setup(struct bx_job *job)
{
    bx_register(job, "quiet", BX_INLINE, quiet, NULL);
    bx_register(job, "loud", BX_INLINE, loud, NULL);
    bx_register(job, "bad", BX_INLINE, bad, NULL);
    return bx_register(job, "bad_with_callback", BX_INLINE, bad_with_callback, NULL);
}

static void is_kept(const char *after)
{
    if (strcmp(bx_error_text(), "of the program") != 0 || bx_error_code() != -ENOENT)
        harness_failed(__FILE__, __LINE__, "after %s it is '%s'", after, bx_error_text());
}

HARNESS_TEST(error_kept, sentence_is_kept_over_calls_that_succeed, 20, .size = 2, .setup = setup,
             .options = { .own_loop = true })
{
    struct bx_future *call = NULL, *future = bx_future_create(job);
    OWN(future) *then = bx_future_then(future, fail_then, NULL, NULL);

    bxi_clear_error();
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "loud", NULL, NULL, NULL), 0);
    HARNESS_CHECK(bx_error_text()[0] == '\0');
    bx_fail(-ENOENT, "of the program");
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "quiet", NULL, NULL, NULL), 0);
    is_kept("a call");
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "loud", NULL, NULL, NULL), 0);
    is_kept("a call in which something failed");
    HARNESS_EQ(bx_future_set(future, NULL), 0);
    is_kept("a callback that failed");
    HARNESS_EQ(bx_future_error(then), -EIO);
    HARNESS_EQ(bx_rpc_oneway(job, "worker0", "loud", NULL, NULL), 0);
    HARNESS_CHECK(bx_progress(job) > 0);
    is_kept("bx_progress");
    call = harness_async(job, "worker0", "loud");
    while (!bx_future_is_done(call))
        ;
    is_kept("bx_future_is_done");
    bx_future_release(call);

    HARNESS_EQ(bx_rpc_sync(job, "worker0", "bad", NULL, NULL, NULL), -EPERM);
    HARNESS_HAS(bx_error_text(), "'bad': of the handler");
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "bad_with_callback", NULL, NULL, NULL), -EPERM);
    HARNESS_HAS(bx_error_text(), "'bad_with_callback': of the handler");
    bx_future_release(future);
}

HARNESS_THEN(fail_without_a_sentence)
{
    return -EPERM;
}

/* Both callbacks run in one pass, the one with a sentence first. */
Test(error_kept, sentence_of_one_callback_is_not_that_of_the_next, .timeout = 20)
{
    OWN(future) *future = bx_future_create(NULL);
    OWN(future) *first = bx_future_then(future, fail_then, NULL, NULL);
    OWN(future) *second = bx_future_then(future, fail_without_a_sentence, NULL, NULL);

    cr_assert_eq(bx_future_set(future, NULL), 0);
    cr_expect_str_eq(bx_future_error_text(first), "of the callback");
    cr_expect_eq(bx_future_error(second), -EPERM);
    cr_expect_str_eq(bx_future_error_text(second), bx_strerror(-EPERM));
}

HARNESS_CALLBACK(end_with_a_sentence)
{
    bx_fail(-EIO, "of the callback");
}

Test(error_kept, sentence_is_kept_over_the_end_of_a_job, .timeout = 20)
{
    struct bx_options options = { .job = harness_job_name(), .world_size = 2 };
    struct bx_job *job = NULL;
    OWN(future) *future = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0);
    future = bx_future_create(job);
    bx_future_on_done(future, end_with_a_sentence, NULL);
    bx_fail(-ENOENT, "of the program");
    bx_job_destroy(job);
    cr_expect_eq(bx_future_error(future), BX_E_SHUTDOWN);
    cr_expect_str_eq(bx_error_text(), "of the program");
}

Test(error_kept, callbacks_may_nest_deeper_than_sentences_are_kept, .timeout = 20)
{
    bx_fail(-EIO, "of the program");
    for (int i = 0; i < 20; i++) {
        bxi_error_enter();
        cr_expect_str_eq(bx_error_text(), "");
        bx_fail(-EIO, "of level %d", i);
    }
    for (int i = 0; i < 20; i++)
        bxi_error_leave();
    cr_expect_str_eq(bx_error_text(), "of the program");
}

/* ---- Options of a newer header ----------------------------------------------------------------- */

/* A struct with 16 bytes more than the library knows. */
#define NEWER(type) struct { type known; unsigned char more[16]; }

static int end_well(const struct bx_options *options, void *context)
{
    (void)options, (void)context;
    return 0;
}

static void expect_version(int rc, const char *name)
{
    cr_expect_eq(rc, BX_E_VERSION, "%s: %d, %s", name, rc, bx_error_text());
    cr_expect_not_null(strstr(bx_error_text(), name), "%s", bx_error_text());
}

Test(options, of_a_newer_header_are_taken_if_the_new_part_is_zero, .timeout = 20)
{
    NEWER(struct bx_options) options = { { .struct_bytes = sizeof options, .job = harness_job_name(),
                                           .world_size = 2 }, { 0 } };
    NEWER(struct bx_batch_options) batch = { { .struct_bytes = sizeof batch, .max_rows = 2 }, { 0 } };
    NEWER(struct bx_spawn_options) spawn = { { .struct_bytes = sizeof spawn, .world_size = 2,
                                               .options = &options.known }, { 0 } };
    NEWER(struct bx_net_options) net = { { .struct_bytes = sizeof net }, { 0 } };
    struct bx_job *job = NULL;
    struct bx_net *made = NULL;

    cr_expect_eq(bx_job_create(&options.known, &job), 0, "%s", bx_error_text());
    cr_expect_eq(bx_register_batch(job, "rows", harness_no_rows, NULL, &batch.known), 0, "%s", bx_error_text());
    cr_expect_eq(bx_spawn(&spawn.known, end_well, NULL, NULL), 0, "%s", bx_error_text());
    batch.more[15] = 1;
    expect_version(bx_register_batch(job, "more rows", harness_no_rows, NULL, &batch.known), "bx_batch_options");
    bx_job_destroy(job);
    options.more[0] = 1;
    expect_version(bx_job_create(&options.known, &job), "bx_options");
    expect_version(bx_spawn(&spawn.known, end_well, NULL, NULL), "bx_options");
    options.more[0] = 0;
    spawn.more[8] = 1;
    expect_version(bx_spawn(&spawn.known, end_well, NULL, NULL), "bx_spawn_options");
    if (bx_net_create(&net.known, &made) == 0) {
        bx_net_destroy(made);
        net.more[3] = 1;
        expect_version(bx_net_create(&net.known, &made), "bx_net_options");
    }
}

/* The memory behind the options cannot be read. */
HARNESS_TEST(options, of_an_impossible_length_are_not_read, 20, .size = 2, .setup = setup)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct bx_call_options *options;

    HARNESS_CHECK(pages != MAP_FAILED);
    HARNESS_EQ(mprotect(pages + page, page, PROT_NONE), 0);
    options = (struct bx_call_options *)(void *)(pages + page - sizeof *options);
    options->struct_bytes = SIZE_MAX;
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "quiet", NULL, options, NULL), BX_E_VERSION);
    munmap(pages, 2 * page);
}

HARNESS_TEST(options, of_a_call_with_a_newer_header_are_checked_too, 20, .size = 2, .setup = setup)
{
    NEWER(struct bx_call_options) options = { { .struct_bytes = sizeof options }, { 0 } };

    HARNESS_EQ(bx_rpc_sync(job, "worker0", "quiet", NULL, &options.known, NULL), 0);
    options.more[0] = 1;
    HARNESS_EQ(bx_rpc_sync(job, "worker0", "quiet", NULL, &options.known, NULL), BX_E_VERSION);
    HARNESS_HAS(bx_error_text(), "bx_call_options");
}

/* ---- Figures for an older or a newer header ------------------------------------------------------ */

HARNESS_TEST(options, figures_are_written_as_far_as_both_headers_know_them, 20, .size = 2, .setup = setup)
{
    NEWER(struct bx_arena_info) newer;
    struct bx_loans older;

    memset(&newer, 0xaa, sizeof newer);
    newer.known.struct_bytes = sizeof newer;
    HARNESS_EQ(bx_job_arena(job, &newer.known), 0);
    HARNESS_EQ(newer.known.struct_bytes, sizeof(struct bx_arena_info));     /* what the library knows */
    HARNESS_CHECK(newer.known.size_bytes > 0 && newer.known.size_bytes != UINT64_C(0xaaaaaaaaaaaaaaaa));
    HARNESS_EQ(newer.more[0], 0xaa);
    memset(&older, 0xaa, sizeof older);
    older.struct_bytes = offsetof(struct bx_loans, oldest_ns);
    HARNESS_EQ(bx_job_loans(job, -1, &older), 0);
    HARNESS_EQ(older.struct_bytes, offsetof(struct bx_loans, oldest_ns));
    HARNESS_EQ(older.bytes, 0);
    HARNESS_CHECK(older.oldest_ns == UINT64_C(0xaaaaaaaaaaaaaaaa));         /* beyond the struct */
    older.struct_bytes = 0;
    HARNESS_EQ(bx_job_loans(job, -1, &older), 0);
    HARNESS_EQ(older.struct_bytes, sizeof older);
    HARNESS_EQ(older.oldest_ns, 0);
}
