/* SPDX-License-Identifier: MIT */
/*
 * What a plan is made of: failures, buffers, tensors, steps, and gradients on their way to a node (onednn.h).
 * Run by the thread that calls bx_net_finish, and once by its first bx_net_predict.
 */
#include "onednn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if DNNL_VERSION_MAJOR == 2

enum {
    ALIGNMENT = 64,
    STAGGER_BYTES = 5 * ALIGNMENT,
    HUGE_PAGE_BYTES = 2 << 20,
    CHUNK_BYTES = 16 << 20,
};

/* ---- Failures ------------------------------------------------------------------------------------ */

static const char *op_name(enum bxi_nn_op op)
{
    static const char *const names[] = {
        "input", "conv", "batch_norm", "relu", "add", "max_pool", "global_avg_pool", "linear", "softmax",
    };

    return names[op];
}

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

bool bxi_nn_ok(struct bxi_plan *plan, dnnl_status_t status, const char *what)
{
    const struct bxi_node *node = &plan->net->nodes[plan->node];

    if (status != dnnl_success && plan->error == 0)
        plan->error = bx_fail(code_of(status), "oneDNN refused the %s of node %d (%s%s%s) with status %d", what,
                              plan->node, op_name(node->op), node->name == NULL ? "" : " ",
                              node->name == NULL ? "" : node->name, (int)status);
    return plan->error == 0;
}

/* Room for one more in an array of `bytes` each; NULL and an error kept when there is no memory. */
static void *room(struct bxi_plan *plan, void *array, size_t count, size_t *capacity, size_t bytes)
{
    size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *larger;

    if (count < *capacity)
        return array;
    larger = realloc(array, wanted * bytes);
    if (larger == NULL) {
        if (plan->error == 0)
            plan->error = bx_fail(-ENOMEM, "no memory to plan the net");
        return NULL;
    }
    *capacity = wanted;
    return larger;
}

/* ---- Buffers and tensors ------------------------------------------------------------------------- */

/* Cut from chunks of huge pages, because convolutions that walk over megabytes of weights for a few pixels
 * spend their time on the misses of ordinary ones; zeroed here, so that the pages are there before the
 * first pass. Neighbours are staggered: tensors of one layer, a power of two apart, would fall on the
 * same lines of the first cache. */
void *bxi_nn_aligned_zeros(struct bxi_plan *plan, size_t bytes)
{
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct bxi_chunk *chunk = plan->chunks;

    if (chunk == NULL || chunk->bytes - chunk->used < rounded) {
        size_t header = (sizeof *chunk + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        size_t wanted = rounded + header < CHUNK_BYTES ? CHUNK_BYTES :
            (rounded + header + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;

        chunk = aligned_alloc(HUGE_PAGE_BYTES, wanted);
        if (chunk == NULL)
            return NULL;
        madvise(chunk, wanted, MADV_HUGEPAGE);      /* where there are none, ordinary ones do */
        *chunk = (struct bxi_chunk){ .next = plan->chunks, .bytes = wanted, .used = header };
        plan->chunks = chunk;
    }

    void *data = memset((char *)chunk + chunk->used, 0, rounded);

    chunk->used += rounded + STAGGER_BYTES;
    if (chunk->used > chunk->bytes)
        chunk->used = chunk->bytes;
    return data;
}

int bxi_nn_make_buffer(struct bxi_plan *plan, size_t bytes)
{
    struct bxi_buffer *buffers = room(plan, plan->buffers, plan->buffer_count, &plan->buffer_capacity,
                                      sizeof *buffers);

    if (buffers == NULL)
        return -1;
    plan->buffers = buffers;

    void *data = bxi_nn_aligned_zeros(plan, bytes);

    if (data == NULL) {
        plan->error = bx_fail(-ENOMEM, "no memory for a tensor of %zu bytes", bytes);
        return -1;
    }
    plan->buffers[plan->buffer_count] = (struct bxi_buffer){ .data = data, .bytes = bytes, .readers = 1 };
    return (int)plan->buffer_count++;
}

/* The smallest that nobody reads any more and that is not much too large, or a new one. */
static int take_buffer(struct bxi_plan *plan, size_t bytes)
{
    int best = -1;

    for (size_t i = 0; i < plan->buffer_count; i++) {
        const struct bxi_buffer *buffer = &plan->buffers[i];

        if (buffer->readers == 0 && buffer->bytes >= bytes && buffer->bytes <= bytes + bytes / 2 &&
            (best < 0 || buffer->bytes < plan->buffers[best].bytes))
            best = (int)i;
    }
    if (best < 0)
        return bxi_nn_make_buffer(plan, bytes);
    plan->buffers[best].readers = 1;
    return best;
}

void bxi_nn_retain(struct bxi_plan *plan, const struct bxi_tensor *tensor)
{
    if (tensor->memory != NULL && tensor->buffer >= 0)
        plan->buffers[tensor->buffer].readers++;
}

void bxi_nn_release(struct bxi_plan *plan, const struct bxi_tensor *tensor)
{
    if (tensor->memory != NULL && tensor->buffer >= 0)
        plan->buffers[tensor->buffer].readers--;
}

bool bxi_nn_is_only_reader(const struct bxi_plan *plan, const struct bxi_tensor *tensor)
{
    return tensor->buffer >= 0 && plan->buffers[tensor->buffer].readers == 1;
}

dnnl_memory_t bxi_nn_make_memory(struct bxi_plan *plan, const dnnl_memory_desc_t *md, void *data)
{
    dnnl_memory_t *memories = room(plan, plan->memories, plan->memory_count, &plan->memory_capacity,
                                   sizeof(dnnl_memory_t));
    dnnl_memory_t memory = NULL;

    if (memories == NULL)
        return NULL;
    plan->memories = memories;
    if (plan->error != 0 || !bxi_nn_ok(plan, dnnl_memory_create(&memory, md, plan->engine, data), "memory"))
        return NULL;
    plan->memories[plan->memory_count++] = memory;
    return memory;
}

struct bxi_tensor bxi_nn_callers_tensor(struct bxi_plan *plan, const dnnl_memory_desc_t *md)
{
    return (struct bxi_tensor){ .md = *md, .memory = bxi_nn_make_memory(plan, md, DNNL_MEMORY_NONE), .buffer = -1 };
}

struct bxi_tensor bxi_nn_tensor_on(struct bxi_plan *plan, const dnnl_memory_desc_t *md, int buffer)
{
    struct bxi_tensor tensor = { .md = *md, .buffer = buffer };

    if (plan->error != 0 || buffer < 0)
        return tensor;
    tensor.data = plan->buffers[buffer].data;
    tensor.memory = bxi_nn_make_memory(plan, md, tensor.data);
    return tensor;
}

struct bxi_tensor bxi_nn_new_tensor(struct bxi_plan *plan, const dnnl_memory_desc_t *md)
{
    return bxi_nn_tensor_on(plan, md, plan->error != 0 ? -1 : take_buffer(plan, dnnl_memory_desc_get_size(md)));
}

bool bxi_nn_is_same(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b)
{
    return dnnl_memory_desc_equal(a, b) != 0;
}

dnnl_memory_desc_t bxi_nn_describe(struct bxi_plan *plan, int ndims, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t md = { .ndims = 0 };

    bxi_nn_ok(plan, dnnl_memory_desc_init_by_tag(&md, ndims, dims, dnnl_f32, tag), "description");
    return md;
}

dnnl_memory_desc_t bxi_nn_describe_vector(struct bxi_plan *plan, int64_t count)
{
    return bxi_nn_describe(plan, 1, (const dnnl_dims_t){ count }, dnnl_a);
}

dnnl_memory_desc_t bxi_nn_describe_out(struct bxi_plan *plan, const struct bxi_node *node, dnnl_format_tag_t tag)
{
    const int *dims = node->dims;

    return bxi_nn_describe(plan, 4, (const dnnl_dims_t){ dims[0], dims[1], dims[2], dims[3] }, tag);
}

/* ---- Steps --------------------------------------------------------------------------------------- */

struct bxi_step *bxi_nn_add_step(struct bxi_plan *plan, struct bxi_program *program, enum bxi_step_kind kind)
{
    struct bxi_step *steps = plan->error != 0 ? NULL :
        room(plan, program->steps, program->count, &program->capacity, sizeof *steps);

    if (steps == NULL)
        return NULL;
    program->steps = steps;
    steps[program->count] = (struct bxi_step){ .kind = kind, .node = plan->node };
    return &steps[program->count++];
}

void bxi_nn_add_arg(struct bxi_step *step, int arg, const struct bxi_tensor *tensor)
{
    if (step == NULL || tensor->memory == NULL)
        return;
    step->args[step->arg_count++] = (dnnl_exec_arg_t){ .arg = arg, .memory = tensor->memory };
}

struct bxi_step *bxi_nn_add_primitive(struct bxi_plan *plan, struct bxi_program *program,
                                      const_dnnl_primitive_desc_t pd)
{
    dnnl_primitive_t primitive = NULL;
    struct bxi_step *step = NULL;

    if (plan->error != 0 || !bxi_nn_ok(plan, dnnl_primitive_create(&primitive, pd), "primitive"))
        return NULL;
    step = bxi_nn_add_step(plan, program, BXI_STEP_PRIMITIVE);
    if (step == NULL) {
        dnnl_primitive_destroy(primitive);
        return NULL;
    }
    step->primitive = primitive;

    size_t bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));

    if (bytes > 0)
        step->args[step->arg_count++] = (dnnl_exec_arg_t){ .arg = DNNL_ARG_SCRATCHPAD, .memory = plan->scratch };
    if (bytes > plan->scratch_bytes)
        plan->scratch_bytes = bytes;
    return step;
}

dnnl_primitive_desc_t bxi_nn_make_pd(struct bxi_plan *plan, const void *op, const_dnnl_primitive_desc_t hint,
                                     const char *what)
{
    dnnl_primitive_desc_t pd = NULL;

    if (plan->error == 0)
        bxi_nn_ok(plan, dnnl_primitive_desc_create(&pd, op, plan->attr, plan->engine, hint), what);
    return pd;
}

const dnnl_memory_desc_t *bxi_nn_md_of(const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(pd, what, 0);
}

void bxi_nn_destroy_pd(dnnl_primitive_desc_t pd)
{
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
}

void bxi_nn_destroy_pds(struct bxi_work *work)
{
    bxi_nn_destroy_pd(work->forward);
    bxi_nn_destroy_pd(work->backward_weights);
    bxi_nn_destroy_pd(work->backward_data);
    work->forward = work->backward_weights = work->backward_data = NULL;
}

void bxi_nn_add_reorder(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                        const struct bxi_tensor *to)
{
    dnnl_primitive_desc_t pd = NULL;
    struct bxi_step *step = NULL;

    if (plan->error != 0 ||
        !bxi_nn_ok(plan, dnnl_reorder_primitive_desc_create(&pd, &from->md, plan->engine, &to->md, plan->engine,
                                                            plan->attr), "reorder"))
        return;
    step = bxi_nn_add_primitive(plan, program, pd);
    bxi_nn_add_arg(step, DNNL_ARG_FROM, from);
    bxi_nn_add_arg(step, DNNL_ARG_TO, to);
    bxi_nn_destroy_pd(pd);
}

struct bxi_tensor bxi_nn_in_layout(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                                   const dnnl_memory_desc_t *md)
{
    struct bxi_tensor to;

    if (plan->error != 0 || bxi_nn_is_same(&from->md, md)) {
        bxi_nn_retain(plan, from);
        return *from;
    }
    to = bxi_nn_new_tensor(plan, md);
    bxi_nn_add_reorder(plan, program, from, &to);
    return to;
}

/* ---- Gradients of nodes -------------------------------------------------------------------------- */

static void add_sum(struct bxi_plan *plan, const struct bxi_tensor *to, const struct bxi_tensor parts[2],
                    const struct bxi_tensor *mask)
{
    struct bxi_step *step = bxi_nn_add_step(plan, &plan->backward, mask == NULL ? BXI_STEP_SUM : BXI_STEP_MASKED_SUM);

    if (step == NULL)
        return;
    step->to = to->data;
    step->a = parts[0].data;
    step->b = parts[1].memory == NULL ? NULL : parts[1].data;
    step->mask = mask == NULL ? NULL : mask->data;
    step->count = dnnl_memory_desc_get_size(&to->md) / sizeof(float);
}

/* The parts of a node's gradient become one, in one pass over memory, or in none if there is but one. */
static void join_parts(struct bxi_plan *plan, struct bxi_work *work, const struct bxi_tensor *mask)
{
    const dnnl_memory_desc_t md = mask != NULL ? mask->md : work->parts[0].md;
    struct bxi_tensor sum = { .memory = NULL };

    if (plan->error != 0 || (work->part_count < 2 && mask == NULL))
        return;
    for (int i = 0; i < work->part_count; i++) {
        struct bxi_tensor part = work->parts[i];

        work->parts[i] = bxi_nn_in_layout(plan, &plan->backward, &part, &md);
        bxi_nn_release(plan, &part);
    }
    if (plan->error != 0)
        return;
    for (int i = 0; i < work->part_count && sum.memory == NULL; i++)
        if (bxi_nn_is_only_reader(plan, &work->parts[i])) {
            sum = work->parts[i];
            bxi_nn_retain(plan, &sum);
        }
    if (sum.memory == NULL)
        sum = bxi_nn_new_tensor(plan, &md);
    add_sum(plan, &sum, work->parts, mask);
    for (int i = 0; i < work->part_count; i++)
        bxi_nn_release(plan, &work->parts[i]);
    work->parts[0] = sum;
    work->parts[1].memory = NULL;
    work->part_count = 1;
}

void bxi_nn_give_grad(struct bxi_plan *plan, int node, const struct bxi_tensor *grad)
{
    struct bxi_work *work = &plan->work[node];

    if (plan->error != 0)
        return;
    if (work->part_count == 2)
        join_parts(plan, work, NULL);
    work->parts[work->part_count++] = *grad;
}

struct bxi_tensor bxi_nn_take_grad(struct bxi_plan *plan, int node, bool masked)
{
    struct bxi_work *work = &plan->work[node];

    join_parts(plan, work, masked ? &work->out : NULL);
    return work->parts[0];
}
#endif
