/* SPDX-License-Identifier: MIT */
/*
 * Peers: their names and functions, the ring to each, the bells, the ring from each and what happens to its worker.
 * A part of rpc.h, which includes it.
 */
#ifndef BXI_PEER_H
#define BXI_PEER_H

/* ---- names.c ------------------------------------------------------------------------------------- */

#define BXI_NO_INDEX UINT16_MAX
struct bxi_function_cache {     /* a peer's functions, copied from its segment */
    uint32_t count;
    uint8_t last;               /* index of the one found last: most calls are to the same function */
    uint16_t bucket[2 * BXI_FUNCTION_MAX];      /* open addressing by name; BXI_NO_INDEX if empty */
    char name[BXI_FUNCTION_MAX][BXI_NAME_BYTES];
};

void bxi_names_clear(struct bx_job *job);       /* no worker is found */
void bxi_names_build(struct bx_job *job);
struct bxi_peer *bxi_peer_find(struct bx_job *job, const char *name);      /* NULL */
int bxi_no_worker(const struct bx_job *job, const char *name); /* BX_E_NO_WORKER, with a sentence */
/* Index of a function of peer, or BX_E_NO_FUNCTION / BX_E_CORRUPT with a sentence. Lock. */
int bxi_function_find(struct bx_job *job, struct bxi_peer *peer, const char *name);

/* ---- peer.c --------------------------------------------------------------------------------------- */

enum bxi_peer_state {           /* atomic; role, but for the bootstrap */
    BXI_PEER_ALIVE = 1,
    BXI_PEER_DEAD,
    BXI_PEER_LEFT,
    BXI_PEER_CORRUPT,
    BXI_PEER_JOINING,           /* attached, and does not run yet: in no place (join.c) */
};

struct bxi_queued {             /* a frame that waits for room */
    struct bxi_queued *next;
    uint32_t payload_bytes;
    int32_t slot;               /* of a request: the slot where its end in the ring is noted; else -1 */
    int32_t lease;              /* likewise of the lease that it carries; else -1 */
    bool spare;                 /* one of rpc->spares */
    unsigned char payload[];
};

/* When memory is out, so many frames without a body, or of the protocol of references, can still be queued. */
#define BXI_SPARE_FRAMES 64

struct bxi_peer {
    /* start; the first three stay when the struct is used again */
    int rank;
    char name[BXI_NAME_BYTES];
    struct bxi_lend_peer *lend;             /* what is lent to it and borrowed from it */
    uint32_t pid;
    int pidfd;
    uint32_t generation;
    struct bxi_segment_view view;           /* of oneself: unused */
    bool is_remote;                         /* on another host (net/net.h) */
    unsigned char *loop;                    /* of oneself: the private ring; else NULL */
    bxi_a32 state;                          /* enum bxi_peer_state */
    bxi_a32 death_seen;                     /* enum bxi_peer_state to close it with; the role acts on it */
    uint32_t state_word;                    /* role: its header's state as last read */

    /* lock: the way out */
    bxi_a32 out_open;
    bool defer_bell;                        /* its bell's word said "awake" at the last check */
    bool replies_only;                      /* all frames that a bell is due for are replies */
    struct bxi_ring_writer out;
    struct bxi_bell_peer bell;
    uint64_t bell_pos;                      /* where the last frame ends that a bell is due for */
    struct bxi_queued *queue_head, *queue_tail;
    uint32_t wanted_bytes;                  /* the payload for which a one-way caller waits; 0 */
    uint64_t refused_seen;
    int close_code;                         /* why calls fail when it is not alive */

    /* lock: calls to it, and its calls here */
    struct bxi_slot *slots;
    uint32_t slot_count;
    uint32_t row_count;                     /* of them, shown in the segment: rows */
    struct bxi_call_row *rows;
    uint32_t in_flight;                     /* slots not FREE */
    uint16_t free_slot;                     /* head of the list; slot_count if empty */
    uint32_t serving;                       /* its requests here that are not yet answered */
    uint32_t serving_oneways;
    struct bxi_waiting *waiting[BXI_WAITING_CHAINS + 1];    /* the same requests; waiting.c */
    struct bxi_timer timer;                 /* at or before the earliest deadline of its slots */
    struct bxi_function_cache *functions;
    struct bxi_hist **hists;                /* by function, or NULL */

    /* role: the way in */
    bool in_open;
    bool draining;                          /* it is gone: its replies count, its requests are dropped */
    bool streams;                           /* many frames are under way to it: see peek in source.c */
    struct bxi_ring_reader in;
    bxi_a64 consumed;                       /* in.read_pos, for threads that send */

    bxi_a32 ended;                          /* role: its process has ended and its names are removed: another process
                                             * may take the rank. The door reads it */
    char on_host[BXI_HOST_BYTES + 12];      /* start: " on host 'its'", for sentences; "": of this host */
};

/* Zeroes what rpc and lend know of a peer, and links the two. */
void bxi_peer_init(struct bx_job *job, int rank);
struct bxi_peer *bxi_peer_create(int rank);         /* one more, as bxi_peer_init leaves it. NULL: no memory */
/* Allocates the peers, each as bxi_peer_init leaves it. 0, -ENOMEM. */
int bxi_peers_create(struct bx_job *job);
void bxi_peer_renew(struct bxi_peer *peer);         /* as bxi_peer_init; rank, name and memory stay. Lock */
struct bxi_peer *bxi_peer_former(const struct bxi_peer *peer);      /* of lend->former; NULL. Lock */
/* The peer's memory holds nonsense: the role will cut it off. Returns BX_E_CORRUPT with a sentence. */
BXI_COLD int bxi_peer_suspect(struct bx_job *job, struct bxi_peer *peer, const char *what);

/* ---- Sets of peers (lock; read without it only to skip taking it) --------------------------------- */

struct bxi_peers {
    bxi_a64 some;                           /* bits by word: it is not 0 */
    bxi_a64 word[BXI_WORKERS_MAX / 64];     /* bits by rank */
};

/* Its word for this one. Unsigned: no correction of a negative rank. */
static inline bxi_a64 *bxi_peers_word(struct bxi_peers *peers, const struct bxi_peer *peer)
{
    return &peers->word[(unsigned)peer->rank / 64];
}
static inline uint64_t bxi_peers_bit(const struct bxi_peer *peer)
{
    return UINT64_C(1) << ((unsigned)peer->rank % 64);
}
static inline void bxi_peers_add(struct bxi_peers *peers, const struct bxi_peer *peer)
{
    bxi_a64 *word = bxi_peers_word(peers, peer);

    /* Relaxed, here and in the next three: written under the lock. */
    bxi_store_relaxed(word, bxi_load_relaxed(word) | bxi_peers_bit(peer));
    bxi_store_relaxed(&peers->some, bxi_load_relaxed(&peers->some) | UINT64_C(1) << (unsigned)peer->rank / 64);
}
static inline void bxi_peers_remove(struct bxi_peers *peers, const struct bxi_peer *peer)
{
    bxi_a64 *word = bxi_peers_word(peers, peer);

    bxi_store_relaxed(word, bxi_load_relaxed(word) & ~bxi_peers_bit(peer));
    if (bxi_load_relaxed(word) == 0)
        bxi_store_relaxed(&peers->some, bxi_load_relaxed(&peers->some) & ~(UINT64_C(1) << (unsigned)peer->rank / 64));
}
static inline bool bxi_peers_have(struct bxi_peers *peers, const struct bxi_peer *peer)
{
    return (bxi_load_relaxed(bxi_peers_word(peers, peer)) & bxi_peers_bit(peer)) != 0;
}
static inline bool bxi_peers_any(struct bxi_peers *peers)
{
    return bxi_load_relaxed(&peers->some) != 0;
}

/* ---- out.c: frames out (lock) ---------------------------------------------------------------------- */

int bxi_spares_create(struct bx_job *job);          /* the spare frames. 0, -ENOMEM with a sentence. Start */
/* Opens the ring to a peer if it is not open. 0, BX_E_NO_SPACE. */
int bxi_peer_open_out(struct bx_job *job, struct bxi_peer *peer);
struct bxi_out {
    struct bxi_frame *head;
    const void *body;
    size_t body_bytes;
    int32_t slot;                   /* of a request; else -1 */
    bool may_queue;                 /* false: -EAGAIN when the ring is full */
    bool own_bell;                  /* the sender calls bxi_bell_own and bxi_bell_look_unlocked */
    struct bxi_grant *grant;        /* not yet granted, its body is then the body; or NULL */
    const struct bxi_rref_out *rrefs;       /* whose tail the body ends with; or NULL */
    int32_t lease;                  /* set by bxi_peer_send */
};
/* Sends head and body, or queues them. 0, -EAGAIN, -ENOMEM, BX_E_CORRUPT. */
int bxi_peer_send(struct bx_job *job, struct bxi_peer *peer, struct bxi_out *out);
/* Sends a frame without loans and references if it can go into the open ring at once. False: nothing was done. Lock. */
bool bxi_peer_send_plain(struct bx_job *job, struct bxi_peer *peer, const struct bxi_out *out);
/* Notes whether many frames are under way to the peer: it had not read them when it sent its last one. For peek
 * (source.c). Lock and role. */
#define BXI_STREAM_BYTES 1024u
static inline void bxi_peer_note_stream(struct bxi_peer *peer)
{
    peer->streams = peer->out.write_pos - peer->out.credit > BXI_STREAM_BYTES;
}
/* Ends a group of frames that began with bxi_ring_group_begin(&peer->out), its ring being open. Lock, not given back in
 * between. */
void bxi_peer_group_end(struct bx_job *job, struct bxi_peer *peer);
/* Moves queued frames into the ring while there is room; true if any moved. */
bool bxi_peer_flush_queue(struct bx_job *job, struct bxi_peer *peer);
/* Moves on all that waits for room in full rings; takes the lock. before_sleep: first asks the rings' consumers for a
 * bell. True if anything moved. */
bool bxi_queues_move_any(struct bx_job *job, bool before_sleep);
bool bxi_queues_are_empty(const struct bx_job *job);        /* no frame waits for room; lock */
void bxi_peer_drop_queue(struct bx_job *job, struct bxi_peer *peer);
/* A frame of the peer says how far it has read: takes the credit, and drops the bell that is due if all that it is for
 * has been read. 0, BX_E_CORRUPT. Lock. */
int bxi_peer_consumed(struct bx_job *job, struct bxi_peer *peer, uint64_t consumed);

/* ---- bell.c ----------------------------------------------------------------------------------------- */

void bxi_bell_due(struct bx_job *job, struct bxi_peer *peer, bool reply);  /* for the frame that was just put; lock */
void bxi_bells_pass(struct bx_job *job);        /* role, after a pass: flushes if the bells were deferred long enough */
/* Checks the bells that are due and rings those whose owners sleep: one fence for all. Takes the lock. */
void bxi_bells_flush(struct bx_job *job);
/* The same for requests that were just sent to one peer: under the lock, then behind the unlock, which is the fence. */
void bxi_bell_own(struct bx_job *job, struct bxi_peer *peer);
void bxi_bell_look_unlocked(struct bx_job *job, struct bxi_peer *peer);
/* Rings the peer if it sleeps. Lock, behind a fence. True if it did. */
bool bxi_bell_ring_sleeper(struct bx_job *job, struct bxi_peer *peer);
/* Rings every living peer's background eventfd: this worker's state has changed. Without the lock. */
void bxi_ring_all(struct bx_job *job);
/* After credit was published: rings the producers that wait for it. Role. */
void bxi_wanted_look(struct bx_job *job);

/* ---- watch.c: what happens to peers (role) ------------------------------------------------------- */

struct bxi_worker_hook {        /* of the program: a worker has died, or is back */
    void (*fn)(struct bx_job *job, int rank, void *context);    /* bx_death_fn, bx_join_fn; NULL: none */
    void *context;
};
void bxi_worker_hook_run(struct bx_job *job, const struct bxi_worker_hook *hook, int rank);

void bxi_scan(const struct bxi_role *role, struct bx_job *job);            /* open words, states, refusals of all */
void bxi_deaths_close(const struct bxi_role *role, struct bx_job *job);    /* peers whose death was seen */
void bxi_peer_close(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer,
                    enum bxi_peer_state state);
/* Handles up to `most` frames of a peer, fewer when the waiter is ready. How many. */
int bxi_read_ring(const struct bxi_role *role, struct bx_job *job, struct bxi_peer *peer, struct bxi_waiter *waiter,
                  int most);
/* Gives back what unread frames lend; progress has stopped. */
void bxi_frames_unread(const struct bxi_role *role, struct bx_job *job);

/* True if the peer's segment shrank while it was read: what was just copied may be zeroes. */
static inline bool bxi_truncated(const struct bxi_peer *peer)
{
    return bxi_lend_truncated(peer->lend);
}

#endif
