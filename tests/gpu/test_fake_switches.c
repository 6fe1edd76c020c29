/* SPDX-License-Identifier: MIT */
/*
 * tests/fake_cuda: FAKE_CUDA_SAME_OPEN with its control, and the capture of streams: calls of the driver itself. What
 * the other switches do is what gpucheck says under them (tests/e2e/gpucheck.sh).
 */
#include "../fake_cuda/fake.h"
#include "fake_library.h"
#include "tests/harness/harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CHECK(condition) cr_assert(condition, "%s", #condition)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define BYTES 4096
#define FILLED 0x5A                     /* what the other process's memory holds */

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
        usleep(1000);
    CHECK(bxi_load_acquire(&owner->is_ready) == 1);
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

static unsigned allocate(void)
{
    unsigned long long address;

    return driver.cuMemAlloc_v2(&address, BYTES);
}

static unsigned allocated;              /* by the other thread */

/* The results of an allocation by another thread in its capture mode, for a capture in each mode. */
static void *allocate_in_mode(void *wanted)
{
    unsigned mode = *(unsigned *)wanted;

    CHECK(capture.exchange_mode(&mode) == CUDA_SUCCESS && mode == 0);
    CHECK(driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
    allocated = allocate();
    return NULL;
}

static unsigned allocates(unsigned captured_in, unsigned thread_mode, unsigned *status)
{
    struct CUstream_st *stream = stream_made();
    struct CUgraph_st *graph = NULL;
    pthread_t thread;

    CHECK(capture.begin(stream, captured_in) == CUDA_SUCCESS);
    CHECK(pthread_create(&thread, NULL, allocate_in_mode, &thread_mode) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    *status = status_of(stream);
    (void)capture.end(stream, &graph);
    return allocated;
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
        CHECK(allocate() == (mode == 2 ? CUDA_SUCCESS : 900u));
        CHECK(capture.end(stream, &graph) == (mode == 2 ? CUDA_SUCCESS : 901u));
    }
}
