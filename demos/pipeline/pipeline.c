/* SPDX-License-Identifier: MIT */
/*
 * pipeline - a ResNet-50 cut in two, the halves on two workers, micro-batches in flight on both at once.
 *
 * This file is the first process: flags, the job with its workers, and its results. The master prints the lines.
 */
#include "demos/common/program.h"
#include "demos/common/worker.h"
#include "pipeline.h"

#include <stdlib.h>

static struct pl_flags flags = { .batches = 3, .batch_size = 16, .image = 64 };
static const char *splits_text = "1,2,4,8";

static const char HELP[] =
    "Usage: pipeline [flags]\n"
    "\n"
    "Trains a ResNet-50 that is cut in two: layers 1 and 2 on one worker, layers 3 and 4 on another. Each\n"
    "batch of images is split into micro-batches, which are in flight on both workers at once.\n"
    "\n"
    "  --splits LIST          numbers of micro-batches, a run for each (1,2,4,8). Each divides the batch\n"
    "  --batches N            batches of each run (3). One more comes first, and is not timed\n"
    "  --batch-size N         images in a batch (16)\n"
    "  --image N              their height and width (64; 32 to 512)\n"
    "  --seed N               the same seed gives the same model and images (0)\n"
    "  --json FILE            all figures\n"
    "  --help, --version\n"
    "\n"
    "Prints the seconds for each number of micro-batches.\n"
    "\n"
    "Exit status: 0 all is trained; 1 a file could not be written; 2 a wrong flag; 3 a worker died or\n"
    "failed. SIGINT and SIGTERM end the workers, then the program by that signal.\n";

static const struct flag TABLE[] = {
    { "splits", FLAG_LIST, .value = &splits_text },
    { "batches", FLAG_U64, &flags.batches, .least = 1, .most = PL_BATCHES_MAX },
    { "batch-size", FLAG_INT, &flags.batch_size, .least = 1, .most = PL_IMAGES_MAX },
    { "image", FLAG_INT, &flags.image, .least = 32, .most = 512 },
    { "seed", FLAG_U64, &flags.seed, .most = UINT64_MAX },
    { "json", FLAG_TEXT, .value = &flags.json },
};

static int check_splits(const struct flags *of, unsigned long splits)
{
    unsigned long images = (unsigned long)flags.batch_size;

    if (splits < 1 || splits > images || images % splits != 0)
        return flags_wrong(of, "a batch of %lu images does not split into %lu equal parts", images, splits);
    if (flags.image <= 32 && images == splits)
        return flags_wrong(of, "a micro-batch of one image of 32 x 32 leaves a single pixel, which cannot be "
                               "normalised: fewer splits or --image 33");
    return 0;
}

/* "1,2,4": whole numbers with commas between them. */
static int read_splits(const struct flags *of)
{
    for (const char *at = splits_text;; at++) {
        char *end = NULL;
        unsigned long splits = strtoul(at, &end, 10);

        if (*at < '0' || *at > '9' || (*end != ',' && *end != '\0') || flags.runs == PL_RUNS_MAX)
            return flags_wrong(of, "--splits takes 1 to %d whole numbers with commas between them, not \"%s\"",
                               PL_RUNS_MAX, splits_text);
        if (check_splits(of, splits) < 0)
            return -1;
        flags.splits[flags.runs++] = (int)splits;
        if (*end == '\0')
            return 0;
        at = end;
    }
}

/* ---- The job ------------------------------------------------------------------------------------------- */

static size_t result_bytes(void)
{
    return sizeof(struct pl_result);
}

struct life {
    struct pl_result *result;
    struct bx_dist *dist;       /* outlives the job */
};

static int live(struct worker *worker, void *context)
{
    struct life *life = context;
    struct bx_job *job = worker->job;
    int rc = bx_dist_create(job, &life->dist);

    if (rc == 0)
        rc = pl_shard_register(job, life->dist);
    if (rc == 0)
        rc = bx_job_start(job);
    if (rc < 0)
        return rc;
    return bx_job_rank(job) == 0 ? pl_train(job, life->dist, &flags, life->result) : bx_job_serve(job);
}

/* All workers end when one of them dies: half a network cannot train. */
static int run_worker(const struct bx_options *options, void *result)
{
    struct bx_options own = *options;
    struct life life = { result, NULL };

    own.pool_threads = options->rank == 0 ? 0 : 1;      /* shard.c says why */
    int status = worker_main("pipeline", &own, live, &life);
    bx_dist_destroy(life.dist);
    return status;
}

static int run_job(void *result)
{
    static const char *const NAMES[PL_WORLD] = { "master", "worker1", "worker2" };
    const struct bx_spawn_options options = { .world_size = PL_WORLD, .names = NAMES };

    return worker_spawn("pipeline", &options, run_worker, result) < 0 ? PROGRAM_WORKER : PROGRAM_OK;
}

/* ---- Results ------------------------------------------------------------------------------------------- */

static void write_json(struct json *json, const void *context)
{
    const struct pl_result *result = context;

    json_list(json, "runs");
    for (size_t i = 0; i < flags.runs; i++) {
        const struct pl_run *run = &result->run[i];

        json_item(json);
        json_put(json, "splits", "%d", flags.splits[i]);
        json_real(json, "seconds", run->seconds);
        json_real(json, "images_per_s", (double)flags.batches * flags.batch_size / run->seconds);
        json_real(json, "first_loss", run->first_loss);
        json_real(json, "last_loss", run->last_loss);
        json_item_end(json);
    }
    json_list_end(json);
}

int main(int argc, char **argv)
{
    static const struct program PROGRAM = {
        .flags = { "pipeline", HELP, TABLE, sizeof(TABLE) / sizeof(TABLE[0]) },
        .json = &flags.json,
        .check = read_splits,
        .result_bytes = result_bytes,
        .run = run_job,
        .write_json = write_json,
    };

    return program_main(&PROGRAM, argc, argv);
}
