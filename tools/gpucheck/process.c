/* SPDX-License-Identifier: MIT */
/*
 * A question's processes, and the program that waits for them in its only thread.
 *
 * The program forks the first process, and that one the second; each dies with its parent (PR_SET_PDEATHSIG), so the
 * program ends both by killing the first. Messages of fixed size come by a pipe; its end tells that both have ended,
 * whichever way. A process that SIGKILL does not end within two seconds hangs in the kernel: it is left, and the next
 * question is asked.
 *
 * The two processes of a question share a socket, on which the first one's steps go to the second and come back (it has
 * the same code at the same addresses), and a file in /dev/shm without a name, so nothing is left there whoever dies.
 */
#include "gpucheck.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REAP_MS 2000u                   /* within which a process ends after its last message, or SIGKILL */

enum kind { LINE, REST, DEVICE };       /* an answer; why other lines have none; the device's name in text */

struct message {
    enum kind kind;
    bool is_fake;                       /* DEVICE */
    const char *key;                    /* LINE; a constant, so its address is the same in the program */
    struct check_answer answer;
};

struct step {
    check_step_fn run;
    struct check_parcel parcel;
};

const struct check_question *check_question;
int check_device;
static int messages;                    /* the pipe to the program */
static int page_file;
static int other_socket = -1;           /* -1: there is no other process */
static pid_t other_pid;                 /* in the first process */

uint64_t check_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void check_sleep_ms(unsigned ms)
{
    struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

    nanosleep(&time, NULL);
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

/* False: the child has not ended in that time. */
static bool reap(pid_t pid, int *status)
{
    uint64_t end_ns = check_now_ns() + REAP_MS * UINT64_C(1000000);
    pid_t ended;

    while ((ended = waitpid(pid, status, WNOHANG)) == 0 && check_now_ns() < end_ns)
        check_sleep_ms(1);
    return ended == pid;
}

/* ---- Messages ----------------------------------------------------------------------------------- */

static void send_message(const struct message *message)
{
    if (write(messages, message, sizeof(*message)) != (ssize_t)sizeof(*message))
        _exit(1);                       /* nobody reads any more */
}

static struct message next;             /* has the figure of the next answer */

void check_figure(double value, const char *unit)
{
    next.answer.value = value;
    next.answer.unit = unit;
}

void check_answer(const char *key, enum check_verdict verdict, const char *format, ...)
{
    va_list arguments;

    next.key = key;
    next.answer.verdict = verdict;
    va_start(arguments, format);
    vsnprintf(next.answer.text, CHECK_TEXT_BYTES, format, arguments);
    va_end(arguments);
    send_message(&next);
    next = (struct message){ .kind = LINE };
}

void check_name_device(const char *name, bool is_fake)
{
    struct message message = { .kind = DEVICE, .is_fake = is_fake };

    snprintf(message.answer.text, sizeof(message.answer.text), "%s", name);
    send_message(&message);
}

/* Ends this process. The first one lets the second end, too, so that nothing of it disturbs the next question. */
static _Noreturn void leave(void)
{
    int status;

    if (other_pid != 0) {
        close(other_socket);
        (void)reap(other_pid, &status);
    }
    _exit(0);
}

static void send_rest(enum check_verdict verdict, const char *format, va_list arguments)
{
    struct message message = { .kind = REST, .answer = { .verdict = verdict } };

    vsnprintf(message.answer.text, CHECK_TEXT_BYTES, format, arguments);
    send_message(&message);
}

void check_give_up(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    send_rest(CHECK_UNKNOWN, format, arguments);
    va_end(arguments);
    leave();
}

void check_skip(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    send_rest(CHECK_ABSENT, format, arguments);
    va_end(arguments);
    leave();
}

/* ---- Steps -------------------------------------------------------------------------------------- */

union control {
    struct cmsghdr head;
    unsigned char bytes[CMSG_SPACE(sizeof(int))];
};

static bool send_step(const struct step *step)
{
    union control control = { .head = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(sizeof(int)) } };
    struct iovec part = { .iov_base = (void *)step, .iov_len = sizeof(*step) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

    if (step->parcel.fd > 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        memcpy(CMSG_DATA(&control.head), &step->parcel.fd, sizeof(int));
    }
    return sendmsg(other_socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof(*step);
}

/* False: the other process has ended. */
static bool receive_step(struct step *step)
{
    union control control;
    struct iovec part = { .iov_base = step, .iov_len = sizeof(*step) };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                              .msg_controllen = sizeof(control) };
    ssize_t bytes;

    do
        bytes = recvmsg(other_socket, &message, MSG_CMSG_CLOEXEC);
    while (bytes < 0 && errno == EINTR);
    if (bytes != (ssize_t)sizeof(*step))
        return false;
    if (CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&step->parcel.fd, CMSG_DATA(&control.head), sizeof(int));
    return true;
}

void check_there(check_step_fn run, struct check_parcel *parcel)
{
    struct step step = { .run = run, .parcel = *parcel };
    int status;

    if (!send_step(&step) || !receive_step(&step)) {
        if (reap(other_pid, &status) && WIFSIGNALED(status))
            check_give_up("the other process died of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        _exit(0);                       /* the other one has said why */
    }
    *parcel = step.parcel;
}

void check_bring_back(const struct check_parcel *parcel)
{
    struct step step = { .parcel = *parcel };

    if (!send_step(&step))
        _exit(0);
}

void check_kill_other(void)
{
    int status;

    kill(other_pid, SIGKILL);           /* it is this process's child and not reaped, so the pid is its own */
    if (!reap(other_pid, &status))
        check_give_up("the killed process does not end within %u ms", REAP_MS);
    other_pid = 0;
}

static _Noreturn void run_steps(void)
{
    struct step step;

    while (receive_step(&step)) {
        step.run(&step.parcel);
        check_bring_back(&step.parcel);
    }
    _exit(0);
}

bxi_a64 *check_page(bool is_writable)
{
    void *memory = mmap(NULL, CHECK_PAGE_BYTES, is_writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                        page_file, 0);

    if (memory == MAP_FAILED)
        check_give_up("a page of shared memory cannot be mapped");
    return memory;
}

/* ---- Asking ------------------------------------------------------------------------------------- */

/* The first process, forked: starts the second one, before CUDA is started, which does not survive a fork. */
static _Noreturn void run_question(void)
{
    int sockets[2];

    page_file = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (page_file < 0 || ftruncate(page_file, CHECK_PAGE_BYTES) < 0)
        check_give_up("there is no shared memory: %s", strerror(errno));
    if (check_question->has_other) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0 || (other_pid = fork_bound()) < 0)
            check_give_up("there is no second process: %s", strerror(errno));
        other_socket = sockets[other_pid == 0];
        close(sockets[other_pid != 0]);
    }
    if (!check_question->is_bare)
        check_open();
    if (check_question->has_other && other_pid == 0)
        run_steps();
    check_question->ask();
    leave();
}

static void keep(const struct message *message, struct check_answer *answers, struct check_answer *rest,
                 struct check_found *found)
{
    const struct check_line *lines = check_question->lines;

    if (message->kind == DEVICE) {
        snprintf(found->device, sizeof(found->device), "%.120s", message->answer.text);
        found->is_fake = message->is_fake;
    } else if (message->kind == REST && found->reason[0] == '\0') {
        snprintf(found->reason, sizeof(found->reason), "%s", message->answer.text);
        rest->verdict = message->answer.verdict;
        snprintf(rest->text, sizeof(rest->text), "Not asked: %.300s.", message->answer.text);
    } else if (message->kind == LINE) {
        for (int i = 0; lines[i].key != NULL; i++)
            if (strcmp(lines[i].key, message->key) == 0)
                answers[i] = message->answer;
    }
}

/* False: the last message has come, or none by end_ns. */
static bool receive_message(int pipe_end, struct message *message, uint64_t end_ns)
{
    uint64_t now_ns = check_now_ns();
    struct pollfd readable = { .fd = pipe_end, .events = POLLIN };

    return poll(&readable, 1, now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) + 1 : 0) > 0 &&
        read(pipe_end, message, sizeof(*message)) == (ssize_t)sizeof(*message);
}

void check_decline(const struct check_question *question, const char *reason)
{
    struct check_answer answer = { .verdict = CHECK_UNKNOWN };

    snprintf(answer.text, sizeof(answer.text), "Not asked: %s.", reason);
    for (int i = 0; question->lines[i].key != NULL; i++)
        check_report_line(&question->lines[i], &answer);
}

void check_ask(const struct check_question *question, const struct check_settings *settings, unsigned limit_ms,
               struct check_found *found)
{
    struct check_answer answers[CHECK_LINES] = { { .verdict = CHECK_UNKNOWN } };
    struct check_answer rest = { .verdict = CHECK_UNKNOWN };
    uint64_t end_ns = check_now_ns() + (uint64_t)limit_ms * 1000000;
    struct message message;
    int status = 0, ends[2];
    pid_t pid = -1;

    *found = (struct check_found){ .is_fake = false };
    check_question = question;
    check_device = settings->device;
    snprintf(rest.text, sizeof(rest.text), "No answer within %u ms: its call, or one before it, did not return.",
             limit_ms);
    if (pipe2(ends, O_CLOEXEC) < 0 || (pid = fork_bound()) < 0) {
        check_decline(question, strerror(errno));
        return;
    }
    messages = ends[1];
    if (pid == 0)
        run_question();
    close(ends[1]);
    while (receive_message(ends[0], &message, end_ns))
        keep(&message, answers, &rest, found);
    if (check_now_ns() >= end_ns)
        kill(pid, SIGKILL);
    if (reap(pid, &status) && WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        snprintf(rest.text, sizeof(rest.text), "No answer: its process died of signal %d (%s).", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    close(ends[0]);
    for (int i = 0; question->lines[i].key != NULL; i++)
        check_report_line(&question->lines[i], answers[i].text[0] != '\0' ? &answers[i] : &rest);
    if (found->device[0] == '\0' && found->reason[0] == '\0')
        snprintf(found->reason, sizeof(found->reason), "the driver did not start");
}

void check_keep_driver(void)
{
    char text[BXI_CU_TEXT_BYTES];

    if (fork_bound() != 0)
        return;
    while (bxi_cu_load(&cu, NULL, text) == 0)
        pause();
    _exit(0);
}
