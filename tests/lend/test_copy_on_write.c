/* SPDX-License-Identifier: MIT */
/*
 * bx_tensor_copy_on_write: a borrower writes, and nobody sees it; the loan lasts as long as the copy.
 */
#include "tests/harness/loans.h"

#include <sys/resource.h>

#define ELEMENTS ((int64_t)1 << 20)         /* of u8 */
#define SMALL 100
#define MANY 1500                           /* copies; one worker has at most 1024 leases of another */

TestSuite(copy_on_write, .timeout = 60);

/* A tensor, numbered 5, of a message that the worker answers with. */
static struct bx_tensor *borrowed_of(struct bx_job *job, const char *from, int64_t elements, struct bx_msg **made)
{
    struct bx_msg *args = loans_msg(job, 5, 1, elements);
    struct bx_reader reader;

    *made = harness_ask(job, from, "back", args);
    reader = bx_msg_reader(*made);
    return bx_read_tensor(&reader);
}

static struct bx_tensor *borrowed(struct bx_job *job, const char *from, struct bx_msg **made)
{
    return borrowed_of(job, from, ELEMENTS, made);
}

static bool has_owners_pages;           /* the last copy that was made */

static struct bx_tensor *copied(struct bx_tensor *tensor)
{
    struct bx_tensor *copy = NULL;
    int rc = bx_tensor_copy_on_write(tensor, &copy);

    HARNESS_CHECK(rc == 0 || rc == 1);
    has_owners_pages = rc == 1;
    HARNESS_CHECK(!bx_tensor_is_borrowed(copy) && bx_tensor_is_contiguous(copy));
    HARNESS_EQ(bx_tensor_dtype(copy), bx_tensor_dtype(tensor));
    HARNESS_EQ(bx_tensor_elements(copy), bx_tensor_elements(tensor));
    return copy;
}

HARNESS_TEST(copy_on_write, is_written_and_nobody_sees_it, 60, .size = 2, .setup = loans_setup)
{
    OWN(msg) *made = NULL;
    struct bx_tensor *lent = borrowed(job, "worker1", &made), *copy = copied(lent), *second;

    HARNESS_CHECK(has_owners_pages);
    second = copied(lent);
    HARNESS_CHECK(!has_owners_pages);
    HARNESS_CHECK(loans_hold(copy, 5) && loans_hold(second, 5));
    memset(bx_tensor_data_mut(copy), 9, (size_t)ELEMENTS);
    HARNESS_CHECK(loans_hold(lent, 5));
    HARNESS_CHECK(loans_hold(second, 5));
    memset(bx_tensor_data_mut(second), 8, (size_t)ELEMENTS);
    HARNESS_EQ(((const unsigned char *)bx_tensor_data(copy))[ELEMENTS - 1], 9);
    bx_tensor_release(copy);
    copy = copied(lent);                    /* has what is lent, not what was written */
    HARNESS_CHECK(loans_hold(copy, 5));
    bx_tensor_release(copy);
    bx_tensor_release(second);
}

/* Of each page: another user of it gets what is lent, also after one that has only read it, and then reads it without a
 * page fault. */
HARNESS_TEST(copy_on_write, is_known_to_be_written, 60, .size = 2, .setup = loans_setup)
{
    const size_t page = 4096, bytes = (size_t)ELEMENTS;
    OWN(msg) *made = NULL;
    struct bx_tensor *lent = borrowed(job, "worker1", &made), *copy = copied(lent), *view = NULL;
    struct rusage before, after;

    HARNESS_CHECK(loans_hold(copy, 5) && !bx_tensor_is_written(copy, 0, bytes));
    bx_tensor_release(copy);
    copy = copied(lent);
    getrusage(RUSAGE_THREAD, &before);
    HARNESS_CHECK(loans_hold(copy, 5));
    getrusage(RUSAGE_THREAD, &after);
    HARNESS_CHECK(after.ru_minflt - before.ru_minflt < (long)(bytes / page / 64));     /* it maps 16 at a time */
    ((unsigned char *)bx_tensor_data_mut(copy))[10 * page] = 9;
    HARNESS_CHECK(bx_tensor_is_written(copy, 0, bytes) && bx_tensor_is_written(copy, 10 * page, 1));
    HARNESS_CHECK(!bx_tensor_is_written(copy, 0, 9 * page) && !bx_tensor_is_written(copy, 11 * page, page));
    HARNESS_EQ(bx_tensor_slice(copy, 0, (int64_t)(10 * page), ELEMENTS, 1, &view), 0);
    HARNESS_CHECK(bx_tensor_is_written(view, 0, 1) && !bx_tensor_is_written(view, page, 1));
    HARNESS_CHECK(bx_tensor_is_written(lent, 0, 1) && bx_tensor_is_written(NULL, 0, 1));
    bx_tensor_release(view);
    bx_tensor_release(copy);
    copy = copied(lent);
    HARNESS_CHECK(loans_hold(copy, 5) && !bx_tensor_is_written(copy, 0, bytes));
    bx_tensor_release(copy);
}

/* The copy is sent as what was written, and keeps the loan until it is released. */
HARNESS_TEST(copy_on_write, keeps_the_loan_and_is_sent_as_it_was_written, 60, .size = 2, .setup = loans_setup)
{
    struct bx_msg *made = NULL, *args;
    struct bx_tensor *copy = copied(borrowed(job, "worker0", &made));
    uint64_t sent_copies = harness_counter(job, "tensors_copied");

    bx_msg_destroy(made);
    HARNESS_CHECK(loans_hold(copy, 5));
    HARNESS_EQ(loans_of(job, 0).leases, 1);
    loans_fill(copy, 6);
    args = harness_msg_i64(6);
    HARNESS_EQ(bx_msg_put_tensor(args, copy), 0);
    HARNESS_EQ(harness_call(job, "worker1", "verify", args), 1);
    HARNESS_EQ(harness_counter(job, "tensors_copied"), sent_copies + 1);
    bx_tensor_release(copy);
    loans_come_back(job, -1);
}

static int make_the_arena_early(struct bx_job *job)
{
    bx_tensor_release(loans_tensor(job, BX_U8, SMALL, 1));
    return loans_setup(job);
}

HARNESS_TEST(copy_on_write, of_an_arena_made_before_the_start_keeps_the_loan, 60, .size = 2,
             .setup = make_the_arena_early)
{
    struct bx_msg *made = NULL;
    OWN(tensor) *copy = copied(borrowed(job, "worker0", &made));

    bx_msg_destroy(made);
    HARNESS_EQ(loans_of(job, 0).leases, 1);
    HARNESS_CHECK(loans_hold(copy, 5));
}

/* The parent's tensors, in a child of a fork: its own one, of which the parent sees no write, and a borrowed one. */
static void use_in_child(struct bx_tensor *own, struct bx_tensor *lent)
{
    OWN(tensor) *copy = NULL;

    HARNESS_CHECK(loans_hold(own, 4) && loans_hold(lent, 5) && bx_tensor_data_mut(lent) == NULL);
    copy = copied(lent);
    HARNESS_CHECK(!has_owners_pages);
    loans_fill(copy, 7);
    loans_fill(own, 6);
    HARNESS_CHECK(loans_hold(own, 6) && loans_hold(lent, 5) && loans_hold(copy, 7));
    bx_tensor_release(own);
}

HARNESS_TEST(copy_on_write, in_a_forked_child_is_of_the_tensors_that_its_parent_had, 60, .size = 2,
             .setup = loans_setup)
{
    OWN(msg) *made = NULL;
    struct bx_tensor *lent = borrowed(job, "worker1", &made), *own = loans_tensor(job, BX_I64, ELEMENTS, 4);
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        use_in_child(own, lent);
        _exit(0);
    }
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
    HARNESS_CHECK(loans_hold(own, 4) && loans_hold(lent, 5));
    bx_tensor_release(own);
}

HARNESS_TEST(copy_on_write, leaves_half_of_the_leases_to_calls, 60, .size = 2, .setup = loans_setup)
{
    static struct bx_tensor *kept[MANY];
    struct bx_msg *made = NULL;

    for (int i = 0; i < MANY; i++) {
        kept[i] = copied(borrowed_of(job, "worker1", 65536, &made));
        bx_msg_destroy(made);
    }
    for (int i = 0; i < MANY; i++) {
        HARNESS_CHECK(loans_hold(kept[i], 5));
        bx_tensor_release(kept[i]);
    }
}

HARNESS_TEST(copy_on_write, of_others_is_a_copy, 60, .size = 2, .setup = loans_setup)
{
    OWN(msg) *made = NULL;
    struct bx_tensor *lent = borrowed(job, "worker1", &made), *own = loans_tensor(job, BX_I64, ELEMENTS, 4);
    struct bx_tensor *view = NULL, *copy;
    const unsigned char *every_third;

    copy = copied(own);
    loans_fill(own, 5);
    HARNESS_CHECK(loans_hold(copy, 4));
    bx_tensor_release(copy);
    bx_tensor_release(own);
    HARNESS_EQ(bx_tensor_slice(lent, 0, 7, 7 + SMALL, 1, &view), 0);
    copy = copied(view);
    HARNESS_EQ(memcmp(bx_tensor_data(copy), bx_tensor_data(view), SMALL), 0);
    memset(bx_tensor_data_mut(copy), 0, SMALL);
    bx_tensor_release(copy);
    bx_tensor_release(view);
    HARNESS_EQ(bx_tensor_slice(lent, 0, 0, ELEMENTS, 3, &view), 0);
    copy = copied(view);
    every_third = bx_tensor_data(copy);
    HARNESS_EQ(every_third[1000], ((const unsigned char *)bx_tensor_data(lent))[3000]);
    bx_tensor_release(copy);
    bx_tensor_release(view);
    HARNESS_CHECK(loans_hold(lent, 5));
}
