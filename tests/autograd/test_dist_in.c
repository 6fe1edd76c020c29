/* SPDX-License-Identifier: MIT */
/*
 * Gradients that come from other workers (lib/autograd/dist_in.c): an inline handler computes, or a thread of the pool.
 * Worker 1 has one parameter, w; its function multiplies with it. test_dist.c has all else about passes.
 */
#include "tests/autograd/dist_fixture.h"
#include "tests/harness/refuse.h"

enum { LOAN_BYTES = 65536, SMALL = 5, LARGE = 20000 };

TestSuite(dist_in, .timeout = 60);

static int64_t width;                   /* of w, all 3 */

/* A tensor of all bytes that this worker may have on loan. */
HARNESS_HANDLER(lend_all)
{
    const int64_t shape[] = { LOAN_BYTES };
    OWN(tensor) *tensor = NULL;
    int rc = bx_tensor_create(bx_request_job(request), BX_U8, 1, shape, &tensor);

    if (rc == 0)
        rc = bx_msg_put_tensor(reply, tensor);
    return rc;
}

/* The maker's thread waits by then: it would take along what comes before. */
static int pass_on_late(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    usleep(100000);
    grads->inputs[0] = bx_tensor_acquire(grads->outputs[0]);
    return 0;
}

static int set_up(struct bx_job *job)
{
    static const bx_backward_fn late = pass_on_late;

    HARNESS_REGISTER(job, HARNESS_BLOCKING("hold", harness_hold), HARNESS_INLINE("product", dist_product),
                     HARNESS_INLINE("lend_all", lend_all),
                     { "same", BX_INLINE, dist_custom, NULL, (void *)(uintptr_t)&late });
    return dist_set_up(job, width, 3, 0);
}

/* A pass over x * y, with x = 2, where y is made of x by a function of worker 1: "product", x * w. */
struct product {
    struct pass pass;
    struct bx_var *x, *loss;
};

static void forward_by(const char *function, struct product *product, struct bx_job *job)
{
    struct bx_var *y;

    product->x = dist_param(width, 2, 0);
    product->pass = pass_begin();
    y = pass_call(job, &product->pass, "worker1", function, product->x, NULL);
    product->loss = bx_var_sum(product->pass.tape, bx_var_mul(product->pass.tape, y, product->x));
}

static void forward(struct product *product, struct bx_job *job)
{
    forward_by("product", product, job);
}

static void end_product(struct product *product)
{
    pass_end(&product->pass);
    bx_var_release(product->x);
}

static void backward(struct product *product)
{
    const struct bx_tensor *grad;

    HARNESS_EQ(pass_back(&product->pass, product->loss, false), 0);
    grad = bx_grads_get(bx_context_grads(product->pass.context), product->x);
    HARNESS_CHECK(grad != NULL);
    for (int64_t i = 0; i < width; i++)
        HARNESS_CHECK(dist_at(grad, i) == 2 * 2 * 3);
    end_product(product);
}

static void pass_over(struct bx_job *job)
{
    for (int i = 0; i < 20; i++) {
        struct product product;

        forward(&product, job);
        backward(&product);
    }
}

/* Worker 1 calls itself only to reach its pool. */
static void expect_calls(struct bx_job *job, bool to_itself)
{
    /* join, discover and grads for each pass */
    HARNESS_EQ(bx_job_serve(job), 0);
    HARNESS_EQ(harness_counter(job, "calls_sent"), to_itself ? 20 * 4 : 20 * 3);
}

static void expect_no_pool(struct bx_job *job)
{
    expect_calls(job, false);
}

static void expect_pool(struct bx_job *job)
{
    expect_calls(job, true);
}

Test(dist_in, computes_small_parts_in_the_handler)
{
    width = SMALL;
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { pass_over, expect_no_pool } });
}

Test(dist_in, computes_large_parts_on_the_pool)
{
    width = LARGE;
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { pass_over, expect_pool } });
}

static void *give_back(void *loan)
{
    usleep(100000);
    harness_post(0);
    bx_msg_destroy(loan);
    return NULL;
}

/* The handler at worker 1 cannot lend its gradient, until worker 0 has given back what it has of worker 1. */
static void leave_no_room(struct bx_job *job)
{
    struct bx_msg *loan = NULL;
    struct product product;
    pthread_t thread;

    forward(&product, job);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "lend_all", NULL, NULL, &loan), 0);
    HARNESS_EQ(pthread_create(&thread, NULL, give_back, loan), 0);
    backward(&product);
    HARNESS_EQ(harness_gate(0), 1);
    pthread_join(thread, NULL);
}

Test(dist_in, sends_from_the_pool_what_the_handler_has_no_room_for)
{
    width = SMALL;
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { leave_no_room },
                                         .options = { .loan_bytes_max = LOAN_BYTES } });
}

/* ---- a pool that does not take the work -------------------------------------------------------------------- */

HARNESS_HANDLER(refuse_threads)
{
    HARNESS_CHECK(refuse(SYS_clone3, EAGAIN) && refuse(SYS_clone, EAGAIN));
    return 0;
}

static int set_up_refusing(struct bx_job *job)
{
    HARNESS_EQ(bx_register(job, "refuse", BX_INLINE, refuse_threads, NULL), 0);
    return set_up(job);
}

/* A pass needs no pool if the gradients come while a thread of the worker still runs nodes: it takes them along. */
static void expect_refusal(struct bx_job *job, const char *at)
{
    struct product product;
    int rc = 0;

    HARNESS_EQ(bx_rpc_sync(job, at, "refuse", NULL, NULL, NULL), 0);
    for (int i = 0; rc == 0 && i < 20; i++) {
        if (i > 0)
            end_product(&product);
        forward(&product, job);
        rc = bx_context_backward(product.pass.context, &product.loss, NULL, 1, false, BX_FOREVER);
    }
    HARNESS_EQ(rc, -EAGAIN);
    HARNESS_HAS(bx_error_text(), "no thread can be made");
    HARNESS_EQ(bx_context_error(product.pass.context), -EAGAIN);
    end_product(&product);
}

static void refuse_here(struct bx_job *job)
{
    expect_refusal(job, "worker0");
}

static void refuse_there(struct bx_job *job)
{
    expect_refusal(job, "worker1");
}

Test(dist_in, fails_the_pass_if_the_makers_pool_refuses_the_work)
{
    width = LARGE;
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up_refusing, .body = { refuse_here } });
}

Test(dist_in, fails_the_pass_if_the_pool_of_another_worker_refuses_the_work)
{
    width = LARGE;
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up_refusing, .body = { refuse_there } });
}

/* The gradient of x is queued at worker 0, the maker, and its pool is busy. */
static void take_too_long(struct bx_job *job)
{
    const struct bx_call_options forever = { .timeout_ns = BX_FOREVER };
    struct bx_future *held = NULL;
    struct product product;

    forward_by("same", &product, job);
    HARNESS_EQ(bx_rpc_async(job, "worker0", "hold", NULL, &forever, &held), 0);
    harness_await(HARNESS_HELD, 1);
    HARNESS_EQ(bx_context_backward(product.pass.context, &product.loss, NULL, 1, false, 0), BX_E_TIMEOUT);
    HARNESS_EQ(bx_context_error(product.pass.context), BX_E_TIMEOUT);
    harness_post(HARNESS_GO);
    harness_end(held, 0);
    end_product(&product);
}

Test(dist_in, without_a_timeout_the_makers_own_part_has_that_of_the_job)
{
    width = LARGE;
    harness_run(&(struct harness_world){ .size = 2, .setup = set_up, .body = { take_too_long },
                                         .options = { .call_timeout_ns = 500 * HARNESS_MS, .pool_threads = 1 } });
}
