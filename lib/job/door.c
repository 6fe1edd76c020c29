/* SPDX-License-Identifier: MIT */
/*
 * The door of a worker: where a process that takes the place of a dead worker (rejoin.c) meets those that live. Only
 * jobs with options.rejoin have doors.
 *
 * Who runs it: opened by the thread in bx_job_start, before the gate opens; served by a thread of its own, from
 * bxi_drive_start to bxi_job_leave. It runs none of the program's functions but the log hook.
 *
 * A door is a Unix socket (SOCK_SEQPACKET) in the socket directory; door_files.c has its name. A logout removes that
 * directory (XDG_RUNTIME_DIR), a cleaner its files. So the thread checks once a second that the name exists, and makes
 * another socket of that name otherwise. Why not inotify: a user may have 128 instances of it, and a host 128 workers.
 *
 * Each connection brings one question and takes one answer: HELLO and WELCOME, or JOIN and TABLE (job.h). No state is
 * kept between two, so a joiner may ask again. A joiner that has missed the answer asks again, also after it was
 * attached: then it gets the same answer.
 *
 * FAIL, a code and a sentence, may be the answer to both. WELCOME waits until the role has closed the dead worker and
 * removed its names: later no worker may remove names of that rank, for they are the joiner's. What a connection sends
 * is input. Nonsense is logged and ends the connection. A connection that is not answered ends after CONNECTION_NS, and
 * the joiner comes again; what it has sent by then is read first, for the machine may have paused.
 *
 * The thread also watches the pidfds of workers that came through the door; run (run/background.c) watches those that
 * were there when its sleeper was made.
 *
 * Killed at any step: the joiner sees the hang-up, and the others say that this worker is dead; the name of its door
 * stays until one of them removes it. If the joiner is killed before it is attached here, nothing has happened here. If
 * it is killed after that, its pidfd reports that, and its names are removed.
 */
#include "job.h"

#include "shm/cancel.h"
#include "shm/file.h"
#include "shm/fork.h"
#include "shm/guard.h"
#include "shm/step.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 8
#define CONNECTION_NS UINT64_C(3000000000)
#define DEATH_POLL_NS UINT64_C(5000000)     /* while the role has yet to close a dead worker */
#define NAME_NS UINT64_C(1000000000)        /* between two checks of the name */
#define FAILED_NS 20000000                  /* between two attempts to wait that fail */

struct connection {
    int fd;                             /* 0: unused */
    uint32_t pid;
    uint64_t until_ns;
    bool asked;                         /* HELLO has come, and waits for the role */
    struct bxi_boot_hello hello;
};

struct bxi_door {
    struct bx_job *job;
    pthread_t thread;
    int wake_fd;                        /* an eventfd: the end */
    uint64_t check_ns;                  /* when to check the name next */
    bool has_failed;                    /* to make the name again, and logged that */
    struct connection connection[CONNECTIONS_MAX];
    struct bxi_peer *watched[BXI_WORLD_MAX];    /* those that came through the door and have not ended */
    struct bxi_boot_packet packet;
};

/* ---- Opening ----------------------------------------------------------------------------------- */

int bxi_door_open(struct bx_job *job)
{
    const struct bxi_door_id id = { job->instance, job->rank, job->rpc->peers[job->rank]->generation };
    struct bxi_boot *boot = job->boot;
    int rc;

    if (!job->options.rejoin)
        return 0;
    rc = bxi_door_path(boot->door_path, &boot->paths, job->job_name, &id);
    if (rc < 0)
        return rc;
    bxi_spawn_note(job, BXI_NOTED_DOOR, boot->door_path);
    /* A name that is there was left by a process of the same generation that was killed before it had joined. */
    rc = BXI_UNSHARED(bxi_boot_listen(boot->door_path));
    if (rc < 0)
        return bxi_limits_no_file(job, "door", boot->door_path, rc);
    BXI_STEP("rejoin.door");
    boot->door_fd = rc;
    return 0;
}

/* The directory may have been removed, and the job goes on. */
static void keep_name(struct bxi_door *door, uint64_t now_ns)
{
    struct bx_job *job = door->job;

    if (now_ns < door->check_ns)
        return;
    door->check_ns = now_ns + NAME_NS;
    if (access(job->boot->door_path, F_OK) == 0)
        return;
    int rc = bxi_socket_dir_make(job->boot->paths.directory);
    if (rc == 0 && (rc = BXI_UNSHARED(bxi_boot_listen(job->boot->door_path))) >= 0) {
        bxi_unshared_close(job->boot->door_fd);
        job->boot->door_fd = rc;
    }
    if (rc >= 0 || !door->has_failed)
        bxi_log(job, 1, "the door of worker '%s', %s, was removed%s%s", job->name, job->boot->door_path,
                rc >= 0 ? "; it is open again" : ", and no worker can join: ",
                rc >= 0 ? "" : rc == BX_E_SOCKET_DIR ? bx_error_text() : bx_strerror(rc));
    door->has_failed = rc < 0;
}

/* ---- Connections ------------------------------------------------------------------------------- */

static void drop(struct connection *connection)
{
    bxi_unshared_close(connection->fd);
    *connection = (struct connection){ 0 };
}

static void read_connection(struct bxi_door *door, struct connection *connection);

/* Drops the one that is the first to end if all are in use, and has sent nothing. */
static struct connection *free_connection(struct bxi_door *door)
{
    struct connection *first = &door->connection[0];

    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        if (door->connection[i].fd == 0)
            return &door->connection[i];
        if (door->connection[i].until_ns < first->until_ns)
            first = &door->connection[i];
    }
    if (!first->asked)
        read_connection(door, first);
    if (first->fd > 0)
        drop(first);
    return first;
}

static void accept_one(struct bxi_door *door)
{
    uint32_t pid = 0;
    int fd = bxi_boot_accept(door->job, door->job->boot->door_fd, &pid);

    if (bxi_file_none_left(fd))         /* the connection stays in the queue: poll would return at once */
        poll(&(struct pollfd){ .fd = door->wake_fd, .events = POLLIN }, 1, 100);
    if (fd < 0)
        return;
    *free_connection(door) = (struct connection){ .fd = fd, .pid = pid, .until_ns = bxi_now_ns() + CONNECTION_NS };
    BXI_STEP("rejoin.accepted");
}

static void reject(const struct bxi_door *door, struct connection *connection, int code)
{
    bxi_boot_reject(door->job, connection->fd, connection->pid, code);
    drop(connection);
}

static void nonsense(const struct bxi_door *door, struct connection *connection)
{
    bxi_boot_log_nonsense(door->job, connection->pid);
    drop(connection);
}

/* ---- What a joiner asks ------------------------------------------------------------------------ */

static bool has_ended(const struct bxi_peer *peer)
{
    struct pollfd process = { .fd = peer->pidfd, .events = POLLIN };

    return poll(&process, 1, 0) == 1;
}

/* The joiner is attached here, and asks again, for it has missed the answer. Lock, under which peers are let go. */
static bool is_attached(const struct bx_job *job, const struct bxi_boot_hello *hello)
{
    /* [joining] acquire, as in bxi_join_waits. */
    const struct bxi_peer *peer = bxi_load_acquire(&job->rpc->joins.joining[hello->rank]);

    return bxi_join_waits(job, hello->rank) && peer->generation == hello->generation && !has_ended(peer);
}

/* 0: the rank is free. -EAGAIN: it will be in a moment. Else why not, with a sentence. Lock. */
static int is_free(const struct bx_job *job, int rank)
{
    const struct bxi_peer *peer = job->rpc->peers[rank];
    /* [peer.ended] acquire, pairs with the releases in bxi_deaths_close and join.c. */
    bool ended = bxi_load_acquire((bxi_a32 *)&peer->ended) != 0;
    uint32_t state = bxi_load_relaxed(&peer->state);        /* relaxed: a late answer is asked for again */

    if (rank != job->rank && state == BXI_PEER_LEFT)
        return bx_fail(BX_E_SHUTDOWN, "worker '%s' (rank %d, pid %u) has left job '%s', which is ending", peer->name,
                       rank, peer->pid, job->job_name);
    if (rank != job->rank && (ended || has_ended(peer)))
        return ended && !bxi_join_waits(job, rank) ? 0 : -EAGAIN;
    return bxi_boot_rank_taken(job, rank, peer->name, peer->pid);
}

/* Lock. */
static int judge(const struct bx_job *job, const struct bxi_boot_hello *hello, bool *attached)
{
    if (hello->rank < 0 || hello->rank >= job->world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d", (int)hello->rank, job->world_size - 1);
    const struct bxi_peer *peer = job->rpc->peers[hello->rank];
    if (peer->name[0] != '\0' && strcmp(peer->name, hello->name) != 0)
        return bx_fail(-EINVAL, "rank %d of job '%s' has the name '%s', and a worker that takes it must have it too, "
                                "not '%s'", (int)hello->rank, job->job_name, peer->name, hello->name);
    *attached = is_attached(job, hello);
    if (*attached)
        return 0;                       /* also if this worker has begun to leave since: then it waits for the joiner */
    if (bxi_load_relaxed(&job->phase) != BXI_STARTED)
        return bx_fail(BX_E_SHUTDOWN, "worker '%s' (rank %d, pid %u) is leaving job '%s'", job->name, job->rank,
                       (unsigned)getpid(), job->job_name);
    int rc = is_free(job, hello->rank);
    if (rc == 0 && bxi_join_generation(job, hello->rank) >= BXI_GENERATION_MAX)
        return bx_fail(-EOVERFLOW, "rank %d of job '%s' was taken %d times, which is the most", (int)hello->rank,
                       job->job_name, BXI_GENERATION_MAX);
    return rc;
}

static int may_join(struct bx_job *job, const struct bxi_boot_hello *hello, bool *attached)
{
    int rc;

    *attached = false;
    bxi_lock(&job->run->lock);
    rc = judge(job, hello, attached);
    bxi_unlock(&job->run->lock);
    return rc;
}

static void welcome(struct bxi_door *door, struct connection *connection)
{
    struct bx_job *job = door->job;
    struct bxi_boot_welcome reply = {
        .head = bxi_boot_head(BXI_BOOT_WELCOME),
        .instance = job->instance,
        .now_ns = bxi_now_ns(),
    };

    memcpy(reply.name, job->name, sizeof(job->name));
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_boot_known *known = &reply.known[rank];
        const struct bxi_peer *peer;

        known->generation = (uint32_t)bxi_join_generation(job, rank);
        known->ran = bxi_join_ran(job, rank);
        bxi_lock(&job->run->lock);      /* under which peers are let go */
        peer = job->rpc->peers[rank];
        /* Relaxed, both: a late answer is asked for again. */
        known->lives = rank == job->rank || (bxi_load_relaxed((bxi_a32 *)&peer->ended) == 0 &&
                                             bxi_load_relaxed(&peer->state) != BXI_PEER_LEFT && !has_ended(peer));
        memcpy(known->name, peer->name, sizeof(peer->name));
        bxi_unlock(&job->run->lock);
    }
    bxi_boot_send(connection->fd, &(struct bxi_boot_out){ .data = &reply, .bytes = sizeof(reply) }, 0);
    drop(connection);
}

/* HELLO has come, now or before. */
static void answer(struct bxi_door *door, struct connection *connection)
{
    bool attached;
    int rc = may_join(door->job, &connection->hello, &attached);

    if (rc == -EAGAIN && !connection->asked)
        connection->until_ns = bxi_now_ns() + CONNECTION_NS;
    connection->asked = rc == -EAGAIN;
    if (rc == 0)
        welcome(door, connection);
    else if (rc != -EAGAIN)
        reject(door, connection, rc);
}

/* The joiner is attached: this worker's descriptors, for the other direction. */
static int send_table(struct bxi_door *door, const struct connection *connection)
{
    struct bxi_boot_table table = { .head = bxi_boot_head(BXI_BOOT_TABLE), .count = 1 };
    int fds[BXI_BOOT_FDS];

    int rc = bxi_boot_readable(door->job, &fds[BXI_BOOT_SEGMENT], &fds[BXI_BOOT_ARENA]);
    if (rc < 0)
        return rc;
    bxi_boot_describe_self(door->job, &table.entry[0], fds);
    /* Ignore the result: a joiner that has gone is seen by its pidfd. */
    bxi_boot_send(connection->fd,
                  &(struct bxi_boot_out){ &table, offsetof(struct bxi_boot_table, entry) + sizeof(table.entry[0]), fds,
                                          BXI_BOOT_FDS }, bxi_now_ns() + CONNECTION_NS);
    close(fds[BXI_BOOT_SEGMENT]);
    close(fds[BXI_BOOT_ARENA]);
    return 0;
}

static int attach(struct bxi_door *door, const struct connection *connection)
{
    struct bx_job *job = door->job;
    struct bxi_boot_packet *packet = &door->packet;
    const struct bxi_boot_hello *hello = &packet->as.hello;
    /* The pid of the connection is of this pid namespace. */
    struct bxi_join join = { hello->rank, hello->generation, connection->pid, hello->name, packet->fds };
    struct bxi_peer *joiner = NULL;
    bool attached;

    int rc = may_join(job, hello, &attached);
    if (attached)
        return send_table(door, connection);
    if (rc == -EAGAIN || (rc == 0 && (int)hello->generation <= bxi_join_generation(job, hello->rank)))
        return bx_fail(-EPROTO, "worker '%s' (rank %d) did not ask before it joined", hello->name, (int)hello->rank);
    if (rc < 0)
        return rc;
    BXI_STEP("rejoin.came");
    door->watched[hello->rank] = NULL;          /* one that has given up: it is replaced */
    rc = bxi_join_attach(job, &join, &joiner);
    if (rc < 0)
        return bxi_boot_cannot_attach(job, hello->name, hello->rank, rc);
    packet->fds[BXI_BOOT_BELL] = packet->fds[BXI_BOOT_BELL_LEADER] = packet->fds[BXI_BOOT_PIDFD] = -1;
    door->watched[hello->rank] = joiner;
    return send_table(door, connection);
}

static void take_packet(struct bxi_door *door, struct connection *connection)
{
    const struct bxi_boot_hello *hello = &door->packet.as.hello;
    int rc = bxi_boot_check_hello(door->job, &door->packet, &connection->pid);

    if (rc == -EBADMSG) {
        nonsense(door, connection);
    } else if (rc == 0 && hello->head.kind == BXI_BOOT_HELLO) {
        connection->hello = *hello;
        answer(door, connection);
    } else if (rc < 0 || (rc = attach(door, connection)) < 0) {
        reject(door, connection, rc);
    } else {
        drop(connection);
    }
}

static void read_connection(struct bxi_door *door, struct connection *connection)
{
    int rc = bxi_boot_receive(connection->fd, &door->packet, BXI_BOOT_FDS);

    if (rc == -EAGAIN)
        return;
    if (rc == 0)
        drop(connection);
    else if (rc == -EMFILE)
        reject(door, connection, bxi_limits_no_descriptors(door->job));
    else if (rc < 0 || connection->asked)
        nonsense(door, connection);
    else
        take_packet(door, connection);
    bxi_boot_packet_close(&door->packet);
}

/* ---- The thread -------------------------------------------------------------------------------- */

/* Those whose time is over, and those that wait for the role. Until when the thread may sleep. */
static uint64_t look_at_waiting(struct bxi_door *door)
{
    uint64_t now_ns = bxi_now_ns(), until_ns = door->check_ns;

    for (struct connection *connection = door->connection; connection < &door->connection[CONNECTIONS_MAX];
         connection++) {
        if (connection->fd > 0 && connection->asked)
            answer(door, connection);
        else if (connection->fd > 0 && connection->until_ns <= now_ns)
            read_connection(door, connection);
        if (connection->fd > 0 && connection->until_ns <= now_ns)
            drop(connection);
        if (connection->fd > 0)
            until_ns = bxi_least(until_ns, connection->asked ? now_ns + DEATH_POLL_NS : connection->until_ns);
    }
    return until_ns;
}

/* entries: what ppoll said; NULL: it failed. */
static void see_deaths(struct bxi_door *door, const struct pollfd *entries)
{
    for (int rank = 0; rank < door->job->world_size; rank++) {
        struct bxi_peer *peer = door->watched[rank];

        if (peer == NULL || (entries != NULL ? entries[rank].revents == 0 : !has_ended(peer)))
            continue;
        door->watched[rank] = NULL;
        bxi_exchange(&peer->death_seen, BXI_PEER_DEAD);
        bxi_event(door->job->run, BXI_EVENT_DEATH);
    }
}

/* ppoll takes no more entries than this process may open files, which the program may have limited since (a sandbox);
 * or there was no memory. True: the end. */
static bool wait_without(struct bxi_door *door)
{
    uint64_t rung;

    see_deaths(door, NULL);
    nanosleep(&(struct timespec){ .tv_nsec = FAILED_NS }, NULL);
    return read(door->wake_fd, &rung, sizeof(rung)) == sizeof(rung);
}

static void *serve(void *argument)
{
    struct bxi_door *door = argument;
    struct pollfd entries[2 + CONNECTIONS_MAX + BXI_WORLD_MAX];
    struct pollfd *connections = &entries[2], *processes = &entries[2 + CONNECTIONS_MAX];
    const nfds_t count = 2 + CONNECTIONS_MAX + (nfds_t)door->job->world_size;

    bxi_cancel_off();
    for (;;) {
        keep_name(door, bxi_now_ns());

        uint64_t until_ns = look_at_waiting(door), now_ns = bxi_now_ns();
        uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        struct timespec left = { .tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u) };

        entries[0] = (struct pollfd){ .fd = door->wake_fd, .events = POLLIN };
        entries[1] = (struct pollfd){ .fd = door->job->boot->door_fd, .events = POLLIN };
        for (int i = 0; i < CONNECTIONS_MAX; i++)
            connections[i] = (struct pollfd){ .fd = door->connection[i].fd > 0 ? door->connection[i].fd : -1,
                                              .events = POLLIN };
        for (int rank = 0; rank < door->job->world_size; rank++)
            processes[rank] = (struct pollfd){ .fd = door->watched[rank] != NULL ? door->watched[rank]->pidfd : -1,
                                               .events = POLLIN };

        int ready = ppoll(entries, count, &left, NULL);

        if (ready < 0 && wait_without(door))
            return NULL;
        if (ready <= 0)
            continue;
        if (entries[0].revents != 0)
            return NULL;
        see_deaths(door, processes);
        for (int i = 0; i < CONNECTIONS_MAX; i++)
            if (connections[i].revents != 0)
                read_connection(door, &door->connection[i]);
        if (entries[1].revents != 0)
            accept_one(door);
    }
}

int bxi_door_start(struct bx_job *job)
{
    struct bxi_door *door;
    int rc;

    if (job->boot->door_fd <= 0)
        return 0;
    door = calloc(1, sizeof(*door));
    if (door == NULL)
        return bx_fail(-ENOMEM, "no memory for the door of worker '%s'", job->name);
    door->job = job;
    door->check_ns = bxi_now_ns() + NAME_NS;
    door->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = door->wake_fd < 0 ? errno : bxi_thread_create(&door->thread, serve, door);
    if (rc != 0) {
        if (door->wake_fd >= 0)
            close(door->wake_fd);
        free(door);
        return bx_fail(-rc, "the thread of the door of worker '%s' cannot be started: %s", job->name, strerror(rc));
    }
    job->boot->door = door;
    return 0;
}

void bxi_door_stop(struct bx_job *job)
{
    struct bxi_door *door = job->boot->door;

    if (door != NULL) {
        bxi_joins_stop(job);            /* it may wait for the role, which this thread may have to hold */
        bxi_bell_ring(door->wake_fd);
        pthread_join(door->thread, NULL);
        for (int i = 0; i < CONNECTIONS_MAX; i++)
            if (door->connection[i].fd > 0)
                drop(&door->connection[i]);
        close(door->wake_fd);
        free(door);
        job->boot->door = NULL;
    }
    bxi_door_close(job);
}
