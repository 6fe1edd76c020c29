/* SPDX-License-Identifier: MIT */
/*
 * The target stat: what each command of shmstat reads of two segments in which words are changed. The segments are
 * copies of those of a job that has run calls, in memory files; jobs.c is included with a shm_open that leads there.
 * Each command ends with a status that the manual page has, and what it prints for --json is JSON.
 */
#include "tools/shmstat/jobs.h"

#include <sys/mman.h>

static int stat_open(const char *name, int flags, mode_t mode);
static int stat_jobs_find_by_name(struct stat_jobs *jobs, const char *select);
#define shm_open stat_open
#define stat_jobs_find stat_jobs_find_by_name
#include "tools/shmstat/jobs.c"
#undef stat_jobs_find
#undef shm_open

#include "fuzz.h"

#include "tests/harness/json.h"
#include "tools/shmstat/shmstat.h"

static int image[2], arena;
static uint64_t image_bytes;
static struct bxi_object_parts parts;

static int stat_open(const char *name, int flags, mode_t mode)
{
    (void)flags, (void)mode;
    if (strstr(name, ".arena") != NULL)
        return dup(arena);
    return dup(image[name[strlen(name) - 1] - '0']);
}

/* As shmstat finds them in /dev/shm. */
int stat_jobs_find(struct stat_jobs *jobs, const char *select)
{
    int rc = 0;

    *jobs = (struct stat_jobs){ 0 };
    for (parts.rank = 0; parts.rank < 2 && is_selected(&parts, select); parts.rank++) {
        parts.is_arena = false;
        rc = add_name(jobs, &parts);
        parts.is_arena = true;
        if (rc == 0)
            rc = add_name(jobs, &parts);
    }
    (void)stat_jobs_find_by_name;
    return rc;
}

/* What shmstat lets pass between two looks. */
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)time, (void)left;
    return 0;
}

static void make(void)
{
    fuzz_frame((struct fuzz_input){ NULL, 0 });             /* a call, and what it leaves */
    image_bytes = bxi_segment_bytes(2);
    snprintf(parts.job, sizeof parts.job, "%s", fuzz_job[0]->control->header.job);
    parts.instance = fuzz_job[0]->instance;
    arena = memfd_create("arena", MFD_CLOEXEC);
    for (int rank = 0; rank < 2; rank++) {
        image[rank] = memfd_create("segment", MFD_CLOEXEC);
        FUZZ_CHECK(ftruncate(image[rank], (off_t)image_bytes) == 0);
        for (uint64_t at = 0; at < image_bytes; at += BXI_PAGE) {
            char page[BXI_PAGE];
            ssize_t got = pread(fuzz_job[rank]->segment.fd, page, bxi_least(sizeof page, image_bytes - at), (off_t)at);

            FUZZ_CHECK(got > 0 && pwrite(image[rank], page, (size_t)got, (off_t)at) == got);
        }
    }
}

#define CHANGES 64

/* The input: a command, then changes: 3 bytes where (a word of one of the images), 8 bytes what. */
void fuzz_stat(struct fuzz_input input)
{
    static int (*const commands[])(const struct stat_options *) = { stat_show, stat_check, stat_calls, stat_why,
                                                                    stat_rrefs, stat_gpu, stat_ls, stat_top };
    struct { off_t at; int which; uint64_t was; } changes[CHANGES];
    int count = 0;
    uint8_t how, where[3];

    if (image_bytes == 0)
        make();
    fuzz_take(&input, &how, 1);
    while (count < CHANGES && fuzz_take(&input, where, sizeof where) > 0) {
        uint64_t value;

        changes[count].which = where[0] >> 7;
        changes[count].at = (off_t)(((where[0] & 127u) << 16 | where[1] << 8 | where[2]) * 8 % image_bytes);
        FUZZ_CHECK(pread(image[changes[count].which], &changes[count].was, 8, changes[count].at) == 8);
        fuzz_take(&input, &value, sizeof value);
        FUZZ_CHECK(pwrite(image[changes[count].which], &value, 8, changes[count].at) == 8);
        count++;
    }
    bool json = (how & 8) != 0 && commands[how % 8] != stat_top;
    char *text = NULL;
    size_t text_bytes;
    FILE *out = stdout, *kept = open_memstream(&text, &text_bytes);

    FUZZ_CHECK(kept != NULL);
    stdout = kept;
    int status = commands[how % 8](&(struct stat_options){ .json = json, .prometheus = (how & 24) == 16,
                                                           .top = { .once = true, .interval_s = 1e-6,
                                                                    .view = how & 8 ? "rings" : "calls" } });
    stdout = out;
    fclose(kept);
    FUZZ_CHECK(status == STAT_FINE || status == STAT_NOTHING ||
               (status == STAT_FOUND && commands[how % 8] == stat_check));
    /* The comma before the second object of a process: shmstat prints one. */
    struct json *parsed = json ? json_parse(text + (text[0] == ',')) : NULL;
    FUZZ_CHECK(!json || parsed != NULL);
    json_free(parsed);
    free(text);
    while (count-- > 0)
        FUZZ_CHECK(pwrite(image[changes[count].which], &changes[count].was, 8, changes[count].at) == 8);
}
