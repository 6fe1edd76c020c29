/* SPDX-License-Identifier: MIT */
/*
 * How a process takes the place of a worker that died in a job that runs (options.rejoin). door.c is the other side.
 *
 * Who runs it: the thread in bx_job_start, before any other thread of the job exists.
 *
 *  1. Find the job: segments in /dev/shm whose owners live, whose header says `rejoin`, and one of which is RUNNING.
 *  2. Take the joiners' mutex, an abstract socket's name, which ends with its process. While it is held, every other
 *     rank either runs or is dead.
 *  3. Ask the door of every worker that lives (REHELLO). Each says whether this rank is free, and what it knows of all
 *     ranks. A round in which one is not reached is repeated, for it may have just died.
 *  4. The generation is one more than any worker knows. Make the segment, with the generation in its header.
 *  5. Give each worker this one's descriptors (REJOIN), and get its own (TABLE).
 *  6. Open the gate: the state of this segment is RUNNING. From then on the others take it for alive.
 *
 * Who lives: the owner lock of a segment is free once its owner is dead, unless a child that the owner has forked has
 * the descriptor too. So a worker that is not reached also counts as dead if another worker says so, by its pidfd.
 *
 * Killed before step 5: nothing has happened to the others; the next joiner, or a worker at its end, removes the names
 * of the segment. Killed later: workers that have attached it see its pidfd and remove its names; it never ran, and is
 * not reported as a death. A failure stores GAVE_UP, for those that have attached it.
 */
#include "job.h"

#include "shm/step.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define INSTANCES_MAX 16
#define AGAIN_NS 5000000                        /* between two rounds */
#define VERDICT_NS UINT64_C(1000000000)         /* for the end of a worker that has hung up */

struct worker {
    bool lives;                         /* its segment has an owner that is in the job */
    bool answered;                      /* REWELCOME */
    uint32_t pid;
    uint32_t generation;                /* of its segment; of one that does not live, the highest that anybody knows */
    uint32_t heard;                     /* the highest that anybody knows */
    uint32_t ran;                       /* of the last that ran */
    char name[BXI_NAME_BYTES];
    bool is_said_dead;
};

struct rejoin {
    struct bx_job *job;
    uint64_t start_ns, deadline_ns;
    uint64_t instance;
    int world_size;                     /* of the job that was found */
    bool runs, starts;                  /* a worker of it is RUNNING, or STARTING */
    int silent;                         /* the rank that was not reached last; -1 */
    int fds[BXI_BOOT_FDS];              /* of this worker */
    struct worker worker[BXI_WORLD_MAX];
    struct bxi_boot_packet packet;
};

static void nap(long ns)
{
    nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/* ---- Finding the job --------------------------------------------------------------------------- */

static void look_at(struct rejoin *rejoin, uint64_t instance)
{
    const struct bx_job *job = rejoin->job;

    rejoin->instance = instance;
    rejoin->runs = rejoin->starts = false;
    memset(rejoin->worker, 0, sizeof(rejoin->worker));
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        struct worker *worker = &rejoin->worker[rank];
        struct bxi_object_owner owner;

        if (bxi_object_find_owner(job->job_name, instance, rank, &owner) < 0 || !owner.rejoin ||
            owner.state >= BXI_LEFT)
            continue;
        worker->lives = true;
        worker->pid = owner.pid;
        worker->generation = worker->heard = owner.generation;
        worker->ran = owner.state == BXI_STARTING ? 0 : owner.generation;
        memcpy(worker->name, owner.name, sizeof(worker->name));
        rejoin->world_size = (int)owner.world_size;
        rejoin->runs |= owner.state == BXI_RUNNING;
        rejoin->starts |= owner.state == BXI_STARTING;
    }
}

/* Finds the job that runs; else one that may run in a moment. */
static void look(struct rejoin *rejoin)
{
    uint64_t instances[INSTANCES_MAX], starting = 0;
    int count = bxi_object_instances(rejoin->job->job_name, instances, INSTANCES_MAX);

    for (int i = 0; i < count; i++) {
        look_at(rejoin, instances[i]);
        if (rejoin->runs)
            return;
        if (rejoin->starts)
            starting = instances[i];
    }
    rejoin->runs = false;
    rejoin->starts = starting != 0;
}

int bxi_rejoin_check_none(const struct bx_job *job)
{
    struct rejoin *rejoin = calloc(1, sizeof(*rejoin));
    int rc = 0;

    if (rejoin == NULL)
        return bx_fail(-ENOMEM, "no memory to start a job with");
    rejoin->job = (struct bx_job *)(uintptr_t)job;
    look(rejoin);
    for (int rank = 0; rejoin->runs && rc == 0 && rank < BXI_WORLD_MAX; rank++)
        if (rejoin->worker[rank].lives)
            rc = bx_fail(BX_E_JOB_RUNNING, "a job named '%s' is running without its rank 0: its worker '%s' (rank %d) "
                                           "is process %u; wait for its end, join it (options.rejoin) or choose "
                                           "another name", job->job_name, rejoin->worker[rank].name, rank,
                         rejoin->worker[rank].pid);
    free(rejoin);
    return rc;
}

/* ---- The mutex --------------------------------------------------------------------------------- */

/* 0, or a failure with its sentence. */
static int take_mutex(struct rejoin *rejoin)
{
    struct bx_job *job = rejoin->job;
    struct sockaddr_un address;
    socklen_t bytes;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return errno == EMFILE || errno == ENFILE ? bxi_limits_no_descriptors(job)
                                                  : bx_fail(-errno, "no socket can be made: %s", bx_strerror(-errno));
    job->boot->mutex_fd = fd;
    bytes = bxi_door_address(&address, job, BXI_WORLD_MAX, 0);      /* no worker's */
    while (bind(fd, (struct sockaddr *)&address, bytes) < 0) {
        if (errno != EADDRINUSE)
            return bx_fail(-errno, "worker '%s' (rank %d) cannot join job '%s': %s", job->name, job->rank,
                           job->job_name, bx_strerror(-errno));
        if (bxi_now_ns() >= rejoin->deadline_ns)
            return bx_fail(BX_E_RANK_MISSING, "another worker is joining job '%s', and has not finished within %.1f s",
                           job->job_name, bxi_boot_seconds(rejoin->start_ns));
        nap(AGAIN_NS);
    }
    BXI_STEP("rejoin.mutex");
    return 0;
}

static void release_mutex(struct bx_job *job)
{
    close(job->boot->mutex_fd);
    job->boot->mutex_fd = 0;
}

/* ---- One question and its answer --------------------------------------------------------------- */

/* A connection to a door. -EAGAIN: nobody is there, or the process is not this user's; else a failure with its
 * sentence. */
static int connect_to(const struct rejoin *rejoin, int rank, uint32_t *pid)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return errno == EMFILE || errno == ENFILE ? bxi_limits_no_descriptors(rejoin->job)
                                                  : bx_fail(-errno, "no socket can be made: %s", bx_strerror(-errno));
    socklen_t bytes = bxi_door_address(&address, rejoin->job, rank, rejoin->worker[rank].generation);
    if (connect(fd, (struct sockaddr *)&address, bytes) == 0 && bxi_boot_is_own(fd, pid))
        return fd;
    close(fd);
    return -EAGAIN;
}

static bool process_has_ended(uint32_t pid)
{
    int pidfd = pid == 0 ? -1 : (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    struct pollfd process = { .fd = pidfd, .events = POLLIN };
    bool ended = (pid != 0 && pidfd < 0 && errno == ESRCH) || (pidfd >= 0 && poll(&process, 1, 0) == 1);

    if (pidfd >= 0)
        close(pidfd);
    return ended;
}

static int no_answer(const struct rejoin *rejoin, int rank)
{
    const struct worker *worker = &rejoin->worker[rank];

    return bx_fail(BX_E_RANK_MISSING, "worker '%s' (rank %d, pid %u) of job '%s', which runs, did not answer within "
                                      "%.1f s", worker->name, rank, worker->pid, rejoin->job->job_name,
                   bxi_boot_seconds(rejoin->start_ns));
}

/* Waits for the answer. 1; -EAGAIN: the worker has hung up or died; a failure with its sentence, also the worker's. */
static int receive(struct rejoin *rejoin, int rank, int fd, uint32_t pid)
{
    for (;;) {
        uint64_t until_ns = bxi_least(rejoin->deadline_ns, bxi_now_ns() + BXI_BOOT_POLL_NS);
        int rc = bxi_boot_wait(fd, POLLIN, until_ns);

        if (rc > 0)
            rc = bxi_boot_receive(fd, &rejoin->packet, BXI_BOOT_FDS);
        else if (rc == 0 && bxi_now_ns() >= rejoin->deadline_ns)
            return no_answer(rejoin, rank);
        /* A child that a dead worker has forked may have its door. */
        else if (rc == 0)
            rc = process_has_ended(pid) ? -EPIPE : -EAGAIN;
        if (rc == -EAGAIN)
            continue;
        if (rc == 0 || rc == -EPIPE)
            return -EAGAIN;
        if (rc == -EMFILE)
            return bxi_limits_no_descriptors(rejoin->job);
        if (rc < 0)
            return bx_fail(rc, "worker '%s' (rank %d, pid %u) cannot be understood: %s", rejoin->worker[rank].name,
                           rank, pid, bx_strerror(rc));
        rc = bxi_boot_packet_failure(&rejoin->packet);
        return rc < 0 ? rc : 1;
    }
}

/* As receive. fd_count: of rejoin->fds. */
static int ask(struct rejoin *rejoin, int rank, enum bxi_boot_kind kind, int fd_count)
{
    const struct bx_job *job = rejoin->job;
    struct bxi_boot_rehello rehello = {
        .head = bxi_boot_head(kind),
        .instance = job->instance,
        .rank = job->rank,
        .world_size = job->world_size,
        .pid = (uint32_t)getpid(),
        .generation = job->rpc->peers[job->rank]->generation,
    };
    struct bxi_boot_out out = { &rehello, sizeof(rehello), rejoin->fds, fd_count };
    uint32_t pid = 0;
    int fd = connect_to(rejoin, rank, &pid);

    if (fd < 0)
        return fd;
    if (pid != 0)
        rejoin->worker[rank].pid = pid;
    memcpy(rehello.name, job->name, sizeof(rehello.name));
    /* Ignore the result: if the worker has hung up, its answer must still be read. */
    bxi_boot_send(fd, &out, rejoin->deadline_ns);
    BXI_STEP(kind == BXI_BOOT_REHELLO ? "rejoin.asked" : "rejoin.sent");
    int rc = receive(rejoin, rank, fd, pid);
    close(fd);
    return rc;
}

static int nonsense(struct rejoin *rejoin, int rank)
{
    bxi_boot_packet_close(&rejoin->packet);
    return bx_fail(-EPROTO, "worker '%s' (rank %d, pid %u) sent what no worker sends", rejoin->worker[rank].name, rank,
                   rejoin->worker[rank].pid);
}

/* ---- Asking all -------------------------------------------------------------------------------- */

static void take_welcome(struct rejoin *rejoin)
{
    const struct bxi_boot_rewelcome *reply = &rejoin->packet.as.rewelcome;

    for (int rank = 0; rank < rejoin->job->world_size; rank++) {
        const struct bxi_boot_known *known = &reply->worker[rank];
        struct worker *worker = &rejoin->worker[rank];

        worker->is_said_dead |= !known->lives;
        if (known->generation > worker->heard)
            worker->heard = known->generation;
        if (known->ran > worker->ran)
            worker->ran = known->ran;
        if (!worker->lives && known->generation >= worker->generation && known->name[0] != '\0')
            snprintf(worker->name, sizeof(worker->name), "%.*s", BXI_NAME_BYTES - 1, known->name);
        if (!worker->lives && known->generation > worker->generation)
            worker->generation = known->generation;
        if (rank == rejoin->job->rank && known->generation > rejoin->worker[rank].generation)
            worker->generation = known->generation;
    }
}

/* 0: every worker that lives has answered. -EAGAIN: one was not reached. Else a failure with its sentence. */
static int ask_all(struct rejoin *rejoin)
{
    rejoin->silent = -1;
    for (int rank = 0; rank < rejoin->job->world_size; rank++) {
        if (!rejoin->worker[rank].lives)
            continue;
        int rc = ask(rejoin, rank, BXI_BOOT_REHELLO, 0);
        if (rc == -EAGAIN)
            continue;
        if (rc < 0)
            return rc;
        if (!bxi_boot_packet_is(&rejoin->packet, BXI_BOOT_REWELCOME, 0))
            return nonsense(rejoin, rank);
        rejoin->worker[rank].answered = true;
        take_welcome(rejoin);
    }
    for (int rank = 0; rank < rejoin->job->world_size; rank++) {
        const struct worker *worker = &rejoin->worker[rank];

        if (worker->lives && !worker->answered && !worker->is_said_dead)
            rejoin->silent = rank;
    }
    return rejoin->silent >= 0 ? -EAGAIN : 0;
}

static bool anybody_answered(const struct rejoin *rejoin)
{
    for (int rank = 0; rank < rejoin->job->world_size; rank++)
        if (rejoin->worker[rank].answered)
            return true;
    return false;
}

/* With the mutex. 1: all have answered. 0: the job has ended. Else a failure with its sentence. */
static int gather_answers(struct rejoin *rejoin)
{
    for (;;) {
        look_at(rejoin, rejoin->job->instance);
        if (!rejoin->runs)
            return 0;
        int rc = ask_all(rejoin);
        if (rc == 0)
            return anybody_answered(rejoin);
        if (rc != -EAGAIN)
            return rc;
        if (bxi_now_ns() >= rejoin->deadline_ns)
            return no_answer(rejoin, rejoin->silent);
        nap(AGAIN_NS);
    }
}

/* ---- Joining ----------------------------------------------------------------------------------- */

static void make_absent(const struct rejoin *rejoin, int rank)
{
    const struct worker *worker = &rejoin->worker[rank];

    bxi_join_absent(rejoin->job, rank, worker->name, worker->ran);
}

/* A worker that has answered once was not reached, or has hung up. 0: it is dead. */
static int check_dead(const struct rejoin *rejoin, int rank)
{
    const struct bx_job *job = rejoin->job;
    uint64_t end_ns = bxi_now_ns() + VERDICT_NS;
    struct bxi_object_owner owner;

    do {
        if (process_has_ended(rejoin->worker[rank].pid) ||
            bxi_object_find_owner(job->job_name, job->instance, rank, &owner) < 0)
            return 0;
        nap(AGAIN_NS);
    } while (bxi_now_ns() < end_ns);
    return bx_fail(BX_E_RANK_MISSING, "worker '%s' (rank %d, pid %u) of job '%s' hung up while worker '%s' (rank %d) "
                                      "joined", rejoin->worker[rank].name, rank, rejoin->worker[rank].pid,
                   job->job_name, job->name, job->rank);
}

/* Both directions with one worker. 0 (it may have died); or a failure with its sentence. */
static int meet(struct rejoin *rejoin, int rank)
{
    struct bx_job *job = rejoin->job;
    struct bxi_boot_packet *packet = &rejoin->packet;
    struct bxi_boot_entry *entry = &packet->as.table.entry[0];
    char hint[BXI_MAP_HINT_BYTES];

    int rc = ask(rejoin, rank, BXI_BOOT_REJOIN, BXI_BOOT_FDS);
    if (rc == -EAGAIN) {
        if ((rc = check_dead(rejoin, rank)) == 0)
            make_absent(rejoin, rank);
        return rc;
    }
    if (rc < 0)
        return rc;
    if (!bxi_boot_packet_is(packet, BXI_BOOT_TABLE, BXI_BOOT_FDS) || entry->rank != rank)
        return nonsense(rejoin, rank);
    if (rejoin->worker[rank].pid != 0)
        entry->pid = rejoin->worker[rank].pid;
    rc = bxi_boot_add_peer(job, entry, packet->fds);
    if (rc == 0)
        packet->fds[BXI_BOOT_BELL] = packet->fds[BXI_BOOT_BELL_LEADER] = packet->fds[BXI_BOOT_PIDFD] = -1;
    bxi_boot_packet_close(packet);
    if (rc < 0)
        return bx_fail(rc, "worker '%s' (rank %d) cannot attach to '%s' (rank %d): %s%s", job->name, job->rank,
                       rejoin->worker[rank].name, rank, bx_strerror(rc), bxi_limits_map_hint(job, rc, hint));
    BXI_STEP("rejoin.met");
    return 0;
}

static int meet_all(struct rejoin *rejoin)
{
    struct bx_job *job = rejoin->job;
    int rc;

    for (int rank = 0; rank < job->world_size; rank++) {
        if (rank == job->rank)
            continue;
        bxi_join_note_generation(job, rank, rejoin->worker[rank].heard);
        if (!rejoin->worker[rank].answered)
            make_absent(rejoin, rank);
        else if ((rc = meet(rejoin, rank)) < 0)
            return rc;
    }
    return 0;
}

/* Makes this worker's segment and door. */
static int make_self(struct rejoin *rejoin)
{
    struct bx_job *job = rejoin->job;
    struct bxi_boot_entry entry;
    uint32_t generation = rejoin->worker[job->rank].generation + 1;

    if (generation > BXI_GENERATION_MAX)        /* nobody says so that knows it: it is said in door.c */
        return bx_fail(-EOVERFLOW, "rank %d of job '%s' was taken too often", job->rank, job->job_name);
    bxi_join_set_generation(job, job->rank, generation);
    bxi_boot_unlink_dead(job, job->rank);
    int rc = bxi_boot_segment(job, &rejoin->fds[BXI_BOOT_SEGMENT], &rejoin->fds[BXI_BOOT_ARENA]);
    if (rc < 0 || (rc = bxi_door_open(job)) < 0)
        return rc;
    bxi_boot_describe_self(job, &entry, rejoin->fds);
    BXI_STEP("rejoin.made");
    return 0;
}

static int join(struct rejoin *rejoin, const struct bxi_boot_paths *paths)
{
    struct bx_job *job = rejoin->job;
    int rc;

    if ((job->rank == 0 && (rc = bxi_boot_lock(job, paths)) < 0) || (rc = make_self(rejoin)) < 0 ||
        (rc = meet_all(rejoin)) < 0)
        return rc;
    if (job->rank == 0)
        bxi_boot_lock_running(job);
    BXI_STEP("rejoin.gate_closed");
    /* [state] release, pairs with the acquire in bxi_join_look: all workers that live have attached this one. */
    bxi_store_release(&job->control->header.state, BXI_RUNNING);
    BXI_STEP("rejoin.gate_open");
    bxi_ring_all(job);
    release_mutex(job);
    BXI_STEP("rejoin.joined");
    bxi_log(job, 2, "worker '%s' (rank %d) has joined job '%s': generation %u", job->name, job->rank, job->job_name,
            job->rpc->peers[job->rank]->generation);
    return 1;
}

/* A job that runs was found. */
static int try_join(struct rejoin *rejoin, const struct bxi_boot_paths *paths)
{
    struct bx_job *job = rejoin->job;

    if (rejoin->world_size != job->world_size)
        return bx_fail(BX_E_WORLD_SIZE, "job '%s' runs with %d workers, and worker '%s' was started for %d",
                       job->job_name, rejoin->world_size, job->name, job->world_size);
    job->instance = rejoin->instance;
    int rc = take_mutex(rejoin);
    if (rc < 0)
        return rc;
    rc = gather_answers(rejoin);
    if (rc == 0) {
        release_mutex(job);
        job->instance = 0;
        return -EAGAIN;
    }
    if (rc > 0)
        rc = join(rejoin, paths);
    if (rc < 0 && job->control != NULL) {
        /* [state] release, pairs with the acquire in bxi_join_look. */
        bxi_store_release(&job->control->header.state, BXI_GAVE_UP);
        bxi_ring_all(job);
    }
    if (rc < 0 && job->rank == 0)
        bxi_bootstrap_release(job);
    return rc;
}

int bxi_rejoin(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns)
{
    struct rejoin *rejoin;
    int rc;

    if (!job->options.rejoin)
        return 0;
    rejoin = calloc(1, sizeof(*rejoin));
    if (rejoin == NULL)
        return bx_fail(-ENOMEM, "no memory to join a job");
    rejoin->job = job;
    rejoin->start_ns = bxi_now_ns();
    rejoin->deadline_ns = deadline_ns;
    rejoin->fds[BXI_BOOT_SEGMENT] = rejoin->fds[BXI_BOOT_ARENA] = -1;
    look(rejoin);
    if (rejoin->runs)
        rc = try_join(rejoin, paths);
    else
        rc = rejoin->starts && bxi_now_ns() < deadline_ns ? -EAGAIN : 0;
    for (int i = BXI_BOOT_SEGMENT; i <= BXI_BOOT_ARENA; i++)
        if (rejoin->fds[i] >= 0)
            close(rejoin->fds[i]);
    free(rejoin);
    return rc;
}
