/* SPDX-License-Identifier: MIT */
/*
 * lib/spawn.c: the memory that launcher and workers share, and what is removed by what it says.
 */
#include "spawn_fixture.h"

TestSuite(spawn_memory, .init = set_up, .fini = tear_down, .timeout = 60);

/* Its forked child keeps the open files, and with them the locks, until the test has looked. */
static int leaves_its_locks(const struct bx_options *options, void *context)
{
    int *gate = context;

    if (options->rank == 1) {
        if (make_names(options) < 0)
            return 9;
        if (fork() == 0) {
            char byte;

            close(gate[1]);
            _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
        }
        raise(SIGKILL);
    }
    wait_for_ever();
}

Test(spawn_memory, removes_what_a_killed_worker_left_though_its_lock_is_held)
{
    int gate[2];

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cr_assert_eq(pipe(gate), 0);
    cr_expect_eq(spawn(leaves_its_locks, gate), BX_E_WORKER_FAILED);
    expect_report(1, -1, SIGKILL, 0);
    cr_expect_eq(segments_left(), 0);
    close(gate[1]);
    cr_expect_gt(wait(NULL), 0);
}

/* How many bytes of nameless shared memory this process may write to. */
static unsigned long writable_shared_bytes(void)
{
    unsigned long from, to, bytes = 0;
    char line[512], mode[5];
    FILE *file = fopen("/proc/self/maps", "re");

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        if (strstr(line, "/dev/zero") != NULL && sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 &&
            strcmp(mode, "rw-s") == 0)
            bytes += to - from;
    if (file != NULL)
        fclose(file);
    return bytes;
}

static int counts_what_it_may_write(const struct bx_options *options, void *context)
{
    (void)context;
    note(options);
    seen->runs[options->rank] = (int)writable_shared_bytes();
    return 0;
}

/* One writer per page: a worker may write to its own page of what bx_spawn shares, and to nothing else of it. */
Test(spawn_memory, a_worker_may_write_to_one_page)
{
    unsigned long before = writable_shared_bytes();

    cr_assert_gt(before, 0);                    /* what the workers have seen */
    cr_expect_eq(spawn(counts_what_it_may_write, NULL), 0);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq((unsigned long)seen->runs[rank], before + (unsigned long)sysconf(_SC_PAGESIZE));
    cr_expect_eq(writable_shared_bytes(), before);
}
