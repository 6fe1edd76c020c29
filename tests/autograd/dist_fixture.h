/* SPDX-License-Identifier: MIT */
/*
 * What the tests of passes across workers share: each worker has one parameter, w, of f64, and functions that compute
 * with it. For bodies and handlers of workers; failures end the process (harness.h).
 */
#ifndef TESTS_DIST_FIXTURE_H
#define TESTS_DIST_FIXTURE_H

#include "tests/harness/harness.h"

#include "boxcar_dist.h"

extern struct bx_dist *dist;
extern struct bx_var *w;

/* A parameter of the elements first, first + step, ... */
struct bx_var *dist_param(int64_t elements, double first, double step);
/* Makes w and dist; 0. */
int dist_set_up(struct bx_job *job, int64_t elements, double first, double step);

double dist_at(const struct bx_tensor *tensor, int64_t i);      /* NAN for NULL */
/* Element i of this worker's gradient of w. */
double dist_grad_at(struct bx_context *context, int64_t i);

/* ---- The maker of a context -------------------------------------------------------------------------------- */

struct pass {
    struct bx_context *context;
    struct bx_tape *tape;
};
struct bx_context *dist_context(void);
struct pass pass_begin(void);
void pass_end(struct pass *pass);
/* Calls a function with x; the variable that it answers, and the next one in *second (may be NULL). */
struct bx_var *pass_call(struct bx_job *job, const struct pass *pass, const char *to, const char *function,
                         struct bx_var *x, struct bx_var **second);
/* One backward pass from the root; its code. */
int pass_back(const struct pass *pass, struct bx_var *root, bool retain);
/* x, by a node with that backward function. */
struct bx_var *pass_custom(struct bx_tape *tape, struct bx_var *x, bx_backward_fn backward);

/* ---- Handlers ---------------------------------------------------------------------------------------------- */

int pass_open(struct bx_reader *args, struct pass *pass);
/* Returns rc, or the tape's error. */
int pass_close(struct pass *pass, int rc);

/* x * w, and x + w behind it. */
int dist_product(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
/* x, by a node with the backward function to which `context` points. */
int dist_custom(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);

/* A backward function: -EDOM, "no derivative today". */
int dist_fails(void *context, const struct bx_node_grads *grads);

#endif
