/* SPDX-License-Identifier: MIT */
/*
 * The world's hosts: which worker is on which, what its environment says then, and how the workers meet. The plug-in
 * that carries their messages is wire.c.
 *
 * Hosts share the directory of names, as those of one machine with BX_HOST do. Their clocks differ by hours. Rank 0's
 * address is that of a Unix socket without a name in a directory, whatever BX_ROOT says: the meeting's sockets are made
 * of what getaddrinfo returns, so the kernel carries its messages as it does those of the bootstrap. An address that a
 * worker listens at has a number, its port, and stands for such a socket too.
 */
#include "net/wire.h"
#include "world.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#define HOSTS_MOST 3

static int hosts[SIM_COPIES];           /* of the workers, plus 1; 0: all are on this machine */
static unsigned ports;                  /* that were given out */

void sim_hosts_reset(void)
{
    memset(hosts, 0, sizeof hosts);
    ports = 0;
    sim_wires_reset();
}

void sim_put_on_host(int worker, int host)
{
    hosts[worker] = 1 + host % HOSTS_MOST;
}

int sim_host_of(int worker)
{
    return hosts[worker] - 1;
}

uint64_t sim_clock_ahead_ns(void)
{
    static const uint64_t ahead_ns[1 + HOSTS_MOST] = { 0, 0, 7200 * NS_PER_S, 10 * NS_PER_S + 5 };

    return sim_self == NULL ? 0 : ahead_ns[hosts[sim_self->worker]];
}

const char *sim_host_variable(const char *name)
{
    static const char *const names[] = { "host0", "host1", "host2" };
    int host = sim_self == NULL ? -1 : sim_host_of(sim_self->worker);

    if (host < 0)
        return NULL;
    return strcmp(name, "BX_ROOT") == 0 ? "root:1" :
           strcmp(name, "BX_SECRET") == 0 ? "a secret of a job" :
           strcmp(name, "BX_HOST") == 0 ? names[host] :
           strcmp(name, "BX_NET_TIMEOUT_MS") == 0 ? SIM_NET_TIMEOUT_MS :
           strcmp(name, "UCX_MEM_EVENTS") == 0 ? "n" : NULL;    /* else load.c makes memory that stays */
}

/* ---- the plug-in -------------------------------------------------------------------------------------- */

static char wire_library;

void *sim_dlopen(const char *path, int flags);
void *sim_dlsym(void *library, const char *name);

void *sim_dlopen(const char *path, int flags)
{
    return path != NULL && strcmp(path, BXI_WIRE_PLUGIN) == 0 ? &wire_library : dlopen(path, flags);
}

void *sim_dlsym(void *library, const char *name)
{
    const struct bxi_wire_ops *(*plugin)(void) = sim_wire_plugin;
    void *symbol;

    if (library != &wire_library)
        return dlsym(library, name);
    memcpy(&symbol, &plugin, sizeof symbol);
    return symbol;
}

/* ---- the meeting -------------------------------------------------------------------------------------- */

int sim_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found);
void sim_freeaddrinfo(struct addrinfo *found);
int sim_getnameinfo(const struct sockaddr *address, socklen_t bytes, char *host, socklen_t host_bytes, char *service,
                    socklen_t service_bytes, int flags);
ssize_t sim_recv(int fd, void *data, size_t bytes, int flags);
int sim_memfd_create(const char *name, unsigned flags);

int sim_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    struct {
        struct addrinfo info;
        struct sockaddr_un address;
    } *one = sim_memory(sizeof *one);

    (void)node, (void)service;
    enter("getaddrinfo", PC);
    one->address.sun_family = AF_UNIX;
    snprintf(one->address.sun_path + 1, sizeof one->address.sun_path - 1, "%s.root", sim_directory);
    one->info = (struct addrinfo){ .ai_family = AF_UNIX, .ai_socktype = hints->ai_socktype,
                                   .ai_addr = (struct sockaddr *)&one->address,
                                   .ai_addrlen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                                                             strlen(one->address.sun_path + 1)) };
    *found = &one->info;
    return 0;
}

void sim_freeaddrinfo(struct addrinfo *found)
{
    (void)found;
}

#define PORT ".port"

const struct sockaddr *sim_unix_address(const struct sockaddr *address, socklen_t *bytes)
{
    static struct sockaddr_un as_unix;
    unsigned port = ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
    int length;

    if (address->sa_family != AF_INET)
        return address;
    memset(&as_unix, 0, sizeof as_unix);
    as_unix.sun_family = AF_UNIX;
    length = snprintf(as_unix.sun_path + 1, sizeof as_unix.sun_path - 1, "%s" PORT "%u", sim_directory,
                      port != 0 ? port : ++ports);
    *bytes = (socklen_t)offsetof(struct sockaddr_un, sun_path) + 1 + (socklen_t)length;
    return (const struct sockaddr *)&as_unix;
}

int sim_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int sim_getsockname(int fd, struct sockaddr *address, socklen_t *bytes);

int sim_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    enter("bind", PC);
    if (sim_fails("bind"))
        return -1;
    address = sim_unix_address(address, &bytes);
    return bind(fd, address, bytes);
}

int sim_getsockname(int fd, struct sockaddr *address, socklen_t *bytes)
{
    struct sockaddr_un as_unix = { .sun_family = AF_UNIX };
    struct sockaddr_in own = { .sin_family = AF_INET };
    socklen_t length = sizeof as_unix - 1;
    const char *port;

    if (getsockname(fd, (struct sockaddr *)&as_unix, &length) < 0)
        return -1;
    port = strstr(as_unix.sun_path + 1, PORT);
    if (port != NULL)
        own.sin_port = htons((uint16_t)atoi(port + strlen(PORT)));
    memcpy(address, &own, sizeof own);
    *bytes = sizeof own;
    return 0;
}

int sim_getnameinfo(const struct sockaddr *address, socklen_t bytes, char *host, socklen_t host_bytes, char *service,
                    socklen_t service_bytes, int flags)
{
    (void)address, (void)bytes, (void)flags;
    snprintf(host, host_bytes, "sim");
    snprintf(service, service_bytes, "0");
    return 0;
}

ssize_t sim_recv(int fd, void *data, size_t bytes, int flags)
{
    struct iovec part = { data, bytes };

    return sim_recvmsg(fd, &(struct msghdr){ .msg_iov = &part, .msg_iovlen = 1 }, flags);
}

int sim_memfd_create(const char *name, unsigned flags)
{
    enter("memfd_create", PC);
    return sim_own(memfd_create(name, flags), PC);
}
