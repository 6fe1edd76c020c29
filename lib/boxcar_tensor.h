/* SPDX-License-Identifier: MIT */
/*
 * boxcar_tensor.h - tensors, in host memory and on GPUs. A part of boxcar.h, which includes it.
 */
#ifndef BOXCAR_H
#include "boxcar.h"
#elif !defined(BOXCAR_TENSOR_H)
#define BOXCAR_TENSOR_H

/* ---- Tensors ----------------------------------------------------------------------------------- */

/*
 * An array of numbers: element type, shape, strides, and memory that it shares with its views. The memory has one of
 * four origins, and tensors differ in nothing else:
 *
 *   the job's arena     bx_tensor_create with a job: shared memory. Sending it copies nothing. Since 0.2 from
 *                       bx_job_create on: such a tensor stays where it is when the job starts.
 *   the heap            bx_tensor_create without a job. Each send copies it into the arena once.
 *   the program         bx_tensor_wrap, bx_tensor_from_dlpack. As the heap.
 *   another worker      bx_read_tensor: on loan. The memory is the owner's, mapped read-only: a write faults. The
 *                       contents stay as they were sent while any tensor of the message is held, even if the owner
 *                       drops its references or dies.
 *
 * The owner must not write to a tensor that is on loan (bx_tensor_on_loan): borrowers would see the change. Write the
 * next version to another tensor. Memory is reused after the owner has released the tensor and all leases are back.
 *
 * Tensors are reference-counted: create, wrap, views and copies return one reference; any thread may acquire and
 * release. One lease covers all tensors of a message. It is returned when the message is destroyed and the last tensor
 * acquired from it is released. A tensor may outlive its job; its lease then ends with the process that holds it.
 */

/* Types of elements. Since 0.2: those from BX_I8 on. A complex number is its real part, then its imaginary part, each
 * of half the bytes. Tensors of all types are made, sent, viewed, copied and converted; boxcar_autograd.h and
 * boxcar_nn.h compute with few of them, and say with which. */
enum bx_dtype {
    BX_F32 = 1,
    BX_F64,
    BX_F16,
    BX_BF16,
    BX_I32,
    BX_I64,
    BX_U8,
    BX_BOOL,
    BX_I8,
    BX_I16,
    BX_U16,
    BX_U32,
    BX_U64,
    BX_F8_E4M3FN,                                       /* float8 without infinities, as torch.float8_e4m3fn */
    BX_F8_E5M2,
    BX_C64,                                             /* two f32 */
    BX_C128                                             /* two f64 */
};

enum bx_device_kind { BX_CPU = 1, BX_CUDA = 2 };        /* numbers of DLPack */
struct bx_device {
    enum bx_device_kind kind;
    int index;
};

size_t bx_dtype_bytes(enum bx_dtype dtype);             /* bytes of one element; 0 for no dtype */
const char *bx_dtype_name(enum bx_dtype dtype);         /* its name, "f32"; "?" for no dtype */

/* Makes a row-major tensor with undefined contents, 64-byte aligned, in the job's arena, or on the heap if job is
 * NULL. shape has ndim (0 to BX_DIMS_MAX) entries >= 0. Returns one reference.
 * Before it fails for lack of memory it collects returned leases. BX_E_NO_SPACE: /dev/shm is full; BX_E_ARENA_FULL:
 * options.arena_bytes are used up (both sentences say how much there is, how much is on loan, how to get more);
 * -EINVAL, -EOVERFLOW: the shape; -ENOMEM: the process has no memory or no addresses left (ulimit -v).
 * A job need not have started. The first tensor before its start makes the arena, and has the codes of bx_job_start for
 * that: BX_E_NO_SPACE, BX_E_DESCRIPTORS, -EFBIG, -ENOMEM; -EOPNOTSUPP: the file system of /dev/shm has no files without
 * a name. If the start fails, tensors can still be read and released. bx_gpu_open needs a job that has started. */
int bx_tensor_create(struct bx_job *job, enum bx_dtype dtype, int ndim, const int64_t *shape,
                     struct bx_tensor **tensor);

/* Makes a tensor over memory of the caller. strides are in elements, >= 0 where the extent is more than 1, and of no
 * meaning elsewhere; NULL means row-major. Returns one reference.
 * The memory must stay valid until free_fn(context) is called: once, on the thread that drops the last reference.
 * free_fn may be NULL; it must not wait. On failure free_fn is not called. -EINVAL, -EOVERFLOW, -ENOMEM. */
int bx_tensor_wrap(void *data, enum bx_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                   bx_free_fn free_fn, void *context, struct bx_tensor **tensor);

struct bx_tensor *bx_tensor_acquire(struct bx_tensor *tensor);  /* adds a reference; returns its argument */
void bx_tensor_release(struct bx_tensor *tensor);       /* drops a reference; NULL is allowed */

enum bx_dtype bx_tensor_dtype(const struct bx_tensor *tensor);         /* type of its elements */
struct bx_device bx_tensor_device(const struct bx_tensor *tensor);     /* where its memory is */
int bx_tensor_ndim(const struct bx_tensor *tensor);                    /* how many dimensions */
int64_t bx_tensor_dim(const struct bx_tensor *tensor, int dim);        /* extent; 0 if there is no such dim */
const int64_t *bx_tensor_shape(const struct bx_tensor *tensor);        /* extents, ndim entries */
const int64_t *bx_tensor_strides(const struct bx_tensor *tensor);      /* strides, in elements */
int64_t bx_tensor_elements(const struct bx_tensor *tensor);            /* how many it has */
size_t bx_tensor_bytes(const struct bx_tensor *tensor);         /* its size: elements x bytes of one */
bool bx_tensor_is_contiguous(const struct bx_tensor *tensor);   /* row-major without gaps */
bool bx_tensor_is_borrowed(const struct bx_tensor *tensor);     /* on loan from another worker */
bool bx_tensor_is_shared(const struct bx_tensor *tensor);       /* in an arena or device memory of this process */
uint32_t bx_tensor_on_loan(const struct bx_tensor *tensor);     /* leases on it when leases were last collected
                                                                 * (bx_job_loans collects) */
const void *bx_tensor_data(const struct bx_tensor *tensor);     /* address of the first element */
void *bx_tensor_data_mut(struct bx_tensor *tensor);             /* to write to; NULL if it is read-only */

/* Make views, which share the tensor's memory; a view of a read-only tensor is read-only. Each returns one reference.
 * A view keeps the whole block of its tensor, also while the view is on loan: of a large tensor of which little is
 * needed for long, send a copy.
 * slice: elements start, start+step, ... below end of one dimension. select: one index of a dimension, which is
 * dropped. reshape: needs a contiguous tensor and the same number of elements. as_strided: any shape and strides in
 * elements, at an offset in elements from the tensor's first; it must end within the tensor. -EINVAL, -EOVERFLOW,
 * -ENOMEM. */
int bx_tensor_slice(struct bx_tensor *tensor, int dim, int64_t start, int64_t end, int64_t step,
                    struct bx_tensor **view);
int bx_tensor_select(struct bx_tensor *tensor, int dim, int64_t index, struct bx_tensor **view);
int bx_tensor_transpose(struct bx_tensor *tensor, int dim0, int dim1, struct bx_tensor **view);
int bx_tensor_reshape(struct bx_tensor *tensor, int ndim, const int64_t *shape, struct bx_tensor **view);
int bx_tensor_as_strided(struct bx_tensor *tensor, int64_t offset, int ndim, const int64_t *shape,
                         const int64_t *strides, struct bx_tensor **view);

/* Makes a row-major copy in the job's arena, or on the heap if job is NULL. Codes as bx_tensor_create. */
int bx_tensor_copy(struct bx_job *job, const struct bx_tensor *tensor, struct bx_tensor **copy);
/* Makes a row-major copy that is written to at will, outside of the arena. The copy of a row-major borrowed tensor of
 * 64 KiB or more costs nothing until it is written: it has the owner's pages, the kernel copies each when it is written
 * first, and the tensor stays on loan. Others are copied to the heap, and so are those of which such a copy exists, and
 * all while 512 messages of the lender are on loan here or such copies have a quarter of the owner's arena or of
 * /dev/shm. A message that sends the copy copies it. 1: it has the owner's pages; 0: it is on the heap; codes as
 * bx_tensor_copy. */
int bx_tensor_copy_on_write(struct bx_tensor *tensor, struct bx_tensor **copy);
/* Whether any of so many bytes of such a copy, from an offset in bytes, may have been written: what has not been is as
 * it is in the tensor. True of any other tensor. */
bool bx_tensor_is_written(const struct bx_tensor *copy, size_t offset, size_t bytes);
/* Copies element by element. Both have one dtype and shape, and any strides. -EINVAL; -EROFS: `to` is read-only. */
int bx_tensor_copy_into(struct bx_tensor *to, const struct bx_tensor *from);

/* Convert to and from DLPack without a copy. to_dlpack: the struct holds a reference until its deleter is called, from
 * any thread. from_dlpack: takes the struct over on success, and calls its deleter when the last reference is dropped.
 * The unversioned struct (DLPack 0.6) cannot mark memory read-only: its consumer must not write to a borrowed tensor.
 * The versioned one sets DLPACK_FLAG_BITMASK_READ_ONLY. BX_BOOL becomes kDLBool there, 8-bit kDLUInt in the
 * unversioned one. The codes of BX_F8_E4M3FN and BX_F8_E5M2 are those of DLPack 1.1, in both: an older consumer knows
 * neither.
 *
 * A struct of DLPack carries no stream: the consumer names one when it asks for the tensor, in Python by
 * __dlpack__(stream=), and the producer makes that stream wait for its work. stream is the number of that argument: -1,
 * no order; 1, the legacy default stream, which None means too; 2, the default stream of the calling thread; else a
 * CUstream of the device's primary context. Streams but 2 live until bx_job_shutdown. Tensors in host memory ignore it.
 * to_dlpack: work that is put on the stream from now on waits until the tensor is written (by the stream of
 * bx_tensor_written_on, without that call by the job's own). When the struct is deleted and the tensor is released, its
 * memory is reused after the work that is on the stream then. If the consumer writes to the tensor, call
 * bx_tensor_written_on with its stream before the tensor is sent.
 * from_dlpack: takes a struct whose producer was given this stream. The tensor counts as written by the work that is on
 * it, as after bx_tensor_written_on. The deleter is called after that work and after all reads.
 * With 2 the host blocks until the stream's work is done. What the consumer puts there later holds no memory: it must
 * be done when the consumer calls the deleter.
 * from_dlpack: -ENOTSUP for lanes, sub-byte and unknown types, devices other than host memory and CUDA, a major version
 * other than 1; -EOVERFLOW. Both: -EINVAL: also a stream of 0, which is ambiguous, or below -1; -ENOSPC: too many
 * streams; BX_E_PEER_DEAD: a borrowed tensor's owner died before it was written; -ENOMEM. A struct that is refused is
 * unchanged. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;
int bx_tensor_to_dlpack(struct bx_tensor *tensor, int64_t stream, struct DLManagedTensor **managed)
    BX_SINCE_0_2(bx_tensor_to_dlpack);
int bx_tensor_to_dlpack_versioned(struct bx_tensor *tensor, int64_t stream, struct DLManagedTensorVersioned **managed)
    BX_SINCE_0_2(bx_tensor_to_dlpack_versioned);
int bx_tensor_from_dlpack(struct DLManagedTensor *managed, int64_t stream, struct bx_tensor **tensor)
    BX_SINCE_0_2(bx_tensor_from_dlpack);
int bx_tensor_from_dlpack_versioned(struct DLManagedTensorVersioned *managed, int64_t stream,
                                    struct bx_tensor **tensor) BX_SINCE_0_2(bx_tensor_from_dlpack_versioned);

/* ---- Device memory ----------------------------------------------------------------------------- */

/*
 * Tensors on GPUs: the receiver reads the sender's memory in place, without a copy. The CUDA driver is loaded when the
 * first device is opened; nothing else needs it. CUDA does not survive fork: open devices after bx_spawn.
 *
 * Streams order work on a GPU, and no function here waits for it unless its comment says so. The program names the
 * stream that fills a tensor (bx_tensor_written_on), or fills it on the job's own stream (bx_gpu_stream); it may send
 * the tensor at once. Before the receiver reads a borrowed tensor, it makes its stream wait for the writer
 * (bx_tensor_read_on). When the message and its tensors are released, the lease is returned, and the owner reuses the
 * memory after the work that was on those streams at that moment. So work on a GPU may still read a tensor that
 * bx_tensor_on_loan reports as free: write the next version to another tensor. Do not write to a borrowed device
 * tensor: a kernel that does fails with its context where device memory is exported as file descriptors, and nothing
 * prevents it where it is exported by handles of CUDA IPC (BX_GPU_EXPORT).
 *
 * Both workers must have opened a device. If the receiver's device cannot reach the sender's, the bytes go through
 * pinned host memory (counter gpu_staged_bytes). So do those of the first messages if the sender does not see the
 * receiver's device (CUDA_VISIBLE_DEVICES), until the receiver has found out. A borrowed device tensor is usable
 * until bx_job_shutdown. Device tensors to and from a worker that came back (options.rejoin), or is on another host,
 * always go through host memory: the sender waits for the stream that fills the tensor, and the receiver has a copy on
 * the first device that it opened, complete. A worker on another host that has no device open is sent the tensor all
 * the same, and answers -ENODEV.
 */

/* Opens a device: ordinal counts the devices that CUDA_VISIBLE_DEVICES leaves to this process. Opening it again changes
 * nothing. device may be NULL. Blocks up to seconds, the first time. -ENODEV: no driver, no such device, or not for
 * this process; -ENOTSUP: built with CUDA=0; -EOPNOTSUPP: its memory cannot be exported (MIG); BX_E_NO_SPACE. Each
 * sentence says what to do. */
int bx_gpu_open(struct bx_job *job, int ordinal, struct bx_device *device);
int bx_gpu_count(struct bx_job *job);           /* how many devices there are; or the codes of bx_gpu_open */
bool bx_gpu_is_fake(struct bx_job *job);        /* true with the tests' driver (BX_CUDA_DRIVER): timings mean nothing */

/* The job's own CUstream, of the device's primary context; copies of tensors run on it. NULL: the device isn't open. */
void *bx_gpu_stream(struct bx_job *job, struct bx_device device);

/* As bx_tensor_create, in memory of an open device. Does not wait for leases. Blocks for about a second at most if the
 * device is full of memory that other workers are just closing. -ENODEV: the device is not open; -ENOMEM: it is full
 * (the sentence says how much waits for leases). */
int bx_tensor_create_on(struct bx_job *job, struct bx_device device, enum bx_dtype dtype, int ndim,
                        const int64_t *shape, struct bx_tensor **tensor);

/* Declares that the work on the stream now writes the tensor: borrowers' streams wait for that work. stream is a
 * CUstream of the device's primary context that lives until bx_job_shutdown; NULL is the job's own. Without this call,
 * sending uses the job's own stream. -EINVAL: not in device memory, or the stream is CU_STREAM_PER_THREAD; -EROFS:
 * borrowed; -ENOSPC: too many streams. */
int bx_tensor_written_on(struct bx_tensor *tensor, void *stream);
/* Makes work that is put on the stream from now on wait until the tensor is written. Where streams cannot wait for
 * those of other workers (BX_GPU_ORDER=events; counter gpu_fallbacks) it blocks until a borrowed tensor is written. A
 * borrowed tensor is returned after the work that is on the stream when it is released. -EINVAL: not in device memory,
 * or the stream is CU_STREAM_PER_THREAD; -ENOSPC: too many streams; BX_E_PEER_DEAD: its owner died before it was
 * written. */
int bx_tensor_read_on(struct bx_tensor *tensor, void *stream);

/* The functions above on device tensors:
 * bx_tensor_copy makes a device tensor, on the job's own stream.
 * bx_tensor_copy_into also copies between device and host. It blocks until the copy is done: do not use it in a handler
 * that many callers wait for. A tensor that is not row-major is copied through the host, counted as staged; such a
 * tensor on a device cannot be copied into (-ENOTSUP).
 * bx_tensor_data returns a device address. DLPack uses kDLCUDA, both ways, after bx_gpu_open. from_dlpack: -EOPNOTSUPP
 * for memory that cannot be exported: pools, managed memory, and that of cuMemCreate where it was not made to be
 * exported as a file descriptor, or the device exports none. */

#endif
