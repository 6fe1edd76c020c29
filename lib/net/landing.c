/* SPDX-License-Identifier: MIT */
/*
 * Frames that lend, from one host to another. The frame goes in a LEASE message; each block that it names follows in a
 * PART of its own, straight from where it lies. Under the progress role.
 *
 *     part 0        the records and bytes of the message, if they do not lie in the frame but in the sender's arena
 *     part 1 + i    the elements of tensor i, from its first to its last
 *
 * The receiver allocates a block of its own arena for each tensor, lets the wire write into it, and changes the
 * records: the tensor lies in this worker's memory, and comes back from the sender. The records name the blocks by
 * struct bxi_landed (lend/lend.h), which holds them until the frame has been handled; the loan that the frame's handler
 * has then holds the blocks itself. Part 0 is written into the twin's arena, where the sender has it in its own, and is
 * dropped at the same time. Without room for the blocks the parts are dropped, and the loan cannot be opened: the call
 * fails, and the worker is not cut off.
 *
 * A tensor in device memory has been staged by its sender (device/tensor.c): its elements lie in the arena, and its
 * record says that they are meant for a device. Here it is staged in when the loan is opened (device/loan.c).
 *
 * A part that comes before its LEASE is kept.
 */
#include "net.h"

#include <fcntl.h>
#include <stdlib.h>

#define LEAST_BYTES (sizeof(struct bxi_frame) + sizeof(struct bxi_lease_head))  /* of a frame that lends */
#define PARTS_KEPT_MAX (BX_TENSORS_MAX + 1 + BXI_PARTS_AHEAD)           /* of messages whose turn has not come */

struct bxi_part {                           /* one that came */
    struct bxi_part *next;
    uint64_t number;
    uint32_t index;
    size_t bytes;
    struct bxi_wire_large *large;       /* or NULL: */
    unsigned char data[];
};

struct bxi_landing {
    struct bxi_twin *twin;
    struct bxi_parcel_head head;        /* of the LEASE */
    uint32_t frame_bytes;
    struct bxi_lease_head lease;
    unsigned char *packed;              /* records and bytes: in frame, or in the twin's arena */
    bool packed_is_there, is_failed;
    bool holds_off;                     /* kept parts are being taken: finish waits */
    uint64_t *awaited;                  /* by part: its bytes; 0: there is none, or it has come */
    uint32_t missing;                   /* parts that have not come whole */
    uint32_t fetched;                   /* of them, those that the wire writes */
    struct bxi_wire_operation packed_fetch, part_fetch;
    struct bxi_landed *landed;          /* NULL: the records are not known yet */
    unsigned char frame[];
};

/* ---- records ------------------------------------------------------------------------------------------ */

/* Copies the record at `at`. Its length, and the bytes of the tensor from its first element on; 0: nonsense. */
static uint64_t read_record(const unsigned char *at, uint64_t left, struct bxi_tensor_head *head, uint64_t *extent)
{
    int64_t shape[BX_DIMS_MAX], strides[BX_DIMS_MAX] = { 0 };
    struct bx_tensor tensor;
    uint64_t row;
    bool strided;

    if (left < sizeof *head)
        return 0;
    memcpy(head, at, sizeof *head);
    strided = (head->flags & BXI_STRIDED) != 0;
    row = 8u * (uint64_t)head->ndim;
    if (head->ndim > BX_DIMS_MAX || left - sizeof *head < row * (1 + strided) ||
        bx_dtype_bytes((enum bx_dtype)head->dtype) == 0 ||
        (head->device != BX_CPU && (head->flags & BXI_STAGED) == 0))
        return 0;
    memcpy(shape, at + sizeof *head, row);
    if (strided)
        memcpy(strides, at + sizeof *head + row, row);
    if (bxi_tensor_shape(&tensor, &(struct bxi_shape){ (enum bx_dtype)head->dtype, head->ndim, shape,
                                                       strided ? strides : NULL }, extent) < 0)
        return 0;
    return sizeof *head + row * (1 + strided);
}

/* ---- sending ------------------------------------------------------------------------------------------ */

/* NULL: no memory. */
static struct bxi_sending *hold(const struct bxi_twin *twin, const struct bxi_lease_head *lease)
{
    struct bx_job *job = twin->job;
    const struct bxi_grant_slot *slots = job->rpc->peers[twin->rank]->lend->grants.slots;
    const struct bxi_holds *holds;
    struct bxi_sending *sending;
    uint32_t count;

    bxi_lock(&job->run->lock);
    holds = lease->slot < BXI_LEASE_MAX ? slots[lease->slot].holds : NULL;
    count = holds != NULL ? holds->count : 0;
    sending = bxi_net_memory(job->net, sizeof *sending + count * sizeof *sending->storages);
    if (sending != NULL) {
        sending->parts = 1;
        sending->count = count;
        for (uint32_t i = 0; i < sending->count; i++)
            bxi_storage_acquire(sending->storages[i] = holds->storages[i]);
    }
    bxi_unlock(&job->run->lock);
    return sending;
}

/* The arena of a worker that is gone, as a loan still has it. */
static const struct bxi_arena_view *view_in(const struct bxi_loan *loan, uint32_t owner)
{
    if (loan->returns != NULL && bxi_owner_word(loan->returns->peer) == owner)
        return loan->view;
    for (const struct bxi_passed *passed = loan->passed; passed != NULL; passed = passed->next)
        if (passed->owner == owner)
            return passed->view;
    return NULL;
}

/* Where what a record of this worker names lies. NULL: nowhere. */
static const unsigned char *source_of(const struct bx_job *job, const struct bxi_sending *sending,
                                      const struct bxi_tensor_head *head)
{
    const struct bxi_lend_peer *owner = head->flags & BXI_PASSED ? bxi_owner_of(job, head->owner) : NULL;
    const struct bxi_arena_view *view = owner != NULL ? owner->arena : NULL;

    if ((head->flags & BXI_PASSED) == 0)
        return bxi_arena_base(job->lend->arena) + head->offset;
    for (uint32_t i = 0; i < sending->count && view == NULL; i++)       /* its owner, on this host, is gone */
        if (sending->storages[i]->kind == BXI_STORE_LOAN)
            view = view_in((const struct bxi_loan *)(const void *)sending->storages[i], head->owner);
    return view != NULL ? view->base + head->offset : NULL;
}

/* The receiver waits for what cannot be sent, and for all behind it. */
static void give_up(struct bxi_twin *twin, const char *why)
{
    bxi_log(twin->job, 0, "a tensor cannot be sent to worker '%s': %s", twin->job->net->places[twin->rank].name, why);
    bxi_twin_dies(twin->job->net, twin);
}

static void send_part(struct bxi_twin *twin, struct bxi_sending *sending, const struct bxi_parcel_head *head,
                      const void *memory, uint64_t bytes)
{
    struct bxi_parcel *parcel = bxi_parcel_make(twin, BXI_PARCEL_PART, 0);

    if (parcel == NULL) {
        give_up(twin, "no memory");
        return;
    }
    parcel->head.number = head->number;
    parcel->head.index = head->index;
    parcel->sending = sending;
    bxi_parcel_send_part(twin, parcel, memory, bytes);
}

bool bxi_out_must_wait(struct bxi_twin *twin, const unsigned char *frame)
{
    struct bxi_lease_head lease;

    memcpy(&lease, frame + sizeof(struct bxi_frame), sizeof lease);
    twin->waits_for_parts = twin->parts_under_way > 0 &&
                            twin->parts_ahead + lease.tensor_count + 1 > BXI_PARTS_AHEAD;
    return twin->waits_for_parts;
}

void bxi_out_lease(struct bxi_twin *twin, const unsigned char *frame, uint64_t number)
{
    const unsigned char *packed = frame + sizeof(struct bxi_frame) + sizeof(struct bxi_lease_head);
    struct bxi_parcel_head part = { .number = number };
    struct bxi_sending *sending;
    struct bxi_lease_head lease;
    uint64_t at = 0;

    memcpy(&lease, frame + sizeof(struct bxi_frame), sizeof lease);
    sending = hold(twin, &lease);
    if (sending == NULL) {
        give_up(twin, "no memory");
        return;
    }
    if (lease.packed_offset != BXI_PACKED_HERE) {
        packed = bxi_arena_base(twin->job->lend->arena) + lease.packed_offset;
        send_part(twin, sending, &part, packed, lease.packed_bytes);
    }
    for (part.index = 1; part.index <= lease.tensor_count; part.index++) {
        struct bxi_tensor_head head;
        uint64_t extent = 0, length = read_record(packed + at, lease.packed_bytes - at, &head, &extent);
        const unsigned char *source = length > 0 ? source_of(twin->job, sending, &head) : NULL;

        if (source == NULL) {
            give_up(twin, "it is gone");
            break;
        }
        if (extent > 0)
            send_part(twin, sending, &part, source, extent);
        at += length;
    }
    bxi_sending_drop(sending);
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

static void finish(struct bxi_twin *twin);

static void fail(struct bxi_landing *landing, const char *why)
{
    landing->is_failed = true;
    bxi_in_nonsense(landing->twin, why);
}

static void nonsense(struct bxi_twin *twin)
{
    fail(twin->landing, "it lends what it does not have");
}

static void part_is_there(void *context, int rc)
{
    struct bxi_landing *landing = context;

    landing->missing--;
    landing->fetched--;
    if (rc < 0) {
        landing->is_failed = true;
        bxi_in_not_fetched(landing->twin, rc);
    } else {
        finish(landing->twin);
    }
}

static void packed_is_there(void *context, int rc)
{
    struct bxi_landing *landing = context;

    landing->packed_is_there = true;
    part_is_there(context, rc);
}

/* Where a part belongs is known. */
static bool has_place(const struct bxi_landing *landing, uint32_t index)
{
    return index == 0 ? landing->lease.packed_offset != BXI_PACKED_HERE : landing->landed != NULL;
}

static void land(struct bxi_landing *landing, uint32_t index, const void *data, size_t bytes,
                 struct bxi_wire_large *large)
{
    struct bxi_net *net = landing->twin->job->net;
    struct bxi_wire_operation *fetch = index == 0 ? &landing->packed_fetch : &landing->part_fetch;
    const bool is_awaited = index <= landing->lease.tensor_count && bytes > 0 && bytes == landing->awaited[index];
    const bool has_room = index == 0 || landing->landed->code == 0;
    void *place = !is_awaited || !has_room ? NULL
                  : index == 0 ? landing->packed : landing->landed->storages[index - 1]->base;

    if (large != NULL && place == NULL)
        net->ops->drop(net->wire, large);
    if (!is_awaited) {
        nonsense(landing->twin);
        return;
    }
    landing->awaited[index] = 0;
    landing->fetched++;
    if (large != NULL && place != NULL) {
        net->ops->fetch(net->wire, large, place, bytes, fetch);
        return;
    }
    if (place != NULL)
        memcpy(place, data, bytes);
    fetch->done(landing, 0);
}

/* 0, or why there is no block. */
static int make_block(struct bxi_landing *landing, uint64_t extent)
{
    struct bxi_landed *landed = landing->landed;
    int64_t bytes = (int64_t)(extent > 0 ? extent : 1);
    struct bx_tensor *tensor = NULL;
    int rc;

    bxi_error_enter();
    rc = bx_tensor_create(landing->twin->job, BX_U8, 1, &bytes, &tensor);
    if (rc < 0)
        bxi_log(landing->twin->job, 0, "tensors of worker '%s' cannot be taken: %s",
                landing->twin->job->net->places[landing->twin->rank].name, bx_error_text());
    else
        landed->storages[landed->count++] = tensor->storage;    /* its reference is the tensor's */
    bxi_error_leave();
    return rc;
}

static void drop_blocks(struct bxi_landed *landed)
{
    while (landed->count > 0)
        bxi_storage_release(landed->storages[--landed->count]);
}

/* Makes a block for each tensor, or none. False: it was nonsense, or there is no memory. */
static bool allocate(struct bxi_landing *landing)
{
    struct bxi_landed *landed = bxi_net_memory(landing->twin->job->net, sizeof *landed +
                                               landing->lease.tensor_count * sizeof *landed->storages);
    uint64_t at = 0;

    if (landed == NULL) {
        fail(landing, "no memory for a message of it");
        return false;
    }
    *landed = (struct bxi_landed){ .code = 0 };
    landing->landed = landed;
    for (uint32_t i = 0; i < landing->lease.tensor_count; i++) {
        struct bxi_tensor_head head;
        uint64_t extent = 0, left = landing->lease.packed_bytes - at;
        uint64_t length = read_record(landing->packed + at, left, &head, &extent);

        if (length == 0) {
            nonsense(landing->twin);
            return false;
        }
        if (landed->code == 0)
            landed->code = make_block(landing, extent);
        landing->awaited[1 + i] = extent;
        landing->missing += extent > 0;
        at += length;
    }
    if (landed->code < 0)
        drop_blocks(landed);
    return true;
}

/* Names the blocks in the records. False: they have changed. What lies in the twin's arena may be dropped with an
 * earlier message that named the same place. */
static bool rewrite(struct bxi_landing *landing)
{
    struct bx_job *job = landing->twin->job;
    uint64_t at = 0;

    for (uint32_t i = 0; i < landing->lease.tensor_count; i++) {
        struct bxi_tensor_head head;
        uint64_t extent, length = read_record(landing->packed + at, landing->lease.packed_bytes - at, &head, &extent);

        if (length == 0)
            return false;
        head.offset = i < landing->landed->count ? bxi_storage_offset(job, landing->landed->storages[i]) : 0;
        head.flags = (uint8_t)((head.flags & (BXI_STRIDED | BXI_STAGED)) | BXI_PASSED);
        head.owner = (uint32_t)job->rank | landing->landed->name << BXI_RANK_BITS;
        memcpy(landing->packed + at, &head, sizeof head);
        at += length;
    }
    return true;
}

void bxi_landing_drop_packed(const struct bxi_twin *twin, uint64_t offset, uint64_t bytes)
{
    fallocate(twin->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
}

static void free_landing(struct bxi_landing *landing)
{
    if (landing->landed != NULL)
        drop_blocks(landing->landed);
    free(landing->landed);
    free(landing->awaited);
    if (landing->lease.packed_offset != BXI_PACKED_HERE)
        bxi_landing_drop_packed(landing->twin, landing->lease.packed_offset, landing->lease.packed_bytes);
    free(landing);
}

/* All is there: the frame goes into the ring. False: it was nonsense. */
static bool put(struct bxi_landing *landing)
{
    struct bxi_twin *twin = landing->twin;
    struct bxi_landed *landed = landing->landed;

    landed->name = twin->landed_name++ & (UINT32_MAX >> BXI_RANK_BITS);
    if (!rewrite(landing) || !bxi_in_put(twin, landing->frame, landing->frame_bytes))
        return false;
    if (landing->lease.packed_offset != BXI_PACKED_HERE) {
        landed->packed_offset = landing->lease.packed_offset;
        landed->packed_bytes = landing->lease.packed_bytes;
        landing->lease.packed_offset = BXI_PACKED_HERE;         /* it is no longer this one's to drop */
    }
    landed->end_pos = twin->in.write_pos;
    *twin->landed_end = landed;
    twin->landed_end = &landed->next;
    landing->landed = NULL;
    return true;
}

/* Parts of this frame that came before it. */
static void take_kept(struct bxi_landing *landing)
{
    struct bxi_twin *twin = landing->twin;

    for (struct bxi_part **place = &twin->parts; *place != NULL;) {
        struct bxi_part *part = *place;

        if (part->number != landing->head.number || !has_place(landing, part->index)) {
            place = &part->next;
            continue;
        }
        *place = part->next;
        twin->part_count--;
        land(landing, part->index, part->data, part->bytes, part->large);       /* holds_off: the list stays */
        free(part);
    }
}

/* Goes on with the frame as far as its parts have come. */
static void finish(struct bxi_twin *twin)
{
    struct bxi_landing *landing = twin->landing;

    if (landing->is_failed || landing->holds_off || !landing->packed_is_there)
        return;
    if (landing->landed == NULL) {
        if (!allocate(landing))
            return;
        landing->holds_off = true;      /* the parts that are taken here call this function */
        take_kept(landing);
        landing->holds_off = false;
    }
    if (landing->missing > 0 || landing->is_failed)
        return;
    if (!put(landing)) {
        nonsense(twin);
        return;
    }
    if (landing->head.has_words)
        bxi_in_words(twin, &landing->head.words);
    twin->landing = NULL;
    free_landing(landing);              /* what waits for it goes on in bxi_in_pass */
}

static bool is_valid(const struct bxi_landing *landing)
{
    const struct bxi_lease_head *lease = &landing->lease;
    uint64_t here = landing->frame_bytes - sizeof(struct bxi_frame) - sizeof *lease;
    uint64_t arena_bytes = landing->twin->job->net->places[landing->twin->rank].arena_bytes;

    if (lease->tensor_count > BX_TENSORS_MAX ||
        lease->tensor_count > lease->packed_bytes / sizeof(struct bxi_tensor_head) ||
        lease->packed_bytes > BX_MSG_MAX + lease->tensor_count * BXI_TENSOR_HEAD_MAX)
        return false;
    if (lease->packed_offset == BXI_PACKED_HERE)
        return lease->packed_bytes <= here;
    return lease->packed_offset <= arena_bytes && lease->packed_bytes <= arena_bytes - lease->packed_offset;
}

/* NULL: it was nonsense, or there is no memory. */
static struct bxi_landing *make_landing(struct bxi_twin *twin, const struct bxi_parcel_head *head,
                                        const unsigned char *data, size_t bytes)
{
    struct bxi_landing *landing;
    uint64_t length = 0;

    if (bytes >= sizeof length)
        memcpy(&length, data, sizeof length);
    if (length < LEAST_BYTES || length > BXI_FRAME_MAX || length > bytes - sizeof length) {
        bxi_in_nonsense(twin, "it sent what no worker sends");
        return NULL;
    }
    landing = bxi_net_memory(twin->job->net, sizeof *landing + length);
    if (landing == NULL) {
        bxi_in_nonsense(twin, "no memory for a message of it");
        return NULL;
    }
    *landing = (struct bxi_landing){ .twin = twin, .head = *head, .frame_bytes = (uint32_t)length,
                                     .packed_fetch = { .done = packed_is_there, .context = landing },
                                     .part_fetch = { .done = part_is_there, .context = landing } };
    memcpy(landing->frame, data + sizeof length, length);
    memcpy(&landing->lease, landing->frame + sizeof(struct bxi_frame), sizeof landing->lease);
    landing->packed_is_there = landing->lease.packed_offset == BXI_PACKED_HERE;
    return landing;
}

void bxi_landing_begin(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data,
                       size_t bytes)
{
    struct bxi_landing *landing = twin->landing = make_landing(twin, head, data, bytes);
    size_t awaited_bytes;

    if (landing == NULL)
        return;
    if (!is_valid(landing)) {
        nonsense(twin);
        return;
    }
    landing->packed = landing->packed_is_there ? landing->frame + LEAST_BYTES
                                               : twin->arena + landing->lease.packed_offset;
    awaited_bytes = (landing->lease.tensor_count + 1) * sizeof *landing->awaited;
    landing->awaited = bxi_net_memory(twin->job->net, awaited_bytes);
    if (landing->awaited == NULL) {
        fail(landing, "no memory for a message of it");
        return;
    }
    memset(landing->awaited, 0, awaited_bytes);
    if (!landing->packed_is_there) {
        landing->awaited[0] = landing->lease.packed_bytes;
        landing->missing = 1;
        landing->holds_off = true;
        take_kept(landing);
        landing->holds_off = false;
    }
    finish(twin);
}

static void keep(struct bxi_twin *twin, const struct bxi_parcel_head *head, const void *data, size_t bytes,
                 struct bxi_wire_large *large)
{
    struct bxi_net *net = twin->job->net;
    struct bxi_part *part = NULL;

    if (twin->part_count < PARTS_KEPT_MAX)
        part = bxi_net_memory(net, sizeof *part + (large == NULL ? bytes : 0));
    if (part == NULL) {
        if (large != NULL)
            net->ops->drop(net->wire, large);
        bxi_in_nonsense(twin, "it sent more than there is memory for");
        return;
    }
    *part = (struct bxi_part){ twin->parts, head->number, head->index, bytes, large };
    if (large == NULL)
        memcpy(part->data, data, bytes);
    twin->parts = part;
    twin->part_count++;
}

void bxi_landing_part(struct bxi_twin *twin, const struct bxi_parcel_head *head, const void *data, size_t bytes,
                      struct bxi_wire_large *large)
{
    struct bxi_landing *landing = twin->landing;

    if (landing != NULL && !landing->is_failed && head->number == landing->head.number &&
        has_place(landing, head->index))
        land(landing, head->index, data, bytes, large);
    else
        keep(twin, head, data, bytes, large);
}

void bxi_landing_drop_kept(struct bxi_twin *twin)
{
    struct bxi_net *net = twin->job->net;

    while (twin->parts != NULL) {
        struct bxi_part *part = twin->parts;

        twin->parts = part->next;
        if (part->large != NULL)
            net->ops->drop(net->wire, part->large);
        free(part);
    }
}

void bxi_landing_end(struct bxi_twin *twin)
{
    if (twin->landing != NULL && twin->landing->fetched == 0)
        bxi_landing_forget(twin);
}

void bxi_landing_forget(struct bxi_twin *twin)
{
    if (twin->landing != NULL)
        free_landing(twin->landing);
    twin->landing = NULL;
}
