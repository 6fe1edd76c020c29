/* SPDX-License-Identifier: MIT */
/*
 * This worker's part of a backward pass: how it ends, when its memory is freed, and its slices in the trace. A part
 * belongs to its context, is replaced by that of the next pass, and is freed with the context's end, but never while a
 * thread runs its nodes: then that thread frees it (bxi_dist_unlock_running).
 */
#include "dist.h"

#include <stdlib.h>
#include <string.h>

/* ---- the trace ------------------------------------------------------------------------------------------ */

#define CATEGORY "autograd"
const struct bx_slice bxi_slice_backward = { "backward", CATEGORY, BX_ARROW_BEGIN, false };
const struct bx_slice bxi_slice_search = { "discover", CATEGORY, BX_ARROW_NONE, false };
const struct bx_slice bxi_slice_discover = { "discover", CATEGORY, BX_ARROW_STEP, false };
const struct bx_slice bxi_slice_gradients = { "gradients", CATEGORY, BX_ARROW_STEP, false };
const struct bx_slice bxi_slice_done = { "done", CATEGORY, BX_ARROW_END, false };
const struct bx_slice bxi_slice_part = { "backward", CATEGORY, BX_ARROW_NONE, true };

void bxi_dist_trace(const struct bx_context *context, const struct bx_slice *slice, uint64_t number, uint64_t began_ns,
                    int code)
{
    /* The first byte of a context's id is 0: it counts the passes that the context had before. So a pass has an id of
     * its own, as arrows need. */
    if (began_ns != 0 && number != 0)
        bx_trace_end(context->dist->job, slice, began_ns, context->id | (number - 1) << 56, code);
}

/* ---- the end of the part ---------------------------------------------------------------------------------- */

bool bxi_dist_is_done(const struct bxi_dist_pass *pass)
{
    /* [autograd.done] acquire, pairs with the release in bxi_dist_part_done: code and text are read after it. */
    return bxi_load_acquire((bxi_a32 *)&pass->is_done) != 0;
}

static void free_pass(struct bxi_dist_pass *pass)
{
    bxi_pass_end(&pass->pass);
    for (size_t i = 0; i < pass->out_count; i++)
        bx_tensor_release(pass->out[i].grad);
    for (size_t i = 0; i < pass->in_count; i++)
        bx_tensor_release(pass->in[i].grad);
    free(pass->in);
    bx_future_release(pass->done);
    free(pass->out);
    free(pass->text);
    free(pass);
}

void bxi_dist_set_pass(struct bx_context *context, struct bxi_dist_pass *pass)
{
    struct bxi_dist_pass *old;

    pthread_mutex_lock(&context->lock);
    old = context->pass;
    context->pass = pass;
    pthread_mutex_unlock(&context->lock);
    if (old != NULL)
        free_pass(old);
}

bool bxi_dist_has_ended(struct bx_context *context)
{
    bool ended;

    pthread_mutex_lock(&context->lock);
    ended = context->ended;
    pthread_mutex_unlock(&context->lock);
    return ended;
}

void bxi_dist_pass_drop(struct bx_context *context)
{
    if (pthread_mutex_trylock(&context->running) != 0)
        return;                             /* the thread that has it calls this when it has let go */
    bxi_dist_set_pass(context, NULL);
    pthread_mutex_unlock(&context->running);
}

void bxi_dist_unlock_running(struct bx_context *context)
{
    pthread_mutex_unlock(&context->running);
    if (bxi_dist_has_ended(context))
        bxi_dist_pass_drop(context);
}

struct bx_future *bxi_dist_part_done(struct bx_context *context, int code)
{
    struct bxi_dist_pass *pass = context->pass;
    struct bx_future *done;

    if (pass == NULL || bxi_load_relaxed(&pass->is_done) != 0)
        return NULL;
    /* [autograd.done] release, pairs with the acquire in bxi_dist_is_done. */
    bxi_store_release(&pass->is_done, 1);
    bxi_dist_trace(context, &bxi_slice_part, pass->number, pass->began_ns, code);
    done = pass->done;
    pass->done = NULL;
    return done;
}

/* context->lock. NULL: that pass is over. */
static struct bxi_dist_pass *pass_numbered(struct bx_context *context, uint64_t number)
{
    return context->pass != NULL && context->pass->number == number ? context->pass : NULL;
}

void bxi_dist_finish_part(struct bx_context *context, uint64_t number, int code, const char *text)
{
    struct bxi_dist_pass *pass;
    struct bx_future *done = NULL;

    pthread_mutex_lock(&context->lock);
    pass = pass_numbered(context, number);
    if (pass != NULL && bxi_load_relaxed(&pass->is_done) == 0) {
        pass->code = code;
        pass->text = code < 0 && text != NULL ? strdup(text) : NULL;
        done = bxi_dist_part_done(context, code);
    }
    pthread_mutex_unlock(&context->lock);
    if (done == NULL)
        return;
    if (code < 0)
        bx_future_fail(done, code, text);
    else
        bx_future_set(done, NULL);
    bx_future_release(done);
}

void bxi_dist_unsettle(struct bx_context *context, uint64_t number)
{
    struct bxi_dist_pass *pass;

    pthread_mutex_lock(&context->lock);
    pass = pass_numbered(context, number);
    if (pass != NULL)
        pass->unsettled++;
    pthread_mutex_unlock(&context->lock);
}

void bxi_dist_settle(struct bx_context *context, uint64_t number)
{
    struct bxi_dist_pass *pass;
    bool last;

    pthread_mutex_lock(&context->lock);
    pass = pass_numbered(context, number);
    last = pass != NULL && --pass->unsettled == 0;
    pthread_mutex_unlock(&context->lock);
    if (last)
        bxi_dist_finish_part(context, number, 0, NULL);
}
