/* SPDX-License-Identifier: MIT */
/*
 * Device tensors and streams: which stream waits for which, when memory is reused, and that a thread that waits for a
 * GPU blocks no other.
 *
 * No test depends on durations: a gate is a wait for a word of the host, put on a stream before the work that must be
 * late (device_gate). Worker 0 owns, worker 1 borrows; the library's background thread serves while the bodies check
 * what their handlers kept.
 */
#include "device_fixture.h"
#include "tests/gpu/fake_library.h"

enum gate { OPEN = 0, KEPT, STARTED, ONE, LATE, RELEASED, FINISHED };

#define LARGE (INT64_C(10) << 20)       /* i32: 40 of a slab's 64 MiB */
#define BYTES 4096

static struct bx_tensor *kept;          /* worker 1: the last tensor that arrived */

/* ---- Handlers of worker 1 --------------------------------------------------------------------- */

HARNESS_HANDLER(keep)
{
    kept = bx_tensor_acquire(bx_read_tensor(args));
    harness_post(KEPT);
    return 0;
}

HARNESS_HANDLER(take)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    return bx_tensor_read_on(tensor, NULL);
}

HARNESS_HANDLER(drop)
{
    return 0;
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("keep", keep), HARNESS_INLINE("take", take), HARNESS_INLINE("drop", drop),
                     HARNESS_INLINE("pins", device_pins));
    return 0;
}

static struct bx_tensor *bytes_tensor(struct bx_job *job, struct bx_device device)
{
    return device_tensor(job, device, BYTES / (int64_t)sizeof(int32_t));
}

/* ---- Reading after writing --------------------------------------------------------------------- */

static void reads_early(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device), *other = device_stream(job, device);

    harness_post(OPEN);
    harness_await(KEPT, 1);
    /* Without read_on a stream overtakes the owner's. */
    HARNESS_EQ(device_peek_wrong(job, other, kept, 0x33), BYTES);
    HARNESS_EQ(device_peek_wrong(job, other, kept, 0x11), 0);
    HARNESS_EQ(bx_tensor_read_on(kept, stream), 0);
    harness_post(STARTED);
    HARNESS_EQ(device_peek_wrong(job, stream, kept, 0x33), 0);
    bx_tensor_release(kept);
    harness_post(RELEASED);
}

DEVICE_TEST(device_order, makes_only_the_reader_wait_for_a_slow_writer, 60,
            (fake_skip_without_words("with events the host waits, no stream does"), DEVICE_ANY), .size = 2,
            .setup = setup, .body = { NULL, reads_early })
{
    struct bx_device device = device_open(job, 0);
    OWN(tensor) *tensor = bytes_tensor(job, device);
    void *stream = device_stream(job, device);
    uint64_t *gate;

    harness_await(OPEN, 1);
    device_set(job, stream, tensor, 0x11);
    device_wait(job, stream);
    gate = device_gate(job, stream);
    device_set(job, stream, tensor, 0x33);
    HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
    device_send(job, "keep", tensor);          /* answered, although nothing is written yet */
    harness_await(STARTED, 1);
    device_open_gate(gate);
    harness_await(RELEASED, 1);
}

/* The same with each order, and with a tensor that has no point of its own. */
static void writes_on_its_own_stream(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    OWN(tensor) *tensor = bytes_tensor(job, device);
    void *stream = bx_gpu_stream(job, device);

    harness_await(OPEN, 1);
    HARNESS_CHECK(stream != NULL);
    for (int i = 1; i <= 20; i++) {
        device_set(job, stream, tensor, (unsigned char)i);
        device_send(job, "keep", tensor);
        harness_await(RELEASED, (uint32_t)i);
    }
}

static void reads_each(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device);

    harness_post(OPEN);
    for (int i = 1; i <= 20; i++) {
        harness_await(KEPT, (uint32_t)i);
        HARNESS_EQ(bx_tensor_read_on(kept, stream), 0);
        HARNESS_EQ(device_peek_wrong(job, stream, kept, (unsigned char)i), 0);
        bx_tensor_release(kept);
        harness_post(RELEASED);
    }
}

static void run_order(const char *order)
{
    device_world(DEVICE_FAKE);
    setenv("BX_GPU_ORDER", order, 1);
    device_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { writes_on_its_own_stream, reads_each } });
}

Test(device_order, holds_with_words_in_host_memory, .timeout = 60) { run_order("host"); }
Test(device_order, holds_with_events, .timeout = 60) { run_order("events"); }

/* ---- Reuse of memory --------------------------------------------------------------------------- */

/* A returned block that no stream reads is handed out next. While a stream of the borrower may still read it, it is
 * not, even if the borrower has released it. */
static void reuses(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    OWN(tensor) *next = NULL, *last = NULL;
    struct bx_tensor *tensor = device_tensor(job, device, LARGE);
    const void *place = bx_tensor_data(tensor);
    void *stream = device_stream(job, device);
    uint64_t used;

    harness_await(OPEN, 1);
    device_send(job, "drop", tensor);
    bx_tensor_release(tensor);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);
    device_wait(job, bx_gpu_stream(job, device));       /* it was lent behind that stream's work */
    tensor = device_tensor(job, device, LARGE);
    HARNESS_CHECK(bx_tensor_data(tensor) == place);

    device_set(job, stream, tensor, 0x11);
    HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
    device_send(job, "keep", tensor);
    bx_tensor_release(tensor);
    harness_await(LATE, 1);
    HARNESS_EQ(bx_loans_wait(job, 1, 0, BX_FOREVER), 0);       /* the lease is back; the stream has not got that far */
    next = device_tensor(job, device, LARGE);
    HARNESS_CHECK(bx_tensor_data(next) != place);
    device_set(job, stream, next, 0x22);
    device_wait(job, stream);
    harness_post(STARTED);
    harness_await(ONE, 1);              /* one of its two streams has passed */
    last = device_tensor(job, device, LARGE);
    HARNESS_CHECK(bx_tensor_data(last) != place && bx_tensor_data(last) != bx_tensor_data(next));
    used = harness_counter(job, "gpu_bytes_used");
    harness_post(STARTED);
    while (harness_counter(job, "gpu_bytes_used") == used)      /* until the other has too */
        bxi_devices_poll(job);
    HARNESS_EQ(harness_counter(job, "gpu_bytes_used"), used - LARGE * sizeof(int32_t));
}

static void reads_late(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device), *other = device_stream(job, device);
    uint64_t *gate, *other_gate;
    struct bx_tensor *view = NULL;

    harness_post(OPEN);
    harness_await(KEPT, 1);
    HARNESS_EQ(bx_tensor_slice(kept, 0, 0, BYTES, 1, &view), 0);
    HARNESS_EQ(bx_tensor_read_on(kept, stream), 0);
    HARNESS_EQ(bx_tensor_read_on(view, other), 0);
    gate = device_gate(job, stream);
    other_gate = device_gate(job, other);
    bx_tensor_release(kept);
    HARNESS_EQ(bx_tensor_read_on(view, NULL), 0);
    HARNESS_EQ(device_peek_wrong(job, bx_gpu_stream(job, device), view, 0x11), 0);
    bx_tensor_release(view);            /* the last reference: the lease goes back */
    harness_post(LATE);
    harness_await(STARTED, 1);
    device_open_gate(gate);
    device_wait(job, stream);           /* which does not wait for the other */
    harness_post(ONE);
    harness_await(STARTED, 2);
    device_open_gate(other_gate);
}

DEVICE_WORLD(device_order, reuses_memory_when_its_readers_have_passed, 60,
             (fake_skip_few_queues("the test uses a stream that shares a queue with one that it holds up"),
              fake_skip_under("FAKE_CUDA_BLOCKING", "it uses memory before it ends waits of a peer's streams"),
              DEVICE_ANY), .size = 2, .setup = setup, .body = { reuses, reads_late });

/* Own work is waited for too: an announced write, a read, a copy on the job's stream. */
DEVICE_TEST(device_order, waits_for_own_work_too_before_memory_is_reused, 60,
            (fake_skip_under("FAKE_CUDA_BLOCKING", "it allocates before it ends a wait of one of its streams"),
             DEVICE_ANY), .size = 2, .setup = setup, .body = { NULL, device_serves })
{
    struct bx_device device = device_open(job, 0);
    void *stream = device_stream(job, device);

    for (int i = 0; i < 3; i++) {
        struct bx_tensor *tensor = device_tensor(job, device, LARGE), *copy = NULL, *next;
        const void *place = bx_tensor_data(tensor);
        void *late = i < 2 ? stream : bx_gpu_stream(job, device);
        uint64_t *gate = device_gate(job, late);

        if (i == 0)
            HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
        else if (i == 1)
            HARNESS_EQ(bx_tensor_read_on(tensor, stream), 0);
        else
            HARNESS_EQ(bx_tensor_copy(job, tensor, &copy), 0);
        bx_tensor_release(tensor);
        next = device_tensor(job, device, LARGE);
        HARNESS_CHECK(bx_tensor_data(next) != place);
        bx_tensor_release(next);
        device_open_gate(gate);
        device_wait(job, late);
        bx_tensor_release(copy);
    }
}

/* ---- A thread that waits for a GPU blocks no other --------------------------------------------- */

static void opens_the_gate_in_the_end(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    OWN(tensor) *tensor = bytes_tensor(job, device);
    void *stream = device_stream(job, device);
    uint64_t *gate;

    harness_await(OPEN, 2);
    gate = device_gate(job, stream);
    device_set(job, stream, tensor, 0);
    HARNESS_EQ(bx_tensor_written_on(tensor, stream), 0);
    device_send(job, "keep", tensor);
    harness_await(LATE, 1);             /* worker 2 has been served meanwhile */
    device_open_gate(gate);
    harness_await(FINISHED, 1);
}

static void copies_what_is_late(struct bx_job *job)
{
    struct bx_tensor *host = NULL;

    device_open(job, 0);
    harness_post(OPEN);
    harness_await(KEPT, 1);
    HARNESS_EQ(bx_tensor_create(NULL, BX_I32, 1, bx_tensor_shape(kept), &host), 0);
    memset(bx_tensor_data_mut(host), 0xff, BYTES);
    harness_post(STARTED);
    HARNESS_EQ(bx_tensor_copy_into(host, kept), 0);
    HARNESS_EQ(harness_gate(LATE), 1);
    for (int i = 0; i < BYTES; i++)
        HARNESS_EQ(((const char *)bx_tensor_data(host))[i], 0);
    bx_tensor_release(host);
    bx_tensor_release(kept);
    harness_post(FINISHED);
}

static void is_served_meanwhile(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    struct bx_tensor *tensor = device_numbers(job, device, 100, 1);

    harness_post(OPEN);
    harness_await(STARTED, 1);
    while (harness_call_i64(job, "worker1", "pins", 0) == 0)
        ;
    device_send(job, "drop", tensor);          /* mapped meanwhile, and given back */
    bx_tensor_release(tensor);
    harness_post(LATE);
}

DEVICE_WORLD(device_order, serves_others_while_a_thread_waits_in_a_copy, 60,
             (fake_skip_under("FAKE_CUDA_BLOCKING", "a slab is mapped before the wait of a stream ends"), DEVICE_ANY),
             .size = 3, .setup = setup,
             .body = { opens_the_gate_in_the_end, copies_what_is_late, is_served_meanwhile });

/* The probe takes as long as the delays of streams; tensors on the other device are made meanwhile. */
static void *opens_another(void *job)
{
    device_open(job, 1);
    return NULL;
}

static uint32_t open_count(struct bxi_devices *devices)
{
    uint32_t count;

    pthread_mutex_lock(&devices->lock);
    count = devices->count;
    pthread_mutex_unlock(&devices->lock);
    return count;
}

DEVICE_TEST(device_order, makes_tensors_while_another_device_is_opened, 60, DEVICE_FAKE, .size = 2, .setup = setup)
{
    struct bx_device device;
    int meanwhile = 0;
    pthread_t thread;

    setenv("FAKE_CUDA_DELAY_US", "200000", 1);
    device = device_open(job, 0);
    HARNESS_EQ(pthread_create(&thread, NULL, opens_another, job), 0);
    while (open_count(bxi_devices_of(job)) == 1) {
        bool probes = device_figure("used", 1) >= ((uint64_t)16 + 64) << 20;      /* a context and a slab */

        bx_tensor_release(device_tensor(job, device, 1));
        meanwhile += probes && open_count(bxi_devices_of(job)) == 1;
    }
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    HARNESS_CHECK(meanwhile > 10);
}

static void *releases(void *context)
{
    bx_tensor_release(kept);
    return context;
}

/* Two streams read it, and there is no third stream on which the two could be joined. */
static void has_no_stream_left(struct bx_job *job)
{
    struct bx_device device = device_open(job, 0);
    struct bxi_devices *devices = bxi_devices_of(job);
    struct bx_tensor *own = bytes_tensor(job, device);
    void *first = device_stream(job, device), *second = device_stream(job, device);
    uint64_t *gate;
    pthread_t thread;

    harness_post(OPEN);
    harness_await(KEPT, 1);
    gate = device_gate(job, first);
    HARNESS_EQ(bx_tensor_read_on(kept, first), 0);
    HARNESS_EQ(bx_tensor_read_on(kept, second), 0);
    pthread_mutex_lock(&devices->lock);
    devices->joining = BXI_NO_STREAM;           /* as if there had been no lane for it */
    pthread_mutex_unlock(&devices->lock);
    while (devices->stream_count < BXI_GPU_LANES)
        HARNESS_EQ(bx_tensor_written_on(own, device_stream(job, device)), 0);
    HARNESS_EQ(pthread_create(&thread, NULL, releases, NULL), 0);
    device_await_pin(job);
    device_open_gate(gate);
    HARNESS_EQ(pthread_join(thread, NULL), 0);
    bx_tensor_release(own);
    harness_post(RELEASED);
}

DEVICE_TEST(device_order, blocks_no_other_thread_while_the_return_of_a_loan_waits, 60,
            (fake_skip_under("FAKE_CUDA_BLOCKING", "it makes streams before it ends a wait of one"), DEVICE_FAKE),
            .size = 2, .setup = setup, .body = { NULL, has_no_stream_left })
{
    OWN(tensor) *tensor = bytes_tensor(job, device_open(job, 0));

    harness_await(OPEN, 1);
    device_send(job, "keep", tensor);
    harness_await(RELEASED, 1);
}

/* If a stream of the borrower cannot wait for the owner's words, its host waits. */
static void follows_by_host(struct bx_job *job)
{
    void *stream;

    setenv("FAKE_CUDA_NO_HOST_REGISTER", "1", 1);
    stream = device_stream(job, device_open(job, 0));
    harness_post(OPEN);
    harness_await(KEPT, 1);
    harness_post(STARTED);
    HARNESS_EQ(bx_tensor_read_on(kept, stream), 0);
    HARNESS_EQ(harness_gate(LATE), 1);
    HARNESS_EQ(device_peek_wrong(job, stream, kept, 0), 0);
    HARNESS_CHECK(harness_counter(job, "gpu_fallbacks") > 0);
    bx_tensor_release(kept);
    harness_post(FINISHED);
}

DEVICE_WORLD(device_order, serves_others_while_a_thread_waits_for_a_word, 60,
             (fake_skip_without_words("the test waits for a word"), DEVICE_FAKE), .size = 3, .setup = setup,
             .body = { opens_the_gate_in_the_end, follows_by_host, is_served_meanwhile });
