/* SPDX-License-Identifier: MIT */
/*
 * The Criterion front end of stress.h.
 */
#include "stress.h"

#include <criterion/criterion.h>

TestSuite(stress, .timeout = 120);

Test(stress, frames_arrive_whole_and_in_order_between_threads)
{
    cr_assert_eq(bxi_stress_ring(300000), 0);
}

Test(stress, frames_arrive_whole_and_in_order_between_processes)
{
    cr_assert_eq(bxi_stress_ring_processes(300000), 0);
}

Test(stress, two_threads_wake_each_other_in_turn)
{
    cr_assert_eq(bxi_stress_doorbell(40000), 0);
}

Test(stress, who_publishes_sees_who_arms_or_is_seen)
{
    cr_assert_eq(bxi_stress_collision(50000), 0);
}
