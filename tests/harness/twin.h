/* SPDX-License-Identifier: MIT */
/*
 * Networks of boxcar_nn.h and the same networks in double precision, for tests.
 *
 * A twin is built by one call for both: each of these calls bx_net_* and notes the operation, and the checks
 * run both over the same noise and compare the output, the gradient of the input and of each parameter,
 * and the running statistics.
 *
 *     struct twin t;
 *
 *     twin_begin(&t, 2, 5, 9, 7);
 *     int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 8, .kernel = 3, .stride = 1 });
 *     twin_norm(&t, conv, true);
 *     twin_check(&t);
 *
 * Nets are made on the CPU, or after twin_use on a GPU, whose arrays lie in its memory: everything that a net is
 * given is made by twin_alloc, and here copies are kept.
 *
 * What fails, fails as a Criterion assertion.
 */
#ifndef TESTS_TWIN_H
#define TESTS_TWIN_H

#include "boxcar_nn.h"

#include <stdbool.h>
#include <stddef.h>

#define TWIN_NODES 16
#define TWIN_PARAMS 32

enum twin_op {
    TWIN_INPUT, TWIN_CONV, TWIN_NORM, TWIN_RELU, TWIN_ADD, TWIN_MAX_POOL, TWIN_AVERAGE, TWIN_LINEAR, TWIN_SOFTMAX,
};

struct twin_node {
    enum twin_op op;
    int id;                     /* its number in the net */
    int in[2];
    int n, c, h, w;
    int kernel, stride, padding;
    bool bias, relu;
    size_t param;               /* the first of its parameters */
    double *v, *g;              /* output and its gradient */
    double *mean, *var;         /* of the batch; then the running ones, mean + c and var + c */
    char name[16];
};

struct twin {
    struct bx_net *net;
    bool input_grad;
    struct twin_node node[TWIN_NODES];
    int count;
    size_t params;
    float *value[TWIN_PARAMS];
    double *want[TWIN_PARAMS];  /* gradients */
    float *input, *output_grad;
    struct {                    /* where the net computes */
        float *value[TWIN_PARAMS], *grad[TWIN_PARAMS];
        float *input, *output, *output_grad;
    } there;
};

/* ---- Where nets compute --------------------------------------------------------------------------- */

/* From now on, in this test. NULL: the CPU. */
void twin_use(struct bx_cuda *cuda);
struct bx_cuda *twin_cuda(void);
void *twin_alloc(size_t bytes);
void twin_free(void *memory);
void twin_put(void *memory, const void *from, size_t bytes);
/* After all that was computed. */
void twin_get(void *to, const void *memory, size_t bytes);

/* bx_net_create, or the end of the test as skipped where the oneDNN that is here cannot be used. */
void twin_create(struct bx_net **net, const struct bx_net_options *options);

/* ---- Building: node 0 is the input, each call gives the number of its node ----------------------- */

void twin_begin(struct twin *t, int n, int c, int h, int w);
void twin_begin_bare(struct twin *t, int n, int c, int h, int w);       /* the input's gradient is not wanted */
int twin_conv(struct twin *t, int in, const struct bx_conv *like);      /* its name is made up */
int twin_norm(struct twin *t, int in, bool relu);                       /* named "op1" if it is node 1 */
int twin_relu(struct twin *t, int in);
int twin_add(struct twin *t, int a, int b, bool relu);
int twin_max_pool(struct twin *t, int in, int kernel, int stride, int padding);
int twin_average(struct twin *t, int in);
int twin_linear(struct twin *t, int in, int features, bool bias);
int twin_softmax(struct twin *t, int in);

/* ---- Checking ------------------------------------------------------------------------------------- */

/* Finishes, checks everything twice with two versions of the parameters, and ends. */
void twin_check(struct twin *t);

/* The same in steps. finish makes input, parameters and gradient of the output, all of them noise. */
void twin_finish(struct twin *t);
void twin_check_forward(struct twin *t);
void twin_check_backward(struct twin *t);
void twin_check_predict(struct twin *t);
void twin_end(struct twin *t);

#endif
