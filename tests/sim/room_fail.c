/* SPDX-License-Identifier: MIT */
/*
 * What a program may see when one call of the world has failed (--fail).
 *
 * Truth: the call that was refused, and what waits for it, ends with the code that the header has for the error, and no
 * more than EXCUSED_MOST calls do. What is made again succeeds. A worker whose start fails has left the job.
 */
#include "room_job.h"

#include "boxcar.h"

#define EXCUSED_MOST 3                  /* or as many as there are workers */

bool sim_was_refused(const char *functions)
{
    return sim_refusal() != 0 && strstr(functions, sim_refused_function()) != NULL;
}

static bool is_code_of(int error, int rc)
{
    switch (rc) {
    case -ENOMEM:
        return error == ENOMEM || error == ENOBUFS;
    case BX_E_DESCRIPTORS:
        return error == EMFILE || error == ENFILE;
    case BX_E_NO_SPACE:
        return error == ENOSPC || sim_was_refused("fallocate");
    case BX_E_REFUSED:                  /* no ring for the reply */
    case BX_E_NO_OBJECT:                /* bx_remote failed, and who uses the reference does not know why */
        return sim_was_refused("malloc fallocate");
    default:
        return rc == -error;
    }
}

bool sim_is_refusal(int rc)
{
    if (sim_refusal() == 0)
        return false;
    if (rc == BX_E_SHUTDOWN)
        return sim_truth(BEGINNING) > 0;
    if (!is_code_of(sim_refusal(), rc))
        return false;
    sim_count(EXCUSED, 1);
    return sim_truth(EXCUSED) <= EXCUSED_MOST || sim_truth(EXCUSED) <= sim_truth(SIZE);
}

bool sim_is_refused_start(int rank, int rc)
{
    return sim_is_refusal(rc) ||
           (rc == BX_E_SOCKET_DIR &&
            sim_was_refused("lstat open mkdir socket bind listen connect accept4 F_OFD_SETLK")) ||
           /* A lock that cannot be asked for counts as held. */
           (rc == BX_E_JOB_RUNNING && sim_was_refused("F_OFD_GETLK")) ||
           (rc == BX_E_RANK_MISSING && sim_refusal() != 0 && sim_refused_worker() != rank) ||
           /* Rank 0 of several hosts tells why only who has proven that it may know. */
           (rc == BX_E_PEER_DEAD && sim_refusal() != 0 && sim_refused_worker() != rank &&
            strstr(bx_error_text(), "hung up before it said who it is") != NULL);
}

bool sim_is_to_repeat(const char *call, int rc)
{
    static bool has_failed;

    if (rc >= 0)
        return false;
    if (has_failed || sim_refusal() == 0 || !is_code_of(sim_refusal(), rc))
        sim_fail("%s returns %d: %s", call, rc, bx_error_text());
    return has_failed = true;
}

struct bx_msg *sim_msg(void)
{
    struct bx_msg *msg = bx_msg_create(0);

    return msg != NULL ? msg : bx_msg_create(0);
}

struct bx_future *sim_future(struct bx_job *job)
{
    struct bx_future *future = bx_future_create(job);

    return future != NULL ? future : bx_future_create(job);
}
