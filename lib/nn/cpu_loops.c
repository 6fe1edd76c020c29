/* SPDX-License-Identifier: MIT */
/*
 * Computations that are our own loops: sums with and without ReLU, and the statistics of batch normalisations. Run by
 * the thread that computes and the other threads of its net, each of which takes its share.
 *
 * oneDNN could compute the statistics too, but it sums in float, thousands of values of a batch one after the other.
 * The precision lost there is most of what a network of norms loses: with our statistics a ResNet-50's logits are half
 * as far from those in double. Here a lane sums few values in float, and its sums are summed in double. The variance is
 * computed from the distances to the mean, in a second pass over data that is then in a cache. It takes no longer than
 * oneDNN's way.
 */
#include "cpu.h"

/* ---- Sums ---------------------------------------------------------------------------------------- */

struct bxi_range bxi_nn_share(size_t count, int index, int parts)
{
    return (struct bxi_range){ count * (size_t)index / (size_t)parts, count * (size_t)(index + 1) / (size_t)parts };
}

/* `keep` in the lanes in which `drop` is 0, else 0. */
#define WITHOUT(drop, keep) ((bxi_vec)(~(drop) & (bxi_vec_bits)(keep)))

static void sum(const struct bxi_step *step, struct bxi_range vecs)
{
    const bxi_vec *a = (const bxi_vec *)step->a, *b = (const bxi_vec *)step->b;
    bxi_vec *to = (bxi_vec *)step->to;

    for (size_t i = vecs.first; i < vecs.end; i++)
        to[i] = a[i] + b[i];
}

/* Here and below the comparison is false for a NaN, so that a NaN is passed on. */
static void relu_sum(const struct bxi_step *step, struct bxi_range vecs)
{
    const bxi_vec *a = (const bxi_vec *)step->a, *b = (const bxi_vec *)step->b;
    bxi_vec *to = (bxi_vec *)step->to;

    if (b == NULL) {
        for (size_t i = vecs.first; i < vecs.end; i++)
            to[i] = WITHOUT((bxi_vec_bits)(a[i] < 0), a[i]);
        return;
    }
    for (size_t i = vecs.first; i < vecs.end; i++) {
        bxi_vec value = a[i] + b[i];

        to[i] = WITHOUT((bxi_vec_bits)(value < 0), value);
    }
}

static void masked_sum(const struct bxi_step *step, struct bxi_range vecs)
{
    const bxi_vec *a = (const bxi_vec *)step->a, *b = (const bxi_vec *)step->b, *mask = (const bxi_vec *)step->mask;
    bxi_vec *to = (bxi_vec *)step->to;

    if (b == NULL) {
        for (size_t i = vecs.first; i < vecs.end; i++)
            to[i] = WITHOUT((bxi_vec_bits)(mask[i] <= 0), a[i]);
        return;
    }
    for (size_t i = vecs.first; i < vecs.end; i++)
        to[i] = WITHOUT((bxi_vec_bits)(mask[i] <= 0), a[i] + b[i]);
}

static void sum_part(const void *data, int index, int parts)
{
    const struct bxi_step *step = data;
    /* Buffers end on whole vectors, so the last one may reach past the tensor. */
    const size_t vecs = (step->count + BXI_VEC_FLOATS - 1) / BXI_VEC_FLOATS;

    if (step->kind == BXI_STEP_SUM)
        sum(step, bxi_nn_share(vecs, index, parts));
    else if (step->kind == BXI_STEP_RELU_SUM)
        relu_sum(step, bxi_nn_share(vecs, index, parts));
    else
        masked_sum(step, bxi_nn_share(vecs, index, parts));
}

void bxi_nn_sum(const struct bxi_step *step)
{
    bxi_onednn.in_parallel(sum_part, step);
}

/* ---- Statistics ---------------------------------------------------------------------------------- */

/* A row is 16 floats that are read together: at most 16 channels; with smaller blocks, several pixels. */
enum {
    ROW = 16,
    ROW_VECS = ROW / BXI_VEC_FLOATS,
    RUN_ROWS = 16,                  /* rows that are summed in float */
};

/* At any float: an image of 7 x 7 pixels may begin between two vectors. */
typedef float loose_vec __attribute__((vector_size(BXI_VEC_FLOATS * sizeof(float)), aligned(sizeof(float))));

/* The places of the values of one block of channels: runs of `floats`, in three nested loops. */
struct runs {
    int64_t count[3], stride[3];
    size_t floats;
    int block;                      /* value i of a run is of channel i % block */
};

/* Of each lane of a row; lane i is of channel i % block. */
struct lanes {
    float mean[ROW];
    double sum[ROW];
};

bool bxi_nn_has_statistics(const struct bxi_layout *layout)
{
    return layout->inner_count == 0 ||
        (layout->inner_count == 1 && layout->inner_axis[0] == 1 && ROW % layout->inner_size[0] == 0);
}

static struct runs runs_of(const struct bxi_layout *layout)
{
    const int block = layout->inner_count == 0 ? 1 : layout->inner_size[0];
    struct runs runs = {
        .count = { layout->dims[0], layout->dims[2], layout->dims[3] },
        .stride = { layout->strides[0], layout->strides[2], layout->strides[3] },
        .floats = (size_t)block,
        .block = block,
    };

    /* Joins each dimension that continues where the run ends to the run; a folded batch becomes one run. */
    for (int again = 0; again < 3; again++)
        for (int i = 0; i < 3; i++)
            if (runs.count[i] > 1 && runs.stride[i] == (int64_t)runs.floats) {
                runs.floats *= (size_t)runs.count[i];
                runs.count[i] = 1;
            }
    return runs;
}

static void add_values(struct lanes *lanes, const float *x, size_t rows)
{
    const loose_vec *at = (const loose_vec *)x;
    bxi_vec a = { 0 }, b = a, c = a, d = a;

    for (const loose_vec *end = at + rows * ROW_VECS; at < end; at += ROW_VECS) {
        a += at[0];
        b += at[1];
        c += at[2];
        d += at[3];
    }
    for (int i = 0; i < BXI_VEC_FLOATS; i++) {
        lanes->sum[i] += (double)a[i];
        lanes->sum[i + BXI_VEC_FLOATS] += (double)b[i];
        lanes->sum[i + 2 * BXI_VEC_FLOATS] += (double)c[i];
        lanes->sum[i + 3 * BXI_VEC_FLOATS] += (double)d[i];
    }
}

static void add_squares(struct lanes *lanes, const float *x, size_t rows)
{
    const loose_vec *at = (const loose_vec *)x, *mean = (const loose_vec *)lanes->mean;
    const bxi_vec m0 = mean[0], m1 = mean[1], m2 = mean[2], m3 = mean[3];
    bxi_vec a = { 0 }, b = a, c = a, d = a;

    for (const loose_vec *end = at + rows * ROW_VECS; at < end; at += ROW_VECS) {
        a += (at[0] - m0) * (at[0] - m0);
        b += (at[1] - m1) * (at[1] - m1);
        c += (at[2] - m2) * (at[2] - m2);
        d += (at[3] - m3) * (at[3] - m3);
    }
    for (int i = 0; i < BXI_VEC_FLOATS; i++) {
        lanes->sum[i] += (double)a[i];
        lanes->sum[i + BXI_VEC_FLOATS] += (double)b[i];
        lanes->sum[i + 2 * BXI_VEC_FLOATS] += (double)c[i];
        lanes->sum[i + 3 * BXI_VEC_FLOATS] += (double)d[i];
    }
}

static void add_run(struct lanes *lanes, const float *x, size_t floats, bool squares)
{
    size_t rows = floats / ROW;

    for (size_t row = 0; row < rows; row += RUN_ROWS) {
        size_t count = rows - row < RUN_ROWS ? rows - row : RUN_ROWS;

        if (squares)
            add_squares(lanes, x + row * ROW, count);
        else
            add_values(lanes, x + row * ROW, count);
    }
    for (size_t i = rows * ROW; i < floats; i++) {
        double value = (double)x[i] - (double)lanes->mean[i % ROW];

        lanes->sum[i % ROW] += squares ? value * value : (double)x[i];
    }
}

/* Sets sum[0 .. block - 1] to each channel's mean value, or to its mean squared distance to the mean. */
static void sum_block(struct lanes *lanes, const struct runs *runs, const float *x, bool squares)
{
    const size_t count = (size_t)(runs->count[0] * runs->count[1] * runs->count[2]) * runs->floats /
        (size_t)runs->block;

    for (int i = 0; i < ROW; i++)
        lanes->sum[i] = 0;
    for (int64_t n = 0; n < runs->count[0]; n++)
        for (int64_t h = 0; h < runs->count[1]; h++)
            for (int64_t w = 0; w < runs->count[2]; w++)
                add_run(lanes, x + n * runs->stride[0] + h * runs->stride[1] + w * runs->stride[2], runs->floats,
                        squares);
    for (int i = runs->block; i < ROW; i++)
        lanes->sum[i % runs->block] += lanes->sum[i];
    for (int i = 0; i < runs->block; i++)
        lanes->sum[i] /= (double)count;
}

/* Stores a channel's statistics of this batch and updates the running ones. `square` is about (float)mean. */
static void set_channel(const struct bxi_node *node, const struct bxi_work *work, int channel, double mean,
                        double square)
{
    const double count = (double)node->dims[0] * node->dims[2] * node->dims[3];
    const double off = mean - (double)(float)mean;
    const double var = square > off * off ? square - off * off : 0;
    const double kept = 1 - BXI_BN_MOMENTUM;

    work->mean.data[channel] = (float)mean;
    work->var.data[channel] = (float)var;
    node->mean[channel] = (float)(BXI_BN_MOMENTUM * mean + kept * (double)node->mean[channel]);
    node->var[channel] = (float)(BXI_BN_MOMENTUM * var * count / (count - 1) + kept * (double)node->var[channel]);
}

struct batch {
    const struct bxi_node *node;
    const struct bxi_work *work;
    struct runs runs;
};

/* A thread takes whole blocks of channels, so that the sums do not depend on the number of threads. */
static void statistics_part(const void *data, int index, int parts)
{
    const struct batch *batch = data;
    const struct bxi_tensor *src = &batch->work->src;
    const int block = batch->runs.block, channels = batch->node->dims[1];
    const struct bxi_range blocks = bxi_nn_share((size_t)((channels + block - 1) / block), index, parts);

    for (size_t at = blocks.first; at < blocks.end; at++) {
        const float *x = src->data + (int64_t)at * src->layout.strides[1];
        const int first = (int)at * block;
        struct lanes lanes = { .mean = { 0 } };
        double mean[ROW];

        sum_block(&lanes, &batch->runs, x, false);
        for (int i = 0; i < ROW; i++)
            mean[i] = lanes.sum[i % block];
        for (int i = 0; i < ROW; i++)
            lanes.mean[i] = (float)mean[i];
        sum_block(&lanes, &batch->runs, x, true);
        for (int i = 0; i < block && first + i < channels; i++)
            set_channel(batch->node, batch->work, first + i, mean[i], lanes.sum[i]);
    }
}

void bxi_nn_batch_statistics(const struct bxi_node *node, const struct bxi_work *work)
{
    const struct batch batch = { node, work, runs_of(&work->src.layout) };

    bxi_onednn.in_parallel(statistics_part, &batch);
}
