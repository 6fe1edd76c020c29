/* SPDX-License-Identifier: MIT */
/*
 * lib/job/door.c: what a door does with connections that are no joiner's, or wrong. The test's process plays them; the
 * workers are processes of their own. test_rejoin.c has what joiners see.
 */
#include "rejoin_fixture.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define NOBODY 65534

TestSuite(door, .init = starts_set_up, .fini = place_tear_down, .timeout = 60);

static struct bxi_boot_packet packet;

static uint64_t instance;

/* Of rank 0. */
static const char *door_path(void)
{
    static char path[BXI_BOOT_PATH_BYTES];
    struct bxi_boot_paths paths;

    cr_assert_eq(bxi_boot_paths(job_name, &paths), 0);
    cr_assert_eq(bxi_door_path(path, &paths, job_name, &(struct bxi_door_id){ instance, 0, 1 }), 0);
    return path;
}

static int knock(void)
{
    uint32_t pid = 0;
    int fd = bxi_boot_connect(door_path(), &pid);

    cr_assert_geq(fd, 0, "%s", strerror(-fd));
    cr_expect_eq(pid, (uint32_t)starts[0].pid);
    return fd;
}

static struct bxi_boot_hello hello_of(enum bxi_boot_kind kind)
{
    struct bxi_boot_hello hello = {
        .head = bxi_boot_head(kind), .instance = instance, .rank = 1, .world_size = 2,
        .rejoin = 1, .pid = (uint32_t)getpid(), .generation = kind == BXI_BOOT_JOIN ? 2 : 0, .name = "worker1",
    };

    return hello;
}

/* The next packet of the door: 1, or 0 if it hangs up. */
static int receive(int fd)
{
    cr_assert_eq(bxi_poll(fd, POLLIN, BX_FOREVER), 1);
    return bxi_boot_receive(fd, &packet, BXI_BOOT_FDS);
}

static void expect_hang_up(const void *data, size_t bytes, const int *fds, int fd_count)
{
    int fd = knock();

    cr_assert_eq(bxi_boot_send(fd, &(struct bxi_boot_out){ data, bytes, fds, fd_count }, BX_FOREVER), 0);
    cr_expect_eq(receive(fd), 0);
    close(fd);
}

static void expect_failure(const void *data, size_t bytes, const int *fds, int code)
{
    int fd = knock();

    cr_assert_eq(bxi_boot_send(fd, &(struct bxi_boot_out){ data, bytes, fds, fds != NULL ? BXI_BOOT_FDS : 0 },
                               BX_FOREVER), 0);
    cr_expect_eq(receive(fd), 1);
    cr_expect_eq(bxi_boot_packet_failure(&packet), code, "%s", bx_error_text());
    close(fd);
}

/* What failed counts for nothing. */
static void is_the_second(struct bx_job *job)
{
    HARNESS_EQ(bx_worker_generation(job, 1), 2);
    call_all(job);
}

/* A process takes rank 1 after all that, and is called. */
static void expect_that_one_can_join(void)
{
    begin_life(2, (struct life){ .rank = 1, .world_size = 2, .body = is_the_second });
    harness_await(STARTED, 3);
    end_lives();
}

Test(door, hangs_up_on_nonsense_and_serves_on)
{
    struct bxi_boot_hello right = { 0 }, wrong;
    char huge[sizeof(packet.as) + 1] = { 0 };

    instance = begin_job(2);
    start_is_killed(1);
    right = hello_of(BXI_BOOT_HELLO);
    expect_hang_up("x", 1, NULL, 0);
    expect_hang_up(huge, sizeof(huge), NULL, 0);
    expect_hang_up(&right, sizeof(right) - 1, NULL, 0);
    expect_hang_up(&right.head, sizeof(right.head), NULL, 0);
    expect_hang_up(&right, sizeof(right), (const int[]){ 0 }, 1);
    wrong = right;
    wrong.instance++;
    expect_hang_up(&wrong, sizeof(wrong), NULL, 0);
    wrong = right;
    memset(wrong.name, 'x', sizeof(wrong.name));
    expect_hang_up(&wrong, sizeof(wrong), NULL, 0);
    wrong = right;
    wrong.head.kind = BXI_BOOT_WELCOME;
    expect_hang_up(&wrong, sizeof(wrong), NULL, 0);
    expect_that_one_can_join();
}

Test(door, refuses_with_a_code)
{
    struct bxi_boot_hello right = { 0 }, wrong;

    instance = begin_job(2);
    right = hello_of(BXI_BOOT_HELLO);
    expect_failure(&right, sizeof(right), NULL, BX_E_RANK_TAKEN);
    start_is_killed(1);
    wrong = right;
    wrong.rank = 0;                         /* its own */
    snprintf(wrong.name, sizeof(wrong.name), "worker0");
    expect_failure(&wrong, sizeof(wrong), NULL, BX_E_RANK_TAKEN);
    for (int i = 0; i < 2; i++) {
        wrong = right;
        wrong.rank = i == 0 ? -1 : 2;
        expect_failure(&wrong, sizeof(wrong), NULL, -EINVAL);
    }
    wrong = right;
    wrong.world_size = 3;
    expect_failure(&wrong, sizeof(wrong), NULL, BX_E_WORLD_SIZE);
    wrong = right;
    wrong.name[0] = 'W';
    expect_failure(&wrong, sizeof(wrong), NULL, -EINVAL);
    wrong = right;
    wrong.head.protocol++;
    expect_failure(&wrong, sizeof(wrong), NULL, BX_E_VERSION);
    wrong = right;
    wrong.head.layout++;
    expect_failure(&wrong, sizeof(wrong.head), NULL, BX_E_VERSION);     /* another version has other sizes */
    expect_that_one_can_join();
}

/* Descriptors that are no worker's. None is kept: the next joiner comes to the same door. */
Test(door, attaches_nothing_that_is_wrong)
{
    struct bxi_boot_hello rejoin = { 0 }, welcomed = { 0 };
    int bell = (int)syscall(SYS_eventfd2, 0, O_NONBLOCK), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);

    instance = begin_job(2);
    start_is_killed(1);
    welcomed = hello_of(BXI_BOOT_HELLO);
    int fd = knock();
    cr_assert_eq(bxi_boot_send(fd, &(struct bxi_boot_out){ &welcomed, sizeof(welcomed), NULL, 0 }, BX_FOREVER), 0);
    cr_expect_eq(receive(fd), 1);           /* the dead worker is closed there now */
    cr_expect(bxi_boot_packet_is(&packet, BXI_BOOT_WELCOME, 0));
    cr_expect_eq(packet.as.welcome.known[0].lives, 1);
    cr_expect_eq(packet.as.welcome.known[1].lives, 0);
    cr_expect_eq(packet.as.welcome.known[1].generation, 1);
    cr_expect_str_eq(packet.as.welcome.known[1].name, "worker1");
    close(fd);
    rejoin = hello_of(BXI_BOOT_JOIN);
    rejoin.generation = 1;
    expect_failure(&rejoin, sizeof(rejoin), (const int[]){ null, null, bell, bell, self }, -EPROTO);
    rejoin.generation = 2;
    expect_failure(&rejoin, sizeof(rejoin), (const int[]){ null, null, bell, bell, null }, -EPROTO);
    rejoin.generation = 3;
    expect_failure(&rejoin, sizeof(rejoin), (const int[]){ null, null, null, bell, self }, -EPROTO);
    rejoin.generation = BXI_GENERATION_MAX;
    expect_failure(&rejoin, sizeof(rejoin), (const int[]){ null, null, bell, bell, self }, -EPROTO);
    rejoin.generation = BXI_GENERATION_MAX + 1;
    expect_failure(&rejoin, sizeof(rejoin), (const int[]){ null, null, bell, bell, self }, -EPROTO);
    close(bell);
    close(null);
    close(self);
    expect_that_one_can_join();
}

/* More of them than the door serves at a time. */
Test(door, silent_connections_keep_nobody_out)
{
    int silent[32];

    instance = begin_job(2);
    start_is_killed(1);
    for (int i = 0; i < 32; i++) {
        uint32_t pid;

        HARNESS_WAIT_WHILE((silent[i] = bxi_boot_connect(door_path(), &pid)) == -EAGAIN);
        cr_expect_geq(silent[i], 0);
    }
    expect_that_one_can_join();
    for (int i = 0; i < 32; i++)
        close(silent[i]);
}

/* 0, -errno. */
static int connect_as_nobody(const char *path)
{
    struct bxi_boot_hello hello = hello_of(BXI_BOOT_HELLO);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    HARNESS_EQ(seteuid(NOBODY), 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -errno;
    send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);          /* it may have hung up already */
    HARNESS_EQ(bxi_poll(fd, POLLIN, BX_FOREVER), 1);
    HARNESS_EQ(bxi_boot_receive(fd, &packet, 0), 0);
    return 0;
}

static void expect_of_nobody(const char *path, int rc)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        _exit(-connect_as_nobody(path));
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, -rc << 8, "%#x", (unsigned)status);
}

Test(door, serves_no_other_user)
{
    char inner[96];

    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user");
    instance = begin_job(2);
    start_is_killed(1);
    const char *path = door_path();
    expect_of_nobody(path, -EACCES);
    /* The directory keeps it out. If somebody opens that, the door hangs up. */
    snprintf(inner, sizeof(inner), "%s/boxcar", directory);
    cr_assert(chmod(path, 0777) == 0 && chmod(directory, 0755) == 0 && chmod(inner, 0755) == 0);
    expect_of_nobody(path, 0);
    cr_assert(chmod(directory, 0700) == 0 && chmod(inner, 0700) == 0);
    expect_that_one_can_join();
}

/* As a sandbox does. Only the tests' own files need the limit again. */
Test(door, ends_though_its_program_may_open_no_file_any_more)
{
    struct bx_options options = { .job = job_name, .world_size = 1, .rejoin = true };
    struct bx_job *job = NULL;
    struct rlimit limit;

    cr_assert_eq(bx_job_create(&options, &job), 0, "%s", bx_error_text());
    cr_assert_eq(bx_job_start(job), 0, "%s", bx_error_text());
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, limit.rlim_max }), 0);
    cr_expect_eq(bx_job_shutdown(job, 0), 0, "%s", bx_error_text());
    setrlimit(RLIMIT_NOFILE, &limit);
    bx_job_destroy(job);
}
