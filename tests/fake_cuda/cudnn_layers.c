/* SPDX-License-Identifier: MIT */
/*
 * The rest of the fake cuDNN: bias, batch normalisation, pooling, softmax.
 */
#include "cudnn.h"

#include <math.h>

#define DECLARE(type, name, arguments) FAKE_EXPORT type name arguments;
BXI_CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE

/* ---- Bias ------------------------------------------------------------------------------------ */

struct bias {
    struct fake_dims dims, small;               /* of the tensor; of the array that is added to it or summed from it */
    const float *from;
    float *to;
    struct fake_blend blend;
};

static bool is_channels(const struct fake_dims *dims, size_t channels)
{
    return dims->n == 1 && dims->c == channels && dims->h == 1 && dims->w == 1;
}

static void run_add(const void *argument)
{
    const struct bias *job = argument;
    const struct fake_dims *a = &job->small, *c = &job->dims;
    float *to = job->to;

    for (size_t i = 0; i < c->n; i++)
        for (size_t j = 0; j < c->c; j++)
            for (size_t k = 0; k < c->h; k++)
                for (size_t l = 0; l < c->w; l++)
                    fake_blend(job->blend, to++,
                               job->from[((i % a->n * a->c + j % a->c) * a->h + k % a->h) * a->w + l % a->w]);
}

int cudnnAddTensor(struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *a_desc, const void *a,
                   const void *beta, struct cudnnTensorStruct *c_desc, void *c)
{
    struct bias job = { .from = a, .to = c };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) ||
        !fake_dnn_are_tensors(a_desc, c_desc))
        return CUDNN_STATUS_BAD_PARAM;
    job.small = a_desc->dims;
    job.dims = c_desc->dims;
    if ((job.small.n != 1 && job.small.n != job.dims.n) || (job.small.c != 1 && job.small.c != job.dims.c) ||
        (job.small.h != 1 && job.small.h != job.dims.h) || (job.small.w != 1 && job.small.w != job.dims.w))
        return CUDNN_STATUS_BAD_PARAM;
    return FAKE_DNN_PUT(handle, run_add, job, FAKE_READS(a, &job.small), FAKE_WRITES(c, &job.dims));
}

static void run_bias_back(const void *argument)
{
    const struct bias *job = argument;
    size_t pixels = job->dims.h * job->dims.w;

    for (size_t c = 0; c < job->dims.c; c++) {
        double sum = 0.0;

        for (size_t n = 0; n < job->dims.n; n++)
            for (size_t i = 0; i < pixels; i++)
                sum += (double)job->from[(n * job->dims.c + c) * pixels + i];
        fake_blend(job->blend, &job->to[c], sum);
    }
}

int cudnnConvolutionBackwardBias(struct cudnnContext *handle, const void *alpha, struct cudnnTensorStruct *dy_desc,
                                 const void *dy, const void *beta, struct cudnnTensorStruct *db_desc, void *db)
{
    struct bias job = { .from = dy, .to = db };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) ||
        !fake_dnn_are_tensors(dy_desc, db_desc) || !is_channels(&db_desc->dims, dy_desc->dims.c))
        return CUDNN_STATUS_BAD_PARAM;
    job.small = db_desc->dims;
    job.dims = dy_desc->dims;
    return FAKE_DNN_PUT(handle, run_bias_back, job, FAKE_READS(dy, &job.dims), FAKE_WRITES(db, &job.small));
}

/* ---- Batch normalisation --------------------------------------------------------------------- */

struct norm {
    struct fake_dims dims;
    const float *x, *dy, *scale, *shift;
    float *to;                                  /* y or dx */
    float *running_mean, *running_var;
    float *save_mean, *save_inverse;
    float *d_scale, *d_shift;
    double average_factor, epsilon;
    struct fake_blend blend, param_blend;
};

/* The two sums over a channel of an array a, and of a * b. */
static void sum_channel(const struct norm *job, size_t channel, const float *a, const float *b, double sums[2])
{
    size_t pixels = job->dims.h * job->dims.w;

    sums[0] = sums[1] = 0.0;
    for (size_t n = 0; n < job->dims.n; n++) {
        size_t at = (n * job->dims.c + channel) * pixels;

        for (size_t i = at; i < at + pixels; i++) {
            sums[0] += (double)a[i];
            sums[1] += (double)a[i] * (double)b[i];
        }
    }
}

/* The running values are read even with a factor of 1, so they must have been set before. */
static void average(float *running, double value, double factor)
{
    *running = (float)(factor * value + (1.0 - factor) * (double)*running);
}

/* y of a channel: scale * (x - mean) * inverse + shift. */
static void normalise(const struct norm *job, size_t channel, double mean, double inverse)
{
    size_t pixels = job->dims.h * job->dims.w;

    for (size_t n = 0; n < job->dims.n; n++) {
        size_t at = (n * job->dims.c + channel) * pixels;

        for (size_t i = at; i < at + pixels; i++)
            fake_blend(job->blend, &job->to[i], (double)job->scale[channel] * ((double)job->x[i] - mean) * inverse +
                       (double)job->shift[channel]);
    }
}

static void run_norm_training(const void *argument)
{
    const struct norm *job = argument;
    double count = (double)(job->dims.n * job->dims.h * job->dims.w);

    for (size_t c = 0; c < job->dims.c; c++) {
        double sums[2], mean, variance, inverse;

        sum_channel(job, c, job->x, job->x, sums);
        mean = sums[0] / count;
        variance = fmax(0.0, sums[1] / count - mean * mean);
        inverse = 1.0 / sqrt(variance + job->epsilon);
        normalise(job, c, mean, inverse);
        if (job->running_mean != NULL) {
            average(&job->running_mean[c], mean, job->average_factor);
            average(&job->running_var[c], count > 1.0 ? variance * count / (count - 1.0) : variance,
                    job->average_factor);
        }
        if (job->save_mean != NULL) {
            job->save_mean[c] = (float)mean;
            job->save_inverse[c] = (float)inverse;
        }
    }
}

static void run_norm_inference(const void *argument)
{
    const struct norm *job = argument;

    for (size_t c = 0; c < job->dims.c; c++)
        normalise(job, c, (double)job->running_mean[c], 1.0 / sqrt((double)job->running_var[c] + job->epsilon));
}

/* With z = (x - mean) * inverse: d_shift = sum(dy), d_scale = sum(dy * z),
 * dx = scale * inverse * (dy - d_shift / count - z * d_scale / count). */
static void run_norm_back(const void *argument)
{
    const struct norm *job = argument;
    size_t pixels = job->dims.h * job->dims.w;
    double count = (double)(job->dims.n * pixels);

    for (size_t c = 0; c < job->dims.c; c++) {
        double mean = (double)job->save_mean[c], inverse = (double)job->save_inverse[c];
        double sums[2], d_scale, step = (double)job->scale[c] * inverse;

        sum_channel(job, c, job->dy, job->x, sums);
        d_scale = (sums[1] - mean * sums[0]) * inverse;
        for (size_t n = 0; n < job->dims.n; n++) {
            size_t at = (n * job->dims.c + c) * pixels;

            for (size_t i = at; i < at + pixels; i++) {
                double z = ((double)job->x[i] - mean) * inverse;

                fake_blend(job->blend, &job->to[i], step * ((double)job->dy[i] - (sums[0] + z * d_scale) / count));
            }
        }
        fake_blend(job->param_blend, &job->d_scale[c], d_scale);
        fake_blend(job->param_blend, &job->d_shift[c], sums[0]);
    }
}

static bool is_norm(const struct cudnnContext *handle, int mode, const struct cudnnTensorStruct *const tensors[3],
                    double epsilon)
{
    return fake_dnn_is_handle(handle) && mode == BXI_CUDNN_BATCHNORM_SPATIAL && epsilon >= 0.0 &&
        fake_dnn_are_tensors(tensors[0], tensors[1]) && fake_dnn_are_tensors(tensors[2], tensors[2]) &&
        fake_dnn_same(&tensors[0]->dims, &tensors[1]->dims) && is_channels(&tensors[2]->dims, tensors[0]->dims.c);
}

int cudnnBatchNormalizationForwardTraining(struct cudnnContext *handle, int mode, const void *alpha, const void *beta,
                                           struct cudnnTensorStruct *x_desc, const void *x,
                                           struct cudnnTensorStruct *y_desc, void *y,
                                           struct cudnnTensorStruct *scale_desc, const void *scale,
                                           const void *shift, double average_factor, void *running_mean,
                                           void *running_var, double epsilon, void *save_mean, void *save_inverse)
{
    struct norm job = { .x = x, .to = y, .scale = scale, .shift = shift, .average_factor = average_factor,
                        .running_mean = running_mean, .running_var = running_var, .epsilon = epsilon,
                        .save_mean = save_mean, .save_inverse = save_inverse };
    const struct cudnnTensorStruct *const tensors[3] = { x_desc, y_desc, scale_desc };
    const struct fake_dims *channels, *running, *saved;         /* NULL: not asked for */

    if (!is_norm(handle, mode, tensors, epsilon) || !fake_dnn_blend(alpha, beta, &job.blend) ||
        (running_mean == NULL) != (running_var == NULL) || (save_mean == NULL) != (save_inverse == NULL))
        return CUDNN_STATUS_BAD_PARAM;
    channels = &scale_desc->dims;
    running = running_mean != NULL ? channels : NULL;
    saved = save_mean != NULL ? channels : NULL;
    job.dims = x_desc->dims;
    return FAKE_DNN_PUT(handle, run_norm_training, job, FAKE_READS(x, &job.dims), FAKE_WRITES(y, &job.dims),
                        FAKE_READS(scale, channels), FAKE_READS(shift, channels), FAKE_WRITES(running_mean, running),
                        FAKE_WRITES(running_var, running), FAKE_WRITES(save_mean, saved),
                        FAKE_WRITES(save_inverse, saved));
}

int cudnnBatchNormalizationForwardInference(struct cudnnContext *handle, int mode, const void *alpha,
                                            const void *beta, struct cudnnTensorStruct *x_desc, const void *x,
                                            struct cudnnTensorStruct *y_desc, void *y,
                                            struct cudnnTensorStruct *scale_desc, const void *scale,
                                            const void *shift, const void *mean, const void *var, double epsilon)
{
    struct norm job = { .x = x, .to = y, .scale = scale, .shift = shift, .epsilon = epsilon,
                        .running_mean = (float *)mean, .running_var = (float *)var };
    const struct cudnnTensorStruct *const tensors[3] = { x_desc, y_desc, scale_desc };
    const struct fake_dims *channels;

    if (!is_norm(handle, mode, tensors, epsilon) || !fake_dnn_blend(alpha, beta, &job.blend))
        return CUDNN_STATUS_BAD_PARAM;
    channels = &scale_desc->dims;
    job.dims = x_desc->dims;
    return FAKE_DNN_PUT(handle, run_norm_inference, job, FAKE_READS(x, &job.dims), FAKE_WRITES(y, &job.dims),
                        FAKE_READS(scale, channels), FAKE_READS(shift, channels), FAKE_READS(mean, channels),
                        FAKE_READS(var, channels));
}

int cudnnBatchNormalizationBackward(struct cudnnContext *handle, int mode, const void *alpha_data,
                                    const void *beta_data, const void *alpha_param, const void *beta_param,
                                    struct cudnnTensorStruct *x_desc, const void *x,
                                    struct cudnnTensorStruct *dy_desc, const void *dy,
                                    struct cudnnTensorStruct *dx_desc, void *dx,
                                    struct cudnnTensorStruct *scale_desc, const void *scale, void *d_scale,
                                    void *d_shift, double epsilon, const void *save_mean, const void *save_inverse)
{
    struct norm job = { .x = x, .dy = dy, .to = dx, .scale = scale, .d_scale = d_scale, .d_shift = d_shift,
                        .save_mean = (float *)save_mean, .save_inverse = (float *)save_inverse };
    const struct cudnnTensorStruct *const tensors[3] = { x_desc, dy_desc, scale_desc };
    const struct fake_dims *channels;

    /* Without saved values the real one recomputes them; no caller here needs that. */
    if (!is_norm(handle, mode, tensors, epsilon) || !fake_dnn_are_tensors(dx_desc, dx_desc) ||
        !fake_dnn_same(&x_desc->dims, &dx_desc->dims) || !fake_dnn_blend(alpha_data, beta_data, &job.blend) ||
        !fake_dnn_blend(alpha_param, beta_param, &job.param_blend) || save_mean == NULL || save_inverse == NULL)
        return CUDNN_STATUS_BAD_PARAM;
    channels = &scale_desc->dims;
    job.dims = x_desc->dims;
    return FAKE_DNN_PUT(handle, run_norm_back, job, FAKE_READS(x, &job.dims), FAKE_READS(dy, &job.dims),
                        FAKE_WRITES(dx, &job.dims), FAKE_READS(scale, channels), FAKE_WRITES(d_scale, channels),
                        FAKE_WRITES(d_shift, channels), FAKE_READS(save_mean, channels),
                        FAKE_READS(save_inverse, channels));
}

/* ---- Pooling --------------------------------------------------------------------------------- */

struct pool {
    struct fake_dims x, y;
    struct fake_window window;
    bool is_mean;
    const float *input, *dy;
    float *to;                                  /* y or dx */
    struct fake_blend blend;
};

/* Pixel `k` of the window at a place, by row; SIZE_MAX: outside of the image. */
static size_t pixel_of(const struct pool *job, size_t p, size_t q, size_t k)
{
    const struct fake_window *window = &job->window;
    size_t h = p * window->stride_h + k / window->w - window->pad_h;
    size_t w = q * window->stride_w + k % window->w - window->pad_w;

    return h < job->x.h && w < job->x.w ? h * job->x.w + w : SIZE_MAX;
}

/* Of each pixel its share in the window's result: the first maximum, or all pixels alike. */
static void share(const struct pool *job, const float *image, size_t p, size_t q, double *shares)
{
    size_t best = SIZE_MAX, count = 0;

    for (size_t k = 0; k < job->window.h * job->window.w; k++) {
        size_t at = pixel_of(job, p, q, k);

        shares[k] = 0.0;
        if (at == SIZE_MAX)
            continue;
        count++;
        if (best == SIZE_MAX || image[at] > image[pixel_of(job, p, q, best)])
            best = k;
    }
    if (!job->is_mean)
        shares[best] = 1.0;
    for (size_t k = 0; k < job->window.h * job->window.w && job->is_mean; k++)
        shares[k] = pixel_of(job, p, q, k) == SIZE_MAX ? 0.0 : 1.0 / (double)count;
}

static void run_pool(const void *argument)
{
    const struct pool *job = argument;
    size_t count = job->window.h * job->window.w;
    double *shares = fake_dnn_numbers(count);
    float *to = job->to;

    for (size_t at = 0; at < job->x.n * job->x.c * job->y.h * job->y.w; at++) {
        size_t p = at / job->y.w % job->y.h, q = at % job->y.w;
        const float *image = job->input + at / (job->y.h * job->y.w) * job->x.h * job->x.w;
        double sum = 0.0;

        share(job, image, p, q, shares);
        for (size_t k = 0; k < count; k++)
            if (shares[k] > 0.0)
                sum += shares[k] * (double)image[pixel_of(job, p, q, k)];
        fake_blend(job->blend, to++, sum);
    }
    free(shares);
}

static void run_pool_back(const void *argument)
{
    const struct pool *job = argument;
    size_t pixels = job->x.h * job->x.w, count = job->window.h * job->window.w;
    double *sums = fake_dnn_numbers(job->x.n * job->x.c * pixels), *shares = fake_dnn_numbers(count);

    for (size_t at = 0; at < job->x.n * job->x.c * job->y.h * job->y.w; at++) {
        size_t p = at / job->y.w % job->y.h, q = at % job->y.w, image = at / (job->y.h * job->y.w) * pixels;

        share(job, job->input + image, p, q, shares);
        for (size_t k = 0; k < count; k++)
            if (shares[k] > 0.0)
                sums[image + pixel_of(job, p, q, k)] += shares[k] * (double)job->dy[at];
    }
    for (size_t i = 0; i < job->x.n * job->x.c * pixels; i++)
        fake_blend(job->blend, &job->to[i], sums[i]);
    free(shares);
    free(sums);
}

static bool read_pool(const struct cudnnPoolingStruct *pooling, const struct cudnnTensorStruct *x,
                      const struct cudnnTensorStruct *y, struct pool *job)
{
    const struct fake_window *window = &job->window;

    if (pooling == NULL || pooling->kind != DNN_POOLING || pooling->window.h == 0 || !fake_dnn_are_tensors(x, y))
        return false;
    job->x = x->dims;
    job->y = y->dims;
    job->window = pooling->window;
    job->is_mean = pooling->mode == BXI_CUDNN_POOLING_AVERAGE;
    return x->dims.n == y->dims.n && x->dims.c == y->dims.c &&
        y->dims.h == fake_dnn_places(x->dims.h, window->h, window->pad_h, window->stride_h, 1) &&
        y->dims.w == fake_dnn_places(x->dims.w, window->w, window->pad_w, window->stride_w, 1);
}

int cudnnPoolingForward(struct cudnnContext *handle, struct cudnnPoolingStruct *pooling, const void *alpha,
                        struct cudnnTensorStruct *x_desc, const void *x, const void *beta,
                        struct cudnnTensorStruct *y_desc, void *y)
{
    struct pool job = { .input = x, .to = y };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) || x == y ||
        !read_pool(pooling, x_desc, y_desc, &job))
        return CUDNN_STATUS_BAD_PARAM;
    return FAKE_DNN_PUT(handle, run_pool, job, FAKE_READS(x, &job.x), FAKE_WRITES(y, &job.y));
}

int cudnnPoolingBackward(struct cudnnContext *handle, struct cudnnPoolingStruct *pooling, const void *alpha,
                         struct cudnnTensorStruct *y_desc, const void *y, struct cudnnTensorStruct *dy_desc,
                         const void *dy, struct cudnnTensorStruct *x_desc, const void *x, const void *beta,
                         struct cudnnTensorStruct *dx_desc, void *dx)
{
    struct pool job = { .input = x, .dy = dy, .to = dx };

    if (!fake_dnn_is_handle(handle) || !fake_dnn_blend(alpha, beta, &job.blend) ||
        !read_pool(pooling, x_desc, y_desc, &job) || !fake_dnn_are_tensors(dy_desc, dx_desc) ||
        !fake_dnn_same(&dy_desc->dims, &job.y) || !fake_dnn_same(&dx_desc->dims, &job.x))
        return CUDNN_STATUS_BAD_PARAM;
    return FAKE_DNN_PUT(handle, run_pool_back, job, FAKE_READS(x, &job.x), FAKE_READS(y, &job.y),
                        FAKE_READS(dy, &job.y), FAKE_WRITES(dx, &job.x));
}

/* ---- Softmax --------------------------------------------------------------------------------- */

struct softmax {
    struct fake_dims dims;
    const float *input, *dy;                    /* x, or y of the backward pass */
    float *to;                                  /* y or dx */
    struct fake_blend blend;
};

static void run_softmax(const void *argument)
{
    const struct softmax *job = argument;
    size_t row = job->dims.c * job->dims.h * job->dims.w;

    for (size_t n = 0; n < job->dims.n; n++) {
        const float *x = job->input + n * row;
        double sum = 0.0, largest = (double)x[0];

        for (size_t i = 1; i < row; i++)
            largest = fmax(largest, (double)x[i]);
        for (size_t i = 0; i < row; i++)
            sum += exp((double)x[i] - largest);
        for (size_t i = 0; i < row; i++)
            fake_blend(job->blend, &job->to[n * row + i], exp((double)x[i] - largest) / sum);
    }
}

static void run_softmax_back(const void *argument)
{
    const struct softmax *job = argument;
    size_t row = job->dims.c * job->dims.h * job->dims.w;

    for (size_t n = 0; n < job->dims.n; n++) {
        const float *y = job->input + n * row, *dy = job->dy + n * row;
        double sum = 0.0;

        for (size_t i = 0; i < row; i++)
            sum += (double)dy[i] * (double)y[i];
        for (size_t i = 0; i < row; i++)
            fake_blend(job->blend, &job->to[n * row + i], (double)y[i] * ((double)dy[i] - sum));
    }
}

static bool may_softmax(const struct cudnnContext *handle, int algorithm, int mode,
                        const struct cudnnTensorStruct *from, const struct cudnnTensorStruct *to)
{
    return fake_dnn_is_handle(handle) && algorithm == BXI_CUDNN_SOFTMAX_ACCURATE &&
        mode == BXI_CUDNN_SOFTMAX_INSTANCE && fake_dnn_are_tensors(from, to) && fake_dnn_same(&from->dims, &to->dims);
}

int cudnnSoftmaxForward(struct cudnnContext *handle, int algorithm, int mode, const void *alpha,
                        struct cudnnTensorStruct *x_desc, const void *x, const void *beta,
                        struct cudnnTensorStruct *y_desc, void *y)
{
    struct softmax job = { .input = x, .to = y };

    if (!may_softmax(handle, algorithm, mode, x_desc, y_desc) || !fake_dnn_blend(alpha, beta, &job.blend))
        return CUDNN_STATUS_BAD_PARAM;
    job.dims = x_desc->dims;
    return FAKE_DNN_PUT(handle, run_softmax, job, FAKE_READS(x, &job.dims), FAKE_WRITES(y, &job.dims));
}

int cudnnSoftmaxBackward(struct cudnnContext *handle, int algorithm, int mode, const void *alpha,
                         struct cudnnTensorStruct *y_desc, const void *y, struct cudnnTensorStruct *dy_desc,
                         const void *dy, const void *beta, struct cudnnTensorStruct *dx_desc, void *dx)
{
    struct softmax job = { .input = y, .dy = dy, .to = dx };

    if (!may_softmax(handle, algorithm, mode, y_desc, dx_desc) ||
        !may_softmax(handle, algorithm, mode, y_desc, dy_desc) || !fake_dnn_blend(alpha, beta, &job.blend))
        return CUDNN_STATUS_BAD_PARAM;
    job.dims = y_desc->dims;
    return FAKE_DNN_PUT(handle, run_softmax_back, job, FAKE_READS(y, &job.dims), FAKE_READS(dy, &job.dims),
                        FAKE_WRITES(dx, &job.dims));
}
