/* SPDX-License-Identifier: MIT */
/*
 * boxcar._boxcar: the engine for Python, without policy; __init__.py makes an interface of it. The job and the module.
 */
#include "boxpy.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* ---- The job -------------------------------------------------------------------------------------------- */

/* Any thread of the engine, which may hold the role: Python gets the line later. The callable's reference is the
 * job's, which outlives the queue. */
static void log_line(int level, const char *line, void *context)
{
    struct boxpy_job *job = context;
    struct boxpy_item *item = PyMem_RawCalloc(1, sizeof *item);
    size_t bytes = strlen(line) + 1;

    if (item != NULL)
        item->line = PyMem_RawMalloc(bytes);
    if (item == NULL || item->line == NULL) {
        PyMem_RawFree(item);            /* the line is lost */
        return;
    }
    memcpy(item->line, line, bytes);
    item->level = level;
    boxpy_push(job, item);
}

static const struct boxpy_job *logged;  /* whose log gets the lines: of the job that was made last. With the GIL */

static void forget_log(const struct boxpy_job *job)
{
    if (job != logged)
        return;
    logged = NULL;
    bx_set_log(NULL, NULL);
}

static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = { "dispatch", "job", "name", "rank", "world_size", "start_timeout_ns", "call_timeout_ns",
                             "pool_threads", "log", NULL };
    struct bx_options options = { 0 };
    unsigned long long start_ns = 0, call_ns = 0;
    PyObject *callable, *log = Py_None;
    struct boxpy_job *job;
    int rc;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|zziiKKiO", names, &callable, &options.job, &options.name,
                                     &options.rank, &options.world_size, &start_ns, &call_ns, &options.pool_threads,
                                     &log))
        return NULL;
    job = (struct boxpy_job *)type->tp_alloc(type, 0);
    if (job == NULL)
        return NULL;
    Py_INCREF(callable);
    job->dispatch = callable;
    boxpy_items_init(&job->items);
    if (log != Py_None) {
        Py_INCREF(log);
        job->log = log;
        logged = job;
        bx_set_log(log_line, job);
    }
    options.start_timeout_ns = start_ns;
    options.call_timeout_ns = call_ns;
    job->call_timeout_ns = call_ns != 0 ? call_ns : UINT64_C(60000000000);
    rc = bx_job_create(&options, &job->job);
    for (int kind = BOXPY_CALL; rc == 0 && kind <= BOXPY_OBJECT; kind++)
        rc = boxpy_register(job, (enum boxpy_kind)kind, boxpy_kinds[kind]);
    if (rc == 0)
        return (PyObject *)job;
    (void)boxpy_fail(rc, bx_error_text());
    forget_log(job);
    Py_DECREF(job);
    return NULL;
}

/* Threads that wait in the job come out first: no function of it may run while it is destroyed. */
static void end(struct boxpy_job *job)
{
    struct timespec pause = { .tv_nsec = 1000000 };
    struct boxpy_late *late;
    struct bx_job *engine;

    bx_job_interrupt(job->job, true);
    while (job->inside > 0 && job->job != NULL) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS
    }
    engine = job->job;
    if (engine == NULL)                 /* another thread ends it */
        return;
    job->job = NULL;
    Py_BEGIN_ALLOW_THREADS
    bx_job_destroy(engine);
    Py_END_ALLOW_THREADS
    forget_log(job);
    job->has_ended = true;
    while ((late = job->late) != NULL) {
        job->late = late->next;
        boxpy_release(job, late->future, late->rref);
        PyMem_RawFree(late);
    }
    boxpy_items_stop(&job->items);
}

static void job_dealloc(PyObject *self)
{
    struct boxpy_job *job = (struct boxpy_job *)self;

    end(job);
    boxpy_items_fini(&job->items);
    Py_DECREF(job->dispatch);
    Py_XDECREF(job->log);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *job_start(PyObject *self, PyObject *unused)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    int rc;

    (void)unused;
    if (!boxpy_lives(job))
        return NULL;
    BOXPY_ENTER(job)
    rc = bx_job_start(job->job);
    BOXPY_LEAVE(job)
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    Py_RETURN_NONE;
}

static PyObject *job_shutdown(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    unsigned long long timeout_ns;
    int rc;

    if (!PyArg_ParseTuple(args, "K", &timeout_ns) || !boxpy_lives(job))
        return NULL;
    BOXPY_ENTER(job)
    rc = bx_job_shutdown(job->job, timeout_ns);
    BOXPY_LEAVE(job)
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    Py_RETURN_NONE;
}

static PyObject *job_destroy(PyObject *self, PyObject *unused)
{
    (void)unused;
    end((struct boxpy_job *)self);
    Py_RETURN_NONE;
}

static PyObject *job_forget(PyObject *self, PyObject *unused)
{
    struct boxpy_job *job = (struct boxpy_job *)self;

    (void)unused;
    job->job = NULL;
    job->inside = 0;
    job->is_forked = true;
    forget_log(job);
    boxpy_items_init(&job->items);      /* threads that are not here may have held the lock */
    Py_RETURN_NONE;
}

static PyObject *job_interrupt(PyObject *self, PyObject *on)
{
    int is_on = PyObject_IsTrue(on);

    if (is_on < 0)
        return NULL;
    bx_job_interrupt(((struct boxpy_job *)self)->job, is_on == 1);
    Py_RETURN_NONE;
}

static PyObject *begin(PyObject *self, PyObject *args, bool makes)
{
    struct boxpy_call call;
    const char *to;

    if (!PyArg_ParseTuple(args, "s" BOXPY_CALL_FORMAT, &to, BOXPY_CALL_ARGUMENTS(&call)))
        return NULL;
    return boxpy_begin((struct boxpy_job *)self, to, NULL, makes, &call);
}

static PyObject *job_call(PyObject *self, PyObject *args)
{
    return begin(self, args, false);
}

static PyObject *job_remote(PyObject *self, PyObject *args)
{
    return begin(self, args, true);
}

static PyObject *job_ref(PyObject *self, PyObject *what)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    struct bx_rref *made = NULL;
    struct boxpy_object *object;
    int rc;

    if (!boxpy_lives(job) || (object = boxpy_new_object(job, what)) == NULL)
        return NULL;
    rc = bx_rref_create(job->job, &boxpy_object_type, object, &made);
    if (rc == 0)
        return boxpy_new_ref(job, made);
    boxpy_free_item(&object->item);
    return boxpy_fail(rc, bx_error_text());
}

/* For the thread that Python lends: runs what came into the queue. */
static PyObject *job_next(PyObject *self, PyObject *unused)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    PyObject *work = boxpy_next(&job->items, job, true);

    (void)unused;
    if (work == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return work;
}

static PyObject *job_rank_of(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    const char *name;
    int rc;

    if (!PyArg_ParseTuple(args, "s", &name) || !boxpy_lives(job))
        return NULL;
    rc = bx_worker_rank(job->job, name);
    return rc >= 0 ? PyLong_FromLong(rc) : boxpy_fail(rc, bx_error_text());
}

static PyObject *job_name_of(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    const char *name;
    int rank;

    if (!PyArg_ParseTuple(args, "i", &rank) || !boxpy_lives(job))
        return NULL;
    name = bx_worker_name(job->job, rank);
    return name != NULL ? PyUnicode_FromString(name) : boxpy_fail(-EINVAL, "no worker has that rank");
}

static PyObject *job_is_alive(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    int rank;

    if (!PyArg_ParseTuple(args, "i", &rank) || !boxpy_lives(job))
        return NULL;
    return PyBool_FromLong(bx_worker_is_alive(job->job, rank));
}

/* It may have no more room, or a function of another module may have the name: then it is shown by that, or by its
 * kind. */
static PyObject *job_register(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    char shown[BX_NAME_MAX + 1];
    const char *name;
    int kind;

    if (!PyArg_ParseTuple(args, "is", &kind, &name) || !boxpy_lives(job))
        return NULL;
    boxpy_name(shown, (enum boxpy_kind)kind, name);
    return PyLong_FromLong(boxpy_register(job, (enum boxpy_kind)kind, shown));
}

static PyObject *job_counter(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    const char *name;
    uint64_t value = 0;
    int rc;

    if (!PyArg_ParseTuple(args, "s", &name) || !boxpy_lives(job))
        return NULL;
    rc = bx_counter(job->job, name, &value);
    return rc == 0 ? PyLong_FromUnsignedLongLong(value) : boxpy_fail(rc, bx_error_text());
}

static PyObject *job_loans(PyObject *self, PyObject *args)
{
    struct boxpy_job *job = (struct boxpy_job *)self;
    struct bx_loans loans = { 0 };
    int rank, rc;

    if (!PyArg_ParseTuple(args, "i", &rank) || !boxpy_lives(job))
        return NULL;
    rc = bx_job_loans(job->job, rank, &loans);
    if (rc < 0)
        return boxpy_fail(rc, bx_error_text());
    return Py_BuildValue("(KKdKKKK)", loans.leases, loans.bytes, (double)loans.oldest_ns / 1e9, loans.granted,
                         loans.returned, loans.taken_back, loans.borrowed);
}

static PyObject *job_world(PyObject *self, PyObject *unused)
{
    struct boxpy_job *job = (struct boxpy_job *)self;

    (void)unused;
    if (!boxpy_lives(job))
        return NULL;
    return Py_BuildValue("(ii)", bx_job_rank(job->job), bx_job_world_size(job->job));
}

static PyObject *job_allocate(PyObject *self, PyObject *args)
{
    Py_ssize_t bytes;

    if (!PyArg_ParseTuple(args, "n", &bytes) || !boxpy_lives((struct boxpy_job *)self))
        return NULL;
    return boxpy_allocate((struct boxpy_job *)self, bytes);
}

static PyObject *job_place(PyObject *self, PyObject *object)
{
    return boxpy_lives((struct boxpy_job *)self) ? boxpy_place((struct boxpy_job *)self, object) : NULL;
}

static PyObject *job_open_gpu(PyObject *self, PyObject *args)
{
    int ordinal;

    if (!PyArg_ParseTuple(args, "i", &ordinal) || !boxpy_lives((struct boxpy_job *)self))
        return NULL;
    return boxpy_open_gpu((struct boxpy_job *)self, ordinal);
}

static PyObject *job_allocate_on(PyObject *self, PyObject *args)
{
    Py_ssize_t bytes;
    int ordinal;

    if (!PyArg_ParseTuple(args, "in", &ordinal, &bytes) || !boxpy_lives((struct boxpy_job *)self))
        return NULL;
    return boxpy_allocate_on((struct boxpy_job *)self, ordinal, bytes);
}

static PyMethodDef job_methods[] = {
    { "start", job_start, METH_NOARGS, "start(): returns when every worker is there." },
    { "shutdown", job_shutdown, METH_VARARGS, "shutdown(timeout_ns): leaves together with the others." },
    { "destroy", job_destroy, METH_NOARGS, "destroy(): leaves, and ends Job.next." },
    { "forget", job_forget, METH_NOARGS, "forget(): in the child of a fork, which must not touch the job." },
    { "interrupt", job_interrupt, METH_O, "interrupt(on): ends waits." },
    { "call", job_call, METH_VARARGS, "call(to, payload, buffers, refs, timeout_ns, name) -> Future" },
    { "remote", job_remote, METH_VARARGS, "remote(to, payload, buffers, refs, timeout_ns, name) -> Ref" },
    { "ref", job_ref, METH_O, "ref(object) -> Ref: to an object of this worker." },
    { "allocate", job_allocate, METH_VARARGS, "allocate(nbytes) -> Buffer: memory of the arena, undefined." },
    { "place", job_place, METH_O, "place(buffer) -> a buffer that messages lend: itself, or a copy in the arena." },
    { "open_gpu", job_open_gpu, METH_VARARGS, "open_gpu(ordinal): blocks for up to seconds, the first time." },
    { "allocate_on", job_allocate_on, METH_VARARGS, "allocate_on(ordinal, nbytes) -> Block: undefined bytes there." },
    { "next", job_next, METH_NOARGS, "next() -> (callable, future), or None when the job has ended. Waits." },
    { "world", job_world, METH_NOARGS, "world() -> (rank, world_size)" },
    { "rank_of", job_rank_of, METH_VARARGS, "rank_of(name) -> int" },
    { "name_of", job_name_of, METH_VARARGS, "name_of(rank) -> str" },
    { "is_alive", job_is_alive, METH_VARARGS, "is_alive(rank) -> bool" },
    { "register", job_register, METH_VARARGS, "register(kind, name) -> int: 0, or why it has no name." },
    { "loans", job_loans, METH_VARARGS, "loans(rank) -> (leases, bytes, oldest_s, and so on); rank -1: all." },
    { "counter", job_counter, METH_VARARGS, "counter(name) -> int" },
    { NULL, NULL, 0, NULL },
};

PyTypeObject boxpy_job_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "boxcar._boxcar.Job",
    .tp_doc = "Job(dispatch, job, name, rank, world_size, start_timeout_ns, call_timeout_ns, pool_threads, log)",
    .tp_basicsize = sizeof(struct boxpy_job),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = job_new,
    .tp_dealloc = job_dealloc,
    .tp_methods = job_methods,
};

/* ---- The module ----------------------------------------------------------------------------------------- */

static PyObject *set_make_error(PyObject *self, PyObject *callable)
{
    PyObject *before = boxpy_make_error;

    (void)self;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {    /* the classes of errors are one interpreter's */
        PyErr_SetString(PyExc_ImportError, "boxcar is for the main interpreter");
        return NULL;
    }
    Py_INCREF(callable);
    boxpy_make_error = callable;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    { "own_buffers", boxpy_own_buffers, METH_NOARGS, "own_buffers(): before a fork; the list of those in the arena." },
    { "forget_buffers", boxpy_forget_buffers, METH_NOARGS, "forget_buffers(): in the child of a fork." },
    { "set_make_error", set_make_error, METH_O, "set_make_error(callable): (code, name, text) -> an exception." },
    { "detach", boxpy_detach, METH_O, "detach(on): calls of this thread are made for no request." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "boxcar._boxcar",
    .m_doc = "The engine, without policy.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__boxcar(void);

PyMODINIT_FUNC PyInit__boxcar(void)
{
    PyTypeObject *const types[] = { &boxpy_job_type, &boxpy_future_type, &boxpy_ref_type, &boxpy_buffer_type,
                                    &boxpy_block_type, &boxpy_queue_type };
    PyObject *made = PyModule_Create(&module);
    int rc = made != NULL ? PyModule_AddStringConstant(made, "version", bx_version()) : -1;

    for (size_t i = 0; rc == 0 && i < sizeof types / sizeof types[0]; i++)
        rc = PyModule_AddType(made, types[i]);
    if (rc < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
