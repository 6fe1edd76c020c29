/* SPDX-License-Identifier: MIT */
/*
 * See device_fixture.h. Each test has a fake machine of its own, a file with its pid in the name. A child reads the
 * figures that must be unchanged at the end, because the test's process never loads the driver.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

#include <dlfcn.h>

static char fake_path[512];
static char machine[128];
static pid_t maker;
static bool is_real;

/* ---- The world ------------------------------------------------------------------------------- */

static void remove_machine(void)
{
    if (getpid() == maker)
        unlink(machine);
}

static bool has_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library != NULL)
        dlclose(library);
    return library != NULL;
}

void device_world(enum device_driver driver)
{
    const char *build = getenv("BX_BUILD_DIR");

    maker = getpid();
    is_real = driver == DEVICE_ANY && getenv("BX_TEST_REAL_GPU") != NULL && has_driver();
    if (is_real) {
        unsetenv("BX_CUDA_DRIVER");
        return;
    }
    snprintf(fake_path, sizeof fake_path, "%s/tests/libfakecuda.so", build != NULL ? build : "build");
    harness_name(machine, sizeof machine, "/dev/shm/bx-fake-cuda-device-");
    setenv("BX_CUDA_DRIVER", fake_path, 1);
    setenv("BX_NVRTC", fake_path, 1);
    setenv("BX_CUBLAS", fake_path, 1);
    setenv("BX_CUDNN", fake_path, 1);
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    atexit(remove_machine);
}

bool device_is_real(void)
{
    return is_real;
}

static uint64_t ask(void *library, const char *name, int device)
{
    uint64_t (*figure)(const char *name, int device) = NULL;
    void *symbol = library != NULL ? dlsym(library, "bx_fake_figure") : NULL;

    if (symbol == NULL)
        return UINT64_MAX;
    memcpy(&figure, &symbol, sizeof symbol);
    return figure(name, device);
}

uint64_t device_figure(const char *name, int device)
{
    void *library = dlopen(fake_path, RTLD_NOW | RTLD_NOLOAD);
    uint64_t value = ask(library, name, device);

    if (library != NULL)
        dlclose(library);
    return value;
}

/* Checks the machine's figures: 0, or a bit for each that is wrong. */
static int check_books(void)
{
    void *library = dlopen(fake_path, RTLD_NOW);
    unsigned (*init)(unsigned flags) = NULL;
    void *symbol = library != NULL ? dlsym(library, "cuInit") : NULL;

    memcpy(&init, &symbol, sizeof symbol);
    if (init == NULL || init(0) != CUDA_SUCCESS)
        return 1;
    return (ask(library, "freed_while_open", 0) != 0) << 1 | (ask(library, "used", 0) != 0) << 2 |
           (ask(library, "used", 1) != 0) << 3;
}

void device_check_machine(void)
{
    int status = 0;
    pid_t child;

    if (is_real)
        return;
    child = fork();
    cr_assert_geq(child, 0);
    if (child == 0)
        _exit(check_books());
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "bits of what is wrong: 2 freed while open, 4 and 8 memory of devices 0 and 1 taken: %d",
              WEXITSTATUS(status));
}

/* For a test that forces an order with words, which gpu/ refuses (-ENOTSUP) with few hardware queues. */
static void skip_if_refused(void)
{
    const char *order = getenv("BX_GPU_ORDER");

    if (fake_refuses_words() && order != NULL && strcmp(order, "host") == 0)
        cr_skip_test("CUDA_DEVICE_MAX_CONNECTIONS=%s: the order that it forces (%s) is refused (-ENOTSUP)",
                     getenv("CUDA_DEVICE_MAX_CONNECTIONS"), order);
}

void device_run(const struct harness_world *world)
{
    harness_environ(world);
    skip_if_refused();
    harness_run(world);
    device_check_machine();
}

/* ---- Tensors --------------------------------------------------------------------------------- */

struct bx_device device_open(struct bx_job *job, int ordinal)
{
    struct bx_device device = { 0 };

    HARNESS_EQ(bx_gpu_open(job, ordinal, &device), 0);
    HARNESS_EQ(bx_gpu_is_fake(job), !is_real);
    return device;
}

struct bx_tensor *device_tensor(struct bx_job *job, struct bx_device device, int64_t count)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create_on(job, device, BX_I32, 1, &count, &tensor), 0);
    return tensor;
}

void device_put_numbers(struct bx_tensor *tensor, int32_t first)
{
    OWN(tensor) *host = NULL;

    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, bx_tensor_ndim(tensor), bx_tensor_shape(tensor), &host), 0);
    for (int64_t i = 0; i < bx_tensor_elements(host); i++)
        ((int32_t *)bx_tensor_data_mut(host))[i] = first + (int32_t)i;
    HARNESS_EQ(bx_tensor_copy_into(tensor, host), 0);
}

struct bx_tensor *device_numbers(struct bx_job *job, struct bx_device device, int64_t count, int32_t first)
{
    struct bx_tensor *tensor = device_tensor(job, device, count);

    device_put_numbers(tensor, first);
    return tensor;
}

int64_t device_wrong(struct bx_tensor *tensor, int32_t first)
{
    OWN(tensor) *flat = NULL, *host = NULL;
    int64_t extent = bx_tensor_elements(tensor) > 0, wrong = 0;

    for (int dim = 0; dim < bx_tensor_ndim(tensor) && extent > 0; dim++)
        extent += (bx_tensor_dim(tensor, dim) - 1) * bx_tensor_strides(tensor)[dim];
    HARNESS_EQ(bx_tensor_as_strided(tensor, 0, 1, &extent, &(int64_t){ 1 }, &flat), 0);
    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 1, &extent, &host), 0);
    HARNESS_EQ(bx_tensor_copy_into(host, flat), 0);
    for (int64_t i = 0; i < extent; i++)
        wrong += ((const int32_t *)bx_tensor_data(host))[i] != first + (int32_t)i;
    return wrong;
}

struct bx_msg *device_msg(struct bx_tensor *tensor, int64_t value)
{
    struct bx_msg *msg = harness_msg_i64(value);

    HARNESS_EQ(bx_msg_put_tensor(msg, tensor), 0);
    return msg;
}

void device_send(struct bx_job *job, const char *function, struct bx_tensor *tensor)
{
    OWN(msg) *args = bx_msg_create(0);

    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", function, args, NULL, NULL), 0);
}

uint64_t device_copied(const struct bx_job *job)
{
    return harness_counter(job, "tensor_bytes_copied") + harness_counter(job, "gpu_copied_bytes") +
           harness_counter(job, "gpu_staged_bytes");
}

/* ---- Behind the library's back ---------------------------------------------------------------- */

static struct bxi_gpu_device *device_of(struct bx_job *job, struct bx_device device)
{
    struct bxi_devices *devices = bxi_devices_of(job);

    for (uint32_t i = 0; i < devices->count; i++)
        if (devices->open[i].ordinal == device.index)
            return devices->open[i].device;
    harness_failed(__FILE__, __LINE__, "cuda:%d is not open", device.index);
}

/* The first device, on which the tests' own streams are. */
static const struct bxi_cuda *enter(struct bx_job *job)
{
    struct bxi_gpu_device *device = bxi_devices_of(job)->open[0].device;

    HARNESS_EQ(bxi_gpu_enter(device), 0);
    return &device->gpu->cu;
}

static void leave(struct bx_job *job)
{
    bxi_gpu_leave(bxi_devices_of(job)->open[0].device);
}

void *device_stream(struct bx_job *job, struct bx_device device)
{
    struct bxi_gpu_device *of = device_of(job, device);
    struct CUstream_st *stream = NULL;

    HARNESS_EQ(bxi_gpu_enter(of), 0);
    HARNESS_EQ(of->gpu->cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    bxi_gpu_leave(of);
    return stream;
}

void device_set(struct bx_job *job, void *stream, struct bx_tensor *tensor, unsigned char value)
{
    const struct bxi_cuda *cu = enter(job);

    HARNESS_EQ(cu->cuMemsetD8Async((uint64_t)(uintptr_t)bx_tensor_data(tensor), value, bx_tensor_bytes(tensor), stream),
               CUDA_SUCCESS);
    leave(job);
}

void device_wait(struct bx_job *job, void *stream)
{
    const struct bxi_cuda *cu = enter(job);

    HARNESS_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    leave(job);
}

int64_t device_peek_wrong(struct bx_job *job, void *stream, struct bx_tensor *tensor, unsigned char value)
{
    size_t bytes = bx_tensor_bytes(tensor);
    unsigned char *copy = malloc(bytes);
    const struct bxi_cuda *cu = enter(job);
    int64_t wrong = 0;

    HARNESS_CHECK(copy != NULL);
    HARNESS_EQ(cu->cuMemcpyDtoHAsync_v2(copy, (uint64_t)(uintptr_t)bx_tensor_data(tensor), bytes, stream),
               CUDA_SUCCESS);
    HARNESS_EQ(cu->cuStreamSynchronize(stream), CUDA_SUCCESS);
    leave(job);
    for (size_t i = 0; i < bytes; i++)
        wrong += copy[i] != value;
    free(copy);
    return wrong;
}

uint64_t *device_gate(struct bx_job *job, void *stream)
{
    const struct bxi_cuda *cu = enter(job);
    unsigned long long address = 0;
    void *gate = NULL;

    HARNESS_EQ(cu->cuMemHostAlloc(&gate, 4096, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
    memset(gate, 0, 4096);
    HARNESS_EQ(cu->cuMemHostGetDevicePointer_v2(&address, gate, 0), CUDA_SUCCESS);
    HARNESS_EQ(cu->cuStreamWaitValue64_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    leave(job);
    return gate;            /* not freed before the process ends: that would wait for the device */
}

void device_open_gate(uint64_t *gate)
{
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
}

static uint32_t pins_of(struct bx_job *job)
{
    struct bxi_devices *devices = bxi_devices_of(job);
    uint32_t count;

    pthread_mutex_lock(&devices->lock);
    count = devices->pins;
    pthread_mutex_unlock(&devices->lock);
    return count;
}

int device_pins(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)context;
    return bx_msg_put_i64(reply, pins_of(bx_request_job(request)));
}

void device_await_pin(struct bx_job *job)
{
    while (pins_of(job) == 0)
        ;
}

/* ---- Bodies ----------------------------------------------------------------------------------- */

void device_serves(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(0);
    HARNESS_EQ(bx_job_serve(job), 0);
}

struct bx_device device_begin(struct bx_job *job, uint32_t others)
{
    struct bx_device device = device_open(job, 0);

    harness_await(0, others);
    return device;
}

/* ---- Memory of other libraries ---------------------------------------------------------------- */

static void count_end(struct bxi_dl_managed *self)
{
    bxi_add(&((struct device_foreign *)(void *)self)->ends, 1);
}

struct device_foreign device_foreign_at(uint64_t address, int64_t elements)
{
    return (struct device_foreign){
        .managed = { .tensor = { .data = (void *)(uintptr_t)address, .device_type = BXI_DL_CUDA, .ndim = 1,
                                 .dtype = { .code = 0, .bits = 32, .lanes = 1 } }, .deleter = count_end },
        .shape = { elements },
    };
}

struct device_foreign *device_make_foreign(struct bx_job *job, const char *allocator, int64_t elements)
{
    struct bxi_gpu_device *device = bxi_devices_of(job)->open[0].device;
    unsigned (*allocate)(unsigned long long *address, size_t bytes, void *stream) = NULL;
    struct device_foreign *foreign = calloc(1, sizeof *foreign);
    void *symbol = dlsym(device->gpu->cu.library, allocator);
    unsigned long long base = 0;

    HARNESS_CHECK(foreign != NULL && symbol != NULL);
    memcpy(&allocate, &symbol, sizeof symbol);
    HARNESS_EQ(bxi_gpu_enter(device), 0);
    HARNESS_EQ(allocate(&base, 1 << 20, (void *)1), CUDA_SUCCESS);
    bxi_gpu_leave(device);
    *foreign = device_foreign_at(base, elements);
    return foreign;
}

int device_take(struct device_foreign *foreign, int64_t stream, struct bx_tensor **tensor)
{
    foreign->managed.tensor.shape = foreign->shape;
    return bx_tensor_from_dlpack((struct DLManagedTensor *)(void *)&foreign->managed, stream, tensor);
}

/* ---- A worker that looks at what it borrows --------------------------------------------------- */

/* i64 first, an i32 tensor, i64 first again. */
HARNESS_HANDLER(look_at)
{
    int64_t first = bx_read_i64(args);
    struct bx_tensor *tensor = bx_read_tensor(args);

    HARNESS_EQ(bx_tensor_device(tensor).kind, BX_CUDA);
    HARNESS_EQ(device_wrong(tensor, (int32_t)first), 0);
    HARNESS_EQ(bx_tensor_read_on(tensor, NULL), 0);
    HARNESS_EQ(bx_tensor_written_on(tensor, NULL), -EROFS);
    HARNESS_HAS(bx_error_text(), "on loan from another worker");
    HARNESS_EQ(bx_tensor_copy_into(tensor, tensor), -EROFS);
    harness_store(DEVICE_INDEX, (uint64_t)bx_tensor_device(tensor).index);
    harness_store(DEVICE_READER, ((struct bxi_loan *)tensor->storage)->device->parts[0].device);
    harness_store(DEVICE_STAGED, harness_counter(bx_request_job(request), "gpu_staged_bytes"));
    harness_store(DEVICE_BYTES_LEFT, args->bytes - args->pos);
    return 0;
}

int device_setup(struct bx_job *job)
{
    struct bx_device device;

    HARNESS_EQ(bx_gpu_open(job, 0, &device), BX_E_STATE);
    HARNESS_HAS(bx_error_text(), "call bx_job_start first");
    return bx_register(job, "look", BX_INLINE, look_at, NULL);
}

int device_look_at(struct bx_job *job, const char *to, struct bx_tensor *tensor, int64_t first)
{
    OWN(msg) *args = device_msg(tensor, first);
    int rc;

    HARNESS_EQ(bx_msg_put_i64(args, first), 0);
    rc = bx_rpc_sync(job, to, "look", args, NULL, NULL);
    return rc;
}
