/* SPDX-License-Identifier: MIT */
/*
 * The owner's side of leases, from the grant to the return.
 *
 * A message with tensors takes one lease, whatever their number: a slot of the owner's grants to that peer, and the
 * slot's next generation. The owner keeps a reference to every block; the frame carries slot and generation. The
 * borrower gives the lease back by writing the generation into word [slot] of its own segment, behind its ring towards
 * the owner, when the last tensor of the message is released. The owner reads these words when it needs memory (a new
 * tensor, a new grant), when the program asks for the figures, and while a thread waits for leases. No frame is sent
 * for a return. Neither side writes into the other's memory.
 *
 * Threads: any thread grants and collects, under run->lock. Blocks are released without the lock, because giving memory
 * back may take system calls. The progress role opens loans; any thread ends one, under returns->lock, inside which
 * run->lock may be taken.
 *
 * What the other side does if this process is killed:
 *   owner    after the grant, before its frame is published   nothing was lent
 *   owner    after that                                       the borrower keeps the arena mapped until it has
 *                                                             released the last tensor; nothing reads the words
 *   borrower before it wrote the word                         the owner takes the lease back with its pidfd
 *   borrower after it                                         the lease is returned
 * If the peer refuses the frame unread, the lease ends with the refusal. If the peer was cut off or has left while it
 * holds the lease, the lease ends with its process.
 *
 * A word that is neither its old value nor the generation on loan is invalid: the peer is cut off.
 *
 * Waiting for a lease: the owner sets want_lease for all peers. The borrower reads it after its word and a full fence,
 * as want_credit is read for rings (shm/ring.h).
 */
#include "lend.h"

#include "base/options.h"

#include <errno.h>
#include <stdlib.h>

#define RELEASE_AT_ONCE 64      /* leases ended: then the lock is released, for which others wait */

/* ---- the grants to a peer (lock) ------------------------------------------------------------------------------ */

static int make_slots(struct bx_job *job, struct bxi_lend_peer *peer)
{
    struct bxi_grants *grants = &peer->grants;

    if (grants->slots != NULL)
        return 0;
    grants->slots = calloc(BXI_LEASE_MAX, sizeof *grants->slots);
    if (grants->slots == NULL)
        return bx_fail(-ENOMEM, "no memory for the list of what is lent to worker '%s'", peer->name);
    for (uint16_t i = 0; i < BXI_LEASE_MAX; i++)
        grants->slots[i].next = i + 1 < BXI_LEASE_MAX ? (uint16_t)(i + 1) : BXI_NO_LEASE;
    grants->free = 0;
    grants->oldest = grants->newest = BXI_NO_LEASE;
    if (peer->rank == job->rank) {
        grants->words = peer->loop_words;
        grants->given_back = &peer->loop_words[BXI_LEASE_MAX];
    }
    return 0;
}

/* From now on borrowers ring when they return a lease, and the role collects returns in every pass; until unwant. For
 * threads that wait for leases, and while a lease is out that holds a loan. */
static void want(struct bx_job *job)
{
    /* [lease.waiters] sequentially consistent, pairs with the load in bxi_grants_reclaim_wanted. */
    bxi_add_seq_cst(&job->lend->lease_waiters, 1);
    for (int rank = 0; rank < job->world_size; rank++)
        /* [lease.want] relaxed, before the fence below; pairs with the load in give_back. */
        bxi_store_relaxed(&job->control->pair[rank].want_lease, 1);
    bxi_fence_seq_cst();        /* [lease.want] the owner's fence, pairs with the one in give_back */
}

static void unwant(struct bx_job *job)
{
    if (bxi_add_seq_cst(&job->lend->lease_waiters, (uint32_t)-1) == 1)
        for (int rank = 0; rank < job->world_size; rank++)
            bxi_store_relaxed(&job->control->pair[rank].want_lease, 0);    /* relaxed: one bell too many is harmless */
}

void bxi_grants_want_from(struct bx_job *job, int rank)
{
    /* Either `want` stores 1 after the 0 of bxi_segment_forget_peer, or it is counted here. */
    bxi_fence_seq_cst();
    if (bxi_load_seq_cst(&job->lend->lease_waiters) != 0)
        /* [lease.want] relaxed: the next process of that rank reads it later. */
        bxi_store_relaxed(&job->control->pair[rank].want_lease, 1);
}

/* The borrower's lease words; NULL until it has allocated its ring towards this worker, and the words with it. */
static const bxi_a64 *find_words(struct bx_job *job, struct bxi_lend_peer *peer)
{
    struct bxi_grants *grants = &peer->grants;

    /* [pair.open] acquire, pairs with the release in bxi_peer_open_out: the pages of the words are there. */
    if (grants->words == NULL && peer->rank != job->rank &&
        bxi_load_acquire((bxi_a64 *)&peer->view->control->pair[job->rank].open) == 1) {
        grants->words = bxi_segment_view_at(peer->view, bxi_lease_offset(job->rank));
        grants->given_back = &peer->view->control->pair[job->rank].given_back;
    }
    return grants->words;
}

/* Adds what is on loan to a rank: to the worker that has it now, and to those before whose leases are not back yet. All
 * figures and waits are of this sum. oldest_ns: when it was granted; 0: there is none. Lock. */
static void add_on_loan(const struct bx_job *job, int rank, struct bx_loans *sum)
{
    for (const struct bxi_lend_peer *peer = job->lend->peers[rank]; peer != NULL; peer = peer->former) {
        const struct bxi_grants *grants = &peer->grants;
        uint64_t since_ns = grants->count == 0 ? 0 : grants->slots[grants->oldest].since_ns;

        sum->leases += grants->count;
        sum->bytes += grants->bytes;
        if (since_ns != 0 && (sum->oldest_ns == 0 || since_ns < sum->oldest_ns))
            sum->oldest_ns = since_ns;
    }
}

static void show_loans(struct bx_job *job, int rank)
{
    struct bxi_loans *loans = &bxi_tables(job->control)->loans[rank];
    struct bx_loans sum = { 0 };

    add_on_loan(job, rank, &sum);
    /* Relaxed: for inspectors. */
    bxi_store_relaxed(&loans->leases, sum.leases);
    bxi_store_relaxed(&loans->bytes, sum.bytes);
    bxi_store_relaxed(&loans->oldest_ns, sum.oldest_ns);
}

static void link_out(struct bxi_grants *grants, uint16_t index)
{
    struct bxi_grant_slot *slot = &grants->slots[index];

    slot->out = true;
    slot->next = BXI_NO_LEASE;
    slot->prev = grants->newest;
    if (grants->newest != BXI_NO_LEASE)
        grants->slots[grants->newest].next = index;
    else
        grants->oldest = index;
    grants->newest = index;
}

static void unlink_out(struct bxi_grants *grants, uint16_t index)
{
    struct bxi_grant_slot *slot = &grants->slots[index];

    slot->out = false;
    if (slot->prev != BXI_NO_LEASE)
        grants->slots[slot->prev].next = slot->next;
    else
        grants->oldest = slot->next;
    if (slot->next != BXI_NO_LEASE)
        grants->slots[slot->next].prev = slot->prev;
    else
        grants->newest = slot->prev;
    slot->next = grants->free;
    grants->free = index;
}

/* Leases that ended under run->lock: what they held is released without it. */
struct ended {
    struct bxi_holds *first;
    uint32_t count;
};

static void end_lease(struct bx_job *job, struct bxi_lend_peer *peer, uint16_t index, struct ended *ended)
{
    struct bxi_grants *grants = &peer->grants;
    struct bxi_grant_slot *slot = &grants->slots[index];

    slot->holds->next = ended->first;
    ended->first = slot->holds;
    ended->count++;
    grants->count--;
    grants->bytes -= slot->bytes;
    job->lend->loan_bytes -= slot->bytes;
    bxi_add(&job->lend->loans_out, (uint32_t)-1);
    slot->holds = NULL;
    if (slot->passes)
        unwant(job);
    unlink_out(grants, index);
}

static void drop_holds(struct bxi_holds *holds)
{
    for (uint32_t i = 0; i < holds->count; i++) {
        struct bxi_storage *storage = holds->storages[i];

        if (holds->from != NULL && (storage->kind == BXI_STORE_DEVICE || storage->kind == BXI_STORE_LOAN))
            bxi_device_ops()->until(storage, holds->from, &holds->point);
        bxi_add(&storage->leases, (uint32_t)-1);
        bxi_storage_release(storage);
    }
    free(holds);
}

static void drop_ended(struct ended *ended)
{
    while (ended->first != NULL) {
        struct bxi_holds *holds = ended->first;

        ended->first = holds->next;
        drop_holds(holds);
    }
}

/* The point returned with lease `index`. Call it after reading the lease word. */
static struct bxi_gpu_point point_of(const struct bx_job *job, const struct bxi_lend_peer *peer, uint16_t index)
{
    const bxi_a64 *words = peer->loop_words + BXI_LEASE_MAX + 1;

    if (peer->rank != job->rank)
        words = bxi_segment_view_at(peer->view, bxi_device_pair_offset(job->rank) + BXI_DEVICE_POINTS);

    /* Relaxed, both: after the acquire of the lease word, which was written after them. */
    uint64_t which = bxi_load_relaxed((bxi_a64 *)&words[2 * index]);

    return (struct bxi_gpu_point){ .order = (uint16_t)which, .lane = (uint16_t)(which >> 16),
                                   .value = bxi_load_relaxed((bxi_a64 *)&words[2 * index + 1]) };
}

/* ---- collecting returns ------------------------------------------------------------------------------ */

/* Reads one peer's words. */
static void collect_words(struct bx_job *job, struct bxi_lend_peer *peer, struct ended *ended)
{
    struct bxi_grants *grants = &peer->grants;
    const bxi_a64 *words = find_words(job, peer);
    uint32_t before = ended->count;
    uint64_t given_back;

    if (words == NULL || peer->is_corrupt)
        return;
    /* [lease.count] acquire, pairs with the release in give_back: the words that it counts are seen. */
    given_back = bxi_load_acquire((bxi_a64 *)grants->given_back);
    if (given_back == grants->given_back_seen)
        return;
    grants->given_back_seen = given_back;
    for (uint16_t index = grants->oldest, next; index != BXI_NO_LEASE; index = next) {
        struct bxi_grant_slot *slot = &grants->slots[index];
        /* [lease.word] acquire, pairs with the release in give_back: the borrower's last reads of the memory
         * come before. */
        uint64_t word = bxi_load_acquire((bxi_a64 *)&words[index]);

        next = slot->next;
        if (word == slot->word)
            continue;
        if (word != slot->generation) {
            if (peer != job->lend->peers[peer->rank])
                break;                  /* a former one, which is dead: nobody is left to be cut off */
            bxi_error_enter();          /* keep the caller's last error */
            job->lend->ops->suspect(job, peer->rank, "it gives back a lease that it was never given");
            bxi_error_leave();
            break;
        }
        slot->word = word;
        if (slot->device) {
            slot->holds->from = peer;
            slot->holds->point = point_of(job, peer, index);
        }
        end_lease(job, peer, index, ended);
    }
    if (ended->count == before)
        return;
    bxi_count(&bxi_tables(job->control)->loans[peer->rank].returned, ended->count - before);
    bxi_counter_add(job, BXI_C_leases_returned, ended->count - before);
    show_loans(job, peer->rank);
}

/* Leases have ended: wakes all waiting threads, which are few; each rechecks its condition. */
static void wake_waiters(struct bx_job *job)
{
    /* [lease.waiters] sequentially consistent, pairs with the addition in want. */
    if (bxi_load_seq_cst(&job->lend->lease_waiters) != 0)
        bxi_wake(job->run, NULL);
}

/* Collects the returned leases of peers first to last. How many. It wakes the waiting threads, because a return that is
 * collected here is not found by them. */
static uint32_t reclaim(struct bx_job *job, int first, int last)
{
    struct ended ended;
    uint32_t total = 0;
    bool more = true;

    /* Relaxed: this thread's grants are seen; those of other threads may be read later. */
    while (more && bxi_load_relaxed(&job->lend->loans_out) != 0) {
        ended = (struct ended){ .count = 0 };
        more = false;
        bxi_lock(&job->run->lock);
        for (int rank = first; rank <= last && !more; rank++) {
            for (struct bxi_lend_peer *peer = job->lend->peers[rank]; peer != NULL; peer = peer->former)
                if (peer->grants.count > 0)
                    collect_words(job, peer, &ended);
            more = ended.count >= RELEASE_AT_ONCE;
        }
        bxi_unlock(&job->run->lock);
        total += ended.count;
        drop_ended(&ended);
    }
    if (total > 0)
        wake_waiters(job);
    return total;
}

uint32_t bxi_grants_reclaim(struct bx_job *job)
{
    return reclaim(job, 0, job->world_size - 1);
}

struct range {                      /* of positions in a ring, both included */
    uint64_t first_pos, last_pos;
    uint64_t since_ns;              /* and granted then or later */
};

/* Ends the leases whose frames end in the range. Counts them as `counter` and in the peer's row of loans. */
static void end_all(struct bx_job *job, struct bxi_lend_peer *peer, struct range range, enum bxi_counter counter)
{
    struct bxi_loans *loans = &bxi_tables(job->control)->loans[peer->rank];
    struct ended ended = { .count = 0 };

    bxi_lock(&job->run->lock);
    for (uint16_t index = peer->grants.slots == NULL ? BXI_NO_LEASE : peer->grants.oldest, next; index != BXI_NO_LEASE;
         index = next) {
        const struct bxi_grant_slot *slot = &peer->grants.slots[index];

        next = slot->next;
        if (slot->end_pos >= range.first_pos && slot->end_pos <= range.last_pos && slot->since_ns >= range.since_ns)
            end_lease(job, peer, index, &ended);
    }
    if (ended.count > 0) {
        bxi_counter_add(job, counter, ended.count);
        bxi_count(counter == BXI_C_leases_returned ? &loans->returned : &loans->taken_back, ended.count);
        show_loans(job, peer->rank);
    }
    bxi_unlock(&job->run->lock);
    drop_ended(&ended);
    if (ended.count > 0)
        wake_waiters(job);
}

void bxi_grants_refused(struct bx_job *job, struct bxi_lend_peer *peer, uint64_t through_pos)
{
    end_all(job, peer, (struct range){ 0, through_pos, 0 }, BXI_C_leases_returned);   /* never borrowed */
}

void bxi_grants_unsent(struct bx_job *job, struct bxi_lend_peer *peer)
{
    end_all(job, peer, (struct range){ BX_FOREVER, BX_FOREVER, 0 }, BXI_C_leases_returned);
}

/* The storage of the arena in which an offset lies, with a reference; or NULL. Records come in the order of their
 * storages, so the search begins at the last one that was found. */
static struct bxi_storage *find_in(const struct bx_job *job, struct bxi_storage *const *storages, uint32_t count,
                                   uint32_t *last, uint64_t offset)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (*last + i) % count;
        struct bxi_storage *storage = storages[at];

        if (storage->kind != BXI_STORE_ARENA || offset - bxi_storage_offset(job, storage) >= storage->bytes)
            continue;
        *last = at;
        bxi_storage_acquire(storage);
        return storage;
    }
    return NULL;
}

static int find_landed(const struct bx_job *job, struct bxi_lend_peer *peer, uint32_t name, uint64_t offset,
                       struct bxi_storage **storage)
{
    struct bxi_landed *landed = *peer->landed;

    *storage = NULL;
    while (landed != NULL && landed->name != name)
        landed = landed->next;
    if (landed == NULL)
        return BX_E_CORRUPT;
    if (landed->code < 0)
        return bx_fail(landed->code, "worker '%s' could not take the tensors of a message of worker '%s': %s",
                       job->name, peer->name, bx_strerror(landed->code));
    *storage = find_in(job, landed->storages, landed->count, &landed->last, offset);
    return *storage != NULL ? 0 : BX_E_CORRUPT;
}

int bxi_grants_find(struct bx_job *job, struct bxi_lend_peer *peer, uint32_t slot, uint64_t offset,
                    struct bxi_storage **storage)
{
    const struct bxi_grants *grants = &peer->grants;
    struct bxi_holds *holds;

    if (peer->is_remote)
        return find_landed(job, peer, slot, offset, storage);
    *storage = NULL;
    bxi_lock(&job->run->lock);
    if (grants->slots != NULL && slot < BXI_LEASE_MAX && grants->slots[slot].out) {
        holds = grants->slots[slot].holds;
        *storage = find_in(job, holds->storages, holds->count, &holds->last, offset);
    }
    bxi_unlock(&job->run->lock);
    return *storage != NULL ? 0 : BX_E_CORRUPT;
}

bool bxi_grants_wait_for_round(struct bx_job *job, struct bxi_lend_peer *peer)
{
    bool waits;

    if (peer->rank == job->rank || peer->view->control == NULL ||
        /* Relaxed: it is dead, and what it had counted before it sent a frame is there. */
        bxi_load_relaxed((bxi_a64 *)&bxi_tables_view(peer->view->control)->counters[BXI_C_tensors_passed_on]) == 0)
        return false;
    bxi_lock(&job->run->lock);
    waits = peer->waits_for_round = peer->grants.count > 0;
    bxi_unlock(&job->run->lock);
    return waits;
}

static void take_back_since(struct bx_job *job, struct bxi_lend_peer *peer, uint64_t since_ns)
{
    bxi_lock(&job->run->lock);
    peer->grants.given_back_seen = BX_FOREVER;      /* it may have died between a word and its count */
    bxi_unlock(&job->run->lock);
    reclaim(job, peer->rank, peer->rank);           /* leases that it had returned count as returned */
    end_all(job, peer, (struct range){ 0, BX_FOREVER, since_ns }, BXI_C_leases_taken_back);
}

void bxi_grants_take_back(struct bx_job *job, struct bxi_lend_peer *peer)
{
    take_back_since(job, peer, 0);
}

static uint64_t newest_ns(const struct bxi_grants *grants)
{
    return grants->count == 0 ? 0 : grants->slots[grants->newest].since_ns;
}

uint64_t bxi_grants_newest_waiting_ns(const struct bx_job *job)
{
    uint64_t newest = 0;

    for (int rank = 0; rank < job->world_size; rank++) {
        const struct bxi_lend_peer *peer = job->lend->peers[rank];

        if (peer->is_remote)
            return 0;
        for (; peer != NULL; peer = peer->former)
            if (peer->waits_for_round && newest_ns(&peer->grants) > newest)
                newest = newest_ns(&peer->grants);
    }
    return newest != 0 ? newest : BX_FOREVER;
}

/* One with leases for the round that ends; or without any, and then it waits no more. */
static struct bxi_lend_peer *next_waiting(struct bx_job *job, uint64_t since_ns, bool *others)
{
    struct bxi_lend_peer *found = NULL;

    *others = false;
    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size && found == NULL; rank++)
        for (struct bxi_lend_peer *peer = job->lend->peers[rank]; peer != NULL && found == NULL; peer = peer->former) {
            if (!peer->waits_for_round)
                continue;
            peer->waits_for_round = peer->grants.count > 0;
            *others |= peer->waits_for_round;
            if (peer->waits_for_round && newest_ns(&peer->grants) >= since_ns)
                found = peer;
        }
    bxi_unlock(&job->run->lock);
    return found;
}

bool bxi_grants_take_back_waiting(struct bx_job *job, uint64_t since_ns)
{
    struct bxi_lend_peer *peer;
    bool others;

    while ((peer = next_waiting(job, since_ns, &others)) != NULL)
        take_back_since(job, peer, since_ns);
    return others;
}

/* ---- granting (lock) ----------------------------------------------------------------------------------- */

bool bxi_grant_is_allowed(const struct bx_job *job, const struct bxi_lend_peer *peer, const struct bxi_grant *grant)
{
    uint64_t most = job->options.loan_bytes_max;

    return peer->grants.count < BXI_LEASE_MAX &&
           (most == 0 || (grant->bytes <= most && job->lend->loan_bytes <= most - grant->bytes));
}

int bxi_grant_enter(struct bx_job *job, struct bxi_lend_peer *peer, struct bxi_grant *grant)
{
    struct bxi_grants *grants = &peer->grants;
    struct bxi_lease_head *head = (struct bxi_lease_head *)(void *)grant->body;
    int rc = make_slots(job, peer);

    if (rc < 0)
        return rc;
    if (!bxi_grant_is_allowed(job, peer, grant))
        return -EAGAIN;

    uint16_t index = grants->free;
    struct bxi_grant_slot *slot = &grants->slots[index];

    grants->free = slot->next;
    slot->generation++;
    slot->since_ns = bxi_now_ns();
    slot->bytes = grant->bytes;
    slot->end_pos = BX_FOREVER;
    slot->holds = grant->holds;
    slot->device = grant->device;
    slot->passes = grant->passes;
    if (slot->passes)
        want(job);
    link_out(grants, index);
    grants->count++;
    grants->bytes += grant->bytes;
    job->lend->loan_bytes += grant->bytes;
    bxi_add(&job->lend->loans_out, 1);
    head->slot = index;
    head->generation = slot->generation;
    grant->holds = NULL;
    return index;
}

void bxi_grant_sent(struct bx_job *job, struct bxi_lend_peer *peer, const struct bxi_grant *grant)
{
    const struct bxi_lease_head *head = (const struct bxi_lease_head *)(const void *)grant->body;

    bxi_count(&bxi_tables(job->control)->loans[peer->rank].granted, 1);
    bxi_counter_add(job, BXI_C_leases_granted, 1);
    bxi_counter_add(job, BXI_C_tensors_sent, head->tensor_count);
    bxi_counter_add(job, BXI_C_tensor_bytes_sent, grant->tensor_bytes);
    show_loans(job, peer->rank);
}

void bxi_grant_undo(struct bx_job *job, struct bxi_lend_peer *peer, struct bxi_grant *grant)
{
    const struct bxi_lease_head *head = (const struct bxi_lease_head *)(const void *)grant->body;
    struct ended ended = { .count = 0 };

    peer->grants.slots[head->slot].generation--;
    end_lease(job, peer, (uint16_t)head->slot, &ended);
    grant->holds = ended.first;
}

void bxi_grant_drop(struct bxi_grant *grant)
{
    if (grant->holds != NULL)
        drop_holds(grant->holds);
    free(grant->body);
    *grant = (struct bxi_grant){ 0 };
}

/* ---- figures and waits of the program ------------------------------------------------------------------ */

static int check_rank(const struct bx_job *job, int rank)
{
    if (rank < -1 || rank >= job->world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d, nor -1 for all", rank, job->world_size - 1);
    return 0;
}

/* rank: -1 for all. */
static struct bx_loans loans_of(struct bx_job *job, int rank)
{
    struct bx_loans sum = { 0 };

    bxi_lock(&job->run->lock);
    for (int r = rank < 0 ? 0 : rank; r <= (rank < 0 ? job->world_size - 1 : rank); r++) {
        struct bxi_loans *loans = &bxi_tables(job->control)->loans[r];

        add_on_loan(job, r, &sum);
        sum.granted += bxi_load_relaxed(&loans->granted);       /* relaxed: written under the lock */
        sum.returned += bxi_load_relaxed(&loans->returned);
        sum.taken_back += bxi_load_relaxed(&loans->taken_back);
        sum.borrowed += bxi_load_relaxed(&loans->borrowed);     /* relaxed: a recent value is enough */
    }
    bxi_unlock(&job->run->lock);
    return sum;
}

/* Makes the next collection read every word, whatever the counts are, so that it finds invalid words. */
static void reread_all_words(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++)
        job->lend->peers[rank]->grants.given_back_seen = BX_FOREVER;
    bxi_unlock(&job->run->lock);
}

int bx_job_loans(struct bx_job *job, int rank, struct bx_loans *loans)
{
    struct bx_loans sum;
    int rc = bxi_job_check(job);

    if (rc < 0 || (rc = check_rank(job, rank)) < 0)
        return rc;
    if (loans == NULL)
        return bxi_null(__func__, "the place for the figures");
    reread_all_words(job);
    bxi_grants_reclaim(job);
    sum = loans_of(job, rank);
    if (sum.oldest_ns != 0)
        sum.oldest_ns = bxi_now_ns() - sum.oldest_ns;
    bxi_figures_copy(loans, &sum, sizeof sum);
    return 0;
}

void bxi_grants_want(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    want(job);
    bxi_unlock(&job->run->lock);
}

void bxi_grants_unwant(struct bx_job *job)
{
    bxi_lock(&job->run->lock);
    unwant(job);
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

    bxi_grants_reclaim(loans->job);
    return loans_of(loans->job, loans->rank).leases <= loans->leases;
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
    bxi_grants_want(job);
    rc = bxi_wait(job->run, &loans.waiter);
    bxi_grants_unwant(job);
    bxi_out(rc);
    if (rc == BX_E_TIMEOUT)
        return bx_fail(rc, "more than %llu leases stayed on loan to %s%s%s for %.3f s", (unsigned long long)leases,
                       rank < 0 ? "the other workers" : "worker '", rank < 0 ? "" : job->lend->peers[rank]->name,
                       rank < 0 ? "" : "'", (double)timeout_ns / 1e9);
    return rc < 0 ? bx_fail(rc, "waiting for leases: %s", bx_strerror(rc)) : 0;
}

void bxi_grants_destroy(struct bxi_lend_peer *peer)
{
    struct bxi_grants *grants = &peer->grants;

    for (uint16_t i = 0; grants->slots != NULL && i < BXI_LEASE_MAX; i++)
        if (grants->slots[i].out)
            drop_holds(grants->slots[i].holds);
    free(grants->slots);
    grants->slots = NULL;
}
