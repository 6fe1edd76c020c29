/* SPDX-License-Identifier: MIT */
/*
 * Queues of what must wait for the GIL. Any thread of the engine puts items in. The job's is emptied by a thread of
 * Python, which waits for more; that of an event loop when the loop finds its eventfd readable.
 */
#include "boxpy.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void boxpy_items_init(struct boxpy_items *items)
{
    pthread_mutex_init(&items->lock, NULL);
    pthread_cond_init(&items->more, NULL);
    items->first = NULL;
    items->last = &items->first;
}

void boxpy_items_stop(struct boxpy_items *items)
{
    pthread_mutex_lock(&items->lock);
    items->stops = true;
    pthread_cond_broadcast(&items->more);
    pthread_mutex_unlock(&items->lock);
}

static struct boxpy_item *take(struct boxpy_items *items, bool waits)
{
    struct boxpy_item *item;

    pthread_mutex_lock(&items->lock);
    while (items->first == NULL && waits && !items->stops)
        pthread_cond_wait(&items->more, &items->lock);
    item = items->first;
    if (item != NULL)
        items->first = item->next;
    if (items->first == NULL)
        items->last = &items->first;
    pthread_mutex_unlock(&items->lock);
    return item;
}

void boxpy_items_fini(struct boxpy_items *items)
{
    struct boxpy_item *item;

    while ((item = take(items, false)) != NULL)
        boxpy_free_item(item);
    pthread_cond_destroy(&items->more);
    pthread_mutex_destroy(&items->lock);
}

/* The eventfd is written under the lock: the item, and with it the queue, may be gone after that. */
void boxpy_push(struct boxpy_job *job, struct boxpy_item *item)
{
    struct boxpy_items *items = item->queue != NULL ? &item->queue->items : &job->items;
    const uint64_t one = 1;

    item->next = NULL;
    pthread_mutex_lock(&items->lock);
    *items->last = item;
    items->last = &item->next;
    pthread_cond_signal(&items->more);
    if (item->queue != NULL)
        (void)!write(item->queue->fd, &one, sizeof one);
    pthread_mutex_unlock(&items->lock);
}

void boxpy_free_item(struct boxpy_item *item)    /* with the GIL */
{
    Py_XDECREF(item->queue);
    Py_XDECREF(item->callable);
    Py_XDECREF(item->argument);
    PyMem_RawFree(item->line);
    PyMem_RawFree(item);                /* of an object: its first member */
}

PyObject *boxpy_next(struct boxpy_items *items, const struct boxpy_job *job, bool waits)
{
    struct boxpy_item *item;
    PyObject *work;

    for (;;) {
        Py_BEGIN_ALLOW_THREADS
        item = take(items, waits);
        Py_END_ALLOW_THREADS
        if (item == NULL)
            return NULL;
        if (item->callable != NULL || item->line != NULL)
            break;
        boxpy_free_item(item);
    }
    if (item->line != NULL)
        work = Py_BuildValue("(O(iN))", job->log, item->level,
                             PyUnicode_DecodeUTF8(item->line, (Py_ssize_t)strlen(item->line), "replace"));
    else
        work = Py_BuildValue("(OO)", item->callable, item->argument);
    boxpy_free_item(item);
    return work;
}

/* ---- The type ------------------------------------------------------------------------------------------- */

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct boxpy_queue *queue;
    int fd;

    (void)args, (void)keywords;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    queue = (struct boxpy_queue *)type->tp_alloc(type, 0);
    if (queue == NULL) {
        close(fd);
        return NULL;
    }
    boxpy_items_init(&queue->items);
    queue->fd = fd;
    return (PyObject *)queue;
}

static void queue_dealloc(PyObject *self)
{
    struct boxpy_queue *queue = (struct boxpy_queue *)self;

    boxpy_items_fini(&queue->items);
    close(queue->fd);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *queue_fileno(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(((struct boxpy_queue *)self)->fd);
}

/* The eventfd is read first: what comes later makes it readable again. */
static PyObject *queue_take(PyObject *self, PyObject *unused)
{
    struct boxpy_queue *queue = (struct boxpy_queue *)self;
    PyObject *all = PyList_New(0), *work = NULL;
    uint64_t count;

    (void)unused;
    if (read(queue->fd, &count, sizeof count) < 0 && errno != EAGAIN)
        PyErr_SetFromErrno(PyExc_OSError);
    while (all != NULL && !PyErr_Occurred() && (work = boxpy_next(&queue->items, NULL, false)) != NULL) {
        (void)PyList_Append(all, work);
        Py_DECREF(work);
    }
    if (PyErr_Occurred())
        Py_CLEAR(all);
    return all;
}

static PyMethodDef queue_methods[] = {
    { "fileno", queue_fileno, METH_NOARGS, "fileno() -> int: readable when take() returns something." },
    { "take", queue_take, METH_NOARGS, "take() -> [(callable, future), ...]: what has come." },
    { NULL, NULL, 0, NULL },
};

PyTypeObject boxpy_queue_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "boxcar._boxcar.Queue",
    .tp_doc = "Queue(): futures that are done, for an event loop.",
    .tp_basicsize = sizeof(struct boxpy_queue),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = queue_new,
    .tp_dealloc = queue_dealloc,
    .tp_methods = queue_methods,
};
