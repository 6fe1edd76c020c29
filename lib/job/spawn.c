/* SPDX-License-Identifier: MIT */
/*
 * bx_spawn: a job whose workers are all children of one process, the launcher.
 *
 * Who runs it: the only thread of the launcher. It forks, then sleeps in sigtimedwait until a worker ends
 * (SIGCHLD), somebody asks for the end (SIGINT, SIGTERM) or the time for the next step has come:
 *
 *     all run  --one ends badly-->  grace: the others notice by themselves  -->  SIGTERM  -->  SIGKILL
 *              --SIGINT, SIGTERM------------------------------------------->
 *
 * The signals are blocked rather than handled, so there is no moment in which one is lost, and the
 * program's own handlers are as they were afterwards. SIGINT and SIGTERM count even where the launcher
 * was started with them ignored, as a shell does in the background of a script: who sends one to a
 * launcher means the job. Only the workers' own pids are waited for; other children of the program stay
 * its own.
 *
 * Workers ignore SIGINT and SIGHUP, which a terminal sends to everybody: the launcher ends them, or its
 * death does (PR_SET_PDEATHSIG). They leave by _exit after flushing stdio: exit would run the atexit
 * handlers that the launcher had set up before the fork once more in every worker.
 *
 * What launcher and workers share is memory without a name, each page of which has one writer. The mappings of all
 * others are read-only, so that a wild store there ends who makes it (a child that a worker has forked has not the
 * worker's page at all):
 *
 *     who writes      field                 readers       order
 *     the launcher    board.end[].text      workers       before is_set; never changed afterwards
 *     the launcher    board.end[].is_set    workers       release, acquire: how the worker of that rank ended
 *     the launcher    board.first           workers       release, acquire, after is_set: who ended first
 *     a worker        page.rank             the launcher  before instance
 *     a worker        page.instance         the launcher  release, acquire: the names that it is about to make
 *     a worker        page.in_job           the launcher  release, acquire: starts of the job that it has not left
 *
 * The board is for workers that start: nobody but the launcher can see how a worker ended that has met nobody yet,
 * so who waits in bx_job_start looks at the board a few times a second. A worker's page is for the launcher, which
 * reads it when the worker has ended: an end in the midst of the job is a bad one whatever the exit status, for
 * the others saw a death; and the names in /dev/shm are removed by instance, without a look at their locks. A lock
 * may be held for longer than its owner lives: by a child that it had forked, or while somebody reads its
 * /proc/PID/smaps. No namesake has that instance, for it is random.
 *
 * Killed at each step: a launcher before is_set: nobody sees the text. Before first: it is seen by who asks for that
 * rank. A worker before instance: it has made no name yet. After instance, before the names are made: there is
 * nothing to remove. Before in_job: its end by a signal is a bad one anyway.
 *
 * A launcher killed by SIGKILL: each worker gets SIGTERM from the kernel, and its handler removes the
 * name of its segment, rank 0's the socket and the lock file as well. A worker killed: the launcher
 * removes what it left when all have ended. Both killed at once: shmstat reap. Between taking the lock and
 * noting it rank 0 may leave the empty lock file; the next job of that name uses it.
 */
#include "job.h"

#include "base/options.h"
#include "shm/step.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS UINT64_C(1000000000)
#define HOW_NS UINT64_C(1000000000)         /* a dead worker is reaped long before */
#define JOBS_NOTED 16                       /* jobs of one worker whose names it removes at SIGTERM */
#define END_BYTES 160                       /* "worker 'NAME' (rank R, pid P) was killed by signal S (TEXT)" */

/* The launcher's, read-only in the workers. */
struct board {
    bxi_a32 first;                          /* 1 + the rank of the first that ended; 0: none has */
    struct {
        bxi_a32 is_set;
        char text[END_BYTES];
    } end[BXI_WORLD_MAX];
};

/* A worker's, read-only in all other processes. */
struct worker_page {
    bxi_a64 instance;                       /* of the job, once its names may be there; 0: none was made */
    bxi_a32 rank;                           /* in that job */
    bxi_a32 in_job;                         /* jobs of that name that it has started and not left */
};

struct launch {
    struct bx_spawn_options options;    /* with defaults */
    struct bx_options base;             /* of every worker */
    char job_name[BXI_NAME_BYTES];
    bx_worker_fn fn;
    void *context;
    pid_t launcher;
    struct board *board;
    unsigned char *pages;               /* one of page_bytes for each worker; read-only here */
    size_t page_bytes;
    pid_t pid[BXI_WORLD_MAX];           /* 0: not started, or waited for */
    char failed_text[END_BYTES];
    unsigned failed_look;
    unsigned looks;                     /* for workers that have ended */
    int running;
    int next_signal;                    /* SIGTERM, SIGKILL, then 0: there is no more to do */
    uint64_t next_signal_ns;            /* BX_FOREVER while nobody is to be ended */
    struct bx_spawn_report report;
    sigset_t waited_for;
    sigset_t old_mask;
    struct sigaction old_child;
};

static struct worker_page *page_of(const struct launch *launch, int rank)
{
    return (struct worker_page *)(void *)(launch->pages + (size_t)rank * launch->page_bytes);
}

/* ---- In a worker ------------------------------------------------------------------------------- */

static const struct launch *launched_by;    /* of a worker: the launcher's, as it was at the fork */
static struct worker_page *own_page;        /* of a worker; elsewhere both are NULL */
static struct bxi_lock own_lock;            /* held by who writes to the page, or notes what SIGTERM removes */
static pid_t own_pid;
static uint32_t jobs_in;                    /* what the page says in in_job */

/* A child that a worker has forked is none, and has not the page. */
static bool is_worker(void)
{
    return launched_by != NULL && own_page != NULL && getpid() == own_pid;
}

/* Whether the job is the one that the launcher waits for. */
static bool is_launched(const struct bx_job *job)
{
    return is_worker() && strcmp(job->job_name, launched_by->job_name) == 0 &&
           job->world_size == launched_by->options.world_size;
}

int bxi_spawn_look(const struct bx_job *job, int rank)
{
    if (!is_launched(job))
        return 0;
    struct board *board = launched_by->board;
    if (rank < 0)
        /* [board.first] acquire, pairs with the release in tell_end: is_set is there. */
        rank = (int)bxi_load_acquire(&board->first) - 1;
    /* [board.end] acquire, pairs with the release in tell_end: the text is read after it. */
    if (rank < 0 || bxi_load_acquire(&board->end[rank].is_set) == 0)
        return 0;
    return bx_fail(BX_E_WORKER_FAILED, "%s before job '%s' had started", board->end[rank].text, job->job_name);
}

int bxi_spawn_how_ended(const struct bx_job *job, int rank)
{
    const struct timespec moment = { .tv_nsec = 1000000 };
    uint64_t deadline_ns = bxi_now_ns() + HOW_NS;
    int rc = 0;

    if (!is_launched(job))
        return 0;
    while ((rc = bxi_spawn_look(job, rank)) == 0 && bxi_now_ns() < deadline_ns)
        nanosleep(&moment, NULL);
    return rc;
}

/* NULL if the job is none that the launcher waits for. */
static struct worker_page *page_for(const struct bx_job *job)
{
    return is_launched(job) ? own_page : NULL;
}

void bxi_spawn_in_job(const struct bx_job *job, bool is_in)
{
    struct worker_page *page = page_for(job);

    if (page == NULL)
        return;
    bxi_lock(&own_lock);
    jobs_in += is_in ? 1 : (uint32_t)-1;
    /* [page.in_job] release, pairs with the acquire in is_in_job. */
    bxi_store_release(&page->in_job, jobs_in);
    bxi_unlock(&own_lock);
    BXI_STEP(is_in ? "spawn.in_job" : "spawn.not_in_job");
}

/* Before the names are made, so that no kill falls between. */
static void announce_names(const struct bx_job *job)
{
    struct worker_page *page = page_for(job);

    if (page == NULL)
        return;
    bxi_lock(&own_lock);
    /* Relaxed: the store of instance releases it. */
    bxi_store_relaxed(&page->rank, (uint32_t)job->rank);
    /* [page.instance] release, pairs with the acquire in remove_names: rank is there. */
    bxi_store_release(&page->instance, job->instance);
    bxi_unlock(&own_lock);
    BXI_STEP("spawn.announced");
}

/* What to remove at SIGTERM, job by job, for a worker may have several. Written under own_lock by the threads that
 * start and end jobs; the handler, which may run in any thread, takes no lock. */
static struct noted {
    const struct bx_job *job;               /* NULL: free */
    bxi_a32 has_names, has_files, waits;    /* what of the following is there */
    char segment[BXI_BOOT_PATH_BYTES], arena[BXI_BOOT_PATH_BYTES];
    struct bxi_boot_paths paths;
} noted[JOBS_NOTED];

bool bxi_spawn_is_worker(void)
{
    return is_worker();
}

/* NULL where too many are noted: what is left of that job at a SIGTERM the launcher or shmstat reap removes. */
static struct noted *noted_of(const struct bx_job *job)
{
    struct noted *found = NULL;

    for (int i = 0; i < JOBS_NOTED; i++) {
        if (noted[i].job == job)
            return &noted[i];
        if (noted[i].job == NULL && found == NULL)
            found = &noted[i];
    }
    if (found != NULL)
        found->job = job;
    return found;
}

void bxi_spawn_note_segment(const struct bx_job *job, const char *shm_name, const char *arena_name)
{
    if (!is_worker())
        return;
    announce_names(job);
    bxi_lock(&own_lock);
    struct noted *note = noted_of(job);
    if (note != NULL) {
        snprintf(note->segment, sizeof(note->segment), "/dev/shm%s", shm_name);
        snprintf(note->arena, sizeof(note->arena), "/dev/shm%s", arena_name);
        /* [noted] release, pairs with the acquire in on_term: the paths are there. */
        bxi_store_release(&note->has_names, 1);
    }
    bxi_unlock(&own_lock);
}

static void note_paths(const struct bx_job *job, const struct bxi_boot_paths *paths, bool as_files)
{
    if (!is_worker())
        return;
    bxi_lock(&own_lock);
    struct noted *note = noted_of(job);
    bxi_a32 *flag = note == NULL ? NULL : as_files ? &note->has_files : &note->waits;
    if (note != NULL && paths != NULL)
        note->paths = *paths;
    if (flag != NULL)
        /* [noted] release, pairs with the acquire in on_term: the paths are there. */
        bxi_store_release(flag, paths != NULL);
    bxi_unlock(&own_lock);
}

void bxi_spawn_note_files(const struct bx_job *job, const struct bxi_boot_paths *paths)
{
    note_paths(job, paths, true);
}

void bxi_spawn_note_wait(const struct bx_job *job, const struct bxi_boot_paths *paths)
{
    note_paths(job, paths, false);
}

void bxi_spawn_forget(const struct bx_job *job)
{
    if (!is_worker())
        return;
    bxi_lock(&own_lock);
    struct noted *note = noted_of(job);
    if (note != NULL) {
        /* Relaxed: the names are gone, so it does not matter whether the handler still sees them. */
        bxi_store_relaxed(&note->has_names, 0);
        bxi_store_relaxed(&note->has_files, 0);
        bxi_store_relaxed(&note->waits, 0);
        note->job = NULL;
    }
    bxi_unlock(&own_lock);
}

/* A flag of a job, as the handler sees it. */
static bool is_noted(bxi_a32 *flag)
{
    /* [noted] acquire, pairs with the release in bxi_spawn_note_segment and note_paths. */
    return bxi_load_acquire(flag) != 0;
}

/* unlink, since shm_unlink is not promised to be safe here. All of it is this worker's own: the instance
 * in the segment's name is random, and the lock is held until this process ends. */
static void on_term(int signal_number)
{
    int error = errno;

    /* A child that the worker has forked inherits the handler, but nothing that is the worker's. */
    for (int i = 0; is_worker() && i < JOBS_NOTED; i++) {
        if (is_noted(&noted[i].has_names)) {
            unlink(noted[i].segment);
            unlink(noted[i].arena);
        }
        if (is_noted(&noted[i].has_files)) {
            unlink(noted[i].paths.socket);
            unlink(noted[i].paths.lock);
        }
        if (is_noted(&noted[i].waits))
            bxi_boot_sweep(&noted[i].paths, 0);     /* system calls alone: safe here */
    }
    /* SA_RESETHAND has restored the default: it ends the process when this returns. */
    raise(signal_number);
    errno = error;
}

static void become_worker(const struct launch *launch, int rank)
{
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    struct sigaction term = { .sa_handler = on_term, .sa_flags = (int)SA_RESETHAND };
    sigset_t mask = launch->old_mask;

    launched_by = launch;
    own_page = page_of(launch, rank);
    memset(&own_lock, 0, sizeof(own_lock));     /* of a launcher that is itself a worker */
    jobs_in = 0;
    own_pid = getpid();
    memset(noted, 0, sizeof(noted));
    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGHUP, &ignore, NULL);
    sigaction(SIGTERM, &term, NULL);
    sigaction(SIGCHLD, &launch->old_child, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launch->launcher)
        _exit(128 + SIGTERM);       /* it died before it could be watched */
    sigdelset(&mask, SIGTERM);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    /* A whole mapping and a whole page, which needs no memory; but if it is refused, a page has two writers. */
    if (mprotect(launch->board, sizeof(*launch->board), PROT_READ) < 0 ||
        madvise(own_page, launch->page_bytes, MADV_DONTFORK) < 0)
        _exit(EXIT_FAILURE);
}

static _Noreturn void run_worker(const struct launch *launch, int rank)
{
    struct bx_options options = launch->base;
    char name[BXI_NAME_BYTES];

    become_worker(launch, rank);
    snprintf(name, sizeof(name), "worker%d", rank);
    options.struct_bytes = sizeof(options);
    options.job = launch->job_name;
    options.name = launch->options.names != NULL ? launch->options.names[rank] : name;
    options.rank = rank;
    options.world_size = launch->options.world_size;

    int status = launch->fn(&options, launch->context);
    if (fflush(NULL) != 0 && status == 0)
        status = EXIT_FAILURE;      /* what it printed is lost: that is not a good end */
    if ((status & 0xff) == 0 && status != 0)
        status = EXIT_FAILURE;      /* the system keeps 8 bits */
    _exit(status);
}

/* ---- In the launcher --------------------------------------------------------------------------- */

static const char *name_of(const struct launch *launch, int rank, char room[BXI_NAME_BYTES])
{
    if (launch->options.names != NULL)
        return launch->options.names[rank];
    snprintf(room, BXI_NAME_BYTES, "worker%d", rank);
    return room;
}

static int check_names(const char *const *names, int world_size)
{
    for (int rank = 0; names != NULL && rank < world_size; rank++) {
        if (names[rank] == NULL || !bxi_name_is_valid(names[rank]))
            return bx_fail(-EINVAL, "the name '%s' of rank %d is not one: 1 to %d of A-Z a-z 0-9 _ - .",
                           bxi_brief(names[rank]).text, rank, BX_NAME_MAX);
        for (int other = 0; other < rank; other++)
            if (strcmp(names[other], names[rank]) == 0)
                return bx_fail(BX_E_NAME_TAKEN, "the name '%s' is given twice, to ranks %d and %d", names[rank],
                               other, rank);
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
        rc = bxi_options_copy(&launch->base, sizeof(launch->base), options->options, "bx_options");
    if (rc < 0)
        return rc;
    if (options->world_size < BX_WORLD_MIN || options->world_size > BX_WORLD_MAX)
        return bx_fail(BX_E_WORLD_SIZE, "a job has %d to %d workers, not %d", BX_WORLD_MIN, BX_WORLD_MAX,
                       options->world_size);
    if (options->job != NULL && !bxi_name_is_valid(options->job))
        return bx_fail(-EINVAL, "'%s' is no name for a job: 1 to %d of A-Z a-z 0-9 _ - .",
                       bxi_brief(options->job).text, BX_NAME_MAX);
    if (options->job != NULL)
        snprintf(launch->job_name, sizeof(launch->job_name), "%s", options->job);
    else
        snprintf(launch->job_name, sizeof(launch->job_name), "spawn-%ld-%u", (long)getpid(), ++launches);
    if (options->grace_ns == 0)
        options->grace_ns = GRACE_NS;
    return check_names(options->names, options->world_size);
}

static void block_signals(struct launch *launch)
{
    /* Where SIGCHLD is ignored the kernel would reap the workers before they are asked for. */
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
    /* One that told of a child of the program's own may have been taken together with the workers'. A
     * handler must bear one too many anyway, and where there is none it is dropped. */
    raise(SIGCHLD);
    sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
}

static int no_memory_to_share(int rc)
{
    return bx_fail(rc, "no memory to share with the workers: %s", bx_strerror(rc));
}

static void unmap_shared(struct launch *launch)
{
    munmap(launch->board, sizeof(*launch->board));
    munmap(launch->pages, (size_t)launch->options.world_size * launch->page_bytes);
}

static int map_shared(struct launch *launch)
{
    launch->page_bytes = (size_t)sysconf(_SC_PAGESIZE);

    /* cppcheck-suppress invalidFunctionArg ; -1 is what MAP_ANONYMOUS asks for */
    launch->board = mmap(NULL, sizeof(*launch->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (launch->board == MAP_FAILED)
        return no_memory_to_share(-errno);
    /* cppcheck-suppress invalidFunctionArg ; the same */
    launch->pages = mmap(NULL, (size_t)launch->options.world_size * launch->page_bytes, PROT_READ,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (launch->pages == MAP_FAILED) {
        int rc = -errno;
        munmap(launch->board, sizeof(*launch->board));
        return no_memory_to_share(rc);
    }
    return 0;
}

/* The page of a rank is writable while its worker is forked, and so in that worker alone. */
static int fork_worker(struct launch *launch, int rank)
{
    void *page = page_of(launch, rank);

    if (mprotect(page, launch->page_bytes, PROT_READ | PROT_WRITE) < 0)
        return no_memory_to_share(-errno);
    pid_t pid = fork();
    if (pid == 0)
        run_worker(launch, rank);
    if (pid < 0)
        return bx_fail(-errno, "worker %d of %d cannot be forked: %s", rank, launch->options.world_size,
                       bx_strerror(-errno));
    launch->pid[rank] = pid;
    launch->running++;
    return mprotect(page, launch->page_bytes, PROT_READ) < 0 ? no_memory_to_share(-errno) : 0;
}

static int fork_workers(struct launch *launch)
{
    int rc = 0;

    fflush(NULL);       /* or every worker would print what is still in the buffers */
    for (int rank = 0; rc == 0 && rank < launch->options.world_size; rank++)
        rc = fork_worker(launch, rank);
    return rc;
}

static uint64_t later(uint64_t now_ns, uint64_t ns)
{
    return ns > BX_FOREVER - now_ns ? BX_FOREVER : now_ns + ns;
}

/* Begins the end, unless it has begun: SIGTERM follows after delay_ns. */
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
    for (int rank = 0; rank < launch->options.world_size; rank++)
        if (launch->pid[rank] > 0)
            kill(launch->pid[rank], launch->next_signal);
    launch->next_signal_ns = later(now_ns, launch->options.grace_ns);
    launch->next_signal = launch->next_signal == SIGTERM ? SIGKILL : 0;
}

/* Takes the signals that have come, waiting for one until the next step is due if wait is set. */
static void take_signals(struct launch *launch, bool wait)
{
    struct timespec left = { 0 };
    int signal_number;

    if (wait && launch->next_signal != 0 && launch->next_signal_ns != BX_FOREVER) {
        uint64_t now_ns = bxi_now_ns();
        uint64_t left_ns = launch->next_signal_ns > now_ns ? launch->next_signal_ns - now_ns : 0;
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

static bool is_in_job(const struct launch *launch, int rank)
{
    /* [page.in_job] acquire, pairs with the release in bxi_spawn_in_job: its last word, for it has ended. */
    return bxi_load_acquire(&page_of(launch, rank)->in_job) != 0;
}

/* Tells the workers that are starting how this one ended. */
static void tell_end(struct launch *launch, int rank, pid_t pid, int status)
{
    char room[BXI_NAME_BYTES];
    char *text = launch->board->end[rank].text;
    int used = snprintf(text, END_BYTES, "worker '%s' (rank %d, pid %ld) ", name_of(launch, rank, room), rank,
                        (long)pid);
    size_t left = END_BYTES - (size_t)used;

    if (WIFSIGNALED(status))
        snprintf(text + used, left, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text + used, left, "exited with status %d%s", WEXITSTATUS(status),
                 WEXITSTATUS(status) == 0 && is_in_job(launch, rank) ? ", but had not left the job" : "");
    /* [board.end] release, pairs with the acquire in bxi_spawn_look. */
    bxi_store_release(&launch->board->end[rank].is_set, 1);
    /* Relaxed: nobody else writes it. */
    if (bxi_load_relaxed(&launch->board->first) == 0)
        /* [board.first] release, pairs with the acquire in bxi_spawn_look. */
        bxi_store_release(&launch->board->first, (uint32_t)rank + 1);
}

/* The first that ended badly by itself is the one to report: not one that fell to our own signals, or to
 * the same SIGTERM to the whole process group that asked the launcher to end. Of several found at one look
 * one that was killed goes before one that exited, for that is mostly the cause and the other the effect. */
static void note_end(struct launch *launch, int rank, int status)
{
    bool is_bad = !WIFEXITED(status) || WEXITSTATUS(status) != 0 || is_in_job(launch, rank);
    bool was_asked = launch->next_signal != SIGTERM || launch->report.interrupt_signal != 0;

    if (!is_bad || was_asked)
        return;
    if (launch->report.failed_rank >= 0 && !(launch->failed_look == launch->looks &&
                                             launch->report.term_signal == 0 && WIFSIGNALED(status)))
        return;
    launch->failed_look = launch->looks;
    launch->report.failed_rank = rank;
    launch->report.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    launch->report.term_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    snprintf(launch->failed_text, sizeof(launch->failed_text), "%s", launch->board->end[rank].text);
    begin_end(launch, launch->options.grace_ns);
}

static void reap(struct launch *launch)
{
    launch->looks++;
    for (int rank = 0; rank < launch->options.world_size; rank++) {
        pid_t pid = launch->pid[rank];
        int status = 0;

        if (pid == 0)
            continue;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == 0 || (got < 0 && errno == EINTR))
            continue;
        launch->pid[rank] = 0;
        launch->running--;
        if (got != pid)
            continue;
        tell_end(launch, rank, pid, status);
        note_end(launch, rank, status);
    }
}

static void wait_for_all(struct launch *launch)
{
    while (launch->running > 0) {
        take_signals(launch, true);
        reap(launch);
        escalate(launch);
    }
    take_signals(launch, false);
}

/* Nobody is left, so what still lies there of this job is dead. Of what the workers have announced the locks are not
 * looked at; of the rest they are, for it may be a namesake's. */
static void remove_names(const struct launch *launch)
{
    char name[BXI_OBJECT_NAME_BYTES];

    for (int i = 0; i < launch->options.world_size; i++) {
        struct worker_page *page = page_of(launch, i);
        /* [page.instance] acquire, pairs with the release in announce_names: rank is read after it. */
        uint64_t instance = bxi_load_acquire(&page->instance);
        /* Relaxed: written before instance. */
        uint32_t rank = bxi_load_relaxed(&page->rank);

        if (instance == 0 || rank >= BXI_WORLD_MAX)
            continue;
        bxi_object_name(name, (uint32_t)geteuid(), launch->job_name, instance, (int)rank);
        shm_unlink(name);
        bxi_object_arena_name(name, (uint32_t)geteuid(), launch->job_name, instance, (int)rank);
        shm_unlink(name);
    }
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
    if (rc < 0 || (rc = map_shared(&launch)) < 0)
        goto done;
    block_signals(&launch);
    int fork_rc = fork_workers(&launch);
    char *fork_text = fork_rc < 0 ? bxi_text("%s", bx_error_text()) : NULL;
    if (fork_rc < 0)
        launch.next_signal_ns = 0;      /* those that there are cannot start: the end begins at once */
    wait_for_all(&launch);
    remove_names(&launch);
    restore_signals(&launch);
    rc = fork_rc < 0 ? bx_fail(fork_rc, "%s", fork_text == NULL ? "" : fork_text) : verdict(&launch);
    free(fork_text);
    unmap_shared(&launch);

done:
    if (report != NULL)
        *report = launch.report;
    return rc;
}
