/* SPDX-License-Identifier: MIT */
/*
 * Shared by the tests of gpu/: processes that are forked before any of them opens a GPU, memory between them, and the
 * driver: a real one where there is one, else the fake of tests/fake_cuda. Tests of what only the fake can be
 * configured for (MIG, an old driver, no peer access) always use the fake.
 *
 *     static void owner(void) { gpu_start_beside(0, 1); ... gpu_post(0); gpu_await(1, 1); gpu_end(); }
 *     static void borrower(void) { gpu_start_beside(1, 0); gpu_await(0, 1); ... gpu_post(1); gpu_end(); }
 *
 *     GPU_PAIR(gpu_share, does, 60, GPU_ANY, owner, borrower);
 */
#ifndef TESTS_GPU_FIXTURE_H
#define TESTS_GPU_FIXTURE_H

#include "tests/harness/child.h"
#include "gpu/inside.h"

#define GPU_PROCESSES 4
#define GPU_GATES 32
#define GPU_VALUES 64
#define GPU_MIB ((uint64_t)1 << 20)

enum gpu_driver { GPU_ANY, GPU_FAKE };

struct gpu_shared {
    struct bxi_gpu_region region[GPU_PROCESSES];
    struct bxi_gpu_held held[GPU_PROCESSES][GPU_PROCESSES];     /* [borrower][owner] */
    bxi_a32 gate[GPU_GATES];
    bxi_a32 is_refused;             /* the order that the test forces, for CUDA_DEVICE_MAX_CONNECTIONS is below 4 */
    bxi_a32 has_failed;             /* a check of one of the processes: the others wait for no gate any more */
    bxi_a64 value[GPU_VALUES];
    struct bxi_gpu_ref ref[GPU_VALUES];
    struct bxi_gpu_point point[GPU_VALUES];
};

typedef void (*gpu_fn)(void);

extern struct gpu_shared *gpu_shared;               /* writable; a process writes its own part only */
extern const struct gpu_shared *gpu_read_only;      /* the same, as peers map it */
extern struct bxi_gpu *gpu;
extern struct bxi_gpu_device *gpu_device;
extern struct bxi_gpu_lane *gpu_lane;
extern struct bxi_gpu_peer *gpu_peer[GPU_PROCESSES];
extern int gpu_rank;
extern enum bxi_gpu_order gpu_order;                /* of what a process opens; at first the trial chooses it */
extern char gpu_map_text[512];                      /* the sentence of the last gpu_try_map that failed */

/* Chooses the driver and makes the shared memory; call it first in every test. */
void gpu_world(enum gpu_driver driver);
const char *gpu_driver_path(void);                  /* NULL: the system's */
bool gpu_fake(void);

/* Forks one process for each body, waits for all, and asserts that they exited with 0, that no memory was freed while
 * a process had it open, and that the devices have as much free memory as before. */
void gpu_run(int count, const gpu_fn *body);
/* gpu_world, and one, two or three of them. */
void gpu_alone(enum gpu_driver driver, gpu_fn body);
void gpu_pair(enum gpu_driver driver, gpu_fn first, gpu_fn second);
void gpu_three(enum gpu_driver driver, gpu_fn first, gpu_fn second, gpu_fn third);
/* A test of two processes. */
#define GPU_PAIR(suite, name, timeout_s, driver, first, second) \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        gpu_pair(driver, first, second); \
    } \
    _Static_assert((timeout_s) > 0, "a test has a time limit")
/* A test of one process: what follows is its body. */
#define GPU_ALONE(suite, name, timeout_s, driver) \
    static void suite##_##name##_alone(void); \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        gpu_alone(driver, suite##_##name##_alone); \
    } \
    static void suite##_##name##_alone(void)
/* The first is killed when a process has posted to `ready`; `killed` is posted when it is dead. */
void gpu_run_killed(gpu_fn dying, gpu_fn survivor, int ready, int killed);
/* The same in steps; gpu_kill reaps the process that it kills. */
void gpu_fork(int rank, gpu_fn body);
void gpu_kill(int rank);
_Noreturn void gpu_wait_for_the_end(void);          /* in the process that is killed */
void gpu_stop(int rank);                            /* SIGSTOP; gpu_kill ends it */
void gpu_join(int rank);
void gpu_check_machine(void);
void gpu_export_by_default(void);                   /* whatever the environment of the whole run has */

/* In a process: opens the GPU, a device and a lane; then a peer. */
void gpu_start(int rank);
void gpu_start_on(int rank, int ordinal);
struct bxi_gpu_peer *gpu_meet(int rank);
void gpu_start_beside(int rank, int other);
void gpu_meet_lender(int lent);                     /* process 1 meets process 0, and waits for its post to `lent` */
/* Stops the process whose pid is value 0, with a pause until its threads have stopped too; harness_kill goes on. */
pid_t gpu_stop_lender(void);
struct bxi_gpu_peer *gpu_try_meet(int rank, int *rc);
/* One of two processes, ranks 0 and 1: opens device 0 and the other; returns when both have posted that to gate 0. */
void gpu_start_pair(int rank);
void gpu_end(void);                                 /* closes peers, lane, GPU */
void gpu_end_together(int gate);                    /* when both of two processes are at their ends */
void gpu_end_lending(struct bxi_gpu_block *block, int gate);    /* when the borrower has posted; frees the block */
int gpu_reaches(int rank);                          /* whether it can map memory of gpu_device */
int gpu_opens(int rank);                            /* the same of memory that is exported by a handle */
void gpu_forget(void);                              /* forgets these handles, after the test's own bxi_gpu_close */

/* Work on a lane, through the driver that gpu/ has loaded. */
void gpu_fill(struct bxi_gpu_lane *lane, uint64_t address, unsigned char value, uint64_t bytes);
bool gpu_holds(struct bxi_gpu_lane *lane, uint64_t address, unsigned char value, uint64_t bytes);
struct bxi_gpu_block *gpu_block(uint64_t bytes);
/* Names the block in gpu_shared->ref[index], ready behind the work on gpu_lane. */
void gpu_lend(const struct bxi_gpu_block *block, uint64_t bytes, int index);
/* Fills the block, lends it as gpu_shared->ref[0] and waits until it is ready. So the ref has no point, and the slab
 * with its word is not mapped. */
void gpu_lend_ready(const struct bxi_gpu_block *block, unsigned char value);
/* A word of this host, not 0 when it may go on, for which all later work on the stream waits. */
bxi_a64 *gpu_gate(struct CUstream_st *stream);
/* Begins to map; the last waits until it is mapped or has failed, and returns the code. */
void gpu_map_begin(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref);
bool gpu_map_has_ended(void);
int gpu_map_end(void);
/* Maps, and waits until it is mapped; the second also gets. */
int gpu_try_map(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref);
uint64_t gpu_borrow(struct bxi_gpu_peer *peer, const struct bxi_gpu_ref *ref, struct bxi_gpu_map **map);
struct bxi_gpu_counters gpu_counters(void);
void gpu_poll_until_nothing_is_left(void);
void gpu_wait_passed(struct bxi_gpu_peer *peer, const struct bxi_gpu_point *point);
uint64_t gpu_used(int ordinal);                     /* bytes of the device that are in use, by any process */
/* Fails if fewer or more are in use; on a real device, where programs beside the test count too, it prints them. */
void gpu_compare_used(int ordinal, uint64_t least, uint64_t most);
uint64_t gpu_figure(const char *name, int device);  /* of the fake machine; 0 on a real one */

/* GPU_CHUNKS allocations of 2 MiB behind one another, made for export as those types say, as PyTorch's expandable
 * segments; the last on device `last`. */
#define GPU_CHUNKS 3
extern bxi_a32 gpu_freed;                           /* how often this was called, which foreign memory may have */
void gpu_count_freed(void *unused);
uint64_t gpu_segment(unsigned types, int last);
void gpu_free_segment(uint64_t base);

void gpu_post(int gate);
void gpu_await(int gate, uint32_t least);           /* ends this process if another has failed */
void gpu_store(int index, uint64_t value);
uint64_t gpu_load(int index);

/* Assertions for processes that Criterion does not know. */
_Noreturn void gpu_failed(const char *file, int line, const char *text);
void gpu_eq(const char *file, int line, const char *text, long long actual, long long expected);
void gpu_says(const char *file, int line, const char *part);

#define GPU_CHECK(condition) ((condition) ? (void)0 : gpu_failed(__FILE__, __LINE__, #condition " is not so"))
#define GPU_EQ(actual, expected) gpu_eq(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(expected))
#define GPU_SAYS(part) gpu_says(__FILE__, __LINE__, part)

#endif
