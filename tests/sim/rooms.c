/* SPDX-License-Identifier: MIT */
/*
 * The table of programs, one in each copy of the library.
 */
#include "rooms.h"

/* Whole jobs. */
#define JOB(of, count, about)                                                                 \
    { .name = #of, .workers = count, .points = about, .resets = true, .start = sim_room_##of, \
      .check = sim_room_job_check, .again = sim_room_job_again, .quiet = sim_room_job_quiet }

const struct sim_program sim_programs[] = {
    { .name = "ring", .workers = 1, .points = 3000, .start = sim_room_ring },
    { .name = "bell", .workers = 1, .points = 300, .start = sim_room_bell },
    { .name = "role", .workers = 1, .points = 4000, .resets = true, .start = sim_room_role,
      .quiet = sim_room_role_quiet },
    { .name = "vars", .workers = 1, .points = 3000, .resets = true, .start = sim_room_vars },
    JOB(shared, 1, 20000),
    JOB(calls, 2, 60000),
    JOB(oneway, 2, 50000),
    JOB(full, 2, 100000),
    JOB(tensors, 3, 100000),
    JOB(rrefs, 3, 100000),
    JOB(death, 2, 50000),
    JOB(late, 2, 60000),
    JOB(grads, 3, 150000),
    JOB(mix, 5, 150000),
    JOB(net, 3, 100000),
    JOB(serve, 3, 100000),
    JOB(leave, 3, 25000),
    JOB(end, 2, 50000),
    JOB(start, 3, 20000),
    { .name = NULL },
};
