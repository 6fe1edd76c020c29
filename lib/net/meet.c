/* SPDX-License-Identifier: MIT */
/*
 * How the workers of all hosts meet: they connect to rank 0, prove that they know the job's secret, and say who and
 * where they are; when all have come, rank 0 tells everybody about everybody. guests.c has rank 0's side.
 *
 *     worker                                  rank 0
 *                                        <--  NONCE   32 random bytes
 *     PROOF    32 random bytes, HMAC     -->          of "join", its nonce, the own one
 *                                        <--  PROOF   HMAC of "root", the worker's nonce, the own one
 *     CLOCK    (some times)              <->  CLOCK   rank 0's time; the shortest exchange counts
 *     HELLO    struct bxi_hello          -->          who it is, the address of its wire
 *                                        <--  TABLE   struct bxi_hello of all, by rank; when all have come
 *     READY    of each host's root       -->          all workers of its host have attached one another
 *                                        <--  GO      when all hosts are ready
 *
 * The workers of rank 0's host do the same over the same socket. The connections stay open: by them deaths are told
 * (links.c). FAIL, with a sentence, ends the start on all hosts.
 *
 * Who runs it: the thread in bx_job_start, before any other thread of the job exists.
 */
#include "meet.h"

#include "shm/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define RETRY_NS UINT64_C(20000000)
#define ADDRESS_NS UINT64_C(1000000000)         /* for one address of several */
#define TIMEOUT_MS 5000
#define TIMEOUT_MS_MAX 3600000
#define CLOCK_ROUNDS 8
#define SECRET_LEAST 8
#define POLL_NS UINT64_C(20000000)

/* ---- what the environment says ------------------------------------------------------------------- */

static int keep_secret(const char *text, char **secret)
{
    *secret = strdup(text);
    return *secret != NULL ? 0 : bx_fail(-ENOMEM, "no memory for the secret");
}

/* Of a file that nobody else may read. malloc'ed, without the newline at its end. */
static int read_secret(const char *path, char **secret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    char text[1024];
    ssize_t bytes = fd < 0 || fstat(fd, &status) < 0 ? -1 : read(fd, text, sizeof text - 1);
    int rc = bytes < 0 ? -errno : 0;

    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return bx_fail(rc, "BX_SECRET_FILE '%s' cannot be read: %s", path, bx_strerror(rc));
    if (status.st_uid != geteuid() || (status.st_mode & 077) != 0)
        return bx_fail(-EACCES, "BX_SECRET_FILE '%s' can be read by others: chmod 600", path);
    while (bytes > 0 && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
        bytes--;
    text[bytes > 0 ? bytes : 0] = '\0';
    return keep_secret(text, secret);
}

static int secret_from_environment(char **secret)
{
    const char *text = secure_getenv("BX_SECRET"), *path = secure_getenv("BX_SECRET_FILE");
    int rc = 0;

    *secret = NULL;
    if (text != NULL)
        rc = keep_secret(text, secret);
    else if (path != NULL)
        rc = read_secret(path, secret);
    else
        rc = bx_fail(-EACCES, "a job of several hosts needs a secret: BX_SECRET, or BX_SECRET_FILE, a file of mode "
                              "0600; `openssl rand -hex 32` makes one");
    if (rc == 0 && strlen(*secret) < SECRET_LEAST) {
        rc = bx_fail(-EINVAL, "the secret of a job of several hosts has %d characters at least", SECRET_LEAST);
        free(*secret);
        *secret = NULL;
    }
    return rc;
}

/* Its identity, and what people call it. */
static void host_of_this(char host[BXI_HOST_BYTES], char machine[BXI_HOST_BYTES])
{
    const char *name = secure_getenv("BX_HOST");
    char boot[64] = "";
    struct stat shm = { .st_dev = 0 };
    FILE *file;

    memset(host, 0, BXI_HOST_BYTES);
    memset(machine, 0, BXI_HOST_BYTES);
    if (name != NULL && name[0] != '\0') {
        snprintf(host, BXI_HOST_BYTES, "%s", name);
        memcpy(machine, host, BXI_HOST_BYTES);
        return;
    }
    if (gethostname(machine, BXI_HOST_BYTES - 1) < 0 || machine[0] == '\0')
        snprintf(machine, BXI_HOST_BYTES, "?");
    file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        if (fscanf(file, "%63s", boot) != 1)
            boot[0] = '\0';
        fclose(file);
    }
    stat("/dev/shm", &shm);
    snprintf(host, BXI_HOST_BYTES, "%s:%llx:%llx", boot, (unsigned long long)shm.st_dev,
             (unsigned long long)shm.st_ino);
}

/* With BX_HOST several hosts may share a /dev/shm: each has its own names there. */
static int name_host(struct bx_job *job)
{
    const char *host = secure_getenv("BX_HOST");
    char name[2 * BXI_NAME_BYTES];

    if (host == NULL || host[0] == '\0')
        return 0;
    snprintf(name, sizeof name, "%s.%.31s", job->job_name, host);
    if (!bxi_name_is_valid(name))
        return bx_fail(-EINVAL, "BX_HOST='%s': with the job's name, '%s', it is not %d characters of A-Z a-z 0-9 _ - . "
                                "at most", bxi_brief(host).text, job->job_name, BX_NAME_MAX);
    memcpy(job->job_name, name, sizeof job->job_name);
    return 0;
}

static int timeout_from_environment(uint64_t *timeout_ns)
{
    uint64_t timeout_ms = TIMEOUT_MS;
    /* As the other variables of several hosts, not for a program with more rights than its caller. */
    int rc = secure_getenv("BX_NET_TIMEOUT_MS") == NULL
                 ? 0
                 : bxi_number_from_environment("BX_NET_TIMEOUT_MS", 1, TIMEOUT_MS_MAX, &timeout_ms);

    *timeout_ns = timeout_ms * 1000000;
    return rc;
}

/* ---- a worker that is not rank 0 --------------------------------------------------------------------- */

static int link_failed(const struct bxi_meeting *meeting, int rc, const char *what)
{
    if (rc == BX_E_INTERRUPTED)         /* with its sentence */
        return rc;
    if (rc == -EPIPE || rc == -ECONNRESET)
        return bx_fail(BX_E_PEER_DEAD, "rank 0 of job '%s' (BX_ROOT=%s) hung up %s", meeting->job->job_name,
                       meeting->where, what);
    if (rc == -EAGAIN || rc == -ETIMEDOUT)
        return bx_fail(BX_E_RANK_MISSING, "rank 0 of job '%s' (BX_ROOT=%s) did not answer in time %s",
                       meeting->job->job_name, meeting->where, what);
    return bx_fail(rc, "rank 0 of job '%s' (BX_ROOT=%s) cannot be understood %s: %s", meeting->job->job_name,
                   meeting->where, what, bx_strerror(rc));
}

/* Sends, and receives what answers that. Rank 0 may have said why the start fails, and hung up. 0, or a failure with
 * its sentence. */
static int ask(const struct bxi_meeting *meeting, struct bxi_net_message *message, const void *body, void *answer,
               size_t most, const char *what)
{
    int fd = meeting->net->links[0].fd, rc = bxi_net_send(meeting->job, fd, message, body, meeting->deadline_ns);

    message->bytes = (uint32_t)most;
    if (rc == 0 || rc == -EPIPE || rc == -ECONNRESET)
        rc = bxi_net_receive(meeting->job, fd, message, answer, meeting->deadline_ns + BXI_MEET_VERDICT_NS);
    if (rc < 0)
        return link_failed(meeting, rc, what);
    return message->kind == BXI_NET_FAIL ? bxi_meet_failure(message, answer) : 0;
}

/* What the launcher has in place of BX_ROOT and BX_SECRET. Rank 0's addresses are known when it listens. */
static int ask_launcher(struct bxi_meeting *meeting)
{
    char secret[BXI_SECRET_BYTES] = "";
    bool has_own = secure_getenv("BX_SECRET") != NULL || secure_getenv("BX_SECRET_FILE") != NULL;
    int rc = 0;

    bxi_launcher_begin();
    if (meeting->job->rank != 0)
        rc = bxi_launcher_get(meeting->net->where, secret, meeting->deadline_ns);
    else if (!has_own)
        rc = bxi_launcher_secret(secret);
    if (rc < 0 || has_own)
        return rc < 0 ? rc : secret_from_environment(&meeting->secret);
    return keep_secret(secret, &meeting->secret);
}

/* Both ends are this one. Where nobody listens at a port that the kernel hands out, it may give that to the very socket
 * that connects to it, and then TCP connects it. */
static bool is_its_own_peer(int fd)
{
    struct sockaddr_storage own = { 0 }, other = { 0 };
    socklen_t length = sizeof own, others = sizeof other;

    return getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
           getpeername(fd, (struct sockaddr *)&other, &others) == 0 && memcmp(&own, &other, sizeof own) == 0;
}

/* The socket does not block: a host that is silent may take no longer than the start. 0; BX_E_INTERRUPTED, -errno. */
static int connect_until(const struct bx_job *job, int fd, const struct addrinfo *to, uint64_t deadline_ns)
{
    socklen_t length = sizeof(int);
    int error = 0, rc;

    if (connect(fd, to->ai_addr, to->ai_addrlen) < 0) {
        if (errno != EINPROGRESS)
            return -errno;
        if ((rc = bxi_poll_start(job, fd, POLLOUT, deadline_ns)) <= 0)
            return rc < 0 ? rc : -ETIMEDOUT;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
    return error == 0 && is_its_own_peer(fd) ? -ECONNREFUSED : -error;
}

/* One attempt at what may be a name of several addresses. is_one: there is nothing else to try. The descriptor; -errno;
 * -EINVAL, BX_E_INTERRUPTED with its sentence. */
static int try_address(const struct bxi_meeting *meeting, const char *where, bool is_one)
{
    const uint64_t deadline_ns = meeting->deadline_ns;
    struct addrinfo *found = NULL;
    int rc = bxi_meet_resolve(where, false, &found), fd = -ECONNREFUSED;

    if (rc < 0)
        return rc;
    is_one = is_one && found->ai_next == NULL;
    for (struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
        rc = fd < 0 ? -errno
                    : connect_until(meeting->job, fd, at,
                                    is_one ? deadline_ns : bxi_least(deadline_ns, bxi_now_ns() + ADDRESS_NS));
        if (rc == 0)
            break;
        if (rc == -EINVAL)
            bx_fail(rc, "BX_ROOT='%s' is no address to connect to; one of a link has its interface behind it: "
                        "[fe80::1%%eth0]:29400", bxi_brief(where).text);
        if (fd >= 0)
            close(fd);
        fd = rc;
        if (rc == BX_E_INTERRUPTED)
            break;
    }
    freeaddrinfo(found);
    return fd;
}

/* One attempt: of several addresses, some may lead nowhere from here. */
static int try_connect(const struct bxi_meeting *meeting)
{
    char list[BXI_ROOT_BYTES], *rest = list;
    bool is_one = strchr(meeting->where, ',') == NULL;
    int fd = -ECONNREFUSED;

    snprintf(list, sizeof list, "%s", meeting->where);
    for (char *where; fd < 0 && fd != BX_E_INTERRUPTED && (where = strtok_r(rest, ",", &rest)) != NULL;)
        fd = try_address(meeting, where, is_one);
    return fd;
}

static int connect_to_root(struct bxi_meeting *meeting)
{
    for (;;) {
        int fd = try_connect(meeting), rc;

        if (fd >= 0 || fd == -EINVAL || fd == BX_E_INTERRUPTED)
            return fd;
        if (bxi_now_ns() >= meeting->deadline_ns)
            return bx_fail(BX_E_RANK_MISSING, "rank 0 of job '%s' does not listen at BX_ROOT=%s: %s",
                           meeting->job->job_name, meeting->where, bx_strerror(fd));
        if ((rc = bxi_poll_start(meeting->job, -1, 0, bxi_now_ns() + RETRY_NS)) < 0)
            return rc;
    }
}

/* 0; -EAGAIN: rank 0 has dropped it for others, unheard; or a failure with its sentence. */
static int prove(struct bxi_meeting *meeting, int fd)
{
    struct bxi_nonce theirs = { 0 };
    struct bxi_net_message message = { .bytes = sizeof theirs };
    struct bxi_proof proof = { 0 };
    unsigned char own[BXI_NONCE_BYTES], expected[BXI_WIRE_MAC_BYTES], answer[BXI_TEXT_BYTES];
    int rc = bxi_net_receive(meeting->job, fd, &message, &theirs, meeting->deadline_ns);

    if (rc < 0 || message.kind != BXI_NET_NONCE || message.bytes != sizeof theirs)
        return link_failed(meeting, rc < 0 ? rc : -EPROTO, "before it said who it is");
    if (theirs.layout != BXI_LAYOUT_VERSION || theirs.protocol != BXI_NET_PROTOCOL)
        return bx_fail(BX_E_VERSION, "rank 0 speaks protocol %u between hosts with layout %u, this worker %u with %u; "
                                     "all must use the same version", theirs.protocol, theirs.layout, BXI_NET_PROTOCOL,
                       BXI_LAYOUT_VERSION);
    if (getrandom(own, sizeof own, 0) != sizeof own)
        return bx_fail(-errno, "no random bytes: %s", bx_strerror(-errno));
    memcpy(proof.nonce, own, sizeof own);
    if (!bxi_meet_proof(meeting, "join", theirs.bytes, own, proof.mac) ||
        !bxi_meet_proof(meeting, "root", own, theirs.bytes, expected))
        return bx_fail(-ENOSYS, "OpenSSL refuses HMAC-SHA256");
    message = (struct bxi_net_message){ .kind = BXI_NET_PROOF, .bytes = sizeof proof };
    rc = bxi_net_send(meeting->job, fd, &message, &proof, meeting->deadline_ns);
    message.bytes = sizeof answer;
    if (rc == 0)
        rc = bxi_net_receive(meeting->job, fd, &message, answer, meeting->deadline_ns);
    else if (rc == -EPIPE)
        rc = -ECONNRESET;               /* it hung up before it had the proof */
    if (rc == 0 && message.kind == BXI_NET_FAIL && message.bytes > 0)
        return bxi_meet_failure(&message, answer);
    if (rc == -ECONNRESET || (rc == 0 && message.kind == BXI_NET_FAIL && message.value == (uint64_t)(int64_t)-EAGAIN))
        return -EAGAIN;                 /* a reset: there was a proof that it had not read */
    if (rc == 0 && message.kind == BXI_NET_FAIL)
        return bx_fail(-EACCES, "rank 0 of job '%s' (BX_ROOT=%s) refuses this worker: the secrets differ",
                       meeting->job->job_name, meeting->where);
    if (rc < 0 || message.kind != BXI_NET_PROOF || message.bytes != sizeof expected)
        return link_failed(meeting, rc < 0 ? rc : -EPROTO, "when it was asked for its proof");
    if (!bxi_meet_equal(answer, expected))
        return bx_fail(-EACCES, "who listens at BX_ROOT=%s does not know the secret of job '%s'", meeting->where,
                       meeting->job->job_name);
    return 0;
}

/* own time = rank 0's + *clock_ns, as exactly as half of the shortest exchange. */
static int measure_clock(struct bxi_meeting *meeting, int64_t *clock_ns)
{
    const char *what = "when it was asked for the time";
    uint64_t shortest_ns = BX_FOREVER;
    char text[BXI_TEXT_BYTES];

    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        struct bxi_net_message message = { .kind = BXI_NET_CLOCK };
        uint64_t before_ns = bxi_now_ns(), took_ns;
        int rc = ask(meeting, &message, NULL, text, sizeof text, what);

        if (rc < 0 || message.kind != BXI_NET_CLOCK)
            return rc < 0 ? rc : link_failed(meeting, -EPROTO, what);
        took_ns = bxi_now_ns() - before_ns;
        if (took_ns >= shortest_ns)
            continue;
        shortest_ns = took_ns;
        *clock_ns = (int64_t)(before_ns + took_ns / 2 - message.value);
    }
    return 0;
}

/* Says who this worker is, and waits for the table. */
static int say_hello(struct bxi_meeting *meeting)
{
    struct bxi_net_message message = { .kind = BXI_NET_HELLO, .bytes = bxi_hello_bytes(meeting->self) };
    unsigned char *body = malloc(BXI_NET_MESSAGE_MAX);
    int rc;

    if (body == NULL)
        return bx_fail(-ENOMEM, "no memory for the table of workers");
    rc = ask(meeting, &message, meeting->self, body, BXI_NET_MESSAGE_MAX, "before all workers had come");
    if (rc == 0 && message.kind != BXI_NET_TABLE)
        rc = link_failed(meeting, -EPROTO, "when it was to tell who has come");
    if (rc == 0)
        rc = bxi_meet_take_table(meeting, message.value, body, message.bytes);
    free(body);
    return rc;
}

/* Connects, and proves that this worker belongs to the job. The descriptor, or a failure with its sentence. */
static int come_to_root(struct bxi_meeting *meeting)
{
    int fd, rc;

    for (;;) {
        fd = connect_to_root(meeting);
        if (fd < 0)
            return fd;
        bxi_meet_keep(fd, meeting->net->timeout_ns);
        rc = prove(meeting, fd);
        if (rc == 0)
            return fd;
        close(fd);
        if (rc != -EAGAIN)
            return rc;
        if (bxi_now_ns() >= meeting->deadline_ns)
            return bx_fail(BX_E_RANK_MISSING, "rank 0 of job '%s' (BX_ROOT=%s) has had no time for this worker: too "
                                              "many others knock", meeting->job->job_name, meeting->where);
        if ((rc = bxi_poll_start(meeting->job, -1, 0, bxi_now_ns() + RETRY_NS)) < 0)
            return rc;
    }
}

/* For links from when rank 0 is gone: at the address by which rank 0 is reached, and a port that the kernel
 * chooses. */
static int listen_for_hub(struct bxi_meeting *meeting)
{
    struct sockaddr_in6 *own = &meeting->self->listens;
    struct sockaddr *address = (struct sockaddr *)own;
    socklen_t length = sizeof *own;
    int fd = -1;

    if (getsockname(meeting->net->links[0].fd, address, &length) == 0) {
        own->sin6_port = 0;             /* at the same place in a struct sockaddr_in */
        fd = BXI_UNSHARED(socket(own->sin6_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        meeting->net->listen_fd = fd;   /* in a child of a fork it would take connections that nobody reads */
    }
    if (fd < 0 || bind(fd, address, length) < 0 || listen(fd, BXI_WORKERS_MAX) < 0 ||
        getsockname(fd, address, &length) < 0)
        return bx_fail(-errno, "this worker cannot listen for other hosts: %s", bx_strerror(-errno));
    return 0;
}

static int meet_root(struct bxi_meeting *meeting)
{
    int fd = come_to_root(meeting), rc;

    if (fd < 0)
        return fd;
    meeting->net->links[0].fd = fd;
    if ((rc = listen_for_hub(meeting)) < 0 || (rc = measure_clock(meeting, &meeting->self->clock_ns)) < 0)
        return rc;
    return say_hello(meeting);
}

/* ---- all -------------------------------------------------------------------------------------------- */

static int describe_self(struct bxi_meeting *meeting)
{
    struct bx_job *job = meeting->job;
    struct bxi_hello *self = meeting->self;
    size_t bytes = 0;
    int rc = meeting->net->ops->address(meeting->net->wire, self->address, &bytes);

    if (rc < 0)
        return bx_fail(rc, "UCX gives no address for this worker: %s", bx_strerror(rc));
    self->rank = job->rank;
    self->world_size = job->world_size;
    self->pid = (uint32_t)getpid();
    self->address_bytes = (uint32_t)bytes;
    bxi_lock(&job->run->lock);
    self->function_count = bxi_functions_copy(job, (struct bxi_function *)(void *)((unsigned char *)self +
                                                                                  bxi_hello_functions(self)));
    bxi_unlock(&job->run->lock);
    self->arena_bytes = bxi_arena_round(job->options.arena_bytes);
    memcpy(self->name, job->name, sizeof self->name);
    host_of_this(self->host, self->machine);
    return 0;
}

static int open_wire(struct bx_job *job, struct bxi_net *net)
{
    const struct bxi_wire_events events = { bxi_in_arrived, bxi_twin_lost, job };
    char why[256] = "";
    int rc = bxi_wire_load(&net->ops);

    if (rc < 0)
        return rc;
    rc = net->ops->open(&events, &net->wire, why, sizeof why);
    return rc < 0 ? bx_fail(rc, "UCX cannot be opened: %s; see UCX_TLS and UCX_NET_DEVICES", why) : 0;
}

static struct bxi_net *make_net(void)
{
    struct bxi_net *net = calloc(1, sizeof *net);

    if (net == NULL)
        return NULL;
    net->epoll_fd = net->stop_fd = net->listen_fd = -1;
    for (int i = 0; i < BXI_LINKS_MAX; i++)
        net->links[i].fd = -1;
    for (int i = 0; i < BXI_KNOCKING; i++)
        net->knocking[i] = -1;
    return net;
}

int bxi_net_meet(struct bx_job *job, uint64_t deadline_ns)
{
    const char *root = secure_getenv("BX_ROOT"), *launched = bxi_launcher_job();
    struct bxi_meeting meeting = { .job = job, .deadline_ns = deadline_ns };
    int rc;

    meeting.by_launcher = launched != NULL && strcmp(job->job_name, launched) == 0 && bxi_launcher_has_hosts();
    if ((root == NULL || root[0] == '\0') && !meeting.by_launcher)
        return 0;
    if (job->options.rejoin)
        return bx_fail(-ENOTSUP, "options.rejoin (BX_REJOIN) is not for jobs of several hosts (BX_ROOT) yet");
    meeting.net = job->net = make_net();
    meeting.self = calloc(1, sizeof *meeting.self);
    if (job->net == NULL || meeting.self == NULL) {
        rc = bx_fail(-ENOMEM, "no memory for a job of several hosts");
        goto end;
    }
    meeting.where = job->net->where;
    snprintf(job->net->where, sizeof job->net->where, "%s", meeting.by_launcher ? "" : root);
    bxi_meet_name_own(job->net->where);
    memcpy(meeting.self->job, job->job_name, sizeof meeting.self->job);
    rc = timeout_from_environment(&job->net->timeout_ns);
    if (rc >= 0)
        rc = meeting.by_launcher ? ask_launcher(&meeting) : secret_from_environment(&meeting.secret);
    if (rc == 0 && (rc = name_host(job)) == 0 && (rc = open_wire(job, job->net)) == 0 &&
        (rc = describe_self(&meeting)) == 0)
        rc = job->rank == 0 ? bxi_meet_guests(&meeting) : meet_root(&meeting);
    if (rc == 0)
        rc = bxi_links_start(job);
    if (rc < 0)
        bxi_net_fail(job, rc);

end:
    if (rc < 0)
        bxi_net_destroy(job);
    free(meeting.self);
    free(meeting.secret);
    return rc;
}

/* ---- the gate ------------------------------------------------------------------------------------------ */

static int wait_for_go(struct bx_job *job, uint64_t deadline_ns)
{
    const struct bxi_meeting meeting = { .job = job, .net = job->net, .where = job->net->where,
                                         .deadline_ns = deadline_ns };
    const char *what = "before all hosts were ready";
    struct bxi_net_message message = { .kind = BXI_NET_READY };
    char text[BXI_TEXT_BYTES];
    int rc = ask(&meeting, &message, NULL, text, sizeof text, what);

    return rc < 0 || message.kind == BXI_NET_GO ? rc : link_failed(&meeting, -EPROTO, what);
}

/* What has come, and is not read: -EAGAIN, 0: a message; -EPIPE, -errno. */
static int peek(int fd, struct bxi_net_message *message)
{
    ssize_t got = recv(fd, message, sizeof *message, MSG_PEEK);

    if (got < 0 && errno != EINTR)
        return -errno;
    return got == 0 ? -EPIPE : got < (ssize_t)sizeof *message ? -EAGAIN : 0;
}

int bxi_net_ended(struct bx_job *job)
{
    struct bxi_net *net = job->net;

    for (int rank = 0; net != NULL && rank < job->world_size; rank++) {
        struct bxi_meeting meeting = { .job = job, .net = net, .where = net->where };
        struct bxi_net_message message = { .kind = 0 };
        char text[BXI_TEXT_BYTES];
        int rc = net->links[rank].fd < 0 ? -EAGAIN : peek(net->links[rank].fd, &message);

        if (rc == -EAGAIN || (rc == 0 && message.kind != BXI_NET_FAIL))
            continue;
        message.bytes = sizeof text;
        if (rc == 0)
            rc = bxi_net_receive(job, net->links[rank].fd, &message, text, bxi_now_ns() + BXI_MEET_VERDICT_NS);
        if (rc == 0)
            return bxi_meet_failure(&message, text);
        if (rank == 0 || rc == BX_E_INTERRUPTED)
            return link_failed(&meeting, rc, "while the job was starting");
        return bx_fail(BX_E_PEER_DEAD, "worker '%s' (rank %d, pid %u) on host '%s' hung up while the job was starting",
                       net->places[rank].name, rank, net->places[rank].pid, net->places[rank].machine);
    }
    return 0;
}

/* Whether the worker is the root of another host. */
static bool is_root_of_its_host(const struct bx_job *job, int rank)
{
    for (int lower = 0; lower < rank; lower++)
        if (strcmp(job->net->places[lower].host, job->net->places[rank].host) == 0)
            return false;
    return true;
}

static int wait_for_hosts(struct bx_job *job, uint64_t deadline_ns)
{
    struct bxi_net *net = job->net;

    for (int rank = 1; rank < job->world_size; rank++) {
        const struct bxi_place *place = &net->places[rank];
        struct bxi_net_message message = { .kind = 0 };
        int rc = -EAGAIN;

        if (!place->is_remote || !is_root_of_its_host(job, rank))
            continue;
        while (rc == -EAGAIN && bxi_now_ns() < deadline_ns) {
            if ((rc = bxi_poll_start(job, net->links[rank].fd, POLLIN, bxi_now_ns() + POLL_NS)) < 0 ||
                (rc = bxi_net_ended(job)) < 0)
                return rc;
            rc = peek(net->links[rank].fd, &message);
            if (rc == 0 && message.kind == BXI_NET_FAIL)        /* it has come since */
                rc = -EAGAIN;
        }
        message.bytes = 0;
        if (rc == 0)
            rc = bxi_net_receive(job, net->links[rank].fd, &message, NULL, deadline_ns);
        if (rc < 0 || message.kind != BXI_NET_READY)
            return bx_fail(rc == -EAGAIN ? BX_E_RANK_MISSING : -EPROTO,
                           "the workers of host '%s', of which '%s' (rank %d) is the first, did not start%s",
                           place->machine, place->name, rank, rc == -EAGAIN ? " in time" : "");
    }
    for (int rank = 1; rank < job->world_size; rank++)
        if (net->places[rank].is_remote && is_root_of_its_host(job, rank))
            bxi_net_send(job, net->links[rank].fd, &(struct bxi_net_message){ .kind = BXI_NET_GO }, NULL, deadline_ns);
    return 0;
}

int bxi_net_ready(struct bx_job *job, uint64_t deadline_ns)
{
    if (job->net == NULL)
        return 0;
    return job->rank == 0 ? wait_for_hosts(job, deadline_ns) : wait_for_go(job, deadline_ns);
}

void bxi_net_fail(struct bx_job *job, int code)
{
    char text[BXI_TEXT_BYTES];

    if (job->net == NULL)
        return;
    snprintf(text, sizeof text, "%s", bx_error_text());
    for (int rank = 0; rank < job->world_size; rank++)
        if (job->net->links[rank].fd >= 0)
            bxi_meet_tell(job->net->links[rank].fd, code, text);
}
