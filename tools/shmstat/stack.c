/* SPDX-License-Identifier: MIT */
/*
 * Stacks of threads: stack.h. eu-stack traces one thread (ptrace), which stands still until its frames are read. It is
 * killed if it takes too long: the kernel lets the thread go on then.
 */
#include "stack.h"
#include "json.h"
#include "text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "eu-stack"
#define OUTPUT_MAX 65536
#define STACKS_MAX 8                /* in one explanation: each may take seconds, if the program is large */
#define OLD_S 1.0                   /* a wait that is younger is shown without its stack, unless that is asked for */

extern char **environ;

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

/* Starts it, with its output and its complaints in *out. 0, or an errno. */
static int start(uint64_t thread, pid_t *pid, int *out)
{
    char frames[16], number[24];
    char *const words[] = { (char[]){ PROGRAM }, (char[]){ "-1" }, (char[]){ "-n" }, frames, (char[]){ "-p" }, number,
                            NULL };
    posix_spawn_file_actions_t actions;
    int ends[2], rc;

    snprintf(frames, sizeof(frames), "%d", STAT_FRAMES_MAX);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)thread);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return errno;
    rc = posix_spawn_file_actions_init(&actions);
    if (rc == 0) {
        if ((rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO)) == 0 &&
            (rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO)) == 0)
            rc = posix_spawnp(pid, PROGRAM, &actions, NULL, words, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    if (rc == 0)
        *out = ends[0];
    else
        close(ends[0]);
    return rc;
}

/* Reads until its end or the deadline. False: the deadline. What does not fit is dropped. */
static bool read_all(int out, uint64_t deadline_ns, char text[OUTPUT_MAX])
{
    size_t used = 0;

    for (;;) {
        struct pollfd waits = { .fd = out, .events = POLLIN };
        uint64_t now_ns = stat_now_ns(CLOCK_MONOTONIC);
        char rest[4096];
        bool full = used == OUTPUT_MAX - 1;
        int ready = now_ns >= deadline_ns ? 0 : poll(&waits, 1, (int)((deadline_ns - now_ns) / 1000000) + 1);
        ssize_t bytes;

        if (ready == 0 || (ready < 0 && errno != EINTR)) {
            text[used] = '\0';
            return false;
        }
        if (ready < 0)
            continue;
        bytes = full ? read(out, rest, sizeof(rest)) : read(out, text + used, OUTPUT_MAX - 1 - used);
        if (bytes <= 0) {
            text[used] = '\0';
            return true;
        }
        used += full ? 0 : (size_t)bytes;
    }
}

/* Takes the lines that are frames, and of the others the first complaint. */
static void parse(struct stat_stack *stack, const char *text)
{
    static const char says[] = PROGRAM ": ";

    for (const char *line = text; *line != '\0';) {
        size_t bytes = strcspn(line, "\n");

        if (line[0] == '#' && stack->count < STAT_FRAMES_MAX)
            stat_printable(stack->frame[stack->count++], sizeof(stack->frame[0]), line, bytes);
        else if (stack->problem[0] == '\0' && strncmp(line, says, sizeof(says) - 1) == 0)
            stat_printable(stack->problem, sizeof(stack->problem), line, bytes);
        line += bytes + (line[bytes] == '\n');
    }
    if (stack->count > 0)
        stack->problem[0] = '\0';       /* it complains of frames that are missing, or more than it may show */
    else if (strstr(text, strerror(EPERM)) != NULL)
        snprintf(stack->problem, sizeof(stack->problem), "the kernel forbids to trace the process. Run shmstat as "
                 "root, or allow it with sysctl kernel.yama.ptrace_scope=0");
    else if (stack->problem[0] == '\0')
        snprintf(stack->problem, sizeof(stack->problem), PROGRAM " shows no frame");
}

void stat_stack_read(struct stat_stack *stack, uint64_t thread, uint64_t timeout_ns)
{
    static char text[OUTPUT_MAX];
    bool ended;
    pid_t pid;
    int out = -1, rc = start(thread, &pid, &out);

    stack->count = 0;
    stack->problem[0] = '\0';
    if (rc != 0) {
        snprintf(stack->problem, sizeof(stack->problem), PROGRAM " cannot be run: %s", strerror(rc));
        return;
    }
    ended = read_all(out, stat_now_ns(CLOCK_MONOTONIC) + timeout_ns, text);
    close(out);
    if (!ended)
        kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    parse(stack, text);
    if (!ended && stack->count == 0)
        snprintf(stack->problem, sizeof(stack->problem), PROGRAM " took longer than %.3g s and was ended",
                 (double)timeout_ns / 1e9);
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
