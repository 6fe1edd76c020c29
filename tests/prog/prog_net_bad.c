/* SPDX-License-Identifier: MIT */
/*
 * Workers of a job across hosts that send nonsense, for tests/e2e/net_hard.sh: the host of rank 0 is honest, and so is
 * the last rank; each other one is a saboteur. Environment as that of prog_net.
 *
 *     prog_net_bad SEED
 *     prog_net_bad lie        the last rank sends rank 0 nonsense in the name of rank 1: both are cut off from each
 *                             other, and all leave soon
 *     prog_net_bad parts HOW      the last rank lends rank 0 two tensors whose parts do not come as they should: twice,
 *                                 short, or, empty, of a tensor without elements. It is cut off
 *     prog_net_bad clock          rank 0 has the difference of its clock and rank 1's wrong by an hour, and calls of
 *                                 rank 1 arrive with the time that they have left
 *
 * A saboteur calls the others once. Then it sends rank 0 messages of the wire that no worker sends, which SEED and its
 * rank choose, and ends without a word. Rank 0 must survive, cut off each saboteur or see it die, and go on with the
 * honest ones. Output and exit status as those of prog_net; a saboteur's is 0.
 */
#include "net/net.h"

#include "prog_net.h"           /* behind what has parameters of the same names as its variables */

#define MESSAGES 40

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static bool is_saboteur(int other)
{
    return is_remote(other) != is_remote(0) && other != size - 1 && other != 0;
}

/* ---- what a saboteur sends ------------------------------------------------------------------------------- */

static uint64_t any(void)
{
    static const uint64_t edges[] = { 0, 1, 2, 63, 64, 1023, 1024, 16384, 131072, UINT32_MAX, UINT64_MAX, 1u << 31 };

    return draw(2) == 0 ? edges[draw(sizeof edges / sizeof edges[0])] : draw(UINT64_MAX);
}

static void fill(unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = draw(3) == 0 ? (unsigned char)draw(256) : 0;
}

/* A frame of a known kind, whose length is told, and in which the rest is any. */
static size_t frame_in(unsigned char *data, size_t room)
{
    uint64_t length = draw(4) == 0 ? any() : sizeof(struct bxi_frame) + sizeof(struct bxi_lease_head) + draw(400);
    struct bxi_frame frame = { .kind = (uint8_t)draw(16), .flags = (uint8_t)draw(256) };
    struct bxi_lease_head lease = { .packed_offset = draw(2) == 0 ? BXI_PACKED_HERE : any(), .tensor_count =
                                    (uint32_t)(draw(2) == 0 ? 1 + draw(3) : any()),
                                    .packed_bytes = draw(2) == 0 ? 64 + draw(200) : any() };

    fill(data, room);
    memcpy(data, &length, sizeof length);
    memcpy(data + 8, &frame, sizeof frame.kind + sizeof frame.flags);
    memcpy(data + 8 + sizeof frame, &lease, sizeof lease);
    return 8 + (length <= room - 8 ? (size_t)((length + 7) & ~UINT64_C(7)) : draw(room - 8));
}

/* Inline, so it has the progress role, as those have that send. */
static int attack(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bxi_twin *twin = job->net->twins[0];

    (void)request, (void)args, (void)reply, (void)context;
    for (int i = 0; i < MESSAGES && twin != NULL; i++) {
        const size_t room = draw(8) == 0 ? 300000 : 2000;
        struct bxi_parcel *parcel = bxi_parcel_make(twin, (enum bxi_parcel_kind)draw(9), room);

        if (parcel == NULL)
            return -1;
        parcel->bytes = draw(3) == 0 ? draw(room) : frame_in(parcel->data, 2000);
        parcel->head.number = draw(4) == 0 ? any() : twin->number;
        parcel->head.index = (uint32_t)(draw(2) == 0 ? draw(4) : any());
        twin->number += draw(8) != 0;
        parcel->head.has_words = draw(4) == 0;
        if (parcel->head.has_words)
            fill((unsigned char *)&parcel->head.words, sizeof parcel->head.words);
        /* It does not speak in an honest one's name, nor reports its death: that is trusted. */
        if (parcel->head.kind == BXI_PARCEL_DEATH)
            parcel->head.number = draw(2) == 0 ? 0 : 1000;
        parcel->head.from = (uint16_t)(draw(16) == 0 ? (uint64_t)size + draw(60000) : (uint64_t)rank);
        bxi_parcel_send(twin, parcel);
    }
    return 0;
}

static int sabotage(uint64_t seed)
{
    state = seed * 1000003 + (uint64_t)rank * 7919 + 1;
    if (bx_call(job, bx_rank(rank), "attack", ">") < 0)
        printf("failed: %s\n", bx_error_text());
    nap_ms(200 + (int)draw(300));       /* the messages leave */
    printf("done\n");
    _exit(0);
}

/* Inline, as attack. */
static int lie(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bxi_twin *twin = job->net->twins[0];
    struct bxi_parcel *parcel = bxi_parcel_make(twin, BXI_PARCEL_FRAMES, 64);

    (void)request, (void)args, (void)reply, (void)context;
    if (parcel == NULL)
        return -1;
    parcel->head.from = 1;
    parcel->head.number = 0;
    bxi_parcel_send(twin, parcel);
    return 0;
}

#define LARGE 300000u               /* the wire fetches it */

static void send_part(struct bxi_twin *twin, uint32_t index, size_t bytes)
{
    struct bxi_parcel *parcel = bxi_parcel_make(twin, BXI_PARCEL_PART, bytes);

    if (parcel == NULL)
        return;
    memset(parcel->data, 1, bytes);
    parcel->bytes = bytes;
    parcel->head.number = twin->number - 1;
    parcel->head.index = index;
    bxi_parcel_send(twin, parcel);
}

/* Inline, as attack. A frame that lends two tensors: a large one, and one of 8 bytes, or of none. */
static int lend_badly(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bxi_twin *twin = job->net->twins[0];
    struct bxi_parcel *parcel = bxi_parcel_make(twin, BXI_PARCEL_LEASE, 512);
    const char *how = bx_read_str(args);
    struct {
        uint64_t length;
        struct bxi_frame frame;
        struct bxi_lease_head lease;
        struct {
            struct bxi_tensor_head head;
            int64_t elements;
        } tensors[2];
    } message = {
        .length = sizeof message - sizeof message.length,
        .frame = { .kind = BXI_ONEWAY, .flags = BXI_FLAG_LEASE, .deadline_ns = BX_FOREVER },
        .lease = { .tensor_count = 2, .generation = 1, .packed_offset = BXI_PACKED_HERE,
                   .packed_bytes = sizeof message.tensors },
        .tensors = { { { .dtype = BX_U8, .ndim = 1, .device = BX_CPU }, LARGE },
                     { { .dtype = BX_U8, .ndim = 1, .device = BX_CPU }, strcmp(how, "empty") == 0 ? 0 : 8 } },
    };

    (void)request, (void)reply, (void)context;
    if (parcel == NULL)
        return -1;
    memcpy(parcel->data, &message, sizeof message);
    parcel->bytes = sizeof message;
    parcel->head.number = twin->number++;
    bxi_parcel_send(twin, parcel);
    send_part(twin, 1, LARGE);
    send_part(twin, 2, strcmp(how, "short") == 0 ? 7 : strcmp(how, "empty") == 0 ? 1 : 8);
    if (strcmp(how, "twice") == 0)
        send_part(twin, 2, 8);
    return 0;
}

/* ---- main ---------------------------------------------------------------------------------------------------- */

static void await_end_of(int other)
{
    for (int i = 0; i < 1000 && bx_worker_is_alive(job, other); i++)
        nap_ms(20);
    EXPECT(!bx_worker_is_alive(job, other), "rank %d goes on", other);
}

static int leave_behind_a_lie(void)
{
    struct bx_future *future = NULL;

    barrier();
    if (rank == 1)
        EXPECT(bx_call_async(job, bx_rank(0), "hold", NULL, &future, "") == 0, "%s", bx_error_text());
    barrier();
    nap_ms(300);                        /* rank 1 has its answer, too */
    if (rank == size - 1)
        EXPECT(bx_call(job, bx_rank(rank), "lie", ">") == 0, "%s", bx_error_text());
    if (rank < 2)
        await_end_of(1 - rank);
    if (future != NULL)
        EXPECT(bx_future_wait(future, 5000 * MS) == BX_E_CORRUPT, "%s", bx_future_error_text(future));
    bx_future_release(future);
    for (int other = 0; other < size; other++)
        for (int i = 0; i < 100 && other + rank != 1; i++)
            call_add(other, i, rank);
    return end();
}

static int lend_parts(const char *how)
{
    struct bx_future *future = NULL;

    barrier();
    if (rank == 0)
        EXPECT(bx_call_async(job, bx_rank(size - 1), "hold", NULL, &future, "") == 0, "%s", bx_error_text());
    barrier();
    if (rank == size - 1) {
        EXPECT(bx_call(job, bx_rank(rank), "lend_badly", "s>", how) == 0, "%s", bx_error_text());
        await_end_of(0);
    }
    if (future != NULL)
        EXPECT(bx_future_wait(future, 5000 * MS) == BX_E_CORRUPT, "%s", bx_future_error_text(future));
    bx_future_release(future);
    return end();
}

/* Inline, as attack: the difference is the role's. */
static int shift_clock(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)reply, (void)context;
    job->net->places[1].clock_ns += bx_read_i64(args) * 1000000000;
    return 0;
}

static int tell_left(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)args, (void)context;
    return bx_msg_put_i64(reply, (int64_t)(bx_request_deadline_ns(request) - bxi_now_ns()) / 1000000);
}

static int follow_clock(void)
{
    const struct bx_call_options options = { .timeout_ns = 5000 * MS };

    barrier();
    for (int hours = -1; hours <= 1 && rank == 1; hours++) {
        struct bx_msg *answer = NULL;
        struct bx_reader reader;
        int64_t left_ms;

        EXPECT(bx_call(job, bx_rank(0), "shift_clock", "i>", hours * 3600) == 0, "%s", bx_error_text());
        EXPECT(bx_rpc_sync(job, bx_rank(0), "tell_left", NULL, &options, &answer) == 0, "%s", bx_error_text());
        reader = bx_msg_reader(answer);
        left_ms = bx_read_i64(&reader);
        EXPECT(left_ms > 0 && left_ms <= 5000, "%d ms are left", (int)left_ms);
        bx_msg_destroy(answer);
    }
    return end();
}

int main(int argc, char **argv)
{
    const bool parts = argc == 3 && strcmp(argv[1], "parts") == 0;
    int rc = argc == 2 || parts ? bx_job_create(NULL, &job) : -1;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!start(rc, FUNCTIONS(HARNESS_INLINE("attack", attack), HARNESS_INLINE("lie", lie),
                             HARNESS_INLINE("shift_clock", shift_clock), HARNESS_INLINE("tell_left", tell_left),
                             HARNESS_INLINE("lend_badly", lend_badly), HARNESS_ASYNC("hold", hold))))
        return 3;
    if (strcmp(argv[1], "lie") == 0)
        return leave_behind_a_lie();
    if (parts)
        return lend_parts(argv[2]);
    if (strcmp(argv[1], "clock") == 0)
        return follow_clock();
    barrier();
    if (is_saboteur(rank))
        return sabotage(strtoull(argv[1], NULL, 10));
    for (int other = 0; other < size; other++)
        if (is_saboteur(other))
            await_end_of(other);
    for (int other = 0; other < size; other++)
        for (int i = 0; i < 100 && !is_saboteur(other); i++)
            call_add(other, i, rank);
    return end();
}
