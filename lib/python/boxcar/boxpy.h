/* SPDX-License-Identifier: MIT */
/*
 * What the files of the extension share. _boxcar.c has the module and the job.
 *
 * A message is a pickle, buffers beside it (u8 tensors in the arena or on a GPU) and references; in Python a tuple
 * (payload, buffers, refs) of bytes, a list of memoryviews and Blocks, and a list of Ref. The engine has room for 128
 * functions: all of Python's are one ("py.call"), all that make an object for a reference one ("py.make"), all uses of
 * such an object one ("py.object"). Each passes its message to one callable, which the job was given. So that
 * inspectors show the names of Python, a callee registers the same handlers again by the name of each function that was
 * called, while there is room. A caller takes that name, or if the callee does not have it, the common one.
 *
 * Threads. Handlers run on the engine's pool and take the GIL there. No Python runs on a thread that makes progress:
 * callbacks, and objects whose last reference is gone, go into a queue, from which a thread of Python takes them
 * (Job.next). The GIL is released around each function of the engine that may wait; the engine holds no lock when it
 * calls this extension, so the others need not.
 *
 * Functions that return a pointer return NULL when a Python error is set.
 */
#ifndef BOXPY_H
#define BOXPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "boxcar.h"

#include <pthread.h>

/* What has to wait for the GIL: callable(argument), or without a callable the end of argument. */
struct boxpy_item {
    struct boxpy_item *next;
    struct boxpy_queue *queue;          /* that it goes into, with a reference; NULL: the job's */
    PyObject *callable;
    PyObject *argument;
    int level;                          /* of a line of the log: callable((level, line)) */
    char *line;                         /* allocated; NULL: it is none */
};

/* Of what has come: the job's for a thread of Python, which waits; others for event loops, by an eventfd. */
struct boxpy_items {
    pthread_mutex_t lock;               /* of what follows; nothing is called under it */
    pthread_cond_t more;
    struct boxpy_item *first, **last;
    bool stops;
};

struct boxpy_queue {
    PyObject_HEAD
    struct boxpy_items items;
    int fd;                             /* readable: there are some */
};

struct boxpy_job {
    PyObject_HEAD
    struct bx_job *job;                 /* NULL from destroy on */
    bool has_ended;                     /* destroy is over: its futures may be read again; with the GIL */
    int inside;                         /* threads of Python in functions of it that may wait; with the GIL */
    struct boxpy_late *late;            /* what was dropped while destroy ran; with the GIL */
    uint64_t call_timeout_ns;           /* of calls without one of their own */
    PyObject *dispatch;                 /* (kind, caller, message, object) of a request -> a message or a Future */
    PyObject *log;                      /* ((level, line)), or NULL */
    struct boxpy_items items;
    bool is_forked;                     /* in the child of a fork: nothing of the engine may be touched */
};

struct boxpy_ref {
    PyObject_HEAD
    struct boxpy_job *job;
    struct bx_rref *rref;
};

struct boxpy_future {
    PyObject_HEAD
    struct boxpy_job *job;
    struct bx_future *future;
};

struct boxpy_buffer {
    PyObject_HEAD
    PyObject *owner;                    /* whose memory it is; or NULL */
    struct bx_tensor *tensor;           /* a copy on write of what is lent; or NULL */
    struct bx_tensor *lent;             /* what a message lends in place of the memory; or NULL */
    unsigned char *data;
    Py_ssize_t bytes;
};

struct boxpy_block {
    PyObject_HEAD
    struct bx_tensor *tensor;           /* u8, one dimension */
};

struct boxpy_late {
    struct boxpy_late *next;
    struct bx_future *future;
    struct bx_rref *rref;
};

/* What a reference refers to. */
struct boxpy_object {
    struct boxpy_item item;             /* its argument is the object */
    struct boxpy_job *job;              /* borrowed: bx_job_destroy destroys every object */
};

/* Around a function of the engine that may wait; the job is not destroyed meanwhile. */
#define BOXPY_ENTER(job)                                                                            \
    (job)->inside++;                                                                                \
    Py_BEGIN_ALLOW_THREADS
#define BOXPY_LEAVE(job)                                                                            \
    Py_END_ALLOW_THREADS                                                                            \
    (job)->inside--;

extern PyTypeObject boxpy_job_type, boxpy_future_type, boxpy_ref_type, boxpy_buffer_type, boxpy_block_type,
    boxpy_queue_type;
extern const struct bx_type boxpy_object_type;

/* ---- message.c ------------------------------------------------------------------------------------------ */

extern PyObject *boxpy_make_error;      /* (code, name, text) -> an exception */
void *boxpy_fail(int code, const char *text);           /* sets the error of a code; returns NULL */
bool boxpy_lives(const struct boxpy_job *job);          /* else a Python error is set */
struct bx_msg *boxpy_pack(struct boxpy_job *job, PyObject *payload, PyObject *buffers, PyObject *refs);
PyObject *boxpy_unpack(struct boxpy_job *job, struct bx_reader in);
PyObject *boxpy_place(struct boxpy_job *job, PyObject *object); /* a buffer that messages lend: it, or a copy */

/* ---- buffer.c ------------------------------------------------------------------------------------------- */

PyObject *boxpy_new_view(struct bx_tensor *lent);       /* a writable memoryview of a borrowed tensor */
PyObject *boxpy_allocate(struct boxpy_job *job, Py_ssize_t bytes);      /* a Buffer in the arena */
/* What a message lends instead of a copy of this memory: a new reference; NULL: it has to be copied. Or a code. */
int boxpy_find_shared(const void *data, Py_ssize_t bytes, struct bx_tensor **tensor);
PyObject *boxpy_own_buffers(PyObject *self, PyObject *unused);     /* before a fork */
/* In the child of a fork, where other memory has the addresses of the parent's. */
PyObject *boxpy_forget_buffers(PyObject *self, PyObject *unused);

/* ---- gpu.c ---------------------------------------------------------------------------------------------- */

PyObject *boxpy_new_block(struct bx_tensor *tensor);    /* takes the reference over */
PyObject *boxpy_open_gpu(struct boxpy_job *job, int ordinal);
PyObject *boxpy_allocate_on(struct boxpy_job *job, int ordinal, Py_ssize_t bytes);      /* a Block of undefined bytes */

/* ---- handler.c ------------------------------------------------------------------------------------------ */

enum boxpy_kind { BOXPY_CALL, BOXPY_MAKE, BOXPY_OBJECT };   /* dispatch gets it */
extern const char *const boxpy_kinds[];                 /* the engine's function of each kind */
/* The name by which inspectors show a function: "add()", "new Counter()", ".add()". A C function has no such name. */
void boxpy_name(char out[BX_NAME_MAX + 1], enum boxpy_kind kind, const char *name);
int boxpy_register(struct boxpy_job *job, enum boxpy_kind kind, const char *name);
struct boxpy_object *boxpy_new_object(struct boxpy_job *job, PyObject *what);   /* with a reference of its own */

/* ---- queue.c -------------------------------------------------------------------------------------------- */

void boxpy_items_init(struct boxpy_items *items);       /* in the child of a fork too: no item is freed */
void boxpy_items_stop(struct boxpy_items *items);       /* none will come */
void boxpy_items_fini(struct boxpy_items *items);       /* frees those that are left */
void boxpy_push(struct boxpy_job *job, struct boxpy_item *item);        /* without the GIL, or with it */
/* What the next one is to do, a tuple (callable, argument); with `waits` waits for one, without the GIL. NULL: there is
 * none and, with `waits`, will be none; or a Python error is set. */
PyObject *boxpy_next(struct boxpy_items *items, const struct boxpy_job *job, bool waits);
void boxpy_free_item(struct boxpy_item *item);          /* an object is its item */

/* ---- future.c ------------------------------------------------------------------------------------------- */

/* Releases the future or the reference; if the job is being destroyed, when that is over. */
void boxpy_release(struct boxpy_job *job, struct bx_future *future, struct bx_rref *rref);

/* What each call is given: (payload, buffers, refs, timeout_ns, name). */
struct boxpy_call {
    PyObject *payload, *buffers, *refs;
    unsigned long long timeout_ns;
    const char *name;
};
#define BOXPY_CALL_FORMAT "OO!O!Ks"
#define BOXPY_CALL_ARGUMENTS(call) \
    &(call)->payload, &PyList_Type, &(call)->buffers, &PyList_Type, &(call)->refs, &(call)->timeout_ns, \
    &(call)->name

/* A call of a function of worker `to`, or if rref is not NULL on its object: a Future. With `makes` the function's
 * result stays there: a Ref. */
PyObject *boxpy_begin(struct boxpy_job *job, const char *to, struct bx_rref *rref, bool makes,
                      const struct boxpy_call *call);
PyObject *boxpy_detach(PyObject *self, PyObject *on);   /* this thread's calls are made for no request */
PyObject *boxpy_new_ref(struct boxpy_job *job, struct bx_rref *rref);           /* takes the reference over */

#endif
