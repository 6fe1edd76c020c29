/* SPDX-License-Identifier: MIT */
/*
 * How the workers of a job find each other: the side of every worker but rank 0, and what both sides make of the job.
 *
 * Who runs it: the thread in bx_job_start, before any other thread of the job exists.
 *
 * Rank 0 listens on a Unix socket in a directory that only this user may enter (bootstrap_root.c); the
 * others connect, again and again until it is there, and pass it their descriptors; rank 0 passes every
 * worker those of all others. A worker that has mapped its peers says so before the next one is served:
 * descriptors that are sent and not yet received count against the user's limit of open files, and 128
 * workers times 127 times 4 would be 65,000 at once (ETOOMANYREFS for everybody but root).
 *
 * What is passed of a segment is a descriptor opened anew for reading, not the owner's. The owner's
 * carries the owner lock, which would live on in every copy and mapping of it after the owner's death;
 * and a mapping made from this one can never be made writable.
 *
 * Why not names in /dev/shm alone, opened by whoever comes: a pidfd and an eventfd have no names, and a
 * name may be a dead namesake's.
 *
 * Killed at any step before the gate opens: its socket hangs up, who sees that removes its segment's name, rank 0
 * tells all, and everybody undoes what it made and removes what others left of whom nobody else may know. After
 * that the pidfds tell. The gate is a word in rank 0's segment (bootstrap_root.c): who hears nothing more of rank 0,
 * dead or too late, goes by that word, and so do all others. Who then gives up though rank 0 may still open it, for
 * it waited too long, shows the others that it has LEFT.
 */
#include "job.h"

#include "shm/step.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RETRY_FIRST_NS UINT64_C(1000000)
#define RETRY_LAST_NS UINT64_C(50000000)
#define VERDICT_NS UINT64_C(1000000000)     /* past the deadline: rank 0 says who is missing, if it lives */

static void nap(uint64_t ns)
{
    struct timespec time = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

    nanosleep(&time, NULL);
}

double bxi_boot_seconds(uint64_t start_ns)
{
    return (double)(bxi_now_ns() - start_ns) / 1e9;
}

/* ---- What is made of the job ------------------------------------------------------------------- */

int bxi_boot_no_descriptors(const struct bx_job *job)
{
    struct rlimit limit = { 0 };
    /* Rank 0 has for a while, of each worker, a socket and the segment's descriptor besides. */
    int needed = (job->rank == 0 ? 5 : 3) * job->world_size + 64;

    getrlimit(RLIMIT_NOFILE, &limit);
    return bx_fail(BX_E_DESCRIPTORS, "rank %d of a job of %d workers needs about %d open files, and its limit "
                                     "is %llu (or the system's is reached); raise it (ulimit -Hn, "
                                     "fs.file-max)", job->rank, job->world_size, needed,
                   (unsigned long long)limit.rlim_cur);
}

/* A descriptor of the object `name`, which is behind own_fd, that can only be read. */
static int open_readable(const struct bx_job *job, const char *name, int own_fd, int *readable_fd)
{
    struct stat mine, found;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);

    if (fd < 0 && (errno == EMFILE || errno == ENFILE))
        return bxi_boot_no_descriptors(job);
    if (fd < 0)
        return bx_fail(-errno, "/dev/shm%s cannot be opened for reading: %s", name, bx_strerror(-errno));
    if (fstat(own_fd, &mine) < 0 || fstat(fd, &found) < 0 || mine.st_ino != found.st_ino ||
        mine.st_dev != found.st_dev) {
        close(fd);
        return bx_fail(-ESTALE, "/dev/shm%s was replaced by somebody while it was made", name);
    }
    *readable_fd = fd;
    return 0;
}

static int make_arena(struct bx_job *job, const char *name)
{
    struct bxi_header *header = &job->segment.control->header;
    struct bxi_arena_words words = { &header->arena_used, &header->arena_committed, &header->arena_high_water };

    return bxi_arena_create(name, job->options.arena_bytes, &words, &job->lend->arena);
}

int bxi_boot_segment(struct bx_job *job, int *segment_fd, int *arena_fd)
{
    char name[BXI_OBJECT_NAME_BYTES], arena_name[BXI_OBJECT_NAME_BYTES], hint[BXI_MAP_HINT_BYTES];
    uint32_t uid = (uint32_t)geteuid();

    /* Before there is anything to remove, so that no kill falls between. */
    bxi_object_name(name, uid, job->job_name, job->instance, job->rank);
    bxi_object_arena_name(arena_name, uid, job->job_name, job->instance, job->rank);
    bxi_spawn_note_segment(job, name, arena_name);
    int rc = bxi_segment_create(&job->segment, job->job_name, job->name, job->instance, job->rank,
                                job->world_size);
    if (rc < 0)
        return bxi_limits_no_segment(job, name, rc);
    if ((rc = make_arena(job, arena_name)) < 0)
        return bxi_limits_no_arena(job, arena_name, rc);
    if ((rc = open_readable(job, name, job->segment.fd, segment_fd)) < 0)
        return rc;
    if ((rc = open_readable(job, arena_name, bxi_arena_fd(job->lend->arena), arena_fd)) < 0)
        goto close_segment;
    rc = bxi_arena_attach(&job->rpc->peers[job->rank].lend->arena, *arena_fd, bxi_arena_bytes(job->lend->arena));
    if (rc < 0) {
        bx_fail(rc, "/dev/shm%s cannot be mapped: %s%s", arena_name, bx_strerror(rc),
                bxi_limits_map_hint(job, rc, hint));
        goto close_arena;
    }
    bxi_job_adopt_segment(job);
    return 0;

close_arena:
    close(*arena_fd);
    *arena_fd = -1;
close_segment:
    close(*segment_fd);
    *segment_fd = -1;
    return rc;
}

static void fill_self(struct bx_job *job)
{
    struct bxi_peer *self = &job->rpc->peers[job->rank];

    self->rank = job->rank;
    self->pid = (uint32_t)getpid();
    self->pidfd = -1;
    self->bell.fd[0] = self->bell.fd[1] = -1;
    memcpy(self->name, job->name, sizeof(self->name));
    /* Relaxed: no other thread of the job exists yet. */
    bxi_store_relaxed(&self->state, BXI_PEER_ALIVE);
}

int bxi_boot_add_peer(struct bx_job *job, const struct bxi_boot_entry *entry, const int fds[BXI_BOOT_FDS])
{
    if (entry->rank < 0 || entry->rank >= job->world_size || entry->rank == job->rank)
        return -EPROTO;
    struct bxi_peer *peer = &job->rpc->peers[entry->rank];
    if (peer->view.control != NULL)
        return -EPROTO;
    if (memchr(entry->name, 0, sizeof(entry->name)) == NULL || !bxi_name_is_valid(entry->name))
        return -EPROTO;
    /* Ringing must never block the one who rings. */
    for (int i = BXI_BOOT_BELL; i <= BXI_BOOT_BELL_LEADER; i++)
        if ((fcntl(fds[i], F_GETFL) & (O_NONBLOCK | O_ACCMODE)) != (O_NONBLOCK | O_RDWR))
            return -EPROTO;
    if (syscall(SYS_pidfd_send_signal, fds[BXI_BOOT_PIDFD], 0, NULL, 0) < 0 && errno == EBADF)
        return -EPROTO;
    int rc = bxi_segment_attach(&peer->view, fds[BXI_BOOT_SEGMENT], job->instance, entry->rank, job->world_size);
    if (rc < 0)
        return rc;
    rc = bxi_arena_attach(&peer->lend->arena, fds[BXI_BOOT_ARENA], peer->view.control->header.arena_bytes);
    if (rc < 0) {
        bxi_segment_detach(&peer->view);
        return rc;
    }

    peer->rank = entry->rank;
    peer->pid = entry->pid;
    memcpy(peer->name, entry->name, sizeof(peer->name));
    peer->bell.word = &peer->view.control->header.armed;
    peer->bell.fd[0] = fds[BXI_BOOT_BELL];
    peer->bell.fd[1] = fds[BXI_BOOT_BELL_LEADER];
    peer->pidfd = fds[BXI_BOOT_PIDFD];
    /* Relaxed: no other thread of the job exists yet. */
    bxi_store_relaxed(&peer->state, BXI_PEER_ALIVE);
    return 0;
}

void bxi_boot_undo(struct bx_job *job)
{
    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_peer *peer = &job->rpc->peers[rank];

        if (peer->view.control != NULL) {
            bxi_segment_detach(&peer->view);
            close(peer->bell.fd[0]);
            close(peer->bell.fd[1]);
            close(peer->pidfd);
        }
        if (peer->lend->arena != NULL)
            bxi_arena_view_release(peer->lend->arena);
        bxi_peer_init(job, rank);
    }
    /* What bxi_job_adopt_segment pointed into the segment. */
    job->control = NULL;
    job->counters = job->observe->private_counters;
    bxi_run_attach(job->run, NULL, job->counters, NULL);
    if (job->lend->arena != NULL) {
        bxi_arena_close(job->lend->arena);
        bxi_arena_release(job->lend->arena);
        job->lend->arena = NULL;
    }
    if (job->segment.control != NULL)
        bxi_segment_destroy(&job->segment);
    job->instance = 0;
}

/* ---- A worker's side --------------------------------------------------------------------------- */

struct joiner {
    struct bx_job *job;
    const struct bxi_boot_paths *paths;
    uint64_t start_ns;
    uint64_t deadline_ns;
    uint64_t tell_ns;           /* when to log who is waited for */
    uint64_t verdict_ns;        /* until when rank 0, once met, is listened to */
    int fd;                     /* to rank 0 */
    struct bxi_boot_watch watch;
    uint32_t root_pid;
    char root_name[BXI_NAME_BYTES];
    struct bxi_boot_packet packet;
};

/* 0; -EAGAIN: not there (yet); else a failure with its sentence. */
static int try_connect(struct joiner *joiner)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    memcpy(address.sun_path, joiner->paths->socket, sizeof(address.sun_path));
    joiner->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (joiner->fd < 0 && (errno == EMFILE || errno == ENFILE))
        return bxi_boot_no_descriptors(joiner->job);
    if (joiner->fd < 0)
        return bx_fail(-errno, "no socket can be made: %s", bx_strerror(-errno));
    if (connect(joiner->fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
        if (bxi_boot_is_own(joiner->fd, &joiner->root_pid))
            return 0;
        return bx_fail(BX_E_SOCKET_DIR, "%s belongs to another user's process (%u)", joiner->paths->socket,
                       joiner->root_pid);
    }
    if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR || errno == EPROTOTYPE)
        return -EAGAIN;
    return bx_fail(BX_E_SOCKET_DIR, "%s cannot be connected to: %s", joiner->paths->socket,
                   bx_strerror(-errno));
}

/* A NOTE: what rank 0 waits for. True if it was one. */
static bool take_note(struct bxi_boot_packet *packet)
{
    if (!bxi_boot_packet_is(packet, BXI_BOOT_NOTE, 0))
        return false;
    packet->as.note.text[BXI_TEXT_BYTES - 1] = '\0';
    bxi_log(1, "%s", packet->as.note.text);
    return true;
}

/* The next packet. 1; 0 when rank 0 has hung up; a failure with its sentence, rank 0's own too. */
static int next_packet(struct joiner *joiner, int fds_max)
{
    const struct bx_job *job = joiner->job;

    for (;;) {
        int rc = bxi_boot_wait(joiner->fd, POLLIN, joiner->verdict_ns);
        if (rc == 0)
            return bx_fail(BX_E_RANK_MISSING, "rank 0 of job '%s' (pid %u) did not answer within %.1f s",
                           job->job_name, joiner->root_pid, bxi_boot_seconds(joiner->start_ns));
        if (rc > 0)
            rc = bxi_boot_receive(joiner->fd, &joiner->packet, fds_max);
        if (rc == -EAGAIN)
            continue;
        if (rc == -EMFILE)
            return bxi_boot_no_descriptors(job);
        if (rc < 0)
            return bx_fail(rc, "rank 0 of job '%s' (pid %u) cannot be understood: %s", job->job_name,
                           joiner->root_pid, bx_strerror(rc));
        if (rc == 0)
            return 0;
        rc = bxi_boot_packet_failure(&joiner->packet);
        if (rc < 0)
            return rc;
        if (!take_note(&joiner->packet))
            return 1;
    }
}

static int nonsense(struct joiner *joiner)
{
    bxi_boot_packet_close(&joiner->packet);
    return bx_fail(-EPROTO, "rank 0 of job '%s' (pid %u) sent what no rank 0 sends", joiner->job->job_name,
                   joiner->root_pid);
}

/* Rank 0 has hung up on one that it has not welcomed: it has died, or its job is complete. */
static int root_hung_up(struct joiner *joiner)
{
    const struct bx_job *job = joiner->job;
    uint64_t end_ns = bxi_now_ns() + VERDICT_NS;
    int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)joiner->root_pid, 0);
    bool is_dead = pidfd < 0 && errno == ESRCH;
    int rc = 0;

    while (!is_dead && pidfd >= 0 && rc == 0 && bxi_now_ns() < end_ns) {
        rc = bxi_boot_watch_look(&joiner->watch, job, joiner->paths);
        is_dead = rc == 0 && bxi_boot_wait(pidfd, POLLIN, bxi_now_ns() + RETRY_FIRST_NS) == 1;
    }
    if (pidfd >= 0)
        close(pidfd);
    if (rc < 0 || !is_dead)
        return rc < 0 ? rc : -EAGAIN;
    rc = bxi_spawn_how_ended(job, 0);
    return rc < 0 ? rc : bx_fail(BX_E_PEER_DEAD, "rank 0 of job '%s' (pid %u) died while the job was starting",
                                 job->job_name, joiner->root_pid);
}

/* One attempt: connect, HELLO, WELCOME. 0; -EAGAIN: nobody there; else a failure with its sentence. */
static int try_meet(struct joiner *joiner)
{
    struct bx_job *job = joiner->job;
    struct bxi_boot_hello hello = {
        .head = bxi_boot_head(BXI_BOOT_HELLO),
        .deadline_ns = joiner->deadline_ns,
        .rank = job->rank,
        .world_size = job->world_size,
        .pid = (uint32_t)getpid(),
    };

    int rc = try_connect(joiner);
    if (rc < 0)
        return rc;
    memcpy(hello.name, job->name, sizeof(hello.name));
    /* If rank 0 has hung up meanwhile, what it said before that is still to be read. */
    bxi_boot_send(joiner->fd, &(struct bxi_boot_out){ .data = &hello, .bytes = sizeof(hello) },
                  joiner->deadline_ns);
    BXI_STEP("boot.hello_sent");
    rc = next_packet(joiner, 0);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return root_hung_up(joiner);

    struct bxi_boot_welcome *welcome = &joiner->packet.as.welcome;
    if (!bxi_boot_packet_is(&joiner->packet, BXI_BOOT_WELCOME, 0) || welcome->instance == 0)
        return nonsense(joiner);
    job->instance = welcome->instance;
    memcpy(joiner->root_name, welcome->name, sizeof(joiner->root_name));
    joiner->root_name[BXI_NAME_BYTES - 1] = '\0';
    BXI_STEP("boot.welcomed");
    return 0;
}

static int root_never_came(const struct joiner *joiner)
{
    const char *job_name = joiner->job->job_name;
    long holder = bxi_boot_lock_holder(joiner->paths->lock);
    char text[BXI_HOLDER_BYTES];

    if (holder != 0)
        return bx_fail(BX_E_JOB_RUNNING, "job '%s' has started without this worker (rank %d): its rank 0 is %s",
                       job_name, joiner->job->rank, bxi_boot_holder_text(holder, text));
    return bx_fail(BX_E_RANK_MISSING, "rank 0 has not opened job '%s' within %.1f s (socket %s)", job_name,
                   bxi_boot_seconds(joiner->start_ns), joiner->paths->socket);
}

/* Rank 0 is not there. Says so in the log, now and then. */
static void tell_waiting(struct joiner *joiner)
{
    const struct bx_job *job = joiner->job;
    uint64_t now_ns = bxi_now_ns();

    if (now_ns < joiner->tell_ns)
        return;
    joiner->tell_ns = now_ns + BXI_BOOT_AGAIN_NS;

    long holder = bxi_boot_lock_holder(joiner->paths->lock);
    char text[BXI_HOLDER_BYTES];
    if (holder != 0)
        bxi_log(1, "worker '%s' (rank %d) waits for the end of job '%s', which runs without it: its rank 0 is %s",
                job->name, job->rank, job->job_name, bxi_boot_holder_text(holder, text));
    else
        bxi_log(1, "worker '%s' (rank %d) waits for rank 0 of job '%s', which has not come within %.1f s (socket %s)",
                job->name, job->rank, job->job_name, bxi_boot_seconds(joiner->start_ns), joiner->paths->socket);
}

static int meet(struct joiner *joiner)
{
    uint64_t retry_ns = RETRY_FIRST_NS;

    for (;;) {
        int rc = try_meet(joiner);
        if (rc != -EAGAIN)
            return rc;
        close(joiner->fd);
        joiner->fd = -1;
        rc = bxi_boot_watch_look(&joiner->watch, joiner->job, joiner->paths);
        if (rc < 0 || (rc = bxi_spawn_look(joiner->job, -1)) < 0)
            return rc;
        tell_waiting(joiner);

        uint64_t now_ns = bxi_now_ns();
        if (now_ns >= joiner->deadline_ns)
            return root_never_came(joiner);
        uint64_t left_ns = joiner->deadline_ns - now_ns;
        nap(retry_ns < left_ns ? retry_ns : left_ns);
        retry_ns = retry_ns * 2 < RETRY_LAST_NS ? retry_ns * 2 : RETRY_LAST_NS;
    }
}

/* Makes the segment and hands it over with the bells and the pidfd. */
static int send_join(struct joiner *joiner)
{
    struct bx_job *job = joiner->job;
    struct bxi_boot_head head = bxi_boot_head(BXI_BOOT_JOIN);
    int fds[BXI_BOOT_FDS] = { [BXI_BOOT_BELL] = job->run->bell_fd[0], [BXI_BOOT_BELL_LEADER] = job->run->bell_fd[1],
                              [BXI_BOOT_PIDFD] = job->boot->pidfd };

    int rc = bxi_boot_segment(job, &fds[BXI_BOOT_SEGMENT], &fds[BXI_BOOT_ARENA]);
    if (rc < 0)
        return rc;
    rc = bxi_boot_send(joiner->fd, &(struct bxi_boot_out){ &head, sizeof(head), fds, BXI_BOOT_FDS },
                       joiner->deadline_ns);
    BXI_STEP("boot.join_sent");
    close(fds[BXI_BOOT_SEGMENT]);
    close(fds[BXI_BOOT_ARENA]);
    if (rc == 0 || rc == -EPIPE || rc == -ECONNRESET)
        return 0;           /* a hang-up: next_packet tells why */
    return bx_fail(rc, "worker '%s' (rank %d) could not hand its descriptors to rank 0: %s", job->name,
                   job->rank, bx_strerror(rc));
}

/* The number of peers in it, all attached; a failure with its sentence. */
static int take_table(struct joiner *joiner)
{
    struct bxi_boot_packet *packet = &joiner->packet;
    int count = (int)packet->as.table.count;
    char hint[BXI_MAP_HINT_BYTES];

    for (int i = 0; i < count; i++) {
        struct bxi_boot_entry *entry = &packet->as.table.entry[i];
        int *fds = &packet->fds[i * BXI_BOOT_FDS];

        int rc = bxi_boot_add_peer(joiner->job, entry, fds);
        if (rc < 0) {
            bxi_boot_packet_close(packet);
            return bx_fail(rc, "worker '%s' (rank %d) cannot attach to '%.*s' (rank %d): %s%s", joiner->job->name,
                           joiner->job->rank, BXI_NAME_BYTES - 1, entry->name, (int)entry->rank,
                           bx_strerror(rc), bxi_limits_map_hint(joiner->job, rc, hint));
        }
        fds[BXI_BOOT_BELL] = fds[BXI_BOOT_BELL_LEADER] = fds[BXI_BOOT_PIDFD] = -1;
    }
    bxi_boot_packet_close(packet);
    return count;
}

/* Whether rank 0 has let all go. Its segment is mapped, and stays as it was when its owner dies. */
static bool gate_is_open(const struct bx_job *job)
{
    const struct bxi_segment_view *view = &job->rpc->peers[0].view;

    /* [state] acquire, pairs with the release in let_all_go. */
    return view->control != NULL && bxi_load_acquire((bxi_a32 *)&view->control->header.state) >= BXI_RUNNING;
}

/* Rank 0 has hung up, and is dead: but the kernel may close its sockets before it gives up its locks. */
static void wait_for_lock(const struct joiner *joiner)
{
    uint64_t end_ns = bxi_now_ns() + VERDICT_NS;

    while (bxi_boot_lock_holder(joiner->paths->lock) == (long)joiner->root_pid && bxi_now_ns() < end_ns)
        nap(RETRY_FIRST_NS);
}

/* From JOIN to GO. */
static int gather(struct joiner *joiner)
{
    struct bx_job *job = joiner->job;
    struct bxi_boot_head attached = bxi_boot_head(BXI_BOOT_ATTACHED);
    int missing = job->world_size - 1;

    for (;;) {
        int rc = next_packet(joiner, BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS);
        if (rc <= 0 && missing == 0 && gate_is_open(job))
            return 0;
        if (rc < 0)
            return rc;
        if (rc == 0) {
            wait_for_lock(joiner);
            bxi_boot_unlink_dead(job, 0);
            rc = bxi_spawn_how_ended(job, 0);
            return rc < 0 ? rc : bx_fail(BX_E_PEER_DEAD, "worker '%s' (rank 0, pid %u) died while the job was starting",
                           joiner->root_name, joiner->root_pid);
        }
        if (missing == 0 && bxi_boot_packet_is(&joiner->packet, BXI_BOOT_GO, 0))
            return 0;
        if (missing == 0 || !bxi_boot_packet_is(&joiner->packet, BXI_BOOT_TABLE, 0))
            return nonsense(joiner);
        rc = take_table(joiner);
        if (rc < 0)
            return rc;
        missing -= rc;
        if (missing > 0)
            continue;
        BXI_STEP("boot.tabled");
        bxi_boot_send(joiner->fd, &(struct bxi_boot_out){ .data = &attached, .bytes = sizeof(attached) },
                      joiner->deadline_ns);
        BXI_STEP("boot.attached_sent");
    }
}

static int join(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns)
{
    uint64_t now_ns = bxi_now_ns();
    struct joiner joiner = {
        .job = job,
        .paths = paths,
        .start_ns = now_ns,
        .tell_ns = now_ns + BXI_BOOT_TELL_NS,
        .deadline_ns = deadline_ns,
        .verdict_ns = deadline_ns > BX_FOREVER - VERDICT_NS ? BX_FOREVER : deadline_ns + VERDICT_NS,
        .fd = -1,
        .watch = { .fd = -1 },
    };

    bxi_spawn_note_wait(job, paths);
    int rc = meet(&joiner);
    bxi_spawn_note_wait(job, NULL);
    bxi_boot_watch_close(&joiner.watch);
    if (rc == 0)
        rc = send_join(&joiner);
    if (rc == 0)
        rc = gather(&joiner);
    if (rc < 0 && job->control != NULL)
        /* [state] release, pairs with the acquire in look_state: of those who are let go after all. */
        bxi_store_release(&job->control->header.state, BXI_LEFT);
    if (rc < 0 && joiner.fd >= 0)
        bxi_boot_send_fail(joiner.fd, rc);
    if (joiner.fd >= 0)
        close(joiner.fd);
    return rc;
}

/* What others left who died in this start, or of whom the start was waiting; nobody else may be there to do it. */
static void clear_up(struct bx_job *job, const struct bxi_boot_paths *paths, int code)
{
    uint64_t instance = job->instance;      /* 0 if rank 0 never came: any */

    /* First, and with the code: who has not met rank 0 does not know that it died. */
    bxi_boot_sweep(paths, code == BX_E_PEER_DEAD || code == BX_E_WORKER_FAILED ? code : 0);
    bxi_boot_clear_dead(job);
    bxi_boot_undo(job);
    bxi_object_reap(job->job_name, instance);
}

int bxi_bootstrap(struct bx_job *job, uint64_t deadline_ns)
{
    struct bxi_boot_paths paths;

    int rc = bxi_boot_paths(job->job_name, &paths);
    if (rc < 0)
        return rc;
    fill_self(job);
    rc = job->rank == 0 ? bxi_boot_root(job, &paths, deadline_ns) : join(job, &paths, deadline_ns);
    if (rc < 0)
        clear_up(job, &paths, rc);
    return rc;
}
