/* SPDX-License-Identifier: MIT */
/*
 * shmstat why: what a worker or a call waits for, in sentences, from one call to the next.
 *
 * Each step prints where a call is now. If the thread of its handler waits in the library, the segment says for what
 * (struct bxi_wait_row), and that is the next step: this link is certain. If a call waits for something that does not
 * belong to one thread (the rows of a batch, a future, an object that is not made yet, a thread of the pool, room in a
 * ring), the next step is the oldest call that it can depend on: this link is a guess. The chain ends at an inline
 * handler and at a batch's body that holds the progress role, because these must not wait for calls; at a worker that
 * is dead or stopped; and at a thread that does not wait in the library.
 *
 * A call that appears twice closes a cycle. The cycle is reported as certain only if every link of it is certain. Two
 * workers whose handlers sleep while other threads of both call each other are no cycle.
 *
 * Below a sentence that names a thread stands the command that shows its stack (stack.h).
 */
#include "describe.h"
#include "device.h"
#include "flight.h"
#include "json.h"
#include "list.h"
#include "objects.h"
#include "remote.h"
#include "shmstat.h"
#include "stack.h"
#include "text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STEPS_MAX 64            /* handlers that call each other without end have as many threads as there are */

struct chain {
    const struct stat_job *job;
    bool json;
    struct stat_stacks *stacks;
    const struct stat_call *visited[STEPS_MAX];     /* in the order of the chain */
    bool guessed[STEPS_MAX];                        /* the link to visited[i] is a guess */
    int length;
    const char *cycle;                              /* "certain", "possible", or NULL */
};

/* The next step. */
struct next {
    const struct stat_call *call;                   /* NULL: the chain ends */
    bool guessed;
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
    return stat_rank_name(chain->job, rank);
}

/* The stack of a thread of that worker; thread 0: of one that is not known. */
static void show_stack(const struct chain *chain, int rank, uint64_t thread)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)rank);

    if (worker != NULL && stat_worker_alive(worker))
        stat_stacks_add(chain->stacks, rank, worker->pid, thread);
}

/* ---- Which call --------------------------------------------------------------------------------------- */

static const struct bxi_wait_row *wait_row(const struct stat_worker *worker, int index)
{
    return &bxi_tables(worker->control)->wait[index];
}

/* The wait of a thread of that worker; NULL if none is shown. */
static const struct bxi_wait_row *wait_of(const struct stat_worker *worker, uint64_t thread)
{
    for (int i = 0; worker != NULL && i < BXI_WAITS_MAX; i++)
        if ((uint32_t)stat_word(&wait_row(worker, i)->thread) == thread)
            return wait_row(worker, i);
    return NULL;
}

static bool waits_are_full(const struct stat_worker *worker)
{
    for (int i = 0; i < BXI_WAITS_MAX; i++)
        if (stat_word(&wait_row(worker, i)->thread) == 0)
            return false;
    return true;
}

static bool is_for_call(const struct bxi_wait_row *row, const struct stat_call *call)
{
    return stat_word(&row->id) == call->id && stat_word(&row->to) == (uint64_t)call->to;
}

/* The thread that waits for the call; 0 if none is shown. */
static uint64_t waiter_of(const struct chain *chain, const struct stat_call *call)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)call->from);

    for (int i = 0; worker != NULL && i < BXI_WAITS_MAX; i++) {
        uint64_t thread = stat_word(&wait_row(worker, i)->thread);

        if (thread >> 32 == BXI_FOR_CALL && is_for_call(wait_row(worker, i), call))
            return (uint32_t)thread;
    }
    return 0;
}

static const struct stat_call *call_of_row(const struct chain *chain, int from, const struct bxi_wait_row *row)
{
    for (size_t i = 0; i < chain->job->call_count; i++)
        if (chain->job->calls[i].from == from && is_for_call(row, &chain->job->calls[i]))
            return &chain->job->calls[i];
    return NULL;
}

/* Which of a worker's calls: all, or those that no thread is shown to wait for. */
enum which { ANY_CALL, NOT_WAITED_FOR };

/* The oldest call that was not given up, of that worker or, if rank is < 0, of all living ones; only calls to the
 * worker `to`, unless that is < 0. */
static const struct stat_call *oldest_call(const struct chain *chain, int rank, int to, enum which which)
{
    for (size_t i = 0; i < chain->job->call_count; i++) {
        const struct stat_call *call = &chain->job->calls[i];

        if (call->given_up || (rank >= 0 ? call->from != rank : !stat_worker_alive(chain->job->workers[call->from])) ||
            (to >= 0 && call->to != to))
            continue;
        if (which == ANY_CALL || waiter_of(chain, call) == 0)
            return call;
    }
    return NULL;
}

/* ---- Cycles --------------------------------------------------------------------------------------------- */

/* True, after a sentence that names the cycle, if the call is already in the chain. */
static bool closes_cycle(struct chain *chain, const struct next *next)
{
    char names[400] = "";
    bool guessed = next->guessed;
    int first = 0;

    while (first < chain->length && chain->visited[first] != next->call)
        first++;
    if (first == chain->length)
        return false;
    for (int i = first; i < chain->length; i++) {
        size_t used = strlen(names);

        guessed |= i > first && chain->guessed[i];
        snprintf(names + used, sizeof(names) - used, "%s > ", name_of(chain, chain->visited[i]->from));
    }
    chain->cycle = guessed ? "possible" : "certain";
    if (guessed)
        say(chain, "This may be a cycle: %s%s. It is one if none of its links that are no thread's wait can end "
                   "otherwise.", names, name_of(chain, next->call->from));
    else
        say(chain, "This is a cycle: %s%s. Nobody in it can go on until a deadline passes.", names,
            name_of(chain, next->call->from));
    return true;
}

/* ---- What a worker does ---------------------------------------------------------------------------------- */

/* True, after a sentence, if the chain ends at this worker because of its own state. */
static bool say_state(const struct chain *chain, int rank)
{
    const struct stat_worker *worker = chain->job->workers[rank];
    const struct bxi_remote_row *remote = stat_remote(chain->job, rank);
    char missing[400];

    if (remote != NULL && !stat_remote_is_dead(chain->job, rank)) {
        say(chain, "%s is on host %s: run shmstat why %s there.", remote->name, remote->host, remote->name);
        return true;
    }
    if (worker == NULL || !stat_worker_alive(worker)) {
        say(chain, "%s is dead.", name_of(chain, rank));
        return true;
    }
    if (stat_is_stopped(worker)) {
        say(chain, "%s (pid %u) is stopped: it goes on with SIGCONT.", name_of(chain, rank), worker->pid);
        return true;
    }
    if (worker->control == NULL) {
        say(chain, "%s cannot be read: %s", name_of(chain, rank), worker->problem);
        return true;
    }
    if (worker->state == BXI_STARTING && stat_job_missing_text(chain->job, missing, sizeof(missing))) {
        say(chain, "%s waits in bx_job_start: %s.", name_of(chain, rank), missing);
        return true;
    }
    return false;
}

/* What the worker waits for; NULL, after a sentence: for no call. */
static const struct stat_call *call_of_worker(const struct chain *chain, int rank)
{
    const struct stat_call *call = oldest_call(chain, rank, -1, ANY_CALL);

    if (say_state(chain, rank))
        return NULL;
    if (call == NULL)
        say(chain, "%s waits for no call of its own.", name_of(chain, rank));
    return call;
}

/* The handler that runs with the worker's progress role. True, after a sentence, if there is one. */
static bool say_busy(const struct chain *chain, int rank)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)rank);
    const struct bxi_now *now = worker != NULL ? &bxi_tables(worker->control)->now : NULL;
    uint64_t since_ns = now != NULL ? stat_word(&now->since_ns) : 0;

    if (since_ns == 0)
        return false;
    say(chain, "%s has been running its handler '%s' for %s where it makes progress, for a request of %s: until that "
               "returns it reads neither requests nor replies.",
        name_of(chain, rank), stat_function_name(chain->job, rank, (uint32_t)(stat_word(&now->who) >> 16)),
        stat_time_text(stat_since(since_ns, CLOCK_MONOTONIC)),
        name_of(chain, (int)(stat_word(&now->who) & (BXI_WORKERS_MAX - 1))));
    show_stack(chain, rank, 0);
    return true;
}

/* Says so if `rank` waits for a slab of the owner to be opened: it holds more slabs than it has counted as opened. The
 * count may lag for a moment, so callers ask only if a message is unread or on its way. */
static void say_opening(const struct chain *chain, int rank, int owner)
{
    const struct stat_gpu *gpu = stat_gpu_of(chain->job, rank);
    size_t held = 0;

    for (size_t i = 0; gpu != NULL && i < gpu->borrow_count; i++)
        held += gpu->borrows[i].peer == owner;
    if (held == 0)
        return;
    if (gpu->borrow_count > stat_counter(chain->job->workers[rank], BXI_C_gpu_slabs_opened) -
                                stat_counter(chain->job->workers[rank], BXI_C_gpu_slabs_closed))
        say(chain, "%s is opening device memory of %s: the message that names it, and what is behind it, waits for "
                   "that.", name_of(chain, rank), name_of(chain, owner));
}

/* ---- From a call to the next ------------------------------------------------------------------------------ */

static const struct next chain_ends;

/* What the row says that its thread waits for. */
static struct next follow_wait(const struct chain *chain, int rank, const struct bxi_wait_row *row)
{
    uint64_t to = stat_word(&row->to);
    const char *peer = to < BXI_WORKERS_MAX ? name_of(chain, (int)to) : "others";
    const struct stat_call *call;

    switch (stat_word(&row->thread) >> 32) {
    case BXI_FOR_CALL:
        call = call_of_row(chain, rank, row);
        if (call == NULL)
            say(chain, "That thread waited for a call that has just ended.");
        return (struct next){ .call = call };
    case BXI_FOR_FUTURE:
        say(chain, "That thread waits for a future that is not a call's own.");
        return (struct next){ .call = oldest_call(chain, rank, -1, NOT_WAITED_FOR), .guessed = true };
    case BXI_FOR_ROOM:
        say(chain, "That thread waits for room to send to %s.", peer);
        return (struct next){ .call = to < BXI_WORKERS_MAX ? oldest_call(chain, rank, (int)to, ANY_CALL) : NULL,
                              .guessed = true };
    case BXI_FOR_LOANS:
        say(chain, "That thread waits for leases that %s hold%s.", peer, to < BXI_WORKERS_MAX ? "s" : "");
        return chain_ends;
    default:
        say(chain, "That thread serves the job, or waits for all to leave it.");
        return chain_ends;
    }
}

/* What the thread of a handler waits for. */
static struct next follow_thread(const struct chain *chain, int rank, uint64_t thread)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)rank);
    const struct bxi_wait_row *row = thread != 0 ? wait_of(worker, thread) : NULL;
    char state;

    if (row != NULL)
        return follow_wait(chain, rank, row);
    if (worker == NULL || thread == 0 || waits_are_full(worker)) {
        say(chain, "Whether it waits for a call cannot be told.");
        return chain_ends;
    }
    state = stat_thread_state(worker->pid, thread);
    say(chain, "That thread waits for nothing of the library's: it %s.",
        state == 'R'   ? "runs"
        : state == 'S' || state == 'D' ? "sleeps elsewhere, in a lock, a sleep or another system call"
                       : "computes, or sleeps elsewhere");
    return chain_ends;
}

static struct next ends_inline(const struct chain *chain)
{
    say(chain, "It must not wait for calls: it computes, or waits for something that is not the library's.");
    return chain_ends;
}

/* Among the threads that run the worker's handlers and wait for a call: the one with the oldest request. */
static struct next follow_pool(const struct chain *chain, int rank)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)rank);
    const struct bxi_wait_row *oldest = NULL;
    uint64_t since_ns = UINT64_MAX;

    for (int i = 0; worker != NULL && i < BXI_SERVING_MAX; i++) {
        const struct bxi_serving *served = &bxi_tables(worker->control)->serving[i];
        uint64_t where = stat_word(&served->where);
        const struct bxi_wait_row *row = (where & 0xff) == BXI_AT_THREAD ? wait_of(worker, where >> 8) : NULL;

        if (row != NULL && stat_word(&row->thread) >> 32 == BXI_FOR_CALL && stat_word(&served->since_ns) < since_ns) {
            since_ns = stat_word(&served->since_ns);
            oldest = row;
        }
    }
    return (struct next){ .call = oldest != NULL ? call_of_row(chain, rank, oldest) : NULL, .guessed = true };
}

/* The call waits in a batch. */
static struct next follow_batch(const struct chain *chain, const struct stat_call *call)
{
    char names[300] = "";
    uint64_t missing[BXI_WORKERS_MAX];
    size_t count = stat_batch_missing(chain->job, call->to, call->function, missing);

    if (count == 0) {
        say(chain, "It waits in a batch of %s that no member is missing from: for more rows, or its flush time.",
            name_of(chain, call->to));
        return chain_ends;
    }
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(names);

        snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "", name_of(chain, (int)missing[i]));
    }
    say(chain, "It waits in a batch of %s for the rows of: %s.", name_of(chain, call->to), names);
    return (struct next){ .call = call_of_worker(chain, (int)missing[0]), .guessed = true };
}

static struct next follow_body(const struct chain *chain, const struct stat_call *call)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)call->to);

    if (worker != NULL && call->function < BXI_FUNCTION_MAX &&
        stat_word(&bxi_tables(worker->control)->batch[call->function].running) == BXI_BATCH_BY_ROLE)
        return ends_inline(chain);
    return follow_thread(chain, call->to, call->thread);
}

/* The call waits for an object of its callee. The row of an object that is to come names who makes it. */
static struct next follow_object(const struct chain *chain, const struct stat_call *call)
{
    const struct stat_worker *owner = stat_reader(chain->job, (uint32_t)call->to);
    bool makes[BXI_WORKERS_MAX] = { false };

    for (uint32_t i = 0; owner != NULL && i < owner->object_count; i++) {
        int maker = bxi_rref_id_maker(stat_word(&owner->objects[i].id));

        if (stat_word(&owner->objects[i].state) == BXI_OBJECT_TO_COME && maker < BXI_WORKERS_MAX)
            makes[maker] = true;
    }
    for (size_t i = 0; i < chain->job->call_count; i++) {
        const struct stat_call *other = &chain->job->calls[i];

        if (other->to == call->to && makes[other->from] && other->where != STAT_OBJECT)
            return (struct next){ .call = other, .guessed = true };
    }
    say(chain, "No call that makes an object of %s is in flight.", name_of(chain, call->to));
    return chain_ends;
}

/* Says so if that pool has not taken a request from its queue for a second or more. */
static void say_pool(const struct chain *chain, int rank)
{
    const struct stat_worker *worker = stat_reader(chain->job, (uint32_t)rank);
    const struct bxi_now *now = worker != NULL ? &bxi_tables(worker->control)->now : NULL;
    uint64_t since_ns = now != NULL ? stat_word(&now->pool_stuck_ns) : 0;
    unsigned long long busy, waiting;

    if (since_ns == 0)
        return;
    busy = stat_word(&now->pool_busy);
    waiting = stat_word(&now->pool_waiting);
    say(chain, "For %s all %llu threads of its pool are busy, %llu %s. If its handlers wait for each other, it needs "
               "more: options.pool_threads, BX_POOL_THREADS.", stat_time_text(stat_since(since_ns, CLOCK_MONOTONIC)),
        busy, waiting, waiting == 1 ? "request waits" : "requests wait");
}

/* One sentence for each place: what stands before the callee's name, and behind it. A batch has none here: follow_batch
 * names who is missing. */
static const struct {
    const char *before, *after;
} places[STAT_WHERES] = {
    [STAT_QUEUED] = { "The request is still at the caller: the ring to ", " is full." },
    [STAT_IN_RING] = { "The request lies unread in the ring to ", "." },
    [STAT_POOL] = { "The request waits at ", " for a thread of the pool." },
    [STAT_INLINE] = { "Its handler runs in ", ", where progress is made." },
    [STAT_THREAD] = { "Its handler runs in ", NULL },             /* the thread */
    [STAT_BODY] = { "The body of its batch runs in ", NULL },
    [STAT_FUTURE] = { "Its async handler in ", " has returned, and the future of it is not done." },
    [STAT_OBJECT] = { "The request waits at ", " until the object is made that it is called on." },
    [STAT_REMOTE] = { "The request has left for ", ", or its reply is under way, between hosts." },
    [STAT_UNKNOWN] = { "Where it is cannot be told: ", " cannot be read." },
};

static void say_where(const struct chain *chain, const struct stat_call *call)
{
    const char *callee = name_of(chain, call->to);
    bool has_thread = call->where == STAT_THREAD || call->where == STAT_BODY;

    if (call->where == STAT_ANSWERED) {
        say(chain, "%s has answered; %s has not read the reply.", callee, name_of(chain, call->from));
        say_opening(chain, call->from, call->to);
    } else if (has_thread) {
        say(chain, "%s%s, in thread %llu.", places[call->where].before, callee, (unsigned long long)call->thread);
    } else if (places[call->where].before != NULL) {
        say(chain, "%s%s%s", places[call->where].before, callee, places[call->where].after);
    }
    if (call->where == STAT_QUEUED || call->where == STAT_IN_RING)
        say_opening(chain, call->to, call->from);
    if (call->where == STAT_POOL)
        say_pool(chain, call->to);
    if (has_thread || call->where == STAT_INLINE)
        show_stack(chain, call->to, call->thread);
}

/* Prints where the call is. Returns the next step. */
static struct next follow_call(const struct chain *chain, const struct stat_call *call)
{
    say_where(chain, call);
    if (call->where == STAT_ANSWERED) {
        if (!say_state(chain, call->from))
            say_busy(chain, call->from);
        return chain_ends;
    }
    if (say_state(chain, call->to))
        return chain_ends;
    switch (call->where) {
    case STAT_QUEUED:
    case STAT_IN_RING:
        if (!say_busy(chain, call->to))
            say(chain, "%s runs no handler where it makes progress.", name_of(chain, call->to));
        return chain_ends;
    case STAT_POOL:
        return follow_pool(chain, call->to);
    case STAT_INLINE:
        return ends_inline(chain);
    case STAT_THREAD:
        return follow_thread(chain, call->to, call->thread);
    case STAT_BODY:
        return follow_body(chain, call);
    case STAT_BATCH:
        return follow_batch(chain, call);
    case STAT_OBJECT:
        return follow_object(chain, call);
    case STAT_FUTURE:
        return (struct next){ .call = oldest_call(chain, call->to, -1, NOT_WAITED_FOR), .guessed = true };
    default:
        return chain_ends;
    }
}

/* Who waits for it, and since when. */
static void say_call(const struct chain *chain, const struct stat_call *call)
{
    char deadline[64] = "", thread[48] = "";
    uint64_t waiter = waiter_of(chain, call);

    if (call->given_up) {
        say(chain, "%s has given up the call %s for '%s' of %s, made %s ago: nobody waits for it, and its slot is "
                   "taken until the late reply comes.",
            name_of(chain, call->from), stat_call_name(call),
            stat_function_name(chain->job, call->to, call->function), name_of(chain, call->to),
            stat_time_text(call->age_s));
        return;
    }
    if (waiter != 0)
        snprintf(thread, sizeof(thread), ", in thread %llu", (unsigned long long)waiter);
    if (call->has_deadline)
        snprintf(deadline, sizeof(deadline), ", and for at most %s more",
                 stat_time_text(call->left_s > 0 ? call->left_s : 0));
    say(chain, "%s has waited for %s for '%s' of %s (call %s)%s%s.", name_of(chain, call->from),
        stat_time_text(call->age_s), stat_function_name(chain->job, call->to, call->function),
        name_of(chain, call->to), stat_call_name(call), thread, deadline);
    if (waiter != 0)
        show_stack(chain, call->from, waiter);
}

/* NULL: nothing more is said. */
static void follow(struct chain *chain, const struct stat_call *call)
{
    struct next next = { .call = call };

    while (next.call != NULL && !closes_cycle(chain, &next)) {
        if (chain->length == STEPS_MAX) {
            say(chain, "And so on, for more than %d calls.", STEPS_MAX);
            return;
        }
        chain->visited[chain->length] = next.call;
        chain->guessed[chain->length++] = next.guessed;
        say_call(chain, next.call);
        next = follow_call(chain, next.call);
    }
}

/* ---- The subject --------------------------------------------------------------------------------------- */

/* By name, or by rank. -1 if there is none. */
static int find_worker(const struct stat_job *job, const char *subject)
{
    char *end = NULL;
    long rank = strtol(subject, &end, 10);

    for (int i = 0; i < BXI_WORKERS_MAX; i++)
        if (job->workers[i] != NULL && job->workers[i]->name[0] != '\0' &&
            strcmp(job->workers[i]->name, subject) == 0)
            return i;
    for (int i = 0; i < BXI_WORKERS_MAX; i++)
        if (stat_remote(job, i) != NULL && strcmp(stat_remote(job, i)->name, subject) == 0)
            return i;
    if (isdigit((unsigned char)subject[0]) && *end == '\0' && rank < BXI_WORKERS_MAX &&
        (job->workers[rank] != NULL || stat_remote(job, (int)rank) != NULL))
        return (int)rank;
    return -1;
}

static const struct stat_call *find_call(const struct stat_job *job, const char *subject)
{
    for (size_t i = 0; i < job->call_count; i++)
        if (strcmp(stat_call_name(&job->calls[i]), subject) == 0)
            return &job->calls[i];
    return NULL;
}

static void begin_job(const struct chain *chain, const char *subject)
{
    if (chain->json) {
        stat_json_open(NULL, '{');
        stat_first_json(stat_job_row, chain->job, NULL);
        stat_json_text("subject", subject);
        stat_json_open("because", '[');
    } else {
        stat_job_text(chain->job);
        printf("\n");
    }
}

static void end_job(const struct chain *chain)
{
    if (!chain->json)
        return;
    stat_json_close(']');
    stat_json_text("cycle", chain->cycle);
    stat_stacks_json(chain->stacks);
    stat_json_close('}');
}

/* Explains a worker, a call or, without a subject, the call that has waited longest. False if the job has neither a
 * worker nor a call of that name. */
static bool explain(struct chain *chain, const char *subject)
{
    const struct stat_call *call = subject != NULL ? find_call(chain->job, subject)
                                                   : oldest_call(chain, -1, -1, ANY_CALL);
    int rank = subject != NULL ? find_worker(chain->job, subject) : -1;

    if (subject != NULL && call == NULL && rank < 0)
        return false;
    begin_job(chain, subject);
    if (call == NULL && rank >= 0)
        call = call_of_worker(chain, rank);
    else if (call == NULL)
        say(chain, "Nobody waits for a call.");
    follow(chain, call);
    end_job(chain);
    return true;
}

static int print_job(struct stat_job *job, const struct stat_options *options)
{
    struct stat_stacks stacks = { .json = options->json };
    struct chain chain = { .job = job, .json = options->json, .stacks = &stacks };

    return explain(&chain, options->subject) ? STAT_FINE : STAT_NOTHING;
}

/* One word that is a job's name is the job; else it is the subject. */
static bool is_job(const struct stat_options *options)
{
    struct stat_jobs jobs = { 0 };
    bool is_one = options->subject != NULL && options->select == NULL &&
                  stat_jobs_find(&jobs, options->subject) == 0 && jobs.count > 0;

    stat_jobs_free(&jobs);
    return is_one;
}

int stat_why(const struct stat_options *options)
{
    struct stat_options chosen = *options;
    char asked[64];
    int status;

    if (is_job(options)) {
        chosen.select = options->subject;
        chosen.subject = NULL;
    }
    status = stat_print_jobs(&chosen, "why", STAT_READ_GPUS | STAT_READ_OBJECTS | STAT_READ_CALLS, print_job);
    if (status == STAT_FINE || chosen.subject == NULL)
        return status;
    stat_printable(asked, sizeof(asked), chosen.subject, strlen(chosen.subject));
    fprintf(stderr, "shmstat: there is no worker, no call and no job '%s'; shmstat calls lists them\n", asked);
    return status;
}
