/* SPDX-License-Identifier: MIT */
/*
 * The world: what the copies of the library get instead of the functions of the C library that world.syms names.
 *
 * Simulated: threads, mutexes, condition variables, futexes, the clock, sleeps, memory of malloc, process ids and
 * pidfds. Real, but never blocking: eventfds, epoll, sockets, shared memory. A function that would block lets other
 * fibers run, and asks the kernel again when some descriptor may have changed. io_uring is refused, so sleepers use
 * epoll. All fibers are one thread of one process, so what the kernel answers depends on the order of the calls alone.
 *
 * malloc never gives memory out twice in a schedule: a use of freed memory is a finding. Each shared mapping lies in a
 * slot of address space of its own, so that an address leads to its object.
 */
#include "sim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FILLED 256                      /* bytes of what malloc gives out that are no zeroes */
#define HEAP ((unsigned char *)0x100000000000)
#define HEAP_BYTES (UINT64_C(1) << 30)
#define FREED ((unsigned char *)0x180000000000)     /* a byte for each 16 of the heap: 1 */
#define SLOT_BITS 36
#define KEYS 32
#define WINDOW UINT64_C(0x200000000000)
#define MAPPINGS 192
#define NS_PER_S UINT64_C(1000000000)

uint64_t sim_changes;
static uint64_t heap_used;
static struct {
    uint64_t object;                    /* 0: private */
    uint64_t offset;
} mappings[MAPPINGS];
static unsigned mapping_count;
static struct {
    dev_t device;
    ino_t inode;
} objects[MAPPINGS];                    /* an object's number is its index plus 1 */
static unsigned object_count, keys;
static void (*destructors[KEYS])(void *);
static int first_fd;
char sim_directory[64];
static struct sim_clock messages;       /* what is sent and received orders all that was before, as the kernel's locks do */

#define PC ((uintptr_t)__builtin_return_address(0))
/* Begins each function here: a point, and a full fence. */
static void enter(const char *name, uintptr_t pc)
{
    if (sim_self == NULL)
        return;
    sim_point(name, 0, pc);
    sim_flush(sim_self);
}
#define ENTER() enter(__func__ + 4, PC)
/* And may change what a descriptor is ready for. */
#define ENTER_FD() (ENTER(), wake_all())

static void wake_all(void)
{
    sim_changes++;
    sim_next = 1;
}

void sim_world_reset(bool all)
{
    static bool mapped;

    if (!mapped) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

        if (mmap(HEAP, HEAP_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != HEAP ||
            mmap(FREED, HEAP_BYTES / 16, PROT_READ | PROT_WRITE, flags, -1, 0) != FREED) {
            perror("sim: the heap");
            exit(2);
        }
        first_fd = dup(0);
        close(first_fd);
        mapped = true;
    }
    if (all) {
        close_range((unsigned)first_fd, ~0u, 0);
        munmap((void *)(uintptr_t)WINDOW, (size_t)mapping_count << SLOT_BITS);
    }
    memset(HEAP, 0, heap_used);
    memset(FREED, 0, heap_used / 16 + 1);
    heap_used = 0;
    mapping_count = object_count = keys = 0;
    memset(&messages, 0, sizeof messages);
    sim_changes = 1;
}

/* ---- memory ---------------------------------------------------------------------------------------- */

bool sim_shared(uintptr_t address, uint64_t *key)
{
    uint64_t slot;

    if (address - (uintptr_t)HEAP < heap_used) {
        if (FREED[(address - (uintptr_t)HEAP) / 16])
            sim_fail("'%s' uses freed memory", sim_self->name);
        return false;
    }
    slot = (address - WINDOW) >> SLOT_BITS;
    if (slot >= mapping_count || mappings[slot].object == 0)
        return false;
    *key = UINT64_C(1) << 63 | mappings[slot].object << 40 |
           (mappings[slot].offset + (address & ((UINT64_C(1) << SLOT_BITS) - 1)));
    return true;
}

static void *take(size_t align, size_t bytes)
{
    uint64_t at = (heap_used + 16 + align - 1) & ~(uint64_t)(align - 1);

    if (align < 16)
        at = (at + 15) & ~UINT64_C(15);
    if (at + bytes > HEAP_BYTES)
        return NULL;
    memcpy(HEAP + at - 8, &bytes, 8);
    heap_used = (at + bytes + 15) & ~UINT64_C(15);
    return HEAP + at;
}

void *sim_memory(size_t bytes)
{
    return take(64, bytes);
}

static size_t bytes_of(const void *block)
{
    size_t bytes;

    memcpy(&bytes, (const unsigned char *)block - 8, 8);
    return bytes;
}

void *sim_malloc(size_t bytes);
void *sim_calloc(size_t count, size_t bytes);
void *sim_realloc(void *block, size_t bytes);
void *sim_aligned_alloc(size_t align, size_t bytes);
void sim_free(void *block);
char *sim_strdup(const char *text);
char *sim_strndup(const char *text, size_t most);

void *sim_malloc(size_t bytes)
{
    void *block = take(16, bytes);

    if (block == NULL)
        errno = ENOMEM;
    else
        memset(block, 0xa5, bytes < FILLED ? bytes : FILLED);
    return block;
}

void *sim_calloc(size_t count, size_t bytes)
{
    return take(16, count * bytes);             /* the heap is zero, and given out once */
}

void *sim_aligned_alloc(size_t align, size_t bytes)
{
    void *block = take(align, bytes);

    memset(block, 0xa5, bytes < FILLED ? bytes : FILLED);
    return block;
}

void sim_free(void *block)
{
    if ((uintptr_t)block - (uintptr_t)HEAP >= HEAP_BYTES) {
        free(block);                            /* of the C library itself */
        return;
    }
    if (FREED[((uintptr_t)block - (uintptr_t)HEAP) / 16])
        sim_fail("'%s' frees memory twice", sim_self->name);
    for (int i = 0; i < sim_fiber_count; i++)
        sim_flush(&sim_fibers[i]);
    memset(FREED + ((uintptr_t)block - (uintptr_t)HEAP) / 16, 1, (bytes_of(block) + 15) / 16);
}

void *sim_realloc(void *block, size_t bytes)
{
    void *larger = sim_malloc(bytes);

    if (block == NULL || larger == NULL)
        return larger;
    memcpy(larger, block, bytes_of(block) < bytes ? bytes_of(block) : bytes);
    sim_free(block);
    return larger;
}

char *sim_strndup(const char *text, size_t most)
{
    size_t bytes = strnlen(text, most);
    char *copy = sim_malloc(bytes + 1);

    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

char *sim_strdup(const char *text)
{
    return sim_strndup(text, strlen(text));
}

/* Copies are visible to others line by line. */
static void each_line(const void *address, size_t bytes, bool write, uintptr_t pc)
{
    uint64_t key;

    if (bytes <= 64 || !sim_shared((uintptr_t)address, &key))
        sim_plain(address, bytes, write, pc);
    else
        for (size_t at = 0; at < bytes; at += 64)
            sim_plain((const unsigned char *)address + at, bytes - at < 64 ? bytes - at : 64, write, pc);
}

void *sim_memcpy(void *to, const void *from, size_t bytes);
void *sim_memmove(void *to, const void *from, size_t bytes);
void *sim_memset(void *to, int value, size_t bytes);

void *sim_memmove(void *to, const void *from, size_t bytes)
{
    if (bytes > 0) {
        each_line(from, bytes, false, PC);
        each_line(to, bytes, true, PC);
    }
    return memmove(to, from, bytes);
}

/* The bytes of one line are copied before the next point. */
void *sim_memcpy(void *to, const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) {
        size_t count = bytes - at < 64 ? bytes - at : 64;

        sim_plain((const unsigned char *)from + at, count, false, PC);
        sim_plain((unsigned char *)to + at, count, true, PC);
        memcpy((unsigned char *)to + at, (const unsigned char *)from + at, count);
    }
    return to;
}

void *sim_memset(void *to, int value, size_t bytes)
{
    if (bytes > 0)
        each_line(to, bytes, true, PC);
    return memset(to, value, bytes);
}

/* Of a file; 0: it is none. */
static uint64_t object_of(int fd)
{
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return 0;
    for (unsigned i = 0; i < object_count; i++)
        if (objects[i].device == status.st_dev && objects[i].inode == status.st_ino)
            return i + 1;
    if (object_count == MAPPINGS)
        return 0;
    objects[object_count].device = status.st_dev;
    objects[object_count++].inode = status.st_ino;
    return object_count;
}

void *sim_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int sim_munmap(void *address, size_t bytes);

void *sim_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    uint64_t slot = ((uintptr_t)address - WINDOW) >> SLOT_BITS, object = flags & MAP_SHARED ? object_of(fd) : 0;

    ENTER();
    if (!(flags & MAP_FIXED) && mapping_count < MAPPINGS) {
        slot = mapping_count++;
        address = (void *)(uintptr_t)(WINDOW + (slot << SLOT_BITS));
        flags |= MAP_FIXED;
    }
    if (slot < MAPPINGS && (object != 0 || ((uintptr_t)address & ((UINT64_C(1) << SLOT_BITS) - 1)) == 0)) {
        mappings[slot].object = object;
        mappings[slot].offset = (uint64_t)offset;
    }
    return mmap(address, bytes, protection, flags, fd, offset);
}

int sim_munmap(void *address, size_t bytes)
{
    ENTER();
    for (int i = 0; i < sim_fiber_count; i++)
        sim_flush(&sim_fibers[i]);
    return munmap(address, bytes);
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
char *sim_getenv(const char *name);
char *sim_secure_getenv(const char *name);
int sim_getpid(void);

int sim_shm_open(const char *name, int flags, mode_t mode)
{
    char text[PATH_MAX];

    ENTER();
    return open(own_path(name, text), flags | O_CLOEXEC | O_NOFOLLOW, mode);
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
    return opendir(own_path(path, text));
}

int sim_linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    char text[PATH_MAX];

    ENTER();
    return linkat(from_fd, from, to_fd, own_path(to, text), flags);
}

char *sim_getenv(const char *name)
{
    return strcmp(name, "XDG_RUNTIME_DIR") == 0 ? sim_directory : NULL;
}

char *sim_secure_getenv(const char *name)
{
    return sim_getenv(name);
}

int sim_getpid(void)
{
    return 1000 + (sim_self != NULL ? sim_self->worker : 0);
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
            count += unlink(name) == 0;
    }
    closedir(directory);
    return count;
}

int sim_names_left(void)
{
    return remove_names(sim_directory);
}

/* ---- time ------------------------------------------------------------------------------------------ */

int sim_clock_gettime(clockid_t clock, struct timespec *time);
int sim_nanosleep(const struct timespec *time, struct timespec *left);
int sim_sched_yield(void);

static uint64_t ns_of(const struct timespec *time)
{
    return time == NULL ? SIM_FOREVER : (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec;
}

static uint64_t until(uint64_t ns)
{
    return ns > SIM_FOREVER - sim_schedule.now_ns ? SIM_FOREVER : sim_schedule.now_ns + ns;
}

int sim_clock_gettime(clockid_t clock, struct timespec *time)
{
    uint64_t ns = sim_schedule.now_ns += SIM_TICK_NS;

    if (clock == CLOCK_REALTIME)
        ns += UINT64_C(1700000000) * NS_PER_S;
    if (clock == CLOCK_MONOTONIC_COARSE)
        ns -= ns % 1000000;
    *time = (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };
    return 0;
}

static bool never(void *unused)
{
    (void)unused;
    return false;
}

int sim_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    ENTER();
    sim_block("nanosleep", never, NULL, until(ns_of(time)));
    return 0;
}

int sim_sched_yield(void)
{
    ENTER();
    sim_yield();
    return 0;
}

/* ---- futexes, threads, locks ----------------------------------------------------------------------- */

static bool is_signalled(void *fiber)
{
    return ((struct sim_fiber *)fiber)->signalled;
}

/* Asleep on an address until wake. False: the time came. */
static bool sleep_on(const void *address, const char *why, uint64_t until_ns)
{
    sim_self->signalled = false;
    sim_self->waits_on = address;
    return sim_block(why, is_signalled, sim_self, until_ns);
}

static int wake(const void *address, int most)
{
    int woken = 0;

    for (; woken < most; woken++) {
        struct sim_fiber *asleep[SIM_FIBERS];
        uint32_t count = 0;

        for (int i = 0; i < sim_fiber_count; i++)
            if (sim_fibers[i].state == SIM_BLOCKED && sim_fibers[i].can == is_signalled &&
                sim_fibers[i].waits_on == address && !sim_fibers[i].signalled)
                asleep[count++] = &sim_fibers[i];
        if (count == 0)
            break;
        asleep[sim_choose(count)]->signalled = true;
        sim_next = 1;
    }
    return woken;
}

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *time)
{
    int command = operation & FUTEX_CMD_MASK;
    uint64_t until_ns = ns_of(time);

    if (command == FUTEX_WAKE)
        return wake(word, (int)value);
    if (__atomic_load_n(word, __ATOMIC_RELAXED) != value) {
        errno = EAGAIN;
        return -1;
    }
    if (command == FUTEX_WAIT)
        until_ns = until(until_ns);
    if (sleep_on(word, "futex", until_ns))
        return 0;
    errno = ETIMEDOUT;
    return -1;
}

/* What a mutex of the C library is here. */
struct mutex {
    uint32_t holder, depth;             /* number plus 1 */
    struct sim_clock *clock;
};
struct attempt {
    struct mutex *mutex;
    uint32_t self;
};

static bool is_free(void *mutex)
{
    return ((struct mutex *)mutex)->holder == 0;
}

static struct mutex *mutex_of(pthread_mutex_t *of)
{
    struct mutex *mutex = (struct mutex *)(void *)of;

    if (mutex->clock == NULL)
        mutex->clock = take(16, sizeof *mutex->clock);
    return mutex;
}

int sim_pthread_mutex_init(pthread_mutex_t *of, const pthread_mutexattr_t *attributes);
int sim_pthread_mutex_destroy(pthread_mutex_t *of);
int sim_pthread_mutex_lock(pthread_mutex_t *of);
int sim_pthread_mutex_trylock(pthread_mutex_t *of);
int sim_pthread_mutex_unlock(pthread_mutex_t *of);
int sim_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes);
int sim_pthread_cond_destroy(pthread_cond_t *cond);
int sim_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *of);
int sim_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *of, const struct timespec *time);
int sim_pthread_cond_signal(pthread_cond_t *cond);
int sim_pthread_cond_broadcast(pthread_cond_t *cond);
int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument);
int sim_pthread_join(pthread_t thread, void **result);
int sim_pthread_detach(pthread_t thread);
pthread_t sim_pthread_self(void);
int sim_pthread_once(pthread_once_t *once, void (*function)(void));
int sim_pthread_key_create(pthread_key_t *key, void (*destructor)(void *));
int sim_pthread_setspecific(pthread_key_t key, const void *value);
void *sim_pthread_getspecific(pthread_key_t key);
int sim_pthread_setcancelstate(int state, int *before);
int sim_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int sim_pthread_getname_np(pthread_t thread, char *name, size_t bytes);

int sim_pthread_mutex_init(pthread_mutex_t *of, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    memset(of, 0, sizeof *of);
    return 0;
}

int sim_pthread_mutex_destroy(pthread_mutex_t *of)
{
    (void)of;
    return 0;
}

int sim_pthread_mutex_lock(pthread_mutex_t *of)
{
    struct mutex *mutex = mutex_of(of);

    ENTER();
    if (sim_self == NULL)
        return 0;
    if (mutex->holder == (uint32_t)sim_self->number + 1)
        sim_fail("'%s' locks a mutex that it holds", sim_self->name);
    while (mutex->holder != 0)
        sim_block("mutex", is_free, mutex, SIM_FOREVER);
    mutex->holder = (uint32_t)sim_self->number + 1;
    sim_clock_join(&sim_self->clock, mutex->clock);
    return 0;
}

int sim_pthread_mutex_trylock(pthread_mutex_t *of)
{
    struct mutex *mutex = mutex_of(of);

    ENTER();
    if (sim_self == NULL)
        return 0;
    if (mutex->holder != 0)
        return EBUSY;
    mutex->holder = (uint32_t)sim_self->number + 1;
    sim_clock_join(&sim_self->clock, mutex->clock);
    return 0;
}

int sim_pthread_mutex_unlock(pthread_mutex_t *of)
{
    struct mutex *mutex = mutex_of(of);

    ENTER();
    if (sim_self == NULL)
        return 0;
    sim_release_to(mutex->clock);
    mutex->holder = 0;
    sim_next = 1;
    return 0;
}

int sim_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
    (void)cond, (void)attributes;
    return 0;
}

int sim_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

int sim_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *of, const struct timespec *time)
{
    struct mutex *mutex = mutex_of(of);
    bool woken;

    ENTER();
    sim_release_to(mutex->clock);
    mutex->holder = 0;
    woken = sleep_on(cond, "condition", ns_of(time));
    while (mutex->holder != 0)
        sim_block("mutex", is_free, mutex, SIM_FOREVER);
    mutex->holder = (uint32_t)sim_self->number + 1;
    sim_clock_join(&sim_self->clock, mutex->clock);
    return woken ? 0 : ETIMEDOUT;
}

int sim_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *of)
{
    return sim_pthread_cond_timedwait(cond, of, NULL);
}

int sim_pthread_cond_signal(pthread_cond_t *cond)
{
    ENTER();
    wake(cond, 1);
    return 0;
}

int sim_pthread_cond_broadcast(pthread_cond_t *cond)
{
    ENTER();
    wake(cond, INT_MAX);
    return 0;
}

int sim_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument)
{
    (void)attributes;
    ENTER();
    *thread = (pthread_t)sim_spawn(sim_self->worker == 0 ? "thread0" : "thread1", work, argument) + 1;
    return 0;
}

int sim_pthread_join(pthread_t thread, void **result)
{
    ENTER();
    sim_join((int)thread - 1);
    if (result != NULL)
        *result = sim_fibers[thread - 1].result;
    return 0;
}

int sim_pthread_detach(pthread_t thread)
{
    (void)thread;
    return 0;
}

pthread_t sim_pthread_self(void)
{
    return sim_self == NULL ? 1 : (pthread_t)sim_self->number + 1;
}

int sim_pthread_once(pthread_once_t *once, void (*function)(void))
{
    if (*once == PTHREAD_ONCE_INIT) {
        *once = 1;
        function();
    }
    return 0;
}

int sim_pthread_key_create(pthread_key_t *key, void (*destructor)(void *))
{
    if (keys == KEYS)
        return EAGAIN;
    destructors[keys] = destructor;
    *key = keys++;
    return 0;
}

void sim_thread_ends(void)
{
    for (unsigned key = 0; key < keys; key++) {
        void *value = sim_self->own[key];

        sim_self->own[key] = NULL;
        if (value != NULL && destructors[key] != NULL)
            destructors[key](value);
    }
}

int sim_pthread_setspecific(pthread_key_t key, const void *value)
{
    sim_self->own[key] = (void *)(uintptr_t)value;
    return 0;
}

void *sim_pthread_getspecific(pthread_key_t key)
{
    return sim_self->own[key];
}

int sim_pthread_setcancelstate(int state, int *before)
{
    (void)state;
    if (before != NULL)
        *before = PTHREAD_CANCEL_ENABLE;
    return 0;
}

int sim_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    (void)prepare, (void)parent, (void)child;
    return 0;
}

int sim_pthread_getname_np(pthread_t thread, char *name, size_t bytes)
{
    (void)thread;
    snprintf(name, bytes, "sim");
    return 0;
}

/* ---- descriptors ----------------------------------------------------------------------------------- */

struct look {
    struct pollfd *fds;
    nfds_t count;
    int epoll, most, ready;
    struct epoll_event *events;
    uint64_t seen;                      /* of sim_changes, when the kernel was last asked */
};

static bool is_ready(void *argument)
{
    struct look *look = argument;

    if (look->seen != sim_changes) {
        look->seen = sim_changes;
        look->ready = look->fds != NULL ? poll(look->fds, look->count, 0)
                                        : epoll_wait(look->epoll, look->events, look->most, 0);
    }
    return look->ready != 0;
}

int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int sim_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
int sim_epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout,
                     const sigset_t *mask);
int sim_epoll_ctl(int fd, int operation, int of, struct epoll_event *event);
int sim_close(int fd);
ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags);
int sim_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int sim_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
long sim_syscall(long number, ...);
int sim_io_uring_queue_init_params(unsigned entries, void *ring, void *params);
ssize_t sim_getrandom(void *to, size_t bytes, unsigned flags);
_Noreturn void sim___assert_fail(const char *text, const char *file, unsigned line, const char *function);

static int poll_until(struct pollfd *fds, nfds_t count, uint64_t until_ns, const char *why)
{
    struct look look = { .fds = fds, .count = count };

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

int sim_epoll_pwait2(int fd, struct epoll_event *events, int most, const struct timespec *timeout,
                     const sigset_t *mask)
{
    struct look look = { .epoll = fd, .events = events, .most = most };

    (void)mask;
    ENTER();
    if (!is_ready(&look))
        sim_block("epoll", is_ready, &look, until(ns_of(timeout)));
    return look.ready;
}

int sim_epoll_ctl(int fd, int operation, int of, struct epoll_event *event)
{
    ENTER_FD();
    return epoll_ctl(fd, operation, of, event);
}

int sim_close(int fd)
{
    ENTER_FD();
    return close(fd);
}

ssize_t sim_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ENTER_FD();
    sim_release_to(&messages);
    return sendmsg(fd, message, flags);
}

ssize_t sim_recvmsg(int fd, struct msghdr *message, int flags)
{
    ENTER_FD();
    sim_clock_join(&sim_self->clock, &messages);
    return recvmsg(fd, message, flags);
}

int sim_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    ENTER_FD();
    return connect(fd, address, bytes);
}

int sim_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    ENTER_FD();
    return accept4(fd, address, bytes, flags);
}

long sim_syscall(long number, ...)
{
    va_list list;
    long a[6];

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    enter(number == SYS_futex ? "futex" : number == SYS_write ? "write a bell" : number == SYS_read ? "read a bell"
                                                                                               : "syscall", PC);
    switch (number) {
    case SYS_futex:
        return futex((uint32_t *)a[0], (int)a[1], (uint32_t)a[2], (const struct timespec *)a[3]);
    case SYS_pidfd_open:
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    case SYS_pidfd_send_signal:
        return 0;
    case SYS_gettid:
        return 1000 + sim_self->number;
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
        ((unsigned char *)to)[i] = (unsigned char)sim_random();
    return (ssize_t)bytes;
}

_Noreturn void sim___assert_fail(const char *text, const char *file, unsigned line, const char *function)
{
    sim_fail("%s:%u: %s: assertion '%s' fails", file, line, function, text);
    abort();
}
