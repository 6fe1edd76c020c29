/* SPDX-License-Identifier: MIT */
/*
 * shmstat why: what a worker or a call waits for, in sentences, from one worker to the next.
 *
 * Each step says where the oldest call that the worker waits for is now, and what its callee does; the next
 * step asks the same of the callee, or of the first worker that the callee's batch waits for. A worker that
 * comes up twice closes a cycle, and the chain ends with its names. It also ends at a worker that is dead,
 * stopped, or waits for nobody.
 */
#include "stat_calls.h"
#include "stat_gpu.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct chain {
    const struct stat_job *job;
    const struct stat_calls *calls;
    bool json;
    int visited[BXI_WORLD_MAX];         /* ranks, in the order of the chain */
    int length;
};

/* ---- Sentences -------------------------------------------------------------------------------------- */

static void say(const struct chain *chain, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(const struct chain *chain, const char *format, ...)
{
    char sentence[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    if (chain->json)
        stat_json_text(NULL, sentence);
    else
        printf("%s\n", sentence);
}

static const char *name_of(const struct chain *chain, int rank)
{
    return stat_peer_name(chain->job, rank);
}

/* ---- What a worker waits for -------------------------------------------------------------------------- */

/* Its oldest call that somebody still waits for. */
static const struct stat_call *oldest_call(const struct chain *chain, int rank)
{
    for (size_t i = 0; i < chain->calls->count; i++)
        if (chain->calls->list[i].from == rank && !chain->calls->list[i].given_up)
            return &chain->calls->list[i];
    return NULL;
}

static void say_cycle(const struct chain *chain, int rank)
{
    char names[400] = "";
    int first = 0;

    while (chain->visited[first] != rank)
        first++;
    for (int i = first; i < chain->length; i++) {
        size_t used = strlen(names);

        snprintf(names + used, sizeof(names) - used, "%s > ", name_of(chain, chain->visited[i]));
    }
    say(chain, "This is a cycle: %s%s. Nobody in it can go on until a deadline passes.", names, name_of(chain, rank));
}

/* True if the chain ends with what the worker itself is. */
static bool say_state(const struct chain *chain, int rank)
{
    const struct stat_worker *worker = chain->job->workers[rank];

    if (worker == NULL || !stat_worker_alive(worker)) {
        say(chain, "%s is dead.", name_of(chain, rank));
        return true;
    }
    if (worker->process == 'T' || worker->process == 't') {
        say(chain, "%s (pid %u) is stopped: it goes on with SIGCONT.", name_of(chain, rank), worker->pid);
        return true;
    }
    if (worker->control == NULL) {
        say(chain, "%s cannot be read: %s", name_of(chain, rank), worker->problem);
        return true;
    }
    return false;
}

/* What the callee does meanwhile, where the request has not been read. */
static void say_busy(const struct chain *chain, int rank)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)rank);
    const struct bxi_now *now = worker != NULL ? &worker->control->now : NULL;
    uint64_t since_ns = now != NULL ? stat_word(&now->since_ns) : 0;

    if (since_ns == 0)
        return;
    say(chain, "%s has been running its handler '%s' for %s where it makes progress, for a request of %s.",
        name_of(chain, rank), stat_function_name(chain->job, rank, (uint32_t)(stat_word(&now->who) >> 16)),
        stat_span_text(stat_since(since_ns, CLOCK_MONOTONIC)),
        name_of(chain, (int)(stat_word(&now->who) & (BXI_WORLD_MAX - 1))));
}

/* Whether `rank` waits for a slab of the owner's: it holds more than it has counted as opened. What it counts may be
 * behind for a moment, so this is said only where something lies unread, or on its way. */
static void say_opening(const struct chain *chain, int rank, int owner)
{
    const struct stat_gpu *gpu = stat_gpu_of(chain->job, rank);
    const bxi_a64 *counters;
    size_t held = 0;

    for (size_t i = 0; gpu != NULL && i < gpu->borrow_count; i++)
        held += gpu->borrows[i].peer == owner;
    if (held == 0)
        return;
    counters = chain->job->workers[rank]->control->counters;
    if (gpu->borrow_count > stat_word(&counters[BXI_C_gpu_slabs_opened]) -
                                stat_word(&counters[BXI_C_gpu_slabs_closed]))
        say(chain, "%s is opening device memory of %s: the message that names it, and what is behind it, waits for "
                   "that.", name_of(chain, rank), name_of(chain, owner));
}

/* The batch that a call waits in; the rank that it waits for, or -1. */
static int say_batch(const struct chain *chain, const struct stat_call *call)
{
    char names[300] = "";
    uint64_t missing[2];
    int first = -1;

    if (!stat_batch_missing(chain->job, call->to, call->function, missing) || (missing[0] | missing[1]) == 0) {
        say(chain, "It waits in a batch of %s that no member is missing from: for more rows, or its flush time.",
            name_of(chain, call->to));
        return -1;
    }
    for (int rank = 0; rank < BXI_WORLD_MAX; rank++) {
        size_t used = strlen(names);

        if ((missing[rank / 64] >> rank % 64 & 1) == 0)
            continue;
        first = first < 0 ? rank : first;
        snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "", name_of(chain, rank));
    }
    say(chain, "It waits in a batch of %s for the rows of: %s.", name_of(chain, call->to), names);
    return first;
}

/* Where the call is; the rank to ask next, or -1 if the chain ends. */
static int say_call(const struct chain *chain, const struct stat_call *call)
{
    const char *callee = name_of(chain, call->to);

    switch (call->where) {
    case STAT_QUEUED:
        say(chain, "The request is still at the caller: the ring to %s is full.", callee);
        say_busy(chain, call->to);
        say_opening(chain, call->to, call->from);
        return call->to;
    case STAT_IN_RING:
        say(chain, "The request lies unread in the ring to %s.", callee);
        say_busy(chain, call->to);
        say_opening(chain, call->to, call->from);
        return call->to;
    case STAT_POOL:
        say(chain, "The request waits at %s for a thread of the pool.", callee);
        return call->to;
    case STAT_INLINE:
        say(chain, "Its handler runs in %s, where progress is made.", callee);
        return call->to;
    case STAT_THREAD:
        say(chain, "Its handler runs in %s, in thread %llu.", callee, (unsigned long long)call->thread);
        return call->to;
    case STAT_BODY:
        say(chain, "The body of its batch runs in %s.", callee);
        return call->to;
    case STAT_BATCH:
        return say_batch(chain, call);
    case STAT_FUTURE:
        say(chain, "Its async handler in %s has returned, and the future of it is not done.", callee);
        return call->to;
    case STAT_ANSWERED:
        say(chain, "%s has answered; %s has not read the reply.", callee, name_of(chain, call->from));
        say_opening(chain, call->from, call->to);
        return -1;
    default:
        say(chain, "Where it is cannot be told: %s cannot be read.", callee);
        return call->to;
    }
}

static int follow_call(const struct chain *chain, const struct stat_call *call)
{
    char deadline[64] = "";

    if (call->has_deadline)
        snprintf(deadline, sizeof(deadline), ", and for at most %s more",
                 stat_span_text(call->left_s > 0 ? call->left_s : 0));
    say(chain, "%s has waited for %s for '%s' of %s (call %s)%s.", name_of(chain, call->from),
        stat_span_text(call->age_s), stat_function_name(chain->job, call->to, call->function),
        name_of(chain, call->to), stat_call_name(call), deadline);
    return say_call(chain, call);
}

static void follow_worker(struct chain *chain, int rank)
{
    while (rank >= 0) {
        const struct stat_call *call;

        for (int i = 0; i < chain->length; i++) {
            if (chain->visited[i] == rank) {
                say_cycle(chain, rank);
                return;
            }
        }
        chain->visited[chain->length++] = rank;
        if (say_state(chain, rank))
            return;
        call = oldest_call(chain, rank);
        if (call == NULL) {
            say(chain, "%s waits for no call of its own.", name_of(chain, rank));
            return;
        }
        rank = follow_call(chain, call);
    }
}

/* ---- The subject --------------------------------------------------------------------------------------- */

/* By name, or by rank. -1 if there is none. */
static int find_worker(const struct stat_job *job, const char *subject)
{
    char *end = NULL;
    long rank = strtol(subject, &end, 10);

    for (int i = 0; i < BXI_WORLD_MAX; i++)
        if (job->workers[i] != NULL && job->workers[i]->name[0] != '\0' &&
            strcmp(job->workers[i]->name, subject) == 0)
            return i;
    if (subject[0] != '\0' && *end == '\0' && rank >= 0 && rank < BXI_WORLD_MAX && job->workers[rank] != NULL)
        return (int)rank;
    return -1;
}

static const struct stat_call *find_call(const struct stat_calls *calls, const char *subject)
{
    for (size_t i = 0; i < calls->count; i++)
        if (strcmp(stat_call_name(&calls->list[i]), subject) == 0)
            return &calls->list[i];
    return NULL;
}

/* False if the job has neither a worker nor a call of that name. */
static bool explain(struct chain *chain, const char *subject)
{
    const struct stat_call *call = find_call(chain->calls, subject);
    int rank = find_worker(chain->job, subject);

    if (call == NULL && rank < 0)
        return false;
    if (chain->json) {
        stat_json_open(NULL, '{');
        stat_json_job(chain->job);
        stat_json_text("subject", subject);
        stat_json_open("because", '[');
    }
    if (call != NULL) {
        chain->visited[chain->length++] = call->from;
        rank = follow_call(chain, call);
    }
    follow_worker(chain, rank);
    if (chain->json) {
        stat_json_close(']');
        stat_json_close('}');
    }
    return true;
}

int stat_why(const struct stat_options *options)
{
    struct stat_jobs jobs;
    int status = stat_find(&jobs, options), found = 0;

    if (status != STAT_FINE)
        return status;
    if (options->json) {
        stat_json_begin("why");
        stat_json_open("jobs", '[');
    }
    for (size_t i = 0; i < jobs.count; i++) {
        struct stat_calls calls = { 0 };
        struct chain chain = { .job = &jobs.list[i], .calls = &calls, .json = options->json };

        if (stat_job_read(&jobs.list[i], true) < 0 || stat_gpus_read(&jobs.list[i]) < 0 ||
            stat_calls_collect(&jobs.list[i], &calls) < 0)
            fprintf(stderr, "shmstat: no memory for job '%s'\n", jobs.list[i].name);
        else
            found += explain(&chain, options->subject);
        stat_calls_free(&calls);
        stat_job_close(&jobs.list[i]);
    }
    if (options->json) {
        stat_json_close(']');
        stat_json_end();
    }
    if (found == 0)
        fprintf(stderr, "shmstat: there is no worker and no call '%s'; shmstat calls lists both\n", options->subject);
    stat_jobs_free(&jobs);
    return found > 0 ? STAT_FINE : STAT_NOTHING;
}
