/* SPDX-License-Identifier: MIT */
/*
 * The parameter server, rank 0: holds the model. It turns the gradients of a batch of calls into the next version, and
 * answers every call of the batch with that version.
 *
 * The server is an object with two methods. The main thread starts "train" on every trainer, with a reference to the
 * server, and waits for their ends (trainers.c). "get_model" is answered on the thread that makes progress.
 * "update_and_fetch_model" is a batch with a blocking body: it runs on the pool, one at a time, when each member of the
 * batch has a row or batch_update_size rows have arrived. It reads the gradients in the trainers' arenas and writes
 * version n+1 to tensors of its own, beside version n, which may be on loan. A version is freed when its last borrower
 * has returned it, and its memory is reused. (Writing into version n-1 as soon as it is not on loan would save 161
 * calls of malloc, but a reply that holds it may be in flight.)
 *
 * Members of the batch are the trainers that it waits for. A trainer that has not sent its row when the patience of the
 * oldest row is over is removed until it returns: so it costs the others one wait and not one in each update. Its
 * gradient then counts in the batch that it joins, however old it is. Trainers that died or are done are no members
 * either. If only absent trainers are left, they become members again, and the server kills them when it has not heard
 * from any for GIVE_UP_NS or ten times the patience, whichever is longer.
 *
 * On a GPU a row arrives while its gradients are still being computed, and the server does not check that they were
 * completed: those of a trainer that is killed at that moment count once, some of them zero, or of the batch before.
 *
 * Threads: `lock` guards the list of versions and the members. The body, get_model and the callback of a trainer's end
 * take it, and nothing waits under it. Only the body writes the result's updates until the training has ended.
 */
#include "demos/common/clock.h"
#include "demos/common/worker.h"
#include "server.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETURN_NS UINT64_C(10000000000)     /* for the last loans to be returned */

/* A valid row of the current batch. */
struct row {
    size_t index;               /* in the batch */
    struct trainer *trainer;
    uint64_t version;
    uint64_t sent_ns;
    double loss;
    const float **grads;
};

struct rows {
    struct row at[PS_TRAINERS_MAX];
    const float *const *grads[PS_TRAINERS_MAX];
    size_t count;
    const float **room;         /* memory for all rows' grads */
    bool is_short;              /* a member did not send its row */
    uint64_t began_ns;
    uint64_t complete_ns;       /* end of the wait: the last row sent, a member removed, or began_ns */
};

/* ---- Versions of the model ------------------------------------------------------------------------- */

static void destroy_version(struct version *version)
{
    if (version == NULL)
        return;
    ps_set_destroy(&version->set);
    free(version);
}

static int create_version(struct server *server, uint64_t number, struct version **made)
{
    struct version *version = calloc(1, sizeof(*version));
    int rc;

    if (version == NULL)
        return bx_fail(-ENOMEM, "not enough memory for version %llu of the model", (unsigned long long)number);
    version->number = number;
    rc = ps_set_create(&version->set, &server->place, &server->params);
    if (rc < 0) {
        free(version);
        return rc;
    }
    *made = version;
    return 0;
}

/* Frees the versions that are on loan to no worker, except the newest. Returns how many are left. */
static uint64_t forget_versions(struct server *server)
{
    struct version **at, *older;
    struct bx_loans loans = { 0 };
    uint64_t left = 0;

    bx_job_loans(server->job, -1, &loans);      /* collects returned leases */
    pthread_mutex_lock(&server->lock);
    for (at = &server->versions; (older = *at) != NULL;) {
        if (older == server->versions || ps_set_is_on_loan(&older->set)) {
            left++;
            at = &older->next;
        } else {
            *at = older->next;
            destroy_version(older);
        }
    }
    pthread_mutex_unlock(&server->lock);
    return left;
}

static void install_version(struct server *server, struct version *version)
{
    pthread_mutex_lock(&server->lock);
    version->next = server->versions;
    server->versions = version;
    pthread_mutex_unlock(&server->lock);
}

static int get_model(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct server *server = bx_request_object(request);

    (void)args, (void)context;
    pthread_mutex_lock(&server->lock);
    struct version *newest = server->versions;
    int rc = newest == NULL ? bx_fail(BX_E_STATE, "there is no model yet") : 0;
    if (rc == 0)
        rc = bx_msg_put_u64(reply, newest->number);
    if (rc == 0)
        rc = ps_put_set(reply, &newest->set);
    pthread_mutex_unlock(&server->lock);
    return rc;
}

/* Updates the members after a batch: adds the trainers that sent a row, removes those that did not in time. */
static void note_presence(struct server *server, const struct rows *rows)
{
    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < rows->count; i++) {
        struct trainer *trainer = rows->at[i].trainer;

        if (!trainer->is_member && ps_is_running(trainer)) {
            printf("%s is back\n", ps_name_of(trainer));
            ps_set_member(trainer, true);
        }
    }
    for (size_t i = 0; rows->is_short && i < server->trainer_count; i++) {
        struct trainer *trainer = &server->trainers[i];

        if (trainer->has_row || !trainer->is_member || !ps_is_running(trainer) ||
            !bx_worker_is_alive(server->job, trainer->rank))
            continue;
        printf("%s did not come within %llu ms: the others go on without it\n", ps_name_of(trainer),
               (unsigned long long)server->flags->patience_ms);
        ps_set_member(trainer, false);
        server->result->absences++;
    }
    ps_keep_members(server);
    pthread_mutex_unlock(&server->lock);
}

/* ---- An update ----------------------------------------------------------------------------------------- */

/* Reads the arguments of one row. They are checked like any input. */
static int read_row(struct server *server, struct bx_batch *batch, struct row *row)
{
    struct bx_reader in = bx_batch_args(batch, row->index);
    struct ps_report report;

    row->version = bx_read_u64(&in);
    row->sent_ns = bx_read_u64(&in);
    row->loss = bx_read_f64(&in);
    int rc = ps_read_report(&in, &report);
    if (rc < 0)
        return rc;
    if (row->version > server->versions->number)
        return bx_fail(-EINVAL, "there is no version %llu yet", (unsigned long long)row->version);
    rc = ps_read_set(&in, &server->place, &server->params, "the gradients", row->grads);
    if (rc < 0)
        return rc;
    if (report.batch < ps_result_of(row->trainer)->batches) {
        server->result->repeats++;
        return bx_fail(-EALREADY, "the gradient of batch %llu has been used", (unsigned long long)report.batch);
    }
    ps_note_report(row->trainer, &report);
    return 0;
}

static void note_late(struct server *server, const struct row *row, struct ps_update *update)
{
    struct ps_result *result = server->result;
    uint64_t age = server->versions->number - row->version;

    if (age == 0)
        return;
    update->late++;
    result->late_gradients++;
    ps_result_of(row->trainer)->late++;
    if (age > result->late_versions_max)
        result->late_versions_max = age;
    printf("late: the gradient of %s is %llu version%s old\n", ps_name_of(row->trainer), (unsigned long long)age,
           age == 1 ? "" : "s");
}

/* Reads the rows in the order of ranks. An invalid row fails alone. */
static int read_rows(struct server *server, struct bx_batch *batch, struct rows *rows)
{
    size_t count = bx_batch_rows(batch), members = 0;
    uint64_t last_ns = server->left_ns;

    rows->room = calloc(count * server->params.count, sizeof(const float *));
    if (rows->room == NULL)
        return bx_fail(-ENOMEM, "not enough memory for %zu gradients", count);
    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < server->trainer_count; i++) {
        server->trainers[i].has_row = false;
        members += server->trainers[i].is_member;
    }
    pthread_mutex_unlock(&server->lock);
    for (size_t i = 0; i < count; i++) {
        struct row *row = &rows->at[rows->count];
        int rank = bx_batch_caller(batch, i);

        if (rank < 1 || (size_t)rank > server->trainer_count) {
            bx_batch_fail_row(batch, i, -EINVAL, "only trainers have gradients");
            continue;
        }
        *row = (struct row){ .index = i, .trainer = &server->trainers[rank - 1],
                             .grads = rows->room + rows->count * server->params.count };
        row->trainer->has_row = true;
        int rc = read_row(server, batch, row);
        if (rc < 0) {
            bx_batch_fail_row(batch, i, rc, bx_error_text());
            continue;
        }
        last_ns = row->sent_ns > last_ns ? row->sent_ns : last_ns;
        rows->grads[rows->count++] = row->grads;
    }
    rows->is_short = count < members && count < (size_t)server->flags->batch_update_size;
    rows->complete_ns = rows->is_short || last_ns > rows->began_ns ? rows->began_ns : last_ns;
    return 0;
}

static int reply_rows(struct server *server, struct bx_batch *batch, const struct rows *rows)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < rows->count; i++) {
        const struct row *row = &rows->at[i];
        struct bx_msg *reply = bx_batch_reply(batch, row->index);
        uint64_t waited_ns = rows->complete_ns > row->sent_ns ? rows->complete_ns - row->sent_ns : 0;

        if (reply == NULL)
            return bx_fail(-ENOMEM, "not enough memory for a reply");
        bx_msg_put_u64(reply, server->versions->number);
        bx_msg_put_u64(reply, waited_ns);
        rc = ps_put_set(reply, &server->versions->set);
    }
    return rc;
}

/* Adds the update to the result and prints its line. */
static void note_update(struct server *server, const struct rows *rows, uint64_t step_ns)
{
    struct ps_result *result = server->result;
    struct ps_update *update = &result->update[result->updates];
    uint64_t now_ns = clock_now_ns();

    *update = (struct ps_update){ .beyond_compute_s = (double)NAN, .rows = (double)rows->count,
                                  .step_s = 1e-9 * (double)step_ns,
                                  .seconds = 1e-9 * (double)(now_ns - server->update_end_ns) };
    server->update_end_ns = now_ns;
    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < rows->count; i++) {
        update->loss += rows->at[i].loss / (double)rows->count;
        ps_result_of(rows->at[i].trainer)->batches++;
        note_late(server, &rows->at[i], update);
    }
    result->updates++;
    pthread_mutex_unlock(&server->lock);
    printf("update %zu: loss %.6f, %.3f s, %zu gradient%s\n", result->updates, update->loss, update->seconds,
           rows->count, rows->count == 1 ? "" : "s");
}

static int make_step(struct server *server, const struct rows *rows)
{
    struct version *now = server->versions, *next = NULL;
    uint64_t start_ns = clock_now_ns(), live = forget_versions(server) + 1;
    struct ps_step step = {
        .place = &server->place,
        .params = &server->params,
        .lr = (float)server->flags->lr,
        .momentum = (float)server->flags->momentum,
        .velocity = server->velocity,
        .from = (const float *const *)now->set.at,
        .grads = rows->grads,
        .rows = rows->count,
    };
    size_t most = server->trainer_count * server->flags->num_batches;
    int rc = 0;

    if (server->result->updates >= most)
        rc = bx_fail(-EINVAL, "there have been %zu updates, as many as the trainers can want", most);
    if (rc == 0)
        rc = create_version(server, now->number + 1, &next);
    if (rc < 0)
        return rc;
    if (live > server->result->versions_live_max)
        server->result->versions_live_max = live;
    step.to = next->set.at;
    rc = ps_set_read(&now->set, &server->place);
    if (rc == 0)
        rc = ps_step(&step);
    if (rc == 0)
        rc = ps_set_written(&next->set, &server->place);
    if (rc < 0) {
        destroy_version(next);
        return rc;
    }
    note_update(server, rows, clock_now_ns() - start_ns);
    install_version(server, next);
    return 0;
}

static int update_and_fetch_model(struct bx_batch *batch, void *context)
{
    struct server *server = context;
    struct rows rows = { .began_ns = clock_now_ns() };
    int rc = read_rows(server, batch, &rows);

    server->heard_ns = rows.began_ns;
    if (rc == 0 && rows.count > 0) {
        note_presence(server, &rows);
        rc = make_step(server, &rows);
        if (rc == 0)
            rc = reply_rows(server, batch, &rows);
    }
    free(rows.room);
    return rc;
}

/* ---- The training -------------------------------------------------------------------------------------- */

/* Computes the checksum of the newest version, which may lie on a GPU. */
static int checksum_model(struct server *server, uint64_t *checksum)
{
    struct version *newest = server->versions;
    float *copy = server->place.cuda != NULL ? ps_params_alloc(&server->params) : NULL;
    const float **at = calloc(server->params.count, sizeof(const float *));
    int rc = 0;

    if (at == NULL || (server->place.cuda != NULL && copy == NULL))
        rc = bx_fail(-ENOMEM, "not enough memory to sum the model up");
    else if (copy != NULL)
        rc = ps_place_copy(&server->place, copy, newest->set.at[0], server->params.room);
    for (size_t i = 0; rc == 0 && i < server->params.count; i++)
        at[i] = copy != NULL ? copy + server->params.at[i].offset : newest->set.at[i];
    if (rc == 0)
        *checksum = ps_checksum(&server->params, at);
    free(at);
    free(copy);
    return rc;
}

/* Fills in the figures that are known only at the end. */
static int fill_in_result(struct server *server)
{
    struct ps_result *result = server->result;
    struct bx_loans loans = { 0 };
    struct bx_arena_info arena = { 0 };

    /* Loans that last longer are counted in leases_at_end. */
    bx_loans_wait(server->job, -1, 0, RETURN_NS);
    int rc = bx_job_loans(server->job, -1, &loans);
    if (rc == 0)
        rc = bx_job_arena(server->job, &arena);
    result->copied_bytes = worker_copied_bytes(server->job);
    result->leases_at_end = loans.leases;
    result->arena_bytes = arena.high_water_bytes;
    if (rc == 0)
        rc = checksum_model(server, &result->checksum);
    result->ended = rc == 0;
    return rc;
}

static int train(struct server *server)
{
    int rc = ps_start_trainers(server);

    if (rc == 0)
        rc = ps_wait_for_trainers(server);
    return rc < 0 ? rc : fill_in_result(server);
}

/* ---- The worker's life ------------------------------------------------------------------------------- */

/* Fills the first version. */
static int draw_model(struct server *server, const struct bx_net *net, const struct ps_set *set)
{
    const struct ps_params *params = &server->params;
    float *floats = ps_params_alloc(params), **at = calloc(params->count, sizeof(float *));
    int rc = floats == NULL || at == NULL ? bx_fail(-ENOMEM, "not enough memory to draw the first model") : 0;

    for (size_t i = 0; rc == 0 && i < params->count; i++)
        at[i] = floats + params->at[i].offset;
    if (rc == 0)
        resnet_init(net, 0, server->flags->seed, at);
    for (size_t i = 0; rc == 0 && i < params->count; i++)
        rc = ps_place_copy(&server->place, set->at[i], at[i], params->at[i].elements);
    free(at);
    free(floats);
    return rc < 0 ? rc : ps_set_written(set, &server->place);
}

/* Makes the first version. The net only gives the list of parameters, so a small one on the CPU is enough. */
static int make_model(struct server *server)
{
    struct bx_net *net = NULL;
    struct version *first = NULL, *second = NULL;
    int rc = ps_net_create(server->flags, NULL, 2, 64, &net);

    if (rc == 0)
        rc = ps_params_init(&server->params, net);
    if (rc == 0)
        rc = ps_place_join(&server->place, server->job);
    if (rc == 0)
        rc = ps_place_alloc(&server->place, server->params.room, &server->velocity);
    if (rc == 0)
        rc = create_version(server, 0, &first);
    if (rc == 0) {
        install_version(server, first);
        rc = draw_model(server, net, &first->set);
    }
    if (rc == 0)
        rc = create_version(server, 1, &second);
    /* Touches the pages of the next version now; the arena keeps them until they are needed. */
    for (size_t i = 0; rc == 0 && server->place.cuda == NULL && i < server->params.count; i++)
        memset(second->set.at[i], 0, server->params.at[i].elements * sizeof(float));
    destroy_version(second);
    bx_net_destroy(net);
    return rc;
}

static const struct bx_type server_type = { .name = "parameter_server" };

static int start(struct server *server)
{
    struct bx_batch_options options = {
        .max_rows = (size_t)server->flags->batch_update_size,
        .flush_after_ns = server->flags->patience_ms * UINT64_C(1000000),
        .blocking = true,
    };
    int rc = bx_register_method(server->job, &server_type, "get_model", BX_INLINE, get_model, NULL);

    if (rc == 0)
        rc = bx_register_method_batch(server->job, &server_type, "update_and_fetch_model", update_and_fetch_model,
                                      server, &options);
    for (size_t i = 0; rc == 0 && i < server->trainer_count; i++)
        rc = bx_batch_add_member(server->job, "update_and_fetch_model", server->trainers[i].rank);
    if (rc == 0)
        rc = bx_job_start(server->job);
    return rc < 0 ? rc : bx_rref_create(server->job, &server_type, server, &server->self);
}

static void fini_server(struct server *server)
{
    while (server->versions != NULL) {
        struct version *version = server->versions;

        server->versions = version->next;
        destroy_version(version);
    }
    for (size_t i = 0; i < server->trainer_count; i++)
        bx_future_release(server->trainers[i].future);
    bx_future_release(server->ended);
    ps_params_fini(&server->params);
    ps_place_free(&server->place, server->velocity);
    ps_place_close(&server->place);
}

int ps_server(const struct bx_options *options, const struct ps_run *run)
{
    static struct server server = { .lock = PTHREAD_MUTEX_INITIALIZER };

    if (run->result->began) {
        fputs("param_server: the server cannot be started again: the model died with it\n", stderr);
        return EXIT_FAILURE;
    }
    run->result->began = true;
    server.flags = run->flags;
    server.result = run->result;
    server.trainer_count = (size_t)run->flags->trainers;
    for (size_t i = 0; i < server.trainer_count; i++)
        server.trainers[i] = (struct trainer){ .server = &server, .rank = (int)i + 1, .is_member = true };
    int rc = bx_job_create(options, &server.job);
    if (rc == 0)
        rc = start(&server);
    if (rc == 0)        /* after the start: the trainers see the end of a worker only if it has joined */
        rc = ps_place_open(&server.place, run->flags, 0);
    if (rc == 0)
        rc = make_model(&server);
    if (rc == 0)
        rc = train(&server);
    bx_rref_release(server.self);
    if (rc == 0)
        rc = bx_job_shutdown(server.job, 0);
    if (rc < 0)
        fprintf(stderr, "param_server: %s: %s\n", options->name, worker_reason(rc));
    bx_job_destroy(server.job);
    fini_server(&server);
    return rc == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
