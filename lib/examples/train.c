/* SPDX-License-Identifier: MIT */
/*
 * train: a parameter server and two trainers. The server has the weights of a linear model. Each trainer pulls the
 * weights, computes a gradient on points of its own (boxcar_autograd.h) and pushes it; the server steps. The points lie
 * on y = 3 x - 1, so the weights become 3 and -1.
 */
#include <boxcar_autograd.h>

#include <stdio.h>

#define STEPS 300
#define POINTS 32

struct server {
    struct bx_var *weights;
    struct bx_grads *grads;
    struct bx_optim *sgd;
};

/* Inline handlers run one after the other, so the server needs no lock. */
static int pull(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct server *server = context;

    (void)request, (void)args;
    return bx_msg_put_tensor(reply, bx_var_value(server->weights));
}

static int push(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct server *server = context;
    int rc = bx_grads_add(server->grads, server->weights, bx_read_tensor(args));

    (void)reply;
    /* The step makes new weights in the arena. Trainers that have the old ones on loan keep reading the old ones. */
    if (rc == 0)
        rc = bx_optim_step(server->sgd, bx_request_job(request), server->grads);
    bx_grads_clear(server->grads);
    return rc;
}

static int server_init(struct server *server)
{
    struct bx_tensor *zeros = NULL;
    int rc = bx_tensor_create(NULL, BX_F32, 2, (int64_t[]){ 1, 2 }, &zeros);

    if (rc == 0) {
        float *data = bx_tensor_data_mut(zeros);

        data[0] = data[1] = 0;
        rc = bx_var_create(zeros, true, &server->weights);
    }
    if (rc == 0)
        rc = bx_grads_create(NULL, &server->grads);
    if (rc == 0)
        rc = bx_optim_sgd_create(&(struct bx_optim_sgd){ .lr = 0.1 }, &server->weights, 1, &server->sgd);
    bx_tensor_release(zeros);
    return rc;
}

/* One step of a trainer: pull, forward, backward, push. x is POINTS x 2 (the second column is 1), y is POINTS x 1. */
static int step(struct bx_job *job, struct bx_tape *tape, struct bx_tensor *x, struct bx_tensor *y)
{
    struct bx_msg *weights = NULL, *gradient = bx_msg_create(0);
    struct bx_grads *grads = NULL;
    struct bx_var *w = NULL;
    int rc = bx_rpc_sync(job, "server", "pull", NULL, NULL, &weights);

    if (rc == 0) {
        struct bx_reader reader = bx_msg_reader(weights);

        rc = bx_var_create(bx_read_tensor(&reader), true, &w);
    }
    if (rc == 0)
        rc = bx_grads_create(job, &grads);
    if (rc == 0) {
        struct bx_var *guess = bx_var_linear(tape, bx_tape_input(tape, x), w, NULL);
        struct bx_var *loss = bx_var_mse(tape, guess, bx_tape_input(tape, y));

        rc = bx_backward(&loss, NULL, 1, false, grads);     /* also reports what failed above */
    }
    if (rc == 0)
        rc = bx_msg_put_tensor(gradient, bx_grads_get(grads, w));
    if (rc == 0)
        rc = bx_rpc_sync(job, "server", "push", gradient, NULL, NULL);
    bx_tape_clear(tape);
    bx_grads_destroy(grads);
    bx_var_release(w);
    bx_msg_destroy(gradient);
    bx_msg_destroy(weights);
    return rc;
}

static int train(struct bx_job *job)
{
    struct bx_tensor *x = NULL, *y = NULL;
    struct bx_tape *tape = NULL;
    int rc = bx_tensor_create(NULL, BX_F32, 2, (int64_t[]){ POINTS, 2 }, &x);

    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 2, (int64_t[]){ POINTS, 1 }, &y);
    if (rc == 0)
        rc = bx_tape_create(NULL, &tape);
    if (rc == 0) {
        float *in = bx_tensor_data_mut(x), *out = bx_tensor_data_mut(y);
        float side = bx_job_rank(job) == 1 ? -1 : 1;

        /* Trainer 1 has points with x < 0, trainer 2 those with x > 0. */
        for (int i = 0; i < POINTS; i++) {
            in[2 * i] = side * (float)(i + 1) / POINTS;
            in[2 * i + 1] = 1;
            out[i] = 3 * in[2 * i] - 1;
        }
    }
    for (int i = 0; i < STEPS && rc == 0; i++)
        rc = step(job, tape, x, y);
    bx_tape_destroy(tape);
    bx_tensor_release(x);
    bx_tensor_release(y);
    return rc;
}

static int work(const struct bx_options *options, void *context)
{
    struct server server = { NULL, NULL, NULL };
    struct bx_job *job = NULL;
    int rc = bx_job_create(options, &job);

    (void)context;
    if (rc == 0 && options->rank == 0 && (rc = server_init(&server)) == 0 &&
        (rc = bx_register(job, "pull", BX_INLINE, pull, &server)) == 0)
        rc = bx_register(job, "push", BX_INLINE, push, &server);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc == 0 && options->rank != 0)
        rc = train(job);
    if (rc == 0)
        rc = bx_job_shutdown(job, 0);
    if (rc == 0 && options->rank == 0) {
        const float *w = bx_tensor_data(bx_var_value(server.weights));

        printf("y = %.2f x %+.2f\n", (double)w[0], (double)w[1]);
    }
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", options->name, bx_error_text());
    bx_optim_destroy(server.sgd);
    bx_grads_destroy(server.grads);
    bx_var_release(server.weights);
    bx_job_destroy(job);
    return rc < 0;
}

int main(void)
{
    static const char *const names[] = { "server", "trainer1", "trainer2" };

    return bx_spawn(&(struct bx_spawn_options){ .world_size = 3, .names = names }, work, NULL, NULL) < 0;
}
