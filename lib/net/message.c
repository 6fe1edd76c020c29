/* SPDX-License-Identifier: MIT */
/*
 * Messages over a link, in the start: a head, then a body of as many bytes as it says. The sockets do not block. Each
 * wait has a deadline, and bx_job_interrupt ends it.
 */
#include "net.h"

#include <errno.h>
#include <sys/socket.h>

/* 0, -EAGAIN, BX_E_INTERRUPTED, -errno. */
static int wait_for(const struct bx_job *job, int fd, short events, uint64_t deadline_ns)
{
    int rc = job != NULL ? bxi_poll_start(job, fd, events, deadline_ns) : bxi_poll(fd, events, deadline_ns);

    return rc == 0 ? -EAGAIN : rc < 0 ? rc : 0;
}

/* Bytes of a message: to be sent, or received. */
struct piece {
    unsigned char *at;
    size_t bytes;
    bool leaves;
};

/* All of it. */
static int move_all(const struct bx_job *job, int fd, struct piece piece, uint64_t deadline_ns)
{
    while (piece.bytes > 0) {
        ssize_t moved = piece.leaves ? send(fd, piece.at, piece.bytes, MSG_NOSIGNAL)
                                     : recv(fd, piece.at, piece.bytes, 0);
        int rc;

        if (moved > 0) {
            piece.at += moved;
            piece.bytes -= (size_t)moved;
        } else if (moved == 0) {
            return -EPIPE;
        } else if (errno == EINTR) {
            continue;
        } else if (errno != EAGAIN) {
            return -errno;
        } else if ((rc = wait_for(job, fd, piece.leaves ? POLLOUT : POLLIN, deadline_ns)) < 0) {
            return rc;
        }
    }
    return 0;
}

int bxi_net_send(const struct bx_job *job, int fd, const struct bxi_net_message *message, const void *body,
                 uint64_t deadline_ns)
{
    int rc = move_all(job, fd, (struct piece){ (void *)message, sizeof *message, true }, deadline_ns);

    return rc == 0 ? move_all(job, fd, (struct piece){ (void *)body, message->bytes, true }, deadline_ns) : rc;
}

int bxi_net_receive(const struct bx_job *job, int fd, struct bxi_net_message *message, void *body,
                    uint64_t deadline_ns)
{
    const uint32_t most = message->bytes;
    int rc = move_all(job, fd, (struct piece){ (void *)message, sizeof *message, false }, deadline_ns);

    if (rc == 0 && message->bytes > most)
        return -EPROTO;
    return rc == 0 ? move_all(job, fd, (struct piece){ body, message->bytes, false }, deadline_ns) : rc;
}
