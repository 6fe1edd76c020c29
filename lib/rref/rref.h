/* SPDX-License-Identifier: MIT */
/*
 * References to objects of other workers. The room's words:
 *
 *     object      what the program made, with its type; it lives in one process, its owner
 *     reference   struct bx_rref: an object as one process sees it; one for each object and process, and counted
 *     holder      a worker, not the owner, that has a reference
 *     entry       a holder's count in the owner's list: it keeps the object alive
 *
 * The protocol is reference listing, as in Network Objects (Birrell, Evers, Nelson, Owicki, Wobber, 1993), with counts
 * that make it hold without a round trip where the owner takes part. Frames of a pair of workers arrive in the order
 * sent; nothing is known of the order across pairs. All frames of one worker to another, messages and these, go through
 * one ring and one queue.
 *
 *     ENTER(id)       holder to owner: I have a reference that a third worker passed to me. Adds 1 to my entry.
 *     ENTERED(id)     the answer, with an error if the owner has no such object.
 *     KEPT(id)        to the worker that passed it: the owner has my entry; you need not keep yours for my sake.
 *     LEAVE(id, n)    holder to owner: my last reference is gone. Takes n from my entry, where n counts what has been
 *                     added that I know of: ENTERs of mine, and messages of the owner that I have read. When n gets
 *                     large, all but 1 is given back earlier: neither side's count overflows.
 *     PASSED(id, dead), ASK(round, dead), ANSWER(round)       below
 *
 * Passing a reference in a message (an argument, a reply, the object that a call is for):
 *
 *     owner to holder     the owner adds 1 to the entry, then sends. If the holder's LEAVE crosses the message, the
 *                         entry is still 1 afterwards, and the message will be read.
 *     holder to owner     nothing: a later LEAVE of the sender is behind the message.
 *     holder A to B       A pins its reference, then sends. B has an entry already: KEPT at once. Else B sends ENTER,
 *                         and KEPT when ENTERED comes. KEPT takes A's pin away. A sends LEAVE when it has neither
 *                         references nor pins left. B may use, pass on and drop its reference at once: its frames to
 *                         the owner are behind its ENTER, and A's pin stays until the entry is there.
 *     to oneself          the frame has a reference.
 *
 * Making one (bx_remote): the maker chooses the id, and the request that makes the object adds 1 to its entry. ENTER
 * for an id that the owner does not know yet, of a maker that lives, makes an entry for an object that is to come: the
 * request is on its way in another ring. Ids of one maker to one owner are sent in ascending order; one that is unknown
 * and not above the last one seen, or far above it, is gone.
 *
 * Death of a holder A. What A has published still counts: B may have a message of A with a reference that B has not
 * read, and only A's entry keeps the object alive. So the owner keeps the entries of A until no message of A is left
 * unread anywhere: it sends ASK with the set of the dead to every living worker, and a worker answers when it has read
 * the ring of each of them to the end and closed it; its ENTERs are before its ANSWER. When another worker dies or
 * leaves meanwhile, the owner asks again, with a larger set and the next round: that worker may have passed on what it
 * had of A, and its own ENTER may have died with it. For the same reason the set has all that died before A, in every
 * round: one of them may have had of A what a third has not read. When all have answered the round, the entries of the
 * set are dropped. The owner drops the entries of a worker that it cut off at once: others may never close that one.
 * The requests that A has left unread at the owner are dropped, but the objects that they were to make are entered:
 * A's other frames about these lie behind them. The same holds for a worker that has left.
 *
 * The set. A worker is a rank and a generation, and for each process it is open or closed. bxi_rref_closed says which,
 * and nothing else does: of a rank, generations are closed in ascending order, so it is a number. A round's set is
 * these numbers of all ranks, fixed when it begins, and a round is open while an answer is awaited. So one that joins
 * later is not in the set, and what is to be dropped is not forgotten when a rank is taken again. A close begins an
 * open round anew: an entry of a closed worker is in the set of the round that is open.
 *
 * Death of a worker B to which A has passed a reference. B's ENTER may have died with it, and yet a third worker, or
 * the owner, may have a message of B with the reference. So A, when it closes B, sends PASSED to the owner for each pin
 * for B, before it takes the pin away: that adds 1 to B's entry, which a round drops. If none is open, and B is
 * closed, PASSED begins one. A's PASSED is before its ANSWER to any round that names B.
 *
 * Death of the owner: each use of a reference fails with BX_E_PEER_DEAD; BX_E_SHUTDOWN if it has left, and
 * BX_E_CORRUPT if this worker has cut it off, as any call to it.
 *
 * The end. A worker is not quiet (job/shutdown.c) while a pin or an ENTER waits for an answer, or a frame waits in a
 * queue. So when all are quiet, the LEAVEs of all that was released are in the rings; the owner reads what is left
 * there before it reports what is still referred to (rpc/watch.c, bxi_frames_unread).
 *
 * A rank that is taken again. An id names the generations of its owner and its maker, so an object of a worker that is
 * dead is never taken for one of its successor. ASK says for each rank how many of its generations must be closed. The
 * successor is not called before all workers have met it (rpc/join.c), so what comes from a worker names none that this
 * one has not met; that it runs, the sender may know first (bxi_rref_has_run). Entries of the dead that a round has
 * not dropped yet, and those of a PASSED that comes late, are counted for nobody in particular (entries[world_size]):
 * all are of closed workers, and the next end of a round drops them.
 *
 * Leases have rounds of their own (BXI_ROUND_LEASES), with the same frames. A worker that had leased tensors to the
 * dead asks, if that one ever passed tensors on; a worker answers when it has closed each of the set and holds no loan
 * of them with tensors that they passed on, opened since the lease was granted: an older loan has nothing of the lease.
 * So a round is for the newest leases that wait, and the next one for those before. If older loans counted, workers
 * could wait for each other for ever: each has a loan of one dead worker that its lease to another dead one holds. A
 * worker that dies meanwhile joins the set, and one that died before is in it, for it may have passed on what it had of
 * the dead. Then the leases are taken back that wait for it: the record of what a dead worker has on loan says so
 * itself (lend/lend.h, waits_for_round). tests/model/lease.pml.
 *
 * Kill steps. A worker that dies after any frame of the protocol leaves what its published frames say: an ENTER without
 * KEPT leaves an entry that the rounds drop, and a pin that the sender drops when it closes the dead; a message without
 * its LEAVE likewise. tests/model/rref.pml checks this with kills at every step.
 *
 * Without memory. A message is not sent unless all that it counts has room. One that cannot be taken in is undone, so
 * that its sender counts as if it had been read and released: LEAVE to its owner, KEPT for a pin; of the object to make
 * only the number is kept (unmade), because its maker's LEAVE will come. Frames of the protocol that find the ring full
 * have room of their own in the queue (rpc/out.c).
 *
 * A worker that has no room in /dev/shm for its ring to the sender refuses messages (rpc/dispatch.c). It can send
 * neither LEAVE nor KEPT, so it takes no references in, and the sender undoes what the refused messages have counted.
 *
 * Threads: the table, the counts of entries and pins, and states change under run->lock, in the same section in which
 * the frame is put into the ring; so the order of frames is the order of changes. A count of references is atomic; the
 * last one is dropped under the lock. Destructors of objects are called without it, by the thread that drops the last
 * reference or by the role.
 *
 * The room knows no rings: struct bxi_rref_ops, which rpc gives it, sends its frames.
 */
#ifndef BXI_RREF_H
#define BXI_RREF_H

#include "base/usercall.h"
#include "observe/observe.h"
#include "run/run.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bxi_waiting;

/* ---- Ids, and the tail of a frame ------------------------------------------------------------------ */

/* observe/tables.h has the parts of an id. */

/* The body of a frame with BXI_FLAG_RREFS ends with ids (of the object to make, if MAKES; of the object that is called,
 * if TARGET; then count of the message) and this. */
struct bxi_rref_tail {
    uint32_t count;
    uint8_t flags;
    uint8_t reserved[3];            /* 0 */
};
#define BXI_RREF_MAKES 1u
#define BXI_RREF_TARGET 2u
#define BXI_RREF_VALUE 4u               /* with TARGET: the object's value is asked for, the function means nothing */

/* A maker has at most so many requests to one owner that were not read: its calls in flight (rpc/object.c). */
#define BXI_RREF_UNSEEN_MAX 1024

/* A holder gives back all but 1 of its entry when it is that large. */
#define BXI_RREF_COUNTED_MAX (1u << 16)

/* ---- A reference ------------------------------------------------------------------------------------- */

enum bxi_rref_state {
    BXI_RREF_TO_COME = BXI_OBJECT_TO_COME,      /* its maker waits for the owner; its owner: it is not made yet */
    BXI_RREF_THERE = BXI_OBJECT_THERE,
    BXI_RREF_FAILED = BXI_OBJECT_FAILED,        /* each use fails with code and text */
};

/* What the program made. Several ids may lead to it: its own, and that of the bx_remote that made it. */
struct bxi_object {
    uint32_t refs;                  /* lock: references that lead to it */
    const struct bx_type *type;
    void *object;
    struct bxi_object *next;        /* in a list of objects to destroy */
};

/* A worker that passed a reference whose ENTER is not answered yet: KEPT is due to it, count times. */
struct bxi_passer {
    struct bxi_passer *next;
    int rank;
    uint32_t count;
};

/* A message to a worker, with a reference of which it is not the owner. If this worker is the owner, there is one only
 * until that worker has opened its ring to this one: the entry counts, and the message may be refused. */
struct bxi_pin {
    struct bxi_pin *next, *prev;    /* in the list of that worker, the oldest first */
    struct bx_rref *rref;
    uint64_t call;                  /* the message's: the id of a call */
    uint64_t end_pos;               /* of one-way calls, which are not queued: where it ends in the ring; else
                                     * BX_FOREVER */
};

struct bx_rref {
    bxi_a32 refs;                   /* the program's, messages', frames' to oneself; 1 -> 0 under the lock */
    bxi_a32 state;                  /* enum bxi_rref_state; written under the lock, with release */
    _Atomic(struct bx_job *) job;   /* NULL once the job is gone */
    uint64_t id;                    /* written before it is in the table */
    struct bx_rref *next;           /* lock, all below: in the table */
    bool is_making;                 /* the owner: the request that makes it has come */
    int code;                       /* FAILED */
    char *text;
    bool unmade;                    /* the maker: bx_remote failed */
    bxi_a32 heard;                  /* used in a call or a message, or the program was told of its error; relaxed */
    uint64_t since_ns;
    uint32_t counted;               /* a holder: what was added to its entry, as far as it knows */
    bool entering;                  /* a holder: its ENTER is not answered */
    uint32_t pins;                  /* a holder: messages to third workers without KEPT */
    struct bxi_passer *passers;
    struct bxi_object *object;      /* the owner, THERE */
    uint32_t *entries;              /* the owner: by rank, and at world_size those of generations before a rank's last
                                     * one; NULL: all 0; changed by bxi_rref_add_entries alone */
    uint64_t entry_sum;
    struct bxi_object_row *row;     /* the owner: for inspectors, while it is in the table; NULL: none */
    struct bxi_waiting *parked, **parked_end;   /* the owner: calls on an object that is to come, in order; rpc's */
};

/* ---- The room above ----------------------------------------------------------------------------------- */

enum bxi_rref_op { BXI_RREF_ENTER = 1, BXI_RREF_ENTERED, BXI_RREF_KEPT, BXI_RREF_LEAVE,
                   BXI_RREF_PASSED, BXI_RREF_ASK, BXI_RREF_ANSWER };

struct bxi_rref_frame {
    enum bxi_rref_op op;
    uint64_t id;                    /* or the round */
    int32_t value;                  /* LEAVE: how many; ENTERED: the error, or 0; PASSED: the rank; ASK, ANSWER: enum
                                     * bxi_round_kind */
    const void *body;               /* ASK: what is needed, world_size bytes; for leases then since_ns, 8 bytes */
    size_t body_bytes;
};

struct bxi_rref_ops {
    /* This worker holds a loan of one of the first `generations` workers of that rank with tensors that it had passed
     * on, opened at since_ns or later, or its GPU may still read one. Lock. */
    bool (*holds_passed)(struct bx_job *job, int rank, uint8_t generations, uint64_t since_ns);
    uint64_t (*newest_waiting_ns)(const struct bx_job *job);    /* of the leases that wait for a round. Lock */
    /* Those that were granted then or later; begins the next round if others wait. Without the lock. */
    void (*take_back)(struct bx_job *job, uint64_t since_ns);
    /* Puts a frame of the protocol into the ring to a worker, or its queue. Lock. 0, BX_E_NO_SPACE, -ENOMEM, ... */
    int (*send)(struct bx_job *job, int rank, const struct bxi_rref_frame *frame);
    void (*flush)(struct bx_job *job);          /* rings for what was sent; without the lock */
    /* The last worker of the rank that ran is not closed. One that joins and runs takes the rank's place now,
     * so generations are compared behind it. Lock. */
    bool (*is_alive)(const struct bx_job *job, int rank);
    /* Of one that is closed: BX_E_PEER_DEAD, BX_E_SHUTDOWN if it has left, BX_E_CORRUPT if it was cut off. */
    int (*why_closed)(const struct bx_job *job, int rank);
    const char *(*name)(const struct bx_job *job, int rank);
    const char *(*on_host)(const struct bx_job *job, int rank); /* " on host 'its'"; of one of this host "" */
    /* The pin's message to that worker ends before the position. Lock. */
    bool (*is_before)(const struct bx_job *job, int rank, const struct bxi_pin *pin, uint64_t pos);
    /* The object is made, or never will be: the calls that waited for it can go on. Lock. */
    void (*unpark)(struct bx_job *job, struct bxi_waiting *parked);
};

/* ---- The part of the job ------------------------------------------------------------------------------ */

#define BXI_RANK_WORDS (BX_WORKERS_MAX / 64)
#define BXI_RREF_NEED_MAX (BX_WORKERS_MAX + 8)   /* the body of an ASK: by rank, how many generations to be closed; of
                                                 * one for leases, then since_ns */
enum bxi_round_kind { BXI_ROUND_ENTRIES = 0, BXI_ROUND_LEASES = 1, BXI_ROUND_KINDS = 2 };
struct bxi_round {                  /* the asker's */
    uint64_t number;                /* of the last ASK; 0: none ever */
    uint8_t closed[BX_WORKERS_MAX]; /* its set: of each rank the first so many workers; fixed when it began */
    uint64_t since_ns;              /* of leases: it is for those that were granted then or later */
    uint64_t awaited[BXI_RANK_WORDS];       /* who has not answered it; nobody: no round is open */
};

struct bxi_rrefs {
    const struct bxi_rref_ops *ops;             /* start */
    struct bx_rref **table;                     /* lock, all below: chains by id */
    uint32_t table_size;                        /* a power of two, or 0 */
    uint32_t count;
    uint8_t generation[BX_WORKERS_MAX];         /* of the last worker of each rank that ran: from 0 */
    uint64_t made[BX_WORKERS_MAX];              /* ids that this worker has made, by owner */
    uint64_t seen[BX_WORKERS_MAX];              /* the last id of each maker whose request has come */
    uint32_t unmade[BX_WORKERS_MAX];            /* requests of each maker for which there was no memory: no entry */
    struct bxi_pin *pins[BX_WORKERS_MAX];       /* messages to each worker */
    struct bxi_pin *last_pin[BX_WORKERS_MAX];
    bool opened[BX_WORKERS_MAX];                /* its ring to this worker is open: it refuses nothing any more */
    struct bxi_pin *spare_pins;                 /* for the message that is sent next */
    uint32_t spare_pin_count;
    struct bxi_round rounds[BXI_ROUND_KINDS];
    uint64_t asked[BXI_ROUND_KINDS][BX_WORKERS_MAX];    /* by each worker: the round; 0: answered */
    uint64_t since_ns[BX_WORKERS_MAX];          /* by each worker that asked for leases: of which loans */
    uint8_t *needs;                             /* bxi_rref_need. Made with the peers */
    uint32_t pending;                           /* pins, and ENTERs without an answer: frames about them will come */
    bool ended;                                 /* nothing is sent any more */
    bool rows_failed;                           /* the segment has no room for rows of objects */
    uint16_t free_row_count;
    uint16_t free_rows[BXI_OBJECTS_MAX];        /* a stack: rows that were taken and given back */
};

/* ---- show.c: objects of this worker in the segment, for shmstat (lock, all) -------------------------------- */

/* One of this worker's is in the table, or is taken out. */
void bxi_rref_show(struct bx_job *job, struct bx_rref *rref);
void bxi_rref_hide(struct bx_job *job, struct bx_rref *rref);
void bxi_rref_show_state(const struct bx_rref *rref, enum bxi_rref_state state);
/* Changes what the worker of that rank holds (world_size: older generations); rref->entries is there. */
void bxi_rref_add_entries(const struct bx_job *job, struct bx_rref *rref, int rank, int64_t by);

/* ---- table.c: references, and what becomes of them ------------------------------------------------------ */

/* A message for the log hook, which is the program's code: it runs without the lock. */
struct bxi_rref_said {
    struct bxi_rref_said *next;
    int level;
    char text[BXI_TEXT_BYTES];
};

/* What a section of the lock leaves to be done without it. */
struct bxi_rref_after {
    struct bxi_rref_said *said, *last_said;
    struct bxi_object *destroy;
    bool sent;
    bool take_back;                     /* the leases that wait for a round, and were granted then or later: */
    uint64_t since_ns;
};
void bxi_rref_do_after(struct bx_job *job, struct bxi_rref_after *after);
/* Keeps a message for the log hook; without memory it is lost. */
void bxi_rref_say(struct bxi_rref_after *after, int level, const char *format, ...) BX_PRINTF(3, 4);

/* The next six: lock. */
struct bx_rref *bxi_rref_find(struct bx_job *job, uint64_t id);
/* One of this worker's, or one that is to come, or an id that is gone: a reference that has failed. NULL: no memory. */
struct bx_rref *bxi_rref_of_ours(struct bx_job *job, uint64_t id);
struct bx_rref *bxi_rref_new(struct bx_job *job, uint64_t id);     /* 0 references, not in the table; NULL: no memory */
int bxi_rref_insert(struct bx_job *job, struct bx_rref *rref);     /* 0, -ENOMEM */
int bxi_rref_reserve(struct bx_job *job);                          /* so that the next insert succeeds; 0, -ENOMEM */
/* So that bxi_rref_add_entries may be called, if it may not yet. false: no memory. */
bool bxi_rref_make_entries(const struct bx_job *job, struct bx_rref *rref);
/* If nothing needs the reference any more: LEAVE, or the object's end. Call it after each change. */
void bxi_rref_settle(struct bx_job *job, struct bx_rref *rref, struct bxi_rref_after *after);
void bxi_rref_send(struct bx_job *job, int rank, const struct bxi_rref_frame *frame, struct bxi_rref_after *after);
/* Drops a reference with the lock held. */
void bxi_rref_drop(struct bx_job *job, struct bx_rref *rref, struct bxi_rref_after *after);
void bxi_rref_fail(struct bx_rref *rref, int code, const char *text);  /* lock */
void bxi_rref_fail_with_owner(struct bx_job *job, struct bx_rref *rref);       /* lock: its owner is closed */
/* 0; or the error of one that failed, with its sentence. */
int bxi_rref_check(const struct bx_rref *rref, const char *function);
void bxi_rref_forget_object(struct bx_rref *rref);     /* of bx_rref_create: it will not be destroyed with it */
/* As bx_rref_release, but the thread does not end in it if it is to end: it may hold the role. */
void bxi_rref_release(struct bx_rref *rref);
void bxi_rref_release_all(struct bx_rref *const *rrefs, size_t count);
void bxi_rrefs_destroy(struct bx_job *job);     /* bx_job_destroy */

static inline enum bxi_rref_state bxi_rref_state(const struct bx_rref *rref)
{
    /* [rref.state] acquire, pairs with the release in bxi_rref_set_state: code, text and object are read after it. */
    return (enum bxi_rref_state)bxi_load_acquire((bxi_a32 *)&rref->state);
}
static inline void bxi_rref_set_state(struct bx_rref *rref, enum bxi_rref_state state)
{
    if (rref->row != NULL)
        bxi_rref_show_state(rref, state);
    /* [rref.state] release, pairs with the acquire in bxi_rref_state. */
    bxi_store_release(&rref->state, state);
}
/* NULL once the job is gone, and of NULL. */
static inline struct bx_job *bxi_rref_job(const struct bx_rref *rref)
{
    return rref != NULL ? atomic_load((_Atomic(struct bx_job *) *)(uintptr_t)&rref->job) : NULL;
}
/* The owner is the worker that has that rank now. */
static inline bool bxi_rref_is_of(const struct bx_job *job, int rank, uint64_t id)
{
    return bxi_rref_id_owner(id) == rank && bxi_rref_id_owner_generation(id) == job->rrefs->generation[rank];
}
static inline bool bxi_rref_is_ours(const struct bx_job *job, uint64_t id)
{
    return bxi_rref_is_of(job, job->rank, id);
}
/* The same of the maker. */
static inline bool bxi_rref_is_made_by(const struct bx_job *job, int rank, uint64_t id)
{
    return bxi_rref_id_maker(id) == rank && bxi_rref_id_maker_generation(id) == job->rrefs->generation[rank];
}
/* Of the rank: it runs, or has run. Whoever names it may have seen that before this worker. Lock. */
static inline bool bxi_rref_has_run(const struct bx_job *job, int rank, uint8_t generation)
{
    return generation <= job->rrefs->generation[rank] ||
           (rank != job->rank && job->rrefs->ops->is_alive(job, rank) && generation <= job->rrefs->generation[rank]);
}
/* Names no worker that has not run. Lock. */
static inline bool bxi_rref_is_id(const struct bx_job *job, uint64_t id)
{
    int owner = bxi_rref_id_owner(id), maker = bxi_rref_id_maker(id);
    uint8_t owners = bxi_rref_id_owner_generation(id), makers = bxi_rref_id_maker_generation(id);

    return owner < job->world_size && maker < job->world_size && (id & BXI_RREF_COUNT_MASK) != 0 &&
           id == bxi_rref_id(job->world_size, owner, maker, owners, makers, id & BXI_RREF_COUNT_MASK) &&
           bxi_rref_has_run(job, owner, owners) && bxi_rref_has_run(job, maker, makers);
}
/* What that worker's ASK of the kind says: by rank, how many generations must be closed. Lock. */
static inline uint8_t *bxi_rref_need(const struct bx_job *job, enum bxi_round_kind kind, int asker)
{
    return &job->rrefs->needs[((size_t)kind * (size_t)job->world_size + (size_t)asker) * (size_t)job->world_size];
}
/* Is a worker, a rank and a generation, closed for this process: has it read that one's ring to the end, and does it
 * send it nothing more? Of the rank, the first so many are; those that run, join or are to come are not. Lock. */
static inline uint8_t bxi_rref_closed(const struct bx_job *job, int rank)
{
    bool alive = job->rrefs->ops->is_alive(job, rank);

    return (uint8_t)(job->rrefs->generation[rank] + !alive);
}
/* Lock. */
static inline bool bxi_rref_owner_lives(const struct bx_job *job, uint64_t id)
{
    int owner = bxi_rref_id_owner(id);

    return job->rrefs->ops->is_alive(job, owner) && bxi_rref_is_of(job, owner, id);
}

/* `from` is the maker, and has not made it: no such object is entered or called. An id of another maker may be another
 * worker's forgery, passed on in good faith: it is taken for an object that is gone, or to come. Lock. */
bool bxi_rref_is_forged(const struct bx_job *job, int from, uint64_t id);

/* ---- pass.c: references in messages --------------------------------------------------------------------- */

/* What a frame carries. */
struct bxi_rref_out {
    struct bx_rref *makes, *target;
    bool value;
    struct bx_rref *const *rrefs;
    size_t count;
};
/* 0: no tail. Inline: every call asks. */
static inline size_t bxi_rref_tail_bytes(const struct bxi_rref_out *out)
{
    size_t ids = out->count + (out->makes != NULL) + (out->target != NULL);

    return ids == 0 ? 0 : ids * 8 + sizeof(struct bxi_rref_tail);
}
void bxi_rref_write_tail(const struct bxi_rref_out *out, void *end);       /* the bytes before end */
static inline uint64_t bxi_rref_next_id(const struct bx_job *job, int owner)
{
    return bxi_rref_id(job->world_size, owner, job->rank, job->rrefs->generation[owner],
                       job->rrefs->generation[job->rank], job->rrefs->made[owner] + 1);
}
/* The maker: gives `makes` its id, and writes it into the tail that ends at end. Lock. */
void bxi_rref_name(struct bx_job *job, int owner, const struct bxi_rref_out *out, void *end);
/* Lock. Takes the memory that a message needs. 0, -ENOMEM; -EOVERFLOW: this worker has made too many objects there;
 * BX_E_PEER_DEAD: the object that is called was a dead worker's. */
int bxi_rref_prepare(struct bx_job *job, int to, const struct bxi_rref_out *out);
/* The frame is out: of a call with that id, or of a one-way call that ends there (else BX_FOREVER). Lock. */
void bxi_rref_sent(struct bx_job *job, int to, const struct bxi_rref_out *out, uint64_t call, uint64_t end_pos);

/* What a frame brought: a reference each. */
struct bxi_rref_in {
    struct bx_rref *makes, *target;
    bool value;
    size_t count;
    struct bx_rref **rrefs;
};
/* Takes ids and tail of a body, which may lie in the ring, away from *body_bytes. 0; BX_E_CORRUPT. */
int bxi_rref_skip(const void *body, size_t *body_bytes);
/* Reads the tail of a body in private memory and takes it away from *body_bytes. 0; BX_E_CORRUPT; -ENOMEM. Role. */
int bxi_rref_open(struct bx_job *job, int from, const void *body, size_t *body_bytes, struct bxi_rref_in **in);
/* The request is dropped: refused for want of a ring to its sender, which then undoes what it has counted
 * (bxi_rref_refused), or its sender is gone. Only the object that it makes counts, for frames of its maker about it may
 * come: LEAVE, or ENTER of a reference that came back. The object fails with code; 0: when its maker is closed. Returns
 * 0, BX_E_CORRUPT. Role. */
int bxi_rref_drop_request(struct bx_job *job, int from, const void *body, size_t body_bytes, int code);
/* The same of a frame to oneself that nobody will read: drops its references. The end of the job. */
void bxi_rref_unread(struct bx_job *job, const void *body, size_t body_bytes);
void bxi_rref_in_release(struct bxi_rref_in *in);       /* NULL is allowed */
/* The owner: the request that makes *makes ended, with a value (or NULL). Returns the code for its maker. Lock. */
int bxi_rref_made(struct bx_job *job, struct bx_rref *makes, int code, const char *text, struct bx_rref *object);
#define BXI_RREF_NO_MAKER "its maker was gone before the object could be made"
/* The same: its maker was closed before the request ran. Lock. */
void bxi_rref_lost_maker(struct bx_job *job, struct bx_rref *makes);

/* ---- protocol.c: frames of the protocol, and deaths (role) ---------------------------------------------- */

int bxi_rref_arrived(struct bx_job *job, int from, const struct bxi_rref_frame *frame);    /* 0, BX_E_CORRUPT */
void bxi_rref_peer_gone(struct bx_job *job, int rank);      /* a worker is closed */
/* The next worker of the rank runs. What was counted for the last one waits for its round with the older ones. Lock. */
void bxi_rref_peer_joins(struct bx_job *job, int rank, uint8_t generation);
/* A worker has no room for its ring to this one, and has dropped all messages before the position. Role. */
void bxi_rref_refused(struct bx_job *job, int rank, uint64_t through_pos);
void bxi_rref_opened(struct bx_job *job, int rank);         /* it has opened it: nothing is refused any more. Role. */
/* Leases of one that is dead wait for a round: others may hold what it passed on. Role. */
void bxi_rref_ask_for_leases(struct bx_job *job);
void bxi_rref_answer_rounds(struct bx_job *job);        /* role: loans that were passed on have ended */
/* No frame is to come that makes this worker send LEAVE. Lock. */
static inline bool bxi_rrefs_are_quiet(const struct bx_job *job)
{
    return job->rrefs->pending == 0;
}
/* The job has stopped: reports and drops what other workers still refer to. */
void bxi_rrefs_end(struct bx_job *job);

#endif
