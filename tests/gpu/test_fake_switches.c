/* SPDX-License-Identifier: MIT */
/*
 * tests/fake_cuda with the switches that make it less obliging, and its capture of streams: calls of the driver itself,
 * without gpu/. Each test has its control: what the fake does without the switch.
 *
 * "It waits" is asserted after a pause: a machine under load can make such a test pass, and not fail.
 */
#include "../fake_cuda/fake.h"
#include "../fake_cuda/nvrtc.h"
#include "fake_library.h"
#include "tests/harness/harness.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) cr_assert(condition, "%s", #condition)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define BYTES 4096
#define FILLED 0x5A                     /* what the other process's memory holds */
#define READ_ONLY_SUPPORTED 113         /* CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED */

struct CUgraph_st;

static struct bxi_cuda driver;
static struct {
    unsigned (*begin)(struct CUstream_st *stream, unsigned mode);
    unsigned (*end)(struct CUstream_st *stream, struct CUgraph_st **graph);
    unsigned (*is_capturing)(struct CUstream_st *stream, unsigned *status);
    unsigned (*exchange_mode)(unsigned *mode);
} capture;
static struct CUctx_st *context;
static char machine[64];
static pid_t owner_pid;                 /* 0: none */
static bxi_a64 *word;                   /* a page of pinned memory */

/* ---- The world ------------------------------------------------------------------------------- */

/* Before a fork, too. */
static void load(void)
{
    void *library = fake_load(&driver);

    fake_take(library, "cuStreamBeginCapture_v2", &capture.begin);
    fake_take(library, "cuStreamEndCapture", &capture.end);
    fake_take(library, "cuStreamIsCapturing", &capture.is_capturing);
    fake_take(library, "cuThreadExchangeStreamCaptureMode", &capture.exchange_mode);
}

/* Loads the fake without any switch, whatever the environment of the whole run has. */
static void begin(void)
{
    static const char *const switches[] = { "FAKE_CUDA_QUEUES", "CUDA_DEVICE_MAX_CONNECTIONS", "FAKE_CUDA_BLOCKING",
                                            "FAKE_CUDA_SAME_OPEN", "FAKE_CUDA_DROP_DEAD", "FAKE_CUDA_OPEN_205",
                                            "FAKE_CUDA_NO_READ_ONLY" };

    for (size_t i = 0; i < COUNT(switches); i++)
        unsetenv(switches[i]);
    harness_name(machine, sizeof machine, "/dev/shm/bx-fake-switches-");
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    load();
}

static void end(void)
{
    if (owner_pid > 0)
        (void)kill(owner_pid, SIGKILL);
    unlink(machine);
}

TestSuite(fake_switches, .init = begin, .fini = end, .timeout = 60);

/* Starts CUDA in this process, or reads the switches again. */
static void start(void)
{
    CHECK(driver.cuInit(0) == CUDA_SUCCESS);
    if (context != NULL)
        return;
    CHECK(driver.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
    CHECK(driver.cuMemHostAlloc((void **)&word, BYTES, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    memset((void *)word, 0, BYTES);
}

static void start_with(const char *name, const char *value)
{
    setenv(name, value, 1);
    start();
}

static struct CUstream_st *stream_made(void)
{
    struct CUstream_st *stream = NULL;

    CHECK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

/* Lets the stream wait until release() is called. */
static void hold(struct CUstream_st *stream)
{
    bxi_store_release(word, 0);
    CHECK(driver.cuStreamWaitValue64_v2(stream, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
}

static void release(void)
{
    bxi_store_release(word, 1);
}

static void put_write(struct CUstream_st *stream, int index)
{
    CHECK(driver.cuStreamWriteValue64_v2(stream, (uintptr_t)&word[index], 1, 0) == CUDA_SUCCESS);
}

/* ---- Another process ------------------------------------------------------------------------- */

/* Has two allocations, filled, until it is killed. */
struct peer {
    bxi_a32 is_ready;
    struct CUipcMemHandle_st handle[2];
};
static struct peer *owner;

static void own(void)
{
    const struct bxi_cuda *cu = &driver;
    unsigned long long address = 0;
    struct CUstream_st *stream;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start();
    stream = stream_made();
    for (int i = 0; i < 2; i++) {
        CHECK(cu->cuMemAlloc_v2(&address, BYTES) == CUDA_SUCCESS);
        CHECK(cu->cuMemsetD8Async(address, FILLED, BYTES, stream) == CUDA_SUCCESS);
        CHECK(cu->cuIpcGetMemHandle(&owner->handle[i], address) == CUDA_SUCCESS);
    }
    CHECK(cu->cuStreamSynchronize(stream) == CUDA_SUCCESS);
    bxi_store_release(&owner->is_ready, 1);
    for (;;)
        pause();
}

/* Before CUDA is started here. */
static void fork_owner(void)
{
    owner = mmap(NULL, sizeof *owner, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(owner != MAP_FAILED);
    owner_pid = fork();
    CHECK(owner_pid >= 0);
    if (owner_pid == 0)
        own();
    for (int i = 0; i < 10000 && bxi_load_acquire(&owner->is_ready) == 0; i++)
        pause_ms(1);
    CHECK(bxi_load_acquire(&owner->is_ready) == 1);
}

/* ---- FAKE_CUDA_QUEUES ------------------------------------------------------------------------ */

/* Whether, while the first of `count` streams waits, the last runs its work. */
static bool last_runs(int count)
{
    struct CUstream_st *stream[8];
    bool runs;

    for (int i = 0; i < count; i++)
        stream[i] = stream_made();
    hold(stream[0]);
    put_write(stream[count - 1], 1);
    pause_ms(50);
    runs = driver.cuStreamQuery(stream[count - 1]) == CUDA_SUCCESS;
    release();
    CHECK(driver.cuStreamSynchronize(stream[count - 1]) == CUDA_SUCCESS && bxi_load_acquire(&word[1]) == 1);
    for (int i = 0; i < count; i++)
        CHECK(driver.cuStreamDestroy_v2(stream[i]) == CUDA_SUCCESS);
    return runs;
}

Test(fake_switches, streams_have_queues_of_their_own)
{
    start();
    CHECK(last_runs(2));
    CHECK(last_runs(8));
}

Test(fake_switches, a_stream_that_waits_holds_up_the_others_of_its_queue)
{
    start_with("FAKE_CUDA_QUEUES", "1");
    CHECK(!last_runs(2));
    CHECK(!last_runs(3));
}

Test(fake_switches, streams_take_the_queues_in_turn)
{
    start_with("FAKE_CUDA_QUEUES", "3");
    CHECK(last_runs(3));
    CHECK(!last_runs(4));
}

Test(fake_switches, max_connections_means_the_same_as_queues_but_yields_to_it)
{
    start_with("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    CHECK(!last_runs(2));
    start_with("FAKE_CUDA_QUEUES", "0");
    CHECK(last_runs(2));
}

/* ---- FAKE_CUDA_BLOCKING ---------------------------------------------------------------------- */

enum call { CALL_ALLOC, CALL_HOST_ALLOC, CALL_CREATE, CALL_REGISTER, CALL_OPEN, CALL_LOAD, CALL_SEARCH, CALL_FREE,
    CALL_FREE_HOST, CALL_UNREGISTER, CALL_CLOSE, CALL_UNLOAD, CALLS };

static const char cubin[] = FAKE_CUBIN_MARK FAKE_CUBIN_ARCHITECTURE "\nbxk_sum\n";

/* What the calls need, made before a stream waits. */
static struct {
    unsigned long long memory, opened, other_opened;
    void *pinned, *page, *other_page;
    struct CUipcMemHandle_st handle[2];
    struct CUmod_st *module;
} made;

static struct {
    enum call call;
    unsigned result;
    bxi_a32 has_returned;
} calling;

static unsigned call_now(enum call call)
{
    const struct bxi_cuda *cu = &driver;
    unsigned long long address;
    struct CUfunc_st *function;
    struct CUstream_st *stream;
    struct CUmod_st *module;
    void *memory;

    switch (call) {
    case CALL_ALLOC: return cu->cuMemAlloc_v2(&address, BYTES);
    case CALL_HOST_ALLOC: return cu->cuMemHostAlloc(&memory, BYTES, 0);
    case CALL_CREATE: return cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    case CALL_REGISTER: return cu->cuMemHostRegister_v2(made.page, BYTES, 0);
    case CALL_OPEN: return cu->cuIpcOpenMemHandle_v2(&made.opened, made.handle[0], 1);
    case CALL_LOAD: return driver.cuModuleLoadData(&module, cubin);
    case CALL_SEARCH: return driver.cuModuleGetFunction(&function, made.module, "bxk_sum");
    case CALL_FREE: return cu->cuMemFree_v2(made.memory);
    case CALL_FREE_HOST: return cu->cuMemFreeHost(made.pinned);
    case CALL_UNREGISTER: return cu->cuMemHostUnregister(made.other_page);
    case CALL_CLOSE: return cu->cuIpcCloseMemHandle(made.other_opened);
    default: return driver.cuModuleUnload(made.module);
    }
}

static void *call_apart(void *unused)
{
    (void)unused;
    calling.result = driver.cuCtxPushCurrent_v2(context);
    if (calling.result == CUDA_SUCCESS)
        calling.result = call_now(calling.call);
    bxi_store_release(&calling.has_returned, 1);
    return NULL;
}

/* Whether the call returns while a stream of its device waits. It succeeds in any case. A call that is expected to
 * return has 10 s for it, for its thread may get no CPU for long; 50 ms show that another one blocks. */
static bool returns_at_once(enum call call, struct CUstream_st *stream, bool expected)
{
    pthread_t thread;
    bool at_once;

    hold(stream);
    calling.call = call;
    bxi_store_release(&calling.has_returned, 0);
    CHECK(pthread_create(&thread, NULL, call_apart, NULL) == 0);
    for (int ms = 0; ms < (expected ? 10000 : 50) && bxi_load_acquire(&calling.has_returned) == 0; ms++)
        pause_ms(1);
    at_once = bxi_load_acquire(&calling.has_returned) == 1;
    release();
    CHECK(pthread_join(thread, NULL) == 0);
    cr_assert_eq(calling.result, CUDA_SUCCESS, "call %d returns %u", (int)call, calling.result);
    return at_once;
}

static void make_all(void)
{
    const struct bxi_cuda *cu = &driver;

    made.page = aligned_alloc(BYTES, BYTES);
    made.other_page = aligned_alloc(BYTES, BYTES);
    memcpy(made.handle, owner->handle, sizeof made.handle);
    CHECK(cu->cuMemAlloc_v2(&made.memory, BYTES) == CUDA_SUCCESS);
    CHECK(cu->cuMemHostAlloc(&made.pinned, BYTES, 0) == CUDA_SUCCESS);
    CHECK(cu->cuMemHostRegister_v2(made.other_page, BYTES, 0) == CUDA_SUCCESS);
    CHECK(cu->cuIpcOpenMemHandle_v2(&made.other_opened, made.handle[1], 1) == CUDA_SUCCESS);
    CHECK(driver.cuModuleLoadData(&made.module, cubin) == CUDA_SUCCESS);
}

Test(fake_switches, only_what_cuda_says_synchronises_blocks)
{
    struct CUstream_st *stream;

    fork_owner();
    start();
    make_all();
    stream = stream_made();
    for (enum call call = 0; call < CALLS; call++) {
        bool expected = call < CALL_FREE || call == CALL_UNLOAD;

        cr_assert_eq(returns_at_once(call, stream, expected), expected, "call %d", (int)call);
    }
}

Test(fake_switches, calls_that_may_synchronise_block_while_a_stream_waits)
{
    struct CUstream_st *stream;

    fork_owner();
    start_with("FAKE_CUDA_BLOCKING", "1");
    make_all();
    stream = stream_made();
    for (enum call call = 0; call < CALLS; call++)
        cr_assert(!returns_at_once(call, stream, false), "call %d returns while a stream waits", (int)call);
}

Test(fake_switches, a_stream_of_another_device_blocks_no_call)
{
    struct CUctx_st *other = NULL;
    struct CUstream_st *stream;

    start_with("FAKE_CUDA_BLOCKING", "1");
    CHECK(driver.cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
    CHECK(driver.cuCtxPushCurrent_v2(other) == CUDA_SUCCESS);
    stream = stream_made();
    CHECK(returns_at_once(CALL_ALLOC, stream, true));
}

Test(fake_switches, a_call_that_blocks_waits_for_no_later_work)
{
    unsigned long long address = 0;
    struct CUstream_st *stream;
    pthread_t thread;

    start_with("FAKE_CUDA_BLOCKING", "1");
    stream = stream_made();
    hold(stream);
    calling.call = CALL_ALLOC;
    CHECK(pthread_create(&thread, NULL, call_apart, NULL) == 0);
    pause_ms(50);
    CHECK(driver.cuStreamWaitValue64_v2(stream, (uintptr_t)&word[2], 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    release();
    CHECK(pthread_join(thread, NULL) == 0 && calling.result == CUDA_SUCCESS);
    bxi_store_release(&word[2], 1);
    CHECK(driver.cuMemAlloc_v2(&address, BYTES) == CUDA_SUCCESS);
}

/* ---- Handles --------------------------------------------------------------------------------- */

static unsigned char first_byte(unsigned long long address)
{
    unsigned char byte = 0;
    struct CUstream_st *stream = stream_made();

    CHECK(driver.cuMemcpyDtoHAsync_v2(&byte, address, 1, stream) == CUDA_SUCCESS);
    CHECK(driver.cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(driver.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    return byte;
}

static unsigned open_first(unsigned long long *address)
{
    return driver.cuIpcOpenMemHandle_v2(address, owner->handle[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

Test(fake_switches, a_second_open_is_refused)
{
    unsigned long long address = 0, again = 0;

    fork_owner();
    start();
    CHECK(open_first(&address) == CUDA_SUCCESS && open_first(&again) == 208);
    CHECK(driver.cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
    CHECK(driver.cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE);
}

Test(fake_switches, a_second_open_returns_the_same_address_and_counts)
{
    unsigned long long address = 0, again = 0;

    fork_owner();
    start_with("FAKE_CUDA_SAME_OPEN", "1");
    CHECK(open_first(&address) == CUDA_SUCCESS && open_first(&again) == CUDA_SUCCESS);
    CHECK(address == again);
    CHECK(driver.cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
    CHECK(first_byte(address) == FILLED);
    CHECK(driver.cuIpcCloseMemHandle(address) == CUDA_SUCCESS);
    CHECK(driver.cuIpcCloseMemHandle(address) == CUDA_ERROR_INVALID_VALUE);
}

Test(fake_switches, opens_fail_with_205)
{
    unsigned long long address = 0;
    const char *name = NULL;

    fork_owner();
    start_with("FAKE_CUDA_OPEN_205", "1");
    CHECK(open_first(&address) == CUDA_ERROR_MAP_FAILED);
    CHECK(driver.cuGetErrorName(205, &name) == CUDA_SUCCESS && strcmp(name, "CUDA_ERROR_MAP_FAILED") == 0);
    unsetenv("FAKE_CUDA_OPEN_205");
    start();
    CHECK(open_first(&address) == CUDA_SUCCESS);
}

static void kill_owner(void)
{
    CHECK(kill(owner_pid, SIGKILL) == 0 && waitpid(owner_pid, NULL, 0) == owner_pid);
    owner_pid = 0;
}

Test(fake_switches, memory_of_a_killed_process_stays_where_it_is_open)
{
    unsigned long long address = 0;

    fork_owner();
    start();
    CHECK(open_first(&address) == CUDA_SUCCESS);
    kill_owner();
    CHECK(first_byte(address) == FILLED && first_byte(address + BYTES - 1) == FILLED);
}

Test(fake_switches, memory_of_a_killed_process_goes_with_it)
{
    unsigned long long address = 0, again = 0;

    fork_owner();
    start_with("FAKE_CUDA_DROP_DEAD", "1");
    CHECK(open_first(&address) == CUDA_SUCCESS && first_byte(address) == FILLED);
    kill_owner();
    CHECK(first_byte(address) == FAKE_POISON && first_byte(address + BYTES - 1) == FAKE_POISON);
    CHECK(open_first(&again) == CUDA_ERROR_INVALID_VALUE);
}

/* The comparison is cyclic: neither what the memory holds nor FAKE_POISON has come so far, INT64_MAX has. */
#define AFTER_BOTH UINT64_C(0x5b00000000000000)

/* What a survivor writes there afterwards stays: the word of a dead process can be poisoned. */
Test(fake_switches, a_stream_that_waits_for_a_killed_process_can_be_released)
{
    struct CUstream_st *stream, *side;
    unsigned long long address = 0;

    fork_owner();
    start_with("FAKE_CUDA_DROP_DEAD", "1");
    CHECK(open_first(&address) == CUDA_SUCCESS);
    stream = stream_made();
    side = stream_made();
    CHECK(driver.cuStreamWaitValue64_v2(stream, address, AFTER_BOTH, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    kill_owner();
    pause_ms(20);
    CHECK(driver.cuStreamWriteValue64_v2(side, address, INT64_MAX, 0) == CUDA_SUCCESS);
    CHECK(driver.cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(first_byte(address) == 0xFF);
}

/* ---- FAKE_CUDA_NO_READ_ONLY ------------------------------------------------------------------ */

static int attribute_of(unsigned attribute)
{
    int value = -1;

    CHECK(driver.cuDeviceGetAttribute(&value, attribute, 0) == CUDA_SUCCESS);
    return value;
}

Test(fake_switches, an_attribute_tells_whether_memory_can_be_registered_read_only)
{
    void *page = mmap(NULL, BYTES, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    start();
    CHECK(attribute_of(READ_ONLY_SUPPORTED) == 1);
    CHECK(driver.cuMemHostRegister_v2(page, BYTES, CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_SUCCESS);
    CHECK(driver.cuMemHostUnregister(page) == CUDA_SUCCESS);
    start_with("FAKE_CUDA_NO_READ_ONLY", "1");
    CHECK(attribute_of(READ_ONLY_SUPPORTED) == 0);
    CHECK(driver.cuMemHostRegister_v2(page, BYTES, CU_MEMHOSTREGISTER_READ_ONLY) == CUDA_ERROR_NOT_SUPPORTED);
}

/* ---- Capture --------------------------------------------------------------------------------- */

static unsigned status_of(struct CUstream_st *stream)
{
    unsigned status = 77;

    CHECK(capture.is_capturing(stream, &status) == CUDA_SUCCESS);
    return status;
}

Test(fake_switches, a_captured_stream_records_its_work_and_does_not_run_it)
{
    struct CUgraph_st *graph = NULL;
    struct CUstream_st *stream;

    start();
    stream = stream_made();
    CHECK(status_of(stream) == 0 && capture.end(stream, &graph) == 401);
    CHECK(capture.begin(stream, 0) == CUDA_SUCCESS && status_of(stream) == 1);
    CHECK(capture.begin(stream, 0) == 401);
    put_write(stream, 1);
    CHECK(capture.end(stream, &graph) == CUDA_SUCCESS && status_of(stream) == 0);
    CHECK(driver.cuStreamSynchronize(stream) == CUDA_SUCCESS && bxi_load_acquire(&word[1]) == 0);
    put_write(stream, 1);
    CHECK(driver.cuStreamSynchronize(stream) == CUDA_SUCCESS && bxi_load_acquire(&word[1]) == 1);
}

Test(fake_switches, waiting_for_a_captured_stream_invalidates_its_capture)
{
    struct CUgraph_st *graph = NULL;
    struct CUstream_st *stream;

    start();
    stream = stream_made();
    CHECK(capture.begin(stream, 2) == CUDA_SUCCESS);
    CHECK(driver.cuStreamQuery(stream) == 900 && status_of(stream) == 2);
    CHECK(driver.cuStreamWriteValue64_v2(stream, (uintptr_t)word, 1, 0) == 901);
    CHECK(capture.end(stream, &graph) == 901 && status_of(stream) == 0);
}

/* The results of an allocation by another thread in its capture mode, for a capture in each mode. */
static void *allocate_in_mode(void *wanted)
{
    unsigned mode = *(unsigned *)wanted;

    CHECK(capture.exchange_mode(&mode) == CUDA_SUCCESS && mode == 0);
    return call_apart(NULL);
}

static unsigned allocates(unsigned captured_in, unsigned thread_mode, unsigned *status)
{
    struct CUstream_st *stream = stream_made();
    struct CUgraph_st *graph = NULL;
    pthread_t thread;

    calling.call = CALL_ALLOC;
    CHECK(capture.begin(stream, captured_in) == CUDA_SUCCESS);
    CHECK(pthread_create(&thread, NULL, allocate_in_mode, &thread_mode) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    *status = status_of(stream);
    (void)capture.end(stream, &graph);
    return calling.result;
}

Test(fake_switches, an_unsafe_call_breaks_a_global_capture_unless_its_thread_has_another_mode)
{
    unsigned status = 0;

    start();
    CHECK(allocates(0, 0, &status) == 900 && status == 2);
    CHECK(allocates(0, 1, &status) == CUDA_SUCCESS && status == 1);
    CHECK(allocates(0, 2, &status) == CUDA_SUCCESS && status == 1);
    CHECK(allocates(1, 0, &status) == CUDA_SUCCESS && status == 1);
    CHECK(allocates(2, 0, &status) == CUDA_SUCCESS && status == 1);
}

Test(fake_switches, an_unsafe_call_of_the_capturing_thread_is_refused_unless_the_capture_is_relaxed)
{
    struct CUstream_st *stream;
    struct CUgraph_st *graph = NULL;

    start();
    stream = stream_made();
    for (unsigned mode = 0; mode <= 2; mode++) {
        CHECK(capture.begin(stream, mode) == CUDA_SUCCESS);
        CHECK(call_now(CALL_ALLOC) == (mode == 2 ? CUDA_SUCCESS : 900u));
        CHECK(capture.end(stream, &graph) == (mode == 2 ? CUDA_SUCCESS : 901u));
    }
}
