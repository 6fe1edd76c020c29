/* SPDX-License-Identifier: MIT */
/*
 * Calls on two CPUs of which each has a program in an endless loop besides. A worker that spins or yields there gives
 * the CPU to that program, for 3 ms each time, and makes some hundred calls a second; one that sleeps is woken at once,
 * and makes tens of thousands.
 */
#include "tests/harness/harness.h"

#include "base/base.h"

#include <sys/prctl.h>

#define CPUS 2
#define MEASURED_NS (300 * HARNESS_MS)      /* short: other tests run beside */
#define ROUNDS 4                            /* for they take the CPUs too */

static pid_t programs[CPUS];

static void loop_on(int cpu)
{
    cpu_set_t only;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CPU_ZERO(&only);
    CPU_SET((size_t)cpu, &only);
    sched_setaffinity(0, sizeof only, &only);
    for (;;)
        ;
}

static void set_up(void)
{
    cpu_set_t all, some;
    int count = 0;

    CPU_ZERO(&some);
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && count < CPUS; cpu++)
        if (CPU_ISSET((size_t)cpu, &all)) {
            CPU_SET((size_t)cpu, &some);
            programs[count] = fork();
            if (programs[count++] == 0)
                loop_on(cpu);
        }
    cr_assert_eq(sched_setaffinity(0, sizeof some, &some), 0);
}

static void tear_down(void)
{
    for (int i = 0; i < CPUS; i++)
        if (programs[i] > 0) {
            kill(programs[i], SIGKILL);
            waitpid(programs[i], NULL, 0);
        }
}

TestSuite(contended, .init = set_up, .fini = tear_down);

static void calls(struct bx_job *job, int least)
{
    int count = 0;

    for (int round = 0; round < ROUNDS && count <= least; round++) {
        uint64_t until_ns = bxi_now_ns() + MEASURED_NS;

        for (count = 0; bxi_now_ns() < until_ns; count++)
            HARNESS_EQ(bx_call(job, "worker1", "nothing", ""), 0);
    }
    HARNESS_CHECK(count > least);
}

static void calls_alone(struct bx_job *job)
{
    calls(job, 600);
}

static void calls_beside_others(struct bx_job *job)
{
    calls(job, 150);
}

HARNESS_WORLD(contended, worker_makes_thousands_of_calls_a_second, 60, .size = 2, .body = { calls_alone },
              .handlers = { HARNESS_INLINE("nothing", harness_nothing) });
HARNESS_WORLD(contended, workers_make_many_calls_a_second_where_they_are_more_than_the_cpus, 60, .size = 4,
              .body = { calls_beside_others, NULL, calls_beside_others, calls_beside_others },
              .handlers = { HARNESS_INLINE("nothing", harness_nothing) });
