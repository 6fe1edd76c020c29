/* SPDX-License-Identifier: MIT */
/*
 * References when memory is out. In one worker the n-th allocation of an operation fails, for every n until none does.
 * The operation works, or its code is -ENOMEM, or a call finds no object where that could not be made. Then no object
 * is left and none was destroyed early, no worker waits for a frame of the protocol, and the operation works again.
 *
 * worker0 runs the operations, worker1 owns the objects, worker2 is the third. memory.h lets the allocations fail.
 */
#include "rref_fixture.h"
#include "tests/harness/memory.h"

#include "rpc/rpc.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

TestSuite(rref_memory, .timeout = 120);

/* Values; the first two + rank. */
enum { FAILS_IN = 8, COMPLAINTS = 24, VICTIM, OPERATION, REFUSED, NTH };

typedef int (*operation_fn)(struct bx_job *job);

/* ---- Functions: their own needs never fail ------------------------------------------------------------------ */

static void destroy_seven(void *object)
{
    HARNESS_EQ(*(int *)object, 7);
    *(int *)object = 0;
    free(object);
    harness_add(DESTROYED, 1);
}

static const struct bx_type seven = { .name = "seven", .destroy = destroy_seven };

static int *new_seven(void)
{
    int *object = memory_alloc(sizeof *object);

    *object = 7;
    harness_add(MADE, 1);
    return object;
}

HARNESS_HANDLER(make_seven)
{
    int *object = new_seven();
    int rc = bx_msg_put_object(bx_request_job(request), reply, &seven, object);

    if (rc < 0)
        destroy_seven(object);
    return rc;
}

HARNESS_HANDLER(read_seven)
{
    return bx_msg_put_i64(reply, *(const int *)bx_request_object(request));
}

HARNESS_HANDLER(hold)
{
    struct bx_rref *rref = bx_read_rref(args);

    HARNESS_CHECK(rref != NULL);
    bx_rref_release(kept_rref);
    kept_rref = bx_rref_acquire(rref);
    return 0;
}

HARNESS_HANDLER(held)
{
    return kept_rref != NULL ? bx_msg_put_rref(reply, kept_rref) : 0;
}

static int read_through(struct bx_rref *rref)
{
    struct bx_msg *reply = NULL;
    int rc = bx_rref_sync(rref, "read", NULL, NULL, &reply);

    if (rc == 0)
        HARNESS_EQ(number_in(reply), 7);
    bx_msg_destroy(reply);
    return rc;
}

HARNESS_HANDLER(use_it)
{
    return read_through(bx_read_rref(args));
}

HARNESS_HANDLER(is_settled)
{
    const struct bx_job *job = bx_request_job(request);

    return bx_msg_put_i64(reply, job->rrefs->pending == 0 && job->rrefs->count == 0);
}

static void note_complaint(int level, const char *text, void *context)
{
    (void)level, (void)context;
    if (strstr(text, "died") != NULL)
        return;
    dprintf(STDERR_FILENO, "rref_memory: the log says: %s\n", text);
    harness_add(COMPLAINTS, 1);
}

static int setup_memory(struct bx_job *job)
{
    memory_fails_value = FAILS_IN + bx_job_rank(job);
    bx_set_log(note_complaint, NULL);
    HARNESS_REGISTER(job, HARNESS_INLINE("make", make_seven), HARNESS_BLOCKING("make_blocking", make_seven),
                     HARNESS_INLINE("hold", hold), HARNESS_INLINE("held", held), HARNESS_INLINE("drop", drop_kept),
                     HARNESS_BLOCKING("use", use_it), HARNESS_INLINE("is_settled", is_settled));
    HARNESS_EQ(bx_register_method(job, &seven, "read", BX_INLINE, read_seven, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &seven, "twin", BX_BLOCKING, make_seven, NULL), 0);
    return 0;
}

/* ---- Operations: 0 or the first error; what they hold they release ------------------------------------------- */

static int send_rref(struct bx_job *job, const char *to, const char *function, struct bx_rref *rref)
{
    struct bx_msg *msg = bx_msg_create(0);
    int rc = msg != NULL ? bx_msg_put_rref(msg, rref) : -ENOMEM;

    if (rc == 0)
        rc = bx_rpc_sync(job, to, function, msg, NULL, NULL);
    bx_msg_destroy(msg);
    return rc;
}

static int create_and_send(struct bx_job *job)
{
    int *object = new_seven();
    struct bx_rref *rref = NULL;
    int rc = bx_rref_create(job, &seven, object, &rref);

    if (rc < 0) {
        destroy_seven(object);
        return rc;
    }
    rc = send_rref(job, "worker1", "hold", rref);
    if (rc == 0)
        rc = send_rref(job, "worker2", "use", rref);
    bx_rref_release(rref);
    return rc;
}

static int make_and_use(struct bx_job *job, const char *owner, const char *function)
{
    struct bx_rref *rref = NULL;
    int rc = bx_remote(job, owner, function, NULL, NULL, &rref);

    if (rc < 0)
        return rc;
    rc = read_through(rref);
    if (rc == 0)
        rc = read_through(rref);
    bx_rref_release(rref);
    return rc;
}

static int remote_and_use(struct bx_job *job)
{
    return make_and_use(job, "worker1", "make");
}

static int remote_slow_and_use(struct bx_job *job)
{
    return make_and_use(job, "worker1", "make_blocking");
}

static int remote_here_and_use(struct bx_job *job)
{
    return make_and_use(job, "worker0", "make_blocking");
}

static int make_and_send(struct bx_job *job, const char *owner, const char *to)
{
    struct bx_rref *rref = NULL;
    int rc = bx_remote(job, owner, "make", NULL, NULL, &rref);

    if (rc < 0)
        return rc;
    rc = send_rref(job, to, "use", rref);
    bx_rref_release(rref);
    return rc;
}

static int remote_here_and_send_here(struct bx_job *job)
{
    return make_and_send(job, "worker0", "worker0");
}

static int pass_at_once(struct bx_job *job)
{
    return make_and_send(job, "worker1", "worker2");
}

/* Worker 2 keeps an object of worker 1, and uses it if it is told to. */
static int let_hold(struct bx_job *job, bool uses)
{
    struct bx_rref *rref = NULL;
    int rc = bx_remote(job, "worker1", "make", NULL, NULL, &rref);

    if (rc < 0)
        return rc;
    rc = bx_rref_wait(rref, BX_FOREVER);
    if (rc == 0)
        rc = send_rref(job, "worker2", "hold", rref);
    if (rc == 0 && uses)
        rc = send_rref(job, "worker2", "use", rref);
    bx_rref_release(rref);
    return rc;
}

static int pass_and_hold(struct bx_job *job)
{
    return let_hold(job, true);
}

/* A reply brings an object of the worker that replies, or of a third. */
static int get_in_a_reply(struct bx_job *job, const char *from, const char *function)
{
    struct bx_msg *reply = NULL;
    struct bx_rref *rref = NULL;
    struct bx_reader reader;
    int rc = bx_rpc_sync(job, from, function, NULL, NULL, &reply);

    if (rc < 0)
        return rc;
    reader = bx_msg_reader(reply);
    rref = bx_rref_acquire(bx_read_rref(&reader));
    bx_msg_destroy(reply);
    rc = read_through(rref);
    bx_rref_release(rref);
    return rc;
}

static int get_from_the_owner(struct bx_job *job)
{
    return get_in_a_reply(job, "worker1", "make");
}

static int get_from_a_third(struct bx_job *job)
{
    int rc = let_hold(job, false);

    return rc < 0 ? rc : get_in_a_reply(job, "worker2", "held");
}

static int remote_by_a_method(struct bx_job *job)
{
    struct bx_rref *rref = NULL, *twin = NULL;
    int rc = bx_remote(job, "worker1", "make_blocking", NULL, NULL, &rref);

    if (rc < 0)
        return rc;
    rc = bx_rref_remote(rref, "twin", NULL, NULL, &twin);
    bx_rref_release(rref);
    if (rc < 0)
        return rc;
    rc = read_through(twin);
    bx_rref_release(twin);
    return rc;
}

/* By the arena, on a lease. */
static int send_with_a_tensor(struct bx_job *job)
{
    struct bx_rref *rref = NULL;
    struct bx_tensor *tensor = NULL;
    struct bx_msg *msg = NULL;
    int rc = bx_remote(job, "worker1", "make", NULL, NULL, &rref);

    if (rc < 0)
        return rc;
    rc = bx_rref_wait(rref, BX_FOREVER);
    if (rc == 0)
        rc = bx_tensor_create(job, BX_F32, 1, &(int64_t){ 1000 }, &tensor);
    if (rc == 0)
        rc = (msg = bx_msg_create(0)) != NULL ? bx_msg_put_tensor(msg, tensor) : -ENOMEM;
    if (rc == 0)
        rc = bx_msg_put_rref(msg, rref);
    if (rc == 0)
        rc = bx_rpc_sync(job, "worker2", "use", msg, NULL, NULL);
    bx_msg_destroy(msg);
    bx_tensor_release(tensor);
    bx_rref_release(rref);
    return rc;
}

static const struct {
    const char *name;
    operation_fn run;
} operations[] = {
    { "create, send", create_and_send },
    { "remote, call", remote_and_use },
    { "remote, call before it is made", remote_slow_and_use },
    { "remote to oneself, call", remote_here_and_use },
    { "remote to oneself, send to oneself", remote_here_and_send_here },
    { "remote, pass on at once", pass_at_once },
    { "remote, pass on", pass_and_hold },
    { "a reply of the owner", get_from_the_owner },
    { "a reply of a third", get_from_a_third },
    { "remote by a method", remote_by_a_method },
    { "send with a tensor", send_with_a_tensor },
};
#define OPERATIONS (sizeof operations / sizeof *operations)

/* ---- Every allocation fails once ------------------------------------------------------------------------------ */

static void all_is_settled(struct bx_job *job)
{
    static const char *const workers[] = { "worker0", "worker1", "worker2" };

    for (int i = 0; i < 3; i++)
        HARNESS_EQ(bx_rpc_sync(job, workers[i], "drop", NULL, NULL, NULL), 0);
    await_alive(0);
    for (int i = 0; i < 3; i++)
        HARNESS_WAIT_WHILE(harness_call(job, workers[i], "is_settled", NULL) == 0);
    HARNESS_EQ(harness_load(COMPLAINTS), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

/* What bx_job_start allocates, in threads that it starts too, is not refused. */
static void all_have_started(struct bx_job *job)
{
    for (int rank = 1; rank < bx_job_world_size(job); rank++) {
        const struct bxi_control *control = job->rpc->peers[rank]->view.control;

        HARNESS_WAIT_WHILE(bxi_load_acquire(&control->header.state) != BXI_RUNNING);
    }
}

/* True if the n-th allocation was made, and failed. */
static bool fails_at(struct bx_job *job, uint64_t n)
{
    uint64_t value = FAILS_IN + harness_load(VICTIM), left;
    int rc;

    harness_store((int)value, n);
    rc = operations[harness_load(OPERATION)].run(job);
    left = harness_load((int)value);
    harness_store((int)value, 0);
    if (rc != 0 && rc != -ENOMEM && rc != BX_E_NO_OBJECT)
        harness_failed(__FILE__, __LINE__, "allocation %d of worker %d: %s: %s", (int)n, (int)harness_load(VICTIM),
                       operations[harness_load(OPERATION)].name, bx_error_name(rc));
    harness_add(REFUSED, rc != 0);
    all_is_settled(job);
    return left == 0 || left > n;
}

static void fails_at_each(struct bx_job *job)
{
    uint64_t n = 1;

    all_have_started(job);
    all_is_settled(job);
    while (fails_at(job, n) && n < 200)
        n++;
    harness_store(NTH, n);
    HARNESS_CHECK(n < 200);
    HARNESS_CHECK(!fails_at(job, 10000));
}

/* How many allocations failed. */
static uint64_t run_operation(size_t index)
{
    uint64_t made = 0;

    for (uint64_t victim = 0; victim < 3; victim++) {
        harness_reset();
        harness_store(VICTIM, victim);
        harness_store(OPERATION, index);
        fprintf(stderr, "rref_memory: %s, worker%d lacks memory\n", operations[index].name, (int)victim);
        harness_run(&(struct harness_world){ .size = 3, .setup = setup_memory,
                                             .options = { .call_timeout_ns = 10000 * HARNESS_MS },
                                             .body = { fails_at_each } });
        cr_expect_eq(harness_load(COMPLAINTS), 0);
        cr_expect(victim != 0 || harness_load(REFUSED) > 0, "no allocation failed");
        made += harness_load(NTH) - 1;
    }
    return made;
}

Test(rref_memory, of_any_operation_may_be_out_once)
{
    for (size_t i = 0; i < OPERATIONS; i++)
        cr_expect_geq(run_operation(i), 10);
}

/* ---- Full rings ----------------------------------------------------------------------------------------------- */

#define OBJECTS 8

/* worker1 is stopped, and the ring to it is full: what is sent to it is queued. */
static void fill_the_ring_of_1(struct bx_job *job)
{
    harness_stop_worker(1);
    while (bx_rpc_oneway(job, "worker1", "drop", NULL, &(struct bx_call_options){ .no_wait = true }) == 0)
        ;
}

static void lack_memory_at(const struct bx_job *job, uint64_t n)
{
    harness_store(FAILS_IN + bx_job_rank(job), n);
}

static void await_kept(struct bx_job *job)
{
    bool quiet = false;

    while (!quiet) {
        bxi_lock(&job->run->lock);
        quiet = bxi_rrefs_are_quiet(job);
        bxi_unlock(&job->run->lock);
    }
}

/* A call may succeed though an allocation failed: if the thread has to sleep, its first kind of sleeper needs memory,
 * and there is a second. */
static bool lacked_memory(const struct bx_job *job)
{
    return harness_load(FAILS_IN + bx_job_rank(job)) == 0;
}

static int get_held(struct bx_job *job, struct bx_rref **rref)
{
    struct bx_msg *reply = NULL;
    struct bx_reader reader;
    int rc = bx_rpc_sync(job, "worker2", "held", NULL, NULL, &reply);

    if (rc < 0)
        return rc;
    reader = bx_msg_reader(reply);
    *rref = bx_rref_acquire(bx_read_rref(&reader));
    bx_msg_destroy(reply);
    return 0;
}

HARNESS_TEST(rref_memory, of_the_queue_of_a_full_ring_may_be_out, 120, .size = 3, .setup = setup_memory)
{
    struct bx_rref *rref[OBJECTS], *again = NULL;
    struct bx_future *future = NULL;
    uint64_t n = 0;
    int rc;

    for (int i = 0; i < OBJECTS; i++) {
        HARNESS_EQ(bx_remote(job, "worker1", "make", NULL, NULL, &rref[i]), 0);
        HARNESS_EQ(read_through(rref[i]), 0);
    }
    HARNESS_EQ(send_rref(job, "worker2", "hold", rref[0]), 0);
    await_kept(job);
    fill_the_ring_of_1(job);
    do
        lack_memory_at(job, ++n);
    while (bx_rref_async(rref[1], "read", NULL, NULL, &future) == -ENOMEM);
    HARNESS_CHECK(n > 1);                               /* the call itself is one that the thread has kept */
    for (int i = 0; i < OBJECTS; i++) {
        lack_memory_at(job, 1);
        bx_rref_release(rref[i]);                       /* LEAVE finds no memory */
        HARNESS_CHECK(harness_load(FAILS_IN) != 1);
    }
    n = 0;
    do {
        bx_rref_release(again);
        again = NULL;
        lack_memory_at(job, ++n);
        rc = get_held(job, &again);                     /* the last that fails: ENTER finds none */
    } while (rc == -ENOMEM || (rc == 0 && lacked_memory(job)));
    HARNESS_EQ(rc, 0);
    HARNESS_CHECK(n > 3);
    lack_memory_at(job, 0);
    HARNESS_EQ(harness_load(DESTROYED), 0);
    harness_signal(1, SIGCONT);
    HARNESS_EQ(read_through(again), 0);
    bx_rref_release(again);
    HARNESS_EQ(harness_end_i64(future), 7);
    all_is_settled(job);
}
