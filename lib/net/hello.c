/* SPDX-License-Identifier: MIT */
/*
 * What both sides of the meeting use: where rank 0 listens, proofs, and the table of who has come.
 */
#include "meet.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* "host:port", "[address]:port". 0, or a failure with its sentence. */
int bxi_meet_resolve(const char *where, bool listens, struct addrinfo **found)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0 };
    char host[256];
    const char *colon = strrchr(where, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - where);
    int rc;

    if (length == 0 || length >= sizeof host || colon[1] == '\0')
        return bx_fail(-EINVAL, "BX_ROOT='%s' is not HOST:PORT, where rank 0 listens", bxi_brief(where).text);
    if (where[0] == '[' && where[length - 1] == ']')
        snprintf(host, sizeof host, "%.*s", (int)length - 2, where + 1);
    else
        snprintf(host, sizeof host, "%.*s", (int)length, where);
    rc = getaddrinfo(host, colon + 1, &hints, found);
    return rc == 0 ? 0 : bx_fail(rc == EAI_AGAIN ? -EAGAIN : -EINVAL, "BX_ROOT='%s' leads nowhere: %s",
                                 bxi_brief(where).text, gai_strerror(rc));
}

static bool leads_to_loopback(const struct addrinfo *found)
{
    for (; found != NULL; found = found->ai_next) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)found->ai_addr;
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)found->ai_addr;

        if (found->ai_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
                                         : ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET)
            return true;
    }
    return false;
}

void bxi_meet_name_own(char where[BXI_ROOT_BYTES])
{
    struct addrinfo *found = NULL;
    char own[256] = "";
    size_t length;

    if (gethostname(own, sizeof own - 1) < 0 || strcasecmp(own, "localhost") == 0)
        return;
    length = strcspn(own, ".");
    if (length == 0 || strncasecmp(where, own, length) != 0 || (where[length] != '.' && where[length] != ':') ||
        bxi_meet_resolve(where, true, &found) < 0)
        return;
    if (leads_to_loopback(found))       /* the port lies at the same place in a struct sockaddr_in6 */
        bxi_launcher_addresses(where, ntohs(((struct sockaddr_in *)(void *)found->ai_addr)->sin_port));
    freeaddrinfo(found);
}

void bxi_meet_tell(int fd, int code, const char *text)
{
    const struct bxi_net_message message = { .kind = BXI_NET_FAIL, .value = (uint64_t)(int64_t)code,
                                             .bytes = text != NULL ? (uint32_t)strlen(text) + 1 : 0 };

    bxi_net_send(NULL, fd, &message, text, bxi_now_ns());
}

int bxi_meet_failure(const struct bxi_net_message *message, const void *text)
{
    int code = (int)(int64_t)message->value;

    return bx_fail(code < 0 ? code : -EPROTO, "%.*s", (int)bxi_least(message->bytes, BXI_TEXT_BYTES - 1),
                   (const char *)text);
}

/* A hang-up of the host is noticed while nothing is sent, too. */
void bxi_meet_keep(int fd, uint64_t timeout_ns)
{
    const int on = 1, seconds = (int)(timeout_ns / 4000000000u) + 1, probes = 3;
    const unsigned timeout_ms = (unsigned)(timeout_ns / 1000000);

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

/* ---- proofs ------------------------------------------------------------------------------------------ */

bool bxi_meet_proof(const struct bxi_meeting *meeting, const char who[4], const unsigned char *theirs,
                    const unsigned char *own, unsigned char proof[BXI_WIRE_MAC_BYTES])
{
    unsigned char text[4 + 2 * BXI_NONCE_BYTES];

    memcpy(text, who, 4);
    memcpy(text + 4, theirs, BXI_NONCE_BYTES);
    memcpy(text + 4 + BXI_NONCE_BYTES, own, BXI_NONCE_BYTES);
    return meeting->net->ops->mac(meeting->secret, text, sizeof text, proof);
}

/* Takes as long wherever they differ. */
bool bxi_meet_equal(const unsigned char *one, const unsigned char *two)
{
    unsigned char differs = 0;

    for (unsigned i = 0; i < BXI_WIRE_MAC_BYTES; i++)
        differs |= one[i] ^ two[i];
    return differs == 0;
}

/* ---- the table ------------------------------------------------------------------------------------- */

/* malloc'ed; one byte more, since there may be none. */
static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    return copy != NULL ? memcpy(copy, data, bytes) : NULL;
}

static int nonsense(const struct bxi_meeting *meeting)
{
    return bx_fail(-EPROTO, "rank 0 of job '%s' (BX_ROOT=%s) cannot be understood when it tells who has come",
                   meeting->job->job_name, meeting->where);
}

int bxi_meet_take_table(struct bxi_meeting *meeting, uint64_t instance, const unsigned char *body, size_t bytes)
{
    struct bx_job *job = meeting->job;
    struct bxi_net *net = meeting->net;
    size_t at = 0;

    for (int rank = 0; rank < job->world_size; rank++) {
        struct bxi_place *place = &net->places[rank];
        struct bxi_hello hello;

        if (bytes - at < offsetof(struct bxi_hello, address))
            return nonsense(meeting);
        memcpy(&hello, body + at, offsetof(struct bxi_hello, address));
        if (!bxi_hello_is_valid(&hello, bytes - at) || hello.rank != rank)
            return nonsense(meeting);
        memcpy(place->host, hello.host, sizeof place->host);
        memcpy(place->machine, hello.machine, sizeof place->machine);
        memcpy(place->name, hello.name, sizeof place->name);
        place->pid = hello.pid;
        place->arena_bytes = hello.arena_bytes;
        place->listens = hello.listens;
        if (hello.listens.sin6_family == AF_INET6 && hello.listens.sin6_scope_id != 0)  /* its host's number of it */
            place->listens.sin6_scope_id = meeting->self->listens.sin6_scope_id;
        place->clock_ns = (int64_t)((uint64_t)meeting->self->clock_ns - (uint64_t)hello.clock_ns);
        place->is_remote = memcmp(hello.host, meeting->self->host, sizeof hello.host) != 0;
        place->address_bytes = hello.address_bytes;
        place->address = copy_of(body + at + offsetof(struct bxi_hello, address), hello.address_bytes);
        place->function_count = hello.function_count;
        place->functions = copy_of(body + at + bxi_hello_functions(&hello),
                                   hello.function_count * sizeof *place->functions);
        if (place->address == NULL || place->functions == NULL)
            return bx_fail(-ENOMEM, "no memory for the table of workers");
        at += bxi_hello_bytes(&hello);
    }
    for (int rank = job->world_size - 1; rank >= 0; rank--) {
        if (net->places[rank].is_remote)
            continue;
        job->root = rank;
        net->here++;
    }
    job->instance = instance;
    return 0;
}

bool bxi_hello_is_valid(const struct bxi_hello *hello, size_t bytes)
{
    return hello->address_bytes <= BXI_WIRE_ADDRESS_MAX && hello->function_count <= BXI_FUNCTION_MAX &&
           bxi_hello_bytes(hello) <= bytes &&
           memchr(hello->host, 0, sizeof hello->host) != NULL && hello->machine[0] != '\0' &&
           memchr(hello->machine, 0, sizeof hello->machine) != NULL &&
           memchr(hello->name, 0, sizeof hello->name) != NULL && memchr(hello->job, 0, sizeof hello->job) != NULL &&
           bxi_name_is_valid(hello->name) && hello->arena_bytes > 0 &&
           (hello->rank == 0 || bxi_address_bytes(&hello->listens) > 0);
}
