/* SPDX-License-Identifier: MIT */
/*
 * Tapes: the list of variables that a tape holds, its first error, and what every operation does first and last. One
 * thread at a time uses a tape.
 */
#include "autograd.h"

#include "base/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int bx_tape_create(const struct bx_tape_options *options, struct bx_tape **tape)
{
    struct bx_tape_options chosen = { .struct_bytes = sizeof chosen };
    int rc = bxi_options_copy(&chosen, sizeof chosen, options, "bx_tape_options");

    if (rc < 0)
        return rc;
    if (tape == NULL)
        return bx_fail(-EINVAL, "bx_tape_create has no place to put the tape");

    struct bx_tape *made = calloc(1, sizeof *made);

    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a tape");
    made->job = chosen.job;
    made->no_grad = chosen.no_grad;
    *tape = made;
    return 0;
}

void bx_tape_clear(struct bx_tape *tape)
{
    if (tape == NULL)
        return;
    for (struct bx_var *var = tape->vars, *next; var != NULL; var = next) {
        next = var->tape_next;
        bx_var_release(var);
    }
    tape->vars = NULL;
    tape->error = 0;
}

void bx_tape_destroy(struct bx_tape *tape)
{
    bx_tape_clear(tape);
    free(tape);
}

int bx_tape_error(const struct bx_tape *tape)
{
    return tape != NULL ? tape->error : bx_fail(-EINVAL, "bx_tape_error was given no tape");
}

struct bx_var *bxi_tape_fail(struct bx_tape *tape, int code)
{
    if (tape->error == 0)
        tape->error = code;
    return NULL;
}

bool bxi_tape_stops(struct bx_tape *tape, const char *name, struct bx_var *const *inputs, size_t count)
{
    if (tape == NULL) {
        bx_fail(-EINVAL, "'%s' was given no tape", name);
        return true;
    }
    if (tape->error != 0)
        return true;
    for (size_t i = 0; i < count; i++) {
        if (inputs[i] == NULL) {
            bxi_tape_fail(tape, bx_fail(-EINVAL, "input %zu of '%s' is NULL", i, name));
            return true;
        }
        if (i > 0 && inputs[i]->dtype != inputs[0]->dtype) {
            bxi_tape_fail(tape, bx_fail(-EINVAL, "the inputs of '%s' are %s and %s; they must have one dtype", name,
                                        bx_dtype_name(inputs[0]->dtype),
                                        bx_dtype_name(inputs[i]->dtype)));
            return true;
        }
    }
    if (count > 0 && !bxi_is_float(inputs[0]->dtype)) {
        bxi_tape_fail(tape, bx_fail(-ENOTSUP, "'%s' computes with f32 and f64, and its input is %s", name,
                                    bx_dtype_name(inputs[0]->dtype)));
        return true;
    }
    return false;
}

bool bxi_find_dim(struct bx_tape *tape, const char *name, int ndim, int *dim)
{
    const int from_start = *dim < 0 ? *dim + ndim : *dim;

    if (from_start < 0 || from_start >= ndim) {
        bxi_tape_fail(tape, bx_fail(-EINVAL, "'%s' has no dimension %d: there are %d", name, *dim, ndim));
        return false;
    }
    *dim = from_start;
    return true;
}

static void hold(struct bx_tape *tape, struct bx_var *var)
{
    var->tape_next = tape->vars;
    tape->vars = var;
}

/* Of a node's inputs and outputs. */
static uint32_t count_elements(const struct bxi_record *record)
{
    uint64_t elements = 0;

    for (size_t i = 0; i < record->input_count; i++) {
        const struct bxi_like like = bxi_var_like(record->inputs[i]);

        elements += (uint64_t)bxi_elements(&like);
    }
    for (size_t i = 0; i < record->value_count; i++)
        elements += (uint64_t)bx_tensor_elements(record->values[i]);
    return elements < BXI_UNKNOWN ? (uint32_t)elements : BXI_UNKNOWN;
}

struct bxi_node *bxi_tape_record(struct bx_tape *tape, const struct bxi_record *record)
{
    struct bxi_node_size size = { .outputs = record->value_count };
    bool requires_grad = record->requires_grad && !tape->no_grad;
    struct bxi_node *node;

    for (size_t i = 0; i < record->input_count && !tape->no_grad; i++)
        requires_grad |= bx_var_requires_grad(record->inputs[i]);
    if (requires_grad)
        size = (struct bxi_node_size){ record->input_count, record->value_count, record->saved_count,
                                       record->extra_bytes };
    node = bxi_node_create(requires_grad ? record->op : NULL, &size);
    if (node == NULL) {
        for (size_t i = 0; i < record->value_count; i++)
            bx_tensor_release(record->values[i]);
        bxi_tape_fail(tape, -ENOMEM);
        return NULL;
    }
    if (requires_grad)
        node->elements = count_elements(record);
    for (size_t i = 0; i < size.edges; i++)
        if (bx_var_requires_grad(record->inputs[i]))
            bxi_node_connect(node, i, record->inputs[i]);
    for (size_t i = 0; i < record->value_count; i++) {
        node->vars[i].requires_grad = requires_grad;
        node->vars[i].value = record->values[i];
        node->vars[i].dtype = bx_tensor_dtype(record->values[i]);
        hold(tape, &node->vars[i]);
    }
    for (size_t i = 0; i < size.saved && record->saved != NULL; i++)
        node->saved[i] = bx_tensor_acquire(record->saved[i]);
    if (requires_grad && record->extra != NULL)
        memcpy(node->extra, record->extra, record->extra_bytes);
    return node;
}

struct bx_var *bxi_tape_result(struct bx_tape *tape, struct bx_tensor *value, struct bxi_record record)
{
    struct bxi_node *node;

    if (value == NULL)
        return bxi_tape_fail(tape, -ENOMEM);
    record.values = &value;
    record.value_count = 1;
    node = bxi_tape_record(tape, &record);
    return node != NULL ? &node->vars[0] : NULL;
}

struct bx_var *bx_tape_input(struct bx_tape *tape, struct bx_tensor *value)
{
    struct bx_var *var = NULL;
    int rc;

    if (bxi_tape_stops(tape, "input", NULL, 0))
        return NULL;
    rc = bx_var_create(value, false, &var);
    if (rc < 0)
        return bxi_tape_fail(tape, rc);
    hold(tape, var);
    return var;
}

struct bx_var *bx_var_detach(struct bx_tape *tape, struct bx_var *a)
{
    struct bx_tensor *value;
    struct bx_var *var;

    if (bxi_tape_stops(tape, "detach", NULL, 0))
        return NULL;
    if (a == NULL)
        return bxi_tape_fail(tape, bx_fail(-EINVAL, "input 0 of 'detach' is NULL"));
    value = bx_var_acquire_value(a);
    var = bx_tape_input(tape, value);
    bx_tensor_release(value);
    return var;
}
