/* SPDX-License-Identifier: MIT */
/*
 * A network of boxcar_nn.h and the same network in double precision, for tests.
 *
 * A twin_* call that builds a layer calls bx_net_* and notes the operation. The checks run both networks over the same
 * noise and compare the output, the gradients of the input and of each parameter, and the running statistics.
 *
 *     struct twin t;
 *
 *     twin_begin(&t, 2, 5, 9, 7);
 *     int conv = twin_conv(&t, 0, &(struct bx_conv){ .out_channels = 8, .kernel = 3, .stride = 1 });
 *     twin_norm(&t, conv, true);
 *     twin_check(&t);
 *
 * Nets compute on the CPU, or after twin_use on a GPU. A GPU's arrays are in its memory: twin_alloc makes everything
 * that a net is given, and the twin keeps copies on the CPU. Failures are Criterion assertions.
 */
#ifndef TESTS_TWIN_H
#define TESTS_TWIN_H

#include "test.h"
#include "boxcar_nn.h"

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
    double *mean, *var;         /* c values of the batch, then c running ones */
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

/* Sets where nets of this test compute from now on. NULL: the CPU. */
void twin_use(struct bx_cuda *cuda);
struct bx_cuda *twin_cuda(void);
void *twin_alloc(size_t bytes);
void twin_free(void *memory);
void twin_put(void *memory, const void *from, size_t bytes);
/* Waits for all computations first. */
void twin_get(void *to, const void *memory, size_t bytes);

/* bx_net_create. Ends the test as skipped if this machine's oneDNN cannot be used. */
void twin_create(struct bx_net **net, const struct bx_net_options *options);

/* ---- Building: node 0 is the input, each call returns the number of its node ---------------------- */

void twin_begin(struct twin *t, int n, int c, int h, int w);
void twin_begin_bare(struct twin *t, int n, int c, int h, int w);       /* without a gradient of the input */
int twin_conv(struct twin *t, int in, const struct bx_conv *like);      /* like->name is ignored */
int twin_norm(struct twin *t, int in, bool relu);                       /* named "op1" if it is node 1 */
int twin_relu(struct twin *t, int in);
int twin_add(struct twin *t, int a, int b, bool relu);
int twin_max_pool(struct twin *t, int in, int kernel, int stride, int padding);
int twin_average(struct twin *t, int in);
int twin_linear(struct twin *t, int in, int features, bool bias);
int twin_softmax(struct twin *t, int in);

/* ---- Checking ------------------------------------------------------------------------------------- */

/* Finishes the net, checks everything with two versions of the parameters, and destroys the twin. */
void twin_check(struct twin *t);

/* The same in steps. twin_finish fills the input, the parameters and the gradient of the output with noise. */
void twin_finish(struct twin *t);
void twin_check_forward(struct twin *t);
void twin_check_backward(struct twin *t);
void twin_check_predict(struct twin *t);
void twin_end(struct twin *t);

#endif
