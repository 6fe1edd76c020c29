/* SPDX-License-Identifier: MIT */
/*
 * Rank 0's side of the bootstrap: it listens, collects the descriptors of all workers, passes them on, and opens the
 * gate. job.h draws the exchange; bootstrap.c has the reasons.
 *
 * Who runs it: the thread in bx_job_start of rank 0. One poll loop; a connection goes through these states:
 *
 *     NEW  --HELLO-->  WELCOMED  --JOIN-->  JOINED  --table sent-->  TABLED  --ATTACHED-->  ATTACHED
 *
 * What a connection sends is input, and checked. Before a connection has joined, nonsense from it is logged and the
 * connection is dropped; the job goes on. The same holds for one whose rank is taken. A message that shows that the job
 * can never start as it was asked for (another world size, a name twice, another version, a worker that died) ends the
 * start of all at once, each with the sentence that says why.
 *
 * The gate is one word, rank 0's state in its own segment, which every attached worker can read. It opens when rank 0
 * stores RUNNING there; the GO that follows only reports it. If rank 0 is killed before that store, no worker starts;
 * if it is killed after it, all do, whether GO has reached them or not.
 *
 * Rank 0 holds the lock of the job's name (bootstrap_files.c) from here until the job ends.
 */
#include "job.h"

#include "shm/step.h"
#include "rpc/mark.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX (BXI_WORLD_MAX + 32)    /* the workers, and some connections without a HELLO */

enum connection_state { UNUSED = 0, NEW, WELCOMED, JOINED, TABLED, ATTACHED };

struct connection {
    enum connection_state state;
    int fd;
    int rank;                           /* from WELCOMED on */
    uint32_t pid;
    uint64_t arrival;
    char name[BXI_NAME_BYTES];
};

struct root {
    struct bx_job *job;
    const struct bxi_boot_paths *paths;
    uint64_t start_ns;
    uint64_t deadline_ns;               /* the earliest of all workers that came */
    uint64_t note_ns;                   /* when to log for whom the job waits, and to send NOTE */
    int listener;
    int joined;
    uint64_t arrivals;
    const struct connection *awaited;   /* its ATTACHED is awaited */
    struct connection *by_rank[BXI_WORKERS_MAX];
    struct connection connection[CONNECTIONS_MAX];
    int fds[BXI_WORKERS_MAX][BXI_BOOT_FDS];     /* of each rank that has joined, else -1; segment and arena are owned */
    struct bxi_boot_packet packet;
};

/* ---- Connections ------------------------------------------------------------------------------- */

static void drop(struct root *root, struct connection *connection)
{
    bxi_unshared_close(connection->fd);
    if (connection->state >= WELCOMED)
        root->by_rank[connection->rank] = NULL;
    memset(connection, 0, sizeof(*connection));
}

static struct connection *free_connection(struct root *root)
{
    struct connection *oldest = NULL;

    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *connection = &root->connection[i];

        if (connection->state == UNUSED)
            return connection;
        if (connection->state == NEW && (oldest == NULL || connection->arrival < oldest->arrival))
            oldest = connection;
    }
    /* There are more connections than workers, so some are NEW. Drop the oldest of these. */
    bxi_log(root->job, 1, "bootstrap of job '%s': process %u never said who it is, dropped", root->job->job_name,
            oldest->pid);
    drop(root, oldest);
    return oldest;
}

static int accept_all(struct root *root)
{
    for (int i = 0; i < BXI_BOOT_BACKLOG; i++) {
        uint32_t pid = 0;
        int fd = bxi_boot_accept(root->job, root->listener, &pid);

        if (fd < 0)
            return fd == -EAGAIN ? 0 : bxi_limits_no_file(root->job, "socket", root->paths->socket, fd);
        struct connection *connection = free_connection(root);
        *connection = (struct connection){ .state = NEW, .fd = fd, .pid = pid, .arrival = root->arrivals++ };
    }
    return 0;
}

/* Sends FAIL with this thread's sentence and drops the connection; the job goes on. */
static int reject(struct root *root, struct connection *connection, int code)
{
    bxi_boot_reject(root->job, connection->fd, connection->pid, code);
    drop(root, connection);
    return 0;
}

static const char *who_is(const struct connection *connection, char who[BXI_WHO_BYTES])
{
    return bxi_boot_who(who, connection->name, connection->rank, connection->pid);
}

/* The connection sent nonsense. 0 if the job can go on. */
static int nonsense(struct root *root, struct connection *connection)
{
    char who[BXI_WHO_BYTES];

    if (connection->state >= JOINED)
        return bx_fail(BX_E_CORRUPT, "%s sent nonsense while the job was starting", who_is(connection, who));
    bxi_boot_log_nonsense(root->job, connection->pid);
    drop(root, connection);
    return 0;
}

/* ---- Messages of workers ----------------------------------------------------------------------- */

static int check_name(const struct root *root, const struct bxi_boot_hello *hello, uint32_t pid)
{
    for (int rank = 0; rank < root->job->world_size; rank++) {
        const struct connection *other = root->by_rank[rank];
        const char *name = rank == root->job->rank ? root->job->name : other == NULL ? "" : other->name;

        if (strcmp(name, hello->name) == 0)
            return bx_fail(BX_E_NAME_TAKEN, "the name '%s' is taken twice in job '%s': by rank %d (pid %u) and "
                                            "by rank %d (pid %u)", hello->name, root->job->job_name, rank,
                           rank == root->job->rank ? (unsigned)getpid() : other->pid, (int)hello->rank, pid);
    }
    return 0;
}

static int welcome(struct root *root, struct connection *connection, const struct bxi_boot_hello *hello)
{
    struct bx_job *job = root->job;
    struct bxi_boot_welcome reply = {
        .head = bxi_boot_head(BXI_BOOT_WELCOME),
        .instance = job->instance,
        .now_ns = bxi_now_ns(),
    };

    memcpy(reply.name, job->name, sizeof(job->name));
    memcpy(connection->name, hello->name, sizeof(connection->name));
    connection->rank = hello->rank;
    connection->state = WELCOMED;
    root->by_rank[hello->rank] = connection;
    root->deadline_ns = bxi_least(root->deadline_ns, bxi_deadline_ns(hello->left_ns));
    /* Ignore the result: if the worker has gone, its hang-up will be seen. */
    bxi_boot_send(connection->fd, &(struct bxi_boot_out){ .data = &reply, .bytes = sizeof(reply) },
                  root->deadline_ns);
    BXI_STEP("boot.welcome_sent");
    return 0;
}

static int take_hello(struct root *root, struct connection *connection)
{
    const struct bx_job *job = root->job;
    const struct bxi_boot_hello *hello = &root->packet.as.hello;

    int rc = bxi_boot_check_hello(job, &root->packet, &connection->pid);
    if (rc == -EBADMSG || (rc == 0 && hello->head.kind != BXI_BOOT_HELLO))
        return nonsense(root, connection);
    if (rc < 0)
        return rc;
    if (hello->rank < 0 || hello->rank >= job->world_size)
        return reject(root, connection, bx_fail(-EINVAL, "rank %d is not one of 0..%d", (int)hello->rank,
                                                job->world_size - 1));
    const struct connection *holder = root->by_rank[hello->rank];
    if (hello->rank == job->rank || holder != NULL)
        return reject(root, connection,
                      bxi_boot_rank_taken(job, hello->rank, holder == NULL ? job->name : holder->name,
                                          holder == NULL ? (uint32_t)getpid() : holder->pid));
    rc = check_name(root, hello, connection->pid);
    return rc < 0 ? rc : welcome(root, connection, hello);
}

static int take_join(struct root *root, struct connection *connection)
{
    struct bxi_boot_packet *packet = &root->packet;
    struct bxi_boot_entry entry = { .rank = connection->rank, .pid = connection->pid, .generation = 1 };
    int fds[BXI_BOOT_FDS];

    if (!bxi_boot_packet_is(packet, BXI_BOOT_JOIN, BXI_BOOT_FDS))
        return nonsense(root, connection);
    memcpy(fds, packet->fds, sizeof(fds));
    memcpy(entry.name, connection->name, sizeof(entry.name));
    int rc = bxi_boot_add_peer(root->job, &entry, packet->fds);
    if (rc == -EPROTO || rc == -EPROTONOSUPPORT || rc == -EACCES)
        return nonsense(root, connection);
    if (rc < 0)
        return rc;
    fds[BXI_BOOT_SEGMENT] = BXI_UNSHARED(fds[BXI_BOOT_SEGMENT]);
    fds[BXI_BOOT_ARENA] = BXI_UNSHARED(fds[BXI_BOOT_ARENA]);
    memcpy(root->fds[connection->rank], fds, sizeof(fds));
    packet->fd_count = 0;       /* taken, all five */
    connection->state = JOINED;
    root->joined++;
    BXI_STEP("boot.joined");
    return 0;
}

/* A worker's FAIL ends the start of all. */
static int take_failure(struct root *root, struct connection *connection, int code)
{
    char text[BXI_TEXT_BYTES], who[BXI_WHO_BYTES];

    if (connection->state == NEW)
        return nonsense(root, connection);
    snprintf(text, sizeof(text), "%s", bx_error_text());
    return bx_fail(code, "%s could not start: %s", who_is(connection, who), text);
}

static int take_packet(struct root *root, struct connection *connection)
{
    int code = bxi_boot_packet_failure(&root->packet);

    if (code < 0)
        return take_failure(root, connection, code);
    if (connection->state == NEW)
        return take_hello(root, connection);
    if (connection->state == WELCOMED)
        return take_join(root, connection);
    if (connection->state != TABLED || !bxi_boot_packet_is(&root->packet, BXI_BOOT_ATTACHED, 0))
        return nonsense(root, connection);
    connection->state = ATTACHED;
    return 0;
}

static int hung_up(struct root *root, struct connection *connection)
{
    char who[BXI_WHO_BYTES];

    if (connection->state != NEW) {
        bxi_boot_unlink_dead(root->job, connection->rank);
        return bxi_spawn_died(root->job, connection->rank, who_is(connection, who));
    }
    drop(root, connection);
    return 0;
}

static int read_connection(struct root *root, struct connection *connection)
{
    int rc = bxi_boot_receive(connection->fd, &root->packet, BXI_BOOT_FDS);

    if (rc == -EAGAIN)
        return 0;
    if (rc == 0)
        return hung_up(root, connection);
    if (rc == -EMFILE)
        return bxi_limits_no_descriptors(root->job);
    if (rc < 0)
        return nonsense(root, connection);
    rc = take_packet(root, connection);
    bxi_boot_packet_close(&root->packet);
    return rc;
}

/* ---- The loop ---------------------------------------------------------------------------------- */

/* Writes the ranks that have not joined: "3", "3, 5", "3, 5..9". Their number. */
static int list_missing(const struct root *root, char *text, size_t bytes)
{
    int count = 0;
    size_t used = 0;

    text[0] = '\0';
    for (int rank = 0; rank < root->job->world_size; rank++) {
        int last = rank;

        while (last < root->job->world_size && last != root->job->rank && bxi_net_is_here(root->job, last) &&
               (root->by_rank[last] == NULL || root->by_rank[last]->state < JOINED))
            last++;
        if (last == rank)
            continue;
        count += last - rank;
        last--;
        int length = snprintf(text + used, bytes - used, "%s%d", used == 0 ? "" : ", ", rank);
        used += (size_t)length < bytes - used ? (size_t)length : 0;
        length = last == rank ? 0 : snprintf(text + used, bytes - used, "..%d", last);
        used += (size_t)length < bytes - used ? (size_t)length : 0;
        rank = last;
    }
    return count;
}

static void write_awaited(const struct root *root, char text[BXI_TEXT_BYTES])
{
    char missing[BXI_TEXT_BYTES / 2], other[BXI_OTHER_USER_BYTES], who[BXI_WHO_BYTES];
    double seconds = bxi_boot_seconds(root->start_ns);
    int count = list_missing(root, missing, sizeof(missing));

    if (count == 0 && root->awaited != NULL)
        snprintf(text, BXI_TEXT_BYTES, "%s came, but does not answer; %.1f s have passed", who_is(root->awaited, who),
                 seconds);
    else
        snprintf(text, BXI_TEXT_BYTES, "rank%s %s of 0..%d did not come within %.1f s (job '%s' of user %u, socket %s)"
                                       "%s", count == 1 ? "" : "s", missing, root->job->world_size - 1, seconds,
                 root->job->job_name, (unsigned)geteuid(), root->paths->socket,
                 bxi_boot_other_user(root->job->job_name, other));
}

static int too_late(const struct root *root)
{
    char text[BXI_TEXT_BYTES];

    write_awaited(root, text);
    return bx_fail(BX_E_RANK_MISSING, "%s", text);
}

/* Logs for whom the job waits, and sends it as NOTE to each worker that has come: after BXI_BOOT_LATE_NS, then after
 * each BXI_BOOT_AGAIN_NS. */
static void note_awaited(struct root *root)
{
    struct bxi_boot_note note = { .head = bxi_boot_head(BXI_BOOT_NOTE) };
    uint64_t now_ns = bxi_now_ns();

    if (now_ns < root->note_ns)
        return;
    root->note_ns = now_ns + BXI_BOOT_AGAIN_NS;
    write_awaited(root, note.text);
    bxi_log(root->job, 1, "%s", note.text);
    for (int rank = 0; rank < root->job->world_size; rank++)
        if (root->by_rank[rank] != NULL)
            bxi_boot_send(root->by_rank[rank]->fd, &(struct bxi_boot_out){ .data = &note, .bytes = sizeof(note) }, 0);
}

/* A poll found nothing. 0, or a failure that ends the start. */
static int nothing_came(struct root *root)
{
    if (bxi_now_ns() >= root->deadline_ns)
        return too_late(root);
    note_awaited(root);
    return 0;
}

/* Polls for at most BXI_BOOT_POLL_NS and handles what came. 0, or a failure that ends the start. */
static int poll_once(struct root *root)
{
    struct pollfd entries[CONNECTIONS_MAX + 2];
    struct connection *of[CONNECTIONS_MAX + 2] = { NULL };
    nfds_t count = 2;

    entries[0] = (struct pollfd){ .fd = root->listener, .events = POLLIN };
    entries[1] = (struct pollfd){ .fd = root->job->run->bell_fd[1], .events = POLLIN };
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        if (root->connection[i].state == UNUSED)
            continue;
        of[count] = &root->connection[i];
        entries[count++] = (struct pollfd){ .fd = root->connection[i].fd, .events = POLLIN };
    }
    int rc = bxi_spawn_ended(root->job, -1);
    if (rc < 0 || (rc = bxi_net_ended(root->job)) < 0)
        return rc;
    uint64_t now_ns = bxi_now_ns();
    uint64_t left_ns = root->deadline_ns > now_ns ? root->deadline_ns - now_ns : 0;
    struct timespec left = { .tv_nsec = (long)(left_ns < BXI_BOOT_POLL_NS ? left_ns : BXI_BOOT_POLL_NS) };
    int ready = ppoll(entries, count, &left, NULL);
    if (ready < 0 && errno != EINTR)
        return bx_fail(-errno, "poll fails: %s", bx_strerror(-errno));
    if (ready == 0)
        return nothing_came(root);
    if (ready < 0)
        return 0;
    if (entries[1].revents != 0 && (rc = bxi_start_interrupted(root->job)) < 0)
        return rc;
    for (nfds_t i = 2; i < count; i++) {
        rc = entries[i].revents == 0 ? 0 : read_connection(root, of[i]);
        if (rc < 0)
            return rc;
    }
    return entries[0].revents == 0 ? 0 : accept_all(root);
}

static int send_chunk(struct root *root, const struct connection *to, const struct bxi_boot_table *table,
                      const int *fds)
{
    struct bxi_boot_out out = {
        .data = table,
        .bytes = offsetof(struct bxi_boot_table, entry) + table->count * sizeof(table->entry[0]),
        .fds = fds,
        .fd_count = (int)table->count * BXI_BOOT_FDS,
    };
    char who[BXI_WHO_BYTES];

    int rc = bxi_boot_send(to->fd, &out, root->deadline_ns);
    BXI_STEP("boot.table_sent");
    if (rc == 0 || rc == -EPIPE || rc == -ECONNRESET)
        return 0;           /* the next poll sees the hang-up, and reports it */
    if (rc == -ETIMEDOUT)
        return too_late(root);
    return bx_fail(rc, "the descriptors cannot be passed to %s: %s", who_is(to, who), bx_strerror(rc));
}

/* Sends the descriptors of all others to one worker and waits until it has attached them. */
static int serve(struct root *root, struct connection *to)
{
    struct bxi_boot_table table = { .head = bxi_boot_head(BXI_BOOT_TABLE) };
    int fds[BXI_BOOT_TABLE_MAX][BXI_BOOT_FDS];
    int left = bxi_net_here(root->job) - 1;
    int rc;

    root->awaited = to;
    to->state = TABLED;
    for (int rank = 0; rank < root->job->world_size; rank++) {
        const struct bxi_peer *peer = root->job->rpc->peers[rank];
        struct bxi_boot_entry *entry = &table.entry[table.count];

        if (rank == to->rank || !bxi_net_is_here(root->job, rank))
            continue;
        *entry = (struct bxi_boot_entry){ .rank = rank, .pid = peer->pid, .generation = 1 };
        memcpy(entry->name, peer->name, sizeof(entry->name));
        memcpy(fds[table.count++], root->fds[rank], sizeof(root->fds[rank]));
        left--;
        if (left > 0 && table.count < BXI_BOOT_TABLE_MAX)
            continue;
        rc = send_chunk(root, to, &table, fds[0]);
        if (rc < 0)
            return rc;
        table.count = 0;
    }
    while (to->state != ATTACHED)
        if ((rc = poll_once(root)) < 0)
            return rc;
    return 0;
}

/* Opens the gate, then sends GO to the workers that wait. */
static void open_gate(struct root *root)
{
    struct bx_job *job = root->job;
    struct bxi_boot_head go = bxi_boot_head(BXI_BOOT_GO);

    BXI_STEP("boot.gate_closed");
    /* [state] release, pairs with the acquire in gate_is_open: all workers have attached all their peers. */
    bxi_store_release(&job->control->header.state, BXI_RUNNING);
    BXI_STEP("boot.gate_open");
    for (int rank = 0; rank < job->world_size; rank++) {
        if (root->by_rank[rank] == NULL)
            continue;
        bxi_boot_send(root->by_rank[rank]->fd, &(struct bxi_boot_out){ .data = &go, .bytes = sizeof(go) },
                      root->deadline_ns);
        BXI_STEP("boot.go_sent");
    }
}

/* Reads what attached workers have sent since: one may have failed, or died. */
static int read_once_more(struct root *root)
{
    for (int rank = 0; rank < root->job->world_size; rank++) {
        int rc = root->by_rank[rank] == NULL ? 0 : read_connection(root, root->by_rank[rank]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int run(struct root *root)
{
    struct bx_job *job = root->job;
    int *fds = root->fds[job->rank], rc;
    struct bxi_boot_entry self;

    /* This process holds the lock, so the process that made the socket is dead. */
    root->listener = BXI_UNSHARED(bxi_boot_listen(root->paths->socket));
    if (root->listener < 0)
        return bxi_limits_no_file(job, "socket", root->paths->socket, root->listener);
    BXI_STEP("boot.listening");
    if ((rc = bxi_boot_segment(job, &fds[BXI_BOOT_SEGMENT], &fds[BXI_BOOT_ARENA])) < 0)
        return rc;
    /* Until the last worker has come: the program may fork meanwhile. */
    fds[BXI_BOOT_SEGMENT] = BXI_UNSHARED(fds[BXI_BOOT_SEGMENT]);
    fds[BXI_BOOT_ARENA] = BXI_UNSHARED(fds[BXI_BOOT_ARENA]);
    bxi_boot_describe_self(job, &self, fds);
    if ((rc = bxi_door_open(job)) < 0)
        return rc;
    while (root->joined < bxi_net_here(job) - 1)
        if ((rc = poll_once(root)) < 0)
            return rc;
    for (int rank = 0; rank < job->world_size; rank++)
        if (root->by_rank[rank] != NULL && (rc = serve(root, root->by_rank[rank])) < 0)
            return rc;
    if ((rc = read_once_more(root)) < 0 || (rc = bxi_net_ready(job, root->deadline_ns)) < 0)
        return rc;
    bxi_trace_start(job, &bxi_names_for_trace, true);       /* the others open its file after the gate */
    /* A worker that comes now is late: it must find no socket, not one that hangs up. */
    unlink(root->paths->socket);
    BXI_STEP("boot.socket_gone");
    bxi_boot_lock_running(job);
    open_gate(root);
    return 0;
}

/* Sends FAIL to all connections, and drops them; then to those that are not accepted yet: if descriptors ran out, only
 * now there is one to accept with. */
static void fail_all(struct root *root, int code)
{
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        if (root->connection[i].state == UNUSED)
            continue;
        bxi_boot_send_fail(root->connection[i].fd, code);
        drop(root, &root->connection[i]);
    }
    for (int i = 0; root->listener >= 0 && i < BXI_BOOT_BACKLOG; i++) {
        uint32_t pid;
        int fd = bxi_boot_accept(root->job, root->listener, &pid);

        if (fd < 0)
            break;
        bxi_boot_send_fail(fd, code);
        bxi_unshared_close(fd);
    }
}

static void close_all(struct root *root)
{
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        if (root->connection[i].state != UNUSED)
            drop(root, &root->connection[i]);
    for (int rank = 0; rank < root->job->world_size; rank++)
        for (int i = BXI_BOOT_SEGMENT; i <= BXI_BOOT_ARENA; i++)
            bxi_unshared_close(root->fds[rank][i]);
    bxi_unshared_close(root->listener);
}

int bxi_boot_root(struct bx_job *job, const struct bxi_boot_paths *paths, uint64_t deadline_ns)
{
    struct root *root = calloc(1, sizeof(*root));
    int rc;

    if (root == NULL)
        return bx_fail(-ENOMEM, "no memory to start a job with");
    root->job = job;
    root->paths = paths;
    root->start_ns = bxi_now_ns();
    root->note_ns = root->start_ns + BXI_BOOT_LATE_NS;
    root->deadline_ns = deadline_ns;
    root->listener = -1;
    memset(root->fds, -1, sizeof(root->fds));
    if (job->net == NULL && getrandom(&job->instance, sizeof(job->instance), 0) != sizeof(job->instance))
        job->instance = bxi_now_ns() ^ ((uint64_t)getpid() << 40);
    job->instance |= 1;         /* 0 means any */

    rc = bxi_boot_lock(job, paths);
    if (rc < 0)
        goto free_root;
    if ((rc = bxi_rejoin_check_none(job)) < 0) {
        bxi_bootstrap_release(job);
        goto free_root;
    }
    rc = run(root);
    if (rc < 0) {
        unlink(paths->socket);
        fail_all(root, rc);
        bxi_boot_unlock_failed(job, paths, rc);
    }
    close_all(root);
free_root:
    free(root);
    return rc;
}
