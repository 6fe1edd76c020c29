/* SPDX-License-Identifier: MIT */
/*
 * Workers of a job across hosts that do all sorts of things with one another at the same time, for net_hard.sh: calls
 * of all sizes, tensors, what is passed on through a third, one-way calls, calls that are cancelled or time out,
 * references. Environment, output and exit status as those of prog_net.
 *
 *     prog_net_mix SECONDS SEED [RANKS]
 *
 * Each message says what its bytes and tensors add up to, and its receiver adds them up. Where RANKS ("1,3") are given,
 * these workers kill themselves at some time.
 */
#include "prog_net.h"

#include <signal.h>

#define THREADS 3
#define TENSORS 6
#define KEPT 8

static const char *const functions[] = { "echo_inline", "echo_blocking", "echo_locked" };
static uint64_t seed, until_ns;
static bool some_die, dies;
static char ends[WORLD_MOST];
static unsigned counts[8];                  /* calls that ended so */
static uint64_t bad;

/* ---- random messages ---------------------------------------------------------------------------------------- */

struct dice {
    uint64_t state;
};

static uint64_t draw(struct dice *dice, uint64_t below)
{
    dice->state ^= dice->state << 13;
    dice->state ^= dice->state >> 7;
    dice->state ^= dice->state << 17;
    return (dice->state >> 11) % below;
}

static uint64_t sum_of(const unsigned char *data, size_t bytes)
{
    uint64_t sum = bytes, word;

    for (; bytes >= sizeof word; data += sizeof word, bytes -= sizeof word) {
        memcpy(&word, data, sizeof word);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    }
    for (; bytes > 0; bytes--)
        sum = (sum ^ *data++) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ sum >> 29;
}

static size_t any_size(struct dice *dice)
{
    switch (draw(dice, 12)) {
    case 0:
        return 0;
    case 1:
        return 16000 + draw(dice, 800);         /* about a frame's */
    case 2:
        return draw(dice, 40) == 0 ? 1000000 + draw(dice, 4000000) : draw(dice, 300000);
    case 3:
    case 4:
        return draw(dice, 40000);
    default:
        return draw(dice, 2000);
    }
}

static void fill(struct dice *dice, unsigned char *data, size_t bytes)
{
    uint64_t word = draw(dice, UINT64_MAX);

    for (size_t i = 0; i < bytes; i++, word = word * 3 + 1)
        data[i] = (unsigned char)(word >> 7);
}

/* NULL: the arena is full. It begins with what the rest adds up to. */
static struct bx_msg *any_message(struct dice *dice, struct bx_tensor *kept)
{
    struct bx_msg *message = bx_msg_create(0);
    size_t bytes = any_size(dice);
    unsigned char *data = malloc(bytes + 1);
    int tensors = draw(dice, 2) == 0 ? 0 : (int)draw(dice, TENSORS);
    struct bx_tensor *made[TENSORS + 1] = { NULL };
    uint64_t sum;
    int rc = 0;

    fill(dice, data, bytes);
    sum = sum_of(data, bytes);
    for (int i = 0; i < tensors && rc == 0; i++) {
        int64_t size_of = (int64_t)any_size(dice);

        rc = bx_tensor_create(draw(dice, 4) == 0 ? NULL : job, BX_U8, 1, &size_of, &made[i]);
        if (rc == 0)
            fill(dice, bx_tensor_data_mut(made[i]), (size_t)size_of);
    }
    if (kept != NULL && rc == 0)
        made[tensors++] = bx_tensor_acquire(kept);
    for (int i = 0; i < tensors && rc == 0; i++)
        sum = sum * 31 + sum_of(bx_tensor_data(made[i]), (size_t)bx_tensor_bytes(made[i]));
    bx_msg_put_u64(message, sum);
    bx_msg_put_bytes(message, data, bytes);
    for (int i = 0; i < tensors; i++) {
        if (rc == 0)
            bx_msg_put_tensor(message, made[i]);
        bx_tensor_release(made[i]);
    }
    free(data);
    if (rc == 0)
        return message;
    bx_msg_destroy(message);
    return NULL;
}

/* Adds up what is left of the message; with reply, sends it all back. */
static bool check(struct bx_reader *reader, struct bx_msg *reply, const char *where, int from)
{
    uint64_t said = bx_read_u64(reader), sum;
    size_t bytes = bx_reader_left(reader);
    const void *data = bx_read_bytes(reader, bytes);

    sum = sum_of(data, bytes);
    if (reply != NULL) {
        bx_msg_put_u64(reply, said);
        bx_msg_put_bytes(reply, data, bytes);
    }
    while (bx_reader_tensors_left(reader) > 0) {
        struct bx_tensor *tensor = bx_read_tensor(reader);

        sum = sum * 31 + sum_of(bx_tensor_data(tensor), (size_t)bx_tensor_bytes(tensor));
        if (reply != NULL)
            bx_msg_put_tensor(reply, tensor);
    }
    if (sum != said)
        __atomic_add_fetch(&bad, 1, __ATOMIC_RELAXED);
    return EXPECT(sum == said, "%s, from %d: %zu bytes are others", where, from, bytes);
}

/* ---- functions --------------------------------------------------------------------------------------------- */

static int check_and_echo(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    check(args, reply, context, bx_request_caller(request));
    return bx_msg_error(reply);
}

static int take(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)reply;
    check(args, NULL, context, bx_request_caller(request));
    return 0;
}

/* To a third, and its answer back. */
static int relay(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t to = bx_read_i64(args);
    struct bx_msg *on = bx_msg_create(0), *answer = NULL;
    struct bx_reader reader;
    int rc;

    check(args, on, context, bx_request_caller(request));
    rc = bx_rpc_sync(job, bx_rank((int)to), "echo_blocking", on, NULL, &answer);
    if (rc == 0) {
        reader = bx_msg_reader(answer);
        check(&reader, reply, "from the third", (int)to);
    }
    bx_msg_destroy(on);
    bx_msg_destroy(answer);
    return rc < 0 ? rc : bx_msg_error(reply);
}

/* A new tensor. */
static int give(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct dice dice = { bx_read_u64(args) | 1 };
    struct bx_tensor *tensor = NULL;
    int64_t bytes = 1 + (int64_t)draw(&dice, 50000);
    int rc = bx_tensor_create(job, BX_U8, 1, &bytes, &tensor);

    (void)request, (void)context;
    if (rc == 0) {
        fill(&dice, bx_tensor_data_mut(tensor), (size_t)bytes);
        rc = bx_msg_put_tensor(reply, tensor);
    }
    bx_tensor_release(tensor);
    return rc;
}

static void destroy_box(void *object)
{
    free(object);
}

static const struct bx_type box_type = { .name = "box", .destroy = destroy_box };

static int new_box(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t *box = malloc(sizeof *box);

    (void)request, (void)context;
    *box = bx_read_i64(args);
    return bx_msg_put_object(job, reply, &box_type, box);
}

static int read_box(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)context;
    return bx_msg_put_i64(reply, *(int64_t *)bx_request_object(request));
}

static int use_box(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_rref *box = bx_read_rref(args);
    int64_t value = 0;
    int rc = bx_rref_call(box, "read_box", ">i", &value);

    (void)request, (void)context;
    return rc < 0 ? rc : bx_msg_put_i64(reply, value);
}

/* ---- what a thread does --------------------------------------------------------------------------------------- */

static void count(int rc, const char *what, int to, const char *text)
{
    bool fine = rc == 0 || rc == BX_E_TIMEOUT || rc == BX_E_CANCELLED || rc == BX_E_ARENA_FULL ||
                rc == BX_E_NO_SPACE || ((rc == BX_E_PEER_DEAD || rc == BX_E_NO_OBJECT) && some_die);
    int which;

    EXPECT(fine, "%s to %d: %s: %s", what, to, bx_error_name(rc), text);
    which = rc == 0 ? 0 : rc == BX_E_TIMEOUT ? 1 : rc == BX_E_CANCELLED ? 2 : rc == BX_E_PEER_DEAD ? 3 : 4;
    __atomic_add_fetch(&counts[which], 1, __ATOMIC_RELAXED);
}

static void finish(struct bx_future *future, const char *what, int to)
{
    int rc = bx_future_wait(future, BX_FOREVER);

    count(rc, what, to, bx_future_error_text(future));
    if (rc == 0) {
        struct bx_reader reader = bx_msg_reader(bx_future_value(future));

        check(&reader, NULL, what, to);
    }
    bx_future_release(future);
}

static void call_some(struct dice *dice, struct bx_tensor *kept)
{
    enum { MOST = 24 };
    struct bx_future *futures[MOST];
    const char *whats[MOST];
    int to[MOST], many = 1 + (int)draw(dice, MOST);

    for (int i = 0; i < many; i++) {
        struct bx_msg *message = any_message(dice, draw(dice, 3) == 0 ? kept : NULL);
        struct bx_call_options options = { .timeout_ns = BX_FOREVER };
        int rc;

        futures[i] = NULL;
        to[i] = (int)draw(dice, (uint64_t)size);
        whats[i] = functions[draw(dice, 3)];
        if (message == NULL)
            continue;
        if (draw(dice, 8) == 0)
            options.timeout_ns = draw(dice, 3 * MS);
        if (draw(dice, 6) == 0) {
            whats[i] = "take";
            count(bx_rpc_oneway(job, bx_rank(to[i]), "take", message, NULL), "take", to[i], bx_error_text());
        } else {
            rc = bx_rpc_async(job, bx_rank(to[i]), whats[i], message, &options, &futures[i]);
            if (rc < 0)
                count(rc, whats[i], to[i], bx_error_text());
        }
        bx_msg_destroy(message);
        if (futures[i] != NULL && draw(dice, 10) == 0)
            bx_future_cancel(futures[i]);
    }
    for (int i = 0; i < many; i++)
        if (futures[i] != NULL)
            finish(futures[i], whats[i], to[i]);
}

static void call_relay(struct dice *dice, struct bx_tensor *kept)
{
    struct bx_msg *message = any_message(dice, kept), *args = bx_msg_create(0), *answer = NULL;
    int via = (int)draw(dice, (uint64_t)size), rc;

    if (message != NULL) {
        struct bx_reader reader = bx_msg_reader(message);

        bx_msg_put_i64(args, (int64_t)draw(dice, (uint64_t)size));
        check(&reader, args, "the own", rank);
        rc = bx_rpc_sync(job, bx_rank(via), "relay", args, NULL, &answer);
        count(rc, "relay", via, bx_error_text());
        reader = bx_msg_reader(answer);
        if (rc == 0)
            check(&reader, NULL, "relay", via);
    }
    bx_msg_destroy(args);
    bx_msg_destroy(message);
    bx_msg_destroy(answer);
}

static void use_reference(struct dice *dice)
{
    int at = (int)draw(dice, (uint64_t)size), third = (int)draw(dice, (uint64_t)size), rc;
    int64_t is = (int64_t)draw(dice, 1000000), value = -1;
    struct bx_msg *args = bx_msg_create(0);
    struct bx_rref *box = NULL;

    bx_msg_put_i64(args, is);
    rc = bx_remote(job, bx_rank(at), "new_box", args, NULL, &box);
    if (rc == 0)
        rc = bx_call(job, bx_rank(third), "use_box", "R>i", box, &value);
    count(rc, "use_box", third, bx_error_text());
    EXPECT(rc < 0 || value == is, "a box has %d, not %d", (int)value, (int)is);
    bx_rref_release(box);
    bx_msg_destroy(args);
}

static void call_give(struct dice *dice, struct bx_tensor **tensor)
{
    int to = (int)draw(dice, (uint64_t)size);
    int rc = bx_call(job, bx_rank(to), "give", "u>T", draw(dice, UINT64_MAX), tensor);

    count(rc, "give", to, bx_error_text());
}

static void *do_all(void *number)
{
    struct dice dice = { (seed * 1000003 + (uint64_t)rank * 7919 + (uint64_t)(uintptr_t)number * 104729) | 1 };
    struct bx_tensor *kept[KEPT] = { NULL };

    for (int i = 0; i < 20; i++)
        draw(&dice, 2);
    while (now_ns() < until_ns) {
        struct bx_tensor **place = &kept[draw(&dice, KEPT)];

        if (dies && draw(&dice, 200) == 0)
            kill(getpid(), SIGKILL);
        switch (draw(&dice, 8)) {
        case 0:
            bx_tensor_release(*place);
            *place = NULL;
            call_give(&dice, place);
            break;
        case 1:
        case 2:
            call_relay(&dice, *place);
            break;
        case 3:
            use_reference(&dice);
            break;
        default:
            call_some(&dice, *place);
        }
    }
    for (int i = 0; i < KEPT; i++)
        bx_tensor_release(kept[i]);
    return NULL;
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static bool prepare(void)
{
    const struct bx_options options = { .arena_bytes = UINT64_C(96) << 20 };
    int rc = bx_job_create(&options, &job);

    if (rc == 0)
        rc = bx_register_method(job, &box_type, "read_box", BX_INLINE, read_box, NULL);
    return start(rc, FUNCTIONS({ functions[0], BX_INLINE, check_and_echo, NULL, "inline" },
                               { functions[1], BX_BLOCKING, check_and_echo, NULL, "blocking" },
                               { functions[2], BX_LOCKED, check_and_echo, NULL, "locked" },
                               { "take", BX_BLOCKING, take, NULL, "take" },
                               { "relay", BX_BLOCKING, relay, NULL, "relay" }, HARNESS_BLOCKING("give", give),
                               HARNESS_INLINE("new_box", new_box), HARNESS_BLOCKING("use_box", use_box)));
}

static void run(void)
{
    pthread_t threads[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, do_all, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    nap_ms(1000);                       /* the others have ended, too */
    for (int other = 0; other < size; other++)
        if (!ends[other])
            call_add(other, rank, is_remote(other));
    printf("calls: %u, timed out: %u, cancelled: %u, to the dead: %u, without room: %u\n", counts[0], counts[1],
           counts[2], counts[3], counts[4]);
    check_loans(10000);
    EXPECT(counter("peers_corrupt") == 0, "workers were cut off");
}

int main(int argc, char **argv)
{
    char list[256] = "", *rest = list;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: prog_net_mix SECONDS SEED [RANKS]\n");
        return 2;
    }
    if (argc == 4)
        snprintf(list, sizeof list, "%s", argv[3]);
    for (char *word; (word = strtok_r(rest, ",", &rest)) != NULL; some_die = true)
        ends[atoi(word)] = 1;
    if (!prepare())
        return 3;
    dies = ends[rank];
    seed = strtoull(argv[2], NULL, 10);
    until_ns = now_ns() + (uint64_t)atoi(argv[1]) * 1000 * MS;
    barrier();
    run();
    return end();
}
