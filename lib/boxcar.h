/* SPDX-License-Identifier: MIT */
/*
 * boxcar.h - workers on one host call each other's functions through shared memory.
 *
 *     static int add(const struct bx_request *request, struct bx_reader *args,
 *                    struct bx_msg *reply, void *context)
 *     {
 *         return bx_msg_put_i64(reply, bx_read_i64(args) + bx_read_i64(args));
 *     }
 *     ...
 *     struct bx_job *job = NULL;
 *     int rc = bx_job_create(&(struct bx_options){ 0 }, &job);   // BX_JOB, BX_RANK, BX_WORLD_SIZE, BX_NAME
 *     rc = bx_register(job, "add", BX_INLINE, add, NULL);
 *     rc = bx_job_start(job);                                    // returns when every worker is there
 *     rc = bx_rpc_sync(job, "worker1", "add", args, NULL, &reply);
 *     rc = bx_job_shutdown(job, 0);                              // all leave together
 *     bx_job_destroy(job);
 *
 * Errors.   Every function that returns int returns 0 or a count, else a negative code: -errno or one
 *           of BX_ERRORS. Outputs are set on success only. bx_error_text() is a sentence about the last
 *           failure in the calling thread; a failed future keeps its own. The library never exits,
 *           aborts or prints; what it has to say without being asked goes to the log hook. One exception:
 *           a line on stderr where BX_TRACE is set and no trace can be written (bx_job_create).
 * NULL.     Where a function does not say that it may be NULL, a job, an object, an output, a name or a function is
 *           refused: -EINVAL with a sentence, NULL where a pointer is returned, false, 0 or "" where that is; what
 *           returns nothing does nothing.
 * Threads.  A job, a future and a counter may be used from any thread. A message and a reader belong to
 *           one thread at a time. A thread that waits (bx_rpc_sync, bx_future_wait) or asks
 *           (bx_future_done) makes progress: inline and async handlers, batch bodies and callbacks may
 *           run on it meanwhile, so hold no lock that they take.
 *           A thread may leave (pthread_exit) in a handler, a batch body or a callback: what it was answering
 *           fails with BX_E_HANDLER, the worker goes on, and the thread ends when it is out of the library;
 *           one of the library's own is replaced. Not in a bx_free_fn or in the log hook. Cancellation is
 *           held off inside the library: a thread that is cancelled in bx_rpc_sync ends after it has
 *           returned; in a handler or a callback it may be cancelled where the program's code has a
 *           cancellation point, as if it left there. The library's threads, which run blocking handlers too,
 *           have it disabled. Asynchronous cancelability is not supported.
 * Lifetime. What a function returns through an output is owned by the caller unless it says otherwise.
 * Death.    A worker that dies fails every future that waits for it with BX_E_PEER_DEAD and its name,
 *           within milliseconds; the others go on.
 * Fork.     Workers are forked before bx_job_create. After a fork the child gets BX_E_FORKED (NULL, false) from
 *           every call on the job and on its pending futures, and must not touch them in any other way.
 * Versions. Option structs carry their size in struct_bytes, 0 meaning "as this header has it"; every
 *           other field left at 0 means the default. Fields that the library does not know, because the header is
 *           newer, are refused with BX_E_VERSION unless they are 0.
 */
#ifndef BOXCAR_H
#define BOXCAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BX_VERSION_MAJOR 0
#define BX_VERSION_MINOR 1
#define BX_VERSION_PATCH 0

#define BX_WORLD_MIN 2
#define BX_WORLD_MAX 128
#define BX_NAME_MAX 31      /* bytes of a worker's, job's or function's name, without the terminator */
#define BX_MSG_MAX (UINT64_C(1) << 30)  /* bytes of a message, tensors not counted; more is BX_E_TOO_LARGE */
#define BX_TENSORS_MAX 1048576          /* tensors of a message; more is BX_E_TOO_LARGE */
#define BX_DIMS_MAX 8       /* dimensions of a tensor */
#define BX_LEASES_MAX 1024  /* messages with tensors that one worker may hold of another at a time */
#define BX_FOREVER UINT64_MAX

#if defined(__GNUC__)
#define BX_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define BX_PRINTF(text, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)    /* the library is built with hidden visibility */
#endif

struct bx_future;

/* ---- Errors ------------------------------------------------------------------------------------ */

/* One list makes the codes and their texts (bx_strerror). */
#define BX_ERRORS(X)                                                                                \
    X(BX_E_PEER_DEAD, -10001, "the worker called has died")                                         \
    X(BX_E_CORRUPT, -10002, "the peer's shared memory holds nonsense, it was cut off")              \
    X(BX_E_TOO_LARGE, -10003, "the message is too large")                                           \
    X(BX_E_WOULD_DEADLOCK, -10004, "waiting here would stop the thread that completes the wait")    \
    X(BX_E_BUSY, -10005, "every thread of the callee's pool is blocked in a wait")                  \
    X(BX_E_NO_FUNCTION, -10006, "the worker has no function of that name")                          \
    X(BX_E_NO_WORKER, -10007, "the job has no worker of that name")                                 \
    X(BX_E_TIMEOUT, -10008, "the deadline passed")                                                  \
    X(BX_E_CANCELLED, -10009, "the call was cancelled")                                             \
    X(BX_E_SHORT_MESSAGE, -10010, "a message was read past its end")                                \
    X(BX_E_NAME_TAKEN, -10011, "the name is taken")                                                 \
    X(BX_E_RANK_TAKEN, -10012, "the rank is taken")                                                 \
    X(BX_E_RANK_MISSING, -10013, "a rank did not come in time")                                     \
    X(BX_E_WORLD_SIZE, -10014, "the world size is wrong")                                           \
    X(BX_E_VERSION, -10015, "the peer speaks another version")                                      \
    X(BX_E_FORKED, -10016, "the process was forked after the job was created")                      \
    X(BX_E_SHUTDOWN, -10017, "the job or the worker is shutting down")                              \
    X(BX_E_REFUSED, -10018, "the callee could not open its reply ring")                             \
    X(BX_E_NO_SPACE, -10019, "/dev/shm is full")                                                    \
    X(BX_E_DESCRIPTORS, -10020, "the limit of open files is too low")                               \
    X(BX_E_SOCKET_DIR, -10021, "the socket directory cannot be used")                               \
    X(BX_E_JOB_RUNNING, -10022, "a job of that name is running")                                    \
    X(BX_E_WORKER_FAILED, -10023, "a worker ended badly")                                           \
    X(BX_E_INTERRUPTED, -10024, "a signal asked the job to end")                                    \
    X(BX_E_STATE, -10025, "the call does not fit the job's state")                                  \
    X(BX_E_HANDLER, -10026, "the handler failed")                                                   \
    X(BX_E_ABANDONED, -10027, "the future was released before anybody completed it")                \
    X(BX_E_URING, -10028, "io_uring was asked for and is not to be had")                            \
    X(BX_E_ON_LOAN, -10029, "as much is on loan to other workers as may be")                        \
    X(BX_E_ARENA_FULL, -10030, "the worker's arena is full")

enum bx_error {
#define BX_ERROR_ENUM(name, value, text) name = value,
    BX_ERRORS(BX_ERROR_ENUM)
#undef BX_ERROR_ENUM
};

/* The version of the library that runs, "0.1.0". Never NULL. */
const char *bx_version(void);

/* A code's general text ("the deadline passed"), for -errno and BX_E_*. Never NULL; static or
 * thread-local storage. */
const char *bx_strerror(int code);

/* The name of a code, "BX_E_TIMEOUT"; "-EAGAIN" and the like for errno. Never NULL. */
const char *bx_error_name(int code);

/* A sentence on the last failure in this thread, with names and numbers; "" if there was none. It stays
 * until the next bx_ call of this thread that fails, whatever handlers and callbacks that thread runs meanwhile:
 * those have a sentence of their own. */
const char *bx_error_text(void);

/* Sets this thread's sentence and returns code: the way a handler fails with a text of its own,
 * `return bx_fail(-EINVAL, "row %d has no state", row);`. */
int bx_fail(int code, const char *format, ...) BX_PRINTF(2, 3);

/* Where the library says what nobody asked for (a peer's death, a wake-up rescued). level is 0 for an
 * error, 1 a warning, 2 information. NULL, the default, is silence. Set it before bx_job_create; the
 * hook runs on any thread of the library and must not call bx_ functions that wait. */
typedef void (*bx_log_fn)(int level, const char *text, void *context);
void bx_set_log(bx_log_fn log, void *context);

/* ---- Tensors ----------------------------------------------------------------------------------- */

/*
 * An array of numbers: element type, shape, strides, and memory that it shares with its views. Memory
 * comes from one of four places, and where it comes from is all that differs:
 *
 *   the job's arena     bx_tensor_create with a job: shared memory; sending it copies nothing
 *   the heap            bx_tensor_create without one; sending it copies it into the arena once per send
 *   somebody else       bx_tensor_wrap, bx_tensor_from_dlpack; as the heap
 *   another worker      read from a message (bx_read_tensor): on loan. The memory is the owner's, mapped
 *                       read-only: a write to it is a fault in the writer. It stays as it was sent for
 *                       as long as any of the message's tensors is held, whatever the owner does with its
 *                       own references, and also after the owner's death.
 *
 * Who lends a tensor must not write to it while it is on loan (bx_tensor_on_loan): the borrowers would see
 * it. Write the next version to another tensor. Its memory is used again only when the owner has released
 * it and the last lease is back.
 *
 * Counted: create, wrap, views and copies return one reference; acquire and release may be called from
 * any thread. A tensor on loan counts for its whole message: one lease is for all tensors of a message,
 * and goes back when the message and the last tensor acquired from it are released. A tensor may
 * outlive its job; the lease of one that does ends with the process that holds it.
 */
struct bx_job;
struct bx_tensor;

enum bx_dtype { BX_F32 = 1, BX_F64, BX_F16, BX_BF16, BX_I32, BX_I64, BX_U8, BX_BOOL };

enum bx_device_kind { BX_CPU = 1, BX_CUDA = 2 };        /* numbers of DLPack */
struct bx_device {
    enum bx_device_kind kind;
    int index;
};

size_t bx_dtype_bytes(enum bx_dtype dtype);             /* of one element; 0 for no dtype */
const char *bx_dtype_name(enum bx_dtype dtype);         /* "f32"; "?" for no dtype */

/* A new tensor, row-major, its contents undefined, 64-byte aligned; in the job's arena, or on the heap
 * where job is NULL. shape has ndim (0 to BX_DIMS_MAX) entries of at least 0. BX_E_NO_SPACE when /dev/shm
 * is full and BX_E_ARENA_FULL when options.arena_bytes are used up, after leases that came back have been
 * looked for (the sentence says how much there is, how much of it is on loan, and how to get more);
 * BX_E_STATE before bx_job_start, BX_E_SHUTDOWN after its end; -EINVAL, -EOVERFLOW (the shape), -ENOMEM. Does not
 * block. */
int bx_tensor_create(struct bx_job *job, enum bx_dtype dtype, int ndim, const int64_t *shape,
                     struct bx_tensor **tensor);

/* A tensor over memory of the caller's, which stays valid until free_fn(context) is called: once, on
 * whichever thread drops the last reference; NULL: nobody needs to know. strides in elements, at least 0;
 * NULL: row-major. free_fn must not wait. -EINVAL, -EOVERFLOW, -ENOMEM; free_fn is then not called. */
typedef void (*bx_free_fn)(void *context);
int bx_tensor_wrap(void *data, enum bx_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                   bx_free_fn free_fn, void *context, struct bx_tensor **tensor);

struct bx_tensor *bx_tensor_acquire(struct bx_tensor *tensor);
void bx_tensor_release(struct bx_tensor *tensor);       /* NULL is fine */

enum bx_dtype bx_tensor_dtype(const struct bx_tensor *tensor);
struct bx_device bx_tensor_device(const struct bx_tensor *tensor);
int bx_tensor_ndim(const struct bx_tensor *tensor);
int64_t bx_tensor_dim(const struct bx_tensor *tensor, int dim);        /* 0 where there is no such dim */
const int64_t *bx_tensor_shape(const struct bx_tensor *tensor);        /* ndim entries */
const int64_t *bx_tensor_strides(const struct bx_tensor *tensor);      /* in elements */
int64_t bx_tensor_elements(const struct bx_tensor *tensor);
size_t bx_tensor_bytes(const struct bx_tensor *tensor);         /* elements x bytes of one */
bool bx_tensor_is_contiguous(const struct bx_tensor *tensor);   /* row-major without gaps */
bool bx_tensor_is_borrowed(const struct bx_tensor *tensor);     /* on loan from another worker */
bool bx_tensor_is_shared(const struct bx_tensor *tensor);       /* in an arena of this process */
uint32_t bx_tensor_on_loan(const struct bx_tensor *tensor);     /* leases that hold it, as of the last look
                                                                 * (bx_job_loans looks) */
const void *bx_tensor_data(const struct bx_tensor *tensor);     /* of the first element */
void *bx_tensor_data_mut(struct bx_tensor *tensor);             /* NULL if it is read-only */

/* Views share the memory, and read-only stays read-only. slice takes elements start, start+step, ... below
 * end of one dimension; select one index, and drops the dimension; reshape wants a contiguous tensor and
 * as many elements. as_strided gives any shape and strides, in elements, from an offset in elements
 * from the tensor's first, up to its last. -EINVAL, -EOVERFLOW, -ENOMEM. */
int bx_tensor_slice(struct bx_tensor *tensor, int dim, int64_t start, int64_t end, int64_t step,
                    struct bx_tensor **view);
int bx_tensor_select(struct bx_tensor *tensor, int dim, int64_t index, struct bx_tensor **view);
int bx_tensor_transpose(struct bx_tensor *tensor, int dim0, int dim1, struct bx_tensor **view);
int bx_tensor_reshape(struct bx_tensor *tensor, int ndim, const int64_t *shape, struct bx_tensor **view);
int bx_tensor_as_strided(struct bx_tensor *tensor, int64_t offset, int ndim, const int64_t *shape,
                         const int64_t *strides, struct bx_tensor **view);

/* A row-major copy, in the job's arena, or on the heap where job is NULL. Errors as bx_tensor_create. */
int bx_tensor_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
/* Element by element, both of one dtype and shape; any strides. -EINVAL; -EROFS if `to` is read-only. */
int bx_tensor_copy_into(struct bx_tensor *to, const struct bx_tensor *from);

/* DLPack, without a copy. to_dlpack's structs hold a reference until their deleter is called (any thread);
 * from_dlpack takes the struct over on success, and calls its deleter when the last reference is dropped.
 * The unversioned struct (DLPack 0.6) has no word for read-only memory: who takes a borrowed tensor that
 * way must not write to it. The versioned one says DLPACK_FLAG_BITMASK_READ_ONLY; bool tensors go out as kDLBool
 * there and as 8-bit kDLUInt in the unversioned one. from: -ENOTSUP for lanes, sub-byte and unknown types,
 * devices that are not host memory, a major version other than 1. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;
int bx_tensor_to_dlpack(struct bx_tensor *tensor, struct DLManagedTensor **managed);
int bx_tensor_to_dlpack_versioned(struct bx_tensor *tensor, struct DLManagedTensorVersioned **managed);
int bx_tensor_from_dlpack(struct DLManagedTensor *managed, struct bx_tensor **tensor);
int bx_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, struct bx_tensor **tensor);

/* ---- Device memory ----------------------------------------------------------------------------- */

/*
 * Tensors on GPUs, handed over by CUDA IPC: the receiver reads them where they lie. The CUDA driver is loaded
 * when the first device is opened; nothing else needs it. CUDA does not survive fork: open devices after
 * bx_spawn, not before.
 *
 * Work on a GPU is ordered by streams, and no call here waits for it unless it says so. Who fills a tensor says
 * on which stream (bx_tensor_written_on), or uses the job's own (bx_gpu_stream); it may be sent at once. Who
 * reads a borrowed one puts its stream behind that first (bx_tensor_read_on). When the message and its tensors
 * are released, the lease goes back, and the owner's memory is used again after the work is done that was
 * on those streams by then. So one that is on loan no more (bx_tensor_on_loan) may still be read by work on a GPU:
 * what comes next is written to another tensor. A borrowed one must not be written to: no MMU holds it here.
 *
 * Both workers must have opened a device. Where the receiver's cannot reach the sender's, the bytes go through
 * pinned host memory (counter gpu_staged_bytes); so do those of the first messages where the sender does not see
 * the receiver's device (CUDA_VISIBLE_DEVICES), until the receiver has found out. A borrowed device tensor is
 * usable until bx_job_shutdown.
 *
 * bx_gpu_open takes a device of this process into use, told by its ordinal among those that CUDA_VISIBLE_DEVICES
 * leaves; once more is the same. -ENODEV: no driver, no such device, or not for this process; -ENOTSUP: built
 * with CUDA=0; -EOPNOTSUPP: its memory cannot be exported (MIG); BX_E_NO_SPACE; BX_E_STATE; each sentence says
 * what to do. Takes up to seconds, once. bx_gpu_count: how many there are, or why none can be had.
 */
int bx_gpu_open(struct bx_job *job, int ordinal, struct bx_device *device);
int bx_gpu_count(struct bx_job *job);
bool bx_gpu_is_fake(struct bx_job *job);        /* BX_CUDA_DRIVER names the tests' driver: measure nothing */

/* A CUstream of the device's primary context that is the job's own: copies of tensors run on it. NULL if the
 * device is not open. */
void *bx_gpu_stream(struct bx_job *job, struct bx_device device);

/* As bx_tensor_create, in memory of an open device. -ENODEV if it is not open; -ENOMEM: the device has no room
 * (the sentence says how much of it waits for leases). Waits for no lease; where the device is full of what others are
 * just closing, about a second at most for that. */
int bx_tensor_create_on(struct bx_job *job, struct bx_device device, enum bx_dtype dtype, int ndim,
                        const int64_t *shape, struct bx_tensor **tensor);

/* The work that is on the stream now (a CUstream of the device's primary context that lives until
 * bx_job_shutdown; NULL: the job's own) writes the tensor: whoever borrows it waits for that, on its GPU.
 * Without it, sending takes the job's own stream for that. -EINVAL: not in device memory; -EROFS: borrowed. */
int bx_tensor_written_on(struct bx_tensor *tensor, void *stream);
/* Work put on the stream from now on waits until the tensor is written; a borrowed one goes back after what is on
 * the stream when it is released. -EINVAL; BX_E_PEER_DEAD: its owner died before it was written. */
int bx_tensor_read_on(struct bx_tensor *tensor, void *stream);

/* bx_tensor_copy of a device tensor is a device tensor, made on the job's own stream. bx_tensor_copy_into copies
 * between device and host too, and waits for that; so it does not belong in a handler that is to answer many. What is
 * not row-major goes by way of the host, counted as staged, and on a device cannot be copied into (-ENOTSUP).
 * bx_tensor_data of a device tensor is an address there. DLPack: kDLCUDA both ways, after bx_gpu_open; from_dlpack:
 * -EOPNOTSUPP for memory that cannot be exported (pools, managed, VMM). */

/* ---- Messages ---------------------------------------------------------------------------------- */

/* Bytes, and tensors beside them, each written in order and read back in the same order. Values are packed
 * without padding or tags, in the host's byte order. A writer's error is sticky: after the first failure
 * every put returns it, and so does the call that is given the message. */
struct bx_msg;

/* NULL only when memory is out. Room for reserve_bytes is made at once; it grows by itself. */
struct bx_msg *bx_msg_create(size_t reserve_bytes);
void bx_msg_destroy(struct bx_msg *msg);            /* NULL is fine */
void bx_msg_clear(struct bx_msg *msg);              /* empty again: keeps the memory, forgets the error */

/* 0, or -ENOMEM. put_str writes the length (u32) and the bytes; put_bytes and put_f32s the bytes alone,
 * so the reader must know how many. */
int bx_msg_put_i64(struct bx_msg *msg, int64_t value);
int bx_msg_put_u64(struct bx_msg *msg, uint64_t value);
int bx_msg_put_i32(struct bx_msg *msg, int32_t value);
int bx_msg_put_f64(struct bx_msg *msg, double value);
int bx_msg_put_f32(struct bx_msg *msg, float value);
int bx_msg_put_f32s(struct bx_msg *msg, const float *values, size_t count);
int bx_msg_put_str(struct bx_msg *msg, const char *text);
int bx_msg_put_bytes(struct bx_msg *msg, const void *data, size_t bytes);

/* Adds a tensor; the message holds a reference. Sending it costs the same for a kilobyte and a gigabyte
 * where it lies in the arena of the job that sends; else it is copied there first, once per send, also one
 * that is on loan from another worker (counters tensors_copied, tensor_bytes_copied). A strided view in
 * the arena goes as it is. 0, -ENOMEM. */
int bx_msg_put_tensor(struct bx_msg *msg, struct bx_tensor *tensor);

size_t bx_msg_tensors(const struct bx_msg *msg);    /* how many; 0 for NULL */
size_t bx_msg_bytes(const struct bx_msg *msg);      /* payload bytes so far; 0 for NULL */
const void *bx_msg_data(const struct bx_msg *msg);  /* valid until the next put, clear or destroy */
int bx_msg_error(const struct bx_msg *msg);         /* the sticky error, 0 if none */

/* A cursor over a message; copy it freely. Reading past the end gives 0, NULL or "" and sets error to
 * BX_E_SHORT_MESSAGE, for good. A handler whose args reader is in error when it returns 0 fails the
 * call with that code. */
struct bx_reader {
    const unsigned char *data;
    size_t bytes;
    size_t pos;
    int error;
    struct bx_tensor *const *tensors;   /* those not yet read */
    size_t tensor_count;
};
struct bx_reader bx_msg_reader(const struct bx_msg *msg);      /* NULL reads as empty */
int64_t bx_read_i64(struct bx_reader *reader);
uint64_t bx_read_u64(struct bx_reader *reader);
int32_t bx_read_i32(struct bx_reader *reader);
double bx_read_f64(struct bx_reader *reader);
float bx_read_f32(struct bx_reader *reader);
int bx_read_f32s(struct bx_reader *reader, float *values, size_t count);   /* copies; 0 or the error */
const char *bx_read_str(struct bx_reader *reader);             /* terminated, inside the message */
const void *bx_read_bytes(struct bx_reader *reader, size_t bytes);         /* inside the message */
/* The next tensor; the message's own: acquire it to keep it beyond the message's life (in a handler:
 * beyond its return; a batch body's rows and what an async handler has read: the same). NULL past the
 * last. */
struct bx_tensor *bx_read_tensor(struct bx_reader *reader);
size_t bx_reader_left(const struct bx_reader *reader);
size_t bx_reader_tensors_left(const struct bx_reader *reader);

/* ---- The job ----------------------------------------------------------------------------------- */

struct bx_job;

enum bx_wait {
    BX_WAIT_AUTO = 0,       /* io_uring, else epoll; the environment's BX_WAIT=uring|epoll forces one */
    BX_WAIT_URING = 1,      /* BX_E_URING where it is refused */
    BX_WAIT_EPOLL = 2,
};

struct bx_options {
    size_t struct_bytes;
    const char *job;            /* [A-Za-z0-9_-]; BX_JOB */
    const char *name;           /* BX_NAME; default "worker<rank>" */
    int rank;                   /* 0 .. world_size-1; BX_RANK */
    int world_size;             /* 2 .. 128. 0: job, name, rank and world size come from the environment */
    uint64_t start_timeout_ns;  /* for everybody to come; default 30 s */
    uint64_t call_timeout_ns;   /* of a call that names none; default 60 s; BX_FOREVER */
    uint64_t spin_ns;           /* most a thread spins before it sleeps; default 50 us, adapting */
    bool no_spin;               /* sleep at once */
    enum bx_wait wait;
    bool own_loop;              /* no background thread: poll bx_job_fd and call bx_progress */
    uint64_t arena_bytes;       /* most that its tensors may take; default 64 GiB, BX_ARENA_BYTES. Address
                                 * space, not memory: pages are taken from /dev/shm as tensors are made */
    uint64_t loan_bytes_max;    /* most bytes of its tensors on loan at a time; default: no bound */
    int pool_threads;           /* most blocking handlers and batch bodies that run at a time, 1 to 256, not counting
                                 * those that wait in a call or for a future; default 16, BX_POOL_THREADS */
};

/* The environment's BX_HIST=all|off: of how many calls shmstat's histograms are made; else of one in 64.
 * BX_TRACE=FILE writes a timeline of all workers there, for Perfetto, %j in it being the job's name; BX_TRACE_EVENTS
 * bounds it (1000000 for each worker). Both are read by bx_job_start; what goes wrong with them does not fail it: it
 * is logged, and rank 0 (without bx_spawn: each worker that is not traced) says it in one line on stderr. FILE must
 * not be a symbolic link. A program that runs with more rights than its caller (set-user-ID, set-group-ID, file
 * capabilities) ignores the variables that name files: BX_TRACE, XDG_RUNTIME_DIR, BX_CUDA_DRIVER.
 *
 * Checks the options, makes the worker's segment-to-be and its table of functions. The job is
 * registered with, then started. -EINVAL names the option; BX_E_WORLD_SIZE; BX_E_URING;
 * BX_E_DESCRIPTORS when 3 x world_size + 64 descriptors are not to be had. Does not block. */
int bx_job_create(const struct bx_options *options, struct bx_job **job);

/* Meets the others: returns when all world_size workers are there, at most start_timeout_ns later.
 * BX_E_RANK_MISSING says who did not come; BX_E_NAME_TAKEN, BX_E_RANK_TAKEN (also of a job that runs),
 * BX_E_WORLD_SIZE, BX_E_VERSION, BX_E_SOCKET_DIR, BX_E_JOB_RUNNING, BX_E_NO_SPACE, BX_E_PEER_DEAD (died while
 * starting). One that fails to start fails the start of all who wait, at once, with its code and its sentence.
 * Under bx_spawn so does one that ends before the job has started, whether it has come or not: BX_E_WORKER_FAILED
 * with its name and how it ended. Of separate programs nobody knows of one that never came: who waits for two
 * seconds, and for each ten more, tells the log hook for whom.
 * -EFBIG and -ENOMEM where RLIMIT_FSIZE or RLIMIT_AS forbid the segment or an arena (the sentence says which).
 * A job whose start failed can only be destroyed. */
int bx_job_start(struct bx_job *job);

/* Serves calls until another worker begins its shutdown (0), or one dies (BX_E_PEER_DEAD, named by
 * bx_error_text; each death is reported once, call again to go on serving). Blocks. For a worker whose
 * main thread has nothing else to do. */
int bx_job_serve(struct bx_job *job);

/* Leaves together with the others: waits until this worker's calls are done and its handlers have
 * answered, serves the others until they have come as far, then stops. timeout_ns 0 means 30 s. Dead
 * workers are not waited for. BX_E_TIMEOUT names the worker that did not come; the job has stopped all
 * the same and its names are gone. Afterwards only bx_job_destroy. BX_E_WOULD_DEADLOCK, at once, from a
 * handler of any kind, a batch body or a callback; BX_E_STATE if another thread is at it already. When it
 * returns no handler or callback of this job runs, nor will run: it waits for those that another thread is in. */
int bx_job_shutdown(struct bx_job *job, uint64_t timeout_ns);

/* Frees it. A job that was not shut down leaves at once: its peers see BX_E_SHUTDOWN. NULL is fine. No other
 * thread may be in a function of the job, or complete one of its futures, meanwhile: join such threads first. From a
 * handler, a batch body or a callback it does nothing: the log hook gets an error. */
void bx_job_destroy(struct bx_job *job);

int bx_job_rank(const struct bx_job *job);
int bx_job_world_size(const struct bx_job *job);
const char *bx_job_name(const struct bx_job *job);                   /* this worker's name */
const char *bx_worker_name(const struct bx_job *job, int rank);      /* NULL if there is none; after start */
/* Its rank, or BX_E_NO_WORKER; BX_E_STATE before bx_job_start. */
int bx_worker_rank(const struct bx_job *job, const char *name);
bool bx_worker_alive(const struct bx_job *job, int rank);

/* Called once for each peer that dies, on the thread that makes progress: as in an inline handler,
 * nothing may wait there. One hook a job; set it before bx_job_start. */
typedef void (*bx_death_fn)(struct bx_job *job, int rank, void *context);
int bx_on_death(struct bx_job *job, bx_death_fn fn, void *context);

/* One's own event loop (own_loop): bx_job_fd is readable when bx_progress has something to do; it stays
 * the job's. bx_progress never blocks and returns the number of frames, timers and callbacks handled.
 * It may also be called without own_loop, and returns 0 when another thread is at it. */
int bx_job_fd(const struct bx_job *job);
int bx_progress(struct bx_job *job);

/* A counter by its name, as lib/observe/counters.h lists them ("calls_sent", "doorbells_rung", "waits_epoll",
 * "rescued", ...). -ENOENT names the unknown one. */
int bx_counter(const struct bx_job *job, const char *name, uint64_t *value);

/* ---- The arena and its loans --------------------------------------------------------------------- */

struct bx_arena_info {
    size_t struct_bytes;
    uint64_t size_bytes;        /* options.arena_bytes, rounded */
    uint64_t used_bytes;        /* of blocks handed out, size classes' waste included, on loan or not */
    uint64_t committed_bytes;   /* of /dev/shm that the arena holds */
    uint64_t high_water_bytes;  /* most of used_bytes since the start, or the last trim */
};
int bx_job_arena(struct bx_job *job, struct bx_arena_info *info);

/* Gives memory that is not used back to /dev/shm; otherwise an arena keeps, warm, what it once needed. */
int bx_arena_trim(struct bx_job *job);

struct bx_loans {
    size_t struct_bytes;
    uint64_t leases;            /* on loan now: messages with tensors */
    uint64_t bytes;             /* of their memory; a block on two leases counts twice */
    uint64_t oldest_ns;         /* the age of the oldest; 0 if there is none */
    uint64_t granted;           /* leases ever */
    uint64_t returned;          /* of them, given back */
    uint64_t taken_back;        /* of them, taken back because the borrower died */
    uint64_t borrowed;          /* the other way: leases of that worker that this one holds now */
};
/* What this worker has on loan to one (by rank; its own too), or to all (-1). Looks at what came back. Zero the
 * struct first, here and in bx_job_arena: struct_bytes is read. */
int bx_job_loans(struct bx_job *job, int rank, struct bx_loans *loans);

/* Waits until at most `leases` leases are on loan to that worker (-1: to all). A worker that has left the job, or
 * was cut off, gives back what it still holds when its process ends. BX_E_TIMEOUT, BX_E_WOULD_DEADLOCK,
 * BX_E_SHUTDOWN, -EINVAL. */
int bx_loans_wait(struct bx_job *job, int rank, uint64_t leases, uint64_t timeout_ns);

/* ---- Handlers ---------------------------------------------------------------------------------- */

/* What is being answered; lives as long as the handler runs. */
struct bx_request;
struct bx_job *bx_request_job(const struct bx_request *request);
int bx_request_caller(const struct bx_request *request);                 /* rank */
const char *bx_request_function(const struct bx_request *request);
uint64_t bx_request_deadline_ns(const struct bx_request *request);       /* CLOCK_MONOTONIC; BX_FOREVER */

enum bx_kind {
    BX_INLINE = 1,      /* short; runs where progress runs, must not wait (BX_E_WOULD_DEADLOCK) */
    BX_BLOCKING = 2,    /* runs on the pool; may call and wait. Where handlers wait for each other in another way (a
                         * condition variable, a pipe), options.pool_threads must be as many as wait at a time: the
                         * rest is queued. A queue that has not moved for a second is logged; shmstat why shows it */
};

/* Reads args, writes reply, returns 0; or a negative code, with bx_fail for a text of its own. Both
 * reach the caller, the text with this worker's name and the function's in front. A positive value counts
 * as 0. What a handler answers to a one-way call is dropped; its failure goes to the log hook. */
typedef int (*bx_handler_fn)(const struct bx_request *request, struct bx_reader *args,
                             struct bx_msg *reply, void *context);

/* Like a handler, but hands back a future (the engine takes the reference) whose value becomes the
 * reply. Runs where progress runs, must not wait; holds no thread until the future is done. When the
 * caller's deadline passes, or it cancels, dies or leaves, the engine fails the future with BX_E_CANCELLED,
 * BX_E_PEER_DEAD or BX_E_SHUTDOWN: bx_future_on_done tells, and a later bx_future_set gets -EALREADY. */
typedef int (*bx_async_fn)(const struct bx_request *request, struct bx_reader *args,
                           struct bx_future **reply, void *context);

/* Register before bx_job_start, and every worker finds the function from its first call on; later is
 * allowed. -EEXIST, -ENOSPC (128 functions), -EINVAL (name). */
int bx_register(struct bx_job *job, const char *name, enum bx_kind kind, bx_handler_fn fn,
                void *context);
int bx_register_async(struct bx_job *job, const char *name, bx_async_fn fn, void *context);

/* ---- Calls ------------------------------------------------------------------------------------- */

struct bx_call_options {
    size_t struct_bytes;
    uint64_t timeout_ns;    /* 0: the job's call_timeout_ns; BX_FOREVER */
    bool no_wait;           /* -EAGAIN instead of waiting where 1024 calls to that worker are in flight */
};

/* A message with tensors, or with more bytes than a frame of 16 KiB, takes a lease of the callee. Where that has
 * BX_LEASES_MAX of them, or loan_bytes_max would be passed, a call waits for some to come back, or answers
 * -EAGAIN (no_wait, and where waiting is not allowed); a reply fails with BX_E_ON_LOAN at the caller. */

/* Calls function of worker `to` (one's own name too) and waits. args may be NULL, and is only borrowed.
 * reply may be NULL if the value is of no interest, else it is the caller's to destroy. At most once,
 * never retried; per pair of workers requests arrive in the order sent. Errors: what the handler
 * returned; BX_E_TIMEOUT, BX_E_PEER_DEAD, BX_E_NO_WORKER, BX_E_NO_FUNCTION, BX_E_TOO_LARGE,
 * BX_E_REFUSED, BX_E_NO_SPACE, BX_E_ARENA_FULL, BX_E_ON_LOAN, BX_E_BUSY, BX_E_CORRUPT, BX_E_SHUTDOWN, -EAGAIN;
 * -EAGAIN or -ENOMEM from a callee that can make no thread for a blocking handler (the sentence says so);
 * BX_E_WOULD_DEADLOCK inside an inline or async handler, a batch body or a callback. */
int bx_rpc_sync(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                const struct bx_call_options *options, struct bx_msg **reply);

/* The same without waiting; the future is the caller's to release, and the call's errors are the future's.
 * Returned at once, without a future: BX_E_NO_WORKER, BX_E_NO_FUNCTION, BX_E_TOO_LARGE, BX_E_PEER_DEAD,
 * BX_E_NO_SPACE, and BX_E_TIMEOUT when no slot came free in time. Releasing the future does not end the
 * call: cancel it, or it holds up this worker's shutdown until it is answered. Where 1024 calls to that worker are
 * in flight it waits for one to end, or answers -EAGAIN (no_wait, and where waiting is not allowed). */
int bx_rpc_async(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                 const struct bx_call_options *options, struct bx_future **future);

/* No reply, no error from the callee. 0 means the frame is in the ring. A full ring is waited for, or
 * -EAGAIN (no_wait, and where waiting is not allowed). */
int bx_rpc_oneway(struct bx_job *job, const char *to, const char *function, const struct bx_msg *args,
                  const struct bx_call_options *options);

/* ---- Futures ----------------------------------------------------------------------------------- */

/* A value that is set once or failed once. Counted: create, then, all, any and bx_rpc_async return one
 * reference, acquire adds one, release drops one. A future that nobody can complete any more (its
 * maker released it) fails with BX_E_ABANDONED. A future belongs to its job: bx_job_destroy fails what is pending
 * with BX_E_SHUTDOWN, and afterwards a future may only be read and released. */
struct bx_future;

/* NULL when memory is out, or the job ends. job NULL: a future of no job, for which nobody can wait. */
struct bx_future *bx_future_create(struct bx_job *job);
struct bx_future *bx_future_acquire(struct bx_future *future);
void bx_future_release(struct bx_future *future);               /* NULL is fine */

/* Completes it; value (may be NULL) becomes the future's, and is destroyed on failure. -EALREADY if it was done.
 * fail's text may be NULL. */
int bx_future_set(struct bx_future *future, struct bx_msg *value);
int bx_future_fail(struct bx_future *future, int code, const char *text);

/* Fails a call's future with BX_E_CANCELLED; a request still in the callee's queue is then not run.
 * -EALREADY if it was done. */
int bx_future_cancel(struct bx_future *future);

/* 0 if it was set, its error if it failed, BX_E_TIMEOUT if timeout_ns passed first (the future lives
 * on), BX_E_WOULD_DEADLOCK in a handler or callback when it is not done. */
int bx_future_wait(struct bx_future *future, uint64_t timeout_ns);
bool bx_future_done(const struct bx_future *future);
int bx_future_error(const struct bx_future *future);            /* 0 if set or not yet done */
const char *bx_future_error_text(const struct bx_future *future);  /* "" unless failed; lives with it */
const struct bx_msg *bx_future_value(const struct bx_future *future);  /* lives with it; NULL unless set */

/* fn runs once, when the future is done, on the thread that completes it, or at once on this one if it
 * is done already; no lock is held, nothing may wait there. */
typedef void (*bx_done_fn)(struct bx_future *future, void *context);
int bx_future_on_done(struct bx_future *future, bx_done_fn fn, void *context);

/* A future of what fn makes of this one's value: it writes `out` and returns 0, or fails with a code.
 * An error skips fn and runs through, unless fn was given by bx_future_then_any, which sees errors too
 * (bx_future_error(in)) and may turn them into a value. NULL when memory is out. */
typedef int (*bx_then_fn)(struct bx_future *in, struct bx_msg *out, void *context);
struct bx_future *bx_future_then(struct bx_future *future, bx_then_fn fn, void *context);
struct bx_future *bx_future_then_any(struct bx_future *future, bx_then_fn fn, void *context);

/* Done when all are (an empty message; fails with the first failure, once all are done), or when one is
 * (the value is its index, an i64; fails if that one failed). Once it is done, or released with nothing that hangs on
 * it, nothing of it is left at the futures that are still pending. count 0: all is done at once, any is
 * NULL. job may be NULL, as in bx_future_create. */
struct bx_future *bx_future_all(struct bx_job *job, struct bx_future *const *futures, size_t count);
struct bx_future *bx_future_any(struct bx_job *job, struct bx_future *const *futures, size_t count);

/* ---- Batches ----------------------------------------------------------------------------------- */

/* Calls of one function, gathered and answered together. The body runs when every living member has a
 * row, or max_rows are there, or flush_after_ns has passed since the oldest row came. A batch holds at
 * most one row of a worker; rows lie in the order of their callers' ranks. A second call by one worker,
 * and a call while the body runs, join the next batch. A row whose deadline has passed is left out. */
struct bx_batch;
struct bx_batch_options {
    size_t struct_bytes;
    size_t max_rows;            /* default: no bound but the members */
    uint64_t flush_after_ns;    /* default: for ever */
    bool blocking;              /* run the body on the pool, where it may wait */
};
typedef int (*bx_batch_fn)(struct bx_batch *batch, void *context);  /* < 0 fails every row with it */
int bx_register_batch(struct bx_job *job, const char *name, bx_batch_fn fn, void *context,
                      const struct bx_batch_options *options);

/* Members: workers that a batch waits for, until they leave or die. With no member the batch is held by
 * max_rows and flush_after_ns alone (with neither, every call is a batch of its own). add and remove are
 * for the worker that owns the function, before or after start (-ENOENT, -EINVAL for the rank); join and
 * leave are calls by the member itself, in order with its other calls. */
int bx_batch_add_member(struct bx_job *job, const char *function, int rank);
int bx_batch_remove_member(struct bx_job *job, const char *function, int rank);
int bx_batch_join(struct bx_job *job, const char *to, const char *function);
int bx_batch_leave(struct bx_job *job, const char *to, const char *function);

size_t bx_batch_rows(const struct bx_batch *batch);
int bx_batch_caller(const struct bx_batch *batch, size_t row);             /* rank */
struct bx_reader bx_batch_args(const struct bx_batch *batch, size_t row);
struct bx_msg *bx_batch_reply(struct bx_batch *batch, size_t row);         /* the row's reply, to write into */
int bx_batch_reply_i64(struct bx_batch *batch, size_t row, int64_t value);
int bx_batch_fail_row(struct bx_batch *batch, size_t row, int code, const char *text);

/* ---- Launch ------------------------------------------------------------------------------------ */

/* A worker's whole life: it gets its options filled in (job, name, rank, world size), creates and starts
 * the job itself, and returns the exit status of its process. */
typedef int (*bx_worker_fn)(const struct bx_options *options, void *context);

struct bx_spawn_options {
    size_t struct_bytes;
    const char *job;                    /* default: a name of its own, made from the pid */
    int world_size;                     /* 2 .. 128 */
    const char *const *names;           /* world_size names, by rank; default "worker<rank>" */
    uint64_t grace_ns;                  /* from the first failure to SIGTERM, then to SIGKILL; default 1 s */
    const struct bx_options *options;   /* the other fields of every worker's options; may be NULL */
};

struct bx_spawn_report {
    int failed_rank;            /* the first that ended badly; -1 if none did */
    int exit_status;            /* its exit status, -1 if a signal ended it */
    int term_signal;            /* that signal, else 0 */
    int interrupt_signal;       /* SIGINT or SIGTERM if the launcher was asked to end, else 0 */
};

/* Forks world_size workers, direct children, in the order of their ranks, and waits for all. They die
 * with the launcher. When one ends badly the others get grace_ns to end by themselves, then SIGTERM,
 * then SIGKILL; a SIGINT or SIGTERM to the launcher ends them too. What they left in /dev/shm is
 * removed. 0 if every worker returned 0; BX_E_WORKER_FAILED (who and how: bx_error_text, report), also where one
 * exits with status 0 from the midst of the job, for the others see a death;
 * BX_E_INTERRUPTED; -EINVAL, BX_E_WORLD_SIZE; -errno of fork. report may be NULL. Call it from the only
 * thread of a process that has no job. Blocks. */
int bx_spawn(const struct bx_spawn_options *options, bx_worker_fn fn, void *context,
             struct bx_spawn_report *report);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
