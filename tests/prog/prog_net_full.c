/* SPDX-License-Identifier: MIT */
/*
 * A worker of a job across hosts in which something has an end: memory, leases, owners, patience. For tests/e2e/net.sh;
 * the environment, the output and the exit status are those of prog_net.
 *
 *     prog_net_full many          messages of many tensors, alone and behind a large one
 *     prog_net_full lent          both of two workers have as much on loan to each other as they may
 *     prog_net_full bound         the same where rank 1 may lend next to nothing (options.loan_bytes_max)
 *     prog_net_full room          rank 1's arena is too small for what others send it, and for what it asks for
 *     prog_net_full halved        rank 1 dies while a large tensor is under way to rank 0, which goes on with others
 *                                 meanwhile, and has its memory back
 *     prog_net_full silenced      the network between the two ends meanwhile: both have their memory back
 *     prog_net_full stuck         rank 1 is stopped when rank 0 destroys its job: that has its memory back
 *     prog_net_full gone          rank 2 dies while rank 0 sends on to rank 1 what it had on loan from it
 */
#include "prog_net.h"

#include <signal.h>

#define MANY 20000          /* tensors of a message */
#define LEASES 1024         /* BXI_LEASE_MAX */

static int hashes;          /* messages that `hash` has had */

/* ---- functions -------------------------------------------------------------------------------------------- */

static uint64_t sum_of(const struct bx_tensor *tensor)
{
    const unsigned char *data = bx_tensor_data(tensor);
    uint64_t sum = 0;

    for (size_t i = 0, bytes = bx_tensor_bytes(tensor); i < bytes; i++)
        sum = sum * 31 + data[i];
    return sum;
}

/* Of all tensors of the message, in order. */
static int hash(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    uint64_t sum = 0;

    (void)request, (void)context;
    __atomic_add_fetch(&hashes, 1, __ATOMIC_RELAXED);
    while (bx_reader_tensors_left(args) > 0)
        sum = sum * 1000003 + sum_of(bx_read_tensor(args));
    return bx_msg_put_u64(reply, sum);
}

static int nap(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)reply, (void)context;
    nap_ms((int)bx_read_i64(args));
    return 0;
}

/* A new tensor of so many bytes. */
static int give(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = NULL;
    int64_t bytes = bx_read_i64(args);
    int rc = bx_tensor_create(job, BX_U8, 1, &bytes, &tensor);

    (void)request, (void)context;
    if (rc == 0)
        memset(bx_tensor_data_mut(tensor), 7, (size_t)bytes);
    if (rc == 0)
        rc = bx_msg_put_tensor(reply, tensor);
    bx_tensor_release(tensor);
    return rc;
}

static int end_self(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
    return kill(getpid(), SIGKILL);
}

/* ---- what they send ---------------------------------------------------------------------------------------- */

static struct bx_tensor *filled(int64_t bytes, unsigned seed)
{
    struct bx_tensor *tensor = NULL;

    if (EXPECT(bx_tensor_create(job, BX_U8, 1, &bytes, &tensor) == 0, "%s", bx_error_text()))
        for (int64_t i = 0; i < bytes; i++)
            ((unsigned char *)bx_tensor_data_mut(tensor))[i] = (unsigned char)(i * 7 + i / 251 + seed);
    return tensor;
}

/* A message of so many tensors of 1 to `most` bytes, and what `hash` gives for it. */
static struct bx_msg *message_of(int count, int most, uint64_t *sum)
{
    struct bx_msg *message = bx_msg_create(0);

    *sum = 0;
    for (int i = 0; i < count; i++) {
        struct bx_tensor *tensor = filled(1 + i * 13 % most, (unsigned)i);

        *sum = *sum * 1000003 + sum_of(tensor);
        bx_msg_put_tensor(message, tensor);
        bx_tensor_release(tensor);
    }
    return message;
}

static void check_hash(struct bx_future *future, uint64_t sum)
{
    int rc = bx_future_wait(future, 20000 * MS);
    struct bx_reader reader = bx_msg_reader(rc == 0 ? bx_future_value(future) : NULL);

    EXPECT(rc == 0 && bx_read_u64(&reader) == sum, "%s", rc == 0 ? "another sum" : bx_future_error_text(future));
    bx_future_release(future);
}

static struct bx_future *send(int to, const char *function, const struct bx_msg *message)
{
    struct bx_future *future = NULL;

    EXPECT(bx_rpc_async(job, bx_rank(to), function, message, NULL, &future) == 0, "%s", bx_error_text());
    return future;
}

/* ---- the modes ------------------------------------------------------------------------------------------------ */

static void send_many(int to)
{
    uint64_t large_sum, sums[3];
    struct bx_tensor *tensor = filled(50000000, 3);
    struct bx_msg *large = bx_msg_create(0), *many[3];
    struct bx_future *futures[4];

    many[0] = message_of(MANY, 40, &sums[0]);
    many[1] = message_of(6000, 400, &sums[1]);
    many[2] = message_of(3000, 4000, &sums[2]);
    bx_msg_put_tensor(large, tensor);
    large_sum = sum_of(tensor);
    for (int i = 0; i < 3; i++)
        check_hash(send(to, "hash", many[i]), sums[i]);
    futures[3] = send(to, "hash", large);
    for (int i = 0; i < 3; i++)
        futures[i] = send(to, "hash", many[i]);
    check_hash(futures[3], large_sum);
    for (int i = 0; i < 3; i++)
        check_hash(futures[i], sums[i]);
    for (int i = 0; i < 3; i++) {
        struct bx_msg *back = NULL;
        struct bx_reader reader;
        uint64_t sum = 0;

        EXPECT(bx_rpc_sync(job, bx_rank(to), "echo", many[i], NULL, &back) == 0, "%s", bx_error_text());
        reader = bx_msg_reader(back);
        while (bx_reader_tensors_left(&reader) > 0)
            sum = sum * 1000003 + sum_of(bx_read_tensor(&reader));
        EXPECT(sum == sums[i], "others came back");
        bx_msg_destroy(back);
        bx_msg_destroy(many[i]);
    }
    bx_msg_destroy(large);
    bx_tensor_release(tensor);
}

/* What it lends to answer would count as its own. */
static void run_bound(void)
{
    for (int64_t bytes = 1; bytes < 8000000 && rank == 0; bytes = bytes * 3 + 1) {
        struct bx_tensor *tensor = filled(bytes, 11);
        struct bx_msg *message = bx_msg_create(0);

        bx_msg_put_tensor(message, tensor);
        check_hash(send(1, "hash", message), sum_of(tensor));
        bx_msg_destroy(message);
        bx_tensor_release(tensor);
    }
}

/* Both have as much on loan to each other as they may. */
static void run_lent(void)
{
    static struct bx_future *futures[LEASES];
    struct bx_tensor *tensor = filled(3000, 1);
    struct bx_msg *message = bx_msg_create(0);

    bx_msg_put_tensor(message, tensor);
    for (int round = 0; round < 5 && failures == 0; round++) {
        for (int i = 0; i < LEASES; i++)
            futures[i] = send(1 - rank, "hash", message);
        for (int i = 0; i < LEASES; i++)
            check_hash(futures[i], sum_of(tensor));
    }
    bx_msg_destroy(message);
    bx_tensor_release(tensor);
}

static void run_room(void)
{
    struct bx_tensor *large = filled(rank == 1 ? 1 : 20000000, 5), *back = NULL;
    int rc;

    for (int i = 0; i < 3 && rank == 0; i++) {
        rc = bx_call(job, bx_rank(1), "echo", "T>T", large, &back);
        EXPECT(rc == BX_E_ARENA_FULL, "%s: %s", bx_error_name(rc), bx_error_text());
        call_add(1, 2, 3);
    }
    for (int i = 0; i < 3 && rank == 1; i++) {
        rc = bx_call(job, bx_rank(0), "give", "i>T", (int64_t)20000000, &back);
        EXPECT(rc == BX_E_ARENA_FULL, "%s: %s", bx_error_name(rc), bx_error_text());
        EXPECT(bx_call(job, bx_rank(0), "give", "i>T", (int64_t)200000, &back) == 0, "%s", bx_error_text());
        bx_tensor_release(back);
    }
    bx_tensor_release(large);
}

/* What waits in a queue while rank 1 naps was passed on before its owner died. */
static void pass_on(struct bx_tensor *tensor)
{
    static struct bx_future *futures[LEASES];
    const uint64_t sum = sum_of(tensor), sums = (sum * 1000003 + sum) * 1000003 + sum;
    struct bx_msg *message = bx_msg_create(0);
    struct bx_future *napping = NULL;

    for (int i = 0; i < 3; i++)             /* more messages than a ring has room for */
        bx_msg_put_tensor(message, tensor);
    EXPECT(bx_call_async(job, bx_rank(1), "nap", NULL, &napping, "i", (int64_t)1000) == 0, "%s", bx_error_text());
    nap_ms(200);
    for (int i = 0; i < LEASES - 1; i++)
        futures[i] = send(1, "hash", message);
    bx_call(job, bx_rank(2), "end_self", ">");
    for (int i = 0; i < LEASES - 1 && failures == 0; i++)
        check_hash(futures[i], sums);
    EXPECT(bx_future_wait(napping, BX_FOREVER) == 0, "%s", bx_error_text());
    bx_future_release(napping);
    bx_msg_destroy(message);
}

static void run_gone(void)
{
    struct bx_tensor *tensor = NULL;

    if (rank != 0)
        return;
    EXPECT(bx_call(job, bx_rank(2), "give", "i>T", (int64_t)20000, &tensor) == 0, "%s", bx_error_text());
    pass_on(tensor);
    bx_tensor_release(tensor);
    call_add(1, 4, 5);
}

static uint64_t used_bytes(void)
{
    struct bx_arena_info info = { .struct_bytes = sizeof info };

    EXPECT(bx_job_arena(job, &info) == 0, "%s", bx_error_text());
    return info.used_bytes;
}

static void run_halved(void)
{
    const uint64_t before = used_bytes();
    struct bx_msg *message = bx_msg_create(0);

    if (rank == 1) {
        bx_msg_put_tensor(message, filled(400000000, 5));
        bx_future_release(send(0, "hash", message));
        nap_ms(30000);                  /* rank 0 kills it */
    }
    bx_msg_destroy(message);
    for (int i = 0; i < 2000 && rank > 1 && bx_worker_is_alive(job, 1); i++)
        nap_ms(20);                     /* their shutdown has a limit of its own */
    if (rank > 1)
        return;
    for (int i = 0; i < 20000 && used_bytes() <= before + 1000000 && bx_worker_is_alive(job, 1); i++)
        nap_ms(1);
    EXPECT(used_bytes() > before + 1000000, "nothing came");
    for (int i = 0; i < 10 && rank == 0; i++)
        call_add(3, i, 1);
    EXPECT(hashes == 0, "rank 3's answers came behind rank 1's tensor");
    bx_rpc_oneway(job, bx_rank(1), "end_self", NULL, NULL);
    for (int i = 0; i < 500 && (bx_worker_is_alive(job, 1) || used_bytes() > before + 1000000); i++)
        nap_ms(20);
    EXPECT(used_bytes() <= before + 1000000, "%u MB are still in use", (unsigned)(used_bytes() / 1000000));
}

static void run_silenced(void)
{
    const uint64_t before = used_bytes();

    if (rank == 1) {
        struct bx_tensor *tensor = filled(400000000, 5);
        struct bx_msg *message = bx_msg_create(0);

        bx_msg_put_tensor(message, tensor);
        bx_tensor_release(tensor);
        bx_future_release(send(0, "hash", message));
        bx_msg_destroy(message);
    }
    while (used_bytes() <= before + 1000000 && bx_worker_is_alive(job, 1 - rank))
        nap_ms(1);
    printf("ready\n");
    for (int i = 0; i < 500 && (bx_worker_is_alive(job, 1 - rank) || used_bytes() > before + 1000000); i++)
        nap_ms(20);
    EXPECT(!bx_worker_is_alive(job, 1 - rank), "the other one lives");
    EXPECT(used_bytes() <= before + 1000000, "%u MB are still in use", (unsigned)(used_bytes() / 1000000));
}

/* Whether this process maps the memory of a worker. */
static bool maps_arena(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    bool found = false;
    char line[512];

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        found = found || strstr(line, "/dev/shm/boxcar.") != NULL;
    EXPECT(maps != NULL, "no maps");
    if (maps != NULL)
        fclose(maps);
    return found;
}

/* The exit status. */
static int leave_a_stopped_one(void)
{
    struct bx_tensor *tensor = filled(8000000, 5);
    struct bx_msg *message = bx_msg_create(0);

    if (rank == 1)
        raise(SIGSTOP);                 /* until it is killed */
    nap_ms(200);
    bx_msg_put_tensor(message, tensor);
    bx_tensor_release(tensor);
    bx_future_release(send(1, "hash", message));
    bx_msg_destroy(message);
    nap_ms(200);
    bx_job_destroy(job);
    EXPECT(!maps_arena(), "what was under way stays for ever");
    return failures > 0;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static bool prepare(const char *mode)
{
    struct bx_options options = { .spin_ns = 0 };
    const char *own = getenv("BX_RANK");
    bool is_1 = own != NULL && strcmp(own, "1") == 0;
    int rc;

    if (is_1 && strcmp(mode, "bound") == 0)
        options.loan_bytes_max = 100;
    if (is_1 && strcmp(mode, "room") == 0)
        options.arena_bytes = 4 << 20;
    rc = bx_job_create(&options, &job);
    return start(rc, FUNCTIONS(HARNESS_BLOCKING("hash", hash), HARNESS_BLOCKING("echo", echo),
                               HARNESS_INLINE("nap", nap), HARNESS_BLOCKING("give", give),
                               HARNESS_INLINE("end_self", end_self)));
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!prepare(mode))
        return 3;
    barrier();
    EXPECT(is_remote(1) || rank % 2 == 1, "rank 1 is on the host of rank 0");
    if (strcmp(mode, "stuck") == 0)
        return leave_a_stopped_one();
    if (strcmp(mode, "many") == 0)
        send_many((rank + 1) % size);
    else if (strcmp(mode, "lent") == 0)
        run_lent();
    else if (strcmp(mode, "bound") == 0)
        run_bound();
    else if (strcmp(mode, "room") == 0)
        run_room();
    else if (strcmp(mode, "halved") == 0)
        run_halved();
    else if (strcmp(mode, "silenced") == 0)
        run_silenced();
    else if (strcmp(mode, "gone") == 0)
        run_gone();
    if (strcmp(mode, "gone") != 0 && strcmp(mode, "halved") != 0 && strcmp(mode, "silenced") != 0)
        barrier();
    return end();
}
