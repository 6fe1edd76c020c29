/* SPDX-License-Identifier: MIT */
/*
 * Checks that an arena does not grow for ever. Workers exchange tensors of all sizes for a long time, with a low load.
 * At the end of each round they release everything and count.
 *
 *     prog_soak SECONDS [WORKERS [ROUND_SECONDS]]         3600 seconds, 4 workers, rounds of 60 s
 *
 * In a round each worker keeps up to 48 tensors of its own, of 64 bytes to 512 KB (as many of each power of two),
 * sends one to four of them in a call each 4 ms, and keeps up to 48 tensors that it got from others, each for a
 * random time. So blocks, leases and size classes are freed in random order. A tensor's words follow from its first
 * one; each worker checks all of them when it gets the tensor, and again before it releases it.
 *
 * At the end of a round all workers stop, release what they hold and wait until every lease is returned. Then no block
 * may be in use: a block in use has leaked. The arena's committed bytes may not exceed the bound that arena.c promises:
 * the high-water mark of the bytes in use at a time, a quarter more, and 16 MiB. Each worker prints a line (CSV, sizes
 * in KiB): the most bytes in use in the round, the high-water mark, the committed bytes, private memory. The last round
 * trims, and checks that the arena is empty.
 *
 * Run by soak.sh, not by the tests. Exit status 0, or 1 if something leaked or a word was wrong.
 */
#include "rpc/rpc.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KEPT 48
#define SENT_MAX 4
#define LOG2_LEAST 6                    /* 64 bytes */
#define LOG2_RANGE 13                   /* up to twice 2^18: 512 KB */
#define STEP UINT64_C(0x9e3779b97f4a7c15)        /* between two words of a tensor */
#define PAUSE_NS 4000000
#define LEASES_TIMEOUT_NS (UINT64_C(60) * 1000000000)
#define SLACK_BYTES (UINT64_C(16) << 20)
#define BLOCK_BYTES_MAX (UINT64_C(1) << 20)

struct plan {                           /* shared by the workers */
    pthread_barrier_t barrier;
    uint64_t begin_ns;
    int seconds, world_size, round_seconds;
};

struct keeper {                         /* tensors that are kept; lock: only `got` needs it */
    pthread_mutex_t lock;
    struct bx_tensor *slot[KEPT];
    uint64_t first[KEPT];               /* its first word */
    uint64_t random;
};

struct worker {
    struct bx_job *job;
    struct plan *plan;
    struct keeper own;                  /* own tensors, used by the main thread */
    struct keeper got;                  /* borrowed tensors, used by the handler and the main thread */
    uint64_t calls;
    uint64_t used_most;                 /* in this round */
    uint64_t arena_most;                /* committed bytes, in all rounds */
};

static uint64_t draw(uint64_t *state)
{
    *state += STEP;
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t draw_bytes(uint64_t *random)
{
    uint64_t least = UINT64_C(1) << (LOG2_LEAST + draw(random) % LOG2_RANGE);

    return (int64_t)(least + draw(random) % least);
}

static uint64_t first_word(const struct bx_tensor *tensor)
{
    return *(const uint64_t *)bx_tensor_data(tensor);
}

static void check_words(const struct bx_tensor *tensor, uint64_t first)
{
    const uint64_t *word = bx_tensor_data(tensor);

    for (size_t i = 0; i < bx_tensor_bytes(tensor) / sizeof *word; i++) {
        if (word[i] != first + i * STEP) {
            fprintf(stderr, "word %zu of a tensor of %zu bytes is wrong\n", i, bx_tensor_bytes(tensor));
            _exit(1);
        }
    }
}

/* Puts a tensor, with its reference (NULL: none), into a slot, and releases the one that was there. */
static void put(struct keeper *keeper, uint64_t slot, struct bx_tensor *tensor)
{
    pthread_mutex_lock(&keeper->lock);
    struct bx_tensor *old = keeper->slot[slot];
    uint64_t first = keeper->first[slot];
    keeper->slot[slot] = tensor;
    keeper->first[slot] = tensor != NULL ? first_word(tensor) : 0;
    pthread_mutex_unlock(&keeper->lock);
    if (old != NULL)
        check_words(old, first);
    bx_tensor_release(old);
}

static uint64_t draw_of(struct keeper *keeper)
{
    pthread_mutex_lock(&keeper->lock);
    uint64_t drawn = draw(&keeper->random);
    pthread_mutex_unlock(&keeper->lock);
    return drawn;
}

static void let_go(struct keeper *keeper)
{
    for (uint64_t i = 0; i < KEPT; i++)
        put(keeper, i, NULL);
}

/* Keeps each tensor of the message with probability 1/2. A kept tensor keeps the whole lease. */
static void keep_some(struct keeper *keeper, struct bx_reader *reader)
{
    while (bx_reader_tensors_left(reader) > 0) {
        struct bx_tensor *tensor = bx_read_tensor(reader);

        check_words(tensor, first_word(tensor));
        if (draw_of(keeper) % 2 == 0)
            put(keeper, draw_of(keeper) % KEPT, bx_tensor_acquire(tensor));
    }
}

static int make_tensor(struct bx_job *job, uint64_t *random, struct bx_tensor **tensor)
{
    int rc = bx_tensor_create(job, BX_U8, 1, (int64_t[]){ draw_bytes(random) }, tensor);

    if (rc < 0)
        return rc;
    uint64_t *word = bx_tensor_data_mut(*tensor), first = draw(random);
    for (size_t i = 0; i < bx_tensor_bytes(*tensor) / sizeof *word; i++)
        word[i] = first + i * STEP;
    return 0;
}

/* Keeps some of the tensors, and answers a new one. */
static int swap(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct worker *worker = context;
    struct bx_tensor *tensor = NULL;
    uint64_t seed;

    (void)request;
    keep_some(&worker->got, args);
    seed = draw_of(&worker->got);
    int rc = make_tensor(worker->job, &seed, &tensor);
    if (rc == 0)
        rc = bx_msg_put_tensor(reply, tensor);
    bx_tensor_release(tensor);
    return rc;
}

static int call_once(struct worker *worker)
{
    struct keeper *own = &worker->own;
    int to = (int)(draw(&own->random) % (uint64_t)worker->plan->world_size);
    uint64_t count = 1 + draw(&own->random) % SENT_MAX;
    struct bx_msg *args = bx_msg_create(0);
    struct bx_msg *reply = NULL;
    struct bx_tensor *tensor = NULL;
    int rc = make_tensor(worker->job, &own->random, &tensor);

    if (rc == 0)
        put(own, draw(&own->random) % KEPT, tensor);
    for (uint64_t i = 0; i < count && rc == 0; i++) {
        tensor = own->slot[draw(&own->random) % KEPT];
        if (tensor != NULL)
            rc = bx_msg_put_tensor(args, tensor);
    }
    if (rc == 0)
        rc = bx_rpc_sync(worker->job, bx_worker_name(worker->job, to), "swap", args, NULL, &reply);
    bx_msg_destroy(args);
    if (rc < 0)
        return rc;
    struct bx_reader reader = bx_msg_reader(reply);
    keep_some(&worker->got, &reader);
    bx_msg_destroy(reply);
    worker->calls++;
    return 0;
}

static uint64_t private_kib(void)
{
    char line[128];
    uint64_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");

    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1)
            break;
    if (status != NULL)
        fclose(status);
    return kib;
}

/* Runs when all workers have released everything. */
static int check_round(struct worker *worker, int round)
{
    struct bx_arena_info info = { 0 };
    int rc = bx_loans_wait(worker->job, -1, 0, LEASES_TIMEOUT_NS);

    if (rc < 0 || (rc = bx_job_arena(worker->job, &info)) < 0) {
        fprintf(stderr, "rank %d: %s\n", bx_job_rank(worker->job), bx_error_text());
        return rc;
    }
    printf("round,%d,%" PRIu64 ",%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
           "\n", round, (bxi_now_ns() - worker->plan->begin_ns) / 1000000000, bx_job_rank(worker->job), worker->calls,
           worker->used_most >> 10, info.high_water_bytes >> 10, info.committed_bytes >> 10,
           worker->arena_most >> 10, private_kib());
    worker->used_most = 0;
    if (info.used_bytes != 0) {
        fprintf(stderr, "rank %d: %" PRIu64 " bytes leaked\n", bx_job_rank(worker->job), info.used_bytes);
        return -EBUSY;
    }
    if (worker->arena_most > info.high_water_bytes + info.high_water_bytes / 4 + SLACK_BYTES + BLOCK_BYTES_MAX) {
        fprintf(stderr, "rank %d: the arena had %" PRIu64 " bytes where %" PRIu64 " were ever used\n",
                bx_job_rank(worker->job), worker->arena_most, info.high_water_bytes);
        return -E2BIG;
    }
    return 0;
}

static int run_round(struct worker *worker, int round)
{
    const struct timespec pause = { .tv_nsec = PAUSE_NS };
    uint64_t end_s = (uint64_t)(round + 1) * (uint64_t)worker->plan->round_seconds;
    uint64_t end_ns = worker->plan->begin_ns + end_s * 1000000000;
    struct bx_arena_info info = { 0 };
    int rc = 0;

    while (rc == 0 && bxi_now_ns() < end_ns) {
        rc = call_once(worker);
        if (rc == 0)
            rc = bx_job_arena(worker->job, &info);
        if (info.used_bytes > worker->used_most)
            worker->used_most = info.used_bytes;
        if (info.committed_bytes > worker->arena_most)
            worker->arena_most = info.committed_bytes;
        nanosleep(&pause, NULL);
    }
    if (rc < 0) {
        fprintf(stderr, "rank %d: %s\n", bx_job_rank(worker->job), bx_error_text());
        return rc;
    }
    pthread_barrier_wait(&worker->plan->barrier);           /* no worker calls any more */
    let_go(&worker->own);
    let_go(&worker->got);
    pthread_barrier_wait(&worker->plan->barrier);           /* no worker holds anything */
    rc = check_round(worker, round);
    pthread_barrier_wait(&worker->plan->barrier);
    return rc;
}

static int end(struct worker *worker)
{
    struct bx_arena_info info = { 0 };

    int rc = bx_arena_trim(worker->job);
    if (rc == 0)
        rc = bx_job_arena(worker->job, &info);
    if (rc == 0 && info.committed_bytes != 0) {
        fprintf(stderr, "rank %d: %" PRIu64 " bytes are committed after a trim\n", bx_job_rank(worker->job),
                info.committed_bytes);
        rc = -EBUSY;
    }
    int left = bx_job_shutdown(worker->job, 0);
    return rc < 0 ? rc : left;
}

static int work(const struct bx_options *options, void *context)
{
    struct plan *plan = context;
    struct worker worker = { .plan = plan };

    pthread_mutex_init(&worker.own.lock, NULL);
    pthread_mutex_init(&worker.got.lock, NULL);
    worker.own.random = (uint64_t)options->rank << 8 | 1;
    worker.got.random = (uint64_t)options->rank << 8 | 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int rc = bx_job_create(options, &worker.job);
    if (rc == 0)
        rc = bx_register(worker.job, "swap", BX_INLINE, swap, &worker);
    if (rc == 0)
        rc = bx_job_start(worker.job);
    for (int round = 0; rc == 0 && round * plan->round_seconds < plan->seconds; round++)
        rc = run_round(&worker, round);
    if (rc == 0)
        rc = end(&worker);
    bx_job_destroy(worker.job);
    return rc < 0 ? 1 : 0;
}

static int number(int argc, char **argv, int index, int fallback)
{
    return argc > index && atoi(argv[index]) > 0 ? atoi(argv[index]) : fallback;
}

int main(int argc, char **argv)
{
    struct plan *plan = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;

    if (plan == MAP_FAILED)
        return 1;
    plan->seconds = number(argc, argv, 1, 3600);
    plan->world_size = number(argc, argv, 2, 4);
    plan->round_seconds = number(argc, argv, 3, 60);
    plan->begin_ns = bxi_now_ns();
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&plan->barrier, &shared, (unsigned)plan->world_size);
    printf("round,number,seconds,rank,calls,used_most,high_water,committed,committed_most,private\n");
    fflush(stdout);
    int rc = bx_spawn(&(struct bx_spawn_options){ .world_size = plan->world_size }, work, plan, NULL);
    if (rc < 0)
        fprintf(stderr, "%s\n", bx_error_text());
    return rc < 0 ? 1 : 0;
}
