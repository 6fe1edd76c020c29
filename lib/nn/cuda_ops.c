/* SPDX-License-Identifier: MIT */
/*
 * How each kind of operation is computed on a GPU (cuda.h): convolution, batch normalisation, pooling, softmax and
 * biases by cuDNN, matrix products by cuBLAS, sums and ReLU by kernels.cu. Run by the thread that uses the net, with
 * the context entered.
 *
 * All of it is float32: convolutions ask for FMA arithmetic and cuBLAS has its default; neither rounds to TF32. A
 * convolution's algorithm is chosen once, by cuDNN's heuristics, without trying any: the first of its list that is
 * deterministic, if there is one, and does not need too much memory.
 */
#include "cuda.h"

#include <errno.h>

enum { ALGORITHMS = 8 };            /* no kind of convolution has more */

#define WORKSPACE_MAX ((size_t)1 << 30)

static const float ONE = 1.0f, ZERO = 0.0f;

/* ---- Results ------------------------------------------------------------------------------------- */

static int dnn_code(int status)
{
    if (status == BXI_CUDNN_ALLOC_FAILED || status == BXI_CUDNN_9_HOST_ALLOC_FAILED ||
        status == BXI_CUDNN_9_DEVICE_ALLOC_FAILED)
        return -ENOMEM;
    if (status == BXI_CUDNN_NOT_SUPPORTED ||
        (status >= BXI_CUDNN_9_NOT_SUPPORTED && status < BXI_CUDNN_9_NOT_SUPPORTED + 1000))
        return -ENOTSUP;
    return -EIO;
}

static const char *name_of(const struct bxi_cuda_plan *plan, int index)
{
    const char *name = plan->net->nodes[index].name;

    return name == NULL ? "without a name" : name;
}

static int dnn_result(const struct bxi_cuda_plan *plan, int index, int status, const char *what)
{
    if (status == 0)
        return 0;
    return bx_fail(dnn_code(status), "cuDNN refused the %s of node %d (%s): %s (%d)", what, index,
                   name_of(plan, index), plan->cuda->cudnn.cudnnGetErrorString(status), status);
}

static const char *blas_name(int status)
{
    static const char *const names[16] = {
        [1] = "CUBLAS_STATUS_NOT_INITIALIZED", [3] = "CUBLAS_STATUS_ALLOC_FAILED", [7] = "CUBLAS_STATUS_INVALID_VALUE",
        [8] = "CUBLAS_STATUS_ARCH_MISMATCH", [11] = "CUBLAS_STATUS_MAPPING_ERROR",
        [13] = "CUBLAS_STATUS_EXECUTION_FAILED", [14] = "CUBLAS_STATUS_INTERNAL_ERROR",
        [15] = "CUBLAS_STATUS_NOT_SUPPORTED",
    };

    return status < 0 || status > 15 || names[status] == NULL ? "an unknown status" : names[status];
}

static int blas_code(int status)
{
    return status == BXI_CUBLAS_ALLOC_FAILED ? -ENOMEM : -EIO;
}

static int blas_result(const struct bxi_cuda_plan *plan, int index, int status, const char *what)
{
    if (status == 0)
        return 0;
    return bx_fail(blas_code(status), "cuBLAS refused the %s of node %d (%s): %s (%d)", what, index,
                   name_of(plan, index), blas_name(status), status);
}

/* ---- The libraries ------------------------------------------------------------------------------- */

static int open_blas(struct bx_cuda *cuda)
{
    struct cublasContext *blas = NULL;
    int status = cuda->cublas.cublasCreate_v2(&blas);
    bool is_made = status == 0;

    if (status == 0)
        status = cuda->cublas.cublasSetStream_v2(blas, cuda->stream);
    if (status == 0)
        status = cuda->cublas.cublasSetMathMode(blas, BXI_CUBLAS_DEFAULT_MATH);
    if (status == 0) {
        cuda->blas = blas;
        return 0;
    }
    if (is_made)
        (void)cuda->cublas.cublasDestroy_v2(blas);
    return bx_fail(blas_code(status), "cuBLAS did not start on device %d (%s): %s (%d)", cuda->ordinal, cuda->name,
                   blas_name(status), status);
}

static int open_dnn(struct bx_cuda *cuda)
{
    struct cudnnContext *dnn = NULL;
    int status = cuda->cudnn.cudnnCreate(&dnn);
    bool is_made = status == 0;

    if (status == 0)
        status = cuda->cudnn.cudnnSetStream(dnn, cuda->stream);
    if (status == 0) {
        cuda->dnn = dnn;
        return 0;
    }
    if (is_made)
        (void)cuda->cudnn.cudnnDestroy(dnn);
    return bx_fail(dnn_code(status), "cuDNN %zu did not start on device %d (%s): %s (%d)",
                   cuda->cudnn.cudnnGetVersion(), cuda->ordinal, cuda->name,
                   cuda->cudnn.cudnnGetErrorString(status), status);
}

int bxi_cuda_open_networks(struct bx_cuda *cuda)
{
    int rc = cuda->blas == NULL || cuda->dnn == NULL ? bxi_cuda_load_networks(cuda) : 0;

    if (rc == 0 && cuda->blas == NULL)
        rc = open_blas(cuda);
    if (rc == 0 && cuda->dnn == NULL)
        rc = open_dnn(cuda);
    return rc;
}

int bxi_cuda_check(struct bx_cuda *cuda)
{
    int rc = bxi_cuda_enter(cuda, "bx_net_create");

    if (rc < 0)
        return rc;
    rc = bxi_cuda_open_networks(cuda);
    bxi_cuda_leave(cuda);
    return rc;
}

/* ---- Descriptors --------------------------------------------------------------------------------- */

static int describe_tensor(const struct bxi_cudnn *dnn, const int dims[4], struct cudnnTensorStruct **tensor)
{
    int status = dnn->cudnnCreateTensorDescriptor(tensor);

    if (status == 0)
        status = dnn->cudnnSetTensor4dDescriptor(*tensor, BXI_CUDNN_NCHW, BXI_CUDNN_FLOAT, dims[0], dims[1], dims[2],
                                                 dims[3]);
    return status;
}

static int describe_conv(const struct bxi_cudnn *dnn, const struct bxi_node *node, int in_channels,
                         struct bxi_cuda_work *work)
{
    int status = dnn->cudnnCreateFilterDescriptor(&work->filter);

    if (status == 0)
        status = dnn->cudnnSetFilter4dDescriptor(work->filter, BXI_CUDNN_FLOAT, BXI_CUDNN_NCHW, node->dims[1],
                                                 in_channels, node->kernel, node->kernel);
    if (status == 0)
        status = dnn->cudnnCreateConvolutionDescriptor(&work->conv);
    if (status == 0)
        status = dnn->cudnnSetConvolution2dDescriptor(work->conv, node->padding, node->padding, node->stride,
                                                      node->stride, 1, 1, BXI_CUDNN_CROSS_CORRELATION,
                                                      BXI_CUDNN_FLOAT);
    if (status == 0)
        status = dnn->cudnnSetConvolutionMathType(work->conv, BXI_CUDNN_FMA_MATH);
    return status;
}

/* The windows of the mean over an image are the image. */
static int describe_pool(const struct bxi_cudnn *dnn, const struct bxi_node *node, const int in[4],
                         struct bxi_cuda_work *work)
{
    bool is_max = node->op == BXI_NN_MAX_POOL;
    int height = is_max ? node->kernel : in[2], width = is_max ? node->kernel : in[3];
    int stride = is_max ? node->stride : 1;
    int status = dnn->cudnnCreatePoolingDescriptor(&work->pool);

    if (status == 0)
        status = dnn->cudnnSetPooling2dDescriptor(
            work->pool, is_max ? BXI_CUDNN_POOLING_MAX_DETERMINISTIC : BXI_CUDNN_POOLING_AVERAGE,
            BXI_CUDNN_NOT_PROPAGATE_NAN, height, width, node->padding, node->padding, stride, stride);
    return status;
}

/* Takes the first usable algorithm that is deterministic, else the first usable one. cuDNN's documentation does not
 * promise that results are marked FMA when the descriptor asks for FMA; some algorithms that have no other arithmetic
 * are marked DEFAULT. The descriptor decides, so those are taken when there are no others. */
static int choose(const struct bxi_cuda_plan *plan, int index, const struct bxi_cudnn_perf *results, int count,
                  struct bxi_algorithm *chosen)
{
    for (int rank = 0; rank < 4; rank++) {
        int math_type = rank < 2 ? BXI_CUDNN_FMA_MATH : BXI_CUDNN_DEFAULT_MATH;

        for (int i = 0; i < count; i++) {
            const struct bxi_cudnn_perf *result = &results[i];

            if (result->status != 0 || result->math_type != math_type || result->memory > WORKSPACE_MAX ||
                (rank % 2 == 0 && result->determinism != BXI_CUDNN_DETERMINISTIC))
                continue;
            chosen->number = result->algorithm;
            chosen->workspace_bytes = result->memory;
            return 0;
        }
    }
    return bx_fail(-ENOTSUP, "cuDNN has no algorithm in float32 for the convolution of node %d (%s)", index,
                   name_of(plan, index));
}

static int choose_algorithms(const struct bxi_cuda_plan *plan, int index)
{
    const struct bxi_cudnn *dnn = &plan->cuda->cudnn;
    struct cudnnContext *handle = plan->cuda->dnn;
    int in = plan->net->nodes[index].in[0], count = 0;
    struct bxi_cuda_work *work = &plan->work[index];
    struct cudnnTensorStruct *x = plan->work[in].shape, *y = work->shape;
    struct bxi_cudnn_perf results[ALGORITHMS];
    int rc = dnn_result(plan, index, dnn->cudnnGetConvolutionForwardAlgorithm_v7(
        handle, x, work->filter, work->conv, y, ALGORITHMS, &count, results), "choice of an algorithm");

    if (rc == 0)
        rc = choose(plan, index, results, count, &work->forward);
    if (rc == 0)
        rc = dnn_result(plan, index, dnn->cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            handle, x, y, work->conv, work->filter, ALGORITHMS, &count, results), "choice of an algorithm");
    if (rc == 0)
        rc = choose(plan, index, results, count, &work->backward_weights);
    if (rc < 0 || !plan->net->nodes[in].grad)
        return rc;
    rc = dnn_result(plan, index, dnn->cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle, work->filter, y, work->conv, x, ALGORITHMS, &count, results), "choice of an algorithm");
    return rc < 0 ? rc : choose(plan, index, results, count, &work->backward_data);
}

int bxi_cuda_describe(struct bxi_cuda_plan *plan, int index)
{
    const struct bxi_cudnn *dnn = &plan->cuda->cudnn;
    const struct bxi_node *node = &plan->net->nodes[index];
    struct bxi_cuda_work *work = &plan->work[index];
    int status = describe_tensor(dnn, node->dims, &work->shape);

    if (status == 0 && node->bias)
        status = describe_tensor(dnn, (const int[4]){ 1, node->dims[1], 1, 1 }, &work->vector);
    if (status == 0 && node->op == BXI_NN_CONV)
        status = describe_conv(dnn, node, plan->net->nodes[node->in[0]].dims[1], work);
    if (status == 0 && (node->op == BXI_NN_MAX_POOL || node->op == BXI_NN_GLOBAL_AVG_POOL))
        status = describe_pool(dnn, node, plan->net->nodes[node->in[0]].dims, work);
    if (status != 0)
        return dnn_result(plan, index, status, "description");
    return node->op == BXI_NN_CONV ? choose_algorithms(plan, index) : 0;
}

void bxi_cuda_forget(const struct bxi_cuda_plan *plan, int index)
{
    const struct bxi_cudnn *dnn = &plan->cuda->cudnn;
    const struct bxi_cuda_work *work = &plan->work[index];

    if (work->shape != NULL)
        (void)dnn->cudnnDestroyTensorDescriptor(work->shape);
    if (work->vector != NULL)
        (void)dnn->cudnnDestroyTensorDescriptor(work->vector);
    if (work->filter != NULL)
        (void)dnn->cudnnDestroyFilterDescriptor(work->filter);
    if (work->conv != NULL)
        (void)dnn->cudnnDestroyConvolutionDescriptor(work->conv);
    if (work->pool != NULL)
        (void)dnn->cudnnDestroyPoolingDescriptor(work->pool);
}

/* ---- Arrays of a node ---------------------------------------------------------------------------- */

float *bxi_cuda_at(const struct bxi_cuda_plan *plan, struct bxi_place place)
{
    return place.count == 0 ? NULL : plan->memory + place.offset;
}

float *bxi_cuda_statistic(const struct bxi_cuda_plan *plan, int index, enum bxi_statistic which)
{
    return bxi_cuda_at(plan, plan->work[index].statistics[which]);
}

/* The arrays that a node reads and writes, and the gradients of both. */
struct arrays {
    const struct bxi_node *node, *from;
    const struct bxi_cuda_work *work, *in;
    const float *x, *weight, *bias;
    float *y, *dy;
    float *dx;                      /* NULL: not needed */
    const float *beta;              /* of dx: 1 to add to it, 0 to write it */
    unsigned long long out_count;
    unsigned in_row, out_row;       /* elements of an image */
};

static const float *output_of(const struct bxi_cuda_plan *plan, int index)
{
    return plan->net->nodes[index].op == BXI_NN_INPUT ? plan->input : bxi_cuda_at(plan, plan->work[index].out);
}

static unsigned row_of(const struct bxi_node *node)
{
    return (unsigned)node->dims[1] * (unsigned)node->dims[2] * (unsigned)node->dims[3];
}

static struct arrays arrays_of(const struct bxi_cuda_plan *plan, int index)
{
    const struct bxi_node *node = &plan->net->nodes[index], *from = &plan->net->nodes[node->in[0]];
    const struct bxi_cuda_work *work = &plan->work[index], *in = &plan->work[node->in[0]];
    struct arrays a = { .node = node, .from = from, .work = work, .in = in };

    a.x = output_of(plan, node->in[0]);
    if (node->param >= 0)
        a.weight = bxi_cuda_at(plan, plan->params[node->param]);
    if (node->param >= 0 && node->bias)
        a.bias = bxi_cuda_at(plan, plan->params[node->param + 1]);
    a.y = bxi_cuda_at(plan, work->out);
    a.dy = bxi_cuda_at(plan, work->grad);
    a.dx = from->grad ? bxi_cuda_at(plan, in->grad) : NULL;
    a.beta = work->adds[0] ? &ONE : &ZERO;
    a.in_row = row_of(from);
    a.out_row = row_of(node);
    a.out_count = bxi_node_elements(node);
    return a;
}

/* ---- Forward ------------------------------------------------------------------------------------- */

static int put_sum(const struct bxi_cuda_plan *plan, const struct arrays *a, const float *first, const float *second)
{
    const struct bxk_sum args = {
        .to = a->y, .a = first, .b = second, .count = a->out_count, .relu = a->node->relu,
    };

    return bxi_kernel_put(plan->cuda->own, "bxk_sum", args.count, &args);
}

static int forward_bias(const struct bxi_cuda_plan *plan, const struct arrays *a)
{
    return a->bias == NULL ? 0 : plan->cuda->cudnn.cudnnAddTensor(plan->cuda->dnn, &ONE, a->work->vector, a->bias, &ONE,
                                                                  a->work->shape, a->y);
}

static int forward_conv(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    const struct bxi_cudnn *dnn = &plan->cuda->cudnn;
    const struct bxi_algorithm *algorithm = &a->work->forward;
    int status = dnn->cudnnConvolutionForward(plan->cuda->dnn, &ONE, a->in->shape, a->x, a->work->filter, a->weight,
                                              a->work->conv, algorithm->number, bxi_cuda_at(plan, plan->workspace),
                                              algorithm->workspace_bytes, &ZERO, a->work->shape, a->y);

    if (status == 0)
        status = forward_bias(plan, a);
    return dnn_result(plan, index, status, "forward pass");
}

static int forward_norm(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    const struct bxi_cudnn *dnn = &plan->cuda->cudnn;
    float *row[BXI_STATISTICS];
    int status;

    for (int i = 0; i < BXI_STATISTICS; i++)
        row[i] = bxi_cuda_statistic(plan, index, (enum bxi_statistic)i);
    if (plan->predicts)
        status = dnn->cudnnBatchNormalizationForwardInference(
            plan->cuda->dnn, BXI_CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO, a->in->shape, a->x, a->work->shape, a->y,
            a->work->vector, a->weight, a->bias, row[BXI_RUNNING_MEAN], row[BXI_RUNNING_VAR], (double)BXI_BN_EPSILON);
    else
        status = dnn->cudnnBatchNormalizationForwardTraining(
            plan->cuda->dnn, BXI_CUDNN_BATCHNORM_SPATIAL, &ONE, &ZERO, a->in->shape, a->x, a->work->shape, a->y,
            a->work->vector, a->weight, a->bias, BXI_BN_MOMENTUM, row[BXI_RUNNING_MEAN], row[BXI_RUNNING_VAR],
            (double)BXI_BN_EPSILON, row[BXI_BATCH_MEAN], row[BXI_BATCH_INVERSE]);
    if (status != 0 || !a->node->relu)
        return dnn_result(plan, index, status, "forward pass");
    return put_sum(plan, a, a->y, NULL);
}

static int forward_pool(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    return dnn_result(plan, index, plan->cuda->cudnn.cudnnPoolingForward(
        plan->cuda->dnn, a->work->pool, &ONE, a->in->shape, a->x, &ZERO, a->work->shape, a->y), "forward pass");
}

/* A row-major N x O matrix is a column-major O x N one: y' = W x', where W, row-major O x I, is passed transposed. */
static int forward_linear(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    int in = (int)a->in_row, out = (int)a->out_row;
    int rc = blas_result(plan, index, plan->cuda->cublas.cublasSgemm_v2(
        plan->cuda->blas, BXI_CUBLAS_OP_T, BXI_CUBLAS_OP_N, out, a->node->dims[0], in, &ONE, a->weight, in, a->x, in,
        &ZERO, a->y, out), "forward pass");

    return rc < 0 ? rc : dnn_result(plan, index, forward_bias(plan, a), "forward pass");
}

static int forward_softmax(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    return dnn_result(plan, index, plan->cuda->cudnn.cudnnSoftmaxForward(
        plan->cuda->dnn, BXI_CUDNN_SOFTMAX_ACCURATE, BXI_CUDNN_SOFTMAX_INSTANCE, &ONE, a->in->shape, a->x, &ZERO,
        a->work->shape, a->y), "forward pass");
}

int bxi_cuda_forward(const struct bxi_cuda_plan *plan, int index)
{
    const struct arrays a = arrays_of(plan, index);

    switch (a.node->op) {
    case BXI_NN_INPUT: return 0;
    case BXI_NN_CONV: return forward_conv(plan, index, &a);
    case BXI_NN_BATCH_NORM: return forward_norm(plan, index, &a);
    case BXI_NN_RELU: return put_sum(plan, &a, a.x, NULL);
    case BXI_NN_ADD: return put_sum(plan, &a, a.x, output_of(plan, a.node->in[1]));
    case BXI_NN_MAX_POOL:
    case BXI_NN_GLOBAL_AVG_POOL: return forward_pool(plan, index, &a);
    case BXI_NN_LINEAR: return forward_linear(plan, index, &a);
    case BXI_NN_SOFTMAX: return forward_softmax(plan, index, &a);
    }
    return 0;
}

/* ---- Backward ------------------------------------------------------------------------------------ */

static int put_mask(const struct bxi_cuda_plan *plan, const struct arrays *a, float *to, bool adds)
{
    const struct bxk_mask args = {
        .to = to, .grad = a->dy, .y = a->node->relu ? a->y : NULL, .count = a->out_count, .add = adds,
    };

    return bxi_kernel_put(plan->cuda->own, "bxk_mask", args.count, &args);
}

static int backward_bias(const struct bxi_cuda_plan *plan, const struct arrays *a)
{
    return a->bias == NULL ? 0 : plan->cuda->cudnn.cudnnConvolutionBackwardBias(
        plan->cuda->dnn, &ONE, a->work->shape, a->dy, &ZERO, a->work->vector, plan->grads[a->node->param + 1]);
}

static int backward_conv(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    const struct bxi_cudnn *dnn = &plan->cuda->cudnn;
    const struct bxi_algorithm *weights = &a->work->backward_weights, *data = &a->work->backward_data;
    float *workspace = bxi_cuda_at(plan, plan->workspace);
    int status = dnn->cudnnConvolutionBackwardFilter(plan->cuda->dnn, &ONE, a->in->shape, a->x, a->work->shape, a->dy,
                                                     a->work->conv, weights->number, workspace,
                                                     weights->workspace_bytes, &ZERO, a->work->filter,
                                                     plan->grads[a->node->param]);

    if (status == 0)
        status = backward_bias(plan, a);
    if (status == 0 && a->dx != NULL)
        status = dnn->cudnnConvolutionBackwardData(plan->cuda->dnn, &ONE, a->work->filter, a->weight, a->work->shape,
                                                   a->dy, a->work->conv, data->number, workspace,
                                                   data->workspace_bytes, a->beta, a->in->shape, a->dx);
    return dnn_result(plan, index, status, "backward pass");
}

static int backward_norm(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    float *dx = a->dx != NULL ? a->dx : bxi_cuda_at(plan, a->work->input_grad);
    int rc = a->node->relu ? put_mask(plan, a, a->dy, false) : 0;

    if (rc < 0)
        return rc;
    return dnn_result(plan, index, plan->cuda->cudnn.cudnnBatchNormalizationBackward(
        plan->cuda->dnn, BXI_CUDNN_BATCHNORM_SPATIAL, &ONE, a->beta, &ONE, &ZERO, a->in->shape, a->x, a->work->shape,
        a->dy, a->in->shape, dx, a->work->vector, a->weight, plan->grads[a->node->param],
        plan->grads[a->node->param + 1], (double)BXI_BN_EPSILON, bxi_cuda_statistic(plan, index, BXI_BATCH_MEAN),
        bxi_cuda_statistic(plan, index, BXI_BATCH_INVERSE)), "backward pass");
}

static int backward_pool(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    return dnn_result(plan, index, plan->cuda->cudnn.cudnnPoolingBackward(
        plan->cuda->dnn, a->work->pool, &ONE, a->work->shape, a->y, a->work->shape, a->dy, a->in->shape, a->x, a->beta,
        a->in->shape, a->dx), "backward pass");
}

/* Column-major: dW' = x' dy, I x O, and dx' = W' dy', I x N. */
static int backward_linear(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    const struct bxi_cublas *blas = &plan->cuda->cublas;
    int in = (int)a->in_row, out = (int)a->out_row, images = a->node->dims[0];
    int status = blas->cublasSgemm_v2(plan->cuda->blas, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_T, in, out, images, &ONE, a->x,
                                      in, a->dy, out, &ZERO, plan->grads[a->node->param], in);

    if (status == 0 && a->dx != NULL)
        status = blas->cublasSgemm_v2(plan->cuda->blas, BXI_CUBLAS_OP_N, BXI_CUBLAS_OP_N, in, images, out, &ONE,
                                      a->weight, in, a->dy, out, a->beta, a->dx, in);
    if (status != 0)
        return blas_result(plan, index, status, "backward pass");
    return dnn_result(plan, index, backward_bias(plan, a), "backward pass");
}

static int backward_softmax(const struct bxi_cuda_plan *plan, int index, const struct arrays *a)
{
    return dnn_result(plan, index, plan->cuda->cudnn.cudnnSoftmaxBackward(
        plan->cuda->dnn, BXI_CUDNN_SOFTMAX_ACCURATE, BXI_CUDNN_SOFTMAX_INSTANCE, &ONE, a->work->shape, a->y,
        a->work->shape, a->dy, a->beta, a->in->shape, a->dx), "backward pass");
}

/* To each input that needs it. */
static int backward_add(const struct bxi_cuda_plan *plan, const struct arrays *a)
{
    int rc = 0;

    for (int k = 0; k < 2 && rc == 0; k++)
        if (plan->net->nodes[a->node->in[k]].grad)
            rc = put_mask(plan, a, bxi_cuda_at(plan, plan->work[a->node->in[k]].grad), a->work->adds[k]);
    return rc;
}

/* Called only if the node needs a gradient; a node without parameters needs one only if its input does. */
int bxi_cuda_backward(const struct bxi_cuda_plan *plan, int index)
{
    const struct arrays a = arrays_of(plan, index);

    switch (a.node->op) {
    case BXI_NN_INPUT: return 0;
    case BXI_NN_CONV: return backward_conv(plan, index, &a);
    case BXI_NN_BATCH_NORM: return backward_norm(plan, index, &a);
    case BXI_NN_RELU: return put_mask(plan, &a, a.dx, a.work->adds[0]);
    case BXI_NN_ADD: return backward_add(plan, &a);
    case BXI_NN_MAX_POOL:
    case BXI_NN_GLOBAL_AVG_POOL: return backward_pool(plan, index, &a);
    case BXI_NN_LINEAR: return backward_linear(plan, index, &a);
    case BXI_NN_SOFTMAX: return backward_softmax(plan, index, &a);
    }
    return 0;
}
