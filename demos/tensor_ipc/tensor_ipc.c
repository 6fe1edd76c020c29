/* SPDX-License-Identifier: MIT */
/*
 * tensor_ipc: the smallest program that lends a GPU tensor. Three workers:
 *
 *   owner     opens a GPU, fills a tensor there, and answers "get" with it
 *   reader    gets it, reads it in place, and tells the third worker to get it too ("see"), from the reader
 *   third     gets the owner's tensor from the reader, and reads it in place
 *
 * So the tensor is lent, and passed on while it is on loan, and its bytes are never copied. Reader and third print the
 * address that the memory has in their process, the time of the first hand-over (the slab is mapped then) and of the
 * next ones, and how many bytes were copied for it. They check the contents by copying them to host memory afterwards.
 *
 * Exit status: 0; 1 a failure; 2 wrong flags; 3 there is no GPU (a sentence gives the reason).
 */
#include "demos/common/clock.h"
#include "demos/common/ending.h"
#include "demos/common/flags.h"

#include <boxcar.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWNER "owner"
#define READER "reader"
#define THIRD "third"
#define NO_GPU 3
#define TIMES 100           /* hand-overs of which the median is taken */

struct settings {
    uint64_t bytes;
    int device;
};

/* What a worker answers "get" with. */
struct giver {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct bx_tensor *tensor;       /* the owner's own; the reader's on loan */
    int code;                       /* < 0: there will be no tensor */
};

/* The figures of one worker; sent as bytes. */
struct found {
    uint64_t address;
    double first_us;
    double next_us;
    uint64_t copied;        /* bytes */
    uint64_t wrong;         /* elements */
};

static int32_t element(int64_t i)
{
    return (int32_t)((uint32_t)i * 2654435761u);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static uint64_t copied_bytes(struct bx_job *job)
{
    uint64_t sum = 0, value = 0;

    if (bx_counter(job, "tensor_bytes_copied", &value) == 0)
        sum += value;
    if (bx_counter(job, "gpu_staged_bytes", &value) == 0)
        sum += value;
    if (bx_counter(job, "gpu_copied_bytes", &value) == 0)
        sum += value;
    return sum;
}

/* ---- The owner, and the reader for the third worker ----------------------------------------------- */

/* A blocking handler: an early call waits until the tensor is filled. */
static int get(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct giver *giver = context;
    int code;

    (void)request, (void)args;
    pthread_mutex_lock(&giver->lock);
    while (giver->tensor == NULL && giver->code == 0)
        pthread_cond_wait(&giver->filled, &giver->lock);
    code = giver->code;
    pthread_mutex_unlock(&giver->lock);
    return code < 0 ? bx_fail(code, "the owner has no tensor to lend") : bx_msg_put_tensor(reply, giver->tensor);
}

static void publish(struct giver *giver, struct bx_tensor *tensor, int code)
{
    pthread_mutex_lock(&giver->lock);
    giver->tensor = code < 0 ? NULL : tensor;
    giver->code = code < 0 ? code : 0;
    pthread_cond_broadcast(&giver->filled);
    pthread_mutex_unlock(&giver->lock);
}

static int fill(struct bx_job *job, const struct settings *settings, struct bx_device device,
                struct bx_tensor **tensor)
{
    int64_t count = (int64_t)(settings->bytes / sizeof(int32_t));
    struct bx_tensor *host = NULL;
    int rc = bx_tensor_create(NULL, BX_I32, 1, &count, &host);

    if (rc < 0)
        return rc;

    int32_t *values = bx_tensor_data_mut(host);

    for (int64_t i = 0; i < count; i++)
        values[i] = element(i);
    rc = bx_tensor_create_on(job, device, BX_I32, 1, &count, tensor);
    if (rc == 0)
        rc = bx_tensor_copy_into(*tensor, host);
    bx_tensor_release(host);
    return rc;
}

/* ---- Reading in place --------------------------------------------------------------------------- */

/* One hand-over: gets the tensor, and makes the default stream wait for the owner's work. */
static int take(struct bx_job *job, const char *from, struct bx_msg **reply, struct bx_tensor **tensor)
{
    int rc = bx_rpc_sync(job, from, "get", NULL, NULL, reply);

    if (rc < 0)
        return rc;

    struct bx_reader reader = bx_msg_reader(*reply);

    *tensor = bx_read_tensor(&reader);
    return *tensor == NULL ? bx_fail(BX_E_SHORT_MESSAGE, "worker '%s' sent no tensor", from)
                           : bx_tensor_read_on(*tensor, NULL);
}

static int check(struct bx_tensor *tensor, uint64_t *wrong)
{
    struct bx_tensor *host = NULL;
    int rc = bx_tensor_create(NULL, BX_I32, 1, bx_tensor_shape(tensor), &host);

    if (rc == 0)
        rc = bx_tensor_copy_into(host, tensor);
    for (int64_t i = 0; rc == 0 && i < bx_tensor_elements(host); i++)
        *wrong += ((const int32_t *)bx_tensor_data(host))[i] != element(i);
    bx_tensor_release(host);
    return rc;
}

/* kept: the tensor, still on loan; the caller releases it. */
static int measure(struct bx_job *job, const char *from, struct found *found, struct bx_tensor **kept)
{
    double us[TIMES];
    struct bx_msg *reply = NULL;
    struct bx_tensor *tensor = NULL;
    uint64_t before = copied_bytes(job);
    int rc = 0;

    for (int i = 0; i <= TIMES && rc == 0; i++) {
        uint64_t begin_ns = clock_now_ns();

        bx_msg_destroy(reply);
        reply = NULL;
        rc = take(job, from, &reply, &tensor);

        double took_us = 1e6 * clock_seconds_since(begin_ns);

        if (i == 0)
            found->first_us = took_us;
        else
            us[i - 1] = took_us;
    }
    if (rc == 0) {
        qsort(us, TIMES, sizeof *us, compare);
        found->next_us = us[TIMES / 2];
        found->address = (uint64_t)(uintptr_t)bx_tensor_data(tensor);
        found->copied = copied_bytes(job) - before;
        rc = check(tensor, &found->wrong);
        *kept = bx_tensor_acquire(tensor);
    }
    bx_msg_destroy(reply);
    return rc;
}

/* Run by the third worker for the reader. A blocking handler: it calls the reader. */
static int see(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    const struct settings *settings = context;
    struct bx_tensor *tensor = NULL;
    struct found found = { 0 };
    int rc = bx_gpu_open(bx_request_job(request), settings->device, NULL);

    (void)args;
    if (rc == 0)
        rc = measure(bx_request_job(request), READER, &found, &tensor);
    bx_tensor_release(tensor);
    return rc < 0 ? rc : bx_msg_put_bytes(reply, &found, sizeof found);
}

/* ---- The three ---------------------------------------------------------------------------------- */

static void print(const char *name, const struct found *found)
{
    printf("%-8s address 0x%012" PRIx64 "  first %9.1f us  then %7.1f us  copied %" PRIu64 " B  %s\n", name,
           found->address, found->first_us, found->next_us, found->copied, found->wrong == 0 ? "right" : "WRONG");
}

static int read_and_pass_on(struct bx_job *job, struct giver *giver)
{
    struct found mine = { 0 }, theirs = { 0 };
    struct bx_tensor *tensor = NULL;
    struct bx_msg *reply = NULL;
    int rc = measure(job, OWNER, &mine, &tensor);
    uint64_t before = copied_bytes(job);

    publish(giver, tensor, rc);
    if (rc == 0)
        rc = bx_rpc_sync(job, THIRD, "see", NULL, NULL, &reply);
    if (rc < 0)
        return rc;
    mine.copied += copied_bytes(job) - before;      /* none: it passes the tensor on */

    struct bx_reader reader = bx_msg_reader(reply);
    const void *bytes = bx_read_bytes(&reader, sizeof theirs);

    if (bytes != NULL) {
        memcpy(&theirs, bytes, sizeof theirs);
        print(READER, &mine);
        print(THIRD, &theirs);
    }
    bx_msg_destroy(reply);
    return bytes != NULL && mine.wrong + theirs.wrong == 0
               ? 0 : bx_fail(BX_E_CORRUPT, "what was read is not what the owner wrote");
}

static int own(struct bx_job *job, const struct settings *settings, struct giver *giver, bool *no_gpu)
{
    struct bx_tensor *tensor = NULL;
    struct bx_device device;
    int rc = bx_gpu_open(job, settings->device, &device);

    *no_gpu = rc < 0;
    if (rc == 0)
        rc = fill(job, settings, device, &tensor);
    if (rc == 0) {
        printf("%-8s address %p  %" PRIu64 " bytes on cuda:%d%s\n", OWNER, bx_tensor_data(tensor), settings->bytes,
               device.index, bx_gpu_is_fake(job) ? " of the FAKE driver" : "");
        fflush(stdout);
    }
    publish(giver, tensor, rc);
    if (rc == 0)
        return bx_job_serve(job);
    fprintf(stderr, "tensor_ipc: %s\n", bx_error_text());
    bx_tensor_release(tensor);
    return rc;
}

static int run(struct bx_job *job, const struct settings *settings, struct giver *giver, bool *no_gpu)
{
    int rc;

    switch (bx_job_rank(job)) {
    case 0:
        return own(job, settings, giver, no_gpu);
    case 1:
        rc = bx_gpu_open(job, settings->device, NULL);
        *no_gpu = rc < 0;           /* the owner prints the reason */
        rc = rc < 0 ? rc : read_and_pass_on(job, giver);
        if (rc < 0 && !*no_gpu)
            fprintf(stderr, "tensor_ipc: %s\n", bx_error_text());
        return rc;
    default:
        return bx_job_serve(job);
    }
}

static int worker(const struct bx_options *options, void *context)
{
    struct giver giver = { .lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER };
    struct bx_job *job = NULL;
    bool no_gpu = false;
    int rc = bx_job_create(options, &job);

    if (rc == 0)
        rc = bx_register(job, "get", BX_BLOCKING, get, &giver);
    if (rc == 0)
        rc = bx_register(job, "see", BX_BLOCKING, see, context);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc < 0) {
        fprintf(stderr, "tensor_ipc: %s\n", bx_error_text());
    } else {
        rc = run(job, context, &giver, &no_gpu);
        bx_tensor_release(giver.tensor);
        if (bx_job_shutdown(job, 0) < 0 && rc == 0) {
            fprintf(stderr, "tensor_ipc: %s\n", bx_error_text());
            rc = -1;
        }
    }
    bx_job_destroy(job);
    if (ending_output("tensor_ipc") < 0 && rc == 0)
        rc = -1;
    return rc == 0 ? 0 : no_gpu ? NO_GPU : 1;
}

int main(int argc, char **argv)
{
    struct settings settings = { .bytes = 64u << 20 };
    const struct flag list[] = {
        { .name = "bytes", .kind = FLAG_U64, .value = &settings.bytes, .least = 4, .most = UINT64_C(1) << 36 },
        { .name = "device", .kind = FLAG_INT, .value = &settings.device, .least = 0, .most = 63 },
    };
    const struct flags flags = {
        .program = "tensor_ipc",
        .help = "Usage: tensor_ipc [--bytes N] [--device D]\n\n"
                "One worker fills a tensor of N bytes (67108864) on GPU D (0), another reads it in place and\n"
                "passes it on to a third. Prints addresses, microseconds, and bytes copied for it.\n"
                "Exit status: 0; 1 a failure; 2 wrong flags; 3 there is no GPU.\n",
        .flags = list,
        .count = sizeof list / sizeof *list,
    };
    static const char *const names[] = { OWNER, READER, THIRD };
    struct bx_spawn_options spawn = { .world_size = 3, .names = names };
    struct bx_spawn_report report = { .failed_rank = -1 };
    int rc = flags_parse(&flags, argc, argv);

    if (rc != 0)
        return rc < 0 ? 2 : ending_output("tensor_ipc") < 0;
    if (bx_spawn(&spawn, worker, &settings, &report) == 0)
        return 0;
    return report.exit_status == NO_GPU ? NO_GPU : 1;
}
