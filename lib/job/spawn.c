/* SPDX-License-Identifier: MIT */
/*
 * bx_spawn: a job whose workers are all children of one process, the launcher. spawned.c has what the rest of a worker
 * asks its launcher and tells it; job.h describes the memory that they share.
 *
 * Who runs it: the only thread of the launcher. It forks the workers, then sleeps in sigtimedwait until a worker ends
 * (SIGCHLD), a signal asks for the end (SIGINT, SIGTERM), or the next step is due:
 *
 *     all run  --one ends badly-->  grace: the others notice by themselves  -->  SIGTERM  -->  SIGKILL
 *              --SIGINT, SIGTERM------------------------------------------->
 *
 * The launcher blocks these signals instead of handling them, so none is lost, and afterwards the program's own
 * handlers are as they were. SIGINT and SIGTERM count even if the launcher was started with them ignored, as a shell
 * does for a script's background processes: a signal sent to a launcher is meant for the job. The launcher waits only
 * for the pids of its workers; other children of the program are not reaped.
 *
 * Workers ignore SIGINT and SIGHUP, which a terminal sends to the whole process group: the launcher ends the workers,
 * or its death does (PR_SET_PDEATHSIG). A worker flushes stdio and leaves by _exit: exit would run the atexit handlers
 * that the launcher had set before the fork once more in every worker.
 *
 * A worker's end in the midst of the job (page.in_job) is a bad one whatever its exit status, because the others saw a
 * death. The names that a worker left in /dev/shm are removed by their instance, without testing their owner locks: a
 * lock may be held for longer than its owner lives, by a child that was made without pthread_atfork's handlers
 * (shm/fork.c), or while a process reads the owner's /proc/PID/smaps. The instance is random, so no other job's names
 * have it.
 *
 * With options.restart a worker that ended badly is forked again, with the same rank and name, and joins the job that
 * runs (bx_options.rejoin). Not if
 *   - the job has not started: no worker has been in it, so the start has failed;
 *   - it had left the job, or its restarts are used up: this is a failure as without restarts;
 *   - no other worker is in the job: nothing is left that it could join;
 *   - the job ends: a signal was sent or will be (begin_end), or a worker has left the job and returned 0.
 * The dead worker's names are removed before the next process is forked, which makes the same names. A worker that dies
 * again soon after its fork waits for its next one, twice as long each time.
 *
 * The launcher is killed by SIGKILL: the kernel sends SIGTERM to each worker, and the worker's handler removes the
 * names of its segment and arena, in rank 0 also the socket and the lock file. A worker is killed: the launcher removes
 * what it left after all have ended. Both are killed at once: `shmstat reap`. If rank 0 is killed between taking the
 * lock and noting it, the empty lock file may stay; the next job of that name uses it.
 */
#include "job.h"

#include "base/options.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS UINT64_C(1000000000)
#define RESTART_MAX (BXI_GENERATION_MAX - 1)
#define SOON_NS UINT64_C(1000000000)            /* a process that lived for less has died soon */
#define WAIT_FIRST_NS UINT64_C(100000000)       /* before the restart after the second such death in a row */
#define WAIT_LAST_NS UINT64_C(5000000000)

/* How a worker ended. */
struct end {
    int status;
    bool was_in_job;
    char text[BXI_END_BYTES];
};

/* The worker of one rank. */
struct child {
    char name[BXI_NAME_BYTES];
    pid_t pid;                          /* 0: not started, or reaped */
    uint64_t forked_ns;
    struct end end;                     /* of its last process */
    int restarts;
    int soon;                           /* deaths in a row that came soon */
    uint64_t due_ns;                    /* when it is started again; 0: it is not to be */
};

struct launch {
    struct bx_spawn_options options;    /* with defaults */
    struct bx_options base;             /* of every worker */
    char job_name[BXI_NAME_BYTES];
    bx_worker_fn fn;
    void *context;
    pid_t launcher;
    struct bxi_board *board;
    unsigned char *pages;               /* behind it; one of page_bytes for each worker, read-only here */
    size_t page_bytes, shared_bytes;
    struct child child[BXI_WORLD_MAX];
    char failed_text[BXI_END_BYTES];
    unsigned failed_pass;               /* the one that found it */
    unsigned passes;                    /* of reap */
    int running;
    bool has_started;                   /* the job: a worker has been in it */
    bool is_over;                       /* the job: a worker left it and returned 0, or none is in it any more */
    int next_signal;                    /* SIGTERM, SIGKILL, then 0 */
    uint64_t next_signal_ns;            /* BX_FOREVER while no worker is to be ended */
    struct bx_spawn_report report;
    sigset_t waited_for;
    sigset_t old_mask;
    struct sigaction old_child;
};

static struct bxi_worker_page *page_of(const struct launch *launch, int rank)
{
    return (struct bxi_worker_page *)(void *)(launch->pages + (size_t)rank * launch->page_bytes);
}

/* ---- In a worker, before its function ------------------------------------------------------------ */

/* unlink, not shm_unlink, which is not promised to be safe in a signal handler. All these names are this worker's own:
 * the instance in the segment's name is random, and the lock is held until this process ends. */
static void remove_noted(struct bxi_note *note)
{
    for (int what = 0; what < BXI_NOTED_COUNT; what++) {
        /* [noted] acquire, pairs with the release in bxi_spawn_note: the path is there. */
        if (bxi_load_acquire(&note->is_there[what]) == 0)
            continue;
        if (what == BXI_NOTED_WAIT)
            bxi_boot_sweep(note->path[what], 0);        /* makes system calls only: safe here */
        else
            unlink(note->path[what]);
    }
}

static void on_term(int signal_number)
{
    int error = errno;

    /* A child that the worker has forked inherits the handler, but no name is the child's. */
    for (int i = 0; bxi_spawn_is_worker() && i < BXI_NOTES_MAX; i++)
        remove_noted(bxi_spawn_note_at(i));
    /* SA_RESETHAND has restored the default: it ends the process when this returns. */
    raise(signal_number);
    errno = error;
}

static void become_worker(const struct launch *launch, int rank)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    struct sigaction term = { .sa_handler = on_term, .sa_flags = (int)SA_RESETHAND };
    struct bxi_worker_page *page = page_of(launch, rank);
    sigset_t mask = launch->old_mask;

    bxi_spawn_become(&(struct bxi_spawned){ launch->job_name, launch->options.world_size, launch->board, page,
                                            launch->child[rank].restarts > 0 });
    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL);
    sigaction(SIGTERM, &term, NULL);
    sigaction(SIGCHLD, &launch->old_child, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launch->launcher)
        _exit(128 + SIGTERM);       /* the launcher died before PR_SET_PDEATHSIG */
    sigdelset(&mask, SIGTERM);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    /* A whole mapping and a whole page: this needs no memory. If it is refused all the same, a page has two writers. */
    if (mprotect(launch->board, sizeof(*launch->board), PROT_READ) < 0 ||
        madvise(page, launch->page_bytes, MADV_DONTFORK) < 0) {
        /* Relaxed: the launcher reads it when this process has ended. */
        bxi_store_relaxed(&page->refused_errno, (uint32_t)errno);
        _exit(EXIT_FAILURE);
    }
}

static struct bx_options options_of(const struct launch *launch, int rank)
{
    struct bx_options options = launch->base;

    /* A program of 0.1 may copy these options: they do not claim to be larger than its own. It sets no restart. */
    if (launch->options.restart > 0 || options.struct_bytes > sizeof(options))
        options.struct_bytes = sizeof(options);
    options.job = launch->job_name;
    options.name = launch->child[rank].name;
    options.rank = rank;
    options.world_size = launch->options.world_size;
    return options;
}

static _Noreturn void run_worker(const struct launch *launch, int rank)
{
    struct bx_options options = options_of(launch, rank);

    become_worker(launch, rank);

    int status = launch->fn(&options, launch->context);
    if (fflush(NULL) != 0 && status == 0)
        status = EXIT_FAILURE;      /* its output is lost: not a good end */
    if ((status & 0xff) == 0 && status != 0)
        status = EXIT_FAILURE;      /* the system keeps 8 bits */
    _exit(status);
}

/* ---- In the launcher --------------------------------------------------------------------------- */

static int take_names(struct launch *launch)
{
    const char *const *names = launch->options.names;

    for (int rank = 0; rank < launch->options.world_size; rank++) {
        char *name = launch->child[rank].name;

        if (names != NULL && (names[rank] == NULL || !bxi_name_is_valid(names[rank])))
            return bx_fail(-EINVAL, "the name '%s' of rank %d is not one: 1 to %d of A-Z a-z 0-9 _ - .",
                           bxi_brief(names[rank]).text, rank, BX_NAME_MAX);
        if (names != NULL)
            snprintf(name, BXI_NAME_BYTES, "%s", names[rank]);
        else
            snprintf(name, BXI_NAME_BYTES, "worker%d", rank);
        for (int other = 0; other < rank; other++)
            if (strcmp(launch->child[other].name, name) == 0)
                return bx_fail(BX_E_NAME_TAKEN, "the name '%s' is given twice, to ranks %d and %d", name, other, rank);
    }
    return 0;
}

static int read_options(struct launch *launch, const struct bx_spawn_options *given)
{
    static unsigned launches;
    struct bx_spawn_options *options = &launch->options;

    if (given == NULL || launch->fn == NULL)
        return bx_fail(-EINVAL, "bx_spawn needs options and a function");
    int rc = bxi_options_copy(options, sizeof(*options), given, "bx_spawn_options");
    if (rc == 0)
        rc = bxi_options_copy(&launch->base, sizeof(launch->base), options->options,
                              "bx_options");
    if (rc < 0)
        return rc;
    if (options->world_size < 1 || options->world_size > BX_WORLD_MAX)
        return bx_fail(BX_E_WORLD_SIZE, "bx_spawn starts 1 to %d workers, not %d", BX_WORLD_MAX, options->world_size);
    if (options->job != NULL && !bxi_name_is_valid(options->job))
        return bx_fail(-EINVAL, "'%s' is no name for a job: 1 to %d of A-Z a-z 0-9 _ - .",
                       bxi_brief(options->job).text, BX_NAME_MAX);
    if (options->job != NULL)
        snprintf(launch->job_name, sizeof(launch->job_name), "%s", options->job);
    else
        snprintf(launch->job_name, sizeof(launch->job_name), "spawn-%ld-%u", (long)getpid(), ++launches);
    if (options->grace_ns == 0)
        options->grace_ns = GRACE_NS;
    if (options->restart < 0 || options->restart > RESTART_MAX)
        return bx_fail(-EINVAL, "restart is %d, not one of 0 to %d", options->restart, RESTART_MAX);
    /* For the lines about restarts. */
    if (options->restart > 0 && (rc = bxi_log_from_environment()) < 0)
        return rc;
    launch->base.rejoin |= options->restart > 0;
    return take_names(launch);
}

static void block_signals(struct launch *launch)
{
    /* If SIGCHLD is ignored, the kernel reaps the workers before waitpid can. */
    struct sigaction child = { .sa_handler = SIG_DFL };

    sigemptyset(&launch->waited_for);
    sigaddset(&launch->waited_for, SIGCHLD);
    sigaddset(&launch->waited_for, SIGINT);
    sigaddset(&launch->waited_for, SIGTERM);
    sigprocmask(SIG_BLOCK, &launch->waited_for, &launch->old_mask);
    sigaction(SIGCHLD, &child, &launch->old_child);
}

static void restore_signals(struct launch *launch)
{
    sigaction(SIGCHLD, &launch->old_child, NULL);
    /* A SIGCHLD for a child of the program's own may have been taken together with the workers'. Raise one: a handler
     * must bear one too many anyway, and without a handler it is dropped. */
    raise(SIGCHLD);
    sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
}

static int no_memory_to_share(int rc)
{
    return bx_fail(rc, "no memory to share with the workers: %s", bx_strerror(rc));
}

static int map_shared(struct launch *launch)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), board_bytes = (sizeof(*launch->board) + page - 1) / page * page;
    const size_t pages_bytes = (size_t)launch->options.world_size * page;

    launch->page_bytes = page;
    launch->shared_bytes = board_bytes + pages_bytes;
    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    void *shared = mmap(NULL, launch->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return no_memory_to_share(-errno);
    launch->board = shared;
    launch->pages = (unsigned char *)shared + board_bytes;
    return mprotect(launch->pages, pages_bytes, PROT_READ) < 0 ? no_memory_to_share(-errno) : 0;
}

/* The page of a rank is writable only while its worker is forked, and so in that worker alone. */
static int fork_worker(struct launch *launch, int rank)
{
    struct bxi_worker_page *page = page_of(launch, rank);

    fflush(NULL);       /* or the worker would print what is still in the buffers */
    if (mprotect(page, launch->page_bytes, PROT_READ | PROT_WRITE) < 0)
        return no_memory_to_share(-errno);
    memset(page, 0, sizeof(*page));     /* what the last process of the rank wrote; no process has it but this one */
    pid_t pid = fork();
    if (pid == 0)
        run_worker(launch, rank);
    if (pid < 0)
        return bx_fail(-errno, "worker %d of %d cannot be forked: %s", rank, launch->options.world_size,
                       bx_strerror(-errno));
    launch->child[rank].pid = pid;
    launch->child[rank].forked_ns = bxi_now_ns();
    launch->running++;
    return mprotect(page, launch->page_bytes, PROT_READ) < 0 ? no_memory_to_share(-errno) : 0;
}

static int fork_workers(struct launch *launch)
{
    int rc = 0;

    for (int rank = 0; rc == 0 && rank < launch->options.world_size; rank++)
        rc = fork_worker(launch, rank);
    return rc;
}

static uint64_t later(uint64_t now_ns, uint64_t ns)
{
    return ns > BX_FOREVER - now_ns ? BX_FOREVER : now_ns + ns;
}

/* SIGTERM to all workers after delay_ns, unless it is due earlier or sent already. */
static void begin_end(struct launch *launch, uint64_t delay_ns)
{
    uint64_t at_ns = later(bxi_now_ns(), delay_ns);

    if (launch->next_signal == SIGTERM && at_ns < launch->next_signal_ns)
        launch->next_signal_ns = at_ns;
}

static void escalate(struct launch *launch)
{
    uint64_t now_ns = bxi_now_ns();

    if (launch->next_signal == 0 || now_ns < launch->next_signal_ns)
        return;
    for (int rank = 0; rank < launch->options.world_size; rank++) {
        if (launch->child[rank].pid <= 0)
            continue;
        kill(launch->child[rank].pid, launch->next_signal);
        kill(launch->child[rank].pid, SIGCONT);     /* a stopped one sees SIGTERM when it goes on */
    }
    launch->next_signal_ns = later(now_ns, launch->options.grace_ns);
    launch->next_signal = launch->next_signal == SIGTERM ? SIGKILL : 0;
}

/* When the next signal or the next restart is due; BX_FOREVER: none. */
static uint64_t next_step_ns(const struct launch *launch)
{
    uint64_t at_ns = launch->next_signal != 0 ? launch->next_signal_ns : BX_FOREVER;

    for (int rank = 0; rank < launch->options.world_size; rank++) {
        uint64_t due_ns = launch->child[rank].due_ns;

        if (due_ns != 0 && due_ns < at_ns)
            at_ns = due_ns;
    }
    return at_ns;
}

/* Takes the signals that have come. With wait, sleeps until one comes or the next step is due. */
static void take_signals(struct launch *launch, bool wait)
{
    struct timespec left = { 0 };
    uint64_t step_ns = next_step_ns(launch);
    int signal_number;

    if (wait && step_ns != BX_FOREVER) {
        uint64_t now_ns = bxi_now_ns();
        uint64_t left_ns = step_ns > now_ns ? step_ns - now_ns : 0;
        left.tv_sec = (time_t)(left_ns / 1000000000u);
        left.tv_nsec = (long)(left_ns % 1000000000u);
        wait = false;
    }
    do {
        signal_number = wait ? sigwaitinfo(&launch->waited_for, NULL)
                             : sigtimedwait(&launch->waited_for, NULL, &left);
        left = (struct timespec){ 0 };
        wait = false;
        if (signal_number != SIGINT && signal_number != SIGTERM)
            continue;
        if (launch->report.interrupt_signal == 0)
            launch->report.interrupt_signal = signal_number;
        begin_end(launch, 0);
    } while (signal_number > 0);
}

/* ---- How workers end ------------------------------------------------------------------------------ */

static bool is_in_job(const struct launch *launch, int rank)
{
    /* [page.in_job] acquire, pairs with the release in bxi_spawn_in_job: the last value if the worker has ended. */
    return bxi_load_acquire(&page_of(launch, rank)->in_job) != 0;
}

/* It is in the job, or has left it. */
static bool was_in_job(const struct launch *launch, int rank)
{
    /* [page.was_in_job] acquire, pairs with the release in bxi_spawn_in_job: the last value if the worker has ended. */
    return is_in_job(launch, rank) || bxi_load_acquire(&page_of(launch, rank)->was_in_job) != 0;
}

static bool has_started(struct launch *launch)
{
    for (int rank = 0; !launch->has_started && rank < launch->options.world_size; rank++)
        launch->has_started = was_in_job(launch, rank);
    return launch->has_started;
}

/* Some worker runs that is in the job, or has passed its start without having said so yet. */
static bool has_survivor(const struct launch *launch)
{
    for (int rank = 0; rank < launch->options.world_size; rank++) {
        const struct child *child = &launch->child[rank];

        if (child->pid > 0 && (is_in_job(launch, rank) || (child->restarts == 0 && !was_in_job(launch, rank))))
            return true;
    }
    return false;
}

static bool is_ending(const struct launch *launch)
{
    return launch->is_over || launch->next_signal != SIGTERM || launch->next_signal_ns != BX_FOREVER;
}

static bool is_bad(const struct end *end)
{
    return !WIFEXITED(end->status) || WEXITSTATUS(end->status) != 0 || end->was_in_job;
}

static void describe_end(struct launch *launch, int rank, pid_t pid, int status)
{
    struct end *end = &launch->child[rank].end;
    char name[BXI_NAME_BYTES];

    memcpy(name, launch->child[rank].name, sizeof(name));
    int used = snprintf(end->text, BXI_END_BYTES, "worker '%s' (rank %d, pid %ld) ", name, rank, (long)pid);
    size_t left = BXI_END_BYTES - (size_t)used;
    /* Relaxed: its writer has ended. */
    int refused = (int)bxi_load_relaxed(&page_of(launch, rank)->refused_errno);

    end->status = status;
    end->was_in_job = is_in_job(launch, rank);
    if (WIFSIGNALED(status))
        snprintf(end->text + used, left, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (refused != 0)
        snprintf(end->text + used, left, "may not protect its memory (mprotect, madvise): %s", bx_strerror(-refused));
    else
        snprintf(end->text + used, left, "exited with status %d%s", WEXITSTATUS(status),
                 WEXITSTATUS(status) == 0 && end->was_in_job ? ", but had not left the job" : "");
}

/* Writes to the board how a worker ended, for workers that are starting. */
static void publish_end(struct launch *launch, int rank)
{
    memcpy(launch->board->end[rank].text, launch->child[rank].end.text, BXI_END_BYTES);
    /* [board.end] release, pairs with the acquire in bxi_spawn_ended. */
    bxi_store_release(&launch->board->end[rank].is_set, 1);
    /* Relaxed: only this thread writes it. */
    if (bxi_load_relaxed(&launch->board->first) == 0)
        /* [board.first] release, pairs with the acquire in bxi_spawn_ended. */
        bxi_store_release(&launch->board->first, (uint32_t)rank + 1);
}

/* Reports the first worker that ended badly by itself: not by the launcher's signals, nor by the SIGTERM to the whole
 * process group that asked the launcher to end. If one pass finds several, a worker that was killed is preferred to one
 * that exited, because that is mostly the cause and the other the effect. */
static void note_end(struct launch *launch, int rank)
{
    const struct end *end = &launch->child[rank].end;
    bool was_asked = launch->next_signal != SIGTERM || launch->report.interrupt_signal != 0;
    int status = end->status;

    if (!is_bad(end) || was_asked)
        return;
    if (launch->report.failed_rank >= 0 && !(launch->failed_pass == launch->passes &&
                                             launch->report.term_signal == 0 && WIFSIGNALED(status)))
        return;
    launch->failed_pass = launch->passes;
    launch->report.failed_rank = rank;
    launch->report.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    launch->report.term_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    snprintf(launch->failed_text, sizeof(launch->failed_text), "%s", end->text);
    begin_end(launch, launch->options.grace_ns);
}

/* ---- Restarts ------------------------------------------------------------------------------------- */

static void unlink_names(const struct launch *launch, int at)
{
    struct bxi_worker_page *page = page_of(launch, at);
    /* [page.instance] acquire, pairs with the release in announce_names: rank is read after it. */
    uint64_t instance = bxi_load_acquire(&page->instance);
    /* Relaxed: written before instance. */
    uint32_t rank = bxi_load_relaxed(&page->rank);

    if (instance == 0 || rank >= BXI_WORKERS_MAX)
        return;
    bxi_object_unlink(launch->job_name, instance, (int)rank);
}

/* A worker has ended: it is to be started again. */
static bool is_to_restart(struct launch *launch, int rank)
{
    const struct child *child = &launch->child[rank];
    bool has_left = was_in_job(launch, rank) && !child->end.was_in_job;

    return child->restarts < launch->options.restart && is_bad(&child->end) && !has_left && has_started(launch) &&
           !is_ending(launch) && has_survivor(launch);
}

static void schedule_restart(struct launch *launch, int rank)
{
    struct child *child = &launch->child[rank];
    uint64_t now_ns = bxi_now_ns(), wait_ns = 0;

    child->soon = now_ns - child->forked_ns < SOON_NS ? child->soon + 1 : 0;
    for (int i = 1; i < child->soon && wait_ns < WAIT_LAST_NS; i++)
        wait_ns = wait_ns == 0 ? WAIT_FIRST_NS : 2 * wait_ns;
    child->due_ns = now_ns + (wait_ns < WAIT_LAST_NS ? wait_ns : WAIT_LAST_NS);
    unlink_names(launch, rank);
}

/* Workers that were to be started again are not: their ends are failures. */
static void drop_restarts(struct launch *launch)
{
    for (int rank = 0; rank < launch->options.world_size; rank++) {
        if (launch->child[rank].due_ns == 0)
            continue;
        launch->child[rank].due_ns = 0;
        note_end(launch, rank);
    }
}

static void start_again(struct launch *launch, int rank)
{
    struct child *child = &launch->child[rank];

    child->due_ns = 0;
    child->restarts++;
    if (fork_worker(launch, rank) < 0 && child->pid == 0) {
        bxi_log(NULL, 0, "%s, and cannot be started again: %s", child->end.text, bx_error_text());
        note_end(launch, rank);
        return;
    }
    bxi_log(NULL, 1, "%s: started again as pid %ld, %d of %d", child->end.text, (long)child->pid, child->restarts,
            launch->options.restart);
}

static void restart(struct launch *launch)
{
    if (is_ending(launch))
        drop_restarts(launch);
    for (int rank = 0; rank < launch->options.world_size; rank++) {
        uint64_t due_ns = launch->child[rank].due_ns;

        if (due_ns != 0 && bxi_now_ns() >= due_ns)
            start_again(launch, rank);
    }
}

/* ---- Until all have ended -------------------------------------------------------------------------- */

static void take_end(struct launch *launch, int rank, pid_t pid, int status)
{
    const struct child *child = &launch->child[rank];
    bool is_good = WIFEXITED(status) && WEXITSTATUS(status) == 0;

    /* A worker that was started again found that the job had ended: what it was started for is the cause. */
    if (!(launch->is_over && child->restarts > 0 && !was_in_job(launch, rank) && !is_good))
        describe_end(launch, rank, pid, status);
    if (is_to_restart(launch, rank)) {
        schedule_restart(launch, rank);
        return;
    }
    launch->is_over |= !has_survivor(launch) || (is_good && was_in_job(launch, rank) && !child->end.was_in_job);
    if (launch->is_over)
        drop_restarts(launch);
    note_end(launch, rank);
    /* With restarts, only a worker that is to join a job that runs is starting now. It must not fail because of the end
     * of another, unless the job ends. */
    if (launch->options.restart == 0 || !has_started(launch) || is_ending(launch))
        publish_end(launch, rank);
}

static void reap(struct launch *launch)
{
    launch->passes++;
    for (int rank = 0; rank < launch->options.world_size; rank++) {
        pid_t pid = launch->child[rank].pid;
        int status = 0;

        if (pid == 0)
            continue;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == 0 || (got < 0 && errno == EINTR))
            continue;
        launch->child[rank].pid = 0;
        launch->running--;
        if (got == pid)
            take_end(launch, rank, pid, status);
    }
}

static void wait_for_all(struct launch *launch)
{
    while (launch->running > 0) {
        take_signals(launch, true);
        reap(launch);
        escalate(launch);
        restart(launch);
    }
    take_signals(launch, false);
}

/* All workers have ended, so the names of this job are dead. Names that the workers have announced are removed without
 * testing their owner locks; the rest only if no lock is held, because a job of the same name may own them. */
static void remove_names(const struct launch *launch)
{
    for (int rank = 0; rank < launch->options.world_size; rank++)
        unlink_names(launch, rank);
    bxi_object_reap(launch->job_name, 0);
    bxi_bootstrap_sweep(launch->job_name);
}

static int verdict(const struct launch *launch)
{
    const struct bx_spawn_report *report = &launch->report;

    if (report->failed_rank >= 0)
        return bx_fail(BX_E_WORKER_FAILED, "%s", launch->failed_text);
    if (report->interrupt_signal != 0)
        return bx_fail(BX_E_INTERRUPTED, "signal %d (%s) ended job '%s'", report->interrupt_signal,
                       strsignal(report->interrupt_signal), launch->job_name);
    return 0;
}

/* This process is a worker of a job of several hosts already, and its launcher has started the others. */
static int run_here(struct launch *launch)
{
    struct bx_options started = { 0 };
    int rc = bxi_options_of_launcher(&started), status;

    if (rc < 0)
        return rc;
    if (started.world_size != launch->options.world_size)
        return bx_fail(BX_E_WORLD_SIZE, "this program wants %d workers, and the launcher has started %d; BX_ROOT='' "
                                        "lets each process start its own", launch->options.world_size,
                       started.world_size);
    if (started.rank < 0 || started.rank >= started.world_size)
        return bx_fail(-EINVAL, "rank %d is not one of 0..%d", started.rank, started.world_size - 1);
    if (launch->options.restart > 0)
        return bx_fail(-ENOTSUP, "a worker of a job of several hosts (BX_ROOT) is not started again yet");
    snprintf(launch->job_name, sizeof launch->job_name, "%s", started.job);

    struct bx_options options = options_of(launch, started.rank);

    status = launch->fn(&options, launch->context);
    if (status == 0)
        return 0;
    launch->report.failed_rank = started.rank;
    launch->report.exit_status = status & 0xff;
    return bx_fail(BX_E_WORKER_FAILED, "worker '%s' (rank %d, pid %d) ended with status %d",
                   launch->child[started.rank].name, started.rank, (int)getpid(), status & 0xff);
}

int bx_spawn(const struct bx_spawn_options *options, bx_worker_fn fn, void *context,
             struct bx_spawn_report *report)
{
    struct launch launch = {
        .fn = fn,
        .context = context,
        .launcher = getpid(),
        .next_signal = SIGTERM,
        .next_signal_ns = BX_FOREVER,
        .report = { .failed_rank = -1 },
    };

    int rc = read_options(&launch, options);
    if (rc == 0 && bxi_has_launcher()) {
        rc = run_here(&launch);
        goto done;
    }
    if (rc < 0 || (rc = map_shared(&launch)) < 0)
        goto done;
    block_signals(&launch);
    int fork_rc = fork_workers(&launch);
    char text[BXI_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s", bx_error_text());
    if (fork_rc < 0)
        launch.next_signal_ns = 0;      /* the workers that exist cannot start: the end begins at once */
    wait_for_all(&launch);
    remove_names(&launch);
    restore_signals(&launch);
    rc = fork_rc < 0 ? bx_fail(fork_rc, "%s", text) : verdict(&launch);

done:
    if (launch.board != NULL)
        munmap(launch.board, launch.shared_bytes);
    if (report != NULL)
        *report = launch.report;
    return rc;
}
