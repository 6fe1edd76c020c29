/* SPDX-License-Identifier: MIT */
/*
 * gpu/: one process lends device memory, another reads it in place: marks and waits that block no host, which slabs and
 * points are refused, waits of hosts. That the data is right: test_device_order.c; that slabs are freed:
 * test_device_map.c; that generations of a slab are told apart: test_gpu_fd_server.c.
 */
#include "fake_library.h"
#include "gpu_fixture.h"

#define ROUNDS 12
#define BYTES (256u << 10)

enum { MET, FILLED, READ_BACK, LAST, HELD };

/* ---- Events ------------------------------------------------------------------------------------ */

#define MARKS 100

/* A word of this host holds the lane's stream up. No mark waits for it, and no host for a point of its own process. The
 * driver's thread moves the word: nobody polls. */
GPU_ALONE(gpu_share, blocks_no_host_for_marks_of_events_and_for_own_points, 60, (gpu_order = BXI_GPU_EVENTS, GPU_ANY))
{
    struct bxi_gpu_point point;
    struct bxi_gpu_lane *other;
    bxi_a64 *gate;

    gpu_start(0);
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &other), 0);
    GPU_EQ(bxi_gpu_enter(gpu_device), 0);
    gate = gpu_gate(gpu_lane->stream);
    for (int i = 0; i < MARKS; i++)
        GPU_EQ(bxi_gpu_mark(gpu_lane, &point), 0);
    GPU_EQ(bxi_gpu_after(other, NULL, &point), 0);
    GPU_EQ(bxi_gpu_passed(gpu, NULL, &point), 0);
    GPU_EQ(gpu->cu.cuStreamQuery(other->stream), CUDA_ERROR_NOT_READY);
    bxi_store_release(gate, 1);
    GPU_EQ(bxi_gpu_lane_wait(other), 0);
    GPU_EQ(bxi_gpu_lane_wait(gpu_lane), 0);
    GPU_EQ(bxi_gpu_passed(gpu, NULL, &point), 1);
    GPU_EQ(gpu_shared->region[0].word[gpu_lane->index].value, MARKS);
    GPU_EQ(gpu_counters().fallbacks, 0);
    bxi_gpu_leave(gpu_device);
    gpu_end();
}

/* A lane that was closed and opened again goes on from the word that the first has left. */
static void reopens_a_lane(void)
{
    gpu_start_pair(0);
    for (uint32_t round = 1; round <= 2; round++) {
        gpu_fill(gpu_lane, gpu_block(BYTES)->address, 1, BYTES);
        for (int i = 0; i < 8; i++)
            GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->point[0]), 0);
        GPU_EQ(gpu_shared->point[0].value, 8 * round);
        gpu_post(FILLED);
        gpu_await(READ_BACK, round);
        bxi_gpu_lane_close(gpu_lane);
        GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &gpu_lane), 0);
    }
    gpu_post(LAST);
    gpu_end();
}

static void follows_a_lane(void)
{
    struct bxi_gpu_point beyond;

    gpu_start_pair(1);
    for (uint32_t round = 1; round <= 2; round++) {
        gpu_await(FILLED, round);
        GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->point[0]), 0);
        GPU_EQ(bxi_gpu_passed(gpu, gpu_peer[0], &gpu_shared->point[0]), 1);     /* the host has waited */
        gpu_post(READ_BACK);
    }
    gpu_await(LAST, 1);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->point[0]), 0);    /* lane closed, work done */
    beyond = gpu_shared->point[0];
    beyond.lane = BXI_GPU_LANES - 1;
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &beyond), -EPROTO);             /* no such lane: nobody waits */
    gpu_end();
}

GPU_PAIR(gpu_share, follows_a_lane_of_events_that_is_opened_again, 60, (gpu_order = BXI_GPU_EVENTS, GPU_ANY),
         reopens_a_lane, follows_a_lane);

/* ---- On the hot path -------------------------------------------------------------------------- */

static void quiet_owner(void)
{
    struct bxi_gpu_counters before;
    struct bxi_gpu_block *block;

    gpu_start_pair(0);
    block = gpu_block(BYTES);
    before = gpu_counters();
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        gpu_lend(block, BYTES, 0);
        gpu_post(FILLED);
        gpu_await(READ_BACK, round);
        GPU_EQ(bxi_gpu_block_until(block, gpu_peer[1], &gpu_shared->point[0]), 0);
    }
    gpu_wait_passed(NULL, &gpu_shared->ref[0].ready);
    GPU_EQ(gpu_counters().host_synchronises, before.host_synchronises);
    GPU_EQ(gpu_counters().d2d_copies, 0);
    GPU_EQ(gpu_counters().staged_bytes, 0);
    GPU_EQ(gpu_counters().fallbacks, 0);
    bxi_gpu_free(block);
    gpu_post(LAST);
    while (bxi_gpu_poll(gpu) > 0 || bxi_load_acquire(&gpu_shared->gate[LAST]) < 2)
        sched_yield();
    GPU_EQ(gpu_counters().blocks_waiting, 0);
    gpu_end();
}

static void quiet_borrower(void)
{
    struct bxi_gpu_counters before;

    gpu_start_pair(1);
    before = gpu_counters();
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        struct bxi_gpu_map *map;

        gpu_await(FILLED, round);
        (void)gpu_borrow(gpu_peer[0], &gpu_shared->ref[0], &map);
        GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &gpu_shared->ref[0].ready), 0);
        GPU_EQ(bxi_gpu_mark(gpu_lane, &gpu_shared->point[0]), 0);
        bxi_gpu_map_put(map);
        gpu_post(READ_BACK);
    }
    GPU_EQ(gpu_counters().waits + gpu_counters().waits_saved, ROUNDS);
    GPU_EQ(gpu_counters().host_synchronises, before.host_synchronises);
    GPU_EQ(gpu_counters().fallbacks, 0);
    GPU_EQ(gpu_counters().d2d_copies, 0);
    gpu_wait_passed(NULL, &gpu_shared->point[0]);
    gpu_end_together(LAST);
}

GPU_PAIR(gpu_share, neither_copies_nor_blocks_the_host, 120, (gpu_order = BXI_GPU_HOST_WORDS, GPU_ANY), quiet_owner,
         quiet_borrower);

/* Discrete x86 cards are reported to register nothing read-only: the words are then registered through a writable
 * mapping, and the order stays the same. */
GPU_PAIR(gpu_share, waits_for_words_in_host_memory_without_read_only_registration, 120,
         (fake_skip_without_words("no words are chosen"), setenv("FAKE_CUDA_NO_READ_ONLY", "1", 1),
          setenv("FAKE_CUDA_DELAY_US", "3000", 1), GPU_FAKE),      /* so that waits are put on streams */
         quiet_owner, quiet_borrower);

/* ---- What a peer writes is input -------------------------------------------------------------- */

static void nonsense_owner(void)
{
    struct bxi_gpu_block *block;

    gpu_start_pair(0);
    block = gpu_block(BYTES);
    GPU_EQ(bxi_gpu_ref(block, 0, BYTES, &gpu_shared->ref[0]), 0);
    gpu_post(FILLED);
    gpu_await(READ_BACK, 1);
    gpu_shared->region[0].slab[block->slab].bytes = 1000 * GPU_MIB;
    gpu_post(HELD);
    gpu_post(LAST);
    gpu_await(LAST, 2);
    bxi_gpu_free(block);
    gpu_end();
}

static void refuse(struct bxi_gpu_ref ref, int expected)
{
    struct bxi_gpu_map *map = NULL;
    uint64_t address = 0;

    GPU_EQ(bxi_gpu_map_get(gpu_peer[0], &ref, &map, &address), expected);
    GPU_CHECK(map == NULL && address == 0);
}

static void refuse_point(uint16_t kind, uint16_t lane, uint64_t value)
{
    struct bxi_gpu_point point = { .order = kind, .lane = lane, .value = value };

    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &point), -EPROTO);
    GPU_EQ(bxi_gpu_passed(gpu, gpu_peer[0], &point), -EPROTO);
}

static void nonsense_borrower(void)
{
    struct bxi_gpu_ref ref;
    struct bxi_gpu_map *map;

    gpu_start_pair(1);
    gpu_await(FILLED, 1);
    ref = gpu_shared->ref[0];
    refuse(ref, -EAGAIN);
    (void)gpu_borrow(gpu_peer[0], &ref, &map);
    refuse((struct bxi_gpu_ref){ .slab = ref.slab, .generation = ref.generation, .offset = 0,
                                 .bytes = 2 * GPU_MIB + 1 }, -EPROTO);
    refuse((struct bxi_gpu_ref){ .slab = ref.slab, .generation = ref.generation, .offset = UINT64_MAX,
                                 .bytes = 2 }, -EPROTO);
    refuse((struct bxi_gpu_ref){ .slab = ref.slab, .generation = ref.generation, .offset = 1,
                                 .bytes = UINT64_MAX }, -EPROTO);
    refuse((struct bxi_gpu_ref){ .slab = BXI_GPU_SLABS, .generation = 1 }, -EPROTO);
    refuse((struct bxi_gpu_ref){ .slab = ref.slab, .generation = ref.generation + 1 }, -ESTALE);
    GPU_EQ(gpu_try_map(gpu_peer[0], &(struct bxi_gpu_ref){ .slab = BXI_GPU_SLABS, .generation = 1 }), -EPROTO);
    GPU_EQ(gpu_try_map(gpu_peer[0], &(struct bxi_gpu_ref){ .slab = 3, .generation = 0 }), -EPROTO);
    GPU_EQ(gpu_try_map(gpu_peer[0], &(struct bxi_gpu_ref){ .slab = 3, .generation = UINT64_MAX }), -EPROTO);
    GPU_EQ(gpu_try_map(gpu_peer[0], &(struct bxi_gpu_ref){ .slab = 3, .generation = 1 }), -ESTALE);
    GPU_EQ(bxi_gpu_block_until(gpu_block(1), gpu_peer[0], &(struct bxi_gpu_point){ .order = 9, .value = 1 }), -EPROTO);
    refuse_point(9, 0, 1);
    refuse_point(BXI_GPU_HOST_WORDS, BXI_GPU_LANES, 1);
    refuse_point(BXI_GPU_HOST_WORDS, 0, 0);
    refuse_point(BXI_GPU_HOST_WORDS, 0, BXI_GPU_POISON);
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &(struct bxi_gpu_point){ .order = BXI_GPU_EVENTS, .value = 9,
                                                                           .lane = BXI_GPU_LANES - 1 }), -EPROTO);
    bxi_gpu_map_put(map);
    bxi_gpu_close(gpu);
    gpu_forget();
    gpu_post(READ_BACK);
    gpu_await(HELD, 1);
    gpu_start_pair(1);
    GPU_EQ(gpu_try_map(gpu_peer[0], &ref), -EPROTO);
    gpu_end_together(LAST);
}

GPU_PAIR(gpu_share, refuses_invalid_slabs_and_points, 120, GPU_ANY, nonsense_owner,
         nonsense_borrower);

/* ---- Waits of hosts ---------------------------------------------------------------------------- */

/* A lane that no process has open. */
#define NO_LANE (BXI_GPU_LANES - 1)
static const struct bxi_gpu_point late = { .order = BXI_GPU_HOST_WORDS, .lane = NO_LANE, .value = 5 };

static void *looks_at_the_word(void *context)
{
    GPU_EQ(bxi_gpu_after(gpu_lane, gpu_peer[0], &late), -EOWNERDEAD);
    return context;
}

static void waits_on_the_host(void)
{
    uint64_t before;
    pthread_t thread;

    gpu_start_pair(1);
    GPU_CHECK(bxi_gpu_helper_drain(&gpu->helper, UINT64_MAX / 2));      /* it registers the page */
    gpu_peer[0]->host_words = 0;                /* as if the page could not be registered */
    before = gpu_counters().fallbacks;
    GPU_EQ(pthread_create(&thread, NULL, looks_at_the_word, NULL), 0);
    while (gpu_counters().fallbacks == before)
        sched_yield();
    bxi_store_release(&gpu_shared->region[0].word[NO_LANE].value, BXI_GPU_POISON);
    GPU_EQ(pthread_join(thread, NULL), 0);
    gpu_post(LAST);
    gpu_end();
}

static void closes_a_lane_that_failed(void)
{
    gpu_start_pair(0);
    gpu_await(LAST, 1);                         /* the other process poisons: no work fails here */
    gpu_end();
}

GPU_PAIR(gpu_share, ends_a_wait_of_the_host_when_a_living_owner_abandons_its_work, 60,
         (gpu_order = BXI_GPU_HOST_WORDS, GPU_FAKE), closes_a_lane_that_failed, waits_on_the_host);

static void *stages_what_is_late(void *context)
{
    struct bxi_gpu_block *block = gpu_block(64);
    struct bxi_gpu_lane *lane = context;
    unsigned char bytes[64];

    GPU_EQ(bxi_gpu_after(lane, NULL, &late), 0);
    gpu_post(FILLED);
    GPU_EQ(bxi_gpu_stage_out(lane, bytes, block->address, sizeof(bytes)), 0);
    bxi_gpu_free(block);
    return context;
}

GPU_ALONE(gpu_share, stages_while_other_staging_waits_for_its_lane, 60,
          (fake_skip_few_queues("staging waits in the queue of the lane that waits"), gpu_order = BXI_GPU_HOST_WORDS,
           GPU_ANY))
{
    struct bxi_gpu_block *block;
    struct bxi_gpu_lane *lane;
    unsigned char bytes[64] = { 1 };
    pthread_t thread;

    gpu_start(0);
    block = gpu_block(sizeof(bytes));
    GPU_EQ(bxi_gpu_lane_open(gpu_device, NULL, &lane), 0);
    GPU_EQ(pthread_create(&thread, NULL, stages_what_is_late, lane), 0);
    gpu_await(FILLED, 1);
    for (int i = 0; i < 2000; i++)
        GPU_EQ(bxi_gpu_stage_in(gpu_lane, block->address, bytes, sizeof(bytes)), 0);
    bxi_store_release(&gpu_shared->region[0].word[NO_LANE].value, late.value);
    GPU_EQ(pthread_join(thread, NULL), 0);
    bxi_gpu_free(block);
    gpu_end();
}

GPU_ALONE(gpu_share, never_opens_a_slab_of_this_process, 60, GPU_ANY)
{
    struct bxi_gpu_peer *peer = NULL;
    int rc;

    gpu_start(0);
    (void)gpu_try_meet(0, &rc);
    GPU_EQ(rc, -ESTALE);
    (void)gpu_try_meet(1, &rc);
    GPU_EQ(rc, -EAGAIN);
    GPU_EQ(bxi_gpu_peer_open(gpu, &(struct bxi_gpu_peer_options){ .name = "nobody" }, &peer), -EINVAL);
    gpu_shared->region[1].head.magic = 7;
    (void)gpu_try_meet(1, &rc);
    GPU_EQ(rc, -EPROTO);
    gpu_end();
}
