/* SPDX-License-Identifier: MIT */
#include "stat_check.h"

/* The first violation is that one. */
static bool is_found(const struct stat_run *run, const char *invariant)
{
    const struct json *violation = json_at(json_get(stat_run_job(run), "violations"), 0);
    char name[16];

    snprintf(name, sizeof(name), "%s%d", json_text(json_get(violation, "series")),
             (int)json_number(json_get(violation, "invariant")));
    return run->status == 1 && strcmp(name, invariant) == 0;
}

void check_each(void (*make)(void), const struct check_wrong *wrongs, size_t count, bool alive)
{
    for (size_t i = 0; i < count; i++) {
        const struct check_wrong *wrong = &wrongs[i];

        plant_remove();
        make();
        for (int rank = 0; rank < 2 && !alive; rank++)
            plant_kill(rank);
        wrong->spoil();

        struct stat_run run = stat_run_json("check", plant.job);

        cr_expect(is_found(&run, wrong->invariant), "%s: not found as %s: %s", wrong->what, wrong->invariant, run.text);
        /* A word of device memory breaks one invariant only. */
        if (wrong->invariant[0] == 'G')
            cr_expect_eq(json_number(json_get(stat_run_job(&run), "violations_found")), 1, "%s", run.text);
        cr_expect_eq(json_number(json_get(stat_run_job(&run), "alive")), alive);
    }
}

void check_changes(void (*make)(void), const struct check_change *changes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool is_seen = false;

        plant_remove();
        make();
        /* A fork does not inherit the mapping: map it again. */
        for (int rank = 0; rank < 2; rank++)
            cr_assert_eq(madvise(plant.segment[rank].control, plant.segment[rank].bytes, MADV_DOFORK), 0);
        pid_t pid = plant_turn(changes[i].turn);

        while (!is_seen) {
            struct stat_run run = stat_run_json("check", plant.job);

            is_seen = is_found(&run, changes[i].invariant);
            cr_assert(run.status == 0 || is_seen, "%s: %s", changes[i].what, run.text);
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

void check_is_fine(const char *what)
{
    struct stat_run run = stat_run_json("check", plant.job);

    cr_expect_eq(run.status, 0, "%s: %s", what, run.text);
    cr_expect_eq(json_number(json_get(stat_run_job(&run), "rings_unsettled")), 0, "%s: %s", what, run.text);
}
