/* SPDX-License-Identifier: MIT */
/*
 * Tensors that are made between bx_job_create and bx_job_start: they lie in the arena, which has no name until the
 * start, and stay there.
 */
#include "tests/harness/loans.h"

#include "lend/lend.h"
#include "rpc/rpc.h"

#define ELEMENTS 100000
#define MAKERS 3

enum { MADE };                          /* gates */

static struct bx_tensor *model, *copy;
static const void *model_at;

/* ---- What becomes of them at the start ---------------------------------------------------------------- */

static int make_a_model(struct bx_job *job)
{
    struct bx_tensor *heap = loans_tensor(NULL, BX_F32, ELEMENTS, 8);

    model = loans_tensor(job, BX_F32, ELEMENTS, 7);
    model_at = bx_tensor_data(model);
    HARNESS_CHECK(bx_tensor_is_shared(model));
    HARNESS_EQ(bx_tensor_copy(job, heap, &copy), 0);
    bx_tensor_release(heap);
    bx_tensor_release(loans_tensor(job, BX_F32, ELEMENTS, 9));
    return loans_setup(job);
}

static struct bx_msg *msg_with(int64_t value, struct bx_tensor *tensor)
{
    struct bx_msg *msg = harness_msg_i64(value);

    HARNESS_EQ(bx_msg_put_tensor(msg, tensor), 0);
    return msg;
}

static void give_up_the_model(struct bx_job *job)
{
    bx_tensor_release(model);
    bx_tensor_release(copy);
    harness_serve(job);
}

HARNESS_TEST(early, tensors_are_sent_without_a_copy, 20, .size = 2, .setup = make_a_model,
             .body = { NULL, give_up_the_model })
{
    struct bx_arena_info info = { 0 };

    HARNESS_CHECK(bx_tensor_data(model) == model_at && loans_hold(model, 7));
    HARNESS_EQ(bx_job_arena(job, &info), 0);
    HARNESS_CHECK(info.used_bytes >= 2 * 4 * ELEMENTS);
    HARNESS_EQ(bxi_load_relaxed(&job->control->header.arena_used), info.used_bytes);
    HARNESS_EQ(harness_call(job, "worker1", "keep", msg_with(7, model)), 1);
    HARNESS_EQ(harness_call(job, "worker1", "keep", msg_with(8, copy)), 1);
    HARNESS_EQ(harness_counter(job, "tensors_copied"), 0);
    HARNESS_EQ(bx_tensor_on_loan(model), 1);
    bx_tensor_release(model);
    HARNESS_EQ(harness_call(job, "worker1", "drop", harness_msg_i64(2)), 0);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    /* Their memory is used again as any other's. */
    model = loans_tensor(job, BX_F32, ELEMENTS, 10);
    HARNESS_CHECK(bx_tensor_data(model) == model_at);
    bx_tensor_release(model);
    bx_tensor_release(copy);
}

/* ---- Threads that make some while the job starts --------------------------------------------------------- */

static pthread_t makers[MAKERS];
static bxi_a32 started;

static void *make_tensors(void *context)
{
    struct bx_job *job = context;
    uint64_t number = 0;

    harness_post(MADE);
    do {
        OWN(tensor) *tensor = loans_tensor(job, BX_U8, 1000, ++number);

        HARNESS_CHECK(loans_hold(tensor, number));
    } while (bxi_load_acquire(&started) == 0);
    return NULL;
}

static int start_makers(struct bx_job *job)
{
    for (int i = 0; i < MAKERS; i++)
        HARNESS_EQ(pthread_create(&makers[i], NULL, make_tensors, job), 0);
    return loans_setup(job);
}

static void stop_makers(struct bx_job *job)
{
    bxi_store_release(&started, 1);
    for (int i = 0; i < MAKERS; i++)
        pthread_join(makers[i], NULL);
    HARNESS_EQ(harness_call(job, bx_job_rank(job) == 0 ? "worker1" : "worker0", "verify", loans_msg(job, 3, 2, 500)),
               2);
    bx_job_serve(job);
}

static void stop_makers_and_leave(struct bx_job *job)
{
    bxi_store_release(&started, 1);
    for (int i = 0; i < MAKERS; i++)
        pthread_join(makers[i], NULL);
    HARNESS_EQ(harness_call(job, "worker1", "verify", loans_msg(job, 3, 2, 500)), 2);
}

Test(early, tensors_may_be_made_while_the_job_starts, .timeout = 20)
{
    for (int round = 0; round < 10; round++) {
        harness_run(&(struct harness_world){ .size = 2, .setup = start_makers,
                                             .body = { stop_makers_and_leave, stop_makers } });
        harness_reset();
    }
}

/* ---- No start, or one that fails --------------------------------------------------------------------------- */

static struct bx_job *create(uint64_t start_timeout_ns)
{
    struct bx_options options = { .job = harness_job_name(), .rank = 0, .world_size = 2,
                                  .start_timeout_ns = start_timeout_ns };
    struct bx_job *job = NULL;

    cr_assert_eq(bx_job_create(&options, &job), 0);
    return job;
}

Test(early, tensors_outlive_a_job_that_never_started, .timeout = 20)
{
    struct bx_job *job = create(0);
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, ELEMENTS, 1);

    bx_job_destroy(job);
    cr_expect(loans_hold(tensor, 1));
    bx_tensor_release(tensor);
    cr_expect_eq(harness_left_behind(), 0);
}

Test(early, tensors_outlive_a_start_that_fails, .timeout = 20)
{
    struct bx_job *job = create(100 * HARNESS_MS);
    struct bx_tensor *tensor = loans_tensor(job, BX_U8, ELEMENTS, 1), *other = NULL;

    cr_expect_eq(bx_job_start(job), BX_E_RANK_MISSING);
    cr_expect_eq(harness_left_behind(), 0);
    cr_expect_eq(bx_tensor_create(job, BX_U8, 0, NULL, &other), BX_E_SHUTDOWN);
    cr_expect(loans_hold(tensor, 1));
    bx_job_destroy(job);
    cr_expect(loans_hold(tensor, 1));
    bx_tensor_release(tensor);
}

static void make_one_and_wait(void)
{
    bx_tensor_release(loans_tensor(create(0), BX_U8, ELEMENTS, 1));
    harness_post(MADE);
    pause();
}

Test(early, tensors_of_a_killed_worker_leave_no_name, .timeout = 20)
{
    pid_t child = fork();

    if (child == 0) {
        make_one_and_wait();
        _exit(1);
    }
    harness_await(MADE, 1);
    cr_expect_eq(harness_left_behind(), 0);
    cr_assert_eq(kill(child, SIGKILL), 0);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_expect_eq(harness_left_behind(), 0);
}

static void make_one_that_is_too_large(void)
{
    struct bx_job *job = create(0);
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 }), 0);
    HARNESS_EQ(bx_tensor_create(job, BX_U8, 0, NULL, &tensor), -EFBIG);
    HARNESS_HAS(bx_error_text(), "RLIMIT_FSIZE");
    HARNESS_CHECK(tensor == NULL);
    bx_job_destroy(job);
}

Test(early, tensors_have_the_sentences_of_the_start, .timeout = 20)
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        make_one_that_is_too_large();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(status, 0);
}

/* The limit leaves room for the arena, which is shared memory, and none for jemalloc's records of it. */
static void limit_private_memory(rlim_t bytes)
{
    struct rlimit limit;

    HARNESS_EQ(getrlimit(RLIMIT_DATA, &limit), 0);
    limit.rlim_cur = bytes;
    HARNESS_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
}

static rlim_t private_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    HARNESS_CHECK(file != NULL && fscanf(file, "%*u %*u %*u %*u %*u %llu", &pages) == 1);
    fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static struct bx_tensor *make_limited(struct bx_job *job)
{
    struct bx_tensor *tensor = NULL;
    int rc = bx_tensor_create(job, BX_U8, 0, NULL, &tensor);

    if (rc < 0) {
        HARNESS_EQ(rc, -ENOMEM);
        HARNESS_HAS(bx_error_text(), "RLIMIT_DATA");
        HARNESS_CHECK(tensor == NULL);
    }
    return tensor;
}

static int refuse_no_memory_for_records(struct bx_job *job)
{
    limit_private_memory(private_bytes() + (1 << 20));
    HARNESS_CHECK(make_limited(job) == NULL);
    HARNESS_CHECK(make_limited(job) == NULL);
    limit_private_memory(RLIM_INFINITY);
    model = make_limited(job);
    HARNESS_CHECK(model != NULL);
    return 0;
}

HARNESS_BODY(release_the_model)
{
    bx_tensor_release(model);
}

Test(early, tensors_are_refused_while_there_is_no_memory_for_records, .timeout = 20)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("a sanitizer ends the process when it gets no memory");
#endif
    harness_run(&(struct harness_world){ .size = 2, .setup = refuse_no_memory_for_records,
                                         .body = { release_the_model, release_the_model },
                                         .options.arena_bytes = 64 << 20 });
}
