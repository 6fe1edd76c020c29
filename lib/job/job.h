/* SPDX-License-Identifier: MIT */
/*
 * What bootstrap.c (a worker's side, and what both sides make of the job), bootstrap_packet.c (one message),
 * bootstrap_root.c (rank 0's side) and bootstrap_files.c (the socket directory and its files) share: the messages on
 * the socket and the files beside it. spawn.c uses the last part.
 *
 *     worker                                  rank 0
 *     HELLO    who it is               ->
 *                                      <-     WELCOME  the instance
 *     JOIN     its five descriptors    ->
 *                                      <-     TABLE    those of the others, in chunks, worker by worker
 *     ATTACHED                         ->
 *                                      <-     GO       when all have attached
 *
 * and NOTE, a sentence for the log, from rank 0 to those who wait for others for long;
 * and FAIL, with a code and a sentence, from either side at any time: from rank 0 it ends that worker's
 * start, from a worker everybody's. A message is one packet of SOCK_SEQPACKET.
 */
#ifndef BXI_JOB_H
#define BXI_JOB_H

#include "rpc/rpc.h"

#define BXI_BOOT_MAGIC UINT64_C(0x544f4f4252435842)     /* "BXCRBOOT" in memory, little endian */
#define BXI_BOOT_PROTOCOL 3u
#define BXI_BOOT_PATH_BYTES 108         /* of sockaddr_un.sun_path */
#define BXI_BOOT_FDS 5                  /* of a worker: segment and arena (read-only), two bells, pidfd */
#define BXI_BOOT_TABLE_MAX 32           /* workers in one TABLE: 160 descriptors; the kernel takes 253 */
enum bxi_boot_fd { BXI_BOOT_SEGMENT, BXI_BOOT_ARENA, BXI_BOOT_BELL, BXI_BOOT_BELL_LEADER, BXI_BOOT_PIDFD };

enum bxi_boot_kind {
    BXI_BOOT_HELLO = 1,
    BXI_BOOT_WELCOME,
    BXI_BOOT_JOIN,
    BXI_BOOT_TABLE,
    BXI_BOOT_ATTACHED,
    BXI_BOOT_GO,
    BXI_BOOT_FAIL,
    BXI_BOOT_NOTE,
};

/* The same in every version, so that two versions can tell each other so; and FAIL is. */
struct bxi_boot_head {
    uint64_t magic;
    uint32_t protocol;
    uint32_t layout;
    uint32_t kind;
    uint32_t reserved;
};
struct bxi_boot_hello {
    struct bxi_boot_head head;
    uint64_t deadline_ns;               /* CLOCK_MONOTONIC: when it will have waited long enough */
    int32_t rank;
    int32_t world_size;
    uint32_t pid;
    uint32_t reserved;
    char name[BXI_NAME_BYTES];
};
struct bxi_boot_welcome {
    struct bxi_boot_head head;
    uint64_t instance;
    char name[BXI_NAME_BYTES];          /* rank 0's */
};
struct bxi_boot_table {
    struct bxi_boot_head head;
    uint32_t count;
    uint32_t reserved;
    struct bxi_boot_entry {
        int32_t rank;
        uint32_t pid;
        char name[BXI_NAME_BYTES];
    } entry[BXI_BOOT_TABLE_MAX];        /* count of them travel, with BXI_BOOT_FDS descriptors each */
};
struct bxi_boot_note {
    struct bxi_boot_head head;
    char text[BXI_TEXT_BYTES];
};
struct bxi_boot_fail {
    struct bxi_boot_head head;
    int32_t code;
    uint32_t reserved;
    char text[BXI_TEXT_BYTES];
};

/* A message that came, with its descriptors, which are the packet's until they are taken (set to -1). */
struct bxi_boot_packet {
    union {
        struct bxi_boot_head head;
        struct bxi_boot_hello hello;
        struct bxi_boot_welcome welcome;
        struct bxi_boot_table table;
        struct bxi_boot_fail fail;
        struct bxi_boot_note note;
    } as;
    size_t bytes;
    int fds[BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS];
    int fd_count;
};

/* The files of a job in the socket directory. */
struct bxi_boot_paths {
    char socket[BXI_BOOT_PATH_BYTES];
    char lock[BXI_BOOT_PATH_BYTES];
};

/* ---- bootstrap_packet.c -------------------------------------------------------------------------- */

struct bxi_boot_head bxi_boot_head(enum bxi_boot_kind kind);

/* Sends one packet; waits while the queue or the user's allowance of descriptors in flight is full, until
 * deadline_ns. 0, -ETIMEDOUT, -errno. */
struct bxi_boot_out {
    const void *data;
    size_t bytes;
    const int *fds;
    int fd_count;
};
int bxi_boot_send(int fd, const struct bxi_boot_out *out, uint64_t deadline_ns);
/* FAIL with this thread's sentence. Never waits; who cannot be told sees the hang-up. */
void bxi_boot_send_fail(int fd, int code);

/* Takes one packet, without waiting. 1; 0 when the other side has hung up; -EAGAIN; -EMFILE when the
 * descriptors in it were lost to the limit; -EPROTO for what no worker sends; -errno. */
int bxi_boot_receive(int fd, struct bxi_boot_packet *packet, int fds_max);
void bxi_boot_packet_close(struct bxi_boot_packet *packet);
/* Whether it is a whole message of that kind and of this version, with that many descriptors (a TABLE:
 * as many as its count says). */
bool bxi_boot_packet_is(const struct bxi_boot_packet *packet, enum bxi_boot_kind kind, int fd_count);
/* The code of a FAIL, its sentence set; 0 if it is none. */
int bxi_boot_packet_failure(struct bxi_boot_packet *packet);

/* 1, or 0 at the deadline; -errno. */
int bxi_boot_wait(int fd, short events, uint64_t deadline_ns);

/* Whether the other end belongs to this user; its pid. */
bool bxi_boot_is_own(int fd, uint32_t *pid);

/* ---- bootstrap.c --------------------------------------------------------------------------------- */

/* job->instance is set: makes job->segment and job->lend->arena, and a descriptor of each that can only be read.
 * 0, or a failure with its sentence (BX_E_NO_SPACE, BX_E_DESCRIPTORS, -errno). */
int bxi_boot_segment(struct bx_job *job, int *segment_fd, int *arena_fd);

/* Makes job->rpc->peers[entry->rank] of what came; bells and pidfd become the peer's, the others stay the caller's.
 * 0; -EPROTO and the like where it is not right; no sentence. */
int bxi_boot_add_peer(struct bx_job *job, const struct bxi_boot_entry *entry,
                      const int fds[BXI_BOOT_FDS]);
void bxi_boot_undo(struct bx_job *job);     /* all that the bootstrap made of the job */

int bxi_boot_no_descriptors(const struct bx_job *job);      /* BX_E_DESCRIPTORS and its sentence */

#define BXI_BOOT_LOOK_NS UINT64_C(100000000)        /* between two looks at what no descriptor tells */
#define BXI_BOOT_TELL_NS UINT64_C(2000000000)       /* who waits for so long says for whom, */
#define BXI_BOOT_AGAIN_NS UINT64_C(10000000000)     /* and once more after each of these */

/* Since the bootstrap began, for sentences. */
double bxi_boot_seconds(uint64_t start_ns);

/* ---- limits.c ------------------------------------------------------------------------------------ */

/* Why a worker's objects in /dev/shm could not be made: the code, with a sentence that says what to do. */
int bxi_limits_no_space(const struct bx_job *job);          /* BX_E_NO_SPACE: room, or inodes */
int bxi_limits_no_segment(const struct bx_job *job, const char *name, int rc);
int bxi_limits_no_arena(const struct bx_job *job, const char *name, int rc);
/* Behind the sentence that something could not be mapped: "" unless addresses are short (-ENOMEM). */
#define BXI_MAP_HINT_BYTES 320
const char *bxi_limits_map_hint(const struct bx_job *job, int rc, char hint[BXI_MAP_HINT_BYTES]);

/* ---- bootstrap_root.c ---------------------------------------------------------------------------- */

int bxi_boot_root(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns);

/* ---- bootstrap_files.c --------------------------------------------------------------------------- */

/* 0, BX_E_SOCKET_DIR. */
int bxi_boot_paths(const char *job_name, struct bxi_boot_paths *paths);

/* Rank 0: takes the lock of the job's name (boot->lock_fd). 0, BX_E_JOB_RUNNING, BX_E_DESCRIPTORS, BX_E_SOCKET_DIR. */
int bxi_boot_lock(struct bx_job *job, const struct bxi_boot_paths *paths);
/* Says in the lock file that the gate is about to open. */
void bxi_boot_lock_running(const struct bx_job *job);
/* Says there that the start failed, with this thread's sentence, removes it and gives up the lock. */
void bxi_boot_unlock_failed(struct bx_job *job, const struct bxi_boot_paths *paths, int code);

/* The pid of who holds the lock of the job's name; 0 if nobody does (or no pid can be told: -1). */
long bxi_boot_lock_holder(const char *lock_path);
/* "process PID", or that it is not known: who takes the lock writes its pid a moment later. */
#define BXI_HOLDER_BYTES 64
const char *bxi_boot_holder_text(long pid, char text[BXI_HOLDER_BYTES]);

/* Removes the job's lock file and gives up the lock (job->boot->lock_fd), if it has it. May set the thread's
 * sentence. */
void bxi_bootstrap_release(struct bx_job *job);

/* Removes socket and lock file of a job whose rank 0 has gone; those of one that runs are not touched. The second may
 * set the thread's sentence. code < 0: those who still wait for rank 0 fail with that and with this thread's
 * sentence. */
void bxi_boot_sweep(const struct bxi_boot_paths *paths, int code);
void bxi_bootstrap_sweep(const char *job_name);

/* The lock file as a worker sees it that waits for rank 0. fd is -1 at first. */
struct bxi_boot_watch {
    int fd;
};
/* 0: rank 0 may still come. Else its failure, or BX_E_RANK_TAKEN: this rank's worker of the job that runs lives. */
int bxi_boot_watch_look(struct bxi_boot_watch *watch, const struct bx_job *job, const struct bxi_boot_paths *paths);
void bxi_boot_watch_close(struct bxi_boot_watch *watch);

/* Removes the names that a worker of this instance left in /dev/shm when it died. */
void bxi_boot_unlink_dead(const struct bx_job *job, int rank);
/* The same for all peers whose processes have ended; of rank 0 socket and lock file too. Who ends its job calls it
 * last, so that the last one out leaves nothing. May set the thread's sentence. */
void bxi_boot_clear_dead(const struct bx_job *job);

/* ---- spawn.c ------------------------------------------------------------------------------------- */

/* In a child of bx_spawn: what to remove when SIGTERM ends it, before it is made: its segment and arena, which the
 * launcher is told too; and rank 0's files (NULL: they are no longer its own). Elsewhere nothing. */
void bxi_spawn_note_segment(const struct bx_job *job, const char *shm_name, const char *arena_name);
void bxi_spawn_note_files(const struct bx_job *job, const struct bxi_boot_paths *paths);
/* Likewise that it waits for rank 0, with the lock file open, which it may have made (NULL: no longer). */
void bxi_spawn_note_wait(const struct bx_job *job, const struct bxi_boot_paths *paths);
/* The job is about to be freed: nothing of it is left to be removed. */
void bxi_spawn_forget(const struct bx_job *job);

/* In a worker of the job that bx_spawn was asked for, while it starts: BX_E_WORKER_FAILED and its sentence if the
 * worker of that rank has ended (-1: any has; the first); else 0. The second waits for that up to a second: for a
 * worker that has hung up. Elsewhere both are 0. */
int bxi_spawn_look(const struct bx_job *job, int rank);
int bxi_spawn_how_ended(const struct bx_job *job, int rank);
/* It is in the job from here on, or has left it. */
void bxi_spawn_in_job(const struct bx_job *job, bool is_in);
bool bxi_spawn_is_worker(void);         /* whether this process is such a child */

/* ---- The part of the job --------------------------------------------------------------------------- */

struct bxi_boot {
    int pidfd;                                  /* start: on oneself */
    int lock_fd;                                /* start; rank 0: says that this job's name is in use; -1 */
    uint32_t deaths_reported;                   /* by bx_job_serve */
};

/* A job with its parts, in one block of memory. */
struct bxi_whole_job {
    struct bx_job job;                          /* first */
    struct bxi_boot boot;
    _Alignas(BXI_LINE) struct bxi_run run;
    _Alignas(BXI_LINE) struct bxi_observe observe;
    _Alignas(BXI_LINE) struct bxi_lend lend;
    _Alignas(BXI_LINE) struct bxi_device device;
    _Alignas(BXI_LINE) struct bxi_rpc rpc;
};
void bxi_job_link(struct bxi_whole_job *whole);     /* sets the job's pointers to its parts */

/* ---- drive.c ------------------------------------------------------------------------------------- */
void bxi_drive_init(struct bx_job *job);        /* the job's part run, with its sources; no descriptors yet */
int bxi_drive_start(struct bx_job *job);        /* progress begins */

/* ---- job.c --------------------------------------------------------------------------------------- */
/* The bootstrap calls it once the segment is there, before any peer can see it. */
void bxi_job_adopt_segment(struct bx_job *job);

/* ---- bootstrap.c --------------------------------------------------------------------------------- */
/* Meets the others by a Unix socket. On entry rank, world_size, job_name, name, bell_fd, pidfd and
 * zeroed peers are there. On success: instance, segment (state STARTING), and of every peer but oneself
 * rank, name, pid, pidfd, bell (word and descriptors), view; of oneself rank, name, pid. On failure
 * whatever it made is undone. Both with a sentence. */
int bxi_bootstrap(struct bx_job *job, uint64_t deadline_ns);
/* The directory of the sockets ("$XDG_RUNTIME_DIR/boxcar" or "/tmp/boxcar-<uid>"), made 0700 and checked
 * to be one's own. 0, BX_E_SOCKET_DIR. */
int bxi_socket_dir(char *out, size_t bytes);

/* ---- shutdown.c ------------------------------------------------------------------------------------ */
void bxi_job_leave(struct bx_job *job);         /* at once: state LEFT, threads stopped, names gone */

#endif
