/* SPDX-License-Identifier: MIT */
/*
 * The order of memory: what a fiber sees of the stores of others, and whether plain accesses are ordered.
 *
 * Visibility. Atomic stores wait in the fiber's store buffer (S3). A load reads
 * the fiber's own newest buffered store, else memory. So a load may overtake an earlier store of its fiber, which a
 * full fence forbids: Dekker's pairs need theirs. In a weak schedule stores leave the buffer in any order that their
 * release order allows; in the others first in, first out, as on x86.
 *
 * Sequentially consistent stores are visible before the fiber's next such load or read-modify-write reads. Until then
 * they wait, in a weak schedule, as release stores do: other loads overtake them, and such loads overtake other stores.
 *
 * A read-modify-write reads memory, and nothing comes between its load and its store. In a weak schedule its store
 * waits in the buffer too: a later load of the fiber may overtake it, and what came before it. But not while another
 * fiber has a store to that address in its buffer, which may become visible behind it; and the next one there shows it
 * first. Plain stores are visible at once: whoever sees one too early or too late without a race is ordered by an
 * atomic store, which is buffered.
 *
 * A load may be early: in a weak schedule one that is not sequentially consistent may read what the newest store has
 * replaced, if nothing orders that store, or a load that has read it, before the load, and if the fiber has passed no
 * full fence and no function of the world since it became visible. Variables on stacks have their newest value.
 *
 * Order. Each fiber has a vector clock. A release store carries the clock to the load that acquires it; a relaxed store
 * carries that of the last release fence; a read-modify-write continues the release sequence. Each eight bytes that
 * were accessed have a cell: the last accesses of several fibers (fiber, its time, bytes, write or read, atomic or
 * plain). Two accesses that overlap, one of them a write, not both atomic, and neither behind the other, are a finding.
 * A cell forgets the oldest of more than SLOTS accesses, so races may be missed but none is invented. The keys of cells
 * are objects and offsets (sim_key), because a segment is mapped several times.
 */
#include "sim.h"

#define CELLS (1u << 18)
#define SLOTS 5
#define CLOCKS (1u << 16)
#define BEFORES 8192
#define EARLY_POINTS 20000      /* so long a store may be unseen */
#define FREED_MOST 2048         /* bytes of a block that is freed: of all that were accessed it is looked for a race */
#define NO_OTHER_FIBER 0x400000000000   /* above: thread variables, and what the C library has */
enum { WRITE = 1, ATOMIC = 2 };

struct slot {
    uint32_t time, pc;
    uint8_t fiber, bytes, kind;             /* bytes: a mask; 0: free */
};
struct cell {
    uint64_t key;
    uint32_t schedule;                      /* of another one: free */
    uint16_t released[2], before[2];        /* clocks of the two halves, and their histories; 0: none yet */
    struct slot slots[SLOTS];
};

/* What the newest store of an address has replaced. */
static struct before {
    uint64_t value, visible_at;             /* points */
    struct sim_clock clock;
    uint32_t time, read_at[SIM_FIBERS];     /* of the newest store; of the first loads of it; 0: none */
    uint8_t fiber, bytes;
} befores[BEFORES];

static struct cell cells[CELLS];
static struct sim_clock clocks[CLOCKS];
static uint32_t clock_count, before_count, cell_count, schedule;
static int changes_buffered;                /* stores of read-modify-writes */

void sim_memory_reset(void)
{
    schedule++;
    clock_count = before_count = 1;
    cell_count = 0;
    changes_buffered = 0;
}

uint64_t sim_key(const volatile void *address)
{
    uint64_t key;

    return sim_shared((uintptr_t)address, &key) ? key : (uintptr_t)address;
}

/* ---- clocks ---------------------------------------------------------------------------------------- */

void sim_clock_join(struct sim_clock *clock, const struct sim_clock *with)
{
    for (int i = 0; i < sim_fiber_count; i++)
        if (clock->at[i] < with->at[i])
            clock->at[i] = with->at[i];
}

void sim_release_to(struct sim_clock *clock)
{
    sim_clock_join(clock, &sim_self->clock);
    sim_self->clock.at[sim_self->number]++;
}

static bool acquires(int order)
{
    return order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE;
}

static bool releases(int order)
{
    return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

/* ---- cells ----------------------------------------------------------------------------------------- */

/* The eight cells of a line of memory are neighbours: a schedule in a process of its own touches few pages. NULL: there
 * is none, and none is made. */
static struct cell *find_cell(uint64_t key, bool make)
{
    uint64_t word = key >> 3, at = ((word >> 3) * 0x9e3779b97f4a7c15 >> 32) << 3 | (word & 7);

    for (;; at += 8) {
        struct cell *cell = &cells[at % CELLS];

        if (cell->schedule == schedule && cell->key == word)
            return cell;
        if (cell->schedule != schedule) {
            if (!make)
                return NULL;
            if (++cell_count > CELLS / 4)   /* forgets all */
                schedule++, cell_count = 0;
            *cell = (struct cell){ .key = word, .schedule = schedule };
            return cell;
        }
    }
}

static struct cell *cell_of(uint64_t key)
{
    return find_cell(key, true);
}

static struct sim_clock *released_at(struct cell *cell, uint64_t key)
{
    uint16_t *index = &cell->released[key >> 2 & 1];

    if (*index == 0) {
        if (clock_count == CLOCKS)
            sim_fail("the simulator has no clock left for another atomic variable");
        memset(&clocks[clock_count], 0, sizeof clocks[0]);
        *index = (uint16_t)clock_count++;
    }
    return &clocks[*index];
}

static const char *name_of(unsigned kind)
{
    static const char *const names[] = { "reads", "writes", "reads atomically", "writes atomically" };

    return names[kind];
}

static void race(const struct slot *slot, unsigned kind, uint64_t key, uintptr_t pc)
{
    sim_fail("race: '%s' %s %#llx at @%#zx, not ordered behind '%s', which %s it at @%#zx", sim_self->name,
             name_of(kind), (unsigned long long)key, (size_t)pc, sim_fibers[slot->fiber].name, name_of(slot->kind),
             (size_t)slot->pc);
}

static void note_access(uint64_t key, unsigned mask, unsigned kind, uintptr_t pc)
{
    struct cell *cell = cell_of(key);
    struct slot *place = NULL;

    if (kind == WRITE)
        cell->before[0] = cell->before[1] = 0;

    for (struct slot *slot = cell->slots; slot < cell->slots + SLOTS; slot++) {
        if (slot->bytes == 0) {
            place = place == NULL ? slot : place;
            continue;
        }
        if (slot->fiber == sim_self->number) {
            if (slot->kind == kind && (slot->bytes & ~mask) == 0)
                place = slot;
            continue;
        }

        bool before = slot->time <= sim_self->clock.at[slot->fiber];

        if (!before && (slot->bytes & mask) && ((slot->kind | kind) & WRITE) && !(slot->kind & kind & ATOMIC))
            race(slot, kind, key, pc);
        /* This write stands for it from now on. */
        if (before && (kind & WRITE) && (slot->bytes & ~mask) == 0 && (!(kind & ATOMIC) || (slot->kind & ATOMIC))) {
            slot->bytes = 0;
            place = place == NULL ? slot : place;
        }
    }
    if (place == NULL)
        place = &cell->slots[sim_schedule.points % SLOTS];
    *place = (struct slot){ sim_self->clock.at[sim_self->number], (uint32_t)pc, (uint8_t)sim_self->number,
                            (uint8_t)mask, (uint8_t)kind };
}

static void note_range(uint64_t key, size_t bytes, unsigned kind, uintptr_t pc)
{
    while (bytes > 0) {
        size_t at = key & 7, count = bytes < 8 - at ? bytes : 8 - at;

        note_access(key, (0xffu >> (8 - count)) << at, kind, pc);
        key += count;
        bytes -= count;
    }
}

/* Behind all accesses to it. */
void sim_frees(const void *block, size_t bytes, uintptr_t pc)
{
    uint64_t key = (uintptr_t)block;

    for (size_t i = 0; sim_self != NULL && i < bytes && i < FREED_MOST; i += 8)
        if (find_cell(key + i, false) != NULL)
            note_access(key + i, 0xff, WRITE, pc);
}

/* ---- store buffers --------------------------------------------------------------------------------- */

static uint64_t read_memory(const volatile void *address, unsigned bytes)
{
    switch (bytes) {
    case 1: return *(const volatile uint8_t *)address;
    case 2: return *(const volatile uint16_t *)address;
    case 4: return *(const volatile uint32_t *)address;
    default: return *(const volatile uint64_t *)address;
    }
}

static void write_memory(volatile void *address, unsigned bytes, uint64_t value)
{
    switch (bytes) {
    case 1: *(volatile uint8_t *)address = (uint8_t)value; break;
    case 2: *(volatile uint16_t *)address = (uint16_t)value; break;
    case 4: *(volatile uint32_t *)address = (uint32_t)value; break;
    default: *(volatile uint64_t *)address = value; break;
    }
}

/* A store is about to become visible. */
static void keep_before(const struct sim_fiber *fiber, const struct sim_store *store)
{
    struct cell *cell = cell_of(store->key);
    uint16_t *index = &cell->before[store->key >> 2 & 1];
    uintptr_t address = (uintptr_t)store->address;

    if (address - sim_fibers[0].stack < sim_fibers[SIM_FIBERS - 1].stack_end - sim_fibers[0].stack)
        return;
    if (*index == 0 && before_count < BEFORES)
        *index = (uint16_t)before_count++;
    if (*index != 0)
        befores[*index] = (struct before){ .value = read_memory(store->address, store->bytes),
                                           .visible_at = sim_schedule.points, .time = store->time,
                                           .fiber = (uint8_t)fiber->number, .bytes = store->bytes,
                                           .clock = *released_at(cell, store->key) };
}

static void read_newest(struct cell *cell, uint64_t key)
{
    struct before *before = &befores[cell->before[key >> 2 & 1]];

    if (before != befores && before->read_at[sim_self->number] == 0)
        before->read_at[sim_self->number] = sim_self->clock.at[sim_self->number];
}

/* The value that this load reads instead of the newest one; else NULL, and it has read that. */
static const struct before *read_early(uint64_t key, unsigned bytes, int order)
{
    struct cell *cell = cell_of(key);
    struct before *before = &befores[cell->before[key >> 2 & 1]];
    const uint32_t *clock = sim_self->clock.at;
    bool may = before != befores && before->bytes == bytes && order != __ATOMIC_SEQ_CST &&
               before->visible_at > sim_self->fenced_at && sim_schedule.points < before->visible_at + EARLY_POINTS &&
               before->time > clock[before->fiber] && before->read_at[sim_self->number] == 0;

    for (int i = 0; may && i < sim_fiber_count; i++)
        may = before->read_at[i] == 0 || before->read_at[i] > clock[i];
    if (may && sim_chooses(SIM_EARLY, 4))
        return before;
    read_newest(cell, key);
    return NULL;
}

static bool overlaps(const struct sim_store *store, uint64_t key, size_t bytes)
{
    return store->key < key + bytes && key < store->key + store->bytes;
}

static void leave_buffer(struct sim_fiber *fiber, int index)
{
    struct sim_store *store = &fiber->buffer[index];

    changes_buffered -= store->change;
    if (sim_schedule.weak)
        keep_before(fiber, store);
    *released_at(cell_of(store->key), store->key) = store->clock;
    write_memory(store->address, store->bytes, store->value);
    if (sim_schedule.trace)
        sim_note("a store of '%s' to %#llx becomes visible", fiber->name, (unsigned long long)store->key);
    memmove(store, store + 1, (size_t)(--fiber->buffered - index) * sizeof *store);
}

/* The last store to that address that waits, of a read-modify-write or of any: its place in the buffer plus 1. */
static int last_of(const struct sim_fiber *fiber, uint64_t key, size_t bytes, bool any)
{
    int last = fiber == sim_self ? 0 : fiber->buffered;

    while (last > 0 && !((any || fiber->buffer[last - 1].change) && overlaps(&fiber->buffer[last - 1], key, bytes)))
        last--;
    return last;
}

/* Of other fibers: all up to the last read-modify-write's to that address. */
static void show_others(uint64_t key, size_t bytes)
{
    for (int i = 0; changes_buffered > 0 && i < sim_fiber_count; i++)
        for (int last = last_of(&sim_fibers[i], key, bytes, false); last > 0; last--)
            leave_buffer(&sim_fibers[i], 0);
}

static bool others_store(uint64_t key, size_t bytes)
{
    for (int i = 0; i < sim_fiber_count; i++)
        if (last_of(&sim_fibers[i], key, bytes, true) > 0)
            return true;
    return false;
}

void sim_flush(struct sim_fiber *fiber)
{
    fiber->fenced_at = sim_schedule.points;
    while (fiber->buffered > 0)
        leave_buffer(fiber, 0);
}

void sim_flush_range(const void *address, size_t bytes)
{
    for (int i = 0; i < sim_fiber_count; i++)
        for (int last = sim_fibers[i].buffered; last > 0; last--)
            if ((uintptr_t)sim_fibers[i].buffer[last - 1].address - (uintptr_t)address < bytes) {
                while (last-- > 0)
                    leave_buffer(&sim_fibers[i], 0);
                break;
            }
}

static bool may_leave(const struct sim_fiber *fiber, int index)
{
    const struct sim_store *store = &fiber->buffer[index];

    if (index > 0 && store->release)
        return false;
    for (int i = 0; i < index; i++)
        if (overlaps(&fiber->buffer[i], store->key, store->bytes) || (fiber->buffer[i].fenced && !store->fenced))
            return false;
    return true;
}

void sim_flush_one(struct sim_fiber *fiber)
{
    int may[SIM_BUFFERED], count = 0;

    for (int i = 0; i < fiber->buffered && (i == 0 || sim_schedule.weak); i++)
        if (may_leave(fiber, i))
            may[count++] = i;
    if (count > 0)
        sim_flush_this(fiber, may[sim_draw((uint32_t)count)]);
}

void sim_flush_this(struct sim_fiber *fiber, int index)
{
    if (index >= fiber->buffered || !may_leave(fiber, index))
        return;
    sim_chosen(SIM_VISIBLE, 0, (uint32_t)(fiber->id << 8 | index));
    leave_buffer(fiber, index);
}

/* Before a sequentially consistent load: all up to the last such store. */
static void flush_total(int order)
{
    int last = order == __ATOMIC_SEQ_CST ? sim_self->buffered : 0;

    if (order == __ATOMIC_SEQ_CST)
        sim_self->fenced_at = sim_schedule.points;

    while (last > 0 && !sim_self->buffer[last - 1].total)
        last--;
    while (last-- > 0)
        leave_buffer(sim_self, 0);
}

/* A plain access sees this fiber's own atomic stores in their order. */
static void flush_overlapping(uint64_t key, size_t bytes)
{
    for (int i = 0; i < sim_self->buffered; i++)
        if (overlaps(&sim_self->buffer[i], key, bytes)) {
            sim_flush(sim_self);
            return;
        }
}

/* ---- accesses -------------------------------------------------------------------------------------- */

void sim_plain(const void *address, size_t bytes, bool write, uintptr_t pc)
{
    uint64_t key;

    if (sim_self == NULL || (uintptr_t)address >= NO_OTHER_FIBER ||
        (uintptr_t)address - sim_self->stack < sim_self->stack_end - sim_self->stack)
        return;
    key = sim_key(address);
    sim_point(write ? "write" : "read", key, pc);
    if (sim_self->buffered > 0)
        flush_overlapping(key, bytes);
    note_range(key, bytes, write ? WRITE : 0, pc);
}

void sim_access(const void *address, size_t bytes, bool write)
{
    sim_plain(address, bytes, write, (uintptr_t)__builtin_return_address(0));
}

uint64_t sim_load(const volatile void *address, unsigned bytes, int order, uintptr_t pc)
{
    const struct before *before;
    uint64_t key;

    if (sim_self == NULL)
        return read_memory(address, bytes);
    key = sim_key(address);
    sim_point("load", key, pc);
    note_range(key, bytes, ATOMIC, pc);
    flush_total(order);
    for (int i = sim_self->buffered - 1; i >= 0; i--) {
        const struct sim_store *store = &sim_self->buffer[i];

        if (store->key == key && store->bytes == bytes) {
            if (store->change)          /* it goes on with what others have released there */
                sim_clock_join(acquires(order) ? &sim_self->clock : &sim_self->acquired, &store->clock);
            return store->value;
        }
        if (overlaps(store, key, bytes))
            sim_flush(sim_self);
    }
    if (sim_self->buffered > 0 && sim_is_place(pc, 4))
        sim_hold();
    before = sim_schedule.weak ? read_early(key, bytes, order) : NULL;
    if (before != NULL) {
        sim_note("reads what was there before");
        sim_clock_join(acquires(order) ? &sim_self->clock : &sim_self->acquired, &before->clock);
        return before->value;
    }
    sim_clock_join(acquires(order) ? &sim_self->clock : &sim_self->acquired, released_at(cell_of(key), key));
    return read_memory(address, bytes);
}

/* Such a store does not wait: its function may return, and the next one has other variables there. */
static bool is_own_stack(const volatile void *address)
{
    return (uintptr_t)address - sim_self->stack < sim_self->stack_end - sim_self->stack;
}

/* A store of this fiber, of now. */
static struct sim_store *put(volatile void *address, unsigned bytes, uint64_t key, uint64_t value, int order)
{
    struct sim_store *store;

    if (sim_self->buffered == SIM_BUFFERED)
        leave_buffer(sim_self, 0);
    store = &sim_self->buffer[sim_self->buffered++];
    *store = (struct sim_store){ .key = key, .address = (void *)(uintptr_t)address, .value = value,
                                 .bytes = (uint8_t)bytes, .release = releases(order),
                                 .total = order == __ATOMIC_SEQ_CST, .time = sim_self->clock.at[sim_self->number],
                                 .clock = sim_self->released };
    if (releases(order))
        sim_release_to(&store->clock);
    return store;
}

void sim_store(volatile void *address, unsigned bytes, uint64_t value, int order, uintptr_t pc)
{
    uint64_t key;

    if (sim_self == NULL) {
        write_memory(address, bytes, value);
        return;
    }
    key = sim_key(address);
    sim_point("store", key, pc);
    note_range(key, bytes, ATOMIC | WRITE, pc);
    show_others(key, bytes);
    put(address, bytes, key, value, order);
    if ((order == __ATOMIC_SEQ_CST && !sim_schedule.weak) || is_own_stack(address))
        sim_flush(sim_self);
    else
        sim_stored();
}

static uint64_t changed(enum sim_change change, uint64_t was, uint64_t value)
{
    switch (change) {
    case SIM_ADD: return was + value;
    case SIM_SUB: return was - value;
    case SIM_AND: return was & value;
    case SIM_OR: return was | value;
    case SIM_XOR: return was ^ value;
    case SIM_NAND: return ~(was & value);
    default: return value;
    }
}

/* Before a read-modify-write: what has to be visible. */
static void begin_change(uint64_t key, unsigned bytes, int order)
{
    int first = 0;

    flush_total(order);
    for (int i = 0; i < sim_self->buffered; i++)
        if (!sim_schedule.weak || overlaps(&sim_self->buffer[i], key, bytes))
            first = i + 1;
    while (first-- > 0)
        leave_buffer(sim_self, 0);
}

/* Its store, which goes on with what was released there. */
static void end_change(volatile void *address, unsigned bytes, uint64_t key, uint64_t value, int order)
{
    struct sim_store *store = put(address, bytes, key, value, order);

    sim_clock_join(&store->clock, released_at(cell_of(key), key));
    if (!sim_schedule.weak || is_own_stack(address) || others_store(key, bytes)) {
        sim_flush(sim_self);
        return;
    }
    store->change = true;
    changes_buffered++;
    sim_stored();
}

uint64_t sim_rmw(volatile void *address, unsigned bytes, enum sim_change change, uint64_t value, int order,
                 uintptr_t pc)
{
    uint64_t key, was;

    if (sim_self == NULL) {
        was = read_memory(address, bytes);
        write_memory(address, bytes, changed(change, was, value));
        return was;
    }
    key = sim_key(address);
    sim_point("change", key, pc);
    begin_change(key, bytes, order);
    show_others(key, bytes);
    note_range(key, bytes, ATOMIC | WRITE, pc);
    sim_clock_join(acquires(order) ? &sim_self->clock : &sim_self->acquired, released_at(cell_of(key), key));
    was = read_memory(address, bytes);
    end_change(address, bytes, key, changed(change, was, value), order);
    return was;
}

bool sim_cas(volatile void *address, unsigned bytes, uint64_t *expected, uint64_t value, int order, int failed,
             uintptr_t pc)
{
    uint64_t key = 0, was;
    bool same;

    if (sim_self != NULL) {
        key = sim_key(address);
        sim_point("compare and swap", key, pc);
        begin_change(key, bytes, order);
        /* One that fails is a load: it may read what is older. */
        if (!sim_schedule.weak || read_memory(address, bytes) == *expected || !sim_chooses(SIM_OLD, 2))
            show_others(key, bytes);
    }
    was = read_memory(address, bytes);
    same = was == *expected;
    *expected = was;
    if (sim_self == NULL) {
        if (same)
            write_memory(address, bytes, value);
        return same;
    }
    note_range(key, bytes, same ? ATOMIC | WRITE : ATOMIC, pc);
    sim_clock_join(acquires(same ? order : failed) ? &sim_self->clock : &sim_self->acquired,
                   released_at(cell_of(key), key));
    if (same)
        end_change(address, bytes, key, value, order);
    else
        read_newest(cell_of(key), key);
    return same;
}

void sim_fence(int order, uintptr_t pc)
{
    if (sim_self == NULL)
        return;
    sim_point("fence", 0, pc);
    if (acquires(order))
        sim_clock_join(&sim_self->clock, &sim_self->acquired);
    if (!sim_schedule.weak || order == __ATOMIC_SEQ_CST)
        sim_flush(sim_self);
    for (int i = 0; releases(order) && i < sim_self->buffered; i++)
        sim_self->buffer[i].fenced = true;
    if (releases(order)) {
        sim_self->released = (struct sim_clock){ { 0 } };
        sim_release_to(&sim_self->released);
    }
}
