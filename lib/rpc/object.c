/* SPDX-License-Identifier: MIT */
/*
 * Calls on objects, and making them: what bx_rref_* and bx_remote add to a call, and what a call on an object adds to a
 * handler. lib/rref has the references themselves.
 *
 * A call on an object that is not made yet is kept at the object's reference, as a struct bxi_waiting in the state
 * WAITS_FOR_OBJECT (run->lock). When the object is made, or cannot be, the whole list moves to rpc->unparked, and the
 * role runs it, in order. A call that comes while others wait, in either list, waits behind them.
 *
 * A request that waits may itself make an object. It ends when its caller is gone (cancel.c), and the object with it.
 */
#include "mark.h"
#include "nested.h"

#include <errno.h>
#include <stdlib.h>

static_assert(BXI_RREF_UNSEEN_MAX >= BXI_CALLS_MAX, "a request that makes an object is a call until it is read");

/* ---- what lib/rref asks of rpc -------------------------------------------------------------------------- */

static int send_frame(struct bx_job *job, int rank, const struct bxi_rref_frame *frame)
{
    struct bxi_frame head = { .kind = BXI_RREF, .flags = (uint8_t)frame->op, .code = frame->value, .id = frame->id,
                              .sent_ns = bxi_coarse_ns() };
    struct bxi_out out = { .head = &head, .body = frame->body, .body_bytes = frame->body_bytes, .slot = -1,
                           .may_queue = true };

    return bxi_peer_send(job, job->rpc->peers[rank], &out);
}

static void flush(struct bx_job *job)
{
    if (!bxi_is_driving(job->run))
        bxi_bells_flush(job);
}

/* Relaxed: under the lock. One that comes back may be called by others before this worker has seen that it runs. */
static bool is_alive(const struct bx_job *job, int rank)
{
    return bxi_load_relaxed(&job->rpc->peers[rank]->state) == BXI_PEER_ALIVE ||
           bxi_join_promote((struct bx_job *)job, rank);
}

/* One that lives took the place of one that had died. */
static int why_closed(const struct bx_job *job, int rank)
{
    return is_alive(job, rank) ? BX_E_PEER_DEAD : job->rpc->peers[rank]->close_code;
}

static const char *name_of(const struct bx_job *job, int rank)
{
    return job->rpc->peers[rank]->name;
}

static const char *on_host(const struct bx_job *job, int rank)
{
    return job->rpc->peers[rank]->on_host;
}

static void unpark(struct bx_job *job, struct bxi_waiting *parked)
{
    if (job->rpc->unparked == NULL)
        job->rpc->unparked_end = &job->rpc->unparked;
    *job->rpc->unparked_end = parked;
    while (*job->rpc->unparked_end != NULL)
        job->rpc->unparked_end = &(*job->rpc->unparked_end)->next_row;
    bxi_event(job->run, BXI_EVENT_OBJECT);
}

static bool is_before(const struct bx_job *job, int rank, const struct bxi_pin *pin, uint64_t pos)
{
    const struct bxi_peer *peer = job->rpc->peers[rank];
    uint16_t index = (uint16_t)(pin->call & 0xffff);

    if (pin->end_pos != BX_FOREVER)
        return pin->end_pos <= pos;
    /* Slots are never removed, and one that is free has another generation. */
    return peer->slots[index].generation == pin->call >> 16 && peer->slots[index].end_pos <= pos;
}

/* One that lives may hold some, and was not asked for. */
static bool holds_passed(struct bx_job *job, int rank, uint8_t generations, uint64_t since_ns)
{
    for (struct bxi_lend_peer *peer = job->lend->peers[rank]; peer != NULL; peer = peer->former)
        if (peer->generation < generations && peer->passed_loans != NULL && peer->passed_loans->opened_ns >= since_ns)
            return true;
    return !bxi_devices_are_settled(job);
}

/* If nobody has to answer, a round is for all: so this does not nest. */
static void take_back(struct bx_job *job, uint64_t since_ns)
{
    if (bxi_grants_take_back_waiting(job, since_ns))
        bxi_rref_ask_for_leases(job);
}

const struct bxi_rref_ops bxi_rref_ops = {
    .send = send_frame, .flush = flush, .is_alive = is_alive, .why_closed = why_closed, .name = name_of,
    .on_host = on_host, .unpark = unpark, .is_before = is_before, .holds_passed = holds_passed,
    .newest_waiting_ns = bxi_grants_newest_waiting_ns, .take_back = take_back,
};

/* ---- a request on an object (role) --------------------------------------------------------------------------- */

/* The list in which it waits. Lock. */
void bxi_object_take(struct bx_job *job, struct bxi_waiting *waiting)
{
    struct bx_rref *target = waiting->request.in->target;
    struct bxi_waiting **link = &target->parked;

    while (*link != NULL && *link != waiting)
        link = &(*link)->next_row;
    if (*link == waiting) {
        *link = waiting->next_row;
        if (target->parked_end == &waiting->next_row)
            target->parked_end = link;
        return;
    }
    for (link = &job->rpc->unparked; *link != waiting;)
        link = &(*link)->next_row;
    *link = waiting->next_row;
    if (job->rpc->unparked_end == &waiting->next_row)
        job->rpc->unparked_end = link;
}

/* Lock. One that has waited does not wait again: its turn has come. */
static bool must_wait(const struct bx_request *request)
{
    return !request->unparked && (bxi_rref_state(request->in->target) == BXI_RREF_TO_COME ||
                                  request->job->rpc->unparked != NULL);
}

/* Lock. Behind the calls on the object; or, if it is made, behind those that are to run now. */
static void append(struct bx_job *job, struct bxi_waiting *waiting)
{
    struct bx_rref *target = waiting->request.in->target;
    struct bxi_waiting ***end = bxi_rref_state(target) == BXI_RREF_TO_COME ? &target->parked_end
                                                                           : &job->rpc->unparked_end;

    waiting->next_row = NULL;
    **end = waiting;
    *end = &waiting->next_row;
}

/* The bytes of the arguments, and the kinds behind them, lie in the frame: copies them. False: no memory. */
static bool keep_bytes(struct bxi_waiting *waiting, size_t body_bytes)
{
    struct bxi_loan *loan = waiting->request.loan;
    size_t bytes = (loan != NULL ? loan->bytes : body_bytes) + 8 * (size_t)waiting->request.kind_count;

    if (loan == NULL)
        return (waiting->args = bxi_msg_copy(waiting->request.job->rpc->frame, bytes)) != NULL;
    if (loan->packed != NULL || bytes == 0)
        return true;
    loan->packed = malloc(bytes);
    if (loan->packed == NULL)
        return false;
    memcpy(loan->packed, loan->data, bytes);
    loan->data = loan->packed;
    return true;
}

/* Keeps the request until the object is made. 1; 0: it was made meanwhile; -ENOMEM, or as bxi_waiting_begin. */
static int park(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;
    struct bxi_waiting *waiting = bxi_waiting_create(request);
    int rc = 0;

    if (waiting == NULL)
        return -ENOMEM;
    if (!keep_bytes(waiting, body_bytes)) {
        free(waiting);
        return -ENOMEM;
    }
    bxi_lock(&job->run->lock);
    if (must_wait(request))
        rc = (rc = bxi_waiting_begin(waiting, BXI_WAITS_FOR_OBJECT)) < 0 ? rc : 1;
    if (rc == 1)
        append(job, waiting);
    bxi_unlock(&job->run->lock);
    if (rc == 1)
        return 1;
    bx_msg_destroy(waiting->args);
    free(waiting);
    return rc;
}

/* 1: the request was answered with that. */
static int fail(struct bx_request *request, int code, const char *text)
{
    bxi_answer(request, code, text, NULL);
    return 1;
}

static int check_type(struct bx_request *request)
{
    const struct bx_type *type = request->in->target->object->type;

    if (request->in->value)
        return type->value != NULL ? 0 : fail(request, BX_E_TYPE, "the object's type has no value to send");
    if (request->handler->type == type)
        return 0;
    return fail(request, BX_E_TYPE, request->handler->type == NULL
                                        ? "it is no method, and was called on an object"
                                        : "it is a method of another type than the object's");
}

/* As bxi_object_check, for a request on an object. */
static int check_object(struct bx_request *request, size_t body_bytes)
{
    const struct bx_rref *target = request->in->target;
    bool wait;
    int rc;

    bxi_lock(&request->job->run->lock);
    wait = must_wait(request);
    bxi_unlock(&request->job->run->lock);
    rc = wait ? park(request, body_bytes) : 0;
    if (rc == 1 || rc == BX_E_CORRUPT)
        return rc;
    if (rc < 0)
        return fail(request, rc, "no memory for a call on an object that is not made yet");
    if (bxi_rref_state(target) == BXI_RREF_FAILED)
        return fail(request, target->code, target->text);       /* any code, for it may be a handler's */
    return check_type(request);
}

BXI_APART int bxi_object_check(struct bx_request *request, size_t body_bytes)
{
    if (request->in != NULL && request->in->target != NULL)
        return check_object(request, body_bytes);
    if (request->handler->type == NULL)
        return 0;
    return fail(request, BX_E_TYPE, "it is a method, and was not called on an object");
}

static int call_value(void *object, struct bx_msg *value, int (*fn)(void *, struct bx_msg *))
{
    return bxi_call_user_with(object, value, NULL, NULL, (bxi_user_fn)fn);
}

BXI_APART void bxi_object_value(struct bx_request *request)
{
    const struct bxi_object *object = request->in->target->object;
    struct bx_msg *value = bx_msg_create(0);
    int code;

    if (value == NULL) {
        bxi_answer(request, -ENOMEM, "no memory for the object's value", NULL);
        return;
    }
    bxi_clear_error();
    bxi_no_wait_enter();
    code = call_value(object->object, value, object->type->value);
    if (code >= 0)
        code = value->error;
    bxi_answer(request, code < 0 ? code : 0, bx_error_text(), value);
    bx_msg_destroy(value);
    bxi_no_wait_leave();
}

/* ---- an object is made ---------------------------------------------------------------------------------------- */

int bxi_object_made(struct bx_request *request, int code, const char **text, const struct bx_msg *value)
{
    static const char none[] = "its reply holds no reference to an object of its worker";
    struct bx_job *job = request->job;
    int rc;

    bxi_lock(&job->run->lock);
    rc = bxi_rref_made(job, request->in->makes, code, *text,
                       value != NULL && value->rref_count > 0 ? value->rrefs[0] : NULL);
    bxi_unlock(&job->run->lock);
    if (rc < 0 && code >= 0)
        *text = none;
    bxi_wake(job->run, request->in->makes);
    return rc;
}

const struct bx_rref *bxi_object_given_up(struct bx_job *job, const struct bxi_waiting *waiting, int code)
{
    struct bx_rref *makes = waiting->makes_id != 0 ? bxi_rref_find(job, waiting->makes_id) : NULL;

    if (makes == NULL || !makes->is_making)
        return NULL;                        /* it is made, or could not be */
    bxi_rref_made(job, makes, code, code == BX_E_TIMEOUT ? "the object was not made before its maker's deadline"
                                                         : "its maker gave up before the object was made", NULL);
    return makes;
}

/* ---- calls that waited ------------------------------------------------------------------------------------------ */

/* The request as it was when its frame was read. The body's bytes, in job->rpc->frame; the kinds lie behind them. */
static size_t reread(struct bx_job *job, struct bxi_waiting *waiting, struct bx_request *request)
{
    size_t bytes = bx_msg_bytes(waiting->args);

    *request = waiting->request;
    request->counted = false;
    request->unparked = true;
    request->row = BXI_NO_ROW;
    waiting->request.loan = NULL;
    waiting->request.in = NULL;
    if (bytes > 0)
        memcpy(job->rpc->frame, bx_msg_data(waiting->args), bytes);
    bxi_waiting_destroy(waiting);
    return request->loan == NULL ? bytes - 8 * (size_t)request->kind_count : 0;
}

static int run_again(struct bx_request *request, size_t body_bytes)
{
    struct bx_job *job = request->job;

    if (request->deadline_ns <= bxi_now_ns()) {
        bxi_lock(&job->run->lock);
        bxi_counter_add(job, BXI_C_requests_expired, 1);
        bxi_unlock(&job->run->lock);
        bxi_answer(request, BX_E_TIMEOUT, "the deadline passed before the object was made", NULL);
        return 0;
    }
    return bxi_handler_run(request, body_bytes);
}

/* Takes the first; it counts as being served until it has run, for a shutdown waits for that. NULL: none. */
static struct bxi_waiting *take_first(struct bx_job *job)
{
    struct bxi_waiting *waiting;

    bxi_lock(&job->run->lock);
    waiting = job->rpc->unparked;
    if (waiting != NULL) {
        job->rpc->unparked = waiting->next_row;
        waiting->state = BXI_WAITS_NO_MORE;
        bxi_waiting_end(waiting);
        job->rpc->serving++;
    }
    bxi_unlock(&job->run->lock);
    return waiting;
}

void bxi_objects_unpark(const struct bxi_role *role, struct bx_job *job)
{
    struct bxi_waiting *waiting;

    while ((waiting = take_first(job)) != NULL) {
        struct bx_request request;
        struct bxi_peer *peer = waiting->request.peer;
        size_t bytes = reread(job, waiting, &request);
        int rc = run_again(&request, bytes);

        bxi_lock(&job->run->lock);
        job->rpc->serving--;
        bxi_unlock(&job->run->lock);
        bxi_quiet_changed(job);
        if (rc == BX_E_CORRUPT)
            bxi_peer_close(role, job, peer, BXI_PEER_CORRUPT);
    }
}

/* ---- the caller -------------------------------------------------------------------------------------------------- */

/* The request that makes the object is answered, or never will be. */
static void made(struct bx_future *future, void *context)
{
    struct bxi_rref_after after = { .sent = false };
    struct bx_rref *rref = context;
    struct bx_job *job = future->job;

    bxi_lock(&job->run->lock);
    if (future->code < 0) {
        bxi_rref_fail(rref, future->code, bx_future_error_text(future));
        rref->unmade = future->code != BX_E_CANCELLED && future->code != BX_E_SHUTDOWN;
    } else if (bxi_rref_state(rref) == BXI_RREF_TO_COME) {
        bxi_rref_set_state(rref, BXI_RREF_THERE);
    }
    bxi_unlock(&job->run->lock);
    bxi_wake(job->run, rref);
    bxi_lock(&job->run->lock);
    bxi_rref_drop(job, rref, &after);
    bxi_unlock(&job->run->lock);
    bxi_rref_do_after(job, &after);
}

struct making {
    struct bx_job *job;
    const char *to; /* or: */
    struct bx_rref *target;
    const char *function;
    const struct bx_msg *args;
    const struct bx_call_options *options;
};

static int make(const struct making *making, struct bx_rref **out)
{
    struct bxi_aim aim = { .target = making->target };
    struct bx_future *future = NULL;
    int rc;

    if (out == NULL)
        return bxi_null("bx_remote", "the place for the reference");
    aim.makes = bxi_rref_new(making->job, 0);
    if (aim.makes == NULL)
        return bx_fail(-ENOMEM, "no memory for a reference");
    bxi_store_relaxed(&aim.makes->refs, 2);         /* the program's, and that of made() */
    rc = bxi_rpc_async(making->job, making->to, &aim, making->function, making->args, making->options, &future);
    if (rc < 0) {
        free(aim.makes);
        return rc;
    }
    rc = bxi_future_on_done(future, made, aim.makes);
    if (rc < 0) {
        bx_future_cancel(future);
        bxi_rref_release(aim.makes);
        bxi_rref_release(aim.makes);
    } else {
        *out = aim.makes;
    }
    bxi_future_release(future);
    return bxi_out(rc);
}

int bx_remote(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
              const struct bx_call_options *options, struct bx_rref **rref)
{
    int rc = bxi_job_check(job);

    return rc < 0 ? rc : make(&(struct making){ job, to, NULL, function, args, options }, rref);
}

int bx_rref_remote(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                   const struct bx_call_options *options, struct bx_rref **made_rref)
{
    int rc = bxi_rref_check(rref, __func__);

    return rc < 0 ? rc : make(&(struct making){ bxi_rref_job(rref), NULL, rref, method, args, options }, made_rref);
}

int bx_rref_sync(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                 const struct bx_call_options *options, struct bx_msg **reply)
{
    int rc = bxi_rref_check(rref, __func__);

    return bxi_out(rc < 0 ? rc : bxi_rpc_sync(bxi_rref_job(rref), NULL, &(struct bxi_aim){ .target = rref }, method,
                                              args, options, reply));
}

int bx_rref_async(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                  const struct bx_call_options *options, struct bx_future **future)
{
    int rc = bxi_rref_check(rref, __func__);

    return bxi_out(rc < 0 ? rc : bxi_rpc_async(bxi_rref_job(rref), NULL, &(struct bxi_aim){ .target = rref }, method,
                                               args, options, future));
}

int bx_rref_oneway(struct bx_rref *rref, const char *method, const struct bx_msg *args,
                   const struct bx_call_options *options)
{
    int rc = bxi_rref_check(rref, __func__);

    return rc < 0 ? rc : bxi_rpc_oneway(bxi_rref_job(rref), NULL, &(struct bxi_aim){ .target = rref }, method, args,
                                        options);
}

int bx_rref_to_here(struct bx_rref *rref, const struct bx_call_options *options, struct bx_msg **value)
{
    int rc = bxi_rref_check(rref, __func__);

    return bxi_out(rc < 0 ? rc : bxi_rpc_sync(bxi_rref_job(rref), NULL,
                                              &(struct bxi_aim){ .target = rref, .value = true }, BXI_VALUE_NAME, NULL,
                                              options, value));
}

int bx_rref_to_here_async(struct bx_rref *rref, const struct bx_call_options *options, struct bx_future **future)
{
    int rc = bxi_rref_check(rref, __func__);

    return bxi_out(rc < 0 ? rc : bxi_rpc_async(bxi_rref_job(rref), NULL,
                                               &(struct bxi_aim){ .target = rref, .value = true }, BXI_VALUE_NAME,
                                               NULL, options, future));
}

/* ---- the handler ----------------------------------------------------------------------------------------------- */

void *bx_request_object(const struct bx_request *request)
{
    if (request == NULL || request->in == NULL || request->in->target == NULL)
        return NULL;
    return request->in->target->object->object;
}

int bx_msg_put_object(struct bx_job *job, struct bx_msg *msg, const struct bx_type *type, void *object)
{
    struct bx_rref *rref = NULL;
    int rc;

    if (msg == NULL)
        return bxi_null(__func__, "the message");
    if (msg->error < 0)
        return msg->error;
    rc = bx_rref_create(job, type, object, &rref);
    if (rc < 0)
        return msg->error = rc;
    rc = bx_msg_put_rref(msg, rref);
    if (rc < 0)
        bxi_rref_forget_object(rref);
    bxi_rref_release(rref);
    return rc;
}
