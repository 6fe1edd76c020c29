/* SPDX-License-Identifier: MIT */
/*
 * A worker of a job across hosts in which something ends, for tests/e2e/net.sh: workers, hosts, or what lies between.
 * Environment as that of prog_net.
 *
 *     prog_net_end die RANKS MS       the workers of these ranks ("1,3") kill themselves while the others call them.
 *                                     Each other one has the news within MS, and goes on with those that live
 *     prog_net_end fork RANKS MS      the same, and a child of each goes on
 *     prog_net_end hold FILE          rank 1 calls a function of rank 0 that does not answer, until FILE exists
 *     prog_net_end gpu RANKS MS       the same, and the tensors that are under way then lie on GPUs
 *     prog_net_end stop RANK          that worker is stopped for 2 s while the others call it. Nobody counts as dead
 *     prog_net_end last RANK          rank 0 is stopped when RANK answers calls of it, and dies: the answers count
 *     prog_net_end part FILE MS       calls all of other hosts until they are lost, which is within MS from the time in
 *                                     the file; those of this host are not lost
 *
 *     prog_net_end healed FILE MS     the same, and goes on when FILE is gone: what lay between hosts is there again
 *     prog_net_end headless FILE MS   the same, and rank 0 has killed itself before
 *     prog_net_end beheaded FILE MS   the same, and rank 0 is killed meanwhile
 *     prog_net_end leave FILE         two of four workers leave at once, those of the other host when the file is there
 *     prog_net_end first FILE MS      calls those of other hosts when the file is there: some for the first time. They
 *                                     are lost, which it hears within MS
 *
 * When something ended stands in a file in the directory $BX_TEST_DIR. As long as a file "prepares" is there, no worker
 * of `die` kills itself. Output and exit status as those of prog_net, and
 * "news of RANK after MS ms" for each worker that is lost.
 */
#include "prog_net.h"

#include <signal.h>

static char ends[WORLD_MOST];           /* by rank: it is to be lost */
static int deaths[WORLD_MOST];
static struct bx_rref *things[WORLD_MOST];      /* by rank: its object, of those that die */
static int laters;                      /* calls of add_later that have run */
static int64_t stopped_ms;
static bool on_gpu, forks;
static struct bx_device device = { BX_CPU, 0 };     /* of the tensors to other hosts */

/* What calls one worker until it is lost. */
struct caller {
    pthread_t thread;
    int to;
    const char *function;
    struct bx_tensor *tensor;           /* to send; may be NULL */
    uint64_t lost_ns;
    unsigned calls;
};

/* ---- functions -------------------------------------------------------------------------------------------- */

static int give_thing(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    static const struct bx_type type = { .name = "thing" };

    (void)request, (void)args, (void)context;
    return bx_msg_put_object(job, reply, &type, (void *)(uintptr_t)&type);
}

/* When its caller is stopped. */
static int add_later(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int rc;

    nap_ms(800);
    rc = add(request, args, reply, context);
    __atomic_add_fetch(&laters, 1, __ATOMIC_RELAXED);
    return rc;
}

static void someone_died(struct bx_job *of, int who, void *context)
{
    (void)of, (void)context;
    __atomic_add_fetch(&deaths[who], 1, __ATOMIC_RELAXED);
}

/* ---- calls until the end ------------------------------------------------------------------------------------ */

static void lost(struct caller *caller, int rc)
{
    const char *name = bx_worker_name(job, caller->to);

    caller->lost_ns = now_ns();
    EXPECT(rc == BX_E_PEER_DEAD, "%s at %d: %s: %s", caller->function, caller->to, bx_error_name(rc), bx_error_text());
    EXPECT(strstr(bx_error_text(), name) != NULL, "%s is not named: %s", name, bx_error_text());
    EXPECT(!is_remote(caller->to) || strstr(bx_error_text(), host_of[caller->to]) != NULL, "nor its host: %s",
           bx_error_text());
}

static void *call_until_lost(void *argument)
{
    struct caller *caller = argument;
    int64_t sum;
    int rc = 0;

    while (rc == 0) {
        if (caller->tensor != NULL) {
            struct bx_tensor *back = NULL;

            rc = bx_call(job, bx_rank(caller->to), caller->function, "T>T", caller->tensor, &back);
            EXPECT(rc < 0 || bx_tensor_elements(back) == bx_tensor_elements(caller->tensor), "another tensor");
            bx_tensor_release(back);
        } else if (strcmp(caller->function, "hold") == 0) {
            rc = bx_call(job, bx_rank(caller->to), "hold", ">");
        } else {
            rc = bx_call(job, bx_rank(caller->to), "add", "ii>i", 1, 2, &sum);
        }
        caller->calls += rc == 0;
    }
    lost(caller, rc);
    return NULL;
}

/* When the workers began to end, and when all of that was done: CLOCK_REALTIME, the first and the last number of a
 * file. 0: there is none. */
static void times_in(const char *path, uint64_t *first_ns, uint64_t *last_ns)
{
    unsigned long long ns;
    FILE *file = fopen(path, "re");

    *first_ns = *last_ns = 0;
    while (file != NULL && fscanf(file, "%llu", &ns) == 1) {
        *first_ns = *first_ns == 0 ? ns : *first_ns;
        *last_ns = ns;
    }
    if (file != NULL)
        fclose(file);
}

static void path_of_end(int of, char path[512])
{
    snprintf(path, 512, "%s/end.%d", getenv("BX_TEST_DIR"), of);
}

#define LAST 8              /* calls of one that dies then */
#define LEAST_BYTES 64      /* of such a call's answer */
#define CALLERS 3           /* of each worker that is to be lost */

/* Calls those that are to end in three ways until they have. file: when that happens stands in it; NULL: in one each.
 */
static void call_those_that_end(const char *file, uint64_t most_ms)
{
    static const char *const functions[CALLERS] = { "add", "hold", "send_back" };
    static struct caller callers[CALLERS * WORLD_MOST];
    struct bx_tensor *tensor[2] = { NULL };         /* for this host, and for others */
    int count = 0;

    EXPECT(bx_tensor_create(job, BX_F32, 1, (int64_t[]){ 50000 }, &tensor[0]) == 0, "%s", bx_error_text());
    EXPECT(bx_tensor_create_on(job, device, BX_F32, 1, (int64_t[]){ on_gpu ? 1000000 : 50000 }, &tensor[1]) == 0, "%s",
           bx_error_text());
    for (int to = 0; to < size; to++)
        for (int i = 0; i < CALLERS && ends[to]; i++) {
            callers[count] = (struct caller){ .to = to, .function = functions[i],
                                              .tensor = i == 2 ? tensor[is_remote(to)] : NULL };
            pthread_create(&callers[count].thread, NULL, call_until_lost, &callers[count]);
            count++;
        }
    for (int i = 0; i < count; i++)
        pthread_join(callers[i].thread, NULL);
    bx_tensor_release(tensor[0]);
    bx_tensor_release(tensor[1]);
    for (int i = 0; i < count; i += CALLERS) {
        uint64_t began_ns, ended_ns, last_ns = 0;
        char path[512];

        path_of_end(callers[i].to, path);
        times_in(file != NULL ? file : path, &began_ns, &ended_ns);
        for (int j = i; j < i + CALLERS; j++)
            last_ns = callers[j].lost_ns > last_ns ? callers[j].lost_ns : last_ns;
        printf("news of %d after %.1f ms\n", callers[i].to, (double)(int64_t)(last_ns - ended_ns) / 1e6);
        EXPECT(began_ns != 0 && last_ns >= began_ns, "%d was lost before its end", callers[i].to);
        EXPECT(last_ns < ended_ns + (most_ms + 1) * MS, "news of %d later than %u ms", callers[i].to,
               (unsigned)most_ms);
        EXPECT(file != NULL || callers[i].calls > 0, "no call to %d succeeded", callers[i].to);
    }
}

/* Those that live go on with one another, and nothing of the dead is left. */
static int go_on(void)
{
    int rc;

    for (int other = 0; other < size; other++) {
        for (int i = 0; i < 100 && !ends[other]; i++)
            call_add(other, rank, i);
        EXPECT(bx_worker_is_alive(job, other) == !ends[other], "of %d", other);
        EXPECT(deaths[other] == ends[other], "%d deaths of %d", deaths[other], other);
        if (!ends[other])
            continue;
        rc = bx_call(job, bx_rank(other), "add", "ii>", 1, 2);
        EXPECT(rc == BX_E_PEER_DEAD && strstr(bx_error_text(), bx_worker_name(job, other)) != NULL, "%s",
               bx_error_text());
        if (things[other] == NULL)
            continue;
        rc = bx_rref_call(things[other], "add", "ii>", 1, 2);
        EXPECT(rc == BX_E_PEER_DEAD && strstr(bx_error_text(), "owns the object") != NULL &&
               (!is_remote(other) || strstr(bx_error_text(), host_of[other]) != NULL), "%s", bx_error_text());
        bx_rref_release(things[other]);
    }
    check_loans(5000);
    return end();
}

/* ---- the modes ------------------------------------------------------------------------------------------------ */

/* Each of those that live has had an answer: it calls again. And the test has prepared what it wants. */
static void wait_for_calls(void)
{
    char path[512];

    for (int other = 0; other < size; other++)
        while (!ends[other] && __atomic_load_n(&adds[other], __ATOMIC_RELAXED) < 2)
            nap_ms(1);
    snprintf(path, sizeof path, "%s/prepares", getenv("BX_TEST_DIR"));
    while (access(path, F_OK) == 0)
        nap_ms(1);
}

static void kill_self(void)
{
    char path[512], text[32];
    FILE *file;
    int length;

    nap_ms(100);
    if (forks && fork() == 0) {
        nap_ms(10000);
        _exit(0);
    }
    path_of_end(rank, path);
    file = fopen(path, "we");
    length = snprintf(text, sizeof text, "%llu\n", (unsigned long long)now_ns());
    if (file == NULL || fwrite(text, 1, (size_t)length, file) != (size_t)length || fclose(file) != 0)
        return;
    kill(getpid(), SIGKILL);
}

static int die(const char *ranks, const char *ms)
{
    char list[256], *rest = list;

    snprintf(list, sizeof list, "%s", ranks);
    for (char *word; (word = strtok_r(rest, ",", &rest)) != NULL;)
        ends[atoi(word)] = 1;
    EXPECT(!on_gpu || bx_gpu_open(job, 0, &device) == 0, "%s", bx_error_text());
    barrier();
    if (ends[rank]) {
        wait_for_calls();
        kill_self();
    }
    for (int other = 0; other < size; other++)
        EXPECT(!ends[other] || (bx_remote(job, bx_rank(other), "give_thing", NULL, NULL, &things[other]) == 0 &&
                                bx_rref_wait(things[other], BX_FOREVER) == 0), "%s", bx_error_text());
    call_those_that_end(NULL, (uint64_t)atoi(ms));
    return go_on();
}

/* Those that are lost stay so, though the network carries again. */
static void wait_for_repair(const char *file)
{
    printf("lost\n");
    while (access(file, F_OK) == 0)
        nap_ms(5);
    nap_ms(2000);                       /* what was under way is sent again, and arrives */
}

static int part(const char *file, const char *ms, bool headless, bool beheaded, bool is_healed)
{
    for (int other = 0; other < size; other++)
        ends[other] = is_remote(other);
    if (headless || beheaded)
        ends[0] = beheaded && rank > 0;
    for (int other = 0; other < size; other++)
        call_add(other, rank, other);
    barrier();
    if (headless && rank == 0) {
        printf("ready\n");
        kill_self();
    }
    while (headless && __atomic_load_n(&deaths[0], __ATOMIC_RELAXED) == 0)
        nap_ms(5);
    printf("ready\n");
    call_those_that_end(file, (uint64_t)atoi(ms));
    ends[0] |= headless;
    if (is_healed)
        wait_for_repair(file);
    return go_on();
}

static int call_first(const char *file, const char *ms)
{
    barrier();
    printf("ready\n");
    while (access(file, F_OK) < 0)
        nap_ms(1);
    for (int other = size - 1; other >= 0; other--) {
        int rc = is_remote(other) ? bx_call(job, bx_rank(other), "add", "ii>", 1, 2) : BX_E_PEER_DEAD;
        uint64_t down_ns, took_ms;

        ends[other] = is_remote(other);
        times_in(file, &down_ns, &down_ns);
        took_ms = (now_ns() - down_ns) / MS;
        EXPECT(rc == BX_E_PEER_DEAD && took_ms < (uint64_t)atoi(ms), "%d: %d after %d ms", other, rc, (int)took_ms);
    }
    return go_on();
}

static int leave_early(const char *file)
{
    barrier();
    printf("ready\n");
    while (rank % 2 == 0 && access(file, F_OK) < 0)
        nap_ms(1);
    return end();
}

static int hold_until(const char *file)
{
    struct bx_future *future = NULL;

    barrier();
    if (rank == 1)
        EXPECT(bx_call_async(job, bx_rank(0), "hold", NULL, &future, "") == 0, "%s", bx_error_text());
    printf("ready\n");
    while (access(file, F_OK) < 0)
        nap_ms(20);
    if (future != NULL)
        bx_future_cancel(future);
    bx_future_release(future);
    barrier();
    return go_on();
}

/* The child, which has no part in the job, lets its parent go on after 2 s. */
static void stop_self(int go)
{
    struct timespec before, after;

    clock_gettime(CLOCK_MONOTONIC, &before);
    if (write(go, "", 1) != 1)
        return;
    kill(getpid(), SIGSTOP);
    clock_gettime(CLOCK_MONOTONIC, &after);
    stopped_ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    EXPECT(stopped_ms > 1500, "it was stopped for %d ms", (int)stopped_ms);
}

static int be_the_child(int go)
{
    char byte;

    if (read(go, &byte, 1) == 1) {
        nap_ms(2000);
        kill(getppid(), SIGCONT);
    }
    return 0;
}

static int stop(int who, int go)
{
    uint64_t until_ns;
    unsigned calls = 0;

    barrier();
    until_ns = now_ns() + 2500 * MS;
    if (rank == who)
        stop_self(go);
    for (; rank != who && now_ns() < until_ns; calls++) {
        struct bx_future *held[8] = { NULL };           /* of this turn: a call that fails makes none */

        for (int i = 0; i < 8; i++)
            EXPECT(bx_call_async(job, bx_rank(who), "add", NULL, &held[i], "ii", i, 1) == 0, "%s", bx_error_text());
        for (int other = 0; other < size; other++)
            if (other != who)
                call_add(other, (int64_t)calls, 1);
        for (int i = 0; i < 8; i++) {
            EXPECT(bx_future_wait(held[i], BX_FOREVER) == 0, "%s", bx_future_error_text(held[i]));
            bx_future_release(held[i]);
        }
    }
    barrier();
    return go_on();
}

/* What arrives while rank 0 is stopped counts, though the news of the death lie there too. */
static int send_last(int who, int go)
{
    struct bx_future *futures[LAST] = { NULL };

    ends[who] = 1;
    barrier();
    if (rank == who) {
        const uint64_t sent_bytes = counter("net_bytes");
        const int before = __atomic_load_n(&laters, __ATOMIC_RELAXED);

        while (__atomic_load_n(&laters, __ATOMIC_RELAXED) < before + LAST ||
               counter("net_bytes") - sent_bytes < LAST * LEAST_BYTES)
            nap_ms(1);
        nap_ms(300);
        kill_self();
    }
    for (int i = 0; i < LAST && rank == 0; i++)
        EXPECT(bx_call_async(job, bx_rank(who), "add_later", NULL, &futures[i], "ii", (int64_t)i, (int64_t)1) == 0,
               "%s", bx_error_text());
    if (rank == 0) {
        nap_ms(200);                    /* the calls leave */
        stop_self(go);
    }
    while (__atomic_load_n(&deaths[who], __ATOMIC_RELAXED) == 0)
        nap_ms(1);                      /* the background thread drives */
    for (int i = 0; i < LAST && rank == 0; i++) {
        EXPECT(bx_future_wait(futures[i], BX_FOREVER) == 0, "%s", bx_future_error_text(futures[i]));
        bx_future_release(futures[i]);
    }
    return go_on();
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static bool prepare(void)
{
    int rc = bx_job_create(NULL, &job);

    if (rc == 0)
        rc = bx_on_death(job, someone_died, NULL);
    return start(rc, FUNCTIONS(HARNESS_ASYNC("hold", hold), HARNESS_BLOCKING("send_back", echo),
                               HARNESS_INLINE("give_thing", give_thing), HARNESS_BLOCKING("add_later", add_later)));
}

static bool is(const char *mode, const char *name)
{
    return strcmp(mode, name) == 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc < 2 ? "" : argv[1];
    bool stops = argc == 3 && is(mode, "stop"), holds = argc == 3 && is(mode, "hold");
    bool last = argc == 3 && is(mode, "last");
    bool leaves = argc == 3 && is(mode, "leave"), first = argc == 4 && is(mode, "first");
    bool dies = argc == 4 && (is(mode, "die") || is(mode, "gpu") || is(mode, "fork"));
    bool parts = argc == 4 && (is(mode, "part") || is(mode, "headless") || is(mode, "beheaded") || is(mode, "healed"));
    int go[2];

    on_gpu = dies && is(mode, "gpu");
    forks = dies && is(mode, "fork");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if ((!stops && !last && !dies && !holds && !parts && !first && !leaves) || getenv("BX_TEST_DIR") == NULL) {
        fprintf(stderr, "usage: prog_net_end die RANKS MS | fork RANKS MS | gpu RANKS MS | hold FILE |\n"
                        "       stop RANK | last RANK | part FILE MS | headless FILE MS | beheaded FILE MS |\n"
                        "       healed FILE MS | leave FILE | first FILE MS\n");
        return 2;
    }
    if (stops || last) {                /* before the job: a child after it would have its descriptors for a moment */
        if (pipe(go) < 0)
            return 2;
        pid_t child = fork();

        if (child == 0) {
            close(go[1]);
            _exit(be_the_child(go[0]));
        }
        close(go[0]);
    }
    starts_quietly = first;
    if (!prepare())
        return 3;
    return stops    ? stop(atoi(argv[2]), go[1])
           : last   ? send_last(atoi(argv[2]), go[1])
           : holds  ? hold_until(argv[2])
           : leaves ? leave_early(argv[2])
           : first  ? call_first(argv[2], argv[3])
           : dies   ? die(argv[2], argv[3])
                    : part(argv[2], argv[3], is(mode, "headless"), is(mode, "beheaded"), is(mode, "healed"));
}
