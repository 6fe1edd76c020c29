/* SPDX-License-Identifier: MIT */
/*
 * Convolutions of the fake cuDNN: plain loops over the taps of the filters, in double. The algorithms differ in how
 * they misbehave: some fail, some are nondeterministic and off by a thousandth, some need a workspace and overwrite it.
 * The first, which a careless caller takes, fails.
 */
#include "cudnn.h"

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE

#define WORKSPACE_ALIGN 16

/* ---- Algorithms ------------------------------------------------------------------------------ */

struct algorithm {
    int number, status;
    bool is_deterministic;
    size_t workspace_filters;                   /* in units of the filter's bytes */
};

/* In the order of the query's results. */
static const struct algorithm forward_algorithms[] = {
    { 6, CUDNN_STATUS_NOT_SUPPORTED, true, 0 },
    { 4, CUDNN_STATUS_SUCCESS, false, 8 },
    { 1, CUDNN_STATUS_SUCCESS, true, 2 },
    { 0, CUDNN_STATUS_SUCCESS, true, 0 },
};
static const struct algorithm data_algorithms[] = {
    { 4, CUDNN_STATUS_NOT_SUPPORTED, true, 0 },
    { 0, CUDNN_STATUS_SUCCESS, false, 0 },
    { 1, CUDNN_STATUS_SUCCESS, true, 1 },
    { 5, CUDNN_STATUS_SUCCESS, true, 6 },
};
static const struct algorithm filter_algorithms[] = {
    { 4, CUDNN_STATUS_NOT_SUPPORTED, true, 0 },
    { 0, CUDNN_STATUS_SUCCESS, false, 0 },
    { 3, CUDNN_STATUS_SUCCESS, false, 1 },
    { 1, CUDNN_STATUS_SUCCESS, true, 3 },
};
#define ALGORITHMS 4

enum pass { FORWARD, BACK_DATA, BACK_FILTER };
static const struct algorithm *const algorithms[] = { forward_algorithms, data_algorithms, filter_algorithms };

/* The combined contents of the descriptors. */
struct shape {
    struct fake_dims x, w, y;
    struct fake_window window;
    bool is_rough;                              /* TF32 */
};

static bool read_shape(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                       const struct cudnnConvolutionStruct *conv, const struct cudnnTensorStruct *y,
                       struct shape *shape)
{
    if (!fake_dnn_are_tensors(x, y) || !fake_dnn_is_filter(w) || conv == NULL || conv->kind != DNN_CONVOLUTION ||
        conv->window.stride_h == 0)
        return false;
    *shape = (struct shape){ x->dims, w->dims, y->dims, conv->window, conv->math != BXI_CUDNN_FMA_MATH };
    shape->window.h = w->dims.h;
    shape->window.w = w->dims.w;
    return x->dims.c == w->dims.c && y->dims.c == w->dims.n && x->dims.n == y->dims.n &&
        y->dims.h == fake_dnn_places(x->dims.h, w->dims.h, conv->window.pad_h, conv->window.stride_h,
                                     conv->window.dilation_h) &&
        y->dims.w == fake_dnn_places(x->dims.w, w->dims.w, conv->window.pad_w, conv->window.stride_w,
                                     conv->window.dilation_w);
}

static size_t workspace_bytes(const struct algorithm *algorithm, const struct shape *shape)
{
    return algorithm->workspace_filters * fake_dnn_count(&shape->w) * sizeof(float);
}

static int answer(enum pass pass, const struct shape *shape, int asked, int *given, struct bxi_cudnn_perf *results)
{
    if (asked < 1 || given == NULL || results == NULL)
        return CUDNN_STATUS_BAD_PARAM;
    *given = asked < ALGORITHMS ? asked : ALGORITHMS;
    for (int i = 0; i < *given; i++) {
        const struct algorithm *algorithm = &algorithms[pass][i];

        memset(&results[i], 0, sizeof(results[i]));
        results[i].algorithm = algorithm->number;
        results[i].status = algorithm->status;
        results[i].time = -1.0f;
        results[i].memory = workspace_bytes(algorithm, shape);
        results[i].determinism = algorithm->is_deterministic ? BXI_CUDNN_DETERMINISTIC : 0;
        results[i].math_type = shape->is_rough ? 1 : BXI_CUDNN_FMA_MATH;
    }
    return CUDNN_STATUS_SUCCESS;
}

int cudnnGetConvolutionForwardAlgorithm_v7(struct cudnnContext *handle, struct cudnnTensorStruct *x,
                                           struct cudnnFilterStruct *w, struct cudnnConvolutionStruct *conv,
                                           struct cudnnTensorStruct *y, int asked, int *given,
                                           struct bxi_cudnn_perf *results)
{
    struct shape shape;

    if (!fake_dnn_is_handle(handle) || !read_shape(x, w, conv, y, &shape))
        return CUDNN_STATUS_BAD_PARAM;
    return answer(FORWARD, &shape, asked, given, results);
}

int cudnnGetConvolutionBackwardDataAlgorithm_v7(struct cudnnContext *handle, struct cudnnFilterStruct *w,
                                                struct cudnnTensorStruct *dy, struct cudnnConvolutionStruct *conv,
                                                struct cudnnTensorStruct *dx, int asked, int *given,
                                                struct bxi_cudnn_perf *results)
{
    struct shape shape;

    if (!fake_dnn_is_handle(handle) || !read_shape(dx, w, conv, dy, &shape))
        return CUDNN_STATUS_BAD_PARAM;
    return answer(BACK_DATA, &shape, asked, given, results);
}

int cudnnGetConvolutionBackwardFilterAlgorithm_v7(struct cudnnContext *handle, struct cudnnTensorStruct *x,
                                                  struct cudnnTensorStruct *dy, struct cudnnConvolutionStruct *conv,
                                                  struct cudnnFilterStruct *dw, int asked, int *given,
                                                  struct bxi_cudnn_perf *results)
{
    struct shape shape;

    if (!fake_dnn_is_handle(handle) || !read_shape(x, dw, conv, dy, &shape))
        return CUDNN_STATUS_BAD_PARAM;
    return answer(BACK_FILTER, &shape, asked, given, results);
}

/* ---- The work -------------------------------------------------------------------------------- */

struct job {
    enum pass pass;
    struct shape shape;
    float *x, *w, *y;                           /* one of them is written, depending on the pass */
    struct fake_blend blend;
    const struct algorithm *algorithm;
    void *workspace;
};

/* Off by up to a thousandth, differently each time. */
static double noise(void)
{
    static _Thread_local uint64_t state = 1;

    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return 1.0 + ((double)(state >> 40) / (double)(1 << 24) - 0.5) * 2e-3;
}

static float input(const struct job *job, float value)
{
    return job->shape.is_rough ? fake_tf32(value) : value;
}

static const struct fake_dims *dims_of(const struct job *job, enum pass writes)
{
    const struct fake_dims *dims[] = { &job->shape.y, &job->shape.x, &job->shape.w };

    return dims[writes];
}

/* Where an element of the array that this pass writes lies in doubles: channels are innermost, so that loops over them
 * are of vectors; of filters, those of the array that the job writes, and taps outermost. */
static size_t place_of(const struct job *job, enum pass writes, size_t element)
{
    const struct fake_dims *dims = dims_of(job, writes);
    const size_t plane = dims->h * dims->w, at = element % plane;
    const size_t c = element / plane % dims->c, n = element / plane / dims->c;

    if (writes != BACK_FILTER)
        return (n * plane + at) * dims->c + c;
    return job->pass == BACK_DATA ? (at * dims->n + n) * dims->c + c : (at * dims->c + c) * dims->n + n;
}

static double *read_array(const struct job *job, enum pass writes, const float *array)
{
    const size_t count = fake_dnn_count(dims_of(job, writes));
    double *read = fake_dnn_numbers(count);

    for (size_t i = 0; i < count; i++)
        read[place_of(job, writes, i)] = (double)input(job, array[i]);
    return read;
}

/* The first place whose pixel is at least `pixel`, where place 0 has pixel `offset`. */
static size_t place_from(size_t pixel, size_t offset, size_t stride)
{
    return offset >= pixel ? 0 : (pixel - offset + stride - 1) / stride;
}

/* Which places one tap of the filters reaches, and from where place 0 has its pixel, plus the padding. */
struct reach {
    size_t h, w, begin_h, begin_w, end_h, end_w;
};

static struct reach reach_of(const struct shape *shape, size_t tap)
{
    const struct fake_window *window = &shape->window;
    struct reach reach = { .h = tap / window->w * window->dilation_h, .w = tap % window->w * window->dilation_w };
    size_t end_h = place_from(shape->x.h + window->pad_h, reach.h, window->stride_h);
    size_t end_w = place_from(shape->x.w + window->pad_w, reach.w, window->stride_w);

    reach.begin_h = place_from(window->pad_h, reach.h, window->stride_h);
    reach.begin_w = place_from(window->pad_w, reach.w, window->stride_w);
    reach.end_h = end_h < shape->y.h ? end_h : shape->y.h;
    reach.end_w = end_w < shape->y.w ? end_w : shape->y.w;
    return reach;
}

/* out += in filter. */
static void multiply(double *restrict out, size_t outs, const double *restrict in, size_t ins,
                     const double *restrict filter)
{
    for (size_t i = 0; i < ins; i++)
        for (size_t k = 0; k < outs; k++)
            out[k] += in[i] * filter[i * outs + k];
}

/* filter += x y. */
static void multiply_outer(double *restrict filter, const double *restrict x, size_t xs, const double *restrict y,
                           size_t ys)
{
    for (size_t i = 0; i < xs; i++)
        for (size_t k = 0; k < ys; k++)
            filter[i * ys + k] += x[i] * y[k];
}

/* One tap of the filters, for the pair of a picture. all: by the pass that writes it. */
static void run_tap(const struct job *job, const struct reach *reach, size_t n, double *const all[3], double *filter)
{
    const struct fake_window *window = &job->shape.window;
    const struct fake_dims *x = &job->shape.x, *y = &job->shape.y;

    for (size_t p = reach->begin_h; p < reach->end_h; p++) {
        const size_t row = n * x->h + p * window->stride_h + reach->h - window->pad_h;

        for (size_t q = reach->begin_w; q < reach->end_w; q++) {
            double *pixel = all[BACK_DATA] + (row * x->w + q * window->stride_w + reach->w - window->pad_w) * x->c;
            double *place = all[FORWARD] + ((n * y->h + p) * y->w + q) * y->c;

            switch (job->pass) {
            case FORWARD: multiply(place, y->c, pixel, x->c, filter); break;
            case BACK_DATA: multiply(pixel, x->c, place, y->c, filter); break;
            case BACK_FILTER: multiply_outer(filter, pixel, x->c, place, y->c); break;
            }
        }
    }
}

static void run(const void *argument)
{
    const struct job *job = argument;
    const size_t count = fake_dnn_count(dims_of(job, job->pass)), taps = job->shape.w.h * job->shape.w.w;
    float *const arrays[] = { job->y, job->x, job->w };
    double *all[3];

    if (job->algorithm->workspace_filters > 0)
        memset(job->workspace, 0xFF, workspace_bytes(job->algorithm, &job->shape));
    for (int i = 0; i < 3; i++)
        all[i] = i == (int)job->pass ? fake_dnn_numbers(count) : read_array(job, (enum pass)i, arrays[i]);
    for (size_t tap = 0; tap < taps; tap++) {
        struct reach reach = reach_of(&job->shape, tap);

        for (size_t n = 0; n < job->shape.x.n; n++)
            run_tap(job, &reach, n, all, all[BACK_FILTER] + tap * job->shape.w.n * job->shape.w.c);
    }
    for (size_t i = 0; i < count; i++)
        fake_blend(job->blend, &arrays[job->pass][i],
                   all[job->pass][place_of(job, job->pass, i)] * (job->algorithm->is_deterministic ? 1.0 : noise()));
    for (int i = 0; i < 3; i++)
        free(all[i]);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static bool is_workspace(const struct job *job, size_t bytes)
{
    uint64_t address = (uint64_t)(uintptr_t)job->workspace;
    size_t least = workspace_bytes(job->algorithm, &job->shape);

    return least == 0 || (bytes >= least && address % WORKSPACE_ALIGN == 0 && fake_may_touch(address, least, true));
}

static int put(struct cudnnContext *handle, struct job *job, int algorithm, size_t bytes)
{
    for (int i = 0; i < ALGORITHMS; i++)
        if (algorithms[job->pass][i].number == algorithm)
            job->algorithm = &algorithms[job->pass][i];
    if (job->algorithm == NULL || job->algorithm->status != CUDNN_STATUS_SUCCESS)
        return CUDNN_STATUS_NOT_SUPPORTED;
    if (!is_workspace(job, bytes))
        return CUDNN_STATUS_BAD_PARAM;
    return FAKE_DNN_PUT(handle, run, *job, FAKE_READS(job->x, &job->shape.x), FAKE_READS(job->w, &job->shape.w),
                        FAKE_READS(job->y, &job->shape.y));
}

int cudnnConvolutionForward(struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *x_desc,
                            const void *x, struct cudnnFilterStruct *w_desc, const void *w,
                            struct cudnnConvolutionStruct *conv, int algorithm, void *workspace, size_t bytes,
                            const void *beta, struct cudnnTensorStruct *y_desc, void *y)
{
    struct job job = { .pass = FORWARD, .x = (float *)x, .w = (float *)w, .y = y, .workspace = workspace };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) || x == y || w == y ||
        !read_shape(x_desc, w_desc, conv, y_desc, &job.shape))
        return CUDNN_STATUS_BAD_PARAM;
    return put(handle, &job, algorithm, bytes);
}

int cudnnConvolutionBackwardData(struct cudnnContext *handle, const void *alpha, struct cudnnFilterStruct *w_desc,
                                 const void *w, struct cudnnTensorStruct *dy_desc, const void *dy,
                                 struct cudnnConvolutionStruct *conv, int algorithm, void *workspace, size_t bytes,
                                 const void *beta, struct cudnnTensorStruct *dx_desc, void *dx)
{
    struct job job = { .pass = BACK_DATA, .x = dx, .w = (float *)w, .y = (float *)dy, .workspace = workspace };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) || dx == dy || dx == w ||
        !read_shape(dx_desc, w_desc, conv, dy_desc, &job.shape))
        return CUDNN_STATUS_BAD_PARAM;
    return put(handle, &job, algorithm, bytes);
}

int cudnnConvolutionBackwardFilter(struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *x_desc,
                                   const void *x, struct cudnnTensorStruct *dy_desc, const void *dy,
                                   struct cudnnConvolutionStruct *conv, int algorithm, void *workspace, size_t bytes,
                                   const void *beta, struct cudnnFilterStruct *dw_desc, void *dw)
{
    struct job job = { .pass = BACK_FILTER, .x = (float *)x, .w = dw, .y = (float *)dy, .workspace = workspace };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) || dw == x || dw == dy ||
        !read_shape(x_desc, dw_desc, conv, dy_desc, &job.shape))
        return CUDNN_STATUS_BAD_PARAM;
    return put(handle, &job, algorithm, bytes);
}
