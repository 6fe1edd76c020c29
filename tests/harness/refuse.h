/* SPDX-License-Identifier: MIT */
/* Makes a system call fail, as the filter of a container does. */
#ifndef TESTS_REFUSE_H
#define TESTS_REFUSE_H

#include "test.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

/* From now on one system call returns `error` in all threads of this process and in its children. */
static inline bool refuse(long syscall_number, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)syscall_number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

#endif
