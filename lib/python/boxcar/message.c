/* SPDX-License-Identifier: MIT */
/*
 * Errors and messages of the extension.
 */
#include "boxpy.h"

#include <errno.h>
#include <string.h>

#define LARGE 65536                     /* bytes that are copied without the GIL */

PyObject *boxpy_make_error;

/* ---- Errors --------------------------------------------------------------------------------------------- */

void *boxpy_fail(int code, const char *text)
{
    PyObject *error, *said;

    if (code == -ENOMEM)
        return PyErr_NoMemory();
    said = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");     /* the engine may have cut it */
    if (said == NULL)
        return NULL;
    error = PyObject_CallFunction(boxpy_make_error, "isN", code, bx_error_name(code), said);
    if (error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

bool boxpy_lives(const struct boxpy_job *job)
{
    if (job->job == NULL)
        (void)boxpy_fail(BX_E_SHUTDOWN, "the job has ended");
    return job->job != NULL;
}

/* ---- Messages ------------------------------------------------------------------------------------------- */

static void copy(struct boxpy_job *job, void *to, const void *from, size_t bytes)
{
    if (bytes < LARGE) {
        memcpy(to, from, bytes);
        return;
    }
    BOXPY_ENTER(job)
    memcpy(to, from, bytes);
    BOXPY_LEAVE(job)
}

/* False: a Python error is set, or the message has failed. */
static bool put_buffer(struct boxpy_job *job, struct bx_msg *msg, PyObject *object)
{
    struct bx_tensor *tensor = NULL;
    Py_buffer view;
    int rc;

    if (PyObject_TypeCheck(object, &boxpy_block_type)) {
        rc = bx_msg_put_tensor(msg, ((struct boxpy_block *)object)->tensor);
        return rc == 0 || boxpy_fail(rc, bx_error_text()) != NULL;
    }
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return false;
    rc = boxpy_find_shared(view.buf, view.len, &tensor);
    if (rc == 0 && tensor == NULL) {
        rc = bx_tensor_create(job->job, BX_U8, 1, (int64_t[]){ view.len }, &tensor);
        if (rc == 0)
            copy(job, bx_tensor_data_mut(tensor), view.buf, (size_t)view.len);
    }
    if (rc == 0)
        rc = bx_msg_put_tensor(msg, tensor);
    bx_tensor_release(tensor);
    PyBuffer_Release(&view);
    if (rc < 0)
        (void)boxpy_fail(rc, bx_error_text());
    return rc == 0;
}

PyObject *boxpy_place(struct boxpy_job *job, PyObject *object)
{
    struct bx_tensor *tensor = NULL;
    PyObject *placed = NULL;
    Py_buffer view;
    int rc;

    if (PyObject_TypeCheck(object, &boxpy_block_type)) {
        Py_INCREF(object);
        return object;
    }
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    rc = boxpy_find_shared(view.buf, view.len, &tensor);
    if (rc < 0) {
        (void)boxpy_fail(rc, bx_error_text());
    } else if (tensor != NULL) {
        Py_INCREF(object);
        placed = object;
    } else {
        placed = boxpy_allocate(job, view.len);
        if (placed != NULL)
            copy(job, ((struct boxpy_buffer *)placed)->data, view.buf, (size_t)view.len);
    }
    bx_tensor_release(tensor);
    PyBuffer_Release(&view);
    return placed;
}

static bool put_all(struct boxpy_job *job, struct bx_msg *msg, PyObject *payload, PyObject *buffers, PyObject *refs)
{
    Py_buffer view;
    int rc;

    if (PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE) < 0)
        return false;
    rc = bx_msg_put_bytes(msg, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_GET_SIZE(buffers); i++)
        if (!put_buffer(job, msg, PyList_GET_ITEM(buffers, i)))
            return false;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_GET_SIZE(refs); i++) {
        PyObject *ref = PyList_GET_ITEM(refs, i);

        if (!PyObject_TypeCheck(ref, &boxpy_ref_type)) {
            PyErr_SetString(PyExc_TypeError, "a message's references must be of type Ref");
            return false;
        }
        rc = bx_msg_put_rref(msg, ((struct boxpy_ref *)ref)->rref);
    }
    if (rc < 0)
        (void)boxpy_fail(rc, bx_error_text());
    return rc == 0;
}

/* NULL: a Python error is set. */
struct bx_msg *boxpy_pack(struct boxpy_job *job, PyObject *payload, PyObject *buffers, PyObject *refs)
{
    struct bx_msg *msg;

    if (!boxpy_lives(job))
        return NULL;
    msg = bx_msg_create(0);
    if (msg == NULL)
        return (struct bx_msg *)PyErr_NoMemory();
    if (put_all(job, msg, payload, buffers, refs))
        return msg;
    bx_msg_destroy(msg);
    return NULL;
}

static bool append(PyObject *list, PyObject *item)      /* takes item over; NULL: it could not be made */
{
    bool done = item != NULL && PyList_Append(list, item) == 0;

    Py_XDECREF(item);
    return done;
}

static PyObject *new_lent(struct bx_tensor *tensor)
{
    return bx_tensor_device(tensor).kind == BX_CPU ? boxpy_new_view(tensor)
                                                   : boxpy_new_block(bx_tensor_acquire(tensor));
}

/* (payload, buffers, refs); NULL: a Python error is set. */
PyObject *boxpy_unpack(struct boxpy_job *job, struct bx_reader in)
{
    size_t bytes = bx_reader_left(&in);
    const char *data = bx_read_bytes(&in, bytes);
    PyObject *payload = PyBytes_FromStringAndSize(bytes > 0 ? data : "", (Py_ssize_t)bytes);
    PyObject *buffers = PyList_New(0), *refs = PyList_New(0);
    bool good = payload != NULL && buffers != NULL && refs != NULL;

    while (good && bx_reader_tensors_left(&in) > 0)
        good = append(buffers, new_lent(bx_read_tensor(&in)));
    while (good && in.rref_count > 0)
        good = append(refs, boxpy_new_ref(job, bx_rref_acquire(bx_read_rref(&in))));
    if (good)
        return Py_BuildValue("(NNN)", payload, buffers, refs);
    Py_XDECREF(payload);
    Py_XDECREF(buffers);
    Py_XDECREF(refs);
    return NULL;
}
