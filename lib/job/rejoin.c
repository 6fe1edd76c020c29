/* SPDX-License-Identifier: MIT */
/*
 * How a process takes the place of a worker that died in a job that runs (options.rejoin). door.c is the other side.
 *
 * Who runs it: the thread in bx_job_start, before any other thread of the job exists.
 *
 *  1. Find the job: segments in /dev/shm whose owners live, whose header says `rejoin`, and one of which is RUNNING;
 *     or a door (door_files.c) at which somebody listens. One of the two is enough. A logout may remove the names in
 *     /dev/shm and the socket directory; then the workers make their doors again (door.c).
 *  2. Take the joiners' mutex (door_files.c). While it is held, every other rank either runs or is dead.
 *  3. Ask the door of every worker that may live (HELLO). Each says whether this rank is free, which ranks live, and
 *     what it knows of them. Repeat that until each rank has answered or is dead.
 *  4. The generation is one more than any worker knows. Make the segment, with the generation in its header.
 *  5. Give each worker this one's descriptors (JOIN), and get its own (TABLE). If one is not reached, do step 3 once
 *     more: then it is dead, or it is given them again.
 *  6. Open the gate: the state of this segment is RUNNING. From then on the others take it for alive.
 *
 * Who lives: a worker is dead if another one that has answered says so, by its pidfd, and none says that it lives. If
 * none knows it, it is dead if its owner lock is free and nobody listens at its door. In all other cases this process
 * asks again, until its time is over. So a name that is gone, a file that cannot be opened, or a pid of another pid
 * namespace never makes a living worker a dead one. A child that a dead worker has forked may have its lock and its
 * door: then the others are heard, for they have its pidfd.
 *
 * Killed before step 5: nothing has happened to the others; the next joiner, or a worker at its end, removes the names
 * of the segment, the door and the mutex. Killed later: workers that have attached it see its pidfd and remove its
 * names, but that of the mutex; it never ran, and is not reported as a death. A failure stores GAVE_UP, for those that
 * have attached it.
 */
#include "job.h"

#include "shm/file.h"
#include "shm/step.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define INSTANCES_MAX 16
#define AGAIN_NS UINT64_C(5000000)                        /* between two rounds */
#define ANSWER_NS UINT64_C(3000000000)          /* for one answer: then the others are asked, and this one again */

struct worker {
    bool has_segment;                   /* its owner is in the job */
    bool has_door;                      /* somebody listens there */
    bool was_asked, answered;           /* in this round */
    bool is_said_dead, is_said_alive;   /* by one that answered */
    uint32_t pid;                       /* for sentences; 0: unknown */
    uint32_t generation;                /* of its segment or its door, else the highest that anybody knows; 0: none */
    uint32_t heard;                     /* the highest that anybody knows */
    uint32_t ran;                       /* of the last that ran */
    char name[BXI_NAME_BYTES];
};

struct rejoin {
    struct bx_job *job;
    uint64_t start_ns, deadline_ns;
    struct bxi_boot_asked asked;        /* the last that was asked */
    uint64_t instance;
    int world_size;                     /* of the job that was found; 0: no header says it */
    bool runs, starts;                  /* a worker of it is RUNNING, or STARTING */
    int fds[BXI_BOOT_FDS];              /* of this worker */
    struct worker worker[BXI_WORLD_MAX];
    struct bxi_boot_packet packet;
};

/* Before the next round. 0; BX_E_INTERRUPTED with a sentence. */
static int wait_a_while(const struct rejoin *rejoin)
{
    return bxi_poll_start(rejoin->job, -1, POLLIN, bxi_now_ns() + AGAIN_NS);
}

/* ---- Finding the job --------------------------------------------------------------------------- */

static int door_path(const struct rejoin *rejoin, int rank, char path[BXI_BOOT_PATH_BYTES])
{
    const struct bxi_door_id id = { rejoin->instance, rank, rejoin->worker[rank].generation };

    return bxi_door_path(path, &rejoin->job->boot->paths, rejoin->job->job_name, &id);
}

/* A connection to a door: rejoin->asked. 0; -EAGAIN: nobody is there; else a failure with its sentence. */
static int connect_to(struct rejoin *rejoin, int rank)
{
    struct worker *worker = &rejoin->worker[rank];
    struct bxi_boot_asked *asked = &rejoin->asked;
    char path[BXI_BOOT_PATH_BYTES];
    int rc = door_path(rejoin, rank, path);

    if (rc < 0)
        return rc;
    asked->pid = 0;
    asked->fd = bxi_boot_connect(path, &asked->pid);
    if (bxi_file_none_left(asked->fd))
        return bxi_limits_no_descriptors(rejoin->job);
    worker->has_door = asked->fd >= 0 || asked->fd == -EAGAIN;
    if (asked->fd < 0)
        return -EAGAIN;
    if (asked->pid != 0)
        worker->pid = asked->pid;
    bxi_boot_who(asked->who, worker->name, rank, worker->pid);
    return 0;
}

static void take_door(void *context, const struct bxi_door_id *id)
{
    struct rejoin *rejoin = context;
    struct worker *worker = &rejoin->worker[id->rank];

    if (id->instance == rejoin->instance && id->generation > worker->generation)
        worker->generation = id->generation;
}

/* Nothing in /dev/shm shows that the job runs, or what else it does. */
static int look_at_doors(struct rejoin *rejoin)
{
    for (int rank = 0; rank < BXI_WORLD_MAX && !rejoin->runs; rank++) {
        if (rejoin->worker[rank].has_segment || rejoin->worker[rank].generation == 0)
            continue;
        int rc = connect_to(rejoin, rank);
        if (rc == 0)
            close(rejoin->asked.fd);
        else if (rc != -EAGAIN)
            return rc;
        rejoin->runs = rejoin->worker[rank].has_door;
    }
    return 0;
}

static int look_at(struct rejoin *rejoin, uint64_t instance)
{
    const struct bx_job *job = rejoin->job;

    if (instance != rejoin->instance)
        memset(rejoin->worker, 0, sizeof(rejoin->worker));
    rejoin->instance = instance;
    rejoin->world_size = 0;
    rejoin->runs = rejoin->starts = false;
    /* First: a worker that starts makes its segment before its door. A door without a segment is one that runs. */
    int rc = bxi_doors_find(job->boot->paths.directory, job->job_name, take_door, rejoin);
    if (bxi_file_none_left(rc))
        return bxi_limits_no_descriptors(job);
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        struct worker *worker = &rejoin->worker[rank];
        struct bxi_object_owner owner;

        rc = bxi_object_find_owner(job->job_name, instance, rank, &owner);
        worker->has_segment = worker->has_door = worker->was_asked = worker->answered = false;
        worker->is_said_dead = worker->is_said_alive = false;
        if (bxi_file_none_left(rc))
            return bxi_limits_no_descriptors(job);
        if (rc < 0 || !owner.rejoin || owner.state >= BXI_LEFT)
            continue;
        worker->has_segment = true;
        worker->pid = owner.pid;
        if (owner.generation > worker->generation)
            worker->generation = owner.generation;
        if (owner.generation > worker->heard)
            worker->heard = owner.generation;
        if (owner.state != BXI_STARTING && owner.generation > worker->ran)
            worker->ran = owner.generation;
        memcpy(worker->name, owner.name, sizeof(worker->name));
        rejoin->world_size = (int)owner.world_size;
        rejoin->runs |= owner.state == BXI_RUNNING;
        rejoin->starts |= owner.state == BXI_STARTING;
    }
    return look_at_doors(rejoin);
}

struct instances {
    uint64_t list[2 * INSTANCES_MAX];
    int count;
};

static void take_instance(void *context, const struct bxi_door_id *id)
{
    struct instances *instances = context;

    for (int i = 0; i < instances->count; i++)
        if (instances->list[i] == id->instance)
            return;
    if (instances->count < 2 * INSTANCES_MAX)
        instances->list[instances->count++] = id->instance;
}

/* Finds the job that runs; else one that may run in a moment. 0, or a failure with its sentence. */
static int look(struct rejoin *rejoin)
{
    const struct bx_job *job = rejoin->job;
    struct instances instances = { .count = 0 };
    bool starts = false;

    int rc = bxi_object_instances(job->job_name, instances.list, INSTANCES_MAX);
    instances.count = rc > 0 ? rc : 0;
    if (!bxi_file_none_left(rc))
        rc = bxi_doors_find(job->boot->paths.directory, job->job_name, take_instance, &instances);
    if (bxi_file_none_left(rc))
        return bxi_limits_no_descriptors(job);
    for (int i = 0; i < instances.count; i++) {
        if ((rc = look_at(rejoin, instances.list[i])) < 0)
            return rc;
        if (rejoin->runs)
            return 0;
        starts |= rejoin->starts;
    }
    rejoin->runs = false;
    rejoin->starts = starts;
    return 0;
}

static const char *who(const struct rejoin *rejoin, int rank, char text[BXI_WHO_BYTES])
{
    return bxi_boot_who(text, rejoin->worker[rank].name, rank, rejoin->worker[rank].pid);
}

int bxi_rejoin_check_none(const struct bx_job *job)
{
    struct rejoin *rejoin = calloc(1, sizeof(*rejoin));
    char text[BXI_WHO_BYTES];
    int rc;

    if (rejoin == NULL)
        return bx_fail(-ENOMEM, "no memory to start a job with");
    rejoin->job = (struct bx_job *)(uintptr_t)job;
    rc = look(rejoin);
    for (int rank = 0; rc == 0 && rejoin->runs && rank < BXI_WORLD_MAX; rank++)
        if (rejoin->worker[rank].has_segment || rejoin->worker[rank].has_door)
            rc = bx_fail(BX_E_JOB_RUNNING, "a job named '%s' is running without its rank 0: there is its %s; "
                                           "wait for its end, join it (options.rejoin) or choose another name",
                         job->job_name, who(rejoin, rank, text));
    free(rejoin);
    return rc;
}

/* ---- The mutex --------------------------------------------------------------------------------- */

/* 0, or a failure with its sentence. */
static int take_mutex(struct rejoin *rejoin)
{
    struct bx_job *job = rejoin->job;
    const char *path = job->boot->paths.join;
    int fd;

    while ((fd = bxi_joiners_lock(path)) == -EAGAIN) {
        if (bxi_now_ns() >= rejoin->deadline_ns)
            return bx_fail(BX_E_RANK_MISSING, "another worker is joining job '%s' (it has the lock of %s), and has not "
                                              "finished within %.1f s", job->job_name, path,
                           bxi_boot_seconds(rejoin->start_ns));
        int rc = wait_a_while(rejoin);
        if (rc < 0)
            return rc;
    }
    if (fd < 0)
        return bxi_limits_no_file(job, "lock file", path, fd);
    job->boot->mutex_fd = fd;
    bxi_spawn_note(job, BXI_NOTED_MUTEX, path);
    return 0;
}

/* ---- One question and its answer --------------------------------------------------------------- */

static int no_answer(const struct rejoin *rejoin, int rank)
{
    char text[BXI_WHO_BYTES], path[BXI_BOOT_PATH_BYTES];

    if (rejoin->worker[rank].has_door || door_path(rejoin, rank, path) < 0)
        return bx_fail(BX_E_RANK_MISSING, "%s of job '%s', which runs, did not answer within %.1f s",
                       who(rejoin, rank, text), rejoin->job->job_name, bxi_boot_seconds(rejoin->start_ns));
    return bx_fail(BX_E_RANK_MISSING, "%s of job '%s', which runs, was not reached within %.1f s: nobody "
                                      "listens at %s; is its XDG_RUNTIME_DIR another one, or was it removed by a "
                                      "logout?", who(rejoin, rank, text), rejoin->job->job_name,
                   bxi_boot_seconds(rejoin->start_ns), path);
}

/* 1: the answer is in rejoin->packet. -EAGAIN: the worker has hung up or died, or takes long; else a failure with its
 * sentence, also the worker's. */
static int ask(struct rejoin *rejoin, int rank, enum bxi_boot_kind kind)
{
    struct bx_job *job = rejoin->job;
    struct bxi_boot_asked *asked = &rejoin->asked;
    int rc = connect_to(rejoin, rank);

    if (rc < 0)
        return rc;
    bxi_boot_ask(job, asked, kind, kind == BXI_BOOT_JOIN ? rejoin->fds : NULL, rejoin->deadline_ns);
    rc = bxi_boot_next(job, asked, &rejoin->packet, BXI_BOOT_FDS,
                       bxi_least(rejoin->deadline_ns, bxi_now_ns() + ANSWER_NS));
    close(asked->fd);
    return rc == 0 || rc == -ETIMEDOUT ? -EAGAIN : rc;
}

/* ---- Asking all -------------------------------------------------------------------------------- */

static void take_welcome(struct rejoin *rejoin)
{
    const struct bxi_boot_welcome *reply = &rejoin->packet.as.welcome;

    for (int rank = 0; rank < rejoin->job->world_size; rank++) {
        const struct bxi_boot_known *known = &reply->known[rank];
        struct worker *worker = &rejoin->worker[rank];

        worker->is_said_dead |= !known->lives;
        worker->is_said_alive |= known->lives != 0;
        if (known->generation > worker->heard)
            worker->heard = known->generation;
        if (known->ran > worker->ran)
            worker->ran = known->ran;
        /* Of any generation: a rank keeps its name. */
        if (!worker->has_segment && known->name[0] != '\0')
            snprintf(worker->name, sizeof(worker->name), "%.*s", BXI_NAME_BYTES - 1, known->name);
        if (known->generation > worker->generation && (!worker->has_segment || rank == rejoin->job->rank))
            worker->generation = known->generation;
    }
}

/* Any sign of life, and nobody says that it is dead. */
static bool is_to_be_asked(const struct rejoin *rejoin, int rank)
{
    const struct worker *worker = &rejoin->worker[rank];

    if (worker->was_asked || worker->generation == 0 || (rank == rejoin->job->rank && rejoin->job->control != NULL))
        return false;
    return worker->is_said_alive || !worker->is_said_dead;
}

static bool is_in_doubt(const struct worker *worker)
{
    if (worker->answered)
        return false;
    return worker->is_said_alive || (!worker->is_said_dead && (worker->has_segment || worker->has_door));
}

/* The next rank to be asked; -1. An answer may name a worker of which nothing else is seen. */
static int next_to_ask(const struct rejoin *rejoin)
{
    for (int rank = 0; rank < rejoin->job->world_size; rank++)
        if (is_to_be_asked(rejoin, rank))
            return rank;
    return -1;
}

/* 0, or a failure with its sentence. *in_doubt: a rank that has not answered and may live; -1. */
static int ask_all(struct rejoin *rejoin, int *in_doubt)
{
    const struct bx_job *job = rejoin->job;

    for (int rank; (rank = next_to_ask(rejoin)) >= 0;) {
        rejoin->worker[rank].was_asked = true;
        int rc = ask(rejoin, rank, BXI_BOOT_HELLO);
        if (rc == -EAGAIN)
            continue;
        if (rc < 0 || (rc = bxi_boot_check_welcome(rejoin->job, &rejoin->asked, &rejoin->packet, rank)) < 0)
            return rc;
        rejoin->worker[rank].answered = true;
        take_welcome(rejoin);
    }
    *in_doubt = -1;
    for (int rank = 0; rank < job->world_size; rank++)
        if (is_in_doubt(&rejoin->worker[rank]) && (rank != job->rank || job->control == NULL))
            *in_doubt = rank;
    return 0;
}

static bool anybody_answered(const struct rejoin *rejoin)
{
    for (int rank = 0; rank < rejoin->job->world_size; rank++)
        if (rejoin->worker[rank].answered)
            return true;
    return false;
}

/* With the mutex. 1: each other worker has answered, or is dead. 0: the job has ended. Else a failure with its
 * sentence. */
static int gather_answers(struct rejoin *rejoin)
{
    for (;;) {
        int in_doubt = -1, rc = look_at(rejoin, rejoin->job->instance);

        if (rc < 0 || (!rejoin->runs && rejoin->job->control == NULL))
            return rc;
        if ((rc = ask_all(rejoin, &in_doubt)) < 0)
            return rc;
        if (in_doubt < 0)
            return anybody_answered(rejoin);
        if (bxi_now_ns() >= rejoin->deadline_ns)
            return no_answer(rejoin, in_doubt);
        if ((rc = wait_a_while(rejoin)) < 0)
            return rc;
    }
}

/* ---- Joining ----------------------------------------------------------------------------------- */

static void make_absent(const struct rejoin *rejoin, int rank)
{
    const struct worker *worker = &rejoin->worker[rank];

    bxi_join_absent(rejoin->job, rank, worker->name, worker->ran);
}

/* Both directions with one worker. 0; -EAGAIN: it was not reached, or hung up; else a failure with its sentence. */
static int meet(struct rejoin *rejoin, int rank)
{
    struct bx_job *job = rejoin->job;
    struct bxi_boot_packet *packet = &rejoin->packet;
    struct bxi_boot_entry *entry = &packet->as.table.entry[0];

    int rc = ask(rejoin, rank, BXI_BOOT_JOIN);
    if (rc < 0)
        return rc;
    if (!bxi_boot_packet_is(packet, BXI_BOOT_TABLE, BXI_BOOT_FDS) || entry->rank != rank)
        return bxi_boot_nonsense(&rejoin->asked, packet);
    if (rejoin->worker[rank].pid != 0)
        entry->pid = rejoin->worker[rank].pid;
    rc = bxi_boot_add_peer(job, entry, packet->fds);
    bxi_boot_packet_close(packet);
    if (rc < 0)
        return rc;
    BXI_STEP("rejoin.met");
    return 0;
}

/* The same until the worker is met or dead; it may have attached this one without having answered. 0, or a failure with
 * its sentence. */
static int meet_or_bury(struct rejoin *rejoin, int rank)
{
    while (rejoin->worker[rank].answered) {
        int rc = meet(rejoin, rank);

        if (rc != -EAGAIN)
            return rc;
        if ((rc = gather_answers(rejoin)) < 0)
            return rc;
    }
    make_absent(rejoin, rank);
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
        if ((rc = meet_or_bury(rejoin, rank)) < 0)
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
    if (!bxi_file_leads_to(paths->join, job->boot->mutex_fd))
        return bx_fail(BX_E_SOCKET_DIR, "%s was removed while worker '%s' (rank %d) joined job '%s'", paths->join,
                       job->name, job->rank, job->job_name);
    if (job->rank == 0)
        bxi_boot_lock_running(job);
    /* [state] release, pairs with the acquire in bxi_join_look: all workers that live have attached this one. */
    bxi_store_release(&job->control->header.state, BXI_RUNNING);
    BXI_STEP("rejoin.gate_open");
    bxi_ring_all(job);
    bxi_joiners_release(job);
    bxi_log(job, 2, "worker '%s' (rank %d) has joined job '%s': generation %u", job->name, job->rank, job->job_name,
            job->rpc->peers[job->rank]->generation);
    return 1;
}

/* A job that runs was found. */
static int try_join(struct rejoin *rejoin, const struct bxi_boot_paths *paths)
{
    struct bx_job *job = rejoin->job;

    if (rejoin->world_size != 0 && rejoin->world_size != job->world_size)
        return bx_fail(BX_E_WORLD_SIZE, "job '%s' runs with %d workers, and worker '%s' was started for %d",
                       job->job_name, rejoin->world_size, job->name, job->world_size);
    job->instance = rejoin->instance;
    int rc = take_mutex(rejoin);
    if (rc < 0)
        return rc;
    rc = gather_answers(rejoin);
    if (rc == 0) {
        bxi_joiners_release(job);
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
    rc = look(rejoin);
    if (rc == 0 && rejoin->runs)
        rc = try_join(rejoin, paths);
    else if (rc == 0)
        rc = rejoin->starts && bxi_now_ns() < deadline_ns ? -EAGAIN : 0;
    for (int i = BXI_BOOT_SEGMENT; i <= BXI_BOOT_ARENA; i++)
        if (rejoin->fds[i] >= 0)
            close(rejoin->fds[i]);
    free(rejoin);
    return rc;
}
