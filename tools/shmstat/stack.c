/* SPDX-License-Identifier: MIT */
/*
 * Stacks of threads: stack.h. eu-stack traces one thread (ptrace), which stands still until its frames are read.
 * timeout(1) kills it if it takes too long: the kernel lets the thread go on then.
 */
#include "stack.h"
#include "json.h"
#include "text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "eu-stack"
#define STACKS_MAX 8                /* in one explanation: each may take seconds, if the program is large */
#define OLD_S 1.0                   /* a wait that is younger is shown without its stack, unless that is asked for */

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
    errno = ENOENT;
    if (!stat_stack_can() || (lines = popen(command, "re")) == NULL) {
        snprintf(stack->problem, sizeof(stack->problem), PROGRAM " cannot be run: %s", strerror(errno));
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

static struct stat_thread *append(struct stat_stacks *stacks, const struct stat_thread *thread)
{
    for (size_t i = 0; i < stacks->count; i++)
        if (stacks->list[i].pid == thread->pid && stacks->list[i].thread == thread->thread)
            return NULL;
    if (stacks->count == stacks->capacity) {
        size_t capacity = stacks->capacity > 0 ? stacks->capacity * 2 : 16;
        struct stat_thread *list = realloc(stacks->list, capacity * sizeof(*list));

        if (list == NULL)
            return NULL;
        stacks->list = list;
        stacks->capacity = capacity;
    }
    stacks->list[stacks->count] = *thread;
    return &stacks->list[stacks->count++];
}

static bool is_to_read(const struct stat_stacks *stacks, const struct stat_thread *thread, double age_s)
{
    if (thread->thread == 0 || stacks->options->no_stack || stacks->read == STACKS_MAX || !stat_stack_can())
        return false;
    return stacks->options->stack || (!stacks->options->json && age_s >= OLD_S);
}

void stat_stacks_add(struct stat_stacks *stacks, const struct stat_thread *thread, double age_s)
{
    struct stat_thread *added = append(stacks, thread);
    char command[80];

    if (added == NULL)
        return;
    if (is_to_read(stacks, added, age_s) && (added->stack = malloc(sizeof(*added->stack))) != NULL) {
        stacks->read++;
        stat_stack_read(added->stack, added->thread, STAT_STACK_TIMEOUT_NS);
    }
    if (stacks->options->json)
        return;
    stat_stack_command(command, sizeof(command), added->pid, added->thread);
    printf("    %s\n", command);
    for (size_t i = 0; added->stack != NULL && i < added->stack->count; i++)
        printf("        %s\n", added->stack->frame[i]);
    if (added->stack != NULL && added->stack->problem[0] != '\0')
        printf("    No stack: %s.\n", added->stack->problem);
    if (stacks->options->stack && !stacks->told && !stat_stack_can()) {
        printf("    No stack: " PROGRAM " is not installed. It is in Debian's package elfutils.\n");
        stacks->told = true;
    }
}

void stat_stacks_json(const struct stat_stacks *stacks)
{
    stat_json_open("threads", '[');
    for (size_t i = 0; i < stacks->count; i++) {
        const struct stat_thread *thread = &stacks->list[i];
        const struct stat_stack *stack = thread->stack;
        char command[80];

        stat_stack_command(command, sizeof(command), thread->pid, thread->thread);
        stat_json_open(NULL, '{');
        stat_json_u64("worker", (uint64_t)thread->rank);
        stat_json_u64("pid", thread->pid);
        if (thread->thread != 0)
            stat_json_u64("thread", thread->thread);
        else
            stat_json_null("thread");
        stat_json_text("stack_command", command);
        stat_json_open("stack", '[');
        for (size_t k = 0; stack != NULL && k < stack->count; k++)
            stat_json_text(NULL, stack->frame[k]);
        stat_json_close(']');
        stat_json_text("stack_problem", stack != NULL ? stack->problem
                                        : stacks->options->stack && !stat_stack_can()
                                            ? PROGRAM " is not installed. It is in Debian's package elfutils"
                                            : NULL);
        stat_json_close('}');
    }
    stat_json_close(']');
}

void stat_stacks_free(struct stat_stacks *stacks)
{
    for (size_t i = 0; i < stacks->count; i++)
        free(stacks->list[i].stack);
    free(stacks->list);
}
