/* SPDX-License-Identifier: MIT */
/*
 * One thread sleeps here until one of a few descriptors is readable.
 *
 * Who runs it: only the thread that created the sleeper, while it holds no lock.
 *
 * io_uring: a watch is idle (no poll in the kernel), queued or polling. A wait submits a POLL_ADD for every idle watch
 * and sleeps, with one system call; a poll that fires makes its watch idle again. So in the common case (one bell
 * fires, one bell is armed again) a sleep is one system call, and a descriptor that is still readable fires again at
 * once, as with level-triggered epoll. user_data is the slot and a generation: the completion of a watch that was
 * forgotten meanwhile has an old generation and is dropped.
 *
 * Why not multishot polls: they are edge-triggered, and a multishot poll that overflows its queue ends silently. Why
 * not a read of the eventfd in the ring: a read left in the ring would consume the bell. Why not only epoll: changing
 * the set costs two more system calls, and it wakes through one more wait queue.
 *
 * A filter (seccomp) may allow io_uring_setup and refuse io_uring_enter, and may be installed during a sleeper's life.
 * So creation enters the kernel once, and a later error of the ring moves all watches to epoll. If epoll fails too,
 * the sleeper uses poll(2), which needs neither descriptors nor memory of the kernel. It never moves back.
 *
 * Nothing here is in shared memory; the kernel frees it all with the process.
 */
#include "sleeper.h"

#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define SQ_ENTRIES 64
#define CQ_ENTRIES 512              /* more than if every watch had fired and been forgotten */
#define FREE_TOKEN UINT64_MAX
#define REMOVE_DATA UINT64_MAX      /* user_data of POLL_REMOVE, no watch has it */
#define NS_PER_S UINT64_C(1000000000)
#define NAP_NS UINT64_C(10000000)   /* if poll(2) fails too: a caller's loop must not spin */
#define LONGEST_NS (UINT64_C(365) * 86400 * NS_PER_S)   /* beyond it the kernel's sums overflow */

struct watch {
    uint64_t token;                 /* FREE_TOKEN: a free slot */
    int fd;
    uint32_t generation;
    bool is_polling;                /* io_uring: a POLL_ADD is queued or in the kernel */
};

struct bxi_sleeper {
    enum bxi_sleeper_kind kind;
    int epoll_fd;
    struct io_uring ring;
    int idle_count;
    uint8_t idle[BXI_SLEEPER_FDS];  /* slots of watches that the next wait has to arm */
    struct watch watch[BXI_SLEEPER_FDS];
};

/* ---- io_uring -------------------------------------------------------------------------------- */

static uint64_t user_data_of(const struct bxi_sleeper *sleeper, int slot)
{
    return (uint64_t)sleeper->watch[slot].generation << 32 | (uint32_t)slot;
}

/* A free submission entry; submits the queue if it is full. NULL only if the kernel accepts none. */
static struct io_uring_sqe *next_sqe(struct bxi_sleeper *sleeper)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&sleeper->ring);

    if (sqe != NULL)
        return sqe;
    io_uring_submit(&sleeper->ring);
    return io_uring_get_sqe(&sleeper->ring);
}

/* Submits the queue and runs the completions that are due; always enters the kernel. */
static int uring_enter(struct bxi_sleeper *sleeper)
{
    int rc = io_uring_submit_and_get_events(&sleeper->ring);

    return rc < 0 && rc != -EINTR ? rc : 0;
}

static int uring_create(struct bxi_sleeper *sleeper)
{
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_COOP_TASKRUN,
        0,
    };
    int rc = -EINVAL;

    /* Older kernels return EINVAL for flags that they do not know. */
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && rc == -EINVAL; i++) {
        struct io_uring_params params = { .flags = flags[i] | IORING_SETUP_CQSIZE,
                                          .cq_entries = CQ_ENTRIES };
        rc = io_uring_queue_init_params(SQ_ENTRIES, &sleeper->ring, &params);
    }
    if (rc < 0)
        return rc;
    /* Without EXT_ARG liburing submits a timeout request for every wait. */
    rc = sleeper->ring.features & IORING_FEAT_EXT_ARG ? uring_enter(sleeper) : -ENOSYS;
    if (rc < 0)
        io_uring_queue_exit(&sleeper->ring);
    return rc;
}

static int uring_arm_idle(struct bxi_sleeper *sleeper)
{
    while (sleeper->idle_count > 0) {
        struct io_uring_sqe *sqe = next_sqe(sleeper);
        if (sqe == NULL)
            return -EBUSY;
        int slot = sleeper->idle[--sleeper->idle_count];
        io_uring_prep_poll_add(sqe, sleeper->watch[slot].fd, POLLIN);
        io_uring_sqe_set_data64(sqe, user_data_of(sleeper, slot));
        sleeper->watch[slot].is_polling = true;
    }
    return 0;
}

static int uring_forget(struct bxi_sleeper *sleeper, int slot)
{
    if (!sleeper->watch[slot].is_polling) {
        int at = 0;

        while (sleeper->idle[at] != slot)       /* one that is not polling is there */
            at++;
        sleeper->idle[at] = sleeper->idle[--sleeper->idle_count];
        return 0;
    }
    struct io_uring_sqe *sqe = next_sqe(sleeper);
    if (sqe == NULL)
        return -EBUSY;
    io_uring_prep_poll_remove(sqe, user_data_of(sleeper, slot));
    io_uring_sqe_set_data64(sqe, REMOVE_DATA);
    sleeper->watch[slot].is_polling = false;
    /* Submits now and runs the completions, which release the file: until then the poll holds the file open, and
     * its other end sees no hang-up. The next wait drops the completions. */
    return uring_enter(sleeper);
}

/* Takes at most `most` completions of current watches; the others stay in the queue. */
static int uring_harvest(struct bxi_sleeper *sleeper, uint64_t *tokens, int most)
{
    struct io_uring_cqe *cqe;
    unsigned head;
    unsigned seen = 0;
    int count = 0;
    int error = 0;

    io_uring_for_each_cqe(&sleeper->ring, head, cqe) {
        if (count == most)
            break;
        seen++;
        uint32_t slot = (uint32_t)cqe->user_data;
        if (slot >= BXI_SLEEPER_FDS)
            continue;
        struct watch *watch = &sleeper->watch[slot];
        if (!watch->is_polling || watch->generation != (uint32_t)(cqe->user_data >> 32))
            continue;
        watch->is_polling = false;
        sleeper->idle[sleeper->idle_count++] = (uint8_t)slot;
        if (cqe->res < 0)
            error = cqe->res;
        else
            tokens[count++] = watch->token;
    }
    io_uring_cq_advance(&sleeper->ring, seen);
    return count > 0 ? count : error;
}

static int uring_wait(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most)
{
    struct __kernel_timespec timeout = { .tv_sec = (long long)(timeout_ns / NS_PER_S),
                                         .tv_nsec = (long long)(timeout_ns % NS_PER_S) };
    struct io_uring_cqe *cqe = NULL;

    int rc = uring_arm_idle(sleeper);
    if (rc < 0)
        return rc;
    rc = io_uring_submit_and_wait_timeout(&sleeper->ring, &cqe, 1,
                                          timeout_ns > LONGEST_NS ? NULL : &timeout, NULL);
    int count = uring_harvest(sleeper, tokens, most);
    if (count != 0)
        return count;
    return rc < 0 && rc != -ETIME && rc != -EINTR ? rc : 0;
}

/* ---- epoll ----------------------------------------------------------------------------------- */

/* NULL: for ever. */
static const struct timespec *timespec_of(uint64_t timeout_ns, struct timespec *timeout)
{
    *timeout = (struct timespec){ .tv_sec = (time_t)(timeout_ns / NS_PER_S), .tv_nsec = (long)(timeout_ns % NS_PER_S) };
    return timeout_ns > LONGEST_NS ? NULL : timeout;
}

static int epoll_sleep(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most)
{
    struct epoll_event events[BXI_SLEEPER_FDS];
    struct timespec timeout;

    if (most > BXI_SLEEPER_FDS)
        most = BXI_SLEEPER_FDS;
    int count = epoll_pwait2(sleeper->epoll_fd, events, most, timespec_of(timeout_ns, &timeout), NULL);
    if (count < 0)
        return errno == EINTR ? 0 : -errno;
    for (int i = 0; i < count; i++)
        tokens[i] = events[i].data.u64;
    return count;
}

static int epoll_watch(struct bxi_sleeper *sleeper, int fd, uint64_t token)
{
    struct epoll_event event = { .events = EPOLLIN, .data = { .u64 = token } };

    return epoll_ctl(sleeper->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

/* ---- poll(2) --------------------------------------------------------------------------------- */

static int poll_sleep(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most)
{
    struct pollfd polled[BXI_SLEEPER_FDS];
    uint64_t token[BXI_SLEEPER_FDS];
    struct timespec timeout;
    nfds_t watched = 0;
    int count = 0;

    for (int slot = 0; slot < BXI_SLEEPER_FDS; slot++) {
        if (sleeper->watch[slot].token == FREE_TOKEN)
            continue;
        polled[watched] = (struct pollfd){ .fd = sleeper->watch[slot].fd, .events = POLLIN };
        token[watched++] = sleeper->watch[slot].token;
    }
    int rc = ppoll(polled, watched, timespec_of(timeout_ns, &timeout), NULL);
    int error = rc < 0 ? -errno : 0;
    if (error == -EINTR)
        return 0;
    for (nfds_t i = 0; i < watched && rc > 0 && count < most; i++) {
        if (polled[i].revents & POLLNVAL)
            error = -EBADF;
        else if (polled[i].revents != 0)
            tokens[count++] = token[i];
    }
    if (count > 0 || error == 0)
        return count;
    const struct timespec nap = { .tv_nsec = (long)(timeout_ns < NAP_NS ? timeout_ns : NAP_NS) };
    nanosleep(&nap, NULL);
    return error;
}

/* ---- All --------------------------------------------------------------------------------------- */

static int find_slot(const struct bxi_sleeper *sleeper, uint64_t token)
{
    for (int slot = 0; slot < BXI_SLEEPER_FDS; slot++)
        if (sleeper->watch[slot].token == token)
            return slot;
    return -1;
}

/* From epoll to poll(2). */
static void leave_epoll(struct bxi_sleeper *sleeper)
{
    if (sleeper->epoll_fd >= 0)
        close(sleeper->epoll_fd);
    sleeper->epoll_fd = -1;
    sleeper->kind = BXI_SLEEPER_POLL;
}

/* From the start, or from io_uring. */
static void take_epoll(struct bxi_sleeper *sleeper)
{
    sleeper->kind = BXI_SLEEPER_EPOLL;
    sleeper->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    bool is_complete = sleeper->epoll_fd >= 0;
    for (int slot = 0; slot < BXI_SLEEPER_FDS && is_complete; slot++) {
        const struct watch *watch = &sleeper->watch[slot];
        if (watch->token != FREE_TOKEN)
            is_complete = epoll_watch(sleeper, watch->fd, watch->token) == 0;
    }
    if (!is_complete)
        leave_epoll(sleeper);
}

/* Closes the ring first: that ends its polls, and epoll may need the descriptor. */
static void leave_uring(struct bxi_sleeper *sleeper)
{
    io_uring_queue_exit(&sleeper->ring);
    sleeper->idle_count = 0;
    take_epoll(sleeper);
}

static void *probe_uring(void *rc)
{
    struct bxi_sleeper probe;

    *(int *)rc = uring_create(&probe);
    if (*(int *)rc == 0)
        io_uring_queue_exit(&probe.ring);
    return NULL;
}

/* In a thread of its own: some 10 ms after a ring was closed the kernel interrupts the thread that used it, and a write
 * of the program that waits then returns what it has written. */
int bxi_sleeper_probe_uring(void)
{
    pthread_t thread;
    int rc, error = bxi_thread_create(&thread, probe_uring, &rc);

    if (error != 0)
        return -error;
    pthread_join(thread, NULL);
    return rc;
}

int bxi_sleeper_create(enum bxi_sleeper_kind kind, struct bxi_sleeper **sleeper)
{
    struct bxi_sleeper *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return -ENOMEM;
    made->epoll_fd = -1;
    for (int slot = 0; slot < BXI_SLEEPER_FDS; slot++)
        made->watch[slot].token = FREE_TOKEN;
    made->kind = kind;
    if (kind == BXI_SLEEPER_EPOLL || (kind == BXI_SLEEPER_URING && uring_create(made) < 0))
        take_epoll(made);
    *sleeper = made;
    return 0;
}

void bxi_sleeper_destroy(struct bxi_sleeper *sleeper)
{
    if (sleeper == NULL)
        return;
    if (sleeper->kind == BXI_SLEEPER_URING)
        io_uring_queue_exit(&sleeper->ring);
    else if (sleeper->epoll_fd >= 0)
        close(sleeper->epoll_fd);
    free(sleeper);
}

enum bxi_sleeper_kind bxi_sleeper_kind(const struct bxi_sleeper *sleeper)
{
    return sleeper->kind;
}

int bxi_sleeper_watch(struct bxi_sleeper *sleeper, int fd, uint64_t token)
{
    if (token == FREE_TOKEN)
        return -EINVAL;
    if (find_slot(sleeper, token) >= 0)
        return -EEXIST;
    int slot = find_slot(sleeper, FREE_TOKEN);
    if (slot < 0)
        return -ENOSPC;
    /* io_uring and poll would fail only at the next wait. */
    if (fcntl(fd, F_GETFD) < 0)
        return -errno;
    if (sleeper->kind == BXI_SLEEPER_URING)
        sleeper->idle[sleeper->idle_count++] = (uint8_t)slot;
    if (sleeper->kind == BXI_SLEEPER_EPOLL && epoll_watch(sleeper, fd, token) < 0)
        leave_epoll(sleeper);
    sleeper->watch[slot].token = token;
    sleeper->watch[slot].fd = fd;
    return 0;
}

void bxi_sleeper_forget(struct bxi_sleeper *sleeper, uint64_t token)
{
    int slot = token == FREE_TOKEN ? -1 : find_slot(sleeper, token);

    if (slot < 0)
        return;
    struct watch *watch = &sleeper->watch[slot];
    int rc = 0;
    if (sleeper->kind == BXI_SLEEPER_URING)
        rc = uring_forget(sleeper, slot);
    /* ENOENT, EBADF: the descriptor was never added to epoll. */
    if (sleeper->kind == BXI_SLEEPER_EPOLL && epoll_ctl(sleeper->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL) < 0 &&
        errno != ENOENT && errno != EBADF)
        leave_epoll(sleeper);
    watch->token = FREE_TOKEN;
    watch->generation++;
    if (rc < 0)
        leave_uring(sleeper);
}

int bxi_sleeper_wait(struct bxi_sleeper *sleeper, uint64_t timeout_ns, uint64_t *tokens, int most)
{
    if (most <= 0)
        return -EINVAL;
    if (sleeper->kind == BXI_SLEEPER_URING) {
        int rc = uring_wait(sleeper, timeout_ns, tokens, most);
        if (rc >= 0)
            return rc;
        leave_uring(sleeper);
    }
    if (sleeper->kind == BXI_SLEEPER_EPOLL) {
        int rc = epoll_sleep(sleeper, timeout_ns, tokens, most);
        if (rc >= 0)
            return rc;
        leave_epoll(sleeper);
    }
    return poll_sleep(sleeper, timeout_ns, tokens, most);
}
