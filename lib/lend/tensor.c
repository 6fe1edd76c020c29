/* SPDX-License-Identifier: MIT */
/*
 * Tensors: creating them in the arena or on the heap, wrapping memory of the program, reference counts, properties.
 * Views and copies are in tensor_view.c. Any thread. The only lock is run->lock, taken briefly: to collect returned
 * leases, and for the figures of an error.
 *
 * A created tensor and its storage are one malloc with one reference count, the storage's: most tensors have no view,
 * and sending 161 gradients creates 161 tensors. A view has its own count and one reference to the storage. So the
 * storage lives as long as any tensor in it. A grant (grant.c) references storages, never tensors.
 *
 * Killed at any point: reference counts and descriptions are private memory, which peers do not see.
 */
#include "lend.h"

#include "dlpack_abi.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#define RECLAIM_BYTES 4096u     /* a new tensor of this size collects returned leases; */
#define RECLAIM_EVERY 16u       /* of smaller ones, one in so many */
#define HEAP_ALIGN 64u

struct owned {
    struct bxi_storage storage; /* first: freed as one */
    struct bx_tensor tensor;
};

/* ---- dtypes ------------------------------------------------------------------------------------ */

static const struct bxi_dtype dtypes[] = {
    [BX_F32] = { "f32", 32, BXI_DL_FLOAT },        [BX_F64] = { "f64", 64, BXI_DL_FLOAT },
    [BX_F16] = { "f16", 16, BXI_DL_FLOAT },        [BX_BF16] = { "bf16", 16, BXI_DL_BFLOAT },
    [BX_I32] = { "i32", 32, BXI_DL_INT },          [BX_I64] = { "i64", 64, BXI_DL_INT },
    [BX_U8] = { "u8", 8, BXI_DL_UINT },            [BX_BOOL] = { "bool", 8, BXI_DL_BOOL },
    [BX_I8] = { "i8", 8, BXI_DL_INT },             [BX_I16] = { "i16", 16, BXI_DL_INT },
    [BX_U16] = { "u16", 16, BXI_DL_UINT },         [BX_U32] = { "u32", 32, BXI_DL_UINT },
    [BX_U64] = { "u64", 64, BXI_DL_UINT },         [BX_F8_E4M3FN] = { "f8e4m3fn", 8, BXI_DL_FLOAT8_E4M3FN },
    [BX_F8_E5M2] = { "f8e5m2", 8, BXI_DL_FLOAT8_E5M2 },
    [BX_C64] = { "c64", 64, BXI_DL_COMPLEX },      [BX_C128] = { "c128", 128, BXI_DL_COMPLEX },
};

const struct bxi_dtype *bxi_dtype(enum bx_dtype dtype)
{
    bool is_one = (size_t)dtype < sizeof dtypes / sizeof dtypes[0] && dtypes[dtype].bits > 0;

    return is_one ? &dtypes[dtype] : NULL;
}

size_t bx_dtype_bytes(enum bx_dtype dtype)
{
    const struct bxi_dtype *row = bxi_dtype(dtype);

    return row != NULL ? row->bits / 8u : 0;
}

const char *bx_dtype_name(enum bx_dtype dtype)
{
    const struct bxi_dtype *row = bxi_dtype(dtype);

    return row != NULL ? row->name : "?";
}

/* ---- Shapes ------------------------------------------------------------------------------------ */

static int too_large(const struct bxi_shape *shape)
{
    return bx_fail(-EOVERFLOW, "a tensor of %d dimensions and dtype %s has more bytes than can be counted",
                   shape->ndim, bx_dtype_name(shape->dtype));
}

static int check_arguments(const struct bxi_shape *shape)
{
    if (bx_dtype_bytes(shape->dtype) == 0)
        return bx_fail(-EINVAL, "%d is no dtype; see enum bx_dtype", (int)shape->dtype);
    if (shape->ndim < 0 || shape->ndim > BX_DIMS_MAX)
        return bx_fail(-EINVAL, "a tensor has 0 to %d dimensions, not %d", BX_DIMS_MAX, shape->ndim);
    if (shape->ndim > 0 && shape->shape == NULL)
        return bx_fail(-EINVAL, "a tensor of %d dimensions needs a shape", shape->ndim);
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->shape[i] < 0)
            return bx_fail(-EINVAL, "dimension %d is %lld; it must be at least 0", i,
                           (long long)shape->shape[i]);
        if (shape->strides != NULL && shape->strides[i] < 0 && shape->shape[i] > 1)
            return bx_fail(-EINVAL, "the stride of dimension %d is %lld; it must be at least 0", i,
                           (long long)shape->strides[i]);
    }
    return 0;
}

static bool is_row_major(const struct bx_tensor *tensor)
{
    int64_t expected = 1;

    if (tensor->elements == 0)
        return true;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

/* Dimensions of extent 0 count as 1 in the products, so that strides exist for empty tensors too. The tensor is written
 * only after all checks. */
int bxi_tensor_shape(struct bx_tensor *tensor, const struct bxi_shape *shape, uint64_t *extent_bytes)
{
    int64_t strides[BX_DIMS_MAX], product = 1, last = 0, bytes;
    int64_t size = (int64_t)bx_dtype_bytes(shape->dtype);
    bool empty = false;
    int rc = check_arguments(shape);

    if (rc < 0)
        return rc;
    for (int i = shape->ndim - 1; i >= 0; i--) {
        int64_t extent = shape->shape[i], reach;
        bool is_given = shape->strides != NULL && shape->strides[i] >= 0;

        strides[i] = is_given ? shape->strides[i] : product;
        if (extent == 0) {
            empty = true;
            continue;
        }
        if (__builtin_mul_overflow(product, extent, &product) ||
            __builtin_mul_overflow(extent - 1, strides[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return too_large(shape);
    }
    if (__builtin_mul_overflow(product, size, &bytes) || __builtin_add_overflow(last, 1, &last) ||
        __builtin_mul_overflow(last, size, &bytes))
        return too_large(shape);

    tensor->dtype = (uint8_t)shape->dtype;
    tensor->ndim = (uint8_t)shape->ndim;
    tensor->elements = empty ? 0 : product;
    for (int i = 0; i < shape->ndim; i++) {
        tensor->shape[i] = shape->shape[i];
        tensor->strides[i] = strides[i];
    }
    tensor->contiguous = shape->strides == NULL || is_row_major(tensor);
    *extent_bytes = empty ? 0 : (uint64_t)bytes;
    return 0;
}

int64_t bxi_tensor_reach(const struct bx_tensor *tensor)
{
    int64_t last = 0;

    if (tensor->elements == 0)
        return 0;
    for (int i = 0; i < tensor->ndim; i++)
        last += (tensor->shape[i] - 1) * tensor->strides[i];
    return last + 1;
}

/* ---- Creation ---------------------------------------------------------------------------------- */

/* Not calloc: most of it is the unused part of shape and strides, which is never read. */
static struct owned *owned_create(enum bxi_storage_kind kind)
{
    struct owned *owned = malloc(sizeof *owned);

    if (owned == NULL) {
        bx_fail(-ENOMEM, "no memory for a tensor's %zu bytes of description", sizeof *owned);
        return NULL;
    }
    bxi_store_relaxed(&owned->storage.refs, 1);     /* relaxed: nobody else knows it yet */
    bxi_store_relaxed(&owned->storage.leases, 0);
    owned->storage.kind = kind;
    bxi_store_relaxed(&owned->tensor.refs, 0);
    owned->tensor.embedded = true;
    owned->tensor.read_only = false;
    owned->tensor.device = (struct bx_device){ BX_CPU, 0 };
    owned->tensor.storage = &owned->storage;
    owned->tensor.passed = NULL;
    return owned;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* what: "a tensor" or "a message", for the sentence. */
static int fail_space(struct bx_job *job, struct bxi_arena *arena, int rc, const char *what, uint64_t bytes)
{
    struct bxi_arena_stats stats = { 0 };
    struct statvfs shm = { 0 };
    uint64_t loan_bytes;

    if (rc == -ESHUTDOWN)
        return bx_fail(BX_E_SHUTDOWN, "worker '%s' has shut down", job->name);
    if (rc == -ENOBUFS)
        return bx_fail(-ENOMEM, "the process of worker '%s' got no private memory to keep a record of %s of %llu "
                       "bytes; the arena may have room. Raise the limit of the process (RLIMIT_AS, ulimit -v; "
                       "RLIMIT_DATA, ulimit -d) or of the system (vm.overcommit_memory, vm.max_map_count), or make "
                       "the arenas smaller (BX_ARENA_BYTES, options.arena_bytes), which take addresses too",
                       job->name, what, (unsigned long long)bytes);
    if (rc != -ENOSPC && rc != -ENOMEM)
        return bx_fail(rc, "the arena of worker '%s' gave no block of %llu bytes: %s", job->name,
                       (unsigned long long)bytes, bx_strerror(rc));
    bxi_lock(&job->run->lock);
    loan_bytes = job->lend->loan_bytes;
    bxi_unlock(&job->run->lock);
    bxi_arena_read(arena, &stats);
    statvfs("/dev/shm", &shm);

    double shm_free = mib((uint64_t)shm.f_bavail * shm.f_frsize);
    double shm_all = mib((uint64_t)shm.f_blocks * shm.f_frsize);

    if (rc == -ENOSPC)
        return bx_fail(BX_E_NO_SPACE, "no room in /dev/shm for %s of %llu bytes: %.1f of %.1f MiB are free; "
                       "the arena of worker '%s' uses %.1f MiB of the %.1f it holds there, %.1f are on loan. "
                       "Release tensors, bx_arena_trim, or enlarge it: mount -o remount,size=N /dev/shm, "
                       "docker run --shm-size=N", what, (unsigned long long)bytes, shm_free, shm_all, job->name,
                       mib(stats.used_bytes), mib(stats.committed_bytes), mib(loan_bytes));
    return bx_fail(BX_E_ARENA_FULL, "no room in the arena of worker '%s' for %s of %llu bytes: it uses %.1f "
                   "of %.1f MiB, %.1f are on loan (/dev/shm: %.1f of %.1f MiB free). Release tensors, or "
                   "give it more: options.arena_bytes, BX_ARENA_BYTES", job->name, what, (unsigned long long)bytes,
                   mib(stats.used_bytes), mib(stats.size_bytes), mib(loan_bytes), shm_free, shm_all);
}

/* Collects returned leases, so that their blocks are reused before the arena grows. Not for each of many small tensors:
 * collecting takes run->lock. */
static void reclaim_now_and_then(struct bx_job *job, uint64_t bytes)
{
    static _Thread_local uint32_t small;

    /* Relaxed: a lease granted at this moment is not returned yet. */
    if (bxi_load_relaxed(&job->lend->loans_out) == 0)
        return;
    if (bytes >= RECLAIM_BYTES || ++small % RECLAIM_EVERY == 0)
        bxi_grants_reclaim(job);
}

static int block_of(struct bx_job *job, struct bxi_arena *arena, struct bxi_storage *storage, const char *what,
                    uint64_t bytes)
{
    void *block = NULL;

    reclaim_now_and_then(job, bytes);

    int rc = bxi_arena_alloc(arena, bytes, &block);

    if (rc == -ENOSPC || rc == -ENOMEM || rc == -ENOBUFS) {
        bxi_grants_reclaim(job);
        rc = bxi_arena_alloc(arena, bytes, &block);
    }
    if (rc < 0)
        return fail_space(job, arena, rc, what, bytes);
    storage->base = block;
    storage->arena = bxi_arena_acquire(arena);
    /* Relaxed: it changes in the child of a fork, before the child has another thread. */
    storage->fork_generation = bxi_load_relaxed(&bxi_forks);
    return 0;
}

/* Before the start: the first tensor makes the arena. Another thread may be in bx_job_start, whose failure drops it. */
static int early_memory(struct bx_job *job, struct bxi_storage *storage, const char *what, uint64_t bytes)
{
    struct bxi_arena *arena = NULL;
    int rc;

    bxi_lock(&job->run->lock);
    rc = job->lend->make_arena(job);
    if (rc == 0)
        arena = bxi_arena_acquire(job->lend->arena);
    bxi_unlock(&job->run->lock);
    if (rc < 0)
        return rc;
    rc = block_of(job, arena, storage, what, bytes);
    bxi_arena_release(arena);
    return rc;
}

static int arena_memory(struct bx_job *job, struct bxi_storage *storage, const char *what, uint64_t bytes)
{
    /* [phase] acquire, pairs with the release in bx_job_start: the arena is there. */
    if (__builtin_expect(bxi_load_acquire(&job->phase) == BXI_CREATED, 0))
        return early_memory(job, storage, what, bytes);
    return block_of(job, job->lend->arena, storage, what, bytes);
}

static int heap_memory(struct bxi_storage *storage, uint64_t bytes)
{
    uint64_t rounded = bytes > 0 ? (bytes + HEAP_ALIGN - 1) / HEAP_ALIGN * HEAP_ALIGN : HEAP_ALIGN;

    storage->base = aligned_alloc(HEAP_ALIGN, rounded);
    if (storage->base == NULL)
        return bx_fail(-ENOMEM, "no memory for a tensor of %llu bytes", (unsigned long long)bytes);
    return 0;
}

static int create(struct bx_job *job, const char *what, const struct bxi_shape *shape, struct bx_tensor **tensor)
{
    uint64_t bytes = 0;
    int rc;

    struct owned *owned = owned_create(job != NULL ? BXI_STORE_ARENA : BXI_STORE_HEAP);

    if (owned == NULL)
        return -ENOMEM;
    rc = bxi_tensor_shape(&owned->tensor, shape, &bytes);
    if (rc == 0)
        rc = job != NULL ? arena_memory(job, &owned->storage, what, bytes) : heap_memory(&owned->storage, bytes);
    if (rc < 0) {
        free(owned);
        return rc;
    }
    owned->storage.bytes = bytes;
    owned->tensor.data = owned->storage.base;
    *tensor = &owned->tensor;
    return 0;
}

/* As bxi_job_check, but a job that has not started is fine too. */
static int check_job(const struct bx_job *job)
{
    return bxi_load_relaxed(&job->phase) == BXI_CREATED ? bxi_job_check_any(job) : bxi_job_check(job);
}

int bx_tensor_create(struct bx_job *job, enum bx_dtype dtype, int ndim, const int64_t *shape,
                     struct bx_tensor **tensor)
{
    int rc = job != NULL ? check_job(job) : 0;

    if (rc < 0)
        return rc;
    if (tensor == NULL)
        return bx_fail(-EINVAL, "bx_tensor_create has no place to put the tensor");
    return create(job, "a tensor", &(struct bxi_shape){ dtype, ndim, shape, NULL }, tensor);
}

int bxi_tensor_for_bytes(struct bx_job *job, size_t bytes, struct bx_tensor **tensor)
{
    const int64_t shape = (int64_t)bytes;
    int rc = bxi_job_check(job);

    return rc < 0 ? rc : create(job, "a message", &(struct bxi_shape){ BX_U8, 1, &shape, NULL }, tensor);
}

int bx_tensor_wrap(void *data, enum bx_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides,
                   bx_free_fn free_fn, void *context, struct bx_tensor **tensor)
{
    uint64_t bytes = 0;

    if (tensor == NULL)
        return bx_fail(-EINVAL, "bx_tensor_wrap has no place to put the tensor");

    struct owned *owned = owned_create(BXI_STORE_FOREIGN);

    if (owned == NULL)
        return -ENOMEM;

    int rc = bxi_tensor_shape(&owned->tensor, &(struct bxi_shape){ dtype, ndim, shape, strides }, &bytes);

    if (rc == 0 && data == NULL && bytes > 0)
        rc = bx_fail(-EINVAL, "there is no memory to wrap, and the tensor has %llu bytes",
                     (unsigned long long)bytes);
    if (rc == 0 && bytes > UINTPTR_MAX - (uintptr_t)data)
        rc = bx_fail(-EOVERFLOW, "a tensor of %llu bytes at %p would pass the end of memory",
                     (unsigned long long)bytes, data);
    if (rc < 0) {
        free(owned);
        return rc;
    }
    owned->storage.base = data;
    owned->storage.bytes = bytes;
    owned->storage.free_fn = free_fn;
    owned->storage.context = context;
    owned->tensor.data = data;
    *tensor = &owned->tensor;
    return 0;
}

/* ---- References -------------------------------------------------------------------------------- */

struct bx_tensor *bx_tensor_acquire(struct bx_tensor *tensor)
{
    if (tensor == NULL)
        return NULL;
    bxi_add(tensor->embedded ? &tensor->storage->refs : &tensor->refs, 1);
    return tensor;
}

void bx_tensor_release(struct bx_tensor *tensor)
{
    if (tensor == NULL)
        return;

    struct bxi_storage *storage = tensor->storage;

    if (!tensor->embedded) {
        if (!bxi_refs_drop(&tensor->refs))
            return;
        free(tensor);
    }
    bxi_storage_release(storage);
}

/* ---- Properties -------------------------------------------------------------------------------- */

enum bx_dtype bx_tensor_dtype(const struct bx_tensor *tensor)
{
    return tensor != NULL ? (enum bx_dtype)tensor->dtype : (enum bx_dtype)0;
}

struct bx_device bx_tensor_device(const struct bx_tensor *tensor)
{
    return tensor != NULL ? tensor->device : (struct bx_device){ BX_CPU, 0 };
}

int bx_tensor_ndim(const struct bx_tensor *tensor)
{
    return tensor != NULL ? tensor->ndim : bxi_null(__func__, "the tensor");
}

int64_t bx_tensor_dim(const struct bx_tensor *tensor, int dim)
{
    return tensor != NULL && dim >= 0 && dim < tensor->ndim ? tensor->shape[dim] : 0;
}

const int64_t *bx_tensor_shape(const struct bx_tensor *tensor)
{
    return tensor != NULL ? tensor->shape : NULL;
}

const int64_t *bx_tensor_strides(const struct bx_tensor *tensor)
{
    return tensor != NULL ? tensor->strides : NULL;
}

int64_t bx_tensor_elements(const struct bx_tensor *tensor)
{
    return tensor != NULL ? tensor->elements : 0;
}

size_t bx_tensor_bytes(const struct bx_tensor *tensor)
{
    return tensor == NULL ? 0 : (size_t)tensor->elements * (dtypes[tensor->dtype].bits / 8u);
}

bool bx_tensor_is_contiguous(const struct bx_tensor *tensor)
{
    return tensor != NULL && tensor->contiguous != 0;
}

bool bx_tensor_is_borrowed(const struct bx_tensor *tensor)
{
    return tensor != NULL && tensor->storage->kind == BXI_STORE_LOAN;
}

bool bx_tensor_is_shared(const struct bx_tensor *tensor)
{
    return tensor != NULL &&
           (tensor->storage->kind == BXI_STORE_ARENA || tensor->storage->kind == BXI_STORE_DEVICE);
}

uint32_t bx_tensor_on_loan(const struct bx_tensor *tensor)
{
    /* Acquire, pairs with the subtraction in drop_holds: a caller that sees 0 may write to the memory, after the
     * borrowers' last reads. */
    return bx_tensor_is_shared(tensor) ? bxi_load_acquire(&tensor->storage->leases) : 0;
}

const void *bx_tensor_data(const struct bx_tensor *tensor)
{
    return tensor != NULL ? tensor->data : NULL;
}

void *bx_tensor_data_mut(struct bx_tensor *tensor)
{
    return tensor == NULL || tensor->read_only ? NULL : tensor->data;
}
