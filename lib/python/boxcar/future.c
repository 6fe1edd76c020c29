/* SPDX-License-Identifier: MIT */
/*
 * Futures, references, and the calls that make them.
 */
#include "boxpy.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS UINT64_C(50000000)      /* a waiting main thread looks for signals */

/* ---- Futures -------------------------------------------------------------------------------------------- */

void boxpy_release(struct boxpy_job *job, struct bx_future *future, struct bx_rref *rref)
{
    struct boxpy_late *late;

    if (job->is_forked)                 /* they are the parent's */
        return;
    if (job->job != NULL || job->has_ended) {
        bx_future_release(future);
        bx_rref_release(rref);
        return;
    }
    late = PyMem_RawMalloc(sizeof *late);
    if (late == NULL)                   /* then they stay */
        return;
    *late = (struct boxpy_late){ .next = job->late, .future = future, .rref = rref };
    job->late = late;
}

static PyObject *new_future(struct boxpy_job *job, struct bx_future *made)    /* takes the reference over */
{
    struct boxpy_future *future = PyObject_New(struct boxpy_future, &boxpy_future_type);

    if (future == NULL) {
        bx_future_release(made);
        return NULL;
    }
    Py_INCREF(job);
    future->job = job;
    future->future = made;
    return (PyObject *)future;
}

static PyObject *future_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct bx_future *made;
    PyObject *job;

    (void)type, (void)keywords;
    if (!PyArg_ParseTuple(args, "O!", &boxpy_job_type, &job) || !boxpy_lives((struct boxpy_job *)job))
        return NULL;
    made = bx_future_create(((struct boxpy_job *)job)->job);
    return made != NULL ? new_future((struct boxpy_job *)job, made) : boxpy_fail(bx_error_code(), bx_error_text());
}

static void future_dealloc(PyObject *self)
{
    struct boxpy_future *future = (struct boxpy_future *)self;

    boxpy_release(future->job, future->future, NULL);
    Py_DECREF(future->job);
    PyObject_Free(self);
}

/* Whether it is done. While its job is destroyed it may only be looked at: bx_future_is_done would make progress. */
static bool is_over(const struct boxpy_future *future)
{
    const struct boxpy_job *job = future->job;

    if (job->job != NULL || job->has_ended)
        return bx_future_is_done(future->future);
    return job->is_forked || bx_future_error(future->future) < 0 || bx_future_value(future->future) != NULL;
}

/* In slices, so that a signal's handler runs while the main thread waits; other threads wait likewise. */
static PyObject *future_wait(PyObject *self, PyObject *args)
{
    struct bx_future *future = ((struct boxpy_future *)self)->future;
    struct boxpy_job *job = ((struct boxpy_future *)self)->job;
    unsigned long long left_ns;
    int rc;

    if (!PyArg_ParseTuple(args, "K", &left_ns))
        return NULL;
    do {
        uint64_t slice_ns = left_ns < LOOK_NS ? left_ns : LOOK_NS;

        if (job->job == NULL && is_over((struct boxpy_future *)self))
            Py_RETURN_TRUE;
        if (!boxpy_lives(job))
            return NULL;
        BOXPY_ENTER(job)
        rc = bx_future_wait(future, slice_ns);
        BOXPY_LEAVE(job)
        if (rc == 0 || bx_future_is_done(future))
            Py_RETURN_TRUE;
        if (rc != BX_E_TIMEOUT)
            return boxpy_fail(rc, bx_error_text());
        if (PyErr_CheckSignals() < 0)
            return NULL;
        left_ns -= left_ns == BX_FOREVER ? 0 : slice_ns;
    } while (left_ns > 0);
    Py_RETURN_FALSE;
}

static PyObject *future_done(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(is_over((struct boxpy_future *)self));
}

static PyObject *future_result(PyObject *self, PyObject *unused)
{
    struct boxpy_future *future = (struct boxpy_future *)self;
    int rc;

    (void)unused;
    if (future->job->is_forked)         /* the value's memory is the parent's */
        return boxpy_fail(BX_E_SHUTDOWN, "the future is of the process that this one was forked from");
    if (!is_over(future))
        return boxpy_lives(future->job) ? boxpy_fail(-EAGAIN, "the future is not done") : NULL;
    rc = bx_future_error(future->future);
    if (rc < 0)
        return boxpy_fail(rc, bx_future_error_text(future->future));
    return boxpy_unpack(future->job, bx_msg_reader(bx_future_value(future->future)));
}

static void is_done(struct bx_future *future, void *context)
{
    struct boxpy_item *item = context;

    (void)future;
    boxpy_push(((struct boxpy_future *)item->argument)->job, item);
}

static PyObject *future_on_done(PyObject *self, PyObject *args)
{
    PyObject *callable, *queue = NULL;
    struct boxpy_item *item;
    int rc;

    if (!PyArg_ParseTuple(args, "O|O!", &callable, &boxpy_queue_type, &queue) ||
        !boxpy_lives(((struct boxpy_future *)self)->job))
        return NULL;
    item = PyMem_RawCalloc(1, sizeof *item);
    if (item == NULL)
        return PyErr_NoMemory();
    Py_XINCREF(queue);
    Py_INCREF(callable);
    Py_INCREF(self);
    item->queue = (struct boxpy_queue *)queue;
    item->callable = callable;
    item->argument = self;
    rc = bx_future_on_done(((struct boxpy_future *)self)->future, is_done, item);
    if (rc == 0)
        Py_RETURN_NONE;
    boxpy_free_item(item);
    return boxpy_fail(rc, bx_error_text());
}

static PyObject *future_cancel(PyObject *self, PyObject *unused)
{
    struct boxpy_future *future = (struct boxpy_future *)self;

    (void)unused;
    return PyBool_FromLong(future->job->job != NULL && bx_future_cancel(future->future) == 0);
}

static PyObject *future_set(PyObject *self, PyObject *args)
{
    struct boxpy_future *future = (struct boxpy_future *)self;
    PyObject *payload, *buffers, *refs;
    struct bx_msg *msg;

    if (!PyArg_ParseTuple(args, "OO!O!", &payload, &PyList_Type, &buffers, &PyList_Type, &refs))
        return NULL;
    msg = boxpy_pack(future->job, payload, buffers, refs);
    return msg != NULL ? PyBool_FromLong(bx_future_set(future->future, msg) == 0) : NULL;
}

static PyMethodDef future_methods[] = {
    { "wait", future_wait, METH_VARARGS, "wait(timeout_ns) -> bool: whether the future is done." },
    { "done", future_done, METH_NOARGS, "done() -> bool" },
    { "result", future_result, METH_NOARGS, "result() -> (payload, buffers, refs) of a future that is done." },
    { "on_done", future_on_done, METH_VARARGS, "on_done(callable, queue=the job's): comes there when this is done." },
    { "cancel", future_cancel, METH_NOARGS, "cancel() -> bool: False: it was done." },
    { "set", future_set, METH_VARARGS, "set(payload, buffers, refs) -> bool: False: it was done." },
    { NULL, NULL, 0, NULL },
};

PyTypeObject boxpy_future_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "boxcar._boxcar.Future",
    .tp_doc = "Future(job): pending until set; calls make others.",
    .tp_basicsize = sizeof(struct boxpy_future),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = future_new,
    .tp_dealloc = future_dealloc,
    .tp_methods = future_methods,
};

/* ---- Calls ---------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Whether to try again: the call found no room (-EAGAIN), for which the main thread waits in slices that let Ctrl-C in.
 * The options began with no_wait. False: a Python error is set, or the code stands. */
static bool tries_again(struct boxpy_job *job, struct bx_call_options *options)
{
    struct timespec pause = { .tv_nsec = 200000 };
    uint64_t began_ns = now_ns(), passed_ns;

    if (!options->no_wait)
        return false;
    if (syscall(SYS_gettid) != getpid()) {      /* not the main thread, to which signals go */
        options->no_wait = false;
        return true;
    }
    Py_BEGIN_ALLOW_THREADS
    nanosleep(&pause, NULL);
    Py_END_ALLOW_THREADS
    if (PyErr_CheckSignals() < 0 || !boxpy_lives(job))
        return false;
    if (options->timeout_ns == 0)
        options->timeout_ns = job->call_timeout_ns;
    passed_ns = now_ns() - began_ns;
    if (options->timeout_ns == BX_FOREVER)
        return true;
    options->no_wait = options->timeout_ns > passed_ns;
    options->timeout_ns = options->no_wait ? options->timeout_ns - passed_ns : 1;   /* it fails as it would have */
    return true;
}

static _Thread_local bool is_detached;

PyObject *boxpy_detach(PyObject *self, PyObject *on)
{
    (void)self;
    is_detached = PyObject_IsTrue(on) == 1;
    Py_RETURN_NONE;
}

PyObject *boxpy_begin(struct boxpy_job *job, const char *to, struct bx_rref *rref, bool makes,
                      const struct boxpy_call *call)
{
    struct bx_call_options options = { .timeout_ns = call->timeout_ns, .no_wait = true,
                                       .flags = is_detached ? BX_CALL_DETACHED : 0 };
    struct bx_msg *args = boxpy_pack(job, call->payload, call->buffers, call->refs);
    struct bx_future *future = NULL;
    struct bx_rref *made = NULL;
    enum boxpy_kind kind = makes ? BOXPY_MAKE : rref != NULL ? BOXPY_OBJECT : BOXPY_CALL;
    char name[BX_NAME_MAX + 1];
    const char *function = call->name[0] != '\0' ? name : boxpy_kinds[kind];
    int rc;

    if (args == NULL)
        return NULL;
    boxpy_name(name, kind, call->name);
    for (;;) {
        BOXPY_ENTER(job)
        rc = makes          ? bx_remote(job->job, to, function, args, &options, &made)
             : rref != NULL ? bx_rref_async(rref, function, args, &options, &future)
                            : bx_rpc_async(job->job, to, function, args, &options, &future);
        BOXPY_LEAVE(job)
        if (rc == BX_E_NO_FUNCTION && function == name)         /* the callee has not given it the name yet */
            function = boxpy_kinds[kind];
        else if (rc != -EAGAIN || !tries_again(job, &options))
            break;
    }
    bx_msg_destroy(args);
    if (rc == 0)
        return makes ? boxpy_new_ref(job, made) : new_future(job, future);
    return PyErr_Occurred() ? NULL : boxpy_fail(rc, bx_error_text());
}

/* ---- References ----------------------------------------------------------------------------------------- */

PyObject *boxpy_new_ref(struct boxpy_job *job, struct bx_rref *rref)     /* takes the reference over */
{
    struct boxpy_ref *ref = PyObject_New(struct boxpy_ref, &boxpy_ref_type);

    if (ref == NULL) {
        bx_rref_release(rref);
        return NULL;
    }
    Py_INCREF(job);
    ref->job = job;
    ref->rref = rref;
    return (PyObject *)ref;
}

static void ref_dealloc(PyObject *self)
{
    struct boxpy_ref *ref = (struct boxpy_ref *)self;

    boxpy_release(ref->job, NULL, ref->rref);
    Py_DECREF(ref->job);
    PyObject_Free(self);
}

static PyObject *ref_call(PyObject *self, PyObject *args)
{
    struct boxpy_ref *ref = (struct boxpy_ref *)self;
    struct boxpy_call call;

    if (!PyArg_ParseTuple(args, BOXPY_CALL_FORMAT, BOXPY_CALL_ARGUMENTS(&call)))
        return NULL;
    return boxpy_begin(ref->job, NULL, ref->rref, false, &call);
}

static PyObject *ref_owner(PyObject *self, PyObject *unused)
{
    struct boxpy_ref *ref = (struct boxpy_ref *)self;

    (void)unused;
    return boxpy_lives(ref->job) ? PyLong_FromLong(bx_rref_owner(ref->rref)) : NULL;
}

static PyObject *ref_confirmed(PyObject *self, PyObject *unused)
{
    struct boxpy_ref *ref = (struct boxpy_ref *)self;

    (void)unused;
    return boxpy_lives(ref->job) ? PyBool_FromLong(bx_rref_is_confirmed(ref->rref)) : NULL;
}

static PyObject *ref_local(PyObject *self, PyObject *unused)
{
    struct boxpy_ref *ref = (struct boxpy_ref *)self;
    void *object = NULL;
    int rc;

    (void)unused;
    if (!boxpy_lives(ref->job))
        return NULL;
    rc = bx_rref_local(ref->rref, &boxpy_object_type, &object);
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    Py_INCREF(((struct boxpy_object *)object)->item.argument);
    return ((struct boxpy_object *)object)->item.argument;
}

static PyMethodDef ref_methods[] = {
    { "call", ref_call, METH_VARARGS, "call(payload, buffers, refs, timeout_ns) -> Future: of a call on the object." },
    { "owner", ref_owner, METH_NOARGS, "owner() -> int: the owner's rank." },
    { "confirmed", ref_confirmed, METH_NOARGS, "confirmed() -> bool" },
    { "local", ref_local, METH_NOARGS, "local() -> the object, for its owner." },
    { NULL, NULL, 0, NULL },
};

PyTypeObject boxpy_ref_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "boxcar._boxcar.Ref",
    .tp_doc = "A reference to an object of a worker.",
    .tp_basicsize = sizeof(struct boxpy_ref),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = ref_dealloc,
    .tp_methods = ref_methods,
};
