/* SPDX-License-Identifier: MIT */
/*
 * The tensors of bxbench handover: sized as the parameters of ResNet-50.
 *
 * The cost of a hand-over depends on the number of tensors, and the arena's work on how their sizes differ: a few of
 * 9 MB, many of a kilobyte. So other totals keep that mixture: every tensor has BENCH_TENSOR_BYTES_MIN and its share of
 * the rest.
 */
#include "tensors.h"

#include "process.h"

#include <sys/statvfs.h>

#define ELEMENTS_MIN (BENCH_TENSOR_BYTES_MIN / sizeof(float))

struct parameter {
    size_t elements;
    int ndim;
};

/* A convolution's weight, then weight and bias of the normalisation that follows it. */
static struct parameter *add_conv(struct parameter *at, size_t out, size_t in, size_t kernel)
{
    *at++ = (struct parameter){ out * in * kernel * kernel, 4 };
    *at++ = (struct parameter){ out, 1 };
    *at++ = (struct parameter){ out, 1 };
    return at;
}

/* In the order of torch's parameters(). */
static void list_resnet50(struct parameter list[BENCH_TENSORS])
{
    static const int blocks[] = { 3, 4, 6, 3 };
    struct parameter *at = add_conv(list, 64, 3, 7);
    size_t in = 64;

    for (int stage = 0; stage < 4; stage++) {
        size_t width = (size_t)64 << stage;

        for (int block = 0; block < blocks[stage]; block++) {
            at = add_conv(at, width, in, 1);
            at = add_conv(at, width, width, 3);
            at = add_conv(at, 4 * width, width, 1);
            if (block == 0)
                at = add_conv(at, 4 * width, in, 1);
            in = 4 * width;
        }
    }
    *at++ = (struct parameter){ 30 * in, 2 };
    *at = (struct parameter){ 30, 1 };
}

int bench_plan_make(struct bench_plan *plan, int64_t count, int64_t bytes)
{
    struct parameter list[BENCH_TENSORS];
    size_t whole = 0, before = 0, given = 0;

    plan->count = (size_t)count;
    plan->bytes = (size_t)bytes;
    if (plan->bytes / BENCH_TENSOR_BYTES_MIN < plan->count) {
        bench_say("%zu tensors take at least %zu bytes, %d each; --bytes says %zu", plan->count,
                  plan->count * BENCH_TENSOR_BYTES_MIN, BENCH_TENSOR_BYTES_MIN, plan->bytes);
        return 2;
    }
    plan->tensors = bench_map(plan->count * sizeof *plan->tensors);
    list_resnet50(list);
    for (size_t i = 0; i < plan->count; i++)
        whole += list[i % BENCH_TENSORS].elements - ELEMENTS_MIN;

    size_t rest = plan->bytes / sizeof(float) - plan->count * ELEMENTS_MIN;

    for (size_t i = 0; i < plan->count; i++) {
        const struct parameter *like = &list[i % BENCH_TENSORS];

        before += like->elements - ELEMENTS_MIN;

        /* Shares are differences of running sums, so that nothing is lost by rounding. */
        size_t end = i + 1 == plan->count ? rest
                                          : (size_t)((double)rest * (double)before / (double)whole);

        plan->tensors[i].bytes = (ELEMENTS_MIN + end - given) * sizeof(float);
        plan->tensors[i].ndim = like->ndim;
        given = end;
    }
    plan->tensors[plan->count - 1].bytes += plan->bytes % sizeof(float);
    return 0;
}

int bench_plan_create(const struct bench_plan *plan, size_t index, struct bx_job *job,
                      struct bx_tensor **tensor)
{
    const struct bench_plan_tensor *made = &plan->tensors[index];
    bool floats = made->bytes % sizeof(float) == 0;
    int64_t shape[4] = { (int64_t)(floats ? made->bytes / sizeof(float) : made->bytes), 1, 1, 1 };

    return bx_tensor_create(job, floats ? BX_F32 : BX_U8, made->ndim, shape, tensor);
}

uint64_t bench_shm_room(void)
{
    struct statvfs fs;

    return statvfs("/dev/shm", &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
}
