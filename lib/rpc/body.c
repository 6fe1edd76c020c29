/* SPDX-License-Identifier: MIT */
/*
 * The bodies of frames that are more than a message's bytes: how they are made and opened. A request's arguments and a
 * reply's value take the same way. In this order:
 *
 *     the head of a lease     if the message has tensors, or more bytes than a frame: its bytes lie in the arena then
 *     the bytes               of the message, unless it has a lease
 *     the kinds               of its values, with BX_CHECKED (checked.c); with a lease they lie behind the bytes in the
 *                             arena
 *     the tail                ids of references (rref/rref.h)
 *
 * Any thread makes one. The role opens one, in private memory: every word of it is input.
 */
#include "rpc.h"

#include <errno.h>
#include <stdlib.h>

/* ---- making -------------------------------------------------------------------------------------- */

unsigned char *bxi_body_with_tails(const struct bx_msg *msg, const struct bxi_rref_out *rrefs, size_t *bytes)
{
    size_t kinds_bytes = bxi_has_kinds(msg) ? bxi_kinds_bytes(msg) : 0;
    size_t tail_bytes = rrefs != NULL ? bxi_rref_tail_bytes(rrefs) : 0;
    unsigned char *data;

    *bytes = bx_msg_bytes(msg) + kinds_bytes + tail_bytes;
    data = malloc(*bytes);
    if (data == NULL)
        return NULL;
    if (bx_msg_bytes(msg) > 0)
        memcpy(data, bx_msg_data(msg), bx_msg_bytes(msg));
    if (kinds_bytes > 0)
        bxi_kinds_write(msg, data + bx_msg_bytes(msg));
    if (tail_bytes > 0)
        bxi_rref_write_tail(rrefs, data + *bytes);
    return data;
}

static int no_memory(const struct bx_msg *msg)
{
    return bx_fail(-ENOMEM, "no memory for a message of %zu bytes", bx_msg_bytes(msg));
}

/* bxi_grant_pack of the message, and the kinds of its values. */
static int pack(struct bx_job *job, struct bxi_peer *peer, const struct bx_msg *msg, struct bxi_grant *grant)
{
    struct bx_reader message = bx_msg_reader(msg);
    unsigned char *data = NULL;
    int rc;

    if (bxi_has_kinds(msg)) {
        data = bxi_body_with_tails(msg, NULL, &message.bytes);
        if (data == NULL)
            return no_memory(msg);
        message.data = data;
    }
    rc = bxi_grant_pack(job, peer->lend, &message, grant);
    free(data);
    return rc;
}

static int add_tail(struct bxi_grant *grant, const struct bxi_rref_out *rrefs)
{
    size_t bytes = grant->body_bytes + bxi_rref_tail_bytes(rrefs);
    unsigned char *data = realloc(grant->body, bytes);

    if (data == NULL)
        return bx_fail(-ENOMEM, "no memory for the references of a message");
    grant->body = data;
    grant->body_bytes = bytes;
    bxi_rref_write_tail(rrefs, data + bytes);
    return 0;
}

static int lend(struct bx_job *job, struct bxi_peer *peer, const struct bx_msg *msg, struct bxi_body *body)
{
    int rc = pack(job, peer, msg, &body->grant);

    if (rc == 0 && body->rrefs != NULL && (rc = add_tail(&body->grant, body->rrefs)) < 0)
        bxi_grant_drop(&body->grant);
    bxi_grants_reclaim(job);
    return rc;
}

int bxi_body_make(struct bx_job *job, struct bxi_peer *peer, const struct bx_msg *msg, struct bxi_rref_out *rrefs,
                  struct bxi_body *body)
{
    size_t tail_bytes;

    rrefs->rrefs = msg != NULL ? msg->rrefs : NULL;
    rrefs->count = bx_msg_rrefs(msg);
    for (size_t i = 0; i < rrefs->count; i++)
        if (atomic_load(&rrefs->rrefs[i]->job) != job)
            return bx_fail(-EINVAL, "the message holds a reference of another job, or of one that has ended");
    tail_bytes = bxi_rref_tail_bytes(rrefs);
    body->rrefs = tail_bytes > 0 ? rrefs : NULL;
    body->flags = (uint8_t)((tail_bytes > 0 ? BXI_FLAG_RREFS : 0) | (bxi_has_kinds(msg) ? BXI_FLAG_KINDS : 0));
    body->lends = bxi_needs_lease(msg, tail_bytes);
    if (body->lends)
        return lend(job, peer, msg, body);
    body->data = bxi_body_with_tails(msg, body->rrefs, &body->bytes);
    return body->data != NULL ? 0 : no_memory(msg);
}

void bxi_body_drop(struct bxi_body *body)
{
    if (body->lends)
        bxi_grant_drop(&body->grant);
    else
        free(body->data);
}

void bxi_body_put(struct bxi_body *body, struct bxi_out *out)
{
    out->head->flags |= body->flags;
    out->rrefs = body->rrefs;
    if (body->lends) {
        out->grant = &body->grant;
    } else {
        out->body = body->data;
        out->body_bytes = body->bytes;
    }
}

/* ---- opening (role) ------------------------------------------------------------------------------- */

void bxi_brought_drop(const struct bxi_brought *brought)
{
    bxi_loan_release(brought->loan);
    bxi_rref_in_release(brought->in);
}

/* Opens the loan. 0; BX_E_CORRUPT; another error, with brought->text. */
static int open_loan(struct bx_job *job, struct bxi_peer *peer, struct bxi_brought *brought)
{
    int rc = bxi_loan_open(job, peer->lend, job->rpc->frame, brought->bytes, &brought->loan);

    if (rc == 0)
        rc = bxi_device_loan_error(brought->loan);
    if (rc < 0)
        brought->text = brought->loan != NULL || (rc != -ENODEV && rc != -ENOMEM) ? bx_error_text()
                        : rc == -ENODEV ? "it has no GPU open; call bx_gpu_open"
                                        : "no memory for its tensors";
    return rc;
}

static int open_all(struct bx_job *job, struct bxi_peer *peer, uint8_t flags, struct bxi_brought *brought)
{
    bool lacks_memory = false;
    int rc = 0;

    if (flags & BXI_FLAG_RREFS) {
        rc = bxi_rref_open(job, peer->rank, job->rpc->frame, &brought->bytes, &brought->in);
        if (rc == BX_E_CORRUPT)
            return rc;
        lacks_memory = rc < 0;      /* its loan is opened all the same, so that it is returned */
    }
    if ((flags & BXI_FLAG_LEASE) && (rc = open_loan(job, peer, brought)) < 0)
        return rc;
    if (flags & BXI_FLAG_KINDS)
        rc = brought->loan != NULL
                 ? bxi_kinds_take(brought->loan->data, &brought->loan->bytes, &brought->kind_count)
                 : bxi_kinds_take(job->rpc->frame, &brought->bytes, &brought->kind_count);
    if (rc == BX_E_CORRUPT || !lacks_memory)
        return rc;
    brought->text = "no memory for its references";
    return -ENOMEM;
}

int bxi_brought_open(struct bx_job *job, struct bxi_peer *peer, uint8_t flags, struct bxi_brought *brought)
{
    brought->code = open_all(job, peer, flags, brought);
    if (brought->code != BX_E_CORRUPT)
        return 0;
    bxi_brought_drop(brought);
    return BX_E_CORRUPT;
}

struct bx_msg *bxi_brought_message(const unsigned char *data, const struct bxi_brought *brought)
{
    struct bxi_loan *loan = brought->loan;
    size_t bytes = loan != NULL ? loan->bytes : brought->bytes;
    struct bx_msg *msg = loan != NULL ? bxi_msg_of_loan(loan) : bxi_msg_copy(data, bytes);

    if (loan != NULL)
        data = loan->data;
    if (msg != NULL && bxi_msg_take_rrefs(msg, brought->in) == 0 &&
        bxi_kinds_copy(msg, data + bytes, brought->kind_count) == 0)
        return msg;
    bx_msg_destroy(msg);
    return NULL;
}
