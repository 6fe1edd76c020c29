/* SPDX-License-Identifier: MIT */
/*
 * lib/observe/trace.c: the events in the file of BX_TRACE, compared with what the workers of a test did. trace_read.h
 * reads the file and checks what holds for every complete one.
 *
 * Worker 0 calls the functions of worker 1, unless a test says otherwise. test_trace_file.c tests the file itself.
 */
#include "tests/harness/harness.h"

#include "observe/trace.h"
#include "trace_read.h"

enum { ENTERED, GO, DONE };                     /* gates */
enum { LINES = 0, MARKED = 1, SLEPT = 2 };      /* values */

static struct json *root;

static void remove_file(void)
{
    json_free(root);
    trace_remove_file();
}

TestSuite(trace, .init = trace_into_file, .fini = remove_file, .timeout = 60);

/* ---- What workers do ----------------------------------------------------------------------------- */

HARNESS_HANDLER(refuse)
{
    return bx_fail(-EDOM, "not today");
}

HARNESS_HANDLER(wait_for_go)
{
    harness_post(ENTERED);
    harness_await(GO, 1);
    return 0;
}

/* Calls worker 0 and waits for the reply, inside a handler. */
HARNESS_HANDLER(call_back)
{
    return bx_msg_put_i64(reply, harness_call_i64(bx_request_job(request), "worker0", "twice", bx_read_i64(args)));
}

HARNESS_ASYNC_HANDLER(ask_again)
{
    OWN(msg) *value = harness_msg_i64(bx_read_i64(args));

    return bx_rpc_async(bx_request_job(request), "worker0", "twice", value, NULL, reply);
}

HARNESS_BATCH(count_rows)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++)
        bx_batch_reply_i64(batch, row, (int64_t)bx_batch_rows(batch));
    return 0;
}

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("twice", harness_twice), HARNESS_INLINE("refuse", refuse),
                     HARNESS_BLOCKING("wait", wait_for_go), HARNESS_BLOCKING("back", call_back),
                     HARNESS_ASYNC("again", ask_again));
    return bx_register_async(job, "pooled", BX_BLOCKING, ask_again, NULL);
}

/* Runs two workers, worker 0 with that body, and reads the file. */
static void traced(harness_fn body)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { body } });
    root = trace_read(trace_path, 2);
}

/* ---- Calls --------------------------------------------------------------------------------------- */

static void call_five_times(struct bx_job *job)
{
    for (int i = 0; i < 5; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", i), 2 * i);
}

Test(trace, shows_each_call_with_its_handler_and_its_reply)
{
    traced(call_five_times);

    const struct json *handler = next_of(root, NULL, (struct wanted){ 'X', "handler", "twice", 1 });
    const struct json *call = next_of(root, NULL, (struct wanted){ 'X', "call", "twice", 0 });

    cr_expect_eq(COUNT(root, 'X', "call", "twice", 0), 5);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 1), 5);
    cr_expect_eq(COUNT(root, 'X', "handler", "answer twice", 1), 5);
    cr_expect_eq(COUNT(root, 'X', "call", "reply twice", 0), 5);
    cr_expect_eq(COUNT(root, 's', "arrow", "request", 0), 5);
    cr_expect_eq(COUNT(root, 's', "arrow", "reply", 1), 5);
    cr_expect_eq(COUNT(root, 'X', "call", NULL, ANY), 10);
    cr_expect_eq(COUNT(root, 'X', "handler", NULL, ANY), 10);
    cr_expect_eq(COUNT(root, 'b', NULL, NULL, ANY), 0);
    calls_run_forward(root, "twice");
    cr_expect_str_eq(json_text(arg(handler, "caller")), "worker0");
    cr_expect_eq(json_number(arg(handler, "bytes")), 8);
    cr_expect_null(arg(handler, "code"));
    cr_expect_str_eq(json_text(arg(call, "to")), "worker1");
    cr_expect_str_eq(json_text(arg(call, "call")), "0-1-65536", "the name that shmstat gives it");
}

static void call_oneself(struct bx_job *job)
{
    for (int i = 0; i < 3; i++)
        HARNESS_EQ(harness_call_i64(job, "worker0", "twice", i), 2 * i);
}

Test(trace, shows_calls_to_oneself_inside_the_wait_for_them)
{
    traced(call_oneself);

    cr_expect_eq(COUNT(root, 'X', "call", "twice", 0), 3);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 0), 3);
    calls_run_forward(root, "twice");
}

static void call_back_and_forth(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "back", 21), 42);
}

Test(trace, shows_a_blocking_handler_and_its_own_call_on_a_thread_of_the_pool)
{
    traced(call_back_and_forth);

    const struct json *handler = next_of(root, NULL, (struct wanted){ 'X', "handler", "back", 1 });
    const struct json *call = next_of(root, NULL, (struct wanted){ 'X', "call", "twice", 1 });

    cr_assert(handler != NULL && call != NULL);
    cr_expect_str_eq(thread_of(root, handler), "pool");
    cr_expect(same_thread(handler, call));
    cr_expect(of(handler, "ts") <= of(call, "ts") && end_of(call) <= end_of(handler) + HALF_NS);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 0), 1);
    calls_run_forward(root, "twice");
    calls_run_forward(root, "back");
}

/* ---- Async calls, one-way calls ---------------------------------------------------------------------- */

static void call_async(struct bx_job *job)
{
    static const char *const functions[5] = { "twice", "twice", "twice", "again", "pooled" };
    struct bx_future *futures[5];

    for (int i = 0; i < 5; i++) {
        OWN(msg) *args = harness_msg_i64(i);

        HARNESS_EQ(bx_rpc_async(job, "worker1", functions[i], args, NULL, &futures[i]), 0);
    }
    harness_end_all(futures, 5, 0);
}

Test(trace, shows_async_calls_as_spans_and_async_handlers_until_their_futures_are_done)
{
    traced(call_async);

    spans_end(root);
    cr_expect_eq(COUNT(root, 'X', "call", "send twice", 0), 3);
    cr_expect_eq(COUNT(root, 'b', "async call", "twice", 0), 3);
    cr_expect_eq(COUNT(root, 'X', "call", "send again", 0), 1);
    cr_expect_eq(COUNT(root, 'b', "async call", "again", 0), 1);
    cr_expect_eq(COUNT(root, 'X', "handler", "again", 1), 1);
    cr_expect_eq(COUNT(root, 'b', "async handler", "again", 1), 1);
    cr_expect_eq(COUNT(root, 'X', "handler", "pooled", 1), 1);
    cr_expect_eq(COUNT(root, 'b', "async handler", "pooled", 1), 1);
    cr_expect_eq(COUNT(root, 'b', "async call", "twice", 1), 2);
    cr_expect_eq(COUNT(root, 'b', NULL, NULL, ANY), 9);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 1), 3);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 0), 2);
    cr_expect_eq(COUNT(root, 's', "arrow", "reply", ANY), 7);
}

static void call_oneway(struct bx_job *job)
{
    struct bx_msg *args = harness_msg_i64(7);

    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_oneway(job, "worker1", i < 2 ? "twice" : "refuse", args, NULL), 0);
    bx_msg_destroy(args);
    harness_call_i64(job, "worker1", "twice", 1);       /* worker 1 has read all before, because frames keep order */
}

static void call_together(struct bx_job *job)
{
    struct bx_future *futures[8];
    OWN(msg) *one = harness_msg_i64(1);
    const struct bx_msg *args[8] = { one, one, one, one, one, one, one, one };

    for (int round = 0; round < 2; round++) {
        HARNESS_EQ(bx_rpc_many(job, "worker1", "twice", 8, args, NULL, futures), 0);
        harness_end_all(futures, 8, 0);
    }
}

Test(trace, shows_calls_that_are_sent_together_inside_one_another)
{
    traced(call_together);

    cr_expect_eq(COUNT(root, 's', "arrow", "request", 0), 16);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 1), 16);
    slices_nest(root);
}

Test(trace, joins_one_way_calls_to_their_handlers)
{
    traced(call_oneway);

    cr_expect_eq(COUNT(root, 'X', "call", "send twice", 0), 2);
    cr_expect_eq(COUNT(root, 'X', "call", "send refuse", 0), 1);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 1), 3);
    cr_expect_eq(COUNT(root, 'X', "handler", "refuse", 1), 1);
    cr_expect_eq(COUNT(root, 's', "arrow", "request", 0), 4);
    cr_expect_eq(COUNT(root, 's', "arrow", "reply", 1), 1);
    cr_expect_eq(COUNT(root, 'X', "handler", "answer ", 1), 1);
}

/* ---- Batches ----------------------------------------------------------------------------------------- */

static int setup_batch(struct bx_job *job)
{
    if (bx_job_rank(job) != 0)
        return 0;
    HARNESS_EQ(bx_register_batch(job, "rows", count_rows, NULL, NULL), 0);
    for (int rank = 1; rank < 4; rank++)
        HARNESS_EQ(bx_batch_add_member(job, "rows", rank), 0);
    return 0;
}

static void send_rows(struct bx_job *job)
{
    for (int round = 0; round < 4; round++)
        HARNESS_EQ(harness_call_i64(job, "worker0", "rows", round), 3);
}

Test(trace, shows_each_batch_with_its_rows_and_an_arrow_from_every_one)
{
    harness_run(&(struct harness_world){ .size = 4, .setup = setup_batch,
                                         .body = { NULL, send_rows, send_rows, send_rows } });

    root = trace_read(trace_path, 4);
    const struct json *body = NULL, *end = NULL;

    cr_expect_eq(COUNT(root, 'X', "batch", "rows", 0), 4);
    cr_expect_eq(COUNT(root, 'X', "batch", NULL, ANY), 4);
    while ((body = next_of(root, body, (struct wanted){ 'X', "batch", NULL, 0 })) != NULL) {
        int arrows = 0;

        cr_expect_eq(json_number(arg(body, "rows")), 3);
        while ((end = next_of(root, end, (struct wanted){ 'f', "arrow", "request", 0 })) != NULL)
            arrows += slice_around(root, end) == body;
        cr_expect_eq(arrows, 3);
    }
    cr_expect_eq(COUNT(root, 'X', "handler", "answer rows", 0), 12);
    for (int rank = 1; rank < 4; rank++)
        cr_expect_eq(COUNT(root, 'X', "call", "rows", rank), 4);
}

/* ---- Errors ------------------------------------------------------------------------------------------ */

static void call_in_vain(struct bx_job *job)
{
    struct bx_call_options soon = { .timeout_ns = 20 * HARNESS_MS };

    HARNESS_EQ(bx_rpc_sync(job, "worker1", "refuse", NULL, NULL, NULL), -EDOM);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "nothing", NULL, NULL, NULL), BX_E_NO_FUNCTION);
    do {                                    /* a request whose deadline passes before it is handled does not enter */
        HARNESS_EQ(bx_rpc_sync(job, "worker1", "wait", NULL, &soon, NULL), BX_E_TIMEOUT);
        soon.timeout_ns *= 2;
    } while (harness_gate(ENTERED) == 0);
    harness_post(GO);
    HARNESS_EQ(harness_call_i64(job, "worker1", "twice", 4), 8);
}

Test(trace, shows_how_calls_failed)
{
    traced(call_in_vain);

    const struct json *refused[] = { next_of(root, NULL, (struct wanted){ 'X', "call", "refuse", 0 }),
                                     next_of(root, NULL, (struct wanted){ 'X', "call", "reply refuse", 0 }),
                                     next_of(root, NULL, (struct wanted){ 'X', "handler", "refuse", 1 }),
                                     next_of(root, NULL, (struct wanted){ 'X', "handler", "answer refuse", 1 }) };
    const struct json *waited = next_of(root, NULL, (struct wanted){ 'X', "call", "wait", 0 });
    const struct json *unsent = next_of(root, NULL, (struct wanted){ 'X', "call", "call that was not sent", 0 });

    for (int i = 0; i < 4; i++) {
        cr_assert_not_null(refused[i]);
        cr_expect_eq(json_number(arg(refused[i], "code")), -EDOM);
        cr_expect_str_eq(json_text(arg(refused[i], "error")), "-EDOM");
    }
    cr_expect_eq(json_number(arg(waited, "code")), BX_E_TIMEOUT);
    cr_expect_geq(of(waited, "dur"), 20000);
    cr_expect_eq(json_number(arg(unsent, "code")), BX_E_NO_FUNCTION);
    cr_expect_eq(COUNT(root, 'X', "call", "late reply", 0), COUNT(root, 'X', "handler", "answer wait", 1));
}

/* ---- Sleeps, threads, names -------------------------------------------------------------------------- */

static void sleep_and_tell(struct bx_job *job)
{
    struct bx_future *future = harness_async(job, "worker1", "wait");

    harness_await(ENTERED, 1);
    HARNESS_EQ(bx_future_wait(future, 5 * HARNESS_MS), BX_E_TIMEOUT);
    harness_post(GO);
    harness_end(future, 0);
    harness_store(SLEPT, harness_counter(job, "waits_epoll"));
}

Test(trace, shows_which_thread_sleeps_and_how)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { sleep_and_tell },
                                         .options = { .wait = BX_WAIT_EPOLL, .no_spin = true } });

    root = trace_read(trace_path, 2);
    const struct json *sleeper = NULL;
    int leader = 0, by_epoll = 0;

    while ((sleeper = next_of(root, sleeper, (struct wanted){ 'X', "sleep", "sleep", 0 })) != NULL) {
        by_epoll += strcmp(json_text(arg(sleeper, "by")), "epoll") == 0;
        leader += strcmp(json_text(arg(sleeper, "who")), "leader") == 0;
        if (strcmp(json_text(arg(sleeper, "who")), "background") == 0)
            cr_expect_str_eq(thread_of(root, sleeper), "background");
    }
    cr_expect_geq(leader, 1);
    cr_expect_geq((uint64_t)by_epoll, harness_load(SLEPT), "a sleep for each that was counted");
}

static void call_odd(struct bx_job *job)
{
    HARNESS_EQ(harness_call_i64(job, "worker1", "a \"name\"\\\n\x01 of \xff\xc3\xa4", 4), 8);
}

Test(trace, escapes_any_name_that_a_function_may_have)
{
    harness_run(&(struct harness_world){
        .size = 2, .handlers = { HARNESS_INLINE("a \"name\"\\\n\x01 of \xff\xc3\xa4", harness_twice) },
        .body = { call_odd } });
    root = trace_read(trace_path, 2);
    cr_expect_eq(COUNT(root, 'X', "call", "a \"name\"\\\n\x01 of ???", 0), 1);     /* json.h reads \u00ff as '?' */
    cr_expect_eq(COUNT(root, 'X', "handler", "a \"name\"\\\n\x01 of ???", 1), 1);
}

/* ---- Many events ------------------------------------------------------------------------------------- */

static void call_much(struct bx_job *job, int index)
{
    for (int i = 0; i < 700; i++)
        HARNESS_EQ(harness_call_i64(job, "worker1", "twice", index), 2 * index);
}

static void call_much_on_threads(struct bx_job *job)
{
    harness_threads(job, 4, call_much);
}

Test(trace, loses_no_event_of_many_threads)
{
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_much_on_threads } });
    root = json_load(trace_path);    /* not trace_read: its time is quadratic in the number of events */
    cr_assert_not_null(root);
    cr_expect_eq(COUNT(root, 'X', "call", "twice", 0), 2800);
    cr_expect_eq(COUNT(root, 'X', "call", "reply twice", 0), 2800);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 1), 2800);
    cr_expect_eq(COUNT(root, 'X', "handler", "answer twice", 1), 2800);
    cr_expect_eq(COUNT(root, 's', "arrow", NULL, ANY), 5600);
    cr_expect_eq(COUNT(root, 'f', "arrow", NULL, ANY), 5600);
    cr_expect_eq(COUNT(root, 'i', NULL, NULL, ANY), 0);
}

static void call_hundred(struct bx_job *job)
{
    for (int i = 0; i < 100; i++)
        harness_call_i64(job, "worker1", "twice", i);
}

Test(trace, keeps_the_bound_on_events_and_counts_those_left_out)
{
    setenv("BX_TRACE_EVENTS", "30", 1);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_hundred } });
    root = json_load(trace_path);
    cr_assert_not_null(root);
    for (int rank = 0; rank < 2; rank++) {
        const struct json *note = next_of(root, NULL, (struct wanted){ 'i', "trace", NULL, rank });

        cr_expect_eq(COUNT(root, 'X', NULL, NULL, rank), 30);
        cr_expect_eq(COUNT(root, 'i', NULL, NULL, rank), 1);
        cr_expect_str_eq(json_text(json_get(note, "name")), "from here on events are left out");
        cr_expect_geq(json_number(arg(note, "left_out")), 200 - 30);
    }
}

/* ---- Deaths and forks -------------------------------------------------------------------------------- */

static bool file_has(const char *text)
{
    static char bytes[1 << 20];
    FILE *file = fopen(trace_path, "r");
    size_t count = file != NULL ? fread(bytes, 1, sizeof bytes - 1, file) : 0;

    if (file != NULL)
        fclose(file);
    bytes[count] = '\0';
    return strstr(bytes, text) != NULL;
}

static void call_and_be_killed(struct bx_job *job)
{
    harness_leaves_by_itself();
    call_hundred(job);
    while (!file_has("worker0 (rank 0"))        /* nothing is written within 10 ms, nor while another worker writes */
        bxi_trace_write(job, true);
    raise(SIGKILL);
}

static void serve_until_a_death(struct bx_job *job)
{
    HARNESS_EQ(bx_job_serve(job), BX_E_PEER_DEAD);
}

Test(trace, is_a_whole_array_after_a_worker_was_killed)
{
    harness_run(&(struct harness_world){ .size = 3, .setup = setup, .dies = 1,
                                         .body = { call_and_be_killed, serve_until_a_death } });
    root = json_load(trace_path);
    cr_assert_not_null(root, "no JSON");
    workers_are_named(root, 3);
    cr_expect_eq(COUNT(root, 'X', "handler", "twice", 1), 100, "the survivor lost nothing");
    slices_nest(root);
}

static void fork_a_child(struct bx_job *job)
{
    call_five_times(job);

    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        bxi_trace_mark(job, &(struct bxi_mark){ .kind = BXI_MARK_LEFT_OUT, .begin_ns = 1 });
        bxi_trace_write(job, true);
        bxi_trace_close(job);
        _exit(bx_rpc_sync(job, "worker1", "twice", NULL, NULL, NULL) == BX_E_FORKED ? 0 : 1);
    }
    HARNESS_EQ(waitpid(child, &status, 0), child);
    HARNESS_EQ(status, 0);
}

Test(trace, has_no_events_of_a_forked_child)
{
    traced(fork_a_child);

    cr_expect_eq(COUNT(root, 'X', "call", "twice", 0), 5, "and what the worker noted is there once");
    cr_expect_eq(COUNT(root, 'i', NULL, NULL, ANY), 0);
}

/* ---- Files that cannot be written -------------------------------------------------------------------- */

static void count_lines(int level, const char *text, void *context)
{
    (void)level, (void)context;
    if (strstr(text, "BX_TRACE") != NULL)
        harness_add(LINES, 1);
}

static int setup_counting(struct bx_job *job)
{
    bx_set_log(count_lines, NULL);
    return setup(job);
}

static void runs_untraced(const char *file)
{
    harness_reset();
    setenv("BX_TRACE", file, 1);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup_counting, .body = { call_five_times } });
}

Test(trace, logs_once_per_worker_that_the_file_cannot_be_written)
{
    runs_untraced("/nonexistent/trace.json");
    cr_expect_eq(harness_load(LINES), 2);
    runs_untraced("/tmp");
    cr_expect_eq(harness_load(LINES), 2);
    runs_untraced("/dev/null");
    cr_expect_eq(harness_load(LINES), 2);
}

/* runs_untraced with stderr in a file. Returns how many of the lines contain BX_TRACE; *line gets the last of them. */
static int untraced_lines(const char *file, char line[512])
{
    FILE *errors = tmpfile();
    int old_stderr = dup(STDERR_FILENO), count = 0;
    char read[512];

    cr_assert(errors != NULL && old_stderr >= 0);
    cr_assert(dup2(fileno(errors), STDERR_FILENO) >= 0);
    runs_untraced(file);
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    rewind(errors);
    while (fgets(read, sizeof read, errors) != NULL)
        if (strstr(read, "BX_TRACE") != NULL && ++count > 0)
            memcpy(line, read, sizeof read);
    fclose(errors);
    return count;
}

Test(trace, prints_once_per_job_that_the_file_cannot_be_written)
{
    char line[512] = "";

    cr_expect_eq(untraced_lines("/nonexistent/trace.json", line), 1);
    cr_expect_str_eq(line, "boxcar: BX_TRACE: worker 'worker0' is not traced: /nonexistent/trace.json cannot be "
                           "written: No such file or directory\n");
    cr_expect_eq(untraced_lines(trace_path, line), 0);
    json_free(trace_read(trace_path, 2));
}

Test(trace, does_not_follow_a_symbolic_link)
{
    char link[80], line[512] = "", text[32] = "";
    FILE *file = fopen(trace_path, "w+");

    cr_assert(file != NULL && fputs("precious", file) >= 0 && fflush(file) == 0);
    snprintf(link, sizeof link, "%s.link", trace_path);
    cr_assert_eq(symlink(trace_path, link), 0);
    int lines = untraced_lines(link, line);
    unlink(link);
    cr_expect_eq(lines, 1);
    cr_expect_not_null(strstr(line, "is a symbolic link"), "%s", line);
    cr_expect_eq(harness_load(LINES), 2);
    rewind(file);
    cr_expect_not_null(fgets(text, sizeof text, file));
    cr_expect_str_eq(text, "precious");
    fclose(file);
}

Test(trace, is_off_if_the_bound_is_not_a_number)
{
    setenv("BX_TRACE_EVENTS", "12x", 1);
    runs_untraced(trace_path);
    cr_expect_eq(harness_load(LINES), 2);
    cr_expect_neq(access(trace_path, F_OK), 0);
}

Test(trace, makes_no_file_when_it_is_off)
{
    runs_untraced("");
    unsetenv("BX_TRACE");
    harness_run(&(struct harness_world){ .size = 2, .setup = setup_counting, .body = { call_five_times } });
    cr_expect_eq(harness_load(LINES), 0);
    cr_expect_neq(access(trace_path, F_OK), 0);
}

static int setup_without_rank_0(struct bx_job *job)
{
    if (bx_job_rank(job) == 0)
        unsetenv("BX_TRACE");
    return setup_counting(job);
}

Test(trace, does_not_add_to_a_file_that_rank_0_of_the_job_has_not_begun)
{
    struct stat before, after;

    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_five_times } });
    cr_assert_eq(stat(trace_path, &before), 0);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup_without_rank_0, .body = { call_five_times } });
    cr_assert_eq(stat(trace_path, &after), 0);
    cr_expect_eq(before.st_size, after.st_size);
    cr_expect_eq(harness_load(LINES), 1);
}

Test(trace, begins_the_file_anew_with_each_job)
{
    for (int i = 0; i < 2; i++)
        harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_five_times } });
    root = trace_read(trace_path, 2);      /* checks the job's name */
    cr_expect_eq(COUNT(root, 'X', "call", "twice", ANY), 5);
}

Test(trace, puts_the_jobs_name_into_the_name_of_the_file)
{
    char pattern[sizeof trace_path + 16];

    snprintf(pattern, sizeof pattern, "/tmp/boxcar-%%j-%%-%ld.json", (long)getpid());
    setenv("BX_TRACE", pattern, 1);
    harness_run(&(struct harness_world){ .size = 2, .setup = setup, .body = { call_five_times } });
    snprintf(trace_path, sizeof trace_path, "/tmp/boxcar-%s-%%-%ld.json", harness_job_name(), (long)getpid());
    json_free(trace_read(trace_path, 2));
}
