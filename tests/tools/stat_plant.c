/* SPDX-License-Identifier: MIT */
/*
 * stat_plant.h: runs in a test's process. All atomic accesses are relaxed: the reader is a process that
 * is started afterwards.
 */
#include "stat_plant.h"
#include "tests/harness/harness.h"

#include "base/base.h"
#include "shm/fork.h"

#include <sys/prctl.h>

struct plant plant;

static void make_one(int rank)
{
    static const char *const names[] = { "caller", "callee" };
    static const char *const functions[PLANT_FUNCTIONS] = { "add", "pick", "save" };
    struct bxi_segment *segment = &plant.segment[rank];

    cr_assert_eq(bxi_segment_create(segment, plant.job, names[rank], PLANT_INSTANCE, rank, 2), 0);
    cr_assert_eq(bxi_segment_open_ring(segment, 1 - rank), 0);
    segment->control->header.arena_bytes = 1 << 20;
    for (int i = 0; i < PLANT_FUNCTIONS; i++) {
        strcpy(segment->control->function[i].name, functions[i]);
        segment->control->function[i].kind = (uint32_t)i + 1;
    }
    bxi_store_relaxed(&segment->control->header.function_count, PLANT_FUNCTIONS);
    bxi_store_relaxed(&segment->control->header.state, BXI_RUNNING);
}

static void join(int from, uint64_t pos)
{
    struct bxi_control *mine = plant_control(from), *other = plant_control(1 - from);
    unsigned char *ring = bxi_segment_at(&plant.segment[from], bxi_ring_offset(1 - from));

    bxi_ring_writer_init(&plant.writer[from], ring, BXI_RING_BYTES, pos, &other->credit[from].position,
                         &mine->pair[1 - from].want_credit);
    bxi_ring_reader_init(&plant.reader[1 - from], ring, BXI_RING_BYTES, pos, &other->credit[from].position,
                         &mine->pair[1 - from].want_credit);
    bxi_store_relaxed(&other->credit[from].position, pos);
    bxi_store_relaxed(&plant_counters(from)->write_pos, pos);
    bxi_store_relaxed(&plant_counters(1 - from)->read_pos, pos);
    bxi_store_relaxed(&mine->pair[1 - from].open, 1);
}

void plant_make(uint64_t pos)
{
    memset(&plant, 0, sizeof(plant));
    harness_name(plant.job, sizeof(plant.job), "plant-");
    for (int rank = 0; rank < 2; rank++)
        make_one(rank);
    for (int rank = 0; rank < 2; rank++)
        join(rank, pos);
}

void plant_begin(void)
{
    plant_make(0);
}

void plant_kill(int rank)
{
    struct flock lock = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

    /* Closing the descriptor does not release the lock: the mapping keeps the same open file. */
    cr_assert_eq(fcntl(plant.segment[rank].fd, F_OFD_SETLK, &lock), 0);
    bxi_unshared_close(plant.segment[rank].fd);
    plant.segment[rank].fd = -1;
}

void plant_comes(int rank, uint32_t generation)
{
    bxi_segment_destroy(&plant.segment[rank]);
    make_one(rank);
    plant_control(rank)->header.generation = generation;
    bxi_store_relaxed(&plant_control(rank)->header.state, BXI_STARTING);
}

void plant_joins(int rank)
{
    memset((void *)plant_counters(1 - rank), 0, sizeof(struct bxi_pair_counters));
    memset(bxi_segment_at(&plant.segment[1 - rank], bxi_ring_offset(rank)), 0, BXI_RING_BYTES);
    join(1 - rank, 0);
    join(rank, 0);
    bxi_store_relaxed(&plant_control(rank)->header.state, BXI_RUNNING);
}

void plant_remove(void)
{
    for (int rank = 0; rank < 2; rank++)
        bxi_segment_destroy(&plant.segment[rank]);
}

struct bxi_control *plant_control(int rank)
{
    return plant.segment[rank].control;
}

void plant_set(bxi_a64 *word, uint64_t value)
{
    bxi_store_relaxed(word, value);
}

struct bxi_pair_counters *plant_counters(int rank)
{
    return &bxi_tables(plant_control(rank))->pair_counters[1 - rank];
}

bool plant_put(int rank, uint64_t payload_bytes)
{
    void *payload;

    if (bxi_ring_reserve(&plant.writer[rank], payload_bytes, &payload) < 0)
        return false;
    memset(payload, 0xa5, payload_bytes);
    bxi_ring_commit(&plant.writer[rank], payload_bytes);
    return true;
}

void plant_count(int rank)
{
    bxi_count(&plant_counters(rank)->frames_sent, 1);
    bxi_store_relaxed(&plant_counters(rank)->write_pos, plant.writer[rank].write_pos);
}

bool plant_take(int rank)
{
    const void *payload;
    uint32_t payload_bytes;

    if (bxi_ring_peek(&plant.reader[rank], &payload, &payload_bytes) != 1)
        return false;
    bxi_ring_advance(&plant.reader[rank], payload_bytes);
    bxi_count(&plant_counters(rank)->frames_received, 1);
    bxi_store_relaxed(&plant_counters(rank)->read_pos, plant.reader[rank].read_pos);
    return true;
}

struct bxi_hist *plant_hist(int rank, int peer, int function)
{
    bxi_a32 *count = &plant_control(rank)->header.hist_count;
    struct bxi_hist *hist = bxi_segment_at(&plant.segment[rank], bxi_hist_offset(bxi_load_relaxed(count)));

    /* Writing allocates the page; a worker would have allocated it before. */
    memcpy(hist->name, plant_control(peer)->function[function].name, BXI_NAME_BYTES);
    hist->who = (uint64_t)peer | (uint64_t)function << 16;
    bxi_store_relaxed(count, bxi_load_relaxed(count) + 1);
    return hist;
}

void plant_sample(struct bxi_hist *hist, uint64_t queue_ns, uint64_t handler_ns, uint64_t reply_ns)
{
    const uint64_t legs[BXI_LEGS] = { queue_ns, handler_ns, reply_ns, queue_ns + handler_ns + reply_ns };

    for (int leg = 0; leg < BXI_LEGS; leg++) {
        bxi_count(&hist->bucket[leg][bxi_hist_bucket(legs[leg])], 1);
        bxi_count(&hist->sum_ns[leg], legs[leg]);
        if (legs[leg] > bxi_load_relaxed(&hist->max_ns[leg]))
            bxi_store_relaxed(&hist->max_ns[leg], legs[leg]);
    }
}

struct bxi_object_row *plant_object(int rank, uint64_t id, uint64_t since_ns)
{
    bxi_a64 *rows = &bxi_tables(plant_control(rank))->object_rows;
    struct bxi_object_row *all = bxi_segment_at(&plant.segment[rank], BXI_OBJECTS_OFFSET);
    struct bxi_object_row *row = all + bxi_load_relaxed(rows);

    cr_assert_lt(bxi_load_relaxed(rows), BXI_OBJECTS_MAX);
    /* Writing allocates the pages; a worker would have allocated them before. */
    if (bxi_load_relaxed(rows) == 0)
        memset((void *)row, 0, BXI_OBJECTS_BYTES);
    bxi_store_relaxed(&row->since_ns, since_ns);
    memcpy((void *)row->name, "net", 3);
    bxi_store_relaxed(&row->state, BXI_OBJECT_THERE);
    bxi_store_relaxed(&row->id, id);
    bxi_store_relaxed(rows, bxi_load_relaxed(rows) + 1);
    return row;
}

struct bxi_remote_row *plant_remote(int rank)
{
    struct bxi_remote_row *rows = bxi_segment_at(&plant.segment[rank], BXI_REMOTES_OFFSET);
    struct bxi_remote_row *row = &rows[1 - rank];

    shm_unlink(plant.segment[1 - rank].shm_name);
    /* Writing allocates the pages; a worker would have allocated them before. */
    memset((void *)rows, 0, 2 * sizeof *rows);
    memcpy(row->name, plant_control(1 - rank)->header.name, sizeof row->name);
    memcpy(row->host, "far", 4);
    memcpy(row->transport, "tcp/eth0", 9);
    bxi_store_relaxed(&row->bytes_sent, 1500);
    bxi_store_relaxed(&row->bytes_received, 700);
    bxi_store_relaxed(&row->round_trip_ns, 42000);
    bxi_store_relaxed(&bxi_tables(plant_control(rank))->remote_rows, 2);
    return row;
}

bxi_a64 *plant_word(int rank, uint64_t pos)
{
    return (bxi_a64 *)(void *)(plant.writer[rank].base + (pos & (BXI_RING_BYTES - 1)));
}

uint64_t plant_ago(uint64_t seconds)
{
    return bxi_now_ns() - seconds * UINT64_C(1000000000);
}

pid_t plant_turn(void (*turn)(int up))
{
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int up = 0;; up = !up)
        turn(up);
}
