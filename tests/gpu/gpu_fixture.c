/* SPDX-License-Identifier: MIT */
/*
 * See gpu_fixture.h. The test's own process never opens a GPU, because CUDA does not survive a fork: a child reads the
 * machine's figures.
 */
#include "gpu_fixture.h"

#include "fake_library.h"
#include "tests/harness/crash.h"
#include "tests/harness/harness.h"

#include <dlfcn.h>
#include <linux/futex.h>

struct gpu_shared *gpu_shared;
const struct gpu_shared *gpu_read_only;
struct bxi_gpu *gpu;
struct bxi_gpu_device *gpu_device;
struct bxi_gpu_lane *gpu_lane;
struct bxi_gpu_peer *gpu_peer[GPU_PROCESSES];
int gpu_rank = -1;
enum bxi_gpu_order gpu_order;
bxi_a32 gpu_freed;
char gpu_map_text[512];

static char fake_path[512];
static bool is_fake;
static pid_t child[GPU_PROCESSES];
static pid_t maker;

/* ---- Checks ---------------------------------------------------------------------------------- */

void gpu_failed(const char *file, int line, const char *text)
{
    fprintf(stderr, "%s:%d: process %d: %s (gpu says: %s)\n", file, line, gpu_rank, text, bxi_gpu_text());
    bxi_store_release(&gpu_shared->has_failed, 1);
    if (getpid() == maker)
        cr_assert_fail("%s:%d: %s", file, line, text);
    _exit(1);
}

void gpu_eq(const char *file, int line, const char *text, long long actual, long long expected)
{
    char line_text[256];

    if (actual == expected)
        return;
    snprintf(line_text, sizeof(line_text), "%s is %lld, not %lld", text, actual, expected);
    gpu_failed(file, line, line_text);
}

void gpu_says(const char *file, int line, const char *part)
{
    if (strstr(bxi_gpu_text(), part) == NULL)
        gpu_failed(file, line, part);
}

/* ---- The world ------------------------------------------------------------------------------- */

static bool has_real_driver(void)
{
    void *library = getenv("BX_CUDA_DRIVER") == NULL ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;

    if (library != NULL)
        dlclose(library);
    return library != NULL;
}

const char *gpu_driver_path(void)
{
    return is_fake ? fake_path : NULL;
}

bool gpu_fake(void)
{
    return is_fake;
}

void gpu_world(enum gpu_driver driver)
{
    const char *build = getenv("BX_BUILD_DIR");
    int fd = memfd_create("gpu-test", MFD_CLOEXEC);
    int machine_fd = memfd_create("gpu-machine", 0);        /* inherited: nothing is left in /dev/shm */
    char machine[64];

    maker = getpid();
    snprintf(fake_path, sizeof(fake_path), "%s/tests/libfakecuda.so", build != NULL ? build : "build");
    snprintf(machine, sizeof(machine), "/proc/self/fd/%d", machine_fd);
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    is_fake = driver == GPU_FAKE || !has_real_driver();
    cr_assert(fd >= 0 && machine_fd >= 0);
    cr_assert_eq(ftruncate(fd, sizeof(*gpu_shared)), 0);
    gpu_shared = mmap(NULL, sizeof(*gpu_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    gpu_read_only = mmap(NULL, sizeof(*gpu_shared), PROT_READ, MAP_SHARED, fd, 0);
    cr_assert(gpu_shared != MAP_FAILED && gpu_read_only != MAP_FAILED);
    close(fd);
}

void gpu_fork(int rank, gpu_fn body)
{
    child[rank] = fork();
    cr_assert_geq(child[rank], 0);
    if (child[rank] == 0) {
        signal(SIGSEGV, SIG_DFL);
        gpu_rank = rank;
        body();
        _exit(0);
    }
}

/* In the test's process: skips the test if one of the others has found that its order is refused. */
static void skip_if_refused(void)
{
    if (getpid() != maker || bxi_load_acquire(&gpu_shared->is_refused) == 0)
        return;
    for (int rank = 0; rank < GPU_PROCESSES; rank++)
        if (child[rank] > 0 && kill(child[rank], SIGKILL) == 0)
            (void)waitpid(child[rank], NULL, 0);
    cr_skip_test("CUDA_DEVICE_MAX_CONNECTIONS=%s: the order that it forces is refused (-ENOTSUP)",
                 getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
}

void gpu_kill(int rank)
{
    int status = 0;

    cr_assert_eq(kill(child[rank], SIGKILL), 0);
    cr_assert_eq(waitpid(child[rank], &status, 0), child[rank]);
    child[rank] = 0;
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "process %d: %s", rank, crash_end_text(status));
}

_Noreturn void gpu_wait_for_the_end(void)
{
    for (;;)
        pause();
}

void gpu_stop(int rank)
{
    int status = 0;

    cr_assert_eq(kill(child[rank], SIGSTOP), 0);
    cr_assert_eq(waitpid(child[rank], &status, WUNTRACED), child[rank]);
    cr_assert(WIFSTOPPED(status), "process %d ended by itself", rank);
}

void gpu_join(int rank)
{
    int status = 0;

    cr_assert_eq(waitpid(child[rank], &status, 0), child[rank]);
    child[rank] = 0;
    skip_if_refused();
    cr_assert_eq(status, 0, "process %d: %s", rank, crash_end_text(status));
}

/* Checks that no memory was freed while it was open, and that nothing is left allocated. */
static void check_machine(void)
{
    gpu_order = BXI_GPU_ORDER_AUTO;
    gpu_start(GPU_PROCESSES - 1);
    GPU_EQ(gpu_figure("freed_while_open", 0), 0);
    gpu_end();
    for (int i = 0; i < 2; i++)
        GPU_EQ(gpu_figure("used", i), 0);
}

void gpu_check_machine(void)
{
    if (!is_fake)
        return;
    unsetenv("CUDA_VISIBLE_DEVICES");
    gpu_fork(GPU_PROCESSES - 1, check_machine);
    gpu_join(GPU_PROCESSES - 1);
}

void gpu_export_by_default(void)
{
    unsetenv("FAKE_CUDA_NO_VMM");
    unsetenv("BX_GPU_EXPORT");
}

void gpu_run(int count, const gpu_fn *body)
{
    for (int i = 0; i < count; i++)
        gpu_fork(i, body[i]);
    for (int i = 0; i < count; i++)
        gpu_join(i);
    gpu_check_machine();
}

void gpu_alone(enum gpu_driver driver, gpu_fn body)
{
    gpu_world(driver);
    gpu_run(1, &body);
}

void gpu_three(enum gpu_driver driver, gpu_fn first, gpu_fn second, gpu_fn third)
{
    gpu_world(driver);
    gpu_run(3, (gpu_fn[]){ first, second, third });
}

void gpu_pair(enum gpu_driver driver, gpu_fn first, gpu_fn second)
{
    gpu_world(driver);
    gpu_run(2, (gpu_fn[]){ first, second });
}

void gpu_run_killed(gpu_fn dying, gpu_fn survivor, int ready, int killed)
{
    gpu_fork(0, dying);
    gpu_fork(1, survivor);
    gpu_await(ready, 1);
    gpu_kill(0);
    gpu_post(killed);
    gpu_join(1);
    gpu_check_machine();
}

/* ---- In a process ---------------------------------------------------------------------------- */

static bool is_held(void *context, uint32_t slab, uint64_t generation)
{
    (void)context;
    for (int rank = 0; rank < GPU_PROCESSES; rank++)
        if (rank != gpu_rank && (gpu_peer[rank] == NULL || !bxi_gpu_peer_is_dead(gpu_peer[rank])) &&
            bxi_load_acquire(&gpu_read_only->held[rank][gpu_rank].generation[slab]) == generation)
            return true;
    return false;
}

void gpu_start_on(int rank, int ordinal)
{
    struct bxi_gpu_options options = { .driver = gpu_driver_path(), .region = &gpu_shared->region[rank],
                                       .is_held = is_held, .slab_bytes = 2 * GPU_MIB, .order = gpu_order };
    int rc;

    gpu_rank = rank;
    memset(options.region, 0, sizeof(*options.region));
    GPU_EQ(bxi_gpu_open(&options, &gpu), 0);
    rc = bxi_gpu_device_open(gpu, ordinal, &gpu_device);
    if (rc == -ENOTSUP && fake_refuses_words()) {
        bxi_store_release(&gpu_shared->is_refused, 1);
        bxi_store_release(&gpu_shared->has_failed, 1);
        _exit(1);
    }
    GPU_EQ(rc, 0);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &gpu_lane), 0);
}

void gpu_start(int rank)
{
    gpu_start_on(rank, 0);
}

struct bxi_gpu_peer *gpu_try_meet(int rank, int *rc)
{
    char name[16];
    struct bxi_gpu_peer_options options = {
        .name = name,
        .region = &gpu_read_only->region[rank],
        .words = bxi_gpu_wants_words(gpu_device) ? gpu_shared->region[rank].word : NULL,
        .held = &gpu_shared->held[gpu_rank][rank],
        .device = gpu_device,
    };

    snprintf(name, sizeof(name), "worker%d", rank);
    *rc = bxi_gpu_peer_open(gpu, &options, &gpu_peer[rank]);
    return gpu_peer[rank];
}

struct bxi_gpu_peer *gpu_meet(int rank)
{
    int rc;

    for (;;) {
        gpu_try_meet(rank, &rc);
        if (rc == 0)
            return gpu_peer[rank];
        GPU_EQ(rc, -EAGAIN);
        sched_yield();
    }
}

void gpu_start_beside(int rank, int other)
{
    gpu_start(rank);
    gpu_meet(other);
}

void gpu_meet_lender(int lent)
{
    gpu_start_beside(1, 0);
    gpu_await(lent, 1);
}

pid_t gpu_stop_lender(void)
{
    pid_t lender = (pid_t)gpu_load(0);

    GPU_EQ(harness_kill(lender, SIGSTOP), 0);
    usleep(100000);
    return lender;
}

void gpu_start_pair(int rank)
{
    gpu_start_beside(rank, 1 - rank);
    gpu_post(0);
    gpu_await(0, 2);
}

static int reaches(int rank, bool by_handle)
{
    struct bxi_gpu_info info;

    GPU_EQ(bxi_gpu_device_info(gpu, bxi_gpu_device_ordinal(gpu_device), &info), 0);
    return bxi_gpu_peer_reaches(gpu_peer[rank], info.uuid, by_handle);
}

int gpu_reaches(int rank)
{
    return reaches(rank, false);
}

int gpu_opens(int rank)
{
    return reaches(rank, true);
}

void gpu_forget(void)
{
    memset(gpu_peer, 0, sizeof(gpu_peer));
    gpu_lane = NULL;
    gpu_device = NULL;
    gpu = NULL;
}

void gpu_end(void)
{
    bxi_gpu_close(gpu);
    gpu_forget();
}

void gpu_end_together(int gate)
{
    gpu_post(gate);
    gpu_await(gate, 2);
    gpu_end();
}

void gpu_end_lending(struct bxi_gpu_block *block, int gate)
{
    gpu_await(gate, 1);
    bxi_gpu_free(block);
    gpu_end();
}

void gpu_lend(const struct bxi_gpu_block *block, uint64_t bytes, int index)
{
    GPU_EQ(bxi_gpu_ref(block, 0, bytes, &gpu_shared->ref[index]), 0);
    GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->ref[index].ready), 0);
}

void gpu_lend_ready(const struct bxi_gpu_block *block, unsigned char value)
{
    gpu_fill(gpu_lane, block->address, value, block->bytes);
    gpu_lend(block, block->bytes, 0);
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    gpu_shared->ref[0].ready = (struct bxi_gpu_point){ 0 };
}

bxi_a64 *gpu_gate(struct CUstream_st *stream)
{
    unsigned long long address = 0;
    void *gate = NULL;

    GPU_EQ(gpu->cu.cuMemHostAlloc(&gate, 4096, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
    GPU_EQ(gpu->cu.cuMemHostGetDevicePointer_v2(&address, gate, 0), CUDA_SUCCESS);
    memset(gate, 0, 4096);
    GPU_EQ(gpu->cu.cuStreamWaitValue64_v2(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    return gate;
}

void gpu_count_freed(void *unused)
{
    (void)unused;
    bxi_add(&gpu_freed, 1);
}

void gpu_fill(struct bxi_gpu_lane *lane, uint64_t address, unsigned char value, uint64_t bytes)
{
    GPU_EQ(bxi_gpu_enter(lane->device), 0);
    GPU_EQ(lane->gpu->cu.cuMemsetD8Async(address, value, bytes, lane->stream), CUDA_SUCCESS);
    bxi_gpu_leave(lane->device);
}

bool gpu_holds(struct bxi_gpu_lane *lane, uint64_t address, unsigned char value, uint64_t bytes)
{
    unsigned char *copy = malloc(bytes);
    bool holds;

    GPU_CHECK(copy != NULL);
    GPU_EQ(bxi_gpu_stage_out(lane, copy, address, bytes), 0);
    holds = copy[0] == value && memcmp(copy, copy + 1, bytes - 1) == 0;
    free(copy);
    return holds;
}

struct bxi_gpu_block *gpu_block(uint64_t bytes)
{
    struct bxi_gpu_block *block = NULL;

    GPU_EQ(bxi_gpu_alloc(gpu_device, bytes, &block), 0);
    return block;
}

static _Thread_local struct mapped {
    bxi_a32 done;
    int rc;
} begun;

static void on_mapped(void *context, int rc)
{
    struct mapped *mapped = context;

    mapped->rc = rc;
    snprintf(gpu_map_text, sizeof(gpu_map_text), "%s", rc < 0 ? bxi_gpu_text() : "");
    bxi_store_release(&mapped->done, 1);
}

void gpu_map_begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref)
{
    begun = (struct mapped){ 0 };
    GPU_EQ(bxi_gpu_map_begin(peer, ref, on_mapped, &begun), 0);
}

bool gpu_map_has_ended(void)
{
    return bxi_load_acquire(&begun.done) != 0;
}

int gpu_map_end(void)
{
    while (!gpu_map_has_ended())
        sched_yield();
    return begun.rc;
}

int gpu_try_map(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref)
{
    int rc;

    begun = (struct mapped){ 0 };
    rc = bxi_gpu_map_begin(peer, ref, on_mapped, &begun);
    if (rc != 0)
        return rc == 1 ? 0 : rc;
    return gpu_map_end();
}

uint64_t gpu_borrow(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **map)
{
    uint64_t address = 0;

    GPU_EQ(gpu_try_map(peer, ref), 0);
    GPU_EQ(bxi_gpu_map_get(peer, ref, map, &address), 0);
    return address;
}

struct bxi_gpu_counters gpu_counters(void)
{
    struct bxi_gpu_counters counters;

    bxi_gpu_read(gpu, &counters);
    return counters;
}

void gpu_poll_until_nothing_is_left(void)
{
    while (bxi_gpu_poll(gpu) > 0)
        sched_yield();
}

void gpu_wait_passed(struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point)
{
    int rc;

    while ((rc = bxi_gpu_passed(gpu, peer, point)) == 0) {
        (void)bxi_gpu_poll(gpu);
        sched_yield();
    }
    GPU_EQ(rc, 1);
}

uint64_t gpu_used(int ordinal)
{
    size_t free_bytes = 0, total_bytes = 0;
    struct bxi_gpu_device *device = gpu_device;

    if (ordinal != bxi_gpu_device_ordinal(gpu_device))
        GPU_EQ(bxi_gpu_device_open(gpu, ordinal, &device), 0);
    GPU_EQ(bxi_gpu_enter(device), 0);
    GPU_EQ(gpu->cu.cuMemGetInfo_v2(&free_bytes, &total_bytes), CUDA_SUCCESS);
    bxi_gpu_leave(device);
    return total_bytes - free_bytes;
}

void gpu_compare_used(int ordinal, uint64_t least, uint64_t most)
{
    uint64_t used = gpu_used(ordinal);

    if (used >= least && used <= most)
        return;
    if (is_fake)
        gpu_failed(__FILE__, __LINE__, "as many bytes of the device are in use as expected");
    printf("device %d has %llu bytes in use, %llu to %llu were expected; other programs count too\n", ordinal,
           (unsigned long long)used, (unsigned long long)least, (unsigned long long)most);
}

uint64_t gpu_segment(unsigned types, int last)
{
    struct CUmemAllocationProp_st prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = types,
                                           .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
    struct CUmemAccessDesc_st access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    unsigned long long base = 0, handle = 0;

    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    GPU_EQ(gpu->cu.cuMemAddressReserve(&base, GPU_CHUNKS * 2 * GPU_MIB, 0, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < GPU_CHUNKS; i++) {
        prop.location.id = i == GPU_CHUNKS - 1 ? last : 0;
        GPU_EQ(gpu->cu.cuMemCreate(&handle, 2 * GPU_MIB, &prop, 0), CUDA_SUCCESS);
        GPU_EQ(gpu->cu.cuMemMap(base + (uint64_t)i * 2 * GPU_MIB, 2 * GPU_MIB, 0, handle, 0), CUDA_SUCCESS);
        GPU_EQ(gpu->cu.cuMemRelease(handle), CUDA_SUCCESS);
    }
    GPU_EQ(gpu->cu.cuMemSetAccess(base, GPU_CHUNKS * 2 * GPU_MIB, &access, 1), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
    return base;
}

void gpu_free_segment(uint64_t base)
{
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    for (int i = 0; i < GPU_CHUNKS; i++)
        GPU_EQ(gpu->cu.cuMemUnmap(base + (uint64_t)i * 2 * GPU_MIB, 2 * GPU_MIB), CUDA_SUCCESS);
    GPU_EQ(gpu->cu.cuMemAddressFree(base, GPU_CHUNKS * 2 * GPU_MIB), CUDA_SUCCESS);
    bxi_gpu_leave(gpu_device);
}

uint64_t gpu_figure(const char *name, int device)
{
    void *library = is_fake ? dlopen(fake_path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    uint64_t (*figure)(const char *name, int device) = NULL;
    void *symbol;

    if (library == NULL)
        return 0;
    symbol = dlsym(library, "bx_fake_figure");
    memcpy(&figure, &symbol, sizeof(symbol));
    dlclose(library);
    return figure(name, device);
}

/* ---- Gates ----------------------------------------------------------------------------------- */

void gpu_post(int gate)
{
    (void)bxi_add(&gpu_shared->gate[gate], 1);
    syscall(SYS_futex, &gpu_shared->gate[gate], FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void gpu_await(int gate, uint32_t least)
{
    struct timespec look = { .tv_nsec = 100000000 };
    uint32_t seen;

    while ((seen = bxi_load_acquire(&gpu_shared->gate[gate])) < least) {
        skip_if_refused();
        if (bxi_load_acquire(&gpu_shared->has_failed) != 0)
            _exit(1);
        syscall(SYS_futex, &gpu_shared->gate[gate], FUTEX_WAIT, seen, &look, NULL, 0);
    }
}

void gpu_store(int index, uint64_t value)
{
    bxi_store_release(&gpu_shared->value[index], value);
}

uint64_t gpu_load(int index)
{
    return bxi_load_acquire(&gpu_shared->value[index]);
}
