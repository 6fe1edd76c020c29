/* SPDX-License-Identifier: MIT */
/*
 * The stacks of threads that shmstat why names: the command that shows one, and the frames, by elfutils' eu-stack.
 */
#ifndef TOOLS_STACK_H
#define TOOLS_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAT_FRAMES_MAX 32
#define STAT_THREADS_MAX 128        /* two for each step of why */
#define STAT_STACK_TIMEOUT_NS (UINT64_C(10) * 1000000000)

struct stat_stack {
    size_t count;
    char frame[STAT_FRAMES_MAX][200];
    char problem[256];              /* why there is none, a sentence without its end; "" */
};

/* True if PATH has eu-stack. */
bool stat_stack_can(void);
/* The command: eu-stack's, else gdb's. thread 0: all threads of the process. */
void stat_stack_command(char *to, size_t bytes, uint32_t pid, uint64_t thread);
/* Runs eu-stack. The kernel stops the thread for some milliseconds meanwhile. */
void stat_stack_read(struct stat_stack *stack, uint64_t thread, uint64_t timeout_ns);

/* The threads that one explanation names, each once. */
struct stat_thread {
    int rank;
    uint32_t pid;
    uint64_t thread;                /* 0: one of the process's, it is not known which */
    struct stat_stack stack;
};

struct stat_stacks {
    bool are_wanted;                /* else the commands only */
    bool json;
    size_t count;
    struct stat_thread list[STAT_THREADS_MAX];
};

/* Prints the command that shows the thread's stack, and the stack; or keeps them for JSON. */
void stat_stacks_add(struct stat_stacks *stacks, int rank, uint32_t pid, uint64_t thread);
void stat_stacks_json(const struct stat_stacks *stacks);    /* the list "threads" */

#endif
