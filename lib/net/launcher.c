/* SPDX-License-Identifier: MIT */
/*
 * Jobs whose workers mpirun of Open MPI, or srun --mpi=pmix, has started, without BX_ROOT: rank 0 listens at a port
 * that the kernel chooses, and hands its addresses and the secret to the others through PMIx. Who has not been told a
 * secret by BX_SECRET or BX_SECRET_FILE uses one that rank 0 draws.
 *
 * libpmix is loaded for the meeting and finalized behind it. The prototypes are the project's own, of the ABI that PMIx
 * keeps since version 2, so the build needs nothing of it.
 *
 * The thread in bx_job_start, before any other thread of the job exists.
 */
#include "meet.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KEY_BYTES 512
#define RETRY_NS 20000000
#define SECRET_BYTES 32
#define SCOPE_GLOBAL 3u
#define TYPE_STRING 3u
#define TYPE_INT 6u

struct pmix_proc {
    char nspace[256];
    uint32_t rank;
};
struct pmix_value {
    uint16_t type;
    union {
        char *string;
        int integer;
        char room[24];
    } data;
};
struct pmix_info {
    char key[KEY_BYTES];
    uint32_t flags;
    struct pmix_value value;
};
struct pmix {
    struct pmix_proc self;
    int (*init)(struct pmix_proc *self, const struct pmix_info *info, size_t count);
    int (*put)(uint8_t scope, const char *key, struct pmix_value *value);
    int (*commit)(void);
    int (*get)(const struct pmix_proc *of, const char *key, const struct pmix_info *info, size_t count,
               struct pmix_value **value);
    int (*finalize)(const struct pmix_info *info, size_t count);
    const char *(*text)(int status);
};

/* ---- what the environment says ------------------------------------------------------------------- */

/* A variable of others than Boxcar. */
static const char *text_of(const char *variable)
{
    return secure_getenv(variable);
}

/* Of the first of these variables that is set; 0: none is. */
static int number_of(const char *one, const char *other)
{
    const char *text = text_of(one);

    if (text == NULL)
        text = text_of(other);
    return text == NULL ? 0 : atoi(text);
}

const char *bxi_launcher_job(void)
{
    static char name[BXI_NAME_BYTES];
    const char *space = text_of("PMIX_NAMESPACE");

    if (space == NULL || secure_getenv("BX_ROOT") != NULL || secure_getenv("BX_RANK") != NULL ||
        number_of("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS") < 2)
        return NULL;
    snprintf(name, sizeof name, "pmix-%.24s", space);
    for (char *at = name; *at != '\0'; at++)
        if (!isalnum((unsigned char)*at) && strchr("_-.", *at) == NULL)
            *at = '-';
    return name;
}

bool bxi_launcher_has_hosts(void)
{
    const char *host = secure_getenv("BX_HOST");
    int local = number_of("OMPI_COMM_WORLD_LOCAL_SIZE", ""), nodes = number_of("SLURM_STEP_NUM_NODES", "SLURM_NNODES");

    if (host != NULL && host[0] != '\0')
        return true;
    return local != 0 ? local < number_of("OMPI_COMM_WORLD_SIZE", "") : nodes != 1;
}

/* ---- addresses ----------------------------------------------------------------------------------- */

/* "eth0,mlx5_0:1" of UCX_NET_DEVICES names it; or that is not set, or names no interface. */
static bool is_named(const char *interface)
{
    const char *list = text_of("UCX_NET_DEVICES");
    size_t length = strlen(interface);

    for (const char *at = list; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && strncmp(at, interface, length) == 0)
            return true;
    return false;
}

/* Adds "address:port" behind a comma. */
static void add(char list[BXI_ROOT_BYTES], const struct sockaddr *address, unsigned port)
{
    char text[INET6_ADDRSTRLEN];
    size_t used = strlen(list);
    bool is_v6 = address->sa_family == AF_INET6;
    const void *from = is_v6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
                             : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;

    if (used + sizeof text + 12 > BXI_ROOT_BYTES || inet_ntop(address->sa_family, from, text, sizeof text) == NULL)
        return;
    snprintf(list + used, BXI_ROOT_BYTES - used, "%s%s%s%s:%u", used > 0 ? "," : "", is_v6 ? "[" : "", text,
             is_v6 ? "]" : "", port);
}

static bool counts(const struct ifaddrs *at, bool named)
{
    if (at->ifa_addr == NULL || (at->ifa_flags & IFF_UP) == 0 || is_named(at->ifa_name) != named ||
        (!named && (at->ifa_flags & IFF_LOOPBACK) != 0))
        return false;
    if (at->ifa_addr->sa_family == AF_INET6)            /* those of a link need its name to be reached */
        return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr);
    return at->ifa_addr->sa_family == AF_INET;
}

void bxi_launcher_addresses(char list[BXI_ROOT_BYTES], unsigned port)
{
    struct ifaddrs *all = NULL;

    list[0] = '\0';
    if (getifaddrs(&all) == 0) {
        for (int named = 1; named >= 0 && list[0] == '\0'; named--)
            for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next)
                if (counts(at, named == 1) && (named == 0 || list[0] == '\0'))
                    add(list, at->ifa_addr, port);
        freeifaddrs(all);
    }
    if (list[0] == '\0')
        snprintf(list, BXI_ROOT_BYTES, "127.0.0.1:%u", port);
}

/* ---- PMIx ---------------------------------------------------------------------------------------- */

static int failed(const struct pmix *pmix, int status, const char *what)
{
    return bx_fail(-EPROTO, "PMIx %s: %s; without it, set BX_ROOT and BX_SECRET", what,
                   pmix->text != NULL ? pmix->text(status) : "?");
}

static int begin(struct pmix *pmix)
{
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    int status;

    memset(pmix, 0, sizeof *pmix);
    if (library == NULL)
        return bx_fail(-ENOENT, "a job that mpirun or srun has started on several hosts needs PMIx, or BX_ROOT and "
                                "BX_SECRET: %s", dlerror());
    *(void **)&pmix->init = dlsym(library, "PMIx_Init");
    *(void **)&pmix->put = dlsym(library, "PMIx_Put");
    *(void **)&pmix->commit = dlsym(library, "PMIx_Commit");
    *(void **)&pmix->get = dlsym(library, "PMIx_Get");
    *(void **)&pmix->finalize = dlsym(library, "PMIx_Finalize");
    *(void **)&pmix->text = dlsym(library, "PMIx_Error_string");
    if (pmix->init == NULL || pmix->put == NULL || pmix->commit == NULL || pmix->get == NULL || pmix->finalize == NULL)
        return bx_fail(-ENOENT, "libpmix.so.2 lacks a function of PMIx");
    status = pmix->init(&pmix->self, NULL, 0);
    return status == 0 ? 0 : failed(pmix, status, "does not begin");
}

static struct pmix root_of_job;         /* rank 0's, until all have met */
static char key[KEY_BYTES];             /* of this meeting: a server may go on telling the value of the one before */

void bxi_launcher_begin(void)
{
    static unsigned meetings;

    snprintf(key, sizeof key, "boxcar.root.%u", meetings++);
}

int bxi_launcher_put(const char *where, const char *secret)
{
    char text[BXI_ROOT_BYTES + BXI_SECRET_BYTES + 2];
    struct pmix_value value = { .type = TYPE_STRING, .data.string = text };
    int rc = begin(&root_of_job), status;

    if (rc < 0)
        return rc;
    snprintf(text, sizeof text, "%s %s", where, secret);
    status = root_of_job.put(SCOPE_GLOBAL, key, &value);
    if (status == 0)
        status = root_of_job.commit();
    return status == 0 ? 0 : failed(&root_of_job, status, "does not take where rank 0 listens");
}

void bxi_launcher_end(void)
{
    if (root_of_job.finalize != NULL)
        root_of_job.finalize(NULL, 0);
    memset(&root_of_job, 0, sizeof root_of_job);
}

int bxi_launcher_get(char where[BXI_ROOT_BYTES], char secret[BXI_SECRET_BYTES], uint64_t deadline_ns)
{
    struct pmix_info timeout = { .key = "pmix.timeout", .value = { .type = TYPE_INT } };
    const struct timespec nap = { .tv_nsec = RETRY_NS };
    struct pmix_value *value = NULL;
    struct pmix_proc root;
    struct pmix pmix;
    int rc = begin(&pmix), status;

    if (rc < 0)
        return rc;
    root = pmix.self;
    root.rank = 0;
    for (;;) {
        uint64_t now_ns = bxi_now_ns(), left_ns = now_ns < deadline_ns ? deadline_ns - now_ns : 0;

        timeout.value.data.integer = (int)bxi_least(left_ns / 1000000000 + 1, 86400);
        status = pmix.get(&root, key, &timeout, 1, &value);
        if (status == 0 || bxi_now_ns() >= deadline_ns)
            break;
        nanosleep(&nap, NULL);          /* a server that has not heard of it may not wait (4.1) */
    }
    if (status != 0 || value == NULL || value->type != TYPE_STRING || value->data.string == NULL ||
        sscanf(value->data.string, "%1023s %255s", where, secret) < 1)
        rc = bx_fail(BX_E_RANK_MISSING, "rank 0 has not told through PMIx where it listens: %s",
                     pmix.text != NULL ? pmix.text(status) : "?");
    if (value != NULL && value->type == TYPE_STRING)
        free(value->data.string);
    free(value);
    pmix.finalize(NULL, 0);
    return rc;
}

int bxi_launcher_secret(char secret[BXI_SECRET_BYTES])
{
    unsigned char bytes[SECRET_BYTES];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return bx_fail(-errno, "no random bytes: %s", bx_strerror(-errno));
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}
