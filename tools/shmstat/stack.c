/* SPDX-License-Identifier: MIT */
/*
 * Stacks of threads: stack.h. eu-stack traces one thread (ptrace), which stands still until its frames are read.
 * timeout(1) kills it if it takes too long: the kernel lets the thread go on then.
 */
#include "stack.h"
#include "json.h"
#include "row.h"
#include "text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "eu-stack"

bool stat_stack_can(void)
{
    const char *path = secure_getenv("PATH");
    char file[4096];

    while (path != NULL && *path != '\0') {
        size_t bytes = strcspn(path, ":");

        snprintf(file, sizeof(file), "%.*s/" PROGRAM, (int)bytes, path);
        if (bytes > 0 && access(file, X_OK) == 0)
            return true;
        path += bytes + (path[bytes] == ':');
    }
    return false;
}

void stat_stack_command(char *to, size_t bytes, uint32_t pid, uint64_t thread)
{
    bool can = stat_stack_can();

    if (thread != 0)
        snprintf(to, bytes, can ? PROGRAM " -1 -p %llu" : "gdb -p %llu -batch -ex bt", (unsigned long long)thread);
    else
        snprintf(to, bytes, can ? PROGRAM " -p %u" : "gdb -p %u -batch -ex 'thread apply all bt'", pid);
}

/* ---- Running it ------------------------------------------------------------------------------------- */

/* Takes a line that is a frame, or the first complaint. Returns whether the kernel forbids it. */
static bool take_line(struct stat_stack *stack, const char *line)
{
    static const char says[] = PROGRAM ": ";
    size_t bytes = strcspn(line, "\n");

    if (line[0] == '#' && stack->count < STAT_FRAMES_MAX)
        stat_printable(stack->frame[stack->count++], sizeof(stack->frame[0]), line, bytes);
    else if (stack->problem[0] == '\0' && strncmp(line, says, sizeof(says) - 1) == 0)
        stat_printable(stack->problem, sizeof(stack->problem), line, bytes);
    return strstr(line, strerror(EPERM)) != NULL;
}

void stat_stack_read(struct stat_stack *stack, uint64_t thread, uint64_t timeout_ns)
{
    bool is_forbidden = false, is_late;
    char command[160], line[512];
    FILE *lines = NULL;
    int status;

    stack->count = 0;
    stack->problem[0] = '\0';
    snprintf(command, sizeof(command), "exec timeout -s KILL %.3f " PROGRAM " -1 -n %d -p %llu 2>&1",
             (double)timeout_ns / 1e9, STAT_FRAMES_MAX, (unsigned long long)thread);
    if (!stat_stack_can() || (lines = popen(command, "re")) == NULL) {
        snprintf(stack->problem, sizeof(stack->problem),
                 PROGRAM " is not installed. It is in Debian's package elfutils");
        return;
    }
    while (fgets(line, sizeof(line), lines) != NULL)
        is_forbidden |= take_line(stack, line);
    status = pclose(lines);
    is_late = WIFSIGNALED(status) || WEXITSTATUS(status) == 128 + SIGKILL;
    if (stack->count > 0)
        stack->problem[0] = '\0';       /* it complains of frames that are missing, or more than it may show */
    else if (is_late)
        snprintf(stack->problem, sizeof(stack->problem), PROGRAM " took longer than %.3g s and was ended",
                 (double)timeout_ns / 1e9);
    else if (is_forbidden)
        snprintf(stack->problem, sizeof(stack->problem), "the kernel forbids to trace the process. Run shmstat as "
                 "root, or allow it with sysctl kernel.yama.ptrace_scope=0");
    else if (stack->problem[0] == '\0')
        snprintf(stack->problem, sizeof(stack->problem), PROGRAM " shows no frame");
}

/* ---- The threads of an explanation -------------------------------------------------------------------- */

void stat_stacks_add(struct stat_stacks *stacks, int rank, uint32_t pid, uint64_t thread)
{
    struct stat_thread *added = &stacks->list[stacks->count];
    char command[80];

    for (size_t i = 0; i < stacks->count; i++)
        if (stacks->list[i].pid == pid && stacks->list[i].thread == thread)
            return;
    if (stacks->count == STAT_THREADS_MAX)
        return;
    stacks->count++;
    added->rank = rank;
    added->pid = pid;
    added->thread = thread;
    added->stack.count = 0;
    added->stack.problem[0] = '\0';
    if (stacks->are_wanted && thread != 0)
        stat_stack_read(&added->stack, thread, STAT_STACK_TIMEOUT_NS);
    if (stacks->json)
        return;
    stat_stack_command(command, sizeof(command), pid, thread);
    printf("    %s\n", command);
    for (size_t i = 0; i < added->stack.count; i++)
        printf("        %s\n", added->stack.frame[i]);
    if (added->stack.problem[0] != '\0')
        printf("    No stack: %s.\n", added->stack.problem);
}

void stat_stacks_json(const struct stat_stacks *stacks)
{
    struct stat_row row;
    char command[80];

    stat_json_open("threads", '[');
    for (size_t i = 0; i < stacks->count; i++) {
        const struct stat_thread *thread = &stacks->list[i];

        stat_stack_command(command, sizeof(command), thread->pid, thread->thread);
        stat_row_begin(&row);
        stat_put(&row, "worker", STAT_ID, (uint64_t)thread->rank);
        stat_put(&row, "pid", STAT_ID, thread->pid);
        stat_put_if(&row, thread->thread != 0, "thread", STAT_ID, thread->thread);
        stat_put_text(&row, "stack_command", command);
        stat_put_names(&row, "stack");
        for (size_t k = 0; k < thread->stack.count; k++)
            stat_add_name(&row, "%s", thread->stack.frame[k]);
        stat_put_text(&row, "stack_problem", thread->stack.problem);
        stat_json_open(NULL, '{');
        stat_row_json(&row);
        stat_json_close('}');
    }
    stat_json_close(']');
}
