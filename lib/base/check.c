/* SPDX-License-Identifier: MIT */
/*
 * What public functions check first: that there is a job, that this process made it, and that its phase allows the
 * call; which names are valid; and numbers in the environment. Any thread.
 *
 * A job keeps the count of forks (shm/fork.h) of its creation, so a job whose count differs was made by a parent
 * process: its threads do not exist here, its locks may be held for ever, and its descriptors are closed.
 */
#include "base.h"

#include <errno.h>
#include <stdlib.h>

int bxi_job_check_any(const struct bx_job *job)
{
    if (job == NULL) {
        bx_fail(-EINVAL, "there is no job");
        return -EINVAL;             /* a constant here, so gcc knows that a caller with NULL returns */
    }
    if (bxi_job_is_forked(job))
        return bx_fail(BX_E_FORKED, "this process was forked after worker '%s' was created; fork first, "
                                    "then call bx_job_create", job->name);
    return 0;
}

int bxi_job_check(const struct bx_job *job)
{
    if (job == NULL || bxi_job_is_forked(job))
        return bxi_job_check_any(job);

    uint32_t phase = bxi_load_relaxed(&job->phase);

    if (phase == BXI_STARTED || phase == BXI_STOPPING)
        return 0;
    if (phase == BXI_STOPPED)
        return bx_fail(BX_E_SHUTDOWN, "worker '%s' has shut down", job->name);
    return bx_fail(BX_E_STATE, "worker '%s' has not started; call bx_job_start first", job->name);
}

bool bxi_name_is_valid(const char *name)
{
    size_t length = strlen(name);

    return length > 0 && length <= BX_NAME_MAX &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.") == length &&
           name[0] != '.';
}

int bxi_number_from_environment(const char *variable, uint64_t least, uint64_t most, uint64_t *value)
{
    const char *text = getenv(variable);
    char *end = NULL;

    if (text == NULL || text[0] == '\0')
        return 0;
    errno = 0;

    uint64_t number = strtoull(text, &end, 10);

    if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0' || number < least || number > most)
        return bx_fail(-EINVAL, "%s='%s' is not a number of %llu to %llu", variable, bxi_brief(text).text,
                       (unsigned long long)least, (unsigned long long)most);
    *value = number;
    return 1;
}
