/* SPDX-License-Identifier: MIT */
/*
 * The private header of the room job: its part of the job, the protocol of the bootstrap, and what each file offers to
 * the others. "Start" is the thread in bx_job_start, before any other thread of the job exists.
 *
 * How two processes of a job meet (bootstrap_meet.c). Each message is one packet of SOCK_SEQPACKET. The process that
 * starts asks; the process that is asked is rank 0 in the first start, which gathers the others, and in a start that
 * takes the place of a dead worker each worker that lives, at its door.
 *
 *     asks                                    is asked
 *     HELLO    who it is               ->
 *                                      <-     WELCOME  the instance; generations and names of all ranks
 *     JOIN     its five descriptors    ->
 *                                      <-     TABLE    rank 0: those of the others, in chunks; a door: this worker's
 *
 * Rank 0 serves one worker after the other, and opens the gate when all have attached all:
 *
 *     ATTACHED                         ->
 *                                      <-     GO
 *
 * NOTE is a sentence for the log, from rank 0 to the workers that have come, if others do not come for long. FAIL, a
 * code and a sentence, may go either way at any time. From the process that is asked it ends the start of that worker;
 * from a worker to rank 0 it ends the start of all.
 *
 * A start goes through these states. What a worker that is killed leaves: nothing before it has made names; then its
 * names, which the process that sees the hang-up or the pidfd removes.
 *
 *     state      the worker has             waits for                 is killed: who sees it
 *     alone      nothing                    rank 0's socket, or the   nobody; the next rank 0 takes the lock file that
 *                                           joiners' mutex            it may have made
 *     asking     a connection (HELLO)       WELCOME                   rank 0 drops the connection; a door too
 *     welcomed   the instance, then names   TABLE                     rank 0 by the hang-up: the start of all fails;
 *                in /dev/shm, JOIN sent                               no door: the next joiner removes the names
 *     attached   all peers mapped           the gate: rank 0's state  as above; each worker that has attached a joiner,
 *                                           (a joiner: its own)       by its pidfd
 *     running    passed the gate                                      all, by its pidfd
 */
#ifndef BXI_JOB_H
#define BXI_JOB_H

#include "net/net.h"
#include "rpc/rpc.h"

/* ---- The part of the job ------------------------------------------------------------------------- */

#define BXI_BOOT_PATH_BYTES 108         /* of sockaddr_un.sun_path */

/* The socket directory, and the files of a job in it. */
struct bxi_boot_paths {
    char directory[BXI_BOOT_PATH_BYTES];
    char socket[BXI_BOOT_PATH_BYTES];
    char lock[BXI_BOOT_PATH_BYTES];
    char join[BXI_BOOT_PATH_BYTES];     /* the joiners' mutex */
};

struct bxi_boot {
    struct bxi_boot_paths paths;        /* start */
    int pidfd;                          /* start: of this process; or a pipe that hangs up when it ends (machine.c) */
    int alive_fd;                       /* start: the end of that pipe for writing; else 0 */
    int lock_fd;                        /* start; rank 0: the lock file, with the lock of the job's name; else -1 */
    int door_fd;                        /* start, then the door's thread; options.rejoin: a listening socket; else 0 */
    char door_path[BXI_BOOT_PATH_BYTES];    /* start: its name */
    int mutex_fd;                       /* start; while this worker joins a job that runs: the joiners' mutex; else 0 */
    struct bxi_door *door;              /* start: its thread's; NULL */
    uint32_t deaths_reported;           /* by bx_job_serve. Lock */
};

/* A job with its parts, in one block of memory. */
struct bxi_whole_job {
    struct bx_job job;                  /* first */
    struct bxi_boot boot;
    _Alignas(BXI_LINE) struct bxi_run run;
    _Alignas(BXI_LINE) struct bxi_observe observe;
    _Alignas(BXI_LINE) struct bxi_lend lend;
    _Alignas(BXI_LINE) struct bxi_device device;
    _Alignas(BXI_LINE) struct bxi_rpc rpc;
    _Alignas(BXI_LINE) struct bxi_rrefs rrefs;
};

/* ---- bootstrap_packet.c: one message. Start, on both sides --------------------------------------- */

#define BXI_BOOT_MAGIC UINT64_C(0x544f4f4252435842)     /* "BXCRBOOT" in memory, little endian */
#define BXI_BOOT_PROTOCOL 7u
#define BXI_BOOT_TABLE_MAX 32           /* workers in one TABLE: 160 descriptors; the kernel takes 253 */

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

/* The head and FAIL are the same in every version, so that two versions can report that they differ. */
struct bxi_boot_head {
    uint64_t magic;
    uint32_t protocol;
    uint32_t layout;
    uint32_t kind;
    uint32_t reserved;
};
/* HELLO; with five descriptors JOIN. */
struct bxi_boot_hello {
    struct bxi_boot_head head;
    uint64_t instance;                  /* 0: not known yet */
    uint64_t left_ns;                   /* until this worker gives up; BX_FOREVER */
    int32_t rank;
    int32_t world_size;
    uint32_t pid;
    uint32_t generation;                /* 1 while it has none yet */
    uint32_t rejoin;                    /* 1: options.rejoin */
    uint32_t reserved;
    char name[BXI_NAME_BYTES];
};
struct bxi_boot_welcome {
    struct bxi_boot_head head;
    uint64_t instance;
    uint64_t now_ns;                    /* the clock of the one that answers: bxi_boot_check_welcome */
    char name[BXI_NAME_BYTES];          /* its own */
    struct bxi_boot_known {             /* what a worker at its door knows of each rank */
        uint32_t generation;            /* the highest; 0: none */
        uint32_t ran;                   /* of the last that ran */
        uint32_t lives;                 /* it has not left, and its pidfd does not report its end */
        uint32_t reserved;
        char name[BXI_NAME_BYTES];      /* "": unknown */
    } known[BXI_WORLD_MAX];
};
struct bxi_boot_table {
    struct bxi_boot_head head;
    uint32_t count;
    uint32_t reserved;
    struct bxi_boot_entry {
        int32_t rank;
        uint32_t pid;
        uint32_t generation;
        uint32_t reserved;
        char name[BXI_NAME_BYTES];
    } entry[BXI_BOOT_TABLE_MAX];        /* the packet has `count` of them, with BXI_BOOT_FDS descriptors each */
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

/* A received message. The packet owns its descriptors; a function that takes one sets it to -1. */
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
/* A message to send. */
struct bxi_boot_out {
    const void *data;
    size_t bytes;
    const int *fds;
    int fd_count;
};

struct bxi_boot_head bxi_boot_head(enum bxi_boot_kind kind);
/* Sends one packet. Waits until deadline_ns while the queue is full, or the user's allowance of descriptors in flight.
 * 0, -ETIMEDOUT, -errno. */
int bxi_boot_send(int fd, const struct bxi_boot_out *out, uint64_t deadline_ns);
/* Sends FAIL with this thread's sentence. Never waits; a worker that does not get it sees the hang-up. */
void bxi_boot_send_fail(int fd, int code);
/* Receives one packet without waiting. 1; 0: the other side has hung up; -EAGAIN; -EMFILE: its descriptors were lost to
 * the limit of open files; -EPROTO: no worker sends this; -errno. */
int bxi_boot_receive(int fd, struct bxi_boot_packet *packet, int fds_max);
void bxi_boot_packet_close(struct bxi_boot_packet *packet);
/* The packet is a whole message of that kind and of this version with fd_count descriptors (a TABLE: as many as its
 * count says). */
bool bxi_boot_packet_is(const struct bxi_boot_packet *packet, enum bxi_boot_kind kind, int fd_count);
/* The code of a FAIL, with its sentence set; 0: it is no FAIL. */
int bxi_boot_packet_failure(struct bxi_boot_packet *packet);

/* ---- bootstrap_meet.c: the handshake. Start, the door ------------------------------------------------ */

#define BXI_BOOT_BACKLOG 256
/* A socket that listens at that path. A name that is there is replaced: the caller knows that its process is dead.
 * -errno. */
int bxi_boot_listen(const char *path);
/* A connection, and the pid at the other end; 0: it is of another pid namespace. -ECONNREFUSED, -ENOENT: nobody is
 * there; -EAGAIN: many wait; -EACCES: another user's; -errno. */
int bxi_boot_connect(const char *path, uint32_t *pid);
/* The next connection, as BXI_UNSHARED makes it; those of other users are dropped with a line in the log. -EAGAIN:
 * there is none; -errno. */
int bxi_boot_accept(const struct bx_job *job, int listener, uint32_t *pid);
/* The process at the other end belongs to this user. Sets its pid. */
bool bxi_boot_is_own(int fd, uint32_t *pid);

/* "worker 'NAME' (rank R, pid P)", or what of it is known ("", 0). */
#define BXI_WHO_BYTES (2 * BXI_NAME_BYTES + 64)
const char *bxi_boot_who(char who[BXI_WHO_BYTES], const char *name, int rank, uint32_t pid);

/* The side that asks: whom. */
struct bxi_boot_asked {
    int fd;
    uint32_t pid;                       /* 0: of another pid namespace */
    uint64_t asked_ns;                  /* the last question */
    char who[BXI_WHO_BYTES];            /* for sentences */
};
/* Sends HELLO, or JOIN with fds. 0, as bxi_boot_send. A failure need not be looked at: a process that has hung up may
 * have sent why, and bxi_boot_next reads that. */
int bxi_boot_ask(const struct bx_job *job, struct bxi_boot_asked *asked, enum bxi_boot_kind kind, const int *fds,
                 uint64_t deadline_ns);
/* Waits for the next packet. 1; 0: the process has hung up, or has ended; -ETIMEDOUT; else a failure with its sentence,
 * also one that was sent. */
int bxi_boot_next(struct bx_job *job, const struct bxi_boot_asked *asked, struct bxi_boot_packet *packet, int fds_max,
                  uint64_t until_ns);
/* Closes the packet. -EPROTO with a sentence. */
int bxi_boot_nonsense(const struct bxi_boot_asked *asked, struct bxi_boot_packet *packet);
/* The packet is the WELCOME of that rank, and its clock (CLOCK_MONOTONIC) is this one's: frames carry deadlines as
 * times of it. A difference shorter than the answer took is not seen. 0; -EPROTO, -EINVAL (the two are in different
 * time namespaces) with a sentence. */
int bxi_boot_check_welcome(const struct bx_job *job, const struct bxi_boot_asked *asked, struct bxi_boot_packet *packet,
                           int rank);

/* The side that is asked. The packet is a HELLO or a JOIN that fits to this job; its rank is not checked. Sets a pid
 * that is 0. 0; -EBADMSG: nonsense; else a failure with its sentence. */
int bxi_boot_check_hello(const struct bx_job *job, const struct bxi_boot_packet *packet, uint32_t *pid);
int bxi_boot_rank_taken(const struct bx_job *job, int rank, const char *name, uint32_t pid);   /* BX_E_RANK_TAKEN */
/* Logs that process pid is rejected, with this thread's sentence, and sends FAIL. */
void bxi_boot_reject(const struct bx_job *job, int fd, uint32_t pid, int code);
void bxi_boot_log_nonsense(const struct bx_job *job, uint32_t pid);
/* rc with its sentence: the descriptors of that worker are wrong, or cannot be mapped. */
int bxi_boot_cannot_attach(const struct bx_job *job, const char *name, int rank, int rc);

/* ---- limits.c: what the system refuses, as a sentence that says what to do. Start ----------------- */

int bxi_limits_no_descriptors(const struct bx_job *job);    /* BX_E_DESCRIPTORS */
/* A file or a socket in the socket directory cannot be opened. BX_E_SOCKET_DIR; BX_E_DESCRIPTORS. */
int bxi_limits_no_file(const struct bx_job *job, const char *what, const char *path, int rc);
/* The segment or the arena could not be made, with rc. The code to fail with. */
int bxi_limits_no_segment(const struct bx_job *job, const char *name, int rc);
int bxi_limits_no_arena(const struct bx_job *job, const char *name, int rc);
/* Follows the sentence that something could not be mapped: "" unless addresses are short (-ENOMEM, -EINVAL). */
#define BXI_MAP_HINT_BYTES 320
const char *bxi_limits_map_hint(const struct bx_job *job, int rc, char hint[BXI_MAP_HINT_BYTES]);

/* ---- machine.c: what the machine gives ------------------------------------------------------------ */

/* Raises the soft limit of open files to what a job of this size needs. bx_job_create. 0, BX_E_DESCRIPTORS. */
int bxi_machine_raise_limit(const struct bx_job *job);
/* Makes the two eventfds and the pidfd, or what replaces it. bx_job_create. 0, BX_E_DESCRIPTORS, -errno. */
int bxi_machine_descriptors(struct bx_job *job);
/* Chooses io_uring or epoll (run->sleeper_kind). bx_job_create. 0; BX_E_URING: the options ask for io_uring, and the
 * kernel refuses it. */
int bxi_machine_sleeper(struct bx_job *job);
/* Writes into the header which CPUs this process may use, and the limits of its cgroups. bootstrap_job.c. */
void bxi_machine_publish(struct bxi_header *header);
/* CPUs that the workers of the job may use together, by what their segments say of CPUs and limits: as many as there
 * are workers if each is pinned to a core of its own. At least 1. bx_job_start. */
int bxi_machine_cpus(const struct bx_job *job);

/* ---- quota.c: limits of CPU time ------------------------------------------------------------------- */

/* The tightest limits of a worker's cgroups, the tightest first. */
struct bxi_quota {
    uint32_t cgroup[BXI_QUOTAS];        /* the inode of its directory: equal in workers that share the limit */
    uint32_t thousandths[BXI_QUOTAS];   /* of a CPU; 0: none, and none behind it */
};

/* The limits of this process. root: "" or, in tests, a directory that has proc/ and what mountinfo there names. */
void bxi_quota_read(const char *root, struct bxi_quota *quota);
/* CPUs that workers with these quotas may use together, rounded down, at least 1; INT_MAX: no limit. count is
 * BXI_WORLD_MAX at most. */
int bxi_quota_cpus(const struct bxi_quota *quotas, int count);

/* ---- options.c ----------------------------------------------------------------------------------- */

/* Fills job->options, job_name, name and observe->hist_every; given may be NULL. bx_job_create. 0, or the codes of
 * bx_job_create for what is wrong, with a sentence. */
int bxi_job_options(struct bx_job *job, const struct bx_options *given);
/* BX_ROOT is set, or PMIx says so: a launcher of several hosts has started this process. */
bool bxi_has_launcher(void);
/* Job, name, rank and world size of BX_JOB, BX_NAME, BX_RANK, BX_WORLD_SIZE; with BX_ROOT of what Open MPI or Slurm set
 * in place of the last two, and a job's name made of the port. 0, -EINVAL with a sentence. */
int bxi_options_of_launcher(struct bx_options *options);

/* ---- spawned.c: in a worker of bx_spawn. In other processes these functions do nothing -------------- */

/*
 * What launcher and workers share is memory without a name. Each page has one writer; all other processes map it
 * read-only, so a wild store ends the process that makes it. A child that a worker has forked does not have the
 * worker's page at all.
 *
 *     writer          field                 readers       order
 *     the launcher    board.end[].text      workers       before is_set; never changed afterwards
 *     the launcher    board.end[].is_set    workers       release, acquire: how the worker of that rank ended
 *     the launcher    board.first           workers       release, acquire, after is_set: who ended first
 *     a worker        page.rank             the launcher  before instance
 *     a worker        page.instance         the launcher  release, acquire: the names that it is about to make
 *     a worker        page.in_job           the launcher  release, acquire: starts of the job that it has not left
 *     a worker        page.was_in_job       the launcher  release, acquire, after in_job: it was in the job once
 *     a worker        page.refused_errno    the launcher  before its end: why it did not call the worker's function
 *
 * A worker that is started again (bx_spawn_options.restart) gets the page of the dead one. The launcher clears the page
 * before the fork; until then it is the only process that has the page. The board has no line about a worker that was
 * started again: the workers that read it then are to join the job, and a line ends their start.
 *
 * Killed at each step. The launcher, before is_set: no worker sees the text. Before first: a worker sees it if it asks
 * for that rank. A worker, before instance: it has made no name yet. After instance, before the names are made: there
 * is nothing to remove. Before in_job: its end by a signal is a bad one anyway. Before was_in_job: in_job says the
 * same.
 */
#define BXI_END_BYTES 160               /* "worker 'NAME' (rank R, pid P) was killed by signal S (TEXT)" */
struct bxi_board {
    bxi_a32 first;                      /* 1 + the rank of the first that ended; 0: none has */
    struct {
        bxi_a32 is_set;
        char text[BXI_END_BYTES];
    } end[BXI_WORLD_MAX];
};
struct bxi_worker_page {
    bxi_a64 instance;                   /* of the job, once its names may be there; 0: none was made */
    bxi_a32 rank;                       /* in that job */
    bxi_a32 in_job;                     /* jobs of that name that it has started and not left */
    bxi_a32 was_in_job;
    bxi_a32 refused_errno;              /* 0: nothing was refused */
};

/* What a worker gets from its launcher. */
struct bxi_spawned {
    const char *job_name;
    int world_size;
    struct bxi_board *board;
    struct bxi_worker_page *page;
    bool again;                         /* it was started in the place of one that died */
};
/* This process is a worker from here on. spawn.c, after the fork. */
void bxi_spawn_become(const struct bxi_spawned *spawned);
bool bxi_spawn_is_worker(void);         /* safe in a signal handler */

/* What SIGTERM removes of one job; a worker may have several. */
#define BXI_NOTES_MAX 16
enum bxi_noted {
    BXI_NOTED_SEGMENT,
    BXI_NOTED_ARENA,
    BXI_NOTED_SOCKET,                   /* rank 0's, and its lock file */
    BXI_NOTED_LOCK,
    BXI_NOTED_DOOR,
    BXI_NOTED_MUTEX,                    /* the joiners' */
    BXI_NOTED_WAIT,                     /* the lock file, which it may have made, while it waits for rank 0 */
    BXI_NOTED_COUNT,
};
struct bxi_note {
    const struct bx_job *job;           /* NULL: free */
    bxi_a32 is_there[BXI_NOTED_COUNT];
    char path[BXI_NOTED_COUNT][BXI_BOOT_PATH_BYTES];
};
/* Note i, below BXI_NOTES_MAX. spawn.c, in its signal handler. */
struct bxi_note *bxi_spawn_note_at(int i);

/* Notes what SIGTERM has to remove, before it is made. NULL: it is not this worker's any more. Start, the end of the
 * job. */
void bxi_spawn_note(const struct bx_job *job, enum bxi_noted what, const char *path);
/* The same for segment and arena, of which it tells the launcher too. */
void bxi_spawn_note_segment(const struct bx_job *job, const char *shm_name, const char *arena_name);
/* The job is about to be freed: nothing of it is left to be removed. bx_job_destroy. */
void bxi_spawn_forget(const struct bx_job *job);

/* For a worker of the job that bx_spawn was asked for. BX_E_WORKER_FAILED with a sentence if the worker of that rank
 * has ended (-1: any worker; the first) and will not be started again; else 0. In a worker that was started again
 * itself: the job ends. Start. */
int bxi_spawn_ended(const struct bx_job *job, int rank);
/* That worker has hung up in the start: as bxi_spawn_ended, for which it waits up to a second; else BX_E_PEER_DEAD with
 * a sentence. Start. */
int bxi_spawn_died(const struct bx_job *job, int rank, const char *who);
/* The worker is in the job from here on, or has left it. bx_job_start; bxi_job_leave. */
void bxi_spawn_in_job(const struct bx_job *job, bool is_in);

/* ---- bootstrap_files.c: the socket directory and its files ----------------------------------------- */

/* The directory of the sockets ("$XDG_RUNTIME_DIR/boxcar" or "/tmp/boxcar-<uid>"), made with mode 0700 and checked to
 * be this user's. 0, BX_E_SOCKET_DIR. */
int bxi_socket_dir(char *out, size_t bytes);
/* Makes that directory again, and checks it. 0, BX_E_SOCKET_DIR. The door's thread. */
int bxi_socket_dir_make(const char *path);
/* 0, BX_E_SOCKET_DIR. Start, sweeps, the end of a job. */
int bxi_boot_paths(const char *job_name, struct bxi_boot_paths *paths);

/* Rank 0, start: takes the lock of the job's name (boot->lock_fd). 0, BX_E_JOB_RUNNING, BX_E_DESCRIPTORS,
 * BX_E_SOCKET_DIR. */
int bxi_boot_lock(struct bx_job *job, const struct bxi_boot_paths *paths);
/* Rank 0, start: writes into the lock file that the gate is about to open. */
void bxi_boot_lock_running(const struct bx_job *job);
/* Rank 0, start: writes there that the start failed, with this thread's sentence, removes it and releases the lock. */
void bxi_boot_unlock_failed(struct bx_job *job, const struct bxi_boot_paths *paths, int code);
/* The end of a job: removes the lock file and releases the lock (boot->lock_fd), if the job holds it. May set the
 * thread's sentence. */
void bxi_bootstrap_release(struct bx_job *job);

/* Whether a process holds the lock of the job's name. holder: "process PID", or that its pid is unknown: a process
 * writes it a moment after it has taken the lock; or NULL. Start. */
#define BXI_HOLDER_BYTES 64
bool bxi_boot_lock_holder(const char *lock_path, char holder[BXI_HOLDER_BYTES]);
/* The last rank 0 was killed: the lock file has its line, and nobody holds the lock. Start. */
bool bxi_boot_lock_is_left(const char *lock_path);

/* "", or that another user has a job of that name: it follows a sentence that somebody did not come. */
#define BXI_OTHER_USER_BYTES 160
const char *bxi_boot_other_user(const char *job_name, char text[BXI_OTHER_USER_BYTES]);

/* Removes socket and lock file of a job whose rank 0 has gone, never those of a job that runs. code < 0: workers that
 * still wait for rank 0 fail with it and with this thread's sentence. Start, spawn.c's signal handler. */
void bxi_boot_sweep(const char *lock_path, int code);
/* The same with code 0, and what bxi_doors_sweep removes. May set the thread's sentence. When rank 0 has died; the end
 * of a job with options.rejoin; the launcher. */
void bxi_bootstrap_sweep(const char *job_name);

/* For a worker that waits for rank 0. *fd: the lock file, -1 at first; the caller closes it. 0: rank 0 may still come.
 * Else its failure, or BX_E_RANK_TAKEN: this rank's worker of the job that runs lives. */
int bxi_boot_watch(int *fd, const struct bx_job *job, const struct bxi_boot_paths *paths);

/* Removes the names that a worker of this instance left when it died: segment, arena, door. Start; rpc/watch.c. */
void bxi_boot_unlink_dead(const struct bx_job *job, int rank);
/* The same for all peers whose processes have ended; of rank 0 also socket and lock file. A worker calls it last when
 * it ends its job, so the last worker leaves nothing behind. May set the thread's sentence. */
void bxi_boot_clear_dead(const struct bx_job *job);

/* ---- door_files.c: the names of doors, and the joiners' mutex ------------------------------------------ */

struct bxi_door_id {
    uint64_t instance;
    int rank;
    uint32_t generation;
};
/* 0, BX_E_SOCKET_DIR. */
int bxi_door_path(char out[BXI_BOOT_PATH_BYTES], const struct bxi_boot_paths *paths, const char *job_name,
                  const struct bxi_door_id *id);
/* Calls found for each name of a door of that job, also of dead workers. 0, -errno. */
typedef void bxi_door_fn(void *context, const struct bxi_door_id *id);
int bxi_doors_find(const char *directory, const char *job_name, bxi_door_fn *found, void *context);
/* Closes this worker's door, if it has one, and removes its name. Nobody serves it (any more). */
void bxi_door_close(struct bx_job *job);
/* The descriptor of the file of that name, which take has locked. The holder may remove the name before it releases the
 * lock. flags: O_CREAT or 0. -EAGAIN: it is not taken; -errno. */
int bxi_boot_lock_file(const char *path, int flags, int (*take)(int fd));
/* The descriptor of the mutex; -EAGAIN: another process has it; -errno. */
int bxi_joiners_lock(const char *path);
void bxi_joiners_unlock(const char *path, int fd);
void bxi_joiners_release(struct bx_job *job);       /* boot->mutex_fd, if this worker has it. Start */
/* Removes the doors of that job name at which nobody listens, and the mutex if nobody has it. May set the thread's
 * sentence. Start; the end of a job; the launcher. */
void bxi_doors_sweep(const struct bxi_boot_paths *paths, const char *job_name);

/* ---- door.c: where a joiner meets the workers of a job that runs -------------------------------------- */

/* Opens this worker's door (boot->door_fd), if options.rejoin is set; nobody serves it yet. After the segment is made,
 * before the gate opens. Start. 0, or a failure with its sentence. */
int bxi_door_open(struct bx_job *job);
/* Serves it from here on, in a thread of its own. Without a door nothing happens. 0, or a failure with its sentence. */
int bxi_door_start(struct bx_job *job);
void bxi_door_stop(struct bx_job *job);             /* the end of the job: closes it */

/* ---- rejoin.c: a worker joins a job that runs. Start -------------------------------------------------- */

/* Finds a job of job's name that runs and lets workers come back, and joins it if this worker's rank is dead in it.
 * 1: it has joined. 0: there is none, begin as usual. -EAGAIN: there may be one in a moment. Else a failure with its
 * sentence; the caller undoes what was made. */
int bxi_rejoin(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns);
/* Rank 0, which is about to begin a job. 0; BX_E_JOB_RUNNING: one of that name goes on without its rank 0. */
int bxi_rejoin_check_none(const struct bx_job *job);

/* ---- bootstrap_job.c: what the start makes of the job. Both sides ----------------------------------- */

/* Makes job->segment and job->lend->arena, and a read-only descriptor of each. job->instance is set. 0, or a failure
 * with its sentence (BX_E_NO_SPACE, BX_E_DESCRIPTORS, -errno). */
int bxi_boot_segment(struct bx_job *job, int *segment_fd, int *arena_fd);
/* Descriptors of both, opened anew for reading. 0, or a failure with its sentence. Start, the door. */
int bxi_boot_readable(const struct bx_job *job, int *segment_fd, int *arena_fd);
/* Before that, for the first tensor: makes job->lend->arena, without a name, unless it is there. Lock. 0, or a failure
 * with its sentence. */
int bxi_boot_early_arena(struct bx_job *job);
/* Fills in job->rpc->peers[job->rank], with generation 1. */
void bxi_boot_fill_self(struct bx_job *job);
/* The entry of this worker, and its descriptors but those of bxi_boot_readable. */
void bxi_boot_describe_self(const struct bx_job *job, struct bxi_boot_entry *entry, int fds[BXI_BOOT_FDS]);
/* Makes job->rpc->peers[entry->rank] of an entry and its descriptors. Bells and pidfd become the peer's, and are -1 in
 * fds then; the others stay the caller's. 0; -EPROTO or another -errno with a sentence if something is wrong with
 * them. */
int bxi_boot_add_peer(struct bx_job *job, const struct bxi_boot_entry *entry, int fds[BXI_BOOT_FDS]);
void bxi_boot_undo(struct bx_job *job);     /* all that the bootstrap made of the job */

/* ---- bootstrap.c, bootstrap_root.c: the two sides --------------------------------------------------- */

#define BXI_BOOT_POLL_NS UINT64_C(100000000)        /* between two polls of what no descriptor reports */
#define BXI_BOOT_LATE_NS UINT64_C(2000000000)       /* a worker that waits for so long logs for whom, */
#define BXI_BOOT_AGAIN_NS UINT64_C(10000000000)     /* and once more after each of these */

/* Since the bootstrap began, for sentences. */
static inline double bxi_boot_seconds(uint64_t start_ns)
{
    return (double)(bxi_now_ns() - start_ns) / 1e9;
}
/* Rank 0's side; bxi_bootstrap calls it. */
int bxi_boot_root(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns);
/* Meets the others by a Unix socket. bx_job_start. On entry rank, world_size, job_name, name, bell_fd and pidfd are
 * set, and the peers are zero. On success: instance and segment (state STARTING); of each peer rank, name, pid, pidfd,
 * bell (word and descriptors) and view; of this worker rank, name, pid. On failure whatever it made is undone, and
 * there is a sentence. */
int bxi_bootstrap(struct bx_job *job, uint64_t deadline_ns);

/* ---- drive.c: what joins the job to run -------------------------------------------------------------- */

void bxi_drive_init(struct bx_job *job);        /* the part run, with its sources; no descriptors. bx_job_create */
int bxi_drive_start(struct bx_job *job);        /* progress begins. bx_job_start. 0, or an error with a sentence */

/* ---- shutdown.c ------------------------------------------------------------------------------------ */

/* Leaves at once: state LEFT, threads stopped, names removed. The end of bx_job_shutdown; bx_job_start after a failure;
 * bx_job_destroy. */
void bxi_job_leave(struct bx_job *job);

/* ---- job.c ----------------------------------------------------------------------------------------- */

void bxi_job_link(struct bxi_whole_job *whole);     /* sets the job's pointers to its parts. bx_job_create; tests */

#endif
