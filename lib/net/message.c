/* SPDX-License-Identifier: MIT */
/*
 * Messages over a link: a head, then a body of as many bytes as it says. The sockets do not block; whoever waits does
 * so with a deadline.
 */
#include "net.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

/* 0, -EAGAIN, -errno. */
static int wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = bxi_now_ns();
        struct pollfd entry = { .fd = fd, .events = events };
        int timeout_ms = now_ns >= deadline_ns ? 0 : (int)bxi_least((deadline_ns - now_ns) / 1000000 + 1, 1000);
        int rc = poll(&entry, 1, timeout_ms);

        if (rc > 0)
            return 0;
        if (rc < 0 && errno != EINTR)
            return -errno;
        if (bxi_now_ns() >= deadline_ns)
            return -EAGAIN;
    }
}

/* Sends or receives all of it. */
static int move_all(int fd, bool sends, void *data, size_t bytes, uint64_t deadline_ns)
{
    unsigned char *at = data;

    while (bytes > 0) {
        ssize_t moved = sends ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
        int rc;

        if (moved > 0) {
            at += moved;
            bytes -= (size_t)moved;
        } else if (moved == 0) {
            return -EPIPE;
        } else if (errno == EINTR) {
            continue;
        } else if (errno != EAGAIN) {
            return -errno;
        } else if ((rc = wait_for(fd, sends ? POLLOUT : POLLIN, deadline_ns)) < 0) {
            return rc;
        }
    }
    return 0;
}

int bxi_net_send(int fd, const struct bxi_net_message *message, const void *body, uint64_t deadline_ns)
{
    int rc = move_all(fd, true, (void *)message, sizeof *message, deadline_ns);

    return rc == 0 ? move_all(fd, true, (void *)body, message->bytes, deadline_ns) : rc;
}

int bxi_net_receive(int fd, struct bxi_net_message *message, void *body, size_t most, uint64_t deadline_ns)
{
    int rc = move_all(fd, false, message, sizeof *message, deadline_ns);

    if (rc == 0 && message->bytes > most)
        return -EPROTO;
    return rc == 0 ? move_all(fd, false, body, message->bytes, deadline_ns) : rc;
}
