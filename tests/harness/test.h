/* SPDX-License-Identifier: MIT */
/* What tests begin with: Criterion, what most of them use of the C library, and locals that end with their block. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include "boxcar.h"
#include "boxcar_dist.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A local that is released, or destroyed, at the end of its block: OWN(msg) *args = bx_msg_create(0), *reply = NULL; */
#define OWN(type) __attribute__((cleanup(test_end_##type), unused)) struct bx_##type
#define TEST_ENDS(type, end) static inline void test_end_##type(struct bx_##type **owned) { end(*owned); }
TEST_ENDS(msg, bx_msg_destroy)
TEST_ENDS(future, bx_future_release)
TEST_ENDS(tensor, bx_tensor_release)
TEST_ENDS(rref, bx_rref_release)
TEST_ENDS(var, bx_var_release)
TEST_ENDS(tape, bx_tape_destroy)
TEST_ENDS(grads, bx_grads_destroy)
TEST_ENDS(context, bx_context_release)
TEST_ENDS(optim, bx_optim_destroy)
#undef TEST_ENDS

#endif
