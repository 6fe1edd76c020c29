/* SPDX-License-Identifier: MIT */
/*
 * The machine: a file that all processes of one test map, under one flock, which the kernel releases when its holder
 * dies. Each acquisition of the lock removes entries of dead processes, so that the figures are those of a driver,
 * which cleans up after a dead process by itself.
 */
#include "fake.h"

#include <errno.h>
#include <sys/file.h>

struct fake_machine *fake_machine;
static int machine_fd = -1;
static pthread_mutex_t machine_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_process self;

/* Field 22 of /proc/<pid>/stat, after the name, which may contain any bytes; 0: dead, or a zombie. */
static uint64_t start_of(int pid)
{
    char path[64], text[1024], state = 'X';
    unsigned long long start = 0;
    const char *behind;
    ssize_t bytes;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    bytes = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (bytes <= 0)
        return 0;
    text[bytes] = '\0';
    behind = strrchr(text, ')');
    if (behind == NULL ||
        sscanf(behind, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
               &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start + 1;
}

struct fake_process fake_self(void)
{
    return self;
}

bool fake_same(const struct fake_process *a, const struct fake_process *b)
{
    return a->pid == b->pid && a->start == b->start;
}

bool fake_is_alive(const struct fake_process *process)
{
    return process->pid != 0 && (fake_same(process, &self) || start_of(process->pid) == process->start);
}

int fake_machine_open(void)
{
    const char *path = getenv("FAKE_CUDA_MACHINE");
    char standard[64];

    self = (struct fake_process){ .pid = (int32_t)getpid(), .start = start_of(getpid()) };
    snprintf(standard, sizeof(standard), "/dev/shm/bx-fake-cuda.%u", (unsigned)geteuid());
    machine_fd = open(path != NULL ? path : standard, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (machine_fd < 0 || ftruncate(machine_fd, sizeof(struct fake_machine)) < 0)
        return -1;
    fake_machine = mmap(NULL, sizeof(*fake_machine), PROT_READ | PROT_WRITE, MAP_SHARED, machine_fd, 0);
    return fake_machine == MAP_FAILED ? -1 : 0;
}

static void sweep_allocation(struct fake_allocation *allocation)
{
    bool is_open = false;

    for (int i = 0; i < FAKE_OPENERS; i++) {
        if (allocation->opener[i].pid != 0 && !fake_is_alive(&allocation->opener[i]))
            allocation->opener[i].pid = 0;
        is_open = is_open || allocation->opener[i].pid != 0;
    }
    if (!is_open && (allocation->is_freed || !fake_is_alive(&allocation->owner)))
        memset(allocation, 0, sizeof(*allocation));
}

static void sweep(void)
{
    for (int i = 0; i < FAKE_ALLOCATIONS; i++)
        if (fake_machine->allocation[i].owner.pid != 0)
            sweep_allocation(&fake_machine->allocation[i]);
    for (int i = 0; i < FAKE_CONTEXTS; i++)
        if (fake_machine->context[i].owner.pid != 0 && !fake_is_alive(&fake_machine->context[i].owner))
            fake_machine->context[i].owner.pid = 0;
}

void fake_lock(void)
{
    pthread_mutex_lock(&machine_lock);
    while (flock(machine_fd, LOCK_EX) < 0 && errno == EINTR)
        ;
    sweep();
}

void fake_unlock(void)
{
    flock(machine_fd, LOCK_UN);
    pthread_mutex_unlock(&machine_lock);
}

struct fake_allocation *fake_allocation_of(uint64_t serial)
{
    for (int i = 0; i < FAKE_ALLOCATIONS; i++)
        if (fake_machine->allocation[i].owner.pid != 0 && fake_machine->allocation[i].serial == serial)
            return &fake_machine->allocation[i];
    return NULL;
}

unsigned fake_allocation_enter(const struct fake_allocation *allocation)
{
    if (fake_used_bytes(allocation->device) + allocation->bytes > fake_options.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < FAKE_ALLOCATIONS; i++) {
        if (fake_machine->allocation[i].owner.pid != 0)
            continue;
        fake_machine->allocation[i] = *allocation;
        fake_machine->allocation[i].owner = self;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

uint64_t fake_used_bytes(int device)
{
    uint64_t used = 0;

    for (int i = 0; i < FAKE_ALLOCATIONS; i++)
        if (fake_machine->allocation[i].owner.pid != 0 && fake_machine->allocation[i].device == device)
            used += fake_machine->allocation[i].bytes;
    for (int i = 0; i < FAKE_CONTEXTS; i++)
        if (fake_machine->context[i].owner.pid != 0 && fake_machine->context[i].device == device)
            used += FAKE_CONTEXT_BYTES;
    return used;
}
