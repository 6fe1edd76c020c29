/* SPDX-License-Identifier: MIT */
/*
 * lib/job/bootstrap.c where the place is not as it should be: the socket directory, rights, limits, a full /dev/shm;
 * and the largest number of workers as an ordinary user. Workers are processes where threads would share a limit.
 */
#include "bootstrap_fixture.h"

#include <sys/mount.h>

#define NOBODY 65534

TestSuite(bootstrap_place, .init = place_set_up, .fini = place_tear_down, .timeout = 120);

static void expect_no_directory(const char *part)
{
    char path[108];
    int rc = bxi_socket_dir(path, sizeof(path));

    cr_expect_eq(rc, BX_E_SOCKET_DIR, "%d", rc);
    cr_expect_not_null(strstr(bx_error_text(), part), "'%s' does not say '%s'", bx_error_text(), part);
}

Test(bootstrap_place, uses_only_a_directory_of_its_own)
{
    char path[96], longer[256];

    snprintf(path, sizeof(path), "%s/boxcar", directory);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    expect_no_directory("is not a directory");
    unlink(path);
    cr_assert_eq(symlink("/tmp", path), 0);
    expect_no_directory("is not a directory");
    unlink(path);
    mkdir(path, 0700);
    chmod(path, 0755);
    expect_no_directory("open to other users (mode 0755)");
    chmod(path, 0700);
    if (geteuid() == 0) {
        cr_assert_eq(chown(path, NOBODY, NOBODY), 0);
        expect_no_directory("belongs to user 65534");
        cr_assert_eq(chown(path, 0, 0), 0);
    }
    rmdir(path);
    setenv("XDG_RUNTIME_DIR", "/nowhere/at/all", 1);
    expect_no_directory("/nowhere/at/all/boxcar cannot be made: No such file");
    memset(longer, 'x', sizeof(longer) - 1);
    longer[0] = '/';
    longer[sizeof(longer) - 1] = '\0';
    setenv("XDG_RUNTIME_DIR", longer, 1);
    expect_no_directory("too long");
    unsetenv("XDG_RUNTIME_DIR");
    cr_expect_eq(bxi_socket_dir(path, sizeof(path)), 0);
    cr_expect_eq(strncmp(path, "/tmp/boxcar-", 12), 0);
    setenv("XDG_RUNTIME_DIR", directory, 1);
}

Test(bootstrap_place, says_that_the_path_of_the_socket_is_too_long)
{
    struct worker worker = { 0 };
    char path[160];

    snprintf(path, sizeof(path), "%s/%055d", directory, 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    setenv("XDG_RUNTIME_DIR", path, 1);
    snprintf(job_name, sizeof(job_name), "test-%025ld", (long)getpid());
    begin(&worker, NULL, 0, 2);
    expect_failure(&worker, BX_E_SOCKET_DIR, "too long for a socket's name");
    cr_expect_eq(rmdir(strcat(path, "/boxcar")), 0);
    *strrchr(path, '/') = '\0';
    cr_expect_eq(rmdir(path), 0);
}

static int (*ordinary)(void);

static int run_as_ordinary_user(void)
{
    return geteuid() == 0 && (setgid(NOBODY) < 0 || setuid(NOBODY) < 0) ? 99 : ordinary();
}

/* Runs fn in a child, as an ordinary user if this is root. Returns the exit status, which is fn's result. */
static int as_ordinary_user(int (*fn)(void))
{
    if (geteuid() == 0)
        cr_assert_eq(chown(directory, NOBODY, NOBODY), 0);
    ordinary = fn;
    return in_child(run_as_ordinary_user);
}

static int start_without_permission(void)
{
    struct worker worker = { .job = make_job(NULL, 0, 2), .timeout_ns = SHORT_NS };

    chmod(directory, 0500);
    worker_main(&worker);
    chmod(directory, 0700);
    return worker.rc == BX_E_SOCKET_DIR && strstr(worker.text, "Permission denied") != NULL ? 0 : 1;
}

Test(bootstrap_place, says_that_permission_is_denied)
{
    cr_expect_eq(as_ordinary_user(start_without_permission), 0);
}

/* ---- Another user ------------------------------------------------------------------------------ */

static char logged[BXI_TEXT_BYTES];

static void take_line(int level, const char *text, void *context)
{
    (void)level, (void)context;
    snprintf(logged, sizeof(logged), "%s", text);
}

/* A worker waits alone for less time than it takes until it logs for whom. */
static void expect_alone(int rank, const char *part, bool is_logged)
{
    struct worker worker = { .timeout_ns = SHORT_NS };
    char path[128];

    logged[0] = '\0';
    begin(&worker, NULL, rank, 2);
    end(&worker);
    snprintf(path, sizeof(path), "socket %s/boxcar/%s.sock", directory, job_name);
    cr_expect_not_null(strstr(worker.text, path), "'%s' does not say '%s'", worker.text, path);
    cr_expect_eq(strstr(worker.text, "has a job of that name") != NULL, part[0] != '\0', "%s", worker.text);
    cr_expect_eq(strstr(logged, "has a job of that name") != NULL, is_logged, "%s", logged);
    expect_failure(&worker, BX_E_RANK_MISSING, part);
}

/* Each of two users has workers of one job. They never meet, so each worker says which other user there is. */
Test(bootstrap_place, names_another_user_who_has_a_job_of_that_name)
{
    char path[2][128];
    char both[160];

    if (geteuid() != 0)
        cr_skip_test("needs root, to give a file to another user");
    bx_set_log(take_line, NULL);
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof(path[i]), "/dev/shm/boxcar.%d.%s%s.0123456789abcdef.0", NOBODY, job_name,
                 i == 0 ? ".b" : "");
        int fd = open(path[i], O_CREAT | O_EXCL | O_WRONLY, 0600);
        cr_assert_geq(fd, 0);
        cr_assert_eq(fchown(fd, NOBODY, NOBODY), 0);
        close(fd);
        both[0] = '\0';
        if (i > 0)
            snprintf(both, sizeof(both), "user %d has a job of that name, and all workers of a job must belong to one "
                                         "user (this one to user 0)", NOBODY);
        expect_alone(1, both, i == 1);
        expect_alone(0, both, false);
    }
    cr_assert_eq(chown(path[1], 0, 0), 0);      /* then it is nobody's name but root's */
    expect_alone(1, "", false);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(unlink(path[i]), 0);
    bx_set_log(NULL, NULL);
}

CHILD_TEST(bootstrap_place, names_a_remedy_where_the_file_system_is_read_only, 120, "needs the right to mount")
{
    char path[BXI_BOOT_PATH_BYTES];

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", directory, "tmpfs", 0, "mode=700") < 0)
        return CHILD_SKIPS;
    if (bxi_socket_dir(path, sizeof(path)) < 0 ||
        mount(NULL, directory, NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        return 1;
    if (bxi_socket_dir(path, sizeof(path)) != BX_E_SOCKET_DIR)
        return 2;
    return strstr(bx_error_text(), "Read-only file system; set XDG_RUNTIME_DIR") != NULL &&
           strstr(bx_error_text(), "chmod") == NULL ? 0 : 3;
}

/* All ranks are processes with 1024 open files each, the limit of most systems. Returns how many failed. */
static int start_128_processes(void)
{
    struct rlimit limit = { 1024, 1024 };
    pid_t pid[128];
    int failed = 0, status, gate[2];
    char byte;

    setrlimit(RLIMIT_NOFILE, &limit);
    if (pipe(gate) < 0)
        return 98;
    for (int rank = 0; rank < 128; rank++) {
        pid[rank] = fork();
        if (pid[rank] != 0)
            continue;
        struct worker worker = { .job = make_job(NULL, rank, 128), .timeout_ns = LONG_NS };
        close(gate[1]);
        worker_main(&worker);
        if (worker.rc < 0)
            fprintf(stderr, "rank %d: %s\n", rank, worker.text);
        /* No worker but rank 0 leaves before all have started. */
        if (rank == 0 || worker.rc < 0 || read(gate[0], &byte, 1) == 0)
            free_job(worker.job);
        _exit(worker.rc == 0 ? 0 : 1);
    }
    for (int rank = 0; rank < 128; rank++) {
        if (rank == 1)
            close(gate[1]);         /* rank 0 has ended, so all have started */
        if (waitpid(pid[rank], &status, 0) != pid[rank] || status != 0)
            failed++;
    }
    return failed;
}

Test(bootstrap_place, starts_128_workers_as_an_ordinary_user)
{
    cr_expect_eq(as_ordinary_user(start_128_processes), 0);
}

static int start_with_few_descriptors(void)
{
    syscall(SYS_close_range, 3u, ~0u, 0u);
    struct worker worker = { .job = make_job(NULL, 0, 2), .timeout_ns = LONG_NS };
    struct rlimit limit = { 3 + 3 + 8, 3 + 3 + 8 };

    /* Enough for the lock, the socket, two for the segment and the connection, but not for four more. */
    setrlimit(RLIMIT_NOFILE, &limit);
    worker_main(&worker);
    return worker.rc == BX_E_DESCRIPTORS && strstr(worker.text, "open files") != NULL ? 0 : 1;
}

Test(bootstrap_place, tells_all_workers_that_rank_0_has_too_few_descriptors)
{
    struct worker worker = { 0 };

    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(start_with_few_descriptors());
    begin(&worker, NULL, 1, 2);
    expect_ended_well(pid);
    expect_failure(&worker, BX_E_DESCRIPTORS, "rank 0 of a job of 2");
}

/* The first worker uses all of the space. */
CHILD_TEST(bootstrap_place, tells_all_workers_that_dev_shm_is_full, 120, "needs the right to mount")
{
    struct worker worker[2] = { 0 };

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=96k") < 0)
        return CHILD_SKIPS;
    for (int rank = 0; rank < 2; rank++) {
        worker[rank].timeout_ns = LONG_NS;
        worker[rank].job = make_job(NULL, rank, 2);
        pthread_create(&worker[rank].thread, NULL, worker_main, &worker[rank]);
    }
    for (int rank = 0; rank < 2; rank++)
        if (end(&worker[rank]) != BX_E_NO_SPACE || strstr(worker[rank].text, "of 96 KiB free") == NULL)
            return 1;
    return files_in("/dev/shm", "", "") == 0 ? 0 : 2;
}
