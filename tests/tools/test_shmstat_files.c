/* SPDX-License-Identifier: MIT */
/*
 * shmstat and objects in /dev/shm that have a worker's name: files too short and too large, another layout, objects
 * that are no files; and what `reap` removes and leaves. Each run ends with a known status and never by a signal. Noise
 * in a segment is tests/fuzz/.
 */
#include "stat_plant.h"
#include "stat_run.h"
#include "tests/harness/harness.h"

#include "job/job.h"

#include <sys/socket.h>
#include <sys/un.h>

static char directory[64];          /* of sockets, for this process */

static void remove_all(void)
{
    char command[128];

    plant_remove();
    if (directory[0] == '\0')
        return;
    snprintf(command, sizeof(command), "rm -rf '%s'", directory);
    cr_expect_eq(system(command), 0);
}

static void use_own_sockets(void)
{
    strcpy(directory, "/tmp/shmstat-test-XXXXXX");
    cr_assert_not_null(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", directory, 1);
}

static void path_of(char path[128], int rank)
{
    snprintf(path, 128, "/dev/shm%s", plant.segment[rank].shm_name);
}

static bool exists(const char *path)
{
    struct stat status;

    return lstat(path, &status) == 0;
}

/* ---- Files that are none ----------------------------------------------------------------------------- */

/* Runs all subcommands that only read; the allowed exit statuses are bits. */
static void expect_statuses(const char *what, unsigned show, unsigned check)
{
    static const char *const commands[] = { "ls", "ls --json", "show", "show --json", "show --prometheus", "calls",
                                            "calls --json", "rrefs", "rrefs --json", "check", "check --json",
                                            "reap --json" };

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        const char *args = commands[i];
        struct stat_run run = stat_run("%s %s", args, plant.job);
        bool shows = strncmp(args, "show", 4) == 0 || strncmp(args, "calls", 5) == 0 ||
                     strncmp(args, "rrefs", 5) == 0;
        unsigned allowed = shows ? show : strncmp(args, "check", 5) == 0 ? check : 1;

        cr_expect(run.status < 8 && (allowed >> run.status & 1) != 0, "%s: shmstat %s: status %d\n%.2000s", what, args,
                  run.status, run.text);
        cr_expect(strstr(args, "--json") == NULL || run.json != NULL, "%s: shmstat %s: no JSON\n%.2000s", what, args,
                  run.text);
    }
}

Test(shmstat_files, a_control_character_does_not_reach_the_terminal, .timeout = 20, .fini = remove_all)
{
    plant_begin();
    strcpy(plant_control(0)->header.name, "a\033[2Jb\n\"\\");
    strcpy(plant_control(0)->function[0].name, "\033]0;x\007");

    struct stat_run text = stat_run("show %s", plant.job);
    struct stat_run json = stat_run("show %s --json", plant.job);
    struct stat_run lines = stat_run("show %s --prometheus", plant.job);

    cr_expect_null(strchr(text.text, '\033'));
    cr_expect_not_null(strstr(text.text, "worker 0 a?[2Jb?\"\\, pid"));
    cr_expect_str_eq(json_text(json_get(stat_run_worker(&json, 0), "name")), "a?[2Jb?\"\\");
    cr_expect_not_null(strstr(lines.text, "worker=\"a?[2Jb?\\\"\\\\\",rank=\"0\""));
}

static void expect_problem(const char *problem)
{
    struct stat_run run = stat_run("show %s --json", plant.job);
    const char *said = json_text(json_get(stat_run_worker(&run, 0), "problem"));

    cr_expect_not_null(strstr(said, problem), "'%s' does not say '%s'", said, problem);
    cr_expect_eq(json_number(json_get(stat_run_worker(&run, 0), "readable")), 0);
}

Test(shmstat_files, a_file_of_any_size_is_reported_in_a_sentence, .timeout = 60, .fini = remove_all)
{
    static const struct {
        off_t bytes;
        const char *problem;
        unsigned check;
    } sizes[] = {
        { 1, "it begins with 0000000000000042", 1 << 1 },
        { 100, "truncated to 100 bytes", 1 << 1 },
        { 4096, "truncated to 4096 bytes", 1 << 1 },
        { BXI_CONTROL_BYTES, "truncated, or grown", 1 << 1 },
        { (off_t)1 << 42, "truncated, or grown", 1 << 1 },
        { 0, "it is just being made", 1 << 0 },
    };
    char path[128];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        plant_begin();
        path_of(path, 0);
        cr_assert_eq(truncate(path, sizes[i].bytes), 0);
        expect_statuses("a size", 1u << 0, sizes[i].check);
        expect_problem(sizes[i].problem);
        plant_remove();
    }
}

static void expect_other_version(int version)
{
    char problem[64];

    snprintf(problem, sizeof(problem), "it has layout version %d, and this shmstat knows %u", version,
             BXI_LAYOUT_VERSION);
    expect_problem(problem);
    expect_statuses("another layout", 1u << 3, 1u << 3);

    struct stat_run run = stat_run("show %s --json", plant.job);

    cr_expect_eq(json_number(json_get(stat_run_worker(&run, 0), "layout_version")), version);
    cr_expect_eq(json_number(json_get(stat_run_worker(&run, 0), "pid")), getpid());
}

/* As in version 3: rings follow the control pages, and the file has that size. */
Test(shmstat_files, a_worker_of_an_older_layout_is_listed_with_its_version, .timeout = 20, .fini = remove_all)
{
    const uint64_t bytes = 73728 + 2 * 176128;
    char path[128];

    plant_begin();
    for (int rank = 0; rank < 2; rank++) {
        plant_control(rank)->header.layout_version = 3;
        plant_control(rank)->header.segment_bytes = bytes;
        path_of(path, rank);
        cr_assert_eq(truncate(path, (off_t)bytes), 0);
    }
    expect_other_version(3);
}

Test(shmstat_files, an_object_that_is_no_file_is_ignored, .timeout = 20, .fini = remove_all)
{
    char path[128];

    plant_begin();
    path_of(path, 0);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_statuses("a fifo", 1u << 0, 1u << 1);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_statuses("a directory", 1u << 0, 1u << 1);
    cr_assert_eq(rmdir(path), 0);
    cr_assert_eq(symlink("/etc/passwd", path), 0);
    expect_statuses("a link", 1u << 0, 1u << 1);
    cr_assert_eq(unlink(path), 0);
}

/* ---- reap -------------------------------------------------------------------------------------------- */

static struct stat_run reap(const char *flags)
{
    struct stat_run run = stat_run("reap %s %s --json", plant.job, flags);

    cr_assert_not_null(run.json);
    cr_assert_eq(run.status, 0, "%s", run.text);
    return run;
}

static void expect_reaped(const char *flags, int listed, int removed)
{
    struct stat_run run = reap(flags);

    cr_expect_eq(json_number(json_get(run.json, "listed")), listed, "%s", run.text);
    cr_expect_eq(json_number(json_get(run.json, "removed")), removed, "%s", run.text);
}

static void expect_both(bool there)
{
    char path[128];

    for (int rank = 0; rank < 2; rank++) {
        path_of(path, rank);
        cr_expect_eq(exists(path), there);
    }
}

Test(shmstat_files, reap_says_that_there_is_no_such_job, .timeout = 20)
{
    static const char *const flags[] = { "", "--yes", "--json 2>&1 >/dev/null" };

    use_own_sockets();
    for (int i = 0; i < 3; i++) {
        struct stat_run run = stat_run("reap nosuch %s", flags[i]);

        cr_expect_eq(run.status, 3, "%s", run.text);
        cr_expect_eq(strncmp(run.text, "shmstat: there is no job 'nosuch' of this user", 46), 0, "%s", run.text);
    }
}

/* The header has the pid of this process, which is alive: pids do not matter. */
Test(shmstat_files, reap_removes_with_yes_what_a_job_without_a_living_worker_left, .timeout = 20, .fini = remove_all)
{
    use_own_sockets();
    plant_begin();
    cr_assert_eq(plant_control(0)->header.pid, (uint32_t)getpid());
    expect_reaped("--yes", 0, 0);
    plant_kill(1);
    expect_reaped("--yes", 0, 0);
    expect_both(true);
    plant_kill(0);

    struct stat_run run = stat_run("ls %s --json", plant.job);

    cr_expect_str_eq(json_text(json_get(stat_run_job(&run), "state")), "dead");
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "workers_alive")), 0);
    expect_reaped("", 2, 0);
    expect_both(true);
    expect_reaped("--yes", 2, 2);
    expect_both(false);
}

static void make_file(const char *name, const char *suffix, char path[128])
{
    snprintf(path, 128, "%s/boxcar", directory);
    mkdir(path, 0700);
    snprintf(path, 128, "%s/boxcar/%s%s", directory, name, suffix);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
}

Test(shmstat_files, reap_removes_the_socket_of_a_job_whose_lock_is_free, .timeout = 20, .fini = remove_all)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    char socket_path[128], lock_path[128];

    use_own_sockets();
    harness_name(plant.job, sizeof(plant.job), "plant-");
    make_file(plant.job, ".sock", socket_path);
    make_file(plant.job, ".lock", lock_path);
    int fd = open(lock_path, O_RDWR);
    cr_assert_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
    expect_reaped("--yes", 0, 0);
    cr_expect(exists(socket_path) && exists(lock_path));
    close(fd);
    expect_reaped("", 2, 0);
    cr_expect(exists(socket_path) && exists(lock_path));
    expect_reaped("--yes", 2, 2);
    cr_expect(!exists(socket_path) && !exists(lock_path));
    make_file(plant.job, ".sock", socket_path);
    expect_reaped("--yes", 1, 1);
    cr_expect(!exists(socket_path) && !exists(lock_path));
}

Test(shmstat_files, reap_removes_doors_at_which_nobody_listens_and_a_mutex_that_is_free, .timeout = 20,
     .fini = remove_all)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char mutex_path[128];

    use_own_sockets();
    harness_name(plant.job, sizeof(plant.job), "plant-");
    make_file(plant.job, ".join", mutex_path);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.40s/boxcar/%.20s.0123456789abcdef.1.2.door", directory,
             plant.job);
    int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), mutex = bxi_joiners_lock(mutex_path);
    cr_assert_eq(bind(door, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(door, 1), 0);
    expect_reaped("--yes", 0, 0);
    cr_expect(exists(address.sun_path) && exists(mutex_path));
    close(door);
    close(mutex);
    expect_reaped("", 2, 0);
    cr_expect(exists(address.sun_path) && exists(mutex_path));
    expect_reaped("--yes", 2, 2);
    cr_expect(!exists(address.sun_path) && !exists(mutex_path));
}

/* ---- Jobs of one name -------------------------------------------------------------------------------- */

Test(shmstat_files, two_jobs_of_one_name_are_selected_by_their_instance, .timeout = 20, .fini = remove_all)
{
    struct bxi_segment other;

    plant_begin();
    cr_assert_eq(bxi_segment_create(&other, plant.job, "single", 7, 0, 1), 0);

    struct stat_run both = stat_run("ls %s --json", plant.job);
    struct stat_run one = stat_run("show %s.0000000000000007 --json", plant.job);
    struct stat_run lines = stat_run("show %s --prometheus", plant.job);

    bxi_segment_destroy(&other);
    cr_expect_eq(json_get(both.json, "jobs")->count, 2);
    cr_expect_eq(json_get(one.json, "jobs")->count, 1);
    cr_expect_str_eq(json_text(json_get(stat_run_worker(&one, 0), "name")), "single");
    cr_expect_not_null(strstr(lines.text, ",run=\"0000000000000007\"} 1\n"));
    cr_expect_not_null(strstr(lines.text, ",run=\"00c0ffee00c0ffee\"} 1\n"));
}

/* ---- A job that is starting -------------------------------------------------------------------------- */

static _Noreturn void start_by_hand(const char *job_name, int rank)
{
    struct bx_options options = { .job = job_name, .rank = rank, .world_size = 5 };
    struct bx_job *job = NULL;

    if (bx_job_create(&options, &job) == 0)
        bx_job_start(job);
    _exit(0);
}

static void expect_said(const char *subcommand, const char *job_name, const char *part)
{
    struct stat_run run = stat_run("%s %s", subcommand, job_name);

    cr_expect_eq(run.status, 0);
    cr_expect_not_null(strstr(run.text, part), "%s of job %s: '%s' does not say '%s'", subcommand, job_name, run.text,
                       part);
}

Test(shmstat_files, a_starting_job_names_the_ranks_that_have_not_come, .timeout = 60)
{
    char job_name[BXI_NAME_BYTES];
    const int ranks[] = { 0, 2 };
    pid_t pids[2];

    harness_name(job_name, sizeof(job_name), "starting-");
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            start_by_hand(job_name, ranks[i]);
    }
    for (bool both = false; !both;) {
        struct stat_run run = stat_run("ls %s 2>/dev/null", job_name);
        both = strstr(run.text, "starting     2/5") != NULL;
    }
    expect_said("ls", job_name, "waits     ranks 1, 3, 4 have not come\n");
    expect_said("ls --json", job_name, "\"missing_ranks\": [1, 3, 4]");
    expect_said("show", job_name, "it is starting: ranks 1, 3, 4 have not come\n");
    expect_said("why worker2", job_name, "waits in bx_job_start: ranks 1, 3, 4 have not come.\n");
    for (int i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        cr_assert_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
    bxi_object_reap(job_name, 0);
    bxi_bootstrap_sweep(job_name);
}
