/* SPDX-License-Identifier: MIT */
/*
 * A job of one worker whose threads share futures: one that a thread sets, two of calls to itself, one that is made of
 * these. Each thread waits for them, asks and looks, adds callbacks, makes others of them, cancels both, and releases
 * its reference, of a call that is open as well.
 *
 * Truth: a future that was set has its value, whoever reads it; a callback runs once, and the context of a chain is
 * freed once; a wait ends with the value, or because somebody cancelled. Whoever releases a future last frees it behind
 * what all others did with it.
 */
#include "room_job.h"

#include "boxcar.h"

#define FUTURES 4
#define THREADS 2
#define VALUE 21

static struct bx_future *futures[FUTURES];  /* main's, and each thread has another reference to each of them */

static void register_shared(struct bx_job *job)
{
    SIM_AGAIN(job, "bx_register", bx_register(job, "shared", BX_INLINE, sim_double, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "pooled", BX_BLOCKING, sim_double, NULL));
}

/* Made again if it was refused. */
static struct bx_msg *message(int64_t value)
{
    struct bx_msg *msg = sim_msg();

    if (bx_msg_put_i64(msg, value) == 0)
        return msg;
    bx_msg_destroy(msg);
    return message(value);
}

/* One call that fails may be told to all who wait. */
static bool excused(int code)
{
    return code == BX_E_CANCELLED || code == -EALREADY || sim_refusal() != 0;
}

/* It is done. */
static void look(struct bx_future *future)
{
    int code = bx_future_error(future);
    const struct bx_msg *value = bx_future_value(future);

    if (code != 0 && !excused(code))
        sim_fail("a future fails with %d: %s", code, bx_future_error_text(future));
    if (code == 0 && value == NULL)
        sim_fail("a future that was set has no value");
    if (code == 0 && future != futures[FUTURES - 1])
        sim_expect(value, VALUE);
}

static void called_back(struct bx_future *future, void *unused)
{
    (void)unused;
    sim_count(CALLBACKS, -1);
    look(future);
}

static int pass_on(struct bx_future *in, struct bx_msg *out, void *unused)
{
    (void)unused;
    look(in);
    return bx_msg_put_i64(out, 2 * VALUE);
}

/* The context of a chain: the future that it ends with. */
static int go_on(struct bx_future *in, struct bx_future **inner, void *context)
{
    look(in);
    *inner = bx_future_acquire(context);
    return 0;
}

static void free_context(void *context)
{
    sim_count(CALLBACKS, -1);
    bx_future_release(context);
}

static struct bx_future *chain(struct bx_future *future, struct bx_future *inner)
{
    struct bx_future *result;

    sim_count(CALLBACKS, 1);
    result = bx_future_chain(future, go_on, bx_future_acquire(inner), free_context);
    if (result == NULL)
        free_context(inner);
    return result;
}

/* It is done: it ended as the part did that it names, or was cancelled before. */
static void look_at_any(struct bx_future *any, struct bx_future *const parts[2])
{
    int index = (int)bx_future_index(any), code = bx_future_error(any);

    if (sim_refusal() == 0 && code != (index < 0 ? BX_E_CANCELLED : bx_future_error(parts[index])))
        sim_fail("any of two ended with %d by part %d", code, index);
}

static void make_another(struct bx_job *job, struct bx_future *future, struct bx_future *other)
{
    static const char *const kinds[] = { "bx_future_then", "bx_future_chain", "bx_future_any", "bx_future_all" };
    struct bx_future *const parts[2] = { future, other };
    struct bx_future *another;
    uint32_t kind = sim_choose(4);

    switch (kind) {
    case 0: another = bx_future_then(future, pass_on, NULL, NULL); break;
    case 1: another = chain(future, other); break;
    case 2: another = bx_future_any(job, parts, 2); break;
    default: another = bx_future_all(job, parts, 2); break;
    }
    if (another == NULL) {
        sim_must(job, kinds[kind], bx_error_code());
        return;
    }
    if (sim_choose(3) == 0)
        bx_future_cancel(another);
    if (sim_choose(2) == 0) {
        if (bx_future_wait(another, BX_FOREVER) == 0 && bx_future_value(another) == NULL)
            sim_fail("what %s made was set without a value", kinds[kind]);
        if (kind == 0 && bx_future_error(another) == 0)
            sim_expect(bx_future_value(another), VALUE);
        if (kind == 2)
            look_at_any(another, parts);
    }
    bx_future_release(another);
}

static void use_one(struct bx_job *job, struct bx_future *future, struct bx_future *other)
{
    int rc = 0;

    switch (sim_choose(8)) {
    case 0: make_another(job, future, other != NULL ? other : future); break;
    case 1: rc = bx_future_cancel(future); break;
    case 2:
        sim_count(CALLBACKS, 1);
        rc = bx_future_on_done(future, called_back, NULL);
        sim_count(CALLBACKS, -(rc < 0));
        break;
    case 3:
    case 4:
        if (bx_future_is_done(future))
            look(future);
        break;
    default:
        rc = bx_future_wait(future, BX_FOREVER);
        if (rc == 0)
            look(future);
        break;
    }
    if (!excused(rc))
        sim_must(job, "what a thread does with a future", rc);
}

static void *use(void *job)
{
    struct bx_future *mine[FUTURES];
    uint32_t steps = 1 + sim_choose(6);

    for (int i = 0; i < FUTURES; i++)
        mine[i] = futures[i];
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t which = sim_choose(FUTURES);

        if (mine[which] == NULL)
            continue;
        use_one(job, mine[which], mine[sim_choose(FUTURES)]);
        if (sim_choose(3) != 0)
            continue;
        bx_future_release(mine[which]);
        mine[which] = NULL;
    }
    for (int i = 0; i < FUTURES; i++)
        bx_future_release(mine[i]);
    return NULL;
}

static void make(struct bx_job *job)
{
    static const char *const functions[] = { "shared", "pooled" };
    struct bx_msg *args = message(VALUE);

    futures[0] = sim_future(job);
    for (int i = 0; i < 2; i++)
        SIM_AGAIN(job, "bx_rpc_async", bx_rpc_async(job, sim_names[0], functions[i], args, NULL, &futures[1 + i]));
    futures[3] = (sim_choose(2) == 0 ? bx_future_any : bx_future_all)(job, futures, 3);
    if (futures[3] == NULL)
        sim_must(job, "a future of others", bx_error_code());
    bx_msg_destroy(args);
    for (int i = 0; i < FUTURES * THREADS; i++)
        if (futures[i % FUTURES] != NULL)
            bx_future_acquire(futures[i % FUTURES]);
}

void sim_room_shared(int worker)
{
    static const char *const names[THREADS] = { "user0", "user1" };
    struct bx_job *job = sim_job_begin(worker, 1, register_shared);
    int fibers[THREADS], released = 0;

    if (job == NULL)
        return;
    make(job);
    for (int i = 0; i < THREADS; i++)
        fibers[i] = sim_spawn(names[i], use, job);
    for (int i = 1; i < FUTURES && sim_choose(2) == 0; i++) {
        bx_future_release(futures[i]);
        released = i;
    }
    bx_future_set(futures[0], message(2 * VALUE));
    bx_future_release(futures[0]);
    for (int i = released + 1; i < FUTURES; i++)
        bx_future_release(futures[i]);
    for (int i = 0; i < THREADS; i++)
        sim_join(fibers[i]);
    sim_count(LEAVERS, 1);
    sim_job_end(job, -1);
    if (sim_truth(CALLBACKS) != 0)
        sim_fail("%d callbacks have not run", (int)sim_truth(CALLBACKS));
}
