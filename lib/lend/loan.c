/* SPDX-License-Identifier: MIT */
/*
 * The borrower's side of a lease: opening the loan of a frame, and returning the lease.
 *
 * Threads: the progress role opens loans, from a private copy of the frame. The thread that drops the last reference
 * ends a loan; it writes the return under returns->lock. grant.c has the owner's side and the table of what a kill
 * leaves behind.
 *
 * Only private memory is parsed: a frame is copied before, and records and bytes in the peer's arena are copied first.
 * Nothing else of the peer's arena is read but the elements of tensors; offsets and extents are checked against the
 * mapping. A loan is one block of memory with all its tensors, so a message of 10000 tensors costs one allocation.
 */
#include "lend.h"

#include <errno.h>
#include <stdlib.h>

/* ---- returns ------------------------------------------------------------------------------------------- */

static void returns_release(struct bxi_returns *returns)
{
    /* [returns.refs] acquire and release, pairs with the acquire in bxi_returns_are_done: what this thread did with it
     * comes before. */
    if (bxi_add(&returns->refs, (uint32_t)-1) == 1)
        free(returns);
}

static struct bxi_returns *returns_to(struct bx_job *job, struct bxi_lend_peer *peer)
{
    bool self = peer->rank == job->rank;
    struct bxi_returns *returns = peer->returns;

    if (returns == NULL) {
        returns = calloc(1, sizeof *returns);
        if (returns == NULL)
            return NULL;
        bxi_store_relaxed(&returns->refs, 1);
        returns->job = job;
        returns->peer = peer;
        returns->given_back = self ? &peer->loop_words[BXI_LEASE_MAX] : &job->control->pair[peer->rank].given_back;
        returns->words = self ? peer->loop_words : bxi_segment_leases(&job->segment, peer->rank);
        returns->want = &(self ? job->control : peer->view->control)->pair[job->rank].want_lease;
        peer->returns = returns;
    }
    bxi_add(&returns->refs, 1);
    return returns;
}

void bxi_returns_close(struct bxi_lend_peer *peer)
{
    struct bxi_returns *returns = peer->returns;

    if (returns == NULL)
        return;
    bxi_lock(&returns->lock);
    returns->job = NULL;
    bxi_unlock(&returns->lock);
    peer->returns = NULL;
    returns_release(returns);
}

void bxi_returns_orphan(struct bxi_lend_peer *peer)
{
    if (peer->returns == NULL)
        return;
    bxi_lock(&peer->returns->lock);
    peer->returns->words = NULL;
    bxi_unlock(&peer->returns->lock);
}

bool bxi_returns_are_done(const struct bxi_lend_peer *peer)
{
    /* [returns.refs] acquire, pairs with the release in returns_release. The peer has one, and each loan. */
    return peer->returns == NULL || bxi_load_acquire(&peer->returns->refs) == 1;
}

/* Counts a word written. Under returns->lock, or with no other thread. */
static void count_return(bxi_a64 *given_back)
{
    /* [lease.count] release, pairs with the acquire in collect_words: without it the owner may see the count before
     * the word, and then never reads the word. */
    bxi_store_release(given_back, bxi_load_relaxed(given_back) + 1);
}

/* Writes the point after which no GPU work reads the loan; the lease word is written after it. Under returns->lock. */
static void put_point(struct bxi_returns *returns, uint32_t slot, const struct bxi_gpu_point *point)
{
    struct bx_job *job = returns->job;
    int rank = returns->peer->rank;
    bxi_a64 *words = returns->words + BXI_LEASE_MAX + 1;         /* to oneself */

    if (rank != job->rank)
        words = bxi_segment_at(&job->segment, bxi_device_pair_offset(rank) + BXI_DEVICE_POINTS);
    /* Relaxed, both: published by the store of the lease word. */
    bxi_store_relaxed(&words[2 * slot], (uint64_t)point->order | (uint64_t)point->lane << 16);
    bxi_store_relaxed(&words[2 * slot + 1], point->value);
}

/* Returns a lease. point: NULL if the loan has no device memory. */
static void give_back(struct bxi_returns *returns, uint32_t slot, uint64_t generation,
                      const struct bxi_gpu_point *point)
{
    bxi_lock(&returns->lock);
    if (returns->job != NULL && returns->words != NULL) {
        if (point != NULL)
            put_point(returns, slot, point);
        /* [lease.word] release, pairs with the acquire in collect_words: reads of the memory come before. */
        bxi_store_release(&returns->words[slot], generation);
        count_return(returns->given_back);
        bxi_count(&bxi_tables(returns->job->control)->loans[returns->peer->rank].borrowed, (uint64_t)-1);
        bxi_fence_seq_cst();        /* [lease.want] the borrower's fence, pairs with the one in want */
        /* [lease.want] relaxed, behind the fence; pairs with the store in want. */
        if (bxi_load_relaxed((bxi_a64 *)returns->want) != 0)
            returns->job->lend->ops->ring(returns->job, returns->peer->rank);
    }
    bxi_unlock(&returns->lock);
}

/* ---- loans --------------------------------------------------------------------------------------------- */

/* A loan with tensors that its lender has passed on. Role. */
static void begin_passed(struct bx_job *job, struct bxi_loan *loan)
{
    struct bxi_lend_peer *lender = loan->returns->peer;

    loan->passes = true;
    loan->opened_ns = bxi_now_ns();
    bxi_lock(&job->run->lock);
    loan->older = lender->passed_loans;
    if (loan->older != NULL)
        loan->older->newer = loan;
    lender->passed_loans = loan;
    bxi_unlock(&job->run->lock);
}

/* It has ended. A round that waits for it waits for the newest one. */
static void end_passed(struct bxi_loan *loan)
{
    struct bxi_returns *returns = loan->returns;
    struct bx_job *job;

    bxi_lock(&returns->lock);
    job = returns->job;
    if (job != NULL) {
        bxi_lock(&job->run->lock);
        if (loan->older != NULL)
            loan->older->newer = loan->newer;
        if (loan->newer != NULL)
            loan->newer->older = loan->older;
        else
            returns->peer->passed_loans = loan->older;
        bxi_unlock(&job->run->lock);
        if (loan->newer == NULL)
            job->lend->ops->passed_ended(job);
    }
    bxi_unlock(&returns->lock);
}

static void release_views(struct bxi_loan *loan)
{
    while (loan->passed != NULL) {
        struct bxi_passed *passed = loan->passed;

        loan->passed = passed->next;
        bxi_arena_view_release(passed->view);
        if (passed->storage != NULL)
            bxi_storage_release(passed->storage);
        free(passed);
    }
}

/* The last reference is dropped. */
static void end_loan(void *context)
{
    struct bxi_loan *loan = context;
    /* In the child of a fork loan and mapping are its parent's. */
    bool ours = bxi_load_relaxed(&bxi_forks) == loan->storage.fork_generation;

    bool device = loan->device != NULL;
    struct bxi_gpu_point point;

    if (ours)
        release_views(loan);
    if (ours && device)
        bxi_device_ops()->loan_end(loan, &point);
    if (ours && loan->returns != NULL) {
        bxi_arena_view_release(loan->view);
        if (loan->passes)
            end_passed(loan);
        give_back(loan->returns, loan->slot, loan->generation, device ? &point : NULL);
        returns_release(loan->returns);
    }
    free(loan->packed);
    free(loan);
}

void bxi_loan_release(struct bxi_loan *loan)
{
    if (loan != NULL)
        bxi_storage_release(&loan->storage);
}

/* A record of a tensor that the lender passed on. 0; BX_E_CORRUPT; BX_E_PEER_DEAD, BX_E_SHUTDOWN: its owner is gone. */
static int take_passed(struct bxi_loan *loan, const struct bxi_tensor_head *head)
{
    struct bxi_lend_peer *lender = loan->returns->peer, *owner;
    struct bx_job *job = loan->returns->job;
    int rank = (int)(head->owner & BXI_RANK_MASK);

    /* Of device memory: its own in place, this worker's only staged. */
    if (rank >= job->world_size || rank == lender->rank ||
        (head->device != BX_CPU && (rank == job->rank) != ((head->flags & BXI_STAGED) != 0)))
        return BX_E_CORRUPT;
    if (rank == job->rank)
        return 0;
    if (head->owner >> BXI_RANK_BITS > job->lend->peers[rank]->generation)
        job->lend->ops->look(job, rank);            /* the lender may know before this worker that it runs */
    if (head->owner >> BXI_RANK_BITS > job->lend->peers[rank]->generation)
        return BX_E_CORRUPT;
    owner = bxi_owner_of(job, head->owner);
    if (owner == NULL || owner->arena == NULL)
        return bx_fail(owner != NULL && owner->has_left ? BX_E_SHUTDOWN : BX_E_PEER_DEAD,
                       "a tensor was passed on by worker '%s', and its owner, worker '%s', is gone", lender->name,
                       job->lend->peers[rank]->name);
    if (!loan->passes)
        begin_passed(job, loan);
    return 0;
}

/* Has the loan hold a view, and takes the reference to the storage over. NULL: no memory. */
static struct bxi_passed *hold_view(struct bxi_loan *loan, struct bxi_arena_view *view, uint32_t owner,
                                    struct bxi_storage *storage)
{
    struct bxi_passed *passed = malloc(sizeof *passed);

    if (passed == NULL) {
        if (storage != NULL)
            bxi_storage_release(storage);
        return NULL;
    }
    *passed = (struct bxi_passed){ loan->passed, bxi_arena_view_acquire(view), owner, storage };
    loan->passed = passed;
    return passed;
}

/* The arena in which a tensor lies that the lender passed on, and where the memory ends in it. 0; -ENOMEM; errors of
 * bxi_grants_find: this worker's own, and the lender did not have it on loan, or it could not be received. */
static int find_passed(struct bxi_loan *loan, const struct bxi_tensor_head *head, struct bxi_passed **found,
                       uint64_t *end)
{
    struct bx_job *job = loan->returns->job;
    struct bxi_passed *passed = loan->passed;
    struct bxi_storage *storage = NULL;
    int rc;

    if ((int)(head->owner & BXI_RANK_MASK) == job->rank) {
        if ((rc = bxi_grants_find(job, loan->returns->peer, head->owner >> BXI_RANK_BITS, head->offset, &storage)) < 0)
            return rc;
        *end = bxi_storage_offset(job, storage) + storage->bytes;
        loan->came_back++;
        if (passed != NULL && passed->storage == storage) {     /* as the tensor before it */
            bxi_storage_release(storage);
            *found = passed;
            return 0;
        }
        *found = hold_view(loan, job->lend->peers[job->rank]->arena, head->owner, storage);
        return *found == NULL ? -ENOMEM : 0;
    }
    while (passed != NULL && passed->owner != head->owner)
        passed = passed->next;
    *found = passed != NULL ? passed : hold_view(loan, bxi_owner_of(job, head->owner)->arena, head->owner, NULL);
    if (*found == NULL)
        return -ENOMEM;
    *end = (*found)->view->bytes;
    return 0;
}

/* Checks a record's head, of a tensor in device memory or in the arena. *room: bytes that the tensor may span from its
 * first element. Returns the bytes of the record parsed, or an error: of take_passed, -ENODEV, -ENOMEM. */
static int64_t parse_head(struct bxi_loan *loan, uint32_t index, const unsigned char *at, uint64_t left,
                          uint64_t *room)
{
    struct bx_tensor *tensor = &loan->tensors[index];
    uint64_t end = loan->view->bytes;
    struct bxi_tensor_head head;
    struct bxi_gpu_ref ref;
    bool staged, named;
    size_t element;
    int rc;

    memcpy(&head, at, sizeof head);
    staged = (head.flags & BXI_STAGED) != 0;
    named = head.device == BX_CUDA && !staged;
    element = bx_dtype_bytes((enum bx_dtype)head.dtype);
    if (head.ndim > BX_DIMS_MAX || head.flags > (BXI_STRIDED | BXI_STAGED | BXI_PASSED) ||
        (!(head.flags & BXI_PASSED) && head.owner != 0) ||
        (head.device != BX_CPU && head.device != BX_CUDA) || (staged && head.device != BX_CUDA) || element == 0 ||
        (named && left < sizeof head + sizeof ref))
        return BX_E_CORRUPT;
    if ((head.flags & BXI_PASSED) && (rc = take_passed(loan, &head)) < 0)
        return rc;
    if ((head.flags & BXI_PASSED) && !named && (rc = find_passed(loan, &head, &tensor->passed, &end)) < 0)
        return rc;
    if (!named && head.offset > end)
        return BX_E_CORRUPT;
    if (named)
        memcpy(&ref, at + sizeof head, sizeof ref);
    if (named && ref.offset % element != 0)
        return BX_E_CORRUPT;
    *room = named ? ref.bytes : end - head.offset;
    if (!named)                         /* of a staged one: where it is copied from */
        tensor->data = (unsigned char *)(uintptr_t)bxi_loan_view(loan, tensor)->base + head.offset;
    if (head.device == BX_CPU)
        return sizeof head;
    if (bxi_device_ops() == NULL)
        return -ENODEV;
    if (loan->device == NULL && (rc = bxi_device_ops()->loan_make(loan)) < 0)
        return rc;
    rc = bxi_device_ops()->loan_part(loan, index, &head, named ? &ref : NULL);
    return rc < 0 ? rc : (int64_t)(sizeof head + (named ? sizeof ref : 0));
}

/* The tensor's elements begin and end around the address. */
static bool covers(const struct bx_tensor *tensor, const unsigned char *at)
{
    return (uintptr_t)at - (uintptr_t)tensor->data <
           (uint64_t)bxi_tensor_reach(tensor) * bx_dtype_bytes((enum bx_dtype)tensor->dtype);
}

static struct bxi_storage *find_in(const struct bxi_holds *holds, const unsigned char *at)
{
    for (uint32_t i = 0; i < holds->count; i++) {
        struct bxi_loan *loan = (struct bxi_loan *)holds->storages[i];

        for (uint32_t j = 0; loan->storage.kind == BXI_STORE_LOAN && j < loan->tensor_count; j++) {
            uint32_t index = (loan->last + j) % loan->tensor_count;

            if (covers(&loan->tensors[index], at)) {
                loan->last = index;
                return holds->storages[i];
            }
        }
    }
    return NULL;
}

/* A loan of this worker with a tensor in which the address lies, if a lease to anybody holds it, with a reference; or
 * NULL. */
static struct bxi_storage *find_lent_on(struct bx_job *job, const unsigned char *at)
{
    struct bxi_storage *found = NULL;

    bxi_lock(&job->run->lock);
    for (int rank = 0; rank < job->world_size; rank++)
        for (const struct bxi_lend_peer *peer = job->lend->peers[rank]; peer != NULL; peer = peer->former) {
            const struct bxi_grant_slot *slots = peer->grants.slots;

            for (uint16_t i = slots == NULL ? BXI_NO_LEASE : peer->grants.oldest; i != BXI_NO_LEASE && found == NULL;
                 i = slots[i].next)
                if (slots[i].passes)
                    found = find_in(slots[i].holds, at);
        }
    if (found != NULL)
        bxi_storage_acquire(found);
    bxi_unlock(&job->run->lock);
    return found;
}

/* Has the loan hold an older one of the same memory that this worker has lent on. 0, -ENOMEM. */
static int hold_older(struct bxi_loan *loan, const unsigned char *at, uint32_t owner)
{
    struct bx_job *job = loan->returns->job;
    struct bxi_storage *older = find_lent_on(job, at);

    if (older != NULL && loan->passed != NULL && loan->passed->storage == older) {      /* as the tensor before it */
        bxi_storage_release(older);
        older = NULL;
    }
    return older == NULL || hold_view(loan, bxi_owner_of(job, owner)->arena, owner, older) != NULL ? 0 : -ENOMEM;
}

/* Parses one record of at most `left` bytes. Its length, or errors as parse_head. */
static int64_t parse_tensor(struct bxi_loan *loan, uint32_t index, const unsigned char *at, uint64_t left)
{
    struct bx_tensor *tensor = &loan->tensors[index];
    struct bxi_tensor_head head;
    int64_t shape[BX_DIMS_MAX], strides[BX_DIMS_MAX], used;
    uint64_t row, extent, room = 0;
    bool strided;
    int rc;

    if (left < sizeof head)
        return BX_E_CORRUPT;
    memcpy(&head, at, sizeof head);
    used = parse_head(loan, index, at, left, &room);
    if (used < 0)
        return used;
    strided = (head.flags & BXI_STRIDED) != 0;
    row = 8u * (uint64_t)head.ndim;
    if (left - (uint64_t)used < row * (1 + strided))
        return BX_E_CORRUPT;
    memcpy(shape, at + used, row);
    if (strided)
        memcpy(strides, at + used + row, row);

    struct bxi_shape given = { (enum bx_dtype)head.dtype, head.ndim, shape, strided ? strides : NULL };

    if (bxi_tensor_shape(tensor, &given, &extent) < 0)
        return BX_E_CORRUPT;
    if (extent > room || head.offset % bx_dtype_bytes(given.dtype) != 0)
        return BX_E_CORRUPT;
    tensor->embedded = true;
    tensor->read_only = true;
    tensor->device = (struct bx_device){ (enum bx_device_kind)head.device, 0 };
    tensor->storage = &loan->storage;
    if ((head.flags & BXI_PASSED) && (int)(head.owner & BXI_RANK_MASK) != loan->returns->job->rank &&
        (rc = hold_older(loan, tensor->data, head.owner)) < 0)
        return rc;
    return used + (int64_t)(row * (1 + strided));
}

static int parse_tensors(struct bxi_loan *loan, const unsigned char *packed, uint64_t packed_bytes)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < loan->tensor_count; i++) {
        int64_t bytes = parse_tensor(loan, i, packed + at, packed_bytes - at);

        if (bytes < 0)
            return (int)bytes;
        at += (uint64_t)bytes;
        loan->pointers[i] = &loan->tensors[i];
    }
    loan->data = packed + at;
    loan->bytes = packed_bytes - at;
    return 0;
}

/* Checks the head. *copy: records and bytes, if they are in the peer's arena, else NULL. 0, BX_E_CORRUPT, -ENOMEM. */
static int fetch_packed(const struct bxi_lend_peer *peer, const struct bxi_lease_head *head, size_t body_bytes,
                        unsigned char **copy)
{
    const struct bxi_arena_view *view = peer->arena;

    *copy = NULL;
    if (head->slot >= BXI_LEASE_MAX || head->generation == 0 ||
        head->tensor_count > head->packed_bytes / sizeof(struct bxi_tensor_head) ||
        head->tensor_count > BX_TENSORS_MAX ||
        head->packed_bytes > BX_MSG_MAX + head->tensor_count * BXI_TENSOR_HEAD_MAX)
        return BX_E_CORRUPT;
    if (head->packed_offset == BXI_PACKED_HERE)
        return head->packed_bytes == body_bytes - sizeof *head ? 0 : BX_E_CORRUPT;
    if (head->packed_offset > view->bytes || head->packed_bytes > view->bytes - head->packed_offset)
        return BX_E_CORRUPT;
    *copy = malloc(head->packed_bytes);
    if (*copy == NULL)
        return -ENOMEM;
    memcpy(*copy, view->base + head->packed_offset, head->packed_bytes);
    /* Relaxed: only the handler of SIGBUS sets it, in this thread. */
    if (bxi_load_relaxed((bxi_a32 *)&view->truncated) == 0)
        return 0;
    free(*copy);
    return BX_E_CORRUPT;
}

static struct bxi_loan *make_loan(struct bxi_lend_peer *peer, const struct bxi_lease_head *head,
                                  struct bxi_returns *returns)
{
    size_t count = head->tensor_count;
    struct bxi_loan *loan = calloc(1, sizeof *loan + count * (sizeof *loan->tensors + sizeof *loan->pointers));

    if (loan == NULL)
        return NULL;
    bxi_store_relaxed(&loan->storage.refs, 1);
    loan->storage.kind = BXI_STORE_LOAN;
    loan->storage.free_fn = end_loan;
    loan->storage.context = loan;
    loan->storage.base = (unsigned char *)(uintptr_t)peer->arena->base;     /* mapped read-only */
    loan->storage.bytes = peer->arena->bytes;
    loan->storage.fork_generation = bxi_load_relaxed(&bxi_forks);   /* relaxed: as in arena_memory */
    loan->returns = returns;
    loan->view = bxi_arena_view_acquire(peer->arena);
    loan->slot = head->slot;
    loan->generation = head->generation;
    loan->tensor_count = head->tensor_count;
    loan->pointers = (struct bx_tensor **)(void *)(loan->tensors + count);
    return loan;
}

/* A large message has been copied whole, and tensors that came back are held: return the lease at once. */
static void settle(struct bxi_loan *loan)
{
    bxi_arena_view_release(loan->view);
    loan->view = NULL;
    give_back(loan->returns, loan->slot, loan->generation, NULL);
    returns_release(loan->returns);
    loan->returns = NULL;
}

void bxi_loan_staged(struct bxi_loan *loan)
{
    bool all = loan->came_back == loan->tensor_count;

    for (uint32_t i = 0; all && i < loan->tensor_count; i++)
        all = bxi_is_device(&loan->tensors[i]);
    if (!all)
        return;
    release_views(loan);
    settle(loan);
}

/* Without a struct bxi_returns, which no loan of this peer has (yet): no other thread returns one to it. */
static void return_at_once(struct bx_job *job, int rank, uint32_t slot, uint64_t generation)
{
    bool self = rank == job->rank;
    bxi_a64 *words = self ? job->lend->peers[rank]->loop_words : bxi_segment_leases(&job->segment, rank);

    /* [lease.word] release, as in give_back. */
    bxi_store_release(&words[slot], generation);
    count_return(self ? &words[BXI_LEASE_MAX] : &job->control->pair[rank].given_back);
}

int bxi_loan_open(struct bx_job *job, struct bxi_lend_peer *peer, const unsigned char *body, size_t body_bytes,
                  struct bxi_loan **out)
{
    struct bxi_lease_head head;
    unsigned char *copy = NULL;
    struct bxi_loan *loan;
    int rc;

    if (peer->held != NULL || peer->held_code < 0) {
        rc = peer->held_code;
        *out = peer->held;          /* opened by bxi_device_hold */
        peer->held = NULL;
        peer->held_code = 0;
        return rc;
    }
    if (body_bytes < sizeof head || peer->arena == NULL)
        return BX_E_CORRUPT;
    memcpy(&head, body, sizeof head);
    if ((rc = fetch_packed(peer, &head, body_bytes, &copy)) == BX_E_CORRUPT)
        return rc;

    struct bxi_returns *returns = returns_to(job, peer);

    if (returns == NULL) {
        free(copy);
        return_at_once(job, peer->rank, head.slot, head.generation);
        job->lend->ops->ring(job, peer->rank);
        return -ENOMEM;
    }
    bxi_lock(&returns->lock);
    bxi_count(&bxi_tables(job->control)->loans[peer->rank].borrowed, 1);
    bxi_count(&bxi_tables(job->control)->loans[peer->rank].borrowed_total, 1);
    bxi_unlock(&returns->lock);
    loan = rc == 0 ? make_loan(peer, &head, returns) : NULL;
    if (loan == NULL) {
        give_back(returns, head.slot, head.generation, NULL);
        returns_release(returns);
        free(copy);
        return -ENOMEM;
    }
    loan->packed = copy;
    rc = parse_tensors(loan, copy != NULL ? copy : body + sizeof head, head.packed_bytes);
    if (rc < 0) {
        bxi_loan_release(loan);
        return rc;
    }
    if (loan->came_back == loan->tensor_count && loan->device == NULL)
        settle(loan);
    *out = loan;
    return 0;
}

void bxi_loan_drop_held(struct bxi_lend_peer *peer)
{
    bxi_loan_release(peer->held);
    peer->held = NULL;
    peer->held_code = 0;
}

void bxi_loan_return_unread(struct bx_job *job, int rank, uint32_t slot, uint64_t generation)
{
    if (slot < BXI_LEASE_MAX && rank != job->rank)
        return_at_once(job, rank, slot, generation);
}
