/* SPDX-License-Identifier: MIT */
/*
 * The handshake by which two processes of a job meet. job.h draws it, and has the states of a start. It is the same in
 * the first start of a job, where rank 0 is asked (bootstrap.c, bootstrap_root.c), and in the start of a process that
 * takes the place of a dead worker, where every worker that lives is asked (rejoin.c, door.c).
 *
 * Who runs it: the thread in bx_job_start; the door's thread.
 *
 * What comes through a socket is input. The side that is asked logs nonsense and hangs up.
 */
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/step.h"

#define ACCEPT_ATTEMPTS 256

/* ---- Sockets -------------------------------------------------------------------------------------- */

static int make_socket(const char *path, struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path, sizeof(address->sun_path), "%s", path);
    return fd < 0 ? -errno : fd;
}

int bxi_boot_listen(const char *path)
{
    struct sockaddr_un address;
    int fd = make_socket(path, &address);

    if (fd < 0)
        return fd;
    if ((unlink(address.sun_path) < 0 && errno != ENOENT) ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        goto failed;
    BXI_STEP("boot.bound");
    if (listen(fd, BXI_BOOT_BACKLOG) == 0)
        return fd;

failed:;
    int rc = -errno;
    close(fd);
    return rc;
}

/* The process at the other end belongs to this user. Sets its pid; 0: it is of another pid namespace. */
bool bxi_boot_is_own(int fd, uint32_t *pid)
{
    struct ucred credentials = { .uid = (uid_t)-1 };        /* nobody's: if a filter refuses the call */
    socklen_t bytes = sizeof(credentials);

    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes);
    *pid = (uint32_t)credentials.pid;
    return credentials.uid == geteuid();
}

int bxi_boot_connect(const char *path, uint32_t *pid)
{
    struct sockaddr_un address;
    int fd = make_socket(path, &address);

    if (fd < 0)
        return fd;
    int rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
    if (rc == 0 && !bxi_boot_is_own(fd, pid))
        rc = -EACCES;
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

int bxi_boot_accept(const struct bx_job *job, int listener, uint32_t *pid)
{
    for (int attempt = 0; attempt < ACCEPT_ATTEMPTS; attempt++) {
        int fd = BXI_UNSHARED(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

        if (fd < 0)
            return -errno;
        if (bxi_boot_is_own(fd, pid))
            return fd;
        bxi_log(job, 1, "worker '%s' (rank %d) of job '%s': process %u belongs to another user, dropped", job->name,
                job->rank, job->job_name, *pid);
        bxi_unshared_close(fd);
    }
    return -EAGAIN;
}

/* ---- The side that asks ----------------------------------------------------------------------------- */

/* pid: of SO_PEERCRED, and so of this pid namespace; 0: of another. */
static bool process_has_ended(uint32_t pid)
{
    int pidfd = pid == 0 ? -1 : (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    bool ended = (pid != 0 && pidfd < 0 && errno == ESRCH) || (pidfd >= 0 && bxi_poll(pidfd, POLLIN, 0) == 1);

    if (pidfd >= 0)
        close(pidfd);
    return ended;
}

int bxi_boot_ask(const struct bx_job *job, struct bxi_boot_asked *asked, enum bxi_boot_kind kind, const int *fds,
                 uint64_t deadline_ns)
{
    struct bxi_boot_hello hello = {
        .head = bxi_boot_head(kind),
        .instance = job->instance,
        .rank = job->rank,
        .world_size = job->world_size,
        .pid = (uint32_t)getpid(),
        .generation = job->rpc->peers[job->rank]->generation,
        .rejoin = job->options.rejoin != 0,
    };

    memcpy(hello.name, job->name, sizeof(hello.name));
    asked->asked_ns = bxi_now_ns();
    hello.left_ns = deadline_ns == BX_FOREVER ? BX_FOREVER : deadline_ns - bxi_least(asked->asked_ns, deadline_ns);

    struct bxi_boot_out out = { &hello, sizeof(hello), fds, fds != NULL ? BXI_BOOT_FDS : 0 };

    return bxi_boot_send(asked->fd, &out, deadline_ns);
}

int bxi_boot_next(struct bx_job *job, const struct bxi_boot_asked *asked, struct bxi_boot_packet *packet, int fds_max,
                  uint64_t until_ns)
{
    bool has_ended = false;

    for (;;) {
        int rc = bxi_poll_start(job, asked->fd, POLLIN, bxi_least(until_ns, bxi_now_ns() + BXI_BOOT_POLL_NS));

        if (rc == BX_E_INTERRUPTED)
            return rc;
        if (rc == 0 && bxi_now_ns() >= until_ns)
            return -ETIMEDOUT;
        if (rc == 0 && has_ended)
            return 0;           /* a child that it has forked may have the socket */
        if (rc == 0) {
            has_ended = process_has_ended(asked->pid);      /* what it has sent by then is read first */
            continue;
        }
        if (rc > 0)
            rc = bxi_boot_receive(asked->fd, packet, fds_max);
        if (rc == -EAGAIN)
            continue;
        if (rc == 0 || rc == -EPIPE)
            return 0;
        if (rc == -EMFILE)
            return bxi_limits_no_descriptors(job);
        if (rc < 0)
            return bx_fail(rc, "%s cannot be understood: %s", asked->who, bx_strerror(rc));
        rc = bxi_boot_packet_failure(packet);
        return rc < 0 ? rc : 1;
    }
}

int bxi_boot_nonsense(const struct bxi_boot_asked *asked, struct bxi_boot_packet *packet)
{
    bxi_boot_packet_close(packet);
    return bx_fail(-EPROTO, "%s sent what no worker sends", asked->who);
}

int bxi_boot_check_welcome(const struct bx_job *job, const struct bxi_boot_asked *asked, struct bxi_boot_packet *packet,
                           int rank)
{
    const struct bxi_boot_welcome *welcome = &packet->as.welcome;
    uint64_t now_ns = bxi_now_ns();

    if (!bxi_boot_packet_is(packet, BXI_BOOT_WELCOME, 0) || welcome->instance == 0)
        return bxi_boot_nonsense(asked, packet);

    bool is_ahead = welcome->now_ns > now_ns;
    uint64_t by_ns = is_ahead ? welcome->now_ns - now_ns : asked->asked_ns - welcome->now_ns;

    if (asked->asked_ns <= welcome->now_ns && !is_ahead)
        return 0;
    return bx_fail(-EINVAL, "the clock (CLOCK_MONOTONIC) of worker '%.*s' (rank %d) is %.3f s %s that of worker '%s' "
                            "(rank %d, pid %d), and deadlines are times of one clock; start all workers of job '%s' in "
                            "one time namespace", BXI_NAME_BYTES - 1, welcome->name, rank,
                   (double)by_ns / 1e9, is_ahead ? "ahead of" : "behind", job->name, job->rank, (int)getpid(),
                   job->job_name);
}

/* ---- The side that is asked --------------------------------------------------------------------------- */

int bxi_boot_check_hello(const struct bx_job *job, const struct bxi_boot_packet *packet, uint32_t *pid)
{
    const struct bxi_boot_hello *hello = &packet->as.hello;
    const struct bxi_boot_head *head = &hello->head;

    if (packet->bytes >= sizeof(*head) && head->magic == BXI_BOOT_MAGIC &&
        (head->protocol != BXI_BOOT_PROTOCOL || head->layout != BXI_LAYOUT_VERSION))
        return bx_fail(BX_E_VERSION, "a worker of job '%s' (pid %u) speaks protocol %u with layout %u, rank %d "
                                     "(pid %u) protocol %u with layout %u; all must use the same version",
                       job->job_name, *pid, head->protocol, head->layout, job->rank, (unsigned)getpid(),
                       BXI_BOOT_PROTOCOL, BXI_LAYOUT_VERSION);
    if ((!bxi_boot_packet_is(packet, BXI_BOOT_HELLO, 0) && !bxi_boot_packet_is(packet, BXI_BOOT_JOIN, BXI_BOOT_FDS)) ||
        (hello->instance != 0 && hello->instance != job->instance) ||
        memchr(hello->name, 0, sizeof(hello->name)) == NULL || !bxi_name_is_valid(hello->name))
        return -EBADMSG;
    if (*pid == 0)              /* of another pid namespace */
        *pid = hello->pid;
    if (hello->world_size != job->world_size)
        return bx_fail(BX_E_WORLD_SIZE, "worker '%s' (rank %d, pid %u) of job '%s' was started for %d workers, "
                                        "rank %d for %d", hello->name, (int)hello->rank, *pid, job->job_name,
                       (int)hello->world_size, job->rank, job->world_size);
    if ((hello->rejoin != 0) != (job->options.rejoin != 0))
        return bx_fail(-EINVAL, "worker '%s' (rank %d, pid %u) of job '%s' was started with options.rejoin (BX_REJOIN) "
                                "%s, rank %d with %s; all must have the same", hello->name, (int)hello->rank, *pid,
                       job->job_name, hello->rejoin ? "1" : "0", job->rank, job->options.rejoin ? "1" : "0");
    return 0;
}

int bxi_boot_rank_taken(const struct bx_job *job, int rank, const char *name, uint32_t pid)
{
    return bx_fail(BX_E_RANK_TAKEN, "rank %d of job '%s' is taken by worker '%s' (pid %u)", rank, job->job_name, name,
                   pid);
}

void bxi_boot_reject(const struct bx_job *job, int fd, uint32_t pid, int code)
{
    bxi_log(job, 1, "worker '%s' (rank %d) of job '%s': process %u rejected: %s", job->name, job->rank, job->job_name,
            pid, bx_error_text());
    bxi_boot_send_fail(fd, code);
}

void bxi_boot_log_nonsense(const struct bx_job *job, uint32_t pid)
{
    bxi_log(job, 1, "worker '%s' (rank %d) of job '%s': process %u sent what no worker sends, dropped", job->name,
            job->rank, job->job_name, pid);
}

/* ---- Sentences ------------------------------------------------------------------------------------------- */

const char *bxi_boot_who(char who[BXI_WHO_BYTES], const char *name, int rank, uint32_t pid)
{
    int length;

    if (name[0] != '\0')
        length = snprintf(who, BXI_WHO_BYTES, "worker '%.*s' (rank %d", BXI_NAME_BYTES - 1, name, rank);
    else
        length = snprintf(who, BXI_WHO_BYTES, "worker of rank %d (its segment has no name", rank);
    if (pid != 0)
        length += snprintf(who + length, BXI_WHO_BYTES - (size_t)length, ", pid %u", pid);
    snprintf(who + length, BXI_WHO_BYTES - (size_t)length, ")");
    return who;
}

int bxi_boot_cannot_attach(const struct bx_job *job, const char *name, int rank, int rc)
{
    char hint[BXI_MAP_HINT_BYTES];

    return bx_fail(rc, "worker '%s' (rank %d) cannot attach to '%.*s' (rank %d): %s%s", job->name, job->rank,
                   BXI_NAME_BYTES - 1, name, rank, bx_strerror(rc), bxi_limits_map_hint(job, rc, hint));
}
