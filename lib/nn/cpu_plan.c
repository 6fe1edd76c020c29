/* SPDX-License-Identifier: MIT */
/*
 * The parts of a plan: failures, layouts, buffers, tensors, steps, parameters, and the gradients that a node collects
 * (cpu.h). Run by the thread that calls bx_net_finish, and by its first bx_net_predict.
 */
#include "cpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

bool bxi_nn_ok(struct bxi_plan *plan, int code, const char *what)
{
    const struct bxi_node *node = &plan->net->nodes[plan->node];

    if (code != 0 && plan->error == 0)
        plan->error = bx_fail(code, "oneDNN refused the %s of node %d (%s%s%s): %s", what, plan->node,
                              op_name(node->op), node->name == NULL ? "" : " ", node->name == NULL ? "" : node->name,
                              strerror(-code));
    return plan->error == 0;
}

/* Makes room for one more element of `bytes` bytes in an array. No memory: keeps an error, returns NULL. */
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

/* ---- Layouts ------------------------------------------------------------------------------------- */

struct bxi_layout bxi_layout_any(int ndims, const int64_t *dims)
{
    struct bxi_layout layout = { .ndims = ndims, .any = true };

    for (int i = 0; i < ndims; i++)
        layout.dims[i] = layout.padded[i] = dims[i];
    return layout;
}

struct bxi_layout bxi_layout_plain(int ndims, const int64_t *dims)
{
    struct bxi_layout layout = bxi_layout_any(ndims, dims);
    int64_t stride = 1;

    layout.any = false;
    for (int i = ndims - 1; i >= 0; i--) {
        layout.strides[i] = stride;
        stride *= dims[i];
    }
    return layout;
}

struct bxi_layout bxi_layout_blocked(const int64_t dims[4], int block)
{
    const int64_t blocks = (dims[1] + block - 1) / block;
    struct bxi_layout layout = bxi_layout_plain(4, dims);

    if (block == 1)
        return layout;
    layout.padded[1] = blocks * block;
    layout.strides[3] = block;
    layout.strides[2] = layout.strides[3] * dims[3];
    layout.strides[1] = layout.strides[2] * dims[2];
    layout.strides[0] = layout.strides[1] * blocks;
    layout.inner_count = 1;
    layout.inner_axis[0] = 1;
    layout.inner_size[0] = block;
    return layout;
}

struct bxi_layout bxi_layout_vector(int64_t count)
{
    return bxi_layout_plain(1, &count);
}

struct bxi_layout bxi_nn_blocked_out(const struct bxi_node *node, int block)
{
    const int *dims = node->dims;

    return bxi_layout_blocked((const int64_t[4]){ dims[0], dims[1], dims[2], dims[3] }, block);
}

struct bxi_layout bxi_nn_plain_out(const struct bxi_node *node)
{
    return bxi_nn_blocked_out(node, 1);
}

struct bxi_layout bxi_nn_any_out(const struct bxi_node *node)
{
    const int *dims = node->dims;

    return bxi_layout_any(4, (const int64_t[4]){ dims[0], dims[1], dims[2], dims[3] });
}

size_t bxi_layout_bytes(const struct bxi_layout *layout)
{
    int64_t blocks[BXI_DIMS_MAX] = { 1, 1, 1, 1 }, elements = 1;

    for (int i = 0; i < layout->inner_count; i++) {
        blocks[layout->inner_axis[i]] *= layout->inner_size[i];
        elements *= layout->inner_size[i];
    }
    for (int i = 0; i < layout->ndims; i++) {
        int64_t reach = layout->padded[i] / blocks[i] * layout->strides[i];

        if (reach > elements)
            elements = reach;
    }
    return (size_t)elements * sizeof(float);
}

/* Strides of dimensions of size 1 are ignored: they are never used. */
bool bxi_layout_is_same(const struct bxi_layout *a, const struct bxi_layout *b)
{
    if (a->ndims != b->ndims || a->any != b->any || a->inner_count != b->inner_count)
        return false;
    for (int i = 0; i < a->inner_count; i++)
        if (a->inner_axis[i] != b->inner_axis[i] || a->inner_size[i] != b->inner_size[i])
            return false;
    for (int i = 0; i < a->ndims; i++)
        if (a->dims[i] != b->dims[i] || a->padded[i] != b->padded[i] ||
            (a->strides[i] != b->strides[i] && a->padded[i] != 1))
            return false;
    return true;
}

int bxi_layout_block(const struct bxi_layout *layout)
{
    if (layout->ndims != 4 || layout->any || layout->inner_count != 1 || layout->inner_axis[0] != 1 ||
        layout->dims[1] % layout->inner_size[0] != 0)
        return 0;
    return layout->inner_size[0];
}

/* ---- Buffers and tensors ------------------------------------------------------------------------- */

/* The memory is cut from chunks of huge pages: convolutions that read megabytes of weights for a few pixels would spend
 * their time on the TLB misses of ordinary pages. It is zeroed here, so that the pages exist before the first pass.
 * Neighbours are staggered: tensors of one layer, a power of two apart, would fall on the same lines of the first-level
 * cache. */
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
        madvise(chunk, wanted, MADV_HUGEPAGE);      /* if it fails: ordinary pages */
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

/* The smallest buffer without readers that is large enough and at most half too large; else a new one. */
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

struct bxi_memory *bxi_nn_make_memory(struct bxi_plan *plan, const struct bxi_layout *layout, void *data)
{
    struct bxi_memory *memory = NULL;

    if (plan->error == 0)
        bxi_nn_ok(plan, bxi_onednn.make_memory(plan->dnn, layout, data, &memory), "memory");
    return memory;
}

struct bxi_tensor bxi_nn_callers_tensor(struct bxi_plan *plan, const struct bxi_layout *layout)
{
    return (struct bxi_tensor){
        .layout = *layout, .memory = bxi_nn_make_memory(plan, layout, NULL), .buffer = -1,
    };
}

struct bxi_tensor bxi_nn_tensor_on(struct bxi_plan *plan, const struct bxi_layout *layout, int buffer)
{
    struct bxi_tensor tensor = { .layout = *layout, .buffer = buffer };

    if (plan->error != 0 || buffer < 0)
        return tensor;
    tensor.data = plan->buffers[buffer].data;
    tensor.memory = bxi_nn_make_memory(plan, layout, tensor.data);
    return tensor;
}

struct bxi_tensor bxi_nn_new_tensor(struct bxi_plan *plan, const struct bxi_layout *layout)
{
    return bxi_nn_tensor_on(plan, layout, plan->error != 0 ? -1 : take_buffer(plan, bxi_layout_bytes(layout)));
}

struct bxi_tensor bxi_nn_new_workspace(struct bxi_plan *plan, const struct bxi_recipe *recipe)
{
    size_t bytes = plan->error != 0 ? 0 : bxi_onednn.bytes_of(recipe, BXI_ARG_WORKSPACE);
    struct bxi_layout floats = bxi_layout_vector((int64_t)((bytes + sizeof(float) - 1) / sizeof(float)));

    return bytes > 0 ? bxi_nn_new_tensor(plan, &floats) : (struct bxi_tensor){ .memory = NULL };
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

struct bxi_recipe *bxi_nn_describe(struct bxi_plan *plan, const struct bxi_spec *spec, const char *what)
{
    struct bxi_recipe *recipe = NULL;

    if (plan->error == 0)
        bxi_nn_ok(plan, bxi_onednn.describe(plan->dnn, spec, &recipe), what);
    return recipe;
}

struct bxi_layout bxi_nn_preferred(struct bxi_plan *plan, const struct bxi_recipe *recipe, enum bxi_arg arg)
{
    return plan->error == 0 ? bxi_onednn.layout_of(recipe, arg) : (struct bxi_layout){ .ndims = 0 };
}

void bxi_nn_add_arg(struct bxi_plan *plan, struct bxi_step *step, enum bxi_arg arg, const struct bxi_tensor *tensor)
{
    if (plan->error == 0 && step != NULL && tensor->memory != NULL)
        bxi_nn_ok(plan, bxi_onednn.add_arg(step->op, arg, tensor->memory), "argument");
}

struct bxi_step *bxi_nn_add_op(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_recipe *recipe)
{
    const struct bxi_tensor scratch = { .memory = plan->scratch };
    struct bxi_op *op = NULL;
    struct bxi_step *step;

    if (plan->error != 0 || !bxi_nn_ok(plan, bxi_onednn.make_op(plan->dnn, recipe, &op), "operation"))
        return NULL;
    step = bxi_nn_add_step(plan, program, BXI_STEP_OP);
    if (step == NULL)
        return NULL;
    step->op = op;

    size_t bytes = bxi_onednn.bytes_of(recipe, BXI_ARG_SCRATCH);

    if (bytes > 0)
        bxi_nn_add_arg(plan, step, BXI_ARG_SCRATCH, &scratch);
    if (bytes > plan->scratch_bytes)
        plan->scratch_bytes = bytes;
    return step;
}

void bxi_nn_add_reorder(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                        const struct bxi_tensor *to)
{
    const struct bxi_spec spec = { .op = BXI_OP_REORDER, .src = from->layout, .dst = to->layout };
    struct bxi_recipe *recipe = bxi_nn_describe(plan, &spec, "reorder");
    struct bxi_step *step = bxi_nn_add_op(plan, program, recipe);

    bxi_nn_add_arg(plan, step, BXI_ARG_SRC, from);
    bxi_nn_add_arg(plan, step, BXI_ARG_DST, to);
}

struct bxi_tensor bxi_nn_in_layout(struct bxi_plan *plan, struct bxi_program *program, const struct bxi_tensor *from,
                                   const struct bxi_layout *layout)
{
    struct bxi_tensor to;

    if (plan->error != 0 || bxi_layout_is_same(&from->layout, layout)) {
        bxi_nn_retain(plan, from);
        return *from;
    }
    to = bxi_nn_new_tensor(plan, layout);
    bxi_nn_add_reorder(plan, program, from, &to);
    return to;
}

/* ---- Parameters ---------------------------------------------------------------------------------- */

struct bxi_layout bxi_nn_plain_weight(const struct bxi_plan *plan, const struct bxi_node *node)
{
    const int *in = plan->net->nodes[node->in[0]].dims;
    bool linear = node->op == BXI_NN_LINEAR;

    return bxi_layout_plain(4, (const int64_t[4]){
        node->dims[1], in[1], linear ? in[2] : node->kernel, linear ? in[3] : node->kernel
    });
}

/* The next parameter, which the owner's plan has loaded. Nets of the same operations are planned alike. */
static struct bxi_tensor shared_param(struct bxi_plan *plan, const struct bxi_layout *layout)
{
    const struct bxi_plan *owner = plan->owner;
    const struct bxi_tensor *there = &owner->loaded[plan->loaded_count];
    struct bxi_buffer *buffers;

    if (plan->loaded_count == owner->loaded_count || !bxi_layout_is_same(&there->layout, layout)) {
        plan->error = bx_fail(-EINVAL, "the net has other operations than the net whose parameters it shares");
        return (struct bxi_tensor){ .memory = NULL };
    }
    buffers = room(plan, plan->buffers, plan->buffer_count, &plan->buffer_capacity, sizeof *buffers);
    if (buffers == NULL)
        return (struct bxi_tensor){ .memory = NULL };
    plan->buffers = buffers;
    plan->loaded_count++;
    buffers[plan->buffer_count] = (struct bxi_buffer){ .data = there->data, .readers = 1 };
    return bxi_nn_tensor_on(plan, layout, (int)plan->buffer_count++);
}

/* For nets that will share them. */
static void note_param(struct bxi_plan *plan, const struct bxi_tensor *param)
{
    struct bxi_tensor *loaded = plan->error != 0 ? NULL :
        room(plan, plan->loaded, plan->loaded_count, &plan->loaded_capacity, sizeof *loaded);

    if (loaded == NULL)
        return;
    plan->loaded = loaded;
    loaded[plan->loaded_count++] = *param;
}

/* Parameter `index` in another layout than the caller's, `plain`; set_params fills it. */
static struct bxi_tensor load_param(struct bxi_plan *plan, int index, const struct bxi_layout *plain,
                                    const struct bxi_layout *layout)
{
    struct bxi_tensor from = { .layout = *plain, .memory = plan->params[index], .buffer = -1 };
    struct bxi_tensor to = { .memory = NULL };

    if (plan->error != 0)
        return to;
    if (plan->owner != NULL)
        return shared_param(plan, layout);
    if (from.memory == NULL) {
        from.memory = bxi_nn_make_memory(plan, plain, NULL);
        plan->params[index] = from.memory;
    }
    /* A new buffer: in a reused one, steps that run after set_params would overwrite the parameter. */
    to = bxi_nn_tensor_on(plan, layout, bxi_nn_make_buffer(plan, bxi_layout_bytes(layout)));
    bxi_nn_add_reorder(plan, &plan->load, &from, &to);
    note_param(plan, &to);
    return to;
}

struct bxi_tensor bxi_nn_load_weight(struct bxi_plan *plan, const struct bxi_node *node,
                                     const struct bxi_layout *layout)
{
    const struct bxi_layout plain = bxi_nn_plain_weight(plan, node);

    return load_param(plan, node->param, &plain, layout);
}

struct bxi_tensor bxi_nn_load_vector(struct bxi_plan *plan, const struct bxi_node *node, int index)
{
    const struct bxi_layout vector = bxi_layout_vector(node->dims[1]);

    return load_param(plan, index, &vector, &vector);
}

struct bxi_tensor bxi_nn_load_bias(struct bxi_plan *plan, const struct bxi_node *node)
{
    return node->bias ? bxi_nn_load_vector(plan, node, node->param + 1) : (struct bxi_tensor){ .memory = NULL };
}

struct bxi_tensor bxi_nn_callers_weight(struct bxi_plan *plan, const struct bxi_node *node)
{
    const struct bxi_layout plain = bxi_nn_plain_weight(plan, node);
    struct bxi_tensor callers = bxi_nn_callers_tensor(plan, &plain);

    plan->grads[node->param] = callers.memory;
    return callers;
}

struct bxi_tensor bxi_nn_callers_bias(struct bxi_plan *plan, const struct bxi_node *node)
{
    const struct bxi_layout vector = bxi_layout_vector(node->dims[1]);
    struct bxi_tensor callers = { .memory = NULL };

    if (!node->bias)
        return callers;
    callers = bxi_nn_callers_tensor(plan, &vector);
    plan->grads[node->param + 1] = callers.memory;
    return callers;
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
    step->count = bxi_layout_bytes(&to->layout) / sizeof(float);
}

/* Joins the parts of a node's gradient into one, in one pass over memory; no pass if there is one part and no mask. */
static void join_parts(struct bxi_plan *plan, struct bxi_work *work, const struct bxi_tensor *mask)
{
    const struct bxi_layout layout = mask != NULL ? mask->layout : work->parts[0].layout;
    struct bxi_tensor sum = { .memory = NULL };

    if (plan->error != 0 || (work->part_count < 2 && mask == NULL))
        return;
    for (int i = 0; i < work->part_count; i++) {
        struct bxi_tensor part = work->parts[i];

        work->parts[i] = bxi_nn_in_layout(plan, &plan->backward, &part, &layout);
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
        sum = bxi_nn_new_tensor(plan, &layout);
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
