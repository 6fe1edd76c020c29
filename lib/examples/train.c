/* SPDX-License-Identifier: MIT */
/*
 * train: a parameter server that updates in batches, and three trainers. Each trainer computes the gradient of a linear
 * model on points of its own (boxcar_autograd.h) and sends it. The server steps when it has the gradients of all
 * trainers, and answers all of them with the new model. The points lie on y = 3 x - 1, so weight and bias become 3
 * and -1.
 */
#include <boxcar_autograd.h>

#include <stdio.h>

enum { TRAINERS = 3, STEPS = 300, POINTS = 32 };

struct server {
    struct bx_var *model[2];        /* weight, 1 x 1; bias, 1 */
    struct bx_grads *grads;         /* the sum of those that have come for this step */
    struct bx_optim *sgd;
    struct bx_future *stepped;      /* the answer to the trainers that wait for this step */
    int waiting;
};

/* Inline and async handlers run one after the other, so the server needs no lock. */
static int fetch(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct server *server = context;

    (void)request, (void)args;
    return bx_msg_put(reply, "TT", bx_var_value(server->model[0]), bx_var_value(server->model[1]));
}

/* The step makes new tensors in the arena. A trainer that has the old ones on loan keeps reading the old ones. */
static void step(struct server *server, struct bx_job *job)
{
    struct bx_msg *reply = bx_msg_create(0);
    int rc = bx_optim_step(server->sgd, job, server->grads);

    fetch(NULL, NULL, reply, server);
    if (rc == 0) {
        bx_future_set(server->stepped, reply);
    } else {
        bx_future_fail(server->stepped, rc, bx_error_text());
        bx_msg_destroy(reply);
    }
    bx_future_release(server->stepped);
    bx_grads_clear(server->grads);
    server->stepped = NULL;
    server->waiting = 0;
}

static int push(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    struct server *server = context;
    struct bx_tensor *grads[2];
    int rc = bx_read(args, "TT", &grads[0], &grads[1]);

    for (int i = 0; i < 2 && rc == 0; i++)
        rc = bx_grads_add(server->grads, server->model[i], grads[i]);
    if (rc < 0)
        return rc;
    if (server->stepped == NULL)
        server->stepped = bx_future_create(bx_request_job(request));
    *reply = bx_future_acquire(server->stepped);
    if (++server->waiting == TRAINERS)
        step(server, bx_request_job(request));
    return 0;
}

/* n x 1, or n if ndim is 1. */
static struct bx_tensor *column(int ndim, int64_t n, double first, double distance)
{
    struct bx_tensor *tensor = NULL;

    if (bx_tensor_create(NULL, BX_F32, ndim, (int64_t[]){ n, 1 }, &tensor) == 0)
        for (int64_t i = 0; i < n; i++)
            ((float *)bx_tensor_data_mut(tensor))[i] = (float)(first + distance * (double)i);
    return tensor;
}

static int serve(struct bx_job *job, struct server *server)
{
    struct bx_tensor *weight = column(2, 1, 0, 0), *bias = column(1, 1, 0, 0);
    int rc = bx_var_create(weight, true, &server->model[0]);

    if (rc == 0)
        rc = bx_var_create(bias, true, &server->model[1]);
    if (rc == 0)
        rc = bx_grads_create(NULL, &server->grads);
    if (rc == 0)
        rc = bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 0.1 / TRAINERS }, server->model, 2, &server->sgd);
    if (rc == 0)
        rc = bx_register(job, "fetch", BX_INLINE, fetch, server);
    if (rc == 0)
        rc = bx_register_async(job, "push", BX_INLINE, push, server);
    bx_tensor_release(weight);
    bx_tensor_release(bias);
    return rc;
}

/* One step. model: what the server had, and then what it has; the caller's to release. */
static int train_once(struct bx_job *job, struct bx_tape *tape, struct bx_tensor *const points[2],
                      struct bx_tensor *model[2])
{
    struct bx_var *params[2] = { NULL, NULL }, *loss;
    struct bx_grads *grads = NULL;
    int rc = bx_grads_create(job, &grads);

    bx_var_create(model[0], true, &params[0]);
    bx_var_create(model[1], true, &params[1]);
    loss = bx_var_mse(tape, bx_var_linear(tape, bx_tape_input(tape, points[0]), params[0], params[1]),
                      bx_tape_input(tape, points[1]));
    if (rc == 0)
        rc = bx_backward(&loss, NULL, 1, false, grads);     /* also reports what failed above */
    bx_tensor_release(model[0]);
    bx_tensor_release(model[1]);
    model[0] = model[1] = NULL;
    if (rc == 0)
        rc = bx_call(job, "server", "push", "TT>TT", bx_grads_get(grads, params[0]), bx_grads_get(grads, params[1]),
                     &model[0], &model[1]);
    bx_tape_clear(tape);
    bx_grads_destroy(grads);
    bx_var_release(params[0]);
    bx_var_release(params[1]);
    return rc;
}

/* The trainers have points with x from -1, 0 and 1 on. */
static int train(struct bx_job *job)
{
    double x = bx_job_rank(job) - 2;
    struct bx_tensor *points[2] = { column(2, POINTS, x, 1.0 / POINTS), column(2, POINTS, 3 * x - 1, 3.0 / POINTS) };
    struct bx_tensor *model[2] = { NULL, NULL };
    struct bx_tape *tape = NULL;
    int rc = bx_tape_create(NULL, &tape);

    if (rc == 0)
        rc = bx_call(job, "server", "fetch", ">TT", &model[0], &model[1]);
    for (int i = 0; i < STEPS && rc == 0; i++)
        rc = train_once(job, tape, points, model);
    if (rc == 0 && bx_job_rank(job) == 1)
        printf("y = %.2f x %+.2f\n", (double)*(const float *)bx_tensor_data(model[0]),
               (double)*(const float *)bx_tensor_data(model[1]));
    bx_tape_destroy(tape);
    for (int i = 0; i < 2; i++) {
        bx_tensor_release(points[i]);
        bx_tensor_release(model[i]);
    }
    return rc;
}

static int work(const struct bx_options *options, void *context)
{
    struct server server = { { NULL, NULL }, NULL, NULL, NULL, 0 };
    struct bx_job *job = NULL;
    int rc = bx_job_create(options, &job);

    (void)context;
    if (rc == 0 && options->rank == 0)
        rc = serve(job, &server);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && options->rank != 0)
        rc = train(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", options->name, bx_error_text());
    bx_optim_destroy(server.sgd);
    bx_grads_destroy(server.grads);
    bx_var_release(server.model[0]);
    bx_var_release(server.model[1]);
    bx_job_destroy(job);
    return rc < 0;
}

int main(void)
{
    static const char *const names[] = { "server", "trainer1", "trainer2", "trainer3" };

    return bx_spawn(&(struct bx_spawn_options){ .world_size = 1 + TRAINERS, .names = names }, work, NULL, NULL) < 0;
}
