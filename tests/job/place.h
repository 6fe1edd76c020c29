/* SPDX-License-Identifier: MIT */
/*
 * The place of a job that a test starts without harness.h: each test has its own socket directory and job name. The
 * files of the job there and in /dev/shm can be counted. A test that leaves a file behind fails.
 */
#ifndef TESTS_PLACE_H
#define TESTS_PLACE_H

#include "tests/harness/child.h"
#include "tests/harness/harness.h"

#include "rpc/rpc.h"

static char directory[64];              /* its folder boxcar has the sockets and lock files */
static char job_name[BXI_NAME_BYTES];

static inline void place_set_up(void)
{
    snprintf(directory, sizeof(directory), "/tmp/bxtest-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", directory, 1);
    harness_name(job_name, sizeof(job_name), "test-");
}

/* How many names in a directory have this prefix and this suffix. */
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

/* How many segments and arenas of the job there are: all for "", the segment of rank 2 for ".2", its arena for
 * ".2.arena". */
static inline int segments_of(const char *rank)
{
    char prefix[64];

    /* Without the dot at the end, jobs whose pid begins with this one would be counted too. */
    snprintf(prefix, sizeof(prefix), "boxcar.%u.%s.", (unsigned)geteuid(), job_name);
    return files_in("/dev/shm", prefix, rank);
}

static inline int socket_files(void)
{
    char path[96];

    snprintf(path, sizeof(path), "%s/boxcar", directory);
    return files_in(path, "", "");
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
