/* SPDX-License-Identifier: MIT */
/*
 * What test_bootstrap.c, test_bootstrap_input.c and test_bootstrap_place.c share: jobs made by hand, workers that are
 * threads, and the sockets and messages of a worker or a rank 0 that the test plays itself.
 */
#ifndef TESTS_BOOTSTRAP_FIXTURE_H
#define TESTS_BOOTSTRAP_FIXTURE_H

#include "place.h"

#include "job/job.h"

#include <semaphore.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LONG_NS UINT64_C(60000000000)       /* a timeout that passes only if something is broken */
#define SHORT_NS UINT64_C(100000000)        /* a timeout that is to pass */
#define MEDIUM_NS UINT64_C(3000000000)      /* one that is to pass when the others have come */
#define INSTANCE 77                         /* of the job, where the test plays rank 0 */

/* ---- Jobs made by hand, workers that are threads ------------------------------------------------ */

static inline struct bx_job *make_job(const char *name, int rank, int world_size)
{
    struct bxi_whole_job *whole = aligned_alloc(BXI_LINE, sizeof(*whole));
    struct bx_job *job = &whole->job;

    memset(whole, 0, sizeof(*whole));
    bxi_job_link(whole);
    job->rank = rank;
    job->world_size = world_size;
    snprintf(job->job_name, sizeof(job->job_name), "%s", job_name);
    if (name != NULL)
        snprintf(job->name, sizeof(job->name), "%s", name);
    else
        snprintf(job->name, sizeof(job->name), "worker%d", rank);
    job->run->bell_fd[0] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    job->run->bell_fd[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    job->boot->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    job->run->loop_fd = job->run->timer_fd = job->boot->lock_fd = -1;
    bxi_peers_create(job);
    job->options.arena_bytes = 4 << 20;
    return job;
}

static inline void free_job(struct bx_job *job)
{
    bxi_bootstrap_release(job);
    bxi_boot_undo(job);
    close(job->run->bell_fd[0]);
    close(job->run->bell_fd[1]);
    close(job->boot->pidfd);
    for (int rank = 0; rank < job->world_size; rank++)
        free(job->rpc->peers[rank]);
    free(job->lend->peers);
    free(job->rpc->peers);
    free(job);
}

struct worker {
    struct bx_job *job;
    uint64_t timeout_ns;
    sem_t *ended;
    pthread_t thread;
    int rc;
    char text[BXI_TEXT_BYTES];
};

static inline void *worker_main(void *context)
{
    struct worker *worker = context;

    worker->rc = bxi_bootstrap(worker->job, bxi_now_ns() + worker->timeout_ns);
    if (worker->rc < 0)
        snprintf(worker->text, sizeof(worker->text), "%s", bx_error_text());
    if (worker->ended != NULL)
        sem_post(worker->ended);
    return NULL;
}

static inline void begin(struct worker *worker, const char *name, int rank, int world_size)
{
    worker->job = make_job(name, rank, world_size);
    if (worker->timeout_ns == 0)
        worker->timeout_ns = LONG_NS;
    cr_assert_eq(pthread_create(&worker->thread, NULL, worker_main, worker), 0);
}

static inline int end(struct worker *worker)
{
    pthread_join(worker->thread, NULL);
    return worker->rc;
}

static inline void expect_failure(struct worker *worker, int code, const char *part)
{
    cr_expect_eq(end(worker), code, "%s: %s", bx_error_name(worker->rc), worker->text);
    cr_expect_not_null(strstr(worker->text, part), "'%s' does not say '%s'", worker->text, part);
    cr_expect_null(worker->job->segment.control);
    cr_expect_eq(worker->job->boot->lock_fd, -1);
    cr_expect_eq(worker->job->instance, 0);
    for (int i = 0; i < worker->job->world_size; i++)
        cr_expect_null(worker->job->rpc->peers[i]->view.control);
    free_job(worker->job);
}

static inline void expect_success(struct worker *worker)
{
    cr_expect_eq(end(worker), 0, "%s: %s", bx_error_name(worker->rc), worker->text);
}

/* All have started; then nothing is left of them. */
static inline void all_succeed(struct worker *workers, int count)
{
    for (int i = 0; i < count; i++)
        expect_success(&workers[i]);
    for (int i = 0; i < count; i++)
        free_job(workers[i].job);
}

/* ---- Sockets and messages by hand --------------------------------------------------------------- */

static inline void socket_address(struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path, sizeof(address->sun_path), "%s/boxcar/%s.sock", directory, job_name);
}

/* Connects to rank 0, and waits until it listens. */
static inline int connect_raw(void)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    socket_address(&address);
    HARNESS_WAIT_WHILE(connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0);
    return fd;
}

static inline void send_raw(int fd, const void *data, size_t bytes, const int *fds, int fd_count)
{
    cr_assert_eq(bxi_boot_send(fd, &(struct bxi_boot_out){ data, bytes, fds, fd_count }, BX_FOREVER), 0);
}

static inline int receive_raw(int fd, struct bxi_boot_packet *packet)
{
    cr_assert_eq(bxi_poll(fd, POLLIN, BX_FOREVER), 1);
    return bxi_boot_receive(fd, packet, BXI_BOOT_TABLE_MAX * BXI_BOOT_FDS);
}

static inline void expect_hang_up(int fd, const char *what)
{
    struct bxi_boot_packet packet;

    cr_expect_eq(receive_raw(fd, &packet), 0, "%s", what);
    close(fd);
}

static inline struct bxi_boot_hello hello_of(int rank, int world_size)
{
    struct bxi_boot_hello hello = {
        .head = bxi_boot_head(BXI_BOOT_HELLO),
        .generation = 1,
        .left_ns = BX_FOREVER,
        .rank = rank,
        .world_size = world_size,
        .pid = (uint32_t)getpid(),
    };

    snprintf(hello.name, sizeof(hello.name), "raw%d", rank);
    return hello;
}

/* Sends the JOIN of that worker. */
static inline void send_join(int fd, int rank, int world_size, const int *fds, int fd_count)
{
    struct bxi_boot_hello hello = hello_of(rank, world_size);

    hello.head.kind = BXI_BOOT_JOIN;
    send_raw(fd, &hello, sizeof(hello), fds, fd_count);
}

/* Sends HELLO and receives WELCOME. Returns the job's instance. */
static inline uint64_t say_hello(int fd, int rank, int world_size)
{
    struct bxi_boot_hello hello = hello_of(rank, world_size);
    struct bxi_boot_packet packet;

    send_raw(fd, &hello, sizeof(hello), NULL, 0);
    cr_assert_eq(receive_raw(fd, &packet), 1);
    cr_assert(bxi_boot_packet_is(&packet, BXI_BOOT_WELCOME, 0));
    return packet.as.welcome.instance;
}

/* Sends a message that consists of its head alone. */
static inline void send_head(int fd, enum bxi_boot_kind kind)
{
    struct bxi_boot_head head = bxi_boot_head(kind);

    send_raw(fd, &head, sizeof(head), NULL, 0);
}

/* Listens in rank 0's place. Returns the first connection, whose HELLO it has read. */
static inline int pose_as_root(void)
{
    struct sockaddr_un address;
    struct bxi_boot_packet packet;
    char path[96];
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    cr_assert_eq(bxi_socket_dir(path, sizeof(path)), 0);
    socket_address(&address);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    cr_assert_eq(listen(listener, 8), 0);
    int fd = accept(listener, NULL, NULL);
    unlink(address.sun_path);
    close(listener);
    cr_assert_eq(receive_raw(fd, &packet), 1);
    cr_assert(bxi_boot_packet_is(&packet, BXI_BOOT_HELLO, 0));
    return fd;
}

/* An answer to a HELLO that has come. */
static inline struct bxi_boot_welcome welcome_of(const char *name)
{
    struct bxi_boot_welcome welcome = {
        .head = bxi_boot_head(BXI_BOOT_WELCOME),
        .instance = INSTANCE,
        .now_ns = bxi_now_ns(),
    };

    snprintf(welcome.name, sizeof(welcome.name), "%s", name);
    return welcome;
}

/* Plays rank 0 up to the worker's JOIN, which is left in *join. */
static inline int pose_until_join(struct bxi_boot_packet *join)
{
    int fd = pose_as_root();
    struct bxi_boot_welcome welcome = welcome_of("boss");

    send_raw(fd, &welcome, sizeof(welcome), NULL, 0);
    cr_assert_eq(receive_raw(fd, join), 1);
    cr_assert(bxi_boot_packet_is(join, BXI_BOOT_JOIN, BXI_BOOT_FDS));
    return fd;
}

#endif
