/* SPDX-License-Identifier: MIT */
/*
 * A device to compute on (boxcar_cuda.h): opening and closing it, its memory, and the loss and the optimiser of
 * boxcar_nn.h. Run by the thread that uses the device.
 */
#include "cuda.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(sizeof(((struct bxk_sgd *)NULL)->grads) == BX_CUDA_GRADS_MAX * sizeof(float *), "all gradients");

/* ---- Open and close ------------------------------------------------------------------------------ */

/* Needs the driver only. */
static int count_devices(const struct bx_cuda *cuda)
{
    int count = 0;
    unsigned result = cuda->cu.cuDeviceGetCount(&count);

    return result == CUDA_SUCCESS ? count : bxi_cuda_fail(cuda, result, "counting devices");
}

int bx_cuda_count(void)
{
    struct bx_cuda cuda = { .context = NULL };
    int rc = bxi_cuda_load_driver(&cuda.cu);

    return rc < 0 ? rc : count_devices(&cuda);
}

static int find_device(struct bx_cuda *cuda, int ordinal)
{
    const struct bxi_cuda *cu = &cuda->cu;
    int count = count_devices(cuda), major = 0, minor = 0;
    unsigned result;

    if (count < 0)
        return count;
    if (ordinal < 0 || ordinal >= count)
        return bx_fail(-ENODEV, "there is no device %d: this process sees %d; look at nvidia-smi and at "
                       "CUDA_VISIBLE_DEVICES", ordinal, count);
    cuda->ordinal = ordinal;
    result = cu->cuDeviceGet(&cuda->handle, ordinal);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetName(cuda->name, (int)sizeof(cuda->name), cuda->handle);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cuda->handle);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, cuda->handle);
    if (result != CUDA_SUCCESS)
        return bxi_cuda_fail(cuda, result, "asking device %d what it is", ordinal);
    cuda->capability = 10 * major + minor;
    return 0;
}

static int retain(struct bx_cuda *cuda)
{
    const struct bxi_cuda *cu = &cuda->cu;
    int mode = 0;
    unsigned result = cu->cuDevicePrimaryCtxRetain(&cuda->context, cuda->handle);

    if (result == CUDA_SUCCESS)
        return 0;
    cuda->context = NULL;
    (void)cu->cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, cuda->handle);
    if (bxi_cu_mode_advice(mode) != NULL)
        return bx_fail(-ENODEV, "device %d (%s) %s", cuda->ordinal, cuda->name, bxi_cu_mode_advice(mode));
    return bxi_cuda_fail(cuda, result, "taking device %d (%s) into use", cuda->ordinal, cuda->name);
}

/* Makes the stream, the memory of the loss and the kernels; with the context entered. */
static int init_device(struct bx_cuda *cuda)
{
    const struct bxi_cuda *cu = &cuda->cu;
    void *there = NULL, *here = NULL;
    unsigned result = cu->cuStreamCreate(&cuda->stream, CU_STREAM_NON_BLOCKING);
    int rc;

    if (result == CUDA_SUCCESS)
        result = cu->cuMemHostAlloc(&here, sizeof(*cuda->loss_here), 0);
    if (result != CUDA_SUCCESS)
        return bxi_cuda_fail(cuda, result, "a stream and pinned memory for device %d (%s)", cuda->ordinal, cuda->name);
    cuda->loss_here = here;
    rc = bxi_cuda_take(cuda, sizeof(*cuda->loss), &there);
    cuda->loss = there;
    return rc < 0 ? rc : bxi_kernels_own(cuda);
}

/* Destroys what there is of that and the libraries' handles; with the context entered. */
static void fini_device(struct bx_cuda *cuda)
{
    const struct bxi_cuda *cu = &cuda->cu;

    if (cuda->stream != NULL)
        (void)cu->cuStreamSynchronize(cuda->stream);
    bxi_kernels_end(cuda->own);
    if (cuda->dnn != NULL)
        (void)cuda->cudnn.cudnnDestroy(cuda->dnn);
    if (cuda->blas != NULL)
        (void)cuda->cublas.cublasDestroy_v2(cuda->blas);
    if (cuda->loss_here != NULL)
        (void)cu->cuMemFreeHost(cuda->loss_here);
    if (cuda->loss != NULL)
        (void)cu->cuMemFree_v2((uintptr_t)cuda->loss);
    if (cuda->stream != NULL)
        (void)cu->cuStreamDestroy_v2(cuda->stream);
}

static void close_context(void *object)
{
    struct bx_cuda *cuda = object;

    if (bxi_cuda_enter(cuda, "bx_cuda_close") < 0)
        return;
    fini_device(cuda);
    bxi_cuda_leave(cuda);
    (void)cuda->cu.cuDevicePrimaryCtxRelease_v2(cuda->handle);
}

void bx_cuda_close(struct bx_cuda *cuda)
{
    if (cuda == NULL)
        return;
    if (cuda->context != NULL && !bxi_cuda_end(cuda, close_context, cuda))
        return;
    free(cuda);
}

int bx_cuda_open(int ordinal, struct bx_cuda **cuda)
{
    struct bx_cuda *made;
    int rc;

    if (cuda == NULL)
        return bx_fail(-EINVAL, "bx_cuda_open needs a place for the device");
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return bx_fail(-ENOMEM, "no memory for a device's books");
    rc = bxi_cuda_load_driver(&made->cu);
    if (rc == 0)
        rc = find_device(made, ordinal);
    if (rc == 0)
        rc = bxi_cuda_load_nvrtc(made);
    if (rc == 0)
        rc = retain(made);
    if (rc == 0)
        rc = bxi_cuda_enter(made, "bx_cuda_open");
    if (rc == 0) {
        rc = init_device(made);
        /* The first net reports what is missing. */
        if (rc == 0)
            (void)bxi_cuda_open_networks(made);
        bxi_cuda_leave(made);
    }
    if (rc < 0) {
        bx_cuda_close(made);
        return rc;
    }
    *cuda = made;
    return 0;
}

const char *bx_cuda_name(const struct bx_cuda *cuda)
{
    return cuda == NULL ? NULL : cuda->name;
}

void *bx_cuda_stream(const struct bx_cuda *cuda)
{
    return cuda == NULL ? NULL : cuda->stream;
}

int bx_cuda_wait(struct bx_cuda *cuda)
{
    int rc = bxi_cuda_enter(cuda, "bx_cuda_wait");

    if (rc < 0)
        return rc;
    rc = bxi_cuda_sync(cuda);
    bxi_cuda_leave(cuda);
    return rc;
}

/* ---- Memory -------------------------------------------------------------------------------------- */

/* Checks the arguments of an allocation and enters the context. */
static int may_allocate(struct bx_cuda *cuda, const char *call, size_t bytes, void **memory)
{
    if (bytes == 0 || memory == NULL)
        return bx_fail(-EINVAL, "%s needs a number of bytes and a place for the address", call);
    return bxi_cuda_enter(cuda, call);
}

int bx_cuda_alloc(struct bx_cuda *cuda, size_t bytes, void **memory)
{
    int rc = may_allocate(cuda, "bx_cuda_alloc", bytes, memory);

    if (rc < 0)
        return rc;
    rc = bxi_cuda_take(cuda, bytes, memory);
    bxi_cuda_leave(cuda);
    return rc;
}

int bx_cuda_alloc_host(struct bx_cuda *cuda, size_t bytes, void **memory)
{
    void *address = NULL;
    int rc = may_allocate(cuda, "bx_cuda_alloc_host", bytes, memory);
    unsigned result;

    if (rc < 0)
        return rc;
    result = cuda->cu.cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (result == CUDA_SUCCESS)
        *memory = address;
    else
        rc = bxi_cuda_fail(cuda, result, "%zu bytes of pinned memory", bytes);
    bxi_cuda_leave(cuda);
    return rc;
}

void bx_cuda_free(struct bx_cuda *cuda, void *memory)
{
    if (memory == NULL || bxi_cuda_enter(cuda, "bx_cuda_free") < 0)
        return;
    (void)bxi_cuda_sync(cuda);
    (void)cuda->cu.cuMemFree_v2((uintptr_t)memory);
    bxi_cuda_leave(cuda);
}

void bx_cuda_free_host(struct bx_cuda *cuda, void *memory)
{
    if (memory == NULL || bxi_cuda_enter(cuda, "bx_cuda_free_host") < 0)
        return;
    (void)bxi_cuda_sync(cuda);
    (void)cuda->cu.cuMemFreeHost(memory);
    bxi_cuda_leave(cuda);
}

int bx_cuda_copy(struct bx_cuda *cuda, void *to, const void *from, size_t bytes)
{
    int rc;

    if (to == NULL || from == NULL)
        return bx_fail(-EINVAL, "bx_cuda_copy needs two addresses");
    rc = bxi_cuda_enter(cuda, "bx_cuda_copy");
    if (rc < 0)
        return rc;
    rc = bxi_cuda_put_copy(cuda, to, from, bytes);
    bxi_cuda_leave(cuda);
    return rc;
}

int bx_cuda_zero(struct bx_cuda *cuda, void *memory, size_t bytes)
{
    unsigned result = CUDA_SUCCESS;
    int rc;

    if (memory == NULL)
        return bx_fail(-EINVAL, "bx_cuda_zero needs an address");
    rc = bxi_cuda_enter(cuda, "bx_cuda_zero");
    if (rc < 0)
        return rc;
    if (bytes > 0)
        result = cuda->cu.cuMemsetD8Async((uintptr_t)memory, 0, bytes, cuda->stream);
    if (result != CUDA_SUCCESS)
        rc = bxi_cuda_fail(cuda, result, "zeros in %zu bytes of device %d (%s)", bytes, cuda->ordinal, cuda->name);
    bxi_cuda_leave(cuda);
    return rc;
}

/* ---- Loss and optimizer -------------------------------------------------------------------------- */

int bx_cuda_mse_loss(struct bx_cuda *cuda, const float *output, const float *target, size_t count, float *grad,
                     double *loss)
{
    struct bxk_mse args = { .output = output, .target = target, .grad = grad, .count = count };
    int rc;

    if (output == NULL || target == NULL || loss == NULL)
        return bx_fail(-EINVAL, "bx_cuda_mse_loss needs an output, a target and a place for the loss");
    rc = bxi_cuda_enter(cuda, "bx_cuda_mse_loss");
    if (rc < 0)
        return rc;
    args.loss = cuda->loss;
    *cuda->loss_here = 0.0;
    rc = bxi_kernel_put(cuda->own, "bxk_mse", count, &args);
    if (rc == 0 && count > 0)
        rc = bxi_cuda_put_copy(cuda, cuda->loss_here, cuda->loss, sizeof(*loss));
    if (rc == 0)
        rc = bxi_cuda_sync(cuda);
    bxi_cuda_leave(cuda);
    if (rc == 0)
        *loss = *cuda->loss_here;
    return rc;
}

int bx_cuda_sgd_step(struct bx_cuda *cuda, const struct bx_sgd *step)
{
    struct bxk_sgd args = { .from = NULL };
    int rc;

    if (step == NULL || step->from == NULL || step->to == NULL || step->velocity == NULL || step->grads == NULL)
        return bx_fail(-EINVAL, "bx_cuda_sgd_step needs a model to begin from, a place for the next, a velocity and "
                       "gradients");
    if (step->grad_count == 0 || step->grad_count > BX_CUDA_GRADS_MAX)
        return bx_fail(-EINVAL, "bx_cuda_sgd_step takes 1 to %d gradients, not %zu", BX_CUDA_GRADS_MAX,
                       step->grad_count);
    for (size_t i = 0; i < step->grad_count; i++)
        args.grads[i] = step->grads[i];
    args.from = step->from;
    args.to = step->to;
    args.velocity = step->velocity;
    args.elements = step->elements;
    args.grad_count = (unsigned)step->grad_count;
    args.lr = step->lr;
    args.momentum = step->momentum;
    rc = bxi_cuda_enter(cuda, "bx_cuda_sgd_step");
    if (rc < 0)
        return rc;
    rc = bxi_kernel_put(cuda->own, "bxk_sgd", step->elements, &args);
    bxi_cuda_leave(cuda);
    return rc;
}
