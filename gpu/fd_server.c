/* SPDX-License-Identifier: MIT */
/*
 * The descriptor server: a borrower asks the owner of a slab for its descriptors, and gets them by SCM_RIGHTS. No
 * common PID or IPC namespace is needed; the network namespace must be the same, because the server's socket is an
 * abstract Unix socket.
 *
 *     borrower: SOCK_DGRAM, a name of the kernel's        owner: SOCK_DGRAM, "boxcar-gpu-" and 32 digits
 *     question {slab, generation}                     ->
 *                                                     <-  answer {code, bytes of each part}, descriptors
 *
 * Who runs it: the owner's side is a thread of its own, which calls no function of the driver and only sends what the
 * slab has open, so it answers while the helper is in the driver. It takes gpu->lock for a moment. It starts with the
 * first device that exports descriptors, and ends with the GPU. The borrower's side is the helper, which never waits
 * for long: bxi_gpu_fd_server_ask returns -EAGAIN, and the helper does other work before it asks again.
 *
 * The name is random and in the owner's region, but it protects nothing: every user can read it in /proc/net/unix, and
 * can take it when its owner has gone. So each message has its sender's effective user, which the kernel checks. The
 * owner answers, and the borrower takes answers from, processes of their own user alone. A connected socket takes
 * answers from the descriptor server alone. The owner takes no descriptors, where the kernel can refuse them (Linux
 * 6.16): to close one that a stranger has sent may take as long as the stranger likes (SO_LINGER).
 *
 * Between two questions the owner keeps nothing. Questions are repeated, because an answer may be lost (too many
 * descriptors in flight): a second answer ends with the borrower's socket, and its descriptors with it. The question is
 * asked while the slab is held (G2), so the descriptors are there. A borrower looks for an answer before it asks again:
 * a question to an owner that has died since would empty the borrower's queue.
 *
 * The owner is dead: the question is refused (ECONNREFUSED). It is stopped: the borrower gives up after ASK_NS. Killed
 * at any step: the kernel closes sockets and the descriptors in flight; an abstract name leaves nothing.
 */
#include "inside.h"

#include "shm/file.h"
#include "shm/fork.h"
#include "shm/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ASK_NS UINT64_C(10000000000)        /* for an owner that does not answer: it is stopped */
#define REFUSED_NS UINT64_C(1000000000)     /* for one that is not there: it is about to be found dead */
#define REPEAT_NS UINT64_C(200000000)
#define LOOK_MS 2                           /* of one look for the answer, on the helper */
#define CREDENTIALS CMSG_SPACE(sizeof(struct ucred))
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83                    /* asm-generic/socket.h of Linux 6.16 */
#endif

struct question {
    uint32_t slab, reserved;
    uint64_t generation;
};
struct answer {
    struct question to;
    int32_t code;
    uint32_t count;
    uint64_t bytes[BXI_GPU_PARTS];
};

static socklen_t name_of(const uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES], struct sockaddr_un *name)
{
    size_t used;

    *name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    used = 1 + (size_t)snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "boxcar-gpu-");
    for (int i = 0; i < BXI_GPU_FD_SERVER_BYTES; i++)
        used += (size_t)snprintf(name->sun_path + used, sizeof(name->sun_path) - used, "%02x", fd_server[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + used);
}

/* ---- Users ----------------------------------------------------------------------------------- */

/* Sends the message with the effective user, and what control has behind room for that. Without that the kernel would
 * name the real user. */
static ssize_t send_own(int socket, struct msghdr *message)
{
    struct ucred own = { .pid = getpid(), .uid = geteuid(), .gid = getegid() };
    struct cmsghdr *head = CMSG_FIRSTHDR(message);

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_CREDENTIALS;
    head->cmsg_len = CMSG_LEN(sizeof(own));
    memcpy(CMSG_DATA(head), &own, sizeof(own));
    return sendmsg(socket, message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Whether the kernel says that the sender is of this user. The socket has SO_PASSCRED. */
static bool is_own(struct msghdr *message)
{
    struct ucred credentials;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS)
            continue;
        memcpy(&credentials, CMSG_DATA(part), sizeof(credentials));
        return credentials.uid == geteuid();
    }
    return false;
}

/* ---- The owner ------------------------------------------------------------------------------- */

/* Copies of the slab's descriptors, made under the lock, which the helper takes before it closes them. */
static void look_up(struct bxi_gpu *gpu, const struct question *question, struct answer *answer, int *fd)
{
    const struct bxi_gpu_slab *slab = &gpu->slab[question->slab % BXI_GPU_SLABS];

    *answer = (struct answer){ .to = *question, .code = -ESTALE };
    pthread_mutex_lock(&gpu->lock);
    if (question->slab < BXI_GPU_SLABS && slab->state != BXI_GPU_SLAB_EMPTY &&
        slab->generation == question->generation && slab->parts != NULL) {
        answer->code = 0;
        for (; answer->code == 0 && answer->count < slab->parts->count; answer->count += answer->code == 0) {
            fd[answer->count] = fcntl(slab->parts->part[answer->count].fd, F_DUPFD_CLOEXEC, 0);
            answer->bytes[answer->count] = slab->parts->part[answer->count].bytes;
            answer->code = fd[answer->count] < 0 ? -errno : 0;
        }
    }
    pthread_mutex_unlock(&gpu->lock);
}

/* Not sent if the other's queue is full or has gone: it asks again. */
static void send_answer(int socket, const struct sockaddr_un *to, socklen_t to_bytes, struct answer *answer,
                        const int *fd)
{
    _Alignas(struct cmsghdr) unsigned char control[CREDENTIALS + CMSG_SPACE(BXI_GPU_PARTS * sizeof(int))] = { 0 };
    struct iovec part = { .iov_base = answer, .iov_len = sizeof(*answer) };
    struct msghdr message = { .msg_name = (void *)(uintptr_t)to, .msg_namelen = to_bytes, .msg_iov = &part,
                              .msg_iovlen = 1, .msg_control = control, .msg_controllen = CREDENTIALS };

    if (answer->code == 0) {
        size_t bytes = answer->count * sizeof(int);
        struct cmsghdr *head = (struct cmsghdr *)(void *)(control + CREDENTIALS);

        message.msg_controllen += CMSG_SPACE(bytes);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(head), fd, bytes);
    }
    (void)send_own(socket, &message);
}

static void serve_one(struct bxi_gpu *gpu)
{
    _Alignas(struct cmsghdr) unsigned char control[CREDENTIALS];
    struct sockaddr_un from = { .sun_family = AF_UNIX };
    struct question question = { 0 };
    struct iovec part = { .iov_base = &question, .iov_len = sizeof(question) };
    struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &part, .msg_iovlen = 1,
                              .msg_control = control, .msg_controllen = sizeof(control) };
    struct answer answer;
    int fd[BXI_GPU_PARTS];

    /* Descriptors that somebody sends do not fit into control, so the kernel drops them. */
    if (recvmsg(gpu->fd_server.socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(question) ||
        !is_own(&message))
        return;
    look_up(gpu, &question, &answer, fd);
    send_answer(gpu->fd_server.socket, &from, message.msg_namelen, &answer, fd);
    for (uint32_t i = 0; i < answer.count; i++)
        close(fd[i]);
}

static void *serve(void *context)
{
    struct bxi_gpu *gpu = context;
    struct pollfd entries[] = { { .fd = gpu->fd_server.socket, .events = POLLIN }, { .fd = gpu->fd_server.stop,
                                                                                .events = POLLIN } };

    while (entries[1].revents == 0) {
        if (poll(entries, 2, -1) < 0)
            continue;
        if (entries[0].revents != 0)
            serve_one(gpu);
    }
    return NULL;
}

static int open_socket(struct bxi_gpu_fd_server *fd_server, uint8_t name[BXI_GPU_FD_SERVER_BYTES])
{
    struct sockaddr_un address;
    socklen_t bytes;
    int on = 1, off = 0;

    fd_server->socket = fd_server->stop = -1;
    if (getrandom(name, BXI_GPU_FD_SERVER_BYTES, 0) != BXI_GPU_FD_SERVER_BYTES)
        return -EIO;
    bytes = name_of(name, &address);
    fd_server->stop = eventfd(0, EFD_CLOEXEC);
    fd_server->socket = BXI_UNSHARED(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd_server->stop < 0 || fd_server->socket < 0 ||
        setsockopt(fd_server->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
        bind(fd_server->socket, (struct sockaddr *)&address, bytes) < 0)
        return -errno;
    (void)setsockopt(fd_server->socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
    return 0;
}

static void close_both(struct bxi_gpu_fd_server *fd_server)
{
    bxi_unshared_close(fd_server->socket);
    if (fd_server->stop >= 0)
        close(fd_server->stop);
    fd_server->socket = fd_server->stop = -1;
}

/* Under opening. */
int bxi_gpu_fd_server_open(struct bxi_gpu *gpu)
{
    uint8_t name[BXI_GPU_FD_SERVER_BYTES];
    int rc;

    if (gpu->fd_server.is_open)
        return 0;
    rc = open_socket(&gpu->fd_server, name);
    if (rc == 0)
        rc = -bxi_thread_create(&gpu->fd_server.thread, serve, gpu);
    if (rc < 0) {
        close_both(&gpu->fd_server);
        return bxi_gpu_fail(rc, "the socket that sends descriptors of GPU memory: %s", strerrorname_np(-rc));
    }
    gpu->fd_server.is_open = true;
    memcpy(gpu->region->head.fd_server, name, sizeof(name));     /* before the device is published */
    return 0;
}

void bxi_gpu_fd_server_close(struct bxi_gpu *gpu)
{
    uint64_t one = 1;

    if (!gpu->fd_server.is_open)
        return;
    (void)!write(gpu->fd_server.stop, &one, sizeof(one));
    pthread_join(gpu->fd_server.thread, NULL);
    close_both(&gpu->fd_server);
    gpu->fd_server.is_open = false;
}

/* ---- The borrower ---------------------------------------------------------------------------- */

static int open_ask(struct bxi_gpu_ask *ask, const struct bxi_gpu_head *head)
{
    struct sockaddr_un own = { .sun_family = AF_UNIX };
    struct sockaddr_un name;
    socklen_t bytes = name_of(head->fd_server, &name);
    int on = 1;

    ask->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ask->socket < 0)
        return -errno;
    /* Bound without a name, the kernel gives it one. */
    if (setsockopt(ask->socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
        bind(ask->socket, (struct sockaddr *)&own, sizeof(own.sun_family)) == 0 &&
        connect(ask->socket, (struct sockaddr *)&name, bytes) == 0)
        return 0;

    int rc = -errno;

    close(ask->socket);
    ask->socket = -1;
    return rc;
}

static void take_fds(struct msghdr *message, struct bxi_gpu_parts *parts)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;

        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (size_t i = 0; i < count && parts->count < BXI_GPU_PARTS; i++)
            memcpy(&parts->part[parts->count++].fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
    }
}

/* 0: the answer is there; -EAGAIN: not yet. Whatever came is in parts, also with another error. */
static int take_answer(int socket, const struct question *question, struct bxi_gpu_parts *parts)
{
    _Alignas(struct cmsghdr) unsigned char control[CREDENTIALS + CMSG_SPACE(BXI_GPU_PARTS * sizeof(int))];
    struct answer answer;
    struct iovec part = { .iov_base = &answer, .iov_len = sizeof(answer) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                              .msg_controllen = sizeof(control) };
    ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (got < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    take_fds(&message, parts);
    if (!is_own(&message)) {
        bxi_gpu_parts_close(parts);
        parts->count = 0;
        return -EAGAIN;
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0)
        return -EMFILE;
    if (got != (ssize_t)sizeof(answer) || memcmp(&answer.to, question, sizeof(*question)) != 0)
        return -EPROTO;
    if (answer.code < 0)
        return answer.code == -ESTALE || bxi_file_none_left(answer.code) ? answer.code : -EPROTO;
    if (answer.count == 0 || answer.count != parts->count)
        return -EPROTO;
    for (uint32_t i = 0; i < answer.count; i++)
        parts->part[i].bytes = answer.bytes[i];
    return 0;
}

static int send_question(int socket, const struct question *question)
{
    _Alignas(struct cmsghdr) unsigned char control[CREDENTIALS] = { 0 };
    struct iovec part = { .iov_base = (void *)(uintptr_t)question, .iov_len = sizeof(*question) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                              .msg_controllen = sizeof(control) };

    return send_own(socket, &message) < 0 ? -errno : 0;
}

static int ask_once(struct bxi_gpu_ask *ask, const struct bxi_gpu_head *head, const struct question *question,
                    struct bxi_gpu_parts *parts)
{
    uint64_t now_ns = bxi_gpu_now_ns();
    int rc = ask->socket < 0 ? open_ask(ask, head) : 0;

    if (rc == 0)
        rc = take_answer(ask->socket, question, parts);
    if (rc != -EAGAIN)
        return rc;
    if (now_ns >= ask->repeat_ns) {
        rc = send_question(ask->socket, question);
        if (rc < 0 && rc != -EAGAIN)
            return rc;
        if (rc == 0)                    /* else the owner's queue is full: the next look sends it */
            ask->repeat_ns = now_ns + REPEAT_NS;
    }
    (void)poll(&(struct pollfd){ .fd = ask->socket, .events = POLLIN }, 1, LOOK_MS);
    return take_answer(ask->socket, question, parts);
}

static int not_there(const struct bxi_gpu_peer *peer)
{
    if (peer->options.region->head.net_namespace != peer->gpu->region->head.net_namespace)
        return bxi_gpu_fail(-EIO, "%s's GPU memory cannot be had here: it runs in another network namespace, and the "
                            "descriptors of memory are sent by an abstract socket: start the containers with the same "
                            "network (--network=host, or --network=container:NAME), or set BX_GPU_EXPORT=handle",
                            peer->name);
    return bxi_gpu_fail(-EIO, "%s does not send the descriptors of its GPU memory: nobody is at its socket",
                        peer->name);
}

void bxi_gpu_fd_server_end(struct bxi_gpu_ask *ask)
{
    if (ask->is_asking && ask->socket >= 0)
        close(ask->socket);
    *ask = (struct bxi_gpu_ask){ .socket = -1 };
}

static int ask_again(const struct bxi_gpu_peer *peer, struct bxi_gpu_ask *ask, int rc)
{
    uint64_t waited_ns = bxi_gpu_now_ns() - ask->begin_ns;

    if (bxi_gpu_peer_is_dead(peer))
        return bxi_gpu_fail(-EOWNERDEAD, "%s died before it sent the descriptors of its memory", peer->name);
    /* [gpu.closing] acquire, pairs with the release in bxi_gpu_close. */
    if (bxi_load_acquire(&peer->gpu->is_closing) != 0)
        return bxi_gpu_fail(-ECANCELED, "this process closes its GPU");
    if (rc == -ECONNREFUSED && waited_ns >= REFUSED_NS)
        return not_there(peer);
    if (waited_ns >= ASK_NS)
        return bxi_gpu_fail(-ETIMEDOUT, "%s did not send the descriptors of its GPU memory within %d s: is it stopped?",
                            peer->name, (int)(ASK_NS / UINT64_C(1000000000)));
    return -EAGAIN;
}

int bxi_gpu_fd_server_ask(const struct bxi_gpu_peer *peer, struct bxi_gpu_ask *ask, uint32_t slab, uint64_t generation,
                     struct bxi_gpu_parts *parts)
{
    struct question question = { .slab = slab, .generation = generation };
    int rc;

    if (!ask->is_asking)
        *ask = (struct bxi_gpu_ask){ .is_asking = true, .socket = -1, .begin_ns = bxi_gpu_now_ns() };
    rc = ask_once(ask, &peer->options.region->head, &question, parts);
    if (rc == -EAGAIN || rc == -ECONNREFUSED || rc == -ENOTCONN || rc == -ECONNRESET) {
        if (rc != -EAGAIN && ask->socket >= 0) {
            close(ask->socket);
            ask->socket = -1;
            ask->repeat_ns = 0;
        }
        (void)poll(NULL, 0, rc == -EAGAIN ? 0 : LOOK_MS);
        rc = ask_again(peer, ask, rc == -EAGAIN ? rc : -ECONNREFUSED);
    } else if (rc == -ESTALE) {
        (void)bxi_gpu_fail(rc, "slab %u of %s has gone: nothing of it was on loan", slab, peer->name);
    } else if (rc < 0) {
        (void)bxi_gpu_fail(rc, "the descriptors of %s's GPU memory did not come: %s", peer->name,
                           strerrorname_np(-rc));
    }
    if (rc != -EAGAIN)
        bxi_gpu_fd_server_end(ask);
    if (rc < 0)
        bxi_gpu_parts_close(parts);
    return rc;
}
