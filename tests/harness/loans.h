/* SPDX-License-Identifier: MIT */
/*
 * What the tests of tensors on loan share: tensors whose bytes are computed from a number, and handlers that check
 * them, keep references to them and release them.
 *
 * loans_setup registers these functions in every worker. Their argument is a message of loans_msg:
 *
 *   verify, verify_blocking, verify_async   checks every tensor; answers how many there were
 *   keep, keep_blocking, keep_async, keep_batch   the same, and keeps a reference to each after the handler's end
 *   drop        value: releases that many kept tensors, the oldest first, each checked again; answers how many are left
 *   peek        answers byte 77 of the oldest kept tensor
 *   make        value: answers with that many new tensors of 1000 elements of the arena, numbered from 0
 *   back        answers with the tensors of the request
 *   fail        checks all tensors, puts one into the reply, and fails with -EDOM
 *   echo        answers the value
 *   hold        never answers (async); keeps the first tensor until its future fails
 *   stuck       blocking: posts gate LOANS_STUCK, waits for LOANS_GO, answers with a tensor
 */
#ifndef TESTS_LOANS_H
#define TESTS_LOANS_H

#include "harness.h"

/* Gates that the handlers use. A test's own must be smaller. */
enum loans_gate { LOANS_STUCK = 48, LOANS_GO, LOANS_HELD };

int loans_setup(struct bx_job *job);

/* Writes the bytes of that number into a row-major tensor; checks that it has them. */
void loans_fill(struct bx_tensor *tensor, uint64_t number);
bool loans_hold(const struct bx_tensor *tensor, uint64_t number);

/* A filled tensor of one dimension; on the heap if job is NULL. Ends the worker if there is no memory. */
struct bx_tensor *loans_tensor(struct bx_job *job, enum bx_dtype dtype, int64_t elements, uint64_t number);

/* A handler, blocking, named "pass_on": a value, a way, tensors. The way has ranks, and last a function: "23keep" for
 * worker 2, which passes it to worker 3's keep. "+" before a rank: the value plus 100, and of each tensor the elements
 * from 100 on. Answers what the function answers. */
int loans_pass_on(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context);

/* The value, then `count` tensors of u8, numbered from value. The message has the only references to them. */
struct bx_msg *loans_msg(struct bx_job *job, int64_t value, int count, int64_t elements);

/* Checks that its first `count` tensors are numbered from `first`, and destroys the message. */
void loans_end(struct bx_msg *msg, uint64_t first, uint64_t count);

/* Begins a call without a deadline; args are destroyed. */
struct bx_future *loans_start(struct bx_job *job, const char *to, const char *function, struct bx_msg *args);
/* A sync call whose reply is dropped. Returns its code; args are destroyed. */
int loans_try(struct bx_job *job, const char *to, const char *function, struct bx_msg *args,
              const struct bx_call_options *options);

struct bx_loans loans_of(struct bx_job *job, int rank);
/* Waits until nothing is on loan to that worker (-1: to any worker). */
void loans_come_back(struct bx_job *job, int rank);

#endif
