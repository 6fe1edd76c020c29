/* SPDX-License-Identifier: MIT */
/*
 * The two sides of the meeting (meet.c, guests.c): what they share. No other file of the room includes it.
 */
#ifndef BXI_MEET_H
#define BXI_MEET_H

#include "net.h"

#include <stddef.h>

#define BXI_NET_PROTOCOL 5u
#define BXI_NONCE_BYTES 32
#define BXI_MEET_VERDICT_NS UINT64_C(1000000000)        /* past the deadline: rank 0 says who is missing */

struct bxi_nonce {
    uint32_t protocol, layout;
    unsigned char bytes[BXI_NONCE_BYTES];
};
struct bxi_proof {
    unsigned char nonce[BXI_NONCE_BYTES];
    unsigned char mac[BXI_WIRE_MAC_BYTES];
};
struct bxi_hello {
    int32_t rank, world_size;
    uint32_t pid, address_bytes;
    int64_t clock_ns;                   /* its time less rank 0's */
    uint64_t arena_bytes;
    struct sockaddr_in6 listens;        /* or a struct sockaddr_in: for a link of the next hub; rank 0: zeros */
    uint32_t function_count;
    char name[BXI_NAME_BYTES], job[BXI_NAME_BYTES];     /* the job's as all know it, without a host's behind it */
    char host[BXI_HOST_BYTES], machine[BXI_HOST_BYTES];
    /* Of the wire, and from the next multiple of 8 on the rows of the functions. No more is sent. */
    unsigned char address[BXI_WIRE_ADDRESS_MAX + BXI_FUNCTION_MAX * sizeof(struct bxi_function)];
};
static inline uint32_t bxi_hello_functions(const struct bxi_hello *hello)       /* the offset of these rows */
{
    return (uint32_t)offsetof(struct bxi_hello, address) + ((hello->address_bytes + 7) & ~7u);
}
static inline uint32_t bxi_hello_bytes(const struct bxi_hello *hello)
{
    return bxi_hello_functions(hello) + hello->function_count * (uint32_t)sizeof(struct bxi_function);
}
/* Of a listens; 0: it is none. */
static inline socklen_t bxi_address_bytes(const struct sockaddr_in6 *address)
{
    return address->sin6_family == AF_INET6 ? sizeof *address
           : address->sin6_family == AF_INET ? sizeof(struct sockaddr_in) : 0;
}
bool bxi_hello_is_valid(const struct bxi_hello *hello, size_t bytes);

struct bxi_meeting {
    struct bx_job *job;
    struct bxi_net *net;
    const char *where;                  /* net->where */
    bool by_launcher;                   /* rank 0 tells that, and the secret, through it */
    char *secret;
    uint64_t deadline_ns;
    struct bxi_hello *self;
};

struct addrinfo;
int bxi_meet_resolve(const char *where, bool listens, struct addrinfo **found);
/* This host's own name leads to a loopback address here, as on Debian, and to others elsewhere: becomes the addresses
 * of this host, which is rank 0's. */
void bxi_meet_name_own(char where[BXI_ROOT_BYTES]);
void bxi_meet_keep(int fd, uint64_t timeout_ns);
/* HMAC of who, and both nonces, with the job's secret. */
bool bxi_meet_proof(const struct bxi_meeting *meeting, const char who[4], const unsigned char *theirs,
                    const unsigned char *own, unsigned char proof[BXI_WIRE_MAC_BYTES]);
bool bxi_meet_equal(const unsigned char *one, const unsigned char *two);
/* Tells that the start fails there, with a sentence, or NULL. Does not wait. */
void bxi_meet_tell(int fd, int code, const char *text);
/* What that says, as this thread's failure: its code. */
int bxi_meet_failure(const struct bxi_net_message *message, const void *text);
/* Fills in the places. 0, or a failure with its sentence. */
int bxi_meet_take_table(struct bxi_meeting *meeting, uint64_t instance, const unsigned char *body, size_t bytes);

/* launcher.c. 0, or a failure with its sentence. */
#define BXI_SECRET_BYTES 256
bool bxi_launcher_has_hosts(void);      /* some workers of bxi_launcher_job() are on other hosts, or BX_HOST is set */
void bxi_launcher_begin(void);          /* a meeting; all workers of a launcher have the same ones, in one order */
/* Of this host: "a:port,b:port"; the first one alone of an interface that UCX_NET_DEVICES names. */
void bxi_launcher_addresses(char list[BXI_ROOT_BYTES], unsigned port);
int bxi_launcher_secret(char secret[BXI_SECRET_BYTES]);                         /* draws one */
int bxi_launcher_put(const char *where, const char *secret);                    /* rank 0 */
void bxi_launcher_end(void);                                                    /* rank 0, when all have met */
int bxi_launcher_get(char where[BXI_ROOT_BYTES], char secret[BXI_SECRET_BYTES], uint64_t deadline_ns);  /* others */

int bxi_meet_guests(struct bxi_meeting *meeting);       /* rank 0's side. 0, or a failure with its sentence */

#endif
