/* SPDX-License-Identifier: MIT */
/*
 * A worker that writes nonsense into its own segment while the others read it.
 *
 * Worker 0 calls, worker 1 is hostile, worker 2 is a bystander. The targeted tests write one wrong word into the ring
 * or the control pages of worker 1 and check the error code of worker 0's call, and that calls to worker 2 still
 * succeed. tests/fuzz/ writes what nobody thought of.
 *
 * The hostile worker writes through its own mapping, as a wild store would. It is killed at the end of each test, so
 * its own errors do not matter. Not tested: writes to other workers' pages, which it would have to map anew.
 */
#include "tests/harness/hostile.h"

#include "rpc/rpc.h"

/* The id of the call that held_call leaves in flight: the first slot, used for the second time. */
#define HELD_ID (2 << 16)

static struct bxi_frame frame_of(uint8_t kind, uint64_t id)
{
    return (struct bxi_frame){ .kind = kind, .id = id, .deadline_ns = BX_FOREVER };
}

/* ---- Handlers ------------------------------------------------------------------------------------- */

static int setup(struct bx_job *job)
{
    HARNESS_REGISTER(job, HARNESS_INLINE("echo", harness_echo), HARNESS_BLOCKING("slow", harness_echo));
    HARNESS_EQ(bx_register_batch(job, "batch", harness_no_rows, NULL, NULL), 0);
    /* In worker 1 "hold" never answers. In the others it does, because the hostile worker calls them too. */
    return bx_job_rank(job) == 1 ? bx_register_async(job, "hold", BX_INLINE, harness_never, NULL)
                                 : bx_register(job, "hold", BX_INLINE, harness_echo, NULL);
}

/* ---- The hostile worker ------------------------------------------------------------------------------ */

static uint64_t word_here(struct bx_job *job, uint32_t length)
{
    return (uint64_t)(uint32_t)(job->rpc->peers[0]->out.write_pos / BXI_LINE + 1) << 32 | length;
}

static void put_head(struct bx_job *job, struct bxi_frame frame)
{
    HARNESS_CHECK(put_frame(job, &frame, "", 0));
}

/* A record with another commit word. */
static void put_frame_of_length(struct bx_job *job, uint8_t kind, uint64_t word)
{
    struct bxi_frame frame = frame_of(kind, HELD_ID);
    struct bxi_ring_writer *out = &job->rpc->peers[0]->out;
    void *payload = NULL;

    bxi_lock(&job->run->lock);
    HARNESS_EQ(bxi_peer_open_out(job, job->rpc->peers[0]), 0);
    HARNESS_EQ(bxi_ring_reserve(out, sizeof(frame), &payload), 0);
    memcpy(payload, &frame, sizeof(frame));
    bxi_store_release((bxi_a64 *)(void *)((unsigned char *)payload - 8), word);
    bxi_unlock(&job->run->lock);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
}

static void put_state(struct bx_job *job, uint32_t state)
{
    bxi_store_release(&job->control->header.state, state);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
}

/* ---- The others ------------------------------------------------------------------------------------ */

static struct bx_future *held_call(struct bx_job *job)
{
    struct bx_future *future = NULL;

    harness_await(READY, 1);
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 1), 1);
    future = harness_async(job, "worker1", "hold");
    /* This call is behind it: when it returns, the first one is held and in its slot. */
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 2), 2);
    return future;
}

static void expect_cut_off(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    HARNESS_EQ(bx_future_wait(future, BX_FOREVER), BX_E_CORRUPT);
    HARNESS_HAS(bx_future_error_text(future), "'worker1' (rank 1");
    bx_future_release(future);
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "echo", NULL, NULL, NULL), BX_E_CORRUPT);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 1);
    harness_post(FINISHED);
}

/* What worker 1 does in `job`; worker 0 cuts it off. */
#define CUTS_OFF(how, act) \
    static void how(struct bx_job *job) \
    { \
        act; \
    } \
    Test(fuzz, how##_cuts_off, .timeout = 30) \
    { \
        run_hostile(setup, how, expect_cut_off); \
    }
#define CUTS_OFF_FRAME(how, ...) \
    CUTS_OFF(how, put_head(job, ((struct bxi_frame){ .deadline_ns = BX_FOREVER, __VA_ARGS__ })))
/* The record is complete, but `word` has another length or place. */
#define CUTS_OFF_WORD(how, frame_kind, word) CUTS_OFF(how, put_frame_of_length(job, frame_kind, word))

CUTS_OFF_WORD(wrong_sequence, BXI_REPLY, word_here(job, sizeof(struct bxi_frame)) + (UINT64_C(1) << 32))
CUTS_OFF_WORD(length_of_a_whole_ring, BXI_REPLY, word_here(job, BXI_RING_BYTES))
CUTS_OFF_WORD(length_just_over_the_most, BXI_REPLY, word_here(job, BXI_FRAME_MAX + 1))
CUTS_OFF_WORD(padding_to_nowhere, BXI_REPLY, word_here(job, 0x80000000u | 4096))
/* Shorter than the head of a frame. */
CUTS_OFF_WORD(shorter_than_a_head, BXI_REPLY, word_here(job, sizeof(struct bxi_frame) - 1))
CUTS_OFF_WORD(one_way_call_cut_short, BXI_ONEWAY, word_here(job, sizeof(struct bxi_frame) - 1))
CUTS_OFF_WORD(request_cut_short, BXI_REQUEST, word_here(job, sizeof(struct bxi_frame) - 1))
CUTS_OFF_WORD(cancel_cut_short, BXI_CANCEL, word_here(job, sizeof(struct bxi_frame) - 1))
CUTS_OFF_FRAME(kind_zero, .kind = 0)
CUTS_OFF_FRAME(kind_255, .kind = 255)
CUTS_OFF_FRAME(reply_with_an_unknown_slot, .kind = BXI_REPLY, .id = 1 << 16 | 0xffff)
CUTS_OFF_FRAME(reply_for_a_free_slot, .kind = BXI_REPLY, .id = 1 << 16 | 15)
CUTS_OFF_FRAME(reply_of_another_generation, .kind = BXI_REPLY, .id = UINT64_C(77) << 16)
CUTS_OFF_FRAME(reply_with_a_positive_code, .kind = BXI_REPLY, .id = HELD_ID, .code = 1)
CUTS_OFF_FRAME(read_what_was_never_sent, .kind = BXI_REPLY, .id = HELD_ID, .consumed = UINT64_C(1) << 40)
CUTS_OFF_FRAME(request_that_read_what_was_never_sent, .kind = BXI_REQUEST, .id = 7 << 16,
               .consumed = UINT64_C(1) << 40)
CUTS_OFF(state_goes_back, put_state(job, BXI_STARTING))
CUTS_OFF(state_from_nowhere, put_state(job, 1000))

/* ---- Nonsense without effect -------------------------------------------------------------------------- */

static void harmless_words(struct bx_job *job)
{
    struct bxi_pair *pair = &job->control->pair[0];
    struct bxi_frame cancel = frame_of(BXI_CANCEL, 12345);

    bxi_store_release(&pair->open, 2);
    bxi_store_relaxed(&pair->want_credit, UINT64_MAX);
    bxi_store_relaxed(&job->control->header.armed, UINT64_MAX);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[0]);
    bxi_bell_ring(job->rpc->peers[0]->bell.fd[1]);
    put_head(job, cancel);
}

static void is_not_disturbed(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 3), 3);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    harness_post(FINISHED);
    harness_end(future, BX_E_PEER_DEAD);
}

Test(fuzz, words_without_meaning_are_ignored, .timeout = 30)
{
    run_hostile(setup, harmless_words, is_not_disturbed);
}

static void function_out_of_range(struct bx_job *job)
{
    struct bxi_frame request = frame_of(BXI_REQUEST, 5);

    request.function = 0xffff;
    put_head(job, request);
}

/* Worker 0 answers the request with an error. */
static void answers_what_cannot_be(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    while (harness_counter(job, "requests_refused") == 0) {
        HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
        HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    }
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    harness_post(FINISHED);
    harness_end(future, BX_E_PEER_DEAD);
}

/* setup registers four functions. */
static void function_behind_the_last(struct bx_job *job)
{
    struct bxi_frame request = frame_of(BXI_REQUEST, 5);

    request.function = 4;
    put_head(job, request);
}

Test(fuzz, a_function_out_of_range_is_refused, .timeout = 30)
{
    run_hostile(setup, function_behind_the_last, answers_what_cannot_be);
    harness_reset();
    run_hostile(setup, function_out_of_range, answers_what_cannot_be);
}

static void function_count_too_high(struct bx_job *job)
{
    bxi_store_release(&job->control->header.function_count, BXI_FUNCTION_MAX + 1);
}

static void credit_beyond_what_was_written(struct bx_job *job)
{
    bxi_store_release(&job->control->credit[0].position, UINT64_C(1) << 40);
}

static void credit_goes_back(struct bx_job *job)
{
    bxi_store_release(&job->control->credit[0].position, 0);
}

static void names_without_end(struct bx_job *job)
{
    memset(job->control->function, 'x', sizeof(job->control->function));
    bxi_store_release(&job->control->header.function_count, BXI_FUNCTION_MAX);
}

/* A call of an unknown name reads worker 1's table of functions. */
static void looks_up(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "new", NULL, NULL, NULL), BX_E_CORRUPT);
    harness_end(future, BX_E_CORRUPT);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    harness_post(FINISHED);
}

Test(fuzz, more_functions_than_128_cut_off, .timeout = 30)
{
    run_hostile(setup, function_count_too_high, looks_up);
}

static void finds_no_name(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    strikes_now();
    HARNESS_EQ(bx_rpc_sync(job, "worker1", "new", NULL, NULL, NULL), BX_E_NO_FUNCTION);
    HARNESS_HAS(bx_error_text(), "x, x");       /* each name ends within its field */
    HARNESS_EQ(harness_call_i64(job, "worker1", "echo", 3), 3);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    harness_post(FINISHED);
    harness_end(future, BX_E_PEER_DEAD);
}

Test(fuzz, unterminated_names_end_with_their_field, .timeout = 30)
{
    run_hostile(setup, names_without_end, finds_no_name);
}

/* Fills the ring, because the credit word is read only when room is short. The hostile worker has stopped reading, so
 * that it does not overwrite the wrong credit with a correct one. */
static int fill_the_ring(struct bx_job *job)
{
    static const char payload[8000];
    OWN(msg) *args = bx_msg_create(sizeof(payload));
    int rc;

    bx_msg_put_bytes(args, payload, sizeof(payload));
    strikes_now();
    do
        rc = bx_rpc_oneway(job, "worker1", "echo", args, &(struct bx_call_options){ .no_wait = true });
    while (rc == 0);
    return rc;
}

static void is_told_too_much_credit(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    HARNESS_EQ(fill_the_ring(job), BX_E_CORRUPT);
    harness_end(future, BX_E_CORRUPT);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    harness_post(FINISHED);
}

/* An old credit is ignored, because a piggybacked credit may be newer than the word. */
static void is_told_an_old_credit(struct bx_job *job)
{
    struct bx_future *future = held_call(job);

    HARNESS_EQ(fill_the_ring(job), -EAGAIN);
    HARNESS_EQ(harness_counter(job, "peers_corrupt"), 0);
    HARNESS_EQ(harness_call_i64(job, "worker2", "echo", 7), 7);
    harness_post(FINISHED);
    harness_end(future, BX_E_PEER_DEAD);
}

static void (*wrong_credit)(struct bx_job *job);

/* Takes the progress role, so no thread of this worker reads rings or publishes credit any more. */
static void stop_reading_then(struct bx_job *job)
{
    uint32_t free = 0;

    while (!bxi_cas(&job->run->role, &free, 1)) {
        free = 0;
        sched_yield();
    }
    wrong_credit(job);
}

static void run_credit(void (*how)(struct bx_job *job), harness_fn body)
{
    wrong_credit = how;
    run_hostile(setup, stop_reading_then, body);
}

Test(fuzz, credit_beyond_what_was_written_cuts_off, .timeout = 30)
{
    run_credit(credit_beyond_what_was_written, is_told_too_much_credit);
}

Test(fuzz, credit_that_goes_back_is_ignored, .timeout = 30)
{
    run_credit(credit_goes_back, is_told_an_old_credit);
}
