/* SPDX-License-Identifier: MIT */
/*
 * Convolutions of the fake cuDNN: a few images at a time are expanded into the matrix of all windows (im2col), which is
 * multiplied by the filters. The algorithms differ in how they misbehave: some fail, some are nondeterministic and off
 * by a thousandth, some need a workspace and overwrite it. The first, which a careless caller takes, fails.
 */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE

#define MATRIX_FLOATS ((size_t)4 << 20)         /* of the windows' matrix and of an image */
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

static void *take(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);

    if (memory == NULL)
        abort();
    return memory;
}

/* Off by up to a thousandth, differently each time. */
static double noise(void)
{
    static _Thread_local uint64_t state = 1;

    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return 1.0 + ((double)(state >> 40) / (double)(1 << 24) - 0.5) * 2e-3;
}

static void put_result(const struct job *job, float *to, double value)
{
    fake_blend(job->blend, to, job->algorithm->is_deterministic ? value : value * noise());
}

static float input(const struct job *job, float value)
{
    return job->shape.is_rough ? fake_tf32(value) : value;
}

struct parts {                                  /* of a few images */
    size_t images, width, channels;             /* width: images times places */
    size_t taps, window;                        /* of all channels; of one channel */
    float *filter, *windows, *out;
    double *sum;
    size_t *index;                              /* [t * places + p]: the index of tap t of the window at place p */
};
#define OUTSIDE SIZE_MAX

static size_t places_of(const struct job *job)
{
    return job->shape.y.h * job->shape.y.w;
}

static size_t pixels_of(const struct job *job)
{
    return job->shape.x.h * job->shape.x.w;
}

/* A difference below 0 wraps, and is then above the length too. */
static void fill_index(const struct job *job, size_t *index)
{
    const struct fake_window *window = &job->shape.window;
    const struct fake_dims *x = &job->shape.x, *y = &job->shape.y;

    for (size_t tap = 0; tap < window->h * window->w; tap++) {
        for (size_t place = 0; place < y->h * y->w; place++) {
            size_t h = place / y->w * window->stride_h + tap / window->w * window->dilation_h - window->pad_h;
            size_t w = place % y->w * window->stride_w + tap % window->w * window->dilation_w - window->pad_w;

            *index++ = h < x->h && w < x->w ? h * x->w + w : OUTSIDE;
        }
    }
}

/* The matrix of windows of x: a row for each tap of each channel. */
static void spread(const struct job *job, const struct parts *part, const float *x)
{
    size_t places = places_of(job), pixels = pixels_of(job);

    for (size_t row = 0; row < part->taps; row++) {
        const size_t *index = part->index + row % part->window * places;

        for (size_t n = 0; n < part->images; n++) {
            const float *from = x + (n * job->shape.x.c + row / part->window) * pixels;
            float *to = part->windows + row * part->width + n * places;

            for (size_t at = 0; at < places; at++)
                to[at] = index[at] == OUTSIDE ? 0.0f : input(job, from[index[at]]);
        }
    }
}

/* The reverse: adds part->sum, the gradient of that matrix, to the gradient of x. */
static void collect(const struct job *job, const struct parts *part, double *sums)
{
    size_t places = places_of(job), pixels = pixels_of(job);

    for (size_t row = 0; row < part->taps; row++) {
        const size_t *index = part->index + row % part->window * places;

        for (size_t n = 0; n < part->images; n++) {
            const double *from = part->sum + row * part->width + n * places;
            double *to = sums + (n * job->shape.x.c + row / part->window) * pixels;

            for (size_t at = 0; at < places; at++)
                if (index[at] != OUTSIDE)
                    to[index[at]] += from[at];
        }
    }
}

/* y's images as a matrix of channels by width. */
static void gather(const struct job *job, const struct parts *part, const float *y)
{
    size_t places = places_of(job);

    for (size_t k = 0; k < part->channels; k++)
        for (size_t n = 0; n < part->images; n++)
            for (size_t at = 0; at < places; at++)
                part->out[k * part->width + n * places + at] = input(job, y[(n * part->channels + k) * places + at]);
}

static void forward(const struct job *job, const struct parts *part, const float *x, float *y)
{
    struct fake_matrix ab[2] = { { part->filter, part->taps, 1 }, { part->windows, part->width, 1 } };
    size_t places = places_of(job);

    spread(job, part, x);
    memset(part->sum, 0, part->channels * part->width * sizeof(double));
    fake_multiply(part->channels, part->width, part->taps, ab, part->sum);
    for (size_t k = 0; k < part->channels; k++)
        for (size_t n = 0; n < part->images; n++)
            for (size_t at = 0; at < places; at++)
                put_result(job, &y[(n * part->channels + k) * places + at],
                           part->sum[k * part->width + n * places + at]);
}

static void back_data(const struct job *job, const struct parts *part, float *dx, const float *dy)
{
    struct fake_matrix ab[2] = { { part->filter, 1, part->taps }, { part->out, part->width, 1 } };
    size_t count = part->images * job->shape.x.c * pixels_of(job);
    double *sums = take(count, sizeof(double));

    gather(job, part, dy);
    memset(part->sum, 0, part->taps * part->width * sizeof(double));
    fake_multiply(part->taps, part->width, part->channels, ab, part->sum);
    collect(job, part, sums);
    for (size_t i = 0; i < count; i++)
        put_result(job, &dx[i], sums[i]);
    free(sums);
}

/* Adds to the sum of all images. */
static void back_filter(const struct job *job, const struct parts *part, const float *x, const float *dy)
{
    struct fake_matrix ab[2] = { { part->out, part->width, 1 }, { part->windows, 1, part->width } };

    spread(job, part, x);
    gather(job, part, dy);
    fake_multiply(part->channels, part->taps, part->width, ab, part->sum);
}

static void run_images(const struct job *job, const struct parts *part, size_t first)
{
    float *x = job->x + first * job->shape.x.c * pixels_of(job);
    float *y = job->y + first * job->shape.y.c * places_of(job);

    switch (job->pass) {
    case FORWARD: forward(job, part, x, y); break;
    case BACK_DATA: back_data(job, part, x, y); break;
    case BACK_FILTER: back_filter(job, part, x, y); break;
    }
}

static void run_parts(const struct job *job, struct parts *part, size_t most)
{
    size_t filter = part->taps * part->channels, images = job->shape.x.n;

    for (size_t i = 0; i < filter && job->pass != BACK_FILTER; i++)
        part->filter[i] = input(job, job->w[i]);
    for (size_t first = 0; first < images; first += part->images) {
        part->images = images - first < most ? images - first : most;
        part->width = part->images * places_of(job);
        run_images(job, part, first);
    }
    for (size_t i = 0; i < filter && job->pass == BACK_FILTER; i++)
        put_result(job, &job->w[i], part->sum[i]);
}

static void run(const void *argument)
{
    const struct job *job = argument;
    struct parts part = { .channels = job->shape.y.c, .window = job->shape.w.h * job->shape.w.w };
    size_t most, width;

    part.taps = job->shape.w.c * part.window;
    most = MATRIX_FLOATS / (part.taps * places_of(job)) + 1;
    most = most > job->shape.x.n ? job->shape.x.n : most;
    width = most * places_of(job);
    if (job->algorithm->workspace_filters > 0)
        memset(job->workspace, 0xFF, workspace_bytes(job->algorithm, &job->shape));
    part.filter = take(part.taps * part.channels, sizeof(float));
    part.windows = take(part.taps * width, sizeof(float));
    part.out = take(part.channels * width, sizeof(float));
    part.sum = take(part.taps * part.channels + (part.taps + part.channels) * width, sizeof(double));
    part.index = take(part.window * places_of(job), sizeof(size_t));
    fill_index(job, part.index);
    run_parts(job, &part, most);
    free(part.filter);
    free(part.windows);
    free(part.out);
    free(part.sum);
    free(part.index);
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
    if (!fake_dnn_may_read(job->x, &job->shape.x) || !fake_dnn_may_read(job->w, &job->shape.w) ||
        !fake_dnn_may_read(job->y, &job->shape.y))
        return CUDNN_STATUS_EXECUTION_FAILED;
    return fake_dnn_put(handle, run, job, sizeof(*job));
}

int cudnnConvolutionForward(struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *x_desc,
                            const void *x, struct cudnnFilterStruct *w_desc, const void *w,
                            struct cudnnConvolutionStruct *conv, int algorithm, void *workspace, size_t bytes,
                            const void *beta, struct cudnnTensorStruct *y_desc, void *y)
{
    struct job job = { .pass = FORWARD, .x = (float *)x, .w = (float *)w, .y = y, .workspace = workspace };

    if (!fake_dnn_is_handle(handle) || alpha == NULL || beta == NULL || x == y || w == y ||
        !read_shape(x_desc, w_desc, conv, y_desc, &job.shape))
        return CUDNN_STATUS_BAD_PARAM;
    job.blend = (struct fake_blend){ *(const float *)alpha, *(const float *)beta };
    return put(handle, &job, algorithm, bytes);
}

int cudnnConvolutionBackwardData(struct cudnnContext *handle, const void *alpha, struct cudnnFilterStruct *w_desc,
                                 const void *w, struct cudnnTensorStruct *dy_desc, const void *dy,
                                 struct cudnnConvolutionStruct *conv, int algorithm, void *workspace, size_t bytes,
                                 const void *beta, struct cudnnTensorStruct *dx_desc, void *dx)
{
    struct job job = { .pass = BACK_DATA, .x = dx, .w = (float *)w, .y = (float *)dy, .workspace = workspace };

    if (!fake_dnn_is_handle(handle) || alpha == NULL || beta == NULL || dx == dy || dx == w ||
        !read_shape(dx_desc, w_desc, conv, dy_desc, &job.shape))
        return CUDNN_STATUS_BAD_PARAM;
    job.blend = (struct fake_blend){ *(const float *)alpha, *(const float *)beta };
    return put(handle, &job, algorithm, bytes);
}

int cudnnConvolutionBackwardFilter(struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *x_desc,
                                   const void *x, struct cudnnTensorStruct *dy_desc, const void *dy,
                                   struct cudnnConvolutionStruct *conv, int algorithm, void *workspace, size_t bytes,
                                   const void *beta, struct cudnnFilterStruct *dw_desc, void *dw)
{
    struct job job = { .pass = BACK_FILTER, .x = (float *)x, .w = dw, .y = (float *)dy, .workspace = workspace };

    if (!fake_dnn_is_handle(handle) || alpha == NULL || beta == NULL || dw == x || dw == dy ||
        !read_shape(x_desc, dw_desc, conv, dy_desc, &job.shape))
        return CUDNN_STATUS_BAD_PARAM;
    job.blend = (struct fake_blend){ *(const float *)alpha, *(const float *)beta };
    return put(handle, &job, algorithm, bytes);
}
