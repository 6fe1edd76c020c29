/* SPDX-License-Identifier: MIT */
#include "stack.h"

#include "json.h"
#include "row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "eu-stack"

/* True if PATH has it. */
static bool has_program(void)
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
    bool has = has_program();

    if (thread != 0)
        snprintf(to, bytes, has ? PROGRAM " -1 -p %llu" : "gdb -p %llu -batch -ex bt", (unsigned long long)thread);
    else
        snprintf(to, bytes, has ? PROGRAM " -p %u" : "gdb -p %u -batch -ex 'thread apply all bt'", pid);
}

void stat_stacks_add(struct stat_stacks *stacks, int rank, uint32_t pid, uint64_t thread)
{
    char command[80];

    for (size_t i = 0; i < stacks->count; i++)
        if (stacks->list[i].pid == pid && stacks->list[i].thread == thread)
            return;
    if (stacks->count == STAT_THREADS_MAX)
        return;
    stacks->list[stacks->count++] = (struct stat_thread){ rank, pid, thread };
    stat_stack_command(command, sizeof(command), pid, thread);
    if (!stacks->json)
        printf("    %s\n", command);
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
        stat_json_open(NULL, '{');
        stat_row_json(&row);
        stat_json_close('}');
    }
    stat_json_close(']');
}
