/* SPDX-License-Identifier: MIT */
/*
 * The trainers as the server sees them: members of the batch or not, training, away, ended. Run by the server.
 *
 * The main thread starts "train" on every trainer and waits for their ends; a callback notes each end, on the thread
 * that makes progress.
 *
 * With --restart a trainer that died is away until it is back in the job. Then the main thread starts its training
 * again, from the first batch whose gradient the server has not used. So a gradient of each batch is used once: if the
 * dead process's last one is used only now, the new process gets -EALREADY for its own, and continues.
 */
#include "demos/common/clock.h"
#include "server.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GIVE_UP_NS UINT64_C(60000000000)    /* of silence */
#define CHECK_NS UINT64_C(500000000)        /* between two checks for silent trainers */
#define ATTEND_NS UINT64_C(10000000)        /* between two checks for trainers that are back or to be killed */
#define AWAY_NS UINT64_C(120000000000)      /* for a trainer to come back: as long as a start may take */

/* ---- Members of the batch (lock) --------------------------------------------------------------------- */

void ps_set_member(struct trainer *trainer, bool is_member)
{
    struct server *server = trainer->server;

    if (trainer->is_member == is_member)
        return;
    if (is_member && bx_batch_add_member(server->job, "update_and_fetch_model", trainer->rank) < 0)
        return;     /* it has died meanwhile */
    if (!is_member) {
        bx_batch_remove_member(server->job, "update_and_fetch_model", trainer->rank);
        server->left_ns = clock_now_ns();
    }
    trainer->is_member = is_member;
}

bool ps_is_running(const struct trainer *trainer)
{
    return ps_result_of(trainer)->state == PS_TRAINING && !trainer->is_away;
}

void ps_keep_members(struct server *server)
{
    bool has_member = false;

    for (size_t i = 0; i < server->trainer_count; i++)
        has_member |= server->trainers[i].is_member && ps_is_running(&server->trainers[i]);
    for (size_t i = 0; !has_member && i < server->trainer_count; i++) {
        if (ps_is_running(&server->trainers[i]))
            ps_set_member(&server->trainers[i], true);
    }
}

/* ---- From the start of the training to its end ----------------------------------------------------- */

static struct ps_spent add_spent(const struct ps_spent *a, const struct ps_spent *b)
{
    return (struct ps_spent){
        .total = a->total + b->total, .data = a->data + b->data, .repack = a->repack + b->repack,
        .forward = a->forward + b->forward, .backward = a->backward + b->backward, .call = a->call + b->call,
        .wait = a->wait + b->wait, .handed_bytes = a->handed_bytes + b->handed_bytes,
        .copied_bytes = a->copied_bytes + b->copied_bytes,
    };
}

void ps_note_report(struct trainer *trainer, const struct ps_report *report)
{
    struct server *server = trainer->server;
    uint64_t version = report->last_version;

    pthread_mutex_lock(&server->lock);
    trainer->pid = report->pid;
    trainer->generation = bx_worker_generation(server->job, trainer->rank);
    ps_result_of(trainer)->spent = add_spent(&trainer->before, &report->spent);
    if (version > 0 && version <= server->result->updates) {
        double *beyond_s = &server->result->update[version - 1].beyond_compute_s;   /* that update made the version */

        *beyond_s = fmax(*beyond_s, report->last_call_s);       /* NaN is no number: the other one */
    }
    pthread_mutex_unlock(&server->lock);
}

/* The others go on without it, for good or until it is back. */
static void lose_trainer(struct trainer *trainer, enum ps_state state, bool is_away)
{
    struct server *server = trainer->server;

    pthread_mutex_lock(&server->lock);
    ps_result_of(trainer)->state = state;
    trainer->before = ps_result_of(trainer)->spent;
    trainer->is_away = is_away;
    trainer->away_ns = clock_now_ns();
    trainer->pid = 0;
    ps_set_member(trainer, false);
    ps_keep_members(server);
    pthread_mutex_unlock(&server->lock);
}

static void end_trainer(struct trainer *trainer, enum ps_state state)
{
    struct server *server = trainer->server;

    if (state == PS_DIED && trainer->deaths++ < server->flags->restart) {
        lose_trainer(trainer, PS_TRAINING, true);
        printf("%s has died: the others go on until it is back\n", ps_name_of(trainer));
        return;
    }
    lose_trainer(trainer, state, false);
    if (state == PS_DIED)
        printf("%s has died: the others go on without it\n", ps_name_of(trainer));
    server->heard_ns = clock_now_ns();
    if (--server->running == 0)
        bx_future_set(server->ended, NULL);
}

/* Called when a trainer's "train" has ended, on the thread that makes progress. */
static void note_end(struct bx_future *future, void *context)
{
    struct trainer *trainer = context;
    struct bx_reader in = bx_msg_reader(bx_future_value(future));
    struct ps_report report;
    int code = bx_future_error(future);

    if (code == 0)
        code = ps_read_report(&in, &report);
    if (code == 0)
        ps_note_report(trainer, &report);
    if (code < 0 && code != BX_E_PEER_DEAD)
        fprintf(stderr, "param_server: the training of %s failed: %s\n", ps_name_of(trainer),
                bx_future_error(future) < 0 ? bx_future_error_text(future) : bx_strerror(code));
    end_trainer(trainer, code == 0                ? PS_COMPLETED
                         : code != BX_E_PEER_DEAD ? PS_BROKEN
                         : trainer->is_given_up   ? PS_GIVEN_UP
                                                  : PS_DIED);
}

/* Calls its "train". `first`: the first batch whose gradient is missing. BX_E_PEER_DEAD, too, is the caller's to
 * handle. */
static int start_trainer(struct trainer *trainer, uint64_t first)
{
    struct bx_call_options options = { .timeout_ns = BX_FOREVER };
    struct server *server = trainer->server;
    struct bx_msg *args = bx_msg_create(0);
    int rc = args == NULL ? -ENOMEM : bx_msg_put_rref(args, server->self);

    if (rc == 0)
        rc = bx_msg_put_u64(args, first);
    bx_future_release(trainer->future);
    trainer->future = NULL;
    if (rc == 0)
        rc = bx_rpc_async(server->job, ps_name_of(trainer), "train", args, &options, &trainer->future);
    bx_msg_destroy(args);
    return rc == 0 ? bx_future_on_done(trainer->future, note_end, trainer) : rc;
}

int ps_start_trainers(struct server *server)
{
    int rc = 0;

    server->ended = bx_future_create(server->job);
    if (server->ended == NULL)
        return bx_fail(-ENOMEM, "not enough memory to wait for the trainers");
    server->running = (int)server->trainer_count;
    server->start_ns = server->update_end_ns = clock_now_ns();
    server->heard_ns = server->start_ns;
    for (size_t i = 0; rc == 0 && i < server->trainer_count; i++) {
        struct trainer *trainer = &server->trainers[i];

        rc = start_trainer(trainer, 0);
        if (rc == BX_E_PEER_DEAD) {
            end_trainer(trainer, PS_DIED);
            rc = 0;
        }
    }
    return rc;
}

/* Starts the training of a trainer again that is back in the job, or ends it for good if it does not come. */
static int attend_to(struct trainer *trainer)
{
    struct server *server = trainer->server;

    pthread_mutex_lock(&server->lock);
    bool is_away = trainer->is_away, is_back = is_away && bx_worker_is_alive(server->job, trainer->rank);
    bool is_lost = is_away && !is_back && clock_now_ns() - trainer->away_ns > AWAY_NS;
    uint64_t first = ps_result_of(trainer)->batches;
    if (is_back) {
        trainer->is_away = false;
        ps_set_member(trainer, true);
    }
    pthread_mutex_unlock(&server->lock);
    if (is_lost) {
        trainer->deaths = server->flags->restart;
        end_trainer(trainer, PS_DIED);
    }
    if (!is_back)
        return 0;
    int rc = start_trainer(trainer, first);
    if (rc == BX_E_PEER_DEAD) {
        lose_trainer(trainer, PS_TRAINING, true);
        return 0;
    }
    ps_result_of(trainer)->restarts++;
    printf("%s is started again, from batch %llu\n", ps_name_of(trainer), (unsigned long long)first + 1);
    return rc;
}

/* Kills the process that has sent the last report, if it is the trainer's still: its pid may be another's by now. */
static bool kill_trainer(const struct trainer *trainer)
{
    const struct bx_job *job = trainer->server->job;
    int pidfd = trainer->pid > 0 ? (int)syscall(SYS_pidfd_open, (pid_t)trainer->pid, 0) : -1;
    /* If the worker lives when the process has been opened, it is that process. */
    bool lives = pidfd >= 0 && bx_worker_is_alive(job, trainer->rank) &&
                 bx_worker_generation(job, trainer->rank) == trainer->generation;
    bool is_killed = lives && syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) == 0;

    if (pidfd >= 0)
        close(pidfd);
    return is_killed;
}

/* Kills one trainer (--kill), if one is due: after a half of all gradients for --kill 1, after each third for 2. */
static void kill_one(struct server *server)
{
    uint64_t used = 0, all = server->trainer_count * server->flags->num_batches;

    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < server->trainer_count; i++)
        used += server->result->trainers[i].batches;
    bool is_due = server->result->kills < server->flags->kill &&
                  used * (server->flags->kill + 1) >= (server->result->kills + 1) * all;
    for (size_t i = 0; is_due && i < server->trainer_count; i++) {
        struct trainer *trainer = &server->trainers[(server->next_victim + i) % server->trainer_count];

        if (!ps_is_running(trainer) || !kill_trainer(trainer))
            continue;
        is_due = false;
        server->result->kills++;
        server->next_victim = (size_t)trainer->rank;
        trainer->pid = 0;       /* until the next process sends a report */
    }
    pthread_mutex_unlock(&server->lock);
}

static int attend(struct server *server)
{
    int rc = 0;

    kill_one(server);
    for (size_t i = 0; rc == 0 && i < server->trainer_count; i++)
        rc = attend_to(&server->trainers[i]);
    return rc;
}

/* Kills the trainers that are left, if some have ended and the others have been silent for long: they are stopped, or
 * hang. */
static void give_up(struct server *server)
{
    uint64_t patience_ns = server->flags->patience_ms * UINT64_C(1000000) * 10;
    uint64_t silence_ns = clock_now_ns() - server->heard_ns;

    if (silence_ns < (patience_ns > GIVE_UP_NS ? patience_ns : GIVE_UP_NS) ||
        server->running == (int)server->trainer_count)
        return;
    for (size_t i = 0; i < server->trainer_count; i++) {
        struct trainer *trainer = &server->trainers[i];

        if (trainer->future == NULL || bx_future_is_done(trainer->future) || trainer->is_given_up || trainer->pid <= 0)
            continue;
        printf("%s has been silent for %.0f s and is given up\n", ps_name_of(trainer), 1e-9 * (double)silence_ns);
        trainer->is_given_up = true;
        (void)kill_trainer(trainer);
    }
}

int ps_wait_for_trainers(struct server *server)
{
    bool is_attended = server->flags->restart > 0 || server->flags->kill > 0;
    int rc;

    while ((rc = bx_future_wait(server->ended, is_attended ? ATTEND_NS : CHECK_NS)) == BX_E_TIMEOUT) {
        give_up(server);
        if (is_attended && (rc = attend(server)) < 0)
            return rc;
    }
    server->result->total_s = clock_seconds_since(server->start_ns);
    return rc;
}
