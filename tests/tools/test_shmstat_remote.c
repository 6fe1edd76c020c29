/* SPDX-License-Identifier: MIT */
/*
 * shmstat and workers on other hosts: rows of a planted job (stat_plant.h), of which the callee is elsewhere, as text,
 * JSON and metrics; and what it makes of rows that no worker writes.
 */
#include "stat_plant.h"
#include "stat_run.h"

TestSuite(shmstat_remote, .init = plant_begin, .fini = plant_remove, .timeout = 20);

Test(shmstat_remote, shows_name_host_transport_bytes_and_round_trip)
{
    struct stat_run run;

    plant_remote(0);
    run = stat_run_fine("show", plant.job);
    STAT_RUN_IS(stat_run_worker(&run, 0), "{'remotes': [{'peer': 1, 'peer_name': 'callee', 'host': 'far',"
                " 'transport': 'tcp/eth0', 'bytes_sent': 1500, 'bytes_received': 700,"
                " 'round_trip_seconds': 0.000042}]}");

    run = stat_run("show %s", plant.job);
    STAT_RUN_SAYS(run, "\n  elsewhere host far: callee - their segments cannot be read here: run shmstat\n"
                       "            there\n");
    STAT_RUN_SAYS(run, "\n    1 callee       far            tcp/eth0       1.5 KiB     700 B  42.0 us\n");
}

Test(shmstat_remote, follows_a_wait_to_the_door_of_the_host)
{
    struct bxi_remote_row *row = plant_remote(0);
    struct stat_run run = stat_run("why callee %s", plant.job);

    cr_expect_eq(run.status, 0);
    STAT_RUN_SAYS(run, "\ncallee is on host far: run shmstat why callee there.\n");
    run = stat_run("why 1 %s", plant.job);
    STAT_RUN_SAYS(run, "\ncallee is on host far: run shmstat why callee there.\n");

    bxi_store_relaxed(&row->is_dead, 1);
    run = stat_run("why callee %s", plant.job);
    STAT_RUN_SAYS(run, "\ncallee is dead.\n");
    run = stat_run("ls %s", plant.job);
    STAT_RUN_SAYS(run, "\n  elsewhere host far: callee (dead) - ");
}

Test(shmstat_remote, waits_for_no_worker_that_is_elsewhere)
{
    struct stat_run run;

    plant_remote(0);
    bxi_store_relaxed(&plant_control(0)->header.state, BXI_STARTING);
    run = stat_run_fine("ls", plant.job);
    STAT_RUN_IS(stat_run_job(&run), "{'missing_ranks': [], 'workers_elsewhere': 1}");
}

Test(shmstat_remote, does_not_know_a_transport_before_a_round_trip)
{
    struct stat_run run;

    bxi_store_relaxed(&plant_remote(0)->round_trip_ns, 0);
    run = stat_run_fine("show", plant.job);
    STAT_RUN_IS(stat_run_worker(&run, 0), "{'remotes': [{'transport': null, 'round_trip_seconds': null}]}");
}

/* Every byte of the rows set; and more rows than there are workers. */
Test(shmstat_remote, survives_rows_that_are_noise, .timeout = 60)
{
    static const char *const commands[] = { "show", "calls", "why", "ls", "check", "top --once --interval 0.1" };
    struct bxi_remote_row *row = plant_remote(0);

    memset((void *)(row - 1), 0xff, 2 * sizeof *row);
    for (uint64_t rows = 2; rows != 0; rows = rows == 2 ? UINT64_MAX : 0) {
        bxi_store_relaxed(&bxi_tables(plant_control(0))->remote_rows, rows);
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
            struct stat_run run = stat_run("%s %s", commands[i], plant.job);

            cr_expect_eq(run.status, strcmp(commands[i], "check") == 0 ? 1 : 0, "%s", commands[i]);
        }
    }
}
