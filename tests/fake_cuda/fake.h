/* SPDX-License-Identifier: MIT */
/*
 * A simulated CUDA driver, libfakecuda.so, for tests of gpu/ on machines without a GPU. It is loaded only by an
 * explicit path (BX_CUDA_DRIVER). Its devices have FAKE in their names, and it exports bx_fake_cuda, which no other
 * driver does. The same file simulates NVRTC, cuBLAS and cuDNN (BX_NVRTC, BX_CUBLAS, BX_CUDNN) for the tests of lib/nn.
 *
 * The model:
 *  - A machine of several devices is a file that its processes share (FAKE_CUDA_MACHINE, by default
 *    /dev/shm/bx-fake-cuda.<uid>): allocations, the processes that have them open, contexts.
 *  - Device memory is a memfd of its owner, which others open through /proc/<pid>/fd: it is freed with the last
 *    mapping, as with the real driver, and a dead process's handles cannot be opened any more.
 *  - A handle is {pid, slot}: after a free and an allocation it has the same bytes again.
 *  - Memory that is freed while another process has it open is overwritten, and counted.
 *  - A stream is a thread that runs its work in order, each item after a random delay, so that work that is not waited
 *    for is late. Only events and words order two streams.
 *  - Memory of cuMemCreate is a memfd too. Its descriptor can be exported, if that was asked for when it was made, and
 *    imported by any process that has it. It lives until the last handle, mapping and descriptor is gone, whoever made
 *    it. What the devices of a process may do with a mapping is what cuMemSetAccess gave to any of them: functions of
 *    the driver refuse the rest (1), and a kernel that does it dies of SIGSEGV; a real one fails with its context.
 *  - Opening a handle of the same process is refused with 201, one that is already open here with 208, one across two
 *    devices without peer access with 217.
 *  - Kernels are lib/nn/kernels.cu and demos/reinforce/policy.cu compiled for the host (kernel.h), run thread after
 *    thread, the last block first. A cubin is the text that was passed to NVRTC; its kernels are those that it names.
 *  - cuBLAS and cuDNN compute on the stream, in double. They refuse what the real ones refuse; a pointer to nothing
 *    ends the process. What the real ones do silently is visible here: a nondeterministic algorithm, or TF32, gives
 *    numbers that are slightly off; a workspace is overwritten; with beta 0 the target is not read.
 *
 * The environment, read by cuInit:
 *    FAKE_CUDA_DEVICES=2         how many; CUDA_VISIBLE_DEVICES selects some of them (numbers)
 *    FAKE_CUDA_MEMORY_MB=1024    of each device; a context takes 16 of it
 *    FAKE_CUDA_DELAY_US=300      at most, before each item of work
 *    FAKE_CUDA_OPEN_MS=0         duration of an open, and of a close
 *    FAKE_CUDA_OPEN_GATE=FD      opens and closes wait until this descriptor is readable
 *    FAKE_CUDA_NO_PEER=0-1,...   devices without peer access, or "all"
 *    FAKE_CUDA_VERSION=12040     FAKE_CUDA_MIG=1, FAKE_CUDA_EXCLUSIVE=1, FAKE_CUDA_PROHIBITED=1,
 *    FAKE_CUDA_NO_IPC=1 (opens fail as in another PID namespace), FAKE_CUDA_NO_STREAM_OPS=1,
 *    FAKE_CUDA_NO_HOST_REGISTER=1,
 *    FAKE_CUDA_NO_READ_ONLY=1    CU_MEMHOSTREGISTER_READ_ONLY is refused with 801, and attribute 113 is 0
 *    FAKE_CUDA_LOST_WRITES=1     streams never write words: a probe must detect it
 *    FAKE_CUDA_QUEUES=N          streams of a device share N hardware queues in each process, at most 32, and take them
 *                                in turn: an item that waits holds up all items behind it. 0, the default: each stream
 *                                has its own. CUDA_DEVICE_MAX_CONNECTIONS means the same where this is not set.
 *    FAKE_CUDA_BLOCKING=1        a call that may synchronise the device waits for all work that this process has put
 *                                on its streams there: alloc, free, stream create, host register and unregister, IPC
 *                                open and close, module load and unload, the search for a kernel (which loads
 *                                it), cublasCreate, cudnnCreate
 *    FAKE_CUDA_SAME_OPEN=1       a second open of a handle in a process returns the same address and counts, not 208
 *    FAKE_CUDA_DROP_DEAD=1       memory of a process that is gone holds FAKE_POISON in those that have it open: the
 *                                streams there look before each item, and while they wait for a word
 *    FAKE_CUDA_OPEN_205=1        opens of memory handles fail with 205 (CUDA_ERROR_MAP_FAILED)
 *    FAKE_CUDA_NO_VMM=1          cuMemCreate and what belongs to it are refused with 801, attributes 102 and 103 are 0
 *    FAKE_CUDA_DIRTY=1           new device memory holds NaN, not zeros
 *    FAKE_CUDA_MINOR=0           of the devices' compute capability 9.x
 *    FAKE_NVRTC_NEWEST=90        the newest architecture that NVRTC knows; the devices are sm_90
 */
#ifndef TESTS_FAKE_H
#define TESTS_FAKE_H

#include "gpu/cuda_api.h"
#include "shm/atomic.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FAKE_DEVICES 8
#define FAKE_ALLOCATIONS 512
#define FAKE_OPENERS 16
#define FAKE_CONTEXTS 512
#define FAKE_QUEUES 32
#define FAKE_CONTEXT_BYTES ((uint64_t)16 << 20)
#define FAKE_POISON 0xDB

#define FAKE_EXPORT __attribute__((visibility("default")))

struct fake_process {                   /* pid and start time: a pid is reused */
    int32_t pid;
    uint64_t start;
};

enum fake_kind { FAKE_PLAIN = 1, FAKE_MANAGED, FAKE_POOLED, FAKE_VMM };

struct fake_allocation {
    struct fake_process owner;          /* pid 0: none */
    uint32_t slot;                      /* the owner's number for it; the handle */
    int32_t fd;                         /* the owner's */
    int32_t device;
    bool is_freed;                      /* by its owner; it exists while a process has it open */
    bool is_dropped;                    /* FAKE_CUDA_DROP_DEAD: its owner is gone, and it is overwritten */
    uint64_t bytes;
    uint64_t serial;
    struct fake_process opener[FAKE_OPENERS];
};

struct fake_machine {
    uint64_t serial;
    uint64_t freed_while_open, opens, closes;
    struct fake_allocation allocation[FAKE_ALLOCATIONS];
    struct {
        struct fake_process owner;
        int32_t device;
    } context[FAKE_CONTEXTS];
};

struct fake_options {
    int devices, delay_us, open_ms, open_gate, version, queues;
    uint64_t memory_bytes;
    bool mig, exclusive, prohibited, no_ipc, no_stream_ops, no_host_register, no_read_only, lost_writes, dirty,
        blocking, same_open, drop_dead, open_205, no_vmm;
    bool reaches[FAKE_DEVICES][FAKE_DEVICES];
    int visible[FAKE_DEVICES];          /* physical devices, in this process's order */
    int visible_count;
};
extern struct fake_options fake_options;
extern struct fake_machine *fake_machine;

/* ---- machine.c ------------------------------------------------------------------------------- */

int fake_machine_open(void);                    /* 0, or -1 */
void fake_lock(void);                           /* the machine; removes entries of dead processes */
void fake_unlock(void);
struct fake_process fake_self(void);
bool fake_is_alive(const struct fake_process *process);
bool fake_same(const struct fake_process *a, const struct fake_process *b);
uint64_t fake_used_bytes(int device);           /* locked */
struct fake_allocation *fake_allocation_of(uint64_t serial);            /* locked; NULL: there is none */
/* Locked: enters a copy of it, with this process as the owner, if the device and the machine have room for it. */
unsigned fake_allocation_enter(const struct fake_allocation *allocation);

/* ---- api.c ----------------------------------------------------------------------------------- */

struct CUctx_st {
    int device;                                 /* physical */
    int users;
};
unsigned fake_ready(void);                      /* CUDA_SUCCESS after cuInit in this process */
unsigned fake_current(struct CUctx_st **context);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* The number that this process has for a physical device; -1: it does not see it. */
int fake_ordinal_of(int device);
/* Whether a device may access [address, address + bytes); written: for writing. */
bool fake_may_touch(uint64_t address, uint64_t bytes, bool written);
/* A mapping of vmm.c's; nothing may access it before fake_mapping_allow. */
void fake_mapping_add(uint64_t base, uint64_t bytes, uint64_t serial, int device);
void fake_mapping_allow(uint64_t base, bool readable, bool writable);
void fake_mapping_remove(uint64_t base);
void fake_dawdle(void);                         /* FAKE_CUDA_OPEN_MS and FAKE_CUDA_OPEN_GATE */
void fake_drop_dead(void);                      /* overwrites memory of owners that are gone, if that is switched on */
unsigned fake_begin(void);                      /* of a call that may synchronise with the device */

/* ---- capture.c ------------------------------------------------------------------------------- */

unsigned fake_unsafe(void);                     /* what a call returns that a capture may prohibit */

/* ---- queue.c --------------------------------------------------------------------------------- */

void fake_synchronise_all(void);                /* every stream of this process */
/* FAKE_CUDA_BLOCKING: waits for the streams of the current context's device. */
void fake_block(void);
typedef void (*fake_call_fn)(const void *argument);
/* Puts a call with a copy of the argument on the stream. */
unsigned fake_stream_call(struct CUstream_st *stream, fake_call_fn call, const void *argument, size_t bytes);

/* ---- cublas.c -------------------------------------------------------------------------------- */

float fake_tf32(float value);                   /* rounded to TF32 */
void *fake_new(size_t bytes);                   /* zeros; ends the process if there is no memory */
/* What handles of cuBLAS and cuDNN begin with. */
#define FAKE_CUBLAS 0x53414c42u
#define FAKE_CUDNN 0x4e4e4443u
struct fake_handle {
    unsigned library;                           /* 0: destroyed */
    struct CUctx_st *context;
    struct CUstream_st *stream;
};
bool fake_is_handle(const struct fake_handle *handle, unsigned library);        /* of the current context */
unsigned fake_handle_create(void *out, size_t bytes, unsigned library);
void fake_handle_destroy(struct fake_handle *handle);

#define DECLARE(name, arguments) FAKE_EXPORT unsigned name arguments;
BXI_CU_FUNCTIONS(DECLARE, DECLARE)
#undef DECLARE

#endif
