/* SPDX-License-Identifier: MIT */
/*
 * What carries bytes to workers on other hosts: the table of the plug-in libboxcar_net.so (ucx/ucx.c), which alone is
 * linked with UCX and OpenSSL. A worker opens one wire, and an end towards each worker that it sends to.
 *
 * A message has a head and data. Both stay the sender's until `done` is called. They arrive whole, in any order.
 *
 * One thread at a time calls these functions: the one with the progress role, or the one that starts or ends the job.
 * Callbacks run in it, within progress, send, fetch, cut or close.
 */
#ifndef BXI_WIRE_H
#define BXI_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BXI_WIRE_VERSION 4u
#define BXI_WIRE_PLUGIN "libboxcar_net.so.0"
#define BXI_WIRE_HEAD_MAX 128u          /* bytes of a head */
#define BXI_WIRE_ADDRESS_MAX 4096u      /* bytes of an address */
#define BXI_WIRE_MAC_BYTES 32u

struct bxi_wire;
struct bxi_wire_end;
struct bxi_wire_large;                  /* data that is still with its sender */

/* A message or a fetch. Its caller's, who keeps it until `done`; fetches may share one. */
struct bxi_wire_operation {
    void (*done)(void *context, int rc);        /* 0, or -errno */
    void *context;
    struct bxi_wire *wire;                      /* the plug-in's, as the next ones: */
    struct bxi_wire_operation *next, **place;   /* of a message that is not done, among others */
};

struct bxi_wire_events {
    /* A message. data: there, until the call returns; or NULL, and large tells it. large: it must be fetched or
     * dropped, now or later. */
    void (*arrived)(void *context, const void *head, size_t head_bytes, const void *data, size_t bytes,
                    struct bxi_wire_large *large);
    /* The worker behind that end cannot be reached any more. */
    void (*lost)(void *context, void *peer);
    void *context;
};

struct bxi_wire_ops {
    uint32_t version;                   /* BXI_WIRE_VERSION */
    /* why: a sentence of the plug-in, of at most so many bytes. 0, -errno. */
    int (*open)(const struct bxi_wire_events *events, struct bxi_wire **wire, char *why, size_t why_bytes);
    /* Of this worker. 0, -errno. */
    int (*address)(struct bxi_wire *wire, unsigned char address[BXI_WIRE_ADDRESS_MAX], size_t *bytes);
    /* peer: for `lost`. 0, -errno. */
    int (*connect)(struct bxi_wire *wire, const void *address, void *peer, struct bxi_wire_end **end);
    void (*send)(struct bxi_wire_end *end, const void *head, size_t head_bytes, const void *data, size_t bytes,
                 struct bxi_wire_operation *operation);
    /* Brings large data to `to`. */
    void (*fetch)(struct bxi_wire *wire, struct bxi_wire_large *large, void *to, size_t bytes,
                  struct bxi_wire_operation *operation);
    void (*drop)(struct bxi_wire *wire, struct bxi_wire_large *large);
    /* By which transport, and device, its messages go; empty: UCX does not tell. text is all zeros. */
    void (*transport)(struct bxi_wire_end *end, char *text, size_t bytes);
    /* Its worker is dead: ends what is under way there and from there, with an error, and the end itself. */
    void (*cut)(struct bxi_wire_end *end);
    unsigned (*progress)(struct bxi_wire *wire);        /* not 0: something happened */
    /* The descriptor gets readable when there is something to progress. False: there is something now, which is said
     * once. Whoever arms it without a progress that found nothing, behind this and behind all other operations, may not
     * be told of the rest. */
    bool (*arm)(struct bxi_wire *wire);
    int (*descriptor)(const struct bxi_wire *wire);
    /* Sends what is under way, for so long at most, and ends all; what is not sent by then, with -ECANCELED. Nothing
     * arrives any more, and no fetch is told. */
    void (*close)(struct bxi_wire *wire, uint64_t timeout_ns);
    /* HMAC-SHA256. False: OpenSSL refuses. */
    bool (*mac)(const char *secret, const void *data, size_t bytes, unsigned char mac[BXI_WIRE_MAC_BYTES]);
};

/* What the plug-in exports. */
const struct bxi_wire_ops *bxi_wire_plugin(void);

#endif
