/* SPDX-License-Identifier: MIT */
/*
 * A question's processes as the program sees them, and the memory that it shares with them.
 */
#ifndef CHECK_PAIR_H
#define CHECK_PAIR_H

#include "gpu/cuda_driver.h"
#include "gpucheck.h"
#include "shm/atomic.h"

#include <sys/types.h>

#define CHECK_PAGE_BYTES 4096u
#define CHECK_PAGES 2u                  /* of the file in /dev/shm: the owner's words, the peer's words */

enum check_role { CHECK_OWNER = 0, CHECK_PEER = 1 };

/* Written by the side that the comment names, read by the other and, after their end, by the program. */
struct check_shared {
    bxi_a32 step[2];                    /* by each side: how far it has come */
    bxi_a32 has_ended[2];               /* by the program */
    pid_t pid[2];                       /* by the program; valid once step 1 is reached */
    struct CUipcMemHandle_st handle[3]; /* by the owner */
    struct CUipcEventHandle_st event;
    bxi_a64 time_ns;                    /* by the owner: when it put a write on its stream */
    bxi_a64 number[2];                  /* [0] by the owner, [1] by the peer */
    struct {
        bxi_a32 is_skipped;             /* the rest is not asked, for this reason; else it is a failure */
        char reason[CHECK_TEXT_BYTES];
    } gave_up[2];                       /* by each side */
    struct check_answer answer[CHECK_LINES];    /* by either side; complete once given is 1 */
    bxi_a32 given[CHECK_LINES];
    struct check_found found;           /* by the first question's owner */
};

uint64_t check_now_ns(void);

/* Runs a question's processes until both have ended or the limit is over, and reports its lines. limit_ms is at most
 * the question's. found may be NULL. */
void check_ask(const struct check_question *question, const struct check_settings *settings, unsigned limit_ms,
               struct check_found *found);
/* Reports each line of a question as not asked, for a reason. */
void check_decline(const struct check_question *question, const char *reason);
/* Starts a process that keeps the driver initialised until this one ends, so that each question does not wait for it
 * again. Failures are ignored: questions are only slower. */
void check_keep_driver(void);

#endif
