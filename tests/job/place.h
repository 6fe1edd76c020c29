/* SPDX-License-Identifier: MIT */
/*
 * The place of a job that a test starts without harness.h: a socket directory and a job name of its own for each test,
 * and counts of the files that the job has there and in /dev/shm. A test that leaves one of them fails.
 */
#ifndef TESTS_PLACE_H
#define TESTS_PLACE_H

#include "rpc/rpc.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[64];              /* sockets and lock files lie in its folder boxcar */
static char job_name[BXI_NAME_BYTES];

static inline void place_set_up(void)
{
    snprintf(directory, sizeof(directory), "/tmp/bxtest-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", directory, 1);
    snprintf(job_name, sizeof(job_name), "test-%ld", (long)getpid());
}

/* How many names of the directory begin and end so. */
static inline int files_in(const char *path, const char *prefix, const char *suffix)
{
    DIR *stream = opendir(path);
    struct dirent *entry;
    int count = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;
        size_t bytes = strlen(name), tail = strlen(suffix);

        count += strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strncmp(name, prefix, strlen(prefix)) == 0 &&
                 bytes >= tail && strcmp(name + bytes - tail, suffix) == 0;
    }
    if (stream != NULL)
        closedir(stream);
    return count;
}

/* Segments and arenas of the job: of one rank, given as ".2", or of all, given as "". */
static inline int segments_of(const char *rank)
{
    char prefix[64];

    /* The dot at the end leaves out jobs whose pid begins with this one. */
    snprintf(prefix, sizeof(prefix), "boxcar.%u.%s.", (unsigned)geteuid(), job_name);
    return files_in("/dev/shm", prefix, rank);
}

static inline int socket_files(void)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/boxcar", directory);
    return files_in(path, "", "");
}

static inline int open_fds(void)
{
    return files_in("/proc/self/fd", "", "");
}

/* Criterion ignores an assertion that fails here. It warns of an abort, and run_unit.sh counts the warnings. */
static inline void place_tear_down(void)
{
    char path[96], command[128];
    int segments = segments_of(""), sockets = socket_files();

    snprintf(path, sizeof(path), "%s/boxcar", directory);
    rmdir(path);
    if (segments == 0 && sockets == 0 && rmdir(directory) == 0)
        return;
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    dprintf(STDERR_FILENO, "left behind: %d in /dev/shm, %d sockets, or more in %s%s\n", segments, sockets, directory,
            system(command) == 0 ? ", which was removed" : "");
    abort();
}

#endif
