/* SPDX-License-Identifier: MIT */
/*
 * What programs with whole jobs share; room_job.c has it.
 */
#ifndef TESTS_SIM_ROOM_JOB_H
#define TESTS_SIM_ROOM_JOB_H

#include "rooms.h"

/* Of sim_truth. */
#define WORKERS_MOST 5
enum { UNDER_WAY, CALLBACKS, STARTED, BEGUN, OBJECTS, OWED, SIZE, LEAVERS, PENDING, GIVEN_UP, ALONE, REJOIN, CLOSED,
       SERIAL, EXTINCT, WAITS, BEGINNING, EXCUSED, DIES_AT_END, FLOODED,
       HANDLED_0, SENT_TO_0 = HANDLED_0 + WORKERS_MOST, STOPPED_0 = SENT_TO_0 + WORKERS_MOST,
       ARRIVED_OF_0 = STOPPED_0 + WORKERS_MOST, ORDERED_OF_0 = ARRIVED_OF_0 + WORKERS_MOST,
       HEARD_0 = ORDERED_OF_0 + WORKERS_MOST, FRESH_0 = HEARD_0 + WORKERS_MOST,
       DONE_0 = FRESH_0 + WORKERS_MOST, FREE_0 = DONE_0 + WORKERS_MOST,
       OBJECTS_0 = FREE_0 + WORKERS_MOST,
       AWARE_0 = OBJECTS_0 + WORKERS_MOST,
       IN_0 = AWARE_0 + WORKERS_MOST, FREED_0 = IN_0 + WORKERS_MOST };

struct bx_job;
struct bx_msg;
struct bx_reader;
struct bx_request;
extern const char *const sim_names[WORKERS_MOST];
bool sim_any_is_dead(void);
bool sim_words_are_lost(void);                          /* one that left may count as dead */
uint64_t sim_death_ns(void);                             /* so long the death of a host may be unknown; 0: none */
bool sim_one_left(void);                                /* alone, or because another one was stopped for so long */
void sim_must(const struct bx_job *job, const char *what, int rc);      /* no error but that a worker has died */
/* more: before the start. NULL: it has died before, and does not come back. */
struct bx_job *sim_job_begin(int rank, int workers, void (*more)(struct bx_job *job));
extern int sim_registrar;                               /* a fiber that uses the job before it has started, or -1 */
void sim_job_kill(int rank, uint32_t points);           /* it may be started again */
void sim_await_decision(int rank);                      /* it is in the job, or will not come back, or one leaves */
uint64_t sim_life(int rank);                            /* of a worker that can be called; 0: it may be none */
/* As sim_must, for a call to that worker, which began in that life. */
void sim_must_reach(const struct bx_job *job, const char *what, int rc, int to, uint64_t life);
void sim_job_end(struct bx_job *job, int other);        /* other: a fiber that may call until the end, or -1 */
void *sim_call_some(void *job);
void sim_expect(const struct bx_msg *reply, int64_t value);     /* that it is twice the value */
/* A handler that answers so; the world's truth counts none of its calls. */
int sim_double(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);
int sim_another(const struct bx_job *job);              /* the rank of some other worker */
bool sim_is_allowed(int rc);                            /* because a worker has died, or has left alone */
bool sim_keeps_nothing(void);                           /* nobody keeps tensors or references: none leaks */
bool sim_leave_alone(struct bx_job *job);               /* without a shutdown, in some schedules */
/* Operations of scripts (room_mix.c), and what they need before and behind them. */
typedef void sim_operation(struct bx_job *job);
sim_operation sim_call, sim_flood, sim_mirror;
bool sim_all_have(unsigned truth_0);                    /* all workers that are there or come back; room_lend.c */
sim_operation sim_lend, sim_refer, sim_lend_register;
void sim_release_kept(void);                            /* of others: tensors and references */
/* Nobody keeps tensors or objects any more. */
void sim_get_all_back(struct bx_job *job);
void sim_await_objects(void);
sim_operation sim_combine, sim_call_back, sim_call_object, sim_begin_and_await, sim_fulfil_one;    /* room_late.c */
sim_operation sim_late_register;
sim_operation sim_pass, sim_grads_register;              /* room_grads.c */
void sim_grads_end(void);                               /* the job has ended */
void *sim_complete(void *job);
void sim_late_end(void);
void sim_release_late(void);

/* room_fail.c. With --fail a call of the world fails, once: what is made again succeeds. */
bool sim_was_refused(const char *functions);            /* it was a call of one of them, whose names it has */
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
