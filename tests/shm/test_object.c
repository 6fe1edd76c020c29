/* SPDX-License-Identifier: MIT */
/*
 * shm/object.c: how objects are named, and which names a reaper removes.
 */
#include "segment_fixture.h"

#include "shm/file.h"

/* ---- Names ----------------------------------------------------------------------------------- */

TestSuite(object, .timeout = 120);

Test(object, has_an_arena_of_its_own_name)
{
    char name[BXI_OBJECT_NAME_BYTES];

    bxi_object_arena_name(name, 1000, "demo", 0xab, 127);
    cr_assert_str_eq(name, "/boxcar.1000.demo.00000000000000ab.127.arena");
    bxi_object_arena_name(name, UINT32_MAX, "a23456789-123456789_12345678901", UINT64_MAX, 127);
    cr_assert_str_eq(name,
                     "/boxcar.4294967295.a23456789-123456789_12345678901.ffffffffffffffff.127.arena");
}

/* The kernel has no memory for the question, or here no file. */
Test(object, a_lock_that_cannot_be_asked_for_is_held)
{
    cr_expect(bxi_file_is_locked(-1, 0, 0));
}

/* ---- reap ------------------------------------------------------------------------------------ */

static int child_rank;
static uint64_t child_instance;

/* Leaves the segment as a killed worker does. */
static int create_and_die(void)
{
    if (bxi_segment_create(&segment, job, "dead", child_instance, child_rank, 4) != 0)
        return 1;
    raise(SIGKILL);
    return 2;
}

static void leave_dead(uint64_t instance, int rank)
{
    child_instance = instance;
    child_rank = rank;
    cr_assert_eq(in_child(create_and_die), 256 + SIGKILL);
}

Test(object, is_reaped_when_its_owner_was_killed, .init = make_job_name, .fini = remove_names)
{
    leave_dead(INSTANCE, 0);
    leave_dead(INSTANCE, 3);
    leave_dead(INSTANCE + 1, 0);
    cr_assert_eq(bxi_object_reap(job, INSTANCE), 2);
    cr_assert_eq(bxi_object_reap(job, INSTANCE), 0);
    cr_assert_eq(bxi_object_reap(job, 0), 1);
    cr_assert_eq(bxi_object_reap(job, 0), 0);
}

Test(object, of_another_job_is_not_reaped, .init = make_job_name, .fini = remove_names)
{
    char longer[BXI_NAME_BYTES + 1];
    char shorter[BXI_NAME_BYTES];

    leave_dead(INSTANCE, 0);
    snprintf(longer, sizeof(longer), "%sx", job);
    memcpy(shorter, job, sizeof(shorter));
    shorter[strlen(shorter) - 1] = '\0';
    cr_assert_eq(bxi_object_reap(longer, 0), 0);
    cr_assert_eq(bxi_object_reap(shorter, 0), 0);
    cr_assert_eq(bxi_object_reap("", 0), 0);
    cr_assert_eq(bxi_object_reap(job, 0), 1);
}

Test(object, reaps_names_that_it_makes_and_no_others, .init = make_job_name, .fini = remove_names)
{
    static const char *const tails[] = {
        "0123456789abcdef.1024", "0123456789abcdef.-1", "0123456789abcdef.00", "0123456789abcdef.+1",
        "0123456789abcdef.", "0123456789abcdef", "0123456789ABCDEF.0", "123456789abcdef.0",
        "0x23456789abcdef.0", "0123456789abcdef.0x", "0123456789abcdef0.0", " 123456789abcdef.0",
        "0123456789abcdef.0.", "0123456789abcdef.0.aren", "0123456789abcdef.0.arena2", "0123456789abcdef.arena",
        "0123456789abcdef.00.arena", "0123456789abcdef.1024.arena", "0123456789abcdef.0.arena.arena",
    };
    char name[160];

    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        snprintf(name, sizeof(name), "/boxcar.%u.%s.%s", geteuid(), job, tails[i]);
        int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        cr_assert_geq(fd, 0);
        close(fd);
    }
    cr_assert_eq(bxi_object_reap(job, 0), 0);
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        snprintf(name, sizeof(name), "/boxcar.%u.%s.%s", geteuid(), job, tails[i]);
        cr_expect_eq(shm_unlink(name), 0, "%s was removed", name);
    }
}

Test(object, passes_over_what_is_no_file_of_this_user, .init = make_job_name, .fini = remove_names)
{
    char name[BXI_OBJECT_NAME_BYTES];
    char path[128];

    bxi_object_name(name, geteuid(), job, INSTANCE, 0);
    snprintf(path, sizeof(path), "/dev/shm%s", name);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(bxi_object_reap(job, 0), 0);
    cr_assert_eq(unlink(path), 0);
}

Test(object, is_reaped_together_with_the_arena_of_its_worker, .init = make_job_name,
     .fini = remove_names)
{
    char name[BXI_OBJECT_NAME_BYTES];
    int fd = -1;

    leave_dead(INSTANCE, 2);
    bxi_object_arena_name(name, geteuid(), job, INSTANCE, 2);
    cr_assert_eq(bxi_object_create(name, &fd), 0);
    cr_assert_eq(bxi_object_create(name, &fd), -EEXIST);
    cr_assert_eq(bxi_object_reap(job, INSTANCE), 1, "its owner lives");
    cr_assert(is_in_shm(name));
    close(fd);
    cr_assert_eq(bxi_object_reap(job, INSTANCE + 1), 0);
    cr_assert_eq(bxi_object_reap(job, INSTANCE), 1);
    cr_assert_not(is_in_shm(name));
}

/* A reaper between the name and the lock must fail or make the owner start again. */
Test(object, is_never_reaped_while_it_is_created, .init = make_job_name, .fini = remove_names)
{
    int status = 0;
    pid_t reaper = fork();

    cr_assert_geq(reaper, 0);
    if (reaper == 0) {
        for (;;)
            bxi_object_reap(job, 0);
    }
    int failed = 0;
    for (int i = 0; i < 1500 && failed == 0; i++) {
        int rc = bxi_segment_create(&segment, job, "agent", INSTANCE, 0, 2);
        if (rc != 0 || !is_in_shm(segment.shm_name))
            failed = rc != 0 ? rc : 1;
        bxi_segment_destroy(&segment);
    }
    kill(reaper, SIGKILL);
    waitpid(reaper, &status, 0);
    cr_assert_eq(failed, 0);
}
