/* SPDX-License-Identifier: MIT */
/*
 * lib/job/spawn.c, lib/job/spawned.c: the memory that launcher and workers share, and the names that are removed
 * because it lists them.
 */
#include "spawn_fixture.h"

#include "tests/harness/refuse.h"

TestSuite(spawn_memory, .init = set_up, .fini = place_tear_down, .timeout = 60);

/* Rank 1 dies, but a child of it keeps the open files, and so the locks, until the test has checked the names. It is
 * made without the C library's handlers, which would close them. */
static int leaves_its_locks(const struct bx_options *options, void *context)
{
    int *gate = context;

    if (options->rank == 1) {
        if (make_names(options) < 0)
            return 9;
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
            char byte;

            close(gate[1]);
            _exit(read(gate[0], &byte, 1) == 0 ? 0 : 1);
        }
        raise(SIGKILL);
    }
    wait_for_ever();
}

Test(spawn_memory, removes_the_names_of_a_killed_worker_though_its_lock_is_held)
{
    int gate[2];

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cr_assert_eq(pipe(gate), 0);
    cr_expect_eq(spawn(leaves_its_locks, gate), BX_E_WORKER_FAILED);
    expect_report(1, -1, SIGKILL, 0);
    cr_expect_eq(segments_of(""), 0);
    close(gate[1]);
    cr_expect_gt(wait(NULL), 0);
}

/* How many bytes of anonymous shared memory this process may write to. */
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

/* One writer per page: of the memory that bx_spawn shares a worker may write to its own page only. */
Test(spawn_memory, a_worker_may_write_to_one_page_only)
{
    unsigned long before = writable_shared_bytes();

    cr_assert_gt(before, 0);                    /* the test's own: struct seen */
    cr_expect_eq(spawn(counts_what_it_may_write, NULL), 0);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq((unsigned long)seen->runs[rank], before + (unsigned long)sysconf(_SC_PAGESIZE));
    cr_expect_eq(writable_shared_bytes(), before);
}

static int runs(const struct bx_options *options, void *context)
{
    (void)context;
    seen->runs[options->rank]++;
    return 0;
}

/* Each worker then ends before its function begins; the launcher's sentence says why. */
Test(spawn_memory, that_cannot_be_protected_is_reported_with_the_reason)
{
    cr_assert(refuse(SYS_madvise, EPERM));
    cr_expect_eq(spawn(runs, NULL), BX_E_WORKER_FAILED);
    cr_expect_not_null(strstr(bx_error_text(), " may not protect its memory (mprotect, madvise): Operation not "),
                       "%s", bx_error_text());
    expect_report(seen->report.failed_rank, EXIT_FAILURE, 0, 0);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq(seen->runs[rank], 0);
}

/* A child of a worker behaves as if it started a job of the same name. */
static int forks_another(const struct bx_options *options, void *context)
{
    unsigned long *writable = context;
    static struct bx_job job;
    int status = 0;

    if (options->rank != 0)
        return 0;
    job.world_size = options->world_size;
    snprintf(job.job_name, sizeof(job.job_name), "%s", options->job);
    bxi_spawn_in_job(&job, true);
    pid_t pid = fork();
    if (pid == 0) {
        bxi_spawn_in_job(&job, true);
        _exit(writable_shared_bytes() == *writable && !bxi_spawn_is_worker() ? 0 : 1);
    }
    bxi_spawn_in_job(&job, false);      /* if the child had written too, the count would not be zero at the end */
    if (waitpid(pid, &status, 0) != pid || status != 0)
        return 8;
    return 0;
}

Test(spawn_memory, a_child_of_a_worker_may_not_write_to_the_shared_memory)
{
    unsigned long before = writable_shared_bytes();

    cr_expect_eq(spawn(forks_another, &before), 0);
    expect_report(-1, 0, 0, 0);
}

/* ---- What SIGTERM removes ------------------------------------------------------------------------ */

static int ends_its_child(const struct bx_options *options, void *context)
{
    int status = 0;

    (void)context;
    if (options->rank != 0)
        return 0;
    if (make_names(options) < 0)
        return 9;
    pid_t pid = fork();
    if (pid == 0)
        wait_for_ever();
    kill(pid, SIGTERM);
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM)
        return 8;
    seen->runs[0] = segments_of("");
    return 0;
}

Test(spawn_memory, a_forked_child_that_sigterm_ends_removes_no_names_of_its_worker)
{
    cr_expect_eq(spawn(ends_its_child, NULL), 0);
    cr_expect_eq(seen->runs[0], 2);
}

/* Rank 0 makes two jobs of its own. The launcher knows only the names of its job. */
static int has_two_jobs(const struct bx_options *options, void *context)
{
    static struct bx_job jobs[2];
    char name[BXI_OBJECT_NAME_BYTES], arena_name[BXI_OBJECT_NAME_BYTES];
    int fd;

    (void)context;
    for (int i = 0; options->rank == 0 && i < 2; i++) {
        jobs[i].instance = 1;
        snprintf(jobs[i].job_name, sizeof(jobs[i].job_name), "%s%s", options->job, i == 0 ? "-b" : "-c");
        bxi_object_name(name, (uint32_t)geteuid(), jobs[i].job_name, 1, 0);
        bxi_object_arena_name(arena_name, (uint32_t)geteuid(), jobs[i].job_name, 1, 0);
        bxi_spawn_note_segment(&jobs[i], name, arena_name);
        if (bxi_object_create(name, &fd) < 0 || bxi_object_create(arena_name, &fd) < 0)
            return 9;
    }
    if (options->rank == 0)
        raise(SIGTERM);
    return 0;
}

Test(spawn_memory, sigterm_removes_the_names_of_all_jobs_of_a_worker)
{
    char launched[BXI_NAME_BYTES];

    cr_expect_eq(spawn(has_two_jobs, NULL), BX_E_WORKER_FAILED);
    expect_report(0, -1, SIGTERM, 0);
    memcpy(launched, job_name, sizeof(launched));
    for (char last = 'b'; last <= 'c'; last++) {
        snprintf(job_name, sizeof(job_name), "%.20s-%c", launched, last);
        cr_expect_eq(segments_of(""), 0, "job %s", job_name);
        bxi_object_reap(job_name, 0);
    }
    memcpy(job_name, launched, sizeof(launched));
}
