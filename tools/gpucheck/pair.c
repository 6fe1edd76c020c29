/* SPDX-License-Identifier: MIT */
/*
 * Runs the one or two processes of a question, in the program's only thread.
 *
 * Each process dies with the program (PR_SET_PDEATHSIG) and has an alarm of its own; the program kills both at the
 * limit. The page in /dev/shm is a file without a name, so nothing is left there whichever process dies. When one
 * process fails, the other one has a little time to give the answers that it has already. A process that SIGKILL does
 * not end within two seconds hangs in the kernel: it is left, and the next question is asked.
 */
#include "pair.h"
#include "side.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 300u                   /* for the other side of one that failed */
#define REAP_MS 2000u                   /* after SIGKILL */

struct process {
    pid_t pid;                          /* 0: there is none, or it has ended */
    int status;                         /* of waitpid, once it has ended */
};

uint64_t check_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- Starting -------------------------------------------------------------------------------- */

static int make_page(void)
{
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0)
        fd = memfd_create("gpucheck", MFD_CLOEXEC);     /* tmpfs too */
    if (fd >= 0 && ftruncate(fd, (off_t)CHECK_PAGES * CHECK_PAGE_BYTES) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Forks a process that dies with this one; 0 in the child. */
static pid_t fork_bound(void)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
        _exit(1);
    return pid;
}

static void set_alarm(unsigned ms)
{
    struct itimerval timer = { .it_value = { .tv_sec = ms / 1000 + 1 } };

    signal(SIGALRM, SIG_DFL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static pid_t start_side(struct check_side *side, enum check_role role, unsigned limit_ms)
{
    pid_t pid = fork_bound();

    if (pid != 0)
        return pid;
    set_alarm(limit_ms);
    side->role = role;
    side->shared->pid[role] = getpid();
    if (role == CHECK_OWNER)
        side->question->owner(side);
    else
        side->question->peer(side);
    _exit(0);
}

void check_keep_driver(void)
{
    char text[BXI_CU_TEXT_BYTES];
    struct bxi_cuda cu;

    if (fork_bound() != 0)
        return;
    while (bxi_cu_load(&cu, NULL, text) == 0)
        pause();
    _exit(0);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static bool is_expected(const struct check_question *question, enum check_role role, int status)
{
    bool dies = role == CHECK_OWNER ? question->owner_dies : question->peer_dies;

    return (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (dies && WIFSIGNALED(status) && WTERMSIG(status) ==
                                                               SIGKILL);
}

/* Looks whether a process has ended; returns whether it has failed. */
static bool note_end(struct process *process, const struct check_question *question, enum check_role role,
                     struct check_shared *shared)
{
    siginfo_t ended = { .si_pid = 0 };

    if (process->pid <= 0 || waitid(P_PID, (id_t)process->pid, &ended, WEXITED | WNOHANG | WNOWAIT) < 0 ||
        ended.si_pid != process->pid)
        return false;
    /* [check.ended] release, pairs with the acquires in check_await and check_signal. Before the process is reaped:
     * while the word is 0, the pid is that process's. */
    bxi_store_release(&shared->has_ended[role], 1);
    (void)waitpid(process->pid, &process->status, 0);
    process->pid = 0;
    return !is_expected(question, role, process->status);
}

/* Returns whether all have ended. */
static bool wait_until(struct process *processes, const struct check_question *question, struct check_shared *shared,
                       uint64_t end_ns)
{
    while (processes[CHECK_OWNER].pid > 0 || processes[CHECK_PEER].pid > 0) {
        bool has_failed = false;

        for (int role = CHECK_OWNER; role <= CHECK_PEER; role++)
            has_failed = note_end(&processes[role], question, (enum check_role)role, shared) || has_failed;
        if (has_failed && end_ns > check_now_ns() + GRACE_MS * UINT64_C(1000000))
            end_ns = check_now_ns() + GRACE_MS * UINT64_C(1000000);
        if (check_now_ns() > end_ns)
            return processes[CHECK_OWNER].pid <= 0 && processes[CHECK_PEER].pid <= 0;
        check_sleep_ms(1);
    }
    return true;
}

/* ---- Reporting ------------------------------------------------------------------------------- */

/* Why a line has no answer. */
static void explain(struct check_answer *answer, struct check_shared *shared, const struct process *processes,
                    unsigned limit_ms)
{
    answer->verdict = CHECK_UNKNOWN;
    for (int role = CHECK_OWNER; role <= CHECK_PEER; role++) {
        if (shared->gave_up[role].reason[0] == '\0')
            continue;
        /* [check.skipped] acquire, pairs with the release in leave. */
        if (bxi_load_acquire(&shared->gave_up[role].is_skipped) != 0)
            answer->verdict = CHECK_ABSENT;
        snprintf(answer->text, sizeof(answer->text), "Not asked: %.300s.", shared->gave_up[role].reason);
        return;
    }
    for (int role = CHECK_OWNER; role <= CHECK_PEER; role++) {
        int status = processes[role].status;

        if (processes[role].pid <= 0 && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
            snprintf(answer->text, sizeof(answer->text), "No answer: its process died of signal %d (%s).",
                     WTERMSIG(status), strsignal(WTERMSIG(status)));
            return;
        }
    }
    snprintf(answer->text, sizeof(answer->text), "No answer within %u ms: its call, or one before it, did not return.",
             limit_ms);
}

static void report_lines(const struct check_question *question, struct check_shared *shared,
                         const struct process *processes, unsigned limit_ms)
{
    for (int i = 0; question->lines[i].key != NULL; i++) {
        struct check_answer answer = { .verdict = CHECK_UNKNOWN };

        /* [check.given] acquire, pairs with the release in check_answer. */
        if (bxi_load_acquire(&shared->given[i]) != 0)
            answer = shared->answer[i];
        else
            explain(&answer, shared, processes, limit_ms);
        check_report_line(&question->lines[i], &answer);
    }
}

void check_decline(const struct check_question *question, const char *reason)
{
    for (int i = 0; question->lines[i].key != NULL; i++) {
        struct check_answer answer = { .verdict = CHECK_UNKNOWN };

        snprintf(answer.text, sizeof(answer.text), "Not asked: %s.", reason);
        check_report_line(&question->lines[i], &answer);
    }
}

void check_ask(const struct check_question *question, const struct check_settings *settings, unsigned limit_ms,
               struct check_found *found)
{
    struct check_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                                       0);
    struct check_side side = { .question = question, .shared = shared, .device = settings->device };
    uint64_t end_ns = check_now_ns() + (uint64_t)limit_ms * 1000000;
    struct process processes[2] = { { .pid = 0 }, { .pid = 0 } };

    side.page_fd = make_page();
    if (shared == MAP_FAILED || side.page_fd < 0 ||
        socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, side.socket) < 0) {
        check_decline(question, "there is no shared memory");
        return;
    }
    processes[CHECK_OWNER].pid = start_side(&side, CHECK_OWNER, limit_ms);
    if (question->peer != NULL)
        processes[CHECK_PEER].pid = start_side(&side, CHECK_PEER, limit_ms);
    if (processes[CHECK_OWNER].pid < 0 || processes[CHECK_PEER].pid < 0)
        end_ns = 0;                     /* fork failed */

    if (!wait_until(processes, question, shared, end_ns)) {
        for (int role = CHECK_OWNER; role <= CHECK_PEER; role++)
            if (processes[role].pid > 0)
                kill(processes[role].pid, SIGKILL);
        (void)wait_until(processes, question, shared, check_now_ns() + REAP_MS * UINT64_C(1000000));
    }
    report_lines(question, shared, processes, limit_ms);
    if (found != NULL)
        *found = shared->found;
    close(side.page_fd);
    close(side.socket[CHECK_OWNER]);
    close(side.socket[CHECK_PEER]);
    if (processes[CHECK_OWNER].pid <= 0 && processes[CHECK_PEER].pid <= 0)
        munmap(shared, sizeof(*shared));
}
