/* SPDX-License-Identifier: MIT */
/*
 * shmstat check: each invariant of layout.h is broken in a planted job (stat_plant.h) and found with its number; states
 * that a kill or a full ring leaves are legal and accepted.
 */
#include "stat_check.h"

#define SENT 20             /* records that lie in the ring of the caller */
#define TAKEN 8             /* of those sent, read by the callee */

static struct plant plant;

static void remove_plant(void)
{
    plant_remove(&plant);
}

static void make_plant(uint64_t pos)
{
    plant_make(&plant, pos);
    for (uint64_t i = 0; i < SENT; i++) {
        cr_assert(plant_put(&plant, 0, 1 + i * 100));
        plant_count(&plant, 0);
    }
    for (int i = 0; i < TAKEN; i++)
        cr_assert(plant_take(&plant, 1));
    bxi_ring_publish(&plant.reader[1]);
}

static void make_at_zero(void)
{
    make_plant(0);
}

static struct bxi_control *control(int rank)
{
    return plant_control(&plant, rank);
}

static void set(bxi_a64 *word, uint64_t value)
{
    bxi_store_relaxed(word, value);
}

static uint64_t get(bxi_a64 *word)
{
    return bxi_load_relaxed(word);
}

static bxi_a64 *credit(void)
{
    return &control(1)->credit[0].position;
}

static bxi_a64 *write_pos(void)
{
    return &plant_counters(&plant, 0)->write_pos;
}

static bxi_a64 *word_at_credit(void)
{
    return plant_word(&plant, 0, get(credit()));
}

/* ---- What is wrong ----------------------------------------------------------------------------------- */

static void other_magic(void) { control(0)->header.magic++; }
static void other_uid(void) { control(0)->header.uid++; }
static void other_instance(void) { control(0)->header.instance++; }
static void other_rings(void) { control(0)->header.ring_bytes *= 2; }
static void other_size(void) { control(0)->header.segment_bytes--; }
static void other_job(void) { control(0)->header.job[0]++; }
static void endless_name(void) { memset(control(0)->header.name, 'x', BXI_NAME_BYTES); }
static void credit_ahead(void) { set(credit(), get(write_pos()) + 64); }
static void credit_far_behind(void) { set(credit(), get(write_pos()) - 2 * BXI_RING_BYTES); }
static void credit_within(void) { set(credit(), get(credit()) + 8); }
static void record_missing(void) { set(word_at_credit(), 0); }
static void record_of_another_lap(void) { set(word_at_credit(), get(word_at_credit()) - (UINT64_C(2048) << 32)); }
static void record_too_long(void) { set(word_at_credit(), get(word_at_credit()) + BXI_FRAME_MAX); }
static void record_empty(void) { set(word_at_credit(), get(word_at_credit()) >> 32 << 32); }
static void nonsense_next(void) { set(plant_word(&plant, 0, get(write_pos())), UINT64_C(0x1234567812345678)); }
static void not_told(void) { set(write_pos(), get(write_pos()) - bxi_record_bytes(1 + (SENT - 1) * 100) -
                                               bxi_record_bytes(1 + (SENT - 2) * 100)); }
static void told_too_much(void) { set(write_pos(), get(write_pos()) + 64); }
static void told_within_a_record(void) { set(write_pos(), get(write_pos()) - 64); }
static void write_within(void) { set(write_pos(), get(write_pos()) + 8); }
static void short_padding(void) { set(word_at_credit(), get(word_at_credit()) | 0x80000000u); }

static void refused_ahead(void)
{
    set(&control(1)->pair[0].refused_errno, 28);
    set(&control(1)->pair[0].refused_through, get(write_pos()) + 64);
}

static void credit_of_unopened(void)
{
    set(&control(0)->pair[1].open, 0);
    set(&plant_counters(&plant, 0)->frames_sent, 0);
}

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
        cr_assert(plant_put(&plant, 0, 56));
        plant_count(&plant, 0);
    }
    uint64_t pos = plant.writer[0].write_pos;
    cr_assert(plant_put(&plant, 0, 56));
    plant_count(&plant, 0);
    set(plant_word(&plant, 0, pos), get(plant_word(&plant, 0, pos)) + 64);
}

static void lease_never_granted(void)
{
    set(bxi_segment_leases(&plant.segment[1], 0) + 3, 5);
}

static void leases_granted_less_often(void)
{
    set(&bxi_tables(control(0))->loans[1].granted, 2);
    for (int slot = 0; slot < 4; slot++)
        set(bxi_segment_leases(&plant.segment[1], 0) + slot, 1);
}

static void leases_not_written(void)
{
    set(&bxi_tables(control(0))->loans[1].granted, 4);
    set(&control(1)->pair[0].given_back, 2);
    set(bxi_segment_leases(&plant.segment[1], 0) + 3, 1);
}

static void call_of_another_slot(void)
{
    struct bxi_call_row *rows = (struct bxi_call_row *)(void *)((char *)control(0) + bxi_calls_offset(1));

    set(&rows[7].id, 5 << 16 | 8);
}

/* ---- What is served, and how long calls took ------------------------------------------------------- */

static void waits_for_nobody(void)
{
    set(&bxi_tables(control(0))->wait[5].to, 2);
    set(&bxi_tables(control(0))->wait[5].thread, 77 | (uint64_t)BXI_FOR_CALL << 32);
}

static void serving_for_nobody(void)
{
    set(&bxi_tables(control(0))->serving[40].who, 2);
    set(&bxi_tables(control(0))->serving[40].where, BXI_AT_POOL);
}

static void serving_no_function(void)
{
    set(&bxi_tables(control(0))->serving[40].who, 1 | PLANT_FUNCTIONS << 16);
    set(&bxi_tables(control(0))->serving[40].where, BXI_AT_THREAD | 77 << 8);
}

static void now_for_nobody(void)
{
    set(&bxi_tables(control(0))->now.who, 5);
    set(&bxi_tables(control(0))->now.since_ns, 1);
}

static void now_no_function(void)
{
    set(&bxi_tables(control(0))->now.who, 1 | (uint64_t)PLANT_FUNCTIONS << 16);
    set(&bxi_tables(control(0))->now.since_ns, 1);
}

/* Of function 1 of the callee; two samples. */
static struct bxi_hist *measured(void)
{
    struct bxi_hist *hist = plant_hist(&plant, 0, 1, 1);

    plant_sample(hist, 100, 1000, 10);
    plant_sample(hist, 200, 2000, 20);
    return hist;
}

static void hist_without_name(void) { measured()->name[0] = '\0'; }
static void hist_of_endless_name(void) { memset(measured()->name, 'x', BXI_NAME_BYTES); }
static void hist_of_nobody(void) { measured()->who = 2 | 1 << 16; }
static void hist_of_no_function(void) { measured()->who = 1 | (uint64_t)BXI_FUNCTION_MAX << 16; }
static void hist_of_an_unknown_function(void) { measured()->who = 1 | PLANT_FUNCTIONS << 16; }
static void hist_of_another_function(void) { measured()->who = 1 | 2 << 16; }
static void longest_too_short(void) { set(&measured()->max_ns[BXI_LEG_QUEUE], 60); }
static void longest_nowhere(void) { set(&measured()->max_ns[BXI_LEG_REPLY], 5000); }

static void leg_counted_too_often(void)
{
    struct bxi_hist *hist = measured();

    bxi_count(&hist->bucket[BXI_LEG_HANDLER][bxi_hist_bucket(1000)], 2);
}

static void whole_counted_too_often(void)
{
    struct bxi_hist *hist = measured();

    bxi_count(&hist->bucket[BXI_LEG_WHOLE][bxi_hist_bucket(1110)], 2);
}

/* ---- Objects ----------------------------------------------------------------------------------------- */

#define OBJECT(owner, maker, number) ((uint64_t)(owner) << 56 | (uint64_t)(maker) << 49 | (number))

static struct bxi_object_row *object(uint64_t id)
{
    return plant_object(&plant, 0, id, 1);
}

static void object_of_another(void) { object(OBJECT(1, 0, 5)); }
static void object_of_no_maker(void) { object(OBJECT(0, 2, 5)); }
static void object_without_number(void) { object(OBJECT(0, 1, 0)); }
static void object_in_no_state(void) { set(&object(OBJECT(0, 1, 5))->state, BXI_OBJECT_FAILED + 1); }
static void object_in_state_0(void) { set(&object(OBJECT(0, 1, 5))->state, 0); }
static void object_held_by_nobody(void) { set(&object(OBJECT(0, 1, 5))->holders[0], 1 << 2); }
static void object_held_far_beyond(void) { set(&object(OBJECT(0, 1, 5))->holders[1], 1); }
static void object_held_by_its_owner(void) { set(&object(OBJECT(0, 1, 5))->holders[0], 1 | 1 << 1); }

static void too_many_objects(void)
{
    object(OBJECT(0, 1, 5));
    set(&bxi_tables(control(0))->object_rows, BXI_OBJECTS_MAX + 1);
}

static void object_in_two_rows(void)
{
    object(OBJECT(0, 1, 5));
    object(OBJECT(0, 1, 6));
    object(OBJECT(0, 1, 5));
}

/* ---- Remote workers ----------------------------------------------------------------------------------- */

static void remote_of_endless_name(void) { memset(plant_remote(&plant, 0)->name, 'a', BXI_NAME_BYTES); }
static void remote_of_endless_host(void) { memset(plant_remote(&plant, 0)->host, 'a', BXI_HOST_BYTES); }
static void remote_on_no_host(void) { plant_remote(&plant, 0)->host[0] = '\0'; }
static void remote_dead_twice(void) { set(&plant_remote(&plant, 0)->is_dead, 2); }

static void remote_for_a_part(void)
{
    plant_remote(&plant, 0);
    set(&bxi_tables(control(0))->remote_rows, 1);
}

static void remote_that_is_here(void)
{
    struct bxi_remote_row *row = plant_remote(&plant, 0);

    memcpy(&row[-1], row, sizeof(*row));
}

static const struct check_wrong wrongs[] = {
    { "another magic", "I1", .spoil = other_magic },
    { "another uid", "I1", .spoil = other_uid },
    { "another rank", "I1", WORD_IS(0, control, header.rank, 1) },
    { "another instance", "I1", .spoil = other_instance },
    { "another world size", "I1", WORD_IS(0, control, header.world_size, 3) },
    { "no world size", "I1", WORD_IS(0, control, header.world_size, 0) },
    { "another ring size", "I1", .spoil = other_rings },
    { "another segment size", "I1", .spoil = other_size },
    { "another job", "I1", .spoil = other_job },
    { "a name without end", "I1", .spoil = endless_name },
    { "a truncated file", "I1", .spoil = truncated },
    { "a state that is none", "I2", WORD_IS(0, control, header.state, BXI_GAVE_UP + 1) },
    { "rounds that are not published", "I2", WORD_IS(0, control, header.ending, UINT64_C(1) << 32 | 2) },
    { "open is 2", "I4", WORD_IS(0, control, pair[1].open, 2) },
    { "open to no rank", "I4", WORD_IS(0, control, pair[2].open, 1) },
    { "frames through a closed ring", "I4", WORD_IS(0, control, pair[1].open, 0) },
    { "an open ring without pages", "I4", .spoil = open_without_pages },
    { "refused within a record", "I5", WORD_IS(1, control, pair[0].refused_through, 65) },
    { "refused for nothing", "I5", WORD_IS(1, control, pair[0].refused_through, 64) },
    { "refused what was not sent", "I5", .spoil = refused_ahead },
    { "credit ahead", "I6", .spoil = credit_ahead },
    { "credit far behind", "I6", .spoil = credit_far_behind },
    { "credit within a line", "I6", .spoil = credit_within },
    { "credit of no rank", "I6", WORD_IS(1, control, credit[5].position, 64) },
    { "credit of a ring that is not open", "I6", .spoil = credit_of_unopened },
    { "a record is missing", "I7", .spoil = record_missing },
    { "a record of another lap", "I7", .spoil = record_of_another_lap },
    { "a record that is too long", "I7", .spoil = record_too_long },
    { "a record of nothing", "I7", .spoil = record_empty },
    { "nonsense at the write position", "I7", .spoil = nonsense_next },
    { "two records are not told", "I7", .spoil = not_told },
    { "a record is told that is not there", "I7", .spoil = told_too_much },
    { "the write position lies in a record", "I7", .spoil = told_within_a_record },
    { "the write position lies in a line", "I8", .spoil = write_within },
    { "padding in the middle", "I8", .spoil = short_padding },
    { "a record over the end", "I8", .spoil = record_over_the_end },
    { "too many functions", "I9", WORD_IS(0, control, header.function_count, BXI_FUNCTION_MAX + 1) },
    { "a function without name", "I9", WORD_IS(0, control, function[1].name[0], '\0') },
    { "a function of no kind", "I9", WORD_IS(0, control, function[1].kind, 9) },
    { "a lease that was never granted", "I10", .spoil = lease_never_granted },
    { "more leases back than granted", "I10", .spoil = leases_granted_less_often },
    { "a lease counted and not written", "I10", .spoil = leases_not_written },
    { "more used than the arena has", "I11", WORD_IS(0, control, header.arena_used, (1 << 20) + 1) },
    { "more committed than the arena has", "I11", WORD_IS(0, control, header.arena_committed, (1 << 20) + 1) },
    { "more leases than there are slots", "I11", WORD_IS(0, tables, loans[1].leases, BXI_LEASE_MAX + 1) },
    { "more returned than granted", "I11", WORD_IS(0, tables, loans[1].returned, 1) },
    { "more borrowed than ever", "I11", WORD_IS(1, tables, loans[0].borrowed, 2) },
    { "a thread that waits for nothing", "I11",
      WORD_IS(0, tables, wait[BXI_WAITS_MAX - 1].thread, 77 | (BXI_FOR_JOB + UINT64_C(1)) << 32) },
    { "a thread that waits for no rank", "I11", .spoil = waits_for_nobody },
    { "no thread that waits", "I11", WORD_IS(0, tables, wait[0].thread, (uint64_t)BXI_FOR_CALL << 32) },
    { "a request served nowhere", "I11", WORD_IS(0, tables, serving[40].where, BXI_AT_OBJECT + 1) },
    { "a request of no rank", "I11", .spoil = serving_for_nobody },
    { "a request for no function", "I11", .spoil = serving_no_function },
    { "a handler that runs for no rank", "I11", .spoil = now_for_nobody },
    { "a handler of no function that runs", "I11", .spoil = now_no_function },
    { "a batch that waits for no rank", "I11", WORD_IS(0, tables, batch[1].members[1], 1) },
    { "a row of no rank in a batch", "I11", WORD_IS(0, tables, batch[1].present[0], 4) },
    { "a body that runs twice", "I11", WORD_IS(0, tables, batch[1].running, 3) },
    { "a call in another's row", "I12", .spoil = call_of_another_slot },
    { "more histograms than there is room for", "I13", WORD_IS(0, control, header.hist_count, BXI_HIST_MAX + 1) },
    { "histograms without pages", "I4", WORD_IS(0, control, header.hist_count, BXI_HIST_MAX) },
    { "a histogram without name", "I13", .spoil = hist_without_name },
    { "a histogram whose name does not end", "I13", .spoil = hist_of_endless_name },
    { "a histogram of no rank", "I13", .spoil = hist_of_nobody },
    { "a histogram of no function", "I13", .spoil = hist_of_no_function },
    { "a histogram of a function that the peer has not", "I13", .spoil = hist_of_an_unknown_function },
    { "a histogram of a function of another name", "I13", .spoil = hist_of_another_function },
    { "two samples longer than the longest", "I13", .spoil = longest_too_short },
    { "a longest that is in no bucket", "I13", .spoil = longest_nowhere },
    { "a handler counted twice", "I13", .spoil = leg_counted_too_often },
    { "a call counted twice", "I13", .spoil = whole_counted_too_often },
    { "an object of another worker", "I15", .spoil = object_of_another },
    { "an object that no rank made", "I15", .spoil = object_of_no_maker },
    { "an object without a number", "I15", .spoil = object_without_number },
    { "an object in no state", "I15", .spoil = object_in_no_state },
    { "an object in state 0", "I15", .spoil = object_in_state_0 },
    { "an object held by no rank", "I15", .spoil = object_held_by_nobody },
    { "an object held by rank 64", "I15", .spoil = object_held_far_beyond },
    { "an object held by its owner", "I15", .spoil = object_held_by_its_owner },
    { "an object in two rows", "I15", .spoil = object_in_two_rows },
    { "more objects than there is room for", "I15", .spoil = too_many_objects },
    { "a remote worker whose name does not end", "I17", .spoil = remote_of_endless_name },
    { "a remote worker whose host does not end", "I17", .spoil = remote_of_endless_host },
    { "a remote worker on no host", "I17", .spoil = remote_on_no_host },
    { "a remote worker that is dead twice", "I17", .spoil = remote_dead_twice },
    { "rows for a part of the workers", "I17", .spoil = remote_for_a_part },
    { "a remote worker that is here", "I17", .spoil = remote_that_is_here },
    { "objects without pages", "I4", WORD_IS(0, tables, object_rows, 1) },
};

#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))

Test(shmstat_check, names_each_invariant_that_a_living_worker_breaks, .timeout = 60, .fini = remove_plant)
{
    check_each(&plant, make_at_zero, wrongs, COUNT_OF(wrongs), true);
}

Test(shmstat_check, names_each_invariant_that_a_dead_worker_breaks, .timeout = 60, .fini = remove_plant)
{
    check_each(&plant, make_at_zero, wrongs, COUNT_OF(wrongs), false);
}

Test(shmstat_check, prints_violations_with_their_number_within_80_columns, .timeout = 20, .fini = remove_plant)
{
    make_plant(0);
    record_of_another_lap();
    set(&control(1)->credit[5].position, 64);
    bxi_store_relaxed(&control(0)->header.state, BXI_GAVE_UP + 1);

    struct stat_run run = stat_run("check %s", plant.job);

    cr_expect_eq(run.status, 1);
    STAT_RUN_SAYS(run, "\n  I2        worker 0 caller - state is 6, which is none\n");
    STAT_RUN_SAYS(run, "\n  I7        worker 0 caller and peer 1 callee - the record at ");
    STAT_RUN_SAYS(run, "\n  I6        worker 1 callee and peer 5 - credit is 64 ");
    for (const char *line = run.text; *line != '\0'; line = strchr(line, '\n') + 1)
        cr_expect_leq(strcspn(line, "\n"), 80, "%s", run.text);
}

/* ---- What goes back ---------------------------------------------------------------------------------- */

static void shrink_state(int up)
{
    bxi_store_relaxed(&control(0)->header.state, up ? BXI_LEAVING : BXI_RUNNING);
}

static void shrink_ending(int up) { set(&control(0)->header.ending, UINT64_C(3) << 32 | (up ? 2 : 1)); }

static void arm_uncounted(int up)
{
    set(&control(0)->header.armed, up ? 5 << 2 | BXI_WHO_LEADER : 5 << 2 | BXI_WHO_BACKGROUND);
}

static void shrink_armed(int up) { set(&control(0)->header.armed, up ? 9 << 2 : 8 << 2); }
static void change_pid(int up) { control(0)->header.pid = up ? 1 : 2; }
static void shut(int up) { set(&control(1)->pair[0].open, up ? 1 : 0); }
static void shrink_refused(int up) { set(&control(1)->pair[0].refused_through, up ? 128 : 64); }
static void change_function(int up) { control(0)->function[0].name[0] = up ? 'a' : 'b'; }

static void shrink_functions(int up)
{
    bxi_store_relaxed(&control(0)->header.function_count, up ? PLANT_FUNCTIONS : 1);
}

static void shrink_objects(int up) { set(&bxi_tables(control(0))->object_rows, up ? 9 : 8); }

static void shrink_hist(int up)
{
    struct bxi_hist *hist = bxi_segment_at(&plant.segment[0], bxi_hist_offset(0));

    set(&hist->sum_ns[BXI_LEG_QUEUE], up ? 9 : 8);
}

static void change_hist(int up)
{
    struct bxi_hist *hist = bxi_segment_at(&plant.segment[0], bxi_hist_offset(0));

    hist->name[PLANT_NAME_END] = up ? 'a' : '\0';
}

static const struct check_change changes[] = {
    { "the header", "I1", change_pid },
    { "the state", "I2", shrink_state },
    { "the rounds of the end", "I2", shrink_ending },
    { "armed, by one that was armed", "I3", arm_uncounted },
    { "the count of armed", "I3", shrink_armed },
    { "open", "I4", shut },
    { "refused_through", "I5", shrink_refused },
    { "the number of functions", "I9", shrink_functions },
    { "a function", "I9", change_function },
    { "a histogram's sum", "I13", shrink_hist },
    { "a histogram's name", "I13", change_hist },
    { "the number of rows of objects", "I15", shrink_objects },
};

static void make_what_changes(void)
{
    make_plant(0);
    plant_hist(&plant, 0, 1, 1);
    object(OBJECT(0, 1, 5));
    set(&control(1)->pair[0].refused_errno, 28);
}

Test(shmstat_check, finds_words_that_shrink_and_may_only_grow, .timeout = 120, .fini = remove_plant)
{
    check_changes(&plant, make_what_changes, changes, COUNT_OF(changes));
}

/* ---- What is right ----------------------------------------------------------------------------------- */

static void expect_fine(const char *what)
{
    check_is_fine(&plant, what);
}

Test(shmstat_check, walks_the_records_between_credit_and_write_position, .timeout = 20, .fini = remove_plant)
{
    make_plant(0);

    struct stat_run run = stat_run_json("check", plant.job);

    cr_assert_eq(run.status, 0, "%s", run.text);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "workers_checked")), 2);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "rings_checked")), 2);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "records_checked")), SENT - TAKEN);
}

Test(shmstat_check, walks_a_ring_whose_positions_wrap, .timeout = 20, .fini = remove_plant)
{
    static const uint64_t ends[] = { UINT64_C(1) << 32, UINT64_C(1) << 38, UINT64_C(1) << 63, 0 };

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        make_plant(ends[i] - 4096);
        cr_expect(plant.writer[0].write_pos - ends[i] < BXI_RING_BYTES);
        expect_fine("around an end");
        plant_remove(&plant);
    }
}

Test(shmstat_check, accepts_what_a_kill_leaves, .timeout = 20, .fini = remove_plant)
{
    void *payload;

    make_plant(0);
    cr_assert(plant_put(&plant, 0, 1000));
    expect_fine("a record that was not counted");
    while (plant_take(&plant, 1))
        ;
    bxi_ring_publish(&plant.reader[1]);
    cr_assert_gt(get(credit()), get(write_pos()));
    expect_fine("the same, and consumed");
    plant_count(&plant, 0);
    while (BXI_RING_BYTES - (plant.writer[0].write_pos & (BXI_RING_BYTES - 1)) > 6400) {
        cr_assert(plant_put(&plant, 0, 3000));
        plant_count(&plant, 0);
    }
    cr_assert_eq(bxi_ring_reserve(&plant.writer[0], BXI_FRAME_MAX, &payload), 0);
    memset(payload, 0xff, BXI_FRAME_MAX);
    expect_fine("padding, and a record that was not published");
    bxi_ring_commit(&plant.writer[0], BXI_FRAME_MAX);
    expect_fine("padding and a record that was not counted");
    plant_kill(&plant, 0);
    expect_fine("the same of a dead one");
    set(bxi_segment_leases(&plant.segment[1], 0) + 3, 1);
    expect_fine("a lease that came back before it was counted");
}

Test(shmstat_check, accepts_objects_calls_for_values_and_calls_that_wait_for_objects, .timeout = 20,
     .fini = remove_plant)
{
    struct bxi_serving *served;
    struct bxi_object_row *row;

    make_plant(0);
    row = object(OBJECT(0, 1, 5));
    set(&row->holders[0], 2);
    expect_fine("a holder that is not in the sum of entries yet");
    set(&row->entries, 7);
    set(&row->state, BXI_OBJECT_TO_COME);
    expect_fine("a type whose object is not there yet");
    set(&row->id, 0);
    set(&row->holders[0], UINT64_MAX);
    set(&row->state, 77);
    expect_fine("a row that is free");
    served = &bxi_tables(control(0))->serving[BXI_SERVING_MAX - 1];
    set(&served->who, 1 | (uint64_t)BXI_FUNCTION_VALUE << 16);
    set(&served->where, BXI_AT_OBJECT);
    expect_fine("a request for the value of an object that is to come");
    set(&bxi_tables(control(0))->now.who, 1 | (uint64_t)BXI_FUNCTION_VALUE << 16);
    set(&bxi_tables(control(0))->now.since_ns, 1);
    expect_fine("a value that is being made");
}

/* The owner counts the legs one after the other; of each leg first the bucket, then the sum, then the longest. */
Test(shmstat_check, accepts_a_sample_that_was_not_counted_to_its_end, .timeout = 20, .fini = remove_plant)
{
    static const uint64_t legs[BXI_LEGS] = { 300, 3000, 30, 3330 };
    struct bxi_hist *hist;

    make_plant(0);
    hist = plant_hist(&plant, 0, 1, 1);
    expect_fine("a histogram of nothing");
    plant_sample(hist, 100, 1000, 10);
    for (int leg = 0; leg < BXI_LEGS; leg++) {
        bxi_count(&hist->bucket[leg][bxi_hist_bucket(legs[leg])], 1);
        expect_fine("a bucket that was counted");
        bxi_count(&hist->sum_ns[leg], legs[leg]);
        expect_fine("and its sum");
        set(&hist->max_ns[leg], legs[leg]);
        expect_fine("and its longest");
    }
    /* A processor may make stores visible in another order. */
    bxi_count(&hist->bucket[BXI_LEG_WHOLE][bxi_hist_bucket(legs[BXI_LEG_WHOLE])], 1);
    expect_fine("a whole call before its legs");
}

/* The credit word lags behind the credit that returning frames carry. */
Test(shmstat_check, accepts_a_ring_that_is_full, .timeout = 20, .fini = remove_plant)
{
    uint64_t bytes = 1;

    make_plant(0);
    for (int round = 0; round < 3000; round++) {
        while (plant_put(&plant, 0, 1 + bytes % BXI_FRAME_MAX)) {
            plant_count(&plant, 0);
            bytes = bytes * 2862933555777941757u + 3037000493u;
        }
        if (round % 100 == 0)
            expect_fine("a full ring");
        cr_assert(plant_take(&plant, 1));
        cr_assert_eq(bxi_ring_credit_hint(&plant.writer[0], plant.reader[1].read_pos), 0);
    }
    cr_assert_gt(get(write_pos()) - get(credit()), BXI_RING_BYTES / 2);
}
