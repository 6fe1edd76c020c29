/* SPDX-License-Identifier: MIT */
/*
 * Leases: what a message lends to its receiver, from the grant to the return.
 *
 * A message with tensors takes one lease, whatever their number: a slot of the owner's ledger for that
 * peer, and the slot's next generation. The owner keeps a reference to every block; the frame carries slot
 * and generation. The borrower gives back by writing the generation into word [slot] of its own segment,
 * behind its ring towards the owner, when the last tensor of the message is released. The owner reads
 * those words when it wants memory (a new tensor, a new grant), when it is asked, and while somebody waits
 * for a lease: nobody sends anything for it. Neither side writes into the other's memory.
 *
 * Who runs it: grants and returns under the job's lock, from any thread; blocks are released without it,
 * because giving memory back may take system calls. Loans are opened under the progress role and end on any
 * thread, under the lender's lock, which is taken outside the job's.
 *
 * Killed at a step, and what the other side then does:
 *   owner    after the grant, before its frame is published   nothing was lent
 *   owner    after that                                       its arena stays mapped until the last tensor
 *                                                             of it is released; the words are read by nobody
 *   borrower before it wrote the word                         the owner takes the lease back with its pidfd
 *   borrower after it                                         the lease is back
 * A lease whose frame was refused unread ends with the refusal; one whose peer was cut off or has left while
 * it holds, when that process ends.
 *
 * A word that is neither what it was nor the generation that is out is nonsense and closes that peer.
 *
 * Waiting for a lease: want_lease is set for all peers, and looked at by the borrower behind a full fence after
 * its word, exactly as want_credit is for rings (ring.h).
 */
#include "rpc/rpc.h"

#include "shm/step.h"

#include <errno.h>
#include <stdlib.h>

#define RELEASE_AT_ONCE 64      /* leases taken out of a ledger before the lock is given up */

/* ---- the ledger (lock) ------------------------------------------------------------------------------ */

static int make_ledger(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_ledger *ledger = &peer->ledger;

    if (ledger->slots != NULL)
        return 0;
    ledger->slots = calloc(BXI_LEASE_MAX, sizeof *ledger->slots);
    if (ledger->slots == NULL)
        return bx_fail(-ENOMEM, "no memory for the ledger of what is lent to worker '%s'", peer->name);
    for (uint16_t i = 0; i < BXI_LEASE_MAX; i++)
        ledger->slots[i].next = i + 1 < BXI_LEASE_MAX ? (uint16_t)(i + 1) : BXI_NO_LEASE;
    ledger->free = 0;
    ledger->oldest = ledger->newest = BXI_NO_LEASE;
    if (peer->rank == job->rank) {
        ledger->words = peer->loop_leases;
        ledger->given_back = &peer->loop_leases[BXI_LEASE_MAX];
    }
    return 0;
}

/* The borrower's words; NULL until its ring towards this worker, and they with it, is allocated. */
static const bxi_a64 *find_words(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_ledger *ledger = &peer->ledger;

    /* [pair.open] acquire, pairs with the release in bxi_peer_open_out: the pages of the words are there. */
    if (ledger->words == NULL && peer->rank != job->rank &&
        bxi_load_acquire((bxi_a64 *)&peer->view.control->pair[job->rank].open) == 1) {
        ledger->words = bxi_segment_view_leases(&peer->view, job->rank);
        ledger->given_back = &peer->view.control->pair[job->rank].given_back;
    }
    return ledger->words;
}

static void show_loans(struct bx_job *job, struct bxi_peer *peer)
{
    struct bxi_loans *loans = &bxi_tables(job->control)->loans[peer->rank];
    const struct bxi_ledger *ledger = &peer->ledger;

    /* Relaxed: for inspectors. */
    bxi_store_relaxed(&loans->leases, ledger->count);
    bxi_store_relaxed(&loans->bytes, ledger->bytes);
    bxi_store_relaxed(&loans->oldest_ns, ledger->oldest == BXI_NO_LEASE ? 0 : ledger->slots[ledger->oldest].since_ns);
}

static void link_out(struct bxi_ledger *ledger, uint16_t index)
{
    struct bxi_lent *lent = &ledger->slots[index];

    lent->out = true;
    lent->next = BXI_NO_LEASE;
    lent->prev = ledger->newest;
    if (ledger->newest != BXI_NO_LEASE)
        ledger->slots[ledger->newest].next = index;
    else
        ledger->oldest = index;
    ledger->newest = index;
}

static void unlink_out(struct bxi_ledger *ledger, uint16_t index)
{
    struct bxi_lent *lent = &ledger->slots[index];

    lent->out = false;
    if (lent->prev != BXI_NO_LEASE)
        ledger->slots[lent->prev].next = lent->next;
    else
        ledger->oldest = lent->next;
    if (lent->next != BXI_NO_LEASE)
        ledger->slots[lent->next].prev = lent->prev;
    else
        ledger->newest = lent->prev;
    lent->next = ledger->free;
    ledger->free = index;
}

/* Holds that were taken out of a ledger under the lock, to be dropped without it. */
struct ended {
    struct bxi_storage **holds[RELEASE_AT_ONCE];
    uint32_t hold_count[RELEASE_AT_ONCE];
    struct bxi_peer *from[RELEASE_AT_ONCE];         /* whose point it is; NULL: it came back without */
    struct bxi_gpu_point point[RELEASE_AT_ONCE];
    uint32_t count;
};

static void end_lease(struct bx_job *job, struct bxi_peer *peer, uint16_t index, struct ended *ended)
{
    struct bxi_ledger *ledger = &peer->ledger;
    struct bxi_lent *lent = &ledger->slots[index];

    ended->holds[ended->count] = lent->holds;
    ended->from[ended->count] = NULL;
    ended->hold_count[ended->count++] = lent->hold_count;
    ledger->count--;
    ledger->bytes -= lent->bytes;
    job->lend->loan_bytes -= lent->bytes;
    bxi_add(&job->lend->loans_out, (uint32_t)-1);
    lent->holds = NULL;
    unlink_out(ledger, index);
}

static void drop_holds(struct bxi_storage **holds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bxi_add(&holds[i]->leases, (uint32_t)-1);
        bxi_storage_release(holds[i]);
    }
    free(holds);
}

static void drop_ended(struct ended *ended)
{
    for (uint32_t i = 0; i < ended->count; i++) {
        for (uint32_t j = 0; ended->from[i] != NULL && j < ended->hold_count[i]; j++)
            if (ended->holds[i][j]->kind == BXI_STORE_DEVICE)
                bxi_device_block_until(ended->holds[i][j]->device, ended->from[i], &ended->point[i]);
        drop_holds(ended->holds[i], ended->hold_count[i]);
    }
    ended->count = 0;
}

/* The point that came back with lease `index`; read after its word. */
static struct bxi_gpu_point point_of(const struct bx_job *job, const struct bxi_peer *peer, uint16_t index)
{
    const bxi_a64 *words = peer->loop_leases + BXI_LEASE_MAX + 1;

    if (peer->rank != job->rank)
        words = (const bxi_a64 *)(const void *)((const unsigned char *)peer->view.control +
                                                bxi_device_pair_offset(job->rank) + BXI_DEVICE_POINTS);

    /* Relaxed, both: behind the acquire of the lease word, which was written after them. */
    uint64_t which = bxi_load_relaxed((bxi_a64 *)&words[2 * index]);

    return (struct bxi_gpu_point){ .order = (uint16_t)which, .lane = (uint16_t)(which >> 16),
                                   .value = bxi_load_relaxed((bxi_a64 *)&words[2 * index + 1]) };
}

/* ---- what came back ---------------------------------------------------------------------------------- */

/* One peer's words. True if there is more than fits `ended`. */
static bool look_words(struct bx_job *job, struct bxi_peer *peer, struct ended *ended)
{
    struct bxi_ledger *ledger = &peer->ledger;
    const bxi_a64 *words = find_words(job, peer);
    uint32_t before = ended->count;
    uint64_t given_back;

    if (words == NULL || bxi_load_relaxed(&peer->state) == BXI_PEER_CORRUPT)
        return false;
    /* [lease.count] acquire, pairs with the release in give_back: the words that it counts are seen. */
    given_back = bxi_load_acquire((bxi_a64 *)ledger->given_back);
    if (given_back == ledger->given_back_seen)
        return false;
    for (uint16_t index = ledger->oldest, next; index != BXI_NO_LEASE; index = next) {
        struct bxi_lent *lent = &ledger->slots[index];
        /* [lease.word] acquire, pairs with the release in give_back: the borrower's last reads of the memory
         * come before. */
        uint64_t word = bxi_load_acquire((bxi_a64 *)&words[index]);

        next = lent->next;
        if (word == lent->word)
            continue;
        if (word != lent->generation) {
            bxi_error_enter();          /* the caller does not fail by it */
            bxi_peer_suspect(job, peer, "it gives back a lease that it was never given");
            bxi_error_leave();
            break;
        }
        if (ended->count == RELEASE_AT_ONCE)
            break;
        lent->word = word;
        end_lease(job, peer, index, ended);
        if (lent->device) {
            ended->from[ended->count - 1] = peer;
            ended->point[ended->count - 1] = point_of(job, peer, index);
        }
    }
    if (ended->count < RELEASE_AT_ONCE)
        ledger->given_back_seen = given_back;
    if (ended->count == before)
        return false;
    bxi_count(&bxi_tables(job->control)->loans[peer->rank].returned, ended->count - before);
    bxi_counter_add(job, BXI_C_leases_returned, ended->count - before);
    show_loans(job, peer);
    return ended->count == RELEASE_AT_ONCE;
}

/* Leases have ended: whoever waits for that looks again, and so do the others, who are few. */
static void wake_waiters(struct bx_job *job)
{
    /* [lease.waiters] sequentially consistent, pairs with the addition in bxi_leases_want. */
    if (bxi_load_seq_cst(&job->lend->lease_waiters) != 0)
        bxi_wake(job, NULL);
}

/* Takes what peers first to last have given back. How many. Whoever finds something wakes those who wait, who
 * would find nothing more. */
static uint32_t reclaim(struct bx_job *job, int first, int last)
{
    struct ended ended;
    uint32_t total = 0;
    bool more = true;

    /* Relaxed: a grant of this thread's own is seen, and the others' may be looked at later. */
    while (more && bxi_load_relaxed(&job->lend->loans_out) != 0) {
        ended.count = 0;
        more = false;
        bxi_lock(&job->run->lock);
        for (int rank = first; rank <= last && !more; rank++)
            if (job->rpc->peers[rank].ledger.count > 0)
                more = look_words(job, &job->rpc->peers[rank], &ended);
        bxi_unlock(&job->run->lock);
        total += ended.count;
        drop_ended(&ended);
    }
    if (total > 0)
        wake_waiters(job);
    return total;
}

uint32_t bxi_leases_reclaim(struct bx_job *job)
{
    return reclaim(job, 0, job->world_size - 1);
}

struct range {                      /* of positions in a ring, both included */
    uint64_t first_pos, last_pos;
};

/* Ends the leases of a peer whose frame ends in the range, and counts them as `counter` and in the peer's own
 * word for it. */
static void end_all(struct bx_job *job, struct bxi_peer *peer, struct range range, enum bxi_counter counter)
{
    struct bxi_loans *loans = &bxi_tables(job->control)->loans[peer->rank];
    struct ended ended;
    bool more, any = false;

    do {
        ended.count = 0;
        bxi_lock(&job->run->lock);
        for (uint16_t index = peer->ledger.slots == NULL ? BXI_NO_LEASE : peer->ledger.oldest, next;
             index != BXI_NO_LEASE && ended.count < RELEASE_AT_ONCE; index = next) {
            uint64_t end_pos = peer->ledger.slots[index].end_pos;

            next = peer->ledger.slots[index].next;
            if (end_pos >= range.first_pos && end_pos <= range.last_pos)
                end_lease(job, peer, index, &ended);
        }
        if (ended.count > 0) {
            bxi_counter_add(job, counter, ended.count);
            bxi_count(counter == BXI_C_leases_returned ? &loans->returned : &loans->taken_back, ended.count);
            show_loans(job, peer);
        }
        bxi_unlock(&job->run->lock);
        any |= ended.count > 0;
        more = ended.count == RELEASE_AT_ONCE;
        drop_ended(&ended);
    } while (more);
    if (any)
        wake_waiters(job);
}

void bxi_leases_refused(struct bx_job *job, struct bxi_peer *peer, uint64_t through_pos)
{
    end_all(job, peer, (struct range){ 0, through_pos }, BXI_C_leases_returned);   /* nobody ever had them */
}

void bxi_leases_unsent(struct bx_job *job, struct bxi_peer *peer)
{
    end_all(job, peer, (struct range){ BX_FOREVER, BX_FOREVER }, BXI_C_leases_returned);
}

void bxi_leases_take_back(struct bx_job *job, struct bxi_peer *peer)
{
    bxi_lock(&job->run->lock);
    peer->ledger.given_back_seen = BX_FOREVER;      /* it may have died between a word and its count */
    bxi_unlock(&job->run->lock);
    reclaim(job, peer->rank, peer->rank);           /* what it had given back counts as that */
    end_all(job, peer, (struct range){ 0, BX_FOREVER }, BXI_C_leases_taken_back);
}

/* ---- granting (lock) ----------------------------------------------------------------------------------- */

bool bxi_lease_may_grant(const struct bx_job *job, const struct bxi_peer *peer, const struct bxi_cargo *cargo)
{
    uint64_t most = job->options.loan_bytes_max;

    return peer->ledger.count < BXI_LEASE_MAX &&
           (most == 0 || (cargo->bytes <= most && job->lend->loan_bytes <= most - cargo->bytes));
}

int bxi_lease_grant(struct bx_job *job, struct bxi_peer *peer, struct bxi_cargo *cargo)
{
    struct bxi_ledger *ledger = &peer->ledger;
    struct bxi_lease_head *head = (struct bxi_lease_head *)(void *)cargo->body;
    int rc = make_ledger(job, peer);

    if (rc < 0)
        return rc;
    if (!bxi_lease_may_grant(job, peer, cargo))
        return -EAGAIN;

    uint16_t index = ledger->free;
    struct bxi_lent *lent = &ledger->slots[index];

    ledger->free = lent->next;
    lent->generation++;
    lent->since_ns = bxi_now_ns();
    lent->bytes = cargo->bytes;
    lent->end_pos = BX_FOREVER;
    lent->holds = cargo->holds;
    lent->hold_count = cargo->hold_count;
    lent->device = cargo->device;
    link_out(ledger, index);
    ledger->count++;
    ledger->bytes += cargo->bytes;
    job->lend->loan_bytes += cargo->bytes;
    bxi_add(&job->lend->loans_out, 1);
    head->slot = index;
    head->generation = lent->generation;
    cargo->holds = NULL;
    cargo->granted = true;
    return index;
}

void bxi_lease_sent(struct bx_job *job, struct bxi_peer *peer, const struct bxi_cargo *cargo)
{
    const struct bxi_lease_head *head = (const struct bxi_lease_head *)(const void *)cargo->body;

    bxi_count(&bxi_tables(job->control)->loans[peer->rank].granted, 1);
    bxi_counter_add(job, BXI_C_leases_granted, 1);
    bxi_counter_add(job, BXI_C_tensors_sent, head->tensor_count);
    bxi_counter_add(job, BXI_C_tensor_bytes_sent, cargo->tensor_bytes);
    show_loans(job, peer);
    BXI_STEP("lease.sent");
}

void bxi_lease_ungrant(struct bx_job *job, struct bxi_peer *peer, struct bxi_cargo *cargo)
{
    const struct bxi_lease_head *head = (const struct bxi_lease_head *)(const void *)cargo->body;
    struct ended ended = { .count = 0 };

    if (!cargo->granted)
        return;
    peer->ledger.slots[head->slot].generation--;
    end_lease(job, peer, (uint16_t)head->slot, &ended);
    cargo->holds = ended.holds[0];
    cargo->granted = false;
}

/* ---- packing ------------------------------------------------------------------------------------------- */

static bool is_ours(const struct bx_job *job, const struct bx_tensor *tensor)
{
    const struct bxi_storage *storage = tensor->storage;

    return storage->kind == BXI_STORE_DEVICE ||
           (storage->kind == BXI_STORE_ARENA && storage->arena == job->lend->arena);
}

static size_t head_bytes(const struct bx_tensor *tensor)
{
    return sizeof(struct bxi_tensor_head) + (bxi_is_device(tensor) ? BXI_DEVICE_RECORD_BYTES : 0) +
           (tensor->contiguous ? 8u : 16u) * tensor->ndim;
}

/* Behind the holds stands a table by which those of one message are known: open addressing, empty where NULL,
 * at least twice as large as they can be many. */
static bool is_held(struct bxi_cargo *cargo, struct bxi_storage *storage)
{
    size_t at = ((uintptr_t)storage >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 20;

    while (cargo->table[at & cargo->table_mask] != NULL)
        if (cargo->table[at++ & cargo->table_mask] == storage)
            return true;
    cargo->table[at & cargo->table_mask] = storage;
    return false;
}

static void hold(struct bxi_cargo *cargo, struct bxi_storage *storage)
{
    if (is_held(cargo, storage))
        return;                 /* a block that several tensors of the message lie in is lent once */
    bxi_storage_acquire(storage);
    bxi_add(&storage->leases, 1);
    cargo->holds[cargo->hold_count++] = storage;
    cargo->bytes += storage->bytes;
}

static unsigned char *put_bytes(unsigned char *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return to + bytes;
}

/* Its record, and what is to be held for it: one reference. */
static int describe(struct bx_job *job, struct bxi_cargo *cargo, struct bx_tensor *tensor, unsigned char **to,
                    struct bxi_storage **storage)
{
    struct bxi_tensor_head head = {
        .dtype = tensor->dtype,
        .ndim = tensor->ndim,
        .device = (uint8_t)tensor->device.kind,
        .flags = tensor->contiguous ? 0 : BXI_STRIDED,
    };
    size_t row = sizeof(int64_t) * tensor->ndim;
    struct bxi_gpu_ref ref;

    if (bxi_is_device(tensor)) {
        int rc = bxi_device_pack(job, cargo, tensor, &head, &ref, storage);

        if (rc < 0)
            return rc;
    } else {
        head.offset = (uint64_t)(tensor->data - bxi_arena_base(job->lend->arena));
        *storage = tensor->storage;
        bxi_storage_acquire(*storage);
    }
    *to = put_bytes(*to, &head, sizeof head);
    if (bxi_is_device(tensor) && !(head.flags & BXI_STAGED))
        *to = put_bytes(*to, &ref, sizeof ref);
    *to = put_bytes(*to, tensor->shape, row);
    if (head.flags & BXI_STRIDED)           /* what was staged is packed */
        *to = put_bytes(*to, tensor->strides, row);
    return 0;
}

/* One tensor into the cargo: itself, or a copy in the arena, or on its device. */
static int pack_one(struct bx_job *job, struct bxi_cargo *cargo, struct bx_tensor *tensor, unsigned char **to)
{
    struct bxi_storage *storage = NULL;
    struct bx_tensor *copy = NULL;
    int rc;

    if (!is_ours(job, tensor)) {
        rc = bx_tensor_copy(job, tensor, &copy);
        if (rc < 0)
            return rc;
        bxi_add(&job->counters[BXI_C_tensors_copied], 1);
        bxi_add(&job->counters[BXI_C_tensor_bytes_copied], bx_tensor_bytes(copy));
        tensor = copy;
    }
    rc = describe(job, cargo, tensor, to, &storage);
    if (rc == 0) {
        hold(cargo, storage);
        cargo->tensor_bytes += (uint64_t)bx_tensor_bytes(tensor);
        bxi_storage_release(storage);
    }
    bx_tensor_release(copy);
    return rc;
}

/* Where descriptors and bytes go: behind the head, or into a block of the arena if a frame is too small. */
static int make_room(struct bx_job *job, struct bxi_cargo *cargo, size_t packed_bytes, unsigned char **to)
{
    bool here = sizeof(struct bxi_lease_head) + packed_bytes <= BXI_BODY_MAX;
    struct bxi_lease_head *head;

    cargo->body_bytes = sizeof *head + (here ? packed_bytes : 0);
    cargo->body = malloc(cargo->body_bytes);
    if (cargo->body == NULL)
        return bx_fail(-ENOMEM, "no memory for a message of %zu bytes", packed_bytes);
    head = (struct bxi_lease_head *)(void *)cargo->body;
    *head = (struct bxi_lease_head){ .packed_offset = BXI_PACKED_HERE, .packed_bytes = packed_bytes };
    *to = cargo->body + sizeof *head;
    if (here)
        return 0;

    struct bx_tensor *block = NULL;
    int rc = bxi_tensor_for_bytes(job, packed_bytes, &block);

    if (rc < 0 || block == NULL)
        return rc;
    hold(cargo, block->storage);
    head->packed_offset = (uint64_t)(block->data - bxi_arena_base(job->lend->arena));
    *to = block->data;
    bx_tensor_release(block);           /* the cargo holds its memory */
    return 0;
}

static int make_holds(struct bxi_cargo *cargo, size_t most)
{
    size_t table = 4;

    while (table < 2 * most)
        table *= 2;
    cargo->holds = malloc((most + table) * sizeof *cargo->holds);
    if (cargo->holds == NULL)
        return bx_fail(-ENOMEM, "no memory for a message of %zu tensors", most - 1);
    cargo->table = cargo->holds + most;
    cargo->table_mask = table - 1;
    memset(cargo->table, 0, table * sizeof *cargo->table);
    return 0;
}

int bxi_cargo_pack(struct bx_job *job, struct bxi_peer *peer, const struct bx_msg *msg, struct bxi_cargo *cargo)
{
    size_t packed_bytes = msg->bytes;
    unsigned char *to = NULL;
    int rc = 0;

    *cargo = (struct bxi_cargo){ .peer = peer };
    if (msg->bytes > BX_MSG_MAX || msg->tensor_count > BX_TENSORS_MAX)
        return bx_fail(BX_E_TOO_LARGE, "a message has %zu bytes and %zu tensors, %llu and %d are the most",
                       msg->bytes, msg->tensor_count, (unsigned long long)BX_MSG_MAX, BX_TENSORS_MAX);
    for (size_t i = 0; i < msg->tensor_count; i++)
        packed_bytes += head_bytes(msg->tensors[i]) + (is_ours(job, msg->tensors[i]) ? 0 : 8u * BX_DIMS_MAX);
    if ((rc = make_holds(cargo, msg->tensor_count + 1)) < 0)
        return rc;
    rc = make_room(job, cargo, packed_bytes, &to);

    unsigned char *begin = to;

    for (size_t i = 0; rc == 0 && i < msg->tensor_count; i++)
        rc = pack_one(job, cargo, msg->tensors[i], &to);
    if (rc < 0) {
        bxi_cargo_drop(cargo);
        return rc;
    }
    if (msg->bytes > 0)
        memcpy(to, msg->data, msg->bytes);

    /* A copy is row-major and may need less than the strided original. */
    struct bxi_lease_head *head = (struct bxi_lease_head *)(void *)cargo->body;

    head->packed_bytes = (uint64_t)(to - begin) + msg->bytes;
    head->tensor_count = (uint32_t)msg->tensor_count;
    if (head->packed_offset == BXI_PACKED_HERE)
        cargo->body_bytes = sizeof *head + head->packed_bytes;
    if (job->options.loan_bytes_max != 0 && cargo->bytes > job->options.loan_bytes_max) {
        rc = bx_fail(BX_E_ON_LOAN, "the message would lend %llu bytes, and worker '%s' may have %llu on loan "
                                   "(options.loan_bytes_max)", (unsigned long long)cargo->bytes, job->name,
                     (unsigned long long)job->options.loan_bytes_max);
        bxi_cargo_drop(cargo);
    }
    return rc;
}

void bxi_cargo_drop(struct bxi_cargo *cargo)
{
    if (cargo->holds != NULL)
        drop_holds(cargo->holds, cargo->hold_count);
    free(cargo->body);
    *cargo = (struct bxi_cargo){ 0 };
}

/* ---- what a program may ask ---------------------------------------------------------------------------- */

static int check_rank(const struct bx_job *job, int rank)
{
    if (rank < -1 || rank >= job->world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d, nor -1 for all", rank, job->world_size - 1);
    return 0;
}

static void add_loans(struct bx_job *job, int rank, struct bx_loans *sum, uint64_t *oldest_ns)
{
    struct bxi_loans *loans = &bxi_tables(job->control)->loans[rank];
    const struct bxi_ledger *ledger = &job->rpc->peers[rank].ledger;
    uint64_t since_ns = ledger->count == 0 ? 0 : ledger->slots[ledger->oldest].since_ns;

    sum->leases += ledger->count;
    sum->bytes += ledger->bytes;
    sum->granted += bxi_load_relaxed(&loans->granted);          /* relaxed: written under the lock */
    sum->returned += bxi_load_relaxed(&loans->returned);
    sum->taken_back += bxi_load_relaxed(&loans->taken_back);
    sum->borrowed += bxi_load_relaxed(&loans->borrowed);        /* relaxed: a recent value will do */
    if (since_ns != 0 && (*oldest_ns == 0 || since_ns < *oldest_ns))
        *oldest_ns = since_ns;
}

/* The next look reads every word, whatever the counts say: nonsense is found by who asks. */
static void look_at_all_words(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++)
        job->rpc->peers[rank].ledger.given_back_seen = BX_FOREVER;
    bxi_unlock(&job->run->lock);
}

int bx_job_loans(struct bx_job *job, int rank, struct bx_loans *loans)
{
    struct bx_loans sum = { 0 };
    uint64_t oldest_ns = 0;
    int rc = bxi_job_check(job);

    if (rc < 0 || (rc = check_rank(job, rank)) < 0)
        return rc;
    if (loans == NULL)
        return bxi_null(__func__, "the place for the figures");
    look_at_all_words(job);
    bxi_leases_reclaim(job);
    bxi_lock(&job->run->lock);
    for (int r = rank < 0 ? 0 : rank; r <= (rank < 0 ? job->world_size - 1 : rank); r++)
        add_loans(job, r, &sum, &oldest_ns);
    bxi_unlock(&job->run->lock);
    if (oldest_ns != 0)
        sum.oldest_ns = bxi_now_ns() - oldest_ns;
    sum.struct_bytes = loans->struct_bytes != 0 && loans->struct_bytes < sizeof sum ? loans->struct_bytes
                                                                                    : sizeof sum;
    memcpy(loans, &sum, sum.struct_bytes);
    return 0;
}

void bxi_leases_want(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    /* [lease.waiters] sequentially consistent, pairs with the loads in bxi_starved_look. */
    bxi_add_seq_cst(&job->lend->lease_waiters, 1);
    for (int rank = 0; rank < job->world_size; rank++)
        /* [lease.want] relaxed, before the fence below; pairs with the load in give_back. */
        bxi_store_relaxed(&job->control->pair[rank].want_lease, 1);
    bxi_unlock(&job->run->lock);
    bxi_fence_seq_cst();        /* [lease.want] the owner's fence, pairs with the one in give_back */
}

void bxi_leases_unwant(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    if (bxi_add_seq_cst(&job->lend->lease_waiters, (uint32_t)-1) == 1)
        for (int rank = 0; rank < job->world_size; rank++)
            bxi_store_relaxed(&job->control->pair[rank].want_lease, 0);    /* relaxed: a bell too many is legal */
    bxi_unlock(&job->run->lock);
}

struct loans_waiter {
    struct bxi_waiter waiter;   /* first */
    struct bx_job *job;
    int rank;
    uint64_t leases;
};

static bool few_enough(struct bxi_waiter *waiter)
{
    struct loans_waiter *loans = (struct loans_waiter *)(void *)waiter;
    struct bx_job *job = loans->job;
    uint64_t out;

    bxi_leases_reclaim(job);
    bxi_lock(&job->run->lock);
    out = loans->rank < 0 ? bxi_load_relaxed(&job->lend->loans_out) : job->rpc->peers[loans->rank].ledger.count;
    bxi_unlock(&job->run->lock);
    return out <= loans->leases;
}

int bx_loans_wait(struct bx_job *job, int rank, uint64_t leases, uint64_t timeout_ns)
{
    struct loans_waiter loans = {
        .waiter = { .ready = few_enough, .object = job == NULL ? NULL : &job->lend->lease_waiters,
                    .shown = { .reason = BXI_FOR_LOANS, .to = (int16_t)rank } },
        .job = job,
        .rank = rank,
        .leases = leases,
    };
    int rc = bxi_job_check(job);

    if (rc < 0 || (rc = check_rank(job, rank)) < 0)
        return rc;
    loans.waiter.deadline_ns = bxi_deadline_ns(timeout_ns);
    if (few_enough(&loans.waiter))
        return 0;
    bxi_leases_want(job);
    rc = bxi_wait(job, &loans.waiter);
    bxi_leases_unwant(job);
    bxi_out(rc);
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "more than %llu leases stayed on loan to %s%s%s for %.3f s", (unsigned long long)leases,
                       rank < 0 ? "the other workers" : "worker '", rank < 0 ? "" : job->rpc->peers[rank].name,
                       rank < 0 ? "" : "'", (double)timeout_ns / 1e9);
    return rc < 0 ? bx_fail(rc, "waiting for leases: %s", bx_strerror(rc)) : 0;
}

void bxi_ledger_destroy(struct bxi_peer *peer)
{
    struct bxi_ledger *ledger = &peer->ledger;

    for (uint16_t i = 0; ledger->slots != NULL && i < BXI_LEASE_MAX; i++)
        if (ledger->slots[i].out)
            drop_holds(ledger->slots[i].holds, ledger->slots[i].hold_count);
    free(ledger->slots);
    ledger->slots = NULL;
}
