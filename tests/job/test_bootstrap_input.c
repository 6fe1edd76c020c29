/* SPDX-License-Identifier: MIT */
/*
 * lib/job/bootstrap.c and lib/job/bootstrap_root.c against hostile input: messages and descriptors with one error each,
 * too many connections, and a socket directory that other users can reach.
 *
 * A raw worker has a segment, an arena, bells and a pidfd, made by the functions under test, so that the only error is
 * the one that a test adds. The other side must reject it, keep none of its descriptors, and go on.
 */
#include "bootstrap_fixture.h"

#include <sys/time.h>

#define NOBODY 65534

TestSuite(bootstrap_input, .init = place_set_up, .fini = place_tear_down, .timeout = 60);

/* ---- A worker by hand, towards a real rank 0 ---------------------------------------------------- */

struct raw {
    struct bx_job *job;
    int socket;
    int fds[BXI_BOOT_FDS];
};

/* Makes a job with this instance, a segment and an arena. fds gets the descriptors to send. */
static void make_raw(struct raw *raw, const char *name, int rank, int world_size, uint64_t instance)
{
    raw->job = make_job(name, rank, world_size);
    raw->job->instance = instance;
    bxi_boot_fill_self(raw->job);
    cr_assert_eq(bxi_boot_segment(raw->job, &raw->fds[BXI_BOOT_SEGMENT], &raw->fds[BXI_BOOT_ARENA]), 0, "%s",
                 bx_error_text());
    raw->fds[BXI_BOOT_BELL] = raw->job->run->bell_fd[0];
    raw->fds[BXI_BOOT_BELL_LEADER] = raw->job->run->bell_fd[1];
    raw->fds[BXI_BOOT_PIDFD] = raw->job->boot->pidfd;
}

static void free_raw(struct raw *raw)
{
    close(raw->fds[BXI_BOOT_SEGMENT]);
    close(raw->fds[BXI_BOOT_ARENA]);
    free_job(raw->job);
}

static void begin_raw(struct raw *raw, int rank, int world_size)
{
    raw->socket = connect_raw();
    make_raw(raw, "raw", rank, world_size, say_hello(raw->socket, rank, world_size));
}

static void send_raw_join(struct raw *raw)
{
    send_join(raw->socket, raw->job->rank, raw->job->world_size, raw->fds, BXI_BOOT_FDS);
}

static int pipe_end(int which)
{
    int ends[2];

    cr_assert_eq(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    close(ends[1 - which]);
    return ends[which];
}

static int arena_of(size_t bytes)
{
    int fd = memfd_create("boxcar-test-arena", MFD_CLOEXEC);

    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    return fd;
}

Test(bootstrap_input, each_descriptor_of_a_worker_is_checked)
{
    const struct { const char *what; int index; int fd; } wrong[] = {
        { "a bell that blocks", BXI_BOOT_BELL, eventfd(0, EFD_CLOEXEC) },
        { "a leader's bell that blocks", BXI_BOOT_BELL_LEADER, eventfd(0, EFD_CLOEXEC) },
        { "a bell that can only be read", BXI_BOOT_BELL, pipe_end(0) },
        { "a leader's bell that can only be written", BXI_BOOT_BELL_LEADER, pipe_end(1) },
        { "a pidfd that is none", BXI_BOOT_PIDFD, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) },
        { "an arena that is longer", BXI_BOOT_ARENA, arena_of(6 << 20) },
        { "an arena that is shorter", BXI_BOOT_ARENA, arena_of(2 << 20) },
        { "an arena that is a device", BXI_BOOT_ARENA, open("/dev/null", O_RDONLY | O_CLOEXEC) },
        { "a segment that is an arena", BXI_BOOT_SEGMENT, arena_of(4 << 20) },
    };
    struct worker worker[2] = { 0 };
    int before = open_descriptors();

    begin(&worker[0], NULL, 0, 2);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        struct raw raw;

        begin_raw(&raw, 1, 2);
        int right = raw.fds[wrong[i].index];
        raw.fds[wrong[i].index] = wrong[i].fd;
        send_raw_join(&raw);
        expect_hang_up(raw.socket, wrong[i].what);
        raw.fds[wrong[i].index] = right;
        free_raw(&raw);
    }
    for (int count = 0; count <= 3; count += 3) {           /* descriptors that come with the JOIN */
        struct raw raw;

        begin_raw(&raw, 1, 2);
        send_join(raw.socket, 1, 2, raw.fds, count);
        expect_hang_up(raw.socket, "too few descriptors");
        free_raw(&raw);
    }
    begin(&worker[1], NULL, 1, 2);
    all_succeed(worker, 2);
    cr_expect_eq(open_descriptors(), before);
}

/* The segment was made for another rank, or for another instance of the job. */
Test(bootstrap_input, a_segment_of_another_rank_or_instance_is_not_attached)
{
    struct worker worker[3] = { 0 };

    begin(&worker[0], NULL, 0, 3);
    for (int i = 0; i < 2; i++) {
        struct raw raw;

        raw.socket = connect_raw();
        uint64_t instance = say_hello(raw.socket, 1, 3);
        make_raw(&raw, "raw", i == 0 ? 2 : 1, 3, instance + (uint64_t)i * 2);
        send_raw_join(&raw);
        expect_hang_up(raw.socket, i == 0 ? "another rank" : "another instance");
        free_raw(&raw);
    }
    begin(&worker[1], NULL, 1, 3);
    begin(&worker[2], NULL, 2, 3);
    all_succeed(worker, 3);
}

/* The worker says ATTACHED before it got a TABLE. */
Test(bootstrap_input, a_worker_that_says_attached_too_early_ends_the_start)
{
    struct worker worker = { 0 };
    struct raw raw;

    begin(&worker, NULL, 0, 3);
    begin_raw(&raw, 1, 3);
    send_raw_join(&raw);
    send_head(raw.socket, BXI_BOOT_ATTACHED);
    expect_failure(&worker, BX_E_CORRUPT, "worker 'raw1' (rank 1, pid ");
    close(raw.socket);
    free_raw(&raw);
}

Test(bootstrap_input, a_failure_from_a_client_without_a_hello_is_ignored)
{
    struct bxi_boot_fail fail = { .head = bxi_boot_head(BXI_BOOT_FAIL), .code = BX_E_NO_SPACE };
    struct worker worker[2] = { 0 };

    begin(&worker[0], NULL, 0, 2);
    int fd = connect_raw();
    send_raw(fd, &fail, sizeof(fail), NULL, 0);
    expect_hang_up(fd, "a failure of nobody");
    begin(&worker[1], NULL, 1, 2);
    all_succeed(worker, 2);
}

Test(bootstrap_input, a_worker_that_never_joins_is_reported_as_missing)
{
    struct worker worker[3] = { { .timeout_ns = MEDIUM_NS } };

    begin(&worker[0], NULL, 0, 3);
    int fd = connect_raw();
    say_hello(fd, 1, 3);
    begin(&worker[2], NULL, 2, 3);
    expect_failure(&worker[0], BX_E_RANK_MISSING, "rank 1 of 0..2 did not come");
    expect_failure(&worker[2], BX_E_RANK_MISSING, "rank 1 of 0..2 did not come");
    close(fd);
}

/* More silent connections than rank 0 keeps: it closes the oldest, but none that has sent HELLO. */
Test(bootstrap_input, a_flood_of_connections_keeps_no_worker_out)
{
    enum { FLOOD = 400 };
    struct worker worker[3] = { 0 };
    int silent[FLOOD];
    int before = open_descriptors();

    begin(&worker[0], NULL, 0, 3);
    begin(&worker[1], NULL, 1, 3);
    HARNESS_WAIT_WHILE(segments_of("") < 2 * 2);
    for (int i = 0; i < FLOOD; i++)
        silent[i] = connect_raw();
    expect_hang_up(silent[0], "the oldest");
    expect_hang_up(silent[100], "one of the older");
    cr_expect_eq(bxi_poll(silent[FLOOD - 1], POLLIN, 0), 0, "the latest was dropped");
    begin(&worker[2], NULL, 2, 3);
    for (int rank = 0; rank < 3; rank++)
        expect_success(&worker[rank]);
    for (int i = 1; i < FLOOD; i++)
        if (i != 100)
            expect_hang_up(silent[i], "after the start");
    for (int rank = 0; rank < 3; rank++)
        free_job(worker[rank].job);
    cr_expect_eq(open_descriptors(), before);
}

/* ---- A rank 0 by hand, towards a real worker ---------------------------------------------------- */

static struct bxi_boot_entry entry_of(int rank, const char *name)
{
    struct bxi_boot_entry entry = { .rank = rank, .pid = (uint32_t)getpid(), .generation = 1 };

    snprintf(entry.name, sizeof(entry.name), "%s", name);
    return entry;
}

/* Rank 1 of 3 sends JOIN, and a rank 0 by hand answers with these bytes, so often: the worker's start must fail.
 * sets: of descriptors that come with them, rank 0's own or those of the JOIN. */
static void expect_nonsense(const struct bxi_boot_out *answer, int times, int sets, bool returns_join, const char *part)
{
    static struct bxi_boot_packet join;
    struct worker worker = { 0 };
    struct raw boss;
    int fds[2][BXI_BOOT_FDS];
    int before = open_descriptors();

    make_raw(&boss, "boss", 0, 3, INSTANCE);
    begin(&worker, NULL, 1, 3);
    int fd = pose_until_join(&join);
    for (int i = 0; i < 2; i++)
        memcpy(fds[i], returns_join ? join.fds : boss.fds, sizeof(fds[i]));
    for (int i = 0; i < times; i++)
        send_raw(fd, answer->data, answer->bytes, fds[0], sets * BXI_BOOT_FDS);
    bxi_boot_packet_close(&join);
    expect_failure(&worker, -EPROTO, part);
    close(fd);
    free_raw(&boss);
    cr_expect_eq(open_descriptors(), before);
}

/* The answer is a TABLE of so many workers, `times` times. */
static void expect_wrong_table(const struct bxi_boot_entry *entries, int count, int times, const char *part)
{
    struct bxi_boot_table table = { .head = bxi_boot_head(BXI_BOOT_TABLE), .count = (uint32_t)count };
    struct bxi_boot_out answer = { .data = &table, .bytes = sizeof(table) -
                                   (size_t)(BXI_BOOT_TABLE_MAX - count) * sizeof(*entries) };

    for (int i = 0; i < count; i++)
        table.entry[i] = entries[i];
    expect_nonsense(&answer, times, count, count > 0 && entries[0].rank == 1, part);
}

Test(bootstrap_input, a_table_with_the_same_rank_twice_is_rejected)
{
    struct bxi_boot_entry entries[2] = { entry_of(0, "boss"), entry_of(0, "boss") };

    expect_wrong_table(entries, 1, 2, "cannot attach to 'boss' (rank 0)");
    expect_wrong_table(entries, 2, 1, "cannot attach to 'boss' (rank 0)");
}

/* With the descriptors of its own JOIN. */
Test(bootstrap_input, a_table_with_the_receivers_rank_is_rejected)
{
    struct bxi_boot_entry entry = entry_of(1, "worker1");

    expect_wrong_table(&entry, 1, 1, "cannot attach to 'worker1' (rank 1)");
}

Test(bootstrap_input, a_table_with_an_invalid_name_is_rejected)
{
    struct bxi_boot_entry entry = entry_of(0, "../boss");

    expect_wrong_table(&entry, 1, 1, "cannot attach to '../boss' (rank 0)");
    memset(entry.name, 'x', sizeof(entry.name));
    expect_wrong_table(&entry, 1, 1, "cannot attach to 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' (rank 0)");
}

Test(bootstrap_input, a_message_out_of_turn_is_rejected)
{
    struct bxi_boot_head go = bxi_boot_head(BXI_BOOT_GO);
    struct bxi_boot_welcome again = welcome_of("boss");

    expect_nonsense(&(struct bxi_boot_out){ .data = &go, .bytes = sizeof(go) }, 1, 0, false,
                    "sent what no worker sends");
    expect_wrong_table(NULL, 0, 1, "sent what no worker sends");
    expect_nonsense(&(struct bxi_boot_out){ .data = &again, .bytes = sizeof(again) }, 1, 0, false,
                    "sent what no worker sends");
}

/* In a world of 2 the first TABLE is the last one. */
Test(bootstrap_input, a_table_behind_the_last_is_rejected)
{
    struct bxi_boot_table table = { .head = bxi_boot_head(BXI_BOOT_TABLE), .count = 1,
                                    .entry = { entry_of(0, "boss") } };
    const size_t one = offsetof(struct bxi_boot_table, entry) + sizeof(table.entry[0]);
    static struct bxi_boot_packet packet;
    struct worker worker = { 0 };
    struct raw boss;

    make_raw(&boss, "boss", 0, 2, INSTANCE);
    begin(&worker, NULL, 1, 2);
    int fd = pose_until_join(&packet);
    bxi_boot_packet_close(&packet);
    send_raw(fd, &table, one, boss.fds, BXI_BOOT_FDS);
    cr_assert_eq(receive_raw(fd, &packet), 1);
    cr_assert(bxi_boot_packet_is(&packet, BXI_BOOT_ATTACHED, 0));
    send_raw(fd, &table, one, boss.fds, BXI_BOOT_FDS);
    expect_failure(&worker, -EPROTO, "sent what no worker sends");
    close(fd);
    free_raw(&boss);
}

Test(bootstrap_input, a_wrong_welcome_is_rejected)
{
    for (int i = 0; i < 3; i++) {
        struct worker worker = { 0 };

        begin(&worker, NULL, 1, 2);
        int fd = pose_as_root();
        struct bxi_boot_welcome welcome = welcome_of("boss");
        if (i == 0)
            welcome.instance = 0;
        if (i == 1)
            welcome.head.layout++;
        if (i == 2)
            welcome.head.protocol++;
        send_raw(fd, &welcome, sizeof(welcome), NULL, 0);
        expect_failure(&worker, -EPROTO, "sent what no worker sends");
        close(fd);
    }
}

Test(bootstrap_input, an_unterminated_name_of_rank_0_is_cut_off)
{
    static struct bxi_boot_packet join;
    struct worker worker = { 0 };

    begin(&worker, NULL, 1, 2);
    int fd = pose_as_root();
    struct bxi_boot_welcome welcome = welcome_of("boss");
    memset(welcome.name, 'x', sizeof(welcome.name));
    send_raw(fd, &welcome, sizeof(welcome), NULL, 0);
    cr_assert_eq(receive_raw(fd, &join), 1);
    bxi_boot_packet_close(&join);
    close(fd);
    expect_failure(&worker, BX_E_PEER_DEAD, "worker 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' (rank 0");
}

/* Rank 0 answers by a clock that is off by that: a worker in another time namespace gets this. */
static void answer_off_by(int64_t off_ns, const char *part)
{
    struct worker worker = { 0 };
    struct bxi_boot_packet packet;

    begin(&worker, NULL, 1, 2);
    int fd = pose_as_root();
    struct bxi_boot_welcome welcome = welcome_of("boss");
    welcome.now_ns += (uint64_t)off_ns;
    send_raw(fd, &welcome, sizeof(welcome), NULL, 0);
    cr_assert_eq(receive_raw(fd, &packet), 1);
    cr_expect_eq(bxi_boot_packet_failure(&packet), -EINVAL);
    cr_expect_not_null(strstr(bx_error_text(), part), "%s", bx_error_text());
    close(fd);
    expect_failure(&worker, -EINVAL, part);
}

Test(bootstrap_input, a_rank_0_with_another_clock_is_refused_with_a_sentence_that_names_the_clocks)
{
    const int64_t second = 1000000000, ahead = 100000 * second;

    answer_off_by(ahead, "the clock (CLOCK_MONOTONIC) of worker 'boss' (rank 0) is ");
    answer_off_by(ahead, " s ahead of that of worker 'worker1' (rank 1, pid ");
    answer_off_by(-60 * second, " s behind that of worker 'worker1' (rank 1, pid ");
}

Test(bootstrap_input, a_worker_waits_for_a_silent_rank_0_until_its_deadline)
{
    struct worker worker = { .timeout_ns = SHORT_NS };

    begin(&worker, NULL, 1, 2);
    int fd = pose_as_root();
    expect_failure(&worker, BX_E_RANK_MISSING, "did not answer within");
    close(fd);
}

/* ---- Packets ------------------------------------------------------------------------------------ */

static struct bxi_boot_packet packet;

static void make_pair(int pair[2])
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

/* It begins with a TABLE of 32 workers. The byte behind that must not be cut off silently. */
Test(bootstrap_input, a_packet_that_is_too_long_is_refused_with_its_descriptors)
{
    static union { struct bxi_boot_table table; char bytes[sizeof(packet.as) + 1]; } data;
    int pair[2], fds[BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS];

    make_pair(pair);
    for (int i = 0; i < BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS; i++)
        fds[i] = pair[0];
    data.table.head = bxi_boot_head(BXI_BOOT_TABLE);
    data.table.count = BXI_BOOT_TABLE_MAX;
    int before = open_descriptors();
    send_raw(pair[0], &data, sizeof(data.table), fds, BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS);
    cr_expect_eq(receive_raw(pair[1], &packet), 1);
    cr_expect(bxi_boot_packet_is(&packet, BXI_BOOT_TABLE, 0));
    bxi_boot_packet_close(&packet);
    send_raw(pair[0], &data, sizeof(data), fds, BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS);
    cr_expect_eq(receive_raw(pair[1], &packet), -EPROTO);
    cr_expect_eq(packet.fd_count, 0);
    cr_expect_eq(open_descriptors(), before);
    close(pair[0]);
    close(pair[1]);
}

/* Too many descriptors are the sender's error, -EPROTO. Descriptors that were lost because this process may open no
 * more are not: -EMFILE. */
Test(bootstrap_input, lost_descriptors_are_not_the_senders_error_but_too_many_are)
{
    struct bxi_boot_head head = bxi_boot_head(BXI_BOOT_JOIN);
    struct rlimit old, limit;
    int pair[2], fds[BXI_BOOT_FDS + 1];

    make_pair(pair);
    for (int i = 0; i <= BXI_BOOT_FDS; i++)
        fds[i] = pair[0];
    int before = open_descriptors();
    send_raw(pair[0], &head, sizeof(head), fds, BXI_BOOT_FDS + 1);
    cr_expect_eq(bxi_boot_receive(pair[1], &packet, BXI_BOOT_FDS), -EPROTO);
    cr_expect_eq(open_descriptors(), before);
    send_raw(pair[0], &head, sizeof(head), fds, BXI_BOOT_FDS);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    int next = dup(pair[0]);
    close(next);
    limit.rlim_cur = (rlim_t)next + 2;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int rc = bxi_boot_receive(pair[1], &packet, BXI_BOOT_FDS);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_expect_eq(rc, -EMFILE);
    cr_expect_eq(open_descriptors(), before);
    close(pair[0]);
    close(pair[1]);
}

Test(bootstrap_input, a_failure_with_an_impossible_code_is_still_a_failure)
{
    static const int codes[] = { 0, 1, INT32_MAX };

    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        packet.as.fail = (struct bxi_boot_fail){ .head = bxi_boot_head(BXI_BOOT_FAIL), .code = codes[i],
                                                 .text = "the sentence" };
        packet.bytes = sizeof(packet.as.fail);
        cr_expect_eq(bxi_boot_packet_failure(&packet), -EPROTO);
        cr_expect_str_eq(bx_error_text(), "the sentence");
    }
}

static void on_alarm(int signal_number)
{
    (void)signal_number;
}

Test(bootstrap_input, a_signal_ends_no_wait)
{
    struct sigaction action = { .sa_handler = on_alarm };
    struct itimerval timer = { { 0, 2000 }, { 0, 2000 } }, off = { { 0, 0 }, { 0, 0 } };
    uint64_t deadline_ns = bxi_now_ns() + SHORT_NS;
    int pair[2];

    make_pair(pair);
    cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &timer, NULL), 0);
    cr_expect_eq(bxi_poll(pair[0], POLLIN, deadline_ns), 0);
    cr_assert_eq(setitimer(ITIMER_REAL, &off, NULL), 0);
    cr_expect_geq(bxi_now_ns(), deadline_ns);
    close(pair[0]);
    close(pair[1]);
}

static void *read_all(void *fd)
{
    char byte;

    while (recv(*(int *)fd, &byte, 1, 0) > 0)
        ;
    return NULL;
}

Test(bootstrap_input, sending_into_a_full_queue_waits_until_the_deadline)
{
    struct bxi_boot_head head = bxi_boot_head(BXI_BOOT_GO);
    struct bxi_boot_out out = { .data = &head, .bytes = sizeof(head) };
    pthread_t reader;
    int pair[2];

    make_pair(pair);
    while (send(pair[0], &head, sizeof(head), MSG_DONTWAIT) > 0)
        ;
    cr_expect_eq(bxi_boot_send(pair[0], &out, bxi_now_ns() + SHORT_NS / 4), -ETIMEDOUT);
    cr_assert_eq(pthread_create(&reader, NULL, read_all, &pair[1]), 0);
    cr_expect_eq(bxi_boot_send(pair[0], &out, BX_FOREVER), 0);
    close(pair[0]);
    pthread_join(reader, NULL);
    close(pair[1]);
}

/* An ordinary user may not have more descriptors in flight than he may have open. */
CHILD_TEST(bootstrap_input, sending_too_many_descriptors_waits_until_the_deadline, 60, NULL)
{
    struct rlimit limit = { 24, 24 };
    struct bxi_boot_head head = bxi_boot_head(BXI_BOOT_JOIN);
    int pair[2], fds[BXI_BOOT_FDS];
    struct bxi_boot_out out = { .data = &head, .bytes = sizeof(head), .fds = fds, .fd_count = BXI_BOOT_FDS };

    syscall(SYS_close_range, 3u, ~0u, 0u);
    if ((geteuid() == 0 && (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0 || setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 1;
    for (int i = 0; i < BXI_BOOT_FDS; i++)
        fds[i] = pair[0];
    for (int sent = 0; sent < 64; sent++) {
        int rc = bxi_boot_send(pair[0], &out, bxi_now_ns() + SHORT_NS / 4);

        if (rc < 0)
            return rc == -ETIMEDOUT ? 0 : 2;
    }
    return 3;
}

/* ---- The place ---------------------------------------------------------------------------------- */

Test(bootstrap_input, a_directory_that_other_users_have_any_right_to_is_refused)
{
    char path[BXI_BOOT_PATH_BYTES], expected[96];

    snprintf(expected, sizeof(expected), "%s/boxcar", directory);
    cr_assert_eq(mkdir(expected, 0700), 0);
    for (mode_t bit = 1; bit <= 040; bit *= 2) {
        cr_assert_eq(chmod(expected, 0700 | bit), 0);
        cr_expect_eq(bxi_socket_dir(path, sizeof(path)), BX_E_SOCKET_DIR, "mode %o", (unsigned)(0700 | bit));
        cr_expect_not_null(strstr(bx_error_text(), "open to other users"));
    }
    cr_assert_eq(chmod(expected, 0700), 0);
    cr_expect_eq(bxi_socket_dir(path, sizeof(path)), 0);
}

Test(bootstrap_input, a_directory_is_made_with_mode_0700_whatever_the_umask)
{
    char path[BXI_BOOT_PATH_BYTES];
    struct stat status;
    mode_t before = umask(0277);

    int rc = bxi_socket_dir(path, sizeof(path));
    umask(before);
    cr_assert_eq(rc, 0, "%s", bx_error_text());
    cr_assert_eq(stat(path, &status), 0);
    cr_expect_eq(status.st_mode & 07777, 0700);
}

/* Otherwise the file that the link names would be written to. */
Test(bootstrap_input, a_lock_file_that_is_a_link_is_not_followed)
{
    struct worker worker = { .timeout_ns = SHORT_NS };
    char path[128], target[96];

    cr_assert_eq(bxi_socket_dir(path, sizeof(path)), 0);
    snprintf(path, sizeof(path), "%s/boxcar/%s.lock", directory, job_name);
    snprintf(target, sizeof(target), "%s/precious", directory);
    cr_assert_eq(symlink(target, path), 0);
    begin(&worker, NULL, 0, 2);
    expect_failure(&worker, BX_E_SOCKET_DIR, "lock file");
    cr_expect_lt(access(target, F_OK), 0);
    unlink(path);
}

/* The lock file was removed, and another job of that name has made a new one. */
Test(bootstrap_input, a_lock_file_of_another_job_is_not_removed)
{
    struct worker worker[2] = { 0 };
    char path[128];

    begin(&worker[0], NULL, 0, 2);
    begin(&worker[1], NULL, 1, 2);
    expect_success(&worker[0]);
    expect_success(&worker[1]);
    snprintf(path, sizeof(path), "%s/boxcar/%s.lock", directory, job_name);
    cr_assert_eq(unlink(path), 0);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    free_job(worker[0].job);
    free_job(worker[1].job);
    cr_expect_eq(socket_files(), 1);
    unlink(path);
}

/* In a child: makes a socket pair as another user and sends one end to the parent. */
static int make_pair_as_nobody(int to)
{
    struct bxi_boot_head head = bxi_boot_head(BXI_BOOT_GO);
    int pair[2];

    if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0)
        return 1;
    return bxi_boot_send(to, &(struct bxi_boot_out){ &head, sizeof(head), pair, 1 }, BX_FOREVER) == 0 ? 0 : 2;
}

Test(bootstrap_input, a_socket_of_another_users_process_is_recognised)
{
    uint32_t pid = 0;
    int pair[2];

    if (geteuid() != 0)
        cr_skip_test("needs root, to be another user");
    make_pair(pair);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(make_pair_as_nobody(pair[0]));
    expect_ended_well(child);
    cr_assert_eq(bxi_boot_receive(pair[1], &packet, 1), 1);
    cr_expect_not(bxi_boot_is_own(packet.fds[0], &pid));
    cr_expect_eq(pid, (uint32_t)child);
    cr_expect(bxi_boot_is_own(pair[0], &pid));
    cr_expect_eq(pid, (uint32_t)getpid());
    bxi_boot_packet_close(&packet);
    close(pair[0]);
    close(pair[1]);
}
