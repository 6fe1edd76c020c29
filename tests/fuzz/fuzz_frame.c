/* SPDX-License-Identifier: MIT */
/*
 * The targets frame and lease: worker 1 writes what the input says into its own segment, and worker 0 reads it as it
 * reads any frame (read_some of watch.c), in this thread. Nothing but a verdict may come of it: no report of a
 * sanitizer, no tensor outside of an arena, and unless worker 1 is cut off the call that was under way ends by its
 * right answer.
 *
 * A frame that is nonsense does not close worker 1, so a job serves many inputs. It is made anew when worker 1 was
 * closed, when something stays that frames made (references, requests), and after RUNS inputs.
 */
#include "rpc/watch.c"

#include "fuzz.h"

#include "run/drive.h"

#include <errno.h>
#include <string.h>

#define RUNS 2000
#define HELD_MAX 16

static struct bx_future *held[HELD_MAX];    /* of the handler "hold", in this run */
static int held_count;
static struct bx_tensor *block;             /* in worker 1's arena, to write records into */
static unsigned char *arena_block;
static uint64_t arena_at;
#define ARENA_BLOCK 4096

/* ---- Handlers ---------------------------------------------------------------------------------------- */

/* Reads the first and the last byte of each tensor, which must lie in an arena. */
static int touch(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    unsigned sum = 0;

    (void)request, (void)context;
    while (bx_reader_tensors_left(args) > 0) {
        struct bx_tensor *tensor = bx_read_tensor(args);
        const unsigned char *data = tensor != NULL ? bx_tensor_data(tensor) : NULL;
        const struct bxi_lend_peer *peer = fuzz_job[0]->lend->peers[1], *self = fuzz_job[0]->lend->peers[0];

        if (data == NULL || bx_tensor_bytes(tensor) == 0)
            continue;
        FUZZ_CHECK((data >= peer->arena->base && data < peer->arena->base + peer->arena->bytes) ||
                   (data >= self->arena->base && data < self->arena->base + self->arena->bytes));
        sum += data[0];
    }
    bx_read_i64(args);
    bx_read_str(args);
    return bx_msg_put_i64(reply, sum);
}

static int hold(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    struct bx_future *future = held_count < HELD_MAX ? bx_future_create(bx_request_job(request)) : NULL;

    (void)args, (void)context;
    if (future == NULL)
        return -ENOMEM;
    held[held_count++] = bx_future_acquire(future);
    *reply = future;
    return 0;
}

static int rows(struct bx_batch *batch, void *context)
{
    (void)context;
    for (size_t row = 0; row < bx_batch_rows(batch); row++)
        bx_batch_reply_i64(batch, row, 1);
    return 0;
}

int fuzz_register(struct bx_job *job)
{
    int rc = bx_register(job, "touch", BX_INLINE, touch, NULL);

    if (rc == 0)
        rc = bx_register_async(job, "hold", BX_INLINE, hold, NULL);
    return rc == 0 ? bx_register_batch(job, "rows", rows, NULL, NULL) : rc;
}

/* ---- A run ------------------------------------------------------------------------------------------- */

static struct bxi_arena_view *view;         /* of worker 1's arena, kept while it is closed */
static struct bxi_pair right_pair;          /* of worker 1's words, as they are when they are right */
static struct bxi_function right_functions[4];

static struct run {
    const struct bxi_role *role;
    struct bxi_peer *in, *out;          /* worker 1 as 0 sees it; 0 as 1 sees it */
    struct bx_future *call;
    uint64_t call_id;
    struct bx_tensor *lent;             /* with the call */
} run;

static void begin_pair(void)
{
    struct bx_msg *args = bx_msg_create(0);

    fuzz_pair_begin();
    FUZZ_CHECK(bx_tensor_create(fuzz_job[1], BX_U8, 1, (int64_t[]){ ARENA_BLOCK }, &block) == 0);
    arena_block = bx_tensor_data_mut(block);
    arena_at = (uint64_t)(arena_block - bxi_arena_base(fuzz_job[1]->lend->arena));
    FUZZ_CHECK(bx_rpc_oneway(fuzz_job[1], "worker0", "touch", args, NULL) == 0);
    bx_msg_destroy(args);
    bx_progress(fuzz_job[0]);
    right_pair = fuzz_job[1]->control->pair[0];
    memcpy(right_functions, fuzz_job[1]->control->function, sizeof right_functions);
    view = bxi_arena_view_acquire(fuzz_job[0]->lend->peers[1]->arena);
    bx_tensor_create(fuzz_job[0], BX_U8, 1, (int64_t[]){ 64 }, &run.lent);
}

static void end_pair(void)
{
    bx_tensor_release(run.lent);
    bx_tensor_release(block);
    bxi_arena_view_release(view);
    run.lent = block = NULL;
    fuzz_pair_end();
}

/* Worker 1 has read all that came, and gives back what it had on loan. */
static void takes_all(void)
{
    struct bxi_grants *grants = &run.in->lend->grants;
    struct bxi_control *control = fuzz_job[1]->control;

    bxi_store_relaxed(&control->credit[0].position, run.in->out.write_pos);
    for (uint16_t slot = grants->slots == NULL ? BXI_NO_LEASE : grants->oldest; slot != BXI_NO_LEASE;
         slot = grants->slots[slot].next)
        bxi_store_relaxed(&bxi_segment_leases(&fuzz_job[1]->segment, 0)[slot], grants->slots[slot].generation);
    bxi_store_relaxed(&control->pair[0].given_back, grants->given_back_seen + 1);
    bxi_grants_reclaim(fuzz_job[0]);
    FUZZ_CHECK(grants->slots == NULL || grants->oldest == BXI_NO_LEASE);
}

static void begin(void)
{
    static int runs;
    struct bx_msg *args = bx_msg_create(0);

    if (runs++ % RUNS == 0 && fuzz_job[0] != NULL)
        end_pair();
    if (fuzz_job[0] == NULL)
        begin_pair();
    run.in = fuzz_job[0]->rpc->peers[1];
    run.out = fuzz_job[1]->rpc->peers[0];
    takes_all();
    bx_msg_put_tensor(args, run.lent);
    FUZZ_CHECK(bx_rpc_async(fuzz_job[0], "worker1", "hold", args, NULL, &run.call) == 0);
    bx_msg_destroy(args);
    for (uint32_t slot = 0; slot < run.in->slot_count; slot++)
        if (run.in->slots[slot].state == BXI_SLOT_LIVE)
            run.call_id = run.in->slots[slot].generation << 16 | slot;
    run.role = bxi_take_role(fuzz_job[0]->run);
    FUZZ_CHECK(run.role != NULL);
}

/* 0 while nothing was nonsense. */
static int read_all(void)
{
    int count = 1, rc = 0;

    bxi_packed_begin(fuzz_job[0], run.in);
    while (rc == 0 && count > 0)
        rc = read_some(run.role, fuzz_job[0], run.in, 64, &count);
    bxi_packed_end(fuzz_job[0]);
    return rc;
}

/* The ring is empty again, and whole. */
static void rewind_ring(void)
{
    struct bxi_ring_writer *ring = &run.out->out;

    bxi_ring_writer_init(ring, ring->base, BXI_RING_BYTES, run.in->in.read_pos, ring->credit_word, ring->want_credit);
}

static void put(const void *record, size_t bytes)
{
    void *payload;

    if (bytes == 0 || bytes > BXI_FRAME_MAX)
        return;
    FUZZ_CHECK(bxi_ring_reserve(&run.out->out, bytes, &payload) == 0);
    memcpy(payload, record, bytes);
    bxi_ring_commit(&run.out->out, bytes);
}

/* Takes back what set_word wrote. */
static void right_words(void)
{
    struct bxi_control *control = fuzz_job[1]->control;

    control->pair[0] = right_pair;
    memcpy(control->function, right_functions, sizeof right_functions);
    bxi_store_relaxed(&control->header.function_count, 3);
    bxi_store_relaxed(&control->header.state, BXI_RUNNING);
    bxi_store_relaxed(&control->header.armed, 0);
    bxi_store_relaxed(&control->header.ending, 0);
    run.in->refused_seen = 0;
}

/* Worker 1 was closed, and what was closed with it is gone: opens it again. A new job takes a hundred times as long. */
static void open_again(void)
{
    bxi_store_relaxed(&fuzz_job[0]->rpc->leavers, 0);
    bxi_store_relaxed(&fuzz_job[0]->rpc->lost, 0);
    run.in->lend->arena = bxi_arena_view_acquire(view);
    bxi_store_relaxed(&run.in->lend->is_gone, 0);
    run.in->lend->is_corrupt = run.in->lend->has_left = run.in->draining = false;
    run.in->close_code = 0;
    run.in->state_word = BXI_RUNNING;
    bxi_store_relaxed(&run.in->state, BXI_PEER_ALIVE);
    bx_progress(fuzz_job[0]);
}

/* rc: the verdict on the input. */
static void end(int rc)
{
    struct bx_job *job = fuzz_job[0];

    rewind_ring();
    for (int i = 0; i < held_count; i++) {
        bx_future_fail(held[i], -EDOM, NULL);
        bx_future_release(held[i]);
    }
    held_count = 0;
    bool closed = bxi_load_relaxed(&run.in->state) != BXI_PEER_ALIVE;
    if (!closed && !bx_future_is_done(run.call)) {
        struct bxi_frame reply = { .kind = BXI_REPLY, .id = run.call_id };

        put(&reply, sizeof reply);
        FUZZ_CHECK((read_all() == 0 && bx_future_is_done(run.call)) || rc < 0);
        rewind_ring();
    }
    bxi_leave_role(run.role, true);
    bx_progress(job);
    closed = bxi_load_relaxed(&run.in->state) != BXI_PEER_ALIVE;
    FUZZ_CHECK(bx_future_is_done(run.call) || (rc < 0 && !closed));
    bool stays = !bx_future_is_done(run.call) || run.in->serving != 0 || run.in->serving_oneways != 0 ||
                 job->rrefs->count != 0 || job->rrefs->pending != 0;
    bx_future_release(run.call);
    right_words();
    if (stays)
        end_pair();
    else if (closed)
        open_again();
}

/* A call's id in place of a small one, so that replies meet it. */
static void meet(unsigned char *record, size_t bytes)
{
    struct bxi_frame frame;

    if (bytes < sizeof frame)
        return;
    memcpy(&frame, record, sizeof frame);
    if (bxi_kind_is_reply(frame.kind) && frame.id < 16)
        frame.id += run.call_id;
    memcpy(record, &frame, sizeof frame);
}

/* A word that worker 0 reads at each scan, or when it sends. */
static void set_word(unsigned which, uint64_t value)
{
    struct bxi_control *control = fuzz_job[1]->control;
    struct bxi_pair *pair = &control->pair[0];
    bxi_a64 *words[] = { &pair->want_credit, &pair->refused_through, &pair->refused_errno, &pair->want_lease,
                         &pair->given_back, &control->credit[0].position, &control->header.armed,
                         &control->header.ending, &pair->open };

    if (which < sizeof words / sizeof words[0])
        bxi_store_relaxed(words[which], value);
    else if (which == 9)
        bxi_store_relaxed(&control->header.state, (uint32_t)value);
    else if (which == 10)
        bxi_store_relaxed(&control->header.function_count, (uint32_t)value);
    else
        memcpy(control->function[value % 4].name + which % (BXI_NAME_BYTES - 8), &value, sizeof value);
}

/* The input: pieces, each with a head of two bytes. The high two bits of the first: 0, 1: a record of so many bytes as
 * the rest says; 2: the same, in the ring's memory with its own commit word; 3: a word, by the rest, and its value. */
void fuzz_frame(struct fuzz_input input)
{
    unsigned char head[2], bytes[BXI_FRAME_MAX];
    int rc = 0;

    begin();
    while (rc == 0 && bxi_load_relaxed(&run.in->state) == BXI_PEER_ALIVE && fuzz_take(&input, head, 2) > 0) {
        size_t length = (size_t)(head[0] & 63) << 8 | head[1];

        if (head[0] >> 6 == 3) {
            uint64_t value;

            fuzz_take(&input, &value, sizeof value);
            set_word(head[1], value);
            bxi_scan(run.role, fuzz_job[0]);
            bx_rpc_oneway(fuzz_job[0], "worker1", "unknown", NULL, &(struct bx_call_options){ .no_wait = true });
            continue;
        }
        length = fuzz_take(&input, bytes, length);
        if (head[0] >> 6 == 2) {
            uint64_t at = run.in->in.read_pos & (BXI_RING_BYTES - 1);

            memcpy((unsigned char *)run.out->out.base + at, bytes, bxi_least(length, BXI_RING_BYTES - at));
        } else {
            meet(bytes, length);
            put(bytes, length);
        }
        rc = read_all();
    }
    end(rc);
}

/* The input: its first byte is the kind and what comes with it; then a lease's head and its records, or lease words. */
void fuzz_lease(struct fuzz_input input)
{
    struct { struct bxi_frame frame; unsigned char body[BXI_FRAME_MAX - sizeof(struct bxi_frame)]; } record;
    struct bxi_lease_head lease;
    uint8_t how;
    size_t bytes;
    int rc;

    begin();
    fuzz_take(&input, &how, 1);
    if (how % 4 == 3) {
        bxi_a64 *words = bxi_segment_leases(&fuzz_job[1]->segment, 0);
        struct { uint16_t slot; uint64_t value; } __attribute__((packed)) word;

        while (fuzz_take(&input, &word, sizeof word) > 0)
            bxi_store_relaxed(&words[word.slot % BXI_LEASE_MAX], word.value);
        bxi_store_relaxed(&fuzz_job[1]->control->pair[0].given_back, how);
        bxi_grants_reclaim(fuzz_job[0]);
        bxi_store_relaxed(&run.in->death_seen, 0);      /* the verdict; the next runs need the job */
        end(0);
        return;
    }
    record.frame = (struct bxi_frame){ .kind = (uint8_t[]){ BXI_REQUEST, BXI_ONEWAY, BXI_REPLY }[how % 4],
                                       .flags = BXI_FLAG_LEASE |
                                                (how & (BXI_FLAG_DEVICE | BXI_FLAG_RREFS | BXI_FLAG_KINDS)),
                                       .id = how % 4 == 2 ? run.call_id : 7 << 16, .deadline_ns = BX_FOREVER };
    fuzz_take(&input, &lease, sizeof lease);
    if (how & 4) {              /* records in the arena */
        lease.packed_offset += arena_at;
        fuzz_take(&input, arena_block, ARENA_BLOCK);
        bytes = 0;
    } else {
        bytes = fuzz_take(&input, record.body + sizeof lease, sizeof record.body - sizeof lease);
        if (how & 8) {
            lease.packed_offset = BXI_PACKED_HERE;
            lease.packed_bytes = bytes;
        }
    }
    memcpy(record.body, &lease, sizeof lease);
    put(&record, sizeof record.frame + sizeof lease + bytes);
    rc = read_all();
    end(rc);
}
