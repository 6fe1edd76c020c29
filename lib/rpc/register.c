/* SPDX-License-Identifier: MIT */
/*
 * Registering this worker's functions; batch.c registers batches. Any thread, before and after the start.
 *
 * Entries are added under the lock and never change. The count of them is published last, here for the role and in the
 * segment for the peers, so a reader that has the count has the entries.
 */
#include "rpc.h"

#include <errno.h>

static int check_name(const char *name)
{
    size_t length = name == NULL ? 0 : strlen(name);

    if (length == 0 || length > BX_NAME_MAX)
        return bx_fail(-EINVAL, "a function's name has 1 to %d characters, '%s' has %zu", BX_NAME_MAX,
                       bxi_brief(name).text, length);
    return 0;
}

/* Lock. */
static int add_handler(struct bx_job *job, const char *name, const struct bxi_handler *handler)
{
    /* Relaxed: written under the lock only. */
    uint32_t count = bxi_load_relaxed(&job->rpc->handler_count);

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(job->rpc->handlers[i].name, name) == 0)
            return bx_fail(-EEXIST, "worker '%s' has registered '%s' before", job->name, name);
    if (count == BXI_FUNCTION_MAX)
        return bx_fail(-ENOSPC, "worker '%s' has %d functions already, '%s' is one too many", job->name,
                       BXI_FUNCTION_MAX, name);
    job->rpc->handlers[count] = *handler;
    strcpy(job->rpc->handlers[count].name, name);
    if (handler->batcher != NULL) {
        handler->batcher->handler = &job->rpc->handlers[count];
        handler->batcher->next = job->rpc->batchers;
        job->rpc->batchers = handler->batcher;
    }
    /* [handlers] release, pairs with the acquire in handle_request. */
    bxi_store_release(&job->rpc->handler_count, count + 1);
    if (job->control != NULL) {
        strcpy(job->control->function[count].name, name);
        job->control->function[count].kind = (uint32_t)handler->kind;
        /* [functions] release, pairs with the acquire in refresh (names.c). */
        bxi_store_release(&job->control->header.function_count, count + 1);
        bxi_event(job->run, BXI_EVENT_SCAN);    /* the role tells other hosts */
    }
    return 0;
}

uint32_t bxi_functions_copy(struct bx_job *job, struct bxi_function rows[BXI_FUNCTION_MAX])
{
    uint32_t count = bxi_load_relaxed(&job->rpc->handler_count);

    for (uint32_t i = 0; i < count; i++) {
        memcpy(rows[i].name, job->rpc->handlers[i].name, BXI_NAME_BYTES);
        rows[i].kind = (uint32_t)job->rpc->handlers[i].kind;
    }
    return count;
}

int bxi_register(struct bx_job *job, const char *name, const struct bxi_handler *handler)
{
    int rc = bxi_job_check_any(job);

    if (rc == 0)
        rc = check_name(name);
    if (rc == 0 && bxi_load_relaxed(&job->phase) != BXI_CREATED)
        rc = bxi_job_check(job);
    if (rc < 0)
        return rc;
    bxi_lock(&job->run->lock);
    rc = add_handler(job, name, handler);
    bxi_unlock(&job->run->lock);
    return rc;
}

int bxi_check_type(const struct bx_type *type, const char *name)
{
    if (type != NULL && type->name != NULL)
        return 0;
    return bx_fail(-EINVAL, "the method '%s' needs a type, and the type a name", bxi_brief(name).text);
}

static int add(struct bx_job *job, const char *name, enum bx_kind kind, struct bxi_handler *handler)
{
    if ((handler->fn == NULL && handler->async == NULL) || kind < BX_INLINE || kind > BX_LOCKED)
        return bx_fail(-EINVAL, "a handler is a function and BX_INLINE, BX_BLOCKING or BX_LOCKED");
    handler->kind = kind != BX_INLINE ? BXI_F_BLOCKING : handler->async != NULL ? BXI_F_ASYNC : BXI_F_INLINE;
    handler->locked = kind == BX_LOCKED;
    return bxi_register(job, name, handler);
}

int bx_register(struct bx_job *job, const char *name, enum bx_kind kind, bx_handler_fn fn, void *context)
{
    return add(job, name, kind, &(struct bxi_handler){ .fn = fn, .context = context });
}

int bx_register_async(struct bx_job *job, const char *name, enum bx_kind kind, bx_async_fn fn, void *context)
{
    return add(job, name, kind, &(struct bxi_handler){ .async = fn, .context = context });
}

int bx_register_method(struct bx_job *job, const struct bx_type *type, const char *name, enum bx_kind kind,
                       bx_handler_fn fn, void *context)
{
    int rc = bxi_check_type(type, name);

    return rc < 0 ? rc : add(job, name, kind, &(struct bxi_handler){ .fn = fn, .context = context, .type = type });
}

int bx_register_method_async(struct bx_job *job, const struct bx_type *type, const char *name, enum bx_kind kind,
                             bx_async_fn fn, void *context)
{
    int rc = bxi_check_type(type, name);

    return rc < 0 ? rc : add(job, name, kind, &(struct bxi_handler){ .async = fn, .context = context, .type = type });
}
