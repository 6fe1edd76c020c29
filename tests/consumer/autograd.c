/* SPDX-License-Identifier: MIT */
/*
 * A program of an outside user of boxcar_autograd.h: the slope of x^2 at 3. Built by check.sh with the flags of
 * pkg-config.
 */
#include <boxcar_autograd.h>

#include <stdio.h>

int main(void)
{
    struct bx_tape *tape = NULL;
    struct bx_grads *grads = NULL;
    struct bx_tensor *value = NULL, *slope;
    struct bx_var *x = NULL, *y;
    int rc = bx_tape_create(NULL, &tape);

    if (rc == 0)
        rc = bx_grads_create(NULL, &grads);
    if (rc == 0)
        rc = bx_tensor_create(NULL, BX_F32, 0, NULL, &value);
    if (rc == 0) {
        *(float *)bx_tensor_data_mut(value) = 3;
        rc = bx_var_create(value, true, &x);
    }
    y = bx_var_mul(tape, x, x);
    if (rc == 0)
        rc = bx_backward(&y, NULL, 1, false, grads);
    slope = bx_grads_get(grads, x);
    if (rc < 0 || slope == NULL || *(const float *)bx_tensor_data(slope) != 6) {
        fprintf(stderr, "%s\n", bx_error_text());
        return 1;
    }
    bx_grads_destroy(grads);
    bx_tape_destroy(tape);
    bx_var_release(x);
    bx_tensor_release(value);
    return 0;
}
