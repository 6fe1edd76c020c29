/* SPDX-License-Identifier: MIT */
/*
 * The objects of a worker in /dev/shm, its control segment and its arena: their names, their owner lock, their removal.
 * A segment's name is "/boxcar.<uid>.<job>.<instance>.<rank>", the instance in 16 hex digits; the arena's has ".arena"
 * appended.
 */
#ifndef BXI_OBJECT_H
#define BXI_OBJECT_H

#include "layout.h"

#include <stdbool.h>
#include <stdint.h>

#define BXI_OBJECT_NAME_BYTES 96

void bxi_object_name(char out[BXI_OBJECT_NAME_BYTES], uint32_t uid, const char *job, uint64_t instance, int rank);
void bxi_object_arena_name(char out[BXI_OBJECT_NAME_BYTES], uint32_t uid, const char *job, uint64_t instance, int rank);

struct bxi_object_parts {
    char job[BXI_NAME_BYTES];   /* zeroes behind its end */
    uint64_t instance;
    int rank;
    bool is_arena;
};
/* The parts of a file's name in /dev/shm; false unless it is exactly the name of an object of this user. */
bool bxi_object_parse(const char *file_name, struct bxi_object_parts *parts);

/* The name of the directory of this user's sockets ("$XDG_RUNTIME_DIR/boxcar" or "/tmp/boxcar-<uid>"). Its length, as
 * snprintf. */
int bxi_object_sockets(char *out, size_t bytes);

/* Creates an empty object (O_EXCL, 0600). Its descriptor (of fork.h) holds the owner lock (F_OFD_SETLK, the whole file,
 * write), so reapers leave it alone. 0, -EEXIST, -errno. */
int bxi_object_create(const char *shm_name, int *fd);
/* The same without a name; link gives it one, which no reaper can take before its owner has the lock. link needs /proc.
 * 0; -EOPNOTSUPP: /dev/shm has no files without names (O_TMPFILE); link: -EEXIST; -errno. */
int bxi_object_create_unnamed(int *fd);
int bxi_object_link(int fd, const char *shm_name);

struct bxi_object_owner {
    uint32_t pid;
    uint32_t state;             /* enum bxi_state */
    uint32_t world_size;
    uint32_t generation;
    bool rejoin;                /* its job lets a worker come back */
    char name[BXI_NAME_BYTES];
};
/* Finds the owner of a rank's segment. 0; -ENOENT: the name is gone, the owner lock is free, or the header is not
 * written yet; -errno. */
int bxi_object_find_owner(const char *job, uint64_t instance, int rank, struct bxi_object_owner *owner);

/* The instances of this job of this uid that have names, whoever lives: `most` at most. Their number; -errno. */
int bxi_object_instances(const char *job, uint64_t *instances, int most);

/* Unlinks the segment and the arena of a worker of this uid, whoever has their owner locks. */
void bxi_object_unlink(const char *job, uint64_t instance, int rank);
/* Unlinks the segments and arenas of one job of this uid whose owner lock is free, of one instance or (instance 0) of
 * all. Returns the number removed, -errno. */
int bxi_object_reap(const char *job, uint64_t instance);

#endif
