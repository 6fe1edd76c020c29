/* SPDX-License-Identifier: MIT */
/*
 * Whole jobs of two or three workers: bootstrap, calls, shutdown, destruction.
 *
 * Truth: each call ends once, with its answer; each handler runs as often as it was called, and never after
 * bx_job_shutdown has returned; what was accepted before the shutdown runs; `rescued` and `timers_late` are 0; nobody
 * waits for a watchdog (a second of simulated time) while a call is under way.
 */
#include "room_job.h"

#include "boxcar.h"
#include "rpc/rpc.h"
#include "rpc/msg.h"

bool sim_any_is_dead(void)
{
    return sim_deaths(-1) > 0;
}

uint64_t sim_death_ns(void)
{
    return sim_host_of(0) >= 0 && (sim_any_is_dead() || sim_words_are_lost()) ? UINT64_C(20000000000) : 0;
}

static bool deadlines_passed(void)
{
    return sim_stopped_ns() > 30000000000;
}

bool sim_one_left(void)
{
    return sim_truth(ALONE) > 0 || deadlines_passed();
}

#define NET_CLOSE_NS 1000000000         /* CLOSE_NS of net/source.c */

/* Over the network who leaves waits for a second until its last messages are fetched. One that was stopped for so long
 * has not heard that it left, and takes it for dead. */
bool sim_words_are_lost(void)
{
    return sim_host_of(0) >= 0 && sim_truth(LEAVERS) + sim_truth(ALONE) > 0 && sim_stopped_ns() > NET_CLOSE_NS;
}

int sim_registrar = -1;

bool sim_is_allowed(int rc)
{
    return sim_is_refusal(rc) || (rc == BX_E_PEER_DEAD && (sim_any_is_dead() || sim_words_are_lost())) ||
           (rc == BX_E_SHUTDOWN && sim_one_left()) || (rc == BX_E_TIMEOUT && deadlines_passed());
}

void sim_must(const struct bx_job *job, const char *what, int rc)
{
    if (rc < 0 && !sim_is_allowed(rc))
        sim_fail("%s of '%s' returns %d: %s", what, bx_job_name(job), rc, bx_error_text());
}

uint64_t sim_life(int rank)
{
    return sim_truth(IN_0 + (unsigned)rank) > 0 && !sim_is_dead(rank) ? 1 + (uint64_t)sim_deaths(rank) : 0;
}

void sim_must_reach(const struct bx_job *job, const char *what, int rc, int to, uint64_t life)
{
    if (rc == BX_E_PEER_DEAD && life > 0 && life == sim_life(to))
        sim_fail("%s of '%s' returns %d, and rank %d lives: %s", what, bx_job_name(job), rc, to, bx_error_text());
    sim_must(job, what, rc);
}

void sim_job_kill(int rank, uint32_t points)
{
    if (sim_is_dead(rank))              /* since it was chosen */
        return;
    sim_kill_later(rank, points);
    if (sim_truth(REJOIN) == 2 && sim_deaths(rank) < 3 && sim_choose(3) != 0)
        sim_start_again_later(rank, sim_choose(UINT32_C(1) << (2 + sim_choose(12))));
}

/* The truth of its life before is none of the new one. When all others are done, it does nothing but leave. */
void sim_room_job_again(int rank)
{
    static const unsigned of[] = { STOPPED_0, AWARE_0, IN_0, OBJECTS_0, DONE_0, FREE_0, FREED_0 };

    for (unsigned i = 0; i < (sim_truth(CLOSED) > 0 ? 4 : 7); i++)
        sim_count(of[i] + (unsigned)rank, -(int64_t)sim_truth(of[i] + (unsigned)rank));
    for (int other = 0; other < WORKERS_MOST; other++)
        if (sim_life(other) != 0)
            return;
    sim_count(EXTINCT, 1);
}

static void log_line(int level, const char *text, void *context)
{
    (void)level, (void)context;
    sim_note("log: %s", text);
}

/* An odd value: a thread waits for the answer, and needs no time to get it. */
static int64_t answer_to(int64_t value)
{
    sim_count(OWED, value & 1);
    return 2 * value;
}

int sim_double(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)context;
    return bx_msg_put_i64(reply, 2 * bx_read_i64(args));
}

/* Context, if any: takes some time. */
static int twice(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int rank = bx_job_rank(bx_request_job(request));

    if (context != NULL)
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    sim_count(HANDLED_0 + rank, 1);
    if (sim_truth(STOPPED_0 + rank))
        sim_fail("a handler runs after the shutdown of rank %d", rank);
    return bx_msg_put_i64(reply, answer_to(bx_read_i64(args)));
}

const char *const sim_names[] = { "worker0", "worker1", "worker2", "worker3", "worker4" };

int sim_another(const struct bx_job *job)
{
    int size = bx_job_world_size(job);

    return (bx_job_rank(job) + 1 + (int)sim_choose((uint32_t)size - 1)) % size;
}

/* Answers with what the caller's "inline" makes of the value. */
static int forward(const struct bx_request *request, struct bx_reader *args, struct bx_future **reply, void *context)
{
    struct bx_msg *inner = sim_msg();
    int to = bx_request_caller(request), rc;

    (void)context;
    bx_msg_put_i64(inner, bx_read_i64(args));
    sim_count(SENT_TO_0 + to, 1);
    rc = bx_rpc_async(bx_request_job(request), sim_names[to], "inline", inner, NULL, reply);
    sim_must(bx_request_job(request), "bx_rpc_async in a handler", rc);
    bx_msg_destroy(inner);
    return rc;
}

/* Sends the caller a one-way call. */
static int echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int to = bx_request_caller(request), rc;

    (void)args, (void)reply, (void)context;
    sim_count(SENT_TO_0 + to, 1);
    rc = bx_rpc_oneway(bx_request_job(request), sim_names[to], "inline", NULL, NULL);
    /* No room, and a handler does not wait for it. */
    if (rc == -EAGAIN && (sim_stopped_ns() > 0 || sim_host_of(to) >= 0 || sim_truth(FLOODED) > 0))
        sim_count(SENT_TO_0 + to, -1);
    else
        sim_must(bx_request_job(request), "bx_rpc_oneway in a handler", rc);
    return 0;
}

/* Answers each row as "inline" does. */
static int gather(struct bx_batch *batch, void *job)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        sim_count(HANDLED_0 + bx_job_rank(job), 1);
        bx_batch_reply_i64(batch, row, answer_to(bx_read_i64(&args)));
    }
    return 0;
}

static int ordered(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
static int mirror(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);

#define JOIN_POINTS 16384               /* about as many as a process needs to join */

/* After some time. It may die once more, at any point. */
static void come_back(int rank)
{
    static const long after_ns[] = { 0, 0, 2000000, 900000000 };

    if (sim_choose(3) == 0)
        sim_job_kill(rank, sim_choose(JOIN_POINTS));
    if (sim_choose(3) == 0 && sim_stopped_ns() < 16000000000)        /* an answer is missed: a door waits for 3 s */
        sim_stop_later((int)sim_choose((uint32_t)sim_truth(SIZE)), sim_choose(JOIN_POINTS),
                       sim_choose(2) == 0 ? 300000000 : 4000000000);
    nanosleep(&(struct timespec){ .tv_nsec = after_ns[sim_choose(4)] }, NULL);
}

/* In a third of the schedules the workers are spread over hosts, where nobody comes back. */
static bool spread(int workers)
{
    uint32_t hosts;

    if (sim_host_of(0) >= 0)
        return true;
    hosts = workers < 2 || sim_choose(3) != 2 ? 1 : 2 + sim_choose(2);

    for (int rank = 0; rank < workers && hosts > 1; rank++)
        sim_put_on_host(rank, (int)sim_choose(hosts));
    return hosts > 1;
}

struct bx_job *sim_job_begin(int rank, int workers, void (*more)(struct bx_job *job))
{
    struct bx_job *job = NULL;
    struct bx_options options = { .job = "sim", .rank = rank, .world_size = workers, .arena_bytes = 16 << 20,
                                  .no_spin = sim_choose(4) != 0, .spin_ns = 1, .wait = BX_WAIT_EPOLL };
    int rc;

    if (sim_truth(REJOIN) == 0)
        sim_count(REJOIN, spread(workers) ? 1 : 1 + sim_choose(2));
    options.rejoin = sim_truth(REJOIN) == 2;
    if (sim_deaths(rank) > 0)
        come_back(rank);
    bx_set_log(log_line, NULL);
    bxi_checked = getenv("BX_CHECKED") != NULL;         /* the library reads it when it is loaded */
    rc = bx_job_create(&options, &job);
    if (rc < 0 && sim_is_refusal(rc))
        rc = bx_job_create(&options, &job);
    if (rc < 0)
        sim_fail("bx_job_create returns %d: %s", rc, bx_error_text());
    SIM_AGAIN(job, "bx_register", bx_register(job, "inline", BX_INLINE, twice, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "blocking", BX_BLOCKING, twice, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "slow", BX_LOCKED, twice, job));
    SIM_AGAIN(job, "bx_register", bx_register(job, "locked", BX_LOCKED, twice, NULL));
    SIM_AGAIN(job, "bx_register", bx_register_async(job, "forward", BX_INLINE, forward, NULL));
    SIM_AGAIN(job, "bx_register_batch", bx_register_batch(job, "gather", gather, job,
                                                     &(struct bx_batch_options){ .max_rows = 2,
                                                                                 .flush_after_ns = 1000000 }));
    sim_lend_register(job);
    SIM_AGAIN(job, "bx_register", bx_register(job, "ordered", BX_INLINE, ordered, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "echo", BX_INLINE, echo, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "mirror", BX_INLINE, mirror, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "mirror and block", BX_BLOCKING, mirror, NULL));
    if (more != NULL)
        more(job);
    sim_count(BEGINNING, 1);
    rc = bx_job_start(job);
    sim_count(BEGINNING, -(rc == 0));
    if (rc < 0 && sim_is_refused_start(rank, rc)) {
        if (sim_registrar >= 0)
            sim_join(sim_registrar);
        bx_job_destroy(job);
        sim_release_kept();
        sim_release_late();
        sim_grads_end();
        sim_count(STOPPED_0 + rank, 1);
        sim_count(ALONE, 1);
        sim_thread_ends();
        sim_fiber_ends();
    }
    if (sim_deaths(rank) > 0 && (rc == BX_E_SHUTDOWN || rc == BX_E_RANK_MISSING || rc == BX_E_PEER_DEAD)) {
        sim_note("start: %d, %s", rc, bx_error_text());
        sim_count(BEGINNING, -1);
        bx_job_destroy(job);
        return NULL;
    }
    if (rc < 0)
        sim_fail("bx_job_start of rank %d returns %d: %s", rank, rc, bx_error_text());
    sim_count(IN_0 + (unsigned)rank, 1);
    sim_count(BEGUN, 1);
    if (sim_long_stops && sim_truth(BEGUN) == (uint64_t)workers && sim_choose(16) == 0)
        sim_stop_later((int)sim_choose((uint32_t)workers), sim_choose(UINT32_C(1) << (4 + sim_choose(12))),
                       70000000000);                    /* longer than a call or a shutdown may take */
    return job;
}

void sim_job_end(struct bx_job *job, int other)
{
    int rank = bx_job_rank(job);
    uint64_t rescued = 1, late = 1, deaths = 1, leaked = 1;

    if (sim_truth(DIES_AT_END) == (uint64_t)rank + 1) {
        sim_count(DIES_AT_END, -1 - rank);
        sim_job_kill(rank, sim_choose(UINT32_C(1) << (4 + sim_choose(10))));
    }
    sim_count(UNDER_WAY, 1);
    sim_count(IN_0 + (unsigned)rank, -1);
    sim_must(job, "bx_job_shutdown", bx_job_shutdown(job, 0));
    sim_count(UNDER_WAY, -1);
    sim_count(STOPPED_0 + rank, 1);
    bx_counter(job, "rescued", &rescued);
    bx_counter(job, "timers_late", &late);
    bx_counter(job, "peers_dead", &deaths);
    bx_counter(job, "rrefs_leaked", &leaked);
    if (leaked != 0 && sim_keeps_nothing())
        sim_fail("%llu references of rank %d leak", (unsigned long long)leaked, rank);
    if (deaths != 0 && !sim_any_is_dead() && !sim_words_are_lost())
        sim_fail("rank %d takes the other for dead", rank);
    if (rescued != 0 || late != 0)
        sim_fail("rescued %llu, timers_late %llu at rank %d", (unsigned long long)rescued, (unsigned long long)late,
                 rank);
    if (other >= 0)
        sim_join(other);
    if (sim_choose(2) == 0)             /* another one may die behind this one's end */
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    sim_count(AWARE_0 + (unsigned)rank, 1 + sim_deaths_heard_of());
    bx_job_destroy(job);
    sim_descriptors_left(rank);         /* also of this thread, whose end would close them */
}

/* Without a shutdown, in some schedules: the others go on. False: it does not. */
bool sim_leave_alone(struct bx_job *job)
{
    unsigned rank = (unsigned)bx_job_rank(job);

    if (sim_truth(ALONE) > 0 || sim_choose(10) != 0)
        return false;
    sim_count(ALONE, 1);
    sim_count(IN_0 + rank, -1);
    sim_count(AWARE_0 + rank, 1 + sim_deaths_heard_of());
    bx_job_destroy(job);
    sim_count(STOPPED_0 + rank, 1);
    return true;
}

static void end(struct bx_job *job)
{
    if (!sim_leave_alone(job))
        sim_job_end(job, -1);
}

void sim_expect(const struct bx_msg *reply, int64_t value)
{
    struct bx_reader reader = bx_msg_reader(reply);

    if (bx_read_i64(&reader) != 2 * value)
        sim_fail("twice %lld is wrong", (long long)value);
}

static void called_back(struct bx_future *future, void *value)
{
    int rc = bx_future_error(future);

    if (rc < 0 && !sim_is_allowed(rc))
        sim_fail("a call of a callback fails: %s", bx_future_error_text(future));
    if (rc == 0)
        sim_expect(bx_future_value(future), (int64_t)(intptr_t)value);
    sim_count(UNDER_WAY, -1);
    sim_count(CALLBACKS, -1);
}

/* A call with a future, which is waited for, polled for, or has a callback. */
static void call_async(struct bx_job *job, int to, const char *function, const struct bx_msg *args, int64_t value)
{
    struct bx_future *future = NULL;
    uint32_t way = sim_choose(3);
    uint64_t life = sim_life(to);

    sim_must_reach(job, "bx_rpc_async", bx_rpc_async(job, sim_names[to], function, args, NULL, &future), to, life);
    if (future == NULL)
        return;
    if (way == 0) {
        sim_count(CALLBACKS, 1);
        sim_count(UNDER_WAY, 1);
        SIM_AGAIN(job, "bx_future_on_done", bx_future_on_done(future, called_back, (void *)(intptr_t)value));
    } else {
        for (int polls = 0; way == 2 && polls < 20 && !bx_future_is_done(future); polls++)
            sim_yield();
        sim_must_reach(job, "bx_future_wait", bx_future_wait(future, BX_FOREVER), to, life);
        if (bx_future_error(future) == 0)
            sim_expect(bx_future_value(future), value);
    }
    bx_future_release(future);
}

void sim_call(struct bx_job *job)
{
    static const char *const functions[] = { "inline", "inline", "blocking", "locked", "forward", "echo", "gather",
                                            "slow" };
    int to = sim_another(job);
    const char *function = functions[sim_choose(sizeof functions / sizeof *functions)];
    struct bx_msg *args = sim_msg(), *reply = NULL;
    bool waits = function[0] != 'e' && sim_choose(2) == 0;
    uint64_t life = sim_life(to);
    int64_t value;

    if (strcmp(bx_worker_name(job, to), sim_names[to]) != 0)
        sim_fail("rank %d is called '%s'", to, bx_worker_name(job, to));
    sim_count(SERIAL, 1);               /* no two calls have the same value */
    value = 2 * (int64_t)sim_truth(SERIAL) + waits;
    bx_msg_put_i64(args, value);
    sim_count(SENT_TO_0 + to, strchr("ibgls", function[0]) != NULL);
    sim_count(UNDER_WAY, 1);
    if (!waits && (function[0] == 'e' || sim_choose(2) == 0)) {
        sim_must_reach(job, "bx_rpc_oneway", bx_rpc_oneway(job, sim_names[to], function, args, NULL), to, life);
    } else if (!waits) {
        call_async(job, to, function, args, value);
    } else {
        sim_must_reach(job, "bx_rpc_sync", bx_rpc_sync(job, sim_names[to], function, args, NULL, &reply), to, life);
        sim_count(OWED, -1);
        if (reply != NULL)
            sim_expect(reply, value);
        bx_msg_destroy(reply);
    }
    sim_count(UNDER_WAY, -1);
    bx_msg_destroy(args);
}

/* As many as a ring has room for. */
void sim_flood(struct bx_job *job)
{
    static const uint16_t sizes[] = { 14000, 14000, 14000, 14000, 14000, 14000, 14000, 14000, 14000, 3500, 600, 8, 8 };
    static const unsigned char bytes[14000];
    int to = sim_another(job);

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct bx_msg *args = sim_msg();

        bx_msg_put_i64(args, 0);
        bx_msg_put_bytes(args, bytes, sizes[i]);
        sim_count(SENT_TO_0 + to, 1);
        sim_must(job, "bx_rpc_oneway", bx_rpc_oneway(job, sim_names[to], "inline", args, NULL));
        bx_msg_destroy(args);
    }
}

void *sim_call_some(void *argument)
{
    struct bx_job *job = argument;
    uint32_t calls = 1 + sim_choose(3);

    for (uint32_t i = 0; i < calls; i++)
        sim_call(job);
    return NULL;
}

/* Calls until the job does not take calls any more: what it took runs. */
static void *call_to_the_end(void *job)
{
    int to = sim_another(job), rc, calls = 0;

    sim_count(FLOODED, 1);
    while ((rc = bx_rpc_oneway(job, sim_names[to], "inline", NULL, NULL)) == 0) {
        sim_count(SENT_TO_0 + to, 1);
        if (calls++ < 64 && sim_stopped_ns() == 0)
            sim_yield();
        else            /* or the two that run would be all that runs while one is stopped, or held until nobody can */
            nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
    }
    if (rc != BX_E_SHUTDOWN)
        sim_must(job, "bx_rpc_oneway", rc);
    return NULL;
}

void sim_room_oneway(int worker)
{
    struct bx_job *job = sim_job_begin(worker, 2, NULL);
    uint32_t calls = worker == 0 ? 1 + sim_choose(4) : 0;
    int other = sim_choose(3) == 0 ? sim_spawn(worker == 0 ? "caller0" : "caller1", call_to_the_end, job) : -1;

    for (uint32_t i = 0; i < calls; i++) {
        const char *function = sim_choose(3) == 0 ? "echo" : "inline";

        sim_count(SENT_TO_0 + 1, function[0] == 'i');
        sim_must(job, "bx_rpc_oneway", bx_rpc_oneway(job, "worker1", function, NULL, NULL));
    }
    if (worker == 1 && sim_choose(2) == 0)
        sim_must(job, "bx_job_serve", bx_job_serve(job));
    sim_job_end(job, other);
}

/* ---- full rings ------------------------------------------------------------------------------------- */

static unsigned char letter_of(int64_t number)
{
    return (unsigned char)(number * 11 + 3);
}

/* Number, and so many bytes of its letter. Requests of one thread arrive in their order. */
static int ordered(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int from = bx_request_caller(request);
    int64_t number = bx_read_i64(args), bytes = bx_read_i64(args), missing;
    const unsigned char *data = bx_read_bytes(args, (size_t)bytes);

    (void)context;
    missing = number - (int64_t)sim_truth(ARRIVED_OF_0 + from);
    /* A worker that leaves alone may handle a call behind one with a lease, which its caller does not send any more. */
    if (missing < 0 || (missing > 0 && !sim_one_left() && sim_refusal() == 0))
        sim_fail("call %lld of rank %d arrives, expected was %lld", (long long)number, from,
                 (long long)(number - missing));
    sim_count(ARRIVED_OF_0 + from, missing + 1);
    for (int64_t i = 0; i < bytes; i += 500)
        if (data[i] != letter_of(number))
            sim_fail("call %lld of rank %d has wrong bytes", (long long)number, from);
    bx_msg_put_i64(reply, 2 * number);
    return bx_msg_put_bytes(reply, data, (size_t)bytes);
}

/* A frame may have 16 KiB, a ring 128: what is larger than a frame goes through the arena, on a lease. */
static struct bx_msg *large(int64_t number)
{
    static const uint32_t sizes[] = { 0, 6000, 14000, 14000, 40000 };
    uint32_t bytes = sizes[sim_choose(5)];
    struct bx_msg *args = sim_msg();
    unsigned char *data = sim_memory(bytes + 1);

    memset(data, letter_of(number), bytes);
    bx_msg_put_i64(args, number);
    bx_msg_put_i64(args, bytes);
    bx_msg_put_bytes(args, data, bytes);
    free(data);
    return args;
}

/* A letter, and bytes of it: in a frame or through the arena, whose places are used again and again. */
static struct bx_msg *letters(int64_t letter)
{
    static const uint32_t sizes[] = { 300, 6000, 17000, 17000, 20000 };
    uint32_t bytes = sizes[sim_choose(5)];
    struct bx_msg *msg = sim_msg();
    unsigned char *data = sim_memory(bytes);

    memset(data, (int)letter, bytes);
    bx_msg_put_i64(msg, letter);
    bx_msg_put_i64(msg, bytes);
    bx_msg_put_bytes(msg, data, bytes);
    free(data);
    return msg;
}

static int64_t read_letters(struct bx_reader *reader)
{
    int64_t letter = bx_read_i64(reader), bytes = bx_read_i64(reader);
    const unsigned char *data = bx_read_bytes(reader, (size_t)bytes);

    for (int64_t i = 0; i < bytes; i += 250)
        if (data[i] != (unsigned char)letter)
            sim_fail("byte %lld of %lld of a message is %d, not %d", (long long)i, (long long)bytes, data[i],
                     (int)letter);
    return letter;
}

/* Answers with the next letter. */
static int mirror(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_msg *answer = letters(read_letters(args) % 200 + 1);
    struct bx_reader reader = bx_msg_reader(answer);
    int64_t letter = bx_read_i64(&reader), bytes = bx_read_i64(&reader);
    int rc = bx_msg_error(answer);

    (void)request, (void)context;
    bx_msg_put_i64(reply, letter);
    bx_msg_put_i64(reply, bytes);
    if (rc == 0)
        rc = bx_msg_put_bytes(reply, bx_read_bytes(&reader, (size_t)bytes), (size_t)bytes);
    bx_msg_destroy(answer);
    return rc;
}

/* Some calls, one after the other. */
void sim_mirror(struct bx_job *job)
{
    const char *to = sim_names[sim_another(job)], *function = sim_choose(2) == 0 ? "mirror" : "mirror and block";

    sim_count(UNDER_WAY, 1);
    for (uint32_t calls = 1 + sim_choose(4); calls > 0; calls--) {
        int64_t letter = 1 + (int64_t)sim_choose(200);
        struct bx_msg *args = letters(letter), *reply = NULL;

        sim_must(job, "bx_rpc_sync", bx_rpc_sync(job, to, function, args, NULL, &reply));
        bx_msg_destroy(args);
        if (reply != NULL) {
            struct bx_reader reader = bx_msg_reader(reply);

            if (read_letters(&reader) != letter % 200 + 1)
                sim_fail("an answer has another letter");
        }
        bx_msg_destroy(reply);
    }
    sim_count(UNDER_WAY, -1);
}

#define GROUP_MOST 12                   /* a ring does not have room for the answers */

static int64_t send_group(struct bx_job *job, int64_t number)
{
    struct bx_future *futures[GROUP_MOST] = { NULL };
    struct bx_msg *args[GROUP_MOST];
    size_t count = 1 + sim_choose(GROUP_MOST);

    for (size_t i = 0; i < count; i++)
        args[i] = large(number + (int64_t)i);
    sim_must(job, "bx_rpc_many", bx_rpc_many(job, sim_names[sim_another(job)], "ordered", count,
                                         (const struct bx_msg *const *)args, NULL, futures));
    for (size_t i = 0; i < count; i++) {
        bx_msg_destroy(args[i]);
        if (futures[i] == NULL)
            continue;
        sim_must(job, "bx_future_wait", bx_future_wait(futures[i], BX_FOREVER));
        if (bx_future_error(futures[i]) == 0)
            sim_expect(bx_future_value(futures[i]), number + (int64_t)i);
        bx_future_release(futures[i]);
    }
    return number + (int64_t)count;
}

/* So many frames that rings are full, in one direction or in both. */
void sim_room_full(int worker)
{
    struct bx_job *job = sim_job_begin(worker, 2, NULL);
    int64_t count = worker == 0 || sim_choose(2) == 0 ? 12 + sim_choose(12) : 0, number = 0;

    sim_count(UNDER_WAY, 1);
    while (number < count) {
        struct bx_msg *args;

        if (sim_choose(8) == 0) {
            number = send_group(job, number);
            continue;
        }
        args = large(number++);
        sim_must(job, "bx_rpc_oneway", bx_rpc_oneway(job, sim_names[sim_another(job)], "ordered", args, NULL));
        bx_msg_destroy(args);
    }
    sim_count(UNDER_WAY, -1);
    sim_count(ORDERED_OF_0 + worker, number);
    end(job);
}

/* ---- what must hold at the end ----------------------------------------------------------------------- */

static bool is_decided(void *rank)
{
    return sim_truth(IN_0 + (unsigned)(uintptr_t)rank) > 0 || sim_is_gone((int)(uintptr_t)rank) ||
           sim_truth(LEAVERS) + sim_truth(ALONE) > 0;
}

void sim_await_decision(int rank)
{
    sim_block("one that may come back", is_decided, (void *)(uintptr_t)rank, SIM_FOREVER);
}

/* One ended before it could hear of all deaths. */
static bool one_was_unaware(void)
{
    uint64_t deaths = (uint64_t)sim_deaths(-1), ended = 0;

    for (int rank = 0; rank < WORKERS_MOST; rank++) {
        ended += sim_truth(AWARE_0 + (unsigned)rank);
        if (sim_truth(AWARE_0 + (unsigned)rank) > 0 && sim_truth(AWARE_0 + (unsigned)rank) <= deaths)
            return true;
    }
    return deaths > 0 && ended == 0;
}

/* Nobody is left on a host who could remove the names of its dead. */
static bool host_is_extinct(void)
{
    for (int host = 0; host < WORKERS_MOST; host++) {
        int there = 0, dead = 0;

        for (int rank = 0; rank < WORKERS_MOST; rank++) {
            there += sim_host_of(rank) == host;
            dead += sim_host_of(rank) == host && sim_is_dead(rank);
        }
        if (there > 0 && dead == there)
            return true;
    }
    return false;
}

void sim_room_job_check(void)
{
    int left = sim_names_left();

    /* Nobody removes the names of a worker that dies when all others have left or died, nor of a rank 0 that comes back
     * when all have left, begins another job, and dies in its start. A lock that cannot be asked for counts as
     * held, and one whose file cannot be opened or looked at is not swept: then the next job removes its name. */
    if (left > 0 && !one_was_unaware() && !host_is_extinct() && sim_truth(EXTINCT) == 0 &&
        !(sim_is_dead(0) && sim_truth(BEGINNING) > 0) && !sim_was_refused("F_OFD_GETLK") &&
        !(left == 1 && sim_was_refused("open lstat")))
        sim_fail("%d names are left in /dev/shm or the directory of sockets", left);
    if (sim_truth(OBJECTS) != 0 && !sim_any_is_dead())
        sim_fail("%lld objects are left", (long long)sim_truth(OBJECTS));
    if (sim_truth(CALLBACKS) != 0 && !sim_any_is_dead())
        sim_fail("%lld callbacks did not run", (long long)sim_truth(CALLBACKS));
    for (int rank = 0; rank < WORKERS_MOST; rank++)
        if (sim_truth(ARRIVED_OF_0 + rank) != sim_truth(ORDERED_OF_0 + rank) && !sim_one_left() && sim_refusal() == 0)
            sim_fail("%llu of %llu calls of rank %d arrived", (unsigned long long)sim_truth(ARRIVED_OF_0 + rank),
                     (unsigned long long)sim_truth(ORDERED_OF_0 + rank), rank);
    for (int rank = 0; rank < WORKERS_MOST; rank++)
        if (sim_any_is_dead() || sim_truth(GIVEN_UP) > 0 || sim_one_left() || sim_refusal() != 0
                ? sim_truth(HANDLED_0 + rank) > sim_truth(SENT_TO_0 + rank)
                : sim_truth(HANDLED_0 + rank) != sim_truth(SENT_TO_0 + rank))
            sim_fail("rank %d was called %llu times and has handled %llu", rank,
                     (unsigned long long)sim_truth(SENT_TO_0 + rank), (unsigned long long)sim_truth(HANDLED_0 + rank));
}

void sim_room_job_quiet(uint64_t ns)
{
    if (deadlines_passed() || sim_words_are_lost())     /* what a worker was told in vain, others may wait for */
        return;
    /* A ring that could not be opened is tried again when something happens, or then. */
    if (ns > 900000000 && sim_truth(UNDER_WAY) > 0 && !sim_was_refused("fallocate") &&
        !sim_any_is_dead())
        sim_fail("nobody can run for %.3f s, and something is under way", (double)ns / 1e9);
    if (ns > SIM_NAP_NS && (int64_t)sim_truth(OWED) > 0 && !sim_any_is_dead())
        sim_fail("nobody can run for %.3f s, and an answer that a thread waits for is under way", (double)ns / 1e9);
}
