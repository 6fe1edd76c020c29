/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: each invariant of layout.h is broken in a planted job (stat_plant.h) and found with its number; states
 * that a kill or a full ring leaves are legal and accepted.
 */
#include "stat_check.h"

#define SENT 20             /* records that lie in the ring of the caller */
#define TAKEN 8             /* of those sent, read by the callee */

static void make_plant(uint64_t pos)
{
    plant_make(pos);
    for (uint64_t i = 0; i < SENT; i++) {
        cr_assert(plant_put(0, 1 + i * 100));
        plant_count(0);
    }
    for (int i = 0; i < TAKEN; i++)
        cr_assert(plant_take(1));
    bxi_ring_publish(&plant.reader[1]);
}

static void make_at_zero(void)
{
    make_plant(0);
}

static struct bxi_control *control(int rank)
{
    return plant_control(rank);
}

static struct bxi_tables *tables(int rank)
{
    return bxi_tables(control(rank));
}

static void set(bxi_a64 *word, uint64_t value)
{
    bxi_store_relaxed(word, value);
}

static uint64_t get(bxi_a64 *word)
{
    return bxi_load_relaxed(word);
}

static void add(bxi_a64 *word, uint64_t value)
{
    set(word, get(word) + value);
}

static bxi_a64 *credit(void)
{
    return &control(1)->credit[0].position;
}

static bxi_a64 *write_pos(void)
{
    return &plant_counters(0)->write_pos;
}

static bxi_a64 *word_at_credit(void)
{
    return plant_word(0, get(credit()));
}

/* ---- What is wrong ----------------------------------------------------------------------------------- */

/* Frees the pages of its ring. */
static void open_without_pages(void)
{
    int fd = shm_open(plant.segment[0].shm_name, O_RDWR, 0);

    cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                           (off_t)(BXI_RINGS_OFFSET + BXI_RING_STRIDE), BXI_RING_BYTES), 0);
    close(fd);
}

static void truncated(void)
{
    int fd = shm_open(plant.segment[0].shm_name, O_RDWR, 0);

    cr_assert_eq(ftruncate(fd, (off_t)plant.segment[0].bytes - 1), 0);
    close(fd);
}

/* The length of the last record before the wrap reaches beyond it. */
static void record_over_the_end(void)
{
    while (BXI_RING_BYTES - (plant.writer[0].write_pos & (BXI_RING_BYTES - 1)) > 64) {
        cr_assert(plant_put(0, 56));
        plant_count(0);
    }
    uint64_t pos = plant.writer[0].write_pos;
    cr_assert(plant_put(0, 56));
    plant_count(0);
    add(plant_word(0, pos), 64);
}

/* The lease words of rank 1, which borrows of rank 0. */
static bxi_a64 *given_back(int slot)
{
    return bxi_segment_leases(&plant.segment[1], 0) + slot;
}

static void leases_granted_less_often(void)
{
    set(&tables(0)->loans[1].granted, 2);
    for (int slot = 0; slot < 4; slot++)
        set(given_back(slot), 1);
}

static struct bxi_call_row *calls(void)
{
    return (struct bxi_call_row *)(void *)((char *)control(0) + bxi_calls_offset(1));
}

/* Of function 1 of the callee; two samples. */
static struct bxi_hist *measured(void)
{
    struct bxi_hist *hist = plant_hist(0, 1, 1);

    plant_sample(hist, 100, 1000, 10);
    plant_sample(hist, 200, 2000, 20);
    return hist;
}

static void counted_too_often(enum bxi_leg leg, uint64_t ns)
{
    bxi_count(&measured()->bucket[leg][bxi_hist_bucket(ns)], 2);
}

static struct bxi_object_row *object(uint64_t id)
{
    return plant_object(0, id, 1);
}

/* Sets a word of an object that is right. */
#define OF_OBJECT(member, value) set(&object(PLANT_OBJECT(0, 1, 5))->member, (value))

static void remote_that_is_here(void)
{
    struct bxi_remote_row *row = plant_remote(0);

    memcpy(&row[-1], row, sizeof(*row));
}

/* Invariant, what is wrong, and the change that makes it so. */
#define WRONGS(X) \
    X(I1, another_magic, control(0)->header.magic++) \
    X(I1, another_uid, control(0)->header.uid++) \
    X(I1, another_rank, control(0)->header.rank = 1) \
    X(I1, another_instance, control(0)->header.instance++) \
    X(I1, another_world_size, control(0)->header.world_size = 3) \
    X(I1, no_world_size, control(0)->header.world_size = 0) \
    X(I1, another_ring_size, control(0)->header.ring_bytes *= 2) \
    X(I1, another_segment_size, control(0)->header.segment_bytes--) \
    X(I1, another_job, control(0)->header.job[0]++) \
    X(I1, a_name_without_end, memset(control(0)->header.name, 'x', BXI_NAME_BYTES)) \
    X(I1, a_truncated_file, truncated()) \
    X(I2, a_state_that_is_none, bxi_store_relaxed(&control(0)->header.state, BXI_GAVE_UP + 1)) \
    X(I2, rounds_that_are_not_published, set(&control(0)->header.ending, UINT64_C(1) << 32 | 2)) \
    X(I4, open_is_2, set(&control(0)->pair[1].open, 2)) \
    X(I4, open_to_no_rank, set(&control(0)->pair[2].open, 1)) \
    X(I4, frames_through_a_closed_ring, set(&control(0)->pair[1].open, 0)) \
    X(I4, an_open_ring_without_pages, open_without_pages()) \
    X(I5, refused_within_a_record, set(&control(1)->pair[0].refused_through, 65)) \
    X(I5, refused_for_nothing, set(&control(1)->pair[0].refused_through, 64)) \
    X(I5, refused_what_was_not_sent, set(&control(1)->pair[0].refused_errno, 28); \
      set(&control(1)->pair[0].refused_through, get(write_pos()) + 64)) \
    X(I6, credit_ahead, set(credit(), get(write_pos()) + 64)) \
    X(I6, credit_far_behind, set(credit(), get(write_pos()) - 2 * BXI_RING_BYTES)) \
    X(I6, credit_within_a_line, add(credit(), 8)) \
    X(I6, credit_of_no_rank, set(&control(1)->credit[5].position, 64)) \
    X(I6, credit_of_a_ring_that_is_not_open, set(&control(0)->pair[1].open, 0); \
      set(&plant_counters(0)->frames_sent, 0)) \
    X(I7, a_record_is_missing, set(word_at_credit(), 0)) \
    X(I7, a_record_of_another_lap, add(word_at_credit(), -(UINT64_C(2048) << 32))) \
    X(I7, a_record_that_is_too_long, add(word_at_credit(), BXI_FRAME_MAX)) \
    X(I7, a_record_of_nothing, set(word_at_credit(), get(word_at_credit()) >> 32 << 32)) \
    X(I7, nonsense_at_the_write_position, \
      set(plant_word(0, get(write_pos())), UINT64_C(0x1234567812345678))) \
    X(I7, two_records_are_not_told, \
      add(write_pos(), -bxi_record_bytes(1 + (SENT - 1) * 100) - bxi_record_bytes(1 + (SENT - 2) * 100))) \
    X(I7, a_record_is_told_that_is_not_there, add(write_pos(), 64)) \
    X(I7, the_write_position_lies_in_a_record, add(write_pos(), -64)) \
    X(I8, the_write_position_lies_in_a_line, add(write_pos(), 8)) \
    X(I8, padding_in_the_middle, set(word_at_credit(), get(word_at_credit()) | 0x80000000u)) \
    X(I8, a_record_over_the_end, record_over_the_end()) \
    X(I9, too_many_functions, bxi_store_relaxed(&control(0)->header.function_count, BXI_FUNCTION_MAX + 1)) \
    X(I9, a_function_without_name, control(0)->function[1].name[0] = '\0') \
    X(I9, a_function_of_no_kind, control(0)->function[1].kind = 9) \
    X(I10, a_lease_that_was_never_granted, set(given_back(3), 5)) \
    X(I10, more_leases_back_than_granted, leases_granted_less_often()) \
    X(I10, a_lease_counted_and_not_written, set(&tables(0)->loans[1].granted, 4); \
      set(&control(1)->pair[0].given_back, 2); \
      set(given_back(3), 1)) \
    X(I11, more_used_than_the_arena_has, set(&control(0)->header.arena_used, (1 << 20) + 1)) \
    X(I11, more_committed_than_the_arena_has, set(&control(0)->header.arena_committed, (1 << 20) + 1)) \
    X(I11, more_leases_than_there_are_slots, set(&tables(0)->loans[1].leases, BXI_LEASE_MAX + 1)) \
    X(I11, more_returned_than_granted, set(&tables(0)->loans[1].returned, 1)) \
    X(I11, more_borrowed_than_ever, set(&tables(1)->loans[0].borrowed, 2)) \
    X(I11, a_thread_that_waits_for_nothing, \
      set(&tables(0)->wait[BXI_WAITS_MAX - 1].thread, 77 | (BXI_FOR_JOB + UINT64_C(1)) << 32)) \
    X(I11, a_thread_that_waits_for_no_rank, set(&tables(0)->wait[5].to, 2); \
      set(&tables(0)->wait[5].thread, 77 | (uint64_t)BXI_FOR_CALL << 32)) \
    X(I11, no_thread_that_waits, set(&tables(0)->wait[0].thread, (uint64_t)BXI_FOR_CALL << 32)) \
    X(I11, a_request_served_nowhere, set(&tables(0)->serving[40].where, BXI_AT_OBJECT + 1)) \
    X(I11, a_request_of_no_rank, set(&tables(0)->serving[40].who, 2); \
      set(&tables(0)->serving[40].where, BXI_AT_POOL)) \
    X(I11, a_request_for_no_function, set(&tables(0)->serving[40].who, 1 | PLANT_FUNCTIONS << 16); \
      set(&tables(0)->serving[40].where, BXI_AT_THREAD | 77 << 8)) \
    X(I11, a_handler_that_runs_for_no_rank, set(&tables(0)->now.who, 5); \
      set(&tables(0)->now.since_ns, 1)) \
    X(I11, a_handler_of_no_function_that_runs, set(&tables(0)->now.who, 1 | (uint64_t)PLANT_FUNCTIONS << 16); \
      set(&tables(0)->now.since_ns, 1)) \
    X(I11, a_batch_that_waits_for_no_rank, set(&tables(0)->batch[1].members[1], 1)) \
    X(I11, a_row_of_no_rank_in_a_batch, set(&tables(0)->batch[1].present[0], 4)) \
    X(I11, a_body_that_runs_twice, set(&tables(0)->batch[1].running, 3)) \
    X(I12, a_call_in_another_ones_row, set(&calls()[7].id, 5 << 16 | 8)) \
    X(I13, more_histograms_than_there_is_room_for, \
      bxi_store_relaxed(&control(0)->header.hist_count, BXI_HIST_MAX + 1)) \
    X(I4, histograms_without_pages, bxi_store_relaxed(&control(0)->header.hist_count, BXI_HIST_MAX)) \
    X(I13, a_histogram_without_name, measured()->name[0] = '\0') \
    X(I13, a_histogram_whose_name_does_not_end, memset(measured()->name, 'x', BXI_NAME_BYTES)) \
    X(I13, a_histogram_of_no_rank, measured()->who = 2 | 1 << 16) \
    X(I13, a_histogram_of_no_function, measured()->who = 1 | (uint64_t)BXI_FUNCTION_MAX << 16) \
    X(I13, a_histogram_of_a_function_that_the_peer_has_not, measured()->who = 1 | PLANT_FUNCTIONS << 16) \
    X(I13, a_histogram_of_a_function_of_another_name, measured()->who = 1 | 2 << 16) \
    X(I13, two_samples_longer_than_the_longest, set(&measured()->max_ns[BXI_LEG_QUEUE], 60)) \
    X(I13, a_longest_that_is_in_no_bucket, set(&measured()->max_ns[BXI_LEG_REPLY], 5000)) \
    X(I13, a_handler_counted_twice, counted_too_often(BXI_LEG_HANDLER, 1000)) \
    X(I13, a_call_counted_twice, counted_too_often(BXI_LEG_WHOLE, 1110)) \
    X(I15, an_object_of_another_worker, object(PLANT_OBJECT(1, 0, 5))) \
    X(I15, an_object_that_no_rank_made, object(PLANT_OBJECT(0, 2, 5))) \
    X(I15, an_object_without_a_number, object(PLANT_OBJECT(0, 1, 0))) \
    X(I15, an_object_in_no_state, OF_OBJECT(state, BXI_OBJECT_FAILED + 1)) \
    X(I15, an_object_in_state_0, OF_OBJECT(state, 0)) \
    X(I15, an_object_held_by_no_rank, OF_OBJECT(holders[0], 1 << 2)) \
    X(I15, an_object_held_by_rank_64, OF_OBJECT(holders[1], 1)) \
    X(I15, an_object_held_by_its_owner, OF_OBJECT(holders[0], 1 | 1 << 1)) \
    X(I15, an_object_in_two_rows, object(PLANT_OBJECT(0, 1, 5)); \
      object(PLANT_OBJECT(0, 1, 6)); \
      object(PLANT_OBJECT(0, 1, 5))) \
    X(I15, more_objects_than_there_is_room_for, object(PLANT_OBJECT(0, 1, 5)); \
      set(&tables(0)->object_rows, BXI_OBJECTS_MAX + 1)) \
    X(I17, a_remote_worker_whose_name_does_not_end, memset(plant_remote(0)->name, 'a', BXI_NAME_BYTES)) \
    X(I17, a_remote_worker_whose_host_does_not_end, memset(plant_remote(0)->host, 'a', BXI_HOST_BYTES)) \
    X(I17, a_remote_worker_on_no_host, plant_remote(0)->host[0] = '\0') \
    X(I17, a_remote_worker_that_is_dead_twice, set(&plant_remote(0)->is_dead, 2)) \
    X(I17, rows_for_a_part_of_the_workers, plant_remote(0); \
      set(&tables(0)->remote_rows, 1)) \
    X(I17, a_remote_worker_that_is_here, remote_that_is_here()) \
    X(I4, objects_without_pages, set(&tables(0)->object_rows, 1))

WRONGS(CHECK_SPOILS)
static const struct check_wrong wrongs[] = { WRONGS(CHECK_WRONG) };

#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))

TestSuite(shmstat_check, .init = make_at_zero, .fini = plant_remove, .timeout = 20);

Test(shmstat_check, names_each_invariant_that_a_living_worker_breaks, .timeout = 60)
{
    check_each(make_at_zero, wrongs, COUNT_OF(wrongs), true);
}

Test(shmstat_check, names_each_invariant_that_a_dead_worker_breaks, .timeout = 60)
{
    check_each(make_at_zero, wrongs, COUNT_OF(wrongs), false);
}

Test(shmstat_check, prints_violations_with_their_number_within_80_columns)
{
    spoil_a_record_of_another_lap();
    set(&control(1)->credit[5].position, 64);
    bxi_store_relaxed(&control(0)->header.state, BXI_GAVE_UP + 1);

    struct stat_run run = stat_run("check %s", plant.job);

    cr_expect_eq(run.status, 1);
    STAT_RUN_SAYS(run, "\n  I2        worker 0 caller - state is 6, which is none\n");
    STAT_RUN_SAYS(run, "\n  I7        worker 0 caller and peer 1 callee - the record at ");
    STAT_RUN_SAYS(run, "\n  I6        worker 1 callee and peer 5 - credit is 64 ");
    stat_run_fits(&run);
}

/* ---- What goes back ---------------------------------------------------------------------------------- */

static struct bxi_hist *first_hist(void)
{
    return bxi_segment_at(&plant.segment[0], bxi_hist_offset(0));
}

/* Invariant, what changes, and the change: up, and back again. */
#define CHANGES(X) \
    X(I1, the_header, control(0)->header.pid = up ? 1 : 2) \
    X(I2, the_state, bxi_store_relaxed(&control(0)->header.state, up ? BXI_LEAVING : BXI_RUNNING)) \
    X(I2, the_rounds_of_the_end, set(&control(0)->header.ending, UINT64_C(3) << 32 | (up ? 2 : 1))) \
    X(I3, armed_by_one_that_was_armed, \
      set(&control(0)->header.armed, up ? 5 << 2 | BXI_WHO_LEADER : 5 << 2 | BXI_WHO_BACKGROUND)) \
    X(I3, the_count_of_armed, set(&control(0)->header.armed, up ? 9 << 2 : 8 << 2)) \
    X(I4, open, set(&control(1)->pair[0].open, up ? 1 : 0)) \
    X(I5, refused_through, set(&control(1)->pair[0].refused_through, up ? 128 : 64)) \
    X(I9, the_number_of_functions, \
      bxi_store_relaxed(&control(0)->header.function_count, up ? PLANT_FUNCTIONS : 1)) \
    X(I9, a_function, control(0)->function[0].name[0] = up ? 'a' : 'b') \
    X(I13, the_sum_of_a_histogram, set(&first_hist()->sum_ns[BXI_LEG_QUEUE], up ? 9 : 8)) \
    X(I13, the_name_of_a_histogram, first_hist()->name[PLANT_NAME_END] = up ? 'a' : '\0') \
    X(I15, the_number_of_rows_of_objects, set(&tables(0)->object_rows, up ? 9 : 8))

CHANGES(CHECK_TURNS)
static const struct check_change changes[] = { CHANGES(CHECK_CHANGE) };

static void make_what_changes(void)
{
    make_plant(0);
    plant_hist(0, 1, 1);
    object(PLANT_OBJECT(0, 1, 5));
    set(&control(1)->pair[0].refused_errno, 28);
}

Test(shmstat_check, finds_words_that_shrink_and_may_only_grow, .timeout = 120)
{
    check_changes(make_what_changes, changes, COUNT_OF(changes));
}

/* ---- What is right ----------------------------------------------------------------------------------- */

Test(shmstat_check, walks_the_records_between_credit_and_write_position)
{
    struct stat_run run = stat_run_json("check", plant.job);

    cr_assert_eq(run.status, 0, "%s", run.text);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "workers_checked")), 2);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "rings_checked")), 2);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "records_checked")), SENT - TAKEN);
}

Test(shmstat_check, walks_a_ring_whose_positions_wrap)
{
    static const uint64_t ends[] = { UINT64_C(1) << 32, UINT64_C(1) << 38, UINT64_C(1) << 63, 0 };

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        plant_remove();
        make_plant(ends[i] - 4096);
        cr_expect(plant.writer[0].write_pos - ends[i] < BXI_RING_BYTES);
        check_is_fine("around an end");
    }
}

Test(shmstat_check, accepts_what_a_kill_leaves)
{
    void *payload;

    cr_assert(plant_put(0, 1000));
    check_is_fine("a record that was not counted");
    while (plant_take(1))
        ;
    bxi_ring_publish(&plant.reader[1]);
    cr_assert_gt(get(credit()), get(write_pos()));
    check_is_fine("the same, and consumed");
    plant_count(0);
    while (BXI_RING_BYTES - (plant.writer[0].write_pos & (BXI_RING_BYTES - 1)) > 6400) {
        cr_assert(plant_put(0, 3000));
        plant_count(0);
    }
    cr_assert_eq(bxi_ring_reserve(&plant.writer[0], BXI_FRAME_MAX, &payload), 0);
    memset(payload, 0xff, BXI_FRAME_MAX);
    check_is_fine("padding, and a record that was not published");
    bxi_ring_commit(&plant.writer[0], BXI_FRAME_MAX);
    check_is_fine("padding and a record that was not counted");
    plant_kill(0);
    check_is_fine("the same of a dead one");
    set(bxi_segment_leases(&plant.segment[1], 0) + 3, 1);
    check_is_fine("a lease that came back before it was counted");
}

Test(shmstat_check, accepts_objects_calls_for_values_and_calls_that_wait_for_objects)
{
    struct bxi_serving *served;
    struct bxi_object_row *row;

    row = object(PLANT_OBJECT(0, 1, 5));
    set(&row->holders[0], 2);
    check_is_fine("a holder that is not in the sum of entries yet");
    set(&row->entries, 7);
    set(&row->state, BXI_OBJECT_TO_COME);
    check_is_fine("a type whose object is not there yet");
    set(&row->id, 0);
    set(&row->holders[0], UINT64_MAX);
    set(&row->state, 77);
    check_is_fine("a row that is free");
    served = &tables(0)->serving[BXI_SERVING_MAX - 1];
    set(&served->who, 1 | (uint64_t)BXI_FUNCTION_VALUE << 16);
    set(&served->where, BXI_AT_OBJECT);
    check_is_fine("a request for the value of an object that is to come");
    set(&tables(0)->now.who, 1 | (uint64_t)BXI_FUNCTION_VALUE << 16);
    set(&tables(0)->now.since_ns, 1);
    check_is_fine("a value that is being made");
}

/* The owner counts the legs one after the other; of each leg first the bucket, then the sum, then the longest. */
Test(shmstat_check, accepts_a_sample_that_was_not_counted_to_its_end)
{
    static const uint64_t legs[BXI_LEGS] = { 300, 3000, 30, 3330 };
    struct bxi_hist *hist;

    hist = plant_hist(0, 1, 1);
    check_is_fine("a histogram of nothing");
    plant_sample(hist, 100, 1000, 10);
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        bxi_count(&hist->bucket[leg][bxi_hist_bucket(legs[leg])], 1);
        check_is_fine("a bucket that was counted");
        bxi_count(&hist->sum_ns[leg], legs[leg]);
        check_is_fine("and its sum");
        set(&hist->max_ns[leg], legs[leg]);
        check_is_fine("and its longest");
    }
    /* A processor may make stores visible in another order. */
    bxi_count(&hist->bucket[BXI_LEG_WHOLE][bxi_hist_bucket(legs[BXI_LEG_WHOLE])], 1);
    check_is_fine("a whole call before its legs");
}

/* The credit word lags behind the credit that returning frames carry. */
Test(shmstat_check, accepts_a_ring_that_is_full)
{
    uint64_t bytes = 1;

    for (int round = 0; round < 3000; round++) {
        while (plant_put(0, 1 + bytes % BXI_FRAME_MAX)) {
            plant_count(0);
            bytes = bytes * 2862933555777941757u + 3037000493u;
        }
        if (round % 100 == 0)
            check_is_fine("a full ring");
        cr_assert(plant_take(1));
        cr_assert_eq(bxi_ring_credit_hint(&plant.writer[0], plant.reader[1].read_pos), 0);
    }
    cr_assert_gt(get(write_pos()) - get(credit()), BXI_RING_BYTES / 2);
}
