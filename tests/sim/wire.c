/* SPDX-License-Identifier: MIT */
/*
 * The wire between simulated hosts, in place of the plug-in of UCX: lib/net/wire.h, between the copies of the library.
 *
 * A message is under way until its receiver makes progress and the seed lets it arrive: the oldest one, or any. So they
 * arrive in any order. The seed chooses how its bytes go, whatever their number:
 *
 *     COPIED    as they are when it is sent
 *     READ      as they are when it arrives: the sender's memory is read then
 *     LARGE     as they are when it is fetched
 *
 * `done` comes within send, if it is COPIED, or with some later progress of the sender. Memory that its sender changes
 * or frees before that is a race, a use of freed memory, or a wrong byte that a program sees. What `arrived` gets is
 * freed behind it.
 *
 * Who sleeps is told of a message at once, or when nobody can run: a message takes no time.
 *
 * Death: what was COPIED arrives or not, the rest does not. The ends of the others to it are lost, some progress later.
 * So are those to a wire that is closed.
 */
#include "net/wire.h"
#include "world.h"

#include <sys/eventfd.h>

#define WIRES 16
#define ENDS 64

enum way { COPIED, READ, LARGE };
enum state { UNDER_WAY, AT_RECEIVER, FETCHED, OVER };  /* OVER: its sender may hear that it is done */

struct message {
    struct message *next;               /* of all, in the order in which they were sent */
    struct bxi_wire *from, *to;
    enum way way;
    enum state state;
    const void *head, *data;
    size_t head_bytes, bytes;
    struct bxi_wire_operation *sending, *fetching;      /* NULL: its end is told */
    void *place;
    size_t room;
    int rc;
    bool is_read;                       /* by its receiver, just now */
    struct sim_clock clock;             /* what is before its arrival; then, before `done` */
};

struct bxi_wire_end {
    struct bxi_wire *from, *to;
    void *peer;
    bool is_lost;                       /* and that was told */
};

struct bxi_wire {
    int worker, fd;
    bool is_gone, is_dead, is_armed;    /* gone: closed or dead: nothing goes there any more */
    bool is_stirred;                    /* by an operation, an arm that failed, or what progress found: it tells nothing
                                         * before progress finds nothing */
    bool in_order;
    uint32_t lateness;                  /* what can happen does so in one of 1 + lateness cases */
    struct bxi_wire_events events;
};

static struct bxi_wire wires[WIRES];
static struct bxi_wire_end ends[ENDS];
static unsigned wire_count, end_count;
static struct message *messages, **messages_end;

void sim_wires_reset(void)
{
    memset(wires, 0, sizeof wires);
    wire_count = end_count = 0;
    messages = NULL;
    messages_end = &messages;
}

/* ---- what is to happen -------------------------------------------------------------------------------- */

/* The seed may put off what could happen now. */
static bool waits(const struct bxi_wire *wire)
{
    return wire->lateness > 0 && sim_choose(1 + wire->lateness) != 0;
}

static bool is_for(const struct bxi_wire *wire, const struct message *message)
{
    return message->to == wire && message->state == UNDER_WAY;
}

static bool has_work(const struct bxi_wire *wire)
{
    for (const struct message *message = messages; message != NULL; message = message->next)
        if (is_for(wire, message) || (message->to == wire && message->state == FETCHED) ||
            (message->from == wire && message->state == OVER && message->sending != NULL))
            return true;
    for (unsigned i = 0; i < end_count; i++)
        if (ends[i].from == wire && ends[i].to->is_gone && !ends[i].is_lost)
            return true;
    return false;
}

static bool tell(struct bxi_wire *wire)
{
    const uint64_t one = 1;

    if (!wire->is_armed || wire->is_gone || wire->is_stirred)
        return false;
    wire->is_armed = false;
    sim_note("the wire of worker %d is told", wire->worker);
    if (write(wire->fd, &one, sizeof one) < 0)
        sim_fail("a wire's descriptor cannot be written");
    wake_all();
    return true;
}

bool sim_wires_move(void)
{
    bool any = false;

    for (unsigned i = 0; i < wire_count; i++)
        any |= wires[i].is_armed && has_work(&wires[i]) && tell(&wires[i]);
    return any;
}

/* ---- bytes -------------------------------------------------------------------------------------------- */

/* Line by line, with points between them. False: their owner has died, or closed its wire, meanwhile. */
static bool copy(struct message *message, void *to, const void *from, size_t bytes)
{
    const struct bxi_wire *owner = message->from;

    for (size_t at = 0; at < bytes; at += 64) {
        size_t count = bytes - at < 64 ? bytes - at : 64;

        if (owner->is_gone)
            return false;
        sim_plain((const unsigned char *)from + at, count, false, PC);
        if (owner->is_gone)
            return false;
        memcpy((unsigned char *)to + at, (const unsigned char *)from + at, count);
        sim_release_to(&message->clock);        /* `done` may come at once: who reads may die */
    }
    return !owner->is_gone;
}

static void *private_copy(struct message *message, const void *from, size_t bytes)
{
    void *to = sim_memory(bytes + 1);
    bool is_other = sim_self->worker != message->from->worker, is_whole;

    message->is_read |= is_other;
    is_whole = copy(message, to, from, bytes);
    message->is_read &= !is_other;
    return is_whole ? to : NULL;
}

static void end_message(struct message *message, int rc)
{
    message->state = OVER;
    message->rc = rc;
    sim_release_to(&message->clock);
}

/* ---- progress ----------------------------------------------------------------------------------------- */

static unsigned tell_done(struct bxi_wire *wire)
{
    unsigned count = 0;

    for (struct message *message = messages; message != NULL; message = message->next) {
        struct bxi_wire_operation *operation = message->sending;

        if (message->from != wire || message->state != OVER || operation == NULL || waits(wire))
            continue;
        message->sending = NULL;
        sim_clock_join(&sim_self->clock, &message->clock);
        operation->done(operation->context, message->rc);
        count++;
    }
    return count;
}

static void fetch_now(struct message *message)
{
    unsigned char *bytes;
    int rc = -ECONNRESET;

    sim_clock_join(&sim_self->clock, &message->clock);
    bytes = private_copy(message, message->data, message->bytes);
    if (bytes != NULL && message->bytes <= message->room) {
        sim_plain(message->place, message->bytes, true, PC);
        memcpy(message->place, bytes, message->bytes);
        rc = 0;
    }
    end_message(message, rc);
    message->fetching->done(message->fetching->context, rc);
}

static unsigned fetch_some(struct bxi_wire *wire)
{
    unsigned count = 0;

    for (struct message *message = messages; message != NULL; message = message->next)
        if (message->to == wire && message->state == FETCHED && !waits(wire)) {
            fetch_now(message);
            count++;
        }
    return count;
}

static void arrive(struct bxi_wire *wire, struct message *message)
{
    const struct bxi_wire_events *events = &wire->events;
    void *head = NULL, *data = NULL;

    sim_note("message %p arrives", (void *)message);
    message->state = AT_RECEIVER;
    if (message->from->is_dead && (message->way != COPIED || sim_choose(2) != 0)) {
        end_message(message, 0);
        return;
    }
    sim_clock_join(&sim_self->clock, &message->clock);
    if (message->way == COPIED) {
        events->arrived(events->context, message->head, message->head_bytes, message->data, message->bytes, NULL);
        sim_free((void *)(uintptr_t)message->head);
        sim_free((void *)(uintptr_t)message->data);
        end_message(message, 0);
        return;
    }
    head = private_copy(message, message->head, message->head_bytes);
    if (head != NULL && message->way == READ)
        data = private_copy(message, message->data, message->bytes);
    if (head == NULL || (message->way == READ && data == NULL)) {
        end_message(message, 0);
        return;
    }
    if (message->way == READ)
        end_message(message, 0);
    events->arrived(events->context, head, message->head_bytes, data, message->bytes,
                    message->way == READ ? NULL : (struct bxi_wire_large *)message);
    sim_free(head);
    if (data != NULL)
        sim_free(data);
}

static unsigned arrive_some(struct bxi_wire *wire)
{
    unsigned count = 0;

    for (;; count++) {
        struct message *message;
        uint32_t under_way = 0, which;

        for (message = messages; message != NULL; message = message->next)
            under_way += is_for(wire, message);
        if (under_way == 0 || waits(wire))
            return count;
        which = wire->in_order ? 0 : sim_choose(under_way);
        for (message = messages; !is_for(wire, message) || which-- > 0; message = message->next)
            ;
        arrive(wire, message);
    }
}

static unsigned lose_some(struct bxi_wire *wire)
{
    unsigned count = 0;

    for (unsigned i = 0; i < end_count; i++)
        if (ends[i].from == wire && ends[i].to->is_gone && !ends[i].is_lost && !waits(wire)) {
            ends[i].is_lost = true;
            wire->events.lost(wire->events.context, ends[i].peer);
            count++;
        }
    return count;
}

static unsigned progress(struct bxi_wire *wire)
{
    unsigned count;

    enter("progress", PC);
    count = tell_done(wire);
    count += fetch_some(wire);
    count += arrive_some(wire);
    count += lose_some(wire);
    wire->is_stirred = count > 0;
    return count;
}

static bool arm(struct bxi_wire *wire)
{
    uint64_t value;

    enter("arm", PC);
    if (read(wire->fd, &value, sizeof value) > 0)
        wake_all();
    if (has_work(wire) && !wire->is_stirred && sim_choose(2) == 0) {
        wire->is_stirred = true;        /* as UCX: this is said once */
        return false;
    }
    wire->is_armed = true;
    sim_note("armed%s", has_work(wire) ? ", and something is under way" : "");
    return true;
}

/* ---- the other operations ------------------------------------------------------------------------------ */

static int open_wire(const struct bxi_wire_events *events, struct bxi_wire **out, char *why, size_t why_bytes)
{
    static const uint32_t latenesses[] = { 0, 0, 1, 3 };
    struct bxi_wire *wire;
    int fd = sim_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    (void)why, (void)why_bytes;
    if (fd < 0 || wire_count == WIRES)
        return fd < 0 ? -errno : -EMFILE;
    wire = &wires[wire_count++];
    *wire = (struct bxi_wire){ .worker = sim_self->worker, .fd = fd,
                               .in_order = sim_choose(4) == 0, .lateness = latenesses[sim_choose(4)],
                               .events = *events };
    *out = wire;
    return 0;
}

static int address_of(struct bxi_wire *wire, unsigned char address[BXI_WIRE_ADDRESS_MAX], size_t *bytes)
{
    memcpy(address, &wire, sizeof wire);
    *bytes = sizeof wire;
    return 0;
}

static int connect_end(struct bxi_wire *wire, const void *address, void *peer, struct bxi_wire_end **out)
{
    struct bxi_wire_end *end;

    enter("connect an end", PC);
    wire->is_stirred = true;
    if (end_count == ENDS)
        return -EMFILE;
    end = &ends[end_count++];
    *end = (struct bxi_wire_end){ .from = wire, .peer = peer };
    memcpy(&end->to, address, sizeof end->to);
    *out = end;
    return 0;
}

static void send_message(struct bxi_wire_end *end, const void *head, size_t head_bytes, const void *data, size_t bytes,
                         struct bxi_wire_operation *operation)
{
    struct message *message = sim_memory(sizeof *message);

    enter("send", PC);
    end->from->is_stirred = true;
    if (end->is_lost) {
        operation->done(operation->context, -ECONNRESET);
        return;
    }
    *message = (struct message){ .from = end->from, .to = end->to, .way = (enum way)sim_choose(3), .head = head,
                                 .data = data, .head_bytes = head_bytes, .bytes = bytes,
                                 .sending = operation };
    if (message->way == LARGE && bytes == 0)
        message->way = READ;
    if (message->way == COPIED) {
        message->head = private_copy(message, head, head_bytes);
        message->data = private_copy(message, data, bytes);
    }
    sim_note("message %p to worker %d, %s, %zu bytes", (void *)message, end->to->worker,
             message->way == COPIED ? "copied" : message->way == READ ? "read" : "large", bytes);
    sim_release_to(&message->clock);
    *messages_end = message;
    messages_end = &message->next;
    if (end->to->is_gone)
        end_message(message, message->way == COPIED ? 0 : -ECONNRESET);
    if (message->way == COPIED && sim_choose(2) == 0) {
        message->sending = NULL;
        operation->done(operation->context, 0);
    }
    if (sim_choose(3) != 2)
        tell(end->to);
}

static void fetch(struct bxi_wire *wire, struct bxi_wire_large *large, void *to, size_t bytes,
                  struct bxi_wire_operation *operation)
{
    struct message *message = (struct message *)large;

    enter("fetch", PC);
    wire->is_stirred = true;
    if (message->to != wire || message->state != AT_RECEIVER)
        sim_fail("what is fetched was fetched or dropped before");
    message->state = FETCHED;
    message->place = to;
    message->room = bytes;
    message->fetching = operation;
    if (sim_choose(4) == 3)
        fetch_now(message);
}

static void drop(struct bxi_wire *wire, struct bxi_wire_large *large)
{
    struct message *message = (struct message *)large;

    enter("drop", PC);
    if (message->to != wire || message->state != AT_RECEIVER)
        sim_fail("what is dropped was fetched or dropped before");
    end_message(message, 0);
}

static void transport(struct bxi_wire_end *end, char *text, size_t bytes)
{
    (void)end, (void)bytes;
    memcpy(text, "sim", 4);
}

/* What is under way is over with the death (end_what_comes). */
static void cut(struct bxi_wire_end *end)
{
    enter("cut", PC);
    end->from->is_stirred = true;
    if (!end->to->is_gone)
        sim_fail("the end of a worker that lives is cut");
    end->is_lost = true;
}

static int descriptor(const struct bxi_wire *wire)
{
    return wire->fd;
}

/* ---- the end ------------------------------------------------------------------------------------------ */

/* Nothing comes to it any more: it is all over for its senders. */
static void end_what_comes(struct bxi_wire *wire)
{
    for (struct message *message = messages; message != NULL; message = message->next)
        if (message->to == wire && message->state != OVER) {
            message->state = OVER;
            message->rc = -ECONNRESET;
            message->is_read = false;
        }
    for (unsigned i = 0; i < wire_count; i++)
        if (has_work(&wires[i]))
            tell(&wires[i]);
}

void sim_wires_die(int worker)
{
    for (unsigned i = 0; i < wire_count; i++)
        if (wires[i].worker == worker && !wires[i].is_gone) {
            wires[i].is_gone = wires[i].is_dead = true;
            end_what_comes(&wires[i]);
        }
}

void sim_wires_left(int worker)
{
    for (unsigned i = 0; i < wire_count; i++)
        if (wires[i].worker == worker && !wires[i].is_gone)
            sim_fail("worker %d ends and leaves a wire open", worker);
}

static bool none_is_read(void *wire)
{
    for (const struct message *message = messages; message != NULL; message = message->next)
        if (message->from == wire && message->is_read)
            return false;
    return true;
}

static bool all_is_over(void *wire)
{
    for (const struct message *message = messages; message != NULL; message = message->next)
        if (message->from == wire && message->way != COPIED && message->state != OVER)
            return false;
    return true;
}

/* What is READ leaves now. What is LARGE waits for its receiver, for so long. */
static void close_wire(struct bxi_wire *wire, uint64_t timeout_ns)
{
    enter("close a wire", PC);
    for (struct message *message = messages; message != NULL; message = message->next) {
        void *head, *data;

        if (message->from != wire || message->way != READ || message->state != UNDER_WAY)
            continue;
        head = private_copy(message, message->head, message->head_bytes);
        data = private_copy(message, message->data, message->bytes);
        if (message->state == UNDER_WAY) {
            message->head = head;
            message->data = data;
            message->way = COPIED;
        } else {                        /* it has arrived meanwhile, and is read */
            sim_free(head);
            sim_free(data);
        }
    }
    wire->is_armed = false;
    end_what_comes(wire);
    sim_block("closes its wire", all_is_over, wire, until(timeout_ns));
    sim_block("closes its wire", none_is_read, wire, SIM_FOREVER);
    wire->is_gone = true;
    end_what_comes(wire);
    for (struct message *message = messages; message != NULL; message = message->next) {
        struct bxi_wire_operation *operation = message->sending;

        if (message->from != wire || operation == NULL)
            continue;
        message->sending = NULL;
        sim_clock_join(&sim_self->clock, &message->clock);
        operation->done(operation->context, message->state == OVER ? message->rc : -ECANCELED);
    }
    sim_close(wire->fd);
}

/* Keyed, and of all bytes: who does not know the secret does not guess it by accident. */
static bool mac(const char *secret, const void *data, size_t bytes, unsigned char out[BXI_WIRE_MAC_BYTES])
{
    for (unsigned i = 0; i < BXI_WIRE_MAC_BYTES; i++) {
        uint64_t hash = 0xcbf29ce484222325 + i;

        for (const char *at = secret; *at != '\0'; at++)
            hash = (hash ^ (unsigned char)*at) * 0x100000001b3;
        for (size_t at = 0; at < bytes; at++)
            hash = (hash ^ ((const unsigned char *)data)[at]) * 0x100000001b3;
        out[i] = (unsigned char)(hash >> 32);
    }
    return true;
}

const struct bxi_wire_ops *sim_wire_plugin(void)
{
    static const struct bxi_wire_ops ops = {
        .version = BXI_WIRE_VERSION,
        .open = open_wire,
        .address = address_of,
        .connect = connect_end,
        .send = send_message,
        .fetch = fetch,
        .drop = drop,
        .transport = transport,
        .cut = cut,
        .progress = progress,
        .arm = arm,
        .descriptor = descriptor,
        .close = close_wire,
        .mac = mac,
    };

    return &ops;
}
