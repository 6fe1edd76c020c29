/* SPDX-License-Identifier: MIT */
/*
 * The descriptors that are watched for the host (pidfds), and what the descriptor of the program's own loop announces.
 * bxi_run_watch is called before progress starts; bxi_read_loop by the thread of the loop, or by one that sleeps.
 */
#include "drive.h"

#include <assert.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

void bxi_run_watch(struct bxi_run *run, int fd, uint64_t token)
{
    assert(run->watched_count < BXI_SLEEPER_FDS - 2 && token < BXI_TOKEN_BELL);
    run->watched[run->watched_count++] = (struct bxi_watched){ fd, token };
}

/* By the background thread, the one that watches: the next one does not watch it, and the host may close it. */
void bxi_run_unwatch(struct bxi_run *run, uint64_t token)
{
    for (int i = 0; i < run->watched_count; i++)
        if (run->watched[i].token == token)
            run->watched[i].fd = -1;
}

static void forget_in_loop(struct bxi_run *run, uint64_t token)
{
    for (int i = 0; i < run->watched_count; i++)
        if (run->watched[i].token == token)
            epoll_ctl(run->loop_fd, EPOLL_CTL_DEL, run->watched[i].fd, NULL);
}

void bxi_read_loop(struct bxi_run *run)
{
    struct epoll_event events[BXI_SLEEPER_FDS];
    /* By syscall, which is no cancellation point. */
    int count = (int)syscall(SYS_epoll_pwait, run->loop_fd, events, BXI_SLEEPER_FDS, 0, NULL, 0);

    for (int i = 0; i < count; i++) {
        uint64_t token = events[i].data.u64;

        if (token == BXI_TOKEN_BELL) {
            bxi_bell_drain(run->bell_fd[0]);
            bxi_note(run, BXI_EVENT_SCAN);
        } else if (token == BXI_TOKEN_TIMER) {
            bxi_bell_drain(run->timer_fd);
            bxi_note(run, BXI_EVENT_TIMER);
        } else {
            forget_in_loop(run, token);
            run->host->readable(run->context, token);
        }
    }
}
