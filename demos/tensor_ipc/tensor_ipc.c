/* SPDX-License-Identifier: MIT */
/*
 * tensor_ipc: the smallest program that lends a GPU tensor. Three workers:
 *
 *   owner     opens a GPU, fills a tensor there, and hands it to the reader
 *   reader    reads it in place, and hands it on to the third worker while it has it on loan
 *   third     reads it in place, too
 *
 * Its bytes are never copied. The one that hands it over prints the address that the memory has in the other process,
 * the time of the first hand-over (the slab is mapped then) and of the next ones, and how many bytes were copied for
 * it. The other one checks the contents afterwards, by copying them to host memory.
 *
 * Exit status: 0; 1 a failure; 2 wrong flags; 3 there is no GPU (a sentence gives the reason).
 */
#include "demos/common/clock.h"
#include "demos/common/ending.h"
#include "demos/common/program.h"
#include "demos/common/worker.h"

#include <boxcar.h>

#include <inttypes.h>
#include <stdio.h>

#define OWNER "owner"
#define READER "reader"
#define THIRD "third"
#define NO_GPU 3
#define TIMES 100           /* hand-overs of which the median is taken */

struct settings {
    uint64_t bytes;
    int device;
};

static int32_t element(int64_t i)
{
    return (int32_t)((uint32_t)i * 2654435761u);
}

/* ---- Handing it over ------------------------------------------------------------------------------ */

/* Hands the tensor over, again and again, and prints what the other worker found. */
static int hand_over(struct bx_job *job, const struct settings *settings, const char *to, struct bx_tensor *tensor)
{
    uint64_t address = 0, copied = 0, wrong = 0, before = worker_copied_bytes(job);
    double us[1 + TIMES];
    int rc = bx_call(job, to, "open", "i", settings->device);

    for (int i = 0; i <= TIMES && rc == 0; i++) {
        uint64_t begin_ns = clock_now_ns();

        rc = bx_call(job, to, "take", "T>uu", tensor, &address, &copied);
        us[i] = 1e6 * clock_seconds_since(begin_ns);
    }
    copied += worker_copied_bytes(job) - before;
    if (rc == 0)
        rc = bx_call(job, to, "check", "T>u", tensor, &wrong);
    if (rc < 0)
        return rc;
    printf("%-8s address 0x%012" PRIx64 "  first %9.1f us  then %7.1f us  copied %" PRIu64 " B  %s\n", to, address,
           us[0], program_median(us + 1, TIMES), copied, wrong == 0 ? "right" : "WRONG");
    return wrong == 0 ? 0 : bx_fail(BX_E_CORRUPT, "what worker '%s' reads is not what the owner wrote", to);
}

static int fill(struct bx_job *job, const struct settings *settings, struct bx_device device,
                struct bx_tensor **tensor)
{
    int64_t count = (int64_t)(settings->bytes / sizeof(int32_t));
    struct bx_tensor *host = NULL;
    int rc = bx_tensor_create(NULL, BX_I32, 1, &count, &host);

    for (int64_t i = 0; rc == 0 && i < count; i++)
        ((int32_t *)bx_tensor_data_mut(host))[i] = element(i);
    if (rc == 0)
        rc = bx_tensor_create_on(job, device, BX_I32, 1, &count, tensor);
    if (rc == 0)
        rc = bx_tensor_copy_into(*tensor, host);
    bx_tensor_release(host);
    return rc;
}

static int own(struct bx_job *job, const struct settings *settings, bool *no_gpu)
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
        rc = hand_over(job, settings, READER, tensor);
    }
    if (rc == 0)
        rc = bx_call(job, READER, "pass_on", "T", tensor);
    bx_tensor_release(tensor);
    return rc;
}

/* ---- What reader and third answer ----------------------------------------------------------------- */

static int open_gpu(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)reply, (void)context;
    return bx_gpu_open(bx_request_job(request), (int)bx_read_i64(args), NULL);
}

/* Makes the default stream wait for the owner's work: what is put on it from now on reads the tensor. */
static int take(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args);
    int rc = tensor == NULL ? args->error : bx_tensor_read_on(tensor, NULL);

    (void)context;
    if (rc == 0)
        rc = bx_msg_put_u64(reply, (uint64_t)(uintptr_t)bx_tensor_data(tensor));
    return rc == 0 ? bx_msg_put_u64(reply, worker_copied_bytes(bx_request_job(request))) : rc;
}

/* Answers with the number of wrong elements. */
static int check(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args), *host = NULL;
    uint64_t wrong = 0;
    int rc = tensor == NULL ? args->error : bx_tensor_create(NULL, BX_I32, 1, bx_tensor_shape(tensor), &host);

    (void)request, (void)context;
    if (rc == 0)
        rc = bx_tensor_copy_into(host, tensor);
    for (int64_t i = 0; rc == 0 && i < bx_tensor_elements(host); i++)
        wrong += ((const int32_t *)bx_tensor_data(host))[i] != element(i);
    bx_tensor_release(host);
    return rc == 0 ? bx_msg_put_u64(reply, wrong) : rc;
}

static int pass_on(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args);

    (void)reply;
    return tensor == NULL ? args->error : hand_over(bx_request_job(request), context, THIRD, tensor);
}

/* ---- The three ------------------------------------------------------------------------------------ */

/* "take" is inline: it does not block. The others copy, open a device or call. */
static int start(const struct bx_options *options, void *settings, struct bx_job **job)
{
    int rc = bx_job_create(options, job);

    if (rc == 0)
        rc = bx_register(*job, "open", BX_BLOCKING, open_gpu, NULL);
    if (rc == 0)
        rc = bx_register(*job, "take", BX_INLINE, take, NULL);
    if (rc == 0)
        rc = bx_register(*job, "check", BX_BLOCKING, check, NULL);
    if (rc == 0)
        rc = bx_register(*job, "pass_on", BX_BLOCKING, pass_on, settings);
    return rc < 0 ? rc : bx_job_start(*job);
}

static int complain(int rc)
{
    if (rc < 0)
        fprintf(stderr, "tensor_ipc: %s\n", bx_error_text());
    return rc;
}

static int worker(const struct bx_options *options, void *settings)
{
    struct bx_job *job = NULL;
    bool no_gpu = false;
    int rc = complain(start(options, settings, &job));

    if (rc == 0) {
        int part_rc = complain(options->rank == 0 ? own(job, settings, &no_gpu) : bx_job_serve(job));

        rc = complain(bx_job_shutdown(job, 0));
        if (part_rc < 0)
            rc = part_rc;
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
    setvbuf(stdout, NULL, _IOLBF, 0);       /* the lines of all workers stay in order */
    if (bx_spawn(&spawn, worker, &settings, &report) == 0)
        return 0;
    return report.exit_status == NO_GPU ? NO_GPU : 1;
}
