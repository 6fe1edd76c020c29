/* SPDX-License-Identifier: MIT */
/*
 * A worker that sends wrong tails of references and wrong frames of their protocol.
 *
 * As in test_fuzz.c worker 0 is the receiver, worker 1 is hostile and killed at the end of each test, and worker 2 is a
 * bystander. Worker 0 owns an object, to which the others have a reference each. The first tests show that correct
 * frames made by hand are accepted; each forgery differs in one field. Worker 0 must then cut worker 1 off and drop its
 * reference at once, and the object lives on for worker 2.
 */
#include "rref_fixture.h"
#include "tests/harness/hostile.h"

#include "rpc/rpc.h"

TestSuite(rref_input, .timeout = 120);

enum { ID = 8, HELD_ID, FORGERY };        /* values */
enum { NOTED = 8 };                             /* gates */
enum { TAKE, NOTE };                            /* functions, as they are registered */

#define IDS 6

struct forgery {
    const char *name;
    uint8_t kind, flags;
    uint64_t id;                    /* X: the object's; HELD: of the call that is held */
    int32_t code;
    size_t body_bytes;              /* of a frame of the protocol */
    size_t id_count;                /* of the others: so many ids, and the tail */
    uint64_t ids[IDS];
    struct bxi_rref_tail tail;
    size_t cut;                     /* bytes that are missing at the end */
};

#define X UINT64_MAX
#define HELD (UINT64_MAX - 1)
#define WORLD_SIZE 3
#define WIDE_ID (BXI_RREF_ID_WIDE | UINT64_C(1) << 43 | 1)     /* owner 0, maker 1 */
#define ID_OF(owner, maker, n) ((uint64_t)(owner) << 56 | (uint64_t)(maker) << 49 | (uint64_t)(n))
#define CALL BXI_REQUEST, BXI_FLAG_RREFS, 77, 0, 0
#define ONEWAY BXI_ONEWAY, BXI_FLAG_RREFS, 0, 0, 0
#define ANSWER BXI_REPLY, BXI_FLAG_RREFS, HELD, 0, 0

static uint64_t id_here(uint64_t id)
{
    return id == X ? harness_load(ID) : id == HELD ? harness_load(HELD_ID) : id;
}

static size_t write_body(const struct forgery *forgery, unsigned char *body)
{
    size_t bytes = 0;

    memset(body, 0, 256);
    if (forgery->kind == BXI_RREF || !(forgery->flags & BXI_FLAG_RREFS))
        return forgery->body_bytes;
    for (size_t i = 0; i < forgery->id_count; i++, bytes += 8)
        memcpy(body + bytes, &(uint64_t){ id_here(forgery->ids[i]) }, 8);
    memcpy(body + bytes, &forgery->tail, sizeof forgery->tail);
    return bytes + sizeof forgery->tail - forgery->cut;
}

static void put_forgery(struct bx_job *job, const struct forgery *forgery)
{
    struct bxi_frame frame = { .kind = forgery->kind, .flags = forgery->flags, .id = id_here(forgery->id),
                               .code = forgery->code, .function = forgery->flags == 0 ? NOTE : TAKE,
                               .deadline_ns = BX_FOREVER };
    unsigned char body[256];

    put_frame(job, &frame, body, write_body(forgery, body));
}

/* ---- Workers ---------------------------------------------------------------------------------------------- */

HARNESS_HANDLER(take_and_count)
{
    while (args->rref_count > 0)
        HARNESS_CHECK(bx_read_rref(args) != NULL);
    return 0;
}

/* What was sent before it has been read. */
HARNESS_HANDLER(note)
{
    harness_post(NOTED);
    return 0;
}

static int setup_input(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("take", take_and_count), HARNESS_INLINE("note", note),
                     HARNESS_ASYNC("hold", harness_never), HARNESS_INLINE("echo", harness_echo));
    return setup(job);
}

static uint64_t held_id(struct bx_job *job)
{
    struct bxi_peer *peer = job->rpc->peers[1];
    uint64_t id = 0;

    bxi_lock(&job->run->lock);
    for (uint32_t i = 0; i < peer->slot_count; i++)
        if (peer->slots[i].state == BXI_SLOT_LIVE)
            id = peer->slots[i].generation << 16 | i;
    bxi_unlock(&job->run->lock);
    return id;
}

static struct bx_rref *prepare(struct bx_job *job, struct bx_future **held)
{
    struct bx_rref *rref;

    harness_await(READY, 1);
    rref = own_counter(job, 1);
    give(job, "worker1", rref, false);
    give(job, "worker2", rref, false);
    *held = harness_start(job, "worker1", "hold", NULL, 0);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 3), 3);
    harness_store(ID, rref->id);
    harness_store(HELD_ID, held_id(job));
    return rref;
}

/* The bystander uses the object, and drops the last reference to it. */
static void others_go_on(struct bx_job *job, struct bx_rref *rref)
{
    HARNESS_EQ(add_to(rref, 1), 2);
    bx_rref_release(rref);
    HARNESS_EQ(use_of(job, "worker2"), 3);
    HARNESS_EQ(alive(), 1);
    drop_of(job, "worker2");
    await_alive(0);
}

static void is_cut_off(struct bx_job *job)
{
    struct bx_future *held = NULL;
    struct bx_rref *rref = prepare(job, &held);

    strikes_now();
    HARNESS_EQ(bx_future_wait(held, BX_FOREVER), BX_E_CORRUPT);
    HARNESS_HAS(bx_future_error_text(held), "'worker1' (rank 1");
    bx_future_release(held);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    others_go_on(job, rref);
    harness_post(FINISHED);
}

static void goes_on(struct bx_job *job)
{
    struct bx_future *held = NULL;
    struct bx_rref *rref = prepare(job, &held);

    strikes_now();
    harness_await(NOTED, 1);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    harness_post(FINISHED);
    harness_end(held, BX_E_PEER_DEAD);
    others_go_on(job, rref);
}

static const struct forgery *forged;

static void forge(struct bx_job *job)
{
    static const struct forgery noted = { .name = "", .kind = BXI_ONEWAY };

    put_forgery(job, &forged[harness_load(FORGERY)]);
    put_forgery(job, &noted);
}

static void run_forgeries(const struct forgery *forgeries, size_t count, harness_fn body)
{
    strike = forge;
    forged = forgeries;
    for (size_t i = 0; i < count; i++) {
        harness_reset();
        harness_store(FORGERY, i);
        fprintf(stderr, "rref_input: %s\n", forgeries[i].name);
        harness_run(&(struct harness_world){ .size = WORLD_SIZE, .setup = setup_input, .dies = 1u << 1,
                                             .body = { body, is_hostile, harness_serve } });
    }
}

#define RUN(forgeries, body) run_forgeries(forgeries, sizeof forgeries / sizeof *forgeries, body)

/* ---- Correct frames, and harmless ones -------------------------------------------------------------------- */

Test(rref_input, of_correct_and_of_harmless_frames_is_accepted)
{
    static const struct forgery harmless[] = {
        { "a call with the object", ONEWAY, 1, { X }, { .count = 1 }, 0 },
        { "a call with it three times", ONEWAY, 3, { X, X, X }, { .count = 3 }, 0 },
        { "a call on it", ONEWAY, 1, { X }, { .flags = BXI_RREF_TARGET }, 0 },
        { "its value", ONEWAY, 1, { X }, { .flags = BXI_RREF_TARGET | BXI_RREF_VALUE }, 0 },
        { "a call that makes one", ONEWAY, 1, { ID_OF(0, 1, 1) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "a call that makes one, many later", ONEWAY, 1, { ID_OF(0, 1, 99) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "an object that is gone", ONEWAY, 1, { ID_OF(0, 0, 1000) }, { .flags = BXI_RREF_TARGET }, 0 },
        { "LEAVE", BXI_RREF, BXI_RREF_LEAVE, X, 1, 0, 0, { 0 }, { 0 }, 0 },
        { "ENTER", BXI_RREF, BXI_RREF_ENTER, X, 0, 0, 0, { 0 }, { 0 }, 0 },
        { "ENTER of what is gone", BXI_RREF, BXI_RREF_ENTER, ID_OF(0, 0, 1000), 0, 0, 0, { 0 }, { 0 }, 0 },
        { "KEPT for nothing", BXI_RREF, BXI_RREF_KEPT, X, 0, 0, 0, { 0 }, { 0 }, 0 },
        { "KEPT of what is gone", BXI_RREF, BXI_RREF_KEPT, ID_OF(2, 1, 9), 0, 0, 0, { 0 }, { 0 }, 0 },
        { "PASSED of what is gone", BXI_RREF, BXI_RREF_PASSED, ID_OF(0, 0, 1000), 2, 0, 0, { 0 }, { 0 }, 0 },
        { "ANSWER to no round", BXI_RREF, BXI_RREF_ANSWER, 0, 0, 0, 0, { 0 }, { 0 }, 0 },
        { "ASK", BXI_RREF, BXI_RREF_ASK, 1, 0, WORLD_SIZE, 0, { 0 }, { 0 }, 0 },
    };

    RUN(harmless, goes_on);
}

/* ---- Tails ------------------------------------------------------------------------------------------------ */

Test(rref_input, of_a_wrong_tail_cuts_off)
{
    static const struct forgery wrong[] = {
        { "a tail that is cut", CALL, 0, { 0 }, { .count = 1 }, 4 },
        { "no body at all", CALL, 0, { 0 }, { 0 }, 8 },
        { "no reference", CALL, 0, { 0 }, { 0 }, 0 },
        { "more than lie there", CALL, 1, { X }, { .count = 2 }, 0 },
        { "one to make, which does not lie there", CALL, 1, { X }, { .count = 1, .flags = BXI_RREF_MAKES }, 0 },
        { "more than a message may have", CALL, 1, { X }, { .count = BX_RREFS_MAX + 1 }, 0 },
        { "as many as there are numbers", CALL, 1, { X }, { .count = UINT32_MAX }, 0 },
        { "a count that overflows", CALL, 1, { X }, { .count = 1u << 29 }, 0 },
        { "an unknown flag", CALL, 1, { X }, { .count = 1, .flags = 8 }, 0 },
        { "a value of no object", CALL, 1, { X }, { .count = 1, .flags = BXI_RREF_VALUE }, 0 },
        { "an owner that does not exist", CALL, 1, { ID_OF(3, 1, 1) }, { .count = 1 }, 0 },
        { "a maker that does not exist", CALL, 1, { ID_OF(0, 3, 1) }, { .count = 1 }, 0 },
        { "the last rank there is", CALL, 1, { ID_OF(255, 255, 1) }, { .count = 1 }, 0 },
        { "number 0", CALL, 1, { ID_OF(0, 1, 0) }, { .count = 1 }, 0 },
        { "the second one is wrong", CALL, 2, { X, ID_OF(9, 9, 9) }, { .count = 2 }, 0 },
        { "made by another", CALL, 1, { ID_OF(0, 2, 1) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "made by the receiver", CALL, 1, { ID_OF(0, 0, 5) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "made in another", CALL, 1, { ID_OF(2, 1, 1) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "made as number 0", CALL, 1, { ID_OF(0, 1, 0) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "made by itself", CALL, 2, { ID_OF(0, 1, 1), ID_OF(0, 1, 1) },
          { .flags = BXI_RREF_MAKES | BXI_RREF_TARGET }, 0 },
        { "a call on an object of another", CALL, 1, { ID_OF(2, 0, 1) }, { .flags = BXI_RREF_TARGET }, 0 },
        { "a call on an object of the caller", CALL, 1, { ID_OF(1, 0, 1) }, { .flags = BXI_RREF_TARGET }, 0 },
        { "a call on what it has not made", CALL, 1, { ID_OF(0, 1, 1) }, { .flags = BXI_RREF_TARGET }, 0 },
        { "a call on number 0", CALL, 1, { ID_OF(0, 1, 0) }, { .flags = BXI_RREF_TARGET }, 0 },
        { "a reply that makes", ANSWER, 1, { ID_OF(0, 1, 1) }, { .flags = BXI_RREF_MAKES }, 0 },
        { "a reply on an object", ANSWER, 1, { X }, { .flags = BXI_RREF_TARGET }, 0 },
        { "a reply with nonsense", ANSWER, 1, { ID_OF(9, 9, 9) }, { .count = 1 }, 0 },
        { "a reply to no call", BXI_REPLY, BXI_FLAG_RREFS, 999 << 16, 0, 0, 1, { X }, { .count = 1 }, 0 },
        { "an error with references", BXI_REPLY, BXI_FLAG_RREFS, HELD, -5, 0, 1, { X }, { .count = 1 }, 0 },
    };

    RUN(wrong, is_cut_off);
}

/* ---- Frames of the protocol ------------------------------------------------------------------------------- */

#define FRAME(op, id, value, bytes) BXI_RREF, op, id, value, bytes, 0, { 0 }, { 0 }, 0

Test(rref_input, of_a_wrong_frame_cuts_off)
{
    static const struct forgery wrong[] = {
        { "no such frame", FRAME(0, X, 0, 0) },
        { "no such frame either", FRAME(8, X, 0, 0) },
        { "LEAVE of more than it has", FRAME(BXI_RREF_LEAVE, X, 2, 0) },
        { "LEAVE of all there is", FRAME(BXI_RREF_LEAVE, X, INT32_MAX, 0) },
        { "LEAVE of nothing", FRAME(BXI_RREF_LEAVE, X, 0, 0) },
        { "LEAVE of less than nothing", FRAME(BXI_RREF_LEAVE, X, -1, 0) },
        { "LEAVE of what is not there", FRAME(BXI_RREF_LEAVE, ID_OF(0, 0, 1000), 1, 0) },
        { "LEAVE of an object of another", FRAME(BXI_RREF_LEAVE, ID_OF(2, 0, 1), 1, 0) },
        { "LEAVE of nonsense", FRAME(BXI_RREF_LEAVE, ID_OF(0, 9, 1), 1, 0) },
        { "ENTER at another owner", FRAME(BXI_RREF_ENTER, ID_OF(2, 0, 1), 0, 0) },
        { "ENTER of nonsense", FRAME(BXI_RREF_ENTER, ID_OF(0, 9, 1), 0, 0) },
        { "ENTER of what it has not made", FRAME(BXI_RREF_ENTER, ID_OF(0, 1, 1), 0, 0) },
        { "ENTER of an id of a larger job", FRAME(BXI_RREF_ENTER, WIDE_ID, 0, 0) },
        { "ENTER of number 0", FRAME(BXI_RREF_ENTER, ID_OF(0, 1, 0), 0, 0) },
        { "ENTERED without ENTER", FRAME(BXI_RREF_ENTERED, ID_OF(1, 1, 1), 0, 0) },
        { "ENTERED of the receiver's", FRAME(BXI_RREF_ENTERED, X, 0, 0) },
        { "ENTERED of another", FRAME(BXI_RREF_ENTERED, ID_OF(2, 1, 1), 0, 0) },
        { "KEPT of nonsense", FRAME(BXI_RREF_KEPT, ID_OF(2, 9, 1), 0, 0) },
        { "PASSED to nobody", FRAME(BXI_RREF_PASSED, X, 3, 0) },
        { "PASSED to less than nobody", FRAME(BXI_RREF_PASSED, X, -1, 0) },
        { "PASSED to the owner", FRAME(BXI_RREF_PASSED, X, 0, 0) },
        { "PASSED to itself", FRAME(BXI_RREF_PASSED, X, 1, 0) },
        { "PASSED to nobody of what is gone", FRAME(BXI_RREF_PASSED, ID_OF(0, 0, 1000), 3, 0) },
        { "PASSED at another owner", FRAME(BXI_RREF_PASSED, ID_OF(2, 0, 1), 2, 0) },
        { "PASSED to a worker that has not come yet", FRAME(BXI_RREF_PASSED, X, 1 << BXI_RANK_BITS | 2, 0) },
        { "ASK of less than no kind", FRAME(BXI_RREF_ASK, 1, -1, WORLD_SIZE) },
        { "ASK of no kind", FRAME(BXI_RREF_ASK, 1, BXI_ROUND_KINDS, WORLD_SIZE) },
        { "ANSWER of less than no kind", FRAME(BXI_RREF_ANSWER, 0, -1, 0) },
        { "ANSWER of no kind", FRAME(BXI_RREF_ANSWER, 0, BXI_ROUND_KINDS, 0) },
        { "ASK without a set", FRAME(BXI_RREF_ASK, 1, 0, 0) },
        { "ASK with half a set", FRAME(BXI_RREF_ASK, 1, 0, 8) },
        { "ASK with more than a set", FRAME(BXI_RREF_ASK, 1, 0, 24) },
        { "ASK of no round", FRAME(BXI_RREF_ASK, 0, 0, WORLD_SIZE) },
        { "ANSWER to a round that is to come", FRAME(BXI_RREF_ANSWER, 1, 0, 0) },
        { "ANSWER to the last round there is", FRAME(BXI_RREF_ANSWER, UINT64_MAX, 0, 0) },
    };

    RUN(wrong, is_cut_off);
}

/* ---- More than one frame ---------------------------------------------------------------------------------- */

static void makes_twice(struct bx_job *job)
{
    struct forgery making = { "", CALL, 1, { ID_OF(0, 1, 7) }, { .flags = BXI_RREF_MAKES }, 0 };

    put_forgery(job, &making);
    making.id = 78;
    put_forgery(job, &making);
}

static void makes_an_earlier_one(struct bx_job *job)
{
    struct forgery making = { "", CALL, 1, { ID_OF(0, 1, 7) }, { .flags = BXI_RREF_MAKES }, 0 };

    put_forgery(job, &making);
    making.id = 78;
    making.ids[0] = ID_OF(0, 1, 6);
    put_forgery(job, &making);
}

/* It makes an object by a method of one that never comes, and leaves more than that. Both go with it. */
static void waits_and_leaves(struct bx_job *job)
{
    struct forgery making = { "", CALL, 2, { ID_OF(0, 1, 7), ID_OF(0, 2, 99) },
                              { .flags = BXI_RREF_MAKES | BXI_RREF_TARGET }, 0 };
    const struct forgery leave = { "", FRAME(BXI_RREF_LEAVE, ID_OF(0, 1, 7), 2, 0) };

    put_forgery(job, &making);
    put_forgery(job, &leave);
}

static void run_cut_off(harness_fn how)
{
    harness_reset();
    run_hostile(setup_input, how, is_cut_off);
}

Test(rref_input, of_an_id_that_does_not_ascend_cuts_off)
{
    run_cut_off(makes_twice);
    run_cut_off(makes_an_earlier_one);
}

/* The shutdown is not held up: worker 2, which was to make it, leaves. */
Test(rref_input, that_waits_for_what_never_comes_ends_with_its_maker)
{
    run_cut_off(waits_and_leaves);
}

/* More calls than a caller may have in flight, all waiting for an object that worker 2 was to make: the last but one
 * cuts it off, and a call of worker 2 that waits for what it makes fails at once. */
static void calls_too_many(struct bx_job *job)
{
    struct forgery call = { "", BXI_REQUEST, BXI_FLAG_RREFS, 100, 0, 0, 2, { ID_OF(0, 1, 1), ID_OF(0, 2, 1000) },
                            { .flags = BXI_RREF_MAKES | BXI_RREF_TARGET }, 0 };

    for (uint64_t i = 0; i <= BXI_CALLS_MAX; i++) {
        call.id = i;
        call.ids[0] = ID_OF(0, 1, i + 1);
        put_forgery(job, &call);
        if (i % 64 == 63)
            usleep(2000);           /* the ring has no room for all of them */
    }
}

Test(rref_input, of_more_calls_that_wait_than_may_be_cuts_off)
{
    run_cut_off(calls_too_many);
}

/* Ids that nobody made, of another maker: only so many can be on their way, and the owner keeps no more of them. */
static void enters_very_many(struct bx_job *job)
{
    struct forgery enter = { "", FRAME(BXI_RREF_ENTER, 0, 0, 0) };
    const struct forgery noted = { .name = "", .kind = BXI_ONEWAY };

    for (uint64_t i = 1; i <= 5000; i++) {
        enter.id = ID_OF(0, i % 2 * 2, i);
        put_forgery(job, &enter);
        if (i % 64 == 0) {
            put_forgery(job, &noted);
            harness_await(NOTED, (uint32_t)(i / 64));           /* the ring has no room for all of them */
        }
    }
}

static void keeps_few(struct bx_job *job)
{
    struct bx_future *held = NULL;
    struct bx_rref *rref = prepare(job, &held);

    strikes_now();
    bxi_lock(&job->run->lock);
    HARNESS_CHECK(job->rrefs->count <= 1 + BXI_RREF_UNSEEN_MAX);
    HARNESS_CHECK(job->rrefs->count > 500);
    bxi_unlock(&job->run->lock);
    harness_post(FINISHED);
    harness_end(held, BX_E_PEER_DEAD);
    others_go_on(job, rref);
}

Test(rref_input, of_ids_that_nobody_made_takes_no_memory_without_a_bound)
{
    run_hostile(setup_input, enters_very_many, keeps_few);
}

/* Worker 1 passes ids that worker 0 would have made, and has not. Worker 0 uses one, and worker 2, whose it would be,
 * does not cut it off. */
static void passes_what_was_never_made(struct bx_job *job)
{
    static const struct forgery noted = { .name = "", .kind = BXI_ONEWAY };
    struct forgery call = { "", ONEWAY, 1, { ID_OF(2, 0, 77) }, { .count = 1 }, 0 };

    call.kind = BXI_REQUEST;
    put_forgery(job, &call);
    put_forgery(job, &noted);
}

HARNESS_HANDLER(pass_to_2)
{
    OWN(msg) *out = bx_msg_create(0);
    struct bx_rref *rref = bx_read_rref(args);

    HARNESS_EQ(bx_rref_oneway(rref, "add", NULL, NULL), BX_E_NO_OBJECT);
    HARNESS_EQ(bx_msg_put_rref(out, rref), 0);
    HARNESS_EQ(bx_rpc_oneway(bx_request_job(request), "worker2", "take", out, NULL), 0);
    return 0;
}

static int setup_passing_on(struct bx_job *job)
{
    if (bx_job_rank(job) != 0)
        return setup_input(job);
    HARNESS_REGISTER(job, HARNESS_INLINE("take", pass_to_2), HARNESS_INLINE("note", note));
    return setup(job);
}

Test(rref_input, of_an_id_that_the_receiver_has_not_made_fails_its_use)
{
    run_hostile(setup_passing_on, passes_what_was_never_made, goes_on);
}
