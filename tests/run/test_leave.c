/* SPDX-License-Identifier: MIT */
/*
 * When a thread that drives stops although there is work: one that is ready or polls (lib/run/wait.c), one that ended
 * in a handler, and the background thread, which has to look at its descriptors. The source has frames of which a pass
 * handles eight; the clock is fake, and moves with each pass.
 */
#include "fake_system.h"

#include "base/usercall.h"

static struct {
    bxi_a32 frames;
    int handled;
    uint64_t pass_ns;                   /* what a pass takes */
    bxi_a32 is_ready;                   /* the waiter; after the first pass */
    int leaves_at;                      /* the thread ends in a handler when so many are handled */
} stream;

static bool stream_ready(void *context, const struct bxi_role *role)
{
    (void)context, (void)role;
    return bxi_load_seq_cst(&stream.frames) > 0;
}

static int pass_stream(void *context, const struct bxi_role *role, struct bxi_waiter *waiter)
{
    uint32_t frames = bxi_load_seq_cst(&stream.frames), handled = frames < 8 ? frames : 8;

    (void)context, (void)role, (void)waiter;
    move_clock(fake_now_ns() + stream.pass_ns);
    bxi_add(&stream.frames, -handled);
    stream.handled += (int)handled;
    bxi_exchange(&stream.is_ready, 1);
    if (stream.leaves_at != 0 && stream.handled == stream.leaves_at)
        bxi_leaving = &stream;
    return (int)handled;
}

static const struct bxi_source_ops ops = { .pass = pass_stream, .ready = stream_ready };

static bool stream_is_ready(struct bxi_waiter *waiter)
{
    (void)waiter;
    return bxi_load_seq_cst(&stream.is_ready) != 0;
}

static void set_up(void)
{
    fake.alone = true;
    begin_run(&run, &fake_system, 0);
    add_source(&ops, &stream);
}

TestSuite(leave, .init = set_up, .fini = end_run, .timeout = 20);

static bool background_is_rung(void)
{
    struct pollfd bell = { .fd = run.bell_fd[0], .events = POLLIN };

    return poll(&bell, 1, 0) == 1;
}

static void begin_stream(uint32_t frames, uint64_t pass_ns)
{
    bxi_exchange(&stream.frames, frames);
    stream.handled = 0;
    stream.pass_ns = pass_ns;
}

static int wait_for_stream(void)
{
    struct bxi_waiter waiter = { .ready = stream_is_ready, .object = &stream, .deadline_ns = BX_FOREVER };

    return bxi_wait(&run, &waiter);
}

Test(leave, is_put_off_for_work_that_is_done_soon)
{
    begin_stream(300, 100);
    bxi_poke(&run);
    cr_expect_eq(stream.handled, 300);
    bxi_exchange(&stream.is_ready, 0);
    begin_stream(300, 100);
    cr_expect_eq(wait_for_stream(), 0);
    cr_expect_eq(stream.handled, 300);
    cr_expect_not(background_is_rung());
    cr_expect_eq(bxi_load_seq_cst(&run.role), 0);
}

/* The first pass is the poll; then it goes on for 10 us, or for 1024 frames. */
Test(leave, is_not_put_off_for_long)
{
    static const struct { uint64_t pass_ns; int handled; } cases[] = {
        { 3000, 8 + 4 * 8 }, { 1000000, 8 + 8 }, { 0 /* the clock stands */, 8 + 1024 },
    };

    for (int i = 0; i < 3; i++) {
        begin_stream(100000, cases[i].pass_ns);
        bxi_poke(&run);
        cr_expect_eq(stream.handled, cases[i].handled);
        cr_expect(background_is_rung());
        bxi_bell_drain(run.bell_fd[0]);
    }
}

Test(leave, is_not_put_off_by_a_thread_that_ended_in_a_handler)
{
    begin_stream(300, 100);
    stream.leaves_at = 16;
    bxi_poke(&run);
    cr_expect_eq(stream.handled, 16);
    cr_expect(background_is_rung());
    bxi_leaving = NULL;
}

/* It sleeps at once after its bell, or a descriptor, has been looked at; here 200 frames take a millisecond. */
Test(leave, of_the_background_thread_comes_each_millisecond_though_there_is_work)
{
    fake.alone = false;
    cr_assert_eq(bxi_progress_start(&run, false), 0);
    await_sleepers(1, BX_FOREVER);
    begin_stream(2000, 40000);
    bxi_event(&run, BXI_EVENT_SCAN);
    pthread_mutex_lock(&fake.lock);
    while (fake.sleeps < 1 + 10)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
    await_sleepers(1, BX_FOREVER);
    cr_expect_eq(stream.handled, 2000);
    bxi_waits_stop(&run);
    bxi_progress_stop(&run);
}
