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

static void no_magic(void) { gpu_set(&gpu_region(0)->head.magic, 0); }
static void other_layout(void) { gpu_region(0)->head.layout++; }
static void too_many_devices(void) { bxi_store_relaxed(&gpu_region(0)->head.device_count, BXI_GPU_DEVICES + 1); }
static void too_many_refused(void) { bxi_store_relaxed(&gpu_region(0)->head.refused_count, BXI_GPU_REFUSED + 1); }
static void too_many_known(void) { bxi_store_relaxed(&gpu_region(0)->head.known_count, BXI_GPU_REFUSED + 1); }
static void unknown_stamp(void) { gpu_set_slab(0, 0, GENERATION, 3); }
static void no_generation(void) { gpu_set_slab(0, 3, 0, LIVE); }
static void no_bytes(void) { gpu_region(0)->slab[SLAB].bytes = 0; }
static void no_device(void) { memset(gpu_region(0)->slab[0].uuid, 0, BXI_GPU_UUID_BYTES); }
static void freed_while_open(void) { gpu_set_slab(0, SLAB, 1, EMPTY); }
static void reused_while_open(void) { gpu_set_slab(0, 0, GENERATION + 1, LIVE); }
static void newer_than_its_row(void) { gpu_set(&gpu_held(1, 0)->generation[0], GENERATION + 1); }
static void newer_than_an_unused_row(void) { gpu_set(&gpu_held(1, 0)->generation[200], 1); }
static void one_of_its_own(void) { gpu_set(&gpu_held(0, 0)->generation[0], GENERATION); }
static void poisoned_alive(void) { gpu_set(&gpu_region(1)->word[31].value, BXI_GPU_POISON + 1); }
static void word_of_no_lane(void) { gpu_set(&gpu_region(1)->word[0].value, 2 * BXI_GPU_POISON); }
static void unknown_order(void) { bxi_store_relaxed(&gpu_region(0)->lane[0].order, BXI_GPU_EVENTS + 1); }
static void lane_of_no_device(void) { gpu_region(0)->lane[1].device = 2; }

static void peer_without_gpu(void)
{
    gpu_set_open(0, 0);
}

static void set_device_word(uint32_t slab, uint64_t generation, uint64_t offset)
{
    struct bxi_gpu_lane_row *row = &gpu_region(0)->lane[0];

    row->slab = slab;
    row->generation = generation;
    row->offset = offset;
    bxi_store_relaxed(&row->order, BXI_GPU_DEVICE_WORDS);
}

static void word_in_no_slab(void) { set_device_word(BXI_GPU_SLABS, 0, 0); }
static void word_in_a_retiring_slab(void) { set_device_word(SLAB, 1, 0); }
static void word_of_another_generation(void) { set_device_word(0, GENERATION - 1, 0); }
static void word_beyond_its_slab(void) { set_device_word(0, GENERATION, 64 * MIB + 8); }
static void word_at_the_end_of_its_slab(void) { set_device_word(0, GENERATION, 64 * MIB); }
static void word_across(void) { set_device_word(0, GENERATION, 4); }

/* Violations by living and by dead workers. */
static const struct check_wrong wrongs[] = {
    { "a region of no magic", "G7", .spoil = no_magic },
    { "a region of another layout", "G7", .spoil = other_layout },
    { "too many devices", "G7", .spoil = too_many_devices },
    { "too many refused", "G7", .spoil = too_many_refused },
    { "too many known", "G7", .spoil = too_many_known },
    { "a stamp of no state", "G1", .spoil = unknown_stamp },
    { "a slab of no generation", "G1", .spoil = no_generation },
    { "a slab of no bytes", "G1", .spoil = no_bytes },
    { "a slab on no device", "G1", .spoil = no_device },
    { "a slab held that was never made", "G2", .spoil = newer_than_its_row },
    { "a row held that was never used", "G2", .spoil = newer_than_an_unused_row },
    { "a slab held of a worker without a GPU", "G2", .spoil = peer_without_gpu },
    { "a word in no slab", "G3", .spoil = word_in_no_slab },
    { "a word in a slab that retires", "G3", .spoil = word_in_a_retiring_slab },
    { "a word of another generation", "G3", .spoil = word_of_another_generation },
    { "a word beyond its slab", "G3", .spoil = word_beyond_its_slab },
    { "a word at the end of its slab", "G3", .spoil = word_at_the_end_of_its_slab },
    { "a word across two", "G3", .spoil = word_across },
    { "a word that no lane comes to", "G4", .spoil = word_of_no_lane },
    { "a slab of its own", "G6", .spoil = one_of_its_own },
    { "a lane of no order", "G7", .spoil = unknown_order },
    { "a lane of no device", "G7", .spoil = lane_of_no_device },
    { "device_open that is none", "I14", WORD_IS(0, control, header.device_open, 2) },
};

/* Violations by living workers only: a kill may leave a dead worker so, or its owner does not ask it any more. */
static const struct check_wrong wrongs_of_the_living[] = {
    { "a slab freed while it is open", "G2", .spoil = freed_while_open },
    { "a row used again while its slab is open", "G2", .spoil = reused_while_open },
    { "a lane that is poisoned", "G4", .spoil = poisoned_alive },
};

Test(shmstat_gpu_check, names_each_invariant_that_is_broken, .timeout = 60, .fini = gpu_plant_remove)
{
    check_each(&gpu_plant, gpu_plant_make, wrongs, COUNT_OF(wrongs), true);
}

Test(shmstat_gpu_check, names_each_that_a_dead_worker_breaks, .timeout = 60, .fini = gpu_plant_remove)
{
    check_each(&gpu_plant, gpu_plant_make, wrongs, COUNT_OF(wrongs), false);
}

Test(shmstat_gpu_check, names_each_that_only_a_living_worker_breaks, .timeout = 60, .fini = gpu_plant_remove)
{
    check_each(&gpu_plant, gpu_plant_make, wrongs_of_the_living, COUNT_OF(wrongs_of_the_living), true);
}

Test(shmstat_gpu_check, prints_the_letter_of_the_list, .timeout = 20, .fini = gpu_plant_remove)
{
    gpu_plant_make();
    poisoned_alive();

    struct stat_run run = stat_run("check %s", gpu_plant.job);

    STAT_RUN_SAYS(run, "\n  G4        worker 1 callee - the word of lane 31 is poisoned at 1,");
}

/* ---- What goes back ---------------------------------------------------------------------------------- */

static void shrink_devices(int up) { bxi_store_relaxed(&gpu_region(1)->head.device_count, up ? 2 : 1); }
static void change_device(int up) { gpu_region(1)->head.device[0][3] = up ? 1 : 2; }
static void change_namespace(int up) { gpu_region(0)->head.ipc_namespace = up ? 1 : 2; }
static void shrink_stamp(int up) { gpu_set_slab(1, SLAB_EMPTY, up ? 5 : 4, EMPTY); }
static void revive_slab(int up) { gpu_set_slab(0, SLAB, 1, up ? RETIRING : LIVE); }
static void change_handle(int up) { gpu_region(0)->slab[0].handle[8] = up ? 1 : 2; }
static void shrink_word(int up) { gpu_set(&gpu_region(0)->word[0].value, up ? WORD : WORD - 1); }

static void shrink_open(int up)
{
    gpu_set_open(1, up ? 1 : 0);
}

static const struct check_change changes[] = {
    { "the number of devices", "G7", shrink_devices },
    { "a device", "G7", change_device },
    { "the head", "G7", change_namespace },
    { "a generation", "G1", shrink_stamp },
    { "a slab comes to life again", "G1", revive_slab },
    { "a handle", "G1", change_handle },
    { "a lane's word", "G4", shrink_word },
    { "device_open", "I14", shrink_open },
};

Test(shmstat_gpu_check, finds_words_that_shrink_or_change, .timeout = 120, .fini = gpu_plant_remove)
{
    check_changes(&gpu_plant, gpu_plant_make, changes, COUNT_OF(changes));
}

/* ---- What is right ----------------------------------------------------------------------------------- */

static void expect_fine(const char *what)
{
    check_is_fine(&gpu_plant, what);
}

Test(shmstat_gpu_check, accepts_what_a_kill_leaves, .timeout = 20, .fini = gpu_plant_remove)
{
    gpu_plant_make();
    expect_fine("a job at work");
    gpu_region(0)->slab[20].bytes = 5;
    memset(gpu_region(0)->slab[20].handle, 5, sizeof(gpu_region(0)->slab[20].handle));
    expect_fine("a row that was being filled");
    gpu_fill_slab(0, 21, 0, MIB);
    memset(gpu_region(0)->slab[21].uuid, 0x33, BXI_GPU_UUID_BYTES);
    gpu_set_slab(0, 21, 1, LIVE);
    expect_fine("the first slab of a device that was not shown");
    gpu_region(0)->lane[4].device = 99;
    expect_fine("a lane that was being filled");
    set_device_word(0, GENERATION, 64 * MIB - 8);
    expect_fine("a word at the end of its slab");
    plant_kill(&gpu_plant, 1);
    gpu_set_slab(0, SLAB, 1, EMPTY);
    gpu_set_slab(0, 0, GENERATION + 1, LIVE);
    set_device_word(0, GENERATION + 1, 0);
    expect_fine("what a dead borrower held, freed and used again");
    plant_kill(&gpu_plant, 0);
    gpu_set(&gpu_region(0)->word[0].value, BXI_GPU_POISON + WORD);
    expect_fine("a dead owner's lane, poisoned");
}

/* It may have been stopped between the two halves of G2. */
Test(shmstat_gpu_check, reports_nothing_about_a_stopped_borrower, .timeout = 20, .fini = gpu_plant_remove)
{
    int status = 0;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0)
        for (;;)
            raise(SIGSTOP);
    cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
    gpu_plant_make();
    plant_control(&gpu_plant, 1)->header.pid = (uint32_t)pid;
    freed_while_open();
    expect_fine("a borrower that is stopped");
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
