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

    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return false;
    rc = bx_tensor_create(job->job, BX_U8, 1, (int64_t[]){ view.len }, &tensor);
    if (rc == 0) {
        copy(job, bx_tensor_data_mut(tensor), view.buf, (size_t)view.len);
        rc = bx_msg_put_tensor(msg, tensor);
        bx_tensor_release(tensor);
    }
    PyBuffer_Release(&view);
    if (rc < 0)
        (void)boxpy_fail(rc, bx_error_text());
    return rc == 0;
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

static PyObject *buffer_of(struct boxpy_job *job, struct bx_tensor *tensor)
{
    size_t bytes = bx_tensor_bytes(tensor);
    PyObject *buffer = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)bytes);

    if (buffer != NULL && bytes > 0)
        copy(job, PyByteArray_AS_STRING(buffer), bx_tensor_data(tensor), bytes);
    return buffer;
}

static bool append(PyObject *list, PyObject *item)      /* takes item over; NULL: it could not be made */
{
    bool done = item != NULL && PyList_Append(list, item) == 0;

    Py_XDECREF(item);
    return done;
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
        good = append(buffers, buffer_of(job, bx_read_tensor(&in)));
    for (struct bx_rref *rref; good && (rref = bx_read_rref(&in)) != NULL;)
        good = append(refs, boxpy_new_ref(job, bx_rref_acquire(rref)));
    if (good)
        return Py_BuildValue("(NNN)", payload, buffers, refs);
    Py_XDECREF(payload);
    Py_XDECREF(buffers);
    Py_XDECREF(refs);
    return NULL;
}

/* ---- Memory of Python objects --------------------------------------------------------------------------- */

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct boxpy_buffer *buffer;
    unsigned long long address;
    Py_ssize_t bytes;
    PyObject *owner;

    (void)keywords;
    if (!PyArg_ParseTuple(args, "OKn", &owner, &address, &bytes))
        return NULL;
    buffer = (struct boxpy_buffer *)type->tp_alloc(type, 0);
    if (buffer == NULL)
        return NULL;
    Py_INCREF(owner);
    buffer->owner = owner;
    buffer->data = (void *)(uintptr_t)address;
    buffer->bytes = bytes;
    return (PyObject *)buffer;
}

static void buffer_dealloc(PyObject *self)
{
    Py_XDECREF(((struct boxpy_buffer *)self)->owner);
    Py_TYPE(self)->tp_free(self);
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags)
{
    struct boxpy_buffer *buffer = (struct boxpy_buffer *)self;

    return PyBuffer_FillInfo(view, self, buffer->data, buffer->bytes, 0, flags);
}

static PyBufferProcs buffer_procs = { .bf_getbuffer = buffer_get };

PyTypeObject boxpy_buffer_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "boxcar._boxcar.Buffer",
    .tp_doc = "Buffer(owner, address, nbytes): memory that an object keeps, for those that want a buffer.",
    .tp_basicsize = sizeof(struct boxpy_buffer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = buffer_new,
    .tp_dealloc = buffer_dealloc,
    .tp_as_buffer = &buffer_procs,
};
