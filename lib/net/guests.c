/* SPDX-License-Identifier: MIT */
/*
 * Rank 0's side of the meeting: it listens at BX_ROOT, lets in who knows the secret, and tells all about all when the
 * last has come. meet.c draws the exchange.
 *
 * A guest that has not proven that it knows the secret is given a slot of a small table and nothing else; when all are
 * taken, or it takes too long, it is dropped, and may come again. What a guest sends is input: nonsense is logged and
 * dropped, and the job goes on. What shows that the job can never start as it was asked for ends the start of all.
 */
#include "meet.h"

#include "shm/file.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUESTS_MAX (BXI_WORKERS_MAX + 32)
#define PATIENCE_NS UINT64_C(5000000000)        /* with a guest that has not proven itself */
#define POLL_MS 100

enum stage { NOBODY = 0, ASKED, PROVEN, KNOWN };

struct guest {
    enum stage stage;
    int fd;
    uint64_t since_ns;
    char from[64];                      /* its address, for the log */
    unsigned char nonce[BXI_NONCE_BYTES];
    size_t got;
    union {
        struct {
            struct bxi_net_message head;
            union {
                struct bxi_proof proof;
                struct bxi_hello hello;
            } body;
        } message;
        unsigned char bytes[sizeof(struct bxi_net_message) + sizeof(struct bxi_hello)];
    } in;
};

struct party {
    struct bxi_meeting *meeting;
    int listener;
    int known;
    bool is_full;                       /* no descriptor is left for who comes: the next poll is not for him */
    struct guest *by_rank[BXI_WORKERS_MAX];
    struct guest guests[GUESTS_MAX];
};

static void drop(struct guest *guest)
{
    close(guest->fd);
    guest->stage = NOBODY;
}

static void refuse(struct party *party, struct guest *guest, const char *why)
{
    bxi_log(party->meeting->job, 1, "bootstrap of job '%s': a connection from %s was refused: %s",
            party->meeting->job->job_name, guest->from, why);
    drop(guest);
}

/* It may be a worker, and is told the code. -EAGAIN: it is to come again. */
static void tell_and_refuse(struct party *party, struct guest *guest, int code, const char *why)
{
    bxi_meet_tell(guest->fd, code, NULL);
    refuse(party, guest, why);
}

static void put_off(struct party *party, struct guest *guest, const char *why)
{
    tell_and_refuse(party, guest, -EAGAIN, why);
}

/* Puts off the one that has waited longest, of those that have come no further than most: first those that have not
 * proven themselves. NULL: there is none. */
static struct guest *put_off_oldest(struct party *party, enum stage most)
{
    struct guest *oldest = NULL;

    for (int i = 0; i < GUESTS_MAX; i++) {
        struct guest *guest = &party->guests[i];

        if (guest->stage != NOBODY && guest->stage <= most &&
            (oldest == NULL || guest->stage < oldest->stage ||
             (guest->stage == oldest->stage && guest->since_ns < oldest->since_ns)))
            oldest = guest;
    }
    if (oldest != NULL)
        put_off(party, oldest, "others wait");
    return oldest;
}

static struct guest *free_guest(struct party *party)
{
    for (int i = 0; i < GUESTS_MAX; i++)
        if (party->guests[i].stage == NOBODY)
            return &party->guests[i];
    return put_off_oldest(party, PROVEN);       /* there are more slots than workers */
}

static void accept_guest(struct party *party)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int fd = accept4(party->listener, (struct sockaddr *)&address, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct bxi_nonce nonce = { .protocol = BXI_NET_PROTOCOL, .layout = BXI_LAYOUT_VERSION };
    struct guest *guest;
    char host[48] = "?", port[8] = "?";

    if (fd < 0 && bxi_file_none_left(-errno))
        party->is_full = put_off_oldest(party, ASKED) == NULL;
    if (fd < 0)
        return;
    guest = free_guest(party);
    *guest = (struct guest){ .stage = ASKED, .fd = fd, .since_ns = bxi_now_ns() };
    getnameinfo((struct sockaddr *)&address, length, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(guest->from, sizeof guest->from, "%s:%s", host, port);
    bxi_meet_keep(fd, party->meeting->net->timeout_ns);
    if (getrandom(guest->nonce, sizeof guest->nonce, 0) != sizeof guest->nonce) {
        drop(guest);
        return;
    }
    memcpy(nonce.bytes, guest->nonce, sizeof nonce.bytes);
    if (bxi_net_send(NULL, fd, &(struct bxi_net_message){ .kind = BXI_NET_NONCE, .bytes = sizeof nonce }, &nonce,
                     bxi_now_ns()) < 0)
        drop(guest);
}

/* ---- what a guest sends ------------------------------------------------------------------------------- */

static void take_proof(struct party *party, struct guest *guest)
{
    const struct bxi_proof *proof = &guest->in.message.body.proof;
    unsigned char mac[BXI_WIRE_MAC_BYTES], own[BXI_WIRE_MAC_BYTES];

    if (!bxi_meet_proof(party->meeting, "join", guest->nonce, proof->nonce, mac) ||
        !bxi_meet_proof(party->meeting, "root", proof->nonce, guest->nonce, own) || !bxi_meet_equal(mac, proof->mac)) {
        tell_and_refuse(party, guest, -EACCES, "it does not know the job's secret");
        return;
    }
    guest->stage = PROVEN;
    if (bxi_net_send(NULL, guest->fd, &(struct bxi_net_message){ .kind = BXI_NET_PROOF, .bytes = sizeof own }, own,
                     bxi_now_ns()) < 0)
        drop(guest);
}

static void refuse_other_job(struct party *party, struct guest *guest)
{
    const struct bxi_hello *hello = &guest->in.message.body.hello;
    char text[BXI_TEXT_BYTES];

    snprintf(text, sizeof text, "worker '%s' (rank %d) is of job '%s', and who listens at BX_ROOT=%.128s is of job "
             "'%s'", hello->name, hello->rank, hello->job, party->meeting->where, party->meeting->self->job);
    bxi_meet_tell(guest->fd, -EINVAL, text);
    refuse(party, guest, text);
}

/* 0: the job can go on. */
static int take_hello(struct party *party, struct guest *guest)
{
    struct bx_job *job = party->meeting->job;
    const struct bxi_hello *hello = &guest->in.message.body.hello;

    if (!bxi_hello_is_valid(hello, guest->in.message.head.bytes)) {
        refuse(party, guest, "it sent what no worker sends");
        return 0;
    }
    if (strcmp(hello->job, party->meeting->self->job) != 0) {
        refuse_other_job(party, guest);
        return 0;
    }
    if (hello->world_size != job->world_size)
        return bx_fail(BX_E_WORLD_SIZE, "worker '%s' (rank %d) on host '%s' was started for %d workers, rank 0 for %d",
                       hello->name, hello->rank, hello->machine, hello->world_size, job->world_size);
    if (hello->rank <= 0 || hello->rank >= job->world_size || party->by_rank[hello->rank] != NULL)
        return bx_fail(BX_E_RANK_TAKEN, "worker '%s' on host '%s' came as rank %d, which %s", hello->name,
                       hello->machine, hello->rank,
                       hello->rank < 0 || hello->rank >= job->world_size ? "is none" : "is taken");
    for (int rank = 0; rank < job->world_size; rank++) {
        const struct guest *other = party->by_rank[rank];
        const char *name = rank == 0 ? job->name : other == NULL ? "" : other->in.message.body.hello.name;

        if (strcmp(name, hello->name) == 0)
            return bx_fail(BX_E_NAME_TAKEN, "the name '%s' is taken twice in job '%s': by rank %d and by rank %d",
                           hello->name, job->job_name, rank, hello->rank);
    }
    guest->stage = KNOWN;
    party->by_rank[hello->rank] = guest;
    party->known++;
    return 0;
}

/* A whole message. 0: the job can go on. */
static int take(struct party *party, struct guest *guest)
{
    struct bxi_net_message *head = &guest->in.message.head;

    if (guest->stage == ASKED && head->kind == BXI_NET_PROOF && head->bytes == sizeof(struct bxi_proof)) {
        take_proof(party, guest);
    } else if (guest->stage == PROVEN && head->kind == BXI_NET_CLOCK && head->bytes == 0) {
        head->value = bxi_now_ns();
        if (bxi_net_send(NULL, guest->fd, head, NULL, bxi_now_ns()) < 0)
            drop(guest);
    } else if (guest->stage == PROVEN && head->kind == BXI_NET_HELLO) {
        return take_hello(party, guest);
    } else if (guest->stage == PROVEN && head->kind == BXI_NET_FAIL) {
        return bxi_meet_failure(head, &guest->in.message.body);
    } else {
        refuse(party, guest, "it sent what no worker sends");
    }
    return 0;
}

/* The bytes of the message that comes; as far as it is known. */
static size_t awaited(const struct guest *guest)
{
    size_t most = guest->stage == PROVEN ? sizeof(struct bxi_hello) : sizeof(struct bxi_proof);

    if (guest->got < sizeof guest->in.message.head)
        return sizeof guest->in.message.head;
    return guest->in.message.head.bytes > most ? 0 : sizeof guest->in.message.head + guest->in.message.head.bytes;
}

static int known_failed(const struct guest *guest, int code, const char *what)
{
    const struct bxi_hello *hello = &guest->in.message.body.hello;

    return bx_fail(code, "worker '%s' (rank %d, pid %u) on host '%s' %s", hello->name, hello->rank, hello->pid,
                   hello->machine, what);
}

static int hung_up(struct guest *guest)
{
    if (guest->stage == KNOWN)
        return known_failed(guest, BX_E_PEER_DEAD, "hung up while the job was starting");
    drop(guest);
    return 0;
}

/* Before the table a guest that is known sends why its start has failed, and nothing else. */
static int read_known(const struct party *party, struct guest *guest)
{
    char text[BXI_TEXT_BYTES], what[BXI_TEXT_BYTES];
    struct bxi_net_message message = { .bytes = sizeof text };
    int rc = recv(guest->fd, text, 1, MSG_PEEK) < 0 ? -errno : 0;

    if (rc == -EAGAIN || rc == -EINTR)
        return 0;
    if (rc == 0)
        rc = bxi_net_receive(party->meeting->job, guest->fd, &message, text, bxi_now_ns() + BXI_MEET_VERDICT_NS);
    if (rc == BX_E_INTERRUPTED)
        return rc;
    if (rc < 0 || message.kind != BXI_NET_FAIL)
        return hung_up(guest);
    rc = bxi_meet_failure(&message, text);
    snprintf(what, sizeof what, "could not start: %s", bx_error_text());
    return known_failed(guest, rc, what);
}

static int read_guest(struct party *party, struct guest *guest)
{
    while (guest->stage != NOBODY) {
        size_t want = awaited(guest);
        ssize_t got;
        int rc;

        if (guest->stage == KNOWN)
            return read_known(party, guest);
        if (want == 0) {
            refuse(party, guest, "it sent what no worker sends");
            return 0;
        }
        got = recv(guest->fd, guest->in.bytes + guest->got, want - guest->got, 0);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : hung_up(guest);
        if (got == 0)
            return hung_up(guest);
        guest->got += (size_t)got;
        if (guest->got < sizeof guest->in.message.head || guest->got < awaited(guest) || awaited(guest) == 0)
            continue;
        guest->got = 0;
        if ((rc = take(party, guest)) < 0)
            return rc;
    }
    return 0;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static int too_late(const struct party *party)
{
    const struct bx_job *job = party->meeting->job;
    char missing[256] = "";
    size_t used = 0;

    for (int rank = 1; rank < job->world_size && used + 8 < sizeof missing; rank++)
        if (party->by_rank[rank] == NULL)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used > 0 ? ", " : "", rank);
    return bx_fail(BX_E_RANK_MISSING, "of job '%s' rank %s of 0..%d did not come to BX_ROOT=%s in time", job->job_name,
                   missing, job->world_size - 1, party->meeting->where);
}

static int poll_once(struct party *party)
{
    struct pollfd entries[GUESTS_MAX + 2];
    struct guest *of[GUESTS_MAX + 2] = { NULL };
    struct bx_job *job = party->meeting->job;
    nfds_t count = 2;
    int rc = bxi_start_interrupted(job);

    if (rc < 0)
        return rc;
    entries[0] = (struct pollfd){ .fd = party->is_full ? -1 : party->listener, .events = POLLIN };
    entries[1] = (struct pollfd){ .fd = job->run->bell_fd[1], .events = POLLIN };
    party->is_full = false;
    for (int i = 0; i < GUESTS_MAX; i++) {
        struct guest *guest = &party->guests[i];

        if (guest->stage == ASKED && bxi_now_ns() - guest->since_ns > PATIENCE_NS)
            put_off(party, guest, "it does not prove that it knows the job's secret");
        if (guest->stage == NOBODY)
            continue;
        of[count] = guest;
        entries[count++] = (struct pollfd){ .fd = guest->fd, .events = POLLIN };
    }
    if (poll(entries, count, POLL_MS) < 0 && errno != EINTR)
        return bx_fail(-errno, "poll fails: %s", bx_strerror(-errno));
    for (nfds_t i = 2; i < count; i++)
        if (entries[i].revents != 0 && (rc = read_guest(party, of[i])) < 0)
            return rc;
    if (entries[0].revents != 0)
        accept_guest(party);
    return bxi_now_ns() >= party->meeting->deadline_ns ? too_late(party) : 0;
}

static int listen_at(const char *where)
{
    struct addrinfo *found = NULL;
    const int on = 1;
    int fd = -1, rc = bxi_meet_resolve(where, true, &found);

    if (rc < 0)
        return rc;
    for (struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
        if (fd < 0) {
            rc = -errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, GUESTS_MAX) == 0)
            break;
        rc = -errno;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd >= 0)
        return fd;
    return bx_fail(rc, "rank 0 cannot listen at BX_ROOT=%s: %s", where, bx_strerror(rc));
}

/* At the one address of where, or at all. */
static int listen_at_all(const char *where)
{
    char all[32];
    int fd;

    if (strchr(where, ',') == NULL)
        return listen_at(where);
    snprintf(all, sizeof all, "[::]%s", strrchr(where, ':'));
    if ((fd = listen_at(all)) >= 0)
        return fd;
    snprintf(all, sizeof all, "0.0.0.0%s", strrchr(where, ':'));        /* a kernel without IPv6 */
    return listen_at(all);
}

/* At a port that the kernel chooses; the launcher tells the others. */
static int listen_and_tell(struct bxi_meeting *meeting)
{
    char *where = meeting->net->where;
    struct sockaddr_storage address = { .ss_family = 0 };
    socklen_t length = sizeof address;
    int fd, rc;

    bxi_launcher_addresses(where, 0);
    fd = listen_at_all(where);
    if (fd < 0)
        return fd;
    getsockname(fd, (struct sockaddr *)&address, &length);
    /* The port lies at the same place in both. */
    bxi_launcher_addresses(where, ntohs(((struct sockaddr_in *)(void *)&address)->sin_port));
    rc = bxi_launcher_put(where, meeting->secret);
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : fd;
}

/* Sends the table to all, and takes it itself. */
static int tell_all(struct party *party)
{
    struct bxi_meeting *meeting = party->meeting;
    struct bx_job *job = meeting->job;
    unsigned char *body = calloc(1, BXI_NET_MESSAGE_MAX);
    struct bxi_net_message message = { .kind = BXI_NET_TABLE };
    int rc;

    if (body == NULL)
        return bx_fail(-ENOMEM, "no memory for the table of workers");
    if (getrandom(&message.value, sizeof message.value, 0) != sizeof message.value)
        message.value = bxi_now_ns() ^ ((uint64_t)getpid() << 40);
    message.value |= 1;
    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_hello *hello = rank == 0 ? meeting->self : &party->by_rank[rank]->in.message.body.hello;

        memcpy(body + message.bytes, hello, bxi_hello_bytes(hello));
        message.bytes += bxi_hello_bytes(hello);
    }
    rc = bxi_meet_take_table(meeting, message.value, body, message.bytes);
    for (int rank = 1; rank < job->world_size && rc == 0; rank++) {
        struct guest *guest = party->by_rank[rank];

        rc = bxi_net_send(job, guest->fd, &message, body, meeting->deadline_ns);
        if (rc == -EAGAIN || rc == -ETIMEDOUT)
            rc = known_failed(guest, BX_E_RANK_MISSING, "came, but does not answer");
        else if (rc < 0 && rc != BX_E_INTERRUPTED)
            rc = hung_up(guest);
    }
    free(body);
    return rc;
}

/* The connections. */
static void keep_links(struct party *party)
{
    for (int rank = 1; rank < party->meeting->job->world_size; rank++) {
        party->meeting->net->links[rank].fd = party->by_rank[rank]->fd;
        party->by_rank[rank]->stage = NOBODY;
    }
}

static void fail_all(struct party *party, int code)
{
    char text[BXI_TEXT_BYTES];

    snprintf(text, sizeof text, "%s", bx_error_text());
    for (int i = 0; i < GUESTS_MAX; i++)
        if (party->guests[i].stage >= PROVEN)           /* also the one at fault */
            bxi_meet_tell(party->guests[i].fd, code, text);
}

int bxi_meet_guests(struct bxi_meeting *meeting)
{
    struct party *party = calloc(1, sizeof *party);
    int rc = 0;

    if (party == NULL)
        return bx_fail(-ENOMEM, "no memory to start a job with");
    party->meeting = meeting;
    party->listener = meeting->by_launcher ? listen_and_tell(meeting) : listen_at_all(meeting->where);
    if (party->listener < 0)
        rc = party->listener;
    while (rc == 0 && party->known < meeting->job->world_size - 1)
        rc = poll_once(party);
    if (rc == 0)
        rc = tell_all(party);
    if (rc == 0)
        keep_links(party);
    else if (party->listener >= 0)
        fail_all(party, rc);
    for (int i = 0; i < GUESTS_MAX; i++)
        if (party->guests[i].stage != NOBODY)
            drop(&party->guests[i]);
    if (party->listener >= 0)
        close(party->listener);
    bxi_launcher_end();
    free(party);
    return rc;
}
