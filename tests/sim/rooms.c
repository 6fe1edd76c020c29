/* SPDX-License-Identifier: MIT */
/*
 * The table of programs, one in each copy of the library.
 */
#include "rooms.h"

const struct sim_program sim_programs[] = {
    { .name = "ring", .workers = 1, .points = 3000, .start = sim_room_ring },
    { .name = "bell", .workers = 1, .points = 300, .start = sim_room_bell },
    { .name = "role", .workers = 1, .points = 4000, .resets = true, .start = sim_room_role,
      .quiet = sim_room_role_quiet },
    { .name = "calls", .workers = 2, .points = 60000, .resets = true, .start = sim_room_calls,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "oneway", .workers = 2, .points = 50000, .resets = true, .start = sim_room_oneway,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "full", .workers = 2, .points = 100000, .resets = true, .start = sim_room_full,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "tensors", .workers = 3, .points = 100000, .resets = true, .start = sim_room_tensors,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "rrefs", .workers = 3, .points = 100000, .resets = true, .start = sim_room_rrefs,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "death", .workers = 2, .points = 50000, .resets = true, .start = sim_room_death,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "late", .workers = 2, .points = 60000, .resets = true, .start = sim_room_late,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "serve", .workers = 3, .points = 100000, .resets = true, .start = sim_room_serve,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = "end", .workers = 2, .points = 50000, .resets = true, .start = sim_room_end,
      .check = sim_room_job_check, .quiet = sim_room_job_quiet },
    { .name = NULL },
};
