/* SPDX-License-Identifier: MIT */
/*
 * tests/fake_cuda: what the documentation of the real driver forbids with memory of cuMemCreate. Calls of the driver
 * itself. What it allows: gpu_export and gpu_vmm.
 */
#include "../fake_cuda/fake.h"
#include "fake_library.h"
#include "tests/harness/harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) cr_assert(condition, "%s", #condition)
#define OK(call) cr_assert_eq((call), CUDA_SUCCESS, "%s", #call)
#define BYTES ((size_t)2 << 20)
#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static struct bxi_cuda driver;
static struct CUstream_st *stream;
static char machine[64];

static void begin(void)
{
    harness_name(machine, sizeof machine, "/dev/shm/bx-fake-vmm-");
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    unsetenv("FAKE_CUDA_NO_VMM");
    fake_load(&driver);
}

static void end(void)
{
    unlink(machine);
}

TestSuite(fake_vmm, .init = begin, .fini = end, .timeout = 60);

static void start(void)
{
    struct CUctx_st *context;

    OK(driver.cuInit(0));
    OK(driver.cuDevicePrimaryCtxRetain(&context, 0));
    OK(driver.cuCtxPushCurrent_v2(context));
    OK(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static struct CUmemAllocationProp_st prop_of(unsigned types)
{
    return (struct CUmemAllocationProp_st){ .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = types,
                                            .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
}

static unsigned long long made(unsigned types)
{
    struct CUmemAllocationProp_st prop = prop_of(types);
    unsigned long long handle = 0;

    OK(driver.cuMemCreate(&handle, BYTES, &prop, 0));
    return handle;
}

static unsigned long long mapped(unsigned long long handle)
{
    unsigned long long address = 0;

    OK(driver.cuMemAddressReserve(&address, BYTES, 0, 0, 0));
    OK(driver.cuMemMap(address, BYTES, 0, handle, 0));
    return address;
}

static void release(unsigned long long address)
{
    OK(driver.cuStreamSynchronize(stream));
    OK(driver.cuMemUnmap(address, BYTES));
    OK(driver.cuMemAddressFree(address, BYTES));
}

Test(fake_vmm, refuses_what_the_documentation_forbids)
{
    struct CUmemAllocationProp_st prop = prop_of(FD);
    unsigned long long handle = 0, plain, address, again;
    size_t granularity = 0;
    int fd = -1;

    start();
    OK(driver.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity == BYTES);
    CHECK(driver.cuMemCreate(&handle, BYTES + 4096, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
    plain = made(0);
    CHECK(driver.cuMemExportToShareableHandle(&fd, plain, FD, 0) == CUDA_ERROR_INVALID_VALUE);
    address = mapped(plain);
    CHECK(driver.cuMemMap(address, BYTES, 0, plain, 0) == CUDA_ERROR_INVALID_VALUE);         /* it is mapped */
    CHECK(driver.cuMemUnmap(address, BYTES / 2) == CUDA_ERROR_INVALID_VALUE);
    CHECK(driver.cuMemAddressFree(address, BYTES) == CUDA_ERROR_INVALID_VALUE);
    CHECK(driver.cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
    OK(driver.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + 100)));
    CHECK(again == plain);
    OK(driver.cuMemGetAllocationPropertiesFromHandle(&prop, again));
    CHECK(prop.requestedHandleTypes == 0 && prop.location.id == 0);
    OK(driver.cuMemRelease(again));
    OK(driver.cuMemRelease(plain));
    CHECK(driver.cuMemRelease(plain) == CUDA_ERROR_INVALID_VALUE);
    release(address);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD) == CUDA_ERROR_INVALID_VALUE);
    close(fd);
}
