/* SPDX-License-Identifier: MIT */
/*
 * shmstat show: frames and bytes, the age of a ring's oldest unread frame, which worker spins, and how many threads of
 * the pool are busy. In a planted job (stat_plant.h); the last test runs beside a running one.
 */
#include "tests/harness/harness.h"
#include "stat_plant.h"
#include "stat_run.h"

#include "rpc/frame.h"
#include "rpc/rpc.h"

#include <math.h>

#define SECOND UINT64_C(1000000000)
#define SLOT 5
#define ID (UINT64_C(9) << 16 | SLOT)

TestSuite(shmstat_rings, .init = plant_begin, .fini = plant_remove, .timeout = 20);

/* ---- Jobs, frames and bytes ------------------------------------------------------------------------- */

Test(shmstat_rings, are_counted_with_the_memory_of_a_job)
{
    struct stat_run run = stat_run_fine("ls", plant.job);

    STAT_RUN_IS(stat_run_job(&run), "{'job': '%s', 'state': 'running', 'alive': true, 'world_size': 2,"
                " 'workers_alive': 2, 'segment_bytes': %llu, 'arena_bytes': 0, 'workers': [{'pid': %d}, {'pid': %d}]}",
                plant.job, 2ULL * (bxi_control_used(2) + BXI_OPEN_BYTES), (int)getpid(), (int)getpid());
}

/* Two of seven records are not read. */
Test(shmstat_rings, have_the_frames_and_bytes_of_both_sides)
{
    const unsigned record = (unsigned)bxi_record_bytes(100);
    struct stat_run run;

    for (int i = 0; i < 7; i++) {
        cr_assert(plant_put(0, 100));
        plant_count(0);
        cr_assert(i > 4 || plant_take(1));
    }
    bxi_ring_publish(&plant.reader[1]);
    bxi_count(&plant_counters(0)->bytes_sent, 700);
    bxi_count(&plant_counters(0)->times_full, 3);
    bxi_count(&plant_counters(1)->bytes_received, 500);
    run = stat_run_fine("show", plant.job);
    STAT_RUN_IS(stat_run_worker(&run, 0), "{'rings': [{'from': 0, 'to': 1, 'to_name': 'callee', 'capacity_bytes': %u,"
                " 'frames': 7, 'bytes': 700, 'write_pos': %u, 'times_full': 3, 'frames_received': 5,"
                " 'bytes_received': 500, 'unread_bytes': %u, 'fill_bytes': %u}]}", (unsigned)BXI_RING_BYTES, 7 * record,
                2 * record, 2 * record);
}

/* ---- The oldest unread frame ------------------------------------------------------------------------ */

static void put(struct bxi_frame frame, size_t bytes)
{
    void *payload;

    cr_assert_eq(bxi_ring_reserve(&plant.writer[0], bytes, &payload), 0);
    memset(payload, 0, bytes);
    memcpy(payload, &frame, bytes < sizeof(frame) ? bytes : sizeof(frame));
    bxi_ring_commit(&plant.writer[0], bytes);
    plant_count(0);
}

static void put_request(uint64_t id)
{
    put((struct bxi_frame){ .kind = BXI_REQUEST, .id = id, .deadline_ns = BX_FOREVER }, 100);
}

static void show_row(uint64_t id, uint64_t since_ns)
{
    struct bxi_call_row *rows = bxi_segment_at(&plant.segment[0], bxi_calls_offset(1)), *row = rows + SLOT;

    bxi_store_relaxed(&row->since, since_ns << 8 | 1);
    bxi_store_relaxed(&row->id, id);
}

/* The age that is shown; NAN if it is null. */
static double age(void)
{
    struct stat_run run = stat_run_fine("show", plant.job);
    const struct json *ring = stat_run_row(stat_run_worker(&run, 0), "rings", "to", 1);
    const struct json *value = json_get(ring, "oldest_unread_seconds");
    double seconds = json_number(value);

    cr_assert_not_null(value);
    return seconds;
}

static void expect_age(uint64_t began_ns, double least)
{
    double seconds = age();

    cr_expect_geq(seconds, least);
    cr_expect_leq(seconds, 1e-9 * (double)(bxi_now_ns() - began_ns) + 1e-6);
}

Test(shmstat_rings, that_are_empty_have_no_oldest_frame)
{
    cr_expect(isnan(age()));
    put((struct bxi_frame){ .kind = BXI_REPLY, .sent_ns = plant_ago(7) }, 64);
    cr_assert(plant_take(1));
    cr_expect(isnan(age()));
}

Test(shmstat_rings, show_the_age_of_the_oldest_frame_by_its_kind)
{
    static const uint8_t kinds[] = { BXI_REQUEST, BXI_ONEWAY, BXI_REPLY, BXI_CANCEL, BXI_RREF, BXI_REQUESTS,
                                     BXI_REPLIES };

    for (size_t i = 0; i < sizeof(kinds); i++) {
        uint64_t since_ns = plant_ago(5);
        struct bxi_frame frame = { .kind = kinds[i], .id = ID, .deadline_ns = 1 };

        if (kinds[i] == BXI_ONEWAY)
            frame.id = since_ns;
        else if (kinds[i] == BXI_REQUEST || kinds[i] == BXI_REQUESTS)
            show_row(ID, since_ns);
        else
            frame.sent_ns = since_ns;
        put(frame, sizeof(frame));
        /* The frame after it has an impossible age. */
        put((struct bxi_frame){ .kind = BXI_REPLY, .sent_ns = 1 }, 64);
        expect_age(since_ns, 5);
        cr_assert(plant_take(1));
        cr_expect_geq(age(), 1e-9 * (double)since_ns);
        plant_remove();
        plant_begin();
    }
}

Test(shmstat_rings, know_the_age_of_a_request_by_its_row_alone)
{
    uint64_t since_ns = plant_ago(5);

    put_request(ID);
    cr_expect(isnan(age()));
    show_row(ID + (1 << 16), since_ns);
    cr_expect(isnan(age()));
    show_row(ID | BXI_CALL_GIVEN_UP, since_ns);
    expect_age(since_ns, 5);
    cr_assert(plant_take(1));
    put_request(UINT64_MAX);
    cr_expect(isnan(age()));
}

Test(shmstat_rings, have_no_age_below_zero_and_none_from_garbage)
{
    static const struct bxi_frame nonsense[] = {
        { .kind = 0, .sent_ns = 5 }, { .kind = 77, .sent_ns = 5 }, { .kind = BXI_REPLY, .sent_ns = 0 },
    };

    put((struct bxi_frame){ .kind = BXI_REPLY, .sent_ns = UINT64_MAX }, 64);
    cr_expect_eq(age(), 0);
    cr_assert(plant_take(1));
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++) {
        put(nonsense[i], 64);
        cr_expect(isnan(age()), "%zu", i);
        cr_assert(plant_take(1));
    }
    put((struct bxi_frame){ .kind = BXI_ONEWAY, .id = 5 }, 20);
    cr_expect(isnan(age()), "shorter than a head");
    bxi_store_relaxed(plant_word(0, plant.reader[1].read_pos), 77);
    cr_expect(isnan(age()), "not a record");
}

Test(shmstat_rings, show_the_frame_after_padding_and_where_positions_wrap)
{
    static const uint64_t ends[] = { BXI_RING_BYTES, UINT64_C(1) << 38, 0 };

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        uint64_t since_ns = plant_ago(3);

        plant_remove();
        plant_make(ends[i] - 128);
        put((struct bxi_frame){ .kind = BXI_REPLY, .sent_ns = since_ns }, 1000);
        cr_assert_eq(plant.writer[0].write_pos, ends[i] + bxi_record_bytes(1000));
        expect_age(since_ns, 3);
        cr_assert(plant_take(1));
        cr_expect(isnan(age()));
    }
}

Test(shmstat_rings, of_dead_workers_keep_unread_frames)
{
    uint64_t since_ns = plant_ago(5);
    char line[128];

    put((struct bxi_frame){ .kind = BXI_ONEWAY, .id = since_ns }, 64);
    for (int rank = 0; rank < 2; rank++)
        plant_kill(rank);
    expect_age(since_ns, 5);

    struct stat_run run = stat_run("show %s --prometheus", plant.job);

    snprintf(line, sizeof(line), "\nboxcar_ring_oldest_unread_seconds{job=\"%s\",worker=\"caller\",rank=\"0\","
             "peer=\"1\"} ", plant.job);
    cr_assert_not_null(strstr(run.text, line), "%s", run.text);
    cr_expect_geq(strtod(strstr(run.text, line) + strlen(line), NULL), 5);
    snprintf(line, sizeof(line), "\nboxcar_ring_oldest_unread_seconds{job=\"%s\",worker=\"callee\",rank=\"1\","
             "peer=\"0\"} 0\n", plant.job);
    STAT_RUN_SAYS(run, line);
    run = stat_run("show %s", plant.job);
    STAT_RUN_SAYS(run, "UNREAD\n");
    stat_run_fits(&run);
}

/* ---- What spins, and who is busy ----------------------------------------------------------------------- */

static void expect_activity(const char *activity)
{
    struct stat_run run = stat_run_fine("show", plant.job);

    cr_expect_str_eq(json_text(json_get(stat_run_worker(&run, 0), "activity")), activity);
}

Test(shmstat_rings, tell_a_worker_that_spins_from_one_that_sleeps_or_is_dead)
{
    struct bxi_control *control = plant_control(0);

    expect_activity("awake");
    bxi_store_relaxed(&bxi_tables(control)->now.spins, 1);
    expect_activity("spinning");
    bxi_store_relaxed(&control->header.armed, 4 | BXI_WHO_LEADER);
    expect_activity("asleep");
    bxi_store_relaxed(&control->header.armed, 4);
    plant_kill(0);
    expect_activity("dead");
}

static double pool(const char *key)
{
    struct stat_run run = stat_run_fine("show", plant.job);
    double value = json_number(json_get(json_get(stat_run_worker(&run, 0), "pool"), key));
    return value;
}

Test(shmstat_rings, count_each_busy_thread_of_a_pool_once)
{
    static const uint64_t wheres[] = { BXI_AT_THREAD | 11 << 8, BXI_AT_BODY | 12 << 8, BXI_AT_BODY | 12 << 8,
                                       BXI_AT_POOL, BXI_AT_THREAD | 13 << 8, BXI_AT_FUTURE, BXI_AT_BATCH };

    cr_expect_eq(pool("busy"), 0);
    for (size_t i = 0; i < sizeof(wheres) / sizeof(wheres[0]); i++)
        bxi_store_relaxed(&bxi_tables(plant_control(0))->serving[100 * i % BXI_SERVING_MAX].where, wheres[i]);
    bxi_store_relaxed(&bxi_tables(plant_control(0))->counters[BXI_C_pool_threads], 5);
    cr_expect_eq(pool("busy"), 3);
    cr_expect_eq(pool("threads"), 5);
    bxi_store_relaxed(&bxi_tables(plant_control(0))->counters[BXI_C_pool_threads], 2);
    cr_expect_eq(pool("busy"), 2);

    struct stat_run run = stat_run("show %s", plant.job);

    STAT_RUN_SAYS(run, "  pool      threads 2, busy 2\n");
}

/* ---- A job that runs ---------------------------------------------------------------------------------------- */

HARNESS_HANDLER(quick)
{
    return 0;
}

static int setup(struct bx_job *job)
{
    return bx_register(job, "quick", BX_INLINE, quick, NULL);
}

/* It spins for a second after each call; a run may fall between two spins. */
HARNESS_TEST(shmstat_rings, show_a_worker_that_spins, 30, .size = 2, .setup = setup, .options = { .spin_ns = SECOND })
{
    for (bool is_so = false; !is_so;) {
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "quick", NULL, NULL, NULL), 0);

        struct stat_run run = stat_run_fine("show", harness_job_name());

        is_so = strcmp(json_text(json_get(stat_run_worker(&run, 1), "activity")), "spinning") == 0;
    }
}
