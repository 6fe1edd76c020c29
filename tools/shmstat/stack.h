/* SPDX-License-Identifier: MIT */
/*
 * The threads that one explanation of shmstat why names, each once, and the commands that show their stacks: elfutils'
 * eu-stack, else gdb.
 */
#ifndef TOOLS_STACK_H
#define TOOLS_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAT_THREADS_MAX 128        /* two for each step of why */

struct stat_stacks {
    bool json;
    size_t count;
    struct stat_thread {
        int rank;
        uint32_t pid;
        uint64_t thread;            /* 0: one of the process's, it is not known which */
    } list[STAT_THREADS_MAX];
};

/* The command. thread 0: for all threads of the process. */
void stat_stack_command(char *to, size_t bytes, uint32_t pid, uint64_t thread);
/* Prints the command, or keeps it for JSON. */
void stat_stacks_add(struct stat_stacks *stacks, int rank, uint32_t pid, uint64_t thread);
void stat_stacks_json(const struct stat_stacks *stacks);    /* the list "threads" */

#endif
