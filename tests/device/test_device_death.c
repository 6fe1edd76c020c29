/* SPDX-License-Identifier: MIT */
/*
 * Deaths while device tensors are on loan. Worker 0 owns, worker 1 borrows; one of them is killed by SIGKILL.
 *
 * What a dead owner had written can still be read; waits for it end with BX_E_PEER_DEAD. Leases, blocks and slabs of a
 * dead borrower come back, whatever its streams were doing.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

enum gate { OPEN = 0, KEPT, STARTED, BLOCKED };

#define COUNT 1000
#define LARGE (INT64_C(65) << 18)       /* i32: a slab of its own */
#define KEPT_MAX 2

static struct bx_tensor *kept[KEPT_MAX];
static int kept_count;

HARNESS_HANDLER(keep)
{
    kept[kept_count++] = bx_tensor_acquire(bx_read_tensor(args));
    harness_post(KEPT);
    return 0;
}

static bxi_a32 taken;                   /* worker 1: what reading returned, without its sign */

HARNESS_HANDLER(take)
{
    bxi_store_release(&taken, (uint32_t)-bx_tensor_read_on(bx_read_tensor(args), NULL));
    return 0;
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("keep", keep), HARNESS_INLINE("take", take),
                     HARNESS_INLINE("pins", device_pins));
    return 0;
}

/* ---- The owner dies ---------------------------------------------------------------------------- */

/* Lends one tensor that is written and one that never is, and dies while worker 1 waits for the latter. */
static void dies_owing(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *written = device_numbers(job, device, COUNT, 7), *unwritten = device_tensor(job, device, COUNT);
    void *stream = device_stream(job, device);

    device_wait(job, bx_gpu_stream(job, device));
    harness_await(OPEN, 1);
    device_gate(job, stream);
    HARNESS_EQ(bx_tensor_written_on(unwritten, stream), 0);
    device_send(job, "keep", written);
    device_send(job, "keep", unwritten);
    harness_await(STARTED, 1);
    while (harness_gate(BLOCKED) == 0)
        if (harness_call_i64(job, "worker1", "pins", 0) > 0)
            harness_post(BLOCKED);
    kill(getpid(), SIGKILL);
}

static struct bx_device borrow(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);

    harness_post(OPEN);
    harness_await(KEPT, 2);
    return device;
}

static void end_as_survivor(struct bx_job *job)
{
    int64_t wrong;

    while (bx_worker_is_alive(job, 0))
        sched_yield();
    wrong = device_wrong(kept[0], 7);
    if (!fake_has("FAKE_CUDA_DROP_DEAD"))       /* it may hold anything then, but reading it does no harm */
        HARNESS_EQ(wrong, 0);                   /* the written tensor can be read */
    HARNESS_EQ(bx_tensor_read_on(kept[0], NULL), 0);
    HARNESS_EQ(bx_tensor_read_on(kept[1], NULL), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "worker 'worker0' died before its tensor was written");
    bx_tensor_release(kept[0]);
    bx_tensor_release(kept[1]);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
}

/* A stream waits and is released; the host does not wait. */
static void streams_are_released(struct bx_job *job)
{
    void *stream = device_stream(job, borrow(job));

    HARNESS_EQ(bx_tensor_read_on(kept[1], stream), 0);
    harness_post(STARTED);
    harness_post(BLOCKED);
    device_wait(job, stream);
    end_as_survivor(job);
}

DEVICE_WORLD(device_death, releases_streams_that_wait_for_a_dead_owner, 60,
             (fake_skip_without_words("with events the host waits, no stream does"), DEVICE_ANY), .size = 2,
             .setup = setup, .dies = 1, .body = { dies_owing, streams_are_released });

/* The role releases the stream before it wants a lock, which a thread in the driver may hold: here it is the test's. */
static void streams_are_released_without_the_lock(struct bx_job *job)
{
    void *stream = device_stream(job, borrow(job));
    struct bxi_devices *devices = bxi_devices_of(job);

    HARNESS_EQ(bx_tensor_read_on(kept[1], stream), 0);
    harness_post(BLOCKED);              /* the owner asks nothing: a handler here would want the lock */
    pthread_mutex_lock(&devices->lock);
    harness_post(STARTED);
    device_wait(job, stream);
    pthread_mutex_unlock(&devices->lock);
    end_as_survivor(job);
}

DEVICE_WORLD(device_death, releases_streams_while_a_thread_has_the_lock, 30,
             (fake_skip_without_words("with events the host waits, no stream does"), DEVICE_ANY), .size = 2,
             .setup = setup, .dies = 1, .body = { dies_owing, streams_are_released_without_the_lock });

/* A thread waits in a copy, which ends only with the help of the role. */
static void copy_is_ended(struct bx_job *job, int64_t step)
{
    struct bx_tensor *host = NULL, *view = NULL;

    borrow(job);
    HARNESS_EQ(bx_tensor_slice(kept[1], 0, 0, COUNT, step, &view), 0);
    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 1, bx_tensor_shape(view), &host), 0);
    harness_post(STARTED);
    HARNESS_EQ(bx_tensor_copy_into(host, view), BX_E_PEER_DEAD);
    HARNESS_HAS(bx_error_text(), "worker 'worker0' died before its tensor was written");
    HARNESS_EQ(harness_gate(BLOCKED), 1);
    bx_tensor_release(host);
    bx_tensor_release(view);
    end_as_survivor(job);
}

static void copies_are_ended(struct bx_job *job)
{
    copy_is_ended(job, 1);
}

static void copies_of_views_are_ended(struct bx_job *job)
{
    copy_is_ended(job, 2);
}

DEVICE_WORLD(device_death, ends_a_copy_that_waits_for_a_dead_owner, 60, DEVICE_ANY, .size = 2, .setup = setup,
             .dies = 1, .body = { dies_owing, copies_are_ended });

DEVICE_WORLD(device_death, ends_a_copy_of_a_view_that_waits_for_a_dead_owner, 60, DEVICE_ANY, .size = 2, .setup = setup,
             .dies = 1, .body = { dies_owing, copies_of_views_are_ended });

struct copy {
    struct bx_tensor *to;
    int rc;
};

static void *copy_unwritten(void *context)
{
    struct copy *copy = context;

    copy->rc = bx_tensor_copy_into(copy->to, kept[1]);
    return NULL;
}

/* The release, without what the role does later: it has neither the lock nor has it told anybody of the death. */
static void released_copy_fails(struct bx_job *job)
{
    struct copy copy = { NULL, 0 };
    pthread_t thread;

    borrow(job);
    HARNESS_EQ(bx_tensor_create(job, BX_I32, 1, (int64_t[]){ COUNT }, &copy.to), 0);
    HARNESS_EQ(pthread_create(&thread, NULL, copy_unwritten, &copy), 0);
    device_await_pin(job);
    bxi_devices_peer_release(job, job->lend->peers[0]);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    HARNESS_EQ(copy.rc, BX_E_PEER_DEAD);
    bx_tensor_release(copy.to);
    harness_post(STARTED);
    harness_post(BLOCKED);
    end_as_survivor(job);
}

DEVICE_WORLD(device_death, fails_a_copy_that_was_released_before_the_death_is_handled, 60,
             (fake_skip_without_words("with events no word of a living owner is poisoned"), DEVICE_FAKE), .size = 2,
             .setup = setup, .dies = 1, .body = { dies_owing, released_copy_fails });

/* The host waits in place of a stream. */
static void waits_are_ended(struct bx_job *job)
{
    void *stream;

    setenv("FAKE_CUDA_NO_HOST_REGISTER", "1", 1);
    stream = device_stream(job, borrow(job));
    harness_post(STARTED);
    HARNESS_EQ(bx_tensor_read_on(kept[1], stream), BX_E_PEER_DEAD);
    end_as_survivor(job);
}

DEVICE_WORLD(device_death, ends_a_wait_of_the_host_for_a_dead_owner, 60, DEVICE_FAKE, .size = 2, .setup = setup,
             .dies = 1, .body = { dies_owing, waits_are_ended });

static void handler_is_ended(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(OPEN);
    device_await_pin(job);
    harness_post(BLOCKED);
    while (bxi_load_acquire(&taken) == 0)
        sched_yield();
    HARNESS_EQ(-(int)bxi_load_acquire(&taken), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
}

/* With events a handler waits in the thread that has the role, which alone learns of deaths. */
DEVICE_TEST(device_death, ends_a_wait_of_a_handler_that_has_the_role, 30, DEVICE_FAKE, .size = 2, .setup = setup,
            .dies = 1, .body = { NULL, handler_is_ended }, .env = { "BX_GPU_ORDER=events" })
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *tensor = device_tensor(job, device, COUNT);
    void *stream = device_stream(job, device);
    struct bx_msg *args = bx_msg_create(0);
    struct bx_future *future;

    harness_await(OPEN, 1);
    device_gate(job, stream);
    HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
    HARNESS_EQ(bx_msg_put_tensor(args, tensor), 0);
    HARNESS_EQ(bx_rpc_async(job, "worker1", "take", args, NULL, &future), 0);
    harness_await(BLOCKED, 1);
    kill(getpid(), SIGKILL);
}

static void outlives_one_that_was_cut_off(struct bx_job *job)
{
    void *stream = device_stream(job, borrow(job));

    HARNESS_EQ(bx_tensor_read_on(kept[1], stream), 0);
    harness_post(STARTED);
    while (bx_worker_is_alive(job, 0)) {
        bxi_event(job->run, BXI_EVENT_SCAN);
        sched_yield();
    }
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    harness_post(BLOCKED);
    device_wait(job, stream);
    bx_tensor_release(kept[0]);
    bx_tensor_release(kept[1]);
    HARNESS_EQ(bx_job_serve(job), BX_E_CORRUPT);
}

/* Worker 0 is cut off and dies afterwards: its words are poisoned then. */
DEVICE_TEST(device_death, releases_streams_that_wait_for_a_worker_that_was_cut_off, 60,
            (fake_skip_without_words("with events the host waits, no stream does"), DEVICE_ANY), .size = 2,
            .setup = setup, .dies = 1, .body = { NULL, outlives_one_that_was_cut_off })
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *tensor = device_tensor(job, device, COUNT);
    void *stream = device_stream(job, device);

    harness_await(OPEN, 1);
    device_gate(job, stream);
    HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
    device_send(job, "keep", tensor);
    device_send(job, "keep", tensor);
    harness_await(STARTED, 1);
    /* Invalid data: worker 1 cuts it off; it lives until that has been checked. */
    bxi_store_release(&job->control->header.state, 77);
    harness_await(BLOCKED, 1);
    kill(getpid(), SIGKILL);
}

/* ---- The borrower dies --------------------------------------------------------------------------- */

/* Holds one tensor, and has released another behind a stream that never gets that far. */
static void dies_holding(struct bx_job *job)
{
    void *stream = device_stream(job, borrow(job));

    HARNESS_EQ(bx_tensor_read_on(kept[1], stream), 0);
    device_gate(job, stream);
    bx_tensor_release(kept[1]);
    harness_post(STARTED);
    harness_await(BLOCKED, 1);
    kill(getpid(), SIGKILL);
}

DEVICE_TEST(device_death, takes_everything_back_from_a_dead_borrower, 60, DEVICE_ANY, .size = 2, .setup = setup,
            .dies = 2, .body = { [1] = dies_holding })
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *first = device_tensor(job, device, LARGE), *second = device_tensor(job, device, LARGE);
    uint64_t used = harness_counter(job, "gpu_bytes_used"), held = harness_counter(job, "gpu_bytes");
    struct bx_loans loans = { 0 };

    harness_await(OPEN, 1);
    device_send(job, "keep", first);
    device_send(job, "keep", second);
    bx_tensor_release(first);
    bx_tensor_release(second);
    harness_await(STARTED, 1);
    HARNESS_EQ(bx_loans_wait(job, 1, 1, BX_FOREVER), 0);
    bxi_devices_poll(job);
    HARNESS_EQ(harness_counter(job, "gpu_bytes_used"), used);  /* one on loan, one waiting for a point */
    harness_post(BLOCKED);
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
    HARNESS_EQ(bx_loans_wait(job, -1, 0, BX_FOREVER), 0);
    HARNESS_EQ(bx_job_loans(job, 1, &loans), 0);
    HARNESS_EQ(loans.taken_back, 1);
    while (harness_counter(job, "gpu_bytes_used") != used - 2 * LARGE * sizeof(int32_t))
        bxi_devices_poll(job);
    while (harness_counter(job, "gpu_bytes") == held) {         /* no process has those slabs open: one is freed */
        bxi_devices_poll(job);
        sched_yield();
    }
}

/* ---- The owner is stopped ---------------------------------------------------------------------- */

/* Lends a tensor that is never written, and stops. */
static void stops_owing(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *unwritten = device_tensor(job, device, COUNT);
    void *stream = device_stream(job, device);

    harness_await(OPEN, 1);
    device_gate(job, stream);
    HARNESS_EQ(bx_tensor_written_on(unwritten, stream), 0);
    device_send(job, "keep", unwritten);
    harness_await(STARTED, 1);
    kill(getpid(), SIGSTOP);
}

static void leaves_in_time(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device);
    uint64_t begin_ns;

    harness_leaves_by_itself();
    harness_post(OPEN);
    harness_await(KEPT, 1);
    HARNESS_EQ(bx_tensor_read_on(kept[0], stream), 0);
    bx_tensor_release(kept[0]);
    harness_post(STARTED);
    begin_ns = bxi_now_ns();
    HARNESS_EQ(bx_job_shutdown(job, 500000000), BX_E_TIMEOUT);
    bx_job_destroy(job);
    HARNESS_CHECK(bxi_now_ns() - begin_ns < UINT64_C(15000000000));
    harness_signal(0, SIGKILL);
}

DEVICE_WORLD(device_death, is_not_needed_to_leave_beside_a_stopped_owner, 60,
             (fake_skip_without_words("with events the host waits, no stream does"), DEVICE_FAKE), .size = 2,
             .setup = setup, .dies = 1, .body = { stops_owing, leaves_in_time });

static void *copies(void *to)
{
    (void)bx_tensor_copy_into(to, kept[0]);
    return to;
}

/* A thread that is in its copy to memory of the arena or not, which waits for the owner. */
static pthread_t begin_copy(struct bx_job *job, struct bx_job *memory)
{
    struct bx_tensor *host = NULL;
    pthread_t thread;

    harness_leaves_by_itself();
    device_open(job, 0);
    harness_post(OPEN);
    harness_await(KEPT, 1);
    HARNESS_EQ(bx_tensor_create(memory, BX_I32, 1, (int64_t[]){ COUNT }, &host), 0);
    HARNESS_EQ(pthread_create(&thread, NULL, copies, host), 0);
    device_await_pin(job);
    harness_post(STARTED);
    return thread;
}

/* The thread is still in its copy when the process ends. */
static void leaves_a_thread_behind(struct bx_job *job)
{
    uint64_t begin_ns;

    begin_copy(job, job);
    begin_ns = bxi_now_ns();
    HARNESS_EQ(bx_job_shutdown(job, 500000000), BX_E_TIMEOUT);
    HARNESS_CHECK(bxi_now_ns() - begin_ns < UINT64_C(15000000000));
    harness_signal(0, SIGKILL);
}

DEVICE_WORLD(device_death, is_not_needed_to_leave_while_a_thread_waits_for_a_stopped_owner, 60, DEVICE_FAKE,
             .size = 2, .setup = setup, .dies = 1, .body = { stops_owing, leaves_a_thread_behind });

/* As stops_owing, and writes the tensor when it goes on. */
static void goes_on(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *late = device_tensor(job, device, COUNT);
    void *stream = device_stream(job, device);
    uint64_t *gate;

    harness_leaves_by_itself();
    harness_await(OPEN, 1);
    gate = device_gate(job, stream);
    HARNESS_EQ(bx_tensor_written_on(late, stream), 0);
    device_send(job, "keep", late);
    harness_await(STARTED, 1);
    kill(getpid(), SIGSTOP);
    device_open_gate(gate);
    harness_await(BLOCKED, 1);
    bx_tensor_release(late);
    (void)bx_job_shutdown(job, 500000000);
}

/* The thread's copy ends when the job has been destroyed. */
static void is_destroyed_before_a_thread_comes_back(struct bx_job *job)
{
    pthread_t thread = begin_copy(job, NULL);

    usleep(100000);                     /* until the owner is stopped */
    HARNESS_EQ(bx_job_shutdown(job, 500000000), BX_E_TIMEOUT);
    bx_job_destroy(job);
    harness_signal(0, SIGCONT);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    harness_post(BLOCKED);
}

DEVICE_WORLD(device_death, is_not_needed_for_a_thread_to_come_back_after_the_job_is_gone, 60, DEVICE_FAKE,
             .size = 2, .setup = setup, .body = { goes_on, is_destroyed_before_a_thread_comes_back });
