/* SPDX-License-Identifier: MIT */
/*
 * What programs with whole jobs share; room_job.c has it.
 */
#ifndef TESTS_SIM_ROOM_JOB_H
#define TESTS_SIM_ROOM_JOB_H

#include "rooms.h"

/* Of sim_truth. */
#define WORKERS_MOST 3
enum { UNDER_WAY, CALLBACKS, STARTED, OBJECTS, OWED, SIZE, LEAVERS, PENDING, GIVEN_UP, ALONE, BEGINNING, EXCUSED,
       HANDLED_0, SENT_TO_0 = HANDLED_0 + WORKERS_MOST, STOPPED_0 = SENT_TO_0 + WORKERS_MOST,
       ARRIVED_OF_0 = STOPPED_0 + WORKERS_MOST, ORDERED_OF_0 = ARRIVED_OF_0 + WORKERS_MOST,
       HEARD_0 = ORDERED_OF_0 + WORKERS_MOST, FRESH_0 = HEARD_0 + WORKERS_MOST,
       DONE_0 = FRESH_0 + WORKERS_MOST, FREE_0 = DONE_0 + WORKERS_MOST,
       OBJECTS_0 = FREE_0 + WORKERS_MOST,
       AWARE_0 = OBJECTS_0 + WORKERS_MOST };

struct bx_job;
struct bx_msg;
struct bx_reader;
struct bx_request;
extern const char *const sim_names[WORKERS_MOST];
bool sim_any_is_dead(void);
void sim_must(const struct bx_job *job, const char *what, int rc);      /* no error but that a worker has died */
struct bx_job *sim_job_begin(int rank, int workers, void (*more)(struct bx_job *job));  /* more: before the start */
extern int sim_registrar;                              /* a fiber that uses the job before it has started, or -1 */
void sim_job_end(struct bx_job *job, int other);        /* other: a fiber that may call until the end, or -1 */
void *sim_call_some(void *job);
void sim_expect(const struct bx_msg *reply, int64_t value);     /* that it is twice the value */
/* A handler that answers so; the world's truth counts none of its calls. */
int sim_double(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int sim_another(const struct bx_job *job);              /* the rank of some other worker */
bool sim_is_allowed(int rc);                            /* because a worker has died, or has left alone */
bool sim_leave_alone(struct bx_job *job);               /* without a shutdown, in some schedules */
void sim_lend_register(struct bx_job *job);             /* room_lend.c */

/* room_fail.c. With --fail a call of the world fails, once: what is made again succeeds. */
bool sim_is_refusal(int rc);                            /* a code to which that leads */
bool sim_is_refused_start(int rank, int rc);            /* the same of bx_job_start */
struct bx_msg *sim_msg(void);                           /* an empty message */
struct bx_future *sim_future(struct bx_job *job);
#define SIM_AGAIN(job, what, call)              \
    do {                                        \
        int rc_ = call;                         \
                                                \
        if (rc_ < 0 && sim_refusal() != 0)      \
            rc_ = call;                         \
        sim_must(job, what, rc_);               \
    } while (0)

#endif
