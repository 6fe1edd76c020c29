/* SPDX-License-Identifier: MIT */
/*
 * The trace of one worker (trace.h has what it shows): marks in memory, and when they are written. trace_text.c turns
 * marks into lines of JSON; trace_file.c has the file.
 *
 * Any thread records a mark of 48 bytes in an array, under trace->lock, which is held only for that and may be taken
 * inside any other lock. The thread that holds the role writes after its pass if there are CHUNK_MARKS or more. A
 * thread that is about to sleep, BATCH_NS after the last write or later, writes whatever there is. So does the end of
 * the job. So a worker that is killed loses what it recorded in its last 10 ms or, if it slept, before that sleep: at
 * most a chunk. The thread that writes takes the array and leaves the one that it wrote last in its place. One thread
 * writes at a time; another one that comes skips the write. A thread that finds another worker at the file leaves the
 * marks in memory; BX_TRACE_EVENTS bounds them.
 *
 * Why marks and not lines: making a line takes ten times as long as making a mark, and would delay an answer. Why X
 * events, recorded at their end, and not B and E: half the marks, and viewers can bind arrows to them. The cost: of a
 * worker that is killed, the file lacks the slices that had not ended.
 *
 * A child that was forked from a worker has the worker's marks, descriptor and locks in whatever state they were: it
 * records and writes nothing.
 */
#include "trace.h"

#include "shm/backoff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define MARKS_MAX 1000000u          /* unless BX_TRACE_EVENTS says otherwise */
#define CHUNK_MARKS 1024
#define TEXT_BYTES 65536u
#define BATCH_NS UINT64_C(10000000)
#define LAST_TRIES 2000             /* to lock the file when the job ends, a millisecond apart */
#define PATH_BYTES 4096

struct marks {
    struct bxi_mark *all;
    uint32_t count, capacity;
};

struct bxi_trace {
    struct bxi_trace_file file;     /* start */
    uint64_t marks_max;             /* start */
    char *path;                     /* start */
    const struct bxi_trace_names *names;    /* start */

    struct bxi_lock lock;           /* of what follows; no other lock is taken under it */
    bxi_a32 off;
    uint64_t marks;                 /* recorded so far */
    uint64_t left_out;
    uint64_t left_out_ns;           /* when the first of them happened */
    struct marks filling;
    bxi_a32 filled;                 /* how many there are, to be read without the lock */

    bxi_a32 writing;                /* 1 while a thread owns what follows */
    bxi_a64 written_ns;
    struct marks draining;
    uint32_t drained;               /* of them */
    size_t text_bytes;
    char text[TEXT_BYTES + BXI_TRACE_CLOSING];
};

/* ---- threads ----------------------------------------------------------------------------------- */

static _Thread_local struct {
    uint64_t serial;                /* of the last job in whose file this thread is named */
    uint32_t tid;
    const char *name;               /* of a thread of the library */
} self;

void bxi_trace_thread(const char *name)
{
    self.name = name;
}

static struct bxi_mark name_thread(void)
{
    struct bxi_mark mark = { .kind = BXI_MARK_THREAD, .tid = self.tid, .end_ns = 1 };

    if (self.name != NULL)
        strcpy(mark.name, self.name);
    else
        prctl(PR_GET_NAME, mark.name);
    return mark;
}

/* ---- marks (trace->lock) ----------------------------------------------------------------------- */

static bool put_mark(struct bxi_trace *trace, const struct bxi_mark *mark)
{
    struct marks *filling = &trace->filling;

    if (filling->count == filling->capacity) {
        uint32_t capacity = filling->capacity == 0 ? CHUNK_MARKS : 2 * filling->capacity;
        struct bxi_mark *all = realloc(filling->all, capacity * sizeof *all);

        if (all == NULL)
            return false;
        filling->all = all;
        filling->capacity = capacity;
    }
    filling->all[filling->count++] = *mark;
    bxi_store_relaxed(&trace->filled, filling->count);      /* relaxed: a guess is enough without the lock */
    return true;
}

void bxi_trace_mark(struct bx_job *job, const struct bxi_mark *mark)
{
    struct bxi_trace *trace = job->observe->trace;
    struct bxi_mark noted = *mark, name;
    bool is_new;

    if (bxi_job_is_forked(job))
        return;
    noted.end_ns = bxi_now_ns();
    is_new = self.serial != job->serial;
    if (is_new) {
        self.serial = job->serial;
        self.tid = (uint32_t)gettid();      /* again for each job: a child of bx_spawn inherits its parent's */
        name = name_thread();
    }
    noted.tid = self.tid;
    bxi_lock(&trace->lock);
    if (bxi_load_relaxed(&trace->off) == 0) {        /* relaxed: written under the lock */
        if (trace->marks < trace->marks_max && (!is_new || put_mark(trace, &name)) && put_mark(trace, &noted)) {
            trace->marks++;
        } else {
            trace->left_out_ns = trace->left_out++ == 0 ? noted.begin_ns : trace->left_out_ns;
        }
    }
    bxi_unlock(&trace->lock);
}

/* ---- events as marks ----------------------------------------------------------------------------- */

void bxi_note_sleep(struct bx_job *job, enum bxi_sleeps who, enum bxi_sleeps_by by, bool rung, uint64_t began_ns)
{
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_SLEEP, .begin_ns = began_ns, .amount = who,
                                            .function = by, .code = rung, .callee = (uint16_t)job->rank });
}

static bool is_traced(const struct bx_job *job)
{
    /* Relaxed, as in bxi_job_check. Before the start another thread may write observe->trace. */
    return job != NULL && bxi_load_relaxed(&job->phase) != BXI_CREATED && bxi_trace_is_on(job) &&
           !bxi_job_is_forked(job);
}

uint64_t bx_trace_begin(const struct bx_job *job)
{
    return is_traced(job) ? bxi_now_ns() : 0;
}

void bx_trace_end(struct bx_job *job, const struct bx_slice *slice, uint64_t began_ns, uint64_t id, int code)
{
    if (began_ns == 0 || slice == NULL || slice->name == NULL || slice->category == NULL || !is_traced(job))
        return;
    bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_OWN, .begin_ns = began_ns, .id = id, .slice = slice,
                                            .code = code });
}

/* ---- writing (trace->writing is held) ----------------------------------------------------------- */

/* Takes the marks that were recorded; fewer than a chunk of them only with `whole`. False: there are none to take. */
static bool take_filled(struct bxi_trace *trace, bool whole)
{
    struct marks written = trace->draining;

    bxi_lock(&trace->lock);
    if (trace->filling.count >= (whole ? 1 : CHUNK_MARKS)) {
        trace->draining = trace->filling;
        trace->filling = (struct marks){ .all = written.all, .capacity = written.capacity };
        trace->drained = 0;
        bxi_store_relaxed(&trace->filled, 0);       /* relaxed: as in put_mark */
    }
    bxi_unlock(&trace->lock);
    return trace->drained < trace->draining.count;
}

static int append_text(struct bxi_trace *trace)
{
    int rc = bxi_trace_file_append(&trace->file, trace->text, trace->text_bytes);

    if (rc == 0)
        trace->text_bytes = 0;
    return rc;
}

static int write_marks(struct bx_job *job, bool whole)
{
    struct bxi_trace *trace = job->observe->trace;
    int rc;

    /* Those of the last write, then those of now. Others may record more, faster than this thread writes. */
    for (int turns = 0; turns < 2 && (trace->drained < trace->draining.count || take_filled(trace, whole)); turns++) {
        for (; trace->drained < trace->draining.count; trace->drained++) {
            char *at = trace->text + trace->text_bytes;

            if (TEXT_BYTES - trace->text_bytes < BXI_MARK_TEXT_MAX) {
                if ((rc = append_text(trace)) < 0)
                    return rc;
                at = trace->text;
            }
            at = bxi_trace_put_mark(at, job, trace->names, &trace->draining.all[trace->drained]);
            trace->text_bytes = (size_t)(at - trace->text);
        }
    }
    return trace->text_bytes > 0 ? append_text(trace) : 0;
}

static void turn_off(struct bxi_trace *trace)
{
    bxi_lock(&trace->lock);
    bxi_store_relaxed(&trace->off, 1);      /* relaxed: under the lock */
    bxi_unlock(&trace->lock);
}

static void give_up(struct bx_job *job, int rc)
{
    turn_off(job->observe->trace);
    bxi_log(job, 1, "worker '%s' is traced no further: %s %s", job->name, job->observe->trace->path,
            rc == -ESTALE ? "was begun anew by another job, or truncated" : bx_strerror(rc));
}

static bool begin_writing(struct bxi_trace *trace)
{
    uint32_t free = 0;

    /* [trace.writing] acquire, pairs with the release in end_writing: the last writer's stores are seen. */
    return bxi_load_relaxed(&trace->writing) == 0 && bxi_cas(&trace->writing, &free, 1);
}

static void end_writing(struct bxi_trace *trace)
{
    /* [trace.writing] release, pairs with the acquire in begin_writing. */
    bxi_store_release(&trace->writing, 0);
}

void bxi_trace_write(struct bx_job *job, bool sleeps)
{
    struct bxi_trace *trace = job->observe->trace;
    uint64_t now_ns = sleeps ? bxi_now_ns() : 0;
    int rc;

    /* Relaxed: guesses; a wrong one costs or delays a write. */
    if (bxi_load_relaxed(&trace->filled) < CHUNK_MARKS &&
        (!sleeps || now_ns - bxi_load_relaxed(&trace->written_ns) < BATCH_NS))
        return;
    if (bxi_job_is_forked(job) || bxi_load_relaxed(&trace->off) != 0 || !begin_writing(trace))
        return;

    BXI_UNCANCELLED;

    rc = write_marks(job, sleeps);
    if (rc < 0 && rc != -EAGAIN)
        give_up(job, rc);
    bxi_store_relaxed(&trace->written_ns, bxi_now_ns());        /* relaxed: as above; a busy file counts as a write */
    end_writing(trace);
}

/* ---- start and end ----------------------------------------------------------------------------- */

/* BX_TRACE with the job's name for each %j; malloc'ed. NULL when memory is out. */
static char *make_path(const struct bx_job *job, const char *pattern)
{
    char path[PATH_BYTES];
    size_t used = 0;

    while (*pattern != '\0' && used < sizeof path - BXI_NAME_BYTES - 1) {
        if (pattern[0] == '%' && pattern[1] == 'j') {
            used = (size_t)(stpcpy(path + used, job->job_name) - path);
            pattern += 2;
        } else {
            path[used++] = *pattern++;
        }
    }
    path[used] = '\0';
    return strdup(path);
}

static int open_trace_file(struct bx_job *job, struct bxi_trace *trace)
{
    char first[2 * BXI_NAME_BYTES + 128];
    int fd;

    snprintf(first, sizeof first, ",\"job\":\"%s\",\"world_size\":%d,\"clock\":\"CLOCK_MONOTONIC\"},"
                                  "\"pid\":0,\"tid\":%d}", job->job_name, job->world_size, (int)gettid());
    fd = job->rank == job->root ? bxi_trace_file_begin(trace->path, job->instance, first)
                                : bxi_trace_file_open(trace->path, job->instance);
    if (fd >= 0) {
        trace->file = (struct bxi_trace_file){ fd, job->instance };
        return 0;
    }
    if (fd == -ESTALE)
        return bx_fail(fd, "%s was not begun by rank 0 of this job; does it have the same BX_TRACE?", trace->path);
    if (fd == -EAGAIN)
        return bx_fail(fd, "%s is held by a worker of an older job, which is stopped", trace->path);
    if (fd == -EINVAL)
        return bx_fail(fd, "%s is not a regular file", trace->path);
    if (fd == -ELOOP)
        return bx_fail(fd, "%s is a symbolic link, which is not followed; name the file that it leads to", trace->path);
    return bx_fail(fd, "%s cannot be written: %s", trace->path, bx_strerror(fd));
}

static void report_untraced(const struct bx_job *job, bool to_stderr)
{
    bxi_log(job, 1, "BX_TRACE: worker '%s' is not traced: %s", job->name, bx_error_text());
    if (to_stderr && !bxi_log_prints(1))
        dprintf(STDERR_FILENO, "boxcar: BX_TRACE: worker '%s' is not traced: %s\n", job->name, bx_error_text());
    bxi_clear_error();
}

void bxi_trace_start(struct bx_job *job, const struct bxi_trace_names *names, bool to_stderr)
{
    const char *pattern = getenv("BX_TRACE");
    struct bxi_trace *trace;
    int rc;

    if (pattern == NULL || pattern[0] == '\0')
        return;
    trace = calloc(1, sizeof *trace);
    if (trace != NULL)
        trace->marks_max = MARKS_MAX;
    if (secure_getenv("BX_TRACE") == NULL)
        rc = bx_fail(-EPERM, "this program runs with more rights than its caller (set-user-ID, set-group-ID, "
                             "capabilities), and opens no file for it");
    else if (trace == NULL || (trace->path = make_path(job, pattern)) == NULL)
        rc = bx_fail(-ENOMEM, "no memory");
    else if ((rc = bxi_number_from_environment("BX_TRACE_EVENTS", 1, UINT64_MAX, &trace->marks_max)) >= 0)
        rc = open_trace_file(job, trace);
    if (rc < 0) {
        report_untraced(job, to_stderr);
        if (trace != NULL)
            free(trace->path);
        free(trace);
        return;
    }
    trace->text_bytes = (size_t)(bxi_trace_put_worker(trace->text, job) - trace->text);
    trace->names = names;
    job->observe->trace = trace;
}

void bxi_trace_close(struct bx_job *job)
{
    struct bxi_trace *trace = job->observe->trace;
    struct timespec nap = { .tv_nsec = 1000000 };
    int rc;

    if (trace == NULL || bxi_job_is_forked(job))
        return;
    for (uint32_t turns = 0; !begin_writing(trace);)
        bxi_back_off(&turns);       /* a thread of the program writes, and will notice that the job is over */
    bxi_lock(&trace->lock);
    rc = bxi_exchange(&trace->off, 1) != 0 ? 0 : -EAGAIN;
    if (trace->left_out > 0 && rc < 0)
        put_mark(trace, &(struct bxi_mark){ .kind = BXI_MARK_LEFT_OUT, .begin_ns = trace->left_out_ns,
                                            .tid = (uint32_t)gettid(), .amount = trace->left_out });
    bxi_unlock(&trace->lock);
    for (int tries = 0; tries < LAST_TRIES && rc == -EAGAIN; tries++) {
        rc = write_marks(job, true);
        if (rc == 0)
            rc = append_text(trace);        /* no text, but it repairs what a killed worker tore */
        if (rc == -EAGAIN)
            nanosleep(&nap, NULL);
    }
    if (rc < 0)
        give_up(job, rc);
    end_writing(trace);
}

void bxi_trace_destroy(struct bx_job *job)
{
    struct bxi_trace *trace = job->observe->trace;

    if (trace == NULL)
        return;
    job->observe->trace = NULL;
    close(trace->file.fd);
    free(trace->filling.all);
    free(trace->draining.all);
    free(trace->path);
    free(trace);
}
