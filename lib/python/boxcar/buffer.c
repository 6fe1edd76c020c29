/* SPDX-License-Identifier: MIT */
/*
 * Memory of tensors as buffers of Python: of the job's arena, of other workers, and of objects that have an address.
 *
 * What another worker sent is a copy on write (bx_tensor_copy_on_write), so Python may write to it. A tree of these
 * copies and of the arena's memory: by it an address is recognised in which a message may lend instead of copy, the
 * arena's, and copies on write of which no page has been written. With the GIL.
 *
 * Forks. The child has the copies on write as they were, but not the loans: so the parent makes their pages its own
 * before it forks, as if they had been written. The child has the arena's memory copy on write, and the parent keeps
 * that for it (own_buffers returns it): multiprocessing drops what it has given to a child.
 */
#include "boxpy.h"

#include <search.h>
#include <unistd.h>

static void *ranges;

/* Of two ranges; 0: they overlap. */
static int compare(const void *left, const void *right)
{
    const struct boxpy_buffer *a = left, *b = right;

    return (a->data >= b->data + b->bytes) - (b->data >= a->data + a->bytes);
}

/* Takes the references over. NULL: a Python error is set. */
static PyObject *new_buffer(PyObject *owner, struct bx_tensor *tensor, struct bx_tensor *lent, void *data,
                            Py_ssize_t bytes)
{
    struct boxpy_buffer *buffer = PyObject_New(struct boxpy_buffer, &boxpy_buffer_type);

    if (buffer == NULL) {
        Py_XDECREF(owner);
        bx_tensor_release(tensor);
        bx_tensor_release(lent);
        return NULL;
    }
    buffer->owner = owner;
    buffer->tensor = tensor;
    buffer->lent = lent;
    buffer->data = data;
    buffer->bytes = bytes;
    if (owner != NULL || bytes == 0 || tsearch(buffer, &ranges, compare) != NULL)
        return (PyObject *)buffer;
    Py_DECREF(buffer);
    return PyErr_NoMemory();
}

static void buffer_dealloc(PyObject *self)
{
    struct boxpy_buffer *buffer = (struct boxpy_buffer *)self;
    struct boxpy_buffer *const *found = tfind(buffer, &ranges, compare);

    if (found != NULL && *found == buffer)      /* not after a fork, nor another one's at its address */
        tdelete(buffer, &ranges, compare);
    bx_tensor_release(buffer->tensor);
    bx_tensor_release(buffer->lent);
    Py_XDECREF(buffer->owner);
    PyObject_Free(self);
}

PyObject *boxpy_new_view(struct bx_tensor *lent)
{
    struct bx_tensor *copy = NULL;
    PyObject *buffer, *view;
    int rc;

    Py_BEGIN_ALLOW_THREADS
    rc = bx_tensor_copy_on_write(lent, &copy);
    Py_END_ALLOW_THREADS
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    buffer = new_buffer(NULL, copy, rc == 1 ? bx_tensor_acquire(lent) : NULL, bx_tensor_data_mut(copy),
                        (Py_ssize_t)bx_tensor_bytes(copy));
    view = buffer != NULL ? PyMemoryView_FromObject(buffer) : NULL;
    Py_XDECREF(buffer);
    return view;
}

PyObject *boxpy_allocate(struct boxpy_job *job, Py_ssize_t bytes)
{
    struct bx_tensor *tensor = NULL;
    int rc = bx_tensor_create(job->job, BX_U8, 1, (int64_t[]){ bytes }, &tensor);

    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    return new_buffer(NULL, NULL, tensor, bx_tensor_data_mut(tensor), bytes);
}

int boxpy_find_shared(const void *data, Py_ssize_t bytes, struct bx_tensor **tensor)
{
    const struct boxpy_buffer range = { .data = (unsigned char *)data, .bytes = bytes };
    struct boxpy_buffer *const *found = tfind(&range, &ranges, compare);
    const struct boxpy_buffer *buffer;

    *tensor = NULL;
    if (found == NULL)
        return 0;
    buffer = *found;
    if (buffer->lent == NULL || range.data < buffer->data || bytes > buffer->data + buffer->bytes - range.data)
        return 0;
    if (buffer->tensor != NULL &&
        bx_tensor_is_written(buffer->tensor, (size_t)(range.data - buffer->data), (size_t)bytes))
        return 0;
    return bx_tensor_as_strided(buffer->lent, range.data - buffer->data, 1, (int64_t[]){ bytes }, NULL, tensor);
}

static void own_pages(const struct boxpy_buffer *buffer)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *end = buffer->data + buffer->bytes;

    for (unsigned char *at = buffer->data; at < end; at += page - (uintptr_t)at % page) {
        unsigned char byte = *at;

        /* Relaxed: a write that changes nothing, and loses none that another thread does meanwhile. */
        __atomic_compare_exchange_n(at, &byte, byte, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

/* Of a node of the tree; list: of what lies in the arena. */
static void own_node(const void *node, VISIT visit, void *list)
{
    struct boxpy_buffer *buffer = *(struct boxpy_buffer *const *)node;

    if (visit != preorder && visit != leaf)
        return;
    if (buffer->tensor != NULL)
        own_pages(buffer);
    else if (PyList_Append(list, (PyObject *)buffer) < 0)
        PyErr_Clear();
}

PyObject *boxpy_own_buffers(PyObject *self, PyObject *unused)
{
    PyObject *list = PyList_New(0);

    (void)self, (void)unused;
    if (list != NULL)
        twalk_r(ranges, own_node, list);
    return list;
}

PyObject *boxpy_forget_buffers(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    ranges = NULL;                      /* its nodes stay: the child has no more than these */
    Py_RETURN_NONE;
}

/* ---- The type ------------------------------------------------------------------------------------------- */

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    unsigned long long address;
    Py_ssize_t bytes;
    PyObject *owner;

    (void)type, (void)keywords;
    if (!PyArg_ParseTuple(args, "OKn", &owner, &address, &bytes))
        return NULL;
    Py_INCREF(owner);
    return new_buffer(owner, NULL, NULL, (void *)(uintptr_t)address, bytes);
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
    .tp_doc = "Buffer(owner, address, nbytes): memory that an object keeps.",
    .tp_basicsize = sizeof(struct boxpy_buffer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = buffer_new,
    .tp_dealloc = buffer_dealloc,
    .tp_as_buffer = &buffer_procs,
};
