/* SPDX-License-Identifier: MIT */
/*
 * shmstat check and device memory, in a planted job (stat_plant_gpu.h): each invariant of gpu/README.md is broken and
 * found; states that a kill leaves are legal and accepted. The last test runs beside a job whose slabs come and go.
 */
#include "tests/device/device_fixture.h"
#include "stat_check.h"
#include "stat_plant_gpu.h"

#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))
#define NUMBER(object, key) json_number(json_get(object, key))

/* ---- What is wrong ------------------------------------------------------------------------------------- */

/* Violations by living and by dead workers. */
#define WRONGS(X) \
    X(G7, a_region_of_no_magic, plant_set(&gpu_region(0)->head.magic, 0)) \
    X(G7, a_region_of_another_layout, gpu_region(0)->head.layout++) \
    X(G7, too_many_devices, bxi_store_relaxed(&gpu_region(0)->head.device_count, BXI_GPU_DEVICES + 1)) \
    X(G7, too_many_refused, bxi_store_relaxed(&gpu_region(0)->head.refused_count, BXI_GPU_REFUSED + 1)) \
    X(G7, too_many_known, bxi_store_relaxed(&gpu_region(0)->head.known_count, BXI_GPU_REFUSED + 1)) \
    X(G1, a_stamp_of_no_state, gpu_set_slab(0, 0, GENERATION, 3)) \
    X(G1, a_slab_of_no_generation, gpu_set_slab(0, 3, 0, LIVE)) \
    X(G1, a_slab_of_no_bytes, gpu_region(0)->slab[SLAB].bytes = 0) \
    X(G1, a_slab_on_no_device, memset(gpu_region(0)->slab[0].uuid, 0, BXI_GPU_UUID_BYTES)) \
    X(G2, a_slab_held_that_was_never_made, plant_set(&gpu_held(1, 0)->generation[0], GENERATION + 1)) \
    X(G2, a_row_held_that_was_never_used, plant_set(&gpu_held(1, 0)->generation[200], 1)) \
    X(G2, a_slab_held_of_a_worker_without_a_gpu, gpu_set_open(0, 0)) \
    X(G4, a_word_that_no_lane_comes_to, plant_set(&gpu_region(1)->word[0].value, 2 * BXI_GPU_POISON)) \
    X(G6, a_slab_of_its_own, plant_set(&gpu_held(0, 0)->generation[0], GENERATION)) \
    X(G7, a_lane_of_no_order, bxi_store_relaxed(&gpu_region(0)->lane[0].order, BXI_GPU_EVENTS + 1)) \
    X(G7, a_lane_of_no_device, gpu_region(0)->lane[1].device = 2) \
    X(I14, device_open_that_is_none, gpu_set_open(0, 2))

WRONGS(CHECK_SPOILS)
static const struct check_wrong wrongs[] = { WRONGS(CHECK_WRONG) };

/* Violations by living workers only: a kill may leave a dead worker so, or its owner does not ask it any more. */
#define WRONGS_OF_THE_LIVING(X) \
    X(G2, a_slab_freed_while_it_is_open, gpu_set_slab(0, SLAB, 1, EMPTY)) \
    X(G2, a_row_used_again_while_its_slab_is_open, gpu_set_slab(0, 0, GENERATION + 1, LIVE)) \
    X(G4, a_lane_that_is_poisoned, plant_set(&gpu_region(1)->word[31].value, BXI_GPU_POISON + 1))

WRONGS_OF_THE_LIVING(CHECK_SPOILS)
static const struct check_wrong wrongs_of_the_living[] = { WRONGS_OF_THE_LIVING(CHECK_WRONG) };

TestSuite(shmstat_gpu_check, .init = gpu_plant_make, .fini = plant_remove, .timeout = 20);

Test(shmstat_gpu_check, names_each_invariant_that_is_broken, .timeout = 60)
{
    check_each(gpu_plant_make, wrongs, COUNT_OF(wrongs), true);
}

Test(shmstat_gpu_check, names_each_that_a_dead_worker_breaks, .timeout = 60)
{
    check_each(gpu_plant_make, wrongs, COUNT_OF(wrongs), false);
}

Test(shmstat_gpu_check, names_each_that_only_a_living_worker_breaks, .timeout = 60)
{
    check_each(gpu_plant_make, wrongs_of_the_living, COUNT_OF(wrongs_of_the_living), true);
}

Test(shmstat_gpu_check, prints_the_letter_of_the_list)
{
    spoil_a_lane_that_is_poisoned();

    struct stat_run run = stat_run("check %s", plant.job);

    STAT_RUN_SAYS(run, "\n  G4        worker 1 callee - the word of lane 31 is poisoned at 1,");
}

/* ---- What goes back ---------------------------------------------------------------------------------- */

#define CHANGES(X) \
    X(G7, the_number_of_devices, bxi_store_relaxed(&gpu_region(1)->head.device_count, up ? 2 : 1)) \
    X(G7, a_device, gpu_region(1)->head.device[0][3] = up ? 1 : 2) \
    X(G7, the_head, gpu_region(0)->head.ipc_namespace = up ? 1 : 2) \
    X(G1, a_generation, gpu_set_slab(1, SLAB_EMPTY, up ? 5 : 4, EMPTY)) \
    X(G1, a_slab_that_comes_to_life_again, gpu_set_slab(0, SLAB, 1, up ? RETIRING : LIVE)) \
    X(G1, a_handle, gpu_region(0)->slab[0].handle[8] = up ? 1 : 2) \
    X(G4, the_word_of_a_lane, plant_set(&gpu_region(0)->word[0].value, up ? WORD : WORD - 1)) \
    X(I14, device_open, gpu_set_open(1, up ? 1 : 0))

CHANGES(CHECK_TURNS)
static const struct check_change changes[] = { CHANGES(CHECK_CHANGE) };

Test(shmstat_gpu_check, finds_words_that_shrink_or_change, .timeout = 120)
{
    check_changes(gpu_plant_make, changes, COUNT_OF(changes));
}

/* ---- What is right ----------------------------------------------------------------------------------- */

Test(shmstat_gpu_check, accepts_what_a_kill_leaves)
{
    check_is_fine("a job at work");
    gpu_region(0)->slab[20].bytes = 5;
    memset(gpu_region(0)->slab[20].handle, 5, sizeof(gpu_region(0)->slab[20].handle));
    check_is_fine("a row that was being filled");
    gpu_fill_slab(0, 21, 0, MIB);
    memset(gpu_region(0)->slab[21].uuid, 0x33, BXI_GPU_UUID_BYTES);
    gpu_set_slab(0, 21, 1, LIVE);
    check_is_fine("the first slab of a device that was not shown");
    gpu_region(0)->lane[4].device = 99;
    check_is_fine("a lane that was being filled");
    plant_kill(1);
    gpu_set_slab(0, SLAB, 1, EMPTY);
    gpu_set_slab(0, 0, GENERATION + 1, LIVE);
    check_is_fine("what a dead borrower held, freed and used again");
    plant_kill(0);
    plant_set(&gpu_region(0)->word[0].value, BXI_GPU_POISON + WORD);
    check_is_fine("a dead owner's lane, poisoned");
}

/* It may have been stopped between the two halves of G2. */
Test(shmstat_gpu_check, reports_nothing_about_a_stopped_borrower)
{
    int status = 0;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0)
        for (;;)
            raise(SIGSTOP);
    cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
    plant_control(1)->header.pid = (uint32_t)pid;
    spoil_a_slab_freed_while_it_is_open();
    check_is_fine("a borrower that is stopped");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- check under load -------------------------------------------------------------------------------- */

#define CHECKS 30
#define LARGE (INT64_C(65) << 18)       /* i32: a slab of its own */

enum gate { READY = 0, DONE };

HARNESS_HANDLER(drop)
{
    return 0;
}

static int setup(struct bx_job *job)
{
    return bx_register(job, "drop", BX_INLINE, drop, NULL);
}

/* Each tensor has a slab, which is retired when the tensor is dropped; for a moment the device may be full of them. */
static void lends_until_done(struct bx_job *job)
{
    const int64_t count = LARGE;
    struct bx_device device = device_open(job, 0);

    harness_post(READY);
    harness_await(READY, 2);
    while (harness_gate(DONE) == 0) {
        OWN(tensor) *tensor = NULL;
        OWN(msg) *args = bx_msg_create(0);
        int rc = bx_tensor_create_on(job, device, BX_I32, 1, &count, &tensor);

        HARNESS_CHECK(rc == 0 || rc == -ENOMEM);
        HARNESS_EQ(rc == 0 ? bx_msg_put_tensor(args, tensor) : 0, 0);
        HARNESS_EQ(bx_rpc_sync(job, "worker2", "drop", args, NULL, NULL), 0);
    }
}

static void borrows(struct bx_job *job)
{
    device_open(job, 0);
    harness_post(READY);
}

static double newest_generation(const struct stat_run *run)
{
    const struct json *slabs = json_get(json_get(stat_run_worker(run, 1), "gpu"), "slabs");
    double newest = 0;

    for (const struct json *slab = slabs->first; slab != NULL; slab = slab->next)
        newest = NUMBER(slab, "generation") > newest ? NUMBER(slab, "generation") : newest;
    return newest;
}

DEVICE_TEST(shmstat_gpu_check, finds_nothing_in_a_job_whose_slabs_come_and_go, 120, DEVICE_ANY, .size = 3,
            .setup = setup, .body = { [1] = lends_until_done, borrows })
{
    double newest = 0;

    harness_await(READY, 2);
    for (int i = 0; i < CHECKS || newest < 3; i++) {
        struct stat_run checked = stat_run("check %s --json", harness_job_name());
        struct stat_run shown = stat_run("gpu %s --json", harness_job_name());

        if (checked.status != 0 || shown.status != 0)
            harness_failed(__FILE__, __LINE__, "status %d: %s", checked.status, checked.text);
        if (newest_generation(&shown) > newest)
            newest = newest_generation(&shown);
    }
    harness_post(DONE);
}
