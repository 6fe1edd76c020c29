/* SPDX-License-Identifier: MIT */
/*
 * What the tests of tensors on loan share: tensors whose bytes follow from a number, and handlers that
 * check them, keep them and let them go.
 *
 * The functions that loans_setup registers, in every worker (a message to them is made by loans_msg):
 *
 *   verify, verify_blocking, verify_async   checks every tensor; answers how many
 *   keep, keep_blocking, keep_async, keep_batch   the same, and holds on to them behind the handler's back
 *   drop        value: lets go of that many, the oldest first, each checked once more; answers how many are left
 *   peek        answers with byte 77 of the oldest tensor kept
 *   make        value: how many tensors of 1000 elements to answer with, in the arena, numbered from 0
 *   back        answers with the tensors that came
 *   fail        reads all, puts one into the reply, and fails with -EDOM
 *   echo        answers the value
 *   hold        never answers (async); holds the first tensor until its future fails
 *   stuck       blocking: at gate LOANS_STUCK until LOANS_GO; answers with a tensor
 *
 * A worker keeps the process id of rank r at harness_load(LOANS_PID + r).
 */
#ifndef TESTS_LOANS_H
#define TESTS_LOANS_H

#include "harness.h"

/* Gates and values that the handlers use; a test's own lie below. */
enum loans_gate { LOANS_STUCK = 48, LOANS_GO, LOANS_HELD };
enum loans_value { LOANS_PID = 192 };

int loans_setup(struct bx_job *job);

/* The bytes of a row-major tensor. */
void loans_fill(struct bx_tensor *tensor, uint64_t number);
bool loans_hold(const struct bx_tensor *tensor, uint64_t number);

/* One dimension, filled; on the heap where job is NULL. Ends the worker if it cannot. */
struct bx_tensor *loans_tensor(struct bx_job *job, enum bx_dtype dtype, int64_t elements, uint64_t number);

/* value, then count numbered tensors of u8, which the message alone holds afterwards. */
struct bx_msg *loans_msg(struct bx_job *job, int64_t value, int count, int64_t elements);

/* Begins a call without a deadline; args are destroyed. */
struct bx_future *loans_start(struct bx_job *job, const char *to, const char *function, struct bx_msg *args);
/* A sync call whose reply is dropped. Returns its code; args are destroyed. */
int loans_try(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
              const struct bx_call_options *options);

struct bx_loans loans_of(struct bx_job *job, int rank);
/* Waits until nothing is on loan to that worker (-1: to any). */
void loans_come_back(struct bx_job *job, int rank);

void loans_signal(int rank, int signal_number);
void loans_stop(int rank);                  /* SIGSTOP, and returns when it lies still */

#endif
