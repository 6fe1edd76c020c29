/* SPDX-License-Identifier: MIT */
/*
 * shmstat top, part by part: exact rates of planted segments at planted times; what each key does; the lines at every
 * size; the program's text and JSON. test_shmstat_screen.c tests it in a terminal.
 */
#include "tools/shmstat/text.h"
#include "tools/shmstat/top.h"
#include "tests/harness/harness.h"
#include "stat_plant.h"
#include "stat_run.h"

#include <math.h>

#define SECOND UINT64_C(1000000000)
#define START (1000 * SECOND)

static struct top_model model;
static struct top_state state;
static char *text;                      /* of the picture that was drawn last */
static size_t text_bytes;

static void begin(void)
{
    plant_begin();
    model = (struct top_model){ .select = plant.job, .stuck_s = 10 };
    top_state_init(&state);
}

static void end(void)
{
    plant_remove();
    top_free(&model);
    free(text);
}

static void sample(enum top_view view, uint64_t at_ns)
{
    cr_assert_eq(top_sample(&model, view, at_ns), 0);
    cr_assert_eq(top_rows(&model, view), 0);
}

static void count(int rank, enum bxi_counter which, uint64_t n)
{
    bxi_count(&bxi_tables(plant_control(rank))->counters[which], n);
}

/* ---- Rates ------------------------------------------------------------------------------------------- */

#define EXPECT(row, which, value) cr_expect_float_eq(model.rows[row].number[which], (value), 1e-9)

TestSuite(shmstat_top, .timeout = 120);

Test(shmstat_top, rates_are_the_counts_between_two_samples_over_their_time, .init = begin, .fini = end)
{
    sample(TOP_WORKERS, START);
    cr_assert_eq(model.count, 2);
    cr_expect(isnan(model.rows[0].number[TOP_CALLS_S]));
    count(0, BXI_C_calls_sent, 500);
    count(0, BXI_C_calls_completed, 500);
    count(0, BXI_C_oneways_sent, 20);
    count(0, BXI_C_wakeups, 7);
    count(0, BXI_C_doorbells_rung, 9);
    count(0, BXI_C_doorbells_saved, 30);
    count(0, BXI_C_bells_unneeded, 1);
    count(0, BXI_C_calls_timed_out, 3);
    count(1, BXI_C_requests_inline, 100);
    count(1, BXI_C_requests_async, 10);
    count(1, BXI_C_requests_blocking, 2);
    count(1, BXI_C_requests_batched, 4);
    bxi_count(&plant_counters(0)->frames_sent, 520);
    bxi_count(&plant_counters(0)->bytes_sent, 4096);
    bxi_count(&plant_counters(0)->times_full, 5);
    bxi_count(&plant_counters(1)->frames_received, 40);
    bxi_count(&plant_counters(1)->bytes_received, 64);
    sample(TOP_WORKERS, START + 2 * SECOND);
    EXPECT(0, TOP_CALLS_S, 260);
    EXPECT(0, TOP_REQUESTS_S, 0);
    EXPECT(0, TOP_WAKEUPS_S, 3.5);
    EXPECT(0, TOP_BELLS_S, 4.5);
    EXPECT(0, TOP_SAVED_S, 15.5);
    EXPECT(0, TOP_FAILED_S, 1.5);
    EXPECT(0, TOP_FRAMES_OUT_S, 260);
    EXPECT(0, TOP_BYTES_OUT_S, 2048);
    EXPECT(0, TOP_FULL_S, 2.5);
    EXPECT(1, TOP_CALLS_S, 0);
    EXPECT(1, TOP_REQUESTS_S, 58);
    EXPECT(1, TOP_FRAMES_IN_S, 20);
    EXPECT(1, TOP_BYTES_IN_S, 32);
    cr_expect_float_eq(model.totals.number[TOP_CALLS_S], 260, 1e-9);
    cr_expect_eq(model.rows[0].health, TOP_BUSY);
    cr_assert_eq(top_rows(&model, TOP_RINGS), 0);
    cr_assert_eq(model.count, 2);
    EXPECT(0, TOP_FRAMES_OUT_S, 260);
    sample(TOP_WORKERS, START + 3 * SECOND);
    EXPECT(0, TOP_CALLS_S, 0);
    cr_expect_eq(model.rows[0].health, TOP_IDLE);
}

Test(shmstat_top, shows_how_full_a_ring_is, .init = begin, .fini = end)
{
    while (plant_put(0, 4000))
        plant_count(0);
    sample(TOP_WORKERS, START);
    sample(TOP_RINGS, START + SECOND);
    cr_assert_eq(model.count, 2);
    cr_expect(model.rows[0].number[TOP_FILL] >= 90 && model.rows[0].number[TOP_FILL] <= 100);
    cr_expect_eq(model.rows[0].health, TOP_WARN);
    cr_expect_float_eq(model.rows[0].number[TOP_UNREAD], (double)plant.writer[0].write_pos, 1e-9);
    cr_expect_eq(model.rows[1].number[TOP_FILL], 0);
}

/* Row `slot` of the caller's calls, begun that long before START. */
static void plant_call(int caller, uint32_t slot, uint64_t age_ns, uint64_t flags)
{
    struct bxi_call_row *rows = bxi_segment_at(&plant.segment[caller], bxi_calls_offset(1 - caller));
    struct bxi_call_row *row = rows + slot;

    bxi_store_relaxed(&row->since, (START - age_ns) << 8 | 1);
    bxi_store_relaxed(&row->deadline_ns, UINT64_MAX);
    bxi_store_relaxed(&row->id, (UINT64_C(7) << 16 | slot) | flags);
    count(caller, BXI_C_calls_sent, 1);
    count(caller, BXI_C_calls_timed_out, flags != 0);
}

Test(shmstat_top, counts_the_calls_in_flight_wherever_their_rows_are, .init = begin, .fini = end)
{
    cr_assert_eq(bxi_segment_allocate(&plant.segment[0], bxi_calls_offset(1), BXI_CALLS_BYTES), 0);
    plant_call(0, 3, SECOND, 0);
    plant_call(0, 900, 4 * SECOND, 0);
    plant_call(0, 4, 5 * SECOND, BXI_CALL_GIVEN_UP);
    sample(TOP_WORKERS, START);
    EXPECT(0, TOP_FLIGHT, 2);
    EXPECT(0, TOP_AGE, 4);
    EXPECT(1, TOP_FLIGHT, 0);
    cr_expect(isnan(model.rows[1].number[TOP_AGE]));
    sample(TOP_CALLS, START + 1);
    cr_expect_eq(model.count, 3);

    struct stat_run run = stat_run("top --json --interval 0.1 %s", plant.job);
    const struct json *worker = stat_run_worker(&run, 0);

    cr_expect_eq(run.status, 0);
    cr_expect_geq(json_number(json_get(run.json, "interval_seconds")), 0.1);
    cr_expect_str_eq(json_text(json_get(worker, "name")), "caller");
    cr_expect_eq(json_number(json_get(worker, "calls_per_second")), 0);
    cr_expect_eq(json_number(json_get(worker, "calls_in_flight")), 2);
}

/* ---- Who is stuck ------------------------------------------------------------------------------------ */

static void expect_stuck(int rank, int cause, const char *doing, const char *part)
{
    cr_expect_eq(model.rows[rank].health, TOP_STUCK);
    cr_expect_eq(model.rows[rank].cause, cause);
    cr_expect_str_eq(model.rows[rank].text[TOP_DOING], doing);
    cr_expect_not_null(strstr(model.rows[rank].why, part), "%s", model.rows[rank].why);
}

Test(shmstat_top, a_call_in_flight_for_too_long_is_stuck_and_not_before, .init = begin, .fini = end)
{
    plant_call(0, 3, 10 * SECOND, 0);
    sample(TOP_WORKERS, START - 1);
    cr_expect_eq(model.rows[0].cause, 0);
    cr_expect_eq(model.totals.stuck, 0);
    sample(TOP_WORKERS, START);
    expect_stuck(0, 1, "stuck", "caller has waited for 'pick' of callee for 10.0 s (call 0-1-458755)");
    cr_expect_eq(model.rows[1].cause, 0);
    cr_expect_eq(model.totals.stuck, 1);
}

Test(shmstat_top, a_handler_that_does_not_end_is_nearer_to_the_reason_than_its_caller, .init = begin, .fini = end)
{
    struct bxi_tables *callee = bxi_tables(plant_control(1));

    plant_call(0, 3, 40 * SECOND, 0);
    bxi_store_relaxed(&callee->serving[9].who, 2 << 16 | 0);
    bxi_store_relaxed(&callee->serving[9].since_ns, START - 20 * SECOND);
    bxi_store_relaxed(&callee->serving[9].where, BXI_AT_THREAD | 4321 << 8);
    sample(TOP_WORKERS, START);
    expect_stuck(1, 2, "stuck", "callee has run 'save' for caller for 20.0 s, in thread 4321");
    EXPECT(1, TOP_SERVED, 1);
    cr_expect_eq(model.totals.reason, &model.rows[1]);
    bxi_store_relaxed(&callee->now.who, 0);
    bxi_store_relaxed(&callee->now.since_ns, START - 30 * SECOND);
    sample(TOP_WORKERS, START);
    expect_stuck(1, 2, "stuck", "callee has run 'add' for caller for 30.0 s, where it makes progress");
    EXPECT(1, TOP_SERVED, 2);
}

Test(shmstat_top, a_request_that_only_waits_in_a_batch_does_not_make_its_callee_stuck, .init = begin, .fini = end)
{
    struct bxi_tables *callee = bxi_tables(plant_control(1));

    bxi_store_relaxed(&callee->serving[0].since_ns, START - 20 * SECOND);
    bxi_store_relaxed(&callee->serving[0].where, BXI_AT_BATCH);
    sample(TOP_WORKERS, START);
    cr_expect_eq(model.rows[1].cause, 0);
    EXPECT(1, TOP_SERVED, 1);
}

Test(shmstat_top, a_stopped_worker_is_the_first_reason, .init = begin, .fini = end, .timeout = 30)
{
    pid_t child = fork();

    if (child == 0)
        for (;;)
            pause();
    cr_assert_eq(kill(child, SIGSTOP), 0);
    cr_assert_eq(waitpid(child, NULL, WUNTRACED), child);
    plant_control(0)->header.pid = (uint32_t)child;
    plant_call(1, 3, 40 * SECOND, 0);
    sample(TOP_WORKERS, START);
    expect_stuck(0, 3, "stopped", "is stopped: it goes on with SIGCONT");
    cr_expect_eq(model.totals.reason, &model.rows[0]);
    cr_expect_eq(model.totals.stopped, 1);
    cr_expect_eq(model.totals.stuck, 2);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* ---- The picture ------------------------------------------------------------------------------------- */

static void render(int width, int height)
{
    struct top_page page = { .width = width, .height = height };

    free(text);
    text = NULL;
    page.out = open_memstream(&text, &text_bytes);
    cr_assert_not_null(page.out);
    top_render(&model, &state, &page);
    fclose(page.out);
}

static const char *line_at(int line)
{
    static char copy[1024];
    const char *from = text;

    while (line-- > 0 && *from != '\0')
        from += strcspn(from, "\n") + 1;
    snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(from, "\n"), from);
    return copy;
}

static bool line_has(int line, const char *part)
{
    return strstr(line_at(line), part) != NULL;
}

/* ---- Who comes and goes ------------------------------------------------------------------------------ */

Test(shmstat_top, a_killed_worker_is_dead_until_its_segment_is_removed, .init = begin, .fini = end)
{
    sample(TOP_WORKERS, START);
    plant_kill(1);
    sample(TOP_WORKERS, START + SECOND);
    cr_expect_eq(model.rows[1].health, TOP_DEAD);
    cr_expect_str_eq(model.rows[1].text[TOP_DOING], "dead");
    bxi_segment_destroy(&plant.segment[1]);
    sample(TOP_WORKERS, START + 2 * SECOND);
    cr_assert_eq(model.count, 1);
    cr_expect_eq(model.rows[0].health, TOP_IDLE);
}

/* ---- Rows and keys ----------------------------------------------------------------------------------- */

/* Rows of 64 imagined workers of two jobs: worker i makes 10 * i calls a second. */
static void imagine_64(void)
{
    enum { WORKERS = 64 };
    static char names[WORKERS][BXI_NAME_BYTES];

    model = (struct top_model){ .count = WORKERS, .now.jobs.count = 2 };
    model.workers = model.rows = calloc(WORKERS, sizeof(*model.rows));
    model.shown = calloc(WORKERS, sizeof(struct top_row *));
    for (int i = 0; i < WORKERS; i++) {
        struct top_row *row = &model.rows[i];

        snprintf(names[i], BXI_NAME_BYTES, "worker%d", i);
        for (int j = 0; j < TOP_TEXTS; j++)
            row->text[j] = j == TOP_NAME ? names[i] : j == TOP_DOING ? "asleep" : "";
        row->health = TOP_IDLE;
        row->number[TOP_RANK] = i;
        row->number[TOP_PID] = 100000 + i;
        row->number[TOP_CALLS_S] = 10 * i;
    }
    model.totals.workers = model.totals.alive = WORKERS;
    top_state_init(&state);
}

static void forget(void)
{
    model.now.jobs.count = 0;
    top_free(&model);
    free(text);
}

static void press(const char *keys)
{
    for (; *keys != '\0'; keys++)
        top_key(&state, *keys);
}

Test(shmstat_top, of_64_workers_24_lines_show_19_and_say_which, .init = imagine_64, .fini = forget)
{
    render(80, 24);
    cr_expect(line_has(1, "64 workers: 64 alive"));
    cr_expect(line_has(3, "RANK NAME"));
    cr_expect(line_has(4, "worker0 "));
    cr_expect(line_has(22, "worker18 "));
    cr_expect(line_has(23, "workers 1-19 of 64 by RANK"));
    top_key(&state, TOP_KEY_PAGE_DOWN);
    render(80, 24);
    cr_expect(line_has(4, "worker19 "));
    top_key(&state, TOP_KEY_END);
    render(80, 24);
    cr_expect(line_has(22, "worker63 "));
    cr_expect(line_has(23, "workers 46-64 of 64 by RANK"));
    top_key(&state, TOP_KEY_UP);
    render(80, 24);
    cr_expect(line_has(23, "workers 45-63 of 64 by RANK"));
    top_key(&state, TOP_KEY_HOME);
    render(80, 24);
    cr_expect(line_has(23, "workers 1-19 of 64 by RANK"));
}

Test(shmstat_top, wider_lines_have_more_columns_and_all_of_the_narrower, .init = imagine_64, .fini = forget)
{
    static const char *const narrow[] = { "RANK", "NAME", "DOING", "CALLS/s", "REQS/s", "FLIGHT", "OUT/s", "IN/s" };
    static const char *const wide[] = { "RING%", "AGE", "WAKE/s", "BELL/s", "ARENA", "LOAN", "FULL/s" };

    render(80, 24);
    for (int i = 0; i < 8; i++)
        cr_expect(line_has(3, narrow[i]), "%s", narrow[i]);
    cr_expect_not(line_has(3, "ARENA"));
    render(160, 50);
    for (int i = 0; i < 8; i++)
        cr_expect(line_has(3, narrow[i]), "%s", narrow[i]);
    for (int i = 0; i < 7; i++)
        cr_expect(line_has(3, wide[i]), "%s", wide[i]);
    cr_expect(line_has(49, "workers 1-45 of 64"));
}

Test(shmstat_top, no_line_is_wider_and_no_picture_higher_than_asked_for, .init = imagine_64, .fini = forget)
{
    strcpy(model.rows[3].why, "worker3 (pid 12) is stopped: it goes on with SIGCONT");
    model.rows[3].text[TOP_WHY] = model.rows[3].why;
    model.totals.reason = &model.rows[3];
    for (int view = 0; view < TOP_VIEWS; view++) {
        state.view = (enum top_view)view;
        for (int width = 1; width < 200; width += 1 + width / 20) {
            for (int height = 1; height < 80; height += 1 + height / 8) {
                int lines = 0;

                render(width, height);
                for (const char *at = text; *at != '\0'; at += strcspn(at, "\n"), at += *at != '\0', lines++)
                    cr_assert_leq(strcspn(at, "\n"), (size_t)width);
                cr_assert_leq(lines, height);
                cr_assert_leq(state.first + state.page, 64 + (size_t)(height > 66 ? height : 0));
            }
        }
    }
}

Test(shmstat_top, sorts_by_any_column, .init = imagine_64, .fini = forget)
{
    model.rows[7].number[TOP_CALLS_S] = NAN;
    press(">>>>>");                          /* NAME, PID, DOING, STATE, CALLS/s */
    render(80, 24);
    cr_expect(line_has(4, "worker63 "));
    cr_expect(line_has(23, "by CALLS/s"));
    cr_expect_str_eq(model.shown[63]->text[TOP_NAME], "worker7");   /* not known: last */
    press("<<<<<");
    render(80, 24);
    cr_expect_str_eq(model.shown[0]->text[TOP_NAME], "worker0");
    press(">");
    render(80, 24);
    cr_expect(line_has(23, "by NAME"));
    cr_expect_str_eq(model.shown[9]->text[TOP_NAME], "worker9");    /* as people count */
}

Test(shmstat_top, shows_living_workers_before_dead_ones_in_any_order, .init = imagine_64, .fini = forget)
{
    model.rows[0].health = TOP_DEAD;
    model.rows[63].health = TOP_DEAD;
    for (int column = 0; column < 6; column++) {
        render(80, 24);
        cr_expect(model.shown[0]->health == TOP_IDLE && model.shown[61]->health == TOP_IDLE, "column %d", column);
        cr_expect(model.shown[62]->health == TOP_DEAD && model.shown[63]->health == TOP_DEAD, "column %d", column);
        press(">");
    }
}

Test(shmstat_top, a_call_of_a_dead_caller_is_not_stuck, .init = begin, .fini = end)
{
    cr_assert_eq(bxi_segment_allocate(&plant.segment[0], bxi_calls_offset(1), BXI_CALLS_BYTES), 0);
    plant_call(0, 3, 60 * SECOND, 0);
    sample(TOP_CALLS, START);
    cr_assert_eq(model.count, 1);
    cr_expect_eq(model.rows[0].health, TOP_STUCK);
    EXPECT(0, TOP_AGE, 60);
    plant_kill(0);
    sample(TOP_CALLS, START + SECOND);
    cr_expect_eq(model.count, 0);
}

Test(shmstat_top, shows_the_column_that_sorts_even_where_it_is_narrow, .init = imagine_64, .fini = forget)
{
    render(80, 24);
    cr_expect_not(line_has(3, "ARENA"));
    state.sort[TOP_WORKERS] = top_column_named(TOP_WORKERS, "arena");
    render(80, 24);
    cr_expect(line_has(3, "ARENA"));
}

Test(shmstat_top, filters_by_text_and_pid, .init = imagine_64, .fini = forget)
{
    model.rows[5].text[TOP_DOING] = "stuck";
    press("/worker1q");
    cr_expect(state.typing);
    render(80, 24);
    cr_expect(line_has(23, "show rows with: worker1q_"));
    press("\b\r");
    cr_expect_not(state.typing);
    render(80, 24);
    cr_expect(line_has(23, "workers 1-11 of 11 (64 in all) by RANK with 'worker1'"));
    press("\033/stuck\n");
    render(80, 24);
    cr_expect(line_has(23, "workers 1-1 of 1 (64 in all)"));
    cr_expect(line_has(4, "worker5 "));
    press("\033/100063\n");
    render(80, 24);
    cr_expect(line_has(4, "worker63 "));
    press("/no such text");
    render(80, 24);
    cr_expect_str_eq(line_at(4), "");
}

Test(shmstat_top, a_name_with_control_characters_is_not_sent_to_the_terminal, .init = imagine_64, .fini = forget)
{
    model.rows[0].text[TOP_NAME] = "a\033[2Jb\xff";
    render(80, 24);
    cr_expect(line_has(4, "a?[2Jb?"));
}

Test(shmstat_top, figures_take_five_characters)
{
    static const struct {
        double value;
        enum top_format format;
        const char *text;
    } figures[] = {
        { 0, TOP_COUNT, "0" },          { 3, TOP_COUNT, "3" },           { 0.5, TOP_COUNT, "0.5" },
        { 12.4, TOP_COUNT, "12" },      { 999.4, TOP_COUNT, "999" },     { 999.6, TOP_COUNT, "1.00k" },
        { 12345, TOP_COUNT, "12.3k" },  { 999499, TOP_COUNT, "999k" },   { 1234567, TOP_COUNT, "1.23M" },
        { 1023, TOP_BYTES, "1.00K" },   { 1536, TOP_BYTES, "1.50K" },    { 94278008, TOP_BYTES, "89.9M" },
        { NAN, TOP_BYTES, "-" },
        { 9.9, TOP_SECONDS, "9.90 s" }, { 3600, TOP_SECONDS, "1.00 h" },
        { 99.6, TOP_PERCENT, "100" },   { 4194304, TOP_WHOLE, "4194304" },
    };

    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        cr_expect_str_eq(top_figure(figures[i].value, figures[i].format), figures[i].text);
    for (double value = 0.01; value < 1e20; value *= 1.37) {
        cr_assert_leq(strlen(top_figure(value, TOP_COUNT)), 5);
        cr_assert_leq(strlen(top_figure(value, TOP_BYTES)), 5);
        cr_assert(value > 1e10 || strlen(top_figure(value, TOP_SECONDS)) <= 8);
    }
}

/* ---- The program ------------------------------------------------------------------------------------- */

static void expect_status(int status, const char *args)
{
    struct stat_run run = stat_run("%s", args);

    cr_expect_eq(run.status, status, "%s: %s", args, run.text);
}

Test(shmstat_top, wrong_flags_and_a_missing_terminal_are_wrong_usage)
{
    expect_status(2, "top --interval 0 --once");
    expect_status(2, "top --interval 1x --once");
    expect_status(2, "top --width");
    expect_status(2, "top -n 0");
    expect_status(2, "top --view nothing --once");
    expect_status(2, "top --sort nothing --once");
    expect_status(2, "top --json --once");
    expect_status(2, "top --json --view calls");
    expect_status(2, "top --filter 0123456789012345678901234567890123456789 --once");
    expect_status(2, "top");
    expect_status(2, "show --once");
    expect_status(3, "top --once no-such-job");
}
