/* SPDX-License-Identifier: MIT */
/*
 * References under load: workers that pass them around at random while one of them dies, and threads that share one.
 *
 * Every worker has places for references. Its thread makes objects, calls them, drops them and passes them to other
 * workers, which put what they get into a place and send another one back. Each object knows who made it and where, so
 * each call is judged: it succeeds, unless the owner is the worker that dies, or, while the object is to come, its
 * maker. At the end all drop what they have, and no object of a living worker is left.
 */
#include "rref_fixture.h"

#include "base/base.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

TestSuite(rref_stress, .timeout = 120);

#define WORLD 8
#define PLACES 12
#define NOBODY WORLD

enum { SEED = 20, VICTIM, USED };
enum { MADE_BY = 30, GONE_BY = 40 };
enum { ALL_STOPPED = 8, ALL_DROPPED };                          /* gates */

static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bx_rref *places[PLACES];

/* ---- Objects: where they live is counted by rank ---------------------------------------------------------- */

struct thing {
    uint64_t magic;
    int owner;
};

#define MAGIC UINT64_C(0x7468696e67212121)

static void destroy_thing(void *object)
{
    struct thing *thing = object;

    HARNESS_CHECK(thing->magic == MAGIC);
    thing->magic = 0;
    harness_add(GONE_BY + thing->owner, 1);
    free(thing);
}

static const struct bx_type thing_type = { .name = "thing", .destroy = destroy_thing };

static struct thing *thing_of(int owner)
{
    struct thing *thing = malloc(sizeof *thing);

    *thing = (struct thing){ MAGIC, owner };
    harness_add(MADE_BY + owner, 1);
    return thing;
}

HARNESS_HANDLER(new_thing)
{
    struct bx_job *job = bx_request_job(request);

    return bx_msg_put_object(job, reply, &thing_type, thing_of(bx_job_rank(job)));
}

HARNESS_HANDLER(touch)
{
    const struct thing *thing = bx_request_object(request);

    HARNESS_CHECK(thing->magic == MAGIC && thing->owner == bx_job_rank(bx_request_job(request)));
    return bx_msg_put_i64(reply, thing->owner);
}

/* ---- Places ----------------------------------------------------------------------------------------------- */

static struct bx_rref *pick(uint64_t random)
{
    struct bx_rref *rref;

    pthread_mutex_lock(&places_lock);
    rref = bx_rref_acquire(places[random % PLACES]);
    pthread_mutex_unlock(&places_lock);
    return rref;
}

/* Takes the caller's reference. */
static void put(uint64_t random, struct bx_rref *rref)
{
    struct bx_rref *before;

    pthread_mutex_lock(&places_lock);
    before = places[random % PLACES];
    places[random % PLACES] = rref;
    pthread_mutex_unlock(&places_lock);
    bx_rref_release(before);
}

/* Keeps what came, and sends another one back. */
HARNESS_HANDLER(swap)
{
    uint64_t random = bx_read_u64(args);
    struct bx_rref *out = pick(random / 16);

    while (args->rref_count > 0)
        put(random++, bx_rref_acquire(bx_read_rref(args)));
    if (out != NULL)
        bx_msg_put_rref(reply, out);
    bx_rref_release(out);
    return 0;
}

static int setup_stress(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("new_thing", new_thing), HARNESS_BLOCKING("new_thing_slowly", new_thing));
    HARNESS_EQ(bx_register_method(job, &thing_type, "touch", BX_INLINE, touch, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &thing_type, "touch_slowly", BX_BLOCKING, touch, NULL), 0);
    HARNESS_EQ(bx_register_method(job, &thing_type, "another", BX_INLINE, new_thing, NULL), 0);
    return HARNESS_REGISTER(job, HARNESS_INLINE("swap", swap), HARNESS_BLOCKING("swap_slowly", swap));
}

/* ---- A worker's life -------------------------------------------------------------------------------------- */

/* An error is right if the worker that dies owns the object, or was to make it. */
static void judge(int rc, struct bx_rref *rref, int callee)
{
    int victim = (int)harness_load(VICTIM);

    if (rc == 0)
        return;
    if (rc != BX_E_PEER_DEAD || (victim == NOBODY) ||
        (callee != victim && (rref == NULL || bx_rref_owner(rref) != victim) &&
         strstr(bx_error_text(), "its maker was gone") == NULL))
        harness_failed(__FILE__, __LINE__, "seed %lu: a use of an object of worker %d fails: %s: %s",
                       (unsigned long)harness_load(SEED), rref != NULL ? bx_rref_owner(rref) : callee,
                       bx_error_name(rc), bx_error_text());
}

static void make_one(struct bx_job *job, uint64_t random)
{
    int to = (int)(random / 8 % WORLD);
    struct bx_rref *rref = NULL, *from = random % 4 == 0 ? pick(random / 64) : NULL;
    int rc;

    if (random % 4 == 1) {
        struct thing *thing = thing_of(bx_job_rank(job));

        HARNESS_EQ(bx_rref_create(job, &thing_type, thing, &rref), 0);
    } else if (from != NULL) {
        rc = bx_rref_remote(from, "another", NULL, NULL, &rref);
        judge(rc, from, bx_rref_owner(from));
    } else {
        rc = bx_remote(job, bx_worker_name(job, to), random & 1024 ? "new_thing" : "new_thing_slowly", NULL, NULL,
                       &rref);
        judge(rc, NULL, to);
    }
    bx_rref_release(from);
    put(random / 2048, rref);
}

static void use_one(uint64_t random)
{
    struct bx_rref *rref = pick(random);
    struct bx_msg *reply = NULL;
    int rc;

    if (rref == NULL)
        return;
    rc = bx_rref_sync(rref, random & 64 ? "touch" : "touch_slowly", NULL, NULL, &reply);
    judge(rc, rref, bx_rref_owner(rref));
    if (rc == 0) {
        HARNESS_EQ(number_in(reply), bx_rref_owner(rref));
        harness_add(USED, 1);
    }
    bx_msg_destroy(reply);
    bx_rref_release(rref);
}

static void pass_some(struct bx_job *job, uint64_t random)
{
    int to = (int)(random % WORLD), count = (int)(random / 8 % 4);
    struct bx_msg *args = bx_msg_create(0), *reply = NULL;
    const char *function = random & 128 ? "swap" : "swap_slowly";
    int rc;

    bx_msg_put_u64(args, random / 256);
    for (int i = 0; i < count; i++) {
        struct bx_rref *rref = pick(random / 512 + (uint64_t)i);

        if (rref != NULL)
            bx_msg_put_rref(args, rref);
        bx_rref_release(rref);
    }
    if (random & 64) {
        rc = bx_rpc_oneway(job, bx_worker_name(job, to), function, args, NULL);
    } else {
        rc = bx_rpc_sync(job, bx_worker_name(job, to), function, args, NULL, &reply);
    }
    judge(rc, NULL, to);
    if (reply != NULL && bx_msg_rrefs(reply) > 0) {
        struct bx_reader reader = bx_msg_reader(reply);

        put(random / 32, bx_rref_acquire(bx_read_rref(&reader)));
    }
    bx_msg_destroy(reply);
    bx_msg_destroy(args);
}

static void live(struct bx_job *job, uint64_t *seed, int steps)
{
    for (int i = 0; i < steps; i++) {
        uint64_t random = harness_random(seed);

        switch (random >> 60) {
        case 0: case 1: case 2:
            make_one(job, random);
            break;
        case 3: case 4: case 5: case 6:
            use_one(random);
            break;
        case 7: case 8:
            put(random, NULL);
            break;
        default:
            pass_some(job, random);
        }
    }
}

/* Sleeps; or, of a job with own_loop, makes progress, which nobody else does. */
static void rest(struct bx_job *job)
{
    if (bx_job_fd(job) >= 0)
        bx_progress(job);
    usleep(500);
}

/* Waits until all living workers have come. */
static void meet(struct bx_job *job, int gate)
{
    harness_post(gate);
    while (harness_gate(gate) < (harness_load(VICTIM) == NOBODY ? WORLD : WORLD - 1))
        rest(job);
}

static bool is_over(int victim)
{
    for (int rank = 0; rank < WORLD; rank++)
        if (rank != victim && harness_load(MADE_BY + rank) != harness_load(GONE_BY + rank))
            return false;
    return true;
}

/* Until all objects of the living are gone. Again and again, for a one-way call may still put one into a place. */
static void drop_all(struct bx_job *job, int victim)
{
    uint64_t until_ns = bxi_now_ns() + 20000 * HARNESS_MS;

    while (!is_over(victim)) {
        for (uint64_t i = 0; i < PLACES; i++)
            put(i, NULL);
        rest(job);
        if (bxi_now_ns() < until_ns)
            continue;
        for (int rank = 0; rank < WORLD; rank++)
            fprintf(stderr, "worker %d: made %lu objects, destroyed %lu\n", rank,
                    (unsigned long)harness_load(MADE_BY + rank), (unsigned long)harness_load(GONE_BY + rank));
        harness_failed(__FILE__, __LINE__, "seed %lu: an object is lost", (unsigned long)harness_load(SEED));
    }
}

static void lives(struct bx_job *job)
{
    int rank = bx_job_rank(job), victim = (int)harness_load(VICTIM);
    uint64_t seed = (harness_load(SEED) * WORLD + (uint64_t)rank + 1) * UINT64_C(0x9e3779b97f4a7c15);

    live(job, &seed, 100 + (int)(harness_load(SEED) % 7 * 100));
    if (rank == victim)
        kill(getpid(), SIGKILL);
    live(job, &seed, 600);
    while (victim != NOBODY && bx_worker_is_alive(job, victim))
        rest(job);
    meet(job, ALL_STOPPED);
    drop_all(job, victim);
    meet(job, ALL_DROPPED);
    HARNESS_EQ(harness_counter(job, "rrefs_leaked"), 0);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
}

static void run_stress(uint64_t seed, int victim, struct bx_options options)
{
    const harness_fn all = lives;

    harness_reset();
    harness_store(SEED, seed);
    harness_store(VICTIM, (uint64_t)victim);
    fprintf(stderr, "rref_stress: seed %lu, worker %d dies\n", (unsigned long)seed, victim);
    harness_run(&(struct harness_world){ .size = WORLD, .setup = setup_stress, .options = options,
                                         .dies = victim < WORLD ? 1u << victim : 0,
                                         .body = { all, all, all, all, all, all, all, all } });
    cr_expect_gt(harness_load(USED), 100);
}

/* BX_RREF_SEEDS sets the number of seeds; the first is the clock. BX_RREF_SEED sets the first. */
static void run_seeds(bool dies, struct bx_options options)
{
    const char *more = getenv("BX_RREF_SEEDS"), *given = getenv("BX_RREF_SEED");
    uint64_t count = more != NULL ? strtoull(more, NULL, 10) : 3;
    uint64_t first = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) % 1000000;

    for (uint64_t seed = first; seed < first + count; seed++)
        run_stress(seed, dies ? (int)(seed % WORLD) : NOBODY, options);
}

Test(rref_stress, passed_around_at_random_no_object_is_lost_or_destroyed_early)
{
    run_seeds(false, (struct bx_options){ 0 });
}

Test(rref_stress, passed_around_while_a_worker_dies_no_object_is_lost_or_destroyed_early)
{
    run_seeds(true, (struct bx_options){ 0 });
}

Test(rref_stress, passed_around_while_a_worker_dies_asleep)
{
    run_seeds(true, (struct bx_options){ .no_spin = true });
}

Test(rref_stress, passed_around_while_a_worker_dies_with_own_loops)
{
    run_seeds(true, (struct bx_options){ .own_loop = true });
}
