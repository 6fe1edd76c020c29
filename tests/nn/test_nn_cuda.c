/* SPDX-License-Identifier: MIT */
/*
 * lib/nn on a GPU, or on the tests' driver (device_fixture.h), which fills new memory with NaN and delays its streams:
 * the tests of every backend (nn_cases.h), loss and optimizer with the CPU's bits, the caller's own kernels, memory,
 * and order. test_load_cuda.c has what is missing or too old.
 */
#include "boxcar_cuda.h"
#include "tests/device/device_fixture.h"
#include "nn_cases.h"
#include "tests/harness/twin.h"

#define LIMIT_S 60

static struct bx_cuda *cuda;

static void choose_driver(void)
{
    device_world(DEVICE_ANY);
    setenv("FAKE_CUDA_DIRTY", "1", 1);
}

static void begin(void)
{
    choose_driver();
    cr_assert_eq(bx_cuda_open(0, &cuda), 0, "%s", bx_error_text());
    twin_use(cuda);
}

static void end(void)
{
    bx_cuda_close(cuda);
    if (!device_is_real())
        cr_assert_eq(device_figure("used", 0), 0, "something was not given back");
}

/* A test with the device open, which must free all its memory. */
#define GPU_TEST(name)                          \
    static void name(void);                     \
    Test(nn_cuda, name, .timeout = LIMIT_S)     \
    {                                           \
        begin();                                \
        name();                                 \
        end();                                  \
    }                                           \
    static void name(void)

#define ON_GPU(name)    \
    GPU_TEST(name)      \
    {                   \
        nn_##name();    \
    }
NN_CASES(ON_GPU)

/* ---- Helpers --------------------------------------------------------------------------------------- */

static void expect_text(const char *part)
{
    cr_assert_not_null(strstr(bx_error_text(), part), "it says \"%s\", and nothing of \"%s\"", bx_error_text(), part);
}

/* Pseudo-random, in +-1. */
static float *numbers(size_t count, uint64_t seed)
{
    float *at = malloc((count + 1) * sizeof(*at));

    cr_assert_not_null(at);
    for (size_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        at[i] = (float)((double)(seed >> 40) * 0x1p-23 - 1.0);
    }
    return at;
}

static float *copy_there(const float *here, size_t count)
{
    float *at = twin_alloc((count + 1) * sizeof(*at));

    twin_put(at, here, count * sizeof(*at));
    return at;
}

static void check_bits(const float *there_at, const float *want, size_t count, const char *what)
{
    float *got = malloc((count + 1) * sizeof(*got));

    cr_assert_not_null(got);
    twin_get(got, there_at, count * sizeof(*got));
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(memcmp(&got[i], &want[i], sizeof(float)), 0, "%s[%zu] of %zu: %.9g instead of %.9g", what, i,
                     count, (double)got[i], (double)want[i]);
    free(got);
}

/* The driver's functions, called directly, with the device's context current. */
static const struct bxi_cuda *enter_driver(void)
{
    static struct bxi_cuda cu;
    struct CUctx_st *context = NULL;
    const char *path = getenv("BX_CUDA_DRIVER");
    int handle = 0;

    cr_assert_eq(bxi_gpu_load(&cu, path != NULL ? path : "libcuda.so.1"), 0, "%s", bxi_gpu_text());
    cr_assert_eq(cu.cuDeviceGet(&handle, 0), CUDA_SUCCESS);
    cr_assert_eq(cu.cuDevicePrimaryCtxRetain(&context, handle), CUDA_SUCCESS);
    cr_assert_eq(cu.cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
    return &cu;
}

static void leave_driver(const struct bxi_cuda *cu)
{
    struct CUctx_st *popped = NULL;
    int handle = 0;

    cr_assert_eq(cu->cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
    cr_assert_eq(cu->cuDeviceGet(&handle, 0), CUDA_SUCCESS);
    cr_assert_eq(cu->cuDevicePrimaryCtxRelease_v2(handle), CUDA_SUCCESS);
}

static size_t free_bytes(void)
{
    const struct bxi_cuda *cu = enter_driver();
    size_t bytes = 0, total = 0;

    cr_assert_eq(cu->cuMemGetInfo_v2(&bytes, &total), CUDA_SUCCESS);
    leave_driver(cu);
    return bytes;
}

/* ---- Loss and optimizer --------------------------------------------------------------------------- */

GPU_TEST(mse_loss_has_the_cpu_s_bits)
{
    static const size_t COUNT[] = { 1, 2, 127, 129, 600, 100003 };

    for (size_t i = 0; i < sizeof(COUNT) / sizeof(COUNT[0]); i++) {
        size_t count = COUNT[i];
        float *a = numbers(count, 1), *b = numbers(count, 2), *grad = numbers(count, 3);
        float *a_there = copy_there(a, count), *b_there = copy_there(b, count), *grad_there = copy_there(grad, count);
        double want = bx_mse_loss(a, b, count, grad), got[2] = { -1.0, -1.0 };

        cr_assert_eq(bx_cuda_mse_loss(cuda, a_there, b_there, count, grad_there, &got[0]), 0, "%s", bx_error_text());
        cr_assert_eq(bx_cuda_mse_loss(cuda, a_there, b_there, count, NULL, &got[1]), 0, "%s", bx_error_text());
        cr_assert(got[0] == want && got[1] == want, "%zu: %.17g and %.17g instead of %.17g", count, got[0], got[1],
                  want);
        check_bits(grad_there, grad, count, "gradient");
        twin_free(a_there);
        twin_free(b_there);
        twin_free(grad_there);
        free(a);
        free(b);
        free(grad);
    }
}

GPU_TEST(mse_loss_of_nothing_is_0)
{
    float *at = twin_alloc(sizeof(*at));
    double loss = -1.0;

    cr_assert_eq(bx_cuda_mse_loss(cuda, at, at, 0, at, &loss), 0, "%s", bx_error_text());
    cr_assert_eq(loss, 0.0);
    twin_free(at);
}

/* `sets` gradients, only five of them different, from one block to another or in place. */
static void check_sgd(size_t count, size_t sets, bool in_place)
{
    float *from = numbers(count, 1), *velocity = numbers(count, 2), *to = in_place ? from : numbers(count, 3);
    float *from_there = copy_there(from, count), *velocity_there = copy_there(velocity, count);
    float *to_there = in_place ? from_there : copy_there(to, count), *g[5], *g_there[5];
    const float *grads[128], *grads_there[128];
    struct bx_sgd step = { .lr = 0.03f, .momentum = 0.9f, .from = from, .to = to, .velocity = velocity,
                           .grads = grads, .grad_count = sets, .elements = count };

    for (size_t i = 0; i < 5; i++) {
        g[i] = numbers(count, 4 + i);
        g_there[i] = copy_there(g[i], count);
    }
    for (size_t i = 0; i < sets; i++) {
        grads[i] = g[i * i % 5];
        grads_there[i] = g_there[i * i % 5];
    }
    bx_sgd_step(&step);
    step.from = from_there;
    step.to = to_there;
    step.velocity = velocity_there;
    step.grads = grads_there;
    cr_assert_eq(bx_cuda_sgd_step(cuda, &step), 0, "%s", bx_error_text());
    memset(grads_there, 0, sizeof(grads_there));        /* the call copied the list */
    check_bits(to_there, to, count, "to");
    check_bits(velocity_there, velocity, count, "velocity");
    if (!in_place) {
        check_bits(from_there, from, count, "from");
        twin_free(to_there);
        free(to);
    }
    for (size_t i = 0; i < 5; i++) {
        twin_free(g_there[i]);
        free(g[i]);
    }
    twin_free(from_there);
    twin_free(velocity_there);
    free(from);
    free(velocity);
}

GPU_TEST(sgd_step_has_the_cpu_s_bits)
{
    static const size_t SETS[] = { 1, 2, 3, 5, 128 };

    for (size_t i = 0; i < sizeof(SETS) / sizeof(SETS[0]); i++) {
        check_sgd(5003, SETS[i], false);
        check_sgd(129, SETS[i], true);
    }
    check_sgd(0, 1, false);
}

GPU_TEST(sgd_step_takes_1_to_128_gradients)
{
    float *at = twin_alloc(4 * sizeof(*at));
    const float *grads[129];
    struct bx_sgd step = { .from = at, .to = at, .velocity = at, .grads = grads, .elements = 4 };

    for (size_t i = 0; i < 129; i++)
        grads[i] = at;
    cr_assert_eq(bx_cuda_sgd_step(cuda, &step), -EINVAL);
    step.grad_count = 129;
    cr_assert_eq(bx_cuda_sgd_step(cuda, &step), -EINVAL);
    expect_text("129");
    step.grad_count = 1;
    step.velocity = NULL;
    cr_assert_eq(bx_cuda_sgd_step(cuda, &step), -EINVAL);
    twin_free(at);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

GPU_TEST(copies_reach_device_pinned_and_ordinary_memory)
{
    enum { COUNT = 3001 };
    float *here = numbers(COUNT, 1), *at[2], got[COUNT];
    void *pinned = NULL;
    size_t bytes = COUNT * sizeof(*here);

    at[0] = twin_alloc(bytes);
    at[1] = twin_alloc(bytes);
    cr_assert_eq(bx_cuda_alloc_host(cuda, bytes, &pinned), 0, "%s", bx_error_text());
    memset(pinned, 0, bytes);
    cr_assert_eq(bx_cuda_copy(cuda, at[0], here, bytes), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_copy(cuda, pinned, at[0], bytes), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_copy(cuda, at[1], pinned, bytes), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_zero(cuda, at[0], bytes), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_copy(cuda, at[0], at[1], bytes - sizeof(*here)), 0, "%s", bx_error_text());
    twin_get(got, at[0], bytes);
    cr_assert_eq(memcmp(got, here, bytes - sizeof(*here)), 0);
    cr_assert_eq(got[COUNT - 1], 0.0f);
    memset(got, 0, bytes);
    cr_assert_eq(bx_cuda_copy(cuda, got, here, bytes), 0, "%s", bx_error_text());
    cr_assert_eq(memcmp(got, here, bytes), 0);
    cr_assert_eq(bx_cuda_copy(cuda, at[0], here, 0), 0);
    bx_cuda_free_host(cuda, pinned);
    twin_free(at[0]);
    twin_free(at[1]);
    free(here);
}

GPU_TEST(more_memory_than_there_is_is_an_error)
{
    void *memory = &memory;

    cr_assert_eq(bx_cuda_alloc(cuda, (size_t)1 << 45, &memory), -ENOMEM);
    expect_text("35184372088832 bytes");
    cr_assert_eq(memory, (void *)&memory);
    cr_assert_eq(bx_cuda_alloc(cuda, 0, &memory), -EINVAL);
    cr_assert_eq(bx_cuda_alloc_host(cuda, 0, &memory), -EINVAL);
}

/* Two convolutions, between them a norm with ReLU; the output of one is added to its input. */
static struct bx_net *make_net(int images)
{
    struct bx_net *net = NULL;

    twin_create(&net, &(struct bx_net_options){ .input_grad = true });
    int node = bx_net_input(net, images, 3, 16, 16);
    node = bx_net_conv(net, node, &(struct bx_conv){ "first", 8, 3, 1, 1, true });
    node = bx_net_batch_norm(net, node, "norm", true);
    node = bx_net_add(net, bx_net_conv(net, node, &(struct bx_conv){ "second", 8, 3, 1, 1, false }), node, true);
    node = bx_net_max_pool(net, node, 2, 2, 0);
    cr_assert_geq(bx_net_softmax(net, bx_net_linear(net, node, "fc", 5, true)), 0, "%s", bx_error_text());
    return net;
}

GPU_TEST(memory_is_as_before_after_50_nets)
{
    size_t before = 0;

    for (int i = 0; i <= 50; i++) {
        struct bx_net *net = make_net(2);

        /* Every second net is destroyed unfinished. With the first, the libraries allocate memory of their own. */
        if (i % 2 == 0)
            cr_assert_eq(bx_net_finish(net, 7), 0, "%s", bx_error_text());
        bx_net_destroy(net);
        if (i == 0)
            before = free_bytes();
    }
    /* Programs beside this one use a real device too. */
    if (device_is_real())
        printf("device 0 had %zu bytes free, and has %zu\n", before, free_bytes());
    else
        cr_assert_eq(free_bytes(), before);
}

Test(nn_cuda, a_net_without_memory_fails_and_frees_all, .timeout = LIMIT_S)
{
    setenv("FAKE_CUDA_MEMORY_MB", "64", 1);
    begin();
    if (device_is_real())
        cr_skip_test("a real GPU has more memory than a net of this test can want");
    struct bx_net *net = make_net(2);
    bx_net_destroy(net);
    size_t before = free_bytes();
    net = make_net(2000);
    cr_assert_eq(bx_net_finish(net, 7), -ENOMEM);
    expect_text("bytes of device 0");
    cr_assert_eq(bx_net_forward(net, (float *)&before, (float *)&before), BX_E_STATE);
    bx_net_destroy(net);
    cr_assert_eq(free_bytes(), before);
    end();
}

/* ---- Order ---------------------------------------------------------------------------------------- */

/* All arrays of make_net's net, on the device. */
struct arrays {
    struct bx_net *net;
    float *params[7], *grads[7];
    float *input, *output, *output_grad;
};

static void make_arrays(struct arrays *a, uint64_t seed)
{
    float *here = numbers(100000, seed);

    a->net = make_net(2);
    cr_assert_eq(bx_net_finish(a->net, 7), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_params(a->net), 7);
    for (size_t i = 0; i < 5000; i++)
        here[i] *= 0.05f;           /* else the softmax would give one class everything */
    for (size_t i = 0; i < 7; i++) {
        a->params[i] = copy_there(here + 100 * i, bx_net_param(a->net, i)->elements);
        a->grads[i] = copy_there(here, bx_net_param(a->net, i)->elements);
    }
    a->input = copy_there(here + 10000, 2 * 3 * 16 * 16);
    a->output = copy_there(here, 2 * 5);
    a->output_grad = copy_there(here + 20000, 2 * 5);
    free(here);
}

/* Puts all passes on the stream, and returns before any of it is done. */
static void put_work(struct arrays *a)
{
    const struct bx_sgd step = { .lr = 0.1f, .from = a->params[0], .to = a->params[0], .velocity = a->grads[0],
                                 .grads = (const float *const[1]){ a->grads[0] }, .grad_count = 1, .elements = 216 };

    cr_assert_eq(bx_net_set_params(a->net, (const float *const *)a->params), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_forward(a->net, a->input, a->output), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_backward(a->net, a->output_grad, a->grads), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_sgd_step(cuda, &step), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_set_params(a->net, (const float *const *)a->params), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_zero(cuda, a->params[0], 216 * sizeof(float)), 0, "%s", bx_error_text());
    cr_assert_eq(bx_net_predict(a->net, a->input, a->output), 0, "%s", bx_error_text());
}

static void drop_arrays(struct arrays *a)
{
    for (size_t i = 0; i < 7; i++) {
        twin_free(a->params[i]);
        twin_free(a->grads[i]);
    }
    twin_free(a->input);
    twin_free(a->output);
    twin_free(a->output_grad);
    bx_net_destroy(a->net);
}

struct stuck {
    const struct bxi_cuda *cu;
    struct CUstream_st *stream;         /* not the device's: any other of the process */
    void *gate;
};

/* The stream, or with NULL a new one, waits until device_open_gate(gate). */
static struct stuck get_stuck(struct CUstream_st *stream)
{
    struct stuck stuck = { .cu = enter_driver(), .stream = stream };
    unsigned long long address = 0;

    if (stuck.cu->cuStreamWaitValue64_v2 == NULL)
        cr_skip_test("the driver has no stream memory operations");
    if (stream == NULL)
        cr_assert_eq(stuck.cu->cuStreamCreate(&stuck.stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    cr_assert_eq(stuck.cu->cuMemHostAlloc(&stuck.gate, 4096, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
    memset(stuck.gate, 0, 4096);
    cr_assert_eq(stuck.cu->cuMemHostGetDevicePointer_v2(&address, stuck.gate, 0), CUDA_SUCCESS);
    cr_assert_eq(stuck.cu->cuStreamWaitValue64_v2(stuck.stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    return stuck;
}

/* The stream waits for a word that the host writes: a call that waited for the device would never return. */
GPU_TEST(no_pass_waits_for_the_device)
{
    struct arrays free_run, gated;
    struct stuck stuck;
    float want[10], want_grad[216];

    make_arrays(&free_run, 1);
    make_arrays(&gated, 1);
    put_work(&free_run);
    twin_get(want, free_run.output, sizeof(want));
    twin_get(want_grad, free_run.grads[0], sizeof(want_grad));
    cr_assert(want[0] > 0.0f && want[0] < 1.0f, "%.9g", (double)want[0]);

    stuck = get_stuck(bx_cuda_stream(cuda));
    put_work(&gated);
    cr_assert_eq(stuck.cu->cuStreamQuery(stuck.stream), CUDA_ERROR_NOT_READY);
    device_open_gate(stuck.gate);
    check_bits(gated.output, want, 10, "output");
    check_bits(gated.grads[0], want_grad, 216, "gradient");
    cr_assert_eq(stuck.cu->cuMemFreeHost(stuck.gate), CUDA_SUCCESS);
    leave_driver(stuck.cu);
    drop_arrays(&free_run);
    drop_arrays(&gated);
}

/* It has the name of a kernel that the tests' driver has compiled. */
struct sum_args {
    float *to;
    const float *a, *b;
    unsigned long long count;
    int relu;
};

static const char SUM[] =
    "struct args { float *to; const float *a, *b; unsigned long long count; int relu; };\n"
    "extern \"C\" __global__ void bxk_sum(args a)\n"
    "{\n"
    "    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < a.count)\n"
    "        a.to[i] = a.a[i] + a.b[i];\n"
    "}\n";

/* ---- A stream that waits for another process --------------------------------------------------------- */

static void begin_blocking(void)
{
    choose_driver();
    setenv("FAKE_CUDA_BLOCKING", "1", 1);
    cr_assert_eq(bx_cuda_open(0, &cuda), 0, "%s", bx_error_text());
    twin_use(cuda);
}

/* A driver that waits for all streams where it makes a handle or loads a kernel would never return from these calls. */
Test(nn_cuda, a_net_and_a_kernel_are_started_beside_a_stream_that_waits, .timeout = LIMIT_S)
{
    static const float TERMS[2] = { 1.0f, 2.0f };
    struct sum_args args = { .count = 2 };
    struct bx_kernels *kernels = NULL;
    struct bx_net *net = NULL;
    struct stuck stuck;

    begin_blocking();
    args.to = twin_alloc(2 * sizeof(float));
    args.a = args.b = copy_there(TERMS, 2);
    cr_assert_eq(bx_kernels_create(cuda, "sum.cu", SUM, &kernels), 0, "%s", bx_error_text());
    stuck = get_stuck(NULL);
    cr_assert_eq(bx_net_create(&(struct bx_net_options){ .cuda = cuda }, &net), 0, "%s", bx_error_text());
    cr_assert_eq(bx_kernel_launch(kernels, "bxk_sum", 2, &args), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_wait(cuda), 0, "%s", bx_error_text());
    cr_assert_eq(stuck.cu->cuStreamQuery(stuck.stream), CUDA_ERROR_NOT_READY);
    device_open_gate(stuck.gate);
    bx_net_destroy(net);
    bx_kernels_destroy(kernels);
    bx_cuda_close(cuda);
}

/* The device's own stream waits. */
Test(nn_cuda, closing_ends_while_its_stream_waits, .timeout = LIMIT_S)
{
    struct bx_kernels *kernels = NULL;
    struct arrays a;
    struct stuck stuck;

    begin();
    make_arrays(&a, 1);
    cr_assert_eq(bx_kernels_create(cuda, "sum.cu", SUM, &kernels), 0, "%s", bx_error_text());
    stuck = get_stuck(bx_cuda_stream(cuda));
    put_work(&a);
    bx_net_destroy(a.net);
    bx_kernels_destroy(kernels);
    bx_cuda_close(cuda);
    cr_assert_eq(stuck.cu->cuStreamQuery(stuck.stream), CUDA_ERROR_NOT_READY);
    device_open_gate(stuck.gate);
}

/* Another one waits, and the driver waits for it where memory is freed. */
Test(nn_cuda, closing_ends_while_the_driver_waits, .timeout = LIMIT_S)
{
    struct stuck stuck;

    begin_blocking();
    stuck = get_stuck(NULL);
    bx_cuda_close(cuda);
    cr_assert_eq(stuck.cu->cuStreamQuery(stuck.stream), CUDA_ERROR_NOT_READY);
    device_open_gate(stuck.gate);
}

GPU_TEST(destroying_a_net_waits_for_its_work)
{
    struct arrays a;

    make_arrays(&a, 1);
    const struct bxi_cuda *cu = enter_driver();
    put_work(&a);
    bx_net_destroy(a.net);
    a.net = NULL;
    cr_assert_eq(cu->cuStreamQuery(bx_cuda_stream(cuda)), CUDA_SUCCESS);
    leave_driver(cu);
    drop_arrays(&a);
}

GPU_TEST(two_devices_compute_side_by_side)
{
    struct bx_cuda *first = cuda, *second = NULL;
    struct arrays a;
    float want[10];

    if (bx_cuda_count() < 2)
        cr_skip_test("there is one device");
    make_arrays(&a, 1);
    cr_assert_eq(bx_cuda_open(1, &second), 0, "%s", bx_error_text());
    cr_assert_str_neq(bx_cuda_name(first), "");
    put_work(&a);
    twin_use(second);
    nn_a_network_agrees_whose_nodes_have_several_consumers();
    twin_use(first);
    twin_get(want, a.output, sizeof(want));
    cr_assert(want[0] > 0.0f && want[0] < 1.0f, "%.9g", (double)want[0]);
    drop_arrays(&a);
    bx_cuda_close(second);
}

/* ---- The caller's own kernels ---------------------------------------------------------------------- */

GPU_TEST(kernels_of_one_s_own_run_in_order_with_copied_arguments)
{
    enum { COUNT = 1000 };
    float terms[COUNT], *y = twin_alloc(COUNT * sizeof(*y)), got[COUNT];
    struct sum_args args = { .to = y, .a = y };
    struct bx_kernels *kernels = NULL;

    for (size_t i = 0; i < COUNT; i++)
        terms[i] = i % 2 == 0 ? 1.0f : 2.0f;
    args.b = copy_there(terms, COUNT);
    cr_assert_eq(bx_kernels_create(cuda, "sum.cu", SUM, &kernels), 0, "%s", bx_error_text());
    cr_assert_eq(bx_cuda_zero(cuda, y, COUNT * sizeof(*y)), 0, "%s", bx_error_text());
    for (int i = 0; i < 5; i++) {
        args.count = COUNT;
        cr_assert_eq(bx_kernel_launch(kernels, "bxk_sum", COUNT, &args), 0, "%s", bx_error_text());
        memset(&args.count, 0xff, sizeof(args.count));
    }
    cr_assert_eq(bx_kernel_launch(kernels, "bxk_sum", 0, &args), 0, "%s", bx_error_text());
    twin_get(got, y, sizeof(got));
    for (size_t i = 0; i < COUNT; i++)
        cr_assert_eq(got[i], i % 2 == 0 ? 5.0f : 10.0f, "%zu", i);
    bx_kernels_destroy(kernels);
    twin_free(y);
    twin_free((float *)args.b);
}

GPU_TEST(a_kernel_that_there_is_not_is_named)
{
    char long_name[100];
    struct bx_kernels *kernels = NULL;
    struct sum_args args = { .count = 0 };

    memset(long_name, 'k', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    cr_assert_eq(bx_kernels_create(cuda, "sum.cu", SUM, &kernels), 0, "%s", bx_error_text());
    cr_assert_eq(bx_kernel_launch(kernels, "bxk_su", 1, &args), -EINVAL);
    expect_text("sum.cu has no kernel bxk_su");
    cr_assert_eq(bx_kernel_launch(kernels, "bxk_su", 0, &args), -EINVAL);
    cr_assert_eq(bx_kernel_launch(kernels, long_name, 1, &args), -EINVAL);
    expect_text("63 bytes");
    cr_assert_eq(bx_kernel_launch(kernels, "bxk_sum", (size_t)1 << 39, &args), -EINVAL);
    cr_assert_eq(bx_kernel_launch(kernels, "bxk_sum", 1, NULL), -EINVAL);
    bx_kernels_destroy(kernels);
}

GPU_TEST(a_text_that_does_not_compile_is_told_with_its_line)
{
    struct bx_kernels *kernels = NULL;

    cr_assert_eq(bx_kernels_create(cuda, "wrong.cu", "\n\n}\n", &kernels), -EINVAL);
    expect_text("wrong.cu(3)");
    cr_assert_null(kernels);
}

/* ---- An NVRTC that is older than the device ---------------------------------------------------------- */

/* Code for the first device of a generation runs on the later ones. */
Test(nn_cuda, an_nvrtc_that_knows_only_the_first_of_the_generation_is_enough, .timeout = LIMIT_S)
{
    setenv("FAKE_CUDA_MINOR", "5", 1);
    begin();
    nn_softmax_agrees();
    end();
}

/* ---- Fork, and before finish ---------------------------------------------------------------------- */

static int use_in_child(struct arrays *a)
{
    struct bx_cuda *other = NULL;
    void *memory = NULL;

    if (bx_cuda_wait(cuda) != -EPERM || strstr(bx_error_text(), "forked") == NULL)
        return 1;
    if (bx_cuda_open(0, &other) != -EPERM || bx_cuda_count() != -EPERM)
        return 2;
    if (bx_net_forward(a->net, a->input, a->output) != -EPERM)
        return 3;
    if (bx_cuda_alloc(cuda, 4, &memory) != -EPERM)
        return 4;
    bx_net_destroy(a->net);
    bx_cuda_close(cuda);
    return 0;
}

GPU_TEST(a_process_that_was_forked_afterwards_is_refused)
{
    struct arrays a;
    int status = 0;
    pid_t child;

    make_arrays(&a, 1);
    cr_assert_eq(bx_net_set_params(a.net, (const float *const *)a.params), 0, "%s", bx_error_text());
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(use_in_child(&a));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", status);
    cr_assert_eq(bx_net_forward(a.net, a.input, a.output), 0, "%s", bx_error_text());
    drop_arrays(&a);
}

/* They are on the device, and begin there as on the CPU (nn_cases.h). */
GPU_TEST(running_statistics_are_not_there_before_the_net_is_finished)
{
    struct bx_net *net = make_net(2);
    float *mean = NULL, *var = NULL;
    size_t channels = 0;

    cr_assert_eq(bx_net_running(net, "norm", &mean, &var, &channels), BX_E_STATE);
    cr_assert_eq(bx_net_running(net, "other", &mean, &var, &channels), -ENOENT);
    cr_assert_null(mean);
    bx_net_destroy(net);
}
