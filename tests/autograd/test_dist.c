/* SPDX-License-Identifier: MIT */
/*
 * Backward passes and optimizers across workers (lib/autograd/dist.h). Each worker has one parameter, w, of WIDTH
 * elements, and functions that compute with it; results and gradients are compared with those of one process.
 */
#include "tests/harness/harness.h"

#include "boxcar_dist.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 5, THREADS = 4 };
enum { IN_BACKWARD, GRADIENT_CAME, ENDED };     /* gates */

TestSuite(dist, .timeout = 60);

static struct bx_dist *dist;
static struct bx_var *w;

static struct bx_tensor *tensor_of(struct bx_job *job, double first)
{
    const int64_t shape[] = { WIDTH };
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, BX_F64, 1, shape, &tensor), 0);
    for (int i = 0; i < WIDTH; i++)
        ((double *)bx_tensor_data_mut(tensor))[i] = first + 0.1 * i;
    return tensor;
}

static struct bx_var *param_of(struct bx_job *job, double first)
{
    struct bx_tensor *tensor = tensor_of(job, first);
    struct bx_var *var = NULL;

    HARNESS_EQ(bx_var_create(tensor, true, &var), 0);
    bx_tensor_release(tensor);
    return var;
}

static double at(const struct bx_tensor *tensor, int i)
{
    return tensor == NULL ? NAN : ((const double *)bx_tensor_data(tensor))[i];
}

/* The first value of each worker's w. */
static double first_of(int rank)
{
    return 1 + rank;
}

/* ---- Functions that take part --------------------------------------------------------------------------- */

struct call {
    struct bx_context *context;
    struct bx_tape *tape;
};

static int open_call(struct bx_reader *args, struct call *call)
{
    int rc;

    *call = (struct call){ NULL, NULL };
    rc = bx_read_context(dist, args, &call->context);
    return rc == 0 ? bx_tape_create(NULL, &call->tape) : rc;
}

static int close_call(struct call *call, int rc)
{
    if (call->tape != NULL && rc == 0)
        rc = bx_tape_error(call->tape);
    bx_tape_destroy(call->tape);
    bx_context_release(call->context);
    return rc;
}

/* x * w, and x + w beside it. */
static int product(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct call call;
    struct bx_var *x;
    int rc = open_call(args, &call);

    (void)request, (void)context;
    if (rc == 0) {
        x = bx_read_var(call.context, call.tape, args);
        rc = bx_msg_put_var(reply, call.context, bx_var_mul(call.tape, x, w));
        if (rc == 0)
            rc = bx_msg_put_var(reply, call.context, bx_var_add(call.tape, x, w));
    }
    return close_call(&call, rc);
}

static struct bx_var *remote_product(struct bx_job *job, struct bx_context *context, struct bx_tape *tape,
                                     const char *to, const char *function, struct bx_var *x, struct bx_var **sum)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;
    struct bx_var *y = NULL;

    HARNESS_EQ(bx_msg_put_context(args, context), 0);
    HARNESS_EQ(bx_msg_put_var(args, context, x), 0);
    HARNESS_EQ(bx_rpc_sync(job, to, function, args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    y = bx_read_var(context, tape, &reader);
    HARNESS_CHECK(y != NULL);
    if (sum != NULL)
        *sum = bx_read_var(context, tape, &reader);
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
    return y;
}

/* The same, with worker2's product in between. */
static int nested(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct call call;
    struct bx_var *x, *y;
    int rc = open_call(args, &call);

    (void)context;
    if (rc == 0) {
        x = bx_read_var(call.context, call.tape, args);
        y = remote_product(bx_request_job(request), call.context, call.tape, "worker2", "product", x, NULL);
        rc = bx_msg_put_var(reply, call.context, bx_var_mul(call.tape, y, w));
    }
    return close_call(&call, rc);
}

static int fails(void *context, const struct bx_node_grads *grads)
{
    (void)context, (void)grads;
    return bx_fail(-EDOM, "no derivative today");
}

static int dies(void *context, const struct bx_node_grads *grads)
{
    (void)context, (void)grads;
    kill(getpid(), SIGKILL);
    return 0;
}

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

/* x, by a node with its own backward function. */
static int passes_through(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    bx_backward_fn backward = *(const bx_backward_fn *)context;
    struct bx_var *x, *y = NULL;
    struct bx_tensor *value;
    struct call call;
    int rc = open_call(args, &call);

    (void)request;
    if (rc == 0 && (x = bx_read_var(call.context, call.tape, args)) != NULL) {
        value = bx_var_value(x);
        rc = bx_var_custom(call.tape, &(struct bx_custom){ .name = "custom", .inputs = &x, .input_count = 1,
                                                           .values = &value, .output_count = 1,
                                                           .backward = backward }, &y);
        if (rc == 0)
            rc = bx_msg_put_var(reply, call.context, y);
    }
    return close_call(&call, rc);
}

/* Keeps a reference for ever, so that nothing but a cancel ends it. */
static int stay(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    (void)args, (void)context;
    *reply = bx_future_acquire(bx_future_create(bx_request_job(request)));
    return 0;
}

static int get_param(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_rref *rref = NULL;
    int rc = bx_param_rref(bx_request_job(request), w, &rref);

    (void)args, (void)context;
    if (rc == 0)
        rc = bx_msg_put_rref(reply, rref);
    bx_rref_release(rref);
    return rc;
}

/* The gradient of w in this context. */
static int get_grad(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *unused)
{
    struct bx_context *context = NULL;
    struct bx_tensor *grad;
    int rc = bx_read_context(dist, args, &context);

    (void)request, (void)unused;
    if (rc < 0)
        return rc;
    grad = bx_grads_get(bx_context_grads(context), w);
    if (grad != NULL)
        rc = bx_msg_put_tensor(reply, grad);
    bx_context_release(context);
    return rc;
}

static int count_contexts(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)context;
    return bx_msg_put_i64(reply, (int64_t)bx_dist_contexts(dist));
}

static int setup(struct bx_job *job)
{
    static const bx_backward_fn failing = fails, dying = dies, staying = stays, holding = holds_back;
    int rc = bx_dist_create(job, &dist);

    HARNESS_EQ(bx_register(job, "product", BX_BLOCKING, product, NULL), 0);
    HARNESS_EQ(bx_register(job, "nested", BX_BLOCKING, nested, NULL), 0);
    HARNESS_EQ(bx_register(job, "fails", BX_BLOCKING, passes_through, (void *)(uintptr_t)&failing), 0);
    HARNESS_EQ(bx_register(job, "dies", BX_BLOCKING, passes_through, (void *)(uintptr_t)&dying), 0);
    HARNESS_EQ(bx_register(job, "stays", BX_BLOCKING, passes_through, (void *)(uintptr_t)&staying), 0);
    HARNESS_EQ(bx_register(job, "holds_back", BX_BLOCKING, passes_through, (void *)(uintptr_t)&holding), 0);
    HARNESS_EQ(bx_register_async(job, "stay", stay, NULL), 0);
    HARNESS_EQ(bx_register(job, "get_param", BX_INLINE, get_param, NULL), 0);
    HARNESS_EQ(bx_register(job, "get_grad", BX_INLINE, get_grad, NULL), 0);
    HARNESS_EQ(bx_register(job, "count_contexts", BX_INLINE, count_contexts, NULL), 0);
    w = param_of(NULL, first_of(bx_job_rank(job)));
    return rc;
}

/* ---- Helpers of the maker ---------------------------------------------------------------------------------- */

static struct bx_context *new_context(void)
{
    struct bx_context *context = NULL;

    HARNESS_EQ(bx_context_create(dist, &context), 0);
    return context;
}

static struct bx_tape *new_tape(void)
{
    struct bx_tape *tape = NULL;

    HARNESS_EQ(bx_tape_create(NULL, &tape), 0);
    return tape;
}

/* Element i of the gradient of worker rank's w; NAN: it has none. */
static double grad_of(struct bx_job *job, struct bx_context *context, const char *worker, int i)
{
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    struct bx_reader reader;
    double value = NAN;

    HARNESS_EQ(bx_msg_put_context(args, context), 0);
    HARNESS_EQ(bx_rpc_sync(job, worker, "get_grad", args, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    if (bx_msg_tensors(reply) > 0)
        value = at(bx_read_tensor(&reader), i);
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
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

static void across_two(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *y, *loss;

    /* loss = sum((w0 * w1) * w0): dw0 = 2 w0 w1, dw1 = w0^2. The sum that worker1 sends too is not used. */
    y = remote_product(job, context, tape, "worker1", "product", w, NULL);
    loss = bx_var_sum(tape, bx_var_mul(tape, y, w));
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    for (int i = 0; i < WIDTH; i++) {
        double a = first_of(0) + 0.1 * i, b = first_of(1) + 0.1 * i;

        NEAR(at(bx_grads_get(bx_context_grads(context), w), i), 2 * a * b);
        NEAR(grad_of(job, context, "worker1", i), a * a);
    }
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker1");
    HARNESS_EQ(bx_dist_contexts(dist), 0);
}

Test(dist, gives_the_gradients_of_one_process)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { across_two } });
}

static void unused_output(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *sum = NULL, *loss;

    remote_product(job, context, tape, "worker2", "product", w, NULL);      /* nothing of it is used */
    remote_product(job, context, tape, "worker1", "product", w, &sum);      /* only the sum is */
    loss = bx_var_sum(tape, sum);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    NEAR(at(bx_grads_get(bx_context_grads(context), w), 2), 1);
    NEAR(grad_of(job, context, "worker1", 2), 1);
    HARNESS_CHECK(isnan(grad_of(job, context, "worker2", 2)));
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker2");
}

/* torch's FAST mode would wait for ever (pytorch#23110), or send zeros (pytorch#26446). */
Test(dist, leaves_out_what_the_loss_does_not_use)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { unused_output } });
}

static void nested_calls(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *y, *z, *loss;

    /* y = w0 * w2 * w1, z = y * w1: sum(z + y) has dw0 = w1 w2 (1 + w1), and so on. */
    y = remote_product(job, context, tape, "worker1", "nested", w, NULL);
    z = remote_product(job, context, tape, "worker1", "product", y, NULL);
    loss = bx_var_sum(tape, bx_var_add(tape, y, z));
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    for (int i = 0; i < WIDTH; i++) {
        double a = first_of(0) + 0.1 * i, b = first_of(1) + 0.1 * i, c = first_of(2) + 0.1 * i;

        NEAR(at(bx_grads_get(bx_context_grads(context), w), i), b * c * (1 + b));
        NEAR(grad_of(job, context, "worker1", i), a * c * (1 + 2 * b));
        NEAR(grad_of(job, context, "worker2", i), a * b * (1 + b));
    }
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker1");
    await_no_context(job, "worker2");
}

Test(dist, carries_the_context_into_nested_calls)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { nested_calls } });
}

static void cross_often(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *y = w, *loss;
    enum { TIMES = 1500 };                      /* more than the pool has threads, and a pair of workers leases */

    for (int i = 0; i < TIMES; i++)
        y = bx_var_scale(tape, remote_product(job, context, tape, i % 2 == 0 ? "worker1" : "worker0", "product", y,
                                              NULL), i % 2 == 0 ? 0.5 : 1);
    loss = bx_var_sum(tape, y);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    /* Element 0: y = w0 * (w1 / 2 * w0)^300, w0 = 1, w1 = 2. */
    NEAR(at(bx_grads_get(bx_context_grads(context), w), 0), 1 + TIMES / 2);
    NEAR(grad_of(job, context, "worker1", 0), TIMES / 2 * 0.5);
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker1");
}

Test(dist, crosses_between_workers_more_often_than_there_are_threads_or_leases)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { cross_often } });
}

static void *one_of_many(void *argument)
{
    struct bx_job *job = argument;

    for (int i = 0; i < 20; i++) {
        struct bx_context *context = new_context();
        struct bx_tape *tape = new_tape();
        struct bx_var *loss = bx_var_sum(tape, remote_product(job, context, tape, "worker1", "product", w, NULL));

        HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
        NEAR(at(bx_grads_get(bx_context_grads(context), w), 1), first_of(1) + 0.1);
        NEAR(grad_of(job, context, "worker1", 1), first_of(bx_job_rank(job)) + 0.1);
        bx_tape_destroy(tape);
        bx_context_end(context);
    }
    return NULL;
}

static void many_contexts(struct bx_job *job)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        HARNESS_EQ(pthread_create(&threads[i], NULL, one_of_many, job), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    await_no_context(job, "worker1");
}

Test(dist, runs_several_contexts_of_several_threads_and_workers_at_once)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { many_contexts, NULL, many_contexts } });
}

static void retain_and_again(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *y = remote_product(job, context, tape, "worker1", "product", w, NULL), *loss = bx_var_sum(tape, y);

    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, true, 0), 0);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    NEAR(at(bx_grads_get(bx_context_grads(context), w), 0), 2 * first_of(1));
    NEAR(grad_of(job, context, "worker1", 0), 2 * first_of(0));
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), BX_E_STATE);
    HARNESS_HAS(bx_error_text(), "retain");
    HARNESS_EQ(bx_context_error(context), 0);       /* it was found out here: the context lives on */
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker1");
}

Test(dist, passes_twice_only_if_the_first_retains)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { retain_and_again } });
}

static struct bx_var *told_w(struct bx_tape *tape)
{
    struct bx_tensor *value = bx_var_value(w);
    struct bx_var *x = NULL;

    HARNESS_EQ(bx_var_custom(tape, &(struct bx_custom){ .name = "told", .inputs = &w, .input_count = 1,
                                                        .values = &value, .output_count = 1, .backward = tells }, &x),
               0);
    return x;
}

static void compute_side_by_side(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *a = remote_product(job, context, tape, "worker1", "holds_back", told_w(tape), NULL);
    struct bx_var *b = remote_product(job, context, tape, "worker1", "holds_back", told_w(tape), NULL);
    struct bx_var *loss = bx_var_sum(tape, bx_var_add(tape, a, b));

    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
    NEAR(at(bx_grads_get(bx_context_grads(context), w), 0), 2);
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker1");
}

Test(dist, sends_what_is_ready_before_a_slow_node_ends)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { compute_side_by_side } });
}

/* ---- Failures ------------------------------------------------------------------------------------------------ */

static void fail_in_backward(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *loss = bx_var_sum(tape, remote_product(job, context, tape, "worker1", "fails", w, NULL));

    remote_product(job, context, tape, "worker2", "product", w, NULL);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), -EDOM);
    HARNESS_HAS(bx_error_text(), "no derivative today");
    HARNESS_EQ(bx_context_error(context), -EDOM);
    await_no_context(job, "worker1");               /* freed everywhere, before it is ended */
    await_no_context(job, "worker2");
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), -EDOM);
    bx_tape_destroy(tape);
    bx_context_end(context);
}

Test(dist, ends_everywhere_with_the_error_of_a_node)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { fail_in_backward } });
}

static void die_in_backward(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *loss = bx_var_sum(tape, remote_product(job, context, tape, "worker1", "dies", w, NULL));

    remote_product(job, context, tape, "worker2", "product", w, NULL);
    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "worker1");
    await_no_context(job, "worker2");
    bx_tape_destroy(tape);
    bx_context_end(context);
    HARNESS_EQ(bx_dist_contexts(dist), 0);
}

Test(dist, ends_everywhere_when_a_worker_dies)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { die_in_backward }, .dies = 1u << 1 });
}

static void make_and_die(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();

    remote_product(job, context, tape, "worker1", "nested", w, NULL);
    kill(getpid(), SIGKILL);
}

static void outlive_the_maker(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    while (bx_dist_contexts(dist) > 0)
        usleep(1000);
    await_no_context(job, bx_job_rank(job) == 1 ? "worker2" : "worker1");
}

/* pytorch#26379 */
Test(dist, frees_the_contexts_of_a_maker_that_dies)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .dies = 1u << 0,
                                         .body = { make_and_die, outlive_the_maker, outlive_the_maker } });
}

static void outlive_the_context(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_future *call = NULL, *late = NULL;

    HARNESS_EQ(bx_rpc_async(job, "worker1", "stay", NULL, NULL, &call), 0);
    HARNESS_EQ(bx_context_call(context, call), 0);
    bx_context_acquire(context);
    bx_context_end(context);
    HARNESS_EQ(bx_future_wait(call, BX_FOREVER), BX_E_CANCELLED);
    HARNESS_EQ(bx_context_error(context), BX_E_CANCELLED);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "stay", NULL, NULL, &late), 0);
    HARNESS_EQ(bx_context_call(context, late), BX_E_CANCELLED);
    HARNESS_EQ(bx_future_wait(late, BX_FOREVER), BX_E_CANCELLED);
    bx_future_release(call);
    bx_future_release(late);
    bx_context_release(context);
}

/* pytorch#38513 */
Test(dist, cancels_a_call_that_outlives_its_context)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { outlive_the_context } });
}

struct ender {
    struct bx_context *context;
    pthread_t thread;
};

static void *end_in_backward(void *argument)
{
    struct ender *ender = argument;

    harness_await(IN_BACKWARD, 1);
    bx_context_end(bx_context_acquire(ender->context));
    return NULL;
}

static void end_while_it_runs(struct bx_job *job)
{
    struct ender ender = { .context = new_context() };
    struct bx_tape *tape = new_tape();
    struct bx_var *loss = bx_var_sum(tape, remote_product(job, ender.context, tape, "worker1", "stays", w, NULL));

    HARNESS_EQ(pthread_create(&ender.thread, NULL, end_in_backward, &ender), 0);
    HARNESS_EQ(bx_context_backward(ender.context, &loss, NULL, 1, false, 0), BX_E_CANCELLED);
    harness_post(ENDED);
    pthread_join(ender.thread, NULL);
    bx_tape_destroy(tape);
    bx_context_release(ender.context);
    await_no_context(job, "worker1");
}

Test(dist, ends_a_pass_whose_context_is_ended)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { end_while_it_runs } });
}

static void time_out(struct bx_job *job)
{
    struct bx_context *context = new_context();
    struct bx_tape *tape = new_tape();
    struct bx_var *loss = bx_var_sum(tape, remote_product(job, context, tape, "worker1", "stays", w, NULL));

    HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 30 * HARNESS_MS), BX_E_TIMEOUT);
    harness_post(ENDED);
    await_no_context(job, "worker1");
    bx_tape_destroy(tape);
    bx_context_end(context);
}

Test(dist, ends_everywhere_at_its_deadline)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { time_out } });
}

static void misuse(struct bx_job *job)
{
    struct bx_context *context = new_context(), *other = new_context(), *read = NULL;
    struct bx_tape *tape = new_tape();
    struct bx_var *y = remote_product(job, context, tape, "worker1", "product", w, NULL), *loss = bx_var_sum(tape, y);
    struct bx_msg *msg = bx_msg_create(0);
    struct bx_grads *grads = NULL;
    struct bx_reader reader;

    HARNESS_EQ(bx_context_backward(context, NULL, NULL, 0, false, 0), -EINVAL);
    HARNESS_HAS(bx_error_text(), "needs a root");
    HARNESS_EQ(bx_context_backward(context, &y, NULL, 1, false, 0), -EINVAL);
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
    HARNESS_EQ(bx_msg_put_var(msg, context, NULL), -EINVAL);
    bx_context_end(other);
    bx_msg_destroy(msg);
    bx_grads_destroy(grads);
    bx_tape_destroy(tape);
    bx_context_end(context);
    await_no_context(job, "worker1");
}

Test(dist, refuses_bad_input_with_a_sentence)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { misuse } });
}

/* ---- Optimizers ------------------------------------------------------------------------------------------------ */

static struct bx_rref *param_at(struct bx_job *job, const char *worker)
{
    struct bx_msg *reply = NULL;
    struct bx_reader reader;
    struct bx_rref *rref;

    HARNESS_EQ(bx_rpc_sync(job, worker, "get_param", NULL, NULL, &reply), 0);
    reader = bx_msg_reader(reply);
    rref = bx_rref_acquire(bx_read_rref(&reader));
    bx_msg_destroy(reply);
    return rref;
}

static double value_at(struct bx_rref *rref, int i)
{
    struct bx_msg *value = NULL;
    struct bx_reader reader;
    double is;

    HARNESS_EQ(bx_rref_to_here(rref, NULL, &value), 0);
    reader = bx_msg_reader(value);
    is = at(bx_read_tensor(&reader), i);
    bx_msg_destroy(value);
    return is;
}

static void step_all(struct bx_job *job)
{
    struct bx_rref *params[3] = { param_at(job, "worker0"), param_at(job, "worker1"), param_at(job, "worker2") };
    struct bx_dist_optim *optim = NULL;
    double a = first_of(0), b = first_of(1), v_a = 0, v_b = 0;

    HARNESS_EQ(bx_dist_optim_create(dist, params, 3, &(struct bx_optim_sgd){ .lr = 0.1, .momentum = 0.9 }, NULL,
                                    &optim), 0);
    for (int i = 0; i < 5; i++) {
        struct bx_context *context = new_context();
        struct bx_tape *tape = new_tape();
        struct bx_var *loss = bx_var_sum(tape, remote_product(job, context, tape, "worker1", "product", w, NULL));

        HARNESS_EQ(bx_context_backward(context, &loss, NULL, 1, false, 0), 0);
        HARNESS_EQ(bx_dist_optim_step(optim, context), 0);
        bx_tape_destroy(tape);
        bx_context_end(context);
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

Test(dist, optimizer_steps_at_every_owner)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { step_all } });
}

static void misuse_optim(struct bx_job *job)
{
    struct bx_rref *params[2] = { param_at(job, "worker1"), param_at(job, "worker1") };
    const struct bx_optim_sgd sgd = { .lr = 0.1 }, wrong = { .lr = -1 };
    struct bx_context *context = new_context();
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
    context = new_context();
    harness_kill((pid_t)harness_load(0), SIGKILL);
    while (bx_worker_alive(job, 1))
        usleep(1000);
    HARNESS_EQ(bx_dist_optim_step(optim, context), BX_E_PEER_DEAD);
    bx_context_end(context);
    bx_dist_optim_destroy(optim);
    bx_rref_release(params[0]);
    bx_rref_release(params[1]);
}

static void be_killed(struct bx_job *job)
{
    harness_store(0, (uint64_t)getpid());
    bx_job_serve(job);
}

Test(dist, optimizer_refuses_bad_input_and_a_dead_owner)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .body = { misuse_optim, be_killed },
                                         .dies = 1u << 1 });
}
