/* SPDX-License-Identifier: MIT */
/*
 * What the files of the world share: how a function of world.syms begins, and times.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "sim.h"

#include <sys/types.h>

#define NS_PER_S UINT64_C(1000000000)
#define PC ((uintptr_t)__builtin_return_address(0))

/* Begins each function here: a point, and a full fence. */
static inline void enter(const char *name, uintptr_t pc)
{
    if (sim_self == NULL)
        return;
    sim_point(name, 0, pc);
    sim_flush(sim_self);
}
#define ENTER() enter(__func__ + 4, PC)

/* Who sleeps on a descriptor looks again. */
static inline void wake_all(void)
{
    sim_changes++;
    sim_next = 1;
}
/* Of a function that may change what a descriptor is ready for. */
#define ENTER_FD() (ENTER(), wake_all())

static inline uint64_t ns_of(const struct timespec *time)
{
    return time == NULL ? SIM_FOREVER : (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

static inline uint64_t until(uint64_t ns)
{
    return ns > SIM_FOREVER - sim_schedule.now_ns ? SIM_FOREVER : sim_schedule.now_ns + ns;
}

/* What wire.c and world_hosts.c use of world.c and world_memory.c. */
struct msghdr;
int sim_own(int fd, uintptr_t pc);      /* a new descriptor belongs to the worker that runs */
int sim_eventfd(unsigned count, int flags);
int sim_close(int fd);
ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t sim_send(int fd, const void *data, size_t bytes, int flags);
ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags);
void sim_free(void *block);
/* world_hosts.c */
#define SIM_NET_TIMEOUT_MS "8000"
void sim_hosts_reset(void);
const char *sim_host_variable(const char *name);        /* NULL: it is not set */
struct sockaddr;
const struct sockaddr *sim_unix_address(const struct sockaddr *address, unsigned *bytes);     /* AF_INET only */
uint64_t sim_clock_ahead_ns(void);      /* of this worker's host */
/* wire.c */
struct bxi_wire_ops;
const struct bxi_wire_ops *sim_wire_plugin(void);
void sim_wires_reset(void);

/* Of a time on the clock of this worker's host. 0 stays 0. */
static inline uint64_t local_ns(const struct timespec *time)
{
    uint64_t ns = ns_of(time);

    return ns == SIM_FOREVER || ns <= sim_clock_ahead_ns() ? ns : ns - sim_clock_ahead_ns();
}

long sim_futex(uint32_t *word, int operation, uint32_t value, const struct timespec *time);    /* world_threads.c */
/* world_fail.c. This call of the function fails: errno is set. */
bool sim_fails(const char *name);
void sim_refusals_reset(void);
void sim_threads_reset(void);
void sim_mappings_reset(bool all);      /* world_memory.c */

#endif
