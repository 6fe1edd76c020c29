/* SPDX-License-Identifier: MIT */
/*
 * Memory of GPUs: blocks of bytes that messages lend and other libraries read and write through DLPack. The engine
 * orders the streams of both workers; no thread waits for a GPU here.
 */
#include "boxpy.h"

#include <assert.h>

/* As it lies in memory (DLPack 0.6). boxcar.h names it only. */
struct DLManagedTensor {
    unsigned char tensor[48];
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};
static_assert(sizeof(struct DLManagedTensor) == 64, "as DLPack has it");

static const char capsule_name[] = "dltensor";  /* whoever takes the struct over gives the capsule another one */

PyObject *boxpy_new_block(struct bx_tensor *tensor)
{
    struct boxpy_block *block = PyObject_New(struct boxpy_block, &boxpy_block_type);

    if (block == NULL)
        bx_tensor_release(tensor);
    else
        block->tensor = tensor;
    return (PyObject *)block;
}

PyObject *boxpy_open_gpu(struct boxpy_job *job, int ordinal)
{
    int rc;

    BOXPY_ENTER(job)
    rc = bx_gpu_open(job->job, ordinal, NULL);
    BOXPY_LEAVE(job)
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    Py_RETURN_NONE;
}

PyObject *boxpy_allocate_on(struct boxpy_job *job, int ordinal, Py_ssize_t bytes)
{
    const struct bx_device device = { .kind = BX_CUDA, .index = ordinal };
    struct bx_tensor *tensor = NULL;
    int rc;

    BOXPY_ENTER(job)
    rc = bx_tensor_create_on(job->job, device, BX_U8, 1, (int64_t[]){ bytes }, &tensor);
    BOXPY_LEAVE(job)
    return rc < 0 ? boxpy_fail(rc, bx_error_text()) : boxpy_new_block(tensor);
}

static void block_dealloc(PyObject *self)
{
    bx_tensor_release(((struct boxpy_block *)self)->tensor);
    PyObject_Free(self);
}

static void end_capsule(PyObject *capsule)
{
    struct DLManagedTensor *managed = PyCapsule_IsValid(capsule, capsule_name)
        ? PyCapsule_GetPointer(capsule, capsule_name) : NULL;

    if (managed != NULL)
        managed->deleter(managed);
}

/* Other arguments of the protocol, like max_version, may be ignored: the struct is the oldest one. */
static PyObject *block_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    PyObject *stream = keywords != NULL ? PyDict_GetItemString(keywords, "stream") : NULL, *capsule;
    long long number = stream != NULL && stream != Py_None ? PyLong_AsLongLong(stream) : 1;
    struct DLManagedTensor *managed = NULL;
    int rc;

    if (!PyArg_ParseTuple(args, "") || PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    rc = bx_tensor_to_dlpack(((struct boxpy_block *)self)->tensor, number, &managed);
    Py_END_ALLOW_THREADS
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    capsule = PyCapsule_New(managed, capsule_name, end_capsule);
    if (capsule == NULL)
        managed->deleter(managed);
    return capsule;
}

static PyObject *block_dlpack_device(PyObject *self, PyObject *unused)
{
    struct bx_device device = bx_tensor_device(((struct boxpy_block *)self)->tensor);

    (void)unused;
    return Py_BuildValue("(ii)", (int)device.kind, device.index);
}

static PyObject *block_written_on(PyObject *self, PyObject *args)
{
    unsigned long long stream;
    int rc;

    if (!PyArg_ParseTuple(args, "K", &stream))
        return NULL;
    rc = bx_tensor_written_on(((struct boxpy_block *)self)->tensor, (void *)(uintptr_t)stream);
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    Py_RETURN_NONE;
}

static PyMethodDef block_methods[] = {
    { "__dlpack__", (PyCFunction)(void (*)(void))block_dlpack, METH_VARARGS | METH_KEYWORDS,
      "__dlpack__(*, stream=None, ...) -> a capsule; work on the stream waits until the bytes are written." },
    { "__dlpack_device__", block_dlpack_device, METH_NOARGS, "__dlpack_device__() -> (2, index)" },
    { "written_on", block_written_on, METH_VARARGS, "written_on(stream): the work on that CUstream writes the bytes." },
    { NULL, NULL, 0, NULL },
};

PyTypeObject boxpy_block_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "boxcar._boxcar.Block",
    .tp_doc = "Bytes in the memory of a GPU: the job's, or on loan from another worker.",
    .tp_basicsize = sizeof(struct boxpy_block),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = block_dealloc,
    .tp_methods = block_methods,
};
