/* SPDX-License-Identifier: MIT */
/*
 * Backward passes and optimizers across workers (lib/autograd/dist.h). Each worker has one parameter, w, of WIDTH
 * elements, and functions that compute with it; results and gradients are compared with those of one process.
 */
#include "tests/autograd/dist_fixture.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"

#include <math.h>

enum { WIDTH = 5 };
enum { IN_BACKWARD, GRADIENT_CAME, ENDED };     /* gates */
enum { FAILS_IN = 8 };                          /* a value */

TestSuite(dist, .timeout = 60);

/* The first value of each worker's w. */
static double first_of(int rank)
{
    return 1 + rank;
}

/* ---- Functions that take part --------------------------------------------------------------------------- */

static int stays(void *context, const struct bx_node_grads *grads)
{
    (void)context, (void)grads;
    harness_post(IN_BACKWARD);
    harness_await(ENDED, 1);
    return 0;
}

static int pass_on(const struct bx_node_grads *grads)
{
    grads->inputs[0] = bx_tensor_acquire(grads->outputs[0]);
    return 0;
}

/* The first of two nodes is slow. The second one waits until the gradient of the first has come to the other worker. */
static int holds_back(void *context, const struct bx_node_grads *grads)
{
    static bool is_second;

    (void)context;
    if (is_second)
        harness_await(GRADIENT_CAME, 1);
    is_second = true;
    usleep(5000);
    return pass_on(grads);
}

static int tells(void *context, const struct bx_node_grads *grads)
{
    (void)context;
    harness_post(GRADIENT_CAME);
    return pass_on(grads);
}

HARNESS_HANDLER(get_param)
{
    OWN(rref) *rref = NULL;
    int rc = bx_param_rref(bx_request_job(request), w, &rref);

    if (rc == 0)
        rc = bx_msg_put_rref(reply, rref);
    return rc;
}

/* The gradient of w in this context. */
static int get_grad(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    OWN(context) *context = NULL;
    struct bx_tensor *grad;
    int rc = bx_read_context(dist, args, &context);

    (void)request, (void)unused;
    if (rc < 0)
        return rc;
    grad = bx_grads_get(bx_context_grads(context), w);
    if (grad != NULL)
        rc = bx_msg_put_tensor(reply, grad);
    return rc;
}

HARNESS_HANDLER(count_contexts)
{
    return bx_msg_put_i64(reply, (int64_t)bx_dist_contexts(dist));
}

static int setup(struct bx_job *job)
{
    static const bx_backward_fn failing = dist_fails, staying = stays, holding = holds_back;

    HARNESS_REGISTER(job, HARNESS_BLOCKING("product", dist_product),
                     { "fails", BX_BLOCKING, dist_custom, NULL, (void *)(uintptr_t)&failing },
                     { "stays", BX_BLOCKING, dist_custom, NULL, (void *)(uintptr_t)&staying },
                     { "holds_back", BX_BLOCKING, dist_custom, NULL, (void *)(uintptr_t)&holding },
                     HARNESS_ASYNC("stay", harness_never), HARNESS_INLINE("get_param", get_param),
                     HARNESS_INLINE("get_grad", get_grad), HARNESS_INLINE("count_contexts", count_contexts));
    return dist_set_up(job, WIDTH, first_of(bx_job_rank(job)), 0.1);
}

/* ---- Helpers of the maker ---------------------------------------------------------------------------------- */

/* Element i of the gradient of worker rank's w; NAN: it has none. */
static double grad_of(struct bx_job *job, struct bx_context *context, const char *worker, int i)
{
    OWN(msg) *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;
    double value = NAN;

    HARNESS_EQ(bx_msg_put_context(args, context), 0);
    HARNESS_EQ(bx_rpc_sync(job, worker, "get_grad", args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    if (bx_msg_tensors(reply) > 0)
        value = dist_at(bx_read_tensor(&reader), i);
    return value;
}

static void await_no_context(struct bx_job *job, const char *worker)
{
    for (;;) {
        struct bx_msg *reply = NULL;
        struct bx_reader reader;
        int64_t count;

        HARNESS_EQ(bx_rpc_sync(job, worker, "count_contexts", NULL, NULL, &reply), 0);
        reader = bx_msg_reader(reply);
        count = bx_read_i64(&reader);
        bx_msg_destroy(reply);
        if (count == 0)
            return;
        usleep(1000);
    }
}

#define NEAR(a, b) HARNESS_CHECK(fabs((a) - (double)(b)) <= 1e-12 * (1 + fabs((double)(b))))

/* ---- Gradients --------------------------------------------------------------------------------------------- */

/* torch's FAST mode would wait for ever (pytorch#23110), or send zeros (pytorch#26446). */
HARNESS_TEST(dist, leaves_out_what_the_loss_does_not_use, 60, .size = 3, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *sum = NULL, *loss;

    pass_call(job, &pass, "worker2", "product", w, NULL);      /* nothing of it is used */
    pass_call(job, &pass, "worker1", "product", w, &sum);      /* only the sum is */
    loss = bx_var_sum(pass.tape, sum);
    HARNESS_EQ(pass_back(&pass, loss, false), 0);
    NEAR(dist_grad_at(pass.context, 2), 1);
    NEAR(grad_of(job, pass.context, "worker1", 2), 1);
    HARNESS_CHECK(isnan(grad_of(job, pass.context, "worker2", 2)));
    pass_end(&pass);
    await_no_context(job, "worker2");
}

HARNESS_TEST(dist, crosses_between_workers_more_often_than_there_are_threads_or_leases, 60, .size = 2, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *y = w, *loss;
    enum { TIMES = 1500 };                      /* more than the pool has threads, and a pair of workers leases */

    for (int i = 0; i < TIMES; i++)
        y = bx_var_scale(pass.tape, pass_call(job, &pass, i % 2 == 0 ? "worker1" : "worker0", "product", y, NULL),
                         i % 2 == 0 ? 0.5 : 1);
    loss = bx_var_sum(pass.tape, y);
    HARNESS_EQ(pass_back(&pass, loss, false), 0);
    /* Element 0: y = w0 * (w1 / 2 * w0)^300, w0 = 1, w1 = 2. */
    NEAR(dist_grad_at(pass.context, 0), 1 + TIMES / 2);
    NEAR(grad_of(job, pass.context, "worker1", 0), TIMES / 2 * 0.5);
    pass_end(&pass);
    await_no_context(job, "worker1");
}

HARNESS_TEST(dist, passes_twice_only_if_the_first_retains, 60, .size = 2, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *y = pass_call(job, &pass, "worker1", "product", w, NULL), *loss = bx_var_sum(pass.tape, y);

    HARNESS_EQ(pass_back(&pass, loss, true), 0);
    HARNESS_EQ(pass_back(&pass, loss, false), 0);
    NEAR(dist_grad_at(pass.context, 0), 2 * first_of(1));
    NEAR(grad_of(job, pass.context, "worker1", 0), 2 * first_of(0));
    HARNESS_EQ(pass_back(&pass, loss, false), BX_E_STATE);
    HARNESS_HAS(bx_error_text(), "retain");
    HARNESS_EQ(bx_context_error(pass.context), 0);  /* it was found out here: the context lives on */
    pass_end(&pass);
    await_no_context(job, "worker1");
}

HARNESS_TEST(dist, sends_what_is_ready_before_a_slow_node_ends, 60, .size = 2, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *a = pass_call(job, &pass, "worker1", "holds_back", pass_custom(pass.tape, w, tells), NULL);
    struct bx_var *b = pass_call(job, &pass, "worker1", "holds_back", pass_custom(pass.tape, w, tells), NULL);
    struct bx_var *loss = bx_var_sum(pass.tape, bx_var_add(pass.tape, a, b));

    HARNESS_EQ(pass_back(&pass, loss, false), 0);
    NEAR(dist_grad_at(pass.context, 0), 2);
    pass_end(&pass);
    await_no_context(job, "worker1");
}

/* ---- Failures ------------------------------------------------------------------------------------------------ */

HARNESS_TEST(dist, ends_everywhere_with_the_error_of_a_node, 60, .size = 3, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *loss = bx_var_sum(pass.tape, pass_call(job, &pass, "worker1", "fails", w, NULL));

    pass_call(job, &pass, "worker2", "product", w, NULL);
    HARNESS_EQ(pass_back(&pass, loss, false), -EDOM);
    HARNESS_HAS(bx_error_text(), "no derivative today");
    HARNESS_EQ(bx_context_error(pass.context), -EDOM);
    await_no_context(job, "worker1");               /* freed everywhere, before it is ended */
    await_no_context(job, "worker2");
    HARNESS_EQ(pass_back(&pass, loss, false), -EDOM);
    pass_end(&pass);
}

/* pytorch#38513 */
HARNESS_TEST(dist, cancels_a_call_that_outlives_its_context, 60, .size = 2, .setup = setup)
{
    OWN(context) *context = dist_context();
    OWN(future) *call = NULL, *late = NULL;

    HARNESS_EQ(bx_rpc_async(job, "worker1", "stay", NULL, NULL, &call), 0);
    HARNESS_EQ(bx_context_call(context, call), 0);
    bx_context_acquire(context);
    bx_context_end(context);
    HARNESS_EQ(bx_future_wait(call, BX_FOREVER), BX_E_CANCELLED);
    HARNESS_EQ(bx_context_error(context), BX_E_CANCELLED);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "stay", NULL, NULL, &late), 0);
    HARNESS_EQ(bx_context_call(context, late), BX_E_CANCELLED);
    HARNESS_EQ(bx_future_wait(late, BX_FOREVER), BX_E_CANCELLED);
}

static void *end_in_backward(void *context)
{
    harness_await(IN_BACKWARD, 1);
    bx_context_end(bx_context_acquire(context));
    return NULL;
}

HARNESS_TEST(dist, ends_a_pass_whose_context_is_ended, 60, .size = 2, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *loss = bx_var_sum(pass.tape, pass_call(job, &pass, "worker1", "stays", w, NULL));
    pthread_t thread;

    HARNESS_EQ(pthread_create(&thread, NULL, end_in_backward, pass.context), 0);
    HARNESS_EQ(pass_back(&pass, loss, false), BX_E_CANCELLED);
    harness_post(ENDED);
    pthread_join(thread, NULL);
    bx_tape_destroy(pass.tape);
    bx_context_release(pass.context);
    await_no_context(job, "worker1");
}

HARNESS_TEST(dist, ends_everywhere_at_its_deadline, 60, .size = 2, .setup = setup)
{
    struct pass pass = pass_begin();
    struct bx_var *loss = bx_var_sum(pass.tape, pass_call(job, &pass, "worker1", "stays", w, NULL));

    HARNESS_EQ(bx_context_backward(pass.context, &loss, NULL, 1, false, 30 * HARNESS_MS), BX_E_TIMEOUT);
    harness_post(ENDED);
    await_no_context(job, "worker1");
    pass_end(&pass);
}

static int setup_memory(struct bx_job *job)
{
    if (bx_job_rank(job) == 1)
        memory_fails_value = FAILS_IN;
    return setup(job);
}

/* In worker1 the n-th allocation of a pass fails, for every n until none does. The maker's part waits for no gradient:
 * it has nothing left to do when it has sent one. */
HARNESS_TEST(dist, ends_at_once_where_a_worker_has_no_memory, 60, .size = 2, .setup = setup_memory)
{
    bool failed = true;

    for (unsigned n = 1; failed; n++) {
        struct pass pass = pass_begin();
        struct bx_var *x = bx_var_detach(pass.tape, w);
        struct bx_var *loss = bx_var_sum(pass.tape, pass_call(job, &pass, "worker1", "product", x, NULL));
        int rc;

        harness_store(FAILS_IN, n);
        rc = bx_context_backward(pass.context, &loss, NULL, 1, false, 5000 * HARNESS_MS);
        failed = harness_load(FAILS_IN) == 0;
        harness_store(FAILS_IN, 0);
        HARNESS_CHECK(rc == 0 || (failed && rc != BX_E_TIMEOUT));
        pass_end(&pass);
        await_no_context(job, "worker1");
    }
}

/* The maker has no room for its ring to this worker, so it does not read the request for the join. */
static void reads_a_context_twice(struct bx_job *job)
{
    struct bx_context *context = NULL, *again = NULL;
    struct bx_msg *msg = bx_msg_create(0);
    struct bx_reader first, second;

    (void)job;
    bx_msg_put_u64(msg, 1);             /* the first context of worker0 */
    first = second = bx_msg_reader(msg);
    HARNESS_EQ(bx_read_context(dist, &first, &context), 0);
    while (bx_context_error(context) == 0)
        usleep(100);
    HARNESS_EQ(bx_context_error(context), BX_E_REFUSED);
    harness_resize_shm(8 << 20);
    HARNESS_EQ(bx_read_context(dist, &second, &again), BX_E_REFUSED);
    bx_context_release(context);
    bx_msg_destroy(msg);
}

HARNESS_WORLD(dist, context_that_could_not_be_joined_stays_failed, 30, .size = 2, .setup = setup,
              .body = { NULL, reads_a_context_twice }, .shm_kib = HARNESS_HALF_RINGS(3));

HARNESS_TEST(dist, refuses_bad_input_with_a_sentence, 60, .size = 2, .setup = setup)
{
    struct bx_context *other = dist_context(), *read = NULL;
    struct pass pass = pass_begin();
    struct bx_var *y = pass_call(job, &pass, "worker1", "product", w, NULL), *loss = bx_var_sum(pass.tape, y);
    struct bx_msg *msg = bx_msg_create(0);
    struct bx_grads *grads = NULL;
    struct bx_reader reader;

    HARNESS_EQ(bx_context_backward(pass.context, NULL, NULL, 0, false, 0), -EINVAL);
    HARNESS_HAS(bx_error_text(), "needs a root");
    HARNESS_EQ(bx_context_backward(pass.context, &y, NULL, 1, false, 0), -EINVAL);
    HARNESS_HAS(bx_error_text(), "one element");
    HARNESS_EQ(bx_context_backward(other, &loss, NULL, 1, false, 0), -EINVAL);
    HARNESS_HAS(bx_error_text(), "another context");
    HARNESS_EQ(bx_grads_create(NULL, &grads), 0);
    HARNESS_EQ(bx_backward(&loss, NULL, 1, true, grads), BX_E_STATE);
    HARNESS_HAS(bx_error_text(), "bx_context_backward");
    bx_msg_put_u64(msg, UINT64_C(99) << 48);
    reader = bx_msg_reader(msg);
    HARNESS_EQ(bx_read_context(dist, &reader, &read), -EINVAL);
    HARNESS_HAS(bx_error_text(), "no context");
    HARNESS_EQ(bx_msg_put_var(msg, pass.context, NULL), -EINVAL);
    bx_context_end(other);
    bx_msg_destroy(msg);
    bx_grads_destroy(grads);
    pass_end(&pass);
    await_no_context(job, "worker1");
}

/* ---- Optimizers ------------------------------------------------------------------------------------------------ */

static struct bx_rref *param_at(struct bx_job *job, const char *worker)
{
    OWN(msg) *reply = NULL;
    struct bx_reader reader;
    struct bx_rref *rref;

    HARNESS_EQ(bx_rpc_sync(job, worker, "get_param", NULL, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    rref = bx_rref_acquire(bx_read_rref(&reader));
    return rref;
}

static double value_at(struct bx_rref *rref, int i)
{
    OWN(msg) *value = NULL;
    struct bx_reader reader;

    HARNESS_EQ(bx_rref_to_here(rref, NULL, &value), 0);
    reader = bx_msg_reader(value);
    return dist_at(bx_read_tensor(&reader), i);
}

HARNESS_TEST(dist, optimizer_steps_at_every_owner, 60, .size = 3, .setup = setup)
{
    struct bx_rref *params[3] = { param_at(job, "worker0"), param_at(job, "worker1"), param_at(job, "worker2") };
    struct bx_dist_optim *optim = NULL;
    double a = first_of(0), b = first_of(1), v_a = 0, v_b = 0;

    HARNESS_EQ(bx_dist_optim_create(dist, params, 3, &(struct bx_optim_sgd){ .lr = 0.1, .momentum = 0.9 }, NULL,
                                    &optim), 0);
    for (int i = 0; i < 5; i++) {
        struct pass pass = pass_begin();
        struct bx_var *loss = bx_var_sum(pass.tape, pass_call(job, &pass, "worker1", "product", w, NULL));

        HARNESS_EQ(pass_back(&pass, loss, false), 0);
        HARNESS_EQ(bx_dist_optim_step(optim, pass.context), 0);
        pass_end(&pass);
        v_a = 0.9 * v_a + b;
        v_b = 0.9 * v_b + a;
        a -= 0.1 * v_a;
        b -= 0.1 * v_b;
        NEAR(value_at(params[0], 0), a);
        NEAR(value_at(params[1], 0), b);
        NEAR(value_at(params[2], 0), first_of(2));          /* no pass came to it */
    }
    bx_dist_optim_destroy(optim);
    for (int i = 0; i < 3; i++)
        bx_rref_release(params[i]);
}

/* Is a task queued for the pool? */
HARNESS_HANDLER(is_queued)
{
    return bx_msg_put_i64(reply, bxi_load_relaxed(&bx_request_job(request)->rpc->pool.ready));
}

static int setup_large(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_BLOCKING("product", dist_product), HARNESS_BLOCKING("hold", harness_hold));
    HARNESS_REGISTER(job, HARNESS_INLINE("get_param", get_param), HARNESS_INLINE("is_queued", is_queued),
                     HARNESS_INLINE("count_contexts", count_contexts));
    return dist_set_up(job, 20000, 1, 0);
}

struct step {
    struct bx_dist_optim *optim;
    struct bx_context *context;
};

static void *steps(void *argument)
{
    const struct step *step = argument;

    return (void *)(intptr_t)bx_dist_optim_step(step->optim, step->context);
}

/* The step waits for the only thread of worker1's pool, and then finds no context. */
HARNESS_TEST(dist, step_of_a_context_that_ends_meanwhile_fails, 60, .size = 2, .setup = setup_large,
             .options = { .pool_threads = 1 })
{
    struct bx_rref *param = param_at(job, "worker1");
    struct pass pass = pass_begin();
    struct step step = { NULL, bx_context_acquire(pass.context) };
    struct bx_future *held = NULL;
    pthread_t thread;
    void *code;

    pass_call(job, &pass, "worker1", "product", w, NULL);
    HARNESS_EQ(bx_dist_optim_create(dist, &param, 1, &(struct bx_optim_sgd){ .lr = 0.1 }, NULL, &step.optim), 0);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "hold", NULL, NULL, &held), 0);
    harness_await(HARNESS_HELD, 1);
    HARNESS_EQ(pthread_create(&thread, NULL, steps, &step), 0);
    while (harness_call_i64(job, "worker1", "is_queued", 0) == 0)
        ;
    pass_end(&pass);
    await_no_context(job, "worker1");
    harness_post(HARNESS_GO);
    HARNESS_EQ(pthread_join(thread, &code), 0);
    HARNESS_EQ((int)(intptr_t)code, BX_E_CANCELLED);
    harness_end(held, 0);
    bx_dist_optim_destroy(step.optim);
    bx_context_release(step.context);
    bx_rref_release(param);
}

static void be_killed(struct bx_job *job)
{
    harness_store(0, (uint64_t)getpid());
    bx_job_serve(job);
}

HARNESS_TEST(dist, optimizer_refuses_bad_input_and_a_dead_owner, 60, .size = 3, .setup = setup, .dies = 1u << 1,
             .body = { [1] = be_killed })
{
    struct bx_rref *params[2] = { param_at(job, "worker1"), param_at(job, "worker1") };
    const struct bx_optim_sgd sgd = { .lr = 0.1 }, wrong = { .lr = -1 };
    struct bx_context *context = dist_context();
    struct bx_dist_optim *optim = NULL;

    HARNESS_EQ(bx_dist_optim_create(dist, params, 0, &sgd, NULL, &optim), -EINVAL);
    HARNESS_EQ(bx_dist_optim_create(dist, params, 1, NULL, NULL, &optim), -EINVAL);
    HARNESS_HAS(bx_error_text(), "sgd or adam");
    HARNESS_EQ(bx_dist_optim_create(dist, params, 1, &wrong, NULL, &optim), -EINVAL);
    HARNESS_EQ(bx_dist_optim_create(dist, params, 1, &sgd, NULL, &optim), 0);
    HARNESS_EQ(bx_dist_optim_step(optim, context), 0);
    bx_context_acquire(context);
    bx_context_end(context);
    HARNESS_EQ(bx_dist_optim_step(optim, context), BX_E_CANCELLED);
    bx_context_release(context);
    context = dist_context();
    harness_kill((pid_t)harness_load(0), SIGKILL);
    while (bx_worker_is_alive(job, 1))
        usleep(1000);
    HARNESS_EQ(bx_dist_optim_step(optim, context), BX_E_PEER_DEAD);
    bx_context_end(context);
    bx_dist_optim_destroy(optim);
    bx_rref_release(params[0]);
    bx_rref_release(params[1]);
}
