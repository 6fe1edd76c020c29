/* SPDX-License-Identifier: MIT */
/*
 * The objects of workers to which there are references, as their segments show them: private copies, and the rows
 * (row.h) of an object and of a worker's objects together.
 */
#ifndef TOOLS_STAT_OBJECTS_H
#define TOOLS_STAT_OBJECTS_H

#include "row.h"
#include "state.h"

/* Copies the objects of all workers of the job; its descriptors must be open. -ENOMEM. */
int stat_objects_read(struct stat_job *job);

const char *stat_object_state_name(uint64_t state);     /* "to come" */
/* "1-0-3": owner, maker, how many the maker had made there. Valid until the next call. */
const char *stat_object_name(uint64_t id);
/* How many objects have no row. */
uint64_t stat_objects_unshown(const struct stat_worker *worker);
/* By peer: how many of the worker's objects the peer holds; SKIP if none. One
 * row: a worker's objects together. */
int stat_held_row(const struct stat_job *job, const struct stat_worker *worker, int peer, struct stat_row *row);
int stat_objects_row(const struct stat_job *job, const struct stat_worker *worker, int index, struct stat_row *row);
/* The ranks that hold an object: how many, into ranks. */
size_t stat_object_holders(const struct bxi_object_row *object, uint64_t ranks[BXI_WORKERS_MAX]);

#endif
