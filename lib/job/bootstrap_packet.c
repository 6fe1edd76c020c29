/* SPDX-License-Identifier: MIT */
/*
 * The packets of the bootstrap: sends, receives and checks one message with its descriptors. job.h has their meaning
 * and their order.
 *
 * Who runs it: the thread in bx_job_start, on both sides. bx_job_interrupt ends each wait of the start but that of a
 * send (run/start.c): it waits where a queue is full, which its receiver is about to read.
 *
 * The socket is SOCK_SEQPACKET, so a packet arrives whole or not at all: a sender that is killed leaves no half packet.
 * The packet owns the descriptors that came; they are closed with it unless they were taken. A packet is input: its
 * fields are read only after bxi_boot_packet_is or bxi_boot_packet_failure has checked its size, kind and version.
 */
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CROWDED_NS 1000000      /* between two attempts while other jobs have descriptors in flight */
#define MEMORY_ATTEMPTS 100     /* while the kernel has no memory: who does not get the packet may wait for it long */

struct bxi_boot_head bxi_boot_head(enum bxi_boot_kind kind)
{
    return (struct bxi_boot_head){
        .magic = BXI_BOOT_MAGIC,
        .protocol = BXI_BOOT_PROTOCOL,
        .layout = BXI_LAYOUT_VERSION,
        .kind = (uint32_t)kind,
    };
}

int bxi_boot_send(int fd, const struct bxi_boot_out *out, uint64_t deadline_ns)
{
    _Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS * sizeof(int))];
    struct iovec part = { .iov_base = (void *)(uintptr_t)out->data, .iov_len = out->bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

    if (out->fd_count > 0) {
        size_t fd_bytes = (size_t)out->fd_count * sizeof(int);
        memset(control, 0, sizeof(control));
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(header), out->fds, fd_bytes);
    }
    for (int short_of_memory = 0;;) {
        if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return 0;
        bool lacks_memory = errno == ENOBUFS || errno == ENOMEM;
        if (lacks_memory ? ++short_of_memory > MEMORY_ATTEMPTS : errno != EAGAIN && errno != ETOOMANYREFS)
            return -errno;
        if (!lacks_memory && bxi_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        if (errno != EAGAIN)
            nanosleep(&(struct timespec){ .tv_nsec = CROWDED_NS }, NULL);
        else
            bxi_poll(fd, POLLOUT, deadline_ns);
    }
}

void bxi_boot_send_fail(int fd, int code)
{
    struct bxi_boot_fail fail = { .head = bxi_boot_head(BXI_BOOT_FAIL), .code = code };

    snprintf(fail.text, sizeof(fail.text), "%s", bx_error_text());
    bxi_boot_send(fd, &(struct bxi_boot_out){ .data = &fail, .bytes = sizeof(fail) }, 0);
}

/* Takes the descriptors out of the control message, at most as many as there was room for. The socket asks for no other
 * kind of message, and the kernel puts all descriptors of a packet into one. */
static void take_fds(struct msghdr *message, struct bxi_boot_packet *packet)
{
    const struct cmsghdr *part = CMSG_FIRSTHDR(message);

    if (part == NULL)
        return;
    memcpy(packet->fds, CMSG_DATA(part), part->cmsg_len - CMSG_LEN(0));
    packet->fd_count = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
}

int bxi_boot_receive(int fd, struct bxi_boot_packet *packet, int fds_max)
{
    _Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS * sizeof(int))];
    struct iovec part = { .iov_base = &packet->as, .iov_len = sizeof(packet->as) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    ssize_t got;

    memset(packet, 0, sizeof(*packet));
    if (fds_max > 0) {
        /* Exactly so many bytes: with more, the kernel would pass more descriptors than are wanted. */
        message.msg_control = control;
        message.msg_controllen = CMSG_LEN((size_t)fds_max * sizeof(int));
    }
    got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* The kernel reports a reset once, before the last packets, if the other side left something unread. */
    if (got < 0 && errno == ECONNRESET)
        got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return -errno;
    take_fds(&message, packet);
    packet->bytes = (size_t)got;
    if (message.msg_flags & MSG_CTRUNC) {
        /* Either more came than is allowed, or this process may not have so many. */
        int rc = packet->fd_count == fds_max ? -EPROTO : -EMFILE;
        bxi_boot_packet_close(packet);
        return rc;
    }
    if (message.msg_flags & MSG_TRUNC) {
        bxi_boot_packet_close(packet);
        return -EPROTO;
    }
    return got > 0;
}

void bxi_boot_packet_close(struct bxi_boot_packet *packet)
{
    for (int i = 0; i < packet->fd_count; i++)
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    packet->fd_count = 0;
}

bool bxi_boot_packet_is(const struct bxi_boot_packet *packet, enum bxi_boot_kind kind, int fd_count)
{
    const struct bxi_boot_head *head = &packet->as.head;
    const struct bxi_boot_table *table = &packet->as.table;
    const size_t before_entries = offsetof(struct bxi_boot_table, entry);
    size_t bytes[] = {
        [BXI_BOOT_HELLO] = sizeof(packet->as.hello), [BXI_BOOT_WELCOME] = sizeof(packet->as.welcome),
        [BXI_BOOT_JOIN] = sizeof(packet->as.hello),  [BXI_BOOT_TABLE] = 0,
        [BXI_BOOT_ATTACHED] = sizeof(*head),         [BXI_BOOT_GO] = sizeof(*head),
        [BXI_BOOT_FAIL] = sizeof(packet->as.fail),   [BXI_BOOT_NOTE] = sizeof(packet->as.note),
    };

    if (packet->bytes < sizeof(*head) || head->magic != BXI_BOOT_MAGIC || head->kind != (uint32_t)kind)
        return false;
    if (kind != BXI_BOOT_FAIL && (head->protocol != BXI_BOOT_PROTOCOL || head->layout != BXI_LAYOUT_VERSION))
        return false;
    if (kind == BXI_BOOT_TABLE && packet->bytes >= before_entries && table->count >= 1 &&
        table->count <= BXI_BOOT_TABLE_MAX) {
        bytes[kind] = before_entries + table->count * sizeof(table->entry[0]);
        fd_count = (int)table->count * BXI_BOOT_FDS;
    }
    return packet->bytes == bytes[kind] && packet->fd_count == fd_count;
}

int bxi_boot_packet_failure(struct bxi_boot_packet *packet)
{
    struct bxi_boot_fail *fail = &packet->as.fail;

    if (!bxi_boot_packet_is(packet, BXI_BOOT_FAIL, 0))
        return 0;
    fail->text[sizeof(fail->text) - 1] = '\0';
    return bx_fail(fail->code < 0 ? fail->code : -EPROTO, "%s", fail->text);
}
