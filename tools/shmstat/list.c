/* SPDX-License-Identifier: MIT */
/*
 * What the subcommands do first and last. They differ in what they read of a job, and in how they print it.
 */
#include "list.h"

#include "describe.h"
#include "device.h"
#include "flight.h"
#include "hist.h"
#include "json.h"
#include "objects.h"
#include "ring.h"
#include "text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int stat_find(struct stat_jobs *jobs, const struct stat_options *options)
{
    int rc = stat_jobs_find(jobs, options->select);

    if (rc < 0) {
        fprintf(stderr, "shmstat: /dev/shm cannot be read: %s\n", strerror(-rc));
        return STAT_NOTHING;
    }
    if (jobs->count > 0 || options->select == NULL)
        return STAT_FINE;

    struct stat_jobs others;
    char asked[64];

    stat_printable(asked, sizeof(asked), options->select, strlen(options->select));
    fprintf(stderr, "shmstat: there is no job '%s' of this user", asked);
    if (stat_jobs_find(&others, NULL) == 0) {
        for (size_t i = 0; i < others.count; i++)
            fprintf(stderr, "%s%s.%016llx", i == 0 ? "; there is " : ", ", others.list[i].name,
                    (unsigned long long)others.list[i].instance);
        stat_jobs_free(&others);
    }
    fprintf(stderr, "\n");
    return STAT_NOTHING;
}

int stat_read(struct stat_job *job, unsigned reads)
{
    int rc = stat_job_read(job);

    if (rc == 0 && (reads & STAT_READ_UNREAD) != 0)
        stat_unread_read(job);
    if (rc == 0 && (reads & STAT_READ_GPUS) != 0)
        rc = stat_gpus_read(job);
    if (rc == 0 && (reads & STAT_READ_OBJECTS) != 0)
        rc = stat_objects_read(job);
    if (rc == 0 && (reads & STAT_READ_HISTS) != 0)
        rc = stat_hists_read(job);
    if (rc == 0 && (reads & STAT_READ_CALLS) != 0)
        rc = stat_calls_read(job, STAT_ALL_CALLERS, stat_now_ns(CLOCK_MONOTONIC));
    if (rc == 0)
        return STAT_FINE;
    fprintf(stderr, "shmstat: no memory for job '%s'\n", job->name);
    return STAT_NOTHING;
}

static int print_each(struct stat_jobs *jobs, const struct stat_options *options, unsigned reads, stat_print_fn print)
{
    int all = STAT_NOTHING;

    for (size_t i = 0; i < jobs->count; i++) {
        int status = stat_read(&jobs->list[i], reads);

        if (status == STAT_FINE)
            status = print(&jobs->list[i], options);
        stat_job_close(&jobs->list[i]);
        if (status == STAT_FOUND || (status == STAT_FINE && all == STAT_NOTHING))
            all = status;
    }
    return all;
}

int stat_print_jobs(const struct stat_options *options, const char *command, unsigned reads, stat_print_fn print)
{
    struct stat_jobs jobs;
    int status = stat_find(&jobs, options);

    if (status != STAT_FINE)
        return status;
    if (options->json) {
        stat_json_begin(command);
        stat_json_open("jobs", '[');
    } else if (jobs.count == 0) {
        printf("no jobs of this user\n");
    }
    if (jobs.count > 0 || options->subject != NULL)
        status = print_each(&jobs, options, reads, print);
    if (options->json) {
        stat_json_close(']');
        stat_json_end();
    }
    stat_jobs_free(&jobs);
    return status;
}

static const struct stat_command *running;

static int print_parts(struct stat_job *job, const struct stat_options *options)
{
    if (options->json)
        stat_job_json(job, running->parts);
    else
        running->text(job);
    return stat_next_reader(job, NULL) != NULL ? STAT_FINE : STAT_NOTHING;
}

int stat_run_command(const struct stat_command *command, const struct stat_options *options)
{
    running = command;
    return stat_print_jobs(options, command->name, command->reads, print_parts);
}
