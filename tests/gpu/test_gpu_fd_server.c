/* SPDX-License-Identifier: MIT */
/*
 * gpu/: the socket from which borrowers get the descriptors of slabs (fd_server.c): questions that are broken off,
 * answers that come late, other users, garbage, and the limits on descriptors.
 */
#include "gpu_fixture.h"
#include "tests/harness/harness.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#define BYTES (2 * GPU_MIB)             /* a slab of its own, also where another has the words */
#define STRANGER 65534                  /* a user that is not this one */
#define SOON_NS UINT64_C(3000000000)    /* less than the time after which a question is given up */
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83                /* asm-generic/socket.h of Linux 6.16 */
#endif

enum { LENT = 1, HELD, KILLED, LAST, READY, FREE };

struct question {                       /* as fd_server.c has them */
    uint32_t slab, reserved;
    uint64_t generation;
};
struct answer {
    struct question to;
    int32_t code;
    uint32_t count;
    uint64_t bytes[BXI_GPU_PARTS];
};

TestSuite(gpu_fd_server, .init = gpu_export_by_default, .timeout = 60);

static struct bxi_gpu_block *lend(unsigned char value)
{
    struct bxi_gpu_block *block = gpu_block(BYTES);

    gpu_lend_ready(block, value);
    return block;
}

/* Lends, until LAST. */
static void lends(void)
{
    struct bxi_gpu_block *block;

    gpu_start_beside(0, 1);
    block = lend(7);
    gpu_store(0, (uint64_t)getpid());
    gpu_post(LENT);
    gpu_end_lending(block, LAST);
}

/* Process 1 waits for the loan of process 0; how many descriptors are open then. */
static int meet_lender(void)
{
    gpu_meet_lender(LENT);
    return open_descriptors();
}

/* Borrows what process 0 lends, and reads it. */
static void read_lent(unsigned char value)
{
    struct bxi_gpu_map *map;
    uint64_t before = bxi_gpu_now_ns();
    uint64_t address = gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);

    GPU_CHECK(bxi_gpu_now_ns() - before < SOON_NS);
    GPU_CHECK(gpu_holds(gpu_lane, address, value, BYTES));
    bxi_gpu_map_put(map);
}

static void borrow_last(void)
{
    read_lent(7);
    gpu_post(LAST);
    gpu_end();
}

static void borrows(void)
{
    meet_lender();
    gpu_await(READY, 1);
    borrow_last();
}

/* ---- The socket, without gpu/ ---------------------------------------------------------------- */

static socklen_t fd_server_of(const uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES], struct sockaddr_un *name)
{
    char text[2 * BXI_GPU_FD_SERVER_BYTES + 1];

    for (int i = 0; i < BXI_GPU_FD_SERVER_BYTES; i++)
        snprintf(text + (size_t)i * 2, 3, "%02x", fd_server[i]);
    *name = (struct sockaddr_un){ .sun_family = AF_UNIX };
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "boxcar-gpu-%s", text));
}

/* A name that another process may take: of this test's processes alone, because tests run beside each other. */
static void false_name(uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES])
{
    pid_t test = getppid();

    memset(fd_server, 0, BXI_GPU_FD_SERVER_BYTES);
    memcpy(fd_server, &test, sizeof(test));
}

/* A socket that has a server's name. */
static int serve_as(const uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES])
{
    struct sockaddr_un name;
    socklen_t bytes = fd_server_of(fd_server, &name);
    int one = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    GPU_EQ(bind(one, (struct sockaddr *)&name, bytes), 0);
    return one;
}

/* The same, with the false name. */
static int serve_as_another(void)
{
    uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES];

    false_name(fd_server);
    return serve_as(fd_server);
}

/* A socket that asks process 0. */
static int asker(bool has_name)
{
    struct sockaddr_un own = { .sun_family = AF_UNIX };
    struct sockaddr_un name;
    socklen_t bytes = fd_server_of(gpu_read_only->region[0].head.fd_server, &name);
    int one = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    GPU_CHECK(one >= 0);
    if (has_name)
        GPU_EQ(bind(one, (struct sockaddr *)&own, sizeof(own.sun_family)), 0);
    GPU_EQ(connect(one, (struct sockaddr *)&name, bytes), 0);
    return one;
}

static struct question right_question(void)
{
    return (struct question){ .slab = gpu_read_only->ref[0].slab, .generation = gpu_read_only->ref[0].generation };
}

/* Sends bytes and, unless it is -1, a descriptor. */
static ssize_t send_with(int socket, const void *data, size_t data_bytes, int fd)
{
    _Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { .iov_base = (void *)(uintptr_t)data, .iov_len = data_bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        *CMSG_FIRSTHDR(&message) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                                     .cmsg_len = CMSG_LEN(sizeof(int)) };
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL);
}

/* Receives a question, to which the answer is then, and connects to its sender. */
static void take_question(int one, struct answer *answer)
{
    struct sockaddr_un name;
    socklen_t bytes = sizeof(name);

    GPU_EQ(recvfrom(one, &answer->to, sizeof(answer->to), 0, (struct sockaddr *)&name, &bytes), sizeof(answer->to));
    GPU_EQ(connect(one, (struct sockaddr *)&name, bytes), 0);
}

/* Sends the question and waits for an answer, but not for long. */
static bool is_answered(const struct question *question)
{
    int one = asker(true);
    struct pollfd entry = { .fd = one, .events = POLLIN };
    bool is;

    GPU_EQ(send(one, question, sizeof(*question), MSG_NOSIGNAL), sizeof(*question));
    is = poll(&entry, 1, 500) == 1;
    close(one);
    return is;
}

/* ---- A question that is broken off ----------------------------------------------------------- */

static void check_nothing_is_held(int fds)
{
    GPU_EQ(open_descriptors(), fds);
    GPU_EQ(gpu_shared->held[1][0].generation[gpu_shared->ref[0].slab], 0);
}

/* Its socket does not answer. Then it retires the slab and lends another in the same row. */
static void lends_another_while_it_is_asked(void)
{
    struct bxi_gpu_head *head = &gpu_shared->region[0].head;
    uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES];
    struct bxi_gpu_block *block;
    uint32_t slab;
    int silent;

    gpu_start_beside(0, 1);
    memcpy(fd_server, head->fd_server, sizeof(fd_server));
    head->fd_server[0] ^= 1;
    silent = serve_as(head->fd_server);
    block = lend(1);
    slab = block->slab;
    gpu_post(LENT);
    gpu_await(HELD, 1);
    memcpy(head->fd_server, fd_server, sizeof(fd_server));
    bxi_gpu_free(block);
    bxi_gpu_trim(gpu_device);
    gpu_poll_until_nothing_is_left();
    block = lend(7);
    GPU_EQ(block->slab, slab);
    gpu_post(LENT);
    gpu_end_lending(block, LAST);
    close(silent);
}

static void asks_for_both(void)
{
    int before = meet_lender();

    gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0]);
    usleep(50000);
    gpu_post(HELD);
    GPU_EQ(gpu_map_end(), -ESTALE);
    GPU_EQ(open_descriptors(), before);
    gpu_await(LENT, 2);
    borrow_last();
}

GPU_PAIR(gpu_fd_server, asks_anew_after_a_question_was_broken_off, 60, GPU_FAKE, lends_another_while_it_is_asked,
         asks_for_both);

/* ---- An answer that comes late --------------------------------------------------------------- */

static void waits_for_the_kill(struct bxi_gpu_job *job)
{
    (void)job;
    gpu_await(KILLED, 1);
}

/* The owner answers while the helper is busy, and dies before the helper has seen the answer. */
static void asks_one_that_dies(void)
{
    struct bxi_gpu_job busy = { .run = waits_for_the_kill };
    struct bxi_gpu_map *map;
    struct pollfd entry = { .events = POLLIN };
    uint64_t address = 0;
    pid_t owner;

    meet_lender();
    owner = gpu_stop_lender();
    gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0]);
    usleep(50000);
    bxi_gpu_helper_post(&gpu->helper, &busy);
    usleep(50000);
    GPU_EQ(harness_kill(owner, SIGCONT), 0);
    entry.fd = gpu_peer[0]->map[gpu_shared->ref[0].slab].ask.socket;
    GPU_EQ(poll(&entry, 1, 10000), 1);
    usleep(250000);                     /* until it is time to ask again */
    gpu_post(HELD);
    GPU_EQ(gpu_map_end(), 0);
    GPU_EQ(bxi_gpu_map_get(gpu_peer[0], &gpu_shared->ref[0], &map, &address), 0);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    GPU_CHECK(gpu_holds(gpu_lane, address, 7, BYTES));
    bxi_gpu_map_put(map);
    gpu_poll_until_nothing_is_left();
    gpu_end();
}

Test(gpu_fd_server, takes_the_answer_of_an_owner_that_has_died_since)
{
    gpu_world(GPU_FAKE);
    gpu_run_killed(lends, asks_one_that_dies, HELD, KILLED);
}

/* It is killed before it answers. */
static void asks_one_that_is_killed(void)
{
    int before = meet_lender();

    (void)gpu_stop_lender();
    gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0]);
    usleep(50000);
    gpu_post(HELD);
    gpu_await(KILLED, 1);
    GPU_EQ(bxi_gpu_peer_died(gpu_peer[0], gpu_shared->region[0].word), 0);
    gpu_poll_until_nothing_is_left();
    GPU_EQ(gpu_map_end(), -EOWNERDEAD);
    check_nothing_is_held(before);
    gpu_end();
}

Test(gpu_fd_server, is_not_asked_any_more_when_its_owner_is_dead)
{
    gpu_world(GPU_FAKE);
    gpu_run_killed(lends, asks_one_that_is_killed, HELD, KILLED);
}

/* What did not get into the owner's full queue is sent again when there is room. */
static void asks_where_the_queue_is_full(void)
{
    char byte = 0;
    uint64_t before;
    pid_t owner;
    int one;

    meet_lender();
    owner = gpu_stop_lender();
    one = asker(false);
    while (send(one, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1)
        ;
    GPU_EQ(errno, EAGAIN);
    gpu_map_begin(gpu_peer[0], &gpu_shared->ref[0]);
    usleep(20000);
    GPU_EQ(harness_kill(owner, SIGCONT), 0);
    before = bxi_gpu_now_ns();
    GPU_EQ(gpu_map_end(), 0);
    GPU_CHECK(bxi_gpu_now_ns() - before < UINT64_C(120000000));
    close(one);
    gpu_post(LAST);
    gpu_end();
}

GPU_PAIR(gpu_fd_server, is_asked_again_at_once_when_its_queue_was_full, 60, GPU_FAKE, lends,
         asks_where_the_queue_is_full);

/* ---- Other users ----------------------------------------------------------------------------- */

static void skip_unless_root(void)
{
    if (geteuid() != 0)
        cr_skip_test("only root can become another user");
}

/* It knows the name, which everyone can read in /proc/net/unix, and guesses the slab. */
static void asks_as_another_user(void)
{
    struct question question;

    gpu_await(LENT, 1);
    question = right_question();
    GPU_CHECK(is_answered(&question));
    GPU_EQ(setresuid(STRANGER, STRANGER, STRANGER), 0);
    GPU_CHECK(!is_answered(&question));
    gpu_post(READY);
}

Test(gpu_fd_server, gives_nothing_to_another_user)
{
    skip_unless_root();
    gpu_three(GPU_FAKE, lends, borrows, asks_as_another_user);
}

/* Takes a name that the owner had, and answers each question with descriptors of its own. */
static void answers_as_another_user(void)
{
    struct answer answer = { .count = 1, .bytes = { 2 * GPU_MIB } };
    int one, null = open("/dev/null", O_RDWR | O_CLOEXEC);

    GPU_EQ(setresuid(STRANGER, STRANGER, STRANGER), 0);
    one = serve_as_another();
    gpu_post(HELD);
    for (int i = 0; i < 2; i++) {
        take_question(one, &answer);
        GPU_EQ(send_with(one, &answer, sizeof(answer), null), sizeof(answer));
        answer.code = -ESTALE;
    }
    gpu_post(READY);
    gpu_await(KILLED, 1);
}

/* Its socket has gone, and another process has taken the name; later it is there again. */
static void lends_without_its_name(void)
{
    struct bxi_gpu_head *head = &gpu_shared->region[0].head;
    uint8_t fd_server[BXI_GPU_FD_SERVER_BYTES];
    struct bxi_gpu_block *block;

    gpu_start_beside(0, 1);
    memcpy(fd_server, head->fd_server, sizeof(fd_server));
    false_name(head->fd_server);
    gpu_await(HELD, 1);
    block = lend(7);
    gpu_post(LENT);
    gpu_await(READY, 1);
    memcpy(head->fd_server, fd_server, sizeof(fd_server));
    gpu_post(KILLED);
    gpu_end_lending(block, LAST);
}

static void borrows_from_the_right_one(void)
{
    int before = meet_lender();

    read_lent(7);
    GPU_EQ(open_descriptors(), before + 2);     /* of the tests' driver: for the map, and for what settling frees */
    gpu_post(LAST);
    gpu_end();
}

Test(gpu_fd_server, takes_no_answer_from_another_user)
{
    skip_unless_root();
    gpu_three(GPU_FAKE, lends_without_its_name, borrows_from_the_right_one, answers_as_another_user);
}

/* As in a program that its user may run as another (set-user-ID): the effective user owns what it makes. */
static void become_effective(void)
{
    GPU_EQ(setresuid(STRANGER, 0, 0), 0);
}

static void lends_as_effective(void)
{
    become_effective();
    lends();
}

static void borrows_as_effective(void)
{
    become_effective();
    gpu_post(READY);
    borrows();
}

GPU_PAIR(gpu_fd_server, goes_by_the_effective_user, 60, (skip_unless_root(), GPU_FAKE), lends_as_effective,
         borrows_as_effective);

/* The real user of such a program is not its effective one. */
Test(gpu_fd_server, gives_nothing_to_the_real_user_of_a_program_that_runs_as_another)
{
    skip_unless_root();
    gpu_three(GPU_FAKE, lends_as_effective, borrows_as_effective, asks_as_another_user);
}

/* ---- Garbage --------------------------------------------------------------------------------- */

static void send_garbage(int socket)
{
    static const unsigned char noise[4096] = { 0xFF };
    struct question wrong = right_question();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (size_t bytes = 0; bytes <= sizeof(noise); bytes = bytes * 2 + 1) {
        (void)send_with(socket, noise, bytes, -1);
        (void)send_with(socket, noise, bytes, null);
    }
    wrong.slab = UINT32_MAX;
    (void)send_with(socket, &wrong, sizeof(wrong), -1);
    wrong.slab = BXI_GPU_SLABS + gpu_read_only->ref[0].slab;
    (void)send_with(socket, &wrong, sizeof(wrong), null);
    wrong = right_question();
    wrong.generation++;
    (void)send_with(socket, &wrong, sizeof(wrong), null);
    close(null);
}

/* Hundreds of sockets, some without a name, which take no answer. */
static void sends_garbage(void)
{
    struct question right;
    int one;

    gpu_await(LENT, 1);
    right = right_question();
    for (int i = 0; i < 300; i++) {
        one = asker(i % 2 == 0);
        send_garbage(one);
        for (int j = 0; j < 20; j++)
            (void)send(one, &right, sizeof(right), MSG_NOSIGNAL);
        close(one);
    }
    GPU_CHECK(is_answered(&right));     /* and all before it have been */
    gpu_post(READY);
}

static void lends_among_garbage(void)
{
    struct bxi_gpu_block *block;
    int before;

    gpu_start_beside(0, 1);
    block = lend(7);
    before = open_descriptors();
    gpu_post(LENT);
    gpu_await(LAST, 1);
    GPU_EQ(open_descriptors(), before);
    bxi_gpu_free(block);
    gpu_end();
}

Test(gpu_fd_server, goes_on_among_garbage) { gpu_three(GPU_FAKE, lends_among_garbage, borrows, sends_garbage); }

/* A connection whose close waits for a minute for its data to be read. -1: there is no such connection here. */
static int lingering(int *other)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof(name);
    static const char noise[65536];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (listener < 0 || bind(listener, (struct sockaddr *)&name, sizeof(name)) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&name, &bytes) < 0 ||
        connect(one, (struct sockaddr *)&name, sizeof(name)) < 0)
        return -1;
    *other = accept(listener, NULL, NULL);
    while (send(one, noise, sizeof(noise), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    if (setsockopt(one, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 60 }, sizeof(struct linger)) < 0)
        return -1;
    close(listener);
    return one;
}

/* Sent while the owner is stopped, so that the owner's thread would be the last to close it. */
static void sends_what_closes_slowly(void)
{
    struct question question;
    int other = -1, one = lingering(&other), fd_server;
    pid_t owner;

    gpu_await(LENT, 1);
    question = right_question();
    owner = gpu_stop_lender();
    fd_server = asker(false);
    GPU_CHECK(one >= 0);
    if (send_with(fd_server, &question, sizeof(question), one) > 0)
        close(one);
    GPU_EQ(harness_kill(owner, SIGCONT), 0);
    usleep(50000);
    gpu_post(READY);
    gpu_await(LAST, 1);
    close(other);                       /* unread data resets the connection: nobody waits */
}

Test(gpu_fd_server, takes_no_descriptors_that_close_slowly)
{
    int other = -1, off = 0, probe = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = lingering(&other);

    if (setsockopt(probe, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)) < 0)
        cr_skip_test("this kernel cannot refuse descriptors (SO_PASSRIGHTS)");
    if (one < 0)
        cr_skip_test("there is no TCP here");
    close(other);
    close(one);
    close(probe);
    gpu_three(GPU_FAKE, lends, borrows, sends_what_closes_slowly);
}

/* ---- Wrong answers --------------------------------------------------------------------------- */

#define WRONG 9

/* The wrong answers, to a question about a slab of 2 MiB: sizes that overflow, other counts, codes and questions. */
static size_t make_wrong(int which, struct answer *answer)
{
    switch (which) {
    case 0: answer->bytes[0] = UINT64_MAX; break;
    case 1: answer->bytes[0] = 1; break;
    case 2: answer->bytes[0] = 0; break;
    case 3: answer->count = 0; break;
    case 4: answer->count = UINT32_MAX; break;
    case 5: answer->to.generation++; break;
    case 6: answer->code = INT32_MIN; break;
    case 7: return sizeof(*answer) - 1;
    default: return 1;
    }
    return sizeof(*answer);
}

/* Of the same user, in the owner's place. */
static void answers_wrongly(void)
{
    int one = serve_as_another();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    gpu_post(HELD);
    for (int i = 0; i < WRONG; i++) {
        struct answer answer = { .count = 1, .bytes = { 2 * GPU_MIB } };

        take_question(one, &answer);
        GPU_CHECK(send_with(one, &answer, make_wrong(i, &answer), null) > 0);
        GPU_EQ(connect(one, &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(sa_family_t)), 0);
        gpu_post(FREE);                 /* until now the kernel refused the next one that asks: EPERM */
    }
    gpu_await(READY, 1);
}

static void refuses_wrong_answers(void)
{
    int before = meet_lender();

    for (int i = 0; i < WRONG; i++) {
        GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EPROTO);
        check_nothing_is_held(before);
        gpu_await(FREE, (uint32_t)i + 1);
    }
    gpu_post(READY);
    gpu_await(KILLED, 1);
    borrow_last();
}

Test(gpu_fd_server, is_not_believed_in_everything)
{
    gpu_three(GPU_FAKE, lends_without_its_name, refuses_wrong_answers, answers_wrongly);
}

/* ---- Too many descriptors -------------------------------------------------------------------- */

/* Leaves room for more descriptors, beside those that are open. */
static void limit_fds(unsigned more)
{
    int lowest;

    GPU_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 4096, 4096 }), 0);
    lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
    GPU_CHECK(lowest >= 0);
    close(lowest);
    GPU_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)lowest + more, 4096 }), 0);
}

static void lends_without_room_for_descriptors(void)
{
    struct bxi_gpu_block *block;
    int before;

    gpu_start_beside(0, 1);
    block = lend(7);
    before = open_descriptors();
    limit_fds(0);
    gpu_post(LENT);
    gpu_await(HELD, 1);
    limit_fds(1000);
    GPU_EQ(open_descriptors(), before);
    gpu_post(READY);
    gpu_end_lending(block, LAST);
}

static void is_told_so(void)
{
    meet_lender();
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EMFILE);
    GPU_CHECK(strstr(gpu_map_text, "EMFILE") != NULL);
    gpu_post(HELD);
    gpu_await(READY, 1);
    borrow_last();
}

GPU_PAIR(gpu_fd_server, says_that_its_owner_has_too_many_descriptors, 60, GPU_FAKE, lends_without_room_for_descriptors,
         is_told_so);

static void borrows_without_room_for_descriptors(void)
{
    int before = meet_lender();

    limit_fds(1);                       /* for the socket */
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EMFILE);
    limit_fds(0);
    GPU_EQ(gpu_try_map(gpu_peer[0], &gpu_shared->ref[0]), -EMFILE);
    limit_fds(1000);
    check_nothing_is_held(before);
    borrow_last();
}

GPU_PAIR(gpu_fd_server, loses_no_descriptor_where_the_borrower_has_too_many, 60, GPU_FAKE, lends,
         borrows_without_room_for_descriptors);
