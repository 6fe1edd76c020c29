/* SPDX-License-Identifier: MIT */
/*
 * Forks: the count, the descriptors that a child closes, and the memory that it gets of them first.
 *
 * Who runs it: any thread that opens or closes such a descriptor; the handlers run in the thread that forks, in the
 * parent before and after the fork, and in the child while that has one thread.
 *
 * Locks, sockets and memory last as long as a descriptor of them. A child without exec (a pool of processes, a logger,
 * a daemon) would keep those of its worker: the owner lock and the lock of the job's name, so that a killed worker
 * counts as alive; sockets, whose hang-up then never comes; the pages of a segment after the end of the job. The child
 * can use none of them (BX_E_FORKED), so it closes them. `lock` is held while one is opened and noted, and while the
 * process forks: so the child knows all that it has.
 *
 * The bytes of tensors are the child's too, as a fork shows memory. It maps the arena at the same address, copy on
 * write: it reads what its parent wrote, and what it writes reaches nobody. Its handler does that, before the program's
 * own code runs in it: inherited, the mapping would be shared, and a wild store in the child would be the parent's. The
 * arena's pages then stay until the child has ended too.
 *
 * Why not a record lock (F_SETLK), which no child inherits: the process loses it when any of its code closes any
 * descriptor of that file, and then a worker that lives counts as dead. Its names would be removed, and its rank taken
 * by another. A lock of the open file can only err to the other side. It also leaves sockets and memory as they are.
 * Why not the pid with its start time: a pid means nothing in another pid namespace.
 *
 * A child that is made without the handlers of pthread_atfork (_Fork, clone as a bare system call) keeps the
 * descriptors. Writable mappings are MADV_DONTFORK, which the kernel obeys for any child: it has no arena.
 *
 * The program may have closed a descriptor of the library, and its number may be another file's by now: a child closes
 * a number only if it leads to the inode that was noted.
 */
#include "fork.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNSHARED_MAX 16384              /* a descriptor of a higher number is not noted: a child keeps it */

struct identity {
    dev_t device;
    ino_t inode;                        /* 0: not noted */
};

bxi_a32 bxi_forks;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct identity noted[UNSHARED_MAX];
static struct {
    void *base;                         /* NULL: a child gets no memory of it */
    size_t bytes;
} memory[UNSHARED_MAX];
static int noted_end;                   /* behind the highest number that was noted */

static struct identity identity_of(int fd)
{
    struct stat status = { 0 };

    fstat(fd, &status);
    return (struct identity){ status.st_dev, status.st_ino };
}

void bxi_unshared_begin(void)
{
    pthread_mutex_lock(&lock);
}

int bxi_unshared_end(int fd)
{
    int error = errno;

    if (fd == 0) {                      /* the program has closed its stdin */
        fd = fcntl(0, F_DUPFD_CLOEXEC, 1);
        error = errno;
        close(0);
    }
    if (fd >= 0 && fd < UNSHARED_MAX) {
        noted[fd] = identity_of(fd);
        if (fd >= noted_end)
            noted_end = fd + 1;
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

void bxi_unshared_map(int fd, void *base, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (fd < UNSHARED_MAX) {
        memory[fd].base = base;
        memory[fd].bytes = bytes;
    }
    pthread_mutex_unlock(&lock);
}

static void forget(int fd)
{
    noted[fd].inode = 0;
    memory[fd].base = NULL;
}

void bxi_unshared_close(int fd)
{
    if (fd < 0)
        return;
    pthread_mutex_lock(&lock);
    if (fd < UNSHARED_MAX)
        forget(fd);
    close(fd);
    pthread_mutex_unlock(&lock);
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* By another open file: a mapping keeps the one that it was made of, and with it the owner lock. If it fails, or a
 * handler that ran before has something there, the child faults where it touches the memory. */
static void map_in_child(int fd)
{
    char path[32];
    int own;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return;
    (void)mmap(memory[fd].base, memory[fd].bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED_NOREPLACE, own, 0);
    close(own);
}

static void in_child(void)
{
    int error = errno;

    bxi_add(&bxi_forks, 1);
    for (int fd = 0; fd < noted_end; fd++) {
        struct identity is = noted[fd].inode != 0 ? identity_of(fd) : (struct identity){ 0 };

        if (is.inode != 0 && is.inode == noted[fd].inode && is.device == noted[fd].device) {
            if (memory[fd].base != NULL)
                map_in_child(fd);
            close(fd);
        }
        forget(fd);
    }
    noted_end = 0;
    pthread_mutex_unlock(&lock);
    errno = error;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}
