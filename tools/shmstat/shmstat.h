/* SPDX-License-Identifier: MIT */
/*
 * What the files of shmstat share: the jobs that were found, private copies of what their workers told,
 * and the writer of JSON.
 *
 * Everything that is read comes by pread into memory of this process (a segment that somebody truncates
 * meanwhile is a short read, not a SIGBUS), and nothing of it is trusted: what is used as an index, a
 * length or text is checked first. Nothing is written to anybody's memory and nobody is locked out: the
 * owner lock is asked about, and taken only by `reap --yes`.
 */
#ifndef TOOLS_STAT_H
#define TOOLS_STAT_H

#include "observe/tables.h"
#include "shm/layout.h"
#include "shm/segment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum stat_exit {
    STAT_FINE = 0,
    STAT_FOUND = 1,             /* check: violations; reap: something could not be removed */
    STAT_USAGE = 2,
    STAT_NOTHING = 3,           /* no such job, or nothing of it could be read */
};

/* Of top. */
struct stat_top_options {
    bool batch;                 /* text on stdout, and no keys */
    long count;                 /* of them; 0: until a signal */
    int width, height;          /* 0: the terminal's, else 80 and 24 */
    double interval_s;          /* 0: 1 s */
    double stuck_s;             /* 0: 10 s */
    const char *view, *sort, *filter;
};

struct stat_options {
    const char *select;         /* a job's name, or name.instance; NULL for all */
    const char *subject;        /* of why: a worker's name or rank, or a call */
    bool json;
    bool prometheus;
    bool yes;
    struct stat_top_options top;
};

/* ---- Jobs (stat_jobs.c) ------------------------------------------------------------------------- */

/* One object in /dev/shm. */
struct stat_object {
    bool exists;
    bool alive;                 /* somebody holds the owner lock */
    int fd;                     /* -1 once the job is closed */
    uint64_t bytes;             /* size of the file */
    uint64_t held;              /* pages that it takes, in bytes */
    bool on_tmpfs;
};

enum stat_found {
    STAT_ABSENT,                /* there is an arena, but no segment */
    STAT_BLANK,                 /* being made, or its owner was killed while it made it */
    STAT_OTHER_VERSION,         /* version, uid, pid and rank are known */
    STAT_NOISE,                 /* problem says why */
    STAT_READABLE,              /* control is there */
};

struct stat_worker {
    int rank;                   /* as the file's name has it */
    struct stat_object segment;
    struct stat_object arena;
    enum stat_found found;
    char problem[200];          /* a sentence, unless it is READABLE */
    uint32_t layout_version;
    uint32_t pid;
    uint32_t state;             /* enum bxi_state; 0 if it is not known */
    char process;               /* a letter of /proc/PID/stat; 0 if dead or not known */
    char name[BXI_NAME_BYTES];  /* printable; "" if it is not known */
    struct bxi_control *control;                        /* a private copy; NULL unless READABLE */
    /* Copied after the controls of all workers: credit is never behind what control says was written. */
    struct bxi_credit credit[BXI_WORLD_MAX];
    struct bxi_pair_counters received[BXI_WORLD_MAX];
    /* By the ring's rank, once stat_unread_read was called: age of the oldest unread frame; < 0: there is none; NAN:
     * not known. */
    double unread_s[BXI_WORLD_MAX];
    struct bxi_hist *hists;     /* private copies; NULL if there are none, or they were not asked for */
    uint32_t hist_count;
    struct stat_gpu *gpu;       /* stat_gpu.h; NULL if it has no GPU open, or that was not asked for */
};

struct stat_job {
    char name[BXI_NAME_BYTES];
    uint64_t instance;
    struct stat_worker *workers[BXI_WORLD_MAX];         /* by rank; NULL where nothing was found */
    bool twin;                  /* another job found has the same name */
};

struct stat_jobs {
    struct stat_job *list;      /* by name, then instance */
    size_t count;
};

/* Finds the jobs of this user by the names in /dev/shm, and keeps those that were asked for. 0, -errno. */
int stat_jobs_find(struct stat_jobs *jobs, const char *select);
void stat_jobs_free(struct stat_jobs *jobs);

/* Opens and copies what the workers of the job show. The descriptors stay open with keep_open, until
 * stat_job_close. -ENOMEM. */
int stat_job_read(struct stat_job *job, bool keep_open);
void stat_job_close(struct stat_job *job);

/* Whether somebody holds the owner lock of an open object now. */
bool stat_is_locked(const struct stat_object *object);
/* Reads exactly that many bytes of an open object. 0, -ENODATA if it is shorter, -errno. */
int stat_pread(const struct stat_object *object, void *to, uint64_t bytes, uint64_t offset);

const struct stat_worker *stat_reader(const struct stat_job *job, uint32_t rank);    /* NULL: not READABLE */
bool stat_worker_alive(const struct stat_worker *worker);
bool stat_job_alive(const struct stat_job *job);
/* Whether there is a worker among them that can be read; or no job at all, which is fine as well. */
bool stat_jobs_readable(const struct stat_jobs *jobs);
const char *stat_job_state(const struct stat_job *job);
/* How many workers the job has, as the first readable of them says; else as many as were found. */
int stat_job_size(const struct stat_job *job);
/* The ranks that have not come, of a job that lives and is starting: how many, into missing. Else 0. */
size_t stat_job_missing(const struct stat_job *job, uint64_t missing[BXI_WORLD_MAX]);
/* "rank 1 has not come", "ranks 1, 3, 4 have not come"; false if the job waits for nobody. */
bool stat_job_missing_text(const struct stat_job *job, char *text, size_t bytes);
uint64_t stat_job_started_ns(const struct stat_job *job);       /* CLOCK_REALTIME; 0 if it is not known */
const char *stat_state_name(uint32_t state);
const char *stat_who_name(uint64_t armed);
/* What its process does: "awake", "spinning", "asleep", "stopped", "dead". */
const char *stat_activity(const struct stat_worker *worker);
/* A letter of /proc/PID/task/THREAD/stat; 0 if it is not known. */
char stat_thread_state(uint32_t pid, uint64_t thread);
/* Threads of its pool that run a handler now. */
int stat_pool_busy(const struct stat_worker *worker);
const char *stat_kind_name(uint32_t kind);
const char *stat_peer_name(const struct stat_job *job, int rank);

/* A word of a private copy. */
static inline uint64_t stat_word(const bxi_a64 *word)
{
    /* Relaxed: nobody else writes the copy. */
    return bxi_load_relaxed((bxi_a64 *)word);
}

/* Bytes of ring p that the worker wrote and the peer has not given free; false if the peer cannot be read. */
bool stat_ring_fill(const struct stat_job *job, const struct stat_worker *worker, int to, uint64_t *fill);

/* ---- Rings (stat_ring.c) ------------------------------------------------------------------------ */

/* Seconds since the oldest frame was sent that lies unread in that ring: as worker.unread_s. Its descriptors must
 * be open. */
double stat_oldest_unread(const struct stat_job *job, const struct stat_worker *worker, int to);
/* Of all rings. */
void stat_unread_read(struct stat_job *job);

/* ---- Histograms (stat_hist.c) ------------------------------------------------------------------- */

/* Copies the histograms of all workers, whose descriptors must be open. 0, -ENOMEM. */
int stat_hists_read(struct stat_job *job);
/* Of a private copy. Whose it is: false if it names no worker of the caller's job. */
bool stat_hist_callee(const struct stat_worker *caller, const struct bxi_hist *hist, int *callee);
void stat_hist_name(const struct bxi_hist *hist, char name[BXI_NAME_BYTES]);        /* printable */
const char *stat_leg_name(int leg);
uint64_t stat_hist_samples(const struct bxi_hist *hist, int leg);
/* What a share q of the samples took at most, in ns; 0 if there are none. */
double stat_hist_quantile(const struct bxi_hist *hist, int leg, double q);
/* How long calls took, by function: a table, and the list "latencies". 0, -ENOMEM. */
int stat_hists_text(const struct stat_job *job);
int stat_hists_json(const struct stat_job *job);

/* ---- Text (stat_text.c) ------------------------------------------------------------------------- */

/* "1.5 MiB"; "12 s", "3 h 07 min"; "1.23 us", "20.1 ms", in eight characters. All into memory of theirs, good for
 * the next seven calls. */
const char *stat_bytes_text(uint64_t bytes);
const char *stat_span_text(double seconds);
const char *stat_time_text(double seconds);
/* A name in at most so many characters, of which the last two are ".." if it had to be cut; as above. */
const char *stat_cut_text(const char *name, size_t most);
/* Copies at most bytes - 1 characters, anything unprintable as '?'. */
void stat_printable(char *to, size_t bytes, const char *from, size_t from_bytes);
uint64_t stat_now_ns(int clock);
/* Seconds since; 0 for what lies ahead. */
double stat_since(uint64_t then_ns, int clock);

/* Prints words one after the other and begins a new line, indented, before the 80th column. */
struct stat_flow {
    int indent;
    int column;
};
void stat_flow_begin(struct stat_flow *flow, const char *label);
void stat_flow_add(struct stat_flow *flow, const char *format, ...) __attribute__((format(printf, 2, 3)));
void stat_flow_words(struct stat_flow *flow, const char *text);     /* a sentence, word by word */
void stat_flow_end(struct stat_flow *flow);

/* Who it is and what it does; and why, if it cannot be read. */
void stat_worker_text(const struct stat_worker *worker);

/* JSON on stdout. Keys are NULL in arrays. */
void stat_json_begin(const char *command);          /* the object that holds all */
void stat_json_end(void);
void stat_json_open(const char *key, char bracket);     /* '{' or '[' */
void stat_json_close(char bracket);                     /* '}' or ']' */
void stat_json_text(const char *key, const char *text);     /* NULL, and "" for a name: null */
void stat_json_u64(const char *key, uint64_t value);
void stat_json_u64s(const char *key, const uint64_t *values, size_t count);     /* a list in one line */
void stat_json_seconds(const char *key, double seconds);
void stat_json_bool(const char *key, bool value);
void stat_json_null(const char *key);
void stat_json_job(const struct stat_job *job);         /* the keys of a job, without its bracket */
void stat_json_worker(const struct stat_worker *worker);

/* ---- Subcommands: a return is an exit status ---------------------------------------------------- */

int stat_ls(const struct stat_options *options);
int stat_show(const struct stat_options *options);
int stat_check(const struct stat_options *options);
int stat_reap(const struct stat_options *options);
int stat_calls(const struct stat_options *options);
int stat_why(const struct stat_options *options);
int stat_gpu(const struct stat_options *options);
int stat_top(const struct stat_options *options);
/* One flag of top's and its value: how many words it is, 0 if it is none of its, -1 after a line on stderr. */
int stat_top_flag(struct stat_top_options *options, char **words, int count);

/* Finds and reads the jobs that were asked for; STAT_NOTHING, with a line, if the one asked for is not
 * there. */
int stat_find(struct stat_jobs *jobs, const struct stat_options *options);
/* The same, and what a command that lists jobs prints before them; after STAT_FINE the other prints what comes behind
 * them and frees them. */
int stat_list_begin(struct stat_jobs *jobs, const struct stat_options *options, const char *command);
void stat_list_end(struct stat_jobs *jobs, const struct stat_options *options);
/* The text exposition format (stat_prometheus.c). */
void stat_prometheus(const struct stat_jobs *jobs);

/* ---- check's findings (stat_check*.c) ------------------------------------------------------------ */

struct stat_violation {
    char series;                /* 'G' of gpu/README.md; 0: 'I' of shm/layout.h */
    int invariant;
    int rank;
    int peer;                   /* -1 where it is about no pair */
    char text[240];
};

struct stat_findings {
    struct stat_violation *list;
    size_t count;
    uint64_t dropped;           /* violations beyond those listed */
    uint64_t workers;
    uint64_t rings;
    uint64_t records;
    uint64_t unsettled;         /* places that moved each time they were looked at */
};

void stat_violate(struct stat_findings *findings, const struct stat_violation *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Ring `to` of the worker, whose open word is 1 (I6, I7, I8), the lease words (I10) and the rows of calls (I12)
 * behind it. */
void stat_check_ring(const struct stat_job *job, const struct stat_worker *worker, int to,
                     struct stat_findings *findings);
void stat_check_leases(const struct stat_job *job, const struct stat_worker *worker, int to,
                       struct stat_findings *findings);
void stat_check_calls(const struct stat_worker *worker, int to, struct stat_findings *findings);
/* What it tells of the requests that it serves (I11), and its histograms (I13): stat_check_tables.c. */
void stat_check_served(const struct stat_worker *worker, struct stat_findings *findings);
void stat_check_hists(const struct stat_job *job, const struct stat_worker *worker, struct stat_findings *findings);
/* What it tells of its device memory, and holds of others' (G1 to G4, G6, G7): stat_check_gpu.c. */
void stat_check_gpu(const struct stat_job *job, const struct stat_worker *worker, struct stat_findings *findings);
/* Where the producer of that ring stands, as far as can be told now; false if it cannot. */
bool stat_write_end(const struct stat_worker *worker, int to, uint64_t *end);

#endif
