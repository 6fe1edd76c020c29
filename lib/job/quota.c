/* SPDX-License-Identifier: MIT */
/*
 * How much of the CPUs the cgroups of this process let it use. Called by the thread in bx_job_start.
 *
 * How it works: /proc/self/cgroup names the process's cgroup in the hierarchy that has the controller cpu: a line of
 * that controller (v1), else the line 0:: (v2). /proc/self/mountinfo says where that hierarchy is mounted, and which
 * cgroup is the root of the mount: in a container often not the hierarchy's. Both names are relative to the root of
 * the process's cgroup namespace, and begin with /.. where they lie outside of it. The cgroup's path is below a mount
 * if the mount's root is a prefix of it, and what follows has no "..". Of several such mounts the one with the
 * shortest root shows most levels. Each level from the process's cgroup up to the mount's root may have a limit:
 * cpu.max (v2), cpu.cfs_quota_us and cpu.cfs_period_us (v1). The hierarchy's root has none, nor has a level whose
 * controller is off.
 *
 * A level is told from another one by the inode of its directory, which is one for all mounts and containers, and
 * which no other living cgroup has. So workers see which limits they share (bxi_quota_cpus).
 *
 * What cannot be read is no limit. Levels above the root of a container's mount cannot be read.
 */
#include "job.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_BYTES 8192             /* of mountinfo: two paths and options */
#define THOUSANDTHS 1000

struct mount {
    bool is_v1;
    char own[LINE_BYTES];           /* the process's cgroup, as /proc/self/cgroup has it */
    char path[LINE_BYTES];          /* the directory of its cgroup: root, mount point, the rest */
    size_t top_bytes;               /* of path: the part that is the mount point */
    size_t root_bytes;              /* of the name of the mount's root */
};

/* Of controllers, with commas between them. */
static bool has_cpu(const char *list)
{
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "cpu", 3) == 0 && (at[3] == ',' || at[3] == '\0'))
            return true;
    }
    return false;
}

static FILE *open_below(const char *root, const char *path)
{
    char full[LINE_BYTES + 64];

    snprintf(full, sizeof(full), "%s%s", root, path);
    return fopen(full, "re");
}

/* A line without its newline. False at the end of the file. What is longer than the line is cut. */
static bool next_line(FILE *file, char line[LINE_BYTES])
{
    if (fgets(line, LINE_BYTES, file) == NULL)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* "number:controllers:path" */
static bool find_own(const char *root, struct mount *mount)
{
    char line[LINE_BYTES];
    bool found = false;
    FILE *file = open_below(root, "/proc/self/cgroup");

    while (file != NULL && !mount->is_v1 && next_line(file, line)) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;

        if (path == NULL)
            continue;
        *path++ = '\0';
        mount->is_v1 = has_cpu(list + 1);
        if (mount->is_v1 || strcmp(line, "0:") == 0) {
            memcpy(mount->own, path, strlen(path) + 1);
            found = true;
        }
    }
    if (file != NULL)
        fclose(file);
    return found;
}

/* In place: mountinfo writes a space as \040, and so on. */
static void unescape(char *text)
{
    char *to = text;

    for (const char *at = text; *at != '\0'; to++) {
        unsigned value;

        if (*at == '\\' && strspn(at + 1, "01234567") >= 3) {
            (void)sscanf(at + 1, "%3o", &value);
            *to = (char)value;
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = '\0';
}

/* What follows top in path: "" or "/...". NULL if path is not below top. */
static const char *below(const char *path, const char *top)
{
    size_t bytes = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const char *rest = strcmp(path, "/") == 0 && bytes == 0 ? "" : path + bytes;

    if (strncmp(path, top, bytes) != 0 || (*rest != '\0' && *rest != '/'))
        return NULL;
    for (const char *at = strstr(rest, "/.."); at != NULL; at = strstr(at + 1, "/.."))
        if (at[3] == '/' || at[3] == '\0')
            return NULL;
    return rest;
}

/* "id parent device root point options [tag...] - type source options" */
static void look_at_mount(char *line, const char *root, struct mount *mount)
{
    char *rest = strstr(line, " - "), *field[5], *type[3];

    if (rest == NULL)
        return;
    *rest = '\0';
    for (int i = 0; i < 5; i++)
        if ((field[i] = strtok_r(i == 0 ? line : NULL, " ", &line)) == NULL)
            return;
    for (int i = 0; i < 3; i++)
        if ((type[i] = strtok_r(i == 0 ? rest + 3 : NULL, " ", &rest)) == NULL)
            return;
    if (strcmp(type[0], mount->is_v1 ? "cgroup" : "cgroup2") != 0 || (mount->is_v1 && !has_cpu(type[2])))
        return;
    unescape(field[3]);
    unescape(field[4]);

    const char *levels = below(mount->own, field[3]);

    if (levels == NULL || strlen(field[3]) >= mount->root_bytes)
        return;
    mount->root_bytes = strlen(field[3]);
    mount->top_bytes = strlen(root) + strlen(field[4]);
    if (snprintf(mount->path, sizeof(mount->path), "%s%s%s", root, field[4], levels) >= (int)sizeof(mount->path))
        mount->path[0] = '\0';
}

/* The path of the process's cgroup, "" if it has none that can be seen. */
static void find_mount(const char *root, struct mount *mount)
{
    char line[LINE_BYTES];
    FILE *file = open_below(root, "/proc/self/mountinfo");

    mount->root_bytes = SIZE_MAX;
    while (file != NULL && next_line(file, line))
        look_at_mount(line, root, mount);
    if (file != NULL)
        fclose(file);
}

/* The numbers with which a file of the directory begins: how many, at most two. */
static int read_numbers(const char *directory, const char *name, long long number[2])
{
    char path[LINE_BYTES];
    FILE *file = snprintf(path, sizeof(path), "%s/%s", directory, name) < (int)sizeof(path) ? fopen(path, "re") : NULL;
    int count = file != NULL ? fscanf(file, "%lld %lld", &number[0], &number[1]) : 0;

    if (file != NULL)
        fclose(file);
    return count;
}

/* In thousandths of a CPU; 0: no limit. */
static uint32_t limit_of(const struct mount *mount)
{
    long long quota[2] = { 0, 0 }, period[2] = { 0, 0 };

    if (mount->is_v1 && read_numbers(mount->path, "cpu.cfs_period_us", period) >= 1 &&
        read_numbers(mount->path, "cpu.cfs_quota_us", quota) >= 1)
        quota[1] = period[0];
    else if (mount->is_v1 || read_numbers(mount->path, "cpu.max", quota) != 2)
        return 0;
    if (quota[0] <= 0 || quota[1] <= 0 || quota[0] > LLONG_MAX / THOUSANDTHS)
        return 0;

    long long thousandths = quota[0] * THOUSANDTHS / quota[1];

    return thousandths > UINT32_MAX ? 0 : thousandths == 0 ? 1 : (uint32_t)thousandths;
}

/* Keeps the tightest ones, the tightest first. */
static void keep_limit(struct bxi_quota *quota, uint32_t cgroup, uint32_t thousandths)
{
    int at = BXI_QUOTAS;

    while (at > 0 && (quota->thousandths[at - 1] == 0 || quota->thousandths[at - 1] > thousandths))
        at--;
    for (int i = BXI_QUOTAS - 1; i >= at; i--) {
        quota->cgroup[i] = i > at ? quota->cgroup[i - 1] : cgroup;
        quota->thousandths[i] = i > at ? quota->thousandths[i - 1] : thousandths;
    }
}

void bxi_quota_read(const char *root, struct bxi_quota *quota)
{
    struct mount *mount = calloc(1, sizeof(*mount));

    memset(quota, 0, sizeof(*quota));
    if (mount != NULL && find_own(root, mount))
        find_mount(root, mount);
    while (mount != NULL && mount->path[0] != '\0') {
        uint32_t thousandths = limit_of(mount);
        struct stat status;
        char *last = strrchr(mount->path, '/');

        if (thousandths != 0 && stat(mount->path, &status) == 0)
            keep_limit(quota, (uint32_t)status.st_ino, thousandths);
        *(strlen(mount->path) > mount->top_bytes ? last : mount->path) = '\0';
    }
    free(mount);
}

/* What the workers before have taken of the cgroup. */
static uint64_t taken(const struct bxi_quota *quotas, const uint64_t *takes, int count, uint32_t cgroup)
{
    uint64_t sum = 0;

    for (int i = 0; i < count; i++)
        for (int level = 0; level < BXI_QUOTAS; level++)
            if (quotas[i].thousandths[level] != 0 && quotas[i].cgroup[level] == cgroup)
                sum += takes[i];
    return sum;
}

/* Each worker takes as much as its cgroups have left. They form a tree, so the order does not change the sum. */
int bxi_quota_cpus(const struct bxi_quota *quotas, int count)
{
    uint64_t takes[BXI_WORLD_MAX] = { 0 }, sum = 0;

    for (int i = 0; i < count; i++) {
        takes[i] = UINT32_MAX;
        for (int level = 0; level < BXI_QUOTAS; level++) {
            uint64_t most = quotas[i].thousandths[level];
            uint64_t gone = most != 0 ? taken(quotas, takes, i, quotas[i].cgroup[level]) : 0;
            uint64_t left = most > gone ? most - gone : 0;

            if (most != 0 && takes[i] > left)
                takes[i] = left;
        }
        sum += takes[i];
    }
    sum /= THOUSANDTHS;
    return sum == 0 ? 1 : (int)sum;         /* BXI_WORLD_MAX times UINT32_MAX fits, in CPUs */
}
