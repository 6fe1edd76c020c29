/* SPDX-License-Identifier: MIT */
/*
 * Makes, maps and removes control segments; makes the empty object of an arena and removes it too.
 *
 * Who runs it: a worker, in the thread that starts or ends its job (create, attach, destroy,
 * detach); under the job's lock when a pair first talks (open_ring); a survivor, a launcher or
 * shmstat (reap).
 *
 * The owner lock is what tells a living owner from a dead one, so nobody may ever see a name
 * without it and take that for a death. Creating takes two steps, the name and then the lock; the
 * reaper takes the lock as well before it unlinks, instead of only asking who has it. Then one of
 * the two is first:
 *
 *     owner    O_EXCL the name, lock, is the name still there?   reaper   open, lock, unlink, close
 *
 * A reaper that has the lock makes the owner's lock fail (or finds its name gone afterwards): the
 * owner starts again. An owner that has the lock is passed over. Because a name is only unlinked
 * under the lock of the file it names, a file that is locked and has a link is the one that the
 * name leads to.
 *
 * Why not a file without a name that is linked once it is whole (O_TMPFILE): not every file system
 * that people mount on /dev/shm has it.
 *
 * Killed after the name, before the lock: an empty file, which the next reaper removes. Killed
 * anywhere later: the kernel drops the lock with the last descriptor, the reaper removes the file;
 * peers keep their mappings. A child that was forked and still holds the descriptor holds the lock
 * too, and the segment counts as alive until that child is gone; peers go by the pidfd and do not
 * care.
 */
#include "segment.h"

#include "cancel.h"
#include "guard.h"
#include "step.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CREATE_ATTEMPTS 1000          /* each but the last was lost to a reaper */
#define SHM_DIRECTORY "/dev/shm"
#define ARENA_SUFFIX ".arena"

/* The longest name of all: uid, job, instance and rank with all their digits. */
static_assert(sizeof("/boxcar.4294967295.") + BXI_NAME_BYTES + sizeof(".0123456789abcdef.127" ARENA_SUFFIX) <=
                  BXI_SEGMENT_NAME_BYTES,
              "names fit");

void bxi_segment_name(char out[BXI_SEGMENT_NAME_BYTES], uint32_t uid, const char *job,
                      uint64_t instance, int rank)
{
    snprintf(out, BXI_SEGMENT_NAME_BYTES, "/boxcar.%u.%.*s.%016llx.%d", uid, BXI_NAME_BYTES - 1,
             job, (unsigned long long)instance, rank);
}

void bxi_segment_arena_name(char out[BXI_SEGMENT_NAME_BYTES], uint32_t uid, const char *job,
                            uint64_t instance, int rank)
{
    bxi_segment_name(out, uid, job, instance, rank);
    memcpy(out + strlen(out), ARENA_SUFFIX, sizeof(ARENA_SUFFIX));
}

/* 0, -EAGAIN when somebody else has it, -errno. */
static int lock_owner(int fd)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

/* The named file, locked. 0; -EAGAIN if a reaper was faster; -errno. */
static int create_locked(const char *shm_name, int *fd_out)
{
    struct stat status;
    int rc;

    int fd = shm_open(shm_name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return -errno;
    BXI_STEP("segment.named");
    rc = lock_owner(fd);
    if (rc < 0)
        goto close_fd;      /* the reaper who has the lock unlinks the name */
    if (fstat(fd, &status) < 0) {
        rc = -errno;
        shm_unlink(shm_name);
        goto close_fd;
    }
    if (status.st_nlink == 0) {
        rc = -EAGAIN;
        goto close_fd;
    }
    *fd_out = fd;
    return 0;

close_fd:
    close(fd);
    return rc;
}

int bxi_segment_create_locked(const char *shm_name, int *fd)
{
    int rc = -EAGAIN;

    for (int attempt = 0; attempt < CREATE_ATTEMPTS && rc == -EAGAIN; attempt++) {
        if (attempt > 0)
            sched_yield();          /* the reaper is about to let go of what it took */
        rc = create_locked(shm_name, fd);
        if (attempt > 0 && rc == -EEXIST)
            rc = -EAGAIN;           /* the name lost last time, not unlinked yet */
    }
    return rc;
}

int bxi_file_limit(uint64_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
        return 0;
    return -EFBIG;
}

int bxi_file_resize(int fd, uint64_t bytes)
{
    int rc = bxi_file_limit(bytes);

    if (rc == 0 && ftruncate(fd, (off_t)bytes) < 0)
        rc = -errno;
    return rc;
}

/* Keeps the size: a file that somebody has truncated must not come to life again, all zeroes. */
static int allocate(int fd, uint64_t offset, uint64_t bytes)
{
    BXI_UNCANCELLED;
    int error;

    do
        error = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes) < 0 ? errno : 0;
    while (error == EINTR);
    if (error == EOPNOTSUPP)        /* no tmpfs */
        error = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    return -error;
}

static uint64_t realtime_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* I1: all of this is written before the descriptor goes to anybody. The rest is zero from birth. */
static void write_header(struct bxi_header *header, const char *job, const char *name)
{
    header->layout_version = BXI_LAYOUT_VERSION;
    header->uid = (uint32_t)geteuid();
    header->pid = (uint32_t)getpid();
    header->ring_bytes = BXI_RING_BYTES;
    header->started_ns = realtime_ns();
    memcpy(header->name, name, strlen(name) + 1);
    memcpy(header->job, job, strlen(job) + 1);
    header->magic = BXI_MAGIC;
    /* [state] release, pairs with the acquire of a peer or an inspector: who reads STARTING
     * reads the header. */
    bxi_store_release(&header->state, BXI_STARTING);
}

/* Sizes, allocates, maps and guards the file behind segment->fd. */
static int map_own(struct bxi_segment *segment)
{
    BXI_STEP("segment.locked");
    int rc = bxi_file_resize(segment->fd, segment->bytes);
    if (rc < 0)
        return rc;
    BXI_STEP("segment.sized");
    rc = allocate(segment->fd, 0, BXI_CONTROL_BYTES);
    if (rc < 0)
        return rc;
    BXI_STEP("segment.allocated");
    void *base = mmap(NULL, segment->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    /* A forked child has no business here: without the mapping a mistake of its own ends the
     * child, and not the worker. */
    if (madvise(base, segment->bytes, MADV_DONTFORK) < 0) {
        rc = -errno;
        goto unmap;
    }
    rc = bxi_guard_add(base, segment->bytes, true, &segment->truncated);
    if (rc < 0)
        goto unmap;
    segment->control = base;
    return 0;

unmap:
    munmap(base, segment->bytes);
    return rc;
}

int bxi_segment_create(struct bxi_segment *segment, const char *job, const char *name,
                       uint64_t instance, int rank, int world_size)
{
    if (world_size < 1 || world_size > BXI_WORLD_MAX || rank < 0 || rank >= world_size)
        return -EINVAL;
    if (strlen(job) >= BXI_NAME_BYTES || strlen(name) >= BXI_NAME_BYTES)
        return -ENAMETOOLONG;

    memset(segment, 0, sizeof(*segment));
    segment->fd = -1;
    segment->bytes = bxi_segment_bytes(world_size);
    bxi_segment_name(segment->shm_name, (uint32_t)geteuid(), job, instance, rank);

    int rc = bxi_segment_create_locked(segment->shm_name, &segment->fd);
    if (rc < 0)
        return rc;
    rc = map_own(segment);
    if (rc < 0)
        goto unlink;

    struct bxi_header *header = &segment->control->header;
    header->rank = (uint32_t)rank;
    header->world_size = (uint32_t)world_size;
    header->instance = instance;
    header->segment_bytes = segment->bytes;
    write_header(header, job, name);
    BXI_STEP("segment.written");
    return 0;

unlink:
    shm_unlink(segment->shm_name);
    close(segment->fd);
    segment->fd = -1;
    return rc;
}

int bxi_segment_open_ring(struct bxi_segment *segment, int to)
{
    if (to < 0 || bxi_segment_bytes(to + 1) > segment->bytes)
        return -EINVAL;
    return allocate(segment->fd, BXI_RINGS_OFFSET + (uint64_t)to * BXI_RING_STRIDE, BXI_OPEN_BYTES);
}

int bxi_segment_allocate(struct bxi_segment *segment, uint64_t offset, uint64_t bytes)
{
    if (offset > segment->bytes || bytes > segment->bytes - offset)
        return -EINVAL;
    return allocate(segment->fd, offset, bytes);
}

int bxi_segment_open_device(struct bxi_segment *segment, int world_size)
{
    int rc = allocate(segment->fd, BXI_DEVICE_OFFSET, BXI_DEVICE_BYTES);

    for (int to = 0; rc == 0 && to < world_size; to++)
        rc = allocate(segment->fd, bxi_device_pair_offset(to), BXI_DEVICE_PAIR_BYTES);
    return rc;
}

void *bxi_segment_device(const struct bxi_segment *segment)
{
    return (unsigned char *)segment->control + BXI_DEVICE_OFFSET;
}

unsigned char *bxi_segment_device_pair(const struct bxi_segment *segment, int to)
{
    return (unsigned char *)segment->control + bxi_device_pair_offset(to);
}

unsigned char *bxi_segment_ring(const struct bxi_segment *segment, int to)
{
    return (unsigned char *)segment->control + bxi_ring_offset(to);
}

bxi_a64 *bxi_segment_leases(const struct bxi_segment *segment, int to)
{
    return (bxi_a64 *)((unsigned char *)segment->control + bxi_lease_offset(to));
}

void bxi_segment_destroy(struct bxi_segment *segment)
{
    if (segment->control == NULL)
        return;
    /* While the lock is still held: afterwards the name could be a namesake's. */
    shm_unlink(segment->shm_name);
    bxi_guard_drop(segment->control);
    munmap(segment->control, segment->bytes);
    close(segment->fd);
    segment->control = NULL;
    segment->fd = -1;
}

/* Reads each word of another process's memory once. */
static void copy_words(void *to, const void *from, size_t bytes)
{
    const volatile uint64_t *word = from;

    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        uint64_t value = word[i];
        memcpy((unsigned char *)to + i * sizeof(value), &value, sizeof(value));
    }
}

/* Against what the caller knows from elsewhere. `is` is a private copy up to `state`. */
static int check_header(const struct bxi_header *is, uint64_t instance, int rank, int world_size)
{
    if (is->magic != BXI_MAGIC)
        return -EPROTO;
    if (is->layout_version != BXI_LAYOUT_VERSION)
        return -EPROTONOSUPPORT;
    if (is->uid != (uint32_t)geteuid() || is->instance != instance)
        return -EPROTO;
    if (is->rank != (uint32_t)rank || is->world_size != (uint32_t)world_size)
        return -EPROTO;
    if (is->ring_bytes != BXI_RING_BYTES || is->segment_bytes != bxi_segment_bytes(world_size))
        return -EPROTO;
    if (memchr(is->name, 0, BXI_NAME_BYTES) == NULL || memchr(is->job, 0, BXI_NAME_BYTES) == NULL)
        return -EPROTO;
    return 0;
}

int bxi_segment_attach(struct bxi_segment_view *view, int fd, uint64_t instance, int rank,
                       int world_size)
{
    struct bxi_header header;
    struct stat status;

    if (world_size < 1 || world_size > BXI_WORLD_MAX || rank < 0 || rank >= world_size)
        return -EINVAL;
    memset(view, 0, sizeof(*view));
    if (fstat(fd, &status) < 0)
        return -errno;
    size_t bytes = bxi_segment_bytes(world_size);
    if (!S_ISREG(status.st_mode) || status.st_size < 0 || (uint64_t)status.st_size != bytes)
        return -EPROTO;

    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return -errno;
    int rc = 0;
    if (madvise(base, bytes, MADV_DONTFORK) < 0) {
        rc = -errno;
        goto unmap;
    }
    /* Before the first look: the file may have shrunk since fstat. */
    rc = bxi_guard_add(base, bytes, false, &view->truncated);
    if (rc < 0)
        goto unmap;
    memset(&header, 0, sizeof(header));
    copy_words(&header, base, offsetof(struct bxi_header, state));
    rc = check_header(&header, instance, rank, world_size);
    if (rc < 0)
        goto drop;
    view->control = base;
    view->bytes = bytes;
    return 0;

drop:
    bxi_guard_drop(base);
unmap:
    munmap(base, bytes);
    return rc;
}

const unsigned char *bxi_segment_view_ring(const struct bxi_segment_view *view, int to)
{
    return (const unsigned char *)view->control + bxi_ring_offset(to);
}

const bxi_a64 *bxi_segment_view_leases(const struct bxi_segment_view *view, int to)
{
    return (const bxi_a64 *)((const unsigned char *)view->control + bxi_lease_offset(to));
}

void bxi_segment_detach(struct bxi_segment_view *view)
{
    if (view->control == NULL)
        return;
    void *base = (void *)(uintptr_t)view->control;
    bxi_guard_drop(base);
    munmap(base, view->bytes);
    view->control = NULL;
    view->bytes = 0;
}

static bool is_locked(int fd)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

int bxi_segment_find_owner(const char *job, uint64_t instance, int rank, struct bxi_segment_owner *owner)
{
    char shm_name[BXI_SEGMENT_NAME_BYTES];
    struct bxi_header header;

    bxi_segment_name(shm_name, (uint32_t)geteuid(), job, instance, rank);
    int fd = shm_open(shm_name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    /* Read, not mapped: the file may be cut short meanwhile. */
    bool is_whole = is_locked(fd) && pread(fd, &header, sizeof(header), 0) == (ssize_t)sizeof(header) &&
                    header.magic == BXI_MAGIC && header.layout_version == BXI_LAYOUT_VERSION;
    close(fd);
    if (!is_whole)
        return -ENOENT;
    owner->pid = header.pid;
    owner->state = bxi_load_relaxed(&header.state);     /* relaxed: of a private copy */
    memcpy(owner->name, header.name, sizeof(owner->name));
    owner->name[sizeof(owner->name) - 1] = '\0';
    return 0;
}

/* True if file_name is one that bxi_segment_name or bxi_segment_arena_name makes for this job (and
 * instance, unless that is 0): what was parsed is written out again and must be the same. */
static bool is_name_of(const char *file_name, const char *job, uint64_t instance)
{
    char prefix[BXI_SEGMENT_NAME_BYTES];
    char canonical[BXI_SEGMENT_NAME_BYTES];
    char *end = NULL;

    int prefix_bytes = snprintf(prefix, sizeof(prefix), "boxcar.%u.%.*s.", (uint32_t)geteuid(),
                                BXI_NAME_BYTES - 1, job);
    if (strncmp(file_name, prefix, (size_t)prefix_bytes) != 0)
        return false;
    uint64_t its_instance = strtoull(file_name + prefix_bytes, &end, 16);
    if (*end != '.')
        return false;
    long rank = strtol(end + 1, &end, 10);
    if (rank < 0 || rank >= BXI_WORLD_MAX || (instance != 0 && its_instance != instance))
        return false;
    if (*end == '\0')
        bxi_segment_name(canonical, (uint32_t)geteuid(), job, its_instance, (int)rank);
    else
        bxi_segment_arena_name(canonical, (uint32_t)geteuid(), job, its_instance, (int)rank);
    return strcmp(file_name, canonical + 1) == 0;
}

/* 1 if the name was removed, 0 if it is not ours, alive, or gone already; -errno. */
static int reap_one(const char *file_name)
{
    char shm_name[BXI_SEGMENT_NAME_BYTES];
    struct stat status;
    int removed = 0;

    snprintf(shm_name, sizeof(shm_name), "/%.*s", BXI_SEGMENT_NAME_BYTES - 2, file_name);
    /* O_NONBLOCK: what somebody put there under this name need not be a file. */
    int fd = shm_open(shm_name, O_RDWR | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fstat(fd, &status) < 0) {
        removed = -errno;
        goto close_fd;
    }
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid())
        goto close_fd;
    if (lock_owner(fd) < 0)
        goto close_fd;
    /* Gone while we were on our way to the lock: then the name may be a namesake's by now. */
    if (fstat(fd, &status) < 0 || status.st_nlink == 0)
        goto close_fd;
    removed = shm_unlink(shm_name) < 0 ? -errno : 1;

close_fd:
    close(fd);
    return removed;
}

int bxi_segment_reap(const char *job, uint64_t instance)
{
    struct dirent *entry;
    int removed = 0;
    int error = 0;

    DIR *directory = opendir(SHM_DIRECTORY);
    if (directory == NULL)
        return -errno;
    while ((entry = readdir(directory)) != NULL) {
        if (!is_name_of(entry->d_name, job, instance))
            continue;
        int rc = reap_one(entry->d_name);
        if (rc < 0)
            error = rc;
        else
            removed += rc;
    }
    closedir(directory);
    return removed == 0 ? error : removed;
}
