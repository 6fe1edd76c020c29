/* SPDX-License-Identifier: MIT */
/*
 * lib/job/quota.c, over made-up trees: what a process may use of the CPUs, and several workers together.
 */
#include "tests/harness/test.h"
#include "job/job.h"

#include <ftw.h>

#define V2 "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static char root[64];
static struct bxi_quota quota;

static void set_up(void)
{
    snprintf(root, sizeof(root), "/tmp/bx-quota-%d-XXXXXX", (int)getpid());
    cr_assert_not_null(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status;
    (void)type;
    (void)walk;
    return remove(path);
}

static void tear_down(void)
{
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(quota, .init = set_up, .fini = tear_down, .timeout = 20);

/* A file below root, with the directories that it needs. */
static void put(const char *path, const char *text)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "we");
    cr_assert_not_null(file, "%s", full);
    fputs(text, file);
    fclose(file);
}

static void put_proc(const char *cgroup, const char *mounts)
{
    put("/proc/self/cgroup", cgroup);
    put("/proc/self/mountinfo", mounts);
}

static uint32_t cgroup_of(const char *path)
{
    char full[512];
    struct stat status;

    snprintf(full, sizeof(full), "%s%s", root, path);
    cr_assert_eq(stat(full, &status), 0, "%s", full);
    return (uint32_t)status.st_ino;
}

/* NULL: no limit. */
static void expect(int level, const char *path, uint32_t thousandths)
{
    cr_expect_eq(quota.thousandths[level], thousandths, "level %d: %u, not %u", level, quota.thousandths[level],
                 thousandths);
    cr_expect_eq(quota.cgroup[level], path != NULL ? cgroup_of(path) : 0, "level %d", level);
}

static void expect_limits(const char *first, uint32_t first_thousandths, const char *second,
                          uint32_t second_thousandths)
{
    bxi_quota_read(root, &quota);
    expect(0, first, first_thousandths);
    expect(1, second, second_thousandths);
}

/* ---- One hierarchy (v2) --------------------------------------------------------------------------- */

Test(quota, the_tightest_of_many_levels_are_kept)
{
    put_proc("0::/a/b/c/d\n", V2);
    put("/sys/fs/cgroup/a/cpu.max", "200000 100000");
    put("/sys/fs/cgroup/a/b/cpu.max", "400000 100000");
    put("/sys/fs/cgroup/a/b/c/cpu.max", "100000 100000");
    put("/sys/fs/cgroup/a/b/c/d/cpu.max", "300000 100000");
    expect_limits("/sys/fs/cgroup/a/b/c", 1000, "/sys/fs/cgroup/a", 2000);
}

Test(quota, a_looser_level_below_a_tight_one_is_kept_too)
{
    put_proc("0::/a/b\n", V2);
    put("/sys/fs/cgroup/a/cpu.max", "100000 100000");
    put("/sys/fs/cgroup/a/b/cpu.max", "300000 100000");
    expect_limits("/sys/fs/cgroup/a", 1000, "/sys/fs/cgroup/a/b", 3000);
}

Test(quota, a_level_without_the_controller_hides_none_above)
{
    put_proc("0::/a/b\n", V2);
    put("/sys/fs/cgroup/a/cpu.max", "50000 200000");
    put("/sys/fs/cgroup/a/b/cgroup.procs", "");
    expect_limits("/sys/fs/cgroup/a", 250, NULL, 0);
}

Test(quota, names_may_have_dots_spaces_and_colons)
{
    put_proc("0::/..a/b:c..\n", "30 25 0:26 / /my\\040mount rw - cgroup2 none rw\n");
    put("/my mount/..a/cpu.max", "200000 100000");
    put("/my mount/..a/b:c../cpu.max", "100000 100000");
    expect_limits("/my mount/..a/b:c..", 1000, "/my mount/..a", 2000);
    put_proc("0::/a/..b\n", V2);
    put("/sys/fs/cgroup/a/..b/cpu.max", "300000 100000");
    expect_limits("/sys/fs/cgroup/a/..b", 3000, NULL, 0);
}

/* A file of a kernel that nobody knows. */
Test(quota, lines_that_make_no_sense_limit_nothing)
{
    static const char *const mounts[] = {
        "30 25 0:26 /\n", "30 25 - cgroup2 none rw\n", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2\n",
        "30 25 0:26 /other /sys/fs/cgroup rw - cgroup2 none rw\n",
        "30 25 0:26 / /sys/fs/c\\08group\\1 rw - cgroup2 none rw\n",
    };

    put("/sys/fs/cgroup/cpu.max", "100000 100000");
    for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
        put_proc("0::/\n", mounts[i]);
        expect_limits(NULL, 0, NULL, 0);
    }
    put_proc("0::/otherwise\n", "30 25 0:26 /other /sys/fs/cgroup rw - cgroup2 none rw\n");
    expect_limits(NULL, 0, NULL, 0);
    put_proc("0::/a/../b\n0::/a/..\n", V2);
    expect_limits(NULL, 0, NULL, 0);
}

/* ---- Hierarchies by controller (v1), and both ------------------------------------------------------- */

#define V1 "33 32 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" \
           "34 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"

Test(quota, all_levels_count_in_the_hierarchy_of_the_controller)
{
    put_proc("12:cpuset:/other\n4:cpu,cpuacct:/slice/app\n1:name=systemd:/x\n0::/y\n", V1);
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slice/cpu.cfs_quota_us", "700000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slice/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slice/app/cpu.cfs_quota_us", "25000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/slice/app/cpu.cfs_period_us", "50000\n");
    put("/sys/fs/cgroup/cpuset/other/cpu.cfs_quota_us", "1000\n");
    put("/sys/fs/cgroup/cpuset/other/cpu.cfs_period_us", "100000\n");
    expect_limits("/sys/fs/cgroup/cpu,cpuacct/slice/app", 500, "/sys/fs/cgroup/cpu,cpuacct/slice", 7000);
}

/* Without a cgroup namespace a container sees the host's path, and a mount whose root is that cgroup. */
Test(quota, a_mount_may_begin_below_the_root_of_the_hierarchy)
{
    put_proc("4:cpuacct,cpu:/docker/abc\n",
             "34 32 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000 1");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000 1");
    expect_limits("/sys/fs/cgroup/cpu", 1500, NULL, 0);
}

Test(quota, the_common_hierarchy_counts_if_no_other_has_the_controller)
{
    put_proc("5:cpuset:/a\n0::/b\n", "33 32 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                                     "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/unified/b/cpu.max", "100000 100000");
    expect_limits("/sys/fs/cgroup/unified/b", 1000, NULL, 0);
}

/* ---- Namespaces ---------------------------------------------------------------------------------- */

Test(quota, a_cgroup_outside_of_the_mount_has_no_limit_that_can_be_read)
{
    put_proc("0::/../other\n", V2);
    put("/sys/fs/cgroup/cpu.max", "100000 100000");
    put("/sys/fs/other/cpu.max", "100000 100000");
    expect_limits(NULL, 0, NULL, 0);
}

Test(quota, a_mount_from_outside_of_the_namespace_shows_a_cgroup_beside_it)
{
    put_proc("0::/../other\n", "30 25 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu.max", "300000 100000");
    put("/sys/fs/cgroup/other/cpu.max", "100000 100000");
    expect_limits("/sys/fs/cgroup/other", 1000, "/sys/fs/cgroup", 3000);
    /* Two levels up, where a step of the way is unnamed. */
    put_proc("0::/../../other\n", "30 25 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    expect_limits(NULL, 0, NULL, 0);
    put_proc("0::/\n", "30 25 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    expect_limits(NULL, 0, NULL, 0);
}

Test(quota, the_mount_that_shows_most_levels_is_read)
{
    put_proc("0::/a/b\n", "30 25 0:26 /a/b /one rw - cgroup2 cgroup2 rw\n"
                          "31 25 0:26 / /two rw - cgroup2 cgroup2 rw\n"
                          "32 25 0:26 /a /three rw - cgroup2 cgroup2 rw\n"
                          "33 25 0:26 /a/bc /four rw - cgroup2 cgroup2 rw\n");
    put("/one/cpu.max", "100000 100000");
    put("/two/a/cpu.max", "200000 100000");
    put("/three/cpu.max", "400000 100000");
    put("/four/cpu.max", "500000 100000");
    expect_limits("/two/a", 2000, NULL, 0);
}

/* ---- What is missing, and nonsense ------------------------------------------------------------------ */

Test(quota, nothing_to_read_is_no_limit)
{
    expect_limits(NULL, 0, NULL, 0);
    put("/proc/self/cgroup", "0::/a\n");
    expect_limits(NULL, 0, NULL, 0);
    put("/proc/self/mountinfo", "");
    expect_limits(NULL, 0, NULL, 0);
    put("/proc/self/mountinfo", V2);
    expect_limits(NULL, 0, NULL, 0);
    put("/sys/fs/cgroup/a/cpu.stat", "");
    expect_limits(NULL, 0, NULL, 0);
    put_proc("4:cpu:/a\n", "34 32 0:29 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n");
    expect_limits(NULL, 0, NULL, 0);
    put("/sys/fs/cgroup/a/cpu.cfs_period_us", "100000\n");
    expect_limits(NULL, 0, NULL, 0);
}

Test(quota, a_file_that_says_nonsense_is_no_limit)
{
    static const char *const texts[] = { "",      "max",     "100000",   "0 100000",           "100000 0",
                                         "-1 -1", "nonsense", "max 1000", "9223372036854775807 1", "9000000000 1" };

    put_proc("0::/\n", V2);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        put("/sys/fs/cgroup/cpu.max", texts[i]);
        expect_limits(NULL, 0, NULL, 0);
    }
    put("/sys/fs/cgroup/cpu.max", "1 1000000");
    expect_limits("/sys/fs/cgroup", 1, NULL, 0);
}

Test(quota, lines_that_are_cut_are_no_limit)
{
    static const char whole[] = V2;
    static const char *const cgroups[] = { "", "0", "0:", "0:x", "::/", "\n\n" };
    const size_t before_last_field = (size_t)(strstr(whole, "rw,nsdelegate") - whole);
    char part[sizeof(whole)];

    put("/sys/fs/cgroup/cpu.max", "100000 100000");
    for (size_t bytes = 0; bytes <= before_last_field; bytes++) {
        memcpy(part, whole, bytes);
        part[bytes] = '\0';
        put_proc("0::/\n", part);
        expect_limits(NULL, 0, NULL, 0);
    }
    for (size_t i = 0; i < sizeof(cgroups) / sizeof(cgroups[0]); i++) {
        put_proc(cgroups[i], V2);
        expect_limits(NULL, 0, NULL, 0);
    }
}

/* ---- Several workers ------------------------------------------------------------------------------- */

#define CPUS(...) cpus_of(sizeof((struct bxi_quota[]){ __VA_ARGS__ }), (struct bxi_quota[]){ __VA_ARGS__ })
#define ONE(cgroup, thousandths) { { cgroup }, { thousandths } }
#define TWO(cgroup, thousandths, cgroup2, thousandths2) { { cgroup, cgroup2 }, { thousandths, thousandths2 } }

static int cpus_of(size_t bytes, const struct bxi_quota *quotas)
{
    return bxi_quota_cpus(quotas, (int)(bytes / sizeof(*quotas)));
}

Test(quota, workers_of_one_cgroup_share_its_limit)
{
    cr_expect_eq(CPUS(ONE(1, 2000), ONE(1, 2000), ONE(1, 2000)), 2);
    cr_expect_eq(CPUS(ONE(1, 2000)), 2);
}

Test(quota, workers_of_several_cgroups_have_the_limits_of_all)
{
    cr_expect_eq(CPUS(ONE(1, 2000), ONE(2, 1000), ONE(1, 2000)), 3);
    cr_expect_eq(CPUS(ONE(1, 1500), ONE(2, 1500)), 3);
    cr_expect_eq(CPUS(ONE(1, 400), ONE(2, 400)), 1);
}

Test(quota, a_limit_above_several_cgroups_holds_for_all_of_them)
{
    cr_expect_eq(CPUS(TWO(1, 2000, 9, 3000), TWO(2, 2000, 9, 3000)), 3);
    cr_expect_eq(CPUS(TWO(1, 2000, 9, 3000), TWO(1, 2000, 9, 3000)), 2);
    cr_expect_eq(CPUS(TWO(1, 2000, 9, 3000), ONE(9, 3000), ONE(8, 1000)), 4);
}

Test(quota, a_worker_without_a_limit_lifts_all)
{
    cr_expect_geq(CPUS(ONE(1, 2000), ONE(0, 0)), 1000000);
    cr_expect_eq(bxi_quota_cpus(NULL, 0), 1);
}
