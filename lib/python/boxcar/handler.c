/* SPDX-License-Identifier: MIT */
/*
 * Requests that come, and what they make.
 */
#include "boxpy.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES 24                   /* of a function's name that inspectors show */

const char *const boxpy_kinds[] = { "py.call", "py.make", "py.object" };

/* ---- Objects -------------------------------------------------------------------------------------------- */

static void drop(void *context)         /* of an object: its last reference is gone */
{
    struct boxpy_object *object = context;

    boxpy_push(object->job, &object->item);
}

const struct bx_type boxpy_object_type = { .name = "python object", .destroy = drop };

/* ---- Handlers ------------------------------------------------------------------------------------------- */

/* What Python answers to a request; NULL: a Python error is set. */
static PyObject *dispatch(struct boxpy_job *job, enum boxpy_kind kind, const struct bx_request *request,
                          struct bx_reader *args)
{
    struct boxpy_object *object = bx_request_object(request);
    PyObject *message, *answer = NULL;

    if (!boxpy_lives(job))
        return NULL;
    message = boxpy_unpack(job, *args);
    if (message != NULL)
        answer = PyObject_CallFunction(job->dispatch, "iiOO", (int)kind, bx_request_caller(request), message,
                                       object != NULL ? object->item.argument : Py_None);
    Py_XDECREF(message);
    if (job->is_forked)                 /* the handler has forked, and this is the child: the request is the parent's */
        _exit(1);
    return answer;
}

/* The request fails with the text of the Python error. A job that is being destroyed runs what was queued. */
static int fail_request(const struct boxpy_job *job)
{
    PyObject *type, *value, *trace, *text;
    const char *said = NULL;
    int rc;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    text = value != NULL ? PyObject_Repr(value) : NULL;
    said = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    rc = bx_fail(job->job != NULL ? BX_E_HANDLER : BX_E_SHUTDOWN, "%s",
                 said != NULL ? said : "an exception that has no text");
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    return rc;
}

/* A future, which answers when it is done; or a message. */
static int answer_with(struct boxpy_job *job, PyObject *answer, struct bx_future **reply)
{
    PyObject *payload, *buffers, *refs;
    struct bx_msg *msg;

    if (PyObject_TypeCheck(answer, &boxpy_future_type)) {
        *reply = bx_future_acquire(((struct boxpy_future *)answer)->future);
        return 0;
    }
    if (!PyArg_ParseTuple(answer, "OO!O!", &payload, &PyList_Type, &buffers, &PyList_Type, &refs))
        return fail_request(job);
    msg = boxpy_pack(job, payload, buffers, refs);
    if (msg == NULL)
        return fail_request(job);
    *reply = bx_future_create(job->job);
    if (*reply == NULL) {
        int rc = bx_error_code();

        bx_msg_destroy(msg);
        return rc;
    }
    return bx_future_set(*reply, msg);
}

/* glibc's: at the end of this thread function(argument) is called, before the values of its keys are cleared. The
 * destructor of a key would come too late: Python finds the state of a thread by a key, and without that an object
 * whose end takes the GIL again (PyGILState_Ensure) waits for it forever. */
extern int __cxa_thread_atexit_impl(void (*function)(void *), void *argument, void *module);
extern void *__dso_handle;

static void detach(void *state)
{
    if (!Py_IsInitialized())
        return;
    PyEval_RestoreThread(state);
    PyThreadState_Clear(state);
    PyThreadState_DeleteCurrent();
}

/* Takes the GIL, on a thread of the pool, which keeps its thread state: to make one for each request takes 10 us. */
static PyGILState_STATE enter(void)
{
    static _Thread_local bool is_attached;

    if (!is_attached) {
        (void)PyGILState_Ensure();
        __cxa_thread_atexit_impl(detach, PyEval_SaveThread(), &__dso_handle);
        is_attached = true;
    }
    return PyGILState_Ensure();
}

static int answers(struct boxpy_job *job, enum boxpy_kind kind, const struct bx_request *request,
                   struct bx_reader *args, struct bx_future **reply)
{
    PyGILState_STATE state = enter();
    PyObject *answer = dispatch(job, kind, request, args);
    int rc = answer != NULL ? answer_with(job, answer, reply) : fail_request(job);

    Py_XDECREF(answer);
    PyGILState_Release(state);
    return rc;
}

static int call_comes(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    return answers(context, BOXPY_CALL, request, args, reply);
}

static int object_is_used(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply,
                          void *context)
{
    return answers(context, BOXPY_OBJECT, request, args, reply);
}

/* NULL: a Python error is set. Takes no reference to `what` over. */
struct boxpy_object *boxpy_new_object(struct boxpy_job *job, PyObject *what)
{
    struct boxpy_object *object = PyMem_RawMalloc(sizeof *object);

    if (object == NULL)
        return (struct boxpy_object *)PyErr_NoMemory();
    Py_INCREF(what);
    *object = (struct boxpy_object){ .item = { .argument = what }, .job = job };
    return object;
}

static int object_is_made(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    PyGILState_STATE state = enter();
    struct boxpy_job *job = context;
    PyObject *what = dispatch(job, BOXPY_MAKE, request, args);
    struct boxpy_object *object = what != NULL ? boxpy_new_object(job, what) : NULL;
    int rc = object != NULL ? bx_msg_put_object(job->job, reply, &boxpy_object_type, object) : fail_request(job);

    if (rc < 0 && object != NULL)
        boxpy_free_item(&object->item);
    Py_XDECREF(what);
    PyGILState_Release(state);
    return rc;
}

void boxpy_name(char out[BX_NAME_MAX + 1], enum boxpy_kind kind, const char *name)
{
    static const char *const before[] = { "", "new ", "." };

    char *end = stpcpy(out, before[kind]);

    strcpy(stpncpy(end, name, NAME_BYTES), "()");       /* for each call: printf takes 0.2 us */
}

int boxpy_register(struct boxpy_job *job, enum boxpy_kind kind, const char *name)
{
    if (kind == BOXPY_MAKE)
        return bx_register(job->job, name, BX_LOCKED, object_is_made, job);
    if (kind == BOXPY_OBJECT)
        return bx_register_method_async(job->job, &boxpy_object_type, name, BX_LOCKED, object_is_used, job);
    return bx_register_async(job->job, name, BX_LOCKED, call_comes, job);
}
