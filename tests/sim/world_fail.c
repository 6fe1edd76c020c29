/* SPDX-License-Identifier: MIT */
/*
 * Calls that fail (--fail): in a schedule one call of one function of the world fails, once, with an error that it can
 * really have. The schedule is otherwise as its seed has it, so it is the same one up to that call.
 *
 * Only the library's calls count. Programs take memory with sim_memory, which never fails. The functions that the world
 * does not simulate are here too: they do nothing else but to fail.
 */
#include "world.h"

#include <sys/socket.h>

/* Most errors of a function. EINTR is not here where the schedule has it ("disturbed"). */
#define ERRORS 3

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
    { "socket", { EMFILE, ENOMEM }, 0 },
    { "bind", { EADDRINUSE, ENOSPC }, 0 },
    { "listen", { ENOMEM }, 0 },
    { "connect", { ECONNREFUSED, EAGAIN, ENOMEM }, 0 },
    { "accept4", { EMFILE, ENOMEM }, 0 },
    { "sendmsg", { ENOBUFS, ETOOMANYREFS }, 0 },
    { "recvmsg", { EMFILE }, 0 },               /* descriptors do not arrive, MSG_CTRUNC */
    { "ftruncate", { EFBIG }, 0 },
    { "fallocate", { ENOSPC, ENOMEM, EINTR }, 0 },
    { "mkdir", { ENOSPC, EACCES }, 0 },
    { "linkat", { ENOSPC, ENOENT }, 0 },
    { "pthread_create", { EAGAIN }, 0 },
    { "pthread_key_create", { EAGAIN }, 0 },
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

bool sim_fails(const char *name)
{
    if (sim_self == NULL)
        return false;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        if (strcmp(functions[i].name, name) != 0)
            continue;
        functions[i].calls++;
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

/* The calls of the last schedule, each with each of its errors. */
static struct {
    uint32_t calls[FUNCTIONS];
    uint64_t count;
} plan;

uint64_t sim_refusals_plan(void)
{
    plan.count = 0;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        plan.calls[i] = functions[i].calls;
        for (int j = 0; j < ERRORS && functions[i].errors[j] != 0; j++)
            plan.count += plan.calls[i];
    }
    return plan.count;
}

void sim_refusals_choose(uint64_t index)
{
    refusal.function = NULL;
    for (size_t i = 0; i < FUNCTIONS; i++)
        for (int j = 0; j < ERRORS && functions[i].errors[j] != 0; j++) {
            if (index < plan.calls[i] && refusal.function == NULL) {
                refusal.function = &functions[i];
                refusal.number = (uint32_t)index + 1;
                refusal.error = functions[i].errors[j];
            }
            index -= index < plan.calls[i] ? 0 : plan.calls[i];
            if (refusal.function != NULL)
                return;
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
