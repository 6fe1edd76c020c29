/* SPDX-License-Identifier: MIT */
/*
 * All calls of oneDNN (dnn.h), for its C API of 2.x. Run by the thread that uses the net, and by the OpenMP threads of
 * oneDNN.
 *
 * A layout is converted to a oneDNN description field by field, and back. Descriptions that cannot be converted
 * (formats without strides, more inner blocks than we keep) become no layout, and the plan then fails with -ENOTSUP.
 * Built with another major version, this file has only a table whose check fails; it is called before anything else in
 * the table.
 */
#include "boxcar_nn.h"
#include "dnn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR != 2

static const char *version(void)
{
    return "none";
}

static int check(void)
{
    return bx_fail(-ENOTSUP, "libboxcar_nn was built with oneDNN %d, and it is written for 2.x", DNNL_VERSION_MAJOR);
}

const struct bxi_dnn_api bxi_onednn = { .version = version, .check = check };

#else

/* Functions of libgomp, with which oneDNN computes. Not <omp.h> and #pragma omp: the compiler may have no OpenMP, or
 * another one, and a process must not have two. */
void omp_set_num_threads(int threads);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
void GOMP_parallel(void (*function)(void *data), void *data, unsigned threads, unsigned flags);

struct bxi_memory {
    struct bxi_memory *next;
    dnnl_memory_t handle;
};

struct bxi_recipe {
    struct bxi_recipe *next;
    dnnl_primitive_desc_t handle;
};

struct bxi_op {
    struct bxi_op *next;
    dnnl_primitive_t handle;
    int arg_count;
    dnnl_exec_arg_t args[BXI_ARGS_MAX];
};

struct bxi_dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr;
    struct bxi_memory *memories;
    struct bxi_recipe *recipes;
    struct bxi_op *ops;
};

static int code_of(dnnl_status_t status)
{
    switch (status) {
    case dnnl_success: return 0;
    case dnnl_out_of_memory: return -ENOMEM;
    case dnnl_unimplemented: return -ENOTSUP;
    case dnnl_invalid_arguments: return -EINVAL;
    default: return -EIO;
    }
}

/* ---- The library as a whole ---------------------------------------------------------------------- */

static const char *version(void)
{
    static char text[32];
    const dnnl_version_t *found = dnnl_version();

    snprintf(text, sizeof text, "%d.%d.%d", found->major, found->minor, found->patch);
    return text;
}

static int check(void)
{
    if (dnnl_version()->major != 2)
        return bx_fail(-ENOTSUP, "oneDNN %s was found, and libboxcar_nn was built for 2.x", version());
    return 0;
}

static void use_threads(int threads)
{
    omp_set_num_threads(threads);
}

struct job {
    void (*part)(const void *data, int index, int count);
    const void *data;
};

static void run_part(void *at)
{
    const struct job *job = at;

    job->part(job->data, omp_get_thread_num(), omp_get_num_threads());
}

static void in_parallel(void (*part)(const void *data, int index, int count), const void *data)
{
    struct job job = { part, data };

    GOMP_parallel(run_part, &job, 0, 0);        /* 0: as many as omp_set_num_threads set */
}

static void close_dnn(struct bxi_dnn *dnn)
{
    for (struct bxi_op *op = dnn->ops, *next; op != NULL; op = next) {
        next = op->next;
        dnnl_primitive_destroy(op->handle);
        free(op);
    }
    for (struct bxi_recipe *recipe = dnn->recipes, *next; recipe != NULL; recipe = next) {
        next = recipe->next;
        dnnl_primitive_desc_destroy(recipe->handle);
        free(recipe);
    }
    for (struct bxi_memory *memory = dnn->memories, *next; memory != NULL; memory = next) {
        next = memory->next;
        dnnl_memory_destroy(memory->handle);
        free(memory);
    }
    if (dnn->attr != NULL)
        dnnl_primitive_attr_destroy(dnn->attr);
    if (dnn->stream != NULL)
        dnnl_stream_destroy(dnn->stream);
    if (dnn->engine != NULL)
        dnnl_engine_destroy(dnn->engine);
    free(dnn);
}

static int open_dnn(struct bxi_dnn **dnn)
{
    struct bxi_dnn *made = calloc(1, sizeof *made);
    dnnl_status_t status;

    if (made == NULL)
        return -ENOMEM;
    status = dnnl_engine_create(&made->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&made->stream, made->engine, dnnl_stream_default_flags);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_create(&made->attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(made->attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success) {
        close_dnn(made);
        return code_of(status);
    }
    *dnn = made;
    return 0;
}

/* ---- Layouts and memory -------------------------------------------------------------------------- */

/* A layout without dimensions gives a description without dimensions: there is no such argument. */
static dnnl_memory_desc_t md_of(const struct bxi_layout *layout)
{
    dnnl_memory_desc_t md = { .ndims = layout->ndims, .data_type = dnnl_f32 };
    dnnl_blocking_desc_t *blocking = &md.format_desc.blocking;

    if (layout->ndims == 0)
        return (dnnl_memory_desc_t){ .ndims = 0 };
    md.format_kind = layout->any ? dnnl_format_kind_any : dnnl_blocked;
    for (int i = 0; i < layout->ndims; i++) {
        md.dims[i] = layout->dims[i];
        md.padded_dims[i] = layout->any ? layout->dims[i] : layout->padded[i];
        if (!layout->any)
            blocking->strides[i] = layout->strides[i];
    }
    blocking->inner_nblks = layout->any ? 0 : layout->inner_count;
    for (int i = 0; i < blocking->inner_nblks; i++) {
        blocking->inner_idxs[i] = layout->inner_axis[i];
        blocking->inner_blks[i] = layout->inner_size[i];
    }
    return md;
}

static struct bxi_layout layout_of_md(const dnnl_memory_desc_t *md)
{
    const dnnl_blocking_desc_t *blocking = &md->format_desc.blocking;
    struct bxi_layout layout = { .ndims = md->ndims };

    if (md->ndims > BXI_DIMS_MAX || md->data_type != dnnl_f32 || md->format_kind != dnnl_blocked ||
        md->offset0 != 0 || md->extra.flags != 0 || blocking->inner_nblks > BXI_INNER_MAX)
        return (struct bxi_layout){ .ndims = 0 };
    for (int i = 0; i < md->ndims; i++) {
        layout.dims[i] = md->dims[i];
        layout.padded[i] = md->padded_dims[i];
        layout.strides[i] = blocking->strides[i];
    }
    layout.inner_count = blocking->inner_nblks;
    for (int i = 0; i < layout.inner_count; i++) {
        layout.inner_axis[i] = (int)blocking->inner_idxs[i];
        layout.inner_size[i] = (int)blocking->inner_blks[i];
    }
    return layout;
}

static int make_memory(struct bxi_dnn *dnn, const struct bxi_layout *layout, void *data, struct bxi_memory **memory)
{
    const dnnl_memory_desc_t md = md_of(layout);
    struct bxi_memory *made;
    dnnl_status_t status;

    if (layout->ndims == 0)
        return -ENOTSUP;
    made = calloc(1, sizeof *made);
    if (made == NULL)
        return -ENOMEM;
    status = dnnl_memory_create(&made->handle, &md, dnn->engine, data == NULL ? DNNL_MEMORY_NONE : data);
    if (status != dnnl_success) {
        free(made);
        return code_of(status);
    }
    made->next = dnn->memories;
    dnn->memories = made;
    *memory = made;
    return 0;
}

static int bind_memory(struct bxi_memory *memory, void *data)
{
    return code_of(dnnl_memory_set_data_handle(memory->handle, data));
}

/* ---- Recipes ------------------------------------------------------------------------------------- */

/* A spec, with its layouts in oneDNN's form. */
struct described {
    const struct bxi_spec *spec;
    dnnl_memory_desc_t src, weight, bias, dst;
    dnnl_dims_t kernel, stride, padding;
};

/* Of any operation; oneDNN copies as many bytes as its first field, the kind, implies. */
union any_desc {
    dnnl_convolution_desc_t conv;
    dnnl_inner_product_desc_t linear;
    dnnl_batch_normalization_desc_t norm;
    dnnl_pooling_desc_t pool;
    dnnl_softmax_desc_t softmax;
};

static dnnl_status_t describe_conv(const struct described *d, dnnl_convolution_desc_t *desc)
{
    const dnnl_memory_desc_t *bias = d->spec->bias.ndims == 0 ? NULL : &d->bias;

    switch (d->spec->pass) {
    case BXI_PASS_FORWARD:
        return dnnl_convolution_forward_desc_init(desc, dnnl_forward_training, dnnl_convolution_direct, &d->src,
                                                  &d->weight, bias, &d->dst, d->stride, d->padding, d->padding);
    case BXI_PASS_BACKWARD_WEIGHTS:
        return dnnl_convolution_backward_weights_desc_init(desc, dnnl_convolution_direct, &d->src, &d->weight, bias,
                                                           &d->dst, d->stride, d->padding, d->padding);
    case BXI_PASS_BACKWARD_DATA:
        return dnnl_convolution_backward_data_desc_init(desc, dnnl_convolution_direct, &d->src, &d->weight, &d->dst,
                                                        d->stride, d->padding, d->padding);
    default:
        return dnnl_invalid_arguments;
    }
}

static dnnl_status_t describe_linear(const struct described *d, dnnl_inner_product_desc_t *desc)
{
    const dnnl_memory_desc_t *bias = d->spec->bias.ndims == 0 ? NULL : &d->bias;

    switch (d->spec->pass) {
    case BXI_PASS_FORWARD:
        return dnnl_inner_product_forward_desc_init(desc, dnnl_forward_training, &d->src, &d->weight, bias, &d->dst);
    case BXI_PASS_BACKWARD_WEIGHTS:
        return dnnl_inner_product_backward_weights_desc_init(desc, &d->src, &d->weight, bias, &d->dst);
    case BXI_PASS_BACKWARD_DATA:
        return dnnl_inner_product_backward_data_desc_init(desc, &d->src, &d->weight, &d->dst);
    default:
        return dnnl_invalid_arguments;
    }
}

static dnnl_status_t describe_norm(const struct described *d, dnnl_batch_normalization_desc_t *desc)
{
    const struct bxi_spec *spec = d->spec;
    unsigned flags = dnnl_use_scale | dnnl_use_shift | (spec->relu ? (unsigned)dnnl_fuse_norm_relu : 0) |
        (spec->given_statistics ? (unsigned)dnnl_use_global_stats : 0);

    if (spec->pass == BXI_PASS_BACKWARD)
        return dnnl_batch_normalization_backward_desc_init(desc, dnnl_backward, &d->src, &d->src, spec->epsilon, flags);
    return dnnl_batch_normalization_forward_desc_init(desc, spec->pass == BXI_PASS_PREDICT ? dnnl_forward_inference :
                                                      dnnl_forward_training, &d->src, spec->epsilon, flags);
}

static dnnl_status_t describe_pool(const struct described *d, dnnl_pooling_desc_t *desc)
{
    const dnnl_alg_kind_t kind = d->spec->op == BXI_OP_MAX_POOL ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding;

    if (d->spec->pass == BXI_PASS_BACKWARD)
        return dnnl_pooling_backward_desc_init(desc, kind, &d->src, &d->dst, d->stride, d->kernel, d->padding,
                                               d->padding);
    return dnnl_pooling_forward_desc_init(desc, dnnl_forward_training, kind, &d->src, &d->dst, d->stride, d->kernel,
                                          d->padding, d->padding);
}

static dnnl_status_t describe_softmax(const struct described *d, dnnl_softmax_desc_t *desc)
{
    if (d->spec->pass == BXI_PASS_BACKWARD)
        return dnnl_softmax_backward_desc_init(desc, &d->dst, &d->dst, 1);
    return dnnl_softmax_forward_desc_init(desc, dnnl_forward_training, &d->src, 1);
}

static dnnl_status_t make_pd(struct bxi_dnn *dnn, const struct described *d, dnnl_primitive_desc_t *pd)
{
    const_dnnl_primitive_desc_t forward = d->spec->forward == NULL ? NULL : d->spec->forward->handle;
    union any_desc desc;
    dnnl_status_t status = dnnl_invalid_arguments;

    switch (d->spec->op) {
    case BXI_OP_REORDER:
        return dnnl_reorder_primitive_desc_create(pd, &d->src, dnn->engine, &d->dst, dnn->engine, dnn->attr);
    case BXI_OP_CONV: status = describe_conv(d, &desc.conv); break;
    case BXI_OP_LINEAR: status = describe_linear(d, &desc.linear); break;
    case BXI_OP_BATCH_NORM: status = describe_norm(d, &desc.norm); break;
    case BXI_OP_MAX_POOL:
    case BXI_OP_AVERAGE_POOL: status = describe_pool(d, &desc.pool); break;
    case BXI_OP_SOFTMAX: status = describe_softmax(d, &desc.softmax); break;
    }
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(pd, &desc, dnn->attr, dnn->engine, forward);
}

static int describe(struct bxi_dnn *dnn, const struct bxi_spec *spec, struct bxi_recipe **recipe)
{
    const struct described d = {
        .spec = spec,
        .src = md_of(&spec->src), .weight = md_of(&spec->weight), .bias = md_of(&spec->bias), .dst = md_of(&spec->dst),
        .kernel = { spec->kernel[0], spec->kernel[1] },
        .stride = { spec->stride, spec->stride },
        .padding = { spec->padding, spec->padding },
    };
    struct bxi_recipe *made = calloc(1, sizeof *made);
    dnnl_status_t status;

    if (made == NULL)
        return -ENOMEM;
    status = make_pd(dnn, &d, &made->handle);
    if (status != dnnl_success) {
        free(made);
        return code_of(status);
    }
    made->next = dnn->recipes;
    dnn->recipes = made;
    *recipe = made;
    return 0;
}

static const int ARG[] = {
    [BXI_ARG_SRC] = DNNL_ARG_SRC, [BXI_ARG_DST] = DNNL_ARG_DST, [BXI_ARG_WEIGHTS] = DNNL_ARG_WEIGHTS,
    [BXI_ARG_BIAS] = DNNL_ARG_BIAS, [BXI_ARG_SCALE] = DNNL_ARG_SCALE, [BXI_ARG_SHIFT] = DNNL_ARG_SHIFT,
    [BXI_ARG_MEAN] = DNNL_ARG_MEAN, [BXI_ARG_VARIANCE] = DNNL_ARG_VARIANCE,
    [BXI_ARG_WORKSPACE] = DNNL_ARG_WORKSPACE, [BXI_ARG_SCRATCH] = DNNL_ARG_SCRATCHPAD,
    [BXI_ARG_DIFF_SRC] = DNNL_ARG_DIFF_SRC, [BXI_ARG_DIFF_DST] = DNNL_ARG_DIFF_DST,
    [BXI_ARG_DIFF_WEIGHTS] = DNNL_ARG_DIFF_WEIGHTS, [BXI_ARG_DIFF_BIAS] = DNNL_ARG_DIFF_BIAS,
    [BXI_ARG_DIFF_SCALE] = DNNL_ARG_DIFF_SCALE, [BXI_ARG_DIFF_SHIFT] = DNNL_ARG_DIFF_SHIFT,
};

static struct bxi_layout layout_of(const struct bxi_recipe *recipe, enum bxi_arg arg)
{
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(recipe->handle, dnnl_query_exec_arg_md, ARG[arg]);

    return md != NULL ? layout_of_md(md) : (struct bxi_layout){ .ndims = 0 };
}

static size_t bytes_of(const struct bxi_recipe *recipe, enum bxi_arg arg)
{
    const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(recipe->handle, dnnl_query_exec_arg_md, ARG[arg]);

    return md == NULL ? 0 : dnnl_memory_desc_get_size(md);
}

/* ---- Computing ----------------------------------------------------------------------------------- */

static int make_op(struct bxi_dnn *dnn, const struct bxi_recipe *recipe, struct bxi_op **op)
{
    struct bxi_op *made = calloc(1, sizeof *made);
    dnnl_status_t status;

    if (made == NULL)
        return -ENOMEM;
    status = dnnl_primitive_create(&made->handle, recipe->handle);
    if (status != dnnl_success) {
        free(made);
        return code_of(status);
    }
    made->next = dnn->ops;
    dnn->ops = made;
    *op = made;
    return 0;
}

static int add_arg(struct bxi_op *op, enum bxi_arg arg, const struct bxi_memory *memory)
{
    if (op->arg_count == BXI_ARGS_MAX)
        return -EINVAL;
    op->args[op->arg_count++] = (dnnl_exec_arg_t){ .arg = ARG[arg], .memory = memory->handle };
    return 0;
}

static int run(struct bxi_dnn *dnn, const struct bxi_op *op)
{
    return code_of(dnnl_primitive_execute(op->handle, dnn->stream, op->arg_count, op->args));
}

static int wait(struct bxi_dnn *dnn)
{
    return code_of(dnnl_stream_wait(dnn->stream));
}

static int sgemm(const struct bx_sgemm *g)
{
    return code_of(dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1, g->a,
                              g->transpose_a ? g->m : g->k, g->b, g->transpose_b ? g->k : g->n, g->beta, g->c, g->n));
}

const struct bxi_dnn_api bxi_onednn = {
    .version = version,
    .check = check,
    .use_threads = use_threads,
    .in_parallel = in_parallel,
    .open = open_dnn,
    .close = close_dnn,
    .make_memory = make_memory,
    .bind = bind_memory,
    .describe = describe,
    .layout_of = layout_of,
    .bytes_of = bytes_of,
    .make_op = make_op,
    .add_arg = add_arg,
    .run = run,
    .wait = wait,
    .sgemm = sgemm,
};
#endif
