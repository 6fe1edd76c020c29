/* SPDX-License-Identifier: MIT */
/*
 * Workers on other hosts. The room's words:
 *
 *     host      what shares a /dev/shm: told by the boot id and by device and inode of /dev/shm, or by BX_HOST
 *     remote    a worker on another host
 *     wire      what carries bytes between hosts: the plug-in (wire.h)
 *     twin      what stands here for a remote worker: a control segment and an arena, in memory of this process
 *     link      a connection beside the wire, which tells deaths and whether a host answers (links.c)
 *     hub       the worker with a link to each other one
 *     words     what a worker tells a peer in its segment beside frames: its state, rounds, credits, refusals
 *     active    a twin with which more was exchanged than words that go to all. A pass looks at these alone, and at all
 *               twins when such a word, a ring from here, or the end of a peer is new
 *
 * The rooms above do not know where a peer is. A remote worker's twin is attached as any peer is: it has a segment, an
 * arena, bells and a descriptor that tells its end. This room keeps both twins of a pair alike. Here it reads what this
 * worker tells the remote one, as that would: the ring to it, its words, the leases that are given back. There it
 * writes all of that into this worker's twin. So each protocol holds that rests on one writer a page and on the order
 * of its stores:
 *
 *  N1  All messages of a pair have numbers, and take effect in their order, whatever the wire does.
 *  N2  Words are read under run->lock together with the position up to which the ring is written. They take effect
 *      behind the frames before that position, and no later frame takes effect before them.
 *  N3  A frame is put into the twin's ring as it was put here, so that the positions of both rings are the same, and
 *      credits and refusals mean the same frames.
 *
 * What takes the place of what hosts do not share:
 *
 *     a pidfd            nothing: this room tells the role when it hears that the worker died
 *     a bell             this worker's own: whoever drives it sends
 *     a clock            times in frames are moved by the difference of the two, which each message bounds (in.c)
 *     a borrowed block   a block of the own arena. The frame is changed so that it names that as if it were memory of
 *                        this worker's that comes back (lend/lend.h, "Passing back"): one copy, and none when it is
 *                        passed on within this host. The lease of the remote owner ends when the frame has been handled
 *     device memory      goes through host memory, as to a device without peer access (BXI_STAGED): copied out before
 *                        it is sent, and into a block of the receiver's device before the frame is handled. A receiver
 *                        without a GPU answers so
 *
 * Who dies: on the dead worker's host its pidfd tells, and those that live tell the other hosts, over the wire and over
 * the links (BXI_NET_DEATH). If nobody is left to tell, the ends of the wire and the links are lost, and after
 * BX_NET_TIMEOUT_MS (5 s) the worker counts as dead. A host is lost, with all its workers, when its kernel acknowledges
 * nothing on a link for that long. That a worker has left nobody else tells: the word of another one may come before
 * its own last ones.
 *
 * Who is cut off, or was taken for dead, and lives: it is told (BXI_PARCEL_CUT), and does the same to whoever told it.
 * It hears no words of that one any more, and would wait for them at the shutdown.
 *
 * HMAC proves who may join. After that nothing is encrypted or proven: whoever reaches the port of UCX may write this
 * process's memory. The network must be a trusted one.
 */
#ifndef BXI_NET_H
#define BXI_NET_H

#include "rpc/rpc.h"
#include "wire.h"

#include <netinet/in.h>

/* ---- Where workers are (meet.c) ---------------------------------------------------------------------- */

struct bxi_place {
    bool is_remote;
    char host[BXI_HOST_BYTES];          /* its identity */
    char machine[BXI_HOST_BYTES];       /* what people call it */
    char name[BXI_NAME_BYTES];
    uint32_t pid;
    int64_t clock_ns;                   /* what is added to its times to get this worker's. The role's, since it runs */
    uint64_t arena_bytes;
    unsigned char *address;             /* of its wire, malloc'ed */
    size_t address_bytes;
    struct bxi_function *functions;     /* function_count, of a remote worker, as it came. malloc'ed */
    uint32_t function_count;
    struct sockaddr_in6 listens;        /* or a struct sockaddr_in: where it takes a link of the next hub */
};

/* What goes over links: in the start with a body (message.c), then without one. */
enum bxi_net_kind {
    BXI_NET_NONCE = 1,          /* of the one that listens; then of the one that came, with its proof; then a proof */
    BXI_NET_PROOF,
    BXI_NET_CLOCK,              /* asks for the time; the answer has it */
    BXI_NET_HELLO,
    BXI_NET_TABLE,
    BXI_NET_READY,
    BXI_NET_GO,
    BXI_NET_FAIL,
    BXI_NET_LINK,               /* who makes a link: its rank, and behind the message, in 8 bytes, the job's instance */
    BXI_NET_DEATH,              /* of the worker `rank`; of the reader itself: it is taken for dead there */
    BXI_NET_PING,               /* nothing; the kernel there acknowledges it, also of a worker that is stopped */
};
struct bxi_net_message {
    uint32_t kind, bytes;       /* of what follows */
    uint64_t value;             /* CLOCK: the time; LINK, DEATH: the rank; FAIL: the code; TABLE: the instance */
};

struct bxi_twin;

/* The words of a pair, as they are sent. */
struct bxi_net_words {
    struct bxi_net_common {             /* to all the same */
        uint32_t state, function_count;
        uint64_t ending;
    } common;
    uint64_t open, want_credit, refused_through, refused_errno, want_lease, credit;
};

struct bxi_link {                       /* the thread's, since it runs */
    int fd;                             /* -1: none */
    uint64_t since_ns;                  /* since when the kernel connects it; 0: it is there */
    uint64_t lost_ns;                   /* when it hung up; 0 */
    bool host_is_lost;                  /* nothing of its host answers */
    struct bxi_net_message in;          /* that comes, as far as it has */
    unsigned got;                       /* bytes of it */
    unsigned unread;                    /* pings, since a message was read */
    int told;                           /* of net->dead, or no news to whoever is there */
};

enum bxi_links_order { BXI_LINKS_END, BXI_LINKS_WAIT, BXI_LINKS_RUN };

#define BXI_LINKS_MAX (2 * BXI_WORKERS_MAX)
#define BXI_KNOCKING BXI_WORKERS_MAX
#define BXI_ROOT_BYTES 1024             /* of the addresses of rank 0 */

struct bxi_net {
    const struct bxi_wire_ops *ops;     /* start, to places */
    struct bxi_wire *wire;
    char where[BXI_ROOT_BYTES];         /* rank 0 listens: BX_ROOT, or its addresses, parted by commas */
    int here;                           /* workers on this host, with this one */
    uint64_t timeout_ns;
    struct bxi_place places[BXI_WORKERS_MAX];
    struct bxi_twin *twins[BXI_WORKERS_MAX];    /* NULL: not remote */
    struct bxi_twin *remote[BXI_WORKERS_MAX];   /* role: all of these, the active ones first */
    int remote_count, active_count;
    struct bxi_net_common told;         /* role: to all that are not active */
    uint64_t changes_seen;              /* role: of rpc->pair_changes; whom they concern is active */
    struct bxi_link links[BXI_LINKS_MAX];       /* by the rank at the other end: made here, or in the meeting; behind
                                                 * these, those that were made there */
    int hub;                            /* the thread: the lowest rank that lives */
    int listen_fd;                      /* for links of others; -1: rank 0 has none */
    int knocking[BXI_KNOCKING];         /* the thread: connections to listen_fd that have shown nothing; -1: none */
    unsigned knocks;
    pthread_t thread;                   /* links.c: reads the links, and wakes who drives */
    bxi_a32 order;                      /* to the thread: enum bxi_links_order; END: there is none, or not for long */
    int epoll_fd, stop_fd;
    struct bxi_lock lock;               /* what the thread and the role share of deaths: twin->is_dead, lost_ns */
    bxi_a32 dead_here[BXI_WORKERS_MAX];         /* written by the role: 1: a death on this host, to be told by links */
    uint16_t dead[BXI_WORKERS_MAX];             /* the thread: deaths that links tell: these ranks, in that order */
    int deaths;
    bool is_dead[BXI_WORKERS_MAX];              /* the thread: by rank: it is one of these */
    uint64_t passes;                    /* role */
    bxi_a32 wire_is_watched;            /* by its thread */
    bool wire_stirs;                    /* role: it may not be armed before progress has found nothing */
    void *reserve;                      /* role: of bxi_net_memory; NULL: used, or not made yet */
};

/* Is that rank's worker on this host? */
static inline bool bxi_net_is_here(const struct bx_job *job, int rank)
{
    return job->net == NULL || !job->net->places[rank].is_remote;
}
/* How many workers this host has. */
static inline int bxi_net_here(const struct bx_job *job)
{
    return job->net == NULL ? job->world_size : job->net->here;
}

/* bx_job_start, before the workers of this host meet. If BX_ROOT is set, or mpirun or srun has started this job on
 * several hosts (launcher.c), meets the workers of all hosts: sets job->net, job->root and job->instance; else nothing.
 * With BX_HOST the job's name here gets that host's behind it. 0, or a failure with its sentence. */
int bxi_net_meet(struct bx_job *job, uint64_t deadline_ns);
/* The name of the job whose workers mpirun or srun has started, as PMIx says; NULL: none of more than one worker, or
 * BX_ROOT or BX_RANK is set. Static. */
const char *bxi_launcher_job(void);
/* The root of each host, before it opens its gate: waits until those of all hosts have come so far. Rank 0 tells them.
 * 0, or a failure with its sentence. */
int bxi_net_ready(struct bx_job *job, uint64_t deadline_ns);
/* While the workers of a host meet: has the start failed elsewhere? Does not wait. 0, or a failure with its
 * sentence. */
int bxi_net_ended(struct bx_job *job);
/* The start has failed with this thread's sentence: tells rank 0, or all. */
void bxi_net_fail(struct bx_job *job, int code);
void bxi_net_destroy(struct bx_job *job);       /* also what the other functions made. job->net may be NULL */

/* ---- message.c: what goes over links. Start; the thread has its own way --------------------------------- */

#define BXI_NET_MESSAGE_MAX (BXI_WORKERS_MAX * (4608u + BXI_FUNCTION_MAX * (unsigned)sizeof(struct bxi_function)))
/* 0; -EAGAIN: not by then, or with job BX_E_INTERRUPTED, with its sentence; -errno, of which -ETIMEDOUT is the link's:
 * its other host does not answer. job: that starts; NULL: deadline_ns is now. */
int bxi_net_send(const struct bx_job *job, int fd, const struct bxi_net_message *message, const void *body,
                 uint64_t deadline_ns);
/* message->bytes: for how many body has room; a longer message is -EPROTO. 0; -EPIPE: it has hung up; the others as of
 * the former. */
int bxi_net_receive(const struct bx_job *job, int fd, struct bxi_net_message *message, void *body,
                    uint64_t deadline_ns);

/* ---- twin.c ------------------------------------------------------------------------------------------- */

struct bxi_late;                        /* a message that came before its turn */
struct bxi_landing;                     /* a frame whose tensors are under way */
struct bxi_part;                        /* some of these */

struct bxi_twin {                       /* role, unless it says otherwise */
    struct bx_job *job;
    int rank;
    int place;                          /* in net->remote */
    struct bxi_control *control;        /* its segment, writable */
    unsigned char *arena;
    int arena_fd;
    bool is_dead;                       /* net->lock: its death is told */
    uint64_t lost_ns;                   /* net->lock: when its end of the wire was lost; 0 */
    struct bxi_remote_row *row;         /* of this worker's segment; NULL: none */
    uint64_t stamp_ns, stamped_ns;      /* its clock in its last message, and when that came; 0: none has */

    /* the way out */
    struct bxi_wire_end *end;           /* NULL: nothing was sent yet, or since its death */
    bool out_open;
    struct bxi_ring_reader out;         /* this worker's ring to it */
    bxi_a64 out_credit;                 /* nobody reads it */
    uint64_t number;                    /* of the next message */
    struct bxi_net_words sent;
    bool words_under_way;               /* a message of words alone, which the wire is not done with */
    bxi_a32 told;                       /* the state in them, for bxi_net_tell_left */
    uint64_t given_back;                /* of this worker's pair, as last read */
    uint32_t last_returned;             /* the slot: the next one is often it, or behind it */
    uint64_t *returned;                 /* BXI_LEASE_MAX: this worker's lease words as last sent */
    uint32_t parts_under_way;           /* that the wire is not done with */
    uint32_t parts_ahead;               /* that were sent since none was */
    bool waits_for_parts;               /* the next frame lends, and may not go before none is */
    bool has_heard;                     /* it was told that it is cut off here, or cannot be */

    /* the way in */
    struct bxi_ring_writer in;          /* its ring to this worker, in the twin's segment */
    bxi_a64 in_want;
    uint64_t next;                      /* the number of the message whose turn it is */
    struct bxi_late *late, *last_late;  /* by number */
    size_t late_bytes;                  /* of all of these */
    struct bxi_landing *landing;        /* the messages behind it wait */
    struct bxi_part *parts;             /* that came before their frame */
    uint32_t part_count;
    struct bxi_landed *landed, **landed_end;
    uint32_t landed_name;               /* of the next one */
};

/* Makes the twins of all remote workers, and attaches them. This worker's segment is there. Start. 0, or a failure with
 * its sentence. */
int bxi_twins_attach(struct bx_job *job);
/* Each pass looks at it from now on. Role. */
void bxi_twin_activate(struct bxi_twin *twin);
void bxi_twin_dies(struct bxi_net *net, struct bxi_twin *twin);     /* the role closes its peer. Any thread */
/* The job; a twin, whose end of the wire is lost: it dies after net->timeout_ns. Any thread. */
void bxi_twin_lost(void *context, void *twin);

/* ---- parcel.c: a message of the wire (role) ------------------------------------------------------------- */

/* Behind the head of kind FRAMES, and of LEASE, which has one: for each frame its length in 8 bytes, the frame, and
 * zeros up to a multiple of 8. */
enum bxi_parcel_kind { BXI_PARCEL_FRAMES = 1, BXI_PARCEL_FUNCTIONS, BXI_PARCEL_RETURNS, BXI_PARCEL_LEASE,
                       BXI_PARCEL_PART, BXI_PARCEL_DEATH, BXI_PARCEL_CUT };
struct bxi_parcel_head {
    uint64_t instance;
    uint16_t from, kind;
    uint32_t index;                     /* FUNCTIONS: the first row; PART: which */
    uint64_t number;                    /* PART: of the LEASE; DEATH: the rank; CUT: what it is, enum bxi_peer_state */
    uint32_t has_words, reserved;       /* words count */
    uint64_t stamp_ns, echo_ns;         /* show.c */
    struct bxi_net_words words;
};
struct bxi_parcel_return {
    uint64_t slot, generation;
};
struct bxi_sending;
struct bxi_parcel {
    struct bxi_parcel_head head;
    struct bxi_twin *twin;
    struct bxi_wire_operation operation;
    struct bxi_sending *sending;        /* of a part; else NULL */
    bool is_words;                      /* and nothing else */
    size_t bytes;
    unsigned char data[];
};
/* What the parts of a frame lie in. Its lease may end before they are sent: its borrower dies. */
struct bxi_sending {
    uint32_t parts;                     /* that the wire is not done with, and one until all are begun */
    uint32_t count;
    struct bxi_storage *storages[];     /* one reference each */
};
/* malloc'ed, if need be at the cost of a reserve, which each pass tries to make again: for what has come, or belongs to
 * what was sent. NULL: no memory. Role. */
void *bxi_net_memory(struct bxi_net *net, size_t bytes);
struct bxi_parcel *bxi_parcel_make(struct bxi_twin *twin, enum bxi_parcel_kind kind, size_t room);     /* NULL */
/* Sends its data, or memory that stays as it is until it is there; frees the parcel then. */
void bxi_parcel_send(struct bxi_twin *twin, struct bxi_parcel *parcel);
void bxi_parcel_send_memory(struct bxi_twin *twin, struct bxi_parcel *parcel, const void *memory, size_t bytes);
/* A part of what is counted there. */
void bxi_parcel_send_part(struct bxi_twin *twin, struct bxi_parcel *parcel, const void *memory, size_t bytes);
void bxi_sending_drop(struct bxi_sending *sending);     /* one of its parts */
/* That worker is dead or cut off here: tells it once. So is this one there then, and it does not wait for it. */
void bxi_parcel_send_cut(struct bxi_twin *twin);

/* ---- apply.c: what takes effect (role) ------------------------------------------------------------------ */

void bxi_in_nonsense(struct bxi_twin *twin, const char *what);  /* cuts it off */
/* What it sent could not be fetched: its end of the wire is lost, as when it dies meanwhile. */
void bxi_in_not_fetched(struct bxi_twin *twin, int rc);
/* False: it was nonsense. */
bool bxi_in_functions(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data,
                      size_t bytes);
bool bxi_in_returns(struct bxi_twin *twin, const unsigned char *data, size_t bytes);
bool bxi_in_frames(struct bxi_twin *twin, const unsigned char *data, size_t bytes);
bool bxi_in_put(struct bxi_twin *twin, const unsigned char *frame, uint32_t bytes);
void bxi_in_words(struct bxi_twin *twin, const struct bxi_net_words *words);

/* ---- landing.c: frames that lend (role) ------------------------------------------------------------------ */

/* While a part is under way, the next frame's turn does not come, and its parts are kept by the receiver. So no more
 * follow than these, or those of one frame. */
#define BXI_PARTS_AHEAD 4096u
/* A frame that lends has to wait: twin->waits_for_parts is set. */
bool bxi_out_must_wait(struct bxi_twin *twin, const unsigned char *frame);
/* Sends the parts of a frame whose LEASE was sent with that number. */
void bxi_out_lease(struct bxi_twin *twin, const unsigned char *frame, uint64_t number);
/* A LEASE whose turn it is. twin->landing is set until it is complete. */
void bxi_landing_begin(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data,
                       size_t bytes);
/* A part: data, or large. */
void bxi_landing_part(struct bxi_twin *twin, const struct bxi_parcel_head *head, const void *data, size_t bytes,
                      struct bxi_wire_large *large);
void bxi_landing_drop_kept(struct bxi_twin *twin);     /* parts that came before their frame; the wire is there */
/* The worker is gone: lets the frame go that is under way, unless the wire still writes to its blocks. */
void bxi_landing_end(struct bxi_twin *twin);
void bxi_landing_drop_packed(const struct bxi_twin *twin, uint64_t offset, uint64_t bytes);    /* in its arena */
void bxi_landing_forget(struct bxi_twin *twin);         /* behind the wire's end, which may still write to blocks */

/* ---- in.c: what remote workers tell (role) --------------------------------------------------------------- */

void bxi_in_arrived(void *context, const void *head_at, size_t head_bytes, const void *data, size_t bytes,
                    struct bxi_wire_large *large);
/* Goes on where something waited, and lets go what frames that were handled had landed in; how many. */
int bxi_in_pass(struct bx_job *job);
/* Lets go what frames of that worker had landed in, once they were handled, and drops what they had in its twin's
 * arena; how many. Before it hears that they were: it may lend the same place again at once. */
int bxi_in_let_go(struct bxi_twin *twin);
void bxi_in_forget(struct bxi_twin *twin);

/* ---- out.c: what this worker tells remote ones (role) ---------------------------------------------------- */

int bxi_out_pass(struct bx_job *job, bool look_at_words);      /* sends what there is; how much */
bool bxi_out_waits(struct bx_job *job);                         /* something is to be sent */
bool bxi_out_has_frames(struct bx_job *job);                    /* the same of frames alone */
void bxi_out_death(struct bx_job *job, int rank);               /* of a worker of this host */

/* ---- show.c: the rows for shmstat ------------------------------------------------------------------------ */

void bxi_net_show(struct bx_job *job);          /* start, when the twins are there */
/* A message leaves: its head gets its times. Role. */
void bxi_net_show_sent(struct bxi_twin *twin, struct bxi_parcel_head *head, size_t bytes);
void bxi_net_show_received(struct bxi_twin *twin, const struct bxi_parcel_head *head, size_t bytes);    /* role */
void bxi_net_show_death(struct bxi_twin *twin);         /* any thread */
void bxi_net_show_functions(struct bxi_twin *twin, uint32_t first, uint32_t count);     /* these have come */

/* ---- source.c ------------------------------------------------------------------------------------------- */

#define BXI_EVENT_NET 512u
void bxi_net_start(struct bx_job *job);         /* before progress starts */
/* Waits until LEFT is sent to all, or for a second. While there are passes. */
void bxi_net_tell_left(struct bx_job *job);
/* The end: sends the last words. No pass is made any more. */
void bxi_net_stop(const struct bxi_role *role, struct bx_job *job);

/* ---- links.c ------------------------------------------------------------------------------------------- */

#define BXI_TOKEN_WIRE UINT64_C(100000)         /* of the wire's descriptor in net->epoll_fd */
/* When all have met: makes all that can fail, while the others still hear of it. The thread waits for the next two. 0,
 * or a failure with its sentence. */
int bxi_links_start(struct bx_job *job);
void bxi_links_run(struct bxi_net *net);
static inline bool bxi_links_are_run(const struct bxi_net *net)
{
    return bxi_load_relaxed((bxi_a32 *)&net->order) == BXI_LINKS_RUN;   /* relaxed: of the threads that give orders */
}
void bxi_links_stop(struct bxi_net *net);       /* also of a net that was never started */
/* A worker of this host has died: the other hosts are told. Role. */
void bxi_net_tell_death(struct bx_job *job, int rank);

/* ---- load.c --------------------------------------------------------------------------------------------- */

int bxi_wire_load(const struct bxi_wire_ops **ops);     /* 0, or a failure with its sentence */

#endif
