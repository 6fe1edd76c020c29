/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of device tensors: worlds as in harness.h whose workers have a CUDA driver, the fake one of
 * tests/fake_cuda/, or the system's where BX_TEST_REAL_GPU is set.
 *
 *     DEVICE_TEST(device, does_this, 60, DEVICE_ANY, .size = 2, .setup = setup)
 *     {
 *         struct bx_device device = device_open(job, 0);                          // in worker 0
 *         struct bx_tensor *tensor = device_numbers(job, device, 1000, 7);      // 7, 8, 9, ...
 *         ...
 *     }
 *
 * device_run checks more than harness_run: with the fake, no memory was freed while a process had it open, and the
 * devices have as much free memory as before.
 */
#ifndef TESTS_DEVICE_FIXTURE_H
#define TESTS_DEVICE_FIXTURE_H

#include "tests/harness/harness.h"

#include "gpu/inside.h"
#include "device/device.h"
#include "lend/dlpack_abi.h"
#include "rpc/rpc.h"

enum device_driver { DEVICE_ANY, DEVICE_FAKE };

/* Chooses the driver; call it first in every test. FAKE: for what only the fake can be configured for. */
void device_world(enum device_driver driver);
bool device_is_real(void);
void device_run(const struct harness_world *world);
/* As HARNESS_TEST and HARNESS_WORLD. */
#define DEVICE_TEST(suite, name, timeout_s, driver, ...) \
    static void suite##_##name##_in_worker_0(struct bx_job *job); \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        struct harness_world world = { __VA_ARGS__ }; \
\
        world.body[0] = suite##_##name##_in_worker_0; \
        device_world(driver); \
        device_run(&world); \
    } \
    static void suite##_##name##_in_worker_0(__attribute__((unused)) struct bx_job *job)
#define DEVICE_WORLD(suite, name, timeout_s, driver, ...) \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        device_world(driver); \
        device_run(&(struct harness_world){ __VA_ARGS__ }); \
    } \
    _Static_assert((timeout_s) > 0, "a test has a time limit")
void device_check_machine(void);                /* the check of the machine in device_run */
uint64_t device_figure(const char *name, int device);   /* in a worker: of the fake machine */

/* ---- In workers ------------------------------------------------------------------------------- */

struct bx_device device_open(struct bx_job *job, int ordinal);
struct bx_tensor *device_tensor(struct bx_job *job, struct bx_device device, int64_t count);   /* i32 */
struct bx_tensor *device_numbers(struct bx_job *job, struct bx_device device, int64_t count, int32_t first);
void device_put_numbers(struct bx_tensor *tensor, int32_t first);       /* from the host, and waits */
/* How many elements of an i32 tensor, in the order of memory, are not numbered from `first`. */
int64_t device_wrong(struct bx_tensor *tensor, int32_t first);
struct bx_msg *device_msg(struct bx_tensor *tensor, int64_t value);     /* the i64 first */
/* Calls a function of worker 1 with it. */
void device_send(struct bx_job *job, const char *function, struct bx_tensor *tensor);
uint64_t device_copied(const struct bx_job *job);                       /* bytes, the sum of all counters of copies */

/* Work that the library does not know of, on a stream of the test's own. */
void *device_stream(struct bx_job *job, struct bx_device device);
void device_set(struct bx_job *job, void *stream, struct bx_tensor *tensor, unsigned char value);
/* Copies without waiting for other streams, and returns when that is done. How many bytes are not `value`. */
int64_t device_peek_wrong(struct bx_job *job, void *stream, struct bx_tensor *tensor, unsigned char value);
void device_wait(struct bx_job *job, void *stream);
uint64_t *device_gate(struct bx_job *job, void *stream);        /* later work on it waits until *gate is 1 */
void device_open_gate(uint64_t *gate);

/* A handler: how many of this worker's threads wait for a GPU. */
int device_pins(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
void device_await_pin(struct bx_job *job);      /* until one of this worker does */

/* A body: opens device 0, posts gate 0 and serves until another worker shuts down. */
void device_serves(struct bx_job *job);
/* Opens device 0, and waits for so many posts to gate 0. */
struct bx_device device_begin(struct bx_job *job, uint32_t others);

/* Memory of another library, as a DLPack struct of i32 elements, whose deleter counts. */
struct device_foreign {
    struct bxi_dl_managed managed;
    int64_t shape[1];
    bxi_a32 ends;
};
struct device_foreign device_foreign_at(uint64_t address, int64_t elements);
/* In memory of a function of the driver, such as "cuMemAlloc_v2". */
struct device_foreign *device_make_foreign(struct bx_job *job, const char *allocator, int64_t elements);
int device_take(struct device_foreign *foreign, int64_t stream, struct bx_tensor **tensor);

/* A worker that looks at what it borrows: the setup of all workers, and a call that sends an i32 tensor, numbered from
 * `first`. The borrower checks it and leaves what it saw in these values (harness_load). */
enum device_value { DEVICE_INDEX = 0, DEVICE_STAGED, DEVICE_BYTES_LEFT, DEVICE_READER };
int device_setup(struct bx_job *job);
int device_look_at(struct bx_job *job, const char *to, struct bx_tensor *tensor, int64_t first);

#endif
