/* SPDX-License-Identifier: MIT */
/*
 * Workers of a job that are on other hosts: what those on this host show of them. Their segments cannot be read here.
 */
#ifndef TOOLS_STAT_REMOTE_H
#define TOOLS_STAT_REMOTE_H

#include "row.h"
#include "jobs.h"

/* Copies the worker's rows of remote workers, with texts that are printable and end; its segment must be open.
 * -ENOMEM. */
int stat_remotes_read(struct stat_worker *worker);
/* What a worker of this host shows of that rank; NULL if none does, or the rank has a segment here. */
const struct bxi_remote_row *stat_remote(const struct stat_job *job, int rank);
/* A worker of this host whose function of that number has the name of that rank's, which is on another one; or NULL. */
const struct stat_worker *stat_remote_like(const struct stat_job *job, int rank, uint32_t function);
int stat_remote_count(const struct stat_job *job);
bool stat_remote_is_dead(const struct stat_job *job, int rank);         /* any worker of this host says so */
/* By peer: the worker's messages to and from it, and what they take; SKIP if it is on this host. */
int stat_remote_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row);
/* A line for each other host of the job, with its workers. */
void stat_elsewhere_text(const struct stat_job *job);

#endif
