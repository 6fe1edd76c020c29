/* SPDX-License-Identifier: MIT */
/*
 * The programs. They are compiled as the library is and linked into each copy of it: inline functions of its headers
 * are watched there too, and the programs get the functions of world.syms.
 */
#ifndef TESTS_SIM_ROOMS_H
#define TESTS_SIM_ROOMS_H

#include "sim.h"

#define SIM_NAP_NS 50000       /* of shm/backoff.h: for a thread that is held */

/* The call succeeds; one that was refused (--fail) does when it is made again: true. */
bool sim_is_to_repeat(const char *call, int rc);        /* room_fail.c */
#define SIM_MUST(call) do { } while (sim_is_to_repeat(#call, call))

void sim_room_ring(int worker);         /* room_ring.c */
void sim_room_bell(int worker);
void sim_room_role(int worker);         /* room_role.c */
void sim_room_role_quiet(uint64_t ns);
void sim_room_vars(int worker);         /* room_vars.c */
void sim_room_shared(int worker);       /* room_shared.c */
void sim_room_oneway(int worker);       /* room_job.c */
void sim_room_full(int worker);
void sim_room_calls(int worker);        /* room_mix.c */
void sim_room_death(int worker);
void sim_room_tensors(int worker);
void sim_room_rrefs(int worker);
void sim_room_late(int worker);
void sim_room_grads(int worker);
void sim_room_mix(int worker);
void sim_room_net(int worker);
void sim_room_serve(int worker);        /* room_end.c */
void sim_room_leave(int worker);
void sim_room_end(int worker);
void sim_room_start(int worker);         /* room_start.c */
void sim_room_job_check(void);
void sim_room_job_again(int worker);
void sim_room_job_quiet(uint64_t ns);

#endif
