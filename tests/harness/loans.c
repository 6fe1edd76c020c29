/* SPDX-License-Identifier: MIT */
/*
 * loans.h: runs in workers. Kept tensors are in one queue under a mutex, because blocking handlers and bodies use it
 * too. "drop" releases the oldest first.
 *
 * A byte depends on the tensor's number and on its index, so every byte reveals a block that was reused too early and a
 * wrong offset.
 */
#include "loans.h"

#define MADE_ELEMENTS 1000

struct kept {
    struct bx_tensor *tensor;
    uint64_t number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept kept[4096];
static size_t kept_first, kept_count;
static struct bx_future *held[64];      /* references of "hold": without them the futures are abandoned */
static size_t held_count;

/* ---- Bytes ------------------------------------------------------------------------------------------ */

/* Byte i is bits 24 to 31 of FIRST(number) + i * STEP: a sum for each byte, for tests fill gigabytes without -O. */
#define FIRST(number) (2654435761u * (number))
#define STEP 0x9e3779b1u

void loans_fill(struct bx_tensor *tensor, uint64_t number)
{
    unsigned char *bytes = bx_tensor_data_mut(tensor);
    size_t count = bx_tensor_bytes(tensor);
    uint64_t sum = FIRST(number);

    HARNESS_CHECK(bytes != NULL);
    for (size_t i = 0; i < count; i++, sum += STEP)
        bytes[i] = (unsigned char)(sum >> 24);
}

bool loans_hold(const struct bx_tensor *tensor, uint64_t number)
{
    const unsigned char *bytes = bx_tensor_data(tensor);
    size_t count = bx_tensor_bytes(tensor);
    uint64_t sum = FIRST(number);

    for (size_t i = 0; i < count; i++, sum += STEP)
        if (bytes[i] != (unsigned char)(sum >> 24)) {
            dprintf(STDERR_FILENO, "tensor %llu: byte %zu of %zu is %u, not %u\n", (unsigned long long)number, i,
                    count, bytes[i], (unsigned)(unsigned char)(sum >> 24));
            return false;
        }
    return true;
}

struct bx_tensor *loans_tensor(struct bx_job *job, enum bx_dtype dtype, int64_t elements, uint64_t number)
{
    struct bx_tensor *tensor = NULL;

    HARNESS_EQ(bx_tensor_create(job, dtype, 1, &elements, &tensor), 0);
    loans_fill(tensor, number);
    return tensor;
}

struct bx_msg *loans_msg(struct bx_job *job, int64_t value, int count, int64_t elements)
{
    struct bx_msg *msg = harness_msg_i64(value);

    for (int i = 0; i < count; i++) {
        OWN(tensor) *tensor = loans_tensor(job, BX_U8, elements, (uint64_t)value + (uint64_t)i);

        HARNESS_EQ(bx_msg_put_tensor(msg, tensor), 0);
    }
    return msg;
}

void loans_end(struct bx_msg *msg, uint64_t first, uint64_t count)
{
    struct bx_reader reader = bx_msg_reader(msg);

    for (uint64_t i = 0; i < count; i++)
        HARNESS_CHECK(loans_hold(bx_read_tensor(&reader), first + i));
    bx_msg_destroy(msg);
}

/* ---- Handlers --------------------------------------------------------------------------------------- */

static int64_t read_all(struct bx_reader *args, bool keep)
{
    uint64_t number = (uint64_t)bx_read_i64(args);
    int64_t count = 0;

    for (; bx_reader_tensors_left(args) > 0; count++) {
        struct bx_tensor *tensor = bx_read_tensor(args);

        HARNESS_CHECK(bx_tensor_is_borrowed(tensor) && !bx_tensor_is_shared(tensor));
        HARNESS_CHECK(bx_tensor_data_mut(tensor) == NULL);
        HARNESS_CHECK(loans_hold(tensor, number + (uint64_t)count));
        if (!keep)
            continue;
        pthread_mutex_lock(&lock);
        HARNESS_CHECK(kept_count < sizeof(kept) / sizeof(kept[0]));
        kept[(kept_first + kept_count++) % (sizeof(kept) / sizeof(kept[0]))] =
            (struct kept){ .tensor = bx_tensor_acquire(tensor), .number = number + (uint64_t)count };
        pthread_mutex_unlock(&lock);
    }

    struct bx_reader past = *args;

    HARNESS_CHECK(bx_read_tensor(&past) == NULL);
    HARNESS_EQ(past.error, BX_E_SHORT_MESSAGE);
    return count;
}

/* Keeps the tensors if context is not NULL. */
HARNESS_HANDLER(take)
{
    return bx_msg_put_i64(reply, read_all(args, context != NULL));
}

HARNESS_ASYNC_HANDLER(take_async)
{
    *reply = bx_future_create(bx_request_job(request));
    return bx_future_set(*reply, harness_msg_i64(read_all(args, context != NULL)));
}

static int take_batch(struct bx_batch *batch, void *context)
{
    for (size_t row = 0; row < bx_batch_rows(batch); row++) {
        struct bx_reader args = bx_batch_args(batch, row);

        HARNESS_EQ(bx_batch_reply_i64(batch, row, read_all(&args, context != NULL)), 0);
    }
    return 0;
}

HARNESS_HANDLER(drop)
{
    int64_t left;

    pthread_mutex_lock(&lock);
    for (int64_t i = bx_read_i64(args); i > 0 && kept_count > 0; i--) {
        struct kept *oldest = &kept[kept_first];

        HARNESS_CHECK(loans_hold(oldest->tensor, oldest->number));
        bx_tensor_release(oldest->tensor);
        kept_first = (kept_first + 1) % (sizeof(kept) / sizeof(kept[0]));
        kept_count--;
    }
    left = (int64_t)kept_count;
    pthread_mutex_unlock(&lock);
    return bx_msg_put_i64(reply, left);
}

static int put_new(struct bx_job *job, struct bx_msg *reply, uint64_t number)
{
    OWN(tensor) *tensor = loans_tensor(job, BX_F32, MADE_ELEMENTS, number);

    return bx_msg_put_tensor(reply, tensor);
}

HARNESS_HANDLER(make)
{
    int64_t count = bx_read_i64(args);

    for (int64_t i = 0; i < count; i++)
        HARNESS_EQ(put_new(bx_request_job(request), reply, (uint64_t)i), 0);
    return 0;
}

HARNESS_HANDLER(back)
{
    while (bx_reader_tensors_left(args) > 0)
        HARNESS_EQ(bx_msg_put_tensor(reply, bx_read_tensor(args)), 0);
    return 0;
}

HARNESS_HANDLER(fails)
{
    read_all(args, false);
    HARNESS_EQ(put_new(bx_request_job(request), reply, 0), 0);
    return bx_fail(-EDOM, "not this time");
}

HARNESS_HANDLER(peek)
{
    return bx_msg_put_i64(reply, ((const unsigned char *)bx_tensor_data(kept[kept_first].tensor))[77]);
}

HARNESS_CALLBACK(let_go)
{
    bx_tensor_release(context);
}

HARNESS_ASYNC_HANDLER(hold)
{
    struct bx_reader copy = *args;

    read_all(&copy, false);
    HARNESS_CHECK(held_count < sizeof(held) / sizeof(held[0]));
    *reply = bx_future_create(bx_request_job(request));
    held[held_count++] = bx_future_acquire(*reply);
    if (bx_reader_tensors_left(args) > 0)
        bx_future_on_done(*reply, let_go, bx_tensor_acquire(bx_read_tensor(args)));
    harness_post(LOANS_HELD);
    return 0;
}

HARNESS_HANDLER(stuck)
{
    read_all(args, false);
    harness_post(LOANS_STUCK);
    harness_await(LOANS_GO, 1);
    return put_new(bx_request_job(request), reply, 0);
}

int loans_pass_on(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t value = bx_read_i64(args);
    const char *way = bx_read_str(args);
    int from = *way == '+' ? 100 : 0;
    OWN(msg) *on = harness_msg_i64(value + from), *answer = NULL;
    struct bx_reader reader;
    bool is_last;
    int rc;

    (void)context;
    way += *way == '+';
    is_last = way[1] > '9';
    if (!is_last)
        bx_msg_put_str(on, way + 1);
    while (bx_reader_tensors_left(args) > 0) {
        struct bx_tensor *tensor = bx_read_tensor(args);
        OWN(tensor) *part = NULL;

        HARNESS_EQ(bx_tensor_slice(tensor, 0, from, bx_tensor_dim(tensor, 0), 1, &part), 0);
        bx_msg_put_tensor(on, part);
    }
    rc = bx_rpc_sync(bx_request_job(request), bx_rank(way[0] - '0'), is_last ? way + 1 : "pass_on", on, NULL, &answer);
    if (rc < 0)
        return rc;
    reader = bx_msg_reader(answer);
    return bx_msg_put_i64(reply, bx_read_i64(&reader));
}

int loans_setup(struct bx_job *job)
{
    static char keeps[] = "keeps";

    HARNESS_EQ(HARNESS_REGISTER(job, HARNESS_INLINE("verify", take), HARNESS_BLOCKING("verify_blocking", take),
                                HARNESS_ASYNC("verify_async", take_async), { "keep", BX_INLINE, take, NULL, keeps },
                                { "keep_blocking", BX_BLOCKING, take, NULL, keeps },
                                { "keep_async", BX_INLINE, NULL, take_async, keeps }, HARNESS_INLINE("drop", drop),
                                HARNESS_INLINE("peek", peek), HARNESS_INLINE("make", make),
                                HARNESS_INLINE("back", back), HARNESS_INLINE("fail", fails),
                                HARNESS_INLINE("echo", harness_echo), HARNESS_ASYNC("hold", hold),
                                HARNESS_BLOCKING("stuck", stuck)), 0);
    return bx_register_batch(job, "keep_batch", take_batch, keeps, NULL);
}

/* ---- Callers ----------------------------------------------------------------------------------------- */

int loans_try(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
              const struct bx_call_options *options)
{
    int rc = bx_rpc_sync(job, to, function, args, options, NULL);

    bx_msg_destroy(args);
    return rc;
}

struct bx_future *loans_start(struct bx_job *job, const char *to, const char *function, struct bx_msg *args)
{
    return harness_start(job, to, function, args, BX_FOREVER);
}

struct bx_loans loans_of(struct bx_job *job, int rank)
{
    struct bx_loans loans = { 0 };

    HARNESS_EQ(bx_job_loans(job, rank, &loans), 0);
    return loans;
}

void loans_come_back(struct bx_job *job, int rank)
{
    HARNESS_EQ(bx_loans_wait(job, rank, 0, BX_FOREVER), 0);

    struct bx_loans loans = loans_of(job, rank);

    HARNESS_EQ(loans.leases, 0);
    HARNESS_EQ(loans.bytes, 0);
    HARNESS_EQ(loans.oldest_ns, 0);
    HARNESS_EQ(loans.granted, loans.returned + loans.taken_back);
}
