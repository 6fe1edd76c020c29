/* SPDX-License-Identifier: MIT */
/*
 * lib/job/bootstrap.c and lib/job/bootstrap_root.c: how workers meet, and each error that keeps them from it. Workers
 * are threads here, each with a job made by hand. test_bootstrap_place.c tests errors of the place: the socket
 * directory, limits and rights.
 */
#include "bootstrap_fixture.h"

TestSuite(bootstrap, .init = place_set_up, .fini = place_tear_down, .timeout = 120);

/* ---- Clients and a rank 0 made by hand ---------------------------------------------------------- */

static void expect_fail_packet(int fd, int code)
{
    struct bxi_boot_packet packet;

    cr_expect_eq(receive_raw(fd, &packet), 1);
    cr_expect_eq(bxi_boot_packet_failure(&packet), code);
    close(fd);
}

/* ---- Workers that meet -------------------------------------------------------------------------- */

static void expect_peer(struct bx_job *job, const struct bx_job *other)
{
    struct bxi_peer *peer = job->rpc->peers[other->rank];
    uint64_t rings = 0;

    cr_expect_eq(peer->rank, other->rank);
    cr_expect_str_eq(peer->name, other->name);
    cr_expect_eq(peer->pid, (uint32_t)getpid());
    cr_expect_eq(bxi_load_relaxed(&peer->state), BXI_PEER_ALIVE);
    cr_expect_eq(job->instance, other->instance);
    if (peer->rank == job->rank) {
        cr_expect_eq(peer->pidfd, -1);
        cr_expect_eq(peer->bell.fd[0], -1);
        cr_expect_null(peer->view.control);
        return;
    }
    cr_expect_eq(peer->view.control->header.rank, (uint32_t)other->rank);
    cr_expect_eq(peer->bell.word, &peer->view.control->header.armed);
    for (int i = 0; i < 2; i++) {
        bxi_bell_ring(peer->bell.fd[i]);
        cr_expect_eq(read(other->run->bell_fd[i], &rings, sizeof(rings)), (ssize_t)sizeof(rings));
        cr_expect_eq(fcntl(peer->bell.fd[i], F_GETFD), FD_CLOEXEC);
    }
    cr_expect_eq(syscall(SYS_pidfd_send_signal, peer->pidfd, 0, NULL, 0), 0);
    cr_expect_eq(fcntl(peer->pidfd, F_GETFD), FD_CLOEXEC);
}

Test(bootstrap, eight_workers_meet_and_leave_nothing)
{
    struct worker worker[8] = { 0 };
    int fds = open_descriptors();

    for (int rank = 7; rank >= 0; rank--)       /* rank 0 comes last */
        begin(&worker[rank], NULL, rank, 8);
    for (int rank = 0; rank < 8; rank++)
        expect_success(&worker[rank]);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            expect_peer(worker[i].job, worker[j].job);
    cr_expect_eq(segments_of(""), 2 * 8);       /* each a segment and an arena */
    cr_expect_eq(socket_files(), 1);            /* the job's lock file */
    /* Each worker: a segment and an arena (their reading descriptors are closed), two bells and a pidfd; three of each
     * peer. One more for the lock file. */
    cr_expect_eq(open_descriptors(), fds + 8 * (2 + 3 + 7 * 3) + 1);
    for (int rank = 0; rank < 8; rank++)
        free_job(worker[rank].job);
    cr_expect_eq(open_descriptors(), fds);
}

Test(bootstrap, a_segment_is_passed_read_only_and_without_its_lock)
{
    struct worker worker = { 0 };
    struct bxi_boot_packet packet;
    struct flock lock = { .l_type = F_WRLCK };

    begin(&worker, NULL, 1, 2);
    int fd = pose_as_root();
    struct bxi_boot_welcome welcome = welcome_of("boss");
    send_raw(fd, &welcome, sizeof(welcome), NULL, 0);
    cr_assert_eq(receive_raw(fd, &packet), 1);
    cr_assert_eq(packet.fd_count, BXI_BOOT_FDS);
    cr_expect_eq(fcntl(packet.fds[0], F_GETFL) & O_ACCMODE, O_RDONLY);
    /* It is another open file description, so the owner's lock conflicts with it. */
    cr_expect_eq(fcntl(packet.fds[0], F_OFD_GETLK, &lock), 0);
    cr_expect_eq(lock.l_type, F_WRLCK);
    close(fd);
    expect_failure(&worker, BX_E_PEER_DEAD, "'boss' (rank 0");
    lock = (struct flock){ .l_type = F_WRLCK };
    cr_expect_eq(fcntl(packet.fds[0], F_OFD_GETLK, &lock), 0);
    cr_expect_eq(lock.l_type, F_UNLCK);
    bxi_boot_packet_close(&packet);
}

Test(bootstrap, replaces_what_a_dead_rank_0_left)
{
    struct worker worker[2] = { 0 };
    struct sockaddr_un address;
    char path[128];

    cr_assert_eq(bxi_socket_dir(path, sizeof(path)), 0);
    socket_address(&address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    snprintf(path, sizeof(path), "%s/boxcar/%s.lock", directory, job_name);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    cr_assert_eq(write(fd, "1\n", 2), 2);
    close(fd);
    begin(&worker[1], NULL, 1, 2);
    begin(&worker[0], NULL, 0, 2);
    all_succeed(worker, 2);
}

/* ---- A worker is missing, or is one too many ---------------------------------------------------- */

Test(bootstrap, names_the_missing_ranks_to_all_others)
{
    struct worker worker[8] = { 0 };

    for (int rank = 0; rank < 7; rank++)
        if (rank != 3 && rank != 5)
            begin(&worker[rank], NULL, rank, 8);
    HARNESS_WAIT_WHILE(segments_of("") < 2 * 5);
    /* The shortest timeout of all holds for all. */
    worker[7].timeout_ns = MEDIUM_NS;
    begin(&worker[7], NULL, 7, 8);
    for (int rank = 0; rank < 8; rank++)
        if (rank != 3 && rank != 5)
            expect_failure(&worker[rank], BX_E_RANK_MISSING, "ranks 3, 5 of 0..7 did not come within ");
}

Test(bootstrap, names_a_range_of_missing_ranks)
{
    struct worker worker = { .timeout_ns = SHORT_NS };

    begin(&worker, NULL, 0, 128);
    expect_failure(&worker, BX_E_RANK_MISSING, "ranks 1..127 of 0..127 did not come");
    worker = (struct worker){ .timeout_ns = SHORT_NS };
    begin(&worker, NULL, 0, 2);
    expect_failure(&worker, BX_E_RANK_MISSING, "rank 1 of 0..1 did not come");
}

Test(bootstrap, says_that_rank_0_never_came_and_names_the_socket)
{
    struct worker worker = { .timeout_ns = SHORT_NS };
    char part[160];

    snprintf(part, sizeof(part), "(socket %s/boxcar/%s.sock)", directory, job_name);
    begin(&worker, NULL, 1, 2);
    expect_failure(&worker, BX_E_RANK_MISSING, part);
}

/* A client that was welcomed as that rank of a job of world_size. */
static int join_raw(int rank, int world_size)
{
    int fd = connect_raw();

    say_hello(fd, rank, world_size);
    return fd;
}

Test(bootstrap, tells_both_world_sizes_to_all)
{
    struct worker worker[3] = { 0 };

    begin(&worker[0], NULL, 0, 3);
    int fd = join_raw(1, 3);
    begin(&worker[2], NULL, 2, 4);
    expect_failure(&worker[0], BX_E_WORLD_SIZE, "was started for 4 workers, rank 0 for 3");
    expect_failure(&worker[2], BX_E_WORLD_SIZE, "was started for 4 workers, rank 0 for 3");
    expect_fail_packet(fd, BX_E_WORLD_SIZE);
}

Test(bootstrap, names_both_ranks_of_a_name_taken_twice)
{
    struct worker worker[3] = { 0 };

    begin(&worker[0], NULL, 0, 3);
    int fd = join_raw(1, 3);
    begin(&worker[2], "raw1", 2, 3);
    expect_failure(&worker[0], BX_E_NAME_TAKEN, "by rank 1");
    expect_failure(&worker[2], BX_E_NAME_TAKEN, "by rank 2");
    expect_fail_packet(fd, BX_E_NAME_TAKEN);
}

Test(bootstrap, does_not_let_a_worker_take_the_name_of_rank_0)
{
    struct worker worker[2] = { 0 };

    begin(&worker[0], "agent", 0, 2);
    begin(&worker[1], "agent", 1, 2);
    expect_failure(&worker[0], BX_E_NAME_TAKEN, "'agent'");
    expect_failure(&worker[1], BX_E_NAME_TAKEN, "by rank 0");
}

Test(bootstrap, refuses_a_second_worker_of_a_rank_and_goes_on)
{
    struct worker worker[3] = { 0 }, second = { 0 };
    sem_t ended;

    sem_init(&ended, 0, 0);
    worker[1].ended = second.ended = &ended;
    begin(&worker[0], NULL, 0, 3);
    begin(&worker[1], "first", 1, 3);
    begin(&second, "second", 1, 3);
    while (sem_wait(&ended) < 0)
        ;
    begin(&worker[2], NULL, 2, 3);
    expect_success(&worker[0]);
    expect_success(&worker[2]);
    end(&worker[1]);
    end(&second);
    struct worker *loser = worker[1].rc < 0 ? &worker[1] : &second;
    struct worker *winner = worker[1].rc < 0 ? &second : &worker[1];
    cr_expect_eq(winner->rc, 0);
    cr_expect_eq(loser->rc, BX_E_RANK_TAKEN);
    cr_expect_not_null(strstr(loser->text, "rank 1 of job"));
    cr_expect_not_null(strstr(loser->text, winner->job->name));
    for (int rank = 0; rank < 3; rank++)
        free_job(worker[rank].job);
    free_job(second.job);
}

Test(bootstrap, refuses_ranks_outside_of_the_job_and_rank_0)
{
    struct worker worker[2] = { 0 };
    static const struct { int rank; int code; } wrong[] = {
        { 2, -EINVAL }, { -1, -EINVAL }, { INT32_MAX, -EINVAL }, { INT32_MIN, -EINVAL }, { 0, BX_E_RANK_TAKEN },
    };

    begin(&worker[0], NULL, 0, 2);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        struct bxi_boot_hello hello = hello_of(wrong[i].rank, 2);
        int fd = connect_raw();
        snprintf(hello.name, sizeof(hello.name), "raw");
        send_raw(fd, &hello, sizeof(hello), NULL, 0);
        expect_fail_packet(fd, wrong[i].code);
    }
    begin(&worker[1], NULL, 1, 2);
    all_succeed(worker, 2);
}

Test(bootstrap, says_that_a_job_of_that_name_is_running)
{
    struct worker worker[2] = { 0 }, late = { 0 }, again = { 0 };
    char part[64];

    begin(&worker[0], NULL, 0, 2);
    begin(&worker[1], NULL, 1, 2);
    expect_success(&worker[0]);
    expect_success(&worker[1]);
    snprintf(part, sizeof(part), "its rank 0 is process %ld", (long)getpid());
    begin(&again, NULL, 0, 2);
    expect_failure(&again, BX_E_JOB_RUNNING, part);
    begin(&late, "late", 1, 2);
    expect_failure(&late, BX_E_RANK_TAKEN, "by worker 'worker1' (pid ");
    /* A launcher that sweeps this name must leave the files of the running job. */
    bxi_bootstrap_sweep(job_name);
    cr_expect_eq(socket_files(), 1);
    /* No worker has rank 1 now, so a new one waits: this job may end in time and another begin. */
    free_job(worker[1].job);
    late = (struct worker){ .timeout_ns = SHORT_NS };
    begin(&late, "late", 1, 2);
    expect_failure(&late, BX_E_JOB_RUNNING, part);
    cr_expect_eq(socket_files(), 1);
    free_job(worker[0].job);
    cr_expect_eq(socket_files(), 0);
    worker[0] = worker[1] = (struct worker){ 0 };
    begin(&worker[0], NULL, 0, 2);
    begin(&worker[1], NULL, 1, 2);
    all_succeed(worker, 2);
}

/* Waits until a worker that waits for rank 0 has opened the lock file. */
static void wait_for_lock_file(int files)
{
    HARNESS_WAIT_WHILE(socket_files() < files);
}

Test(bootstrap, tells_waiting_workers_that_rank_0_could_not_open_its_socket)
{
    struct worker worker[3] = { 0 };
    struct sockaddr_un address;
    char path[128];

    cr_assert_eq(bxi_socket_dir(path, sizeof(path)), 0);
    socket_address(&address);
    cr_assert_eq(mkdir(address.sun_path, 0700), 0);     /* where the socket should be */
    begin(&worker[1], NULL, 1, 3);
    wait_for_lock_file(2);
    begin(&worker[0], NULL, 0, 3);
    expect_failure(&worker[0], BX_E_SOCKET_DIR, "cannot be opened");
    expect_failure(&worker[1], BX_E_SOCKET_DIR, "cannot be opened");
    cr_expect_eq(rmdir(address.sun_path), 0);
}

/* ---- A worker that comes late ------------------------------------------------------------------- */

static sem_t logged;
static const char *logged_part;

static void count_log(int level, const char *text, void *context)
{
    (void)context;
    if (level == 1 && strstr(text, logged_part) != NULL)
        sem_post(&logged);
}

static void await_logs(int count)
{
    for (int i = 0; i < count; i++)
        while (sem_wait(&logged) < 0)
            ;
}

Test(bootstrap, logs_in_every_worker_which_ranks_are_missing)
{
    struct worker worker[4] = { 0 };

    sem_init(&logged, 0, 0);
    logged_part = "ranks 1, 3 of 0..3 did not come within ";
    bx_set_log(count_log, NULL);
    begin(&worker[0], NULL, 0, 4);
    begin(&worker[2], NULL, 2, 4);
    await_logs(2);
    begin(&worker[1], NULL, 1, 4);
    begin(&worker[3], NULL, 3, 4);
    all_succeed(worker, 4);
    bx_set_log(NULL, NULL);
}

Test(bootstrap, logs_that_it_waits_for_rank_0)
{
    struct worker worker[2] = { 0 };

    sem_init(&logged, 0, 0);
    logged_part = "worker 'worker1' (rank 1) waits for rank 0 of job ";
    bx_set_log(count_log, NULL);
    begin(&worker[1], NULL, 1, 2);
    await_logs(1);
    begin(&worker[0], NULL, 0, 2);
    all_succeed(worker, 2);
    bx_set_log(NULL, NULL);
}

Test(bootstrap, a_sweeper_that_holds_the_lock_is_not_taken_for_rank_0)
{
    struct worker worker[2] = { 0 };
    struct flock guard = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1 };
    char path[128];

    cr_assert_eq(bxi_socket_dir(path, sizeof(path)), 0);
    snprintf(path, sizeof(path), "%s/boxcar/%s.lock", directory, job_name);
    int fd = open(path, O_CREAT | O_RDWR, 0600);
    cr_assert_eq(fcntl(fd, F_OFD_SETLK, &guard), 0);
    begin(&worker[0], NULL, 0, 2);
    begin(&worker[1], NULL, 1, 2);
    close(fd);
    all_succeed(worker, 2);
}

Test(bootstrap, tells_all_that_versions_differ)
{
    struct worker worker = { 0 };
    struct bxi_boot_hello hello = hello_of(1, 2);

    hello.head.protocol++;
    begin(&worker, NULL, 0, 2);
    int fd = connect_raw();
    send_raw(fd, &hello, sizeof(hello.head) + 8, NULL, 0);     /* another version's HELLO has another size */
    expect_fail_packet(fd, BX_E_VERSION);
    expect_failure(&worker, BX_E_VERSION, "speaks protocol 8");
}

/* ---- A worker that dies or fails ---------------------------------------------------------------- */

Test(bootstrap, names_the_worker_that_died_while_starting)
{
    struct worker worker = { 0 };

    begin(&worker, NULL, 0, 3);
    pid_t pid = fork();
    if (pid == 0) {
        join_raw(2, 3);
        raise(SIGKILL);
    }
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    expect_failure(&worker, BX_E_PEER_DEAD, "worker 'raw2' (rank 2, pid ");
}

Test(bootstrap, passes_the_failure_of_one_worker_to_all)
{
    struct worker worker = { 0 };
    struct bxi_boot_fail fail = { .head = bxi_boot_head(BXI_BOOT_FAIL), .code = BX_E_NO_SPACE };

    begin(&worker, NULL, 0, 3);
    int fd = join_raw(1, 3);
    memset(fail.text, 'x', sizeof(fail.text));          /* not even terminated */
    send_raw(fd, &fail, sizeof(fail), NULL, 0);
    expect_failure(&worker, BX_E_NO_SPACE, "worker 'raw1' (rank 1, pid ");
    close(fd);
}

/* ---- Messages and descriptors that are wrong ---------------------------------------------------- */

Test(bootstrap, drops_clients_that_send_nonsense)
{
    struct worker worker[2] = { 0 };
    unsigned char junk[8192];
    int fds[8];
    int open_before = open_descriptors();

    memset(junk, 0xa5, sizeof(junk));
    for (int i = 0; i < 8; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    begin(&worker[0], NULL, 0, 2);
    int silent = connect_raw();
    close(connect_raw());
    static const size_t sizes[] = { 1, 7, sizeof(struct bxi_boot_head), sizeof(struct bxi_boot_hello), 8192 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        int fd = connect_raw();
        send_raw(fd, junk, sizes[i], NULL, 0);
        expect_hang_up(fd, "");
    }
    for (int kind = 0; kind < 9; kind++) {              /* every message except HELLO, and a short HELLO */
        struct bxi_boot_head head = bxi_boot_head((enum bxi_boot_kind)kind);
        int fd = connect_raw();
        send_raw(fd, &head, sizeof(head), fds, kind == BXI_BOOT_JOIN ? 4 : 0);
        expect_hang_up(fd, "");
    }
    struct bxi_boot_hello hello = hello_of(1, 2);
    memset(hello.name, 'x', sizeof(hello.name));
    int fd = connect_raw();
    send_raw(fd, &hello, sizeof(hello), NULL, 0);
    expect_hang_up(fd, "");
    hello = hello_of(1, 2);
    snprintf(hello.name, sizeof(hello.name), "../x");
    fd = connect_raw();
    send_raw(fd, &hello, sizeof(hello), NULL, 0);
    expect_hang_up(fd, "");
    hello = hello_of(1, 2);
    fd = connect_raw();
    send_raw(fd, &hello, sizeof(hello), fds, 8);        /* HELLO has no descriptors */
    expect_hang_up(fd, "");

    begin(&worker[1], NULL, 1, 2);
    all_succeed(worker, 2);
    expect_hang_up(silent, "");
    cr_expect_eq(open_descriptors(), open_before + 8);
}

Test(bootstrap, rejects_a_table_that_is_wrong)
{
    struct bxi_boot_table table = { .head = bxi_boot_head(BXI_BOOT_TABLE), .count = 1 };
    size_t one = offsetof(struct bxi_boot_table, entry) + sizeof(table.entry[0]);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int fds[BXI_BOOT_FDS] = { null, null, null, null, null };
    static struct bxi_boot_packet join;
    static const struct { uint32_t count; int32_t rank; size_t less; int fd_count; } wrong[] = {
        { 0, 0, 0, 5 }, { 33, 0, 0, 5 }, { UINT32_MAX, 0, 0, 5 }, { 2, 0, 0, 5 }, { 1, 0, 1, 5 },
        { 1, 0, 0, 4 }, { 1, 0, 0, 0 }, { 1, -1, 0, 5 }, { 1, 1, 0, 5 }, { 1, 2, 0, 5 },
        { 1, INT32_MAX, 0, 5 }, { 1, 0, 0, 5 },
    };

    snprintf(table.entry[0].name, BXI_NAME_BYTES, "boss");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        struct worker worker = { 0 };
        int open_before = open_descriptors();
        begin(&worker, NULL, 1, 2);
        int fd = pose_until_join(&join);
        bxi_boot_packet_close(&join);
        table.count = wrong[i].count;
        table.entry[0].rank = wrong[i].rank;
        send_raw(fd, &table, one - wrong[i].less, fds, wrong[i].fd_count);
        expect_failure(&worker, -EPROTO, "");
        close(fd);
        cr_expect_eq(open_descriptors(), open_before);
    }
}

/* Rank 0 has the lock, and was stopped before it wrote its pid. */
Test(bootstrap, names_no_pid_of_a_rank_0_that_has_not_written_it)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
    struct worker again = { 0 }, late = { .timeout_ns = SHORT_NS };
    char path[BXI_BOOT_PATH_BYTES];

    cr_assert_eq(bxi_socket_dir(path, sizeof(path)), 0);
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s.lock", job_name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(fcntl(fd, F_OFD_SETLK, &lock), 0);
    begin(&again, NULL, 0, 2);
    expect_failure(&again, BX_E_JOB_RUNNING, "its rank 0 is a process that has not written its pid yet");
    begin(&late, NULL, 1, 2);
    expect_failure(&late, BX_E_JOB_RUNNING, "its rank 0 is a process that has not written its pid yet");
    unlink(path);
    close(fd);
}
