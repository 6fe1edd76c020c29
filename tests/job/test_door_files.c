/* SPDX-License-Identifier: MIT */
/*
 * lib/job/door_files.c, and what depends on names in lib/job/rejoin.c: names that somebody removed, that another
 * process has, or that the dead left. A name that is gone is no death.
 */
#include "rejoin_fixture.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

TestSuite(door_files, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

/* As a logout does (RemoveIPC). */
static void remove_shm_names(uint64_t instance, int rank)
{
    char name[BXI_OBJECT_NAME_BYTES];

    bxi_object_name(name, (uint32_t)geteuid(), job_name, instance, rank);
    cr_assert_eq(shm_unlink(name), 0);
    bxi_object_arena_name(name, (uint32_t)geteuid(), job_name, instance, rank);
    cr_assert_eq(shm_unlink(name), 0);
}

/* The socket directory with all that it has, as a logout does with XDG_RUNTIME_DIR. */
static void remove_directory(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r '%s/boxcar'", directory);
    cr_assert_eq(system(command), 0);
}

static void sees_all(struct bx_job *job)
{
    for (int rank = 0; rank < bx_job_world_size(job); rank++)
        HARNESS_CHECK(bx_worker_is_alive(job, rank));
    call_all(job);
    harness_post(BACK);
}

/* ---- Names that were removed ------------------------------------------------------------------- */

Test(door_files, a_worker_without_names_in_dev_shm_is_alive)
{
    uint64_t instance = begin_job(3);

    remove_shm_names(instance, 1);
    start_is_killed(2);
    begin_life(3, (struct life){ .rank = 2, .body = sees_all });
    harness_await(BACK, 1);
    cr_expect_eq(socket_files(), 3 + 1, "%d", socket_files());      /* doors of those that live, and rank 0's lock */
    begin_life(4, (struct life){ .rank = 1 });
    start_fails(4, BX_E_RANK_TAKEN, "is taken by worker 'worker1' (pid ");
    end_lives();
}

/* Its name is found in what the other says, its door by the generation that the other knows. */
Test(door_files, a_worker_is_asked_because_another_says_that_it_lives)
{
    uint64_t instance = begin_job(3);
    struct bxi_boot_paths paths;
    char path[BXI_BOOT_PATH_BYTES], elsewhere[BXI_BOOT_PATH_BYTES + 8];

    remove_shm_names(instance, 1);
    start_is_killed(2);
    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    cr_assert_eq(bxi_door_path(path, &paths, job_name, &(struct bxi_door_id){ instance, 1, 1 }), 0);
    snprintf(elsewhere, sizeof(elsewhere), "%s.moved", path);
    cr_assert_eq(rename(path, elsewhere), 0);       /* the worker makes it again */
    begin_life(3, (struct life){ .rank = 2, .body = sees_all });
    harness_await(BACK, 1);
    cr_expect_eq(unlink(elsewhere), 0);
    end_lives();
}

Test(door_files, a_job_without_names_in_dev_shm_is_found)
{
    uint64_t instance = begin_job(3);

    for (int rank = 0; rank < 3; rank++)
        remove_shm_names(instance, rank);
    start_is_killed(0);
    begin_life(3, (struct life){ .rank = 0, .no_rejoin = true });
    start_fails(3, BX_E_JOB_RUNNING, "running without its rank 0: there is its worker of rank 1");
    begin_life(4, (struct life){ .rank = 0, .body = sees_all });
    harness_await(BACK, 1);
    end_lives();
}

Test(door_files, doors_are_made_again)
{
    uint64_t instance = begin_job(3);

    remove_directory();
    start_is_killed(2);
    begin_life(3, (struct life){ .rank = 2, .body = sees_all });
    harness_await(BACK, 1);
    for (int rank = 0; rank < 3; rank++)
        remove_shm_names(instance, rank);
    remove_directory();
    start_is_killed(3);
    begin_life(4, (struct life){ .rank = 2, .body = sees_all });
    harness_await(BACK, 2);
    end_lives();
}

static char elsewhere[96];

HARNESS_BODY(goes_elsewhere)
{
    setenv("XDG_RUNTIME_DIR", elsewhere, 1);
}

Test(door_files, a_joiner_that_finds_no_door_says_where_it_searched)
{
    char path[128];

    begin_job(3);
    start_is_killed(2);
    snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", directory);
    cr_assert_eq(mkdir(elsewhere, 0700), 0);
    begin_life(3, (struct life){ .rank = 2, .setup = goes_elsewhere, .timeout_ns = 300 * HARNESS_MS });
    start_fails(3, BX_E_RANK_MISSING, "nobody listens at ");
    cr_expect_not_null(strstr(starts[3].text, "elsewhere/boxcar/"), "%s", starts[3].text);
    cr_expect_not_null(strstr(starts[3].text, "XDG_RUNTIME_DIR"), "%s", starts[3].text);
    snprintf(path, sizeof(path), "%s/boxcar", elsewhere);
    cr_expect(rmdir(path) == 0 && rmdir(elsewhere) == 0);
    end_lives();
}

/* That a name cannot be opened is no death either: then there would be no job, and a second one would begin. */
Test(door_files, a_process_without_descriptors_does_not_decide_who_lives)
{
    struct bx_options options = { .job = job_name, .rank = 0, .world_size = 2,
                                  .rejoin = 1 };
    struct rlimit limit, none;
    struct bx_job *job = NULL;
    uint64_t instance = begin_job(2);

    cr_assert_eq(bx_job_create(&options, &job), 0);
    cr_assert_eq(bxi_boot_paths(job_name, &job->boot->paths), 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){ 0, limit.rlim_max };
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = bxi_rejoin_check_none(job);
    job->instance = instance;
    bxi_boot_unlink_dead(job, 1);       /* of a generation before: it has a successor */
    job->instance = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_expect_eq(rc, BX_E_DESCRIPTORS, "%s", bx_error_name(rc));
    cr_expect_eq(segments_of(".1"), 1);
    cr_expect_eq(bxi_rejoin_check_none(job), BX_E_JOB_RUNNING);
    bx_job_destroy(job);
    end_lives();
}

/* ---- Names that another process has ------------------------------------------------------------ */

/* A job of two, rank 1 of which is dead, while somebody has the joiners' mutex: its descriptor. */
static int begin_joined(struct bxi_boot_paths *paths)
{
    begin_job(2);
    start_is_killed(1);
    cr_assert_eq(bxi_boot_paths(job_name, paths), 0);
    int fd = bxi_joiners_lock(paths->join);
    cr_assert_geq(fd, 0);
    return fd;
}

Test(door_files, one_joins_at_a_time)
{
    struct bxi_boot_paths paths;
    int fd = begin_joined(&paths);

    cr_expect_eq(bxi_joiners_lock(paths.join), -EAGAIN);
    begin_life(2, (struct life){ .rank = 1, .world_size = 2, .timeout_ns = 300 * HARNESS_MS });
    start_fails(2, BX_E_RANK_MISSING, "another worker is joining job");
    bxi_joiners_unlock(paths.join, fd);
    cr_expect_eq(access(paths.join, F_OK), -1);
    close(open(paths.join, O_CREAT | O_RDWR, 0600));        /* of one that was killed */
    begin_life(3, (struct life){ .rank = 1, .world_size = 2, .body = sees_all });
    harness_await(BACK, 1);
    end_lives();
}

static void *interrupts_soon(void *job)
{
    usleep(50000);
    bx_job_interrupt(job, true);
    return NULL;
}

static void is_interrupted_soon(struct bx_job *job)
{
    pthread_t thread;

    HARNESS_EQ(pthread_create(&thread, NULL, interrupts_soon, job), 0);
    HARNESS_EQ(pthread_detach(thread), 0);
}

Test(door_files, a_joiner_that_waits_for_another_can_be_interrupted)
{
    struct bxi_boot_paths paths;
    int fd = begin_joined(&paths);

    begin_life(2, (struct life){ .rank = 1, .world_size = 2, .setup = is_interrupted_soon });
    start_fails(2, BX_E_INTERRUPTED, "bx_job_interrupt ended the start of worker 'worker1' (rank 1)");
    bxi_joiners_unlock(paths.join, fd);
    end_lives();
}

Test(door_files, the_mutex_is_free_when_its_holder_is_dead_though_a_child_of_it_goes_on)
{
    struct bxi_boot_paths paths;
    int gate[2], runs[2], status = 0;
    pid_t holder;
    char byte;

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cr_assert_eq(pipe(gate), 0);
    cr_assert_eq(pipe(runs), 0);
    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    if ((holder = fork()) == 0) {
        close(gate[1]);
        if (bxi_joiners_lock(paths.join) >= 0 && fork() == 0)
            _exit(write(runs[1], "", 1) == 1 && read(gate[0], &byte, 1) == 0 ? 0 : 1);
        if (read(runs[0], &byte, 1) == 1)       /* the child has returned from fork, and closed what it does not keep */
            raise(SIGKILL);
        _exit(1);
    }
    cr_assert_eq(waitpid(holder, &status, 0), holder);
    cr_expect_eq(access(paths.join, F_OK), 0);
    int fd = bxi_joiners_lock(paths.join);
    cr_expect_geq(fd, 0);
    bxi_joiners_unlock(paths.join, fd);
    close(gate[1]);
    cr_expect_gt(wait(&status), 0);
}

/* The holder removes the name first: a process that waits for the lock of that file must not take it. */
Test(door_files, the_mutex_is_the_file_that_has_the_name)
{
    struct bxi_boot_paths paths;

    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    int first = bxi_joiners_lock(paths.join);
    cr_assert_eq(unlink(paths.join), 0);
    int second = bxi_joiners_lock(paths.join);
    cr_expect_geq(second, 0);
    bxi_joiners_unlock(paths.join, first);
    cr_expect_eq(access(paths.join, F_OK), 0, "the name is the second's");
    bxi_joiners_unlock(paths.join, second);
    cr_expect_eq(access(paths.join, F_OK), -1);
}

static char mutex_path[BXI_BOOT_PATH_BYTES];
static bxi_a32 holders;

static void *takes_the_mutex(void *context)
{
    (void)context;
    for (int i = 0; i < 5000; i++) {
        int fd;

        HARNESS_WAIT_WHILE((fd = bxi_joiners_lock(mutex_path)) == -EAGAIN);
        cr_assert_geq(fd, 0);
        cr_assert_eq(bxi_add(&holders, 1), 0);
        sched_yield();
        bxi_add(&holders, (uint32_t)-1);
        bxi_joiners_unlock(mutex_path, fd);
    }
    return NULL;
}

/* Each holder removes the file that others have open by then. */
Test(door_files, the_mutex_has_one_holder)
{
    struct bxi_boot_paths paths;
    pthread_t thread[4];

    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    memcpy(mutex_path, paths.join, sizeof(mutex_path));
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, takes_the_mutex, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

/* ---- Names that the dead left ------------------------------------------------------------------ */

struct found {
    int count;
    struct bxi_door_id last;
};

static void note_door(void *context, const struct bxi_door_id *id)
{
    struct found *found = context;

    found->count++;
    found->last = *id;
}

/* A socket of that name; it listens if its descriptor is kept. */
static int make_door(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(fd, 1), 0);
    return fd;
}

Test(door_files, a_sweep_removes_what_nobody_has)
{
    static const char *const others[] = { ".0123456789abcdef.0.1.doors", ".0123456789abcdef.128.1.door",
                                          ".0123456789abcdef.0.0.door", ".123456789abcdef.0.1.door",
                                          "x.0123456789abcdef.0.1.door", ".0123456789abcdef.00.1.door" };
    struct bxi_boot_paths paths;
    struct found found = { 0 };
    char dead[BXI_BOOT_PATH_BYTES], live[BXI_BOOT_PATH_BYTES], path[sizeof(others) + 128];

    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    cr_assert_eq(bxi_door_path(dead, &paths, job_name, &(struct bxi_door_id){ 77, 3, 2 }), 0);
    cr_assert_eq(bxi_door_path(live, &paths, job_name, &(struct bxi_door_id){ 77, 4, 1 }), 0);
    close(make_door(dead));
    cr_expect_eq(bxi_doors_find(paths.directory, job_name, note_door, &found), 0);
    cr_expect_eq(found.count, 1);
    cr_expect(found.last.instance == 77 && found.last.rank == 3 && found.last.generation == 2);
    int fd = make_door(live);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        snprintf(path, sizeof(path), "%s/%s%s", paths.directory, job_name, others[i]);
        close(make_door(path));
    }
    int mutex = bxi_joiners_lock(paths.join);
    bxi_bootstrap_sweep(job_name);
    cr_expect_eq(access(dead, F_OK), -1);
    cr_expect_eq(access(live, F_OK), 0);
    cr_expect_eq(access(paths.join, F_OK), 0, "it is held");
    close(mutex);
    close(fd);
    bxi_bootstrap_sweep(job_name);
    cr_expect_eq(access(live, F_OK), -1);
    cr_expect_eq(access(paths.join, F_OK), -1);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        snprintf(path, sizeof(path), "%s/%s%s", paths.directory, job_name, others[i]);
        cr_expect_eq(unlink(path), 0, "%s is no door of this job", path);
    }
}
