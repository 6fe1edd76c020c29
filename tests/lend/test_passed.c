/* SPDX-License-Identifier: MIT */
/*
 * Tensors on loan that are sent on without a copy: worker0 owns them, worker1 passes them on, worker2 and worker3 hold
 * them.
 */
#include "tests/harness/loans.h"
#include "tests/harness/stall.h"

#define ELEMENTS ((int64_t)(1 << 20))
enum gate { HELD = 0, CHECKED, SEEN };

static struct bx_tensor *kept;
static struct bx_future *future;

TestSuite(passed, .timeout = 60);

/* Answers with its tensors; first they go to worker `value` and back, unless that is 0. */
HARNESS_HANDLER(mirror)
{
    struct bx_job *job = bx_request_job(request);
    int64_t through = bx_read_i64(args);
    OWN(msg) *on = harness_msg_i64(0), *answer = NULL;
    struct bx_reader back;
    int rc = 0;

    while (bx_reader_tensors_left(args) > 0)
        bx_msg_put_tensor(on, bx_read_tensor(args));
    if (through > 0)
        rc = bx_rpc_sync(job, bx_rank((int)through), "mirror", on, NULL, &answer);
    back = bx_msg_reader(through > 0 ? answer : on);
    bx_msg_put_i64(reply, (int64_t)bx_reader_tensors_left(&back));
    while (bx_reader_tensors_left(&back) > 0)
        bx_msg_put_tensor(reply, bx_read_tensor(&back));
    return rc;
}

static void write_over_free_memory(struct bx_job *job)
{
    for (int i = 0; i < 8; i++) {
        OWN(tensor) *tensor = loans_tensor(job, BX_U8, ELEMENTS, 99);
    }
}

HARNESS_HANDLER(write_over)
{
    (void)args;
    write_over_free_memory(bx_request_job(request));
    return bx_msg_put_i64(reply, 0);
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_BLOCKING("pass_on", loans_pass_on), HARNESS_BLOCKING("write_over", write_over),
                     HARNESS_BLOCKING("mirror", mirror));
    return loans_setup(job);
}

/* The tensor, numbered, by that way. */
static struct bx_msg *by(struct bx_job *job, int64_t number, const char *way, int64_t elements)
{
    OWN(tensor) *tensor = loans_tensor(job, BX_U8, elements, (uint64_t)number);
    struct bx_msg *args = harness_msg_i64(number);

    bx_msg_put_str(args, way);
    bx_msg_put_tensor(args, tensor);
    return args;
}

static void check_copied(struct bx_job *job, uint64_t passed)
{
    HARNESS_EQ(harness_counter(job, "tensors_copied"), 0);
    HARNESS_EQ(harness_counter(job, "tensors_passed_on"), passed);
}

/* ---- Nobody dies ------------------------------------------------------------------------------------------ */

static void check_the_middle(struct bx_job *job)
{
    harness_await(CHECKED, 1);
    check_copied(job, 10);
    HARNESS_EQ(harness_counter(job, "passed_on_bytes"), 5 * (ELEMENTS + 100));
    harness_serve(job);
}

HARNESS_TEST(passed, tensors_reach_a_third_worker_without_a_copy, 60, .size = 3, .setup = setup,
             .body = { NULL, check_the_middle })
{
    for (int i = 0; i < 10; i++)
        HARNESS_EQ(harness_call(job, "worker1", "pass_on", by(job, i, "2keep", i % 2 == 0 ? ELEMENTS : 100)), 1);
    HARNESS_EQ(loans_of(job, 1).leases, 10);                /* worker1's, held for worker2 */
    HARNESS_EQ(loans_of(job, 2).leases, 0);
    HARNESS_EQ(harness_call_i64(job, "worker2", "drop", 10), 0);
    loans_come_back(job, -1);
    check_copied(job, 0);
    harness_post(CHECKED);
}

static double mirror_s(struct bx_job *job, int64_t through, int count)
{
    struct bx_msg *args = harness_msg_i64(through);
    uint64_t from_ns;
    double s;

    for (int i = 0; i < count; i++) {
        OWN(tensor) *tensor = loans_tensor(job, BX_U8, 4, (uint64_t)i);

        bx_msg_put_tensor(args, tensor);
    }
    from_ns = bxi_now_ns();
    HARNESS_EQ(harness_call(job, "worker1", "mirror", args), count);
    s = (double)(bxi_now_ns() - from_ns) / 1e9;
    loans_come_back(job, -1);
    return s;
}

HARNESS_TEST(passed, many_tensors_cost_each_as_much_as_few, 60, .size = 3, .setup = setup)
{
    for (int64_t through = 0; through <= 2; through += 2) {
        double few = mirror_s(job, through, 8000), many = mirror_s(job, through, 64000);

        HARNESS_CHECK(many < 40 * few);
    }
}

static void passed_fifteen(struct bx_job *job)
{
    harness_await(CHECKED, 1);
    check_copied(job, 15);
    harness_serve(job);
}

/* Each time it is lent again, not copied. */
HARNESS_TEST(passed, what_came_back_is_lent_again, 60, .size = 2, .setup = setup, .body = { NULL, passed_fifteen })
{
    struct bx_msg *args = loans_msg(job, 6, 1, ELEMENTS), *back;
    struct bx_reader reader;

    for (int i = 0; i < 15; i++) {
        back = harness_ask(job, "worker1", "back", args);
        reader = bx_msg_reader(back);
        HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 6));
        args = back;
    }
    loans_come_back(job, -1);
    write_over_free_memory(job);
    reader = bx_msg_reader(args);
    HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), 6));
    bx_msg_destroy(args);
    check_copied(job, 0);
    harness_post(CHECKED);
}

/* The owner gets views of what it has lent, and one without elements, which is copied. */
HARNESS_TEST(passed, parts_go_back_to_their_owner, 60, .size = 2, .setup = setup)
{
    struct bx_msg *args = harness_msg_i64(0), *back;
    struct bx_tensor *whole = loans_tensor(job, BX_U8, 1000, 4), *part;
    const unsigned char *data = bx_tensor_data(whole);
    const int64_t begin[] = { 0, 100, 999, 1000 };
    struct bx_reader reader;

    for (int i = 0; i < 4; i++) {
        HARNESS_EQ(bx_tensor_slice(whole, 0, begin[i], 1000, 3, &part), 0);
        bx_msg_put_tensor(args, part);
        bx_tensor_release(part);
    }
    back = harness_ask(job, "worker1", "back", args);
    reader = bx_msg_reader(back);
    for (int i = 0; i < 4; i++) {
        struct bx_tensor *got = bx_read_tensor(&reader);

        HARNESS_EQ(bx_tensor_elements(got), (1000 - begin[i] + 2) / 3);
        HARNESS_CHECK(bx_tensor_is_borrowed(got) && bx_tensor_data_mut(got) == NULL);
        for (int64_t j = 0; j < bx_tensor_elements(got); j++)
            HARNESS_EQ(((const unsigned char *)bx_tensor_data(got))[3 * j], data[begin[i] + 3 * j]);
    }
    bx_msg_destroy(back);
    bx_tensor_release(whole);
    loans_come_back(job, -1);
}

/* ---- Deaths ------------------------------------------------------------------------------------------------- */

static void await_gone(const struct bx_job *job, int rank)
{
    while (bx_worker_is_alive(job, rank))
        usleep(1000);
}

/* worker1 reads what worker2 sent back to it, when its lease to worker2 is taken back. */
HARNESS_TEST(passed, tensors_stay_until_their_lender_drops_what_the_dead_sent_back, 60, .size = 3, .setup = setup,
             .dies = 1u << 2, .body = { NULL, harness_serve })
{
    HARNESS_EQ(harness_call(job, "worker1", "pass_on", by(job, 7, "21keep", ELEMENTS)), 1);
    harness_signal(2, SIGKILL);
    await_gone(job, 2);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, 200 * HARNESS_MS), BX_E_TIMEOUT);
    write_over_free_memory(job);
    HARNESS_EQ(harness_call_i64(job, "worker1", "drop", 1), 0);
    loans_come_back(job, -1);
}

static void middles_die(struct bx_job *job, int first, int second)
{
    HARNESS_EQ(harness_call(job, "worker1", "pass_on", by(job, 7, "23keep", ELEMENTS)), 1);
    harness_signal(first, SIGKILL);
    await_gone(job, first);
    harness_signal(second, SIGKILL);
    await_gone(job, second);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, 200 * HARNESS_MS), BX_E_TIMEOUT);
    write_over_free_memory(job);
    HARNESS_EQ(harness_call_i64(job, "worker3", "drop", 1), 0);
    loans_come_back(job, -1);
}

static void both_middles_die(struct bx_job *job)
{
    middles_die(job, 1, 2);
}

/* worker0 has nothing on loan to worker2, so its death begins no round of worker0's. */
static void later_middle_dies_first(struct bx_job *job)
{
    middles_die(job, 2, 1);
}

Test(passed, tensors_stay_though_two_in_the_middle_die)
{
    harness_run(&(struct harness_world){ .size = 4, .setup = setup, .dies = 1u << 1 | 1u << 2,
                                         .body = { both_middles_die, NULL, NULL, harness_serve } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 4, .setup = setup, .dies = 1u << 1 | 1u << 2,
                                         .body = { later_middle_dies_first, NULL, NULL, harness_serve } });
}

/* worker3's lease to worker4 waits for worker2, whose loan is worker1's: it ends when worker3 has returned its own. */
static void both_ends_die(struct bx_job *job, int first, int second)
{
    /* worker4 passes something on too; else no lease to it would wait. */
    HARNESS_EQ(harness_call(job, "worker4", "pass_on", by(job, 6, "1keep", 100)), 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "drop", 1), 0);
    HARNESS_EQ(harness_call(job, "worker1", "pass_on", by(job, 7, "234keep", ELEMENTS)), 1);
    harness_signal(first, SIGKILL);
    await_gone(job, first);
    harness_signal(second, SIGKILL);
    loans_come_back(job, -1);
}

static void the_first_dies_first(struct bx_job *job)
{
    both_ends_die(job, 1, 4);
}

static void the_last_dies_first(struct bx_job *job)
{
    both_ends_die(job, 4, 1);
}

Test(passed, tensors_come_back_through_two_that_live_between_two_that_die)
{
    harness_run(&(struct harness_world){ .size = 5, .setup = setup, .dies = 1u << 1 | 1u << 4,
                                         .body = { the_first_dies_first, NULL, harness_serve, harness_serve } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 5, .setup = setup, .dies = 1u << 1 | 1u << 4,
                                         .body = { the_last_dies_first, NULL, harness_serve, harness_serve } });
}

/* ---- Workers that leave alone ------------------------------------------------------------------------------- */

/* By bx_job_destroy; its process goes on. */
static void leaves_alone(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(HELD, 1);
    bx_job_destroy(job);
    harness_await(CHECKED, 1);
}

/* The owner is in its shutdown by then. */
static void leaves_and_ends(struct bx_job *job)
{
    harness_leaves_by_itself();
    harness_await(HELD, 1);
    usleep(100000);
    bx_job_destroy(job);
}

static void holder_reads_on(struct bx_job *job)
{
    await_gone(job, 1);
    usleep(200000);
    HARNESS_EQ(harness_call_i64(job, "worker0", "write_over", 0), 0);
    HARNESS_EQ(harness_call_i64(job, "worker2", "drop", 1), 0);                /* checks it first */
}

HARNESS_TEST(passed, tensors_stay_though_the_middle_ends_in_the_shutdown_of_their_owner, 60, .size = 3, .setup = setup,
             .body = { NULL, leaves_and_ends, holder_reads_on })
{
    HARNESS_EQ(harness_call(job, "worker1", "pass_on", by(job, 7, "2keep", ELEMENTS)), 1);
    harness_leaves_by_itself();
    harness_post(HELD);
    harness_leave(job);
}

static void middle_leaves(struct bx_job *job)
{
    const char *holder = bx_job_rank(job) == 0 ? "2keep" : "0keep";

    HARNESS_EQ(harness_call(job, "worker1", "pass_on", by(job, 7, holder, ELEMENTS)), 1);
    harness_post(HELD);
    await_gone(job, 1);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, 200 * HARNESS_MS), BX_E_TIMEOUT);      /* the holder reads it still */
    write_over_free_memory(job);
    HARNESS_EQ(harness_call_i64(job, bx_job_rank(job) == 0 ? "worker2" : "worker0", "drop", 1), 0);
    harness_post(CHECKED);
    loans_come_back(job, -1);
}

Test(passed, tensors_stay_though_the_middle_leaves_alone)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup,
                                         .body = { middle_leaves, leaves_alone, harness_serve } });
    harness_reset();
    harness_run(&(struct harness_world){ .size = 3, .setup = setup,
                                         .body = { harness_serve, leaves_alone, middle_leaves } });
}

/* worker1 has not seen yet that the owner has left, worker2 has. */
static void passes_on_what_is_gone(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(0);

    harness_post(HELD);
    harness_await(SEEN, 1);
    bx_msg_put_tensor(args, kept);
    future = harness_start(job, "worker2", "verify", args, 0);
}

static void keeps_the_tensor_of_one_that_leaves(struct bx_job *job)
{
    struct bx_msg *made = harness_ask(job, "worker0", "make", harness_msg_i64(1));
    struct bx_reader reader = bx_msg_reader(made);

    kept = bx_read_tensor(&reader);
    while_stalled = passes_on_what_is_gone;
    stall_oneself(job);
    harness_end(future, BX_E_SHUTDOWN);
    HARNESS_CHECK(loans_hold(kept, 0));
    bx_msg_destroy(made);
    harness_post(CHECKED);
}

static void sees_it_leave(struct bx_job *job)
{
    await_gone(job, 0);
    harness_post(SEEN);
    harness_serve(job);
}

HARNESS_WORLD(passed, tensors_whose_owner_has_left_are_refused_with_the_code_of_a_call_to_it, 60, .size = 3,
              .setup = setup, .handlers = { HARNESS_INLINE("stall", stall) },
              .body = { leaves_alone, keeps_the_tensor_of_one_that_leaves, sees_it_leave });
