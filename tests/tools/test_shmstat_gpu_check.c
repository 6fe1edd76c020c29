/* SPDX-License-Identifier: MIT */
/*
 * shmstat check and device memory, in a planted job (stat_plant_gpu.h): each invariant of gpu/README.md is broken and
 * found; states that a kill leaves are legal and accepted. The last test runs beside a job whose slabs come and go.
 */
#include "tests/device/device_fixture.h"
#include "stat_plant_gpu.h"
#include "stat_run.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))
#define NUMBER(object, key) json_number(json_get(object, key))
#define TEXT(object, key) json_text(json_get(object, key))

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
static void unknown_order(void) { bxi_store_relaxed(&gpu_region(0)->lane[0].order, BXI_GPU_HOST_SYNC + 1); }
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

struct wrong {
    const char *what;
    void (*spoil)(void);
    int invariant;
};

static void expect_wrong(const struct wrong *wrong)
{
    struct stat_run run = stat_run_json("check", gpu_plant.job);
    const struct json *violation = json_at(json_get(stat_run_job(&run), "violations"), 0);

    cr_expect_eq(run.status, 1, "%s: status %d: %s", wrong->what, run.status, run.text);
    cr_expect_str_eq(TEXT(violation, "series"), "G", "%s: %s", wrong->what, run.text);
    cr_expect_eq(NUMBER(violation, "invariant"), wrong->invariant, "%s: not found as G%d: %s", wrong->what,
                 wrong->invariant, run.text);
    cr_expect_eq(NUMBER(stat_run_job(&run), "violations_found"), 1, "%s: %s", wrong->what, run.text);
    stat_run_free(&run);
}

static void expect_each(const struct wrong *wrongs, size_t count, bool alive)
{
    for (size_t i = 0; i < count; i++) {
        gpu_plant_make();
        for (int rank = 0; rank < 2 && !alive; rank++)
            plant_kill(&gpu_plant, rank);
        wrongs[i].spoil();
        expect_wrong(&wrongs[i]);
        gpu_plant_remove();
    }
}

/* Violations by living and by dead workers. */
static const struct wrong wrongs[] = {
    { "a region of no magic", no_magic, 7 },
    { "a region of another layout", other_layout, 7 },
    { "too many devices", too_many_devices, 7 },
    { "too many refused", too_many_refused, 7 },
    { "too many known", too_many_known, 7 },
    { "a stamp of no state", unknown_stamp, 1 },
    { "a slab of no generation", no_generation, 1 },
    { "a slab of no bytes", no_bytes, 1 },
    { "a slab on no device", no_device, 1 },
    { "a slab held that was never made", newer_than_its_row, 2 },
    { "a row held that was never used", newer_than_an_unused_row, 2 },
    { "a slab held of a worker without a GPU", peer_without_gpu, 2 },
    { "a word in no slab", word_in_no_slab, 3 },
    { "a word in a slab that retires", word_in_a_retiring_slab, 3 },
    { "a word of another generation", word_of_another_generation, 3 },
    { "a word beyond its slab", word_beyond_its_slab, 3 },
    { "a word at the end of its slab", word_at_the_end_of_its_slab, 3 },
    { "a word across two", word_across, 3 },
    { "a word that no lane comes to", word_of_no_lane, 4 },
    { "a slab of its own", one_of_its_own, 6 },
    { "a lane of no order", unknown_order, 7 },
    { "a lane of no device", lane_of_no_device, 7 },
};

/* Violations by living workers only: a kill may leave a dead worker so, or its owner does not ask it any more. */
static const struct wrong wrongs_of_the_living[] = {
    { "a slab freed while it is open", freed_while_open, 2 },
    { "a row used again while its slab is open", reused_while_open, 2 },
    { "a lane that is poisoned", poisoned_alive, 4 },
};

Test(shmstat_gpu_check, names_each_invariant_that_is_broken, .timeout = 60, .fini = gpu_plant_remove)
{
    expect_each(wrongs, COUNT_OF(wrongs), true);
}

Test(shmstat_gpu_check, names_each_that_a_dead_worker_breaks, .timeout = 60, .fini = gpu_plant_remove)
{
    expect_each(wrongs, COUNT_OF(wrongs), false);
}

Test(shmstat_gpu_check, names_each_that_only_a_living_worker_breaks, .timeout = 60, .fini = gpu_plant_remove)
{
    expect_each(wrongs_of_the_living, COUNT_OF(wrongs_of_the_living), true);
}

Test(shmstat_gpu_check, prints_the_letter_of_the_list, .timeout = 20, .fini = gpu_plant_remove)
{
    gpu_plant_make();
    poisoned_alive();

    struct stat_run run = stat_run("check %s", gpu_plant.job);

    STAT_RUN_SAYS(run, "\n  G4        worker 1 callee - the word of lane 31 is poisoned at 1,");
    stat_run_free(&run);
}

Test(shmstat_gpu_check, finds_a_wrong_device_open, .timeout = 20, .fini = gpu_plant_remove)
{
    gpu_plant_make();
    gpu_set_open(0, 2);

    struct stat_run run = stat_run_json("check", gpu_plant.job);
    const struct json *violation = json_at(json_get(stat_run_job(&run), "violations"), 0);

    cr_expect_eq(run.status, 1);
    cr_expect_str_eq(TEXT(violation, "series"), "I");
    cr_expect_eq(NUMBER(violation, "invariant"), 14);
    stat_run_free(&run);
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

static const struct {
    const char *what;
    void (*turn)(int up);
    const char *name;
} changes[] = {
    { "the number of devices", shrink_devices, "G7" },
    { "a device", change_device, "G7" },
    { "the head", change_namespace, "G7" },
    { "a generation", shrink_stamp, "G1" },
    { "a slab comes to life again", revive_slab, "G1" },
    { "a handle", change_handle, "G1" },
    { "a lane's word", shrink_word, "G4" },
    { "device_open", shrink_open, "I14" },
};

Test(shmstat_gpu_check, finds_words_that_shrink_or_change, .timeout = 120, .fini = gpu_plant_remove)
{
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        bool seen = false;

        gpu_plant_make();
        /* A fork does not inherit the mapping: map it again. */
        for (int rank = 0; rank < 2; rank++)
            cr_assert_eq(madvise(gpu_plant.segment[rank].control, gpu_plant.segment[rank].bytes, MADV_DOFORK), 0);
        pid_t pid = plant_turn(changes[i].turn);

        while (!seen) {
            struct stat_run run = stat_run_json("check", gpu_plant.job);
            const struct json *violation = json_at(json_get(stat_run_job(&run), "violations"), 0);
            char name[16];

            snprintf(name, sizeof(name), "%s%d", TEXT(violation, "series"), (int)NUMBER(violation, "invariant"));
            seen = run.status == 1 && strcmp(name, changes[i].name) == 0;
            cr_assert(run.status == 0 || seen, "%s: %s", changes[i].what, run.text);
            stat_run_free(&run);
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        gpu_plant_remove();
    }
}

/* ---- What is right ----------------------------------------------------------------------------------- */

static void expect_fine(const char *what)
{
    struct stat_run run = stat_run_json("check", gpu_plant.job);

    cr_expect_eq(run.status, 0, "%s: %s", what, run.text);
    stat_run_free(&run);
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

static int drop(const struct bx_request *request, struct bx_reader *args, struct bx_msg *reply, void *context)
{
    (void)request, (void)args, (void)reply, (void)context;
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
        struct bx_tensor *tensor = NULL;
        struct bx_msg *args = bx_msg_create(0);
        int rc = bx_tensor_create_on(job, device, BX_I32, 1, &count, &tensor);

        HARNESS_CHECK(rc == 0 || rc == -ENOMEM);
        HARNESS_EQ(rc == 0 ? bx_msg_put_tensor(args, tensor) : 0, 0);
        HARNESS_EQ(bx_rpc_sync(job, "worker2", "drop", args, NULL, NULL), 0);
        bx_msg_destroy(args);
        bx_tensor_release(tensor);
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

static void checks_meanwhile(struct bx_job *job)
{
    double newest = 0;

    (void)job;
    harness_await(READY, 2);
    for (int i = 0; i < CHECKS || newest < 3; i++) {
        struct stat_run checked = stat_run("check %s --json", harness_job_name());
        struct stat_run shown = stat_run("gpu %s --json", harness_job_name());

        if (checked.status != 0 || shown.status != 0)
            harness_failed(__FILE__, __LINE__, "status %d: %s", checked.status, checked.text);
        if (newest_generation(&shown) > newest)
            newest = newest_generation(&shown);
        stat_run_free(&checked);
        stat_run_free(&shown);
    }
    harness_post(DONE);
}

Test(shmstat_gpu_check, finds_nothing_in_a_job_whose_slabs_come_and_go, .timeout = 120)
{
    device_world(DEVICE_ANY);
    device_run(&(struct harness_world){
        .size = 3, .setup = setup, .body = { checks_meanwhile, lends_until_done, borrows },
    });
}
