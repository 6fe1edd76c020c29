/* SPDX-License-Identifier: MIT */
/*
 * Workers lend tensors and pass references on.
 *
 * Truth: memory that is lent does not change; a reference leads to its object.
 */
#include "room_job.h"

#include "boxcar.h"
#include "shm/atomic.h"

bool sim_all_have(unsigned truth_0)
{
    for (int rank = 0; rank < (int)sim_truth(SIZE); rank++)
        if (sim_truth(truth_0 + (unsigned)rank) == 0 && !sim_is_gone(rank) &&
            sim_truth(STOPPED_0 + (unsigned)rank) == 0)
            return false;
    return true;
}

/* So often a worker looks, each 5 ms, whether the others have given back all. One that comes back may take 30 s. */
static uint64_t patience(void)
{
    return 60 + (sim_stopped_ns() + sim_death_ns()) / 5000000 +
           (sim_truth(REJOIN) == 2 && sim_any_is_dead() ? 8000 : 0);
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

#define KEPT 3
static bxi_a64 kept[KEPT];              /* tensors of the other worker that this one keeps; the first byte tells all */

/* A tensor of this worker's arena, all of whose bytes are `letter`. */
static struct bx_tensor *make_tensor(struct bx_job *job, unsigned char letter)
{
    int64_t bytes = sim_choose(2) == 0 ? 100 : 5000;
    struct bx_tensor *tensor = NULL;

    SIM_AGAIN(job, "bx_tensor_create", bx_tensor_create(job, BX_U8, 1, &bytes, &tensor));
    if (tensor != NULL)                 /* else the job has ended */
        memset(bx_tensor_data_mut(tensor), letter, (size_t)bytes);
    return tensor;
}

/* Each line of it, as no point: memory that is lent does not change. */
static void check_tensor(const struct bx_tensor *tensor, int letter)
{
    const unsigned char *data = bx_tensor_data(tensor);
    size_t bytes = bx_tensor_bytes(tensor);
    unsigned char first = data[0];

    for (size_t i = 0; i < bytes; i += 60)
        if (data[i] != first || (letter >= 0 && first != letter))
            sim_fail("a tensor that is lent has changed");
}

bool sim_keeps_nothing(void)
{
    return sim_truth(WAITS) == 3 && !sim_any_is_dead() && !sim_one_left() && sim_refusal() == 0;
}

static struct bx_tensor *put_kept(struct bx_tensor *tensor)
{
    if (sim_truth(WAITS) == 3)
        return tensor;

    struct bx_tensor *before = (void *)(uintptr_t)bxi_exchange(&kept[sim_choose(KEPT)], (uint64_t)(uintptr_t)tensor);

    if (before != NULL)
        check_tensor(before, -1);
    return before;
}

/* Keeps the tensor for a while, or not. Answers with it, or with one of its own. */
static int show(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_tensor *tensor = bx_read_tensor(args), *own;
    int letter = (int)bx_read_i64(args);

    (void)context;
    check_tensor(tensor, letter);
    if (sim_choose(2) == 0)
        bx_tensor_release(put_kept(bx_tensor_acquire(tensor)));
    own = sim_choose(2) == 0 ? make_tensor(bx_request_job(request), (unsigned char)letter) : bx_tensor_acquire(tensor);
    if (own == NULL)
        return BX_E_SHUTDOWN;
    bx_msg_put_tensor(reply, own);
    bx_tensor_release(own);
    return 0;
}

/* What nobody reads any more, its owner writes again. */
static void write_again(struct bx_job *job, struct bx_tensor *tensor)
{
    struct bx_loans loans = { .struct_bytes = sizeof loans };

    if (sim_truth(WAITS) == 3 && !bx_tensor_is_borrowed(tensor) && bx_job_loans(job, -1, &loans) == 0 &&
        bx_tensor_on_loan(tensor) == 0)
        memset(bx_tensor_data_mut(tensor), 0, bx_tensor_bytes(tensor));
    bx_tensor_release(tensor);
}

/* Nobody keeps anything. */
static void await_returns(struct bx_job *job)
{
    int rc = bx_loans_wait(job, -1, 0, 5000000000);

    if (rc != BX_E_TIMEOUT || !(sim_any_is_dead() || sim_one_left() || sim_stopped_ns() > 0))
        sim_must(job, "bx_loans_wait", rc);
}

/* Its own, or one that it keeps of another worker. */
static void lend(struct bx_job *job, unsigned char letter)
{
    struct bx_tensor *tensor = sim_choose(3) == 0 ? put_kept(NULL) : NULL;
    struct bx_msg *args = sim_msg(), *reply = NULL;

    if (tensor == NULL)
        tensor = make_tensor(job, letter);
    else
        letter = *(const unsigned char *)bx_tensor_data(tensor);
    bx_msg_put_tensor(args, tensor);
    bx_msg_put_i64(args, letter);
    sim_count(UNDER_WAY, 1);
    sim_must(job, "bx_rpc_sync", bx_rpc_sync(job, sim_names[sim_another(job)], "show", args, NULL, &reply));
    sim_count(UNDER_WAY, -1);
    bx_msg_destroy(args);
    if (reply == NULL) {
        bx_tensor_release(tensor);
        return;
    }

    struct bx_reader reader = bx_msg_reader(reply);
    struct bx_tensor *back = bx_read_tensor(&reader);

    check_tensor(back, letter);
    if (sim_choose(2) == 0)
        bx_tensor_release(put_kept(bx_tensor_acquire(back)));
    bx_msg_destroy(reply);
    write_again(job, tensor);
    if (sim_truth(WAITS) == 3 && sim_choose(4) == 0)
        await_returns(job);
}

void sim_lend(struct bx_job *job)
{
    lend(job, (unsigned char)(1 + bx_job_rank(job) * 40 + sim_choose(40)));
}

/* Nobody keeps tensors any more: all leases return. With a death some calls of the dead one may still arrive. */
void sim_get_all_back(struct bx_job *job)
{
    struct bx_loans loans = { .struct_bytes = sizeof loans };
    unsigned mine = FREE_0 + (unsigned)bx_job_rank(job);
    uint64_t began_ns = sim_now();

    for (uint64_t i = 0; i < patience() && !sim_all_have(FREE_0); i++) {
        int rc;

        sim_release_kept();
        rc = bx_loans_wait(job, -1, 0, sim_any_is_dead() ? 50000000 : 5000000000 + sim_stopped_ns());
        if (rc == 0 && sim_truth(mine) == 0)
            sim_count(mine, 1);
        if (rc != BX_E_TIMEOUT)
            sim_must(job, "bx_loans_wait", rc);
        if (!sim_any_is_dead() && rc != BX_E_TIMEOUT)
            break;
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    }
    bx_job_loans(job, -1, &loans);
    if (loans.leases != 0 || loans.bytes != 0 || loans.granted != loans.returned + loans.taken_back)
        sim_fail("%llu leases, %llu bytes are on loan at the end; %llu granted, %llu returned, %llu taken back",
                 (unsigned long long)loans.leases, (unsigned long long)loans.bytes, (unsigned long long)loans.granted,
                 (unsigned long long)loans.returned, (unsigned long long)loans.taken_back);
    if (!sim_any_is_dead() && ((loans.taken_back != 0 && !sim_one_left()) ||
                               sim_now() > began_ns + 500000000 + sim_stopped_ns()))
        sim_fail("leases return after %.3f s, %llu are taken back", (double)(sim_now() - began_ns) / 1e9,
                 (unsigned long long)loans.taken_back);
}

/* ---- references ------------------------------------------------------------------------------------- */

static bxi_a64 kept_refs[KEPT];

static void destroy_object(void *object)
{
    sim_note("object %p ends", object);
    sim_count(OBJECTS, -1);
    sim_count(OBJECTS_0 + (unsigned)sim_self->worker, -1);
    free(object);
}

static int write_value(void *object, struct bx_msg *value)
{
    return bx_msg_put_i64(value, *(int64_t *)object);
}

static const struct bx_type type = { .name = "object", .destroy = destroy_object, .value = write_value };

static int64_t *new_object(int64_t value)
{
    int64_t *object = sim_memory(sizeof *object);

    *object = value;
    sim_note("object %p", (void *)object);
    sim_count(OBJECTS, 1);
    sim_count(OBJECTS_0 + (unsigned)sim_self->worker, 1);
    return object;
}

static int make(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    int64_t *object = new_object(bx_read_i64(args));
    int rc = bx_msg_put_object(bx_request_job(request), reply, &type, object);

    (void)context;
    if (rc < 0)
        destroy_object(object);
    return rc;
}

/* A reference that a worker has leads to its object, while the owner lives and has not left. */
static void fetched(struct bx_future *future, void *context)
{
    int rc = bx_future_error(future);

    (void)context;
    if (rc == BX_E_CANCELLED && (sim_any_is_dead() || sim_one_left()))     /* of a handler whose caller has gone */
        return;
    if (rc < 0 && rc != BX_E_SHUTDOWN && !sim_is_allowed(rc))
        sim_fail("a reference leads to no object: %d, %s", rc, bx_future_error_text(future));
}

static void fetch(struct bx_rref *rref)
{
    struct bx_future *future = NULL;

    if (rref != NULL && bx_rref_to_here_async(rref, NULL, &future) == 0)
        bx_future_on_done(future, fetched, NULL);
    bx_future_release(future);
}

static void keep_ref(struct bx_rref *rref)
{
    struct bx_rref *before = sim_truth(WAITS) == 3 ? rref
        : (void *)(uintptr_t)bxi_exchange(&kept_refs[sim_choose(KEPT)], (uint64_t)(uintptr_t)rref);

    if (sim_choose(2) == 0)
        fetch(before);
    bx_rref_release(before);
}

/* Keeps the reference, fetches its object, or sends it back, or all of these. */
static int look(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    struct bx_rref *rref = bx_read_rref(args);

    (void)request, (void)context;
    if (sim_choose(2) == 0)
        fetch(rref);
    if (sim_choose(2) == 0)
        keep_ref(bx_rref_acquire(rref));
    return sim_choose(2) == 0 ? bx_msg_put_rref(reply, rref) : 0;
}

/* A new one, or one that this worker keeps. */
static void use_ref(struct bx_job *job, int64_t value)
{
    static const char *const looks[] = { "look", "look and block" };
    const char *to = sim_names[sim_another(job)], *look_at = looks[sim_choose(2)];
    struct bx_msg *args = sim_msg(), *reply = NULL;
    struct bx_rref *rref = NULL;
    int64_t *object;
    int rc = 0;

    bx_msg_put_i64(args, value);
    if (sim_choose(3) == 0)
        rref = (void *)(uintptr_t)bxi_exchange(&kept_refs[sim_choose(KEPT)], 0);
    if (rref != NULL)
        value = 0;
    else if (sim_choose(2) == 0)
        sim_must(job, "bx_remote", bx_remote(job, to, "make", args, NULL, &rref));
    else if (object = new_object(value), (rc = bx_rref_create(job, &type, object, &rref)) < 0)
        destroy_object(object);
    sim_must(job, "bx_rref_create", rc);
    bx_msg_destroy(args);
    if (rref == NULL)
        return;
    args = sim_msg();
    bx_msg_put_rref(args, rref);
    to = sim_names[sim_another(job)];               /* the owner, or a third worker */
    if (sim_choose(2) == 0)
        sim_must(job, "bx_rpc_sync", bx_rpc_sync(job, to, look_at, args, NULL, &reply));
    else
        sim_must(job, "bx_rpc_oneway", bx_rpc_oneway(job, to, look_at, args, NULL));
    bx_msg_destroy(args);
    bx_msg_destroy(reply);
    reply = NULL;
    if (sim_choose(2) == 0)
        sim_must(job, "bx_rref_to_here", bx_rref_to_here(rref, NULL, &reply));
    if (reply != NULL) {
        struct bx_reader reader = bx_msg_reader(reply);

        if (bx_read_i64(&reader) != value && value != 0)
            sim_fail("an object has another value");
    }
    bx_msg_destroy(reply);
    if (sim_choose(2) == 0)
        keep_ref(rref);
    else
        bx_rref_release(rref);
}

void sim_refer(struct bx_job *job)
{
    sim_count(UNDER_WAY, 1);
    sim_count(SERIAL, 1);
    use_ref(job, (int64_t)sim_truth(SERIAL));
    sim_count(UNDER_WAY, -1);
}

void sim_release_kept(void)
{
    for (int i = 0; i < KEPT; i++)
        bx_tensor_release((void *)(uintptr_t)bxi_exchange(&kept[i], 0));
    for (int i = 0; i < KEPT; i++)
        bx_rref_release((void *)(uintptr_t)bxi_exchange(&kept_refs[i], 0));
}

/* Nobody keeps references any more: all objects of the living are destroyed. Some calls of others may still arrive. */
void sim_await_objects(void)
{
    unsigned worker = (unsigned)sim_self->worker;

    for (uint64_t i = 0; i < patience() && !sim_all_have(FREED_0); i++) {
        sim_release_kept();
        if (sim_truth(OBJECTS_0 + worker) == 0 && sim_truth(FREED_0 + worker) == 0)
            sim_count(FREED_0 + worker, 1);
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
    }
    if (!sim_all_have(FREED_0))
        sim_fail("%lld objects of rank %u are left, and nobody refers to them",
                 (long long)sim_truth(OBJECTS_0 + worker), worker);
}

void sim_lend_register(struct bx_job *job)
{
    SIM_AGAIN(job, "bx_register", bx_register(job, "show", BX_INLINE, show, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "make", BX_INLINE, make, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "look", BX_INLINE, look, NULL));
    SIM_AGAIN(job, "bx_register", bx_register(job, "look and block", BX_BLOCKING, look, NULL));
}
