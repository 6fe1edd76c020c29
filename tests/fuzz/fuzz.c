/* SPDX-License-Identifier: MIT */
/*
 * Fuzz targets: what reads memory that another process writes, from bytes to a verdict, in this process.
 *
 *     boot    fuzz_boot.c     packets of the start: rank 0's side, and that of the worker that asks
 *     frame   fuzz_frame.c    records in a ring, commit words, and the words beside the rings
 *     lease   fuzz_frame.c    lease heads, tensors in them, and lease words
 *     stat    fuzz_stat.c     what shmstat reads of two segments
 *
 * `make fuzz` links them with libFuzzer: BX_FUZZ names the target. `make fuzz-replay` links them without it
 * (FUZZ_REPLAY), and runs the inputs of corpus.tar.gz once: CI does that, with gcc's sanitizers. They are what
 * `make fuzz` finds, minimised by `-merge=1` and packed by `tar czf tests/fuzz/corpus.tar.gz -C build/fuzz corpus`.
 */
#include "fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct target {
    const char *name;
    void (*run)(struct fuzz_input input);
} targets[] = { { "boot", fuzz_boot }, { "frame", fuzz_frame }, { "lease", fuzz_lease }, { "stat", fuzz_stat } };
#define TARGETS (sizeof targets / sizeof targets[0])

struct bx_job *fuzz_job[2];

void fuzz_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: %s is not so (%s)\n", file, line, condition, bx_error_text());
    abort();
}

size_t fuzz_take(struct fuzz_input *input, void *to, size_t most)
{
    size_t bytes = input->bytes < most ? input->bytes : most;

    memset(to, 0, most);
    if (bytes == 0)
        return 0;
    memcpy(to, input->data, bytes);
    input->data += bytes;
    input->bytes -= bytes;
    return bytes;
}

static void *start(void *job)
{
    FUZZ_CHECK(bx_job_start(job) == 0);
    return NULL;
}

void fuzz_pair_begin(void)
{
    static unsigned pairs;
    char name[BX_NAME_MAX + 1];
    pthread_t thread;

    if (pairs == 0)
        atexit(fuzz_pair_end);          /* which removes its names */
    snprintf(name, sizeof name, "fuzz-%d-%u", (int)getpid(), pairs++);
    for (int rank = 0; rank < 2; rank++) {
        struct bx_options options = { .job = name, .rank = rank, .world_size = 2, .own_loop = true,
                                      .call_timeout_ns = BX_FOREVER, .arena_bytes = 1 << 22 };

        FUZZ_CHECK(bx_job_create(&options, &fuzz_job[rank]) == 0);
        FUZZ_CHECK(fuzz_register(fuzz_job[rank]) == 0);
    }
    FUZZ_CHECK(pthread_create(&thread, NULL, start, fuzz_job[1]) == 0);
    start(fuzz_job[0]);
    pthread_join(thread, NULL);
}

void fuzz_pair_end(void)
{
    for (int rank = 0; rank < 2; rank++) {
        bx_job_destroy(fuzz_job[rank]);
        fuzz_job[rank] = NULL;
    }
}

#ifndef FUZZ_REPLAY

static const struct target *find(const char *name)
{
    for (size_t i = 0; name != NULL && i < TARGETS; i++)
        if (strcmp(targets[i].name, name) == 0)
            return &targets[i];
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct target *target;

    if (target == NULL)
        target = find(getenv("BX_FUZZ"));
    FUZZ_CHECK(target != NULL);
    target->run((struct fuzz_input){ data, bytes });
    return 0;
}

#else

/* Its bytes lie in a block of their own, so that a read behind them is seen. */
static void replay(const struct target *target, const char *path)
{
    FILE *file = fopen(path, "rb");
    long bytes;

    FUZZ_CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    bytes = ftell(file);
    uint8_t *data = malloc((size_t)bytes + (bytes == 0));
    rewind(file);
    FUZZ_CHECK(data != NULL && fread(data, 1, (size_t)bytes, file) == (size_t)bytes);
    fclose(file);
    target->run((struct fuzz_input){ data, (size_t)bytes });
    free(data);
}

int main(void)
{
    for (size_t i = 0; i < TARGETS; i++) {
        char directory_path[PATH_MAX / 2], path[PATH_MAX];
        int count = 0;

        snprintf(directory_path, sizeof directory_path, "%s/fuzz/corpus/%s", getenv("BX_BUILD_DIR"), targets[i].name);
        DIR *directory = opendir(directory_path);
        FUZZ_CHECK(directory != NULL);
        for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", directory_path, entry->d_name);
            replay(&targets[i], path);
            count++;
        }
        closedir(directory);
        fprintf(stderr, "ok fuzz corpus of %s: %d inputs\n", targets[i].name, count);
    }
    return 0;
}

#endif
