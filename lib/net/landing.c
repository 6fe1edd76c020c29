/* SPDX-License-Identifier: MIT */
/*
 * Frames that lend, from one host to another. The frame goes in a LEASE message; each block that it names follows in a
 * PART of its own, straight from where it lies. Under the progress role.
 *
 *     part 0        the records and bytes of the message, if they do not lie in the frame but in the sender's arena
 *     part 1 + i    the elements of tensor i, from its first to its last
 *
 * The receiver allocates a block of its own arena for each tensor, lets the wire write into it, and changes the
 * records: the tensor lies in this worker's memory, and comes back from the sender. For that it enters the blocks in
 * its grants to the sender, as if it had lent them. That lease is given back in the sender's name once the frame has
 * been handled; the loan that the frame's handler has then holds the blocks itself. What lies in the twin's arena is
 * dropped at the same time.
 *
 * A tensor in device memory has been staged by its sender (device/tensor.c): its elements lie in the arena, and its
 * record says that they are meant for a device. Here it is staged in when the loan is opened (device/loan.c).
 *
 * A part that comes before its LEASE is kept.
 */
#include "net.h"

#include <errno.h>
#include <stdlib.h>

#define PARTS_KEPT_MAX 4096             /* of messages whose turn has not come */

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
    unsigned char *frame;               /* malloc'ed */
    uint32_t frame_bytes;
    struct bxi_lease_head lease;
    unsigned char *packed;              /* records and bytes: in frame, or malloc'ed */
    bool packed_is_own, packed_is_there, is_failed;
    bool holds_off;                     /* kept parts are being taken: finish waits */
    uint32_t allocated, missing;        /* tensors that have a block; parts that have not come whole */
    struct bx_tensor **tensors;
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

/* Where what a record of this worker names lies. */
static const unsigned char *source_of(const struct bx_job *job, const struct bxi_tensor_head *head)
{
    const struct bxi_lend_peer *owner = head->flags & BXI_PASSED ? bxi_owner_of(job, head->owner) : NULL;

    if ((head->flags & BXI_PASSED) == 0 || (int)(head->owner & 0xff) == job->rank)
        return bxi_arena_base(job->lend->arena) + head->offset;
    return owner != NULL && owner->arena != NULL ? owner->arena->base + head->offset : NULL;
}

static void send_part(struct bxi_twin *twin, uint64_t number, uint32_t index, const void *memory, uint64_t bytes)
{
    struct bxi_parcel *parcel = bxi_parcel_make(twin, BXI_PARCEL_PART, 0);

    if (parcel == NULL) {               /* the receiver would wait for ever */
        bxi_log(twin->job, 0, "no memory to send a tensor to worker '%s'", twin->job->net->places[twin->rank].name);
        bxi_twin_dies(twin->job->net, twin);
        return;
    }
    parcel->head.number = number;
    parcel->head.index = index;
    bxi_parcel_send_memory(twin, parcel, memory, bytes);
}

void bxi_out_lease(struct bxi_twin *twin, const unsigned char *frame, uint64_t number)
{
    const unsigned char *packed = frame + sizeof(struct bxi_frame) + sizeof(struct bxi_lease_head);
    struct bxi_lease_head lease;
    uint64_t at = 0;

    memcpy(&lease, frame + sizeof(struct bxi_frame), sizeof lease);
    if (lease.packed_offset != BXI_PACKED_HERE) {
        packed = bxi_arena_base(twin->job->lend->arena) + lease.packed_offset;
        send_part(twin, number, 0, packed, lease.packed_bytes);
    }
    for (uint32_t i = 0; i < lease.tensor_count; i++) {
        struct bxi_tensor_head head;
        uint64_t extent = 0, length = read_record(packed + at, lease.packed_bytes - at, &head, &extent);
        const unsigned char *source = length > 0 ? source_of(twin->job, &head) : NULL;

        if (source == NULL) {           /* its owner, on this host, has died */
            bxi_log(twin->job, 1, "a tensor for worker '%s' is gone with its owner",
                    twin->job->net->places[twin->rank].name);
            source = frame;
            extent = 0;
        }
        if (extent > 0)
            send_part(twin, number, 1 + i, source, extent);
        at += length;
    }
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

static void finish(struct bxi_twin *twin);

static void nonsense(struct bxi_twin *twin)
{
    twin->landing->is_failed = true;
    bxi_in_nonsense(twin, "it lends what it does not have");
}

static void part_is_there(void *context, int rc)
{
    struct bxi_landing *landing = context;

    landing->missing--;
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

/* Where a part belongs, if it is known by now, and of how many bytes. */
static void *place_of(const struct bxi_landing *landing, uint32_t index, uint64_t *bytes)
{
    if (index == 0) {
        *bytes = landing->lease.packed_bytes;
        return landing->packed_is_own ? landing->packed : NULL;
    }
    if (index > landing->allocated)
        return NULL;
    *bytes = bx_tensor_bytes(landing->tensors[index - 1]);
    return bx_tensor_data_mut(landing->tensors[index - 1]);
}

static void land(struct bxi_landing *landing, uint32_t index, const void *data, size_t bytes,
                 struct bxi_wire_large *large)
{
    struct bxi_net *net = landing->twin->job->net;
    bxi_wire_done *done = index == 0 ? packed_is_there : part_is_there;
    uint64_t room = 0;
    void *place = place_of(landing, index, &room);

    if (place == NULL || bytes > room) {
        if (large != NULL)
            net->ops->drop(net->wire, large);
        nonsense(landing->twin);
    } else if (large != NULL) {
        net->ops->fetch(net->wire, large, place, bytes, done, landing);
    } else {
        memcpy(place, data, bytes);
        done(landing, 0);
    }
}

/* Allocates a block for each tensor that has elements. False: it could not, now. */
static bool allocate(struct bxi_landing *landing)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < landing->lease.tensor_count; i++) {
        struct bxi_tensor_head head;
        uint64_t extent = 0, left = landing->lease.packed_bytes - at;
        uint64_t length = read_record(landing->packed + at, left, &head, &extent);
        int64_t bytes = (int64_t)(extent > 0 ? extent : 1);
        int rc;

        if (length == 0) {
            nonsense(landing->twin);
            return false;
        }
        rc = bx_tensor_create(landing->twin->job, BX_U8, 1, &bytes, &landing->tensors[i]);
        if (rc == BX_E_SHUTDOWN) {      /* this worker leaves: no more frames are handled */
            landing->is_failed = true;
            return false;
        }
        if (rc < 0) {
            bxi_log(landing->twin->job, 0, "tensors of worker '%s' cannot be taken: %s",
                    landing->twin->job->net->places[landing->twin->rank].name, bx_error_text());
            landing->is_failed = true;
            bxi_in_nonsense(landing->twin, "there is no room for its tensors");
            return false;
        }
        landing->allocated = i + 1;
        landing->missing += extent > 0;
        at += length;
    }
    return true;
}

/* Enters the blocks in the grants to the sender. */
static int lend_to_sender(struct bxi_landing *landing, struct bxi_given *given)
{
    struct bx_job *job = landing->twin->job;
    struct bxi_lend_peer *peer = job->rpc->peers[landing->twin->rank]->lend;
    struct bx_msg *message = bx_msg_create(0);
    struct bxi_grant grant = { .body = NULL };
    struct bx_reader reader;
    int rc = message == NULL ? -ENOMEM : 0;

    for (uint32_t i = 0; i < landing->lease.tensor_count && rc == 0; i++)
        rc = bx_msg_put_tensor(message, landing->tensors[i]);
    if (rc == 0) {
        reader = bx_msg_reader(message);
        rc = bxi_grant_pack(job, peer, &reader, &grant);
    }
    if (rc == 0) {
        bxi_lock(&job->run->lock);
        rc = bxi_grant_enter(job, peer, &grant);
        if (rc >= 0)                    /* its return counts too */
            bxi_count(&bxi_tables(job->control)->loans[peer->rank].granted, 1);
        bxi_unlock(&job->run->lock);
    }
    if (rc >= 0) {
        const struct bxi_lease_head *head = (const struct bxi_lease_head *)(const void *)grant.body;

        given->slot = head->slot;
        given->generation = head->generation;
    }
    if (grant.body != NULL)
        bxi_grant_drop(&grant);
    bx_msg_destroy(message);
    return rc < 0 ? rc : 0;
}

/* Names the blocks in the records. */
static void rewrite(struct bxi_landing *landing, uint32_t slot)
{
    struct bx_job *job = landing->twin->job;
    uint64_t at = 0;

    for (uint32_t i = 0; i < landing->lease.tensor_count; i++) {
        struct bxi_tensor_head head;
        uint64_t extent, length = read_record(landing->packed + at, landing->lease.packed_bytes - at, &head, &extent);

        head.offset = (uint64_t)((unsigned char *)bx_tensor_data_mut(landing->tensors[i]) -
                                 bxi_arena_base(job->lend->arena));
        head.flags = (uint8_t)((head.flags & (BXI_STRIDED | BXI_STAGED)) | BXI_PASSED);
        head.owner = (uint32_t)job->rank | slot << 8;
        memcpy(landing->packed + at, &head, sizeof head);
        at += length;
    }
}

static void free_landing(struct bxi_landing *landing)
{
    for (uint32_t i = 0; i < landing->allocated; i++)
        bx_tensor_release(landing->tensors[i]);
    free(landing->tensors);
    if (landing->packed_is_own)
        free(landing->packed);
    free(landing->frame);
    free(landing);
}

/* All is there: the frame goes into the ring. */
static bool put(struct bxi_landing *landing)
{
    struct bxi_twin *twin = landing->twin;
    struct bxi_given *given = calloc(1, sizeof *given);

    if (given == NULL)
        return false;
    given->slot = BXI_NO_LEASE;
    if (landing->lease.tensor_count > 0 && lend_to_sender(landing, given) < 0) {
        free(given);
        return false;
    }
    rewrite(landing, given->slot);
    if (landing->packed_is_own) {
        given->packed_offset = landing->lease.packed_offset;
        given->packed_bytes = landing->lease.packed_bytes;
        memcpy(twin->arena + landing->lease.packed_offset, landing->packed, landing->lease.packed_bytes);
    }
    if (!bxi_in_put(twin, landing->frame, landing->frame_bytes)) {
        nonsense(twin);
        given->end_pos = 0;
    } else {
        given->end_pos = twin->in.write_pos;
    }
    *twin->given_end = given;
    twin->given_end = &given->next;
    return true;
}

/* Parts of this frame that came before it. */
static void take_kept(struct bxi_landing *landing)
{
    struct bxi_twin *twin = landing->twin;

    for (struct bxi_part **place = &twin->parts; *place != NULL;) {
        struct bxi_part *part = *place;
        uint64_t room;

        if (part->number != landing->head.number || place_of(landing, part->index, &room) == NULL) {
            place = &part->next;
            continue;
        }
        *place = part->next;
        twin->part_count--;
        land(landing, part->index, part->data, part->bytes, part->large);
        free(part);
        place = &twin->parts;           /* the frame may be complete, and another one come */
        if (twin->landing != landing)
            return;
    }
}

/* Goes on with the frame as far as its parts have come. */
static void finish(struct bxi_twin *twin)
{
    struct bxi_landing *landing = twin->landing;

    if (landing->is_failed || landing->holds_off || !landing->packed_is_there)
        return;
    if (landing->tensors == NULL) {
        landing->tensors = calloc(landing->lease.tensor_count + 1, sizeof *landing->tensors);
        if (landing->tensors == NULL || !allocate(landing))
            return;
        landing->holds_off = true;      /* the parts that are taken here call this function */
        take_kept(landing);
        landing->holds_off = false;
    }
    if (landing->missing > 0 || landing->is_failed)
        return;
    if (!put(landing)) {
        landing->is_failed = true;
        bxi_in_nonsense(twin, "no memory for a message of it");
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

void bxi_landing_begin(struct bxi_twin *twin, const struct bxi_parcel_head *head, const unsigned char *data,
                       size_t bytes)
{
    struct bxi_landing *landing = calloc(1, sizeof *landing);
    const size_t least = sizeof(struct bxi_frame) + sizeof(struct bxi_lease_head);
    uint64_t length = 0;

    if (bytes >= sizeof length)
        memcpy(&length, data, sizeof length);
    if (landing == NULL || length < least || length > BXI_FRAME_MAX || length > bytes - sizeof length ||
        (landing->frame = malloc(length)) == NULL) {
        free(landing);
        bxi_in_nonsense(twin, "it sent what no worker sends");
        return;
    }
    twin->landing = landing;
    landing->twin = twin;
    landing->head = *head;
    landing->frame_bytes = (uint32_t)length;
    memcpy(landing->frame, data + sizeof length, length);
    memcpy(&landing->lease, landing->frame + sizeof(struct bxi_frame), sizeof landing->lease);
    landing->packed = landing->frame + least;
    landing->packed_is_there = landing->lease.packed_offset == BXI_PACKED_HERE;
    if (!is_valid(landing)) {
        nonsense(twin);
        return;
    }
    if (!landing->packed_is_there) {
        landing->packed_is_own = true;
        landing->packed = malloc(landing->lease.packed_bytes + 1);
        landing->missing = 1;
        if (landing->packed == NULL) {
            landing->is_failed = true;
            bxi_in_nonsense(twin, "no memory for a message of it");
            return;
        }
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
        part = malloc(sizeof *part + (large == NULL ? bytes : 0));
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
    uint64_t room;

    if (landing != NULL && !landing->is_failed && head->number == landing->head.number &&
        place_of(landing, head->index, &room) != NULL)
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

void bxi_landing_forget(struct bxi_twin *twin)
{
    if (twin->landing != NULL)
        free_landing(twin->landing);
    twin->landing = NULL;
}
