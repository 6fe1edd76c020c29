/* SPDX-License-Identifier: MIT */
/*
 * How the workers of a job find each other: the side of every worker but rank 0.
 *
 * Who runs it: the thread in bx_job_start, before any other thread of the job exists.
 *
 * Rank 0 listens on a Unix socket in a directory that only this user may enter (bootstrap_root.c). The others connect,
 * with retries until the socket exists, and pass their descriptors to rank 0; rank 0 passes to each worker those of all
 * others. A worker that has mapped its peers sends ATTACHED before the next worker is served: descriptors that are sent
 * and not yet received count against the user's limit of open files, and 128 workers times 127 times 4 would be 65,000
 * at once (ETOOMANYREFS for every user but root).
 *
 * Of a segment not the owner's descriptor is passed, but one opened anew for reading. The owner's carries the owner
 * lock, which would live on in every copy and mapping of it after the owner's death. And a mapping made from the new
 * one can never be made writable.
 *
 * Why not names in /dev/shm alone, which any worker could open: a pidfd and an eventfd have no names, and a name may
 * belong to a dead job of the same name.
 *
 * Killed at any step before the gate opens: the worker's socket hangs up; the process at the other end sees that and
 * removes the names of the worker's segment and arena; rank 0 sends FAIL to all; and each worker undoes what it made
 * and removes what dead workers left of which no other process may know. After the gate the pidfds report deaths. The
 * gate is a word in rank 0's segment (bootstrap_root.c). A worker that hears no more of rank 0, because rank 0 is dead
 * or too late, decides by that word, and so do all others. If a worker gives up because it waited too long, rank 0 may
 * still open the gate; so the worker stores LEFT in its own segment, for the others to see.
 */
#include "job.h"

#include "shm/step.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define RETRY_FIRST_NS UINT64_C(1000000)
#define RETRY_LAST_NS UINT64_C(50000000)
#define VERDICT_NS UINT64_C(1000000000)     /* past the deadline: a living rank 0 reports who is missing */

static void nap(uint64_t ns)
{
    struct timespec time = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

    nanosleep(&time, NULL);
}

struct joiner {
    struct bx_job *job;
    const struct bxi_boot_paths *paths;
    uint64_t start_ns;
    uint64_t deadline_ns;
    uint64_t log_ns;            /* when to log for whom this worker waits */
    bool has_waited;
    uint64_t verdict_ns;        /* when this worker stops waiting for a rank 0 that it has met */
    struct bxi_boot_asked root; /* fd: -1 before it is met */
    int watch_fd;               /* bxi_boot_watch */
    struct bxi_boot_packet packet;
};

/* 0; -EAGAIN: rank 0 is not there (yet); else a failure with its sentence. */
static int try_connect(struct joiner *joiner)
{
    static const int absent[] = { -ENOENT, -ECONNREFUSED, -EAGAIN, -EINTR, -EPROTOTYPE };
    int fd = BXI_UNSHARED(bxi_boot_connect(joiner->paths->socket, &joiner->root.pid));

    for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++)
        if (fd == absent[i])
            return -EAGAIN;
    if (fd < 0)
        return bxi_limits_no_file(joiner->job, "socket", joiner->paths->socket, fd);
    joiner->root.fd = fd;
    snprintf(joiner->root.who, sizeof(joiner->root.who), "rank %d of job '%s' (pid %u)", joiner->job->root,
             joiner->job->job_name, joiner->root.pid);
    return 0;
}

/* Receives the next packet that is no NOTE. 1; 0: rank 0 has hung up; a failure with its sentence. */
static int next_packet(struct joiner *joiner, int fds_max)
{
    struct bxi_boot_note *note = &joiner->packet.as.note;

    for (;;) {
        int rc = bxi_boot_next(joiner->job, &joiner->root, &joiner->packet, fds_max, joiner->verdict_ns);

        if (rc == -ETIMEDOUT)
            return bx_fail(BX_E_RANK_MISSING, "%s did not answer within %.1f s", joiner->root.who,
                           bxi_boot_seconds(joiner->start_ns));
        if (rc <= 0 || !bxi_boot_packet_is(&joiner->packet, BXI_BOOT_NOTE, 0))
            return rc;
        note->text[BXI_TEXT_BYTES - 1] = '\0';
        bxi_log(joiner->job, 1, "%s", note->text);
    }
}

/* Rank 0 has hung up before WELCOME: it has died, or its job is complete. The lock of the job's name tells which. The
 * kernel may close the socket of a dead process before it releases the lock. */
static int root_hung_up(struct joiner *joiner)
{
    const struct bx_job *job = joiner->job;
    uint64_t end_ns = bxi_now_ns() + VERDICT_NS;

    while (bxi_now_ns() < end_ns) {
        int rc = bxi_boot_watch(&joiner->watch_fd, job, joiner->paths);
        if (rc < 0)
            return rc;
        if (bxi_boot_lock_is_left(joiner->paths->lock))
            return bxi_spawn_died(job, job->root, joiner->root.who);
        nap(RETRY_FIRST_NS);
    }
    return -EAGAIN;
}

/* One attempt: connect, HELLO, WELCOME. 0; -EAGAIN: rank 0 is not there; else a failure with its sentence. */
static int try_meet(struct joiner *joiner)
{
    struct bx_job *job = joiner->job;
    const struct bxi_boot_welcome *welcome = &joiner->packet.as.welcome;

    int rc = try_connect(joiner);
    if (rc < 0)
        return rc;
    bxi_boot_ask(job, &joiner->root, BXI_BOOT_HELLO, NULL, joiner->deadline_ns);
    BXI_STEP("boot.hello_sent");
    rc = next_packet(joiner, 0);
    if (rc <= 0)
        return rc < 0 ? rc : root_hung_up(joiner);
    if ((rc = bxi_boot_check_welcome(job, &joiner->root, &joiner->packet, job->root)) < 0)
        return rc;
    job->instance = welcome->instance;
    bxi_boot_who(joiner->root.who, welcome->name, job->root, joiner->root.pid);
    BXI_STEP("boot.welcomed");
    return 0;
}

static int root_never_came(const struct joiner *joiner)
{
    const char *job_name = joiner->job->job_name;
    char holder[BXI_HOLDER_BYTES], other[BXI_OTHER_USER_BYTES];

    if (bxi_boot_lock_holder(joiner->paths->lock, holder))
        return bx_fail(BX_E_JOB_RUNNING, "job '%s' has started without this worker (rank %d): its rank 0 is %s",
                       job_name, joiner->job->rank, holder);
    return bx_fail(BX_E_RANK_MISSING, "rank 0 has not opened job '%s' within %.1f s (socket %s)%s", job_name,
                   bxi_boot_seconds(joiner->start_ns), joiner->paths->socket, bxi_boot_other_user(job_name, other));
}

/* Logs that rank 0 is not there: after BXI_BOOT_LATE_NS, then after each BXI_BOOT_AGAIN_NS; the first time at once if
 * another user has a job of that name. */
static void log_waiting(struct joiner *joiner)
{
    const struct bx_job *job = joiner->job;
    uint64_t now_ns = bxi_now_ns();
    char holder[BXI_HOLDER_BYTES], other[BXI_OTHER_USER_BYTES] = "";
    bool is_first = !joiner->has_waited;

    joiner->has_waited = true;
    if (is_first || now_ns >= joiner->log_ns)
        bxi_boot_other_user(job->job_name, other);
    if (now_ns < joiner->log_ns && other[0] == '\0')
        return;
    if (now_ns >= joiner->log_ns)
        joiner->log_ns = now_ns + BXI_BOOT_AGAIN_NS;

    if (bxi_boot_lock_holder(joiner->paths->lock, holder))
        bxi_log(job, 1, "worker '%s' (rank %d) waits for the end of job '%s', which runs without it: its rank 0 is %s",
                job->name, job->rank, job->job_name, holder);
    else
        bxi_log(job, 1, "worker '%s' (rank %d) waits for rank 0 of job '%s', which has not come within %.1f s "
                        "(socket %s)%s", job->name, job->rank, job->job_name, bxi_boot_seconds(joiner->start_ns),
                joiner->paths->socket, other);
}

/* 0: WELCOME has come. 1: this worker has joined a job that runs (rejoin.c), and nothing is left to do. */
static int meet(struct joiner *joiner)
{
    uint64_t retry_ns = RETRY_FIRST_NS;

    for (;;) {
        int rc = try_meet(joiner);
        if (rc != -EAGAIN)
            return rc;
        bxi_unshared_close(joiner->root.fd);
        joiner->root.fd = -1;
        rc = bxi_rejoin(joiner->job, joiner->paths, joiner->deadline_ns);
        if (rc != 0 && rc != -EAGAIN)
            return rc;
        rc = bxi_boot_watch(&joiner->watch_fd, joiner->job, joiner->paths);
        if (rc < 0 || (rc = bxi_spawn_ended(joiner->job, -1)) < 0 || (rc = bxi_net_ended(joiner->job)) < 0)
            return rc;
        log_waiting(joiner);

        uint64_t now_ns = bxi_now_ns();
        if (now_ns >= joiner->deadline_ns)
            return root_never_came(joiner);
        uint64_t left_ns = joiner->deadline_ns - now_ns;
        rc = bxi_poll_start(joiner->job, -1, POLLIN, now_ns + bxi_least(retry_ns, left_ns));
        if (rc < 0)
            return rc;
        retry_ns = retry_ns * 2 < RETRY_LAST_NS ? retry_ns * 2 : RETRY_LAST_NS;
    }
}

/* Makes the segment and the arena, and sends their descriptors with the bells and the pidfd. */
static int send_join(struct joiner *joiner)
{
    struct bx_job *job = joiner->job;
    struct bxi_boot_entry self;
    int fds[BXI_BOOT_FDS];

    int rc = bxi_boot_segment(job, &fds[BXI_BOOT_SEGMENT], &fds[BXI_BOOT_ARENA]);
    if (rc < 0)
        return rc;
    if ((rc = bxi_door_open(job)) < 0)
        goto close_fds;
    bxi_boot_describe_self(job, &self, fds);
    rc = bxi_boot_ask(job, &joiner->root, BXI_BOOT_JOIN, fds, joiner->deadline_ns);
    BXI_STEP("boot.join_sent");
    if (rc == -EPIPE || rc == -ECONNRESET)
        rc = 0;             /* a hang-up: next_packet reports why */
    if (rc < 0)
        bx_fail(rc, "worker '%s' (rank %d) could not hand its descriptors to rank 0: %s", job->name, job->rank,
                bx_strerror(rc));

close_fds:
    close(fds[BXI_BOOT_SEGMENT]);
    close(fds[BXI_BOOT_ARENA]);
    return rc;
}

/* Attaches the peers of a TABLE. Their number; or a failure with its sentence. */
static int take_table(struct joiner *joiner)
{
    struct bxi_boot_packet *packet = &joiner->packet;
    int count = (int)packet->as.table.count, rc = 0;

    for (int i = 0; i < count && rc == 0; i++)
        rc = bxi_boot_add_peer(joiner->job, &packet->as.table.entry[i], &packet->fds[i * BXI_BOOT_FDS]);
    bxi_boot_packet_close(packet);
    return rc < 0 ? rc : count;
}

/* Rank 0 has opened the gate. Its segment is mapped, and stays as it was when rank 0 dies. */
static bool gate_is_open(const struct bx_job *job)
{
    const struct bxi_segment_view *view = &job->rpc->peers[job->root]->view;

    /* [state] acquire, pairs with the release in open_gate. */
    return view->control != NULL && bxi_load_acquire((bxi_a32 *)&view->control->header.state) >= BXI_RUNNING;
}

/* Rank 0 has hung up, so it is dead. The kernel may close its sockets before it releases its locks. */
static void wait_for_lock(const struct joiner *joiner)
{
    uint64_t end_ns = bxi_now_ns() + VERDICT_NS;

    while (bxi_boot_lock_holder(joiner->paths->lock, NULL) && bxi_now_ns() < end_ns)
        nap(RETRY_FIRST_NS);
}

/* From JOIN to GO. */
static int gather(struct joiner *joiner)
{
    struct bx_job *job = joiner->job;
    struct bxi_boot_head attached = bxi_boot_head(BXI_BOOT_ATTACHED);
    int missing = bxi_net_here(job) - 1;

    for (;;) {
        int rc = next_packet(joiner, BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS);
        if (rc <= 0 && missing == 0 && gate_is_open(job))
            return 0;
        if (rc < 0)
            return rc;
        if (rc == 0) {
            wait_for_lock(joiner);
            bxi_boot_unlink_dead(job, job->root);
            return bxi_spawn_died(job, job->root, joiner->root.who);
        }
        if (missing == 0 && bxi_boot_packet_is(&joiner->packet, BXI_BOOT_GO, 0))
            return 0;
        if (missing == 0 || !bxi_boot_packet_is(&joiner->packet, BXI_BOOT_TABLE, 0))
            return bxi_boot_nonsense(&joiner->root, &joiner->packet);
        rc = take_table(joiner);
        if (rc < 0)
            return rc;
        missing -= rc;
        if (missing > 0)
            continue;
        BXI_STEP("boot.tabled");
        bxi_boot_send(joiner->root.fd, &(struct bxi_boot_out){ .data = &attached, .bytes = sizeof(attached) },
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
        .log_ns = now_ns + BXI_BOOT_LATE_NS,
        .deadline_ns = deadline_ns,
        .verdict_ns = deadline_ns > BX_FOREVER - VERDICT_NS ? BX_FOREVER : deadline_ns + VERDICT_NS,
        .root = { .fd = -1 },
        .watch_fd = -1,
    };

    bxi_spawn_note(job, BXI_NOTED_WAIT, paths->lock);
    int rc = meet(&joiner);
    bxi_spawn_note(job, BXI_NOTED_WAIT, NULL);
    if (joiner.watch_fd >= 0)
        close(joiner.watch_fd);
    if (rc == 0)
        rc = send_join(&joiner);
    if (rc == 0)
        rc = gather(&joiner);
    /* Relaxed: its own word. GAVE_UP stays: who saw LEFT in its place would take it for one that had run. */
    if (rc < 0 && job->control != NULL && bxi_load_relaxed(&job->control->header.state) == BXI_STARTING)
        /* [state] release, pairs with the acquire in look_state, of workers for which rank 0 still opens the gate. */
        bxi_store_release(&job->control->header.state, BXI_LEFT);
    if (rc < 0 && joiner.root.fd >= 0)
        bxi_boot_send_fail(joiner.root.fd, rc);
    bxi_unshared_close(joiner.root.fd);
    return rc < 0 ? rc : 0;
}

/* Rank 0. */
static int begin_or_rejoin(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns)
{
    int rc;

    while ((rc = bxi_rejoin(job, paths, deadline_ns)) == -EAGAIN)
        if ((rc = bxi_poll_start(job, -1, POLLIN, bxi_now_ns() + RETRY_LAST_NS)) < 0)
            return rc;
    return rc == 0 ? bxi_boot_root(job, paths, deadline_ns) : rc < 0 ? rc : 0;
}

/* Removes what other workers left that died in this start, or for which it waited; no other process may do it. */
static void clear_up(struct bx_job *job, const struct bxi_boot_paths *paths, int code)
{
    uint64_t instance = job->instance;      /* 0 if rank 0 never came: any */

    /* First, and with the code: a worker that has not met rank 0 does not know that rank 0 died. */
    bxi_boot_sweep(paths->lock, code == BX_E_PEER_DEAD || code == BX_E_WORKER_FAILED ? code : 0);
    bxi_boot_clear_dead(job);
    bxi_boot_undo(job);
    bxi_object_reap(job->job_name, instance);
    if (job->options.rejoin)
        bxi_doors_sweep(paths, job->job_name);
}

int bxi_bootstrap(struct bx_job *job, uint64_t deadline_ns)
{
    struct bxi_boot_paths *paths = &job->boot->paths;

    int rc = bxi_net_meet(job, deadline_ns);
    if (rc < 0)
        return rc;
    if (bxi_net_here(job) > BXI_WORLD_MAX) {
        rc = bx_fail(BX_E_WORLD_SIZE, "a host has at most %d workers of a job, and %d of the %d of job '%s' are on "
                                      "this one; start them on more hosts (BX_ROOT)", BXI_WORLD_MAX,
                     bxi_net_here(job), job->world_size, job->job_name);
        bxi_net_fail(job, rc);
        return rc;
    }
    if ((rc = bxi_boot_paths(job->job_name, paths)) < 0) {
        bxi_net_fail(job, rc);
        return rc;
    }
    bxi_boot_fill_self(job);
    rc = job->rank == job->root ? begin_or_rejoin(job, paths, deadline_ns) : join(job, paths, deadline_ns);
    if (rc < 0) {
        bxi_net_fail(job, rc);
        clear_up(job, paths, rc);
    }
    return rc;
}
