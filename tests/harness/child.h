/* SPDX-License-Identifier: MIT */
/* A test's step in a child, and a small /dev/shm for it. */
#ifndef TESTS_CHILD_H
#define TESTS_CHILD_H

#include "test.h"
#include <sys/mount.h>

#define CHILD_SKIPS 77              /* what a body returns that lacks what it needs */

/* Runs body in a child. Its exit status, or 256 + the signal that ended it. */
static inline int in_child(int (*body)(void))
{
    int status = 0;
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(body());
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static inline void expect_ended_well(pid_t pid)
{
    int status = -1;

    cr_expect_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0);
}

/* Runs body, which returns 0 or the number of the step that failed. `needs`: why it may skip; NULL: it may not. */
static inline void expect_in_child(int (*body)(void), const char *needs)
{
    int status = in_child(body);

    if (needs != NULL && status == CHILD_SKIPS)
        cr_skip_test("%s", needs);
    cr_assert_eq(status, 0, "step %d failed", status);
}

/* A test whose body, which follows, runs so. */
#define CHILD_TEST(suite, name, timeout_s, needs) \
    static int suite##_##name##_in_child(void); \
    Test(suite, name, .timeout = (timeout_s)) \
    { \
        expect_in_child(suite##_##name##_in_child, needs); \
    } \
    static int suite##_##name##_in_child(void)

static inline bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool is_written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return is_written;
}

/* Gives this process a private /dev/shm, an ordinary user's in a private user namespace. */
static inline bool mount_small(const char *options)
{
    char map[64];
    unsigned uid = geteuid();
    unsigned gid = getegid();

    if (unshare(CLONE_NEWNS | (uid == 0 ? 0 : CLONE_NEWUSER)) < 0)
        return false;
    if (uid != 0) {
        snprintf(map, sizeof(map), "%u %u 1", uid, uid);
        if (!write_file("/proc/self/uid_map", map) || !write_file("/proc/self/setgroups", "deny"))
            return false;
        snprintf(map, sizeof(map), "%u %u 1", gid, gid);
        if (!write_file("/proc/self/gid_map", map))
            return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("boxcar-test", "/dev/shm", "tmpfs", 0, options) == 0;
}

/* The number of names in a directory, with its own two. */
static inline int count_names(const char *path)
{
    DIR *names = opendir(path);
    int count = 0;

    cr_assert_not_null(names);
    while (readdir(names) != NULL)
        count++;
    closedir(names);
    return count;
}

/* The number of this process's descriptors, and a constant. */
static inline int open_descriptors(void)
{
    return count_names("/proc/self/fd");
}

/* Is there an object of that name in /dev/shm? */
static inline bool is_in_shm(const char *shm_name)
{
    char path[128];

    snprintf(path, sizeof(path), "/dev/shm%s", shm_name);
    return access(path, F_OK) == 0;
}

/* This process's mappings of files with that name, of those with these rights only; rights "": with any. */
static inline int mappings_of(const char *shm_name, const char *rights)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;

    cr_assert_not_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        count += strstr(line, shm_name) != NULL && strstr(line, rights) != NULL;
    fclose(maps);
    return count;
}

#endif
