/* SPDX-License-Identifier: MIT */
/*
 * lib/job/machine.c: what a worker says of its CPUs, and how many the workers of a job have together.
 */
#include "tests/harness/test.h"
#include "job/job.h"
#include "rpc/rpc.h"

#define WORKERS 3

TestSuite(machine, .timeout = 20);

/* Of each worker what machine.c reads: its header. */
static struct bxi_control controls[WORKERS];

static int cpus(void)
{
    static struct bxi_peer peers[WORKERS];
    _Atomic(struct bxi_peer *) table[WORKERS];
    struct bxi_rpc rpc = { .peers = table };
    struct bx_job job = { .rank = 1, .world_size = WORKERS, .control = &controls[1], .rpc = &rpc };

    for (int rank = 0; rank < WORKERS; rank++) {
        peers[rank].view.control = rank != 1 ? &controls[rank] : NULL;
        bxi_store_relaxed(&table[rank], &peers[rank]);
    }
    return bxi_machine_cpus(&job);
}

static void allow(int rank, int cpu)
{
    controls[rank].header.cpu_mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

static void limit(int rank, uint32_t cgroup, uint32_t thousandths)
{
    controls[rank].header.quota_cgroup[0] = cgroup;
    controls[rank].header.quota_thousandths[0] = thousandths;
}

Test(machine, cpus_above_127_are_cpus_of_their_own)
{
    allow(0, 0);
    allow(1, 128);
    allow(2, 383);
    cr_expect_eq(cpus(), 3);
    allow(0, 128);
    allow(0, 1023);
    cr_expect_eq(cpus(), 4);
}

Test(machine, a_worker_that_says_nothing_counts_for_nothing)
{
    cr_expect_eq(cpus(), 1);
    allow(2, 5);
    allow(2, 6);
    cr_expect_eq(cpus(), 2);
}

Test(machine, each_worker_has_a_limit_of_its_own)
{
    for (int cpu = 0; cpu < 64; cpu++)
        allow(cpu % WORKERS, cpu);
    limit(0, 7, 1500);
    limit(1, 7, 1500);
    limit(2, 8, 4500);
    cr_expect_eq(cpus(), 6);
    limit(2, 7, 1500);
    cr_expect_eq(cpus(), 1);
    limit(0, 0, 0);
    cr_expect_eq(cpus(), 64);
}

Test(machine, a_worker_publishes_the_cpus_that_it_may_use)
{
    cpu_set_t set;
    struct bxi_header header = { 0 };

    cr_assert_eq(sched_getaffinity(0, sizeof(set), &set), 0);
    bxi_machine_publish(&header);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        cr_expect_eq(header.cpu_mask[cpu / 64] >> cpu % 64 & 1, CPU_ISSET(cpu, &set) ? 1 : 0, "CPU %zu", cpu);
    cr_expect(header.quota_thousandths[1] == 0 || header.quota_thousandths[0] <= header.quota_thousandths[1]);
}
