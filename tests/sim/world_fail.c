/* SPDX-License-Identifier: MIT */
/*
 * Calls that fail (--fail): in a schedule one call of one function of the world fails, once, with an error that it can
 * really have. The schedule is otherwise as its seed has it, so it is the same one up to that call.
 *
 * Only the library's calls count. Programs take memory with sim_memory, which never fails. The functions that the world
 * does not simulate are here too: they do nothing else but to fail.
 */
#include "world.h"

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

/* Most errors of a function. EINTR is not here where the schedule has it ("disturbed"). */
#define ERRORS 3
/* A place is the function and so many return addresses; two of them are the world's. */
#define FRAMES 6

static struct fallible {
    const char *name;
    int errors[ERRORS];
    uint32_t calls;                     /* in this schedule */
} functions[] = {
    { "malloc", { ENOMEM }, 0 },        /* calloc, realloc, aligned_alloc, strdup and strndup too */
    { "mmap", { ENOMEM }, 0 },
    { "madvise", { ENOMEM }, 0 },
    { "shm_open", { EMFILE, ENOSPC }, 0 },
    { "open", { EMFILE, ENOENT }, 0 },
    { "fopen", { EMFILE, ENOENT }, 0 },
    { "opendir", { EMFILE, ENOENT }, 0 },
    { "eventfd", { EMFILE, ENOMEM }, 0 },
    { "epoll_create1", { EMFILE }, 0 },
    { "epoll_ctl", { ENOMEM, ENOSPC }, 0 },     /* EPOLL_CTL_ADD */
    { "timerfd_create", { EMFILE }, 0 },
    { "pidfd_open", { EMFILE, ENOSYS }, 0 },
    { "pipe2", { EMFILE }, 0 },
    { "F_OFD_SETLK", { ENOLCK }, 0 },           /* of fcntl */
    { "F_OFD_GETLK", { ENOMEM }, 0 },
    { "socket", { EMFILE, ENFILE, ENOMEM }, 0 },
    { "bind", { EADDRINUSE, ENOSPC }, 0 },
    { "listen", { ENOMEM }, 0 },
    { "connect", { ECONNREFUSED, EAGAIN, ENOMEM }, 0 },
    { "accept4", { EMFILE, ENOMEM }, 0 },
    { "sendmsg", { ENOBUFS, ETOOMANYREFS }, 0 },
    { "recvmsg", { EMFILE }, 0 },               /* descriptors do not arrive, MSG_CTRUNC */
    { "ftruncate", { EFBIG }, 0 },
    { "pwrite", { ENOSPC }, 0 },
    { "flock", { ENOLCK }, 0 },
    { "statvfs", { ENOSYS }, 0 },
    { "lstat", { EACCES }, 0 },
    { "fallocate", { ENOSPC, ENOMEM, EINTR }, 0 },
    { "mkdir", { ENOSPC, EACCES }, 0 },
    { "linkat", { ENOSPC, ENOENT }, 0 },
    { "pthread_create", { EAGAIN }, 0 },
    { "pthread_key_create", { EAGAIN }, 0 },
    { "pthread_setspecific", { ENOMEM }, 0 },
};
#define FUNCTIONS (sizeof functions / sizeof functions[0])

static struct {
    const struct fallible *function;    /* NULL: no call fails */
    uint32_t number;
    int error;
    int happened;                       /* the error, once the call has failed */
    int worker;
} refusal;

void sim_refusals_reset(void)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        functions[i].calls = 0;
    refusal.happened = 0;
    refusal.worker = -1;
}

int sim_refusal(void)
{
    return refusal.happened;
}

int sim_refused_worker(void)
{
    return refusal.worker;
}

const char *sim_refused_function(void)
{
    return refusal.happened != 0 ? refusal.function->name : "";
}

/* The calls of the last schedule that ran without one that fails; behind the plan those that are to fail, mixed. */
#define CALLS_MOST 65536
static struct call {
    uint64_t place;
    uint32_t function, number;
} calls[CALLS_MOST];
static uint32_t call_count;
static bool are_noted;

/* The function, and whence it is called. */
static uint64_t place_of_call(size_t function)
{
    const uintptr_t *frame = __builtin_frame_address(0);
    uint64_t place = function;

    for (int i = 0; i < FRAMES && (uintptr_t)frame >= sim_self->stack && (uintptr_t)frame < sim_self->stack_end - 16;
         i++) {
        place = (place ^ frame[1]) * 0x9e3779b97f4a7c15;
        frame = (const uintptr_t *)frame[0];
    }
    return place;
}

bool sim_fails(const char *name)
{
    if (sim_self == NULL)
        return false;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        if (strcmp(functions[i].name, name) != 0)
            continue;
        functions[i].calls++;
        if (are_noted && call_count < CALLS_MOST)
            calls[call_count++] = (struct call){ place_of_call(i), (uint32_t)i, functions[i].calls };
        if (&functions[i] != refusal.function || functions[i].calls != refusal.number)
            return false;
        sim_note("%s fails: %s", name, strerrorname_np(refusal.error));
        refusal.happened = errno = refusal.error;
        refusal.worker = sim_self->worker;
        return true;
    }
    abort();
}

/* ---- the plan -------------------------------------------------------------------------------------- */

static int errors_of(const struct fallible *function)
{
    int count = 0;

    while (count < ERRORS && function->errors[count] != 0)
        count++;
    return count;
}

static bool is_new(uint64_t place)
{
    static uint64_t known[4 * CALLS_MOST];      /* a process plans one schedule */
    size_t at = place % (4 * CALLS_MOST);

    while (known[at] != 0 && known[at] != place)
        at = (at + 1) % (4 * CALLS_MOST);
    if (known[at] == place)
        return false;
    known[at] = place;
    return true;
}

uint64_t sim_refusals_plan(uint64_t seed, bool every)
{
    uint32_t kept = 0;
    uint64_t count = 0;

    for (uint32_t i = 0; i < call_count; i++) {
        uint32_t other = i + (uint32_t)((seed = seed * 6364136223846793005 + 1442695040888963407) >> 33) %
                                 (call_count - i);
        struct call call = calls[other];

        calls[other] = calls[i];
        if (every || is_new(call.place)) {
            calls[kept++] = call;
            count += (uint64_t)errors_of(&functions[call.function]);
        }
    }
    call_count = kept;
    return count;
}

void sim_refusals_choose(uint64_t index)
{
    refusal.function = NULL;
    are_noted = index == UINT64_MAX;
    if (are_noted)
        call_count = 0;
    for (uint32_t i = 0; i < call_count && refusal.function == NULL; i++) {
        const struct fallible *function = &functions[calls[i].function];
        const uint64_t errors = (uint64_t)errors_of(function);

        if (index < errors) {
            refusal.function = function;
            refusal.number = calls[i].number;
            refusal.error = function->errors[index];
        }
        index -= errors;
    }
}

bool sim_refusals_read(const char *text)
{
    char name[32], error[32];
    uint32_t number;

    if (sscanf(text, "%31[a-zA-Z0-9_]:%u:%31s", name, &number, error) != 3)
        return false;
    for (size_t i = 0; i < FUNCTIONS; i++)
        for (int j = 0; j < ERRORS && functions[i].errors[j] != 0; j++)
            if (strcmp(functions[i].name, name) == 0 && strcmp(strerrorname_np(functions[i].errors[j]), error) == 0) {
                refusal.function = &functions[i];
                refusal.number = number;
                refusal.error = functions[i].errors[j];
                return true;
            }
    return false;
}

void sim_refusals_write(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s:%u:%s", refusal.function->name, refusal.number, strerrorname_np(refusal.error));
}

/* ---- functions that can fail, and are the C library's otherwise ------------------------------------------- */

#define OTHERWISE(type, failed, name, parameters, arguments)    \
    type sim_##name parameters;                                 \
    type sim_##name parameters                                  \
    {                                                           \
        ENTER();                                                \
        return sim_fails(#name) ? failed : name arguments;      \
    }

OTHERWISE(int, -1, listen, (int fd, int backlog), (fd, backlog))
OTHERWISE(int, -1, madvise, (void *address, size_t bytes, int advice), (address, bytes, advice))
OTHERWISE(int, -1, ftruncate, (int fd, off_t bytes), (fd, bytes))

int sim_fallocate(int fd, int mode, off_t offset, off_t bytes);

int sim_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int rc;

    ENTER();
    if (sim_fails("fallocate"))
        return -1;
    /* Who stops this process and lets it go on interrupts it: no schedule may depend on that. */
    while ((rc = fallocate(fd, mode, offset, bytes)) < 0 && errno == EINTR)
        ;
    return rc;
}

OTHERWISE(ssize_t, -1, pwrite, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
OTHERWISE(int, -1, flock, (int fd, int operation), (fd, operation))
OTHERWISE(int, -1, statvfs, (const char *path, struct statvfs *status), (path, status))
OTHERWISE(int, -1, lstat, (const char *path, struct stat *status), (path, status))
OTHERWISE(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))

int sim_fcntl(int fd, int command, ...);

int sim_fcntl(int fd, int command, ...)
{
    va_list list;
    void *argument;

    va_start(list, command);
    argument = va_arg(list, void *);
    va_end(list);
    ENTER();
    if ((command == F_OFD_SETLK && sim_fails("F_OFD_SETLK")) || (command == F_OFD_GETLK && sim_fails("F_OFD_GETLK")))
        return -1;
    return fcntl(fd, command, argument);
}
