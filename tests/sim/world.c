/* SPDX-License-Identifier: MIT */
/*
 * The world: what the copies of the library get instead of the functions of the C library that world.syms names. This
 * file has descriptors and names; world_memory.c has memory, world_threads.c time and threads.
 *
 * Descriptors are real, but never block: eventfds, epoll, sockets, shared memory. A function that would block lets
 * other fibers run, and asks the kernel again when some descriptor may have changed. io_uring is refused, so sleepers
 * use epoll. All fibers are one thread of one process, so what the kernel answers depends on the order of the calls
 * alone.
 */
#include "world.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define FDS 900                         /* more are the simulator's own */
#define TRACE_NAME "trace"

uint64_t sim_changes;
static uint8_t owners[FDS];             /* of descriptors: the worker plus 1 */
static uintptr_t makers[FDS];           /* where they were made */
static int pidfds[SIM_COPIES];
static struct {
    int fd;                             /* an eventfd */
    uint64_t at_ns;                     /* SIM_FOREVER: not set */
} timerfds[SIM_COPIES];
static int timerfd_count;
char sim_directory[64];
static struct sim_clock messages;       /* what is sent and received orders all before it, as the kernel's locks do */

void sim_world_reset(bool all)
{
    static int first_fd;

    if (first_fd == 0) {
        first_fd = dup(0);
        close(first_fd);
    }
    if (all)
        close_range((unsigned)first_fd, ~0u, 0);
    sim_mappings_reset(all);
    sim_threads_reset();
    memset(&messages, 0, sizeof messages);
    sim_refusals_reset();
    sim_hosts_reset();
    memset(owners, 0, sizeof owners);
    memset(pidfds, -1, sizeof pidfds);
    timerfd_count = 0;
    sim_changes = 1;
}

int sim_own(int fd, uintptr_t pc)
{
    if (fd >= 0 && fd < FDS && sim_self != NULL) {
        owners[fd] = (uint8_t)(sim_self->worker + 1);
        makers[fd] = pc;
    }
    return fd;
}
#define own(fd) sim_own(fd, PC)

void sim_descriptors_left(int worker)
{
    for (int fd = 0; fd < FDS; fd++)
        if (owners[fd] == worker + 1)
            sim_fail("worker %d ends and leaves a descriptor that was made at @%#zx", worker, (size_t)makers[fd]);
}

/* Others may see that a socket has hung up before a lock is free: what its threads did is before that. */
void sim_descriptors_close(int worker, bool sockets_only)
{
    socklen_t bytes = sizeof(int);
    int type;

    for (int fd = 0; fd < FDS; fd++)
        if (owners[fd] == worker + 1 && (!sockets_only || !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes))) {
            close(fd);
            owners[fd] = 0;
        }
    for (int i = 0; i < sim_fiber_count; i++)
        if (sim_fibers[i].worker == worker)
            sim_clock_join(&messages, &sim_fibers[i].clock);
    wake_all();
}

void sim_pidfd_ready(int worker)
{
    uint64_t one = 1;

    if (pidfds[worker] >= 0 && write(pidfds[worker], &one, sizeof one) < 0)
        sim_fail("a pidfd cannot be written");
    wake_all();
}

/* ---- names ----------------------------------------------------------------------------------------- */

/* All names are in a directory of this run of the simulator: those of /dev/shm and of the sockets. */
static const char *own_path(const char *path, char *text)
{
    if (strncmp(path, sim_directory, strlen(sim_directory)) == 0)
        return path;
    if (strncmp(path, "/dev/shm", 8) == 0)
        path += 8;
    else if (path[0] != '/' || strchr(path + 1, '/') != NULL)
        return path;
    snprintf(text, PATH_MAX, "%s%s", sim_directory, path);
    return text;
}

int sim_shm_open(const char *name, int flags, mode_t mode);
int sim_shm_unlink(const char *name);
DIR *sim_opendir(const char *path);
int sim_unlink(const char *path);
int sim_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags);
FILE *sim_fopen(const char *path, const char *mode);
char *sim_getenv(const char *name);
char *sim_secure_getenv(const char *name);
int sim_getpid(void);
int sim_gettid(void);

int sim_shm_open(const char *name, int flags, mode_t mode)
{
    char text[PATH_MAX];

    ENTER();
    if (sim_fails("shm_open") && (errno != ENOSPC || (flags & O_CREAT) != 0))
        return -1;                      /* what is there needs no space */
    return own(open(own_path(name, text), flags | O_CLOEXEC | O_NOFOLLOW, mode));
}

int sim_shm_unlink(const char *name)
{
    char text[PATH_MAX];

    ENTER();
    return unlink(own_path(name, text));
}

int sim_unlink(const char *path)
{
    char text[PATH_MAX];

    ENTER();
    return unlink(own_path(path, text));
}

DIR *sim_opendir(const char *path)
{
    char text[PATH_MAX];

    ENTER();
    if (sim_fails("opendir"))
        return NULL;
    return opendir(own_path(path, text));
}

int sim_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    char text[PATH_MAX];

    ENTER();
    if (sim_fails("linkat"))
        return -1;
    return linkat(from_fd, from, to_fd, own_path(to, text), flags);
}

/* The state of a worker; else a file without a line: cgroups and mounts of the machine may change meanwhile. */
FILE *sim_fopen(const char *path, const char *mode)
{
    static char text[16];
    int pid = 0, worker;

    ENTER();
    if (sim_fails("fopen"))
        return NULL;
    if (sscanf(path, "/proc/%d/stat", &pid) != 1)
        return fopen("/dev/null", mode);
    worker = pid % 10;
    if (worker >= SIM_COPIES || sim_is_dead(worker) || pid != 1000 + worker + 10 * sim_deaths(worker))
        return NULL;
    snprintf(text, sizeof text, "%d (sim) %c", pid, sim_is_stopped(worker) ? 'T' : 'S');
    return fmemopen(text, strlen(text), "r");
}

char *sim_getenv(const char *name)
{
    /* Every eighth seed is traced and checked. */
    if (sim_schedule.seed % 8 == 7 && strcmp(name, "BX_CHECKED") == 0)
        return "1";
    if (sim_schedule.seed % 8 == 7 && strcmp(name, "BX_TRACE") == 0)
        return "/" TRACE_NAME;
    return strcmp(name, "XDG_RUNTIME_DIR") == 0 ? sim_directory : (char *)(uintptr_t)sim_host_variable(name);
}

char *sim_secure_getenv(const char *name)
{
    return sim_getenv(name);
}

/* What the library prints. */
int sim_dprintf(int fd, const char *format, ...);

int sim_dprintf(int fd, const char *format, ...)
{
    (void)fd, (void)format;
    return 0;
}

int sim_getpid(void)
{
    return sim_self != NULL ? 1000 + sim_self->worker + 10 * sim_deaths(sim_self->worker) : 1000;
}

/* No number of the machine: trace_text.c makes as many points of one as it has digits. */
int sim_gettid(void)
{
    return 1000 + sim_self->number;
}

/* Removes all names, those in the directory of the sockets too. How many there were. */
static int remove_names(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    int count = 0;

    if (directory == NULL)
        return 0;
    while ((entry = readdir(directory)) != NULL) {
        char name[PATH_MAX];

        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && entry->d_type == DT_DIR)
            count += remove_names(name), rmdir(name);
        else if (entry->d_type != DT_DIR)
            sim_note("name %s", entry->d_name),
            count += unlink(name) == 0 && strcmp(entry->d_name, TRACE_NAME) != 0;
    }
    closedir(directory);
    return count;
}

int sim_names_left(void)
{
    return remove_names(sim_directory);
}

/* ---- descriptors ----------------------------------------------------------------------------------- */

struct look {
    struct pollfd *fds;
    nfds_t count;
    int ready;
    uint64_t seen;                      /* of sim_changes, when the kernel was last asked */
};

static bool is_ready(void *argument)
{
    struct look *look = argument;

    if (look->seen != sim_changes) {
        look->seen = sim_changes;
        look->ready = poll(look->fds, look->count, 0);
    }
    return look->ready != 0;
}

int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int sim_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
int sim_epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout,
                     const sigset_t *mask);
int sim_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms);
int sim_epoll_ctl(int fd, int operation, int of, struct epoll_event *event);
int sim_timerfd_create(clockid_t clock, int flags);
int sim_timerfd_settime(int fd, int flags, const struct itimerspec *when, struct itimerspec *was);
int sim_pipe2(int ends[2], int flags);
int sim_epoll_create1(int flags);
int sim_socket(int family, int type, int protocol);
int sim_open(const char *path, int flags, ...);
int sim_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int sim_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int sim_getsockopt(int fd, int level, int option, void *value, socklen_t *bytes);
long sim_syscall(long number, ...);
int sim_io_uring_queue_init_params(unsigned entries, void *ring, void *params);
ssize_t sim_getrandom(void *to, size_t bytes, unsigned flags);
_Noreturn void sim___assert_fail(const char *text, const char *file, unsigned line, const char *function);

static int interrupted(void)
{
    errno = EINTR;
    return -1;
}

static int poll_until(struct pollfd *fds, nfds_t count, uint64_t until_ns, const char *why)
{
    struct look look = { .fds = fds, .count = count };

    if (until_ns > sim_schedule.now_ns && sim_disturbs())
        return interrupted();
    if (!is_ready(&look))
        sim_block(why, is_ready, &look, until_ns);
    return look.ready;
}

int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    ENTER();
    return poll_until(fds, count, timeout_ms < 0 ? SIM_FOREVER : until((uint64_t)timeout_ms * 1000000), "poll");
}

int sim_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
    (void)mask;
    ENTER();
    return poll_until(fds, count, until(ns_of(timeout)), "ppoll");
}

/* What the kernel has said of EPOLLONESHOT it does not say again: it is asked when the fiber goes on. */
static int epoll_until(int fd, struct epoll_event *events, int most, uint64_t until_ns)
{
    struct pollfd entry = { .fd = fd, .events = POLLIN };
    struct look look = { .fds = &entry, .count = 1 };

    if (sim_disturbs())
        return interrupted();
    if (!is_ready(&look))
        sim_block("epoll", is_ready, &look, until_ns);
    return epoll_wait(fd, events, most, 0);
}

int sim_epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout,
                     const sigset_t *mask)
{
    (void)mask;
    ENTER();
    return epoll_until(fd, events, most, until(ns_of(timeout)));
}

int sim_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms)
{
    ENTER();
    return epoll_until(fd, events, most, timeout_ms < 0 ? SIM_FOREVER : until((uint64_t)timeout_ms * 1000000));
}

int sim_epoll_ctl(int fd, int operation, int of, struct epoll_event *event)
{
    ENTER_FD();
    if (operation == EPOLL_CTL_ADD && sim_fails("epoll_ctl"))
        return -1;
    return epoll_ctl(fd, operation, of, event);
}

int sim_eventfd(unsigned count, int flags)
{
    ENTER();
    if (sim_fails("eventfd"))
        return -1;
    return own(eventfd(count, flags));
}

int sim_pipe2(int ends[2], int flags)
{
    ENTER();
    if (sim_fails("pipe2") || pipe2(ends, flags) < 0)
        return -1;
    own(ends[0]);
    own(ends[1]);
    return 0;
}

int sim_epoll_create1(int flags)
{
    ENTER();
    if (sim_fails("epoll_create1"))
        return -1;
    return own(epoll_create1(flags));
}

int sim_socket(int family, int type, int protocol)
{
    ENTER();
    if (sim_fails("socket"))
        return -1;
    return own(socket(family == AF_INET ? AF_UNIX : family, type, protocol));
}

int sim_open(const char *path, int flags, ...)
{
    char text[PATH_MAX];
    va_list list;
    mode_t mode;

    va_start(list, flags);
    mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    ENTER();
    if (sim_fails("open"))
        return -1;
    return own(open(own_path(path, text), flags, mode));
}

int sim_timerfd_create(clockid_t clock, int flags)
{
    (void)clock;
    ENTER();
    if (timerfd_count == SIM_COPIES || sim_fails("timerfd_create"))
        return -1;
    timerfds[timerfd_count].at_ns = SIM_FOREVER;
    return timerfds[timerfd_count++].fd = own(eventfd(0, flags));
}

/* At a time, not after one. */
int sim_timerfd_settime(int fd, int flags, const struct itimerspec *when, struct itimerspec *was)
{
    uint64_t at_ns = local_ns(&when->it_value);

    (void)flags, (void)was;
    ENTER_FD();
    for (int i = 0; i < timerfd_count; i++)
        if (timerfds[i].fd == fd)
            timerfds[i].at_ns = at_ns > 0 ? at_ns : SIM_FOREVER;
    sim_timerfds_fire();
    return 0;
}

void sim_timerfds_fire(void)
{
    uint64_t one = 1;

    for (int i = 0; i < timerfd_count; i++)
        if (timerfds[i].at_ns <= sim_schedule.now_ns) {
            timerfds[i].at_ns = SIM_FOREVER;
            if (write(timerfds[i].fd, &one, sizeof one) < 0)
                sim_fail("a timer's descriptor cannot be written");
            wake_all();
        }
}

uint64_t sim_timerfds_next_ns(void)
{
    uint64_t next_ns = SIM_FOREVER;

    for (int i = 0; i < timerfd_count; i++)
        next_ns = timerfds[i].at_ns < next_ns ? timerfds[i].at_ns : next_ns;
    return next_ns;
}

int sim_close(int fd)
{
    ENTER_FD();
    for (int i = 0; i < timerfd_count; i++)
        if (timerfds[i].fd == fd)
            timerfds[i] = timerfds[--timerfd_count];
    if (fd >= 0 && fd < FDS)
        owners[fd] = 0;
    return close(fd);
}

ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ENTER_FD();
    if (sim_fails("sendmsg"))
        return -1;
    sim_release_to(&messages);
    return sendmsg(fd, message, flags);
}

/* Between hosts: no send of TCP fails for want of memory. */
ssize_t sim_send(int fd, const void *data, size_t bytes, int flags)
{
    ENTER_FD();
    sim_release_to(&messages);
    return send(fd, data, bytes, flags);
}

ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t got;
    bool fails;

    ENTER_FD();
    sim_clock_join(&sim_self->clock, &messages);
    fails = sim_fails("recvmsg");
    if (fails && errno != EMFILE)
        return -1;
    got = recvmsg(fd, message, flags);
    if (got < 0)
        return got;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            for (size_t i = 0; i < (part->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
                if (own(((const int *)(const void *)CMSG_DATA(part))[i]) >= 0 && fails)
                    sim_close(((const int *)(const void *)CMSG_DATA(part))[i]);
    if (fails && message->msg_controllen > 0) {         /* no room for its descriptors */
        message->msg_controllen = 0;
        message->msg_flags |= MSG_CTRUNC;
    }
    return got;
}

int sim_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    int error = 0, rc;

    ENTER_FD();
    if (sim_fails("connect"))
        error = errno;
    if (error != 0 && error != EAGAIN)
        return -1;
    address = sim_unix_address(address, &bytes);
    rc = connect(fd, address, bytes);
    if (rc == 0 && error != 0) {        /* EAGAIN: too many wait for one that listens; it sees one that hangs up */
        errno = error;
        return -1;
    }
    return rc;
}

/* SO_PEERCRED: all have one pid. Another one, so that runs do not differ. */
int sim_getsockopt(int fd, int level, int option, void *value, socklen_t *bytes)
{
    int rc = getsockopt(fd, level, option, value, bytes);

    ENTER();
    if (rc == 0 && level == SOL_SOCKET && option == SO_PEERCRED)
        ((struct ucred *)value)->pid = 1000;
    return rc;
}

int sim_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    ENTER_FD();
    if (sim_fails("accept4"))
        return -1;
    return own(accept4(fd, address, bytes, flags));
}

long sim_syscall(long number, ...)
{
    va_list list;
    long a[6];
    int fd;

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    enter(number == SYS_futex ? "futex" : number == SYS_write ? "write a bell" : number == SYS_read ? "read a bell"
                                                                                               : "syscall", PC);
    switch (number) {
    case SYS_futex:
        return sim_futex((uint32_t *)a[0], (int)a[1], (uint32_t)a[2], (const struct timespec *)a[3]);
    case SYS_pidfd_open:                /* only of itself: SO_PEERCRED has another pid */
        if (sim_fails("pidfd_open"))
            return -1;
        if (a[0] != sim_getpid())
            return own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        fd = own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        pidfds[sim_self->worker] = fcntl(fd, F_DUPFD_CLOEXEC, FDS);
        return fd;
    case SYS_pidfd_send_signal:
        return 0;
    case SYS_gettid:
        return sim_gettid();
    default:
        wake_all();
        return syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
}

int sim_io_uring_queue_init_params(unsigned entries, void *ring, void *params)
{
    (void)entries, (void)ring, (void)params;
    return -EPERM;
}

ssize_t sim_getrandom(void *to, size_t bytes, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i] = (unsigned char)sim_choose(256);
    return (ssize_t)bytes;
}

_Noreturn void sim___assert_fail(const char *text, const char *file, unsigned line, const char *function)
{
    sim_fail("%s:%u: %s: assertion '%s' fails", file, line, function, text);
    abort();
}
