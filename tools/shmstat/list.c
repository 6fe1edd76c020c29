/* SPDX-License-Identifier: MIT */
/*
 * What the commands do first and last: find the jobs that were asked for, and print what encloses a list of jobs.
 */
#include "list.h"

#include "json.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

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

void stat_list_open(const struct stat_jobs *jobs, const struct stat_options *options, const char *command)
{
    if (options->json) {
        stat_json_begin(command);
        stat_json_open("jobs", '[');
    } else if (jobs->count == 0) {
        printf("no jobs of this user\n");
    }
}

void stat_list_close(const struct stat_options *options)
{
    if (!options->json)
        return;
    stat_json_close(']');
    stat_json_end();
}

int stat_list_begin(struct stat_jobs *jobs, const struct stat_options *options, const char *command)
{
    int status = stat_find(jobs, options);

    if (status == STAT_FINE)
        stat_list_open(jobs, options, command);
    return status;
}

void stat_list_end(struct stat_jobs *jobs, const struct stat_options *options)
{
    stat_list_close(options);
    stat_jobs_free(jobs);
}

int stat_no_memory(const struct stat_job *job)
{
    fprintf(stderr, "shmstat: no memory for job '%s'\n", job->name);
    return STAT_NOTHING;
}
